//! Lanes: further connections of a client to a master or a node.

use tiffin_proto::Incoming;
use tiffin_rpc::{Address, CallError, Connection, Dialed, LANES_MAX, Reach, dial};
use tiffin_server::{MasterConfig, NodeConfig};
use tiffin_types::message::{ClientToMaster, ClientToNode, Hello, Reason, Reply, RequestRef, Role};
use tiffin_types::{ClientId, RequestId};

use super::support::{hello, soon, start_master, start_node};

fn lane(client: u64, number: u32) -> Hello {
    Hello { role: Role::Lane, lane: number, ..hello(client) }
}

async fn open(server: &Address, hello: Hello) -> Result<Dialed, CallError> {
    dial(server, Reach::Far, hello, soon()).await
}

fn reason(refused: Result<Dialed, CallError>) -> Reason {
    match refused {
        Err(CallError::Refused(refusal)) => refusal.reason,
        other => panic!("{other:?}"),
    }
}

/// Sends a request and returns the reply on the same connection.
async fn ask<'a>(lane: &mut Dialed, id: RequestId, request: impl Into<RequestRef<'a>>) -> Reply {
    lane.outbox.request(id, request).unwrap();
    match lane.inbox.next().await {
        Some(Incoming::Reply(of, reply)) if of == id => reply,
        other => panic!("{other:?}"),
    }
}

fn is_refused(reply: &Reply, reason: Reason) -> bool {
    matches!(reply, Reply::Refused(refusal) if refusal.reason == reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn lane_needs_a_connected_client_and_its_own_number() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let node: Address = node.info().tcp.parse().unwrap();
    for server in [master.address(), &node] {
        assert_eq!(reason(open(server, lane(1, 1)).await), Reason::NotForYou, "the client is not connected");
        let (connection, _) = Connection::open(server, hello(1), soon()).await.unwrap();
        let other = Hello { namespace: "other".to_owned(), ..lane(1, 1) };
        assert_eq!(reason(open(server, other).await), Reason::NotForYou);
        assert_eq!(reason(open(server, lane(2, 1)).await), Reason::NotForYou);
        assert_eq!(reason(open(server, Hello { client: ClientId(0), ..lane(1, 1) }).await), Reason::Invalid);
        for beyond in [0, LANES_MAX + 1, u32::MAX] {
            assert_eq!(reason(open(server, lane(1, beyond)).await), Reason::Invalid, "{beyond}");
        }
        let mut lanes = Vec::new();
        for number in 1..=LANES_MAX {
            lanes.push(open(server, lane(1, number)).await.unwrap());
        }
        assert_eq!(reason(open(server, lane(1, LANES_MAX)).await), Reason::Invalid, "it is already open");
        connection.close();
        for lane in &mut lanes {
            assert!(lane.inbox.next().await.is_none(), "it ends with the first connection");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lane_carries_only_requests_of_its_client() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let node: Address = node.info().tcp.parse().unwrap();
    let ping = ClientToMaster::Ping(Default::default());
    let keep = ClientToNode::Keep(Vec::new());
    let requests = [RequestRef::ClientToMaster(&ping), RequestRef::ClientToNode(&keep)];
    for (server, right, wrong) in
        [(master.address(), requests[0], requests[1]), (&node, requests[1], requests[0])]
    {
        let (_connection, _) = Connection::open(server, hello(1), soon()).await.unwrap();
        let mut lane = open(server, lane(1, 3)).await.unwrap();
        let ids = |counter| RequestId::on_lane(3, counter);
        assert!(!matches!(ask(&mut lane, ids(1), right).await, Reply::Refused(_)));
        assert!(is_refused(&ask(&mut lane, ids(2), wrong).await, Reason::NotForYou));
        assert!(is_refused(&ask(&mut lane, ids(3), RequestRef::Goodbye).await, Reason::NotForYou));
        let elsewhere = RequestId::on_lane(4, 1);
        assert!(is_refused(&ask(&mut lane, elsewhere, right).await, Reason::Invalid));
        assert!(!matches!(ask(&mut lane, ids(4), right).await, Reply::Refused(_)), "the lane still serves");
    }
}

/// The lanes of a replaced connection are closed with it.
#[tokio::test(flavor = "multi_thread")]
async fn lanes_of_a_replaced_connection_end() {
    let master = start_master(MasterConfig::default()).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let node: Address = node.info().tcp.parse().unwrap();
    for server in [master.address(), &node] {
        let (_old, _) = Connection::open(server, hello(1), soon()).await.unwrap();
        let mut old = open(server, lane(1, 1)).await.unwrap();
        let (_new, _) = Connection::open(server, hello(1), soon()).await.unwrap();
        assert!(old.inbox.next().await.is_none());
        open(server, lane(1, 1)).await.unwrap();
    }
}
