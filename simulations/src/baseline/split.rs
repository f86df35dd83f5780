//! Every node has limit / nodes for itself and asks nobody.
//!
//! Windows are those of its own wall clock, parts are rounded up, and the number of nodes is the
//! true one at every moment, which no real fleet knows: it can only look better than it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::answer::{self, Resolution};
use rationd::core::call::{Call, Counter, Grant, StoreError};
use rationd::core::decision::{Decision, Reason, Source};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request};
use rationd::core::time::{Instant, Timestamp};

use crate::limiter::Limiter;
use crate::observe::Balance;

/// Counts its own part of every limit, by its own wall clock.
#[derive(Debug)]
pub struct Split {
    books: BTreeMap<Digest, Book>,
    clock: (Instant, Timestamp),
    nodes: u32,
    admitted: u64,
}

#[derive(Debug)]
struct Book {
    whole: Arc<Rule>,
    nodes: u32,
    /// This node's part of `whole`.
    part: Rule,
    counters: Vec<Counter>,
}

impl Split {
    /// A node that knows of no other node yet.
    #[must_use]
    pub fn new(clock: (Instant, Timestamp)) -> Self {
        Self { books: BTreeMap::new(), clock, nodes: 1, admitted: 0 }
    }
}

impl Book {
    fn new(rule: &Arc<Rule>, nodes: u32) -> Self {
        let counters = vec![Counter::default(); rule.limits.len()];
        Self { whole: rule.clone(), nodes, part: part(rule, nodes), counters }
    }

    /// Takes over another rule or another number of nodes; counts are kept.
    fn adopt(&mut self, rule: &Arc<Rule>, nodes: u32) {
        if self.nodes != nodes || self.whole != *rule {
            let counters = std::mem::take(&mut self.counters);
            *self = Self::new(rule, nodes);
            self.counters.iter_mut().zip(counters).for_each(|(new, old)| *new = old);
        }
    }

    fn decide(&mut self, now: Timestamp, cost: u64) -> Decision {
        let mut least = u64::MAX;
        for (limit, counter) in self.part.limits.iter().zip(&mut self.counters) {
            counter.roll(limit, now);
            least = least.min(counter.left(limit, now));
        }
        let ending = if least >= cost {
            self.part
                .limits
                .iter()
                .zip(&mut self.counters)
                .for_each(|(limit, counter)| counter.debit(limit, now, cost));
            Resolution::allow(Source::Share)
        } else {
            Resolution::deny(Reason::Rate, Source::Share)
        };
        answer::decision(&self.part, &self.counters, now, cost, ending)
    }
}

impl Limiter for Split {
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let nodes = self.nodes;
        let now = self.clock.1 + now.since(self.clock.0);
        let book = self.books.entry(request.digest).or_insert_with(|| Book::new(request.rule, nodes));
        book.adopt(request.rule, nodes);
        let cost = if request.peek { 0 } else { request.cost };
        let decision = book.decide(now, cost);
        if decision.reason == Reason::Ok {
            self.admitted += cost;
        }
        Outcome::Decided(decision)
    }

    fn handle_outcome(&mut self, _: Instant, _: &Call, _: Result<Grant, StoreError>) {}

    fn handle_timeout(&mut self, _: Instant) {}

    fn drain(&mut self, _: Instant) {}

    fn poll_effect(&mut self) -> Option<Effect> {
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn keys(&self) -> u64 {
        self.books.len() as u64
    }

    fn balance(&self, _: Instant) -> Balance {
        Balance { granted: self.admitted, spent: self.admitted, ..Balance::default() }
    }

    fn waiting(&self) -> u64 {
        0
    }

    fn set_nodes(&mut self, nodes: u32) {
        self.nodes = nodes.max(1);
    }
}

/// One node's part of a rule: counts divided by the nodes, rounded up.
fn part(rule: &Rule, nodes: u32) -> Rule {
    let share = |tokens: u64| tokens.div_ceil(u64::from(nodes));
    let limits = rule.limits.iter().map(|limit| {
        Limit::new(share(limit.count), limit.period, limit.algorithm, share(limit.burst)).unwrap_or(*limit)
    });
    Rule { policy: rule.policy.clone(), limits: limits.collect(), on_store_loss: rule.on_store_loss }
}

#[cfg(test)]
mod tests {
    use rationd::core::decision::Verdict;

    use super::*;

    #[test]
    fn admits_its_part_in_each_window() {
        let rule = Arc::new(Rule::of("p", &[Limit::parse("100/1s fixed").unwrap()]));
        let mut split = Split::new((Instant(0), Timestamp(1_800_000_000_000_000)));
        split.set_nodes(3);
        let request = Request { rule: &rule, digest: Digest(1), key: b"", cost: 1, peek: false };
        let mut admitted = |at: u64| {
            (0..90)
                .filter(|_| {
                    matches!(
                        split.check(Instant(at), request),
                        Outcome::Decided(Decision { verdict: Verdict::Allow, .. })
                    )
                })
                .count()
        };
        assert_eq!(admitted(10), 34);
        assert_eq!(admitted(20), 0);
        assert_eq!(admitted(1_000_000), 34);
    }
}
