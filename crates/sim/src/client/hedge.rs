//! Stalled reads of a client, and the two rules about them: another copy is read in time, and slow nodes are
//! read last.

use std::collections::BTreeSet;

use tiffin_session::{NeedId, ReadResult};
use tiffin_types::{Location, SegmentId};

use super::{ClientEvent, Kind, SessionId};
use crate::{
    coverage::Point,
    transfer::{Order, TransferId},
    world::{Time, World},
};

/// A read through a socket in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedRead {
    transfer: TransferId,
    item: usize,
    segment: SegmentId,
    began: Time,
    /// Units that had arrived at the last check.
    units: u32,
}

impl World {
    /// The simulated time in the unit of sessions.
    pub(crate) fn now_us(&self) -> u64 {
        self.now * 1000
    }

    /// Records the start of a read.
    pub(super) fn watch_read(&mut self, order: &Order, item: usize, transfer: TransferId) {
        let (now, now_us) = (self.now, self.now_us());
        let Some(it) = self.clients.get_mut(order.client) else { return };
        let Some(session) = it.sessions.get_mut(&order.session) else { return };
        let Kind::Get { get, slow, .. } = &mut session.kind else { return };
        session.tried.insert((item, order.segment));
        // A copy whose read was stopped counts as tried.
        let is_other =
            |it: &&Location| !slow.contains(&it.segment) && !session.tried.contains(&(item, it.segment));
        let others = get.untried(item).iter().filter(is_other).count();
        if slow.contains(&order.segment) {
            self.coverage.hit(Point::SlowRead);
            if others > 0 {
                let what = || format!("{} is slow and was read before {others} other copies", order.segment);
                self.oracle.fail("p7", what);
            }
        }
        if get.reads(item) > 1 {
            self.coverage.hit(Point::ReadHedged);
        }
        if self.transfers.get(&transfer).is_none_or(|it| !it.socket) {
            return;
        }
        it.pace.begins(order.segment, now_us);
        let left_us = session.deadline.saturating_sub(now) * 1000;
        get.watch(order.need, now_us, it.pace.stall_us(order.segment, left_us));
        let read = WatchedRead { transfer, item, segment: order.segment, began: now, units: 0 };
        session.reads.insert(order.need, read);
    }

    /// Schedules the next check for stalled reads.
    pub(super) fn schedule_stall_check(&mut self, client: usize, id: SessionId) {
        let now = self.now;
        let session = self.clients.get_mut(client).and_then(|it| it.sessions.get_mut(&id));
        let Some(session) = session else { return };
        let Kind::Get { get, .. } = &session.kind else { return };
        let Some(due) = get.due_us().map(|it| it.div_ceil(1000)) else { return };
        if due >= session.deadline || session.stall_check_at.is_some_and(|it| now < it && it <= due) {
            return;
        }
        let due = due.max(now + 1);
        session.stall_check_at = Some(due);
        self.client_at(due - now, client, ClientEvent::CheckStalls(id));
    }

    /// Checks whether reads have made progress.
    pub(super) fn check_stalls(&mut self, client: usize, id: SessionId) {
        let now_us = self.now_us();
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(session) = it.sessions.get_mut(&id) else { return };
        let Kind::Get { get, .. } = &mut session.kind else { return };
        for (need, read) in &mut session.reads {
            let units = self.transfers.get(&read.transfer).map_or(0, |it| it.units_done());
            if std::mem::replace(&mut read.units, units) != units {
                get.progressed(*need, now_us);
            }
        }
        for segment in get.tick(now_us) {
            self.coverage.hit(Point::ReadStalled);
            it.pace.stalled(segment, now_us);
        }
        self.drive(client, id);
    }

    /// Stops a read before another one begins.
    pub(super) fn stop_read(&mut self, client: usize, id: SessionId, need: NeedId) {
        let session = self.clients.get_mut(client).and_then(|it| it.sessions.get_mut(&id));
        let Some(read) = session.and_then(|it| it.reads.get(&need).copied()) else { return };
        self.coverage.hit(Point::ReadStopped);
        self.cancel_transfer(read.transfer);
        self.session_read(client, id, read.transfer, need, ReadResult::Yielded);
    }

    /// Records the end of a read; an answer of the node is a sample of its speed.
    pub(super) fn read_ended(&mut self, client: usize, id: SessionId, need: NeedId, result: &ReadResult) {
        let now_us = self.now_us();
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(session) = it.sessions.get_mut(&id) else { return };
        let Some(read) = session.reads.remove(&need) else { return };
        let Kind::Get { get, .. } = &session.kind else { return };
        if matches!(result, ReadResult::Valid | ReadResult::Stale) {
            let is_late = get.is_stalled(need);
            it.pace.answered(read.segment, now_us - read.began * 1000, is_late, now_us);
            if get.reads(read.item) > 1 && !is_late {
                self.coverage.hit(Point::HedgeWon);
            }
        }
    }

    /// The deadline of a get passed. It must not have waited for one copy all the time while another was
    /// untried.
    pub(super) fn check_hedged(&mut self, client: usize, id: SessionId) {
        let now = self.now;
        let Some(it) = self.clients.get(client) else { return };
        let Some(session) = it.sessions.get(&id) else { return };
        let Kind::Get { get, .. } = &session.kind else { return };
        // The client has half of the remaining time for hedging, and is not checked while it is stopped
        // itself.
        let is_neglected = |(need, read): &(&NeedId, &WatchedRead)| {
            let waited = now.saturating_sub(read.began);
            let left = session.deadline.saturating_sub(read.began);
            // A client that found a copy stale asks the master before it tries the next.
            let copies_tried = session.tried.iter().filter(|it| it.0 == read.item).count();
            let has_bytes = self.transfers.get(&read.transfer).is_some_and(|it| it.units_done() > 0);
            2 * waited > left + 4
                && it.stopped_until <= read.began
                && !has_bytes
                && get.is_awaited(**need)
                && get.reads(read.item) == 1
                && copies_tried == 1
                && !get.untried(read.item).is_empty()
        };
        if let Some((_, read)) = session.reads.iter().find(is_neglected) {
            let (segment, waited) = (read.segment, now - read.began);
            let what = || format!("for {waited} ms only {segment} was read, although there was another copy");
            self.oracle.fail("p7", what);
        }
    }

    /// The nodes that are slow for a client.
    pub(crate) fn slow_for(&self, client: usize) -> BTreeSet<SegmentId> {
        self.clients.get(client).map(|it| it.pace.slow(self.now_us())).unwrap_or_default()
    }
}
