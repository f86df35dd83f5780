//! Tokens that nodes lend on to each other: what a peer asks this node for, and what comes of an ask of a peer.
//!
//! The node that is asked serves the peer like a check of its own that waits in the key's line, from what the store lent it. So each
//! token is counted by the store once, and spent here once, and a peer gets no more than was held. The node that asks admits its line with
//! what it is lent, at the moment at which that arrives, and keeps nothing of it, because it has no part in the other's account with
//! the store. An answer is taken once; the tokens of one that is lost, or comes late, are lost.

use std::num::NonZeroU64;

use super::advance::advance;
use super::calls::Asking;
use super::key::LeasedKey;
use super::loans::{lend, lend_aside};
use super::outcomes::{pay_credit, pay_debt, probe_pause};
use super::wish::Wish;
use crate::core::ask::{Answer, Loan, Payer, Refusal, Terms};
use crate::core::call::Counter;
use crate::core::calls::{Waiter, WaitingPeer};
use crate::core::context::Context;
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::request::AskOutcome;
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, Micros};

/// A denial by a peer is remembered for longer than its pause by up to one part in so many, at random, so that nodes that
/// were denied together do not ask together.
const JITTER_PART: u64 = 4;

/// A peer asks for tokens.
pub(in crate::core) fn serve(key: &mut LeasedKey, cx: &mut Context, now: Instant, terms: &Terms) -> AskOutcome {
    let Some(least) = NonZeroU64::new(terms.least.min(terms.want)) else {
        return AskOutcome::Answered(Err(Refusal::Busy));
    };
    let peer = WaitingPeer { least, until: now + terms.patience, aside: terms.aside };
    if let Some(refusal) = refuses(key, cx, now, terms) {
        let lends = refusal == Refusal::NoStore && terms.aside;
        let loan = if lends { lend_aside(key, cx, now, terms.want, least.get()) } else { None };
        if loan.is_some() && key.rare.outage.phase().asks_again(now) {
            // Where only peers ask for a key, no check of this node's own clients makes the call that finds the store back, or shows
            // that it is still away.
            advance(key, cx, now, Wish::Tokens);
        }
        return AskOutcome::Answered(loan.ok_or(refusal));
    }
    key.demand.note_check(now);
    if key.rare.line.is_empty()
        && let Some(answer) = lend(key, cx, now, terms.want, peer, 0)
    {
        return AskOutcome::Answered(answer);
    }
    if key.rare.line.is_full() || key.is_overdue(now, cx.patience()) {
        return AskOutcome::Answered(Err(Refusal::Busy));
    }
    let ticket = cx.ticket();
    let deadline = now + cx.settings.timeout;
    key.rare.line.join(Waiter { peer: Some(peer), ..Waiter::new(ticket, terms.want, deadline) });
    cx.stats.waiting += 1;
    advance(key, cx, now, Wish::Nothing);
    AskOutcome::Parked(ticket)
}

/// Why this node does not serve a peer, if it does not.
fn refuses(key: &LeasedKey, cx: &Context, now: Instant, terms: &Terms) -> Option<Refusal> {
    let is_other = terms.rule != key.view.rule().fingerprint();
    let is_too_much = key.view.rule().limits.iter().any(|limit| terms.want > limit.capacity());
    if (is_other || is_too_much) && !on(Mutant::LendsUnderOtherLimits) {
        return Some(Refusal::OtherRule);
    }
    if cx.draining && !on(Mutant::LendsOnLeaving) {
        return Some(Refusal::Leaving);
    }
    // A node that cannot reach the store asks one peer after another, so it is asking one at most times, too. A peer that is told
    // `NoStore` asks elsewhere for a while; one that is told `Asks` would ask here again soon.
    if key.is_away(now) && !key.rare.outage.phase().is_restoring() && !on(Mutant::LendsOnItsShare) {
        return Some(Refusal::NoStore);
    }
    (key.rare.calls.is_asking() && !on(Mutant::LendsWhatItAsksFor)).then_some(Refusal::Asks)
}

