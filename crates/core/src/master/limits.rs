//! The limits that keep one client or namespace from starving the others, and how often each was reached.
//!
//! Each module checks its own limit. A request beyond it is refused as [`Reason::Busy`] or
//! [`Reason::Invalid`], or gets a smaller answer; no other client notices.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Caller, Master, OpId,
    catalog::NamespaceIndex,
    objects::history::{HISTORY_BYTES_MAX, HISTORY_MAX},
    refuse,
};
use crate::{
    BATCH_KEY_BYTES_MAX, ClientId, ConnId, Key, RequestId,
    message::{ClientToMaster, Reason, Reply},
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
    /// Number of namespaces at which no client can add another. Objects of members and saved settings always
    /// have theirs.
    pub namespaces_max: usize,
    /// Number of namespaces up to which also unused ones are kept, so that their removals can be explained.
    pub namespaces_kept: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            waiting_client_max: 1 << 10,
            waiting_namespace_max: 1 << 14,
            namespaces_max: 1 << 12,
            namespaces_kept: 1 << 8,
        }
    }
}

/// How often each limit was reached.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub(super) key_bytes: u64,
    pub(super) namespaces: u64,
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
    /// How often the limits of a client and of a namespace were reached.
    reached: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    asked: (ConnId, RequestId),
    client: ClientId,
    namespace: NamespaceIndex,
}

impl Waiting {
    /// A request begins to wait, unless its client or namespace is at its limit.
    pub(super) fn enter(
        &mut self,
        op: OpId,
        asked: (ConnId, RequestId),
        caller: &Caller,
        limits: LimitsConfig,
        sabotage: Sabotage,
    ) -> Result<(), Box<Reply>> {
        let Caller { client, namespace, .. } = *caller;
        let of_client = self.by_client.get(&client).copied().unwrap_or(0);
        let of_namespace = self.by_namespace.get(&namespace).copied().unwrap_or(0);
        if of_client >= limits.waiting_client_max && !sabotaged!(sabotage, ClientWaitsAnyhow) {
            self.reached.0 += 1;
            let message = format!("client has {of_client} requests that wait, which is the limit");
            return Err(Box::new(refuse(Reason::Busy, &message)));
        }
        if of_namespace >= limits.waiting_namespace_max && !sabotaged!(sabotage, NamespaceWaitsAnyhow) {
            self.reached.1 += 1;
            let message = format!("the namespace has {of_namespace} requests that wait, which is the limit");
            return Err(Box::new(refuse(Reason::Busy, &message)));
        }
        self.by_client.insert(client, of_client + 1);
        self.by_namespace.insert(namespace, of_namespace + 1);
        self.asked.insert((asked.0, asked.1, op));
        self.all.insert(op, Waiter { asked, client, namespace });
        Ok(())
    }

    /// A request no longer waits.
    pub(super) fn leave(&mut self, op: OpId) {
        let Some(Waiter { asked, client, namespace }) = self.all.remove(&op) else { return };
        self.asked.remove(&(asked.0, asked.1, op));
        subtract_one(&mut self.by_client, client);
        subtract_one(&mut self.by_namespace, namespace);
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

fn subtract_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Entry::Occupied(mut entry) = counts.entry(key) {
        *entry.get_mut() -= 1;
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
    let len = |key: &Key| key.as_bytes().len();
    let bytes: usize = match request {
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
    };
    (bytes > BATCH_KEY_BYTES_MAX).then(|| {
        let message = format!(
            "the keys of the batch have {bytes} bytes together, more than the {BATCH_KEY_BYTES_MAX} allowed"
        );
        refuse(Reason::Invalid, &message)
    })
}

impl Master {
    /// Checks that every request that waits is listed, and no other.
    pub(super) fn check_waiting(&self) -> Result<(), String> {
        let parts = [
            self.reservations.queued_count(),
            self.retires.drop_count(),
            self.watches.len(),
            self.explanations.len(),
            self.objects.tier.waiting_count(),
            self.objects.streams.waiting_count(),
        ];
        let (waiting, listed) = (parts.iter().sum::<usize>(), self.objects.cx.waiting.len());
        match waiting == listed {
            true => Ok(()),
            false => Err(format!("limits: {waiting} requests wait ({parts:?}), {listed} are listed")),
        }
    }

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
        let namespaces = o.cx.catalog.namespace_count();
        vec![
            stat("namespaces", limits.namespaces_max, namespaces, o.cx.limits.namespaces),
            stat("waiting_per_client", limits.waiting_client_max, by_client, waiting.reached.0),
            stat("waiting_per_namespace", limits.waiting_namespace_max, by_namespace, waiting.reached.1),
            stat("batch_key_bytes", BATCH_KEY_BYTES_MAX, 0, o.cx.limits.key_bytes),
            stat("history_removals", HISTORY_MAX, o.history.len(), o.history.forgotten()),
            stat("history_bytes", HISTORY_BYTES_MAX, o.history.bytes(), o.history.forgotten_for_bytes()),
        ]
    }
}
