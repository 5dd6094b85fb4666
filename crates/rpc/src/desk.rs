//! Who reads the answers of a connection, and who gets them.
//!
//! There is one seat at which a stream is read. While nobody sits there and answers are to come, a task
//! watches the stream; it sits down when something has come in. A thread that waits for an answer sits down
//! itself while the seat is free, makes the task look away, waits in the kernel, and hands out whatever
//! comes, to others too, until it has its own answer. So that answer takes no detour over another thread.
//! When it gets up it wakes another thread that waits, which takes the seat, or lets the task watch again
//! where an answer is still to come. Where none is, the task goes on looking away, but for the end: most
//! calls of a thread find it so.
//!
//! **Invariant:** whoever gets up has handed out every whole message that was read, and has seen to it
//! that somebody watches if anybody waits: a thread that waits itself, or the task. That is decided under the
//! seat's lock, and so is sitting down; who waits is in the table before the seat is looked at.
//!
//! **Invariant:** an id is in the table exactly as long as somebody cares for the answer, or is to take it
//! out of the stream. An answer to nobody is ignored; it may lie in the stream until something else is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tiffin_core::RequestId;
use tiffin_core::message::{Reason, Refusal, Reply, Request};
use tiffin_proto::Incoming;
use tokio::sync::{mpsc, oneshot};

use crate::courtesy::step_aside;
use crate::link::Ended;
use crate::watch::Readable;
use crate::{Inbox, Stream};

/// How long a thread waits for the seat before it waits as a task does.
const SEAT_TIME_MAX: Duration = Duration::from_micros(50);

/// What to do with an answer that came after its call was given up.
pub(crate) type Late = Box<dyn FnOnce(Reply) + Send>;

/// Requests of the peer, to whoever answers them.
pub(crate) type Asked = mpsc::Sender<(RequestId, Request)>;

#[derive(Debug)]
pub(crate) struct Desk {
    /// Who waits for which answer; nothing when there will be no more answers. Held for one look into it, and
    /// taken under the lock of `seat` or without it, never the other way round.
    table: Mutex<Option<Table>>,
    seat: Mutex<Seat>,
    readable: Arc<Readable>,
    asked: Option<Asked>,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) tasks: BTreeMap<RequestId, oneshot::Sender<Reply>>,
    pub(crate) threads: BTreeMap<RequestId, Arc<Slot>>,
    /// Calls that were given up, but whose answers matter.
    pub(crate) late: BTreeMap<RequestId, Late>,
    /// What was said without waiting for the answer. It comes all the same, and somebody must take it out.
    pub(crate) told: BTreeSet<RequestId>,
}

#[derive(Debug)]
struct Seat {
    state: SeatState,
    /// The task was told to look away.
    is_silent: bool,
    /// It was told of something while somebody else sat here, perhaps of the end, and is not told again.
    was_told: bool,
}

#[derive(Debug)]
enum SeatState {
    Free(Box<Inbox>),
    Taken,
    Ended,
}

/// Where a thread finds its answer.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SlotState {
    answer: Option<Reply>,
    /// The seat was left to this thread.
    is_called: bool,
    has_ended: bool,
}

/// How a thread's wait ended.
#[derive(Debug)]
pub(crate) enum Waited {
    Answered(Reply),
    Ended,
    TimedOut,
}

/// Somebody who sits at the seat, until this is dropped.
struct Sitting<'a> {
    desk: &'a Desk,
    inbox: Option<Box<Inbox>>,
}

impl Table {
    /// Whether an answer is to come that no thread waits for.
    fn awaits_any(&self) -> bool {
        !(self.tasks.is_empty() && self.late.is_empty() && self.told.is_empty())
    }
}

