//! JSON for the command line: keys, policies and counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ask::CheckRequest;
use super::check_request::CheckResult;
use super::gossip::FleetStatus;
use super::key_text::shown;
use super::node::counts::Cursor;
use super::stats::Stats;
use crate::core::answer::Standing;
use crate::core::decision::{Reason, Source, Verdict};
use crate::core::policy::{OnStoreLoss, Plan, PolicySet};
use crate::core::shard::KeyInfo;
use crate::core::time::Micros;

/// Once a page of `RATION.KEYS` has this many bytes, no further key is added.
const PAGE: usize = 1 << 20;

/// `RATION.KEYS`: an array of objects. If a cursor was given, an object with that array and the cursor of the next
/// page, which is "0" after the last one. A key that is not UTF-8 is shown with `\x` escapes, and a long one by its
/// start. `most` is how many keys were asked for.
#[must_use]
pub fn keys(keys: &[(Cursor, KeyInfo)], is_page: bool, most: usize) -> String {
    let mut list = String::from("[");
    let mut next = None;
    for (index, (behind, info)) in keys.iter().enumerate() {
        if index > 0 {
            list.push(',');
        }
        list.push_str(&key(info).to_string());
        if list.len() >= PAGE || index + 1 == most {
            next = Some(*behind);
            break;
        }
    }
    list.push(']');
    if !is_page {
        return list;
    }
    format!("{{\"cursor\":\"{:x}\",\"keys\":{list}}}", next.map_or(0, Cursor::number))
}

fn key(info: &KeyInfo) -> Value {
    let key = info.key.as_deref().map(shown);
    let limits: Vec<String> = info.rule.limits.iter().map(ToString::to_string).collect();
    json!({
        "policy": &*info.rule.policy,
        "key": key,
        "digest": info.digest.to_string(),
        "limits": limits,
        "held": info.held,
        "limit": info.decision.limit,
        "remaining": info.decision.remaining,
        "reset_after_ms": info.decision.reset_after.as_millis_ceil(),
        "reset_at_ms": info.decision.reset_at.as_millis_ceil(),
    })
}

/// `RATION.POLICIES`: an array of objects.
#[must_use]
pub fn policies(policies: &PolicySet) -> String {
    let list: Vec<Value> = policies
        .iter()
        .map(|policy| {
            let mut object = plan(&policy.plan);
            object.insert("name".into(), json!(&*policy.name));
            if let Some(candidate) = &policy.candidate {
                let limits: Vec<String> = candidate.limits.iter().map(ToString::to_string).collect();
                object.insert("candidate".into(), json!(limits));
            }
            object.insert("enforce".into(), json!(policy.enforce));
            object.insert("refunds".into(), json!(policy.refunds));
            let overrides: Map<String, Value> =
                policy.overrides.iter().map(|(name, part)| (name.to_owned(), Value::Object(plan(part)))).collect();
            object.insert("overrides".into(), Value::Object(overrides));
            Value::Object(object)
        })
        .collect();
    Value::Array(list).to_string()
}

fn plan(plan: &Plan) -> Map<String, Value> {
    let mut object = Map::new();
    match plan {
        Plan::Limited(rule) => {
            let limits: Vec<String> = rule.limits.iter().map(ToString::to_string).collect();
            object.insert("limits".into(), json!(limits));
            let on_store_loss = match rule.on_store_loss {
                OnStoreLoss::Share => "share",
                OnStoreLoss::Entitled => "entitled",
                OnStoreLoss::Allow => "allow",
                OnStoreLoss::Deny => "deny",
            };
            object.insert("on_store_loss".into(), json!(on_store_loss));
        }
        Plan::Unlimited => drop(object.insert("unlimited".into(), json!(true))),
        Plan::Blocked => drop(object.insert("blocked".into(), json!(true))),
    }
    object
}

