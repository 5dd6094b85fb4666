//! A store inside a program one of whose parts panics: calls get errors in time, and the program lives on.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

use std::time::Duration;

use tiffin_client::{Deadline, Error, GetOptions, Key, Put};
use tiffin_embedded::Embedded;
use tiffin_server::supervise::faults::{Point, arm};
use tokio::time::timeout;

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

async fn put(store: &Embedded, key: &str) -> Result<(), Error> {
    let key = Key::new(key.as_bytes()).unwrap();
    let stored = store.client.put(&[Put::new(key, b"value")], Deadline::after(PATIENCE)).await;
    stored.into_iter().next().unwrap().map(drop)
}

async fn failed_by_now(store: &Embedded) -> bool {
    timeout(Duration::ZERO, store.server.failed()).await.is_ok()
}

// One test, because what is armed is armed for the whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_store_gives_errors_and_spares_the_program() {
    for (point, failed) in [
        (Point::MasterCore, "the master's core failed"),
        (Point::NodeCore, "the node's core failed"),
        (Point::Timer, "the timer failed"),
    ] {
        let store = Embedded::start(8 << 20).await.unwrap();
        put(&store, "before").await.unwrap();
        arm(point);
        // The part that is armed fails during one of these; none of them hangs.
        while put(&store, "after").await.is_ok() && !failed_by_now(&store).await {}
        let failure = timeout(PATIENCE, store.server.failed()).await.expect("it does not fail");
        assert!(failure.starts_with(failed), "{point:?}: {failure}");
        // Every later call is answered. A read from a cached location may come before the node has noticed.
        let key = [Key::new(b"before").unwrap()];
        let get = store.client.get(&key, GetOptions::default(), Deadline::after(PATIENCE));
        drop(timeout(PATIENCE / 2, get).await.expect("a get hangs"));
        let puts = timeout(PATIENCE / 2, put(&store, "later")).await.expect("a put hangs");
        puts.unwrap_err();
        // So does the end.
        let stopped = timeout(PATIENCE / 2, store.stop(Deadline::after(Duration::from_secs(5))));
        let _closed = stopped.await.expect("stopping hangs");
    }
    let store = Embedded::start(8 << 20).await.unwrap();
    put(&store, "a new store works").await.unwrap();
}
