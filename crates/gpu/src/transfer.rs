//! One transfer between host and device memory.
//!
//! It first waits until the caller's stream has finished the work that it had, and only then begins copies.
//! So a transfer that has begun depends on nothing but itself, and can always be waited for.
//!
//! Copies run in *flights*: a list of copies on one channel. Registered host memory is accessed directly.
//! Other memory goes through chunks of the ring, two flights at a time, so that one chunk is copied by the
//! device while the other is filled or emptied.
//!
//! **Invariant:** when [`Transfer::poll`] has returned `Ok(true)` or an error, and after a transfer is
//! dropped, neither the device nor this process accesses its memory for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::device::{Channel, Chunk, Device, Kernels, PAGES_PARTS, Pages, UNIT_WORDS, UNITS_MAX, Units};
use crate::driver::{Current, Driver, Opaque};
use crate::pieces::{Piece, host_runs, merged};
use crate::policy::{Abilities, Direction, Shape, Way, choose};
use crate::registered;
use crate::settings::{Load, Settings};
use crate::{DeviceError, Place};

/// Copies bytes between host memory: the caller's kernel, because other processes may write such memory.
///
/// # Safety
/// The source must be readable and the target writable for that many bytes.
pub type HostCopy = unsafe fn(*const u8, *mut u8, usize);

/// Maximum number of flights of one transfer.
const FLIGHTS_MAX: usize = 2;
/// Maximum number of bytes in a flight through registered memory.
const FLIGHT_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of bytes that one warp copies in a row.
const UNIT_BYTES_MAX: u64 = 64 << 10;
/// A unit for a warp is not shorter than this, so that the list stays short.
const UNIT_BYTES_MIN: u64 = 4 << 10;
/// Blocks and threads of a kernel that writes to host memory. More blocks are not faster.
const SAVE_GRID: (u32, u32) = (8, 1024);
/// Blocks and threads of a kernel that reads host memory. It is as fast as with more, which take more of the
/// device from other kernels.
pub(crate) const LOAD_GRID: (u32, u32) = (4, 512);
/// Maximum number of warps of [`SAVE_GRID`] and [`LOAD_GRID`].
const WARPS: u64 = 256;

/// A copy whose host's side is pinned.
#[derive(Clone, Copy)]
pub(crate) struct Direct {
    pub(crate) piece: Piece,
    /// The host's side as kernels see it.
    pub(crate) mapped: u64,
    /// Where the pinned range of the host's side ends: the driver refuses a copy that spans two ranges.
    pub(crate) range_end: u64,
}

struct Flight {
    channel: Channel,
    /// The memory that it goes through on the device.
    pages: Option<Pages>,
    /// The chunk that it goes through, and the pieces of the caller in it, in order.
    staged: Option<(Chunk, Vec<Piece>)>,
    bytes: u64,
}

enum Order {
    NotBegun,
    Waiting(Channel),
    Done,
}

/// A transfer in progress.
pub struct Transfer {
    device: &'static Device,
    stream: Option<Opaque>,
    direction: Direction,
    load: Load,
    order: Order,
    todo: VecDeque<Piece>,
    flights: VecDeque<Flight>,
    copy: HostCopy,
}

impl Transfer {
    /// Prepares a transfer. Nothing is copied before it is polled.
    ///
    /// # Safety
    /// Until the transfer has ended or is dropped, the host's side of all pieces must stay mapped, and the
    /// device's side allocated. Pieces must not overlap.
    pub unsafe fn new(
        place: &Place,
        direction: Direction,
        pieces: Vec<Piece>,
        copy: HostCopy,
    ) -> Result<Self, DeviceError> {
        let device = Driver::loaded()?.device(place.device())?;
        let stream = Opaque::of_stream(place.stream());
        let order = if stream.is_some() { Order::NotBegun } else { Order::Done };
        let load = match Settings::get().load {
            // Without a stream it is not known.
            Load::Auto if stream.is_none() => Load::Busy,
            load => load,
        };
        let todo = merged(pieces).into();
        Ok(Self { device, stream, direction, load, order, todo, flights: VecDeque::new(), copy })
    }

    /// Continues it. True if all bytes are copied.
    pub fn poll(&mut self) -> Result<bool, DeviceError> {
        self.poll_for(Duration::ZERO)
    }

