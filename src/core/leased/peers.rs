//! What keys tell their peers, and what they make of what those tell (semantics, §4). Part of `key.rs`.
//!
//! What a node admitted of a window is what it was lent of it, less what it holds: spending a token
//! notes nothing. Buckets have no windows, and are not told of. What peers tell never has the last
//! word: it may put a question to the store off by a second, and a store that lends in spite of it
//! refutes it for that window.

use super::key::LeasedKey;
use crate::core::answer::{self, Ending};
use crate::core::decision::{Decision, Reason, Source};
use crate::core::fleet::{FleetView, Settled};
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::{Count, History, Occasion, Origin, Usage, Window};

/// While gossip says that all is spent, the store is asked at least so often.
pub(super) const DOUBTED: Micros = Micros(1_000_000);

/// So long after a window all have told what it came to.
const SETTLING: Micros = Micros(300_000);

impl LeasedKey {
    /// From here on windows are remembered.
    fn join_fleet(&mut self) {
        if self.usage.is_none() {
            self.usage = Some(vec![History::default(); self.rule.limits.len()].into());
        }
    }

    /// What this node has admitted of a limit's window at hand.
    fn admitted(&self, index: usize) -> Count {
        let (limit, at) = (&self.rule.limits[index], self.counters[index].at);
        let refunded = self.window(index, at).map_or(0, |window| window.own.refunded);
        let held = if on(Mutant::GrantedAsAdmitted) { 0 } else { self.lease.held_of(index, at) };
        let lent = self.net[index].saturating_sub(held);
        let alone = self.share.as_ref().map_or(0, |book| book.unpaid(index, number(limit, at)));
        Count { admitted: lent.saturating_add(alone).saturating_add(refunded), refunded }
    }

    /// Notes what the window at hand has come to; called before another one begins, too.
    pub(super) fn note_window(&mut self, index: usize) {
        let at = self.counters[index].at;
        if self.usage.is_none() || at.0 == 0 || !has_windows(&self.rule.limits[index]) {
            return;
        }
        let count = self.admitted(index);
        if let Some(window) = self.usage.as_mut().and_then(|usage| usage[index].enter(at)) {
            window.own = window.own.max_of(count);
        }
    }

    /// Notes what windows have come to that are over at this time of the store's clock.
    pub(super) fn note_windows_that_turn(&mut self, clock: Timestamp) {
        let mut bound = false;
        for index in 0..self.rule.limits.len() {
            let (limit, at) = (&self.rule.limits[index], self.counters[index].at);
            let end = if limit.algorithm == Algorithm::Sliding { at + limit.period } else { at };
            if clock >= end {
                self.note_window(index);
            } else {
                bound |= self.is_bound && self.window(index, at).is_some_and(|window| window.lost);
            }
        }
        self.is_bound = bound;
    }

    /// Takes note of tokens that were taken back.
    pub(super) fn note_refund(&mut self, tokens: u64) {
        let counters = &self.counters;
        for (history, counter) in self.usage.iter_mut().flatten().zip(counters) {
            if let Some(window) = history.enter(counter.at) {
                window.own.refunded = window.own.refunded.saturating_add(tokens);
            }
        }
    }

    /// Takes note that the store has lent: of these tokens, if they are of the window at hand. Whether
    /// there is something to tell from now on.
    pub(super) fn lent_in_fleet(&mut self, of_this_window: bool) -> bool {
        self.join_fleet();
        if of_this_window {
            self.refute_fleet();
        }
        self.is_worth_telling()
    }

    /// So much of a limit is used that others should know.
    fn is_worth_telling(&self) -> bool {
        let windows = self.rule.limits.iter().zip(&self.counters).filter(|(limit, _)| has_windows(limit));
        self.usage.is_some() && windows.into_iter().any(|(limit, counter)| counter.used * 10 >= limit.count)
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
        let (digest, rule, latest) = (Digest(self.digest), self.rule.clone(), self.clock.latest(now));
        let known = self.epoch;
        let mut more = false;
        for (index, limit) in rule.limits.iter().enumerate().filter(|(_, limit)| has_windows(limit)) {
            self.note_window(index);
            let counter = self.counters[index];
            let pressing = leaving || self.is_bound || counter.left(limit, latest) == 0;
            let occasion = Occasion { now, limit, nodes: fleet.live, pressing };
            for window in self.usage.iter_mut().flat_map(|usage| usage[index].iter_mut()) {
                let open = window.at == counter.at;
                if window.is_due(&occasion, open) {
                    window.was_told(now, open);
                    let epoch = if window.lost { known } else { 0 };
                    into.push(Usage { digest, limit: index as u8, window: window.at, count: window.own, epoch });
                }
                more |= window.will_be_due(&occasion, open);
            }
        }
        more
    }

    /// Takes in what a peer tells; false where that is of no window that matters.
    pub(super) fn hear(&mut self, now: Instant, origin: Origin, usage: &Usage) -> bool {
        let index = usize::from(usage.limit);
        let Some(limit) = self.rule.limits.get(index).copied().filter(has_windows) else { return false };
        // Of windows long past and of those to come nothing is taken.
        let clock = self.clock.latest(now);
        let near = clock.since(usage.window).max(usage.window.since(clock)) <= limit.period + limit.period;
        if !near {
            return false;
        }
        self.join_fleet();
        if let Some(history) = self.usage.as_mut().map(|usage| &mut usage[index]) {
            history.merge(origin, usage.window, usage.count, limit.count);
        }
        true
    }

