//! What a replay found.

use serde::Serialize;

/// Tokens of prompts, by where their pages were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// All tokens of all prompts.
    pub asked_tokens: u64,
    /// Found on the device.
    pub device_tokens: u64,
    /// Found in host memory.
    pub host_tokens: u64,
    /// Found in the store and fetched in time.
    pub store_tokens: u64,
    /// Requests for which anything was found.
    pub requests: u64,
}

impl Hits {
    /// The part of all tokens that need not be computed.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let found = self.device_tokens + self.host_tokens + self.store_tokens;
        found as f64 / (self.asked_tokens as f64).max(1.0)
    }
}

/// A distribution, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: f64,
    /// Half of them are shorter.
    pub p50: f64,
    /// Of twenty, nineteen.
    pub p95: f64,
    /// Of a hundred, ninety-nine.
    pub p99: f64,
}

impl Percentiles {
    /// Of times in microseconds, which are sorted here.
    pub(crate) fn of(micros: &mut [u64]) -> Self {
        micros.sort_unstable();
        let seconds = |micros: u64| micros as f64 / 1e6;
        let at = |part: f64| {
            let place = ((micros.len() as f64 * part) as usize).min(micros.len().saturating_sub(1));
            seconds(micros.get(place).copied().unwrap_or_default())
        };
        let sum: u128 = micros.iter().map(|it| u128::from(*it)).sum();
        let mean = sum as f64 / (micros.len() as f64).max(1.0) / 1e6;
        Self { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// What became of prefetches. Pages, unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prefetch {
    /// Questions to the store.
    pub probes: u64,
    /// Pages that came from it.
    pub fetched: u64,
    /// Of these, the ones that a request used.
    pub used: u64,
    /// Those that left before.
    pub wasted: u64,
    /// Times that a request waited for what another one fetched.
    pub joined: u64,
    /// Requests whose promised pages were all there when they ran.
    pub in_time_requests: u64,
    /// Requests that stopped waiting before all had come.
    pub late_requests: u64,
}

impl Prefetch {
    /// The part of what was fetched that was used.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.used as f64 / (self.fetched as f64).max(1.0)
    }

    /// The part of the requests that were promised something for which all of it came in time.
    #[must_use]
    pub fn timeliness(&self) -> f64 {
        let asked = self.in_time_requests + self.late_requests;
        self.in_time_requests as f64 / (asked as f64).max(1.0)
    }
}

/// Bytes that went over each edge.
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

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The name of the policy.
    pub policy: String,
    /// Requests that were served.
    pub requests: u64,
    /// Requests that never fit on the device.
    pub refused: u64,
    /// Where pages were found.
    pub hits: Hits,
    /// From a request's arrival until its prompt was computed.
    pub ttft: Percentiles,
    /// The same at every hundredth, for a plot: seconds.
    pub ttft_curve: Vec<f64>,
    /// What became of prefetches.
    pub prefetch: Prefetch,
    /// What moved.
    pub edges: Edges,
    /// Pages that were computed although a copy was there when they had been.
    pub duplicate_pages: u64,
    /// Copies that left the device, and the host, for others.
    pub evicted_pages: [u64; 2],
    /// Times that a request had to leave the device.
    pub retractions: u64,
    /// From the first arrival to the last end, in seconds of the trace.
    pub virtual_seconds: f64,
    /// Steps of the engine.
    pub steps: u64,
    /// How long the replay took, in seconds. The only field that differs from run to run.
    pub wall_seconds: f64,
}

/// A policy beside what it is measured against, on the same trace and machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The policy.
    pub policy: Report,
    /// The same without asking the store.
    pub no_prefetch: Report,
    /// A device that holds everything.
    pub infinite: Report,
}
