//! The slot map: which server owns which key, and the task that keeps it up to date.
//!
//! A call reads the map without waiting. The task reads `CLUSTER SLOTS` anew after a MOVED, when a server fails (from
//! another server, since the failed one cannot answer), while slots have no owner, and every half minute. It connects to a new owner of slots
//! before the map names that owner, so that no call waits for the connection. A single server is a map with one
//! owner. Knows nothing of scripts. Called by `redis.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Pipeline;
use tokio::time::{sleep, timeout};

use super::address::Address;
use super::link::{DialOptions, Link};
use super::master::Master;
use super::options::Confirm;
use super::server::Shared;
use super::slots::{self, Range, SLOTS};
use crate::clock;

/// Time between two readings of the map while all is well; up to as much is added at random, so that nodes do not read it together.
const ROUTINE: Duration = Duration::from_secs(30);

/// Time between two readings while a server is away, or nobody owns some slots, as in the middle of a failover. No server is asked for keys of
/// such slots, so none could answer that they have moved.
const WATCHFUL: Duration = Duration::from_millis(250);

/// Least time between any two readings, however many calls are redirected.
const SPACING: Duration = Duration::from_millis(50);

/// Longest wait for one server's map, and for a connection to a server that has it.
const TELLING: Duration = Duration::from_millis(500);

/// Longest wait for connections to the servers of a new map before the map is used.
const CONNECTING: Duration = Duration::from_millis(250);

/// Servers that one reading asks, one after another.
const ASKED: usize = 2;

const NOBODY: u16 = u16::MAX;

/// Who owns which slot.
pub(crate) struct SlotMap {
    owners: Box<[u16]>,
    pub(crate) masters: Vec<Arc<Master>>,
    replicas: Vec<Address>,
}

impl SlotMap {
    fn empty() -> Self {
        Self { owners: vec![NOBODY; SLOTS].into(), masters: Vec::new(), replicas: Vec::new() }
    }

    fn single(master: Arc<Master>) -> Self {
        Self { owners: vec![0; SLOTS].into(), masters: vec![master], replicas: Vec::new() }
    }

    /// The owner of `slot`.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<Master>> {
        self.masters.get(usize::from(self.owners[usize::from(slot)]))
    }

    /// Every slot has an owner, and each of them takes calls.
    fn is_well(&self) -> bool {
        !self.owners.contains(&NOBODY) && !self.masters.iter().any(|master| master.is_open())
    }
}

/// The servers of one store.
pub(crate) struct Cluster {
    pub(crate) shared: Arc<Shared>,
    map: ArcSwap<SlotMap>,
    /// Every server that owns slots or did lately, so that a redirect finds its connection.
    known: Mutex<BTreeMap<Address, Arc<Master>>>,
    seeds: Vec<Address>,
    confirm: Confirm,
}

impl Cluster {
    pub(crate) fn new(shared: Arc<Shared>, seeds: Vec<Address>, confirm: Confirm) -> Self {
        shared.confirm.store(confirm == Confirm::On, Relaxed);
        let cluster = Self {
            map: ArcSwap::from_pointee(SlotMap::empty()),
            known: Mutex::new(BTreeMap::new()),
            shared,
            seeds,
            confirm,
        };
        if !cluster.shared.cluster {
            let only = cluster.master_at(&cluster.seeds[0]);
            cluster.map.store(Arc::new(SlotMap::single(only)));
        }
        cluster
    }

    pub(crate) fn map(&self) -> Arc<SlotMap> {
        self.map.load_full()
    }

