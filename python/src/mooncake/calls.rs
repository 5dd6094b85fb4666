//! Calls of the client, with results as Mooncake's codes. Each waits with the interpreter released.

use std::collections::BTreeSet;
use std::time::Duration;

use pyo3::prelude::*;
use tiffin_client::arena::Block;
use tiffin_client::gpu;
use tiffin_client::{
    Ahead, Client, Deadline, DeleteOptions, Error, GetInto, GetOptions, Info, OnExists, Pattern, Presences,
    Put, PutEffect, ResolveOptions, SpaceWait, Stored,
};
use tiffin_types::units::Count;

use super::arguments::{KeyArg, NameArgs};
use super::codes;
use super::config::ExistOptions;
use super::descriptors::ReplicaDescriptor;
use super::log::tell;
use super::memory::Blocks;
use super::open::Open;
use super::pages::{HEALTH_TIME_MAX, is_answered};

/// The time limit for the confirmation of a removal. A stopped node must not block callers.
const REMOVE_TIME_MAX: Duration = Duration::from_secs(10);
/// Mooncake's probes protect the objects that they find for a while. They are not reads.
pub(super) const LEASED: ResolveOptions =
    ResolveOptions { touch: false, lease: true, locate: false, ahead: Ahead::Nothing };

/// A probe that prefetches takes no lease.
const AHEAD: ResolveOptions =
    ResolveOptions { touch: false, lease: false, locate: false, ahead: Ahead::LeadingRun };

/// Puts the items that have no code yet; the others keep theirs.
pub(super) fn put(py: Python<'_>, open: &Open, puts: Vec<Result<Put<'_>, i64>>) -> PyResult<Vec<i64>> {
    Ok(put_or_keep(py, open, puts)?.0)
}

/// The codes of puts, and those that kept the existing object, with their positions.
pub(super) type PutOrKept<'a> = (Vec<i64>, Vec<(usize, Put<'a>)>);

/// The same, and returns the puts that kept the existing object.
pub(super) fn put_or_keep<'a>(
    py: Python<'_>,
    open: &Open,
    puts: Vec<Result<Put<'a>, i64>>,
) -> PyResult<PutOrKept<'a>> {
    // A put of a key that a put session of this store has open succeeds without effect, as in Mooncake.
    let is_in_flight =
        |put: &Put<'_>| put.options.on_exists == OnExists::Keep && open.sessions.is_writing(&put.key);
    let puts = puts.into_iter().map(|put| match put {
        Ok(put) if is_in_flight(&put) => Err(codes::OK),
        put => put,
    });
    let (known, puts) = split(puts.collect());
    let deadline = Deadline::after(open.call_time.saturating_add(open.put_wait));
    let space_wait = if open.put_wait.is_zero() { SpaceWait::Never } else { SpaceWait::For(open.put_wait) };
    let stored = ask(py, open, deadline, async |client| client.put_with(&puts, space_wait, deadline).await)?;
    let unconfirmed = stored.iter().filter_map(|it| it.as_ref().ok()).flat_map(|it| it.unconfirmed.clone());
    let nodes: BTreeSet<_> = unconfirmed.collect();
    if !nodes.is_empty() {
        tell_unconfirmed(&Error::Unconfirmed { nodes: nodes.into_iter().collect() });
    }
    tell_device(stored.iter().filter_map(|it| it.as_ref().err()));
    if open.sessions.has_writing() {
        let replaced = puts.iter().zip(&stored).filter(|(put, stored)| {
            put.options.on_exists != OnExists::Keep
                && stored.as_ref().is_ok_and(|it| it.effect != PutEffect::Kept)
        });
        replaced.for_each(|(put, _)| open.sessions.preempt(&put.key));
    }
    let positions = known.iter().enumerate().filter_map(|(at, known)| known.is_none().then_some(at));
    let is_kept = |it: &Result<Stored, _>| it.as_ref().is_ok_and(|it| it.effect == PutEffect::Kept);
    let kept = positions.zip(puts).zip(&stored).filter_map(|(put, it)| is_kept(it).then_some(put)).collect();
    let codes = stored.into_iter().map(|stored| stored.map_or_else(|error| codes::of(&error), |_| codes::OK));
    Ok((merge(known, codes), kept))
}

