//! Two requests, four device pages, two ranks: every order of events, until nothing is left to do. Reads,
//! writes and each kind of fault are searched separately, which keeps a search at some ten thousand states.

use tiffin_kv::{IndexKind, WritePolicy};
use tiffin_kv_sim::Mutant;
use tiffin_kv_sim::exhaustive::{Scope, search};

/// Reads: the store has both prompts, and nothing is written.
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
    mutant: Mutant::None,
};

/// Writes: the store is empty, and everything is written, through a host that is too small.
const WRITES: Scope = Scope {
    host_pages: 2,
    write: WritePolicy::Through,
    prompt_tokens: 2,
    generates: 0,
    is_warm: false,
    ..READS
};

/// Write-back: both prompts do not fit on the device together, and pages are saved before they leave.
const WRITES_BACK: Scope =
    Scope { host_pages: 3, write: WritePolicy::Back, prompt_tokens: 3, is_warm: false, ..READS };

#[track_caller]
fn expect_whole(scope: Scope) {
    let found = search(scope);
    assert_eq!(found.violation, None, "{scope:?}");
    assert!(found.states >= 500, "{scope:?} has only {} states", found.states);
}

#[test]
fn reads_keep_all_invariants() {
    expect_whole(READS);
    expect_whole(Scope { index: IndexKind::Flat, ..READS });
}

#[test]
fn writes_keep_all_invariants() {
    expect_whole(WRITES);
    expect_whole(Scope { index: IndexKind::Flat, ..WRITES });
}

#[test]
fn write_back_waits_for_its_saves() {
    expect_whole(WRITES_BACK);
    expect_whole(Scope { index: IndexKind::Flat, ..WRITES_BACK });
    expect_whole(Scope { failures: 1, ..WRITES_BACK });
    expect_whole(Scope { aborts: 1, ..WRITES_BACK });
    expect_whole(Scope { ticks: 1, ..WRITES_BACK });
}

#[test]
fn failure_on_one_rank() {
    expect_whole(Scope { failures: 1, ..READS });
}

#[test]
fn abort_at_any_time() {
    expect_whole(Scope { aborts: 1, ..READS });
}

#[test]
fn deadlines_pass_at_any_time() {
    expect_whole(Scope { ticks: 1, ..READS });
}

#[test]
fn search_notices_mutants_of_its_scope() {
    for (mutant, scope) in [
        (Mutant::CountInsteadOfId, READS),
        (Mutant::DropCompletedPages, Scope { failures: 1, ..READS }),
        (Mutant::PublishLoadEarly, READS),
        (Mutant::ForgetJoiners, Scope { aborts: 1, ..READS }),
        (Mutant::UnpinnedBackup, WRITES),
        (Mutant::ReuseUnsaved, WRITES_BACK),
    ] {
        let found = search(Scope { mutant, ..scope });
        assert!(found.violation.is_some(), "{mutant:?} was not noticed in {} states", found.states);
    }
}
