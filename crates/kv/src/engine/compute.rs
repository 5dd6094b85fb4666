//! Progress of requests on the device, and how they leave it.

use super::{Effect, Ending, Engine, ReqId, Slot, Source, State, Tier, mutants, policy};
use crate::message::{Progress, Refusal, RetractReason};

impl Engine {
    /// Applies the progress of a pass, then ends finished requests, then gives pages to the others.
    pub(super) fn pass(&mut self, computed: &[Progress], finished: &[ReqId]) {
        let is_enough = |it: &&Progress| !finished.contains(&it.request);
        let goes_on: Vec<_> = computed.iter().filter(is_enough).map(|it| it.request).collect();
        for Progress { request, upto, generated } in computed {
            self.progress(*request, *upto, generated);
        }
        finished.iter().for_each(|id| self.finish(*id));
        for id in goes_on {
            if self.state(id) == Some(State::Decoding) {
                self.grow(id);
            }
        }
    }

    /// Applies progress; false if it is ignored or refused.
    pub(super) fn progress(&mut self, id: ReqId, upto: u32, generated: &[u32]) -> bool {
        let Some(request) = self.requests.find(id) else {
            self.stats.ignored += 1;
            return false;
        };
        if !matches!(request.state, State::Prefilling | State::Decoding) {
            // The request was retracted, or ended, in the meantime.
            self.stats.ignored += 1;
            return false;
        }
        let tokens = request.length.saturating_add(generated.len() as u32);
        let is_short = upto < request.length && !generated.is_empty();
        if upto < request.computed || upto > request.length || is_short {
            self.refuse(Refusal::Progress { request: id, upto, tokens });
            return false;
        }
        let request = self.requests.get_mut(id);
        request.append(generated, self.config.page_tokens, self.config.mutant);
        request.computed = upto;
        if upto >= request.prompt_length {
            request.state = State::Decoding;
        }
        self.enter_computed(id);
        true
    }

    /// Publishes full pages, unless there is another copy of them (V1, O7).
    fn enter_computed(&mut self, id: ReqId) {
        let request = self.requests.get(id);
        let full = (request.computed / self.config.page_tokens).min(request.hashes.len() as u32);
        let from = request.entered;
        if full <= from {
            return;
        }
        let root = request.root;
        let hashes = request.hashes.get(..full as usize).unwrap_or_default().to_vec();
        let cells = self.inventory.enter(root, &hashes);
        let mut entered = Vec::new();
        for (position, cell) in (0..).zip(&cells) {
            let Some(Slot::Private(page)) = self.requests.get(id).slots.get(position).copied() else {
                continue;
            };
            mutants::keep_target(&mut self.inventory, *cell, self.config.mutant);
            if self.inventory.adopt(*cell, id, page) {
                if let Some(slot) = self.requests.get_mut(id).slots.get_mut(position) {
                    *slot = Slot::Shared(*cell, Source::Device);
                }
                entered.push(*cell);
            } else {
                self.stats.duplicates += u64::from(position >= from as usize);
            }
        }
        cells.into_iter().rev().for_each(|cell| self.inventory.reap(cell));
        self.requests.get_mut(id).entered = full;
        if policy::saves(self.config.write, 0) {
            self.stats.saves_skipped += self.writes.queue_save(None, entered);
        }
    }

    /// Gives the request a page for its next token. Another request may be retracted for that.
    pub(super) fn grow(&mut self, id: ReqId) {
        let request = self.requests.get(id);
        let wanted = self.config.pages_for(request.length.saturating_add(1));
        let missing = wanted.saturating_sub(request.slots.len() as u32);
        if missing == 0 || request.state != State::Decoding {
            return;
        }
        if wanted > self.config.device_pages {
            // Alone on the device the request would lack the page, too, so retracting it would never end.
            return self.end_request(id, Ending::TooLong);
        }
        while !self.inventory.free_up(Tier::Device, missing) && !self.inventory.free_up_clean(missing) {
            // The last one of the lowest priority is retracted first: the first one always makes progress.
            let Some(last) = self.requests.last_running() else { return };
            self.take_off_device(last, Some(RetractReason::NoSpace));
            if last == id {
                return;
            }
        }
        let pages: Vec<_> = (0..missing).map(|_| self.inventory.take_private(id)).collect();
        let request = self.requests.get_mut(id);
        request.slots.extend(pages.iter().map(|page| Slot::Private(*page)));
        self.effects.push(Effect::Grant { request: id, pages });
    }

    pub(super) fn finish(&mut self, id: ReqId) {
        match self.state(id) {
            Some(State::Prefilling | State::Decoding) => {}
            _ => {
                self.stats.ignored += 1;
                return;
            }
        }
        for page in self.requests.start_draining(id) {
            self.inventory.free_private(id, page);
        }
        self.drain(id);
    }

    /// Allowed in every state, and more than once (L2).
    pub(super) fn abort(&mut self, id: ReqId) {
        let Some(state) = self.state(id) else {
            self.stats.ignored += 1;
            return;
        };
        self.check_abort(id, state);
        self.end_request(id, Ending::Aborted);
    }

    pub(super) fn retract_for_shell(&mut self, id: ReqId) {
        match self.state(id) {
            Some(state) if state.is_running() => {
                self.stats.retractions += 1;
                self.take_off_device(id, None);
            }
            // It is not on the device, or has nothing left to compute.
            _ => self.stats.ignored += 1,
        }
    }

    /// Ends a request, in any state.
    pub(super) fn end_request(&mut self, id: ReqId, how: Ending) {
        self.leave_ops(id);
        self.requests.release_pages(id, &mut self.inventory);
        if self.requests.remove(id) == Some(State::Draining) {
            self.writes.forget(id);
        }
        self.effects.push(Effect::Ended(id, how));
    }
}
