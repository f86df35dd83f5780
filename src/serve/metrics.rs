//! What the daemon's metrics are called and where their numbers come from.
//!
//! No label ever holds a key: labels are policies, words of fixed lists, and addresses of store servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::exposition::{Exposition, Type};
use super::gossip::FleetStatus;
use super::lending::LendingStats;
use super::peer_outcome::PeerOutcome;
use super::process::ProcessUse;
use super::sketch::Seen;
use super::stats::Stats;
use super::thread_stats::DURATION_BOUNDS;
use crate::store::redis::{BreakerState, LATENCY_BOUNDS, ServerView, Snapshot};

/// The ranks of the hottest keys that are exported for each policy, without the keys' names.
const RANKS: [&str; 3] = ["1", "2", "3"];

/// Everything that a scrape shows.
#[derive(Debug)]
pub struct Scrape<'a> {
    /// Counts of checks, keys and connections.
    pub stats: &'a Stats,
    /// Counts of the shared store, if there is one.
    pub store: Option<&'a Snapshot>,
    /// The fleet, if this node is in one.
    pub fleet: Option<&'a FleetStatus>,
    /// Per policy, what this node leases at most at once.
    pub local_limits: &'a [(Arc<str>, u64)],
    /// Whether the last reload was taken.
    pub reload_successful: bool,
    /// Configurations taken since the start, the first included.
    pub generation: u64,
    /// The daemon's version.
    pub version: &'a str,
    /// Log lines left out because there were too many like them.
    pub suppressed: u64,
    /// Log lines dropped because the reader of the log did not keep up.
    pub dropped: u64,
    /// The keys that were checked most of late, the most first.
    pub hot: &'a [Seen],
    /// What candidates have admitted and denied, by policy.
    pub tried: &'a BTreeMap<Arc<str>, [u64; 2]>,
    /// What the operating system says of the process, if it does.
    pub process: Option<&'a ProcessUse>,
}

