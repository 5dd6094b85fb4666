//! The rules of the tier below memory that are about room: what leaves for what comes back, and quotas.

use tiffin_throttle::Config;

use super::{
    tests::{Cluster, UNIT, key, plain, twice},
    tests_tier::{STEPS, get, go_on, prefetch, promoting, reserve},
    *,
};
use crate::message::{
    Ahead, CommitItem, Decide, DecideItem, Demotion, Policy, PrefetchOutcome, ReserveOutcome, ResolveOutcome,
};

use PrefetchOutcome::{Absent, Cancelled, Done, Resident, Running, Skipped};

#[test]
fn what_comes_back_drives_out_only_what_is_cold_and_on_a_disk() {
    let mut cluster = Cluster::tiered(&[2], |_| ());
    cluster.shelve("a", 1);
    cluster.put("unshelved", UNIT, plain());
    cluster.write_through();
    cluster.put("shelved", UNIT, plain());
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Skipped], "it is hot");
    cluster.wait(50);
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Skipped], "there was no room a while ago");
    cluster.wait(5000);
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done]);
    assert_eq!((cluster.where_is("unshelved").0, cluster.where_is("shelved")), (true, (false, true)));
    // What was brought stays for a while.
    cluster.shelve("b", 0);
    assert!(matches!(cluster.put_waiting("c", 1, 0), Some(ReserveOutcome::Room(_))));
    assert_eq!((cluster.where_is("a").0, cluster.has("unshelved")), (true, false));
}

/// What came back is on a disk, too, but is used: it does not stand for what was driven out for it.
#[test]
fn more_can_come_back_after_what_came_back_first() {
    let mut cluster = Cluster::tiered(&[4], |config| config.tier.ahead_percent = 25);
    for name in ["x", "y", "z"] {
        cluster.shelve(name, 1);
    }
    for name in ["a", "b", "c", "d"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    cluster.wait(50);
    assert_eq!(cluster.stat().demoted_objects, 4, "a quarter is on the disk, and may leave");
    for (name, demoted) in [("x", 5), ("y", 6), ("z", 7)] {
        assert_eq!(cluster.prefetch(&[name], Ahead::All).unwrap(), [Done], "{name}");
        assert_eq!(cluster.stat().demoted_objects, demoted, "{name}: what left is followed by as much");
    }
    assert_eq!(cluster.stat().evicted_unshelved, 0);
}

#[test]
fn a_quota_keeps_out_what_would_come_back_and_nobody_else() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.shelve("a", 2);
    cluster.put("b", UNIT, plain());
    cluster.ask(Request::SetPolicy(Policy { quota: Some(2 * UNIT), ..Policy::default() }));
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Skipped]);
    cluster.ask(Request::SetPolicy(Policy { quota: Some(3 * UNIT), ..Policy::default() }));
    assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [Done], "memory was not short");
}

/// What must leave because its namespace has all that it may have goes to a disk first.
#[test]
fn a_quota_loses_nothing_that_a_disk_can_take() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.ask(Request::SetPolicy(Policy { quota: Some(2 * UNIT), ..Policy::default() }));
    cluster.disks[0].held_up = true;
    for name in ["a", "b"] {
        cluster.put(name, UNIT, plain());
        cluster.wait(1);
    }
    let id = cluster.send(reserve("c", 1, 500));
    assert!(!cluster.replies.contains_key(&id), "it waits for the disk");
    assert_eq!(cluster.why_nodes("a"), ["node1"], "what is only being written is not there yet");
    cluster.let_disk_go(0);
    assert!(matches!(cluster.replies.remove(&id), Some(Reply::Reserved(_))));
    assert_eq!(cluster.where_is("a"), (false, true));
    // Who may not wait finds what was written ahead.
    assert!(matches!(cluster.put_waiting("d", 1, 0), Some(ReserveOutcome::Room(_))));
    assert_eq!(cluster.where_is("b"), (false, true));
    // Where nothing goes to disks it is as it was.
    let mut cluster = Cluster::tiered(&[8], |_| ());
    let demotion = Some(Demotion::Never);
    cluster.ask(Request::SetPolicy(Policy { quota: Some(UNIT), demotion, ..Policy::default() }));
    cluster.put("a", UNIT, plain());
    assert!(matches!(cluster.put_waiting("b", 1, 500), Some(ReserveOutcome::Room(_))));
    assert!(!cluster.has("a") && cluster.stat().demoted_objects == 0);
}

