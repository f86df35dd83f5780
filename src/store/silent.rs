//! How the memory store accounts for silent nodes, which may spend their part of a bucket unseen: see `lua/silent.lua`,
//! which has the same steps.
//!
//! Called by `memory.rs` and `view.rs`; the sums and the parts of the nodes are kept by `census.rs`.

use super::aside::{Part, Sums};
use crate::core::call::{Claim, Frees};
use crate::core::entitled::{GENERATION, MOST_PPM, WHOLE, generation};
use crate::core::gcra;
use crate::core::limit::Limit;
use crate::core::time::{Micros, Timestamp};

/// The most that a node's demand counts, as in the scripts: the sum over 65,536 nodes then fits into the six bytes that
/// it has there.
const MOST_DEMAND: u64 = u32::MAX as u64;

/// The parts of a bucket that are set aside, during one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silent {
    pub(super) sums: Sums,
    /// The calling node's part.
    pub(super) part: Part,
    /// A generation begins with this call.
    pub(super) begins: bool,
    /// This period of accounts.
    period: u64,
    burst: u64,
    depth: Micros,
    /// The time in which one token leaks, in whole microseconds.
    whole: u64,
    /// Parts that have lapsed since the last call, in millionths.
    lapsed: u64,
    /// What silent nodes may have spent since they were last charged, as time.
    charge: Micros,
    /// The call is an acquire that came in time: it may be lent something, and its node is not silent.
    frees: bool,
    /// How many of the tokens that the node holds were not renewed.
    pub(super) not_kept: u64,
}

/// So many millionths of the burst as tokens, rounded up, and never more than all of it.
fn burst_of(burst: u64, millionths: u64) -> u64 {
    let tokens = u128::from(burst) * u128::from(millionths.min(WHOLE));
    u64::try_from(tokens.div_ceil(WHOLE.into())).unwrap_or(burst)
}

impl Silent {
    /// Brings what is stored to `now`, in this period of accounts.
    pub(super) fn new(
        mut sums: Sums,
        mut part: Part,
        limit: &Limit,
        now: Timestamp,
        period: u64,
        (at, lent): (Timestamp, u64),
    ) -> Self {
        let this = generation(now);
        let begins = sums.generation < this;
        let mut lapsed = 0;
        if begins {
            let follows = sums.generation + 1 == this;
            lapsed = sums.entitled[1] + if follows { 0 } else { sums.entitled[0] };
            let before = |[now, _]: [u64; 2]| [0, if follows { now } else { 0 }];
            (sums.entitled, sums.demand, sums.generation) = (before(sums.entitled), before(sums.demand), this);
        }
        if part.generation != sums.generation && part.generation + 1 != sums.generation {
            part = Part { called: part.called, ..Part::default() };
        }
        if sums.window != period {
            let called = match period.wrapping_sub(sums.window) {
                1 => sums.called[0] + sums.called[1],
                2 => sums.called[0],
                _ => 0,
            };
            // Who was not silent when the period before ended has a share that is empty until this one ends. If that is
            // so of all nodes, this period is charged to nobody.
            if sums.charged_until > 0 && called >= sums.entitled[0] + sums.entitled[1] {
                sums.charged_until = (period + 1) * gcra::UNIT.0;
            }
            sums.called = [0, if sums.window + 1 == period { sums.called[0] } else { 0 }];
            sums.window = period;
        }
        let mut this = Self {
            sums,
            part,
            begins,
            period,
            burst: limit.burst,
            depth: gcra::depth(limit),
            whole: limit.interval().0 / limit.interval().1,
            lapsed,
            charge: Micros::ZERO,
            frees: false,
            not_kept: 0,
        };
        let silent = this.silent();
        if silent > 0 && sums.charged_until > 0 && sums.charged_until < now.0 {
            let passed = (now.0 - sums.charged_until).min(2 * GENERATION.0);
            this.charge = Micros((passed * silent).div_ceil(WHOLE));
            // A bucket lends nothing while what is charged and lent leaves too little room for nodes that have just
            // fallen silent. It leaks faster than their parts fill, so these nodes are not charged until the room is
            // there (`docs/decisions/0013-entitlements.md`, "Why it is sound").
            if sums.fitted < silent {
                let since = Timestamp(sums.charged_until);
                let over = this.over_at(since, at, lent).saturating_sub(this.depth.0);
                let over = over.min(at.since(since).0).min(passed);
                this.charge.0 -= over * (silent - sums.fitted) / WHOLE;
            }
        }
        this
    }

    /// The parts of all silent nodes.
    fn silent(&self) -> u64 {
        let Sums { entitled, called, .. } = &self.sums;
        (entitled[0] + entitled[1]).saturating_sub(called[0] + called[1]).min(WHOLE)
    }

    /// The sum of what is charged and lent at that time and what silent nodes may hold, as time, rounded down.
    fn over_at(&self, time: Timestamp, at: Timestamp, lent: u64) -> u64 {
        let tokens = lent.saturating_add(burst_of(self.burst, self.silent())).min(2 * self.burst);
        tokens.saturating_mul(self.whole).saturating_add(at.since(time).0)
    }

