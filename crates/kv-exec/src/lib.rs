//! Executes the operations of the control plane of a KV-cache hierarchy over real memory.
//!
//! `tiffin-kv` decides which pages move; this crate moves them. An inference loop steps an [`Executor`],
//! which has an engine: a step gives the engine its inputs, starts its operations on threads of the executor,
//! and returns its other effects. No step waits for I/O (L6).
//!
//! Users can bring their own implementation of four small traits or types:
//!
//! | | |
//! |---|---|
//! | [`Pages`] | memory in pages: allocated here, or borrowed from an owner that keeps it alive |
//! | [`PageStore`] | the shared store: [`ClusterStore`] is a Tiffin cluster; others get the same batched
//! calls |
//! | [`Device`] | the device: [`CudaDevice`] is one in memory of a GPU, [`HostDevice`] one in host memory |
//! | [`Gather`] | the collective of ranks: [`gather::in_process`] is for ranks that are threads |
//!
//! **Invariants.** An operation borrows its pages from [`Pages`] for exactly as long as it is executed, and
//! pages that it writes exclusively. If engine and memory ever disagree, the operation fails, is counted, and
//! moves no byte. Every operation ends exactly once, also one that panics, is cancelled, or does not fit into
//! the queue of its lane.

mod cluster_store;
mod cuda_device;
mod device;
mod executor;
pub mod gather;
mod lanes;
mod load;
mod pages;
mod resources;
mod store;
#[cfg(test)]
mod tests;

pub use cluster_store::ClusterStore;
pub use cuda_device::{CudaDevice, CudaError, CudaLayer};
pub use device::{Device, Fence, HostDevice};
pub use executor::{Executor, OpCounts, OpEnd, Parts, StartError, Step, StepError, Waiter};
pub use gather::{Gather, GatherError};
pub use lanes::Threads;
pub use load::{LoadProgress, Loads, QueuedLayers};
pub use pages::{PageReadGuard, PageWriteGuard, Pages};
pub use store::{Fault, PageName, PageStore, Stop};
