//! What a key wants of the store, decided from what is known.
//!
//! Waiters that cannot be served want tokens. A key that is about to run out asks for more before anybody must wait.
//! A key that holds many tokens while other nodes lack them returns those that it will not need. And what was spent
//! of a bucket is reported before the store counts it as spent later. `advance.rs` does what is decided here.

use super::key::{LeasedKey, PATIENCE};
use super::peers::DOUBTED;
use super::phase::Phase;
use super::surplus::{MISSED, is_idle, surplus};
use super::timers::{SILENCE, closes, keep_until, remaining, sounds_at};
use super::wish::Wish;
use crate::core::batch::refill_interval;
use crate::core::call::{Acquire, Window};
use crate::core::context::Context;
use crate::core::decision::{Decision, Source, Verdict};
use crate::core::gcra;
use crate::core::limit::Algorithm;
use crate::core::mutant::{Mutant, on};
use crate::core::policy::{AD_HOC, OVERRIDDEN};
use crate::core::rule::OnStoreLoss;
use crate::core::time::{Instant, Micros};
use crate::core::usage::PeerIndex;

/// The low-water mark of a lease, as a fraction of the latest grants. At a half, keys ask earlier than they must and
/// hold what others lack: second-1x costs 118 calls per 1000 checks instead of 112, and 97.7 % of it is used instead
/// of 98.9. At one in 64, more callers wait for the refill: 7.3 % of those in llm-costs instead of 6.1.
const LOW_PART: u64 = 4;

/// A lease is also low when what is left would be used within two round trips to the store and this time. With 30 ms
/// instead, 2.0 % of the checks in doorman-3 wait instead of 1.7; between zero and 3 ms no scenario shows a
/// difference.
const LOW_SPAN: Micros = Micros(3_000);

/// A node that used a key often has gone, and gives up what is set aside for it, when nobody has asked for as long as so many times
/// [`Tuner::few`](crate::core::batch::Tuner::few) checks take at the rate of late. With less, a short pause would end an
/// entitlement, and the next check cost a call to have it again; with more, others lack it for longer.
const GONE: u64 = 4;

/// A peer is waited for during this fraction of the time that a check may wait; the rest is for the store, which is asked if the peer
/// does not answer. A peer that asks the store itself takes about as long as the store does, so either gets half.
pub(super) const PATIENCE_PART: u64 = 2;

/// The fraction of a batch that is leased of the next window before it begins. A whole batch would cost fewer calls
/// (103 per 1000 checks of second-1x instead of 112); what other nodes would lack then was not measured.
const AHEAD_PART: u64 = 4;

/// A node asks the owner for a key of which it does not surely use so many checks in a refill interval, because of what it would lease itself
/// little would be used. With more, busier keys would wait for a peer; with fewer, more nodes would lease what few checks use.
const COLD: u64 = 4;

/// Most peers that are asked for one check, one after another, while this node's part of the store is away; then the share decides.
/// Where half of a fleet has lost the store, every second peer refuses: one check in 256 finds eight of those in a row.
const MOST_ASKS: u8 = 8;

/// The same where peers lend of what is set aside for them. Each that has nothing is remembered, so that the next check asks another one: more
/// asks in a row would let checks wait that nobody can admit.
const MOST_ASKS_ASIDE: u8 = 2;

/// An owner leases a key for the whole fleet as long as the store has counted at most one lessee for so many nodes. More lessees show
/// that others lease for themselves, and an owner that leased for all would take what they lack.
const NODES_OF_ONE: u32 = 4;

/// Of a sliding window, the part of the rest that tokens are leased for where nodes ask each other and it is under pressure. With all of the
/// rest, 94.3 % of sliding-2x-owners is used on average of 16 seeds, for 320 calls per 1000 checks; with a half 95.1 %, for 331; with a third
/// 95.8 %, for 336.
const SURE_PART: u64 = 3;

/// What a key wants of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// Nothing.
    Wait,
    /// To renew its account of a bucket, or to get more tokens.
    Acquire,
    /// To repeat the acquire under way under a new id.
    AcquireAgain,
    /// Tokens of a window before it begins.
    AcquireAhead(Window),
    /// To return so many tokens.
    GiveBack(u64),
    /// To report what was spent of a bucket, and an abandoned acquire.
    Report,
    /// To say that nothing need be set aside for this node, which no longer uses the key.
    Renounce,
}

