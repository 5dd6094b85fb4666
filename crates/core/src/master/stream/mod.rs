//! Streams: samples in the order in which they were put, for consumer groups to pull.
//!
//! A stream consists of its samples only. A sample that names a stream is in it from its commit until it is
//! consumed or removed, in the order of generations. So an append is the put itself, and no failure can
//! separate the two. The nodes store each sample's stream, and the next epoch of the master restores it
//! from them.
//!
//! A pull is a lease of the next samples. When the lease ends without an acknowledgement, the sample is
//! ready for its group again.
//!
//! [`Streams`] owns the streams and the pulls that wait. The master calls it when samples are committed,
//! removed and acknowledged, and after every event ([`Streams::serve`]).
//!
//! **Invariant:** a sample is given to one client of a group at a time, and to none after the group's
//! acknowledgement.
//!
//! **Invariant:** the samples of a stream, including those that are about to be put, do not exceed its high
//! mark.
//!
//! **Invariant:** a name that a group has acknowledged is used up. While the stream remembers it, a
//! repeated put does not bring the sample back.
//!
//! Limits, ends and counters are only in the master's memory.

mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use state::{Stream, most_in_flight};

use super::{
    Caller, OpId,
    catalog::{NamespaceIndex, Object, ObjectIndex},
    context::Context,
    leases::Leases,
    refuse,
};
use crate::{
    ClientId, ConnId, Generation, OWNER_BYTES_MAX, RequestId, Tick,
    attributes::SampleAttributes,
    message::{
        Backlog, Cause, EndStream, Granted, LeaseOutcome, Leased, NamedStream, OpenStream, Pull, Pulled,
        PutOptions, Reason, Refusal, Reply, StreamEnd,
    },
    mutant::is_mutant,
};

/// Maximum number of streams of one master.
const STREAMS_MAX: usize = 1 << 16;
/// Maximum number of samples in one pull.
const PULL_ITEMS_MAX: usize = 1 << 12;
/// Maximum number of bytes of their names, together.
const PULL_NAMES_MAX: usize = 1 << 22;

/// Identifies a stream, in this epoch of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamIndex(u32);

/// Every stream, and every pull that waits.
#[derive(Debug, Default)]
pub(super) struct Streams {
    numbers: BTreeMap<(NamespaceIndex, String), StreamIndex>,
    streams: BTreeMap<StreamIndex, Stream>,
    next: u32,
    /// Streams with a change that pulls may wait for.
    changed: BTreeSet<StreamIndex>,
    pulls: BTreeMap<OpId, Pulling>,
}

/// A pull that waits.
#[derive(Debug)]
struct Pulling {
    conn: ConnId,
    id: RequestId,
    caller: Arc<Caller>,
    stream: StreamIndex,
    pull: Pull,
    deadline: Tick,
}

/// The result of a pull at this time.
enum Next {
    /// The pull waits.
    Nothing,
    Items(Vec<Generation>),
    End(StreamEnd),
}

impl Streams {
    /// The stream of that name, if it is known.
    fn find(&self, namespace: NamespaceIndex, name: &str) -> Option<StreamIndex> {
        self.numbers.get(&(namespace, name.to_owned())).copied()
    }

    /// The stream of that name, created if necessary. `None` if there are too many.
    fn intern(&mut self, namespace: NamespaceIndex, name: &str) -> Option<StreamIndex> {
        if let Some(index) = self.find(namespace, name) {
            return Some(index);
        }
        if self.streams.len() >= STREAMS_MAX {
            let over = self.streams.iter().find(|(_, it)| it.is_over()).map(|it| *it.0)?;
            self.streams.remove(&over);
            self.numbers.retain(|_, it| *it != over);
        }
        self.next += 1;
        let index = StreamIndex(self.next);
        self.numbers.insert((namespace, name.to_owned()), index);
        self.streams.insert(index, Stream::default());
        Some(index)
    }

