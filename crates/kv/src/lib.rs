//! The control plane of a KV-cache hierarchy: device pages, host pages, a shared store; and no I/O.
//!
//! An inference engine embeds an [`Engine`]. The embedding program, the *shell*, reports requests, computed
//! tokens and completed operations, and carries out the effects that the engine returns. On admission the
//! engine finds the longest prefix in any tier, fetches pages of the store into host pages while the request
//! waits, loads host pages to the device, and saves computed pages down again. It never matches a page whose
//! bytes are missing, never loses a page, and ranks never disagree.
//!
//! It is sans-IO and deterministic: time is an argument, operations are values, and the shell moves the
//! bytes. It is built on three ideas:
//! - A page is named by a chain of hashes over everything that changes its bytes ([`hash`]).
//! - Operations, not requests, own what they read and write, until their completion is received.
//! - A copy can be matched only after the operation that wrote it has succeeded.
//!
//! `docs/kv.md` names the invariants; the code and the tests use those names.

mod arena;
mod cell;
pub mod config;
mod digest;
pub mod engine;
mod fold;
pub mod hash;
mod index;
mod inventory;
mod ledger;
pub mod message;
pub mod mutant;
pub mod policy;
mod pool;
pub mod ranks;
pub mod settings;
mod stats;

pub use config::{Budgets, Config, ConfigError, IndexKind, StoreConfig};
pub use engine::{Engine, Match, Resident, State, Violation};
pub use hash::{ChainHash, Media, Namespace, RankPart, StoreKey};
pub use message::{
    CachedTokens, Effect, Ending, Input, Medium, OpId, OpKind, Operation, Outcome, PageId, PageRecord, Place,
    Pressure, Progress, Prompt, Refusal, ReqId, RetractReason, SpaceId, Submit, Tick, Tier,
};
pub use policy::{Eviction, PrefetchStart, PrefetchStop, StopKind, WritePolicy};
pub use pool::PageCounts;
pub use ranks::LocalAcks;
pub use settings::{SettingError, Settings, Value};
pub use stats::Stats;
