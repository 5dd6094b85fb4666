//! A toy engine whose pages have known contents, and an in-memory store with faults on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tiffin_kv::{
    CachedTokens, Config, Effect, Input, Namespace, PrefetchStart, PrefetchStop, Progress, Prompt, RankPart,
    ReqId, SpaceId, StoreConfig, Submit,
};
use tiffin_transport::copy::{copy_in, copy_out};

use crate::{
    Device, Executor, Fault, Gather, HostDevice, OpEnd, PageName, PageReadGuard, PageStore, PageWriteGuard,
    Pages, Parts, Step, Stop, Threads,
};

/// A timeout that no test reaches.
pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const PAGE_BYTES: usize = 256;
pub(super) const SPACE: SpaceId = SpaceId(0);

/// A small hierarchy that probes the store for every page.
pub(super) fn config() -> Config {
    let stop = PrefetchStop::WaitComplete;
    Config {
        page_tokens: 4,
        device_pages: 8,
        host_pages: 16,
        store: Some(StoreConfig { start: PrefetchStart::Missing, threshold_pages: 1, stop }),
        ..Config::default()
    }
}

/// Tokens of a prompt; different seeds have no token in common.
pub(super) fn prompt(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| seed * 1000 + at).collect()
}

/// The content of a rank's page, derived from all tokens up to its end.
fn content(rank: u32, prefix: &[u32]) -> Vec<u8> {
    let mut state = u64::from(rank) + 1;
    for token in prefix {
        state = (state ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    (0..PAGE_BYTES as u64).map(|at| (state.wrapping_mul(at | 1) >> 32) as u8).collect()
}

/// The memory in which the toy computes.
pub(super) trait ToyMemory: Send {
    fn content(&self, page: u32) -> Vec<u8>;
    fn compute(&self, page: u32, bytes: &[u8]);
}

impl ToyMemory for Arc<Pages> {
    fn content(&self, page: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.page_bytes()];
        copy_out(self.read(page).unwrap().bytes(), &mut bytes);
        bytes
    }

    fn compute(&self, page: u32, bytes: &[u8]) {
        copy_in(bytes, self.write(page).unwrap().bytes());
    }
}

/// An inference engine that computes the known content of each page.
pub(super) struct Toy {
    pub(super) executor: Executor,
    memory: Box<dyn ToyMemory>,
    config: Config,
    requests: u64,
    prompts: BTreeMap<ReqId, Vec<u32>>,
    /// Cached tokens and pages of requests whose pages are being loaded.
    loading: BTreeMap<ReqId, (u32, Vec<u32>)>,
    pub(super) ready: BTreeMap<ReqId, CachedTokens>,
    pub(super) over: BTreeSet<ReqId>,
    pub(super) recomputed: BTreeSet<ReqId>,
    pub(super) ended: Vec<OpEnd>,
}

impl Toy {
    pub(super) fn new(config: Config, store: Arc<MemoryStore>, gather: Option<Box<dyn Gather>>) -> Self {
        Self::over(config, Box::new(store), gather)
    }

    pub(super) fn over(config: Config, store: Box<dyn PageStore>, gather: Option<Box<dyn Gather>>) -> Self {
        let device = Arc::new(Pages::allocate(config.device_pages, PAGE_BYTES).unwrap());
        let host = Arc::new(Pages::allocate(config.host_pages, PAGE_BYTES).unwrap());
        let memory = Box::new(Arc::clone(&device));
        Self::on(config, host, (memory, Box::new(HostDevice::new(device))), store, gather)
    }

    /// Over any device, and the memory that it has.
    pub(super) fn on(
        config: Config,
        host: Arc<Pages>,
        (memory, device): (Box<dyn ToyMemory>, Box<dyn Device>),
        store: Box<dyn PageStore>,
        gather: Option<Box<dyn Gather>>,
    ) -> Self {
        let parts = Parts {
            host,
            device,
            store: config.store.map(|_| store),
            rank: RankPart { tensor: (config.rank, config.ranks), ..RankPart::default() },
            gather,
            threads: Threads::default(),
            compare_every: 1,
        };
        let executor = Executor::start(config, parts).unwrap();
        let (prompts, ready, over, recomputed) = Default::default();
        let (ended, loading) = Default::default();
        let mut toy =
            Self { executor, memory, config, requests: 0, prompts, loading, ready, over, recomputed, ended };
        let namespace = Namespace { model: "toy".to_owned(), ..Namespace::default() };
        toy.step([Input::Define(SPACE, namespace)]);
        toy
    }

    /// Steps, computes the requests that became ready, and ends them.
    pub(super) fn step(&mut self, inputs: impl IntoIterator<Item = Input>) {
        let step = self.executor.step(inputs).unwrap();
        let more = self.compute(step);
        if !more.is_empty() {
            let step = self.executor.step(more).unwrap();
            let more = self.compute(step);
            assert!(more.is_empty(), "a step that ends requests makes none ready in these tests");
        }
        self.executor.engine().check().unwrap();
    }

    fn compute(&mut self, step: Step) -> Vec<Input> {
        let (mut computed, mut finished) = (Vec::new(), Vec::new());
        self.ended.extend(step.ended);
        for effect in step.effects {
            match effect {
                Effect::Loading { request, cached, pages } => {
                    drop(self.loading.insert(request, (cached.total(), pages)));
                }
                Effect::Ready { request, cached, pages } => {
                    let expected = self.loading.remove(&request);
                    let is_loaded = expected.as_ref().is_some_and(|(total, _)| *total == cached.total());
                    assert!(!is_loaded || expected.is_some_and(|(_, table)| table == pages));
                    self.ready.insert(request, cached);
                    self.pass(request, cached.total(), &pages);
                    let upto = self.prompts[&request].len() as u32;
                    computed.push(Progress { request, upto, generated: vec![] });
                    finished.push(request);
                }
                Effect::Retracted(request, _) => drop(self.loading.remove(&request)),
                Effect::Ended(request, _) => drop(self.over.insert(request)),
                Effect::MustRecompute { request, .. } => drop(self.recomputed.insert(request)),
                Effect::Refused(refusal) => panic!("{refusal}"),
                _ => {}
            }
        }
        if computed.is_empty() { vec![] } else { vec![Input::Pass { computed, finished }] }
    }

    /// One pass of the model: every cached page is compared, every other one is written.
    fn pass(&self, request: ReqId, cached: u32, pages: &[u32]) {
        let tokens = &self.prompts[&request];
        let size = self.config.page_tokens as usize;
        for (position, page) in pages.iter().enumerate() {
            let end = ((position + 1) * size).min(tokens.len());
            let wanted = content(self.config.rank, &tokens[..end]);
            if end <= cached as usize {
                let found = self.memory.content(*page);
                assert_eq!(found, wanted, "page {position} of {request:?} has the wrong content");
            } else {
                self.memory.compute(*page, &wanted);
            }
        }
    }

    pub(super) fn submit(&mut self, tokens: &[u32]) -> ReqId {
        self.requests += 1;
        let request = ReqId(self.requests);
        self.prompts.insert(request, tokens.to_vec());
        let prompt = Prompt::Tokens { tokens: tokens.to_vec(), media: vec![] };
        let submit = Submit { request, space: SPACE, prompt, priority: 0, deadline: None };
        self.step([Input::Submit(submit)]);
        request
    }

    /// Steps until a condition holds, described by `what`.
    pub(super) fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let began = std::time::Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < LONG, "never: {what}");
            let _ = self.executor.wait(Duration::from_millis(5));
            self.step([]);
        }
    }

    /// Serves a request to its end, and returns its cached tokens.
    pub(super) fn serve(&mut self, tokens: &[u32]) -> CachedTokens {
        let request = self.submit(tokens);
        self.until("the request ends", |toy| toy.over.contains(&request));
        self.ready[&request]
    }

    /// Steps until no operation is in flight.
    pub(super) fn settle(&mut self) {
        self.until("all operations end", |toy| toy.executor.open_ops() == 0);
        assert_eq!(self.executor.engine().op_count(), 0);
        assert_eq!(self.executor.moved().conflicts, 0);
    }
}

