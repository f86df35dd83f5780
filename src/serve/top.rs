//! `RATION.TOP`: what a daemon does now, as one JSON object: counts since its start, from two of which a viewer makes
//! rates, and the keys that were hot of late.
//!
//! Keys are for administrators, so the caller decides whether the object has them. Called by `command_line`, and by the
//! status page.

use serde_json::{Value, json};

use super::figures::{Verdicts, is_up};
use super::hot_keys::{self, Kind};
use super::key_text::shown;
use super::listing;
use super::server_state::ServerState;
use super::sketch::Seen;
use super::thread_stats::DURATION_BOUNDS;
use crate::store::breaker::BreakerState;
use crate::store::redis::{CallOutcome, LATENCY_BOUNDS, ServerView, Snapshot};

/// The object. `keys`: the most keys of each kind; `None` for no keys at all.
#[must_use]
pub fn top(state: &ServerState, keys: Option<usize>) -> Value {
    let now = state.node.clock.now();
    let stats = state.stats();
    let shares = state.local_limits();
    let policies: Vec<Value> = stats
        .policies
        .iter()
        .map(|(name, counts)| {
            let Verdicts { allowed, denied, shadowed } = Verdicts::of(counts);
            let gone = counts.spent + counts.returned + counts.expired;
            json!({
                "name": &**name,
                "allowed": allowed,
                "denied": denied,
                "shadowed": shadowed,
                "waited": counts.parked,
                "lent": counts.granted,
                "held": counts.granted.saturating_sub(gone),
                "share": shares.iter().find(|(known, _)| known == name).map(|(_, tokens)| tokens),
            })
        })
        .collect();
    let seconds = |bounds: &[f64]| bounds.iter().map(|bound| (bound * 1e6).round() as u64).collect::<Vec<_>>();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "at_ms": now.0 / 1_000,
        "uptime_ms": now.since(state.started).0 / 1_000,
        "policies": policies,
        "hot": keys.map(|most| hot(state, most)),
        "took": {"bounds_us": seconds(&DURATION_BOUNDS), "counts": stats.durations.counts},
        "keys": stats.shards.keys,
        "waiting": stats.shards.waiting,
        "degraded": stats.shards.degraded,
        "connections": stats.connections,
        "commands": stats.commands,
        "errors": stats.errors,
        "store": state.store_snapshot().map(|store| store_state(&store)),
        "fleet": state.fleet_status().map(|fleet| listing::peers(&fleet, &state.owned_keys())),
    })
}

fn hot(state: &ServerState, most: usize) -> Value {
    let now = state.node.clock.now();
    let list = |kind| {
        let seen = hot_keys::top(state.node.hot_keys(now, kind), most);
        seen.iter().map(key).collect::<Vec<_>>()
    };
    json!({
        "span_ms": hot_keys::span(state.started, now).0 / 1_000,
        "used": list(Kind::Used),
        "denied": list(Kind::Denied),
    })
}

fn key(seen: &Seen) -> Value {
    let Seen { name, times } = seen;
    json!({
        "policy": &*name.policy,
        "key": shown(name.key.bytes()),
        "digest": name.digest.to_string(),
        "times": times,
    })
}

fn store_state(store: &Snapshot) -> Value {
    let all: u64 = store.calls.iter().map(|(_, _, count)| count).sum();
    let answered = store.calls_that_ended(CallOutcome::Ok) + store.calls_that_ended(CallOutcome::Replayed);
    let bounds: Vec<u64> = LATENCY_BOUNDS.iter().map(|bound| (bound * 1e6).round() as u64).collect();
    json!({
        "calls": all,
        "failed": all - answered,
        "took": {"bounds_us": bounds, "counts": store.latency},
        "servers": store.servers.iter().map(server).collect::<Vec<_>>(),
    })
}

fn server(server: &ServerView) -> Value {
    json!({
        "address": server.address,
        "up": is_up(server),
        "breaker": match server.breaker {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half open",
        },
        "problem": server.problem,
        "window": server.window,
        "out": server.out,
        "waiting": server.waiting,
        "replicas": server.replicas,
    })
}
