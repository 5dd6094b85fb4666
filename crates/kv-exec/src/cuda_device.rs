//! A device in memory of a CUDA device: pages that are scattered over layers.
//!
//! A page has a row in each layer. In the host its rows follow each other, so that it is one object of a
//! store. All rows of all pages of an operation are one transfer, which `tiffin-gpu` carries out with few
//! calls of the driver.
//!
//! With groups of layers a load is queued on a stream of the device, one group after the other, and behind
//! the fence: streams of the caller wait for the groups, and no thread does.
//!
//! **Invariant:** when an operation has ended, neither the device nor a thread accesses its pages for it. The
//! layers stay allocated while the device lives; if their owner frees them nevertheless, operations fail.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tiffin_transport::copy::copy_raw;
use tiffin_transport::gpu::{
    self, Begun, DeviceError, Direction, Finder, OwnStream, Piece, Place, Populated, Queued, Registration,
    Stream, Transfer, is_registered,
};

use crate::device::{Device, Fence};
use crate::load::{LoadProgress, QueuedLayers};
use crate::pages::{PageReadGuard, PageWriteGuard, Pages, Uses};
use crate::store::{Fault, Stop};

/// How long a thread polls a transfer before it checks whether the operation was stopped.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// How long a thread rests between two looks at a fence: a pass of the model takes longer.
const FENCE_PAUSE: Duration = Duration::from_micros(50);
/// Pinned memory consists of whole pages of the system.
const SYSTEM_PAGE_BYTES: u64 = 4096;

/// The rows of one layer: contiguous memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaLayer {
    /// Address of the first row.
    pub start: NonNull<u8>,
    /// Bytes of each row.
    pub row_bytes: usize,
}

/// Why layers cannot be a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no layer.
    #[error("the device has no layers\n\nhint: give an array for each layer")]
    NoLayers,
    /// The driver does not have the memory.
    #[error("layer {layer} cannot be used: {error}")]
    Device {
        /// The number of the layer.
        layer: usize,
        /// What the driver says.
        error: DeviceError,
    },
    /// A layer is on another device.
    #[error("layer {layer} is on device {found}, and layer 0 on device {first}\n\nhint: {HINT_ONE_DEVICE}")]
    OtherDevice {
        /// The number of the layer.
        layer: usize,
        /// Its device.
        found: u32,
        /// The device of the others.
        first: u32,
    },
    /// Two layers share memory.
    #[error("layers {first} and {second} overlap\n\nhint: give each layer memory of its own")]
    Overlap {
        /// The number of the one that begins first.
        first: usize,
        /// The number of the other.
        second: usize,
    },
    /// The sizes of a page differ.
    #[error(
        "a page has {device} bytes on the device and {host} in the host\n\nhint: give both rows of one size"
    )]
    PageBytes {
        /// Bytes of all rows of a page.
        device: usize,
        /// Bytes of a page in the host.
        host: usize,
    },
}

const HINT_ONE_DEVICE: &str = "make an engine for each device";

/// A device in memory of a CUDA device.
pub struct CudaDevice {
    /// The device, and the stream on which the model computes.
    place: Place,
    layers: Box<[CudaLayer]>,
    uses: Uses,
    groups: Option<Groups>,
    /// Ends before the memory that it registers.
    _registration: Registration,
    _host: Arc<Pages>,
    _owner: Box<dyn Send + Sync>,
}

/// Layers whose copies are queued together.
struct Groups {
    /// The layers of each.
    layers: Vec<Range<usize>>,
    /// The stream of the copies.
    copies: OwnStream,
}

