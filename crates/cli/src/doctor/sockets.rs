//! Communication between processes of one host: abstract sockets, descriptors, process handles.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::Check;

/// Passes a descriptor through an abstract Unix socket, as a node does with its memory.
pub(super) fn descriptors() -> Check {
    const NAME: &str = "descriptors";
    match pass_a_descriptor() {
        Ok(()) => {
            Check::ok(NAME, "pass through abstract Unix sockets, so processes of this host share memory")
        }
        Err(error) => Check::limited(
            NAME,
            format!("cannot pass through an abstract Unix socket: {error}"),
            "clients will use TCP, also on this host; a sandbox or a seccomp profile may forbid Unix sockets",
        ),
    }
}

/// Opens a handle of this process, as a node does with its clients to detect their death.
pub(super) fn process_handles() -> Check {
    const NAME: &str = "process handles";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Check::ok(NAME, "a node detects the death of a client on this host at once"),
        Err(error) => Check::limited(
            NAME,
            format!("pidfd_open fails: {error}"),
            "clients will use TCP, also on this host; use Linux 5.3, and allow pidfd_open in seccomp",
        ),
    }
}

fn pass_a_descriptor() -> io::Result<()> {
    let name = format!("tiffin-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address)?;
    let sender = UnixStream::connect_addr(&address)?;
    let (receiver, _) = listener.accept()?;
    send(&sender, &OwnedFd::from(sender.try_clone()?))?;
    receive(&receiver)
}

fn send(stream: &UnixStream, file: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive(stream: &UnixStream) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let arrived = ancillary.drain().any(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next().is_some(),
        _ => false,
    });
    if arrived { Ok(()) } else { Err(io::Error::other("the descriptor did not arrive")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_passes_or_the_check_has_the_reason() {
        let check = descriptors();
        assert_eq!(check.hint.is_none(), pass_a_descriptor().is_ok(), "{check:?}");
    }

    #[test]
    fn message_without_a_descriptor_is_an_error() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &sender, b"x").unwrap();
        assert!(receive(&receiver).is_err());
    }
}
