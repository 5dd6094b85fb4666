//! Stores that hang, fail and panic: no step waits, and no page has two uses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tiffin_kv::{CachedTokens, Config, Input, OpKind, PrefetchStart, PrefetchStop, StoreConfig, Tier};

use super::support::{MemoryStore, Toy, config, prompt};

/// A hierarchy with short timeouts.
fn short_timeouts() -> Config {
    let stop = PrefetchStop::Timeout { base: 10, per_page: 1, most: 20 };
    Config {
        store: Some(StoreConfig { start: PrefetchStart::Missing, threshold_pages: 1, stop }),
        op_timeout: 30,
        hint_interval: 5,
        ..config()
    }
}

#[test]
fn o1_backup_source_is_pinned_until_its_end() {
    let store = MemoryStore::new();
    store.close("back_up");
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.until("a backup is in flight", |_| store.waiting.load(Ordering::SeqCst) == 1);
    let used = |toy: &Toy| (0..16).filter(|page| toy.executor.host().is_used(*page)).count();
    assert_eq!(used(&toy), 5, "the request has ended, its backup has not");
    // Requests that need every host page do not evict these.
    for seed in 2..8 {
        toy.serve(&prompt(seed, 29));
    }
    assert_eq!(used(&toy), 5);
    store.open("back_up");
    toy.settle();
    assert_eq!(used(&toy), 0);
    let mut other = Toy::new(config(), store, None);
    assert_eq!(other.serve(&prompt(1, 21)).store, 20, "the stored pages are those that were computed");
}

#[test]
fn o3_hanging_fetch_delays_no_request_and_keeps_its_pages() {
    let store = MemoryStore::new();
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.settle();
    let mut toy = Toy::new(short_timeouts(), Arc::clone(&store), None);
    store.close("fetch");
    let request = toy.submit(&prompt(1, 21));
    toy.until("it continues without the pages", |toy| toy.over.contains(&request));
    assert_eq!(toy.ready[&request], CachedTokens::default());
    assert!(toy.recomputed.contains(&request));
    assert_eq!(store.waiting.load(Ordering::SeqCst), 1, "the fetch is still blocked");
    assert_eq!(toy.executor.engine().pages(Tier::Host).quarantined, 5);
    let request = toy.submit(&prompt(2, 29));
    toy.until("another request is served meanwhile", |toy| toy.over.contains(&request));
    store.open("fetch");
    toy.settle();
    assert_eq!(toy.executor.engine().pages(Tier::Host).quarantined, 0);
    assert!(toy.executor.engine().stats().abandoned > 0);
}

#[test]
fn l2_abort_ends_the_request_but_not_its_io() {
    let store = MemoryStore::new();
    Toy::new(config(), Arc::clone(&store), None).serve(&prompt(9, 5));
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.settle();
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    store.close("fetch");
    let request = toy.submit(&prompt(1, 21));
    toy.until("its fetch is in flight", |_| store.waiting.load(Ordering::SeqCst) == 1);
    toy.step([Input::Abort(request), Input::Abort(request)]);
    assert!(toy.over.contains(&request));
    assert_eq!(toy.executor.engine().pages(Tier::Host).quarantined, 5);
    store.open("fetch");
    toy.settle();
    assert_eq!(toy.serve(&prompt(1, 21)).total(), 20);
}

#[test]
fn l1_operation_that_panics_fails() {
    for call in ["probe", "fetch", "back_up"] {
        let store = MemoryStore::new();
        let mut toy = Toy::new(config(), Arc::clone(&store), None);
        toy.serve(&prompt(1, 21));
        toy.settle();
        *store.panics.lock().unwrap() = Some(call);
        let mut other = Toy::new(config(), Arc::clone(&store), None);
        other.serve(&prompt(1, 21));
        other.serve(&prompt(2, 21));
        other.settle();
        let moved = other.executor.moved();
        assert!(moved.panics > 0 && moved.faults >= moved.panics, "{call}");
        assert_eq!(moved.last_fault.as_deref(), Some("the operation panicked"));
        *store.panics.lock().unwrap() = None;
        assert_eq!(other.serve(&prompt(1, 21)).total(), 20, "{call}");
    }
}

#[test]
fn close_waits_for_backups_and_stops_the_rest() {
    let store = MemoryStore::new();
    store.close("back_up");
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.until("a backup is in flight", |_| store.waiting.load(Ordering::SeqCst) == 1);
    assert!(!toy.executor.close(Duration::from_millis(1)), "the backup is still in flight");
    store.open("back_up");
    assert!(toy.executor.close(super::support::LONG));
    assert_eq!(store.len(), 5);
}

#[test]
fn l8_backup_never_delays_a_fetch() {
    let store = MemoryStore::new();
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.settle();
    let mut toy = Toy::new(config(), Arc::clone(&store), None);
    store.close("back_up");
    toy.serve(&prompt(2, 21));
    toy.until("a backup hangs", |_| store.waiting.load(Ordering::SeqCst) == 1);
    assert_eq!(toy.serve(&prompt(1, 21)).store, 20);
    assert_eq!(toy.executor.moved().done[OpKind::Backup as usize], 0);
    store.open("back_up");
    toy.settle();
}
