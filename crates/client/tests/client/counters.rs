//! The master's counters of reads, including cached-location reads.

use std::collections::BTreeMap;

use tiffin_client::{Client, GetOptions};
use tiffin_server::{MasterConfig, MasterServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// A cluster whose master serves HTTP, with the objects `a` to `d`.
async fn cluster() -> Cluster {
    let http = Some("127.0.0.1:0".parse().unwrap());
    let master = MasterServer::start(MasterConfig { http, ..MasterConfig::default() }).await.unwrap();
    let mut cluster = Cluster { nodes: Vec::new(), master };
    cluster.add(16 << 20).await;
    let client = cluster.client().await;
    for name in ["a", "b", "c", "d"] {
        only(client.put(&[pinned(name, b"bytes")], soon()).await).unwrap();
    }
    client.close(soon()).await.unwrap();
    cluster
}

/// The master's counters of lookups, without zeros and common parts of names.
async fn counted(cluster: &Cluster) -> BTreeMap<String, u64> {
    let address = cluster.master.http_address().unwrap().to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let counters = page.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("master_")?.split_once(' ')?;
        let (kind, what) = name.strip_suffix("_total")?.split_once("get_replica_list_")?;
        Some((format!("{kind}{what}"), value.parse().ok()?))
    });
    counters.filter(|(_, value)| *value > 0).collect()
}

fn expected(counters: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

async fn read(client: &Client, names: &[&str], times: usize) {
    let keys: Vec<_> = names.iter().map(key).collect();
    for _ in 0..times {
        let objects = client.get(&keys, GetOptions::default(), soon()).await;
        let found = objects.iter().map(Result::is_ok).collect::<Vec<_>>();
        assert_eq!(found, names.iter().map(|name| *name != "missing").collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_client_that_closes_are_counted() {
    let cluster = cluster().await;
    for round in 1..=3 {
        let client = cluster.client().await;
        read(&client, &["a"], 20).await;
        client.close(soon()).await.unwrap();
        assert_eq!(counted(&cluster).await, expected(&[("requests", 20 * round)]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_counted_once_if_its_parts_are_sent_separately() {
    let cluster = cluster().await;
    let client = cluster.client().await;
    read(&client, &["a", "b", "c", "d", "missing"], 5).await;
    client.close(soon()).await.unwrap();
    let batches = [
        ("batch_requests", 5),
        ("batch_items", 25),
        ("batch_failed_items", 5),
        ("batch_partial_successes", 5),
    ];
    assert_eq!(counted(&cluster).await, expected(&batches));
}
