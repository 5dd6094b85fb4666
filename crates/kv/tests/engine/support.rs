//! A shell that carries out everything at once, on all ranks: for scenarios that do not depend on time.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_kv::{
    CachedTokens, ChainHash, Config, Effect, Ending, Engine, Input, LocalAcks, Namespace, OpKind, Operation,
    Outcome, Prompt, ReqId, SpaceId, Submit, Tier,
};

/// The namespace of every scenario.
pub(crate) const SPACE: SpaceId = SpaceId(0);

/// Engines of all ranks, and the operations that were carried out.
pub(crate) struct Shell {
    pub(crate) engines: Vec<Engine>,
    /// What the store has, for each rank.
    pub(crate) stored: Vec<BTreeSet<ChainHash>>,
    /// Number of pages that each kind of operation has moved, over all ranks.
    pub(crate) moved: BTreeMap<OpKind, u64>,
    /// Number of issued operations of each kind.
    pub(crate) issued: BTreeMap<OpKind, u64>,
    /// The cached tokens of each request.
    pub(crate) ready: BTreeMap<ReqId, CachedTokens>,
    pub(crate) ended: BTreeMap<ReqId, Ending>,
    pub(crate) refused: Vec<String>,
    /// Kinds of operations of which no page succeeds.
    pub(crate) fails: BTreeSet<OpKind>,
    /// Kinds of operations that are held back.
    pub(crate) held: BTreeSet<OpKind>,
    pub(crate) waiting: Vec<Operation>,
    pub(crate) now: u64,
}

impl Shell {
    pub(crate) fn new(config: Config) -> Self {
        let engine = |rank| Engine::new(Config { rank, ..config }).unwrap();
        let mut shell = Self {
            engines: (0..config.ranks).map(engine).collect(),
            stored: vec![BTreeSet::new(); config.ranks as usize],
            moved: BTreeMap::new(),
            issued: BTreeMap::new(),
            ready: BTreeMap::new(),
            ended: BTreeMap::new(),
            refused: Vec::new(),
            fails: BTreeSet::new(),
            held: BTreeSet::new(),
            waiting: Vec::new(),
            now: 0,
        };
        shell.tell(Input::Define(SPACE, Namespace { model: "m".to_owned(), ..Namespace::default() }));
        shell
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engines[0]
    }

    /// Gives all ranks an input, and carries out their effects until there are none left.
    pub(crate) fn tell(&mut self, input: Input) {
        let now = self.now;
        let answers: Vec<_> = self.engines.iter_mut().map(|it| it.apply(input.clone(), now)).collect();
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "C1: ranks answer differently");
        self.check();
        for effect in answers.into_iter().next().unwrap() {
            if let Effect::Issue(op) = &effect {
                *self.issued.entry(op.kind).or_default() += 1;
            }
            match effect {
                Effect::Issue(op) if self.held.contains(&op.kind) => self.waiting.push(op),
                Effect::Issue(op) => self.carry_out(&op),
                Effect::Ready { request, cached, .. } => drop(self.ready.insert(request, cached)),
                Effect::Ended(request, how) => drop(self.ended.insert(request, how)),
                Effect::Refused(refusal) => self.refused.push(refusal.to_string()),
                _ => {}
            }
        }
    }

    pub(crate) fn check(&self) {
        for engine in &self.engines {
            engine.check().unwrap();
            assert_eq!(engine.digest(), self.engines[0].digest());
        }
    }

    /// Carries out the operations that were held back.
    pub(crate) fn release(&mut self) {
        self.held.clear();
        for op in std::mem::take(&mut self.waiting) {
            self.carry_out(&op);
        }
    }

    pub(crate) fn carry_out(&mut self, op: &Operation) {
        let ranks = self.engines.len();
        let outcomes: Vec<_> = (0..ranks).map(|rank| (op.id, self.outcome(rank, op))).collect();
        let input = match ranks {
            1 => Input::Complete(outcomes[0].0, outcomes[0].1),
            _ => Input::Agreed(outcomes.into_iter().map(|ack| LocalAcks(vec![ack])).collect()),
        };
        self.tell(input);
    }

    fn outcome(&mut self, rank: usize, op: &Operation) -> Outcome {
        if self.fails.contains(&op.kind) {
            return Outcome::Failed;
        }
        let stored = &mut self.stored[rank];
        let leading = match op.kind {
            OpKind::Probe | OpKind::Fetch => {
                op.records.iter().take_while(|record| stored.contains(&record.hash)).count()
            }
            OpKind::Backup => {
                stored.extend(op.records.iter().map(|record| record.hash));
                op.records.len()
            }
            OpKind::Drop => {
                stored.clear();
                0
            }
            OpKind::Load | OpKind::Save => op.records.len(),
        };
        *self.moved.entry(op.kind).or_default() += leading as u64;
        Outcome::Done { leading: leading as u32 }
    }

    pub(crate) fn submit(&mut self, id: u64, tokens: &[u32]) {
        let prompt = Prompt::Tokens { tokens: tokens.to_vec(), media: vec![] };
        self.tell(Input::Submit(Submit {
            request: ReqId(id),
            space: SPACE,
            prompt,
            priority: 0,
            deadline: None,
        }));
    }

    /// A request from its prompt to its end, which generates these tokens. Returns its cached tokens.
    pub(crate) fn serve(&mut self, id: u64, tokens: &[u32], generated: &[u32]) -> CachedTokens {
        self.submit(id, tokens);
        let cached = self.ready[&ReqId(id)];
        self.compute(id, tokens.len() as u32, generated);
        cached
    }

    /// The rest of a request that is ready.
    pub(crate) fn compute(&mut self, id: u64, prompt: u32, generated: &[u32]) {
        let request = ReqId(id);
        self.tell(Input::Computed { request, upto: prompt, generated: generated.to_vec() });
        if !generated.is_empty() {
            let upto = prompt + generated.len() as u32;
            self.tell(Input::Computed { request, upto, generated: vec![] });
        }
        self.tell(Input::Finish(request));
    }

    pub(crate) fn moved(&self, kind: OpKind) -> u64 {
        self.moved.get(&kind).copied().unwrap_or_default()
    }

    /// There is no operation and no request: every page is free or can be matched.
    pub(crate) fn expect_rest(&self) {
        for engine in &self.engines {
            assert_eq!((engine.request_count(), engine.op_count()), (0, 0));
            for tier in Tier::BOTH {
                let pages = engine.pages(tier);
                assert_eq!(pages.free + pages.indexed, pages.total(), "{tier:?}");
            }
        }
    }
}
