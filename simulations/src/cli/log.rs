//! `log`: what happened in one run, one line per event, as the checkers saw it.
//!
//! For finding out how a violation came about. Decides nothing.

use clap::Args;
use rationd::core::ask::Answer;
use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::time::StoredTime;

use super::arguments::{Travel, Verdict};
use super::output::say;
use super::run::plan_of;
use crate::lua::Scripts;
use crate::maps::Map;
use crate::observe::{Moment, Observer, Seen, Topic};
use crate::world::{self, Watch, World};

/// Arguments of `log`.
#[derive(Debug, Args)]
pub(super) struct Log {
    /// A seed of the swarm, a file, or its name.
    #[arg(value_name = "SEED|FILE")]
    what: String,
    /// Only events of this key.
    #[arg(long)]
    key: Option<u32>,
    /// Only events of this node.
    #[arg(long)]
    node: Option<u32>,
    /// Print the plan first.
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    travel: Travel,
}

/// An observer that prints events.
struct Printer {
    key: Option<u32>,
    node: Option<u32>,
    /// By digest.
    keys: Map<u128, u32>,
}

impl Log {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let plan = self.travel.adapt(plan_of(&self.what)?);
        if self.plan {
            say!("{}", toml::to_string(&plan)?);
        }
        let setting = world::setting(&plan).map_err(anyhow::Error::msg)?;
        let (mut printer, mut scripts) =
            (Printer { key: self.key, node: self.node, keys: Map::default() }, Scripts::new());
        World::new(&setting, &mut scripts, Watch::new(vec![&mut printer]).at_once()).run();
        Ok(Verdict::Good)
    }
}

impl Printer {
    /// An event that is about no key or no node passes the filter for any.
    fn wants(&self, node: Option<u32>, key: Option<u32>) -> bool {
        let is = |wanted: Option<u32>, one: Option<u32>| wanted.is_none() || one.is_none() || wanted == one;
        is(self.node, node) && is(self.key, key)
    }
}

/// A call in words.
fn order(call: &Call) -> String {
    let limits = 0..call.rule.limits.len();
    match &call.op {
        Op::Acquire(ask) => {
            let Acquire { need, want, least, window, epoch, held, claim, .. } = ask;
            let known = limits.clone().map(|index| (ask.known[index].used, ask.known[index].at.0));
            let ages = limits.map(|index| ask.ages[index].0);
            let (known, ages): (Vec<_>, Vec<_>) = (known.collect(), ages.collect());
            let ahead = window.on_wire();
            let says = claim.map_or_else(String::new, |claim| format!(", {claim:?}"));
            format!(
                "acquire {need} {want} {least}, ahead {ahead}, epoch {epoch}, held {held}, {known:?}, ages {ages:?}{says}"
            )
        }
        Op::Return { amount, epoch, held, ages, windows, voids } => {
            let windows: Vec<_> = limits.map(|index| (StoredTime::number(windows[index]), ages[index].0)).collect();
            let id = voids.map_or(0, |voids| voids.id);
            format!("return {amount}, epoch {epoch}, held {held}, {windows:?}, voids {id}")
        }
        other => format!("{other:?}"),
    }
}

/// The store's answer in words.
fn answer(call: &Call, grant: &Grant) -> String {
    let Grant { granted, epoch, nodes, now, .. } = grant;
    let marks = [(grant.replayed, "replayed "), (grant.outdated, "outdated "), (grant.reset, "reset ")];
    let marks: String = marks.iter().filter(|(is_set, _)| *is_set).map(|(_, text)| *text).collect();
    let counters = grant.counters.iter().take(call.rule.limits.len());
    let counters: Vec<_> = counters.map(|counter| (counter.used, counter.prev, counter.at.0)).collect();
    let aside = if call.sets_aside() { format!(", entitled to {}", grant.entitled) } else { String::new() };
    format!("{granted} {marks}at {}, epoch {epoch}, {nodes} nodes, {counters:?}{aside}", now.0)
}

