//! One key's leases: when to acquire, how much, and what an answer or its absence does to those who
//! wait.
//!
//! One acquire per key is under way at a time. It asks for what waits and for what the tuner wants;
//! those who arrive meanwhile line up behind it, and a partial grant serves the line from its head.
//! An unknown outcome is asked again under the same id, three times in all, never guessed.

use std::sync::Arc;

use super::batch::{Bounds, refill_interval};
use super::call::{Acquire, Call, Grant, Op, StoreError, Voided};
use super::decision::{Decision, Source, Verdict};
use super::desk::Desk;
use super::errand::{answer_postponed, dispose, dispose_of_leftovers, give_back, report, send_all_queued};
use super::gcra;
use super::gossip::DOUBTED;
use super::learn::learn;
use super::lease::Segment;
use super::limit::{Algorithm, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::policy::Rule;
use super::repair::{answer_recall, lapse};
use super::shard::Effect;
use super::skew::StoreClock;
use super::slot::{Away, Slot};
use super::time::{Instant, Micros, Timestamp};
use super::upkeep::{ATTEMPTS, PATIENCE, flight, plan_ahead, probe_pause, send_again, set_timer};

/// How long after the store is back a share goes on: all nodes have charged theirs by then.
const GRACE: Micros = Micros(1_000_000);

/// Checks within a pause that make a key worth pacing.
const HOT: u64 = 8;

/// Answers that may leave a waiter unsettled before it is denied.
const ANSWERS: u8 = 4;

/// So long after they were asked for, tokens that the store has charged for somebody who did not get them may
/// be spent by others.
const UNCLAIMED: Micros = Micros(1_000_000);

/// After a check has been decided from memory: refill at the low-water mark, ask again in the
/// background after a denial or while the store is away.
pub(super) fn after_decision(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, decision: &Decision) {
    let asks = !(on(Mutant::GossipHasTheLastWord) && slot.is_spent_by_fleet());
    if slot.flight.is_some() || desk.draining || !asks {
        return;
    }
    let ahead = desk.settings.lease_ahead;
    let due = match slot.away {
        // In each window the share begins with a question: the store may be back.
        Some(away) => {
            let spent = decision.verdict == Verdict::Allow;
            let is_lent_nothing = away.repairs || away.charged;
            let begins = decision.source == Source::Share && !is_lent_nothing && slot.begins_share(now, spent);
            begins || now >= away.ask_again
        }
        None if decision.source == Source::Prefilter => slot.doubts_fleet() || now >= slot.probe_at,
        None if decision.verdict == Verdict::Deny => {
            (now >= slot.probe_at && !is_put_off(slot) || on(Mutant::DenialNotRemembered)) && ahead
        }
        None => ahead && is_low(slot, now) && now >= slot.probe_at.min(slot.paced_until) && slot.has_left(now),
    };
    if due {
        acquire(index, slot, desk, now);
    }
}

/// Peers confirm that all is spent, so that nothing will come back: the store is asked a second after
/// its last answer.
fn is_put_off(slot: &mut Slot) -> bool {
    let later = slot.answered.map_or(Instant(0), |at| at + DOUBTED);
    let put_off = slot.probe_at < later && slot.is_spent_by_fleet();
    if put_off {
        slot.probe_at = later;
    }
    put_off
}

/// A quarter of the lot is left, or what is used in two trips to the store and 3 ms (at most three
/// quarters of the lot), or less than a dear check costs.
fn is_low(slot: &Slot, now: Instant) -> bool {
    let (trip, lot) = (slot.trip, slot.lot);
    let (tuner, soon) = (&slot.tuner, Micros(3_000) + trip + trip);
    // The last token of a key that is seldom asked for lasts a while.
    let soon = if tuner.is_slow(refill_interval(&slot.rule)) { 0 } else { tuner.used_in(soon) };
    let mark = soon.clamp(lot / 4, lot - lot / 4);
    // The dearest check of late would find too little.
    let mark = mark.max(tuner.dearest() - 1);
    tuner.is_warm() && slot.lease.current(now) <= mark && !tuner.is_slow(remaining(slot, now))
}

/// Somebody has joined the line: ask the store, unless an acquire is under way or tokens that are held
/// are about to start or to trickle in.
pub(super) fn ask_for_line(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let free = slot.flight.is_none() || on(Mutant::TwoInFlight);
    let begins_soon = slot.lease.starts(now).is_some_and(|starts| starts <= now + PATIENCE);
    if free && !begins_soon && slot.matures(now).is_none() {
        acquire(index, slot, desk, now);
    }
    set_timer(index, slot, desk, now);
}

pub(super) fn acquire(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    if on(Mutant::StaysAway) && slot.away.is_some() || slot.has_account_under_way() {
        return;
    }
    if slot.doubtful.is_some() {
        // What it was lent is nobody's: the store hears of that first.
        report(index, slot, desk, now, Voided::default());
        if slot.has_account() {
            return;
        }
    }
    if slot.away.is_some_and(|away| !away.charged) && (slot.owes(now) || slot.awaits_others(now)) {
        return charge(index, slot, desk, now);
    }
    let (debt, held) = (slot.debt(now), slot.lease.usable(now));
    let waiting = slot.line.iter().map(|waiter| waiter.cost).fold(0, u64::saturating_add);
    let need = waiting.saturating_sub(held).saturating_add(debt).saturating_add(slot.credit);
    // Less than what the least of them lacks serves nobody.
    let smallest = slot.line.iter().map(|waiter| waiter.cost.saturating_sub(held)).min();
    let least = if debt > 0 { 1 } else { smallest.unwrap_or(1).max(1) };
    // While Redis has no replica to hold what it lends, leases are small: so much can be lost.
    let ceiling = slot.ceiling(desk.fleet);
    let part = if slot.confirmed { ceiling } else { ceiling.div_ceil(32) };
    let plenty = !slot.is_pressed(now);
    // An account has to be renewed that often anyway.
    let interval = if plenty && slot.has_account() { gcra::PERIOD } else { refill_interval(&slot.rule) };
    let bounds = Bounds {
        need,
        ceiling: part.saturating_sub(held),
        interval: interval.max(refill_interval(&slot.rule)),
        remaining: remaining(slot, now),
        window: slot.rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default(),
        plenty,
    };
    let tuned = slot.tuner.refill(now, bounds);
    let ahead = desk.settings.lease_ahead && !desk.draining;
    // A flood spends this node's part before it could ask again: it takes it at once.
    let need = if ahead && slot.has_left(now) && slot.is_flooded(part) { need.max(part) } else { need };
    let want = if ahead { tuned.max(need) } else { need };
    let want = if on(Mutant::BatchUncapped) { u64::MAX } else { want };
    desk.policy_stats(slot).batch = want.max(1);
    let (epoch, known) = (slot.epoch, slot.known(now));
    let order = Acquire {
        need,
        want: want.max(least),
        least,
        ahead_of: Timestamp(0),
        epoch,
        held: slot.held(),
        ages: slot.ages(now, 0),
        known,
    };
    take_off(index, slot, desk, now, order);
}

/// The store may be back: asks for what the share admitted and for what it has left, so that others
/// are lent neither, and for nothing more; for nothing where nobody spent of it here.
fn charge(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let left = if slot.owes(now) { slot.share_left(now) } else { 0 };
    let owed = slot.debt(now).saturating_add(left);
    let (epoch, known) = (slot.epoch, slot.known(now));
    // All of it is needed: who is lent a part leases on, and takes what others have yet to pay.
    let order = Acquire {
        need: owed,
        want: owed,
        least: 1,
        ahead_of: Timestamp(0),
        epoch,
        held: slot.held(),
        ages: slot.ages(now, 0),
        known,
    };
    take_off(index, slot, desk, now, order);
}

pub(super) fn take_off(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, order: Acquire) {
    if slot.has_account() {
        // What this order says of the account is the last word: nothing lent before it counts any more.
        slot.lease.close_spent();
    }
    // What was asked for before it is done before it.
    send_all_queued(slot, desk, now);
    let call = slot.call(now, desk.id(), Op::Acquire(order));
    desk.effects.push_back(Effect::Call(call.clone()));
    slot.flight = Some(flight(call, now));
    set_timer(index, slot, desk, now);
}

/// Takes over other limits for the same key. Nothing that is held may be spent under them: the store hears what
/// was, and gets the rest, together with what an order under way is lent.
pub(super) fn change_limits(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, rule: &Arc<Rule>) {
    send_all_queued(slot, desk, now);
    let voids = match slot.flight.take() {
        Some(flight) => slot.void_order(&flight.call),
        None => slot.doubtful.take().unwrap_or_default(),
    };
    if slot.has_untold() || voids.id != 0 {
        report(index, slot, desk, now, voids);
    }
    give_back(index, slot, desk, now, u64::MAX);
    dispose_of_leftovers(index, slot, desk, now);
    let voided = slot.adopt(now, rule);
    desk.policy_stats(slot).expired += voided;
    answer_postponed(slot, desk, now);
    if !slot.line.is_empty() {
        ask_for_line(index, slot, desk, now);
    }
}

/// What is left of the first window to end.
pub(super) fn remaining(slot: &Slot, now: Instant) -> Micros {
    let latest = slot.clock.latest(now);
    let windows = slot.rule.limits.iter().zip(&slot.counters).filter_map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra | Algorithm::Concurrent => None,
        Algorithm::Sliding => Some((counter.at + limit.period).since(latest)),
        Algorithm::Fixed | Algorithm::FixedFromFirst => Some(counter.at.since(latest)),
    });
    // A window that is over or not known leaves its whole length.
    windows.filter(|left| *left > Micros::ZERO).min().unwrap_or(Micros(u64::MAX))
}

