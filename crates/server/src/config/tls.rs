//! Certificates and keys, of servers and clients.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use tiffin_tls::{TlsFileError, TlsFiles};

use super::ConfigError;

/// The files for TLS. They are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(default)]
pub struct TlsArgs {
    /// The certificate that this process shows, in PEM format. A server with one accepts only TLS 1.3 on its
    /// TCP sockets and pages; a client shows it to servers that ask. `tiffin certs create` makes such files,
    /// and they are read again when they change. Default: none.
    #[arg(long, env = "TIFFIN_TLS_CERT", value_name = "FILE", global = true, hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,

    /// The private key of `tls_cert`, in PEM format. Default: none.
    #[arg(long, env = "TIFFIN_TLS_KEY", value_name = "FILE", global = true, hide_short_help = true)]
    pub tls_key: Option<PathBuf>,

    /// The CAs of servers, in PEM format. A client or node with one connects by TCP with TLS only, and to
    /// servers only whose certificate is signed by one of the CAs and names the host. Default: none.
    #[arg(long, env = "TIFFIN_TLS_CA", value_name = "FILE", global = true, hide_short_help = true)]
    pub tls_ca: Option<PathBuf>,

    /// The CAs of clients and nodes, in PEM format. A server with one accepts only clients that show a
    /// certificate; `/health` needs none. Default: none.
    #[arg(long, env = "TIFFIN_TLS_CLIENT_CA", value_name = "FILE", global = true, hide_short_help = true)]
    pub tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// Flags and environment first, then the file. A key belongs to its certificate, so they are from one
    /// source.
    pub(super) fn over(mut self, said: Self) -> Self {
        if self.tls_cert.is_none() && self.tls_key.is_none() {
            (self.tls_cert, self.tls_key) = (said.tls_cert, said.tls_key);
        }
        self.tls_ca = self.tls_ca.or(said.tls_ca);
        self.tls_client_ca = self.tls_client_ca.or(said.tls_client_ca);
        self
    }

    /// The checked files.
    pub fn files(&self) -> Result<TlsFiles, ConfigError> {
        let Self { tls_cert: cert, tls_key: key, tls_ca: ca, tls_client_ca: client_ca } = self.clone();
        let files = TlsFiles { cert, key, ca, client_ca };
        files.check()?;
        Ok(files)
    }
}

/// Refuses settings with which the connections of a node would be of both kinds.
pub(super) fn check_node(files: &TlsFiles, has_sockets: bool) -> Result<(), ConfigError> {
    files.check()?;
    let problem = match (files.has_server(), files.has_client()) {
        (true, false) => Some((
            "tls_cert is set and tls_ca is not: the node would connect to its master without TLS",
            "name the file with the CA of the master's certificate with `--tls-ca` (TIFFIN_TLS_CA)",
        )),
        (false, true) if has_sockets => Some((
            "tls_ca is set and tls_cert is not: the node's own sockets would be without TLS",
            "give the node a certificate for servers: `--tls-cert` and `--tls-key` (TIFFIN_TLS_CERT, \
             TIFFIN_TLS_KEY)",
        )),
        _ => None,
    };
    match problem {
        None => Ok(()),
        Some((what, hint)) => Err(TlsFileError::Incomplete { what, hint }.into()),
    }
}
