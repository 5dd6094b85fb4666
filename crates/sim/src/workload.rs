//! The workload of clients: puts, gets, views and deletes of the same few keys in too little memory.

use tiffin_session::{CachedGet, Get, OfferOrder, OfferRound, OfferSize, Put, PutRequest, Reach};
use tiffin_types::{
    EXTENT_ALIGN, Generation,
    attributes::Consumption,
    message::{
        Ack, AckItem, Ahead, Attach, Await, ClientToMaster, Delete, DeleteMatching, Demotion, DropPins,
        EndStream, Exists, Explain, ForgetNode, Lease, LeaseItem, LeaseOutcome, Leased, List, OnExists,
        OpenStream, Pattern, Pin, Policy, PolicyChange, Prefetch, Pull, PutOptions, Release, Resolve,
        StreamLimits,
    },
};

use crate::{
    client::{ClientEvent, Kind, SessionId},
    coverage::Point,
    keyspace::Name,
    node::node_name,
    world::{Phase, World},
};

/// The most frequent length of objects.
const USUAL_LEN: u64 = 2 * EXTENT_ALIGN;
/// Percentage of puts of that length.
const USUAL_PERCENT: u64 = 60;
/// Percentage of operations that are pins, where nodes are drained.
const PIN_PERCENT: u64 = 8;
/// Maximum number of sessions of a client.
const SESSIONS_MAX: usize = 3;
/// The only regular expression, see [`crate::keyspace::matches`].
const EVEN: &str = "[02468]$";
/// How much longer the pauses of clients are that call rarely.
const RARE: u64 = 12;
/// The only stream of each namespace.
const STREAM: &str = "s";

impl World {
    pub(crate) fn work(&mut self, client: usize) {
        if self.phase != Phase::Faults {
            return;
        }
        // Where there are two masters, some clients call rarely: also while a master is stopped.
        let is_rare = self.has_standby() && client.is_multiple_of(2);
        let pause = self.rng.between(1, self.plan.pause_max) * if is_rare { RARE } else { 1 };
        let Some(it) = self.clients.get(client).filter(|it| !it.leaving) else { return };
        let busy = it.sessions.len() >= SESSIONS_MAX;
        let namespace = it.namespace;
        if self.rng.once_in(150) {
            return self.client_at(0, client, ClientEvent::Leave);
        }
        self.client_at(pause, client, ClientEvent::Work);
        if busy {
            return;
        }
        if self.has_standby() {
            return self.begin_name_call(client, namespace);
        }
        // If most objects are samples, most operations consume them.
        let looks = self.rng.percent(self.plan.view_percent);
        let consumes = self.plan.sample_percent >= 50 && self.rng.percent(30);
        let tiers = self.plan.has_disks() && self.rng.percent(self.plan.tier_percent);
        let streams = self.plan.has_streams() && self.rng.percent(self.plan.stream_percent);
        let no_wait = self.plan.no_wait_percent > 0 && self.rng.percent(self.plan.no_wait_percent);
        // What is pinned while it is moved stays pinned.
        let pins = self.plan.has_drains && self.rng.percent(PIN_PERCENT);
        match self.rng.below(100) {
            _ if pins => self.begin_pin(client, namespace),
            _ if no_wait => self.begin_no_wait_put(client, namespace),
            _ if tiers => self.begin_tier(client, namespace),
            _ if streams => self.begin_stream(client),
            _ if looks => self.begin_view_lookup(client, namespace),
            _ if consumes => self.begin_lease(client, namespace),
            0..4 => self.maintain_offers(client),
            4..36 => self.begin_put(client, namespace),
            36..57 => self.begin_get(client, namespace),
            57..67 => self.change_lifetimes(client, namespace),
            67..80 => self.begin_view_lookup(client, namespace),
            80..90 => self.begin_delete(client, namespace),
            90..92 => {
                let pattern = self.pattern();
                let (force, wait_ms) = (self.rng.percent(50), self.rng.between(0, 300));
                let delete = DeleteMatching { pattern, force, wait_ms };
                self.call_once(client, Kind::Question, ClientToMaster::DeleteMatching(delete));
            }
            92..96 => {
                let keys: Vec<_> = (0..self.rng.between(1, 4)).map(|_| self.name(namespace).key()).collect();
                let lease = self.rng.percent(20);
                let report_wait_ms = self.rng.between(0, 300);
                let request = if keys.len() % 2 == 0 {
                    let keys = keys.iter().collect();
                    ClientToMaster::Exists(Exists { keys, lease, report_wait_ms, ..Exists::default() })
                } else {
                    ClientToMaster::Resolve(Resolve { keys, lease, report_wait_ms, ..Resolve::default() })
                };
                self.call_once(client, Kind::Question, request);
            }
            96..98 => self.begin_list(client),
            _ => self.call_once(client, Kind::Question, ClientToMaster::Stat),
        }
    }

