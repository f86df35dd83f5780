//! How old a node's knowledge of a peer has become when a report of the peer comes: the time since the peer admitted
//! the first token of a window that the node did not know of.
//!
//! It is measured when a report arrives, since until then the node used older counts. So it includes how seldom a node
//! reports a key, rounds without room for it, lost reports, and the time on the network. It leaves out what is never
//! reported: windows of which less than a tenth was used, and counts that no report has before their window is
//! forgotten.
//!
//! In large fleets only some receivers are measured, because all of them get the same reports.

use std::collections::VecDeque;

use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};

use super::histogram::Histogram;
use crate::frames::Frames;
use crate::maps::Map;
use crate::observe::{Kind, Moment, Seen};

/// At most so many receivers are measured.
const HEARERS: u32 = 64;

/// Tokens that are admitted within so long count as admitted when the first of them was.
const TOGETHER: u64 = 1_000;

/// What was admitted of a key by a node is remembered for so many periods of its longest limit.
const PERIODS: u64 = 3;

/// Tokens that a node has admitted of a key, one sum after the other.
#[derive(Clone, Copy, Debug)]
struct Sum {
    /// When the first of them was, in true time and by the clock of the key's owner.
    at: u64,
    store: u64,
    /// The sum of all tokens up to here.
    tokens: u64,
}

/// All admissions and reports so far.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// Nodes there have been.
    nodes: u32,
    /// By digest: the key, and its limits.
    keys: Map<u128, (u32, Vec<Limit>)>,
    /// By node and key.
    admitted: Map<(u32, u32), VecDeque<Sum>>,
    /// How many tokens a node knows of, by receiver, sender, key, place of the limit, and `Counter::at` of its window.
    known: Map<(u32, u32, u32, u8, u64), u64>,
    ages: Histogram,
}

