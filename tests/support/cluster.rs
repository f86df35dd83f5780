//! A real Redis Cluster on loopback, three masters with a replica each, that dies with the test.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use redis::Value;

use super::poll::{wait_and_repeat, wait_for, wait_until};
use super::server::{ACL_RULES, Place, Server, free_port};

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// How long a node may be silent before the others replace it.
pub const NODE_TIMEOUT_MS: u64 = 1_000;

/// Servers 0, 1 and 2 begin as masters; 3, 4 and 5 as their replicas.
pub struct RedisCluster {
    /// The servers.
    pub servers: Vec<Server>,
    ids: Vec<String>,
}

impl RedisCluster {
    /// Starts six servers and waits until they are a cluster with replicas in step.
    pub fn start() -> Self {
        Self::start_with("no")
    }

    /// The same with `cluster-require-full-coverage` set to `full_coverage`.
    pub fn start_with(full_coverage: &str) -> Self {
        Self::start_at(&[(); 6].map(|()| Place::here()), full_coverage)
    }

    /// The same with each server in a place of its own.
    pub fn start_at(places: &[Place; 6], full_coverage: &str) -> Self {
        let servers: Vec<_> = places
            .iter()
            .map(|place| {
                Server::start_at(place, |_, _| {
                    let pairs = [
                        ("--cluster-enabled", "yes".to_owned()),
                        ("--cluster-port", free_port().to_string()),
                        ("--cluster-node-timeout", NODE_TIMEOUT_MS.to_string()),
                        ("--cluster-require-full-coverage", full_coverage.to_owned()),
                        ("--cluster-allow-replica-migration", "no".to_owned()),
                        ("--repl-diskless-sync-delay", "0".to_owned()),
                        ("--repl-ping-replica-period", "1".to_owned()),
                    ];
                    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
                })
            })
            .collect();
        let ids = servers.iter().map(|server| server.text("CLUSTER MYID")).collect();
        let cluster = Self { servers, ids };
        cluster.form();
        cluster
    }

