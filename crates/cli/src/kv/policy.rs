//! Policies in the syntax of the command line: `eviction=s3-fifo,write=back,stop=best-effort,index=flat`.

use std::fmt;
use std::str::FromStr;

use tiffin_kv::{Config, Settings, StoreConfig, Value};
use tiffin_kv_replay::Policy;

/// The settings that are policies.
const POLICIES: [&str; 5] = ["eviction", "write", "stop", "start", "index"];
/// Ticks of a replay are microseconds.
pub(super) const TICKS_PER_SECOND: u32 = 1_000_000;

/// A policy in that syntax.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PolicyText {
    text: String,
    settings: Settings,
}

impl FromStr for PolicyText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Settings::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let is_policy = POLICIES.contains(&name);
            let set = |settings: &mut Settings| settings.set(name, Value::Word(value.to_owned())).is_ok();
            if !is_policy || !set(&mut settings) {
                return Err(format!("invalid policy `{word}`; choose from {}", choices()));
            }
        }
        Ok(Self { text: text.to_owned(), settings })
    }
}

impl fmt::Display for PolicyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Every policy with its values, for hints.
fn choices() -> String {
    let all = Settings::default().list();
    let words = |name: &str| all.iter().find(|it| it.0 == name).map(|it| it.2.join("|")).unwrap_or_default();
    POLICIES.map(|name| format!("{name}={}", words(name))).join(", ")
}

impl PolicyText {
    /// The policy, with all other settings from `config`.
    pub(super) fn policy(&self, config: Config, threshold_pages: u32, store_pages: Option<u64>) -> Policy {
        let chosen = self.settings.config(TICKS_PER_SECOND, config.store.is_some());
        let store = chosen.store.map(|store| StoreConfig { threshold_pages, ..store });
        let (eviction, write, index) = (chosen.eviction, chosen.write, chosen.index);
        Policy {
            name: self.text.clone(),
            config: Config { eviction, write, index, store, ..config },
            store_pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use tiffin_kv::{Eviction, IndexKind, PrefetchStop};

    use super::*;

    #[test]
    fn policies_are_parsed_or_named_in_the_error() {
        let words: PolicyText = "eviction=cost, index=flat".parse().unwrap();
        let config = words.policy(Config::default(), 7, None).config;
        assert_eq!((config.eviction, config.index), (Eviction::BY_COST, IndexKind::Flat));
        let stop = PrefetchStop::Timeout { base: 2_000_000, per_page: 10_000, most: 30_000_000 };
        assert_eq!(config.store.map(|it| (it.threshold_pages, it.stop)), Some((7, stop)));
        for wrong in ["eviction=fifo", "probes=4", "lru"] {
            let error = wrong.parse::<PolicyText>().unwrap_err();
            let text =
                format!("invalid policy `{wrong}`; choose from eviction=lru|s3-fifo|cost, write=through|");
            assert!(error.starts_with(&text), "{error}");
        }
    }
}
