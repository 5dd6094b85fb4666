//! The control plane of the KV hierarchy: a match, requests from submission to end, and a step in which
//! nothing happens, with many pages cached, in both indexes.

use std::hint::black_box;

use tiffin_kv::{
    ChainHash, Config, Effect, Engine, IndexKind, Input, Namespace, Outcome, Progress, Prompt, ReqId,
    SpaceId, Submit,
};

use super::{REPEATS, measured};

const SPACE: SpaceId = SpaceId(0);
/// Pages of a prompt: 8 thousand tokens.
const PAGES: u32 = 128;
const PAGE_TOKENS: u32 = 64;
/// Pages that are cached: half of the device.
const CACHED: u32 = 20_000;

/// All of it, first with one index and then with the other.
pub(super) fn hierarchy() {
    for (word, index) in [("radix", IndexKind::Radix), ("flat", IndexKind::Flat)] {
        let mut engine = Hierarchy::new(index);
        (0..CACHED / PAGES).for_each(|of| engine.serve(prompt(u64::from(of))));
        let known = prompt(7);
        measured(&format!("kv, {word}: match 128 pages"), || {
            (0..REPEATS).for_each(|_| _ = black_box(engine.engine.match_prefix(SPACE, &known)));
        });
        let hits: Vec<_> = (0..REPEATS).map(|of| prompt(of * 3)).collect();
        measured(&format!("kv, {word}: a request that finds 128 pages"), || {
            hits.into_iter().for_each(|prompt| engine.serve(prompt));
        });
        let fresh: Vec<_> = (0..REPEATS).map(|of| prompt(1_000_000 + of)).collect();
        measured(&format!("kv, {word}: a request that brings 128 pages through host and store"), || {
            fresh.into_iter().for_each(|prompt| engine.serve(prompt));
        });
        measured(&format!("kv, {word}: a step in which nothing happens"), || {
            (0..REPEATS).for_each(|_| _ = black_box(engine.engine.apply(Input::Tick, 0)));
        });
    }
}

struct Hierarchy {
    engine: Engine,
    requests: u64,
}

impl Hierarchy {
    fn new(index: IndexKind) -> Self {
        let config = Config {
            page_tokens: PAGE_TOKENS,
            device_pages: 2 * CACHED,
            host_pages: 2 * CACHED,
            index,
            events: false,
            ..Config::default()
        };
        let mut engine = Engine::new(config).unwrap();
        engine.apply(Input::Define(SPACE, Namespace::default()), 0);
        Self { engine, requests: 0 }
    }

    /// A request from its submission to its end; all that it has moved succeeds at once, but for the store,
    /// which has nothing.
    fn serve(&mut self, prompt: Prompt) {
        self.requests += 1;
        let request = ReqId(self.requests);
        let submit = Submit { request, space: SPACE, prompt, priority: 0, deadline: None };
        self.tell(Input::Submit(submit));
        let computed = vec![Progress { request, upto: PAGES * PAGE_TOKENS + 1, generated: vec![] }];
        self.tell(Input::Pass { computed, finished: vec![request] });
    }

    fn tell(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for effect in self.engine.apply(input, 0) {
                if let Effect::Issue(op) = effect {
                    let is_question = op.kind == tiffin_kv::OpKind::Probe;
                    let leading = if is_question { 0 } else { op.records.len() as u32 };
                    inputs.push(Input::Complete(op.id, Outcome::Done { leading }));
                }
            }
        }
    }
}

fn prompt(of: u64) -> Prompt {
    let hashes = (0..PAGES).map(|at| (at, ChainHash::foreign(of << 20 | u64::from(at))));
    Prompt::Hashes { tokens: PAGES * PAGE_TOKENS + 1, pages: hashes.collect() }
}
