//! Replays: the same every time, between their bounds, and true to the counts of real traces where those are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use tiffin_kv::{Config, Eviction, IndexKind, PrefetchStop, StoreConfig};
use tiffin_kv_replay::generate::{Traffic, generate};
use tiffin_kv_replay::trace::TraceRequest;
use tiffin_kv_replay::{Machine, Policy, Report, compare, replay, trace};

fn policy(device_pages: u32, host_pages: u32) -> Policy {
    let stop = PrefetchStop::Timeout { base: 2_000_000, per_page: 10_000, most: 30_000_000 };
    Policy {
        name: "lru".to_owned(),
        config: Config {
            device_pages,
            host_pages,
            store: Some(StoreConfig { threshold_pages: 1, stop }),
            running_max: 64,
            op_patience: 60_000_000,
            hint_patience: 1_000_000,
            ..Config::default()
        },
        store_pages: None,
    }
}

fn timeless(report: Report) -> Report {
    Report { wall_seconds: 0.0, ..report }
}

#[test]
fn a_replay_is_the_same_every_time_and_lies_between_its_bounds() {
    let trace = generate(&Traffic { requests: 800, rate: 2.0, ..Traffic::default() });
    let machine = Machine::default();
    for index in [IndexKind::Radix, IndexKind::Flat] {
        let mut policy = policy(400, 400);
        policy.config.index = index;
        let compared = compare(&trace, &machine, &policy).unwrap();
        let again = replay(&trace, &machine, &policy).unwrap();
        assert_eq!(timeless(compared.policy.clone()), timeless(again));
        let (least, real, most) = (&compared.no_prefetch, &compared.policy, &compared.infinite);
        assert_eq!((least.requests, real.requests, most.requests), (800, 800, 800));
        assert!(least.hits.rate() <= real.hits.rate() && real.hits.rate() <= most.hits.rate() + 1e-9);
        assert!(real.hits.store_tokens > 0 && least.hits.store_tokens == 0);
        assert!(real.prefetch.used <= real.prefetch.fetched);
        assert!(most.ttft.p99 <= least.ttft.p99, "{:?} {:?}", most.ttft, least.ttft);
        assert_eq!(real.edges.fetch_bytes % machine.page_bytes, 0);
    }
}

#[test]
fn a_store_that_keeps_little_gives_little() {
    let trace = generate(&Traffic { requests: 500, rate: 2.0, ..Traffic::default() });
    let machine = Machine::default();
    let mut policy = policy(300, 300);
    let endless = replay(&trace, &machine, &policy).unwrap();
    policy.store_pages = Some(10);
    let short = replay(&trace, &machine, &policy).unwrap();
    assert!(short.hits.store_tokens < endless.hits.store_tokens);
}

#[test]
fn every_eviction_policy_serves_every_request() {
    let trace = generate(&Traffic { requests: 400, rate: 2.0, ..Traffic::default() });
    for eviction in [Eviction::Lru, Eviction::S3Fifo, Eviction::CostAware { base: 1000, per_position: 10 }] {
        let mut policy = policy(300, 600);
        policy.config.eviction = eviction;
        let report = replay(&trace, &Machine::default(), &policy).unwrap();
        assert_eq!((report.requests, report.refused), (400, 0), "{eviction:?}");
        assert!(report.hits.rate() > 0.2, "{eviction:?}: {:?}", report.hits);
    }
}

/// The public traces lie beside the project, where they are; counts are those of the specification.
#[test]
fn the_infinite_cache_finds_what_the_traces_repeat() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    for (name, requests, shared) in
        [("conversation_trace.jsonl", 12_031, 0.366), ("mooncake_trace_1000.jsonl", 1_000, 0.38)]
    {
        // Without the files there is nothing to compare with.
        let Ok(file) = File::open(folder.join(name)) else { return };
        let trace = trace::read(BufReader::new(file), 512).unwrap();
        assert_eq!(trace.len(), requests);
        let mut policy = policy(400_000, 0);
        policy.config.store = None;
        policy.config.running_max = 1_000_000;
        let report = replay(&trace, &Machine::default(), &policy).unwrap();
        // Blocks that are not full are no pages, and requests that run at once find less than in turn.
        let rate = report.hits.rate();
        assert!((rate - shared).abs() < 0.05, "{name}: {rate} of the tokens, {shared} of the blocks");
    }
}

/// The part of all blocks that a cache of so many finds, if it keeps what was used last and only a prefix
/// counts: the curve by which traces are compared.
fn reuse(trace: &[TraceRequest], sizes: &[usize]) -> Vec<f64> {
    let all: usize = trace.iter().map(|request| request.hash_ids.len()).sum();
    let share = |size: &usize| {
        let (mut last, mut order, mut clock, mut found) = (BTreeMap::new(), BTreeMap::new(), 0_u64, 0);
        for request in trace {
            found += request.hash_ids.iter().take_while(|id| last.contains_key(*id)).count();
            // The end of a prompt is older than its beginning: it leaves first.
            for id in request.hash_ids.iter().rev() {
                clock += 1;
                if let Some(was) = last.insert(*id, clock) {
                    order.remove(&was);
                }
                order.insert(clock, *id);
                if last.len() > *size
                    && let Some((_, id)) = order.pop_first()
                {
                    last.remove(&id);
                }
            }
        }
        100.0 * found as f64 / all as f64
    };
    sizes.iter().map(share).collect()
}

const SIZES: [usize; 5] = [1_000, 3_000, 10_000, 30_000, usize::MAX];
/// What the public traces come to: of conversations, and of synthetic requests of tools and agents.
const CONVERSATION: [f64; 5] = [4.5, 6.5, 21.2, 32.6, 36.6];
const SYNTHETIC: [f64; 5] = [8.4, 19.1, 42.4, 62.4, 64.0];

#[test]
fn what_is_generated_is_reused_like_the_public_traces() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    for (name, curve) in [("conversation_trace.jsonl", CONVERSATION), ("synthetic_trace.jsonl", SYNTHETIC)] {
        // Where the traces are not, their curves stand for them.
        let Ok(file) = File::open(folder.join(name)) else { continue };
        let trace = trace::read(BufReader::new(file), 512).unwrap();
        let found = reuse(&trace, &SIZES);
        assert!(found.iter().zip(curve).all(|(a, b)| (a - b).abs() < 1.5), "{name}: {found:.1?}");
    }
    let made = reuse(&generate(&Traffic { requests: 12_000, ..Traffic::default() }), &SIZES);
    for ((made, low), high) in made.iter().zip(CONVERSATION).zip(SYNTHETIC) {
        assert!((low - 5.0..high + 5.0).contains(made), "{made:.1} is not between {low} and {high}");
    }
}
