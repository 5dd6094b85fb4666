//! Lifetimes of objects: pins, waiting for space, quotas, explanations; and reads of ranges.

use std::time::Duration;

use tiffin_client::{
    Cause, Client, ConnectOptions, Deadline, DeleteOptions, Error, GetInto, GetOptions, ListOptions, Pattern,
    PolicyChange, Put, ResolveOptions, SpaceWait, Watermark, Why,
};
use tiffin_embedded::Embedded;
use tiffin_rpc::{Address, Connection};
use tiffin_types::message::{ClientToNode, Hello, Record, Reply};
use tokio::task::JoinHandle;

use crate::support::{Cluster, eventually, key, only, pattern, pinned, soon};

const MIB: usize = 1 << 20;

fn waiting(cluster: &Cluster) -> u64 {
    cluster.master.stat().namespaces.iter().map(|it| it.waiting).sum()
}

/// A pinned put that waits for space, in its own task.
fn waiting_put(client: &Client, name: &'static str, len: usize) -> JoinHandle<Result<(), Error>> {
    let client = client.clone();
    tokio::spawn(async move {
        let bytes = pattern(len, len);
        let stored = client.put_with(&[pinned(name, &bytes)], SpaceWait::UntilDeadline, soon()).await;
        only(stored).map(|_| ())
    })
}

async fn delete(client: &Client, name: &str) {
    assert_eq!(client.delete(&[key(name)], DeleteOptions::default(), soon()).await, [Ok(true)], "{name}");
}

