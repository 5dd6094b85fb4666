//! The rules of streams, one test each; and pipelines of producers and consumers that die, compared with a
//! model.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::{
    ClientId, ConnId, Generation, RequestId,
    attributes::Consumption,
    master::{Event, tests::*},
    message::{
        Ack, AckItem, AckOutcome, Attach, ClientToMaster, CommitOutcome, DeletedMatching, EndStream,
        GroupStat, LeaseOutcome, MemberToMaster, OpenStream, Pull, Pulled, PutOptions, Refusal, Release,
        Reply, Request, Reserve, ReserveItem, ReserveOutcome, StreamLimits, StreamStat,
    },
    mutant::Mutant,
};

const OTHER: ConnId = ConnId(2);
const BEGINNING: Generation = Generation { epoch: 0, counter: 0 };

fn streamed(groups: &[&str]) -> PutOptions {
    let consumption = match groups {
        [] => Consumption::Once,
        groups => Consumption::Groups(groups.iter().map(|it| (*it).to_owned()).collect()),
    };
    PutOptions { sample: Some(consumption), stream: "s".into(), ..plain() }
}

fn refs(refs_high: u64, refs_low: u64) -> StreamLimits {
    StreamLimits { refs_high, refs_low, ..StreamLimits::default() }
}

impl Cluster {
    fn ask_as(&mut self, conn: ConnId, request: impl Into<Request>) -> Option<Reply> {
        let id = self.send_as(conn, request);
        self.replies.remove(&id)
    }

    fn send_as(&mut self, conn: ConnId, request: impl Into<Request>) -> RequestId {
        self.next_id += 1;
        let id = RequestId(1_000_000 + self.next_id);
        self.event(Event::Request(conn, id, request.into()));
        id
    }

    fn pull_as(&mut self, conn: ConnId, group: &str, items: (u32, u32)) -> Option<Pulled> {
        let id = self.send_pull(conn, group, items, 0);
        self.pulled(id)
    }

    fn send_pull(
        &mut self,
        conn: ConnId,
        group: &str,
        (items_min, items_max): (u32, u32),
        wait_ms: u64,
    ) -> RequestId {
        let pull = Pull {
            stream: "s".into(),
            group: group.into(),
            items_min,
            items_max,
            wait_ms,
            ..Pull::default()
        };
        self.send_as(conn, ClientToMaster::Pull(pull))
    }

    fn pulled(&mut self, id: RequestId) -> Option<Pulled> {
        match self.replies.remove(&id)? {
            Reply::Pulled(pulled) => Some(pulled),
            other => panic!("{other:?}"),
        }
    }

    /// The names that a pull returns at once.
    fn names(&mut self, group: &str, items_max: u32) -> Vec<String> {
        names(&self.pull_as(CLIENT, group, (1, items_max)).unwrap())
    }

    fn open_stream(
        &mut self,
        limits: Option<StreamLimits>,
        attach: Option<Attach>,
    ) -> Result<StreamStat, String> {
        match self.ask(ClientToMaster::OpenStream(OpenStream { name: "s".into(), limits, attach })) {
            Some(Reply::Stream(stat)) => Ok(stat),
            Some(Reply::Refused(Refusal { message, .. })) => Err(message),
            other => panic!("{other:?}"),
        }
    }

    fn stream(&mut self) -> StreamStat {
        self.open_stream(None, None).unwrap()
    }

    fn group(&mut self, name: &str) -> GroupStat {
        self.stream().groups.into_iter().find(|it| it.group == name).unwrap()
    }

    fn end_stream(&mut self, failure: Option<&str>) {
        let end = EndStream { name: "s".into(), failure: failure.map(str::to_owned), ..EndStream::default() };
        assert!(matches!(self.ask(ClientToMaster::EndStream(end)), Some(Reply::Stream(_))));
    }

    fn ack_all(&mut self, pulled: &Pulled, group: &str) -> Vec<AckOutcome> {
        let items = pulled.keys.iter().cloned().zip(generations(pulled));
        let items = items.map(|(key, generation)| AckItem { key, generation }).collect();
        match self.ask(ClientToMaster::Ack(Ack {
            items,
            group: group.into(),
            wait_ms: 500,
            ..Ack::default()
        })) {
            Some(Reply::Acked(outcomes)) => outcomes,
            other => panic!("{other:?}"),
        }
    }

