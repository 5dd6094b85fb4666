//! The limits that keep one client or namespace from starving the others, and how often each was reached.
//!
//! Each module checks its own limit. A request beyond it is refused as [`Reason::Busy`] or
//! [`Reason::Invalid`], or gets a smaller answer; no other client notices.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Caller, Context, Master, OpId,
    catalog::NamespaceIndex,
    connections::TokenId,
    context::guarantees::GUARANTEES_MAX,
    objects::history::{HISTORY_BYTES_MAX, HISTORY_MAX},
    refuse,
    unreported::CLIENTS_PARKED_MAX,
};
use crate::{
    BATCH_KEY_BYTES_MAX, ClientId, ConnId, Key, RequestId, SHARE_PARTS,
    message::{ClientToMaster, Reason, Reply, Reserve, ReserveItem},
    sabotage::{Sabotage, sabotaged},
};

/// The use of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStat {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub max: u64,
    /// The current use: that of the whole master, or that of the client or namespace that uses most.
    pub used: u64,
    /// Number of requests that reached it.
    pub reached: u64,
}

/// The limits of one client and of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Maximum number of requests of one client that wait.
    pub waiting_client_max: usize,
    /// Maximum number of requests of one namespace that wait.
    pub waiting_namespace_max: usize,
    /// Maximum number of requests that wait of all clients of one token that is limited to namespaces.
    pub waiting_token_max: usize,
    /// Maximum number of bytes that the requests of one client that wait have in memory, about.
    pub waiting_client_bytes_max: usize,
    /// The same of all clients of one token that is limited to namespaces.
    pub waiting_token_bytes_max: usize,
    /// Number of namespaces at which no client can add another. Objects of members and saved settings always
    /// have theirs.
    pub namespaces_max: usize,
    /// Number of namespaces up to which also unused ones are kept, so that their removals can be explained.
    pub namespaces_kept: usize,
    /// Maximum number of reservations of one client, offers included.
    pub reservations_client_max: u64,
    /// Maximum number of reservations of one namespace, offers included.
    pub reservations_namespace_max: u64,
    /// The same of all clients of one token that is limited to namespaces.
    pub reservations_token_max: u64,
    /// Maximum number of leases of samples of one client.
    pub leases_client_max: usize,
    /// Maximum number of leases of samples of one namespace.
    pub leases_namespace_max: usize,
    /// The same of all clients of one token that is limited to namespaces.
    pub leases_token_max: usize,
    /// Maximum number of pins in one namespace: of all owners on all objects.
    pub pins_namespace_max: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            waiting_client_max: 1 << 10,
            waiting_namespace_max: 1 << 14,
            waiting_token_max: 1 << 14,
            waiting_client_bytes_max: 128 << 20,
            waiting_token_bytes_max: 512 << 20,
            namespaces_max: 1 << 12,
            namespaces_kept: 1 << 8,
            reservations_client_max: 1 << 18,
            reservations_namespace_max: 1 << 19,
            reservations_token_max: 1 << 19,
            leases_client_max: 1 << 16,
            leases_namespace_max: 1 << 18,
            leases_token_max: 1 << 18,
            pins_namespace_max: 1 << 22,
        }
    }
}

/// How often each limit was reached.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub(super) key_bytes: u64,
    pub(super) namespaces: u64,
    pub(super) reservations_client: u64,
    pub(super) reservations_namespace: u64,
    pub(super) reservations_token: u64,
    pub(super) reserved_share: u64,
    pub(super) pins: u64,
    pub(super) guarantees: u64,
    /// Requests of clients that could not wait for the reports of members.
    pub(super) reports: u64,
}

/// The requests of clients that wait: for space, for a watermark, for samples, for promotions, for the views
/// of nodes, or for the end of a delete by pattern. Each module has its own table of them.
///
/// **Invariant:** a request is listed here as long as it is in the table of a module.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    all: BTreeMap<OpId, Waiter>,
    /// The same by connection and request. A client may use an id twice.
    asked: BTreeSet<(ConnId, RequestId, OpId)>,
    by_client: BTreeMap<ClientId, usize>,
    by_namespace: BTreeMap<NamespaceIndex, usize>,
    by_token: BTreeMap<TokenId, usize>,
    /// The bytes of those of a client, and of a token. None is zero.
    bytes_of_client: BTreeMap<ClientId, usize>,
    bytes_of_token: BTreeMap<TokenId, usize>,
    /// How often the limits of a client, of a namespace and of a token were reached.
    reached: [u64; 3],
    /// The same of their bytes, for a client and for a token.
    bytes_reached: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    asked: (ConnId, RequestId),
    client: ClientId,
    namespace: NamespaceIndex,
    token: Option<TokenId>,
    bytes: usize,
}