    /// The owner of `slot`.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Master>> {
        self.map.load().owner(slot).cloned()
    }

    /// The server at `address`. If it is new, it begins to connect.
    pub(crate) fn master_at(&self, address: &Address) -> Arc<Master> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(Master::new(address.clone(), self.shared.clone()));
        known.entry(address.clone()).or_insert_with(make).clone()
    }

    /// Keeps the map up to date. Runs until it is aborted.
    pub(crate) async fn watch(&self) {
        let mut turn = usize::from(clock::random() as u16);
        loop {
            let done = self.refresh(turn).await;
            turn = turn.wrapping_add(1);
            sleep(SPACING).await;
            let pause = if done && self.map.load().is_well() {
                ROUTINE + Duration::from_millis(clock::random() % 30_000)
            } else {
                WATCHFUL
            };
            // Whether notified or timed out, the map is read again.
            let _ = timeout(pause, self.shared.map_stale.notified()).await;
        }
    }

    /// Reads the map from a server that should have it; false when none answered.
    async fn refresh(&self, turn: usize) -> bool {
        self.shared.stats.refreshes.fetch_add(1, Relaxed);
        let map = self.map();
        let mut trusted: Vec<_> = map.masters.iter().filter(|master| master.away_since().is_none()).collect();
        if !trusted.is_empty() {
            let middle = turn % trusted.len();
            trusted.rotate_left(middle);
        }
        for master in trusted.into_iter().take(ASKED) {
            if let Some(mut answers) = master.ask(&question(), TELLING).await
                && let Some(ranges) = answers.pop().and_then(|reply| slots::parse(reply, master.address()))
            {
                self.adopt(ranges).await;
                return true;
            }
        }
        // No master answers. Replicas may know which server replaces theirs; the seeds are the last resort.
        let others: Vec<_> = map.replicas.iter().chain(&self.seeds).collect();
        for index in 0..others.len().min(ASKED) {
            let address = others[(turn * ASKED + index) % others.len()];
            if let Some(ranges) = self.ask_stranger(address).await {
                self.adopt(ranges).await;
                return true;
            }
        }
        false
    }

    async fn ask_stranger(&self, address: &Address) -> Option<Vec<Range>> {
        self.shared.stats.dials.fetch_add(1, Relaxed);
        let Shared { dialer, clock, .. } = &*self.shared;
        let options = DialOptions { dialer, clock: *clock, generation: 0, confirming: None };
        let link = match timeout(TELLING, Link::dial(options, address, |_, _| ())).await.ok()? {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(server = %address, %error, "store: cannot ask for the slot map");
                return None;
            }
        };
        let mut answers = timeout(TELLING, link.send_all(&question())).await.ok()?.ok()?;
        let reply = answers.pop()?;
        if let redis::Value::ServerError(error) = &reply {
            tracing::warn!(server = %address, %error, "store: CLUSTER SLOTS was refused; is this a cluster?");
        }
        slots::parse(reply, address)
    }

    /// Makes `ranges` the map, once the servers that are new in it are connected or `CONNECTING` has passed.
    async fn adopt(&self, ranges: Vec<Range>) {
        let mut masters: Vec<Arc<Master>> = Vec::new();
        let mut owners = vec![NOBODY; SLOTS];
        let mut replicas = Vec::new();
        for range in ranges {
            let index = masters.iter().position(|master| *master.address() == range.master).unwrap_or_else(|| {
                masters.push(self.master_at(&range.master));
                masters.len() - 1
            });
            owners[usize::from(range.first)..=usize::from(range.last)].fill(u16::try_from(index).unwrap_or(NOBODY));
            replicas.extend(range.replicas);
        }
        replicas.sort();
        replicas.dedup();
        // Once replicas were seen, they are expected for good: a missing replica is then a failure, not a setup
        // without replicas.
        if self.confirm == Confirm::Auto && !replicas.is_empty() && !self.shared.confirm.swap(true, Relaxed) {
            masters.iter().for_each(|master| master.reconsider());
        }
        let all_connected = async {
            for master in &masters {
                master.connected().await;
            }
        };
        let _ = timeout(CONNECTING, all_connected).await;
        self.forget_all_but(&masters);
        self.map.store(Arc::new(SlotMap { owners: owners.into(), masters, replicas }));
    }

    fn forget_all_but(&self, masters: &[Arc<Master>]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|address, _| masters.iter().any(|master| master.address() == address));
    }
}

fn question() -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(1);
    pipeline.cmd("CLUSTER").arg("SLOTS");
    pipeline
}
