//! The files with certificates and keys, and when they have changed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::CertificateInfo;

/// The maximum length of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of certificates in a file.
const CERTIFICATES_MAX: usize = 64;

/// The files that the settings name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate that this process shows, and the certificates that lead to its CA.
    pub cert: Option<PathBuf>,
    /// The private key of that certificate.
    pub key: Option<PathBuf>,
    /// The CAs of servers that this process connects to. With them, it connects with TLS only.
    pub ca: Option<PathBuf>,
    /// The CAs of clients. With them, a server accepts only clients that show a certificate.
    pub client_ca: Option<PathBuf>,
}

/// Why files cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error(
        "cannot read the TLS file `{}`: {source}\n\nhint: check the path, and that this user may read it",
        .path.display()
    )]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Its content is invalid.
    #[error("the TLS file `{}` {what}\n\nhint: {hint}", .path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The problem.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// One setting needs another.
    #[error("{what}\n\nhint: {hint}")]
    Incomplete {
        /// What is missing.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
}

impl TlsFiles {
    /// Whether a server with these files speaks TLS.
    #[must_use]
    pub fn has_server(&self) -> bool {
        self.cert.is_some()
    }

    /// Whether a client with these files speaks TLS.
    #[must_use]
    pub fn has_client(&self) -> bool {
        self.ca.is_some()
    }

    /// Refuses settings that are not complete.
    pub fn check(&self) -> Result<(), TlsFileError> {
        let refuse = |what, hint| Err(TlsFileError::Incomplete { what, hint });
        match (&self.cert, &self.key, &self.client_ca) {
            (Some(_), None, _) => {
                refuse("tls_cert is set and tls_key is not", "name the file with the certificate's key")
            }
            (None, Some(_), _) => {
                refuse("tls_key is set and tls_cert is not", "name the file with the key's certificate")
            }
            (None, None, Some(_)) => refuse(
                "tls_client_ca is set and tls_cert is not: only a server with TLS can ask for certificates",
                "set tls_cert and tls_key as well",
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn pair(&self) -> Option<(&Path, &Path)> {
        self.cert.as_deref().zip(self.key.as_deref())
    }
}

/// A certificate with its chain, and its key.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    pub(crate) fn read(cert: &Path, key: &Path) -> Result<Self, TlsFileError> {
        let chain = certificates(cert)?;
        let found = PrivateKeyDer::from_pem_slice(&read(key)?);
        let key = found.map_err(|error| match error {
            pem::Error::NoItemsFound => content(key, "contains no private key".to_owned()),
            // The parser's message may quote the key.
            _ => content(key, "is not in PEM format".to_owned()),
        })?;
        Ok(Self { chain, key })
    }

    /// What is wrong with the time of the certificate, so that peers will refuse it. It is used all the same:
    /// Unix sockets need none, and its file may be replaced at any time.
    pub(crate) fn untimely(&self, now: SystemTime) -> Option<&'static str> {
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let info = self.info()?;
        match (now_s < info.begins_s, now_s > info.ends_s) {
            (true, _) => Some("it is not valid yet; check the clock of this machine"),
            (_, true) => Some("it has expired; renew it with `tiffin certs renew`"),
            _ => None,
        }
    }

    /// Warns of a certificate that peers will refuse.
    pub(crate) fn warn_if_untimely(&self, cert: &Path) {
        if let Some(problem) = self.untimely(SystemTime::now()) {
            tracing::warn!(path = %cert.display(), problem, "peers refuse the certificate of this process");
        }
    }

    /// What the certificate says.
    pub(crate) fn info(&self) -> Option<CertificateInfo> {
        CertificateInfo::of(self.chain.first()?)
    }
}

/// The CAs in a file.
pub(crate) fn roots(path: &Path) -> Result<Arc<RootCertStore>, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added
            .map_err(|error| content(path, format!("contains a certificate that is not usable: {error}")))?;
    }
    Ok(Arc::new(roots))
}

/// The error for a file with a bad content.
pub(crate) fn content(path: &Path, what: String) -> TlsFileError {
    let hint = "it must be in PEM format, as `tiffin certs create` writes it";
    TlsFileError::Content { path: path.to_owned(), what, hint }
}

/// The certificates in a file, of which there is at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let bytes = read(path)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    match found {
        Err(_) => Err(content(path, "is not in PEM format".to_owned())),
        Ok(found) if found.is_empty() => Err(content(path, "contains no certificate".to_owned())),
        Ok(found) if found.len() > CERTIFICATES_MAX => {
            Err(content(path, format!("contains more than {CERTIFICATES_MAX} certificates")))
        }
        Ok(found) => Ok(found),
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let fail = |source| TlsFileError::Unreadable { path: path.to_owned(), source: Arc::new(source) };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(fail)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(content(path, format!("has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Which contents some paths have: it changes with every replacement.
#[derive(Debug, PartialEq, Eq)]
struct Version(Vec<Option<FileVersion>>);

/// Device, inode, size, and the seconds and nanoseconds of the last change.
type FileVersion = (u64, u64, u64, i64, i64);

impl Version {
    fn of(files: &TlsFiles) -> Self {
        let paths = [&files.cert, &files.key, &files.ca, &files.client_ca];
        let found = paths.into_iter().flatten().map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
        });
        Self(found.collect())
    }
}

/// What was made from files, made again when they change.
#[derive(Debug)]
pub(crate) struct Reloaded<T> {
    files: TlsFiles,
    // Held while the files are compared and read. They are small and local.
    current: Mutex<(Version, Arc<T>)>,
}

impl<T> Reloaded<T> {
    pub(crate) fn new(
        files: TlsFiles,
        make: impl Fn(&TlsFiles) -> Result<T, TlsFileError>,
    ) -> Result<Self, TlsFileError> {
        // The version is that before reading: a change in between is noticed later.
        let version = Version::of(&files);
        let made = Arc::new(make(&files)?);
        Ok(Self { files, current: Mutex::new((version, made)) })
    }

    pub(crate) fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// What the files say now. If they cannot be used, the last that they said.
    pub(crate) fn get(&self, make: impl Fn(&TlsFiles) -> Result<T, TlsFileError>) -> Arc<T> {
        let version = Version::of(&self.files);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != version {
            match make(&self.files) {
                Ok(made) => {
                    current.1 = Arc::new(made);
                    tracing::info!(files = ?self.files, "the TLS files were read again");
                }
                // A certificate and its key are replaced one after the other.
                Err(error) => {
                    let problem = error.to_string();
                    let problem = problem.lines().next().unwrap_or_default();
                    tracing::error!(problem, "the TLS files are not used; the last good ones stay in use");
                }
            }
            current.0 = version;
        }
        Arc::clone(&current.1)
    }
}