/// What a key or an item of a request that waits costs beside its name, about.
const WAITING_ITEM_BYTES: usize = 256;

/// What a request that waits has in memory, about.
pub(super) fn waiting_bytes<'a>(keys: impl Iterator<Item = &'a Key>) -> usize {
    keys.map(|key| key.as_bytes().len() + WAITING_ITEM_BYTES).sum()
}

impl Waiting {
    /// A request begins to wait, unless its client, namespace or token is at its limit.
    pub(super) fn enter(
        &mut self,
        op: OpId,
        asked: (ConnId, RequestId),
        (caller, bytes): (&Caller, usize),
        limits: LimitsConfig,
        sabotage: Sabotage,
    ) -> Result<(), Box<Reply>> {
        let Caller { client, namespace, token, .. } = *caller;
        let of_client = self.by_client.get(&client).copied().unwrap_or(0);
        let of_namespace = self.by_namespace.get(&namespace).copied().unwrap_or(0);
        if of_client >= limits.waiting_client_max && !sabotaged!(sabotage, ClientWaitsAnyhow) {
            self.reached[0] += 1;
            let message = format!("client has {of_client} requests that wait, which is the limit");
            return Err(Box::new(refuse(Reason::Busy, &message)));
        }
        if of_namespace >= limits.waiting_namespace_max && !sabotaged!(sabotage, NamespaceWaitsAnyhow) {
            self.reached[1] += 1;
            let message = format!("the namespace has {of_namespace} requests that wait, which is the limit");
            return Err(Box::new(refuse(Reason::Busy, &message)));
        }
        if self.is_heavy((client, token), bytes, limits) && !sabotaged!(sabotage, WaitWithAnyBytes) {
            let message = "the requests that wait have too many keys together: wait for some of them first";
            return Err(Box::new(refuse(Reason::Busy, message)));
        }
        if let Some(token) = token {
            let of_token = self.by_token.entry(token).or_default();
            if *of_token >= limits.waiting_token_max && !sabotaged!(sabotage, TokenWaitsAnyhow) {
                self.reached[2] += 1;
                let message = format!(
                    "the clients of this token have {of_token} requests that wait, which is the limit"
                );
                return Err(Box::new(refuse(Reason::Busy, &message)));
            }
            *of_token += 1;
        }
        if bytes > 0 {
            *self.bytes_of_client.entry(client).or_default() += bytes;
            token.into_iter().for_each(|it| *self.bytes_of_token.entry(it).or_default() += bytes);
        }
        self.by_client.insert(client, of_client + 1);
        self.by_namespace.insert(namespace, of_namespace + 1);
        self.asked.insert((asked.0, asked.1, op));
        self.all.insert(op, Waiter { asked, client, namespace, token, bytes });
        Ok(())
    }

    /// A request no longer waits.
    pub(super) fn leave(&mut self, op: OpId) {
        let Some(Waiter { asked, client, namespace, token, bytes }) = self.all.remove(&op) else { return };
        self.asked.remove(&(asked.0, asked.1, op));
        subtract_one(&mut self.by_client, client);
        subtract_one(&mut self.by_namespace, namespace);
        token.into_iter().for_each(|it| subtract_one(&mut self.by_token, it));
        if bytes > 0 {
            subtract(&mut self.bytes_of_client, client, bytes);
            token.into_iter().for_each(|it| subtract(&mut self.bytes_of_token, it, bytes));
        }
    }

    /// Whether a request would exceed the bytes of its client or token. One that is alone never does.
    fn is_heavy(
        &mut self,
        (client, token): (ClientId, Option<TokenId>),
        bytes: usize,
        limits: LimitsConfig,
    ) -> bool {
        let exceeds = |held: Option<&usize>, max: usize| held.is_some_and(|it| it + bytes > max);
        let of_token = token.and_then(|it| self.bytes_of_token.get(&it));
        let heavy = [
            exceeds(self.bytes_of_client.get(&client), limits.waiting_client_bytes_max),
            exceeds(of_token, limits.waiting_token_bytes_max),
        ];
        let first = heavy.iter().position(|it| *it && bytes > 0);
        first.into_iter().for_each(|at| self.bytes_reached[at] += 1);
        first.is_some()
    }

    /// The operation of a request that waits.
    pub(super) fn find(&self, conn: ConnId, id: RequestId) -> Option<OpId> {
        let (_, _, op) = *self.asked.range((conn, id, OpId(0))..).next()?;
        self.all.get(&op).filter(|it| it.asked == (conn, id)).map(|_| op)
    }

    /// The operations of a connection that wait.
    pub(super) fn of(&self, conn: ConnId) -> Vec<OpId> {
        let all = self.asked.range((conn, RequestId(0), OpId(0))..);
        all.take_while(|it| it.0 == conn).map(|it| it.2).collect()
    }

