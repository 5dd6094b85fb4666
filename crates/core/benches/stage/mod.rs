//! A master with one node, both ends of whose connection are simulated here: the minimum that drives the
//! production path, so that the benchmark measures the master.

#![expect(dead_code, reason = "each benchmark uses a part")]

use tiffin_core::master::{Effect, Event, Master, MasterConfig, PIECE_OBJECTS_MAX, TierConfig};
use tiffin_types::message::{
    Allocated, Announce, ClientToMaster, CommitItem, Decide, DecideItem, Exists, Hello, MasterToMember,
    MemberToMaster, NodeInfo, PutOptions, Register, Reply, Request, Reserve, ReserveItem, ReserveOutcome,
    Resolve, Role, Settled, Usage,
};
use tiffin_types::mutant::Mutant;
use tiffin_types::{
    ClientId, ConnId, Extent, Key, Location, RequestId, Reservation, SegmentId, SlotId, SlotRef, Stamp, Tick,
};

const CLIENT: ConnId = ConnId(1);
const NODE: ConnId = ConnId(2);
pub(crate) const SEGMENT: SegmentId = SegmentId(7);
/// Length of every object.
pub(crate) const OBJECT_BYTES: u64 = 4096;
/// How long a read protects an object from eviction.
pub(crate) const LEASE_MS: u64 = 5_000;

/// The master and its simulated peers; see the module.
pub(crate) struct Stage {
    /// The master.
    pub(crate) master: Master,
    /// The time that it is given.
    pub(crate) now: Tick,
    usage: Usage,
    next_id: u64,
    next_stamp: u64,
    times: Times,
}

/// The size of pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pieces {
    AsShipped,
    Whole,
}

/// How long events took, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) longest: f64,
    pub(crate) all: f64,
    pub(crate) count: u32,
}

impl Stage {
    /// A master with an empty node that has space for `objects_max` objects.
    pub(crate) fn new(objects_max: u64) -> Self {
        Self::with(objects_max, Pieces::AsShipped)
    }

    /// The same, with pieces of that size.
    pub(crate) fn with(objects_max: u64, pieces: Pieces) -> Self {
        let piece_objects_max = match pieces {
            Pieces::AsShipped => PIECE_OBJECTS_MAX,
            Pieces::Whole => usize::MAX,
        };
        let config = MasterConfig {
            epoch: 1,
            instance: 1,
            first_counter: 0,
            durable: false,
            confirms: false,
            silence_ms_max: u64::MAX,
            away_ms_max: u64::MAX,
            lease_ms: LEASE_MS,
            strict_leases: false,
            lease_grace_ms: 10_000,
            owed_page_max: tiffin_core::master::OWED_PAGE_MAX,
            piece_objects_max,
            limits: tiffin_core::master::LimitsConfig::default(),
            soft_pin_ms: 1000,
            evict_soft_pinned: true,
            tenants: false,
            events: false,
            tier: TierConfig::default(),
            wall_ms: 0,
            hash_seed: 0x5eed,
            mutant: Mutant::None,
        };
        let capacity = objects_max * OBJECT_BYTES;
        let usage = Usage { capacity, free: capacity, ..Usage::default() };
        let (master, times) = (Master::new(config), Times::default());
        let mut stage = Self { master, now: Tick(1), usage, next_id: 0, next_stamp: 0, times };
        let hello = Hello { client: ClientId(9), namespace: "default".into(), ..Hello::default() };
        stage.master.handle(stage.now, Event::Opened(CLIENT, hello));
        let hello = Hello { role: Role::Node, ..Hello::default() };
        stage.master.handle(stage.now, Event::Opened(NODE, hello));
        let info = NodeInfo {
            segment: SEGMENT,
            name: "node".into(),
            unix: "tiffin-node-7".into(),
            memory: "tiffin-memory-7".into(),
            tcp: "127.0.0.1:7001".into(),
            data: "127.0.0.1:7002".into(),
            host: "here".into(),
            beside: None,
            outlives: false,
            registration: 0,
        };
        let register = Register { info, usage, epoch: 0, instance: 0, stamps: 0, ..Register::default() };
        stage.ask(NODE, MemberToMaster::Register(Box::new(register)));
        stage.ask(NODE, MemberToMaster::Announce(Announce { items: Vec::new(), last: true }));
        stage
    }

    /// The reply to a client's request.
    pub(crate) fn client(&mut self, request: ClientToMaster) -> Reply {
        self.ask(CLIENT, request).expect("the master replies")
    }

    /// The same, and how long each event took that the request caused.
    pub(crate) fn timed(&mut self, request: ClientToMaster) -> (Reply, Times) {
        self.times = Times::default();
        let reply = self.client(request);
        (reply, self.times)
    }

    /// Commits new objects, as if their bytes had been written, without reservations.
    pub(crate) fn name(&mut self, keys: impl Iterator<Item = Key>, options: &PutOptions) {
        let items: Vec<_> = keys.map(|key| self.decide_item(key, options)).collect();
        self.usage.free -= items.len() as u64 * OBJECT_BYTES;
        self.ask(NODE, MemberToMaster::Decide(Decide { items, wait_ms: 0 }));
    }

