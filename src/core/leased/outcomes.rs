//! What an answer of the store, or its absence, changes in a key.
//!
//! Every answer is news of the store, whether or not somebody still waits for it: counters, clock, epoch. The answer
//! to an acquire also brings tokens, and says when the store is worth asking again. Nothing is sent from here:
//! `advance.rs` does what follows from what is now known.

use super::advance::advance;
use super::entitlement::Entitlement;
use super::key::LeasedKey;
use super::limit_view::LentOf;
use super::phase::Phase;
use super::wish::Wish;
use crate::core::ask::Payer;
use crate::core::call::{Acquire, CALL_LIFE, Call, Counter, Grant, OPEN, Op, StoreError};
use crate::core::calls::{Ended, Flight};
use crate::core::context::Context;
use crate::core::gcra;
use crate::core::lease::Segment;
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::window;

/// Pauses are longer by up to this fraction, at random, so that nodes that were answered at the same time do not ask
/// at the same time.
const JITTER_PART: u64 = 4;

/// A pause in which tokens trickle in ends earlier by this fraction for calls in the background: see [`pace`]. If it
/// ended no earlier, 2 % of the checks in gcra-2x would wait for the answer; without a pause for the background,
/// gcra-2x would cost 184 calls per 1000 checks instead of 39.
const EARLY_PART: u64 = 3;

/// A grant of less than one part in so many of what was wanted shows that others take what trickles in. At one in one, a grant that lacks a
/// single token would.
const CONTESTED_PART: u64 = 2;

/// Checks within a pause that make a key worth pacing. With 40, each check of sliding-2x would ask the store.
const HOT: u64 = 8;

/// A bucket may be charged for a caller who is answered before the tokens come. Other checks may spend these tokens
/// until so long after the call was sent.
const UNCLAIMED: Micros = Micros(1_000_000);

/// A denial is remembered for this fraction of the window that is spent. At one in 32, second-2x costs 92 calls per
/// 1000 checks instead of 60.
const PROBE_PART: u64 = 4;

/// A denial by a bucket is remembered for this long, or for as long as the bucket takes to fill if that is shorter: then all has come back.
const PROBE_OF_BUCKET: u64 = 250_000;

/// The shortest and the longest time for which any denial is remembered. With a shorter one, keys of short windows would ask the store more
/// than twenty times a second; with a longer one, what others return would lie there for longer.
const PROBES: (u64, u64) = (50_000, 2_000_000);

/// If the store has had nothing left of a window in several answers, a denial is remembered for longer, because little comes back any more:
/// for this fraction of the window, and at most for this time.
const LONG_PROBE: (u64, u64) = (64, 30_000_000);

/// Tokens of shorter windows are not leased before they begin: such a call leaves earlier by [`AHEAD_SPAN`], a trip, and up to a quarter of the
/// window, when of a shorter one little is known yet.
const SHORTEST_AHEAD: Micros = Micros(250_000);

/// A lease of the next window is asked for at least this long, plus a round trip to the store, before the window begins, so that an answer
/// that takes somewhat longer than the last one comes in time, too.
const AHEAD_SPAN: Micros = Micros(20_000);

/// Such a call leaves no earlier, for the sake of a long round trip, than by this fraction of the window. A store that is further
/// away would be asked for the next window before it is known what is used in this one.
const AHEAD_TRIP_PART: u64 = 2;

/// Nodes spread these calls at random over this fraction of the window before, so that they do not all ask at once.
const AHEAD_JITTER_PART: u64 = 4;

/// A bucket whose tokens trickle in is left alone until each node's part of them is so many checks. With fewer, more calls are made; with
/// more, clients wait longer. Until it is full the bucket loses nothing by that.
const PAUSE_OF_BUCKET: u64 = 12;

/// A sliding window loses tokens that nobody takes, so it is asked more often. With 12 checks, 90 to 92 % of
/// sliding-2x was used; with 10 it was 92 to 93 %, for 75 calls per 1000 checks of the 80 that it may cost; with 3,
/// almost every check asks.
const PAUSE_OF_WINDOW: u64 = 10;

