//! The requests, and the queues that they are in.
//!
//! **Invariant:** every request is in the queues of its state, see [`Requests::check`].

use std::collections::{BTreeMap, BTreeSet};

use super::request::{Request, Slot, State, Turn};
use super::spaces::Spaces;
use super::violation::{Violation, broken};
use crate::config::Config;
use crate::digest::Digest;
use crate::hash::chain_with;
use crate::inventory::Inventory;
use crate::message::{Prompt, Refusal, ReqId, Submit, Tick, Tier};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    all: BTreeMap<ReqId, Request>,
    /// Requests that are to probe the store.
    to_probe: BTreeSet<Turn>,
    /// Requests that wait for the device.
    waiting: BTreeSet<Turn>,
    /// Requests on the device.
    running: BTreeSet<Turn>,
    alarms: BTreeSet<(Tick, ReqId)>,
    /// Number of requests that ever came.
    came: u64,
}

impl Requests {
    #[track_caller]
    pub(super) fn get(&self, id: ReqId) -> &Request {
        self.all.get(&id).unwrap_or_else(|| panic!("L2: {id:?} is gone"))
    }

    #[track_caller]
    pub(super) fn get_mut(&mut self, id: ReqId) -> &mut Request {
        self.all.get_mut(&id).unwrap_or_else(|| panic!("L2: {id:?} is gone"))
    }

    pub(super) fn find(&self, id: ReqId) -> Option<&Request> {
        self.all.get(&id)
    }

