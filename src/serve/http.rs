//! HTTP/1.1: `/v1/check` and `/v1/explain`, on the Unix socket and on the admin address.
//!
//! hyper parses; `line` and `form` look at what it lets pass and the RFCs do not. A connection comes here when its
//! first line is HTTP's; parameters stand in the query, or in the body of a POST as a form or a JSON object. Keys are
//! bytes: percent-encoded, any of them. Bounded in header and body size and in time.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;

use super::greeting;
use super::hub::{Hub, Pass};
use super::inquiry::{Inquiry, Told, decide_one};
use super::node::Outgoing;
use super::parameters::Parameters;
use super::slots;
use super::{listing, requests};
use crate::core::decision::Verdict;
use crate::core::policy::Policy;
use crate::store::turns::Asker;
use crate::wire::command::MAX_KEY;
use crate::wire::headers::{Style, fields};
use crate::wire::resp::MAX_LINE;

pub(in crate::serve) mod form;
mod line;
pub(in crate::serve) mod stream;

use stream::{Bounds, converse};

/// Longest rest of a connection between two requests.
const REST: Duration = Duration::from_secs(75);
/// Longest request head: a key of [`MAX_KEY`] bytes, percent-encoded.
const MAX_HEAD: usize = 256 << 10;
/// Longest body.
const MAX_BODY: usize = 256 << 10;
/// What a problem document says it is.
const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// A response whose body is at hand.
pub type Reply = Response<Full<Bytes>>;

/// Serves a connection of the socket to its end; `head` was read already.
pub async fn serve(stream: UnixStream, head: Vec<u8>, pass: Pass, hub: Arc<Hub>) {
    let bounds = Bounds { head: MAX_HEAD, line: MAX_LINE, rest: REST, half: hub.doors.patience() };
    let asker = pass.mailbox.asker();
    let answering = |request| {
        let hub = hub.clone();
        async move { answer(&hub, request, asker).await }
    };
    converse(stream, head, &bounds, Arc::default(), hub.doors.account(), answering, |cx| pass.is_to_leave(cx)).await;
}

/// Answers a request of `/v1/…`; `asker`: in whose turn the store is asked.
pub async fn answer(hub: &Hub, request: Request<Incoming>, asker: Asker) -> Reply {
    respond(hub, request, asker).await.unwrap_or_else(Refusal::into_reply)
}

async fn respond(hub: &Hub, request: Request<Incoming>, asker: Asker) -> Result<Reply, Refusal> {
    let (head, body) = request.into_parts();
    form::check(&head)?;
    let allowed: &[Method] = match head.uri.path() {
        "/v1/check" => &[Method::GET, Method::HEAD, Method::POST],
        "/v1/explain" => &[Method::GET, Method::HEAD],
        "/v1/release" => &[Method::POST],
        path => {
            let detail = format!("nothing is served at {path}: there are /v1/check, /v1/release and /v1/explain");
            return Err(Refusal { status: StatusCode::NOT_FOUND, detail });
        }
    };
    if !allowed.contains(&head.method) {
        return Ok(not_allowed(&head.method, allowed, ""));
    }
    let mut parameters = Parameters::default();
    parameters.read_form(head.uri.query().unwrap_or_default().as_bytes()).map_err(bad)?;
    if head.method == Method::POST {
        form::check_body(&head)?;
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = kind.trim_start().to_ascii_lowercase().starts_with("application/json");
        let body = whole(body, hub.doors.patience()).await?;
        let read = if is_json { parameters.read_json(&body) } else { parameters.read_form(body.trim_ascii()) };
        read.map_err(bad)?;
    }
    if head.uri.path() == "/v1/release" {
        release(hub, &parameters)?;
        return Ok(reply(StatusCode::OK, "application/json", json!({ "released": true }).to_string()));
    }
    let explains = head.uri.path() == "/v1/explain";
    let mut question = Question::read(hub, &parameters, explains, asker)?;
    // One at a time, which every connection may await.
    let mut place = hub.node.crowd.place(asker);
    place.note(1);
    if explains {
        let body = requests::explained(hub, question.inquiry).await;
        return Ok(reply(StatusCode::OK, "application/json", body));
    }
    // HEAD is for looking: it is told what GET would be, and charges nothing.
    question.inquiry.peek |= head.method == Method::HEAD;
    Ok(check(hub, question).await)
}

/// 405 with the methods that are served, and `why` behind that.
pub(super) fn not_allowed(method: &Method, allowed: &[Method], why: &str) -> Reply {
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    let detail = format!("{method} is not served here: only {}{why}", names.join(" and "));
    let mut refusal = problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
    refusal.headers_mut().insert(ALLOW, text(&names.join(", ")));
    refusal
}

/// The body of a request, which must come within `patience`.
async fn whole(body: Incoming, patience: Duration) -> Result<Bytes, Refusal> {
    let too_long = || Refusal {
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
            Err(Refusal { status: StatusCode::REQUEST_TIMEOUT, detail })
        }
    }
}