/// What a key wants of the store in its present state, after all were answered who can be.
pub(super) fn intend(key: &LeasedKey, cx: &Context, now: Instant, wish: &Wish<'_>) -> Intent {
    if matches!(wish, Wish::Again) {
        return Intent::AcquireAgain;
    }
    let is_acquiring = key.rare.calls.is_acquiring();
    if !is_acquiring
        && let Some(window) = key.rare.paces.plan_due(now)
        && may_lease_ahead(key, cx, now)
    {
        return Intent::AcquireAhead(window);
    }
    let may_be_lost = sounds_at(key).is_some_and(|at| at <= now);
    if !is_acquiring && may_be_lost && may_lease_ahead(key, cx, now) {
        return Intent::Acquire;
    }
    let may_acquire = !is_acquiring || on(Mutant::TwoInFlight);
    if may_acquire && (matches!(wish, Wish::Tokens | Wish::TokensFor(_) | Wish::Restore) || asks_for_line(key, now)) {
        return Intent::Acquire;
    }
    if !matches!(wish, Wish::Look) {
        return Intent::Wait;
    }
    // Others lack what is set aside for a node that no longer uses the key, so the store has to hear of that when it is back.
    let is_awaited = key.is_due(now) || key.is_entitled(now) && (is_left_alone(key, now) || has_gone(key, now));
    if !is_acquiring && is_awaited && key.rare.outage.phase().asks_again(now) {
        return Intent::Acquire;
    }
    if key.rare.calls.has_doubtful() && !key.rare.outage.phase().waits(now) {
        return Intent::Report;
    }
    look(key, now, cx.settings.lease_ahead, || nodes_served(key, cx, now) > 1)
}

/// Whether the store must be asked for a waiter. It need not be if held tokens are about to start or to trickle in,
/// or if tokens are being returned that the store could lend.
fn asks_for_line(key: &LeasedKey, now: Instant) -> bool {
    // Who waits for a peer needs nothing of the store. One that is away is asked all the same, now and then, whether it is back.
    let waits_for_peer = key.rare.calls.awaits_peer() && !(key.is_away(now) && key.rare.outage.phase().asks_again(now));
    if key.rare.line.is_empty() || key.awaits_return() || waits_for_peer {
        return false;
    }
    let will_do = key.about_to_start(now) >= key.rare.line.wanted();
    let patience = if will_do { key.soon() } else { PATIENCE };
    // A peer that is answered too late asks the store itself.
    let until = key
        .rare
        .line
        .first()
        .and_then(|first| first.peer)
        .map_or(now + patience, |peer| peer.until.min(now + patience));
    let begins_soon = key.holdings.lease().starts(now).is_some_and(|starts| starts <= until);
    !begins_soon && key.matures(now).is_none()
}

/// Which peer is asked for what those in line want, if one is: the owner of a key that is seldom asked for here, so that it
/// leases once for many nodes; and while this node's part of the store is away, whoever reaches it.
pub(super) fn whom_to_ask(key: &LeasedKey, cx: &Context, now: Instant) -> Option<PeerIndex> {
    let first =
        key.rare.line.first().filter(|_| cx.owners.are_there() && !cx.draining && !key.rare.calls.is_asking())?;
    // Tokens are lent on only once, so for peers that wait in its line a node asks the store and no other peer.
    let is_for_peers = key.rare.line.has_peers() && !on(Mutant::LendersInARow);
    if is_for_peers || !is_known_to_peers(key) {
        return None;
    }
    if key.is_away(now) {
        return relay(key, cx, now).filter(|_| may_relay(key, cx, now, first.asks));
    }
    let is_busy = key.rare.calls.is_acquiring()
        || key.has_account_under_way()
        || key.rare.calls.has_doubtful()
        || key.is_due(now);
    let is_plain = first.asks == 0 && !is_busy && key.about_to_start(now) == 0 && is_cold(key);
    if is_plain && asks_for_line(key, now) { owner(key, cx, now) } else { None }
}

/// A peer finds the limits of a key in its configuration, by the name of the policy and all of the key. Limits that came
/// with a check are in no configuration.
fn is_known_to_peers(key: &LeasedKey) -> bool {
    ![AD_HOC, OVERRIDDEN].contains(&&*key.view.rule().policy) && key.whole_name().is_some()
}

/// This node surely uses few tokens of the key before it would ask for more.
fn is_cold(key: &LeasedKey) -> bool {
    let tuner = key.demand.tuner();
    !tuner.uses(tuner.mean_cost().saturating_mul(COLD), refill_interval(key.view.rule()))
}

