//! Views of objects in place.
//!
//! The client asks the node to keep the object, then checks the stamp again. From then on the bytes do not
//! change until the view ends, whatever happens to the name.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tiffin_session::Views;
use tiffin_transport::MappedRange;
use tiffin_types::message::{ClientToMaster, ClientToNode, Found, Reply, Resolve, ResolveOutcome};
use tiffin_types::{Generation, Location, SegmentId};
use tokio::time::Instant;

use crate::chores::Chore;
use crate::inner::Inner;
use crate::running::Running;
use crate::{Client, Deadline, Error, GetOptions, Key, Operation, Part, Path, batch, buffers};

/// How often an object that changes meanwhile is resolved again.
const TRIES_MAX: u32 = 16;

/// An object's bytes: in place in a node's memory if that is mapped, otherwise a copy.
///
/// A borrowed view keeps its bytes until it is dropped, even after a delete, and keeps the client
/// connected. It must not be used in a forked child: there [`Self::bytes`] fails.
pub struct View {
    generation: Generation,
    bytes: Bytes,
}

enum Bytes {
    Borrowed { range: MappedRange, part: Range<usize>, _count: ViewCount },
    Copied(Vec<u8>),
}

impl View {
    /// The generation of the object.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The bytes. Fails only in a forked child, where they are not mapped.
    pub fn bytes(&self) -> Result<&[u8], Error> {
        match &self.bytes {
            Bytes::Borrowed { range, part, .. } => {
                let bytes = buffers::held_bytes(range).ok_or(Error::Forked)?;
                bytes.get(part.clone()).ok_or_else(Error::misfit)
            }
            Bytes::Copied(bytes) => Ok(bytes),
        }
    }

    /// The address at which kernels of a device read the bytes in place. `None` while they are not
    /// registered with the driver, which the first call begins; and always for copies.
    #[must_use]
    pub fn device_address(&self, device: u32) -> Option<u64> {
        match &self.bytes {
            Bytes::Borrowed { range, part, .. } => Some(range.device_address(device)? + part.start as u64),
            Bytes::Copied(_) => None,
        }
    }

    /// The object in place, and the part of it that is viewed; `None` for copies.
    pub(crate) fn in_place(&self) -> Option<(&MappedRange, &Range<usize>)> {
        match &self.bytes {
            Bytes::Borrowed { range, part, .. } => Some((range, part)),
            Bytes::Copied(_) => None,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Borrowed { part, .. } => part.len(),
            Bytes::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bytes are in place, without a copy.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        matches!(self.bytes, Bytes::Borrowed { .. })
    }
}

/// Prints the number of bytes, not the bytes.
impl fmt::Debug for View {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_borrowed() { "borrowed" } else { "copied" };
        write!(out, "View({} bytes of {}, {how})", self.len(), self.generation)
    }
}

impl Client {
    /// Views objects in place, without a copy, if they are contiguous in memory that is mapped here;
    /// otherwise makes a copy. [`View::is_borrowed`] says which.
    pub async fn view(&self, keys: &[Key], deadline: Deadline) -> Vec<Result<View, Error>> {
        let parts: Vec<_> = keys.iter().map(|key| Part { key: key.clone(), range: None }).collect();
        self.view_parts(&parts, deadline).await
    }

    /// Views ranges of objects, as [`Self::view`] does whole objects. A borrowed view keeps the memory of
    /// the whole object.
    pub async fn view_parts(&self, parts: &[Part], deadline: Deadline) -> Vec<Result<View, Error>> {
        match self.inner.enter("view", deadline) {
            Ok(busy) => {
                let began = Instant::now();
                let views = busy.run(view(&self.inner, parts, deadline)).await;
                self.inner.measured.measures.record(Operation::View, path_of(&views), began.elapsed(), 0);
                views
            }
            Err(error) => batch::all(parts.len(), &error),
        }
    }
}

/// How the objects of a call were reached. Those that cannot be viewed in place are copied: a get measures
/// its path. A call that found none has only asked the master.
fn path_of(views: &[Result<View, Error>]) -> Path {
    let found = || views.iter().flatten();
    match (found().count(), found().all(View::is_borrowed)) {
        (0, _) => Path::Master,
        (_, true) => Path::SharedMemory,
        (_, false) => Path::Tcp,
    }
}

/// One reference of a view at a node; dropping it ends the view.
struct ViewCount {
    inner: Arc<Inner>,
    location: Location,
}

