//! The connections of clients and members, and the names of clients.
//!
//! **Invariant:** a client has one connection: a newer one replaces it.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::sync::Arc;

use super::catalog::{LabelIndex, NamespaceIndex, NodeIndex, TokenId};
use crate::{ClientId, ConnId, SegmentId, message::Hello};

/// The process at the other end of a connection.
#[derive(Debug)]
pub(super) enum Party {
    Client(Arc<Caller>),
    Node(Option<NodeIndex>),
}

/// A client, for as long as its connection lasts.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) client: ClientId,
    pub(super) namespace: NamespaceIndex,
    pub(super) home: Option<SegmentId>,
    pub(super) host: String,
    /// The name that it gives itself.
    pub(super) label: String,
    pub(super) index: LabelIndex,
    /// See [`Event::Token`](super::Event::Token).
    pub(super) token: Option<TokenId>,
}

impl Caller {
    /// Who has a share of what waits for members.
    pub(super) fn sharer(&self) -> Sharer {
        self.token.map_or(Sharer::Client(self.client), Sharer::Token)
    }
}

/// A client, or all clients of a token that is limited to namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharer {
    Client(ClientId),
    Token(TokenId),
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    parties: BTreeMap<ConnId, Party>,
    clients: BTreeMap<ClientId, ConnId>,
    /// Number of connections of clients by namespace. None is zero.
    by_namespace: BTreeMap<NamespaceIndex, usize>,
    /// See [`Event::SameHost`](super::Event::SameHost).
    same_host: BTreeSet<ConnId>,
    /// See [`Event::CanWithdraw`](super::Event::CanWithdraw).
    can_withdraw: BTreeSet<ConnId>,
    /// See [`Event::SameProcess`](super::Event::SameProcess).
    same_process: BTreeSet<ConnId>,
    /// The tokens of connections that are about to open.
    tokens: BTreeMap<ConnId, TokenId>,
    labels: Labels,
}

impl Connections {
    /// Records a client's new connection. Returns the one that it replaces, which must be closed first.
    pub(super) fn replace_client(&mut self, client: ClientId, conn: ConnId) -> Option<ConnId> {
        self.clients.insert(client, conn)
    }

    /// A client connects. Returns its token, if that is limited to namespaces.
    pub(super) fn open_client(
        &mut self,
        conn: ConnId,
        hello: Hello,
        namespace: NamespaceIndex,
    ) -> Option<TokenId> {
        let token = self.tokens.remove(&conn);
        let Hello { client, home, host, mut label, .. } = hello;
        label.truncate(label.floor_char_boundary(LABEL_BYTES_MAX));
        let index = self.labels.intern(&label, token);
        let caller = Caller { client, namespace, home, host, label, index, token };
        *self.by_namespace.entry(namespace).or_default() += 1;
        self.parties.insert(conn, Party::Client(Arc::new(caller)));
        token
    }

    /// A member connects, registers, or leaves.
    pub(super) fn set_node(&mut self, conn: ConnId, node: Option<NodeIndex>) {
        self.parties.insert(conn, Party::Node(node));
    }

