//! Whom a node asks for tokens of a key before it asks the store, or when it cannot ask it.
//!
//! Each key has an owner among the nodes of a fleet: the one whose name has the highest hash together with the key (rendezvous
//! hashing, Thaler and Ravishankar 1998). Nobody elects it and nobody has to agree on it. Two nodes that both take themselves
//! for the owner both lease from the store, which counts what it lends to either; so a fleet view that is late or wrong costs
//! calls and never a token.
//!
//! A peer that does not answer in time, or refuses what it would refuse again, is left out for a second. Knows no transport.
//! Called by `leased/intent.rs` and `leased/lending.rs`.

use super::ask::Refusal;
use super::key::Digest;
use super::time::{Due, Instant, Micros};
use super::usage::Origin;

/// In a large fleet so many nodes own keys, those with the lowest hashes of their names: so each node holds so many
/// connections for it at most.
const MOST_OWNERS: usize = 64;

/// A peer that was late so many times in a row is left out.
const LATE: u8 = 3;

/// So long a peer is left out.
const LEFT_OUT: Micros = Micros(1_000_000);

/// A peer's answer is awaited for at least this long.
const LEAST_PATIENCE: Micros = Micros(5_000);

/// A peer's answer is awaited for so many times as long as the slowest of late took.
const PATIENCE: u64 = 4;

/// Of how long answers take, the longest that is believed: each one that is late doubles what is expected of the next.
const LONGEST: Micros = Micros(1_000_000);

/// A node that may own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The peer, as the fleet room numbers it.
    pub peer: Origin,
    /// The hash of its name: see [`name_hash`].
    pub name: u64,
}

/// The hash of a node's name by which keys are assigned.
#[must_use]
pub fn name_hash(name: &str) -> u64 {
    Digest::of("", name.as_bytes()).0 as u64
}

/// Who may be asked, and how they answer.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// This node's own name; `None`: it owns nothing.
    own: Option<u64>,
    peers: Vec<Peer>,
}

#[derive(Debug)]
struct Peer {
    candidate: Candidate,
    /// How long the slowest answers of late took.
    slowest: Micros,
    /// Answers in a row that were late.
    late: u8,
    /// It is left out until then.
    left_out: Due,
}

impl Owners {
    /// These nodes may own keys from now on, beside this node, whose own name this is. What is known of those that were
    /// there before stays known.
    pub(super) fn update(&mut self, own: u64, candidates: &[Candidate]) {
        let mut names: Vec<u64> = candidates.iter().map(|candidate| candidate.name).chain([own]).collect();
        names.sort_unstable();
        let last = names[..names.len().min(MOST_OWNERS)].last().copied().unwrap_or(own);
        self.own = Some(own).filter(|own| *own <= last);
        let mut before = std::mem::take(&mut self.peers);
        let owners = candidates.iter().filter(|candidate| candidate.name <= last);
        self.peers = owners.map(|candidate| take_or_new(&mut before, *candidate)).collect();
    }

    /// Whether there is anybody who could be asked.
    pub(super) fn are_there(&self) -> bool {
        !self.peers.is_empty()
    }

    /// The owner of a key among those that are not left out; `None`: this node itself.
    pub(super) fn owner(&self, now: Instant, key: Digest) -> Option<Origin> {
        let best = self.best(now, key)?;
        let is_other = self.own.is_none_or(|own| rank(key, best.name) > rank(key, own));
        is_other.then_some(best.peer)
    }

    /// Whom to ask for a key that this node cannot ask the store for: the owner, or whoever comes next.
    pub(super) fn relay(&self, now: Instant, key: Digest) -> Option<Origin> {
        self.best(now, key).map(|best| best.peer)
    }

    fn best(&self, now: Instant, key: Digest) -> Option<Candidate> {
        let there = self.peers.iter().filter(|peer| peer.left_out.has_come(now)).map(|peer| peer.candidate);
        there.max_by_key(|candidate| (rank(key, candidate.name), candidate.peer))
    }

    /// How long a peer's answer is worth waiting for.
    pub(super) fn patience(&self, peer: Origin) -> Micros {
        let slowest = self.get(peer).map_or(Micros::ZERO, |peer| peer.slowest);
        Micros(slowest.0.saturating_mul(PATIENCE)).max(LEAST_PATIENCE)
    }

    /// A peer has answered after so long.
    pub(super) fn note_answer(&mut self, now: Instant, peer: Origin, trip: Micros, refusal: Option<Refusal>) {
        let Some(peer) = self.get_mut(peer) else { return };
        peer.slowest = trip.max(Micros(peer.slowest.0 - peer.slowest.0 / 8));
        peer.late = 0;
        if refusal.is_some_and(Refusal::lasts) {
            peer.left_out = Due::at(now + LEFT_OUT);
        }
    }

