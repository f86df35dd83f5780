//! When a key asks the store of its own accord, and when it had better not.
//!
//! A key that is spent asks in the background now and then, since others may have handed tokens back; a key whose
//! tokens trickle in, and whom others share, asks at a pace; and a key in use leases a part of the next window shortly
//! before that begins. Nothing here counts tokens: were it forgotten, the store would be asked earlier or later.

use crate::core::call::Window;
use crate::core::decision::Decision;
use crate::core::time::{Due, Instant, Micros, Timestamp};

/// The pause between two questions gets longer only after more than so many answers in a row that brought nothing.
const ANSWERS_BEFORE_LONGER: u8 = 3;

/// A pause doubles at most so many times, so that the shift cannot overflow; callers bound it sooner.
const MOST_DOUBLINGS: u8 = 8;

/// When a key asks the store though nobody waits for the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    /// Answers in a row that brought nothing.
    fruitless: u8,
    /// Before this a denied check does not ask the store again in the background.
    probe_at: Due,
    /// Before this the store is not asked, because it had few tokens and they trickle in: then there are some.
    paced_until: Due,
    /// What denied clients were told.
    promise: Option<Promise>,
    /// The plan to lease a part of the next window.
    plan: Plan,
}

/// The wait that denied clients were told. A client that comes back after it finds tokens here, or the store is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// The earliest time that one was told.
    pub(super) at: Instant,
    /// The largest cost that one may come with.
    pub(super) cost: u64,
}

/// Once in each window a key in use plans to lease a part of the next one.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// When that window begins; no time: nothing was ever planned.
    begins: Timestamp,
    /// When the part is to be leased; never: it was, or there was a reason not to, and once is enough.
    at: Due,
}

impl Pacing {
    /// Nothing has been asked, and nobody was told anything.
    pub(super) const NEW: Self = Self {
        fruitless: 0,
        probe_at: Due::AT_ONCE,
        paced_until: Due::AT_ONCE,
        promise: None,
        plan: Plan { begins: Timestamp::NONE, at: Due::NEVER },
    };

    /// The key begins anew: nobody waits for tokens to trickle in. Promises stand, and so does what was planned.
    pub(super) fn begin_anew(&mut self) {
        self.fruitless = 0;
        (self.paced_until, self.probe_at) = (Due::AT_ONCE, Due::AT_ONCE);
    }

    /// The store has answered an acquire with so many tokens.
    pub(super) fn note_answer(&mut self, granted: u64) {
        self.fruitless = if granted > 0 { 0 } else { self.fruitless.saturating_add(1) };
    }

    /// Whether the last answer brought nothing.
    pub(super) fn is_fruitless(&self) -> bool {
        self.fruitless > 0
    }

    /// A pause that gets longer with each answer that brought nothing.
    pub(super) fn drawn_out(&self, pause: u64) -> u64 {
        pause << self.fruitless.saturating_sub(ANSWERS_BEFORE_LONGER).min(MOST_DOUBLINGS)
    }

    /// Whether a denied check may ask the store in the background.
    pub(super) fn may_probe(&self, now: Instant) -> bool {
        self.probe_at.has_come(now)
    }

    /// Whether a lease that runs low may ask for more: where tokens trickle in, from a while before there are some on,
    /// so that nobody waits for the answer.
    pub(super) fn may_refill(&self, now: Instant) -> bool {
        self.probe_at.min(self.paced_until).has_come(now)
    }

    /// No denied check asks the store in the background before that time.
    pub(super) fn probe_at(&mut self, at: Instant) {
        self.probe_at = Due::at(at);
    }

    /// Whether a denied check may ask the store before that time.
    pub(super) fn probes_before(&self, at: Instant) -> bool {
        self.probe_at < Due::at(at)
    }

    /// Whether checks are denied until tokens have trickled in.
    pub(super) fn is_paced(&self, now: Instant) -> bool {
        !self.paced_until.has_come(now)
    }

    /// How long they are.
    pub(super) fn pause(&self, now: Instant) -> Micros {
        self.paced_until.after(now)
    }

    /// The store may be asked whenever somebody waits.
    pub(super) fn go_on(&mut self) {
        self.paced_until = Due::AT_ONCE;
    }

    /// Nobody asks the store before that time; in the background it is asked so much earlier.
    pub(super) fn pause_until(&mut self, at: Instant, early: Micros) {
        (self.paced_until, self.probe_at) = (Due::at(at), Due::at(at - early));
    }

    /// What denied clients were told.
    pub(super) fn promise(&self) -> Option<Promise> {
        self.promise
    }

    /// Takes note of what a client was told.
    pub(super) fn note_promise(&mut self, now: Instant, cost: u64, decision: &Decision) {
        let standing = self.promise.filter(|promise| promise.at > now);
        let Some(wait) = decision.retry_after else {
            // What was there for who came back has been spent.
            self.promise = standing;
            return;
        };
        let at = now + wait;
        self.promise = Some(match standing {
            Some(promise) => Promise { at: promise.at.min(at), cost: promise.cost.max(cost) },
            None => Promise { at, cost },
        });
    }

    /// Whether leasing ahead of the window that begins then was planned.
    pub(super) fn has_planned(&self, begins: Timestamp) -> bool {
        self.plan.begins == begins
    }

    /// Plans to lease a part of the window that begins then.
    pub(super) fn plan_ahead(&mut self, begins: Timestamp, at: Instant) {
        self.plan = Plan { begins, at: Due::at(at) };
    }

    /// When a part of the next window is to be leased.
    pub(super) fn ahead_at(&self) -> Due {
        self.plan.at
    }

    /// The window to lease a part of, if the time for that has come.
    pub(super) fn plan_due(&self, now: Instant) -> Option<Window> {
        self.plan.at.has_come(now).then_some(Window::Next { begins: self.plan.begins })
    }

    /// A plan whose time has come was carried out, or there was a reason not to.
    pub(super) fn drop_plan(&mut self, now: Instant) {
        if self.plan.at.has_come(now) {
            self.plan.at = Due::NEVER;
        }
    }
}
