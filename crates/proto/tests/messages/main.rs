//! All messages on the wire. One program, because the values of all messages take long to compile.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

mod roundtrip;
mod smoke;
mod support;
