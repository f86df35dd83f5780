//! A daemon: the shipped core (or a baseline), its clock, its policies, and the requests that wait for an answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::holds::Holds;
use rationd::core::policy::Rule;
use rationd::core::shard::{Settings, Ticket};
use rationd::core::time::{Instant, Timestamp};

use super::asks::Mail;
use super::client::Client;
use super::clock::NodeClock;
use super::gossip::Circle;
use super::holds::Held;
use crate::brain::limiter;
use crate::limiter::{Limiter, Start};
use crate::maps::Map;
use crate::observe::Request;
use crate::plan::Plan;
use crate::random::Random;

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It takes requests.
    Up,
    /// It hands back what it holds, and takes no new requests.
    Leaving,
    /// It will be back.
    Down,
    /// It left for good; another one may take its place.
    Gone,
}

/// One daemon.
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) phase: Phase,
    pub(super) incarnation: u64,
    pub(super) limiter: Box<dyn Limiter>,
    pub(super) clock: NodeClock,
    /// How far the wall clock is ahead of true time.
    pub(super) wall: i64,
    pub(super) rules: Vec<Arc<Rule>>,
    /// For each policy, when the limits that the node uses were pushed.
    pub(super) learnt: BTreeMap<usize, u64>,
    /// The rule under which each key was last asked for: waiting requests are answered under it, even if the node has
    /// learned another since. Kept only where rules change.
    pub(super) went_by: Map<u32, Arc<Rule>>,
    pub(super) parked: BTreeMap<Ticket, Request>,
    /// Asks of peers that this node keeps waiting for tokens.
    pub(super) asked: BTreeMap<Ticket, Mail>,
    pub(super) holds: Holds<Held>,
    /// True time of the timer that is set.
    pub(super) timer: u64,
    pub(super) client: Client,
    pub(super) circle: Circle,
    /// It does nothing before then.
    pub(super) frozen_until: u64,
    /// How long it has been frozen so far in all, including the rest of the present freeze.
    pub(super) stood: u64,
}

impl Node {
    /// A node that starts at `now`; `exact` is what an exact wall clock shows.
    pub(super) fn start(place: Place<'_>, now: u64, exact: Timestamp, rules: Vec<Arc<Rule>>) -> Self {
        let Place { plan, random, index, incarnation, wall } = place;
        let drift = u64::from(plan.clocks.drift_ppm);
        let ppm = random.between(0, 2 * drift) as i64 - drift as i64;
        let clock = NodeClock::new(now, random.between(1_000_000_000, 9_000_000_000), ppm);
        let shown = Timestamp(exact.0.saturating_add_signed(wall));
        let limiter = decider(plan, random.bits(), (clock.local(now), shown));
        Self {
            name: format!("n{index}").into(),
            phase: Phase::Up,
            incarnation,
            limiter,
            clock,
            wall,
            rules,
            learnt: BTreeMap::new(),
            went_by: Map::default(),
            parked: BTreeMap::new(),
            asked: BTreeMap::new(),
            holds: Holds::default(),
            timer: u64::MAX,
            client: Client::new(),
            circle: Circle::default(),
            frozen_until: 0,
            stood: 0,
        }
    }
}

impl Node {
    /// Its process runs.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.phase, Phase::Up | Phase::Leaving)
    }
}

/// Where a node starts, and under which name and incarnation.
pub(super) struct Place<'a> {
    pub(super) plan: &'a Plan,
    pub(super) random: &'a mut Random,
    pub(super) index: u32,
    pub(super) incarnation: u64,
    pub(super) wall: i64,
}

/// The limiter of a node.
fn decider(plan: &Plan, seed: u64, clock: (Instant, Timestamp)) -> Box<dyn Limiter> {
    let settings =
        Settings { max_keys: plan.daemon.max_keys as usize, timeout: plan.daemon.timeout.micros(), lease_ahead: true };
    // As in the daemon, ids grow across restarts: they begin with the wall clock.
    limiter(plan.brain, Start { settings, seed, first_id: clock.1.0, clock, shards: plan.daemon.shards })
}
