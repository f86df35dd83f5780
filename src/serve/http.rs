//! HTTP/1.1: `/v1/check` and `/v1/explain`, on the Unix socket, the TCP address and the admin address.
//!
//! hyper parses; `line` and `form` reject what hyper accepts and the RFCs do not. A connection comes here when its
//! first line is HTTP's. Parameters are in the query, or in the body of a POST as a form or a JSON object. Keys are
//! bytes, percent-encoded where needed. Header and body size and time are bounded.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use hyper::{Method, Request, StatusCode};
use serde_json::json;

use super::admission::ConnectionGuard;
use super::ask::CheckRequest;
use super::caller::Caller;
use super::check_request::{CheckResult, OneCheck};
use super::connection_permits;
use super::crowd::Place;
use super::handshake;
use super::node::Outgoing;
use super::parameters::Parameters;
use super::requests;
use super::server_state::ServerState;
use super::stream::ClientStream;
use crate::core::decision::Verdict;
use crate::core::policy::Policy;
use crate::store::turns::Asker;
use crate::wire::command::MAX_KEY;
use crate::wire::headers::{Style, fields, push_tightest, retry_after};
use crate::wire::resp::MAX_LINE;

mod body;
pub(super) mod form;
mod line;
pub(super) mod origin;
mod remote;
pub(super) mod reply;
mod rest_timer;
pub(super) mod stream;
pub(super) mod texts;

use reply::{HttpError, Reply, bad, not_allowed, reply, text};
use stream::{Bounds, converse};
use texts::{Text, Texts};

/// Longest idle time of a connection between two requests.
const REST: Duration = Duration::from_secs(75);
/// Longest request head; it has room for a percent-encoded key of [`MAX_KEY`] bytes.
const MAX_HEAD: usize = 256 << 10;
/// Longest body.
const MAX_BODY: usize = 256 << 10;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Room for what stands beside the name in the value of `RateLimit`: two numbers, mostly short ones.
const ROOM_OF_NUMBERS: usize = 32;

/// Serves a connection of the socket until it closes; the bytes in `head` were read before.
pub async fn serve<S: ClientStream>(stream: S, head: Vec<u8>, pass: ConnectionGuard, state: Arc<ServerState>) {
    let bounds = Bounds { head: MAX_HEAD, line: MAX_LINE, rest: REST, half: state.admission.patience() };
    let asker = pass.mailbox.asker();
    let local = pass.uid.map(Caller::Process);
    let texts = Texts::default();
    let answering = |request| answer(&state, &texts, request, local.clone(), asker);
    converse(stream, head, &bounds, Arc::default(), state.admission.account(), answering, |cx| pass.is_to_leave(cx))
        .await;
}

/// Answers a request of `/v1/…` by `local`; or if that is `None`, by whomever the request itself says, which has come
/// over TCP. Calls to the store leave in the turn of `asker`.
pub(crate) async fn answer(
    state: &ServerState,
    texts: &Texts,
    request: Request<Incoming>,
    local: Option<Caller>,
    asker: Asker,
) -> Reply {
    respond(state, texts, request, local, asker).await.unwrap_or_else(HttpError::into_reply)
}

/// What few requests need is in boxes, because the answer under way is moved with each request, and would be some kilobytes with that.
async fn respond(
    state: &ServerState,
    texts: &Texts,
    request: Request<Incoming>,
    local: Option<Caller>,
    asker: Asker,
) -> Result<Reply, HttpError> {
    let (head, body) = request.into_parts();
    form::check(&head)?;
    let caller = local.map_or_else(|| remote::caller(state, &head), Ok)?;
    let allowed: &[Method] = match head.uri.path() {
        "/v1/check" if caller == Caller::Remote(None) => &[Method::HEAD, Method::POST],
        "/v1/check" => &[Method::GET, Method::HEAD, Method::POST],
        "/v1/explain" => &[Method::GET, Method::HEAD],
        "/v1/release" => &[Method::POST],
        path => {
            let detail = format!("nothing is served at {path}: there are /v1/check, /v1/release and /v1/explain");
            return Err(HttpError { status: StatusCode::NOT_FOUND, detail });
        }
    };
    if !allowed.contains(&head.method) {
        let why = match head.uri.path() {
            "/v1/check" if caller == Caller::Remote(None) => {
                " (over TCP without listen.tcp_users a GET charges nothing, because web pages can send it)"
            }
            _ => "",
        };
        return Ok(not_allowed(&head.method, allowed, why));
    }
    let mut parameters = Parameters::default();
    parameters.read_form(head.uri.query().unwrap_or_default().as_bytes()).map_err(bad)?;
    if head.method == Method::POST {
        form::check_body(&head)?;
        let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], |kind| kind.as_bytes().trim_ascii_start());
        let is_json = kind.get(..JSON.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(JSON.as_bytes()));
        let body =
            if body.is_end_stream() { Bytes::new() } else { Box::pin(whole(body, state.admission.patience())).await? };
        let read = if is_json { parameters.read_json(&body) } else { parameters.read_form(body.trim_ascii()) };
        read.map_err(bad)?;
    }
    if head.uri.path() == "/v1/release" {
        release(state, &parameters, &caller)?;
        return Ok(reply(StatusCode::OK, JSON, json!({ "released": true }).to_string()));
    }
    let explains = head.uri.path() == "/v1/explain";
    let mut asked = HttpCheck::read(state, parameters, explains, &caller, asker)?;
    if explains {
        let _place = waiting(state, asker);
        let body = Box::pin(requests::explained(state, asked.check)).await;
        return Ok(reply(StatusCode::OK, JSON, body));
    }
    // HEAD must have no effect: it is answered as GET would be, but charges nothing.
    asked.check.peek |= head.method == Method::HEAD;
    Ok(check(state, texts, asked).await)
}

