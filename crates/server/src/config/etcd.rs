//! How a process reaches etcd: its CA, and who the process is there.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use tiffin_etcd::EtcdAccess;
use tiffin_rpc::Masters;

use super::{ConfigError, LISTEN_DEFAULT, fixed};

/// The files for connections to etcd. They are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(default)]
pub struct EtcdArgs {
    /// The CAs of etcd's certificates, in PEM format. With it, etcd is reached with TLS 1.3 only. It is not
    /// `tls_ca`, because etcd usually has a CA of its own. Default: none.
    #[arg(long, env = "TIFFIN_ETCD_CA", value_name = "FILE", global = true, hide_short_help = true)]
    pub etcd_ca: Option<PathBuf>,

    /// The certificate that etcd is shown, in PEM format; for an etcd with `--client-cert-auth`. Default:
    /// none.
    #[arg(long, env = "TIFFIN_ETCD_CERT", value_name = "FILE", global = true, hide_short_help = true)]
    pub etcd_cert: Option<PathBuf>,

    /// The private key of `etcd_cert`, in PEM format. Default: none.
    #[arg(long, env = "TIFFIN_ETCD_KEY", value_name = "FILE", global = true, hide_short_help = true)]
    pub etcd_key: Option<PathBuf>,

    /// A file that contains user and password, as `NAME:PASSWORD`; for an etcd with `auth enable`. Default:
    /// none.
    #[arg(
        long,
        env = "TIFFIN_ETCD_CREDENTIALS_FILE",
        value_name = "FILE",
        global = true,
        hide_short_help = true
    )]
    pub etcd_credentials_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// Flags and environment first, then the file. A key belongs to its certificate, so they are from one
    /// source.
    pub(super) fn over(mut self, said: Self) -> Self {
        if self.etcd_cert.is_none() && self.etcd_key.is_none() {
            (self.etcd_cert, self.etcd_key) = (said.etcd_cert, said.etcd_key);
        }
        self.etcd_ca = self.etcd_ca.or(said.etcd_ca);
        self.etcd_credentials_file = self.etcd_credentials_file.or(said.etcd_credentials_file);
        self
    }

    /// The same for a client of etcd.
    #[must_use]
    pub fn access(&self) -> EtcdAccess {
        let Self { etcd_ca: ca, etcd_cert: cert, etcd_key: key, etcd_credentials_file: credentials } =
            self.clone();
        EtcdAccess { ca, cert, key, credentials }
    }

    /// The masters, or the default one. If they are to be found in etcd, it is reached with these files.
    pub(super) fn masters(&self, masters: Option<Masters>) -> Result<Masters, ConfigError> {
        let masters = masters.unwrap_or_else(|| fixed(LISTEN_DEFAULT).into());
        let shown = format!("`{masters}`");
        masters.with_etcd(&self.access()).map_err(|error| {
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default().to_owned();
            let hint =
                "check `--etcd-ca`, `--etcd-cert`, `--etcd-key` and `--etcd-credentials-file`".to_owned();
            ConfigError::Value { name: "master", value: shown, why, hint }
        })
    }
}
