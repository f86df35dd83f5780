//! **plenty**: no denial for lack of tokens comes with an answer that shows enough of them.
//!
//! For all limits, algorithms and sources: a denial with the reason `rate` reports fewer remaining tokens than it was
//! asked for. How much is really left is judged by `truth.rs` and `early.rs`.

use rationd::core::decision::{Decision, Reason, Verdict};

use super::Found;
use super::sheet::{Exemption, Sheet};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");

pub(super) static SHEET: Sheet = Sheet {
    file: "plenty.rs",
    invariants: &["plenty"],
    proves: "Nobody is denied for want of tokens by an answer that says that there are enough.",
    judges: "All.",
    exemptions: &[&BASELINES],
    mutant: Some("expired-not-settled"),
};

/// The checker.
#[derive(Debug)]
pub(super) struct Plenty {
    is_on: bool,
    found: Found,
}

impl Plenty {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { is_on: !BASELINES.when(setting.plan.brain != Brain::Rationd), found: Found::default() }
    }

    fn denied(&mut self, moment: Moment, request: &Request, decision: &Decision) {
        if decision.reason == Reason::Rate && decision.remaining >= request.cost {
            self.found.add("plenty", moment, || format!("{request:?}: denied in spite of plenty: {decision:?}"));
        }
    }
}

impl Observer for Plenty {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Permits
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Executed | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let Seen::Answered { request, decision, .. } = seen else { return };
        let asks = matches!(request.kind, Kind::Check | Kind::Peek);
        if self.is_on && asks && decision.verdict == Verdict::Deny {
            self.denied(moment, request, decision);
        }
    }
}

impl Checker for Plenty {
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
    use crate::checkers::tests::History;

    #[test]
    fn a_denial_of_what_it_says_is_left_is_seen() {
        for limit in ["10/1s", "10/1s fixed", "10/1s sliding", "10/1s fixed from-first"] {
            let mut history = History::new(limit);
            let mut checker = Plenty::new(&history.setting());
            history.remaining = 6;
            history.check(&mut checker, 1, 6, Source::Lease, true);
            history.check(&mut checker, 2, 7, Source::Store, false);
            history.check(&mut checker, 3, 6, Source::Share, false);
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.check(&mut checker, 4, 6, Source::Lease, false);
            assert_eq!(checker.violations()[0].invariant, "plenty");
        }
    }
}
