//! Which peer a node asks for tokens of a key before it asks the store, or when it cannot ask it.
//!
//! Each key has an owner among the nodes of a fleet: the one whose name has the highest hash together with the key (rendezvous
//! hashing, Thaler and Ravishankar 1998). Nobody elects it and nobody has to agree on it. Two nodes that both take themselves
//! for the owner both lease from the store, which counts what it lends to either; so a fleet view that is late or wrong costs
//! calls and never a token.
//!
//! A peer that was late three times in a row, cannot reach the store, or leaves, is left out for a second, for all
//! keys; a peer that has other limits for a rule is left out for keys of that rule. Each shard of a node keeps this by
//! itself. Knows no transport. Called by `leased/intent.rs` and `leased/lending.rs`.

use super::ask::Refusal;
use super::key::Digest;
use super::mutant::{Mutant, on};
use super::rule::Rule;
use super::time::{Due, Instant, Micros};
use super::usage::PeerIndex;

/// Most nodes that own keys: of more candidates, those with the lowest hashes of their names. Every node holds a connection to
/// each owner that it asks, so this bounds its connections in a large fleet.
const MOST_OWNERS: usize = 64;

/// A peer is left out when so many of its answers in a row were late. One may be late by chance, on a busy machine; each more
/// that is allowed keeps another check waiting in vain for a peer that is gone.
const LATE: u8 = 3;

/// How long a peer is left out. Longer, and one that is back is found later; shorter, and more checks wait for one that is not.
const LEFT_OUT: Micros = Micros(1_000_000);

/// The pause between two trials in a shard, for all keys and peers together. When no node reaches the store, all peers
/// refuse, and this bounds how many are asked. In a fleet with more nodes than owners it is longer in the same
/// proportion, so that an owner is not asked more often than in a small fleet.
const TRIAL_PAUSE: Micros = Micros(100_000);

/// A peer without a store that so many times in a row had nothing set aside to lend is left out. With fewer, a peer
/// that has nothing of some keys would not be asked for others; with more, a fleet in which nobody has anything would
/// ask more in vain.
const FRUITLESS: u64 = 16;

/// A node that had something set aside of some key answers asks for so long with an empty loan instead of a refusal.
/// That is longer than the windows of most policies, so that peers go on asking it in the next window, and short enough
/// that they do not ask long in vain.
const HAS_ASIDE: Micros = Micros(5_000_000);

/// Most rules for which it is remembered that a peer goes by other limits. Then the earliest is forgotten, which costs an ask that
/// is refused once more.
const MOST_RULES: usize = 64;

/// A peer's answer is awaited for at least this long. Within a data centre it takes less than a millisecond; the rest is for a peer
/// that was not run for a moment, or asks the store first.
const LEAST_PATIENCE: Micros = Micros(5_000);

/// A peer's answer is awaited for so many times as long as its slowest recent answer took. Fewer, and more tokens are
/// lost with answers that come too late; more, and checks wait longer for a peer that is gone.
const PATIENCE: u64 = 4;

/// The longest time that a peer's answers are assumed to take. Each late answer doubles the assumed time, so that a
/// peer that is far away gets more; without a bound, a peer that never answers would be awaited for ever longer.
const LONGEST: Micros = Micros(1_000_000);

/// With each quicker answer, the time of a peer's slowest recent answer is reduced by this fraction. Faster, and a peer
/// of which only some answers are slow is given up too early; slower, and one that was slow once is waited for longer.
const FORGET_PART: u64 = 8;

/// With each slower answer, the time of a peer's quickest answer is increased by this fraction. Faster, and a peer that
/// answers only some asks without a call to the store gets too little time for the others; slower, and more loans come
/// too late from a peer that has become more distant.
const RISE_PART: u64 = 64;

/// After each late answer a peer is assumed to take so many times as long. With less, a peer that is far away has more
/// late answers, whose tokens are lost, until it is awaited for long enough.
const LATE_TIMES: u64 = 2;

/// A peer whose answer is late is assumed to take at least this fraction of the time for which it was awaited. So the
/// next is awaited for twice as long, [`PATIENCE`] times half of it.
const LATE_PART: u64 = 2;

/// A node that may own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The peer, as the fleet room numbers it.
    pub peer: PeerIndex,
    /// The name under which it owns keys.
    pub name: OwnerName,
}

