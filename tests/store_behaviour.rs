//! The suite of `support/store_suite.rs` over the memory store, and over the scripts alone.

use crate::support;

use rationd::core::call::{Call, Grant};
use rationd::core::time::Timestamp;
use rationd::store::memory::MemoryStore;
use rationd::store::redis::evalsha;
use rationd::store::script::Caller;
use redis::{Connection, Value};
use support::redis_server::RedisServer;
use support::store_suite::{self, Stores};

const NODES: [&str; 3] = ["a", "b", "c"];

struct Memory(MemoryStore);

impl Stores for Memory {
    fn call(&mut self, node: usize, call: &Call) -> Grant {
        self.0.call(Timestamp(1_800_000_000_000_000), NODES[node], call).expect("there is room")
    }
}

/// The scripts on one plain connection, by the clock of Redis.
struct Scripts(Connection);

impl Stores for Scripts {
    fn call(&mut self, node: usize, call: &Call) -> Grant {
        let caller = Caller { prefix: "suite", node: NODES[node], now: None };
        let reply: Value = evalsha::command(&caller, call, false).query(&mut self.0).expect("an answer");
        evalsha::grant(call, &reply).expect("a grant")
    }
}

#[test]
fn memory_store_behaves() {
    store_suite::run(&mut Memory(MemoryStore::new(1_000, 1 << 64 | 1)));
}

#[test]
fn scripts_behave() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    store_suite::run(&mut Scripts(connection));
}
