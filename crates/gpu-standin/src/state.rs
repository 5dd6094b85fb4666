//! Memory, streams and events of the stand-in.
//!
//! Work on a stream is *lazy*: it is carried out when a call waits for it, and not before. So a program that
//! forgets to wait sees the bytes from before the work, always and not by chance. Work on other streams stays
//! undone meanwhile: across streams the order is as different from the order of calls as it can be.
//!
//! With `TIFFIN_STANDIN_EAGER` some work is carried out at once, chosen by a seed: a program that changes the
//! source of a copy too early is right with lazy work only.

use std::collections::{BTreeMap, VecDeque};

/// Success.
pub(crate) const OK: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_IMAGE: i32 = 200;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
pub(crate) const ALREADY_REGISTERED: i32 = 712;
pub(crate) const NOT_REGISTERED: i32 = 713;
pub(crate) const NOT_SUPPORTED: i32 = 801;
pub(crate) const UNKNOWN: i32 = 999;

/// Kernels see pinned host memory at another address than the host, and each registration at a distance of
/// its own: memory of two adjacent registrations is not adjacent for a kernel.
const MAPPED: u64 = 1 << 60;
/// Bits of an address of the process.
const HOST_BITS: u32 = 48;
/// Number of distances.
const DISTANCES: u64 = 1 << 11;
/// The legacy default stream.
pub(crate) const LEGACY: u64 = 1;

/// What [`State::fail`] makes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failing {
    /// The call that begins a copy.
    Copy,
    /// A copy after its call has succeeded.
    Running,
    Register,
    AllocateHost,
    Launch,
    Allocate,
    LoadModule,
    /// A list of copies, as a driver that does not support it.
    Batch,
}

/// Device memory. The process cannot access it at its address, as with a real device.
pub(crate) struct Allocation {
    pub(crate) len: u64,
    pub(crate) device: i32,
    /// Where the stand-in accesses it.
    pub(crate) alias: u64,
}

/// Host memory that is pinned.
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    pub(crate) len: u64,
    pub(crate) is_read_only: bool,
    pub(crate) is_allocated: bool,
    /// What is added to its address for kernels.
    pub(crate) distance: u64,
}

/// Work on a stream.
pub(crate) enum Work {
    Copy {
        target: u64,
        source: u64,
        len: u64,
    },
    Fill {
        target: u64,
        value: u8,
        len: u64,
    },
    Kernel {
        units: u64,
        count: u32,
    },
    /// Waits for work of other streams: each up to a number.
    Wait(Vec<(u64, u64)>),
}

pub(crate) struct Stream {
    pub(crate) device: i32,
    pub(crate) is_blocking: bool,
    /// Whether its work is recorded into a graph.
    pub(crate) is_captured: bool,
    /// Whether events on it stay unfinished, as if its work took for ever.
    pub(crate) is_stalled: bool,
    queue: VecDeque<Work>,
    /// Number of works carried out, and the first error since it was last reported.
    done: u64,
    error: i32,
}

/// A mark in a stream.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) marks: Vec<(u64, u64)>,
    /// Number of queries that are answered "not ready" first.
    not_ready: u64,
}

/// Numbers for tests.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Counts {
    /// Bytes of host memory registered now.
    pub registered_bytes: u64,
    /// Copies by a call of their own.
    pub copies: u64,
    /// Copies in lists.
    pub batched: u64,
    /// Kernels.
    pub launches: u64,
    /// Works that are not carried out.
    pub pending: u64,
    /// Bytes of device memory allocated now.
    pub device_bytes: u64,
    /// Highest number of registered bytes.
    pub registered_bytes_peak: u64,
}

pub(crate) struct State {
    pub(crate) process: u32,
    pub(crate) devices: i32,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) pinned: BTreeMap<u64, Pinned>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) next_handle: u64,
    pub(crate) counts: Counts,
    /// Number of calls of each function.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pins: u64,
    failures: BTreeMap<Failing, (u64, u64)>,
    seed: u64,
    is_eager: bool,
    /// A kernel accessed memory that it may not: every later call fails.
    pub(crate) broken: i32,
}

impl Stream {
    pub(crate) fn new(device: i32, is_blocking: bool) -> Self {
        Self {
            device,
            is_blocking,
            is_captured: false,
            is_stalled: false,
            queue: VecDeque::new(),
            done: 0,
            error: OK,
        }
    }

    fn next(&self) -> u64 {
        self.done + self.queue.len() as u64
    }
}

impl State {
    pub(crate) fn new(devices: i32, seed: u64, is_eager: bool) -> Self {
        let streams = BTreeMap::from([(LEGACY, Stream::new(0, true))]);
        Self {
            process: std::process::id(),
            devices,
            allocations: BTreeMap::new(),
            pinned: BTreeMap::new(),
            streams,
            events: BTreeMap::new(),
            next_handle: 0x1000,
            counts: Counts::default(),
            calls: BTreeMap::new(),
            pins: 0,
            failures: BTreeMap::new(),
            seed,
            is_eager,
            broken: OK,
        }
    }

    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    pub(crate) fn set_seed(&mut self, seed: u64, is_eager: bool) {
        (self.seed, self.is_eager) = (seed, is_eager);
    }

