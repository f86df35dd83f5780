//! Random calls about a key, shaped to hit every rule of a store: boundaries of windows to the
//! microsecond, clocks that step back, replays, several nodes, leases of lost epochs.

use std::sync::Arc;

use rationd::core::call::{
    Acquire, CALL_LIFE, Call, Claim, Frees, Grant, JUST_NOW, Known, OPEN, Op, Voided, Window, Windows,
};
use rationd::core::key::Digest;
use rationd::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS, MAX_PERIOD};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros, StoredTime, Timestamp};
use rationd::store::memory::MemoryStore;

/// A reproducible source of numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

/// Three nodes and what they remember of one key.
pub struct Caller {
    pub now: Timestamp,
    digest: Digest,
    rules: Vec<Arc<Rule>>,
    next_id: u64,
    /// Calls and answers, to repeat and to return from.
    past: Vec<(&'static str, Call, Grant)>,
}

const NODES: [&str; 3] = ["a", "b", "node with spaces"];

/// Any valid limit, most often a small one.
pub fn limit(random: &mut Random) -> Limit {
    let algorithms = [Algorithm::Gcra, Algorithm::Fixed, Algorithm::FixedFromFirst, Algorithm::Sliding];
    loop {
        let (small, odd) = (1 + random.below(12), 1 + random.below(5_000));
        // As many of each number of digits, to the largest.
        let shift = random.below(53);
        let large = 1 + random.below(MAX_COUNT >> shift);
        let count = random.one_of(&[small, small, odd, 100, 60_000, u32::MAX.into(), large, MAX_COUNT]);
        let any = 1 + random.below(MAX_PERIOD.0);
        let period =
            random.one_of(&[1, 1_000, 7_001, 1_000_000, 1_000_000, 3_000_000, 61_000_000, 86_400_000_000, any]);
        let burst = random.one_of(&[count, small, odd, u32::MAX.into(), large, MAX_COUNT - 1]);
        if let Ok(limit) = Limit::new(count, Micros(period), random.one_of(&algorithms), burst) {
            return limit;
        }
    }
}

fn rule(random: &mut Random) -> Arc<Rule> {
    if random.percent(25) {
        let (few, any) = (1 + random.below(12), 1 + random.below(1 << 26));
        let count = random.one_of(&[few, 20, 100, 5_000, any]);
        let period = random.one_of(&[7_001, 1_000_000, 1_000_000, 3_000_000, 60_000_000]);
        let algorithm = random.one_of(&[Algorithm::Fixed, Algorithm::Sliding]);
        let window = Limit::new(count, Micros(period), algorithm, count).expect("a limit");
        let bucket = Limit::gcra(count, Micros(period), random.one_of(&[count, 1 + count / 3, 1 << 26]));
        let limit = bucket.ok().filter(|_| random.percent(50)).unwrap_or(window);
        return Arc::new(Rule { policy: "p".into(), limits: [limit].into(), on_store_loss: OnStoreLoss::Entitled });
    }
    let count = random.one_of(&[1, 1, 1, 2, 3, 8]);
    let limits = (0..count).map(|_| limit(random)).collect();
    Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Share })
}

impl Caller {
    /// Callers of a new key, under one policy or one that is changed now and then.
    pub fn new(random: &mut Random) -> Self {
        let rules = (0..random.one_of(&[1, 1, 3])).map(|_| rule(random)).collect();
        let early = random.percent(5);
        let now = if early { random.below(5_000_000) + 1 } else { 1_800_000_000_000_000 + random.below(1 << 40) };
        let digest = Digest(u128::from(random.next()) << 64 | u128::from(random.next()));
        Self { now: Timestamp(now), digest, rules, next_id: 1 + random.below(1 << 50), past: Vec::new() }
    }

    /// The next call, after a step in time. `expires` is when the store will forget the key.
    pub fn next(&mut self, random: &mut Random, expires: Option<Timestamp>) -> (&'static str, Call) {
        let rule = random.one_of(&[0, 0, 0, 1, 2]).min(self.rules.len() - 1);
        let rule = self.rules[rule].clone();
        self.step(random, &rule, expires);
        if random.percent(12) && !self.past.is_empty() {
            let back = if random.percent(70) { random.below(4) } else { random.next() };
            let index = self.past.len() - 1 - back as usize % self.past.len();
            let (node, call, _) = &self.past[index];
            return (node, call.clone());
        }
        self.next_id += 1 + random.below(3);
        let id = if random.percent(20) { 0 } else { self.next_id };
        let op = self.op(random, &rule);
        (random.one_of(&NODES), Call { id, digest: self.digest, rule, op, sent_at: Instant(0) })
    }

