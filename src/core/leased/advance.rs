//! What a key does. All calls, asks and replies of a leased key are sent by [`advance`], and by nothing else.
//!
//! Inputs change what is known of a key: a request (`requests.rs`), an answer of the store (`outcomes.rs`) or of a peer
//! (`lending.rs`), its timer, or its end (`keeping.rs`). Each then calls [`advance`], which looks at the state of the key, and at
//! the one [`Wish`] that the state does not show. It does all that is due, always in the same order: it drops what has ended,
//! answers those who can be answered, and asks for what is missing in one call. So no input needs to know what may follow from
//! it. What has to leave before an input changes the key is a wish, too. A check that is decided from memory, and leaves the
//! lease above its low-water mark, needs only what has ended to be dropped.
//!
//! One acquire per key is under way at a time. It asks for what waiters need and for what the tuner wants. Checks
//! that come meanwhile line up behind it, and a partial grant serves the line from its head. Tokens that are returned
//! leave the node's lease before the call is sent, so they cannot be spent twice.

use super::calls::Asking;
use super::intent::{
    Intent, PATIENCE_PART, ahead, ceiling, intend, lasts, may_relay, nodes_served, whom_to_ask, whom_to_try,
};
use super::key::LeasedKey;
use super::loans::{ANSWERS, ASKED_FOR, lend};
use super::timers::{closes, remaining};
use super::wish::Wish;
use crate::core::answer::Resolution;
use crate::core::ask::{Answer, Ask, Loan, Refusal, Terms};
use crate::core::batch::{Bounds, refill_interval};
use crate::core::call::{Acquire, Call, HALF_CALL_LIFE, OPEN, Op, StoreError, Voided};
use crate::core::calls::{Ended, Flight, Waiter};
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::gcra;
use crate::core::lease::Unspent;
use crate::core::limit::Algorithm;
use crate::core::mutant::{Mutant, on};
use crate::core::per_limit::PerLimit;
use crate::core::time::{Instant, Micros};
use crate::core::usage::PeerIndex;

/// While no replica confirms what the store lends, a lease is this fraction of its normal size, because a failover can lose
/// what was lent: with a larger one, more of it; a smaller one costs more calls. The simulator's invariant `confirmed` checks this.
const UNCONFIRMED_PART: u64 = 32;

/// Of a scarce limit a node leases for the rest of a window only while so many tenths of what all nodes expect to use of it are left.
/// Which node is asked more often than it expects is chance, and what the others hold for checks that do not come is lost. With ten,
/// scarce-minutes-0.9x denied 7.6 % of its checks falsely instead of 6.3, for 866 calls per 1000 checks instead of 907; with 25, 5.7 for
/// 931 (each where four checks were scarce).
const ENOUGH_TENTHS: u64 = 15;

/// All nodes together lease this fraction of a bucket at most to have it for a whole period of accounts. Where they would need more,
/// they lease for less time. With 8 instead of 32, llm-costs cost as many calls, but used 0.2 % less of the limit.
const HELD_PART: u64 = 32;

/// All nodes together lease this fraction of a bucket at most for checks that may come. With all that a few checks need, eight nodes held
/// 40 of 100 tokens of a minute (seldom-buckets-several), and of 1,600 checks two to ten were denied for want of them.
const FEW_PART: u64 = 4;

/// Grants what an input wishes, and does all that follows.
///
/// It is inlined, which the compiler does not do by itself, because most callers pass a wish that is known when they are compiled: a check
/// that is decided from memory then goes straight to [`drop_ended`], without a choice among the wishes.
#[inline(always)]
pub(super) fn advance(key: &mut LeasedKey, cx: &mut Context, now: Instant, wish: Wish<'_>) {
    match wish {
        Wish::DropEnded => drop_ended(key, cx, now),
        Wish::LeaveLimits => leave_limits(key, cx, now),
        Wish::ReturnAll => {
            give_back(key, cx, now, u64::MAX);
            report_spent(key, cx, now);
        }
        Wish::ReturnUnclaimed => give_unclaimed(key, cx, now),
        Wish::Report => report_spent(key, cx, now),
        Wish::Leave => give_all_back(key, cx, now),
        Wish::MakeRoom => part_with(key, cx, now),
        Wish::TryPeer(cost) => try_peer(key, cx, now, cost),
        Wish::Serve(tokens, loan) => {
            serve_from_loan(key, cx, now, tokens, loan);
            follow(key, cx, now, &Wish::Nothing);
        }
        Wish::Nothing
        | Wish::Wait
        | Wish::Tokens
        | Wish::TokensFor(_)
        | Wish::Restore
        | Wish::Again
        | Wish::TurnAway
        | Wish::Look => {
            follow(key, cx, now, &wish);
        }
    }
}

