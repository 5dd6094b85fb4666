//! Authorisation: what a credential permits. Pure functions of credential, request, namespace and time.
//!
//! A server finds the [`Credential`] of a connection by its token, asks [`admit`] once, and [`permits`] for
//! every request. Replies to a credential that covers only some namespaces go through [`redact`].
//!
//! **Invariant:** every request and every reply has an explicit decision here: the matches have no wildcard,
//! so a new message does not compile without one.
//!
//! **Invariant:** the right [`Right::Node`] includes reading and writing in all namespaces, because a node
//! stores the bytes of every namespace and copies them when it is drained.

use std::fmt;

use crate::message::{
    Cause, ClientToMaster, ClientToNode, Gone, MasterToMember, MemberToMaster, Reply, Request, Role, Stat,
    Why,
};

/// The maximum number of [`NamePattern`]s of one credential.
pub const NAME_PATTERNS_MAX: usize = 64;

/// One right of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Reads objects, lists them, and asks about them.
    Read,
    /// Puts, deletes, pins, leases and consumes objects.
    Write,
    /// Changes quotas and policies, forgets and drains nodes.
    Admin,
    /// Joins the cluster as a storage node or as a disk.
    Node,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Admin, Self::Node];

    /// Its name in token files and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
            Self::Node => "node",
        }
    }

    /// The right of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// None.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self::of(Right::Read).and(Right::Write).and(Right::Admin).and(Right::Node);
    const ANY: Self = Self(u8::MAX);
    const READ: Self = Self::of(Right::Read);
    const WRITE: Self = Self::of(Right::Write);
    const ADMIN: Self = Self::of(Right::Admin);
    const NODE: Self = Self::of(Right::Node);

    /// This one.
    #[must_use]
    pub const fn of(right: Right) -> Self {
        Self(1 << right as u8)
    }

    /// With one more.
    #[must_use]
    pub const fn and(self, right: Right) -> Self {
        Self(self.0 | Self::of(right).0)
    }

    /// Whether it contains this one.
    #[must_use]
    pub const fn has(self, right: Right) -> bool {
        self.0 & Self::of(right).0 != 0
    }

    /// Whether they have a right in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Its rights, in the order of their declaration.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |it| self.has(*it))
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Right::name).collect();
        out.write_str(if names.is_empty() { "none" } else { "" })?;
        out.write_str(&names.join(", "))
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Self {
        rights.into_iter().fold(Self::NONE, Self::and)
    }
}

/// The name of a namespace, or with `*` at its end the start of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// From its text. `None` if it is empty, or has a `*` before its end.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = !text.is_empty() && !text.strip_suffix('*').unwrap_or(text).contains('*');
        is_plain.then(|| Self(text.to_owned()))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn covers(&self, namespace: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => namespace.starts_with(start),
            None => self.0 == namespace || is_broken(Rule::ExactNames) && namespace.starts_with(&self.0),
        }
    }
}

/// The namespaces of a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// Every one.
    #[default]
    All,
    /// Those that match one of these.
    Some(Vec<NamePattern>),
}

impl Namespaces {
    /// Whether this namespace is one of them.
    #[must_use]
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(patterns) => patterns.iter().any(|it| it.covers(namespace)),
        }
    }

    /// Whether every namespace is one of them.
    #[must_use]
    pub fn is_all(&self) -> bool {
        match self {
            Self::All => true,
            Self::Some(patterns) => patterns.iter().any(|it| it.as_str() == "*"),
        }
    }
}

/// What the holder of a token may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Its name, for operators. It is no secret.
    pub name: String,
    rights: Rights,
    namespaces: Namespaces,
    /// When it ends, in milliseconds since the Unix epoch.
    expires_ms: Option<u64>,
}

impl Credential {
    /// Creates it. With [`Right::Node`] it covers all namespaces, for reading and writing.
    #[must_use]
    pub fn new(name: &str, rights: Rights, namespaces: Namespaces, expires_ms: Option<u64>) -> Self {
        let is_node = rights.has(Right::Node);
        let rights = if is_node { rights.and(Right::Read).and(Right::Write) } else { rights };
        let namespaces = if is_node { Namespaces::All } else { namespaces };
        Self { name: name.to_owned(), rights, namespaces, expires_ms }
    }

    /// All rights in all namespaces, for ever.
    #[must_use]
    pub fn unlimited(name: &str) -> Self {
        Self::new(name, Rights::ALL, Namespaces::All, None)
    }

