//! The promises, one file each.
//!
//! | file | promise |
//! |---|---|
//! | [`p1`] | never wrong bytes |
//! | [`p2`] | delete is immediate, and what is deleted stays so |
//! | [`p4`] | what is pinned stays; nothing vanishes without a reason |
//! | [`p6`] | what is consumed is gone; quotas hold (P5) |
//! | [`p8`] | what was published stays, whoever dies |
//! | [`tier`] | what is on a disk outlives crashes (P8); probes and promotions harm nobody |
//! | [`memory`] | the books balance, room is used once, nothing leaks |
//! | [`liveness`] | when faults stop, everything ends |

mod liveness;
mod memory;
mod p1;
pub(crate) mod p2;
mod p4;
mod p6;
mod p8;
mod streams;
pub(crate) mod tier;
