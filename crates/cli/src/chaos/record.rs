//! What clients record of their calls, and what it means for the history of a key.
//!
//! A client writes one line before a call and one after it, so that a call of a killed client is known and
//! stays open.

use std::collections::BTreeMap;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tiffin_client::{Error, PutOptions};
use tiffin_history::{Change, Guard, Loss, Operation};
use tiffin_types::Key;

use crate::console::Failure;

/// The names of the nodes: one on the host of the master, two as on other hosts.
pub(crate) const NODES: [&str; 3] = ["near", "far-1", "far-2"];

/// How the objects of a key are stored, and so what can happen to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Two copies, pinned.
    Pair,
    /// One copy in the memory of one node, pinned.
    Single,
    /// One copy that may be evicted.
    Plain,
    /// A sample: protected until it is acknowledged.
    Sample,
    /// One copy in memory and one on the disk of the same node, pinned.
    Disk,
}

/// A key: its round, its class and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct KeyId(pub(crate) u64);

impl KeyId {
    pub(crate) const CLASSES: [Class; 4] = [Class::Pair, Class::Single, Class::Plain, Class::Sample];

    pub(crate) fn new(round: u64, class: Class, index: u64) -> Self {
        Self(round << 16 | (class as u64) << 8 | index)
    }

    pub(crate) fn round(self) -> u64 {
        self.0 >> 16
    }

    pub(crate) fn class(self) -> Class {
        match self.0 >> 8 & 0xff {
            0 => Class::Pair,
            1 => Class::Single,
            2 => Class::Plain,
            3 => Class::Sample,
            _ => Class::Disk,
        }
    }

    /// The node that its single copies prefer.
    pub(crate) fn node(self) -> usize {
        (self.0 & 0xff) as usize % NODES.len()
    }

    pub(crate) fn key(self) -> Result<Key, Failure> {
        Key::new(self.to_string().as_bytes()).map_err(|error| Failure::new("internal", error))
    }

    pub(crate) fn loss(self) -> Loss {
        if self.class() == Class::Plain { Loss::Anytime } else { Loss::Never }
    }

    /// How its objects are put.
    pub(crate) fn options(self) -> PutOptions {
        let class = self.class();
        let node = NODES.get(self.node()).map(ToString::to_string);
        PutOptions {
            replicas: if class == Class::Pair { 2 } else { 1 },
            hard_pin: !matches!(class, Class::Plain | Class::Sample),
            preferred: if class == Class::Pair { Vec::new() } else { node.into_iter().collect() },
            ..PutOptions::default()
        }
    }
}

impl std::fmt::Display for KeyId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let class = format!("{:?}", self.class()).to_lowercase();
        write!(out, "{}/{class}/{}", self.round(), self.0 & 0xff)
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    Put {
        value: u64,
    },
    /// A put that does not replace.
    Create {
        value: u64,
    },
    /// A put that replaces this value only.
    Swap {
        expected: u64,
        value: u64,
    },
    Delete,
    Get,
    Exists,
    /// The acknowledgement of a sample.
    Ack {
        expected: u64,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Stored {
        replaced: bool,
        copies: u32,
        is_confirmed: bool,
    },
    /// Nothing was stored: the key has another object, or none.
    Kept,
    Deleted(bool),
    /// Done, but not confirmed.
    Unconfirmed,
    Value(u64),
    Absent,
    Present(bool),
    Freed,
    Stale,
    /// An error that says that nothing was done, or an answer that says nothing about the key.
    Nothing(String),
    /// An error after which the outcome is unknown.
    Unknown(String),
    /// Bytes that were never stored under this key.
    Wrong(String),
}

/// One line of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The client is connected.
    Ready,
    Begin {
        call: u64,
        at: u64,
        key: KeyId,
        what: Call,
    },
    End {
        call: u64,
        at: u64,
        answer: Answer,
    },
}

/// Now, on the clock that all processes of this machine share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The answer that an error is to a call that changes the key.
pub(crate) fn failed(error: &Error) -> Answer {
    let what = format!("{error}");
    match error {
        Error::Unconfirmed { .. } => Answer::Unconfirmed,
        Error::Full { .. }
        | Error::NoNode { .. }
        | Error::OverQuota { .. }
        | Error::Unavailable { .. }
        | Error::Leased { .. }
        | Error::Exists { .. } => Answer::Nothing(what),
        _ => Answer::Unknown(what),
    }
}

