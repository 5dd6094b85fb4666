//! The engine: `apply(input, now)` changes the state and returns effects.
//!
//! It is a value. It does no I/O, has no thread, reads no clock, uses no random numbers, and iterates over no
//! container without a fixed order: the same inputs give the same effects, on every rank and in every run
//! (C1, L6).
//!
//! Each flow has a file: `prefetch` probes and fetches, `admit` loads and makes requests ready, `compute`
//! applies progress, `write` saves and backs up, `complete` ends operations, `space` defines and clears
//! namespaces, `check` verifies the invariants, `mutants` has the hooks that mutants replace.

mod admit;
mod check;
mod complete;
mod compute;
mod mutants;
mod prefetch;
mod request;
mod requests;
mod space;
mod spaces;
mod violation;
mod write;

pub use check::Resident;
use complete::{Cooldown, Local, source_tier, target_tier};
use mutants::Deferred;
pub use request::State;
use request::{Request, Slot, Source};
use requests::Requests;
use spaces::Spaces;
pub use violation::Violation;
use write::Writes;

use crate::cell::{CellId, Residency, RootId};
use crate::config::{Config, ConfigError};
use crate::hash::{ChainHash, chain_with};
use crate::inventory::Inventory;
use crate::ledger::{Item, Ledger, LiveOp, Order};
use crate::message::{
    Effect, Ending, Input, Medium, OpId, OpKind, Outcome, Pressure, Prompt, Refusal, ReqId, SpaceId, Submit,
    Tick, Tier,
};
use crate::policy::{self, PrefetchStop};
use crate::pool::PageCounts;
use crate::ranks::LocalAcks;
use crate::stats::Stats;

/// How many leading pages of a prefix are available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// On the device.
    pub device: u32,
    /// On the device or in host memory.
    pub host: u32,
    /// Including pages that are being written to the host.
    pub coming: u32,
}

impl Match {
    /// How much of a prefix is available.
    fn of(inventory: &Inventory, root: RootId, hashes: &[ChainHash]) -> Self {
        let mut found = Self::default();
        for id in inventory.walk(root, hashes) {
            let cell = inventory.cell(id);
            let on_device = cell.is_valid(Tier::Device);
            let here = on_device || cell.is_valid(Tier::Host);
            if on_device && found.device == found.coming {
                found.device += 1;
            }
            if here && found.host == found.coming {
                found.host += 1;
            }
            if !here && !matches!(cell.residency(Tier::Host), Residency::Pending(..)) {
                break;
            }
            found.coming += 1;
        }
        found
    }
}

/// The pressure of each medium.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Pressures {
    device: Pressure,
    host: Pressure,
    store: Pressure,
}

impl Pressures {
    fn set(&mut self, medium: Medium, pressure: Pressure) {
        match medium {
            Medium::Tier(Tier::Device) => self.device = pressure,
            Medium::Tier(Tier::Host) => self.host = pressure,
            Medium::Store => self.store = pressure,
        }
    }
}

/// The control plane of a KV-cache hierarchy.
#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    inventory: Inventory,
    ledger: Ledger,
    requests: Requests,
    spaces: Spaces,
    writes: Writes,
    local: Local,
    deferred: Deferred,
    /// The request that did not fit on the device, and the state of the inventory at that moment.
    blocked: Option<(ReqId, u64)>,
    pressures: Pressures,
    cooldown: Cooldown,
    now: Tick,
    stats: Stats,
    effects: Vec<Effect>,
}