/// What makes a node an owner, and of which keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerName {
    /// The hash of the node's name: see [`name_hash`].
    pub hash: u64,
    /// The node says `fleet.owner = "always"`: it owns keys in a large fleet, too, whatever its hash is.
    pub is_always: bool,
}

impl OwnerName {
    /// The order of nodes, of which the first [`MOST_OWNERS`] own keys.
    fn place(self) -> (bool, u64) {
        (!self.is_always, self.hash)
    }
}

/// Who owns a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// This node itself.
    This,
    /// A peer.
    Peer(PeerIndex),
}

/// The hash of a node's name by which keys are assigned.
#[must_use]
pub fn name_hash(name: &str) -> u64 {
    Digest::of("", name.as_bytes()).0 as u64
}

/// Who may be asked, and how they answer.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The hash of this node's own name; `None`: it owns nothing.
    own: Option<u64>,
    peers: Vec<Peer>,
    /// No trial is made before this time.
    next_trial: Instant,
    /// How many nodes there are for each owner, rounded up.
    crowd: u64,
    /// When this node last had something set aside for it, of any key.
    has_aside: Option<Instant>,
}

#[derive(Debug)]
struct Peer {
    candidate: Candidate,
    /// How long its slowest recent answer took.
    slowest: Micros,
    /// How long its quickest answer took, which is little more than the round trip; zero before its first answer.
    quickest: Micros,
    /// How many answers in a row were late.
    late: u8,
    /// When its last loan came.
    lent: Option<Instant>,
    /// Until when it is left out.
    left_out: Due,
    /// It has refused its last ask because it cannot reach the store, either.
    has_no_store: bool,
    /// It lends: it has its store, or has lent of what is set aside for it, and has not been left out since for having
    /// nothing. `fruitless` counts its empty loans since it last lent something.
    lends: bool,
    fruitless: u64,
    /// Fingerprints of rules that it does not share, and until when each is remembered.
    other_rules: Vec<(u64, Due)>,
}

impl Peer {
    fn new(candidate: Candidate) -> Self {
        Self {
            candidate,
            slowest: Micros::ZERO,
            quickest: Micros::ZERO,
            late: 0,
            lent: None,
            left_out: Due::AT_ONCE,
            has_no_store: false,
            lends: false,
            fruitless: 0,
            other_rules: Vec::new(),
        }
    }

    /// Whether it may be asked about a key under this rule.
    fn is_open(&self, now: Instant, rule: &Rule) -> bool {
        let is_other = || {
            let rule = rule.fingerprint();
            self.other_rules.iter().any(|(other, until)| *other == rule && !until.has_come(now))
        };
        self.left_out.has_come(now) && (self.other_rules.is_empty() || !is_other())
    }

    /// Records that it has other limits than those of this rule.
    fn note_other_rule(&mut self, now: Instant, rule: u64) {
        if on(Mutant::OtherRuleForgotten) {
            return;
        }
        self.other_rules.retain(|(other, until)| *other != rule && !until.has_come(now));
        if self.other_rules.len() == MOST_RULES {
            self.other_rules.remove(0);
        }
        self.other_rules.push((rule, Due::at(now + LEFT_OUT)));
    }
}

impl Owners {
    /// Sets the nodes that may own keys beside this node, which is `own`. What is known of nodes that stay is kept.
    pub(super) fn update(&mut self, own: OwnerName, candidates: &[Candidate]) {
        let mut places: Vec<_> =
            candidates.iter().map(|candidate| candidate.name.place()).chain([own.place()]).collect();
        places.sort_unstable();
        let last = places[..places.len().min(MOST_OWNERS)].last().copied().unwrap_or(own.place());
        self.own = Some(own.hash).filter(|_| own.place() <= last);
        self.crowd = places.len().div_ceil(MOST_OWNERS) as u64;
        let mut before = std::mem::take(&mut self.peers);
        let owners = candidates.iter().filter(|candidate| candidate.name.place() <= last);
        self.peers = owners.map(|candidate| take_or_new(&mut before, *candidate)).collect();
    }

    /// Whether there is a peer that could be asked.
    pub(super) fn are_there(&self) -> bool {
        !self.peers.is_empty()
    }