/// The shortest and the longest time for which a bucket is left alone. With a shortest time of 50 ms, gcra-2x costs
/// 52 calls per 1000 checks instead of 39.
const BUCKET_PAUSES: (u64, u64) = (350_000, 2_000_000);

/// A bucket is left alone for no more than this fraction of the time in which it fills. If it were left alone until it is full, what
/// comes after that would be lost.
const FILLING_PART: u64 = 2;

/// The shortest and the longest time for which a sliding window is left alone, as fractions of its length. A shorter one costs more calls, and
/// with a longer one more of what trickles in is lost when the window ends.
const WINDOW_PARTS: (u64, u64) = (16, 4);

/// The longest time for which nodes leave a sliding window alone that several of them ask for, however long it is. What trickles in
/// meanwhile nobody spends, and where that time is a quarter of a minute, a tenth of the window is lost: where eight nodes wanted a
/// tenth more than there was, 91 % was used, and is 96 % now.
const LONGEST_WINDOW_PAUSE: Micros = Micros(2_000_000);

/// A pause that would outlast a sliding window ends before that does, earlier by up to this fraction of the pause at random. Without that,
/// 93.1 % of sliding-2x was used, for 75 calls per 1000 checks, and 92.6 % of sliding-2x-owners; at a half 94.3 %, for 78 calls. At a
/// quarter it was 94.9 %, but for 83 calls; with a whole pause, 93.2 %.
const LAST_PART: u64 = 2;

/// What an answer leads to.
struct News {
    /// What the key asks for because of it.
    wish: Wish<'static>,
    /// Peers must hear of something.
    for_peers: bool,
}

impl News {
    /// Nothing that peers need to hear of.
    fn of(wish: Wish<'static>) -> Self {
        Self { wish, for_peers: false }
    }
}

/// A grant, and the call that asked for it.
struct Granted<'a> {
    call: &'a Call,
    order: &'a Acquire,
    /// When the call was first sent.
    sent: Instant,
    grant: &'a Grant,
}

/// Takes the outcome of a call of this key. Returns whether peers must hear of something.
pub(in crate::core) fn handle_outcome(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) -> bool {
    if let Ok(grant) = &outcome {
        cx.note_confirmed(now, grant.confirmed);
    }
    advance(key, cx, now, Wish::DropEnded);
    let news = match &call.op {
        Op::Acquire(order) => take_acquired(key, cx, now, call, order, outcome),
        _ => take_errand(key, cx, now, call, outcome),
    };
    if let Some(News { wish, .. }) = news {
        advance(key, cx, now, wish);
    }
    if cx.fleet.is_none() {
        cx.nodes = cx.nodes.max(key.view.nodes());
    }
    news.is_some_and(|news| news.for_peers)
}

/// Takes the outcome of an acquire. `None` when it is not the one under way, so that nothing follows from it.
fn take_acquired(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    call: &Call,
    order: &Acquire,
    outcome: Result<Grant, StoreError>,
) -> Option<News> {
    let is_current = key.rare.calls.acquire().is_some_and(|acquire| acquire.call.id == call.id);
    if !is_current {
        let grant = outcome.ok()?;
        // The answer to an acquire that is no longer awaited. What it lends is held already or void, but its counters
        // may be news, unless the key was reset since.
        if grant.epoch == key.view.epoch() || grant.reset && Some(grant.now) > key.view.heard() {
            reconcile(key, cx, now, call, &grant);
        }
        return None;
    }
    Some(match outcome {
        Ok(grant) if grant.late => News::of(refused(key, cx, now, call, &grant)),
        Ok(grant) if grant.outdated && cx.skip_ids() => News::of(Wish::Again),
        Ok(grant) => {
            let sent = key.rare.calls.end_acquire().map_or(now, |acquire| acquire.sent);
            apply_grant(key, cx, now, &Granted { call, order, sent, grant: &grant })
        }
        Err(error) => News::of(miss(key, cx, now, &error)),
    })
}

