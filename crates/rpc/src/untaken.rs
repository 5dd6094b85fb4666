//! What a peer of this host has not taken out of a socket yet.
//!
//! **Invariant:** everything here that is `unsafe` is one question to the kernel, which writes one number.

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};

/// The bytes, as the kernel accounts for them, that were written and that nobody has read; zero if all are.
/// Of a TCP socket these are the bytes that were not acknowledged, which says less.
pub(crate) fn untaken(socket: impl AsFd) -> io::Result<usize> {
    #[expect(clippy::cast_possible_truncation, reason = "the numbers of such questions have 32 bits")]
    const OUTGOING_QUEUE: Opcode = libc::TIOCOUTQ as Opcode;
    // SAFETY: this question has the kernel write a `c_int` where it is told to, and nothing else.
    let question = unsafe { Getter::<OUTGOING_QUEUE, c_int>::new() };
    // SAFETY: as above; a descriptor that is no socket answers with an error.
    let bytes = unsafe { ioctl(socket, question) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_was_written_is_untaken_until_it_was_read() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(untaken(&near).unwrap(), 0);
        near.write_all(b"a question").unwrap();
        assert!(untaken(&near).unwrap() > 0);
        assert_eq!(untaken(&far).unwrap(), 0);
        far.read_exact(&mut [0; 10]).unwrap();
        assert_eq!(untaken(&near).unwrap(), 0);
    }

    #[test]
    fn a_file_has_no_such_number() {
        assert!(untaken(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
