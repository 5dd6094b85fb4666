//! The Rust client of Tiffin: puts, gets, views, samples, and the names and lifetimes of objects.
//!
//! Every call takes many items and returns one outcome per item; a single item is a batch of one. Every
//! call takes a [`Deadline`] and ends by then, whatever the peer does.
//!
//! ```
//! # use std::time::Duration;
//! use tiffin_client::{Deadline, GetOptions, Key, Put};
//! use tiffin_embedded::Embedded;
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A whole store inside this process. `Client::connect` joins one that runs elsewhere.
//! let store = Embedded::start(64 << 20).await?;
//! let client = &store.client;
//! let soon = || Deadline::after(Duration::from_secs(10));
//!
//! let key = Key::new(b"greeting")?;
//! for stored in client.put(&[Put::new(key.clone(), b"hello")], soon()).await {
//!     println!("stored as generation {}", stored?.generation);
//! }
//! for object in client.get(&[key], GetOptions::default(), soon()).await {
//!     assert_eq!(object?.bytes, b"hello");
//! }
//! store.stop(soon()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Lifetime of objects
//!
//! An object stays until it is deleted, replaced, or evicted.
//!
//! - [`Client::pin`] protects it from eviction on behalf of an owner.
//! - [`Client::put_with`] waits for space instead of failing; [`Client::reserve`] requests space before the
//!   bytes exist.
//! - [`Client::set_policy`] limits a namespace; [`Client::wait_usage`] waits until its usage reaches a
//!   mark.
//! - [`Client::why`] says what keeps an object, or how it was removed.
//!
//! # Samples
//!
//! A sample is a group of tensors that is put as one object and consumed. It is never evicted. It is
//! removed when every group that is to consume it has acknowledged it.
//!
//! ```
//! # use std::time::Duration;
//! use tiffin_client::{Acked, Deadline, Dtype, Key, SpaceWait, SamplePut, TensorRef};
//! use tiffin_embedded::Embedded;
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = Embedded::start(64 << 20).await?;
//! # let client = &store.client;
//! # let soon = || Deadline::after(Duration::from_secs(10));
//! let mask = TensorRef::new("mask", Dtype::Bool, &[2, 2], &[1, 0, 0, 1]);
//! let sample = SamplePut::new(Key::new(b"step-1/sample-7")?, vec![mask]);
//! // Waits for space if there is none.
//! let mut stored = client.put_samples(&[sample], SpaceWait::UntilDeadline, soon()).await;
//! let sample = stored.remove(0)?;
//!
//! let wanted = [(sample.id.clone(), Some(sample.generation))];
//! for lease in client.lease(&wanted, "trainer", soon()).await {
//!     let lease = lease?;
//!     assert_eq!(lease.manifest().tensors[0].shape, [2, 2]);
//!     assert_eq!(lease.read(&["mask"], soon()).await?, [[1, 0, 0, 1]]);
//! }
//! // When this returns, the space is free.
//! let acked = client.ack(&[(sample.id, sample.generation)], "trainer", soon()).await;
//! assert_eq!(acked, [Ok(Acked::Freed)]);
//! # store.stop(soon()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Data paths
//!
//! The client detects how it reaches each node, and [`Client::routes`] reports it. A node in the same
//! process is accessed directly, a node of the same host and user through shared memory, any other through
//! its data socket. [`Client::counters`] counts the bytes of each path.
//!
//! # Forked processes
//!
//! A client must not be used in a child that was forked from its process: its sockets and tasks belong to
//! the parent. Calls in the child fail with [`Error::Forked`]. The child must not drop the client either:
//! it calls [`std::mem::forget`] and connects again with [`Client::options`].

mod batch;
mod buffers;
mod cached;
mod carried;
mod chores;
mod error;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod get;
mod hedge;
mod inner;
mod lease;
mod leases;
mod lifetimes;
mod link;
mod located;
mod locations;
mod losses;
mod manifest;
mod measured;
mod names;
mod nodes;
mod options;
mod paces;
mod pieces;
mod preallocated;
mod prefetch;
mod put;
mod queued;
pub mod relocate;
mod reservations;
mod reserved;
mod route;
mod running;
mod sample;
mod stream;
mod tend;
mod traced;
mod types;
mod unfinished;
mod view;

