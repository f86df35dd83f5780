//! What nodes report to each other about a key: how much each has admitted in a window.
//!
//! Both counters of a [`Count`] only grow within a window, so reports are merged by taking the maximum for each node
//! (a G-counter). Lost, repeated and reordered reports do no harm, and what is known is never more than what was
//! admitted. Granted tokens are never merged, because returned ones would make their number shrink. Knows no clock,
//! no names of peers and no wire format. Stored by a key (`leased/peers.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::key::Digest;
use super::limit::Limit;
use super::mutant::{Mutant, on};
use super::time::{Instant, Micros, Timestamp};

/// Windows of one limit that are remembered: the present one, and five from which a share is computed.
const WINDOWS: usize = 6;

/// Most nodes that one window remembers.
const MOST_ORIGINS: usize = 4_096;

/// An open window is reported at most so many times, at even intervals: more reports cost bytes, and with fewer, peers
/// learn later that a limit is spent.
const STEPS: u64 = 6;

/// A peer is believed to have taken back up to so many times the limit in a window, since clients may take tokens and
/// give them back again and again. If it reports more, the rest is ignored, so that more counts as admitted than was,
/// and never less.
const REFUNDED_TIMES: u64 = 2;

/// How often the final count of a window is reported, so that a peer that missed one report gets the next.
const FINALS: u8 = 3;

/// One incarnation of a node, by the number that the fleet tracker gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub u32);

/// What one node has done in one window, in tokens. Both numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tokens of checks that were admitted.
    pub admitted: u64,
    /// Tokens of those checks that were taken back.
    pub refunded: u64,
}

impl Count {
    /// Tokens that stayed admitted.
    #[must_use]
    pub fn net(self) -> u64 {
        self.admitted.saturating_sub(self.refunded)
    }

    /// Tokens taken back beyond those admitted. They were lent on by a peer, which counts as having admitted them.
    fn beyond(self) -> u64 {
        self.refunded.saturating_sub(self.admitted)
    }

    /// The later of two states of the same counters.
    #[must_use]
    pub fn max_of(self, other: Self) -> Self {
        Self { admitted: self.admitted.max(other.admitted), refunded: self.refunded.max(other.refunded) }
    }
}

/// A node's report about one limit of one key in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The key.
    pub digest: Digest,
    /// The limit's index in its rule.
    pub limit: u8,
    /// `Counter::at` of the window.
    pub window: Timestamp,
    /// What the node has done in it.
    pub count: Count,
    /// 0, or the epoch that the store began after it had lost the data of the window.
    pub epoch: u64,
}

/// What a node reports in a round of gossip about one limit of one key, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it reports.
    pub usage: Usage,
    /// The peers that have to know; `None`: all.
    pub to: Option<Arc<[PeerIndex]>>,
}

/// How many entries these reports make in the frames to all `peers` peers together.
#[must_use]
pub fn entries(reports: &[Report], peers: u64) -> u64 {
    let of = |report: &Report| report.to.as_ref().map_or(peers, |to| to.len() as u64);
    reports.iter().map(of).fold(0, u64::saturating_add)
}

/// The reports to all peers, and further reports to single peers.
#[must_use]
pub fn by_hearer(reports: &[Report]) -> (Vec<Usage>, BTreeMap<PeerIndex, Vec<Usage>>) {
    let (mut all, mut some) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for Report { usage, to } in reports {
        match to {
            None => all.push(*usage),
            Some(to) => to.iter().for_each(|peer| some.entry(*peer).or_default().push(*usage)),
        }
    }
    (all, some)
}

/// What a peer has reported of a window.
#[derive(Clone, Copy, Debug)]
struct Heard {
    origin: PeerIndex,
    count: Count,
    /// A report was sent after the window was over, so `count` is final.
    is_whole: bool,
}

