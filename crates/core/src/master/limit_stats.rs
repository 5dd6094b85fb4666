//! The use of every limit of the master, for operators.

use super::{
    Master, Objects,
    context::guarantees::GUARANTEES_MAX,
    objects::history::{HISTORY_BYTES_MAX, HISTORY_MAX},
    unreported::CLIENTS_PARKED_MAX,
};
use crate::{BATCH_KEY_BYTES_MAX, SHARE_PARTS};

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

impl LimitStat {
    fn new(name: &'static str, max: usize, used: usize, reached: u64) -> Self {
        Self { name, max: max as u64, used: used as u64, reached }
    }
}

impl Master {
    /// The limits of this master, and their use.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStat> {
        let o = &self.objects;
        let mut found = of_memory(o);
        found.extend(of_names(o));
        found.extend(of_waiting(o, self.operations.parking.len()));
        found.push(LimitStat::new("batch_key_bytes", BATCH_KEY_BYTES_MAX, 0, o.cx.limits.key_bytes));
        found
    }
}

/// What clients hold: reservations, views, leases, pins.
fn of_memory(o: &Objects) -> Vec<LimitStat> {
    let (limits, reached) = (o.cx.config.limits, &o.cx.limits);
    let (reservations, reserved) = o.cx.quotas.most();
    let reservations = reservations.map(number);
    let pins = o.cx.catalog.namespace_indexes().filter_map(|it| Some(o.cx.catalog.namespace(it)?.pins));
    let [of_client, of_namespace, of_token] = o.leases.most();
    let memory = o.cx.members.iter().filter(|(_, it)| !it.is_disk());
    let (capacity, views_refused) = memory.fold((0_u64, 0_u64), |sum, (_, it)| {
        (sum.0.saturating_add(it.usage.capacity), sum.1.saturating_add(it.views_refused))
    });
    let share = number(capacity / (SHARE_PARTS + 1) * SHARE_PARTS);
    let viewed = o.cx.members.iter().flat_map(|(_, it)| &it.viewers).map(|it| it.bytes).max();
    let reservations_of = |whose, max, used, reached| LimitStat::new(whose, number(max), used, reached);
    vec![
        reservations_of(
            "reservations_per_client",
            limits.reservations_client_max,
            reservations[0],
            reached.reservations_client,
        ),
        reservations_of(
            "reservations_per_namespace",
            limits.reservations_namespace_max,
            reservations[1],
            reached.reservations_namespace,
        ),
        reservations_of(
            "reservations_per_token",
            limits.reservations_token_max,
            reservations[2],
            reached.reservations_token,
        ),
        LimitStat::new("reserved_bytes_per_client", share, number(reserved), reached.reserved_share),
        LimitStat::new("viewed_bytes_per_client", share, number(viewed.unwrap_or(0)), views_refused),
        LimitStat::new("leases_per_client", limits.leases_client_max, of_client.0, of_client.1),
        LimitStat::new("leases_per_namespace", limits.leases_namespace_max, of_namespace.0, of_namespace.1),
        LimitStat::new("leases_per_token", limits.leases_token_max, of_token.0, of_token.1),
        LimitStat::new(
            "pins_per_namespace",
            number(limits.pins_namespace_max),
            number(pins.max().unwrap_or(0)),
            reached.pins,
        ),
        LimitStat::new(
            "pins_per_token",
            number(limits.pins_token_max),
            number(o.cx.catalog.pins_of_tokens().values().copied().max().unwrap_or(0)),
            reached.pins_token,
        ),
    ]
}

/// Names, and what is remembered about them.
fn of_names(o: &Objects) -> Vec<LimitStat> {
    let (limits, reached) = (o.cx.config.limits, &o.cx.limits);
    let (namespaces, history) = (o.cx.catalog.namespace_count(), &o.history);
    let guaranteed = o.cx.quotas.guaranteed().len();
    vec![
        LimitStat::new("guaranteed_minimums", GUARANTEES_MAX, guaranteed, reached.guarantees),
        LimitStat::new("namespaces", limits.namespaces_max, namespaces, reached.namespaces),
        LimitStat::new("history_removals", HISTORY_MAX, history.len(), history.forgotten()),
        LimitStat::new("history_bytes", HISTORY_BYTES_MAX, history.bytes(), history.forgotten_for_bytes()),
    ]
}

/// Requests that wait.
fn of_waiting(o: &Objects, parked: usize) -> Vec<LimitStat> {
    let limits = o.cx.config.limits;
    let waiting = o.cx.waiting.most();
    let stat = |name, max, (used, reached)| LimitStat::new(name, max, used, reached);
    vec![
        stat("waiting_per_client", limits.waiting_client_max, waiting.client),
        stat("waiting_per_namespace", limits.waiting_namespace_max, waiting.namespace),
        stat("waiting_per_token", limits.waiting_token_max, waiting.token),
        stat("waiting_bytes_per_client", limits.waiting_client_bytes_max, waiting.client_bytes),
        stat("waiting_bytes_per_token", limits.waiting_token_bytes_max, waiting.token_bytes),
        stat("waiting_for_members", CLIENTS_PARKED_MAX, (parked, o.cx.limits.reports)),
    ]
}

fn number(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
