//! The plan of a seed: the configuration of the engine, and the rates of faults.

use tiffin_kv::mutant::Mutant;
use tiffin_kv::{
    Budgets, Config, Eviction, IndexKind, Namespace, PrefetchStart, PrefetchStop, StoreConfig, WritePolicy,
};
use tiffin_sim_runner::Rng;

/// Events of most seeds, and of one in [`LONG_EVERY`].
const EVENTS: u64 = 150;
const EVENTS_LONG: u64 = 2500;
const LONG_EVERY: u64 = 100;

/// Rates of faults, in percent of events or operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) abort: u64,
    pub(crate) retract: u64,
    pub(crate) rare: u64,
    pub(crate) stuck: u64,
    pub(crate) fail: u64,
    pub(crate) lose_ack: u64,
    pub(crate) repeat_ack: u64,
}

/// The plan of a seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) events: u64,
    pub(crate) faults: Faults,
    /// Number of different tokens: with fewer of them more prefixes are equal.
    pub(crate) vocabulary: u64,
    pub(crate) prompt_tokens_max: u64,
    /// Prompts that requests repeat.
    pub(crate) subjects: Vec<Vec<u32>>,
    pub(crate) requests_max: usize,
    /// Whether the store has those prompts from the start, as after a restart.
    pub(crate) begins_warm: bool,
    /// Probability that an operation stops after a cancel hint, in percent.
    pub(crate) cancel: u64,
    /// Whole prompts are computed in one pass, without random choices.
    pub(crate) is_plain: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64, rng: &mut Rng, mutant: Mutant) -> Self {
        let page_tokens = rng.between(1, 3) as u32;
        let device_pages = rng.between(5, 11) as u32;
        let pick = |rng: &mut Rng| match rng.below(3) {
            0 => Eviction::Lru,
            1 => Eviction::S3Fifo,
            _ => Eviction::CostAware { base: 3, per_position: 1 },
        };
        let write = match rng.below(4) {
            0 => WritePolicy::Selective { hits: 1 },
            1 => WritePolicy::Back,
            _ => WritePolicy::Through,
        };
        let stop = match rng.below(4) {
            0 => PrefetchStop::BestEffort,
            1 => PrefetchStop::WaitComplete,
            _ => PrefetchStop::Timeout { base: rng.between(5, 60), per_page: 3, most: 80 },
        };
        let start = start_of(seed);
        let budget = |rng: &mut Rng| rng.between(1, 8) as u32;
        let budgets = Budgets {
            probes: rng.between(1, 4) as u32,
            fetch_pages: budget(rng),
            save_pages: budget(rng),
            backup_pages: budget(rng),
        };
        let config = Config {
            page_tokens,
            device_pages,
            host_pages: rng.between(3, 11) as u32,
            store: (!rng.percent(5)).then_some(StoreConfig {
                start,
                threshold_pages: rng.between(1, 2) as u32,
                stop,
            }),
            index: if rng.percent(60) { IndexKind::Radix } else { IndexKind::Flat },
            eviction: pick(rng),
            write,
            budgets,
            running_max: rng.between(1, 4) as u32,
            op_pages_max: rng.between(1, 5) as u32,
            op_timeout: rng.between(20, 60),
            hint_interval: rng.between(5, 15),
            // Derived from the seed and not drawn, so that existing seeds keep their runs.
            cooldown: if seed % 8 == 7 { 10 } else { 0 },
            ranks: rng.pick(&[1, 1, 2, 2, 3]).copied().unwrap_or(1),
            rank: 0,
            events: true,
            mutant,
        };
        let faults = Faults::draw(rng);
        let long = seed % LONG_EVERY == LONG_EVERY - 1;
        let vocabulary = rng.between(1, 3);
        let prompt_tokens_max = u64::from(page_tokens) * rng.between(2, 6);
        let subjects = (0..rng.between(1, 5))
            .map(|_| (0..prompt_tokens_max).map(|_| rng.below(vocabulary) as u32).collect())
            .collect();
        Self {
            config,
            events: if long { EVENTS_LONG } else { EVENTS },
            faults,
            vocabulary,
            prompt_tokens_max,
            subjects,
            requests_max: rng.between(2, 7) as usize,
            begins_warm: rng.percent(40),
            cancel: 60,
            is_plain: false,
        }
    }
}

impl Faults {
    /// Few, some or many faults.
    fn draw(rng: &mut Rng) -> Self {
        let level = rng.below(3);
        Self {
            abort: [1, 2, 5].get(level as usize).copied().unwrap_or_default(),
            retract: 1 + level,
            rare: [0, 1, 4].get(level as usize).copied().unwrap_or_default(),
            stuck: level * 4,
            fail: level * 5,
            lose_ack: level * 4,
            repeat_ack: level * 5,
        }
    }
}

/// The namespaces of a seed: so similar that keys without framing would be equal.
pub(crate) fn namespaces() -> [Namespace; 2] {
    let make = |model: &str, revision: &str| Namespace {
        model: model.to_owned(),
        revision: revision.to_owned(),
        weight_version: 1,
        ..Namespace::default()
    };
    [make("ab", "c"), make("a", "bc")]
}

/// Derived from the seed and not drawn, so that existing seeds keep their runs.
fn start_of(seed: u64) -> PrefetchStart {
    if seed % 4 == 3 { PrefetchStart::Hits } else { PrefetchStart::Missing }
}