    pub(super) fn find_mut(&mut self, id: ReqId) -> Option<&mut Request> {
        self.all.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ReqId, &Request)> {
        self.all.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Request> {
        self.all.values()
    }

    /// Checks a submission and makes a request of it.
    pub(super) fn read(
        &mut self,
        submit: Submit,
        spaces: &Spaces,
        config: &Config,
    ) -> Result<Request, Refusal> {
        let Submit { request, space, prompt, priority, deadline } = submit;
        if self.all.contains_key(&request) {
            return Err(Refusal::Duplicate(request));
        }
        let known = spaces.find(space).ok_or(Refusal::UnknownSpace(space))?;
        let (root, root_hash) = (known.root, known.root_hash);
        let (tokens, media, length, hashes) = match prompt {
            Prompt::Tokens { tokens, media } => {
                let page = config.page_tokens;
                let hashes = chain_with(root_hash, 0, page, &tokens, &media, config.mutant);
                let length = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
                (Some(tokens), media, length, hashes)
            }
            Prompt::Hashes { tokens, pages } => {
                let full = tokens / config.page_tokens;
                if pages.len() > full as usize {
                    let hashes = pages.len() as u32;
                    return Err(Refusal::PagesDoNotDivide { request, hashes, pages: full });
                }
                let mut seen = BTreeSet::new();
                let is_out =
                    |(at, (position, hash)): &(u32, &(u32, _))| at != position || !seen.insert(*hash);
                if let Some((at, _)) = (0..).zip(&pages).find(is_out) {
                    return Err(Refusal::HashesOutOfOrder(request, at));
                }
                (None, Vec::new(), tokens, pages.into_iter().map(|(_, hash)| hash).collect())
            }
        };
        if length == 0 {
            return Err(Refusal::Empty(request));
        }
        let (pages, capacity) = (config.pages_for(length), config.device_pages);
        if pages > capacity {
            return Err(Refusal::TooLong { request, pages, capacity });
        }
        self.came += 1;
        let turn = Turn { rank: u8::MAX - priority, came: self.came, request };
        Ok(Request {
            space,
            root,
            root_hash,
            tokens,
            media,
            length,
            prompt_length: length,
            hashes,
            turn,
            deadline,
            state: State::Submitted,
            alarm: None,
            waits: BTreeSet::new(),
            slots: Vec::new(),
            computed: 0,
            entered: 0,
            promised: 0,
        })
    }

    pub(super) fn insert(&mut self, request: Request) {
        self.all.insert(request.turn.request, request);
    }

    /// Removes a request that has ended. Returns its last state.
    pub(super) fn remove(&mut self, id: ReqId) -> Option<State> {
        self.set_alarm(id, None);
        let request = self.all.remove(&id)?;
        self.to_probe.remove(&request.turn);
        self.waiting.remove(&request.turn);
        Some(request.state)
    }

    pub(super) fn add_to_probe(&mut self, turn: Turn) {
        self.to_probe.insert(turn);
    }

    pub(super) fn next_to_probe(&mut self) -> Option<ReqId> {
        self.to_probe.pop_first().map(|turn| turn.request)
    }

    pub(super) fn add_waiting(&mut self, turn: Turn) {
        self.waiting.insert(turn);
    }

    /// The request waits for the device, in the order of priority and age.
    pub(super) fn wait(&mut self, id: ReqId) {
        self.set_alarm(id, None);
        let request = self.get_mut(id);
        request.state = State::Waiting;
        let turn = request.turn;
        self.to_probe.remove(&turn);
        self.waiting.insert(turn);
    }

    pub(super) fn first_waiting(&self) -> Option<ReqId> {
        self.waiting.first().map(|turn| turn.request)
    }

    /// The request is on the device from now on.
    pub(super) fn run(&mut self, id: ReqId) {
        let turn = self.get(id).turn;
        self.waiting.remove(&turn);
        self.running.insert(turn);
    }

    pub(super) fn running_count(&self) -> usize {
        self.running.len()
    }

    /// The last one of the lowest priority on the device.
    pub(super) fn last_running(&self) -> Option<ReqId> {
        self.running.last().map(|turn| turn.request)
    }

    /// The request leaves the device. Returns its pages.
    fn take_slots(&mut self, id: ReqId) -> Vec<Slot> {
        let request = self.get_mut(id);
        let (turn, slots) = (request.turn, std::mem::take(&mut request.slots));
        self.running.remove(&turn);
        slots
    }

    /// Releases the pages of a request. Shared pages stay until they are evicted.
    pub(super) fn release_pages(&mut self, id: ReqId, inventory: &mut Inventory) {
        inventory.next_use();
        for slot in self.take_slots(id) {
            match slot {
                Slot::Shared(cell, _) => inventory.release(cell, Tier::Device),
                Slot::Private(page) => inventory.free_private(id, page),
            }
        }
    }

    /// The request has all its tokens. Returns its private pages, which are freed at once. It keeps its
    /// shared pages until they are being saved.
    pub(super) fn start_draining(&mut self, id: ReqId) -> Vec<u32> {
        let (mut shared, mut private) = (Vec::new(), Vec::new());
        for slot in self.take_slots(id) {
            match slot {
                Slot::Shared(..) => shared.push(slot),
                Slot::Private(page) => private.push(page),
            }
        }
        let request = self.get_mut(id);
        (request.slots, request.state) = (shared, State::Draining);
        private
    }

    pub(super) fn set_alarm(&mut self, id: ReqId, at: Option<Tick>) {
        let at = at.filter(|at| *at < Tick::MAX);
        let was = std::mem::replace(&mut self.get_mut(id).alarm, at);
        if let Some(was) = was {
            self.alarms.remove(&(was, id));
        }
        if let Some(at) = at {
            self.alarms.insert((at, id));
        }
    }

    pub(super) fn next_alarm(&self) -> Option<Tick> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// A request whose alarm is due. The alarm is removed.
    pub(super) fn take_due(&mut self, now: Tick) -> Option<ReqId> {
        let &(_, id) = self.alarms.first().filter(|(at, _)| *at <= now)?;
        self.set_alarm(id, None);
        Some(id)
    }

    pub(super) fn digest(&self, digest: &mut Digest) {
        for (id, request) in &self.all {
            digest.add(&(id, request.state, request.turn, request.alarm, request.length, request.computed));
            digest.add(&(&request.slots, &request.waits, request.entered, request.promised));
        }
        digest.add(&(&self.to_probe, &self.waiting, &self.running, &self.alarms));
    }

    /// Verifies that every request is in the queues of its state; for tests.
    pub(super) fn check(&self, now: Tick, page_tokens: u32) -> Result<(), Violation> {
        self.all.keys().try_for_each(|id| self.check_one(*id, now, page_tokens))
    }

    fn check_one(&self, id: ReqId, now: Tick, page_tokens: u32) -> Result<(), Violation> {
        let request = self.get(id);
        let lines = (
            self.to_probe.contains(&request.turn),
            self.waiting.contains(&request.turn),
            self.running.contains(&request.turn),
        );
        let is_right = match request.state {
            State::Submitted => lines.0 && !lines.2,
            State::Prefetching => !lines.0 && !lines.2,
            State::Waiting => lines == (false, true, false),
            State::Loading | State::Prefilling | State::Decoding => lines == (false, false, true),
            State::Draining | State::WritingBack => lines == (false, false, false),
        };
        if !is_right {
            broken("L2", format!("{id:?} is {:?} and is in the queues {lines:?}", request.state))?;
        }
        let waits_for = matches!(request.state, State::Prefetching | State::Loading | State::WritingBack);
        if waits_for && request.waits.is_empty() {
            broken("L3", format!("{id:?} is {:?} and waits for nothing", request.state))?;
        }
        if request.alarm.is_some_and(|at| at <= now) {
            broken("L3", format!("{id:?} is {:?} past its deadline", request.state))?;
        }
        if matches!(request.state, State::Prefilling | State::Decoding) {
            let pages = request.length.div_ceil(page_tokens);
            if (request.slots.len() as u32) < pages {
                broken(
                    "O2",
                    format!("{id:?} has {} pages for {} tokens", request.slots.len(), request.length),
                )?;
            }
        }
        Ok(())
    }
}