/// Takes the outcome of an acquire.
pub(super) fn handle_acquire(
    index: u32,
    slot: &mut Slot,
    desk: &mut Desk,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) {
    let current = slot.flight.as_ref().is_some_and(|flight| flight.call.id == call.id);
    if !current {
        let Ok(grant) = outcome else { return };
        // Told once more: what it lends is held already or void, what else it says is news. After a reset it was lent
        // anew to nobody here, and what the key was before is over.
        if grant.epoch == slot.epoch || grant.reset && grant.now > slot.heard {
            learn(slot, desk, now, call, &grant);
        }
        return;
    }
    match outcome {
        Ok(grant) if grant.outdated && desk.skip_ids() => {
            slot.flight = None;
            if let Op::Acquire(order) = call.op {
                take_off(index, slot, desk, now, order);
            }
        }
        Ok(grant) => {
            let sent = slot.flight.take().map_or(now, |flight| flight.sent);
            land(index, slot, desk, now, sent, call, &grant);
        }
        Err(error) => miss(index, slot, desk, now, &error),
    }
    answer_postponed(slot, desk, now);
    set_timer(index, slot, desk, now);
}

fn land(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, sent: Instant, call: &Call, grant: &Grant) {
    let lost = learn(slot, desk, now, call, grant);
    let Op::Acquire(order) = call.op else { return };
    if !slot.is_of_these_limits(call) || grant.epoch != slot.epoch {
        return lapse(index, slot, desk, now, call, grant);
    }
    if desk.fleet.is_some() && (slot.lent_in_fleet(grant.granted > 0 && order.ahead_of.0 == 0) || lost) {
        desk.talkers.insert(index);
    }
    slot.away = match slot.away {
        // A share goes on only when the store has lent all of it: then no other node is lent it, too.
        Some(away) if !away.charged && slot.owes(now) && grant.granted >= slot.debt(now) + slot.share_left(now) => {
            let back = away.back.unwrap_or(now + GRACE);
            Some(Away { ask_again: back.max(now), charged: true, back: Some(back), repairs: false })
        }
        // Others may have spent theirs of this window already. What was admitted since the call is charged next.
        Some(away) if !away.charged && slot.awaits_others(now) && (!slot.owes(now) || grant.granted >= order.need) => {
            let back = away.back.unwrap_or(now + GRACE);
            let ask_again = if slot.owes(now) { now } else { back };
            (now < back).then_some(Away { ask_again, charged: false, back: Some(back), repairs: false })
        }
        _ => None,
    };
    // Whoever has to wait for what others owe waits for what they know, too.
    if lost && slot.away.is_none() {
        slot.wait_for_peers(now, desk.fleet);
    }
    let ahead = order.ahead_of.0 != 0;
    let as_whole = on(Mutant::PartialAsWhole) && grant.granted > 0;
    let granted = if as_whole { order.want } else { grant.granted };
    desk.policy_stats(slot).granted += granted;
    let paid = if ahead { 0 } else { pay_debt(slot, desk, now, granted) };
    let paid = if ahead { 0 } else { paid + pay_credit(slot, desk, granted - paid) };
    let mut windows = [Timestamp(0); MAX_LIMITS];
    for (position, limit) in slot.rule.limits.iter().enumerate() {
        let lender = if on(Mutant::LateReplyRebound) { &slot.counters[position] } else { &grant.counters[position] };
        let at = lender.at;
        windows[position] = if ahead { at + limit.period } else { at };
        if limit.algorithm == Algorithm::Gcra {
            slot.net[position] = order.held + granted.saturating_sub(order.need);
        } else if slot.counters[position].at == windows[position] {
            slot.net[position] += granted;
        } else {
            slot.turned[position].note_lent(windows[position], granted);
        }
    }
    slot.lease.account(&slot.rule, sent, now, grant.now);
    slot.note_ahead(now);
    if ahead {
        slot.lent_ahead = (windows[0], granted);
    }
    // Tokens end by the clock that lent them, whatever is known of it otherwise.
    let clock = StoreClock::new(call.sent_at, now, grant.now);
    let segment = Segment::new(&slot.rule, granted - paid, sent, clock, &windows, ahead);
    // What was lent ahead, or is over when it arrives, says nothing of what those in line want; nor does a store
    // that lends nothing because this node brought back what it had lost.
    let answers = u8::from(!ahead && !lost && segment.ends > now);
    let leftover = if segment.ends <= now && segment.left > 0 { Some(segment.into()) } else { slot.lease.add(segment) };
    if let Some(leftover) = leftover {
        dispose(index, slot, desk, now, leftover);
    }
    dispose_of_leftovers(index, slot, desk, now);
    if !ahead {
        slot.lot = slot.lease.current(now);
        slot.fruitless = if granted > 0 { 0 } else { slot.fruitless.saturating_add(1) };
        let pause = probe_pause(slot, now);
        slot.probe_at = now + pause + desk.jitter(Micros(pause.0 / 4));
        if !lost {
            pace(slot, desk, now, &order, granted);
        }
        plan_ahead(slot, desk, now);
    }
    for waiter in &mut slot.line {
        waiter.answers += answers;
    }
    answer_postponed(slot, desk, now);
    serve_line(index, slot, desk, now, Source::Store);
    note_unclaimed(index, slot, desk, now, sent);
    answer_recall(index, slot, desk, now);
    if desk.draining && slot.line.is_empty() {
        give_back(index, slot, desk, now, u64::MAX);
    }
}