fn quota(bytes: u64) -> PolicyChange {
    PolicyChange::NONE.quota(Some(bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_put_is_woken_by_a_delete() {
    let cluster = Cluster::one(4 << 20).await;
    let (one, other) = (cluster.client().await, cluster.tcp_client().await);
    only(one.put(&[pinned("old", &pattern(1, 3 * MIB))], soon()).await).unwrap();
    let put = waiting_put(&other, "new", 3 * MIB);
    eventually("the put waits", || waiting(&cluster) == 1).await;
    // A put that may not wait fails at once, and does not overtake.
    let refused = only(one.put(&[pinned("now", &pattern(2, MIB))], soon()).await);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    assert!(!put.is_finished());
    delete(&one, "old").await;
    put.await.unwrap().unwrap();
    let got = only(one.get(&[key("new")], GetOptions::default(), soon()).await).unwrap();
    assert!(got.bytes == pattern(3 * MIB, 3 * MIB));
    assert_eq!(waiting(&cluster), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_put_leaves_the_queue() {
    let cluster = Cluster::one(4 << 20).await;
    let (one, other) = (cluster.client().await, cluster.client().await);
    only(one.put(&[pinned("old", &pattern(1, 3 * MIB))], soon()).await).unwrap();
    let dropped = waiting_put(&other, "dropped", 3 * MIB);
    eventually("the put waits", || waiting(&cluster) == 1).await;
    let behind = waiting_put(&other, "behind", 3 * MIB);
    eventually("the second put waits", || waiting(&cluster) == 2).await;
    dropped.abort();
    eventually("the dropped put has left", || waiting(&cluster) == 1).await;
    // The space goes to the put that still waits.
    delete(&one, "old").await;
    behind.await.unwrap().unwrap();
    assert_eq!(waiting(&cluster), 0);
}

/// Many more objects than one step of a drop removes.
const MANY: usize = 16_000;

/// Drops all objects of one client, and returns how many were left at each query of the other client.
async fn left_during_drop(crowded: &Client, other: &Client) -> Vec<u64> {
    let dropping = crowded.clone();
    let drop = async move { dropping.delete_matching(Pattern::All, DeleteOptions::default(), soon()).await };
    let drop = tokio::spawn(drop);
    // Each reply was sent between two steps, or before the first, or after the last.
    let mut left = Vec::new();
    while !drop.is_finished() {
        let stat = other.stat(soon()).await.unwrap();
        left.push(stat.namespaces.iter().find(|it| it.name == "crowded").unwrap().objects);
        assert!(
            only(other.resolve(&[key("mine")], ResolveOptions::default(), soon()).await).unwrap().is_some()
        );
    }
    let dropped = drop.await.unwrap().unwrap();
    assert_eq!((dropped.count, dropped.unconfirmed), (MANY as u64, vec![]));
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_large_namespace_does_not_block_others() {
    let cluster = Cluster::one(256 << 20).await;
    let crowded = ConnectOptions { namespace: "crowded".to_owned(), ..cluster.options() };
    let crowded = Client::connect(crowded).await.unwrap();
    let other = cluster.client().await;
    only(other.put(&[pinned("mine", b"here")], soon()).await).unwrap();
    let names: Vec<_> = (0..MANY).map(|it| format!("k{it}")).collect();
    let puts: Vec<_> = names.iter().map(|name| Put::new(key(name), b"x")).collect();
    // On a busy machine a whole drop may fit between two queries; then the test repeats it.
    let until = soon();
    loop {
        assert!(crowded.put(&puts, soon()).await.iter().all(Result::is_ok));
        let left = left_during_drop(&crowded, &other).await;
        assert!(left.is_sorted_by(|a, b| a >= b), "{left:?}");
        if left.iter().any(|it| (1..MANY as u64).contains(it)) {
            break;
        }
        assert!(!until.has_passed(), "no query was answered during a drop: {left:?}");
    }
    eventually("all memory is free", || cluster.nodes[0].usage().objects == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn put_that_waited_until_its_deadline_reports_usage() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let bytes = pattern(1, 3 * MIB);
    only(client.put(&[pinned("old", &bytes)], soon()).await).unwrap();
    let short = || Deadline::waiting(Duration::from_millis(100), soon().remaining());
    let full = only(client.put_with(&[pinned("new", &bytes)], SpaceWait::UntilDeadline, short()).await);
    assert!(matches!(&full, Err(Error::Full { usage, .. }) if usage.committed == 3 << 20), "{full:?}");
    client.set_policy(quota(3 << 20), soon()).await.unwrap();
    let over = only(client.put_with(&[pinned("new", b"x")], SpaceWait::UntilDeadline, short()).await);
    assert!(matches!(&over, Err(Error::OverQuota { quota, .. }) if quota.limit == 3 << 20), "{over:?}");
    assert_eq!(waiting(&cluster), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_puts_are_served_in_order() {
    let cluster = Cluster::one(4 << 20).await;
    let (one, other) = (cluster.client().await, cluster.client().await);
    let bytes = pattern(1, 2 * MIB);
    let stored = one.put(&[pinned("a", &bytes), pinned("b", &bytes)], soon()).await;
    assert!(stored.iter().all(Result::is_ok));
    let large = waiting_put(&one, "large", 4 * MIB);
    eventually("the large put waits", || waiting(&cluster) == 1).await;
    let small = waiting_put(&other, "small", MIB);
    eventually("the small put waits", || waiting(&cluster) == 2).await;
    delete(&one, "a").await;
    assert!(!small.is_finished(), "a put that would fit must not overtake");
    assert_eq!(waiting(&cluster), 2);
    delete(&one, "b").await;
    large.await.unwrap().unwrap();
    assert!(!small.is_finished());
    delete(&one, "large").await;
    small.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_applies_to_all_clients_of_a_namespace() {
    let cluster = Cluster::one(16 << 20).await;
    let (one, other) = (cluster.client().await, cluster.tcp_client().await);
    let options = ConnectOptions { namespace: "elsewhere".to_owned(), ..cluster.options() };
    let stranger = Client::connect(options).await.unwrap();
    one.set_policy(quota(2 << 20), soon()).await.unwrap();
    let bytes = pattern(1, MIB + MIB / 2);
    only(one.put(&[pinned("a", &bytes)], soon()).await).unwrap();
    let over = only(other.put(&[pinned("b", &bytes)], soon()).await).unwrap_err();
    let Error::OverQuota { quota: told, .. } = &over else { panic!("{over:?}") };
    assert_eq!((told.used, told.limit), (bytes.len() as u64, 2 << 20));
    assert!(over.is_retryable() && over.hint().is_some());
    only(stranger.put(&[pinned("b", &bytes)], soon()).await).unwrap();

    // One client waits for the space that the other frees.
    let put = waiting_put(&other, "b", MIB + MIB / 2);
    eventually("the put waits", || waiting(&cluster) == 1).await;
    delete(&one, "a").await;
    put.await.unwrap().unwrap();

    // A put that exceeds the quota by itself does not wait, and the error says so.
    let large = pattern(1, 3 * MIB);
    let never = only(one.put_with(&[pinned("c", &large)], SpaceWait::UntilDeadline, soon()).await);
    let never = never.unwrap_err();
    assert_eq!(never.to_string(), "`c` (3.0 MiB) exceeds the quota of its namespace, 2.0 MiB");
    assert!(!never.is_retryable() && never.hint().unwrap().contains("raise the quota"), "{never:?}");

    one.set_policy(quota(0), soon()).await.unwrap();
    let none = only(one.put(&[Put::new(key("c"), b"x")], soon()).await);
    assert!(matches!(none, Err(Error::OverQuota { .. })), "{none:?}");
    other.set_policy(PolicyChange::NONE.quota(None), soon()).await.unwrap();
    only(one.put(&[Put::new(key("c"), b"x")], soon()).await).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_belong_to_owners_and_end_without_a_delete() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let (a, b) = (key("a"), key("b"));
    let stored = client.put(&[Put::new(a.clone(), b"a"), Put::new(b.clone(), b"b")], soon()).await;
    assert!(stored.iter().all(Result::is_ok));
    let pinned = client.pin(&[a.clone(), b.clone(), key("none")], "run-1", soon()).await;
    assert_eq!(pinned, [Ok(()), Ok(()), Err(Error::NotFound { key: key("none") })]);
    assert_eq!(client.pin(std::slice::from_ref(&a), "run-2", soon()).await, [Ok(())]);
    let names = async |owner: &str| {
        let listed = client.list_with(Pattern::All, &ListOptions::pinned_by(owner), soon()).await.unwrap();
        listed.into_iter().map(|it| it.key).collect::<Vec<_>>()
    };
    assert_eq!(names("run-1").await, [a.clone(), b.clone()]);
    assert_eq!(names("run-2").await, std::slice::from_ref(&a));
    assert!(names("nobody").await.is_empty());

    assert_eq!(client.unpin(std::slice::from_ref(&b), "nobody", soon()).await, [Ok(false)]);
    assert_eq!(client.unpin(std::slice::from_ref(&b), "run-1", soon()).await, [Ok(true)]);
    assert_eq!(client.drop_pins("run-1", soon()).await.unwrap().count, 1);
    assert_eq!(client.drop_pins("run-1", soon()).await.unwrap().count, 0);
    assert_eq!(client.drop_pins("nobody", soon()).await.unwrap().count, 0);
    let Ok(Why::Here(here)) = only(client.why(std::slice::from_ref(&a), soon()).await) else { panic!() };
    assert_eq!(here.pins, ["run-2"]);
    let long = only(client.pin(&[a], &"x".repeat(300), soon()).await);
    assert!(matches!(long, Err(Error::Invalid { .. })), "{long:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_waits_return_when_a_namespace_fills_or_empties() {
    let cluster = Cluster::one(8 << 20).await;
    let client = cluster.client().await;
    let watch = |until| {
        let client = client.clone();
        tokio::spawn(async move { client.wait_usage(until, soon()).await })
    };
    let high = watch(Watermark::AtLeast(2 << 20));
    let bytes = pattern(1, MIB);
    for name in ["a", "b"] {
        assert!(!high.is_finished());
        only(client.put(&[pinned(name, &bytes)], soon()).await).unwrap();
    }
    assert_eq!(high.await.unwrap().unwrap().used, 2 << 20);
    let low = watch(Watermark::AtMost(1 << 20));
    delete(&client, "a").await;
    assert_eq!(low.await.unwrap().unwrap().used, 1 << 20);
    let short = Deadline::waiting(Duration::from_millis(100), soon().remaining());
    let never = client.wait_usage(Watermark::AtMost(0), short).await.unwrap_err();
    assert!(matches!(&never, Error::Timeout { what } if what.contains("at most 0 bytes")), "{never:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_holders_and_the_cause_of_removal() {
    let cluster = Cluster::one(4 << 20).await;
    let named = |label: &str| ConnectOptions { label: label.to_owned(), ..cluster.options() };
    let writer = Client::connect(named("the writer")).await.unwrap();
    let reader = Client::connect(named("the reader")).await.unwrap();
    only(writer.put(&[pinned("k", b"bytes")], soon()).await).unwrap();
    let view = only(reader.view(&[key("k")], soon()).await).unwrap();
    let Ok(Why::Here(here)) = only(writer.why(&[key("k")], soon()).await) else { panic!() };
    assert_eq!((here.writer.as_str(), here.reader.as_str()), ("the writer", "the reader"));
    assert_eq!((here.views, here.nodes), (1, vec!["node-0".to_owned()]));
    assert_eq!((here.viewers, here.viewers_more, here.sends), (vec!["the reader".to_owned()], 0, 0));
    drop(view);
    delete(&reader, "k").await;
    let mut answers = writer.why(&[key("k"), key("never")], soon()).await;
    assert_eq!(answers.pop(), Some(Ok(Why::Unknown)));
    let Some(Ok(Why::Gone(gone))) = answers.pop() else { panic!() };
    assert_eq!((gone.cause, gone.by.as_str()), (Cause::Deleted, "the reader"));
}

/// A view that the node counts and the client does not know: its reply, or its end, was lost with the
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn view_whose_end_was_lost_ends_with_the_next_connection() {
    let cluster = Cluster::one(4 << 20).await;
    let (writer, reader) = (cluster.client().await, cluster.client().await);
    for name in ["kept", "lost"] {
        only(writer.put(&[Put::new(key(name), &[7; 4096])], soon()).await).unwrap();
    }
    let kept = only(reader.view(&[key("kept")], soon()).await).unwrap();
    let twice = only(reader.view(&[key("kept")], soon()).await).unwrap();
    let node = &cluster.nodes[0];
    let slot_ref = |name: &str| {
        let is_it = |it: &&Record| it.key == key(name);
        node.inventory().iter().find(is_it).unwrap().slot_ref
    };
    let lost = vec![slot_ref("lost"), slot_ref("kept")];
    // To the node this is a newer connection of the reader, so it closes the reader's own.
    let address = Address::Unix { name: node.info().unix.clone() };
    let hello = Hello { client: reader.id(), namespace: "default".to_owned(), ..Hello::default() };
    let deadline = soon().instant();
    let (connection, _) = Connection::open(&address, hello, deadline).await.unwrap();
    let begun = connection.call(&ClientToNode::BeginViews(lost), deadline).await.unwrap();
    assert_eq!(begun, Reply::ViewsBegun(vec![true, true]));
    delete(&writer, "kept").await;
    delete(&writer, "lost").await;
    assert_eq!(node.usage().held, 2 * 4096);
    // The reader reconnects to end this view, and lists the other.
    drop(twice);
    eventually("the lost view has ended", || node.usage().held == 4096).await;
    assert_eq!(kept.bytes().unwrap(), [7; 4096]);
    drop(kept);
    eventually("nothing is in view", || node.usage().held == 0).await;
}

async fn ranges(client: &Client) {
    let bytes = pattern(3, 5 * MIB);
    let stored = only(client.put(&[Put::new(key("k"), &bytes)], soon()).await).unwrap();
    let len = bytes.len() as u64;
    for (start, end) in [(0, 0), (0, 1), (0, len), (len, len), (63, 65), (1, 4_500_000), (len - 1, len)] {
        let mut buffer = vec![0xee; (end - start) as usize + 3];
        let item = GetInto::new(key("k"), &mut buffer).range(start..end);
        let fetched = only(client.get_into(&[item], GetOptions::default(), soon()).await).unwrap();
        assert_eq!((fetched.len, fetched.generation), (end - start, stored.generation));
        let (filled, spare) = buffer.split_at((end - start) as usize);
        assert!(filled == &bytes[start as usize..end as usize], "{start}..{end}");
        assert_eq!(spare, [0xee; 3]);
    }
    #[expect(clippy::reversed_empty_ranges, reason = "the test passes an invalid range")]
    for range in [0..len + 1, len + 1..len + 1, u64::MAX - 1..u64::MAX, 5..4] {
        let mut buffer = vec![0xee; 8];
        let item = GetInto::new(key("k"), &mut buffer).range(range.clone());
        let fetched = only(client.get_into(&[item], GetOptions::default(), soon()).await);
        let (start, end) = (range.start, range.end);
        assert_eq!(fetched, Err(Error::OutOfRange { key: key("k"), len, start, end }));
        assert_eq!(buffer, [0xee; 8]);
    }
    let mut buffer = vec![0; 9];
    let item = GetInto::new(key("k"), &mut buffer).range(0..10);
    let fetched = only(client.get_into(&[item], GetOptions::default(), soon()).await);
    assert_eq!(fetched, Err(Error::TooSmall { key: key("k"), len: 10 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_exact_on_every_data_path() {
    let cluster = Cluster::one(16 << 20).await;
    ranges(&cluster.client().await).await;
    ranges(&cluster.tcp_client().await).await;
    let store = Embedded::start(16 << 20).await.unwrap();
    ranges(&store.client).await;
    store.stop(soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn expensive_regex_is_rejected_or_harmless() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let name = "a".repeat(10_000);
    only(client.put(&[Put::new(key(&name), b"v")], soon()).await).unwrap();
    let huge = Pattern::Regex("((a{1000}){1000}){1000}".to_owned());
    let refused = client.delete_matching(huge, DeleteOptions::default(), soon()).await;
    assert!(matches!(&refused, Err(Error::Invalid { .. })), "{refused:?}");
    let backtracking = Pattern::Regex("^(a+)+$b".to_owned());
    assert_eq!(client.list(backtracking, soon()).await, Ok(vec![]));
    assert_eq!(client.list(Pattern::All, soon()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_deadline_changes_nothing() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    only(client.put(&[Put::new(key("k"), b"v")], soon()).await).unwrap();
    let past = Deadline::at(tokio::time::Instant::now());
    let timeout = Error::Timeout { what: "the call did not end before its deadline".to_owned() };
    assert_eq!(client.pin(&[key("k")], "run", past).await, [Err(timeout.clone())]);
    assert_eq!(client.unpin(&[key("k")], "run", past).await, [Err(timeout.clone())]);
    assert_eq!(client.drop_pins("run", past).await, Err(timeout.clone()));
    assert_eq!(client.set_policy(quota(0), past).await, Err(timeout.clone()));
    assert_eq!(client.wait_usage(Watermark::AtLeast(0), past).await, Err(timeout.clone()));
    assert_eq!(client.why(&[key("k")], past).await, [Err(timeout.clone())]);
    let put = client.put_with(&[Put::new(key("n"), b"v")], SpaceWait::UntilDeadline, past).await;
    assert_eq!(put, [Err(timeout.clone())]);
    assert_eq!(client.lease(&[(key("k"), None)], "g", past).await.pop().unwrap().err(), Some(timeout));
    only(client.put(&[Put::new(key("n"), b"v")], soon()).await).unwrap();
    assert!(client.list_with(Pattern::All, &ListOptions::pinned_by("run"), soon()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_object_is_absent_and_its_views_stay() {
    let cluster = Cluster::one(4 << 20).await;
    let (one, other) = (cluster.client().await, cluster.tcp_client().await);
    let bytes = pattern(1, MIB);
    let mut put = Put::new(key("a"), &bytes);
    put.options.ttl_ms = Some(200);
    only(one.put(&[put.clone()], soon()).await).unwrap();
    let view = only(one.view(&[key("a")], soon()).await);
    // The time may have been over before the view began.
    let Ok(view) = view else { return };
    for client in [&one, &other] {
        let gone = || async {
            let got = only(client.get(&[key("a")], GetOptions::default(), soon()).await);
            matches!(got, Err(Error::NotFound { .. }))
        };
        while !gone().await {
            tokio::task::yield_now().await;
        }
    }
    assert!(view.bytes().unwrap() == bytes);
    let Why::Gone(gone) = only(one.why(&[key("a")], soon()).await).unwrap() else { panic!() };
    assert_eq!(gone.cause, Cause::Expired);
    let held = || cluster.master.stat().nodes.iter().map(|it| it.usage.held).sum::<u64>();
    eventually("the view holds the memory", || held() == MIB as u64).await;
    drop(view);
    eventually("the memory is free", || held() == 0).await;
    put.options.ttl_ms = Some(0);
    let refused = only(one.put(&[put], soon()).await);
    assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains("TTL")), "{refused:?}");
}
