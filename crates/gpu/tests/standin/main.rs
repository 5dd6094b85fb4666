//! Transfers over the stand-in for the driver.
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "the functions beside the tests are tests, too"
)]

mod queued;
mod support;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{
    ALLOCATE, ALLOCATE_HOST, BATCH, COPY, Host, LAUNCH, REGISTER, RUNNING, pattern, run, standin, transfer,
};
use tiffin_gpu::policy::Direction::{Load, Save};
use tiffin_gpu::{DeviceError, Fence, Finder, Piece, Place, Stage, Stream, counted, find, registered_bytes};

/// Bytes of the memory in [`check`].
const LEN: usize = 13 << 20;
const PLACE: Place = Place::new(0, Stream::Legacy);

/// Copies between two ranges of equal length in pieces of these lengths, every second one skipped on request.
fn pieces(device: u64, host: u64, lens: &[u64], gap: u64) -> Vec<Piece> {
    let mut at = 0;
    let mut piece = |len: &u64| {
        let piece = Piece { device: device + at, host: host + at, len: *len };
        at += len + gap;
        piece
    };
    lens.iter().map(&mut piece).collect()
}

/// Scattered on the device, contiguous on the host.
fn scattered(device: u64, host: u64, page: u64, count: u64) -> Vec<Piece> {
    let at =
        |it: u64| Piece { device: device + (count - 1 - it) * 2 * page, host: host + it * page, len: page };
    (0..count).map(at).collect()
}

#[test]
fn bytes_arrive_in_all_shapes() {
    let (_turn, standin) = standin();
    let (len, mut host) = (LEN, Host::new(LEN));
    let device = standin.alloc(len);
    let lists: &[(&[u64], u64)] = &[
        (&[1], 0),
        (&[0, 5, 0], 3),
        (&[4096], 0),
        (&[9 << 20], 0),
        (&[100_003, 7, 1, 4096, 65_536, 16], 13),
        (&[1000; 700], 24),
        (&[64 << 10; 100], 64 << 10),
        (&[300_000; 30], 5),
    ];
    for is_registered in [false, true] {
        let registration = is_registered.then(|| host.register(false));
        assert_eq!(
            registration.as_ref().map_or(0, |it| it.bytes()),
            if is_registered { len as u64 } else { 0 }
        );
        for (number, (lens, gap)) in lists.iter().enumerate() {
            for (seed, is_eager, shift) in [(1, false, 0), (2, true, 0), (3, true, 5)] {
                standin.seed(seed, is_eager);
                let list = pieces(device + shift, host.start() + shift / 2, lens, *gap);
                check(&standin, &mut host, device, &list, number as u64 * 10 + seed);
            }
        }
        let list = scattered(device, host.start(), 4096, 1000);
        check(&standin, &mut host, device, &list, 99);
    }
    standin.free(device);
    assert_eq!(standin.counts().pending, 0);
}

#[test]
fn copies_end_where_registrations_end() {
    const MIB: u64 = 1 << 20;
    let (_turn, standin) = standin();
    let mut host = Host::new(LEN);
    let device = standin.alloc(LEN);
    // Adjacent registrations, and registrations with a gap that goes through the ring.
    for parts in [
        vec![(0, 3 * MIB), (3 * MIB, 2 * MIB + 4096), (5 * MIB + 4096, 8 * MIB - 4096)],
        vec![(0, 2 * MIB), (4 * MIB, 4 * MIB)],
    ] {
        let bytes: u64 = parts.iter().map(|(_, len)| len).sum();
        let registration = host.register_parts(false, parts);
        assert_eq!(registration.bytes(), bytes);
        let lists = [
            vec![Piece { device, host: host.start(), len: LEN as u64 }],
            // Loads by a kernel, saves by way of device memory.
            scattered(device, host.start() + 1000, 4096, 1500),
            scattered(device, host.start() + 100, 65_536, 100),
            // The batch call.
            scattered(device, host.start() + 5000, 700_000, 9),
            pieces(device, host.start(), &[50_000; 200], 3),
        ];
        for (number, list) in lists.iter().enumerate() {
            check(&standin, &mut host, device, list, number as u64);
        }
        drop(registration);
    }
    standin.free(device);
}

