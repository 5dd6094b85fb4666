//! A seeded traffic generator: conversations of several turns that share a system prompt, and agents that
//! continue soon with a few more tokens. It replaces traces that may not be published, and generates traces
//! of any length. Its parameters are chosen so that blocks are reused as soon and as often as in the public
//! traces: `tests/replay.rs` compares the curves.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::trace::TraceRequest;

/// The parameters of generated traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Number of requests.
    pub requests: u64,
    /// Requests per second.
    pub rate: f64,
    /// Average number of turns of a conversation.
    pub turns: u32,
    /// Percentage of conversations of agents, which continue at once.
    pub agents_percent: u32,
    /// Number of different system prompts.
    pub system_prompts: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests: 10_000,
            rate: 4.0,
            turns: 3,
            agents_percent: 30,
            system_prompts: 8,
            page_tokens: 512,
            seed: 1,
        }
    }
}

/// A conversation with further turns.
struct Session {
    tokens: u32,
    pages: Vec<u64>,
    is_agent: bool,
}

/// Number of pages of a system prompt, and of the longest prompt.
const SYSTEM_PAGES: u64 = 2;
const PROMPT_PAGES_MAX: usize = 240;
/// Time until the next turn of people and of agents, in milliseconds.
const PERSON_MS: u64 = 300_000;
const AGENT_MS: u64 = 60_000;
/// Maximum number of pages that a turn of people and of agents adds.
const PERSON_PAGES: u64 = 24;
const AGENT_PAGES: u64 = 8;

/// Generates the requests, in the order of their arrival.
#[must_use]
pub fn generate(traffic: &Traffic) -> Vec<TraceRequest> {
    let traffic = &Traffic { page_tokens: traffic.page_tokens.max(1), ..*traffic };
    let mut rng = ChaCha8Rng::seed_from_u64(traffic.seed);
    let mut below = |end: u64| if end == 0 { 0 } else { rng.next_u64() % end };
    let turns = u64::from(traffic.turns.max(1));
    // Every conversation starts with one request and continues with the others.
    let gap_ms = 1000.0 / traffic.rate.max(1e-6) * turns as f64;
    let mut next_id = traffic.system_prompts * SYSTEM_PAGES;
    let mut due: std::collections::BTreeMap<(u64, u64), Session> = std::collections::BTreeMap::new();
    let mut requests = Vec::new();
    let (mut begins, mut count) = (0.0, 0);
    while (requests.len() as u64) < traffic.requests {
        let is_next_due = due.first_key_value().is_some_and(|((at, _), _)| (*at as f64) < begins);
        let next = if is_next_due { due.pop_first() } else { None };
        let (at, mut session) = match next {
            Some(((at, _), session)) => (at, session),
            None => {
                let system = below(traffic.system_prompts) * SYSTEM_PAGES;
                let pages = if traffic.system_prompts == 0 { 0 } else { SYSTEM_PAGES };
                let at = begins as u64;
                begins += gap_ms * (below(2000) as f64 / 1000.0);
                let is_agent = below(100) < u64::from(traffic.agents_percent);
                let tokens = pages as u32 * traffic.page_tokens;
                (at, Session { tokens, pages: (system..system + pages).collect(), is_agent })
            }
        };
        let most = if session.is_agent { AGENT_PAGES } else { PERSON_PAGES };
        let added = 1 + below(u64::from(traffic.page_tokens) * most) as u32;
        session.tokens += added;
        let generated = 1 + below(800) as u32;
        extend(&mut session, traffic.page_tokens, &mut next_id);
        requests.push(TraceRequest {
            timestamp: at,
            input_length: session.tokens,
            output_length: generated,
            hash_ids: session.pages.clone(),
        });
        session.tokens += generated;
        if below(turns) > 0 && session.pages.len() < PROMPT_PAGES_MAX {
            count += 1;
            let pause = if session.is_agent { AGENT_MS } else { PERSON_MS };
            due.insert((at + pause / 4 + below(pause), count), session);
        }
    }
    requests.sort_by_key(|request| request.timestamp);
    requests
}

/// Adds blocks for all tokens. A partial block gets another id when it is full, because its content is
/// different.
fn extend(session: &mut Session, page_tokens: u32, next_id: &mut u64) {
    let full = session.pages.len().min((session.tokens / page_tokens) as usize);
    session.pages.truncate(full);
    let wanted = session.tokens.div_ceil(page_tokens) as usize;
    while session.pages.len() < wanted {
        session.pages.push(*next_id);
        *next_id += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_trace_of_continued_turns() {
        let traffic = Traffic { requests: 5_000, ..Traffic::default() };
        let trace = generate(&traffic);
        assert_eq!(trace, generate(&traffic));
        assert_ne!(trace, generate(&Traffic { seed: 2, ..traffic }));
        assert_eq!(trace.len(), 5_000);
        assert!(trace.windows(2).all(|pair| pair[0].timestamp <= pair[1].timestamp));
        let blocks = |request: &TraceRequest| u64::from(request.input_length).div_ceil(512);
        assert!(trace.iter().all(|request| request.hash_ids.len() as u64 == blocks(request)));
        let all: usize = trace.iter().map(|request| request.hash_ids.len()).sum();
        let mut ids: Vec<_> = trace.iter().flat_map(|request| request.hash_ids.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() * 2 < all, "{} of {all} blocks are new: turns share little", ids.len());
    }
}
