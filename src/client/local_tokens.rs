//! The tokens of one key that this process holds, and the decisions that they allow.
//!
//! Most decisions are one atomic subtraction, which any thread does. When tokens are missing, one caller asks the
//! daemon. It holds [`RefillState`], which says how many tokens to ask for and what to do when the daemon cannot be
//! asked. Nothing is sent here: the blocking limiter and the one for tokio send, and bring the answer.

use std::time::Duration;

use super::lease::Lease;
use super::{ClientError, Decision, OnDaemonLoss};
use crate::clock::{self, Clock};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Most tokens that one lease asks for. The daemon would have to lend more of them before it could decide anything else.
const MOST: u64 = 1 << 20;

/// The tokens that are held while everything is admitted. No limit is larger, so no application can spend them before
/// the daemon is asked again.
const UNBOUNDED: u64 = 1 << 53;

/// After a failure the daemon is not asked for this long, plus a random part of up to as long again, so that the
/// processes of a host do not all connect at once when their daemon is back.
const BACKOFF: Duration = Duration::from_millis(100);

/// The state that all threads read.
#[derive(Debug)]
pub(super) struct LocalTokens {
    clock: Clock,
    /// Tokens that can be spent.
    tokens: AtomicU64,
    /// The lease's end, in nanoseconds of `clock`. No token is spent after it.
    ends: AtomicU64,
    /// Until this time, every check that finds too few tokens is denied without asking, because the daemon said so.
    shut: AtomicU64,
}

/// The state that only the caller who asks the daemon uses.
#[derive(Debug)]
pub(super) struct RefillState {
    on_daemon_loss: OnDaemonLoss,
    /// Tokens to ask for next: twice as many as in the last lease if all of those were used, and half as many if more
    /// than half were left.
    want: u64,
    /// The latest lease: its tokens, and its life in nanoseconds.
    lent: (u64, u64),
    /// Why the last attempt to ask the daemon failed, if it did.
    pub(super) last_error: Option<String>,
}

/// What a caller must do when it has the right to ask.
#[derive(Debug)]
pub(super) enum Turn {
    /// Nothing: another caller has asked meanwhile, and this is the decision.
    Over(bool),
    /// Ask for a lease of `want` tokens. Its life counts from `now`, before the request is sent.
    Lease { now: u64, want: u64 },
}

/// What is left to do after the daemon has answered.
#[derive(Debug)]
pub(super) enum AfterRefill {
    /// Nothing: this is the decision.
    Over(bool),
    /// The lease is smaller than the cost: ask the daemon to check this cost by itself.
    Check,
}

impl RefillState {
    pub(super) fn new(on_daemon_loss: OnDaemonLoss) -> Self {
        Self { on_daemon_loss, want: 1, lent: (0, 0), last_error: None }
    }
}

impl LocalTokens {
    /// Without tokens.
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { clock: Clock::start(), tokens: zero(), ends: zero(), shut: zero() }
    }

    /// The decision, unless the daemon must be asked.
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

    /// What to ask for, unless another caller has asked meanwhile.
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
    ) -> AfterRefill {
        let lease = match answer {
            Ok(lease) => lease,
            Err(error) => {
                refill.last_error = Some(error.to_string());
                // The backoff begins now and not when the request was sent. Otherwise a daemon that hangs would be
                // asked again at once, because the request's timeout has used up the backoff.
                return AfterRefill::Over(self.decide_without_daemon(refill, self.clock.nanos(), cost));
            }
        };
        refill.last_error = None;
        if lease.granted == 0 {
            if lease.decision.is_allowed() {
                return AfterRefill::Over(true);
            }
            let wait = lease.decision.retry_after.unwrap_or(Duration::from_secs(1));
            self.shut.store(now.saturating_add(nanos(wait)), Ordering::Relaxed);
            return AfterRefill::Over(false);
        }
        refill.lent = (lease.granted, nanos(lease.life));
        // Counted from before the request, so that the lease ends here rather too early than too late.
        self.hold(now, lease.granted, nanos(lease.life));
        if self.spend(now, cost) { AfterRefill::Over(true) } else { AfterRefill::Check }
    }

    /// Takes the answer to the check of a single cost.
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

    /// Replaces the held tokens.
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
            // As if the daemon had lent more than anybody can spend, until it is asked again.
            OnDaemonLoss::Allow => {
                self.hold(now, UNBOUNDED, rest);
                true
            }
            OnDaemonLoss::LastShare if refill.lent.1 > 0 => {
                // The last lease, granted once more, is all there is: the daemon is not asked before it is over.
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

    /// Tokens that can be returned: those that the daemon has lent and that have not expired.
    pub(super) fn left(&self, refill: &RefillState) -> u64 {
        let over = self.clock.nanos() >= self.ends.load(Ordering::Relaxed);
        if over || refill.last_error.is_some() { 0 } else { self.tokens.load(Ordering::Relaxed) }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
