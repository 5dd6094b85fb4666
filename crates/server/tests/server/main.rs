//! Masters and nodes with real sockets, memory and processes. They are one program, which is linked once.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]
#![expect(clippy::indexing_slicing, reason = "a failed test panics")]

mod cluster;
mod events;
mod ha;
mod hostile;
mod identity;
mod lanes;
mod pages;
mod pools;
mod starts;
mod support;
mod walls;
mod watch;
