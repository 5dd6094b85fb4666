//! Changes of where the copies of an object are.

use std::collections::BTreeSet;

use tiffin_client::relocate::{Change, relocate};
use tiffin_client::{Client, Error, Put, PutOptions, Why};

use crate::support::{Cluster, key, only, soon};

const MIB: u64 = 1 << 20;

fn names(nodes: &[&str]) -> BTreeSet<String> {
    nodes.iter().map(ToString::to_string).collect()
}

/// The nodes with a copy, the number of copies that there should be, and the owners of pins.
async fn explained(client: &Client) -> (Vec<String>, u32, Vec<String>) {
    let Why::Here(here) = only(client.why(&[key("k")], soon()).await).unwrap() else { panic!("it is gone") };
    (here.nodes, here.copies_wanted, here.pins)
}

#[tokio::test(flavor = "multi_thread")]
async fn change_keeps_pins_and_the_number_of_copies() {
    let cluster = Cluster::start(&[4 * MIB, 4 * MIB], "").await;
    let client = cluster.client().await;
    let options = PutOptions { replicas: 2, hard_pin: true, ..PutOptions::default() };
    let put = Put { options, ..Put::new(key("k"), b"value") };
    let clears = |keeps_count| Change { remove: names(&["node-0"]), keeps_count, ..Change::default() };
    for (keeps_count, wanted) in [(true, 2), (false, 1)] {
        only(client.put(std::slice::from_ref(&put), soon()).await).unwrap();
        assert_eq!(relocate(&client, &key("k"), &clears(keeps_count), soon()).await, Ok(Some(())));
        let (_, copies, pins) = explained(&client).await;
        assert_eq!((copies, pins), (wanted, vec![String::new()]));
    }
    assert_eq!(explained(&client).await.0, ["node-1"]);
    // The pin of another owner cannot be carried over, and the object stays as it is.
    only(client.pin(&[key("k")], "run", soon()).await).unwrap();
    let moves = Change { remove: names(&["node-1"]), add: names(&["node-0"]), keeps_count: true };
    let refused = relocate(&client, &key("k"), &moves, soon()).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(explained(&client).await.2, ["", "run"]);
}
