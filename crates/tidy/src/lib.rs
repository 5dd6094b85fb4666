//! Checks that no compiler does: sizes, leftovers, dependency direction, import circles, licences, documents.
//!
//! Each rule is a function from text to problems, and is tested in its module on a bad snippet.
//! `tests/tree.rs` applies all rules to the whole tree in every `cargo test`. A problem starts with its
//! `path:line`, for editors.

pub mod circles;
pub mod documents;
pub mod licence;
pub mod linkage;
pub mod links;
pub mod manifest;
pub mod methods;
pub mod source;
pub mod tree;