    fn begin_list(&mut self, client: usize) {
        let pattern = match self.rng.once_in(4) {
            true => Pattern::Regex("(".to_owned()),
            false => self.pattern(),
        };
        let cursor = self.rng.below(6);
        let list = List { pattern, pinned_by: None, cursor, limit: 4, report_wait_ms: 100 };
        self.call_once(client, Kind::Question, ClientToMaster::List(list));
    }

    /// Calls whose answers are checked by their history.
    fn begin_name_call(&mut self, client: usize, namespace: u8) {
        let name = self.name(namespace);
        match self.rng.below(10) {
            0..4 => {
                let on_exists = if self.rng.percent(70) { OnExists::Replace } else { OnExists::Keep };
                let replicas = self.rng.between(1, self.plan.copies_max) as u32;
                let options = PutOptions { replicas, on_exists, ..PutOptions::default() };
                let len = if self.rng.percent(70) { USUAL_LEN } else { 5 * EXTENT_ALIGN - 10 };
                let value = self.oracle.new_value(name, len);
                self.oracle.wants_copies(value, replicas);
                self.answers.put(value, name, on_exists);
                let requests = vec![PutRequest { key: name.key(), len, options, ready: Vec::new() }];
                let confirm_ms = self.rng.between(0, 300);
                let same_host = self.clients.get(client).map(|it| it.same_host.clone()).unwrap_or_default();
                let put = Put::new(requests).confirming(confirm_ms).publishing(same_host);
                let put = put.breaking(self.mutant);
                self.begin_session(client, Kind::Put { put, values: vec![value] });
            }
            4..8 => self.begin_get_of(client, vec![name]),
            _ => {
                let wait_ms = self.rng.between(0, 300);
                let delete = Delete { keys: vec![name.key()], force: true, wait_ms };
                let Some(id) = self.next_session(client) else { return };
                self.answers.delete(id, name);
                self.call_once(client, Kind::Question, ClientToMaster::Delete(delete));
            }
        }
    }

    /// The id of the next session of a client, which is unique in the world.
    pub(crate) fn next_session(&self, client: usize) -> Option<(usize, u32, SessionId)> {
        let it = self.clients.get(client)?;
        Some((client, it.incarnation, SessionId(it.next_session + 1)))
    }

    fn begin_put(&mut self, client: usize, namespace: u8) {
        let count = if self.rng.percent(80) { 1 } else { 2 };
        let (mut requests, mut values) = (Vec::new(), Vec::new());
        let mut streams = false;
        for _ in 0..count {
            let name = self.name(namespace);
            if self.rng.percent(USUAL_PERCENT) && !self.plan.has_many_copies {
                let request = self.usual_put(client, name);
                values.push(self.oracle.new_value(name, request.len));
                requests.push(request);
                continue;
            }
            let len = self.len();
            let options = PutOptions {
                replicas: if self.rng.once_in(60) {
                    0
                } else {
                    self.rng.between(1, self.plan.copies_max) as u32
                },
                on_exists: if self.rng.percent(70) { OnExists::Replace } else { OnExists::Keep },
                hard_pin: self.rng.percent(self.plan.pin_percent),
                soft_pin_ms: self.rng.once_in(6).then(|| self.rng.between(1, 300)),
                preferred: Vec::new(),
                owner: self.owner(),
                sample: self.rng.percent(self.plan.sample_percent).then(|| self.consumption()),
                stream: String::new(),
                elsewhere: 0,
                replaces: None,
                ttl_ms: None,
            };
            let options = self.maybe_expires(options);
            let options = self.maybe_replaces(options, name);
            let options = self.maybe_elsewhere(options);
            let options = self.maybe_in_stream(options);
            streams |= !options.stream.is_empty();
            let value = self.oracle.new_value(name, len);
            self.oracle.wants_copies(value, options.replicas);
            values.push(value);
            requests.push(PutRequest { key: name.key(), len, options, ready: Vec::new() });
        }
        // Puts into a stream do not wait for space.
        let waits = self.rng.percent(30) && !streams;
        let wait_ms = if waits { self.rng.between(1, 200) } else { 0 };
        let confirm_ms = self.rng.between(0, 300);
        let same_host = self.clients.get(client).map(|it| it.same_host.clone()).unwrap_or_default();
        let put = Put::new(requests).waiting(wait_ms).confirming(confirm_ms).publishing(same_host);
        self.begin_session(client, Kind::Put { put, values });
        self.order_usual_offers(client);
    }

