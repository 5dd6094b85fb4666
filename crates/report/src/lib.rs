//! What commands write for people to look at in a browser: pages of HTML and plots as SVG, and the file
//! format of benchmarks, from which a page can be made later.
//!
//! - [`document`]: what a benchmark found.
//! - [`mod@bench`]: the page of a benchmark, [`replay`]: that of a replayed trace, [`curve`]: the plot of how
//!   full a store was.
//! - `plot` and `page`: what these are made of.
//!
//! **Invariant:** a page needs nothing but itself: it loads nothing. No text that came from a file or a
//! caller reaches it unescaped.

pub mod bench;
pub mod curve;
pub mod document;
mod page;
mod plot;
pub mod replay;

use tiffin_core::units::Size;

/// A number with three digits, or all of those before the point.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A size for people.
fn size_text(bytes: u64) -> String {
    Size(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in
            [(0.0, "0.00"), (1.234, "1.23"), (9.999, "10.0"), (99.99, "100"), (1e6, "1000000")]
        {
            assert_eq!(number(value), text);
        }
    }
}
