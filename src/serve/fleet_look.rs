//! Looks at the whole fleet: asks each peer what it does now, while a person or a program looks at this node's view of
//! it.
//!
//! Otherwise nothing is asked, and answers are not kept. The viewer gets what each node has answered within a second,
//! and for each of the others why it has not. Called by `fleet_top`, which knows what this node does itself; `look`
//! makes bytes of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::look::{self, LookAnswer, MOST_KEYS};
use crate::clock::Clock;
use crate::config::FleetTop;
use crate::core::time::{Instant, Micros};
use crate::fleet::{Fleet, PeerId};

/// Longest wait for the answers of peers.
const PATIENCE: Duration = Duration::from_secs(1);
/// An answer is shown for so long without asking again: further viewers get the same one.
pub const FRESH: Micros = Micros::from_millis(200);
/// Peers are asked in groups of so many, each so long after the group before, and none later than `LATEST`. The answers
/// of hundreds of nodes at once would overflow the socket's receive buffer.
const AT_ONCE: u32 = 16;
const APART: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(500);
/// Keys of each list that all peers together are asked for, which bounds the work of merging them; and the least that
/// each peer is asked for.
const KEYS_OF_ALL: usize = 3_200;
const LEAST_KEYS: usize = 40;

/// Looks at the peers of this node.
#[derive(Debug)]
pub struct FleetLook {
    fleet: Fleet,
    /// The last view, when it was made, and for how many keys.
    last: Mutex<Option<(Instant, usize, Arc<Value>)>>,
}

impl FleetLook {
    /// Looks at members of `fleet`.
    #[must_use]
    pub fn new(fleet: Fleet) -> Self {
        Self { fleet, last: Mutex::default() }
    }

    /// What each node does now, with at most `keys` keys of each list: an object whose `nodes` have `top` each, or
    /// `problem`. `own` makes this node's `top`, which is complete; those of peers have what `fleet.top` allows there.
    pub async fn nodes(&self, clock: Clock, keys: usize, own: impl FnOnce() -> Value + Send + 'static) -> Arc<Value> {
        // The lock is held while peers are asked, so that further viewers wait for the same answers.
        let mut last = self.last.lock().await;
        if let Some((at, asked, seen)) = &*last
            && *asked == keys
            && clock.now().since(*at) < FRESH
        {
            return seen.clone();
        }
        let seen = Arc::new(self.look(keys, own).await);
        *last = Some((clock.now(), keys, seen.clone()));
        seen
    }

    async fn look(&self, keys: usize, own_top: impl FnOnce() -> Value + Send + 'static) -> Value {
        let own = self.fleet.own().clone();
        let members = self.fleet.members().borrow().clone();
        let peers: Vec<PeerId> = members.iter().map(|member| &member.id).filter(|id| **id != own).cloned().collect();
        let question = look::question(keys.min(keys_of_each(peers.len())));
        let mut asked = JoinSet::new();
        for (number, peer) in peers.into_iter().enumerate() {
            let (fleet, question) = (self.fleet.clone(), question.clone());
            let looking = async move {
                let late = (APART * (number as u32 / AT_ONCE)).min(LATEST); // as many as a fleet may have
                sleep(late).await;
                let seen = fleet.look(&peer, &question, PATIENCE - late).await;
                (peer, seen)
            };
            asked.spawn_on(looking, self.fleet.runtime());
        }
        let mut own_top = spawn_blocking(own_top).await.unwrap_or_default();
        let mut nodes = Vec::new();
        for (peer, seen) in asked.join_all().await {
            nodes.push(match seen {
                Ok(answer) => match look::read_answer(&answer) {
                    Ok(LookAnswer::Top(detail, top)) => {
                        owns(&mut own_top, &peer, &top["owns"]);
                        json!({"node": &*peer.name, "told": word(detail), "top": top})
                    }
                    Ok(LookAnswer::Off) => {
                        let problem = "it tells nothing: fleet.top is \"off\" there";
                        json!({"node": &*peer.name, "told": "off", "problem": problem})
                    }
                    Err(problem) => json!({"node": &*peer.name, "problem": problem.to_string()}),
                },
                Err(unseen) => json!({"node": &*peer.name, "away": unseen.is_away(), "problem": unseen.to_string()}),
            });
        }
        let of_fleet = |field: &str| own_top["fleet"][field].as_u64().unwrap_or(0);
        let missed = of_fleet("largest").saturating_sub(of_fleet("live"));
        nodes.push(json!({"node": &*own.name, "self": true, "told": "keys", "top": own_top}));
        nodes.sort_by(|a, b| a["node"].as_str().cmp(&b["node"].as_str()));
        json!({"nodes": nodes, "missed": missed})
    }
}

/// How many keys of each list a peer is asked for. It is more than are shown, because a key may be hot only in the sum
/// over many nodes; in a large fleet it is fewer, to bound the sum.
fn keys_of_each(peers: usize) -> usize {
    (KEYS_OF_ALL / peers.max(1)).clamp(LEAST_KEYS, MOST_KEYS)
}

fn word(detail: FleetTop) -> &'static str {
    match detail {
        FleetTop::Totals => "totals",
        FleetTop::Keys => "keys",
        FleetTop::Off => "off",
    }
}

/// Puts a peer's own count of the keys that it owns into `top`, in place of this node's count: the peer knows all of
/// them.
fn owns(top: &mut Value, node: &PeerId, count: &Value) {
    let mut peers = top.pointer_mut("/fleet/peers").and_then(Value::as_array_mut).into_iter().flatten();
    if let Some(known) = peers.find(|peer| peer["name"] == *node.name)
        && count.is_u64()
    {
        known["owns"] = count.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_large_fleet_is_asked_for_fewer_keys() {
        assert_eq!([0, 2, 16, 32, 99, 499].map(keys_of_each), [200, 200, 200, 100, 40, 40]);
    }

    #[test]
    fn a_node_says_itself_what_it_owns() {
        let mut top = json!({"fleet": {"peers": [{"name": "a", "owns": 1}, {"name": "b", "owns": 2}]}});
        let peer = |name: &str| PeerId { name: name.into(), incarnation: 1 };
        owns(&mut top, &peer("b"), &json!(9));
        owns(&mut top, &peer("a"), &Value::Null);
        owns(&mut top, &peer("c"), &json!(9));
        assert_eq!(top, json!({"fleet": {"peers": [{"name": "a", "owns": 1}, {"name": "b", "owns": 9}]}}));
    }
}