impl Desk {
    pub(crate) fn new(inbox: Inbox, asked: Option<Asked>) -> Arc<Self> {
        let readable = Arc::clone(inbox.readable());
        let seat = Seat { state: SeatState::Free(Box::new(inbox)), is_silent: false, was_told: false };
        Arc::new(Self { table: Mutex::new(Some(Table::default())), seat: Mutex::new(seat), readable, asked })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Option<Table>> {
        // Nothing in the table can be half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out what comes in, whenever no thread does, until the connection ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        // Something may have come in together with the welcome.
        if let Some(mut sitting) = self.sit_down(false)
            && let Err(ended) = sitting.hand_out()
        {
            return sitting.end(&ended);
        }
        while let Ok(mut ready) = self.readable.ready().await {
            let Some(mut sitting) = self.sit_down(false) else {
                if self.has_ended() {
                    return;
                }
                // A thread reads. When it gets up, it has the system tell of this again.
                ready.clear_ready();
                continue;
            };
            match sitting.read(Stream::try_read) {
                Ok(is_short) if is_short && self.readable.tells_ends() => ready.clear_ready(),
                Ok(_) => {}
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(ended) => return sitting.end(&ended),
            }
        }
        // The runtime is shutting down.
        self.end();
    }

    /// Waits in this thread for the answer that goes to `slot`.
    pub(crate) fn wait(&self, slot: &Slot, deadline: Instant) -> Waited {
        loop {
            if let Some(sitting) = self.sit_down(true) {
                return sitting.wait(slot, deadline);
            }
            if let Some(waited) = slot.wait(deadline) {
                return waited;
            }
        }
    }

    /// Makes sure that somebody watches: called when something is in the table that no thread waits for.
    pub(crate) fn attend(&self) {
        let mut seat = self.seat();
        if matches!(seat.state, SeatState::Free(_)) {
            self.call_next(&mut seat);
        }
    }

    /// Reads in this thread until something has come that `is_done` looks for, or for a moment, unless
    /// somebody else goes on reading. It is handed out as ever.
    pub(crate) fn linger(&self, until: Instant, is_done: impl Fn() -> bool) {
        let Some(mut sitting) = self.sit_down_soon(&is_done) else { return };
        let mut handed_out = sitting.hand_out();
        while !is_done() {
            let read = |stream: &Stream, buffer: &mut Vec<u8>| stream.read_until(buffer, until);
            match handed_out.and_then(|()| sitting.read(read)) {
                Ok(_) => handed_out = Ok(()),
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::TimedOut => return,
                Err(ended) => return sitting.end(&ended),
            }
        }
    }

    /// Makes sure that somebody watches: called by a thread that is no longer in the table, because the
    /// seat may have been left to it.
    pub(crate) fn leave(&self) {
        let mut seat = self.seat();
        if matches!(seat.state, SeatState::Free(_)) && seat.is_silent {
            self.call_next(&mut seat);
        }
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        // A panic elsewhere drops a `Sitting`, which leaves the seat as it should be.
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        matches!(self.seat().state, SeatState::Ended)
    }

    fn sit_down(&self, is_thread: bool) -> Option<Sitting<'_>> {
        let mut seat = self.seat();
        match std::mem::replace(&mut seat.state, SeatState::Taken) {
            SeatState::Free(inbox) => {
                if is_thread && !seat.is_silent {
                    // If that fails, the task is woken for nothing, and no more.
                    seat.is_silent = self.readable.be_silent().is_ok();
                }
                Some(Sitting { desk: self, inbox: Some(inbox) })
            }
            other => {
                seat.state = other;
                seat.was_told |= !is_thread;
                None
            }
        }
    }

    /// Sits down as soon as the seat is free, if that is soon: the task gets up as soon as it has read.
    fn sit_down_soon(&self, is_done: impl Fn() -> bool) -> Option<Sitting<'_>> {
        let from = Instant::now();
        loop {
            let sitting = self.sit_down(true);
            if sitting.is_some() || is_done() || from.elapsed() > SEAT_TIME_MAX {
                return sitting;
            }
            if !step_aside() {
                std::hint::spin_loop();
            }
        }
    }

    /// Wakes a thread that waits, or else lets the task watch if anything is to come, or may have come.
    fn call_next(&self, seat: &mut Seat) {
        let table = self.table();
        let Some(known) = table.as_ref() else { return };
        if let Some(slot) = known.threads.values().next().cloned() {
            drop(table);
            return slot.change(|state| state.is_called = true);
        }
        let is_awaited = known.awaits_any() || self.asked.is_some();
        drop(table);
        if seat.is_silent && (is_awaited || seat.was_told) {
            seat.is_silent = self.readable.speak().is_err();
            seat.was_told = seat.is_silent;
        }
    }

    /// There will be no more answers.
    fn end(&self) {
        let mut seat = self.seat();
        let before = std::mem::replace(&mut seat.state, SeatState::Ended);
        // So that the task notices, if it is not the one that says so.
        let _gone = self.readable.speak();
        drop(seat);
        let table = self.table().take();
        // What is left is dropped outside the locks: it may be anybody's code.
        drop(before);
        let Some(table) = table else { return };
        for slot in table.threads.values() {
            slot.change(|state| state.has_ended = true);
        }
        drop(table);
    }

    /// Hands an answer to whoever cares.
    fn answer(&self, id: RequestId, reply: Reply) {
        let mut table = self.table();
        let Some(known) = table.as_mut() else { return };
        if let Some(slot) = known.threads.remove(&id) {
            // Under the table's lock, so that whoever is not in the table any more finds its answer.
            slot.change(|state| state.answer = Some(reply));
        } else if let Some(task) = known.tasks.remove(&id) {
            // Its place is given up under this lock, so the caller either takes the answer or finds it there.
            let _taken = task.send(reply);
        } else if let Some(late) = known.late.remove(&id) {
            drop(table);
            late(reply);
        } else {
            known.told.remove(&id);
        }
    }
}