/// Does what is due for a key in its present state, which an input has just changed.
fn follow(key: &mut LeasedKey, cx: &mut Context, now: Instant, wish: &Wish<'_>) {
    key.rare.change(|rare| rare.calls.send_lost(cx, now));
    drop_ended(key, cx, now);
    hand_back_unspent(key, cx, now);
    answer_errands(key, cx, now);
    if matches!(wish, Wish::TurnAway) {
        turn_line_away(key, cx, now);
    }
    give_up_late_ask(key, cx, now);
    if !matches!(wish, Wish::Wait) {
        serve_line(key, cx, now);
    }
    if matches!(wish, Wish::Look) {
        run_out(key, cx, now);
        answer_in_time(key, cx, now);
    }
    hand_back_unclaimed(key, cx, now);
    if cx.draining && key.rare.line.is_empty() && !key.rare.calls.is_acquiring() {
        give_back(key, cx, now, u64::MAX);
    }
    key.rare.change(|rare| rare.calls.send_queued(cx, now));
    if let Some(peer) = whom_to_ask(key, cx, now) {
        ask(key, cx, now, peer);
    }
    match intend(key, cx, now, wish) {
        Intent::Wait => {}
        Intent::Acquire => acquire(key, cx, now, wish.coming()),
        Intent::AcquireAgain => acquire_again(key, cx, now),
        Intent::AcquireAhead(window) => {
            let order = ahead(key, cx, now, window);
            send_acquire(key, cx, now, order);
        }
        Intent::GiveBack(tokens) => {
            give_back(key, cx, now, tokens);
            // A node that returns all it holds does not use the key. Other nodes may lack what the store has set aside for it.
            if key.holdings.lease().held() == 0 {
                renounce(key, cx, now);
            }
        }
        Intent::Report => report(key, cx, now, None),
        Intent::Renounce => renounce(key, cx, now),
    }
    key.rare.change(|rare| rare.paces.drop_plan(now));
    key.rare.close();
}

// What has ended.

/// Drops what has ended, and brings what is known to `now`.
fn drop_ended(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.roll(now);
    // The store has charged all that this node did not account for in time, including tokens that were not spent. It
    // is told which those are.
    let lapsed =
        key.holdings.lease().until().has_come(now) && key.holdings.lease().held() > 0 && !key.rare.calls.is_acquiring();
    if lapsed && !key.is_trifling(now) {
        give_back(key, cx, now, u64::MAX);
    }
    if !key.holdings.lease().has_ended(now) {
        return;
    }
    let mut gone = Vec::new();
    let voided = key.holdings.drop_ended(now, |unspent| gone.push(unspent));
    cx.policy_stats(key.policy()).expired += voided;
    for unspent in gone {
        dispose(key, cx, now, unspent);
    }
}

/// Disposes of tokens that can no longer be spent here. If a window of theirs is still open under another limit of
/// the policy, or counts on in a sliding window, they are returned; otherwise they lapse. Tokens of a bucket wait
/// until the acquire under way has ended: their return closes the node's account, and the store would close what that
/// acquire lends with it.
fn dispose(key: &mut LeasedKey, cx: &mut Context, now: Instant, unspent: Unspent) {
    let limits = &key.view.rule().limits;
    let matters = limits.len() > 1 || limits[0].algorithm == Algorithm::Sliding;
    if !matters || key.is_away(now) {
        // Nobody will spend these tokens, so they count as left for as long as their window is known to be open.
        key.view.note_lapsed(unspent.tokens, unspent.windows[0]);
        cx.policy_stats(key.policy()).expired += unspent.tokens;
    } else if key.rare.calls.is_acquiring() && key.view.has_account() {
        key.rare.leaving.return_later(unspent);
    } else {
        let unspent = key.rare.leaving.gather(unspent);
        hand_over(key, cx, now, unspent, None);
    }
}

