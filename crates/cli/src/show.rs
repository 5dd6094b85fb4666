//! Formats keys, sizes, tables and bytes, for people and for programs.
//!
//! **Invariant:** no untrusted text reaches a terminal unescaped: a key may contain any bytes.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tiffin_types::units::Size;

/// A cell longer than this, in characters, does not widen its column.
const CELL_CHARS_MAX: usize = 48;

/// A key as text, with unprintable characters escaped.
pub(crate) fn key(bytes: &[u8]) -> String {
    tiffin_server::why::printable(bytes)
}

/// A size in human-readable form.
pub(crate) fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

/// Inserts bytes into a JSON object: as text under `name`, or, if they are not text, under `name_base64`.
pub(crate) fn insert(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), base64(bytes).into()),
    };
}

/// A JSON object with the key.
pub(crate) fn keyed(bytes: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    insert(&mut object, "key", bytes);
    object
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let index = (word >> (18 - 6 * place)) & 63;
            let letter = ALPHABET.get(index as usize).copied().unwrap_or(b'=');
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// Rows under a header. The first column is aligned to the left, the others to the right, unless the table
/// has another layout.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    layout: Layout,
}

/// The columns that are aligned to the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    First,
    Last,
    All,
}

impl Table {
    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }

    /// A table with this header.
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(ToString::to_string).collect()], layout: Layout::First }
    }

    /// The same with all columns aligned to the left.
    pub(crate) fn left(self) -> Self {
        Self { layout: Layout::All, ..self }
    }

    /// The same with the last column aligned to the left, for names of any length.
    pub(crate) fn last_left(self) -> Self {
        Self { layout: Layout::Last, ..self }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                let chars = cell.chars().count();
                if chars <= CELL_CHARS_MAX {
                    *width = (*width).max(chars);
                }
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let is_left = match self.layout {
                    Layout::First => column == 0,
                    Layout::Last => column + 1 == widths.len(),
                    Layout::All => true,
                };
                match is_left {
                    true => write!(line, "{gap}{cell:<width$}")?,
                    false => write!(line, "{gap}{cell:>width$}")?,
                }
            }
            let newline = if number == 0 { "" } else { "\n" };
            write!(out, "{newline}{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped_for_the_terminal() {
        for (bytes, shown) in [
            (&b"plain/key-1"[..], "plain/key-1"),
            ("küche".as_bytes(), "küche"),
            (b"a\x1b[31mred", "a\\u{1b}[31mred"),
            (b"tab\there", "tab\\there"),
            (b"\xff\x00", "\\xff\\u{0}"),
        ] {
            assert_eq!(key(bytes), shown);
        }
    }

    #[test]
    fn binary_values_are_written_in_base64() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (b"\xff\xfe\xfd", "//79"),
        ] {
            assert_eq!(base64(bytes), text);
        }
        assert_eq!(Value::from(keyed(b"a")).to_string(), r#"{"key":"a"}"#);
        assert_eq!(Value::from(keyed(b"\xff")).to_string(), r#"{"key_base64":"/w=="}"#);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["key", "size"]);
        table.row(["a".to_owned(), "1 B".to_owned()]);
        table.row(["küche".to_owned(), "12 B".to_owned()]);
        assert_eq!(table.to_string(), "key    size\na       1 B\nküche  12 B");
    }

    #[test]
    fn long_cell_does_not_widen_other_rows() {
        let long = "k".repeat(CELL_CHARS_MAX + 1);
        let mut table = Table::new(&["key", "size"]);
        table.row(["a".to_owned(), "1 B".to_owned()]);
        table.row([long.clone(), "12 B".to_owned()]);
        assert_eq!(table.to_string(), format!("key  size\na     1 B\n{long}  12 B"));
        let mut table = Table::new(&["size", "key"]).last_left();
        table.row(["1 B".to_owned(), "a".to_owned()]);
        table.row(["12 B".to_owned(), long.clone()]);
        assert_eq!(table.to_string(), format!("size  key\n 1 B  a\n12 B  {long}"));
    }
}
