//! What an engine is given once: sizes, budgets and policies. Defaults are in [`crate::settings`].

use crate::mutant::Mutant;
use crate::policy::{Eviction, PrefetchStart, PrefetchStop, WritePolicy};

/// The most ranks that decide together.
pub const RANKS_MAX: u32 = 1024;
/// The most pages of a tier: a page id is a 32-bit number in every engine that we know.
pub const PAGES_MAX: u32 = i32::MAX as u32;
/// The most tokens of a page.
pub const PAGE_TOKENS_MAX: u32 = 1 << 16;

/// The index that an engine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexKind {
    /// A radix tree: copies leave a tier leaf first.
    #[default]
    Radix,
    /// One table of hashes: any copy may leave, and a match ends at the first that is missing.
    Flat,
}

/// How the store behind the host is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The quantity that is compared with the threshold.
    pub start: PrefetchStart,
    /// The threshold in pages: see [`PrefetchStart`].
    pub threshold_pages: u32,
    /// When a request stops waiting for the store.
    pub stop: PrefetchStop,
}

/// Pages, or probes, that may be in flight in each lane (L8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Probes of the store.
    pub probes: u32,
    /// Pages of fetches, including abandoned ones.
    pub fetch_pages: u32,
    /// Pages from device to host.
    pub save_pages: u32,
    /// Pages from host to store.
    pub backup_pages: u32,
}

/// The configuration of an engine. The same on every rank but for [`Config::rank`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Pages on the device.
    pub device_pages: u32,
    /// Pages in host memory; with none there is no second tier and no way to the store.
    pub host_pages: u32,
    /// The store, if there is one.
    pub store: Option<StoreConfig>,
    /// How pages are looked up.
    pub index: IndexKind,
    /// Which copy leaves a tier first.
    pub eviction: Eviction,
    /// Which pages go down the hierarchy, and when.
    pub write: WritePolicy,
    /// The lanes.
    pub budgets: Budgets,
    /// Requests that may be on the device at once.
    pub running_max: u32,
    /// Pages of one operation.
    pub op_pages_max: u32,
    /// Ticks after which an operation is abandoned.
    pub op_timeout: u64,
    /// Ticks between two hints to stop an operation.
    pub hint_interval: u64,
    /// Ticks without probes after the store failed or missed a deadline; 0 for none.
    pub cooldown: u64,
    /// Number of ranks that decide together.
    pub ranks: u32,
    /// The rank of this engine. No decision depends on it (C3).
    pub rank: u32,
    /// Report every copy that becomes available or is removed.
    pub events: bool,
    /// The mutant, in tests.
    pub mutant: Mutant,
}

/// Why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A page has no tokens, or too many.
    #[error("a page has {0} tokens\n\nhint: 1 to {PAGE_TOKENS_MAX}; 16 to 64 are usual")]
    PageTokens(u32),
    /// The device has no pages, or too many.
    #[error("the device has {0} pages\n\nhint: 1 to {PAGES_MAX}")]
    DevicePages(u32),
    /// The host has too many pages.
    #[error("the host has {0} pages\n\nhint: at most {PAGES_MAX}, and 0 for none")]
    HostPages(u32),
    /// A store needs host pages.
    #[error("there is a store and no host page\n\nhint: give the host some pages, or leave the store out")]
    StoreWithoutHost,
    /// A limit is zero, so that nothing could run.
    #[error("`{0}` is 0\n\nhint: at least 1")]
    Zero(&'static str),
    /// The rank does not exist.
    #[error("rank {0} of {1}\n\nhint: ranks count from 0, and there are 1 to {RANKS_MAX}")]
    Rank(u32, u32),
}

impl Config {
    /// Number of cached pages that a request of this length may use: one token is always computed (K5).
    pub(crate) fn usable_pages(&self, tokens: u32) -> u32 {
        let left = self.mutant.tokens_left_to_compute();
        tokens.saturating_sub(left) / self.page_tokens
    }

    /// Number of pages of a request of this length.
    pub(crate) fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=PAGE_TOKENS_MAX).contains(&self.page_tokens) {
            return Err(ConfigError::PageTokens(self.page_tokens));
        }
        if !(1..=PAGES_MAX).contains(&self.device_pages) {
            return Err(ConfigError::DevicePages(self.device_pages));
        }
        if self.host_pages > PAGES_MAX {
            return Err(ConfigError::HostPages(self.host_pages));
        }
        if self.store.is_some() && self.host_pages == 0 {
            return Err(ConfigError::StoreWithoutHost);
        }
        if self.ranks == 0 || self.ranks > RANKS_MAX || self.rank >= self.ranks {
            return Err(ConfigError::Rank(self.rank, self.ranks));
        }
        let positive = [
            ("running_max", u64::from(self.running_max)),
            ("op_pages_max", u64::from(self.op_pages_max)),
            ("op_timeout", self.op_timeout),
            ("hint_interval", self.hint_interval),
        ];
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(ConfigError::Zero(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_config_is_refused_with_a_hint() {
        let good = Config::default();
        assert_eq!(good.validate(), Ok(()));
        for (bad, error) in [
            (Config { page_tokens: 0, ..good }, ConfigError::PageTokens(0)),
            (Config { device_pages: 0, ..good }, ConfigError::DevicePages(0)),
            (Config { host_pages: u32::MAX, ..good }, ConfigError::HostPages(u32::MAX)),
            (Config { host_pages: 0, ..good }, ConfigError::StoreWithoutHost),
            (Config { rank: 2, ranks: 2, ..good }, ConfigError::Rank(2, 2)),
            (Config { op_pages_max: 0, ..good }, ConfigError::Zero("op_pages_max")),
        ] {
            assert_eq!(bad.validate(), Err(error));
            assert!(error.to_string().contains("\n\nhint: "), "{error}");
        }
    }
}