    /// Continues it until all bytes are copied or a time has passed. True if all bytes are copied.
    pub fn poll_for(&mut self, time_max: Duration) -> Result<bool, DeviceError> {
        let current = self.device.enter()?;
        let began = Instant::now();
        loop {
            match self.advance(&current) {
                Ok(false) if began.elapsed() < time_max => std::hint::spin_loop(),
                Ok(is_done) => return Ok(is_done),
                Err(error) => {
                    self.abandon(&current);
                    return Err(error);
                }
            }
        }
    }

    fn advance(&mut self, current: &Current<'_>) -> Result<bool, DeviceError> {
        if !self.is_ordered(current)? {
            return Ok(false);
        }
        self.retire(current)?;
        while self.flights.len() < FLIGHTS_MAX && !self.todo.is_empty() {
            if !self.begin_flight(current)? {
                break;
            }
        }
        Ok(self.todo.is_empty() && self.flights.is_empty())
    }

    /// Whether the caller's stream has finished what it had when this transfer began.
    fn is_ordered(&mut self, current: &Current<'_>) -> Result<bool, DeviceError> {
        if let (Order::NotBegun, Some(stream)) = (&self.order, self.stream) {
            let Some(channel) = self.device.take_channel(current)? else { return Ok(false) };
            let recorded = current.record(channel.ordered, stream);
            let event = channel.ordered;
            self.order = Order::Waiting(channel);
            recorded?;
            if self.load == Load::Auto {
                self.load = if current.is_done(event)? { Load::Idle } else { Load::Busy };
            }
        }
        if let Order::Waiting(channel) = &self.order
            && !current.is_done(channel.ordered)?
        {
            return Ok(false);
        }
        if let Order::Waiting(channel) = std::mem::replace(&mut self.order, Order::Done) {
            self.device.return_channel(channel);
        }
        Ok(true)
    }

    /// Ends flights that have landed, in order.
    fn retire(&mut self, current: &Current<'_>) -> Result<(), DeviceError> {
        while let Some(flight) = self.flights.front() {
            if !current.is_done(flight.channel.done)? {
                break;
            }
            let Some(flight) = self.flights.pop_front() else { break };
            let ringed = if flight.staged.is_some() { flight.bytes } else { 0 };
            if let (Direction::Save, Some((chunk, pieces))) = (self.direction, &flight.staged) {
                let mut at = chunk.start();
                for piece in pieces {
                    // SAFETY: the device has finished writing the chunk; the target is mapped, as the caller
                    // of `new` promised.
                    unsafe { (self.copy)(pointer(at).cast_const(), pointer(piece.host), piece.len as usize) };
                    at += piece.len;
                }
            }
            self.device.count(self.direction, flight.bytes, ringed);
            flight.end(self.device);
        }
        Ok(())
    }

    /// Begins the next flight. False if it must wait for a channel or a chunk.
    fn begin_flight(&mut self, current: &Current<'_>) -> Result<bool, DeviceError> {
        let Some(first) = self.todo.front().copied() else { return Ok(false) };
        let Some(channel) = self.device.take_channel(current)? else { return Ok(false) };
        let mut flight = Flight { channel, pages: None, staged: None, bytes: 0 };
        let direct = if registered::find(first.host).is_some() {
            self.next_direct()
        } else {
            let chunk = match Chunk::take(current) {
                Ok(Some(chunk)) => chunk,
                other => {
                    self.device.return_channel(flight.channel);
                    return other.map(|_| false);
                }
            };
            let (direct, pieces) = self.next_staged(&chunk);
            flight.staged = Some((chunk, pieces));
            direct
        };
        flight.bytes = direct.iter().map(|it| it.piece.len).sum();
        let submitted = submit(self.device, current, &mut flight, self.direction, self.load, &direct);
        self.flights.push_back(flight);
        submitted.map(|()| true)
    }

    /// The next pieces in registered memory, cut where registrations end.
    fn next_direct(&mut self) -> Vec<Direct> {
        let (mut list, mut bytes) = (Vec::with_capacity(self.todo.len().min(UNITS_MAX)), 0);
        let mut finder = registered::Finder::default();
        while let Some(piece) = self.todo.front_mut() {
            let Some((mapped, most)) = finder.find(piece.host) else { break };
            if list.len() == UNITS_MAX || bytes >= FLIGHT_BYTES_MAX {
                break;
            }
            let (now, later) = piece.split_at(most.min(FLIGHT_BYTES_MAX));
            bytes += now.len;
            list.push(Direct { piece: now, mapped, range_end: now.host + most });
            if later.len > 0 {
                *piece = later;
            } else {
                self.todo.pop_front();
            }
        }
        list
    }

