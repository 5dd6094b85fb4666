//! The hot paths of the engine, each a few times: `make check-instructions` counts their instructions and
//! compares them with `bench/instructions.json`; and where few and many pages are cached, with each other.
//!
//! Nothing here depends on time, chance or addresses, so that the counts are the same in every run.

#[path = "../../proto/benches/counting/mod.rs"]
mod counting;
mod stage;

use std::hint::black_box;

use counting::measured;
use stage::{PAGE_TOKENS, SPACE, Stage, name, prompt};
use tiffin_kv::{IndexKind, Input, Medium, Progress, Prompt, ReqId, Submit, Tier};

/// Pages of a prompt: 8 thousand tokens.
const PAGES: u32 = 128;
/// How often each case is repeated, so that what happens now and then counts as often as it happens.
const REPEATS: u64 = 16;
/// Requests that generate tokens at the same time.
const ROWS: u64 = 64;

fn main() {
    for index in [IndexKind::Radix, IndexKind::Flat] {
        for (size, cached) in [("few", 2_000), ("many", 40_000)] {
            by_size(&format!("{index:?}, {size} cached").to_lowercase(), index, cached);
        }
        decoding(index);
    }
}

fn by_size(which: &str, index: IndexKind, cached: u32) {
    let mut stage = Stage::with(index, cached, PAGES * (REPEATS as u32 + 2));
    let fresh: Vec<_> = (0..REPEATS).map(|at| prompt(5000 + at, PAGES)).collect();
    measured(&format!("kv: {PAGES} new pages ({which})"), || {
        fresh.iter().for_each(|prompt| stage.serve(prompt.clone(), PAGES));
    });
    let known: Vec<_> = (0..REPEATS).map(|_| prompt(5000, PAGES)).collect();
    measured(&format!("kv: {PAGES} pages found ({which})"), || {
        known.iter().for_each(|prompt| stage.serve(prompt.clone(), PAGES));
    });
    measured(&format!("kv: match {PAGES} pages ({which})"), || {
        known.iter().for_each(|prompt| _ = black_box(stage.engine.match_prefix(SPACE, prompt)));
    });
    measured(&format!("kv: a page is lost ({which})"), || {
        for at in 0..REPEATS {
            let lost = Input::Vanished(SPACE, Medium::Tier(Tier::Device), vec![name(5000 + at, PAGES - 1)]);
            black_box(stage.engine.apply(lost, 0));
        }
    });
    measured(&format!("kv: an idle step ({which})"), || {
        (0..REPEATS).for_each(|_| _ = black_box(stage.engine.apply(Input::Tick, 0)));
    });
    let mut full = Stage::with(index, cached, 2);
    measured(&format!("kv: {PAGES} pages leave ({which})"), || {
        fresh.iter().for_each(|prompt| full.serve(prompt.clone(), PAGES));
    });
}

/// One token for each of many requests.
fn decoding(index: IndexKind) {
    let mut stage = Stage::new(index, ROWS as u32 * 8);
    let length = 3 * PAGE_TOKENS;
    for id in 0..ROWS {
        let tokens = (0..length).map(|at| id as u32 * 10_000 + at).collect();
        let prompt = Prompt::Tokens { tokens, media: vec![] };
        let submit = Submit { request: ReqId(id), space: SPACE, prompt, priority: 0, deadline: None };
        stage.engine.apply(Input::Submit(submit), 0);
    }
    let name = format!("kv: a pass of {ROWS} rows ({index:?})").to_lowercase();
    measured(&name, || {
        for at in 0..REPEATS as u32 {
            let row = |id| Progress { request: ReqId(id), upto: length + at, generated: vec![7] };
            let computed = (0..ROWS).map(row).collect();
            black_box(stage.engine.apply(Input::Pass { computed, finished: vec![] }, 0));
        }
    });
}
