//! Objects that a disk refuses because they are larger than it accepts, or drops because it is too small.

use tiffin_node::disk;

use super::{Cluster, UNIT, key, plain};
use crate::{
    message::{ClientToMaster, Pin, PinOutcome, Reply, Why},
    mutant::Mutant,
};

#[test]
fn refused_object_affects_no_other() {
    let mut cluster = Cluster::tiered(&[8], |_| ());
    cluster.write_through();
    cluster.disks[0].takes = UNIT;
    cluster.put("large", 2 * UNIT, plain());
    cluster.put("small", UNIT, plain());
    assert_eq!((cluster.where_is("large"), cluster.where_is("small")), ((true, false), (true, true)));
    let stat = cluster.stat();
    assert_eq!((stat.demotions_refused, stat.demotions_failed), (1, 0));
    // The refusal is explained, and the object is not sent again for a while.
    let Why::Here(here) = cluster.why("large") else { panic!() };
    assert_eq!(here.disk_bytes_max, UNIT);
    let Why::Here(here) = cluster.why("small") else { panic!() };
    assert_eq!(here.disk_bytes_max, 0);
    cluster.disks[0].takes = u64::MAX;
    cluster.put("other", UNIT, plain());
    assert_eq!((cluster.where_is("large"), cluster.stat().demotions_refused), ((true, false), 1));
    cluster.delete("large", true);
    let Why::Gone(gone) = cluster.why("large") else { panic!() };
    assert_eq!(gone.disk_bytes_max, UNIT);
}

#[test]
fn refused_object_is_sent_again_later() {
    let mut cluster = Cluster::tiered(&[8], |config| config.tier.ahead_percent = 100);
    cluster.disks[0].takes = UNIT;
    cluster.put("large", 2 * UNIT, plain());
    cluster.put("small", UNIT, plain());
    assert_eq!((cluster.where_is("large"), cluster.where_is("small")), ((true, false), (true, true)));
    cluster.disks[0].takes = u64::MAX;
    cluster.wait(60_000);
    cluster.put("new", UNIT, plain());
    assert_eq!((cluster.where_is("large"), cluster.where_is("new")), ((true, true), (true, true)));
    let Why::Here(here) = cluster.why("large") else { panic!() };
    assert_eq!(here.disk_bytes_max, 0, "it has a disk copy");
}

#[test]
fn refusal_counts_although_the_copy_was_dropped_before() {
    let mut cluster = Cluster::tiered(&[32], |_| ());
    cluster.write_through();
    cluster.unlink_disk(0);
    cluster.put("large", 2 * UNIT, plain());
    cluster.put("small", UNIT, plain());
    (cluster.disks[0].takes, cluster.disks[0].stalls) = (UNIT, true);
    cluster.link_disk(0);
    assert_eq!(cluster.disks[0].reading.len(), 1, "the reply waits for the small object");
    // The disk says that it does not have the large one.
    let pin = Pin { keys: vec![key("large")], owner: "run".into(), on: true, wait_ms: 500 };
    assert_eq!(cluster.ask(ClientToMaster::Pin(pin)), Some(Reply::Pinned(vec![PinOutcome::Done])));
    cluster.let_disk_go(0);
    assert_eq!(cluster.stat().demotions_refused, 1);
    cluster.disks[0].takes = u64::MAX;
    cluster.put("other", UNIT, plain());
    assert_eq!((cluster.where_is("large"), cluster.where_is("other")), ((true, false), (true, true)));
}

/// How often objects are written to a disk that has no space for all of them, and drops the oldest each time.
fn written_to_a_full_disk(mutant: Mutant) -> u64 {
    let mut cluster = Cluster::tiered(&[8], |config| {
        (config.tier.ahead_percent, config.mutant) = (100, mutant);
    });
    ["a", "b", "c"].into_iter().for_each(|name| _ = cluster.put(name, UNIT, plain()));
    for _ in 0..10 {
        let Some(oldest) = cluster.disks[0].log.keys().next().copied() else { break };
        cluster.disks[0].log.remove(&oldest);
        cluster.disk_event(0, disk::Event::Evicted(vec![oldest]));
    }
    cluster.stat().demoted_objects
}

#[test]
fn dropped_object_is_not_written_again_at_once() {
    assert_eq!(written_to_a_full_disk(Mutant::None), 3);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_writing_again_is_noticed() {
    assert_eq!(written_to_a_full_disk(Mutant::WriteAheadAgain), 13);
}

#[test]
fn dropped_object_is_written_for_a_put() {
    let mut cluster = Cluster::tiered(&[4], |config| config.tier.ahead_percent = 50);
    ["a", "b", "c", "d"].into_iter().for_each(|name| _ = cluster.put(name, UNIT, plain()));
    while let Some(oldest) = cluster.disks[0].log.keys().next().copied() {
        cluster.disks[0].log.remove(&oldest);
        cluster.disk_event(0, disk::Event::Evicted(vec![oldest]));
    }
    let before = cluster.stat().demoted_objects;
    assert!(cluster.put_waiting("e", 2, 500).is_some());
    assert!(cluster.stat().demoted_objects > before && cluster.stat().evicted_undemoted == 0);
}
