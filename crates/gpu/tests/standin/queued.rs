//! Loads that are queued on a stream of the caller.

use tiffin_gpu::{
    Begun, DeviceError, Fence, OwnStream, Place, QUEUED_MAX, Queued, Stream, is_registered, order,
};

use crate::support::{ALLOCATE_HOST, COPY, Host, LAUNCH, RUNNING, Standin, pattern, queue, queued, standin};
use crate::{pieces, scattered};

const LEN: usize = 8 << 20;

fn on(stream: u64) -> Place {
    Place::new(0, Stream::of_handle(stream))
}

/// Asks until the copies have ended, with the number of questions.
fn wait(mut queued: Queued) -> Result<(), DeviceError> {
    while !queued.is_done()? {}
    Ok(())
}

/// Device memory and registered host memory with a pattern.
fn both(standin: &Standin) -> (u64, Host, tiffin_gpu::Registration) {
    let (device, mut host) = (standin.alloc(LEN), Host::new(LEN));
    host.bytes().copy_from_slice(&pattern(LEN, 1));
    let registration = host.register(false);
    (device, host, registration)
}

#[test]
fn queued_bytes_arrive_in_all_shapes() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(LEN), Host::new(LEN));
    host.bytes().copy_from_slice(&pattern(LEN, 1));
    let registration = host.register_parts(false, vec![(0, 3 << 20), (3 << 20, 5 << 20)]);
    let side = standin.stream(1);
    for list in [
        pieces(device, host.start(), &[LEN as u64], 0),
        pieces(device + 5, host.start() + 3, &[1, 0, 70_000, 7], 100),
        scattered(device, host.start() + 1000, 4096, 900),
        scattered(device, host.start() + 5000, 700_000, 5),
        // One more than the list of a kernel can have.
        scattered(device, host.start(), 16, (16 << 10) + 1),
    ] {
        for stream in [0, side] {
            for (seed, is_eager) in [(1, false), (2, true), (3, true)] {
                standin.seed(seed, is_eager);
                standin.write(device, &vec![7; LEN]);
                let mut expected = vec![7; LEN];
                for it in &list {
                    let (to, from) = ((it.device - device) as usize, (it.host - host.start()) as usize);
                    let len = it.len as usize;
                    expected[to..to + len].copy_from_slice(&host.bytes()[from..from + len]);
                }
                wait(queued(&on(stream), &list)).unwrap();
                assert!(standin.read(device, LEN) == expected, "{} pieces on {stream}", list.len());
            }
        }
    }
    drop(registration);
    standin.free(device);
}

#[test]
fn queued_copies_are_in_the_order_of_their_stream() {
    let (_turn, standin) = standin();
    let (device, mut host, registration) = both(&standin);
    let (side, other) = (standin.stream(1), standin.stream(1));
    let list = pieces(device, host.start(), &[LEN as u64], 0);
    // Work before and after them, which nothing has waited for.
    standin.fill(device, 7, LEN, side);
    let first = queued(&on(side), &list);
    standin.fill(device, 9, 100, side);
    assert!(standin.counts().pending > 0, "nothing waits");
    // The bytes of the host change too early: the device reads the wrong ones. A view prevents that.
    host.bytes()[200] ^= 1;
    wait(first).unwrap();
    // The work after them has not ended with them.
    assert_eq!(standin.read(device, 100), pattern(LEN, 1)[..100]);
    assert_ne!(standin.read(device + 200, 1), pattern(LEN, 1)[200..201]);

    // Memory that another stream writes: without an order its work may come later.
    for (is_ordered, seen) in [(false, 8), (true, pattern(LEN, 1)[0])] {
        standin.fill(device, 8, LEN, other);
        if is_ordered {
            order(0, Stream::Named(other), Stream::Named(side)).unwrap();
        }
        wait(queued(&on(side), &list)).unwrap();
        order(0, Stream::Named(other), Stream::Legacy).unwrap();
        assert_eq!(standin.read(device, 1), [seen], "{is_ordered}");
    }
    drop(registration);
    standin.free(device);
}

