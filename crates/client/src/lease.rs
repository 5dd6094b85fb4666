//! Leases of samples, and reads through them.
//!
//! A lease tells the master that a client is about to consume a sample. It ends when it is released, when
//! the sample is removed, or when the client ends; never because time passed. It does not make reads valid:
//! the stamp does, as for every read. If a sample is consumed, deleted or replaced under its lease, reads
//! return a typed error.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tiffin_transport::TargetBuf;
use tiffin_types::message::{
    self, Ack, AckItem, AckOutcome, ClientToMaster, Found, LeaseItem, LeaseOutcome, Reply, Resolve,
    ResolveOutcome,
};
use tiffin_types::{Generation, Key, Location};

use crate::chores::Chore;
use crate::inner::Inner;
use crate::located::{self, Piece, Wanted};
use crate::manifest::{DecodeError, Manifest, Tensor};
use crate::names::wait_ms;
use crate::{Deadline, Error, Part, View, batch, get, view};

/// Bytes of a sample that are read to find its manifest; a longer manifest takes a second read.
const HEAD_BYTES: u64 = 4096;

/// A sample that is leased to this client. Dropping it ends the lease in the background;
/// [`Client::release`](crate::Client::release) does so at once.
///
/// A lease keeps its client connected. If the connection breaks, the client reconnects by itself and keeps
/// its leases, with two exceptions: it was disconnected for longer than the master's `lease_grace`, or the
/// master restarted. Then the sample may be removed as if it were not leased. Reads are validated in any
/// case.
pub struct Lease {
    guard: LeaseGuard,
    key: Key,
    generation: Generation,
    replicas: Vec<Location>,
    manifest: Manifest,
}

/// Some tensors of a leased sample to be read into a caller's memory.
#[derive(Clone, Debug)]
pub struct LeaseRead<'l, 'a> {
    /// The sample.
    pub lease: &'l Lease,
    /// The names of its tensors, and where their bytes are written, in order. There may be more space than
    /// bytes.
    pub tensors: Vec<(String, Vec<TargetBuf<'a>>)>,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// It was the last outstanding one: the sample is removed and its space is free.
    Freed,
    /// It is recorded; other groups have yet to consume the sample, or it is retained.
    Recorded,
    /// No sample of that generation exists: it was consumed, deleted or replaced.
    Stale,
}

impl Lease {
    /// The sample's name.
    #[must_use]
    pub fn id(&self) -> &Key {
        &self.key
    }

    /// The generation of the sample.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The manifest of the sample.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The locations of its copies when it was leased.
    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.replicas
    }

