//! The state that all data threads share: the node, the policies in force, admission, and counts.
//!
//! Knows no protocol. Called by everything that answers requests.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;

use super::admission::Admission;
use super::denial_log::DenialLog;
use super::fleet_look::FleetLook;
use super::gossip::{FleetGossip, FleetStatus};
use super::held::Held;
use super::history::History;
use super::node::Node;
use super::node::counts::Cursor;
use super::owned::{Counts, OwnedKeys};
use super::script_cache::ScriptCache;
use super::stats::Stats;
use super::store_dispatch::RemoteStore;
use super::tcp::RemoteAccess;
use super::thread::Worker;
use super::thread_stats::{Durations, ThreadStats};
use super::vital::Vitals;
use crate::core::holds::Holds;
use crate::core::policy::{Plan, PolicySet};
use crate::core::shard::KeyInfo;
use crate::core::time::Instant;
use crate::store::redis::Snapshot;

/// What is done with a configuration that was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadMode {
    /// It is put in force.
    Take,
    /// It is only compared with the one in force.
    DryRun,
}

/// Reloads the configuration. Returns the answer to the client, or why the old configuration stays in force.
pub type Reload = Arc<dyn Fn(ReloadMode) -> Result<String, String> + Send + Sync>;

/// The shared state of a daemon.
pub struct ServerState {
    /// The shards.
    pub node: Arc<Node>,
    /// The policies in force.
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// Admission of connections.
    pub admission: Arc<Admission>,
    /// When the daemon started.
    pub started: Instant,
    /// What was denied of late.
    pub denials: DenialLog,
    /// The last minutes in figures.
    pub history: History,
    /// The tasks that must show that they live.
    pub vitals: Vitals,
    /// Who may use the TCP address.
    pub remote: Arc<ArcSwap<RemoteAccess>>,
    /// The data threads.
    pub(super) workers: Vec<Arc<Worker>>,
    /// The fleet, once this node has joined it.
    pub(super) gossip: OnceLock<Arc<FleetGossip>>,
    /// Looks at its nodes.
    pub(super) fleet_look: OnceLock<FleetLook>,
    /// The store, if it is outside of this process.
    pub(super) store: Option<Arc<dyn RemoteStore>>,
    pub(super) control: tokio::runtime::Handle,
    pub(super) reload: Option<Reload>,
    /// Holds that have not been settled yet.
    pub(super) holds: Mutex<Holds<Held>>,
    /// Lua scripts of clients that were recognized.
    pub(super) scripts: Mutex<ScriptCache>,
    /// Counts of everything that does not run on a data thread.
    pub(super) control_stats: Mutex<ThreadStats>,
    /// How many keys each node owned a moment ago.
    pub(super) owned: OwnedKeys,
    /// Lets one command of the command line run at a time.
    pub(super) admin_turn: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerState").field("admission", &self.admission).finish_non_exhaustive()
    }
}

impl ServerState {
    /// Holds that have not been settled yet.
    pub(super) fn holds(&self) -> MutexGuard<'_, Holds<Held>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lua scripts of clients that were recognized.
    pub(super) fn scripts(&self) -> MutexGuard<'_, ScriptCache> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many keys each node owns of those that this one knows, as of a moment ago.
    pub(super) fn owned_keys(&self) -> Counts {
        let now = || self.node.clock.now();
        self.owned.counts(now, || self.node.count_owned(now()))
    }

    /// Counts of everything that does not run on a data thread.
    pub(super) fn control_stats(&self) -> MutexGuard<'_, ThreadStats> {
        self.control_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to `most` keys of this node, from a cursor on, each with the cursor after it.
    #[must_use]
    pub fn keys(&self, cursor: u128, most: usize) -> Vec<(Cursor, KeyInfo)> {
        let policies = self.policies.load();
        self.node.keys(self.node.clock.now(), Cursor::of(cursor), most, |policy, key| {
            match policies.get(policy)?.plan(key) {
                Plan::Limited(rule) => Some(rule.clone()),
                _ => None,
            }
        })
    }

    /// What the store's client counts; `None` for the embedded store.
    #[must_use]
    pub fn store_snapshot(&self) -> Option<Snapshot> {
        self.store.as_ref()?.snapshot()
    }

    /// The fleet as this node sees it; `None` when it is in none.
    #[must_use]
    pub fn fleet_status(&self) -> Option<FleetStatus> {
        self.gossip.get().map(|gossip| gossip.fleet_status(self.node.clock.now()))
    }

    /// For each policy, the most tokens that this node leases of its tightest limit if the whole fleet uses the key:
    /// an equal part.
    #[must_use]
    pub fn local_limits(&self) -> Vec<(Arc<str>, u64)> {
        let nodes = self.fleet_status().map_or(1, |fleet| u64::from(fleet.view.live)).max(1);
        let policies = self.policies.load();
        let limits = policies.iter().filter_map(|policy| {
            let Plan::Limited(rule) = &policy.plan else { return None };
            let smallest = rule.limits.iter().map(|limit| limit.capacity()).min()?;
            Some((policy.name.clone(), smallest.div_ceil(nodes)))
        });
        limits.collect()
    }

    /// Commands that each data thread has run.
    #[must_use]
    pub fn commands_of_threads(&self) -> Vec<u64> {
        self.workers.iter().map(|worker| worker.lock().stats.commands).collect()
    }

    /// All counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (shards, mut policies) = self.node.stats();
        let (mut commands, mut errors, mut durations) = (0, 0, Durations::default());
        let mut add = |stats: &ThreadStats| {
            commands += stats.commands;
            errors += stats.errors;
            durations.merge(&stats.durations);
            for (name, stats) in &stats.policies {
                policies.entry(name.clone()).or_default().add(stats);
            }
            for (name, stats) in &stats.shadows {
                policies.entry(name.clone()).or_default().turn_to_shadow(stats);
            }
        };
        self.workers.iter().for_each(|worker| add(&worker.lock().stats));
        add(&self.control_stats());
        Stats {
            policies: policies.into_iter().collect(),
            shards,
            commands,
            errors,
            durations,
            connections: self.admission.open() as u64,
            accepted: self.admission.accepted(),
            refused: self.admission.refused(),
            stalled: self.admission.stalled(),
            kept: self.admission.kept(),
            calls_in_flight: self.node.in_flight() as u64,
        }
    }
}
