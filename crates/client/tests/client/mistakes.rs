//! Invalid requests: each returns a specific error, and leaves nothing behind.

use tiffin_client::{
    Acked, Client, ConnectOptions, Consumption, Deadline, DeleteOptions, DeletedMatching, Dtype, Error,
    Generation, ListOptions, NamespaceStat, Pattern, PolicyChange, Put, Quota, SamplePut, SpaceRequest,
    SpaceWait, TensorRef, Usage,
};
use tokio::time::Instant;

use crate::support::{Cluster, eventually, key, only, pinned, soon};

/// All counters that do not grow with time.
fn ledger(cluster: &Cluster) -> (Vec<Usage>, Vec<NamespaceStat>) {
    let timeless = |it| NamespaceStat { sample_age_ms: 0, leased_age_ms: 0, ..it };
    let usages = cluster.nodes.iter().map(tiffin_server::NodeServer::usage).collect();
    (usages, cluster.master.stat().namespaces.into_iter().map(timeless).collect())
}

fn tensor<'a>(name: &str, shape: &[u64], bytes: &'a [u8]) -> TensorRef<'a> {
    TensorRef::new(name, Dtype::F32, shape, bytes)
}

async fn put_sample(client: &Client, tensors: Vec<TensorRef<'_>>) -> Result<Generation, Error> {
    put_sample_by(client, "s", tensors, soon()).await
}

async fn put_sample_by(
    client: &Client,
    id: &str,
    tensors: Vec<TensorRef<'_>>,
    deadline: Deadline,
) -> Result<Generation, Error> {
    let consumption = Consumption::Groups(vec!["g".to_owned(), "h".to_owned()]);
    let sample = SamplePut { consumption, ..SamplePut::new(key(id), tensors) };
    only(client.put_samples(&[sample], SpaceWait::Never, deadline).await).map(|it| it.generation)
}

