//! The replay: runs a trace through the engine, event by event, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use hashbrown::HashMap;
use tiffin_kv::{
    CachedTokens, ChainHash, Config, ConfigError, Effect, Engine, Input, Namespace, OpId, OpKind, Operation,
    Outcome, Prompt, ReqId, SpaceId, StoreConfig, Submit,
};
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::lru_store::LruStore;
use crate::machine::{Link, Machine};
use crate::report::{Comparison, Edges, Hits, Prefetch, Report, RequestOutcome, Tiers};
use crate::trace::TraceRequest;

const SPACE: SpaceId = SpaceId(0);

/// A policy: the configuration of the hierarchy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name in reports.
    pub name: String,
    /// Sizes, index, eviction, writing, prefetching. Times are in microseconds.
    pub config: Config,
    /// Capacity of the store in pages; none for no limit.
    pub store_pages: Option<u64>,
}

/// Replays a trace.
///
/// # Errors
/// If the configuration is invalid.
pub fn replay(trace: &[TraceRequest], machine: &Machine, policy: &Policy) -> Result<Report, ConfigError> {
    let mut results = run_once(trace, machine, policy)?;
    measure(trace, &mut [&mut results]);
    Ok(results.report)
}

/// Replays a trace three times for each policy: with the policy, without probes of the store, and with a
/// device that holds everything. Hits and times of all replays cover the same requests: those that were
/// served in every replay.
///
/// # Errors
/// If the configuration is invalid.
pub fn compare(
    trace: &[TraceRequest],
    machine: &Machine,
    policies: &[Policy],
) -> Result<Vec<Comparison>, ConfigError> {
    let all: u64 = trace.iter().map(|request| request.hash_ids.len() as u64 + 1).sum();
    let device_pages = u32::try_from(all.max(1)).unwrap_or(tiffin_kv::config::PAGES_MAX);
    let never = |store: StoreConfig| StoreConfig { threshold_pages: u32::MAX, ..store };
    let mut results = Vec::with_capacity(policies.len());
    for policy in policies {
        let without = Policy {
            name: format!("{}, no prefetch", policy.name),
            config: Config { store: policy.config.store.map(never), ..policy.config },
            store_pages: policy.store_pages,
        };
        let unlimited = Policy {
            name: "infinite device".to_owned(),
            config: Config { device_pages, host_pages: 0, store: None, ..policy.config },
            store_pages: None,
        };
        results.push([
            run_once(trace, machine, policy)?,
            run_once(trace, machine, &without)?,
            run_once(trace, machine, &unlimited)?,
        ]);
    }
    measure(trace, &mut results.iter_mut().flatten().collect::<Vec<_>>());
    let reports = results.into_iter().map(|it| it.map(|results| results.report));
    Ok(reports.map(|[policy, no_prefetch, infinite]| Comparison { policy, no_prefetch, infinite }).collect())
}

/// A report without hits and times, and the results to compute them from.
struct ReplayResult {
    report: Report,
    outcomes: Vec<RequestOutcome>,
}

fn run_once(trace: &[TraceRequest], machine: &Machine, policy: &Policy) -> Result<ReplayResult, ConfigError> {
    let began = Instant::now();
    let config = Config { page_tokens: machine.page_tokens, events: false, ..policy.config };
    let mut run = Run::new(trace, machine, Engine::new(config)?, policy.store_pages);
    run.apply(Input::Define(SPACE, Namespace::default()));
    run.run();
    let store = config.store.is_some_and(|store| store.threshold_pages < u32::MAX);
    let tiers = Tiers { host: config.host_pages > 0, store };
    Ok(run.report(&policy.name, tiers, began.elapsed().as_secs_f64()))
}

