//! The nodes of a run as the ledger sees them: who lives, what each was asked and admitted, what it
//! asked of the store and when, and what became of its tokens. Knows nothing of keys and limits.

use std::collections::VecDeque;

use super::figures::Tokens;
use super::judge::ratio;
use crate::observe::Balance;

/// The span in which store calls are a herd, in microseconds.
const HERD: u64 = 10_000;

/// Nodes that were asked less often say nothing about fairness.
const ENOUGH: u64 = 100;

/// All nodes, by their number.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    nodes: Vec<Node>,
    live: u64,
    most: u64,
    /// Microseconds of all nodes after the warm-up, up to `counted`.
    node_time: u64,
    counted: u64,
    /// Store calls within the last [`HERD`].
    recent: VecDeque<u64>,
    herd: u64,
    calls: u64,
    most_per_window: u64,
    first_answer: u64,
}

/// One node.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Whether it joined during the run and has answered nothing yet.
    fresh: bool,
    asked: u64,
    admitted: u64,
    /// Bytes of its reports that came to peers.
    reported: u64,
    /// The window of its last store calls, and how many there were in it.
    window: (u64, u64),
    /// Tokens of its earlier incarnations, and of this one.
    before: Tokens,
    now: Tokens,
}

impl Fleet {
    fn node(&mut self, node: u32) -> &mut Node {
        let index = node as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, Node::default());
        }
        &mut self.nodes[index]
    }

    /// A node is up at the true time `at`.
    pub(super) fn join(&mut self, node: u32, at: u64, warm: u64) {
        self.pass(at, warm);
        self.live += 1;
        if at >= warm {
            self.most = self.most.max(self.live);
        }
        let node = self.node(node);
        node.fresh = at > 0;
        node.before.add(std::mem::take(&mut node.now));
    }

    /// A node is gone.
    pub(super) fn leave(&mut self, at: u64, warm: u64) {
        self.pass(at, warm);
        self.live = self.live.saturating_sub(1);
    }

    /// Counts the time of the nodes that live, up to `at`.
    pub(super) fn pass(&mut self, at: u64, warm: u64) {
        let since = self.counted.max(warm);
        if at > since {
            self.most = self.most.max(self.live);
            self.node_time += (at - since) * self.live;
        }
        self.counted = self.counted.max(at);
    }

    /// A node answered a check.
    pub(super) fn answer(&mut self, node: u32, admitted: bool, took: u64) {
        let node = self.node(node);
        node.asked += 1;
        node.admitted += u64::from(admitted);
        if std::mem::take(&mut node.fresh) {
            self.first_answer = self.first_answer.max(took);
        }
    }

    /// A node called the store at the true time `at`, in that window of the owner's clock.
    pub(super) fn call(&mut self, node: u32, at: u64, window: u64) {
        self.calls += 1;
        self.recent.push_back(at);
        while self.recent.front().is_some_and(|first| first + HERD <= at) {
            self.recent.pop_front();
        }
        self.herd = self.herd.max(self.recent.len() as u64);
        let node = self.node(node);
        let count = if node.window.0 == window { node.window.1 + 1 } else { 1 };
        node.window = (window, count);
        self.most_per_window = self.most_per_window.max(count);
    }

    /// The books of a node.
    pub(super) fn audit(&mut self, node: u32, balance: &Balance) {
        let Balance { granted, spent, returned, expired, held: _ } = *balance;
        self.node(node).now = Tokens { granted, spent, returned, expired };
    }

    /// Counts bytes of a node's reports that have come to a peer.
    pub(super) fn report(&mut self, node: u32, bytes: u64) {
        self.node(node).reported += bytes;
    }

    /// The most bytes of one node's reports that came to peers.
    pub(super) fn most_reported(&self) -> u64 {
        self.nodes.iter().map(|node| node.reported).max().unwrap_or(0)
    }

    /// Tokens of all nodes.
    pub(super) fn tokens(&self) -> Tokens {
        let mut sum = Tokens::default();
        for node in &self.nodes {
            sum.add(node.before);
            sum.add(node.now);
        }
        sum
    }

    /// Store calls that left.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Most nodes at a time.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// The longest first answer of a node that joined.
    pub(super) fn first_answer(&self) -> u64 {
        self.first_answer
    }

    /// Most store calls of one node in one window.
    pub(super) fn most_per_window(&self) -> u64 {
        self.most_per_window
    }

    /// Mean store calls per window of this length and node, in thousandths.
    pub(super) fn mean_per_window(&self, period: u64) -> u64 {
        ratio(self.calls, self.node_time, period.saturating_mul(1_000))
    }

    /// Most store calls in 10 ms, in thousandths of the mean over `span`.
    pub(super) fn herd(&self, span: u64) -> u64 {
        ratio(self.herd.saturating_mul(span), self.calls.saturating_mul(HERD), 1_000)
    }

    /// Jain's index of admitted / asked, in thousandths, rounded; 1000 for less than two nodes.
    /// Source: Jain, Chiu, Hawe, "A quantitative measure of fairness", 1984.
    pub(super) fn fairness(&self) -> u64 {
        let nodes = self.nodes.iter().filter(|node| node.asked >= ENOUGH);
        let (mut count, mut sum, mut squares) = (0_u128, 0_u128, 0_u128);
        for part in nodes.map(|node| u128::from(ratio(node.admitted, node.asked, 1_000_000))) {
            count += 1;
            sum += part;
            squares += part * part;
        }
        let all = count * squares;
        (sum * sum * 1_000 + all / 2).checked_div(all).unwrap_or(1_000) as u64 // at most 1000
    }
}

impl Tokens {
    fn add(&mut self, more: Self) {
        self.granted += more.granted;
        self.spent += more.spent;
        self.returned += more.returned;
        self.expired += more.expired;
    }
}
