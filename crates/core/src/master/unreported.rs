//! Members that have not reported since the master started, and the requests that wait for them.
//!
//! While a member of the roster has not reported, a key that it may hold is neither present nor absent. A
//! request that depends on such a key is deferred. It continues when every member has reported or was
//! declared lost. When its deadline passes, it is refused, and the refusal names the members.
//!
//! The master stops waiting for a member that has been away for too long. A put with a copy on that member
//! then gets no name: an earlier epoch may have named that copy, and only the member knows. The writer has no
//! answer yet, because its home still asks. The member owes the retire of the copy, which is saved before the
//! home is answered, so the copy never comes back.
//!
//! A key is decided before that only if its object was put in this epoch: its generation is greater than
//! any of an earlier epoch. A copy from an earlier epoch decides nothing, because the missing member may
//! have a newer one.
//!
//! The registration of a member whose objects are being removed (see [`super::departures`]) is deferred in
//! the same way.
//!
//! **Invariant:** a report never brings back an object that is older than one that left the catalog since
//! the master started. The name's *floor* is the least generation that is still accepted. That also holds for
//! members that were given up, up to [`FLOORS_MAX`](super::objects::floors::FLOORS_MAX) names.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Master, Notice, Objects, OpId, Party,
    catalog::{NamespaceIndex, NodeIndex},
    connections::Sharer,
    limits::key_bytes,
    members::{Member, Standing},
    objects::floors::Floors,
    pending_retires::Name,
    refuse,
};
use crate::{
    ConnId, Generation, Key, Location, RequestId, SlotRef, Tick,
    message::{
        Await, ClientToMaster, CommitItem, Decide, MemberToMaster, NodeInfo, OnExists, Pulled, PutOptions,
        Reason, Register, Reply, Request, Usage,
    },
    sabotage::sabotaged,
};

/// Maximum number of deferred requests; further ones are refused at once.
pub(super) const PARKED_MAX: usize = 1 << 14;
/// The same of clients: they leave some to nodes, without which no put ends.
pub(super) const CLIENTS_PARKED_MAX: usize = PARKED_MAX / 8 * 7;
/// A client, or a token that is limited to namespaces, may have this many times the requests that may still
/// be deferred.
const SHARE_OF_FREE: usize = 15;
/// The keys of a request may always have so many bytes.
const FEW_KEY_BYTES: usize = 64 << 10;
/// How long a request without a wait time of its own waits for reports.
pub(super) const REPORT_WAIT_MS: u64 = 5_000;
/// Maximum number of members that a message names.
const NAMED_MAX: usize = 8;

/// A request that waits for reports.
#[derive(Debug)]
pub(super) struct Parked {
    conn: ConnId,
    id: RequestId,
    question: Question,
    /// None for a node.
    sharer: Option<Sharer>,
    key_bytes: usize,
    since: Tick,
    /// A request of a node has none: it waits until the members that it depends on have reported, are given
    /// up or are lost.
    deadline: Option<Tick>,
}

/// The requests that may depend on reports.
#[derive(Debug)]
pub(super) enum Question {
    Client(ClientToMaster),
    /// From this node.
    Decide(NodeIndex, Decide),
    /// Waits until the departure of the member has ended.
    Register(Box<Register>),
}

impl Objects {
    /// Adds a member that must report.
    pub(super) fn expect_report(&mut self, info: NodeInfo, owed: BTreeSet<SlotRef>, is_recorded: bool) {
        let mut member = Member::new(info, Usage::default(), self.cx.now);
        member.standing = Standing::Away(self.cx.now);
        (member.from_earlier_life, member.is_recorded, member.owed) = (true, is_recorded, owed);
        if let Some(node) = self.cx.members.insert(member) {
            self.unreported.insert(node);
        }
    }

    /// Emits a notice with the members that the master waits for.
    pub(super) fn tell_unreported(&mut self) {
        if !self.unreported.is_empty() {
            let names = self.unreported_names();
            self.cx.notice(Notice::AwaitingReports(names));
        }
    }

    /// A member has reported, was given up or is lost. Deferred requests continue after this event.
    pub(super) fn reported(&mut self, node: NodeIndex) {
        self.has_new_report = true;
        self.unheard.remove(&node);
        if self.unreported.remove(&node) && self.unreported.is_empty() {
            self.cx.notice(Notice::AllReported);
        }
    }

