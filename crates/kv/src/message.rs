//! The inputs and effects of an engine.
//!
//! The shell gives the engine [`Input`]s, each at a [`Tick`], and carries out the [`Effect`]s that it
//! returns, in order. The engine never waits: work that takes time is an [`Operation`] that it issues, and
//! whose [`Outcome`] the shell reports later, by the operation's id (L5, L6).

use crate::hash::{ChainHash, Media, Namespace};

/// A time, in a unit that the shell chooses; deadlines have the same unit.
pub type Tick = u64;

/// Names a request; the shell chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReqId(pub u64);

/// Names an operation; never used twice by an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Names a namespace; the shell chooses it with [`Input::Define`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// A tier whose pages the engine owns. The third tier, the store, is accessed by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Pages that the model computes on.
    Device,
    /// Pages in host memory.
    Host,
}

impl Tier {
    /// Both, in the order of speed.
    pub const BOTH: [Self; 2] = [Self::Device, Self::Host];
}

/// A page of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// Its tier.
    pub tier: Tier,
    /// Its number in the tier, from 0 on.
    pub index: u32,
}

/// Where bytes come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A page of a tier.
    Page(PageId),
    /// The store, under the key that follows from the record's hash (see [`crate::hash::StoreKey`]).
    Store,
    /// Nowhere: a probe moves no bytes.
    Nowhere,
}

/// One page of an operation with all its data: there are no parallel lists and no implied start (K1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRecord {
    /// The position of the page in its prefix, counted from the root.
    pub position: u32,
    /// Its name.
    pub hash: ChainHash,
    /// Where the bytes are read.
    pub source: Place,
    /// Where they are written.
    pub target: Place,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Counts the leading pages that the store has. Changes nothing there.
    Probe,
    /// From the store to the host.
    Fetch,
    /// From the host to the device.
    Load,
    /// From the device to the host.
    Save,
    /// From the host to the store.
    Backup,
    /// Deletes everything that the store has under this root.
    Drop,
}

impl OpKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Probe, Self::Fetch, Self::Load, Self::Save, Self::Backup, Self::Drop];
}

/// An operation to carry out. It ends with exactly one [`Outcome`] (L1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Names it.
    pub id: OpId,
    /// Its kind.
    pub kind: OpKind,
    /// The root of the namespace of the pages; a part of their keys in the store.
    pub root: ChainHash,
    /// The pages, in the order of their positions.
    pub records: Vec<PageRecord>,
    /// The request that it was issued for, if any. Others may join later.
    pub request: Option<ReqId>,
    /// When it is abandoned. The shell still ends and reports it.
    pub deadline: Tick,
}

/// How an operation ended: it no longer reads or writes any bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// This number of leading records succeeded; the others did not. Also the answer of a probe.
    Done {
        /// Number of records.
        leading: u32,
    },
    /// No record succeeded.
    Failed,
}

/// The outcomes that a rank has received since the last gather, in the order of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAcks(pub Vec<(OpId, Outcome)>);

/// How short a tier is of memory or bandwidth, as its owner sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// No shortage.
    #[default]
    Calm,
    /// Work that can wait should wait.
    Tight,
    /// No more work is accepted.
    Full,
}

/// A medium that can be under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// A tier of the engine.
    Tier(Tier),
    /// The store.
    Store,
}

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Tokens, which the engine hashes.
    Tokens {
        /// All of them.
        tokens: Vec<u32>,
        /// Other inputs that change the bytes.
        media: Vec<Media>,
    },
    /// Pages that the caller hashed, over everything that changes their bytes.
    Hashes {
        /// Number of tokens; the last page may be partial.
        tokens: u32,
        /// The full pages: positions from 0 on, and the hash of each.
        pages: Vec<(u32, ChainHash)>,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// Its name.
    pub request: ReqId,
    /// Its namespace.
    pub space: SpaceId,
    /// Its prompt.
    pub prompt: Prompt,
    /// Requests with a higher priority go first; among equals, the one that arrived first.
    pub priority: u8,
    /// When it stops waiting for the store, if that is earlier than the limit of the policy.
    pub deadline: Option<Tick>,
}

/// How far a request was computed in a pass of the model; see [`Input::Computed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which request.
    pub request: ReqId,
    /// Number of its tokens whose pages are computed.
    pub upto: u32,
    /// The tokens that were generated since then.
    pub generated: Vec<u32>,
}

/// An input of the engine. All ranks get the same inputs in the same order, except [`Input::Complete`].
///
/// `Computed`, `Finish`, `Pass`, `Abort` and `Retract` are given between two passes of the model: the model
/// does not compute on the pages of a request while the engine learns that the request ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Defines a namespace. A new definition with another content, such as new weights, makes every page
    /// under the old one unreachable at once.
    Define(SpaceId, Namespace),
    /// A new request.
    Submit(Submit),
    /// The tokens before `upto` are computed, and these were generated.
    Computed {
        /// Which request.
        request: ReqId,
        /// Number of its tokens whose pages are computed.
        upto: u32,
        /// The tokens that were generated since then.
        generated: Vec<u32>,
    },
    /// The request has all its tokens.
    Finish(ReqId),
    /// A pass of the model computed this for several requests at once, of which some have all their tokens.
    /// All progress is applied, and finished requests leave, before a request gets pages for its next token.
    /// So a request that is retracted for that keeps what was computed for it.
    Pass {
        /// What was computed.
        computed: Vec<Progress>,
        /// The requests that have all their tokens.
        finished: Vec<ReqId>,
    },
    /// Aborts the request. Allowed in every state, and more than once.
    Abort(ReqId),
    /// The request must leave the device. It becomes ready again by itself.
    Retract(ReqId),
    /// An operation ended on this rank.
    Complete(OpId, Outcome),
    /// The completions that all ranks received, in the order of ranks: the result of the all-gather of a
    /// step.
    Agreed(Vec<LocalAcks>),
    /// The pressure of a tier or of the store has changed.
    Pressure(Medium, Pressure),
    /// These pages are lost.
    Vanished(SpaceId, Medium, Vec<ChainHash>),
    /// Deletes everything of this namespace, in every tier.
    Clear(SpaceId),
    /// Time has passed.
    Tick,
}

