//! HTTP/1.1 on the daemon's socket.
//!
//! Holds: what comes back is whole responses, each with the length that it says, JSON where it says so, and an error of
//! the 400s as a problem document; and there are no more of them than requests can have been.

use rationd::wire::resp::{Parser, ProtocolError};

use super::daemon;

/// What requests are made of.
pub const WORDS: &[&[u8]] = &[
    b"GET /v1/check?policy=api&key=k HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /v1/check?policy=api&key=k HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\npolicy=api&key=k",
    b"GET /v1/explain?policy=api&key=k HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"OPTIONS ",
    b"/v1/check",
    b"/v1/explain",
    b"/v1/release",
    b"?policy=",
    b"&key=",
    b"&cost=",
    b"&peek=1",
    b"&id=",
    b"policy=busy",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b" HTTP/2.0\r\n",
    b"Host: x\r\n",
    b"Host:\r\n",
    b"\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n",
    b"Content-Type: application/json\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n",
    b"{\"policy\":\"api\",\"key\":\"k\"}",
    b"%00",
    b"%",
    b"+",
    b"\0",
    b"\xff",
];

/// See the module.
pub fn run(input: &[u8]) {
    if Parser::new().parse(input) != Err(ProtocolError::Http) {
        return;
    }
    let cut = input.len() / 2;
    let told = daemon::talk(&daemon::served().socket, &[&input[..cut], &input[cut..]]);
    let mut rest = &told[..];
    let mut count = 0;
    while !rest.is_empty() {
        rest = response(rest, input);
        count += 1;
    }
    // The shortest request is longer than this.
    assert!(count <= 1 + input.len() / 8, "{count} responses to {} bytes", input.len());
}

/// Looks at one response; the rest is what follows it.
fn response<'r>(told: &'r [u8], input: &[u8]) -> &'r [u8] {
    let end = told.windows(4).position(|four| four == b"\r\n\r\n").expect("a response has a whole head");
    let (head, rest) = (&told[..end], &told[end + 4..]);
    let head = std::str::from_utf8(head).expect("a head is text");
    let (line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")).expect("a status line");
    let status: u16 = status[..3].parse().expect("a status");
    assert!((100..=599).contains(&status) && status != 500, "{line}");
    let field = |wanted: &str| {
        let mut values = fields.split("\r\n").filter_map(|field| field.split_once(':'));
        values.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    if status == 100 {
        return rest;
    }
    let length = field("content-length").map_or(0, |length| length.parse::<usize>().expect("a length"));
    // What answers HEAD says the length that it does not have.
    let is_head = length > 0 && (rest.is_empty() || rest.starts_with(b"HTTP/1."));
    if is_head {
        assert!(input.windows(4).any(|four| four == b"HEAD"), "{line}: {length} bytes were promised");
        return rest;
    }
    assert!(length <= rest.len(), "{line}: {length} bytes were promised, and {} come", rest.len());
    let (body, rest) = rest.split_at(length);
    let kind = field("content-type").unwrap_or_default();
    if kind.contains("json") {
        let read: serde_json::Value = serde_json::from_slice(body).expect("what is called JSON is JSON");
        let is_problem = kind.contains("problem");
        assert!(!is_problem || read["status"] == status, "{status}: {read}");
        assert_eq!(is_problem, status >= 400, "{status} {kind}");
    }
    rest
}
