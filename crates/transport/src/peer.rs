//! Identifies the process at the other end of a Unix socket, and detects its death.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Since Linux 6.5; not in every version of the system's headers.
const SO_PEERPIDFD: libc::c_int = 77;

/// A descriptor that becomes readable when the peer process has died, with all its threads, and its mappings
/// are gone. It refers to that process even after its pid is reused.
pub(crate) fn process_handle(socket: BorrowedFd<'_>, pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let handle = match handle_of_peer(socket) {
        Ok(handle) => handle,
        // Kernels before 6.5 do not have the option. A peer that died after it connected has closed its end,
        // so opening the pid and then checking the socket detects a reused pid.
        Err(_) => {
            let handle = handle_of(pid)?;
            if is_closed(socket) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            handle
        }
    };
    register(handle)
}

/// The same for a process of which only the number is known. If that process has ended and the number was
/// used again, this stands for the other process.
pub fn process_of(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    register(handle_of(pid)?)
}

fn handle_of(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn register(handle: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, so it stays open and unchanged for as long as the registration lives.
    let registered = unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}

/// Whether the peer closed its end. False while there are bytes to read.
pub(crate) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    match recv(socket.as_fd(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((received, _)) => received == 0,
        Err(error) => error != rustix::io::Errno::AGAIN && error != rustix::io::Errno::INTR,
    }
}

fn handle_of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut handle: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is one integer, and both pointers are to local variables of that size.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut handle).cast(),
            &raw mut len,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the descriptor is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(handle) })
}
