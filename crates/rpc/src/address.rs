//! Where a party can be reached, as text: `host:port`, or `unix:@name` for an abstract Unix socket.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The longest name of an abstract Unix socket.
const UNIX_NAME_BYTES_MAX: usize = 107;

/// Where a party listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A host by name or number, and a port.
    Tcp {
        /// Without brackets, even if it is an IPv6 address.
        host: String,
        /// Zero only to listen on any free one.
        port: u16,
    },
    /// A Unix socket with an abstract name: no file, and gone with its process.
    Unix {
        /// Without the `@`.
        name: String,
    },
}

/// Text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address\n\nhint: write `host:port`, `[ipv6]:port` or `unix:@name`")]
pub struct AddressError {
    text: String,
}

impl Address {
    /// Only processes of this machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix { .. } => true,
            Self::Tcp { host, .. } => match host.parse::<IpAddr>() {
                Ok(ip) => ip.is_loopback(),
                Err(_) => host.eq_ignore_ascii_case("localhost"),
            },
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            let name = path.strip_prefix('@').ok_or_else(error)?;
            let fits = !name.is_empty() && name.len() <= UNIX_NAME_BYTES_MAX && !name.contains('\0');
            return if fits { Ok(Self::Unix { name: name.to_owned() }) } else { Err(error()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').filter(|host| host.contains(':')).ok_or_else(error)?,
            None => host,
        };
        let is_plain = !bare.is_empty() && !bare.contains(|c: char| c.is_whitespace() || "/[]@".contains(c));
        // An IPv6 address without brackets cannot be told from its port.
        let is_ambiguous = bare.len() == host.len() && host.contains(':');
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if !is_plain || is_ambiguous || !is_number {
            return Err(error());
        }
        Ok(Self::Tcp { host: bare.to_owned(), port: port.parse().map_err(|_| error())? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(out, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(out, "{host}:{port}"),
            Self::Unix { name } => write!(out, "unix:@{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        for (text, local) in [
            ("localhost:7400", true),
            ("127.0.0.1:0", true),
            ("127.8.9.1:65535", true),
            ("[::1]:7400", true),
            ("unix:@tiffin-0123", true),
            ("unix:@with:colons/and/slashes", true),
            ("0.0.0.0:7400", false),
            ("[::]:7400", false),
            ("example.org:80", false),
        ] {
            let address: Address = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_local(), local, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_hint() {
        let long = format!("unix:@{}", "x".repeat(UNIX_NAME_BYTES_MAX + 1));
        for text in [
            "",
            "host",
            "host:",
            ":7400",
            "host:65536",
            "host:+1",
            "host:x",
            "::1:7400",
            "[host]:1",
            "[]:1",
            "[::1:7400",
            "::1]:1",
            "unix:",
            "unix:@",
            "unix:/run/x",
            "unix:@a\0b",
            "a b:1",
            "http://h:1",
            &long,
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("hint: write `host:port`"), "{error}");
        }
    }
}
