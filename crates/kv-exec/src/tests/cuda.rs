//! The device is memory of the stand-in for the CUDA driver: from there to the store and back, with the order
//! of streams. The model works on a stream of its own, whose work happens only when a call waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tiffin_embedded::Embedded;
use tiffin_gpu::{Stream, mapped_address};
use tiffin_kv::{CachedTokens, Config};
use tiffin_transport::copy::{copy_in, copy_out};
use tokio::runtime::Runtime;

#[path = "../../../gpu/tests/standin/support.rs"]
#[expect(dead_code, reason = "the tests of the transfers use the rest")]
mod driver;

use driver::{Standin, standin};

use super::support::{LONG, MemoryStore, PAGE_BYTES, Toy, ToyMemory, config, prompt};
use crate::{
    ClusterStore, CudaDevice, CudaError, CudaLayer, Device, Fault, Fence, LoadProgress, PageReadGuard,
    PageStore, PageWriteGuard, Pages, Stop,
};

/// Bytes of a row of each layer: one layer, layers of several sizes, and as many as a model has.
const SHAPES: [&[usize]; 3] = [&[PAGE_BYTES], &[100, 56, 100], &[16; 16]];

/// The layers in the stand-in, as the model uses them.
struct Layers {
    standin: Standin,
    rows: &'static [usize],
    starts: Vec<u64>,
    /// The model writes pages here first, and then copies them on its stream.
    staged: u64,
    stream: u64,
}

impl Layers {
    fn new(standin: Standin, rows: &'static [usize], count: u32, stream: u64) -> Self {
        let starts = rows.iter().map(|row| standin.alloc(row * count as usize)).collect();
        let staged = standin.alloc(PAGE_BYTES * 64);
        Self { standin, rows, starts, staged, stream }
    }

    /// Address and length of the rows of a page.
    fn rows_of(&self, page: u32) -> impl Iterator<Item = (u64, usize)> {
        let row = move |(start, len): (&u64, &usize)| (start + u64::from(page) * *len as u64, *len);
        self.starts.iter().zip(self.rows).map(row)
    }

    fn parts(&self) -> Vec<CudaLayer> {
        let pointer = |start: &u64| NonNull::new(std::ptr::with_exposed_provenance_mut(*start as usize));
        let layer = |(start, row_bytes): (&u64, &usize)| CudaLayer {
            start: pointer(start).unwrap(),
            row_bytes: *row_bytes,
        };
        self.starts.iter().zip(self.rows).map(layer).collect()
    }

    /// A device of these layers that stays allocated.
    fn device(&self, count: u32, host: &Arc<Pages>, stream: u64) -> Result<CudaDevice, CudaError> {
        let (stream, host) = (Stream::of_handle(stream), Arc::clone(host));
        // SAFETY: the stand-in checks addresses and streams at each call.
        unsafe { CudaDevice::new(stream, self.parts(), count, host, Box::new(())) }
    }
}

impl ToyMemory for Layers {
    fn content(&self, page: u32) -> Vec<u8> {
        // What the model has begun comes first.
        self.standin.synchronize(self.stream);
        self.rows_of(page).flat_map(|(start, len)| self.standin.read(start, len)).collect()
    }

    fn compute(&self, page: u32, bytes: &[u8]) {
        let staged = self.staged + u64::from(page) * PAGE_BYTES as u64;
        self.standin.write(staged, bytes);
        let mut at = 0;
        for (start, len) in self.rows_of(page) {
            self.standin.copy(start, staged + at, len, self.stream);
            at += len as u64;
        }
    }
}

/// A device that forgets what comes before its operations.
struct Unfenced(CudaDevice);

