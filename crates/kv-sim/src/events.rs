//! The events of a run: requests, copies, completions and faults; at the end, the remaining work without
//! faults.

use tiffin_kv::{
    ChainHash, Input, Media, Medium, OpId, PageId, Pressure, Progress, Prompt, ReqId, SpaceId, Submit, Tier,
};

use crate::oracle::{LOST, of_rank};
use crate::world::{Checked, Client, Violation, World};

/// The content of a partly computed page.
const PARTIAL: u64 = 2;
/// Maximum number of rounds after the last fault until everything has ended.
const REST_ROUNDS_MAX: u32 = 400;

impl World {
    /// Runs a seed, from the first event until nothing is left to do.
    pub(crate) fn run(&mut self) -> Checked {
        if self.plan.begins_warm {
            self.coverage.hit("began with a warm store");
            for subject in self.plan.subjects.clone() {
                self.add_prompt(SpaceId(0), &subject, &[])?;
            }
            self.fill_store();
        }
        for _ in 0..self.plan.events {
            self.now += self.rng.below(3);
            self.events += 1;
            self.event()?;
        }
        self.finish()
    }

    fn event(&mut self) -> Checked {
        let faults = self.plan.faults;
        match self.rng.below(100) {
            0..12 => self.submit(),
            12..32 => self.compute_random(),
            32..70 => {
                self.step_random_io();
                self.check()
            }
            70..84 => self.deliver_random(),
            84..94 if self.ranks.len() > 1 => self.gather(),
            84..94 => self.deliver_random(),
            94..97 => self.apply(&Input::Tick),
            _ if self.rng.percent(faults.abort * 10) => self.abort_random(),
            _ if self.rng.percent(faults.retract * 10) => self.retract_random(),
            _ if self.rng.percent(faults.rare * 12) => self.rare_event(),
            _ => self.apply(&Input::Tick),
        }
    }

    fn submit(&mut self) -> Checked {
        if self.clients.len() >= self.plan.requests_max {
            return self.apply(&Input::Tick);
        }
        self.requests_made += 1;
        let id = ReqId(self.requests_made);
        let space = SpaceId(u32::from(self.rng.percent(15)));
        let tokens = self.prompt();
        let length = tokens.len() as u64;
        let media = if self.rng.percent(8) {
            self.coverage.hit("media");
            let content = vec![self.rng.below(2) as u8];
            vec![Media { at: self.rng.below(length) as u32, content }]
        } else {
            Vec::new()
        };
        self.add_prompt(space, &tokens, &media)?;
        let contents = self.contents(space, &tokens, &media);
        let goal = self.rng.between(1, 5);
        let client = Client {
            space,
            tokens: tokens.clone(),
            media: media.clone(),
            contents,
            table: None,
            loading: None,
            computed: 0,
            goal,
        };
        let deadline = self.rng.percent(20).then(|| self.now + self.rng.below(40));
        let priority = if self.rng.percent(10) { 9 } else { 3 };
        let prompt = Prompt::Tokens { tokens, media };
        let pages = client.tokens.len() as u32;
        let fits = pages.div_ceil(self.plan.config.page_tokens) <= self.plan.config.device_pages;
        if fits {
            self.clients.insert(id, client);
        }
        self.apply(&Input::Submit(Submit { request: id, space, prompt, priority, deadline }))
    }

    /// A prompt: mostly one of the repeated prompts, or its beginning with another end.
    fn prompt(&mut self) -> Vec<u32> {
        let last = self.clients.values().next_back().filter(|_| self.rng.percent(20));
        if let Some(client) = last {
            // Two concurrent requests with the same prompt.
            return client.tokens.clone();
        }
        let most = self.plan.prompt_tokens_max;
        let subject = self.rng.below(self.plan.subjects.len() as u64) as usize;
        let mut tokens = self.plan.subjects.get(subject).cloned().unwrap_or_default();
        tokens.truncate(if self.rng.percent(50) { most } else { self.rng.between(1, most) } as usize);
        if self.rng.percent(30) {
            let same = self.rng.between(0, tokens.len() as u64) as usize;
            let vocabulary = self.plan.vocabulary;
            let changed = tokens.iter_mut().skip(same);
            changed.for_each(|token| *token = self.rng.below(vocabulary) as u32);
        }
        tokens
    }

