//! What may be written on the command line. Every flag names its environment variable.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::bench::BenchArgs;
use super::demo::store::Kind as StoreKind;
use super::globals::Globals;
use super::top::sort::Sort as TopSort;

/// A distributed rate limiter daemon: exact limits from leased tokens, answered on a local socket.
#[derive(Debug, Parser)]
#[command(name = "rationd", version, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 ok or allowed, 1 limited, not well, different, too much newly denied or a promise broken (demo --script), 2 usage, 69 daemon unreachable, \
71 refused by the operating system, 75 store unreachable, 78 bad configuration.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon in the foreground; without a configuration: embedded store, one sample policy
    Serve(ServeArgs),
    /// Check a key against a policy, and charge it: exit 0 allowed, 1 limited
    Check(CheckArgs),
    /// Make the daemon read its policies again, as SIGHUP does
    Reload(ReloadArgs),
    /// Load a socket and print percentiles
    Bench(BenchArgs),
    /// Say why a key is limited, or would be; charges nothing
    Explain(KeyArgs),
    /// Give a cost back
    Refund(RefundArgs),
    /// Forget what a key has spent, on all nodes
    Reset(KeyArgs),
    /// Check, show or write a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// See it work: a fleet in this process that shares a limit, with keys to break it
    Demo(DemoArgs),
    /// Look at configuration, machine, store, fleet and daemon, and say what is wrong and what to do
    Doctor(DoctorArgs),
    /// Make the certificates that the nodes of a fleet prove themselves with
    #[command(subcommand)]
    Cert(CertCommand),
    /// Look at a daemon live: rates, denials, hot keys, leases, the store and peers
    Top(TopArgs),
    /// List what the daemon has denied of late, by key, limit and reason
    Denials(DenialsArgs),
    /// Say what another configuration would have done to recorded checks: exit 0, or 1 with --max-newly-denied
    Plan(PlanArgs),
    /// Reckon what a fleet asks of its store, by simulating a part of its keys
    Size(SizeArgs),
    /// List the daemon's policies
    Policies,
    /// List keys that the daemon knows
    Keys(KeysArgs),
    /// List the tokens that the daemon holds, by key, the most first
    Leases(KeysArgs),
    /// List the nodes of the daemon's fleet
    Peers,
    /// Print what a shell completes: for bash, source <(rationd completions bash)
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command
    Man {
        /// Where to write them [env: RATIOND_MAN_DIR]
        #[arg(long, value_name = "DIR", env = "RATIOND_MAN_DIR", hide_env = true)]
        dir: Option<PathBuf>,
    },
}

/// Flags of `serve`: they win over files and environment.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where tokens are counted: memory: or a Redis URL [env: RATIOND_STORE__URL]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Where metrics and health are served, or `off` [env: RATIOND_LISTEN__ADMIN]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,
    /// The node's name, unique among the nodes of a store [env: RATIOND_NODE__NAME]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Threads that serve checks; 0: one per core [env: RATIOND_LISTEN__THREADS]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<String>,
    /// Serve though everybody can read a private key [env: RATIOND_FORCE=true]
    #[arg(long, env = "RATIOND_FORCE", hide_env = true)]
    pub(crate) force: bool,
}

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// The policy
    pub(crate) policy: String,
    /// The key
    pub(crate) key: std::ffi::OsString,
    /// Tokens to charge [env: RATIOND_COST]
    #[arg(long, default_value_t = 1, value_name = "N", env = "RATIOND_COST", hide_env = true)]
    pub(crate) cost: u64,
    /// Report and charge nothing [env: RATIOND_PEEK=true]
    #[arg(long, env = "RATIOND_PEEK", hide_env = true)]
    pub(crate) peek: bool,
}

/// Arguments of `explain` and `reset`.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyArgs {
    /// The policy
    pub(crate) policy: String,
    /// The key
    pub(crate) key: std::ffi::OsString,
}

/// Arguments of `refund`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RefundArgs {
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Tokens to give back
    pub(crate) cost: u64,
}

/// Arguments of `keys` and `leases`.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeysArgs {
    /// Most keys listed [env: RATIOND_COUNT]
    #[arg(long, default_value_t = 100, value_name = "N", env = "RATIOND_COUNT", hide_env = true)]
    pub(crate) count: u32,
}

/// Arguments of `reload`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Say what would change, and change nothing [env: RATIOND_DRY_RUN=true]
    #[arg(long, env = "RATIOND_DRY_RUN", hide_env = true)]
    pub(crate) dry_run: bool,
}

