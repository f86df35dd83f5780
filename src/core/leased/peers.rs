//! What keys report to peers, and what follows from peers' reports (`docs/concepts/fleet.md`). Part of `key.rs`.
//!
//! What a node has admitted in a window is what it was lent of it, less what it holds, so spending a token costs no
//! bookkeeping. Buckets have no windows, and are not reported. Peers' reports never have the last word: they may
//! delay a call to the store by a second, and a store that lends in spite of them refutes them for that window.

use std::collections::BTreeSet;

use super::key::LeasedKey;
use super::phase::GRACE;
use crate::core::answer::{self, Resolution};
use crate::core::call::{Call, Grant, Op};
use crate::core::decision::{Decision, Reason, Source};
use crate::core::fleet::{FleetView, PastUsage, beside_shares};
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::talkers::Rank;
use crate::core::time::{Instant, Micros, StoredTime, Timestamp};
use crate::core::usage::{Count, PeerIndex, Report, ReportTerms, Usage, WindowUsage};

/// While peers report that all is spent, the store is asked at least this often.
pub(super) const DOUBTED: Micros = Micros(1_000_000);

/// By this time after the end of a window, every node has reported what it admitted in it.
const REPORTING: Micros = Micros(300_000);

/// A report that comes so long after the end of its window has left after that. One that left before, and took longer, may lack what its
/// node admitted last.
const LATE_REPORT: Micros = Micros(100_000);

/// A window that is used by less than this fraction is not reported, because no peer would decide differently.
const REPORTED_PART: u64 = 10;

/// If peers and this node have spent more than so many tenths of a window, idle tokens are returned, because other
/// nodes will want them.
const PRESSED_BY_FLEET_TENTHS: u64 = 6;

impl LeasedKey {
    /// What this node has admitted in the present window of a limit.
    fn admitted(&self, index: usize) -> Count {
        let (limit, at) = (&self.view.rule().limits[index], self.view.counter(index).at);
        let (refunded, in_store) =
            self.rare.peers.window(index, at).map_or((0, 0), |window| (window.own.refunded, window.refunded_in_store));
        let as_admitted = on(Mutant::GrantedAsAdmitted)
            || on(Mutant::GrantedAsAdmittedOfSeveral) && self.view.rule().limits.len() > 1;
        let held = if as_admitted { 0 } else { self.holdings.lease().held_of(index, at) };
        let lent = self.view.lent(index).saturating_sub(held);
        // A share goes by aligned windows, and of a limit whose windows begin with the first request the store says which
        // one pays for it: it counts there once it is paid, and until then in none.
        let budget = self.rare.outage.budget().filter(|_| self.follows_usage(index));
        let (alone, carried) = budget.map_or((0, 0), |budget| {
            let window = number(limit, at);
            (budget.unpaid(index, window), budget.carried(index, window))
        });
        // What the lease or the share took back is counted as unspent here again. What the store took back still counts as
        // lent to this node.
        let back = refunded.saturating_sub(in_store);
        Count { admitted: lent.saturating_sub(carried).saturating_add(alone).saturating_add(back), refunded }
    }

    /// Records what this node has admitted in the present window. Also called before another one begins.
    pub(super) fn note_window(&mut self, index: usize) {
        let counter = self.view.counter(index);
        if !self.rare.peers.is_kept() || counter.is_unopened() || !has_windows(&self.view.rule().limits[index]) {
            return;
        }
        let (count, at) = (self.admitted(index), self.view.counter(index).at);
        let unspent = self.holdings.lease().held_of(index, at);
        self.rare.peers.note_own(index, at, count, unspent);
    }

    /// Records what this node has admitted in windows that are over at this time of the store's clock.
    pub(super) fn note_windows_that_turn(&mut self, clock: Timestamp) {
        let mut bound = false;
        for index in 0..self.view.rule().limits.len() {
            let (limit, at) = (&self.view.rule().limits[index], self.view.counter(index).at);
            let end = if limit.algorithm == Algorithm::Sliding { at + limit.period } else { at };
            if clock >= end {
                self.note_window(index);
            } else {
                bound |=
                    self.rare.peers.is_bound() && self.rare.peers.window(index, at).is_some_and(|window| window.lost);
            }
        }
        self.rare.peers.bind(bound);
    }

    /// Records that the lease or the share took back tokens.
    pub(super) fn note_refund(&mut self, tokens: u64) {
        self.rare.peers.note_refund(self.view.windows(), tokens);
    }

    /// Records that the store is asked to take back tokens that were charged in these windows; none: in the present ones.
    pub(super) fn note_refund_in_store(&mut self, tokens: u64, charged: &[Option<StoredTime>]) {
        let windows = self.view.windows().zip(charged);
        let windows = windows.map(|(at, charged)| charged.map_or(at, StoredTime::time));
        self.rare.peers.note_refund_in_store(windows, tokens);
    }

