//! What keys tell their peers, and what they make of what those tell (semantics, §4). Part of `key.rs`.
//!
//! What a node admitted of a window is what it was lent of it, less what it holds: spending a token
//! notes nothing. Buckets have no windows, and are not told of. What peers tell never has the last
//! word: it may put a question to the store off by a second, and a store that lends in spite of it
//! refutes it for that window.

use super::key::LeasedKey;
use crate::core::answer::{self, Resolution};
use crate::core::decision::{Decision, Reason, Source};
use crate::core::fleet::{FleetView, PastUsage};
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::{Count, Origin, ReportTerms, Usage, Window};

/// While gossip says that all is spent, the store is asked at least so often.
pub(super) const DOUBTED: Micros = Micros(1_000_000);

/// So long after the end of a window every node has told what it admitted in it.
const SETTLING: Micros = Micros(300_000);

/// A window of which less than one part in so many is used is not told of: no peer would decide otherwise.
const TOLD_PART: u64 = 10;

/// Of a window of which peers and this node have spent more than so many tenths, what lies idle here goes back, because
/// others will want it.
const PRESSED_BY_FLEET_TENTHS: u64 = 6;

impl LeasedKey {
    /// What this node has admitted of a limit's window at hand.
    fn admitted(&self, index: usize) -> Count {
        let (limit, at) = (&self.view.rule().limits[index], self.view.counter(index).at);
        let refunded = self.peers.window(index, at).map_or(0, |window| window.own.refunded);
        let held = if on(Mutant::GrantedAsAdmitted) { 0 } else { self.holdings.lease().held_of(index, at) };
        let lent = self.view.lent(index).saturating_sub(held);
        let alone = self.outage.book().map_or(0, |book| book.unpaid(index, number(limit, at)));
        Count { admitted: lent.saturating_add(alone).saturating_add(refunded), refunded }
    }

    /// Notes what the window at hand has come to; called before another one begins, too.
    pub(super) fn note_window(&mut self, index: usize) {
        let at = self.view.counter(index).at;
        if !self.peers.is_kept() || at.is_none() || !has_windows(&self.view.rule().limits[index]) {
            return;
        }
        let count = self.admitted(index);
        self.peers.note_own(index, at, count);
    }

    /// Notes what windows have come to that are over at this time of the store's clock.
    pub(super) fn note_windows_that_turn(&mut self, clock: Timestamp) {
        let mut bound = false;
        for index in 0..self.view.rule().limits.len() {
            let (limit, at) = (&self.view.rule().limits[index], self.view.counter(index).at);
            let end = if limit.algorithm == Algorithm::Sliding { at + limit.period } else { at };
            if clock >= end {
                self.note_window(index);
            } else {
                bound |= self.peers.is_bound() && self.peers.window(index, at).is_some_and(|window| window.lost);
            }
        }
        self.peers.bind(bound);
    }

    /// Takes note of tokens that were taken back.
    pub(super) fn note_refund(&mut self, tokens: u64) {
        self.peers.note_refund(self.view.windows(), tokens);
    }

    /// Takes note that the store has lent: of these tokens, if they are of the window at hand. Whether
    /// there is something to tell from now on.
    pub(super) fn lent_in_fleet(&mut self, of_this_window: bool) -> bool {
        self.peers.keep(self.view.rule().limits.len());
        if of_this_window {
            self.refute_fleet();
        }
        self.is_worth_telling()
    }

    /// So much of a limit is used that others should know.
    fn is_worth_telling(&self) -> bool {
        let windows = self.view.limits().filter(|(limit, _)| has_windows(limit));
        self.peers.is_kept() && windows.into_iter().any(|(limit, counter)| counter.used * TOLD_PART >= limit.count)
    }

    /// Appends what has moved since it was told last; all of it when the node leaves. False when
    /// nothing is left to tell.
    pub(in crate::core) fn tell(
        &mut self,
        now: Instant,
        fleet: FleetView,
        leaving: bool,
        into: &mut Vec<Usage>,
    ) -> bool {
        self.roll(now);
        let (digest, rule, latest) = (self.id(), self.view.rule().clone(), self.view.clock().latest(now));
        let known = self.view.epoch();
        let mut more = false;
        for (index, limit) in rule.limits.iter().enumerate().filter(|(_, limit)| has_windows(limit)) {
            self.note_window(index);
            let counter = self.view.counter(index);
            let pressing = leaving || self.peers.is_bound() || counter.left(limit, latest) == 0;
            let terms = ReportTerms { now, limit, nodes: fleet.live, pressing };
            more |= self.peers.tell(index, counter.at, &terms, |window| {
                let epoch = if window.lost { known } else { 0 };
                into.push(Usage { digest, limit: index as u8, window: window.at, count: window.own, epoch });
            });
        }
        more
    }

    /// Takes in what a peer tells; false where that is of no window that matters.
    pub(super) fn hear(&mut self, now: Instant, origin: Origin, usage: &Usage) -> bool {
        let index = usize::from(usage.limit);
        let Some(limit) = self.view.rule().limits.get(index).copied().filter(has_windows) else { return false };
        // Of windows long past and of those to come nothing is taken.
        let clock = self.view.clock().latest(now);
        let near = clock.since(usage.window).max(usage.window.since(clock)) <= limit.period + limit.period;
        if !near {
            return false;
        }
        self.peers.keep(self.view.rule().limits.len());
        self.peers.merge(index, origin, usage.window, usage.count, limit.count);
        true
    }

