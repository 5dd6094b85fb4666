//! Makes the tuples of `tiffin.types`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use tiffin_client::measure::Series;
use tiffin_client::trace::Tracer;
use tiffin_client::{Client, Counters, Generation, Key, Losses, Measures, Route, gpu};
use tiffin_types::message::{
    Demotion, Held, Holder, ListItem, NamespaceStat, NodeStat, Resource, Stat, TierStat, Usage,
};

pub(crate) fn object_info<'py>(
    py: Python<'py>,
    key: &Key,
    len: u64,
    replicas: usize,
    generation: Generation,
    expires_in: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let generation = (generation.epoch, generation.counter);
    class(py, &CLASS, "ObjectInfo")?.call1((show(py, key)?, len, replicas, generation, expires_in))
}

pub(crate) fn listed<'py>(py: Python<'py>, item: &ListItem) -> PyResult<Bound<'py, PyAny>> {
    let left = item.expires_in_ms.map(|it| Duration::from_millis(it).as_secs_f64());
    object_info(py, &item.key, item.len, item.replicas as usize, item.generation, left)
}

pub(crate) fn usage<'py>(py: Python<'py>, usage: &Usage) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Usage { capacity, free, granted, committed, held, objects, metadata, .. } = *usage;
    class(py, &CLASS, "Usage")?.call1((capacity, free, granted, committed, held, objects, metadata))
}

/// The name of the resource that a put lacks.
pub(crate) fn resource(lacks: Resource) -> &'static str {
    match lacks {
        Resource::Bytes => "bytes",
        Resource::Slots => "slots",
        Resource::KeySpace => "key space",
        Resource::Contiguous => "contiguous space",
        Resource::Share => "share",
    }
}

pub(crate) fn stats<'py>(py: Python<'py>, stat: &Stat, client: &Client) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let living = |is_disk: bool| {
        let nodes = stat.nodes.iter().filter(move |it| it.alive && it.info.beside.is_some() == is_disk);
        sum(nodes.map(|node| &node.usage))
    };
    let nodes: Vec<_> = stat.nodes.iter().map(|stat| node(py, stat)).collect::<PyResult<_>>()?;
    let namespaces: Vec<_> =
        stat.namespaces.iter().map(|stat| namespace(py, stat)).collect::<PyResult<_>>()?;
    let more = PyDict::new(py);
    more.set_item("expired_objects", stat.expired.objects)?;
    more.set_item("expired_bytes", stat.expired.bytes)?;
    more.set_item("expiring_objects", stat.expiring)?;
    more.set_item("spans", spans(py, client.tracer())?)?;
    let stats = (
        usage(py, &living(false))?,
        nodes,
        namespaces,
        stat.clients,
        stat.evicted_objects,
        stat.evicted_bytes,
        traffic(py, client.counters())?,
        usage(py, &living(true))?,
        tier(py, &stat.tier)?,
        latencies(py, client.measures())?,
    );
    class(py, &CLASS, "Stats")?.call(stats, Some(&more))
}

fn spans<'py>(py: Python<'py>, tracer: Option<&Tracer>) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    class(py, &CLASS, "Spans")?.call1(tracer.map_or((0, 0), |it| (it.exported(), it.dropped())))
}

pub(crate) fn route<'py>(py: Python<'py>, route: &Route) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let way = route.way.map(|way| way.to_string());
    class(py, &CLASS, "Route")?.call1((&route.node, way, &route.why))
}

fn node<'py>(py: Python<'py>, stat: &NodeStat) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let holders = holders(py, &stat.holders)?;
    let is_disk = stat.info.beside.is_some();
    let fields = (&stat.info.name, stat.alive, usage(py, &stat.usage)?, &stat.info.tcp, holders, is_disk);
    class(py, &CLASS, "Node")?.call1(fields)
}

fn holders<'py>(py: Python<'py>, holders: &[Holder]) -> PyResult<Bound<'py, PyTuple>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let holder = |it: &Holder| {
        let kept = match it.held {
            Held::Reserved => "reserved",
            Held::Leased => "leased",
            Held::Viewed => "in view",
        };
        class(py, &CLASS, "Holder")?.call1((kept, &it.who, it.objects, it.bytes))
    };
    PyTuple::new(py, holders.iter().map(holder).collect::<PyResult<Vec<_>>>()?)
}

