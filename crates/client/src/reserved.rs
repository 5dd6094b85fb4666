//! Space that is reserved before its bytes exist.
//!
//! **Invariant:** [`Reservations`](crate::reservations::Reservations) knows the reservations of a
//! [`ReservedSpace`], so that they are in every list of reservations that a node receives. A `ReservedSpace`
//! ends in one of two ways: it is handed over to a put, or dropped; then its space is released.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_transport::SourceBuf;
use tiffin_types::message::{ClientToNode, PutOptions, Reply, Reserve, ReserveItem, ReserveOutcome};
use tiffin_types::units::Count;
use tiffin_types::{Key, Location, Reservation, SegmentId};
use tokio::sync::RwLock;
use tokio::time::timeout_at;

use crate::chores::Chore;
use crate::inner::Inner;
use crate::link::InPauses;
use crate::reservations::PutReservations;
use crate::running::Running;
use crate::{Deadline, Error, Put, SpaceWait, Stored, batch, put};

/// Space to be reserved for one object.
#[derive(Clone, Debug)]
pub struct SpaceRequest {
    /// The object's name. Reserving does not claim it: two clients with space for one name may both put.
    pub key: Key,
    /// The object's exact length.
    pub len: u64,
    /// Replication, pins and what to do if the name exists. Zero replicas means one.
    pub options: PutOptions,
}

impl SpaceRequest {
    /// Space for one copy, which replaces an object of that name if there is one.
    #[must_use]
    pub fn new(key: Key, len: u64) -> Self {
        Self { key, len, options: PutOptions { replicas: 1, ..PutOptions::default() } }
    }
}

/// Reserved space in the store: no other client gets it, and it counts as used by the namespace.
///
/// It ends with [`Self::put`], with [`Self::release`], when it is dropped (then it is released in the
/// background), when the client is closed, or when its process ends; never because time passed. It keeps
/// its client connected.
///
/// It survives a broken connection if the node can tell that the client is still running. If a node with
/// the space is lost, the put reserves again, with the `space_wait` of the first request.
pub struct Reserved {
    inner: Arc<Inner>,
    space: SpaceRequest,
    space_wait: SpaceWait,
    /// `None` after it was used or released.
    reserved_space: Mutex<Option<ReservedSpace>>,
    /// Held for reading while a piece is written, and for writing before the space is taken out.
    pub(crate) gate: RwLock<()>,
}

impl Reserved {
    /// The object's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.space.key
    }

    /// The length of the object.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of zero is not a special case")]
    pub fn len(&self) -> u64 {
        self.space.len
    }

    /// Whether it was neither used nor released yet.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.reserved_space().is_some()
    }

    /// Stores the object. The number of bytes must be exactly the reserved length. After success, every
    /// client can read the object.
    ///
    /// With another number of bytes it fails with [`Error::Invalid`], and the space stays reserved.
    /// Otherwise the space is used up: if the put fails or its future is dropped, the space is released.
    pub async fn put(&self, parts: Vec<SourceBuf<'_>>, deadline: Deadline) -> Result<Stored, Error> {
        let busy = self.inner.enter("put_reserved", deadline)?;
        let parts = [(self, parts)];
        let stored = busy.run(put_reserved(&self.inner, &parts, deadline)).await;
        stored.into_iter().next().unwrap_or_else(|| Err(Error::misfit()))
    }

    /// Releases the space, and waits until the nodes have confirmed it. After an error the client keeps
    /// trying in the background. Releasing twice, or after use, is harmless.
    pub async fn release(&self, deadline: Deadline) -> Result<(), Error> {
        let _busy = self.inner.enter("release", deadline)?;
        let alone = timeout_at(deadline.instant(), self.gate.write()).await;
        let _alone = alone.map_err(|_| Error::timeout("waiting to release"))?;
        let reserved_space = self.reserved_space().take();
        match reserved_space {
            Some(reserved_space) => reserved_space.give_back(deadline).await,
            None => Ok(()),
        }
    }

    /// Sets how many copies the object is to have. If these are more than there is space for, the master
    /// makes the others.
    pub(crate) fn for_copies(mut self, replicas: u32) -> Self {
        self.space.options.replicas = replicas;
        self
    }

    /// Takes the space for these bytes, if their number is right.
    fn take(&self, inner: &Inner, put: &Put<'_>) -> Result<ReservedSpace, Error> {
        let SpaceRequest { key, len, .. } = &self.space;
        self.check_client(inner)?;
        if put.len() != Some(*len) {
            let given = put.len().map_or_else(|| "too many to count".to_owned(), |len| len.to_string());
            let what =
                format!("`{key}` has space for exactly {}, and {given} were given", Count(*len, "byte"));
            return Err(Error::invalid(what));
        }
        self.reserved_space().take().ok_or_else(|| self.used())
    }

    /// Takes the space with the pieces that were written into it. The caller holds the gate.
    pub(crate) fn take_written(&self, inner: &Inner) -> Result<(&SpaceRequest, ReservedSpace), Error> {
        self.check_client(inner)?;
        let reserved_space = self.reserved_space().take();
        Ok((&self.space, reserved_space.ok_or_else(|| self.used())?))
    }

    /// The locations of the copies, to write a piece that ends at this offset. The caller holds the gate.
    pub(crate) fn locations_for(&self, inner: &Inner, end: Option<u64>) -> Result<Vec<Location>, Error> {
        let SpaceRequest { key, len, .. } = &self.space;
        self.check_client(inner)?;
        if end.is_none_or(|end| end > *len) {
            let what = format!("the piece ends after the {} reserved for `{key}`", Count(*len, "byte"));
            return Err(Error::invalid(what));
        }
        self.reserved_space()
            .as_ref()
            .map(|reserved_space| reserved_space.locations().collect())
            .ok_or_else(|| self.used())
    }

    fn check_client(&self, inner: &Inner) -> Result<(), Error> {
        if std::ptr::eq(inner, &raw const *self.inner) {
            return Ok(());
        }
        Err(Error::invalid(format!("the space for `{}` was reserved by another client", self.space.key)))
    }

    fn used(&self) -> Error {
        Error::invalid(format!("the space for `{}` was already used or released", self.space.key))
    }

    fn reserved_space(&self) -> MutexGuard<'_, Option<ReservedSpace>> {
        // Each use takes it or reads it, so a panic leaves no partial state.
        self.reserved_space.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Reserved")
            .field("key", &self.space.key)
            .field("len", &self.space.len)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// Reservations that are released when dropped.