impl ViewCount {
    /// A view that the node has begun, according to its reply on this connection. `None` if the connection
    /// was replaced since: then the node has ended the view.
    fn new(inner: &Arc<Inner>, location: Location, connection: u64) -> Option<Self> {
        let begun = |views: &mut Views| views.begun(connection, location.slot_ref());
        inner.nodes.with_views(location.segment, begun).then(|| Self { inner: Arc::clone(inner), location })
    }
}

impl Drop for ViewCount {
    fn drop(&mut self) {
        let Location { segment, .. } = self.location;
        self.inner.nodes.with_views(segment, |views| views.end(self.location.slot_ref()));
        let _gone = self.inner.chores.send(Chore::EndViews(segment));
    }
}

/// The outcome for one object.
enum Step {
    Viewed(View),
    /// It changed meanwhile.
    Again,
    /// It cannot be viewed in place.
    Copy,
}

/// An object to view: its index in the result, its copy, and the range of its bytes.
type Wanted = (usize, Location, Found, Range<u64>);

/// Views objects, in the order of the request.
pub(crate) async fn view(inner: &Arc<Inner>, parts: &[Part], deadline: Deadline) -> Vec<Result<View, Error>> {
    let mut views = borrow(inner, parts, deadline).await;
    let is_left = |(index, view): (usize, &Option<_>)| view.is_none().then_some(index);
    let copies: Vec<_> = views.iter().enumerate().filter_map(is_left).collect();
    copy(inner, parts, &copies, &mut views, deadline).await;
    let lost = || Err(Error::Unreachable { what: "the reply does not match the request".to_owned() });
    views.into_iter().map(|view| view.unwrap_or_else(lost)).collect()
}

/// Views objects in place, in the order of the request; `None` for those that must be copied.
pub(crate) async fn borrow(
    inner: &Arc<Inner>,
    parts: &[Part],
    deadline: Deadline,
) -> Vec<Option<Result<View, Error>>> {
    let mut views: Vec<Option<Result<View, Error>>> = parts.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..parts.len()).collect();
    for _ in 0..TRIES_MAX {
        if left.is_empty() {
            break;
        }
        let mut again = Vec::new();
        for (index, step) in once(inner, parts, &left, deadline).await {
            match step {
                Ok(Step::Viewed(view)) => set(&mut views, index, Ok(view)),
                Ok(Step::Again) => again.push(index),
                // An object that changes all the time is copied, too: a get knows when to give up.
                Ok(Step::Copy) => {}
                Err(error) => set(&mut views, index, Err(error)),
            }
        }
        left = again;
    }
    views
}

async fn copy(
    inner: &Inner,
    parts: &[Part],
    indexes: &[usize],
    views: &mut [Option<Result<View, Error>>],
    deadline: Deadline,
) {
    let wanted = indexes.iter().filter_map(|&index| parts.get(index).cloned());
    let (keys, ranges): (Vec<_>, Vec<_>) = wanted.map(|it| (it.key, it.range)).unzip();
    let objects = buffers::get_owned(inner, &keys, ranges, GetOptions::default(), deadline).await;
    for (&index, object) in indexes.iter().zip(objects) {
        let view = object.map(|it| View { generation: it.generation, bytes: Bytes::Copied(it.bytes) });
        set(views, index, view);
    }
}

fn set(views: &mut [Option<Result<View, Error>>], index: usize, view: Result<View, Error>) {
    if let Some(place) = views.get_mut(index) {
        *place = Some(view);
    }
}

