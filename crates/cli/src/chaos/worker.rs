//! One client process of a chaos run. It calls until its standard input ends, and records every call.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tiffin_client::{ConnectOptions, Deadline};

use super::caller::Caller;
use super::record::{Answer, Call, Class, KeyId, Line, now};
use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::torture::{Rng, pattern};

/// Time limit of a call.
pub(super) const CALL_TIME: Duration = Duration::from_secs(1);
/// Time limit of a connection attempt. Workers are started before a fault begins.
const CONNECT_TIME: Duration = Duration::from_secs(20);
/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum size of a value: small ones travel in the commit, large ones through the data socket.
const VALUE_BYTES_MAX: usize = 96 << 10;
/// Maximum size of a value that may be evicted: many of them do not fit into memory.
const PLAIN_BYTES_MAX: usize = 1 << 20;

/// One process of a chaos run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Worker {
    #[arg(long)]
    pub(super) index: u64,
    /// Number of restarts.
    #[arg(long)]
    pub(super) restarts: u64,
    #[arg(long)]
    pub(super) round: u64,
    /// Number of keys of each class.
    #[arg(long)]
    pub(super) keys: u64,
    #[arg(long)]
    pub(super) seed: u64,
    #[arg(long)]
    pub(super) address: String,
    #[arg(long)]
    pub(super) namespace: String,
    /// As from another host.
    #[arg(long)]
    pub(super) far: bool,
    /// Also puts that replace one generation only.
    #[arg(long)]
    pub(super) conditional: bool,
    /// For tests of the command: records an answer that no correct store gives.
    #[arg(long)]
    pub(super) mutant: bool,
}

/// Works until standard input ends.
pub(crate) async fn run(worker: Worker, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    // The parent closes our input, or dies; both end the read.
    tokio::task::spawn_blocking(move || {
        let _any = std::io::stdin().read(&mut [0]);
        asked.store(true, Ordering::Relaxed);
    });
    let token = context.common.token().map_err(|error| Failure::new("config", error))?;
    let options = ConnectOptions {
        token,
        namespace: worker.namespace.clone(),
        label: format!("client {} of a chaos run", worker.index),
        shared_memory: !worker.far,
        connect_time: CONNECT_TIME,
        ..ConnectOptions::new(worker.address.clone())
    };
    let connected = Caller::connect(options, CALL_TIME).await;
    let mut caller = connected.map_err(|error| Failure::new("unreachable", error))?;
    console.value(&Line::Ready)?;
    let mut rng = Rng::new(worker.seed ^ worker.round << 40 ^ worker.index << 20 ^ worker.restarts << 10);
    let mut last = None;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let (key, what, len) = choose(&worker, &caller, &mut rng, number, last);
        console.value(&Line::Begin { call: number, at: now(), key, what })?;
        let mut answer = caller.call(key, what, len).await?;
        if worker.mutant && matches!(answer, Answer::Value(_)) {
            answer = Answer::Absent;
        }
        last = match answer {
            Answer::Value(value) => Some((key, value)),
            _ => None,
        };
        console.value(&Line::End { call: number, at: now(), answer })?;
        number += 1;
        // Many short calls would only make the histories long.
        tokio::time::sleep(PAUSE).await;
    }
    let _ignored = caller.client.close(Deadline::after(CALL_TIME)).await;
    Ok(STATUS_OK)
}

/// The next call. After a read, the value that was read may be replaced or acknowledged.
fn choose(
    worker: &Worker,
    caller: &Caller,
    rng: &mut Rng,
    number: u64,
    last: Option<(KeyId, u64)>,
) -> (KeyId, Call, usize) {
    // Unique in the run: which client, which of its processes, which call.
    let value = worker.index << 56 | (worker.restarts & 0xff) << 48 | number;
    let class = KeyId::CLASSES.get(rng.below(4) as usize).copied().unwrap_or(Class::Pair);
    let key = KeyId::new(worker.round, class, rng.below(worker.keys));
    let most = if class == Class::Plain { PLAIN_BYTES_MAX } else { VALUE_BYTES_MAX };
    let len = rng.length(pattern::HEAD_BYTES, most);
    if let Some((key, expected)) = last.filter(|(_, value)| caller.knows(*value))
        && rng.chance(1, 3)
    {
        let what = match key.class() {
            Class::Sample => Call::Ack { expected },
            _ if worker.conditional => Call::Swap { expected, value },
            _ => Call::Put { value },
        };
        return (key, what, len.min(VALUE_BYTES_MAX));
    }
    let what = match rng.below(20) {
        0..=9 => Call::Get,
        10..=14 => Call::Put { value },
        15 => Call::Create { value },
        16 => Call::Exists,
        _ => Call::Delete,
    };
    (key, what, len)
}
