//! What an engine is made of, from the arguments of `tiffin.kv.Engine`.

use pyo3::prelude::*;
use tiffin_kv::{Budgets, Config, Eviction, IndexKind, PrefetchStop, StoreConfig, WritePolicy};

use super::words::no_word;

/// What computing a page again costs, beside what its position adds; only the ratio counts.
const BY_COST: Eviction = Eviction::CostAware { base: 1_000, per_position: 10 };

/// Sizes and policies, by name; `tiffin/kv.py` has the defaults.
#[derive(FromPyObject)]
pub(super) struct Settings {
    pub(super) page_tokens: u32,
    pub(super) device_pages: u32,
    pub(super) host_pages: u32,
    pub(super) has_store: bool,
    threshold_pages: u32,
    stop: String,
    stop_base: f64,
    stop_per_page: f64,
    stop_most: f64,
    index: String,
    eviction: String,
    write: String,
    probes: u32,
    fetch_pages: u32,
    save_pages: u32,
    backup_pages: u32,
    running_max: u32,
    op_pages_max: u32,
    op_patience: f64,
    hint_patience: f64,
    cooldown: f64,
    ranks: u32,
    rank: u32,
    events: bool,
    pub(super) compare_every: u64,
}

impl Settings {
    /// As the engine has them, in milliseconds.
    pub(super) fn config(&self, py: Python<'_>) -> PyResult<Config> {
        let stop = match self.stop.as_str() {
            "timeout" => PrefetchStop::Timeout {
                base: ticks(self.stop_base),
                per_page: ticks(self.stop_per_page),
                most: ticks(self.stop_most),
            },
            "best-effort" => PrefetchStop::BestEffort,
            "wait" => PrefetchStop::WaitComplete,
            other => return Err(no_word(py, other, "timeout, best-effort or wait")),
        };
        let index = match self.index.as_str() {
            "radix" => IndexKind::Radix,
            "flat" => IndexKind::Flat,
            other => return Err(no_word(py, other, "radix or flat")),
        };
        let eviction = match self.eviction.as_str() {
            "lru" => Eviction::Lru,
            "s3-fifo" => Eviction::S3Fifo,
            "cost" => BY_COST,
            other => return Err(no_word(py, other, "lru, s3-fifo or cost")),
        };
        let write = match self.write.as_str() {
            "through" => WritePolicy::Through,
            "selective" => WritePolicy::Selective { hits: 1 },
            "back" => WritePolicy::Back,
            other => return Err(no_word(py, other, "through, selective or back")),
        };
        Ok(Config {
            page_tokens: self.page_tokens,
            device_pages: self.device_pages,
            host_pages: self.host_pages,
            store: self.has_store.then_some(StoreConfig { threshold_pages: self.threshold_pages, stop }),
            index,
            eviction,
            write,
            budgets: Budgets {
                probes: self.probes,
                fetch_pages: self.fetch_pages,
                save_pages: self.save_pages,
                backup_pages: self.backup_pages,
            },
            running_max: self.running_max,
            op_pages_max: self.op_pages_max,
            op_patience: ticks(self.op_patience),
            hint_patience: ticks(self.hint_patience),
            cooldown: ticks(self.cooldown),
            ranks: self.ranks,
            rank: self.rank,
            events: self.events,
            ..Config::default()
        })
    }
}

fn ticks(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1000.0).ceil() as u64
}
