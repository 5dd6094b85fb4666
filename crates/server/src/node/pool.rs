//! Memory that outlives the node's process, and the clients that map it since before.
//!
//! A node that is started again on a pool adopts what is there. Clients that mapped the memory before may
//! still write and read it. This process is not their parent and has no handle of them, but the kernel has
//! their locks: see `tiffin_transport::pool`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tiffin_node::{Event, Node, StampKey};
use tiffin_proto::Incoming;
use tiffin_proto::frame::Decoder;
use tiffin_transport::control::ControlWriter;
use tiffin_transport::layout::Geometry;
use tiffin_transport::pool::Pool;
use tiffin_transport::segment::{MemoryOptions, NodeMemory, SegmentError};
use tiffin_types::message::{MasterToMember, Request, Settle};
use tiffin_types::{ClientId, SegmentId};

use super::{Shared, core_config, disk_bytes, geometry, records};
use crate::config::{NodeConfig, storage};
use crate::{StartError, host};

/// How often the locks of earlier clients are examined. It decides nothing: only the lock does.
const WATCH_PAUSE: Duration = Duration::from_millis(200);

/// How often the folder of the pool is examined.
const GUARD_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of pools of nodes of one name, where none is named.
const SIBLINGS_MAX: usize = 8;

/// The memory of a node, and the core that decides about it.
pub(super) struct Opened {
    pub(super) memory: Arc<NodeMemory>,
    pub(super) writer: ControlWriter,
    pub(super) core: Node,
    /// Clients that map it already.
    pub(super) mapped_by: BTreeSet<ClientId>,
}

/// Makes the memory of a node, or adopts it. A new one has this segment.
pub(super) fn open(config: &NodeConfig, segment: SegmentId) -> Result<Opened, StartError> {
    let wanted = geometry(segment, config.memory);
    let options = MemoryOptions { disk_bytes: disk_bytes(config), is_isolated: config.isolate };
    let create = || -> Result<Opened, StartError> {
        let (memory, writer) = NodeMemory::create_with(wanted, options)?;
        let stamp_key = StampKey::from_bytes(draw_bytes()?);
        let core = Node::new(core_config(&wanted, stamp_key, false));
        Ok(Opened { memory, writer, core, mapped_by: BTreeSet::new() })
    };
    let Some(folder) = &config.pool else { return create() };
    let master = config.master.to_string();
    let folder = if config.is_pool_optional {
        choose(folder, storage::old_default_pool(config), &master)
    } else {
        folder.clone()
    };
    let is_new = !Pool::exists(&folder);
    match open_in(&folder, segment, wanted, options) {
        Ok(opened) => {
            if let Some(Err(error)) = opened.memory.pool().map(|it| it.set_master(&master)) {
                tracing::warn!(path = %folder.display(), %error, "the address of the master is not stored");
            }
            Ok(opened)
        }
        Err(StartError::Memory(SegmentError::Pool(error)))
            if config.is_pool_optional && is_new && error.has_no_place() =>
        {
            let hint = "name a folder on a larger tmpfs with `--pool`, or silence this with `--pool off`";
            let reason = error.to_string();
            let reason = reason.lines().next().unwrap_or_default();
            tracing::warn!(reason, hint, "no memory pool: the objects in memory end with this process");
            create()
        }
        Err(error) => Err(error),
    }
}

/// The pool of a node for which none was named. Nodes of several clusters on one machine may have the same
/// name, so there are numbered folders beside the first one. In order of preference:
///
/// 1. the one that was last used with this address of the master;
/// 2. the one of an earlier release;
/// 3. the first one that no process has.
fn choose(first: &Path, old: Option<PathBuf>, master: &str) -> PathBuf {
    let numbered = (2..=SIBLINGS_MAX).map(|number| {
        let mut name = first.file_name().unwrap_or_default().to_owned();
        name.push(format!("~{number}"));
        first.with_file_name(name)
    });
    let all: Vec<_> = std::iter::once(first.to_owned()).chain(numbered).collect();
    let is_its = |it: &&PathBuf| Pool::exists(it) && Pool::master_in(it).is_some_and(|it| it == master);
    let own = all.iter().find(is_its).cloned().or(old.filter(|it| Pool::exists(it)));
    let free = || all.iter().find(|it| !Pool::is_in_use(it)).cloned();
    own.or_else(free).unwrap_or_else(|| first.to_owned())
}