impl Scrape<'_> {
    /// The Prometheus text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        self.checks(&mut out);
        self.hot_keys(&mut out);
        self.candidates(&mut out);
        self.leases(&mut out);
        self.keys(&mut out);
        self.connections(&mut out);
        if let Some(store) = self.store {
            store_calls(&mut out, store);
            store_servers(&mut out, store);
        }
        if let Some(fleet) = self.fleet {
            gossip(&mut out, fleet);
            if let Some(counts) = &fleet.lending {
                lending(&mut out, counts);
            }
        }
        self.daemon(&mut out);
        if let Some(process) = self.process {
            process_use(&mut out, process);
        }
        out.finish()
    }

    fn checks(&self, out: &mut Exposition) {
        let name = "rationd_checks_total";
        out.family(name, Type::Counter, "Checks decided, by policy, verdict, reason and source.");
        for (policy, stats) in self.stats.asked() {
            for (verdict, reason, source, count) in stats.checks() {
                let labels = [
                    ("policy", &**policy),
                    ("verdict", verdict.as_str()),
                    ("reason", reason.as_str()),
                    ("source", source.as_str()),
                ];
                out.sample(name, &labels, count);
            }
        }
        let durations = &self.stats.durations;
        let help = "Seconds from a check's bytes to its answer, within the daemon.";
        let sum = durations.sum_us as f64 / 1e6;
        out.histogram("rationd_check_duration_seconds", help, &DURATION_BOUNDS, &durations.counts, sum);
        let name = "rationd_checks_waited_total";
        out.family(name, Type::Counter, "Checks that had to wait for the store.");
        for (policy, stats) in self.stats.asked() {
            out.sample(name, &[("policy", policy)], stats.parked);
        }
    }

    /// How many admissions left little of their limit, and how many checks the hottest keys get: by policy and rank,
    /// never by key.
    fn hot_keys(&self, out: &mut Exposition) {
        let name = "rationd_checks_near_limit_total";
        out.family(name, Type::Counter, "Admissions that left a tenth of the limit or less.");
        for (policy, stats) in self.stats.asked() {
            out.sample(name, &[("policy", policy)], stats.near);
        }
        let name = "rationd_hot_key_checks";
        out.family(
            name,
            Type::Gauge,
            "Checks in the last 10 to 20 seconds of the keys that are checked most, by rank.",
        );
        for (policy, _) in self.stats.asked() {
            let of_policy = self.hot.iter().filter(|seen| seen.name.policy == *policy);
            for (rank, seen) in RANKS.iter().zip(of_policy) {
                out.sample(name, &[("policy", policy), ("rank", rank)], seen.times);
            }
        }
    }

    /// What limits on trial would have done.
    fn candidates(&self, out: &mut Exposition) {
        let name = "rationd_candidate_checks_total";
        out.family(
            name,
            Type::Counter,
            "Checks by what a policy's candidate limits would have said; nobody is denied by them.",
        );
        for (policy, counts) in self.tried {
            for (verdict, count) in ["allow", "deny"].iter().zip(counts) {
                out.sample(name, &[("policy", policy), ("verdict", verdict)], *count);
            }
        }
    }

    fn leases(&self, out: &mut Exposition) {
        let name = "rationd_lease_tokens_total";
        out.family(name, Type::Counter, "Leased tokens by what became of them.");
        for (policy, stats) in &self.stats.policies {
            for (fate, count) in [("spent", stats.spent), ("returned", stats.returned), ("expired", stats.expired)] {
                out.sample(name, &[("policy", policy), ("fate", fate)], count);
            }
        }
        let name = "rationd_lease_granted_tokens_total";
        out.family(name, Type::Counter, "Tokens that the store lent.");
        for (policy, stats) in &self.stats.policies {
            out.sample(name, &[("policy", policy)], stats.granted);
        }
        let name = "rationd_lease_batch_tokens";
        out.family(name, Type::Gauge, "Tokens asked for in the latest refill.");
        for (policy, stats) in &self.stats.policies {
            out.sample(name, &[("policy", policy)], stats.batch);
        }
        let name = "rationd_prefilter_limit_tokens";
        out.family(name, Type::Gauge, "What this node leases at most at once of a limit that all nodes use.");
        for (policy, tokens) in self.local_limits {
            out.sample(name, &[("policy", policy)], tokens);
        }
        let waiters = self.stats.shards.waiting;
        out.single("rationd_lease_waiters", Type::Gauge, "Checks that wait for the store now.", waiters);
    }

    fn keys(&self, out: &mut Exposition) {
        let shards = &self.stats.shards;
        out.single("rationd_keys", Type::Gauge, "Keys held.", shards.keys);
        out.single("rationd_keys_evicted_total", Type::Counter, "Keys evicted or forgotten when idle.", shards.evicted);
        let name = "rationd_degraded";
        out.family(name, Type::Gauge, "Keys that are decided without the store, by reason.");
        out.sample(name, &[("reason", "store")], shards.degraded);
        let help = "Grants of a store that had lost what it knew of a key.";
        out.single("rationd_store_lost_epochs_total", Type::Counter, help, shards.lost_epochs);
        let help = "Stored values that made no sense and were taken as missing.";
        out.single("rationd_store_damaged_values_total", Type::Counter, help, shards.damaged);
    }

    fn connections(&self, out: &mut Exposition) {
        let stats = self.stats;
        out.single("rationd_connections", Type::Gauge, "Connections open now.", stats.connections);
        let name = "rationd_connections_total";
        out.family(
            name,
            Type::Counter,
            "Connections by whether they were let in, and those closed as their clients did not read.",
        );
        out.sample(name, &[("outcome", "accepted")], stats.accepted);
        out.sample(name, &[("outcome", "refused")], stats.refused);
        out.sample(name, &[("outcome", "stalled")], stats.stalled);
        let help = "Bytes of replies and transactions that wait for clients, beside a few KiB each.";
        out.single("rationd_connections_kept_bytes", Type::Gauge, help, stats.kept);
        out.single("rationd_commands_total", Type::Counter, "Commands understood or refused.", stats.commands);
        out.single("rationd_command_errors_total", Type::Counter, "Error replies.", stats.errors);
        let help = "Store calls without an outcome yet.";
        out.single("rationd_store_calls_in_flight", Type::Gauge, help, stats.calls_in_flight);
    }

    fn daemon(&self, out: &mut Exposition) {
        let help = "Whether the last reload of the configuration was taken.";
        let successful = u8::from(self.reload_successful);
        out.single("rationd_config_last_reload_successful", Type::Gauge, help, successful);
        let help = "Configurations taken since the start.";
        out.single("rationd_config_generation", Type::Gauge, help, self.generation);
        let help = "Log lines left out because there were too many like them.";
        out.single("rationd_log_lines_suppressed_total", Type::Counter, help, self.suppressed);
        let help = "Log lines dropped because whoever reads them did not keep up.";
        out.single("rationd_log_lines_dropped_total", Type::Counter, help, self.dropped);
        out.family("rationd_build_info", Type::Gauge, "Always 1.");
        out.sample("rationd_build_info", &[("version", self.version)], 1);
    }
}

