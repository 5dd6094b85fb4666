//! The sockets on which a node listens, and the addresses that it tells others.

use std::net::{IpAddr, UdpSocket};

use tiffin_rpc::{Address, ClientCertificates, ListenError, Listener, TlsServer};
use tiffin_transport::{shm, tcp};
use tiffin_types::SegmentId;
use tiffin_types::message::NodeInfo;
use tokio::net::{TcpListener, UnixListener};

use crate::config::NodeConfig;
use crate::{StartError, host};

/// The sockets of a node.
pub(super) struct Sockets {
    pub(super) requests: Option<Listener>,
    pub(super) bytes: Option<tcp::DataListener>,
    pub(super) local: Option<Listener>,
    pub(super) memory: Option<UnixListener>,
}

/// Binds all sockets, and returns their addresses.
pub(super) async fn bind(config: &NodeConfig, segment: SegmentId) -> Result<(Sockets, NodeInfo), StartError> {
    let tls = TlsServer::open(&config.tls, ClientCertificates::Required)?;
    let mut sockets = Sockets { requests: None, bytes: None, local: None, memory: None };
    let mut info = NodeInfo { segment, host: host::identity(), ..NodeInfo::default() };
    if let Some(listen) = &config.listen {
        let listener = Listener::bind_with(listen, tls.clone()).await?;
        let data = config.data_listen.clone().unwrap_or_else(|| with_port(listen, 0));
        let (bytes, data) = bind_data(&data).await?;
        info.tcp = advertised(listener.local_address(), config).to_string();
        info.data = advertised(&data, config).to_string();
        sockets.requests = Some(listener);
        sockets.bytes = Some(tcp::DataListener::Tcp(bytes, tls));
    } else if !config.ssd.is_empty() || config.isolate {
        // Objects on a disk are requested through a socket, and isolated memory is written through one, also
        // by clients that map the memory. A Unix socket says which user is at its other end; a loopback port
        // would accept all of them.
        let name = format!("tiffin-{segment}-data");
        sockets.bytes = Some(tcp::DataListener::Local(listen_local(&name)?));
        info.data = tcp::local_address(&name);
    }
    if config.shared_memory {
        info.unix = format!("tiffin-{segment}");
        info.memory = format!("tiffin-{segment}-memory");
        sockets.local = Some(Listener::bind(&Address::Unix { name: info.unix.clone() }).await?);
        sockets.memory = Some(listen_local(&info.memory)?);
    }
    info.name = if !config.name.is_empty() {
        config.name.clone()
    } else if info.tcp.is_empty() {
        host::label()
    } else {
        info.tcp.clone()
    };
    Ok((sockets, info))
}

fn listen_local(name: &str) -> Result<UnixListener, ListenError> {
    let address = Address::Unix { name: name.to_owned() };
    shm::listen(name).map_err(|source| ListenError { address, source })
}

async fn bind_data(address: &Address) -> Result<(TcpListener, Address), ListenError> {
    let fail = |source| ListenError { address: address.clone(), source };
    let Address::Tcp { host, port } = address else {
        return Err(fail(std::io::ErrorKind::Unsupported.into()));
    };
    let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    Ok((listener, Address::Tcp { host: host.clone(), port }))
}

fn with_port(address: &Address, port: u16) -> Address {
    match address {
        Address::Tcp { host, .. } => Address::Tcp { host: host.clone(), port },
        Address::Unix { .. } => address.clone(),
    }
}

/// The address at which other processes reach a listening address.
fn advertised(address: &Address, config: &NodeConfig) -> Address {
    let Address::Tcp { host, port } = address else { return address.clone() };
    let is_wildcard = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    let host = match &config.advertise {
        Some(host) => host.clone(),
        None if is_wildcard => {
            config.master.nearby().as_ref().and_then(address_towards).unwrap_or_else(host::name)
        }
        None => host.clone(),
    };
    Address::Tcp { host, port: *port }
}

/// The local address of packets to the master.
fn address_towards(master: &Address) -> Option<String> {
    let Address::Tcp { host, port } = master else { return None };
    let any = if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // This sends nothing; it only asks the system for a route. Names are not resolved, because that may
    // take long.
    socket.connect((host.parse::<IpAddr>().ok()?, *port)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    // A master on this host does not show which address other hosts can use.
    (!ip.is_loopback()).then(|| ip.to_string())
}