    /// Notes, after an acquire, whether what is charged and lent fits beside what silent nodes may hold.
    pub(super) fn note_room(&mut self, now: Timestamp, at: Timestamp, lent: u64) {
        let silent = self.silent();
        if self.frees && (self.over_at(now, at, lent) <= self.depth.0 || self.sums.fitted > silent) {
            self.sums.fitted = silent;
        }
    }

    fn calls_in_time(&self) -> bool {
        self.part.called == self.period || self.part.called + 1 == self.period
    }

    /// Whether anybody is silent.
    pub(super) fn is_any(&self) -> bool {
        self.silent() > 0
    }

    /// Whether tokens that are reported as spent count as spent now instead of when they were spent. While silent nodes
    /// are charged, the bucket leaks more slowly than its rate, so less of earlier spending has leaked away than its
    /// age would say.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        self.is_charged(now) || now.0 < self.sums.late_until
    }

    fn is_charged(&self, now: Timestamp) -> bool {
        self.is_any() && self.sums.charged_until <= now.0
    }

    /// What an acquire charges for silent nodes: time for those that may still be spending, and tokens for those whose
    /// parts have lapsed.
    pub(super) fn charge(&mut self, now: Timestamp, frees: Frees, periods: Micros) -> (Micros, u64) {
        self.frees = frees.at(now);
        if !self.frees {
            return (Micros::ZERO, 0);
        }
        if self.is_charged(now) {
            self.sums.late_until = now.0 + periods.0;
        }
        self.sums.charged_until = self.sums.charged_until.max(now.0);
        (std::mem::take(&mut self.charge), burst_of(self.burst, self.lapsed))
    }

    /// Takes what an acquire says of its node's part, and assigns the node a new one. Returns the tokens that the node
    /// owes.
    pub(super) fn claim(&mut self, claim: Claim) -> u64 {
        if !self.frees {
            return 0;
        }
        let is_stranger = claim.believes.is_none();
        // Another process under this name may have spent all that its share held.
        let least = if is_stranger && !self.calls_in_time() { burst_of(self.burst, self.part.held) } else { 0 };
        let owes = claim.owes.max(least).min(self.burst);
        let in_time = self.calls_in_time();
        let Self { sums, part, period, .. } = self;
        let place = usize::from(part.generation != sums.generation);
        sums.entitled[place] = sums.entitled[place].saturating_sub(part.held);
        sums.demand[place] = sums.demand[place].saturating_sub(part.demand);
        if in_time {
            let place = usize::from(part.called != *period);
            sums.called[place] = sums.called[place].saturating_sub(part.held);
        }
        let (believes, demand) = (claim.tokens().min(WHOLE), claim.demand.min(MOST_DEMAND));
        let demand = if demand > 0 && part.demand > 0 { (7 * part.demand + demand).div_ceil(8) } else { demand };
        let all = sums.demand[0] + sums.demand[1] + demand;
        let target = if demand > 0 { (MOST_PPM * demand).div_ceil(all) } else { 0 };
        let given = target.min(MOST_PPM.saturating_sub(sums.entitled[0] + sums.entitled[1]));
        // A node that has not yet learned of a smaller part may spend by the larger one, so what it believes stays its
        // own.
        let held = believes.max(given);
        sums.entitled[0] += held;
        sums.demand[0] += demand;
        sums.called[0] += held;
        *part = Part { generation: sums.generation, held, given, demand, called: *period };
        owes
    }

    /// How many of the tokens that the node holds are renewed: all accounts together are renewed only up to what silent
    /// nodes leave. `now` tokens are lent in this period already; `same` is what this node's account had, if it was
    /// opened in this period.
    pub(super) fn keep(&mut self, held: u64, now: u64, same: Option<u64>) -> u64 {
        let aside = burst_of(self.burst, self.silent());
        if aside == 0 {
            return held;
        }
        let room = same.unwrap_or_else(|| (self.burst - aside).saturating_sub(now));
        self.not_kept = held.saturating_sub(room);
        held - self.not_kept
    }

    /// The most that an acquire of this node may be charged for nodes that were silent before it, beside what it is
    /// lent.
    pub(super) fn due(&self) -> (Micros, u64) {
        let own = if self.calls_in_time() { 0 } else { self.part.held };
        (self.charge, burst_of(self.burst, self.lapsed).saturating_add(burst_of(self.burst, own)))
    }

    /// How many of the tokens that are left may be lent.
    pub(super) fn leaves(&self, left: u64) -> u64 {
        if self.frees { left.saturating_sub(burst_of(self.burst, self.silent())) } else { 0 }
    }

    /// Whether another node than the one that calls has a part.
    pub(super) fn is_shared(&self) -> bool {
        self.sums.entitled[0] + self.sums.entitled[1] > self.part.held
    }

    /// Whether the call has changed something.
    pub(super) fn is_claimed(&self) -> bool {
        self.frees
    }

    /// Tokens that nobody can be lent because nodes other than the caller are silent.
    pub(super) fn shown(&self) -> u64 {
        let own = if self.calls_in_time() { 0 } else { self.part.held };
        burst_of(self.burst, self.silent().saturating_sub(own))
    }
}