    /// The owner of a key under a rule, among those that are not left out; `None`: this node itself.
    pub(super) fn owner(&self, now: Instant, key: Digest, rule: &Rule) -> Option<PeerIndex> {
        let best = self.best(now, key, rule, |_| true)?;
        let is_other = self.own.is_none_or(|own| rank(key, best.name.hash) > rank(key, own));
        is_other.then_some(best.peer)
    }

    /// The two peers that rank highest for a key, among those that are not left out: its owner and the next one, or the
    /// two after this node.
    pub(super) fn first_two(&self, now: Instant, key: Digest, rule: &Rule) -> impl Iterator<Item = PeerIndex> {
        let first = self.best(now, key, rule, |_| true).map(|best| best.peer);
        let second = self.best(now, key, rule, |peer| Some(peer.candidate.peer) != first).map(|best| best.peer);
        first.into_iter().chain(second)
    }

    /// The peer that a check waits for while this node cannot ask the store for its key: the highest-ranking one. Peers
    /// that have said that they cannot reach the store, either, are left to `trial`, because the check would wait for
    /// them in vain.
    ///
    /// Under entitlements, peers without a store may lend what is set aside for them; `may_lend` says which of them may
    /// for this key. Peers that have lent before are asked first, because in a fleet that has grown since the store was
    /// lost most have nothing.
    pub(super) fn relay(
        &self,
        now: Instant,
        key: Digest,
        rule: &Rule,
        may_lend: impl Fn(PeerIndex) -> bool,
    ) -> Option<PeerIndex> {
        let reaches = |peer: &&Peer| !peer.has_no_store && may_lend(peer.candidate.peer);
        if rule.is_entitled_window() {
            let lends = |peer: &&Peer| peer.lends && reaches(peer);
            if let Some(best) = self.best(now, key, rule, lends) {
                return Some(best.peer);
            }
        }
        self.best(now, key, rule, reaches).map(|best| best.peer)
    }

    /// The peer that is asked by a trial, which no check waits for, where `relay` names none: of the peers without a
    /// store the one whose refusal is oldest, as it may reach the store again. However many keys and such peers there
    /// are, there are ten trials a second, or fewer in a large fleet, and a peer that refuses again is left out for a
    /// second.
    pub(super) fn trial(&mut self, now: Instant, rule: &Rule) -> Option<PeerIndex> {
        let is_too_soon = now < self.next_trial && !on(Mutant::TriesWithoutPause);
        if is_too_soon || on(Mutant::NeverTriedAgain) {
            return None;
        }
        let open = self.peers.iter().filter(|peer| peer.is_open(now, rule) || on(Mutant::TriedAgainAtOnce));
        let tried = open
            .filter(|peer| peer.has_no_store)
            .min_by_key(|peer| (peer.left_out, peer.candidate.peer))?
            .candidate
            .peer;
        let crowd = if on(Mutant::LargeFleetTriesAsOften) { 1 } else { self.crowd };
        self.next_trial = now + Micros(TRIAL_PAUSE.0 * crowd);
        Some(tried)
    }

    fn best(&self, now: Instant, key: Digest, rule: &Rule, may_be: impl Fn(&&Peer) -> bool) -> Option<Candidate> {
        let there = self.peers.iter().filter(|peer| peer.is_open(now, rule)).filter(may_be).map(|peer| peer.candidate);
        there.max_by_key(|candidate| (rank(key, candidate.name.hash), candidate.peer))
    }

    /// How long a peer's answer is worth waiting for.
    pub(super) fn patience(&self, peer: PeerIndex) -> Micros {
        let slowest = self.get(peer).map_or(Micros::ZERO, |peer| peer.slowest);
        let slowest = if on(Mutant::WaitsForPeersAlone) { LONGEST } else { slowest };
        Micros(slowest.0.saturating_mul(PATIENCE)).max(LEAST_PATIENCE)
    }

    /// How long a peer may take to answer after it has received an ask whose answer is `awaited` for so long from its
    /// departure; zero if even its quickest answer would come too late. Tokens that it lends later than that would be
    /// lost. A peer that has not answered yet is assumed to be as far away as the nearest one that has; otherwise a
    /// check that has little time left would ask one peer after another in vain.
    pub(super) fn time_to_answer(&self, peer: PeerIndex, awaited: Micros) -> Micros {
        let known = |peer: &Peer| Some(peer.quickest).filter(|quickest| *quickest > Micros::ZERO);
        let nearest = || self.peers.iter().filter_map(known).min();
        let quickest = self.get(peer).and_then(known).or_else(nearest).unwrap_or(Micros::ZERO);
        let way = if on(Mutant::ToldWithoutItsWay) { Micros::ZERO } else { quickest };
        Micros(awaited.0.saturating_sub(way.0))
    }