/// Sends an invalid request, checks its result, and that all counters are unchanged.
macro_rules! mistake {
    ($cluster:ident, $before:ident, $what:literal, $call:expr, $answer:pat $(if $more:expr)?) => {
        let answer = $call;
        assert!(matches!(&answer, $answer $(if $more)?), "{}: {answer:?}", $what);
        drop(answer);
        eventually(concat!("nothing is left of this: ", $what), || ledger(&$cluster) == $before).await;
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_sample_requests_leave_nothing_behind() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let stored = put_sample(&client, vec![tensor("x", &[2], &[0; 8])]).await.unwrap();
    only(client.put(&[pinned("plain", b"v")], soon()).await).unwrap();
    let wrong = Generation { counter: stored.counter + 1000, ..stored };
    let lease = async |id: &str, generation, group: &str| {
        only(client.lease(&[(key(id), generation)], group, soon()).await)
    };
    let ack = async |id: &str, generation| only(client.ack(&[(key(id), generation)], "g", soon()).await);

    let before = ledger(&cluster);
    mistake!(
        cluster,
        before,
        "a lease of the wrong generation",
        lease("s", Some(wrong), "g").await,
        Err(Error::Superseded { generation, .. }) if *generation == stored
    );
    mistake!(cluster, before, "an ack of the wrong generation", ack("s", wrong).await, Ok(Acked::Stale));
    let abort = client.abort(&[(key("s"), wrong)], false, soon()).await;
    mistake!(cluster, before, "an abort of the wrong generation", only(abort), Ok(false));
    mistake!(cluster, before, "an ack of an unknown sample", ack("never", stored).await, Ok(Acked::Stale));
    mistake!(cluster, before, "an ack of a plain object", ack("plain", stored).await, Ok(Acked::Stale));
    mistake!(
        cluster,
        before,
        "a lease of an unknown sample",
        lease("never", None, "g").await,
        Err(Error::NotFound { .. })
    );
    mistake!(
        cluster,
        before,
        "a lease of a plain object",
        lease("plain", None, "g").await,
        Err(Error::NotASample { .. })
    );
    mistake!(
        cluster,
        before,
        "a lease for a wrong group",
        lease("s", None, "stranger").await,
        Err(Error::WrongGroup { .. })
    );
    let released_twice = async {
        let held = lease("s", None, "g").await.unwrap();
        let results = [client.release(&[&held, &held], soon()).await, client.release(&[&held], soon()).await];
        (results, held.read(&["x"], soon()).await)
    };
    mistake!(
        cluster,
        before,
        "a lease released twice",
        released_twice.await,
        ([Ok(()), Ok(())], Err(Error::Invalid { .. }))
    );

    let says = |error: &Error, what: &str| matches!(error, Error::Invalid { what: it } if it.contains(what));
    for (tensors, what) in [
        (vec![], "no tensor"),
        (vec![tensor("x", &[1], &[0; 4]), tensor("x", &[1], &[0; 4])], "`x`"),
        (vec![tensor("", &[1], &[0; 4])], "name"),
        (vec![tensor("x", &[2], &[0; 4])], "`x`"),
        (vec![tensor("x", &[0], &[0; 4])], "`x`"),
        (vec![tensor("x", &[1 << 62, 1 << 62], &[0; 4])], "`x`"),
    ] {
        mistake!(
            cluster,
            before,
            "an invalid sample",
            put_sample(&client, tensors.clone()).await,
            Err(error) if says(error, what)
        );
    }
    let held = lease("s", Some(stored), "g").await.unwrap();
    assert_eq!(held.generation(), stored, "the sample is unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_names_and_owners_leave_nothing_behind() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    only(client.put(&[pinned("k", b"v")], soon()).await).unwrap();
    let name = "a".repeat(10_000);
    only(client.put(&[pinned(&name, b"v")], soon()).await).unwrap();

    let before = ledger(&cluster);
    let nothing = DeletedMatching { count: 0, unconfirmed: vec![] };
    let dropped = client.drop_pins("nobody", soon()).await;
    mistake!(cluster, before, "pins of an unknown owner, dropped", dropped, Ok(it) if *it == nothing);
    let unpinned = client.unpin(&[key("k")], "nobody", soon()).await;
    mistake!(cluster, before, "a pin of an unknown owner, ended", only(unpinned), Ok(false));
    let listed = client.list_with(Pattern::All, &ListOptions::pinned_by("nobody"), soon()).await;
    mistake!(cluster, before, "pins of an unknown owner, listed", listed, Ok(it) if it.is_empty());
    let long = "x".repeat(10_000);
    let pin = only(client.pin(&[key("k")], &long, soon()).await);
    mistake!(cluster, before, "an owner with too long a name", pin, Err(Error::Invalid { .. }));
    let pin = only(client.pin(&[key("never")], "run", soon()).await);
    mistake!(cluster, before, "a pin of an unknown object", pin, Err(Error::NotFound { .. }));

    let delete = async |pattern: &str| {
        client.delete_matching(Pattern::Regex(pattern.to_owned()), DeleteOptions::default(), soon()).await
    };
    for pattern in ["(", "((a{1000}){1000}){1000}", "(?=a)"] {
        mistake!(cluster, before, "an invalid pattern", delete(pattern).await, Err(Error::Invalid { .. }));
    }
    for pattern in ["^(a+)+$b", "(a*)*(a|aa)*(b|a+)*c$"] {
        let deleted = delete(pattern).await;
        mistake!(cluster, before, "a pattern that backtracks", deleted, Ok(it) if *it == nothing);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_quota_or_late_leave_nothing_behind() {
    let cluster = Cluster::one(4 << 20).await;
    let poor = ConnectOptions { namespace: "poor".to_owned(), ..cluster.options() };
    let poor = Client::connect(poor).await.unwrap();
    poor.set_policy(PolicyChange::NONE.quota(Some(0)), soon()).await.unwrap();
    let before = ledger(&cluster);
    let is_none = |it: &Quota| (it.used, it.limit) == (0, 0) && it.is_never_enough();
    let full = |error: &Error| matches!(error, Error::OverQuota { quota, .. } if is_none(quota));
    let put = only(poor.put(&[Put::new(key("k"), b"v")], soon()).await);
    mistake!(cluster, before, "a put with a quota of zero", put, Err(it) if full(it));
    let put = put_sample(&poor, vec![tensor("x", &[1], &[0; 4])]).await;
    mistake!(cluster, before, "a sample with a quota of zero", put, Err(it) if full(it));
    let space =
        only(poor.reserve(&[SpaceRequest::new(key("k"), 8)], SpaceWait::Never, soon()).await).map(drop);
    mistake!(cluster, before, "a reserve with a quota of zero", space, Err(it) if full(it));

    let client = cluster.client().await;
    only(client.put(&[pinned("k", b"v")], soon()).await).unwrap();
    let before = ledger(&cluster);
    let past = Deadline::at(Instant::now());
    let put = only(client.put_with(&[Put::new(key("n"), b"v")], SpaceWait::UntilDeadline, past).await);
    mistake!(cluster, before, "a put that is too late", put, Err(Error::Timeout { .. }));
    let put = put_sample_by(&client, "n", vec![tensor("x", &[1], &[0; 4])], past).await;
    mistake!(cluster, before, "a sample that is too late", put, Err(Error::Timeout { .. }));
    let space = only(client.reserve(&[SpaceRequest::new(key("n"), 8)], SpaceWait::UntilDeadline, past).await)
        .map(drop);
    mistake!(cluster, before, "a reserve that is too late", space, Err(Error::Timeout { .. }));
    let lease = only(client.lease(&[(key("k"), None)], "g", past).await).map(drop);
    mistake!(cluster, before, "a lease that is too late", lease, Err(Error::Timeout { .. }));
    let deleted = only(client.delete(&[key("k")], DeleteOptions::default(), past).await);
    mistake!(cluster, before, "a delete that is too late", deleted, Err(Error::Timeout { .. }));
    let view = only(client.view(&[key("k")], past).await).map(drop);
    mistake!(cluster, before, "a view that is too late", view, Err(Error::Timeout { .. }));
    mistake!(
        cluster,
        before,
        "a pin that is too late",
        only(client.pin(&[key("k")], "run", past).await),
        Err(Error::Timeout { .. })
    );
}
