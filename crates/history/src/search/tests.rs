//! Histories that are known to be good or bad, the limits, and a comparison with a search without shortcuts.

use proptest::prelude::*;

use super::*;

const KEEP: Change = Change::Keep;
const CLEAR: Change = Change::Clear;

fn set(value: u64) -> Change {
    Change::Set { value, is_fragile: false }
}

fn fragile(value: u64) -> Change {
    Change::Set { value, is_fragile: true }
}

fn call(begin: u64, end: u64, guard: Guard, change: Change) -> Operation {
    Operation::answered(begin, end, guard, change)
}

fn put(begin: u64, end: u64, value: u64) -> Operation {
    call(begin, end, Guard::Any, set(value))
}

fn get(begin: u64, end: u64, value: u64) -> Operation {
    call(begin, end, Guard::Read(value), KEEP)
}

fn miss(begin: u64, end: u64) -> Operation {
    call(begin, end, Guard::Absent, KEEP)
}

#[track_caller]
fn good(history: &[Operation]) {
    assert_eq!(crate::check(history, Loss::Never), Ok(()));
}

/// The search must end at this call.
#[track_caller]
fn bad(history: &[Operation], at: usize) {
    match crate::check(history, Loss::Never) {
        Err(Rejection::Violation { operation, .. }) => assert_eq!(operation, at),
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_one_after_the_other_have_one_order() {
    good(&[]);
    good(&[miss(0, 1), put(2, 3, 7), get(4, 5, 7), call(6, 7, Guard::Present, CLEAR), miss(8, 9)]);
    bad(&[put(0, 1, 7), miss(2, 3)], 1);
    bad(&[get(0, 1, 7), put(2, 3, 7)], 0);
    bad(&[put(0, 1, 7), put(2, 3, 8), get(4, 5, 7)], 2);
    // A delete that says "absent" while the object exists.
    bad(&[put(0, 1, 7), call(2, 3, Guard::Absent, KEEP), get(4, 5, 7)], 1);
    // A deleted object that comes back.
    bad(&[put(0, 1, 7), call(2, 3, Guard::Present, CLEAR), miss(4, 5), get(6, 7, 7)], 3);
}

#[test]
fn calls_at_the_same_time_may_have_any_order() {
    let (first, second) = (put(0, 10, 1), put(0, 10, 2));
    good(&[first, second, get(11, 12, 1), get(13, 14, 1)]);
    good(&[first, second, get(11, 12, 2)]);
    bad(&[first, second, get(11, 12, 1), get(13, 14, 2)], 3);
    good(&[first, get(1, 2, 1), get(3, 4, 1)]);
    // A reader has seen the new value, a later one the old.
    bad(&[put(0, 1, 1), put(2, 10, 2), get(3, 4, 2), get(5, 6, 1)], 3);
}

#[test]
fn open_call_takes_effect_late_or_never() {
    let lost = Operation::open(2, Guard::Any, set(8));
    good(&[put(0, 1, 7), lost, get(3, 4, 7), get(5, 6, 7)]);
    good(&[put(0, 1, 7), lost, get(3, 4, 7), get(5, 6, 8), get(7, 8, 8)]);
    bad(&[put(0, 1, 7), get(2, 3, 9), lost], 1);
    // Not before it began.
    bad(&[get(0, 1, 8), lost], 0);
    let lost = Operation::open(2, Guard::Any, CLEAR);
    good(&[put(0, 1, 7), lost, get(3, 4, 7), miss(5, 6)]);
    // Once only.
    bad(&[put(0, 1, 7), lost, miss(3, 4), put(5, 6, 8), miss(7, 8)], 4);
}

#[test]
fn conditions_are_part_of_the_outcome() {
    good(&[put(0, 1, 7), call(2, 3, Guard::Is(7), set(8)), get(4, 5, 8)]);
    bad(&[put(0, 1, 7), call(2, 3, Guard::Is(6), set(8))], 1);
    good(&[put(0, 1, 7), call(2, 3, Guard::IsNot(6), KEEP), get(4, 5, 7)]);
    bad(&[put(0, 1, 7), call(2, 3, Guard::IsNot(7), KEEP)], 1);
    bad(&[put(0, 1, 7), call(2, 3, Guard::Absent, set(8))], 1);
    // Two replacements of one value cannot both succeed.
    let both = [call(2, 9, Guard::Is(7), set(8)), call(2, 9, Guard::Is(7), set(9))];
    bad(&[put(0, 1, 7), both[0], both[1]], 1);
    // Chains of open calls, each of which needs the one before.
    let chain = [Operation::open(2, Guard::Is(7), set(8)), Operation::open(2, Guard::Is(8), set(9))];
    good(&[put(0, 1, 7), chain[1], chain[0], get(5, 6, 9)]);
    bad(&[put(0, 1, 7), chain[1], get(5, 6, 9)], 2);
}

#[test]
fn cached_location_may_be_read_until_a_change_is_confirmed() {
    let delete = call(2, 3, Guard::Any, CLEAR);
    bad(&[put(0, 1, 7), delete, miss(4, 5), get(6, 7, 7)], 3);
    let history = [put(0, 1, 7), delete.unconfirmed(), miss(4, 5), get(6, 7, 7), miss(8, 9)];
    good(&history);
    // The delete is repeated, and confirmed.
    let repeated = call(10, 11, Guard::Absent, CLEAR);
    let confirmed = |last| [&history[..], &[repeated, last]].concat();
    good(&confirmed(miss(12, 13)));
    bad(&confirmed(get(12, 13, 7)), 6);
    // A value that was never there is not stale.
    bad(&[put(0, 1, 7), delete.unconfirmed(), get(4, 5, 8)], 2);
}

#[test]
fn only_what_may_be_lost_disappears() {
    let loss = Operation::open(2, Guard::Fragile, CLEAR);
    let fragile = call(0, 1, Guard::Any, fragile(7));
    good(&[fragile, loss, miss(3, 4)]);
    good(&[fragile, loss, get(3, 4, 7)]);
    bad(&[fragile, miss(3, 4)], 1);
    bad(&[put(0, 1, 7), loss, miss(3, 4)], 2);
    // What was lost does not come back.
    bad(&[fragile, loss, miss(3, 4), get(5, 6, 7)], 3);
}

#[test]
fn evicted_object_does_not_come_back() {
    let check = |history: &[Operation]| crate::check(history, Loss::Anytime);
    assert_eq!(check(&[put(0, 1, 7), get(2, 3, 7), miss(4, 5)]), Ok(()));
    assert!(check(&[put(0, 1, 7), miss(2, 3), get(4, 5, 7)]).is_err());
    assert!(check(&[put(0, 1, 7), put(2, 3, 8), get(4, 5, 7)]).is_err());
    assert_eq!(check(&[put(0, 1, 7), call(2, 3, Guard::IsNot(7), KEEP)]), Ok(()));
}

/// The object is deleted by a call without an answer, and not evicted, so its cached location may be read.
#[test]
fn open_delete_before_a_miss_is_not_an_eviction() {
    let delete = Operation::open(0, Guard::Any, CLEAR);
    let history = [delete, put(0, 0, 0), miss(1, 1), call(2, 2, Guard::Present, KEEP)];
    assert_eq!(crate::check(&history, Loss::Anytime), Ok(()));
    assert!(crate::check(&history[1..], Loss::Anytime).is_err());
}

/// Calls one after the other: a put, then reads of it.
fn long(count: usize) -> Vec<Operation> {
    let reads = (1..count as u64).map(|it| get(2 * it, 2 * it + 1, 7));
    std::iter::once(put(0, 1, 7)).chain(reads).collect()
}

#[test]
fn history_at_the_limit_is_checked_and_a_longer_one_is_not() {
    good(&long(OPERATIONS_MAX));
    let longer = crate::check(&long(OPERATIONS_MAX + 1), Loss::Never);
    assert_eq!(longer, Err(Rejection::TooLong { operations: OPERATIONS_MAX + 1 }));
    let text = longer.unwrap_err().to_string();
    assert!(text.contains("20001 calls, of which 20000") && text.contains("hint: "), "{text}");
}

#[test]
fn search_ends_at_the_limit_of_steps() {
    assert_eq!(search(&long(10), Loss::Never, 10), Ok(()));
    let undecided = search(&long(10), Loss::Never, 9);
    assert_eq!(undecided, Err(Rejection::Undecided));
    assert!(undecided.unwrap_err().to_string().contains("hint: "));
}

#[test]
fn many_open_calls_are_decided() {
    let open = (0..200).map(|it| Operation::open(2, Guard::Any, set(100 + it)));
    let deletes = (0..50).map(|_| Operation::open(2, Guard::Any, CLEAR));
    let mut history: Vec<_> = std::iter::once(put(0, 1, 7)).chain(open).chain(deletes).collect();
    history.extend((0..100).map(|it| get(10 + 2 * it, 11 + 2 * it, 100 + it)));
    good(&history);
    history.push(get(1000, 1001, 99));
    bad(&history, history.len() - 1);
}

#[test]
fn open_calls_that_are_alike_are_decided() {
    let deletes = (0..100).map(|_| Operation::open(0, Guard::Any, CLEAR));
    let puts = (0..100).map(|it| Operation::open(0, Guard::Any, set(1000 + it)));
    let mut history: Vec<_> = deletes.chain(puts).collect();
    for it in 0..50 {
        let at = 10 * it;
        // A put that disappears, and an object that appears: each needs an open call.
        history.extend([
            put(at, at + 1, it),
            miss(at + 2, at + 3),
            call(at + 4, at + 5, Guard::Present, KEEP),
        ]);
    }
    good(&history);
    history.push(get(1000, 1001, 5000));
    bad(&history, history.len() - 1);
}

#[test]
fn reads_of_values_that_are_not_confirmed_are_decided() {
    let mut history = Vec::new();
    for it in 0..200 {
        let at = 100 * it;
        let puts = [put(at, at + 50, 2 * it), put(at + 1, at + 51, 2 * it + 1)];
        history.extend(puts.map(Operation::unconfirmed));
        history.extend((0..4).map(|read| get(at + 60 + read, at + 90, 2 * it + read % 2)));
    }
    good(&history);
    history.push(miss(50_000, 50_001));
    bad(&history, history.len() - 1);
}

/// The same without shortcuts: tries every order.
fn try_all(register: &Register, rest: &[Operation], loss: Loss) -> bool {
    if rest.iter().all(|it| it.end.is_none()) {
        return true;
    }
    let horizon = rest.iter().filter_map(|it| it.end).min().unwrap_or(u64::MAX);
    (0..rest.len()).filter(|&at| rest[at].begin <= horizon).any(|at| {
        let others = [&rest[..at], &rest[at + 1..]].concat();
        register.apply(&rest[at], loss).is_some_and(|next| try_all(&next, &others, loss))
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let value = || 0_u64..3;
    let change = (any::<bool>(), value()).prop_map(|(is_fragile, value)| Change::Set { value, is_fragile });
    let call = prop_oneof![
        3 => value().prop_map(|it| (Guard::Read(it), KEEP)),
        2 => Just((Guard::Absent, KEEP)),
        1 => Just((Guard::Present, KEEP)),
        1 => value().prop_map(|it| (Guard::IsNot(it), KEEP)),
        3 => change.clone().prop_map(|it| (Guard::Any, it)),
        1 => change.clone().prop_map(|it| (Guard::Absent, it)),
        1 => (value(), change).prop_map(|(it, change)| (Guard::Is(it), change)),
        1 => Just((Guard::Any, CLEAR)),
        1 => Just((Guard::Present, CLEAR)),
        1 => Just((Guard::Fragile, CLEAR)),
    ];
    (0..12_u64, 0..6_u64, 0..4_u8, any::<bool>(), call).prop_map(
        |(begin, len, open, sure, (guard, change))| {
            let is_open = open == 0 && change != KEEP || guard == Guard::Fragile;
            let end = (!is_open).then_some(begin + len);
            Operation { begin, end, guard, change, is_confirmed: sure && !is_open }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn shortcuts_change_no_verdict(
        history in prop::collection::vec(operation(), 0..7),
        loss in prop_oneof![Just(Loss::Never), Just(Loss::Anytime)],
    ) {
        let expected = try_all(&Register::default(), &history, loss);
        prop_assert_eq!(crate::check(&history, loss).is_ok(), expected);
    }
}
