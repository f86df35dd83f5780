//! One key's leases: when to acquire, how much, and what an answer or its absence does to those who
//! wait.
//!
//! One acquire per key is under way at a time. It asks for what waits and for what the tuner wants;
//! those who arrive meanwhile line up behind it, and a partial grant serves the line from its head.
//! An unknown outcome is asked again under the same id, three times in all, never guessed.

use std::sync::Arc;

use super::errands::{answer_postponed, dispose, dispose_of_leftovers, give_back, report, send_all_queued, send_under};
use super::key::{LeasedKey, PATIENCE};
use super::peers::DOUBTED;
use super::phase::Phase;
use super::timers::{plan_ahead, probe_pause, remaining, set_timer};
use super::view::learn;
use crate::core::batch::{Bounds, refill_interval};
use crate::core::call::{Acquire, Call, Grant, JUST_NOW, Op, StoreError, Voided};
use crate::core::calls::{ATTEMPTS, flight, send_again};
use crate::core::context::Context;
use crate::core::decision::{Decision, Source, Verdict};
use crate::core::gcra;
use crate::core::lease::Segment;
use crate::core::limit::{Algorithm, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::request::Effect;
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, Micros, Timestamp};

/// Checks within a pause that make a key worth pacing.
const HOT: u64 = 8;

/// Answers that may leave a waiter unsettled before it is denied.
const ANSWERS: u8 = 4;

/// So long after they were asked for, tokens that the store has charged for somebody who did not get them may
/// be spent by others.
const UNCLAIMED: Micros = Micros(1_000_000);

/// After a check has been decided from memory: refill at the low-water mark, ask again in the
/// background after a denial or while the store is away.
pub(super) fn after_decision(key: &mut LeasedKey, cx: &mut Context, now: Instant, decision: &Decision) {
    let asks = !(on(Mutant::GossipHasTheLastWord) && key.is_spent_by_fleet());
    if key.flight.is_some() || cx.draining || !asks {
        return;
    }
    let ahead = cx.settings.lease_ahead;
    let due = match key.phase {
        // In each window the share begins with a question: the store may be back.
        phase if phase.is_away() => {
            let spent = decision.verdict == Verdict::Allow;
            let is_lent_nothing = matches!(phase, Phase::Restoring { .. } | Phase::Repaid { .. });
            let begins = decision.source == Source::Share && !is_lent_nothing && key.begins_share(now, spent);
            begins || phase.asks_again(now)
        }
        _ if decision.source == Source::Prefilter => key.doubts_fleet() || now >= key.probe_at,
        _ if decision.verdict == Verdict::Deny => {
            (now >= key.probe_at && !is_put_off(key) || on(Mutant::DenialNotRemembered)) && ahead
        }
        _ => ahead && is_low(key, now) && now >= key.probe_at.min(key.paced_until) && key.has_left(now),
    };
    if due {
        acquire(key, cx, now);
    }
}

/// Peers confirm that all is spent, so that nothing will come back: the store is asked a second after
/// its last answer.
fn is_put_off(key: &mut LeasedKey) -> bool {
    let later = key.answered.map_or(Instant(0), |at| at + DOUBTED);
    let put_off = key.probe_at < later && key.is_spent_by_fleet();
    if put_off {
        key.probe_at = later;
    }
    put_off
}

/// A quarter of the lot is left, or what is used in two trips to the store and 3 ms (at most three
/// quarters of the lot), or less than a dear check costs.
fn is_low(key: &LeasedKey, now: Instant) -> bool {
    let (tuner, lot, current) = (&key.tuner, key.lot, key.lease.current(now));
    let most = lot - lot / 4;
    // The dearest check of late would find too little.
    let dearest = tuner.dearest() - 1;
    if !tuner.is_warm() || current > most.max(dearest) {
        return false;
    }
    // The last token of a key that is seldom asked for lasts a while.
    let soon = Micros(3_000) + key.trip + key.trip;
    let soon = if tuner.is_slow(refill_interval(&key.rule)) { 0 } else { tuner.used_in(soon) };
    current <= soon.clamp(lot / 4, most).max(dearest) && !tuner.is_slow(remaining(key, now))
}

