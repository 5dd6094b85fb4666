//! The io_uring engine: one ring for one registered file, with registered buffers where the limits permit.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::{Engine, Outcome, RAWS_MAX, Raw};
use crate::memory::Buffer;

/// A ring, which keeps its file open.
pub(crate) struct Uring {
    ring: IoUring,
    waiting: Vec<squeue::Entry>,
    registered: bool,
    _file: Arc<OwnedFd>,
}

impl Uring {
    pub(crate) fn start(
        file: Arc<OwnedFd>,
        wake: &OwnedFd,
        buffers: &[Buffer],
    ) -> Result<(Self, Result<(), String>), String> {
        let ring = IoUring::builder().build(RAWS_MAX as u32).map_err(|error| error.to_string())?;
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd()]).map_err(|error| format!("file: {error}"))?;
        submitter.register_eventfd(wake.as_raw_fd()).map_err(|error| format!("eventfd: {error}"))?;
        let vectors: Vec<libc::iovec> = buffers
            .iter()
            .map(|buffer| libc::iovec { iov_base: buffer.run().as_ptr().cast(), iov_len: buffer.run().len() })
            .collect();
        // SAFETY: the buffers outlive the ring: the driver drops its engine first.
        let registered = unsafe { submitter.register_buffers(&vectors) };
        let ok = registered.is_ok();
        let registered = registered.map_err(|error| error.to_string());
        Ok((Self { ring, waiting: Vec::new(), registered: ok, _file: file }, registered))
    }
}

impl Engine for Uring {
    fn submit(&mut self, token: u64, raw: Raw) {
        let file = types::Fixed(0);
        let entry = match raw {
            Raw::Read { at, run, buffer: Some(buffer) } if self.registered => {
                opcode::ReadFixed::new(file, run.as_ptr(), run.len() as u32, buffer).offset(at).build()
            }
            Raw::Read { at, run, .. } => {
                opcode::Read::new(file, run.as_ptr(), run.len() as u32).offset(at).build()
            }
            Raw::Write { at, run, buffer: Some(buffer) } if self.registered => {
                opcode::WriteFixed::new(file, run.as_ptr().cast_const(), run.len() as u32, buffer)
                    .offset(at)
                    .build()
            }
            Raw::Write { at, run, .. } => {
                opcode::Write::new(file, run.as_ptr().cast_const(), run.len() as u32).offset(at).build()
            }
            Raw::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        };
        self.waiting.push(entry.user_data(token));
    }

    fn kick(&mut self) {
        let mut taken = 0;
        let is_anything = {
            let mut queue = self.ring.submission();
            for entry in &self.waiting {
                // SAFETY: the submitter keeps the memory alive, and unused, until the result is collected.
                if unsafe { queue.push(entry) }.is_err() {
                    break;
                }
                taken += 1;
            }
            !queue.is_empty()
        };
        self.waiting.drain(..taken);
        if !is_anything {
            return;
        }
        // Entries that the kernel did not accept (interrupted, or busy) are submitted with the next call.
        drop(self.ring.submit());
    }

    fn collect(&mut self, into: &mut VecDeque<(u64, Outcome)>) {
        for entry in self.ring.completion() {
            let result = entry.result();
            into.push_back((entry.user_data(), usize::try_from(result).map_err(|_| -result)));
        }
    }
}
