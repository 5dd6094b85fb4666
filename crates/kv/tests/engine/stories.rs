//! Scenarios of requests, on an engine whose operations are carried out at once.

use crate::support::{SPACE, Shell};
use tiffin_kv::{
    CachedTokens, ChainHash, Config, ConfigError, Ending, Engine, Eviction, IndexKind, Input, LocalAcks,
    Medium, Namespace, OpId, OpKind, Outcome, PrefetchStart, PrefetchStop, Pressure, Progress, Prompt, ReqId,
    State, StoreConfig, Submit, Tier, WritePolicy,
};

fn small() -> Config {
    Config {
        page_tokens: 4,
        device_pages: 8,
        host_pages: 16,
        store: Some(StoreConfig {
            start: PrefetchStart::Missing,
            threshold_pages: 1,
            stop: PrefetchStop::WaitComplete,
        }),
        ..Config::default()
    }
}

fn tokens(of: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| of * 1000 + at).collect()
}

#[test]
fn scenario_293_reads_24_pages() {
    // A long request, others that evict its pages from device and host, and the same request again: its pages
    // are read from the store through the host to the device. With 439 tokens, pages of 64 and four ranks
    // exactly 24 page reads leave the store.
    for index in [IndexKind::Radix, IndexKind::Flat] {
        let mut shell = Shell::new(Config {
            page_tokens: 64,
            device_pages: 8,
            host_pages: 8,
            store: Some(StoreConfig {
                start: PrefetchStart::Missing,
                threshold_pages: 4,
                stop: PrefetchStop::WaitComplete,
            }),
            ranks: 4,
            index,
            ..Config::default()
        });
        let long = tokens(1, 439);
        assert_eq!(shell.serve(1, &long, &[]).total(), 0);
        for other in 2..5 {
            shell.serve(other, &tokens(other as u32, 450), &[]);
        }
        assert_eq!(shell.moved(OpKind::Fetch), 0);
        let cached = shell.serve(9, &long, &[]);
        assert_eq!(cached, CachedTokens { store: 384, ..CachedTokens::default() });
        assert_eq!((shell.moved(OpKind::Fetch), shell.moved(OpKind::Load)), (24, 24));
        shell.expect_rest();
    }
}

#[test]
fn cached_prompt_leaves_one_token_to_compute() {
    let mut shell = Shell::new(small());
    let prompt = tokens(1, 16);
    assert_eq!(shell.serve(1, &prompt, &[7, 7, 7, 7]).total(), 0);
    let device = |device| CachedTokens { device, ..CachedTokens::default() };
    assert_eq!(shell.serve(2, &prompt, &[]), device(12), "K5");
    let mut longer = prompt.clone();
    longer.extend([7, 7, 7, 7, 8]);
    assert_eq!(shell.serve(3, &longer, &[]), device(20), "what was generated is found too");
    let found = shell.engine().match_prefix(SPACE, &Prompt::Tokens { tokens: longer, media: vec![] });
    assert_eq!((found.device, found.host), (5, 5));
    shell.expect_rest();
}

#[test]
fn evicted_pages_are_loaded_from_the_host() {
    for eviction in [Eviction::Lru, Eviction::S3Fifo, Eviction::CostAware { base: 1, per_position: 1 }] {
        let mut shell = Shell::new(Config { eviction, ..small() });
        let prompt = tokens(1, 17);
        shell.serve(1, &prompt, &[]);
        shell.serve(2, &tokens(2, 31), &[]);
        let cached = shell.serve(3, &prompt, &[]);
        assert_eq!(cached.total(), 16, "{eviction:?}");
        assert!(cached.host > 0, "{eviction:?}: {cached:?}");
        assert_eq!(shell.moved(OpKind::Fetch), 0);
    }
}