/// Makes or adopts the pool in this folder.
pub(super) fn open_in(
    folder: &Path,
    segment: SegmentId,
    wanted: Geometry,
    options: MemoryOptions,
) -> Result<Opened, StartError> {
    let pool = Pool::open(folder).map_err(SegmentError::from)?;
    let stamp_key = pool.stamp_key(draw_bytes()?).map_err(SegmentError::from)?;
    let stamp_key = StampKey::from_bytes(stamp_key);
    let (memory, writer) = NodeMemory::open_pool(pool, wanted, options)?;
    let found = memory.geometry();
    let invalid = |what: String| match memory.pool() {
        Some(pool) => StartError::from(SegmentError::from(pool.invalid(what))),
        None => StartError::Disk(what),
    };
    let mut adopted = records::adopted(&memory).map_err(invalid)?;
    adopted.ledger = unread(&memory)?;
    let mapped_by: BTreeSet<_> = adopted.clients.iter().copied().collect();
    let (slots, clients) = (adopted.slots.len(), mapped_by.len());
    let core = Node::adopt(core_config(&found, stamp_key, true), adopted);
    let core = core.map_err(|damage| invalid(damage.to_string()))?;
    let withheld: Vec<_> = core.withheld().map(records::extent).collect();
    let in_use: Vec<_> = core.backed().map(|it| records::in_control(&memory, it)).collect();
    memory.settle_pool(&withheld, &in_use)?;
    let path = folder.display();
    if found.segment != segment.0 {
        let segment = SegmentId(found.segment);
        tracing::info!(%path, %segment, slots, clients, "a memory pool is adopted");
    }
    if found.data_bytes != wanted.data_bytes {
        tracing::warn!(
            %path, bytes = found.data_bytes, wanted = wanted.data_bytes,
            hint = "start once with `--pool-on-stop discard`, stop it, and start it again",
            "the memory pool keeps its size"
        );
    }
    Ok(Opened { memory, writer, core, mapped_by })
}

fn draw_bytes() -> Result<[u8; StampKey::BYTES], StartError> {
    let draw = || host::draw().map(u128::from);
    let failed = |source| StartError::System { what: "drawing a random number", source };
    let (low, high) = (draw().map_err(failed)?, draw().map_err(failed)?);
    Ok((high << 64 | low).to_le_bytes())
}

/// The messages that the journal of the ledger has. Those that cannot be decoded are left out: a master of
/// another version may have written them.
fn unread(memory: &NodeMemory) -> Result<Vec<Settle>, StartError> {
    let Some(pool) = memory.pool() else { return Ok(Vec::new()) };
    let messages = pool.read_journal().map_err(SegmentError::from)?;
    let settle = |frame: Vec<u8>| {
        let mut frames = Decoder::new();
        frames.push(&frame);
        let (header, payload) = frames.pop().ok().flatten()?;
        match tiffin_proto::decode(&header, payload) {
            Ok(Incoming::Request(_, Request::MasterToMember(MasterToMember::Settle(settle)))) => Some(settle),
            _ => None,
        }
    };
    Ok(messages.into_iter().filter_map(settle).collect())
}

/// Makes an empty journal of the ledger, if the memory is in a pool. Returns its path and its id. Where it
/// cannot be made, the master finds none, and waits for the node instead.
pub(super) fn make_journal(memory: &NodeMemory) -> Option<(String, u64)> {
    let pool = memory.pool()?;
    let id = host::draw().unwrap_or_default();
    let path = pool.make_journal(id).unwrap_or_else(|error| {
        let hint = "free some memory on its tmpfs; small puts are slower without";
        tracing::warn!(path = %pool.folder().display(), %error, hint, "the pool has no journal");
        pool.folder().to_owned()
    });
    Some((path.to_string_lossy().into_owned(), id))
}

/// Removes the pool, if the memory is in one.
pub(super) fn discard(memory: &NodeMemory) {
    if let Some(pool) = memory.pool()
        && let Err(error) = pool.discard()
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %pool.folder().display(), %error, "the memory pool is not removed");
    }
}

/// From now on no process can adopt the memory. `false` if that failed.
pub(super) fn disown(memory: &NodeMemory) -> bool {
    let Some(pool) = memory.pool() else { return true };
    let disowned = pool.disown();
    if let Err(error) = &disowned {
        let hint = "remove the folder, then declare the node lost with `tiffin node forget`";
        tracing::warn!(path = %pool.folder().display(), %error, hint, "the memory pool is not removed");
    }
    disowned.is_ok()
}

