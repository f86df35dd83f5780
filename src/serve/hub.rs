//! What all data threads share: the node, the policies in force, the doors, and who answers what the
//! command line asks.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;

use super::gossip::{Circle, Gossip};
use super::inquiry::Inquiry;
use super::listing;
use super::mailbox::{Answer, Mailbox, Waiter};
use super::node::Node;
use super::scripts::Scripts;
use super::tally::{Durations, Tally};
use super::worker::Worker;
use crate::core::holds::Holds;
use crate::core::policy::{Plan, PolicySet};
use crate::core::shard::KeyInfo;
use crate::core::time::Instant;
use crate::wire::command::Admin;
use crate::wire::reply::{Protocol, Writer};

/// Reads the configuration again: what to tell about it, or why the old one stays.
pub type Reload = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// Bounds of the socket.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections: usize,
    /// Most connections of one uid.
    pub connections_per_uid: usize,
    /// Uids that may connect; empty: whoever may open the socket.
    pub allow_uids: Vec<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 10_000, connections_per_uid: 1_024, allow_uids: Vec::new() }
    }
}

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
    /// The data threads.
    pub(super) workers: Vec<Arc<Worker>>,
    /// The fleet, once it is joined.
    pub(super) gossip: OnceLock<Arc<Gossip>>,
    pub(super) control: tokio::runtime::Handle,
    pub(super) reload: Option<Reload>,
    /// Estimates that have yet to be settled.
    pub(super) holds: Mutex<Holds<Inquiry>>,
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
        let control = self.control.clone();
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
            waiter.answer(Answer::Reply(reply));
        });
    }

    /// Estimates that have yet to be settled.
    pub(super) fn holds(&self) -> MutexGuard<'_, Holds<Inquiry>> {
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
            Admin::Keys { most } => Ok(listing::keys(&self.keys(most.min(100_000)))),
            Admin::Policies => Ok(listing::policies(&self.policies.load())),
            Admin::Peers => match self.circle() {
                Some(circle) => Ok(listing::peers(&circle)),
                None => Err("this node is alone: its configuration has no [fleet]".into()),
            },
            Admin::Stats => Ok(listing::stats(&self.stats())),
        }
    }

    /// Up to `most` keys that this node knows.
    #[must_use]
    pub fn keys(&self, most: usize) -> Vec<KeyInfo> {
        let policies = self.policies.load();
        self.node.keys(self.node.clock.now(), most, |policy, key| match policies.get(policy)?.plan(key) {
            Plan::Limited(rule) => Some(rule.clone()),
            _ => None,
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
            accepted: self.doors.accepted.load(Ordering::Relaxed),
            refused: self.doors.refused.load(Ordering::Relaxed),
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
    /// Store calls in flight.
    pub calls_in_flight: u64,
}

/// Why a connection is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many are open as may be, in all or of this uid.
    TooMany,
    /// The uid is not on the list.
    Uid,
}

impl Refusal {
    /// The reply that says so.
    #[must_use]
    pub fn as_reply(self) -> &'static [u8] {
        match self {
            Self::TooMany => b"-ERR max number of clients reached\r\n",
            Self::Uid => b"-NOPERM this uid may not connect: see listen.allow_uids\r\n",
        }
    }
}

/// Counts who is in, and decides who may come in.
#[derive(Debug)]
pub struct Doors {
    limits: Limits,
    inside: Mutex<Inside>,
    next_id: AtomicU64,
    accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct Inside {
    mailboxes: HashMap<u64, Weak<Mailbox>>,
    per_uid: HashMap<Option<u32>, usize>,
}

/// A connection's place inside; given back when dropped.
#[derive(Debug)]
pub struct Pass {
    hub: Arc<Hub>,
    /// The connection's number.
    pub id: u64,
    /// Whose it is, where that can be told.
    pub uid: Option<u32>,
    /// Its mailbox.
    pub mailbox: Arc<Mailbox>,
}

impl Doors {
    /// Nobody is in.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            inside: Mutex::default(),
            next_id: AtomicU64::new(1),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Lets a peer in, or says why not. `None`: a peer over TCP, who has no uid to judge by; all of them together
    /// may have as many connections as one uid.
    ///
    /// # Errors
    /// There are too many, or this one may not.
    pub fn admit(hub: &Arc<Hub>, uid: Option<u32>) -> Result<Pass, Refusal> {
        let doors = &hub.doors;
        let mut inside = doors.lock();
        let of_uid = inside.per_uid.get(&uid).copied().unwrap_or(0);
        let allowed = &doors.limits.allow_uids;
        let refusal = if uid.is_some_and(|uid| !allowed.is_empty() && !allowed.contains(&uid)) {
            Some(Refusal::Uid)
        } else if inside.mailboxes.len() >= doors.limits.connections || of_uid >= doors.limits.connections_per_uid {
            Some(Refusal::TooMany)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            doors.refused.fetch_add(1, Ordering::Relaxed);
            return Err(refusal);
        }
        doors.accepted.fetch_add(1, Ordering::Relaxed);
        let id = doors.next_id.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::new(Mailbox::default());
        inside.mailboxes.insert(id, Arc::downgrade(&mailbox));
        *inside.per_uid.entry(uid).or_default() += 1;
        Ok(Pass { hub: hub.clone(), id, uid, mailbox })
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.lock().mailboxes.len()
    }

    /// Whether connections are to close once what has come is answered.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells all connections to close once what has come is answered.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let all: Vec<_> = self.lock().mailboxes.values().filter_map(Weak::upgrade).collect();
        for mailbox in all {
            mailbox.nudge();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Drives a connection on; when the daemon stops, `leave` tells it to take nothing more.
    pub fn drive<C: Future>(
        &self,
        cx: &mut Context<'_>,
        mut connection: Pin<&mut C>,
        leave: impl FnOnce(Pin<&mut C>),
    ) -> Poll<C::Output> {
        self.mailbox.listen(cx.waker());
        if self.hub.doors.is_stopping() {
            leave(connection.as_mut());
        }
        connection.poll(cx)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.hub.doors.lock();
        inside.mailboxes.remove(&self.id);
        if let Some(count) = inside.per_uid.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                inside.per_uid.remove(&self.uid);
            }
        }
    }
}