    /// A number below `limit`.
    fn random(&mut self, limit: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// After `after` more calls of that kind, `count` calls fail.
    pub(crate) fn fail(&mut self, what: Failing, after: u64, count: u64) {
        self.failures.insert(what, (after, count));
    }

    pub(crate) fn fails(&mut self, what: Failing) -> bool {
        match self.failures.get_mut(&what) {
            None => false,
            Some((after, _)) if *after > 0 => {
                *after -= 1;
                false
            }
            Some((_, count)) if *count > 0 => {
                *count -= 1;
                true
            }
            Some(_) => false,
        }
    }

    /// The allocation that contains these bytes.
    pub(crate) fn allocation(&self, start: u64, len: u64) -> Option<(u64, &Allocation)> {
        let (at, found) = self.allocations.range(..=start).next_back()?;
        (start.checked_add(len)? <= at + found.len && start < at + found.len).then_some((*at, found))
    }

    pub(crate) fn pinned(&self, start: u64, len: u64) -> Option<Pinned> {
        let (at, found) = self.pinned.range(..=start).next_back()?;
        (start.checked_add(len)? <= at + found.len).then_some(*found)
    }

    /// Start and length of the pinned range that contains an address.
    pub(crate) fn pinned_range(&self, address: u64) -> Option<(u64, u64)> {
        let (at, found) = self.pinned.range(..=address).next_back()?;
        (address < at + found.len).then_some((*at, found.len))
    }

    /// Whether a range has pinned memory that the driver has allocated.
    pub(crate) fn has_allocated(&self, start: u64, len: u64) -> bool {
        let mut touched = self.pinned.range(..start.saturating_add(len)).rev();
        touched.next().is_some_and(|(at, it)| at + it.len > start && it.is_allocated)
    }

    /// Pins a range.
    pub(crate) fn pin(&mut self, start: u64, len: u64, is_read_only: bool, is_allocated: bool) {
        self.pins = (self.pins + 1) % DISTANCES;
        let distance = MAPPED + (self.pins << HOST_BITS);
        self.pinned.insert(start, Pinned { len, is_read_only, is_allocated, distance });
    }

    /// The pinned range that a kernel finds at an address, and the address of the process.
    pub(crate) fn pinned_for_kernel(&self, address: u64, len: u64) -> Option<(Pinned, u64)> {
        let host = address & ((1 << HOST_BITS) - 1);
        let found = self.pinned(host, len)?;
        (found.distance + host == address).then_some((found, host))
    }

    /// Whether a range begins or ends in pinned memory of which it is not a part: the driver refuses that.
    pub(crate) fn is_torn(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let touched = self.pinned.range(..end).next_back().is_some_and(|(at, it)| at + it.len > start);
        touched && self.pinned(start, len).is_none()
    }

    /// Appends work to a stream. Some is carried out at once, if that is switched on.
    pub(crate) fn push(&mut self, stream: u64, work: Work) -> i32 {
        let Some(found) = self.streams.get_mut(&stream) else { return INVALID_HANDLE };
        found.queue.push_back(work);
        let up_to = found.next();
        self.counts.pending += 1;
        if self.is_eager && self.random(2) == 0 {
            self.run(stream, up_to);
        }
        OK
    }

    /// The present end of a stream. For the legacy stream also that of all blocking streams.
    pub(crate) fn marks(&self, stream: u64) -> Option<Vec<(u64, u64)>> {
        let own = self.streams.get(&stream)?;
        let mut marks = vec![(stream, own.next())];
        if stream == LEGACY {
            let others = self.streams.iter().filter(|(id, it)| **id != LEGACY && it.is_blocking);
            marks.extend(others.map(|(id, it)| (*id, it.next())));
        } else if own.is_blocking {
            marks.extend(self.streams.get(&LEGACY).map(|it| (LEGACY, it.next())));
        }
        Some(marks)
    }

    /// The present end of all streams.
    pub(crate) fn all_marks(&self) -> Vec<(u64, u64)> {
        self.streams.keys().filter_map(|it| self.marks(*it)).flatten().collect()
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> i32 {
        let Some(marks) = self.marks(stream) else { return INVALID_HANDLE };
        let not_ready = self.random(4);
        match self.events.get_mut(&event) {
            Some(found) => *found = Event { marks, not_ready },
            None => return INVALID_HANDLE,
        }
        OK
    }

    pub(crate) fn query(&mut self, event: u64) -> i32 {
        let Some(found) = self.events.get_mut(&event) else { return INVALID_HANDLE };
        if found.not_ready > 0 {
            found.not_ready -= 1;
            return NOT_READY;
        }
        let marks = found.marks.clone();
        let is_stalled = |(id, up_to): &(u64, u64)| {
            self.streams.get(id).is_some_and(|it| it.is_stalled && it.done < *up_to)
        };
        if marks.iter().any(is_stalled) {
            return NOT_READY;
        }
        self.run_all(&marks)
    }

    /// Carries out work up to marks, and reports the first error.
    pub(crate) fn run_all(&mut self, marks: &[(u64, u64)]) -> i32 {
        let status = self.run_marked(marks);
        if self.broken == OK { status } else { self.broken }
    }

    fn run_marked(&mut self, marks: &[(u64, u64)]) -> i32 {
        let mut status = OK;
        for (stream, up_to) in marks {
            self.run(*stream, *up_to);
            let error = self.streams.get_mut(stream).map_or(OK, |it| std::mem::replace(&mut it.error, OK));
            status = if status == OK { error } else { status };
        }
        status
    }

    fn run(&mut self, stream: u64, up_to: u64) {
        loop {
            let Some(found) = self.streams.get_mut(&stream) else { return };
            if found.done >= up_to {
                return;
            }
            let Some(work) = found.queue.pop_front() else { return };
            found.done += 1;
            self.counts.pending -= 1;
            let status = match work {
                // The error of a stream reaches those that wait for it.
                Work::Wait(marks) => self.run_marked(&marks),
                _ if self.fails(Failing::Running) => UNKNOWN,
                work => self.carry_out(&work),
            };
            if status == ILLEGAL_ADDRESS {
                self.broken = status;
            }
            if let Some(found) = self.streams.get_mut(&stream).filter(|it| it.error == OK) {
                found.error = status;
            }
        }
    }
}
