//! Promotes objects that are only on a disk into memory, before they are read.

use tiffin_types::Key;
use tiffin_types::message::{Ahead, ClientToMaster, Prefetch, PrefetchOutcome, Reply};

use crate::inner::Inner;
use crate::{Deadline, Error, batch};

/// Keys per message: the first promotions run while the master checks the next keys.
const CHUNK_KEYS: usize = 128;

pub(crate) async fn prefetch(
    inner: &Inner,
    keys: &[Key],
    ahead: Ahead,
    deadline: Deadline,
) -> Vec<Result<PrefetchOutcome, Error>> {
    let mut results = Vec::with_capacity(keys.len());
    let (mut asked, mut is_behind_a_gap) = (Vec::new(), false);
    // Start all promotions before waiting for any.
    for chunk in keys.chunks(CHUNK_KEYS) {
        if is_behind_a_gap {
            results.extend(chunk.iter().map(|_| Ok(PrefetchOutcome::Skipped)));
            continue;
        }
        let begun = ask(inner, chunk, ahead, 0, deadline).await;
        let is_gap = |it: &Result<PrefetchOutcome, Error>| matches!(it, Ok(PrefetchOutcome::Absent));
        is_behind_a_gap = ahead == Ahead::LeadingRun && begun.iter().any(is_gap);
        asked.push((results.len(), chunk));
        results.extend(begun);
    }
    for (first, chunk) in asked {
        let places = first..first + chunk.len();
        let is_running = |it: &Result<PrefetchOutcome, Error>| matches!(it, Ok(PrefetchOutcome::Running));
        if !results.get(places.clone()).is_some_and(|it| it.iter().any(is_running)) {
            continue;
        }
        let ended = ask(inner, chunk, ahead, deadline.wait_ms(), deadline).await;
        for (place, outcome) in results.get_mut(places).unwrap_or_default().iter_mut().zip(ended) {
            // An object that was being promoted and is resident now is done; other outcomes stay.
            match (&place, outcome) {
                (Ok(PrefetchOutcome::Running), Ok(PrefetchOutcome::Resident)) => {
                    *place = Ok(PrefetchOutcome::Done)
                }
                (Ok(PrefetchOutcome::Running), outcome) => *place = outcome,
                _ => (),
            }
        }
    }
    results
}

pub(crate) async fn cancel(
    inner: &Inner,
    keys: &[Key],
    deadline: Deadline,
) -> Vec<Result<PrefetchOutcome, Error>> {
    let mut results = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(CHUNK_KEYS) {
        results.extend(ask(inner, chunk, Ahead::Nothing, 0, deadline).await);
    }
    results
}

async fn ask(
    inner: &Inner,
    keys: &[Key],
    ahead: Ahead,
    wait_ms: u64,
    deadline: Deadline,
) -> Vec<Result<PrefetchOutcome, Error>> {
    let prefetch = Prefetch { keys: keys.to_vec(), ahead, wait_ms };
    match inner.ask(&ClientToMaster::Prefetch(prefetch), deadline).await {
        Ok(Reply::Prefetched(outcomes)) if outcomes.len() == keys.len() => {
            outcomes.into_iter().map(Ok).collect()
        }
        Ok(_) => batch::all(keys.len(), &Error::misfit()),
        Err(error) => batch::all(keys.len(), &error),
    }
}
