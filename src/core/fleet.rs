//! What a node knows of its fleet, and its part of a limit while the store is away (`docs/concepts/fleet.md`).
//!
//! Pure arithmetic. All nodes that lose the store together never get more than 95 % of a limit, however the fleet is
//! partitioned: what each has admitted is divided by the limit itself, and what nobody has used is shared out only by
//! nodes that have heard from all others. Called by `leased/peers.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::mutant::{Mutant, on};
use super::share::{SAFE_PPM, WHOLE};
use super::time::{Instant, Micros};
use super::usage::PeerIndex;

/// The part of what all nodes may admit that is divided in proportion to what each has admitted, in millionths. The
/// rest is divided equally, so that a node to which clients move has something.
const FOLLOWING: u64 = 950_000;

/// The fleet as one node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetView {
    /// Nodes that live, this one among them; at least 1.
    pub live: u32,
    /// The most nodes that were live at once in the last ten minutes, without those that have announced that they
    /// left.
    pub largest: u32,
    /// This node has looked for others for long enough to have found them.
    pub has_looked: bool,
    /// The time at which `has_looked` becomes true; `None` before this node looks for others.
    pub looks_until: Option<Instant>,
    /// Other nodes were found, and none has come, gone or been missed for a while.
    pub is_steady: bool,
    /// All reports that other nodes sent before this time were received; `None` before this node has a view of the
    /// fleet.
    pub heard: Option<Instant>,
    /// Time between two rounds of gossip.
    pub round: Micros,
}

/// What is known of the last windows of a limit whose counts are final, in tokens. Each number is the least favourable
/// of all these windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastUsage {
    /// What this node admitted in a window.
    pub own: u64,
    /// What all nodes together admitted, and how many use the key; `None` if some node was not heard from.
    pub fleet: Option<(u64, u32)>,
    /// How many nodes use the key, by the store's last count. If some nodes do not see each other, it is more than the
    /// fleet's own view.
    pub counted: u32,
}

impl FleetView {
    /// The view of a node that has not looked for others yet.
    pub const UNKNOWN: Self = Self {
        live: 1,
        largest: 1,
        has_looked: false,
        looks_until: None,
        is_steady: false,
        heard: None,
        round: Micros(200_000),
    };

    /// Whether no node is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.live >= self.largest
    }

    /// This node's part of a limit of `count` tokens, in millionths.
    #[must_use]
    pub fn part_ppm(&self, count: u64, settled: PastUsage) -> u64 {
        let ppm = |tokens: u64| (u128::from(tokens) * u128::from(WHOLE) / u128::from(count.max(1))) as u64;
        let own = ppm(settled.own.min(count));
        let unused = settled.fleet.map_or(0, |(all, nodes)| (WHOLE - ppm(all.min(count))) / u64::from(nodes.max(1)));
        let nodes =
            if on(Mutant::SmallFleetAssumed) { 1 } else { self.largest.max(self.live).max(settled.counted).max(1) };
        let followed = FOLLOWING * (own + unused) / WHOLE;
        SAFE_PPM * (followed + (WHOLE - FOLLOWING) / u64::from(nodes)) / WHOLE
    }
}

/// The tokens from which this node's share is computed, instead of the `own` tokens that it admitted in a past window,
/// in which all nodes together admitted `beyond` tokens more than the limit of `count`. The store lends no more than
/// the limit, so those tokens were admitted by nodes that had lost the store before this one, on shares that they still
/// have. Nodes that lose the store later divide what is left, each in proportion to what it admitted. Rounded down.
#[must_use]
pub fn beside_shares(count: u64, own: u64, beyond: u64) -> u64 {
    // The part of the limit that is divided by what nodes admitted; the rest is divided equally.
    let followed =
        u128::from(count) * u128::from(SAFE_PPM) / u128::from(WHOLE) * u128::from(FOLLOWING) / u128::from(WHOLE);
    let rest = followed.saturating_sub(beyond.into());
    (u128::from(own) * rest).checked_div(followed).map_or(0, |tokens| tokens as u64) // no more than `own`
}

/// After this time a node that looks for others has found all that can be found.
const LOOKING: Micros = Micros(5_000_000);