/// The peer that owns the key, as this node sees it; `None`: this node itself.
pub(in crate::core) fn owner(key: &LeasedKey, cx: &Context, now: Instant) -> Option<PeerIndex> {
    cx.owners.owner(now, key.id(), key.view.rule())
}

/// Whether this node asks a peer that owns the key, and not the store, whenever it needs a few tokens of it.
pub(super) fn asks_owner(key: &LeasedKey, cx: &Context, now: Instant) -> bool {
    cx.owners.are_there() && is_known_to_peers(key) && is_cold(key) && owner(key, cx, now).is_some()
}

/// For how many nodes this one leases the key: for all, where it owns the key and most of the fleet asks it instead of the
/// store; else for itself.
pub(super) fn nodes_served(key: &LeasedKey, cx: &Context, now: Instant) -> u32 {
    let live = cx.fleet.map_or(1, |fleet| fleet.live);
    let is_alone = match key.view.nodes() {
        // Until the store has said how many nodes lease a key, its owner takes itself for the only one. A first lease of a
        // store that confirms nothing stays small: a failover would lose it.
        _ if is_new(key) => cx.is_confirmed(now),
        nodes => nodes == 1 || nodes.saturating_mul(NODES_OF_ONE) <= live,
    };
    let is_owner = is_alone && cx.owners.are_there() && owner(key, cx, now).is_none();
    if is_owner && !on(Mutant::OwnerLeasesForOne) { live } else { 1 }
}

/// The time for which tokens are leased: until the first window ends.
///
/// What is left over of a sliding window when it ends is lost, as nobody may spend it in the next one. Where nodes ask each other, one
/// that runs short is lent a token by a peer, at no call, so that of a limit under pressure less is leased than may be used.
pub(super) fn lasts(key: &LeasedKey, cx: &Context, now: Instant, is_pressed: bool) -> Micros {
    let left = remaining(key, now);
    let slides = matches!(&key.view.rule().limits[..], [limit] if limit.algorithm == Algorithm::Sliding);
    let is_short = slides && is_pressed && cx.owners.are_there() && nodes_served(key, cx, now) == 1;
    if is_short { Micros(left.0 / SURE_PART) } else { left }
}

/// Neither the store nor a peer has said anything of the key yet, as far as is remembered here.
fn is_new(key: &LeasedKey) -> bool {
    key.view.last_answered().is_none()
}

/// Most tokens worth asking for. Of a key that is new, the owner may lease as if it were alone with it; and all of a small limit of which the
/// store has counted no other lessee, because whoever wants some of it asks the owner.
pub(super) fn ceiling(key: &LeasedKey, cx: &Context, now: Instant) -> u64 {
    match key.view.nodes() {
        _ if nodes_served(key, cx, now) == 1 => key.ceiling(cx.fleet),
        _ if is_new(key) => key.ceiling_among(1),
        1 => key.ceiling_for_all(),
        _ => key.ceiling(cx.fleet),
    }
}

/// The peer that a check waits for while this node's part of the store is away. Of what is set aside for peers, one that has nothing of the
/// key now is not asked; nor is one whose quickest answer would come too late for the first in line, as what it lends would be lost.
fn relay(key: &LeasedKey, cx: &Context, now: Instant) -> Option<PeerIndex> {
    let left = key.rare.line.first().map_or(cx.settings.timeout, |first| first.deadline.since(now));
    let is_in_time = |peer| cx.owners.time_to_answer(peer, Micros(left.0 / PATIENCE_PART)) > Micros::ZERO;
    let may_lend = |peer| key.rare.outage.bank().is_none_or(|bank| bank.may_lend(now, peer)) && is_in_time(peer);
    cx.owners.relay(now, key.id(), key.view.rule(), may_lend)
}

/// Whether a check for which so many peers were asked already waits for a peer, because this node's part of the store is away.
pub(super) fn may_relay(key: &LeasedKey, cx: &Context, now: Instant, asks: u8) -> bool {
    let most = if key.view.rule().is_entitled_window() { MOST_ASKS_ASIDE } else { MOST_ASKS };
    let is_asked = || asks < most && relay(key, cx, now).is_some();
    is_for_peers(key, cx, now) && (key.rare.calls.awaits_peer() || is_asked())
}

