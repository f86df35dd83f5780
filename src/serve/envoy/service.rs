//! One request of Envoy: from descriptors to the keys of policies, and from decisions to its response.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tonic::server::UnaryService;
use tonic::{Request, Response, Status};

use super::proto::{
    Code, DescriptorStatus, Duration, HeaderValue, Kind, RateLimit, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Struct, Unit, Value,
};
use crate::core::decision::{Reason, Verdict};
use crate::core::limit::{Algorithm, Limit, MAX_COUNT};
use crate::core::overrides::Overrides;
use crate::core::policy::{OVERRIDDEN, OnStoreLoss, Plan, Policy, PolicySet, Rule};
use crate::core::route::{Domain, Entry, whole_key};
use crate::core::shard;
use crate::core::time::Micros;
use crate::serve::crowd::Queue;
use crate::serve::hub::Hub;
use crate::serve::inquiry::{Asking, Inquiry, Told};
use crate::serve::mailbox::Mailbox;
use crate::serve::node::{Ask, Outgoing};
use crate::store::turns::Asker;
use crate::wire::command::MAX_KEY;
use crate::wire::headers::{Style, fields, window};

/// Most descriptors of a request.
const MAX_DESCRIPTORS: usize = 64;
/// Most entries of a descriptor.
const MAX_ENTRIES: usize = 64;

/// Answers requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Service {
    hub: Arc<Hub>,
    headers: Option<Style>,
    asker: Asker,
    /// Where the connection's requests await answers of the store.
    queue: Queue,
}

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hits {
    /// Tokens, or nothing at all.
    Take(u64),
    /// Whether there is one.
    Peek,
    /// Tokens are given back.
    Give(u64),
}

/// A descriptor that is limited: its place in the request.
#[derive(Debug)]
struct Limited {
    place: usize,
    hits: Hits,
    inquiry: Inquiry,
}

impl Service {
    pub(super) fn new(hub: Arc<Hub>, headers: Option<Style>, asker: Asker) -> Self {
        let queue = Queue::new(hub.node.crowd.place(asker));
        Self { hub, headers, asker, queue }
    }

    async fn answer(self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let count = request.descriptors.len();
        let limited = read(&self.hub.policies.load(), &request, self.asker)?;
        if limited.is_empty() {
            return Ok(response(count, &[], &[], self.headers));
        }
        let came = self.hub.node.clock.now();
        let turn = self.queue.turn().await;
        let (headers, asking) = (self.headers, Asking::begin(&self.hub, came, inquiries(&limited)));
        let (limited, told) = if asking.is_complete() {
            drop(turn);
            self.end(asking, limited).await
        } else {
            let (service, awaited) = (self.clone(), turn.await_answers(limited.len()));
            // A task of its own: Envoy gives up after its timeout, and what was charged until then must be given back.
            let ended = tokio::spawn(async move {
                let ended = service.end(asking, limited).await;
                drop(awaited);
                ended
            });
            ended.await.map_err(|_| Status::unavailable("the daemon is leaving"))?
        };
        match refusal(&limited, &told) {
            Some(refusal) => Err(refusal),
            None => Ok(response(count, &limited, &told, headers)),
        }
    }

    async fn end(&self, asking: Asking, limited: Vec<Limited>) -> (Vec<Limited>, Vec<Told>) {
        let (is_denied, mut told) = asking.end(&self.hub).await;
        if !is_denied {
            limited.iter().zip(&mut told).for_each(|(limited, told)| self.give_back(limited, told));
        }
        (limited, told)
    }

    fn give_back(&self, Limited { hits, inquiry, .. }: &Limited, told: &mut Told) {
        let (Hits::Give(cost), Some(rule)) = (*hits, &told.rule) else { return };
        if cost == 0 {
            return;
        }
        let key = &inquiry.key;
        let (node, mut out) = (&self.hub.node, Outgoing::default());
        let digest = node.digests.digest(&inquiry.policy.name, key);
        let request = shard::Request { rule, digest, key, cost, peek: false };
        node.ask(node.clock.now(), Ask::Refund, request, (&Arc::new(Mailbox::of(inquiry.asker)), 0), &mut out);
        node.flush(&mut out);
        told.decision.remaining = told.decision.remaining.saturating_add(cost).min(told.decision.limit);
    }
}

impl UnaryService<RateLimitRequest> for Service {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { service.answer(request.into_inner()).await.map(Response::new) })
    }
}

fn inquiries(limited: &[Limited]) -> Vec<Inquiry> {
    limited.iter().map(|limited| limited.inquiry.clone()).collect()
}

/// The descriptors that are limited, in order.
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
        limited.push(Limited { place, hits, inquiry: Inquiry { policy, key, cost, peek, asker } });
    }
    limited.retain(|limited| !replaced.contains(&limited.inquiry.policy.name));
    Ok(limited)
}