impl Device for Unfenced {
    fn load(&self, pages: &[(PageReadGuard<'_>, u32)], stop: &Stop) -> Result<u32, Fault> {
        self.0.load(pages, stop)
    }

    fn save(&self, pages: &[(u32, PageWriteGuard<'_>)], stop: &Stop) -> Result<u32, Fault> {
        self.0.save(pages, stop)
    }

    fn fence(&self) -> Result<Option<Arc<dyn Fence>>, Fault> {
        Ok(None)
    }
}

/// Host pages in whole pages of the system, so that all of them are registered.
fn host_pages(count: u32) -> Arc<Pages> {
    Arc::new(Pages::allocate(count, PAGE_BYTES).unwrap())
}

/// Waits until the host's pages are registered.
fn until_registered(host: &Pages) {
    let (start, len) = (host.address() as u64, u64::from(host.count()) * PAGE_BYTES as u64);
    let began = Instant::now();
    while mapped_address(start, len).is_none() {
        assert!(began.elapsed() < LONG, "the host's pages are not registered");
        std::thread::yield_now();
    }
}

/// A toy whose model works on a stream of its own. The engine waits for that one, or for another.
fn toy(
    (rows, groups): (&'static [usize], u32),
    config: Config,
    store: Box<dyn PageStore>,
    order: Order,
) -> Toy {
    let standin = Standin::load();
    let stream = standin.stream(1);
    let named = if order == Order::OtherStream { standin.stream(1) } else { stream };
    let layers = Layers::new(standin, rows, config.device_pages, stream);
    let host = host_pages(config.host_pages);
    let device = layers.device(config.device_pages, &host, named).unwrap();
    let device = if groups > 1 { device.with_groups(groups).unwrap() } else { device };
    until_registered(&host);
    let device: Box<dyn Device> =
        if order == Order::Forgotten { Box::new(Unfenced(device)) } else { Box::new(device) };
    Toy::on(config, host, (Box::new(layers), device), store, None)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Kept,
    OtherStream,
    Forgotten,
}

fn turn() -> MutexGuard<'static, ()> {
    standin().0
}

fn found(device: u32, host: u32, store: u32) -> CachedTokens {
    CachedTokens { device, host, store }
}

#[test]
fn pages_of_a_gpu_come_back_from_every_tier() {
    let _turn = turn();
    let runtime = Runtime::new().unwrap();
    for shape in [(SHAPES[0], 1), (SHAPES[1], 1), (SHAPES[2], 1), (SHAPES[1], 9), (SHAPES[2], 5)] {
        let cluster = runtime.block_on(Embedded::start(16 << 20)).unwrap();
        let client = || {
            let connecting = tiffin_client::Client::connect(cluster.client.options().clone());
            Box::new(ClusterStore::new(runtime.block_on(connecting).unwrap(), runtime.handle().clone()))
        };
        let mut it = toy(shape, config(), client(), Order::Kept);
        let long = prompt(1, 21);
        assert_eq!(it.serve(&long), found(0, 0, 0));
        it.settle();
        assert_eq!(it.serve(&long), found(20, 0, 0));
        it.serve(&prompt(2, 29));
        it.settle();
        assert_eq!(it.serve(&long), found(0, 20, 0), "a load from the host");
        for seed in 3..7 {
            it.serve(&prompt(seed, 29));
            it.settle();
        }
        assert_eq!(it.serve(&long), found(0, 0, 20), "a fetch from the store, then a load");
        let mut other = toy(shape, config(), client(), Order::Kept);
        assert_eq!(other.serve(&long), found(0, 0, 20), "memory of another engine");
        for moved in [it.executor.moved(), other.executor.moved()] {
            assert_eq!((moved.faults, moved.panics, moved.conflicts), (0, 0, 0), "{:?}", moved.last_fault);
        }
        drop((it, other));
        runtime.block_on(cluster.stop(tiffin_client::Deadline::after(LONG))).unwrap();
    }
}

#[test]
fn missing_wait_shows_as_wrong_bytes() {
    let _turn = turn();
    for (order, is_right) in [(Order::Kept, true), (Order::OtherStream, false), (Order::Forgotten, false)] {
        let store = MemoryStore::new();
        let mut it = toy((SHAPES[2], 1), config(), Box::new(Arc::clone(&store)), order);
        it.serve(&prompt(1, 21));
        it.settle();
        assert_eq!(store.len(), 5);
        let mut other = toy((SHAPES[2], 1), config(), Box::new(Arc::clone(&store)), Order::Kept);
        let compared = catch_unwind(AssertUnwindSafe(|| other.serve(&prompt(1, 21))));
        assert_eq!(compared.is_ok(), is_right);
    }
}

#[test]
fn save_does_not_wait_for_later_work() {
    let _turn = turn();
    let standin = Standin::load();
    let (stream, scratch) = (standin.stream(1), standin.alloc(64));
    let config = config();
    let layers = Layers::new(Standin::load(), SHAPES[2], config.device_pages, stream);
    let host = host_pages(4);
    let device = layers.device(config.device_pages, &host, stream).unwrap();
    let stop = Stop::at(Instant::now() + LONG);
    standin.write(scratch, &[0; 64]);
    layers.compute(3, &[7; PAGE_BYTES]);
    let fence = device.fence().unwrap().unwrap();
    // The next pass of the model.
    standin.fill(scratch, 1, 64, stream);
    fence.wait(&stop).unwrap();
    assert_eq!(device.save(&[(3, host.write(2).unwrap())], &stop), Ok(1));
    let mut saved = [0; PAGE_BYTES];
    copy_out(host.read(2).unwrap().bytes(), &mut saved);
    assert_eq!(saved, [7; PAGE_BYTES]);
    assert_eq!(standin.read(scratch, 64), [0; 64], "the stand-in runs what was waited for, and nothing else");
    assert_eq!(device.load(&[(host.read(2).unwrap(), 5)], &stop), Ok(1));
    assert_eq!(standin.read(scratch, 64), [0; 64]);
    assert_eq!(layers.content(5), [7; PAGE_BYTES]);
    assert_eq!(standin.read(scratch, 64), [1; 64]);
}

/// Layers whose rows are zero, and a device of them that loads in four groups of four layers.
fn grouped(host: &Arc<Pages>) -> (Layers, CudaDevice) {
    let standin = Standin::load();
    let stream = standin.stream(1);
    let layers = Layers::new(standin, SHAPES[2], host.count(), stream);
    for (start, row) in layers.starts.iter().zip(layers.rows) {
        layers.standin.write(*start, &vec![0; row * host.count() as usize]);
    }
    for page in 0..host.count() {
        copy_in(&[page as u8 + 1; PAGE_BYTES], host.write(page).unwrap().bytes());
    }
    let device = layers.device(host.count(), host, stream).unwrap().with_groups(4).unwrap();
    (layers, device)
}

#[test]
fn stream_waits_for_one_group_of_layers_and_no_more() {
    let _turn = turn();
    let host = host_pages(16);
    let (layers, device) = grouped(&host);
    until_registered(&host);
    let (standin, scratch) = (Standin::load(), layers.standin.alloc(16));
    let (reader, row) = (standin.stream(1), SHAPES[2][0]);
    // The work of the model before the step, which the load must not overtake.
    standin.fill(layers.starts[0], 0xee, 16 * row, layers.stream);
    let fence = device.fence().unwrap().unwrap();
    // The thread that loads does not make the stand-in copy.
    let Stream::Named(copies) = device.copies().unwrap() else { panic!("a stream of its own") };
    standin.stall(copies, true);
    let (progress, stop) = (LoadProgress::default(), Stop::at(Instant::now() + LONG));
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let pages: Vec<_> = (0..16).map(|page| (host.read(page).unwrap(), 15 - page)).collect();
            device.load_after(Some(&*fence), &pages, &progress, &stop)
        });
        for layer in [0, 3, 4, 11, 15] {
            assert_eq!(progress.order(layer, Stream::Named(reader), Instant::now() + LONG), Ok(true));
            standin.copy(scratch, layers.starts[layer as usize], row, reader);
            standin.synchronize(reader);
            assert_eq!(standin.read(scratch, row), [16; 16], "layer {layer}");
            for later in (layer as usize / 4 + 1) * 4..16 {
                assert_eq!(standin.read(layers.starts[later], row), [0; 16], "{later} after {layer}");
            }
        }
        assert_eq!(load.join().unwrap(), Ok(16));
    });
    standin.stall(copies, false);
    // The load has ended: there is nothing to wait for.
    progress.end();
    assert_eq!(progress.order(0, Stream::Named(reader), Instant::now()), Ok(true));
    for page in 0..16 {
        assert_eq!(layers.content(page), [16 - page as u8; PAGE_BYTES]);
    }
}

