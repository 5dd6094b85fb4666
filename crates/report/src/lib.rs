//! Reports of commands for a browser: pages of HTML and plots as SVG; and the file format of benchmarks.
//!
//! - [`document`]: the results of a benchmark.
//! - [`mod@bench`]: the page of a benchmark, [`replay`]: that of a replayed trace, [`curve`]: the plot of a
//!   store's memory usage.
//! - `plot` and `page`: their parts.
//!
//! **Invariant:** a page is self-contained: it loads nothing. All text from files or callers is escaped.

pub mod bench;
pub mod curve;
pub mod document;
mod page;
mod plot;
pub mod replay;

use tiffin_types::units::Size;

/// A number with three digits, or all digits before the point.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A size in human-readable form.
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