    fn maybe_expires(&mut self, mut options: PutOptions) -> PutOptions {
        let percent = self.plan.ttl_percent;
        if percent > 0 && options.sample.is_none() && self.rng.percent(percent) {
            options.ttl_ms = Some(self.rng.between(1, self.plan.ttl_ms_max));
        }
        options
    }

    /// Puts replace one generation only, usually the newest.
    fn maybe_replaces(&mut self, mut options: PutOptions, name: Name) -> PutOptions {
        let percent = self.plan.replaces_percent;
        if percent > 0 && self.rng.percent(percent) {
            let newest = self.oracle.newest.get(&name).copied();
            let other = Generation { epoch: 1, counter: 1 };
            options.replaces = newest.filter(|_| !self.rng.once_in(8)).or(Some(other));
            options.on_exists = OnExists::Replace;
        }
        options
    }

    /// A plain put of the preallocated size, into an offer if there is one.
    fn usual_put(&mut self, client: usize, name: Name) -> PutRequest {
        let on_exists = if self.rng.percent(70) { OnExists::Replace } else { OnExists::Keep };
        let options = PutOptions { replicas: 1, on_exists, ..PutOptions::default() };
        let (key, now_us) = (name.key(), self.now_us());
        let it = self.clients.get_mut(client).zip(OfferSize::of(&key, USUAL_LEN, &options));
        let offer = it.and_then(|(it, size)| it.preallocation.take(size, now_us));
        if offer.is_some() {
            self.coverage.hit(Point::PutPreallocated);
        }
        PutRequest { key, len: USUAL_LEN, options, ready: offer.into_iter().collect() }
    }

    /// Orders offers, if the client expects more puts of the usual size.
    fn order_usual_offers(&mut self, client: usize) {
        let now_us = self.now_us();
        // All names have the same length here.
        let key = Name { namespace: 0, key: 0 }.key();
        let size = OfferSize::of(&key, USUAL_LEN, &PutOptions::default());
        let it = self.clients.get_mut(client).zip(size);
        let order = it.and_then(|(it, size)| it.preallocation.order(size, now_us));
        order.into_iter().for_each(|order| self.order_offers(client, order));
    }

    fn order_offers(&mut self, client: usize, order: OfferOrder) {
        if let Some(reserve) = order.request() {
            self.call_once(client, Kind::Offers(order), ClientToMaster::Reserve(reserve));
        }
    }

    /// Puts a small object without waiting for memory.
    fn begin_no_wait_put(&mut self, client: usize, namespace: u8) {
        let (name, len) = (self.name(namespace), 2 * EXTENT_ALIGN);
        let options = PutOptions { replicas: 1, on_exists: OnExists::Replace, ..PutOptions::default() };
        let values = vec![self.oracle.new_value(name, len)];
        let requests = vec![PutRequest { key: name.key(), len, options, ready: Vec::new() }];
        let confirm_ms = self.rng.between(0, 300);
        let same_host = self.clients.get(client).map(|it| it.same_host.clone()).unwrap_or_default();
        let put = Put::new(requests).confirming(confirm_ms).publishing(same_host);
        self.begin_session(client, Kind::Put { put, values });
    }

    /// Periodic maintenance of offers: orders new ones, and returns idle ones.
    fn maintain_offers(&mut self, client: usize) {
        let now_us = self.now_us();
        let Some(it) = self.clients.get_mut(client) else { return };
        let OfferRound { idle, orders, .. } = it.preallocation.round(now_us);
        self.abort(client, idle);
        orders.into_iter().for_each(|order| self.order_offers(client, order));
    }

