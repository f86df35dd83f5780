//! The Redis Cluster: who owns which slot, who is up, what a server answers.
//!
//! Counting is done by the shipped scripts in `lua.rs`; here is what a server does beside running them: redirects,
//! errors, lag of its replica, failover, slots on the move. A *master* is a place in the plan, a *server* is what takes
//! that place at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rationd::core::key::Digest;
use rationd::core::time::Timestamp;

use crate::keyspace::{Entry, Key, Keyspace};
use crate::plan::Redis as RedisPlan;
use crate::random::Random;

/// Slots of the model: enough that every master has some, few enough for a thousand maps.
pub(super) const SLOTS: u16 = 64;

/// If the plan lets replicas stall, each stalls once in this time, for at most half of it.
const STALL_EVERY: u64 = 500_000;

/// The slot of a key.
pub(super) fn slot_of(digest: Digest) -> u16 {
    (digest.0 % u128::from(SLOTS)) as u16 // below SLOTS
}

/// The role of a server at its master's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It takes calls.
    Primary,
    /// It was cut off while it was the primary, and still takes calls of the nodes on its side.
    Island,
    /// It redirects calls to the primary.
    Replica,
    /// It is down.
    Dead,
}

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) master: u32,
    pub(super) standing: Standing,
    pub(super) keyspace: Keyspace,
    /// Scripts that it knows, by name.
    pub(super) scripts: BTreeSet<&'static str>,
    /// It does nothing before then.
    pub(super) paused_until: u64,
    /// It answers everything with an error.
    pub(super) refuses: bool,
    /// Whether a replica is connected.
    pub(super) has_replica: bool,
    /// It works on something until then.
    pub(super) busy_until: u64,
    /// Nodes on its island.
    pub(super) island: Vec<u32>,
    /// What its replica has, once it is cut off from it, and up to which time of the server's clock.
    successor: Option<(Keyspace, u64)>,
    /// Ahead of true time, in microseconds.
    skew: i64,
}

/// Where a slot is.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// The master's place.
    pub(super) owner: u32,
    /// The master that it is moving to.
    pub(super) moving: Option<u32>,
}

/// All servers.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) plan: RedisPlan,
    pub(super) servers: Vec<Server>,
    /// The server of each master's place.
    pub(super) primaries: Vec<u32>,
    pub(super) slots: Vec<Slot>,
    /// Keys of a server whose clock was set forward since they were last renewed, with how far ahead it was then: they
    /// end early. If such a key has moved to another server since, that server's clock does not show why it ends early.
    cut: BTreeMap<Key, i64>,
    /// Microseconds since 1970 at the start.
    epoch: u64,
    /// Draws the clocks of replicas and the scripts that take long.
    random: Random,
    seed: u64,
}

/// Where a server sends a call that it does not run itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It runs it.
    Here,
    /// The slot is there.
    Moved(u32),
    /// The key is there already.
    Ask(u32),
}

/// When a run of this seed begins, in microseconds since 1970, and the random stream of the seed's servers. The start
/// lies anywhere in a week, so that the run begins in the middle of windows of every length.
fn start(seed: u64) -> (u64, Random) {
    let mut random = Random::stream(seed, "cluster");
    (1_800_000_000_000_000 + random.below(604_800_000_000), random)
}

/// When a run of this seed begins, in microseconds since 1970.
pub(crate) fn start_of(seed: u64) -> u64 {
    start(seed).0
}

impl Cluster {
    pub(super) fn new(plan: &RedisPlan, seed: u64) -> Self {
        let (epoch, mut random) = start(seed);
        let masters = plan.masters.max(1);
        let servers = (0..masters).map(|master| {
            let skew = random.between(0, 2 * plan.skew.0) as i64 - plan.skew.0 as i64;
            Server::new(master, skew, plan.replica)
        });
        let slots = (0..SLOTS).map(|slot| Slot { owner: u32::from(slot) * masters / u32::from(SLOTS), moving: None });
        let servers: Vec<_> = servers.collect();
        Self {
            plan: plan.clone(),
            servers,
            primaries: (0..masters).collect(),
            slots: slots.collect(),
            cut: BTreeMap::new(),
            seed,
            epoch,
            random: Random::stream(seed, "servers"),
        }
    }

    /// The clock of an exact store.
    pub(super) fn exact(&self, now: u64) -> Timestamp {
        Timestamp(self.epoch + now)
    }

    /// The clock of a server.
    pub(super) fn time(&self, server: u32, now: u64) -> u64 {
        (self.epoch + now).saturating_add_signed(self.servers[server as usize].skew)
    }