/// Resolves all objects, and sends each node one request.
async fn once(
    inner: &Arc<Inner>,
    parts: &[Part],
    indexes: &[usize],
    deadline: Deadline,
) -> Vec<(usize, Result<Step, Error>)> {
    let wanted: Vec<_> = indexes.iter().filter_map(|&index| parts.get(index)).collect();
    let mut steps = Vec::with_capacity(indexes.len());
    let mut by_node: BTreeMap<SegmentId, Vec<Wanted>> = BTreeMap::new();
    for piece in batch::pieces(wanted.iter().map(|it| &it.key)) {
        let indexes = indexes.get(piece.clone()).unwrap_or_default();
        let parts = wanted.get(piece).unwrap_or_default();
        let keys = parts.iter().map(|it| it.key.clone()).collect();
        let report_wait_ms = crate::names::wait_ms(deadline);
        let resolve = Resolve { keys, touch: true, locate: true, report_wait_ms, ..Resolve::default() };
        let outcomes = match inner.ask(&ClientToMaster::Resolve(resolve), deadline).await {
            Ok(Reply::Resolved(resolved)) => resolved.items,
            Ok(_) => Vec::new(),
            Err(error) => {
                steps.extend(indexes.iter().map(|&index| (index, Err(error.clone()))));
                continue;
            }
        };
        for ((&index, part), outcome) in indexes.iter().zip(parts).zip(outcomes) {
            match located(inner, part, outcome) {
                Ok(Some((it, found, range))) => {
                    by_node.entry(it.segment).or_default().push((index, it, found, range));
                }
                Ok(None) => steps.push((index, Ok(Step::Copy))),
                Err(error) => steps.push((index, Err(error))),
            }
        }
    }
    let mut running = Running::new();
    for (segment, wanted) in by_node {
        running.push(begin(inner, segment, wanted, deadline));
    }
    steps.extend(running.all().await.into_iter().flatten());
    steps
}

/// The closest copy of an object and the requested range, if there is a copy.
fn located(
    inner: &Inner,
    part: &Part,
    outcome: ResolveOutcome,
) -> Result<Option<(Location, Found, Range<u64>)>, Error> {
    let key = part.key.clone();
    let found = match outcome {
        ResolveOutcome::Absent => return Err(Error::NotFound { key }),
        ResolveOutcome::Unavailable(nodes) => return Err(Error::NodeDown { key, nodes }),
        ResolveOutcome::Found(found) => found,
    };
    let Range { start, end } = part.range.clone().unwrap_or(0..found.len);
    if start > end || end > found.len {
        return Err(Error::OutOfRange { key, len: found.len, start, end });
    }
    let nearest = found.replicas.iter().copied().min_by_key(|it| inner.nodes.distance(it.segment));
    Ok(nearest.map(|it| (it, found, start..end)))
}

/// Begins views at one node.
async fn begin(
    inner: &Arc<Inner>,
    segment: SegmentId,
    wanted: Vec<Wanted>,
    deadline: Deadline,
) -> Vec<(usize, Result<Step, Error>)> {
    let everything = |step: fn() -> Step| wanted.iter().map(|(index, ..)| (*index, Ok(step()))).collect();
    // If the node has a problem, a get finds another copy or reports the problem.
    let Ok(route) = inner.nodes.route(segment, deadline).await else { return everything(|| Step::Copy) };
    if route.attachment().is_none() {
        return everything(|| Step::Copy);
    }
    let slot_refs: Vec<_> = wanted.iter().map(|(_, location, ..)| location.slot_ref()).collect();
    let locations: Vec<_> = wanted.iter().map(|(_, location, ..)| *location).collect();
    // From here on a new connection lists the views, so that the node ends those whose reply was lost.
    inner.nodes.with_views(segment, |_| ());
    let connection = route.views_connection.load(Ordering::Acquire);
    let client = inner.weak();
    let late = move |reply| {
        let (Reply::ViewsBegun(begun), Some(inner)) = (reply, client.upgrade()) else { return };
        for (location, _) in locations.into_iter().zip(begun).filter(|(_, begun)| *begun) {
            drop(ViewCount::new(&inner, location, connection));
        }
    };
    let request = ClientToNode::BeginViews(slot_refs);
    let begun = match route.connection.call_or(&request, deadline.instant(), late).await {
        Ok(Reply::ViewsBegun(begun)) => begun,
        Ok(_) => return everything(|| Step::Copy),
        Err(_) => {
            let _gone = inner.chores.send(Chore::EndViews(segment));
            return everything(|| Step::Copy);
        }
    };
    let steps = wanted.into_iter().zip(begun).map(|((index, location, found, part), begun)| {
        let Some(count) = begun.then(|| ViewCount::new(inner, location, connection)).flatten() else {
            return (index, Ok(Step::Again));
        };
        let range = route.view(location.slot.0, location.stamp.0);
        let step = match range.filter(|range| range.len() as u64 == found.len) {
            Some(range) => Step::Viewed(View {
                generation: found.generation,
                bytes: Bytes::Borrowed { range, part: part.start as usize..part.end as usize, _count: count },
            }),
            // It has several extents.
            None => Step::Copy,
        };
        (index, Ok(step))
    });
    steps.collect()
}