    fn reserve_streamed(&mut self, name: &str, wait_ms: u64) -> RequestId {
        let items = vec![ReserveItem { key: key(name), len: UNIT, options: streamed(&[]) }];
        self.send(ClientToMaster::Reserve(Reserve { items, wait_ms, ..Reserve::default() }))
    }
}

fn names(pulled: &Pulled) -> Vec<String> {
    pulled.keys.iter().map(ToString::to_string).collect()
}

fn granted(pulled: &Pulled) -> impl Iterator<Item = &crate::message::Granted> {
    pulled.leased.items.iter().map(|it| match it {
        LeaseOutcome::Leased(granted) => granted,
        other => panic!("{other:?}"),
    })
}

fn generations(pulled: &Pulled) -> Vec<Generation> {
    granted(pulled).map(|it| it.found.generation).collect()
}

fn leases(pulled: &Pulled) -> Vec<u64> {
    granted(pulled).map(|it| it.lease).collect()
}

#[test]
fn group_gets_each_sample_once_in_the_order_of_puts() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    for name in ["c", "a", "b", "d"] {
        cluster.put(name, UNIT, streamed(&["g", "h"]));
    }
    assert_eq!(cluster.names("g", 2), ["c", "a"]);
    assert_eq!(cluster.names("g", 9), ["b", "d"]);
    assert_eq!(cluster.names("g", 9), [""; 0], "it has all of them");
    assert_eq!(cluster.names("h", 9), ["c", "a", "b", "d"], "each group gets all samples");
    let stat = cluster.stream();
    assert_eq!((stat.refs, stat.bytes, stat.appended, stat.consumed), (4, 4 * UNIT, 4, 0));
    assert_eq!(cluster.names("stranger", 9), [""; 0], "they are not for it");
    cluster.master.check().unwrap();
}

#[test]
fn samples_are_freed_after_the_last_group() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    for name in ["a", "b", "c"] {
        cluster.put(name, UNIT, streamed(&["g", "h"]));
    }
    let window = cluster.pull_as(CLIENT, "g", (2, 2)).unwrap();
    assert_eq!(cluster.ack_all(&window, "g"), [AckOutcome::Recorded, AckOutcome::Recorded]);
    cluster.ack_all(&window, "g");
    let group = cluster.group("g");
    assert_eq!((group.acked, group.delivered, group.out, group.ready), (2, 2, 0, 1));
    let all = cluster.pull_as(CLIENT, "h", (1, 9)).unwrap();
    assert_eq!(cluster.ack_all(&all, "h"), [AckOutcome::Freed, AckOutcome::Freed, AckOutcome::Recorded]);
    let stat = cluster.stream();
    assert_eq!((stat.refs, stat.consumed, cluster.nodes[0].usage().committed), (1, 2, UNIT));
    cluster.master.check().unwrap();
}

#[test]
fn group_that_acknowledges_before_pulling_gets_the_rest() {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    for name in ["a", "b", "c"] {
        cluster.put(name, UNIT, streamed(&["g", "h"]));
    }
    let pulled = cluster.pull_as(CLIENT, "g", (0, 1)).unwrap();
    assert_eq!(cluster.ack_all(&pulled, "h"), [AckOutcome::Recorded]);
    assert_eq!(cluster.names("h", 9), ["b", "c"]);
    cluster.master.check().unwrap();
}

#[test]
fn unacknowledged_samples_are_delivered_again_in_order() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.open(OTHER, 8);
    for name in ["a", "b", "c", "d"] {
        cluster.put(name, UNIT, streamed(&[]));
    }
    let first = cluster.pull_as(OTHER, "g", (1, 2)).unwrap();
    assert_eq!(cluster.names("g", 1), ["c"]);
    let release = Release { leases: leases(&first)[1..].to_vec() };
    cluster.ask_as(OTHER, ClientToMaster::Release(release));
    assert_eq!(cluster.names("g", 9), ["b", "d"], "the released sample is ready again");
    cluster.event(Event::Closed(OTHER));
    assert_eq!(cluster.names("g", 9), [""; 0], "the client may reconnect");
    cluster.wait(300);
    assert_eq!(cluster.names("g", 9), ["a"], "the sample of the lost client is ready again");
    cluster.master.check().unwrap();
}

