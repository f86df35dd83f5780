//! What a peer that asks is lent: of what the store has lent to this node, or has set aside for it. The answers leave from `advance.rs`.

use super::key::LeasedKey;
use crate::core::ask::{Answer, Loan, Refusal};
use crate::core::call::Counter;
use crate::core::calls::WaitingPeer;
use crate::core::context::Context;
use crate::core::decision::{Source, Verdict};
use crate::core::limit::MAX_LIMITS;
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros};

/// So many answers may leave a waiter without a decision; then it is denied, or others could take each grant before its turn for as long as it
/// may wait.
pub(super) const ANSWERS: u8 = 4;

/// After so many answers, a waiter's cost was surely part of an acquire: only the first may have been sent before it
/// came.
pub(super) const ASKED_FOR: u8 = 2;

/// A node for which nothing of a key is set aside can lend nothing of it until it reaches the store again, which nobody can foresee. So peers
/// do not ask it for the key for as long as they would leave it out if it had no store for any key.
const NOTHING_FOR: Micros = Micros(1_000_000);

/// What a peer that waits at the head of the line is answered; `None`: the store must be asked. What the peer is lent counts as spent by this
/// node, at this moment.
pub(super) fn lend(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    want: u64,
    peer: WaitingPeer,
    answers: u8,
) -> Option<Answer> {
    key.end_waits(now);
    let restored = key.rare.outage.phase().restored_at().filter(|_| key.is_away(now));
    if key.is_away(now) && restored.is_none() && !on(Mutant::LendsOnItsShare) {
        let is_late = peer.until < now;
        let loan = if peer.aside && !is_late { lend_aside(key, cx, now, want, peer.least.get()) } else { None };
        return Some(loan.ok_or(Refusal::NoStore));
    }
    if peer.until < now && !on(Mutant::LendsTooLate) {
        return Some(Err(Refusal::Busy));
    }
    let (until, usable) = (key.holdings.lease().usable_until(now), key.holdings.lease().usable(now));
    // With several limits, say of a second and of an hour, a token is of a window of each. If the second ends while the loan is under
    // way, the loan admits nobody; and the peer does not return it, so it would be missing from the hour, too.
    if usable > 0 && key.view.rule().limits.len() > 1 && until.has_come(peer.until) && !on(Mutant::LendsWhatLapses) {
        return Some(Err(Refusal::Busy));
    }
    if on(Mutant::LentOnNotSpent) && usable >= want {
        return Some(Ok(loan(key, now, want, until.time(), Micros::ZERO)));
    }
    if let Some(until) = restored
        && usable < want
    {
        // Until peers have told the store what it has lost, a node spends what it holds and asks for nothing. A peer that it refused would
        // ask it for no key for a second, but the next owner of each key, which knows nothing of that. A peer that is lent nothing asks
        // the store for this check, and this node has told the store what it was lent.
        return Some(Ok(loan(key, now, 0, None, until.since(now))));
    }
    let denial = match key.decide(now, want, Source::Lease, cx.fleet, false) {
        Some(decision) if decision.verdict == Verdict::Allow => {
            cx.policy_stats(key.policy()).spent += want;
            return Some(Ok(loan(key, now, want, until.time(), Micros::ZERO)));
        }
        Some(decision) => decision,
        None if answers >= ANSWERS => key.deny_in_line(now, want),
        None => return None,
    };
    // A peer that asks for several checks admits some of them, if the store has no more.
    let (part, more) = (usable.min(want), usable.saturating_add(peer.least.get()));
    if answers < ASKED_FOR && denial.source != Source::Prefilter && more < want && !key.is_exhausted(now, more) {
        return None;
    }
    let is_part = part >= peer.least.get() && denial.source != Source::Prefilter && key.has_matured(now, part);
    let tokens = if is_part && key.holdings.spend(now, part) { part } else { 0 };
    if tokens > 0 {
        key.demand.note_spent(tokens);
        key.note_spent(now, tokens);
        cx.policy_stats(key.policy()).spent += tokens;
    }
    Some(Ok(loan(key, now, tokens, until.time(), denial.retry_after.unwrap_or_default())))
}

/// A loan for a peer that wants so many tokens and at least so many, of what the store has set aside for this node, which cannot reach
/// it. The loan counts here as admitted. `None`: this node lends nothing of this key, nor has it lately had anything set aside of others.
pub(super) fn lend_aside(key: &mut LeasedKey, cx: &mut Context, now: Instant, want: u64, least: u64) -> Option<Loan> {
    if !key.lends_aside(now) {
        // A peer that is refused for want of a store asks this node for no key at all. This node may have something of other keys to
        // lend, so its answer is an empty loan, which is about this key alone.
        let none = || Loan { lasts: Some(Micros::ZERO), aside: true, ..loan(key, now, 0, None, NOTHING_FOR) };
        return cx.owners.had_own_aside(now).then(none);
    }
    cx.owners.note_own_aside(now);
    let (tokens, lasts, wait) = key.spend_for_peer(now, want, least);
    Some(Loan { lasts: Some(lasts), aside: true, ..loan(key, now, tokens, None, wait) })
}

/// Tokens that have been spent here for a peer, and what this node knows of the key.
fn loan(key: &LeasedKey, now: Instant, tokens: u64, until: Option<Instant>, wait: Micros) -> Loan {
    let mut counters = [Counter::default(); MAX_LIMITS];
    key.show(now, &mut counters);
    Loan {
        tokens,
        lasts: until.map(|until| until.since(now)),
        clock: [key.view.clock().surely(now), key.view.clock().at_most(now)],
        epoch: key.view.epoch(),
        counters,
        wait,
        aside: false,
    }
}
