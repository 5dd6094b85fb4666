//! The publishing side of ZMTP 3.0, the protocol of ZeroMQ, without authentication.
//!
//! A slow subscriber loses messages, as with ZeroMQ. A subscriber that reads nothing for too long is
//! disconnected. **Invariant:** the server buffers at most [`FRAME_BYTES_MAX`] of input per subscriber.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::timeout;

/// The time limit of the handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// The time limit for sending one message.
const SEND_TIME: Duration = Duration::from_secs(30);
/// The maximum length of a subscriber's frame, in bytes.
pub(super) const FRAME_BYTES_MAX: u64 = 4 << 10;
/// The maximum number of subscriptions of one subscriber to all messages.
const SUBSCRIPTIONS_MAX: u32 = 1 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Encodes the frames of a message as one buffer.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() { MORE } else { 0 };
        write_frame(more, frame, &mut out);
    }
    out
}

/// Serves one subscriber until it disconnects.
pub(super) async fn serve(stream: TcpStream, mut messages: Receiver<Arc<[u8]>>) -> io::Result<()> {
    let _kept = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    timeout(HANDSHAKE_TIME, shake_hands(&mut reader, &mut writer)).await??;
    let subscriptions = AtomicU32::new(0);
    let listen = async {
        loop {
            let (flags, body) = read_frame(&mut reader).await?;
            follow(flags, &body, &subscriptions);
        }
    };
    let send = async {
        loop {
            match messages.recv().await {
                Ok(message) if subscriptions.load(Ordering::Relaxed) > 0 => {
                    timeout(SEND_TIME, writer.write_all(&message)).await??;
                }
                // A slow subscriber misses messages for good.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    };
    tokio::select! {
        ended = listen => ended,
        ended = send => ended,
    }
}

async fn shake_hands(reader: &mut OwnedReadHalf, writer: &mut OwnedWriteHalf) -> io::Result<()> {
    let mut handshake = [0; 64];
    handshake[0] = 0xff;
    handshake[8] = 1;
    handshake[9] = 0x7f;
    handshake[10] = 3;
    handshake[12..16].copy_from_slice(b"NULL");
    writer.write_all(&handshake).await?;
    let mut theirs = [0; 64];
    reader.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 || &theirs[12..17] != b"NULL\0" {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer does not speak ZMTP 3 without authentication",
        ));
    }
    let mut ready = Vec::from(*b"\x05READY");
    for (name, value) in [("Socket-Type", "PUB"), ("Identity", "")] {
        ready.push(name.len() as u8);
        ready.extend_from_slice(name.as_bytes());
        ready.extend_from_slice(&(value.len() as u32).to_be_bytes());
        ready.extend_from_slice(value.as_bytes());
    }
    let mut frame = Vec::new();
    write_frame(COMMAND, &ready, &mut frame);
    writer.write_all(&frame).await?;
    let (flags, body) = read_frame(reader).await?;
    if flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer did not send READY"));
    }
    Ok(())
}

/// Counts subscriptions. The topic of all messages is empty, so that only the empty prefix matches.
fn follow(flags: u8, body: &[u8], subscriptions: &AtomicU32) {
    let change = match (flags & COMMAND != 0, body) {
        (false, [1]) | (true, b"\x09SUBSCRIBE") => 1,
        (false, [0]) | (true, b"\x06CANCEL") => -1,
        _ => return,
    };
    let now = subscriptions.load(Ordering::Relaxed);
    subscriptions.store(now.saturating_add_signed(change).min(SUBSCRIPTIONS_MAX), Ordering::Relaxed);
}

async fn read_frame(reader: &mut OwnedReadHalf) -> io::Result<(u8, Vec<u8>)> {
    let flags = reader.read_u8().await?;
    let is_long = flags & LONG != 0;
    let len = if is_long { reader.read_u64().await? } else { u64::from(reader.read_u8().await?) };
    if len > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is too long"));
    }
    let mut body = vec![0; len as usize];
    reader.read_exact(&mut body).await?;
    Ok((flags, body))
}

fn write_frame(flags: u8, body: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(len) => out.extend_from_slice(&[flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}