    /// Whether it was released.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.guard.is_released.load(Ordering::SeqCst)
    }

    /// Reads tensors into the caller's memory: all of them, or an error. After an error the memory's content
    /// is unspecified, unless it is [`Error::TooSmall`] or [`Error::Invalid`].
    pub async fn read_into(
        &self,
        tensors: Vec<(String, Vec<TargetBuf<'_>>)>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let busy = self.guard.inner.enter("read_leased", deadline)?;
        let reads = [LeaseRead { lease: self, tensors }];
        let results = busy.run(read(&self.guard.inner, &reads, deadline)).await;
        results.into_iter().next().unwrap_or_else(|| Err(Error::misfit()))
    }

    /// Reads tensors into newly allocated memory.
    pub async fn read(&self, names: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let tensors = names.iter().map(|name| self.tensor(name)).collect::<Result<Vec<_>, _>>()?;
        let mut buffers: Vec<_> = tensors.iter().map(|it| vec![0; it.bytes as usize]).collect();
        let targets = buffers.iter_mut().map(|it| vec![TargetBuf::from(it.as_mut_slice())]);
        let named = names.iter().map(|it| (*it).to_owned()).zip(targets).collect();
        self.read_into(named, deadline).await?;
        Ok(buffers)
    }

    /// Views tensors in place, without a copy, if they are contiguous in memory that is mapped here;
    /// otherwise copies them. Borrowed bytes do not change while the view exists, even if the lease or the
    /// sample ends.
    pub async fn view(&self, names: &[&str], deadline: Deadline) -> Result<Vec<View>, Error> {
        let busy = self.guard.inner.enter("view", deadline)?;
        self.check_held()?;
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let Tensor { offset, bytes, .. } = *self.tensor(name)?;
            parts.push(Part { key: self.key.clone(), range: Some(offset..offset.saturating_add(bytes)) });
        }
        let views = busy.run(view::view(&self.guard.inner, &parts, deadline)).await;
        views.into_iter().map(|view| self.check_generation(view)).collect()
    }

    /// Checks the generation: the name may belong to another sample by now.
    fn check_generation(&self, view: Result<View, Error>) -> Result<View, Error> {
        let key = || self.key.clone();
        match view {
            Ok(view) if view.generation() == self.generation => Ok(view),
            Ok(view) => Err(Error::Superseded { key: key(), generation: view.generation() }),
            // The other sample is shorter than this one.
            Err(Error::OutOfRange { .. }) => Err(Error::Contended { key: key() }),
            Err(error) => Err(error),
        }
    }

    fn check_held(&self) -> Result<(), Error> {
        if self.is_released() {
            return Err(Error::invalid(format!("the lease of sample `{}` was released", self.key)));
        }
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        let unknown = || Error::invalid(format!("sample `{}` has no tensor `{name}`", self.key));
        self.manifest.tensor(name).ok_or_else(unknown)
    }

    fn wanted<'a>(&self, tensors: &[(String, Vec<TargetBuf<'a>>)]) -> Result<Wanted<'a>, Error> {
        self.check_held()?;
        let mut pieces = Vec::with_capacity(tensors.len());
        for (name, targets) in tensors {
            let tensor = self.tensor(name)?;
            let small = || Error::TooSmall { key: self.key.clone(), len: tensor.bytes };
            let targets = get::fit(targets, tensor.bytes).ok_or_else(small)?;
            pieces.push(Piece { offset: tensor.offset, targets });
        }
        let replicas = self.replicas.clone();
        Ok(Wanted { key: self.key.clone(), generation: self.generation, replicas, pieces })
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lease")
            .field("id", &self.key)
            .field("generation", &self.generation)
            .field("is_released", &self.is_released())
            .finish_non_exhaustive()
    }
}

/// The lease itself; dropping it ends the lease.
struct LeaseGuard {
    inner: Arc<Inner>,
    /// The epoch of the master that granted it.
    epoch: u64,
    number: u64,
    is_released: AtomicBool,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::SeqCst) {
            self.inner.leases.remove(self.epoch, self.number);
            let _gone = self.inner.chores.send(Chore::Release { epoch: self.epoch, lease: self.number });
        }
    }
}

/// A lease whose manifest is not read yet.
struct Granted {
    guard: LeaseGuard,
    at: At,
}

/// A sample and its locations.
#[derive(Clone)]
struct At {
    key: Key,
    found: Found,
}

/// Reads the manifests and generations of samples, without leasing them.
pub(crate) async fn manifests(
    inner: &Inner,
    keys: &[Key],
    deadline: Deadline,
) -> Vec<Result<(Manifest, Generation), Error>> {
    let mut results = Vec::with_capacity(keys.len());
    for piece in batch::pieces(keys) {
        let keys = keys.get(piece).unwrap_or_default();
        let report_wait_ms = wait_ms(deadline);
        let resolve = Resolve { keys: keys.to_vec(), locate: true, report_wait_ms, ..Resolve::default() };
        match inner.ask(&ClientToMaster::Resolve(resolve), deadline).await {
            Ok(Reply::Resolved(resolved)) if resolved.items.len() == keys.len() => {
                let found =
                    keys.iter().zip(resolved.items).map(|(key, outcome)| found(key, outcome)).collect();
                results.extend(read_all_manifests(inner, found, deadline).await);
            }
            Ok(_) => results.extend(batch::all(keys.len(), &Error::misfit())),
            Err(error) => results.extend(batch::all(keys.len(), &error)),
        }
    }
    results
}

fn found(key: &Key, outcome: ResolveOutcome) -> Result<At, Error> {
    let key = key.clone();
    match outcome {
        ResolveOutcome::Found(found) if found.sample => Ok(At { key, found }),
        ResolveOutcome::Found(_) => {
            Err(Error::NotASample { key, why: "it was put as a plain object".to_owned() })
        }
        ResolveOutcome::Absent => Err(Error::NotFound { key }),
        ResolveOutcome::Unavailable(nodes) => Err(Error::NodeDown { key, nodes }),
    }
}

