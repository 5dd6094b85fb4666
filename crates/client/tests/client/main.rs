//! The client against real servers in the same process. What needs processes of its own is in `processes.rs`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "all of it is a test")]

mod broken_disks;
#[path = "../common/mod.rs"]
mod common;
mod counters;
mod disks;
mod faults;
mod full;
mod lifetimes;
mod mistakes;
mod pieces;
mod reserved;
mod samples;
mod store;
mod streams;
mod support;
mod tiers;
