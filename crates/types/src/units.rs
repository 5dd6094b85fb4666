//! Quantities as text for people: sizes with a binary unit, counts with the right plural.

use std::fmt;

/// The binary units above the byte, each 1,024 times the one before.
const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A size, such as `17 B` or `20.0 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// A number of things, such as `1 byte` or `3 objects`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(out, "{} B", self.0);
        }
        let mut unit_bytes = 1_u128;
        for unit in UNITS {
            unit_bytes *= 1024;
            let tenths = (u128::from(self.0) * 10 + unit_bytes / 2) / unit_bytes;
            // A value that rounds up to the next unit is written in that unit; the last unit holds any
            // `u64`.
            if tenths < 10_240 {
                return write!(out, "{}.{} {unit}", tenths / 10, tenths % 10);
            }
        }
        write!(out, "{} B", self.0)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, thing) = self;
        write!(out, "{number} {thing}{}", if *number == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_and_a_binary_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (20 << 20, "20.0 MiB"),
            (480 << 20, "480.0 MiB"),
            (64 << 40, "64.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn only_one_is_singular() {
        for (count, text) in [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes")] {
            assert_eq!(Count(count, "byte").to_string(), text);
        }
    }
}