fn apply_grant(key: &mut LeasedKey, cx: &mut Context, now: Instant, granted: &Granted<'_>) -> News {
    let &Granted { call, order, sent, grant } = granted;
    let is_counted_anew = key.view.epoch() != 0 && grant.epoch != key.view.epoch() && !grant.reset;
    let lost = reconcile(key, cx, now, call, grant);
    debug_assert!(key.view.is_of_these_limits(call), "with its limits a key leaves the acquire that was under way");
    if grant.epoch != key.view.epoch() {
        return News::of(void_grant(key, cx, grant));
    }
    let ahead = order.window.is_next();
    if let Some(claim) = &order.claim {
        key.note_claimed(sent, claim, order.window, grant);
    }
    key.note_window_of(sent, now, grant);
    let is_refused = order.claim.is_some_and(|claim| !claim.frees.at(grant.now));
    if is_refused && is_counted_anew {
        // The store has lost the key, and sets nothing of it aside for this node until a call that frees something says what it believes.
        // `lost` does not tell: it leaves out keys of which this node has no tokens any more, and whose time in the store seems to be over.
        key.rare.outage.change_entitlement(Entitlement::renounce);
    }
    let for_peers = cx.fleet.is_some() && (key.lent_in_fleet(grant.granted > 0 && !ahead) || lost);
    let phase = key.phase_after(now, order.need, grant.granted);
    if matches!(phase, Phase::Repaying { .. }) && key.owes(now) && grant.granted < order.need {
        key.rare.outage.end_share();
    }
    key.rare.outage.enter(phase);
    if lost {
        key.wait_for_peers(now, cx.fleet);
    }
    let as_whole = on(Mutant::PartialAsWhole) && grant.granted > 0;
    let granted = if as_whole { order.want } else { grant.granted };
    cx.policy_stats(key.policy()).granted += granted;
    let paid = match key.view.rule().is_entitled_sliding() {
        _ if ahead => 0,
        true => pay_in_window(key, cx, grant.now, granted),
        false => pay_debt(key, cx, now, granted, Payer::Store),
    };
    let paid = if ahead { 0 } else { paid + pay_credit(key, cx, granted - paid) };
    let mut windows = OPEN;
    for (position, limit) in key.view.rule().limits.iter().enumerate() {
        let lender = if on(Mutant::LateReplyRebound) { key.view.counter(position) } else { grant.counters[position] };
        let at = lender.at;
        windows[position] = if ahead { at + limit.period } else { at }.stored();
    }
    // What this node may not keep the store has charged, or will.
    let kept = order.held.saturating_sub(grant.not_kept);
    let order = &Acquire { held: kept, ..*order };
    let beyond = key.unspent().saturating_sub(if grant.not_kept > 0 { kept } else { u64::MAX });
    cx.policy_stats(key.policy()).expired += key.drop_some(now, beyond);
    key.view.note_reported(now, kept.saturating_sub(key.unspent()));
    for (position, window) in windows.iter().enumerate().take(key.view.rule().limits.len()) {
        key.view.note_lent(position, *window, granted, order);
    }
    key.holdings.account(key.view.rule(), sent, now, grant.now);
    key.note_ahead(now);
    if ahead {
        key.rare.ahead = LentOf { window: windows[0], tokens: granted };
    }
    // Tokens end by the clock that lent them, whatever is known of it otherwise.
    let clock = StoreClock::new(call.sent_at, now, grant.now);
    let segment = Segment::new(key.view.rule(), granted - paid, sent, clock, &windows, ahead);
    // Tokens that were lent ahead, or are over when they arrive, say nothing about what those in line want. Nor does
    // a grant of nothing because this node restored what the store had lost.
    let is_late = key.holdings.lease().until().has_come(now);
    let is_over = segment.ends().has_come(now);
    // Nor does a full grant. Whoever it does not serve came later, or is behind somebody whose request reached the
    // daemon earlier, but this key later.
    let is_short = granted < order.need;
    let answers = u8::from(!ahead && !lost && !is_refused && !is_late && !is_over && is_short);
    let unspent = if is_over && segment.left > 0 { Some(segment.into()) } else { key.holdings.add(segment) };
    if let Some(unspent) = unspent {
        key.rare.leaving.return_later(unspent);
    }
    if !ahead && !is_refused {
        // The store may have closed the account of a late grant by now, so nothing of it may be spent.
        key.holdings.measure_by(if is_late { 0 } else { key.holdings.lease().current(now) });
        if order.want > 0 {
            key.rare.paces.note_answer(granted);
        }
        let pause = probe_pause(key, now);
        key.pacing.probe_at(now + pause + cx.jitter(Micros(pause.0 / JITTER_PART)));
        if lost {
            // After a loss, the store no longer knows what trickled in and who wanted it.
            key.rare.paces.go_on();
        } else {
            pace(key, cx, now, order, granted);
        }
        plan_ahead(key, cx, now);
    } else if is_refused {
        // The answer to a call that frees nothing does not tell by its tokens whether there are more. Its counters do, and they are newer
        // than a peer's denial, for which this key may have paused.
        key.rare.paces.go_on();
    }
    key.rare.line.note_answers(answers);
    // Tokens that were charged at once wait for the check of several keys that is about to claim them, and for no longer than that
    // may wait. If the answer was late they are kept for the next checks, until a second after the call was sent: otherwise a slow
    // store would never serve anybody. What nobody claims is returned.
    let is_slow = now.since(sent) >= cx.settings.timeout;
    let claimed_by = sent + if is_slow { UNCLAIMED } else { cx.settings.timeout };
    key.rare.leaving.keep_unclaimed(Some(claimed_by.max(now)));
    // The store was asked before a peer reported that it has lost the key, so it is asked once more. A node that has
    // noticed a loss itself does not, and waits for what its peers know.
    let is_recalled = key.rare.peers.take_recalled().is_some_and(|epoch| epoch != key.view.epoch());
    let wish = if is_recalled && !key.rare.outage.phase().waits(now) { Wish::Restore } else { Wish::Nothing };
    News { wish, for_peers }
}

