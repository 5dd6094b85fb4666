//! A master with tenants: only namespaces with a quota can be written to, and quotas share the memory. And
//! a master that emits a notice for each object that is stored or removed.

use super::*;
use crate::message::{PolicyChange, Quota, ReserveOutcome};

fn with_tenants(capacities: &[u64]) -> Cluster {
    Cluster::with(capacities, |config| config.tenants = true)
}

#[test]
fn namespace_without_a_quota_is_read_only() {
    let mut cluster = with_tenants(&[8 * UNIT]);
    let refused = ReserveOutcome::OverQuota(Quota { used: 0, limit: 0, need: UNIT });
    assert_eq!(cluster.reserve("a", UNIT, plain()), refused);
    cluster.policy(Some(4 * UNIT), None);
    cluster.put("a", UNIT, plain());
    cluster.policy(None, None);
    // Its objects stay, and can be read and removed.
    assert!(cluster.has("a"));
    assert!(matches!(cluster.reserve("b", UNIT, plain()), ReserveOutcome::OverQuota(_)));
    cluster.delete("a", true);
    assert!(!cluster.has("a"));
}

#[test]
fn quotas_beyond_the_memory_are_scaled_down() {
    let mut cluster = with_tenants(&[8 * UNIT]);
    let capacity = cluster.master.stat().nodes[0].usage.capacity;
    let other = ConnId(90);
    let hello = Hello { client: ClientId(90), namespace: "other".to_owned(), ..Hello::default() };
    cluster.event(Event::Opened(other, hello));
    let set = |cluster: &mut Cluster, bytes: u64, id: u64| {
        let change = ClientToMaster::SetPolicy(PolicyChange::NONE.quota(Some(bytes)));
        cluster.event(Event::Request(other, RequestId(id), Request::from(change)));
        let shown = cluster.master.quotas().into_iter().map(|it| (it.requested, it.effective));
        shown.collect::<Vec<_>>()
    };
    cluster.policy(Some(capacity / 2), None);
    let half = (Some(capacity / 2), Some(capacity / 2));
    assert_eq!(set(&mut cluster, capacity / 2, 1), [half, half], "together they fit");
    let (asked, left) = (capacity / 2 * 3, capacity / 4 * 3);
    let expected = [(Some(capacity / 2), Some(capacity / 4)), (Some(asked), Some(left))];
    assert_eq!(set(&mut cluster, capacity / 2 * 3, 2), expected);
    let ReserveOutcome::OverQuota(quota) = cluster.reserve("a", capacity / 4 + 1, plain()) else { panic!() };
    assert_eq!(quota.limit, capacity / 4);
    assert!(matches!(cluster.reserve("a", capacity / 4, plain()), ReserveOutcome::Space(_)));
}

fn told(cluster: &mut Cluster) -> Vec<String> {
    let shown = cluster.notices.drain(..).filter_map(|notice| match notice {
        Notice::Stored { namespace, key, on_disk } => Some(format!("+{namespace}/{key} {on_disk}")),
        Notice::Removed { namespace, key, on_disk } => Some(format!("-{namespace}/{key} {on_disk}")),
        _ => None,
    });
    shown.collect()
}

#[test]
fn stored_and_removed_objects_cause_notices() {
    let mut cluster = Cluster::with(&[2 * UNIT], |config| config.events = true);
    cluster.put("a", UNIT, plain());
    assert_eq!(told(&mut cluster), ["+default/a false"]);
    cluster.delete("a", true);
    assert_eq!(told(&mut cluster), ["-default/a false"]);
    cluster.put("b", UNIT, plain());
    cluster.put("c", 2 * UNIT, plain());
    assert_eq!(
        told(&mut cluster),
        ["+default/b false", "-default/b false", "+default/c false"],
        "b was evicted"
    );
    cluster.restart_master(6);
    assert_eq!(told(&mut cluster), ["+default/c false"], "the nodes announce what they hold");
    let mut silent = Cluster::new(&[2 * UNIT]);
    silent.put("a", UNIT, plain());
    assert_eq!(told(&mut silent), Vec::<String>::new());
}

#[test]
fn demotions_and_promotions_are_announced() {
    let mut cluster = Cluster::tiered(&[2], |config| {
        config.events = true;
        config.tier.promote_on_hit = true;
    });
    cluster.write_through();
    cluster.put("a", UNIT, plain());
    assert_eq!(told(&mut cluster), ["+default/a false", "+default/a true"], "the disk has it, too");
    cluster.put("b", 2 * UNIT, plain());
    assert_eq!(told(&mut cluster), ["-default/a false", "+default/b false", "+default/b true"]);
    cluster.delete("b", true);
    assert_eq!(told(&mut cluster), ["-default/b false", "-default/b true"]);
    for _ in 0..2 {
        cluster.ask(ClientToMaster::Resolve(Resolve {
            keys: vec![key("a")],
            touch: true,
            locate: true,
            ..Resolve::default()
        }));
    }
    assert_eq!(told(&mut cluster), ["+default/a false"], "it is promoted");
    cluster.put("a", UNIT, plain());
    // The disk may have the new one, too, by now.
    assert_eq!(told(&mut cluster)[..2], ["-default/a true", "+default/a false"], "it is replaced");
}
