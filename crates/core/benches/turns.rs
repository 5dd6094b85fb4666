//! How long one request with as many items as are allowed holds the master: the longest of the events that it
//! causes, and of the pieces of work. `cargo bench -p tiffin-core --bench turns` runs it; with the argument
//! `whole`, nothing is handled in pieces.

#![expect(clippy::print_stdout, clippy::unwrap_used, clippy::panic, reason = "a benchmark")]

mod stage;

use stage::{OBJECT_BYTES, Pieces, Stage, exists, get, key};
use tiffin_types::message::{
    Ack, AckItem, ClientToMaster, CommitItem, Delete, DropPins, Lease, LeaseItem, LeaseOutcome, List,
    Pattern, Pin, Prefetch, Publish, PublishItem, PutOptions, Reply, Reserve, ReserveItem, ReserveOutcome,
};
use tiffin_types::{BATCH_ITEMS_MAX, Key, attributes::Consumption};

const ITEMS: u64 = BATCH_ITEMS_MAX as u64;
/// All objects beside those that the requests put.
const OBJECTS: u64 = 1 << 20;
const WAIT_MS: u64 = 1_000;

fn main() {
    let pieces = if std::env::args().any(|it| it == "whole") { Pieces::Whole } else { Pieces::AsShipped };
    let mut stage = Stage::with(OBJECTS + 4 * ITEMS, pieces);
    let plain = PutOptions { replicas: 1, ..PutOptions::default() };
    for first in (0..OBJECTS).step_by(1024) {
        stage.name((first..first + 1024).map(key), &plain);
    }
    // In random order, so that most steps miss the caches.
    let stride = OBJECTS / ITEMS;
    let known: Vec<Key> = (0..ITEMS).map(|it| key((it * 40_503 % ITEMS) * stride)).collect();
    let absent: Vec<Key> = (0..ITEMS).map(|it| key(2 * OBJECTS + it)).collect();
    lookups(&mut stage, &known, &absent);
    pins(&mut stage, &known);
    puts(&mut stage, &known, &absent);
    let delete =
        |keys: &[Key]| ClientToMaster::Delete(Delete { keys: keys.to_vec(), force: true, wait_ms: WAIT_MS });
    show(&mut stage, "delete", delete(&known));
    show(&mut stage, "delete, absent", delete(&known));
    samples(&mut stage, &known);
}

fn show(stage: &mut Stage, name: &str, request: ClientToMaster) -> Reply {
    stage.now = stage.now.after(1);
    let (reply, times) = stage.timed(request);
    let (longest, all) = (times.longest * 1e3, times.all * 1e3);
    println!("{name:<20} longest {longest:>8.2} ms, all {all:>8.2} ms in {} events", times.count);
    assert!(!matches!(reply, Reply::Refused(_)), "{reply:?}");
    reply
}

fn lookups(stage: &mut Stage, known: &[Key], absent: &[Key]) {
    show(stage, "resolve", get(known.to_vec()));
    show(stage, "resolve, absent", get(absent.to_vec()));
    show(stage, "exists", exists(known.to_vec()));
    show(stage, "exists, absent", exists(absent.to_vec()));
    let prefetch = Prefetch { keys: known.to_vec(), ..Prefetch::default() };
    show(stage, "prefetch", ClientToMaster::Prefetch(prefetch));
    let list = List { pattern: Pattern::All, limit: u32::MAX, pinned_by: None, cursor: 0, report_wait_ms: 0 };
    show(stage, "list", ClientToMaster::List(list));
}

fn pins(stage: &mut Stage, known: &[Key]) {
    let pin =
        |on| ClientToMaster::Pin(Pin { keys: known.to_vec(), owner: "run".into(), on, wait_ms: WAIT_MS });
    let drop = || ClientToMaster::DropPins(DropPins { owner: "run".into(), wait_ms: WAIT_MS });
    show(stage, "pin", pin(true));
    show(stage, "unpin", pin(false));
    show(stage, "pin", pin(true));
    show(stage, "drop pins", drop());
    show(stage, "drop pins, none", drop());
}

fn puts(stage: &mut Stage, known: &[Key], absent: &[Key]) {
    let options = PutOptions { replicas: 1, ..PutOptions::default() };
    let reserve = |keys: &[Key]| {
        let item = |key: &Key| ReserveItem { key: key.clone(), len: OBJECT_BYTES, options: options.clone() };
        ClientToMaster::Reserve(Reserve { items: keys.iter().map(item).collect(), ..Reserve::default() })
    };
    show(stage, "reserve, existing", reserve(known));
    let Reply::Reserved(reserved) = show(stage, "reserve", reserve(absent)) else { panic!() };
    let items = absent.iter().zip(reserved.items).map(|(key, it)| {
        let ReserveOutcome::Space(space) = it else { panic!() };
        let slot_ref = space.first().unwrap().location.slot_ref();
        let (key, options, others) = (key.clone(), options.clone(), Vec::new());
        PublishItem {
            home: stage::SEGMENT,
            item: CommitItem { slot_ref, key, len: OBJECT_BYTES, options, others },
        }
    });
    let publish = Publish { items: items.collect(), wait_ms: WAIT_MS };
    show(stage, "publish", ClientToMaster::Publish(publish));
}

fn samples(stage: &mut Stage, keys: &[Key]) {
    let options = PutOptions { replicas: 1, sample: Some(Consumption::Once), ..PutOptions::default() };
    keys.chunks(1024).for_each(|keys| stage.name(keys.iter().cloned(), &options));
    let items = keys.iter().map(|key| LeaseItem { key: key.clone(), generation: None }).collect();
    let lease = ClientToMaster::Lease(Lease { items, ..Lease::default() });
    let Reply::Leased(leased) = show(stage, "lease", lease) else { panic!() };
    let items = keys.iter().zip(&leased.items).map(|(key, it)| {
        let LeaseOutcome::Leased(granted) = it else { panic!() };
        AckItem { key: key.clone(), generation: granted.found.generation }
    });
    let ack = Ack { items: items.collect(), wait_ms: WAIT_MS, ..Ack::default() };
    show(stage, "acknowledge", ClientToMaster::Ack(ack));
}
