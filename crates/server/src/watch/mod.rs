//! What operators watch: events, and the history of latencies and rates. The page at `/`, `tiffin top`,
//! `tiffin stat --watch` and `tiffin events` show it.
//!
//! The master's shell records here; no decision depends on it. A task takes a point of the history every
//! [`INTERVAL`], and sends a snapshot to the open streams if there are any.

mod history;
mod journal;
mod live;
mod snapshot;

use std::time::Duration;

pub(crate) use history::History;
pub(crate) use journal::{Entry, Journal, Kind};
pub(crate) use live::Live;
pub use live::STREAMS_MAX;
pub(crate) use snapshot::{Seen, events, render};

/// The time between two points of the history, and between two snapshots of a stream.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);