/// Tokens of a bucket or a sliding window come back one by one. Where several nodes ask for them the store has
/// one or two each time: then it is asked less often, and checks are denied until then. A node that is alone
/// with the key knows what the store has, and has no reason to wait; nor has one of several while the store
/// has enough for a few checks of each.
fn pace(slot: &mut Slot, desk: &mut Desk, now: Instant, order: &Acquire, granted: u64) {
    slot.paced_until = Instant(0);
    let trickles = slot.rule.limits.iter().filter(|limit| limit.trickles());
    let longest = trickles.map(|limit| slot.pause_of(limit)).min().unwrap_or(Micros::ZERO);
    let hot = slot.tuner.used_in(longest) >= slot.tuner.mean_cost().saturating_mul(HOT);
    let contested = slot.nodes > 1 && !slot.has_left_for_all(now);
    if hot && contested && granted < order.want / 2 {
        slot.paced_until = now + longest + desk.jitter(Micros(longest.0 / 4));
        // Whoever was told an earlier time finds tokens then, or the store is asked.
        if let Some((at, cost)) = slot.promise
            && slot.lease.current(now) < cost
        {
            slot.paced_until = slot.paced_until.min(at);
        }
        // Asked a while before, in the background, so that nobody waits.
        slot.probe_at = slot.paced_until - Micros(longest.0 / 3);
    }
}

