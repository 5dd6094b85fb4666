//! The engine: `apply(input, now)` changes the state and answers what is to be done.
//!
//! It is a value. It does no I/O, has no thread, reads no clock, draws no number, and iterates over nothing
//! whose order could differ: the same inputs give the same effects, on every rank and in every run (C1, L6).
//!
//! Each flow has a file: [`prefetch`](self) asks and fetches, `admit` loads and makes requests ready,
//! `compute` takes what they produce, `write` brings it down the hierarchy, `complete` ends operations,
//! `space` defines and clears namespaces, `check` tells whether all of it is as it must be.

mod admit;
mod check;
mod complete;
mod compute;
mod prefetch;
mod request;
mod space;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use check::{Resident, Violation};
pub use request::State;
use request::{Request, Slot, Source, Turn};
use space::{Clearing, Space};
use write::SaveJob;

use crate::config::{Config, ConfigError};
use crate::hash::{ChainHash, chain_with};
use crate::index::RootId;
use crate::inventory::{CellId, Inventory, Residency};
use crate::ledger::{Item, Ledger, LiveOp, Order};
use crate::message::{
    Effect, Ending, Input, Medium, OpId, OpKind, Outcome, Pressure, Prompt, Refusal, ReqId, SpaceId, Submit,
    Tick, Tier,
};
use crate::policy::{self, PrefetchStop};
use crate::pool::PageCounts;
use crate::ranks::LocalAcks;
use crate::sabotage::sabotaged;
use crate::stats::Stats;

/// How far a prefix is there, in pages counted from the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// On the device.
    pub device: u32,
    /// On the device or in host memory.
    pub host: u32,
    /// Including pages that are on their way to the host.
    pub coming: u32,
}

/// How short each place is.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Pressures {
    device: Pressure,
    host: Pressure,
    store: Pressure,
}

/// The control plane of a KV-cache hierarchy.
#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    inventory: Inventory,
    ledger: Ledger,
    requests: BTreeMap<ReqId, Request>,
    spaces: BTreeMap<SpaceId, Space>,
    /// Those who are to ask the store.
    asking: BTreeSet<Turn>,
    /// Those who wait for the device.
    waiting: BTreeSet<Turn>,
    /// Those who are on it.
    running: BTreeSet<Turn>,
    alarms: BTreeSet<(Tick, ReqId)>,
    saves: VecDeque<SaveJob>,
    backups: VecDeque<CellId>,
    /// Under write-back: saves that somebody waits for to have room.
    room_saves: BTreeSet<OpId>,
    /// Saves past their deadline that have not ended.
    stuck_saves: u32,
    /// What the store is to forget, by the root that its pages are under there.
    clearing: BTreeMap<ChainHash, Clearing>,
    /// Under write-back: the device pages that had ever been taken when pages were last saved ahead.
    saved_ahead_at: u64,
    /// What this rank has heard of and not all agreed on. No part of the replicated state.
    heard: BTreeMap<OpId, Outcome>,
    /// Under a broken rule: completions that nobody has looked at yet.
    unnoticed: Vec<(OpId, Outcome)>,
    /// Who waits for room on the device, and the state of that room when there was none.
    blocked: Option<(ReqId, u64)>,
    pressures: Pressures,
    /// Until when nobody asks the store, because it failed.
    cool_until: Tick,
    now: Tick,
    came: u64,
    stats: Stats,
    effects: Vec<Effect>,
}