/// Gets the items that have no code yet, and returns the size of each; the others keep their code.
pub(super) fn get_into(
    py: Python<'_>,
    open: &Open,
    gets: Vec<Result<GetInto<'_>, i64>>,
) -> PyResult<Vec<i64>> {
    let key = |get: &Result<GetInto<'_>, i64>| {
        get.as_ref().map_or_else(|_| KeyArg::none(), |it| it.key.clone().into())
    };
    let keys: Vec<KeyArg> =
        if open.sessions.has_writing() { gets.iter().map(key).collect() } else { Vec::new() };
    let (known, gets) = split(gets);
    let deadline = Deadline::after(open.call_time);
    let options = GetOptions { lease: true, promotion_wait_ms: open.promotion_wait_ms };
    let read = ask(py, open, deadline, async |client| client.get_into(&gets, options, deadline).await)?;
    tell_device(read.iter().filter_map(|it| it.as_ref().err()));
    let codes = read.into_iter().map(|read| match read {
        Ok(fetched) => i64::try_from(fetched.len).unwrap_or(i64::MAX),
        Err(error) => codes::of(&error),
    });
    Ok(open.sessions.refine(&keys, merge(known, codes)))
}

/// Prints one line for the first failure of a device.
fn tell_device<'e>(mut errors: impl Iterator<Item = &'e Error>) {
    if let Some(error) = errors.find(|it| matches!(it, Error::Device { .. })) {
        tell(&format!("{error} ({}); hint: {}", codes::of(error), error.hint().unwrap_or_default()));
    }
}

/// Gets objects that fit the local buffer, and `None` for the others.
pub(super) fn get(py: Python<'_>, open: &Open, keys: &[KeyArg]) -> PyResult<Vec<Option<Vec<u8>>>> {
    Ok(get_whole(py, open, keys, open.buffer_bytes)?.into_iter().map(Whole::bytes).collect())
}

/// The result of reading a whole object.
pub(super) enum Whole {
    Read(Vec<u8>),
    /// There is no such object, or it exceeds the size limit.
    Absent,
    /// It may exist, and cannot be read now.
    Failed,
}

impl Whole {
    /// The bytes, if it was read.
    pub(super) fn bytes(self) -> Option<Vec<u8>> {
        if let Self::Read(bytes) = self { Some(bytes) } else { None }
    }
}

/// Gets objects up to a size.
pub(super) fn get_whole(
    py: Python<'_>,
    open: &Open,
    keys: &[KeyArg],
    bytes_max: u64,
) -> PyResult<Vec<Whole>> {
    let key = |key: &KeyArg| key.key().filter(|_| bytes_max > 0).ok_or(Whole::Absent);
    let (known, keys) = split(keys.iter().map(key).collect());
    let deadline = Deadline::after(open.call_time);
    let options = GetOptions { lease: true, promotion_wait_ms: open.promotion_wait_ms };
    let objects = ask(py, open, deadline, async |client| client.get(&keys, options, deadline).await)?;
    let read = objects.into_iter().map(|object| match object {
        Ok(object) if object.bytes.len() as u64 <= bytes_max => Whole::Read(object.bytes),
        Ok(_) | Err(Error::NotFound { .. }) => Whole::Absent,
        Err(_) => Whole::Failed,
    });
    Ok(merge(known, read))
}

/// Gets objects into the local buffer, and `None` for those that do not fit beside live handles.
pub(super) fn get_blocks(py: Python<'_>, open: &Open, keys: &[KeyArg]) -> PyResult<Vec<Option<Block>>> {
    let arena = if open.buffer_bytes > 0 { open.arena() } else { None };
    let Some(arena) = arena else { return Ok(keys.iter().map(|_| None).collect()) };
    let (known, keys) = split(keys.iter().map(|key| key.key().ok_or(None)).collect());
    let deadline = Deadline::after(open.call_time);
    let options = GetOptions { lease: true, promotion_wait_ms: open.promotion_wait_ms };
    let blocks = Blocks::new(arena, keys.len());
    let get = async |client: &Client| client.get_landing(&keys, &&blocks, options, deadline).await;
    let read = ask(py, open, deadline, get)?;
    let too_large = read.iter().filter_map(|it| match it {
        Err(Error::TooSmall { len, .. }) if *len <= open.buffer_bytes => Some(*len),
        _ => None,
    });
    if let Some(len) = too_large.max().filter(|_| open.tells_lack_of_space()) {
        let (wanted, bytes) = (Count(len, "byte"), Count(open.buffer_bytes, "byte"));
        tell(&format!(
            "the local buffer of {bytes} has no {wanted} of contiguous space beside live BufferHandles; \
             hint: drop handles sooner, or set `local_buffer_size` higher"
        ));
    }
    Ok(merge(known, blocks.take(read.iter().map(Result::is_ok))))
}

