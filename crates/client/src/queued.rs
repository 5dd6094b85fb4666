//! Gets whose copies are queued on streams of devices, so that the call returns before they end.
//!
//! The client views the objects, checks their stamps, and queues copies from where they are. The view keeps
//! the bytes from then on, whatever happens to the name, so that the copies are right if the device has
//! carried them out. The handle says whether it has.
//!
//! **Invariant:** a view and its target live until the copies between them have ended: if the handle is
//! dropped before, a task waits for them, and if there is no runtime for it, the thread that drops them. If
//! nothing asks the handle, they are released soon after that (see `unfinished`).

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_transport::gpu::{Place, QUEUED_MAX};
use tiffin_transport::queued::{Load, OwnedTarget, QueueOutcome, QueuedCopy};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::inner::Inner;
use crate::unfinished::Work;
use crate::{
    Client, Deadline, Error, Fetched, GetInto, GetOptions, Key, Operation, Part, Path, View, get, view,
};

/// How long a task asks for the end of copies without a pause.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// The pause between later questions.
const PAUSE: Duration = Duration::from_millis(1);

/// A get into memory that is filled after the call.
#[derive(Clone)]
pub struct QueueInto {
    /// The key.
    pub key: Key,
    /// The memory, on a device. The copies are queued on the stream of its place.
    pub target: Arc<dyn OwnedTarget>,
    /// The range of the object; all of it without one.
    pub range: Option<Range<u64>>,
}

/// Gets whose copies may not have ended. Clones are the same gets.
#[derive(Clone)]
pub struct QueuedGet {
    shared: Arc<Shared>,
}

struct Shared {
    /// Where a task waits for copies whose handle was dropped; `None` if this is in such a task.
    runtime: Option<Handle>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    copies: Vec<Copies>,
    outcomes: Vec<Result<Fetched, Error>>,
}

/// The copies on one stream.
struct Copies {
    // Dropped before the views: it waits for the device.
    queued: QueuedCopy,
    _views: Vec<View>,
    /// The indexes of the gets.
    items: Vec<usize>,
}

impl Client {
    /// Reads objects into memory of devices, without waiting for the copies: they are queued on the stream of
    /// each target's place. The handle says when they have ended, and whether the bytes count. Until then it
    /// keeps the targets, and views of the objects, so that their bytes do not change. Objects that cannot be
    /// viewed in place are read before this returns.
    pub async fn queue_into(&self, items: Vec<QueueInto>, deadline: Deadline) -> Result<QueuedGet, Error> {
        let busy = self.inner.enter("get_into", deadline)?;
        busy.run(async { Ok(queue_into(&self.inner, items, deadline).await) }).await
    }
}

impl QueuedGet {
    fn new(inner: &Inner, items: usize) -> Self {
        let outcomes = (0..items).map(|_| Err(Error::timeout("the get"))).collect();
        let state = Mutex::new(State { copies: Vec::new(), outcomes });
        Self { shared: Arc::new(Shared { runtime: Some(inner.runtime.clone()), state }) }
    }

    /// Whether all copies have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.poll()
    }

    /// Waits until all copies have ended. Returns the outcome of each get, in the order of the request. After
    /// a timeout the copies are still queued.
    pub async fn wait(&self, deadline: Deadline) -> Result<Vec<Result<Fetched, Error>>, Error> {
        match timeout_at(deadline.instant(), ended(&self.shared)).await {
            Ok(()) => Ok(self.shared.lock().outcomes.clone()),
            Err(_) => Err(Error::timeout("waiting for queued copies")),
        }
    }

    fn set(&self, index: usize, outcome: Result<Fetched, Error>) {
        set(&mut self.shared.lock().outcomes, index, outcome);
    }
}

fn set(outcomes: &mut [Result<Fetched, Error>], index: usize, outcome: Result<Fetched, Error>) {
    if let Some(place) = outcomes.get_mut(index) {
        *place = outcome;
    }
}

impl Work for Shared {
    fn poll(&self) -> bool {
        let mut ended = Vec::new();
        let mut state = self.lock();
        let State { copies, outcomes } = &mut *state;
        let mut left = Vec::with_capacity(copies.len());
        for mut it in copies.drain(..) {
            match it.queued.is_done() {
                Ok(false) => left.push(it),
                Ok(true) => ended.push(it),
                Err(error) => {
                    let what = error.to_string();
                    for item in &it.items {
                        set(outcomes, *item, Err(Error::Device { what: what.clone() }));
                    }
                    ended.push(it);
                }
            }
        }
        *copies = left;
        let is_done = copies.is_empty();
        // Targets may run code of the caller when they are dropped.
        drop(state);
        drop(ended);
        is_done
    }

    fn has_ended(&self) -> bool {
        self.lock().copies.is_empty()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.lock());
        if let Some(runtime) = self.runtime.take().filter(|_| !state.copies.is_empty()) {
            let left = Self { runtime: None, state: Mutex::new(state) };
            // If the runtime has ended, the task is dropped at once: then this thread waits.
            runtime.spawn(async move { ended(&left).await });
        }
    }
}

