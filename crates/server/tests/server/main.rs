//! Masters and nodes with real sockets, memory and processes. One program, so that it is linked once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![expect(clippy::indexing_slicing, reason = "a test that cannot go on panics")]

mod cluster;
mod events;
mod hostile;
mod lanes;
mod pages;
mod starts;
mod support;
