//! Connects to a cluster, or to a store that is started inside this process.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use tiffin_client::{Client, ConnectOptions, EtcdAccess};
use tiffin_embedded::EmbeddedError;
use tiffin_server::config::SsdConfig;
use tiffin_server::{Embedded, NodeConfig, TlsFiles};

use crate::handle::{Handle, Opened, Servers};
use crate::methods::{Any, Caller};
use crate::store::Store;
use crate::{errors, keys, promise, trace};

/// The CA of servers, and the certificate of this client with its key.
type Files = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);
/// The same for etcd, and the file with the credentials.
type EtcdFiles = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);

/// Connects to a store inside this process if no address is given, otherwise to the cluster of that master.
#[pyfunction]
#[pyo3(signature = (address, *, memory, ssd, namespace, token, tls, etcd, shared_memory, timeout, is_async))]
#[expect(clippy::too_many_arguments, reason = "the package passes them by name and sets their defaults")]
pub(crate) fn connect<'py>(
    py: Python<'py>,
    address: Option<String>,
    memory: u64,
    ssd: Vec<String>,
    namespace: Option<String>,
    token: Option<String>,
    tls: Files,
    etcd: EtcdFiles,
    shared_memory: bool,
    timeout: &Any<'py>,
    is_async: bool,
) -> PyResult<Py<PyAny>> {
    let time = keys::time(Some(timeout), keys::TIME_MAX)?;
    let mut options = ConnectOptions::new(address.as_deref().unwrap_or_default());
    options.shared_memory = shared_memory;
    options.connect_time = time;
    options.namespace = namespace.unwrap_or(options.namespace);
    options.token = token.unwrap_or_default();
    options.tls = TlsFiles { ca: tls.0, cert: tls.1, key: tls.2, client_ca: None };
    options.etcd = EtcdAccess { ca: etcd.0, cert: etcd.1, key: etcd.2, credentials: etcd.3 };
    options.trace = trace::settings(py)?;
    let is_embedded = address.is_none();
    let ssd = ssd.iter().map(|text| text.parse()).collect::<Result<Vec<SsdConfig>, _>>();
    let ssd = ssd.map_err(|error| errors::invalid(py, error.to_string()))?;
    let collector = options.trace.as_ref().map(|it| it.endpoint.clone());
    let node = NodeConfig { memory, ssd, trace: collector, ..NodeConfig::default() };
    let opening = async move { if is_embedded { start(node, options).await } else { join(options).await } };
    let store = move |py: Python<'_>, handle| {
        Ok(Py::new(py, Store { caller: Caller { handle, time, is_async }, is_embedded })?.into_any())
    };
    if is_async {
        return promise::start(py, opening, move |py, opened| {
            store(py, Handle::new(opened.map_err(|error| errors::raise_start(py, &error))?))
        });
    }
    store(py, Handle::open(py, opening)?)
}

async fn join(options: ConnectOptions) -> Result<Opened, EmbeddedError> {
    let client = Client::connect(options.clone()).await?;
    Ok(Opened { client, again: options, servers: Servers::None })
}

async fn start(node: NodeConfig, options: ConnectOptions) -> Result<Opened, EmbeddedError> {
    let server = Embedded::start_node(node, Arc::default()).await?;
    let here = tiffin_embedded::Embedded::options(&server);
    let again = ConnectOptions { address: here.address, ..options };
    let ConnectOptions { home, own_memory, own_disks, .. } = here;
    let here = ConnectOptions { home, own_memory, own_disks, ..again.clone() };
    let client = Client::connect(here).await?;
    Ok(Opened { client, again, servers: Servers::Embedded(server) })
}
