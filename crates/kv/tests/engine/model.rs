//! The engine against a naive model: with memory for everything it finds exactly what was computed before;
//! with little memory never more than that; and both indexes, and ranks with completions in any order, agree.

use std::collections::BTreeSet;

use crate::support::{SPACE, Shell};
use proptest::prelude::*;
use tiffin_kv::{
    Config, Eviction, IndexKind, Input, LocalAcks, OpKind, PrefetchStart, PrefetchStop, Prompt, StoreConfig,
};

const PAGE: usize = 2;

/// Every prefix, in pages, that was ever computed.
#[derive(Default)]
struct Naive(BTreeSet<Vec<u32>>);

impl Naive {
    fn learn(&mut self, tokens: &[u32]) {
        self.0.extend((1..=tokens.len() / PAGE).map(|pages| tokens[..pages * PAGE].to_vec()));
    }

    /// Tokens that need not be computed.
    fn finds(&self, tokens: &[u32]) -> u32 {
        let usable = (tokens.len() - 1) / PAGE;
        let found = (1..=usable).take_while(|pages| self.0.contains(&tokens[..pages * PAGE])).count();
        (found * PAGE) as u32
    }
}

fn config(device_pages: u32, host_pages: u32, index: IndexKind) -> Config {
    Config {
        page_tokens: PAGE as u32,
        device_pages,
        host_pages,
        store: Some(StoreConfig {
            start: PrefetchStart::Missing,
            threshold_pages: 1,
            stop: PrefetchStop::WaitComplete,
        }),
        index,
        ..Config::default()
    }
}

#[derive(Clone, Debug)]
struct Turn {
    prompt: Vec<u32>,
    generated: Vec<u32>,
    fails: Option<OpKind>,
    clears: bool,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let kinds = [OpKind::Probe, OpKind::Fetch, OpKind::Load, OpKind::Save, OpKind::Backup];
    let turn = (
        prop::collection::vec(0u32..2, 1..12),
        prop::collection::vec(0u32..2, 0..4),
        prop::option::weighted(0.3, prop::sample::select(kinds.to_vec())),
        prop::bool::weighted(0.05),
    );
    let turn = turn.prop_map(|(prompt, generated, fails, clears)| Turn { prompt, generated, fails, clears });
    prop::collection::vec(turn, 1..25)
}

fn play(config: Config, turns: &[Turn], mut each: impl FnMut(&Shell, &mut Naive, &Turn, u32)) {
    let mut shell = Shell::new(config);
    let mut naive = Naive::default();
    for (id, turn) in (1..).zip(turns) {
        if turn.clears {
            shell.tell(Input::Clear(SPACE));
            naive = Naive::default();
        }
        shell.fails = turn.fails.into_iter().collect();
        let found = shell.serve(id, &turn.prompt, &turn.generated).total();
        each(&shell, &mut naive, turn, found);
        naive.learn(&[turn.prompt.clone(), turn.generated.clone()].concat());
        shell.expect_rest();
    }
}

proptest! {
    #[test]
    fn with_room_for_everything_it_finds_what_was_computed(turns in turns()) {
        for index in [IndexKind::Radix, IndexKind::Flat] {
            play(config(400, 400, index), &turns, |_, naive, turn, found| {
                assert_eq!(found, naive.finds(&turn.prompt), "{turn:?}");
            });
        }
    }

    #[test]
    fn with_little_room_it_never_finds_more_than_was_computed(turns in turns(), which in 0usize..3) {
        let by_cost = Eviction::CostAware { base: 1, per_position: 1 };
        let eviction = [Eviction::Lru, Eviction::S3Fifo, by_cost][which];
        for index in [IndexKind::Radix, IndexKind::Flat] {
            let config = Config { eviction, ..config(8, 5, index) };
            play(config, &turns, |shell, naive, turn, found| {
                let all = naive.finds(&turn.prompt);
                assert!(found <= all, "{turn:?} found {found} of {all}");
                let clean = shell.fails.is_empty();
                if eviction == Eviction::Lru && index == IndexKind::Flat && clean && all > 0 {
                    let prompt = Prompt::Tokens { tokens: turn.prompt.clone(), media: vec![] };
                    let matched = shell.engine().match_prefix(SPACE, &prompt);
                    assert!(matched.device >= found / PAGE as u32, "what was just used is on the device");
                }
            });
        }
    }

    #[test]
    fn both_indexes_match_the_same(turns in turns(), asked in prop::collection::vec(0u32..2, 1..12)) {
        let all = |index| {
            let mut found = vec![];
            play(config(400, 400, index), &turns, |shell, _, _, _| {
                let prompt = Prompt::Tokens { tokens: asked.clone(), media: vec![] };
                found.push(shell.engine().match_prefix(SPACE, &prompt));
            });
            found
        };
        prop_assert_eq!(all(IndexKind::Radix), all(IndexKind::Flat));
    }

    /// C1, C2: ranks agree, in whatever order they receive completions.
    #[test]
    fn ranks_that_hear_in_different_orders_are_equal(turns in turns(), seed in any::<u64>()) {
        let config = Config { ranks: 3, running_max: 4, ..config(12, 8, IndexKind::Radix) };
        let mut shell = Shell::new(config);
        shell.held.extend(OpKind::ALL);
        let mut draw = seed;
        for (id, turn) in (1..).zip(&turns) {
            shell.submit(id, &turn.prompt);
            let mut ops: Vec<_> = shell.waiting.drain(..).map(|op| op.id).collect();
            for rank in 0..3 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let by = (draw >> 33) as usize % ops.len().max(1);
                ops.rotate_left(by);
                for op in &ops {
                    let outcome = tiffin_kv::Outcome::Done { leading: (draw >> 60) as u32 };
                    let now = shell.now;
                    prop_assert!(shell.engines[rank].apply(Input::Complete(*op, outcome), now).is_empty());
                }
            }
            let acks: Vec<LocalAcks> = shell.engines.iter().map(|engine| engine.agree()).collect();
            shell.tell(Input::Agreed(acks));
            prop_assert!(shell.engines.iter().all(|engine| engine.agree().0.is_empty()));
            if id % 3 == 0 {
                shell.tell(Input::Abort(tiffin_kv::ReqId(id - 1)));
            }
        }
    }
}
