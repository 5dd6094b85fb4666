//! TLS 1.3 for the TCP connections of all planes: control, data and HTTP.
//!
//! - [`TlsFiles`]: the files that the settings name.
//! - [`TlsServer`] and [`TlsClient`]: what a process shows and trusts. They read their files again when these
//!   change; connections that are open go on as they are.
//! - [`Session`]: one connection, without I/O. The planes own their sockets and pass bytes through it.
//! - [`TlsStream`]: a session over a stream of the runtime, for HTTP.
//! - [`ca`]: makes a private CA and its certificates, and reads what a certificate says.
//!
//! **Invariant:** there is no TLS below 1.3, no session resumption and no early data, so no secret outlives
//! its connection and no request can be replayed.
//!
//! **Invariant:** files that cannot be used change nothing: the last good ones stay in use.
//!
//! The kernel's TLS is not used: it needs a module that many hosts, and the machines this was measured on, do
//! not have.

pub mod ca;
mod client;
mod der;
mod error;
mod files;
mod server;
mod session;
mod stream;

#[cfg(test)]
mod tests;

pub use client::TlsClient;
pub use der::CertificateInfo;
pub use error::TlsError;
pub use files::{TlsFileError, TlsFiles};
pub use server::{ClientCertificates, TlsServer};
pub use session::{Plaintext, RECORD_BYTES_MAX, Session, is_client_hello};
pub use stream::{AnyStream, TlsStream, connect, host_of};
