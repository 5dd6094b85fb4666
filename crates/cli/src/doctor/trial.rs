//! The whole thing, once: a small store inside this process, one object put, got and looked at.

use std::time::Duration;

use tiffin_client::{Deadline, GetOptions, Key, Put};
use tiffin_embedded::Embedded;

use super::Check;

const NAME: &str = "a store";
/// Memory of the store.
const MEMORY_BYTES: u64 = 4 << 20;
/// Bytes of the object.
const OBJECT_BYTES: usize = 1 << 20;
/// A machine that needs longer than this does not work.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Tries it.
pub(super) async fn check() -> Check {
    match attempt().await {
        Ok(true) => Check::ok(NAME, "put, got, and looked at without a copy"),
        Ok(false) => Check::limited(
            NAME,
            "put and got, but not looked at without a copy",
            "shared memory does not work here; the checks above may say why",
        ),
        Err(what) => Check::missing(
            NAME,
            format!("does not work: {what}"),
            "the checks above may say why; if not, tell us",
        ),
    }
}

/// Whether an object could be looked at without a copy, or what failed.
async fn attempt() -> Result<bool, String> {
    let deadline = Deadline::after(TIME_MAX);
    let store = Embedded::start(MEMORY_BYTES).await.map_err(|error| error.to_string())?;
    let key = Key::new(b"trial").map_err(|error| error.to_string())?;
    let value: Vec<u8> = (0..OBJECT_BYTES).map(|index| index as u8).collect();
    let keys = [key.clone()];
    for stored in store.client.put(&[Put::new(key, &value)], deadline).await {
        stored.map_err(|error| error.to_string())?;
    }
    for object in store.client.get(&keys, GetOptions::default(), deadline).await {
        if object.map_err(|error| error.to_string())?.bytes != value {
            return Err("other bytes came back than were put".to_owned());
        }
    }
    let mut is_borrowed = true;
    for view in store.client.view(&keys, deadline).await {
        is_borrowed &= view.map_err(|error| error.to_string())?.is_borrowed();
    }
    store.stop(deadline).await.map_err(|error| error.to_string())?;
    Ok(is_borrowed)
}