    /// Records that a peer has answered after `trip`.
    pub(super) fn note_answer(&mut self, peer: PeerIndex, trip: Micros) {
        let Some(peer) = self.get_mut(peer) else { return };
        peer.slowest = trip.max(Micros(peer.slowest.0 - peer.slowest.0 / FORGET_PART));
        let risen = peer.quickest.0 + peer.quickest.0.div_ceil(RISE_PART);
        peer.quickest = if peer.quickest == Micros::ZERO { trip } else { trip.min(Micros(risen)) };
        peer.late = 0;
    }

    /// Records a loan, perhaps of no tokens, from a peer that reaches its store. It is no longer left out.
    pub(super) fn note_loan(&mut self, now: Instant, peer: PeerIndex) {
        let Some(peer) = self.get_mut(peer) else { return };
        (peer.lent, peer.left_out, peer.has_no_store) = (Some(now), Due::AT_ONCE, false);
        (peer.lends, peer.fruitless) = (true, 0);
    }

    /// Records that this node has something set aside for it, of some key.
    pub(super) fn note_own_aside(&mut self, now: Instant) {
        self.has_aside = Some(now);
    }

    /// Whether it had something set aside within [`HAS_ASIDE`], so that peers should go on asking it.
    pub(super) fn had_own_aside(&self, now: Instant) -> bool {
        self.has_aside.is_some_and(|at| now.since(at) < HAS_ASIDE)
    }

    /// Records a loan of so many tokens from a peer that cannot reach the store, either, and lends what is set aside
    /// for it. After [`FRUITLESS`] empty loans in a row it is left out; in a large fleet after fewer, because more
    /// nodes ask it in vain there.
    pub(super) fn note_aside(&mut self, now: Instant, peer: PeerIndex, tokens: u64) {
        let most = FRUITLESS / self.crowd.max(1);
        let Some(peer) = self.get_mut(peer) else { return };
        peer.lent = Some(now);
        if tokens > 0 {
            (peer.left_out, peer.has_no_store, peer.lends, peer.fruitless) = (Due::AT_ONCE, false, true, 0);
            return;
        }
        peer.fruitless += 1;
        if peer.has_no_store || peer.fruitless >= most.max(1) {
            (peer.left_out, peer.has_no_store, peer.lends) = (Due::at(now + LEFT_OUT), true, false);
        }
    }

    /// Records that a peer has refused an ask under the rule with this fingerprint.
    pub(super) fn note_refusal(&mut self, now: Instant, peer: PeerIndex, rule: u64, refusal: Refusal) {
        let again = now + LEFT_OUT;
        let Some(peer) = self.get_mut(peer) else { return };
        peer.has_no_store = refusal == Refusal::NoStore && !on(Mutant::NoStoreForgotten);
        peer.lends &= refusal != Refusal::NoStore;
        if refusal.lasts() {
            peer.left_out = Due::at(again);
        } else if refusal == Refusal::OtherRule {
            peer.note_other_rule(now, rule);
        }
    }

    /// Records that a peer has not answered an ask, which left at `sent`, within `patience`.
    pub(super) fn note_late(&mut self, now: Instant, peer: PeerIndex, sent: Instant, patience: Micros) {
        let Some(peer) = self.get_mut(peer) else { return };
        // The peer may be further away than was assumed.
        let slowest = peer.slowest.0.saturating_mul(LATE_TIMES).max(patience.0 / LATE_PART);
        peer.slowest = Micros(slowest).min(LONGEST);
        // The peer has lent something since this ask was sent, so it is there, and only this ask was lost on its way,
        // as happens while a partition ends.
        if peer.lent > Some(sent) {
            return;
        }
        peer.late = (peer.late + 1).min(LATE);
        if peer.late == LATE && !on(Mutant::LateForgotten) {
            peer.left_out = Due::at(now + LEFT_OUT);
        }
    }

    fn get(&self, origin: PeerIndex) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.candidate.peer == origin)
    }

    fn get_mut(&mut self, origin: PeerIndex) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.candidate.peer == origin)
    }
}

