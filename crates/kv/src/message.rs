//! What the engine is told and what it answers: its whole vocabulary.
//!
//! An engine is told [`Input`]s, each at a [`Tick`], and answers with [`Effect`]s, which its shell carries
//! out in order. It never waits: what takes time is an [`Operation`] that it issues and whose [`Outcome`] it
//! is told later, by the operation's id (L5, L6).

use crate::hash::{ChainHash, Media, Namespace};
use crate::ranks::LocalAcks;

/// A moment, in whatever unit the shell chooses; deadlines are in the same.
pub type Tick = u64;

/// Names a request; the shell's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReqId(pub u64);

/// Names an operation; never used twice by an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Names a namespace; the shell's choice, made with [`Input::Define`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// A tier whose pages the engine owns. The third one, the store, is reached by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Pages that are computed on.
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
    /// Where it is.
    pub tier: Tier,
    /// Its place there, from 0 on.
    pub index: u32,
}

/// Where bytes come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A page of ours.
    Page(PageId),
    /// The store, under the key that follows from the record's hash (see [`crate::hash::StoreKey`]).
    Store,
    /// Nowhere: a question moves nothing.
    Nowhere,
}

/// One page of an operation, with everything that belongs to it: there are no parallel lists and no implied
/// start (K1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRecord {
    /// The place of the page in its prefix, counted in pages from the root.
    pub position: u32,
    /// Its name.
    pub hash: ChainHash,
    /// Where the bytes are.
    pub source: Place,
    /// Where they go.
    pub target: Place,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// How many of these pages, counted from the first, does the store have? Changes nothing there.
    Probe,
    /// From the store to the host.
    Fetch,
    /// From the host to the device.
    Load,
    /// From the device to the host.
    Save,
    /// From the host to the store.
    Backup,
    /// Drops all that the store has under this root.
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
    /// What to do.
    pub kind: OpKind,
    /// The root of the namespace that the pages are of; a part of their keys in the store.
    pub root: ChainHash,
    /// The pages, in the order of their positions.
    pub records: Vec<PageRecord>,
    /// The request that it was issued for, if it was for one. Others may have joined since.
    pub request: Option<ReqId>,
    /// When nobody waits for it any more. It is still to be ended and reported.
    pub deadline: Tick,
}

/// How an operation ended: its bytes are no longer read or written by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// So many records, counted from the first, were done; those behind were not. A probe's answer.
    Done {
        /// How many.
        leading: u32,
    },
    /// Nothing that it did counts.
    Failed,
}

/// How short a tier is of room or speed, as its owner sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// Not at all.
    #[default]
    Calm,
    /// What can wait should.
    Tight,
    /// Nothing more.
    Full,
}

/// A place that can be under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// A tier of ours.
    Tier(Tier),
    /// The store.
    Store,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Tokens, which the engine hashes.
    Tokens {
        /// All of them.
        tokens: Vec<u32>,
        /// What else changes the bytes.
        media: Vec<Media>,
    },
    /// Pages that were hashed elsewhere, over everything that changes their bytes.
    Hashes {
        /// The number of tokens, which may fill a part of a page more.
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
    /// Where its pages live.
    pub space: SpaceId,
    /// What it asks for.
    pub prompt: Prompt,
    /// Higher ones go first; among equals, whoever came first.
    pub priority: u8,
    /// When it stops waiting for the store at the latest, if earlier than the policy has it.
    pub deadline: Option<Tick>,
}

/// How far a request was computed in a pass; see [`Input::Computed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which request.
    pub request: ReqId,
    /// How many tokens of it are in its pages.
    pub upto: u32,
    /// The tokens that were generated since.
    pub generated: Vec<u32>,
}