    pub(crate) fn add_prompt(&mut self, space: SpaceId, tokens: &[u32], media: &[Media]) -> Checked {
        let config = self.plan.config;
        let Some(namespace) = self.spaces.get(space.0 as usize) else { return Ok(()) };
        let added = self.oracle.add_prompt(namespace, config.page_tokens, tokens, media, config.ranks);
        added.map_err(|what| Violation::new("K4", what))
    }

    pub(crate) fn running(&self) -> Vec<ReqId> {
        self.clients.iter().filter(|(_, client)| client.table.is_some()).map(|(id, _)| *id).collect()
    }

    fn compute_random(&mut self) -> Checked {
        let running = self.running();
        match self.rng.pick(&running).copied() {
            Some(id) => self.compute(id),
            None => self.apply(&Input::Tick),
        }
    }

    /// One pass of the model for one request: a part of its prompt, or its next tokens.
    pub(crate) fn compute(&mut self, id: ReqId) -> Checked {
        self.check_tables()?;
        let page = self.plan.config.page_tokens;
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let length = client.tokens.len() as u32;
        let left = u64::from(length - client.computed);
        let most = left.max(1);
        let pass = if self.plan.is_plain { most } else { self.rng.between(1, most) };
        let upto = client.computed + pass.min(left) as u32;
        let table = client.table.clone().unwrap_or_default();
        for position in client.computed / page..upto.div_ceil(page) {
            let is_full = (position + 1) * page <= upto;
            let content = client.contents.get(position as usize).copied().filter(|_| is_full);
            let Some(index) = table.get(position as usize).copied() else {
                return Err(Violation::new("O2", format!("{id:?} has no page for token {upto}")));
            };
            for rank in &mut self.ranks {
                let content = content.map_or(PARTIAL, |content| of_rank(content, rank.executor.rank));
                rank.executor.write(PageId { tier: Tier::Device, index }, content);
            }
        }
        client.computed = upto;
        let mut generated = Vec::new();
        if upto == length && client.goal > 0 {
            let most = client.goal.min(3);
            let count = if self.plan.is_plain { most } else { self.rng.between(1, most) };
            client.goal -= count;
            let vocabulary = if self.plan.is_plain { 1 } else { self.plan.vocabulary };
            generated = (0..count).map(|_| self.rng.below(vocabulary) as u32).collect();
            client.tokens.extend(&generated);
        }
        let is_over = upto == length && generated.is_empty();
        let (space, tokens, media) = (client.space, client.tokens.clone(), client.media.clone());
        if tokens.len() / page as usize > client.contents.len() {
            self.coverage.hit("generated a full page");
            self.add_prompt(space, &tokens, &media)?;
            let contents = self.contents(space, &tokens, &media);
            if let Some(client) = self.clients.get_mut(&id) {
                client.contents = contents;
            }
        }
        if id.0.is_multiple_of(2) {
            // The alternative input for the same pass, in which a finished request gets no page for a next
            // token.
            if is_over {
                self.forget_table(id);
            }
            let finished = if is_over { vec![id] } else { vec![] };
            let computed = vec![Progress { request: id, upto, generated }];
            return self.apply(&Input::Pass { computed, finished });
        }
        self.apply(&Input::Computed { request: id, upto, generated })?;
        if is_over && self.clients.get(&id).is_some_and(|client| client.table.is_some()) {
            self.forget_table(id);
            self.apply(&Input::Finish(id))?;
        }
        Ok(())
    }

    /// A few reads and writes of a random operation.
    fn step_random_io(&mut self) {
        let rank_index = self.rng.below(self.ranks.len() as u64) as usize;
        let now = self.now;
        let ready = |world: &Self| -> Vec<OpId> {
            let jobs = world.ranks.get(rank_index).map(|rank| &rank.executor.jobs);
            let moves = jobs.into_iter().flatten().filter(|(_, job)| job.stuck_until <= now);
            moves.map(|(op, _)| *op).collect()
        };
        if let Some(op) = self.rng.pick(&ready(self)).copied() {
            for _ in 0..self.rng.between(1, 6) {
                self.step_io(rank_index, op);
            }
        }
    }

    fn deliver_random(&mut self) -> Checked {
        let rank_index = self.rng.below(self.ranks.len() as u64) as usize;
        let count = self.ranks.get(rank_index).map_or(0, |rank| rank.acks.len());
        let at = self.rng.below(count as u64) as usize;
        self.deliver(rank_index, at)
    }