    /// Pins, quotas, leases, and queries about them.
    fn change_lifetimes(&mut self, client: usize, namespace: u8) {
        if self.plan.forget_percent > 0 && self.rng.percent(self.plan.forget_percent) {
            let node = self.rng.below(self.nodes.len() as u64) as usize;
            let instance = self.nodes.get(node).map_or(0, |it| it.incarnation);
            // This one, or the one before.
            let name = node_name(node, instance.saturating_sub(self.rng.below(2) as u32));
            return self.call_once(client, Kind::Question, ClientToMaster::ForgetNode(ForgetNode { name }));
        }
        let key = self.name(namespace).key();
        let owner = self.owner();
        let wait_ms = self.rng.between(0, 300);
        let all = self.plan.capacity * self.plan.nodes as u64;
        let request = match self.rng.below(14) {
            0..4 => ClientToMaster::Pin(Pin { keys: vec![key], owner, on: self.rng.percent(40), wait_ms }),
            4 => ClientToMaster::DropPins(DropPins { owner, wait_ms }),
            5 => ClientToMaster::SetPolicy(self.policy_change(all)),
            6 => ClientToMaster::Await(Await {
                at_most: Some(self.rng.below(all)),
                at_least: self.rng.percent(30).then_some(all),
                wait_ms,
            }),
            7 => ClientToMaster::Why(Explain { keys: vec![key], report_wait_ms: 0 }),
            _ => return self.begin_lease(client, namespace),
        };
        self.call_once(client, Kind::Question, request);
    }

    /// Pins an object, mostly for the owner whose pins a move carries over.
    fn begin_pin(&mut self, client: usize, namespace: u8) {
        let owner = if self.rng.percent(80) { String::new() } else { self.owner() };
        let (on, wait_ms) = (self.rng.percent(60), self.rng.between(0, 300));
        let pin = Pin { keys: vec![self.name(namespace).key()], owner, on, wait_ms };
        self.call_once(client, Kind::Question, ClientToMaster::Pin(pin));
    }

    /// A change of some limits: set or removed.
    fn policy_change(&mut self, all: u64) -> PolicyChange {
        // A quota below the guaranteed minimum is refused.
        let least = (all / 4).max(self.plan.guaranteed());
        let quota = self.rng.percent(60).then(|| self.rng.between(least, all));
        let max_hold_ms = self.rng.once_in(5).then(|| self.rng.between(50, 500));
        match self.rng.below(3) {
            0 => PolicyChange::NONE.quota(quota),
            1 => PolicyChange::NONE.max_hold_ms(max_hold_ms),
            _ => {
                let all = Policy { quota, max_hold_ms, ..Policy::default() };
                // Only the operator changes the guaranteed minimum.
                PolicyChange { keep_guaranteed: true, ..all.into() }
            }
        }
    }

    fn begin_lease(&mut self, client: usize, namespace: u8) {
        // Several readers share a sample, also after one of them has acknowledged it.
        let mut shared: Vec<_> = self.oracle.deferred.iter().map(|it| it.0).collect();
        if shared.is_empty() {
            shared.extend(self.oracle.leases.values().map(|it| it.1));
        }
        let names = shared.iter().filter_map(|it| Some(self.oracle.objects.get(it)?.name));
        let shared: Vec<_> = names.filter(|it| it.namespace == namespace).collect();
        let shared = if self.rng.percent(60) { self.rng.pick(&shared).copied() } else { None };
        let name = shared.unwrap_or_else(|| self.name(namespace));
        let items = vec![LeaseItem { key: name.key(), generation: None }];
        let lease = Lease { items, group: self.group(), report_wait_ms: 200 };
        self.call_once(client, Kind::Question, ClientToMaster::Lease(lease));
    }

    /// Leased samples are consumed, or not.
    pub(crate) fn leased(&mut self, client: usize, leased: Leased, group: Option<String>) {
        let namespace = self.clients.get(client).map_or(0, |it| it.namespace);
        for outcome in leased.items {
            let LeaseOutcome::Leased(granted) = outcome else { continue };
            if granted.lease == 0 {
                continue;
            }
            self.coverage.hit(Point::SampleLeased);
            let generation = granted.found.generation;
            let name = self.oracle.objects.get(&generation).map(|it| it.name);
            let request = match (self.rng.below(10), name) {
                // Some leases are kept.
                (0..2, _) => {
                    let it = self.clients.get_mut(client).filter(|it| !it.leaving);
                    it.into_iter().for_each(|it| _ = it.leases.insert(granted.lease));
                    continue;
                }
                (2..4, _) | (_, None) => ClientToMaster::Release(Release { leases: vec![granted.lease] }),
                (kind, Some(name)) => {
                    assert_eq!(name.namespace, namespace, "a lease crosses namespaces");
                    let items = vec![AckItem { key: name.key(), generation }];
                    let group = group.clone().unwrap_or_else(|| self.group());
                    let wait_ms = self.rng.between(0, 300);
                    // As in a feature store: the last release frees.
                    let unless_leased = kind < 7;
                    if unless_leased {
                        let release = Release { leases: vec![granted.lease] };
                        self.call_once(client, Kind::Question, ClientToMaster::Release(release));
                    }
                    ClientToMaster::Ack(Ack { items, group, wait_ms, unless_leased, ..Ack::default() })
                }
            };
            self.call_once(client, Kind::Question, request);
        }
    }

