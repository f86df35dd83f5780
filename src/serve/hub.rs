//! What all data threads share: the node, the policies in force, the doors, and who answers what the
//! command line asks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;

pub use super::doors::{Doors, Limits, Pass, Refusal};
use super::gossip::{Circle, Gossip};
use super::listing;
use super::mailbox::{Answer, Promise, Waiter};
use super::node::{Cursor, Node};
use super::requests::Held;
use super::scripts::Scripts;
use super::tally::{Durations, Tally};
use super::vital::Vitals;
use super::worker::Worker;
use crate::core::holds::Holds;
use crate::core::policy::{Plan, PolicySet};
use crate::core::shard::KeyInfo;
use crate::core::time::Instant;
use crate::wire::command::Admin;
use crate::wire::reply::{Protocol, Writer};

/// Reads the configuration again: what to tell about it, or why the old one stays.
pub type Reload = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// The shared things.
pub struct Hub {
    /// The shards.
    pub node: Arc<Node>,
    /// The policies in force.
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// Who may come in, and how many are in.
    pub doors: Doors,
    /// When the daemon began.
    pub started: Instant,
    /// Who is to give signs of life.
    pub vitals: Vitals,
    /// The data threads.
    pub(super) workers: Vec<Arc<Worker>>,
    /// The fleet, once it is joined.
    pub(super) gossip: OnceLock<Arc<Gossip>>,
    pub(super) control: tokio::runtime::Handle,
    pub(super) reload: Option<Reload>,
    /// Estimates that have yet to be settled.
    pub(super) holds: Mutex<Holds<Held>>,
    /// Scripts that were understood.
    pub(super) scripts: Mutex<Scripts>,
    /// What is counted apart from the data threads.
    pub(super) aside: Mutex<Tally>,
    /// One question of the command line at a time.
    pub(super) desk: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("doors", &self.doors).finish_non_exhaustive()
    }
}

impl Hub {
    /// Answers a question of the command line from the control runtime.
    pub fn answer_admin(self: Arc<Self>, admin: Admin, waiter: Waiter) {
        let (control, promise) = (self.control.clone(), Promise::to(waiter));
        control.spawn(async move {
            let _turn = self.desk.lock().await;
            let hub = self.clone();
            let answered = tokio::task::spawn_blocking(move || hub.admin(admin)).await;
            let mut reply = Vec::new();
            let mut writer = Writer::new(&mut reply, Protocol::Two);
            match answered {
                Ok(Ok(text)) => writer.bulk(text.as_bytes()),
                Ok(Err(problem)) => writer.error(&format!("ERR {problem}")),
                Err(_) => writer.error("ERR the answer could not be made: see the daemon's log"),
            }
            promise.keep(Answer::Reply(reply));
        });
    }

    /// Estimates that have yet to be settled.
    pub(super) fn holds(&self) -> MutexGuard<'_, Holds<Held>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scripts that were understood.
    pub(super) fn scripts(&self) -> MutexGuard<'_, Scripts> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to count apart from the data threads.
    pub(super) fn aside(&self) -> MutexGuard<'_, Tally> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admin(&self, admin: Admin) -> Result<String, String> {
        match admin {
            Admin::Reload => match &self.reload {
                Some(reload) => reload(),
                None => Err("this daemon was started without a configuration to read again".into()),
            },
            Admin::Keys { cursor, most } => {
                Ok(listing::keys(&self.keys(cursor.unwrap_or(0), most), cursor.is_some(), most))
            }
            Admin::Policies => Ok(listing::policies(&self.policies.load())),
            Admin::Peers => match self.circle() {
                Some(circle) => Ok(listing::peers(&circle)),
                None => Err("this node is alone: its configuration has no [fleet]".into()),
            },
            Admin::Stats => Ok(listing::stats(&self.stats())),
        }
    }

    /// Up to `most` keys that this node knows, from a cursor on, each with the cursor behind it.
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

    /// The fleet as this node sees it; `None`: it is in none.
    #[must_use]
    pub fn circle(&self) -> Option<Circle> {
        self.gossip.get().map(|gossip| gossip.circle(self.node.clock.now()))
    }

    /// What this node leases of each policy's tightest limit at most, if all of the fleet use the key: its
    /// even part.
    #[must_use]
    pub fn local_limits(&self) -> Vec<(Arc<str>, u64)> {
        let nodes = self.circle().map_or(1, |circle| u64::from(circle.view.live)).max(1);
        let policies = self.policies.load();
        let limits = policies.iter().filter_map(|policy| {
            let Plan::Limited(rule) = &policy.plan else { return None };
            let smallest = rule.limits.iter().map(|limit| limit.capacity()).min()?;
            Some((policy.name.clone(), smallest.div_ceil(nodes)))
        });
        limits.collect()
    }

    /// Everything that is counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (shards, mut policies) = self.node.stats();
        let (mut commands, mut errors, mut durations) = (0, 0, Durations::default());
        let mut add = |tally: &Tally| {
            commands += tally.commands;
            errors += tally.errors;
            durations.merge(&tally.durations);
            for (name, stats) in &tally.policies {
                policies.entry(name.clone()).or_default().add(stats);
            }
            for (name, stats) in &tally.shadows {
                policies.entry(name.clone()).or_default().turn_to_shadow(stats);
            }
        };
        self.workers.iter().for_each(|worker| add(&worker.lock().tally));
        add(&self.aside());
        Stats {
            policies: policies.into_iter().collect(),
            shards,
            commands,
            errors,
            durations,
            connections: self.doors.open() as u64,
            accepted: self.doors.accepted(),
            refused: self.doors.refused(),
            stalled: self.doors.stalled(),
            kept: self.doors.kept(),
            calls_in_flight: self.node.in_flight() as u64,
        }
    }
}

/// What a daemon has counted since it began.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Per policy.
    pub policies: std::collections::BTreeMap<Arc<str>, crate::core::stats::PolicyStats>,
    /// All shards together.
    pub shards: crate::core::stats::ShardStats,
    /// Commands understood or refused.
    pub commands: u64,
    /// Error replies.
    pub errors: u64,
    /// How long checks took.
    pub durations: Durations,
    /// Connections open now.
    pub connections: u64,
    /// Connections ever let in.
    pub accepted: u64,
    /// Connections turned away: too many, or a uid that may not.
    pub refused: u64,
    /// Connections closed since their clients read nothing.
    pub stalled: u64,
    /// Bytes of replies and transactions that wait for clients.
    pub kept: u64,
    /// Store calls in flight.
    pub calls_in_flight: u64,
}