/// The peer that is tried beside a check that the share has just answered, where all that could be asked have said that they have
/// no store: so one that reaches it again is found.
pub(super) fn whom_to_try(key: &LeasedKey, cx: &mut Context, now: Instant) -> Option<PeerIndex> {
    let is_idle = key.rare.line.is_empty() && !key.rare.calls.is_asking();
    if !is_idle || !is_for_peers(key, cx, now) || relay(key, cx, now).is_some() {
        return None;
    }
    cx.owners.trial(now, key.view.rule())
}

/// Whether peers may be asked for a key, as this node's part of the store is away.
///
/// Not while peers tell the store what it has lost (`Restoring`), because nobody leases then; nor once the store was charged for
/// all of the share (`Repaid`), because this node may spend the rest of that. Both end by themselves.
fn is_for_peers(key: &LeasedKey, cx: &Context, now: Instant) -> bool {
    let is_lost = matches!(key.rare.outage.phase(), Phase::Lost { .. } | Phase::Repaying { .. }) && key.is_away(now);
    let may_ask = is_lost && !cx.draining && !key.rare.line.has_peers() && is_known_to_peers(key);
    may_ask && key.view.rule().on_store_loss != OnStoreLoss::Allow && !on(Mutant::ShareBeforeRelay)
}

/// A key that is in use leases ahead. Where not even one check is expected in the next window, the lease would most likely be a call in
/// vain: without that, zipf-200-nodes-owners cost 568 calls per 1000 checks instead of 500. And in a flood a lease of the next window is gone
/// before the next answer could come, so that it only costs a call.
fn may_lease_ahead(key: &LeasedKey, cx: &Context, now: Instant) -> bool {
    let (rule, tuner) = (key.view.rule(), key.demand.tuner());
    let recent = key.demand.idle_for(now) < refill_interval(rule);
    // An owner leases a new key for all nodes, though it has been asked for once. What is set aside for this node others lack until it is
    // leased.
    let is_used =
        tuner.used_in(rule.limits[0].period) > 0 && !tuner.is_slow(rule.limits[0].period) || rule.is_entitled();
    let is_busy = key.rare.calls.has_doubtful() || key.is_away(now) || cx.draining;
    recent && is_used && !is_busy && key.view.is_confirmed() && !key.is_flooded(key.ceiling(cx.fleet))
}

/// The acquire of tokens of the window that is about to begin.
pub(super) fn ahead(key: &LeasedKey, cx: &Context, now: Instant, window: Window) -> Acquire {
    let length = key.view.rule().limits[0].period;
    let few = key.demand.tuner().used_in(length).min(key.demand.tuner().few());
    // The tokens must last until an acquire that is sent in the window is answered.
    let soon = key.demand.tuner().used_in(key.view.trip() + key.view.trip());
    // An owner leases for all that ask it, so nobody else leases of that window.
    let all = if nodes_served(key, cx, now) > 1 { key.demand.tuner().for_window(length) } else { 0 };
    let part = key.demand.tuner().batch() / AHEAD_PART;
    let want = part.max(few).max(soon).max(all).clamp(1, key.ceiling(cx.fleet));
    Acquire { want, window, ..key.order(now) }
}

/// Whether a check that was decided from memory is a reason to acquire: at the low-water mark; or in the background
/// after a denial, or while the store is away.
pub(super) fn wants_tokens(key: &mut LeasedKey, cx: &Context, now: Instant, decision: &Decision) -> bool {
    let asks = !(on(Mutant::GossipHasTheLastWord) && key.is_spent_by_fleet());
    if key.rare.calls.is_acquiring() || cx.draining || !asks {
        return false;
    }
    let ahead = cx.settings.lease_ahead;
    match key.rare.outage.phase() {
        // In each window the share begins with a call to the store, which may be back.
        phase if phase.is_outage() => {
            let spent = decision.verdict == Verdict::Allow;
            let is_lent_nothing = phase.is_restoring() || phase.is_repaid();
            let begins = decision.source == Source::Share && !is_lent_nothing && key.begins_share(now, spent);
            begins || phase.asks_again(now) && !key.has_charged_all(now)
        }
        _ if decision.source == Source::Prefilter => key.doubts_fleet() || key.pacing.may_probe(now),
        _ if decision.verdict == Verdict::Deny => {
            (key.pacing.may_probe(now) && !is_put_off(key) || on(Mutant::DenialNotRemembered)) && ahead
        }
        _ => ahead && is_low(key, now) && key.may_refill(now) && key.has_left(now),
    }
}

