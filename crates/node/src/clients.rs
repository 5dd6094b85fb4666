//! The clients that may still access the memory, and their reservations and views.
//!
//! **Invariant:** the reservations and views of a client that maps the memory end by its own message, or by
//! proof that its process is dead. Silence, a closed socket or a message of the master are only hints. They
//! suffice for a client that uses the node's sockets, because there the node does the copying.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_types::{
    ClientId, ConnId, SlotRef, VIEWERS_MAX, is_within_share,
    message::{Viewer, Views},
};

/// The maximum number of objects that one client views at a node.
const VIEWS_PER_CLIENT_MAX: usize = 1 << 18;

/// One client, as the node sees it.
#[derive(Debug, Default)]
struct Client {
    /// Connections for requests.
    conns: BTreeSet<ConnId>,
    /// Connections for bytes.
    data_conns: u32,
    /// It maps the memory, and its process is not known to be dead.
    mapped: bool,
    reservations: BTreeSet<SlotRef>,
    views: BTreeMap<SlotRef, u32>,
    /// The memory of these objects.
    viewed_bytes: u64,
}

impl Client {
    fn holds_nothing(&self) -> bool {
        self.reservations.is_empty() && self.views.is_empty()
    }
}

/// All clients that are connected, map the memory, or hold something.
#[derive(Debug, Default)]
pub(super) struct Clients {
    clients: BTreeMap<ClientId, Client>,
    by_conn: BTreeMap<ConnId, (ClientId, String)>,
    /// The viewers of each object, each once however many views it has.
    by_view: BTreeSet<(SlotRef, ClientId)>,
    /// The memory of each viewed object, and of all of them.
    spaces: BTreeMap<SlotRef, u64>,
    viewed_bytes: u64,
    /// Clients that map the memory since an earlier process of the node, and have not listed their views.
    unlisted: BTreeSet<ClientId>,
}

/// What a client leaves when it ends or disconnects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ClientHoldings {
    pub(super) reservations: Vec<SlotRef>,
    pub(super) views: Vec<SlotRef>,
}

impl Clients {
    pub(super) fn open(&mut self, conn: ConnId, client: ClientId, namespace: String) {
        self.by_conn.insert(conn, (client, namespace));
        self.clients.entry(client).or_default().conns.insert(conn);
    }

    /// The client of a connection, and its namespace. `None` if the connection was closed or replaced.
    pub(super) fn of(&self, conn: ConnId) -> Option<(ClientId, &str)> {
        self.by_conn.get(&conn).map(|(client, namespace)| (*client, namespace.as_str()))
    }

    /// The connections that a newer one of the same client replaces.
    pub(super) fn replaced_by(&self, conn: ConnId, client: ClientId) -> Vec<ConnId> {
        let conns = self.clients.get(&client).map(|it| it.conns.iter().copied());
        conns.into_iter().flatten().filter(|&old| old != conn).collect()
    }

    pub(super) fn close(&mut self, conn: ConnId) -> Option<ClientId> {
        let (client, _) = self.by_conn.remove(&conn)?;
        if let Some(it) = self.clients.get_mut(&client) {
            it.conns.remove(&conn);
        }
        Some(client)
    }

    /// A client maps the memory since an earlier process of the node. It may have views.
    pub(super) fn adopt(&mut self, client: ClientId) {
        self.map(client);
        self.unlisted.insert(client);
    }

    /// The client has listed its views, or has none. `false` if that was known.
    pub(super) fn list(&mut self, client: ClientId) -> bool {
        self.unlisted.remove(&client)
    }

    /// Whether no client has views that this process does not know of.
    pub(super) fn all_are_listed(&self) -> bool {
        self.unlisted.is_empty()
    }

    pub(super) fn map(&mut self, client: ClientId) {
        self.clients.entry(client).or_default().mapped = true;
    }

    pub(super) fn unmap(&mut self, client: ClientId) {
        if let Some(it) = self.clients.get_mut(&client) {
            it.mapped = false;
        }
    }