/// One recorded call.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) client: String,
    pub(crate) begin: u64,
    pub(crate) what: Call,
    /// Its answer and when it came; `None` if it never did.
    pub(crate) end: Option<(u64, Answer)>,
}

impl Recorded {
    /// The call in a history; `None` if its answer says nothing of the key. `guesses` are the times in which
    /// a master without its state folder may take objects for absent whose nodes have not connected yet.
    pub(crate) fn operation(&self, key: KeyId, guesses: &[(u64, u64)]) -> Option<Operation> {
        let is_fragile = |copies| key.class() != Class::Pair || copies < 2;
        let set = |value, copies| Change::Set { value, is_fragile: is_fragile(copies) };
        let open = |guard, change| Some(Operation::open(self.begin, guard, change));
        let if_performed = match self.what {
            Call::Put { value } => open(Guard::Any, set(value, 0)),
            Call::Create { value } => open(Guard::Absent, set(value, 0)),
            Call::Swap { expected, value } => open(Guard::Is(expected), set(value, 0)),
            Call::Delete => open(Guard::Any, Change::Clear),
            Call::Ack { expected } => open(Guard::Is(expected), Change::Clear),
            Call::Get | Call::Exists => None,
        };
        let Some((end, answer)) = &self.end else { return if_performed };
        let answered = |guard, change| Some(Operation::answered(self.begin, *end, guard, change));
        let operation = match (self.what, answer) {
            (_, Answer::Unknown(_) | Answer::Wrong(_)) => if_performed,
            (_, Answer::Nothing(_)) => None,
            (Call::Put { value }, Answer::Stored { replaced, copies, .. }) => {
                // A put that replaces does not wait for members that have not reported, so it may not know
                // of the object that it replaces.
                answered(if *replaced { Guard::Present } else { Guard::Any }, set(value, *copies))
            }
            (Call::Create { value }, Answer::Stored { copies, .. }) => {
                answered(Guard::Absent, set(value, *copies))
            }
            (Call::Swap { expected, value }, Answer::Stored { copies, .. }) => {
                answered(Guard::Is(expected), set(value, *copies))
            }
            (Call::Put { .. } | Call::Create { .. }, Answer::Kept) => answered(Guard::Present, Change::Keep),
            (Call::Swap { expected, .. }, Answer::Kept) => answered(Guard::IsNot(expected), Change::Keep),
            (Call::Delete, Answer::Deleted(true)) => answered(Guard::Present, Change::Clear),
            (Call::Delete, Answer::Deleted(false)) => answered(Guard::Absent, Change::Clear),
            (Call::Delete, Answer::Unconfirmed) => answered(Guard::Any, Change::Clear),
            (Call::Ack { expected }, Answer::Freed) => answered(Guard::Is(expected), Change::Clear),
            (Call::Ack { expected }, Answer::Stale) => answered(Guard::IsNot(expected), Change::Keep),
            // It is not said whether this sample was freed or another one is there.
            (Call::Ack { .. }, Answer::Unconfirmed) => if_performed,
            (Call::Get, Answer::Value(value)) => answered(Guard::Read(*value), Change::Keep),
            (Call::Exists, Answer::Present(true)) => answered(Guard::Present, Change::Keep),
            (Call::Get, Answer::Absent) | (Call::Exists, Answer::Present(false)) => {
                answered(Guard::Absent, Change::Keep)
            }
            (what, answer) => unreachable_answer(what, answer),
        }?;
        let is_confirmed = !matches!(
            answer,
            Answer::Unconfirmed
                | Answer::Unknown(_)
                | Answer::Wrong(_)
                | Answer::Stored { is_confirmed: false, .. }
        );
        let operation = if is_confirmed { operation } else { operation.unconfirmed() };
        let is_guess = guesses.iter().any(|(from, to)| end >= from && self.begin <= *to);
        if is_guess { weaken(operation) } else { Some(operation) }
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self.end, Some((_, Answer::Nothing(_) | Answer::Unknown(_) | Answer::Unconfirmed)))
    }
}

