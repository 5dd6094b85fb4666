//! Streams: samples in the order in which they were put, pulled by consumer groups.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use tiffin_client::{
    Attach, Client, Deadline, DeletedMatching, Error, Generation, OpenStream, Pull, Pulled, StreamEnd,
    StreamLimits, StreamPage, StreamStat,
};

use crate::errors;
use crate::handle::Operation;
use crate::methods::{Any, Caller};
use crate::samples;
use crate::types;

/// Opens a stream.
pub(crate) struct Open {
    pub(crate) open: OpenStream,
}

impl Open {
    /// A missing low mark is three quarters of the high one.
    pub(crate) fn parse(
        name: &str,
        refs: (Option<u64>, Option<u64>),
        bytes: (Option<&Any<'_>>, Option<&Any<'_>>),
        attach: (Option<&str>, u64),
    ) -> PyResult<Self> {
        let bytes = (crate::lifetimes::size(bytes.0)?, crate::lifetimes::size(bytes.1)?);
        let low = |high: Option<u64>, low: Option<u64>| low.or(high.map(|it| it - it / 4)).unwrap_or(0);
        let is_limited = refs.0.is_some() || bytes.0.is_some();
        let limits = is_limited.then(|| StreamLimits {
            refs_high: refs.0.unwrap_or(0),
            refs_low: low(refs.0, refs.1),
            bytes_high: bytes.0.unwrap_or(0),
            bytes_low: low(bytes.0, bytes.1),
        });
        let attach = attach.0.map(|group| Attach { group: group.to_owned(), window: attach.1 });
        Ok(Self { open: OpenStream { name: name.to_owned(), limits, attach } })
    }
}

impl Operation for Open {
    type Outcome = StreamStat;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<StreamStat, Error> {
        client.open_stream(self.open.clone(), deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: StreamStat) -> PyResult<Py<PyAny>> {
        stat(py, &outcome)
    }
}

/// Ends a stream.
pub(crate) struct End {
    pub(crate) name: String,
    pub(crate) failure: Option<String>,
}

impl Operation for End {
    type Outcome = StreamStat;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<StreamStat, Error> {
        client.end_stream(&self.name, self.failure.clone(), deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: StreamStat) -> PyResult<Py<PyAny>> {
        stat(py, &outcome)
    }
}

/// Removes the samples of a stream.
pub(crate) struct DropAll {
    pub(crate) name: String,
}

impl Operation for DropAll {
    type Outcome = DeletedMatching;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<DeletedMatching, Error> {
        client.drop_stream(&self.name, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: DeletedMatching) -> PyResult<Py<PyAny>> {
        if outcome.unconfirmed.is_empty() {
            return outcome.count.into_py_any(py);
        }
        Err(errors::raise(py, &Error::Unconfirmed { nodes: outcome.unconfirmed }))
    }
}

/// Leases the next samples of a stream.
pub(crate) struct PullNext {
    pub(crate) pull: Pull,
    pub(crate) caller: Caller,
}

impl Operation for PullNext {
    type Outcome = Pulled;

    fn waits(&self) -> bool {
        true
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Pulled, Error> {
        client.pull(&self.pull, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: Pulled) -> PyResult<Py<PyAny>> {
        if let Some(end) = outcome.end {
            return Err(ended(py, &self.pull.stream, &end));
        }
        let leases = PyList::empty(py);
        for lease in outcome.leases {
            leases.append(samples::lease(lease, &self.caller).into_py_any(py)?)?;
        }
        Ok(leases.into_any().unbind())
    }
}

/// Lists samples of a stream.
pub(crate) struct ListSamples {
    pub(crate) stream: String,
    pub(crate) after: Generation,
    pub(crate) limit: u32,
}

impl Operation for ListSamples {
    type Outcome = StreamPage;

    fn waits(&self) -> bool {
        true
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<StreamPage, Error> {
        client.list_samples(&self.stream, self.after, self.limit, deadline).await
    }

    fn answer(self, py: Python<'_>, outcome: StreamPage) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if let Some(end) = outcome.end {
            return Err(ended(py, &self.stream, &end));
        }
        let refs = PyList::empty(py);
        for (key, generation, len) in &outcome.samples {
            let fields = (types::show(py, key)?, (generation.epoch, generation.counter), *len, false);
            refs.append(types::class(py, &CLASS, "SampleRef")?.call1(fields)?)?;
        }
        Ok(refs.into_any().unbind())
    }
}

fn ended(py: Python<'_>, name: &str, end: &StreamEnd) -> PyErr {
    let (class, message) = match &end.failure {
        None => ("EndOfStream", format!("the stream `{name}` has ended")),
        Some(failure) => ("StreamFailed", format!("the stream `{name}` has failed: {failure}")),
    };
    let made = || {
        let exception = errors::new(py, class, &message)?;
        match &end.failure {
            None => exception.setattr("outstanding", end.outstanding)?,
            Some(failure) => exception.setattr("failure", failure)?,
        }
        PyResult::Ok(exception)
    };
    made().map_or_else(|failure| failure, PyErr::from_value)
}

fn stat(py: Python<'_>, stat: &StreamStat) -> PyResult<Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static GROUP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = types::class(py, &GROUP, "Group")?;
    let groups = stat.groups.iter().map(|it| {
        class.call1((&it.group, it.ready, it.out, it.delivered, it.acked, it.consumers, it.window))
    });
    let groups = PyTuple::new(py, groups.collect::<PyResult<Vec<_>>>()?)?;
    let attributes =
        (stat.limits.refs_high, stat.limits.refs_low, stat.limits.bytes_high, stat.limits.bytes_low);
    let failure = stat.end.as_ref().and_then(|it| it.failure.clone());
    let made = types::class(py, &CLASS, "Stream")?.call1((
        stat.refs,
        stat.bytes,
        stat.granted,
        attributes,
        stat.is_shut,
        stat.end.is_some(),
        failure,
        stat.appended,
        stat.recovered,
        stat.consumed,
        groups,
    ))?;
    Ok(made.unbind())
}
