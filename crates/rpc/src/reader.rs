//! Which thread reads the answers of a connection, and which caller gets them.
//!
//! One thread at a time reads the stream: it has the reader role. While no thread has it and answers are to
//! come, a task watches the stream, and takes the role when something has come in. A caller that may block
//! its thread takes the role itself while it is free and mutes the task. It waits in the kernel, and delivers
//! whatever comes, to other callers too, until its own answer is there. That answer then crosses no other
//! thread. A caller that gives the role back lets the task watch again if an answer is still to come. If none
//! is, the task stays muted for everything but the end of the stream: most blocking calls find it so.
//!
//! **Invariant:** a reader that gives its role back has delivered every whole message that was read, and lets
//! the task watch if any call waits. That is decided under the lock of `role`, as is taking the role; a call
//! is in the table before the role is looked at.
//!
//! **Invariant:** an id is in the table exactly as long as its answer is wanted, or is to be read and
//! ignored. An answer without an id there is ignored; it may stay in the stream until the next request.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tiffin_core::RequestId;
use tiffin_core::message::{Reason, Refusal, Reply};
use tiffin_proto::Incoming;
use tokio::sync::oneshot;

use crate::courtesy::step_aside;
use crate::link::Ended;
use crate::watch::Readable;
use crate::{Inbox, Stream};

/// How long a thread spins for the reader role before it waits as a task does.
const ROLE_TIME_MAX: Duration = Duration::from_micros(50);

/// The function that gets an answer which came after its call was given up.
pub(crate) type Late = Box<dyn FnOnce(Reply) + Send>;

/// Reads the answers of one connection, in a task or in a caller's thread.
#[derive(Debug)]
pub(crate) struct SharedReader {
    /// The calls that wait; nothing when there will be no more answers. Held for one look into it, and
    /// locked after `role` or without it, never before.
    table: Mutex<Option<Table>>,
    role: Mutex<Role>,
    readable: Arc<Readable>,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) calls: BTreeMap<RequestId, oneshot::Sender<Reply>>,
    /// Calls that were given up, but whose answers matter.
    pub(crate) late: BTreeMap<RequestId, Late>,
    /// Requests whose answers are read and ignored.
    pub(crate) told: BTreeSet<RequestId>,
}

#[derive(Debug)]
struct Role {
    state: RoleState,
    /// The task was muted.
    is_silent: bool,
    /// The task was woken while a thread had the role, perhaps by the end, and is not woken for that again.
    was_told: bool,
}

#[derive(Debug)]
enum RoleState {
    Free(Box<Inbox>),
    Taken,
    Ended,
}

/// The reader role, until this is dropped.
struct Reading<'a> {
    reader: &'a SharedReader,
    inbox: Option<Box<Inbox>>,
}

impl Table {
    fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.late.is_empty() && self.told.is_empty()
    }
}

impl SharedReader {
    pub(crate) fn new(inbox: Inbox) -> Arc<Self> {
        let readable = Arc::clone(inbox.readable());
        let role = Role { state: RoleState::Free(Box::new(inbox)), is_silent: false, was_told: false };
        Arc::new(Self { table: Mutex::new(Some(Table::default())), role: Mutex::new(role), readable })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Option<Table>> {
        // Nothing in the table can be half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers what comes in, whenever no thread does, until the connection ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        // Something may have come in together with the welcome.
        if let Some(mut reading) = self.take_role(false)
            && let Err(ended) = reading.deliver()
        {
            return reading.end(&ended);
        }
        while let Ok(mut ready) = self.readable.ready().await {
            let Some(mut reading) = self.take_role(false) else {
                if self.has_ended() {
                    return;
                }
                // A thread reads. When it gives the role back, it has the system report this again.
                ready.clear_ready();
                continue;
            };
            match reading.read(Stream::try_read) {
                Ok(is_short) if is_short && self.readable.tells_ends() => ready.clear_ready(),
                Ok(_) => {}
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(ended) => return reading.end(&ended),
            }
        }
        // The runtime is shutting down.
        self.end();
    }

    /// Lets the task watch if no thread reads: called when the table has something that no thread waits for.
    pub(crate) fn attend(&self) {
        let mut role = self.role();
        if matches!(role.state, RoleState::Free(_)) {
            self.unmute(&mut role);
        }
    }

    /// Reads in this thread until `is_done`, or until the time is up, unless another thread goes on reading.
    /// What comes in is delivered as ever.
    pub(crate) fn linger(&self, until: Instant, is_done: impl Fn() -> bool) {
        let Some(mut reading) = self.take_role_soon(&is_done) else { return };
        let mut delivered = reading.deliver();
        while !is_done() {
            let read = |stream: &Stream, buffer: &mut Vec<u8>| stream.read_until(buffer, until);
            match delivered.and_then(|()| reading.read(read)) {
                Ok(_) => delivered = Ok(()),
                Err(Ended::Broken(error)) if error.kind() == io::ErrorKind::TimedOut => return,
                Err(ended) => return reading.end(&ended),
            }
        }
    }

    fn role(&self) -> MutexGuard<'_, Role> {
        // A panic elsewhere drops a `Reading`, which leaves the role as it should be.
        self.role.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        matches!(self.role().state, RoleState::Ended)
    }

