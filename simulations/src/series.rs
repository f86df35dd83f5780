//! What happened over time: the numbers behind the charts of a report.
//!
//! A run is cut into some 400 equal spans of true time, and each policy's windows are summed over its keys. The warm-up
//! counts, too. Decides nothing and knows nothing of drawing; a run that needs no charts has `Series::default()`.

mod bar;
mod track;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};

pub use self::bar::{Bar, label};
pub use self::track::{Track, Window};
use crate::ledger::Tokens;
use crate::observe::{Balance, Kind, Moment, Observer, Seen, Setting, Topic};

/// How many spans a run is cut into.
const SPANS: u64 = 400;

/// A run over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Microseconds of each bucket; 0 when nothing was recorded.
    pub width: u64,
    /// From the start of the run.
    pub buckets: Vec<Bucket>,
    /// Windows of each policy, in the order of the plan.
    pub tracks: Vec<Track>,
    /// Faults, by their beginning.
    pub bars: Vec<Bar>,
    /// By their number.
    pub nodes: Vec<Node>,
    live: u32,
    /// Limit / nodes as it was last known.
    share: u64,
    /// The sum and the number of shares in the last bucket.
    shares: (u64, u64),
    /// Each node's last balance, and its bucket.
    books: Vec<(usize, Tokens)>,
}

/// What happened in one span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Checks that were answered.
    pub checks: u64,
    /// Those that were admitted.
    pub admitted: u64,
    /// Those that were admitted on a share while the store was away.
    pub on_share: u64,
    /// Those that waited for the store.
    pub waited: u64,
    /// Store calls that left a node.
    pub calls: u64,
    /// Nodes at its end.
    pub nodes: u32,
    /// The first policy's limit / nodes as the store counts them: the mean of its answers.
    pub share: u64,
    /// Acquires that lent something.
    pub grants: u64,
    /// Sums of tokens: `granted` when nodes learned of their grants, the rest by the nodes' balances, spread evenly
    /// over the time since the balance before.
    pub tokens: Tokens,
    /// The largest grant.
    pub largest: u64,
}

/// One node, over all its incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Checks it answered.
    pub checks: u64,
    /// Those it admitted.
    pub admitted: u64,
}

impl Series {
    /// The series of a run that has not begun.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        let span = setting.plan.span.0 + setting.plan.calm.0;
        let width = span.div_ceil(SPANS).max(1);
        let tracks = setting.rules.iter().map(|rule| Track::new(rule, span)).collect();
        Self { width, tracks, ..Self::default() }
    }

    /// Whether there is nothing to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// True microseconds at the end of the last bucket.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.buckets.len() as u64 * self.width
    }

    /// The bucket of a moment. Those in between begin as the last one ended.
    fn bucket(&mut self, at: u64) -> &mut Bucket {
        let index = (at / self.width.max(1)) as usize;
        while self.buckets.len() <= index {
            self.buckets.push(Bucket { nodes: self.live, share: self.share, ..Bucket::default() });
            self.shares = (0, 0);
        }
        &mut self.buckets[index]
    }

    fn node(&mut self, node: u32) -> &mut Node {
        let index = node as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, Node::default());
        }
        &mut self.nodes[index]
    }

    fn book(&mut self, node: u32) -> &mut (usize, Tokens) {
        let index = node as usize;
        if index >= self.books.len() {
            self.books.resize(index + 1, (0, Tokens::default()));
        }
        &mut self.books[index]
    }

    fn count_nodes(&mut self, at: u64, live: u32) {
        self.live = live;
        self.bucket(at).nodes = live;
    }

    fn settle(&mut self, at: u64, call: &Call, grant: &Grant) {
        let Op::Acquire(_) = call.op else { return };
        let is_first = self.tracks.first().is_some_and(|track| track.policy == call.rule.policy);
        let limit = call.rule.limits[0].capacity();
        let bucket = self.bucket(at);
        let granted = grant.granted;
        bucket.grants += u64::from(granted > 0);
        bucket.tokens.granted += granted;
        bucket.largest = bucket.largest.max(granted);
        if is_first {
            let share = limit / u64::from(grant.nodes.max(1)); // rounded down
            self.shares = (self.shares.0 + share, self.shares.1 + 1);
            self.share = self.shares.0 / self.shares.1; // rounded down
            self.bucket(at).share = self.share;
        }
    }

    /// Spreads the difference between a balance and the one before.
    fn audit(&mut self, at: u64, node: u32, balance: &Balance) {
        self.bucket(at);
        let now = (at / self.width.max(1)) as usize;
        let (from, before) = *self.book(node);
        let from = (from + 1).min(now);
        let parts = (now - from + 1) as u64;
        let spread = |bucket: &mut Bucket, place: u64| {
            let part = |all: u64, before: u64| {
                let all = all.saturating_sub(before);
                all * (place + 1) / parts - all * place / parts // adds up to all
            };
            bucket.tokens.spent += part(balance.spent, before.spent);
            bucket.tokens.returned += part(balance.returned, before.returned);
            bucket.tokens.expired += part(balance.expired, before.expired);
        };
        for (place, bucket) in self.buckets[from..=now].iter_mut().enumerate() {
            spread(bucket, place as u64);
        }
        let Balance { granted, spent, returned, expired, held: _ } = *balance;
        *self.book(node) = (now, Tokens { granted, spent, returned, expired });
    }

    fn end_fault(&mut self, at: u64, what: &str) {
        let open = |bar: &&mut Bar| bar.until.is_none() && bar.label == what;
        if let Some(bar) = self.bars.iter_mut().find(open) {
            bar.until = Some(at);
        }
    }
}

impl Observer for Series {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Audit
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let at = moment.at;
        match *seen {
            Seen::Answered { request, rule, decision, parked, store } if request.kind == Kind::Check => {
                let admitted = decision.verdict == Verdict::Allow;
                let bucket = self.bucket(at);
                bucket.checks += 1;
                bucket.admitted += u64::from(admitted);
                bucket.on_share += u64::from(admitted && decision.source == Source::Share);
                bucket.waited += u64::from(parked);
                let node = self.node(request.node);
                node.checks += 1;
                node.admitted += u64::from(admitted);
                if let Some(track) = self.tracks.get_mut(request.policy as usize) {
                    track.check(request, rule, admitted, moment, store);
                }
            }
            Seen::Called { sent: true, .. } => self.bucket(at).calls += 1,
            Seen::Settled { call, grant: Some(grant), .. } => self.settle(at, call, grant),
            Seen::Joined { node, .. } => {
                self.count_nodes(at, self.live + 1);
                let bucket = self.buckets.len() - 1;
                *self.book(node) = (bucket, Tokens::default());
            }
            Seen::Left { .. } => self.count_nodes(at, self.live.saturating_sub(1)),
            Seen::Audit { node, ref balance, .. } => self.audit(at, node, balance),
            Seen::Begins(fault) => self.bars.push(Bar::new(at, fault)),
            Seen::Ends(fault) => self.end_fault(at, &label(&fault.what)),
            Seen::Over => drop(self.bucket(at.saturating_sub(1))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
