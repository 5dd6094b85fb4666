//! Streams: samples in the order in which they were put, for consumer groups to pull.
//!
//! A stream is nothing beside its samples: a sample that names one is in it from its commit on, at the place
//! that its generation has, and leaves it when it is consumed or taken away. So an append is the put itself
//! and cannot be lost between the two; and what a stream is made of is in writing on the nodes, beside each
//! sample, from where another life of the master has it again. A pull is a lease of whatever is next: what a
//! consumer has pulled comes again to its group when that lease ends without an acknowledgement.
//!
//! **Invariant:** a sample is given to one client of a group at a time, and to none after the group's
//! acknowledgement.
//! **Invariant:** a stream has at most as many samples as its high mark says, those counted that are about
//! to be put.
//! **Invariant:** a name that a group has acknowledged is used up: a put that is repeated does not bring the
//! sample back, for as long as the stream remembers.
//!
//! Marks, ends and counts live in the master's memory.

mod books;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use books::most_in_flight;
pub(super) use books::{StreamIndex, Streams};

use super::{
    Effect, Master, Op, OpId, Visitor,
    catalog::{NamespaceIndex, ObjectIndex},
    confirm::Answer,
    refuse,
};
use crate::{
    ConnId, Generation, OWNER_BYTES_MAX, RequestId, Tick,
    marks::SampleMarks,
    message::{
        Backlog, Cause, DeletedMatching, EndStream, Granted, LeaseOutcome, Leased, OpenStream, Pull, Pulled,
        PutOptions, Reason, Refusal, Reply, StreamEnd,
    },
    sabotage::sabotaged,
};

/// Samples that one pull gives.
const PULL_ITEMS_MAX: usize = 1 << 12;
/// Bytes of their names, together.
const PULL_NAMES_MAX: usize = 1 << 22;

/// A pull that waits.
#[derive(Debug)]
pub(super) struct Pulling {
    pub(super) conn: ConnId,
    id: RequestId,
    visitor: Arc<Visitor>,
    stream: StreamIndex,
    pull: Pull,
    deadline: Tick,
}

impl Pulling {
    pub(super) fn is_of(&self, conn: ConnId, id: RequestId) -> bool {
        (self.conn, self.id) == (conn, id)
    }

    /// It waits no longer than until then.
    pub(super) fn end_at(&mut self, at: Tick) {
        self.deadline = self.deadline.min(at);
    }
}

/// What there is for a pull now.
enum Next {
    /// It waits.
    Nothing,
    Items(Vec<Generation>),
    End(StreamEnd),
}

impl Master {
    pub(super) fn open_stream(&mut self, visitor: &Visitor, open: OpenStream) -> Reply {
        let index = match self.stream_of(visitor, &open.name) {
            Ok(index) => index,
            Err(refusal) => return Reply::Refused(refusal),
        };
        let Some(stream) = self.streams.stir(index) else { return no_stream() };
        let before = open.attach.as_ref().map(|it| stream.attach(&it.group, visitor.client, it.window));
        let limits = open.limits.unwrap_or_else(|| stream.limits());
        let only_asks = open.limits.is_none() && open.attach.is_none();
        if let Some(problem) = stream
            .problem(limits)
            .filter(|_| !only_asks)
            .filter(|_| !sabotaged!(self.config.sabotage, AnyWindow))
        {
            if let (Some(attach), Some(before)) = (open.attach, before) {
                stream.unattach(&attach.group, visitor.client, before);
            }
            return refuse(Reason::Invalid, &format!("stream `{}`: {problem}", open.name));
        }
        if open.limits.is_some() {
            stream.open(limits);
        }
        let granted = self.room.stream_granted(index);
        _ = stream.admits(granted);
        let stat = stream.stat(granted);
        // Who waits for it may have its turn.
        self.room.note_change();
        Reply::Stream(stat)
    }

