//! An engine of one tier, so that what is measured is the engine and not a list of operations.

use tiffin_kv::{
    ChainHash, Config, Effect, Engine, IndexKind, Input, Namespace, Outcome, Prompt, ReqId, SpaceId, Submit,
};

/// The namespace of all requests.
pub(crate) const SPACE: SpaceId = SpaceId(0);
/// Tokens of a page.
pub(crate) const PAGE_TOKENS: u32 = 64;
/// Prompts of which the cached pages are.
const FILLERS: u64 = 100;

/// See the module.
pub(crate) struct Stage {
    /// The engine.
    pub(crate) engine: Engine,
    requests: u64,
}

impl Stage {
    /// An engine with so many pages, which are free.
    pub(crate) fn new(index: IndexKind, device_pages: u32) -> Self {
        let config = Config {
            page_tokens: PAGE_TOKENS,
            device_pages,
            host_pages: 0,
            store: None,
            index,
            events: false,
            ..Config::default()
        };
        let mut engine = Engine::new(config).expect("it is a good configuration");
        engine.apply(Input::Define(SPACE, Namespace::default()), 0);
        Self { engine, requests: 0 }
    }

    /// One in which so many pages are cached, and so many more are free.
    pub(crate) fn with(index: IndexKind, cached: u32, free: u32) -> Self {
        let mut stage = Self::new(index, cached + free);
        let each = cached / FILLERS as u32;
        (0..FILLERS).for_each(|at| stage.serve(prompt(1000 + at, each), each));
        stage
    }

    /// A request from its submission to its end.
    pub(crate) fn serve(&mut self, prompt: Prompt, pages: u32) {
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

/// A prompt of so many pages, which are no other prompt's.
pub(crate) fn prompt(of: u64, pages: u32) -> Prompt {
    let pages: Vec<_> = (0..pages).map(|at| (at, name(of, at))).collect();
    Prompt::Hashes { tokens: pages.len() as u32 * PAGE_TOKENS + 1, pages }
}

/// What a page of such a prompt is called.
pub(crate) fn name(of: u64, page: u32) -> ChainHash {
    ChainHash::foreign(of << 20 | u64::from(page))
}
