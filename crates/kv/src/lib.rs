//! The control plane of a KV-cache hierarchy: device pages, host pages, a shared store; and no I/O.
//!
//! An inference engine embeds an [`Engine`]: it tells of requests, of what was computed and of operations
//! that ended, and carries out what it is answered. On admission the engine finds the longest prefix
//! anywhere, fetches what the store has into host pages while the request waits, loads host pages to the
//! device, and brings what was computed down again; without ever matching a page whose bytes are not there,
//! losing one, or letting ranks disagree.
//!
//! It is sans-IO and deterministic: time is an argument, operations are values, bytes are somebody else's.
//! Three ideas carry it. A page is named by a chain of hashes over everything that changes its bytes
//! ([`hash`]). Operations, not requests, own what they read and write, until their own end is heard of. And
//! a copy can be matched only after the operation that brought it has succeeded. `docs/kv.md` names the
//! invariants; the code and the tests use those names.

mod arena;
pub mod config;
mod digest;
pub mod engine;
mod fold;
pub mod hash;
mod index;
mod inventory;
mod ledger;
pub mod message;
pub mod policy;
mod pool;
pub mod ranks;
pub mod sabotage;
mod stats;

pub use config::{Budgets, Config, ConfigError, IndexKind, StoreConfig};
pub use engine::{Engine, Match, Resident, State, Violation};
pub use hash::{ChainHash, Media, Namespace, RankPart, StoreKey};
pub use message::{
    CachedTokens, Effect, Ending, Input, Medium, OpId, OpKind, Operation, Outcome, PageId, PageRecord, Place,
    Pressure, Progress, Prompt, Refusal, ReqId, RetractReason, SpaceId, Submit, Tick, Tier,
};
pub use policy::{Eviction, PrefetchStop, WritePolicy};
pub use pool::PageCounts;
pub use ranks::LocalAcks;
pub use stats::Stats;
