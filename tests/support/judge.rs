//! Judges the answers of one key against the formula (formula.rs): what may be true is kept as hypotheses, and an
//! answer that none of them explains diverges, in a class that says how.

use std::ops::RangeInclusive;

use super::formula::{Limit, Span, State};

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Check(u64),
    Peek(u64),
    Refund(u64),
}

/// What was answered; of `CL.THROTTLE` the fields behind the fifth are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub limited: bool,
    pub limit: u64,
    pub remaining: u64,
    pub retry_s: i64,
    pub reset_s: u64,
    pub more: Option<More>,
}

/// The fields of a decision behind redis-cell's five.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct More {
    pub retry_ms: i64,
    pub reset_at_ms: u64,
    pub reason: String,
    pub limit_name: String,
    pub source: String,
}

/// One thing that an answer said and the formula does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub class: String,
    pub detail: String,
}

/// Everything that may be true of one key.
#[derive(Clone, Debug)]
pub struct Judge {
    limits: Vec<Limit>,
    /// What is told may be of another moment of the span than the decision: a trip lies between.
    is_far: bool,
    /// What is rare and has happened: an answer that diverges then is of a class of its own.
    overdone: bool,
    changed: bool,
    worlds: Vec<Vec<State>>,
}

/// More worlds than windows can make in a handful of checks.
const MOST_WORLDS: usize = 256;

impl Judge {
    /// Of a key that nobody has asked for.
    #[must_use]
    pub fn new(limits: &[Limit], is_far: bool) -> Self {
        Self {
            limits: limits.to_vec(),
            is_far,
            overdone: false,
            changed: false,
            worlds: vec![limits.iter().map(Limit::fresh).collect()],
        }
    }

    /// The same key under other numbers: what was charged stays charged.
    pub fn change(&mut self, limits: &[Limit]) {
        self.changed |= self.limits != limits;
        self.limits = limits.to_vec();
    }

    /// A window of some limit may turn within the span.
    #[must_use]
    pub fn turns(&self, span: Span) -> bool {
        self.turned(span).len() > self.worlds.len()
    }

    /// Something was given back between those times.
    pub fn refunded(&mut self, span: Span, cost: u64) {
        let mut after = Vec::new();
        for (world, _) in self.turned(span) {
            self.overdone |= world.iter().any(|state| state.used().is_some_and(|used| used < cost));
            let states = self.limits.iter().zip(&world).map(|(limit, state)| limit.refunded(state, cost)).collect();
            after.push(states);
        }
        self.keep(after);
    }

    /// Something was given back between those times, or not.
    pub fn perhaps_refunded(&mut self, span: Span, cost: u64) {
        let before = self.worlds.clone();
        self.refunded(span, cost);
        self.worlds.extend(before);
    }

    /// A check was let pass, whatever the formula says.
    pub fn surely_charged(&mut self, span: Span, cost: u64) {
        let after = self.turned(span).into_iter().map(|(world, span)| self.charge(&world, span, cost)).collect();
        self.keep(after);
    }

    /// A check was denied because its answer from the store came late: what it asked for may have opened a window.
    pub fn perhaps_opened(&mut self, span: Span) {
        let turned = self.turned(span);
        let opened = turned.into_iter().map(|(world, span)| self.charge(&world, span, 1));
        let opened: Vec<Vec<State>> = opened
            .map(|world| self.limits.iter().zip(&world).map(|(limit, state)| limit.refunded(state, 1)).collect())
            .collect();
        self.worlds.extend(opened);
    }

