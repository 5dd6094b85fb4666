//! The error type, with one variant for each case that a caller would handle differently.

use tiffin_rpc::{AddressError, CallError, MastersError};
use tiffin_types::message::{Backlog, Full, Quota, Reason, Refusal, Resource, Usage};
use tiffin_types::units::{Count, Size};
use tiffin_types::{Generation, Key, KeyError};

/// Why a call, or one item of it, failed. [`Self::hint`] says what may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such object.
    #[error("`{key}` does not exist")]
    NotFound {
        /// Its name.
        key: Key,
    },
    /// No node has space for the object, and all that remains is pinned, leased, in view or reserved.
    #[error("{}", describe_full(key, *len, usage, *lacks, *never))]
    Full {
        /// The object that does not fit.
        key: Key,
        /// Its bytes.
        len: u64,
        /// How full all nodes are together.
        usage: Usage,
        /// What is missing.
        lacks: Resource,
        /// It would not fit if the nodes were empty, so waiting does not help.
        never: bool,
    },
    /// No storage node is ready to take the object.
    #[error("no storage node is ready to take `{key}`")]
    NoNode {
        /// The object that was to be stored.
        key: Key,
    },
    /// The namespace may not hold that much, and has nothing of its own to evict.
    #[error("{}", describe_over_quota(key, quota))]
    OverQuota {
        /// The object that does not fit.
        key: Key,
        /// What the namespace holds and may hold.
        quota: Quota,
    },
    /// The stream accepts no more samples until its consumers have caught up.
    #[error(
        "the consumers are behind: `{key}` is not accepted, because {} with {} are in flight in its stream, \
         whose high marks are {} and {}",
        Count(backlog.refs, "sample"), Size(backlog.bytes),
        mark(backlog.limits.refs_high, Count(backlog.limits.refs_high, "sample")),
        mark(backlog.limits.bytes_high, Size(backlog.limits.bytes_high))
    )]
    Behind {
        /// The sample that was not accepted.
        key: Key,
        /// What is in flight, and the limits.
        backlog: Backlog,
    },
    /// The buffer is smaller than the object, or than the requested range. Nothing was written into it.
    #[error("`{key}` has {} to be read, more than the buffer holds", Count(*.len, "byte"))]
    TooSmall {
        /// The object.
        key: Key,
        /// How many bytes there are.
        len: u64,
    },
    /// The deadline passed first. The request may or may not have been carried out.
    #[error("{what}")]
    Timeout {
        /// What the caller waited for.
        what: String,
    },
    /// The master, or every node that could have been used, cannot be reached.
    #[error("{what}")]
    Unreachable {
        /// Which one, and what was observed.
        what: String,
    },
    /// No master leads, or etcd did not say which one.
    #[error("{what}")]
    NoLeader {
        /// Which masters, and what was observed.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// A device could not copy the bytes of an object. Nothing was stored.
    #[error("{what}")]
    Device {
        /// The problem.
        what: String,
    },
    /// The name of the master's host, or of a node's, has no address.
    #[error("{what}")]
    UnknownHost {
        /// Which one, and what the system reports.
        what: String,
    },
    /// The answer is not known yet: the master has restarted, and members that may hold the object have not
    /// reported. Nothing was done.
    #[error("{what}")]
    Unavailable {
        /// The members that have not reported.
        what: String,
    },
    /// A server of another kind listens at the address, such as the HTTP pages of a master.
    #[error("{what}")]
    WrongPort {
        /// Which address, and what it speaks.
        what: String,
    },
    /// Something accepts connections at the address, but does not answer the handshake.
    #[error("{what}")]
    NoHandshake {
        /// Which address, and what was observed.
        what: String,
        /// It sent nothing in time; otherwise it closed the connection.
        is_silent: bool,
    },
    /// There is no TLS connection to the server, or it accepts no other.
    #[error("{what}")]
    Tls {
        /// Which server, and why.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The object exists, but no node that holds it can be reached now.
    #[error("`{key}` exists, but the nodes that hold it cannot be reached: {}", list(.nodes))]
    NodeDown {
        /// The object.
        key: Key,
        /// The names of the nodes.
        nodes: Vec<String>,
    },
    /// A lease protects the object from removal, and the removal was not forced.
    #[error("`{key}` is leased to a reader and was not removed")]
    Leased {
        /// The object.
        key: Key,
    },
    /// The request was carried out, but these nodes could not confirm it: the release of their copies, or
    /// the record of a pin or an acknowledgement. They must confirm before they are used again.
    #[error("done, but not confirmed by: {}", list(.nodes))]
    Unconfirmed {
        /// The names of the nodes.
        nodes: Vec<String>,
    },
    /// The object was replaced repeatedly while it was read.
    #[error("`{key}` was replaced repeatedly while it was read")]
    Contended {
        /// The object.
        key: Key,
    },
    /// The object is shorter than the requested range. Nothing was read.
    #[error("`{key}` has {}: {start}..{end} is out of range", Count(*.len, "byte"))]
    OutOfRange {
        /// The object.
        key: Key,
        /// Its length in bytes.
        len: u64,
        /// The first byte of the range.
        start: u64,
        /// The first byte after the range.
        end: u64,
    },
    /// An object of that name exists, and must not be replaced.
    #[error("`{key}` exists as generation {generation} and was not replaced")]
    Exists {
        /// Its name.
        key: Key,
        /// Which put of the key it is.
        generation: Generation,
    },
    /// The sample was replaced: refs of the older generation are no longer valid.
    #[error("`{key}` was replaced, and is generation {generation} now")]
    Superseded {
        /// The sample.
        key: Key,
        /// The generation that exists now.
        generation: Generation,
    },
    /// The group has consumed the sample.
    #[error("`{key}` was already consumed by `{group}`")]
    Consumed {
        /// The sample.
        key: Key,
        /// The group of the request.
        group: String,
    },
    /// The object is not a sample, or its bytes are not a valid manifest.
    #[error("`{key}` is not a sample: {why}")]
    NotASample {
        /// The object.
        key: Key,
        /// What is wrong.
        why: String,
    },
    /// The sample is not meant for the group.
    #[error("`{key}` is not for the consumer group `{group}`")]
    WrongGroup {
        /// The sample.
        key: Key,
        /// The group of the request.
        group: String,
    },
    /// The request is not valid.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
    /// The token is missing or wrong.
    #[error("{what}")]
    Unauthenticated {
        /// The server's message.
        what: String,
    },
    /// The server rejected the request for another reason.
    #[error("{what}")]
    Refused {
        /// The kind of rejection.
        reason: Reason,
        /// The server's message.
        what: String,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The client, or the view, belongs to the process that this one was forked from.
    #[error("client or view belongs to the parent process and cannot be used in a forked child")]
    Forked,
}

impl Error {
    /// The stable code of the error, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Full { .. } => "full",
            Self::NoNode { .. } => "no_node",
            Self::OverQuota { .. } => "over_quota",
            Self::Behind { .. } => "behind",
            Self::TooSmall { .. } => "too_small",
            Self::Timeout { .. } | Self::NoHandshake { is_silent: true, .. } => "timeout",
            Self::Unreachable { .. } | Self::NoLeader { .. } | Self::NoHandshake { is_silent: false, .. } => {
                "unreachable"
            }
            Self::Device { .. } => "device",
            Self::UnknownHost { .. } => "unknown_host",
            Self::WrongPort { .. } => "wrong_port",
            Self::Tls { .. } => "tls",
            Self::NodeDown { .. } => "node_down",
            Self::Unavailable { .. } => "unavailable",
            Self::Leased { .. } => "leased",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::Contended { .. } => "contended",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Exists { .. } => "exists",
            Self::Superseded { .. } => "superseded",
            Self::Consumed { .. } => "consumed",
            Self::NotASample { .. } => "not_a_sample",
            Self::WrongGroup { .. } => "wrong_group",
            Self::Invalid { .. } => "invalid",
            Self::Unauthenticated { .. } => "unauthenticated",
            Self::Refused { .. } => "refused",
            Self::Closed => "closed",
            Self::Forked => "forked",
        }
    }

    /// What may help, in one sentence for people.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NotFound { .. } => return None,
            Self::Full { never: true, .. } => "split it, or start a node with more memory",
            Self::NoNode { .. } => {
                "start one with `tiffin node`; `tiffin stat` shows nodes that do not answer"
            }
            Self::Full { usage, .. } if usage.unlisted > 0 => {
                "a node was restarted, and waits for clients of its earlier process to list their views: \
                 try again, and end clients that are stopped"
            }
            Self::Full { .. } => "delete or unpin objects, add a node, or let the put wait longer",
            Self::OverQuota { quota, .. } if quota.is_never_enough() => {
                "raise the quota of the namespace, or split the object"
            }
            Self::OverQuota { .. } => "delete or unpin objects of the namespace, or raise its quota",
            Self::Behind { .. } => {
                "let the put wait, check that every group acknowledges, or raise the marks"
            }
            Self::TooSmall { .. } => "give a buffer of at least that many bytes",
            Self::Timeout { .. } => {
                "allow more time; if that does not help, the peer is stopped or cannot be reached"
            }
            Self::Unreachable { .. } => {
                "check that a server listens there and that this machine can reach it"
            }
            Self::Device { .. } => {
                "keep device memory allocated until the call returns; `tiffin doctor` checks the CUDA driver"
            }
            Self::Tls { hint, .. } | Self::NoLeader { hint, .. } => hint,
            Self::NoHandshake { .. } => {
                "another program may listen there: check the address; or the server is stopped, overloaded \
                 or shutting down"
            }
            Self::UnknownHost { .. } => {
                "check the spelling of the host's name, and that this machine resolves it (DNS, /etc/hosts)"
            }
            Self::Unavailable { .. } => {
                "try again when they are back; the master gives up a node that is away longer than `--away`"
            }
            Self::WrongPort { .. } => {
                "give the address that the master listens on (port 7400 by default), not \
                 that of its HTTP pages (7401)"
            }
            Self::NodeDown { .. } => {
                "check `tiffin stat` for nodes that do not answer; more replicas survive the loss of a node"
            }
            Self::Leased { .. } => "try again when the lease has ended, or force the removal",
            Self::Unconfirmed { .. } => {
                "it is removed for every new lookup; repeat the call to learn when the nodes have confirmed"
            }
            Self::Contended { .. } => "try again, or let the writers use a key of their own for each version",
            Self::OutOfRange { .. } => "request the object's length first",
            Self::Exists { .. } => "use a new id, or replace the old sample",
            Self::Superseded { .. } => "ask the producer for the ref of the new generation",
            Self::Consumed { .. } => "each group consumes a sample once; read it before it is acknowledged",
            Self::NotASample { .. } => "read it with a get, or put it as a sample",
            Self::WrongGroup { .. } => "name the group in the sample's consumption when it is put",
            Self::Invalid { .. } => return None,
            Self::Unauthenticated { .. } => "give the token that the server was started with",
            Self::Refused { reason, .. } => refused_hint(*reason),
            Self::Closed => "connect again",
            Self::Forked => "connect again in the child",
        })
    }

    /// Whether the same call may succeed later, without a change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full { never, .. } => !never,
            Self::OverQuota { quota, .. } => !quota.is_never_enough(),
            Self::NoNode { .. }
            | Self::Behind { .. }
            | Self::Timeout { .. }
            | Self::Unreachable { .. }
            | Self::NoLeader { .. }
            | Self::UnknownHost { .. }
            | Self::NoHandshake { .. }
            | Self::Unavailable { .. }
            | Self::NodeDown { .. }
            | Self::Leased { .. }
            | Self::Unconfirmed { .. }
            | Self::Contended { .. } => true,
            Self::Refused { reason, .. } => {
                matches!(reason, Reason::Busy | Reason::Closing | Reason::Standby)
            }
            Self::NotFound { .. }
            | Self::TooSmall { .. }
            | Self::OutOfRange { .. }
            | Self::Exists { .. }
            | Self::Superseded { .. }
            | Self::Consumed { .. }
            | Self::NotASample { .. }
            | Self::WrongGroup { .. }
            | Self::WrongPort { .. }
            | Self::Tls { .. }
            | Self::Invalid { .. }
            | Self::Device { .. }
            | Self::Unauthenticated { .. }
            | Self::Closed
            | Self::Forked => false,
        }
    }

    pub(crate) fn full(key: Key, len: u64, full: Full) -> Self {
        let Full { usage, lacks, never } = full;
        Self::Full { key, len, usage, lacks, never }
    }

    pub(crate) fn timeout(what: &str) -> Self {
        Self::Timeout { what: format!("{what} did not end before its deadline") }
    }

    /// The same failure, for a call that finds it remembered: after several attempts it says when the peer is
    /// tried again.
    pub(crate) fn tried_again_in(mut self, failures: u32, pause: std::time::Duration) -> Self {
        if let Self::Unreachable { what }
        | Self::NoLeader { what, .. }
        | Self::Timeout { what }
        | Self::NoHandshake { what, .. } = &mut self
            && failures >= tiffin_session::DOWN_AFTER
        {
            what.push_str(&format!(
                "; {failures} attempts failed, the next is made in {} ms",
                pause.as_millis()
            ));
        }
        self
    }

    pub(crate) fn misfit() -> Self {
        Self::Unreachable { what: "the master's reply does not match the request".to_owned() }
    }

    pub(crate) fn invalid(what: impl ToString) -> Self {
        Self::Invalid { what: what.to_string() }
    }
}