/// Peers confirm that all is spent, so nothing will be returned. The store is asked only a second after its last
/// answer.
fn is_put_off(key: &mut LeasedKey) -> bool {
    let Some(later) = key.view.answered().map(|at| at + DOUBTED) else { return false };
    let put_off = key.pacing.probes_before(later) && key.is_spent_by_fleet();
    if put_off {
        key.pacing.probe_at(later);
    }
    put_off
}

/// What a key wants of its own accord when its timer is due. `is_for_all`: what is held is for all nodes.
fn look(key: &LeasedKey, now: Instant, lease_ahead: bool, is_for_all: impl Fn() -> bool) -> Intent {
    let (is_closing, is_acquiring) = (closes(key).has_come(now), key.rare.calls.is_acquiring());
    let held = key.holdings.lease().held();
    let is_left_alone = is_left_alone(key, now);
    let is_awaited = is_closing || is_left_alone || is_idle(key, now) && key.has_much();
    if key.has_unreported() && held == 0 && is_awaited && !is_acquiring && !key.is_trifling(now) {
        return Intent::Report;
    }
    // From when on this node counts as silent, the store takes it to spend its part of the bucket. It calls before that: to go on if
    // it is still asked for the key, or else to give the part up.
    if falls_silent(key, now) && !is_acquiring && !key.is_away(now) && key.rare.paces.crowded_until().has_come(now) {
        let is_asked = key.demand.idle_for(now) < gcra::UNIT || held > 0;
        return if is_asked { Intent::Acquire } else { Intent::Renounce };
    }
    let may_renounce = held == 0 && key.is_quiet() && !key.rare.outage.phase().is_outage() && key.is_entitled(now);
    if may_renounce && (is_left_alone || has_gone(key, now) && is_lacking(key, now)) {
        return Intent::Renounce;
    }
    if held == 0 || !lease_ahead {
        return Intent::Wait;
    }
    if is_closing && (is_in_use(key, now) || is_promised(key, now)) && !is_acquiring && !key.is_away(now) {
        // Tokens of an account that could not be renewed in time are returned when it has closed.
        return if key.rare.paces.crowded_until().has_come(now) { Intent::Acquire } else { Intent::Wait };
    }
    match surplus(key, now, is_for_all) {
        0 => Intent::Wait,
        tokens => Intent::GiveBack(tokens),
    }
}

/// Whether those who asked this node for the key are surely gone, so that others may use what is set aside for it.
fn has_gone(key: &LeasedKey, now: Instant) -> bool {
    let (tuner, pause) = (key.demand.tuner(), key.demand.idle_for(now));
    let interval = refill_interval(key.view.rule());
    let missed = tuner.few().saturating_mul(GONE);
    tuner.used_in(pause) > missed || pause > interval && !tuner.expects_fewer(MISSED, pause)
}

/// Whether this node will soon count as silent about a bucket of which it has a part.
fn falls_silent(key: &LeasedKey, now: Instant) -> bool {
    key.silent_from().is_some_and(|silent| key.view.clock().latest(now) + SILENCE >= silent)
}

/// Whether others may lack what is set aside for this node. A node that asks the store for nothing may not know how much is left of
/// the window. But where nobody has asked it for as long as a window lasts, its part of one was of use to nobody.
fn is_lacking(key: &LeasedKey, now: Instant) -> bool {
    let window = if key.view.has_account() { gcra::UNIT } else { key.view.rule().limits[0].period };
    key.is_pressed(now) || key.demand.idle_for(now) >= window
}

/// Whether nothing is under way about the key, and nobody has asked for it for as long as it is remembered.
fn is_left_alone(key: &LeasedKey, now: Instant) -> bool {
    key.is_quiet() && keep_until(key, now).has_come(now)
}

/// Whether the key was checked lately. While a bucket has plenty of tokens, a client that pauses for a moment finds
/// the tokens still here when it returns. A trifle lapses at no call, and a check that comes later makes the call that would have kept it for that
/// check: so it is kept only while checks come every two seconds.
fn is_in_use(key: &LeasedKey, now: Instant) -> bool {
    let rule = key.view.rule();
    let pause = if key.is_trifling(now) {
        gcra::UNIT
    } else if key.view.has_account() && !key.is_pressed(now) {
        rule.account_period()
    } else {
        Micros::ZERO
    };
    key.demand.idle_for(now) < refill_interval(rule).max(pause)
}