    /// When the store will forget the key.
    pub fn expires(&self, store: &MemoryStore) -> Option<Timestamp> {
        store.expires_at(self.digest)
    }

    /// Remembers what was answered.
    pub fn answered(&mut self, node: &'static str, call: Call, grant: Grant) {
        self.past.push((node, call, grant));
        if self.past.len() > 40 {
            self.past.remove(0);
        }
    }

    fn step(&mut self, random: &mut Random, rule: &Rule, expires: Option<Timestamp>) {
        let limit = rule.limits[random.below(rule.limits.len() as u64) as usize];
        let (now, period) = (self.now.0, limit.period.0);
        let last_at = self.last().map_or(0, |grant| grant.counters[random.below(2) as usize].at.0);
        let near = |at: u64, random: &mut Random| (at + random.below(3)).saturating_sub(1);
        let target = match random.below(16) {
            0..6 => now + random.below(period / 50 + 2),
            6 => now,
            7 => now + 1,
            8 => near((now / period + 1) * period, random),
            9 => now + random.below(period),
            10 => now + random.below(3 * period),
            11 => near(last_at.min(now + 4 * period), random),
            12 => near(now + period, random),
            13 if random.percent(30) => expires.map_or(now, |at| near(at.0, random)),
            14 if random.percent(40) => now.saturating_sub(random.below(2 * period)),
            15 if random.percent(20) => now + random.below(900_000_000),
            15 => now + random.below(3_000_000),
            _ => now,
        };
        self.now = Timestamp(target.clamp(1, 1 << 51));
    }

    fn last(&self) -> Option<&Grant> {
        self.past.last().map(|(_, _, grant)| grant)
    }

    fn op(&self, random: &mut Random, rule: &Rule) -> Op {
        match random.below(100) {
            0..65 => Op::Acquire(self.acquire(random, rule)),
            65..78 => self.take_back(random),
            78..88 => Op::Peek,
            88..97 => {
                let few = random.below(20);
                let any = random.below(1 << 53);
                let amount = random.one_of(&[few, few, 3_000, any, u32::MAX.into(), u64::MAX]);
                Op::Refund { amount, epoch: self.epoch(random), windows: self.charged(random) }
            }
            _ => Op::Reset,
        }
    }

    fn acquire(&self, random: &mut Random, rule: &Rule) -> Acquire {
        let few = random.below(6);
        let capacity = rule.limits.iter().map(Limit::capacity).min().expect("one limit at least");
        let part = capacity / 3;
        let need = random.one_of(&[0, 1, few, few, capacity, part]);
        let want = random.one_of(&[need, few, part, capacity, u64::MAX]);
        let least = random.one_of(&[0, 0, 1, need, want]);
        let at = self.last().map_or(Timestamp(0), |grant| grant.counters[0].at);
        let ahead = random.percent(12);
        let begins = if ahead { random.one_of(&[at, at, at, at + Micros(1)]) } else { Timestamp(0) };
        let window = Window::from_wire(begins.0);
        let epoch = self.epoch(random);
        let known = std::array::from_fn(|index| self.known(random, rule, index));
        let held = self.held(random);
        let ages = [self.age(random); MAX_LIMITS];
        let until = self.until(random);
        let claim = rule.is_entitled().then(|| self.claim(random, capacity));
        Acquire { need, want, least, window, epoch, held, ages, known, until, claim }
    }

    /// One that the node may know: none, that of now, or an older one.
    fn epoch(&self, random: &mut Random) -> u64 {
        let epoch = self.last().map_or(0, |grant| grant.epoch);
        let older = self.past.first().map_or(9, |(_, _, grant)| grant.epoch);
        random.one_of(&[0, epoch, epoch, older])
    }