#[test]
fn groups_of_layers_end_with_their_load() {
    let _turn = turn();
    let host = host_pages(16);
    let (layers, device) = grouped(&host);
    let standin = Standin::load();
    let load = |stop: &Stop| {
        let progress = LoadProgress::default();
        let loaded = device.load_after(None, &[(host.read(0).unwrap(), 1)], &progress, stop);
        (loaded, progress)
    };
    // Nothing is registered yet, or all is: both are right.
    let long = Stop::at(Instant::now() + LONG);
    assert_eq!(load(&long).0, Ok(1));
    until_registered(&host);
    assert_eq!(load(&long).0, Ok(1));
    assert_eq!(layers.content(1), [1; PAGE_BYTES]);
    // Nothing is in flight after an error. Streams of other tests may have work left.
    let before = standin.counts().pending;
    for (kind, count) in [(driver::COPY, 1), (driver::RUNNING, 1)] {
        standin.fail(kind, 2, count);
        assert!(matches!(load(&long).0, Err(Fault::Other(_))), "{kind}");
        standin.fail(kind, 0, 0);
        assert_eq!(standin.counts().pending, before);
    }
    let stopped = load(&Stop::at(Instant::now() - Duration::from_nanos(1)));
    assert!(matches!(stopped.0, Ok(1) | Err(Fault::Stopped)), "{:?}", stopped.0);
    assert_eq!(standin.counts().pending, before);
    // A stream that does not exist, and a layer that is not queued in time.
    let (_, progress) = load(&long);
    assert_eq!(progress.order(0, Stream::Named(0x7777), Instant::now()), Ok(true), "it has ended");
    let empty = LoadProgress::default();
    assert_eq!(empty.order(0, Stream::Legacy, Instant::now()), Ok(false));
    standin.free(layers.starts[1]);
    assert!(matches!(load(&long).0, Err(Fault::Other(_))));
}