#[test]
fn samples_of_a_lost_reply_are_delivered_again() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.open(OTHER, 8);
    cluster.put("a", UNIT, streamed(&[]));
    cluster.put("b", UNIT, streamed(&[]));
    let known = cluster.pull_as(OTHER, "g", (1, 1)).unwrap();
    cluster.pull_as(OTHER, "g", (1, 1)).unwrap();
    cluster.open(ConnId(3), 8);
    cluster.ask_as(ConnId(3), ClientToMaster::KeepLeases(leases(&known)));
    assert_eq!(cluster.names("g", 9), ["b"]);
}

#[test]
fn pull_waits_for_its_window() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.open(OTHER, 8);
    let window = cluster.send_pull(CLIENT, "g", (2, 3), 1000);
    let next = cluster.send_pull(OTHER, "g", (1, 1), 1000);
    cluster.put("a", UNIT, streamed(&[]));
    assert_eq!((cluster.pulled(window), cluster.pulled(next)), (None, None), "first come, first served");
    cluster.put("b", UNIT, streamed(&[]));
    assert_eq!(names(&cluster.pulled(window).unwrap()), ["a", "b"]);
    cluster.put("c", UNIT, streamed(&[]));
    assert_eq!(names(&cluster.pulled(next).unwrap()), ["c"]);
    let late = cluster.send_pull(CLIENT, "g", (2, 2), 50);
    cluster.put("d", UNIT, streamed(&[]));
    cluster.wait(50);
    assert_eq!(names(&cluster.pulled(late).unwrap()), ["d"], "the samples available at the deadline");
    let cancelled = cluster.send_pull(CLIENT, "g", (1, 1), 1000);
    cluster.ask(ClientToMaster::Cancel(cancelled));
    assert_eq!(names(&cluster.pulled(cancelled).unwrap()), [""; 0]);
    cluster.send_pull(OTHER, "g", (1, 1), 1000);
    cluster.event(Event::Closed(OTHER));
    assert_eq!(cluster.master.waiting_count(), 0);
}

#[test]
fn pull_behind_a_position_lists_without_leases() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.put("a", UNIT, streamed(&[]));
    cluster.put("b", UNIT, streamed(&[]));
    cluster.names("g", 1);
    let look = |behind| {
        let pull = Pull { stream: "s".into(), items_max: 9, wait_ms: 100, ..Pull::default() };
        ClientToMaster::Pull(Pull { behind: Some(behind), ..pull })
    };
    let Some(Reply::Pulled(seen)) = cluster.ask(look(BEGINNING)) else { panic!() };
    assert_eq!((names(&seen), leases(&seen)), (vec!["a".into(), "b".into()], vec![0, 0]));
    let id = cluster.send(look(generations(&seen)[1]));
    assert_eq!(cluster.pulled(id), None);
    cluster.put("c", UNIT, streamed(&[]));
    assert_eq!(names(&cluster.pulled(id).unwrap()), ["c"]);
    assert_eq!(cluster.names("g", 9), ["b", "c"]);
}

