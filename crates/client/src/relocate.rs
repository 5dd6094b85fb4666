//! Changes where the copies of an object are: copy and move tasks, and drain jobs.
//!
//! A change reads the object, reserves memory on exactly the segments that are to have it, and puts it there
//! in place of the object that it read. The put is refused if the object changed meanwhile. A reader finds
//! the value at any time.
//!
//! **Invariant:** a change never replaces a value that it has not read, and never brings back a removed
//! object.

use std::collections::BTreeSet;
use std::time::Duration;

use tiffin_types::REPLICAS_MAX;

use crate::{
    Client, Deadline, Error, Generation, Info, Key, NodeStat, Patience, PutEffect, PutOptions,
    ResolveOptions, SOFT_PIN_DEFAULT, SourceBuf, SpaceRequest, Why,
};

/// How long a change waits for memory.
const SPACE_WAIT: Duration = Duration::from_millis(200);

/// What is to become of the copies of an object. Segments have names, and several may share one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Segments that lose their copies.
    pub remove: BTreeSet<String>,
    /// Segments that get copies. With something to remove, only an object that has such a copy changes.
    pub add: BTreeSet<String>,
}

/// Makes the change once. `None` if the object changed meanwhile.
pub async fn relocate(
    client: &Client,
    key: &Key,
    change: &Change,
    deadline: Deadline,
) -> Result<Option<()>, Error> {
    let info = find(client, key, deadline).await?;
    let held = segments_of(&info);
    let wanted = wanted(&held, change);
    if wanted == held {
        return Ok(Some(()));
    }
    let nodes = client.stat(deadline).await?.nodes;
    let options = options(client, key, &info, preferred(&wanted, &nodes), deadline).await?;
    let view = client.view(std::slice::from_ref(key), deadline).await.pop();
    let view = view.unwrap_or_else(|| Err(Error::NotFound { key: key.clone() }))?;
    if view.generation() != info.generation {
        return Ok(None);
    }
    let space = SpaceRequest { key: key.clone(), len: info.len, options };
    let reserved = client.reserve(&[space], Patience::For(SPACE_WAIT), deadline).await.pop();
    let reserved = match reserved {
        Some(Ok(reserved)) => reserved,
        Some(Err(Error::Exists { generation, .. })) if generation == Generation::default() => {
            return Err(Error::NotFound { key: key.clone() });
        }
        Some(Err(Error::Exists { .. })) | None => return Ok(None),
        Some(Err(error)) => return Err(error),
    };
    // Segments are only preferred: where one of them is full, memory of another would be used.
    let segments = reserved.segments();
    let got = nodes.iter().filter(|it| segments.contains(&it.info.segment)).map(|it| it.info.name.clone());
    if got.collect::<BTreeSet<_>>() != wanted {
        reserved.release(deadline).await?;
        return Err(Error::NoNode { key: key.clone() });
    }
    let stored = reserved.put(vec![SourceBuf::from(view.bytes()?)], deadline).await?;
    Ok((stored.effect != PutEffect::Kept).then_some(()))
}

/// How the new copies are stored: as the old ones.
async fn options(
    client: &Client,
    key: &Key,
    info: &Info,
    preferred: Vec<String>,
    deadline: Deadline,
) -> Result<PutOptions, Error> {
    let why = client.why(std::slice::from_ref(key), deadline).await.pop();
    if let Some(Ok(Why::Here(here))) = why
        && here.pins.iter().any(|owner| !owner.is_empty())
    {
        let what = format!("`{key}` has pins of other owners, which a task cannot carry over");
        return Err(Error::Invalid { what });
    }
    Ok(PutOptions {
        replicas: u32::try_from(preferred.len()).unwrap_or(REPLICAS_MAX).clamp(1, REPLICAS_MAX),
        hard_pin: info.hard_pin,
        soft_pin_ms: info.soft_pin.then_some(SOFT_PIN_DEFAULT),
        preferred,
        replaces: Some(info.generation),
        ..PutOptions::default()
    })
}

/// The segments in the order in which the master is to try them. A store may have several segments of one
/// name, and the master takes all of a name before it goes on to the next.
fn preferred(wanted: &BTreeSet<String>, nodes: &[NodeStat]) -> Vec<String> {
    let count = |name: &String| nodes.iter().filter(|it| it.info.name == *name).count();
    let mut names: Vec<_> = wanted.iter().cloned().collect();
    names.sort_by_key(count);
    names
}

fn wanted(held: &BTreeSet<String>, change: &Change) -> BTreeSet<String> {
    if !change.remove.is_empty() && held.is_disjoint(&change.remove) {
        return held.clone();
    }
    held.difference(&change.remove).chain(&change.add).cloned().collect()
}

/// The segments that have a copy in memory.
#[must_use]
pub fn segments_of(info: &Info) -> BTreeSet<String> {
    let in_memory = info.replicas.iter().filter(|it| it.node.beside.is_none());
    in_memory.map(|it| it.node.name.clone()).collect()
}

/// Looks an object up, without side effects.
pub async fn find(client: &Client, key: &Key, deadline: Deadline) -> Result<Info, Error> {
    let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
    let found = client.resolve(std::slice::from_ref(key), options, deadline).await.pop();
    let missing = || Error::NotFound { key: key.clone() };
    found.ok_or_else(missing)??.ok_or_else(missing)
}
