//! Errors of a server's start, and their messages.

use crate::support::*;
use tiffin_rpc::{Address, Listener};
use tiffin_server::config::{Engine, SsdConfig};
use tiffin_server::node::check_memory;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};

fn refusals(error: impl std::error::Error, expected: &[&str]) {
    let message = error.to_string();
    for part in expected {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[tokio::test]
async fn port_in_use_is_named() {
    let taken = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = taken.local_address().clone();
    let hint = "hint: another process listens there";
    let expected = [&*format!("cannot listen on `{address}`"), hint];
    let master = MasterConfig { listen: vec![address.clone()], ..MasterConfig::default() };
    refusals(MasterServer::start(master).await.unwrap_err(), &expected);
    let http = MasterConfig { http: Some(address.clone()), ..MasterConfig::default() };
    refusals(MasterServer::start(http).await.unwrap_err(), &expected);
    let node = NodeConfig { listen: Some(address.clone()), memory: 1 << 20, ..NodeConfig::default() };
    refusals(NodeServer::start(node).await.unwrap_err(), &expected);
    let data = NodeConfig { data_listen: Some(address), memory: 1 << 20, ..NodeConfig::default() };
    refusals(NodeServer::start(data).await.unwrap_err(), &expected);
}

#[tokio::test]
async fn address_of_another_host_is_named() {
    let token = "secret".to_owned();
    let elsewhere: Address = "192.0.2.1:0".parse().unwrap();
    let master = MasterConfig { listen: vec![elsewhere], token, ..MasterConfig::default() };
    refusals(
        MasterServer::start(master).await.unwrap_err(),
        &["192.0.2.1:0", "hint: it is not an address of this"],
    );
}

#[tokio::test]
async fn unwritable_state_folder_is_named() {
    for folder in ["/proc/tiffin", "/dev/null/tiffin"] {
        let config = MasterConfig { state_dir: Some(folder.into()), ..MasterConfig::default() };
        let expected = [folder, "cannot keep the master's state", "hint: choose a folder"];
        refusals(MasterServer::start(config).await.unwrap_err(), &expected);
    }
}

#[tokio::test]
async fn only_loopback_is_allowed_without_a_token() {
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let expected = ["`0.0.0.0:0`, which other machines can reach", "hint: set a token"];
    let master = MasterConfig { listen: vec![everywhere.clone()], ..MasterConfig::default() };
    refusals(MasterServer::start(master).await.unwrap_err(), &expected);
    let node = NodeConfig { listen: Some(everywhere.clone()), ..NodeConfig::default() };
    refusals(NodeServer::start(node).await.unwrap_err(), &expected);
    let (token, exposed) = ("secret".to_owned(), true);
    let master = MasterConfig { listen: vec![everywhere.clone()], token, ..MasterConfig::default() };
    assert!(MasterServer::start(master).await.is_ok());
    let master = MasterConfig { listen: vec![everywhere], exposed, ..MasterConfig::default() };
    assert!(MasterServer::start(master).await.is_ok());
}

#[tokio::test]
async fn memory_beyond_the_machines_is_refused() {
    let node = NodeConfig { memory: 60 << 40, ..NodeConfig::default() };
    refusals(NodeServer::start(node).await.unwrap_err(), &["does not fit", "hint: ask for less memory"]);
}

#[tokio::test]
async fn memory_that_disks_need_is_checked_at_start() {
    let disk = |size| SsdConfig { path: "/nowhere/tiffin".into(), size, engine: Engine::Auto };
    let node = |ssd| NodeConfig { memory: 1 << 20, ssd, ..NodeConfig::default() };
    let wanted = |config: &NodeConfig| check_memory(config).unwrap().wanted;
    let (without, with) = (node(Vec::new()), node(vec![disk(1 << 30)]));
    assert_eq!(wanted(&with) - wanted(&without), 192 << 20);
    assert_eq!(wanted(&with) - wanted(&NodeConfig { shared_memory: false, ..with.clone() }), 64 << 20);
    let node = NodeConfig { memory: 60 << 40, ..with };
    let expected = ["MiB for its disks do not fit", "hint: ask for less memory"];
    refusals(check_memory(&node).unwrap_err(), &expected);
    refusals(NodeServer::start(node).await.unwrap_err(), &expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcard_is_advertised_as_a_reachable_address() {
    let master = start_master(MasterConfig::default()).await;
    let config = NodeConfig {
        listen: Some("0.0.0.0:0".parse().unwrap()),
        advertise: Some("node-7.example".to_owned()),
        token: "secret".to_owned(),
        memory: 1 << 20,
        master: master.address().clone().into(),
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config.clone()).await.unwrap();
    assert!(
        node.info().tcp.starts_with("node-7.example:") && node.info().data.starts_with("node-7.example:")
    );
    assert_eq!(node.info().name, node.info().tcp);
    let node = NodeServer::start(NodeConfig { advertise: None, ..config }).await.unwrap();
    assert!(!node.info().tcp.starts_with("0.0.0.0"), "{:?}", node.info());
}