pub(crate) async fn lease(
    inner: &Arc<Inner>,
    samples: &[(Key, Option<Generation>)],
    group: &str,
    deadline: Deadline,
) -> Vec<Result<Lease, Error>> {
    let mut results = Vec::with_capacity(samples.len());
    for piece in batch::pieces(samples.iter().map(|it| &it.0)) {
        let samples = samples.get(piece).unwrap_or_default();
        let items =
            samples.iter().map(|(key, generation)| LeaseItem { key: key.clone(), generation: *generation });
        let report_wait_ms = wait_ms(deadline);
        let request = message::Lease { items: items.collect(), group: group.to_owned(), report_wait_ms };
        match inner.ask_leases(request, deadline).await {
            Ok((epoch, leased)) if leased.items.len() == samples.len() => {
                let answers = samples.iter().zip(leased.items);
                let granted =
                    answers.map(|((key, _), outcome)| grant(inner, epoch, key, group, outcome)).collect();
                results.extend(with_manifests(inner, granted, deadline).await);
            }
            Ok(_) => results.extend(batch::all(samples.len(), &Error::misfit())),
            Err(error) => results.extend(batch::all(samples.len(), &error)),
        }
    }
    results
}

/// Leases that were granted together with the names of their samples.
pub(crate) async fn with_names(
    inner: &Arc<Inner>,
    epoch: u64,
    keys: Vec<Key>,
    group: &str,
    outcomes: Vec<LeaseOutcome>,
    deadline: Deadline,
) -> Vec<Result<Lease, Error>> {
    let granted = keys.iter().zip(outcomes).map(|(key, outcome)| grant(inner, epoch, key, group, outcome));
    with_manifests(inner, granted.collect(), deadline).await
}

fn grant(
    inner: &Arc<Inner>,
    epoch: u64,
    key: &Key,
    group: &str,
    outcome: LeaseOutcome,
) -> Result<Granted, Error> {
    let (key, group) = (key.clone(), group.to_owned());
    match outcome {
        LeaseOutcome::Leased(granted) => {
            let (inner, number) = (Arc::clone(inner), granted.lease);
            let guard = LeaseGuard { inner, epoch, number, is_released: AtomicBool::new(false) };
            Ok(Granted { guard, at: At { key, found: granted.found } })
        }
        LeaseOutcome::Absent => Err(Error::NotFound { key }),
        LeaseOutcome::Superseded(generation) => Err(Error::Superseded { key, generation }),
        LeaseOutcome::Consumed => Err(Error::Consumed { key, group }),
        LeaseOutcome::NotASample => {
            Err(Error::NotASample { key, why: "it was put as a plain object".to_owned() })
        }
        LeaseOutcome::WrongGroup => Err(Error::WrongGroup { key, group }),
    }
}

/// Reads the manifests of leased samples concurrently. If a manifest cannot be read, the lease ends.
async fn with_manifests(
    inner: &Inner,
    granted: Vec<Result<Granted, Error>>,
    deadline: Deadline,
) -> Vec<Result<Lease, Error>> {
    let places = granted.iter().map(|it| it.as_ref().map(|it| it.at.clone()).map_err(Error::clone)).collect();
    let manifests = read_all_manifests(inner, places, deadline).await;
    let leases = granted.into_iter().zip(manifests).map(|(granted, manifest)| {
        let Granted { guard, at: At { key, found } } = granted?;
        let (manifest, _) = manifest?;
        Ok(Lease { guard, key, generation: found.generation, replicas: found.replicas, manifest })
    });
    leases.collect()
}

/// Reads manifests concurrently; long ones need a second read.
async fn read_all_manifests(
    inner: &Inner,
    places: Vec<Result<At, Error>>,
    deadline: Deadline,
) -> Vec<Result<(Manifest, Generation), Error>> {
    let head = |it: &At| it.found.len.min(HEAD_BYTES) as usize;
    let lens = places.iter().map(|it| it.as_ref().map_or(0, head)).collect();
    let mut manifests = read_manifests(inner, &places, lens, deadline).await;
    let longer: Vec<_> = manifests.iter().map(|it| if let Ok(Err(len)) = it { *len } else { 0 }).collect();
    if longer.iter().any(|&len| len > 0) {
        let again = read_manifests(inner, &places, longer, deadline).await;
        for (manifest, again) in manifests.iter_mut().zip(again) {
            if let Ok(Err(_)) = manifest {
                *manifest = again;
            }
        }
    }
    let read = places.into_iter().zip(manifests).map(|(place, manifest)| {
        let At { key, found } = place?;
        let cut_off = |_| Error::NotASample { key, why: "its header is truncated".to_owned() };
        Ok((manifest?.map_err(cut_off)?, found.generation))
    });
    read.collect()
}