    pub(super) fn end_stream(&mut self, conn: ConnId, id: RequestId, visitor: &Visitor, end: EndStream) {
        let answer = |master: &mut Self, reply| master.effects.push_back(Effect::Reply(conn, id, reply));
        let index = match self.stream_of(visitor, &end.name) {
            Ok(index) => index,
            Err(refusal) => return answer(self, Reply::Refused(refusal)),
        };
        let Some(stream) = self.streams.stir(index) else { return answer(self, no_stream()) };
        let dropped = || format!("the stream was dropped by `{}`", visitor.label);
        stream.finish(end.failure.or_else(|| end.drop.then(dropped)));
        self.room.note_change();
        if !end.drop {
            let stat = stream.stat(self.room.stream_granted(index));
            return answer(self, Reply::Stream(stat));
        }
        let objects = stream.objects();
        let matching = DeletedMatching { count: objects.len() as u64, unconfirmed: Vec::new() };
        let mut gone = Vec::new();
        for object in objects {
            let replicas = self.take_out(object, Cause::Deleted, &visitor.label);
            gone.extend(replicas.into_iter().map(|replica| (0, replica)));
        }
        let deadline = Some(self.now.after(end.wait_ms));
        self.confirm(conn, id, Answer::Matching(matching), gone, deadline);
    }

    pub(super) fn pull(&mut self, conn: ConnId, id: RequestId, visitor: &Arc<Visitor>, pull: Pull) {
        let answer = |master: &mut Self, reply| master.effects.push_back(Effect::Reply(conn, id, reply));
        let index = match self.stream_of(visitor, &pull.stream) {
            Ok(index) => index,
            Err(refusal) => return answer(self, Reply::Refused(refusal)),
        };
        if pull.items_max == 0 || pull.items_min > pull.items_max || pull.items_max as usize > PULL_ITEMS_MAX
        {
            let what = format!(
                "{} to {} samples: a pull is for 1 to {PULL_ITEMS_MAX}",
                pull.items_min, pull.items_max
            );
            return answer(self, refuse(Reason::Invalid, &what));
        }
        let most = self.streams.get(index).map_or(u64::MAX, |it| most_in_flight(it.limits()));
        if pull.behind.is_none() && u64::from(pull.items_min) > most {
            let what = format!(
                "{} samples at once: only {most} are sure to be in flight in the stream `{}`",
                pull.items_min, pull.stream
            );
            return answer(self, refuse(Reason::Invalid, &what));
        }
        let op = self.next_op();
        let deadline = self.now.after(pull.wait_ms);
        if let Some(stream) = self.streams.stir(index) {
            if pull.behind.is_none() {
                stream.pulls(&pull.group, visitor.client);
            }
            stream.park(op);
        }
        self.deadlines.list(deadline, op);
        let visitor = Arc::clone(visitor);
        self.ops.insert(op, Op::Pull(Box::new(Pulling { conn, id, visitor, stream: index, pull, deadline })));
    }

    fn stream_of(&mut self, visitor: &Visitor, name: &str) -> Result<StreamIndex, Refusal> {
        if name.is_empty() || name.len() > OWNER_BYTES_MAX {
            let message = format!("a stream's name has 1 to {OWNER_BYTES_MAX} bytes, and not {}", name.len());
            return Err(Refusal { reason: Reason::Invalid, message });
        }
        let index = self.streams.intern(visitor.namespace, name);
        let message = || "there are too many streams".to_owned();
        index.ok_or_else(|| Refusal { reason: Reason::Busy, message: message() })
    }

    /// A sample has its name, and its place in a stream if it is for one.
    pub(super) fn enter_stream(&mut self, object: ObjectIndex, is_new: bool) {
        let Some(found) = self.catalog.get(object) else { return };
        let Some(sample) = found.marks().and_then(|it| it.sample.as_ref()).filter(|it| is_in_stream(it))
        else {
            return;
        };
        let Some(index) = self.streams.intern(found.namespace(), &sample.stream) else { return };
        let what = (object, found.key().clone(), found.len().saturating_add(sample.elsewhere));
        if let Some(stream) = self.streams.stir(index) {
            stream.arrive(found.generation(), what, sample, is_new);
            _ = stream.admits(self.room.stream_granted(index));
        }
    }

