//! The part of MessagePack that events need. It only encodes.

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Nil,
    Number(u64),
    Signed(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(Vec<Value<'a>>),
    /// In the given order.
    Map(Vec<(&'a str, Value<'a>)>),
}

impl Value<'_> {
    /// Appends the encoding.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Number(number) => write_number(*number, out),
            Self::Signed(number) => match u64::try_from(*number) {
                Ok(number) => write_number(number, out),
                Err(_) => {
                    out.push(0xd3);
                    out.extend_from_slice(&number.to_be_bytes());
                }
            },
            Self::Text(text) => {
                match u8::try_from(text.len()) {
                    Ok(len @ 0..=31) => out.push(0xa0 | len),
                    _ => write_length(text.len(), [0xd9, 0xda, 0xdb], out),
                }
                out.extend_from_slice(text.as_bytes());
            }
            Self::Bytes(bytes) => {
                write_length(bytes.len(), [0xc4, 0xc5, 0xc6], out);
                out.extend_from_slice(bytes);
            }
            Self::List(items) => {
                write_count(items.len(), (0x90, 0xdc, 0xdd), out);
                items.iter().for_each(|item| item.write(out));
            }
            Self::Map(entries) => {
                write_count(entries.len(), (0x80, 0xde, 0xdf), out);
                for (name, value) in entries {
                    Self::Text(name).write(out);
                    value.write(out);
                }
            }
        }
    }
}

fn write_number(number: u64, out: &mut Vec<u8>) {
    match number {
        0..=0x7f => out.push(number as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, number as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Writes the length of text or bytes, with the type bytes for 8, 16 and 32 bits. Keys are far below 4 GiB.
fn write_length(len: usize, [short, middle, long]: [u8; 3], out: &mut Vec<u8>) {
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(len), _) => out.extend_from_slice(&[short, len]),
        (_, Ok(len)) => {
            out.push(middle);
            out.extend_from_slice(&len.to_be_bytes());
        }
        _ => {
            out.push(long);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

/// Writes a number of entries, with the type bytes for 4, 16 and 32 bits.
fn write_count(count: usize, (short, middle, long): (u8, u8, u8), out: &mut Vec<u8>) {
    match (u8::try_from(count), u16::try_from(count)) {
        (Ok(count @ 0..=15), _) => out.push(short | count),
        (_, Ok(count)) => {
            out.push(middle);
            out.extend_from_slice(&count.to_be_bytes());
        }
        _ => {
            out.push(long);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_shortest_form() {
        let long = "x".repeat(300);
        let rows: [(Value<'_>, &[u8]); 12] = [
            (Value::Nil, &[0xc0]),
            (Value::Number(5), &[5]),
            (Value::Number(200), &[0xcc, 200]),
            (Value::Number(0x1234), &[0xcd, 0x12, 0x34]),
            (Value::Number(0x1_0000), &[0xce, 0, 1, 0, 0]),
            (Value::Number(u64::MAX), &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
            (Value::Signed(-1), &[0xd3, 255, 255, 255, 255, 255, 255, 255, 255]),
            (Value::Signed(7), &[7]),
            (Value::Text("ab"), &[0xa2, b'a', b'b']),
            (Value::Bytes(&[1]), &[0xc4, 1, 1]),
            (Value::List(vec![Value::Nil]), &[0x91, 0xc0]),
            (Value::Map(vec![("a", Value::Number(1))]), &[0x81, 0xa1, b'a', 1]),
        ];
        for (value, expected) in rows {
            let mut out = Vec::new();
            value.write(&mut out);
            assert_eq!(out, expected, "{value:?}");
        }
        let mut out = Vec::new();
        Value::Text(&long).write(&mut out);
        assert_eq!(out[..3], [0xda, 1, 44]);
        out.clear();
        Value::List(vec![Value::Nil; 64]).write(&mut out);
        assert_eq!(out[..3], [0xdc, 0, 64]);
    }
}