#[test]
fn write_policies_differ_in_what_they_save() {
    for (write, saved) in
        [(WritePolicy::Through, 4), (WritePolicy::Selective { hits: 1 }, 0), (WritePolicy::Back, 0)]
    {
        let mut shell = Shell::new(Config { write, ..small() });
        shell.serve(1, &tokens(1, 17), &[]);
        assert_eq!((shell.moved(OpKind::Save), shell.moved(OpKind::Backup)), (saved, saved), "{write:?}");
        shell.serve(2, &tokens(1, 17), &[]);
        let after = if write == WritePolicy::Back { 0 } else { 4 };
        assert_eq!(shell.moved(OpKind::Save), after, "{write:?}");
        shell.serve(3, &tokens(2, 13), &[]);
        shell.serve(4, &tokens(3, 13), &[]);
        let more = shell.moved(OpKind::Save) - after;
        assert_eq!(more > 0, !matches!(write, WritePolicy::Selective { .. }), "{write:?}");
        shell.expect_rest();
    }
}

#[test]
fn write_back_saves_a_page_before_its_memory_is_reused() {
    for index in [IndexKind::Radix, IndexKind::Flat] {
        let first = Prompt::Tokens { tokens: tokens(1, 17), media: vec![] };
        let with_first = || {
            let mut shell = Shell::new(Config { write: WritePolicy::Back, index, ..small() });
            shell.serve(1, &tokens(1, 17), &[]);
            assert_eq!(shell.moved(OpKind::Save), 0);
            shell
        };
        // The second needs the whole device: it waits until the pages there are saved.
        let mut shell = with_first();
        shell.held.insert(OpKind::Save);
        shell.submit(2, &tokens(2, 29));
        assert_eq!(shell.engine().state(ReqId(2)), Some(State::Waiting));
        assert_eq!(shell.engine().match_prefix(SPACE, &first).device, 4);
        shell.release();
        assert_eq!(shell.engine().state(ReqId(2)), Some(State::Prefilling));
        assert_eq!((shell.moved(OpKind::Save), shell.moved(OpKind::Backup)), (4, 4));
        let found = shell.engine().match_prefix(SPACE, &first);
        assert_eq!((found.device, found.host), (0, 4));
        shell.compute(2, 29, &[]);
        let stats = shell.engine().stats();
        assert_eq!((stats.written_back, stats.lost_unsaved), (4, 0));
        // Pages that cannot be saved delay no request: they leave without a save, and are counted.
        let mut shell = with_first();
        shell.fails.insert(OpKind::Save);
        shell.submit(2, &tokens(2, 29));
        assert_eq!(shell.engine().state(ReqId(2)), Some(State::Prefilling));
        assert_eq!(shell.engine().match_prefix(SPACE, &first).host, 0);
        assert_eq!(shell.engine().stats().lost_unsaved, 4);
        shell.compute(2, 29, &[]);
        shell.expect_rest();
    }
}

#[test]
fn request_writes_back_until_its_pages_are_in_the_host() {
    let mut shell = Shell::new(small());
    shell.held.insert(OpKind::Save);
    shell.submit(1, &tokens(1, 17));
    shell.compute(1, 17, &[]);
    assert_eq!(shell.engine().state(ReqId(1)), Some(State::WritingBack));
    assert_eq!(shell.engine().request_count(), 1);
    shell.held.insert(OpKind::Backup);
    let saves: Vec<_> = std::mem::take(&mut shell.waiting);
    saves.iter().for_each(|op| shell.carry_out(op));
    assert_eq!(shell.ended.get(&ReqId(1)), Some(&Ending::Finished), "nobody waits for the backup");
    assert!(shell.waiting.iter().all(|op| op.kind == OpKind::Backup) && !shell.waiting.is_empty());
    shell.release();
    shell.expect_rest();
}

#[test]
fn failed_drop_is_repeated_with_backoff() {
    let mut shell = Shell::new(Config { hint_interval: 10, op_timeout: 65, ..small() });
    let prompt = tokens(1, 17);
    shell.serve(1, &prompt, &[]);
    shell.fails.insert(OpKind::Drop);
    shell.tell(Input::Clear(SPACE));
    let mut said = vec![0];
    while shell.now < 300 {
        let before = shell.issued[&OpKind::Drop];
        shell.now = shell.engine().next_alarm().expect("it will be said again");
        shell.tell(Input::Tick);
        assert_eq!(shell.issued[&OpKind::Drop], before + 1, "an alarm is no false one");
        said.push(shell.now);
    }
    assert_eq!(said, [0, 10, 30, 70, 135, 200, 265, 330]);
    // No request is delayed meanwhile, no old page is found, and none is backed up.
    assert_eq!(shell.serve(2, &prompt, &[]).total(), 0);
    let namespace =
        |weight_version| Namespace { model: "m".to_owned(), weight_version, ..Namespace::default() };
    shell.tell(Input::Define(SPACE, namespace(1)));
    shell.tell(Input::Define(SPACE, namespace(0)));
    assert_eq!(shell.serve(3, &prompt, &[]).total(), 0, "cleared, and defined anew twice");
    shell.fails.clear();
    shell.now = shell.engine().next_alarm().unwrap();
    shell.tell(Input::Tick);
    assert_eq!(shell.engine().next_alarm(), None);
    shell.tell(Input::Define(SPACE, namespace(1)));
    shell.tell(Input::Define(SPACE, namespace(0)));
    assert_eq!(shell.serve(4, &prompt, &[]).total(), 0, "the store has forgotten it");
    shell.expect_rest();
}