/// Bytes that differ everywhere, and from those of another seed.
fn shifted(seed: u64) -> Vec<u8> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| pattern(LEN + 4096, 1));
    bytes[seed as usize * 3 % 4096..][..LEN].to_vec()
}

/// Saves and loads a list, and compares everything, also what lies between the pieces.
fn check(standin: &support::Standin, host: &mut Host, device: u64, list: &[Piece], seed: u64) {
    let (on_device, on_host) = (shifted(seed), shifted(seed + 1000));
    standin.write(device, &on_device);
    host.bytes().copy_from_slice(&on_host);
    let range = |start: u64, base: u64, len: u64| (start - base) as usize..(start - base + len) as usize;
    let mut expected = on_host.clone();
    for it in list {
        let from = range(it.device, device, it.len);
        expected[range(it.host, host.start(), it.len)].copy_from_slice(&on_device[from]);
    }
    run(&PLACE, Save, list).unwrap();
    assert!(host.bytes() == expected, "save {list:?}");
    host.bytes().copy_from_slice(&on_host);
    let mut expected = on_device;
    for it in list {
        let from = range(it.host, host.start(), it.len);
        expected[range(it.device, device, it.len)].copy_from_slice(&on_host[from]);
    }
    run(&PLACE, Load, list).unwrap();
    // The source may be reused at once.
    host.bytes().fill(0);
    assert!(standin.read(device, LEN) == expected, "load {list:?}");
}

#[test]
fn transfer_comes_after_the_work_of_its_stream() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(1 << 20), Host::new(1 << 20));
    let list = [Piece { device, host: host.start(), len: 1 << 20 }];
    let (side, blocking) = (standin.stream(1), standin.stream(0));
    for (number, stream, place, is_seen) in [
        (1, 0, Stream::Legacy, true),
        (2, blocking, Stream::Legacy, true),
        (3, side, Stream::Named(side), true),
        // The caller has not waited, and names no stream or another one: the bytes are wrong. That is how a
        // missing wait shows.
        (4, side, Stream::Legacy, false),
        (5, 0, Stream::Synchronized, false),
    ] {
        standin.fill(device, number, 1 << 20, stream);
        run(&Place::new(0, place), Save, &list).unwrap();
        assert_eq!(host.bytes().iter().all(|it| *it == number), is_seen, "{number}");
        standin.read(device, 1);
        run(&Place::new(0, Stream::Named(side)), Save, &list).unwrap();
    }
    standin.free(device);
}

#[test]
fn fence_is_the_work_of_its_moment() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(1 << 20), Host::new(1 << 20));
    let (source, side) = (standin.alloc(1 << 20), standin.stream(1));
    let list = [Piece { device, host: host.start(), len: 1 << 20 }];
    let after = |fence: Fence| while !fence.is_done().unwrap() {};
    let unordered = Place::new(0, Stream::Synchronized);
    standin.write(source, &pattern(1 << 20, 1));
    let before = standin.calls("cuEventCreate");
    for number in 1..20 {
        standin.copy(device, source, 1 << 20, side);
        let fence = Fence::record(&Place::new(0, Stream::Named(side))).unwrap().unwrap();
        standin.fill(device, number, 1 << 20, side);
        after(fence);
        run(&unordered, Save, &list).unwrap();
        assert!(host.bytes() == pattern(1 << 20, 1), "work that began later has not been waited for");
        let later = Fence::record(&Place::new(0, Stream::Named(side))).unwrap().unwrap();
        // Another stream: nothing of the side stream is waited for.
        after(Fence::record(&PLACE).unwrap().unwrap());
        run(&unordered, Save, &list).unwrap();
        assert!(host.bytes() == pattern(1 << 20, 1));
        after(later);
        run(&unordered, Save, &list).unwrap();
        assert!(host.bytes().iter().all(|it| *it == number));
    }
    assert!(Fence::record(&unordered).unwrap().is_none(), "there is nothing to wait for");
    // Events are used again.
    assert!(standin.calls("cuEventCreate") - before < 40);
    standin.synchronize(side);
    let missing = Fence::record(&Place::new(0, Stream::Named(0xbad))).map(drop);
    assert!(matches!(missing, Err(DeviceError::Failed { .. })), "{missing:?}");
    standin.free(source);
    standin.free(device);
}

