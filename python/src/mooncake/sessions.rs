//! Put sessions and get sessions: objects that are written or read in parts.
//!
//! A put session reserves space, writes ranges into it, and commits. Like every reservation it claims no
//! name: if another client stores the key first, that object stays. In this store the key counts as in
//! flight, as in Mooncake.
//!
//! A get session remembers the object of its key. The ranges of one call are read from that object, or from
//! one replacement of the same size, never from a mixture.
//!
//! **Invariants:** a session belongs to the process that started it. A committed object contains no byte of
//! an earlier object: ranges that were not written are zeros.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pyo3::prelude::*;
use tiffin_client::gpu::Place;
use tiffin_client::probe::Access;
use tiffin_client::{
    Client, Deadline, Error, GetInto, GetOptions, Info, Key, Piece, ResolveOptions, SourceBuf, SpaceRequest,
    SpaceWait, TargetBuf,
};

use super::arguments::{Items, KeyArg, Number};
use super::calls::{self, LEASED};
use super::checks::{self, Checked};
use super::class::MooncakeDistributedStore;
use super::codes;
use super::config::{PutForm, ReplicateConfig};
use super::memory;
use super::open::Open;
use super::session_table::{Reading, SESSIONS_MAX, Writing, ZEROS_MAX, lock};

/// Writes zeros to the ranges that the sessions have not written. Returns for each whether that succeeded.
async fn fill_gaps(client: &Client, sessions: &[Arc<Writing>], deadline: Deadline) -> Vec<Result<(), Error>> {
    let zeros = vec![0_u8; ZEROS_MAX as usize];
    let (mut pieces, mut places) = (Vec::new(), Vec::new());
    for (place, session) in sessions.iter().enumerate() {
        for (offset, len) in session.gaps() {
            let zeros = zeros.get(..len as usize).unwrap_or_default();
            pieces.push((&session.reserved, Piece { offset, sources: vec![SourceBuf::from(zeros)] }));
            places.push(place);
        }
    }
    let mut filled = vec![Ok(()); sessions.len()];
    for (place, written) in places.into_iter().zip(client.write_reserved(&pieces, deadline).await) {
        if let (Some(filled), Err(error)) = (filled.get_mut(place), written) {
            *filled = Err(error);
        }
    }
    filled
}

/// One range of a key: an address, a length, and the offset in the object.
#[derive(Clone, Copy)]
struct Fragment {
    address: u64,
    len: u64,
    offset: u64,
    /// The device that has the bytes.
    place: Option<&'static Place>,
}