    /// A part of some samples is in another store.
    fn maybe_elsewhere(&mut self, options: PutOptions) -> PutOptions {
        let is_split = options.sample.is_some() && self.rng.once_in(4);
        let elsewhere = if is_split { self.rng.below(self.plan.capacity) } else { 0 };
        PutOptions { elsewhere, ..options }
    }

    /// Some samples belong to the stream of their namespace.
    fn maybe_in_stream(&mut self, options: PutOptions) -> PutOptions {
        let is_sample = options.sample.as_ref().is_some_and(|it| *it != Consumption::Retained);
        let streams = self.plan.has_streams() && is_sample && self.rng.percent(70);
        PutOptions { stream: if streams { STREAM.to_owned() } else { String::new() }, ..options }
    }

    /// Stream operations: pulls and, rarely, open, end and drop.
    fn begin_stream(&mut self, client: usize) {
        let (name, group) = (STREAM.to_owned(), self.group());
        let wait_ms = if self.rng.percent(70) { self.rng.between(1, 200) } else { 0 };
        let request = match self.rng.below(40) {
            0..28 => {
                let items_max = self.rng.between(1, 4) as u32;
                let items_min = self.rng.between(0, u64::from(items_max)) as u32;
                let newest = self.oracle.objects.keys().next_back().copied().filter(|_| self.rng.once_in(8));
                let behind = newest.map(|it| Generation { counter: it.counter.saturating_sub(4), ..it });
                let pull = Pull { stream: name, group: group.clone(), items_min, items_max, wait_ms, behind };
                return self.call_once(client, Kind::Pull(group), ClientToMaster::Pull(pull));
            }
            28..33 => {
                let refs_high = self.rng.below(6);
                let refs_low = self.rng.below(refs_high + 1);
                let limits = Some(StreamLimits { refs_high, refs_low, ..StreamLimits::default() });
                ClientToMaster::OpenStream(OpenStream { name, limits, attach: None })
            }
            33..37 => {
                let attach = Some(Attach { group, window: self.rng.below(4) });
                ClientToMaster::OpenStream(OpenStream { name, limits: None, attach })
            }
            kind => {
                let failure = (kind == 37).then(|| "injected".to_owned());
                ClientToMaster::EndStream(EndStream { name, failure, drop: kind == 38, wait_ms })
            }
        };
        self.call_once(client, Kind::Question, request);
    }

    fn owner(&mut self) -> String {
        self.rng.pick(&["", "run"]).copied().unwrap_or_default().to_owned()
    }

    fn group(&mut self) -> String {
        self.rng.pick(&["g", "h"]).copied().unwrap_or_default().to_owned()
    }

    fn consumption(&mut self) -> Consumption {
        match self.rng.below(5) {
            0 => Consumption::Retained,
            1..3 => Consumption::Groups(vec!["g".to_owned(), "h".to_owned()]),
            _ => Consumption::Once,
        }
    }

    fn begin_get(&mut self, client: usize, namespace: u8) {
        let count = if self.rng.percent(80) { 1 } else { 3 };
        let names = (0..count).map(|_| self.name(namespace)).collect();
        self.begin_get_of(client, names);
    }

