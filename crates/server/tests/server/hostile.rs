//! Peers that send random bytes, or nothing. The servers must survive and keep serving.

use crate::support::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tiffin_rpc::{Address, Connection};
use tiffin_server::{MasterConfig, NodeConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;

const SEED: u64 = 7;
const ATTEMPTS: usize = 24;
const BYTES_MAX: usize = 4096;

/// Sends bytes, then reads to the end. A server that neither answers nor closes fails the test.
async fn talk<S: AsyncReadExt + AsyncWriteExt + Unpin>(mut stream: S, bytes: &[u8]) {
    // The server may close the connection in the middle.
    let _closed = stream.write_all(bytes).await;
    let _closed = stream.shutdown().await;
    let mut answer = Vec::new();
    let heard = timeout_at(soon(), stream.read_to_end(&mut answer)).await;
    assert!(heard.is_ok(), "the server neither answers nor closes");
}

/// Random bytes, some after a valid start.
fn noise(random: &mut ChaCha8Rng, attempt: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(1..BYTES_MAX)];
    random.fill(&mut bytes[..]);
    let hello = tiffin_types::message::Request::Hello(hello(3));
    let frame = tiffin_proto::encode_request(tiffin_types::RequestId(0), &hello).unwrap();
    match attempt % 4 {
        0 => bytes,
        1 => [frame, bytes].concat(),
        2 => frame.iter().enumerate().map(|(at, byte)| if at == attempt { !byte } else { *byte }).collect(),
        _ => [b"GET /metrics HTTP/1.1\r\n".to_vec(), bytes].concat(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_on_every_port_change_nothing() {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let unix = unix_address();
    let config = MasterConfig {
        listen: vec![any.clone(), unix.clone()],
        http: Some(any.clone()),
        metadata_http: Some(any),
        ..MasterConfig::default()
    };
    let master = start_master(config).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    client.put("k", b"value", Way::Shm).await;
    let info = node.info().clone();
    let name = |address: &Address| match address {
        Address::Unix { name } => name.clone(),
        Address::Tcp { .. } => panic!("{address} is not a Unix address"),
    };
    let http = master.http_address().unwrap().to_string();
    let metadata = master.metadata_http_address().unwrap().to_string();
    let tcp = [master.address().to_string(), info.tcp.clone(), info.data.clone(), http, metadata];
    let unix = [name(&unix), info.unix.clone(), info.memory.clone()];
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for attempt in 0..ATTEMPTS {
        for address in &tcp {
            let bytes = noise(&mut random, attempt);
            talk(TcpStream::connect(address).await.unwrap(), &bytes).await;
        }
        for name in &unix {
            let bytes = noise(&mut random, attempt);
            talk(UnixStream::connect(format!("\0{name}")).await.unwrap(), &bytes).await;
        }
    }
    for way in [Way::Shm, Way::Tcp] {
        assert_eq!(client.get("k", way).await.as_deref(), Some(&b"value"[..]));
    }
    assert_eq!(node.usage().granted, 0);
    assert_eq!(get(master.http_address().unwrap(), "/health").await.0, 200);
    until("only the client and the node are left", || master.stat().clients == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_peer_delays_no_other_client() {
    let master = start_master(MasterConfig::default()).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(master.address().to_string()).await.unwrap());
    }
    let (connection, _) = Connection::open(master.address(), hello(1), soon()).await.unwrap();
    assert!(connection.call(&tiffin_types::message::ClientToMaster::Stat, soon()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_do_not_block_health() {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let token = "secret".to_owned();
    let config = MasterConfig { http: Some(any), token, ..MasterConfig::default() };
    let master = start_master(config).await;
    let http = master.http_address().unwrap();
    let mut half = Vec::new();
    for _ in 0..2 * tiffin_server::HTTP_PENDING_MAX {
        let mut stream = TcpStream::connect(http.to_string()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: he").await.unwrap();
        half.push(stream);
    }
    assert_eq!(get(http, "/health").await.0, 200);
    assert_eq!(get(http, "/metrics").await.0, 401);
    // The oldest connections were closed.
    talk(half.remove(0), b"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_to_a_node_end_oldest_first() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    let info = node.info().clone();
    let mut oldest = TcpStream::connect(&info.data).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..tiffin_transport::tcp::PENDING_MAX {
        silent.push(TcpStream::connect(&info.data).await.unwrap());
    }
    let closed = timeout_at(soon(), oldest.read(&mut [0; 1])).await.expect("the oldest is closed");
    assert_eq!(closed.unwrap_or(0), 0);
    client.put("k", b"value", Way::Tcp).await;
    assert_eq!(client.get("k", Way::Tcp).await.as_deref(), Some(&b"value"[..]));
    let mut oldest = UnixStream::connect(format!("\0{}", info.memory)).await.unwrap();
    silent.clear();
    let mut silent = Vec::new();
    for _ in 0..tiffin_transport::shm::PENDING_MAX {
        silent.push(UnixStream::connect(format!("\0{}", info.memory)).await.unwrap());
    }
    let closed = timeout_at(soon(), oldest.read(&mut [0; 1])).await.expect("the oldest is closed");
    assert_eq!(closed.unwrap_or(0), 0);
    assert_eq!(client.get("k", Way::Shm).await.as_deref(), Some(&b"value"[..]));
}