/// A bucket was charged at once for those who waited. Where they have been answered meanwhile, what they
/// wanted is here unclaimed. It goes back, because spent later it would be spent at another time than it was
/// charged, beyond the burst. Only where the answer was late is it kept for the next checks, until a second
/// after it was asked for: a store that is slow would otherwise never serve anybody.
fn note_unclaimed(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, sent: Instant) {
    slot.unclaimed_until = Instant(u64::MAX);
    if slot.charged_and_held() == 0 {
        return;
    }
    let late = now.since(sent) >= desk.settings.timeout;
    slot.unclaimed_until = if late { (sent + UNCLAIMED).max(now) } else { now };
    if slot.unclaimed_until <= now {
        give_unclaimed(index, slot, desk, now);
    }
}

/// Hands back what the store has charged for somebody who did not get it.
pub(super) fn give_unclaimed(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    slot.unclaimed_until = Instant(u64::MAX);
    // What an acquire under way brings the account cannot be told of yet.
    let is_settled = slot.line.is_empty() && slot.flight.is_none();
    let charged = if is_settled { slot.charged_and_held() } else { 0 };
    give_back(index, slot, desk, now, charged);
}

/// What was let pass before the store had answered is charged next.
fn pay_credit(slot: &mut Slot, desk: &mut Desk, granted: u64) -> u64 {
    let paid = slot.credit.min(granted);
    slot.credit -= paid;
    desk.policy_stats(slot).spent += paid;
    paid
}