    /// The stream that a request names.
    fn named(&mut self, caller: &Caller, name: &str) -> Result<StreamIndex, Box<Reply>> {
        if name.is_empty() || name.len() > OWNER_BYTES_MAX {
            let message =
                format!("invalid stream name of {} bytes: it must have 1 to {OWNER_BYTES_MAX}", name.len());
            return Err(Box::new(Reply::Refused(Refusal { reason: Reason::Invalid, message })));
        }
        let index = self.intern(caller.namespace, name);
        index.ok_or_else(|| Box::new(refuse(Reason::Busy, "too many streams: end those that are not needed")))
    }

    /// A stream that is about to change: its pulls are retried.
    fn change(&mut self, index: StreamIndex) -> Option<&mut Stream> {
        self.changed.insert(index);
        self.streams.get_mut(&index)
    }

    /// The first streams, by namespace and name.
    pub(super) fn stats(&self, cx: &Context, limit: usize) -> Vec<NamedStream> {
        let named = self.numbers.iter().filter_map(|((namespace, name), index)| {
            let stat = self.streams.get(index)?.stat(cx.quotas.stream_granted(*index));
            let namespace = cx.catalog.namespace_name(*namespace).to_owned();
            Some(NamedStream { namespace, name: name.clone(), stat })
        });
        named.take(limit).collect()
    }

    /// A client is gone, and consumes no more samples.
    pub(super) fn detach(&mut self, client: ClientId) {
        self.streams.values_mut().for_each(|it| it.detach(client));
    }

    pub(super) fn open(&mut self, cx: &mut Context, caller: &Caller, open: OpenStream) -> Reply {
        let index = match self.named(caller, &open.name) {
            Ok(index) => index,
            Err(reply) => return *reply,
        };
        let Some(stream) = self.change(index) else { return no_stream() };
        let before = open.attach.as_ref().map(|it| stream.attach(&it.group, caller.client, it.window));
        let limits = open.limits.unwrap_or_else(|| stream.limits());
        let only_asks = open.limits.is_none() && open.attach.is_none();
        if let Some(problem) =
            stream.problem(limits).filter(|_| !only_asks).filter(|_| !is_mutant!(cx.config.mutant, AnyWindow))
        {
            if let (Some(attach), Some(before)) = (open.attach, before) {
                stream.unattach(&attach.group, caller.client, before);
            }
            return refuse(Reason::Invalid, &format!("stream `{}`: {problem}", open.name));
        }
        if open.limits.is_some() {
            stream.open(limits);
        }
        let granted = cx.quotas.stream_granted(index);
        _ = stream.admits(granted);
        let stat = stream.stat(granted);
        // Puts into the stream that wait may proceed.
        cx.quotas.note_change();
        Reply::Stream(stat)
    }

    /// Ends a stream. Returns its samples if they must be removed, otherwise the answer.
    pub(super) fn end(
        &mut self,
        cx: &mut Context,
        caller: &Caller,
        end: &EndStream,
    ) -> Result<Vec<ObjectIndex>, Box<Reply>> {
        let index = self.named(caller, &end.name)?;
        let stream = self.change(index).ok_or_else(|| Box::new(no_stream()))?;
        let dropped = || format!("the stream was dropped by `{}`", caller.label);
        stream.finish(end.failure.clone().or_else(|| end.drop.then(dropped)));
        cx.quotas.note_change();
        if end.drop {
            Ok(stream.objects())
        } else {
            Err(Box::new(Reply::Stream(stream.stat(cx.quotas.stream_granted(index)))))
        }
    }

