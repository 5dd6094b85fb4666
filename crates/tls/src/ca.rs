//! A private CA for one cluster: a folder with its certificate and key, and those of servers and clients.
//!
//! One certificate is for all servers, because the same files then serve every host; it names all hosts.
//!
//! **Invariant:** no file is overwritten but by [`renew`], which replaces each as a whole. Keys are readable
//! by their owner only, from the first byte on.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::files::Identity;
use crate::{CertificateInfo, TlsFileError};

/// The CA's certificate: what clients and servers trust.
pub const CA_CERT: &str = "ca.pem";
/// The CA's key, which only renewal needs.
pub const CA_KEY: &str = "ca.key";
/// The certificate of all servers.
pub const SERVER_CERT: &str = "server.pem";
/// The key of all servers.
pub const SERVER_KEY: &str = "server.key";
/// The certificate of clients.
pub const CLIENT_CERT: &str = "client.pem";
/// The key of clients.
pub const CLIENT_KEY: &str = "client.key";

/// How long a CA is valid.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long a certificate is valid, unless another time is named.
pub const LIFETIME_DEFAULT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The maximum number of hosts in a certificate.
pub const HOSTS_MAX: usize = 256;
/// A certificate is valid from before it was made, for hosts whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// The subject of every CA that this makes.
const CA_NAME: &str = "Tiffin private CA";
/// How many characters a line of a PEM file has.
const PEM_COLUMNS: usize = 64;

/// Why certificates cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file exists already.
    #[error(
        "`{}` exists\n\nhint: choose another folder, or renew the certificates there with \
         `tiffin certs renew`",
        .0.display()
    )]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error(
        "cannot write `{}`: {source}\n\nhint: check the folder, and that this user may write to it",
        .path.display()
    )]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] TlsFileError),
    /// The folder's files do not belong together.
    #[error("`{}` {what}\n\nhint: name a folder that `tiffin certs create` has written", .path.display())]
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// The problem.
        what: &'static str,
    },
    /// A host that a certificate cannot name.
    #[error("`{0}` is not a host\n\nhint: write a host name such as `node-1.example.org`, or an IP address")]
    Host(String),
    /// Too many hosts.
    #[error("there are {0} hosts, more than {HOSTS_MAX}\n\nhint: use a wildcard such as `*.example.org`")]
    Hosts(usize),
    /// The library refuses.
    #[error("cannot make a certificate: {0}\n\nhint: try again")]
    Make(#[from] rcgen::Error),
}

/// A CA with its key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    ends: SystemTime,
}

/// What a certificate is for.
#[derive(Clone, Debug)]
pub enum Purpose<'a> {
    /// A server at these hosts, which is also a client of other servers.
    Server(&'a [String]),
    /// A client.
    Client,
}

/// A certificate and its key, in PEM format.
pub struct Issued {
    /// The certificate.
    pub cert: String,
    /// The key.
    pub key: String,
}

/// A certificate in a folder.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its path.
    pub path: PathBuf,
    /// What it says.
    pub info: CertificateInfo,
}