/// Counts among those who await an answer of the store. A connection has one request at a time, which every connection may await.
fn waiting(state: &ServerState, asker: Asker) -> Place {
    let mut place = state.node.crowd.place(asker);
    place.note(1);
    place
}

/// Reads the whole body of a request, which must arrive within `patience`.
async fn whole(body: Incoming, patience: Duration) -> Result<Bytes, HttpError> {
    let too_long = || HttpError {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        detail: format!("the body has more than {MAX_BODY} bytes"),
    };
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_long());
    }
    match tokio::time::timeout(patience, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if is_length(&*error) => Err(too_long()),
        Ok(Err(error)) => Err(bad(format!("the body did not come whole: {error}"))),
        Err(_) => {
            let detail = format!("the body did not come within {} s", patience.as_secs_f32());
            Err(HttpError { status: StatusCode::REQUEST_TIMEOUT, detail })
        }
    }
}

fn is_length(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>()
}

/// Releases a permit of a concurrent limit.
fn release(state: &ServerState, parameters: &Parameters, caller: &Caller) -> Result<(), HttpError> {
    let (policy, key) = subject(state, parameters, &["policy", "key", "id"], caller)?;
    let permit = connection_permits::parse(needed(parameters, "id")?);
    let (now, mut out) = (state.node.clock.now(), Outgoing::default());
    let digest = state.node.digests.digest(&policy.name, key);
    let released = permit.is_some_and(|permit| state.node.release(now, digest, permit, &mut out));
    state.node.flush(&mut out);
    if released {
        Ok(())
    } else {
        Err(HttpError { status: StatusCode::NOT_FOUND, detail: connection_permits::UNKNOWN.into() })
    }
}

async fn check(state: &ServerState, texts: &Texts, asked: HttpCheck) -> Reply {
    let HttpCheck { check, style, deny } = asked;
    let (policy, asker) = (check.policy.clone(), check.asker);
    let asked = OneCheck::begin_now(state, check);
    let _place = if asked.is_complete() { None } else { Some(waiting(state, asker)) };
    let result = asked.end(state).await;
    let said = result.rule.as_ref().map(|rule| texts.of(rule));
    let name = said.as_ref().and_then(|said| said.text.name(result.decision.limit_index.into()));
    let mut response = if result.decision.verdict == Verdict::Deny {
        reply(deny, PROBLEM, body::denial(&result, name, &policy.name, deny))
    } else {
        reply(StatusCode::OK, JSON, body::admission(&result, name))
    };
    match (said.as_deref(), name) {
        (Some(said), Some(name)) if style == Style::Draft => say_draft(&result, said, name, response.headers_mut()),
        _ => {
            for (name, value) in fields(style, &result.decision, result.rule.as_deref()) {
                response.headers_mut().insert(HeaderName::from_static(name), text(value));
            }
        }
    }
    response
}

/// Adds the header fields of the draft, which [`fields`] would make anew from the rule.
fn say_draft(result: &CheckResult, said: &Text, name: &str, headers: &mut HeaderMap) {
    let CheckResult { decision, rule, .. } = result;
    let Some(limit) = rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index))) else { return };
    headers.insert(RATELIMIT_POLICY, said.policy.clone());
    let mut tightest = String::with_capacity(name.len() + ROOM_OF_NUMBERS);
    push_tightest(&mut tightest, name, decision, limit);
    headers.insert(RATELIMIT, text(tightest));
    if let Some(wait) = retry_after(decision) {
        headers.insert(RETRY_AFTER, wait.into());
    }
}