    /// The item with which the node requests the commit of an object.
    pub(crate) fn decide_item(&mut self, key: Key, options: &PutOptions) -> DecideItem {
        let slot_ref = self.slot_ref();
        let item =
            CommitItem { slot_ref, key, len: OBJECT_BYTES, options: options.clone(), others: Vec::new() };
        DecideItem { namespace: "default".into(), item, client: ClientId(9) }
    }

    /// Puts objects: reserves and commits. Returns how many got space.
    pub(crate) fn put(&mut self, keys: &[Key], options: &PutOptions) -> usize {
        let items = keys.iter().map(|key| ReserveItem {
            key: key.clone(),
            len: OBJECT_BYTES,
            options: options.clone(),
        });
        let reserve = Reserve { items: items.collect(), ..Reserve::default() };
        let Reply::Reserved(reserved) = self.client(ClientToMaster::Reserve(reserve)) else {
            panic!("not a reservation")
        };
        let mut items = Vec::with_capacity(keys.len());
        for (key, outcome) in keys.iter().zip(reserved.items) {
            let ReserveOutcome::Space(space) = outcome else { continue };
            let slot_ref = space.first().expect("a copy").location.slot_ref();
            let item = CommitItem {
                slot_ref,
                key: key.clone(),
                len: OBJECT_BYTES,
                options: options.clone(),
                others: Vec::new(),
            };
            items.push(DecideItem { namespace: "default".into(), item, client: ClientId(9) });
        }
        let count = items.len();
        self.ask(NODE, MemberToMaster::Decide(Decide { items, wait_ms: 0 }));
        count
    }

    fn slot_ref(&mut self) -> SlotRef {
        self.next_stamp += 1;
        SlotRef { slot: SlotId(self.next_stamp as u32), stamp: Stamp(self.next_stamp) }
    }

    fn ask(&mut self, conn: ConnId, request: impl Into<Request>) -> Option<Reply> {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.handle(Event::Request(conn, id, request.into()));
        let mut answer = None;
        loop {
            let Some(effect) = self.master.poll_effect() else {
                if !self.master.has_work() {
                    break;
                }
                let began = std::time::Instant::now();
                self.master.work(self.now);
                self.count(began);
                continue;
            };
            match effect {
                Effect::Reply(to, of, reply) if (to, of) == (conn, id) => answer = Some(reply),
                Effect::Ask(to, of, request) | Effect::SendLedger(to, of, request) => {
                    let reply = self.node(request);
                    self.handle(Event::Reply(to, of, reply));
                }
                Effect::Persist(_) | Effect::Restart(_) => panic!("nothing of this master is saved"),
                Effect::Reply(..)
                | Effect::Withdraw(..)
                | Effect::Disconnect(_)
                | Effect::Notice(_)
                | Effect::Confirm(_) => (),
            }
        }
        answer
    }

    fn handle(&mut self, event: Event) {
        let began = std::time::Instant::now();
        self.master.handle(self.now, event);
        self.count(began);
    }

    fn count(&mut self, began: std::time::Instant) {
        let took = began.elapsed().as_secs_f64();
        self.times.longest = self.times.longest.max(took);
        self.times.all += took;
        self.times.count += 1;
    }

    /// The node: it has space whenever the master assumes so.
    fn node(&mut self, request: MasterToMember) -> Reply {
        match request {
            MasterToMember::Allocate(allocate) => {
                let items = allocate.items.iter().map(|item| {
                    let slot_ref = self.slot_ref();
                    self.usage.free = self.usage.free.checked_sub(OBJECT_BYTES)?;
                    let location = Location { segment: SEGMENT, slot: slot_ref.slot, stamp: slot_ref.stamp };
                    let offset = u64::from(slot_ref.slot.0) * OBJECT_BYTES;
                    Some(Reservation { location, extents: vec![Extent { offset, len: item.len }] })
                });
                let items = items.collect();
                Reply::Allocated(Allocated { items, usage: self.usage, short: Vec::new() })
            }
            MasterToMember::Retire(retire) => {
                self.usage.free += retire.slot_refs.len() as u64 * OBJECT_BYTES;
                Reply::Settled(Settled { usage: self.usage, ..Settled::default() })
            }
            MasterToMember::Settle(_) | MasterToMember::SetAttributes(_) => {
                Reply::Settled(Settled { usage: self.usage, ..Settled::default() })
            }
            MasterToMember::ClientGone(_)
            | MasterToMember::Inspect(_)
            | MasterToMember::Demote(_)
            | MasterToMember::Promote(_)
            | MasterToMember::Fetch(_)
            | MasterToMember::Drain(_) => Reply::Done,
        }
    }
}

/// The key of 64 bytes with that number.
pub(crate) fn key(number: u64) -> Key {
    let text = format!("layer-17/tenant-a/model-llama-3-70b/request-prefix/{number:013}");
    Key::new(text.as_bytes()).expect("not empty")
}

/// The request of a get.
pub(crate) fn get(keys: Vec<Key>) -> ClientToMaster {
    ClientToMaster::Resolve(Resolve { keys, touch: true, lease: false, locate: true, ..Resolve::default() })
}

/// The request of an `exists`.
pub(crate) fn exists(keys: Vec<Key>) -> ClientToMaster {
    ClientToMaster::Exists(Exists {
        keys: keys.iter().collect(),
        touch: true,
        lease: true,
        ..Exists::default()
    })
}

/// Numbers below `count` that look random and are the same in every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// The next number.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % count
    }
}