#[test]
fn memory_that_is_pinned_elsewhere_is_used_directly() {
    const MIB: u64 = 1 << 20;
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(LEN), Host::new(LEN));
    let ringed = || counted().iter().find(|it| it.device == 0).map_or(0, |it| it.ringed);
    let list = scattered(device, host.start() + 1000, 4096, 1500);
    let before = registered_bytes();
    standin.pin(host.start(), LEN, true);
    for _ in 0..2 {
        let registration = host.register(false);
        assert_eq!((registration.bytes(), registered_bytes()), (LEN as u64, before));
        let ring = ringed();
        check(&standin, &mut host, device, &list, 5);
        assert_eq!(ringed(), ring, "kernels access the memory");
        // A second one of the same memory changes nothing for the first.
        drop(host.register(false));
        check(&standin, &mut host, device, &list, 6);
        assert_eq!(ringed(), ring);
        drop(registration);
        check(&standin, &mut host, device, &list, 7);
        assert!(ringed() > ring);
    }
    standin.pin(host.start(), LEN, false);
    // The driver has another answer for memory that it has allocated.
    let mut allocated = Host::over(standin.alloc_host(LEN), LEN);
    let registration = allocated.register(false);
    assert_eq!((registration.bytes(), registered_bytes()), (LEN as u64, before));
    let (ring, list_there) = (ringed(), scattered(device, allocated.start() + 1000, 4096, 1500));
    check(&standin, &mut allocated, device, &list_there, 9);
    assert_eq!(ringed(), ring);
    drop(registration);
    standin.free_host(allocated.end());
    // Of memory that is pinned in part, nothing is registered.
    standin.pin(host.start() + MIB, MIB as usize, true);
    let registration = host.register(false);
    assert_eq!((registration.bytes(), registered_bytes()), (0, before));
    drop(registration);
    standin.pin(host.start() + MIB, MIB as usize, false);
    let registration = host.register(false);
    assert_eq!(registration.bytes(), LEN as u64);
    check(&standin, &mut host, device, &list, 8);
    drop(registration);
    standin.free(device);
}

#[test]
fn bytes_are_not_there_before_the_end() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(4 << 20), Host::new(4 << 20));
    let registration = host.register(false);
    standin.write(device, &pattern(4 << 20, 1));
    let list = [Piece { device, host: host.start(), len: 4 << 20 }];
    for _ in 0..20 {
        host.bytes().fill(0);
        let mut transfer = transfer(&PLACE, Save, &list);
        while !transfer.poll().unwrap() {
            assert!(host.bytes().iter().all(|it| *it == 0), "the stand-in works only when asked to wait");
        }
        assert!(host.bytes() == pattern(4 << 20, 1));
    }
    drop(registration);
    standin.free(device);
}

#[test]
fn dropped_transfer_leaves_no_work() {
    let (_turn, standin) = standin();
    let (device, host) = (standin.alloc(16 << 20), Host::new(16 << 20));
    for is_registered in [false, true] {
        let _registration = is_registered.then(|| host.register(false));
        for polls in 0..8 {
            for direction in [Save, Load] {
                let mut transfer =
                    transfer(&PLACE, direction, &scattered(device, host.start(), 64 << 10, 100));
                for _ in 0..polls {
                    if transfer.poll().unwrap() {
                        break;
                    }
                }
                drop(transfer);
                assert_eq!(standin.counts().pending, 0, "{polls} polls");
            }
        }
    }
    standin.free(device);
}