#[test]
fn stream_is_shut_from_its_high_mark_to_its_low_mark() {
    let mut cluster = Cluster::new(&[32 * UNIT]);
    cluster.open_stream(Some(refs(3, 1)), None).unwrap();
    cluster.put("a", UNIT, streamed(&[]));
    cluster.put("b", UNIT, streamed(&[]));
    let ReserveOutcome::Space(space) = cluster.reserve("c", UNIT, streamed(&[])) else { panic!() };
    let behind = cluster.reserve("d", UNIT, streamed(&[]));
    assert!(
        matches!(&behind, ReserveOutcome::Behind(it) if it.refs == 3),
        "a reservation counts: {behind:?}"
    );
    cluster.commit("c", UNIT, streamed(&[]), &space);
    let waiting = [cluster.reserve_streamed("d", 500), cluster.reserve_streamed("e", 500)];
    cluster.put("plain", UNIT, plain());
    assert!(cluster.has("plain"), "puts outside of the stream do not wait");
    let pulled = cluster.pull_as(CLIENT, "g", (1, 3)).unwrap();
    let one = Pulled { keys: pulled.keys[..1].to_vec(), ..pulled.clone() };
    cluster.ack_all(&one, "g");
    assert!(waiting.iter().all(|it| !cluster.replies.contains_key(it)), "two are more than the low mark");
    cluster.ack_all(&pulled, "g");
    assert!(waiting.iter().all(|it| cluster.replies.contains_key(it)));
    assert_eq!(cluster.stream().granted, 2);
    let late = [cluster.reserve_streamed("f", 500), cluster.reserve_streamed("g", 50)];
    cluster.wait(50);
    assert!(cluster.replies.contains_key(&late[0]));
    let Some(Reply::Reserved(reserved)) = cluster.replies.remove(&late[1]) else { panic!() };
    assert!(matches!(reserved.items[0], ReserveOutcome::Behind(_)));
}

#[test]
fn byte_limit_applies_after_a_full_window() {
    let mut cluster = Cluster::new(&[32 * UNIT]);
    let limits = StreamLimits { bytes_high: 2 * UNIT, bytes_low: UNIT, ..StreamLimits::default() };
    cluster.open_stream(Some(limits), None).unwrap();
    cluster.put("a", UNIT, streamed(&[]));
    cluster.put("b", UNIT, streamed(&[]));
    assert!(matches!(cluster.reserve("c", UNIT, streamed(&[])), ReserveOutcome::Behind(_)));
    cluster.open_stream(None, Some(Attach { group: "g".into(), window: 4 })).unwrap();
    cluster.put("c", UNIT, streamed(&[]));
    cluster.put("d", UNIT, streamed(&[]));
    assert!(matches!(cluster.reserve("e", UNIT, streamed(&[])), ReserveOutcome::Behind(_)));
}

#[test]
fn stream_counts_sample_bytes_in_other_stores() {
    let mut cluster = Cluster::new(&[32 * UNIT]);
    let limits = StreamLimits { bytes_high: 9 * UNIT, bytes_low: UNIT, ..StreamLimits::default() };
    cluster.open_stream(Some(limits), None).unwrap();
    let elsewhere = PutOptions { elsewhere: 4 * UNIT, ..streamed(&[]) };
    cluster.put("a", UNIT, elsewhere.clone());
    assert!(matches!(cluster.reserve("b", UNIT, elsewhere.clone()), ReserveOutcome::Space(_)));
    assert!(matches!(cluster.reserve("c", UNIT, elsewhere), ReserveOutcome::Behind(_)));
    assert_eq!(cluster.master.stat().namespaces[0].used, 2 * UNIT, "it is not charged twice");
}

#[test]
fn windows_that_cannot_be_filled_are_refused() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.open(OTHER, 8);
    cluster.open_stream(Some(refs(16, 11)), None).unwrap();
    let attach = |window| Attach { group: "train".into(), window };
    cluster.open_stream(None, Some(attach(8))).unwrap();
    let second = OpenStream { name: "s".into(), attach: Some(attach(5)), ..OpenStream::default() };
    let Some(Reply::Refused(refusal)) = cluster.ask_as(OTHER, ClientToMaster::OpenStream(second.clone()))
    else {
        panic!()
    };
    for part in ["2 consumers of group `train`", "8 + 5 = 13", "only 12", "high mark is 16", "low mark 11"] {
        assert!(refusal.message.contains(part), "{part} is not in {}", refusal.message);
    }
    assert_eq!(cluster.group("train").window, 8, "a refused consumer does not count");
    cluster.open_stream(None, Some(attach(7))).unwrap();
    assert!(matches!(cluster.ask_as(OTHER, ClientToMaster::OpenStream(second)), Some(Reply::Stream(_))));
    let small = cluster.open_stream(Some(refs(8, 8)), None).unwrap_err();
    assert!(small.contains("= 12 samples"), "{small}");
    cluster.ask_as(OTHER, Request::Goodbye);
    assert_eq!(cluster.group("train").window, 7);
    assert!(cluster.open_stream(Some(refs(3, 4)), None).unwrap_err().contains("low mark"));
}