// SAFETY: addresses of the device are only passed to the driver, and uses of pages are counted.
unsafe impl Send for CudaDevice {}
// SAFETY: as above.
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    /// A device of `count` pages in these layers. The model computes on `stream`. The pages of the host are
    /// registered with the driver in the background, unless they are pinned already.
    ///
    /// # Safety
    /// Each layer must have `count` rows, allocated for as long as `owner` lives. The stream must exist as
    /// long.
    ///
    /// # Errors
    /// If a layer is not memory of the one device, two layers overlap, or the pages of the host have another
    /// size.
    pub unsafe fn new(
        stream: Stream,
        layers: Vec<CudaLayer>,
        count: u32,
        host: Arc<Pages>,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, CudaError> {
        let device = device_of(&layers, count)?;
        check_apart(&layers, count)?;
        let page_bytes = layers.iter().map(|it| it.row_bytes).sum();
        if host.page_bytes() != page_bytes && host.count() > 0 {
            return Err(CudaError::PageBytes { device: page_bytes, host: host.page_bytes() });
        }
        Ok(Self {
            place: Place::new(device, stream),
            layers: layers.into(),
            uses: Uses::new(count),
            groups: None,
            _registration: register(&host, device),
            _host: host,
            _owner: owner,
        })
    }

    /// Loads are queued in so many groups of layers, of about equal sizes, so that streams can wait for each
    /// of them ([`Loads::order`](crate::Loads::order)).
    ///
    /// # Errors
    /// If the driver has no further stream.
    pub fn with_groups(mut self, count: u32) -> Result<Self, CudaError> {
        let count = (count.max(1) as usize).min(self.layers.len());
        let bound = |group: usize| group * self.layers.len() / count;
        let layers = (0..count).map(|group| bound(group)..bound(group + 1)).collect();
        let copies = OwnStream::new(self.place.device());
        let copies = copies.map_err(|error| CudaError::Device { layer: 0, error })?;
        self.groups = Some(Groups { layers, copies });
        Ok(self)
    }

    /// The stream on which groups of layers are queued.
    #[cfg(test)]
    pub(crate) fn copies(&self) -> Option<Stream> {
        self.groups.as_ref().map(|groups| groups.copies.stream())
    }

    /// The copies of the rows of a page, which begins at `host`, in these layers.
    fn rows(&self, layers: Range<usize>, page: u32, host: *const u8, pieces: &mut Vec<Piece>) {
        let before: usize = self.layers.iter().take(layers.start).map(|it| it.row_bytes).sum();
        let mut host = host.expose_provenance() as u64 + before as u64;
        for CudaLayer { start, row_bytes } in self.layers.iter().take(layers.end).skip(layers.start) {
            let len = *row_bytes as u64;
            let start = start.as_ptr().expose_provenance() as u64;
            pieces.push(Piece { device: start + u64::from(page) * len, host, len });
            host += len;
        }
    }

    /// A copy of memory that the owner has freed would break the driver's context.
    fn check_device(&self) -> Result<(), Fault> {
        let found = device_of(&self.layers, self.uses.count()).map_err(fault)?;
        if found != self.place.device() {
            return Err(fault(CudaError::OtherDevice { layer: 0, found, first: self.place.device() }));
        }
        Ok(())
    }

    /// Queues the copies of some layers on the stream of the groups, as soon as there is space for the list.
    fn queue(&self, stream: Stream, pieces: &[Piece], stop: &Stop) -> Result<Queued, Fault> {
        let place = Place::new(self.place.device(), stream);
        loop {
            // SAFETY: the rows are inside the layers, which stay allocated, and the host's pages are
            // registered. Both are borrowed until `QueuedGroups` is dropped, which waits for the copies. No
            // two pages, and no two rows, overlap. The stream is ours.
            match unsafe { Queued::begin(&place, pieces.to_vec()) }.map_err(fault)? {
                Begun::Queued(queued) => return Ok(queued),
                Begun::NotRegistered => return Err(Fault::Other("the host's pages are unregistered".into())),
                Begun::Full if stop.should_stop() => return Err(Fault::Stopped),
                Begun::Full => thread::park_timeout(FENCE_PAUSE),
            }
        }
    }

    /// Queues the copies of all layers, group by group, and waits for them.
    fn load_groups(
        &self,
        groups: &Groups,
        pages: &[(PageReadGuard<'_>, u32)],
        progress: &LoadProgress,
        stop: &Stop,
    ) -> Result<u32, Fault> {
        let mut held = Vec::with_capacity(pages.len());
        for (_, page) in pages {
            held.push(self.uses.write(*page).ok_or(Fault::Page(*page))?);
        }
        self.check_device()?;
        let mut queued = QueuedGroups(Vec::with_capacity(groups.layers.len()));
        for layers in &groups.layers {
            let mut pieces = Vec::with_capacity(pages.len() * layers.len());
            for (source, page) in pages {
                self.rows(layers.clone(), *page, source.bytes().as_ptr(), &mut pieces);
            }
            let copies = self.queue(groups.copies.stream(), &pieces, stop)?;
            let group = Arc::new(QueuedGroup(Mutex::new(copies)));
            progress.queued(layers.end as u32, Arc::<QueuedGroup>::clone(&group));
            queued.0.push(group);
        }
        while !queued.are_done()? {
            if stop.should_stop() {
                return Err(Fault::Stopped);
            }
            thread::park_timeout(FENCE_PAUSE);
        }
        Ok(held.len() as u32)
    }

    /// Carries out all copies of an operation, whose pages are borrowed meanwhile.
    fn transfer(&self, direction: Direction, pieces: Vec<Piece>, stop: &Stop) -> Result<(), Fault> {
        self.check_device()?;
        // The fence of the step has passed.
        let place = Place::new(self.place.device(), Stream::Synchronized);
        // SAFETY: the rows are inside the layers, which stay allocated, and the host's pages are borrowed
        // until this returns. No two pages, and no two rows, overlap.
        let transfer = unsafe { Transfer::new(&place, direction, pieces, copy_raw) };
        let mut transfer = transfer.map_err(fault)?;
        while !transfer.poll_for(SPIN_TIME).map_err(fault)? {
            if stop.should_stop() {
                // Its drop waits for copies that have begun.
                return Err(Fault::Stopped);
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn pieces(&self, pages: usize) -> Vec<Piece> {
        Vec::with_capacity(pages * self.layers.len())
    }
}

impl Device for CudaDevice {
    fn load(&self, pages: &[(PageReadGuard<'_>, u32)], stop: &Stop) -> Result<u32, Fault> {
        let (mut held, mut pieces) = (Vec::with_capacity(pages.len()), self.pieces(pages.len()));
        for (source, page) in pages {
            held.push(self.uses.write(*page).ok_or(Fault::Page(*page))?);
            self.rows(0..self.layers.len(), *page, source.bytes().as_ptr(), &mut pieces);
        }
        self.transfer(Direction::Load, pieces, stop)?;
        Ok(held.len() as u32)
    }

    fn load_after(
        &self,
        fence: Option<&dyn Fence>,
        pages: &[(PageReadGuard<'_>, u32)],
        progress: &LoadProgress,
        stop: &Stop,
    ) -> Result<u32, Fault> {
        let is_registered = |(source, _): &(PageReadGuard<'_>, u32)| {
            let bytes = source.bytes();
            is_registered(bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64)
        };
        if let Some(groups) = &self.groups
            && pages.iter().all(is_registered)
            && fence.map_or(Ok(true), |fence| fence.order(groups.copies.stream()))?
        {
            return self.load_groups(groups, pages, progress, stop);
        }
        fence.map_or(Ok(()), |fence| fence.wait(stop))?;
        self.load(pages, stop)
    }

    fn save(&self, pages: &[(u32, PageWriteGuard<'_>)], stop: &Stop) -> Result<u32, Fault> {
        let (mut held, mut pieces) = (Vec::with_capacity(pages.len()), self.pieces(pages.len()));
        for (page, target) in pages {
            held.push(self.uses.read(*page).ok_or(Fault::Page(*page))?);
            self.rows(0..self.layers.len(), *page, target.bytes().as_mut_ptr(), &mut pieces);
        }
        self.transfer(Direction::Save, pieces, stop)?;
        Ok(held.len() as u32)
    }

    fn fence(&self) -> Result<Option<Arc<dyn Fence>>, Fault> {
        let recorded = gpu::Fence::record(&self.place).map_err(fault)?;
        Ok(recorded.map(|fence| Arc::new(CudaFence(fence)) as Arc<dyn Fence>))
    }
}

/// The copies of a group of layers, until they have ended.
struct QueuedGroup(Mutex<Queued>);

impl QueuedGroup {
    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedLayers for QueuedGroup {
    fn order(&self, then: Stream) -> Result<(), Fault> {
        self.lock().order(then).map_err(fault)
    }
}

/// The groups of a load. Dropping it waits for the copies, also if others still have the groups.
struct QueuedGroups(Vec<Arc<QueuedGroup>>);

impl QueuedGroups {
    fn are_done(&self) -> Result<bool, Fault> {
        let mut are_done = true;
        for group in &self.0 {
            are_done &= group.lock().is_done().map_err(fault)?;
        }
        Ok(are_done)
    }
}

impl Drop for QueuedGroups {
    fn drop(&mut self) {
        for group in &self.0 {
            while let Ok(false) = group.lock().is_done() {
                thread::park_timeout(FENCE_PAUSE);
            }
        }
    }
}

/// The work of the model's stream when a step began.
struct CudaFence(gpu::Fence);

impl Fence for CudaFence {
    fn order(&self, then: Stream) -> Result<bool, Fault> {
        self.0.order(then).map_err(fault).map(|()| true)
    }

    fn wait(&self, stop: &Stop) -> Result<(), Fault> {
        while !self.0.is_done().map_err(fault)? {
            if stop.should_stop() {
                return Err(Fault::Stopped);
            }
            thread::park_timeout(FENCE_PAUSE);
        }
        Ok(())
    }
}

/// Start and length of the rows of a layer.
fn span(layer: &CudaLayer, count: u32) -> (u64, u64) {
    (layer.start.as_ptr().expose_provenance() as u64, layer.row_bytes as u64 * u64::from(count))
}

/// Copies of one transfer must not overlap: a page of one layer would have bytes of another.
fn check_apart(layers: &[CudaLayer], count: u32) -> Result<(), CudaError> {
    let mut spans: Vec<_> = layers.iter().map(|it| span(it, count)).zip(0..).collect();
    spans.sort_unstable();
    for (((start, len), first), ((next, _), second)) in spans.iter().zip(spans.iter().skip(1)) {
        if start + len > *next {
            return Err(CudaError::Overlap { first: *first, second: *second });
        }
    }
    Ok(())
}

/// The device that has all rows of all layers.
fn device_of(layers: &[CudaLayer], count: u32) -> Result<u32, CudaError> {
    let (mut finder, mut first) = (Finder::default(), None);
    for (layer, it) in layers.iter().enumerate() {
        let (start, len) = span(it, count);
        let found = finder.find(start, len).map_err(|error| CudaError::Device { layer, error })?;
        let first = *first.get_or_insert(found);
        if found != first {
            return Err(CudaError::OtherDevice { layer, found, first });
        }
    }
    first.ok_or(CudaError::NoLayers)
}

/// Begins to register the host's pages, so that the device accesses them directly.
fn register(host: &Pages, device: u32) -> Registration {
    let (start, len) = (host.address() as u64, host.page_bytes() as u64 * u64::from(host.count()));
    let first = start.next_multiple_of(SYSTEM_PAGE_BYTES);
    let end = (start + len) / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES;
    let len = end.saturating_sub(first);
    let registration = Registration::new(first, len, false, Box::new(Whole(len)));
    registration.extend(device);
    registration
}

/// Memory of which all pages are used: registering creates those that do not exist.
struct Whole(u64);

impl Populated for Whole {
    fn next(&self, offset: u64) -> Option<(u64, u64)> {
        (offset < self.0).then(|| (offset, self.0 - offset))
    }
}

fn fault(error: impl std::fmt::Display) -> Fault {
    Fault::Other(error.to_string())
}