    /// A sample is gone.
    pub(super) fn leave_stream(&mut self, object: &super::catalog::Object, cause: Cause) {
        let sample = object.marks().and_then(|it| it.sample.as_ref()).filter(|it| is_in_stream(it));
        let index = sample.and_then(|it| self.streams.find(object.namespace(), &it.stream));
        if let Some(index) = index
            && let Some(stream) = self.streams.stir(index)
        {
            stream.leave(object.generation(), cause == Cause::Consumed);
            _ = stream.admits(self.room.stream_granted(index));
        }
    }

    /// A group is done with a sample.
    pub(super) fn ack_in_stream(
        &mut self,
        visitor: &Visitor,
        name: &str,
        generation: Generation,
        group: &str,
    ) {
        let index = self.streams.find(visitor.namespace, name);
        if let Some(stream) = index.and_then(|index| self.streams.stir(index)) {
            stream.acked(generation, group);
        }
    }

    /// The put of that name that makes another one in the stream void.
    pub(super) fn used_up(
        &self,
        namespace: NamespaceIndex,
        options: &PutOptions,
        key: &crate::Key,
    ) -> Option<Generation> {
        if options.stream.is_empty() || sabotaged!(self.config.sabotage, ForgetConsumed) {
            return None;
        }
        self.streams.get(self.streams.find(namespace, &options.stream)?)?.seen(key)
    }

    /// Whether a stream takes in no more for good, and why.
    pub(super) fn is_over(&self, namespace: NamespaceIndex, options: &PutOptions) -> Option<String> {
        if options.stream.is_empty() {
            return None;
        }
        let stream = self.streams.get(self.streams.find(namespace, &options.stream)?)?;
        let why = stream.end()?.failure.as_ref().map_or_else(String::new, |it| format!(": {it}"));
        Some(format!("the stream `{}` has ended{why}", options.stream))
    }

    /// Makes room in a stream for one more sample, which is then counted; else says how it stands.
    pub(super) fn admit(
        &mut self,
        visitor: &Visitor,
        options: &PutOptions,
        len: u64,
    ) -> Result<Option<StreamIndex>, Backlog> {
        if options.stream.is_empty() {
            return Ok(None);
        }
        let Some(index) = self.streams.intern(visitor.namespace, &options.stream) else {
            return Err(Backlog::default());
        };
        let granted = self.room.stream_granted(index);
        if let Some(stream) = self.streams.stir(index)
            && !sabotaged!(self.config.sabotage, OverfillStreams)
        {
            stream.admits(granted)?;
        }
        self.room.plan_stream(index, len);
        Ok(Some(index))
    }

    /// Looks at pulls again wherever something changed.
    pub(super) fn serve_the_pulling(&mut self) {
        for (index, group, generation) in self.leases.take_put_back() {
            if let Some(stream) = self.streams.stir(index)
                && !sabotaged!(self.config.sabotage, LosePulled)
            {
                stream.put_back(generation, &group);
            }
        }
        while let Some(index) = self.streams.take_stirred() {
            let parked = self.streams.get(index).map(books::Stream::parked).unwrap_or_default();
            // Who came first is served first, within a group.
            let mut blocked = BTreeSet::new();
            for op in parked {
                let Some(Op::Pull(pulling)) = self.ops.get(&op) else { continue };
                let group = pulling.pull.behind.is_none().then(|| pulling.pull.group.clone());
                if group.as_ref().is_some_and(|it| blocked.contains(it)) && pulling.deadline > self.now {
                    continue;
                }
                if !self.look_at_pull(op) {
                    blocked.extend(group);
                }
            }
        }
    }

