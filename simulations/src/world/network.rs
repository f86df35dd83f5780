//! The network between nodes and masters: how long a message takes, whether it arrives, and how often.
//!
//! It draws from a random stream of its own, so that what happens to one message does not change the demand.

use crate::plan::{Network as NetworkPlan, Way, Zone};
use crate::random::Random;
use crate::span::Span;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    ToRedis,
    FromRedis,
}

/// The links that a cut concerns; an empty list means all.
#[derive(Clone, Debug)]
struct Cut {
    fault: u32,
    nodes: Vec<u32>,
    masters: Vec<u32>,
    way: Way,
}

/// The network.
#[derive(Debug)]
pub(super) struct Network {
    plan: NetworkPlan,
    zones: Vec<Zone>,
    random: Random,
    /// Draws the fate of asks between nodes.
    between: Random,
    cuts: Vec<Cut>,
    /// Links that a swizzle has broken.
    broken: Vec<(u32, u32)>,
    /// Masters whose messages are held back until a time.
    clogs: Vec<(u32, u64)>,
    /// Delays that are added to all messages of a master.
    slow: Vec<(u32, u64)>,
    /// Loss and repetition that are added to the plan's.
    noise: (u32, u32),
    calm: bool,
}

/// When the copies of a message arrive; none when it is lost.
pub(super) type Arrivals = [Option<u64>; 2];

impl Network {
    pub(super) fn new(plan: &NetworkPlan, zones: &[Zone], seed: u64) -> Self {
        let random = Random::stream(seed, "network");
        Self {
            plan: plan.clone(),
            zones: zones.to_vec(),
            random,
            between: Random::stream(seed, "between-nodes"),
            cuts: Vec::new(),
            broken: Vec::new(),
            clogs: Vec::new(),
            slow: Vec::new(),
            noise: (0, 0),
            calm: false,
        }
    }

    /// The fate of a message that is sent at `now`.
    pub(super) fn send(&mut self, now: u64, node: u32, master: u32, heading: Heading) -> Arrivals {
        let (loss, repeats) = self.noisy();
        // Drawn even for a link that is cut, so that a cut does not change later draws.
        let (lost, repeated) = (self.random.chance(loss), self.random.chance(repeats));
        let (first, second) = (self.way(now, node, master), self.way(now, node, master));
        if lost || self.is_cut(node, master, heading) {
            return [None, None];
        }
        [Some(first), repeated.then_some(second)]
    }

    /// What becomes of a message that a node sends to another at `now`.
    pub(super) fn send_between(&mut self, now: u64) -> Arrivals {
        let (loss, repeats) = self.noisy();
        let random = &mut self.between;
        let (lost, repeated) = (random.chance(loss), random.chance(repeats));
        let [first, second] = [(); 2].map(|()| now + self.plan.latency.0 + random.exponential(self.plan.jitter.0));
        if lost { [None, None] } else { [Some(first), repeated.then_some(second)] }
    }

    /// The fate of a frame of gossip, drawn from `random`. Loss and repetition with a chance of zero are not drawn.
    pub(super) fn send_frame(&self, now: u64, random: &mut Random) -> Arrivals {
        let (loss, repeats) = self.noisy();
        let arrives = |random: &mut Random| now + self.plan.latency.0 + random.exponential(self.plan.jitter.0);
        let first = arrives(random);
        let lost = loss > 0 && random.chance(loss);
        let repeated = repeats > 0 && random.chance(repeats);
        let second = repeated.then(|| arrives(random));
        if lost { [None, None] } else { [Some(first), second] }
    }

    /// Of a thousand messages, so many are lost, and so many arrive twice.
    fn noisy(&self) -> (u64, u64) {
        let noisy = |plan: u32, more: u32| if self.calm { 0 } else { u64::from(plan + more) };
        (noisy(self.plan.loss, self.noise.0), noisy(self.plan.repeats, self.noise.1))
    }

    /// When a message sent at `now` would arrive.
    fn way(&mut self, now: u64, node: u32, master: u32) -> u64 {
        let slow: u64 = self.slow.iter().filter(|(of, _)| *of == master).map(|(_, by)| by).sum();
        // Each direction takes half of the round trip.
        let far = Zone::of(&self.zones, node).map_or(0, |zone| zone.store.0 / 2);
        let arrives = now + self.plan.latency.0 + self.random.exponential(self.plan.jitter.0) + slow + far;
        let held = self.clogs.iter().filter(|(of, _)| *of == master).map(|(_, until)| *until).max();
        arrives.max(held.unwrap_or(0))
    }

    /// Whether messages on this link are lost now.
    pub(super) fn is_cut(&self, node: u32, master: u32, heading: Heading) -> bool {
        let concerns = |list: &[u32], one: u32| list.is_empty() || list.contains(&one);
        let takes = |way: Way| match way {
            Way::Both => true,
            Way::ToRedis => heading == Heading::ToRedis,
            Way::FromRedis => heading == Heading::FromRedis,
        };
        self.broken.contains(&(node, master))
            || self
                .cuts
                .iter()
                .any(|cut| concerns(&cut.nodes, node) && concerns(&cut.masters, master) && takes(cut.way))
    }