    /// Records from which windows the store has taken tokens back, where the refund had said "whichever is open". When this node sent
    /// the refund, it recorded that for the windows that it knew. If another window was open at the store, only the answer tells which,
    /// and without it the node would tell its peers to have admitted more of that window than the store counts. The answer to a repeat
    /// is left out, because it shows the windows of its own time.
    pub(super) fn note_taken_back(&mut self, call: &Call, grant: &Grant) {
        let Op::Refund { windows: charged, .. } = &call.op else { return };
        if grant.granted == 0 || grant.replayed || !self.view.is_of_these_limits(call) {
            return;
        }
        for (index, (limit, counter)) in call.rule.limits.iter().zip(&grant.counters).enumerate() {
            if has_windows(limit) && charged[index].is_none() && !counter.is_unopened() {
                self.rare.peers.note_taken_back(index, counter.at, grant.granted);
            }
        }
    }

    /// Records that the store has lent, and whether the tokens are of the present window. Returns whether there is
    /// now something to report.
    pub(super) fn lent_in_fleet(&mut self, of_this_window: bool) -> bool {
        self.rare.peers.keep(self.view.rule().limits.len());
        if of_this_window {
            self.refute_fleet();
        }
        self.is_worth_reporting()
    }

    /// Whether so much of a limit is used that peers should know.
    fn is_worth_reporting(&self) -> bool {
        let windows = self.view.limits().filter(|(limit, _)| has_windows(limit));
        self.rare.peers.is_kept()
            && windows.into_iter().any(|(limit, counter)| counter.used * REPORTED_PART >= limit.count)
    }

    /// How urgent it is that peers hear of this key.
    pub(in crate::core) fn report_rank(&self) -> Rank {
        if self.rare.peers.is_bound() { Rank::Lost } else { Rank::Used }
    }

    /// Appends what has changed since the last report, or everything when the node leaves, for all peers. False when nothing is left
    /// to report.
    pub(super) fn drain_reports(
        &mut self,
        now: Instant,
        fleet: FleetView,
        leaving: bool,
        into: &mut Vec<Report>,
    ) -> bool {
        self.roll(now);
        let (digest, rule, latest) = (self.id(), self.view.rule().clone(), self.view.clock().latest(now));
        let known = self.view.epoch();
        let mut more = false;
        for (index, limit) in rule.limits.iter().enumerate().filter(|(_, limit)| has_windows(limit)) {
            self.note_window(index);
            let counter = self.view.counter(index);
            let pressing = leaving || self.rare.peers.is_bound() || counter.left(limit, latest) == 0;
            let terms = ReportTerms { now, limit, nodes: fleet.live, pressing };
            more |= self.rare.peers.report_due(index, counter.at, &terms, |window| {
                let epoch = if window.lost { known } else { 0 };
                let usage = Usage { digest, limit: index as u8, window: window.at, count: window.own, epoch };
                into.push(Report { usage, to: None });
            });
        }
        more
    }

    /// The peers that have reported on a window that is remembered.
    pub(super) fn origins(&self) -> BTreeSet<PeerIndex> {
        self.rare.peers.origins()
    }

    /// Takes a peer's report. False when it is about no window that matters.
    pub(super) fn hear(&mut self, now: Instant, origin: PeerIndex, usage: &Usage) -> bool {
        let index = usize::from(usage.limit);
        let Some(limit) = self.view.rule().limits.get(index).copied().filter(has_windows) else { return false };
        // Reports about windows long past, or far in the future, are ignored.
        let clock = self.view.clock().latest(now);
        let near = clock.since(usage.window) <= limit.period + limit.period && usage.window <= furthest(clock, &limit);
        if !near {
            return false;
        }
        self.rare.peers.keep(self.view.rule().limits.len());
        let end = if limit.algorithm == Algorithm::Sliding { usage.window + limit.period } else { usage.window };
        let is_over = self.view.clock().earliest(now) >= end + LATE_REPORT;
        self.rare.peers.merge(index, origin, usage, limit.count, is_over);
        true
    }

    /// Forgets windows that are far in the future by the store's clock, which an answer has just shown. They were noted by a clock that
    /// was ahead: this node's own before the store's first answer, or another master's. Only the latest few windows are remembered, so those
    /// of the future would keep the present ones out.
    pub(super) fn forget_far_windows(&mut self, now: Instant) {
        let clock = self.view.clock().latest(now);
        for (index, limit) in self.view.rule().limits.iter().enumerate() {
            self.rare.peers.forget_after(index, furthest(clock, limit));
        }
    }