/// How long a view must not change to be steady. Shorter, and a fleet that still gathers is taken for small, so that nodes lease too much.
const STEADY: Micros = Micros(10_000_000);

/// How long a node that went away unannounced counts as one that may still admit: it may be cut off, and come back.
/// Longer, and the part of a killed node is unused for longer.
const MISSED_FOR: Micros = Micros(600_000_000);

/// The numbers of the last nodes that went away are kept, at most so many: more than a fleet and its recent members, so
/// that only invented names could exceed it.
const MOST_GONE: usize = 4_096;

/// Tracks the nodes of the fleet and when each was last heard from, and makes [`FleetView`]s. Knows no transport.
#[derive(Debug, Default)]
pub struct FleetTracker {
    next: u32,
    /// When this node first looked for others.
    began: Option<Instant>,
    /// When a node last came or went away.
    changed: Option<Instant>,
    peers: BTreeMap<(Arc<str>, u64), TrackedPeer>,
    /// Nodes that went away unannounced, by name, and when.
    missed: BTreeMap<Arc<str>, Instant>,
    /// For each node that went away: its incarnation, its number, and how many went before it.
    gone: BTreeMap<Arc<str>, (u64, PeerIndex, u64)>,
    /// How many nodes went away.
    departures: u64,
}

#[derive(Debug)]
struct TrackedPeer {
    origin: PeerIndex,
    heard: Instant,
}

impl FleetTracker {
    /// An incarnation of a peer is live. Returns its number. Names are unique, so it replaces a missed node with the
    /// same name.
    ///
    /// An incarnation that was given up and is found again gets its earlier number. Its reports are stored under that
    /// number; under another one, what it admitted in a window would count twice.
    pub fn joined(&mut self, now: Instant, name: &Arc<str>, incarnation: u64) -> PeerIndex {
        self.missed.remove(name);
        let Self { next, changed, gone, .. } = self;
        let peer = self.peers.entry((name.clone(), incarnation)).or_insert_with(|| {
            *changed = Some(now);
            let known = gone.remove(name).filter(|(before, ..)| *before == incarnation);
            let origin = known.map_or_else(
                || {
                    *next += 1;
                    PeerIndex(*next)
                },
                |(_, origin, _)| origin,
            );
            TrackedPeer { origin, heard: now }
        });
        peer.origin
    }

    /// A peer is no longer live. If it announced that it leaves, it has reported everything and admits nothing more.
    pub fn left(&mut self, now: Instant, name: &Arc<str>, incarnation: u64, in_order: bool) {
        let was = self.peers.remove(&(name.clone(), incarnation));
        self.changed = Some(now);
        if let Some(peer) = &was {
            self.keep_number(name, incarnation, peer.origin);
        }
        if was.is_some() && !in_order && !self.has(name) {
            self.missed.insert(name.clone(), now);
        }
    }

    /// Keeps the number of a node that goes away.
    fn keep_number(&mut self, name: &Arc<str>, incarnation: u64, origin: PeerIndex) {
        self.departures += 1;
        self.gone.insert(name.clone(), (incarnation, origin, self.departures));
        if self.gone.len() > MOST_GONE {
            let first = self.gone.iter().min_by_key(|(_, (.., departure))| *departure).map(|(name, _)| name.clone());
            first.map(|name| self.gone.remove(&name));
        }
    }

    /// Records that a frame came from a peer. Returns the peer's number, if it is known to be live.
    pub fn heard(&mut self, now: Instant, name: &Arc<str>, incarnation: u64) -> Option<PeerIndex> {
        let peer = self.peers.get_mut(&(name.clone(), incarnation))?;
        peer.heard = now;
        Some(peer.origin)
    }

    /// The fleet at `now`, when nodes report to each other every `round`.
    pub fn view(&mut self, now: Instant, round: Micros) -> FleetView {
        self.missed.retain(|_, since| now.since(*since) < MISSED_FOR);
        let live = self.peers.len() as u32 + 1;
        let heard = Some(self.peers.values().map(|peer| peer.heard).min().unwrap_or(now));
        let looks_until = *self.began.get_or_insert(now) + LOOKING;
        let has_looked = now >= looks_until;
        let has_met = self.next > 0;
        let is_steady = has_met && self.missed.is_empty() && now.since(*self.changed.get_or_insert(now)) >= STEADY;
        FleetView {
            live,
            largest: live + self.missed.len() as u32,
            has_looked,
            looks_until: Some(looks_until),
            is_steady,
            heard,
            round,
        }
    }

