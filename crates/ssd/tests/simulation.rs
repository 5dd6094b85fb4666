//! The log on a simulated disk, from seeds; and the proof that a broken log would be noticed.

mod support;

use std::collections::BTreeMap;

use support::play;
use tiffin_ssd::Sabotage;

const EVENTS: u64 = 3000;

/// What must have happened in some seed, or the others prove nothing.
const COVERED: &[&str] = &[
    "append",
    "append busy",
    "append cancelled",
    "append failed",
    "append full",
    "append stale",
    "append timed out",
    "append too large",
    "bit flip",
    "Corrupt",
    "crash",
    "disk failed",
    "disk says Io",
    "disk says NoSpace",
    "disk says ReadOnly",
    "disk says Vanished",
    "Evicted",
    "flush",
    "forget",
    "forget not sure",
    "lost completion",
    "mark",
    "mark not sure",
    "mark refused",
    "read",
    "read cancelled",
    "read corrupt",
    "read failed",
    "read gone",
    "read timed out",
    "recovered",
    "recovered bad records",
    "recovered several generations",
    "scanned several segments",
    "Superseded",
    "unreadable sector",
];

#[test]
fn what_was_promised_is_there_and_nothing_comes_back() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..30 {
        match play(seed, Sabotage::None, EVENTS) {
            Ok(more) => more.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    for what in COVERED {
        assert!(seen.contains_key(*what), "`{what}` never happened; this did: {seen:#?}");
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    // The panics of broken logs are what is looked for.
    std::panic::set_hook(Box::new(|_| {}));
    let mut unnoticed = Vec::new();
    for sabotage in Sabotage::ALL {
        let noticed = (0..80).find(|seed| play(*seed, *sabotage, EVENTS).is_err());
        if noticed.is_none() {
            unnoticed.push(*sabotage);
        }
    }
    drop(std::panic::take_hook());
    assert_eq!(unnoticed, [], "these rules can be broken without being noticed");
}