fn refused_hint(reason: Reason) -> &'static str {
    match reason {
        Reason::Version => "run the same release on both sides",
        Reason::Forbidden => "use a token that permits it (`tiffin token`)",
        Reason::Busy => "try again later, or with less at once",
        Reason::Closing => "try again when the server is back",
        Reason::Standby => "give the addresses of all masters, or `etcd://HOST:2379/CLUSTER`",
        _ => "check that the address is that of the right server",
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let what = refusal.message;
        match refusal.reason {
            Reason::Invalid => Self::Invalid { what },
            Reason::Unauthenticated => Self::Unauthenticated { what },
            Reason::Unreachable => Self::Unreachable { what },
            Reason::Unavailable => Self::Unavailable { what },
            reason => Self::Refused { reason, what },
        }
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        let what = without_hint(&error.to_string());
        match error {
            CallError::Connect { .. } | CallError::Lost { .. } => Self::Unreachable { what },
            CallError::NoLeader { hint, .. } => Self::NoLeader { what, hint },
            CallError::Unanswered { is_silent, .. } => Self::NoHandshake { what, is_silent },
            CallError::Resolve { .. } => Self::UnknownHost { what },
            CallError::Foreign { .. } => Self::WrongPort { what },
            CallError::Tls { source, .. } => Self::Tls { what, hint: source.hint() },
            CallError::Timeout { .. } => Self::Timeout { what },
            CallError::Refused(refusal) => refusal.into(),
            CallError::Protocol { .. } => Self::Refused { reason: Reason::Version, what },
            CallError::TooLarge(_) => Self::Invalid { what },
        }
    }
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Self::invalid(error)
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::invalid(error)
    }
}

