//! What an engine is given once: sizes, budgets and policies.

use crate::policy::{Eviction, PrefetchStop, WritePolicy};
use crate::sabotage::Sabotage;

/// The most ranks that decide together.
pub const RANKS_MAX: u32 = 1024;
/// The most pages of a tier: a page id is a 32-bit number in every engine that we know.
pub const PAGES_MAX: u32 = i32::MAX as u32;
/// The most tokens of a page.
pub const PAGE_TOKENS_MAX: u32 = 1 << 16;

/// Which index an engine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexKind {
    /// A radix tree: copies leave a tier leaf first.
    #[default]
    Radix,
    /// One table of hashes: any copy may leave, and a match ends at the first that is missing.
    Flat,
}

/// The store behind the host, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Pages that must be missing here before the store is asked.
    pub threshold_pages: u32,
    /// When a request stops waiting for it.
    pub stop: PrefetchStop,
}

/// How many pages, or questions, may be under way in each lane (L8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Questions to the store.
    pub probes: u32,
    /// Pages that fetches hold, those that nobody waits for any more included.
    pub fetch_pages: u32,
    /// Pages on their way from device to host.
    pub save_pages: u32,
    /// Pages on their way from host to store.
    pub backup_pages: u32,
}

/// Everything that an engine must know. The same on every rank but for [`Config::rank`].
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
    /// What leaves a tier first.
    pub eviction: Eviction,
    /// What goes down the hierarchy, and when.
    pub write: WritePolicy,
    /// The lanes.
    pub budgets: Budgets,
    /// Requests that may be on the device at once.
    pub running_max: u32,
    /// Pages of one operation.
    pub op_pages_max: u32,
    /// How long an operation may take before nobody waits for it.
    pub op_patience: u64,
    /// How long after a hint that was not answered the next one is given.
    pub hint_patience: u64,
    /// How long nobody asks the store after it failed, or let somebody wait past a deadline; 0 for not at
    /// all.
    pub cooldown: u64,
    /// How many ranks decide together.
    pub ranks: u32,
    /// Which of them this is. Nothing is decided by it (C3).
    pub rank: u32,
    /// Tell of every copy that can be matched from now on, or no longer.
    pub events: bool,
    /// Which rule is broken, in tests.
    pub sabotage: Sabotage,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            page_tokens: 64,
            device_pages: 1024,
            host_pages: 4096,
            store: Some(StoreConfig { threshold_pages: 4, stop: PrefetchStop::default() }),
            index: IndexKind::Radix,
            eviction: Eviction::Lru,
            write: WritePolicy::Through,
            budgets: Budgets { probes: 64, fetch_pages: 1024, save_pages: 1024, backup_pages: 1024 },
            running_max: 256,
            op_pages_max: 128,
            op_patience: 30_000,
            hint_patience: 1_000,
            cooldown: 0,
            ranks: 1,
            rank: 0,
            events: true,
            sabotage: Sabotage::None,
        }
    }
}

/// Why there can be no engine like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Pages of no or too many tokens.
    #[error("a page has {0} tokens\n\nhint: 1 to {PAGE_TOKENS_MAX}; 16 to 64 are usual")]
    PageTokens(u32),
    /// No device.
    #[error("the device has {0} pages\n\nhint: 1 to {PAGES_MAX}")]
    DevicePages(u32),
    /// Too much of a host.
    #[error("the host has {0} pages\n\nhint: at most {PAGES_MAX}, and 0 for none")]
    HostPages(u32),
    /// A store without the host pages that all goes through.
    #[error("there is a store and no host page\n\nhint: give the host some pages, or leave the store out")]
    StoreWithoutHost,
    /// Nothing could ever run.
    #[error("`{0}` is 0\n\nhint: at least 1")]
    Zero(&'static str),
    /// Ranks that do not exist.
    #[error("rank {0} of {1}\n\nhint: ranks count from 0, and there are 1 to {RANKS_MAX}")]
    Rank(u32, u32),
}

impl Config {
    /// Whether an engine can be like that.
    ///
    /// # Errors
    /// Names the first thing that cannot be.
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
            ("op_patience", self.op_patience),
            ("hint_patience", self.hint_patience),
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
    fn what_cannot_be_is_refused_with_a_hint() {
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