/// Looks up keys, and converts each answer with `found` or `failed`.
pub(super) fn look(
    py: Python<'_>,
    open: &Open,
    keys: &[KeyArg],
    failed: impl Fn(&Error) -> i64,
    found: impl Fn(Option<Info>) -> i64,
) -> PyResult<Vec<i64>> {
    let (known, wanted) = split(keys.iter().map(|key| key.key().ok_or_else(|| found(None))).collect());
    let deadline = Deadline::after(open.call_time);
    let infos = ask(py, open, deadline, async |client| client.resolve(&wanted, LEASED, deadline).await)?;
    let codes = infos.into_iter().map(|info| match info {
        Ok(info) => found(info),
        Err(error) => failed(&error),
    });
    Ok(open.sessions.refine(keys, merge(known, codes)))
}

/// Looks up keys, and returns the information about each.
pub(super) fn resolve(
    py: Python<'_>,
    open: &Open,
    keys: &[KeyArg],
    options: ResolveOptions,
) -> PyResult<Vec<Result<Option<Info>, Error>>> {
    let (known, wanted) = split(keys.iter().map(|key| key.key().ok_or(Ok(None))).collect());
    let deadline = Deadline::after(open.call_time);
    let infos = ask(py, open, deadline, async |client| client.resolve(&wanted, options, deadline).await)?;
    // A single failure applies to all keys.
    let failure = infos.first().filter(|_| infos.len() < wanted.len()).cloned();
    let infos = infos.into_iter().chain(failure.into_iter().cycle());
    Ok(merge(known, infos.take(wanted.len())))
}

/// The copies of each key; empty if there is no such object.
pub(super) fn copies(py: Python<'_>, open: &Open, keys: &[KeyArg]) -> PyResult<Vec<Vec<ReplicaDescriptor>>> {
    let (known, keys) = split(keys.iter().map(|key| key.key().ok_or_else(Vec::new)).collect());
    let deadline = Deadline::after(open.call_time);
    // A descriptor query has no side effects: no lease, no use, no promotion.
    let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
    let infos = ask(py, open, deadline, async |client| client.resolve(&keys, options, deadline).await)?;
    // A single failure applies to all keys.
    let mut infos = infos.into_iter();
    let copies = keys.iter().map(|_| match infos.next() {
        Some(Ok(Some(info))) => ReplicaDescriptor::of(&info),
        Some(Ok(None) | Err(_)) | None => Vec::new(),
    });
    Ok(merge(known, copies.collect::<Vec<_>>()))
}

/// The number of objects that the client has read from disks.
pub(super) fn disk_reads(py: Python<'_>, open: &Open) -> PyResult<u64> {
    let deadline = Deadline::after(open.call_time);
    let counted = open.handle.call(py, deadline, async |client| Ok(client.disk_reads()))?;
    Ok(counted.unwrap_or_default())
}

/// Whether each key can be read, or a failure as `failed` converts it.
pub(super) fn exist(
    py: Python<'_>,
    open: &Open,
    names: &NameArgs,
    wanted: ExistOptions,
    failed: impl Fn(&Error) -> i64,
) -> PyResult<Vec<i64>> {
    let deadline = Deadline::after(open.call_time);
    let options = if wanted.prefetch_to_memory { AHEAD } else { LEASED };
    let ask = async |client: &Client| Ok(client.exists_packed(&names.keys, options, deadline).await);
    let answers = open.handle.call(py, deadline, ask)?;
    let all_failed = |error| Presences::failed(names.keys.len(), &error);
    let Presences { there, failures } = answers.unwrap_or_else(all_failed);
    let failure = |at| failures.get(&at).map(&failed);
    let codes = there.into_iter().enumerate().map(|(at, there)| failure(at).unwrap_or(i64::from(there)));
    Ok(names.merge(codes, 0))
}