/// Tells the core which earlier clients do not map the memory any more, until it knows of all.
pub(super) async fn watch(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(WATCH_PAUSE).await;
        let Some(shared) = shared.upgrade().filter(|it| !it.state.has_failed()) else { return };
        if !shared.examine_earlier_clients() {
            break;
        }
    }
    // The supervisor takes the end of a task for a failure.
    std::future::pending().await
}

/// Says so if the folder of the pool is removed while the node runs. Its objects are served as before, but
/// end with this process: the master learns that too.
pub(super) async fn guard(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(GUARD_PAUSE).await;
        let Some(shared) = shared.upgrade().filter(|it| !it.state.has_failed()) else { return };
        if shared.is_leaving.load(Ordering::Acquire) {
            break;
        }
        if shared.memory.pool().is_none_or(Pool::is_in_place) {
            continue;
        }
        shared.lose_pool();
        break;
    }
    // The supervisor takes the end of a task for a failure.
    std::future::pending().await
}

impl Shared {
    fn lose_pool(&self) {
        let path = self.memory.pool().map(|it| it.folder().display().to_string()).unwrap_or_default();
        let hint = "nothing is lost while it runs; move its objects away with a drain job, then start it \
                    again: it makes a new pool";
        tracing::error!(
            path,
            hint,
            "the memory pool was removed: the objects in memory end with this process"
        );
        self.is_pool_gone.store(true, Ordering::Release);
        // It registers again, as a node whose memory ends with its process.
        let master = self.lock().master.clone();
        master.into_iter().for_each(|it| it.close());
    }

    /// Whether there are any left.
    fn examine_earlier_clients(&self) -> bool {
        // A client that attaches to this process waits for this, and is not taken for gone.
        let mut mapped_by = self.mapped_by();
        mapped_by.retain(|client| {
            let is_gone = matches!(self.memory.is_mapped_by(client.0), Ok(false));
            if is_gone {
                tracing::debug!(client = client.0, "an earlier client does not map the memory any more");
                self.handle(Event::Detached(*client));
            }
            !is_gone
        });
        !mapped_by.is_empty()
    }

    pub(super) fn mapped_by(&self) -> MutexGuard<'_, BTreeSet<ClientId>> {
        // Each use is one change of a set, so nothing can be half done.
        self.mapped_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_finds_its_own_pool_among_those_of_its_name() {
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        let (first, old) = (shm.path().join("name-n"), shm.path().join("127.0.0.1:1/n"));
        let options = MemoryOptions::default();
        let make = |folder: &Path, master: &str| {
            let (memory, _) =
                NodeMemory::open_pool(Pool::open(folder).unwrap(), geometry(SegmentId(1), 1 << 20), options)
                    .unwrap();
            memory.pool().unwrap().set_master(master).unwrap();
            memory
        };
        let choose = |master: &str| choose(&first, Some(old.clone()), master);
        assert_eq!(choose("a:1"), first);
        let of_a = make(&first, "a:1");
        // It runs: the same node must not start twice, one of another cluster may.
        assert_eq!(choose("a:1"), first);
        let second = shm.path().join("name-n~2");
        assert_eq!(choose("b:1"), second);
        let of_b = make(&second, "b:1");
        assert_eq!(choose("c:1"), shm.path().join("name-n~3"));
        drop((of_a, of_b));
        assert_eq!(
            (choose("a:1"), choose("b:1")),
            (first.clone(), second),
            "the order of starts does not matter"
        );
        assert_eq!(choose("localhost:1"), first, "the address may be written in another way");
        drop(make(&old, ""));
        assert_eq!((choose("a:1"), choose("d:1")), (first.clone(), old.clone()));
    }

    #[test]
    fn only_an_unnamed_pool_may_be_left_out() {
        // A file is no place for a pool.
        let file = tempfile::NamedTempFile::new().unwrap();
        let pool = Some(file.path().join("pool"));
        for is_pool_optional in [true, false] {
            let config =
                NodeConfig { memory: 1 << 20, pool: pool.clone(), is_pool_optional, ..NodeConfig::default() };
            let opened = open(&config, SegmentId(1));
            assert_eq!(opened.is_ok_and(|it| it.memory.pool().is_none()), is_pool_optional);
        }
    }
}