pub(crate) struct ReservedSpace {
    inner: Arc<Inner>,
    ready: Vec<Reservation>,
}

impl ReservedSpace {
    /// Takes ownership of the reservations of a reply.
    fn new(inner: &Arc<Inner>, held: &PutReservations<'_>, ready: Vec<Reservation>) -> Self {
        let reserved_space = Self { inner: Arc::clone(inner), ready };
        reserved_space.locations().for_each(|location| held.let_go(location));
        reserved_space
    }

    /// Hands the reservations over to a put.
    pub(crate) fn hand_over(mut self, held: &PutReservations<'_>) -> Vec<Reservation> {
        self.locations().for_each(|location| held.take(location));
        std::mem::take(&mut self.ready)
    }

    fn locations(&self) -> impl Iterator<Item = Location> + '_ {
        self.ready.iter().map(|it| it.location)
    }

    async fn give_back(self, deadline: Deadline) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        let held = PutReservations::new(&inner.reservations, &inner.chores);
        let mut running = Running::new();
        for reservation in self.hand_over(&held) {
            let (inner, held) = (&inner, &held);
            running.push(async move { abort(inner, held, reservation.location, deadline).await });
        }
        // The background task releases what is still held at the end.
        running.all().await.into_iter().collect()
    }
}

impl Drop for ReservedSpace {
    fn drop(&mut self) {
        let left: Vec<_> = self.locations().collect();
        if !left.is_empty() {
            let _gone = self.inner.chores.send(Chore::Abort(left));
        }
    }
}

async fn abort(
    inner: &Inner,
    held: &PutReservations<'_>,
    location: Location,
    deadline: Deadline,
) -> Result<(), Error> {
    let request = ClientToNode::Abort(vec![location.slot_ref()]);
    inner.ask_node(location.segment, &request, deadline, InPauses::Fail).await?;
    held.settle(location);
    Ok(())
}

pub(crate) async fn reserve(
    inner: &Arc<Inner>,
    spaces: &[SpaceRequest],
    space_wait: SpaceWait,
    deadline: Deadline,
) -> Vec<Result<Reserved, Error>> {
    let mut results = Vec::with_capacity(spaces.len());
    for piece in batch::pieces(spaces.iter().map(|it| &it.key)) {
        let spaces = spaces.get(piece).unwrap_or_default();
        results.extend(reserve_piece(inner, spaces, space_wait, deadline).await);
    }
    // A node that this client is connected to does not take a broken connection to the master for the
    // client's end. A node that cannot be reached now may be reachable when there is something to write.
    let mut running = Running::new();
    let segments: BTreeSet<_> = results.iter().flatten().flat_map(segments).collect();
    for segment in segments {
        running.push(async move { inner.nodes.route(segment, deadline).await.is_ok() });
    }
    running.all().await;
    results
}

