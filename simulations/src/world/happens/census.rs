//! Counts a key everywhere at one moment: in the store, and on all nodes. No part of a real fleet could do that; it is
//! for the checkers alone, and changes nothing. It is done while demand goes on and all faults have ended, and only in
//! runs with refunds, as everything else is counted call by call.

use std::sync::Arc;

use rationd::core::call::{Call, Op};
use rationd::core::limit::Algorithm;
use rationd::core::policy::Rule;
use rationd::core::time::Instant;
use rationd::store::script::{self, Caller, Script};

use crate::observe::Seen;
use crate::world::event::Event;
use crate::world::keys::{PREFIX, hash_of};
use crate::world::state::World;

/// Time between two counts. It divides no common window, so that the counts fall on different parts of windows.
const PAUSE: u64 = 613_000;

/// Keys that are counted.
const KEYS: usize = 3;

impl World<'_> {
    /// Counts the first keys.
    pub(in crate::world) fn census(&mut self) {
        if self.is_over() || self.plan.demand.iter().all(|demand| demand.holds + demand.refunds == 0) {
            return;
        }
        for (policy, key) in self.keys.first(KEYS) {
            // Nodes whose limits differ have different windows, so the key is not counted.
            let mut rules = self.nodes.iter().filter(|node| node.is_there()).map(|node| &node.rules[policy as usize]);
            let Some(rule) = rules.next().filter(|rule| rules.all(|other| other == *rule)).cloned() else { continue };
            if matches!(&rule.limits[..], [limit] if limit.algorithm == Algorithm::Fixed) {
                self.count(key, &rule);
            }
        }
        self.queue.push(self.now + PAUSE, Event::Census);
    }

    fn count(&mut self, key: u32, rule: &Arc<Rule>) {
        let digest = self.keys.get(key).digest;
        let there = self.nodes.iter().filter(|node| node.is_there());
        let held = there.map(|node| node.limiter.held_of(node.clock.local(self.now), digest)).sum();
        let server = self.cluster.owner(crate::world::cluster::slot_of(digest));
        let time = self.cluster.time(server, self.now);
        let call = Call { id: 0, digest, rule: rule.clone(), op: Op::Peek, sent_at: Instant(0) };
        let caller = Caller { prefix: PREFIX, node: "", now: None };
        let arguments = |push: &mut dyn FnMut(&[u8])| script::arguments(&caller, &call, push);
        let keyspace = &mut self.cluster.server(server).keyspace;
        let ran = self.scripts.run(keyspace, Script::of(&call), &hash_of(digest), time, arguments);
        let numbers = ran.unwrap_or_else(|error| panic!("a script failed: {error}"));
        let grant = script::grant(&call, &numbers).expect("the scripts answer as script.rs reads");
        self.see(&Seen::Census { key, held, counter: grant.counters[0], store: grant.now });
    }
}