/// Arguments of `top`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// The sockets of the daemons whose figures are added, like fleet/*.sock [default: that of --socket]
    #[arg(value_name = "SOCKET")]
    pub(crate) sockets: Vec<PathBuf>,
    /// One more SOCKET, beside that of --socket; as often as there are more [env: RATIOND_TOP_AND]
    #[arg(long, value_name = "SOCKET", env = "RATIOND_TOP_AND", hide_env = true, value_delimiter = ',')]
    pub(crate) and: Vec<PathBuf>,
    /// Show the whole fleet of the daemon, as far as `fleet.top` of each node tells it [env: RATIOND_TOP_FLEET=true]
    #[arg(long, env = "RATIOND_TOP_FLEET", hide_env = true, conflicts_with = "and")]
    pub(crate) fleet: bool,
    /// Print the figures of one interval, and end [env: RATIOND_TOP_ONCE=true]
    #[arg(long, env = "RATIOND_TOP_ONCE", hide_env = true)]
    pub(crate) once: bool,
    /// Seconds that rates are of [env: RATIOND_TOP_INTERVAL]
    #[arg(long, default_value_t = 1, value_name = "N", env = "RATIOND_TOP_INTERVAL", hide_env = true,
        value_parser = clap::value_parser!(u32).range(1..=60))]
    pub(crate) interval: u32,
    /// Most keys of each list [env: RATIOND_COUNT]
    #[arg(long, default_value_t = 20, value_name = "N", env = "RATIOND_COUNT", hide_env = true)]
    pub(crate) count: u32,
    /// What policies are sorted by [env: RATIOND_TOP_SORT]
    #[arg(long, value_enum, default_value = "rate", env = "RATIOND_TOP_SORT", hide_env = true)]
    pub(crate) sort: TopSort,
    /// Show only policies and keys with this in their names [env: RATIOND_TOP_FILTER]
    #[arg(long, value_name = "TEXT", env = "RATIOND_TOP_FILTER", hide_env = true)]
    pub(crate) filter: Option<String>,
}

/// Arguments of `denials`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DenialsArgs {
    /// Of this key alone [env: RATIOND_KEY]
    #[arg(long, value_name = "KEY", env = "RATIOND_KEY", hide_env = true)]
    pub(crate) key: Option<String>,
    /// Of this policy alone [env: RATIOND_POLICY_NAME]
    #[arg(long, value_name = "NAME", env = "RATIOND_POLICY_NAME", hide_env = true)]
    pub(crate) policy: Option<String>,
    /// Most lines [env: RATIOND_COUNT]
    #[arg(long, default_value_t = 100, value_name = "N", env = "RATIOND_COUNT", hide_env = true)]
    pub(crate) count: u32,
}

/// Arguments of `demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// Play a story without a terminal, and print a figure for each promise [env: RATIOND_DEMO_SCRIPT=true]
    #[arg(long, env = "RATIOND_DEMO_SCRIPT", hide_env = true)]
    pub(crate) script: bool,
    /// Nodes at the beginning [env: RATIOND_DEMO_NODES]
    #[arg(long, value_name = "N", default_value_t = 3, env = "RATIOND_DEMO_NODES", hide_env = true,
        value_parser = clap::value_parser!(u32).range(2..=5))]
    pub(crate) nodes: u32,
    /// Where tokens are counted [env: RATIOND_DEMO_STORE]
    #[arg(long, value_enum, default_value = "auto", env = "RATIOND_DEMO_STORE", hide_env = true)]
    pub(crate) store: StoreKind,
    /// About how many seconds the story takes [env: RATIOND_DEMO_SECONDS]
    #[arg(long, value_name = "N", default_value_t = 30, env = "RATIOND_DEMO_SECONDS", hide_env = true,
        value_parser = clap::value_parser!(u32).range(15..=3_600))]
    pub(crate) seconds: u32,
}

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The largest cost that applications ask for [env: RATIOND_COST]
    #[arg(long, default_value_t = 1, value_name = "N", env = "RATIOND_COST", hide_env = true)]
    pub(crate) cost: u64,
    /// Nodes that there will be [default: as many as are known] [env: RATIOND_NODES]
    #[arg(long, value_name = "N", env = "RATIOND_NODES", hide_env = true)]
    pub(crate) nodes: Option<u64>,
    /// End with 1 where there are warnings, too [env: RATIOND_STRICT=true]
    #[arg(long, env = "RATIOND_STRICT", hide_env = true)]
    pub(crate) strict: bool,
}

/// Arguments of `plan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// The new configuration; the present one is what --config names, or the default
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    /// What a daemon has recorded (record.file); once for each node [env: RATIOND_PLAN_FROM]
    #[arg(long, value_name = "FILE", required = true, env = "RATIOND_PLAN_FROM", hide_env = true)]
    pub(crate) from: Vec<PathBuf>,
    /// Nodes that there are; those without a recording are taken to have what the others have [env: RATIOND_NODES]
    #[arg(long, value_name = "N", default_value_t = 1, env = "RATIOND_NODES", hide_env = true)]
    pub(crate) nodes: usize,
    /// From a node to the store and back [env: RATIOND_PLAN_TRIP]
    #[arg(long, value_name = "TIME", default_value = "1ms", env = "RATIOND_PLAN_TRIP", hide_env = true)]
    pub(crate) trip: String,
    /// End with 1 if more of the checks would be newly denied, like 0.1% [env: RATIOND_MAX_NEWLY_DENIED]
    #[arg(long, value_name = "PERCENT", value_parser = super::percent::parse, env = "RATIOND_MAX_NEWLY_DENIED",
        hide_env = true)]
    pub(crate) max_newly_denied: Option<u64>,
    /// Most keys listed [env: RATIOND_COUNT]
    #[arg(long, default_value_t = 20, value_name = "N", env = "RATIOND_COUNT", hide_env = true)]
    pub(crate) count: u32,
}