    /// A peer has not answered in that time.
    pub(super) fn note_late(&mut self, now: Instant, peer: Origin, patience: Micros) {
        let Some(peer) = self.get_mut(peer) else { return };
        // It may be further away than it was known to be.
        peer.slowest = (peer.slowest + peer.slowest).max(Micros(patience.0 / 2)).min(LONGEST);
        peer.late = (peer.late + 1).min(LATE);
        if peer.late == LATE {
            peer.left_out = Due::at(now + LEFT_OUT);
        }
    }

    fn get(&self, origin: Origin) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.candidate.peer == origin)
    }

    fn get_mut(&mut self, origin: Origin) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.candidate.peer == origin)
    }
}

fn take_or_new(before: &mut Vec<Peer>, candidate: Candidate) -> Peer {
    let known = before.iter().position(|peer| peer.candidate == candidate);
    known
        .map_or(Peer { candidate, slowest: Micros::ZERO, late: 0, left_out: Due::AT_ONCE }, |at| before.swap_remove(at))
}

/// A node's claim to a key: the finalizer of splitmix64 over both (Steele, Lea, Flood, 2014).
fn rank(key: Digest, name: u64) -> u64 {
    let mut bits = (key.0 as u64) ^ (key.0 >> 64) as u64 ^ name;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(10_000_000);

    fn candidates(names: &[&str]) -> Vec<Candidate> {
        let numbered = names.iter().enumerate();
        numbered.map(|(index, name)| Candidate { peer: Origin(index as u32), name: name_hash(name) }).collect()
    }

    fn owners(own: &str, others: &[&str]) -> Owners {
        let mut owners = Owners::default();
        owners.update(name_hash(own), &candidates(others));
        owners
    }

    fn keys() -> impl Iterator<Item = Digest> {
        (0..1_000_u32).map(|key| Digest::of("p", &key.to_le_bytes()))
    }

    #[test]
    fn all_nodes_agree_on_an_owner_and_each_owns_its_part() {
        let (a, b, c) = (owners("a", &["b", "c"]), owners("b", &["a", "c"]), owners("c", &["a", "b"]));
        let mut owned = [0; 3];
        for key in keys() {
            let by_a = a.owner(NOW, key).map_or("a", |peer| ["b", "c"][peer.0 as usize]);
            let by_b = b.owner(NOW, key).map_or("b", |peer| ["a", "c"][peer.0 as usize]);
            let by_c = c.owner(NOW, key).map_or("c", |peer| ["a", "b"][peer.0 as usize]);
            assert!(by_a == by_b && by_b == by_c);
            owned[usize::from(by_a.as_bytes()[0] - b'a')] += 1;
        }
        assert!(owned.iter().all(|owned| (280..390).contains(owned)), "{owned:?}");
    }

    #[test]
    fn a_key_changes_hands_only_with_its_owner() {
        let (three, two) = (owners("a", &["b", "c"]), owners("a", &["b"]));
        let moved = keys().filter(|key| three.owner(NOW, *key) != two.owner(NOW, *key));
        assert!(moved.into_iter().all(|key| three.owner(NOW, key) == Some(Origin(1))));
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
    fn who_is_alone_or_asks_nobody_has_no_owner_to_ask() {
        assert!(keys().all(|key| owners("a", &[]).owner(NOW, key).is_none()));
        assert!(keys().all(|key| Owners::default().relay(NOW, key).is_none()));
    }

    #[test]
    fn who_is_late_three_times_or_would_refuse_again_is_left_out_for_a_second() {
        let mut owners = owners("a", &["b"]);
        let (key, peer) = (Digest(7), Origin(0));
        (0..2).for_each(|_| owners.note_late(NOW, peer, LEAST_PATIENCE));
        assert_eq!(owners.relay(NOW, key), Some(peer));
        owners.note_late(NOW, peer, LEAST_PATIENCE);
        assert_eq!(owners.relay(NOW, key), None);
        assert_eq!(owners.relay(NOW + LEFT_OUT, key), Some(peer));
        owners.note_answer(NOW + LEFT_OUT, peer, Micros(500), Some(Refusal::Busy));
        assert_eq!(owners.relay(NOW + LEFT_OUT, key), Some(peer));
        owners.note_answer(NOW + LEFT_OUT, peer, Micros(500), Some(Refusal::NoStore));
        assert_eq!(owners.relay(NOW + LEFT_OUT, key), None);
    }

    #[test]
    fn a_peer_that_turns_out_to_be_far_is_given_more_time() {
        let mut owners = owners("a", &["b"]);
        assert_eq!(owners.patience(Origin(0)), LEAST_PATIENCE);
        owners.note_late(NOW, Origin(0), LEAST_PATIENCE);
        assert_eq!(owners.patience(Origin(0)), Micros(10_000));
        owners.note_answer(NOW, Origin(0), Micros(8_000), None);
        assert_eq!(owners.patience(Origin(0)), Micros(32_000));
    }
}