impl Fragment {
    fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// The fragments of each key; `None` if the outer lists differ in length, and an error for a key whose
/// inner lists differ.
fn fragments(
    keys: usize,
    pointers: &Items<Items<Number>>,
    sizes: &Items<Items<Number>>,
    offsets: &Items<Items<Number>>,
) -> Option<Vec<Result<Vec<Fragment>, i64>>> {
    let lists = pointers.0.iter().zip(&sizes.0).zip(&offsets.0);
    let made = lists.map(|((pointers, sizes), offsets)| {
        if pointers.0.len() != sizes.0.len() || offsets.0.len() != sizes.0.len() {
            return Err(codes::INVALID_PARAMS);
        }
        let parts = pointers.0.iter().zip(&sizes.0).zip(&offsets.0);
        let fragment = |((address, len), offset): ((&Number, &Number), &Number)| {
            if address.0 == 0 || memory::source(address.0, len.0, None).is_none() {
                return Err(codes::INVALID_PARAMS);
            }
            Ok(Fragment { address: address.0, len: len.0, offset: offset.0, place: None })
        };
        parts.map(fragment).collect()
    });
    let fits = [pointers.0.len(), sizes.0.len(), offsets.0.len()].iter().all(|len| *len == keys);
    fits.then(|| made.collect())
}

/// Which of the keys have fragments that can be accessed. Those on devices get their place.
fn usable(open: &Open, call: &str, wanted: &mut [Result<Vec<Fragment>, i64>], access: Access) -> Vec<bool> {
    let range = |it: &Fragment| (it.address, it.len);
    let ranges = |it: &Result<Vec<Fragment>, i64>| it.iter().flatten().map(range).collect();
    let Checked { usable, devices } =
        checks::usable(open, call, &wanted.iter().map(ranges).collect::<Vec<_>>(), access);
    for fragment in wanted.iter_mut().flatten().flatten() {
        fragment.place = devices.place(fragment.address, fragment.len);
    }
    usable
}

/// Start get sessions. Returns for each key 0, or the code of the error.
#[pyfunction]
pub(super) fn get_session_start(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
) -> PyResult<Vec<i64>> {
    let Some(open) = store.get().open() else { return Ok(Vec::new()) };
    let found = calls::resolve(py, &open, &keys.0, LEASED)?;
    let mut reading = lock(&open.sessions.here().reading);
    let start = |(key, found): (&KeyArg, Result<Option<Info>, Error>)| {
        let Some(key) = key.key() else { return codes::OBJECT_NOT_FOUND };
        reading.remove(&key);
        match found {
            Ok(Some(_)) if reading.len() >= SESSIONS_MAX => codes::NO_AVAILABLE_HANDLE,
            Ok(Some(info)) => {
                reading.insert(key, Reading { len: info.len, generation: info.generation });
                codes::OK
            }
            Ok(None) => codes::OBJECT_NOT_FOUND,
            Err(error) => codes::of(&error),
        }
    };
    let codes = keys.0.iter().zip(found).map(start).collect();
    drop(reading);
    Ok(open.sessions.refine(&keys.0, codes))
}

/// End get sessions. Always returns 0, or -1 if the store is not set up.
#[pyfunction]
pub(super) fn get_session_end(store: &Bound<'_, MooncakeDistributedStore>, keys: Items<KeyArg>) -> i64 {
    let Some(open) = store.get().open() else { return codes::INTERNAL_ERROR };
    let mut reading = lock(&open.sessions.here().reading);
    keys.0.iter().filter_map(KeyArg::key).for_each(|key| _ = reading.remove(&key));
    codes::OK
}

/// The result of a range read of one key.
enum Ranged {
    Read(i64),
    /// The object was replaced by another one of the same size: the ranges are read again.
    Replaced(Reading),
    /// The object of the session is gone.
    Gone,
}

/// Read ranges of objects with a get session.
#[pyfunction]
pub(super) fn get_session_ranges(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
    pointers: Items<Items<Number>>,
    sizes: Items<Items<Number>>,
    offsets: Items<Items<Number>>,
) -> PyResult<Vec<i64>> {
    let Some(open) = store.get().open() else { return Ok(Vec::new()) };
    let Some(mut wanted) = fragments(keys.0.len(), &pointers, &sizes, &offsets) else {
        return Ok(vec![codes::INVALID_PARAMS; keys.0.len()]);
    };
    let usable = usable(&open, "batch_get_into_multi_buffer_ranges", &mut wanted, Access::Write);
    let sessions = open.sessions.here();
    let mut answers = vec![codes::INVALID_PARAMS; keys.0.len()];
    let mut left = Vec::new();
    for (at, ((key, wanted), is_usable)) in keys.0.iter().zip(wanted).zip(usable).enumerate() {
        let (Some(key), Ok(wanted), true) = (key.key(), wanted, is_usable) else { continue };
        let Some(reading) = lock(&sessions.reading).get(&key).copied() else { continue };
        let is_inside = |it: &Fragment| it.end().is_some_and(|end| end <= reading.len);
        if wanted.iter().all(is_inside) {
            left.push((at, key, reading, wanted));
        }
    }
    // The second round is for objects that were replaced since the session began.
    for _ in 0..2 {
        let ranged = read(py, &open, &left)?;
        let mut again = Vec::new();
        for ((at, key, reading, wanted), ranged) in left.into_iter().zip(ranged) {
            let answer = match ranged {
                Ranged::Read(code) => code,
                Ranged::Replaced(new) => {
                    if let Some(it) = lock(&sessions.reading).get_mut(&key).filter(|it| **it == reading) {
                        *it = new;
                    }
                    again.push((at, key, new, wanted));
                    codes::REPLICA_IS_NOT_READY
                }
                Ranged::Gone => {
                    lock(&sessions.reading).remove(&key);
                    codes::LEASE_EXPIRED
                }
            };
            if let Some(it) = answers.get_mut(at) {
                *it = answer;
            }
        }
        left = again;
    }
    Ok(answers)
}

type ToRead = (usize, Key, Reading, Vec<Fragment>);

/// Reads the fragments of keys once.
fn read(py: Python<'_>, open: &Open, wanted: &[ToRead]) -> PyResult<Vec<Ranged>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut gets = Vec::new();
    for (_, key, _, fragments) in wanted {
        for fragment in fragments.iter().filter(|it| it.len > 0) {
            // Both were checked: the memory is accessible, and the range is inside the object.
            if let (Some(target), Some(end)) = (target(*fragment), fragment.end()) {
                gets.push(GetInto::scattered(key.clone(), vec![target]).range(fragment.offset..end));
            }
        }
    }
    let deadline = Deadline::after(open.call_time);
    let options = GetOptions { lease: true, promotion_wait_ms: open.promotion_wait_ms };
    let get = async |client: &Client| {
        let fetched = client.get_into(&gets, options, deadline).await;
        let mut fetched = fetched.into_iter();
        let mut ranged = Vec::with_capacity(wanted.len());
        for (_, key, reading, fragments) in wanted {
            let count = fragments.iter().filter(|it| it.len > 0).count();
            let results: Vec<_> = fetched.by_ref().take(count).collect();
            ranged.push(judge(client, key, *reading, results, deadline).await);
        }
        Ok(ranged)
    };
    let answer = open.handle.call(py, deadline, get)?;
    Ok(answer.unwrap_or_else(|error| wanted.iter().map(|_| Ranged::Read(codes::of(&error))).collect()))
}

fn target<'a>(fragment: Fragment) -> Option<TargetBuf<'a>> {
    memory::target(fragment.address, fragment.len, fragment.place)
}

/// Derives the state of a session from the results of its key's fragments.
async fn judge(
    client: &Client,
    key: &Key,
    reading: Reading,
    results: Vec<Result<tiffin_client::Fetched, Error>>,
    deadline: Deadline,
) -> Ranged {
    let is_same = |it: &Result<tiffin_client::Fetched, Error>| match it {
        Ok(fetched) => fetched.generation == reading.generation,
        Err(error) => !matches!(error, Error::NotFound { .. } | Error::OutOfRange { .. }),
    };
    if results.iter().all(is_same) {
        let sum =
            results.into_iter().try_fold(0_i64, |sum, it| Ok(sum + i64::try_from(it?.len).unwrap_or(0)));
        return Ranged::Read(sum.unwrap_or_else(|error: Error| codes::of(&error)));
    }
    let info = client.resolve(std::slice::from_ref(key), LEASED, deadline).await;
    match info.into_iter().next() {
        Some(Ok(Some(info))) if info.len == reading.len => {
            Ranged::Replaced(Reading { len: info.len, generation: info.generation })
        }
        Some(Err(error)) => Ranged::Read(codes::of(&error)),
        _ => Ranged::Gone,
    }
}

/// Start put sessions: reserve space for objects of these sizes.
#[pyfunction]
pub(super) fn put_session_start(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
    sizes: Items<Number>,
    config: ReplicateConfig,
) -> PyResult<Vec<i64>> {
    let Some(open) = store.get().open() else { return Ok(Vec::new()) };
    let count = keys.0.len();
    let options = match config.options(count, PutForm::MultiBuffer) {
        Ok(options) if sizes.0.len() == count => options,
        Ok(_) => return Ok(vec![codes::INVALID_PARAMS; count]),
        Err(code) => return Ok(vec![code; count]),
    };
    let here = open.sessions.here();
    let (mut spaces, mut known, mut names) = (Vec::new(), Vec::with_capacity(count), BTreeSet::new());
    let mut space = SESSIONS_MAX.saturating_sub(lock(&here.writing).len());
    for (key, size) in keys.0.iter().zip(&sizes.0) {
        let code = match key.key() {
            Some(key) if size.0 > 0 && !lock(&here.writing).contains_key(&key) => {
                if space == 0 {
                    Some(codes::NO_AVAILABLE_HANDLE)
                } else if !names.insert(key.clone()) {
                    Some(codes::OBJECT_ALREADY_EXISTS)
                } else {
                    space -= 1;
                    let options = options.clone();
                    spaces.push(SpaceRequest { key, len: size.0, options });
                    None
                }
            }
            _ => Some(codes::INVALID_PARAMS),
        };
        known.push(code);
    }
    let space_wait = if open.put_wait.is_zero() { SpaceWait::Never } else { SpaceWait::For(open.put_wait) };
    let deadline = Deadline::after(open.call_time.saturating_add(open.put_wait));
    let ask = async |client: &Client| Ok(client.reserve(&spaces, space_wait, deadline).await);
    let reserved = open.handle.call(py, deadline, ask)?;
    let mut reserved = match reserved {
        Ok(reserved) => reserved.into_iter(),
        Err(error) => {
            let failed = codes::of(&error);
            return Ok(known.into_iter().map(|code| code.unwrap_or(failed)).collect());
        }
    };
    let mut start = || match reserved.next() {
        Some(Ok(reserved)) => here.add_writing(reserved),
        Some(Err(Error::Exists { .. })) => codes::OBJECT_ALREADY_EXISTS,
        Some(Err(error)) => codes::of(&error),
        None => codes::RPC_FAIL,
    };
    Ok(known.into_iter().map(|code| code.unwrap_or_else(&mut start)).collect())
}

/// Write ranges of objects with a put session.
#[pyfunction]
pub(super) fn put_session_ranges(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
    pointers: Items<Items<Number>>,
    sizes: Items<Items<Number>>,
    offsets: Items<Items<Number>>,
) -> PyResult<Vec<i64>> {
    let Some(open) = store.get().open() else { return Ok(Vec::new()) };
    let Some(mut wanted) = fragments(keys.0.len(), &pointers, &sizes, &offsets) else {
        return Ok(vec![codes::INVALID_PARAMS; keys.0.len()]);
    };
    let usable = usable(&open, "batch_put_from_multi_buffer_ranges", &mut wanted, Access::Read);
    let here = open.sessions.here();
    let session = |((key, wanted), is_usable): ((&KeyArg, Result<Vec<Fragment>, i64>), bool)| {
        let session = key.key().and_then(|key| lock(&here.writing).get(&key).cloned());
        let (Some(session), true) = (session, is_usable) else { return Err(codes::INVALID_PARAMS) };
        let wanted = wanted?;
        if wanted.is_empty() {
            return Err(codes::INVALID_REPLICA);
        }
        let is_inside = |it: &Fragment| it.end().is_some_and(|end| end <= session.reserved.len());
        if !wanted.iter().all(is_inside) || !session.has_space(wanted.len()) {
            return Err(codes::INVALID_PARAMS);
        }
        Ok((session, wanted))
    };
    let writes: Vec<_> = keys.0.iter().zip(wanted).zip(usable).map(session).collect();
    let mut pieces = Vec::new();
    for (session, fragments) in writes.iter().flatten() {
        for fragment in fragments.iter().filter(|it| it.len > 0) {
            if let Some(source) = memory::source(fragment.address, fragment.len, fragment.place) {
                let piece = Piece { offset: fragment.offset, sources: vec![source] };
                pieces.push((&session.reserved, piece));
            }
        }
    }
    let deadline = Deadline::after(open.call_time);
    let ask = async |client: &Client| Ok(client.write_reserved(&pieces, deadline).await);
    let mut written = match open.handle.call(py, deadline, ask)? {
        Ok(written) => written.into_iter(),
        Err(error) => vec![Err(error); pieces.len()].into_iter(),
    };
    let count = |write: &Result<(Arc<Writing>, Vec<Fragment>), i64>| match write {
        Ok((session, fragments)) => sum(session, fragments, &mut written),
        Err(code) => *code,
    };
    Ok(writes.iter().map(count).collect())
}

/// The number of written bytes, or the first error.
fn sum(
    session: &Writing,
    fragments: &[Fragment],
    written: &mut impl Iterator<Item = Result<(), Error>>,
) -> i64 {
    let mut sum = Ok(0_i64);
    for fragment in fragments.iter().filter(|it| it.len > 0) {
        match written.next() {
            Some(Ok(())) => {
                session.add(fragment.offset, fragment.offset.saturating_add(fragment.len));
                sum = sum.map(|sum| sum.saturating_add(i64::try_from(fragment.len).unwrap_or(i64::MAX)));
            }
            Some(Err(Error::Unreachable { .. })) | None => sum = sum.and(Err(codes::TRANSFER_FAIL)),
            Some(Err(error)) => sum = sum.and(Err(codes::of(&error))),
        }
    }
    sum.unwrap_or_else(|code| code)
}

/// End put sessions, and commit their objects or release their space.
#[pyfunction]
pub(super) fn put_session_end(
    py: Python<'_>,
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: Items<KeyArg>,
    commits: bool,
) -> PyResult<Vec<i64>> {
    let Some(open) = store.get().open() else { return Ok(Vec::new()) };
    let here = open.sessions.here();
    // A repeated key has the answer of its first occurrence.
    let (mut sessions, mut known) = (Vec::new(), BTreeMap::new());
    let mut place = |key: &KeyArg| {
        let key = key.key()?;
        if let Some(at) = known.get(&key) {
            return Some(*at);
        }
        sessions.push(here.take_writing(&key)?);
        known.insert(key, sessions.len() - 1);
        Some(sessions.len() - 1)
    };
    let places: Vec<_> = keys.0.iter().map(&mut place).collect();
    let deadline = Deadline::after(open.call_time);
    let end = async |client: &Client| {
        Ok(match commits {
            true => commit(client, &sessions, deadline).await,
            false => release(&sessions, deadline).await,
        })
    };
    let ended = match open.handle.call(py, deadline, end)? {
        Ok(codes) => codes,
        Err(error) => vec![codes::of(&error); sessions.len()],
    };
    let code = |place: Option<usize>| place.and_then(|at| ended.get(at).copied());
    Ok(places.into_iter().map(|place| code(place).unwrap_or(codes::INVALID_PARAMS)).collect())
}

/// Commits written objects. Returns a code for each. Those that an upsert has preempted have no effect: their
/// space is released with them.
async fn commit(client: &Client, sessions: &[Arc<Writing>], deadline: Deadline) -> Vec<i64> {
    let is_live = |session: &&Arc<Writing>| !session.is_preempted();
    let live: Vec<_> = sessions.iter().filter(is_live).cloned().collect();
    let mut ended = commit_live(client, &live, deadline).await.into_iter();
    let code = |session| if is_live(&session) { ended.next().unwrap_or(codes::RPC_FAIL) } else { codes::OK };
    sessions.iter().map(code).collect()
}

async fn commit_live(client: &Client, sessions: &[Arc<Writing>], deadline: Deadline) -> Vec<i64> {
    let filled = fill_gaps(client, sessions, deadline).await;
    let ready = sessions.iter().zip(&filled).filter(|(_, filled)| filled.is_ok());
    let ready: Vec<_> = ready.map(|(session, _)| &session.reserved).collect();
    let mut stored = client.commit_reserved(&ready, deadline).await.into_iter();
    let mut codes = Vec::with_capacity(sessions.len());
    for (session, filled) in sessions.iter().zip(filled) {
        codes.push(match filled.map(|()| stored.next()) {
            Ok(Some(Ok(_))) => codes::OK,
            Ok(Some(Err(error))) => explain(client, &error, session.reserved.key(), deadline).await,
            Ok(None) => codes::RPC_FAIL,
            Err(error) => codes::of(&error),
        });
    }
    codes
}

/// Releases space. Returns a code for each.
async fn release(sessions: &[Arc<Writing>], deadline: Deadline) -> Vec<i64> {
    let mut codes = Vec::with_capacity(sessions.len());
    for session in sessions {
        let released = session.reserved.release(deadline).await;
        codes.push(released.map_or_else(|error| codes::of(&error), |()| codes::OK));
    }
    codes
}

/// The code for a failed commit. If its node is unreachable and the master does not know the object, the
/// object is lost with its node. If the master is unreachable, the object may be stored later.
async fn explain(client: &Client, error: &Error, key: &Key, deadline: Deadline) -> i64 {
    if !matches!(error, Error::Unreachable { .. } | Error::NoLeader { .. }) {
        return codes::of(error);
    }
    let found = client.resolve(std::slice::from_ref(key), ResolveOptions::default(), deadline).await;
    match found.first() {
        Some(Ok(None)) => codes::OBJECT_NOT_FOUND,
        _ => codes::of(error),
    }
}
