//! Who is at the other end of a Unix socket, and the kernel's proof of its death.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Since Linux 6.5; not in every version of the system's headers.
const SO_PEERPIDFD: libc::c_int = 77;

/// A descriptor that becomes readable when the process at the other end has died, all its threads included,
/// and its mappings are gone. It stands for that very process: its number may be used again, this may not.
pub(crate) fn process_handle(socket: BorrowedFd<'_>, pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let handle = match handle_of_peer(socket) {
        Ok(handle) => handle,
        // Older kernels do not know the option. A peer that has died since it connected would have closed its
        // end, so asking for the number and then looking at the socket finds a number that was used again.
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
    // SAFETY: the descriptor is owned, so it stays open and the same for as long as the registration lives.
    let registered = unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}

/// Whether the other end was closed. Says no while there is something to read.
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
    // SAFETY: the call succeeded, so the descriptor is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(handle) })
}