    pub(crate) fn begin_get_of(&mut self, client: usize, names: Vec<Name>) {
        let stored: Vec<_> = names.iter().map(|it| self.oracle.newest_acknowledged(*it)).collect();
        let Some(it) = self.clients.get_mut(client) else { return };
        let newest: Vec<_> =
            names.iter().zip(stored).map(|(name, stored)| it.newest(&name.key()).max(stored)).collect();
        let lease = self.rng.percent(25);
        let strict_leases = self.plan.strict_leases;
        let get = CachedGet { is_connected: it.epoch().is_some(), lease, strict_leases };
        let reaches = it.reaches();
        let reach = |segment| reaches.get(&segment).copied().unwrap_or(Reach::None);
        let requests: Vec<_> =
            names.iter().map(|name| it.locations.recall(&name.key(), get, reach)).collect();
        let before = requests.iter().map(|it| it.known.as_ref().map(|it| it.generation)).zip(newest);
        let before = before.collect();
        let buffers = names.iter().map(|_| if self.rng.once_in(30) { 50 } else { u64::MAX }).collect();
        let same_host = format!("host{client}");
        let slow = self.slow_for(client);
        let avoided = self.clients.get(client).map(|it| it.pace.avoided(self.now_us())).unwrap_or_default();
        let get = Get::new(requests, lease, Box::new(move |it| u8::from(it.host != same_host)));
        let mut get = get.avoiding(avoided).wait_for_reports(self.rng.between(0, 300));
        if self.plan.has_disks() {
            get = get.wait_for_promotion(self.rng.between(0, 60));
        }
        if let Some(session) = self.next_session(client).filter(|_| self.has_standby()) {
            self.answers.get(session);
        }
        self.begin_session(client, Kind::Get { get, names, buffers, before, slow });
    }

    /// Disk tier operations: clients request the same keys in the same order.
    fn begin_tier(&mut self, client: usize, namespace: u8) {
        let count = self.rng.between(1, self.plan.keys.min(6));
        let keys: Vec<_> = (0..count as u8).map(|key| Name { namespace, key }.key()).collect();
        let ahead = if self.rng.percent(70) { Ahead::LeadingRun } else { Ahead::All };
        let request = match self.rng.below(20) {
            0..6 => return self.begin_get(client, namespace),
            6..13 => {
                let keys = keys.iter().collect();
                ClientToMaster::Exists(Exists { keys, ahead, report_wait_ms: 100, ..Exists::default() })
            }
            13..19 => {
                let wait_ms = if self.rng.percent(70) { self.rng.between(1, 200) } else { 0 };
                if wait_ms == 0 && self.rng.percent(50) {
                    let begun = Prefetch { keys: keys.clone(), ahead, wait_ms };
                    self.call_once(client, Kind::Question, ClientToMaster::Prefetch(begun));
                    // It cancels the prefetch.
                    ClientToMaster::Prefetch(Prefetch { keys, ahead: Ahead::Nothing, wait_ms })
                } else {
                    ClientToMaster::Prefetch(Prefetch { keys, ahead, wait_ms })
                }
            }
            _ => {
                let all =
                    [None, Some(Demotion::OnPressure), Some(Demotion::WriteThrough), Some(Demotion::Never)];
                let demotion = self.rng.pick(&all).copied().flatten();
                ClientToMaster::SetPolicy(PolicyChange::NONE.demotion(demotion))
            }
        };
        self.call_once(client, Kind::Question, request);
    }

    fn begin_view_lookup(&mut self, client: usize, namespace: u8) {
        let name = self.name(namespace);
        let keys = vec![name.key()];
        let resolve =
            Resolve { keys, touch: true, lease: self.rng.percent(30), locate: true, ..Resolve::default() };
        self.call_once(client, Kind::View(name), ClientToMaster::Resolve(resolve));
    }

    fn begin_delete(&mut self, client: usize, namespace: u8) {
        let keys = (0..self.rng.between(1, 2)).map(|_| self.name(namespace).key()).collect();
        let (force, wait_ms) = (self.rng.percent(50), self.rng.between(0, 300));
        let delete = Delete { keys, force, wait_ms };
        self.call_once(client, Kind::Question, ClientToMaster::Delete(delete));
    }

    fn name(&mut self, namespace: u8) -> Name {
        Name { namespace, key: self.rng.below(self.plan.keys) as u8 }
    }

    fn pattern(&mut self) -> Pattern {
        match self.rng.below(6) {
            0 => Pattern::All,
            1..4 => Pattern::Prefix(if self.rng.percent(50) { b"a/".to_vec() } else { b"b/".to_vec() }),
            _ => Pattern::Regex(EVEN.to_owned()),
        }
    }

    /// Few sizes, so that a reused slot often has the same one; rarely zero or too large.
    fn len(&mut self) -> u64 {
        match self.rng.below(40) {
            0 => 0,
            1 => self.plan.capacity + 1,
            2..6 => self.rng.between(1, 64),
            6..20 => 2 * EXTENT_ALIGN,
            20..30 => 5 * EXTENT_ALIGN - 10,
            30..37 => 9 * EXTENT_ALIGN,
            _ => self.plan.capacity / 2,
        }
    }
}