/// Returns tokens that were waiting for that, unless they must wait for the acquire under way.
fn hand_back_unspent(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if key.rare.calls.is_acquiring() && key.view.has_account() {
        return;
    }
    while let Some(unspent) = key.rare.there().and_then(|rare| rare.leaving.take()) {
        dispose(key, cx, now, unspent);
    }
}

/// Returns tokens that were charged for waiters who did not take them. A bucket is charged at once for waiters. If
/// they were answered otherwise, their tokens are left here unclaimed. After a while they are returned: spending them
/// later than they were charged could admit more than the burst.
fn hand_back_unclaimed(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let Some(until) = key.rare.leaving.unclaimed_until() else { return };
    if key.charged_and_held() == 0 {
        key.rare.leaving.keep_unclaimed(None);
    } else if until <= now {
        give_unclaimed(key, cx, now);
    }
}

// Those who wait.

/// Serves the line from its head, as far as tokens and knowledge suffice. Nobody is denied while an answer is under
/// way that may bring tokens.
fn serve_line(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let is_answered = !key.rare.calls.is_acquiring() || key.is_away(now);
    if !key.rare.line.first().is_some_and(|waiter| is_answered || key.holdings.lease().usable(now) >= waiter.cost) {
        return;
    }
    while let Some(waiter) = key.rare.line.first() {
        if let Some(peer) = waiter.peer {
            // A peer that came before this node began to leave asks another one.
            if cx.draining && !on(Mutant::LendsOnLeaving) {
                answer_first_peer(key, cx, Err(Refusal::Leaving));
                continue;
            }
            let Some(answer) = lend(key, cx, now, waiter.cost, peer, waiter.answers) else { break };
            answer_first_peer(key, cx, answer);
            continue;
        }
        let relays = may_relay(key, cx, now, waiter.asks);
        let decision = match key.decide(now, waiter.cost, Source::Store, cx.fleet, relays) {
            Some(decision) => decision,
            None if waiter.answers >= ANSWERS => key.deny_in_line(now, waiter.cost),
            None => break,
        };
        answer_first(key, cx, now, decision);
    }
}

/// Answers those in line who have waited for as long as they may. The call that they wait for continues.
fn run_out(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(waiter) = key.rare.line.first_late(now) {
        if waiter.peer.is_some() {
            answer_first_peer(key, cx, Err(Refusal::Busy));
            continue;
        }
        let decision = if waiter.answers >= ASKED_FOR || key.is_exhausted(now, waiter.cost) {
            // The store was asked for this cost and had less, or has said since that it has less.
            key.deny_in_line(now, waiter.cost)
        } else {
            key.answer_unasked(now, waiter.cost, cx)
        };
        answer_first(key, cx, now, decision);
    }
}

/// Callers in line have waited as long as the queue to the store allows. The next caller causes a new acquire.
fn turn_line_away(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(waiter) = key.rare.line.first() {
        if waiter.peer.is_some() {
            answer_first_peer(key, cx, Err(Refusal::Busy));
            continue;
        }
        let decision = key.answer_unasked(now, waiter.cost, cx);
        answer_first(key, cx, now, decision);
    }
}

/// Answers the first in line.
fn answer_first(key: &mut LeasedKey, cx: &mut Context, now: Instant, decision: Decision) {
    let Some(waiter) = key.rare.line.take_first() else { return };
    cx.stats.waiting -= 1;
    cx.count(key.policy(), waiter.cost, &decision);
    key.note_promise(now, waiter.cost, &decision);
    cx.reply(waiter.ticket, decision);
}

// What is asked of peers, and what they ask for.

/// Asks a peer, once, for what those in line want.
fn ask(key: &mut LeasedKey, cx: &mut Context, now: Instant, peer: PeerIndex) {
    let Some(first) = key.rare.line.first() else { return };
    let (wanted, least) = (key.rare.line.wanted(), first.cost);
    let part = if on(Mutant::WaitsForPeersAlone) { 1 } else { PATIENCE_PART };
    let patience = Micros(first.deadline.since(now).0 / part);
    key.rare.line.note_ask();
    send_ask(key, cx, now, peer, [wanted, least], patience, true);
}

