//! Lifetimes of objects: pins, limits of the namespace, and why an object exists or not.

use tiffin_types::message::{
    AdmitCluster, Await, ClientToMaster, DeletedMatching, DropPins, Explain, ForgetNode, Forgotten,
    NamespaceStat, Pin, PinOutcome, PolicyChange, Reply, Why,
};
use tiffin_types::{ClusterId, Key, WHY_KEYS_MAX};

use crate::inner::Inner;
use crate::names::wait_ms;
use crate::{Deadline, Error, Watermark, batch};

/// Sets or ends pins. Returns for each whether it is set now, or whether there was one to end.
pub(crate) async fn pin(
    inner: &Inner,
    keys: &[Key],
    owner: &str,
    on: bool,
    deadline: Deadline,
) -> Vec<Result<bool, Error>> {
    let mut results = Vec::with_capacity(keys.len());
    for piece in batch::pieces(keys) {
        let keys = keys.get(piece).unwrap_or_default();
        let pin = Pin { keys: keys.to_vec(), owner: owner.to_owned(), on, wait_ms: wait_ms(deadline) };
        match inner.ask(&ClientToMaster::Pin(pin), deadline).await {
            Ok(Reply::Pinned(outcomes)) if outcomes.len() == keys.len() => {
                let answers = keys.iter().zip(outcomes);
                results.extend(answers.map(|(key, outcome)| match outcome {
                    PinOutcome::Done => Ok(true),
                    PinOutcome::NotPinned => Ok(false),
                    PinOutcome::Absent => Err(Error::NotFound { key: key.clone() }),
                    PinOutcome::Unconfirmed(nodes) => Err(Error::Unconfirmed { nodes }),
                    PinOutcome::TooMany => {
                        Err(Error::invalid(format!("`{key}` has the maximum number of pins")))
                    }
                }));
            }
            Ok(_) => results.extend(batch::all(keys.len(), &Error::misfit())),
            Err(error) => results.extend(batch::all(keys.len(), &error)),
        }
    }
    results
}

pub(crate) async fn drop_pins(
    inner: &Inner,
    owner: &str,
    deadline: Deadline,
) -> Result<DeletedMatching, Error> {
    let drop = DropPins { owner: owner.to_owned(), wait_ms: wait_ms(deadline) };
    match inner.ask(&ClientToMaster::DropPins(drop), deadline).await? {
        Reply::DeletedMatching(dropped) => Ok(dropped),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn set_policy(inner: &Inner, change: PolicyChange, deadline: Deadline) -> Result<(), Error> {
    match inner.ask(&ClientToMaster::SetPolicy(change), deadline).await? {
        Reply::Done => Ok(()),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn forget_node(inner: &Inner, name: &str, deadline: Deadline) -> Result<Forgotten, Error> {
    let forget = ForgetNode { name: name.to_owned() };
    match inner.ask(&ClientToMaster::ForgetNode(forget), deadline).await? {
        Reply::Forgotten(forgotten) => Ok(forgotten),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn admit_cluster(
    inner: &Inner,
    cluster: ClusterId,
    deadline: Deadline,
) -> Result<(), Error> {
    match inner.ask(&ClientToMaster::AdmitCluster(AdmitCluster { cluster }), deadline).await? {
        Reply::Done => Ok(()),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn wait_usage(
    inner: &Inner,
    until: Watermark,
    deadline: Deadline,
) -> Result<NamespaceStat, Error> {
    let (at_most, at_least) = match until {
        Watermark::AtMost(bytes) => (Some(bytes), None),
        Watermark::AtLeast(bytes) => (None, Some(bytes)),
    };
    let wait = Await { at_most, at_least, wait_ms: deadline.wait_ms() };
    match inner.ask(&ClientToMaster::Await(wait), deadline).await? {
        Reply::Awaited(stat) if until.is_reached(stat.used) => Ok(*stat),
        Reply::Awaited(stat) => {
            Err(Error::timeout(&format!("waiting for {until} (there are {})", stat.used)))
        }
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn why(inner: &Inner, keys: &[Key], deadline: Deadline) -> Vec<Result<Why, Error>> {
    // The last reader is part of the answer, so cached-location reads are reported first.
    for used in inner.reports() {
        if let Err(error) = inner.ask(&used, deadline).await {
            return batch::all(keys.len(), &error);
        }
    }
    let mut results = Vec::with_capacity(keys.len());
    for piece in batch::pieces(keys) {
        let mut keys = keys.get(piece).unwrap_or_default();
        // An answer explains as many keys as the master's limits allow.
        while !keys.is_empty() {
            let asked = keys.get(..WHY_KEYS_MAX).unwrap_or(keys);
            let explain = Explain { keys: asked.to_vec(), report_wait_ms: wait_ms(deadline) };
            let error = match inner.ask(&ClientToMaster::Why(explain), deadline).await {
                Ok(Reply::Why(answers)) if (1..=asked.len()).contains(&answers.len()) => {
                    keys = keys.get(answers.len()..).unwrap_or_default();
                    results.extend(answers.into_iter().map(Ok));
                    continue;
                }
                Ok(_) => Error::misfit(),
                Err(error) => error,
            };
            results.extend(batch::all(std::mem::take(&mut keys).len(), &error));
        }
    }
    results
}