async fn ended(shared: &Shared) {
    let began = Instant::now();
    while !shared.poll() {
        if began.elapsed() < SPIN_TIME {
            tokio::task::yield_now().await;
        } else {
            sleep(PAUSE).await;
        }
    }
}

async fn queue_into(inner: &Arc<Inner>, items: Vec<QueueInto>, deadline: Deadline) -> QueuedGet {
    let began = Instant::now();
    let get = QueuedGet::new(inner, items.len());
    let parts: Vec<_> =
        items.iter().map(|it| Part { key: it.key.clone(), range: it.range.clone() }).collect();
    let views = view::borrow(inner, &parts, deadline).await;
    let (mut left, mut ready) = (Vec::new(), Vec::new());
    for (index, (view, item)) in views.into_iter().zip(&items).enumerate() {
        match view {
            Some(Err(error)) => get.set(index, Err(error)),
            Some(Ok(view)) => match Wanted::new(index, view, item) {
                Some(wanted) => ready.push(wanted),
                None => left.push(index),
            },
            None => left.push(index),
        }
    }
    let mut bytes = 0;
    for (place, wanted) in by_place(ready) {
        let indexes: Vec<_> = wanted.iter().map(|it| it.index).collect();
        let all: u64 = wanted.iter().map(|it| it.load.part.len() as u64).sum();
        match queue(inner, &get, &place, wanted, deadline).await {
            Ok(true) => bytes += all,
            Ok(false) => left.extend(indexes),
            Err(error) => indexes.into_iter().for_each(|index| get.set(index, Err(error.clone()))),
        }
    }
    if bytes > 0 {
        inner.measured.measures.record(Operation::Get, Path::SharedMemory, began.elapsed(), bytes);
    }
    read_now(inner, &get, &items, &left, deadline).await;
    get
}

/// A get that can be queued.
struct Wanted {
    index: usize,
    view: View,
    load: Load,
}

impl Wanted {
    /// `None` if the object cannot be copied from where it is, or does not fit.
    fn new(index: usize, view: View, item: &QueueInto) -> Option<Self> {
        let (range, part) = view.in_place()?;
        let load = Load { range: range.clone(), part: part.clone(), target: Arc::clone(&item.target) };
        load.is_ready().then_some(Self { index, view, load })
    }
}

/// Those that can be queued together.
fn by_place(ready: Vec<Wanted>) -> Vec<(Place, Vec<Wanted>)> {
    let mut groups: Vec<(Place, Vec<Wanted>)> = Vec::new();
    for wanted in ready {
        let Some(place) = wanted.load.target.target().place().copied() else { continue };
        match groups.iter_mut().find(|(of, _)| *of == place) {
            Some((_, group)) => group.push(wanted),
            None => groups.push((place, vec![wanted])),
        }
    }
    groups
}

/// Queues copies on one stream. False if one of them must be read in another way.
async fn queue(
    inner: &Inner,
    get: &QueuedGet,
    place: &Place,
    wanted: Vec<Wanted>,
    deadline: Deadline,
) -> Result<bool, Error> {
    let loads: Vec<_> = wanted.iter().map(|it| it.load.clone()).collect();
    let queued = loop {
        let begun = QueuedCopy::begin(place, &loads);
        match begun.map_err(|error| Error::Device { what: error.to_string() })? {
            QueueOutcome::Queued(queued) => break queued,
            QueueOutcome::NotReady => return Ok(false),
            QueueOutcome::Full if deadline.has_passed() => {
                let device = place.device();
                let what = format!("{QUEUED_MAX} lists of copies are queued on device {device}");
                return Err(Error::Timeout { what });
            }
            QueueOutcome::Full => {
                inner.queued.poll();
                sleep(PAUSE).await;
            }
        }
    };
    let mut state = get.shared.lock();
    let mut items = Vec::with_capacity(wanted.len());
    let mut views = Vec::with_capacity(wanted.len());
    for Wanted { index, view, load } in wanted {
        let fetched = Fetched { generation: view.generation(), len: load.part.len() as u64 };
        set(&mut state.outcomes, index, Ok(fetched));
        items.push(index);
        views.push(view);
    }
    state.copies.push(Copies { queued, _views: views, items });
    let is_first = state.copies.len() == 1;
    drop(state);
    if is_first {
        let work: Arc<dyn Work> = Arc::<Shared>::clone(&get.shared);
        inner.queued.add(Arc::downgrade(&work), &inner.runtime);
    }
    Ok(true)
}

/// Reads what cannot be queued. Each transfer comes after the work of its stream, and waits for it.
async fn read_now(
    inner: &Inner,
    get: &QueuedGet,
    items: &[QueueInto],
    indexes: &[usize],
    deadline: Deadline,
) {
    let wanted = indexes.iter().filter_map(|&index| items.get(index));
    let gets: Vec<_> = wanted
        .map(|it| GetInto { key: it.key.clone(), targets: vec![it.target.target()], range: it.range.clone() })
        .collect();
    if gets.is_empty() {
        return;
    }
    let outcomes = get::get_into(inner, &gets, GetOptions::default(), deadline).await;
    indexes.iter().zip(outcomes).for_each(|(&index, outcome)| get.set(index, outcome));
}
