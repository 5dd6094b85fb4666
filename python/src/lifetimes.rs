//! Calls about the lifetime of objects: pins by owner, limits of the namespace, waits for its usage, and
//! why an object exists or was removed.

use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use tiffin_client::{
    Cause, Client, Consumption, Deadline, DeletedMatching, Demotion, Error, Generation, Gone, Here, Key,
    Losses, NamespaceStat, PolicyChange, Watermark, Why,
};

use crate::errors::{self, invalid};
use crate::handle::{Handle, Operation};
use crate::keys::{self, Keys, Missing};
use crate::operations::{Each, gather};
use crate::types;

/// Sets or ends an owner's pins.
pub(crate) struct PinAll {
    pub(crate) keys: Keys,
    pub(crate) owner: String,
    pub(crate) on: bool,
}

impl Operation for PinAll {
    type Outcome = Each<()>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<()>, Error> {
        Ok(if self.on {
            client.pin(&self.keys.list, &self.owner, deadline).await
        } else {
            let unpinned = client.unpin(&self.keys.list, &self.owner, deadline).await;
            unpinned.into_iter().map(|it| it.map(|_| ())).collect()
        })
    }

    fn answer(self, py: Python<'_>, outcome: Each<()>) -> PyResult<Py<PyAny>> {
        gather(py, self.keys.is_one, &Missing(None), outcome, |()| Ok(py.None()))?;
        Ok(py.None())
    }
}

/// Ends all pins of an owner.
pub(crate) struct DropPins {
    pub(crate) owner: String,
}

impl Operation for DropPins {
    type Outcome = DeletedMatching;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<DeletedMatching, Error> {
        client.drop_pins(&self.owner, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: DeletedMatching) -> PyResult<Py<PyAny>> {
        if outcome.unconfirmed.is_empty() {
            return outcome.count.into_py_any(py);
        }
        Err(errors::raise(py, &Error::Unconfirmed { nodes: outcome.unconfirmed }))
    }
}

/// Changes the limits of the namespace.
pub(crate) struct SetPolicy {
    change: PolicyChange,
}

impl SetPolicy {
    /// Changes the limits that are given; `None` removes a limit.
    pub(crate) fn parse(
        py: Python<'_>,
        quota: &Missing,
        max_hold: &Missing,
        demotion: &Missing,
        guaranteed: &Missing,
    ) -> PyResult<Self> {
        let mut change = PolicyChange::NONE;
        if let Some(quota) = quota.given(py) {
            change = change.quota(size(quota.as_ref())?);
        }
        if let Some(max_hold) = max_hold.given(py) {
            change = change.max_hold_ms(max_hold_ms(max_hold.as_ref())?);
        }
        if let Some(demotion) = demotion.given(py) {
            change = change.demotion(self::demotion(demotion.as_ref())?);
        }
        if let Some(guaranteed) = guaranteed.given(py) {
            change = change.guaranteed(size(guaranteed.as_ref())?);
        }
        Ok(Self { change })
    }
}

/// The maximum time that samples may wait. A limit of zero would drop each sample at once.
fn max_hold_ms(given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let milliseconds = keys::milliseconds("max_hold", given)?;
    let is_allowed = |it: &u64| *it > 0 && u128::from(*it) < keys::TIME_MAX.as_millis();
    match given.filter(|_| !milliseconds.as_ref().is_none_or(is_allowed)) {
        None => Ok(milliseconds),
        Some(given) => {
            let hint = "give a time between a millisecond and 30 years; `None` removes the limit";
            Err(errors::invalid(given.py(), format!("max_hold={given} is out of range\n\nhint: {hint}")))
        }
    }
}

impl Operation for SetPolicy {
    type Outcome = ();

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<(), Error> {
        client.set_policy(self.change, deadline).await
    }