/// A peer has answered the ask of that id.
pub(in crate::core) fn handle_answer(key: &mut LeasedKey, cx: &mut Context, now: Instant, id: u64, answer: &Answer) {
    let Some(asking) = key.rare.calls.end_ask(id) else { return };
    advance(key, cx, now, Wish::DropEnded);
    cx.owners.note_answer(asking.peer, now.since(asking.sent));
    let wish = match answer {
        Ok(loan) => {
            if loan.aside {
                cx.owners.note_aside(now, asking.peer, loan.tokens);
            } else {
                cx.owners.note_loan(now, asking.peer);
            }
            take_loan(key, cx, now, &asking, loan)
        }
        Err(refusal) => {
            cx.owners.note_refusal(now, asking.peer, asking.ask.terms.rule, *refusal);
            Wish::Nothing
        }
    };
    advance(key, cx, now, wish);
}

/// Takes what a peer lends on, for those in line. What they do not take is lost, as the peer has spent it: so others can be lent
/// less of a window. It is not kept here, because a bucket's token would be spent at another time than it was charged.
fn take_loan<'a>(key: &mut LeasedKey, cx: &mut Context, now: Instant, asking: &Asking, loan: &'a Loan) -> Wish<'a> {
    let is_over = loan.lasts.is_some_and(|lasts| asking.sent + lasts.rounded_early() <= now);
    let is_void = asking.ask.rule.limits != key.view.rule().limits;
    let tokens = if is_void || is_over && !on(Mutant::LoanOutlivesWindow) { 0 } else { loan.tokens };
    let stats = cx.policy_stats(key.policy());
    stats.granted += loan.tokens;
    stats.expired += loan.tokens - tokens;
    if is_void {
        return Wish::Nothing;
    }
    if is_over && !loan.aside && !on(Mutant::LoanOutlivesWindow) && !on(Mutant::LoanOfAnotherWindow) {
        // The loan was of a window that has ended since, and its counters say nothing of the next one.
        key.rare.line.forget_ask();
        return Wish::Nothing;
    }
    if loan.aside {
        key.learn_from_aside(now, asking, loan);
    } else if loan.tokens == 0 && denies_who_was_told_to_come(key, now, asking) {
        // The peer knows less than this node told the client by, so those in line ask the store.
        return Wish::Nothing;
    } else if key.learn_from_loan(now, asking.sent, loan) {
        if loan.tokens == 0 && key.has_ended(now, loan) {
            // An empty loan, of a window that is over by now, says nothing of the next one, either, of which the peer may have all.
            key.rare.line.forget_ask();
            return Wish::Nothing;
        }
        remember_denial(key, cx, now, loan);
    }
    let mut paid = 0;
    if !on(Mutant::DebtNotPaidByLoans) && !key.view.rule().owes_store_alone() {
        paid = pay_debt(key, cx, now, tokens, Payer::Peer);
        paid += pay_credit(key, cx, tokens - paid);
    }
    Wish::Serve(tokens - paid, loan)
}

/// Whether a peer has denied a client that this node has told to come back by now, where tokens trickle in.
///
/// The wait was reckoned by what the store has told this node, and by the tokens that this node held and has returned since. The store may
/// have told the peer nothing for longer, and counts in what it tells what is back in the store by now. A peer that has heard more denies
/// rightly, and then the store is asked once in vain: what it says begins another wait.
fn denies_who_was_told_to_come(key: &LeasedKey, now: Instant, asking: &Asking) -> bool {
    let trickles = key.view.rule().limits.iter().any(Limit::trickles);
    let promise = key.rare.paces.promise().filter(|promise| promise.at <= asking.sent);
    let is_kept = |cost: u64| promise.is_some_and(|promise| cost <= promise.cost);
    trickles && !key.is_away(now) && key.rare.line.first().is_some_and(|first| is_kept(first.cost))
}

