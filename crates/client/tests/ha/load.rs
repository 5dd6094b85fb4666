//! Clients that put, get and delete all the time, and remember what was acknowledged.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tiffin_client::{Client, Deadline, DeleteOptions, Error, GetOptions, Put};
use tiffin_types::Key;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::processes::Cluster;

const WORKERS: usize = 4;
/// A call may wait for a failover.
const CALL_TIME: Duration = Duration::from_secs(15);
/// The pause after each round, so that the processes of the test get the processor.
const PAUSE: Duration = Duration::from_millis(5);
const TIME_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Record {
    acks: Vec<Instant>,
    errors: usize,
    /// Acknowledged, and not deleted.
    stored: BTreeSet<String>,
    /// Deleted, and confirmed.
    deleted: BTreeSet<String>,
    violations: Vec<String>,
    last_error: String,
}

pub(crate) struct Load {
    record: Arc<Mutex<Record>>,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

pub(crate) struct Verdict {
    stored: usize,
    deleted: usize,
    acks: usize,
    errors: usize,
    last_error: String,
    violations: Vec<String>,
    logs: String,
}

impl Load {
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let (record, stop) = (Arc::new(Mutex::new(Record::default())), Arc::new(AtomicBool::new(false)));
        let mut workers = Vec::new();
        for worker in 0..WORKERS {
            let master = if worker % 2 == 0 { cluster.list() } else { cluster.url() };
            let client = Client::connect(cluster.options(master)).await.unwrap();
            workers.push(tokio::spawn(work(client, worker, Arc::clone(&record), Arc::clone(&stop))));
        }
        Self { record, stop, workers }
    }

    pub(crate) fn errors(&self) -> usize {
        self.record.lock().unwrap().errors
    }

    /// Waits until `count` puts were acknowledged after that moment. Returns the longest time without one.
    pub(crate) async fn acks_after(&self, at: Instant, count: usize) -> Duration {
        let deadline = Instant::now() + TIME_MAX;
        loop {
            {
                let record = self.record.lock().unwrap();
                let later: Vec<_> = record.acks.iter().copied().filter(|it| *it >= at).collect();
                if later.len() >= count {
                    let gaps = later.iter().scan(at, |last, it| Some(*it - std::mem::replace(last, *it)));
                    return gaps.max().unwrap_or_default();
                }
                assert!(Instant::now() < deadline, "puts have stopped: {}", record.last_error);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the load, and reads everything back.
    pub(crate) async fn stop_and_verify(self, cluster: &Cluster) -> Verdict {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
        let mut record = std::mem::take(&mut *self.record.lock().unwrap());
        let client = Client::connect(cluster.options(cluster.list())).await.unwrap();
        for name in &record.stored {
            match get(&client, name).await {
                Ok(bytes) if bytes == value(name) => {}
                Ok(_) => record.violations.push(format!("`{name}` has other bytes")),
                Err(error) => record.violations.push(format!("`{name}` was acknowledged, and: {error}")),
            }
        }
        for name in &record.deleted {
            match get(&client, name).await {
                Err(Error::NotFound { .. }) => {}
                Ok(_) => record.violations.push(format!("`{name}` was deleted, and came back")),
                Err(error) => record.violations.push(format!("`{name}` was deleted, and: {error}")),
            }
        }
        Verdict {
            stored: record.stored.len(),
            deleted: record.deleted.len(),
            acks: record.acks.len(),
            errors: record.errors,
            last_error: record.last_error,
            logs: if record.violations.is_empty() { String::new() } else { cluster.logs() },
            violations: record.violations,
        }
    }
}

impl Verdict {
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} puts acknowledged; read back: {} stored, {} deleted; {} failed calls; {} violations{}",
            self.acks,
            self.stored,
            self.deleted,
            self.errors,
            self.violations.len(),
            if self.errors > 0 { format!("; the last failure: {}", self.last_error) } else { String::new() },
        )
    }

    pub(crate) fn check(&self) {
        assert!(self.violations.is_empty(), "{:#?}\n{}", self.violations, self.logs);
        assert!(self.stored > 0 && self.deleted > 0, "nothing was tested");
    }
}

/// Puts one key after the other; deletes every second one again, later.
async fn work(client: Client, worker: usize, record: Arc<Mutex<Record>>, stop: Arc<AtomicBool>) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("w{worker}-{number}");
        let bytes = value(&name);
        let put = client.put(&[Put::new(key(&name), &bytes)], soon()).await.remove(0);
        {
            let mut record = record.lock().unwrap();
            match put {
                Ok(_) => {
                    record.acks.push(Instant::now());
                    record.stored.insert(name);
                }
                // It may be stored or not.
                Err(error) => record.failed(&error),
            }
        }
        let old = format!("w{worker}-{}", number / 2);
        let is_stored = record.lock().unwrap().stored.contains(&old);
        if is_stored {
            check_stored(&client, &old, &record).await;
        }
        if is_stored && number % 4 == 0 {
            delete(&client, &old, &record).await;
        }
        sleep(PAUSE).await;
    }
}

async fn check_stored(client: &Client, name: &str, record: &Mutex<Record>) {
    let found = get(client, name).await;
    let mut record = record.lock().unwrap();
    match found {
        Ok(bytes) if bytes == value(name) => {}
        Ok(_) => record.violations.push(format!("`{name}` has other bytes")),
        Err(Error::NotFound { .. }) => record.violations.push(format!("`{name}` is lost")),
        Err(error) => record.failed(&error),
    }
}

async fn delete(client: &Client, name: &str, record: &Mutex<Record>) {
    // From now on it may be there or not, until the delete is confirmed.
    record.lock().unwrap().stored.remove(name);
    let deleted = client.delete(&[key(name)], DeleteOptions::default(), soon()).await.remove(0);
    match deleted {
        Ok(true) => {}
        Ok(false) => {
            let mut record = record.lock().unwrap();
            return record.violations.push(format!("the delete of `{name}` says that it is absent"));
        }
        Err(error) => return record.lock().unwrap().failed(&error),
    }
    let found = get(client, name).await;
    let mut record = record.lock().unwrap();
    record.deleted.insert(name.to_owned());
    match found {
        Err(Error::NotFound { .. }) => {}
        Ok(_) => record.violations.push(format!("`{name}` was read after its delete was confirmed")),
        Err(error) => record.failed(&error),
    }
}

impl Record {
    fn failed(&mut self, error: &Error) {
        self.errors += 1;
        self.last_error = error.to_string();
    }
}

async fn get(client: &Client, name: &str) -> Result<Vec<u8>, Error> {
    let object = client.get(&[key(name)], GetOptions::default(), soon()).await.remove(0)?;
    Ok(object.bytes)
}

fn soon() -> Deadline {
    Deadline::after(CALL_TIME)
}

fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

/// The bytes of an object, which depend on its name.
fn value(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(100 + name.len() * 37).collect()
}