    /// Peers and this node together are known to have spent a limit's window.
    pub(super) fn is_spent_by_fleet(&self) -> bool {
        self.has_spent_in_fleet(|spent, limit| spent >= limit.count)
    }

    /// They are known to have spent more than six tenths of one: what lies idle others will want.
    pub(super) fn is_pressed_by_fleet(&self) -> bool {
        self.has_spent_in_fleet(|spent, limit| spent.saturating_mul(10) > limit.count.saturating_mul(6))
    }

    fn has_spent_in_fleet(&self, is_much: impl Fn(u64, &Limit) -> bool) -> bool {
        let spent = |index: usize| {
            let heard = self.window(index, self.counters[index].at).filter(|window| !window.refuted);
            let peers = heard.map(Window::peers).filter(|peers| *peers > 0)?;
            Some(peers.saturating_add(self.admitted(index).net()))
        };
        let mut windows = self.rule.limits.iter().enumerate().filter(|(_, limit)| has_windows(limit));
        self.usage.is_some() && windows.any(|(index, limit)| spent(index).is_some_and(|spent| is_much(spent, limit)))
    }

    /// Denies because of what peers told, as long as the store is asked in between.
    pub(super) fn deny_by_fleet(&self, now: Instant, cost: u64) -> Option<Decision> {
        let asked = self.answered.is_some_and(|at| now.since(at) < DOUBTED) || self.flight.is_some();
        if !asked || !self.is_spent_by_fleet() {
            return None;
        }
        let mut counters = self.charged();
        for (index, limit) in self.rule.limits.iter().enumerate() {
            let spent =
                self.window(index, counters[index].at).map_or(0, |window| window.peers() + self.admitted(index).net());
            if has_windows(limit) {
                counters[index].used = counters[index].used.max(spent.min(limit.count));
            }
        }
        let ending = Ending::deny(Reason::Rate, Source::Prefilter);
        Some(answer::decision(&self.rule, &counters[..self.rule.limits.len()], self.clock.earliest(now), cost, ending))
    }

    /// The store has lent: whoever told that all was spent was wrong.
    fn refute_fleet(&mut self) {
        if self.is_spent_by_fleet() {
            for (history, counter) in self.usage.iter_mut().flatten().zip(&self.counters) {
                if let Some(window) = history.enter(counter.at) {
                    window.refuted = !window.lost && !on(Mutant::GossipHasTheLastWord);
                }
            }
        }
    }

    /// Peers tell that all is spent, and the store has not been asked about it: true once a window.
    pub(super) fn doubts_fleet(&mut self) -> bool {
        let mut doubts = false;
        for (history, counter) in self.usage.iter_mut().flatten().zip(&self.counters) {
            if let Some(window) = history.enter(counter.at) {
                doubts |= !std::mem::replace(&mut window.asked, true);
            }
        }
        doubts
    }

    /// This node's part of a limit while the store is away since `lost`, in millionths.
    pub(super) fn part_ppm(&self, index: usize, fleet: FleetView, lost: Timestamp) -> u64 {
        let limit = &self.rule.limits[index];
        // Whoever does not know yet how many there are has no part.
        if !fleet.is_settled && !on(Mutant::StrangerTakesAll) {
            return 0;
        }
        if !self.follows_usage(index) {
            // The store counted when this node last asked, and others may have come since.
            return crate::core::share::share_ppm(self.nodes.max(fleet.largest).max(fleet.live));
        }
        let ended = Timestamp(lost.0 / limit.period.0 * limit.period.0);
        let everybody = fleet.is_whole() && self.clock.earliest(fleet.heard) >= ended + SETTLING;
        let back =
            |windows: u64| self.window(index, window_at(limit, (ended.0 / limit.period.0).saturating_sub(windows)));
        let own = |windows: u64| back(windows).map_or(0, |window| window.own.net());
        // Of a window of which somebody may not have told all may be gone.
        let all = |windows: u64| {
            let (peers, told) = back(windows).map_or((0, 0), |window| (window.peers(), window.origins()));
            let heard = told + usize::from(own(windows) > 0) >= self.nodes as usize;
            if heard { peers.saturating_add(own(windows)).min(limit.count) } else { limit.count }
        };
        // Nodes notice a loss up to a window apart; of short windows up to two. One mean they have in common.
        let ends = 1..=if limit.period >= SHORT { 2 } else { 3 };
        let mean = |of: &dyn Fn(u64) -> u64, last: u64| (last..last + MEAN).map(of).sum::<u64>();
        let least = ends.clone().map(|last| mean(&own, last) / MEAN).min().unwrap_or(0);
        let most = ends.map(|last| mean(&all, last).div_ceil(MEAN)).max().unwrap_or(limit.count);
        let known = everybody.then_some((most, self.nodes));
        fleet.part_ppm(limit.count, Settled { own: least, fleet: known })
    }

    /// A limit's share follows what was used: its windows are the same for all, whoever asks first.
    pub(super) fn follows_usage(&self, index: usize) -> bool {
        matches!(self.rule.limits[index].algorithm, Algorithm::Fixed | Algorithm::Sliding)
    }

    fn window(&self, index: usize, at: Timestamp) -> Option<&Window> {
        self.usage.as_ref()?[index].get(at)
    }
}

/// What a share follows is the mean of so many windows: what nodes take of each differs by chance.
const MEAN: u64 = 3;

/// Windows shorter than that are over before a question to the store surely is.
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
