//! A client of raw calls, and shared helpers. Nothing sleeps: a condition without an event is polled, and
//! yields in between.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tiffin_rpc::{Address, CallError, Connection};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer, host};
use tiffin_transport::tcp::{Identity, Tcp};
use tiffin_transport::{Counters, ReadOp, SourceBuf, TargetBuf, Transport, WriteOp, shm};
use tiffin_types::message::{
    ClientToMaster, ClientToNode, Commit, CommitItem, CommitOutcome, Delete, DeleteOutcome, Hello, NodeInfo,
    PutOptions, Reply, Reserve, ReserveItem, ReserveOutcome, Resolve, ResolveOutcome, Role, Store,
};
use tiffin_types::{ClientId, Key, Reservation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A deadline that only a hang reaches.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

/// Polls until the condition holds.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        tokio::task::yield_now().await;
    }
}

/// A unique address.
pub(crate) fn unix_address() -> Address {
    Address::Unix { name: format!("tiffin-server-test-{:016x}", host::draw().unwrap()) }
}

pub(crate) async fn start_master(config: MasterConfig) -> MasterServer {
    MasterServer::start(config).await.unwrap()
}

/// A small node of this master, ready for use.
pub(crate) async fn start_node(master: &Address, config: NodeConfig) -> NodeServer {
    let config = NodeConfig { master: master.clone().into(), memory: 4 << 20, ..config };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(soon()).await.unwrap();
    node
}

pub(crate) fn hello(client: u64) -> Hello {
    Hello {
        namespace: "default".to_owned(),
        role: Role::Client,
        client: ClientId(client),
        label: format!("test {client}"),
        host: host::identity(),
        ..Hello::default()
    }
}

/// The data path to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Shm,
    Tcp,
}

pub(crate) struct Raw {
    pub(crate) hello: Hello,
    pub(crate) master: Connection,
    pub(crate) counters: Arc<Counters>,
    /// The last connection to the node. A node that notices the end of the only connection late would
    /// release what this client has reserved since.
    last: Mutex<Option<Connection>>,
}

/// A reservation with the connections to its node.
pub(crate) struct Place {
    pub(crate) reservation: Reservation,
    pub(crate) info: NodeInfo,
    pub(crate) node: Connection,
    pub(crate) transport: Box<dyn Transport>,
}

impl Raw {
    pub(crate) async fn connect(master: &Address, hello: Hello) -> Result<Self, CallError> {
        let (connection, _) = Connection::open(master, hello.clone(), soon()).await?;
        Ok(Self { hello, master: connection, counters: Arc::default(), last: Mutex::default() })
    }

    pub(crate) async fn ask(&self, request: ClientToMaster) -> Reply {
        self.master.call(&request, soon()).await.unwrap()
    }

    pub(crate) async fn reserve(&self, name: &str, len: u64) -> ReserveOutcome {
        let (reservation, _) = self.reserve_with_nodes(name, len).await;
        reservation
    }

    pub(crate) async fn place(&self, name: &str, len: u64, way: Way) -> Place {
        let (outcome, nodes) = self.reserve_with_nodes(name, len).await;
        let ReserveOutcome::Space(mut found) = outcome else { panic!("no memory: {outcome:?}") };
        let info = nodes.into_iter().next().unwrap();
        let (node, transport) = self.reach(&info, way).await;
        Place { reservation: found.remove(0), info, node, transport }
    }

    pub(crate) async fn put(&self, name: &str, bytes: &[u8], way: Way) -> CommitOutcome {
        let place = self.place(name, bytes.len() as u64, way).await;
        place.write(bytes).await;
        place.commit(name, bytes.len() as u64).await
    }

    pub(crate) async fn resolve(&self, name: &str) -> (ResolveOutcome, Vec<NodeInfo>) {
        let keys = vec![key(name)];
        let resolve =
            Resolve { keys, touch: true, locate: true, report_wait_ms: 60_000, ..Resolve::default() };
        let Reply::Resolved(mut resolved) = self.ask(ClientToMaster::Resolve(resolve)).await else {
            panic!()
        };
        (resolved.items.remove(0), resolved.nodes)
    }

