//! The side that connects.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;

use crate::files::{self, Identity, Reloaded, content};
use crate::session::Side;
use crate::{Session, TlsError, TlsFileError, TlsFiles};

/// Which servers a client trusts, and what it shows them. Clones share it.
#[derive(Clone, Debug)]
pub struct TlsClient {
    current: Arc<Reloaded<Arc<ClientConfig>>>,
}

impl TlsClient {
    /// Reads the files; `None` if they name no CA of servers.
    pub fn open(files: &TlsFiles) -> Result<Option<Self>, TlsFileError> {
        files.check()?;
        if !files.has_client() {
            return Ok(None);
        }
        let files = TlsFiles { client_ca: None, ..files.clone() };
        Ok(Some(Self { current: Arc::new(Reloaded::new(files, config)?) }))
    }

    /// A session for a connection to this host, whose certificate must be for it: a name, or a number without
    /// brackets.
    pub fn session(&self, host: &str) -> Result<Session, TlsError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Host(host.to_owned()))?;
        let config = Arc::clone(&*self.current.get(config));
        Ok(Session::new(Side::Client(UnbufferedClientConnection::new(config, name)?)))
    }
}

fn config(files: &TlsFiles) -> Result<Arc<ClientConfig>, TlsFileError> {
    let Some(ca) = &files.ca else {
        return Err(TlsFileError::Incomplete { what: "there is no CA", hint: "set tls_ca" });
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| content(ca, format!("cannot be used: {error}")))?;
    let builder = builder.with_root_certificates(files::roots(ca)?);
    let mut config = match files.pair() {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let identity = Identity::read(cert, key)?;
            let config = builder.with_client_auth_cert(identity.chain, identity.key);
            config.map_err(|error| {
                content(
                    key,
                    format!("is not the key of `{}`, or is of an unknown kind: {error}", cert.display()),
                )
            })?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
