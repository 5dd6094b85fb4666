//! What no compiler checks: sizes, leftovers, the direction of dependencies, licences, documents.
//!
//! Each rule is a function from text to complaints, proven beside it on a bad snippet. `tests/tree.rs` holds
//! the whole tree against them with every `cargo test`. A complaint names its `path:line`, for editors.

pub mod built;
pub mod documents;
pub mod licence;
pub mod links;
pub mod manifest;
pub mod source;
pub mod tree;