/// What a request asks for.
struct HttpCheck {
    check: CheckRequest,
    style: Style,
    deny: StatusCode,
}

fn needed<'p>(parameters: &'p Parameters, name: &str) -> Result<&'p [u8], HttpError> {
    parameters.get(name).ok_or_else(|| bad(format!("the parameter '{name}' is missing")))
}

/// The policy and the key of a request, whose parameters must all be `known` ones.
fn subject<'p>(
    state: &ServerState,
    parameters: &'p Parameters,
    known: &[&str],
    caller: &Caller,
) -> Result<(Arc<Policy>, &'p [u8]), HttpError> {
    if let Some(unknown) = parameters.beyond(known) {
        return Err(bad(format!("unknown parameter '{unknown}': there are {}", known.join(", "))));
    }
    let (name, key) = (needed(parameters, "policy")?, needed(parameters, "key")?);
    if key.len() > MAX_KEY {
        return Err(bad(format!("the key has {} bytes: at most {MAX_KEY} are allowed", key.len())));
    }
    let policies = state.policies.load();
    let policy = policies.get(name).ok_or_else(|| HttpError {
        status: StatusCode::NOT_FOUND,
        detail: handshake::unknown_policy(&policies, name).trim_start_matches("ERR ").to_owned(),
    })?;
    if caller.may_use(state, &policy.name).is_err() {
        let detail = format!("this user may not use policy '{}': see `policies` in listen.tcp_users", policy.name);
        return Err(HttpError { status: StatusCode::FORBIDDEN, detail });
    }
    Ok((policy.clone(), key))
}

impl HttpCheck {
    fn read(
        state: &ServerState,
        mut parameters: Parameters,
        explains: bool,
        caller: &Caller,
        asker: Asker,
    ) -> Result<Self, HttpError> {
        let known: &[&str] = if explains { &["policy", "key"] } else { &["policy", "key", "cost", "style", "deny"] };
        let (policy, _) = subject(state, &parameters, known, caller)?;
        let get = |name: &str| parameters.get(name);
        let cost = get("cost").map_or(Ok(1), |text| {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u32>().ok());
            let seen = String::from_utf8_lossy(text);
            number.ok_or_else(|| bad(format!("'cost' is '{seen}': wanted a whole number, 0 or more")))
        })?;
        let style = get("style").map_or(Ok(Style::Draft), |text| {
            let seen = String::from_utf8_lossy(text);
            Style::named(text).ok_or_else(|| bad(format!("'style' is '{seen}': there are draft, x and github")))
        })?;
        let deny = match get("deny") {
            None | Some(b"429") => StatusCode::TOO_MANY_REQUESTS,
            Some(b"403") => StatusCode::FORBIDDEN,
            Some(other) => {
                let seen = String::from_utf8_lossy(other);
                return Err(bad(format!("'deny' is '{seen}': a denial has status 429 or 403")));
            }
        };
        let key = parameters.take("key").unwrap_or_default().into_boxed_slice();
        let check = CheckRequest { policy, key, cost: cost.into(), peek: explains, asker };
        Ok(Self { check, style, deny })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::decision::{Decision, Reason, Source};
    use crate::core::key::Digest;
    use crate::core::limit::Limit;
    use crate::core::policy::Rule;
    use crate::core::time::{Micros, Timestamp};

    #[test]
    fn the_fields_of_the_draft_are_those_that_others_write() {
        let limits = ["100/1m", "9/1d fixed", "7/1h sliding"].map(|text| Limit::parse(text).expect(text));
        let rule = Arc::new(Rule::of("api", &limits));
        let texts = Texts::default();
        for (limit_index, wait) in [(0, None), (1, Some(Micros(1))), (2, Some(Micros(2_000_001))), (1, None)] {
            let verdict = if wait.is_some() { Verdict::Deny } else { Verdict::Allow };
            let decision = Decision {
                verdict,
                limit: 100,
                remaining: 7,
                retry_after: wait,
                reset_after: Micros(30_100_000),
                reset_at: Timestamp(1_700_000_000_500_000),
                reason: Reason::Rate,
                source: Source::Lease,
                limit_index,
                slot: None,
                epoch: 0,
            };
            let result = CheckResult { decision, rule: Some(rule.clone()), digest: Digest::of("api", b"k") };
            let (said, mut headers) = (texts.of(&rule), HeaderMap::new());
            let name = said.text.name(limit_index.into()).expect("the rule has it");
            say_draft(&result, &said, name, &mut headers);
            let wanted = fields(Style::Draft, &decision, Some(&rule));
            assert_eq!(headers.len(), wanted.len());
            for (name, value) in wanted {
                assert_eq!(headers[name], value, "{name}");
            }
        }
    }
}
