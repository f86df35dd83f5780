//! The configuration as the daemon uses it: typed, checked, and complete.

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
    /// Listening sockets.
    pub listen: Listen,
    /// The store.
    pub store: Store,
    /// This daemon.
    pub node: Node,
    /// The fleet; `None` when the node is alone.
    #[serde(default)]
    pub fleet: Option<Fleet>,
    /// The file of denials.
    pub denials: Denials,
    /// The record of arriving checks.
    pub record: Record,
    /// Its log.
    pub log: Log,
    /// Policies by name, not yet compiled.
    #[serde(default, rename = "policy")]
    pub(crate) policies: BTreeMap<String, RawPolicy>,
    /// Routes from descriptors to policies by domain, not yet compiled.
    #[serde(default)]
    pub(crate) descriptors: BTreeMap<String, Vec<RawRoute>>,
}

/// `[listen]`: listening sockets and their bounds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The path of the Unix socket.
    pub socket: PathBuf,
    /// The socket's permissions.
    pub mode: u32,
    /// The socket's group.
    pub group: Option<String>,
    /// Users whose processes may connect; `None` for all whom the permissions allow.
    pub allow_uids: Option<Vec<u32>>,
    /// Users who may run administrative commands; `None` for root and the daemon's own user.
    pub admin_uids: Option<Vec<u32>>,
    /// Where Envoy's Rate Limit Service is served; `None` for nowhere.
    #[serde(default, deserialize_with = "door")]
    pub envoy: Option<ListenAddress>,
    /// Which header fields Envoy adds to its responses: a name, or `off`.
    pub envoy_headers: String,
    /// The TCP address for clients that cannot open a Unix socket; `None` for none.
    #[serde(deserialize_with = "address")]
    pub tcp: Option<SocketAddr>,
    /// TLS of the TCP address (PEM): its certificate.
    pub tcp_cert: Option<PathBuf>,
    /// The private key.
    pub tcp_key: Option<PathBuf>,
    /// The CAs of the certificates that clients must have.
    pub tcp_ca: Option<PathBuf>,
    /// The file of the users whose passwords clients must know.
    pub tcp_users: Option<PathBuf>,
    /// Where metrics and health are served; `None` for nowhere.
    #[serde(deserialize_with = "address")]
    pub admin: Option<SocketAddr>,
    /// Whether checks are served on the admin address, too.
    pub admin_checks: bool,
    /// Whether the status page shows keys.
    pub admin_keys: bool,
    /// Host names for the admin address, beside `localhost` and IP addresses.
    #[serde(default)]
    pub admin_hosts: Vec<String>,
    /// Most connections at once.
    pub max_connections: usize,
    /// Most connections of one user at once.
    pub max_connections_per_uid: usize,
    /// Data threads; 0 for one per core.
    pub threads: usize,
}

/// `listen.envoy`: a Unix socket or a TCP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A socket's path.
    Path(PathBuf),
    /// An address with a port.
    Address(SocketAddr),
}

impl std::fmt::Display for ListenAddress {
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
    /// How long a check waits for the store.
    #[serde(deserialize_with = "micros")]
    pub timeout: Micros,
    /// Prefix of every key in the store.
    pub prefix: String,
    /// Whether grants must be confirmed by a replica.
    pub confirm: Confirm,
    /// Certificates (PEM) of the CAs that the servers' certificates are checked with.
    pub ca: Option<PathBuf>,
    /// This node's certificate (PEM).
    pub cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
    /// The file that holds the password.
    pub password_file: Option<PathBuf>,
    /// The file with the secret that keys are digested with.
    pub digest_secret_file: Option<PathBuf>,
}

/// `store.confirm`: whether grants must be confirmed by a replica.
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
    /// Most keys that are held.
    pub max_keys: usize,
    /// Most bytes of memory that clients can make the daemon use; `None` for a quarter of the available memory.
    pub max_memory: Option<u64>,
}

/// `[fleet]`: the nodes that exchange usage.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Its name, a DNS label: fleets with different names never mix.
    pub name: String,
    /// Where this node listens for peers (UDP).
    pub listen: SocketAddr,
    /// The address at which peers reach this node; `None` for the one it listens on.
    #[serde(default)]
    pub advertise: Option<SocketAddr>,
    /// Addresses of other nodes that may be in the fleet: `host:port`.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// Time between two rounds of gossip.
    #[serde(deserialize_with = "micros")]
    pub tick: Micros,
    /// Whether this node leases seldom used keys for its peers, and asks them.
    pub owner: Owner,
    /// What this node tells a peer on which somebody views the whole fleet.
    pub top: FleetTop,
    /// Certificates (PEM) of the CAs that peers' certificates are checked with.
    pub ca: PathBuf,
    /// This node's certificate (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// Certificates that the CA has revoked (PEM).
    #[serde(default)]
    pub crl: Option<PathBuf>,
}

/// `fleet.owner`: whether a node leases seldom used keys for its peers, and asks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// It does both, but leases for no peer in a large fleet if others do.
    Auto,
    /// It does both in a fleet of any size.
    Always,
    /// It asks no peer, and no peer asks it.
    Never,
}

/// `fleet.top`: what a node tells a peer on which somebody views the whole fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FleetTop {
    /// Its counts by policy, and its state.
    #[default]
    Totals,
    /// The hottest keys, too.
    Keys,
    /// Nothing.
    Off,
}

/// `[denials]`: a file with lines about denials.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Denials {
    /// The file; `None` for none.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// How the file names keys.
    pub keys: DenialKeys,
}

/// `denials.keys`: how the file names keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DenialKeys {
    /// By their first bytes and their digests.
    Clipped,
    /// By their digests alone.
    Digest,
}

/// `[record]`: the file of arriving checks, for `rationd plan`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The file; `None` for none.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// About how many bytes it takes at most.
    pub size: u64,
    /// Whether it has the keys' first bytes.
    pub keys: bool,
}

/// `[log]`: the daemon's log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The format of lines.
    pub format: LogFormat,
    /// A level, or a filter of the `tracing` crate.
    pub level: String,
}

/// `log.format`: the format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[policy.NAME]` or one of its overrides, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPolicy {
    limits: Vec<String>,
    candidate: Vec<String>,
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

/// `[[descriptors.DOMAIN]]`, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    r#match: Vec<String>,
    policy: Option<String>,
    key: Option<Vec<String>>,
    replaces: Vec<String>,
}

impl Config {
    /// The policies in the form that [`crate::core::policy::PolicySet::compile`] takes.
    #[must_use]
    pub fn policy_specs(&self) -> BTreeMap<String, PolicySpec> {
        self.policies.iter().map(|(name, raw)| (name.clone(), raw.spec())).collect()
    }

    /// The routes in the form that [`crate::core::route::RouteSet::compile`] takes.
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
            candidate: self.candidate.clone(),
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

fn door<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ListenAddress>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(match text.parse() {
        _ if text == "off" => None,
        Ok(address) => Some(ListenAddress::Address(address)),
        Err(_) => Some(ListenAddress::Path(text.into())),
    })
}

fn on_store_loss<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OnStoreLoss, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "share" => Ok(OnStoreLoss::Share),
        "entitled" => Ok(OnStoreLoss::Entitled),
        "allow" => Ok(OnStoreLoss::Allow),
        "deny" => Ok(OnStoreLoss::Deny),
        other => Err(serde::de::Error::custom(format!("on_store_loss {other:?}"))),
    }
}
