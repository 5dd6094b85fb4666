//! Traces of requests through a KV hierarchy, in virtual time.
//!
//! A [`trace`] is read from a file or generated from a seed ([`generate`]); a [`Machine`] has the speeds of
//! copies and computation; [`replay`] runs the real engine (`tiffin-kv`) with it and returns a [`Report`].
//! The same trace, machine and policy give the same report; only the duration of the replay itself differs.

pub mod generate;
mod lru_store;
mod machine;
mod report;
mod run;
pub mod trace;

pub use machine::{Link, Machine};
pub use report::{Comparison, Edges, Hits, Percentiles, Prefetch, Report, Tiers};
pub use run::{Policy, compare, replay};