/// Asks a peer that last said that it cannot reach the store, in case it can by now. The share has answered the check of this cost
/// already, so nobody waits: what the peer lends pays for what the share has admitted.
fn try_peer(key: &mut LeasedKey, cx: &mut Context, now: Instant, cost: u64) {
    if let Some(peer) = whom_to_try(key, cx, now) {
        let patience = Micros(cx.settings.timeout.0 / PATIENCE_PART);
        send_ask(key, cx, now, peer, [0, cost], patience, false);
    }
}

/// Asks a peer for so many tokens, and at least for so many.
fn send_ask(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    peer: PeerIndex,
    [wanted, least]: [u64; 2],
    patience: Micros,
    is_awaited: bool,
) {
    let rule = key.view.rule().clone();
    let most = rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
    // What this node's share has admitted is a debt to the limit, which it pays from loans of peers as it does from grants of the store.
    // A bucket that never fills up would else stay above its limit by the debt for as long as the store is away. Where tokens of a
    // window are set aside, the store lends nobody those of this node before the debt is paid, so peers cannot lend them either.
    let is_unpaid = !on(Mutant::DebtNotPaidByLoans) && !rule.owes_store_alone();
    let owed = if is_unpaid { key.debt(now).saturating_add(key.rare.outage.credited()) } else { 0 };
    let want = wanted.saturating_add(owed).min(most).max(least);
    let least = if owed > 0 { 1 } else { least };
    let awaited = cx.owners.patience(peer).min(patience.max(Micros(1)));
    let is_one = rule.limits.len() == 1;
    let patience = if is_one { cx.owners.time_to_answer(peer, awaited).max(Micros(1)) } else { awaited };
    let terms = Terms { rule: rule.fingerprint(), want, least, patience, aside: rule.is_entitled_window() };
    // How much is used is measured from one refill to the next, and this is one.
    let bounds = bounds(key, cx, now, want, 0);
    key.demand.refill(now, bounds);
    let Some(name) = key.whole_name() else { return };
    let ask = Ask { id: cx.id(), digest: key.id(), key: name.into(), rule, terms, awaited };
    key.rare.calls.send_ask(cx, Asking { peer, ask, sent: now, is_awaited });
}

/// A peer that has not answered in time is not waited for. What it may lend yet is lost.
fn give_up_late_ask(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if let Some(late) = key.rare.there().and_then(|rare| rare.calls.end_late_ask(now)) {
        cx.owners.note_late(now, late.peer, late.sent, late.ask.awaited);
    }
}

/// Answers the first in line, a peer.
fn answer_first_peer(key: &mut LeasedKey, cx: &mut Context, answer: Answer) {
    let Some(waiter) = key.rare.line.take_first() else { return };
    cx.stats.waiting -= 1;
    cx.answer(waiter.ticket, answer);
}

/// Admits those in line, from its head, with what a peer has lent. Where the peer has lent less than was wanted, it shows that there
/// is no more for some of those for whom it was asked: they are denied.
fn serve_from_loan(key: &mut LeasedKey, cx: &mut Context, now: Instant, tokens: u64, loan: &Loan) {
    let mut left = tokens;
    while let Some(waiter) = key.rare.line.first().filter(|waiter| waiter.peer.is_none() && waiter.cost <= left) {
        left -= waiter.cost;
        key.demand.note_spent(waiter.cost);
        let decision = key.answer(now, waiter.cost, Resolution::allow(Source::Peer));
        let decision = if loan.aside { key.beside_aside(now, left, decision) } else { decision };
        answer_first(key, cx, now, decision);
    }
    // What they do not take is lost, because the peer has spent it.
    cx.policy_stats(key.policy()).expired += left;
    if loan.aside {
        return;
    }
    // The peer had less than the first of them wants. For the others it may have enough.
    let mut is_refused = loan.tokens == 0 && key.is_away(now);
    while let Some(waiter) = key.rare.line.first().filter(|waiter| waiter.peer.is_none() && waiter.asks > 0) {
        if loan.wait == Micros::ZERO || !(std::mem::take(&mut is_refused) || key.is_exhausted(now, waiter.cost)) {
            break;
        }
        key.demand.note_denied();
        let decision = key.deny(now, waiter.cost, Source::Peer);
        let remaining = decision.remaining.min(waiter.cost.saturating_sub(1));
        let retry_after = decision.retry_after.map(|wait| wait.max(loan.wait));
        answer_first(key, cx, now, Decision { remaining, retry_after, ..decision });
    }
}