/// One window of one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowUsage {
    pub(super) at: Timestamp,
    /// What this node has done in it. Final once the window has ended; until then only refunds are recorded here.
    pub(super) own: Count,
    /// What the store lent this node of it that nobody was admitted with. Nor was any other node lent that.
    pub(super) unspent: u64,
    /// Tokens of `own.refunded` that the store takes back. The others are back in this node's lease or share.
    pub(super) refunded_in_store: u64,
    /// What this node has last reported of it, when, and how often since the window ended without a change.
    pub(super) reported: Count,
    pub(super) reported_at: Instant,
    pub(super) finals: u8,
    /// The peers' reports, sorted by peer.
    peers: Vec<Heard>,
    /// What all peers together have admitted.
    sum: u64,
    /// What some of them took back beyond what they had admitted themselves.
    lent_back: u64,
    /// The store has lent tokens although all were spent according to peers, so peers are no longer believed about this
    /// window.
    pub(super) refuted: bool,
    /// The store has lost the data of this window, so its answers do not refute peers' reports.
    pub(super) lost: bool,
    /// The store was asked whether the peers' reports are right.
    pub(super) asked: bool,
    /// A check was denied because peers' reports said that all of the window was spent.
    pub(super) denied: bool,
}

impl WindowUsage {
    /// Tokens that peers are known to have admitted.
    pub(super) fn peers(&self) -> u64 {
        self.sum
    }

    /// How many peers have reported on it.
    pub(super) fn reporters(&self) -> u32 {
        self.peers.len() as u32 // no more than `MOST_ORIGINS`
    }

    /// Tokens that peers and this node, whose count is `own`, are known to have admitted and not taken back. What a
    /// node takes back of a peer's loan is subtracted from what the peer has admitted.
    pub(super) fn spent(&self, own: Count) -> u64 {
        let back = self.lent_back.saturating_add(own.beyond());
        self.sum.saturating_add(own.net()).saturating_sub(back)
    }

    /// Records tokens of this node that the store takes back.
    pub(super) fn note_refund_in_store(&mut self, tokens: u64) {
        self.own.refunded = self.own.refunded.saturating_add(tokens);
        self.refunded_in_store = self.refunded_in_store.saturating_add(tokens);
    }

    /// Whether so many peers have reported on it, each after its end.
    pub(super) fn is_whole(&self, peers: usize) -> bool {
        self.peers.len() >= peers && self.peers.iter().all(|peer| peer.is_whole)
    }

    /// Whether what this node has done has changed enough for a report.
    pub(super) fn is_due(&self, terms: &ReportTerms<'_>, open: bool) -> bool {
        if !open {
            return self.will_be_due(terms, false);
        }
        let (own, reported) = (self.own, self.reported);
        let far = own.admitted.saturating_sub(reported.admitted) >= terms.part(16).max(1);
        let late = terms.now.since(self.reported_at) >= Micros(terms.limit.period.0 / STEPS);
        own != reported && (terms.pressing || late && (far || own.refunded != reported.refunded))
    }

    /// Whether it must be reported, now or later. A count below a small part of a node's even part is not reported once
    /// the window is over, unless a report was sent before: then peers wait for the final one.
    pub(super) fn will_be_due(&self, terms: &ReportTerms<'_>, open: bool) -> bool {
        let least = if open || self.reported.admitted > 0 { 0 } else { terms.part(64) };
        let is_worth_it = self.own.admitted > least || open && self.own.refunded > 0;
        is_worth_it && (open || self.finals < FINALS || self.own != self.reported)
    }

    /// Records that it is reported now. A node may take a window for over although an answer of the store then shows it
    /// to be still open; reports before the count changed again were not final, so counting them begins anew.
    pub(super) fn mark_reported(&mut self, now: Instant, open: bool) {
        let before = if self.own == self.reported { self.finals } else { 0 };
        self.finals = before + u8::from(!open);
        (self.reported, self.reported_at) = (self.own, now);
    }

    fn merge(&mut self, origin: PeerIndex, count: Count, is_over: bool) {
        let place = match self.peers.binary_search_by_key(&origin, |peer| peer.origin) {
            Ok(place) => place,
            Err(_) if self.peers.len() == MOST_ORIGINS => return,
            Err(place) => {
                self.peers.insert(place, Heard { origin, count: Count::default(), is_whole: false });
                place
            }
        };
        let Heard { count: known, is_whole, .. } = &mut self.peers[place];
        *is_whole |= is_over;
        let sum = Count { admitted: known.admitted + count.admitted, refunded: known.refunded + count.refunded };
        let merged = if on(Mutant::MergeAdds) { sum } else { known.max_of(count) };
        self.sum = self.sum.saturating_sub(known.net()).saturating_add(merged.net());
        self.lent_back = self.lent_back.saturating_sub(known.beyond()).saturating_add(merged.beyond());
        *known = merged;
    }
}