/// The store has not executed the acquire, because that came outside of its time: it was under way for too long, or this
/// node knows too little of the store's clock, which the answer shows. What is still wanted is asked for anew.
fn refused(key: &mut LeasedKey, cx: &mut Context, now: Instant, call: &Call, grant: &Grant) -> Wish<'static> {
    let clock = StoreClock::new(call.sent_at, now, grant.now);
    cx.note_trip(clock.trip());
    cx.note_clock(clock);
    key.note_clock(now, clock);
    // A store that is so slow is not asked for tokens that nobody waits for.
    let is_wanted = !key.rare.line.is_empty() || key.is_away(now) || key.is_due(now);
    if is_wanted || clock.trip() < CALL_LIFE {
        return Wish::Again;
    }
    key.rare.calls.end_acquire();
    Wish::Nothing
}

/// Drops a grant of a store that has lost or reset the key since: nobody may spend it, and callers in line ask again.
fn void_grant(key: &mut LeasedKey, cx: &mut Context, grant: &Grant) -> Wish<'static> {
    key.rare.outage.enter(Phase::Connected);
    let dropped = key.rare.leaving.drop_all();
    let stats = cx.policy_stats(key.policy());
    stats.granted += grant.granted;
    stats.expired += grant.granted + dropped;
    Wish::Nothing
}

/// Pays from a grant for checks that passed before the store had answered for the first time.
pub(super) fn pay_credit(key: &mut LeasedKey, cx: &mut Context, granted: u64) -> u64 {
    let paid = key.rare.outage.pay_credit(granted);
    cx.policy_stats(key.policy()).spent += paid;
    paid
}