    /// All live peers.
    pub fn peers(&self) -> impl Iterator<Item = (&Arc<str>, u64, Instant)> {
        self.peers.iter().map(|((name, incarnation), peer)| (name, *incarnation, peer.heard))
    }

    fn has(&self, name: &Arc<str>) -> bool {
        self.peers.range((name.clone(), 0)..=(name.clone(), u64::MAX)).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Micros = Micros(200_000);

    /// Parts of 0 would be safe, too, so tests also want all parts together to be at least so many tenths of what may
    /// be admitted.
    const USED_TENTHS: u64 = 9;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn who_has_just_come_knows_nothing_of_its_part() {
        let mut tracker = FleetTracker::default();
        let start = Instant(1_000_000);
        assert!(!tracker.view(start, ROUND).has_looked);
        assert!(!tracker.view(start + Micros(4_999_999), ROUND).has_looked);
        assert!(tracker.view(start + LOOKING, ROUND).has_looked);
    }

    #[test]
    fn who_dies_is_missed_for_ten_minutes_and_who_leaves_is_not() {
        let mut tracker = FleetTracker::default();
        let start = Instant(1_000_000);
        tracker.joined(start, &name("a"), 1);
        tracker.joined(start, &name("b"), 1);
        assert_eq!((tracker.view(start, ROUND).live, tracker.view(start, ROUND).largest), (3, 3));
        tracker.left(start, &name("a"), 1, false);
        tracker.left(start, &name("b"), 1, true);
        assert_eq!((tracker.view(start, ROUND).live, tracker.view(start, ROUND).largest), (1, 2));
        let later = start + MISSED_FOR;
        assert_eq!((tracker.view(later, ROUND).live, tracker.view(later, ROUND).largest), (1, 1));
    }

    #[test]
    fn who_comes_back_under_its_name_is_missed_no_more() {
        let mut tracker = FleetTracker::default();
        let old = tracker.joined(Instant(1), &name("a"), 1);
        let new = tracker.joined(Instant(2), &name("a"), 2);
        assert_ne!(old, new);
        tracker.left(Instant(3), &name("a"), 1, false);
        assert_eq!((tracker.view(Instant(3), ROUND).live, tracker.view(Instant(3), ROUND).largest), (2, 2));
    }

    #[test]
    fn who_was_given_up_and_is_found_again_has_its_number_and_another_incarnation_has_its_own() {
        let mut tracker = FleetTracker::default();
        let [a, b] = ["a", "b"].map(|text| tracker.joined(Instant(1), &name(text), 1));
        for text in ["a", "b"] {
            tracker.left(Instant(2), &name(text), 1, false);
        }
        let newer = tracker.joined(Instant(3), &name("b"), 2);
        assert_eq!(tracker.joined(Instant(3), &name("a"), 1), a);
        assert!(![a, b].contains(&newer));
        assert_eq!((tracker.view(Instant(3), ROUND).live, tracker.view(Instant(3), ROUND).largest), (3, 3));
    }

    #[test]
    fn numbers_are_kept_of_those_that_went_last() {
        let mut tracker = FleetTracker::default();
        let names: Vec<_> = (0..=MOST_GONE).map(|number| name(&number.to_string())).collect();
        let numbers: Vec<_> = names.iter().map(|name| tracker.joined(Instant(1), name, 1)).collect();
        names.iter().for_each(|name| tracker.left(Instant(2), name, 1, true));
        assert_eq!(tracker.gone.len(), MOST_GONE);
        assert_eq!(tracker.joined(Instant(3), &names[1], 1), numbers[1]);
        assert_ne!(tracker.joined(Instant(3), &names[0], 1), numbers[0]);
    }

    #[test]
    fn a_fleet_is_heard_when_its_quietest_member_is() {
        let mut tracker = FleetTracker::default();
        tracker.joined(Instant(1), &name("a"), 1);
        tracker.joined(Instant(1), &name("b"), 1);
        tracker.heard(Instant(9), &name("a"), 1);
        assert_eq!(tracker.view(Instant(10), ROUND).heard, Some(Instant(1)));
        tracker.heard(Instant(8), &name("b"), 1);
        assert_eq!(tracker.view(Instant(10), ROUND).heard, Some(Instant(8)));
        assert_eq!(tracker.heard(Instant(9), &name("c"), 1), None);
    }

    fn view(live: u32, largest: u32) -> FleetView {
        FleetView { live, largest, has_looked: true, ..FleetView::UNKNOWN }
    }

    /// A regression: of two nodes that used all that they were lent, one lost the store ten seconds before the other.
    /// Together they admitted 143 of 100 tokens on their shares for as long as both were without the store.
    #[test]
    fn who_loses_the_store_after_others_has_what_their_shares_leave() {
        for (nodes, cut) in [(2, 1), (10, 1), (10, 5), (10, 9)] {
            for count in [100, 1_000, 999_999] {
                let tokens = |ppm: u64| count * ppm / WHOLE;
                let part = |own| {
                    tokens(
                        view(nodes, nodes)
                            .part_ppm(count, PastUsage { own, fleet: Some((count, nodes)), counted: nodes }),
                    )
                };
                let shares = part(count / u64::from(nodes)) * cut;
                // Meanwhile the store has lent all of the limit to the other nodes.
                let own = count / (u64::from(nodes) - cut);
                let all = shares + part(beside_shares(count, own, shares)) * (u64::from(nodes) - cut);
                let most = count * SAFE_PPM / WHOLE;
                // Each part is rounded down.
                let least = (most * USED_TENTHS / 10).saturating_sub(nodes.into());
                assert!((least..=most).contains(&all), "{cut} of {nodes}: {all} of {count}");
            }
        }
        assert_eq!(beside_shares(100, 40, 0), 40);
        assert_eq!(beside_shares(0, 0, 0), 0);
    }

    #[test]
    fn a_lone_node_gets_all_but_the_margin() {
        assert_eq!(view(1, 1).part_ppm(1_000, PastUsage { own: 0, fleet: Some((0, 1)), counted: 1 }), 950_000);
    }

    #[test]
    fn parts_follow_what_was_used_and_share_out_the_rest() {
        let part = |own| view(4, 4).part_ppm(1_000, PastUsage { own, fleet: Some((600, 4)), counted: 4 });
        assert_eq!([part(500), part(100), part(0)], [553_375, 192_375, 102_125]);
        assert_eq!(part(500) + part(100) + 2 * part(0), 950_000);
    }

    #[test]
    fn who_has_not_heard_everybody_gets_what_it_used() {
        let part = view(3, 4).part_ppm(1_000, PastUsage { own: 400, fleet: None, counted: 1 });
        assert_eq!(part, 950_000 * (380_000 + 12_500) / 1_000_000);
    }

    /// Checks all partitions of the fleet. In each, a node either divides by the limit, or knows what all nodes have
    /// used.
    #[test]
    fn parts_of_all_nodes_never_exceed_the_margin() {
        let used = [0, 1, 17, 250, 300, 432];
        let all: u64 = used.iter().sum();
        for torn in 0..1_u32 << used.len() {
            let parts = used.iter().enumerate().map(|(node, own)| {
                let heard = torn & (1 << node) != 0;
                let fleet = heard.then_some((all, used.len() as u32));
                view(if heard { 6 } else { 2 }, 6).part_ppm(1_000, PastUsage { own: *own, fleet, counted: 1 })
            });
            assert!(parts.sum::<u64>() <= SAFE_PPM);
        }
    }

    #[test]
    fn nodes_that_do_not_see_each_other_go_by_how_many_the_store_has_counted() {
        let part = |own| view(1, 1).part_ppm(1_000, PastUsage { own, fleet: None, counted: 10 });
        assert!((0..10).map(|_| part(100)).sum::<u64>() <= SAFE_PPM);
    }
}