    /// Until when an acquire may be executed: often for ever, and else around the time that it has for that.
    fn until(&self, random: &mut Random) -> Option<StoredTime> {
        let near = [self.now, self.now + CALL_LIFE].map(|at| Timestamp((at.0 + random.below(3)).saturating_sub(1)));
        let within = self.now + Micros(random.below(CALL_LIFE.0));
        let until = random.one_of(&[None, None, None, Some(within), Some(within), Some(near[0]), Some(near[1])]);
        until.and_then(Timestamp::stored)
    }

    /// What the node says of what is set aside for it: often what it was told last.
    fn claim(&self, random: &mut Random, capacity: u64) -> Claim {
        let (last, few) = (self.last().map_or(0, |grant| grant.entitled), random.below(6));
        let (now, soon) = (self.now, self.now + Micros(random.below(1_000_000)));
        let any = Frees::AtAnyTime.on_wire();
        Claim {
            believes: random.one_of(&[
                None,
                Some(0),
                Some(last),
                Some(last),
                Some(few),
                Some(capacity),
                Some(u64::MAX),
            ]),
            demand: random.one_of(&[0, few, few, capacity / 4, capacity, u64::MAX]),
            // As numbers of a call, because a store whose clock has just begun may be told of its very beginning.
            frees: Frees::from_wire(random.one_of(&[0, now.0, (now - Micros(1)).0, soon.0, soon.0, any, any, any])),
            owes: random.one_of(&[0, 0, 0, few, capacity, u64::MAX]),
        }
    }

    /// Tokens that the node says it has not spent: often none, or what it was lent last.
    fn held(&self, random: &mut Random) -> u64 {
        let last = self.last().map_or(0, |grant| grant.granted);
        random.one_of(&[0, 0, last, last / 2, 3, u64::MAX])
    }

    /// Often none, or any.
    fn age(&self, random: &mut Random) -> Micros {
        let some = random.below(3_000_000);
        Micros(random.one_of(&[0, 0, some, u64::MAX]))
    }

    fn known(&self, random: &mut Random, rule: &Rule, index: usize) -> Known {
        let (Some(limit), true) = (rule.limits.get(index), random.percent(30)) else { return Known::default() };
        let at = self.last().map_or(Timestamp(0), |grant| grant.counters[index].at);
        let soon = self.now + Micros(random.below(2 * limit.period.0));
        let at = random.one_of(&[at, at, soon, self.now + limit.period, Timestamp(u64::MAX)]);
        let some = random.below(limit.capacity());
        Known { used: random.one_of(&[some, some / 4, some / 4, u64::MAX]), at }
    }

    /// The windows of one of the last answers, or none.
    fn charged(&self, random: &mut Random) -> Windows {
        let last = self.past.iter().rev().nth(random.below(3) as usize);
        last.filter(|_| random.percent(60))
            .map_or(OPEN, |(_, _, grant)| grant.counters.map(|counter| counter.at.stored()))
    }

    fn take_back(&self, random: &mut Random) -> Op {
        let lent =
            self.past.iter().rev().filter(|(_, call, grant)| {
                matches!(call.op, Op::Acquire(_)) && (grant.granted > 0 || self.past.len() < 3)
            });
        let Some((_, call, grant)) = lent.clone().nth(random.below(3) as usize).or(lent.clone().next()) else {
            return Op::Return { amount: 1, epoch: 1, held: 0, voids: None, ages: JUST_NOW, windows: OPEN };
        };
        let mut windows = grant.counters.map(|counter| counter.at.stored());
        if matches!(call.op, Op::Acquire(ask) if ask.window.is_next()) {
            windows[0] = (grant.counters[0].at + call.rule.limits[0].period).stored();
        }
        let amount = random.one_of(&[grant.granted, grant.granted / 2, 1, u64::MAX]);
        let few = random.below(4);
        let void = Voided {
            id: random.one_of(&[call.id, call.id, call.id + 1]),
            need: random.one_of(&[few, grant.granted, u64::MAX]),
            reported: few,
            spent: random.one_of(&[0, few, u64::MAX]),
            answered: random.one_of(&[call.id, call.id, call.id + 1, 0]),
        };
        // On the wire an id of 0 says that none is void, and the first acquire here may have it.
        let voids = random.percent(25).then_some(void).filter(|void| void.id > 0);
        Op::Return {
            amount,
            epoch: if voids.is_some() && few == 0 { 0 } else { grant.epoch },
            held: self.held(random),
            voids,
            ages: [self.age(random); MAX_LIMITS],
            windows,
        }
    }
}
