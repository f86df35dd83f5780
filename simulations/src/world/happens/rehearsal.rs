//! What nodes say of slots in flight, without the nodes: the core's side of concurrent limits is not simulated, but the
//! script that counts slots is rehearsed in every run, for the second opinion.
//!
//! Calls are drawn by the run's own seed and executed on a keyspace apart; nothing else in the world comes to know.

use std::sync::Arc;

use rationd::core::call::{Call, Occupy, Op};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::script::{self, Caller, Script};

use crate::keyspace::Keyspace;
use crate::observe::Seen;
use crate::random::Random;
use crate::world::keys::{PREFIX, hash_of};
use crate::world::state::World;

const CALLS: usize = 60;

const NODES: [&str; 3] = ["a", "b", "node with spaces"];

/// Exactly onto the ends of leases, too.
const STEPS: [u64; 6] = [0, 1, 1_000, 250_000, 2_500_000, 10_000_000];

const LEASE: Micros = Micros(10_000_000);

impl World<'_> {
    /// Rehearses some calls, and tells of each.
    pub(in crate::world) fn rehearse(&mut self) {
        let (mut random, mut keyspace) = (Random::stream(self.plan.seed, "rehearsal"), Keyspace::default());
        let limit = Limit::parse(&format!("{}/30s concurrent", random.between(1, 12))).expect("a limit");
        let rule = Arc::new(Rule::of("slots", &[limit]));
        let (mut now, mut said, mut key) = (Timestamp(1_800_000_000_000_000), Vec::<(usize, Call)>::new(), 0);
        for id in 1..=CALLS as u64 {
            now = now + Micros(*random.pick(&STEPS));
            let hash = |key| hash_of(Digest(key));
            if !said.is_empty() && keyspace.look(&hash(key), now.0).is_none() {
                // Redis has forgotten the key, since nobody has a slot any more; the memory store does not forget.
                (said, key) = (Vec::new(), key + 1);
            }
            let fresh = (random.below(NODES.len() as u64) as usize, call(&mut random, id, key, &rule));
            let repeats = !said.is_empty() && random.chance(160);
            let (node, call) = if repeats { random.pick(&said).clone() } else { fresh };
            let caller = Caller { prefix: PREFIX, node: NODES[node], now: None };
            let arguments = |push: &mut dyn FnMut(&[u8])| script::arguments(&caller, &call, push);
            let ran = self.scripts.run(&mut keyspace, Script::of(&call), &hash(key), now.0, arguments);
            let numbers = ran.unwrap_or_else(|error| panic!("a script failed: {error}"));
            let grant = script::grant(&call, &numbers).map_err(|bad| bad.to_string());
            self.see(&Seen::Rehearsed { node: NODES[node], now, call: &call, grant: grant.as_ref() });
            said.push((node, call));
        }
    }
}

fn call(random: &mut Random, id: u64, key: u128, rule: &Arc<Rule>) -> Call {
    let (used, need, more) = (random.below(6), random.below(3), random.below(8));
    let op = Op::Occupy(Occupy { used, need, want: used + more, lease: LEASE });
    Call { id, digest: Digest(key), rule: rule.clone(), op, sent_at: Instant(0) }
}
