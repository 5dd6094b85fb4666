//! The side that accepts connections.

use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ServerConfig, server::UnbufferedServerConnection};

use crate::files::{self, Identity, Reloaded, content};
use crate::session::Side;
use crate::{CertificateInfo, Session, TlsError, TlsFileError, TlsFiles};

/// What a server shows, and which clients it accepts. Clones share it.
#[derive(Clone, Debug)]
pub struct TlsServer {
    certificates: ClientCertificates,
    current: Arc<Reloaded<Current>>,
}

/// Whether clients must show a certificate, where the settings name a CA for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Without one, there is no connection.
    Required,
    /// Without one, [`Session::has_peer_certificate`] is false. For HTTP, where probes have none.
    Asked,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    info: Option<CertificateInfo>,
}

impl TlsServer {
    /// Reads the files; `None` if they name no certificate.
    pub fn open(files: &TlsFiles, certificates: ClientCertificates) -> Result<Option<Self>, TlsFileError> {
        files.check()?;
        if !files.has_server() {
            return Ok(None);
        }
        let files = TlsFiles { ca: None, ..files.clone() };
        let current = Arc::new(Reloaded::new(files, |it| Current::read(it, certificates))?);
        Ok(Some(Self { certificates, current }))
    }

    /// A session for a connection that was accepted.
    pub fn session(&self) -> Result<Session, TlsError> {
        let connection = UnbufferedServerConnection::new(Arc::clone(&self.current().config))?;
        Ok(Session::new(Side::Server(connection)))
    }

    /// Whether clients are asked for a certificate.
    #[must_use]
    pub fn asks_for_certificates(&self) -> bool {
        self.current.files().client_ca.is_some()
    }

    /// What the certificate in use says.
    #[must_use]
    pub fn certificate(&self) -> Option<CertificateInfo> {
        self.current().info.clone()
    }

    fn current(&self) -> Arc<Current> {
        self.current.get(|it| Current::read(it, self.certificates))
    }
}

impl Current {
    fn read(files: &TlsFiles, certificates: ClientCertificates) -> Result<Self, TlsFileError> {
        let Some((cert, key)) = files.pair() else {
            return Err(TlsFileError::Incomplete { what: "there is no certificate", hint: "set tls_cert" });
        };
        let identity = Identity::read(cert, key)?;
        identity.warn_if_untimely(cert);
        let info = identity.info();
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| content(cert, format!("cannot be used: {error}")))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(files::roots(path)?, provider);
                let verifier = match certificates {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Asked => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| content(path, format!("cannot be used: {error}")))?,
                )
            }
        };
        let config = builder.with_single_cert(identity.chain, identity.key);
        let mut config = config.map_err(|error| {
            content(key, format!("is not the key of `{}`, or is of an unknown kind: {error}", cert.display()))
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), info })
    }
}