    fn form(&self) {
        for (index, server) in self.servers.iter().enumerate() {
            let ask = |line: String| server.ask(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            ask(format!("ACL SETUSER rationd {ACL_RULES}"));
            ask(format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index < 3 {
                let (first, end) = (index as u16 * (SLOTS / 3), (index as u16 + 1) * (SLOTS / 3));
                let last = if index == 2 { SLOTS - 1 } else { end - 1 };
                ask(format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
        }
        self.introduce();
        // A node gives up a greeting that is not answered within its timeout, and nobody repeats it.
        wait_and_repeat(
            "every node knows every node",
            20,
            4,
            || self.introduce(),
            || {
                self.servers.iter().all(|server| {
                    let nodes = server.text("CLUSTER NODES");
                    nodes.lines().filter(|line| !line.contains("handshake") && !line.contains("fail")).count() == 6
                })
            },
        );
        for index in 3..6 {
            let line = format!("CLUSTER REPLICATE {}", self.ids[index - 3]);
            wait_until("a replica takes its master", 10, || self.servers[index].ask(&line).is_ok());
        }
        wait_until("the cluster is whole", 20, || {
            let whole = |server: &Server| server.text("CLUSTER INFO").contains("cluster_state:ok");
            let in_step = |server: &Server| {
                server.info("replication", "slave0").is_some_and(|replica| replica.contains("state=online"))
            };
            // A replica that its master has not gossiped about is not in CLUSTER SLOTS.
            let complete = |server: &Server| {
                let Ok(Value::Array(rows)) = server.ask("CLUSTER SLOTS") else { return false };
                rows.len() == 3 && rows.iter().all(|row| matches!(row, Value::Array(row) if row.len() == 4))
            };
            self.servers.iter().all(|server| whole(server) && complete(server)) && self.servers[..3].iter().all(in_step)
        });
    }

    /// Has each server greet those before it.
    fn introduce(&self) {
        for (index, server) in self.servers.iter().enumerate() {
            for other in &self.servers[..index] {
                let bus_port = other.setting("cluster-port");
                let line = format!("CLUSTER MEET {} {bus_port}", other.address().replace(':', " "));
                server.ask(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    /// `redis-cluster://…` with all servers, as a user with our rights only.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(Server::address).collect();
        format!("redis-cluster://rationd:secret@{}", hosts.join(","))
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let value = self.servers[5].ask(&format!("CLUSTER KEYSLOT {key}")).expect("a slot");
        redis::from_redis_value(value).expect("a slot")
    }

    /// Which server owns a slot, as server `witness` sees it.
    pub fn owner_of(&self, slot: u16, witness: usize) -> Option<usize> {
        let Ok(Value::Array(rows)) = self.servers[witness].ask("CLUSTER SLOTS") else { return None };
        rows.into_iter().find_map(|row| {
            let (first, last, master): (u16, u16, (String, u16)) = match row {
                Value::Array(mut row) => {
                    let Value::Array(mut node) = row.remove(2) else { return None };
                    node.truncate(2);
                    let first = redis::from_redis_value(row.remove(0)).ok()?;
                    let last = redis::from_redis_value(row.remove(0)).ok()?;
                    (first, last, redis::from_redis_value(Value::Array(node)).ok()?)
                }
                _ => return None,
            };
            let is_it = (first..=last).contains(&slot);
            is_it.then(|| self.servers.iter().position(|server| server.port == master.1))?
        })
    }

    /// Which server owns a key.
    pub fn master_of(&self, key: &str, witness: usize) -> usize {
        let slot = self.slot_of(key);
        wait_for("the slot has an owner", 10, || self.owner_of(slot, witness))
    }

    /// Moves slots from one server to another while they are in use, with the keys in them.
    pub fn reshard(&self, slots: impl Iterator<Item = u16>, from: usize, to: usize) {
        for slot in slots {
            self.open_slot(slot, from, to);
            self.move_keys(slot, from, to);
            self.hand_over(slot, from, to);
        }
    }

    /// First part of a move: both servers know of it.
    pub fn open_slot(&self, slot: u16, from: usize, to: usize) {
        self.set_slot(to, &format!("{slot} IMPORTING {}", self.ids[from]));
        self.set_slot(from, &format!("{slot} MIGRATING {}", self.ids[to]));
    }

    /// Second part: the keys go over.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let mut source = self.servers[from].connect().expect("source");
        loop {
            let mut command = redis::cmd("CLUSTER");
            let keys: Vec<String> =
                command.arg("GETKEYSINSLOT").arg(slot).arg(10).query(&mut source).expect("GETKEYSINSLOT");
            if keys.is_empty() {
                return;
            }
            let mut command = redis::cmd("MIGRATE");
            command
                .arg(self.servers[to].host())
                .arg(self.servers[to].port)
                .arg("")
                .arg(0)
                .arg(5_000)
                .arg("KEYS")
                .arg(&keys);
            command.exec(&mut source).expect("MIGRATE");
        }
    }

    /// Third part: the slot has another owner.
    pub fn hand_over(&self, slot: u16, from: usize, to: usize) {
        for server in [to, from] {
            self.set_slot(server, &format!("{slot} NODE {}", self.ids[to]));
        }
    }

    fn set_slot(&self, server: usize, what: &str) {
        let line = format!("CLUSTER SETSLOT {what}");
        self.servers[server].ask(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }

    /// Makes every server forget its scripts.
    pub fn flush_scripts(&self) {
        for server in &self.servers {
            let _ = server.ask("SCRIPT FLUSH SYNC");
        }
    }
}

impl Server {
    /// One setting, as `CONFIG GET` shows it.
    pub fn setting(&self, name: &str) -> String {
        let value = self.ask(&format!("CONFIG GET {name}")).expect("CONFIG GET");
        let mut pair: Vec<String> = redis::from_redis_value(value).expect("a name and a value");
        pair.pop().expect("a value")
    }
}
