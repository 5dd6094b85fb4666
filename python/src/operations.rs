//! The calls of a store: the request of each to the client, and its result in Python.
//!
//! One key gives one result; many give a list in the same order. A call with many keys does all it can, and
//! if some of them failed it raises the first error, which carries the results of all.

use std::ops::Range;
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tiffin_client::{
    Ahead, Client, Deadline, DeleteOptions, DeletedMatching, Error, Fetched, GetInto, GetOptions, Info,
    ListItem, ListOptions, OwnedTarget, Part, Pattern, Put, PutEffect, PutOptions, QueueInto, QueuedGet,
    ResolveOptions, Route, SpaceWait, Stat, Stored, View,
};
use tiffin_types::{REPLICAS_MAX, TTL_MS_MAX};

use crate::cuda::DeviceBuffers;
use crate::handle::Operation;
use crate::keys::{Keys, Missing, Whole};
use crate::memory::Memory;
use crate::methods::{Any, Caller};
use crate::read_buffers::ReadBuffers;
use crate::{errors, keys, queued, types, view};

/// One result for each item of a call.
pub(crate) type Each<T> = Vec<Result<T, Error>>;

/// What a put does if the key exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExists {
    Replace,
    Keep,
    Error,
}

impl OnExists {
    pub(crate) fn parse(py: Python<'_>, word: &str) -> PyResult<Self> {
        match word {
            "replace" => Ok(Self::Replace),
            "keep" => Ok(Self::Keep),
            "error" => Ok(Self::Error),
            other => {
                let hint = "give \"replace\", \"keep\" or \"error\"";
                Err(errors::invalid(py, format!("on_exists={other:?} is unknown\n\nhint: {hint}")))
            }
        }
    }
}

/// How an object is stored, from the arguments.
pub(crate) struct Keeping<'a, 'py> {
    pub(crate) on_exists: OnExists,
    pub(crate) replicas: Whole,
    pub(crate) pin: bool,
    pub(crate) soft_pin: Option<&'a Any<'py>>,
    pub(crate) owner: &'a str,
    pub(crate) ttl: Option<&'a Any<'py>>,
}

impl Keeping<'_, '_> {
    pub(crate) fn options(self, py: Python<'_>) -> PyResult<PutOptions> {
        let Self { on_exists, replicas, pin, soft_pin, owner, ttl } = self;
        let replicas: u32 = keys::count(py, "replicas", replicas, 1)?;
        if replicas > REPLICAS_MAX {
            let hint = format!("give 1 to {REPLICAS_MAX} copies");
            return Err(errors::invalid(py, format!("replicas={replicas}\n\nhint: {hint}")));
        }
        if !pin && !owner.is_empty() {
            let hint = "add `pin=True`: an owner belongs to a pin";
            return Err(errors::invalid(
                py,
                format!("owner={owner:?}, but nothing is pinned\n\nhint: {hint}"),
            ));
        }
        let on_exists = match on_exists {
            OnExists::Replace => tiffin_client::OnExists::Replace,
            OnExists::Keep | OnExists::Error => tiffin_client::OnExists::Keep,
        };
        let soft_pin_ms = keys::milliseconds("soft_pin", soft_pin)?;
        let ttl_ms = keys::milliseconds("ttl", ttl)?;
        if let Some(ttl) = ttl.filter(|_| ttl_ms.is_some_and(|it| !(1..=TTL_MS_MAX).contains(&it))) {
            let days = TTL_MS_MAX / 86_400_000;
            let hint = format!("give 0.001 seconds to {days} days; without `ttl` the object does not expire");
            return Err(errors::invalid(py, format!("ttl={ttl}\n\nhint: {hint}")));
        }
        let (owner, hard_pin) = (owner.to_owned(), pin);
        let options =
            PutOptions { replicas, on_exists, hard_pin, soft_pin_ms, owner, ..PutOptions::default() };
        Ok(PutOptions { ttl_ms, ..options })
    }
}