    pub(super) fn cut(&mut self, fault: u32, nodes: Vec<u32>, masters: Vec<u32>, way: Way) {
        self.cuts.push(Cut { fault, nodes, masters, way });
    }

    pub(super) fn mend(&mut self, fault: u32) {
        self.cuts.retain(|cut| cut.fault != fault);
    }

    /// Breaks a link, or heals it.
    pub(super) fn flip(&mut self, node: u32, master: u32) {
        let before = self.broken.len();
        self.broken.retain(|link| *link != (node, master));
        if self.broken.len() == before && !self.calm {
            self.broken.push((node, master));
        }
    }

    pub(super) fn heal_links(&mut self) {
        self.broken.clear();
    }

    pub(super) fn clog(&mut self, master: u32, until: u64) {
        self.clogs.push((master, until));
    }

    pub(super) fn slow(&mut self, master: u32, by: Span) {
        self.slow.push((master, by.0));
    }

    pub(super) fn quicken(&mut self, master: u32, by: Span) {
        if let Some(place) = self.slow.iter().position(|one| *one == (master, by.0)) {
            self.slow.swap_remove(place);
        }
    }

    /// Raises loss and repetition, or lowers them again.
    pub(super) fn noise(&mut self, loss: i64, repeats: i64) {
        let add = |value: u32, more: i64| u32::try_from(i64::from(value) + more).unwrap_or(0);
        self.noise = (add(self.noise.0, loss), add(self.noise.1, repeats));
    }

    /// Ends all faults: from now on, nothing is lost, repeated or held back.
    pub(super) fn calm(&mut self) {
        self.calm = true;
        self.cuts.clear();
        self.broken.clear();
        self.clogs.clear();
        self.slow.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(loss: u32, repeats: u32) -> Network {
        Network::new(&NetworkPlan { loss, repeats, ..NetworkPlan::default() }, &[], 5)
    }

    #[test]
    fn a_zone_has_its_part_of_the_nodes() {
        let zones = [(334, 80), (333, 10)].map(|(nodes, far)| Zone { nodes, store: Span::millis(far) });
        let of =
            |far: u64| (0..12).filter(|node| Zone::of(&zones, *node).is_some_and(|one| one.store.0 == far)).count();
        assert_eq!([of(80_000), of(10_000)], [4, 4]);
        let mut network = Network::new(&NetworkPlan::default(), &zones, 5);
        let trip = |network: &mut Network, node| network.send(0, node, 0, Heading::ToRedis)[0].expect("none is lost");
        let far = (0..12).filter(|node| trip(&mut network, *node) >= 40_000).count();
        assert_eq!(far, 4);
    }

    fn count(network: &mut Network) -> (usize, usize) {
        let mut seen = (0, 0);
        for _ in 0..10_000 {
            let [first, second] = network.send(0, 0, 0, Heading::ToRedis);
            seen.0 += usize::from(first.is_some());
            seen.1 += usize::from(second.is_some());
        }
        seen
    }

    #[test]
    fn loses_and_repeats_as_planned_and_not_when_calm() {
        let mut noisy = network(300, 500);
        let (arrived, repeated) = count(&mut noisy);
        assert!((6_800..7_200).contains(&arrived) && (3_300..3_700).contains(&repeated), "{arrived} {repeated}");
        noisy.calm();
        assert_eq!(count(&mut noisy), (10_000, 0));
    }

    #[test]
    fn noise_loses_and_repeats_frames_of_gossip_until_it_ends() {
        let mut network = network(0, 0);
        for (noise, lost, repeated) in [(1, 6_800..7_200, 3_300..3_700), (-1, 10_000..10_001, 0..1)] {
            network.noise(noise * 300, noise * 500);
            let mut random = Random::stream(5, "gossip");
            let arrivals: Vec<_> = (0..10_000).map(|_| network.send_frame(0, &mut random)).collect();
            let count = |copy: usize| arrivals.iter().filter(|arrives| arrives[copy].is_some()).count();
            assert!(lost.contains(&count(0)) && repeated.contains(&count(1)), "{} {}", count(0), count(1));
        }
    }

    #[test]
    fn a_cut_takes_its_way_only_and_ends() {
        let mut network = network(0, 0);
        network.cut(3, vec![1], vec![], Way::FromRedis);
        assert!(network.is_cut(1, 2, Heading::FromRedis));
        assert!(!network.is_cut(1, 2, Heading::ToRedis) && !network.is_cut(0, 2, Heading::FromRedis));
        assert_eq!(network.send(0, 1, 2, Heading::FromRedis), [None, None]);
        network.mend(3);
        assert!(!network.is_cut(1, 2, Heading::FromRedis));
    }

    #[test]
    fn a_clog_holds_until_its_end_and_slow_adds() {
        let mut network = network(0, 0);
        network.clog(1, 9_000_000);
        assert!(network.send(0, 0, 1, Heading::ToRedis)[0] >= Some(9_000_000));
        network.slow(0, Span::millis(5));
        assert!(network.send(0, 0, 0, Heading::ToRedis)[0] >= Some(5_200));
        network.quicken(0, Span::millis(5));
        assert!(network.send(0, 0, 0, Heading::ToRedis)[0] < Some(5_200));
    }
}