/// Answers those whose errands have ended. The answer to an errand counts tokens that an earlier acquire was lent, of which
/// this node has yet to hear, or tokens that have gone back since. Until those calls have been answered, its numbers would
/// mislead.
fn answer_errands(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let (is_away, is_behind) = (key.is_away(now), key.has_account_under_way());
    while let Some(errand) = key.rare.there().and_then(|rare| rare.calls.take_ended(is_away, is_behind)) {
        end(key, cx, now, &errand, &errand.waiters);
    }
}

/// Answers those who have waited for an errand for as long as they may. The errand may still be executed.
fn answer_in_time(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    for (errand, waiters) in key.rare.there().map(|rare| rare.calls.take_late(now)).unwrap_or_default() {
        end(key, cx, now, &errand, &waiters);
    }
}

/// Answers those who waited for an errand that was executed, or was not executed in time.
fn end(key: &mut LeasedKey, cx: &mut Context, now: Instant, errand: &Flight, waiters: &[Waiter]) {
    let call = &errand.call;
    let error = match &errand.ended {
        None => None,
        Some(Ended::Failed(error)) => Some(error),
        Some(Ended::Answered) => {
            for &Waiter { ticket, cost, .. } in waiters {
                let decision = if exceeds(call, cost) {
                    key.answer(now, cost, Resolution::deny(Reason::Cost, Source::Policy))
                } else {
                    key.peeked(now, cost, Source::Store, cx.fleet)
                };
                cx.reply(ticket, decision);
            }
            return key.rare.calls.note_served(waiters.len());
        }
    };
    for &Waiter { ticket, cost, .. } in waiters {
        let decision = match (call.op, error) {
            (Op::Peek, _) if exceeds(call, cost) => {
                key.answer(now, cost, Resolution::deny(Reason::Cost, Source::Policy))
            }
            (Op::Peek, _) if key.view.answered().is_some() || key.is_away(now) => {
                key.peeked(now, cost, Source::Lease, cx.fleet)
            }
            // The call was not sent, because too many were waiting for the store. That is no outage.
            (Op::Peek, _) | (_, Some(StoreError::Busy { .. })) => key.turn_away(now, cost, cx.queue()),
            _ => {
                // A call that was sent may have been executed, or may still be, so this node cannot say that it was
                // not.
                let is_undone =
                    errand.attempts == 1 && matches!(error, Some(StoreError::Away { .. } | StoreError::Full));
                let source = if is_undone { Source::Policy } else { Source::Store };
                key.answer(now, cost, Resolution::deny(Reason::Store, source).after(Micros::from_secs(1)))
            }
        };
        cx.reply(ticket, decision);
    }
    key.rare.calls.note_served(waiters.len());
}

/// A check of more than its limits ever have only peeks and charges nothing. It is denied whatever limits apply when
/// the answer comes.
fn exceeds(call: &Call, cost: u64) -> bool {
    call.op == Op::Peek && call.rule.limits.iter().any(|limit| cost > limit.capacity())
}

// Asking the store for tokens.

/// Asks for tokens, for a check that is about to come as [`Wish::coming`] says, unless a call under way must be answered first.
fn acquire(key: &mut LeasedKey, cx: &mut Context, now: Instant, coming: Option<u64>) {
    if on(Mutant::StaysAway) && key.rare.outage.phase().is_outage() || key.has_account_under_way() {
        return;
    }
    if key.rare.calls.has_doubtful() {
        // Nobody may spend what an abandoned acquire was lent, and the store must hear of that first.
        report(key, cx, now, None);
        if key.view.has_account() {
            return;
        }
    }
    if key.rare.outage.phase().is_restoring() {
        key.end_waits(now);
    }
    let is_unpaid = key.rare.outage.phase().is_unpaid() && !key.forgets_loss(now);
    let is_to_repay =
        is_unpaid && (key.owes(now) || key.awaits_others(now) || key.rare.outage.repaired_by(now).is_some());
    let is_probe = key.view.rule().is_entitled() && key.rare.outage.phase().is_outage();
    let order = match is_to_repay {
        _ if is_probe => key.order(now),
        true => repayment(key, now),
        false if coming.is_none() && key.rare.line.is_empty() && !key.is_due(now) => key.order(now),
        false => refill(key, cx, now, coming.unwrap_or(0)),
    };
    send_acquire(key, cx, now, order);
}

