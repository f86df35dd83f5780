//! What goes wrong with servers: death, pause, isolation and what follows, lost data, slots on the
//! move. A replica that takes over lacks what its master wrote last.

use std::collections::BTreeSet;

use rationd::core::key::Digest;
use rationd::core::time::Timestamp;

use crate::keyspace::{Key, Keyspace};
use crate::observe::Seen;
use crate::random::Random;
use crate::world::cluster::{Standing, slot_of};
use crate::world::event::{Event, Step};
use crate::world::state::World;

/// While one of its masters cannot be reached, the move of a slot is tried again after this long.
const HANDS_ON: u64 = 50_000;

impl World<'_> {
    /// A master dies. If it has no replica, it comes back with all its data at the time when a replica would have taken
    /// over.
    pub(in crate::world) fn kill(&mut self, master: u32) {
        let server = self.cluster.primary(master);
        self.cluster.part(server, self.now);
        let place = self.cluster.server(server);
        place.standing = Standing::Dead;
        place.island.clear();
        if self.is_streams() {
            self.reset_all(server);
        }
        self.close_idle(server);
        self.plan_failover(server);
    }

    fn plan_failover(&mut self, server: u32) {
        let at = self.now + self.cluster.plan.failover.0;
        self.queue.push(at, Event::Step(Step::Promote { server }));
    }

    /// A master does nothing until then.
    pub(in crate::world) fn pause(&mut self, master: u32, until: u64) {
        let server = self.cluster.primary(master);
        self.cluster.server(server).paused_until = until;
        // It executes what has arrived during the pause before it learns of a failover.
        self.queue.push(until + 1, Event::Step(Step::Resume { server }));
        if until - self.now > self.cluster.plan.failover.0 {
            self.cluster.part(server, self.now);
            self.plan_failover(server);
        }
    }

    /// A server that paused goes on; it learns only now that another one took its place.
    pub(in crate::world) fn resume(&mut self, server: u32) {
        self.cluster.server(server).paused_until = 0;
        if self.cluster.server(server).standing == Standing::Primary {
            self.cluster.reunite(server);
        } else if self.cluster.server(server).standing == Standing::Island
            && self.cluster.server(server).island.is_empty()
        {
            self.demote(server);
        }
    }

    /// A master and some nodes are cut off from all others.
    pub(in crate::world) fn isolate(&mut self, master: u32, nodes: &[u32]) {
        let server = self.cluster.primary(master);
        if self.cluster.server(server).standing != Standing::Primary {
            return;
        }
        let nodes = self.places(nodes);
        self.cluster.part(server, self.now);
        let place = self.cluster.server(server);
        place.standing = Standing::Island;
        // A master that no node can reach is isolated, too; no node has this number.
        place.island = if nodes.is_empty() { vec![u32::MAX] } else { nodes };
        self.plan_failover(server);
    }

    /// Ends the isolation of all servers of a master's place.
    pub(in crate::world) fn rejoin(&mut self, master: u32) {
        let place = self.cluster.place(master);
        for server in 0..self.cluster.servers.len() as u32 {
            let one = self.cluster.server(server);
            if one.master != place || one.standing != Standing::Island {
                continue;
            }
            one.island.clear();
            if self.cluster.primaries[place as usize] == server {
                self.cluster.server(server).standing = Standing::Primary;
                self.cluster.reunite(server);
            } else {
                self.demote(server);
            }
        }
    }

    fn demote(&mut self, server: u32) {
        let place = self.cluster.server(server);
        place.standing = Standing::Replica;
        place.island.clear();
        place.refuses = false;
        place.paused_until = 0;
    }

    /// The replica of a server that has been away takes over.
    pub(in crate::world) fn promote(&mut self, server: u32) {
        let place = self.cluster.server(server);
        let away = place.standing != Standing::Primary || place.paused_until > self.now;
        if !away || self.cluster.primaries[self.cluster.servers[server as usize].master as usize] != server {
            return;
        }
        let was = self.cluster.server(server).standing;
        let Some((new, undone)) = self.cluster.promote(server) else {
            if was == Standing::Dead {
                self.cluster.server(server).standing = Standing::Primary;
            }
            return;
        };
        for hash in undone {
            self.see_key(&hash, |key, store| Seen::Undone { key, store });
        }
        let old = self.cluster.server(server);
        match was {
            // It has noticed by now that it lost its majority.
            Standing::Island => old.refuses = true,
            // It is paused. Calls that reach it before it resumes will be executed, but their writes are lost.
            Standing::Primary => {
                old.standing = Standing::Island;
                old.island = Vec::new();
            }
            Standing::Dead | Standing::Replica => {}
        }
        self.queue.push(self.now + self.cluster.plan.alone.0, Event::Step(Step::Replicate { server: new }));
    }

    pub(in crate::world) fn see_key(&mut self, hash: &str, seen: impl Fn(u32, Timestamp) -> Seen<'static>) {
        if let Some(key) = self.key_of(hash) {
            let store = self.cluster.owner_time(self.keys.get(key).digest, self.now);
            self.see(&seen(key, store));
        }
    }

    /// The number of the key that a hash is of.
    fn key_of(&self, hash: &str) -> Option<u32> {
        let digits = hash.split_once('{')?.1.split_once('}')?.0;
        u128::from_str_radix(digits, 16).ok().map(|digest| self.keys.find(Digest(digest)))
    }

    /// Whether a server's copy of a key counts: it owns the key's slot, or the slot is moving to it. The copy of a
    /// former owner, which still grants leases to nodes that have not heard of the move, does not.
    fn is_held_by(&self, server: u32, hash: &str) -> bool {
        let Some(key) = self.key_of(hash) else { return false };
        let slot = slot_of(self.keys.get(key).digest);
        let moving = self.cluster.slots[usize::from(slot)].moving.map(|to| self.cluster.primaries[to as usize]);
        self.cluster.owner(slot) == server || moving == Some(server)
    }

    pub(in crate::world) fn refuse(&mut self, master: u32, refuses: bool) {
        let server = self.cluster.primary(master);
        self.cluster.server(server).refuses = refuses;
    }

    pub(in crate::world) fn lose_replica(&mut self, master: u32) {
        let server = self.cluster.primary(master);
        self.cluster.server(server).has_replica = false;
    }

    pub(in crate::world) fn regain_replica(&mut self, master: u32) {
        let server = self.cluster.primary(master);
        let there = self.cluster.plan.replica && self.cluster.server(server).standing == Standing::Primary;
        self.cluster.server(server).has_replica |= there;
    }

    pub(in crate::world) fn flush_scripts(&mut self, master: u32) {
        let server = self.cluster.primary(master);
        self.cluster.server(server).scripts.clear();
    }

    /// A master loses all keys.
    pub(in crate::world) fn flush(&mut self, master: u32) {
        let server = self.cluster.primary(master);
        let lost: BTreeSet<_> = self.cluster.server(server).keyspaces().flat_map(Keyspace::flush).collect();
        for hash in lost.into_iter().filter(|hash| self.is_held_by(server, hash)).collect::<Vec<_>>() {
            self.see_key(&hash, |key, store| Seen::Lost { key, store });
        }
    }

    /// Deletes `part` of each thousand keys of a master.
    pub(in crate::world) fn evict(&mut self, master: u32, part: u32) {
        let server = self.cluster.primary(master);
        let mut random = Random::stream(self.plan.seed ^ self.now, "evict");
        let hashes: Vec<_> = self.cluster.server(server).keyspace.keys().cloned().collect();
        for hash in hashes {
            if random.chance(u64::from(part)) {
                for keyspace in self.cluster.server(server).keyspaces() {
                    keyspace.evict(&hash);
                }
                if self.is_held_by(server, &hash) {
                    self.see_key(&hash, |key, store| Seen::Lost { key, store });
                }
            }
        }
    }

    /// Moves a slot in three stages: it begins, half of its keys have moved, all have. The masters hand keys over
    /// directly, so a move does not begin while one of them cannot be reached, and one that has begun waits.
    pub(in crate::world) fn carry_slot(&mut self, slot: u16, to: u32, stage: u8) {
        let from = self.cluster.slots[usize::from(slot)].owner;
        if !self.cluster.serves(self.cluster.primary(from)) || !self.cluster.serves(self.cluster.primary(to)) {
            if stage > 0 {
                self.queue.push(self.now + HANDS_ON, Event::Step(Step::Move { slot, to, stage }));
            }
            return;
        }
        let place = &mut self.cluster.slots[usize::from(slot)];
        match stage {
            0 => place.moving = Some(to),
            _ if place.moving != Some(to) => return,
            _ => {}
        }
        if stage == 0 {
            return;
        }
        let server = self.cluster.primaries[from as usize];
        let hashes = self.cluster.servers[server as usize].keyspace.keys().cloned();
        let inside = |hash: &Key| self.key_of(hash).is_some_and(|key| slot_of(self.keys.get(key).digest) == slot);
        let mut moving: Vec<Key> = hashes.filter(inside).collect();
        if stage == 1 {
            moving.truncate(moving.len().div_ceil(2));
        }
        for hash in moving {
            self.cluster.carry(&hash, from, to, self.now);
        }
        if stage == 2 {
            let place = &mut self.cluster.slots[usize::from(slot)];
            (place.owner, place.moving) = (to, None);
        }
    }
}