    /// Its rights.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Its namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// When it ends, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn expires_ms(&self) -> Option<u64> {
        self.expires_ms
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| now_ms >= end) && !is_broken(Rule::Expiry)
    }

    /// Whether the holder may see and change everything that mapped memory shows: the bytes of all
    /// namespaces.
    #[must_use]
    pub fn may_map(&self) -> bool {
        self.namespaces.is_all() && self.rights.has(Right::Read) && self.rights.has(Right::Write)
            || is_broken(Rule::WholeMemory)
    }
}

/// Why a credential does not permit something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// It has ended.
    #[error("the token has expired")]
    Expired,
    /// It is not for this namespace.
    #[error("the token is not for this namespace")]
    Namespace,
    /// The request concerns all namespaces, and it is not for all of them.
    #[error("the request is about all namespaces, and the token is not for all of them")]
    Everywhere,
    /// It lacks all of these rights, any of which would do.
    #[error("the token lacks the right: {0}")]
    Right(Rights),
}

/// Whether the holder may open a connection in this role, at this time.
pub fn admit(credential: &Credential, role: Role, namespace: &str, now_ms: u64) -> Result<(), Denial> {
    if credential.is_expired(now_ms) {
        return Err(Denial::Expired);
    }
    let needed = match role {
        Role::Client | Role::Lane => Rights::ALL,
        Role::Node | Role::Ledger if is_broken(Rule::NodeRight) => Rights::ALL,
        Role::Node | Role::Ledger => Rights::NODE,
    };
    if !credential.rights.meets(needed) {
        return Err(Denial::Right(needed));
    }
    let is_client = matches!(role, Role::Client | Role::Lane);
    if is_client && !credential.namespaces.covers(namespace) && !is_broken(Rule::Namespace) {
        return Err(Denial::Namespace);
    }
    Ok(())
}

/// Whether an admitted holder may make this request.
pub fn permits(credential: &Credential, request: &Request) -> Result<(), Denial> {
    let needed = needed(request);
    if !credential.rights.meets(needed) && needed != Rights::ANY {
        return Err(Denial::Right(needed));
    }
    // A member that is forgotten or admitted has objects of all namespaces.
    let is_of_all = matches!(
        request,
        Request::ClientToMaster(ClientToMaster::ForgetNode(_) | ClientToMaster::AdmitCluster(_))
    );
    if is_of_all && !credential.namespaces.is_all() && !is_broken(Rule::WholeCluster) {
        return Err(Denial::Everywhere);
    }
    // A view names memory, not a key: only a reader that maps all of it has a use for one.
    let is_view = matches!(request, Request::ClientToNode(ClientToNode::BeginViews(_)));
    if is_view && !credential.may_map() { Err(Denial::Namespace) } else { Ok(()) }
}

/// Any of these rights permits the request.
fn needed(request: &Request) -> Rights {
    match request {
        // They belong to the connection, which was admitted.
        Request::Hello(_) | Request::Goodbye => Rights::ANY,
        Request::ClientToMaster(request) => needed_at_master(request),
        Request::ClientToNode(request) => needed_at_node(request),
        Request::MemberToMaster(request) => needed_by_member(request),
        Request::MasterToMember(request) => needed_by_master(request),
    }
}

fn needed_at_master(request: &ClientToMaster) -> Rights {
    use ClientToMaster as It;
    match request {
        It::Resolve(_) | It::Exists(_) | It::List(_) | It::Prefetch(_) => Rights::READ,
        It::Why(_) | It::Await(_) => Rights::READ,
        It::Reserve(_) | It::Publish(_) | It::Delete(_) | It::DeleteMatching(_) if is_broken(Rule::Write) => {
            Rights::ALL
        }
        It::Reserve(_) | It::Publish(_) | It::Delete(_) | It::DeleteMatching(_) => Rights::WRITE,
        It::Pin(_) | It::DropPins(_) | It::OpenStream(_) | It::EndStream(_) => Rights::WRITE,
        // Leases and acknowledgements decide when samples are freed.
        It::Lease(_) | It::Ack(_) | It::Pull(_) => Rights::WRITE,
        It::SetPolicy(_) | It::ForgetNode(_) | It::AdmitCluster(_) if is_broken(Rule::Admin) => Rights::ALL,
        It::SetPolicy(_) | It::ForgetNode(_) | It::AdmitCluster(_) => Rights::ADMIN,
        // They show no object, or end only what the client itself has begun.
        It::Stat | It::Ping(_) | It::Release(_) | It::KeepLeases(_) | It::Cancel(_) => Rights::ALL,
    }
}

