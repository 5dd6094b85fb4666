//! What the control plane costs: `make bench-kv`.
//!
//! First, per operation, for prompts from 1 thousand to 128 thousand tokens and for few and many cached
//! pages, which must make no difference: a match, a request whose pages are all new and enter the index, one
//! that finds them all, and one for which as many pages leave. Then a whole trace.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use tiffin_kv::{
    ChainHash, Config, Effect, Engine, IndexKind, Input, Namespace, Outcome, Prompt, ReqId, SpaceId, Submit,
};
use tiffin_kv_replay::generate::{Traffic, generate};
use tiffin_kv_replay::{Machine, Policy, replay};

const SPACE: SpaceId = SpaceId(0);
const PAGE_TOKENS: u32 = 64;
const ROUNDS: u64 = 20;

/// An engine of one tier, so that what is measured is the engine and not a list of operations.
struct Bench {
    engine: Engine,
    requests: u64,
}

impl Bench {
    fn new(index: IndexKind, device_pages: u32) -> Self {
        let config = Config {
            page_tokens: PAGE_TOKENS,
            device_pages,
            host_pages: 0,
            store: None,
            index,
            events: false,
            ..Config::default()
        };
        let mut engine = Engine::new(config).unwrap();
        engine.apply(Input::Define(SPACE, Namespace::default()), 0);
        Self { engine, requests: 0 }
    }

    fn prompt(of: u64, pages: u32) -> Prompt {
        let hashes = (0..pages).map(|at| (at, ChainHash::foreign(of << 20 | u64::from(at))));
        Prompt::Hashes { tokens: pages * PAGE_TOKENS + 1, pages: hashes.collect() }
    }

    /// A request from its submission to its end.
    fn serve(&mut self, prompt: Prompt, pages: u32) {
        self.requests += 1;
        let request = ReqId(self.requests);
        let upto = pages * PAGE_TOKENS + 1;
        let submit = Submit { request, space: SPACE, prompt, priority: 0, deadline: None };
        for input in [
            Input::Submit(submit),
            Input::Computed { request, upto, generated: vec![] },
            Input::Finish(request),
        ] {
            for effect in self.engine.apply(input, 0) {
                if let Effect::Issue(op) = effect {
                    let leading = op.records.len() as u32;
                    self.engine.apply(Input::Complete(op.id, Outcome::Done { leading }), 0);
                }
            }
        }
    }
}

/// Microseconds of one, on average.
fn micros(count: u64, mut work: impl FnMut(u64)) -> f64 {
    let began = Instant::now();
    (0..count).for_each(&mut work);
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

fn main() {
    let [a, b, c, d, e, f, g] = ["index", "tokens", "cached", "match µs", "new µs", "hit µs", "evict µs"];
    println!("{a:>6} {b:>8} {c:>9}  {d:>10} {e:>10} {f:>10} {g:>10}");
    for index in [IndexKind::Radix, IndexKind::Flat] {
        for cached in [20_000_u32, 500_000] {
            for tokens in [1_000_u32, 8_000, 32_000, 128_000] {
                operations(index, tokens, cached);
            }
        }
    }
    let count = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(200_000);
    whole_trace(count);
}

fn operations(index: IndexKind, tokens: u32, cached: u32) {
    let pages = tokens / PAGE_TOKENS;
    let room = pages * (2 * ROUNDS as u32 + 2);
    let mut bench = Bench::new(index, cached + room);
    let filler = cached / 100;
    (0..100).for_each(|at| bench.serve(Bench::prompt(1000 + at, filler), filler));
    let fresh: Vec<_> = (0..ROUNDS).map(|at| Bench::prompt(5000 + at, pages)).collect();
    let new = micros(ROUNDS, |at| bench.serve(fresh.get(at as usize).unwrap().clone(), pages));
    let known = fresh.first().unwrap().clone();
    let hit = micros(ROUNDS, |_| bench.serve(known.clone(), pages));
    let matched = micros(ROUNDS * 10, |_| {
        black_box(bench.engine.match_prefix(SPACE, &known));
    });
    let mut full = Bench::new(index, cached.max(2 * pages + 2));
    let filler = cached.max(2 * pages + 2) / 100;
    (0..101).for_each(|at| full.serve(Bench::prompt(1000 + at, filler), filler));
    let evict = micros(ROUNDS, |at| full.serve(Bench::prompt(9000 + at, pages), pages));
    let name = format!("{index:?}");
    println!("{name:>6} {tokens:>8} {cached:>9}  {matched:>10.1} {new:>10.1} {hit:>10.1} {evict:>10.1}");
}

fn whole_trace(requests: u64) {
    let trace = generate(&Traffic { requests, rate: 2.0, ..Traffic::default() });
    let config = Config {
        device_pages: 2_000,
        host_pages: 20_000,
        op_patience: 120_000_000,
        hint_patience: 10_000_000,
        ..Config::default()
    };
    let policy = Policy { name: "lru".to_owned(), config, store_pages: None };
    let report = replay(&trace, &Machine::default(), &policy).unwrap();
    let (wall, steps) = (report.wall_seconds, report.steps);
    let (request_us, step_us) = (wall * 1e6 / requests as f64, wall * 1e6 / steps as f64);
    let found = report.hits.rate() * 100.0;
    println!("\n{requests} requests, {steps} steps in {wall:.1} s, {found:.1} % of the tokens found");
    println!("{request_us:.1} µs a request, {step_us:.2} µs a step");
}
