//! What a key of a concurrent limit does. All its calls and replies are sent by [`ConcurrentKey::advance`], and by nothing else.
//!
//! It first answers those who wait and can be answered, and then asks the store for what is missing, in one call. What need not wait is no
//! matter of this file: an input returns it. Part of `concurrent/key.rs`.

use super::{ConcurrentKey, RENEW, Wish};
use crate::core::answer::{Resolution, turned_away};
use crate::core::call::{Call, Occupy, Op};
use crate::core::calls::{Flight, Waiter};
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::limit::MAX_SLOTS;
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Due, Instant, Micros};

/// A node asks for so many times the permits that are in use or wanted, so that demand may double until the answer to
/// the next call.
const WANT_TIMES: u64 = 2;

/// How long a denial by the store is remembered. Longer, and a permit that is released elsewhere stays unused for longer; shorter, and denied
/// clients make more calls.
const DENIED: Micros = Micros(50_000);

/// A denial is remembered for longer by up to this fraction, at random, so that nodes that were denied together do not ask together.
const JITTER_PART: u64 = 4;

impl ConcurrentKey {
    /// Grants what an input wishes, and does all that follows.
    pub(super) fn advance(&mut self, cx: &mut Context, now: Instant, wish: Wish) {
        if let Some(lost) = self.flight.as_mut().filter(|flight| flight.is_lost) {
            lost.send_again(cx, now);
        }
        match wish {
            Wish::Nothing | Wish::Ahead | Wish::Join | Wish::Again | Wish::HandBack => {}
            Wish::Released => self.serve_line(cx, now, Source::Lease),
            Wish::Answered => {
                self.serve_line(cx, now, Source::Store);
                self.deny_line(cx, now);
            }
            Wish::TurnAway => self.turn_away(cx, now, |_| true),
            Wish::Look => {
                self.serve_line(cx, now, Source::Lease);
                self.turn_away(cx, now, |waiter| waiter.deadline <= now);
            }
        }
        if let Some(want) = self.intend(cx, now, wish) {
            self.ask(cx, now, want);
        }
    }

    /// How many permits the store is asked for; `None`: it is not asked. One call is under way at a time.
    fn intend(&self, cx: &Context, now: Instant, wish: Wish) -> Option<u64> {
        if self.flight.is_some() {
            return None;
        }
        let used = self.permits.used();
        let wanted = match wish {
            Wish::Nothing | Wish::Released | Wish::TurnAway => None,
            Wish::Ahead => (!cx.draining && self.is_low(now)).then_some(WANT_TIMES * used),
            Wish::Answered if self.line.is_empty() => None,
            Wish::Answered | Wish::Join | Wish::Again => Some(WANT_TIMES * (used + self.line.wanted())),
            Wish::Look => self.renewal(now),
            Wish::HandBack => return (self.lent > used).then_some(used),
        };
        wanted.map(|want| want.max(self.reserved(cx, now)))
    }

    /// Permits that a call must not hand back, though no client is known to need them.
    fn reserved(&self, cx: &Context, now: Instant) -> u64 {
        if !self.rule.is_entitled_concurrent() {
            return 0;
        }
        if self.answered.is_none() && self.may_inherit(cx, now) {
            // It is not known how many the process before had, so all of them stay this node's.
            return MAX_SLOTS;
        }
        // What a call without an answer hands back is lost to both sides until the store is there again.
        if self.away.is_some() { self.counted(now) } else { 0 }
    }

    /// Reports how many permits are in use, and how many this node would like.
    fn ask(&mut self, cx: &mut Context, now: Instant, want: u64) {
        let used = self.permits.used();
        let waiting = self.line.wanted();
        self.line.note_answers(1);
        let most = if want == MAX_SLOTS { want } else { self.most() };
        let want = want.max(used + waiting).min(most.max(used));
        // Permits that this node no longer wants belong to others from now on, because the store may execute the call at any time from now
        // on, and its answer may be lost. It never leaves the node fewer than `want` of those that it has.
        if !on(Mutant::PermitsKeptThoughHandedBack) {
            self.lent = self.lent.min(want);
        }
        let used = if on(Mutant::PermitsNotTold) { 0 } else { used };
        let lease = self.lease(cx);
        if self.rule.is_entitled_concurrent() {
            self.doubt_until = Due::at(now + lease);
            self.renew_at = Due::at(now + RENEW);
        }
        let occupy = Occupy { used, need: waiting, want, lease };
        let (id, digest, rule) = (cx.id(), self.digest, self.rule.clone());
        let call = Call { id, digest, rule, op: Op::Occupy(occupy), sent_at: now };
        self.flight = Some(Flight::send(cx, call, now));
        (self.peak, self.idle_at) = (used, Due::NEVER);
    }

    /// Serves the line from its head, as far as permits suffice.
    fn serve_line(&mut self, cx: &mut Context, now: Instant, source: Source) {
        while let Some(waiter) = self.line.first() {
            let decision = if waiter.cost == 0 {
                (waiter.answers > 0 || self.away.is_some()).then(|| self.peeked(cx, now, 0))
            } else {
                let fits = self.permits.used() + waiter.cost <= self.usable(now);
                let decides = fits || self.away.is_some();
                if decides { self.decide(cx, now, waiter.cost, Source::Store) } else { None }
            };
            let Some(decision) = decision else { break };
            let source = if decision.source == Source::Store { source } else { decision.source };
            self.answer_first(cx, Decision { source, ..decision });
        }
    }

    /// Denies those at the head of the line for whom the store was asked, and had fewer permits. If it had more than this node knew, they wait
    /// on, and it is asked again.
    fn deny_line(&mut self, cx: &mut Context, now: Instant) {
        let denied = |key: &Self| key.line.first().filter(|waiter| waiter.answers > 0 && !key.fits(waiter.cost));
        if denied(self).is_some() {
            self.denied_until = Due::at(now + DENIED + cx.jitter(Micros(DENIED.0 / JITTER_PART)));
        }
        while let Some(waiter) = denied(self) {
            let decision = self.answer(cx, now, waiter.cost, Resolution::deny(Reason::Rate, Source::Store));
            self.answer_first(cx, decision);
            // The first waiter may have asked for more than those behind it.
            self.serve_line(cx, now, Source::Store);
        }
    }

    /// Denies the waiters from the head of the line on that have to go, up to the first that may wait longer. The store
    /// has not answered them in time, which is no outage.
    fn turn_away(&mut self, cx: &mut Context, now: Instant, has_to_go: impl Fn(&Waiter) -> bool) {
        while let Some(waiter) = self.line.first().filter(&has_to_go) {
            let decision = match (waiter.cost, turned_away(&self.rule, cx.queue())) {
                (0, _) => self.peeked(cx, now, 0),
                (cost, resolution) if resolution.verdict == Verdict::Allow => self.take(cx, now, cost, Source::Policy),
                (cost, resolution) => {
                    let decision = self.answer(cx, now, cost, resolution);
                    Decision { remaining: decision.remaining.min(cost - 1), ..decision }
                }
            };
            self.answer_first(cx, decision);
        }
    }

    /// Answers the first in line.
    fn answer_first(&mut self, cx: &mut Context, decision: Decision) {
        let Some(waiter) = self.line.take_first() else { return };
        cx.stats.waiting -= 1;
        if waiter.cost > 0 {
            cx.policies[self.policy].1.count(&decision);
        }
        cx.reply(waiter.ticket, decision);
    }
}