/// A peer's answer in words.
fn word(answer: &Answer) -> String {
    match answer {
        Err(refusal) => format!("{refusal:?}"),
        Ok(loan) => {
            let (lasts, counter) = (loan.lasts.map(|lasts| lasts.0), loan.counters[0]);
            format!("{} for {lasts:?}, wait {}, epoch {}, {counter:?}", loan.tokens, loan.wait.0, loan.epoch)
        }
    }
}

impl Observer for Printer {
    fn minds(&self, _: Topic) -> bool {
        true
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let at = moment.at;
        if let Seen::Called { key, call, .. } = seen {
            self.keys.insert(call.digest.0, *key);
        }
        match seen {
            Seen::Asked(_) | Seen::Audit { .. } | Seen::Reported { .. } | Seen::Repeated { .. } => {}
            Seen::Answered { request, decision, parked, store, .. } => {
                if self.wants(Some(request.node), Some(request.key)) {
                    let (node, key, kind, cost) = (request.node, request.key, request.kind, request.cost);
                    say!(
                        "{at} node {node} key {key} store {} {kind:?} {cost} {parked} {:?} {:?} {:?} {} left, whole at {}, wait {}",
                        store.0,
                        decision.verdict,
                        decision.reason,
                        decision.source,
                        decision.remaining,
                        decision.reset_at.0,
                        decision.retry_after.map_or(0, |wait| wait.0)
                    );
                }
            }
            Seen::Executed { node, key, call, grant, stale, .. } if self.wants(Some(*node), Some(*key)) => {
                let stale = if *stale { "by who is no owner, " } else { "" };
                say!("{at} node {node} key {key} executed {}: {stale}{}", call.id, answer(call, grant));
            }
            Seen::Picked { node, usage, .. } => {
                for entry in *usage {
                    let key = self.keys.get(&entry.digest.0).copied();
                    if self.wants(Some(*node), key) {
                        let (window, count) = (entry.window.0, entry.count);
                        say!(
                            "{at} node {node} tells of key {key:?}, limit {}, window {window}: {count:?}, epoch {}",
                            entry.limit,
                            entry.epoch
                        );
                    }
                }
            }
            Seen::Called { node, key, call, sent } if self.wants(Some(*node), Some(*key)) => {
                let barred = if *sent { "" } else { "in vain " };
                say!("{at} node {node} key {key} calls {barred}{}: {}", call.id, order(call));
            }
            Seen::Settled { node, key, call, grant, .. } if self.wants(Some(*node), Some(*key)) => {
                let heard = grant.map_or("nothing".to_owned(), |grant| answer(call, grant));
                say!("{at} node {node} key {key} hears of {}: {heard}", call.id);
            }
            Seen::Released { node, key, permit, released, .. } => {
                if self.wants(Some(*node), Some(*key)) {
                    say!("{at} node {node} key {key} releases {permit}: {released}");
                }
            }
            Seen::PeerAsked { node, key, ask, peer, .. } if self.wants(Some(*node), Some(*key)) => {
                let whom = peer.map_or("a peer".to_owned(), |(peer, _)| format!("peer {peer}"));
                say!("{at} node {node} key {key} asks {whom} {}: {:?}", ask.id, ask.terms);
            }
            Seen::PeerAnswered { node, key, peer, ask, answer, .. } if self.wants(Some(*node), Some(*key)) => {
                say!("{at} node {node} key {key} answers node {} {}: {}", peer.0, ask.id, word(answer));
            }
            Seen::PeerHeard { node, key, peer, ask, answer, .. } if self.wants(Some(*node), Some(*key)) => {
                say!("{at} node {node} key {key} hears of {} from node {}: {}", ask.id, peer.0, word(answer));
            }
            Seen::PeerAsked { .. } | Seen::PeerWaits { .. } | Seen::PeerAnswered { .. } | Seen::PeerHeard { .. } => {}
            Seen::Executed { .. } | Seen::Called { .. } | Seen::Settled { .. } => {}
            Seen::Undone { key, .. } | Seen::Lost { key, .. } | Seen::Census { key, .. } | Seen::Keeps { key, .. } => {
                if self.wants(None, Some(*key)) {
                    say!("{at} {seen:?}");
                }
            }
            other => say!("{at} {other:?}"),
        }
    }
}