fn acquire_again(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let refused = key.rare.calls.end_acquire();
    if let Some(Op::Acquire(Acquire { need, want, least, window, claim, .. })) = refused.map(|acquire| acquire.call.op)
    {
        // What the share has admitted since, or before a call that only looked, has to be charged before anything is leased.
        if claim.is_none_or(|claim| claim.is_probe()) && !window.is_next() && key.owes(now) {
            return acquire(key, cx, now, Some(0));
        }
        // A claim to what the store sets aside for this node says what the node has used until the call is sent. The call is sent
        // again later, so such a claim is made anew; one without demand says nothing of that, and stays.
        let claim = claim.filter(|claim| claim.demand == 0 && !claim.is_probe());
        let order = Acquire { need, want, least, window, claim, ..key.order(now) };
        send_acquire(key, cx, now, order);
    }
}

/// Says that nothing need be set aside for this node.
fn renounce(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if !key.is_entitled(now) || key.rare.calls.is_acquiring() || key.rare.outage.phase().is_outage() {
        return;
    }
    let order = key.renouncement(now);
    send_acquire(key, cx, now, order);
}

/// The acquire for those in line and for a check that is about to come, for what was admitted without the store, and for the checks
/// until the next refill.
fn refill(key: &mut LeasedKey, cx: &mut Context, now: Instant, coming: u64) -> Acquire {
    let (debt, held) = (key.debt(now), key.about_to_start(now));
    let wanted = key.rare.line.wanted().saturating_add(coming);
    let need = wanted.saturating_sub(held).saturating_add(debt).saturating_add(key.rare.outage.credited());
    // A grant smaller than what the cheapest check in line lacks would serve nobody.
    let missing = key.rare.line.least_missing(held).unwrap_or(coming.saturating_sub(held));
    let least = if debt > 0 { 1 } else { missing.max(1) };
    let bounds = bounds(key, cx, now, need, held.max(held_on_arrival(key, now)));
    let tuned = key.demand.refill(now, bounds);
    let (ahead, part) = (cx.settings.lease_ahead && !cx.draining, part(key, cx, now));
    // A flood spends this node's part before it could ask again: it takes it at once.
    let need = if ahead && key.has_left(now) && key.is_flooded(part) { need.max(part) } else { need };
    // A call that only renews the account asks for nothing where as much as was tuned is here. Else the lease of a key of which less and
    // less is used would grow from one renewal to the next.
    let is_enough = need == 0 && held >= tuned && closes(key).has_come(now);
    let tuned = if is_enough { 0 } else { tuned };
    let want = if ahead { tuned.max(need) } else { need };
    let want = if on(Mutant::BatchUncapped) { u64::MAX } else { want };
    cx.policy_stats(key.policy()).batch = want.max(1);
    Acquire { need, want: want.max(least), least, ..key.order(now) }
}

/// What this node holds of the window in which a call that leaves now may arrive. If the next window may have begun by then,
/// tokens that were lent ahead of it count: otherwise this node would be lent its part of that window twice.
fn held_on_arrival(key: &LeasedKey, now: Instant) -> u64 {
    let lease = key.holdings.lease();
    if lease.starts(now).is_some() && remaining(key, now) <= key.view.trip() { lease.held() } else { 0 }
}

/// Most tokens that this node leases of the key.
fn part(key: &LeasedKey, cx: &Context, now: Instant) -> u64 {
    let ceiling = ceiling(key, cx, now);
    // The store says with each grant whether replicas have confirmed it. Where all tokens of this key came from peers so far, it has said
    // nothing about the key, and its grants of other keys decide.
    if key.view.confirmed().unwrap_or_else(|| cx.is_confirmed(now)) {
        ceiling
    } else {
        ceiling.div_ceil(UNCONFIRMED_PART)
    }
}

