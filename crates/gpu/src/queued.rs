//! Loads that are queued on a stream of the caller.
//!
//! Nothing waits: the copies come after the work that the stream has, and work that the caller submits to it
//! later comes after the copies. The processor takes no part in them, so all host memory must be registered.
//!
//! **Invariant:** until [`Queued::is_done`] has returned true or an error, or the value is dropped, the
//! device may access the memory of the copies; afterwards it does not.
//!
//! **Invariant:** the stream is not used after [`Queued::begin`]: the caller may destroy it.

use crate::device::{Device, Ticket, UNITS_MAX};
use crate::driver::{Current, Driver, Opaque};
use crate::pieces::{Piece, host_runs, merged};
use crate::policy::{Abilities, Direction, Shape, Way, choose};
use crate::registered::Finder;
use crate::settings::Load;
use crate::transfer::{Direct, LOAD_GRID, copy_directly, kernel_units, launch, send_list};
use crate::{DeviceError, Place, Stream};

/// Copies that are queued on a stream.
pub struct Queued {
    device: &'static Device,
    ticket: Option<Ticket>,
    bytes: u64,
    /// Why some of the copies were not queued.
    failed: Option<DeviceError>,
}

/// The outcome of [`Queued::begin`].
pub enum Begun {
    /// The copies are queued.
    Queued(Queued),
    /// [`QUEUED_MAX`](crate::QUEUED_MAX) lists are queued on the device: try again.
    Full,
    /// Not all of the host memory is registered. Nothing was queued.
    NotRegistered,
}

impl Queued {
    /// Queues loads on the stream of a place.
    ///
    /// # Safety
    /// Until [`Self::is_done`] has returned true or an error, or the value is dropped, the host's side of all
    /// pieces must stay mapped and registered, and the device's side allocated. Pieces must not overlap. A
    /// named stream must exist.
    pub unsafe fn begin(place: &Place, pieces: Vec<Piece>) -> Result<Begun, DeviceError> {
        let device = Driver::loaded()?.device(place.device())?;
        let Some(list) = direct(&merged(pieces)) else { return Ok(Begun::NotRegistered) };
        let stream = opaque(place.stream());
        let current = device.enter()?;
        if current.is_capturing(stream)? {
            return Err(DeviceError::Captured);
        }
        let Some(mut ticket) = device.take_ticket(&current)? else { return Ok(Begun::Full) };
        // This fails if the stream belongs to another device.
        if let Err(error) = current.record(ticket.done, stream) {
            device.return_ticket(ticket);
            return Err(error);
        }
        let submitted = submit(device, &current, &mut ticket, stream, &list);
        if let Err(error) = current.record(ticket.done, stream) {
            // There is no other way to know when copies that were queued have ended.
            let _ended = current.synchronize(stream);
            device.return_ticket(ticket);
            return Err(error);
        }
        let bytes = list.iter().map(|it| it.piece.len).sum();
        Ok(Begun::Queued(Self { device, ticket: Some(ticket), bytes, failed: submitted.err() }))
    }

    /// Lets later work of a stream come after the copies. The processor does not wait.
    pub fn order(&self, then: Stream) -> Result<(), DeviceError> {
        match &self.ticket {
            Some(ticket) => self.device.enter()?.wait(opaque(then), ticket.done),
            // They have ended.
            None => Ok(()),
        }
    }

    /// Whether the copies have ended. An error says that they have, and that bytes may be missing.
    pub fn is_done(&mut self) -> Result<bool, DeviceError> {
        let Some(ticket) = &self.ticket else { return self.failed.clone().map_or(Ok(true), Err) };
        let current = self.device.enter()?;
        match current.is_done(ticket.done) {
            Ok(false) => return Ok(false),
            Ok(true) if self.failed.is_none() => self.device.count(Direction::Load, self.bytes, 0),
            Ok(true) => {}
            // The driver reports errors of the stream here. It does no further work then.
            Err(error) => _ = self.failed.get_or_insert(error),
        }
        if let Some(ticket) = self.ticket.take() {
            self.device.return_ticket(ticket);
        }
        self.failed.clone().map_or(Ok(true), Err)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // In a forked child this is an error, and nothing is done.
        while let Ok(false) = self.is_done() {
            std::thread::yield_now();
        }
    }
}

/// Lets later work of the stream `then` come after the work that `first` has now.
pub fn order(device: u32, first: Stream, then: Stream) -> Result<(), DeviceError> {
    if first == then || first == Stream::Synchronized {
        return Ok(());
    }
    let device = Driver::loaded()?.device(device)?;
    let current = device.enter()?;
    let event = current.create_event()?;
    let ordered = current.record(event, opaque(first)).and_then(|()| current.wait(opaque(then), event));
    current.destroy(&[], &[event]);
    ordered
}

fn opaque(stream: Stream) -> Opaque {
    Opaque::named(stream.handle())
}

/// The copies, cut where registrations end; `None` if a part is not registered.
fn direct(pieces: &[Piece]) -> Option<Vec<Direct>> {
    let (mut list, mut finder) = (Vec::with_capacity(pieces.len()), Finder::default());
    for piece in pieces {
        let mut left = *piece;
        while left.len > 0 {
            let (mapped, most) = finder.find(left.host)?;
            let (now, later) = left.split_at(most);
            list.push(Direct { piece: now, mapped, range_end: now.host + most });
            left = later;
        }
    }
    Some(list)
}

/// Queues the copies. After an error some may be queued.
fn submit(
    device: &Device,
    current: &Current<'_>,
    ticket: &mut Ticket,
    stream: Opaque,
    list: &[Direct],
) -> Result<(), DeviceError> {
    let pieces: Vec<_> = list.iter().map(|it| it.piece).collect();
    let bytes = pieces.iter().map(|it| it.len).sum();
    let direction = Direction::Load;
    let shape = Shape { direction, pieces: pieces.len(), host_runs: host_runs(&pieces), bytes };
    let can = device.abilities(current, direction);
    // The driver takes no lists of copies on the legacy default stream.
    let batch = can.batch && stream != opaque(Stream::Legacy);
    let kernel = can.kernel && list.len() <= UNITS_MAX;
    let way = choose(shape, Load::Busy, Abilities { batch, kernel, pages: false });
    if way == Way::Kernel
        && let Some(kernels) = device.kernels(current)
        && let Ok(units) = ticket.units(current)
    {
        let sent = send_list(current, units, stream, 0, &kernel_units(direction, list, bytes))?;
        return launch(current, kernels.copy, LOAD_GRID, sent, stream);
    }
    // Where a kernel cannot be used, the engine can.
    let way = if batch && way == Way::Kernel { Way::Batch } else { way };
    copy_directly(device, current, direction, &pieces, way, stream)
}