    /// Lets a pull wait. It is answered after this event, if there are samples for it.
    pub(super) fn pull(
        &mut self,
        cx: &mut Context,
        (conn, id): (ConnId, RequestId),
        caller: &Arc<Caller>,
        pull: Pull,
    ) -> Result<(), Box<Reply>> {
        let index = self.named(caller, &pull.stream)?;
        if pull.items_max == 0 || pull.items_min > pull.items_max || pull.items_max as usize > PULL_ITEMS_MAX
        {
            let what = format!(
                "invalid pull of {} to {} samples: it must be for 1 to {PULL_ITEMS_MAX}",
                pull.items_min, pull.items_max
            );
            return Err(Box::new(refuse(Reason::Invalid, &what)));
        }
        let most = self.streams.get(&index).map_or(u64::MAX, |it| most_in_flight(it.limits()));
        if pull.behind.is_none() && u64::from(pull.items_min) > most {
            let what = format!(
                "invalid pull of {} samples: only {most} are guaranteed to be in flight in stream `{}`",
                pull.items_min, pull.stream
            );
            return Err(Box::new(refuse(Reason::Invalid, &what)));
        }
        let op = cx.next_op();
        cx.wait(op, (conn, id), caller, 0)?;
        let deadline = cx.now.after(pull.wait_ms);
        if let Some(stream) = self.change(index) {
            if pull.behind.is_none() {
                stream.pulls(&pull.group, caller.client);
            }
            stream.park(op);
        }
        cx.deadlines.list(deadline, op);
        let caller = Arc::clone(caller);
        self.pulls.insert(op, Pulling { conn, id, caller, stream: index, pull, deadline });
        Ok(())
    }

    /// A sample got its name, and its position in its stream, if it has one.
    pub(super) fn enter(&mut self, cx: &Context, object: ObjectIndex, is_new: bool) {
        let Some(found) = cx.catalog.get(object) else { return };
        let Some(sample) = sample_of(found) else { return };
        let Some(index) = self.intern(found.namespace(), &sample.stream) else { return };
        let what = (object, found.key().clone(), found.len().saturating_add(sample.elsewhere));
        if let Some(stream) = self.change(index) {
            stream.arrive(found.generation(), what, sample, is_new);
            _ = stream.admits(cx.quotas.stream_granted(index));
        }
    }

    /// A sample is gone.
    pub(super) fn leave(&mut self, cx: &Context, object: &Object, cause: Cause) {
        let index = sample_of(object).and_then(|it| self.find(object.namespace(), &it.stream));
        if let Some(index) = index
            && let Some(stream) = self.change(index)
        {
            stream.leave(object.generation(), cause == Cause::Consumed);
            _ = stream.admits(cx.quotas.stream_granted(index));
        }
    }

    /// A group has acknowledged a sample.
    pub(super) fn ack(&mut self, namespace: NamespaceIndex, name: &str, generation: Generation, group: &str) {
        let index = self.find(namespace, name);
        if let Some(stream) = index.and_then(|index| self.change(index)) {
            stream.acked(generation, group);
        }
    }

    /// The earlier put of that name that makes a further one into the stream void.
    pub(super) fn used_up(
        &self,
        cx: &Context,
        namespace: NamespaceIndex,
        options: &PutOptions,
        key: &crate::Key,
    ) -> Option<Generation> {
        if options.stream.is_empty() || is_mutant!(cx.config.mutant, ForgetConsumed) {
            return None;
        }
        self.streams.get(&self.find(namespace, &options.stream)?)?.seen(key)
    }

    /// Whether a stream has ended, and why.
    pub(super) fn is_over(&self, namespace: NamespaceIndex, options: &PutOptions) -> Option<String> {
        if options.stream.is_empty() {
            return None;
        }
        let stream = self.streams.get(&self.find(namespace, &options.stream)?)?;
        let why = stream.end()?.failure.as_ref().map_or_else(String::new, |it| format!(": {it}"));
        Some(format!("the stream `{}` has ended{why}", options.stream))
    }

    /// Counts one more sample that is about to be put into a stream. If the stream is full, returns its
    /// backlog.
    pub(super) fn admit(
        &mut self,
        cx: &mut Context,
        namespace: NamespaceIndex,
        options: &PutOptions,
        len: u64,
    ) -> Result<Option<StreamIndex>, Backlog> {
        if options.stream.is_empty() {
            return Ok(None);
        }
        let Some(index) = self.intern(namespace, &options.stream) else {
            return Err(Backlog::default());
        };
        let granted = cx.quotas.stream_granted(index);
        if let Some(stream) = self.change(index)
            && !is_mutant!(cx.config.mutant, OverfillStreams)
        {
            stream.admits(granted)?;
        }
        cx.quotas.plan_stream(index, len);
        Ok(Some(index))
    }