#[test]
fn pages_of_all_layers_are_one_kernel() {
    const PAGES: u32 = 256;
    let _turn = turn();
    let standin = Standin::load();
    let host = host_pages(PAGES);
    let layers = Layers::new(Standin::load(), SHAPES[2], PAGES, standin.stream(1));
    let device = layers.device(PAGES, &host, layers.stream).unwrap();
    until_registered(&host);
    let stop = Stop::at(Instant::now() + LONG);
    let content = |page: u32| vec![(page * 7 + 1) as u8; PAGE_BYTES];
    for page in 0..PAGES {
        copy_in(&content(page), host.write(page).unwrap().bytes());
    }
    // Every second page, in another order than that of the host.
    let numbers = || (0..PAGES / 2).map(|at| (at, (PAGES - 1) - at * 2));
    let guards: Vec<_> = numbers().map(|(on_host, page)| (host.read(on_host).unwrap(), page)).collect();
    let counted = |work: &dyn Fn() -> Result<u32, Fault>| {
        let before = standin.counts();
        assert_eq!(work(), Ok(PAGES / 2));
        let after = standin.counts();
        (after.copies - before.copies, after.batched - before.batched, after.launches - before.launches)
    };
    // The list, and one copy, whose pages one kernel moves.
    let (copies, batched, launches) = counted(&|| device.load(&guards, &stop));
    assert!(copies <= 2 && batched == 0 && launches == 1, "{copies} {batched} {launches}");
    drop(guards);
    for page in 0..PAGES {
        copy_in(&[0; PAGE_BYTES], host.write(page).unwrap().bytes());
    }
    // Other pages of the host, in order: the list, and one copy of what one kernel has moved.
    let guards: Vec<_> =
        numbers().map(|(on_host, page)| (page, host.write(on_host + PAGES / 2).unwrap())).collect();
    let (copies, batched, launches) = counted(&|| device.save(&guards, &stop));
    assert!(copies <= 2 && batched == 0 && launches == 1, "{copies} {batched} {launches}");
    drop(guards);
    for (at, page) in numbers() {
        let mut saved = vec![0; PAGE_BYTES];
        copy_out(host.read(at + PAGES / 2).unwrap().bytes(), &mut saved);
        assert_eq!(saved, content(at), "device page {page}");
    }
}

