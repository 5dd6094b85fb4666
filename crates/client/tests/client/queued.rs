//! Gets whose copies are queued on a stream of the caller, over the stand-in for the CUDA driver: its work
//! happens when a call asks for its end, and not before.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tiffin_client::gpu::{DeviceError, QUEUED_MAX, Stream};
use tiffin_client::{
    Client, Deadline, DeleteOptions, DeviceMemory, Error, Fetched, Put, QueueInto, QueuedGet, SpaceWait,
};

#[path = "../../../gpu/tests/standin/support.rs"]
#[expect(dead_code, reason = "the tests of the transfers use the rest")]
mod driver;

use driver::{COPY, RUNNING, Standin, standin};

use crate::support::{Cluster, LONG, eventually, key, only, pattern, soon};

const MIB: usize = 1 << 20;
/// Bytes of the node's memory, of which an object of [`BIG`] bytes takes more than a half.
const MEMORY: u64 = 16 << 20;
const BIG: usize = 9 * MIB;
/// The bytes of targets before they are filled.
const MARK: u8 = 0xee;

/// A cluster whose memory is registered with the driver, a client of it, and a stream of the caller.
struct Bench {
    cluster: Cluster,
    client: Client,
    standin: Standin,
    stream: u64,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    #[expect(clippy::await_holding_lock, reason = "the tests take turns")]
    async fn new() -> Self {
        let (turn, standin) = standin();
        let cluster = Cluster::one(MEMORY).await;
        let client = cluster.client().await;
        let bench = Self { cluster, client, stream: standin.stream(1), standin, _turn: turn };
        bench.register(&bench.client).await;
        bench
    }

    /// Registers the memory of the node, as this client maps it.
    async fn register(&self, client: &Client) {
        self.put("first", 1).await;
        let view = only(client.view(&[key("first")], soon()).await).unwrap();
        eventually("the memory is registered", || view.device_address(0).is_some()).await;
    }

    async fn put(&self, name: &str, len: usize) {
        only(self.client.put(&[Put::new(key(name), &pattern(len, len))], soon()).await).unwrap();
    }

    async fn delete(&self, name: &str) {
        let deleted = self.client.delete(&[key(name)], DeleteOptions::default(), soon()).await;
        assert_eq!(deleted, [Ok(true)]);
    }

