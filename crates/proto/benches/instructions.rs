//! Runs the hot paths, each a few times. `make check-instructions` runs this under Callgrind, counts the
//! instructions between entering and leaving `counted`, and compares them with `bench/instructions.json`.
//!
//! Prints the name of every case in the order in which they run. Nothing here may depend on time,
//! randomness or addresses, so that the counts are the same in every run.

#![expect(clippy::unwrap_used, reason = "a benchmark")]

mod counting;
#[path = "../../core/benches/stage/mod.rs"]
mod stage;

use std::hint::black_box;

use counting::measured;
use stage::{Numbers, Stage, exists, get, key};
use tiffin_node::extent::FreeSpace;
use tiffin_node::{self as node, Node, NodeConfig};
use tiffin_proto::frame::{self, HEADER_BYTES};
use tiffin_types::message::{
    Allocate, AllocateItem, ClientToMaster, ClientToNode, Commit, CommitItem, MasterToMember, PutOptions,
    Reply,
};
use tiffin_types::mutant::Mutant;
use tiffin_types::{ClientId, ConnId, EXTENTS_MAX, Key, RequestId, SegmentId};

/// Enough that the tables have their usual shape, few enough that Callgrind fills them in a second.
const OBJECTS: u64 = 20_000;
/// How often each case is repeated, so that rare steps are counted in proportion.
const REPEATS: u64 = 16;

fn main() {
    lookups();
    puts();
    frames();
    allocator();
    node_side();
}

fn keys(numbers: &mut Numbers, count: u64) -> Vec<Key> {
    (0..count).map(|_| key(numbers.below(OBJECTS))).collect()
}

fn plain() -> PutOptions {
    PutOptions { replicas: 1, ..PutOptions::default() }
}

fn lookups() {
    let mut stage = Stage::new(OBJECTS);
    stage.name((0..OBJECTS).map(key), &plain());
    let mut numbers = Numbers(7);
    for (name, count, ask) in [
        ("resolve 1 key", 1, get as fn(Vec<Key>) -> ClientToMaster),
        ("resolve 128 keys", 128, get),
        ("check the presence of 128 keys", 128, exists),
    ] {
        let requests: Vec<_> = (0..REPEATS).map(|_| ask(keys(&mut numbers, count))).collect();
        measured(name, || {
            requests.into_iter().for_each(|it| drop(black_box(stage.client(it))));
        });
    }
}

fn puts() {
    let mut stage = Stage::new(OBJECTS);
    stage.name((0..OBJECTS / 2).map(key), &plain());
    let mut first = OBJECTS;
    for (name, count) in [("put 1 object: reserve, commit", 1), ("put 128 objects: reserve, commit", 128)] {
        let batches: Vec<Vec<_>> =
            (0..REPEATS).map(|at| (0..count).map(|it| key(first + at * count + it)).collect()).collect();
        first += REPEATS * count;
        measured(name, || batches.iter().for_each(|keys| _ = black_box(stage.put(keys, &plain()))));
    }
    let mut full = Stage::new(OBJECTS);
    full.name((0..OBJECTS).map(key), &plain());
    let keys: Vec<_> = (first..first + REPEATS).map(key).collect();
    measured("put 1 object into a full store", || {
        keys.iter().for_each(|key| _ = black_box(full.put(std::slice::from_ref(key), &plain())));
    });
}

