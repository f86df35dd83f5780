//! What a limit says, by its formula alone: the judge of tests/oracle.rs. It shares no line with the product.
//!
//! A test knows when it sent a check and when it read the answer; the decision fell between, by a clock that it
//! does not see. So what is not known exactly is carried along: a bucket's TAT as an interval, and a window that may
//! have turned meanwhile as two hypotheses. Times are picoseconds where they divide, else microseconds.

use std::ops::RangeInclusive;

/// How tokens come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A token bucket.
    Bucket,
    /// Windows aligned to the epoch.
    Fixed,
    /// A window that opens with its first charge.
    FromFirst,
    /// The estimate from two aligned windows.
    Sliding,
}

/// A limit as the formula needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub kind: Kind,
    pub count: u64,
    pub period_us: u64,
    pub burst: u64,
    /// As the daemon names it.
    pub name: String,
}

/// Picoseconds in a microsecond.
const PICO: i128 = 1_000_000;

/// Microseconds between which something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: u64,
    pub last: u64,
}

/// What has been charged of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The TAT lies between, in picoseconds.
    Bucket { least: i128, most: i128 },
    /// Used in the window that ends there.
    Fixed { end: u64, used: u64 },
    /// Used in the window that ends between; none is open without.
    FromFirst { end: Option<Span>, used: u64 },
    /// Used in the window that starts there, and in the one before.
    Sliding { start: u64, used: u64, before: u64 },
}

impl State {
    /// What a window was charged; a bucket has no such number.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        match *self {
            Self::Bucket { .. } => None,
            Self::Fixed { used, .. } | Self::FromFirst { used, .. } | Self::Sliding { used, .. } => Some(used),
        }
    }
}

/// What one limit may say of one check: least and most.
#[derive(Clone, Debug)]
pub struct Says {
    pub left: RangeInclusive<u64>,
    /// Microseconds until the cost passes; 0 when it does.
    pub wait_us: RangeInclusive<u64>,
    pub reset_after_us: RangeInclusive<u64>,
    pub reset_at_us: RangeInclusive<u64>,
}

fn micros(picos: i128, up: bool) -> u64 {
    let whole = if up { (picos + PICO - 1).div_euclid(PICO) } else { picos.div_euclid(PICO) };
    u64::try_from(whole.max(0)).expect("a time of this age")
}

fn picos(at: u64) -> i128 {
    i128::from(at) * PICO
}