/// A store in this process.
#[derive(Default)]
pub(super) struct MemoryStore {
    pages: Mutex<BTreeMap<PageName, Vec<u8>>>,
    pub(super) reads: AtomicU64,
    /// The calls that block.
    closed: Mutex<BTreeSet<&'static str>>,
    wake: Condvar,
    /// Number of blocked calls.
    pub(super) waiting: AtomicU64,
    /// The call that panics.
    pub(super) panics: Mutex<Option<&'static str>>,
}

impl MemoryStore {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn len(&self) -> usize {
        self.pages.lock().unwrap().len()
    }

    pub(super) fn forget(&self, count: usize) {
        let mut pages = self.pages.lock().unwrap();
        let keep = pages.len() - count;
        while pages.len() > keep {
            pages.pop_last();
        }
    }

    pub(super) fn damage(&self) {
        self.pages.lock().unwrap().values_mut().for_each(|bytes| bytes.truncate(PAGE_BYTES / 2));
    }

    pub(super) fn close(&self, call: &'static str) {
        self.closed.lock().unwrap().insert(call);
    }

    pub(super) fn open(&self, call: &'static str) {
        self.closed.lock().unwrap().remove(call);
        self.wake.notify_all();
    }

    /// Blocks while the call is closed, also after it was stopped.
    fn pass(&self, call: &'static str) {
        assert!(self.panics.lock().unwrap().as_ref() != Some(&call), "injected panic");
        let closed = self.closed.lock().unwrap();
        if closed.contains(call) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            drop(self.wake.wait_while(closed, |closed| closed.contains(call)).unwrap());
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl PageStore for Arc<MemoryStore> {
    fn probe(&self, names: &[PageName], _: &Stop) -> Result<u32, Fault> {
        self.pass("probe");
        let pages = self.pages.lock().unwrap();
        Ok(names.iter().take_while(|name| pages.contains_key(name)).count() as u32)
    }

    fn fetch(&self, targets: &[(PageName, PageWriteGuard<'_>)], _: &Stop) -> Result<u32, Fault> {
        self.pass("fetch");
        let pages = self.pages.lock().unwrap();
        let mut done = 0;
        for (name, target) in targets {
            self.reads.fetch_add(1, Ordering::SeqCst);
            match pages.get(name) {
                Some(bytes) if bytes.len() == PAGE_BYTES => copy_in(bytes, target.bytes()),
                _ => break,
            }
            done += 1;
        }
        Ok(done)
    }

    fn back_up(&self, sources: &[(PageName, PageReadGuard<'_>)], _: &Stop) -> Result<u32, Fault> {
        self.pass("back_up");
        for (name, source) in sources {
            let mut bytes = vec![0; PAGE_BYTES];
            copy_out(source.bytes(), &mut bytes);
            let was = self.pages.lock().unwrap().insert(name.clone(), bytes.clone());
            assert!(was.is_none_or(|was| was == bytes), "two contents for one name");
        }
        Ok(sources.len() as u32)
    }

    fn drop_all(&self, prefix: &str, _: &Stop) -> Result<(), Fault> {
        self.pages.lock().unwrap().retain(|name, _| !name.as_str().starts_with(prefix));
        Ok(())
    }
}
