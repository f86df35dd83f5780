//! Random sequences of checks for tests/oracle.rs: each has a key of its own, one to three limits, and a handful of
//! steps with pauses between. A seed and a number say all of a sequence.

use rationd::core::limit::{self as product, Algorithm};
use rationd::core::time::Micros;

use super::formula::{Kind, Limit};
use super::judge::Ask;
use super::random::below;

/// One step: after a pause something is asked.
#[derive(Clone, Debug)]
pub struct Step {
    pub pause_us: u64,
    pub ask: Ask,
    /// `max_burst count period` of `CL.THROTTLE` from here on, where they change.
    pub rate: Option<[u64; 3]>,
}

/// What is asked of one key.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub name: String,
    /// As a policy writes them; of `CL.THROTTLE` none.
    pub limits: Vec<String>,
    pub steps: Vec<Step>,
}

impl Sequence {
    /// The limits at its beginning.
    #[must_use]
    pub fn formulas(&self) -> Vec<Limit> {
        match self.steps[0].rate {
            Some(rate) => vec![throttled(rate)],
            None => self.limits.iter().map(|text| formula(text)).collect(),
        }
    }
}

/// A limit as a policy writes it.
#[must_use]
pub fn formula(text: &str) -> Limit {
    let parsed = product::Limit::parse(text).expect(text);
    let kind = match parsed.algorithm {
        Algorithm::Gcra => Kind::Bucket,
        Algorithm::Fixed => Kind::Fixed,
        Algorithm::FixedFromFirst => Kind::FromFirst,
        Algorithm::Sliding => Kind::Sliding,
        Algorithm::Concurrent => panic!("{text}: nothing to check by a formula"),
    };
    let name = parsed.to_string();
    Limit { kind, count: parsed.count, period_us: parsed.period.0, burst: parsed.burst, name }
}

/// What `CL.THROTTLE` means by its numbers.
#[must_use]
pub fn throttled([max_burst, count, period_s]: [u64; 3]) -> Limit {
    let period_us = period_s * 1_000_000;
    Limit { kind: Kind::Bucket, count, period_us, burst: max_burst + 1, name: String::new() }
}

/// The dice of one sequence.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        below(&mut self.0, bound)
    }

    /// Of any size up to `most`, small ones as likely as large ones.
    fn sized(&mut self, most: u64) -> u64 {
        let bits = 1 + self.below(u64::from(most.ilog2()) + 1);
        (1 + self.below(1 << bits)).min(most)
    }

    fn period_s(&mut self) -> u64 {
        match self.below(4) {
            0 => 1 + self.below(9),
            1 => [10, 60, 3_600, 86_400][self.below(4) as usize],
            _ => self.sized(86_400),
        }
    }

    /// `max_burst count period` that a limit may have.
    fn rate(&mut self) -> [u64; 3] {
        loop {
            let rate @ [burst, count, period] = self.any_rate();
            if product::Limit::gcra(count, Micros::from_secs(period), burst + 1).is_ok() {
                return rate;
            }
        }
    }

    fn any_rate(&mut self) -> [u64; 3] {
        // Bytes, rather than requests.
        if self.below(16) == 0 {
            return [self.sized(1 << 36), self.sized(1 << 44), self.period_s()];
        }
        let llm = self.below(4) == 0;
        let count = if llm { [10_000, 100_000, 1_000_000][self.below(3) as usize] } else { self.sized(1_000_000) };
        let period = self.period_s();
        let burst = match self.below(4) {
            0 => self.below(4),
            1 => self.sized(1_000),
            _ => count.min(100_000).saturating_sub(1),
        };
        [burst, count, period]
    }

    /// Another size of the same key's bucket, which a limit may have, too.
    fn other(&mut self, [burst, count, period]: [u64; 3]) -> [u64; 3] {
        loop {
            let rate @ [burst, count, period] = match self.below(3) {
                0 => [self.below(2 * burst + 2).min(200_000), count, period],
                1 => [burst, 1 + self.below(2 * count), period],
                _ => [burst, count, 1 + self.below(2 * period).min(86_400)],
            };
            if product::Limit::gcra(count, Micros::from_secs(period), burst + 1).is_ok() {
                return rate;
            }
        }
    }

    fn limit(&mut self) -> String {
        let [burst, count, period] = self.rate();
        match self.below(5) {
            0 => format!("{count}/{period}s burst {}", burst + 1),
            1 => format!("{count}/{period}s"),
            2 => format!("{count}/{period}s fixed"),
            3 => format!("{count}/{period}s fixed from-first"),
            _ => format!("{count}/{period}s sliding"),
        }
    }

    /// Pauses as programs make them: none, a redis-cli's, a person's.
    fn pause_us(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => 15_000 + self.below(15_000),
            2 => self.below(100_000),
            _ => self.below(2_000_000),
        }
    }

    fn cost(&mut self, capacity: u64) -> u64 {
        let part = |thousandths: u64| (capacity * thousandths / 1_000).max(1);
        match self.below(10) {
            0 | 1 => 1,
            2 => 1 + self.below(4),
            // What a language model's answers cost: 0.2 to 60 %.
            3..=5 => part(2 + self.below(598)),
            6 => part(2 + self.below(60)),
            7 => capacity,
            8 => capacity + 1 + self.below(capacity),
            _ => 1 + self.below(capacity),
        }
    }

    fn ask(&mut self, capacity: u64) -> Ask {
        let cost = self.cost(capacity);
        match self.below(12) {
            0 => Ask::Peek(if self.below(2) == 0 { 0 } else { cost }),
            1 => Ask::Refund(cost.min(capacity)),
            _ => Ask::Check(cost),
        }
    }
}