/// What was admitted on the share is charged first.
fn pay_debt(slot: &mut Slot, desk: &mut Desk, now: Instant, granted: u64) -> u64 {
    let paid = slot.debt(now).min(granted);
    if let (true, Some(book)) = (paid > 0, &mut slot.share) {
        book.pay(paid);
        desk.policy_stats(slot).spent += paid;
    }
    paid
}

/// Serves the line from its head as far as the answer goes, and asks again for the rest.
pub(super) fn serve_line(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, source: Source) {
    while let Some(waiter) = slot.line.front().copied() {
        let decision = match slot.decide(now, waiter.cost, source, desk.fleet) {
            Some(decision) => decision,
            None if waiter.answers >= ANSWERS => slot.deny_in_line(now, waiter.cost),
            None => break,
        };
        settle_first(slot, desk, now, decision);
    }
    if !slot.line.is_empty() {
        ask_for_line(index, slot, desk, now);
    }
}

/// Answers the first in line.
pub(super) fn settle_first(slot: &mut Slot, desk: &mut Desk, now: Instant, decision: Decision) {
    let Some(waiter) = slot.line.pop_front() else { return };
    desk.stats.waiting -= 1;
    desk.count(slot, waiter.cost, &decision);
    slot.promise(now, waiter.cost, &decision);
    desk.effects.push_back(Effect::Reply { ticket: waiter.ticket, decision });
}

/// The acquire has no answer, and will have none.
fn miss(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, error: &StoreError) {
    let Some(flight) = &mut slot.flight else { return };
    match error {
        StoreError::Unknown if flight.attempts < ATTEMPTS => send_again(flight, desk, now),
        StoreError::Busy { wait } if flight.attempts == 1 => {
            desk.note_trip(*wait);
            slot.flight = None;
            dispose_of_leftovers(index, slot, desk, now);
            // Who is in line has waited as long as the queue allows; who comes next asks anew.
            while let Some(waiter) = slot.line.front().copied() {
                let decision = slot.let_first_pass(now, waiter.cost, desk.settings.timeout);
                let decision = decision.unwrap_or_else(|| slot.turn_away(now, waiter.cost, desk.queue()));
                settle_first(slot, desk, now, decision);
            }
        }
        _ => give_up(index, slot, desk, now, error),
    }
}

pub(super) fn give_up(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, error: &StoreError) {
    let Some(flight) = slot.flight.take() else { return };
    let since = match error {
        StoreError::Away { since } => *since,
        StoreError::Unknown | StoreError::Busy { .. } | StoreError::Full => flight.sent,
    };
    if (*error == StoreError::Unknown || flight.attempts > 1) && !on(Mutant::GivenUpForSpent) {
        slot.doubtful = Some(slot.void_order(&flight.call)).filter(|order| order.id != 0);
        slot.doubted = flight.sent;
    }
    dispose_of_leftovers(index, slot, desk, now);
    slot.lose_store(now, since);
    if on(Mutant::WaiterDropped) {
        slot.line.clear();
    }
    serve_line(index, slot, desk, now, Source::Store);
}
