//! A Tiffin cluster as the shared store: one object per page of a rank.

use tiffin_client::{
    Ahead, Blocking, Client, Deadline, DeleteOptions, Error, GetInto, GetOptions, Key, OnExists, Pattern,
    Put, PutOptions, ResolveOptions, with_blocking,
};
use tokio::runtime::Handle;

use crate::pages::{PageReadGuard, PageWriteGuard};
use crate::store::{Fault, PageName, PageStore, Stop};

/// A Tiffin cluster. A probe prefetches pages that are only on disks, up to the first missing one.
#[derive(Clone, Debug)]
pub struct ClusterStore {
    client: Client,
    runtime: Handle,
}

impl ClusterStore {
    /// A store over this client, whose calls run in this runtime.
    #[must_use]
    pub fn new(client: Client, runtime: Handle) -> Self {
        Self { client, runtime }
    }

    /// Waits for a call on the current thread. A stopped call is dropped, and with it every access to the
    /// pages.
    fn wait<T>(
        &self,
        stop: &Stop,
        call: impl AsyncFnOnce(&Client, Deadline) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if stop.should_stop() {
            return Err(Fault::Stopped);
        }
        let deadline = Deadline::at(stop.deadline().into());
        let either = async {
            tokio::select! {
                biased;
                () = stop.stopped() => Err(Fault::Stopped),
                done = call(&self.client, deadline) => done,
            }
        };
        with_blocking(Blocking::Now, || self.runtime.block_on(either))
    }
}

impl PageStore for ClusterStore {
    fn probe(&self, names: &[PageName], stop: &Stop) -> Result<u32, Fault> {
        let keys = names.iter().map(key).collect::<Result<Vec<_>, _>>()?;
        let options = ResolveOptions { ahead: Ahead::LeadingRun, ..ResolveOptions::default() };
        self.wait(stop, async |client, deadline| {
            leading(client.exists(&keys, options, deadline).await, |found| *found)
        })
    }

    fn fetch(&self, pages: &[(PageName, PageWriteGuard<'_>)], stop: &Stop) -> Result<u32, Fault> {
        let items = pages.iter().map(|(name, page)| {
            let target = page.bytes();
            Ok((GetInto::scattered(key(name)?, vec![target]), target.len() as u64))
        });
        let items = items.collect::<Result<Vec<_>, Fault>>()?;
        let (items, sizes): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        self.wait(stop, async |client, deadline| {
            let fetched = client.get_into(&items, GetOptions::default(), deadline).await;
            let mut sizes = sizes.iter();
            // A page of another size was not written by this configuration.
            leading(fetched, |fetched| sizes.next().is_some_and(|size| *size == fetched.len))
        })
    }

    fn back_up(&self, pages: &[(PageName, PageReadGuard<'_>)], stop: &Stop) -> Result<u32, Fault> {
        // The name is derived from the content, so an existing page need not be written again.
        let options = PutOptions { replicas: 1, on_exists: OnExists::Keep, ..PutOptions::default() };
        let puts = pages.iter().map(|(name, page)| {
            Ok(Put { key: key(name)?, parts: vec![page.bytes()], options: options.clone() })
        });
        let puts = puts.collect::<Result<Vec<_>, Fault>>()?;
        self.wait(stop, async |client, deadline| leading(client.put(&puts, deadline).await, |_| true))
    }

    fn drop_all(&self, prefix: &str, stop: &Stop) -> Result<(), Fault> {
        self.wait(stop, async |client, deadline| {
            let pattern = Pattern::Prefix(prefix.to_owned().into_bytes());
            let dropped = client.delete_matching(pattern, DeleteOptions { force: true }, deadline).await;
            match dropped.map_err(|error| Fault::Other(error.to_string()))? {
                all if all.unconfirmed.is_empty() => Ok(()),
                some => Err(Fault::Other(format!("{} could not confirm", some.unconfirmed.join(", ")))),
            }
        })
    }
}

fn key(name: &PageName) -> Result<Key, Fault> {
    Key::new(name.as_str().as_bytes()).map_err(|error| Fault::Other(error.to_string()))
}

/// Number of leading successes. If the first result is an error, it is returned; a missing page is not an
/// error.
fn leading<T>(results: Vec<Result<T, Error>>, mut is_good: impl FnMut(&T) -> bool) -> Result<u32, Fault> {
    let mut count = 0;
    for result in results {
        match result {
            Ok(it) if is_good(&it) => count += 1,
            Err(error) if count == 0 && !matches!(error, Error::NotFound { .. }) => {
                return Err(Fault::Other(error.to_string()));
            }
            _ => break,
        }
    }
    Ok(count)
}