    /// Judges an answer that was decided between those times.
    pub fn judge(&mut self, span: Span, ask: Ask, told: &Answered) -> Vec<Divergence> {
        let cost = match ask {
            Ask::Check(cost) | Ask::Peek(cost) => cost,
            Ask::Refund(cost) => {
                self.refunded(span, cost);
                0
            }
        };
        let charges = matches!(ask, Ask::Check(_)) && !told.limited;
        let charged = if charges { cost } else { 0 };
        let (mut after, mut best): (_, Option<Vec<Divergence>>) = (Vec::new(), None);
        let mut whole = Vec::new();
        for (world, span) in self.turned(span) {
            let may = self.may(&world, span, cost);
            let fits = if told.limited { may.1 } else { may.0 };
            let (world_after, diverges) = if fits {
                let found = self.numbers(&world, span, charged, cost, told);
                (self.charge(&world, span, charged), found)
            } else {
                (self.charge(&world, span, charged), vec![self.verdict(&world, span, cost, told)])
            };
            let world_after = narrowed(world_after, told);
            if diverges.is_empty() {
                whole.push(world_after);
            } else if fits {
                after.push(world_after);
            }
            // A wrong verdict is the least plausible reading.
            let weight = |found: &[Divergence], fits: bool| found.len() + if fits { 0 } else { 100 };
            if best.as_ref().is_none_or(|best| weight(&diverges, fits) < weight(best, best_fits(best))) {
                best = Some(diverges);
            }
        }
        let found = best.unwrap_or_default();
        let mut found = if whole.is_empty() { found } else { Vec::new() };
        if whole.is_empty() && after.is_empty() {
            // None explains the verdict: go on from what the daemon says that it did.
            let forced = self.turned(span);
            whole = forced.into_iter().map(|(world, span)| self.charge(&world, span, charged)).collect();
        }
        self.keep(if whole.is_empty() { after } else { whole });
        let contradicts = told.limited && told.retry_s >= 0 && told.remaining >= cost;
        if contradicts {
            let detail = format!("{} left and a cost of {cost}", told.remaining);
            found.push(Divergence { class: "denied with enough remaining".into(), detail });
        }
        let circumstances = [
            (self.overdone, ", after a refund of more than the window was charged"),
            (self.changed, ", under other numbers"),
        ];
        for (_, circumstance) in circumstances.iter().filter(|(is_so, _)| *is_so) {
            found.iter_mut().for_each(|one| one.class += circumstance);
        }
        found
    }

    fn keep(&mut self, mut worlds: Vec<Vec<State>>) {
        worlds.dedup();
        worlds.truncate(MOST_WORLDS);
        assert!(!worlds.is_empty(), "time went backwards");
        self.worlds = worlds;
    }

    /// Each world as it may be within the span, and when.
    fn turned(&self, span: Span) -> Vec<(Vec<State>, Span)> {
        let mut all = Vec::new();
        for world in &self.worlds {
            let mut ways = vec![(Vec::new(), span)];
            for (limit, state) in self.limits.iter().zip(world) {
                ways = ways
                    .into_iter()
                    .flat_map(|(states, span)| {
                        limit.turned(state, span).into_iter().map(move |(state, span)| {
                            let mut states: Vec<State> = states.clone();
                            states.push(state);
                            (states, span)
                        })
                    })
                    .collect();
            }
            all.extend(ways);
        }
        all
    }

    /// Whether the cost may pass, and whether it may be denied.
    fn may(&self, world: &[State], span: Span, cost: u64) -> (bool, bool) {
        let (mut allowed, mut denied) = (true, false);
        if cost == 0 {
            return (allowed, denied);
        }
        for (limit, state) in self.limits.iter().zip(world) {
            let says = limit.says(state, span, 0, cost);
            let never = cost > limit.capacity();
            allowed &= !never && *says.wait_us.start() == 0;
            denied |= never || *says.wait_us.end() > 0;
        }
        (allowed, denied)
    }

    fn charge(&self, world: &[State], span: Span, cost: u64) -> Vec<State> {
        let charged = |(limit, state): (&Limit, &State)| match cost {
            0 => state.clone(),
            _ => limit.charged(state, span, cost),
        };
        self.limits.iter().zip(world).map(charged).collect()
    }

    fn verdict(&self, world: &[State], span: Span, cost: u64, told: &Answered) -> Divergence {
        let reason = told.more.as_ref().map_or("?", |more| more.reason.as_str());
        let lefts = self.limits.iter().zip(world).map(|(limit, state)| limit.says(state, span, 0, cost).left);
        let left = lefts.map(|left| format!("{left:?}")).collect::<Vec<_>>().join(" ");
        let class = if told.limited { format!("falsely denied ({reason})") } else { "falsely admitted".to_owned() };
        Divergence { class, detail: format!("cost {cost}, by the formula {left} left") }
    }