    pub(super) fn maps(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|it| it.mapped)
    }

    pub(super) fn open_data(&mut self, client: ClientId) {
        self.clients.entry(client).or_default().data_conns += 1;
    }

    pub(super) fn close_data(&mut self, client: ClientId) {
        if let Some(it) = self.clients.get_mut(&client) {
            it.data_conns = it.data_conns.saturating_sub(1);
        }
    }

    /// Whether a hint that the client has ended is proof: nothing of it can access the memory.
    pub(super) fn unreachable(&self, client: ClientId) -> bool {
        let reach = |it: &Client| it.mapped || it.data_conns > 0 || !it.conns.is_empty();
        !self.clients.get(&client).is_some_and(reach)
    }

    pub(super) fn reserved(&mut self, client: ClientId, slot_ref: SlotRef) {
        self.clients.entry(client).or_default().reservations.insert(slot_ref);
    }

    /// The reservation became an object or was released; `false` if the client had no such reservation.
    pub(super) fn unreserved(&mut self, client: ClientId, slot_ref: SlotRef) -> bool {
        let had = self.clients.get_mut(&client).is_some_and(|it| it.reservations.remove(&slot_ref));
        // A client that never connected here is forgotten.
        if self.unreachable(client) && self.clients.get(&client).is_some_and(Client::holds_nothing) {
            self.clients.remove(&client);
        }
        had
    }

    /// Clients with reservations or views that never connected, so that the node cannot see them end.
    pub(super) fn unreachable_ones(&self) -> Vec<ClientId> {
        self.clients.keys().copied().filter(|it| self.unreachable(*it)).collect()
    }

    /// The reservations of a client, except those that it lists.
    pub(super) fn reservations_except(&self, client: ClientId, known: &[SlotRef]) -> Vec<SlotRef> {
        let mut known = known.to_vec();
        known.sort_unstable();
        let reservations = self.clients.get(&client).map(|it| it.reservations.iter().copied());
        reservations.into_iter().flatten().filter(|slot_ref| known.binary_search(slot_ref).is_err()).collect()
    }

    /// Whether a client may view an object of `space` bytes, where `capacity` bytes are not reserved. A
    /// further view of the same object, and the first view of a client, are always allowed.
    pub(super) fn may_view(
        &self,
        client: ClientId,
        slot_ref: SlotRef,
        (space, capacity): (u64, u64),
    ) -> bool {
        let Some(it) = self.clients.get(&client) else { return true };
        if it.views.contains_key(&slot_ref) {
            return true;
        }
        let is_new = !self.spaces.contains_key(&slot_ref);
        let all = self.viewed_bytes.saturating_add(if is_new { space } else { 0 });
        it.views.len() < VIEWS_PER_CLIENT_MAX && is_within_share(it.viewed_bytes, space, all, capacity)
    }

    pub(super) fn begin_view(&mut self, client: ClientId, slot_ref: SlotRef, space: u64) {
        if self.spaces.insert(slot_ref, space).is_none() {
            self.viewed_bytes += space;
        }
        let viewer = self.clients.entry(client).or_default();
        let count = viewer.views.entry(slot_ref).or_default();
        *count += 1;
        if *count == 1 {
            viewer.viewed_bytes += space;
            self.by_view.insert((slot_ref, client));
        }
    }

    /// The client has no view of the object any more.
    fn unview(&mut self, client: ClientId, slot_ref: SlotRef) {
        self.by_view.remove(&(slot_ref, client));
        if self.viewers(slot_ref).next().is_none() {
            self.viewed_bytes -= self.spaces.remove(&slot_ref).unwrap_or(0);
        }
    }

    /// Ends one view, and returns whether there was one.
    pub(super) fn end_view(&mut self, client: ClientId, slot_ref: SlotRef) -> bool {
        let Some(it) = self.clients.get_mut(&client) else { return false };
        let Some(count) = it.views.get_mut(&slot_ref) else { return false };
        *count -= 1;
        if *count == 0 {
            it.views.remove(&slot_ref);
            it.viewed_bytes -= self.spaces.get(&slot_ref).copied().unwrap_or(0);
            self.unview(client, slot_ref);
        }
        true
    }

    /// The views of a client, except those that it lists: each object as often as it is viewed.
    pub(super) fn views_except(&self, client: ClientId, known: Vec<SlotRef>) -> Vec<SlotRef> {
        let mut left: BTreeMap<SlotRef, u32> = BTreeMap::new();
        known.into_iter().for_each(|slot_ref| *left.entry(slot_ref).or_default() += 1);
        let views = self.clients.get(&client).into_iter().flat_map(|it| &it.views);
        let surplus = |(slot_ref, count): (&SlotRef, &u32)| {
            let known = left.get(slot_ref).copied().unwrap_or(0);
            std::iter::repeat_n(*slot_ref, count.saturating_sub(known) as usize)
        };
        views.flat_map(surplus).collect()
    }

    /// The views of an object, without sends.
    pub(super) fn views(&self, slot_ref: SlotRef) -> Views {
        let mut views = Views::default();
        for client in self.viewers(slot_ref) {
            let count = self.clients.get(&client).and_then(|it| it.views.get(&slot_ref));
            views.count += count.map_or(0, |&count| u64::from(count));
            if views.clients.len() < VIEWERS_MAX {
                views.clients.push(client);
            } else {
                views.more += 1;
            }
        }
        views
    }

    /// The viewers of these objects, given with their memory: those that hold most memory first.
    pub(super) fn viewers_of(&self, held: impl Iterator<Item = (SlotRef, u64)>) -> Vec<Viewer> {
        let mut sums: BTreeMap<ClientId, (u64, u64)> = BTreeMap::new();
        for (slot_ref, space) in held {
            for client in self.viewers(slot_ref) {
                let sum = sums.entry(client).or_default();
                *sum = (sum.0 + 1, sum.1.saturating_add(space));
            }
        }
        let viewer = |(client, (objects, bytes))| Viewer { client, objects, bytes };
        let mut viewers: Vec<_> = sums.into_iter().map(viewer).collect();
        viewers.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        viewers.truncate(VIEWERS_MAX);
        viewers
    }

    fn viewers(&self, slot_ref: SlotRef) -> impl Iterator<Item = ClientId> + '_ {
        self.by_view.range((slot_ref, ClientId(0))..=(slot_ref, ClientId(u64::MAX))).map(|it| it.1)
    }

    /// Removes all reservations and views of a client, and forgets it if it is not connected.
    pub(super) fn release_all(&mut self, client: ClientId) -> ClientHoldings {
        let Some(it) = self.clients.get_mut(&client) else { return ClientHoldings::default() };
        let reservations = std::mem::take(&mut it.reservations).into_iter().collect();
        let views = std::mem::take(&mut it.views);
        it.viewed_bytes = 0;
        views.keys().for_each(|slot_ref| self.unview(client, *slot_ref));
        let views =
            views.into_iter().flat_map(|(slot_ref, count)| (0..count).map(move |_| slot_ref)).collect();
        if self.unreachable(client) {
            self.clients.remove(&client);
        }
        ClientHoldings { reservations, views }
    }

    /// Number of clients.
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }
}