fn segments(reserved: &Reserved) -> Vec<SegmentId> {
    reserved.reserved_space().iter().flat_map(ReservedSpace::locations).map(|it| it.segment).collect()
}

impl Reserved {
    /// The segments with the reserved space, the home node's first; none after it was used or released.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentId> {
        segments(self)
    }
}

async fn reserve_piece(
    inner: &Arc<Inner>,
    spaces: &[SpaceRequest],
    space_wait: SpaceWait,
    deadline: Deadline,
) -> Vec<Result<Reserved, Error>> {
    let items = spaces.iter().map(|space| ReserveItem {
        key: space.key.clone(),
        len: space.len,
        options: put::with_at_least_one_copy(&space.options),
    });
    let wait_ms = space_wait.wait_ms(deadline);
    let report_wait_ms = crate::names::wait_ms(deadline);
    let items = items.collect();
    let reserve = Reserve { items, wait_ms, report_wait_ms, ..Reserve::default() };
    let held = PutReservations::new(&inner.reservations, &inner.chores);
    match inner.reserve(reserve, &held, deadline).await {
        Ok(Reply::Reserved(reserved)) if reserved.items.len() == spaces.len() => {
            let answers = spaces.iter().zip(reserved.items);
            answers.map(|(space, outcome)| answer(inner, &held, space, space_wait, outcome)).collect()
        }
        Ok(Reply::Refused(refusal)) => batch::all(spaces.len(), &refusal.into()),
        Ok(_) => batch::all(spaces.len(), &Error::misfit()),
        Err(error) => batch::all(spaces.len(), &error),
    }
}

fn answer(
    inner: &Arc<Inner>,
    held: &PutReservations<'_>,
    space: &SpaceRequest,
    space_wait: SpaceWait,
    outcome: ReserveOutcome,
) -> Result<Reserved, Error> {
    let (key, len) = (space.key.clone(), space.len);
    match outcome {
        ReserveOutcome::Space(ready) => {
            let reserved_space = Mutex::new(Some(ReservedSpace::new(inner, held, ready)));
            let gate = RwLock::new(());
            Ok(Reserved { inner: Arc::clone(inner), space: space.clone(), space_wait, reserved_space, gate })
        }
        ReserveOutcome::Exists(generation) => Err(Error::Exists { key, generation }),
        ReserveOutcome::Full(full) => Err(Error::full(key, len, full)),
        ReserveOutcome::NoNode => Err(Error::NoNode { key }),
        ReserveOutcome::OverQuota(quota) => Err(Error::OverQuota { key, quota }),
        ReserveOutcome::Behind(backlog) => Err(Error::Behind { key, backlog }),
        ReserveOutcome::Invalid(what) => Err(Error::Invalid { what }),
    }
}

pub(crate) async fn put_reserved(
    inner: &Inner,
    items: &[(&Reserved, Vec<SourceBuf<'_>>)],
    deadline: Deadline,
) -> Vec<Result<Stored, Error>> {
    let (mut puts, mut reserved_spaces, mut refused) =
        (Vec::new(), Vec::new(), Vec::with_capacity(items.len()));
    for (reserved, parts) in items {
        let SpaceRequest { key, options, .. } = &reserved.space;
        let put = Put { key: key.clone(), parts: parts.clone(), options: options.clone() };
        let taken = match timeout_at(deadline.instant(), reserved.gate.write()).await {
            Ok(_alone) => reserved.take(inner, &put),
            Err(_) => Err(Error::timeout("waiting to put")),
        };
        match taken {
            Ok(reserved_space) => {
                reserved_spaces.push(reserved_space);
                puts.push(put);
                refused.push(None);
            }
            Err(error) => refused.push(Some(error)),
        }
    }
    let space_wait = items.iter().map(|(it, _)| it.space_wait).max_by_key(|it| it.wait_ms(deadline));
    let stored =
        put::put_ready(inner, &puts, reserved_spaces, space_wait.unwrap_or_default(), deadline).await;
    let mut stored = stored.into_iter();
    let mut next = || stored.next().unwrap_or_else(|| Err(Error::misfit()));
    refused.into_iter().map(|it| it.map_or_else(&mut next, Err)).collect()
}