use std::sync::Arc;

pub use error::Error;
pub use get::Landing;
pub use lease::{Acked, Lease, LeaseRead};
pub use losses::Losses;
pub use manifest::{
    DIMENSIONS_MAX, Dtype, METADATA_BYTES_MAX, Manifest, NAME_BYTES_MAX, TENSOR_ALIGN, TENSORS_MAX, Tensor,
    UnknownDtype,
};
pub use options::{
    ConnectOptions, Deadline, DeleteOptions, GetOptions, ListOptions, ResolveOptions, SpaceWait,
};
pub use pieces::Piece;
pub use queued::{QueueInto, QueuedGet};
pub use reserved::{Reserved, SpaceRequest};
pub use sample::{SamplePut, SampleRef, TensorRef};
pub use stream::{Pull, Pulled, StreamEnd, StreamPage};
pub use tiffin_measure::{self as measure, Measures, Operation, Path};
pub use tiffin_rpc::{Blocking, EtcdAccess, with_blocking};
pub use tiffin_trace as trace;
pub use tiffin_transport::checksum::checksum;
pub use tiffin_transport::{
    Counters, DeviceMemory, SourceBuf, TargetBuf, arena, device_rates, gpu, probe, queued::OwnedTarget,
    this_process,
};
pub use tiffin_types::attributes::Consumption;
pub use tiffin_types::message::{
    Ahead, Attach, Backlog, Cause, CopyStat, CopyWait, DeletedMatching, Demotion, Forgotten, Found, Gone,
    GroupStat, Held, Here, Holder, ListItem, Listed, NamespaceStat, NodeInfo, NodeStat, OnExists, OpenStream,
    Pattern, Policy, PolicyChange, PrefetchOutcome, PutOptions, Quota, Resource, SOFT_PIN_DEFAULT, Stat,
    StreamLimits, StreamStat, TierStat, Usage, Why,
};
pub use tiffin_types::{ClientId, ClusterId, Generation, Key, KeyError, Keys, Location, SegmentId};
pub use types::{
    Fetched, GetInto, Info, Object, Part, Presences, Put, PutEffect, Replica, Route, Stored, Watermark, Way,
};
pub use view::View;

use tiffin_rpc::host;

use crate::inner::Inner;

