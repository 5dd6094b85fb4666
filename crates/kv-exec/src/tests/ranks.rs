//! Several ranks, each with a thread, memory and clock of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tiffin_kv::{Config, Input, Namespace, OpKind, Outcome, SpaceId};

use super::support::{LONG, MemoryStore, Toy, config, prompt};
use crate::gather::in_process;
use crate::{GatherError, StepError};

/// Runs the same scenario on every rank.
fn on_ranks<T: Send + 'static>(
    config: Config,
    store: &Arc<MemoryStore>,
    scenario: impl Fn(&mut Toy) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let members = in_process(config.ranks, LONG);
    let start = |(rank, member)| {
        let (store, scenario) = (Arc::clone(store), scenario.clone());
        std::thread::spawn(move || {
            let mut toy = Toy::new(Config { rank, ..config }, store, Some(Box::new(member)));
            let result = scenario(&mut toy);
            // No rank leaves before all have finished.
            toy.settle();
            (result, toy)
        })
    };
    let threads: Vec<_> = (0..).zip(members).map(start).collect();
    // The toys are kept until all have finished: a rank that leaves ends the group.
    let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    done.into_iter().map(|(result, _)| result).collect()
}

#[test]
fn scenario_293_reads_exactly_24_pages() {
    let config = Config { page_tokens: 64, device_pages: 16, host_pages: 16, ranks: 4, ..config() };
    let store = MemoryStore::new();
    let served = on_ranks(config, &store, |toy| {
        let long = prompt(1, 439);
        let first = toy.serve(&long);
        toy.settle();
        // A page that is being copied cannot be evicted, so each prompt is settled before the next.
        for seed in 2..8 {
            toy.serve(&prompt(seed, 512));
            toy.settle();
        }
        let fetched = toy.executor.moved().done[OpKind::Fetch as usize];
        let again = toy.serve(&long);
        let now = toy.executor.moved().done[OpKind::Fetch as usize];
        (first, again, now - fetched, toy.executor.engine().digest())
    });
    let reads: u64 = served.iter().map(|(_, _, reads, _)| reads).sum();
    assert_eq!(reads, 24, "six full pages on each of four ranks");
    assert_eq!(store.reads.load(Ordering::SeqCst), 24);
    for (first, again, _, digest) in &served {
        assert_eq!((first.total(), again.store, again.total()), (0, 384, 384));
        assert_eq!(*digest, served[0].3, "C1");
    }
}

#[test]
fn v3_page_missing_on_one_rank_is_missing_on_all() {
    let config = Config { ranks: 3, ..config() };
    let store = MemoryStore::new();
    on_ranks(config, &store, |toy| {
        toy.serve(&prompt(1, 21));
        toy.settle();
    });
    assert_eq!(store.len(), 15);
    store.forget(1);
    let leading = on_ranks(config, &store, |toy| {
        let found = toy.serve(&prompt(1, 21)).store / 4;
        let probe = toy.ended.iter().find(|ended| ended.kind == OpKind::Probe).unwrap().clone();
        (found, probe)
    });
    for (found, probe) in &leading {
        assert_eq!(probe.by_rank.len(), 3);
        assert_eq!(*found, probe.leading(), "the minimum over the ranks");
        assert!(*found < 5 && probe.by_rank.contains(&Outcome::Done { leading: 5 }));
    }
}

#[test]
fn c1_ranks_with_different_inputs_are_detected() {
    let store = MemoryStore::new();
    let config = Config { ranks: 2, ..config() };
    let threads: Vec<_> = (0..)
        .zip(in_process(2, LONG))
        .map(|(rank, member)| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                let mut toy = Toy::new(Config { rank, ..config }, store, Some(Box::new(member)));
                let other = Namespace { model: format!("{rank}"), ..Namespace::default() };
                toy.executor.step([Input::Define(SpaceId(1), other)]).unwrap();
                (toy.executor.step([]), toy)
            })
        })
        .collect();
    let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (rank, (result, _)) in done.iter().enumerate() {
        assert_eq!(*result, Err(StepError::Diverged(1 - rank as u32)));
    }
}

#[test]
fn remaining_rank_gets_an_error() {
    let store = MemoryStore::new();
    let config = Config { ranks: 2, ..config() };
    let start = |(rank, member)| {
        let store = Arc::clone(&store);
        std::thread::spawn(move || {
            let mut toy = Toy::new(Config { rank, ..config }, store, Some(Box::new(member)));
            (rank == 0).then(|| toy.executor.step([]))
        })
    };
    let threads: Vec<_> = (0..).zip(in_process(2, LONG)).map(start).collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(results, [Some(Err(StepError::Gather(GatherError::Left))), None]);
}
