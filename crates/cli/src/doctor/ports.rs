//! Whether the usual ports are free.

use std::io;
use std::net::TcpListener;

use tiffin_server::config::{HTTP_DEFAULT, LISTEN_DEFAULT};

use super::Check;

/// Tries to listen where a master does if nothing else is said.
pub(super) fn check() -> [Check; 2] {
    [
        port("port of the master", LISTEN_DEFAULT, "--listen"),
        port("port of the pages", HTTP_DEFAULT, "--http"),
    ]
}

fn port(name: &'static str, address: &str, flag: &str) -> Check {
    explain(name, address, flag, TcpListener::bind(address).map(drop))
}

fn explain(name: &'static str, address: &str, flag: &str, listened: io::Result<()>) -> Check {
    match listened {
        Ok(()) => Check::ok(name, format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Check::limited(
            name,
            format!("{address} is in use"),
            format!(
                "if it is no store of yours (see `tiffin stat`), choose another with `{flag}`; port 0 is any"
            ),
        ),
        Err(error) => Check::limited(
            name,
            format!("nothing can listen on {address}: {error}"),
            format!("choose an address of this machine with `{flag}`"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_port_in_use_is_told_by_its_address() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let check = port("port", &address, "--listen");
        assert_eq!(check.verdict, Verdict::Limited);
        assert!(check.found.contains(&address) && check.hint.unwrap().contains("`--listen`"));
        drop(taken);
        assert_eq!(explain("port", "x", "--http", Ok(())).verdict, Verdict::Ok);
        assert_eq!(port("port", "192.0.2.1:1", "--http").verdict, Verdict::Limited);
    }
}