/// Removes keys.
pub(super) fn remove(
    py: Python<'_>,
    open: &Open,
    keys: &[KeyArg],
    options: DeleteOptions,
) -> PyResult<Vec<i64>> {
    let (known, wanted) = split(keys.iter().map(|key| key.key().ok_or(codes::OBJECT_NOT_FOUND)).collect());
    let deadline = Deadline::after(open.call_time.min(REMOVE_TIME_MAX));
    let removed = ask(py, open, deadline, async |client| client.delete(&wanted, options, deadline).await)?;
    let codes: Vec<_> = removed
        .into_iter()
        .map(|removed| match removed {
            Ok(true) => codes::OK,
            Ok(false) => codes::OBJECT_NOT_FOUND,
            Err(error) => {
                tell_unconfirmed(&error);
                codes::of(&error)
            }
        })
        .collect();
    Ok(open.sessions.refine(keys, merge(known, codes)))
}

/// Removes objects that match, and returns their number.
pub(super) fn remove_matching(
    py: Python<'_>,
    open: &Open,
    pattern: Pattern,
    options: DeleteOptions,
) -> PyResult<i64> {
    let deadline = Deadline::after(open.call_time.min(REMOVE_TIME_MAX));
    let removed = open
        .handle
        .call(py, deadline, async |client| client.delete_matching(pattern, options, deadline).await)?;
    Ok(match removed {
        Ok(removed) => {
            if !removed.unconfirmed.is_empty() {
                tell_unconfirmed(&Error::Unconfirmed { nodes: removed.unconfirmed });
            }
            i64::try_from(removed.count).unwrap_or(i64::MAX)
        }
        Err(error) => codes::of(&error),
    })
}

/// Whether the master answers.
pub(super) fn master_answers(py: Python<'_>, open: &Open) -> PyResult<bool> {
    let deadline = Deadline::after(HEALTH_TIME_MAX.min(open.call_time));
    let answered = open.handle.call(py, deadline, async |client| Ok(is_answered(client, deadline).await))?;
    Ok(answered.unwrap_or(false))
}

/// The bytes that the client has written and read, by transport.
pub(super) fn traffic(py: Python<'_>, open: &Open) -> PyResult<Vec<(String, (u64, u64))>> {
    let deadline = Deadline::after(open.call_time);
    let counted = open.handle.call(py, deadline, async |client| {
        let counters = client.counters();
        let ways = [("local", &counters.local), ("shared_memory", &counters.shm), ("tcp", &counters.tcp)];
        let ways = ways.map(|(way, moved)| (way.to_owned(), (moved.written(), moved.read())));
        // Bytes of devices are counted per process, and are part of those above.
        let devices = gpu::counted().into_iter().flat_map(|it| {
            let name = format!("cuda:{}", it.device);
            [(format!("{name} ring"), (it.ringed, 0)), (name, (it.saved, it.loaded))]
        });
        let registered = ("cuda registered".to_owned(), (gpu::registered_bytes(), 0));
        Ok(ways.into_iter().chain(devices).chain([registered]).collect())
    })?;
    Ok(counted.unwrap_or_default())
}

/// Calls the client. Without a client, every item of the batch gets the same failure.
fn ask<T: Send>(
    py: Python<'_>,
    open: &Open,
    deadline: Deadline,
    work: impl AsyncFnOnce(&Client) -> Vec<Result<T, Error>> + Send,
) -> PyResult<Vec<Result<T, Error>>> {
    let answer = open.handle.call(py, deadline, async |client| Ok(work(client).await))?;
    Ok(answer.unwrap_or_else(|error| vec![Err(error)]))
}

fn tell_unconfirmed(error: &Error) {
    if let Error::Unconfirmed { .. } = error {
        tell(&error.to_string());
    }
}

/// Separates items with an answer from those without.
fn split<T, A>(items: Vec<Result<T, A>>) -> (Vec<Option<A>>, Vec<T>) {
    let mut wanted = Vec::with_capacity(items.len());
    let known = items.into_iter().map(|item| match item {
        Ok(item) => {
            wanted.push(item);
            None
        }
        Err(answer) => Some(answer),
    });
    (known.collect(), wanted)
}

/// Merges new answers with the known ones.
fn merge<A>(known: Vec<Option<A>>, answers: impl IntoIterator<Item = A>) -> Vec<A> {
    let mut answers = answers.into_iter();
    known.into_iter().filter_map(|known| known.or_else(|| answers.next())).collect()
}