/// Weakens an answer of a master that does not know its nodes yet: an object that it takes for absent may
/// be on one of them, and one that it removes or replaces may be there in an older version.
fn weaken(operation: Operation) -> Option<Operation> {
    match (operation.guard, operation.change) {
        (Guard::Read(_), _) => Some(operation),
        (_, Change::Keep) => None,
        (_, Change::Clear) => Some(Operation::open(operation.begin, Guard::Any, Change::Clear)),
        (_, Change::Set { .. }) => Some(Operation { guard: Guard::Any, ..operation }.unconfirmed()),
    }
}

/// A client records only answers that fit its call.
fn unreachable_answer(what: Call, answer: &Answer) -> Option<Operation> {
    debug_assert!(false, "{answer:?} is not an answer to {what:?}");
    None
}

/// The calls of all clients, by key.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) calls: BTreeMap<KeyId, Vec<Recorded>>,
}

/// Calls of one client that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Unfinished(BTreeMap<u64, (KeyId, usize)>);

impl Log {
    /// Adds a line of a client. Returns the call that has ended, if one has.
    pub(crate) fn add(&mut self, client: &str, unfinished: &mut Unfinished, line: Line) -> Option<&Recorded> {
        match line {
            Line::Ready => None,
            Line::Begin { call, at, key, what } => {
                let calls = self.calls.entry(key).or_default();
                unfinished.0.insert(call, (key, calls.len()));
                calls.push(Recorded { client: client.to_owned(), begin: at, what, end: None });
                None
            }
            Line::End { call, at, answer } => {
                let (key, position) = unfinished.0.remove(&call)?;
                let recorded = self.calls.get_mut(&key)?.get_mut(position)?;
                recorded.end = Some((at, answer));
                Some(recorded)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(begin: u64, what: Call, end: Option<(u64, Answer)>) -> Recorded {
        Recorded { client: "c".to_owned(), begin, what, end }
    }

    #[test]
    fn keys_have_names_and_numbers() {
        for class in [Class::Pair, Class::Single, Class::Plain, Class::Sample, Class::Disk] {
            let key = KeyId::new(300, class, 5);
            assert_eq!((key.round(), key.class(), key.node()), (300, class, 2));
        }
        assert_eq!(KeyId::new(7, Class::Disk, 1).to_string(), "7/disk/1");
    }

    #[test]
    fn lost_answer_leaves_a_call_open() {
        let mut log = Log::default();
        let mut unfinished = Unfinished::default();
        let key = KeyId::new(0, Class::Pair, 0);
        for line in [
            Line::Begin { call: 0, at: 1, key, what: Call::Put { value: 7 } },
            Line::End {
                call: 0,
                at: 2,
                answer: Answer::Stored { replaced: false, copies: 2, is_confirmed: true },
            },
            Line::Begin { call: 1, at: 3, key, what: Call::Delete },
            Line::Begin { call: 2, at: 4, key, what: Call::Get },
        ] {
            log.add("c", &mut unfinished, line);
        }
        let operations: Vec<_> =
            log.calls.values().flatten().filter_map(|it| it.operation(key, &[])).collect();
        let set = Change::Set { value: 7, is_fragile: false };
        assert_eq!(
            operations,
            [Operation::answered(1, 2, Guard::Any, set), Operation::open(3, Guard::Any, Change::Clear),]
        );
    }

    #[test]
    fn absence_is_no_claim_while_the_master_may_guess() {
        let key = KeyId::new(0, Class::Single, 0);
        let absent = recorded(5, Call::Get, Some((6, Answer::Absent)));
        assert_eq!(absent.operation(key, &[(6, 9)]), None);
        assert_eq!(absent.operation(key, &[(1, 4)]), absent.operation(key, &[]));
        let deleted = recorded(5, Call::Delete, Some((6, Answer::Deleted(false))));
        assert_eq!(deleted.operation(key, &[(0, 9)]), Some(Operation::open(5, Guard::Any, Change::Clear)));
    }

    #[test]
    fn single_copies_are_fragile() {
        let answer = || Answer::Stored { replaced: true, copies: 1, is_confirmed: false };
        for class in [Class::Pair, Class::Single] {
            let key = KeyId::new(0, class, 0);
            let put = recorded(1, Call::Put { value: 7 }, Some((2, answer())));
            let set = Change::Set { value: 7, is_fragile: true };
            assert_eq!(
                put.operation(key, &[]),
                Some(Operation::answered(1, 2, Guard::Present, set).unconfirmed())
            );
        }
    }
}