    /// Closes a connection. Returns its party, if it was open.
    pub(super) fn close(&mut self, conn: ConnId) -> Option<Party> {
        self.same_host.remove(&conn);
        self.can_withdraw.remove(&conn);
        self.same_process.remove(&conn);
        self.tokens.remove(&conn);
        let party = self.parties.remove(&conn);
        if let Some(Party::Client(caller)) = &party
            && let Entry::Occupied(mut entry) = self.by_namespace.entry(caller.namespace)
        {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        party
    }

    /// Whether a client of the namespace is connected.
    pub(super) fn has_clients_in(&self, namespace: NamespaceIndex) -> bool {
        self.by_namespace.contains_key(&namespace)
    }

    /// Ends a client's connection. Returns whether the client has no newer one.
    pub(super) fn end_client(&mut self, client: ClientId, conn: ConnId) -> bool {
        let was_last = self.clients.get(&client) == Some(&conn);
        if was_last {
            self.clients.remove(&client);
        }
        was_last
    }

    pub(super) fn set_same_host(&mut self, conn: ConnId) {
        self.same_host.insert(conn);
    }

    pub(super) fn is_on_same_host(&self, conn: ConnId) -> bool {
        self.same_host.contains(&conn)
    }

    pub(super) fn set_can_withdraw(&mut self, conn: ConnId) {
        self.can_withdraw.insert(conn);
    }

    pub(super) fn can_withdraw(&self, conn: ConnId) -> bool {
        self.can_withdraw.contains(&conn)
    }

    pub(super) fn set_same_process(&mut self, conn: ConnId) {
        self.same_process.insert(conn);
    }

    pub(super) fn is_in_same_process(&self, conn: ConnId) -> bool {
        self.same_process.contains(&conn)
    }

    pub(super) fn set_token(&mut self, conn: ConnId, token: TokenId) {
        self.tokens.insert(conn, token);
    }

    pub(super) fn get(&self, conn: ConnId) -> Option<&Party> {
        self.parties.get(&conn)
    }

    pub(super) fn is_open(&self, conn: ConnId) -> bool {
        self.parties.contains_key(&conn)
    }

    pub(super) fn client_count(&self) -> u64 {
        self.clients.len() as u64
    }

    /// The name of a client, by its index.
    pub(super) fn label(&self, index: LabelIndex) -> String {
        self.labels.name(index)
    }

    /// A client for messages: its name, or its id while it is not connected.
    pub(super) fn client_name(&self, client: ClientId) -> String {
        match self.caller(client) {
            Some(caller) => caller.label.clone(),
            None => format!("client {client} (not connected)"),
        }
    }

    /// The index and the name of a client that wrote an object.
    pub(super) fn writer(&self, client: ClientId) -> (LabelIndex, &str) {
        self.caller(client).map(|it| (it.index, it.label.as_str())).unwrap_or_default()
    }

    fn caller(&self, client: ClientId) -> Option<&Caller> {
        match self.parties.get(self.clients.get(&client)?)? {
            Party::Client(caller) => Some(caller),
            Party::Node(_) => None,
        }
    }
}

/// The names of clients, each stored once. The first entry stands for all clients that came after the table
/// was full.
#[derive(Debug, Default)]
struct Labels {
    names: Vec<String>,
    numbers: BTreeMap<String, LabelIndex>,
}

/// Maximum number of distinct client names.
const LABELS_MAX: usize = 1 << 16;
/// The same of clients whose tokens are limited to namespaces: they leave some to others.
const LIMITED_LABELS_MAX: usize = LABELS_MAX / 8 * 7;
/// Maximum length of a client's name; the rest of a longer one is dropped.
const LABEL_BYTES_MAX: usize = 256;

impl Labels {
    fn intern(&mut self, name: &str, token: Option<TokenId>) -> LabelIndex {
        if self.names.is_empty() {
            self.names.push(String::new());
        }
        if let Some(&index) = self.numbers.get(name) {
            return index;
        }
        let max = if token.is_some() { LIMITED_LABELS_MAX } else { LABELS_MAX };
        if self.names.len() >= max {
            return LabelIndex::default();
        }
        let index = LabelIndex(self.names.len() as u16);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), index);
        index
    }

    fn name(&self, index: LabelIndex) -> String {
        self.names.get(index.0 as usize).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clients_leave_some_to_others() {
        let mut labels = Labels::default();
        let token = Some(TokenId(1));
        let known = (1..LIMITED_LABELS_MAX).map(|it| labels.intern(&format!("{it}"), token));
        assert!(known.collect::<Vec<_>>().iter().all(|it| *it != LabelIndex::default()));
        assert_eq!(labels.intern("one more", token), LabelIndex::default());
        let other = labels.intern("other", None);
        assert_eq!(labels.name(other), "other");
        assert_eq!(labels.intern("other", token), other, "a known one");
    }

    #[test]
    fn long_name_of_a_client_is_cut() {
        let mut connections = Connections::default();
        let hello = Hello { label: "\u{e4}".repeat(LABEL_BYTES_MAX), ..Hello::default() };
        connections.open_client(ConnId(1), hello, NamespaceIndex::default());
        let Some(Party::Client(caller)) = connections.get(ConnId(1)) else { panic!("no client") };
        assert_eq!(caller.label.len(), LABEL_BYTES_MAX);
    }
}