fn take_or_new(before: &mut Vec<Peer>, candidate: Candidate) -> Peer {
    let known = before.iter().position(|peer| peer.candidate == candidate);
    known.map_or_else(|| Peer::new(candidate), |at| before.swap_remove(at))
}

/// A node's rank for a key: the finalizer of splitmix64 over both (Steele, Lea, Flood, 2014).
fn rank(key: Digest, name: u64) -> u64 {
    let mut bits = (key.0 as u64) ^ (key.0 >> 64) as u64 ^ name;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::core::limit::Limit;
    use crate::core::rule::OnStoreLoss;

    const NOW: Instant = Instant(10_000_000);

    /// A node's name; one that begins with `!` owns keys in any fleet.
    fn named(name: &str) -> OwnerName {
        OwnerName { hash: name_hash(name), is_always: name.starts_with('!') }
    }

    fn candidates(names: &[&str]) -> Vec<Candidate> {
        let numbered = names.iter().enumerate();
        numbered.map(|(index, name)| Candidate { peer: PeerIndex(index as u32), name: named(name) }).collect()
    }

    fn owners(own: &str, others: &[&str]) -> Owners {
        let mut owners = Owners::default();
        owners.update(named(own), &candidates(others));
        owners
    }

    fn rule(limit: &str) -> Rule {
        Rule::of("p", &[Limit::parse(limit).expect("a limit")])
    }

    fn owner(owners: &Owners, key: Digest) -> Option<PeerIndex> {
        owners.owner(NOW, key, &rule("9/1s"))
    }

    fn relay(owners: &Owners, now: Instant, key: Digest) -> Option<PeerIndex> {
        owners.relay(now, key, &rule("9/1s"), |_| true)
    }

    fn keys() -> impl Iterator<Item = Digest> {
        (0..1_000_u32).map(|key| Digest::of("p", &key.to_le_bytes()))
    }

    #[test]
    fn all_nodes_agree_on_an_owner_and_each_owns_its_part() {
        let (a, b, c) = (owners("a", &["b", "c"]), owners("b", &["a", "c"]), owners("c", &["a", "b"]));
        let mut owned = [0; 3];
        for key in keys() {
            let by_a = owner(&a, key).map_or("a", |peer| ["b", "c"][peer.0 as usize]);
            let by_b = owner(&b, key).map_or("b", |peer| ["a", "c"][peer.0 as usize]);
            let by_c = owner(&c, key).map_or("c", |peer| ["a", "b"][peer.0 as usize]);
            assert!(by_a == by_b && by_b == by_c);
            owned[usize::from(by_a.as_bytes()[0] - b'a')] += 1;
        }
        assert!(owned.iter().all(|owned| (280..390).contains(owned)), "{owned:?}");
    }

    #[test]
    fn a_key_changes_hands_only_with_its_owner() {
        let (three, two) = (owners("a", &["b", "c"]), owners("a", &["b"]));
        let moved = keys().filter(|key| owner(&three, *key) != owner(&two, *key));
        assert!(moved.into_iter().all(|key| owner(&three, key) == Some(PeerIndex(1))));
    }

    #[test]
    fn of_a_large_fleet_few_own_keys() {
        let names: Vec<String> = (0..200).map(|node| format!("n{node}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let fleet: Vec<Owners> =
            (0..names.len()).map(|own| owners(names[own], &[&names[..own], &names[own + 1..]].concat())).collect();
        assert_eq!(fleet.iter().filter(|owners| owners.own.is_some()).count(), MOST_OWNERS);
        assert!(fleet.iter().all(|owners| owners.peers.len() + usize::from(owners.own.is_some()) == MOST_OWNERS));
    }

    #[test]
    fn of_a_large_fleet_those_own_keys_that_always_do() {
        let names: Vec<String> = (0..200).map(|node| format!("n{node}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).chain(["!a", "!b"]).collect();
        let owners = owners("!own", &names);
        assert!(owners.own.is_some());
        let always = owners.peers.iter().filter(|peer| peer.candidate.name.is_always);
        assert_eq!((owners.peers.len() + 1, always.count()), (MOST_OWNERS, 2));
    }

    #[test]
    fn who_goes_by_other_limits_is_left_out_for_keys_of_those_alone() {
        let mut owners = owners("a", &["b"]);
        let (key, peer, other) = (Digest(7), PeerIndex(0), rule("10/1s"));
        owners.note_refusal(NOW, peer, rule("9/1s").fingerprint(), Refusal::OtherRule);
        assert_eq!(relay(&owners, NOW, key), None);
        assert_eq!(owners.relay(NOW, key, &other, |_| true), Some(peer));
        assert_eq!(relay(&owners, NOW + LEFT_OUT, key), Some(peer));
        (0..1_000).for_each(|rule| owners.note_refusal(NOW, peer, rule, Refusal::OtherRule));
        assert_eq!(owners.peers[0].other_rules.len(), MOST_RULES);
    }

    #[test]
    fn who_is_alone_or_asks_nobody_has_no_owner_to_ask() {
        assert!(keys().all(|key| owner(&owners("a", &[]), key).is_none()));
        assert!(keys().all(|key| relay(&Owners::default(), NOW, key).is_none()));
    }

    #[test]
    fn who_is_late_three_times_or_would_refuse_again_is_left_out_for_a_second() {
        let mut owners = owners("a", &["b"]);
        let (key, peer) = (Digest(7), PeerIndex(0));
        (0..2).for_each(|_| owners.note_late(NOW, peer, NOW, LEAST_PATIENCE));
        assert_eq!(relay(&owners, NOW, key), Some(peer));
        owners.note_late(NOW, peer, NOW, LEAST_PATIENCE);
        assert_eq!(relay(&owners, NOW, key), None);
        assert_eq!(relay(&owners, NOW + LEFT_OUT, key), Some(peer));
        owners.note_refusal(NOW + LEFT_OUT, peer, 1, Refusal::Busy);
        assert_eq!(relay(&owners, NOW + LEFT_OUT, key), Some(peer));
        owners.note_refusal(NOW + LEFT_OUT, peer, 1, Refusal::NoStore);
        assert_eq!(relay(&owners, NOW + LEFT_OUT, key), None);
    }

    #[test]
    fn an_owner_is_tried_no_more_often_by_a_large_fleet_than_by_a_small_one() {
        let rule = rule("9/1s");
        for (others, pauses) in [(MOST_OWNERS - 1, 1), (MOST_OWNERS, 2), (999, 16)] {
            let names: Vec<String> = (0..others).map(|node| format!("n{node}")).collect();
            let mut owners = owners("own", &names.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(owners.trial(NOW, &rule), None, "of those whom checks wait for nobody is tried");
            owners.peers.iter_mut().for_each(|peer| peer.has_no_store = true);
            assert!(owners.trial(NOW, &rule).is_some());
            let pause = TRIAL_PAUSE.0 * pauses;
            assert_eq!(owners.trial(NOW + Micros(pause - 1), &rule), None, "beside {others} others");
            assert!(owners.trial(NOW + Micros(pause), &rule).is_some(), "beside {others} others");
        }
    }

    #[test]
    fn those_who_reach_no_store_are_tried_in_turns_and_each_once_a_second() {
        let mut owners = owners("a", &["b", "c", "d"]);
        let (key, rule, peers) = (Digest(7), rule("9/1s"), [PeerIndex(0), PeerIndex(1), PeerIndex(2)]);
        let refuse = |owners: &mut Owners, at, peer| owners.note_refusal(at, peer, 1, Refusal::NoStore);
        peers.iter().for_each(|peer| refuse(&mut owners, NOW, *peer));
        assert_eq!(owners.trial(NOW + Micros(LEFT_OUT.0 - 1), &rule), None);
        let mut now = NOW + LEFT_OUT;
        for peer in peers {
            assert_eq!(relay(&owners, now, key), None, "no check waits for those");
            assert_eq!(owners.trial(now, &rule), Some(peer), "who was asked longest ago");
            refuse(&mut owners, now, peer);
            assert_eq!(owners.trial(now + Micros(TRIAL_PAUSE.0 - 1), &rule), None, "and nobody else so soon");
            now = now + TRIAL_PAUSE;
        }
        assert_eq!(owners.trial(now, &rule), None, "all have refused within a second");
        owners.note_loan(now, peers[1]);
        assert_eq!(relay(&owners, now, key), Some(peers[1]), "who lends is asked as ever");
        // This node reaches the store, so it asks the owner of each key.
        let all = keys().filter_map(|key| owners.owner(now + LEFT_OUT, key, &rule));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), 3);
    }

    #[test]
    fn of_what_is_set_aside_whoever_has_lent_is_asked_first_and_whoever_has_nothing_is_tried() {
        let entitled = Rule { on_store_loss: OnStoreLoss::Entitled, ..rule("9/1s fixed") };
        let mut owners = owners("a", &["b", "c", "d"]);
        let relay = |owners: &Owners, dry: &[PeerIndex]| {
            keys()
                .filter_map(|key| owners.relay(NOW, key, &entitled, |peer| !dry.contains(&peer)))
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(relay(&owners, &[]).len(), 3);
        let (b, c) = (PeerIndex(0), PeerIndex(1));
        owners.note_aside(NOW, b, 1);
        assert_eq!(relay(&owners, &[]), [b].into());
        assert!(!relay(&owners, &[b]).contains(&b), "it has nothing of these keys now");
        (1..FRUITLESS).for_each(|_| owners.note_aside(NOW, b, 0));
        assert_eq!(relay(&owners, &[]), [b].into());
        owners.note_aside(NOW, b, 0);
        assert!(!relay(&owners, &[]).contains(&b), "it has had nothing too often");
        assert_eq!(owners.trial(NOW + LEFT_OUT, &entitled), Some(b));
        owners.note_aside(NOW + LEFT_OUT, b, 0);
        assert_eq!(owners.trial(NOW + LEFT_OUT + TRIAL_PAUSE, &entitled), None);
        owners.note_aside(NOW + LEFT_OUT, b, 1);
        owners.note_refusal(NOW, c, 1, Refusal::NoStore);
        assert_eq!(relay(&owners, &[]), [b].into(), "it has some again");
    }

    #[test]
    fn who_lends_is_asked_again_whatever_was_lost_before() {
        let mut owners = owners("a", &["b"]);
        let (key, peer, soon) = (Digest(7), PeerIndex(0), NOW + LEAST_PATIENCE);
        (0..3).for_each(|_| owners.note_late(NOW, peer, NOW, LEAST_PATIENCE));
        assert_eq!(relay(&owners, NOW, key), None);
        owners.note_loan(soon, peer);
        assert_eq!(relay(&owners, soon, key), Some(peer));
        (0..5).for_each(|_| owners.note_late(soon, peer, NOW, LEAST_PATIENCE));
        assert_eq!(relay(&owners, soon, key), Some(peer), "those had left before");
        (0..3).for_each(|_| owners.note_late(soon, peer, soon, LEAST_PATIENCE));
        assert_eq!(relay(&owners, soon, key), None);
    }

    /// The round trip to the peer, 10 ms at first, is subtracted from 25 ms; it follows when the peer becomes nearer or
    /// more distant.
    #[test]
    fn a_peer_is_told_of_the_time_that_is_left_when_its_answer_has_had_its_way() {
        let mut owners = owners("a", &["b", "c"]);
        let (peer, other, awaited) = (PeerIndex(0), PeerIndex(1), Micros(25_000));
        assert_eq!(owners.time_to_answer(peer, awaited), awaited, "nothing is known of it");
        owners.note_answer(peer, Micros(10_000));
        assert_eq!([peer, other].map(|peer| owners.time_to_answer(peer, awaited)), [Micros(15_000); 2]);
        assert_eq!(owners.time_to_answer(peer, Micros(9_000)), Micros(0), "its answer would come too late");
        owners.note_answer(peer, Micros(24_000));
        let time = owners.time_to_answer(peer, awaited);
        assert!((Micros(14_800)..Micros(15_000)).contains(&time), "it has called the store: {time:?}");
        owners.note_answer(peer, Micros(2_000));
        assert_eq!(owners.time_to_answer(peer, awaited), Micros(23_000));
        (0..1_000).for_each(|_| owners.note_answer(peer, Micros(20_000)));
        assert_eq!(owners.time_to_answer(peer, awaited), Micros(5_000));
    }

    #[test]
    fn a_peer_that_turns_out_to_be_far_is_given_more_time() {
        let mut owners = owners("a", &["b"]);
        assert_eq!(owners.patience(PeerIndex(0)), LEAST_PATIENCE);
        owners.note_late(NOW, PeerIndex(0), NOW, LEAST_PATIENCE);
        assert_eq!(owners.patience(PeerIndex(0)), Micros(10_000));
        owners.note_answer(PeerIndex(0), Micros(8_000));
        assert_eq!(owners.patience(PeerIndex(0)), Micros(32_000));
    }
}