/// Tokens that need not be computed, by the tier in which their pages were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedTokens {
    /// On the device.
    pub device: u32,
    /// In host memory.
    pub host: u32,
    /// In the store: they were fetched for this request, or for one that it joined.
    pub store: u32,
}

impl CachedTokens {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u32 {
        self.device + self.host + self.store
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// It has all its tokens.
    Finished,
    /// It was aborted.
    Aborted,
    /// With its generated tokens it no longer fits on the device.
    TooLong,
}

/// Why the engine retracts a request from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetractReason {
    /// A request that goes first needs its pages.
    NoSpace,
    /// Pages that it uses are lost (L4).
    Vanished,
    /// Its namespace was redefined.
    Redefined,
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The id is in use.
    #[error("request {0:?} exists already\n\nhint: give every request an id of its own")]
    Duplicate(ReqId),
    /// There is no such namespace.
    #[error("namespace {0:?} is not defined\n\nhint: define it before the first request in it")]
    UnknownSpace(SpaceId),
    /// There is nothing to compute.
    #[error("the prompt of request {0:?} is empty\n\nhint: a prompt has at least one token")]
    Empty(ReqId),
    /// It needs more pages than the device has.
    #[error(
        "request {request:?} needs {pages} pages of {capacity} on the device\n\nhint: shorten the prompt, \
             or give the device more pages"
    )]
    TooLong {
        /// Which one.
        request: ReqId,
        /// Number of pages that it needs.
        pages: u32,
        /// Number of pages of the device.
        capacity: u32,
    },
    /// Positions do not count up from 0, or a hash is there twice.
    #[error(
        "the hashes of request {0:?} are out of order at page {1}\n\nhint: name every full page once, \
             from position 0 on"
    )]
    HashesOutOfOrder(ReqId, u32),
    /// There are more hashes than full pages.
    #[error(
        "request {request:?} names {hashes} pages, and its tokens fill {pages}\n\nhint: leave out the page \
             that is not full"
    )]
    PagesDoNotDivide {
        /// Which one.
        request: ReqId,
        /// Number of hashes.
        hashes: u32,
        /// Number of full pages.
        pages: u32,
    },
    /// The progress is impossible.
    #[error(
        "request {request:?} cannot have {upto} of {tokens} tokens computed\n\nhint: count up, and say what \
             was generated in the same call"
    )]
    Progress {
        /// Which one.
        request: ReqId,
        /// The progress that was reported.
        upto: u32,
        /// Number of its tokens.
        tokens: u32,
    },
    /// The number of lists is not the number of ranks.
    #[error(
        "{0} ranks answered, there are {1}\n\nhint: every rank joins every gather, with an empty list too"
    )]
    Ranks(usize, u32),
}

/// What the shell is to do now, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry out this operation, and report how it ended.
    Issue(Operation),
    /// The operation is abandoned, or its completion is overdue: stop it if possible, and report (again) how
    /// it ended.
    CancelHint(OpId),
    /// Pages of the request are being loaded to the device. It is `Ready` with the same tokens and pages if
    /// all of them arrive. Until `Ready`, `Retracted` or `Ended` its pages stay its own.
    Loading {
        /// Which one.
        request: ReqId,
        /// The tokens that are cached if all pages arrive.
        cached: CachedTokens,
        /// Its pages on the device, in order, for all its tokens.
        pages: Vec<u32>,
    },
    /// The request may be computed, in these device pages.
    Ready {
        /// Which one.
        request: ReqId,
        /// Tokens that are cached, always fewer than all (K5).
        cached: CachedTokens,
        /// Its pages on the device, in order, for all its tokens.
        pages: Vec<u32>,
    },
    /// The request gets these device pages in addition.
    Grant {
        /// Which one.
        request: ReqId,
        /// The pages.
        pages: Vec<u32>,
    },
    /// Pages that the store has did not arrive, or too late: the request computes them.
    MustRecompute {
        /// Which one.
        request: ReqId,
        /// The first token to compute.
        from: u32,
    },
    /// The request is no longer on the device. It becomes ready again with `Ready`.
    Retracted(ReqId, RetractReason),
    /// The request has ended.
    Ended(ReqId, Ending),
    /// The input was refused.
    Refused(Refusal),
    /// A copy became available.
    Stored(Tier, SpaceId, ChainHash),
    /// A copy was removed.
    Removed(Tier, SpaceId, ChainHash),
}
