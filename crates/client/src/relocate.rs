//! Changes where the copies of an object are: copy and move tasks, and drain jobs.
//!
//! A change reads the object, reserves memory on exactly the segments that are to have it, and puts it there
//! in place of the object that it read. The put is refused if the object changed meanwhile. A reader finds
//! the value at any time.
//!
//! **Invariant:** a change never replaces a value that it has not read, and never brings back a removed
//! object. It is refused if the pins of the object changed meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use tiffin_types::REPLICAS_MAX;

use crate::{
    Client, Deadline, Error, Generation, Here, Info, Key, NodeStat, PutEffect, PutOptions, ResolveOptions,
    SOFT_PIN_DEFAULT, SourceBuf, SpaceRequest, SpaceWait, Why,
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
    /// The object is to have as many copies as before: the master makes those that this change does not.
    /// Otherwise a copy that is removed or added counts as one less or more.
    pub keeps_count: bool,
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
    let here = explain(client, key, deadline).await?;
    if here.found.generation != info.generation {
        return Ok(None);
    }
    let options = options(key, &here, preferred(&wanted, &nodes))?;
    let view = client.view(std::slice::from_ref(key), deadline).await.pop();
    let view = view.unwrap_or_else(|| Err(Error::NotFound { key: key.clone() }))?;
    if view.generation() != info.generation {
        return Ok(None);
    }
    let space = SpaceRequest { key: key.clone(), len: info.len, options };
    let reserved = client.reserve(&[space], SpaceWait::For(SPACE_WAIT), deadline).await.pop();
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
    let reserved = reserved.for_copies(copies(change, here.copies_wanted, held.len(), wanted.len()));
    let stored = reserved.put(vec![SourceBuf::from(view.bytes()?)], deadline).await?;
    Ok((stored.effect != PutEffect::Kept).then_some(()))
}

/// How the new copies are stored: as the old ones.
fn options(key: &Key, here: &Here, preferred: Vec<String>) -> Result<PutOptions, Error> {
    if here.pins.iter().any(|owner| !owner.is_empty()) {
        let what = format!("`{key}` has pins of other owners, which a task cannot carry over");
        return Err(Error::Invalid { what });
    }
    Ok(PutOptions {
        replicas: copies_of(preferred.len()),
        hard_pin: !here.pins.is_empty(),
        soft_pin_ms: here.found.soft_pin.then_some(SOFT_PIN_DEFAULT),
        preferred,
        replaces: Some(here.found.generation),
        // Of a TTL that is over, and a pin, as much as nothing is left.
        ttl_ms: here.found.expires_in_ms.map(|it| it.max(1)),
        ..PutOptions::default()
    })
}

/// How many copies the object is to have after the change. Some of those before may be on nodes that do not
/// answer, and are not among the `held`.
fn copies(change: &Change, before: u32, held: usize, wanted: usize) -> u32 {
    let before = before as usize;
    let count = if change.keeps_count { before } else { (before + wanted).saturating_sub(held) };
    copies_of(count.max(wanted))
}

fn copies_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(REPLICAS_MAX).clamp(1, REPLICAS_MAX)
}

/// The master's account of an object.
async fn explain(client: &Client, key: &Key, deadline: Deadline) -> Result<Box<Here>, Error> {
    match client.why(std::slice::from_ref(key), deadline).await.pop() {
        Some(Ok(Why::Here(here))) => Ok(here),
        Some(Err(error)) => Err(error),
        Some(Ok(Why::Gone(_) | Why::Unknown)) | None => Err(Error::NotFound { key: key.clone() }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_were_wanted_are_not_forgotten() {
        let (task, drain) = (Change::default(), Change { keeps_count: true, ..Change::default() });
        // Moved; moved while the other copy is on a node that does not answer; copied; cleared.
        let counts = [(1, 1, 1, 1), (2, 1, 1, 2), (1, 1, 2, 2), (2, 2, 1, 1)];
        for (before, held, wanted, after) in counts {
            assert_eq!(copies(&task, before, held, wanted), after, "{before} {held} {wanted}");
        }
        // Another copy was enough, because no other node had memory.
        assert_eq!(copies(&drain, 2, 2, 1), 2);
        assert_eq!(copies(&drain, 3, 2, 2), 3);
        assert_eq!(copies(&drain, REPLICAS_MAX + 1, 1, 1), REPLICAS_MAX);
    }
}