#[test]
fn scattered_pages_take_few_calls() {
    let (_turn, standin) = standin();
    let (device, host) = (standin.alloc(16 << 20), Host::new(8 << 20));
    let registration = host.register(false);
    let pages = scattered(device, host.start(), 4096, 2000);
    let counted = |direction, list: &[Piece]| {
        let before = standin.counts();
        run(&PLACE, direction, list).unwrap();
        let after = standin.counts();
        let copies = after.copies - before.copies;
        (copies, after.batched - before.batched, after.launches - before.launches)
    };
    // In parts of 1 MiB: a list, and a copy for each.
    for direction in [Load, Save] {
        let (copies, batched, launches) = counted(direction, &pages);
        assert!(copies <= 16 && batched == 0 && launches == 8, "{copies} {batched} {launches}");
    }
    // Scattered on both sides.
    let apart: Vec<_> = pages.iter().step_by(2).copied().collect();
    let (copies, batched, launches) = counted(Load, &apart);
    assert!(copies <= 1 && batched == 0 && launches == 1, "{copies} {batched} {launches}");
    let (copies, batched, launches) = counted(Save, &apart);
    assert!(copies == 0 && batched == 1000 && launches == 0, "{copies} {batched} {launches}");
    // One range of the device to one of the host.
    assert_eq!(counted(Save, &pieces(device, host.start(), &[4096; 2000], 0)), (1, 0, 0));
    // Large pieces.
    assert_eq!(counted(Save, &scattered(device, host.start(), 256 << 10, 30)), (0, 30, 0));
    drop(registration);
    standin.free(device);
}

/// The calls of the driver that prepare, begin or wait for work. Others are those that ask whether work has
/// ended, whose number depends on its duration, and those that change the context around them.
const CALLS: [&str; 15] = [
    "cuPointerGetAttributes",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync_v2",
    "cuStreamCreateWithPriority",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuModuleLoadData",
    "cuLaunchKernel",
];

#[test]
fn transfers_take_these_calls_and_no_others() {
    let (_turn, standin) = standin();
    let (device, host) = (standin.alloc(20 << 20), Host::new(20 << 20));
    let registration = host.register(false);
    let whole = |len| vec![Piece { device, host: host.start(), len }];
    let pages = scattered(device, host.start(), 4096, 1000);
    let apart = pages.iter().step_by(2).copied().collect();
    let copied = |name: &'static str| vec![(name, 1), ("cuEventRecord", 2)];
    for (direction, list, expected) in [
        (Save, whole(64 << 10), copied("cuMemcpyDtoHAsync_v2")),
        (Load, whole(64 << 10), copied("cuMemcpyHtoDAsync_v2")),
        (Load, whole(16 << 20), copied("cuMemcpyHtoDAsync_v2")),
        // Adjacent pages are one copy.
        (Save, pieces(device, host.start(), &[4096; 1000], 0), copied("cuMemcpyDtoHAsync_v2")),
        (Load, scattered(device, host.start(), 512 << 10, 15), copied("cuMemcpyBatchAsync_v2")),
        // Scattered on both sides: the list of pages, and one kernel.
        (Load, apart, vec![("cuMemcpyHtoDAsync_v2", 1), ("cuEventRecord", 2), ("cuLaunchKernel", 1)]),
        // The list, and kernels that move the pages of parts, of 1 MiB here, which are copied.
        (
            Load,
            pages.clone(),
            vec![
                ("cuMemcpyHtoDAsync_v2", 5),
                ("cuStreamWaitEvent", 4),
                ("cuEventRecord", 10),
                ("cuLaunchKernel", 4),
            ],
        ),
        (
            Save,
            pages,
            vec![
                ("cuMemcpyHtoDAsync_v2", 1),
                ("cuMemcpyDtoHAsync_v2", 4),
                ("cuStreamWaitEvent", 4),
                ("cuEventRecord", 10),
                ("cuLaunchKernel", 4),
            ],
        ),
    ] {
        // The first transfers make channels, lists and the memory for pages.
        run(&PLACE, direction, &list).unwrap();
        run(&PLACE, direction, &list).unwrap();
        let before = CALLS.map(|it| standin.calls(it));
        let asked = standin.calls("cuEventQuery");
        run(&PLACE, direction, &list).unwrap();
        let called: Vec<_> = std::iter::zip(CALLS, before)
            .map(|(name, before)| (name, standin.calls(name) - before))
            .filter(|(_, calls)| *calls > 0)
            .collect();
        assert_eq!(called, expected, "{direction:?} {} pieces", list.len());
        // The stand-in answers up to 3 queries of an event with "not ready".
        assert!(standin.calls("cuEventQuery") - asked <= 8, "{direction:?} {} pieces", list.len());
    }
    drop(registration);
    standin.free(device);
}