    /// An object is removed: a report must bring back neither it nor an older one.
    pub(super) fn raise_floor_above(&mut self, name: &Arc<Name>, removed: Generation) {
        self.raise_floor(name, Generation { counter: removed.counter + 1, ..removed });
    }

    /// The last known copy of an object is lost. A report may bring back another copy of it, but no older
    /// object.
    pub(super) fn raise_floor(&mut self, name: &Arc<Name>, least: Generation) {
        if sabotaged!(self.cx.config.sabotage, ForgetFloors) {
            return;
        }
        if !self.unreported.is_empty() {
            self.floors.raise(name, least);
        } else if !self.unheard.is_empty() && self.floors.has_space_for_two() {
            // A member that may never return must not stop evictions, so some floors may be missing then.
            self.floors.raise(name, least);
        }
    }

    /// A member is not waited for any more, and has not reported.
    pub(super) fn give_up_report(&mut self, node: NodeIndex) {
        self.reported(node);
        self.unheard.insert(node);
    }

    /// How long a client's request waits for reports, if it depends on them.
    fn report_wait_ms(&self, namespace: NamespaceIndex, request: &ClientToMaster) -> Option<u64> {
        let undecided = |key: &Key| self.is_undecided(namespace, key);
        let any = |mut keys: &mut dyn Iterator<Item = &Key>| Iterator::any(&mut keys, undecided);
        let (depends, wait_ms) = match request {
            ClientToMaster::Resolve(it) => (any(&mut it.keys.iter()), it.report_wait_ms),
            ClientToMaster::Exists(it) => {
                let keys = it.keys.iter().filter_map(|key| Key::new(key).ok());
                (keys.into_iter().any(|key| undecided(&key)), it.report_wait_ms)
            }
            ClientToMaster::Lease(it) => (any(&mut it.items.iter().map(|it| &it.key)), it.report_wait_ms),
            ClientToMaster::Ack(it) => (any(&mut it.items.iter().map(|it| &it.key)), it.wait_ms),
            ClientToMaster::Pin(it) => (any(&mut it.keys.iter()), it.wait_ms),
            ClientToMaster::Prefetch(it) => (any(&mut it.keys.iter()), it.wait_ms),
            ClientToMaster::Why(it) => {
                let wait_ms = if it.report_wait_ms == 0 { REPORT_WAIT_MS } else { it.report_wait_ms };
                (any(&mut it.keys.iter()), wait_ms)
            }
            ClientToMaster::Reserve(it) => {
                let items = it.items.iter().filter(|it| self.depends_on_others(&it.options));
                (it.spare == 0 && any(&mut items.map(|it| &it.key)), it.report_wait_ms)
            }
            ClientToMaster::Publish(it) => {
                let items = it.items.iter().map(|it| &it.item);
                let items = items.filter(|it| self.depends_on_others(&it.options));
                (any(&mut items.map(|it| &it.key)), it.wait_ms)
            }
            ClientToMaster::List(it) => (true, it.report_wait_ms),
            ClientToMaster::Delete(it) => (true, it.wait_ms),
            ClientToMaster::DeleteMatching(it) => (true, it.wait_ms),
            ClientToMaster::DropPins(it) => (true, it.wait_ms),
            ClientToMaster::Await(it) => (true, it.wait_ms),
            ClientToMaster::Pull(it) => (true, it.wait_ms),
            ClientToMaster::EndStream(it) => (true, it.wait_ms),
            ClientToMaster::OpenStream(_) => (true, REPORT_WAIT_MS),
            ClientToMaster::Stat
            | ClientToMaster::Ping(_)
            | ClientToMaster::SetPolicy(_)
            | ClientToMaster::ForgetNode(_)
            | ClientToMaster::AdmitCluster(_)
            | ClientToMaster::Release(_)
            | ClientToMaster::KeepLeases(_)
            | ClientToMaster::Cancel(_) => (false, 0),
        };
        depends.then_some(wait_ms)
    }