/// What nodes ask each other for.
fn lending(out: &mut Exposition, lending: &LendingStats) {
    let outcomes = |out: &mut Exposition, name: &str, help: &str, counts: &[u64]| {
        out.family(name, Type::Counter, help);
        for (outcome, count) in PeerOutcome::ALL.iter().zip(counts) {
            out.sample(name, &[("outcome", outcome.as_str())], count);
        }
    };
    outcomes(out, "rationd_peer_asks_total", "Asks of this node to the owners of keys, by outcome.", &lending.asked);
    let help = "Asks of peers that this node has answered, by outcome.";
    outcomes(out, "rationd_peer_answers_total", help, &lending.answered);
    let durations = &lending.durations;
    let (help, sum) = ("Seconds until a peer answered.", durations.sum_us as f64 / 1e6);
    out.histogram("rationd_peer_ask_duration_seconds", help, &DURATION_BOUNDS, &durations.counts, sum);
}

/// Under the names that all exporters give them.
fn process_use(out: &mut Exposition, process: &ProcessUse) {
    let help = "Seconds on processors, the kernel's on the daemon's behalf included.";
    out.single("process_cpu_seconds_total", Type::Counter, help, process.cpu.as_secs_f64());
    let help = "Bytes of memory that are resident.";
    out.single("process_resident_memory_bytes", Type::Gauge, help, process.resident);
    out.single("process_open_fds", Type::Gauge, "Descriptors that are open.", process.open_files);
    if let Some(most) = process.most_open_files {
        out.single("process_max_fds", Type::Gauge, "Descriptors that may be open.", most);
    }
    let help = "Seconds since 1970 when the daemon began.";
    out.single("process_start_time_seconds", Type::Gauge, help, process.started.0 as f64 / 1e6);
}

fn gossip(out: &mut Exposition, fleet: &FleetStatus) {
    let name = "rationd_fleet_nodes";
    out.family(name, Type::Gauge, "Nodes of the fleet; missed ones are gone without having left.");
    for (state, count) in fleet.nodes() {
        out.sample(name, &[("state", state)], count);
    }
    let stats = &fleet.stats;
    let name = "rationd_gossip_bytes_total";
    out.family(name, Type::Counter, "Bytes of frames from and to peers.");
    out.sample(name, &[("direction", "in")], stats.bytes_in);
    out.sample(name, &[("direction", "out")], stats.bytes_out);
    let name = "rationd_gossip_frames_total";
    out.family(name, Type::Counter, "Frames from and to peers.");
    out.sample(name, &[("direction", "in")], stats.frames_in);
    out.sample(name, &[("direction", "out")], stats.frames_out);
    let name = "rationd_gossip_bad_frames_total";
    out.family(name, Type::Counter, "Frames from peers that were not taken, by what was wrong.");
    for (why, count) in [("oversized", stats.oversized), ("malformed", stats.malformed + fleet.bad)] {
        out.sample(name, &[("why", why)], count);
    }
    let name = "rationd_gossip_frames_dropped_total";
    out.family(name, Type::Counter, "Frames that a full queue or a lost peer took.");
    out.sample(name, &[("direction", "in")], stats.dropped_in);
    out.sample(name, &[("direction", "out")], stats.dropped_out);
    let help = "Seconds since the quietest peer was heard.";
    out.single("rationd_gossip_staleness_seconds", Type::Gauge, help, fleet.staleness.0 as f64 / 1e6);
    out.single("rationd_peer_connections", Type::Gauge, "Connections to peers.", stats.connections);
    let help = "Connections of peers that were refused: a certificate, a fleet or a name that is not ours.";
    out.single("rationd_peers_refused_total", Type::Counter, help, stats.refused);
    let help = "Seconds until this node's certificate expires, in whole days; negative where it has.";
    let left = stats.certificate_days_left * 24 * 60 * 60;
    out.single("rationd_certificate_remaining_seconds", Type::Gauge, help, left);
}