/// The limits of the `number`-th policy: one to three.
#[must_use]
pub fn policy(seed: u64, number: u64) -> Vec<String> {
    let mut dice = Dice(seed ^ (number + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
    let mut limits: Vec<String> = Vec::new();
    let many = 1 + dice.below(6).saturating_sub(2).min(2) as usize;
    while limits.len() < many {
        let text = dice.limit();
        let is_new = |text: &str| limits.iter().all(|known| formula(known).name != formula(text).name);
        if product::Limit::parse(&text).is_ok() && is_new(&text) {
            limits.push(text);
        }
    }
    limits
}

/// The `number`-th sequence, of one of so many policies or of `CL.THROTTLE`.
#[must_use]
pub fn sequence(seed: u64, number: u64, policies: u64) -> (Option<u64>, Sequence) {
    let mut dice = Dice(seed.wrapping_add(1 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let of_policy = dice.below(2) == 0;
    let chosen = of_policy.then(|| dice.below(policies));
    let rate = dice.rate();
    let limits = chosen.map(|number| policy(seed, number)).unwrap_or_default();
    let capacity = match limits.iter().map(|text| formula(text).capacity()).min() {
        Some(least) => least,
        None => rate[0] + 1,
    };
    let changes = !of_policy && dice.below(8) == 0;
    let steps = (0..3 + dice.below(7)).map(|index| {
        let (pause_us, ask) = (dice.pause_us(), dice.ask(capacity));
        let changed = (changes && dice.below(3) == 0).then(|| dice.other(rate));
        let rate = if index == 0 { (!of_policy).then_some(rate) } else { changed };
        Step { pause_us, ask, rate }
    });
    let steps = steps.collect();
    (chosen, Sequence { name: format!("#{number}"), limits, steps })
}

/// What once went wrong, by name.
#[must_use]
pub fn known() -> Vec<Sequence> {
    let of = |name: &str, limits: &str, costs: &[u64], pause_us: u64| Sequence {
        name: name.to_owned(),
        limits: vec![limits.to_owned()],
        steps: costs.iter().map(|&cost| Step { pause_us, ask: Ask::Check(cost), rate: None }).collect(),
    };
    let throttle = |name: &str, steps: &[([u64; 3], u64)], pause_us: u64| {
        let mut last = None;
        let steps = steps.iter().map(|&(rate, quantity)| {
            let changed = (last != Some(rate)).then_some(rate);
            last = Some(rate);
            let ask = if quantity == 0 { Ask::Peek(0) } else { Ask::Check(quantity) };
            Step { pause_us, ask, rate: changed }
        });
        Sequence { name: name.to_owned(), limits: Vec::new(), steps: steps.collect() }
    };
    let long = [[60_000].as_slice(), &[500; 80]].concat();
    let llm = [2_000, 400, 5_900, 20, 1_100, 300, 250, 90, 700, 60, 40, 20];
    let mut all = vec![
        of("costs that vary, sliding", "162/1h sliding", &[47, 91, 2, 1, 1, 5, 10, 1, 4, 1], 20_000),
        of("costs that vary, gcra", "5223/1h burst 162", &[47, 91, 2, 1, 1, 5, 10, 1, 4, 1], 20_000),
        of("costs that vary, fixed", "162/1h fixed", &[47, 91, 2, 1, 1, 5, 10, 1, 4, 1], 20_000),
        of("one large, many small, sliding", "100000/1h sliding", &long, 20_000),
        of("one large, many small, gcra", "100000/1h", &long, 20_000),
        of("a model's answers, gcra", "10000/1m", &llm, 30_000),
        of("a model's answers, sliding", "10000/1m sliding", &llm, 30_000),
        of("a model's answers, an hour", "100000/1h", &llm.map(|cost| cost * 10), 30_000),
        of("a model's answers, an hour sliding", "100000/1h sliding", &llm.map(|cost| cost * 10), 30_000),
    ];
    for pause in [0, 20_000, 300_000] {
        let name = format!("the whole burst, then as much again, {} ms", pause / 1_000);
        let rate = [5, 60, 60];
        all.push(throttle(&name, &[(rate, 1), (rate, 2), (rate, 6), (rate, 6)], pause));
        let name = format!("smaller numbers forgive nothing, {} ms", pause / 1_000);
        let (full, denied, wide) = ([9, 10, 3_600], [9, 100, 3_600], [19, 10, 3_600]);
        all.push(throttle(&name, &[(full, 10), (denied, 1), (wide, 5), (full, 0), (wide, 0)], pause));
        let name = format!("a peek with smaller numbers forgives nothing, {} ms", pause / 1_000);
        all.push(throttle(&name, &[([0, 1, 3_600], 1), ([0, 1, 60], 0), ([0, 1, 60], 1), ([0, 1, 3_600], 1)], pause));
    }
    all
}