/// `RATION.PEERS`, and what `RATION.TOP` says of the fleet: one object. `owned` says how many keys each node owns of those that
/// this one knows.
#[must_use]
pub fn peers(fleet: &FleetStatus, owned: &BTreeMap<Arc<str>, u64>) -> Value {
    let mut object = self::fleet(fleet);
    for peer in object["peers"].as_array_mut().into_iter().flatten() {
        let count = peer["name"].as_str().and_then(|name| owned.get(name)).copied();
        peer["owns"] = json!(count.unwrap_or(0));
    }
    object
}

/// The nodes of the fleet, and what this node knows of them.
#[must_use]
fn fleet(fleet: &FleetStatus) -> Value {
    let list: Vec<Value> = fleet
        .members
        .iter()
        .map(|(member, heard)| {
            json!({
                "name": &*member.id.name,
                "incarnation": member.id.incarnation,
                "address": member.address.to_string(),
                "state": member.state.as_str(),
                "version": member.version,
                "owner": member.owning.as_str(),
                "self": member.id == fleet.own,
                "heard_ms_ago": heard.map(Micros::as_millis_ceil),
            })
        })
        .collect();
    json!({
        "peers": list,
        "live": fleet.view.live,
        "largest": fleet.view.largest,
        "staleness_ms": fleet.staleness.as_millis_ceil(),
        "connections": fleet.stats.connections,
        "bytes_in": fleet.stats.bytes_in,
        "bytes_out": fleet.stats.bytes_out,
        "certificate_days_left": fleet.stats.certificate_days_left,
    })
}

/// A decision with its numbers in milliseconds.
#[derive(Serialize)]
struct Decided {
    limit: u64,
    limit_name: Option<String>,
    limited: bool,
    reason: &'static str,
    remaining: u64,
    reset_after_ms: u64,
    reset_at_ms: u64,
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    source: &'static str,
}

impl Decided {
    fn of(CheckResult { decision, rule, .. }: &CheckResult) -> Self {
        let limit = rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
        Self {
            limit: decision.limit,
            limit_name: limit.map(ToString::to_string),
            limited: decision.verdict == Verdict::Deny,
            reason: decision.reason.as_str(),
            remaining: decision.remaining,
            reset_after_ms: decision.reset_after.as_millis_ceil(),
            reset_at_ms: decision.reset_at.as_millis_ceil(),
            retry_after_ms: decision.retry_after.map(Micros::as_millis_ceil),
            slot: decision.slot.map(|slot| format!("{slot:016x}")),
            source: decision.source.as_str(),
        }
    }
}

/// A decision as an object to which more members can be added. `http/body.rs` writes the same without a map.
#[must_use]
pub fn decision(result: &CheckResult) -> Map<String, Value> {
    let Value::Object(object) = json!(Decided::of(result)) else { return Map::new() };
    object
}

/// What this node knows of a key beside the decision.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Tokens that it holds.
    pub held: Option<u64>,
    /// The state of each limit.
    pub standings: Vec<Standing>,
    /// Live nodes of the fleet.
    pub nodes: Option<u32>,
    /// The node that leases the key for all.
    pub owner: Option<Arc<str>>,
}

/// `RATION.EXPLAIN`: one object.
#[must_use]
pub fn explanation(check: &CheckRequest, result: &CheckResult, facts: &Facts) -> String {
    let CheckRequest { policy, key, .. } = check;
    let mut object = plan(policy.plan(key));
    object.append(&mut decision(result));
    object.insert("policy".into(), json!(&*policy.name));
    object.insert("key".into(), json!(shown(key)));
    object.insert("digest".into(), json!(result.digest.to_string()));
    object.insert("overridden".into(), json!(policy.overrides.get(key).is_some()));
    object.insert("override".into(), json!(policy.overrides.name_of(key)));
    object.insert("enforce".into(), json!(policy.enforce));
    object.insert("held".into(), json!(facts.held));
    object.insert("nodes".into(), json!(facts.nodes));
    object.insert("owner".into(), json!(facts.owner.as_deref()));
    object.insert("each".into(), each(result, &facts.standings));
    object.insert("why".into(), json!(why(result)));
    Value::Object(object).to_string()
}

