//! An exhaustive search of a small scope: two requests, four device pages, two ranks, in every order of
//! events.
//!
//! The search is breadth-first over all possible next events, and skips known states. A state consists of the
//! replicated state of the engines (their digest) and, for each rank, the completions it received, its
//! memories and its operations.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use tiffin_kv::mutant::Mutant;
use tiffin_kv::{
    Budgets, Config, Eviction, IndexKind, Input, OpId, PrefetchStart, PrefetchStop, Prompt, ReqId, SpaceId,
    StoreConfig, Submit, WritePolicy,
};
use tiffin_sim_runner::Rng;
use xxhash_rust::xxh3::Xxh3;

use crate::plan::{Faults, Plan};
use crate::world::{Checked, Client, Violation, World};

/// The scope of a search.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The index of the engine.
    pub index: IndexKind,
    /// Pages in host memory.
    pub host_pages: u32,
    /// The write policy.
    pub write: WritePolicy,
    /// Tokens, and so pages, of each prompt.
    pub prompt_tokens: usize,
    /// Tokens that each request generates.
    pub generates: u64,
    /// Whether the store has the prompts from the start.
    pub is_warm: bool,
    /// Operations that may fail on one rank.
    pub failures: u32,
    /// Requests that may be aborted.
    pub aborts: u32,
    /// Number of times that all deadlines may pass.
    pub ticks: u32,
    /// The mutant.
    pub mutant: Mutant,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// Number of different states.
    pub states: usize,
    /// Number of transitions.
    pub steps: usize,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(u64),
    /// An operation succeeds or fails on a rank, and the rank receives the completion.
    CompleteIo(usize, OpId, bool),
    Gather,
    Compute(ReqId),
    Abort(ReqId),
    Tick,
}

/// A world, and the faults that are still available.
#[derive(Clone)]
struct Node {
    world: World,
    prompt_tokens: usize,
    generates: u64,
    submitted: u64,
    failures: u32,
    aborts: u32,
    ticks: u32,
}

/// The prompts. They share their first page.
const PROMPTS: [&[u32]; 2] = [&[0, 0, 0], &[0, 1, 0]];

/// Searches a scope completely.
#[must_use]
pub fn search(scope: Scope) -> Search {
    let mut found = Search { states: 0, steps: 0, violation: None };
    let first = match start(&scope) {
        Ok(first) => first,
        Err(violation) => return Search { violation: Some(violation), ..found },
    };
    let mut seen = BTreeSet::from([key(&first)]);
    let mut next = VecDeque::from([first]);
    while let Some(node) = next.pop_front() {
        found.states += 1;
        for step in steps(&node) {
            found.steps += 1;
            let mut after = node.clone();
            let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(&mut after, step)));
            let violation = match taken {
                Ok(Ok(())) => None,
                Ok(Err(violation)) => Some(violation),
                Err(_) => Some(Violation::new("panic", format!("in {step:?}"))),
            };
            if violation.is_some() {
                return Search { violation, ..found };
            }
            if seen.insert(key(&after)) {
                next.push_back(after);
            }
        }
        if let Err(violation) = check_end(&node) {
            return Search { violation: Some(violation), ..found };
        }
    }
    found
}

fn start(scope: &Scope) -> Checked<Node> {
    let config = Config {
        page_tokens: 1,
        device_pages: 4,
        host_pages: scope.host_pages,
        store: Some(StoreConfig {
            start: PrefetchStart::Missing,
            threshold_pages: 1,
            stop: PrefetchStop::WaitComplete,
        }),
        index: scope.index,
        eviction: Eviction::Lru,
        write: scope.write,
        budgets: Budgets { probes: 2, fetch_pages: 2, save_pages: 2, backup_pages: 1 },
        running_max: 2,
        op_pages_max: 2,
        op_timeout: 10,
        hint_interval: 10,
        cooldown: 0,
        ranks: 2,
        rank: 0,
        events: true,
        mutant: scope.mutant,
    };
    let faults = Faults { abort: 0, retract: 0, rare: 0, stuck: 0, fail: 0, lose_ack: 0, repeat_ack: 0 };
    let plan = Plan {
        config,
        events: 0,
        faults,
        vocabulary: 1,
        prompt_tokens_max: 3,
        subjects: Vec::new(),
        requests_max: 2,
        begins_warm: false,
        cancel: 100,
        is_plain: true,
    };
    let mut world = World::with(plan, Rng::new(0), false)?;
    world.faults_end = true;
    for prompt in PROMPTS.map(|prompt| prompt.get(..scope.prompt_tokens).unwrap_or(prompt)) {
        world.add_prompt(SpaceId(0), prompt, &[])?;
    }
    if scope.is_warm {
        world.fill_store();
    }
    let Scope { prompt_tokens, generates, failures, aborts, ticks, .. } = *scope;
    Ok(Node { world, prompt_tokens, generates, submitted: 0, failures, aborts, ticks })
}