    /// Whether requests of a namespace wait.
    pub(super) fn has_any_in(&self, namespace: NamespaceIndex) -> bool {
        self.by_namespace.contains_key(&namespace)
    }

    /// Number of requests that wait.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

pub(super) fn subtract_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    subtract(counts, key, 1);
}

fn subtract<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, count: usize) {
    if let Entry::Occupied(mut entry) = counts.entry(key) {
        *entry.get_mut() -= count;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

/// The refusal of a request whose keys are too long together. One key is never too long.
pub(super) fn oversize(request: &ClientToMaster, sabotage: Sabotage) -> Option<Reply> {
    if sabotaged!(sabotage, AnyKeyBytes) {
        return None;
    }
    let bytes = key_bytes(request);
    (bytes > BATCH_KEY_BYTES_MAX).then(|| {
        let message = format!(
            "the keys of the batch have {bytes} bytes together, more than the {BATCH_KEY_BYTES_MAX} allowed"
        );
        refuse(Reason::Invalid, &message)
    })
}

/// The bytes of all keys of a request.
pub(super) fn key_bytes(request: &ClientToMaster) -> usize {
    let len = |key: &Key| key.as_bytes().len();
    match request {
        ClientToMaster::Resolve(it) => it.keys.iter().map(len).sum(),
        ClientToMaster::Exists(it) => it.keys.bytes_len(),
        ClientToMaster::Reserve(it) => it.items.iter().map(|it| len(&it.key)).sum(),
        ClientToMaster::Publish(it) => it.items.iter().map(|it| len(&it.item.key)).sum(),
        ClientToMaster::Delete(it) => it.keys.iter().map(len).sum(),
        ClientToMaster::Pin(it) => it.keys.iter().map(len).sum(),
        ClientToMaster::Prefetch(it) => it.keys.iter().map(len).sum(),
        ClientToMaster::Why(it) => it.keys.iter().map(len).sum(),
        ClientToMaster::Lease(it) => it.items.iter().map(|it| len(&it.key)).sum(),
        ClientToMaster::Ack(it) => it.items.iter().map(|it| len(&it.key)).sum(),
        // They name no object, or a pattern.
        ClientToMaster::DeleteMatching(_)
        | ClientToMaster::List(_)
        | ClientToMaster::Stat
        | ClientToMaster::Ping(_)
        | ClientToMaster::DropPins(_)
        | ClientToMaster::SetPolicy(_)
        | ClientToMaster::ForgetNode(_)
        | ClientToMaster::AdmitCluster(_)
        | ClientToMaster::Await(_)
        | ClientToMaster::Release(_)
        | ClientToMaster::KeepLeases(_)
        | ClientToMaster::Cancel(_)
        | ClientToMaster::OpenStream(_)
        | ClientToMaster::EndStream(_)
        | ClientToMaster::Pull(_) => 0,
    }
}

/// Refuses a batch that would exceed the number of reservations of its client, namespace or token, or of
/// pins.
pub(super) fn refuse_too_many(cx: &mut Context, caller: &Caller, reserve: &Reserve) -> Option<Reply> {
    let copies = |it: &ReserveItem| u64::from(it.options.replicas).max(u64::from(reserve.spare)).max(1);
    let more = reserve.items.iter().map(copies).fold(0, u64::saturating_add);
    let [of_client, of_namespace, of_token] = cx.quotas.counts(caller);
    let limits = cx.config.limits;
    let is_checked = !sabotaged!(cx.config.sabotage, ReserveAnyNumber);
    let counts = &mut cx.limits;
    let (who, reached, count) = if of_client.saturating_add(more) > limits.reservations_client_max {
        ("client", &mut counts.reservations_client, of_client)
    } else if of_namespace.saturating_add(more) > limits.reservations_namespace_max {
        ("namespace", &mut counts.reservations_namespace, of_namespace)
    } else if of_token.saturating_add(more) > limits.reservations_token_max && caller.token.is_some() {
        ("holder of the token", &mut counts.reservations_token, of_token)
    } else {
        return refuse_pins(cx, caller.namespace, reserve);
    };
    if !is_checked {
        return None;
    }
    *reached += 1;
    let message = format!("the {who} has {count} reservations; {more} more would exceed the limit");
    Some(refuse(Reason::Busy, &message))
}

fn refuse_pins(cx: &mut Context, namespace: NamespaceIndex, reserve: &Reserve) -> Option<Reply> {
    let pinned = reserve.items.iter().filter(|it| it.options.hard_pin).count() as u64;
    if pinned == 0 || has_pins_left(cx, namespace, pinned) {
        return None;
    }
    Some(refuse(Reason::Busy, "the namespace would have too many pins: end some first"))
}

/// Whether a namespace may have so many more pins.
pub(super) fn has_pins_left(cx: &mut Context, namespace: NamespaceIndex, more: u64) -> bool {
    let pins = cx.catalog.namespace(namespace).map_or(0, |it| it.pins);
    let has = pins.saturating_add(more) <= cx.config.limits.pins_namespace_max
        || sabotaged!(cx.config.sabotage, PinAnyNumber);
    cx.limits.pins += u64::from(!has);
    has
}

impl Master {
    /// The limits of this master, and their use.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStat> {
        let o = &self.objects;
        let stat = |name, max: usize, used: usize, reached| LimitStat {
            name,
            max: max as u64,
            used: used as u64,
            reached,
        };
        let (limits, waiting) = (o.cx.config.limits, &o.cx.waiting);
        let most = |counts: &mut dyn Iterator<Item = &usize>| counts.copied().max().unwrap_or(0);
        let by_client = most(&mut waiting.by_client.values());
        let by_namespace = most(&mut waiting.by_namespace.values());
        let by_token = most(&mut waiting.by_token.values());
        let namespaces = o.cx.catalog.namespace_count();
        let (reservations, reserved) = o.cx.quotas.most();
        let reservations = reservations.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        let pins = o.cx.catalog.namespace_indexes().filter_map(|it| Some(o.cx.catalog.namespace(it)?.pins));
        let [leases_client, leases_namespace, leases_token] = o.leases.most();
        let number = |it: u64| usize::try_from(it).unwrap_or(usize::MAX);
        let memory = o.cx.members.iter().filter(|(_, it)| !it.is_disk());
        let (capacity, views_refused) = memory.fold((0_u64, 0_u64), |sum, (_, it)| {
            (sum.0.saturating_add(it.usage.capacity), sum.1.saturating_add(it.views_refused))
        });
        let share = number(capacity / (SHARE_PARTS + 1) * SHARE_PARTS);
        let viewed = o.cx.members.iter().flat_map(|(_, it)| &it.viewers).map(|it| it.bytes).max();
        vec![
            stat(
                "reservations_per_client",
                number(limits.reservations_client_max),
                reservations[0],
                o.cx.limits.reservations_client,
            ),
            stat(
                "reservations_per_namespace",
                number(limits.reservations_namespace_max),
                reservations[1],
                o.cx.limits.reservations_namespace,
            ),
            stat(
                "reservations_per_token",
                number(limits.reservations_token_max),
                reservations[2],
                o.cx.limits.reservations_token,
            ),
            stat("reserved_bytes_per_client", share, number(reserved), o.cx.limits.reserved_share),
            stat("viewed_bytes_per_client", share, number(viewed.unwrap_or(0)), views_refused),
            stat("leases_per_client", limits.leases_client_max, leases_client.0, leases_client.1),
            stat("leases_per_namespace", limits.leases_namespace_max, leases_namespace.0, leases_namespace.1),
            stat("leases_per_token", limits.leases_token_max, leases_token.0, leases_token.1),
            stat(
                "pins_per_namespace",
                number(limits.pins_namespace_max),
                number(pins.max().unwrap_or(0)),
                o.cx.limits.pins,
            ),
            stat(
                "guaranteed_minimums",
                GUARANTEES_MAX,
                o.cx.quotas.guaranteed().len(),
                o.cx.limits.guarantees,
            ),
            stat("namespaces", limits.namespaces_max, namespaces, o.cx.limits.namespaces),
            stat("waiting_per_client", limits.waiting_client_max, by_client, waiting.reached[0]),
            stat("waiting_per_namespace", limits.waiting_namespace_max, by_namespace, waiting.reached[1]),
            stat("waiting_per_token", limits.waiting_token_max, by_token, waiting.reached[2]),
            stat(
                "waiting_bytes_per_client",
                limits.waiting_client_bytes_max,
                most(&mut waiting.bytes_of_client.values()),
                waiting.bytes_reached[0],
            ),
            stat(
                "waiting_bytes_per_token",
                limits.waiting_token_bytes_max,
                most(&mut waiting.bytes_of_token.values()),
                waiting.bytes_reached[1],
            ),
            stat("waiting_for_members", CLIENTS_PARKED_MAX, self.parked.len(), o.cx.limits.reports),
            stat("batch_key_bytes", BATCH_KEY_BYTES_MAX, 0, o.cx.limits.key_bytes),
            stat("history_removals", HISTORY_MAX, o.history.len(), o.history.forgotten()),
            stat("history_bytes", HISTORY_BYTES_MAX, o.history.bytes(), o.history.forgotten_for_bytes()),
        ]
    }
}
