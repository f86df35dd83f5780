//! Which nodes have been asked for more keys than one of their shards has room for: keys that make room for others are
//! then forgotten. Checkers work key by key and do not see how many keys a node has, so this counts them.

use crate::maps::{Numbered, Set};
use crate::observe::Seen;
use crate::plan::Plan;

/// The keys of each node, as long as they have room in one shard.
#[derive(Debug)]
pub(super) struct Crowd {
    room: usize,
    /// By node: the keys that it was asked for or has called the store about, up to one more than there is room for.
    known: Numbered<Set<u32>>,
}

impl Crowd {
    /// `None` if all tables have room for all keys.
    pub(super) fn new(plan: &Plan) -> Option<Self> {
        let (most, shards) = (plan.daemon.max_keys, plan.daemon.shards.max(1));
        let keys = plan.keys();
        let churns = plan.demand.iter().any(|demand| demand.churn.0 > 0);
        let is_crowded = churns || u64::from(most) < keys * u64::from(shards);
        is_crowded.then(|| Self { room: most.div_ceil(shards) as usize, known: Numbered::default() })
    }

    /// The node whose keys exceed its room for the first time by what was seen.
    pub(super) fn see(&mut self, seen: &Seen<'_>) -> Option<u32> {
        let (node, key) = match seen {
            Seen::Answered { request, .. } => (request.node, request.key),
            Seen::Called { node, key, .. }
            | Seen::PeerWaits { node, key, .. }
            | Seen::PeerAnswered { node, key, .. } => (*node, *key),
            Seen::Joined { node, .. } | Seen::Left { node, .. } => {
                self.known.of(*node).clear();
                return None;
            }
            _ => return None,
        };
        let known = self.known.of(node);
        let is_new = known.len() <= self.room && known.insert(key);
        (is_new && known.len() > self.room).then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::ask::{Ask, Terms};
    use rationd::core::key::Digest;
    use rationd::core::policy::Rule;
    use rationd::core::time::Micros;

    use super::*;
    use crate::plan::Demand;

    fn ask() -> Ask {
        let terms = Terms { rule: 1, want: 1, least: 1, patience: Micros(5_000), aside: false };
        Ask {
            id: 1,
            digest: Digest(1),
            key: b"k".as_slice().into(),
            rule: Arc::new(Rule::of("p", &[rationd::core::limit::Limit::parse("9/1s").expect("a limit")])),
            terms,
            awaited: terms.patience,
        }
    }

    fn plan(max_keys: u32, keys: u32) -> Plan {
        let mut plan = Plan::default();
        (plan.daemon.max_keys, plan.daemon.shards) = (max_keys, 2);
        plan.demand = vec![Demand { keys, ..Demand::default() }];
        plan
    }

    fn crowd(max_keys: u32, keys: u32) -> Option<Crowd> {
        Crowd::new(&plan(max_keys, keys))
    }

    #[test]
    fn a_request_of_several_keys_makes_more_of_them() {
        let mut plan = plan(8, 4);
        plan.policies = vec![plan.policies[0].clone(); 2];
        assert!(Crowd::new(&plan).is_none());
        plan.demand[0].several = 300;
        assert!(Crowd::new(&plan).is_some());
    }

    #[test]
    fn a_node_is_named_once_when_it_has_more_keys_than_a_shard_has_room_for() {
        assert!(crowd(8, 4).is_none());
        let mut crowd = crowd(4, 4).expect("one shard has room for two of them");
        let ask = ask();
        let mut named = |key| {
            let waits = Seen::PeerWaits { node: 3, incarnation: 0, key, ask: &ask, peer: (0, 0) };
            crowd.see(&waits)
        };
        assert_eq!([7, 8, 7, 9, 10].map(&mut named), [None, None, None, Some(3), None]);
        assert_eq!(crowd.see(&Seen::Joined { node: 3, incarnation: 1 }), None);
        let waits = |key| Seen::PeerWaits { node: 3, incarnation: 1, key, ask: &ask, peer: (0, 0) };
        assert_eq!([7, 8, 9].map(|key| crowd.see(&waits(key))), [None, None, Some(3)]);
    }
}
