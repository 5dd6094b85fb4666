//! All messages on the wire. One program, because the values of all messages take long to compile.

mod roundtrip;
mod smoke;
mod support;
