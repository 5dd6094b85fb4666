//! Calls that only involve the master: resolve, delete, list.

use std::collections::BTreeMap;
use std::time::Duration;

use tiffin_types::message::{
    Ahead, ClientToMaster, Delete, DeleteMatching, DeleteOutcome, DeletedMatching, Exists, Found, List,
    ListItem, Listed, NodeInfo, Pattern, Presence, Reply, Resolve, ResolveOutcome, Stat,
};
use tiffin_types::{Key, Keys, SegmentId};

use crate::cached;
use crate::inner::Inner;
use crate::{Deadline, DeleteOptions, Error, Info, ListOptions, Presences, Replica, ResolveOptions, batch};

/// Objects per page, if all pages are requested.
const PAGE_ITEMS: u32 = 8192;
/// The longest time that the master is asked to wait for nodes.
const WAIT_MAX: Duration = Duration::from_secs(3600);

pub(crate) async fn resolve(
    inner: &Inner,
    keys: &[Key],
    options: ResolveOptions,
    deadline: Deadline,
) -> Vec<Result<Option<Info>, Error>> {
    let ResolveOptions { touch, lease, locate, .. } = options;
    let mut results = Vec::with_capacity(keys.len());
    for piece in batch::pieces(keys) {
        let keys = keys.get(piece).unwrap_or_default();
        let report_wait_ms = wait_ms(deadline);
        let keys_asked = keys.to_vec();
        let resolve =
            Resolve { keys: keys_asked, touch, lease, locate, report_wait_ms, ..Resolve::default() };
        match inner.ask(&ClientToMaster::Resolve(resolve), deadline).await {
            Ok(Reply::Resolved(resolved)) if resolved.items.len() == keys.len() => {
                let nodes: BTreeMap<_, _> = resolved.nodes.into_iter().map(|it| (it.segment, it)).collect();
                let answers = keys.iter().zip(resolved.items);
                results.extend(answers.map(|(key, outcome)| match outcome {
                    ResolveOutcome::Found(found) => Ok(Some(info(found, &nodes))),
                    ResolveOutcome::Absent => Ok(None),
                    ResolveOutcome::Unavailable(nodes) => Err(Error::NodeDown { key: key.clone(), nodes }),
                }));
            }
            Ok(_) => results.extend(batch::all(keys.len(), &Error::misfit())),
            Err(error) => results.extend(batch::all(keys.len(), &error)),
        }
    }
    results
}

/// Whether objects exist. For objects on nodes that cannot be reached, a second request finds the nodes.
pub(crate) async fn exists(
    inner: &Inner,
    keys: &Keys,
    mut options: ResolveOptions,
    deadline: Deadline,
) -> Presences {
    let there = cached::is_there(inner, keys, options);
    cached::report_soon(inner);
    let mut unknown = Vec::with_capacity(keys.len());
    unknown.extend(there.iter().enumerate().filter(|(_, there)| !**there).map(|(place, _)| place));
    let mut answers = Presences { there, failures: BTreeMap::new() };
    for piece in batch::pieces(unknown.iter().filter_map(|&place| keys.get(place))) {
        let places = unknown.get(piece).unwrap_or_default();
        let asked = ask_for(inner, keys.pick(places), options, deadline).await;
        // The leading run ends at the first gap, even if that was in an earlier message.
        if options.ahead == Ahead::LeadingRun && asked.there.contains(&false) {
            options.ahead = Ahead::Nothing;
        }
        answers.insert_answers(places, asked);
    }
    answers
}

async fn ask_for(inner: &Inner, keys: Keys, options: ResolveOptions, deadline: Deadline) -> Presences {
    let count = keys.len();
    let ResolveOptions { touch, lease, ahead, .. } = options;
    let report_wait_ms = wait_ms(deadline);
    let request =
        ClientToMaster::Exists(Exists { keys, touch, lease, ahead, report_wait_ms, ..Exists::default() });
    let items = match inner.ask(&request, deadline).await {
        Ok(Reply::Present(items)) if items.len() == count => items,
        Ok(_) => return Presences::failed(count, &Error::misfit()),
        Err(error) => return Presences::failed(count, &error),
    };
    let ClientToMaster::Exists(Exists { keys, .. }) = request else { return Presences::default() };
    let mut answers = Presences {
        there: items.iter().map(|it| *it == Presence::Here).collect(),
        failures: BTreeMap::new(),
    };
    let away = items.iter().enumerate().filter(|(_, it)| **it == Presence::Unavailable);
    for (place, name) in away.filter_map(|(place, _)| Some((place, keys.get(place)?))) {
        answers.set(place, exists_somewhere(inner, name, deadline).await);
    }
    answers
}

/// Resolves an object that could not be reached: names its nodes, or finds that it can be reached now.
async fn exists_somewhere(inner: &Inner, name: &[u8], deadline: Deadline) -> Result<bool, Error> {
    let key = Key::new(name).map_err(|error| Error::Invalid { what: error.to_string() })?;
    let found = resolve(inner, &[key], ResolveOptions::default(), deadline).await;
    found.into_iter().next().unwrap_or(Ok(None)).map(|it| it.is_some())
}

