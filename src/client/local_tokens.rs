//! The tokens of one key that this process holds, and the decisions that they allow.
//!
//! Most decisions are one atomic subtraction, which any thread does. When that fails, one caller asks the daemon: he holds
//! [`RefillState`], which says how many tokens to ask for and what to do when the daemon cannot be asked. Nothing here
//! sends anything; the blocking limiter and the one for tokio do, and hand in the answer.

use std::time::Duration;

use super::lease::Lease;
use super::{ClientError, Decision, OnDaemonLoss};
use crate::clock::{self, Clock};
use crate::sync::atomic::{AtomicU64, Ordering};

/// No lease asks for more tokens: the daemon would have to lend them all before it could decide anything else.
const MOST: u64 = 1 << 20;

/// Stands for "no bound" while everything passes. No limit is larger, so no application can spend it before it ends.
const UNBOUNDED: u64 = 1 << 53;

/// After a failure the daemon is not asked for this long, plus a random part of up to as long again, so that the
/// processes of a host do not all connect at once when their daemon is back.
const BACKOFF: Duration = Duration::from_millis(100);

/// What all threads decide by.
#[derive(Debug)]
pub(super) struct LocalTokens {
    clock: Clock,
    /// Tokens that are left.
    tokens: AtomicU64,
    /// The lease's end, in nanoseconds of `clock`: from then on no token of it is spent.
    ends: AtomicU64,
    /// Until then every check that finds too few tokens is denied without a question, because the daemon said so.
    shut: AtomicU64,
}

/// What only the caller who asks the daemon reads and writes.
#[derive(Debug)]
pub(super) struct RefillState {
    on_daemon_loss: OnDaemonLoss,
    /// Tokens to ask for next: twice of what a used-up lease had, half of one of which more than half was left.
    want: u64,
    /// The latest lease: tokens, and for how many nanoseconds.
    lent: (u64, u64),
    /// Why the daemon could not be asked, where the last attempt failed.
    pub(super) last_error: Option<String>,
}

/// What a caller finds when it is his turn to ask.
#[derive(Debug)]
pub(super) enum Turn {
    /// Another caller has asked meanwhile, and this is the decision.
    Over(bool),
    /// He has to ask for a lease of `want` tokens, whose life counts from `now`, before the question leaves.
    Lease { now: u64, want: u64 },
}

/// What is left to do once the daemon has answered.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing: this is the decision.
    Over(bool),
    /// The lease is smaller than the cost: the daemon is to check this cost by itself.
    Check,
}

impl RefillState {
    pub(super) fn new(on_daemon_loss: OnDaemonLoss) -> Self {
        Self { on_daemon_loss, want: 1, lent: (0, 0), last_error: None }
    }
}

impl LocalTokens {
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
    pub(super) fn turn(&self, refill: &mut RefillState, cost: u64) -> Turn {
        let now = self.clock.nanos();
        if self.spend(now, cost) {
            return Turn::Over(true);
        }
        if now < self.shut.load(Ordering::Relaxed) {
            return Turn::Over(false);
        }
        let left = self.tokens.load(Ordering::Relaxed);
        let used_up = now < self.ends.load(Ordering::Relaxed);
        refill.want = match refill.lent.0 {
            0 => 1,
            lent if used_up => (2 * lent).min(MOST),
            lent if left > lent / 2 => (lent / 2).max(1),
            lent => lent,
        };
        Turn::Lease { now, want: refill.want.max(cost) }
    }

    /// Takes the answer to what [`Self::turn`] said to ask for at `now`.
    pub(super) fn take(
        &self,
        refill: &mut RefillState,
        now: u64,
        cost: u64,
        answer: Result<Lease, ClientError>,
    ) -> Next {
        let lease = match answer {
            Ok(lease) => lease,
            Err(error) => {
                refill.last_error = Some(error.to_string());
                // The backoff begins now, not when the question left: a daemon that hangs has used up the timeout
                // already, and would otherwise be asked again at once.
                return Next::Over(self.decide_without_daemon(refill, self.clock.nanos(), cost));
            }
        };
        refill.last_error = None;
        if lease.granted == 0 {
            if lease.decision.is_allowed() {
                return Next::Over(true);
            }
            let wait = lease.decision.retry_after.unwrap_or(Duration::from_secs(1));
            self.shut.store(now.saturating_add(nanos(wait)), Ordering::Relaxed);
            return Next::Over(false);
        }
        refill.lent = (lease.granted, nanos(lease.life));
        // Counted from before it was asked for, so that it ends early rather than late.
        self.hold(now, lease.granted, nanos(lease.life));
        if self.spend(now, cost) { Next::Over(true) } else { Next::Check }
    }

    /// Takes the answer to a check that was asked for by itself.
    pub(super) fn take_check(
        &self,
        refill: &mut RefillState,
        cost: u64,
        answer: Result<Decision, ClientError>,
    ) -> bool {
        match answer {
            Ok(decision) => decision.is_allowed(),
            Err(error) => {
                refill.last_error = Some(error.to_string());
                self.decide_without_daemon(refill, self.clock.nanos(), cost)
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

    /// The decision by [`OnDaemonLoss`], which holds until the daemon is asked again.
    fn decide_without_daemon(&self, refill: &RefillState, now: u64, cost: u64) -> bool {
        let rest = nanos(BACKOFF) + clock::random() % nanos(BACKOFF);
        match refill.on_daemon_loss {
            // As if it had lent more than anybody can spend, until it is asked again.
            OnDaemonLoss::Allow => {
                self.hold(now, UNBOUNDED, rest);
                true
            }
            OnDaemonLoss::LastShare if refill.lent.1 > 0 => {
                // A second life of the last lease is all there is: the daemon is not asked before it is over.
                self.shut.store(now.saturating_add(refill.lent.1), Ordering::Relaxed);
                self.hold(now, refill.lent.0, refill.lent.1);
                self.spend(now, cost)
            }
            OnDaemonLoss::Deny | OnDaemonLoss::LastShare => {
                self.shut.store(now + rest, Ordering::Relaxed);
                false
            }
        }
    }

    /// What can be handed back: tokens that the daemon lent and that count still.
    pub(super) fn left(&self, refill: &RefillState) -> u64 {
        let over = self.clock.nanos() >= self.ends.load(Ordering::Relaxed);
        if over || refill.last_error.is_some() { 0 } else { self.tokens.load(Ordering::Relaxed) }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