fn is_length(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>()
}

/// Ends a slot of a concurrent limit.
fn release(hub: &Hub, parameters: &Parameters) -> Result<(), Refusal> {
    let (policy, key) = subject(hub, parameters, &["policy", "key", "id"])?;
    let slot = slots::parse(needed(parameters, "id")?);
    let (now, mut out) = (hub.node.clock.now(), Outgoing::default());
    let digest = hub.node.digests.digest(&policy.name, key);
    let released = slot.is_some_and(|slot| hub.node.release(now, digest, slot, &mut out));
    hub.node.flush(&mut out);
    if released { Ok(()) } else { Err(Refusal { status: StatusCode::NOT_FOUND, detail: slots::UNKNOWN.into() }) }
}

async fn check(hub: &Hub, question: Question) -> Reply {
    let Question { inquiry, style, deny } = question;
    let policy = inquiry.policy.clone();
    let told = decide_one(hub, inquiry).await;
    let mut response = if told.decision.verdict == Verdict::Deny {
        let mut body = listing::decision(&told);
        body.append(&mut denial(&told, deny));
        body.insert("policy".into(), json!(&*policy.name));
        reply(deny, "application/problem+json", Value::Object(body).to_string())
    } else {
        reply(StatusCode::OK, "application/json", listing::decided(&told))
    };
    for (name, value) in fields(style, &told.decision, told.rule.as_deref()) {
        response.headers_mut().insert(HeaderName::from_static(name), text(&value));
    }
    response
}

/// What a problem document has beside the decision (RFC 9457, and the draft of the header fields).
fn denial(told: &Told, status: StatusCode) -> Map<String, Value> {
    let limit = told.rule.as_ref().and_then(|rule| rule.limits.get(usize::from(told.decision.limit_index)));
    let violated: Vec<String> = limit.iter().map(ToString::to_string).collect();
    let object = json!({
        "type": QUOTA,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": status.as_u16(),
        "detail": listing::why(told),
        "violated-policies": violated,
    });
    let Value::Object(object) = object else { return Map::new() };
    object
}

/// What a request asks.
struct Question {
    inquiry: Inquiry,
    style: Style,
    deny: StatusCode,
}

/// Why a request cannot be answered.
pub(super) struct Refusal {
    status: StatusCode,
    detail: String,
}

impl Refusal {
    pub(super) fn into_reply(self) -> Reply {
        let mut reply = problem(self.status, &self.detail);
        // Of these the body has not come, or not been read.
        if matches!(self.status, StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE) {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }
}

fn bad(detail: impl Into<String>) -> Refusal {
    Refusal { status: StatusCode::BAD_REQUEST, detail: detail.into() }
}

fn needed<'p>(parameters: &'p Parameters, name: &str) -> Result<&'p [u8], Refusal> {
    parameters.get(name).ok_or_else(|| bad(format!("the parameter '{name}' is missing")))
}

/// The policy and the key that are asked about, by parameters of which only `known` ones may be there.
fn subject<'p>(hub: &Hub, parameters: &'p Parameters, known: &[&str]) -> Result<(Arc<Policy>, &'p [u8]), Refusal> {
    if let Some(unknown) = parameters.beyond(known) {
        return Err(bad(format!("unknown parameter '{unknown}': there are {}", known.join(", "))));
    }
    let (name, key) = (needed(parameters, "policy")?, needed(parameters, "key")?);
    if key.len() > MAX_KEY {
        return Err(bad(format!("the key has {} bytes: at most {MAX_KEY} are allowed", key.len())));
    }
    let policies = hub.policies.load();
    let policy = std::str::from_utf8(name).ok().and_then(|name| policies.get(name)).ok_or_else(|| Refusal {
        status: StatusCode::NOT_FOUND,
        detail: greeting::unknown_policy(&policies, name).trim_start_matches("ERR ").to_owned(),
    })?;
    Ok((policy.clone(), key))
}

impl Question {
    fn read(hub: &Hub, parameters: &Parameters, explains: bool, asker: Asker) -> Result<Self, Refusal> {
        let known: &[&str] = if explains { &["policy", "key"] } else { &["policy", "key", "cost", "style", "deny"] };
        let (policy, key) = subject(hub, parameters, known)?;
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
        let inquiry = Inquiry { policy, key: key.into(), cost: cost.into(), peek: explains, asker };
        Ok(Self { inquiry, style, deny })
    }
}

/// A problem document (RFC 9457) as a response.
pub(super) fn problem(status: StatusCode, detail: &str) -> Reply {
    reply(status, "application/problem+json", document(status, detail))
}

fn document(status: StatusCode, detail: &str) -> String {
    let title = status.canonical_reason().unwrap_or_default();
    json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail}).to_string()
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Reply {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).unwrap_or_else(|_| HeaderValue::from_static(""))
}
