//! Puts that replace one generation only, while the pins of the object change.

use super::*;
use crate::message::{Pin, PinOutcome};

/// A writer looks at an object and stores it elsewhere, as it is. Meanwhile its pin begins or ends.
fn pinned_meanwhile(mutant: Mutant, begins: bool) -> [CommitOutcome; 2] {
    let mut cluster = Cluster::with(&[10 * UNIT], |config| config.mutant = mutant);
    let options = |hard_pin| PutOptions { hard_pin, ..plain() };
    let only = |hard_pin| PutOptions { replaces: Some(generation(1)), ..options(hard_pin) };
    assert_eq!(cluster.put("k", 10, options(!begins)), CommitOutcome::Stored(generation(1)));
    let ReserveOutcome::Space(early) = cluster.reserve("k", 10, only(!begins)) else { panic!() };
    let pin = Pin { keys: vec![key("k")], owner: String::new(), on: begins, wait_ms: 500 };
    assert_eq!(cluster.ask(ClientToMaster::Pin(pin)), Some(Reply::Pinned(vec![PinOutcome::Done])));
    let refused = cluster.commit("k", 10, only(!begins), &early);
    if refused != CommitOutcome::Exists(generation(1)) {
        return [refused.clone(), refused];
    }
    assert_eq!(cluster.reserve("k", 10, only(!begins)), ReserveOutcome::Exists(generation(1)));
    // The writer looks again.
    let ReserveOutcome::Space(late) = cluster.reserve("k", 10, only(begins)) else { panic!() };
    [refused, cluster.commit("k", 10, only(begins), &late)]
}

#[test]
fn conditional_replacement_keeps_pins_as_they_are() {
    for begins in [true, false] {
        let outcomes = pinned_meanwhile(Mutant::None, begins);
        let expected = [CommitOutcome::Exists(generation(1)), CommitOutcome::Replaced(generation(2))];
        assert_eq!(outcomes, expected, "{begins}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_conditional_replacement_is_noticed() {
    let [first, _] = pinned_meanwhile(Mutant::ReplacePinned, true);
    assert_eq!(first, CommitOutcome::Replaced(generation(2)));
}