/// A descriptor on its way to a policy.
struct Routed<'r> {
    policies: &'r PolicySet,
    domain: &'r Domain,
    entries: &'r [Entry<'r>],
}

impl Routed<'_> {
    /// By the first route that fits; policies that the route replaces are added to `replaced`.
    fn find(&self, replaced: &mut Vec<Arc<str>>) -> Option<(Arc<Policy>, Box<[u8]>)> {
        let route = self.domain.find(self.entries)?;
        replaced.extend(route.replaces.iter().cloned());
        let policy = self.policies.get(route.policy.as_deref()?)?;
        Some((policy.clone(), route.key(self.entries)))
    }

    /// By the limit that Envoy sends, in the place of a policy's limits: a key that is blocked stays so, and a
    /// policy that only watches goes on to.
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
        let policy = Policy { name, plan, overrides: Overrides::default(), enforce, refunds };
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

/// Nothing but a missing store stands against the request, and a policy says that it must not pass then: Envoy
/// is told that it cannot be told.
fn refusal(limited: &[Limited], told: &[Told]) -> Option<Status> {
    let mut denied = limited.iter().zip(told).filter(|(_, told)| told.decision.verdict == Verdict::Deny).peekable();
    let (first, _) = *denied.peek()?;
    let name = &first.inquiry.policy.name;
    denied
        .all(|(_, told)| told.decision.reason == Reason::Store)
        .then(|| Status::unavailable(format!("the store is away, and policy {name:?} lets nothing pass then")))
}

fn response(count: usize, limited: &[Limited], told: &[Told], headers: Option<Style>) -> RateLimitResponse {
    let free = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let mut statuses = vec![free; count];
    for (limited, told) in limited.iter().zip(told) {
        statuses[limited.place] = status(limited, told);
    }
    let is_denied = told.iter().any(|told| told.decision.verdict == Verdict::Deny);
    let code = if is_denied { Code::OverLimit } else { Code::Ok };
    let tightest = limited.iter().zip(told).min_by_key(|(_, told)| tightness(told));
    let (headers, metadata) = tightest.map_or((Vec::new(), None), |(limited, told)| {
        let fields = headers.map_or(Vec::new(), |style| fields(style, &told.decision, told.rule.as_deref()));
        (fields, Some(metadata(limited, told)))
    });
    RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: headers
            .into_iter()
            .map(|(key, value)| HeaderValue { key: key.to_owned(), value })
            .collect(),
        dynamic_metadata: metadata,
    }
}

/// Orders decisions by what a client must mind first: the longest wait, then what would have been denied, then
/// the least that is left, then what counts nothing.
fn tightness(told: &Told) -> (u8, u64) {
    let decision = &told.decision;
    match decision.verdict {
        Verdict::Deny => (0, u64::MAX - decision.retry_after.map_or(u64::MAX, |wait| wait.0)),
        Verdict::Allow if decision.reason == Reason::Shadow => (1, 0),
        Verdict::Allow if told.rule.is_some() => (2, decision.remaining),
        Verdict::Allow => (3, 0),
    }
}

fn status(limited: &Limited, told: &Told) -> DescriptorStatus {
    let decision = &told.decision;
    let code = if decision.verdict == Verdict::Deny { Code::OverLimit } else { Code::Ok };
    let limit = told.rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
    let Some(limit) = limit else {
        let remaining = if decision.verdict == Verdict::Deny { 0 } else { u32::MAX };
        return DescriptorStatus { code: code.into(), limit_remaining: remaining, ..DescriptorStatus::default() };
    };
    let remaining = decision.remaining.min(decision.limit);
    // Envoy tells its own clients the whole seconds and forgets the rest.
    let seconds = i64::try_from(decision.reset_after.as_secs_ceil()).unwrap_or(i64::MAX);
    let length = window(limit);
    let unit =
        Unit::LENGTHS.into_iter().find(|(_, seconds)| *seconds == length).map_or(Unit::Unknown, |(unit, _)| unit);
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            name: limited.inquiry.policy.name.to_string(),
            requests_per_unit: small(limit.capacity()),
            unit: unit.into(),
        }),
        limit_remaining: small(remaining),
        duration_until_reset: Some(Duration { seconds, nanos: 0 }),
    }
}

fn metadata(limited: &Limited, told: &Told) -> Struct {
    let decision = &told.decision;
    let text = |text: &str| Value { kind: Some(Kind::Text(text.to_owned())) };
    let limit = told.rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
    let mut fields = BTreeMap::from([
        ("policy".to_owned(), text(&limited.inquiry.policy.name)),
        ("reason".to_owned(), text(decision.reason.as_str())),
        ("source".to_owned(), text(decision.source.as_str())),
        ("descriptor".to_owned(), Value { kind: Some(Kind::Number(limited.place as f64)) }),
    ]);
    fields.extend(limit.map(|limit| ("limit".to_owned(), text(&limit.to_string()))));
    Struct { fields }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
