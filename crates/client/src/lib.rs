//! The Rust client of Tiffin: puts, gets, views, samples, and the names and lifetimes of objects.
//!
//! Every call takes many items and gives each an outcome of its own; a single item is a batch of one. Every
//! call takes a [`Deadline`] and has ended by then, whatever the other side does.
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
//! # How long things stay
//!
//! An object stays until it is deleted, replaced, or evicted to make room. [`Client::pin`] keeps it from
//! eviction on behalf of an owner; [`Client::put_with`] waits for room instead of failing, and
//! [`Client::reserve`] asks for it ahead of the bytes;
//! [`Client::set_policy`] limits a namespace, and [`Client::wait_usage`] waits until it has emptied or filled
//! so far. [`Client::why`] says who holds an object, or what took it away.
//!
//! # Samples
//!
//! A sample is a group of tensors that is put as one and consumed. It is never evicted: it is gone when
//! everybody who was to consume it has acknowledged it.
//!
//! ```
//! # use std::time::Duration;
//! use tiffin_client::{Acked, Deadline, Dtype, Key, Patience, SamplePut, TensorRef};
//! use tiffin_embedded::Embedded;
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = Embedded::start(64 << 20).await?;
//! # let client = &store.client;
//! # let soon = || Deadline::after(Duration::from_secs(10));
//! let mask = TensorRef::new("mask", Dtype::Bool, &[2, 2], &[1, 0, 0, 1]);
//! let sample = SamplePut::new(Key::new(b"step-1/sample-7")?, vec![mask]);
//! // Waits for room if there is none.
//! let mut stored = client.put_samples(&[sample], Patience::UntilDeadline, soon()).await;
//! let sample = stored.remove(0)?;
//!
//! let wanted = [(sample.id.clone(), Some(sample.generation))];
//! for lease in client.lease(&wanted, "trainer", soon()).await {
//!     let lease = lease?;
//!     assert_eq!(lease.manifest().tensors[0].shape, [2, 2]);
//!     assert_eq!(lease.read(&["mask"], soon()).await?, [[1, 0, 0, 1]]);
//! }
//! // The room can be used again when this returns.
//! let acked = client.ack(&[(sample.id, sample.generation)], "trainer", soon()).await;
//! assert_eq!(acked, [Ok(Acked::Freed)]);
//! # store.stop(soon()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which way the bytes go
//!
//! A client finds out by itself how it may reach each node, and says so in [`Client::routes`]: a node in
//! its own process directly, a node of the same host and user through shared memory, any other through its
//! data socket. [`Client::counters`] counts the bytes of each way.
//!
//! # Forked processes
//!
//! A client must not be used in a child that was forked from its process: sockets and tasks are its parent's.
//! Calls then fail with [`Error::Forked`], and dropping the client there is no good either: forget it with
//! [`std::mem::forget`] and connect again with [`Client::options`].

mod batch;
mod buffers;
mod cached;
mod carried;
mod chores;
mod error;
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
mod names;
mod nodes;
mod offers;
mod options;
mod paces;
mod pieces;
mod preallocated;
mod prefetch;
mod put;
mod reservations;
mod reserved;
mod route;
mod running;
mod sample;
mod stream;
mod tend;
mod types;
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
pub use options::{ConnectOptions, Deadline, DeleteOptions, GetOptions, Patience, ResolveOptions};
pub use pieces::Piece;
pub use reserved::{Reserved, SpaceRequest};
pub use sample::{SamplePut, SampleRef, TensorRef};
pub use stream::{Pull, Pulled, Seen, StreamEnd};
pub use tiffin_rpc::{Blocking, with_blocking};
pub use tiffin_transport::checksum::checksum;
pub use tiffin_transport::{Counters, SourceBuf, TargetBuf, arena, probe, this_process};
pub use tiffin_types::attributes::Consumption;
pub use tiffin_types::message::{
    Ahead, Attach, Backlog, Cause, DeletedMatching, Demotion, Forgotten, Found, Gone, GroupStat, Held, Here,
    Holder, ListItem, NamespaceStat, NodeInfo, NodeStat, OnExists, OpenStream, Pattern, Policy, PolicyChange,
    PrefetchOutcome, PutOptions, Quota, Resource, SOFT_PIN_DEFAULT, Stat, StreamLimits, StreamStat, TierStat,
    Usage, Why,
};
pub use tiffin_types::{ClientId, Generation, Key, KeyError, Keys, Location, SegmentId};
pub use types::{
    Fetched, GetInto, Info, Object, Part, Presences, Put, PutEffect, Replica, Route, Stored, Watermark, Way,
};
pub use view::View;