#[test]
fn pages_are_loaded_by_way_of_device_memory() {
    const PAGE: u64 = 4096;
    let (_turn, standin) = standin();
    let len = 20 << 20;
    let (device, mut host) = (standin.alloc(2 * len), Host::new(len));
    let registration = host.register(false);
    // Parts end within pages, and so do contiguous ranges of the host.
    let mut pages = scattered(device, host.start(), PAGE, (len as u64 / PAGE) - 100);
    for page in &mut pages[2000..] {
        page.host += 100;
    }
    for (seed, is_eager) in [(1, false), (2, true)] {
        standin.seed(seed, is_eager);
        let (on_host, mut expected) = (pattern(len, seed), pattern(2 * len, seed + 10));
        host.bytes().copy_from_slice(&on_host);
        standin.write(device, &expected);
        for it in &pages {
            let (from, to) = ((it.host - host.start()) as usize, (it.device - device) as usize);
            expected[to..to + PAGE as usize].copy_from_slice(&on_host[from..from + PAGE as usize]);
        }
        let before = standin.counts();
        run(&PLACE, Load, &pages).unwrap();
        // The source may be reused at once.
        host.bytes().fill(0);
        assert!(standin.read(device, 2 * len) == expected, "seed {seed}");
        let after = standin.counts();
        // Parts of 1 MiB: a copy and a kernel for each, one list for four of them.
        let launches = after.launches - before.launches;
        assert!(launches == 20 && after.batched == before.batched, "{launches} kernels");
        assert!(after.copies - before.copies <= 20 + 1 + 5, "{} copies", after.copies - before.copies);
    }
    for kind in [COPY, RUNNING, LAUNCH] {
        for after in 0..12 {
            standin.fail(kind, after, 1);
            let failed = run(&PLACE, Load, &pages);
            standin.fail(kind, 0, 0);
            assert!(matches!(failed, Err(DeviceError::Failed { .. })), "{kind} {after}: {failed:?}");
            assert_eq!(standin.counts().pending, 0);
        }
    }
    // All memory was returned: such a load takes no other way.
    let before = standin.counts().launches;
    run(&PLACE, Load, &pages).unwrap();
    assert_eq!(standin.counts().launches - before, 20);
    drop(registration);
    standin.free(device);
}

#[test]
fn address_costs_one_question_to_the_driver() {
    const OTHERS: [&str; 2] = ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"];
    let (_turn, standin) = standin();
    let device = standin.alloc(1 << 20);
    let mut finder = Finder::default();
    finder.find(device, 1).unwrap();
    let before = OTHERS.map(|it| standin.calls(it));
    let asked = standin.calls("cuPointerGetAttributes");
    let mut finder = Finder::default();
    for page in 0..256 {
        assert_eq!(finder.find(device + page * 4096, 4096), Ok(0));
    }
    assert_eq!(standin.calls("cuPointerGetAttributes") - asked, 1);
    assert_eq!(OTHERS.map(|it| standin.calls(it)), before);
    standin.free(device);
}