    /// Whether a member may hold objects of an earlier epoch that this master does not know.
    pub(super) fn may_bring_more(&self, node: NodeIndex) -> bool {
        let member = self.cx.members.get(node);
        self.unreported.contains(&node) || member.is_some_and(Member::is_absent_and_unreported)
    }

    /// Whether any object of a node's request cannot be decided yet.
    fn depends_on_reports(&self, home: NodeIndex, decide: &Decide) -> bool {
        decide.items.iter().any(|it| self.is_undecidable(home, &it.namespace, &it.item))
    }

    /// The copies of written objects on members that were given up before they reported. If none of an
    /// object's copies is known, it gets no name, and these copies must never count.
    fn give_up_unreported(&mut self, home: NodeIndex, decide: &Decide) {
        if sabotaged!(self.cx.config.sabotage, DecideUnreported) {
            return;
        }
        let mut given_up = Vec::new();
        for it in &decide.items {
            let namespace = self.cx.catalog.intern(&it.namespace);
            let other = |it: &Location| Some((self.cx.members.find(it.segment)?, it.slot_ref()));
            let others: Vec<_> = it.item.others.iter().filter_map(other).collect();
            let index = self.cx.catalog.find(namespace, &it.item.key);
            let is_copy =
                |copy: &(NodeIndex, SlotRef)| *copy == (home, it.item.slot_ref) || others.contains(copy);
            let object = index.and_then(|index| self.cx.catalog.get(index));
            if object.is_some_and(|it| it.replicas().any(|copy| is_copy(&copy))) {
                continue;
            }
            let name = Arc::new(Name { namespace, key: it.item.key.clone() });
            let lacks = |node| self.cx.members.get(node).is_some_and(Member::is_absent_and_unreported);
            let absent = others.iter().filter(|(node, _)| lacks(*node));
            given_up.extend(absent.map(|copy| (Arc::clone(&name), *copy)));
        }
        for (name, (node, slot_ref)) in &given_up {
            self.cx.pending_retires.insert(name, *node, *slot_ref);
            self.cx.owe(*node, &[*slot_ref]);
            let (home, member) = (self.cx.members.name(home), self.cx.members.name(*node));
            self.cx.notice(Notice::PutGivenUp { home, member, key: name.key.clone() });
        }
        if !given_up.is_empty() {
            self.cx.save();
        }
    }

    /// Whether the outcome of a put depends on the previous object of that name. With several masters that
    /// is so for every put: a member that still serves the previous master shows the old object to readers.
    fn depends_on_others(&self, options: &PutOptions) -> bool {
        let is_conditional = options.on_exists != OnExists::Replace
            || !options.stream.is_empty()
            || options.replaces.is_some();
        is_conditional || self.cx.config.confirms
    }

    /// Whether a member that has not reported may hold the newest object of that name.
    fn is_undecided(&self, namespace: NamespaceIndex, key: &Key) -> bool {
        let object = self.cx.catalog.find(namespace, key).and_then(|it| self.cx.catalog.get(it));
        object.is_none_or(|it| it.generation().epoch != self.cx.config.epoch)
    }

    /// Whether the name of a written object cannot be decided yet. An earlier epoch may have named a copy
    /// on an unreported member, and its reply may have been lost.
    fn is_undecidable(&self, home: NodeIndex, namespace: &str, item: &CommitItem) -> bool {
        // A home that is joining may have the object in writing, and has yet to tell so.
        let is_joining = self.cx.members.get(home).is_some_and(|it| it.standing == Standing::Joining);
        let has_not_reported = |it: &Location| {
            let member = self.cx.members.find(it.segment);
            member.is_some_and(|it| self.unreported.contains(&it) || is_joining && self.may_bring_more(it))
        };
        let namespace = self.cx.catalog.namespace_index(namespace);
        let is_undecided =
            || !self.unreported.is_empty() && namespace.is_none_or(|it| self.is_undecided(it, &item.key));
        item.others.iter().any(has_not_reported) || self.depends_on_others(&item.options) && is_undecided()
    }

    /// Records the copies that a deferred request of a node names. An earlier epoch may have named them,
    /// and they may be evicted and withdrawn before the reply.
    fn remember_copies(&mut self, home: NodeIndex, decide: &Decide) {
        let copies = self.copies_asked_about(home, decide);
        self.cx.pending_retires.ask(copies.into_iter());
    }