pub(crate) fn namespace<'py>(py: Python<'py>, stat: &NamespaceStat) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let seconds = |ms| Duration::from_millis(ms).as_secs_f64();
    let samples = PyDict::new(py);
    samples.set_item("samples", stat.samples)?;
    samples.set_item("samples_leased", stat.samples_leased)?;
    samples.set_item("oldest_sample", seconds(stat.sample_age_ms))?;
    samples.set_item("samples_size", stat.sample_bytes)?;
    samples.set_item("samples_leased_size", stat.sample_bytes_leased)?;
    samples.set_item("oldest_leased_sample", seconds(stat.leased_age_ms))?;
    samples.set_item("max_hold", stat.max_hold_ms.map(seconds))?;
    samples.set_item("samples_expired", stat.samples_expired)?;
    samples.set_item("samples_expired_size", stat.sample_bytes_expired)?;
    samples.set_item("guaranteed", stat.guaranteed)?;
    samples.set_item("held", stat.held)?;
    samples.set_item("demotion", demotion_word(stat.demotion))?;
    let owners = PyDict::new(py);
    for it in &stat.owners {
        owners.set_item(&it.owner, (it.objects, it.bytes))?;
    }
    samples.set_item("owners", owners)?;
    samples.set_item("holders", holders(py, &stat.holders)?)?;
    let fields = (&stat.name, stat.objects, stat.bytes, stat.used, stat.quota, stat.waiting);
    class(py, &CLASS, "Namespace")?.call(fields, Some(&samples))
}

pub(crate) fn losses<'py>(py: Python<'py>, losses: &Losses) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let names = losses.names.iter().map(|(_, key)| show(py, key)).collect::<PyResult<Vec<_>>>()?;
    let Losses { objects, bytes, pinned, unconsumed, elsewhere, .. } = losses;
    let fields = (objects, bytes, pinned, unconsumed, PyTuple::new(py, names)?, elsewhere);
    class(py, &CLASS, "Losses")?.call1(fields)
}

fn tier<'py>(py: Python<'py>, stat: &TierStat) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let fields = PyDict::new(py);
    for (name, _, count) in stat.named() {
        fields.set_item(name, count)?;
    }
    class(py, &CLASS, "Tier")?.call((), Some(&fields))
}

fn traffic<'py>(py: Python<'py>, counters: &Counters) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static DEVICE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Counters { local, shm, tcp, .. } = counters;
    let devices = PyDict::new(py);
    for it in gpu::counted() {
        let moved = class(py, &DEVICE, "DeviceTraffic")?.call1((it.saved, it.loaded, it.ringed))?;
        devices.set_item(format!("cuda:{}", it.device), moved)?;
    }
    class(py, &CLASS, "Traffic")?.call1((
        local.read(),
        local.written(),
        shm.read(),
        shm.written(),
        tcp.read(),
        tcp.written(),
        devices,
    ))
}

fn latencies<'py>(py: Python<'py>, measures: &Measures) -> PyResult<Bound<'py, PyTuple>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let latency = |(operation, path, counts): Series| {
        let (count, seconds) = (counts.count(), |us: u64| us as f64 / 1e6);
        let quantile = |quantile| seconds(counts.quantile_us(quantile).unwrap_or_default());
        let mean = seconds(counts.sum_us) / count.max(1) as f64;
        let fields =
            (operation.name(), path.name(), count, mean, quantile(0.5), quantile(0.99), counts.bytes);
        class(py, &CLASS, "Latency")?.call1(fields)
    };
    PyTuple::new(py, measures.series().into_iter().map(latency).collect::<PyResult<Vec<_>>>()?)
}

fn sum<'a>(usages: impl Iterator<Item = &'a Usage>) -> Usage {
    usages.fold(Usage::default(), |sum, usage| Usage {
        capacity: sum.capacity.saturating_add(usage.capacity),
        free: sum.free.saturating_add(usage.free),
        granted: sum.granted.saturating_add(usage.granted),
        committed: sum.committed.saturating_add(usage.committed),
        held: sum.held.saturating_add(usage.held),
        objects: sum.objects.saturating_add(usage.objects),
        offered: sum.offered.saturating_add(usage.offered),
        metadata: sum.metadata.saturating_add(usage.metadata),
        unlisted: sum.unlisted.saturating_add(usage.unlisted),
        name_max: None,
    })
}

/// A class of `tiffin.types`.
pub(crate) fn class<'py>(
    py: Python<'py>,
    cell: &PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    cell.import(py, "tiffin.types", name).cloned()
}

/// A key as Python shows it: text where it is text.
pub(crate) fn show<'py>(py: Python<'py>, key: &Key) -> PyResult<Bound<'py, PyAny>> {
    Ok(match std::str::from_utf8(key.as_bytes()) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, key.as_bytes()).into_any(),
    })
}

/// The setting as Python writes it.
pub(crate) fn demotion_word(demotion: Demotion) -> &'static str {
    match demotion {
        Demotion::OnPressure => "on-pressure",
        Demotion::WriteThrough => "write-through",
        Demotion::Never => "never",
    }
}
