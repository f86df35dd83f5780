//! **at-most-once**: a call's id lends once, credits once and refunds once, however often the call
//! arrives, as long as the store keeps its state; and a node hands back no more than it was lent.

use std::collections::BTreeMap;

use rationd::core::call::Op;

use super::Found;
use crate::observe::{Checker, Moment, Observer, Seen, Violation};

/// Ids that are remembered of each key.
const REMEMBERED: usize = 10_000;

/// One key: what was executed under which id, and tokens by node.
#[derive(Debug, Default)]
struct Key {
    done: BTreeMap<(u32, u64, u64), u32>,
    lent: BTreeMap<(u32, u64), (u64, u64)>,
    /// The store lost some of its state: what was lent before is not known here any more.
    blurred: bool,
}

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Ids {
    keys: BTreeMap<u32, Key>,
    found: Found,
}

impl Observer for Ids {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Executed { node, incarnation, key, call, grant, stale: false, .. } => {
                if grant.granted == 0 || grant.replayed || call.id == 0 {
                    return;
                }
                let state = self.keys.entry(*key).or_default();
                let times = state.done.entry((*node, call.id, grant.epoch)).or_default();
                *times += 1;
                if *times > 1 {
                    self.found.add("at-most-once", moment, || format!("key {key}, node {node}: {call:?} ran again"));
                }
                if state.done.len() > REMEMBERED {
                    state.done.pop_first();
                }
                let (lent, back) = state.lent.entry((*node, *incarnation)).or_default();
                match call.op {
                    Op::Acquire(_) => *lent += u64::from(grant.granted),
                    Op::Return { .. } => *back += u64::from(grant.granted),
                    _ => {}
                }
                if *back > *lent && !state.blurred {
                    let (lent, back) = (*lent, *back);
                    self.found.add("at-most-once", moment, || {
                        format!("key {key}: node {node} was lent {lent} and handed back {back}")
                    });
                }
            }
            // A store that lost its state has lost its memory of ids.
            Seen::Undone { key, .. } | Seen::Lost { key, .. } | Seen::Executed { key, stale: true, .. } => {
                self.keys.insert(*key, Key { blurred: true, ..Key::default() });
            }
            _ => {}
        }
    }
}

impl Checker for Ids {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::History;

    #[test]
    fn a_call_that_lends_twice_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Ids::default();
        history.executed(&mut checker, 0, 1);
        history.executed(&mut checker, 1, 2);
        assert!(checker.violations().is_empty());
        history.executed(&mut checker, 2, 2);
        assert_eq!(checker.violations()[0].invariant, "at-most-once");
    }
}
