//! A store inside a program, when one of its threads panics: calls return errors in time, and the program
//! continues.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use tiffin_client::{Deadline, Error, GetOptions, Key, Put};
use tiffin_embedded::Embedded;
use tiffin_server::supervise::faults::{Point, arm};
use tokio::time::timeout;

/// Only a hang reaches this limit.
const TIME_MAX: Duration = Duration::from_secs(60);

async fn put(store: &Embedded, key: &str) -> Result<(), Error> {
    let key = Key::new(key.as_bytes()).unwrap();
    let stored = store.client.put(&[Put::new(key, b"value")], Deadline::after(TIME_MAX)).await;
    stored.into_iter().next().unwrap().map(drop)
}

async fn failed_by_now(store: &Embedded) -> bool {
    timeout(Duration::ZERO, store.server.failed()).await.is_ok()
}

// One test, because arming a fault affects the whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_store_returns_errors_and_program_continues() {
    for (point, failed) in [
        (Point::MasterCore, "the master's core failed"),
        (Point::NodeCore, "the node's core failed"),
        (Point::Timer, "the timer failed"),
    ] {
        let store = Embedded::start(8 << 20).await.unwrap();
        put(&store, "before").await.unwrap();
        arm(point);
        // The armed part fails during one of these calls; none of them hangs.
        while put(&store, "after").await.is_ok() && !failed_by_now(&store).await {}
        let failure = timeout(TIME_MAX, store.server.failed()).await.expect("the store does not fail");
        assert!(failure.starts_with(failed), "{point:?}: {failure}");
        // Every later call returns. A cached-location read may succeed before the node has noticed the
        // failure.
        let key = [Key::new(b"before").unwrap()];
        let get = store.client.get(&key, GetOptions::default(), Deadline::after(TIME_MAX));
        drop(timeout(TIME_MAX / 2, get).await.expect("a get hangs"));
        // A put may succeed before all parts have noticed it.
        let puts_fail = async { while put(&store, "later").await.is_ok() {} };
        timeout(TIME_MAX / 2, puts_fail).await.expect("a put hangs, or puts still succeed");
        // Stopping returns, too.
        let stopped = timeout(TIME_MAX / 2, store.stop(Deadline::after(Duration::from_secs(5))));
        let _closed = stopped.await.expect("stopping hangs");
    }
    let store = Embedded::start(8 << 20).await.unwrap();
    put(&store, "new").await.unwrap();
}
