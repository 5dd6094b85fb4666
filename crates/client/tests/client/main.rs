//! The client with real servers in the same process. Tests that need separate processes are in `processes`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

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
mod queued;
mod relocate;
mod reserved;
mod samples;
mod store;
mod streams;
mod support;
mod tiers;
mod tls;
mod traces;
