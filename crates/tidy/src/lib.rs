//! What no compiler checks: sizes, leftovers, the direction of dependencies, licences.
//!
//! Each rule is a function from text to complaints, proven beside it on a bad snippet. `tests/tree.rs` applies
//! them to the whole tree with every `cargo test`. A complaint starts with `path:line`, so editors jump there.

pub mod licence;
pub mod manifest;
pub mod source;
pub mod tree;