/// Whether a denied client was told to come back within the life of an account, and may still come. It was told so by what this node
/// holds: were that returned, the store might have lent it to others by then.
fn is_promised(key: &LeasedKey, now: Instant) -> bool {
    let rule = key.view.rule();
    let comes = |at: Instant| at + refill_interval(rule) > now && at <= now + rule.lease_life();
    key.rare.paces.promise().is_some_and(|promise| comes(promise.at))
}

/// Whether the lease is low: a quarter of the latest grants is left, or what is used in two round trips and 3 ms (but
/// at most three quarters of the grants), or less than an expensive check costs.
fn is_low(key: &LeasedKey, now: Instant) -> bool {
    let (tuner, lot, current) = (key.demand.tuner(), key.holdings.last_grant(), key.holdings.lease().current(now));
    let least = lot / LOW_PART;
    let most = lot - least;
    // The most expensive check of late would find too few tokens.
    let dearest = tuner.dearest() - 1;
    if !tuner.is_warm() || current > most.max(dearest) {
        return false;
    }
    // For a key that is rarely checked, the last token lasts a while.
    let soon = LOW_SPAN + key.view.trip() + key.view.trip();
    let soon = if tuner.is_slow(refill_interval(key.view.rule())) { 0 } else { tuner.used_in(soon) };
    current <= soon.clamp(least, most).max(dearest) && !tuner.is_slow(remaining(key, now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::timers::next_timeout;
    use super::*;
    use crate::core::answer::Resolution;
    use crate::core::call::Counter;
    use crate::core::calls::Waiter;
    use crate::core::decision::{Reason, Source};
    use crate::core::key::Digest;
    use crate::core::lease::Segment;
    use crate::core::limit::Limit;
    use crate::core::request::Ticket;
    use crate::core::rule::Rule;
    use crate::core::store_clock::StoreClock;
    use crate::core::time::{Due, Timestamp};

    const NOW: Instant = Instant(100_000_000);
    const LATER: Instant = Instant(NOW.0 + 5_000_000);

    /// A key that holds 40 tokens of a limit of which the store has lent so many, all read at `NOW`.
    fn key(limit: &str, lent: u64) -> LeasedKey {
        key_of(1, limit, lent)
    }

    fn key_of(digest: u128, limits: &str, lent: u64) -> LeasedKey {
        key_among(2, digest, limits, lent)
    }

    /// As many nodes use the key.
    fn key_among(nodes: u32, digest: u128, limits: &str, lent: u64) -> LeasedKey {
        let limits: Vec<_> = limits.split(" & ").map(|limit| Limit::parse(limit).expect("a limit")).collect();
        let rule = Arc::new(Rule::of("p", &limits));
        let clock = StoreClock::new(NOW, NOW, Timestamp(NOW.0));
        let mut key = LeasedKey::new(digest, b"k", &rule, 0, nodes, clock);
        let at = |limit: &Limit| Timestamp(if limit.algorithm == Algorithm::Gcra { NOW.0 } else { 120_000_000 });
        let ends: Vec<_> = limits.iter().map(at).collect();
        let windows: Vec<_> = ends.iter().map(|at| at.stored()).collect();
        key.view.note_answered(NOW, false);
        ends.iter().enumerate().for_each(|(index, at)| {
            key.view.note_counter(index, Counter { used: lent, prev: 0, at: *at });
        });
        key.holdings.account(&rule, NOW, NOW, Timestamp(NOW.0));
        assert_eq!(key.holdings.add(Segment::new(&rule, 40, NOW, clock, &windows, false)), None);
        key.demand.note_check(NOW);
        key
    }

    #[test]
    fn a_key_that_holds_nothing_wants_nothing() {
        let mut key = key("100/1m fixed", 90);
        key.holdings.void();
        assert_eq!(look(&key, LATER, true, || false), Intent::Wait);
    }

    #[test]
    fn what_lies_idle_goes_back_where_others_lack_it() {
        assert_eq!(look(&key("100/1m fixed", 90), Instant(NOW.0 + 9_000_000), true, || false), Intent::GiveBack(40));
        assert_eq!(
            look(&key("100/1m fixed", 90), NOW, true, || false),
            Intent::GiveBack(40),
            "nothing of it was ever used"
        );
        assert_eq!(look(&key("100/1m fixed", 50), LATER, true, || false), Intent::Wait, "there is plenty");
    }

    /// An owner holds 40 of 100 for all nodes, of which none is used soon.
    #[test]
    fn an_owner_hands_back_what_lies_idle_when_hardly_anything_is_left_for_those_who_ask_the_store() {
        for (lent, given) in [(90, 0), (91, 40)] {
            let intent = if given > 0 { Intent::GiveBack(given) } else { Intent::Wait };
            assert_eq!(look(&key("100/1m fixed", lent), NOW, true, || true), intent, "{lent}");
        }
        let idle = Instant(NOW.0 + 9_000_000);
        assert_eq!(look(&key("100/1m fixed", 90), idle, true, || true), Intent::GiveBack(40), "nobody asks it");
    }

    /// Of a bucket of 100 that shows 90 left, so much of which counts as lent to this node.
    #[test]
    fn who_is_alone_with_a_bucket_hands_most_of_it_back_when_it_is_idle() {
        let idle = NOW + Micros(600_000);
        for (nodes, lent, given) in [(1, 70, true), (1, 69, false), (2, 40, true)] {
            let mut key = key_among(nodes, 1, "100/1s", 10);
            key.view.note_lent(0, None, lent - key.unspent(), &key.order(NOW));
            let (intent, wakes) = (look(&key, idle, true, || false), next_timeout(&key, NOW));
            assert_eq!(intent, if given { Intent::GiveBack(40) } else { Intent::Wait }, "{nodes} {lent}");
            assert_eq!(wakes <= Due::at(NOW + Micros(125_000)), given, "{nodes} {lent}: {wakes:?}");
            assert_eq!(look(&key, NOW + Micros(400_000), true, || false), Intent::Wait, "it has just been asked for");
        }
    }

    /// Others find two fifths of a window, which a token that is rounded up would take a part of.
    #[test]
    fn who_is_alone_with_a_window_leases_no_more_than_three_fifths_of_it() {
        for (limit, most) in
            [("26/10s fixed", 15), ("10/1s sliding", 6), ("12/1m fixed", 7), ("9/1s fixed", 6), ("1/1s fixed", 1)]
        {
            assert_eq!(key(limit, 0).ceiling_among(1), most, "{limit}");
        }
    }

    #[test]
    fn a_single_token_goes_back_with_what_was_spent_of_a_bucket() {
        for (lent, given) in [(1, false), (60, true)] {
            let mut key = key("100/1s", 10);
            assert!(key.holdings.spend(NOW, 39));
            key.view.note_lent(0, None, lent - key.unspent(), &key.order(NOW));
            let intent = look(&key, NOW + Micros(600_000), true, || false);
            assert_eq!(intent, if given { Intent::GiveBack(1) } else { Intent::Wait }, "{lent}");
        }
    }

    /// Others ask again as soon as it may have filled up.
    #[test]
    fn a_bucket_that_fills_up_soon_is_looked_at_as_soon() {
        for (limit, pause) in [("100/1s", 125_000), ("1000/1s burst 100", 100_000), ("100000/1s burst 100", 62_500)] {
            let mut key = key_among(1, 1, limit, 10);
            key.view.note_lent(0, None, 100, &key.order(NOW));
            let wakes = next_timeout(&key, NOW).time().expect("it is looked at").since(NOW).0;
            assert!((pause..pause + pause / 100).contains(&wakes), "{limit}: {wakes}");
        }
    }

    #[test]
    fn what_somebody_waits_for_does_not_go_back() {
        let mut key = key("100/1m fixed", 90);
        key.rare.line.join(Waiter::new(Ticket(1), 50, LATER));
        assert_eq!(look(&key, LATER, true, || false), Intent::Wait);
    }

    #[test]
    fn an_account_is_renewed_before_it_closes_while_somebody_asks() {
        let mut key = key("100/1s", 40);
        let closing = closes(&key).time().expect("an account closes");
        assert!(closing > NOW, "it has just been opened");
        key.demand.note_check(closing);
        assert_eq!(look(&key, closing, true, || false), Intent::Acquire);
        key.demand.note_check(NOW);
        assert_eq!(look(&key, closing, true, || false), Intent::GiveBack(40), "nobody has asked for long");
        let resolution = Resolution::deny(Reason::Rate, Source::Lease).after(Micros(closing.since(NOW).0 + 1));
        let denial = key.answer(NOW, 41, resolution);
        key.note_promise(NOW, 41, &denial);
        assert_eq!(look(&key, closing, true, || false), Intent::Acquire, "a client was told to come right after it");
    }

    #[test]
    fn a_pause_ends_when_a_client_comes_back_whose_tokens_have_ended() {
        let mut key = key("100/1s & 100/1m fixed", 40);
        let comes = NOW + Micros(1_000_000);
        let resolution = Resolution::deny(Reason::Rate, Source::Lease).after(comes.since(NOW));
        let denial = key.answer(NOW, 40, resolution);
        key.note_promise(NOW, 40, &denial);
        key.pause_until(comes + Micros(1_000_000), Micros::ZERO, false);
        assert!(!key.is_exhausted(comes, 40) && key.is_exhausted(comes, 41), "tokens are kept for it");
        key.holdings.void();
        assert!(key.is_exhausted(comes - Micros(1), 40));
        assert!(!key.is_exhausted(comes, 40), "the store has them");
    }

    #[test]
    fn an_account_is_not_renewed_while_the_store_has_more_to_do_than_it_can() {
        let mut key = key("100/1s", 40);
        let closing = closes(&key).time().expect("an account closes");
        key.demand.note_check(closing);
        key.rare.paces.note_crowd(closing, Micros(70_000));
        assert_eq!(look(&key, closing, true, || false), Intent::Wait);
        assert_eq!(
            next_timeout(&key, closing),
            Due::at(closing + Micros(70_000)),
            "and is not looked at all the while"
        );
        assert_eq!(look(&key, closing + Micros(70_000), true, || false), Intent::Acquire);
        let closed = key.holdings.lease().until().time().expect("it closes");
        key.rare.paces.note_crowd(closing, Micros(7_000_000));
        assert!(next_timeout(&key, closing) <= Due::at(closed), "it is looked at when it has closed");
    }

    #[test]
    fn accounts_of_many_keys_are_not_renewed_at_one_moment() {
        let until = key("100/1s", 40).holdings.lease().until().time().expect("it closes");
        let mut leads: Vec<_> = (0..200_u64)
            .map(|number| {
                let key = key_of(Digest::of("p", &number.to_be_bytes()).0, "100/1s", 40);
                until.since(closes(&key).time().expect("it closes")).0 / 100_000
            })
            .collect();
        assert!(leads.iter().all(|lead| (6..16).contains(lead)), "not before its last period, nor too late: {leads:?}");
        leads.sort_unstable();
        let most = leads.chunk_by(|one, other| one == other).map(<[u64]>::len).max();
        assert!(most < Some(40), "{leads:?}");
    }

    /// A key whose store sets 40 tokens aside for this node, of which it has spent so many.
    fn key_that_spent(limit: &str, lent: u64, spent: u64) -> LeasedKey {
        let mut key = key(limit, lent);
        key.view.note_lent(0, None, 0, &key.order(NOW));
        assert!(key.holdings.spend(NOW, spent));
        key.note_spent(NOW, spent);
        key
    }

    /// A hundredth of 8,000 tokens is 40 for each of two nodes.
    #[test]
    fn no_call_says_what_became_of_a_trifle_of_a_bucket_of_which_half_is_left() {
        for (limit, lent, is_trifle) in
            [("8000/1m", 4_000, true), ("8000/1m", 4_001, false), ("7999/1m", 0, false), ("8000/23s", 0, false)]
        {
            for (spent, otherwise) in [(0, Intent::GiveBack(40)), (10, Intent::GiveBack(30)), (40, Intent::Report)] {
                let mut key = key_that_spent(limit, lent, spent);
                let (closing, until) = (closes(&key).time().unwrap(), key.holdings.lease().until());
                let intent = if is_trifle { Intent::Wait } else { otherwise };
                assert_eq!(look(&key, closing, true, || false), intent, "{limit} {lent} {spent}");
                if is_trifle {
                    assert!(next_timeout(&key, closing) >= until, "it is not looked at until then");
                    key.demand.note_check(closing);
                    let renewed = if spent < 40 { Intent::Acquire } else { Intent::Wait };
                    assert_eq!(look(&key, closing, true, || false), renewed, "{spent}: it is in use");
                }
            }
        }
    }

    #[test]
    fn what_was_spent_of_a_bucket_is_told_before_it_counts_as_later() {
        let key = key_that_spent("100/1s", 40, 40);
        let closing = closes(&key).time().expect("an account closes");
        assert_eq!(look(&key, closing, true, || false), Intent::Report);
    }
}
