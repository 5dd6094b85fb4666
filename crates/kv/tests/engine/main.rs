//! The public interface of the engine: scenarios, and properties against a naive model.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod model;
mod stories;
mod support;
