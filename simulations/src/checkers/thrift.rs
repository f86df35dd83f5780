//! **thrift**: a check that is denied from memory costs no call. When all is well, a node calls the store about a key
//! at most once for each check or ask that it admits or lets wait, and a few times per second to learn whether a denial
//! is still right. Where tokens trickle in, the core asks at a pace of its own, which is not judged here.

use rationd::core::call::Op;
use rationd::core::decision::Verdict;
use rationd::core::limit::Limit;

use super::Found;
use super::notes::{Ids, Life, Lives};
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static TRICKLES: Exemption = Exemption::new("where tokens trickle in", "The core goes by a pace of its own there.");
static PROBES: Exemption =
    Exemption::new("thirty calls a second", "A remembered denial is looked at again each 50 ms at most.");

pub(super) static SHEET: Sheet = Sheet {
    file: "thrift.rs",
    invariants: &["thrift"],
    proves: "A check that is denied from memory costs no call.",
    judges: "Windows, several limits, after all has healed.",
    exemptions: &[&BASELINES, &TRICKLES, &PROBES],
    mutant: Some("denial-not-remembered"),
};

/// How long after the last fault has healed judging begins.
const SETTLED: u64 = 2_000_000;

/// The time over which calls are counted.
const SPAN: u64 = 1_000_000;

/// Calls in that time that need no check: a remembered denial is verified every 50 ms at most.
const FREE: u64 = 30;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    since: u64,
    calls: u64,
    /// Checks and asks of peers that were admitted, or that had to wait.
    due: u64,
    denied: u64,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Thrift {
    from: u64,
    until: u64,
    lives: Lives,
    sent: Ids,
    counts: Map<(Life, u32), Count>,
    found: Found,
}

impl Thrift {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let is_on = !BASELINES.when(plan.brain != Brain::Rationd);
        Self {
            from: plan.span.0 + plan.recovery().0 + SETTLED,
            until: if is_on { plan.span.0 + plan.calm.0 } else { 0 },
            lives: Lives::default(),
            sent: Ids::default(),
            counts: Map::default(),
            found: Found::default(),
        }
    }

    fn count(&mut self, moment: Moment, life: Life, key: u32) -> &mut Count {
        let count = self.counts.entry((life, key)).or_default();
        if moment.at >= count.since + SPAN {
            *count = Count { since: moment.at, ..Count::default() };
        }
        count
    }
}

impl Observer for Thrift {
    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Executed | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if moment.at < self.from || moment.at >= self.until {
            return;
        }
        match seen {
            Seen::Called { node, key, call, .. } if matches!(call.op, Op::Acquire(_)) => {
                if TRICKLES.when(call.rule.limits.iter().any(Limit::trickles)) {
                    return;
                }
                let life = self.lives.of(*node);
                if self.sent.is_first(life, call.id) {
                    let count = self.count(moment, life, *key);
                    count.calls += 1;
                    let count = *count;
                    if count.calls > count.due + count.due / 4 + PROBES.forgives(FREE) {
                        self.found.add("thrift", moment, || format!("key {key}, node {node}: {count:?}"));
                    }
                }
            }
            Seen::Answered { request, decision, parked, .. } if request.kind == Kind::Check => {
                let life = self.lives.of(request.node);
                let count = self.count(moment, life, request.key);
                let is_due = *parked || decision.verdict == Verdict::Allow;
                *(if is_due { &mut count.due } else { &mut count.denied }) += 1;
            }
            // For an ask of a peer a node may call the store for the tokens that it lends on.
            Seen::PeerWaits { node, key, .. } | Seen::PeerAnswered { node, key, answer: Ok(_), .. } => {
                self.count(moment, self.lives.of(*node), *key).due += 1;
            }
            _ => {}
        }
    }
}

impl Checker for Thrift {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::decision::Source;

    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::span::Span;

    /// A history of which twenty seconds are judged.
    fn calm() -> (History, Thrift) {
        let history = History::new("10/1s fixed");
        let mut setting = history.setting();
        setting.plan.calm = Span::secs(20);
        (history, Thrift::new(&setting))
    }

    #[test]
    fn a_call_for_each_denial_is_seen() {
        let (mut history, mut checker) = calm();
        for id in 1..=60 {
            let at = 10 * SECOND + id * 10;
            history.check(&mut checker, at, 1, Source::Lease, id <= 30);
            history.called(&mut checker, at + 1, id, 1);
        }
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        for id in 61..100 {
            history.check(&mut checker, 10 * SECOND + id * 10, 1, Source::Lease, false);
            history.called(&mut checker, 10 * SECOND + id * 10 + 1, id, 1);
        }
        assert_eq!(checker.violations()[0].invariant, "thrift");
    }

    #[test]
    fn a_call_for_each_ask_of_a_peer_is_not() {
        for (asks, seen) in [(40, 0), (20, 1)] {
            let (mut history, mut checker) = calm();
            for id in 1..=60 {
                let at = 10 * SECOND + id * 10;
                if id <= asks {
                    history.lent_on(&mut checker, at, "10/1s fixed", 2, false);
                }
                history.called(&mut checker, at + 1, id, 1);
            }
            assert_eq!(checker.violations().len().min(1), seen, "{:?}", checker.violations());
        }
    }
}
