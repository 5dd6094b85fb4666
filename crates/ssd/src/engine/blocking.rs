//! The reference engine: a few threads with blocking system calls.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::{Engine, Outcome, Raw};

const THREADS: usize = 8;
/// The value added to an eventfd, little-endian like the supported machines.
const ONE: [u8; 8] = 1u64.to_le_bytes();

/// Threads with a common queue.
pub(crate) struct Blocking {
    work: Option<Sender<(u64, Raw)>>,
    done: Receiver<(u64, Outcome)>,
    threads: Vec<JoinHandle<()>>,
}

impl Blocking {
    pub(crate) fn start(file: Arc<OwnedFd>, wake: Arc<OwnedFd>) -> Self {
        let (work, queue) = channel::<(u64, Raw)>();
        let (report, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (file, wake, queue, report) =
                (Arc::clone(&file), Arc::clone(&wake), Arc::clone(&queue), report.clone());
            threads.push(thread::spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((token, raw)) = next else { return };
                    let outcome = carry_out(&file, raw);
                    if report.send((token, outcome)).is_err() {
                        return;
                    }
                    let _ = rustix::io::write(&wake, &ONE);
                }
            }));
        }
        Self { work: Some(work), done, threads }
    }
}

fn carry_out(file: &OwnedFd, raw: Raw) -> Outcome {
    loop {
        let result = match raw {
            // SAFETY: the submitter keeps the memory alive, and unused, until the result is collected.
            Raw::Read { at, run, .. } => rustix::io::pread(file, unsafe { run.bytes_mut() }, at),
            // SAFETY: as above.
            Raw::Write { at, run, .. } => rustix::io::pwrite(file, unsafe { run.bytes() }, at),
            Raw::Sync => rustix::fs::fdatasync(file).map(|()| 0),
        };
        match result {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map_err(rustix::io::Errno::raw_os_error),
        }
    }
}

impl Engine for Blocking {
    fn submit(&mut self, token: u64, raw: Raw) {
        if let Some(work) = &self.work {
            // The threads live as long as this value.
            let _ = work.send((token, raw));
        }
    }

    fn kick(&mut self) {}

    fn collect(&mut self, into: &mut VecDeque<(u64, Outcome)>) {
        into.extend(self.done.try_iter());
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.work = None;
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
