//! The connection of a command to a store, and the conversion of keys and errors.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use tiffin_client::{Client, ConnectOptions, Deadline, Error};
use tiffin_server::config::ClientArgs;
use tiffin_types::Key;
use tiffin_types::message::Resource;

use crate::Context;
use crate::console::Failure;

/// Maximum time for connecting, even if the command may take longer.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// A connected client, and the time limit of its calls.
pub(crate) struct StoreClient {
    /// The client.
    pub(crate) client: Client,
    /// The namespace of its keys.
    pub(crate) namespace: String,
    timeout: Duration,
}

impl StoreClient {
    /// Connects with the settings of the command.
    pub(crate) async fn connect(args: ClientArgs, context: &Context) -> Result<Self, Failure> {
        let config = args.resolve(&context.common, &context.file);
        let config = config.map_err(|error| Failure::new("config", error))?;
        let address = config.master.to_string();
        let options = ConnectOptions {
            token: config.token,
            tls: config.tls,
            etcd: config.etcd,
            namespace: config.namespace.clone(),
            label: format!("tiffin, process {}", std::process::id()),
            shared_memory: config.shared_memory,
            connect_time: config.timeout.min(CONNECT_TIME_MAX),
            ..ConnectOptions::new(address.clone())
        };
        let client = Client::connect(options).await.map_err(|error| explain_connect(&error, &address))?;
        Ok(Self { client, namespace: config.namespace, timeout: config.timeout })
    }

    /// The deadline of a call that starts now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Converts an error of a call.
    pub(crate) fn explain(&self, error: &Error) -> Failure {
        let failure = explain(error);
        match error {
            Error::NotFound { .. } => {
                failure.hint(format!("`tiffin ls` lists the keys in namespace `{}`", self.namespace))
            }
            _ => failure,
        }
    }

    /// Disconnects, so that the server need not detect the end of the process.
    pub(crate) async fn close(self) {
        // Errors are ignored: the server notices the end of the process.
        let _ignored = self.client.close(self.deadline()).await;
    }
}

/// A key from the command line: any bytes.
pub(crate) fn key(text: &OsStr) -> Result<Key, Failure> {
    let key = Key::new(text.as_bytes());
    key.map_err(|error| Failure::new("invalid", error).hint("use a key of one byte to one mebibyte"))
}

/// Converts an error of a connection attempt.
pub(crate) fn explain_connect(error: &Error, address: &str) -> Failure {
    let failure = explain(error);
    match error {
        Error::Unreachable { .. } | Error::Timeout { .. } => {
            let advice = format!(
                "nothing answers at {address}: start a store with `tiffin up`, or name one with `--master`"
            );
            Failure { hint: Some(advice), ..failure }
        }
        _ => failure,
    }
}

/// Converts an error of a call.
pub(crate) fn explain(error: &Error) -> Failure {
    let mut failure = Failure::new(error.code(), error);
    if let Error::Full { lacks, never, .. } = error {
        failure.facts.insert("lacks".to_owned(), resource(*lacks).into());
        failure.facts.insert("never".to_owned(), (*never).into());
    }
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The missing resource, in the words of the Python package.
fn resource(lacks: Resource) -> &'static str {
    match lacks {
        Resource::Bytes => "bytes",
        Resource::Slots => "slots",
        Resource::KeySpace => "key space",
        Resource::Contiguous => "contiguous space",
        Resource::Share => "share",
    }
}
