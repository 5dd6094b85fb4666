//! The promises, one file each.
//!
//! | file | promise |
//! |---|---|
//! | [`p1`] | never wrong bytes |
//! | [`p2`] | delete is immediate and permanent |
//! | [`p4`] | pinned objects stay; nothing vanishes without a reason |
//! | [`p6`] | consumed samples are freed; quotas hold (P5) |
//! | [`p8`] | published objects survive crashes |
//! | [`r16`] | absent is never guessed |
//! | [`tier`] | disk copies survive crashes (P8); probes and promotions have no side effects |
//! | [`copies`] | lost copies are made again, and none too many stays |
//! | [`expiry`] | an object exists until its TTL is over, and not after that |
//! | [`drains`] | a drained node takes no new objects, and every drain job ends |
//! | [`full`] | `Full` is answered only when nothing is left to evict (R19) |
//! | [`guaranteed`] | memory that is guaranteed to a namespace is not used by another one (P5) |
//! | [`walls`] | no answer to a client contains an object of another namespace (P9) |
//! | [`memory`] | usage counters are correct, memory is used once, nothing leaks |
//! | [`liveness`] | after the faults stop, everything ends |

mod copies;
pub(crate) mod drains;
pub(crate) mod expiry;
pub(crate) mod full;
mod guaranteed;
mod liveness;
mod memory;
mod p1;
pub(crate) mod p2;
mod p4;
mod p6;
mod p8;
pub(crate) mod r16;
mod streams;
pub(crate) mod successors;
pub(crate) mod tier;
mod walls;