/// How a refill is bounded that needs so much where so much is held.
fn bounds(key: &LeasedKey, cx: &Context, now: Instant, need: u64, held: u64) -> Bounds {
    let (is_pressed, rule) = (key.is_pressed(now), key.view.rule());
    let account_units = if key.view.has_account() { rule.account_units() } else { 0 };
    let interval = if !is_pressed && account_units > 0 { interval_of_account(key) } else { Micros::ZERO };
    Bounds {
        need,
        ceiling: part(key, cx, now).saturating_sub(if on(Mutant::HeldNotSubtracted) { 0 } else { held }),
        interval: interval.max(refill_interval(rule)),
        remaining: lasts(key, cx, now, is_pressed),
        window: rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default(),
        plenty: !is_pressed && has_enough_for_all(key, now),
        nodes: nodes_served(key, cx, now).into(),
        lapses: key.lapses(),
        leftover_goes_back: key.hands_leftover_back(),
        account_units,
        few: if account_units > 1 { part_of_bucket(key, FEW_PART).max(1) } else { u64::MAX },
        trifle: key.trifle(now),
    }
}

/// For how long a node leases tokens of a bucket of which there is plenty: for a period of accounts, because an account has to be renewed that
/// often anyway; but for less where the nodes together would hold much of the bucket, which those that need more would lack.
fn interval_of_account(key: &LeasedKey) -> Micros {
    let (period, unit) = (key.view.rule().account_period(), gcra::UNIT);
    let (used, most) = (key.demand.tuner().used_in(period), part_of_bucket(key, HELD_PART));
    if period == unit || used <= most {
        return period;
    }
    let part = u128::from(period.0) * u128::from(most) / u128::from(used);
    Micros(part as u64).max(unit) // less than the period
}

/// What each node has if all of them together have one part in so many of the smallest bucket.
fn part_of_bucket(key: &LeasedKey, part: u64) -> u64 {
    let nodes = u64::from(key.view.nodes().max(1));
    let buckets = key.view.rule().limits.iter().filter(|limit| limit.algorithm == Algorithm::Gcra);
    buckets.map(|limit| limit.capacity() / (part * nodes)).min().unwrap_or(0)
}

/// Whether what is left of each window suffices for as much at all nodes as this one expects to use of it. Where a limit is not
/// scarce, nobody misses what one of them holds in vain.
fn has_enough_for_all(key: &LeasedKey, now: Instant) -> bool {
    if !key.is_scarce() {
        return true;
    }
    let (latest, nodes) = (key.view.clock().latest(now), u64::from(key.view.nodes()));
    key.view.limits().all(|(limit, counter)| {
        let rest = key.demand.tuner().used_in(remaining(key, now).min(limit.period));
        let all = rest.saturating_mul(nodes).saturating_mul(ENOUGH_TENTHS);
        limit.algorithm == Algorithm::Gcra || counter.left(limit, latest).saturating_mul(10) >= all
    })
}

/// The store may be back: asks for what the share admitted and for what it has left, so that others
/// are lent neither, and for nothing more; for nothing where nobody spent of it here.
fn repayment(key: &LeasedKey, now: Instant) -> Acquire {
    let left = if key.owes(now) { key.share_left(now) } else { 0 };
    let owed = key.debt(now).saturating_add(left);
    // All of it is `need`. With a partial grant, this node would go on to lease and take tokens that other nodes owe.
    Acquire { need: owed, want: owed, ..key.order(now) }
}

fn send_acquire(key: &mut LeasedKey, cx: &mut Context, now: Instant, order: Acquire) {
    if key.view.has_account() {
        // The order reports all of the account, so what was lent before it no longer counts as spendable.
        key.holdings.close_spent();
    }
    // Refunds and resets that were requested earlier must reach the store first.
    key.rare.calls.send_all_queued(cx, now);
    let is_quick = cx.settings.timeout <= HALF_CALL_LIFE;
    let until = if is_quick { key.view.until(now, cx.heard_clock()) } else { None };
    let claim = order.claim.or_else(|| key.claim(now, &order));
    let call = key.call(now, cx.id(), Op::Acquire(Acquire { until, claim, ..order }));
    key.rare.calls.send_acquire(cx, now, call);
}