/// What the engine is told. All ranks are told the same in the same order, but for [`Input::Complete`].
///
/// `Computed`, `Finish`, `Pass`, `Abort` and `Retract` are said between two passes of the model: nothing
/// computes on the pages of a request while it is told that the request ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A namespace is this from now on. Said again with another content, as with new weights, it makes every
    /// page under the old one unreachable at once.
    Define(SpaceId, Namespace),
    /// Here is a request.
    Submit(Submit),
    /// The tokens before `upto` are computed, and these were generated.
    Computed {
        /// Which request.
        request: ReqId,
        /// How many tokens of it are in its pages.
        upto: u32,
        /// The tokens that were generated since.
        generated: Vec<u32>,
    },
    /// The request has all its tokens.
    Finish(ReqId),
    /// A pass of the model computed this for several requests at once, of which some have all their tokens.
    /// All of it is taken before anybody gets room for the next token: whoever must leave the device for
    /// that has what was computed for it, and whoever is over leaves first.
    Pass {
        /// What was computed.
        computed: Vec<Progress>,
        /// Who has all its tokens.
        finished: Vec<ReqId>,
    },
    /// Nobody wants the request any more. Right in every state, and again.
    Abort(ReqId),
    /// The request must leave the device, and comes back by itself.
    Retract(ReqId),
    /// An operation ended on this rank.
    Complete(OpId, Outcome),
    /// What all ranks heard of, in the order of ranks: the answer of the one all-gather of a step.
    Agreed(Vec<LocalAcks>),
    /// A tier or the store is short, or no longer.
    Pressure(Medium, Pressure),
    /// These pages turned out to be lost.
    Vanished(SpaceId, Medium, Vec<ChainHash>),
    /// Nothing of this namespace counts any more, in no tier.
    Clear(SpaceId),
    /// Time has passed.
    Tick,
}

/// Tokens that need not be computed, by where their pages were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedTokens {
    /// On the device.
    pub device: u32,
    /// In host memory.
    pub host: u32,
    /// In the store, from where they were fetched for this request or for one it joined.
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
    /// As it should.
    Finished,
    /// It was aborted.
    Aborted,
    /// With what it generated it no longer fits on the device.
    TooLong,
}

/// Why the engine takes a request off the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetractReason {
    /// Another one, which goes first, needs the room.
    NoRoom,
    /// Pages that it counts on are lost (L4).
    Vanished,
    /// Its namespace was defined anew.
    Redefined,
}

/// Why an input counts for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The id is taken.
    #[error("request {0:?} is already here\n\nhint: give every request an id of its own")]
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
        /// What it needs.
        pages: u32,
        /// What there is.
        capacity: u32,
    },
    /// Positions do not count up from 0, or a hash stands twice.
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
        /// How many were named.
        hashes: u32,
        /// How many are full.
        pages: u32,
    },
    /// It says that more or less is computed than can be.
    #[error(
        "request {request:?} cannot have {upto} of {tokens} tokens computed\n\nhint: count up, and say what \
             was generated in the same call"
    )]
    Progress {
        /// Which one.
        request: ReqId,
        /// What was said.
        upto: u32,
        /// How many it has.
        tokens: u32,
    },
    /// There are more or fewer answers than ranks.
    #[error(
        "{0} ranks answered, there are {1}\n\nhint: every rank joins every gather, with an empty list too"
    )]
    Ranks(usize, u32),
}

/// What is to be done now, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry this out, and say how it ended.
    Issue(Operation),
    /// Nobody waits for this any more, or its end was not heard of: stop it if that can be, and say (again)
    /// how it ended.
    CancelHint(OpId),
    /// The request may be computed, in these device pages.
    Ready {
        /// Which one.
        request: ReqId,
        /// What is there already, always less than all (K5).
        cached: CachedTokens,
        /// Its pages on the device, in order, for all its tokens.
        pages: Vec<u32>,
    },
    /// The request has this device page behind those it had.
    Grant {
        /// Which one.
        request: ReqId,
        /// The pages.
        pages: Vec<u32>,
    },
    /// What the store promised did not come, or not in time: the request goes on without it.
    MustRecompute {
        /// Which one.
        request: ReqId,
        /// The first token that nothing holds.
        from: u32,
    },
    /// The request is no longer on the device. It comes back with `Ready`.
    Retracted(ReqId, RetractReason),
    /// The request is over.
    Ended(ReqId, Ending),
    /// The input counts for nothing.
    Refused(Refusal),
    /// A copy can be matched from now on.
    Stored(Tier, SpaceId, ChainHash),
    /// A copy is gone.
    Removed(Tier, SpaceId, ChainHash),
}