    /// The next pieces that fit into a chunk: as copies of the device, and as the caller named them. Pieces
    /// that are loaded are copied into the chunk.
    fn next_staged(&mut self, chunk: &Chunk) -> (Vec<Direct>, Vec<Piece>) {
        let (mut list, mut pieces, mut used) = (Vec::new(), Vec::new(), 0);
        while used < chunk.bytes() && list.len() < UNITS_MAX {
            let Some(piece) = self.todo.front_mut() else { break };
            if registered::find(piece.host).is_some() {
                break;
            }
            // The rest may be registered.
            let most = registered::next_after(piece.host, piece.host + piece.len);
            let most = most.map_or(u64::MAX, |it| it - piece.host);
            let (now, later) = piece.split_at((chunk.bytes() - used).min(most));
            let at = chunk.start() + used;
            if self.direction == Direction::Load {
                // SAFETY: the source is mapped, as the caller of `new` promised. No flight uses the chunk.
                unsafe { (self.copy)(pointer(now.host).cast_const(), pointer(at), now.len as usize) };
            }
            let mapped = registered::find(at).map_or(at, |(mapped, _)| mapped);
            let range_end = chunk.start() + chunk.bytes();
            list.push(Direct { piece: Piece { host: at, ..now }, mapped, range_end });
            pieces.push(now);
            used += now.len;
            if later.len > 0 {
                *piece = later;
            } else {
                self.todo.pop_front();
            }
        }
        (list, pieces)
    }

    /// Waits for copies that have begun, without using their bytes.
    fn abandon(&mut self, current: &Current<'_>) {
        for flight in self.flights.drain(..) {
            let Flight { channel, pages, .. } = flight;
            let finished = channel.finish(self.device, current);
            if let (Ok(()), Some(pages)) = (finished, pages) {
                self.device.return_pages(pages);
            }
        }
        if let Order::Waiting(channel) = std::mem::replace(&mut self.order, Order::Done) {
            self.device.return_channel(channel);
        }
        self.todo.clear();
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.flights.is_empty() && !matches!(self.order, Order::Waiting(_)) {
            return;
        }
        let device = self.device;
        if let Ok(current) = device.enter() {
            self.abandon(&current);
        }
    }
}

/// See [`crate::read`].
pub(crate) fn read(
    place: &Place,
    start: u64,
    len: usize,
    time_max: Duration,
) -> Result<Option<Vec<u8>>, DeviceError> {
    /// # Safety
    /// See [`HostCopy`]. The source is pinned memory, which no other process writes.
    unsafe fn plain(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the same contract, and the ring and the target do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
    }
    let mut bytes = vec![0; len];
    let host = bytes.as_mut_ptr().expose_provenance() as u64;
    let piece = Piece { device: start, host, len: len as u64 };
    // SAFETY: the target lives longer than the transfer. The caller has found the source to be allocated, and
    // keeps it so.
    let mut transfer = unsafe { Transfer::new(place, Direction::Save, vec![piece], plain)? };
    let began = Instant::now();
    while !transfer.poll()? {
        if began.elapsed() >= time_max {
            return Ok(None);
        }
        std::thread::yield_now();
    }
    drop(transfer);
    Ok(Some(bytes))
}

impl Flight {
    /// Gives back what a finished flight has used.
    fn end(self, device: &Device) {
        device.return_channel(self.channel);
        if let Some(pages) = self.pages {
            device.return_pages(pages);
        }
    }
}