    /// Whether peers and this node together are known to have spent a limit's window.
    pub(super) fn is_spent_by_fleet(&self) -> bool {
        self.has_spent_in_fleet(|_, spent, limit| spent >= limit.count)
    }

    /// The same, of a window that has begun for sure.
    fn is_surely_spent_by_fleet(&self, now: Instant) -> bool {
        let earliest = self.view.clock().earliest(now);
        self.has_spent_in_fleet(|at, spent, limit| {
            let has_begun = match limit.algorithm {
                Algorithm::Fixed => earliest >= at - limit.period,
                Algorithm::Sliding => earliest >= at,
                // The store has said that it is open.
                Algorithm::FixedFromFirst | Algorithm::Gcra | Algorithm::Concurrent => true,
            };
            spent >= limit.count && (has_begun || on(Mutant::DeniesTooSoonByPeers))
        })
    }

    /// Whether they are known to have spent more than six tenths of one, so that other nodes will want idle tokens.
    pub(super) fn is_pressed_by_fleet(&self) -> bool {
        self.has_spent_in_fleet(|_, spent, limit| {
            spent.saturating_mul(10) > limit.count.saturating_mul(PRESSED_BY_FLEET_TENTHS)
        })
    }

    fn has_spent_in_fleet(&self, is_much: impl Fn(Timestamp, u64, &Limit) -> bool) -> bool {
        let spent = |index: usize| {
            let heard = self.rare.peers.window(index, self.view.counter(index).at).filter(|window| !window.refuted);
            Some(heard.filter(|window| window.peers() > 0)?.spent(self.admitted(index)))
        };
        let mut windows = self.view.rule().limits.iter().enumerate().filter(|(_, limit)| has_windows(limit));
        self.rare.peers.is_kept()
            && windows.any(|(index, limit)| {
                spent(index).is_some_and(|spent| is_much(self.view.counter(index).at, spent, limit))
            })
    }

    /// Denies because of peers' reports, as long as the store is asked in between. Whoever has had no answer of the store
    /// does not know its clock, and so not which of the windows is at hand that peers tell of; and who has had a late one
    /// only knows it to within that trip.
    pub(super) fn deny_by_fleet(&mut self, now: Instant, cost: u64) -> Option<Decision> {
        let answered = self.view.answered()?;
        let asked = now.since(answered) < DOUBTED || self.rare.calls.is_acquiring();
        if !asked || !self.is_surely_spent_by_fleet(now) {
            return None;
        }
        let mut counters = self.charged();
        for (index, limit) in self.view.rule().limits.iter().enumerate() {
            let at = counters[index].at;
            let spent = self.rare.peers.window(index, at).map_or(0, |window| window.spent(self.admitted(index)));
            if has_windows(limit) {
                counters[index].used = counters[index].used.max(spent.min(limit.count));
                if spent >= limit.count {
                    self.rare.peers.note_denied(index, at);
                }
            }
        }
        let resolution = Resolution::deny(Reason::Rate, Source::Prefilter);
        Some(answer::decision(
            self.view.rule(),
            &counters[..self.view.rule().limits.len()],
            self.view.clock().earliest(now),
            cost,
            resolution,
        ))
    }

    /// The store has lent, so reports that all was spent were wrong. So were those by which a check was denied before, where
    /// less is spent by now because somebody has taken tokens back since.
    fn refute_fleet(&mut self) {
        if on(Mutant::GossipHasTheLastWord) {
            return;
        }
        if self.is_spent_by_fleet() {
            self.rare.peers.refute(self.view.windows());
        } else {
            self.rare.peers.refute_denied(self.view.windows());
        }
    }

    /// Peers report that all is spent, and the store was not asked about it. True once per window.
    pub(super) fn doubts_fleet(&mut self) -> bool {
        self.rare.peers.note_asked(self.view.windows())
    }