/// The conditions under which a window may be reported.
#[derive(Debug)]
pub(super) struct ReportTerms<'a> {
    pub(super) now: Instant,
    pub(super) limit: &'a Limit,
    /// Live nodes.
    pub(super) nodes: u32,
    /// Peers should hear of it at once: all is spent, or this node leaves.
    pub(super) pressing: bool,
}

impl ReportTerms<'_> {
    /// One `parts`th of a node's even part of the limit, rounded down.
    fn part(&self, parts: u64) -> u64 {
        self.limit.count / (parts * u64::from(self.nodes.max(1)))
    }
}

/// The latest windows of one limit, newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    windows: VecDeque<WindowUsage>,
}

impl History {
    /// The window, if it is remembered.
    pub(super) fn get(&self, at: Timestamp) -> Option<&WindowUsage> {
        self.windows.iter().find(|window| window.at == at)
    }

    /// The window, which is remembered from now on; `None` when it is older than all that are remembered.
    pub(super) fn enter(&mut self, at: Timestamp) -> Option<&mut WindowUsage> {
        let place = self.windows.iter().position(|window| window.at <= at).unwrap_or(self.windows.len());
        if self.windows.get(place).is_none_or(|window| window.at != at) {
            if place == WINDOWS {
                return None;
            }
            self.windows.insert(place, WindowUsage { at, ..WindowUsage::default() });
            self.windows.truncate(WINDOWS);
        }
        self.windows.get_mut(place)
    }

    /// Takes a peer's report about a window of a limit with this capacity, which nobody can exceed. `is_over`: the
    /// report was sent after the window's end.
    pub(super) fn merge(&mut self, origin: PeerIndex, at: Timestamp, count: Count, capacity: u64, is_over: bool) {
        let refunded = count.refunded.min(capacity.saturating_mul(REFUNDED_TIMES));
        // Refunded tokens can be admitted again, so only the net count is bounded.
        let count = Count { admitted: count.admitted.min(capacity.saturating_add(refunded)), refunded };
        if let Some(window) = self.enter(at) {
            window.merge(origin, count, is_over);
        }
    }

    /// Adds the peers that have reported on a window that is remembered.
    pub(super) fn add_origins(&self, into: &mut BTreeSet<PeerIndex>) {
        into.extend(self.windows.iter().flat_map(|window| &window.peers).map(|heard| heard.origin));
    }

    /// Forgets the windows that are later than that.
    pub(super) fn forget_after(&mut self, latest: Timestamp) {
        while self.windows.front().is_some_and(|window| window.at > latest) {
            self.windows.pop_front();
        }
    }

    /// All windows, the newest first.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut WindowUsage> {
        self.windows.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp(10);

    fn count(admitted: u64, refunded: u64) -> Count {
        Count { admitted, refunded }
    }

    #[test]
    fn repeats_loss_and_order_of_tellings_do_not_matter() {
        let tellings = [(1, count(3, 0)), (2, count(5, 1)), (1, count(9, 2)), (2, count(5, 1)), (1, count(3, 0))];
        let sum = |order: &[usize]| {
            let mut history = History::default();
            for index in order {
                let (origin, count) = tellings[*index];
                history.merge(PeerIndex(origin), AT, count, 100, true);
            }
            history.get(AT).map(WindowUsage::peers)
        };
        assert_eq!(sum(&[0, 1, 2, 3, 4]), Some(11));
        assert_eq!(sum(&[4, 2, 3]), Some(11));
        assert_eq!(sum(&[2, 1, 0]), Some(11));
    }

    #[test]
    fn what_is_taken_back_of_a_loan_is_less_of_what_its_lender_admitted() {
        let mut history = History::default();
        history.merge(PeerIndex(1), AT, count(9, 0), 100, true);
        let spent = |history: &History, own| history.get(AT).map(|window| (window.spent(own), window.peers()));
        assert_eq!(spent(&history, count(0, 2)), Some((7, 9)));
        history.merge(PeerIndex(2), AT, count(1, 3), 100, true);
        history.merge(PeerIndex(2), AT, count(1, 3), 100, true);
        assert_eq!(spent(&history, count(0, 2)), Some((5, 9)));
        history.merge(PeerIndex(2), AT, count(4, 3), 100, true);
        assert_eq!(spent(&history, count(3, 2)), Some((11, 10)));
    }

