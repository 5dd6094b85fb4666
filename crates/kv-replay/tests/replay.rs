//! Replays are deterministic, lie between their bounds, and have the hit rates of real traces where those are
//! present.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use tiffin_kv::{Config, Eviction, IndexKind, PrefetchStart, PrefetchStop, StoreConfig};
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
            store: Some(StoreConfig { start: PrefetchStart::Missing, threshold_pages: 1, stop }),
            running_max: 64,
            op_timeout: 60_000_000,
            hint_interval: 1_000_000,
            ..Config::default()
        },
        store_pages: None,
    }
}

fn timeless(report: Report) -> Report {
    Report { wall_seconds: 0.0, ..report }
}

#[test]
fn replay_is_deterministic_and_between_its_bounds() {
    let trace = generate(&Traffic { requests: 800, rate: 2.0, ..Traffic::default() });
    let machine = Machine::default();
    for index in [IndexKind::Radix, IndexKind::Flat] {
        let mut policy = policy(400, 400);
        policy.config.index = index;
        let compared = compare(&trace, &machine, std::slice::from_ref(&policy)).unwrap().remove(0);
        let again = replay(&trace, &machine, &policy).unwrap();
        assert_eq!(timeless(compared.policy.clone()), timeless(again));
        let (least, real, most) = (&compared.no_prefetch, &compared.policy, &compared.infinite);
        assert_eq!((least.requests, real.requests, most.requests), (800, 800, 800));
        assert_eq!((least.compared, real.compared, most.compared), (800, 800, 800));
        let [least_rate, rate, most_rate] = [least, real, most].map(|it| it.hits.rate().unwrap());
        assert!(least_rate <= rate && rate <= most_rate + 1e-9);
        assert!(real.hits.store_tokens > 0 && least.hits.store_tokens == 0);
        assert!(real.prefetch.used <= real.prefetch.fetched);
        assert!(most.ttft.unwrap().p99 <= least.ttft.unwrap().p99, "{:?} {:?}", most.ttft, least.ttft);
        assert_eq!(real.edges.fetch_bytes % machine.page_bytes, 0);
    }
}

#[test]
fn refused_requests_are_left_out_of_every_column() {
    // Two prompts of one page, and one of five between them that only fits on the larger device.
    let request = |timestamp, pages: u64| TraceRequest {
        timestamp,
        input_length: 512 * pages as u32,
        output_length: 1,
        hash_ids: (timestamp..timestamp + pages).collect(),
    };
    let trace = [request(0, 1), request(1000, 5), request(2000, 1)];
    let machine = Machine::default();
    let policies = [policy(3, 4), policy(100, 4)];
    let compared = compare(&trace, &machine, &policies).unwrap();
    let counts = |it: &Report| (it.requests, it.served, it.refused, it.compared);
    assert_eq!(counts(&compared[0].policy), (3, 2, 1, 2));
    assert_eq!(counts(&compared[0].infinite), (3, 3, 0, 2));
    assert_eq!(counts(&compared[1].policy), (3, 3, 0, 2));
    for report in compared.iter().flat_map(|it| [&it.policy, &it.no_prefetch, &it.infinite]) {
        assert_eq!(report.hits.asked_tokens, 1024, "{}", report.policy);
    }
    // The long prompt would be the slowest of three: over the same requests, both devices are equally fast.
    assert_eq!(compared[0].policy.ttft, compared[1].policy.ttft);
    let alone = replay(&trace, &machine, &policies[1]).unwrap();
    assert!(alone.ttft.unwrap().p99 > compared[1].policy.ttft.unwrap().p99);
}

#[test]
fn values_without_measurement_are_none() {
    let trace =
        [TraceRequest { timestamp: 0, input_length: 5120, output_length: 1, hash_ids: (0..10).collect() }];
    let report = replay(&trace, &Machine::default(), &policy(3, 4)).unwrap();
    assert_eq!((report.served, report.refused, report.compared), (0, 1, 0));
    assert_eq!((report.hits.rate(), report.ttft), (None, None));
    assert_eq!((report.prefetch.accuracy(), report.prefetch.timeliness()), (None, None));
}

#[test]
fn small_store_has_few_hits() {
    let trace = generate(&Traffic { requests: 500, rate: 2.0, ..Traffic::default() });
    let machine = Machine::default();
    let mut policy = policy(300, 300);
    let unlimited = replay(&trace, &machine, &policy).unwrap();
    policy.store_pages = Some(10);
    let short = replay(&trace, &machine, &policy).unwrap();
    assert!(short.hits.store_tokens < unlimited.hits.store_tokens);
}

#[test]
fn every_eviction_policy_serves_every_request() {
    let trace = generate(&Traffic { requests: 400, rate: 2.0, ..Traffic::default() });
    for eviction in [Eviction::Lru, Eviction::S3Fifo, Eviction::CostAware { base: 1000, per_position: 10 }] {
        let mut policy = policy(300, 600);
        policy.config.eviction = eviction;
        let report = replay(&trace, &Machine::default(), &policy).unwrap();
        assert_eq!((report.served, report.refused), (400, 0), "{eviction:?}");
        assert!(report.hits.rate().unwrap() > 0.2, "{eviction:?}: {:?}", report.hits);
    }
}

/// The public traces are in a folder next to the project, if present; the counts are from the specification.
#[test]
fn infinite_cache_finds_what_traces_repeat() {
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
        // Partial blocks are not pages, and concurrent requests find less than sequential ones.
        let rate = report.hits.rate().unwrap();
        assert!((rate - shared).abs() < 0.05, "{name}: {rate} of the tokens, {shared} of the blocks");
    }
}

/// The fraction of blocks that an LRU cache of this size finds, if only prefixes count: the curve by which
/// traces are compared.
fn reuse(trace: &[TraceRequest], sizes: &[usize]) -> Vec<f64> {
    let all: usize = trace.iter().map(|request| request.hash_ids.len()).sum();
    let share = |size: &usize| {
        let (mut last, mut order, mut clock, mut found) = (BTreeMap::new(), BTreeMap::new(), 0_u64, 0);
        for request in trace {
            found += request.hash_ids.iter().take_while(|id| last.contains_key(*id)).count();
            // The end of a prompt is evicted before its beginning.
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
/// The curves of the public traces: conversations, and synthetic requests of tools and agents.
const CONVERSATION: [f64; 5] = [4.5, 6.5, 21.2, 32.6, 36.6];
const SYNTHETIC: [f64; 5] = [8.4, 19.1, 42.4, 62.4, 64.0];

#[test]
fn generated_blocks_are_reused_like_public_traces() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    for (name, curve) in [("conversation_trace.jsonl", CONVERSATION), ("synthetic_trace.jsonl", SYNTHETIC)] {
        // Without the traces, their curves are used.
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