// Returning tokens.

/// Returns up to `amount` unspent tokens. They leave the lease before the call is sent.
fn give_back(key: &mut LeasedKey, cx: &mut Context, now: Instant, amount: u64) {
    let mut due = amount;
    while due > 0 {
        let Some(unspent) = key.holdings.take(now, due) else { break };
        due -= unspent.tokens;
        hand_over(key, cx, now, unspent, None);
    }
}

/// Returns tokens of a window that has not begun, because this node will be gone by then, or will have forgotten the
/// key.
fn give_back_ahead(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(unspent) = key.holdings.take_ahead(now) {
        hand_over(key, cx, now, unspent, None);
    }
}

/// Returns tokens that the store has charged for waiters who did not take them.
fn give_unclaimed(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.rare.leaving.keep_unclaimed(None);
    // What an acquire under way adds to the account is not known yet.
    let is_idle = key.rare.line.is_empty() && !key.rare.calls.is_acquiring();
    let charged = if is_idle { key.charged_and_held() } else { 0 };
    give_back(key, cx, now, charged);
}

/// Reports what was spent of a bucket, before the store counts it as spent later than it was; and that an abandoned
/// acquire is void, so that whatever it was lent is taken back.
fn report(key: &mut LeasedKey, cx: &mut Context, now: Instant, voids: Option<Voided>) {
    let nothing = Unspent { tokens: 0, windows: PerLimit::of_each(&key.view.rule().limits, |_| None) };
    hand_over(key, cx, now, nothing, voids);
}

/// Reports what was spent of a bucket, if the store has not heard of it.
fn report_spent(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if key.has_unreported() {
        report(key, cx, now, None);
    }
}

fn hand_over(key: &mut LeasedKey, cx: &mut Context, now: Instant, unspent: Unspent, voids: Option<Voided>) {
    let mut windows = OPEN;
    windows[..unspent.windows.len()].copy_from_slice(&unspent.windows);
    if on(Mutant::ReturnToCurrentWindow) {
        windows.iter_mut().zip(key.view.windows()).for_each(|(window, at)| *window = at.stored());
    }
    let ages = key.ages(now, unspent.tokens);
    let order = voids.or_else(|| key.take_doubtful(now));
    let voids = key.voided_by_now(order, unspent.tokens);
    // The report makes the store charge what was spent of buckets, so it no longer counts here.
    key.charge(unspent.tokens);
    key.view.note_returned(unspent.tokens, &windows);
    key.rare.ahead.take(windows[0], unspent.tokens);
    cx.policy_stats(key.policy()).returned += unspent.tokens;
    let op = Op::Return { amount: unspent.tokens, epoch: key.view.epoch(), held: key.held(), ages, windows, voids };
    let call = key.call(now, cx.id(), op);
    key.rare.calls.send(cx, now, call);
}

/// Prepares for other limits. Nothing that is held may be spent under them: the store is told what was spent, and
/// gets the rest back, together with what an acquire under way is lent. The answer to that acquire is not
/// awaited any more; of one ahead of a window what it is lent lapses with that.
fn leave_limits(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.rare.calls.send_all_queued(cx, now);
    let voids = match key.rare.calls.end_acquire() {
        Some(acquire) => key.void_order(&acquire.call),
        None => key.rare.calls.take_doubtful().map(|(order, _)| order),
    };
    if key.has_unreported() || voids.is_some() {
        report(key, cx, now, voids);
    }
    give_back(key, cx, now, u64::MAX);
    hand_back_unspent(key, cx, now);
}

/// The node leaves, so it returns everything.
fn give_all_back(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    drop_ended(key, cx, now);
    // The store would count what an acquire under way lends of a bucket as spent. So all of it is returned when the
    // answer comes.
    if !key.rare.calls.is_acquiring() || !key.view.has_account() {
        give_back(key, cx, now, u64::MAX);
    }
    give_back_ahead(key, cx, now);
    renounce(key, cx, now);
}

/// The key is about to be forgotten: returns what it holds, and reports what was spent.
fn part_with(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    give_back(key, cx, now, u64::MAX);
    give_back_ahead(key, cx, now);
    report_spent(key, cx, now);
}