    fn copies_asked_about(&self, home: NodeIndex, decide: &Decide) -> Vec<(NodeIndex, SlotRef)> {
        let copies = decide.items.iter().flat_map(|it| {
            let other = |it: &Location| Some((self.cx.members.find(it.segment)?, it.slot_ref()));
            it.item.others.iter().filter_map(other).chain([(home, it.item.slot_ref)])
        });
        copies.collect()
    }

    fn unreported_names(&self) -> Vec<String> {
        self.unreported.iter().map(|node| self.cx.members.name(*node)).collect()
    }

    /// A message for users: the members that the master waits for.
    pub(super) fn unreported_message(&self) -> String {
        let names = self.unreported_names();
        let shown = names.get(..NAMED_MAX).unwrap_or(&names).join(", ");
        let more = match names.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("not all members have reported to the restarted master: waiting for {shown}{more}")
    }
}

impl Master {
    /// The names of the members that have not reported since the master started, or since they joined.
    #[must_use]
    pub fn unreported(&self) -> Vec<String> {
        self.objects.unreported_names()
    }

    /// How many requests of nodes wait, with written objects that have no name yet.
    #[must_use]
    pub fn undecided_count(&self) -> usize {
        self.parked.values().filter(|it| matches!(it.question, Question::Decide(..))).count()
    }

    /// A message for users: the members that the master waits for.
    #[must_use]
    pub fn unreported_message(&self) -> String {
        self.objects.unreported_message()
    }

    fn is_waiting_for_reports(&self) -> bool {
        !self.objects.unreported.is_empty() && !self.answers_unreported()
    }

    /// For mutants only.
    fn answers_unreported(&self) -> bool {
        sabotaged!(self.objects.cx.config.sabotage, AnswerUnreported)
    }

    /// Defers a client's request that depends on unreported members; otherwise returns it.
    pub(super) fn park(
        &mut self,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        request: ClientToMaster,
    ) -> Option<ClientToMaster> {
        if !self.is_waiting_for_reports() {
            return Some(request);
        }
        let Some(wait_ms) = self.objects.report_wait_ms(namespace, &request) else { return Some(request) };
        let deadline = self.objects.cx.now.after(wait_ms);
        self.park_question(conn, id, Question::Client(request), Some(deadline));
        None
    }

    /// The same for a request of a node.
    pub(super) fn park_decide(
        &mut self,
        conn: ConnId,
        id: RequestId,
        node: NodeIndex,
        decide: Decide,
    ) -> Option<Decide> {
        if self.answers_unreported() || !self.objects.depends_on_reports(node, &decide) {
            self.objects.give_up_unreported(node, &decide);
            return Some(decide);
        }
        self.park_question(conn, id, Question::Decide(node, decide), None);
        None
    }

    pub(super) fn park_question(
        &mut self,
        conn: ConnId,
        id: RequestId,
        question: Question,
        deadline: Option<Tick>,
    ) {
        let now = self.objects.cx.now;
        let sharer = match self.objects.cx.connections.get(conn) {
            Some(Party::Client(caller)) => Some(caller.sharer()),
            _ => None,
        };
        let key_bytes = match &question {
            Question::Client(request) => key_bytes(request),
            Question::Decide(..) | Question::Register(_) => 0,
        };
        if !self.may_park(sharer, key_bytes) || deadline.is_some_and(|at| at <= now) {
            return self.refuse_parked(conn, id, question);
        }
        if let Question::Decide(home, decide) = &question {
            self.objects.remember_copies(*home, decide);
        }
        let op = self.objects.cx.next_op();
        if let Some(deadline) = deadline {
            self.objects.cx.deadlines.list(deadline, op);
        }
        self.parked.insert(op, Parked { conn, id, question, sharer, key_bytes, since: now, deadline });
    }

