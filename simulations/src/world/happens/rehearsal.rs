//! Executes further calls of the scripts for the second opinion, on keyspaces of their own that nothing else in the
//! world reads.
//!
//! Calls about permits are drawn from the run's seed, because few runs have a concurrent limit, and nodes seldom call
//! at the very end of a lease. Acquires that the daemon could have sent to a server in one command
//! (`store/redis/joined.rs`; gathered in `joined.rs`) are executed in one, each on a copy of what it had found alone.

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
use crate::world::excerpts::Look;
use crate::world::joined::Part;
use crate::world::keys::{PREFIX, hash_of};
use crate::world::state::World;

const CALLS: usize = 60;

const NODES: [&str; 3] = ["a", "b", "node with spaces"];

/// Steps between two calls. Some sum up to exactly the length of a lease, so that calls come at its very end.
const STEPS: [u64; 6] = [0, 1, 1_000, 250_000, 2_500_000, 10_000_000];

const LEASE: Micros = Micros(10_000_000);

impl World<'_> {
    /// Executes some calls about permits, and shows each to the observers.
    pub(in crate::world) fn rehearse(&mut self) {
        let (mut random, mut keyspace) = (Random::stream(self.plan.seed, "rehearsal"), Keyspace::default());
        let limit = Limit::parse(&format!("{}/30s concurrent", random.between(1, 12))).expect("a limit");
        let rule = Arc::new(Rule::of("slots", &[limit]));
        let (mut now, mut said, mut key) = (Timestamp(1_800_000_000_000_000), Vec::<(usize, Call)>::new(), 0);
        for id in 1..=CALLS as u64 {
            now = now + Micros(*random.pick(&STEPS));
            let hash = |key| hash_of(Digest(key));
            if !said.is_empty() && keyspace.look(&hash(key), now.0).is_none() {
                // Redis has dropped the key because no permit is left, so no earlier call may be repeated on it.
                (said, key) = (Vec::new(), key + 1);
            }
            let fresh = (random.below(NODES.len() as u64) as usize, call(&mut random, id, key, &rule));
            let repeats = !said.is_empty() && random.chance(160);
            let (node, call) = if repeats { random.pick(&said).clone() } else { fresh };
            let caller = Caller { prefix: PREFIX, node: NODES[node], now: None };
            let arguments = |push: &mut dyn FnMut(&[u8])| script::arguments(&caller, &call, push);
            let (name, hash) = (NODES[node].into(), hash(key));
            let look = Look::before(&keyspace, &hash, &name, now.0, &call);
            let ran = self.scripts.run(&mut keyspace, Script::of(&call), &hash, now.0, arguments);
            let numbers = ran.unwrap_or_else(|error| panic!("a script failed: {error}"));
            let grant = script::grant(&call, &numbers).map_err(|bad| bad.to_string());
            let ran = &look.after(&keyspace);
            self.see(&Seen::Rehearsed { now, call: &call, grant: grant.as_ref(), ran });
            said.push((node, call));
        }
    }
}

impl World<'_> {
    /// Executes acquires of one node in one call, each on what it had found, at this time of their server's clock.
    pub(in crate::world) fn rehearse_together(&mut self, node: u32, now: Timestamp, parts: Vec<Part>) {
        let mut keyspace = Keyspace::default();
        let names: Vec<_> = parts.iter().map(|part| hash_of(part.call.digest)).collect();
        let keys: Vec<_> = names.iter().map(String::as_str).collect();
        for (part, key) in parts.iter().zip(&keys) {
            if let Some(entry) = &part.found {
                keyspace.put((*key).into(), entry.clone());
            }
        }
        let name = self.nodes[node as usize].name.clone();
        let caller = Caller { prefix: PREFIX, node: &name, now: None };
        let each = parts.iter().zip(&keys);
        let looks: Vec<_> = each.map(|(part, key)| Look::before(&keyspace, key, &name, now.0, &part.call)).collect();
        let said = script::arguments_of_many(&caller, parts.iter().map(|part| &part.call));
        let said = said.expect("they are of one limit");
        let arguments = |push: &mut dyn FnMut(&[u8])| said.iter().for_each(|argument| push(argument));
        let answers = self.scripts.run_many(&mut keyspace, &keys, now.0, arguments);
        let answers = answers.unwrap_or_else(|error| panic!("a script failed: {error}"));
        for ((part, look), answer) in parts.iter().zip(looks).zip(answers) {
            let (key, call) = (part.key, &part.call);
            let unread = |bytes: &[u8]| format!("it answered {bytes:?}");
            let numbers = answer.and_then(|bytes| script::answer_alone(&bytes).ok_or_else(|| unread(&bytes)));
            let grant = numbers.and_then(|numbers| script::grant(call, &numbers).map_err(|bad| bad.to_string()));
            let ran = &look.after(&keyspace);
            self.see(&Seen::Repeated { now, key, call, grant: grant.as_ref(), ran });
        }
    }
}

fn call(random: &mut Random, id: u64, key: u128, rule: &Arc<Rule>) -> Call {
    let (used, need, more) = (random.below(6), random.below(3), random.below(8));
    let op = Op::Occupy(Occupy { used, need, want: used + more, lease: LEASE });
    Call { id, digest: Digest(key), rule: rule.clone(), op, sent_at: Instant(0) }
}