    pub(crate) async fn get(&self, name: &str, way: Way) -> Option<Vec<u8>> {
        let (outcome, nodes) = self.resolve(name).await;
        let found = match outcome {
            ResolveOutcome::Found(found) => found,
            ResolveOutcome::Absent => return None,
            ResolveOutcome::Unavailable(names) => panic!("{names:?} are unreachable"),
        };
        let location = found.replicas[0];
        let info = nodes.into_iter().find(|it| it.segment == location.segment).unwrap();
        let (_node, transport) = self.reach(&info, way).await;
        let mut bytes = vec![0; usize::try_from(found.len).unwrap()];
        let targets = vec![TargetBuf::from(&mut bytes[..])];
        let op = ReadOp { slot: location.slot.0, stamp: location.stamp.0, offset: 0, targets };
        let outcomes = transport.read(std::slice::from_ref(&op), soon()).await;
        assert_eq!(outcomes, [Ok(())]);
        Some(bytes)
    }

    pub(crate) async fn delete(&self, name: &str) -> DeleteOutcome {
        let delete = Delete { keys: vec![key(name)], force: false, wait_ms: 30_000 };
        let Reply::Deleted(mut outcomes) = self.ask(ClientToMaster::Delete(delete)).await else { panic!() };
        outcomes.remove(0)
    }

    async fn reserve_with_nodes(&self, name: &str, len: u64) -> (ReserveOutcome, Vec<NodeInfo>) {
        let options = PutOptions { replicas: 1, ..PutOptions::default() };
        let item = ReserveItem { key: key(name), len, options };
        let reserve = Reserve { items: vec![item], ..Reserve::default() };
        let Reply::Reserved(mut reserved) = self.ask(ClientToMaster::Reserve(reserve)).await else {
            panic!()
        };
        (reserved.items.remove(0), reserved.nodes)
    }

    async fn reach(&self, info: &NodeInfo, way: Way) -> (Connection, Box<dyn Transport>) {
        let address = match way {
            Way::Shm => Address::Unix { name: info.unix.clone() },
            Way::Tcp => info.tcp.parse().unwrap(),
        };
        let (node, welcome) = Connection::open(&address, self.hello.clone(), soon()).await.unwrap();
        assert_eq!(welcome.segment, info.segment);
        *self.last.lock().unwrap() = Some(node.clone());
        let (client, token) = (self.hello.client.0, self.hello.token.as_str());
        let counters = Arc::clone(&self.counters);
        let transport: Box<dyn Transport> = match way {
            Way::Shm => {
                let attached = shm::attach(&info.memory, info.segment.0, client, token, soon()).await;
                Box::new(shm::Shm::new(Arc::new(attached.unwrap()), counters))
            }
            Way::Tcp => {
                let identity = Identity { client, segment: info.segment.0, token: token.to_owned() };
                Box::new(Tcp::new(info.data.clone(), identity, counters))
            }
        };
        (node, transport)
    }
}

impl Place {
    pub(crate) async fn write(&self, bytes: &[u8]) {
        let location = self.reservation.location;
        let sources = vec![SourceBuf::from(bytes)];
        let op = WriteOp { slot: location.slot.0, stamp: location.stamp.0, offset: 0, sources };
        let outcomes = self.transport.write(std::slice::from_ref(&op), soon()).await;
        assert_eq!(outcomes, [Ok(())]);
    }

    /// Writes and commits these bytes with one request.
    pub(crate) async fn store(&self, name: &str, len: u64, bytes: &[u8]) -> Result<CommitOutcome, CallError> {
        let options = PutOptions { replicas: 1, ..PutOptions::default() };
        let slot_ref = self.reservation.location.slot_ref();
        let item = CommitItem { slot_ref, key: key(name), len, options, others: Vec::new() };
        let commit = Commit { items: vec![item], wait_ms: 5_000 };
        let request = ClientToNode::Store(Store { commit, bytes: vec![bytes.to_vec()] });
        let Reply::Committed(mut outcomes) = self.node.call(&request, soon()).await? else { panic!() };
        Ok(outcomes.remove(0))
    }

    pub(crate) async fn commit(&self, name: &str, len: u64) -> CommitOutcome {
        let options = PutOptions { replicas: 1, ..PutOptions::default() };
        let slot_ref = self.reservation.location.slot_ref();
        let item = CommitItem { slot_ref, key: key(name), len, options, others: Vec::new() };
        let request = ClientToNode::Commit(Commit { items: vec![item], wait_ms: 5_000 });
        let reply = self.node.call(&request, soon()).await.unwrap();
        let Reply::Committed(mut outcomes) = reply else { panic!("{reply:?}") };
        outcomes.remove(0)
    }
}

/// Sends one HTTP request. Returns the status and the body.
pub(crate) async fn http(
    address: &Address,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let mut stream = TcpStream::connect(address.to_string()).await.unwrap();
    let len = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len}\r\n\
         {headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

pub(crate) async fn get(address: &Address, path: &str) -> (u16, String) {
    http(address, "GET", path, "", "").await
}