#[test]
fn l3_slow_store_delays_no_request() {
    let mut shell = Shell::new(Config {
        store: Some(StoreConfig {
            start: PrefetchStart::Missing,
            threshold_pages: 1,
            stop: PrefetchStop::Timeout { base: 10, per_page: 0, most: 10 },
        }),
        ..small()
    });
    shell.held.insert(OpKind::Probe);
    shell.submit(1, &tokens(1, 9));
    assert_eq!(shell.engine().state(ReqId(1)), Some(State::Prefetching));
    shell.now = 10;
    shell.tell(Input::Tick);
    assert_eq!(shell.engine().state(ReqId(1)), Some(State::Prefilling));
    shell.release();
    assert_eq!(shell.engine().stats().prefetch_late, 1);
    shell.compute(1, 9, &[]);
    shell.expect_rest();
}

#[test]
fn l7_joiner_survives_the_abort_of_the_initiator() {
    let mut shell = Shell::new(small());
    let prompt = tokens(1, 17);
    shell.serve(1, &prompt, &[]);
    let config = small();
    let stored = shell.stored.clone();
    let mut shell = Shell::new(Config { running_max: 2, ..config });
    shell.stored = stored;
    shell.held.insert(OpKind::Fetch);
    shell.submit(1, &prompt);
    shell.submit(2, &prompt);
    assert_eq!(shell.engine().stats().joined, 1);
    shell.tell(Input::Abort(ReqId(1)));
    assert_eq!(shell.ended[&ReqId(1)], Ending::Aborted);
    shell.release();
    assert_eq!(shell.ready[&ReqId(2)].store, 16);
    assert_eq!(shell.moved(OpKind::Fetch), 4, "one fetch for both");
    shell.compute(2, 17, &[]);
    shell.expect_rest();
}

#[test]
fn priority_and_age_decide_the_order() {
    let mut shell = Shell::new(Config { running_max: 1, ..small() });
    shell.submit(1, &tokens(1, 9));
    shell.submit(2, &tokens(2, 9));
    let prompt = Prompt::Tokens { tokens: tokens(3, 9), media: vec![] };
    let urgent = Submit { request: ReqId(3), space: SPACE, prompt, priority: 5, deadline: None };
    shell.tell(Input::Submit(urgent));
    shell.submit(4, &tokens(4, 9));
    let mut order = vec![];
    for _ in 0..4 {
        let running = (1..=4).find(|id| shell.engine().state(ReqId(*id)) == Some(State::Prefilling)).unwrap();
        order.push(running);
        shell.compute(running, 9, &[]);
    }
    assert_eq!(order, [1, 3, 2, 4]);
}

#[test]
fn k4_new_weights_and_clear_hide_all_pages_at_once() {
    for clears in [false, true] {
        let mut shell = Shell::new(small());
        let prompt = tokens(1, 17);
        shell.serve(1, &prompt, &[]);
        let input = match clears {
            true => Input::Clear(SPACE),
            false => {
                let namespace =
                    Namespace { model: "m".to_owned(), weight_version: 2, ..Namespace::default() };
                Input::Define(SPACE, namespace)
            }
        };
        shell.tell(input);
        assert_eq!(shell.engine().residents().count(), 0);
        assert_eq!(shell.serve(2, &prompt, &[]).total(), 0);
        assert_eq!(shell.serve(3, &prompt, &[]).total(), 16);
        for _ in 0..10 {
            shell.tell(Input::Tick);
        }
        assert_eq!(shell.engine().pages(Tier::Device).indexed, 4, "what cannot be found has left");
        shell.expect_rest();
    }
}