/// Whether a put waits for space.
pub(crate) fn space_wait(wait: bool) -> SpaceWait {
    if wait { SpaceWait::UntilDeadline } else { SpaceWait::Never }
}

/// Stores values.
pub(crate) struct PutAll {
    pub(crate) keys: Keys,
    pub(crate) values: Vec<Memory>,
    pub(crate) options: PutOptions,
    pub(crate) space_wait: SpaceWait,
    /// Whether an existing object is an error.
    pub(crate) refuses_existing: bool,
}

impl Operation for PutAll {
    type Outcome = Each<Stored>;

    fn waits(&self) -> bool {
        self.space_wait != SpaceWait::Never
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Stored>, Error> {
        let items = self.keys.list.iter().zip(&self.values);
        let puts: Vec<_> = items
            .map(|(key, value)| Put {
                key: key.clone(),
                parts: vec![value.as_source()],
                options: self.options.clone(),
            })
            .collect();
        Ok(client.put_with(&puts, self.space_wait, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<Stored>) -> PyResult<Py<PyAny>> {
        // The caller may change the values again before the answer is converted.
        drop(self.values);
        let kept_on = self.keys.list.iter().zip(&outcome).filter_map(|(key, stored)| {
            stored.as_ref().ok().map(|stored| (key, stored.unconfirmed.as_slice()))
        });
        errors::warn_unconfirmed(py, kept_on)?;
        let results = self.keys.list.iter().zip(outcome).map(|(key, stored)| match stored {
            Ok(Stored { effect: PutEffect::Kept, .. }) if self.refuses_existing => {
                Err(errors::exists(py, key))
            }
            Ok(stored) => (stored.effect != PutEffect::Kept).into_py_any(py),
            Err(error) => Err(errors::raise(py, &error)),
        });
        Keys::gather(py, self.keys.is_one, results.collect())
    }
}

/// Reads objects into `bytes`, or into new memory of a device.
pub(crate) struct GetAll {
    keys: Keys,
    missing: Missing,
    buffers: NewMemory,
}

enum NewMemory {
    Bytes(ReadBuffers),
    OnDevice(DeviceBuffers),
}

impl GetAll {
    pub(crate) fn new(
        keys: Keys,
        ranges: Vec<Option<Range<u64>>>,
        missing: Missing,
        device: Option<u32>,
    ) -> Self {
        let buffers = match device {
            None => NewMemory::Bytes(ReadBuffers::new(ranges)),
            Some(device) => NewMemory::OnDevice(DeviceBuffers::new(device, ranges)),
        };
        Self { keys, missing, buffers }
    }
}

impl Operation for GetAll {
    type Outcome = Each<Fetched>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Fetched>, Error> {
        let (keys, options) = (&self.keys.list, GetOptions::default());
        Ok(match &self.buffers {
            NewMemory::Bytes(buffers) => client.get_landing(keys, &buffers, options, deadline).await,
            NewMemory::OnDevice(buffers) => client.get_landing(keys, &buffers, options, deadline).await,
        })
    }

    fn answer(self, py: Python<'_>, outcome: Each<Fetched>) -> PyResult<Py<PyAny>> {
        let landed = outcome.into_iter().enumerate().map(|(item, outcome)| match outcome {
            // The buffer has the right size, so this means that its allocation failed.
            Ok(Fetched { len, .. }) | Err(Error::TooSmall { len, .. }) => Ok((item, len)),
            Err(error) => Err(error),
        });
        gather(py, self.keys.is_one, &self.missing, landed.collect(), |(item, len)| match &self.buffers {
            NewMemory::Bytes(buffers) => buffers.take(py, item, len),
            NewMemory::OnDevice(buffers) => buffers.take(py, item, len),
        })
    }
}

/// Reads objects into buffers.
pub(crate) struct GetIntoAll {
    pub(crate) keys: Keys,
    pub(crate) buffers: Vec<Arc<Memory>>,
    pub(crate) ranges: Vec<Option<Range<u64>>>,
    /// The context of the handle, if the copies are queued on streams.
    pub(crate) queued: Option<Caller>,
}

/// What a get into buffers has done.
pub(crate) enum GotInto {
    Read(Each<Fetched>),
    Queued(QueuedGet),
}

impl GetIntoAll {
    async fn queue(&self, client: &Client, deadline: Deadline) -> Result<QueuedGet, Error> {
        let items = self.keys.list.iter().zip(&self.buffers).zip(&self.ranges);
        let gets = items.map(|((key, buffer), range)| {
            let target: Arc<dyn OwnedTarget> = Arc::<Memory>::clone(buffer);
            QueueInto { key: key.clone(), target, range: range.clone() }
        });
        client.queue_into(gets.collect(), deadline).await
    }
}

impl Operation for GetIntoAll {
    type Outcome = GotInto;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<GotInto, Error> {
        if self.queued.is_some() {
            return Ok(GotInto::Queued(self.queue(client, deadline).await?));
        }
        let items = self.keys.list.iter().zip(&self.buffers).zip(&self.ranges);
        let gets: Vec<_> = items
            .map(|((key, buffer), range)| GetInto {
                key: key.clone(),
                targets: vec![buffer.as_target()],
                range: range.clone(),
            })
            .collect();
        Ok(GotInto::Read(client.get_into(&gets, GetOptions::default(), deadline).await))
    }

    fn answer(self, py: Python<'_>, outcome: GotInto) -> PyResult<Py<PyAny>> {
        drop(self.buffers);
        match (outcome, self.queued) {
            (GotInto::Queued(get), Some(caller)) => {
                queued::QueuedGet::new(get, self.keys.is_one, self.keys.list.len(), caller).into_py_any(py)
            }
            (GotInto::Read(outcome), _) => sizes(py, self.keys.is_one, outcome),
            (GotInto::Queued(_), None) => Ok(py.None()),
        }
    }
}

/// The number of bytes of each object that was read into a buffer.
pub(crate) fn sizes(py: Python<'_>, is_one: bool, outcome: Each<Fetched>) -> PyResult<Py<PyAny>> {
    gather(py, is_one, &Missing(None), outcome, |fetched| fetched.len.into_py_any(py))
}

/// Views objects in place.
pub(crate) struct ViewAll {
    pub(crate) keys: Keys,
    pub(crate) ranges: Vec<Option<Range<u64>>>,
    pub(crate) missing: Missing,
}

impl Operation for ViewAll {
    type Outcome = Each<View>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<View>, Error> {
        let items = self.keys.list.iter().zip(&self.ranges);
        let parts: Vec<_> =
            items.map(|(key, range)| Part { key: key.clone(), range: range.clone() }).collect();
        Ok(client.view_parts(&parts, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<View>) -> PyResult<Py<PyAny>> {
        gather(py, self.keys.is_one, &self.missing, outcome, |it| view::View::new(it).into_py_any(py))
    }
}

/// Whether objects exist.
pub(crate) struct ExistAll {
    pub(crate) keys: Keys,
    /// Which of them are promoted to memory.
    pub(crate) ahead: Ahead,
}

impl Operation for ExistAll {
    type Outcome = Each<bool>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<bool>, Error> {
        let options = ResolveOptions { ahead: self.ahead, ..ResolveOptions::default() };
        Ok(client.exists(&self.keys.list, options, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<bool>) -> PyResult<Py<PyAny>> {
        gather(py, self.keys.is_one, &Missing(None), outcome, |exists| exists.into_py_any(py))
    }
}

/// Looks up objects.
pub(crate) struct InfoAll {
    pub(crate) keys: Keys,
    pub(crate) missing: Missing,
}

impl Operation for InfoAll {
    type Outcome = Each<Option<Info>>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Option<Info>>, Error> {
        let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
        Ok(client.resolve(&self.keys.list, options, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<Option<Info>>) -> PyResult<Py<PyAny>> {
        let found = self.keys.list.iter().zip(outcome).map(|(key, outcome)| match outcome? {
            Some(info) => Ok((key, info)),
            None => Err(Error::NotFound { key: key.clone() }),
        });
        gather(py, self.keys.is_one, &self.missing, found.collect(), |(key, info)| {
            let left = info.expires_in.map(|it| it.as_secs_f64());
            types::object_info(py, key, info.len, info.replicas.len(), info.generation, left)
                .map(Bound::unbind)
        })
    }
}

/// Deletes objects.
pub(crate) struct DeleteAll {
    pub(crate) keys: Keys,
    pub(crate) options: DeleteOptions,
}

impl Operation for DeleteAll {
    type Outcome = Each<bool>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<bool>, Error> {
        Ok(client.delete(&self.keys.list, self.options, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<bool>) -> PyResult<Py<PyAny>> {
        gather(py, self.keys.is_one, &Missing(None), outcome, |existed| existed.into_py_any(py))
    }
}

/// Deletes objects that match.
pub(crate) struct DeleteMatching {
    pub(crate) pattern: Pattern,
    pub(crate) options: DeleteOptions,
}

impl Operation for DeleteMatching {
    type Outcome = DeletedMatching;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<DeletedMatching, Error> {
        client.delete_matching(self.pattern.clone(), self.options, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: DeletedMatching) -> PyResult<Py<PyAny>> {
        if outcome.unconfirmed.is_empty() {
            return outcome.count.into_py_any(py);
        }
        Err(errors::raise(py, &Error::Unconfirmed { nodes: outcome.unconfirmed }))
    }
}

/// Lists objects.
pub(crate) struct List {
    pub(crate) pattern: Pattern,
    pub(crate) options: ListOptions,
}

impl Operation for List {
    type Outcome = Vec<ListItem>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Vec<ListItem>, Error> {
        client.list_with(self.pattern.clone(), &self.options, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: Vec<ListItem>) -> PyResult<Py<PyAny>> {
        let infos: Vec<_> = outcome.iter().map(|item| types::listed(py, item)).collect::<PyResult<_>>()?;
        infos.into_py_any(py)
    }
}

/// Describes the cluster.
pub(crate) struct Describe;

impl Operation for Describe {
    type Outcome = (Stat, Client);

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<(Stat, Client), Error> {
        Ok((client.stat(deadline).await?, client.clone()))
    }

    fn answer(self, py: Python<'_>, (stat, client): (Stat, Client)) -> PyResult<Py<PyAny>> {
        types::stats(py, &stat, &client).map(Bound::unbind)
    }
}

/// Lists the transports to nodes.
pub(crate) struct Routes;

impl Operation for Routes {
    type Outcome = Vec<Route>;

    async fn run(&self, client: &Client, _: Deadline) -> Result<Vec<Route>, Error> {
        Ok(client.routes())
    }

    fn answer(self, py: Python<'_>, outcome: Vec<Route>) -> PyResult<Py<PyAny>> {
        let routes: Vec<_> = outcome.iter().map(|route| types::route(py, route)).collect::<PyResult<_>>()?;
        routes.into_py_any(py)
    }
}

/// Converts each success with `give`, and replaces missing objects by the given substitute.
pub(crate) fn gather<T>(
    py: Python<'_>,
    is_one: bool,
    missing: &Missing,
    outcome: Each<T>,
    give: impl Fn(T) -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let results = outcome.into_iter().map(|result| match (result, &missing.0) {
        (Ok(value), _) => give(value),
        (Err(Error::NotFound { .. }), Some(instead)) => Ok(instead.clone_ref(py)),
        (Err(error), _) => Err(errors::raise(py, &error)),
    });
    Keys::gather(py, is_one, results.collect())
}