impl Sitting<'_> {
    /// Reads once, and hands out all that is whole then; whether less came than there was room for.
    fn read(&mut self, read: impl FnOnce(&Stream, &mut Vec<u8>) -> io::Result<usize>) -> Result<bool, Ended> {
        let Some(inbox) = &mut self.inbox else { return Err(Ended::Closed) };
        let is_short = inbox.read(read)?;
        self.hand_out()?;
        Ok(is_short)
    }

    /// Hands out all messages that are whole.
    fn hand_out(&mut self) -> Result<(), Ended> {
        let Some(inbox) = &mut self.inbox else { return Err(Ended::Closed) };
        while let Some(message) = inbox.pop()? {
            match message {
                Incoming::Reply(id, reply) => self.desk.answer(id, reply),
                Incoming::Request(id, request) => {
                    let refusal = match &self.desk.asked {
                        None => refusal(Reason::NotForYou, "this side answers no requests"),
                        Some(asked) => match asked.try_send((id, request)) {
                            Ok(()) => continue,
                            // Waiting here would hold up the very answers that make room.
                            Err(_) => refusal(Reason::Busy, "too many requests at once"),
                        },
                    };
                    inbox.outbox().reply(id, &refusal);
                }
            }
        }
        Ok(())
    }

    /// Reads until the answer has come.
    fn wait(mut self, slot: &Slot, deadline: Instant) -> Waited {
        let mut handed_out = self.hand_out();
        loop {
            if let Some(waited) = slot.look() {
                return waited;
            }
            let read = |stream: &Stream, buffer: &mut Vec<u8>| stream.read_until(buffer, deadline);
            match handed_out.and_then(|()| self.read(read)) {
                Ok(_) => handed_out = Ok(()),
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    return slot.look().unwrap_or(Waited::TimedOut);
                }
                Err(ended) => {
                    self.end(&ended);
                    return slot.look().unwrap_or(Waited::Ended);
                }
            }
        }
    }

    /// The connection is at its end.
    fn end(mut self, ended: &Ended) {
        if let Some(inbox) = self.inbox.take() {
            inbox.end(ended);
        }
    }
}

impl Drop for Sitting<'_> {
    fn drop(&mut self) {
        match self.inbox.take() {
            Some(inbox) if !std::thread::panicking() => {
                let mut seat = self.desk.seat();
                seat.state = SeatState::Free(inbox);
                self.desk.call_next(&mut seat);
            }
            // Dropping it closes the connection.
            inbox => {
                drop(inbox);
                self.desk.end();
            }
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        // Nothing in here can be half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if it has come.
    pub(crate) fn take(&self) -> Option<Reply> {
        self.lock().answer.take()
    }

    fn change(&self, change: impl FnOnce(&mut SlotState)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    fn look(&self) -> Option<Waited> {
        let mut state = self.lock();
        match state.answer.take() {
            Some(reply) => Some(Waited::Answered(reply)),
            None => state.has_ended.then_some(Waited::Ended),
        }
    }

    /// Waits while somebody else reads. Nothing: the seat may be free now.
    fn wait(&self, deadline: Instant) -> Option<Waited> {
        let mut state = self.lock();
        loop {
            if let Some(reply) = state.answer.take() {
                return Some(Waited::Answered(reply));
            }
            if state.has_ended {
                return Some(Waited::Ended);
            }
            if std::mem::take(&mut state.is_called) {
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(Waited::TimedOut);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tasks, threads, late) = (self.tasks.len(), self.threads.len(), self.late.len());
        out.debug_struct("Table")
            .field("tasks", &tasks)
            .field("threads", &threads)
            .field("late", &late)
            .finish()
    }
}

fn refusal(reason: Reason, message: &str) -> Reply {
    Reply::Refused(Refusal { reason, message: message.to_owned() })
}
