//! What a limiter holds, and what it decides by that: atomics for most decisions, and habits for who asks.
//!
//! Says what to ask and takes the answer; asks nobody itself. Called by the blocking limiter and the one for tokio.

use std::time::Duration;

use super::lease::Lease;
use super::{ClientError, Decision, WhenAway};
use crate::clock::{self, Clock};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Most tokens asked for at once.
const MOST: u64 = 1 << 20;

/// More than anybody spends at once: the largest limit.
const PLENTY: u64 = 1 << 53;

/// How long a daemon that could not be asked is left alone: at least, and up to twice that.
const REST: Duration = Duration::from_millis(100);

/// Tokens of one key.
#[derive(Debug)]
pub(super) struct Purse {
    clock: Clock,
    /// Tokens that are left.
    tokens: AtomicU64,
    /// They cannot be spent from here on: nanoseconds of the clock.
    ends: AtomicU64,
    /// Nothing is to be had before.
    shut: AtomicU64,
}

/// What only the one who asks needs.
#[derive(Debug)]
pub(super) struct Habits {
    when_away: WhenAway,
    want: u64,
    /// The latest lease: tokens, and for how many nanoseconds.
    lent: (u64, u64),
    /// Why the daemon could not be asked the last time.
    pub(super) trouble: Option<String>,
}

/// What it comes to when it is somebody's turn to ask.
#[derive(Debug)]
pub(super) enum Turn {
    /// It is decided meanwhile.
    Over(bool),
    /// A lease of so many tokens is to be asked for; from when it counts.
    Lease { now: u64, want: u64 },
}

/// What is left to do when the answer is there.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing: this is the decision.
    Over(bool),
    /// More than is lent at once is asked for by itself.
    Check,
}

impl Habits {
    pub(super) fn new(when_away: WhenAway) -> Self {
        Self { when_away, want: 1, lent: (0, 0), trouble: None }
    }
}

impl Purse {
    /// An empty one.
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { clock: Clock::start(), tokens: zero(), ends: zero(), shut: zero() }
    }

    /// The decision, unless the daemon has to be asked for it.
    pub(super) fn decide(&self, cost: u64) -> Option<bool> {
        let now = self.clock.nanos();
        if self.spend(now, cost) {
            return Some(true);
        }
        (now < self.shut.load(Ordering::Relaxed)).then_some(false)
    }

    fn spend(&self, now: u64, cost: u64) -> bool {
        let taken = |tokens: u64| tokens.checked_sub(cost);
        now < self.ends.load(Ordering::Acquire)
            && self.tokens.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_ok()
    }

    /// What to ask for, unless somebody else has meanwhile.
    pub(super) fn turn(&self, habits: &mut Habits, cost: u64) -> Turn {
        let now = self.clock.nanos();
        if self.spend(now, cost) {
            return Turn::Over(true);
        }
        if now < self.shut.load(Ordering::Relaxed) {
            return Turn::Over(false);
        }
        let left = self.tokens.load(Ordering::Relaxed);
        let used_up = now < self.ends.load(Ordering::Relaxed);
        habits.want = match habits.lent.0 {
            0 => 1,
            lent if used_up => (2 * lent).min(MOST),
            lent if left > lent / 2 => (lent / 2).max(1),
            lent => lent,
        };
        Turn::Lease { now, want: habits.want.max(cost) }
    }

    /// Takes the answer to what [`Self::turn`] said to ask for at `now`.
    pub(super) fn take(&self, habits: &mut Habits, now: u64, cost: u64, answer: Result<Lease, ClientError>) -> Next {
        let lease = match answer {
            Ok(lease) => lease,
            Err(error) => {
                habits.trouble = Some(error.to_string());
                // By now: a daemon that hangs has cost the patience, and is left alone all the same.
                return Next::Over(self.alone(habits, self.clock.nanos(), cost));
            }
        };
        habits.trouble = None;
        if lease.granted == 0 {
            if lease.decision.is_allowed() {
                return Next::Over(true);
            }
            let wait = lease.decision.retry_after.unwrap_or(Duration::from_secs(1));
            self.shut.store(now.saturating_add(nanos(wait)), Ordering::Relaxed);
            return Next::Over(false);
        }
        habits.lent = (lease.granted, nanos(lease.life));
        // Counted from before it was asked for, so that it ends early rather than late.
        self.hold(now, lease.granted, nanos(lease.life));
        if self.spend(now, cost) { Next::Over(true) } else { Next::Check }
    }

    /// Takes the answer to a check that was asked for by itself.
    pub(super) fn take_check(&self, habits: &mut Habits, cost: u64, answer: Result<Decision, ClientError>) -> bool {
        match answer {
            Ok(decision) => decision.is_allowed(),
            Err(error) => {
                habits.trouble = Some(error.to_string());
                self.alone(habits, self.clock.nanos(), cost)
            }
        }
    }

    /// Puts tokens in the place of those that were held.
    fn hold(&self, now: u64, tokens: u64, life: u64) {
        let (ends, left) = (self.ends.load(Ordering::Relaxed), self.tokens.swap(0, Ordering::AcqRel));
        let (kept, ends) = if now < ends { (left, ends.min(now + life)) } else { (0, now + life) };
        self.ends.store(ends, Ordering::Release);
        self.tokens.store(kept + tokens, Ordering::Release);
    }

    /// The daemon cannot be asked.
    fn alone(&self, habits: &Habits, now: u64, cost: u64) -> bool {
        let rest = nanos(REST) + clock::random() % nanos(REST);
        match habits.when_away {
            // Asked again soon, and meanwhile as if it had lent more than anybody spends.
            WhenAway::Allow => {
                self.hold(now, PLENTY, rest);
                true
            }
            WhenAway::LastShare if habits.lent.1 > 0 => {
                // Nothing more before this is over.
                self.shut.store(now.saturating_add(habits.lent.1), Ordering::Relaxed);
                self.hold(now, habits.lent.0, habits.lent.1);
                self.spend(now, cost)
            }
            WhenAway::Deny | WhenAway::LastShare => {
                self.shut.store(now + rest, Ordering::Relaxed);
                false
            }
        }
    }

    /// What can be handed back: tokens that the daemon lent and that count still.
    pub(super) fn left(&self, habits: &Habits) -> u64 {
        let over = self.clock.nanos() >= self.ends.load(Ordering::Relaxed);
        if over || habits.trouble.is_some() { 0 } else { self.tokens.load(Ordering::Relaxed) }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