    /// What the numbers say beside the formula, given that the verdict is right.
    fn numbers(&self, world: &[State], span: Span, charged: u64, cost: u64, told: &Answered) -> Vec<Divergence> {
        let after = self.charge(world, span, charged);
        let all: Vec<_> = if self.is_far {
            self.limits.iter().zip(&after).map(|(limit, state)| limit.says(state, span, 0, cost)).collect()
        } else {
            self.limits.iter().zip(world).map(|(limit, state)| limit.says(state, span, charged, cost)).collect()
        };
        let named =
            told.more.as_ref().and_then(|more| self.limits.iter().position(|limit| limit.name == more.limit_name));
        let Some(index) = named.or((self.limits.len() == 1).then_some(0)) else {
            return vec![Divergence { class: "limit unknown".into(), detail: format!("{told:?}") }];
        };
        let (limit, says) = (&self.limits[index], &all[index]);
        let mut found = Vec::new();
        let mut note = |class: &str, seen: i128, wanted: String| {
            found.push(Divergence { class: class.to_owned(), detail: format!("{seen} for {wanted}") });
        };
        let never = self.limits.iter().any(|limit| cost > limit.capacity());
        let waits = told.limited && !never;
        if told.limit != limit.capacity() {
            note("limit", told.limit.into(), limit.capacity().to_string());
        }
        compare(&mut note, "remaining", told.remaining, &says.left);
        let tightest = all.iter().map(|says| *says.left.end()).min().unwrap_or(0);
        if !waits && told.remaining > tightest && says.left.contains(&told.remaining) {
            note("not the tightest limit", told.remaining.into(), tightest.to_string());
        }
        let longest = |of: fn(&RangeInclusive<u64>) -> u64| all.iter().map(|says| of(&says.wait_us)).max().unwrap_or(0);
        let wait = longest(|wait| *wait.start()).max(1)..=longest(|wait| *wait.end()).max(1);
        if waits && *says.wait_us.end() == 0 {
            note("names a limit that lets it pass", index as i128, format!("{:?}", says.left));
        }
        let milliseconds = |us: &RangeInclusive<u64>| us.start().div_ceil(1_000)..=us.end().div_ceil(1_000);
        let seconds = |us: &RangeInclusive<u64>| us.start().div_ceil(1_000_000)..=us.end().div_ceil(1_000_000);
        match u64::try_from(told.retry_s) {
            Ok(retry) if waits => compare(&mut note, "retry_after", retry, &seconds(&wait)),
            Err(_) if !waits => {}
            _ => note("retry_after", told.retry_s.into(), format!("{wait:?}")),
        }
        compare(&mut note, "reset_after", told.reset_s, &seconds(&says.reset_after_us));
        let Some(more) = &told.more else { return found };
        match u64::try_from(more.retry_ms) {
            Ok(retry) if waits => compare(&mut note, "retry_after_ms", retry, &milliseconds(&wait)),
            Err(_) if !waits => {}
            _ => note("retry_after_ms", more.retry_ms.into(), format!("{wait:?}")),
        }
        compare(&mut note, "reset_at", more.reset_at_ms, &milliseconds(&says.reset_at_us));
        let reason = match (told.limited, never) {
            (false, _) => "ok",
            (true, true) => "cost",
            (true, false) => "rate",
        };
        if more.reason != reason {
            found.push(Divergence { class: format!("reason {} for {reason}", more.reason), detail: String::new() });
        }
        found
    }
}

/// Whether a reading is one of a right verdict.
fn best_fits(found: &[Divergence]) -> bool {
    !found.iter().any(|one| one.class.starts_with("falsely"))
}

fn compare(note: &mut impl FnMut(&str, i128, String), what: &str, seen: u64, wanted: &RangeInclusive<u64>) {
    if !wanted.contains(&seen) {
        let way = if seen < *wanted.start() {
            "too small"
        } else if what.starts_with("retry") && seen <= wanted.end() + wanted.end().div_ceil(5_000) + 1 {
            "larger by up to 200 ppm"
        } else {
            "too large"
        };
        note(&format!("{what} {way}"), seen.into(), format!("{}..{}", wanted.start(), wanted.end()));
    }
}

/// A window from the first request ends when its answers say; all must say the same from then on.
fn narrowed(mut world: Vec<State>, told: &Answered) -> Vec<State> {
    let Some(more) = &told.more else { return world };
    let [State::FromFirst { end: Some(end), .. }] = world.as_mut_slice() else { return world };
    let (first, last) = (more.reset_at_ms.saturating_sub(1) * 1_000 + 1, more.reset_at_ms * 1_000);
    if first <= end.last && last >= end.first {
        *end = Span { first: end.first.max(first), last: end.last.min(last) };
    }
    world
}