    fn answer(self, py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

/// Returns the limits of the namespace.
pub(crate) struct ReadPolicy;

impl Operation for ReadPolicy {
    type Outcome = NamespaceStat;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<NamespaceStat, Error> {
        // The usage is always at least 0, so that this is answered at once.
        client.wait_usage(Watermark::AtLeast(0), deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: NamespaceStat) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (max_hold, demotion) = (outcome.max_hold_ms.map(seconds), types::demotion_word(outcome.demotion));
        let fields = (outcome.quota, max_hold, demotion, outcome.guaranteed);
        Ok(types::class(py, &CLASS, "Policy")?.call1(fields)?.unbind())
    }
}

/// Returns the objects that are lost if the store is closed now.
pub(crate) struct TellLosses {
    pub(crate) handle: Arc<Handle>,
}

impl Operation for TellLosses {
    type Outcome = Losses;

    async fn run(&self, _: &Client, deadline: Deadline) -> Result<Losses, Error> {
        Ok(self.handle.losses(deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Losses) -> PyResult<Py<PyAny>> {
        types::losses(py, &outcome).map(Bound::unbind)
    }
}

/// Waits until the usage of the namespace reaches a limit.
pub(crate) struct WaitUsage {
    until: Watermark,
}

impl WaitUsage {
    /// Exactly one of the two limits is given.
    pub(crate) fn parse(
        py: Python<'_>,
        at_most: Option<&Bound<'_, PyAny>>,
        at_least: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let until = match (size(at_most)?, size(at_least)?) {
            (Some(mark), None) => Watermark::AtMost(mark),
            (None, Some(mark)) => Watermark::AtLeast(mark),
            _ => {
                let hint = "give one of them: `at_most=\"1GiB\"` waits for space, `at_least=` for data";
                return Err(invalid(py, format!("neither or both of at_most and at_least\n\nhint: {hint}")));
            }
        };
        Ok(Self { until })
    }
}

impl Operation for WaitUsage {
    type Outcome = NamespaceStat;

    fn waits(&self) -> bool {
        true
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<NamespaceStat, Error> {
        client.wait_usage(self.until, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: NamespaceStat) -> PyResult<Py<PyAny>> {
        types::namespace(py, &outcome).map(Bound::unbind)
    }
}

/// Explains why objects exist, or what removed them.
pub(crate) struct WhyAll {
    pub(crate) keys: Keys,
}

impl Operation for WhyAll {
    type Outcome = Each<Why>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Each<Why>, Error> {
        Ok(client.why(&self.keys.list, deadline).await)
    }

    fn answer(self, py: Python<'_>, outcome: Each<Why>) -> PyResult<Py<PyAny>> {
        let answers = self.keys.list.iter().zip(outcome).map(|(key, why)| why.map(|why| (key, why)));
        gather(py, self.keys.is_one, &Missing(None), answers.collect(), |(key, why)| why_tuple(py, key, &why))
    }
}

/// A demotion policy, from the argument in Python.
fn demotion(given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Demotion>> {
    let Some(given) = given else { return Ok(None) };
    let (py, word) = (given.py(), given.extract::<&str>()?);
    let known = [Demotion::OnPressure, Demotion::WriteThrough, Demotion::Never];
    let found = known.into_iter().find(|it| types::demotion_word(*it) == word);
    found.map(Some).ok_or_else(|| {
        let hint = "give \"on-pressure\", \"write-through\" or \"never\"";
        invalid(py, format!("demotion={word:?} is unknown\n\nhint: {hint}"))
    })
}

/// A number of bytes, or text such as `8GiB`.
pub(crate) fn size(given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    static SIZE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Some(given) = given else { return Ok(None) };
    let py = given.py();
    let bytes = SIZE.import(py, "tiffin._settings", "size")?.call1((given,))?;
    let most = |_| invalid(py, format!("{given} bytes exceed the maximum\n\nhint: leave it out"));
    bytes.extract().map(Some).map_err(most)
}

/// The consumers of a sample, from the argument in Python: a word, or the names of groups.
pub(crate) fn consumption<'py>(py: Python<'py>, it: &Consumption) -> PyResult<Bound<'py, PyAny>> {
    match it {
        Consumption::Once => "once".into_bound_py_any(py),
        Consumption::Retained => "retained".into_bound_py_any(py),
        Consumption::Groups(groups) => Ok(PyTuple::new(py, groups)?.into_any()),
    }
}

fn why_tuple(py: Python<'_>, key: &Key, why: &Why) -> PyResult<Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let fields = PyDict::new(py);
    let state = match why {
        Why::Here(here) => {
            tell_here(&fields, here)?;
            "here"
        }
        Why::Gone(gone) => {
            tell_gone(&fields, gone)?;
            "gone"
        }
        Why::Unknown => "unknown",
    };
    let class = types::class(py, &CLASS, "Why")?;
    Ok(class.call((types::show(py, key)?, state), Some(&fields))?.unbind())
}

fn tell_here(fields: &Bound<'_, PyDict>, here: &Here) -> PyResult<()> {
    let py = fields.py();
    for (name, names) in [
        ("nodes", &here.nodes),
        ("unreachable", &here.unreachable),
        ("pins", &here.pins),
        ("leases", &here.leases),
        ("acked", &here.acked),
        ("viewers", &here.viewers),
    ] {
        fields.set_item(name, PyTuple::new(py, names)?)?;
    }
    for (name, ms) in [("age", here.age_ms), ("idle", here.idle_ms), ("lease_left", here.lease_ms)] {
        fields.set_item(name, seconds(ms))?;
    }
    fields.set_item("ttl", here.ttl_ms.map(seconds))?;
    fields.set_item("expires_in", here.found.expires_in_ms.map(seconds))?;
    fields.set_item("generation", generation(here.found.generation))?;
    fields.set_item("size", here.found.len)?;
    fields.set_item("is_soft_pinned", here.found.soft_pin)?;
    fields.set_item("consume", here.sample.as_ref().map(|it| consumption(py, it)).transpose()?)?;
    fields.set_item("views", here.views)?;
    fields.set_item("viewers_more", here.viewers_more)?;
    fields.set_item("sends", here.sends)?;
    fields.set_item("writer", &here.writer)?;
    fields.set_item("disk_bytes_max", (here.disk_bytes_max > 0).then_some(here.disk_bytes_max))?;
    fields.set_item("reader", &here.reader)
}

fn tell_gone(fields: &Bound<'_, PyDict>, gone: &Gone) -> PyResult<()> {
    let cause = match gone.cause {
        Cause::Deleted => "deleted",
        Cause::Replaced => "replaced",
        Cause::Evicted => "evicted",
        Cause::NodeLost => "node lost",
        Cause::Consumed => "consumed",
        Cause::HeldTooLong => "held too long",
        Cause::Expired => "expired",
    };
    fields.set_item("generation", generation(gone.generation))?;
    fields.set_item("cause", cause)?;
    fields.set_item("by", &gone.by)?;
    fields.set_item("node", &gone.node)?;
    fields
        .set_item("for_key", gone.for_key.as_ref().map(|key| types::show(fields.py(), key)).transpose()?)?;
    fields.set_item("reader", &gone.reader)?;
    fields.set_item("disk_bytes_max", (gone.disk_bytes_max > 0).then_some(gone.disk_bytes_max))?;
    fields.set_item("ago", seconds(gone.ago_ms))
}

fn generation(generation: Generation) -> (u64, u64) {
    (generation.epoch, generation.counter)
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