/// Somebody has joined the line: ask the store, unless an acquire is under way or tokens that are held
/// are about to start or to trickle in.
pub(super) fn ask_for_line(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let free = key.flight.is_none() || on(Mutant::TwoInFlight);
    let begins_soon = key.lease.starts(now).is_some_and(|starts| starts <= now + PATIENCE);
    if free && !begins_soon && key.matures(now).is_none() {
        acquire(key, cx, now);
    }
    set_timer(key, cx, now);
}

pub(super) fn acquire(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if on(Mutant::StaysAway) && key.phase.is_away() || key.has_account_under_way() {
        return;
    }
    if key.doubtful.is_some() {
        // What it was lent is nobody's: the store hears of that first.
        report(key, cx, now, Voided::default());
        if key.has_account() {
            return;
        }
    }
    if key.phase.is_away() && !matches!(key.phase, Phase::Repaid { .. }) && (key.owes(now) || key.awaits_others(now)) {
        return charge(key, cx, now);
    }
    let (debt, held) = (key.debt(now), key.lease.usable(now));
    let waiting = key.line.iter().map(|waiter| waiter.cost).fold(0, u64::saturating_add);
    let need = waiting.saturating_sub(held).saturating_add(debt).saturating_add(key.credit);
    // Less than what the least of them lacks serves nobody.
    let smallest = key.line.iter().map(|waiter| waiter.cost.saturating_sub(held)).min();
    let least = if debt > 0 { 1 } else { smallest.unwrap_or(1).max(1) };
    // While Redis has no replica to hold what it lends, leases are small: so much can be lost.
    let ceiling = key.ceiling(cx.fleet);
    let part = if key.confirmed { ceiling } else { ceiling.div_ceil(32) };
    let plenty = !key.is_pressed(now);
    // An account has to be renewed that often anyway.
    let interval = if plenty && key.has_account() { gcra::PERIOD } else { refill_interval(&key.rule) };
    let bounds = Bounds {
        need,
        ceiling: part.saturating_sub(held),
        interval: interval.max(refill_interval(&key.rule)),
        remaining: remaining(key, now),
        window: key.rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default(),
        plenty,
    };
    let tuned = key.tuner.refill(now, bounds);
    let ahead = cx.settings.lease_ahead && !cx.draining;
    // A flood spends this node's part before it could ask again: it takes it at once.
    let need = if ahead && key.has_left(now) && key.is_flooded(part) { need.max(part) } else { need };
    let want = if ahead { tuned.max(need) } else { need };
    let want = if on(Mutant::BatchUncapped) { u64::MAX } else { want };
    cx.policy_stats(key.policy).batch = want.max(1);
    let (epoch, known) = (key.epoch, key.known(now));
    let order = Acquire {
        need,
        want: want.max(least),
        least,
        ahead_of: Timestamp(0),
        epoch,
        held: key.held(),
        ages: key.ages(now, 0),
        known,
    };
    send_acquire(key, cx, now, order);
}

/// The store may be back: asks for what the share admitted and for what it has left, so that others
/// are lent neither, and for nothing more; for nothing where nobody spent of it here.
fn charge(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let left = if key.owes(now) { key.share_left(now) } else { 0 };
    let owed = key.debt(now).saturating_add(left);
    let (epoch, known) = (key.epoch, key.known(now));
    // All of it is needed: who is lent a part leases on, and takes what others have yet to pay.
    let order = Acquire {
        need: owed,
        want: owed,
        least: 1,
        ahead_of: Timestamp(0),
        epoch,
        held: key.held(),
        ages: key.ages(now, 0),
        known,
    };
    send_acquire(key, cx, now, order);
}

pub(super) fn send_acquire(key: &mut LeasedKey, cx: &mut Context, now: Instant, order: Acquire) {
    if key.has_account() {
        // What this order says of the account is the last word: nothing lent before it counts any more.
        key.lease.close_spent();
    }
    // What was asked for before it is done before it.
    send_all_queued(key, cx, now);
    let call = key.call(now, cx.id(), Op::Acquire(order));
    cx.effects.push_back(Effect::Call(call.clone()));
    key.flight = Some(flight(call, now));
    set_timer(key, cx, now);
}

