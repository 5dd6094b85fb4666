//! Helpers of both test programs, `client` and `processes`.

use std::time::Duration;

use tiffin_client::{Deadline, Key};

/// Longer than any step of a test takes, on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The polling interval for states that no event announces.
pub(crate) const LOOK: Duration = Duration::from_millis(2);

/// A deadline that a test does not reach.
pub(crate) fn soon() -> Deadline {
    Deadline::after(LONG)
}

/// The key with that name.
pub(crate) fn key(name: impl AsRef<[u8]>) -> Key {
    Key::new(name.as_ref()).unwrap()
}

/// The outcome of a batch of one.
pub(crate) fn only<T>(mut results: Vec<T>) -> T {
    assert_eq!(results.len(), 1);
    results.remove(0)
}

/// Polls until a state holds that no event announces.
pub(crate) async fn eventually(what: &str, mut slot_refs: impl FnMut() -> bool) {
    let waiting = async {
        let mut look = tokio::time::interval(LOOK);
        while !slot_refs() {
            look.tick().await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "never: {what}");
}
