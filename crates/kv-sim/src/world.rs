//! The simulated world: engines and executors on all ranks, requests, and faults.
//!
//! All ranks get every input except completions at the same time, and must return the same effects. Each rank
//! gets completions at its own time, and the ranks agree on them in gathers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tiffin_kv::mutant::Mutant;
use tiffin_kv::{
    Config, Effect, Ending, Engine, Input, LocalAcks, Media, Namespace, OpId, OpKind, Outcome, PrefetchStart,
    ReqId, RetractReason, SpaceId, Tick, Tier,
};

use tiffin_sim_runner::{Rng, RuleViolation};

use crate::coverage::Coverage;
use crate::executor::{Executor, StoreContents};
use crate::invariants::Before;
use crate::oracle::{Content, ContentOracle, content};
use crate::plan::{Plan, namespaces};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The id of the invariant.
    pub invariant: String,
    /// The observed violation.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(invariant: &str, what: impl Into<String>) -> Self {
        Self { invariant: invariant.to_owned(), what: what.into() }
    }
}

impl RuleViolation for Violation {
    fn promise(&self) -> &str {
        &self.invariant
    }

    fn what(&self) -> &str {
        &self.what
    }
}

pub(crate) type Checked<T = ()> = Result<T, Violation>;

/// A request, as the scheduler sees it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) space: SpaceId,
    pub(crate) tokens: Vec<u32>,
    pub(crate) media: Vec<Media>,
    /// The content of each of its full pages.
    pub(crate) contents: Vec<Content>,
    /// Its device pages, while it is on the device.
    pub(crate) table: Option<Vec<u32>>,
    /// What it has while its pages are loaded.
    pub(crate) loading: Option<(tiffin_kv::CachedTokens, Vec<u32>)>,
    pub(crate) computed: u32,
    /// Number of tokens that are still to be generated.
    pub(crate) goal: u64,
}

/// A rank.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) engine: Engine,
    pub(crate) executor: Executor,
    /// Completions that the engine has not received yet.
    pub(crate) acks: Vec<(OpId, Outcome)>,
}

/// The simulated world.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) ranks: Vec<Rank>,
    /// The last probe of each request.
    last_probes: BTreeMap<ReqId, OpId>,
    pub(crate) store: StoreContents,
    /// Keys that the store has had since it was last cleared of them.
    pub(crate) was_stored: BTreeSet<tiffin_kv::StoreKey>,
    /// The pages that the host has had.
    pub(crate) was_saved: BTreeSet<(SpaceId, tiffin_kv::ChainHash)>,
    pub(crate) oracle: ContentOracle,
    pub(crate) spaces: Vec<Namespace>,
    /// The root of each namespace.
    pub(crate) roots: Vec<tiffin_kv::ChainHash>,
    pub(crate) clients: BTreeMap<ReqId, Client>,
    pub(crate) requests_made: u64,
    pub(crate) now: Tick,
    pub(crate) coverage: Coverage,
    pub(crate) events: u64,
    pub(crate) faults_end: bool,
    pub(crate) log: Option<String>,
}

impl World {
    pub(crate) fn new(seed: u64, mutant: Mutant, keeps_log: bool) -> Checked<Self> {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(seed, &mut rng, mutant);
        Self::with(plan, rng, keeps_log)
    }