/// A connected client. Clones are cheap and share all state. It may be used from many tasks at once.
///
/// The client connects to a node when it first needs it, and reconnects after a failure. When the last
/// clone and the last borrowed [`View`] are dropped, the client disconnects in the background.
/// [`Self::close`] does the same and waits.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to a master. Must be called inside a tokio runtime that outlives the client.
    pub async fn connect(options: ConnectOptions) -> Result<Self, Error> {
        let (inner, chores) = Inner::connect(options).await?;
        tokio::spawn(tend::run(std::sync::Arc::downgrade(&inner), chores));
        Ok(Self { inner })
    }

    /// Whether the master has tenants: then only namespaces with a quota may be written to.
    #[must_use]
    pub fn has_tenants(&self) -> bool {
        self.inner.has_tenants()
    }

    /// Stores objects. After a put has succeeded, every client can read the object.
    ///
    /// A put that fails with [`Error::Timeout`] or [`Error::Unreachable`] may still have stored its object.
    /// Dropping the future is safe: reserved memory is released. If there is no space, the put fails at
    /// once; [`Self::put_with`] can wait.
    pub async fn put(&self, puts: &[Put<'_>], deadline: Deadline) -> Vec<Result<Stored, Error>> {
        self.put_with(puts, SpaceWait::Never, deadline).await
    }

    /// Stores objects as [`Self::put`] does, and waits for space as `space_wait` allows.
    ///
    /// A put without space at the deadline fails with [`Error::Full`] or [`Error::OverQuota`], in time.
    pub async fn put_with(
        &self,
        puts: &[Put<'_>],
        space_wait: SpaceWait,
        deadline: Deadline,
    ) -> Vec<Result<Stored, Error>> {
        match self.inner.enter("put", deadline) {
            Ok(busy) => busy.run(put::put(&self.inner, puts, space_wait, deadline)).await,
            Err(error) => batch::all(puts.len(), &error),
        }
    }

    /// Reserves space before the bytes exist. Reserved space can be written however full the store is by
    /// then. A reservation that may wait joins the same queue as puts.
    ///
    /// Without space it fails with [`Error::Full`] or [`Error::OverQuota`], as a put would. If the name
    /// exists and must not be replaced, it fails with [`Error::Exists`] at once.
    pub async fn reserve(
        &self,
        spaces: &[SpaceRequest],
        space_wait: SpaceWait,
        deadline: Deadline,
    ) -> Vec<Result<Reserved, Error>> {
        match self.inner.enter("reserve", deadline) {
            Ok(busy) => busy.run(reserved::reserve(&self.inner, spaces, space_wait, deadline)).await,
            Err(error) => batch::all(spaces.len(), &error),
        }
    }

    /// Stores objects in space that this client has reserved, each as [`Reserved::put`] does.
    pub async fn put_reserved(
        &self,
        puts: &[(&Reserved, Vec<SourceBuf<'_>>)],
        deadline: Deadline,
    ) -> Vec<Result<Stored, Error>> {
        match self.inner.enter("put_reserved", deadline) {
            Ok(busy) => busy.run(reserved::put_reserved(&self.inner, puts, deadline)).await,
            Err(error) => batch::all(puts.len(), &error),
        }
    }

    /// Writes pieces of objects into space that this client has reserved. They can be read only after
    /// [`Self::commit_reserved`]. A piece that fails leaves the bytes of its range unspecified.
    pub async fn write_reserved(
        &self,
        pieces: &[(&Reserved, Piece<'_>)],
        deadline: Deadline,
    ) -> Vec<Result<(), Error>> {
        match self.inner.enter("write_reserved", deadline) {
            Ok(busy) => busy.run(pieces::write(&self.inner, pieces, deadline)).await,
            Err(error) => batch::all(pieces.len(), &error),
        }
    }

    /// Stores objects that were written with [`Self::write_reserved`]: waits for writes in progress, then
    /// commits. Bytes that no piece has written are unspecified. The reserved space is used up, even if the
    /// commit fails.
    pub async fn commit_reserved(
        &self,
        reserved: &[&Reserved],
        deadline: Deadline,
    ) -> Vec<Result<Stored, Error>> {
        match self.inner.enter("commit_reserved", deadline) {
            Ok(busy) => busy.run(pieces::commit(&self.inner, reserved, deadline)).await,
            Err(error) => batch::all(reserved.len(), &error),
        }
    }

    /// Reads objects into newly allocated memory.
    pub async fn get(
        &self,
        keys: &[Key],
        options: GetOptions,
        deadline: Deadline,
    ) -> Vec<Result<Object, Error>> {
        match self.inner.enter("get", deadline) {
            Ok(busy) => busy.run(buffers::get_owned(&self.inner, keys, Vec::new(), options, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Reads objects into the caller's memory.
    ///
    /// If the buffer is too small, nothing is written. After any other error its content is unspecified.
    pub async fn get_into(
        &self,
        items: &[GetInto<'_>],
        options: GetOptions,
        deadline: Deadline,
    ) -> Vec<Result<Fetched, Error>> {
        match self.inner.enter("get", deadline) {
            Ok(busy) => busy.run(get::get_into(&self.inner, items, options, deadline)).await,
            Err(error) => batch::all(items.len(), &error),
        }
    }

    /// Reads objects into memory that the caller provides once the size is known. After `Ok`, the memory
    /// provided last for that item is full; after [`Error::TooSmall`], none was provided.
    pub async fn get_landing<'a>(
        &self,
        keys: &[Key],
        landing: &impl Landing<'a>,
        options: GetOptions,
        deadline: Deadline,
    ) -> Vec<Result<Fetched, Error>> {
        match self.inner.enter("get", deadline) {
            Ok(busy) => busy.run(get::drive(&self.inner, keys, landing, options, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Resolves objects without reading them: whether they exist, how large they are, where they are
    /// stored. `None` means that the object does not exist.
    pub async fn resolve(
        &self,
        keys: &[Key],
        options: ResolveOptions,
        deadline: Deadline,
    ) -> Vec<Result<Option<Info>, Error>> {
        match self.inner.enter_for(Operation::Exists, deadline) {
            Ok(busy) => busy.run(names::resolve(&self.inner, keys, options, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Checks whether objects exist: the cheapest request. `options.locate` has no effect here.
    pub async fn exists(
        &self,
        keys: &[Key],
        options: ResolveOptions,
        deadline: Deadline,
    ) -> Vec<Result<bool, Error>> {
        self.exists_packed(&keys.iter().collect(), options, deadline).await.into_results()
    }

    /// Checks the same for names that are packed in one buffer. This is cheaper if the names are not
    /// available as keys.
    pub async fn exists_packed(&self, keys: &Keys, options: ResolveOptions, deadline: Deadline) -> Presences {
        match self.inner.enter_for(Operation::Exists, deadline) {
            Ok(busy) => busy.run(names::exists(&self.inner, keys, options, deadline)).await,
            Err(error) => Presences::failed(keys.len(), &error),
        }
    }

    /// Promotes objects that are only on a disk into memory. Returns the outcome of each when all have
    /// ended or the deadline has passed. If the future is dropped earlier, promotions continue.
    pub async fn prefetch(
        &self,
        keys: &[Key],
        ahead: Ahead,
        deadline: Deadline,
    ) -> Vec<Result<PrefetchOutcome, Error>> {
        match self.inner.enter_for(Operation::Prefetch, deadline) {
            Ok(busy) => busy.run(prefetch::prefetch(&self.inner, keys, ahead, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Cancels promotions that only this client requested. Those not finished yet are
    /// [`PrefetchOutcome::Cancelled`]; those about to finish still arrive ([`PrefetchOutcome::Running`]).
    pub async fn cancel_prefetch(
        &self,
        keys: &[Key],
        deadline: Deadline,
    ) -> Vec<Result<PrefetchOutcome, Error>> {
        match self.inner.enter("cancel_prefetch", deadline) {
            Ok(busy) => busy.run(prefetch::cancel(&self.inner, keys, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Deletes objects, and returns for each whether it existed.
    ///
    /// After `Ok` no read of any copy can start; only views that began before still see it. A node that
    /// could not be reached in time is named in [`Error::Unconfirmed`].
    pub async fn delete(
        &self,
        keys: &[Key],
        options: DeleteOptions,
        deadline: Deadline,
    ) -> Vec<Result<bool, Error>> {
        match self.inner.enter_for(Operation::Delete, deadline) {
            Ok(busy) => busy.run(names::delete(&self.inner, keys, options, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Deletes all objects that match. Returns their number, and the nodes that could not confirm.
    pub async fn delete_matching(
        &self,
        pattern: Pattern,
        options: DeleteOptions,
        deadline: Deadline,
    ) -> Result<DeletedMatching, Error> {
        let busy = self.inner.enter_for(Operation::Delete, deadline)?;
        busy.run(names::delete_matching(&self.inner, pattern, options, deadline)).await
    }

    /// Lists all objects that match, in the order of their keys.
    ///
    /// The list is not a snapshot: objects that are put or deleted meanwhile may or may not be listed.
    pub async fn list(&self, pattern: Pattern, deadline: Deadline) -> Result<Vec<ListItem>, Error> {
        self.list_with(pattern, &ListOptions::default(), deadline).await
    }

    /// Lists the objects that match and that the options select, in the order of their keys.
    ///
    /// The master has no order of keys, so each call visits all objects, also with a limit. To visit many
    /// objects in parts, use [`Client::list_page`].
    pub async fn list_with(
        &self,
        pattern: Pattern,
        options: &ListOptions,
        deadline: Deadline,
    ) -> Result<Vec<ListItem>, Error> {
        let busy = self.inner.enter_for(Operation::List, deadline)?;
        busy.run(names::list(&self.inner, pattern, options, deadline)).await
    }

    /// Lists some of the objects that match, in arbitrary order, from the cursor of the previous page on.
    /// The first cursor is 0, and so is the cursor of the last page. A page may be empty.
    ///
    /// An object that exists during the whole walk is on one page, or on two if it was replaced meanwhile.
    pub async fn list_page(
        &self,
        pattern: &Pattern,
        pinned_by: Option<&str>,
        (cursor, limit): (u64, u32),
        deadline: Deadline,
    ) -> Result<Listed, Error> {
        let busy = self.inner.enter_for(Operation::List, deadline)?;
        busy.run(names::page(&self.inner, pattern, pinned_by, (cursor, limit), deadline)).await
    }

    /// Describes the cluster as the master sees it.
    pub async fn stat(&self, deadline: Deadline) -> Result<Stat, Error> {
        let busy = self.inner.enter("stat", deadline)?;
        busy.run(names::stat(&self.inner, deadline)).await
    }

    /// Protects objects from eviction, on behalf of an owner. Pinning twice has no further effect.
    ///
    /// After `Ok` the nodes have recorded the pin, and it survives a restart of the master. It ends with
    /// [`Self::unpin`], [`Self::drop_pins`], or the object. Pinned objects can be deleted.
    pub async fn pin(&self, keys: &[Key], owner: &str, deadline: Deadline) -> Vec<Result<(), Error>> {
        match self.inner.enter("pin", deadline) {
            Ok(busy) => {
                let pinned = busy.run(lifetimes::pin(&self.inner, keys, owner, true, deadline)).await;
                pinned.into_iter().map(|it| it.map(|_| ())).collect()
            }
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Ends an owner's pins of these objects, and returns for each whether the owner had pinned it. The
    /// objects stay.
    pub async fn unpin(&self, keys: &[Key], owner: &str, deadline: Deadline) -> Vec<Result<bool, Error>> {
        match self.inner.enter("unpin", deadline) {
            Ok(busy) => busy.run(lifetimes::pin(&self.inner, keys, owner, false, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Ends all pins of an owner. Returns their number, and the nodes that could not confirm.
    pub async fn drop_pins(&self, owner: &str, deadline: Deadline) -> Result<DeletedMatching, Error> {
        let busy = self.inner.enter("drop_pins", deadline)?;
        busy.run(lifetimes::drop_pins(&self.inner, owner, deadline)).await
    }

    /// Changes the limits of this client's namespace that the change names. Existing objects stay.
    pub async fn set_policy(&self, change: PolicyChange, deadline: Deadline) -> Result<(), Error> {
        let busy = self.inner.enter("set_policy", deadline)?;
        busy.run(lifetimes::set_policy(&self.inner, change, deadline)).await
    }

    /// Declares the disconnected node or disk of that name, or of that segment id, lost: objects that only it
    /// holds are removed. A lost node that returns starts empty. A name that several of them have is refused.
    pub async fn forget_node(&self, name: &str, deadline: Deadline) -> Result<Forgotten, Error> {
        let busy = self.inner.enter("forget_node", deadline)?;
        busy.run(lifetimes::forget_node(&self.inner, name, deadline)).await
    }

    /// Lets the members of another cluster join this one, with their objects. For a cluster whose master has
    /// lost its state after a new node had joined.
    pub async fn admit_cluster(&self, cluster: ClusterId, deadline: Deadline) -> Result<(), Error> {
        let busy = self.inner.enter("admit_cluster", deadline)?;
        busy.run(lifetimes::admit_cluster(&self.inner, cluster, deadline)).await
    }

    /// Waits until the usage of the namespace reaches a mark, and returns the usage. The master sends a
    /// notification; there is no polling. Fails with [`Error::Timeout`] at the deadline.
    pub async fn wait_usage(&self, until: Watermark, deadline: Deadline) -> Result<NamespaceStat, Error> {
        let busy = self.inner.enter("wait_usage", deadline)?;
        busy.run(lifetimes::wait_usage(&self.inner, until, deadline)).await
    }

    /// Explains what keeps objects, or how they were removed.
    pub async fn why(&self, keys: &[Key], deadline: Deadline) -> Vec<Result<Why, Error>> {
        match self.inner.enter("why", deadline) {
            Ok(busy) => busy.run(lifetimes::why(&self.inner, keys, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Stores samples: each is visible as a whole, or not at all.
    ///
    /// If the id exists, the sample replaces the old one or fails with [`Error::Exists`], as its options
    /// say.
    pub async fn put_samples(
        &self,
        samples: &[SamplePut<'_>],
        space_wait: SpaceWait,
        deadline: Deadline,
    ) -> Vec<Result<SampleRef, Error>> {
        match self.inner.enter("put_samples", deadline) {
            Ok(busy) => busy.run(sample::put_samples(&self.inner, samples, space_wait, deadline)).await,
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Leases samples on behalf of a consumer group, and reads their manifests. If a generation is given
    /// and the sample has another, the result is [`Error::Superseded`].
    pub async fn lease(
        &self,
        samples: &[(Key, Option<Generation>)],
        group: &str,
        deadline: Deadline,
    ) -> Vec<Result<Lease, Error>> {
        match self.inner.enter_for(Operation::Lease, deadline) {
            Ok(busy) => busy.run(lease::lease(&self.inner, samples, group, deadline)).await,
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Reads the manifests of samples and their generations, without leasing them.
    pub async fn manifests(
        &self,
        keys: &[Key],
        deadline: Deadline,
    ) -> Vec<Result<(Manifest, Generation), Error>> {
        match self.inner.enter("manifests", deadline) {
            Ok(busy) => busy.run(lease::manifests(&self.inner, keys, deadline)).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Reads tensors of leased samples into the caller's memory. Per sample, all requested tensors are
    /// read, or the result is an error. The leases must be this client's.
    pub async fn read_leased(
        &self,
        reads: &[LeaseRead<'_, '_>],
        deadline: Deadline,
    ) -> Vec<Result<(), Error>> {
        match self.inner.enter("read_leased", deadline) {
            Ok(busy) => busy.run(lease::read(&self.inner, reads, deadline)).await,
            Err(error) => batch::all(reads.len(), &error),
        }
    }

    /// Ends leases of this client without consuming the samples. A lease that has already ended is not an
    /// error.
    pub async fn release(&self, leases: &[&Lease], deadline: Deadline) -> Result<(), Error> {
        let busy = self.inner.enter("release", deadline)?;
        busy.run(lease::release(&self.inner, leases, deadline)).await
    }

    /// Acknowledges samples on behalf of a consumer group; no lease is needed. A sample that every group
    /// has consumed is removed when this returns, and its space is free for the next call of any client.
    pub async fn ack(
        &self,
        samples: &[(Key, Generation)],
        group: &str,
        deadline: Deadline,
    ) -> Vec<Result<Acked, Error>> {
        match self.inner.enter_for(Operation::Ack, deadline) {
            Ok(busy) => {
                busy.run(lease::ack(&self.inner, samples, group, lease::How::default(), deadline)).await
            }
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Acknowledges samples as [`Self::ack`] does, but keeps those that a client has leased: these are
    /// [`Acked::Recorded`]. If such a sample is consumed, the end of its last lease frees it.
    pub async fn ack_unless_leased(
        &self,
        samples: &[(Key, Generation)],
        group: &str,
        deadline: Deadline,
    ) -> Vec<Result<Acked, Error>> {
        match self.inner.enter_for(Operation::Ack, deadline) {
            Ok(busy) => {
                let how = lease::How { unless_leased: true, abort: false };
                busy.run(lease::ack(&self.inner, samples, group, how, deadline)).await
            }
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Opens a stream or queries its state: sets its limits, and makes this client a member of a consumer
    /// group. A window that could never be filled is [`Error::Invalid`], with the arithmetic.
    ///
    /// A stream is made of the samples that were put with its name ([`PutOptions::stream`]), in that order.
    pub async fn open_stream(&self, open: OpenStream, deadline: Deadline) -> Result<StreamStat, Error> {
        let busy = self.inner.enter("open_stream", deadline)?;
        busy.run(stream::open(&self.inner, open, deadline)).await
    }

    /// Ends a stream: nothing can be appended. Readers see the end after the last sample. They see a
    /// failure, if one is given, at once.
    pub async fn end_stream(
        &self,
        name: &str,
        failure: Option<String>,
        deadline: Deadline,
    ) -> Result<StreamStat, Error> {
        let busy = self.inner.enter("end_stream", deadline)?;
        busy.run(stream::end(&self.inner, name, failure, deadline)).await
    }

    /// Deletes all remaining samples of a stream. Returns their number, and the nodes that could not
    /// confirm. Its readers see a failure.
    pub async fn drop_stream(&self, name: &str, deadline: Deadline) -> Result<DeletedMatching, Error> {
        let busy = self.inner.enter("drop_stream", deadline)?;
        busy.run(stream::drop_all(&self.inner, name, deadline)).await
    }

    /// Leases the next samples of a stream that no other client of the group has leased or acknowledged.
    /// The master notifies waiting clients; there is no polling. At the deadline it returns what it has,
    /// possibly nothing.
    ///
    /// A pulled sample is delivered to the group again if its lease ends without an acknowledgement.
    pub async fn pull(&self, pull: &Pull, deadline: Deadline) -> Result<Pulled, Error> {
        let busy = self.inner.enter_for(Operation::Pull, deadline)?;
        busy.run(stream::pull(&self.inner, pull, deadline)).await
    }

    /// Lists the samples of a stream after a position, leased or not, without leasing any. Waits for the
    /// first one.
    pub async fn list_samples(
        &self,
        stream: &str,
        after: Generation,
        limit: u32,
        deadline: Deadline,
    ) -> Result<StreamPage, Error> {
        let busy = self.inner.enter("list_samples", deadline)?;
        busy.run(stream::list_samples(&self.inner, stream, after, limit, deadline)).await
    }

    /// Aborts samples: no group is to consume them. When this returns, they are removed for every process
    /// and their space is free. Returns for each whether it existed. A ref of another generation removes
    /// nothing. With `unless_leased`, leased samples stay.
    pub async fn abort(
        &self,
        samples: &[(Key, Generation)],
        unless_leased: bool,
        deadline: Deadline,
    ) -> Vec<Result<bool, Error>> {
        match self.inner.enter("abort", deadline) {
            Ok(busy) => {
                let how = lease::How { abort: true, unless_leased };
                let acked = busy.run(lease::ack(&self.inner, samples, "", how, deadline)).await;
                acked.into_iter().map(|it| it.map(|acked| acked == Acked::Freed)).collect()
            }
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Connects to nodes before they are needed, and returns how each is reached.
    pub async fn meet(&self, nodes: &[NodeInfo], deadline: Deadline) -> Vec<Route> {
        match self.inner.enter("meet", deadline) {
            Ok(_busy) => self.inner.nodes.meet(nodes, deadline).await,
            Err(_) => Vec::new(),
        }
    }

    /// The nodes that this client has connected to, and how it reaches them.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        self.inner.nodes.routes()
    }

    /// Number of nodes that could not be reached and are not tried for a while. [`Client::routes`] says why.
    #[must_use]
    pub fn avoided_nodes(&self) -> u64 {
        self.inner.nodes.avoided()
    }

    /// Bytes moved by this client, by data path.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Latencies of this client's calls, by operation and path. Its heartbeats send them to the master.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.inner.measured.measures
    }

    /// Number of hedged reads. The client starts one when no byte of a read arrives within a few times the
    /// usual latency. It uses the stalled node last for a while.
    #[must_use]
    pub fn hedged_reads(&self) -> u64 {
        self.inner.paces.hedged()
    }

    /// Number of objects that this client has read from disks. Parts of an object that were requested
    /// separately count separately.
    #[must_use]
    pub fn disk_reads(&self) -> u64 {
        self.inner.nodes.disk_reads()
    }

    /// Exports the spans of traced calls, if a collector is set ([`ConnectOptions::trace`]).
    #[must_use]
    pub fn tracer(&self) -> Option<&trace::Tracer> {
        self.inner.tracer.as_ref()
    }

    /// The id of this client. It never changes.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.inner.id()
    }

    /// The options of this client, to connect another one in the same way.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.inner.options
    }

    /// Disconnects. Waits for calls in progress; later calls fail with [`Error::Closed`]. Closing twice is
    /// allowed.
    ///
    /// Borrowed views stay valid. Their nodes see the client disconnect when the last view is dropped.
    pub async fn close(&self, deadline: Deadline) -> Result<(), Error> {
        self.inner.close(deadline).await
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Client")
            .field("id", &self.inner.id())
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_views_are_send_and_sync() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Client>();
        check::<View>();
        check::<Object>();
        check::<Error>();
        check::<Lease>();
        check::<Reserved>();
    }

    #[test]
    fn hint_is_separated_from_its_message() {
        let message = "lost\n\nhint: retry";
        assert_eq!(error::without_hint(message), "lost");
        assert_eq!(error::without_hint("plain"), "plain");
    }
}
