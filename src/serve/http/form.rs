//! Checks of a request's head that RFC 9110 and 9112 demand and hyper does not do.

use std::borrow::Cow;

use hyper::header::{CONTENT_ENCODING, HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, Version};

use super::reply::{HttpError, bad};

/// Checks the head of a request.
///
/// # Errors
/// What is wrong with it, and the status that reports it.
pub(super) fn check(head: &Parts) -> Result<(), HttpError> {
    host(head)?;
    let refused = |status, detail| Err(HttpError { status, detail });
    if !is_known(&head.method) {
        return refused(StatusCode::NOT_IMPLEMENTED, format!("the method {} is not known here", head.method));
    }
    let coded = head.headers.get_all(TRANSFER_ENCODING).iter().map(|coding| coding.as_bytes().trim_ascii());
    let mut other = coded.filter(|coding| !coding.eq_ignore_ascii_case(b"chunked"));
    if let Some(coding) = other.next() {
        let seen = coding.escape_ascii();
        return refused(
            StatusCode::NOT_IMPLEMENTED,
            format!("the transfer coding '{seen}' is not known: only chunked"),
        );
    }
    Ok(())
}

/// Checks how the body is described. A GET is not checked: proxies may send it with the fields of another request.
///
/// # Errors
/// The body has a content coding, which is not supported.
pub(super) fn check_body(head: &Parts) -> Result<(), HttpError> {
    let content = head.headers.get_all(CONTENT_ENCODING).iter().map(|coding| coding.as_bytes().trim_ascii());
    let mut other = content.filter(|coding| !coding.eq_ignore_ascii_case(b"identity") && !coding.is_empty());
    if let Some(coding) = other.next() {
        let seen = coding.escape_ascii();
        let detail = format!("the content coding '{seen}' is not known: send the body as it is");
        return Err(HttpError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, detail });
    }
    Ok(())
}

/// The host that a request names, without the port; empty where it names none.
///
/// # Errors
/// HTTP/1.1 without a `Host` field, or with two; or the host is invalid.
pub(crate) fn host(head: &Parts) -> Result<Cow<'_, str>, HttpError> {
    let mut fields = head.headers.get_all(HOST).iter();
    let (first, second) = (fields.next(), fields.next());
    if second.is_some() {
        return Err(bad("the request has two Host fields: one is wanted (RFC 9112, 3.2)"));
    }
    let named = match first {
        None if head.version == Version::HTTP_11 => {
            return Err(bad("the request has no Host field: HTTP/1.1 wants one (RFC 9112, 3.2)"));
        }
        None => Cow::Borrowed(""),
        Some(field) if field.is_empty() => Cow::Borrowed(""),
        Some(field) => {
            plain_host(field.as_bytes()).map_or_else(|| any_host(field.as_bytes()), |host| Ok(Cow::Borrowed(host)))?
        }
    };
    // RFC 9112, 3.2.2: a host in the target takes precedence.
    Ok(head.uri.host().map_or(named, Cow::Borrowed))
}

/// The host of any field, without the port.
fn any_host(field: &[u8]) -> Result<Cow<'_, str>, HttpError> {
    let authority = Authority::try_from(field).ok().filter(|host| !host.as_str().contains('@'));
    let seen = field.escape_ascii();
    let authority = authority.ok_or_else(|| bad(format!("the Host '{seen}' is none: host or host:port is")))?;
    Ok(Cow::Owned(authority.host().to_owned()))
}

/// The host of a field that has letters, digits, dots and hyphens, and perhaps a port behind them, as nearly all have. Such a one is
/// valid, and need not be parsed, for which memory would be taken twice with each request.
fn plain_host(field: &[u8]) -> Option<&str> {
    let colon = field.iter().position(|byte| *byte == b':');
    let (host, port) = field.split_at(colon.unwrap_or(field.len()));
    let is_name = host.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    let is_port = port.is_empty() || (2..=6).contains(&port.len()) && port[1..].iter().all(u8::is_ascii_digit);
    if is_name && is_port && !host.is_empty() { std::str::from_utf8(host).ok() } else { None }
}

/// Whether HTTP itself or an extension defines the method. A known method that is not served here gets another error.
fn is_known(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::CONNECT,
        Method::OPTIONS,
        Method::TRACE,
        Method::PATCH,
    ]
    .contains(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_host_is_what_parsing_would_find() {
        let plain = ["localhost", "10.0.0.1:8080", "a-b.example:1", "x:65535", "x:99999", "-", "..", "0", "a:443"];
        for field in plain.map(str::as_bytes) {
            let parsed = any_host(field).map(Cow::into_owned).ok();
            assert_eq!(plain_host(field).map(ToOwned::to_owned), parsed, "{}", field.escape_ascii());
        }
        for other in
            ["", ":", ":80", "a:", "a:b", "a:123456", "[::1]:80", "a b", "a@b", "a/b", "a_b", "a:1:2", "\u{e9}"]
        {
            assert_eq!(plain_host(other.as_bytes()), None, "{other}");
        }
    }
}
