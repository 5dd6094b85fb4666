//! Two requests, four device pages, two ranks: every order of events, to the end. Reading and writing are
//! searched apart, and each fault by itself, which keeps a search at some ten thousand states.

use tiffin_kv::{IndexKind, WritePolicy};
use tiffin_kv_sim::Sabotage;
use tiffin_kv_sim::exhaustive::{Scope, search};

/// What comes up the hierarchy: the store has both prompts, and nothing is written.
const READS: Scope = Scope {
    index: IndexKind::Radix,
    host_pages: 3,
    write: WritePolicy::Selective { hits: u32::MAX },
    prompt_tokens: 3,
    generates: 1,
    is_warm: true,
    failures: 0,
    aborts: 0,
    ticks: 0,
    sabotage: Sabotage::None,
};

/// What goes down: the store has nothing, and everything is written, through a host that is too small.
const WRITES: Scope = Scope {
    host_pages: 2,
    write: WritePolicy::Through,
    prompt_tokens: 2,
    generates: 0,
    is_warm: false,
    ..READS
};

/// Both prompts do not fit on the device together: what leaves it is saved first.
const WRITES_BACK: Scope =
    Scope { host_pages: 3, write: WritePolicy::Back, prompt_tokens: 3, is_warm: false, ..READS };

#[track_caller]
fn expect_whole(scope: Scope) {
    let found = search(scope);
    assert_eq!(found.broken, None, "{scope:?}");
    assert!(found.states >= 500, "{scope:?} has only {} states", found.states);
}

#[test]
fn nothing_goes_wrong_on_the_way_up() {
    expect_whole(READS);
    expect_whole(Scope { index: IndexKind::Flat, ..READS });
}

#[test]
fn nothing_goes_wrong_on_the_way_down() {
    expect_whole(WRITES);
    expect_whole(Scope { index: IndexKind::Flat, ..WRITES });
}

#[test]
fn write_back_waits_for_its_saves_whatever_happens_to_them() {
    expect_whole(WRITES_BACK);
    expect_whole(Scope { index: IndexKind::Flat, ..WRITES_BACK });
    expect_whole(Scope { failures: 1, ..WRITES_BACK });
    expect_whole(Scope { aborts: 1, ..WRITES_BACK });
    expect_whole(Scope { ticks: 1, ..WRITES_BACK });
}

#[test]
fn a_failure_on_one_rank() {
    expect_whole(Scope { failures: 1, ..READS });
}

#[test]
fn an_abort_at_any_moment() {
    expect_whole(Scope { aborts: 1, ..READS });
}

#[test]
fn deadlines_that_pass_at_any_moment() {
    expect_whole(Scope { ticks: 1, ..READS });
}

#[test]
fn the_search_notices_what_breaks_in_its_scope() {
    for (sabotage, scope) in [
        (Sabotage::CountInsteadOfId, READS),
        (Sabotage::DropCompletedPages, Scope { failures: 1, ..READS }),
        (Sabotage::PublishLoadEarly, READS),
        (Sabotage::ForgetJoiners, Scope { aborts: 1, ..READS }),
        (Sabotage::UnpinnedBackup, WRITES),
        (Sabotage::ReuseUnsaved, WRITES_BACK),
    ] {
        let found = search(Scope { sabotage, ..scope });
        assert!(found.broken.is_some(), "{sabotage:?} was not noticed in {} states", found.states);
    }
}
