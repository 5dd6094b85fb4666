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
//! [`Reports`](super::objects::reports::Reports) says which requests depend on reports.
//!
//! The registration of a member whose objects are being removed (see [`super::departures`]) is deferred in
//! the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    Context, Notice, Objects, OpId, Party,
    catalog::{NamespaceIndex, NodeIndex},
    connections::Sharer,
    limits::key_bytes,
    members::Member,
    pending_retires::Name,
    refuse,
};
use crate::{
    ConnId, Generation, Location, RequestId, SlotRef, Tick,
    message::{ClientToMaster, Decide, MemberToMaster, Pulled, Reason, Register, Reply, Request},
    mutant::is_mutant,
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

/// The requests that wait for reports, or for the end of a departure.
#[derive(Debug, Default)]
pub(super) struct Parking {
    all: BTreeMap<OpId, Parked>,
}

/// A request that waits for reports.
#[derive(Debug)]
struct Parked {
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

impl Question {
    /// The answer to a request that cannot wait, or not any longer. `None` if its client is gone.
    fn refusal(&self, o: &Objects, conn: ConnId) -> Option<Reply> {
        Some(match self {
            Self::Client(ClientToMaster::Await(_)) => {
                let Some(Party::Client(caller)) = o.cx.connections.get(conn) else { return None };
                Reply::Awaited(Box::new(o.namespace_stat(caller.namespace)))
            }
            // A pull that ends without samples makes no statement about existing ones.
            Self::Client(ClientToMaster::Pull(_)) => Reply::Pulled(Pulled::default()),
            // The client commits at the home node instead.
            Self::Client(ClientToMaster::Publish(it)) => {
                Reply::Published(it.items.iter().map(|_| None).collect())
            }
            Self::Register(_) => {
                refuse(Reason::Unavailable, "the objects of the member are being removed: register again")
            }
            Self::Client(_) | Self::Decide(..) => refuse(Reason::Unavailable, &o.reports.message(&o.cx)),
        })
    }
}

impl Parking {
    /// Number of requests that wait.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How many requests of nodes wait, with written objects that have no name yet.
    pub(super) fn undecided_count(&self) -> usize {
        self.all.values().filter(|it| matches!(it.question, Question::Decide(..))).count()
    }

    /// Defers a client's request that depends on unreported members; otherwise returns it.
    pub(super) fn park(
        &mut self,
        o: &mut Objects,
        (conn, id): (ConnId, RequestId),
        namespace: NamespaceIndex,
        request: ClientToMaster,
    ) -> Option<ClientToMaster> {
        if o.reports.are_complete() {
            return Some(request);
        }
        let Some(wait_ms) = o.reports.wait_ms(&o.cx, namespace, &request) else { return Some(request) };
        let deadline = o.cx.now.after(wait_ms);
        self.park_question(o, (conn, id), Question::Client(request), Some(deadline));
        None
    }

    /// The same for a request of a node.
    pub(super) fn park_decide(
        &mut self,
        o: &mut Objects,
        (conn, id): (ConnId, RequestId),
        node: NodeIndex,
        decide: Decide,
    ) -> Option<Decide> {
        if !o.reports.are_needed_for(&o.cx, node, &decide) {
            give_up_unreported(&mut o.cx, node, &decide);
            return Some(decide);
        }
        self.park_question(o, (conn, id), Question::Decide(node, decide), None);
        None
    }

    pub(super) fn park_question(
        &mut self,
        o: &mut Objects,
        (conn, id): (ConnId, RequestId),
        question: Question,
        deadline: Option<Tick>,
    ) {
        let sharer = match o.cx.connections.get(conn) {
            Some(Party::Client(caller)) => Some(caller.sharer()),
            _ => None,
        };
        let key_bytes = match &question {
            Question::Client(request) => key_bytes(request),
            Question::Decide(..) | Question::Register(_) => 0,
        };
        if !self.may_park(o, sharer, key_bytes) || deadline.is_some_and(|at| at <= o.cx.now) {
            let refusal = question.refusal(o, conn);
            return refusal.into_iter().for_each(|it| o.cx.reply(conn, id, it));
        }
        // An earlier epoch may have named these copies, and they may be evicted and withdrawn before the
        // reply.
        if let Question::Decide(home, decide) = &question {
            let copies = copies_asked_about(&o.cx, *home, decide);
            o.cx.pending_retires.ask(copies.into_iter());
        }
        let op = o.cx.next_op();
        if let Some(deadline) = deadline {
            o.cx.deadlines.list(deadline, op);
        }
        let since = o.cx.now;
        self.all.insert(op, Parked { conn, id, question, sharer, key_bytes, since, deadline });
    }

    /// Whether one more request may be deferred: none of many clients takes all places.
    fn may_park(&self, o: &mut Objects, sharer: Option<Sharer>, key_bytes: usize) -> bool {
        let len = self.all.len();
        if sharer.is_none() || is_mutant!(o.cx.config.mutant, DeferForOne) {
            return len < PARKED_MAX;
        }
        let free = CLIENTS_PARKED_MAX.saturating_sub(len);
        // While there is enough for anybody, they are not counted.
        let own = || self.all.values().filter(|it| it.sharer == sharer);
        let has_place = free > CLIENTS_PARKED_MAX / 2 || own().count() < free * SHARE_OF_FREE;
        let bytes_max = o.cx.config.limits.waiting_client_bytes_max;
        let is_light = key_bytes <= FEW_KEY_BYTES
            || own().map(|it| it.key_bytes).fold(key_bytes, usize::saturating_add) <= bytes_max;
        let may = has_place && is_light;
        o.cx.limits.reports += u64::from(!may);
        may
    }

    /// The deferred requests that continue after a report, in the order in which they do: oldest first.
    /// Requests of clients continue once every member has reported or was given up; requests of nodes once
    /// the members that they depend on have reported, and before those of clients: an earlier epoch may have
    /// stored such an object, and shown it to clients, before its node learned that.
    pub(super) fn resume(&mut self, o: &mut Objects) -> Vec<(ConnId, RequestId, Request)> {
        let has_all = o.reports.are_complete();
        let resumed = self.all.extract_if(.., |_, it| match &it.question {
            Question::Client(_) => has_all,
            Question::Decide(home, decide) => !o.reports.are_needed_for(&o.cx, *home, decide),
            Question::Register(it) => !o.departures.has(it.info.segment),
        });
        let mut resumed: Vec<_> = resumed.collect();
        if !is_mutant!(o.cx.config.mutant, AnswerUndecided) {
            resumed.sort_by_key(|(_, it)| matches!(it.question, Question::Client(_)));
        }
        o.reports.forget_floors();
        let resumed = resumed.into_iter().map(|(op, Parked { conn, id, question, since, deadline, .. })| {
            if let Some(deadline) = deadline {
                o.cx.deadlines.strike(deadline, op);
            }
            let waited_ms = o.cx.now.0.saturating_sub(since.0);
            let request = match question {
                Question::Client(mut request) => {
                    shorten(&mut request, waited_ms);
                    request.into()
                }
                Question::Decide(_, mut decide) => {
                    decide.wait_ms = decide.wait_ms.saturating_sub(waited_ms);
                    MemberToMaster::Decide(decide).into()
                }
                Question::Register(it) => MemberToMaster::Register(it).into(),
            };
            (conn, id, request)
        });
        resumed.collect()
    }

    /// Forgets which copies were withdrawn, except those that a deferred request names.
    pub(super) fn forget_answered(&self, cx: &mut Context) {
        let open = self.all.values().filter_map(|it| match &it.question {
            Question::Decide(home, decide) => Some(copies_asked_about(cx, *home, decide)),
            Question::Client(_) | Question::Register(_) => None,
        });
        let open: BTreeSet<_> = open.flatten().collect();
        cx.pending_retires.forget_answered(&open);
    }

    /// Refuses a deferred request whose deadline has passed.
    pub(super) fn end(&mut self, o: &mut Objects, op: OpId) {
        let is_late = |it: &Parked| it.deadline.is_some_and(|at| at <= o.cx.now);
        if self.all.get(&op).is_some_and(is_late)
            && let Some(Parked { conn, id, question, .. }) = self.all.remove(&op)
            && let Some(refusal) = question.refusal(o, conn)
        {
            o.cx.reply(conn, id, refusal);
        }
    }

    /// A connection is closed: its deferred requests are not answered. An earlier epoch may have stored an
    /// object that a node asks about, so a node whose request is dropped has not reported.
    pub(super) fn forget(&mut self, o: &mut Objects, conn: ConnId) {
        let mut unanswered = BTreeSet::new();
        for (op, parked) in self.all.extract_if(.., |_, it| it.conn == conn) {
            if let Some(deadline) = parked.deadline {
                o.cx.deadlines.strike(deadline, op);
            }
            if let Question::Decide(node, _) = parked.question {
                unanswered.insert(node);
            }
        }
        if unanswered.is_empty() || is_mutant!(o.cx.config.mutant, ForgetUnanswered) {
            return;
        }
        o.reports.expect_again(unanswered);
        o.reports.note_awaited(&mut o.cx);
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        for (op, parked) in self.all.iter_mut().filter(|(_, it)| (it.conn, it.id) == (conn, id)) {
            parked.deadline = parked.deadline.map(|it| it.min(cx.now));
            cx.deadlines.list(cx.now, *op);
        }
    }
}

/// The copies of written objects on members that were given up before they reported. If none of an
/// object's copies is known, it gets no name, and these copies must never count.
fn give_up_unreported(cx: &mut Context, home: NodeIndex, decide: &Decide) {
    if is_mutant!(cx.config.mutant, DecideUnreported) {
        return;
    }
    let mut given_up = Vec::new();
    for it in &decide.items {
        let namespace = cx.catalog.intern(&it.namespace);
        let other = |it: &Location| Some((cx.members.find(it.segment)?, it.slot_ref()));
        let others: Vec<_> = it.item.others.iter().filter_map(other).collect();
        let index = cx.catalog.find(namespace, &it.item.key);
        let is_copy =
            |copy: &(NodeIndex, SlotRef)| *copy == (home, it.item.slot_ref) || others.contains(copy);
        let object = index.and_then(|index| cx.catalog.get(index));
        if object.is_some_and(|it| it.replicas().any(|copy| is_copy(&copy))) {
            continue;
        }
        let name = Arc::new(Name { namespace, key: it.item.key.clone() });
        let lacks = |node| cx.members.get(node).is_some_and(Member::is_absent_and_unreported);
        let absent = others.iter().filter(|(node, _)| lacks(*node));
        given_up.extend(absent.map(|copy| (Arc::clone(&name), *copy)));
    }
    for (name, (node, slot_ref)) in &given_up {
        cx.pending_retires.insert(name, Generation::default(), (*node, *slot_ref));
        cx.owe(*node, &[*slot_ref]);
        let (home, member) = (cx.members.name(home), cx.members.name(*node));
        cx.notice(Notice::PutGivenUp { home, member, key: name.key.clone() });
    }
    if !given_up.is_empty() {
        cx.save();
    }
}

fn copies_asked_about(cx: &Context, home: NodeIndex, decide: &Decide) -> Vec<(NodeIndex, SlotRef)> {
    let copies = decide.items.iter().flat_map(|it| {
        let other = |it: &Location| Some((cx.members.find(it.segment)?, it.slot_ref()));
        it.item.others.iter().filter_map(other).chain([(home, it.item.slot_ref)])
    });
    copies.collect()
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