#[test]
fn full_device_is_reported() {
    let mut shell = Shell::new(small());
    shell.tell(Input::Pressure(Medium::Store, Pressure::Full));
    shell.serve(1, &tokens(1, 17), &[]);
    assert_eq!((shell.moved(OpKind::Probe), shell.moved(OpKind::Backup)), (0, 0));
    shell.tell(Input::Pressure(Medium::Store, Pressure::Calm));
    assert_eq!(shell.moved(OpKind::Backup), 4, "backups go on when the store is calm again");
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let mut shell = Shell::new(small());
    let digest = shell.engine().digest();
    let hash = ChainHash::foreign;
    let hashes = |tokens, pages: Vec<(u32, ChainHash)>| Prompt::Hashes { tokens, pages };
    for (prompt, says) in [
        (Prompt::Tokens { tokens: vec![], media: vec![] }, "is empty"),
        (Prompt::Tokens { tokens: vec![1; 33], media: vec![] }, "needs 9 pages of 8"),
        (hashes(9, vec![(0, hash(1)), (1, hash(2)), (2, hash(3))]), "names 3 pages, and its tokens fill 2"),
        (hashes(9, vec![(1, hash(1)), (0, hash(2))]), "out of order at page 0"),
        (hashes(9, vec![(0, hash(1)), (1, hash(1))]), "out of order at page 1"),
    ] {
        shell.tell(Input::Submit(Submit {
            request: ReqId(1),
            space: SPACE,
            prompt,
            priority: 0,
            deadline: None,
        }));
        let said = shell.refused.pop().unwrap();
        assert!(said.contains(says) && said.contains("\n\nhint: "), "{said}");
    }
    shell.tell(Input::Complete(OpId(77), Outcome::Done { leading: 9 }));
    shell.tell(Input::Agreed(vec![LocalAcks::default(); 3]));
    assert!(shell.refused.pop().unwrap().starts_with("3 ranks answered, there are 1"));
    for unknown in [Input::Abort(ReqId(5)), Input::Finish(ReqId(5)), Input::Retract(ReqId(5))] {
        shell.tell(unknown);
    }
    shell.tell(Input::Computed { request: ReqId(5), upto: 1, generated: vec![] });
    let stats = shell.engine().stats();
    assert_eq!((stats.stray_acks, stats.ignored, stats.refused), (1, 4, 6));
    assert_eq!(shell.engine().digest(), digest);
    shell.submit(1, &tokens(1, 3));
    assert_eq!(shell.ready[&ReqId(1)].total(), 0, "a prompt that is shorter than a page is served");
    shell.submit(1, &tokens(1, 3));
    assert!(shell.refused.pop().unwrap().contains("exists already"));
    for (upto, generated) in [(4, vec![]), (2, vec![1])] {
        shell.tell(Input::Computed { request: ReqId(1), upto, generated });
        assert!(shell.refused.pop().unwrap().contains("cannot have"));
    }
    let none = Engine::new(Config { device_pages: 0, ..small() });
    assert_eq!(none.err(), Some(ConfigError::DevicePages(0)));
}

#[test]
fn engine_works_without_host_or_store() {
    let mut shell = Shell::new(Config { host_pages: 0, store: None, ..small() });
    shell.serve(1, &tokens(1, 17), &[]);
    assert_eq!(shell.serve(2, &tokens(1, 17), &[]).device, 16);
    assert_eq!(shell.moved(OpKind::Save), 0);
    shell.expect_rest();
    let mut shell = Shell::new(Config { store: None, ..small() });
    shell.serve(1, &tokens(1, 17), &[]);
    assert_eq!(
        (shell.moved(OpKind::Save), shell.moved(OpKind::Backup), shell.moved(OpKind::Probe)),
        (4, 0, 0)
    );
}