#[test]
fn streams_wait_for_queued_copies_and_for_fences() {
    let (_turn, standin) = standin();
    let (device, host, registration) = both(&standin);
    let (side, other, scratch) = (standin.stream(1), standin.stream(1), standin.alloc(100));
    let list = pieces(device, host.start(), &[4096], 0);
    let own = OwnStream::new(0).unwrap();
    for is_ordered in [false, true] {
        standin.write(device, &[7; 4096]);
        standin.fill(device, 9, 100, other);
        let fence = Fence::record(&on(other)).unwrap().unwrap();
        if is_ordered {
            fence.order(own.stream()).unwrap();
        }
        let mut copies = queued(&Place::new(0, own.stream()), &list);
        // No question about them makes the stand-in copy.
        standin.stall(own.stream().handle(), true);
        assert_eq!(copies.is_done(), Ok(false));
        if is_ordered {
            copies.order(Stream::Named(side)).unwrap();
        }
        standin.copy(scratch, device, 100, side);
        standin.synchronize(side);
        let seen = standin.read(scratch, 100);
        assert_eq!(seen == pattern(LEN, 1)[..100], is_ordered, "{seen:?}");
        standin.stall(own.stream().handle(), false);
        while !copies.is_done().unwrap() {}
        // Without the order of the fence, the work before it overwrites the bytes.
        standin.synchronize(other);
        assert_eq!(standin.read(device, 100) == pattern(LEN, 1)[..100], is_ordered);
        copies.order(Stream::Named(side)).unwrap();
    }
    drop((own, registration));
    standin.free(device);
}

#[test]
fn number_of_queued_lists_is_limited() {
    let (_turn, standin) = standin();
    let (device, host, registration) = both(&standin);
    let side = standin.stream(1);
    let list = pieces(device, host.start(), &[4096], 0);
    let mut all: Vec<_> = (0..QUEUED_MAX).map(|_| queued(&on(side), &list)).collect();
    assert!(matches!(queue(&on(side), &list), Ok(Begun::Full)));
    assert!(matches!(queue(&on(0), &list), Ok(Begun::Full)), "of all streams together");
    wait(all.pop().unwrap()).unwrap();
    let last = queued(&on(0), &list);
    assert!(matches!(queue(&on(0), &list), Ok(Begun::Full)));
    drop((all, last));
    assert_eq!(standin.counts().pending, 0, "a dropped list waits for its copies");
    drop(registration);
    standin.free(device);
}

#[test]
fn what_cannot_be_queued_is_refused() {
    let (_turn, standin) = standin();
    let (device, host) = (standin.alloc(LEN), Host::new(LEN));
    let side = standin.stream(1);
    let list = pieces(device, host.start(), &[4096, 4096], 2 << 20);
    assert!(matches!(queue(&on(side), &list), Ok(Begun::NotRegistered)));
    let part = host.register_parts(false, vec![(0, 2 << 20)]);
    assert!(matches!(queue(&on(side), &list), Ok(Begun::NotRegistered)), "only a part is registered");
    assert!(is_registered(host.start(), 2 << 20) && !is_registered(host.start(), (2 << 20) + 1));
    drop(part);
    let registration = host.register(false);
    standin.capture(side, true);
    assert!(matches!(queue(&on(side), &list), Err(DeviceError::Captured)));
    standin.capture(side, false);
    assert!(matches!(queue(&on(0x7777), &list), Err(DeviceError::Failed { .. })), "no such stream");
    assert!(matches!(queue(&Place::new(1, Stream::Named(side)), &list), Err(DeviceError::Failed { .. })));
    assert_eq!(standin.counts().pending, 0);
    wait(queued(&on(side), &list)).unwrap();
    drop(registration);
    standin.free(device);
}

#[test]
fn failures_of_queued_copies_are_reported_at_their_end() {
    let (_turn, standin) = standin();
    let (device, host, registration) = both(&standin);
    let side = standin.stream(1);
    let few = pieces(device, host.start(), &[4096, 4096, 4096], 4096);
    let small = scattered(device, host.start(), 4096, 900);
    for (kind, after, list) in [(COPY, 1, &few), (RUNNING, 0, &few), (LAUNCH, 0, &small)] {
        standin.fail(kind, after, 1);
        let mut failed = queued(&on(side), list);
        let error = loop {
            match failed.is_done() {
                Ok(false) => {}
                Ok(true) => panic!("kind {kind} did not fail"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, DeviceError::Failed { .. }), "{error}");
        assert_eq!(failed.is_done(), Err(error), "the answer stays the same");
        assert_eq!(standin.counts().pending, 0);
        wait(queued(&on(side), list)).unwrap();
    }
    // Without memory for the list of a kernel there is another way. A list may have memory from before.
    let allocations = || standin.calls("cuMemHostAlloc");
    let (before, mut all) = (allocations(), Vec::new());
    standin.fail(ALLOCATE_HOST, 0, 1);
    while allocations() == before {
        all.push(queued(&on(side), &small));
    }
    for queued in all {
        wait(queued).unwrap();
    }
    drop(registration);
    standin.free(device);
}