/// Arguments of `size`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SizeArgs {
    /// Nodes of the fleet [env: RATIOND_NODES]
    #[arg(long, value_name = "N", default_value_t = 3, env = "RATIOND_NODES", hide_env = true,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) nodes: u32,
    /// Different keys that are in use [env: RATIOND_SIZE_KEYS]
    #[arg(long, value_name = "N", default_value_t = 10_000, env = "RATIOND_SIZE_KEYS", hide_env = true,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) keys: u64,
    /// Checks a second at all nodes together [env: RATIOND_SIZE_RATE]
    #[arg(long, value_name = "N", default_value_t = 10_000, env = "RATIOND_SIZE_RATE", hide_env = true,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate: u64,
    /// A limit of each key; once for each [env: RATIOND_SIZE_LIMIT]
    #[arg(long, value_name = "LIMIT", default_value = "100/1s burst 200", env = "RATIOND_SIZE_LIMIT", hide_env = true)]
    pub(crate) limit: Vec<String>,
    /// How unevenly keys are asked for: 0 evenly, 1 as words of a language (Zipf) [env: RATIOND_SIZE_ZIPF]
    #[arg(long, value_name = "S", default_value_t = 1.0, env = "RATIOND_SIZE_ZIPF", hide_env = true)]
    pub(crate) zipf: f64,
    /// From a node to the store and back [env: RATIOND_SIZE_TRIP]
    #[arg(long, value_name = "TIME", default_value = "1ms", env = "RATIOND_SIZE_TRIP", hide_env = true)]
    pub(crate) trip: String,
}

/// The commands of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say everything that is wrong with the configuration
    Check,
    /// Print each key's value that counts, and where it came from
    Show,
    /// Compare the policies of this configuration with those of the daemon: exit 0 the same, 1 different
    Diff,
    /// Print a complete, commented configuration file that equals the defaults
    Init,
    /// Print a JSON Schema of the configuration file, with which editors complete it
    Schema,
    /// Print policies and descriptors for a configuration of envoyproxy/ratelimit
    ImportEnvoy {
        /// Its YAML file, or the directory that its YAML files are in
        #[arg(value_name = "PATH")]
        file: PathBuf,
    },
}

/// The commands of `cert`.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Make a fleet's CA: ca.pem, which every node gets, and ca.key, which none does
    Ca(CaArgs),
    /// Make a node's certificate with the CA: node.pem and node.key
    Node(NodeArgs),
}

/// Arguments of `cert ca`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaArgs {
    /// The fleet's name, as in `fleet.name` [env: RATIOND_FLEET__NAME]
    #[arg(long, value_name = "NAME", env = "RATIOND_FLEET__NAME", hide_env = true)]
    pub(crate) fleet: String,
    /// Where to write the files [env: RATIOND_CERT_DIR]
    #[arg(long, default_value = ".", value_name = "DIR", env = "RATIOND_CERT_DIR", hide_env = true)]
    pub(crate) dir: PathBuf,
    /// Days until it lapses [env: RATIOND_CERT_DAYS]
    #[arg(long, default_value_t = 3650, value_name = "N", env = "RATIOND_CERT_DAYS", hide_env = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
}

/// Arguments of `cert node`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArgs {
    /// The fleet's name, as in `fleet.name` [env: RATIOND_FLEET__NAME]
    #[arg(long, value_name = "NAME", env = "RATIOND_FLEET__NAME", hide_env = true)]
    pub(crate) fleet: String,
    /// The node's name, as in `node.name`: no other node can use the certificate [env: RATIOND_CERT_NAME]
    #[arg(long, value_name = "NAME", env = "RATIOND_CERT_NAME", hide_env = true)]
    #[arg(required_unless_present = "any_name", conflicts_with = "any_name")]
    pub(crate) name: Option<String>,
    /// Let any node of the fleet use it, as for an image that many share [env: RATIOND_CERT_ANY_NAME=true]
    #[arg(long, env = "RATIOND_CERT_ANY_NAME", hide_env = true)]
    pub(crate) any_name: bool,
    /// Where to write the files [env: RATIOND_CERT_DIR]
    #[arg(long, default_value = ".", value_name = "DIR", env = "RATIOND_CERT_DIR", hide_env = true)]
    pub(crate) dir: PathBuf,
    /// Where ca.pem and ca.key are [default: where the files go] [env: RATIOND_CERT_CA_DIR]
    #[arg(long, value_name = "DIR", env = "RATIOND_CERT_CA_DIR", hide_env = true)]
    pub(crate) ca_dir: Option<PathBuf>,
    /// Days until it lapses, or until its CA does if that is sooner [env: RATIOND_CERT_DAYS]
    #[arg(long, default_value_t = 365, value_name = "N", env = "RATIOND_CERT_DAYS", hide_env = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
}