#[cfg(test)]
mod tests {
    use tiffin_types::{SlotId, Stamp};

    use super::*;

    const WHO: ClientId = ClientId(1);
    const SPACE: u64 = 64;
    const SLOT_REF: SlotRef = SlotRef { slot: SlotId(3), stamp: Stamp(9) };

    #[test]
    fn view_ends_once() {
        let mut clients = Clients::default();
        clients.begin_view(WHO, SLOT_REF, SPACE);
        assert!(clients.end_view(WHO, SLOT_REF));
        assert!(!clients.end_view(WHO, SLOT_REF));
    }

    #[test]
    fn number_of_views_of_a_client_is_limited() {
        let mut clients = Clients::default();
        let slot_ref = |slot| SlotRef { slot: SlotId(slot), stamp: Stamp(9) };
        let size = (0, 1 << 30);
        for slot in 0..VIEWS_PER_CLIENT_MAX as u32 {
            assert!(clients.may_view(WHO, slot_ref(slot), size));
            clients.begin_view(WHO, slot_ref(slot), 0);
        }
        let next = slot_ref(VIEWS_PER_CLIENT_MAX as u32);
        assert!(!clients.may_view(WHO, next, size) && clients.may_view(WHO, slot_ref(0), size));
        assert!(clients.may_view(ClientId(2), next, size));
    }