    /// This node's part of a limit, in millionths, while the store is away since `lost`.
    pub(super) fn part_ppm(&self, index: usize, fleet: FleetView, lost: Timestamp) -> u64 {
        let limit = &self.view.rule().limits[index];
        // A node that does not know yet how many nodes there are has no part. If the store has answered before the node knew,
        // the others lease what is left, and it has none of this loss any more.
        let is_found = || self.rare.outage.phase().until().is_some_and(|until| Some(until - GRACE) < fleet.looks_until);
        if (!fleet.has_looked || is_found()) && !on(Mutant::StrangerTakesAll) {
            return 0;
        }
        if !self.follows_usage(index) {
            // The store counted nodes when this node last asked; others may have come since.
            return crate::core::share::share_ppm(self.view.nodes().max(fleet.largest).max(fleet.live));
        }
        let ended = Timestamp(lost.0 / limit.period.0 * limit.period.0);
        let has_ended = |heard| self.view.clock().earliest(heard) >= ended + REPORTING;
        let everybody = fleet.is_whole() && fleet.heard.is_some_and(has_ended);
        let back = |windows: u64| {
            self.rare.peers.window(index, window_at(limit, (ended.0 / limit.period.0).saturating_sub(windows)))
        };
        let own = |windows: u64| back(windows).map_or(0, |window| window.own.net());
        // A node that has not reported everything, or whose last report of the window was lost, may have spent more than is known.
        let all = |windows: u64| {
            let others = (self.view.nodes() as usize).saturating_sub(usize::from(own(windows) > 0));
            let peers = back(windows).map_or(0, WindowUsage::peers);
            let heard = back(windows).is_some_and(|window| window.is_whole(others));
            if heard { peers.saturating_add(own(windows)).min(limit.count) } else { limit.count }
        };
        // Shares add up where all nodes divide by the same past windows. But they notice a loss up to a window apart, of short
        // windows up to two, and a node that nobody asked meanwhile by as many windows later as have begun since the store last
        // answered it. So a node takes the means that end with any of these windows: of its own the least, of all nodes
        // together the greatest. One of those means all nodes have in common.
        let passed = |heard: Timestamp| (lost.0 / limit.period.0).saturating_sub(heard.0 / limit.period.0);
        let quiet = self.view.heard().map_or(0, passed);
        let ends = 1..=(if limit.period >= SHORT { 2 } else { 3 }) + quiet.saturating_sub(1).min(LONGEST_QUIET);
        let mean = |of: &dyn Fn(u64) -> u64, last: u64| (last..last + MEAN).map(of).sum::<u64>();
        // What this node was lent and has not spent no other node was lent either.
        let beyond = |windows: u64| {
            let (peers, unspent) = back(windows).map_or((0, 0), |window| (window.peers(), window.unspent));
            own(windows).saturating_add(unspent).saturating_add(peers).saturating_sub(limit.count)
        };
        // In the window in which other nodes lost the store, they admitted only a part of their shares, and this node was lent what they no
        // longer leased. Reckoned beside that part alone, its own share would be too large: so it is reckoned beside the most that any of these
        // windows shows beyond the limit.
        let last_of_all = *ends.end() + MEAN;
        let most_beyond = (1..last_of_all).map(beyond).max().unwrap_or(0);
        let followed = |windows: u64| {
            let beyond = if beyond(windows) > 0 { most_beyond } else { 0 };
            beside_shares(limit.count, own(windows), beyond)
        };
        let least = ends.clone().map(|last| mean(&followed, last) / MEAN).min().unwrap_or(0);
        let most = ends.map(|last| mean(&all, last).div_ceil(MEAN)).max().unwrap_or(limit.count);
        // The store counts those that ask it. Who lives on a share does not, and has a part of what was unused, too.
        let reporters = (1..last_of_all).filter_map(back).map(WindowUsage::reporters).max().unwrap_or(0);
        let known = everybody.then_some((most, self.view.nodes().max(reporters + 1)));
        fleet.part_ppm(limit.count, PastUsage { own: least, fleet: known, counted: self.view.nodes() })
    }

    /// Whether a limit's share follows past usage. Its windows must be the same for all nodes, whichever asks first.
    pub(super) fn follows_usage(&self, index: usize) -> bool {
        matches!(self.view.rule().limits[index].algorithm, Algorithm::Fixed | Algorithm::Sliding)
    }
}

/// A share follows the mean of so many windows, because what nodes use of a single one differs by chance.
const MEAN: u64 = 3;

/// After more windows without an answer a share is no smaller: so few are remembered.
const LONGEST_QUIET: u64 = 6;

/// A window shorter than this may be over before a call to the store has been answered.
const SHORT: Micros = Micros(1_000_000);

/// The last window of which peers are heard, by that clock.
fn furthest(clock: Timestamp, limit: &Limit) -> Timestamp {
    clock + limit.period + limit.period
}

pub(super) fn has_windows(limit: &Limit) -> bool {
    limit.algorithm != Algorithm::Gcra
}

/// The number of an aligned window, from its `Counter::at`.
fn number(limit: &Limit, at: Timestamp) -> u64 {
    let start = if limit.algorithm == Algorithm::Sliding { at } else { at - limit.period };
    start.0 / limit.period.0
}

/// `Counter::at` of an aligned window, from its number.
fn window_at(limit: &Limit, number: u64) -> Timestamp {
    let start = Timestamp(number * limit.period.0);
    if limit.algorithm == Algorithm::Sliding { start } else { start + limit.period }
}
