//! One suite of calls for any way to the shared store: each answer must be the one that the memory
//! store gives at the moment that the answer names.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::sync::Arc;

use rationd::clock::Clock;
use rationd::core::call::{Acquire, Call, Grant, JUST_NOW, Known, OPEN, Op, StoreError, Window};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::Rule;
use rationd::store::memory::MemoryStore;

/// Windows are short, so that they roll while the suite runs.
const RULES: [&[&str]; 7] = [
    &["50/100ms burst 20"],
    &["20/50ms fixed"],
    &["20/50ms fixed from-first"],
    &["30/60ms sliding"],
    &["40/40ms", "30/100ms fixed", "300/1s sliding", "3000/1h fixed from-first"],
    &["1000/1h fixed"],
    &["2000000/1s burst 3"],
];

/// The nodes that take turns.
pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

struct Key {
    digest: Digest,
    rule: Arc<Rule>,
    past: Vec<(usize, Call, Grant)>,
}

struct Random(u64);

impl Random {
    /// SplitMix64, below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// Makes `calls` calls through `ask` (node's index, call) and compares every answer.
pub fn compare_with_memory(
    calls: u64,
    seed: u64,
    clock: &Clock,
    mut ask: impl FnMut(usize, &Call) -> Result<Grant, StoreError>,
) {
    let mut memory = MemoryStore::new(1_000, 1);
    let mut random = Random(seed);
    let mut keys: Vec<_> = (0..2 * RULES.len()).map(|number| key(seed, number)).collect();
    let mut granted = 0;
    for id in 1..=calls {
        let index = random.below(keys.len() as u64) as usize;
        let (node, call) = next_call(&mut keys[index], id, &mut random, clock);
        let seen = ask(node, &call).unwrap_or_else(|error| panic!("call {id} of seed {seed}: {error:?}: {call:?}"));
        let mut wanted = memory.call(seen.now, NODES[node], &call).expect("the table is large enough");
        wanted.confirmed = seen.confirmed;
        assert_eq!(seen, wanted, "call {id} of seed {seed}: {call:?}");
        granted += seen.granted;
        keys[index].past.push((node, call, seen));
    }
    assert!(granted > calls / 2, "hardly anything was granted: {granted} in {calls} calls");
}

fn key(seed: u64, number: usize) -> Key {
    let limits: Vec<_> = RULES[number % RULES.len()].iter().map(|text| Limit::parse(text).expect(text)).collect();
    let rule = Arc::new(Rule::of("behaviour", &limits));
    Key { digest: Digest::of("behaviour", format!("{seed} {number}").as_bytes()), rule, past: Vec::new() }
}

fn next_call(key: &mut Key, id: u64, random: &mut Random, clock: &Clock) -> (usize, Call) {
    if let Some((node, call, _)) = key.past.last()
        && random.below(8) == 0
    {
        return (*node, call.clone());
    }
    if key.past.len() > 3 && random.below(16) == 0 {
        let (node, call, _) = &key.past[key.past.len() - 3];
        return (*node, call.clone());
    }
    let op = match (random.below(10), key.past.last()) {
        (0, Some((_, _, grant))) if grant.granted > 0 => give_back(grant, random),
        (1, _) => Op::Peek,
        (2, _) => Op::Refund { amount: random.below(6), epoch: 0, windows: OPEN },
        (3, _) if random.below(5) == 0 => Op::Reset,
        _ => Op::Acquire(acquire(key, random)),
    };
    let call = Call { id, digest: key.digest, rule: key.rule.clone(), op, sent_at: clock.now() };
    (random.below(NODES.len() as u64) as usize, call)
}

fn give_back(grant: &Grant, random: &mut Random) -> Op {
    let windows = grant.counters.map(|counter| counter.at.stored());
    Op::Return {
        amount: 1 + random.below(grant.granted),
        epoch: grant.epoch,
        held: 0,
        voids: None,
        ages: JUST_NOW,
        windows,
    }
}

fn acquire(key: &Key, random: &mut Random) -> Acquire {
    let need = random.below(5);
    let mut ask = Acquire {
        need,
        want: need + random.below(8),
        least: random.below(3),
        window: Window::Current,
        epoch: 0,
        held: 0,
        ages: JUST_NOW,
        known: [Known::default(); MAX_LIMITS],
        until: None,
        claim: None,
    };
    if let Some((_, _, last)) = key.past.last() {
        ask.epoch = last.epoch * random.below(2);
        for (known, counter) in ask.known.iter_mut().zip(&last.counters) {
            *known = Known { used: counter.used + random.below(2), at: counter.at };
        }
        if random.below(6) == 0 {
            ask.window = Window::from_wire(last.counters[0].at.0);
        }
    }
    ask
}