fn needed_at_node(request: &ClientToNode) -> Rights {
    use ClientToNode as It;
    match request {
        It::Commit(_) | It::Store(_) => Rights::WRITE,
        // They end only what the client itself has begun.
        It::Abort(_) | It::Keep(_) | It::EndViews(_) | It::KeepViews(_) => Rights::ALL,
        It::BeginViews(_) => Rights::READ,
    }
}

fn needed_by_member(request: &MemberToMaster) -> Rights {
    use MemberToMaster as It;
    match request {
        It::Register(_) | It::Announce(_) | It::Heartbeat(_) | It::Decide(_) => Rights::NODE,
        It::Released(_) | It::ClientDied(_) | It::Dropped(_) | It::Drained(_) => Rights::NODE,
    }
}

/// A master sends these on a connection that the member has opened; no credential permits them elsewhere.
fn needed_by_master(request: &MasterToMember) -> Rights {
    use MasterToMember as It;
    match request {
        It::Allocate(_) | It::Settle(_) | It::Retire(_) | It::ClientGone(_) => Rights::NONE,
        It::SetAttributes(_) | It::Inspect(_) | It::Demote(_) | It::Promote(_) => Rights::NONE,
        It::Fetch(_) | It::Drain(_) => Rights::NONE,
    }
}

/// Removes from a reply what is about other namespaces.
pub fn redact(namespaces: &Namespaces, reply: &mut Reply) {
    if namespaces.is_all() || is_broken(Rule::Redact) {
        return;
    }
    match reply {
        Reply::Stat(stat) => redact_stat(namespaces, stat),
        Reply::Why(answers) => answers.iter_mut().for_each(redact_why),
        // They are about objects of the connection's namespace, or about nodes.
        Reply::Welcome(_)
        | Reply::Refused(_)
        | Reply::Done
        | Reply::Reserved(_)
        | Reply::Published(_)
        | Reply::Resolved(_)
        | Reply::Present(_)
        | Reply::Deleted(_)
        | Reply::DeletedMatching(_)
        | Reply::Listed(_)
        | Reply::Registered(_)
        | Reply::Announced(_)
        | Reply::Decided(_)
        | Reply::Allocated(_)
        | Reply::Settled(_)
        | Reply::Inspected(_)
        | Reply::Pinned(_)
        | Reply::Forgotten(_)
        | Reply::Awaited(_)
        | Reply::Leased(_)
        | Reply::Acked(_)
        | Reply::Stream(_)
        | Reply::Pulled(_)
        | Reply::Prefetched(_)
        | Reply::Moved(_)
        | Reply::Committed(_)
        | Reply::ViewsBegun(_) => {}
    }
}

/// The nodes and their total usage stay: a client needs them, and they name no namespace.
fn redact_stat(namespaces: &Namespaces, stat: &mut Stat) {
    stat.namespaces.retain(|it| namespaces.covers(&it.name));
    stat.streams.retain(|it| namespaces.covers(&it.namespace));
    stat.nodes.iter_mut().for_each(|node| node.holders.clear());
    (stat.clients, stat.undecided, stat.soft_pinned, stat.expiring) = (0, 0, 0, 0);
    (stat.evicted_objects, stat.evicted_bytes) = (0, 0);
    (stat.evictions, stat.expired) = Default::default();
    (*stat.tier, stat.copies) = Default::default();
}

/// An object may have been evicted for an object of another namespace; one that was evicted for a quota was
/// evicted for its own.
fn redact_why(why: &mut Why) {
    match why {
        Why::Gone(gone) if gone.cause == Cause::Evicted && !gone.node.is_empty() => {
            *gone = Gone { by: String::new(), for_key: None, ..std::mem::take(gone) };
        }
        Why::Gone(_) | Why::Here(_) | Why::Unknown => {}
    }
}

/// A rule that tests break one at a time, to prove that they would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// An expired credential permits nothing.
    Expiry,
    /// A credential is for its namespaces.
    Namespace,
    /// A pattern without `*` is a whole name.
    ExactNames,
    /// A member needs the right of a node.
    NodeRight,
    /// Puts and deletes need the right to write.
    Write,
    /// Policies and members need the right of an administrator.
    Admin,
    /// Only a credential for all namespaces may map memory.
    WholeMemory,
    /// Only a credential for all namespaces may change the members.
    WholeCluster,
    /// Replies show nothing of other namespaces.
    Redact,
}

/// Whether a test has broken this rule.
#[cfg(not(test))]
#[inline(always)]
const fn is_broken(_: Rule) -> bool {
    false
}

#[cfg(test)]
use tests::is_broken;

#[cfg(test)]
mod tests;
