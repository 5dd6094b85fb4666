//! The lines that the drop-in prints.

use std::io::{self, Write as _};

/// Prints one line on standard error.
pub(crate) fn tell(what: &str) {
    let line = what.replace("\n\nhint: ", "; hint: ").replace('\n', " ");
    // A program that has closed standard error does not want the line.
    let _ = writeln!(io::stderr(), "mooncake.store: {line}");
}