/// The state of each limit by itself.
fn each(result: &CheckResult, standings: &[Standing]) -> Value {
    let limits = result.rule.iter().flat_map(|rule| rule.limits.iter());
    let each = limits.zip(standings).map(|(limit, standing)| {
        json!({
            "limit_name": limit.to_string(),
            "limit": limit.capacity(),
            "remaining": standing.remaining,
            "reset_after_ms": standing.reset_after.as_millis_ceil(),
        })
    });
    each.collect()
}

/// The decision as a sentence for people.
#[must_use]
pub fn why(result: &CheckResult) -> String {
    let CheckResult { decision, rule, .. } = result;
    let limit = rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
    Why { result, name: &limit.map(ToString::to_string).unwrap_or_default() }.to_string()
}

/// Writes that sentence. `name` is that of the limit which fills the decision's numbers, empty without one.
#[derive(Debug)]
pub struct Why<'a> {
    /// The decision.
    pub result: &'a CheckResult,
    /// The limit's name.
    pub name: &'a str,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { result: CheckResult { decision, .. }, name } = self;
        let wait = decision.retry_after.map_or(0, Micros::as_millis_ceil);
        match decision.reason {
            Reason::Ok if name.is_empty() => f.write_str("the policy does not limit this key"),
            Reason::Ok if decision.source == Source::Share => {
                write!(f, "the store is away: {} tokens are left of this node's share of {name}", decision.remaining)
            }
            Reason::Ok => write!(f, "{} of {} tokens are left of {name}", decision.remaining, decision.limit),
            Reason::Rate if decision.source == Source::Prefilter => {
                write!(f, "the fleet has spent {name}, as peers tell: there is more in {wait} ms")
            }
            // A daemon under attack says this most of the time, and `write!` takes twice as long.
            Reason::Rate => {
                f.write_str(name)?;
                f.write_str(" is spent: there is more in ")?;
                wait.fmt(f)?;
                f.write_str(" ms")
            }
            Reason::Share => {
                write!(f, "the store is away, and this node's share of {name} is spent: try again in {wait} ms")
            }
            Reason::Store => f.write_str("the store is away, and the policy says to deny then"),
            Reason::Cost => write!(f, "{name} never holds so much at once"),
            Reason::Blocked => f.write_str("the policy blocks this key"),
            Reason::Shadow => write!(f, "{name} is spent, but the policy only watches this key"),
            Reason::Overload => f.write_str(
                "the store has not answered in time, or this node holds as many keys, or lets as many checks wait, as \
                 it may",
            ),
        }
    }
}

/// `RATION.STATS`: one object.
#[must_use]
pub fn stats(stats: &Stats) -> String {
    let policies: Map<String, Value> = stats
        .policies
        .iter()
        .map(|(name, counts)| {
            let checks: Vec<Value> = counts
                .checks()
                .map(|(verdict, reason, source, count)| {
                    json!({"verdict": verdict.as_str(), "reason": reason.as_str(), "source": source.as_str(), "count": count})
                })
                .collect();
            let object = json!({
                "checks": checks,
                "granted": counts.granted,
                "spent": counts.spent,
                "returned": counts.returned,
                "expired": counts.expired,
                "parked": counts.parked,
                "batch": counts.batch,
            });
            (name.to_string(), object)
        })
        .collect();
    json!({
        "policies": policies,
        "keys": stats.shards.keys,
        "evicted": stats.shards.evicted,
        "waiting": stats.shards.waiting,
        "degraded": stats.shards.degraded,
        "lost_epochs": stats.shards.lost_epochs,
        "damaged": stats.shards.damaged,
        "commands": stats.commands,
        "errors": stats.errors,
        "connections": stats.connections,
        "accepted": stats.accepted,
        "refused": stats.refused,
        "stalled": stats.stalled,
        "calls_in_flight": stats.calls_in_flight,
    })
    .to_string()
}
