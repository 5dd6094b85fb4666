//! Nodes whose memory outlives their process.

use std::path::PathBuf;

use tiffin_proto::Incoming;
use tiffin_rpc::{Handshake, Listener};
use tiffin_server::config::PoolEnd;
use tiffin_server::{NodeConfig, NodeServer, host};
use tiffin_types::message::{Announced, MemberToMaster, Registered, Reply, Request, Welcome};

use crate::support::*;

/// A pool of this test, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(PathBuf::from(format!("/dev/shm/tiffin-server-test-{:016x}", host::draw().unwrap())))
    }

    fn can_be_adopted(&self) -> bool {
        self.0.join("control").exists()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Takes a node in. Returns, when the node says goodbye, whether its pool could be adopted then.
async fn be_master(listener: Listener, folder: &Folder) -> bool {
    let greeting = Handshake::receive(listener.accept().await, soon()).await.unwrap();
    let (outbox, mut inbox) = greeting.welcome(Welcome::default());
    loop {
        let (id, reply) = match inbox.next().await {
            Some(Incoming::Request(id, Request::MemberToMaster(MemberToMaster::Register(_)))) => {
                (id, Reply::Registered(Registered { epoch: 1, ..Registered::default() }))
            }
            Some(Incoming::Request(id, Request::MemberToMaster(MemberToMaster::Announce(_)))) => {
                (id, Reply::Announced(Announced::default()))
            }
            Some(Incoming::Request(_, Request::Goodbye)) => return folder.can_be_adopted(),
            Some(Incoming::Request(id, _)) => (id, Reply::Done),
            other => panic!("{other:?}"),
        };
        outbox.reply(id, &reply);
    }
}

/// The master confirms deletes without a node that has left. If the node is killed before it has removed its
/// pool, the next process must not bring their objects back.
#[tokio::test(flavor = "multi_thread")]
async fn discarded_pool_cannot_be_adopted_after_the_goodbye() {
    let folder = Folder::new();
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let config = NodeConfig {
        master: listener.local_address().clone().into(),
        memory: 4 << 20,
        shared_memory: false,
        pool: Some(folder.0.clone()),
        pool_on_stop: PoolEnd::Discard,
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config).await.unwrap();
    let leaves = async {
        node.joined(soon()).await.unwrap();
        assert!(folder.can_be_adopted());
        node.leave(soon()).await;
    };
    let (can_be_adopted, ()) = tokio::join!(be_master(listener, &folder), leaves);
    assert!(!can_be_adopted, "a node that starts now brings deleted objects back");
    assert!(!folder.0.exists());
}
