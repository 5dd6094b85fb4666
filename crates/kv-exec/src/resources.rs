//! Executes each kind of operation, on a thread of its lane.
//!
//! All pages are borrowed before the first byte moves, and returned when the operation has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tiffin_kv::{OpKind, Operation, PageRecord, Place, RankPart, Tier};

use crate::device::{Device, Fence};
use crate::lanes::Job;
use crate::load::LoadProgress;
use crate::pages::{PageReadGuard, PageWriteGuard, Pages};
use crate::store::{Fault, PageName, PageStore, Stop};

/// The memory and the store that operations use.
pub(crate) struct Resources {
    pub(crate) host: Arc<Pages>,
    pub(crate) device: Box<dyn Device>,
    pub(crate) store: Option<Box<dyn PageStore>>,
    pub(crate) rank: RankPart,
    /// Pages that were requested, and those that succeeded, by kind.
    pub(crate) asked: [AtomicU64; OpKind::ALL.len()],
    pub(crate) moved: [AtomicU64; OpKind::ALL.len()],
}

impl Resources {
    /// Executes an operation. Returns the number of leading records that succeeded.
    pub(crate) fn execute(&self, job: &Job) -> Result<u32, Fault> {
        let Job { operation, stop, after, progress } = job;
        if stop.should_stop() {
            return Err(Fault::Stopped);
        }
        let fence = after.as_ref().map_err(Clone::clone)?.as_deref();
        let fence = match (operation.kind, fence) {
            // The device may queue a load behind the fence.
            (OpKind::Load, fence) => fence,
            (_, Some(fence)) => {
                fence.wait(stop)?;
                None
            }
            (_, None) => None,
        };
        let kind = operation.kind as usize;
        if let Some(asked) = self.asked.get(kind) {
            asked.fetch_add(operation.records.len() as u64, Ordering::Relaxed);
        }
        let done = self.dispatch(operation, fence, progress, stop)?.min(operation.records.len() as u32);
        if let Some(moved) = self.moved.get(kind) {
            moved.fetch_add(u64::from(done), Ordering::Relaxed);
        }
        Ok(done)
    }

    fn dispatch(
        &self,
        operation: &Operation,
        fence: Option<&dyn Fence>,
        progress: &LoadProgress,
        stop: &Stop,
    ) -> Result<u32, Fault> {
        let records = &operation.records;
        let name = |record: &PageRecord| PageName::new(operation.root, &self.rank, record.hash);
        match operation.kind {
            OpKind::Probe => {
                let names: Vec<_> = records.iter().map(name).collect();
                self.store()?.probe(&names, stop)
            }
            OpKind::Fetch => {
                let page = |record| Ok((name(record), self.host_target(record)?));
                let pages = records.iter().map(page).collect::<Result<Vec<_>, Fault>>()?;
                self.store()?.fetch(&pages, stop)
            }
            OpKind::Backup => {
                let page = |record| Ok((name(record), self.host_source(record)?));
                let pages = records.iter().map(page).collect::<Result<Vec<_>, Fault>>()?;
                self.store()?.back_up(&pages, stop)
            }
            OpKind::Load => {
                let page = |record: &PageRecord| {
                    Ok((self.host_source(record)?, index(record.target, Tier::Device)?))
                };
                let pages = records.iter().map(page).collect::<Result<Vec<_>, Fault>>()?;
                self.device.load_after(fence, &pages, progress, stop)
            }
            OpKind::Save => {
                let page = |record: &PageRecord| {
                    Ok((index(record.source, Tier::Device)?, self.host_target(record)?))
                };
                let pages = records.iter().map(page).collect::<Result<Vec<_>, Fault>>()?;
                self.device.save(&pages, stop)
            }
            OpKind::Drop => self.store()?.drop_all(&PageName::prefix(operation.root), stop).map(|()| 0),
        }
    }

    fn store(&self) -> Result<&dyn PageStore, Fault> {
        self.store.as_deref().ok_or_else(|| Fault::Other("no store is configured".to_owned()))
    }

    fn host_source(&self, record: &PageRecord) -> Result<PageReadGuard<'_>, Fault> {
        let page = index(record.source, Tier::Host)?;
        self.host.read(page).ok_or(Fault::Page(page))
    }

    fn host_target(&self, record: &PageRecord) -> Result<PageWriteGuard<'_>, Fault> {
        let page = index(record.target, Tier::Host)?;
        self.host.write(page).ok_or(Fault::Page(page))
    }
}

/// When the last thread has ended, no operation accesses the memory any more.
impl Drop for Resources {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.unregister(self.host.address());
        }
    }
}

fn index(place: Place, tier: Tier) -> Result<u32, Fault> {
    match place {
        Place::Page(page) if page.tier == tier => Ok(page.index),
        _ => Err(Fault::Page(u32::MAX)),
    }
}