/// Pays from a grant, or from what a peer lends, for what the share admitted, before any of it is held or spent.
pub(super) fn pay_debt(key: &mut LeasedKey, cx: &mut Context, now: Instant, granted: u64, by: Payer) -> u64 {
    let paid = key.debt(now).min(granted);
    if paid > 0 {
        key.pay(now, paid, by);
        cx.policy_stats(key.policy()).spent += paid;
    }
    paid
}

/// Pays from a grant for what was admitted in the sliding window that has lent it, of what is set aside there. Also where that window is
/// over when the answer comes: the store counts the grant in the window before, and what was admitted may not be given back there.
fn pay_in_window(key: &mut LeasedKey, cx: &mut Context, lent_at: Timestamp, granted: u64) -> u64 {
    let paid = key.rare.outage.pay_in_window(key.view.rule(), lent_at, granted);
    cx.policy_stats(key.policy()).spent += paid;
    paid
}

/// The acquire has failed.
fn miss(key: &mut LeasedKey, cx: &mut Context, now: Instant, error: &StoreError) -> Wish<'static> {
    let Some(acquire) = key.rare.calls.acquire() else { return Wish::Nothing };
    match error {
        _ if acquire.is_retried(error) => key.rare.calls.lose_acquire(),
        StoreError::Busy { wait } if acquire.attempts == 1 => {
            cx.note_trip(*wait);
            key.rare.paces.note_crowd(now, *wait);
            key.rare.calls.end_acquire();
            return Wish::TurnAway;
        }
        _ => give_up(key, now, error, cx.heard_clock().is_some()),
    }
    Wish::Nothing
}

/// The store is lost to this key. `has_heard`: it has answered this node before, about whatever key.
fn give_up(key: &mut LeasedKey, now: Instant, error: &StoreError, has_heard: bool) {
    let Some(acquire) = key.rare.calls.end_acquire() else { return };
    let (since, noticed) = match error {
        StoreError::Away { since } => (*since, *since),
        StoreError::Unknown | StoreError::Busy { .. } | StoreError::Full => (acquire.sent, now),
    };
    if (*error == StoreError::Unknown || acquire.attempts > 1) && !on(Mutant::GivenUpForSpent) {
        let order = key.void_order(&acquire.call);
        key.rare.calls.give_up(order, acquire.sent);
    } else {
        key.note_unsent(&acquire.call);
    }
    key.lose_store(now, since, noticed);
    key.note_unanswered(acquire.sent);
    if !has_heard {
        // This node cannot know how long ago the others lost the store, so it takes them to have spent shares of this window.
        key.rare.outage.note_unanswered(None);
    }
    if on(Mutant::WaiterDropped) {
        key.rare.line.drop_all();
    }
}

/// Takes the outcome of a peek, refund, reset or return. `None` when it was no longer under way.
fn take_errand(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) -> Option<News> {
    if let Ok(grant) = &outcome {
        key.note_taken_back(call, grant);
    }
    let Some(errand) = key.rare.calls.take(call.id) else {
        // Nobody waits for this answer, but its counters are news all the same.
        reconcile(key, cx, now, call, &outcome.ok()?);
        return None;
    };
    match outcome {
        Ok(grant) => {
            if grant.outdated {
                cx.skip_ids();
            }
            reconcile(key, cx, now, call, &grant);
            if !grant.outdated {
                // The counters of this answer are newer than what a peer said when it denied this key's ask. In the pause that such a
                // denial begins checks are denied from memory, which may be wrong by now.
                key.rare.paces.end_pause_by_peer();
            }
            if matches!(call.op, Op::Return { .. }) && !grant.outdated {
                key.view.note_reported(now, key.view.spent(key.unspent()));
            }
            key.note_back(now, errand.sent);
            note_voided(key, now, &call.op);
            if call.op == Op::Reset && !on(Mutant::ResetKeepsLeases) {
                let voided = key.void();
                cx.policy_stats(key.policy()).expired += voided;
                key.rare.outage.drop_budget();
                key.begin_anew();
                key.rare.calls.drop_acquires_before(call.id);
            }
            key.rare.calls.put_ended(errand, Ended::Answered);
        }
        Err(error) if errand.is_retried(&error) => key.rare.calls.put_lost(errand),
        Err(error) => {
            keep_doubtful(key, now, &errand, &error);
            key.rare.calls.put_ended(errand, Ended::Failed(error));
        }
    }
    Some(News::of(Wish::Nothing))
}