    /// Answers a pull whose time is up.
    pub(super) fn end_pull(&mut self, op: OpId) {
        if matches!(self.ops.get(&op), Some(Op::Pull(it)) if it.deadline <= self.now) {
            self.look_at_pull(op);
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn forget_pull(&mut self, op: OpId, pulling: &Pulling) {
        self.deadlines.strike(pulling.deadline, op);
        if let Some(stream) = self.streams.stir(pulling.stream) {
            stream.unpark(op);
        }
    }

    /// Answers a pull if there is enough for it, or no more, or its time is up.
    fn look_at_pull(&mut self, op: OpId) -> bool {
        let Some(Op::Pull(pulling)) = self.ops.get(&op) else { return false };
        let (items, end) = match self.next_for(pulling) {
            Next::Nothing => return false,
            Next::Items(items) => (items, None),
            Next::End(end) => (Vec::new(), Some(end)),
        };
        let Some(Op::Pull(pulling)) = self.ops.remove(&op) else { return false };
        self.forget_pull(op, &pulling);
        let mut pulled = self.give(&pulling, &items);
        pulled.end = end;
        self.effects.push_back(Effect::Reply(pulling.conn, pulling.id, Reply::Pulled(pulled)));
        true
    }

    fn next_for(&self, pulling: &Pulling) -> Next {
        let Some(stream) = self.streams.get(pulling.stream) else { return Next::Nothing };
        let pull = &pulling.pull;
        let is_late = pulling.deadline <= self.now;
        if let Some(end) = stream.end().filter(|it| it.failure.is_some()) {
            return Next::End(end.clone());
        }
        let most = (pull.items_max as usize).min(self.leases.left_for(pulling.visitor.client));
        let mut names = 0;
        let few = |it: &Generation| {
            names += stream.entry(*it).map_or(0, |it| it.key.as_bytes().len());
            names <= PULL_NAMES_MAX
        };
        let items: Vec<_> = match pull.behind {
            Some(place) => stream.behind(place).take(most).take_while(few).collect(),
            None => stream.ready(&pull.group).take(most).take_while(few).collect(),
        };
        if items.len() >= (pull.items_min as usize).max(1) || is_late {
            return Next::Items(items);
        }
        match stream.end() {
            None => Next::Nothing,
            Some(_) if !items.is_empty() => Next::Items(items),
            // Who has something itself is told, so that it can acknowledge it; the others may have to do
            // what those who have something leave undone.
            Some(_) if pull.behind.is_some() => Next::End(StreamEnd::default()),
            Some(_) => match stream.out(&pull.group, pulling.visitor.client) {
                (own, outstanding) if own > 0 || outstanding == 0 => {
                    Next::End(StreamEnd { failure: None, outstanding })
                }
                _ => Next::Nothing,
            },
        }
    }

    /// Leases samples to who pulled them, or shows them to who only looks.
    fn give(&mut self, pulling: &Pulling, generations: &[Generation]) -> Pulled {
        let (mut pulled, mut nodes) = (Pulled::default(), BTreeSet::new());
        let looks = pulling.pull.behind.is_some();
        for &generation in generations {
            let entry = self.streams.get(pulling.stream).and_then(|it| it.entry(generation));
            let Some((object, key)) = entry.map(|it| (it.object, it.key.clone())) else { continue };
            let Some(found) = self.catalog.get(object).map(|it| self.found(it, !looks, &mut nodes)) else {
                continue;
            };
            let lease = if looks {
                0
            } else {
                self.catalog.touch(object, self.now, None);
                let group = pulling.pull.group.clone();
                let lease =
                    self.leases.grant_pulled(object, &pulling.visitor, (pulling.stream, group, generation));
                if let Some(stream) = self.streams.stir(pulling.stream)
                    && !sabotaged!(self.config.sabotage, PullTwice)
                {
                    stream.give(generation, &pulling.pull.group, pulling.visitor.client);
                }
                lease
            };
            pulled.keys.push(key);
            pulled.leased.items.push(LeaseOutcome::Leased(Granted { lease, found }));
        }
        pulled.leased = Leased { items: pulled.leased.items, nodes: self.infos(nodes) };
        pulled
    }

    /// What is wrong with the books of streams, if anything is.
    pub(super) fn check_streams(&self) -> Result<(), String> {
        let is_there =
            |object, generation| self.catalog.get(object).is_some_and(|it| it.generation() == generation);
        self.streams.iter().try_for_each(|(_, stream)| stream.check(is_there))
    }
}

fn is_in_stream(sample: &SampleMarks) -> bool {
    !sample.stream.is_empty()
}

fn no_stream() -> Reply {
    refuse(Reason::Busy, "there is no such stream")
}
