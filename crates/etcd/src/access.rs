//! How a process shows etcd who it is, and recognizes etcd.
//!
//! **Invariant:** the password is read from its file when it is needed, and neither kept nor shown.
//! Certificates, keys and the password may be replaced at any time: the next connection or the next
//! authentication uses the new ones.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiffin_tls::{TlsClient, TlsError, TlsFileError, TlsFiles};

use crate::EtcdError;

/// The maximum length of a file with credentials.
const CREDENTIALS_BYTES_MAX: u64 = 4 << 10;

/// The files for connections to etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdAccess {
    /// The CAs of etcd's certificates, in PEM format. With them, every connection uses TLS.
    pub ca: Option<PathBuf>,
    /// The certificate that etcd is shown.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// A file with the user and the password, as `NAME:PASSWORD`.
    pub credentials: Option<PathBuf>,
}

impl EtcdAccess {
    /// TLS for these files, if there is a CA.
    pub(crate) fn tls(&self) -> Result<Option<TlsClient>, EtcdError> {
        let Self { ca, cert, key, .. } = self.clone();
        TlsClient::open(&TlsFiles { ca, cert, key, client_ca: None }).map_err(EtcdError::Files)
    }

    /// Refuses files that are not complete.
    pub(crate) fn check(&self) -> Result<(), EtcdError> {
        let Self { ca, cert, key, .. } = self;
        if ca.is_none() && (cert.is_some() || key.is_some()) {
            return Err(EtcdError::Files(TlsFileError::Incomplete {
                what: "etcd_cert or etcd_key is set and etcd_ca is not",
                hint: "name the file with the CA of etcd's certificates with `--etcd-ca` (TIFFIN_ETCD_CA)",
            }));
        }
        match (cert, key) {
            (Some(_), None) | (None, Some(_)) => Err(EtcdError::Files(TlsFileError::Incomplete {
                what: "one of etcd_cert and etcd_key is set and the other is not",
                hint: "name the certificate and its key with `--etcd-cert` and `--etcd-key`",
            })),
            _ => Ok(()),
        }
    }

    /// The user and the password, if there are any.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, EtcdError> {
        self.credentials.as_deref().map(Credentials::read).transpose()
    }
}

/// A user and its password, as etcd is asked for a token.
#[derive(Serialize)]
pub(crate) struct Credentials {
    name: String,
    password: String,
}

/// The answer to it.
#[derive(Deserialize)]
pub(crate) struct Authenticated {
    #[serde(default)]
    pub(crate) token: String,
}

impl Credentials {
    fn read(path: &Path) -> Result<Self, EtcdError> {
        let fail = |why: String| EtcdError::Credentials { what: format!("`{}`: {why}", path.display()) };
        let file = File::open(path).map_err(|error| fail(format!("it cannot be read: {error}")))?;
        let mut text = String::new();
        let read = file.take(CREDENTIALS_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|_| fail("it is not text".to_owned()))?;
        match text.trim_end_matches(['\r', '\n']).split_once(':') {
            Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                Ok(Self { name: name.to_owned(), password: password.to_owned() })
            }
            _ => Err(fail("it is not `NAME:PASSWORD`".to_owned())),
        }
    }
}

/// What to do about a connection that TLS has refused.
pub(crate) fn hint(error: &TlsError) -> &'static str {
    match error {
        TlsError::Plaintext => {
            "check the address; if etcd listens without TLS there, leave `--etcd-ca` (TIFFIN_ETCD_CA) out"
        }
        TlsError::Wanted | TlsError::UnknownCa => {
            "name the file with the CA of etcd's certificates with `--etcd-ca` (TIFFIN_ETCD_CA)"
        }
        TlsError::WrongName { .. } => "name etcd by a host that its certificate is for",
        TlsError::Expired | TlsError::NotYetValid => {
            "renew etcd's certificate, or check this machine's clock"
        }
        TlsError::CertificateWanted | TlsError::NoCertificate | TlsError::Refused(_) => {
            "name a certificate that etcd accepts, and its key, with `--etcd-cert` and `--etcd-key` \
             (TIFFIN_ETCD_CERT, TIFFIN_ETCD_KEY)"
        }
        TlsError::Version => "use an etcd that speaks TLS 1.3: 3.4 built with Go 1.12, or later",
        TlsError::Closed
        | TlsError::Purpose(_)
        | TlsError::Host(_)
        | TlsError::TooLong(_)
        | TlsError::Other(_) => {
            "look at the log of etcd, and check its `--cert-file` and `--client-cert-auth`"
        }
    }
}