    fn random_client(&mut self) -> Option<ReqId> {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        self.rng.pick(&ids).copied()
    }

    fn abort_random(&mut self) -> Checked {
        let Some(id) = self.random_client() else { return self.apply(&Input::Abort(ReqId(0))) };
        let state = self.ranks.first().and_then(|rank| rank.engine.state(id));
        self.coverage.hit(match state {
            Some(tiffin_kv::State::Submitted) => "abort in Submitted",
            Some(tiffin_kv::State::Prefetching) => "abort in Prefetching",
            Some(tiffin_kv::State::Waiting) => "abort in Waiting",
            Some(tiffin_kv::State::Loading) => "abort in Loading",
            Some(tiffin_kv::State::Prefilling) => "abort in Prefilling",
            Some(tiffin_kv::State::Decoding) => "abort in Decoding",
            Some(tiffin_kv::State::Draining) => "abort in Draining",
            Some(tiffin_kv::State::WritingBack) => "abort in WritingBack",
            None => "abort of the unknown",
        });
        self.apply(&Input::Abort(id))?;
        if self.clients.contains_key(&id) {
            return Err(Violation::new("L2", format!("{id:?} was aborted in {state:?} and still exists")));
        }
        self.apply(&Input::Abort(id))
    }

    fn retract_random(&mut self) -> Checked {
        let loading = |world: &Self, id: &ReqId| {
            let state = world.ranks.first().and_then(|rank| rank.engine.state(*id));
            state == Some(tiffin_kv::State::Loading)
        };
        // Loads are short, so requests in this state are preferred.
        let sought: Vec<_> = self.clients.keys().copied().filter(|id| loading(self, id)).collect();
        let sought = self.rng.pick(&sought).copied().filter(|_| self.rng.percent(90));
        let Some(id) = sought.or_else(|| self.random_client()) else {
            return self.apply(&Input::Retract(ReqId(0)));
        };
        let state = self.ranks.first().and_then(|rank| rank.engine.state(id));
        self.coverage.hit(match state {
            Some(tiffin_kv::State::Loading) => "retract in Loading",
            Some(tiffin_kv::State::Prefilling) => "retract in Prefilling",
            Some(tiffin_kv::State::Decoding) => "retract in Decoding",
            _ => "retract elsewhere",
        });
        self.forget_table(id);
        self.apply(&Input::Retract(id))
    }

    /// A rare event.
    fn rare_event(&mut self) -> Checked {
        match self.rng.below(17) {
            0..3 => self.vanish_silently(),
            3..6 => self.vanish(),
            6..8 => self.clear(),
            8..9 => self.redefine(),
            9..13 => {
                self.coverage.hit("pressure");
                let all = [Medium::Store, Medium::Tier(Tier::Host), Medium::Tier(Tier::Device)];
                let medium = self.rng.pick(&all).copied().unwrap_or(Medium::Store);
                let levels = [Pressure::Calm, Pressure::Calm, Pressure::Tight, Pressure::Full];
                let pressure = self.rng.pick(&levels).copied().unwrap_or_default();
                self.apply(&Input::Pressure(medium, pressure))
            }
            _ => self.restart(),
        }
    }

    /// The store loses a page without a report.
    fn vanish_silently(&mut self) -> Checked {
        let keys: Vec<_> = self.store.keys().copied().collect();
        if let Some(key) = self.rng.pick(&keys).copied() {
            self.coverage.hit("vanished silently");
            self.store.remove(&key);
        }
        self.check()
    }

    /// A copy is lost, and the engine is informed.
    fn vanish(&mut self) -> Checked {
        let Some(rank) = self.ranks.first() else { return Ok(()) };
        let residents: Vec<_> = rank.engine.residents().collect();
        let Some(copy) = self.rng.pick(&residents).copied() else { return self.apply(&Input::Tick) };
        let hashes: Vec<ChainHash> = vec![copy.hash];
        if copy.is_stored && self.rng.percent(50) {
            self.coverage.hit("vanished store");
            for rank in &self.ranks {
                let root = self.roots.get(copy.space.0 as usize).copied().unwrap_or_default();
                if let Some(key) = self.oracle.key(rank.executor.rank, root, copy.hash) {
                    self.store.remove(&key);
                }
            }
            return self.apply(&Input::Vanished(copy.space, Medium::Store, hashes));
        }
        let tier = copy.page.tier;
        self.coverage.hit(if tier == Tier::Device { "vanished device" } else { "vanished host" });
        for rank in &mut self.ranks {
            rank.executor.write(copy.page, LOST);
        }
        self.apply(&Input::Vanished(copy.space, Medium::Tier(tier), hashes))
    }