    #[test]
    fn number_of_named_viewers_is_limited() {
        let mut clients = Clients::default();
        let extra = 3;
        for client in 0..(VIEWERS_MAX + extra) as u64 {
            clients.begin_view(ClientId(client), SLOT_REF, SPACE);
            clients.begin_view(ClientId(client), SLOT_REF, SPACE);
        }
        let views = clients.views(SLOT_REF);
        let named: Vec<_> = (0..VIEWERS_MAX as u64).map(ClientId).collect();
        let count = 2 * (VIEWERS_MAX + extra) as u64;
        assert_eq!(views, Views { count, clients: named, more: extra as u64, sends: 0 });
        assert!(clients.end_view(ClientId(0), SLOT_REF));
        assert_eq!(clients.views(SLOT_REF).more, extra as u64, "one of its two views is left");
        clients.release_all(ClientId(0));
        assert_eq!(clients.views(SLOT_REF).more, extra as u64 - 1);
    }

    #[test]
    fn viewer_with_most_memory_is_named_first() {
        let mut clients = Clients::default();
        let other = SlotRef { slot: SlotId(4), stamp: Stamp(10) };
        clients.begin_view(WHO, SLOT_REF, SPACE);
        clients.begin_view(ClientId(2), SLOT_REF, SPACE);
        clients.begin_view(ClientId(2), other, 2 * SPACE);
        let viewer = |client, objects, bytes| Viewer { client: ClientId(client), objects, bytes };
        let held = || [(SLOT_REF, 64), (other, 128)].into_iter();
        assert_eq!(clients.viewers_of(held()), [viewer(2, 2, 192), viewer(1, 1, 64)]);
        clients.release_all(ClientId(2));
        assert_eq!(clients.viewers_of(held()), [viewer(1, 1, 64)]);
    }

    #[test]
    fn mapped_client_is_reachable_without_a_connection() {
        let mut clients = Clients::default();
        clients.open(ConnId(1), WHO, String::new());
        clients.map(WHO);
        assert_eq!(clients.close(ConnId(1)), Some(WHO));
        assert!(!clients.unreachable(WHO));
        clients.unmap(WHO);
        assert!(clients.unreachable(WHO));
    }

    #[test]
    fn client_that_never_connected_is_forgotten() {
        let mut clients = Clients::default();
        clients.reserved(WHO, SLOT_REF);
        assert_eq!(clients.unreachable_ones(), [WHO]);
        assert!(clients.unreserved(WHO, SLOT_REF));
        assert_eq!(clients.count(), 0);
    }

    #[test]
    fn unlisted_reservations_are_found() {
        let mut clients = Clients::default();
        let slot_ref = |slot| SlotRef { slot: SlotId(slot), stamp: Stamp(9) };
        (0..4).for_each(|slot| clients.reserved(WHO, slot_ref(slot)));
        assert_eq!(
            clients.reservations_except(WHO, &[slot_ref(7), slot_ref(2), slot_ref(0)]),
            [slot_ref(1), slot_ref(3)]
        );
        assert_eq!(clients.reservations_except(ClientId(2), &[slot_ref(0)]), []);
    }

    #[test]
    fn unlisted_views_are_found() {
        let mut clients = Clients::default();
        let other = SlotRef { slot: SlotId(4), stamp: Stamp(10) };
        [SLOT_REF, SLOT_REF, SLOT_REF, other]
            .into_iter()
            .for_each(|slot_ref| clients.begin_view(WHO, slot_ref, SPACE));
        assert_eq!(clients.views_except(WHO, vec![SLOT_REF, other, other]), [SLOT_REF, SLOT_REF]);
        assert_eq!(clients.views_except(WHO, Vec::new()), [SLOT_REF, SLOT_REF, SLOT_REF, other]);
        assert_eq!(clients.views_except(ClientId(2), Vec::new()), []);
    }

    #[test]
    fn holdings_are_returned_once() {
        let mut clients = Clients::default();
        clients.reserved(WHO, SLOT_REF);
        clients.begin_view(WHO, SLOT_REF, SPACE);
        clients.begin_view(WHO, SLOT_REF, SPACE);
        assert_eq!(
            clients.release_all(WHO),
            ClientHoldings { reservations: vec![SLOT_REF], views: vec![SLOT_REF, SLOT_REF] }
        );
        assert_eq!(clients.release_all(WHO), ClientHoldings::default());
        assert_eq!(clients.count(), 0);
    }
}