/// A return that failed would have told the store that an abandoned acquire is void. The next return says it instead.
fn keep_doubtful(key: &mut LeasedKey, now: Instant, errand: &Flight, error: &StoreError) {
    let Op::Return { voids: Some(voids), .. } = errand.call.op else { return };
    if !key.view.is_of_these_limits(&errand.call) {
        return;
    }
    key.rare.calls.keep_doubtful(voids);
    match error {
        StoreError::Away { since } => key.lose_store(now, *since, *since),
        StoreError::Unknown => key.lose_store(now, errand.sent, now),
        StoreError::Busy { .. } | StoreError::Full => {}
    }
}

/// The store knows that the abandoned acquire is void, so it can be asked for tokens again.
fn note_voided(key: &mut LeasedKey, now: Instant, op: &Op) {
    if matches!(op, Op::Return { voids: Some(_), .. }) {
        key.rare.outage.retry_by(now);
    }
}

/// Records any answer, and what it says about a loss of data in the store. Returns true when an acquire of this node
/// has just restored what the store had lent it.
fn reconcile(key: &mut LeasedKey, cx: &mut Context, now: Instant, call: &Call, grant: &Grant) -> bool {
    let mut lost = false;
    cx.note_trip(now.since(call.sent_at));
    cx.note_clock(StoreClock::new(call.sent_at, now, grant.now));
    cx.stats.damaged += u64::from(grant.damaged);
    if key.view.epoch() != 0
        && grant.epoch != 0
        && grant.epoch != key.view.epoch()
        && !key.view.has_overtaken(now, call, grant)
    {
        if grant.reset && !on(Mutant::ResetKeepsLeases) {
            // What a share admitted stays owed: it may have been admitted after the reset, of which this node hears only now.
            let voided = key.void();
            cx.policy_stats(key.policy()).expired += voided;
        } else if key.view.shows_loss(grant) {
            cx.stats.lost_epochs += 1;
            key.believe_fleet();
            let voided = key.void_ahead(now, call, grant);
            cx.policy_stats(key.policy()).expired += voided;
            lost = matches!(call.op, Op::Acquire(_));
        }
        if grant.reset {
            key.begin_anew();
            key.rare.peers.forget();
        }
    }
    key.learn(now, call, grant);
    lost
}

/// Tokens of a bucket or a sliding window come back one by one. If several nodes ask for them, the store has one or
/// two each time. Then it is asked less often, and checks are denied in between. A node that is alone with the key
/// knows what the store has and need not wait; nor need one of several, while the store has enough for a few checks
/// of each.
fn pace(key: &mut LeasedKey, cx: &mut Context, now: Instant, order: &Acquire, granted: u64) {
    key.rare.paces.go_on();
    let trickles = key.view.rule().limits.iter().filter(|limit| limit.trickles());
    let longest = trickles.map(|limit| key.pause_of(limit)).min().unwrap_or(Micros::ZERO);
    let hot = key.demand.tuner().used_in(longest) >= key.demand.tuner().mean_cost().saturating_mul(HOT);
    let contested = key.view.nodes() > 1 && !key.has_left_for_all(now);
    // A window that is spent comes back as a whole, when it ends, however much has trickled in of other limits by then.
    let is_spent = |(limit, counter): (&Limit, &Counter)| {
        matches!(limit.algorithm, Algorithm::Fixed | Algorithm::FixedFromFirst)
            && counter.left(limit, key.view.clock().latest(now)) == 0
    };
    let waits_for_window = key.view.limits().any(is_spent);
    if hot && contested && !waits_for_window && granted < order.want / CONTESTED_PART {
        let pause = if key.view.has_account() { longest } else { longest.min(LONGEST_WINDOW_PAUSE) };
        let until = key.before_promised(now, now + pause + cx.jitter(Micros(pause.0 / JITTER_PART)));
        let until = key.before_window_ends(cx, now, until);
        // In the background, the store is asked somewhat earlier, so that nobody waits. Where a promise cuts the pause of a window short,
        // that is earlier by a part of what is left of it: else every denied check would ask until then.
        let lasts = if key.view.has_account() { pause } else { pause.min(until.since(now)) };
        key.pause_until(until, Micros(lasts.0 / EARLY_PART), false);
    }
}

