//! Why two parties cannot talk over TLS, for people.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Why there is no TLS connection. The peer is named by the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The peer's bytes are not TLS.
    #[error("it does not speak TLS")]
    Plaintext,
    /// The peer accepts only TLS.
    #[error("it accepts only TLS")]
    Wanted,
    /// The peer closed the connection before the end of the handshake.
    #[error("it closed the connection during the TLS handshake")]
    Closed,
    /// No trusted CA has signed the peer's certificate.
    #[error("its certificate is not signed by a CA that this process trusts")]
    UnknownCa,
    /// The certificate is for other names.
    #[error("its certificate is not for `{expected}`, but for {presented}")]
    WrongName {
        /// The name that was connected to.
        expected: String,
        /// The names in the certificate.
        presented: String,
    },
    /// The peer's certificate has expired.
    #[error("its certificate has expired")]
    Expired,
    /// The peer's certificate is not valid yet.
    #[error("its certificate is not valid yet")]
    NotYetValid,
    /// The peer's certificate is for another purpose.
    #[error("its certificate is for another purpose: {0}")]
    Purpose(String),
    /// The server accepts only clients that show a certificate.
    #[error("it accepts only clients that show a certificate")]
    CertificateWanted,
    /// The client has shown none.
    #[error("it has shown no certificate")]
    NoCertificate,
    /// The peer does not accept this process's certificate.
    #[error("it does not accept the certificate of this process: {0}")]
    Refused(String),
    /// The peer speaks an older version only.
    #[error("it does not speak TLS 1.3")]
    Version,
    /// A host that cannot be in a certificate.
    #[error("`{0}` is not a host name")]
    Host(String),
    /// The handshake is longer than the limit.
    #[error("its handshake exceeds {0} bytes")]
    TooLong(usize),
    /// Anything else.
    #[error("TLS failed: {0}")]
    Other(String),
}

impl TlsError {
    /// The error behind an error of I/O, if it is one of TLS.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Plaintext => {
                "check the port; if that server has no certificate, connect without `tls_ca` (TIFFIN_TLS_CA)"
            }
            Self::Wanted => {
                "name the file with the CA of its certificate: `--tls-ca` (TIFFIN_TLS_CA), or `tls_ca` in \
                 Python"
            }
            Self::Closed => {
                "check that the server speaks TLS (`--tls-cert`), and whether its log says why it closed the \
                 connection"
            }
            Self::UnknownCa => {
                "name the file with the CA of that server's certificate: `--tls-ca` (TIFFIN_TLS_CA), or \
                 `tls_ca` in Python"
            }
            Self::WrongName { .. } => {
                "connect to a host that the certificate names, or add the host with `tiffin certs renew \
                 --host`"
            }
            Self::Expired => "renew it with `tiffin certs renew`; if it is valid, check this machine's clock",
            Self::NotYetValid => "check the clocks of both machines, and when the certificate begins",
            Self::Purpose(_) => {
                "give servers and nodes `server.pem` of `tiffin certs create`, and clients `client.pem`"
            }
            Self::CertificateWanted | Self::NoCertificate => {
                "name the client's certificate and key: `--tls-cert` and `--tls-key` (TIFFIN_TLS_CERT, \
                 TIFFIN_TLS_KEY), or `tls_cert` and `tls_key` in Python"
            }
            Self::Refused(_) => {
                "check with `tiffin certs list` when it begins and ends, and that the server trusts its CA \
                 (`--tls-client-ca` of the server)"
            }
            Self::Version => "check the port, and use a peer that speaks TLS 1.3",
            Self::Host(_) => "connect to a host name or an IP address",
            Self::TooLong(_) => "use a shorter chain of certificates",
            Self::Other(_) => "the log of the server may say more",
        }
    }

    /// Whether another attempt cannot succeed before settings or certificates have changed.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Closed)
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        let kind = match error {
            TlsError::Closed => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => Self::from(error),
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::AlertReceived(alert) => of_alert(alert),
            Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired) => Self::Version,
            Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled) => Self::Version,
            Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => Self::Version,
            Error::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig) => Self::Version,
            Error::InvalidMessage(_) => Self::Plaintext,
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<CertificateError> for TlsError {
    fn from(error: CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownCa,
            CertificateError::NotValidForNameContext { expected, presented } => {
                let presented = match presented.is_empty() {
                    true => "no name".to_owned(),
                    false => presented.iter().map(|it| plain_name(it)).collect::<Vec<_>>().join(", "),
                };
                Self::WrongName { expected: expected.to_str().into_owned(), presented }
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::Purpose(error.to_string())
            }
            other => Self::Other(Error::InvalidCertificate(other).to_string()),
        }
    }
}

/// A name such as `DnsName("a")` or `IpAddress(127.0.0.1)`, as people write it.
fn plain_name(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    format!("`{}`", inner.trim_matches('"'))
}

fn of_alert(alert: AlertDescription) -> TlsError {
    match alert {
        AlertDescription::CertificateRequired => TlsError::CertificateWanted,
        // One alert is for both.
        AlertDescription::CertificateExpired => {
            TlsError::Refused("it has expired, or is not valid yet".to_owned())
        }
        // The second comes from a peer whose own CA has the same name as the one that signed.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            TlsError::Refused("its CA is unknown there".to_owned())
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown => TlsError::Refused(format!("{alert:?}")),
        AlertDescription::ProtocolVersion => TlsError::Version,
        other => TlsError::Other(format!("the peer ended the connection: {other:?}")),
    }
}