use tiffin_rpc::host;

use crate::inner::Inner;

/// A connected client. Clones are cheap and share everything; it may be used from many tasks at once.
///
/// Connections to nodes are made when they are needed, and made again when they have broken. When the last
/// clone and the last borrowed [`View`] are dropped, the client says goodbye in the background;
/// [`Self::close`] does the same and waits for it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to a master. Must be called inside a tokio runtime, which has to live as long as the client.
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

    /// Stores objects. When a put has succeeded, the object can be read by everybody at once.
    ///
    /// A put that fails with [`Error::Timeout`] or [`Error::Unreachable`] may have stored its object all
    /// the same. Dropping the future is safe: what was reserved is given back.
    /// If there is no room it fails at once; [`Self::put_with`] can wait for it.
    pub async fn put(&self, puts: &[Put<'_>], deadline: Deadline) -> Vec<Result<Stored, Error>> {
        self.put_with(puts, Patience::Never, deadline).await
    }

    /// Stores objects as [`Self::put`] does, and waits for room if it may.
    ///
    /// What still finds none at the deadline fails with [`Error::Full`] or [`Error::OverQuota`], in time.
    pub async fn put_with(
        &self,
        puts: &[Put<'_>],
        patience: Patience,
        deadline: Deadline,
    ) -> Vec<Result<Stored, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => put::put(&self.inner, puts, patience, deadline).await,
            Err(error) => batch::all(puts.len(), &error),
        }
    }

    /// Reserves room ahead of the bytes: what is reserved can be put, however full the store is by then. Who
    /// may wait stands in the same line as puts.
    ///
    /// What finds no room fails with [`Error::Full`] or [`Error::OverQuota`], as a put would. A name that
    /// exists, and is not to be replaced, fails with [`Error::Exists`] at once.
    pub async fn reserve(
        &self,
        spaces: &[SpaceRequest],
        patience: Patience,
        deadline: Deadline,
    ) -> Vec<Result<Reserved, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => reserved::reserve(&self.inner, spaces, patience, deadline).await,
            Err(error) => batch::all(spaces.len(), &error),
        }
    }

    /// Stores objects in room that this client has reserved, each as [`Reserved::put`] does.
    pub async fn put_reserved(
        &self,
        puts: &[(&Reserved, Vec<SourceBuf<'_>>)],
        deadline: Deadline,
    ) -> Vec<Result<Stored, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => reserved::put_reserved(&self.inner, puts, deadline).await,
            Err(error) => batch::all(puts.len(), &error),
        }
    }

    /// Writes pieces of objects into space that this client has reserved. Nothing can be read before
    /// [`Self::commit_reserved`]. A piece that fails leaves the bytes of its range unspecified.
    pub async fn write_reserved(
        &self,
        pieces: &[(&Reserved, Piece<'_>)],
        deadline: Deadline,
    ) -> Vec<Result<(), Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => pieces::write(&self.inner, pieces, deadline).await,
            Err(error) => batch::all(pieces.len(), &error),
        }
    }

    /// Stores objects that were written with [`Self::write_reserved`]: waits for writes in progress, then
    /// commits. Bytes that no piece has written are unspecified. The reserved space is used up, also where
    /// the commit fails.
    pub async fn commit_reserved(
        &self,
        reserved: &[&Reserved],
        deadline: Deadline,
    ) -> Vec<Result<Stored, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => pieces::commit(&self.inner, reserved, deadline).await,
            Err(error) => batch::all(reserved.len(), &error),
        }
    }

    /// Reads objects into memory of their own.
    pub async fn get(
        &self,
        keys: &[Key],
        options: GetOptions,
        deadline: Deadline,
    ) -> Vec<Result<Object, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => buffers::get_owned(&self.inner, keys, Vec::new(), options, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Reads objects into the caller's memory.
    ///
    /// If the room is too small, nothing is written. After any other error the content is unspecified.
    pub async fn get_into(
        &self,
        items: &[GetInto<'_>],
        options: GetOptions,
        deadline: Deadline,
    ) -> Vec<Result<Fetched, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => get::get_into(&self.inner, items, options, deadline).await,
            Err(error) => batch::all(items.len(), &error),
        }
    }

    /// Reads objects into memory that is asked for when their size is known. After `Ok` the memory that was
    /// given last for that item is full; after [`Error::TooSmall`] none was given.
    pub async fn get_landing<'a>(
        &self,
        keys: &[Key],
        landing: &impl Landing<'a>,
        options: GetOptions,
        deadline: Deadline,
    ) -> Vec<Result<Fetched, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => get::drive(&self.inner, keys, landing, options, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Looks at objects where they lie, without a copy, if they lie in one piece in memory that is mapped
    /// here; else makes a copy. [`View::is_borrowed`] tells which.
    pub async fn view(&self, keys: &[Key], deadline: Deadline) -> Vec<Result<View, Error>> {
        let parts: Vec<_> = keys.iter().map(|key| Part { key: key.clone(), range: None }).collect();
        self.view_parts(&parts, deadline).await
    }

    /// Looks at some bytes of objects as [`Self::view`] looks at all of them. A borrowed view keeps the whole
    /// object where it is.
    pub async fn view_parts(&self, parts: &[Part], deadline: Deadline) -> Vec<Result<View, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => view::view(&self.inner, parts, deadline).await,
            Err(error) => batch::all(parts.len(), &error),
        }
    }

    /// Looks objects up without reading them: whether they exist, how large they are, where they lie.
    /// `None` is for those that do not exist.
    pub async fn resolve(
        &self,
        keys: &[Key],
        options: ResolveOptions,
        deadline: Deadline,
    ) -> Vec<Result<Option<Info>, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => names::resolve(&self.inner, keys, options, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Whether objects are there: the cheapest question. What `options` say of locations does not matter.
    pub async fn exists(
        &self,
        keys: &[Key],
        options: ResolveOptions,
        deadline: Deadline,
    ) -> Vec<Result<bool, Error>> {
        self.exists_packed(&keys.iter().collect(), options, deadline).await.into_results()
    }

    /// The same for names that lie in one piece of memory, which is cheaper to make of names that are not at
    /// hand as keys.
    pub async fn exists_packed(&self, keys: &Keys, options: ResolveOptions, deadline: Deadline) -> Presences {
        match self.inner.enter(deadline) {
            Ok(_busy) => names::exists(&self.inner, keys, options, deadline).await,
            Err(error) => Presences::failed(keys.len(), &error),
        }
    }

    /// Brings objects that only a disk has into memory, and says what became of each, once all have ended or
    /// the deadline comes. What is dropped before that goes on, and nobody waits for it.
    pub async fn prefetch(
        &self,
        keys: &[Key],
        ahead: Ahead,
        deadline: Deadline,
    ) -> Vec<Result<PrefetchOutcome, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => prefetch::prefetch(&self.inner, keys, ahead, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Gives up what this client asked to bring and nobody else wants: what was not there yet is
    /// [`PrefetchOutcome::Cancelled`], and what is all but there still comes ([`PrefetchOutcome::Running`]).
    pub async fn cancel_prefetch(
        &self,
        keys: &[Key],
        deadline: Deadline,
    ) -> Vec<Result<PrefetchOutcome, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => prefetch::cancel(&self.inner, keys, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Deletes objects, and says of each whether it existed.
    ///
    /// After `Ok` no copy can be read any more, by anybody; only views that began before still see it. A node
    /// that could not be reached in time is named in [`Error::Unconfirmed`].
    pub async fn delete(
        &self,
        keys: &[Key],
        options: DeleteOptions,
        deadline: Deadline,
    ) -> Vec<Result<bool, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => names::delete(&self.inner, keys, options, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Deletes all objects that match, and says how many there were and which nodes could not confirm.
    pub async fn delete_matching(
        &self,
        pattern: Pattern,
        options: DeleteOptions,
        deadline: Deadline,
    ) -> Result<DeletedMatching, Error> {
        let _busy = self.inner.enter(deadline)?;
        names::delete_matching(&self.inner, pattern, options, deadline).await
    }

    /// Names all objects that match, in the order of their keys.
    ///
    /// It is no snapshot: what is put or deleted meanwhile may or may not be named.
    pub async fn list(&self, pattern: Pattern, deadline: Deadline) -> Result<Vec<ListItem>, Error> {
        let _busy = self.inner.enter(deadline)?;
        names::list(&self.inner, pattern, None, deadline).await
    }

    /// Names all objects that match and that this owner pins, in the order of their keys.
    pub async fn list_pinned(
        &self,
        pattern: Pattern,
        owner: &str,
        deadline: Deadline,
    ) -> Result<Vec<ListItem>, Error> {
        let _busy = self.inner.enter(deadline)?;
        names::list(&self.inner, pattern, Some(owner), deadline).await
    }

    /// Describes the cluster, as the master sees it.
    pub async fn stat(&self, deadline: Deadline) -> Result<Stat, Error> {
        let _busy = self.inner.enter(deadline)?;
        names::stat(&self.inner, deadline).await
    }

    /// Protects objects from eviction, on behalf of an owner. A pin that is there already is as good.
    ///
    /// After `Ok` the pin is in writing on the nodes, and outlives the master. It ends with [`Self::unpin`],
    /// [`Self::drop_pins`], or the object; pinned objects can be deleted.
    pub async fn pin(&self, keys: &[Key], owner: &str, deadline: Deadline) -> Vec<Result<(), Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => {
                let pinned = lifetimes::pin(&self.inner, keys, owner, true, deadline).await;
                pinned.into_iter().map(|it| it.map(|_| ())).collect()
            }
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Ends an owner's pins of these objects, which stay where they are, and says of each whether the owner
    /// had pinned it.
    pub async fn unpin(&self, keys: &[Key], owner: &str, deadline: Deadline) -> Vec<Result<bool, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => lifetimes::pin(&self.inner, keys, owner, false, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Ends all pins of an owner, and says how many there were and which nodes could not confirm.
    pub async fn drop_pins(&self, owner: &str, deadline: Deadline) -> Result<DeletedMatching, Error> {
        let _busy = self.inner.enter(deadline)?;
        lifetimes::drop_pins(&self.inner, owner, deadline).await
    }

    /// Changes the limits of this client's namespace: only those that the change names. Objects that are
    /// already there stay.
    pub async fn set_policy(&self, change: PolicyChange, deadline: Deadline) -> Result<(), Error> {
        let _busy = self.inner.enter(deadline)?;
        lifetimes::set_policy(&self.inner, change, deadline).await
    }

    /// Declares the nodes and disks of that name lost, which are not connected: objects that only they have
    /// are gone. One that returns nevertheless starts empty.
    pub async fn forget_node(&self, name: &str, deadline: Deadline) -> Result<Forgotten, Error> {
        let _busy = self.inner.enter(deadline)?;
        lifetimes::forget_node(&self.inner, name, deadline).await
    }

    /// Waits until the namespace has filled or emptied so far, and says how it is then. The master wakes it:
    /// nobody polls. [`Error::Timeout`] if the deadline comes first.
    pub async fn wait_usage(&self, until: Watermark, deadline: Deadline) -> Result<NamespaceStat, Error> {
        let _busy = self.inner.enter(deadline)?;
        lifetimes::wait_usage(&self.inner, until, deadline).await
    }

    /// Why objects are still here, or what took them away.
    pub async fn why(&self, keys: &[Key], deadline: Deadline) -> Vec<Result<Why, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => lifetimes::why(&self.inner, keys, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Stores samples: each is visible as a whole, or not at all.
    ///
    /// A sample whose id exists takes its place, or fails with [`Error::Exists`], as its options say.
    pub async fn put_samples(
        &self,
        samples: &[SamplePut<'_>],
        patience: Patience,
        deadline: Deadline,
    ) -> Vec<Result<SampleRef, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => sample::put_samples(&self.inner, samples, patience, deadline).await,
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Leases samples on behalf of a consumer group, and reads what they are made of. Where a generation is
    /// given, another one is [`Error::Superseded`].
    pub async fn lease(
        &self,
        samples: &[(Key, Option<Generation>)],
        group: &str,
        deadline: Deadline,
    ) -> Vec<Result<Lease, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => lease::lease(&self.inner, samples, group, deadline).await,
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// What samples are made of, and which generation that is, without leasing them.
    pub async fn manifests(
        &self,
        keys: &[Key],
        deadline: Deadline,
    ) -> Vec<Result<(Manifest, Generation), Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => lease::manifests(&self.inner, keys, deadline).await,
            Err(error) => batch::all(keys.len(), &error),
        }
    }

    /// Reads tensors of leased samples into the caller's memory: of each sample all that is asked for, or an
    /// error. The leases are this client's.
    pub async fn read_leased(
        &self,
        reads: &[LeaseRead<'_, '_>],
        deadline: Deadline,
    ) -> Vec<Result<(), Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => lease::read(&self.inner, reads, deadline).await,
            Err(error) => batch::all(reads.len(), &error),
        }
    }

    /// Ends leases of this client without consuming the samples. Those that have ended already are none the
    /// worse.
    pub async fn release(&self, leases: &[&Lease], deadline: Deadline) -> Result<(), Error> {
        let _busy = self.inner.enter(deadline)?;
        lease::release(&self.inner, leases, deadline).await
    }

    /// Says that a consumer group is done with samples; no lease is needed for that. What everybody has
    /// consumed is gone when this returns, and its room can be used by the next call of anybody.
    pub async fn ack(
        &self,
        samples: &[(Key, Generation)],
        group: &str,
        deadline: Deadline,
    ) -> Vec<Result<Acked, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => lease::ack(&self.inner, samples, group, lease::How::default(), deadline).await,
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// The same, but for samples that somebody has leased: they are [`Acked::Recorded`], and nothing is done.
    /// If everybody who lets go of a lease says this, the last one frees the sample.
    pub async fn ack_unless_leased(
        &self,
        samples: &[(Key, Generation)],
        group: &str,
        deadline: Deadline,
    ) -> Vec<Result<Acked, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => {
                lease::ack(
                    &self.inner,
                    samples,
                    group,
                    lease::How { unless_leased: true, abort: false },
                    deadline,
                )
                .await
            }
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Opens a stream, or only asks how it stands: sets its limits, and lets this client belong to a group of
    /// consumers. A window that could never be filled is [`Error::Invalid`], with the arithmetic.
    ///
    /// A stream is made of the samples that were put with its name ([`PutOptions::stream`]), in that order.
    pub async fn open_stream(&self, open: OpenStream, deadline: Deadline) -> Result<StreamStat, Error> {
        let _busy = self.inner.enter(deadline)?;
        stream::open(&self.inner, open, deadline).await
    }

    /// Ends a stream: nothing is appended any more. Every reader sees that behind the last sample; what went
    /// wrong, if something did, at once.
    pub async fn end_stream(
        &self,
        name: &str,
        failure: Option<String>,
        deadline: Deadline,
    ) -> Result<StreamStat, Error> {
        let _busy = self.inner.enter(deadline)?;
        stream::end(&self.inner, name, failure, deadline).await
    }

    /// Takes away all samples of a stream that are left, and says how many there were and which nodes could
    /// not confirm. Its readers see a failure.
    pub async fn drop_stream(&self, name: &str, deadline: Deadline) -> Result<DeletedMatching, Error> {
        let _busy = self.inner.enter(deadline)?;
        stream::drop_all(&self.inner, name, deadline).await
    }

    /// Leases the next samples of a stream that nobody else of the group has, or has acknowledged. The master
    /// wakes who waits: nobody polls. At the deadline it is what there is, which may be nothing.
    ///
    /// What is pulled comes again to the group when its lease ends without an acknowledgement.
    pub async fn pull(&self, pull: &Pull, deadline: Deadline) -> Result<Pulled, Error> {
        let _busy = self.inner.enter(deadline)?;
        stream::pull(&self.inner, pull, deadline).await
    }

    /// Looks at what is in a stream behind a place, whoever has it, and takes nothing. It waits for the
    /// first.
    pub async fn look(
        &self,
        stream: &str,
        behind: Generation,
        at_most: u32,
        deadline: Deadline,
    ) -> Result<Seen, Error> {
        let _busy = self.inner.enter(deadline)?;
        stream::look(&self.inner, stream, behind, at_most, deadline).await
    }

    /// Says that nobody is to consume samples any more, whoever was to: they are gone when this returns, for
    /// every process, and their room is free. Says of each whether it was there; a ref of another put of the
    /// name takes nothing away, and what somebody has leased stays if so asked.
    pub async fn abort(
        &self,
        samples: &[(Key, Generation)],
        unless_leased: bool,
        deadline: Deadline,
    ) -> Vec<Result<bool, Error>> {
        match self.inner.enter(deadline) {
            Ok(_busy) => {
                let how = lease::How { abort: true, unless_leased };
                let acked = lease::ack(&self.inner, samples, "", how, deadline).await;
                acked.into_iter().map(|it| it.map(|acked| acked == Acked::Freed)).collect()
            }
            Err(error) => batch::all(samples.len(), &error),
        }
    }

    /// Finds the way to nodes before it is needed, and says how each of them is reached.
    pub async fn meet(&self, nodes: &[NodeInfo], deadline: Deadline) -> Vec<Route> {
        match self.inner.enter(deadline) {
            Ok(_busy) => self.inner.nodes.meet(nodes, deadline).await,
            Err(_) => Vec::new(),
        }
    }

    /// The nodes that this client has met, and how it reaches them.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        self.inner.nodes.routes()
    }

    /// Bytes moved by this client, by the way they went.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// How many reads this client has begun because another one of the same object stalled: no byte of it
    /// arrived within a few times the usual latency. The node that stalls is asked last for a while.
    #[must_use]
    pub fn hedged_reads(&self) -> u64 {
        self.inner.paces.hedged()
    }

    /// How many objects, or parts of objects that were asked for one by one, this client has read from disks.
    #[must_use]
    pub fn disk_reads(&self) -> u64 {
        self.inner.nodes.disk_reads()
    }

    /// The name of this client, the same for its whole life.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.inner.id()
    }

    /// What it was connected with, to connect another one in the same way.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.inner.options
    }

    /// Says goodbye. Calls under way are waited for; later ones fail with [`Error::Closed`]. Closing twice is
    /// fine.
    ///
    /// Borrowed views stay valid, and the nodes that they look at hear the goodbye when the last one is
    /// dropped.
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
    fn handles_and_views_go_to_other_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Client>();
        check::<View>();
        check::<Object>();
        check::<Error>();
        check::<Lease>();
        check::<Reserved>();
    }

    #[test]
    fn a_hint_stands_apart_from_its_message() {
        let message = "lost\n\nhint: look";
        assert_eq!(error::without_hint(message), "lost");
        assert_eq!(error::without_hint("plain"), "plain");
    }
}
