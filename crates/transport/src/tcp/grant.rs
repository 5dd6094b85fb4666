//! The identity of a client of a data socket, and its rights. The node's shell derives both from the
//! client's token.

use std::sync::Arc;

use tokio::sync::Notify;

use super::listener::Peer;
use crate::pending::Denied;

/// The client that fetches a range from a disk.
#[derive(Clone, Copy)]
pub struct FetchReader<'a> {
    /// The client's id.
    pub client: u64,
    /// What it may do.
    pub grant: &'a dyn Grant,
}

/// A client's request to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The client's id.
    pub client: u64,
    /// The client's token.
    pub token: String,
    /// Where it comes from, if it comes through a listener.
    pub peer: Option<Peer>,
}

/// What the client of a connection may do. The node's shell knows it by the client's token.
pub trait Grant: Send + Sync {
    /// Whether it may read.
    fn may_read(&self) -> bool;

    /// Whether it may write.
    fn may_write(&self) -> bool;

    /// Whether it may access every namespace, so that none need be compared.
    fn is_unlimited(&self) -> bool;

    /// Whether it may access this namespace.
    fn covers(&self, namespace: &str) -> bool;

    /// The number of the credential if all its clients have one share together. `None` if each client has its
    /// own.
    fn shared(&self) -> Option<u64>;

    /// Whether it was revoked: then no further request is served.
    fn is_ended(&self) -> bool;

    /// Is notified when it is revoked, so that idle connections end too. `None` if it cannot be.
    fn end(&self) -> Option<&Notify>;
}

/// A grant without limits, for nodes without tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Grant for Unlimited {
    fn may_read(&self) -> bool {
        true
    }

    fn may_write(&self) -> bool {
        true
    }

    fn is_unlimited(&self) -> bool {
        true
    }

    fn covers(&self, _: &str) -> bool {
        true
    }

    fn shared(&self) -> Option<u64> {
        None
    }

    fn is_ended(&self) -> bool {
        false
    }

    fn end(&self) -> Option<&Notify> {
        None
    }
}

/// Decides what a client may do, or that it may not connect; the client gets the text of a refusal.
pub type Authorise = Box<dyn Fn(&Hello) -> Result<Arc<dyn Grant>, Denied> + Send + Sync>;