    /// Whether an object that takes more than a half of the memory can be put now.
    async fn has_space(&self) -> bool {
        let bytes = pattern(1, BIG);
        let put = self.client.put_with(&[Put::new(key("other"), &bytes)], SpaceWait::Never, soon()).await;
        match only(put) {
            Ok(_) => true,
            Err(Error::Full { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until there is memory for such an object.
    async fn until_space(&self) {
        let bytes = pattern(1, BIG);
        let put = [Put::new(key("other"), &bytes)];
        only(self.client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
    }

    /// Memory of the device that has no byte of an object.
    fn target(&self, len: usize) -> Arc<DeviceMemory> {
        let memory = DeviceMemory::allocate(0, Stream::of_handle(self.stream), len as u64).unwrap();
        self.standin.write(start(&memory), &vec![MARK; len]);
        Arc::new(memory)
    }

    fn content(&self, target: &DeviceMemory) -> Vec<u8> {
        self.standin.read(start(target), target.as_target().len())
    }

    async fn queue(&self, gets: &[(&str, &Arc<DeviceMemory>)]) -> QueuedGet {
        queue(&self.client, gets, soon()).await
    }
}

fn start(memory: &DeviceMemory) -> u64 {
    memory.as_target().as_mut_ptr().expose_provenance() as u64
}

async fn queue(client: &Client, gets: &[(&str, &Arc<DeviceMemory>)], deadline: Deadline) -> QueuedGet {
    let item = |(name, target): &(&str, &Arc<DeviceMemory>)| {
        let target = Arc::<DeviceMemory>::clone(target);
        QueueInto { key: key(name), target, range: None }
    };
    client.queue_into(gets.iter().map(item).collect(), deadline).await.unwrap()
}

/// The numbers of bytes of gets that have all succeeded.
async fn lens(get: &QueuedGet) -> Vec<u64> {
    let outcomes = get.wait(soon()).await.unwrap();
    outcomes.into_iter().map(|it| it.map(|Fetched { len, .. }| len).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_bytes_are_there_after_the_wait_only() {
    let bench = Bench::new().await;
    let sizes = [1, 4097, MIB + 3];
    let names = sizes.map(|it| format!("{it}"));
    for (name, len) in names.iter().zip(sizes) {
        bench.put(name, len).await;
    }
    let targets = sizes.map(|len| bench.target(len + 5));
    let gets: Vec<_> = names.iter().map(String::as_str).zip(&targets).collect();
    bench.standin.stall(bench.stream, true);
    let get = bench.queue(&gets).await;
    // A caller that does not wait sees the bytes from before. Some questions do not change that.
    assert!(!get.is_done());
    let early = get.wait(Deadline::after(Duration::from_millis(1))).await;
    assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
    for target in &targets {
        assert!(bench.content(target).iter().all(|it| *it == MARK), "nothing was copied yet");
    }
    bench.standin.stall(bench.stream, false);
    assert_eq!(lens(&get).await, sizes.map(|it| it as u64));
    assert!(get.is_done());
    for (target, len) in targets.iter().zip(sizes) {
        let content = bench.content(target);
        assert!(content[..len] == pattern(len, len) && content[len..] == [MARK; 5], "{len}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_get_keeps_the_object_until_its_copies_end() {
    let bench = Bench::new().await;
    for is_dropped in [false, true] {
        bench.put("big", BIG).await;
        let target = bench.target(BIG);
        bench.standin.stall(bench.stream, true);
        let mut get = Some(bench.queue(&[("big", &target)]).await);
        bench.delete("big").await;
        if is_dropped {
            get = None;
        }
        assert!(!bench.has_space().await, "the object is in view");
        bench.standin.stall(bench.stream, false);
        if let Some(get) = &get {
            assert_eq!(lens(get).await, [BIG as u64]);
        }
        bench.until_space().await;
        assert!(bench.content(&target) == pattern(BIG, BIG), "dropped: {is_dropped}");
        bench.delete("other").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_copies_are_released_without_a_question() {
    let bench = Bench::new().await;
    bench.put("big", BIG).await;
    let target = bench.target(BIG);
    let get = bench.queue(&[("big", &target)]).await;
    bench.delete("big").await;
    // Nothing asks the handle, and it is kept.
    bench.until_space().await;
    assert_eq!(lens(&get).await, [BIG as u64]);
    assert!(bench.content(&target) == pattern(BIG, BIG));
    assert_eq!(Arc::strong_count(&target), 1, "the handle does not keep the target");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_other_clients_make_way_when_they_have_ended() {
    let bench = Bench::new().await;
    let other = bench.cluster.client().await;
    bench.register(&other).await;
    bench.put("k", 100).await;
    let target = bench.target(100);
    bench.standin.stall(bench.stream, true);
    let mut gets = Vec::new();
    for _ in 0..QUEUED_MAX {
        gets.push(queue(&other, &[("k", &target)], soon()).await);
    }
    let late = queue(&bench.client, &[("k", &target)], Deadline::after(Duration::from_millis(5))).await;
    let Err(Error::Timeout { what }) = only(late.wait(soon()).await.unwrap()) else { panic!("queued") };
    assert!(what.contains(&QUEUED_MAX.to_string()), "{what}");
    bench.standin.stall(bench.stream, false);
    // The handles of the other client are kept, and nothing asks them.
    let get = queue(&bench.client, &[("k", &target)], soon()).await;
    assert_eq!(lens(&get).await, [100]);
    for get in gets {
        assert_eq!(lens(&get).await, [100]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_queued_gets_are_outcomes() {
    let bench = Bench::new().await;
    bench.put("k", 100).await;
    bench.put("big", MIB).await;
    let (target, small) = (bench.target(100), bench.target(99));
    let get = bench.queue(&[("k", &target), ("gone", &target), ("k", &small)]).await;
    let [one, gone, misfit] = get.wait(soon()).await.unwrap().try_into().unwrap();
    assert_eq!(one.unwrap().len, 100);
    assert!(matches!(gone, Err(Error::NotFound { .. })) && matches!(misfit, Err(Error::TooSmall { .. })));
    assert!(bench.content(&target) == pattern(100, 100));
    assert!(bench.content(&small).iter().all(|it| *it == MARK), "an error writes nothing");

    let target = bench.target(MIB);
    for kind in [COPY, RUNNING] {
        bench.standin.fail(kind, 0, 1);
        let get = bench.queue(&[("big", &target)]).await;
        let failed = only(get.wait(soon()).await.unwrap());
        assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
        assert_eq!(only(get.wait(soon()).await.unwrap()), failed, "the outcome stays");
        assert_eq!(lens(&bench.queue(&[("big", &target)]).await).await, [MIB as u64]);
    }
    bench.standin.capture(bench.stream, true);
    let captured = only(bench.queue(&[("big", &target)]).await.wait(soon()).await.unwrap());
    assert_eq!(captured, Err(Error::Device { what: DeviceError::Captured.to_string() }));
    bench.standin.capture(bench.stream, false);
    assert_eq!(bench.standin.counts().pending, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_get_outlives_its_client() {
    let bench = Bench::new().await;
    let other = bench.cluster.client().await;
    bench.register(&other).await;
    bench.put("k", MIB).await;
    let target = bench.target(MIB);
    bench.standin.stall(bench.stream, true);
    let get = queue(&other, &[("k", &target)], soon()).await;
    other.close(Deadline::after(LONG)).await.unwrap();
    drop(other);
    bench.standin.stall(bench.stream, false);
    assert_eq!(lens(&get).await, [MIB as u64]);
    assert!(bench.content(&target) == pattern(MIB, MIB));
}
