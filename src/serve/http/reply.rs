//! Responses, and refusals of requests, which become problem documents (RFC 9457) with their status.
//!
//! Knows of a request only its method. Called by everything that answers over HTTP.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Response, StatusCode};
use serde_json::json;

/// A response with a complete body.
pub(crate) type Reply = Response<Full<Bytes>>;

/// Why a request is refused.
pub(crate) struct HttpError {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl HttpError {
    pub(crate) fn into_reply(self) -> Reply {
        let mut reply = problem(self.status, &self.detail);
        // The request's body was not read, so the connection cannot be used for another request.
        if matches!(self.status, StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE) {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let how = HeaderValue::from_static("Basic realm=\"rationd\", charset=\"UTF-8\"");
            reply.headers_mut().insert(WWW_AUTHENTICATE, how);
        }
        reply
    }
}

/// A refusal of an invalid request.
pub(super) fn bad(detail: impl Into<String>) -> HttpError {
    HttpError { status: StatusCode::BAD_REQUEST, detail: detail.into() }
}

/// The response 405 with the methods that are served; `why` is added to it.
pub(crate) fn not_allowed(method: &Method, allowed: &[Method], why: &str) -> Reply {
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    let detail = format!("{method} is not served here: only {}{why}", names.join(" and "));
    let mut refusal = problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
    refusal.headers_mut().insert(ALLOW, text(names.join(", ")));
    refusal
}

/// A problem document (RFC 9457) as a response.
pub(crate) fn problem(status: StatusCode, detail: &str) -> Reply {
    reply(status, "application/problem+json", document(status, detail))
}

/// The body of a problem document.
pub(super) fn document(status: StatusCode, detail: &str) -> String {
    let title = status.canonical_reason().unwrap_or_default();
    json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail}).to_string()
}

/// A response with a body of this content type.
pub(super) fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The value of a header field.
pub(super) fn text(value: String) -> HeaderValue {
    HeaderValue::try_from(value).unwrap_or_else(|_| HeaderValue::from_static(""))
}
