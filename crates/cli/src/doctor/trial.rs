//! An end-to-end check: a small store inside this process, with one object put, read and viewed.

use std::time::Duration;

use tiffin_client::{Deadline, GetOptions, Key, Put};
use tiffin_embedded::Embedded;

use super::Check;

const NAME: &str = "a store";
/// Memory of the store.
const MEMORY_BYTES: u64 = 4 << 20;
/// Bytes of the object.
const OBJECT_BYTES: usize = 1 << 20;
/// Time limit of the check.
const TIME_MAX: Duration = Duration::from_secs(10);

pub(super) async fn check() -> Check {
    match attempt().await {
        Ok(true) => Check::ok(NAME, "put, get and view without a copy work"),
        Ok(false) => Check::limited(
            NAME,
            "put and get work, a view without a copy does not",
            "shared memory does not work here; see the checks above",
        ),
        Err(what) => Check::missing(
            NAME,
            format!("does not work: {what}"),
            "see the checks above; if they pass, report a bug",
        ),
    }
}

/// Whether a view without a copy worked, or what failed.
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
            return Err("the object came back with other bytes".to_owned());
        }
    }
    let mut is_borrowed = true;
    for view in store.client.view(&keys, deadline).await {
        is_borrowed &= view.map_err(|error| error.to_string())?.is_borrowed();
    }
    store.stop(deadline).await.map_err(|error| error.to_string())?;
    Ok(is_borrowed)
}
