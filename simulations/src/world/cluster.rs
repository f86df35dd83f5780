//! The Redis Cluster: who owns which slot, who is up, what a server answers.
//!
//! Counting is done by the shipped scripts in `lua.rs`; here is what a server does beside running
//! them: detours, refusals, lag of its replica, failover, slots on the move. A *master* is a place in
//! the plan, a *server* is who takes that place at a time. Knows nothing of nodes' inner life.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rationd::core::key::Digest;
use rationd::core::time::Timestamp;

use crate::keyspace::{Entry, Key, Keyspace};
use crate::plan::Redis as RedisPlan;
use crate::random::Random;

/// Slots of the model: enough that every master has some, few enough for a thousand maps.
pub(super) const SLOTS: u16 = 64;

/// A replica stands still once in so long, if it ever does, and for at most half of that.
const STALL_EVERY: u64 = 500_000;

/// The slot of a key.
pub(super) fn slot_of(digest: Digest) -> u16 {
    (digest.0 % u128::from(SLOTS)) as u16 // below SLOTS
}

/// What a server is to its master's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It takes calls.
    Primary,
    /// It was cut off, and takes calls of those on its side, without knowing better.
    Island,
    /// It sends callers to the primary.
    Replica,
    /// Nobody is there.
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
    /// Its replica is in touch.
    pub(super) has_replica: bool,
    /// It works on something until then.
    pub(super) busy_until: u64,
    /// Nodes on its island.
    pub(super) island: Vec<u32>,
    /// What its replica has, once they are parted, and up to when on the server's clock.
    successor: Option<(Keyspace, u64)>,
    /// Ahead of true time, in microseconds.
    skew: i64,
}

/// Where a slot is.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// The master's place.
    pub(super) owner: u32,
    /// It is on its way there.
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
    /// Keys of a server whose clock was set forward since they were last renewed, with how far ahead it was then: they end
    /// early. Where they have moved to another clock since, none shows why.
    cut: BTreeMap<Key, i64>,
    /// Microseconds since 1970 at the start.
    epoch: u64,
    /// Of the clocks of replicas, and of scripts that take long.
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

/// When a run of this seed begins by the clock of an exact store, in microseconds since 1970, and where the seed's
/// servers are drawn from. The start lies anywhere in a week: windows of every length begin at odd moments.
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

    /// Whose call it is, as this server sees it.
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

    /// Whether a replica has what the server writes now, as soon as it lags behind.
    pub(super) fn confirms(&self, server: u32) -> bool {
        let server = &self.servers[server as usize];
        server.has_replica && server.standing == Standing::Primary && server.successor.is_none()
    }

    /// The server and its replica part at `now`: what the replica lacks is lost if it takes over.
    pub(super) fn part(&mut self, server: u32, now: u64) {
        let seen = self.seen(server, now);
        let place = &mut self.servers[server as usize];
        if place.has_replica && place.successor.is_none() {
            let mut copy = place.keyspace.clone();
            copy.undo_after(seen);
            place.successor = Some((copy, seen));
        }
    }

    /// When the replica stands still that does at `at`.
    fn stands_still(&self, server: u32, at: u64) -> Option<Range<u64>> {
        let most = self.plan.lag_stalls.0.min(STALL_EVERY / 2);
        let turn = at / STALL_EVERY;
        let mut random = Random::stream(self.seed ^ (turn << 8) ^ u64::from(server), "replica-stalls");
        let begins = turn * STALL_EVERY + random.below(STALL_EVERY / 2);
        let stall = begins..begins + random.between(0, most);
        (most > 0 && stall.contains(&at)).then_some(stall)
    }

    /// What the replica has at `now`: all that its server has written until then, by that one's clock. It never has less than
    /// before.
    fn seen(&self, server: u32, now: u64) -> u64 {
        let until = self.stands_still(server, now).map_or(now, |stall| stall.start);
        self.time(server, until).saturating_sub(self.plan.lag.0)
    }

    /// When the replica will have what its server writes at `at`.
    pub(super) fn replicates(&self, server: u32, at: u64) -> u64 {
        let there = at + self.plan.lag.0;
        self.stands_still(server, there).filter(|stall| stall.start < there).map_or(there, |stall| stall.end)
    }

    /// They meet again before anybody took over.
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
            // What has a time of the other clock is not undone by this one.
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

    /// A server's clock is set; its replica has all that was written before.
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

    /// Whether a key has ended early that is asked for by another clock than the one that has cut its time. It is told once.
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

    /// A call has given the key all of its time.
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

    /// Drops what no failover can need any more.
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
    /// Its own keys, and those of the replica that is about to take over: what the world does is done
    /// to both.
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
