//! The configuration as the daemon uses it: typed, checked, complete.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::core::policy::{OnStoreLoss, PolicySpec};
use crate::core::route::RouteSpec;
use crate::core::time::Micros;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Doors.
    pub listen: Listen,
    /// Where tokens are counted.
    pub store: Store,
    /// This daemon.
    pub node: Node,
    /// Its peers; `None`: it is alone.
    #[serde(default)]
    pub fleet: Option<Fleet>,
    /// Its log.
    pub log: Log,
    /// Policies by name, not yet compiled.
    #[serde(default, rename = "policy")]
    pub(crate) policies: BTreeMap<String, RawPolicy>,
    /// Routes from descriptors to policies by domain, not yet compiled.
    #[serde(default)]
    pub(crate) descriptors: BTreeMap<String, Vec<RawRoute>>,
}

/// `[listen]`: doors and their bounds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The Unix socket.
    pub socket: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// The group it is given to.
    pub group: Option<String>,
    /// Users whose processes may connect; `None`: whoever the permissions let.
    pub allow_uids: Option<Vec<u32>>,
    /// Users who may do what concerns others; `None`: root and the daemon's own.
    pub admin_uids: Option<Vec<u32>>,
    /// Where Envoy's Rate Limit Service is served; `None`: nowhere.
    #[serde(default, deserialize_with = "door")]
    pub envoy: Option<Door>,
    /// Which header fields Envoy adds to its responses: a name, or `off`.
    pub envoy_headers: String,
    /// Where metrics and health are served; `None`: nowhere.
    #[serde(deserialize_with = "address")]
    pub admin: Option<SocketAddr>,
    /// Whether checks are served there, too.
    pub admin_checks: bool,
    /// Names by which it may be asked, beside `localhost` and IP addresses.
    #[serde(default)]
    pub admin_hosts: Vec<String>,
    /// Most connections at once.
    pub max_connections: usize,
    /// Most connections of one user at once.
    pub max_connections_per_uid: usize,
    /// Worker threads; 0: one per core.
    pub threads: usize,
}

/// `listen.envoy`: a Unix socket or a TCP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// A socket's path.
    Path(PathBuf),
    /// An address with a port.
    Address(SocketAddr),
}

impl std::fmt::Display for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// `[store]`: where tokens are counted for all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// `memory:` or the URL of a Redis or Redis Cluster.
    pub url: String,
    /// Longest wait of a check.
    #[serde(deserialize_with = "micros")]
    pub timeout: Micros,
    /// First part of every key in the store.
    pub prefix: String,
    /// Whether a grant is awaited on a replica.
    pub confirm: Confirm,
    /// Certificates (PEM) that vouch for the servers.
    pub ca: Option<PathBuf>,
    /// This node's certificate (PEM).
    pub cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
    /// The file that holds the password.
    pub password_file: Option<PathBuf>,
    /// The file that holds the secret under which keys are digested.
    pub digest_secret_file: Option<PathBuf>,
}

/// `store.confirm`: whether a grant is awaited on a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confirm {
    /// Where a cluster has replicas.
    Auto,
    /// Wherever there is a replica.
    On,
    /// Nowhere.
    Off,
}

/// `[node]`: this daemon.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name, unique among the nodes of a store.
    pub name: String,
    /// Most keys held.
    pub max_keys: usize,
    /// Most memory that clients can make it keep, in bytes; `None`: a quarter of what there is.
    pub max_memory: Option<u64>,
}

/// `[fleet]`: the nodes that share what they know.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Its name, a DNS label: fleets with different names never mix.
    pub name: String,
    /// Where this node listens for peers (UDP).
    pub listen: SocketAddr,
    /// Where peers reach it; `None`: where it listens.
    #[serde(default)]
    pub advertise: Option<SocketAddr>,
    /// Where other nodes may be found: `host:port`.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// Between two rounds of gossip.
    #[serde(deserialize_with = "micros")]
    pub tick: Micros,
    /// Certificates (PEM) that vouch for peers.
    pub ca: PathBuf,
    /// This node's certificate (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// What the CA has revoked (PEM).
    #[serde(default)]
    pub crl: Option<PathBuf>,
}

/// `[log]`: its log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// How lines look.
    pub format: LogFormat,
    /// A level, or a filter of the `tracing` crate.
    pub level: String,
}

/// `log.format`: how lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Text.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[policy.NAME]` or one of its overrides, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPolicy {
    limits: Vec<String>,
    #[serde(deserialize_with = "on_store_loss")]
    on_store_loss: OnStoreLoss,
    shadow: bool,
    enforce: Option<u8>,
    refunds: Option<bool>,
    unlimited: bool,
    blocked: bool,
    #[serde(rename = "override")]
    overrides: BTreeMap<String, RawPolicy>,
}

/// `[[descriptors.DOMAIN]]`, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    r#match: Vec<String>,
    policy: Option<String>,
    key: Option<Vec<String>>,
    replaces: Vec<String>,
}

impl Config {
    /// The policies as [`crate::core::policy::PolicySet::compile`] takes them.
    #[must_use]
    pub fn policy_specs(&self) -> BTreeMap<String, PolicySpec> {
        self.policies.iter().map(|(name, raw)| (name.clone(), raw.spec())).collect()
    }

    /// The routes as [`crate::core::route::RouteSet::compile`] takes them.
    #[must_use]
    pub fn route_specs(&self) -> BTreeMap<String, Vec<RouteSpec>> {
        let spec = |raw: &RawRoute| RouteSpec {
            patterns: raw.r#match.clone(),
            policy: raw.policy.clone(),
            key: raw.key.clone(),
            replaces: raw.replaces.clone(),
        };
        self.descriptors.iter().map(|(domain, routes)| (domain.clone(), routes.iter().map(spec).collect())).collect()
    }
}

impl RawPolicy {
    fn spec(&self) -> PolicySpec {
        PolicySpec {
            limits: self.limits.clone(),
            on_store_loss: self.on_store_loss,
            shadow: self.shadow,
            enforce: self.enforce,
            refunds: self.refunds,
            unlimited: self.unlimited,
            blocked: self.blocked,
            overrides: self.overrides.iter().map(|(key, raw)| (key.clone(), raw.spec())).collect(),
        }
    }
}

fn micros<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Micros, D::Error> {
    u64::deserialize(deserializer).map(Micros)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "off" { Ok(None) } else { text.parse().map(Some).map_err(serde::de::Error::custom) }
}

fn door<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Door>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(match text.parse() {
        _ if text == "off" => None,
        Ok(address) => Some(Door::Address(address)),
        Err(_) => Some(Door::Path(text.into())),
    })
}

fn on_store_loss<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OnStoreLoss, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "share" => Ok(OnStoreLoss::Share),
        "allow" => Ok(OnStoreLoss::Allow),
        "deny" => Ok(OnStoreLoss::Deny),
        other => Err(serde::de::Error::custom(format!("on_store_loss {other:?}"))),
    }
}