/// Takes over other limits for the same key. Nothing that is held may be spent under them: the store hears what
/// was, and gets the rest, together with what an order under way is lent.
pub(super) fn change_limits(key: &mut LeasedKey, cx: &mut Context, now: Instant, rule: &Arc<Rule>) {
    send_all_queued(key, cx, now);
    let voids = match key.flight.take() {
        Some(flight) => key.void_order(&flight.call),
        None => key.doubtful.take().unwrap_or_default(),
    };
    if key.has_untold() || voids.id != 0 {
        report(key, cx, now, voids);
    }
    give_back(key, cx, now, u64::MAX);
    dispose_of_leftovers(key, cx, now);
    let voided = key.adopt(now, rule);
    cx.policy_stats(key.policy).expired += voided;
    answer_postponed(key, cx, now);
    if !key.line.is_empty() {
        ask_for_line(key, cx, now);
    }
}

/// Takes the outcome of an acquire.
pub(super) fn handle_acquire(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) {
    let current = key.flight.as_ref().is_some_and(|flight| flight.call.id == call.id);
    if !current {
        let Ok(grant) = outcome else { return };
        // Told once more: what it lends is held already or void, what else it says is news. After a reset it was lent
        // anew to nobody here, and what the key was before is over.
        if grant.epoch == key.epoch || grant.reset && grant.now > key.heard {
            learn(key, cx, now, call, &grant);
        }
        return;
    }
    match outcome {
        Ok(grant) if grant.outdated && cx.skip_ids() => {
            key.flight = None;
            if let Op::Acquire(order) = call.op {
                send_acquire(key, cx, now, order);
            }
        }
        Ok(grant) => {
            let sent = key.flight.take().map_or(now, |flight| flight.sent);
            apply_grant(key, cx, now, sent, call, &grant);
        }
        Err(error) => miss(key, cx, now, &error),
    }
    answer_postponed(key, cx, now);
    set_timer(key, cx, now);
}

fn apply_grant(key: &mut LeasedKey, cx: &mut Context, now: Instant, sent: Instant, call: &Call, grant: &Grant) {
    let lost = learn(key, cx, now, call, grant);
    let Op::Acquire(order) = call.op else { return };
    if !key.is_of_these_limits(call) || grant.epoch != key.epoch {
        return void_grant(key, cx, now, call, grant);
    }
    if cx.fleet.is_some() && (key.lent_in_fleet(grant.granted > 0 && order.ahead_of.0 == 0) || lost) {
        cx.talkers.insert(key.index);
    }
    key.phase = key.phase_after(now, order.need, grant.granted);
    // Whoever has to wait for what others owe waits for what they know, too.
    if lost && !key.phase.is_away() {
        key.wait_for_peers(now, cx.fleet);
    }
    let ahead = order.ahead_of.0 != 0;
    let as_whole = on(Mutant::PartialAsWhole) && grant.granted > 0;
    let granted = if as_whole { order.want } else { grant.granted };
    cx.policy_stats(key.policy).granted += granted;
    let paid = if ahead { 0 } else { pay_debt(key, cx, now, granted) };
    let paid = if ahead { 0 } else { paid + pay_credit(key, cx, granted - paid) };
    let mut windows = [Timestamp(0); MAX_LIMITS];
    for (position, limit) in key.rule.limits.iter().enumerate() {
        let lender = if on(Mutant::LateReplyRebound) { &key.counters[position] } else { &grant.counters[position] };
        let at = lender.at;
        windows[position] = if ahead { at + limit.period } else { at };
        if limit.algorithm == Algorithm::Gcra {
            key.net[position] = order.held + granted.saturating_sub(order.need);
        } else if key.counters[position].at == windows[position] {
            key.net[position] += granted;
        } else {
            key.turned[position].note_lent(windows[position], granted);
        }
    }
    key.lease.account(&key.rule, sent, now, grant.now);
    key.note_ahead(now);
    if ahead {
        key.lent_ahead = (windows[0], granted);
    }
    // Tokens end by the clock that lent them, whatever is known of it otherwise.
    let clock = StoreClock::new(call.sent_at, now, grant.now);
    let segment = Segment::new(&key.rule, granted - paid, sent, clock, &windows, ahead);
    // What was lent ahead, or is over when it arrives, says nothing of what those in line want; nor does a store
    // that lends nothing because this node brought back what it had lost.
    let is_late = now >= key.lease.until();
    let answers = u8::from(!ahead && !lost && !is_late && segment.ends > now);
    let leftover = if segment.ends <= now && segment.left > 0 { Some(segment.into()) } else { key.lease.add(segment) };
    if let Some(leftover) = leftover {
        dispose(key, cx, now, leftover);
    }
    dispose_of_leftovers(key, cx, now);
    if is_late {
        // The store may have closed the account by now: nothing that is held of it may be spent.
        give_back(key, cx, now, u64::MAX);
    }
    if !ahead {
        key.lot = key.lease.current(now);
        key.fruitless = if granted > 0 { 0 } else { key.fruitless.saturating_add(1) };
        let pause = probe_pause(key, now);
        key.probe_at = now + pause + cx.jitter(Micros(pause.0 / 4));
        if !lost {
            pace(key, cx, now, &order, granted);
        }
        plan_ahead(key, cx, now);
    }
    for waiter in &mut key.line {
        waiter.answers += answers;
    }
    answer_postponed(key, cx, now);
    serve_line(key, cx, now, Source::Store);
    note_unclaimed(key, cx, now, sent);
    answer_recall(key, cx, now);
    if cx.draining && key.line.is_empty() {
        give_back(key, cx, now, u64::MAX);
    }
}

