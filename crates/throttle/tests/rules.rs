//! Tests of each rule, and of all rules after every step of a seeded run, which notices every mutant.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use std::collections::BTreeMap;

use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use tiffin_throttle::{Config, End, Mutant, Throttle, Token, Turns, Verdict};

const CONFIG: Config = Config {
    keys_max: 3,
    bytes_max: 100,
    done_ttl: 30,
    failed_ttl: 5,
    cooldown: 7,
    deadline: 50,
    mutant: Mutant::None,
};

fn acquired(verdict: Verdict) -> Token {
    match verdict {
        Verdict::Acquired(token) => token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_caller_works_and_the_others_get_the_reason() {
    let mut throttle = Throttle::new(CONFIG);
    let token = acquired(throttle.reserve(0, &1, 10));
    assert_eq!(throttle.reserve(1, &1, 10), Verdict::Running);
    assert!(throttle.finish(2, token, End::Done));
    assert_eq!(throttle.reserve(31, &1, 10), Verdict::Done);
    acquired(throttle.reserve(32, &1, 10));
}

#[test]
fn failed_keys_expire_sooner_and_cancelled_ones_at_once() {
    let mut throttle = Throttle::new(CONFIG);
    let token = acquired(throttle.reserve(0, &1, 10));
    assert!(throttle.finish(0, token, End::Failed));
    assert_eq!(throttle.reserve(4, &1, 10), Verdict::Failed);
    let token = acquired(throttle.reserve(5, &1, 10));
    assert!(throttle.finish(5, token, End::Cancelled));
    acquired(throttle.reserve(5, &1, 10));
}

#[test]
fn keys_and_bytes_in_flight_are_bounded() {
    let mut throttle = Throttle::new(CONFIG);
    let large = acquired(throttle.reserve(0, &0, 1000));
    assert_eq!(throttle.reserve(0, &1, 1), Verdict::Busy);
    assert!(throttle.finish(0, large, End::Cancelled));
    for key in 1..=3 {
        acquired(throttle.reserve(0, &key, 30));
    }
    assert_eq!(throttle.reserve(0, &4, 1), Verdict::Busy);
}

#[test]
fn pressure_affects_one_pool_for_a_while() {
    let mut throttle = Throttle::<u8>::new(CONFIG);
    throttle.press(0, 1);
    assert_eq!([throttle.is_cooling(6, 1), throttle.is_cooling(6, 2)], [true, false]);
    assert!(!throttle.is_cooling(7, 1));
    acquired(throttle.reserve(6, &1, 10));
}

#[test]
fn used_keys_may_be_prefetched_again_but_not_failed_ones() {
    let mut throttle = Throttle::new(CONFIG);
    for (key, end) in [(1, End::Done), (2, End::Failed)] {
        let token = acquired(throttle.reserve(0, &key, 10));
        assert!(throttle.finish(0, token, end));
        throttle.forget_done(&key);
    }
    assert_eq!(throttle.reserve(1, &2, 10), Verdict::Failed);
    acquired(throttle.reserve(1, &1, 10));
    throttle.forget_done(&1);
    assert_eq!(throttle.reserve(1, &1, 10), Verdict::Running, "running work is not forgotten");
    throttle.check().unwrap();
}

#[test]
fn late_work_fails_once_and_its_token_has_no_effect() {
    let mut throttle = Throttle::new(CONFIG);
    let token = acquired(throttle.reserve(0, &1, 10));
    assert_eq!(throttle.next_late(), Some(50));
    assert_eq!(throttle.take_late(49), Vec::<i32>::new());
    assert_eq!(throttle.reserve(49, &1, 10), Verdict::Running, "running work does not expire");
    assert_eq!(throttle.take_late(50), vec![1]);
    assert!(!throttle.finish(51, token, End::Done));
    assert_eq!(throttle.reserve(51, &1, 10), Verdict::Failed);
}

/// The expected state of each key, independent of the throttle.
#[derive(Default)]
struct Model {
    running: BTreeMap<u8, (Token, u64)>,
    ended: BTreeMap<u8, (bool, u64)>,
    cool_until: [u64; 2],
}

impl Model {
    fn allows(&self, now: u64, key: u8, verdict: &Verdict) -> bool {
        let ended = self.ended.get(&key).filter(|(_, until)| now < *until);
        match verdict {
            Verdict::Running => self.running.contains_key(&key),
            _ if self.running.contains_key(&key) => false,
            Verdict::Failed => ended.is_some_and(|it| it.0),
            Verdict::Done => ended.is_some_and(|it| !it.0),
            _ if ended.is_some() => false,
            Verdict::Acquired(_) => true,
            Verdict::Busy => !self.running.is_empty(),
        }
    }
}

/// Thousands of steps from one seed. `Err` is the first violated rule.
fn run(seed: u64, mutant: Mutant) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut throttle = Throttle::new(Config { mutant, ..CONFIG });
    let (mut model, mut now) = (Model::default(), 0);
    for step in 0..4000 {
        let problem = |what: String| Err(format!("seed {seed}, step {step}: {what}"));
        now += rng.random_range(0..4);
        for key in throttle.take_late(now) {
            let Some((_, since)) = model.running.remove(&key) else {
                return problem(format!("{key} is late and does not run"));
            };
            if now < since + CONFIG.deadline {
                return problem(format!("{key} is late too early"));
            }
            model.ended.insert(key, (true, now + CONFIG.failed_ttl));
        }
        let key = rng.random_range(0..6);
        match rng.random_range(0..8) {
            0 => {
                let pool = rng.random_range(0..2);
                throttle.press(now, pool as u32);
                if let Some(until) = model.cool_until.get_mut(pool) {
                    *until = now + CONFIG.cooldown;
                }
            }
            1..=2 => {
                let Some((token, _)) = model.running.remove(&key) else { continue };
                let end = match rng.random_range(0..4) {
                    0 => End::Resident,
                    1 => End::Done,
                    2 => End::Failed,
                    _ => End::Cancelled,
                };
                if !throttle.finish(now, token, end) {
                    return problem(format!("{key} could not be ended"));
                }
                match end {
                    End::Cancelled => _ = model.ended.remove(&key),
                    End::Failed => _ = model.ended.insert(key, (true, now + CONFIG.failed_ttl)),
                    _ => _ = model.ended.insert(key, (false, now + CONFIG.done_ttl)),
                }
            }
            _ => {
                let verdict = throttle.reserve(now, &key, rng.random_range(1..60));
                if !model.allows(now, key, &verdict) {
                    return problem(format!("{key}: {verdict:?}"));
                }
                if let Verdict::Acquired(token) = verdict {
                    model.running.insert(key, (token, now));
                }
            }
        }
        for (pool, until) in model.cool_until.iter().enumerate() {
            if throttle.is_cooling(now, pool as u32) != (now < *until) {
                return problem(format!("wrong cooldown of pool {pool}"));
            }
        }
        throttle.check().or_else(problem)?;
    }
    Ok(())
}

#[test]
fn rules_hold_after_every_step() {
    for seed in 0..200 {
        run(seed, Mutant::None).unwrap();
    }
}

#[test]
fn every_mutant_is_noticed() {
    for mutant in Mutant::ALL {
        let noticed = (0..50).find_map(|seed| run(seed, *mutant).err());
        assert!(noticed.is_some(), "{mutant:?} was not noticed");
    }
}

/// What was served of each flow when the first one has got `wanted` units, in groups: `(group, flow)`, how
/// many requests it keeps waiting, and their cost.
fn shares(mutant: Mutant, flows: &[((u64, u64), usize, u64)], wanted: u64) -> Vec<u64> {
    let mut turns = Turns::new(mutant);
    for (at, (who, count, cost)) in flows.iter().enumerate().rev() {
        (0..*count).for_each(|_| turns.push(*who, *cost, at));
    }
    let mut served = vec![0; flows.len()];
    while served[0] < wanted {
        let at = turns.pop().unwrap();
        let (who, _, cost) = flows[at];
        served[at] += cost;
        turns.push(who, cost, at);
    }
    served
}

/// One request at a time beside a thousand of another client.
fn beside_a_loop(mutant: Mutant) -> Vec<u64> {
    shares(mutant, &[((1, 1), 1, 1), ((1, 2), 1000, 1)], 100)
}

/// Single keys beside batches of a hundred.
fn beside_batches(mutant: Mutant) -> Vec<u64> {
    shares(mutant, &[((1, 1), 1, 1), ((1, 2), 8, 100)], 1000)
}

/// One client beside eight of another namespace.
fn beside_a_crowd(mutant: Mutant) -> Vec<u64> {
    let crowd = (1..=8).map(|flow| ((2, flow), 4, 1));
    shares(mutant, &[((1, 1), 1, 1)].into_iter().chain(crowd).collect::<Vec<_>>(), 800)
}

#[test]
fn flows_and_groups_take_turns() {
    let served = beside_a_loop(Mutant::None);
    assert!(served[1] <= served[0] + 1, "{served:?}");
    let served = beside_batches(Mutant::None);
    assert!((900..=1200).contains(&served[1]), "{served:?}");
    let served = beside_a_crowd(Mutant::None);
    assert!(served[1..].iter().all(|it| (99..=101).contains(it)), "{served:?}");
}

#[test]
fn requests_of_a_flow_are_served_in_order_and_it_is_forgotten() {
    let mut turns = Turns::new(Mutant::None);
    (0..8).for_each(|at| turns.push((1, 1), 5, at));
    turns.push((1, 2), 1, 100);
    assert_eq!(turns.len(), 9);
    let served: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
    assert_eq!(served.iter().filter(|it| **it < 100).collect::<Vec<_>>(), [&0, &1, &2, &3, &4, &5, &6, &7]);
    assert!(turns.is_empty() && turns.pop().is_none());
    for flow in 0..100_000 {
        turns.push((flow, flow), 1 + flow, 0);
        turns.pop();
    }
    assert!(turns.flow_count() < 5000, "{}", turns.flow_count());
}

#[test]
fn idle_flow_earns_nothing() {
    let mut turns = Turns::new(Mutant::None);
    for _ in 0..100 {
        turns.push((1, 1), 1, 1);
        turns.pop();
    }
    (0..10).for_each(|_| turns.push((1, 1), 1, 1));
    (0..10).for_each(|_| turns.push((1, 2), 1, 2));
    let first: Vec<_> = (0..6).filter_map(|_| turns.pop()).collect();
    assert!(first.contains(&1) && first.contains(&2), "{first:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_of_turns_are_noticed() {
    assert_eq!(Mutant::OF_TURNS.len(), 3);
    assert!(beside_a_loop(Mutant::ServeInOrder)[1] > 1000);
    assert!(beside_batches(Mutant::FreeBatches)[1] > 50_000);
    let crowd = beside_a_crowd(Mutant::IgnoreGroups);
    assert!(crowd[1..].iter().sum::<u64>() > 1600, "{crowd:?}");
}