#[test]
fn pages_in_use_and_freed_memory_are_faults() {
    let _turn = turn();
    let standin = Standin::load();
    let host = host_pages(4);
    let layers = Layers::new(Standin::load(), SHAPES[1], 4, 0);
    let device = layers.device(4, &host, 0).unwrap();
    let stop = Stop::at(Instant::now() + LONG);
    let load = |from, to| device.load(&[(host.read(from).unwrap(), to)], &stop);
    assert_eq!(load(0, 4), Err(Fault::Page(4)), "there is no such page");
    let twice = [(host.read(0).unwrap(), 1), (host.read(1).unwrap(), 1)];
    assert_eq!(device.load(&twice, &stop), Err(Fault::Page(1)), "two writers");
    drop(twice);
    assert_eq!(load(0, 1), Ok(1));
    let stopped = Stop::at(Instant::now() - Duration::from_nanos(1));
    let done = device.load(&[(host.read(0).unwrap(), 1)], &stopped);
    assert!(matches!(done, Ok(1) | Err(Fault::Stopped)), "{done:?}");
    // One copy fails, and no other.
    standin.fail(driver::COPY, 0, 1);
    assert!(matches!(load(0, 1), Err(Fault::Other(_))));
    assert_eq!(load(0, 1), Ok(1));
    standin.free(layers.starts[1]);
    let Err(Fault::Other(said)) = load(0, 1) else { panic!("the memory is freed") };
    assert!(said.contains("layer 1 cannot be used") && said.contains("hint"), "{said}");
    assert_eq!(standin.counts().pending, 0);
}

#[test]
fn layers_that_are_no_device_are_refused() {
    let _turn = turn();
    let host = host_pages(4);
    let mut layers = Layers::new(Standin::load(), SHAPES[1], 4, 0);
    let refused = |layers: &Layers, count, host: &Arc<Pages>| layers.device(count, host, 0).map(drop);
    let larger = Arc::new(Pages::allocate(4, PAGE_BYTES + 1).unwrap());
    assert_eq!(refused(&layers, 4, &larger), Err(CudaError::PageBytes { device: 256, host: 257 }));
    assert!(matches!(refused(&layers, 5000, &host), Err(CudaError::Device { layer: 0, .. })));
    let other = std::mem::take(&mut layers.starts[1]);
    layers.starts[1] = layers.starts[0] + 176;
    assert_eq!(refused(&layers, 4, &host), Err(CudaError::Overlap { first: 0, second: 1 }));
    // Its rows are shorter, so that it is the first of two with one start.
    layers.starts[1] = layers.starts[0];
    assert_eq!(refused(&layers, 4, &host), Err(CudaError::Overlap { first: 1, second: 0 }));
    layers.starts[1] = other;
    assert_eq!(refused(&layers, 4, &host), Ok(()));
    layers.standin.enter(1);
    layers.starts[2] = layers.standin.alloc(4 * 100);
    assert_eq!(refused(&layers, 4, &host), Err(CudaError::OtherDevice { layer: 2, found: 1, first: 0 }));
    let on_host = [0_u8; 1];
    layers.starts[2] = on_host.as_ptr().expose_provenance() as u64;
    assert!(matches!(refused(&layers, 4, &host), Err(CudaError::Device { layer: 2, .. })));
    layers.starts.clear();
    assert_eq!(refused(&layers, 4, &host), Err(CudaError::NoLayers));
}
