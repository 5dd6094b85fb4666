//! The store under test: one of our own, or a running one.

use std::path::PathBuf;

use tiffin_client::{Client, ConnectOptions};

use super::processes::{Program, Server};
use crate::console::Failure;

/// A master and its nodes, if we started them.
pub(crate) struct Cluster {
    /// Address of the master.
    pub(crate) address: String,
    /// The nodes; none if the store was running before.
    pub(crate) nodes: Vec<Server>,
    _master: Option<Server>,
    _folder: Option<Folder>,
}

impl Cluster {
    /// Starts a master with these settings, and nodes with this memory, shared or not.
    pub(crate) async fn start(
        program: &Program,
        settings: &[&str],
        nodes: usize,
        memory: u64,
        shared: bool,
    ) -> Result<Self, Failure> {
        let folder = Folder::new()?;
        let state = folder.0.to_string_lossy().into_owned();
        let fixed = ["master", "--listen", "127.0.0.1:0", "--http", "off", "--metadata-http", "off"];
        let state = ["--state-dir", &state];
        let args = fixed.iter().chain(&state).chain(settings);
        let master = Server::start(program, args).await?;
        let address = master.ready.get("master").and_then(|it| it.as_str()).unwrap_or_default().to_owned();
        let (memory, shared) = (format!("{memory}B"), if shared { "on" } else { "off" });
        let mut servers = Vec::new();
        for number in 1..=nodes {
            let name = format!("node-{number}");
            let listen = ["--listen", "127.0.0.1:0", "--shared-memory", shared];
            let args = ["node", "--master", &address, "--memory", &memory, "--name", &name, "--pool", "off"];
            servers.push(Server::start(program, args.iter().chain(&listen)).await?);
        }
        Ok(Self { address, nodes: servers, _master: Some(master), _folder: Some(folder) })
    }

    /// A running store.
    pub(crate) fn named(address: String) -> Self {
        Self { address, nodes: Vec::new(), _master: None, _folder: None }
    }

    /// A client of the store.
    pub(crate) async fn client(&self, namespace: &str, token: &str) -> Result<Client, Failure> {
        let options = ConnectOptions {
            token: token.to_owned(),
            namespace: namespace.to_owned(),
            label: format!("tiffin, process {}", std::process::id()),
            ..ConnectOptions::new(self.address.clone())
        };
        Client::connect(options)
            .await
            .map_err(|error| crate::store_client::explain_connect(&error, &self.address))
    }
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("tiffin-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| Failure::file("create the folder", &path, &error))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Errors are ignored: the folder is small and in the system's temporary folder.
        let _stays = std::fs::remove_dir_all(&self.0);
    }
}
