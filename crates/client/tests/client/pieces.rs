//! Objects that are written piece by piece into reserved space.

use tiffin_client::{
    Client, Deadline, Error, GetOptions, OnExists, Piece, Put, PutEffect, PutOptions, Reserved, SourceBuf,
    SpaceRequest, SpaceWait,
};

use crate::support::{Cluster, eventually, key, only, pattern, soon};

const MIB: u64 = 1 << 20;

async fn reserve(client: &Client, name: &str, len: u64, replicas: u32) -> Reserved {
    let options = PutOptions { replicas, on_exists: OnExists::Keep, ..PutOptions::default() };
    let spaces = [SpaceRequest { options, ..SpaceRequest::new(key(name), len) }];
    only(client.reserve(&spaces, SpaceWait::Never, soon()).await).unwrap()
}

fn piece(offset: u64, bytes: &[u8]) -> Piece<'_> {
    Piece { offset, sources: vec![SourceBuf::from(bytes)] }
}

async fn bytes_of(client: &Client, name: &str) -> Option<Vec<u8>> {
    only(client.get(&[key(name)], GetOptions::default(), soon()).await).ok().map(|it| it.bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_in_any_order_make_an_object() {
    let cluster = Cluster::start(&[4 * MIB, 4 * MIB], "").await;
    let clients = [cluster.client().await, cluster.tcp_client().await];
    for (at, client) in clients.into_iter().enumerate() {
        for replicas in [1, 2] {
            let name = format!("k{at}{replicas}");
            let bytes = pattern(3, 300_000);
            let (front, back) = bytes.split_at(100_001);
            let reserved = reserve(&client, &name, bytes.len() as u64, replicas).await;
            let back = [(&reserved, piece(100_001, back))];
            assert_eq!(client.write_reserved(&back, soon()).await, [Ok(())]);
            assert_eq!(bytes_of(&client, &name).await, None, "nothing can be read before the commit");
            let front = [(&reserved, piece(0, &front[..5])), (&reserved, piece(5, &front[5..]))];
            assert_eq!(client.write_reserved(&front, soon()).await, [Ok(()), Ok(())]);
            let stored = only(client.commit_reserved(&[&reserved], soon()).await).unwrap();
            assert_eq!(
                (stored.effect, stored.copies, reserved.is_held()),
                (PutEffect::Created, replicas, false)
            );
            assert!(bytes_of(&client, &name).await.unwrap() == bytes);
        }
    }
    eventually("nothing is left", || cluster.nodes.iter().all(|it| it.usage().granted == 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_out_of_range_or_of_others_are_rejected() {
    let cluster = Cluster::one(4 * MIB).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let reserved = reserve(&client, "k", 8, 1).await;
    for wrong in [piece(0, b"123456789"), piece(5, b"1234"), piece(u64::MAX, b"12")] {
        let refused = only(client.write_reserved(&[(&reserved, wrong)], soon()).await);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    let foreign = only(other.write_reserved(&[(&reserved, piece(0, b"1"))], soon()).await);
    assert!(matches!(foreign, Err(Error::Invalid { .. })), "{foreign:?}");
    let foreign = only(other.commit_reserved(&[&reserved], soon()).await);
    assert!(matches!(foreign, Err(Error::Invalid { .. })), "{foreign:?}");
    assert_eq!(client.write_reserved(&[(&reserved, piece(0, b"12345678"))], soon()).await, [Ok(())]);
    let twice = client.commit_reserved(&[&reserved, &reserved], soon()).await;
    assert!(matches!(twice.as_slice(), [Ok(_), Err(Error::Invalid { .. })]), "{twice:?}");
    let late = only(client.write_reserved(&[(&reserved, piece(0, b"x"))], soon()).await);
    assert!(matches!(late, Err(Error::Invalid { .. })), "a stored object is not written to: {late:?}");
    assert_eq!(bytes_of(&client, "k").await.unwrap(), b"12345678");
}

#[tokio::test(flavor = "multi_thread")]
async fn first_commit_of_a_name_wins() {
    let cluster = Cluster::one(4 * MIB).await;
    let client = cluster.client().await;
    let reserved = reserve(&client, "k", 3, 1).await;
    assert_eq!(client.write_reserved(&[(&reserved, piece(0, b"new"))], soon()).await, [Ok(())]);
    only(client.put(&[Put::new(key("k"), b"first")], soon()).await).unwrap();
    let stored = only(client.commit_reserved(&[&reserved], soon()).await).unwrap();
    assert_eq!(stored.effect, PutEffect::Kept);
    assert_eq!(bytes_of(&client, "k").await.unwrap(), b"first");
    eventually("nothing is left", || cluster.nodes[0].usage().granted == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_waits_for_writes() {
    let cluster = Cluster::one(64 * MIB).await;
    let client = cluster.client().await;
    let bytes = pattern(4, 16 << 20);
    let reserved = reserve(&client, "k", bytes.len() as u64, 1).await;
    let pieces: Vec<_> = (0..16).map(|_| (&reserved, piece(0, &bytes))).collect();
    let (written, released) = tokio::join!(client.write_reserved(&pieces, soon()), reserved.release(soon()));
    // The release comes before or after all of the writes, never between two of them.
    let is_one = written.iter().all(Result::is_ok) || written.iter().all(Result::is_err);
    assert!(is_one && released.is_ok(), "{written:?} {released:?}");
    let gone = only(client.commit_reserved(&[&reserved], soon()).await);
    assert!(matches!(gone, Err(Error::Invalid { .. })), "{gone:?}");
    eventually("the space is free", || cluster.nodes[0].usage().granted == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_without_its_node_fails_in_time() {
    let mut cluster = Cluster::one(4 * MIB).await;
    let client = cluster.tcp_client().await;
    let reserved = reserve(&client, "k", 3, 1).await;
    assert_eq!(client.write_reserved(&[(&reserved, piece(0, b"new"))], soon()).await, [Ok(())]);
    let node = cluster.nodes.remove(0);
    node.leave(soon().instant()).await;
    let lost = only(client.write_reserved(&[(&reserved, piece(0, b"new"))], soon()).await);
    assert!(lost.is_err(), "{lost:?}");
    let lost = only(client.commit_reserved(&[&reserved], soon()).await);
    assert!(matches!(lost, Err(Error::Unreachable { .. } | Error::Timeout { .. })), "{lost:?}");
    let past = Deadline::after(std::time::Duration::ZERO);
    let late = only(client.commit_reserved(&[&reserved], past).await);
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
}