#[test]
fn end_follows_the_last_sample_and_failure_is_immediate() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.open(OTHER, 8);
    cluster.put("a", UNIT, streamed(&[]));
    cluster.end_stream(None);
    let late = cluster.reserve("b", UNIT, streamed(&[]));
    assert!(matches!(late, ReserveOutcome::Invalid(why) if why.contains("ended")));
    let last = cluster.pull_as(CLIENT, "g", (4, 4)).unwrap();
    assert_eq!((names(&last), last.end), (vec!["a".to_owned()], None), "no further samples will come");
    let own = cluster.send_pull(CLIENT, "g", (1, 1), 500);
    assert!(cluster.pulled(own).is_some_and(|it| it.end.is_some()), "it must be able to acknowledge");
    let other = cluster.send_pull(OTHER, "g", (1, 1), 500);
    assert_eq!(cluster.pulled(other), None, "the first client's sample may become ready again");
    let last = Pulled { keys: vec![key("a")], leased: last.leased, end: None };
    cluster.ack_all(&last, "g");
    assert!(cluster.pulled(other).is_some_and(|it| it.end.is_some_and(|it| it.outstanding == 0)));
    cluster.open_stream(Some(refs(4, 4)), None).unwrap();
    cluster.put("b", UNIT, streamed(&[]));
    let parked = cluster.send_pull(OTHER, "h", (2, 2), 500);
    cluster.end_stream(Some("a rank died"));
    cluster.end_stream(Some("and then another"));
    let end = cluster.pulled(parked).unwrap().end.unwrap();
    assert_eq!(end.failure.as_deref(), Some("a rank died"));
    assert!(cluster.pull_as(CLIENT, "g", (1, 1)).unwrap().end.is_some());
}

#[test]
fn commit_after_the_end_of_the_stream_is_stale() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, streamed(&[])) else { panic!() };
    cluster.end_stream(None);
    assert_eq!(cluster.commit("a", UNIT, streamed(&[]), &space), CommitOutcome::Stale);
    assert!(!cluster.has("a"));
}

#[test]
fn dropped_stream_leaves_nothing_behind() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.put("a", UNIT, streamed(&["g"]));
    cluster.put("b", UNIT, streamed(&["g"]));
    cluster.names("g", 1);
    let end = EndStream { name: "s".into(), drop: true, wait_ms: 100, ..EndStream::default() };
    let dropped = Some(Reply::DeletedMatching(DeletedMatching { count: 2, unconfirmed: vec![] }));
    assert_eq!(cluster.ask(ClientToMaster::EndStream(end)), dropped);
    assert_eq!(cluster.nodes[0].usage().free, 16 * UNIT);
    assert!(cluster.pull_as(CLIENT, "g", (1, 1)).unwrap().end.unwrap().failure.unwrap().contains("dropped"));
    cluster.open_stream(Some(refs(4, 4)), None).unwrap();
    cluster.put("a", UNIT, streamed(&["g"]));
    assert_eq!(cluster.names("g", 9), ["a"], "the name of the stream can be used again");
}

#[test]
fn acknowledged_name_cannot_be_appended_again() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.put("a", UNIT, streamed(&["g", "h"]));
    cluster.names("g", 9);
    assert!(matches!(cluster.put("a", UNIT, streamed(&["g", "h"])), CommitOutcome::Replaced(_)));
    let again = cluster.pull_as(CLIENT, "g", (1, 9)).unwrap();
    assert_eq!(names(&again), ["a"], "a retry that replaces is another sample");
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, streamed(&["g", "h"])) else { panic!() };
    cluster.ack_all(&again, "g");
    let late = cluster.commit("a", UNIT, streamed(&["g", "h"]), &space);
    assert_eq!(late, CommitOutcome::Exists(generation(2)), "the group would train on it twice");
    let rest = cluster.pull_as(CLIENT, "h", (1, 9)).unwrap();
    cluster.ack_all(&rest, "h");
    assert_eq!(cluster.reserve("a", UNIT, streamed(&["g", "h"])), ReserveOutcome::Exists(generation(2)));
    assert_eq!(cluster.nodes[0].usage().free, 16 * UNIT);
    cluster.put("a", UNIT, plain());
    assert!(cluster.has("a"), "outside of the stream the name is free");
}