/// How long a remembered denial lasts before the store is asked in the background: a quarter of the window that is
/// spent, but at most two seconds; if several are spent, of the longest. For long windows it lasts longer each time
/// that the store has nothing, because tokens rarely come back in an hour that has been spent for a while.
pub(super) fn probe_pause(key: &LeasedKey, now: Instant) -> Micros {
    let quarter = |limit: &Limit| match limit.algorithm {
        Algorithm::Gcra => PROBE_OF_BUCKET.min(limit.depth().0),
        _ => limit.period.0 / PROBE_PART,
    };
    let clamp = |pause: u64| pause.clamp(PROBES.0, PROBES.1);
    let Some(longest) = key.view.longest_spent(now) else {
        return Micros(clamp(key.view.rule().limits.iter().map(quarter).min().unwrap_or(PROBE_OF_BUCKET)));
    };
    let least = clamp(quarter(longest));
    let most = least.max((longest.period.0 / LONG_PROBE.0).min(LONG_PROBE.1));
    Micros(key.rare.paces.drawn_out(least).min(most))
}

/// An active key leases a part of the next window shortly before it starts: earlier by a round trip, 20 ms, and up to
/// a quarter of the window at random, so that the nodes of a fleet do not all ask at once.
pub(super) fn plan_ahead(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let [limit] = &key.view.rule().limits[..] else { return };
    let at = key.view.counter(0).at;
    let fits = limit.algorithm == Algorithm::Fixed && limit.period >= SHORTEST_AHEAD;
    // What one node leases ahead of a scarce limit is most of what there is, and others lack it. But where tokens are set aside, such a
    // lease frees this node's part, which others lack until then.
    if key.is_scarce() && !key.view.rule().is_entitled() {
        return;
    }
    if !fits || !cx.settings.lease_ahead || key.rare.paces.has_planned(at) || !key.demand.tuner().is_warm() {
        return;
    }
    // The answer must come before the window begins.
    let early = key.view.trip().min(Micros(limit.period.0 / AHEAD_TRIP_PART))
        + AHEAD_SPAN
        + cx.jitter(Micros(limit.period.0 / AHEAD_JITTER_PART));
    key.rare.paces.plan_ahead(at, (key.view.clock().before(at) - early).max(now));
}

impl LeasedKey {
    /// The time at which a pause ends that would last until `until`, and in which the store is not asked. It ends earlier
    /// where a client was told an earlier time: who comes back then finds tokens here, or the store is asked.
    pub(super) fn before_promised(&self, now: Instant, until: Instant) -> Instant {
        let promised = self.rare.paces.promise().filter(|promise| self.holdings.lease().current(now) < promise.cost);
        promised.map_or(until, |promise| until.min(promise.at))
    }

