//! Carries out over real memory what the control plane of a KV-cache hierarchy decides.
//!
//! `tiffin-kv` says which pages are to move and hears how that ended; here they move. An [`Executor`] holds
//! an engine and is stepped by an inference loop: a step tells the engine what happened, starts what it
//! answers on threads of its own, and returns the rest. No step waits for I/O (L6).
//!
//! Four things are behind small traits or types, so that a user may bring their own:
//!
//! | | |
//! |---|---|
//! | [`Pages`] | memory in pages: ours, or lent by somebody who keeps it alive |
//! | [`Store`] | the shared store: [`Shared`] is a Tiffin cluster; others are asked in the same batches |
//! | [`Device`] | what computes: [`HostDevice`] is memory that the processor reaches |
//! | [`Gather`] | how ranks hear of each other: [`gather::in_process`] is for ranks that are threads |
//!
//! **Invariants.** A page that an operation reads or writes is borrowed from its [`Pages`] for exactly as
//! long as the operation is carried out, and pages that are written are borrowed by one alone: should
//! engine and memory ever disagree, the operation fails and is counted, and no byte moves. Every operation
//! ends exactly once, also one that panics, is cancelled or finds no room in its lane.

mod device;
mod executor;
pub mod gather;
mod lanes;
mod pages;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod work;

pub use device::{Device, HostDevice};
pub use executor::{Executor, Moved, OpEnd, Parts, StartError, Step, StepError, Waiter};
pub use gather::{Gather, GatherError};
pub use lanes::Threads;
pub use pages::{Pages, Reading, Writing};
pub use shared::Shared;
pub use store::{Fault, PageName, Stop, Store};