#[test]
fn stream_and_acknowledgements_survive_a_restart() {
    let mut cluster = Cluster::new(&[16 * UNIT, 16 * UNIT]);
    for name in ["d", "a", "c", "b"] {
        cluster.put(name, UNIT, streamed(&["g", "h"]));
    }
    let window = cluster.pull_as(CLIENT, "g", (2, 2)).unwrap();
    cluster.ack_all(&window, "g");
    cluster.names("g", 1);
    cluster.restart_master(6);
    assert_eq!(cluster.names("g", 9), ["c", "b"], "from the last acknowledgement on, in order");
    assert_eq!(cluster.names("h", 9), ["d", "a", "c", "b"]);
    let stat = cluster.stream();
    assert_eq!((stat.recovered, stat.appended, stat.refs), (4, 0, 4));
    assert!(matches!(cluster.reserve("a", UNIT, streamed(&["g", "h"])), ReserveOutcome::Exists(_)));
    cluster.put("e", UNIT, streamed(&["g", "h"]));
    assert_eq!(cluster.names("g", 9), ["e"]);
    cluster.master.check().unwrap();
}

#[test]
fn invalid_requests_are_refused() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    let pull = |items_min, items_max, stream: &str| {
        ClientToMaster::Pull(Pull { stream: stream.into(), items_min, items_max, ..Pull::default() })
    };
    let long = "x".repeat(257);
    for request in [pull(1, 0, "s"), pull(3, 2, "s"), pull(1, 5000, "s"), pull(1, 1, ""), pull(1, 1, &long)] {
        assert!(matches!(cluster.ask(request), Some(Reply::Refused(_))));
    }
    cluster.open_stream(Some(refs(4, 2)), None).unwrap();
    assert!(
        matches!(cluster.ask(pull(4, 4, "s")), Some(Reply::Refused(it)) if it.message.contains("only 3"))
    );
    let item = |stream: &str| ReserveItem {
        key: key("a"),
        len: UNIT,
        options: PutOptions { stream: stream.into(), ..streamed(&[]) },
    };
    let reserve = Reserve { items: vec![item("s"), item("t")], ..Reserve::default() };
    assert!(matches!(cluster.ask(ClientToMaster::Reserve(reserve)), Some(Reply::Refused(_))));
}

/// A step of a pipeline.
#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u8),
    Pull {
        who: u8,
        max: u8,
    },
    /// Acknowledges the first `count` samples that it has.
    Ack {
        who: u8,
        count: u8,
    },
    Release {
        who: u8,
    },
    Die {
        who: u8,
    },
    Break {
        who: u8,
    },
    RestartMaster,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..24).prop_map(Step::Put),
        5 => (0u8..4, 1u8..4).prop_map(|(who, max)| Step::Pull { who, max }),
        4 => (0u8..4, 1u8..4).prop_map(|(who, count)| Step::Ack { who, count }),
        1 => (0u8..4).prop_map(|who| Step::Release { who }),
        1 => (0u8..4).prop_map(|who| Step::Die { who }),
        1 => (0u8..4).prop_map(|who| Step::Break { who }),
        1 => Just(Step::RestartMaster),
    ]
}

const HIGH: u64 = 6;
const GROUPS: [&str; 2] = ["g", "h"];

/// Two consumers of each of two groups, and one producer.
struct Pipeline {
    cluster: Cluster,
    /// The samples of each consumer: name, generation, lease.
    has: [Vec<(crate::Key, Generation, u64)>; 4],
    instances: [u64; 4],
    epoch: u64,
    put: BTreeSet<Generation>,
    acked: [BTreeSet<Generation>; 2],
}

