//! What this node and its peers are known to have used of a key in the latest windows.
//!
//! Only a node of a fleet remembers that, and only for keys with windows. `peers.rs` decides what follows from it,
//! and `outage.rs` does where the store has lost a window.

use std::collections::BTreeSet;

use crate::core::time::{Due, Instant, Timestamp};
use crate::core::usage::{Count, History, PeerIndex, ReportTerms, Usage, WindowUsage};

/// What a fleet knows of a key. A key that no peer uses needs only a pointer.
#[derive(Debug)]
pub(super) struct PeerUsage(Option<Box<FleetUsage>>);

#[derive(Debug)]
struct FleetUsage {
    /// The windows of each limit; `None` after a reset or a change of limits, until the key is used again.
    windows: Option<Box<[History]>>,
    /// The store has lost the data of a present window, so peers' reports about it are binding.
    is_bound: bool,
    /// The time before which no further report of a loss causes a call.
    recall_at: Due,
    /// The epoch that a peer reported while the store was being asked.
    recalled: Option<u64>,
}

impl PeerUsage {
    /// Nothing is known.
    pub(super) const NEW: Self = Self(None);

    /// Whether nothing is remembered.
    pub(super) fn is_new(&self) -> bool {
        self.0.is_none()
    }

    fn known(&mut self) -> &mut FleetUsage {
        let none = || Box::new(FleetUsage { windows: None, is_bound: false, recall_at: Due::AT_ONCE, recalled: None });
        self.0.get_or_insert_with(none)
    }

    fn windows(&self) -> Option<&[History]> {
        self.0.as_ref()?.windows.as_deref()
    }

    fn windows_mut(&mut self) -> &mut [History] {
        self.0.as_mut().and_then(|known| known.windows.as_deref_mut()).unwrap_or_default()
    }

    /// The present windows, which are remembered from now on. `at` identifies them, limit by limit.
    fn entered(&mut self, at: impl Iterator<Item = Timestamp>) -> impl Iterator<Item = &mut WindowUsage> {
        self.windows_mut().iter_mut().zip(at).filter_map(|(history, at)| history.enter(at))
    }

    /// Whether windows are remembered.
    pub(super) fn is_kept(&self) -> bool {
        self.windows().is_some()
    }

    /// Remembers windows of so many limits from now on.
    pub(super) fn keep(&mut self, limits: usize) {
        if !self.is_kept() {
            self.known().windows = Some(vec![History::default(); limits].into());
        }
    }

    /// Forgets the windows, which are not of this key any more.
    pub(super) fn forget(&mut self) {
        if let Some(known) = &mut self.0 {
            known.windows = None;
        }
    }

    /// A window, if it is remembered.
    pub(super) fn window(&self, index: usize, at: Timestamp) -> Option<&WindowUsage> {
        self.windows()?[index].get(at)
    }

    /// Records that this node has used at least so much of a window, and what it holds of it unspent.
    pub(super) fn note_own(&mut self, index: usize, at: Timestamp, count: Count, unspent: u64) {
        if let Some(window) = self.windows_mut().get_mut(index).and_then(|history| history.enter(at)) {
            (window.own, window.unspent) = (window.own.max_of(count), unspent);
        }
    }

    /// Records that tokens of the present windows were taken back.
    pub(super) fn note_refund(&mut self, at: impl Iterator<Item = Timestamp>, tokens: u64) {
        for window in self.entered(at) {
            window.own.refunded = window.own.refunded.saturating_add(tokens);
        }
    }

    /// Records that the store is asked to take back tokens of these windows.
    pub(super) fn note_refund_in_store(&mut self, at: impl Iterator<Item = Timestamp>, tokens: u64) {
        for window in self.entered(at) {
            window.note_refund_in_store(tokens);
        }
    }

    /// Records that the store has taken back at least so many tokens of this window. It may have been recorded already, when the store
    /// was asked, so only what is missing is added.
    pub(super) fn note_taken_back(&mut self, index: usize, at: Timestamp, tokens: u64) {
        if let Some(window) = self.windows_mut().get_mut(index).and_then(|history| history.enter(at)) {
            window.note_refund_in_store(tokens.saturating_sub(window.refunded_in_store));
        }
    }

    /// Forgets windows of a limit that are later than that: no clock at hand comes to them soon, and they leave no room for those at
    /// hand.
    pub(super) fn forget_after(&mut self, index: usize, latest: Timestamp) {
        if let Some(history) = self.windows_mut().get_mut(index) {
            history.forget_after(latest);
        }
    }