    /// The time at which such a pause ends that would last until `until`, where it would outlast a sliding window. What trickles in while
    /// nodes pause can be lent after it as long as the window lasts, and is lost when that ends. They spread their last calls, and a pause
    /// that begins at the time of those lasts as ever, so that each node makes one.
    pub(super) fn before_window_ends(&self, cx: &mut Context, now: Instant, until: Instant) -> Instant {
        let latest = self.view.clock().latest(now);
        let sliding = self.view.rule().limits.iter().filter(|limit| limit.algorithm == Algorithm::Sliding);
        let Some(end) = sliding.map(|limit| window::aligned_end(limit, latest)).min() else { return until };
        let last = self.view.clock().before(end) - self.view.trip();
        let spread = Micros(until.since(now).0 / LAST_PART);
        let outlasts = until > last - spread;
        if outlasts && now + spread < last { until.min(last - cx.jitter(spread)) } else { until }
    }

    /// Records an answer: counters, epoch, clock. If the store has lost what this node spent, its counters show too little until
    /// an acquire has restored that, and count only where they show more than is known here; and an answer that was overtaken
    /// by a later one does not count.
    fn learn(&mut self, now: Instant, call: &Call, grant: &Grant) {
        let lost = self.view.shows_loss(grant);
        let overtaken = self.view.has_overtaken(now, call, grant);
        self.note_clock(now, StoreClock::new(call.sent_at, now, grant.now));
        self.view.note_nodes(call, grant);
        if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) && !grant.outdated {
            self.rare.calls.note_accounted();
        }
        if !self.view.is_of_these_limits(call) {
            return;
        }
        self.view.note_answered(now, false);
        if overtaken {
            self.view.note_open_again(now, grant);
            return self.roll(now);
        }
        if lost && !matches!(call.op, Op::Acquire(_)) {
            self.roll(now);
            return self.view.note_counted_anew(&grant.counters);
        }
        self.view.note_heard(grant);
        self.view.note_kept(call, grant);
        for index in 0..self.view.rule().limits.len() {
            let fresh = grant.counters[index];
            if self.rare.peers.is_kept() && self.view.counter(index).at != fresh.at {
                self.note_window(index);
            }
            self.view.note_counter(index, fresh);
        }
        self.forget_far_windows(now);
        self.roll(now);
    }

    /// Records the store's clock as an answer shows it. What a share has admitted is remembered by the clock that was known
    /// then. Where that was a guess, or the store's clock was set back since, it would count for as long as the clocks differ.
    fn note_clock(&mut self, now: Instant, clock: StoreClock) {
        let (before, was_answered) = (*self.view.clock(), self.view.answered().is_some());
        self.view.note_clock(clock);
        self.holdings.note_clock(self.view.rule(), &clock);
        if !was_answered || before.is_set_back(&clock) {
            let clocks = [before.latest(now), self.view.clock().latest(now)];
            self.rare.outage.correct_clock(self.view.rule(), clocks, self.view.clock().trip());
        }
    }

    /// The key begins anew: nobody waits for tokens to trickle in, and to those who wait in line the store has said
    /// nothing yet.
    pub(super) fn begin_anew(&mut self) {
        self.view.forget_lent();
        self.forget_ahead();
        self.holdings.forget_spent();
        self.rare.line.forget_answers();
        self.rare.outage.forgive_credit();
        self.end_pauses();
    }

    /// How long a limit whose tokens trickle in is left alone.
    pub(super) fn pause_of(&self, limit: &Limit) -> Micros {
        let few = if limit.algorithm == Algorithm::Gcra { PAUSE_OF_BUCKET } else { PAUSE_OF_WINDOW };
        let lot =
            gcra::cost(limit, self.demand.tuner().mean_cost().saturating_mul(few * u64::from(self.view.nodes()))).0;
        Micros(match limit.algorithm {
            Algorithm::Gcra => lot.clamp(BUCKET_PAUSES.0, BUCKET_PAUSES.1).min(limit.depth().0 / FILLING_PART),
            _ => lot.clamp(limit.period.0 / WINDOW_PARTS.0, limit.period.0 / WINDOW_PARTS.1),
        })
    }
}
