//! The promises, one file each.
//!
//! | file | promise |
//! |---|---|
//! | [`p1`] | never wrong bytes |
//! | [`p2`] | delete is immediate, and what is deleted stays so |
//! | [`p4`] | what is pinned stays; nothing vanishes without a reason |
//! | [`p6`] | what is consumed is gone; quotas hold (P5) |
//! | [`p8`] | what was published stays, whoever dies |
//! | [`r16`] | absent is never guessed |
//! | [`tier`] | what is on a disk outlives crashes (P8); probes and promotions harm nobody |
//! | [`full`] | `Full` is said only when nothing is left to evict (R19) |
//! | [`memory`] | the books balance, room is used once, nothing leaks |
//! | [`liveness`] | when faults stop, everything ends |

pub(crate) mod full;
mod liveness;
mod memory;
mod p1;
pub(crate) mod p2;
mod p4;
mod p6;
mod p8;
pub(crate) mod r16;
mod streams;
pub(crate) mod tier;