    /// Whether one more request may be deferred: none of many clients takes all places.
    fn may_park(&mut self, sharer: Option<Sharer>, key_bytes: usize) -> bool {
        let len = self.parked.len();
        if sharer.is_none() || sabotaged!(self.objects.cx.config.sabotage, DeferForOne) {
            return len < PARKED_MAX;
        }
        let free = CLIENTS_PARKED_MAX.saturating_sub(len);
        // While there is enough for anybody, they are not counted.
        let own = || self.parked.values().filter(|it| it.sharer == sharer);
        let has_place = free > CLIENTS_PARKED_MAX / 2 || own().count() < free * SHARE_OF_FREE;
        let bytes_max = self.objects.cx.config.limits.waiting_client_bytes_max;
        let is_light = key_bytes <= FEW_KEY_BYTES
            || own().map(|it| it.key_bytes).fold(key_bytes, usize::saturating_add) <= bytes_max;
        let may = has_place && is_light;
        self.objects.cx.limits.reports += u64::from(!may);
        may
    }

    /// Whether a request of that connection would wait for reports, or for a departure. For simulations.
    #[must_use]
    pub fn waits_for_reports(&self, conn: ConnId, request: &Request) -> bool {
        match (self.objects.cx.connections.get(conn), request) {
            (Some(Party::Client(caller)), Request::ClientToMaster(request)) => {
                let wait_ms = self.objects.report_wait_ms(caller.namespace, request);
                wait_ms.is_some() && self.is_waiting_for_reports()
            }
            (Some(Party::Node(Some(home))), Request::MemberToMaster(MemberToMaster::Decide(decide))) => {
                self.objects.depends_on_reports(*home, decide) && !self.answers_unreported()
            }
            (Some(Party::Node(_)), Request::MemberToMaster(MemberToMaster::Register(it))) => {
                self.objects.departures.has(it.info.segment)
            }
            // Refused, or answered at once.
            (None | Some(Party::Client(_) | Party::Node(_)), _) => false,
        }
    }

    /// Continues deferred requests after a report, oldest first. Requests of clients continue once every
    /// member has reported or was given up; requests of nodes once the members that they depend on have
    /// reported, and before those of clients: an earlier epoch may have stored such an object, and shown it
    /// to clients, before its node learned that.
    pub(super) fn resume_parked(&mut self) {
        if !std::mem::take(&mut self.objects.has_new_report) {
            return;
        }
        let o = &self.objects;
        let has_all = o.unreported.is_empty();
        let resumed = self.parked.extract_if(.., |_, it| match &it.question {
            Question::Client(_) => has_all,
            Question::Decide(home, decide) => !o.depends_on_reports(*home, decide),
            Question::Register(it) => !o.departures.has(it.info.segment),
        });
        let mut resumed: Vec<_> = resumed.collect();
        if !sabotaged!(self.objects.cx.config.sabotage, AnswerUndecided) {
            resumed.sort_by_key(|(_, it)| matches!(it.question, Question::Client(_)));
        }
        if has_all && self.objects.unheard.is_empty() {
            self.objects.floors = Floors::default();
        } else if has_all {
            self.objects.floors.make_space();
        }
        for (op, Parked { conn, id, question, since, deadline, .. }) in resumed {
            if let Some(deadline) = deadline {
                self.objects.cx.deadlines.strike(deadline, op);
            }
            let waited_ms = self.objects.cx.now.0.saturating_sub(since.0);
            self.objects.cx.notice(Notice::Resumed(conn, id));
            match question {
                Question::Client(mut request) => {
                    shorten(&mut request, waited_ms);
                    self.request(conn, id, request.into());
                }
                Question::Decide(_, mut decide) => {
                    decide.wait_ms = decide.wait_ms.saturating_sub(waited_ms);
                    self.request(conn, id, MemberToMaster::Decide(decide).into());
                }
                Question::Register(it) => self.request(conn, id, MemberToMaster::Register(it).into()),
            }
        }
        if has_all {
            self.forget_answered();
        }
    }

    /// Forgets which copies were withdrawn, except those that a deferred request names.
    fn forget_answered(&mut self) {
        let o = &self.objects;
        let open = self.parked.values().filter_map(|it| match &it.question {
            Question::Decide(home, decide) => Some(o.copies_asked_about(*home, decide)),
            Question::Client(_) | Question::Register(_) => None,
        });
        let open: BTreeSet<_> = open.flatten().collect();
        self.objects.cx.pending_retires.forget_answered(&open);
    }

