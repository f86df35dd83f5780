//! Acquires that a run's scripts have executed one by one, gathered so that they can be executed once more together.
//!
//! The daemon joins acquires of one limit that leave for a single server at the same moment
//! (`src/store/redis/joined.rs`); a node of the world sends each alone, so that each has its own way through the
//! network. A script that is given several keys can still be wrong, as it has to treat each as if it were alone; so
//! some of them are executed together for comparison. `happens/rehearsal.rs` executes them.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use rationd::core::call::{Call, Op, Window};
use rationd::store::script::Script;

use rustc_hash::FxHasher;

use crate::keyspace::Entry;
use crate::maps::Map;

/// Most calls in one, as in the daemon.
const MOST: u64 = 16;

/// So many acquires of each [`shape`] are executed once more together in a run. When all of them were, that took a fifth of the run's time, nearly
/// all of it for a few shapes. What goes wrong when a script goes from one key to the next is that it reads a field of the one for a field of the
/// other: that depends on which fields there are, and not on the numbers in them.
const ENOUGH: u32 = 6;

/// One acquire.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) key: u32,
    pub(super) call: Call,
    /// What its script has found.
    pub(super) found: Option<Entry>,
}

/// The acquires gathered so far, by node and server.
#[derive(Debug, Default)]
pub(super) struct Joining {
    gathered: BTreeMap<(u32, u32), Vec<Part>>,
    /// How many groups were executed so far.
    times: u64,
    /// How many of each [`shape`] were gathered.
    shapes: Map<u64, u32>,
}

/// Whether the daemon could send a call together with others.
pub(super) fn can_join(call: &Call) -> bool {
    Script::of_many(call).is_some()
}

impl Joining {
    /// Whether to gather an acquire that finds this entry.
    pub(super) fn gathers(&mut self, call: &Call, found: Option<&Entry>) -> bool {
        let seen = self.shapes.entry(shape(call, found)).or_default();
        *seen += 1;
        *seen <= ENOUGH
    }

    /// Adds an acquire of a node at a server. Returns a group that is to be executed together, when it is large enough
    /// (a number that varies) or when this acquire cannot join it.
    pub(super) fn add(&mut self, place: (u32, u32), part: Part) -> Option<Vec<Part>> {
        let parts = self.gathered.entry(place).or_default();
        let fits = |other: &Part| other.key != part.key && other.call.rule.limits == part.call.rule.limits;
        let others = if parts.iter().all(fits) { Vec::new() } else { std::mem::take(parts) };
        parts.push(part);
        let enough = 2 + self.times % (MOST - 1);
        let ready = if parts.len() as u64 >= enough { std::mem::take(parts) } else { others };
        let is_ready = ready.len() > 1;
        self.times += u64::from(is_ready);
        is_ready.then_some(ready)
    }
}

/// A hash of what decides which way a script takes: the limit, which arguments are given, which fields the hash has,
/// and how long each is.
fn shape(call: &Call, found: Option<&Entry>) -> u64 {
    let mut hasher = FxHasher::default();
    call.rule.limits.hash(&mut hasher);
    if let Op::Acquire(ask) = &call.op {
        let known = ask.known.map(|known| known.at.0 > 0);
        (ask.window == Window::Current, ask.need > 0, ask.epoch > 0, ask.held > 0, known, ask.until.is_some())
            .hash(&mut hasher);
    }
    for (field, value) in found.into_iter().flat_map(Entry::fields) {
        (field, value.len()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::call::{Acquire, JUST_NOW};
    use rationd::core::key::Digest;
    use rationd::core::limit::Limit;
    use rationd::core::policy::Rule;
    use rationd::core::time::Instant;

    use super::*;

    fn part(key: u32, limit: &str) -> Part {
        let ask = Acquire {
            need: 1 + u64::from(key),
            want: 9,
            least: 0,
            window: Window::Current,
            epoch: 0,
            held: u64::from(key % 2),
            ages: JUST_NOW,
            known: Default::default(),
            until: None,
            claim: None,
        };
        let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)]));
        let digest = Digest(key.into());
        let call = Call { id: u64::from(key) + 7, digest, rule, op: Op::Acquire(ask), sent_at: Instant(0) };
        Part { key, call, found: None }
    }

    #[test]
    fn those_of_one_limit_gather_and_none_of_them_is_about_the_same_key() {
        let mut joining = Joining::default();
        let mut add = |node: u32, key: u32, limit: &str| joining.add((node, 0), part(key, limit)).map(|of| of.len());
        assert_eq!([0, 1].map(|key| add(0, key, "9/1s fixed")), [None, Some(2)]);
        assert_eq!([0, 1, 2].map(|key| add(0, key, "9/1s fixed")), [None, None, Some(3)]);
        assert_eq!([0, 1, 1].map(|key| add(0, key, "9/1s fixed")), [None, None, Some(2)], "twice the same key");
        assert_eq!([2, 3].map(|key| add(0, key, "8/1s fixed")), [None, None], "one alone is none");
        assert_eq!(add(1, 4, "8/1s fixed"), None, "another node");
    }

    #[test]
    fn of_each_shape_a_few_gather() {
        let mut joining = Joining::default();
        let mut gather =
            |limit: &str| (0..1_000).filter(|key| joining.gathers(&part(2 * key, limit).call, None)).count();
        assert_eq!([gather("9/1s fixed"), gather("8/1s fixed")], [ENOUGH as usize; 2]);
        assert!(joining.gathers(&part(1, "9/1s fixed").call, None), "it holds something, and the others did not");
    }
}