/// Tokens of a bucket or a sliding window come back one by one. Where several nodes ask for them the store has
/// one or two each time: then it is asked less often, and checks are denied until then. A node that is alone
/// with the key knows what the store has, and has no reason to wait; nor has one of several while the store
/// has enough for a few checks of each.
fn pace(key: &mut LeasedKey, cx: &mut Context, now: Instant, order: &Acquire, granted: u64) {
    key.paced_until = Instant(0);
    let trickles = key.rule.limits.iter().filter(|limit| limit.trickles());
    let longest = trickles.map(|limit| key.pause_of(limit)).min().unwrap_or(Micros::ZERO);
    let hot = key.tuner.used_in(longest) >= key.tuner.mean_cost().saturating_mul(HOT);
    let contested = key.nodes > 1 && !key.has_left_for_all(now);
    if hot && contested && granted < order.want / 2 {
        key.paced_until = now + longest + cx.jitter(Micros(longest.0 / 4));
        // Whoever was told an earlier time finds tokens then, or the store is asked.
        if let Some((at, cost)) = key.promise
            && key.lease.current(now) < cost
        {
            key.paced_until = key.paced_until.min(at);
        }
        // Asked a while before, in the background, so that nobody waits.
        key.probe_at = key.paced_until - Micros(longest.0 / 3);
    }
}

/// A bucket was charged at once for those who waited. Where they have been answered meanwhile, what they
/// wanted is here unclaimed. It goes back, because spent later it would be spent at another time than it was
/// charged, beyond the burst. Only where the answer was late is it kept for the next checks, until a second
/// after it was asked for: a store that is slow would otherwise never serve anybody.
fn note_unclaimed(key: &mut LeasedKey, cx: &mut Context, now: Instant, sent: Instant) {
    key.unclaimed_until = Instant(u64::MAX);
    if key.charged_and_held() == 0 {
        return;
    }
    let late = now.since(sent) >= cx.settings.timeout;
    key.unclaimed_until = if late { (sent + UNCLAIMED).max(now) } else { now };
    if key.unclaimed_until <= now {
        give_unclaimed(key, cx, now);
    }
}

/// Hands back what the store has charged for somebody who did not get it.
pub(super) fn give_unclaimed(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.unclaimed_until = Instant(u64::MAX);
    // What an acquire under way brings the account cannot be told of yet.
    let is_settled = key.line.is_empty() && key.flight.is_none();
    let charged = if is_settled { key.charged_and_held() } else { 0 };
    give_back(key, cx, now, charged);
}

/// What was let pass before the store had answered is charged next.
fn pay_credit(key: &mut LeasedKey, cx: &mut Context, granted: u64) -> u64 {
    let paid = key.credit.min(granted);
    key.credit -= paid;
    cx.policy_stats(key.policy).spent += paid;
    paid
}

/// What was admitted on the share is charged first.
fn pay_debt(key: &mut LeasedKey, cx: &mut Context, now: Instant, granted: u64) -> u64 {
    let paid = key.debt(now).min(granted);
    if let (true, Some(book)) = (paid > 0, &mut key.share) {
        book.pay(paid);
        cx.policy_stats(key.policy).spent += paid;
    }
    paid
}