/// Computes hits and times over the requests that all of these replays have served.
fn measure(trace: &[TraceRequest], results: &mut [&mut ReplayResult]) {
    let is_served = |outcomes: &[RequestOutcome], at: usize| {
        outcomes.get(at).is_some_and(|outcome| outcome.ttft_us.is_some())
    };
    let shared: Vec<usize> =
        (0..trace.len()).filter(|at| results.iter().all(|it| is_served(&it.outcomes, *at))).collect();
    for it in results {
        let tokens = |at: usize| trace.get(at).map_or(0, |request| request.input_length.max(1));
        let outcome = |at: usize| it.outcomes.get(at).copied().unwrap_or_default();
        it.report.measure(shared.iter().map(|at| (tokens(*at), outcome(*at))));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ended(OpId, u32),
    Prefilled(ReqId, u32),
    Decoded(ReqId, u32),
    Alarm,
}

/// A request in progress.
#[derive(Clone, Copy, Debug)]
struct ActiveRequest {
    arrived: u64,
    input: u32,
    output: u32,
    /// Number of times that it became ready: events from before a retraction are ignored.
    round: u32,
    is_prefilled: bool,
}

struct Run<'a> {
    trace: &'a [TraceRequest],
    machine: &'a Machine,
    engine: Engine,
    store: LruStore,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_made: u64,
    now: u64,
    /// When each edge becomes free, and the device.
    busy: [u64; OpKind::ALL.len()],
    device_busy: u64,
    alarm: u64,
    served: HashMap<ReqId, ActiveRequest, Xxh3DefaultBuilder>,
    /// The result of each request of the trace.
    outcomes: Vec<RequestOutcome>,
    edges: Edges,
    refused: u64,
    steps: u64,
}

impl<'a> Run<'a> {
    fn new(trace: &'a [TraceRequest], machine: &'a Machine, engine: Engine, pages_max: Option<u64>) -> Self {
        Self {
            trace,
            machine,
            engine,
            store: LruStore::new(pages_max),
            events: BinaryHeap::new(),
            events_made: 0,
            now: 0,
            busy: [0; OpKind::ALL.len()],
            device_busy: 0,
            alarm: u64::MAX,
            served: HashMap::default(),
            outcomes: vec![RequestOutcome::default(); trace.len()],
            edges: Edges::default(),
            refused: 0,
            steps: 0,
        }
    }

    fn run(&mut self) {
        let mut arrivals = (1..).zip(self.trace.iter()).peekable();
        loop {
            let next_event = self.events.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let arrives = arrivals.peek().map_or(u64::MAX, |(_, request)| request.timestamp * 1000);
            if let Some((id, request)) = arrivals.next_if(|_| arrives <= next_event) {
                self.now = self.now.max(arrives);
                self.arrive(ReqId(id), request);
            } else if let Some(Reverse((at, _, event))) = self.events.pop() {
                self.now = self.now.max(at);
                self.handle(event);
            } else {
                return;
            }
            self.schedule_alarm();
        }
    }

