//! Settings of several masters: where etcd is, and under which name.

use clap::Args;
use serde::Deserialize;
use tiffin_etcd::leader::{CLUSTER_DEFAULT, Keys};
use tiffin_etcd::{Etcd, EtcdAccess, EtcdError};
use tiffin_rpc::Address;

use super::{ConfigError, MasterConfig};

/// Settings of a master that is one of several.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub struct HaArgs {
    /// The client addresses of etcd (3.4 or later), such as `a:2379,b:2379,c:2379` or `https://a:2379`; with
    /// TLS, if `etcd_ca` is set. The master's state is then in etcd instead of a folder, and the master is
    /// the leader or a standby. Default: none, so that there is one master.
    #[arg(long, env = "TIFFIN_MASTER_ETCD", value_name = "ADDRESSES")]
    pub etcd: Option<String>,

    /// The name of the cluster in etcd. Masters of the same name stand by for each other. Default: `tiffin`.
    #[arg(long, env = "TIFFIN_MASTER_CLUSTER", value_name = "NAME")]
    pub cluster: Option<String>,

    /// The host at which clients and nodes reach this master while it leads, if it is not the one it listens
    /// on. Default: the listening host.
    #[arg(long, env = "TIFFIN_MASTER_ADVERTISE", value_name = "HOST")]
    pub master_advertise: Option<String>,
}

/// The same, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaConfig {
    /// See [`HaArgs::etcd`].
    pub etcd: String,
    /// How etcd is reached.
    pub access: EtcdAccess,
    /// See [`HaArgs::cluster`].
    pub cluster: String,
    /// See [`HaArgs::master_advertise`].
    pub advertise: Option<String>,
}

impl HaArgs {
    /// Flags and environment first, then the file; `None` if there is one master.
    pub(super) fn over(self, said: Self, access: EtcdAccess) -> Option<HaConfig> {
        let etcd = self.etcd.or(said.etcd)?;
        let cluster = self.cluster.or(said.cluster).unwrap_or_else(|| CLUSTER_DEFAULT.to_owned());
        let advertise = self.master_advertise.or(said.master_advertise);
        Some(HaConfig { etcd, access, cluster, advertise })
    }
}

impl HaConfig {
    /// Refuses what makes no sense.
    pub(super) fn check(&self, master: &MasterConfig) -> Result<(), ConfigError> {
        let refuse = |name, value: &str, error: String| ConfigError::Value {
            name,
            value: format!("`{value}`"),
            why: error.lines().next().unwrap_or_default().to_owned(),
            hint: "write `--etcd host:2379,host:2379 --cluster NAME`".to_owned(),
        };
        match Etcd::check(&self.etcd, &self.access) {
            Err(EtcdError::Files(error)) => return Err(error.into()),
            checked => checked.map_err(|it| refuse("etcd", &self.etcd, it.to_string()))?,
        };
        Keys::new(&self.cluster).map_err(|it| refuse("cluster", &self.cluster, it.to_string()))?;
        let is_wildcard = |it: &Address| match it {
            Address::Tcp { host, .. } => host.parse().is_ok_and(|it: std::net::IpAddr| it.is_unspecified()),
            Address::Unix { .. } => false,
        };
        match master.listen.iter().find(|it| is_wildcard(it)) {
            Some(address) if self.advertise.is_none() => Err(ConfigError::Value {
                name: "listen",
                value: format!("`{address}`"),
                why: "clients that find the leader in etcd could not reach it there".to_owned(),
                hint: "name the host that others reach with `--master-advertise` (TIFFIN_MASTER_ADVERTISE)"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Where others reach a master that listens there.
    pub(crate) fn advertised(&self, addresses: &[Address]) -> Vec<String> {
        let advertised = addresses.iter().map(|address| match (&self.advertise, address) {
            (Some(host), Address::Tcp { port, .. }) => Address::Tcp { host: host.clone(), port: *port },
            _ => address.clone(),
        });
        advertised.map(|it| it.to_string()).collect()
    }
}
