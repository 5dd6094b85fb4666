//! The decisions of the master, and no I/O.
//!
//! - [`master::Master`] decides about names: which key is which object, where its replicas are, what may be
//!   evicted, which members there are.
//! - [`election::Election`] decides which of several masters leads.
//!
//! A shell owns sockets and the clock. It passes each event in together with the time, then drains
//! `poll_effect` until it is empty and carries the effects out *in order*. The decisions of nodes and their
//! disks are in the crate `node`, those of a client in `session`; the types and messages that all share are
//! in `types`, and are named `crate::…` here.
//!
//! **Invariant:** the same events at the same ticks give the same effects. Nothing here reads a clock, draws
//! a random number, starts a task, or depends on the order of a hash map.
//!
//! **Invariant:** no byte of user data and no pointer enters this crate, only extents and lengths.

pub mod election;
pub mod master;

use tiffin_types::*;
