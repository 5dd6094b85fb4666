//! Nodes that are started with the master of another cluster.

use tiffin_server::config::{Engine, SsdConfig};
use tiffin_server::node::JoinError;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};

use crate::support::{Raw, Way, hello, soon, start_master, start_node};

/// Starts a node with a master that refuses it, and returns the refusal.
async fn refusal(master: &MasterServer, config: &NodeConfig) -> String {
    let config = NodeConfig { master: master.address().clone().into(), ..config.clone() };
    let node = NodeServer::start(config).await.unwrap();
    let joined = node.joined(soon()).await;
    node.leave(soon()).await;
    match joined {
        Err(JoinError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_of_another_cluster_is_refused_and_kept() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = Some(shm.path().join("pool"));
    let config = NodeConfig { name: "n".into(), memory: 4 << 20, pool, ..NodeConfig::default() };
    let (one, two) =
        (start_master(MasterConfig::default()).await, start_master(MasterConfig::default()).await);
    let node = start_node(one.address(), config.clone()).await;
    let _other = start_node(two.address(), NodeConfig::default()).await;
    let client_of_one = Raw::connect(one.address(), hello(1)).await.unwrap();
    let client_of_two = Raw::connect(two.address(), hello(2)).await.unwrap();
    client_of_one.put("k", b"cluster one", Way::Tcp).await;
    client_of_two.put("k", b"cluster two", Way::Tcp).await;
    node.leave(soon()).await;
    let epochs = (one.epoch(), two.epoch());

    let why = refusal(&two, &config).await;
    for part in ["`n` belongs to cluster ", "this is the master of cluster ", "hint: name the master"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!((one.epoch(), two.epoch()), epochs);
    assert_eq!(two.stat().nodes.len(), 1);
    assert_eq!(client_of_two.get("k", Way::Tcp).await.as_deref(), Some(&b"cluster two"[..]));

    let node = start_node(one.address(), config.clone()).await;
    assert_eq!(client_of_one.get("k", Way::Tcp).await.as_deref(), Some(&b"cluster one"[..]));
    node.leave(soon()).await;

    // A master without state has no id yet, and takes over that of the pool.
    let three = start_master(MasterConfig::default()).await;
    let _node = start_node(three.address(), config).await;
    let client = Raw::connect(three.address(), hello(3)).await.unwrap();
    assert_eq!(client.get("k", Way::Tcp).await.as_deref(), Some(&b"cluster one"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_of_another_cluster_is_refused_with_its_node() {
    let folder = tempfile::tempdir().unwrap();
    let ssd = vec![SsdConfig { path: folder.path().to_owned(), size: 64 << 20, engine: Engine::Blocking }];
    let config = NodeConfig { name: "n".into(), memory: 4 << 20, ssd, ..NodeConfig::default() };
    let (one, two) =
        (start_master(MasterConfig::default()).await, start_master(MasterConfig::default()).await);
    start_node(one.address(), config.clone()).await.leave(soon()).await;
    let _other = start_node(two.address(), NodeConfig::default()).await;
    let client = Raw::connect(two.address(), hello(2)).await.unwrap();
    client.put("k", b"cluster two", Way::Tcp).await;

    let why = refusal(&two, &config).await;
    assert!(why.contains("`n` belongs to cluster "), "new memory joins the cluster of its disk: {why}");
    assert_eq!(two.stat().nodes.len(), 1);
    let _node = start_node(one.address(), config).await;
    assert_eq!(one.stat().nodes.len(), 2, "the memory and the disk");
}