impl Engine {
    /// An empty engine.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            inventory: Inventory::new(&config),
            ledger: Ledger::new(config.budgets, config.ranks, config.mutant),
            requests: Requests::default(),
            spaces: Spaces::default(),
            writes: Writes::new(&config),
            local: Local::default(),
            deferred: Deferred::default(),
            blocked: None,
            pressures: Pressures::default(),
            cooldown: Cooldown::default(),
            now: 0,
            stats: Stats::default(),
            effects: Vec::new(),
        })
    }

    /// Applies an input, and returns what the shell is to do, in order. Time never goes back: an earlier time
    /// than the last one counts as the last one.
    pub fn apply(&mut self, input: Input, now: Tick) -> Vec<Effect> {
        if let (Input::Complete(op, outcome), true) = (&input, self.config.ranks > 1) {
            // A completion on one rank changes no replicated state, not even the time.
            let is_kept = self.local.keep(&self.ledger, &self.config, *op, *outcome);
            self.stats.stray_acks += u64::from(!is_kept);
            return Vec::new();
        }
        self.now = self.now.max(now);
        match input {
            Input::Define(space, namespace) => self.define(space, &namespace),
            Input::Submit(submit) => self.submit(submit),
            Input::Computed { request, upto, generated } => {
                if self.progress(request, upto, &generated) {
                    self.grow(request);
                }
            }
            Input::Finish(request) => self.finish(request),
            Input::Pass { computed, finished } => self.pass(&computed, &finished),
            Input::Abort(request) => self.abort(request),
            Input::Retract(request) => self.retract_for_shell(request),
            Input::Complete(op, outcome) => self.complete(op, outcome),
            Input::Agreed(acks) => self.agreed(&acks),
            Input::Pressure(medium, pressure) => self.pressures.set(medium, pressure),
            Input::Vanished(space, medium, hashes) => self.vanished(space, medium, &hashes),
            Input::Clear(space) => self.clear(space),
            Input::Tick => {}
        }
        self.pass_time();
        self.pump();
        if self.config.events {
            for change in self.inventory.changes() {
                let event = if change.is_there { Effect::Stored } else { Effect::Removed };
                self.effects.push(event(change.tier, change.space, change.hash));
            }
        }
        std::mem::take(&mut self.effects)
    }

    /// What this rank contributes to the all-gather of this step. The list may be empty; the rank joins all
    /// the same (C2). Changes nothing.
    #[must_use]
    pub fn agree(&self) -> LocalAcks {
        self.local.acks()
    }

    /// How much of this prefix is available. Changes nothing: no split, no use.
    #[must_use]
    pub fn match_prefix(&self, space: SpaceId, prompt: &Prompt) -> Match {
        let Some(known) = self.spaces.find(space) else { return Match::default() };
        let (hashes, length) = match prompt {
            Prompt::Tokens { tokens, media } => {
                let root = known.root_hash;
                let hashes = chain_with(root, 0, self.config.page_tokens, tokens, media, self.config.mutant);
                (hashes, tokens.len() as u32)
            }
            Prompt::Hashes { tokens, pages } => (pages.iter().map(|(_, hash)| *hash).collect(), *tokens),
        };
        let usable = (self.config.usable_pages(length) as usize).min(hashes.len());
        Match::of(&self.inventory, known.root, hashes.get(..usable).unwrap_or_default())
    }

    /// The state of a request, if it exists.
    #[must_use]
    pub fn state(&self, request: ReqId) -> Option<State> {
        self.requests.find(request).map(|it| it.state)
    }

    /// Whether an operation is in flight, as far as this engine knows.
    #[must_use]
    pub fn is_live(&self, op: OpId) -> bool {
        self.ledger.find(op).is_some()
    }

    /// Number of requests.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.requests.len()
    }

    /// Number of operations in flight.
    #[must_use]
    pub fn op_count(&self) -> usize {
        self.ledger.len()
    }

    /// The pages of a tier, by state.
    #[must_use]
    pub fn pages(&self, tier: Tier) -> PageCounts {
        self.inventory.counts(tier)
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let [device, host] = self.inventory.evicted();
        Stats {
            evicted_device: device,
            evicted_host: host,
            prefetch_wasted: self.inventory.wasted(),
            lost_unsaved: self.inventory.lost_unsaved(),
            ..self.stats
        }
    }

    /// Number of pages of a tier that were ever taken, and of copies that were ever evicted.
    #[must_use]
    pub fn allocation_counts(&self, tier: Tier) -> (u64, u64) {
        let [device, host] = self.inventory.evicted();
        let evicted = if tier == Tier::Device { device } else { host };
        (self.inventory.pool(tier).taken(), evicted)
    }

    /// The device pages of a request that is prefilling or decoding, in order.
    #[must_use]
    pub fn block_table(&self, request: ReqId) -> Option<Vec<u32>> {
        let request = self.requests.find(request)?;
        matches!(request.state, State::Prefilling | State::Decoding).then(|| request.table(&self.inventory))
    }

    /// The earliest time at which something changes without an input.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Tick> {
        let request = self.requests.next_alarm();
        let op = self.ledger.next_alarm();
        request.into_iter().chain(op).chain(self.spaces.next_drop(self.now)).min()
    }

    // ---- Shared by the flows.

    fn issue(&mut self, order: Order) {
        if let Some(request) = order.waiter {
            self.requests.get_mut(request).waits.insert(order.id);
        }
        let operation = self.ledger.issue(order);
        self.effects.push(Effect::Issue(operation));
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.stats.refused += 1;
        self.effects.push(Effect::Refused(refusal));
    }

    /// Applies alarms that are due.
    fn pass_time(&mut self) {
        for (op, outcome) in self.deferred.take_due(self.now, self.config.mutant) {
            self.end(op, outcome);
        }
        while self.config.mutant.enforces_deadlines()
            && let Some(id) = self.requests.take_due(self.now)
        {
            match self.requests.get(id).state {
                State::Submitted | State::Prefetching => self.stop_prefetch(id, true),
                State::Draining => self.end_request(id, Ending::Finished),
                _ => {}
            }
        }
        let again = self.now + self.config.hint_interval;
        for op in self.ledger.due(self.now, again) {
            self.overdue(op);
        }
    }

    /// Issues all work that can start now. Prefetches come before backups (L8).
    fn pump(&mut self) {
        self.inventory.sweep();
        self.pump_clears();
        self.pump_probes();
        loop {
            self.pump_admissions();
            // Pages that cannot be saved may leave, so that waiting requests may fit now.
            if !self.pump_saves() {
                break;
            }
        }
        self.pump_backups();
    }
}