    pub(crate) fn with(plan: Plan, rng: Rng, keeps_log: bool) -> Checked<Self> {
        let mut world = Self {
            ranks: make_ranks(&plan.config),
            last_probes: BTreeMap::new(),
            rng,
            plan,
            store: StoreContents::new(),
            was_stored: BTreeSet::new(),
            was_saved: BTreeSet::new(),
            oracle: ContentOracle::default(),
            spaces: namespaces().to_vec(),
            roots: Vec::new(),
            clients: BTreeMap::new(),
            requests_made: 0,
            now: 0,
            coverage: Coverage::default(),
            events: 0,
            faults_end: false,
            log: keeps_log.then(String::new),
        };
        let config = world.plan.config;
        world.note(|| format!("{config:?}"));
        world.define_all()?;
        Ok(world)
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            // Writing to a string cannot fail.
            let _ = writeln!(log, "{:>6} {}", self.now, text());
        }
    }

    pub(crate) fn define_all(&mut self) -> Checked {
        self.roots = self.spaces.iter().map(|it| it.root(self.plan.config.page_tokens)).collect();
        for (id, namespace) in (0..).zip(self.spaces.clone()) {
            self.apply(&Input::Define(SpaceId(id), namespace))?;
        }
        Ok(())
    }

    /// Restarts the process: memories are lost, the store is not.
    pub(crate) fn restart(&mut self) -> Checked {
        self.note(|| "restart".to_owned());
        self.coverage.hit_if(!self.store.is_empty(), "restart with a warm store");
        self.ranks = make_ranks(&self.plan.config);
        self.clients.clear();
        self.define_all()
    }

    /// Gives all ranks an input, checks that they return the same effects, and executes them.
    pub(crate) fn apply(&mut self, input: &Input) -> Checked {
        self.note(|| format!("{input:?}"));
        let now = self.now;
        let write = self.plan.config.write;
        let mut answers = Vec::new();
        let mut befores = Vec::new();
        for rank in &mut self.ranks {
            let before = Before::of(&rank.engine, write);
            answers.push(rank.engine.apply(input.clone(), now));
            before.check(&rank.engine)?;
            befores.push(before);
        }
        let effects = answers.first().cloned().unwrap_or_default();
        if answers.iter().any(|answer| *answer != effects) {
            return Err(Violation::new("C1", format!("ranks answer {input:?} differently: {answers:?}")));
        }
        if let Some(before) = befores.first() {
            self.check_written_back(before, input, &effects)?;
        }
        for effect in effects {
            self.note(|| format!("    {effect:?}"));
            self.execute(effect)?;
        }
        self.check()
    }

    fn execute(&mut self, effect: Effect) -> Checked {
        match effect {
            Effect::Issue(op) => self.begin(op)?,
            Effect::CancelHint(op) => self.cancel(op),
            Effect::Loading { request, cached, pages } => {
                self.coverage.hit("loading");
                if let Some(client) = self.clients.get_mut(&request) {
                    client.loading = Some((cached, pages));
                }
            }
            Effect::Ready { request, cached, pages } => self.ready(request, cached, pages)?,
            Effect::Grant { request, pages } => {
                self.coverage.hit("grant");
                if let Some(table) = self.clients.get_mut(&request).and_then(|it| it.table.as_mut()) {
                    table.extend(pages);
                }
            }
            Effect::MustRecompute { .. } => self.coverage.hit("must recompute"),
            Effect::Retracted(request, why) => {
                self.coverage.hit(match why {
                    RetractReason::NoSpace => "retracted for space",
                    RetractReason::Vanished => "retracted for loss",
                    RetractReason::Redefined => "retracted for redefinition",
                });
                self.forget_table(request);
            }
            Effect::Ended(request, how) => {
                self.coverage.hit(match how {
                    Ending::Finished => "finished",
                    Ending::Aborted => "aborted",
                    Ending::TooLong => "ended too long",
                });
                if self.clients.remove(&request).is_none() {
                    return Err(Violation::new("L1", format!("{request:?} ends twice")));
                }
            }
            Effect::Refused(_) => self.coverage.hit("refused"),
            Effect::Stored(Tier::Host, space, hash) => drop(self.was_saved.insert((space, hash))),
            Effect::Stored(Tier::Device, ..) | Effect::Removed(..) => {}
        }
        Ok(())
    }

    pub(crate) fn forget_table(&mut self, request: ReqId) {
        if let Some(client) = self.clients.get_mut(&request) {
            client.table = None;
            client.loading = None;
            client.computed = 0;
        }
    }

    fn begin(&mut self, op: tiffin_kv::Operation) -> Checked {
        self.coverage.hit(match op.kind {
            OpKind::Probe => "probe",
            OpKind::Fetch => "fetch",
            OpKind::Load => "load",
            OpKind::Save => "save",
            OpKind::Backup => "backup",
            OpKind::Drop => "drop",
        });
        self.check_start(&op)?;
        let faults = self.plan.faults;
        let is_calm = self.faults_end;
        for rank in &mut self.ranks {
            let is_stuck = !is_calm && self.rng.percent(faults.stuck);
            let delay = if is_stuck { self.rng.between(50, 200) } else { 0 };
            // Loads are rare, and their pages are used at once.
            let often = if op.kind == OpKind::Load { 3 } else { 1 };
            let fails = !is_calm && self.rng.percent(faults.fail * often);
            let at = self.rng.below(op.records.len() as u64) as usize;
            self.coverage.hit_if(self.now + delay > op.deadline, "stuck past its deadline");
            self.coverage.hit_if(fails && rank.executor.ranks > 1, "failure on one rank");
            self.coverage.hit_if(fails && op.kind == OpKind::Drop, "drop failed");
            if rank.executor.ended.contains_key(&op.id) || rank.executor.jobs.contains_key(&op.id) {
                return Err(Violation::new("L1", format!("{:?} is issued twice", op.id)));
            }
            rank.executor.begin(op.clone(), self.now + delay, fails.then_some(at));
        }
        Ok(())
    }

    /// With `PrefetchStart::Hits`, a fetch follows a probe that found more pages than the threshold (L10).
    fn check_start(&mut self, op: &tiffin_kv::Operation) -> Checked {
        let (Some(request), Some(store)) = (op.request, self.plan.config.store) else { return Ok(()) };
        if op.kind == OpKind::Probe {
            self.last_probes.insert(request, op.id);
        }
        let probe = self.last_probes.get(&request).filter(|_| op.kind == OpKind::Fetch);
        let Some(probe) = probe.filter(|_| store.start == PrefetchStart::Hits) else { return Ok(()) };
        let hits = self.ranks.iter().map(|rank| match rank.executor.ended.get(probe) {
            Some(Outcome::Done { leading }) => *leading,
            Some(Outcome::Failed) | None => 0,
        });
        let (hits, threshold) = (hits.min().unwrap_or(0), store.threshold_pages);
        self.coverage.hit("start checked");
        if hits <= threshold {
            let what =
                format!("{:?} fetches {hits} hits of {request:?}, which do not exceed {threshold}", op.id);
            return Err(Violation::new("L10", what));
        }
        Ok(())
    }

    fn cancel(&mut self, op: OpId) {
        self.coverage.hit("cancel hint");
        for rank in &mut self.ranks {
            if let Some(outcome) = rank.executor.ended.get(&op) {
                rank.acks.push((op, *outcome));
                continue;
            }
            let is_stuck = rank.executor.jobs.get(&op).is_none_or(|job| job.stuck_until > self.now);
            if !is_stuck
                && self.rng.percent(self.plan.cancel)
                && let Some(outcome) = rank.executor.cancel(op)
            {
                rank.acks.push((op, outcome));
            }
        }
    }

    fn ready(&mut self, id: ReqId, cached: tiffin_kv::CachedTokens, pages: Vec<u32>) -> Checked {
        let Some(client) = self.clients.get_mut(&id) else {
            return Err(Violation::new("L2", format!("{id:?} is ready but unknown")));
        };
        let found = cached.total();
        self.coverage.hit_if(cached.device > 0, "ready from device");
        self.coverage.hit_if(cached.host > 0, "ready from host");
        self.coverage.hit_if(cached.store > 0, "ready from store");
        self.coverage.hit_if(found == 0, "ready from nothing");
        if found as usize >= client.tokens.len() {
            return Err(Violation::new("K5", format!("{id:?} has nothing left to compute")));
        }
        // A client that computes while pages are loaded relies on both.
        if let Some((expected, table)) = client.loading.take() {
            self.coverage.hit_if(expected != cached, "loaded less than expected");
            if found > expected.total() || (expected.total() == found && table != pages) {
                let what =
                    format!("{id:?} is ready with {cached:?} in {pages:?}, not {expected:?} in {table:?}");
                return Err(Violation::new("content", what));
            }
        }
        client.table = Some(pages);
        client.computed = found;
        self.check_tables()
    }

    /// One read or write of an operation on a rank. If it ends, its completion is sent to the engine.
    pub(crate) fn step_io(&mut self, rank_index: usize, op: OpId) {
        let Some(rank) = self.ranks.get_mut(rank_index) else { return };
        let stored = self.store.len();
        let ended = rank.executor.step(op, &mut self.store);
        if self.store.len() > stored {
            self.was_stored.extend(self.store.keys());
        }
        let Some(outcome) = ended else { return };
        let faults = self.plan.faults;
        if !self.faults_end && self.rng.percent(faults.lose_ack) {
            self.coverage.hit("ack lost");
            return;
        }
        rank.acks.push((op, outcome));
        if !self.faults_end && self.rng.percent(faults.repeat_ack) {
            self.coverage.hit("ack repeated");
            rank.acks.push((op, outcome));
        }
        self.note(|| format!("    {op:?} ended on rank {rank_index}: {outcome:?}"));
    }

    /// Delivers the completion at position `at` to its engine.
    pub(crate) fn deliver(&mut self, rank_index: usize, at: usize) -> Checked {
        let Some(rank) = self.ranks.get_mut(rank_index).filter(|rank| at < rank.acks.len()) else {
            return Ok(());
        };
        let (op, outcome) = rank.acks.swap_remove(at);
        self.coverage.hit_if(!rank.engine.is_live(op), "ack late");
        if let Outcome::Done { leading } = outcome {
            self.coverage.hit_if(leading > 0, "partial result");
        }
        if self.ranks.len() > 1 {
            self.note(|| format!("rank {rank_index} receives {op:?}: {outcome:?}"));
            let now = self.now;
            if let Some(rank) = self.ranks.get_mut(rank_index) {
                let effects = rank.engine.apply(Input::Complete(op, outcome), now);
                if !effects.is_empty() {
                    return Err(Violation::new("C3", format!("a rank decides {effects:?} alone")));
                }
            }
            return self.check();
        }
        self.apply(&Input::Complete(op, outcome))?;
        self.check_ended(&[op])
    }

    /// The all-gather of a step.
    pub(crate) fn gather(&mut self) -> Checked {
        let acks: Vec<LocalAcks> = self.ranks.iter().map(|rank| rank.engine.agree()).collect();
        let all: BTreeSet<OpId> =
            acks.iter().flat_map(|LocalAcks(acks)| acks.iter().map(|(op, _)| *op)).collect();
        let outcome =
            |acks: &LocalAcks, op| acks.0.iter().find(|(it, _)| *it == op).map(|(_, outcome)| *outcome);
        let by_all = |op: &OpId| acks.iter().all(|acks| outcome(acks, *op).is_some());
        let ended: Vec<_> = all.iter().copied().filter(by_all).collect();
        let differ = ended.iter().any(|op| {
            let mut outcomes = acks.iter().map(|acks| outcome(acks, *op));
            let first = outcomes.next();
            outcomes.any(|other| Some(other) != first)
        });
        self.coverage.hit_if(differ, "ranks disagreed");
        self.apply(&Input::Agreed(acks))?;
        self.check_ended(&ended)
    }

    /// Puts every page that may exist into the store, for every rank.
    pub(crate) fn fill_store(&mut self) {
        let root = self.roots.first().copied().unwrap_or_default();
        self.store = self.oracle.keys().map(|(key, content)| (key, (root, content))).collect();
        self.was_stored.extend(self.store.keys());
    }

    /// The contents of a client's pages in the current namespace.
    pub(crate) fn contents(&self, space: SpaceId, tokens: &[u32], media: &[Media]) -> Vec<Content> {
        let page = self.plan.config.page_tokens;
        let Some(namespace) = self.spaces.get(space.0 as usize) else { return Vec::new() };
        let pages = tokens.len() as u32 / page;
        (1..=pages).map(|count| content(namespace, page, tokens, media, count)).collect()
    }
}

fn make_ranks(config: &Config) -> Vec<Rank> {
    let rank = |rank| {
        let engine = Engine::new(Config { rank, ..*config });
        let executor = Executor::new(rank, config);
        engine.map(|engine| Rank { engine, executor, acks: Vec::new() })
    };
    (0..config.ranks).filter_map(|rank_index| rank(rank_index).ok()).collect()
}