    /// Takes a peer's report about a window of a limit with this capacity: see [`History::merge`].
    pub(super) fn merge(&mut self, index: usize, origin: PeerIndex, usage: &Usage, capacity: u64, is_over: bool) {
        if let Some(history) = self.windows_mut().get_mut(index) {
            history.merge(origin, usage.window, usage.count, capacity, is_over);
        }
    }

    /// The peers that have reported on a window that is remembered.
    pub(super) fn origins(&self) -> BTreeSet<PeerIndex> {
        let mut origins = BTreeSet::new();
        self.windows().into_iter().flatten().for_each(|history| history.add_origins(&mut origins));
        origins
    }

    /// Reports each window of a limit that must be reported now. Returns whether something must be reported later.
    pub(super) fn report_due(
        &mut self,
        index: usize,
        open: Timestamp,
        terms: &ReportTerms<'_>,
        mut report: impl FnMut(&WindowUsage),
    ) -> bool {
        let mut more = false;
        for window in self.windows_mut().get_mut(index).into_iter().flat_map(History::iter_mut) {
            let is_open = window.at == open;
            if window.is_due(terms, is_open) {
                window.mark_reported(terms.now, is_open);
                report(window);
            }
            more |= window.will_be_due(terms, is_open);
        }
        more
    }

    /// The store has lent although peers reported that all was spent. They are not believed again for these windows,
    /// unless the store has lost its data.
    pub(super) fn refute(&mut self, at: impl Iterator<Item = Timestamp>) {
        for window in self.entered(at) {
            window.refuted = !window.lost;
        }
    }

    /// Refutes what peers reported, only of those windows because of which a check was denied.
    pub(super) fn refute_denied(&mut self, at: impl Iterator<Item = Timestamp>) {
        let windows = self.windows_mut().iter_mut().zip(at);
        let windows = windows.filter_map(|(history, at)| history.iter_mut().find(|window| window.at == at));
        for window in windows.filter(|window| window.denied) {
            window.refuted = !window.lost;
        }
    }

    /// Records that a check was denied because of what peers reported of a window.
    pub(super) fn note_denied(&mut self, index: usize, at: Timestamp) {
        let windows = self.windows_mut().get_mut(index).and_then(|history| history.enter(at));
        windows.into_iter().for_each(|window| window.denied = true);
    }

    /// The store is asked whether peers' reports are right. Returns whether it had not been asked about some present
    /// window.
    pub(super) fn note_asked(&mut self, at: impl Iterator<Item = Timestamp>) -> bool {
        let mut is_first = false;
        for window in self.entered(at) {
            is_first |= !std::mem::replace(&mut window.asked, true);
        }
        is_first
    }

    /// The store has lost the data of the present windows. Peers know better, and must hear of it.
    pub(super) fn note_lost(&mut self, at: impl Iterator<Item = Timestamp>) {
        if let Some(known) = &mut self.0 {
            known.is_bound = known.windows.is_some();
        }
        for window in self.entered(at) {
            (window.lost, window.refuted, window.reported) = (true, false, Count::default());
        }
    }

    /// Whether peers' reports are binding.
    pub(super) fn is_bound(&self) -> bool {
        self.0.as_ref().is_some_and(|known| known.is_bound)
    }

    /// Makes peers' reports binding, for as long as a window is open that the store has lost.
    pub(super) fn bind(&mut self, is_bound: bool) {
        if let Some(known) = &mut self.0 {
            known.is_bound = is_bound;
        }
    }

    /// Whether a report of a loss may cause a call.
    pub(super) fn may_be_recalled(&self, now: Instant) -> bool {
        self.0.as_ref().is_none_or(|known| known.recall_at.has_come(now))
    }

    /// Records a report of a loss. The next one may cause a call from `next` on. `epoch` is the reported one, if the
    /// store was being asked meanwhile.
    pub(super) fn note_recall(&mut self, next: Instant, epoch: Option<u64>) {
        let known = self.known();
        (known.recall_at, known.recalled) = (Due::at(next), epoch);
    }

    /// The epoch that a peer reported while the store was being asked.
    pub(super) fn take_recalled(&mut self) -> Option<u64> {
        self.0.as_mut()?.recalled.take()
    }
}