/// Begins the copies of a flight. After an error some may be under way.
fn submit(
    device: &Device,
    current: &Current<'_>,
    flight: &mut Flight,
    direction: Direction,
    load: Load,
    list: &[Direct],
) -> Result<(), DeviceError> {
    let pieces: Vec<_> = list.iter().map(|it| it.piece).collect();
    let shape = Shape { direction, pieces: pieces.len(), host_runs: host_runs(&pieces), bytes: flight.bytes };
    let abilities = device.abilities(current, direction);
    let mut way = choose(shape, load, abilities);
    if way == Way::Staged {
        flight.pages = device.take_pages(current, direction);
        if flight.pages.is_none() {
            way = choose(shape, load, Abilities { pages: false, ..abilities });
        }
    }
    let (stream, moves, done) = (flight.channel.stream, flight.channel.moves, flight.channel.done);
    match (way, device.kernels(current), &flight.pages) {
        (Way::Kernel, Some(kernels), _) => {
            let grid = if direction == Direction::Load { LOAD_GRID } else { SAVE_GRID };
            let units = kernel_units(direction, list, flight.bytes);
            let list = send_list(current, flight.channel.units(current)?, stream, 0, &units)?;
            launch(current, kernels.copy, grid, list, stream)?;
            current.record(done, stream)
        }
        (Way::Staged, Some(kernels), Some(pages)) => {
            copy_staged(current, &mut flight.channel, pages, kernels, direction, list)?;
            current.record(done, if direction == Direction::Save { stream } else { moves })
        }
        _ => {
            copy_directly(device, current, direction, &pieces, way, stream)?;
            current.record(done, stream)
        }
    }
}

/// Copies without a kernel. If the driver takes no lists of copies, each is a call of its own.
pub(crate) fn copy_directly(
    device: &Device,
    current: &Current<'_>,
    direction: Direction,
    pieces: &[Piece],
    way: Way,
    stream: Opaque,
) -> Result<(), DeviceError> {
    let is_batch = way == Way::Batch;
    match copy_all(current, direction, pieces, is_batch, stream) {
        Err(error) if is_batch && device.refuses_batches(&error) => {
            copy_all(current, direction, pieces, false, stream)
        }
        copied => copied,
    }
}

fn copy_all(
    current: &Current<'_>,
    direction: Direction,
    pieces: &[Piece],
    is_batch: bool,
    stream: Opaque,
) -> Result<(), DeviceError> {
    if is_batch {
        // SAFETY: the memory stays as the caller of `Transfer::new` or `Queued::begin` promised.
        return unsafe { current.copy_batch(direction, pieces, stream) };
    }
    for piece in pieces {
        // SAFETY: as above.
        unsafe { current.copy(direction, *piece, stream)? };
    }
    Ok(())
}

/// The list for a kernel. There are at most [`UNITS_MAX`] units: the list has no more copies, and they are
/// divided only if there are few.
pub(crate) fn kernel_units(direction: Direction, list: &[Direct], bytes: u64) -> Vec<[u64; UNIT_WORDS]> {
    let spare = (UNITS_MAX - list.len().min(UNITS_MAX - 1)) as u64;
    let most = (bytes / WARPS).clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX).max(bytes.div_ceil(spare));
    let most = most.next_multiple_of(16);
    let mut units = Vec::with_capacity(list.len());
    for it in list {
        let mut left = Piece { host: it.mapped, ..it.piece };
        while left.len > 0 {
            let (Piece { device, host, len }, rest) = left.split_at(most);
            units.push(match direction {
                Direction::Load => [host, device, len],
                Direction::Save => [device, host, len],
            });
            left = rest;
        }
    }
    units
}

/// Copies a list to its memory on the device, at an offset. Returns its address and length. The owner of the
/// memory keeps it until the stream has no work.
pub(crate) fn send_list(
    current: &Current<'_>,
    units: Units,
    stream: Opaque,
    first: usize,
    list: &[[u64; UNIT_WORDS]],
) -> Result<(u64, u32), DeviceError> {
    assert!(first + list.len() <= UNITS_MAX, "a list of {} units at {first}", list.len());
    let (offset, len) = ((first * UNIT_WORDS * 8) as u64, list.len() * UNIT_WORDS);
    let target = pointer(units.host + offset).cast::<u64>();
    // SAFETY: the memory has space for `UNITS_MAX` units, and no work of its owner reads this part.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr().cast::<u64>(), target, len) };
    let piece = Piece { device: units.device + offset, host: units.host + offset, len: (len * 8) as u64 };
    // SAFETY: both sides have one owner, which is kept until its work has ended.
    unsafe { current.copy(Direction::Load, piece, stream)? };
    Ok((piece.device, list.len() as u32))
}