/// A manifest, or the number of bytes that must be read to decode it.
type MaybeManifest = Result<Manifest, usize>;

async fn read_manifests(
    inner: &Inner,
    places: &[Result<At, Error>],
    lens: Vec<usize>,
    deadline: Deadline,
) -> Vec<Result<MaybeManifest, Error>> {
    let mut heads: Vec<_> = lens.iter().map(|&len| vec![0; len]).collect();
    let wanted = places.iter().zip(&mut heads).map(|(place, head)| {
        let At { key, found } = place.as_ref().map_err(Error::clone)?;
        let pieces = vec![Piece { offset: 0, targets: vec![TargetBuf::from(head.as_mut_slice())] }];
        let (generation, replicas) = (found.generation, found.replicas.clone());
        Ok(Wanted { key: key.clone(), generation, replicas, pieces })
    });
    let outcomes = located::read(inner, wanted.collect(), deadline).await;
    let decoded = outcomes.into_iter().zip(heads).zip(places).map(|((outcome, head), place)| {
        outcome?;
        let At { key, found } = place.as_ref().map_err(Error::clone)?;
        match Manifest::decode(&head, found.len) {
            Ok(manifest) => Ok(Ok(manifest)),
            Err(DecodeError::Short(len)) => Ok(Err(len)),
            Err(error) => Err(Error::NotASample { key: key.clone(), why: error.to_string() }),
        }
    });
    decoded.collect()
}

pub(crate) async fn read(
    inner: &Inner,
    reads: &[LeaseRead<'_, '_>],
    deadline: Deadline,
) -> Vec<Result<(), Error>> {
    let wanted = reads.iter().map(|read| read.lease.wanted(&read.tensors)).collect();
    located::read(inner, wanted, deadline).await
}

pub(crate) async fn release(inner: &Inner, leases: &[&Lease], deadline: Deadline) -> Result<(), Error> {
    let mut by_epoch = std::collections::BTreeMap::<u64, Vec<&LeaseGuard>>::new();
    for lease in leases.iter().filter(|it| !it.is_released()) {
        by_epoch.entry(lease.guard.epoch).or_default().push(&lease.guard);
    }
    for (epoch, guards) in by_epoch {
        let numbers = guards.iter().map(|it| it.number).collect();
        inner.end_leases(epoch, numbers, deadline).await?;
        guards.iter().for_each(|it| it.is_released.store(true, Ordering::SeqCst));
    }
    Ok(())
}

/// How samples are acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// On behalf of all groups, not only of one.
    pub(crate) abort: bool,
    /// Except samples that a client has leased.
    pub(crate) unless_leased: bool,
}

pub(crate) async fn ack(
    inner: &Inner,
    samples: &[(Key, Generation)],
    group: &str,
    how: How,
    deadline: Deadline,
) -> Vec<Result<Acked, Error>> {
    let How { abort, unless_leased } = how;
    let mut results = Vec::with_capacity(samples.len());
    for piece in batch::pieces(samples.iter().map(|it| &it.0)) {
        let samples = samples.get(piece).unwrap_or_default();
        let items =
            samples.iter().map(|(key, generation)| AckItem { key: key.clone(), generation: *generation });
        let (items, wait_ms) = (items.collect(), wait_ms(deadline));
        let ack = Ack { items, group: group.to_owned(), wait_ms, abort, unless_leased };
        match inner.ask(&ClientToMaster::Ack(ack), deadline).await {
            Ok(Reply::Acked(outcomes)) if outcomes.len() == samples.len() => {
                let answers = samples.iter().zip(outcomes);
                results.extend(answers.map(|((key, _), outcome)| match outcome {
                    AckOutcome::Freed => Ok(Acked::Freed),
                    AckOutcome::Recorded => Ok(Acked::Recorded),
                    AckOutcome::Stale => Ok(Acked::Stale),
                    AckOutcome::Unconfirmed(nodes) => Err(Error::Unconfirmed { nodes }),
                    AckOutcome::WrongGroup => {
                        Err(Error::WrongGroup { key: key.clone(), group: group.to_owned() })
                    }
                }));
            }
            Ok(_) => results.extend(batch::all(samples.len(), &Error::misfit())),
            Err(error) => results.extend(batch::all(samples.len(), &error)),
        }
    }
    results
}
