//! Buffers on a device, over the stand-in for the CUDA driver. Nothing is registered here, so that all bytes
//! go through a ring of one chunk.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tiffin_transport::behavior::{self, Location, TestNode};
use tiffin_transport::gpu::{self, Memory, Place, Settings, Stage, Stream};
use tiffin_transport::local::Local;
use tiffin_transport::{Counters, Instant, ReadOp, SourceBuf, TargetBuf, TransferError, Transport, WriteOp};

const LENS: [u64; 3] = [100_000, 7, 5_000_000];
const LEN: usize = 5_100_007;
const PLACE: Place = Place::new(0, Stream::Legacy);

/// The tests share the only chunk, so they take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| {
        let library = std::env::current_exe().unwrap().with_file_name("libtiffin_gpu_standin.so");
        let (registered_bytes_max, chunk_bytes) = (0, 4 << 20);
        let library = Some(library);
        let settings = Settings { library, registered_bytes_max, chunk_bytes, ..Settings::default() };
        assert!(Settings { ring_bytes_max: chunk_bytes, ..settings }.install());
        gpu::load().unwrap();
    });
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pointer(memory: &Memory, offset: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(memory.start() as usize + offset)).unwrap()
}

/// Memory in three parts: a device, the host, and the device again.
fn targets<'a>(memory: &'a Memory, host: &'a mut [u8]) -> Vec<TargetBuf<'a>> {
    let rest = LEN - 70_001 - host.len();
    // SAFETY: the memory is allocated and borrowed for as long as the targets.
    unsafe {
        vec![
            TargetBuf::on_device(pointer(memory, 3), 70_001, &PLACE),
            TargetBuf::from(host),
            TargetBuf::on_device(pointer(memory, 100_000), rest, &PLACE),
        ]
    }
}

fn sources<'a>(memory: &'a Memory, host: &'a mut [u8]) -> Vec<SourceBuf<'a>> {
    targets(memory, host).into_iter().map(TargetBuf::as_source).collect()
}

fn local(node: &TestNode) -> Local {
    Local::new(Arc::clone(node.memory()), Arc::new(Counters::default()))
}

/// An object with a pattern.
async fn put(node: &TestNode) -> Location {
    let location = node.reserve(&LENS);
    let bytes = behavior::pattern(location.stamp, LEN as u64);
    write(node, location, vec![SourceBuf::from(&bytes[..])]).await.unwrap();
    node.commit(location);
    location
}

async fn write(
    node: &TestNode,
    Location { slot, stamp }: Location,
    sources: Vec<SourceBuf<'_>>,
) -> Result<(), TransferError> {
    let op = WriteOp { slot, stamp, offset: 0, sources };
    local(node).write(&[op], behavior::soon()).await.pop().unwrap()
}

async fn read(
    node: &TestNode,
    Location { slot, stamp }: Location,
    targets: Vec<TargetBuf<'_>>,
    deadline: Instant,
) -> Result<(), TransferError> {
    let op = ReadOp { slot, stamp, offset: 0, targets };
    local(node).read(&[op], deadline).await.pop().unwrap()
}

#[tokio::test(flavor = "current_thread")]
#[expect(clippy::await_holding_lock, reason = "the tests take turns")]
async fn objects_move_between_segment_host_and_device() {
    let _turn = turn();
    let (node, memory, mut host) = (TestNode::new(), Memory::allocate(0, 6 << 20).unwrap(), [0; 999]);
    let first = put(&node).await;
    read(&node, first, targets(&memory, &mut host), behavior::soon()).await.unwrap();
    behavior::assert_pattern(first.stamp, 70_001, &host);
    let on_device = |offset: u64, len| {
        let time_max = Duration::from_secs(60);
        gpu::read(&PLACE, memory.start() + offset, len, time_max).unwrap().unwrap()
    };
    behavior::assert_pattern(first.stamp, 0, &on_device(3, 70_001));
    behavior::assert_pattern(first.stamp, 71_000, &on_device(100_000, LEN - 71_000));

    // The same parts as the source of another object.
    let second = node.reserve(&[LEN as u64]);
    write(&node, second, sources(&memory, &mut host)).await.unwrap();
    node.commit(second);
    let mut bytes = vec![0; LEN];
    read(&node, second, vec![TargetBuf::from(&mut bytes[..])], behavior::soon()).await.unwrap();
    behavior::assert_pattern(first.stamp, 0, &bytes);
}

#[tokio::test(flavor = "current_thread")]
#[expect(clippy::await_holding_lock, reason = "the tests take turns")]
async fn deadline_ends_the_wait_for_the_ring() {
    let _turn = turn();
    let (node, memory, mut host) = (TestNode::new(), Memory::allocate(0, 6 << 20).unwrap(), [0; 999]);
    let location = put(&node).await;
    let chunk = Stage::take(0).unwrap().unwrap();
    let late = read(&node, location, targets(&memory, &mut host), Instant::now()).await;
    assert_eq!(late, Err(TransferError::Timeout));
    drop(chunk);
    read(&node, location, targets(&memory, &mut host), behavior::soon()).await.unwrap();
    behavior::assert_pattern(location.stamp, 70_001, &host);
}

#[tokio::test(flavor = "current_thread")]
#[expect(clippy::await_holding_lock, reason = "the tests take turns")]
async fn retired_object_is_stale_for_a_device() {
    let _turn = turn();
    let (node, memory, mut host) = (TestNode::new(), Memory::allocate(0, 6 << 20).unwrap(), [0; 999]);
    let location = put(&node).await;
    node.retire(location);
    let stale = read(&node, location, targets(&memory, &mut host), behavior::soon()).await;
    assert_eq!(stale, Err(TransferError::Stale));
    let stale = write(&node, location, sources(&memory, &mut host)).await;
    assert_eq!(stale, Err(TransferError::Stale));
}