#[test]
fn request_that_outgrows_the_device_ends() {
    // Also if it has no token yet, and no page for the first.
    for generated in [vec![1], vec![]] {
        let mut shell = Shell::new(Config { device_pages: 2, ..small() });
        shell.submit(1, &tokens(1, 8));
        shell.tell(Input::Computed { request: ReqId(1), upto: 8, generated });
        assert_eq!(shell.ended[&ReqId(1)], Ending::TooLong);
        shell.expect_rest();
    }
}

#[test]
fn request_retracted_in_a_pass_keeps_its_progress() {
    let three_pages = Config { device_pages: 3, store: None, ..small() };
    let progress = |id, upto, token| Progress { request: ReqId(id), upto, generated: vec![token] };
    let mut shell = Shell::new(three_pages);
    shell.submit(1, &tokens(1, 4));
    shell.submit(2, &tokens(2, 4));
    // The first needs a second page for its next token, and so does the second: there is one.
    shell.tell(Input::Pass { computed: vec![progress(1, 4, 7), progress(2, 4, 8)], finished: vec![] });
    assert_eq!(shell.engine().state(ReqId(2)), Some(State::Waiting));
    shell.tell(Input::Pass { computed: vec![progress(1, 5, 9)], finished: vec![ReqId(1)] });
    assert_eq!(shell.ended[&ReqId(1)], Ending::Finished);
    // Its token was applied before it was retracted: it continues after it.
    assert_eq!(shell.ready[&ReqId(2)].total(), 4);
    shell.tell(Input::Pass { computed: vec![progress(2, 5, 3)], finished: vec![ReqId(2)] });
    assert!(shell.refused.is_empty(), "{:?}", shell.refused);
    assert_eq!(shell.ended[&ReqId(2)], Ending::Finished);
    // A finished request leaves before others get pages, so none is retracted.
    let retractions = shell.engine().stats().retractions;
    shell.submit(3, &tokens(3, 4));
    shell.submit(4, &tokens(4, 4));
    shell
        .tell(Input::Pass { computed: vec![progress(3, 4, 7), progress(4, 4, 8)], finished: vec![ReqId(4)] });
    assert_eq!(shell.engine().state(ReqId(3)), Some(State::Decoding));
    assert_eq!(shell.engine().stats().retractions, retractions);
}

#[test]
fn failed_store_is_not_probed_for_a_while() {
    let mut shell = Shell::new(Config { cooldown: 100, ..small() });
    shell.fails.insert(OpKind::Probe);
    shell.serve(1, &tokens(1, 17), &[]);
    let probes = |shell: &Shell| (shell.engine().stats().probes, shell.engine().stats().cooled);
    assert_eq!(probes(&shell), (1, 0));
    shell.fails.clear();
    shell.serve(2, &tokens(2, 17), &[]);
    assert_eq!(probes(&shell), (1, 1), "it failed just now");
    shell.now += 100;
    shell.serve(3, &tokens(3, 17), &[]);
    assert_eq!(probes(&shell), (2, 1));
    // A store that has nothing has not failed.
    shell.serve(4, &tokens(4, 17), &[]);
    assert_eq!(probes(&shell), (3, 1));
    shell.expect_rest();
}

#[test]
fn c1_order_of_completions_does_not_matter() {
    let mut shell = Shell::new(Config { ranks: 3, op_pages_max: 1, ..small() });
    shell.held.extend([OpKind::Save]);
    for id in 1..4 {
        shell.serve(id, &tokens(id as u32, 9), &[]);
    }
    let ops: Vec<_> = std::mem::take(&mut shell.waiting).iter().map(|op| op.id).collect();
    assert!(ops.len() >= 6, "one for each page");
    shell.held.clear();
    let heard: Vec<_> = (0..3)
        .map(|rank| {
            let mut order = ops.clone();
            order.rotate_left(2 * rank);
            if rank == 1 {
                order.reverse();
            }
            let engine = &mut shell.engines[rank];
            for op in order {
                engine.apply(Input::Complete(op, Outcome::Done { leading: 1 }), 5 * rank as u64);
            }
            engine.agree()
        })
        .collect();
    assert!(heard.windows(2).all(|pair| pair[0] == pair[1]), "they say the same in the same order");
    // `tell` compares effects and digests of all ranks.
    shell.tell(Input::Agreed(heard));
    assert_eq!(shell.moved(OpKind::Backup), 3 * ops.len() as u64);
    shell.expect_rest();
}
