//! One request of Envoy: from descriptors to keys of policies, and from decisions to the response.

use std::sync::Arc;

use tonic::Status;

use super::answer::{self, Hits, Limited};
use super::proto::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use crate::core::decision::{Reason, Verdict};
use crate::core::limit::{Algorithm, Limit, MAX_COUNT};
use crate::core::overrides::Overrides;
use crate::core::policy::{OVERRIDDEN, OnStoreLoss, Plan, Policy, PolicySet, Rule};
use crate::core::route::{Domain, Entry, whole_key};
use crate::core::shard;
use crate::core::time::Micros;
use crate::serve::ask::{Ask, CheckRequest};
use crate::serve::check_request::{CheckResult, TimedMultiCheck};
use crate::serve::crowd::Queue;
use crate::serve::mailbox::Mailbox;
use crate::serve::node::Outgoing;
use crate::serve::server_state::ServerState;
use crate::store::turns::Asker;
use crate::wire::command::MAX_KEY;
use crate::wire::headers::Style;

/// Most descriptors of a request.
const MAX_DESCRIPTORS: usize = 64;
/// Most entries of a descriptor.
const MAX_ENTRIES: usize = 64;

/// Answers requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Service {
    state: Arc<ServerState>,
    headers: Option<Style>,
    asker: Asker,
    /// Limits the answers of the store that the connection awaits.
    queue: Queue,
}

impl Service {
    pub(super) fn new(state: Arc<ServerState>, headers: Option<Style>, asker: Asker) -> Self {
        let queue = Queue::new(state.node.crowd.place(asker));
        Self { state, headers, asker, queue }
    }

    /// Answers a request with a gRPC frame.
    pub(super) async fn answer(self, request: RateLimitRequest) -> Result<Vec<u8>, Status> {
        let count = request.descriptors.len();
        let limited = read(&self.state.policies.load(), &request, self.asker)?;
        if limited.is_empty() {
            return Ok(answer::write(count, &[], &[], self.headers));
        }
        let came = self.state.node.clock.now();
        let turn = self.queue.turn().await;
        let (headers, asking) = (self.headers, TimedMultiCheck::begin(&self.state, came, checks(&limited)));
        let (limited, results) = if asking.is_complete() {
            drop(turn);
            self.end(asking, limited).await
        } else {
            let (service, awaited) = (self.clone(), turn.await_answers(limited.len()));
            // Runs in a task of its own. Envoy cancels the request after its timeout, and what was charged until then
            // must still be given back.
            let ended = tokio::spawn(async move {
                let ended = service.end(asking, limited).await;
                drop(awaited);
                ended
            });
            ended.await.map_err(|_| Status::unavailable("the daemon is leaving"))?
        };
        match refusal(&limited, &results) {
            Some(refusal) => Err(refusal),
            None => Ok(answer::write(count, &limited, &results, headers)),
        }
    }

    async fn end(&self, asking: TimedMultiCheck, limited: Vec<Limited>) -> (Vec<Limited>, Vec<CheckResult>) {
        let (is_denied, mut results) = asking.end(&self.state).await;
        if !is_denied {
            limited.iter().zip(&mut results).for_each(|(limited, result)| self.give_back(limited, result));
        }
        (limited, results)
    }

    fn give_back(&self, Limited { hits, check, .. }: &Limited, result: &mut CheckResult) {
        let (Hits::Give(cost), Some(rule)) = (*hits, &result.rule) else { return };
        if cost == 0 {
            return;
        }
        let key = &check.key;
        let (node, mut out) = (&self.state.node, Outgoing::default());
        let digest = node.digests.digest(&check.policy.name, key);
        let request = shard::Request { rule, digest, key, cost, peek: false };
        node.ask(node.clock.now(), Ask::Refund, request, (&Arc::new(Mailbox::of(check.asker)), 0), &mut out);
        node.flush(&mut out);
        result.decision.remaining = result.decision.remaining.saturating_add(cost).min(result.decision.limit);
    }
}

fn checks(limited: &[Limited]) -> Vec<CheckRequest> {
    limited.iter().map(|limited| limited.check.clone()).collect()
}

