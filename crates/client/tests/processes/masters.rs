//! Masters that are killed.

use tiffin_client::{Client, ConnectOptions, Key, Put, ResolveOptions};
use tiffin_server::{NodeConfig, NodeServer};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{LONG, LOOK, MEMORY, Process, key, only, soon};

/// Puts one object after the other until one fails, and reports each acknowledged one.
async fn put_until_it_fails(client: Client, prefix: String, acknowledged: mpsc::UnboundedSender<Key>) {
    for number in 0.. {
        let key = key(format!("{prefix}/{number}"));
        if only(client.put(&[Put::new(key.clone(), prefix.as_bytes())], soon()).await).is_err() {
            return;
        }
        let _nobody_counts = acknowledged.send(key);
    }
}

pub(crate) fn master_killed_under_puts(runtime: &Runtime) {
    let address = format!("unix:@tiffin-client-test-{}", std::process::id());
    let mut master = Process::start(&["master", &address]);
    let config = NodeConfig { master: address.parse().unwrap(), memory: MEMORY, ..NodeConfig::default() };
    let node = runtime.block_on(NodeServer::start(config)).unwrap();
    let mut all = Vec::new();
    for round in 0..4 {
        let joined = async { node.joined(Instant::now() + LONG).await.unwrap() };
        runtime.block_on(joined);
        let (sender, mut acknowledged) = mpsc::unbounded_channel();
        let writers = [0, 1].map(|writer| {
            let (address, sender, prefix) = (address.clone(), sender.clone(), format!("{round}/{writer}"));
            runtime.spawn(async move {
                let client = Client::connect(ConnectOptions::new(address)).await.unwrap();
                put_until_it_fails(client, prefix, sender).await;
            })
        });
        drop(sender);
        runtime.block_on(async {
            for _ in 0..100 {
                all.push(acknowledged.recv().await.unwrap());
            }
        });
        master.kill();
        runtime.block_on(async {
            // A put may retry until its deadline; objects acknowledged before that are reported.
            writers.iter().for_each(JoinHandle::abort);
            while let Some(key) = acknowledged.recv().await {
                all.push(key);
            }
            for writer in writers {
                assert!(writer.await.map_or_else(|error| error.is_cancelled(), |()| true));
            }
        });
        master = Process::start(&["master", &address]);
        runtime.block_on(async {
            let client = Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
            // The node reconnects at its own pace.
            let (mut lost, mut look) = (all.clone(), tokio::time::interval(LOOK));
            let until = Instant::now() + LONG;
            while !lost.is_empty() {
                assert!(
                    Instant::now() < until,
                    "lost although acknowledged before the master was killed: {lost:?}"
                );
                look.tick().await;
                let infos = client.resolve(&lost, ResolveOptions::default(), soon()).await;
                let mut found = infos.into_iter().map(|it| it.unwrap().is_some());
                lost.retain(|_| !found.next().unwrap());
            }
            client.close(soon()).await.unwrap();
        });
    }
    drop(master);
}
