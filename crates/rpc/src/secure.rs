//! TLS between a socket and its frames.
//!
//! The handshake takes place before the first frame. Afterwards, frames are encrypted when they enter the
//! queue of the outbox, and decrypted as soon as they are read, so the rest of this crate handles the same
//! bytes as without TLS.
//!
//! **Invariant:** a frame is encrypted under the lock of the queue: records leave in the order in which they
//! were made. **Invariant:** whatever was received completely is decrypted by the read that received it: no
//! thread waits for bytes that are here already.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, recv};
use tiffin_tls::{Session, TlsError};
use tokio::time::timeout;

use crate::Stream;
use crate::watch::{Readable, writable};

/// How long a peer that is refused may take to read the reason.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// How many bytes of such a peer are read and dropped.
const LINGER_BYTES_MAX: usize = 64 << 10;

/// The encryption of one stream.
#[derive(Debug)]
pub(crate) struct Secure(Mutex<Session>);

impl Secure {
    /// Carries out the handshake. Returns the bytes that came with its end.
    pub(crate) async fn shake(stream: &Stream, mut session: Session) -> io::Result<(Self, Vec<u8>)> {
        let readable = Readable::new(stream.socket())?;
        let mut out = Vec::new();
        loop {
            let shaken = session.shake(&mut out);
            let sent = send_all(stream, &out).await;
            out.clear();
            match shaken {
                Ok(true) => break,
                Ok(false) => sent?,
                Err(error) => {
                    if error != TlsError::Plaintext {
                        linger(stream, &readable).await;
                    }
                    return Err(error.into());
                }
            }
            match receive(stream, &readable, session.space()).await? {
                0 => return Err(TlsError::Closed.into()),
                received => session.received(received),
            }
        }
        let mut early = Vec::new();
        while session.open(&mut |plain| early.extend_from_slice(plain))? {}
        Ok((Self(Mutex::new(session)), early))
    }

    /// Appends what has arrived, at least `wanted` bytes if so many have; `WouldBlock` if nothing has, zero
    /// at the end. If it is less, nothing is left in the socket.
    pub(crate) fn try_read(&self, stream: &Stream, buffer: &mut Vec<u8>, wanted: usize) -> io::Result<usize> {
        let mut session = self.lock();
        let before = buffer.len();
        loop {
            while session.open(&mut |plain| buffer.extend_from_slice(plain))? {}
            let read = buffer.len() - before;
            if read >= wanted || session.is_ended() {
                return Ok(read);
            }
            match recv(&**stream.socket(), session.space(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(read),
                Ok((_, received)) => session.received(received),
                // The error comes again.
                Err(_) if read > 0 => return Ok(read),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Encrypts a frame.
    pub(crate) fn seal(&self, frame: &[u8]) -> Result<Vec<u8>, TlsError> {
        let mut sealed = Vec::new();
        self.lock().seal(frame, &mut sealed)?;
        Ok(sealed)
    }

    fn lock(&self) -> MutexGuard<'_, Session> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads and drops what a refused peer still sends: a socket that is closed with unread bytes would reset the
/// connection, and the peer might not read why.
pub(crate) async fn linger(stream: &Stream, readable: &Readable) {
    let lingered = async {
        let _gone = rustix::net::shutdown(stream, Shutdown::Write);
        let (mut dropped, mut buffer) = (0, [0; 1 << 10]);
        while dropped < LINGER_BYTES_MAX {
            match receive(stream, readable, &mut buffer).await? {
                0 => break,
                received => dropped += received,
            }
        }
        Ok::<_, io::Error>(())
    };
    let _late = timeout(LINGER_TIME_MAX, lingered).await;
}

async fn receive(stream: &Stream, readable: &Readable, space: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = readable.ready().await?;
        match recv(&**stream.socket(), &mut *space, RecvFlags::DONTWAIT).map_err(io::Error::from) {
            Ok((_, received)) => return Ok(received),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

async fn send_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(&[io::IoSlice::new(bytes)]) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => writable(stream.socket()).await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
