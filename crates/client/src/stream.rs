//! Streams: samples in the order in which they were put, pulled by consumer groups.
//!
//! Pulled samples are leased, so all rules of leases apply. A sample is delivered to the group again if
//! this client dies, or releases the lease without an acknowledgement.

use std::sync::Arc;

use tiffin_types::message::{
    self, ClientToMaster, DeletedMatching, EndStream, LeaseOutcome, OpenStream, Reply, StreamStat,
};
use tiffin_types::{Generation, Key};

use crate::inner::Inner;
use crate::lease::{self, Lease};
use crate::names::wait_ms;
use crate::{Deadline, Error};

/// The end of a stream.
pub use tiffin_types::message::StreamEnd;

/// What to pull from a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pull {
    /// The stream.
    pub stream: String,
    /// The consumer group on whose behalf samples are leased.
    pub group: String,
    /// Minimum number of samples. Fewer are returned only at the end of the stream or at the deadline.
    pub at_least: u32,
    /// Maximum number of samples.
    pub at_most: u32,
}

/// The result of a pull.
#[derive(Debug, Default)]
pub struct Pulled {
    /// The samples, in the order of the stream.
    pub leases: Vec<Lease>,
    /// The end of the stream, or its failure.
    pub end: Option<StreamEnd>,
}

/// The samples that a caller sees without leasing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPage {
    /// Keys, generations and lengths of the samples, in the order of the stream.
    pub samples: Vec<(Key, Generation, u64)>,
    /// The end of the stream, or its failure.
    pub end: Option<StreamEnd>,
}

pub(crate) async fn open(inner: &Inner, open: OpenStream, deadline: Deadline) -> Result<StreamStat, Error> {
    match inner.ask(&ClientToMaster::OpenStream(open), deadline).await? {
        Reply::Stream(stat) => Ok(stat),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn end(
    inner: &Inner,
    name: &str,
    failure: Option<String>,
    deadline: Deadline,
) -> Result<StreamStat, Error> {
    let end = EndStream { name: name.to_owned(), failure, drop: false, wait_ms: 0 };
    match inner.ask(&ClientToMaster::EndStream(end), deadline).await? {
        Reply::Stream(stat) => Ok(stat),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn drop_all(
    inner: &Inner,
    name: &str,
    deadline: Deadline,
) -> Result<DeletedMatching, Error> {
    let end = EndStream { name: name.to_owned(), failure: None, drop: true, wait_ms: wait_ms(deadline) };
    match inner.ask(&ClientToMaster::EndStream(end), deadline).await? {
        Reply::DeletedMatching(dropped) => Ok(dropped),
        _ => Err(Error::misfit()),
    }
}

pub(crate) async fn pull(inner: &Arc<Inner>, pull: &Pull, deadline: Deadline) -> Result<Pulled, Error> {
    loop {
        let request = ClientToMaster::Pull(message::Pull {
            stream: pull.stream.clone(),
            group: pull.group.clone(),
            items_min: pull.at_least,
            items_max: pull.at_most,
            wait_ms: deadline.wait_ms(),
            behind: None,
        });
        let (epoch, reply) = inner.ask_for_leases(request, deadline).await?;
        let Reply::Pulled(pulled) = reply else { return Err(Error::misfit()) };
        let given = !pulled.keys.is_empty();
        let leases = lease::with_names(inner, epoch, pulled.keys, &pull.group, pulled.leased.items, deadline);
        let mut kept = Vec::new();
        for lease in leases.await {
            match lease {
                Ok(lease) => kept.push(lease),
                // It was removed meanwhile, so no consumer is to have it.
                Err(Error::NotFound { .. } | Error::Superseded { .. } | Error::Consumed { .. }) => (),
                // Released samples are delivered again.
                Err(error) => return Err(error),
            }
        }
        if !given || !kept.is_empty() || deadline.wait_is_over() {
            return Ok(Pulled { leases: kept, end: pulled.end });
        }
    }
}

pub(crate) async fn list_samples(
    inner: &Inner,
    stream: &str,
    after: Generation,
    limit: u32,
    deadline: Deadline,
) -> Result<StreamPage, Error> {
    let request = ClientToMaster::Pull(message::Pull {
        stream: stream.to_owned(),
        group: String::new(),
        items_min: 1,
        items_max: limit,
        wait_ms: deadline.wait_ms(),
        behind: Some(after),
    });
    match inner.ask(&request, deadline).await? {
        Reply::Pulled(pulled) => {
            let found = pulled.leased.items.into_iter().filter_map(|it| match it {
                LeaseOutcome::Leased(granted) => Some((granted.found.generation, granted.found.len)),
                _ => None,
            });
            let samples = pulled.keys.into_iter().zip(found).map(|(key, (it, len))| (key, it, len)).collect();
            Ok(StreamPage { samples, end: pulled.end })
        }
        _ => Err(Error::misfit()),
    }
}