/// The descriptors that policies limit, in order.
fn read(policies: &PolicySet, request: &RateLimitRequest, asker: Asker) -> Result<Vec<Limited>, Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument("the domain is empty"));
    }
    if !(1..=MAX_DESCRIPTORS).contains(&request.descriptors.len()) {
        let seen = request.descriptors.len();
        return Err(Status::invalid_argument(format!("{seen} descriptors: 1 to {MAX_DESCRIPTORS} were wanted")));
    }
    let Some(domain) = policies.routes().domain(&request.domain) else { return Ok(Vec::new()) };
    let mut limited = Vec::new();
    let mut replaced = Vec::new();
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        if descriptor.entries.len() > MAX_ENTRIES {
            let seen = descriptor.entries.len();
            return Err(Status::invalid_argument(format!("{seen} entries of a descriptor: {MAX_ENTRIES} at most")));
        }
        let entries: Vec<Entry<'_>> = descriptor.entries.iter().map(|e| (&*e.key, &*e.value)).collect();
        let routed = Routed { policies, domain, entries: &entries };
        let (policy, key) = match &descriptor.limit {
            Some(limit) => routed.overridden(&request.domain, *limit)?,
            None => match routed.find(&mut replaced) {
                Some(found) => found,
                None => continue,
            },
        };
        if key.len() > MAX_KEY {
            return Err(Status::invalid_argument(format!("a key of {} bytes: {MAX_KEY} at most", key.len())));
        }
        let hits = hits(request, descriptor)?;
        if matches!(hits, Hits::Give(_)) && !policy.refunds {
            let name = &policy.name;
            return Err(Status::permission_denied(format!("policy {name:?} takes nothing back (refunds = false)")));
        }
        let (cost, peek) = match hits {
            Hits::Take(cost) => (cost, false),
            Hits::Peek => (1, true),
            Hits::Give(_) => (0, true),
        };
        limited.push(Limited { place, hits, check: CheckRequest { policy, key, cost, peek, asker } });
    }
    limited.retain(|limited| !replaced.contains(&limited.check.policy.name));
    Ok(limited)
}

/// A descriptor for which a policy is looked for.
struct Routed<'r> {
    policies: &'r PolicySet,
    domain: &'r Domain,
    entries: &'r [Entry<'r>],
}

impl Routed<'_> {
    /// The policy and key of the first route that matches. Policies that the route replaces are added to `replaced`.
    fn find(&self, replaced: &mut Vec<Arc<str>>) -> Option<(Arc<Policy>, Box<[u8]>)> {
        let route = self.domain.find(self.entries)?;
        replaced.extend(route.replaces.iter().cloned());
        let policy = self.policies.get(route.policy.as_deref()?)?;
        Some((policy.clone(), route.key(self.entries)))
    }

    /// The policy for a limit that Envoy sends. The limit replaces the policy's own ones, but a blocked key stays
    /// blocked, and a policy in shadow mode stays in it.
    fn overridden(&self, domain: &str, limit: RateLimitOverride) -> Result<(Arc<Policy>, Box<[u8]>), Status> {
        let found = self.find(&mut Vec::new());
        if let Some((policy, key)) = &found
            && *policy.plan(key) == Plan::Blocked
        {
            return Ok((policy.clone(), key.clone()));
        }
        let refunds = found.as_ref().is_none_or(|(policy, _)| policy.refunds);
        let (enforce, on_store_loss) = found.as_ref().map_or((100, OnStoreLoss::Share), |(policy, key)| {
            let plan = policy.plan(key);
            (policy.enforce, if let Plan::Limited(rule) = plan { rule.on_store_loss } else { OnStoreLoss::Share })
        });
        let name: Arc<str> = OVERRIDDEN.into();
        let plan = match limit.requests_per_unit {
            0 => Plan::Blocked,
            count => {
                let limits = [sent_limit(count, limit.unit)?].into();
                Plan::Limited(Arc::new(Rule { policy: name.clone(), limits, on_store_loss }))
            }
        };
        let policy = Policy { name, plan, overrides: Overrides::default(), enforce, refunds, candidate: None };
        Ok((Arc::new(policy), whole_key(domain, self.entries)))
    }
}

fn sent_limit(count: u32, unit: i32) -> Result<Limit, Status> {
    let length = Unit::LENGTHS.into_iter().find(|(known, _)| *known as i32 == unit);
    let (_, seconds) = length.ok_or_else(|| Status::invalid_argument("the limit of a descriptor has no unit"))?;
    let period = Micros(seconds * 1_000_000);
    Limit::new(count.into(), period, Algorithm::Fixed, count.into())
        .map_err(|error| Status::invalid_argument(format!("the limit of a descriptor: {error}")))
}

fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<Hits, Status> {
    let hits = descriptor.hits_addend.map_or(u64::from(request.hits_addend.max(1)), |own| own.value);
    match hits {
        _ if hits > MAX_COUNT => Err(Status::invalid_argument(format!("hits_addend is {hits}: at most {MAX_COUNT}"))),
        _ if descriptor.is_negative_hits => Ok(Hits::Give(hits)),
        0 => Ok(Hits::Peek),
        hits => Ok(Hits::Take(hits)),
    }
}

/// The error status for a request that is denied only because the store is away, where the policy says so. Envoy then
/// applies its own setting for failures.
fn refusal(limited: &[Limited], results: &[CheckResult]) -> Option<Status> {
    let mut denied =
        limited.iter().zip(results).filter(|(_, result)| result.decision.verdict == Verdict::Deny).peekable();
    let (first, _) = *denied.peek()?;
    let name = &first.check.policy.name;
    denied
        .all(|(_, result)| result.decision.reason == Reason::Store)
        .then(|| Status::unavailable(format!("the store is away, and policy {name:?} lets nothing pass then")))
}