    /// Peers and this node together are known to have spent a limit's window.
    pub(super) fn is_spent_by_fleet(&self) -> bool {
        self.has_spent_in_fleet(|spent, limit| spent >= limit.count)
    }

    /// They are known to have spent more than six tenths of one: what lies idle others will want.
    pub(super) fn is_pressed_by_fleet(&self) -> bool {
        self.has_spent_in_fleet(|spent, limit| {
            spent.saturating_mul(10) > limit.count.saturating_mul(PRESSED_BY_FLEET_TENTHS)
        })
    }

    fn has_spent_in_fleet(&self, is_much: impl Fn(u64, &Limit) -> bool) -> bool {
        let spent = |index: usize| {
            let heard = self.peers.window(index, self.view.counter(index).at).filter(|window| !window.refuted);
            let peers = heard.map(Window::peers).filter(|peers| *peers > 0)?;
            Some(peers.saturating_add(self.admitted(index).net()))
        };
        let mut windows = self.view.rule().limits.iter().enumerate().filter(|(_, limit)| has_windows(limit));
        self.peers.is_kept() && windows.any(|(index, limit)| spent(index).is_some_and(|spent| is_much(spent, limit)))
    }

    /// Denies because of what peers told, as long as the store is asked in between.
    pub(super) fn deny_by_fleet(&self, now: Instant, cost: u64) -> Option<Decision> {
        let asked = self.view.answered().is_some_and(|at| now.since(at) < DOUBTED) || self.calls.is_acquiring();
        if !asked || !self.is_spent_by_fleet() {
            return None;
        }
        let mut counters = self.charged();
        for (index, limit) in self.view.rule().limits.iter().enumerate() {
            let spent = self
                .peers
                .window(index, counters[index].at)
                .map_or(0, |window| window.peers() + self.admitted(index).net());
            if has_windows(limit) {
                counters[index].used = counters[index].used.max(spent.min(limit.count));
            }
        }
        let ending = Resolution::deny(Reason::Rate, Source::Prefilter);
        Some(answer::decision(
            self.view.rule(),
            &counters[..self.view.rule().limits.len()],
            self.view.clock().earliest(now),
            cost,
            ending,
        ))
    }

    /// The store has lent: whoever told that all was spent was wrong.
    fn refute_fleet(&mut self) {
        if self.is_spent_by_fleet() {
            let at = self.view.windows();
            self.peers.refute(at, on(Mutant::GossipHasTheLastWord));
        }
    }

    /// Peers tell that all is spent, and the store has not been asked about it: true once a window.
    pub(super) fn doubts_fleet(&mut self) -> bool {
        self.peers.note_asked(self.view.windows())
    }

    /// This node's part of a limit while the store is away since `lost`, in millionths.
    pub(super) fn part_ppm(&self, index: usize, fleet: FleetView, lost: Timestamp) -> u64 {
        let limit = &self.view.rule().limits[index];
        // Whoever does not know yet how many there are has no part.
        if !fleet.is_settled && !on(Mutant::StrangerTakesAll) {
            return 0;
        }
        if !self.follows_usage(index) {
            // The store counted when this node last asked, and others may have come since.
            return crate::core::share::share_ppm(self.view.nodes().max(fleet.largest).max(fleet.live));
        }
        let ended = Timestamp(lost.0 / limit.period.0 * limit.period.0);
        let everybody = fleet.is_whole() && self.view.clock().earliest(fleet.heard) >= ended + SETTLING;
        let back = |windows: u64| {
            self.peers.window(index, window_at(limit, (ended.0 / limit.period.0).saturating_sub(windows)))
        };
        let own = |windows: u64| back(windows).map_or(0, |window| window.own.net());
        // Of a window of which somebody may not have told all may be gone.
        let all = |windows: u64| {
            let (peers, told) = back(windows).map_or((0, 0), |window| (window.peers(), window.origins()));
            let heard = told + usize::from(own(windows) > 0) >= self.view.nodes() as usize;
            if heard { peers.saturating_add(own(windows)).min(limit.count) } else { limit.count }
        };
        // Nodes notice a loss up to a window apart; of short windows up to two. One mean they have in common.
        let ends = 1..=if limit.period >= SHORT { 2 } else { 3 };
        let mean = |of: &dyn Fn(u64) -> u64, last: u64| (last..last + MEAN).map(of).sum::<u64>();
        let least = ends.clone().map(|last| mean(&own, last) / MEAN).min().unwrap_or(0);
        let most = ends.map(|last| mean(&all, last).div_ceil(MEAN)).max().unwrap_or(limit.count);
        let known = everybody.then_some((most, self.view.nodes()));
        fleet.part_ppm(limit.count, PastUsage { own: least, fleet: known })
    }

    /// A limit's share follows what was used: its windows are the same for all, whoever asks first.
    pub(super) fn follows_usage(&self, index: usize) -> bool {
        matches!(self.view.rule().limits[index].algorithm, Algorithm::Fixed | Algorithm::Sliding)
    }
}

/// A share follows the mean of this many windows, because what nodes take of each single one differs by chance.
const MEAN: u64 = 3;

/// A window shorter than this may be over before a call to the store has been answered.
const SHORT: Micros = Micros(1_000_000);

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