    /// Retries the pulls of streams that have changed.
    pub(super) fn serve(&mut self, cx: &mut Context, leases: &mut Leases) {
        for (index, group, generation) in leases.take_put_back() {
            if let Some(stream) = self.change(index)
                && !is_mutant!(cx.config.mutant, LosePulled)
            {
                stream.put_back(generation, &group);
            }
        }
        while let Some(index) = self.changed.pop_first() {
            let parked = self.streams.get(&index).map(Stream::parked).unwrap_or_default();
            // First come, first served within a group.
            let mut blocked = BTreeSet::new();
            for op in parked {
                let Some(pulling) = self.pulls.get(&op) else { continue };
                let group = pulling.pull.behind.is_none().then(|| pulling.pull.group.clone());
                if group.as_ref().is_some_and(|it| blocked.contains(it)) && pulling.deadline > cx.now {
                    continue;
                }
                if !self.try_pull(cx, leases, op) {
                    blocked.extend(group);
                }
            }
        }
    }

    /// Whether a namespace has streams.
    pub(super) fn has_any_in(&self, namespace: NamespaceIndex) -> bool {
        let first = self.numbers.range((namespace, String::new())..).next();
        first.is_some_and(|it| it.0.0 == namespace)
    }

    /// Number of pulls that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.pulls.len()
    }

    /// Answers a pull whose deadline has passed.
    pub(super) fn end_pull(&mut self, cx: &mut Context, leases: &mut Leases, op: OpId) {
        if self.pulls.get(&op).is_some_and(|it| it.deadline <= cx.now) {
            self.try_pull(cx, leases, op);
        }
    }

    /// The connection of a pull is closed: it is not answered.
    pub(super) fn forget_pull(&mut self, cx: &mut Context, op: OpId) {
        self.take_pull(cx, op);
    }

    /// A client no longer waits for an answer: its deadline is now.
    pub(super) fn cancel_pull(&mut self, cx: &mut Context, conn: ConnId, id: RequestId) {
        if let Some(op) = cx.waiting.find(conn, id)
            && let Some(pulling) = self.pulls.get_mut(&op)
        {
            pulling.deadline = pulling.deadline.min(cx.now);
            cx.deadlines.list(cx.now, op);
        }
    }

    fn take_pull(&mut self, cx: &mut Context, op: OpId) -> Option<Pulling> {
        let pulling = self.pulls.remove(&op)?;
        cx.waiting.leave(op);
        cx.deadlines.strike(pulling.deadline, op);
        if let Some(stream) = self.change(pulling.stream) {
            stream.unpark(op);
        }
        Some(pulling)
    }

    /// Answers a pull if there are enough samples for it, if the stream has ended, or if its deadline has
    /// passed.
    fn try_pull(&mut self, cx: &mut Context, leases: &mut Leases, op: OpId) -> bool {
        let Some(pulling) = self.pulls.get(&op) else { return false };
        let (items, end) = match self.next_for(cx, leases, pulling) {
            Next::Nothing => return false,
            Next::Items(items) => (items, None),
            Next::End(end) => (Vec::new(), Some(end)),
        };
        let Some(pulling) = self.take_pull(cx, op) else { return false };
        let mut pulled = self.give(cx, leases, &pulling, &items);
        pulled.end = end;
        cx.reply(pulling.conn, pulling.id, Reply::Pulled(pulled));
        true
    }

    fn next_for(&self, cx: &Context, leases: &Leases, pulling: &Pulling) -> Next {
        let Some(stream) = self.streams.get(&pulling.stream) else { return Next::Nothing };
        let pull = &pulling.pull;
        let is_late = pulling.deadline <= cx.now;
        if let Some(end) = stream.end().filter(|it| it.failure.is_some()) {
            return Next::End(end.clone());
        }
        let most = (pull.items_max as usize).min(leases.left_for(cx, &pulling.caller));
        let mut names = 0;
        let few = |it: &Generation| {
            names += stream.entry(*it).map_or(0, |it| it.key.as_bytes().len());
            names <= PULL_NAMES_MAX
        };
        let is_there = |it: &Generation| stream.entry(*it).is_some_and(|it| !is_lost(cx, it.object));
        let items: Vec<_> = match pull.behind {
            Some(place) => stream.behind(place).filter(is_there).take(most).take_while(few).collect(),
            None => stream.ready(&pull.group).filter(is_there).take(most).take_while(few).collect(),
        };
        if items.len() >= (pull.items_min as usize).max(1) || is_late {
            return Next::Items(items);
        }
        match stream.end() {
            None => Next::Nothing,
            Some(_) if !items.is_empty() => Next::Items(items),
            // A client that holds samples learns of the end, so that it can acknowledge them. The others
            // wait, because those samples may become ready again.
            Some(_) if pull.behind.is_some() => Next::End(StreamEnd::default()),
            Some(_) => match stream.out(&pull.group, pulling.caller.client) {
                (own, outstanding) if own > 0 || outstanding == 0 => {
                    Next::End(StreamEnd { failure: None, outstanding })
                }
                _ => Next::Nothing,
            },
        }
    }

    /// Leases samples to the client that pulled them, or only lists them.
    fn give(
        &mut self,
        cx: &mut Context,
        leases: &mut Leases,
        pulling: &Pulling,
        generations: &[Generation],
    ) -> Pulled {
        let (mut pulled, mut nodes) = (Pulled::default(), BTreeSet::new());
        let only_shows = pulling.pull.behind.is_some();
        for &generation in generations {
            let entry = self.streams.get(&pulling.stream).and_then(|it| it.entry(generation));
            let Some((object, key)) = entry.map(|it| (it.object, it.key.clone())) else { continue };
            let Some(found) = cx.catalog.get(object).map(|it| cx.found(it, !only_shows, &mut nodes)) else {
                continue;
            };
            let lease = if only_shows {
                0
            } else {
                cx.catalog.touch(object, cx.now, None);
                let group = pulling.pull.group.clone();
                let from = (pulling.stream, group, generation);
                let bytes = cx.catalog.get(object).map_or(0, Object::len);
                let lease = leases.grant_pulled((object, bytes), &pulling.caller, from);
                if let Some(stream) = self.change(pulling.stream)
                    && !is_mutant!(cx.config.mutant, PullTwice)
                {
                    stream.give(generation, &pulling.pull.group, pulling.caller.client);
                }
                lease
            };
            pulled.keys.push(key);
            pulled.leased.items.push(LeaseOutcome::Leased(Granted { lease, found }));
        }
        pulled.leased = Leased { items: pulled.leased.items, nodes: cx.infos(nodes) };
        pulled
    }

    /// Whether the only stream has that sample.
    #[cfg(test)]
    fn contains(&self, generation: Generation) -> bool {
        self.streams.values().next().is_some_and(|it| it.entry(generation).is_some())
    }

    /// Checks internal consistency.
    pub(super) fn check(&self, cx: &Context) -> Result<(), String> {
        let is_there =
            |object, generation| cx.catalog.get(object).is_some_and(|it| it.generation() == generation);
        self.streams.values().try_for_each(|stream| stream.check(is_there))
    }
}

/// The attributes of a sample that is in a stream.
fn sample_of(object: &Object) -> Option<&SampleAttributes> {
    object.attributes()?.sample.as_deref().filter(|it| !it.stream.is_empty())
}

/// Whether a sample is about to be removed with its lost members. It is protected, so absent ones keep it.
fn is_lost(cx: &Context, object: ObjectIndex) -> bool {
    let is_lost = |it: &Object| it.homes().all(|node| cx.members.is_leaving(node));
    cx.catalog.get(object).is_some_and(is_lost) && !is_mutant!(cx.config.mutant, FindDeparted)
}

fn no_stream() -> Reply {
    refuse(Reason::Busy, "the stream does not exist")
}
