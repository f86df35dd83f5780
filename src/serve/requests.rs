//! Commands whose answer is more than one decision: several keys, holds, sub-leases, explanations.
//!
//! Each is a function from values to a complete reply. It begins when the command is run, and continues in a task of
//! its own if it must wait for the store. Part of `session.rs`.

use std::sync::Arc;

use super::ask::{Ask, CheckRequest};
use super::check_request::{CheckResult, MultiCheck, decide_one, decide_since, peek_local};
use super::connection_permits::ConnectionPermits;
use super::held::Held;
use super::listing::{self, Facts};
use super::mailbox::Mailbox;
use super::node::Outgoing;
use super::server_state::ServerState;
use crate::core::decision::{Decision, Verdict};
use crate::core::holds::{self, Charge, Settling, Step, clock};
use crate::core::limit::Algorithm;
use crate::core::policy::Rule;
use crate::core::shard::Request;
use crate::core::time::Micros;
use crate::wire::headers::{Style, fields};
use crate::wire::reply::{Protocol, Writer};

/// How long a client may spend tokens that it was lent of a bucket, or of a limit whose end the decision does not
/// tell.
const LEASE_LIFE: Micros = Micros::from_millis(500);

/// About the memory of a hold beside its key, in bytes.
const HOLD: usize = 320;

/// A client is lent at most one of so many parts of what is left, so that other clients of the key get some, too.
const PARTS: u64 = 4;

/// The reply to `RATION.MCHECK`.
pub(super) async fn mcheck(state: Arc<ServerState>, asked: MultiCheck, permits: Arc<ConnectionPermits>) -> Vec<u8> {
    let (limited, results) = ended(&state, asked, &permits).await;
    whole(|writer| {
        writer.array(1 + results.len());
        writer.integer(i64::from(limited));
        results.iter().for_each(|result| writer.decision(&result.decision, result.rule.as_deref()));
    })
}

/// The reply to a `RATION.CHECK` of a concurrent limit that had to wait.
pub(super) async fn occupy(state: Arc<ServerState>, asked: MultiCheck, permits: Arc<ConnectionPermits>) -> Vec<u8> {
    let (_, results) = ended(&state, asked, &permits).await;
    whole(|writer| results.iter().for_each(|result| writer.decision(&result.decision, result.rule.as_deref())))
}

async fn ended(state: &ServerState, mut asked: MultiCheck, permits: &ConnectionPermits) -> (bool, Vec<CheckResult>) {
    if !asked.is_complete() {
        asked.complete(state).await;
    }
    let (now, mut out) = (state.node.clock.now(), Outgoing::default());
    let ended = asked.end(state, now, &mut out);
    state.node.flush(&mut out);
    ended.1.iter().for_each(|result| permits.keep(state, now, result));
    ended
}

/// `RATION.HOLD`: a decision, and the id of the hold if there is one.
pub(super) async fn hold(state: Arc<ServerState>, check: CheckRequest, ttl_ms: Option<u64>) -> Vec<u8> {
    let ttl = ttl_ms.map_or(holds::TTL, Micros::from_millis).min(holds::LONGEST);
    if !state.holds().has_room(state.node.clock.now()) {
        let most = holds::MOST;
        return whole(|writer| writer.error(&format!("ERR {most} holds are open on this node: settle some first")));
    }
    let Some(memory) = state.admission.memory_for_hold(check.key.len() + HOLD) else {
        let text = "ERR the holds that are open on this node take as much memory as they may: settle some first";
        return whole(|writer| writer.error(text));
    };
    let result = decide_one(&state, check.clone()).await;
    let is_held = result.decision.verdict == Verdict::Allow && result.rule.is_some();
    let id = is_held.then(|| {
        let charge = Charge::of(check.cost, &result.decision);
        let id = crate::clock::unguessable();
        state.holds().keep(id, charge, Held::new(check, memory), state.node.clock.now() + ttl);
        id
    });
    whole(|writer| {
        writer.array(11);
        writer.ten(&result.decision, result.rule.as_deref());
        match id {
            Some(id) => writer.bulk(format!("{id:032x}").as_bytes()),
            None => writer.bulk(b""),
        }
    })
}

/// `RATION.SETTLE`: corrects the charge of a hold to the final cost.
pub(super) async fn settle(state: Arc<ServerState>, id: Box<[u8]>, cost: u64) -> Vec<u8> {
    let number = std::str::from_utf8(&id).ok().and_then(|id| u128::from_str_radix(id, 16).ok());
    let found = number.and_then(|id| state.holds().take(id, state.node.clock.now()));
    let Some((charge, held)) = found else {
        let text = "ERR no such hold here: it is settled, its time is over, or another node keeps it";
        return whole(|writer| writer.error(text));
    };
    let stands = settled(&state, charge, &held.check, cost).await;
    whole(|writer| writer.count(stands))
}

