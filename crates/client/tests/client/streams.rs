//! Streams: consumer groups pull samples in order.

use std::time::Duration;

use tiffin_client::{
    Acked, Attach, Client, Deadline, Error, Generation, OpenStream, Pull, PutOptions, SamplePut, SampleRef,
    SpaceWait, StreamLimits, Watermark,
};

use crate::support::{Cluster, eventually, key, only, soon};

fn sample<'a>(id: &str, bytes: &'a [u8]) -> SamplePut<'a> {
    let tensor = tiffin_client::TensorRef::new("t", tiffin_client::Dtype::U8, &[bytes.len() as u64], bytes);
    let sample = SamplePut::new(key(id), vec![tensor]);
    SamplePut { options: PutOptions { stream: "train".into(), ..sample.options.clone() }, ..sample }
}

async fn put(client: &Client, id: &str, space_wait: SpaceWait) -> Result<SampleRef, Error> {
    only(client.put_samples(&[sample(id, b"bytes")], space_wait, soon()).await)
}

fn pull(at_least: u32) -> Pull {
    Pull { stream: "train".into(), group: "g".into(), at_least, at_most: 4 }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_pull_and_waiting_put_are_woken() {
    let cluster = Cluster::one(64 << 20).await;
    let (producer, consumer) = (cluster.client().await, cluster.client().await);
    let limits = StreamLimits { refs_high: 2, refs_low: 1, ..StreamLimits::default() };
    let open = OpenStream { name: "train".into(), limits: Some(limits), attach: None };
    producer.open_stream(open.clone(), soon()).await.unwrap();
    let attach = Attach { group: "g".into(), window: 3 };
    let refused = consumer.open_stream(OpenStream { attach: Some(attach), ..open }, soon()).await;
    assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains("only 2")), "{refused:?}");

    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move { consumer.pull(&pull(2), soon()).await }
    });
    put(&producer, "a", SpaceWait::Never).await.unwrap();
    put(&producer, "b", SpaceWait::Never).await.unwrap();
    let window = waiting.await.unwrap().unwrap();
    let ids: Vec<_> = window.leases.iter().map(|it| it.id().clone()).collect();
    assert_eq!(ids, [key("a"), key("b")]);
    assert_eq!(window.leases[0].read(&["t"], soon()).await.unwrap(), [b"bytes"]);

    let behind = put(&producer, "c", SpaceWait::Never).await;
    assert!(matches!(&behind, Err(Error::Behind { backlog, .. }) if backlog.refs == 2), "{behind:?}");
    let blocked = tokio::spawn({
        let producer = producer.clone();
        async move { put(&producer, "c", SpaceWait::UntilDeadline).await }
    });
    let done: Vec<_> = window.leases.iter().map(|it| (it.id().clone(), it.generation())).collect();
    let acked = consumer.ack(&done, "g", soon()).await;
    assert_eq!(acked, [Ok(Acked::Freed), Ok(Acked::Freed)]);
    blocked.await.unwrap().unwrap();
    let again = put(&producer, "a", SpaceWait::Never).await;
    assert!(matches!(again, Err(Error::Exists { .. })), "{again:?}");
}

/// A wait of `ms` milliseconds, whose reply may take any time.
fn waiting_ms(ms: u64) -> Deadline {
    Deadline::waiting(Duration::from_millis(ms), soon().remaining())
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_without_events_returns_a_result() {
    let cluster = Cluster::one(64 << 20).await;
    let client = cluster.client().await;
    for ms in [0, 1] {
        let pulled = client.pull(&pull(1), waiting_ms(ms)).await.unwrap();
        assert!(pulled.leases.is_empty() && pulled.end.is_none());
        let seen = client.list_samples("train", Generation::default(), 9, waiting_ms(ms)).await.unwrap();
        assert!(seen.samples.is_empty() && seen.end.is_none());
        // This call reports that the mark was not reached, with the numbers.
        let used = client.wait_usage(Watermark::AtLeast(1), waiting_ms(ms)).await;
        let expected = "waiting for at least 1 byte (there are 0) did not end before its deadline";
        assert_eq!(used, Err(Error::Timeout { what: expected.to_owned() }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_pull_takes_nothing_and_released_samples_return() {
    let cluster = Cluster::one(64 << 20).await;
    let client = cluster.client().await;
    let nothing = client.pull(&pull(1), waiting_ms(20)).await;
    assert!(nothing.is_ok_and(|it| it.leases.is_empty() && it.end.is_none()));
    let first = put(&client, "a", SpaceWait::Never).await.unwrap();
    let seen = client.list_samples("train", Generation::default(), 9, soon()).await.unwrap();
    assert_eq!(seen.samples, [(key("a"), first.generation, first.len)]);
    let pulled = client.pull(&pull(1), soon()).await.unwrap();
    assert_eq!(pulled.leases.len(), 1);
    drop(pulled);
    let pulled = client.pull(&pull(1), soon()).await.unwrap();
    assert_eq!(pulled.leases[0].id(), &key("a"));
    client.end_stream("train", None, soon()).await.unwrap();
    let end = client.pull(&pull(1), soon()).await.unwrap().end;
    assert!(end.is_some_and(|it| it.failure.is_none()));
    assert_eq!(client.drop_stream("train", soon()).await.unwrap().count, 1);
    let end = client.pull(&pull(1), soon()).await.unwrap().end.unwrap();
    assert!(end.failure.is_some_and(|it| it.contains("dropped")));
    eventually("the samples are removed", || cluster.master.stat().namespaces[0].samples == 0).await;
}