    fn take_role(&self, is_thread: bool) -> Option<Reading<'_>> {
        let mut role = self.role();
        match std::mem::replace(&mut role.state, RoleState::Taken) {
            RoleState::Free(inbox) => {
                if is_thread && !role.is_silent {
                    // If that fails, the task is woken for nothing, and no more.
                    role.is_silent = self.readable.be_silent().is_ok();
                }
                Some(Reading { reader: self, inbox: Some(inbox) })
            }
            other => {
                role.state = other;
                role.was_told |= !is_thread;
                None
            }
        }
    }

    /// Takes the role as soon as it is free, if that is soon: the task gives it back as soon as it has read.
    fn take_role_soon(&self, is_done: impl Fn() -> bool) -> Option<Reading<'_>> {
        let from = Instant::now();
        loop {
            let reading = self.take_role(true);
            if reading.is_some() || is_done() || from.elapsed() > ROLE_TIME_MAX {
                return reading;
            }
            if !step_aside() {
                std::hint::spin_loop();
            }
        }
    }

    /// Lets the task watch if anything is to come, or may have come.
    fn unmute(&self, role: &mut Role) {
        let is_awaited = match self.table().as_ref() {
            Some(table) => !table.is_empty(),
            None => return,
        };
        if role.is_silent && (is_awaited || role.was_told) {
            role.is_silent = self.readable.speak().is_err();
            role.was_told = role.is_silent;
        }
    }

    /// There will be no more answers.
    fn end(&self) {
        let mut role = self.role();
        let before = std::mem::replace(&mut role.state, RoleState::Ended);
        // So that the task notices, if it is not the caller.
        let _gone = self.readable.speak();
        drop(role);
        let table = self.table().take();
        // What is left is dropped outside the locks: it may run code of callers.
        drop((before, table));
    }

    /// Delivers an answer to its call.
    fn answer(&self, id: RequestId, reply: Reply) {
        let mut table = self.table();
        let Some(known) = table.as_mut() else { return };
        if let Some(call) = known.calls.remove(&id) {
            // A call gives up under this lock, so the caller either takes the answer or finds it there.
            let _taken = call.send(reply);
        } else if let Some(late) = known.late.remove(&id) {
            drop(table);
            late(reply);
        } else {
            known.told.remove(&id);
        }
    }
}

impl Reading<'_> {
    /// Reads once, and delivers all that is whole then; whether less came than there was room for.
    fn read(&mut self, read: impl FnOnce(&Stream, &mut Vec<u8>) -> io::Result<usize>) -> Result<bool, Ended> {
        let Some(inbox) = &mut self.inbox else { return Err(Ended::Closed) };
        let is_short = inbox.read(read)?;
        self.deliver()?;
        Ok(is_short)
    }

    /// Delivers all messages that are whole.
    fn deliver(&mut self) -> Result<(), Ended> {
        let Some(inbox) = &mut self.inbox else { return Err(Ended::Closed) };
        while let Some(message) = inbox.pop()? {
            match message {
                Incoming::Reply(id, reply) => self.reader.answer(id, reply),
                Incoming::Request(id, _) => {
                    let message = "this side answers no requests".to_owned();
                    let refusal = Refusal { reason: Reason::NotForYou, message };
                    inbox.outbox().reply(id, &Reply::Refused(refusal));
                }
            }
        }
        Ok(())
    }

    /// The connection is at its end.
    fn end(mut self, ended: &Ended) {
        if let Some(inbox) = self.inbox.take() {
            inbox.end(ended);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        match self.inbox.take() {
            Some(inbox) if !std::thread::panicking() => {
                let mut role = self.reader.role();
                role.state = RoleState::Free(inbox);
                self.reader.unmute(&mut role);
            }
            // Dropping it closes the connection.
            inbox => {
                drop(inbox);
                self.reader.end();
            }
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (calls, late, told) = (self.calls.len(), self.late.len(), self.told.len());
        out.debug_struct("Table").field("calls", &calls).field("late", &late).field("told", &told).finish()
    }
}