fn frames() {
    let mut stage = Stage::new(OBJECTS);
    stage.name((0..OBJECTS).map(key), &plain());
    let mut numbers = Numbers(7);
    let request = get(keys(&mut numbers, 128));
    let reply = stage.client(request.clone());
    let present = stage.client(exists(keys(&mut numbers, 128)));
    let encode = |reply: &Reply| tiffin_proto::encode_reply(RequestId(1), reply).unwrap();
    let asked = tiffin_proto::encode_request(RequestId(1), &request).unwrap();
    measured("encode a request for 128 keys", || {
        (0..REPEATS).for_each(|_| _ = black_box(tiffin_proto::encode_request(RequestId(1), &request)));
    });
    measured("decode a request for 128 keys", || (0..REPEATS).for_each(|_| decode(&asked)));
    let question = exists(keys(&mut numbers, 128));
    let asked = tiffin_proto::encode_request(RequestId(1), &question).unwrap();
    measured("encode an exists request for 128 keys", || {
        (0..REPEATS).for_each(|_| _ = black_box(tiffin_proto::encode_request(RequestId(1), &question)));
    });
    measured("decode an exists request for 128 keys", || (0..REPEATS).for_each(|_| decode(&asked)));
    for (name, decoded, reply) in [
        ("encode 128 locations", "decode 128 locations", reply),
        ("encode the presence of 128 keys", "decode the presence of 128 keys", present),
    ] {
        measured(name, || (0..REPEATS).for_each(|_| _ = black_box(encode(&reply))));
        let bytes = encode(&reply);
        measured(decoded, || (0..REPEATS).for_each(|_| decode(&bytes)));
    }
}

fn decode(bytes: &[u8]) {
    let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
    let header = frame::decode_header(head).unwrap();
    frame::verify(&header, payload).unwrap();
    drop(black_box(tiffin_proto::decode(&header, payload).unwrap()));
}

fn allocator() {
    let mut space = FreeSpace::new(1 << 30);
    let mut numbers = Numbers(7);
    let mut taken: Vec<_> =
        (0..4096).map(|_| space.take(1 + numbers.below(1 << 16), EXTENTS_MAX).unwrap()).collect();
    measured("allocate and free 1024 extents", || {
        for _ in 0..1024 {
            let old = taken.swap_remove(numbers.below(taken.len() as u64) as usize);
            old.into_iter().for_each(|extent| space.give_back(extent));
            taken.push(space.take(1 + numbers.below(1 << 16), EXTENTS_MAX).unwrap());
        }
    });
}

fn node_side() {
    let config = NodeConfig {
        segment: SegmentId(7),
        capacity: 1 << 30,
        slot_count: 1 << 16,
        heap_bytes: 1 << 24,
        chunk_bytes: 16 << 10,
        chunks_free: 8,
        restores: false,
        extents_max: EXTENTS_MAX,
        stamp_key: node::StampKey::from_bytes([7; 16]),
        mutant: Mutant::None,
    };
    let (mut node, client, conn) = (Node::new(config), ClientId(9), ConnId(1));
    node.handle(node::Event::Opened { conn, client, namespace: "default".into() });
    let item = AllocateItem { len: 4096, name_len: 71, attributes_len: 0 };
    let allocate = || {
        MasterToMember::Allocate(Allocate {
            client,
            items: vec![item; 128],
            offered: false,
            ..Allocate::default()
        })
    };
    let mut reserved = Vec::new();
    measured("a node allocates 128 objects", || {
        for at in 0..REPEATS {
            node.handle(node::Event::MasterRequest(RequestId(at), allocate()));
            reserved.extend(answers(&mut node));
        }
    });
    let rooms = reserved.into_iter().filter_map(|it| match it {
        Reply::Allocated(allocated) => Some(allocated.items),
        _ => None,
    });
    let commits: Vec<_> = rooms.enumerate().map(|(at, rooms)| commit(at as u64, rooms)).collect();
    measured("a node prepares 128 objects", || {
        for (at, commit) in (0..).zip(commits) {
            node.handle(node::Event::Request { conn, id: RequestId(at), request: commit });
            black_box(answers(&mut node));
        }
    });
}

fn commit(at: u64, rooms: Vec<Option<tiffin_types::Reservation>>) -> ClientToNode {
    let items = (at * 128..).zip(rooms.into_iter().flatten()).map(|(number, room)| CommitItem {
        slot_ref: room.location.slot_ref(),
        key: key(number),
        len: 4096,
        options: plain(),
        others: Vec::new(),
    });
    ClientToNode::Commit(Commit { items: items.collect(), wait_ms: 0 })
}

/// Drains the effects, and returns the replies among them.
fn answers(node: &mut Node) -> Vec<Reply> {
    let mut replies = Vec::new();
    while let Some(effect) = node.poll_effect() {
        if let node::Effect::AnswerMaster(_, reply) = effect {
            replies.push(reply);
        }
    }
    replies
}