    /// Refuses a deferred request whose deadline has passed.
    pub(super) fn end_parking(&mut self, op: OpId) {
        let is_late = |it: &Parked| it.deadline.is_some_and(|at| at <= self.objects.cx.now);
        if self.parked.get(&op).is_some_and(is_late)
            && let Some(Parked { conn, id, question, .. }) = self.parked.remove(&op)
        {
            self.refuse_parked(conn, id, question);
        }
    }

    /// A connection is closed: its deferred requests are not answered. An earlier epoch may have stored an
    /// object that a node asks about, so a node whose request is dropped has not reported.
    pub(super) fn forget_parked(&mut self, conn: ConnId) {
        let mut unanswered = BTreeSet::new();
        for (op, parked) in self.parked.extract_if(.., |_, it| it.conn == conn) {
            if let Some(deadline) = parked.deadline {
                self.objects.cx.deadlines.strike(deadline, op);
            }
            if let Question::Decide(node, _) = parked.question {
                unanswered.insert(node);
            }
        }
        if unanswered.is_empty() || sabotaged!(self.objects.cx.config.sabotage, ForgetUnanswered) {
            return;
        }
        self.objects.unreported.extend(unanswered);
        self.objects.tell_unreported();
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel_parked(&mut self, conn: ConnId, id: RequestId) {
        let cx = &mut self.objects.cx;
        for (op, parked) in self.parked.iter_mut().filter(|(_, it)| (it.conn, it.id) == (conn, id)) {
            parked.deadline = parked.deadline.map(|it| it.min(cx.now));
            cx.deadlines.list(cx.now, *op);
        }
    }

    fn refuse_parked(&mut self, conn: ConnId, id: RequestId, question: Question) {
        let reply = if let Question::Client(ClientToMaster::Await(it)) = question {
            let Some(Party::Client(caller)) = self.objects.cx.connections.get(conn) else { return };
            let (caller, now) = (Arc::clone(caller), Await { wait_ms: 0, ..it });
            return self.watches.watch(&mut self.objects, (conn, id), &caller, now);
        } else if let Question::Client(ClientToMaster::Pull(_)) = question {
            // A pull that ends without samples makes no statement about existing ones.
            Reply::Pulled(Pulled::default())
        } else if let Question::Client(ClientToMaster::Publish(it)) = question {
            // The client commits at the home node instead.
            Reply::Published(it.items.iter().map(|_| None).collect())
        } else if let Question::Register(_) = question {
            refuse(Reason::Unavailable, "the objects of the member are being removed: register again")
        } else {
            refuse(Reason::Unavailable, &self.objects.unreported_message())
        };
        self.objects.cx.reply(conn, id, reply);
    }
}

/// A request that continues has less time left.
fn shorten(request: &mut ClientToMaster, waited_ms: u64) {
    let wait_ms = match request {
        ClientToMaster::Reserve(it) => &mut it.wait_ms,
        ClientToMaster::Publish(it) => &mut it.wait_ms,
        ClientToMaster::Resolve(it) => &mut it.wait_ms,
        ClientToMaster::Delete(it) => &mut it.wait_ms,
        ClientToMaster::DeleteMatching(it) => &mut it.wait_ms,
        ClientToMaster::Pin(it) => &mut it.wait_ms,
        ClientToMaster::DropPins(it) => &mut it.wait_ms,
        ClientToMaster::Await(it) => &mut it.wait_ms,
        ClientToMaster::Ack(it) => &mut it.wait_ms,
        ClientToMaster::EndStream(it) => &mut it.wait_ms,
        ClientToMaster::Pull(it) => &mut it.wait_ms,
        ClientToMaster::Prefetch(it) => &mut it.wait_ms,
        ClientToMaster::Exists(_)
        | ClientToMaster::List(_)
        | ClientToMaster::Stat
        | ClientToMaster::Ping(_)
        | ClientToMaster::SetPolicy(_)
        | ClientToMaster::ForgetNode(_)
        | ClientToMaster::AdmitCluster(_)
        | ClientToMaster::Why(_)
        | ClientToMaster::Lease(_)
        | ClientToMaster::Release(_)
        | ClientToMaster::KeepLeases(_)
        | ClientToMaster::Cancel(_)
        | ClientToMaster::OpenStream(_) => return,
    };
    *wait_ms = wait_ms.saturating_sub(waited_ms);
}
