//! The name and identity of this host and process, as a `Hello` carries them; and random numbers.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};

/// Which machine this is. Two processes with the same answer can hope to share memory.
///
/// The name alone would not do: clones of one image have the same one. The boot id alone would not tell
/// people anything.
#[must_use]
pub fn identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot: String = boot.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    format!("{}/{boot}", name())
}

/// The machine's name for people.
#[must_use]
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// This process, for people: host and process number.
#[must_use]
pub fn label() -> String {
    format!("{}:{}", name(), std::process::id())
}

/// An unguessable number other than zero. Drawn from the kernel each time, so that a forked
/// child does not draw what its parent draws.
pub fn draw() -> io::Result<u64> {
    loop {
        let mut bytes = [0; 8];
        if getrandom(&mut bytes, GetRandomFlags::empty())? == bytes.len() {
            let number = u64::from_le_bytes(bytes);
            if number != 0 {
                return Ok(number);
            }
        }
    }
}

/// Lets this process open as many files as the system allows it to: each connection is one. For daemons; a
/// library leaves the limits of its process alone.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit on open files stays as it is");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_knows_itself_and_numbers_differ() {
        assert_eq!(identity(), identity());
        assert!(identity().starts_with(&name()));
        assert_ne!(draw().unwrap(), draw().unwrap());
    }
}