    fn arrive(&mut self, id: ReqId, request: &TraceRequest) {
        let full = (request.input_length / self.machine.page_tokens) as usize;
        let hashes = request.hash_ids.iter().take(full).map(|id| ChainHash::foreign(*id));
        let pages = (0..).zip(hashes).collect();
        let input = request.input_length.max(1);
        let served = ActiveRequest {
            arrived: self.now,
            input,
            output: request.output_length,
            round: 0,
            is_prefilled: false,
        };
        self.served.insert(id, served);
        let prompt = Prompt::Hashes { tokens: input, pages };
        self.apply(Input::Submit(Submit { request: id, space: SPACE, prompt, priority: 0, deadline: None }));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ended(op, leading) => self.apply(Input::Complete(op, Outcome::Done { leading })),
            Event::Prefilled(id, round) => {
                let Some(served) = self.served.get_mut(&id).filter(|it| it.round == round) else { return };
                let is_first = !std::mem::replace(&mut served.is_prefilled, true);
                let (input, output) = (served.input, served.output);
                let ttft_us = self.now - served.arrived;
                if let Some(outcome) = self.outcome(id).filter(|_| is_first) {
                    outcome.ttft_us = Some(ttft_us);
                }
                self.apply(Input::Computed { request: id, upto: input, generated: Vec::new() });
                self.schedule(
                    self.now + u64::from(output) * self.machine.decode_us,
                    Event::Decoded(id, round),
                );
            }
            Event::Decoded(id, round) => {
                if self.served.get(&id).is_some_and(|it| it.round == round) {
                    self.apply(Input::Finish(id));
                }
            }
            Event::Alarm => {
                self.alarm = u64::MAX;
                self.apply(Input::Tick);
            }
        }
    }

    fn apply(&mut self, input: Input) {
        self.steps += 1;
        for effect in self.engine.apply(input, self.now) {
            match effect {
                Effect::Issue(op) => self.execute(&op),
                Effect::Ready { request, cached, .. } => self.ready(request, cached),
                Effect::Retracted(request, _) => {
                    if let Some(served) = self.served.get_mut(&request) {
                        served.round += 1;
                    }
                }
                Effect::Ended(request, _) => drop(self.served.remove(&request)),
                Effect::Refused(_) => self.refused += 1,
                _ => {}
            }
        }
    }

    fn ready(&mut self, id: ReqId, cached: CachedTokens) {
        let Some(served) = self.served.get_mut(&id) else { return };
        served.round += 1;
        let (is_prefilled, round) = (served.is_prefilled, served.round);
        let left = u64::from(served.input - cached.total());
        let takes = left * 1_000_000 / self.machine.prefill_tokens_per_second.max(1);
        self.device_busy = self.device_busy.max(self.now) + takes;
        self.schedule(self.device_busy, Event::Prefilled(id, round));
        // A request that was retracted before its prompt was computed becomes ready again: the last time
        // counts.
        if let Some(outcome) = self.outcome(id).filter(|_| !is_prefilled) {
            outcome.found = [cached.device, cached.host, cached.store];
        }
    }

    /// The result of a request; ids count from one, in the order of the trace.
    fn outcome(&mut self, ReqId(id): ReqId) -> Option<&mut RequestOutcome> {
        self.outcomes.get_mut(usize::try_from(id).ok()?.checked_sub(1)?)
    }

    fn execute(&mut self, op: &Operation) {
        let records = || op.records.iter();
        let leading = match op.kind {
            OpKind::Probe | OpKind::Fetch => {
                records().take_while(|record| self.store.contains(record.hash)).count()
            }
            _ => op.records.len(),
        };
        if matches!(op.kind, OpKind::Fetch | OpKind::Backup) {
            records().take(leading).for_each(|record| self.store.record_use(record.hash));
        }
        let bytes = leading as u64 * self.machine.page_bytes;
        let edges = &mut self.edges;
        let (link, moved) = match op.kind {
            OpKind::Probe | OpKind::Drop => {
                let at = self.now + self.machine.fetch.latency_us;
                return self.schedule(at, Event::Ended(op.id, leading as u32));
            }
            OpKind::Fetch => (self.machine.fetch, &mut edges.fetch_bytes),
            OpKind::Load => (self.machine.load, &mut edges.load_bytes),
            OpKind::Save => (self.machine.save, &mut edges.save_bytes),
            OpKind::Backup => (self.machine.backup, &mut edges.backup_bytes),
        };
        *moved += bytes;
        let at = self.transfer_end(op.kind, link, bytes);
        self.schedule(at, Event::Ended(op.id, leading as u32));
    }

    /// The time at which a transfer of these bytes ends, after the transfers queued before it.
    fn transfer_end(&mut self, kind: OpKind, link: Link, bytes: u64) -> u64 {
        let now = self.now;
        let Some(busy) = self.busy.get_mut(kind as usize) else { return now };
        *busy = (*busy).max(now) + link.busy_us(bytes);
        *busy + link.latency_us
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.events_made += 1;
        self.events.push(Reverse((at, self.events_made, event)));
    }

    /// Schedules the next alarm of the engine.
    fn schedule_alarm(&mut self) {
        if let Some(at) = self.engine.next_alarm().filter(|at| *at < self.alarm) {
            self.alarm = at;
            self.schedule(at, Event::Alarm);
        }
    }

    fn report(self, policy: &str, tiers: Tiers, wall_seconds: f64) -> ReplayResult {
        let stats = self.engine.stats();
        let report = Report {
            policy: policy.to_owned(),
            tiers,
            requests: self.trace.len() as u64,
            served: self.outcomes.iter().filter(|it| it.ttft_us.is_some()).count() as u64,
            refused: self.refused,
            compared: 0,
            hits: Hits::default(),
            ttft: None,
            ttft_curve: Vec::new(),
            prefetch: Prefetch {
                probes: stats.probes,
                fetched: stats.fetched,
                used: stats.prefetch_used,
                wasted: stats.prefetch_wasted,
                joined: stats.joined,
                in_time_requests: stats.prefetch_in_time,
                late_requests: stats.prefetch_late,
            },
            edges: self.edges,
            duplicate_pages: stats.duplicates,
            evicted_pages: [stats.evicted_device, stats.evicted_host],
            retractions: stats.retractions,
            virtual_seconds: self.now as f64 / 1e6,
            steps: self.steps,
            wall_seconds,
        };
        ReplayResult { report, outcomes: self.outcomes }
    }
}
