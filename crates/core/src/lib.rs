//! The decisions of the master, the nodes and their disks, and no I/O.
//!
//! Three state machines are here, one per party:
//!
//! - [`master::Master`] decides about names: which key is which object, where its replicas are, what may be
//!   evicted, which members there are.
//! - [`node::Node`] decides about bytes: which extents of its segment are free, reserved, committed or still
//!   viewed, and the stamps that make reads valid.
//! - [`disk::Disk`] decides about the copies on one disk of a node.
//!
//! A shell owns sockets, memory and the clock. It passes each event in together with the time, then drains
//! `poll_effect` until it is empty and carries the effects out *in order*. The decisions of a client are in
//! the crate `session`; the types and messages that all share are in the crate `types`, and reexported here.
//!
//! **Invariant:** the same events at the same ticks give the same effects. Nothing here reads a clock, draws
//! a random number, starts a task, or depends on the order of a hash map.
//!
//! **Invariant:** no byte of user data and no pointer enters this crate, only extents and lengths.

pub mod disk;
pub mod election;
pub mod extent;
pub mod master;
pub mod node;

pub use tiffin_types::*;