fn steps(node: &Node) -> Vec<Step> {
    let mut steps = Vec::new();
    let world = &node.world;
    if (node.submitted as usize) < PROMPTS.len() {
        steps.push(Step::Submit(node.submitted));
    }
    for (rank_index, rank) in world.ranks.iter().enumerate() {
        for op in rank.executor.jobs.keys() {
            steps.push(Step::CompleteIo(rank_index, *op, true));
            if node.failures > 0 {
                steps.push(Step::CompleteIo(rank_index, *op, false));
            }
        }
    }
    if world.ranks.iter().any(|rank| !rank.engine.agree().0.is_empty()) {
        steps.push(Step::Gather);
    }
    steps.extend(world.running().into_iter().map(Step::Compute));
    if node.aborts > 0 {
        steps.extend(world.clients.keys().map(|id| Step::Abort(*id)));
    }
    if node.ticks > 0 {
        steps.push(Step::Tick);
    }
    steps
}

fn take(node: &mut Node, step: Step) -> Checked {
    take_alone(node, step)?;
    // An operation that gets a cancel hint stops, and its completion is received at once.
    for rank_index in 0..node.world.ranks.len() {
        while node.world.ranks.get(rank_index).is_some_and(|rank| !rank.acks.is_empty()) {
            node.world.deliver(rank_index, 0)?;
        }
    }
    Ok(())
}

fn take_alone(node: &mut Node, step: Step) -> Checked {
    let world = &mut node.world;
    match step {
        Step::Submit(which) => {
            node.submitted += 1;
            let mut tokens = PROMPTS.get(which as usize).copied().unwrap_or_default().to_vec();
            tokens.truncate(node.prompt_tokens);
            let space = SpaceId(0);
            let contents = world.contents(space, &tokens, &[]);
            let media = Vec::new();
            let client = Client {
                space,
                tokens: tokens.clone(),
                media: Vec::new(),
                contents,
                table: None,
                loading: None,
                computed: 0,
                goal: node.generates,
            };
            let request = ReqId(which + 1);
            world.clients.insert(request, client);
            let prompt = Prompt::Tokens { tokens, media };
            world.apply(&Input::Submit(Submit { request, space, prompt, priority: 0, deadline: None }))
        }
        Step::CompleteIo(rank_index, op, succeeds) => {
            if !succeeds {
                node.failures -= 1;
            }
            if let Some(job) =
                world.ranks.get_mut(rank_index).and_then(|rank| rank.executor.jobs.get_mut(&op))
            {
                job.fails_at = (!succeeds).then_some(0);
            }
            while world.ranks.get(rank_index).is_some_and(|rank| rank.executor.jobs.contains_key(&op)) {
                world.step_io(rank_index, op);
            }
            Ok(())
        }
        Step::Gather => world.gather(),
        Step::Compute(id) => world.compute(id),
        Step::Abort(id) => {
            node.aborts -= 1;
            world.apply(&Input::Abort(id))
        }
        Step::Tick => {
            node.ticks -= 1;
            world.now += 10;
            world.apply(&Input::Tick)
        }
    }
}

/// In a state with no event left but a tick, everything must have ended.
fn check_end(node: &Node) -> Checked {
    let waits = steps(node).into_iter().any(|step| !matches!(step, Step::Tick));
    if waits { Ok(()) } else { node.world.check_finished() }
}

fn key(node: &Node) -> u128 {
    let mut hasher = Xxh3::new();
    let world = &node.world;
    (node.submitted, node.failures, node.aborts, node.ticks, world.now).hash(&mut hasher);
    for rank in &world.ranks {
        rank.engine.digest().hash(&mut hasher);
        hasher.update(format!("{:?} {:?}", rank.engine.agree(), rank.acks).as_bytes());
        rank.executor.device.hash(&mut hasher);
        rank.executor.host.hash(&mut hasher);
        rank.executor.jobs.keys().for_each(|op| op.hash(&mut hasher));
    }
    for (id, client) in &world.clients {
        (id, client.computed, client.goal, &client.table).hash(&mut hasher);
    }
    for (key, (_, content)) in &world.store {
        (key.0, content).hash(&mut hasher);
    }
    hasher.write_u8(0);
    hasher.digest128()
}
