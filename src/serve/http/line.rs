//! The first line of a connection: whether hyper can read it, and the response where it cannot.
//!
//! hyper answers an unknown version with 400, an HTTP/2 preface not at all, and an endless line as if it were a
//! header field; RFC 9110 defines 505 and 414 for these.

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::reply::{document, problem};

/// What to do about a first line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// hyper can read it.
    Ours,
    /// This response is sent, and the connection closed.
    Refused(String),
}

/// Judges the first line of `head`, after empty ones; `None` when more bytes are needed. A line of `most` bytes is
/// too long.
pub(super) fn judge(head: &[u8], most: usize) -> Option<Line> {
    let start = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(head.len());
    let line = &head[start..];
    let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
        let detail = format!("the request line has no end within {most} bytes: send the parameters by POST");
        return (head.len() >= most).then(|| refused(StatusCode::URI_TOO_LONG, &detail));
    };
    if end >= most {
        let detail = format!("the request line has {end} bytes, and less than {most} are read: POST the parameters");
        return Some(refused(StatusCode::URI_TOO_LONG, &detail));
    }
    let version = line[..end].trim_ascii_end().rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    let is_other = version.strip_prefix(b"HTTP/").is_some_and(|number| {
        let is_number = matches!(number, [b'0'..=b'9'] | [b'0'..=b'9', b'.', b'0'..=b'9']);
        is_number && !matches!(number, b"1.0" | b"1.1")
    });
    if is_other {
        let detail = format!("{} is not served here: HTTP/1.1 and 1.0 are", version.escape_ascii());
        return Some(refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, &detail));
    }
    Some(Line::Ours)
}

/// A response that closes the connection.
fn refused(status: StatusCode, detail: &str) -> Line {
    let reply = problem(status, detail);
    let kind = reply.headers().get(CONTENT_TYPE).map(HeaderValue::to_str).and_then(Result::ok).unwrap_or_default();
    let body = document(status, detail);
    let length = body.len();
    Line::Refused(format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> Option<String> {
        match judge(head, 32)? {
            Line::Ours => Some("ours".into()),
            Line::Refused(response) => Some(response[9..12].to_owned()),
        }
    }

    #[test]
    fn versions_and_lengths_are_told_as_the_rfc_has_them() {
        for (head, wanted) in [
            (&b"GET / HTTP/1.1\r\n"[..], "ours"),
            (b"\r\n\r\nGET / HTTP/1.0\n", "ours"),
            (b"GET /\r\n", "ours"),
            (b"GET / HTTPS/9\r\n", "ours"),
            (b"GET / HTTP/1.2\r\n", "505"),
            (b"PRI * HTTP/2.0\r\n", "505"),
            (b"GET / HTTP/3\r\n", "505"),
            (b"GET /34567890123456789012345678901", "414"),
            (b"GET /3456789012345678901234567 HTTP/1.1\r\n", "414"),
        ] {
            assert_eq!(status(head).as_deref(), Some(wanted), "{}", head.escape_ascii());
        }
        assert_eq!((status(b""), status(b"\r\n"), status(b"GET / HTTP/1")), (None, None, None));
    }
}