impl Limit {
    /// The most that can be spent at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        if self.kind == Kind::Bucket { self.burst } else { self.count }
    }

    /// Nothing was charged yet.
    #[must_use]
    pub fn fresh(&self) -> State {
        match self.kind {
            Kind::Bucket => State::Bucket { least: 0, most: 0 },
            Kind::Fixed => State::Fixed { end: 0, used: 0 },
            Kind::FromFirst => State::FromFirst { end: None, used: 0 },
            Kind::Sliding => State::Sliding { start: 0, used: 0, before: 0 },
        }
    }

    /// The time that tokens cost, in picoseconds: the formula's, and rounded up to a microsecond: docs/concepts/algorithms.md.
    fn cost(&self, tokens: u64) -> (i128, i128) {
        let (product, count) = (i128::from(tokens) * i128::from(self.period_us), i128::from(self.count));
        (product * PICO / count, (product + count - 1) / count * PICO)
    }

    /// How far the TAT may be ahead: the cost of the burst, and the most that its single roundings add.
    fn depth(&self) -> (i128, i128) {
        let (least, most) = self.cost(self.burst);
        let divides = self.period_us.is_multiple_of(self.count);
        let slack = if divides { 0 } else { self.burst.min(self.period_us / self.count) };
        (least, most + picos(slack))
    }

    fn tokens_in(&self, span: i128) -> u64 {
        let tokens = span.max(0) * i128::from(self.count) / (i128::from(self.period_us) * PICO);
        u64::try_from(tokens).unwrap_or(u64::MAX).min(self.burst)
    }

    /// What the state may be at some time of the span, and at which time of it.
    #[must_use]
    pub fn turned(&self, state: &State, span: Span) -> Vec<(State, Span)> {
        let period = self.period_us;
        let windows = |last: u64| {
            (span.first / period..=span.last / period).filter_map(move |window| {
                let (start, end) = (window * period, (window + 1) * period);
                let within = Span { first: span.first.max(start), last: span.last.min(end - 1) };
                (start >= last).then_some((start, end, within))
            })
        };
        match *state {
            State::Bucket { .. } => vec![(state.clone(), span)],
            State::Fixed { end: old, used } => windows(old.saturating_sub(period))
                .map(|(_, end, within)| (State::Fixed { end, used: if end == old { used } else { 0 } }, within))
                .collect(),
            State::Sliding { start: old, used, before } => windows(old)
                .map(|(start, _, within)| {
                    let (used, before) = if start == old {
                        (used, before)
                    } else if start == old + period {
                        (0, used)
                    } else {
                        (0, 0)
                    };
                    (State::Sliding { start, used, before }, within)
                })
                .collect(),
            State::FromFirst { end: None, .. } => vec![(self.fresh(), span)],
            State::FromFirst { end: Some(end), used } => {
                let mut both = Vec::new();
                if span.first < end.last {
                    let within = Span { first: span.first, last: span.last.min(end.last - 1) };
                    let end = Span { first: end.first.max(span.first + 1), last: end.last };
                    both.push((State::FromFirst { end: Some(end), used }, within));
                }
                if span.last >= end.first {
                    both.push((self.fresh(), Span { first: span.first.max(end.first), last: span.last }));
                }
                both
            }
        }
    }

    /// What is left after `charged` tokens, how long `cost` must wait, when all is whole again; of a state that was
    /// turned to the span.
    #[must_use]
    pub fn says(&self, state: &State, span: Span, charged: u64, cost: u64) -> Says {
        let fits = cost <= self.capacity();
        match *state {
            State::Bucket { least, most } => {
                let (first, last) = (picos(span.first), picos(span.last));
                let ((charge_least, charge_most), (depth_least, depth_most)) = (self.cost(charged), self.depth());
                let (cost_least, cost_most) = self.cost(cost);
                // Everything falls or grows with the time and with the TAT: the ends of the span say all.
                let ahead_least = (least - last).max(0) + charge_least;
                let ahead_most = (most - first).max(0) + charge_most;
                let wait_least = if fits { ahead_least + cost_least - depth_most } else { 0 };
                let wait_most = if fits { ahead_most + cost_most - depth_least } else { 0 };
                Says {
                    left: self.tokens_in(depth_least - ahead_most)..=self.tokens_in(depth_most - ahead_least),
                    wait_us: micros(wait_least, false)..=micros(wait_most, true),
                    reset_after_us: micros(ahead_least, false)..=micros(ahead_most, true),
                    reset_at_us: micros(least.max(first) + charge_least, false)
                        ..=micros(most.max(last) + charge_most, true),
                }
            }
            State::Fixed { end, used } => {
                self.says_of_window(span, used + charged, cost, Span { first: end, last: end })
            }
            State::FromFirst { end: None, used } if charged == 0 => {
                let says = self.says_of_window(span, used, cost, Span { first: span.first, last: span.last });
                Says { reset_after_us: 0..=0, ..says }
            }
            State::FromFirst { end: None, used } => {
                let end = Span { first: span.first + self.period_us, last: span.last + self.period_us };
                let says = self.says_of_window(span, used + charged, cost, end);
                Says { reset_after_us: self.period_us..=self.period_us, ..says }
            }
            State::FromFirst { end: Some(end), used } => self.says_of_window(span, used + charged, cost, end),
            State::Sliding { start, used, before } => self.says_of_slide(span, cost, (start, used + charged, before)),
        }
    }

    fn says_of_window(&self, span: Span, used: u64, cost: u64, end: Span) -> Says {
        let left = self.count.saturating_sub(used);
        let rest = end.first.saturating_sub(span.last)..=end.last.saturating_sub(span.first);
        let passes = left >= cost || cost > self.count;
        Says {
            left: left..=left,
            wait_us: if passes { 0..=0 } else { rest.clone() },
            reset_after_us: rest,
            reset_at_us: end.first..=end.last,
        }
    }

    fn says_of_slide(&self, span: Span, cost: u64, (start, used, before): (u64, u64, u64)) -> Says {
        let (period, end) = (self.period_us, start + self.period_us);
        let left_at = |at: u64| {
            let weight = u128::from(before) * u128::from(end - at);
            let weighed = u64::try_from(weight.div_ceil(u128::from(period))).expect("a part of a count");
            self.count.saturating_sub(used).saturating_sub(weighed)
        };
        // The longest that an earlier window may still reach into the sliding one and weigh no more than the room.
        let reach = |weighs: u64, room: u64| {
            if weighs <= room {
                return period;
            }
            let reach = u128::from(room) * u128::from(period) / u128::from(weighs);
            u64::try_from(reach).expect("room is below, so this is below the period")
        };
        let ready = match self.count.checked_sub(used.saturating_add(cost)) {
            _ if cost > self.count => 0,
            Some(room) if reach(before, room) > 0 => end - reach(before, room),
            _ => end + period - reach(used, self.count - cost),
        };
        let wait = |at: u64| if left_at(at) >= cost { 0 } else { ready.saturating_sub(at) };
        let whole = match (used, before) {
            (1.., _) => Some(end + period),
            (0, 1..) => Some(end),
            (0, 0) => None,
        };
        let reset_at = whole.map_or(span.first..=span.last, |at| at..=at);
        Says {
            left: left_at(span.first)..=left_at(span.last),
            wait_us: wait(span.last)..=wait(span.first),
            reset_after_us: whole.map_or(0..=0, |at| at - span.last..=at - span.first),
            reset_at_us: reset_at,
        }
    }

    /// The state after a charge at some time of the span.
    #[must_use]
    pub fn charged(&self, state: &State, span: Span, cost: u64) -> State {
        match state.clone() {
            State::Bucket { least, most } => {
                let ((cost_least, cost_most), (_, depth)) = (self.cost(cost), self.depth());
                // It fitted, so there was no more debt than that.
                let most = most.min(picos(span.last) + depth - cost_least).max(least);
                State::Bucket {
                    least: least.max(picos(span.first)) + cost_least,
                    most: most.max(picos(span.last)) + cost_most,
                }
            }
            State::Fixed { end, used } => State::Fixed { end, used: used + cost },
            State::FromFirst { end, used } => {
                let opened = Span { first: span.first + self.period_us, last: span.last + self.period_us };
                State::FromFirst { end: Some(end.unwrap_or(opened)), used: used + cost }
            }
            State::Sliding { start, used, before } => State::Sliding { start, used: used + cost, before },
        }
    }

    /// The state after a cost came back.
    #[must_use]
    pub fn refunded(&self, state: &State, cost: u64) -> State {
        match state.clone() {
            State::Bucket { least, most } => {
                let (worth, rounded) = self.cost(cost);
                State::Bucket { least: (least - rounded).max(0), most: (most - worth + PICO).max(0) }
            }
            State::Fixed { end, used } => State::Fixed { end, used: used.saturating_sub(cost) },
            State::FromFirst { end, used } => State::FromFirst { end, used: used.saturating_sub(cost) },
            State::Sliding { start, used, before } => State::Sliding { start, used: used.saturating_sub(cost), before },
        }
    }
}