fn store_calls(out: &mut Exposition, store: &Snapshot) {
    let name = "rationd_store_calls_total";
    out.family(name, Type::Counter, "Calls to the store by operation and outcome.");
    for (op, outcome, count) in &store.calls {
        out.sample(name, &[("op", op), ("outcome", outcome.label())], count);
    }
    let help = "Seconds until the store answered.";
    let sum = store.latency_sum.as_secs_f64();
    out.histogram("rationd_store_call_duration_seconds", help, &LATENCY_BOUNDS, &store.latency, sum);
    let name = "rationd_store_redirects_total";
    out.family(name, Type::Counter, "MOVED and ASK replies.");
    out.sample(name, &[("kind", "moved")], store.moved);
    out.sample(name, &[("kind", "ask")], store.ask);
    let counters = [
        ("rationd_store_scripts_sent_total", "Times that a server did not know a script.", store.noscript),
        ("rationd_store_unconfirmed_grants_total", "Grants that no replica confirmed in time.", store.unconfirmed),
        ("rationd_store_rejected_calls_total", "Calls that a server refused: see the log.", store.rejected),
        ("rationd_store_map_refreshes_total", "Times that the map of slots was read.", store.refreshes),
        ("rationd_store_dials_total", "Connections opened or tried.", store.dials),
        ("rationd_store_breaker_opened_total", "Times that a server was given up for a while.", store.breaker_opened),
    ];
    for (name, help, count) in counters {
        out.single(name, Type::Counter, help, count);
    }
}

fn store_servers(out: &mut Exposition, store: &Snapshot) {
    let name = "rationd_store_server_up";
    out.family(name, Type::Gauge, "Whether calls to this server pass.");
    for server in &store.servers {
        let up = server.breaker == BreakerState::Closed && server.away_since.is_none();
        out.sample(name, &[("server", &server.address)], u8::from(up));
    }
    type Gauge = (&'static str, &'static str, fn(&ServerView) -> u64);
    let gauges: [Gauge; 3] = [
        ("rationd_store_window", "Calls that may be at this server at a time, for now.", |server| server.window.into()),
        ("rationd_store_out", "Calls that are at this server.", |server| server.out.into()),
        ("rationd_store_waiting", "Calls that wait until they may go to this server.", |server| server.waiting as u64),
    ];
    for (name, help, read) in gauges {
        out.family(name, Type::Gauge, help);
        for server in &store.servers {
            out.sample(name, &[("server", &server.address)], read(server));
        }
    }
    let name = "rationd_store_replicas";
    out.family(name, Type::Gauge, "Replicas in touch with this server.");
    for server in &store.servers {
        if let Some(replicas) = server.replicas {
            out.sample(name, &[("server", &server.address)], replicas);
        }
    }
    let name = "rationd_store_may_evict";
    out.family(name, Type::Gauge, "1 where maxmemory-policy is not noeviction: counters may vanish.");
    for server in &store.servers {
        if let Some(policy) = &server.maxmemory_policy {
            out.sample(name, &[("server", &server.address)], u8::from(policy != "noeviction"));
        }
    }
}
