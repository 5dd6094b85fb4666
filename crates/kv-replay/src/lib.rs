//! Traces of requests through a KV hierarchy, in virtual time.
//!
//! A [`trace`] is read from a file or made by a seeded [`generate`]; a [`Machine`] says how fast pages move
//! and tokens are computed; [`replay`] runs the real engine (`tiffin-kv`) through it and returns a
//! [`Report`]. The same trace, machine and policy give the same report, to the last digit: only the time
//! that the replay itself took differs.

pub mod generate;
mod machine;
mod report;
mod run;
mod store;
pub mod trace;

pub use machine::{Link, Machine};
pub use report::{Compared, Edges, Hits, Percentiles, Prefetch, Report, Tiers};
pub use run::{Policy, compare, replay};