#[test]
fn failed_copies_are_errors_and_break_nothing() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(16 << 20), Host::new(8 << 20));
    for is_registered in [false, true] {
        let registration = is_registered.then(|| host.register(false));
        for kind in [COPY, RUNNING, LAUNCH, ALLOCATE, ALLOCATE_HOST] {
            for after in 0..12 {
                for direction in [Save, Load] {
                    standin.fail(kind, after, 1);
                    let list = scattered(device, host.start(), 4096, 1500);
                    let failed = run(&PLACE, direction, &list);
                    standin.fail(kind, 0, 0);
                    assert!(matches!(failed, Ok(()) | Err(DeviceError::Failed { .. })), "{failed:?}");
                    assert_eq!(standin.counts().pending, 0);
                }
            }
        }
        // Nothing is used up: the same transfers still work.
        standin.write(device, &pattern(16 << 20, 7));
        let list = scattered(device, host.start(), 4096, 1500);
        run(&PLACE, Save, &list).unwrap();
        let page = (1499 * 2 * 4096) as usize;
        assert!(host.bytes()[..4096] == pattern(16 << 20, 7)[page..page + 4096]);
        drop(registration);
    }
    standin.free(device);
}

#[test]
fn refused_lists_are_copied_one_by_one() {
    let (_turn, standin) = standin();
    standin.enter(1);
    let (device, mut host) = (standin.alloc(16 << 20), Host::new(8 << 20));
    let registration = host.register(false);
    standin.write(device, &pattern(16 << 20, 2));
    let (place, list) = (Place::legacy(1).unwrap(), scattered(device, host.start(), 512 << 10, 10));
    standin.fail(BATCH, 0, 1);
    let before = standin.counts();
    run(place, Save, &list).unwrap();
    assert_eq!(standin.counts().copies - before.copies, 10);
    assert!(host.bytes()[..512 << 10] == pattern(16 << 20, 2)[9 << 20..][..512 << 10]);
    // Device 1 gets no list again; others do.
    run(place, Save, &list).unwrap();
    assert_eq!(standin.counts().batched, before.batched);
    drop(registration);
    standin.free(device);
}

#[test]
fn addresses_are_found_on_their_device() {
    let (_turn, standin) = standin();
    let device = standin.alloc(100_000);
    standin.enter(1);
    let second = standin.alloc(5);
    let on_host = [0_u8; 4];
    assert_eq!(find(device + 10, 99_990).unwrap().device(), 0);
    assert_eq!(find(second, 5).unwrap().device(), 1);
    let refused = |start, len| assert_eq!(find(start, len), Err(DeviceError::NotDevice { start, len }));
    refused(device, 100_001);
    refused(second + 5, 1);
    refused(on_host.as_ptr().addr() as u64, 4);
    refused(u64::MAX, 2);
    refused(0, 1);
    let mut finder = Finder::default();
    assert_eq!((finder.find(device, 1), finder.known(device + 1, 99_999)), (Ok(0), Some(0)));
    assert_eq!(finder.known(device, 100_001), None);
    standin.free(second);
    refused(second, 5);
    standin.free(device);
    refused(device, 1);
}

#[test]
fn devices_have_memory_of_their_own() {
    let (_turn, standin) = standin();
    let mut host = Host::new(1 << 20);
    let registration = host.register(false);
    let first = standin.alloc(1 << 20);
    standin.enter(1);
    let second = standin.alloc(1 << 20);
    standin.fill(first, 1, 1 << 20, 0);
    standin.fill(second, 2, 1 << 20, 0);
    for (device, address) in [(0, first), (1, second)] {
        let place = Place::legacy(device).unwrap();
        run(place, Save, &[Piece { device: address, host: host.start(), len: 1 << 20 }]).unwrap();
        assert!(host.bytes().iter().all(|it| *it == device as u8 + 1));
    }
    assert_eq!(Place::legacy(64), None);
    drop(registration);
    standin.free(first);
    standin.free(second);
}

#[test]
fn exhausted_ring_makes_transfers_wait() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(1 << 20), Host::new(1 << 20));
    standin.write(device, &pattern(1 << 20, 3));
    let mut stages = Vec::new();
    while let Some(stage) = Stage::take(0).unwrap() {
        assert_eq!(stage.bytes(), 4 << 20);
        stages.push(stage);
    }
    assert_eq!(stages.len(), 4, "16 MiB in chunks of 4");
    let mut waiting = transfer(&PLACE, Save, &[Piece { device, host: host.start(), len: 1 << 20 }]);
    for _ in 0..100 {
        assert!(!waiting.poll().unwrap());
    }
    stages.pop();
    while !waiting.poll().unwrap() {}
    assert!(host.bytes() == pattern(1 << 20, 3));
    standin.free(device);
}