/// Makes a CA, and certificates for servers at these hosts and for clients, in a folder. Returns what was
/// written.
pub fn create(folder: &Path, hosts: &[String], lifetime: Duration) -> Result<Vec<PathBuf>, CaError> {
    let names = [CA_CERT, CA_KEY, SERVER_CERT, SERVER_KEY, CLIENT_CERT, CLIENT_KEY];
    if let Some(path) = names.iter().map(|it| folder.join(it)).find(|it| it.exists()) {
        return Err(CaError::Exists(path));
    }
    let authority = Authority::create()?;
    let server = authority.issue(&Purpose::Server(hosts), lifetime)?;
    let client = authority.issue(&Purpose::Client, lifetime)?;
    let fail = |source| CaError::Write { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(fail)?;
    let texts = [authority.cert_pem(), authority.key_pem(), server.cert, server.key, client.cert, client.key];
    let mut written = Vec::new();
    for (name, text) in names.into_iter().zip(texts) {
        let path = folder.join(name);
        write_new(&path, &text, mode_of(name))?;
        written.push(path);
    }
    Ok(written)
}

/// Makes new certificates and keys for servers and clients in a folder that [`create`] has made. They are for
/// the same hosts as before, and for the additional ones. Returns what was written.
pub fn renew(folder: &Path, additional: &[String], lifetime: Duration) -> Result<Vec<PathBuf>, CaError> {
    let authority = Authority::read(folder)?;
    let before = Identity::read(&folder.join(SERVER_CERT), &folder.join(SERVER_KEY))?;
    let mut hosts = before.info().map(|it| it.hosts).unwrap_or_default();
    for host in additional {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    let server = authority.issue(&Purpose::Server(&hosts), lifetime)?;
    let client = authority.issue(&Purpose::Client, lifetime)?;
    let mut written = Vec::new();
    for (name, text) in [
        (SERVER_KEY, server.key),
        (SERVER_CERT, server.cert),
        (CLIENT_KEY, client.key),
        (CLIENT_CERT, client.cert),
    ] {
        let (path, draft) = (folder.join(name), folder.join(format!("{name}.new")));
        write_new(&draft, &text, mode_of(name))?;
        fs::rename(&draft, &path).map_err(|source| CaError::Write { path: path.clone(), source })?;
        written.push(path);
    }
    Ok(written)
}

/// The certificates in a folder that [`create`] has made.
pub fn list(folder: &Path) -> Result<Vec<Listed>, CaError> {
    let mut listed = Vec::new();
    for name in [CA_CERT, SERVER_CERT, CLIENT_CERT] {
        let path = folder.join(name);
        let info = crate::files::certificates(&path)?.first().and_then(CertificateInfo::of);
        let Some(info) = info else { return Err(CaError::Foreign { path, what: "is no certificate" }) };
        listed.push(Listed { path, info });
    }
    Ok(listed)
}

impl Authority {
    /// Makes a CA.
    pub fn create() -> Result<Self, CaError> {
        let key = KeyPair::generate()?;
        let ends = SystemTime::now() + CA_LIFETIME;
        let mut params = ca_params();
        set_validity(&mut params, ends);
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { certificate, key, ends })
    }

    /// Reads the CA of a folder.
    pub fn read(folder: &Path) -> Result<Self, CaError> {
        let (cert, key) = (folder.join(CA_CERT), folder.join(CA_KEY));
        let Identity { chain, key: found } = Identity::read(&cert, &key)?;
        let foreign = |path, what| CaError::Foreign { path, what };
        let signing = rustls::crypto::ring::sign::any_supported_type(&found);
        let signing = signing.map_err(|_| foreign(key.clone(), "is a key of an unknown kind"))?;
        if CertifiedKey::new(chain.clone(), signing).keys_match().is_err() {
            return Err(foreign(key, "is not the key of the CA's certificate"));
        }
        let certificate = chain.first().cloned();
        let certificate = certificate.ok_or_else(|| foreign(cert.clone(), "is no certificate"))?;
        let info = CertificateInfo::of(&certificate);
        let info = info.ok_or_else(|| foreign(cert, "is no certificate"))?;
        let PrivateKeyDer::Pkcs8(found) = found else {
            return Err(foreign(key, "is a key of an unknown kind"));
        };
        let ends = UNIX_EPOCH + Duration::from_secs(info.ends_s);
        Ok(Self { certificate, key: KeyPair::try_from(found.secret_pkcs8_der())?, ends })
    }

    /// Makes a certificate and its key. It does not outlive the CA.
    pub fn issue(&self, purpose: &Purpose<'_>, lifetime: Duration) -> Result<Issued, CaError> {
        self.issue_until(purpose, SystemTime::now() + lifetime)
    }

    /// The same, with its end; for tests also one in the past.
    pub fn issue_until(&self, purpose: &Purpose<'_>, ends: SystemTime) -> Result<Issued, CaError> {
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let (name, hosts, purposes) = match purpose {
            Purpose::Server(hosts) => {
                ("Tiffin server", *hosts, vec![ExtendedKeyUsagePurpose::ServerAuth, client])
            }
            Purpose::Client => ("Tiffin client", &[][..], vec![client]),
        };
        if hosts.len() > HOSTS_MAX {
            return Err(CaError::Hosts(hosts.len()));
        }
        if let Some(host) = hosts.iter().find(|it| !is_host(it)) {
            return Err(CaError::Host(host.clone()));
        }
        let mut params = CertificateParams::new(hosts.to_vec())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        // etcd with users takes no client that has a CommonName.
        let title = match purpose {
            Purpose::Server(_) => DnType::CommonName,
            Purpose::Client => DnType::OrganizationName,
        };
        params.distinguished_name.push(title, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes;
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, ends.min(self.ends));
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(ca_params(), &self.key);
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Issued { cert: pem("CERTIFICATE", certificate.der()), key: key_pem(&key) })
    }

    /// Its certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its certificate, in PEM format.
    #[must_use]
    pub fn cert_pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    fn key_pem(&self) -> String {
        key_pem(&self.key)
    }
}

/// Without its times, so that it is the same when the CA is read from files.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Gives a certificate its end, and a beginning.
fn set_validity(params: &mut CertificateParams, ends: SystemTime) {
    let moment = |at: SystemTime| {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(since.as_secs())
    };
    let begins = SystemTime::now().min(ends) - CLOCK_SKEW;
    (params.not_before, params.not_after) = (moment(begins), moment(ends));
}

fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

fn mode_of(name: &str) -> u32 {
    if name.ends_with(".key") { 0o600 } else { 0o644 }
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), CaError> {
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => CaError::Exists(path.to_owned()),
        _ => CaError::Write { path: path.to_owned(), source },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)
}

fn key_pem(key: &KeyPair) -> String {
    pem("PRIVATE KEY", key.serialized_der())
}

fn pem(kind: &str, bytes: &[u8]) -> String {
    let mut text = format!("-----BEGIN {kind}-----\n");
    let mut rest = STANDARD.encode(bytes);
    while !rest.is_empty() {
        let behind = rest.split_off(rest.len().min(PEM_COLUMNS));
        text.push_str(&rest);
        text.push('\n');
        rest = behind;
    }
    text.push_str(&format!("-----END {kind}-----\n"));
    text
}
