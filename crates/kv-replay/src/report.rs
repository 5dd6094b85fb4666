//! The report of a replay.

use serde::Serialize;

/// Number of points of the curve of times to first token.
const CURVE_POINTS: usize = 100;

/// Tokens of prompts, by where their pages were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// All tokens of the prompts.
    pub asked_tokens: u64,
    /// Found on the device.
    pub device_tokens: u64,
    /// Found in host memory.
    pub host_tokens: u64,
    /// Found in the store and fetched in time.
    pub store_tokens: u64,
    /// Requests with at least one cached page.
    pub requests: u64,
}

impl Hits {
    /// The fraction of tokens that need not be computed; none if there were no tokens.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        fraction(self.device_tokens + self.host_tokens + self.store_tokens, self.asked_tokens)
    }
}

/// The fraction `some / all`; none if `all` is zero.
fn fraction(some: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| some as f64 / all as f64)
}

/// A distribution, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    /// The distribution of times in microseconds, which are sorted; none without times.
    pub(crate) fn of(micros: &[u64]) -> Option<Self> {
        if micros.is_empty() {
            return None;
        }
        let seconds = |micros: u64| micros as f64 / 1e6;
        let at = |fraction: f64| {
            let index = ((micros.len() as f64 * fraction) as usize).min(micros.len().saturating_sub(1));
            seconds(micros.get(index).copied().unwrap_or_default())
        };
        let sum: u128 = micros.iter().map(|it| u128::from(*it)).sum();
        let mean = sum as f64 / micros.len() as f64 / 1e6;
        Some(Self { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) })
    }
}

/// The results of prefetches, in pages unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prefetch {
    /// Probes of the store.
    pub probes: u64,
    /// Pages that were fetched.
    pub fetched: u64,
    /// Fetched pages that a request used.
    pub used: u64,
    /// Fetched pages that were evicted before a request used them.
    pub wasted: u64,
    /// Times that a request joined the fetch of another request.
    pub joined: u64,
    /// Requests whose pages of the store had all arrived when they ran.
    pub in_time_requests: u64,
    /// Requests that stopped waiting before all pages had arrived.
    pub late_requests: u64,
}

impl Prefetch {
    /// The fraction of fetched pages that were used; none if nothing was fetched.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        fraction(self.used, self.fetched)
    }

    /// The fraction of requests with pages in the store for which all of them arrived in time; none if there
    /// was no such request.
    #[must_use]
    pub fn timeliness(&self) -> Option<f64> {
        fraction(self.in_time_requests, self.in_time_requests + self.late_requests)
    }
}

/// Bytes that were moved over each edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Edges {
    /// Store to host.
    pub fetch_bytes: u64,
    /// Host to device.
    pub load_bytes: u64,
    /// Device to host.
    pub save_bytes: u64,
    /// Host to store.
    pub backup_bytes: u64,
}

/// The tiers below the device that a policy uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tiers {
    /// Host memory.
    pub host: bool,
    /// The store.
    pub store: bool,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The name of the policy.
    pub policy: String,
    /// The tiers that the policy uses.
    pub tiers: Tiers,
    /// Requests of the trace.
    pub requests: u64,
    /// Requests whose prompt was computed.
    pub served: u64,
    /// Requests that never fit on the device.
    pub refused: u64,
    /// Number of requests that `hits` and `ttft` cover: those that were served in every compared replay.
    pub compared: u64,
    /// Tokens by the tier in which their pages were found.
    pub hits: Hits,
    /// From a request's arrival until its prompt was computed; none if no request is compared.
    pub ttft: Option<Percentiles>,
    /// The same at every percentile, for a plot: seconds.
    pub ttft_curve: Vec<f64>,
    /// The results of prefetches.
    pub prefetch: Prefetch,
    /// Bytes that were moved.
    pub edges: Edges,
    /// Pages that were computed although the index had a copy by then.
    pub duplicate_pages: u64,
    /// Copies that were evicted from the device, and from the host.
    pub evicted_pages: [u64; 2],
    /// Times that a request was retracted from the device.
    pub retractions: u64,
    /// From the first arrival to the last end, in seconds of the trace.
    pub virtual_seconds: f64,
    /// Steps of the engine.
    pub steps: u64,
    /// How long the replay took, in seconds. The only field that differs from run to run.
    pub wall_seconds: f64,
}

/// The result of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestOutcome {
    /// From its arrival until its prompt was computed, in microseconds; none if it was not served.
    pub(crate) ttft_us: Option<u64>,
    /// Tokens found on the device, in the host, in the store.
    pub(crate) found: [u32; 3],
}

impl Report {
    /// Computes hits and times over these requests, given as prompt lengths and results.
    pub(crate) fn measure(&mut self, requests: impl Iterator<Item = (u32, RequestOutcome)>) {
        let mut times = Vec::new();
        self.hits = Hits::default();
        for (tokens, RequestOutcome { ttft_us, found: [device, host, store] }) in requests {
            times.extend(ttft_us);
            self.hits.asked_tokens += u64::from(tokens);
            self.hits.device_tokens += u64::from(device);
            self.hits.host_tokens += u64::from(host);
            self.hits.store_tokens += u64::from(store);
            self.hits.requests += u64::from(device + host + store > 0);
        }
        times.sort_unstable();
        self.compared = times.len() as u64;
        self.ttft = Percentiles::of(&times);
        let at = |point: usize| times.get(point * times.len().saturating_sub(1) / CURVE_POINTS).copied();
        let curve = (1..=CURVE_POINTS).filter_map(at).map(|micros| micros as f64 / 1e6);
        self.ttft_curve = curve.collect();
    }
}

/// A policy and its baselines, on the same trace and machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The policy.
    pub policy: Report,
    /// The same without probes of the store.
    pub no_prefetch: Report,
    /// A device that holds everything.
    pub infinite: Report,
}