    #[test]
    fn nobody_admits_more_than_the_limit() {
        let mut history = History::default();
        history.merge(PeerIndex(1), AT, count(u64::MAX, 0), 100, true);
        assert_eq!(history.get(AT).map(WindowUsage::peers), Some(100));
        history.merge(PeerIndex(2), AT, count(u64::MAX, u64::MAX), 100, true);
        assert_eq!(history.get(AT).map(WindowUsage::peers), Some(200));
    }

    #[test]
    fn old_windows_make_room_and_do_not_come_back() {
        let mut history = History::default();
        for at in 1..=8 {
            history.merge(PeerIndex(1), Timestamp(at), count(1, 0), 100, true);
        }
        assert!(history.get(Timestamp(2)).is_none());
        assert!(history.enter(Timestamp(2)).is_none());
        assert_eq!(history.iter_mut().map(|window| window.at.0).collect::<Vec<_>>(), [8, 7, 6, 5, 4, 3]);
    }

    #[test]
    fn windows_of_a_clock_that_was_ahead_leave_room() {
        let mut history = History::default();
        for at in 11..=16 {
            history.merge(PeerIndex(1), Timestamp(at), count(1, 0), 100, true);
        }
        assert!(history.enter(AT).is_none());
        history.forget_after(Timestamp(12));
        assert!(history.enter(AT).is_some());
        assert_eq!(history.iter_mut().map(|window| window.at.0).collect::<Vec<_>>(), [12, 11, 10]);
    }

    #[test]
    fn a_window_is_whole_once_each_peer_has_reported_after_it() {
        let mut history = History::default();
        let is_whole = |history: &History, peers| history.get(AT).is_some_and(|window| window.is_whole(peers));
        history.merge(PeerIndex(1), AT, count(9, 0), 100, true);
        assert!(is_whole(&history, 1) && !is_whole(&history, 2));
        history.merge(PeerIndex(2), AT, count(5, 0), 100, false);
        assert!(!is_whole(&history, 1) && !is_whole(&history, 2));
        history.merge(PeerIndex(2), AT, count(5, 0), 100, true);
        history.merge(PeerIndex(2), AT, count(5, 0), 100, false);
        assert!(is_whole(&history, 2));
    }

    /// A node that knows the store's clock only to within a late answer takes a window for over too soon, and reports
    /// it twice. Then a quick answer shows that the window is open, and another check is admitted. That one is reported
    /// while the window is open, or after its end, or taken back after its end.
    #[test]
    fn what_is_told_three_times_of_a_window_that_is_over_is_the_final_count() {
        let limit = Limit::parse("100/1s sliding").expect("a limit");
        let tells = |window: &mut WindowUsage, now: u64, open: bool| {
            let terms = ReportTerms { now: Instant(now), limit: &limit, nodes: 2, pressing: false };
            let due = window.is_due(&terms, open);
            if due {
                window.mark_reported(terms.now, open);
            }
            due
        };
        for told_open in [false, true] {
            let mut window = WindowUsage { own: count(50, 0), ..WindowUsage::default() };
            assert!(tells(&mut window, 1_000_000, true));
            assert!(tells(&mut window, 1_100_000, false) && tells(&mut window, 1_200_000, false));
            window.own = count(60, 0);
            assert!(!told_open || tells(&mut window, 1_500_000, true));
            assert_eq!((0..9).filter(|_| tells(&mut window, 2_000_000, false)).count(), 3);
            window.own = count(60, 1);
            assert_eq!((0..9).filter(|_| tells(&mut window, 2_000_000, false)).count(), 3);
        }
    }

    #[test]
    fn a_window_remembers_a_bounded_number_of_nodes() {
        let mut history = History::default();
        for origin in 0..5_000 {
            history.merge(PeerIndex(origin), AT, count(1, 0), 10_000, true);
        }
        assert_eq!(history.get(AT).map(WindowUsage::peers), Some(4_096));
    }
}