pub(crate) async fn delete(
    inner: &Inner,
    keys: &[Key],
    options: DeleteOptions,
    deadline: Deadline,
) -> Vec<Result<bool, Error>> {
    let mut results = Vec::with_capacity(keys.len());
    for piece in batch::pieces(keys) {
        let keys = keys.get(piece).unwrap_or_default();
        // A node that cannot be reached may keep a copy that this client would still read.
        {
            let mut cache = inner.locations.lock();
            keys.iter().for_each(|key| cache.remove(key));
        }
        let delete = Delete { keys: keys.to_vec(), force: options.force, wait_ms: wait_ms(deadline) };
        match inner.ask(&ClientToMaster::Delete(delete), deadline).await {
            Ok(Reply::Deleted(outcomes)) if outcomes.len() == keys.len() => {
                let answers = keys.iter().zip(outcomes);
                results.extend(answers.map(|(key, outcome)| match outcome {
                    DeleteOutcome::Deleted => Ok(true),
                    DeleteOutcome::Absent => Ok(false),
                    DeleteOutcome::Leased => Err(Error::Leased { key: key.clone() }),
                    DeleteOutcome::Unconfirmed(nodes) => Err(Error::Unconfirmed { nodes }),
                }));
            }
            Ok(_) => results.extend(batch::all(keys.len(), &Error::misfit())),
            Err(error) => results.extend(batch::all(keys.len(), &error)),
        }
    }
    results
}

pub(crate) async fn delete_matching(
    inner: &Inner,
    pattern: Pattern,
    options: DeleteOptions,
    deadline: Deadline,
) -> Result<DeletedMatching, Error> {
    let delete = DeleteMatching { pattern, force: options.force, wait_ms: wait_ms(deadline) };
    match inner.ask(&ClientToMaster::DeleteMatching(delete), deadline).await? {
        Reply::DeletedMatching(deleted) => Ok(deleted),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn list(
    inner: &Inner,
    pattern: Pattern,
    options: &ListOptions,
    deadline: Deadline,
) -> Result<Vec<ListItem>, Error> {
    let most = options.limit.unwrap_or(usize::MAX);
    let mut items: Vec<ListItem> = Vec::new();
    let mut cursor = 0;
    loop {
        let page =
            page(inner, &pattern, options.pinned_by.as_deref(), (cursor, PAGE_ITEMS), deadline).await?;
        let after = options.after.as_ref();
        items.extend(page.items.into_iter().filter(|it| after.is_none_or(|after| it.key > *after)));
        cursor = page.cursor;
        // A short list of many objects must not need memory for all of them.
        if cursor == 0 || items.len() / 2 >= most.max(PAGE_ITEMS as usize) {
            put_in_order(&mut items);
            items.truncate(most);
        }
        if cursor == 0 {
            return Ok(items);
        }
    }
}

fn put_in_order(items: &mut Vec<ListItem>) {
    items.sort_by(|a, b| a.key.cmp(&b.key).then(b.generation.cmp(&a.generation)));
    // An object that was replaced between two pages may be on both.
    items.dedup_by(|later, first| later.key == first.key);
}

/// One page, from a cursor on, with at most so many objects.
pub(crate) async fn page(
    inner: &Inner,
    pattern: &Pattern,
    pinned_by: Option<&str>,
    (cursor, limit): (u64, u32),
    deadline: Deadline,
) -> Result<Listed, Error> {
    let (pattern, pinned_by) = (pattern.clone(), pinned_by.map(str::to_owned));
    let list = List { pattern, pinned_by, cursor, limit, report_wait_ms: wait_ms(deadline) };
    match inner.ask(&ClientToMaster::List(list), deadline).await? {
        Reply::Listed(listed) => Ok(listed),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn stat(inner: &Inner, deadline: Deadline) -> Result<Stat, Error> {
    match inner.ask(&ClientToMaster::Stat, deadline).await? {
        Reply::Stat(stat) => Ok(*stat),
        _ => Err(Error::misfit()),
    }
}

fn info(found: Found, nodes: &BTreeMap<SegmentId, NodeInfo>) -> Info {
    let replicas = found.replicas.into_iter().map(|location| {
        let unknown = || NodeInfo { segment: location.segment, ..NodeInfo::default() };
        Replica { location, node: nodes.get(&location.segment).cloned().unwrap_or_else(unknown) }
    });
    Info {
        generation: found.generation,
        len: found.len,
        hard_pin: found.hard_pin,
        expires_in: found.expires_in_ms.map(Duration::from_millis),
        soft_pin: found.soft_pin,
        leased: found.leased,
        replicas: replicas.collect(),
    }
}

/// How long the master may wait for nodes so that its reply still arrives in time.
pub(crate) fn wait_ms(deadline: Deadline) -> u64 {
    let wait = deadline.wait_time().unwrap_or_else(|| deadline.remaining().mul_f64(0.75)).min(WAIT_MAX);
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
