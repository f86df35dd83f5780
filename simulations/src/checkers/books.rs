//! **conservation**: at every audit each token lent to a node is spent, returned, lapsed or held. **bounded**: no table
//! and no line grows past its bound.

use super::Found;
use super::sheet::Sheet;
use crate::observe::{Checker, Moment, Observer, Seen, Setting, Topic, Violation};

pub(super) static SHEET: Sheet = Sheet {
    file: "books.rs",
    invariants: &["conservation", "bounded"],
    proves: "At every look each token lent to a node is spent, returned, lapsed or held; no table and no line grows past its bound.",
    judges: "All, as sums over all keys of a node.",
    exemptions: &[],
    mutant: Some("lends-on-its-share"),
};

/// Checks that may wait for one key in a node.
const MOST_WAITING: u64 = 8_192;

/// The checker.
#[derive(Debug)]
pub(super) struct Books {
    max_keys: u64,
    keys: u64,
    found: Found,
}

impl Books {
    pub(super) fn new(setting: &Setting) -> Self {
        let keys = setting.plan.demand.iter().map(|demand| u64::from(demand.keys)).sum();
        // Each shard has an even part of the table, rounded up.
        let (max_keys, shards) = (setting.plan.daemon.max_keys, setting.plan.daemon.shards);
        let max_keys = u64::from(max_keys.div_ceil(shards)) * u64::from(shards);
        Self { max_keys, keys, found: Found::default() }
    }
}

impl Observer for Books {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Audit
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Answered | Topic::Executed | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let Seen::Audit { node, balance, keys, waiting } = seen else { return };
        let sum = balance.spent + balance.returned + balance.expired + balance.held;
        if balance.granted != sum {
            self.found.add("conservation", moment, || format!("node {node}: {balance:?} sums up to {sum}"));
        }
        if *keys > self.max_keys {
            self.found.add("bounded", moment, || format!("node {node}: {keys} keys, {} allowed", self.max_keys));
        }
        if *waiting > MOST_WAITING * self.keys.max(1) {
            self.found.add("bounded", moment, || format!("node {node}: {waiting} checks wait"));
        }
    }
}

impl Checker for Books {
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
    use crate::checkers::tests::History;
    use crate::observe::Balance;

    #[test]
    fn a_token_that_is_nowhere_and_a_key_too_many_are_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Books::new(&history.setting());
        let whole = Balance { granted: 10, spent: 4, returned: 3, expired: 2, held: 1 };
        let mut audit = |balance, keys| {
            history.see(&mut checker, 0, &Seen::Audit { node: 0, balance, keys, waiting: 0 });
            checker.violations().len()
        };
        assert_eq!(audit(whole, 100_000), 0);
        assert_eq!(audit(Balance { held: 0, ..whole }, 0), 1);
        assert_eq!(audit(whole, 100_001), 2);
    }
}
