//! The speed of the machine on which a trace is replayed.
//!
//! Each edge of the hierarchy is one link: pages are sent one after the other at its bandwidth, and each
//! operation adds its latency. Prompts are computed one after the other, as on a full device; tokens are
//! generated in parallel, for all requests at once.

use serde::{Deserialize, Serialize};

/// An edge between two tiers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Latency of every operation, in microseconds.
    pub latency_us: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

impl Link {
    /// How long these bytes occupy the link, in microseconds.
    #[must_use]
    pub fn busy_us(&self, bytes: u64) -> u64 {
        let micros = u128::from(bytes) * 1_000_000 / u128::from(self.bytes_per_second.max(1));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }
}

/// Speeds and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Store to host.
    pub fetch: Link,
    /// Host to device.
    pub load: Link,
    /// Device to host.
    pub save: Link,
    /// Host to store.
    pub backup: Link,
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_second: u64,
    /// Duration of a generated token, in microseconds.
    pub decode_us: u64,
}

impl Default for Machine {
    /// Eight accelerators that serve a model of some 70 billion parameters: pages of 512 tokens as in
    /// Mooncake's traces, PCIe to the host, a network of 100 Gbit/s to the store.
    fn default() -> Self {
        let link =
            |latency_us, gigabytes: u64| Link { latency_us, bytes_per_second: gigabytes * 1_000_000_000 };
        Self {
            page_tokens: 512,
            page_bytes: 34 << 20,
            fetch: link(500, 12),
            load: link(20, 50),
            save: link(20, 50),
            backup: link(500, 12),
            prefill_tokens_per_second: 40_000,
            decode_us: 20_000,
        }
    }
}