#[test]
fn only_so_much_comes_back_at_a_time() {
    let throttle = Config { keys_max: 1, ..Config::default() };
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.throttle = throttle);
    cluster.shelve("a", 1);
    cluster.shelve("b", 1);
    cluster.disks[0].held_up = true;
    let id = cluster.send(prefetch(&["a", "b"], Ahead::All, 10));
    cluster.wait(10);
    assert_eq!(cluster.answer(id).unwrap(), [Running, Skipped]);
    cluster.let_disk_go(0);
    assert_eq!(cluster.prefetch(&["b"], Ahead::All).unwrap(), [Done]);
}

/// What a client gives up ends at once, once, and leaves nothing behind, however far it has come; what is all
/// but there comes. It may be asked for again at once.
#[test]
fn what_is_given_up_ends_as_cancelled_or_comes() {
    for step in STEPS {
        let (mut cluster, id) = promoting(step);
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Running], "{step}: it is waited for");
        cluster.ask(Request::Cancel(id));
        assert_eq!(cluster.answer(id).unwrap(), [Running], "{step}");
        let is_late = step == "slot";
        let end = if is_late { Running } else { Cancelled };
        assert_eq!(cluster.prefetch(&["a", "none"], Ahead::Nothing).unwrap(), [end, Absent], "{step}");
        assert_eq!(cluster.master.moving_count(), usize::from(is_late), "{step}");
        let again = if is_late { Running } else { Skipped };
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [again], "{step}: it has one end");
        go_on(&mut cluster);
        assert_eq!(cluster.where_is("a"), (is_late, true), "{step}");
        assert_eq!(cluster.stat().prefetch_failed, 0, "{step}: nothing has failed");
        let end = if is_late { Resident } else { Done };
        assert_eq!(cluster.prefetch(&["a"], Ahead::All).unwrap(), [end], "{step}: nothing speaks against it");
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Resident], "{step}");
    }
}

#[test]
fn what_somebody_else_wants_is_not_given_up() {
    for other in ["another client", "a probe", "a get", "another client before"] {
        let mut cluster = Cluster::tiered(&[8], |_| ());
        cluster.shelve("a", 1);
        cluster.disks[0].held_up = true;
        cluster.open(ConnId(2), 8);
        let of_the_other = |cluster: &mut Cluster| {
            cluster.event(Event::Request(ConnId(2), RequestId(77), prefetch(&["a"], Ahead::All, 0)));
        };
        if other == "another client before" {
            of_the_other(&mut cluster);
        }
        cluster.send(prefetch(&["a"], Ahead::All, 0));
        match other {
            "another client" => of_the_other(&mut cluster),
            "a probe" => _ = cluster.probe(&["a"], Ahead::All),
            "a get" => _ = cluster.send(get("a", 1000)),
            _ => (),
        }
        assert_eq!(cluster.prefetch(&["a"], Ahead::Nothing).unwrap(), [Running], "{other}");
        cluster.let_disk_go(0);
        assert_eq!(cluster.where_is("a"), (true, true), "{other}");
    }
}

#[test]
fn a_late_question_brings_back_no_copy_that_is_leaving_memory() {
    let mut cluster = Cluster::tiered(&[4, 4], |_| ());
    cluster.write_through();
    let ReserveOutcome::Room(room) = cluster.reserve("a", UNIT, twice()) else { panic!() };
    cluster.commit("a", UNIT, twice(), &room);
    // The disk comes before its node has heard what the bytes are, and rests.
    cluster.wait(5_000);
    let (home, other) = (room[0].location, room[1].location);
    let asking = home.segment.0 as usize - 1;
    cluster.hold_up(asking);
    let (index, node) = (cluster.index("a"), cluster.master.members.find(home.segment));
    assert_eq!(cluster.where_is("a"), (true, true));
    assert!(cluster.master.leave_memory(index, node));
    cluster.carry_out();
    // The answer to its first question was lost; it has not heard yet that its copy must go.
    let item =
        CommitItem { hold: home.hold(), key: key("a"), len: UNIT, options: twice(), others: vec![other] };
    let items = vec![DecideItem { namespace: "default".into(), client: ClientId(7), item }];
    let asked = Request::Decide(Decide { items, wait_ms: 0 });
    cluster.event(Event::Request(cluster.links[asking], RequestId(77), asked));
    cluster.let_go(asking);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    let in_memory: Vec<_> = found.replicas.into_iter().filter(|it| !it.hold().is_on_disk()).collect();
    assert_eq!(in_memory, [other]);
}