/// Serves the line from its head as far as the answer goes, and asks again for the rest.
pub(super) fn serve_line(key: &mut LeasedKey, cx: &mut Context, now: Instant, source: Source) {
    while let Some(waiter) = key.line.front().copied() {
        let decision = match key.decide(now, waiter.cost, source, cx.fleet) {
            Some(decision) => decision,
            None if waiter.answers >= ANSWERS => key.deny_in_line(now, waiter.cost),
            None => break,
        };
        answer_first(key, cx, now, decision);
    }
    if !key.line.is_empty() && !key.awaits_return() {
        ask_for_line(key, cx, now);
    }
}

/// Answers the first in line.
pub(super) fn answer_first(key: &mut LeasedKey, cx: &mut Context, now: Instant, decision: Decision) {
    let Some(waiter) = key.line.pop_front() else { return };
    cx.stats.waiting -= 1;
    cx.count(key.policy, waiter.cost, &decision);
    key.promise(now, waiter.cost, &decision);
    cx.effects.push_back(Effect::Reply { ticket: waiter.ticket, decision });
}

/// The acquire has no answer, and will have none.
fn miss(key: &mut LeasedKey, cx: &mut Context, now: Instant, error: &StoreError) {
    let Some(flight) = &mut key.flight else { return };
    match error {
        StoreError::Unknown if flight.attempts < ATTEMPTS => send_again(flight, cx, now),
        StoreError::Busy { wait } if flight.attempts == 1 => {
            cx.note_trip(*wait);
            key.flight = None;
            dispose_of_leftovers(key, cx, now);
            // Who is in line has waited as long as the queue allows; who comes next asks anew.
            while let Some(waiter) = key.line.front().copied() {
                let decision = key.let_first_pass(now, waiter.cost, cx.settings.timeout);
                let decision = decision.unwrap_or_else(|| key.turn_away(now, waiter.cost, cx.queue()));
                answer_first(key, cx, now, decision);
            }
        }
        _ => give_up(key, cx, now, error),
    }
}

pub(super) fn give_up(key: &mut LeasedKey, cx: &mut Context, now: Instant, error: &StoreError) {
    let Some(flight) = key.flight.take() else { return };
    let since = match error {
        StoreError::Away { since } => *since,
        StoreError::Unknown | StoreError::Busy { .. } | StoreError::Full => flight.sent,
    };
    if (*error == StoreError::Unknown || flight.attempts > 1) && !on(Mutant::GivenUpForSpent) {
        key.doubtful = Some(key.void_order(&flight.call)).filter(|order| order.id != 0);
        key.doubted = flight.sent;
    }
    dispose_of_leftovers(key, cx, now);
    key.lose_store(now, since);
    if on(Mutant::WaiterDropped) {
        key.line.clear();
    }
    serve_line(key, cx, now, Source::Store);
}

/// What was lent under limits that apply no more, or by a store that has lost or reset the key since, is
/// spent by nobody; those in line ask again. Under the limits of then it goes back.
pub(super) fn void_grant(key: &mut LeasedKey, cx: &mut Context, now: Instant, call: &Call, grant: &Grant) {
    key.phase = Phase::Connected;
    let stats = cx.policy_stats(key.policy);
    stats.granted += grant.granted;
    stats.expired += grant.granted;
    let dropped = key.drop_leftovers();
    cx.policy_stats(key.policy).expired += dropped;
    if !key.is_of_these_limits(call) && grant.granted > 0 {
        let windows = std::array::from_fn(|index| match call.rule.limits.get(index) {
            Some(limit) if limit.algorithm != Algorithm::Gcra => grant.counters[index].at,
            _ => Timestamp(0),
        });
        let op = Op::Return {
            amount: grant.granted,
            epoch: grant.epoch,
            held: 0,
            ages: JUST_NOW,
            windows,
            voids: Voided::default(),
        };
        send_under(key, cx, now, call.rule.clone(), op);
    }
    serve_line(key, cx, now, Source::Store);
}

/// The store was asked before a peer told that it had lost the key: it is asked once more, but for a node that
/// has heard of a loss itself, and waits for what its peers know.
pub(super) fn answer_recall(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let waits = key.phase.waits(now);
    let is_news = key.recalled.take().is_some_and(|epoch| epoch != key.epoch);
    if is_news && !waits && key.flight.is_none() {
        acquire(key, cx, now);
    }
}
