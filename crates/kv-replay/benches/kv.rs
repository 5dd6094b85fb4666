//! Cost of the control plane: `make bench-kv`.
//!
//! First the cost per operation, for prompts from 1 thousand to 128 thousand tokens and for few and many
//! cached pages, which must make no difference: a match, a request whose pages are all new and enter the
//! index, one that finds them all, and one that evicts as many pages. Then a whole trace.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

#[path = "../../kv/benches/stage/mod.rs"]
mod stage;

use std::hint::black_box;
use std::time::Instant;

use stage::{PAGE_TOKENS, SPACE, Stage, prompt};
use tiffin_kv::{Config, IndexKind};
use tiffin_kv_replay::generate::{Traffic, generate};
use tiffin_kv_replay::{Machine, Policy, replay};

const ROUNDS: u64 = 20;
/// Cached pages, few and many.
const CACHED: [u32; 2] = [20_000, 500_000];

/// Cost of each operation, in microseconds.
#[derive(Clone, Copy)]
struct Costs {
    matched: f64,
    new: f64,
    hit: f64,
    evict: f64,
}

/// Average microseconds per call.
fn micros(count: u64, mut work: impl FnMut(u64)) -> f64 {
    let began = Instant::now();
    (0..count).for_each(&mut work);
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

fn main() {
    let names = ["index", "tokens", "cached", "match µs", "new µs", "hit µs", "evict µs"];
    let [a, b, c, d, e, f, g] = names;
    println!("{a:>6} {b:>8} {c:>9}  {d:>10} {e:>10} {f:>10} {g:>10}");
    for index in [IndexKind::Radix, IndexKind::Flat] {
        let name = format!("{index:?}");
        for tokens in [1_000_u32, 8_000, 32_000, 128_000] {
            let of = CACHED.map(|cached| operations(index, tokens, cached));
            for (cached, it) in CACHED.iter().zip(of) {
                let Costs { matched, new, hit, evict } = it;
                let shown = format!("{matched:>10.1} {new:>10.1} {hit:>10.1} {evict:>10.1}");
                println!("{name:>6} {tokens:>8} {cached:>9}  {shown}");
            }
            let [few, many] = of;
            let ratios =
                [many.matched / few.matched, many.new / few.new, many.hit / few.hit, many.evict / few.evict];
            let [matched, new, hit, evict] = ratios.map(|ratio| format!("{ratio:>9.2}x"));
            println!("{name:>6} {tokens:>8} {:>9}  {matched:>10} {new:>10} {hit:>10} {evict:>10}", "ratio");
        }
    }
    let count = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(200_000);
    whole_trace(count);
}

fn operations(index: IndexKind, tokens: u32, cached: u32) -> Costs {
    let pages = tokens / PAGE_TOKENS;
    let mut stage = Stage::with(index, cached, pages * (2 * ROUNDS as u32 + 2));
    let fresh: Vec<_> = (0..ROUNDS).map(|at| prompt(5000 + at, pages)).collect();
    let new = micros(ROUNDS, |at| stage.serve(fresh.get(at as usize).unwrap().clone(), pages));
    let known = fresh.first().unwrap().clone();
    let hit = micros(ROUNDS, |_| stage.serve(known.clone(), pages));
    let matched = micros(ROUNDS * 10, |_| {
        black_box(stage.engine.match_prefix(SPACE, &known));
    });
    let mut full = Stage::with(index, cached, 2);
    let others: Vec<_> = (0..=ROUNDS).map(|at| prompt(9000 + at, pages)).collect();
    // The first request grows the lists to their final length.
    full.serve(others.first().unwrap().clone(), pages);
    let evict = micros(ROUNDS, |at| full.serve(others.get(at as usize + 1).unwrap().clone(), pages));
    Costs { matched, new, hit, evict }
}

fn whole_trace(requests: u64) {
    let trace = generate(&Traffic { requests, rate: 2.0, ..Traffic::default() });
    let config = Config {
        device_pages: 2_000,
        host_pages: 20_000,
        op_timeout: 120_000_000,
        hint_interval: 10_000_000,
        ..Config::default()
    };
    let policy = Policy { name: "lru".to_owned(), config, store_pages: None };
    let report = replay(&trace, &Machine::default(), &policy).unwrap();
    let (wall, steps) = (report.wall_seconds, report.steps);
    let (request_us, step_us) = (wall * 1e6 / requests as f64, wall * 1e6 / steps as f64);
    let found = report.hits.rate().unwrap_or_default() * 100.0;
    println!("\n{requests} requests, {steps} steps in {wall:.1} s, {found:.1} % of the tokens found");
    println!("{request_us:.1} µs a request, {step_us:.2} µs a step");
}