async fn settled(state: &ServerState, charge: Charge, check: &CheckRequest, cost: u64) -> u64 {
    let (mut settling, mut step) = Settling::begin(charge, cost);
    let mut rule = None;
    loop {
        match step {
            Step::Ask(cost) => {
                // A step without a cost only asks whether the charged window is still open. This node knows that
                // without asking the store.
                let result = if cost == 0 { peek_local(state, check) } else { decide_one(state, check.of(cost)).await };
                step = settling.next(&result.decision, result.rule.as_deref());
                rule = result.rule;
            }
            Step::End { stands, back } => {
                if let Some(rule) = rule.filter(|_| back > 0) {
                    give_back(state, &rule, &check.of(back), charge);
                }
                return stands;
            }
        }
    }
}

fn give_back(state: &ServerState, rule: &Arc<Rule>, check: &CheckRequest, charge: Charge) {
    let CheckRequest { policy, key, cost, asker, .. } = check;
    let request = Request { rule, digest: state.node.digests.digest(&policy.name, key), key, cost: *cost, peek: false };
    let mut out = Outgoing::default();
    let nobody = Arc::new(Mailbox::of(*asker));
    state.node.ask(state.node.clock.now(), Ask::GiveBack(charge), request, (&nobody, 0), &mut out);
    state.node.flush(&mut out);
}

/// `RATION.LEASE`: how many tokens a client may spend without asking, for how long, and the decision.
pub(super) async fn lease(state: Arc<ServerState>, check: CheckRequest) -> Vec<u8> {
    let begun = state.node.clock.now();
    let (want, seen) = (check.cost, decide_since(&state, begun, check.of(0)).await);
    let Some(rule) = seen.rule.clone() else {
        let granted = if seen.decision.verdict == Verdict::Allow { want } else { 0 };
        return lent(granted, LEASE_LIFE, &seen);
    };
    let part = want.min((seen.decision.remaining / PARTS).max(1));
    let result = decide_since(&state, begun, check.of(part)).await;
    let granted = if result.decision.verdict == Verdict::Allow { part } else { 0 };
    let life = life(&rule, &result.decision);
    // The client measures the time by its own clock, which may run slower, so it is told 0.1 % less.
    lent(granted, Micros(life.0 - life.0 / 1_000), &result)
}

/// How long the tokens can be spent, under all limits.
fn life(rule: &Rule, decision: &Decision) -> Micros {
    let now = clock(decision);
    let lives = rule.limits.iter().map(|limit| match limit.algorithm {
        Algorithm::Fixed | Algorithm::Sliding => Micros(limit.period.0 - now.0 % limit.period.0),
        Algorithm::FixedFromFirst if rule.limits.len() == 1 => decision.reset_after,
        Algorithm::FixedFromFirst | Algorithm::Gcra | Algorithm::Concurrent => LEASE_LIFE,
    });
    lives.min().unwrap_or(LEASE_LIFE)
}

fn lent(granted: u64, life: Micros, result: &CheckResult) -> Vec<u8> {
    whole(|writer| {
        writer.array(12);
        writer.count(granted);
        writer.count(if granted > 0 { life.0 / 1_000 } else { 0 });
        writer.ten(&result.decision, result.rule.as_deref());
    })
}

/// `RATION.HEADERS`: whether the key is limited, then names and values of header fields.
pub(super) async fn headers(state: Arc<ServerState>, check: CheckRequest, style: Style) -> Vec<u8> {
    let result = decide_one(&state, check).await;
    let fields = fields(style, &result.decision, result.rule.as_deref());
    whole(|writer| {
        writer.array(1 + 2 * fields.len());
        writer.integer(i64::from(result.decision.verdict == Verdict::Deny));
        for (name, value) in &fields {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
    })
}

/// `RATION.EXPLAIN`: JSON.
pub(super) async fn explain(state: Arc<ServerState>, check: CheckRequest) -> Vec<u8> {
    let text = explained(&state, check).await;
    whole(|writer| writer.bulk(text.as_bytes()))
}

/// Explains in JSON why a key is limited, or would be.
pub(super) async fn explained(state: &ServerState, check: CheckRequest) -> String {
    let check = CheckRequest { peek: true, ..check };
    let result = decide_one(state, check.clone()).await;
    let (now, digest) = (state.node.clock.now(), state.node.digests.digest(&check.policy.name, &check.key));
    let request = |rule| Request { rule, digest, key: &check.key, cost: 0, peek: true };
    let facts = Facts {
        held: state.node.held(now, digest),
        standings: result.rule.as_ref().and_then(|rule| state.node.standings(now, &request(rule))).unwrap_or_default(),
        nodes: state.fleet_status().map(|fleet| fleet.view.live),
        owner: result.rule.as_ref().and_then(|rule| state.node.owner(now, &request(rule))),
    };
    listing::explanation(&check, &result, &facts)
}

fn whole(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut reply = Vec::new();
    write(&mut Writer::new(&mut reply, Protocol::Two));
    reply
}