    /// The clock of the master that owns a key.
    pub(super) fn owner_time(&self, digest: Digest, now: u64) -> Timestamp {
        Timestamp(self.time(self.owner(slot_of(digest)), now))
    }

    /// The server that owns a slot.
    pub(super) fn owner(&self, slot: u16) -> u32 {
        self.primaries[self.slots[usize::from(slot)].owner as usize]
    }

    /// The place of a master of the plan.
    pub(super) fn place(&self, master: u32) -> u32 {
        master % self.primaries.len() as u32
    }

    /// Whether a node and a server are on different sides of an island's shore.
    pub(super) fn is_apart(&self, node: u32, server: u32) -> bool {
        let shores = self.servers.iter().enumerate().filter(|(_, place)| !place.island.is_empty());
        shores.into_iter().any(|(index, place)| place.island.contains(&node) != (index as u32 == server))
    }

    /// The server at the place of a master of the plan.
    pub(super) fn primary(&self, master: u32) -> u32 {
        self.primaries[self.place(master) as usize]
    }

    pub(super) fn server(&mut self, server: u32) -> &mut Server {
        &mut self.servers[server as usize]
    }

    /// Where a call belongs, as this server sees it.
    pub(super) fn course(&self, server: u32, digest: Digest, key: &str, asking: bool, now: u64) -> Course {
        let (place, slot) = (&self.servers[server as usize], &self.slots[usize::from(slot_of(digest))]);
        match place.standing {
            Standing::Island => Course::Here,
            Standing::Replica | Standing::Dead => Course::Moved(self.primaries[slot.owner as usize]),
            Standing::Primary if slot.owner != place.master => match slot.moving {
                Some(to) if asking && to == place.master => Course::Here,
                _ => Course::Moved(self.primaries[slot.owner as usize]),
            },
            Standing::Primary => match slot.moving {
                Some(to) if !place.has(key, self.time(server, now)) => Course::Ask(self.primaries[to as usize]),
                _ => Course::Here,
            },
        }
    }

    /// Whether a server would answer a node that starts.
    pub(super) fn serves(&self, server: u32) -> bool {
        let place = &self.servers[server as usize];
        place.standing == Standing::Primary && !place.refuses && place.paused_until == 0
    }

    /// Whether a replica will have what the server writes now, after its lag.
    pub(super) fn confirms(&self, server: u32) -> bool {
        let server = &self.servers[server as usize];
        server.has_replica && server.standing == Standing::Primary && server.successor.is_none()
    }

    /// Cuts the replica off from the server at `now`: if it takes over, what it lacks is lost.
    pub(super) fn part(&mut self, server: u32, now: u64) {
        let seen = self.seen(server, now);
        let place = &mut self.servers[server as usize];
        if place.has_replica && place.successor.is_none() {
            let mut copy = place.keyspace.clone();
            copy.undo_after(seen);
            place.successor = Some((copy, seen));
        }
    }

    /// The stall of the replica that covers `at`, if any.
    fn stands_still(&self, server: u32, at: u64) -> Option<Range<u64>> {
        let most = self.plan.lag_stalls.0.min(STALL_EVERY / 2);
        let turn = at / STALL_EVERY;
        let mut random = Random::stream(self.seed ^ (turn << 8) ^ u64::from(server), "replica-stalls");
        let begins = turn * STALL_EVERY + random.below(STALL_EVERY / 2);
        let stall = begins..begins + random.between(0, most);
        (most > 0 && stall.contains(&at)).then_some(stall)
    }

    /// The replica has at `now` what its server wrote until this time of the server's clock. It never goes back.
    fn seen(&self, server: u32, now: u64) -> u64 {
        let until = self.stands_still(server, now).map_or(now, |stall| stall.start);
        self.time(server, until).saturating_sub(self.plan.lag.0)
    }

    /// When the replica will have what its server writes at `at`.
    pub(super) fn replicates(&self, server: u32, at: u64) -> u64 {
        let there = at + self.plan.lag.0;
        self.stands_still(server, there).filter(|stall| stall.start < there).map_or(there, |stall| stall.end)
    }

    /// Connects the replica again before it has taken over.
    pub(super) fn reunite(&mut self, server: u32) {
        self.servers[server as usize].successor = None;
    }