/// A peer that lends less than was wanted is not asked again at once, nor is the store in the background. Where tokens trickle
/// in the peer may have some that it keeps for all, which its counters do not tell. It cannot know what this node has told its
/// own clients, so the pause ends when the first of them may come back.
fn remember_denial(key: &mut LeasedKey, cx: &mut Context, now: Instant, loan: &Loan) {
    let pause = probe_pause(key, now);
    let pause = pause + cx.jitter(Micros(pause.0 / JITTER_PART));
    let trickles = key.view.rule().limits.iter().any(Limit::trickles);
    if loan.wait > Micros::ZERO && trickles {
        let until = key.before_promised(now, now + loan.wait.min(pause));
        key.pause_until(key.before_window_ends(cx, now, until), Micros::ZERO, true);
    } else {
        key.pacing.probe_at(now + pause);
    }
}

impl LeasedKey {
    /// Takes note of what a peer says that cannot reach the store, either: whether it has more to lend, and, where the store has told this node
    /// nothing of the key, which window is open. What it knows of the counters is no younger than the outage.
    fn learn_from_aside(&mut self, now: Instant, asking: &Asking, loan: &Loan) {
        if loan.tokens < asking.ask.terms.want && self.is_away(now) {
            let period = self.view.rule().limits[0].period;
            self.rare.outage.bank_mut().note_dry(now, asking.peer, loan.wait, period);
        }
        if self.view.last_answered().is_none() && loan.tokens > 0 {
            self.learn_from_loan(now, asking.sent, loan);
        }
    }

    /// Whether a window of those that a peer tells of is over now, by the latest that the store's clock can read.
    fn has_ended(&self, now: Instant, loan: &Loan) -> bool {
        let latest = self.view.clock().latest(now);
        let limits = self.view.rule().limits.iter().zip(&loan.counters);
        let mut windows =
            limits.filter(|(limit, counter)| limit.algorithm != Algorithm::Gcra && !counter.is_unopened());
        let is_over = |(limit, counter): (&Limit, &Counter)| counter.rolled(limit, latest).at != counter.at;
        windows.any(is_over)
    }

    /// Takes note of what a peer says of the key, as if the store had answered that and lent this node nothing; false where the clock that
    /// the peer tells cannot be the store's.
    ///
    /// A share goes by the store's clock, so that a peer that could move it might open window after window of a share. Hence what
    /// the store has shown itself stands, give or take the drift that both clocks are allowed, and a peer may only say it
    /// more precisely. Of a key of which nothing is known, the first peer is believed, once.
    fn learn_from_loan(&mut self, now: Instant, sent: Instant, loan: &Loan) -> bool {
        let [earliest, latest] = loan.clock;
        // The peer answered after the ask was sent, and knew the store's clock to lie between `earliest` and `latest` then. So the
        // clock showed `earliest` when the ask was sent, less their difference, or later.
        let clock = StoreClock::new(sent - latest.since(earliest), now, earliest);
        let (guess, was_answered) = (self.view.clock().latest(now), self.view.answered().is_some());
        let is_believed = self.view.narrow_clock(now, clock);
        if is_believed && !was_answered {
            let clocks = [guess, self.view.clock().latest(now)];
            self.rare.outage.correct_clock(self.view.rule(), clocks, self.view.clock().trip());
        }
        // The store lends all of this window to nodes that reach it, so the share has nothing of a window in which peers lent. The
        // loss counts as begun now: should peers not answer any more, the share is released from the next window on.
        if self.is_away(now) && !on(Mutant::ShareBesideLoans) {
            self.rare.outage.reopen_budget(self.view.clock().latest(now));
        }
        if !is_believed {
            self.roll(now);
            return false;
        }
        // The peer may have last heard of a bucket's counters before the store lent this node of it, so they may show too little.
        let is_lent_of_buckets = self.view.has_account() && self.view.is_lent_any();
        if !is_lent_of_buckets {
            self.view.note_answered(now, !loan.aside);
        }
        for index in 0..self.view.rule().limits.len() {
            if is_lent_of_buckets && self.view.rule().limits[index].algorithm == Algorithm::Gcra {
                continue;
            }
            let mut fresh = loan.counters[index];
            if on(Mutant::LoanOfAnotherWindow) {
                self.roll(now);
                fresh.at = fresh.at.max(self.view.counter(index).at);
            }
            if self.view.counter(index).at != fresh.at {
                self.note_window(index);
            }
            self.view.note_counter(index, fresh);
        }
        self.roll(now);
        true
    }
}