impl From<MastersError> for Error {
    fn from(error: MastersError) -> Self {
        Self::invalid(error)
    }
}

/// The message without its hint: hints are given by [`Error::hint`].
pub(crate) fn without_hint(message: &str) -> String {
    message.split("\n\nhint: ").next().unwrap_or(message).to_owned()
}

/// A high mark of a stream; zero means none.
fn mark(number: u64, shown: impl ToString) -> String {
    if number == 0 { "none".to_owned() } else { shown.to_string() }
}

/// Which resource is missing for an object, and the usage of the nodes.
fn describe_full(key: &Key, len: u64, usage: &Usage, lacks: Resource, never: bool) -> String {
    let Usage { capacity, free, granted, committed, held, metadata, .. } = usage;
    if never {
        return format!("`{key}` ({}) fits on no storage node, not even on an empty one", Size(len));
    }
    let missing = match lacks {
        Resource::Bytes => "",
        Resource::Slots => "; a slot for its record is missing",
        Resource::KeySpace => "; space for its key is missing",
        Resource::Contiguous => "; free memory is too fragmented",
        Resource::Share => "; this client holds its share in reservations",
    };
    let records =
        if *metadata > 0 { format!(", {} for records and keys", Size(*metadata)) } else { String::new() };
    format!(
        "no space for `{key}` ({}): of {}, {} are free, {} reserved, {} in use, \
         {} in view{records}{missing}",
        Size(len),
        Size(*capacity),
        Size(*free),
        Size(*granted),
        Size(*committed),
        Size(*held),
    )
}

/// Why the quota of the namespace does not allow an object.
fn describe_over_quota(key: &Key, quota: &Quota) -> String {
    let Quota { used, limit, need } = *quota;
    match quota.is_never_enough() {
        true => format!("`{key}` ({}) exceeds the quota of its namespace, {}", Size(need), Size(limit)),
        false => format!(
            "no space for `{key}` in the namespace: it uses {} of its quota of {}",
            Size(used),
            Size(limit)
        ),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none is known".to_owned() } else { names.join(", ") }
}