#[test]
fn more_transfers_than_channels_wait_for_each_other() {
    let (_turn, standin) = standin();
    let (device, host) = (standin.alloc(1 << 20), Host::new(1 << 20));
    let registration = host.register(false);
    let count = tiffin_gpu::CHANNELS_MAX + 5;
    let list = [Piece { device, host: host.start(), len: 1 << 20 }];
    let mut transfers: Vec<_> = (0..count).map(|_| transfer(&PLACE, Save, &list)).collect();
    while !transfers.is_empty() {
        transfers.retain_mut(|it| !it.poll().unwrap());
    }
    drop(registration);
    standin.free(device);
}

#[test]
fn registration_is_limited_and_undone() {
    let (_turn, standin) = standin();
    let before = standin.counts().registered_bytes;
    let small = Host::new(40 << 20);
    let registration = small.register(false);
    assert_eq!(standin.counts().registered_bytes - before, 40 << 20);
    let other = Host::new(40 << 20);
    let refused = other.register(false);
    assert_eq!(refused.bytes(), 0, "the limit of 64 MiB");
    // What is not registered goes through the ring.
    let device = standin.alloc(1 << 20);
    run(&PLACE, Save, &[Piece { device, host: other.start(), len: 1 << 20 }]).unwrap();
    drop(registration);
    assert_eq!(standin.counts().registered_bytes, before);
    standin.fail(REGISTER, 0, 1);
    let failed = small.register(false);
    assert_eq!(failed.bytes(), 0);
    run(&PLACE, Save, &[Piece { device, host: small.start(), len: 1 << 20 }]).unwrap();
    drop((failed, refused));
    assert_eq!(standin.counts().registered_bytes, before);
    standin.free(device);
}

#[test]
fn read_only_memory_is_registered_for_loads() {
    let (_turn, standin) = standin();
    let (device, mut host) = (standin.alloc(4 << 20), Host::new(4 << 20));
    host.bytes().copy_from_slice(&pattern(4 << 20, 5));
    let start = std::ptr::with_exposed_provenance_mut(host.start() as usize);
    // SAFETY: the memory is that of `host`, which is only read until it is unmapped.
    assert_eq!(unsafe { libc::mprotect(start, 4 << 20, libc::PROT_READ) }, 0);
    assert_eq!(host.register(false).bytes(), 0, "a device could write it");
    let registration = host.register(true);
    assert_eq!(registration.bytes(), 4 << 20);
    run(&PLACE, Load, &scattered(device, host.start(), 4096, 500)).unwrap();
    let page = 499 * 2 * 4096;
    assert!(standin.read(device + page, 4096) == pattern(4 << 20, 5)[..4096]);
    drop(registration);
    standin.free(device);
}

#[test]
fn forked_child_gets_an_error() {
    let (_turn, standin) = standin();
    let device = standin.alloc(64);
    // SAFETY: the child calls no allocator that another thread could hold, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = find(device, 64) == Err(DeviceError::Forked);
        // SAFETY: ends the child without running the tests' destructors.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = -1;
    // SAFETY: the child is ours, and the target is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(find(device, 64).unwrap().device(), 0);
    standin.free(device);
}

#[test]
fn threads_transfer_at_the_same_time() {
    let (_turn, standin) = standin();
    standin.seed(9, true);
    let host = Host::new(8 << 20);
    let registration = host.register(false);
    let (device, done) = (standin.alloc(8 << 20), AtomicUsize::new(0));
    standin.write(device, &pattern(8 << 20, 4));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (start, done) = (host.start(), &done);
            scope.spawn(move || {
                let at = thread << 20;
                for _ in 0..20 {
                    let list = pieces(device + at, start + at, &[4096; 200], 100);
                    run(&PLACE, Save, &list).unwrap();
                    run(&PLACE, Load, &list).unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 160);
    assert!(standin.read(device, 8 << 20) == pattern(8 << 20, 4));
    drop(registration);
    standin.free(device);
}