    fn clear(&mut self) -> Checked {
        self.coverage.hit("cleared");
        let space = SpaceId(self.rng.below(2) as u32);
        self.apply(&Input::Clear(space))?;
        let Some(rank) = self.ranks.first() else { return Ok(()) };
        match rank.engine.residents().find(|copy| copy.space == space) {
            Some(copy) => {
                Err(Violation::new("K4", format!("{copy:?} exists after its namespace was cleared")))
            }
            None => Ok(()),
        }
    }

    /// The weights change while the engine runs.
    fn redefine(&mut self) -> Checked {
        self.coverage.hit("defined anew");
        let rank_index = self.rng.below(2) as u32;
        if let Some(namespace) = self.spaces.get_mut(rank_index as usize) {
            namespace.weight_version += 1;
        }
        self.roots = self.spaces.iter().map(|it| it.root(self.plan.config.page_tokens)).collect();
        let space = SpaceId(rank_index);
        let of: Vec<_> = self.clients.iter().filter(|(_, it)| it.space == space).map(|(id, _)| *id).collect();
        for id in of {
            let Some(client) = self.clients.get(&id) else { continue };
            let (tokens, media) = (client.tokens.clone(), client.media.clone());
            self.add_prompt(space, &tokens, &media)?;
            let contents = self.contents(space, &tokens, &media);
            if let Some(client) = self.clients.get_mut(&id) {
                client.contents = contents;
            }
        }
        let namespace = self.spaces.get(rank_index as usize).cloned().unwrap_or_default();
        self.apply(&Input::Define(space, namespace))
    }

    /// Ends the faults. Every request must end in bounded time, and nothing may be left.
    fn finish(&mut self) -> Checked {
        self.faults_end = true;
        for medium in [Medium::Store, Medium::Tier(Tier::Host), Medium::Tier(Tier::Device)] {
            self.apply(&Input::Pressure(medium, Pressure::Calm))?;
        }
        for rank in &mut self.ranks {
            for job in rank.executor.jobs.values_mut() {
                (job.stuck_until, job.fails_at) = (0, None);
            }
        }
        for _ in 0..REST_ROUNDS_MAX {
            self.round()?;
            let is_over = |world: &Self| {
                world.ranks.iter().all(|rank| rank.engine.request_count() + rank.engine.op_count() == 0)
            };
            if is_over(self) {
                break;
            }
        }
        let stats = self.ranks.first().map(|rank| rank.engine.stats()).unwrap_or_default();
        self.coverage.hit_if(stats.joined > 0, "joined a fetch");
        self.coverage.hit_if(stats.prefetch_late > 0, "stopped prefetch late");
        self.coverage.hit_if(stats.evicted_device > 0, "evicted device");
        self.coverage.hit_if(stats.evicted_host > 0, "evicted host");
        self.coverage.hit_if(stats.abandoned > 0, "quarantined page");
        self.coverage.hit_if(stats.duplicates > 0, "computed what another had");
        self.coverage.hit_if(stats.saves_skipped > 0, "save skipped");
        self.coverage.hit_if(stats.written_back > 0, "written back for room");
        self.coverage.hit_if(stats.lost_unsaved > 0, "left unsaved");
        self.check_finished()
    }

    fn round(&mut self) -> Checked {
        self.now += 7;
        for rank_index in 0..self.ranks.len() {
            let ops: Vec<_> = self
                .ranks
                .get(rank_index)
                .map(|it| it.executor.jobs.keys().copied().collect())
                .unwrap_or_default();
            for op in ops {
                while self.ranks.get(rank_index).is_some_and(|it| it.executor.jobs.contains_key(&op)) {
                    self.step_io(rank_index, op);
                }
            }
            while self.ranks.get(rank_index).is_some_and(|it| !it.acks.is_empty()) {
                self.deliver(rank_index, 0)?;
            }
        }
        if self.ranks.len() > 1 {
            self.gather()?;
        }
        for id in self.running() {
            if self.clients.get(&id).is_some_and(|client| client.table.is_some()) {
                self.compute(id)?;
            }
        }
        self.apply(&Input::Tick)
    }
}
