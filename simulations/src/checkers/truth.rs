//! **truth**: what a decision says is so. Its numbers fit together; a window's end is the same for
//! everybody; and a denial has evidence: the store had shown too little left in that window.

use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::limit::Limit;

use super::sheet::{Exemption, Sheet};
use super::{Found, SAME, aligned};
use crate::maps::Numbered;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Violation};
use crate::plan::What;

static SHAPES: Exemption = Exemption::new(
    "ends and evidence of other shapes",
    "Of them the end and what is left depend on who asks and when.",
);
static PUSHED: Exemption = Exemption::new("who waited while limits changed", "The answer may be of the old ones.");
static BOUNDARY: Exemption = Exemption::new("a denial near a boundary", "A node may not know of it for two timeouts.");
static MOVED: Exemption = Exemption::new(
    "after a slot moved between clocks that differ",
    "What the other clock's windows held is no evidence of this one's: for two periods.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "truth.rs",
    invariants: &["truth", "evidence"],
    proves: "The numbers of a decision fit together; a window's end is the same for everybody; of a denial the store had shown that too little is left.",
    judges: "Numbers: all. Ends and evidence: one fixed window.",
    exemptions: &[&SHAPES, &PUSHED, &BOUNDARY, &MOVED],
    mutant: None,
};

/// What the store has shown of a key's window.
#[derive(Debug, Default)]
struct Shown {
    window: u64,
    /// Most that was used at any time in it.
    most: u64,
    /// Most that was lent ahead of the next.
    ahead: u64,
    /// How far the owner's clock is from true time, and since when if it ever was another.
    skew: Option<u64>,
    moved: u64,
}

impl Shown {
    /// A slot that moves to a master with another clock is in another window at once.
    fn follow(&mut self, moment: Moment, now: u64, limit: &Limit) {
        let skew = now.wrapping_sub(moment.store.0);
        if self.skew.replace(skew).is_some_and(|known| known.wrapping_sub(skew).min(skew.wrapping_sub(known)) > SAME) {
            self.moved = moment.at + 2 * limit.period.0;
            // Back in time, perhaps: what the other clock's windows held is no evidence of this one's.
            (self.window, self.most, self.ahead) = (0, 0, 0);
        }
    }
}

/// The checker.
#[derive(Debug)]
pub(super) struct Truth {
    keys: Numbered<Shown>,
    /// How long after a boundary a node may not know of it.
    doubt: u64,
    /// Limits change: whoever waits meanwhile may be answered under the old ones.
    pushes: bool,
    found: Found,
}

impl Truth {
    pub(super) fn new(setting: &Setting) -> Self {
        let pushes = setting.plan.faults.iter().any(|fault| matches!(fault.what, What::Push { .. }));
        Self { keys: Numbered::default(), doubt: 2 * setting.plan.daemon.timeout.0, pushes, found: Found::default() }
    }

    fn numbers(&mut self, moment: Moment, request: &Request, decision: &Decision) {
        let denied = decision.verdict == Verdict::Deny;
        let waits = decision.retry_after.is_some_and(|wait| wait.0 > 0);
        let fits = if denied { waits || decision.reason == Reason::Cost } else { decision.retry_after.is_none() };
        if decision.remaining > decision.limit || !fits {
            self.found.add("truth", moment, || format!("{request:?}: numbers that do not fit: {decision:?}"));
        }
        if denied && decision.reason == Reason::Rate && decision.remaining >= request.cost.max(1) {
            // The tightest limit fills the numbers, and it has to be the one that denied.
            let wait = decision.retry_after.map_or(0, |wait| wait.0);
            if wait == 0 {
                self.found.add("truth", moment, || format!("{request:?}: denied with enough left: {decision:?}"));
            }
        }
    }

    /// For one aligned window.
    fn window(&mut self, moment: Moment, request: &Request, limit: &Limit, decision: &Decision, now: u64) {
        let end = (now / limit.period.0 + 1) * limit.period.0;
        let passed = limit.period.0 - (end - now);
        let sure = !BOUNDARY.when(passed <= self.doubt || end - now <= self.doubt);
        let shown = self.keys.of(request.key);
        shown.follow(moment, now, limit);
        if MOVED.when(moment.at < shown.moved) {
            return;
        }
        let told = decision.reset_at.0;
        if decision.verdict == Verdict::Allow && told != end {
            self.found.add("truth", moment, || {
                format!("{request:?}: admitted of the window that ends at {told}, and {end} is the end")
            });
        } else if decision.verdict == Verdict::Deny && sure && told != end {
            self.found.add("truth", moment, || format!("{request:?}: reset_at {told}, and {end} is the end"));
        }
        let known = match shown.window {
            window if window == end => shown.most,
            window if window + limit.period.0 == end => shown.ahead,
            _ => 0,
        };
        if decision.verdict == Verdict::Deny && sure && known + request.cost <= limit.count {
            self.found.add("evidence", moment, || {
                format!("{request:?}: denied, and the store had shown {known} of {} at most", limit.count)
            });
        }
    }
}

impl Observer for Truth {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Executed { key, call, grant, .. } => {
                let Some(limit) = aligned(&call.rule) else { return };
                let counter = &grant.counters[0];
                let shown = self.keys.of(*key);
                shown.follow(moment, grant.now.0, limit);
                if counter.at.0 > shown.window {
                    let next = shown.window + limit.period.0 == counter.at.0;
                    let most = if next { shown.ahead } else { 0 };
                    (shown.window, shown.most, shown.ahead) = (counter.at.0, most, 0);
                }
                shown.ahead = shown.ahead.max(counter.prev);
                // A return shows less than there was; `granted` was taken back.
                let was = counter.used + grant.granted;
                shown.most = shown.most.max(was.min(limit.count));
            }
            Seen::Answered { request, rule, decision, store, parked } if request.kind == Kind::Check => {
                self.numbers(moment, request, decision);
                let counted = matches!(decision.reason, Reason::Ok | Reason::Rate)
                    && matches!(decision.source, Source::Lease | Source::Store);
                let sure = !PUSHED.when(self.pushes && *parked);
                if SHAPES.when(aligned(rule).is_none()) {
                    return;
                }
                if let (true, Some(limit)) = (counted && sure, aligned(rule)) {
                    self.window(moment, request, limit, decision, store.0);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Truth {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};

    #[test]
    fn a_denial_without_evidence_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Truth::new(&history.setting());
        history.check(&mut checker, SECOND / 2, 1, Source::Lease, false);
        assert_eq!(checker.violations()[0].invariant, "evidence");
    }

    #[test]
    fn a_denial_is_believed_when_the_store_had_too_little() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Truth::new(&history.setting());
        for id in 1..=10 {
            history.executed(&mut checker, id, id);
        }
        history.check(&mut checker, SECOND / 2, 1, Source::Lease, false);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }
}