/// Launches the kernel over a list that is on the device.
pub(crate) fn launch(
    current: &Current<'_>,
    kernel: Opaque,
    grid: (u32, u32),
    list: (u64, u32),
    stream: Opaque,
) -> Result<(), DeviceError> {
    // SAFETY: the list belongs to a channel or a ticket, which is kept until its work has ended. Its units
    // name memory that stays as the caller of `Transfer::new` or `Queued::begin` promised.
    unsafe { current.launch(kernel, grid, list, stream) }
}

/// A part of a transfer through memory of the device: its units in the list, and the copies between that
/// memory and the host.
struct Part {
    units: Range<usize>,
    copies: Vec<Piece>,
}

/// Copies by way of device memory in which the pages follow each other: a kernel moves them there or from
/// there, and the copy engine copies whole parts, on a stream of its own.
fn copy_staged(
    current: &Current<'_>,
    channel: &mut Channel,
    pages: &Pages,
    kernels: Kernels,
    direction: Direction,
    list: &[Direct],
) -> Result<(), DeviceError> {
    let (stream, moves) = (channel.stream, channel.moves);
    let mut left: VecDeque<Direct> = list.iter().copied().collect();
    let (mut first, mut is_first_round) = (0, true);
    while !left.is_empty() {
        let (units, parts) = next_parts(&mut left, pages, direction);
        if first + units.len() > UNITS_MAX {
            // The memory for lists is used up: it is free again when the kernels have ended.
            current.synchronize(moves)?;
            first = 0;
        }
        let (start, _) = send_list(current, channel.units(current)?, moves, first, &units)?;
        let events = pages.filled.iter().zip(&pages.emptied);
        for (part, (filled, emptied)) in parts.iter().zip(events) {
            let at = start + (part.units.start * UNIT_WORDS * 8) as u64;
            let units = (at, part.units.len() as u32);
            let move_pages = || launch(current, kernels.mover, kernels.mover_grid, units, moves);
            let copy = || copy_all(current, direction, &part.copies, false, stream);
            let (filling, emptying) = match direction {
                Direction::Save => (moves, stream),
                Direction::Load => (stream, moves),
            };
            if !is_first_round {
                current.wait(filling, *emptied)?;
            }
            if direction == Direction::Save { move_pages() } else { copy() }?;
            current.record(*filled, filling)?;
            current.wait(emptying, *filled)?;
            if direction == Direction::Save { copy() } else { move_pages() }?;
            current.record(*emptied, emptying)?;
        }
        first += units.len();
        is_first_round = false;
    }
    Ok(())
}

/// The next pieces as parts of the memory for pages, as many as it has, and the list of their units.
fn next_parts(
    left: &mut VecDeque<Direct>,
    pages: &Pages,
    direction: Direction,
) -> (Vec<[u64; UNIT_WORDS]>, Vec<Part>) {
    let (mut units, mut parts) = (Vec::new(), Vec::new());
    for number in 0..PAGES_PARTS {
        let first = units.len();
        let start = pages.start + number as u64 * pages.part_bytes;
        let copies = next_part(left, start..start + pages.part_bytes, direction, &mut units);
        if copies.is_empty() {
            break;
        }
        parts.push(Part { units: first..units.len(), copies });
    }
    (units, parts)
}

/// Adds the units of the next pieces, which get this part of the memory for pages. Returns the copies between
/// there and the host.
fn next_part(
    left: &mut VecDeque<Direct>,
    part: Range<u64>,
    direction: Direction,
    units: &mut Vec<[u64; UNIT_WORDS]>,
) -> Vec<Piece> {
    let mut at = part.start;
    // Pieces follow each other there. Those that do so in one pinned range become one copy.
    let mut copies: Vec<(Piece, u64)> = Vec::new();
    while at < part.end && units.len() < UNITS_MAX {
        let Some(next) = left.front_mut() else { break };
        let (now, later) = next.piece.split_at((part.end - at).min(UNIT_BYTES_MAX));
        units.push(match direction {
            Direction::Save => [now.device, at, now.len],
            Direction::Load => [at, now.device, now.len],
        });
        match copies.last_mut() {
            Some((copy, range_end)) if copy.host + copy.len == now.host && *range_end == next.range_end => {
                copy.len += now.len;
            }
            _ => copies.push((Piece { device: at, ..now }, next.range_end)),
        }
        at += now.len;
        if later.len > 0 {
            next.piece = later;
        } else {
            left.pop_front();
        }
    }
    copies.into_iter().map(|(copy, _)| copy).collect()
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
