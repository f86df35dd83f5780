//! What a key does when the store has lost what it knew of it (semantics, §5). Part of `key.rs`.
//!
//! Each node's next acquire tells the store what it had lent that node, and is lent nothing. Whoever notices
//! first tells its peers, who ask at once; until they have, the store would lend what they hold once more:
//! so long a node spends what it holds, and asks for nothing.

use super::key::LeasedKey;
use super::peers::{DOUBTED, has_windows};
use super::phase::Phase;
use super::timers::remaining;
use crate::core::fleet::FleetView;
use crate::core::mutant::{Mutant, on};
use crate::core::rule::OnStoreLoss;
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::{Count, Usage};

/// In so many rounds of gossip peers have heard of a loss and told the store what they know.
const ROUNDS: u64 = 2;

impl LeasedKey {
    /// The store has lost what it knew of this window: peers know better, and hear of it.
    pub(super) fn believe_fleet(&mut self) {
        self.is_bound = self.usage.is_some();
        for (history, counter) in self.usage.iter_mut().flatten().zip(&self.counters) {
            if let Some(window) = history.enter(counter.at) {
                (window.lost, window.refuted, window.told) = (true, false, Count::default());
            }
        }
    }

    /// The store lends again what it has lent of windows to come.
    pub(super) fn void_ahead(&mut self, now: Instant) -> u64 {
        self.lent_ahead = (Timestamp(0), 0);
        self.lease.void_ahead(now)
    }

    /// This node has told the store what it was lent; its peers have yet to.
    pub(super) fn wait_for_peers(&mut self, now: Instant, fleet: Option<FleetView>) {
        // Of a key that nobody asked for in this window there was nothing to lose.
        let limits = self.rule.limits.iter().zip(&self.net).zip(self.usage.iter().flatten().zip(&self.counters));
        let has_lost = limits.into_iter().any(|((limit, net), (history, counter))| {
            has_windows(limit) && (*net > 0 || history.get(counter.at).is_some_and(|window| window.peers() > 0))
        });
        let Some(fleet) = fleet.filter(|fleet| fleet.live > 1 && has_lost) else { return };
        if self.rule.on_store_loss == OnStoreLoss::Allow || on(Mutant::LendsBeforeRepair) {
            return;
        }
        self.lose_store(now, now);
        let since = self.clock.latest(now);
        if let Some(book) = &mut self.share {
            book.begin_anew(since);
        }
        let until = now + remaining(self, now).min(Micros(fleet.round.0.saturating_mul(ROUNDS)));
        self.phase = Phase::Restoring { until };
    }

    /// A peer tells that the store has lost this key, and this node has not told it yet what it was lent:
    /// at most once a second, whatever peers say. Where the store is being asked, it is asked once more.
    pub(super) fn is_recalled(&mut self, now: Instant, usage: &Usage) -> bool {
        let is_news = usage.epoch != 0 && self.epoch != 0 && usage.epoch != self.epoch;
        let has_any = self.net.iter().any(|net| *net > 0);
        let is_put_off = now < self.recall_at || self.phase.waits(now);
        if !is_news || !has_any || is_put_off {
            return false;
        }
        self.recall_at = now + DOUBTED;
        self.recalled = self.flight.as_ref().map(|_| usage.epoch);
        self.recalled.is_none()
    }
}
