//! Policies, as they are written on the command line:
//! `eviction=s3-fifo,write=back,stop=best-effort,index=flat`.

use std::str::FromStr;

use tiffin_kv::{Config, Eviction, IndexKind, PrefetchStop, StoreConfig, WritePolicy};
use tiffin_kv_replay::Policy;

/// How long a request waits for the store by default: for the question, for each page, and at most, in
/// microseconds.
const TIMEOUT: PrefetchStop = PrefetchStop::Timeout { base: 2_000_000, per_page: 10_000, most: 30_000_000 };
/// What computing a page again costs, beside what its position adds; only the ratio counts.
const BY_COST: Eviction = Eviction::CostAware { base: 1_000, per_position: 10 };

/// What may be said, for hints.
const WORDS: &str = "eviction=lru|s3-fifo|cost, write=through|selective|back, stop=timeout|best-effort|wait, \
                     index=radix|flat";

/// A policy by its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    text: String,
    eviction: Eviction,
    write: WritePolicy,
    stop: PrefetchStop,
    index: IndexKind,
}

impl FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = Self {
            text: text.to_owned(),
            eviction: Eviction::Lru,
            write: WritePolicy::Through,
            stop: TIMEOUT,
            index: IndexKind::Radix,
        };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "eviction=lru" => words.eviction = Eviction::Lru,
                "eviction=s3-fifo" => words.eviction = Eviction::S3Fifo,
                "eviction=cost" => words.eviction = BY_COST,
                "write=through" => words.write = WritePolicy::Through,
                "write=selective" => words.write = WritePolicy::Selective { hits: 1 },
                "write=back" => words.write = WritePolicy::Back,
                "stop=timeout" => words.stop = TIMEOUT,
                "stop=best-effort" => words.stop = PrefetchStop::BestEffort,
                "stop=wait" => words.stop = PrefetchStop::WaitComplete,
                "index=radix" => words.index = IndexKind::Radix,
                "index=flat" => words.index = IndexKind::Flat,
                other => return Err(format!("`{other}` is no policy; there are {WORDS}")),
            }
        }
        Ok(words)
    }
}

impl Words {
    /// The policy, in a hierarchy that is otherwise like this.
    pub(super) fn policy(&self, config: Config, threshold_pages: u32, store_pages: Option<u64>) -> Policy {
        let store = config.store.map(|_| StoreConfig { threshold_pages, stop: self.stop });
        let (eviction, write, index) = (self.eviction, self.write, self.index);
        Policy {
            name: self.text.clone(),
            config: Config { eviction, write, index, store, ..config },
            store_pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_named() {
        let words: Words = "eviction=cost, index=flat".parse().unwrap();
        assert_eq!((words.eviction, words.index, words.stop), (BY_COST, IndexKind::Flat, TIMEOUT));
        let error = "eviction=fifo".parse::<Words>().unwrap_err();
        assert!(error.starts_with("`eviction=fifo` is no policy; there are eviction=lru|"), "{error}");
    }
}