impl Engine {
    /// An engine that knows nothing yet.
    ///
    /// # Errors
    /// If there can be none like that.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            inventory: Inventory::new(&config),
            ledger: Ledger::new(config.budgets, config.ranks, config.sabotage),
            requests: BTreeMap::new(),
            spaces: BTreeMap::new(),
            asking: BTreeSet::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            alarms: BTreeSet::new(),
            saves: VecDeque::new(),
            backups: VecDeque::new(),
            room_saves: BTreeSet::new(),
            stuck_saves: 0,
            clearing: BTreeMap::new(),
            saved_ahead_at: 0,
            heard: BTreeMap::new(),
            unnoticed: Vec::new(),
            blocked: None,
            pressures: Pressures::default(),
            cool_until: 0,
            now: 0,
            came: 0,
            stats: Stats::default(),
            effects: Vec::new(),
        })
    }

    /// Takes an input, and answers what is to be done now, in order. Time never goes back: an earlier moment
    /// than the last one counts as the last one.
    pub fn apply(&mut self, input: Input, now: Tick) -> Vec<Effect> {
        if let (Input::Complete(op, outcome), true) = (&input, self.config.ranks > 1) {
            // What one rank alone has heard changes nothing that ranks share, time included.
            self.hear(*op, *outcome);
            return Vec::new();
        }
        self.now = self.now.max(now);
        match input {
            Input::Define(space, namespace) => self.define(space, &namespace),
            Input::Submit(submit) => self.submit(submit),
            Input::Computed { request, upto, generated } => self.computed(request, upto, &generated),
            Input::Finish(request) => self.finish(request),
            Input::Pass { computed, finished } => self.pass(&computed, &finished),
            Input::Abort(request) => self.abort(request),
            Input::Retract(request) => self.retract_for_shell(request),
            Input::Complete(op, outcome) => self.complete(op, outcome),
            Input::Agreed(acks) => self.agreed(&acks),
            Input::Pressure(medium, pressure) => self.press(medium, pressure),
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

    /// What this rank adds to the all-gather of this step. With nothing to say it is an empty list, and the
    /// rank joins all the same (C2). Asking changes nothing.
    #[must_use]
    pub fn agree(&self) -> LocalAcks {
        LocalAcks(self.heard.iter().map(|(op, outcome)| (*op, *outcome)).collect())
    }

    /// How far this prefix is there. Changes nothing: no split, no touch.
    #[must_use]
    pub fn match_prefix(&self, space: SpaceId, prompt: &Prompt) -> Match {
        let Some(known) = self.spaces.get(&space) else { return Match::default() };
        let (hashes, length) = match prompt {
            Prompt::Tokens { tokens, media } => {
                let root = known.root_hash;
                let hashes =
                    chain_with(root, 0, self.config.page_tokens, tokens, media, self.config.sabotage);
                (hashes, tokens.len() as u32)
            }
            Prompt::Hashes { tokens, pages } => (pages.iter().map(|(_, hash)| *hash).collect(), *tokens),
        };
        let usable = (self.usable_pages(length) as usize).min(hashes.len());
        self.match_hashes(known.root, hashes.get(..usable).unwrap_or_default())
    }

    /// The state of a request, if it is here.
    #[must_use]
    pub fn state(&self, request: ReqId) -> Option<State> {
        self.requests.get(&request).map(|it| it.state)
    }

    /// Whether an operation is under way, as far as this engine knows.
    #[must_use]
    pub fn is_live(&self, op: OpId) -> bool {
        self.ledger.find(op).is_some()
    }

    /// How many requests are here.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.requests.len()
    }

    /// How many operations are under way.
    #[must_use]
    pub fn op_count(&self) -> usize {
        self.ledger.len()
    }

    /// The pages of a tier, by what they are used for.
    #[must_use]
    pub fn pages(&self, tier: Tier) -> PageCounts {
        self.inventory.counts(tier)
    }

    /// What happened so far.
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

    /// Pages of a tier that were ever taken from the free ones, and copies that ever left to make room.
    #[must_use]
    pub fn room_made(&self, tier: Tier) -> (u64, u64) {
        let [device, host] = self.inventory.evicted();
        let evicted = if tier == Tier::Device { device } else { host };
        (self.inventory.pool(tier).taken(), evicted)
    }

    /// The device pages of a request that is computed, in order.
    #[must_use]
    pub fn block_table(&self, request: ReqId) -> Option<Vec<u32>> {
        let request = self.requests.get(&request)?;
        matches!(request.state, State::Prefilling | State::Decoding).then(|| self.table(&request.slots))
    }

    /// The earliest moment at which time alone changes something.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Tick> {
        let request = self.alarms.first().map(|(at, _)| *at);
        let op = self.ledger.next_alarm();
        request.into_iter().chain(op).chain(self.next_drop()).min()
    }

    // ---- What the flows share.

    fn match_hashes(&self, root: RootId, hashes: &[ChainHash]) -> Match {
        let mut found = Match::default();
        for id in self.inventory.walk(root, hashes) {
            let cell = self.inventory.cell(id);
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

    /// The pages that a request of so many tokens may find: one token is always left to compute (K5).
    fn usable_pages(&self, tokens: u32) -> u32 {
        let left = if sabotaged!(self.config.sabotage, NoTokenLeft) { 0 } else { 1 };
        tokens.saturating_sub(left) / self.config.page_tokens
    }

    fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.page_tokens)
    }

    fn table(&self, slots: &[Slot]) -> Vec<u32> {
        let page = |slot: &Slot| match slot {
            Slot::Private(page) => *page,
            Slot::Shared(cell, _) => self.inventory.cell(*cell).copy(Tier::Device).page().unwrap_or(u32::MAX),
        };
        slots.iter().map(page).collect()
    }

    fn issue(&mut self, order: Order) {
        let operation = self.ledger.issue(order);
        self.effects.push(Effect::Issue(operation));
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.stats.refused += 1;
        self.effects.push(Effect::Refused(refusal));
    }

    #[track_caller]
    fn request(&self, id: ReqId) -> &Request {
        self.requests.get(&id).unwrap_or_else(|| panic!("L2: {id:?} is gone"))
    }

    #[track_caller]
    fn request_mut(&mut self, id: ReqId) -> &mut Request {
        self.requests.get_mut(&id).unwrap_or_else(|| panic!("L2: {id:?} is gone"))
    }

    fn set_alarm(&mut self, id: ReqId, at: Option<Tick>) {
        let at = at.filter(|at| *at < Tick::MAX);
        let was = std::mem::replace(&mut self.request_mut(id).alarm, at);
        if let Some(was) = was {
            self.alarms.remove(&(was, id));
        }
        if let Some(at) = at {
            self.alarms.insert((at, id));
        }
    }

    /// What time alone brings about.
    fn pass_time(&mut self) {
        if sabotaged!(self.config.sabotage, NoticeLate) && self.now.is_multiple_of(3) {
            for (op, outcome) in std::mem::take(&mut self.unnoticed) {
                self.end(op, outcome);
            }
        }
        while let Some(&(at, id)) = self.alarms.first()
            && at <= self.now
            && !sabotaged!(self.config.sabotage, WaitForever)
        {
            self.set_alarm(id, None);
            match self.request(id).state {
                State::Submitted | State::Prefetching => self.stop_prefetch(id, true),
                State::Draining => self.stop_draining(id),
                _ => {}
            }
        }
        let again = self.now + self.config.hint_patience;
        for op in self.ledger.due(self.now, again) {
            self.overdue(op);
        }
    }

    /// What can be done now. Prefetches come before backups (L8).
    fn pump(&mut self) {
        self.inventory.sweep();
        self.pump_clears();
        self.pump_probes();
        loop {
            self.pump_admissions();
            // Pages that turn out not to be savable are room for those who waited for them.
            if !self.pump_saves() {
                break;
            }
        }
        self.pump_backups();
    }

    fn press(&mut self, medium: Medium, pressure: Pressure) {
        match medium {
            Medium::Tier(Tier::Device) => self.pressures.device = pressure,
            Medium::Tier(Tier::Host) => self.pressures.host = pressure,
            Medium::Store => self.pressures.store = pressure,
        }
    }
}
