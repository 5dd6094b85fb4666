//! The limits that keep one client or namespace from starving the others, and how often each was reached.
//!
//! Each module checks its own limit. A request beyond it is refused as [`Reason::Busy`] or
//! [`Reason::Invalid`], or gets a smaller answer; no other client notices.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Caller, Context, OpId,
    catalog::{NamespaceIndex, TokenId},
    refuse,
};
use crate::{
    BATCH_KEY_BYTES_MAX, ClientId, ConnId, Key, RequestId,
    message::{ClientToMaster, Reason, Reply, Reserve, ReserveItem},
    mutant::{Mutant, is_mutant},
};

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
    /// The same in all namespaces that clients of one token have used last, if it is limited to namespaces.
    pub pins_token_max: u64,
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
            pins_token_max: 1 << 22,
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
    pub(super) pins_token: u64,
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

/// The requests that wait of the client, namespace or token with most of them, and how often the limit was
/// reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct MostWaiting {
    pub(super) client: (usize, u64),
    pub(super) namespace: (usize, u64),
    pub(super) token: (usize, u64),
    pub(super) client_bytes: (usize, u64),
    pub(super) token_bytes: (usize, u64),
}

impl Waiting {
    pub(super) fn most(&self) -> MostWaiting {
        let most = |counts: &mut dyn Iterator<Item = &usize>| counts.copied().max().unwrap_or(0);
        MostWaiting {
            client: (most(&mut self.by_client.values()), self.reached[0]),
            namespace: (most(&mut self.by_namespace.values()), self.reached[1]),
            token: (most(&mut self.by_token.values()), self.reached[2]),
            client_bytes: (most(&mut self.bytes_of_client.values()), self.bytes_reached[0]),
            token_bytes: (most(&mut self.bytes_of_token.values()), self.bytes_reached[1]),
        }
    }

    /// A request begins to wait, unless its client, namespace or token is at its limit.
    pub(super) fn enter(
        &mut self,
        op: OpId,
        asked: (ConnId, RequestId),
        (caller, bytes): (&Caller, usize),
        limits: LimitsConfig,
        mutant: Mutant,
    ) -> Result<(), Box<Reply>> {
        let Caller { client, namespace, token, .. } = *caller;
        let of_client = self.by_client.get(&client).copied().unwrap_or(0);
        let of_namespace = self.by_namespace.get(&namespace).copied().unwrap_or(0);
        if of_client >= limits.waiting_client_max && !is_mutant!(mutant, ClientWaitsAnyhow) {
            self.reached[0] += 1;
            let message = format!("client has {of_client} requests that wait, which is the limit");
            return Err(Box::new(refuse(Reason::Busy, &message)));
        }
        if of_namespace >= limits.waiting_namespace_max && !is_mutant!(mutant, NamespaceWaitsAnyhow) {
            self.reached[1] += 1;
            let message = format!("the namespace has {of_namespace} requests that wait, which is the limit");
            return Err(Box::new(refuse(Reason::Busy, &message)));
        }
        if self.is_heavy((client, token), bytes, limits) && !is_mutant!(mutant, WaitWithAnyBytes) {
            let message = "the requests that wait have too many keys together: wait for some of them first";
            return Err(Box::new(refuse(Reason::Busy, message)));
        }
        if let Some(token) = token {
            let of_token = self.by_token.entry(token).or_default();
            if *of_token >= limits.waiting_token_max && !is_mutant!(mutant, TokenWaitsAnyhow) {
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
        let reached = self.bytes_reached.iter_mut().zip(heavy).find(|(_, is_heavy)| *is_heavy && bytes > 0);
        reached.map(|(count, _)| *count += 1).is_some()
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
pub(super) fn oversize(request: &ClientToMaster, mutant: Mutant) -> Option<Reply> {
    if is_mutant!(mutant, AnyKeyBytes) {
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
    let is_checked = !is_mutant!(cx.config.mutant, ReserveAnyNumber);
    let counts = &mut cx.limits;
    let (who, reached, count) = if of_client.saturating_add(more) > limits.reservations_client_max {
        ("client", &mut counts.reservations_client, of_client)
    } else if of_namespace.saturating_add(more) > limits.reservations_namespace_max {
        ("namespace", &mut counts.reservations_namespace, of_namespace)
    } else if of_token.saturating_add(more) > limits.reservations_token_max && caller.token.is_some() {
        ("holder of the token", &mut counts.reservations_token, of_token)
    } else {
        return refuse_pins(cx, caller, reserve);
    };
    if !is_checked {
        return None;
    }
    *reached += 1;
    let message = format!("the {who} has {count} reservations; {more} more would exceed the limit");
    Some(refuse(Reason::Busy, &message))
}

fn refuse_pins(cx: &mut Context, caller: &Caller, reserve: &Reserve) -> Option<Reply> {
    let pinned = reserve.items.iter().filter(|it| it.options.hard_pin).count() as u64;
    if pinned == 0 || has_pins_left(cx, (caller.namespace, caller.token), pinned) {
        return None;
    }
    Some(refuse(Reason::Busy, "the namespace, or the token, would have too many pins: end some first"))
}

/// Whether a client of that token may have so many more pins in its namespace.
pub(super) fn has_pins_left(
    cx: &mut Context,
    (namespace, token): (NamespaceIndex, Option<TokenId>),
    more: u64,
) -> bool {
    let limits = cx.config.limits;
    let pins = cx.catalog.namespace(namespace).map_or(0, |it| it.pins);
    let of_token = token.and_then(|it| cx.catalog.pins_of_tokens().get(&it).copied()).unwrap_or(0);
    let namespace_has =
        pins.saturating_add(more) <= limits.pins_namespace_max || is_mutant!(cx.config.mutant, PinAnyNumber);
    let token_has = token.is_none()
        || of_token.saturating_add(more) <= limits.pins_token_max
        || is_mutant!(cx.config.mutant, PinsOfEachNamespace);
    cx.limits.pins += u64::from(!namespace_has);
    cx.limits.pins_token += u64::from(namespace_has && !token_has);
    namespace_has && token_has
}