impl News {
    /// The age that 99 % of the reports do not exceed.
    pub(super) fn age(&self) -> u64 {
        self.ages.percentile(99_000)
    }

    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>, is_warm: bool) {
        match seen {
            Seen::Joined { node, .. } => self.nodes = self.nodes.max(node + 1),
            Seen::Called { key, call, .. } => {
                let known = self.keys.get(&call.digest.0);
                if known.is_none_or(|(_, limits)| limits[..] != call.rule.limits[..]) {
                    self.keys.insert(call.digest.0, (*key, call.rule.limits.to_vec()));
                }
            }
            Seen::Answered { request, rule, decision, store, .. } => {
                let is_own = matches!(decision.source, Source::Lease | Source::Store | Source::Share);
                if request.kind == Kind::Check && decision.verdict == Verdict::Allow && is_own {
                    self.admit(moment, (request.node, request.key), &rule.limits, request.cost, store.0);
                }
            }
            // A node that lends tokens to a peer has spent them.
            Seen::PeerAnswered { node, key, answer: Ok(loan), rule, store, .. } => {
                self.admit(moment, (*node, *key), &rule.limits, loan.tokens, store.0);
            }
            Seen::Reported { from, to, frames, lies: false } => self.hear(moment, *from, *to, frames, is_warm),
            _ => {}
        }
    }

    fn admit(&mut self, moment: Moment, place: (u32, u32), limits: &[Limit], tokens: u64, store: u64) {
        let sums = self.admitted.entry(place).or_default();
        let all = sums.back().map_or(0, |last| last.tokens) + tokens;
        match sums.back_mut().filter(|last| moment.at < last.at + TOGETHER && last.store <= store) {
            Some(last) => last.tokens = all,
            None => sums.push_back(Sum { at: moment.at, store, tokens: all }),
        }
        let longest = limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        while sums.len() > 2 && sums[1].store + PERIODS * longest < store {
            sums.pop_front();
        }
    }

    fn hear(&mut self, moment: Moment, from: u32, to: u32, frames: &Frames, is_warm: bool) {
        if !to.is_multiple_of(self.nodes.div_ceil(HEARERS).max(1)) {
            return;
        }
        for usage in frames.iter().filter_map(|frame| frame.read().ok()).flatten() {
            let Some((key, limits)) = self.keys.get(&usage.digest.0) else { continue };
            let Some(limit) = limits.get(usize::from(usage.limit)) else { continue };
            let known = self.known.entry((to, from, *key, usage.limit, usage.window.0)).or_default();
            let before = std::mem::replace(known, usage.count.admitted.max(*known));
            if usage.count.admitted <= before || !is_warm {
                continue;
            }
            let starts = if limit.algorithm == Algorithm::Sliding {
                usage.window.0
            } else {
                usage.window.0.saturating_sub(limit.period.0)
            };
            let Some(sums) = self.admitted.get(&(from, *key)) else { continue };
            let first = sums.partition_point(|sum| sum.store < starts);
            let earlier = first.checked_sub(1).map_or(0, |last| sums[last].tokens);
            let unknown = sums.partition_point(|sum| sum.tokens <= earlier + before);
            if let Some(sum) = sums.get(unknown).filter(|sum| sum.store < starts + limit.period.0) {
                self.ages.add(moment.at - sum.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::call::{Call, Op};
    use rationd::core::decision::{Decision, Reason};
    use rationd::core::key::Digest;
    use rationd::core::policy::Rule;
    use rationd::core::time::{Instant, Micros, Timestamp};
    use rationd::core::usage::{Count, Usage};
    use rationd::wire::digest;

    use super::*;
    use crate::observe::Request;

    const START: u64 = 1_800_000_000_000_000;

    fn see(news: &mut News, at: u64, seen: &Seen<'_>) {
        news.see(Moment { at, store: Timestamp(START + at) }, seen, true);
    }

    /// Node 0 admits a token at 10 ms and one at 300 ms, and reports so many at these times.
    fn ages(reports: &[(u64, u64)]) -> Vec<u64> {
        let mut news = News::default();
        let rule = Arc::new(Rule::of("p", &[Limit::parse("10/1s fixed").unwrap()]));
        let call = Call { id: 1, digest: Digest(1), rule: rule.clone(), op: Op::Peek, sent_at: Instant(0) };
        see(&mut news, 0, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
        for (id, at) in [(1, 10_000), (2, 300_000)] {
            let request = Request { id, node: 0, key: 0, policy: 0, cost: 1, kind: Kind::Check, asked: at };
            let decision = Decision {
                verdict: Verdict::Allow,
                limit: 10,
                remaining: 0,
                retry_after: None,
                reset_after: Micros(1),
                reset_at: Timestamp(START),
                reason: Reason::Ok,
                source: Source::Lease,
                limit_index: 0,
                slot: None,
                epoch: 0,
            };
            let (request, decision, store) = (&request, &decision, Timestamp(START + at));
            see(&mut news, at, &Seen::Answered { request, rule: &rule, decision, parked: false, store });
        }
        let mut seen = Vec::new();
        for (at, admitted) in reports {
            let before = news.ages.clone();
            let (window, count) = (Timestamp(START + 1_000_000), Count { admitted: *admitted, refunded: 0 });
            let usage = Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 };
            let frames = Frames::new(digest::encode(&[usage]));
            news.ages = Histogram::default();
            see(&mut news, *at, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            seen.push(news.ages.longest());
            news.ages = before;
        }
        seen
    }

    #[test]
    fn news_are_as_old_as_the_first_token_that_was_not_known() {
        assert_eq!(ages(&[(200_000, 1), (500_000, 2)]), [190_000, 200_000]);
        assert_eq!(ages(&[(500_000, 2)]), [490_000], "nothing was told before");
        assert_eq!(ages(&[(400_000, 2), (600_000, 2), (700_000, 1)]), [390_000, 0, 0], "told again, and out of order");
    }
}