impl Pipeline {
    fn new(mutant: Mutant) -> Self {
        let cluster = Cluster::with(&[64 * UNIT], |config| config.mutant = mutant);
        let mut pipeline = Self {
            cluster,
            has: Default::default(),
            instances: [0; 4],
            epoch: 5,
            put: BTreeSet::new(),
            acked: Default::default(),
        };
        pipeline.begin();
        pipeline
    }

    fn begin(&mut self) {
        (0..4).for_each(|who| self.connect(who));
        let limits = Some(refs(HIGH, 3));
        let _refused = self.cluster.open_stream(limits, None);
    }

    fn connect(&mut self, who: usize) {
        self.instances[who] += 1;
        let client = 10 + who as u64;
        self.cluster.open(self.conn(who), client);
    }

    fn conn(&self, who: usize) -> ConnId {
        ConnId(1000 + 10 * self.instances[who] + who as u64)
    }

    fn play(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Put(name) => self.put(name),
            Step::Pull { who, max } => self.pull(who as usize, max),
            Step::Ack { who, count } => self.ack(who as usize, count as usize),
            Step::Release { who } => {
                let leases = self.has[who as usize].drain(..).map(|it| it.2).collect();
                self.cluster.ask_as(self.conn(who as usize), ClientToMaster::Release(Release { leases }));
                Ok(())
            }
            Step::Die { who } => {
                self.die(who as usize);
                Ok(())
            }
            Step::Break { who } => {
                let who = who as usize;
                self.cluster.event(Event::Closed(self.conn(who)));
                self.connect(who);
                let known = self.has[who].iter().map(|it| it.2).collect();
                self.cluster.ask_as(self.conn(who), ClientToMaster::KeepLeases(known));
                Ok(())
            }
            Step::RestartMaster => {
                self.epoch += 1;
                self.cluster.restart_master(self.epoch);
                // A new epoch of the master knows no leases.
                self.has.iter_mut().for_each(Vec::clear);
                self.begin();
                Ok(())
            }
        }?;
        self.cluster.master.check()?;
        let stat = self.cluster.stream();
        if stat.refs + stat.granted > HIGH {
            return Err(format!("{} samples are in flight", stat.refs + stat.granted));
        }
        Ok(())
    }

    fn put(&mut self, name: u8) -> Result<(), String> {
        let name = format!("{name:02}");
        let space = match self.cluster.reserve(&name, UNIT, streamed(&GROUPS)) {
            ReserveOutcome::Space(space) => space,
            _ => return Ok(()),
        };
        match self.cluster.commit(&name, UNIT, streamed(&GROUPS), &space) {
            CommitOutcome::Stored(generation) => _ = self.put.insert(generation),
            CommitOutcome::Replaced(generation) => {
                // The replaced sample is gone, and no group had acknowledged it.
                self.put.insert(generation);
                for has in &mut self.has {
                    has.retain(|it| it.0 != key(&name));
                }
                let is_old = |it: &Generation| *it < generation && !self.is_there(*it);
                let old: Vec<_> = self.put.iter().copied().filter(is_old).collect();
                for old in old {
                    let by: Vec<_> = self.acked.iter().filter(|it| it.contains(&old)).collect();
                    if by.len() == 1 {
                        return Err(format!(
                            "sample {name} is delivered again to a group that has acknowledged it"
                        ));
                    }
                    if by.is_empty() {
                        self.put.remove(&old);
                    }
                }
            }
            other => return Err(format!("{other:?} in reply to a put of {name}")),
        }
        Ok(())
    }

    fn is_there(&self, generation: Generation) -> bool {
        self.cluster.master.objects.streams.contains(generation)
    }

    fn pull(&mut self, who: usize, max: u8) -> Result<(), String> {
        let group = who % 2;
        let pulled = self.cluster.pull_as(self.conn(who), GROUPS[group], (1, u32::from(max)));
        let pulled = pulled.ok_or("no reply to a pull at its deadline")?;
        let what = pulled.keys.iter().zip(generations(&pulled)).zip(leases(&pulled));
        for ((key, generation), lease) in what {
            if self.acked[group].contains(&generation) {
                return Err(format!("{key} is delivered again after its acknowledgement"));
            }
            let mates = (0..4).filter(|it| it % 2 == group);
            if mates.flat_map(|it| &self.has[it]).any(|it| it.1 == generation) {
                return Err(format!("{key} is with two clients of a group"));
            }
            self.has[who].push((key.clone(), generation, lease));
        }
        Ok(())
    }

    fn ack(&mut self, who: usize, count: usize) -> Result<(), String> {
        let count = count.min(self.has[who].len());
        let taken: Vec<_> = self.has[who].drain(..count).collect();
        let items =
            taken.iter().map(|(key, generation, _)| AckItem { key: key.clone(), generation: *generation });
        let ack =
            Ack { items: items.collect(), group: GROUPS[who % 2].into(), wait_ms: 500, ..Ack::default() };
        let Some(Reply::Acked(outcomes)) = self.cluster.ask_as(self.conn(who), ClientToMaster::Ack(ack))
        else {
            return Err("no reply to an acknowledgement".into());
        };
        for ((key, generation, _), outcome) in taken.iter().zip(outcomes) {
            match outcome {
                AckOutcome::Freed | AckOutcome::Recorded => _ = self.acked[who % 2].insert(*generation),
                other => return Err(format!("{other:?} in reply to an acknowledgement of {key}")),
            }
        }
        let leases = taken.iter().map(|it| it.2).collect();
        self.cluster.ask_as(self.conn(who), ClientToMaster::Release(Release { leases }));
        Ok(())
    }

    fn die(&mut self, who: usize) {
        self.has[who].clear();
        self.cluster.event(Event::Closed(self.conn(who)));
        let node = self.cluster.links[0];
        self.cluster.next_id += 1;
        let id = RequestId(2_000_000 + self.cluster.next_id);
        self.cluster.event(Event::Request(
            node,
            id,
            MemberToMaster::ClientDied(ClientId(10 + who as u64)).into(),
        ));
        self.connect(who);
    }

    /// All consumers die, and one of each group consumes the rest.
    fn finish(&mut self) -> Result<(), String> {
        (0..4).for_each(|who| self.die(who));
        for who in 0..2 {
            loop {
                self.pull(who, 3)?;
                if self.has[who].is_empty() {
                    break;
                }
                self.ack(who, 3)?;
            }
        }
        for acked in &self.acked {
            if let Some(lost) = self.put.difference(acked).next() {
                return Err(format!("the sample of generation {lost} is lost"));
            }
        }
        let free = self.cluster.nodes[0].usage().free;
        if free != 64 * UNIT { Err(format!("only {free} bytes are free at the end")) } else { Ok(()) }
    }

    fn run(mutant: Mutant, steps: &[Step]) -> Result<(), String> {
        let mut pipeline = Self::new(mutant);
        steps.iter().try_for_each(|step| pipeline.play(*step))?;
        pipeline.finish()
    }
}

proptest! {
    #[test]
    fn pipelines_neither_lose_nor_repeat_samples(steps in prop::collection::vec(step(), 1..120)) {
        prop_assert_eq!(Pipeline::run(Mutant::None, &steps), Ok(()));
    }
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_streams_are_noticed() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};

    for &mutant in Mutant::OF_STREAMS {
        let mut runner = TestRunner::deterministic();
        let steps = prop::collection::vec(step(), 1..120);
        let is_noticed = (0..500).any(|_| {
            let steps = steps.new_tree(&mut runner).unwrap().current();
            Pipeline::run(mutant, &steps).is_err()
        });
        let deadlocks = mutant == Mutant::AnyWindow && {
            let mut cluster = Cluster::with(&[UNIT], |config| config.mutant = mutant);
            let attach = Attach { group: "g".into(), window: 9 };
            cluster.open_stream(Some(refs(8, 8)), Some(attach)).is_ok()
        };
        assert!(is_noticed || deadlocks, "{mutant:?} is not noticed");
    }
}