    /// The replica of a server that has been away takes over: the new server, and the keys whose
    /// last writes it lacks. `None` when there is no replica.
    pub(super) fn promote(&mut self, server: u32) -> Option<(u32, Vec<Key>)> {
        let old = &mut self.servers[server as usize];
        let (keyspace, seen) = old.successor.take()?;
        let undone = old.keyspace.clone().undo_after(seen);
        let (master, scripts) = (old.master, old.scripts.clone());
        let most = self.plan.replica_skew.0;
        let skew = old.skew + self.random.between(0, 2 * most) as i64 - most as i64; // seconds
        old.has_replica = false;
        let mut keyspace = keyspace;
        if most > 0 {
            // The writes carry times of the old server's clock, which cannot be compared with the new one, so they are
            // final now.
            keyspace.settle_before(u64::MAX);
        }
        let new = self.servers.len() as u32; // a handful
        self.servers.push(Server { keyspace, scripts, ..Server::new(master, skew, false) });
        self.primaries[master as usize] = new;
        Some((new, undone))
    }

    /// Moves a key that is on its way to another master.
    pub(super) fn carry(&mut self, key: &str, from: u32, to: u32, now: u64) {
        let (from, to) = (self.primaries[from as usize], self.primaries[to as usize]);
        let (leaves, arrives) = (self.time(from, now), self.time(to, now));
        if !self.servers[from as usize].has(key, leaves) {
            return;
        }
        let entries: Vec<_> = self.server(from).keyspaces().filter_map(|keyspace| keyspace.take(key)).collect();
        if let Some(entry) = entries.first() {
            let entry = entry.handed_over(leaves, arrives);
            self.server(to).keyspaces().for_each(|keyspace| keyspace.put(key.into(), entry.clone()));
        }
    }

    /// Sets a server's clock; its replica has all that was written before.
    pub(super) fn set_clock(&mut self, server: u32, by: i64) {
        let place = self.server(server);
        if place.successor.is_none() {
            place.keyspace.settle_before(u64::MAX);
            place.skew += by;
            if by > 0 {
                let skew = place.skew;
                let keys: Vec<_> = place.keyspace.keys().map(|key| (key.clone(), skew)).collect();
                self.cut.extend(keys);
            }
        }
    }

    /// Whether a key has ended early because a set clock had cut its time, and is now asked for on a server with
    /// another clock. True once per key.
    pub(super) fn has_ended_early(&mut self, server: u32, key: &str, time: u64) -> bool {
        let place = &self.servers[server as usize];
        let is_cut = self.cut.get(key).is_some_and(|skew| *skew != place.skew);
        let is_over = is_cut && place.standing == Standing::Primary && !place.has(key, time);
        if is_over {
            self.cut.remove(key);
        }
        is_over
    }

    /// When a key ends, if a set clock has cut its time.
    pub(super) fn cut_to(&self, server: u32, key: &str) -> Option<i64> {
        self.cut.get(key)?;
        self.servers[server as usize].keyspace.get(key).and_then(Entry::expires_ms)
    }

    /// A call has renewed the key's expiry.
    pub(super) fn renew(&mut self, key: &str) {
        self.cut.remove(key);
    }

    /// What the next script costs.
    pub(super) fn cost(&mut self) -> u64 {
        let stalls = u64::from(self.plan.stalls);
        let longer = if stalls > 0 && self.random.chance(stalls) { self.random.between(1_000, 20_000) } else { 0 };
        let mean = self.plan.script_cost.0;
        let cost = if self.plan.script_cost_varies { self.random.exponential(mean).max(1) } else { mean };
        cost + longer
    }

    /// Drops the history of writes that no failover can undo any more.
    pub(super) fn settle(&mut self, now: u64) {
        for server in 0..self.servers.len() as u32 {
            let before = self.seen(server, now).saturating_sub(1);
            let place = &self.servers[server as usize];
            if place.standing == Standing::Primary && place.successor.is_none() {
                let time = self.time(server, now);
                let keyspace = &mut self.server(server).keyspace;
                keyspace.settle_before(before);
                keyspace.expire(time);
            }
        }
    }
}

impl Server {
    /// Its own keys, and those of the replica that is about to take over: faults such as lost keys strike both.
    pub(super) fn keyspaces(&mut self) -> impl Iterator<Item = &mut Keyspace> {
        [&mut self.keyspace].into_iter().chain(self.successor.as_mut().map(|(keyspace, _)| keyspace))
    }

    /// Whether a key is there at the server's time `now`.
    fn has(&self, key: &str, now: u64) -> bool {
        let there = |entry: &Entry| entry.expires_ms().is_none_or(|last| now / 1_000 <= last.unsigned_abs());
        self.keyspace.get(key).is_some_and(there)
    }

    fn new(master: u32, skew: i64, has_replica: bool) -> Self {
        Self {
            master,
            standing: Standing::Primary,
            keyspace: Keyspace::default(),
            scripts: BTreeSet::new(),
            paused_until: 0,
            refuses: false,
            has_replica,
            busy_until: 0,
            island: Vec::new(),
            successor: None,
            skew,
        }
    }
}
