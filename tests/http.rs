//! HTTP on the Unix socket, from a client's side.

use crate::support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use support::daemon::{TestDaemon, show};

/// A response as it came.
struct Response {
    status: u16,
    head: String,
    body: String,
}

impl Response {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// One connection.
struct Http {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Http {
    fn connect(daemon: &TestDaemon) -> Self {
        let stream = UnixStream::connect(&daemon.socket).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        Self { stream, input: Vec::new() }
    }

    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("the daemon reads");
    }

    /// The next response, whose length its head tells.
    fn response(&mut self) -> Response {
        loop {
            let text = String::from_utf8_lossy(&self.input).into_owned();
            if let Some((head, rest)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
                if rest.len() >= length {
                    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
                    let response = Response { status, head: head.to_owned(), body: rest[..length].to_owned() };
                    self.input.drain(..head.len() + 4 + length);
                    return response;
                }
            }
            let mut buffer = [0; 8192];
            let len = self.stream.read(&mut buffer).expect("a response");
            assert!(len > 0, "the daemon closed after {text:?}");
            self.input.extend_from_slice(&buffer[..len]);
        }
    }

    fn get(&mut self, path: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        self.response()
    }

    fn post(&mut self, path: &str, kind: &str, body: &str) -> Response {
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        self.response()
    }
}

#[test]
fn five_pass_and_then_it_is_429_with_the_headers_of_the_draft() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    for left in (0..5).rev() {
        let passed = http.get("/v1/check?policy=api&key=k");
        assert_eq!((passed.status, passed.header("retry-after")), (200, None));
        assert!(passed.header("ratelimit").unwrap().starts_with(&format!("\"5/1h fixed\";r={left};t=")));
        assert_eq!(passed.json()["remaining"], left);
    }
    let denied = http.get("/v1/check?policy=api&key=k");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let wait = denied.header("retry-after").expect("a wait");
    assert!(denied.header("ratelimit").unwrap().ends_with(&format!("r=0;t={wait}")), "{}", denied.head);
    let problem = denied.json();
    assert_eq!((problem["status"].as_u64(), problem["reason"].as_str()), (Some(429), Some("rate")));
    assert_eq!(problem["violated-policies"], serde_json::json!(["5/1h fixed"]));
    assert_eq!(http.get("/v1/check?policy=api&key=k&deny=403").status, 403);
    assert!(http.get("/v1/check?policy=api&key=k&style=x").header("x-ratelimit-remaining") == Some("0"));
}

#[test]
fn resets_are_the_same_whoever_asks_and_whenever() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    let mut reset = |key: &str| {
        let told = http.get(&format!("/v1/check?policy=api&key={key}&style=github"));
        told.header("x-ratelimit-reset").expect("a reset").to_owned()
    };
    let first = reset("a");
    assert!((0..50).all(|index| reset(if index % 2 == 0 { "a" } else { "b" }) == first));
}

#[test]
fn a_body_may_be_a_form_or_json_and_keys_are_bytes() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    let form = http.post("/v1/check?style=x", "application/x-www-form-urlencoded", "policy=api&key=o'b+r%FF&cost=2");
    assert_eq!((form.status, form.header("x-ratelimit-remaining")), (200, Some("3")));
    assert_eq!(http.get("/v1/check?policy=api&key=o'b%20r%ff&cost=0").json()["remaining"], 3);
    let json = http.post("/v1/check", "application/json; charset=utf-8", r#"{"policy":"api","key":"j","cost":4}"#);
    assert_eq!(json.json()["remaining"], 1);
    let mut redis = daemon.client();
    let peeked = redis.ask_bytes(&[b"RATION.CHECK", b"api", b"o'b r\xff", b"PEEK"]);
    assert!(show(&peeked).starts_with("0 5 3 "), "RESP and HTTP ask about the same key");
}

#[test]
fn wrong_requests_say_what_was_wanted_and_charge_nothing() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    for (path, status, detail) in [
        ("/v1/check?policy=apj&key=k", 404, "unknown policy 'apj': did you mean 'api'?"),
        ("/v1/check?policy=api", 400, "the parameter 'key' is missing"),
        ("/v1/check?policy=api&key=k&cost=-1", 400, "'cost' is '-1': wanted a whole number, 0 or more"),
        (
            "/v1/check?policy=api&key=k&cots=1",
            400,
            "unknown parameter 'cots': there are policy, key, cost, style, deny",
        ),
        ("/v1/check?policy=api&key=k&key=l", 400, "the parameter 'key' stands twice"),
        ("/v1/check?policy=api&key=k&style=y", 400, "'style' is 'y': there are draft, x and github"),
        ("/v1/check?policy=api&key=k&deny=500", 400, "'deny' is '500': a denial has status 429 or 403"),
        ("/v2", 404, "nothing is served at /v2: there are /v1/check, /v1/release and /v1/explain"),
    ] {
        let refused = http.get(path);
        assert_eq!((refused.status, refused.json()["detail"].as_str()), (status, Some(detail)), "{path}");
    }
    let body = http.post("/v1/check", "application/json", "{");
    assert_eq!(body.status, 400);
    let explained = http.post("/v1/explain?policy=api&key=k", "text/plain", "");
    assert_eq!((explained.status, explained.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(http.get("/v1/explain?policy=api&key=k").json()["remaining"], 5);
}

#[test]
fn requests_come_in_pieces_or_several_at_once_and_a_daemon_that_stops_says_goodbye() {
    let mut daemon = TestDaemon::start();
    let mut slow = Http::connect(&daemon);
    for piece in ["G", "ET /v1/check?policy=a", "pi&key=s HTTP/1.1\r\n", "host: x\r\n\r\n"] {
        slow.send(piece);
        daemon.client().ask("PING");
    }
    assert_eq!(slow.response().status, 200);
    let mut many = Http::connect(&daemon);
    many.send(&"GET /v1/check?policy=api&key=m HTTP/1.1\r\nhost: x\r\n\r\n".repeat(6));
    let statuses: Vec<u16> = (0..6).map(|_| many.response().status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    daemon.stop();
    let mut rest = Vec::new();
    assert_eq!(many.stream.read_to_end(&mut rest).expect("a clean end"), 0);
}

#[test]
fn a_head_without_end_is_refused() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    http.send("GET /v1/check?policy=api&key=k HTTP/1.1\r\n");
    let line = format!("x: {}\r\n", "y".repeat(1_000));
    let refused = (0..2_000).any(|_| http.stream.write_all(line.as_bytes()).is_err());
    let mut answer = Vec::new();
    let _ = http.stream.read_to_end(&mut answer);
    assert!(refused || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(daemon.client().ask("PING"), "PONG");
}

/// The status of the answer to this request on a connection of its own; what the daemon does not read is left.
fn status(daemon: &TestDaemon, request: &str) -> u16 {
    let mut http = Http::connect(daemon);
    let _ = http.stream.write_all(request.as_bytes());
    http.response().status
}

#[test]
fn a_request_has_one_host() {
    let daemon = TestDaemon::start();
    let path = "/v1/check?policy=api&key=h";
    for head in ["", "host: x\r\nhost: x\r\n", "host: a@b\r\n", "host: a b\r\n", "host: a/b\r\n"] {
        assert_eq!(status(&daemon, &format!("GET {path} HTTP/1.1\r\n{head}\r\n")), 400, "{head:?}");
    }
    assert_eq!(status(&daemon, &format!("GET {path} HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n")), 400);
    let mut http = Http::connect(&daemon);
    assert_eq!(http.get("/v1/explain?policy=api&key=h").json()["remaining"], 5, "none of them was charged");
    for head in ["host:\r\n", "host: [::1]:80\r\n", "host: x:80\r\n"] {
        assert_eq!(status(&daemon, &format!("GET {path} HTTP/1.1\r\n{head}\r\n")), 200, "{head:?}");
    }
    assert_eq!(status(&daemon, &format!("GET {path} HTTP/1.0\r\n\r\n")), 200);
    assert_eq!(status(&daemon, &format!("GET http://a{path} HTTP/1.1\r\nhost: a\r\n\r\n")), 200);
}

#[test]
fn head_is_told_what_get_would_be_and_charges_nothing() {
    let daemon = TestDaemon::start();
    let head = |path: &str| {
        let mut http = Http::connect(&daemon);
        http.send(&format!("HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"));
        let mut text = String::new();
        http.stream.read_to_string(&mut text).expect("a head");
        assert!(text.ends_with("\r\n\r\n"), "it has no body: {text}");
        text
    };
    for _ in 0..7 {
        let told = head("/v1/check?policy=api&key=k");
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("ratelimit: \"5/1h fixed\";r=5;t="), "{told}");
    }
    let mut http = Http::connect(&daemon);
    assert_eq!(http.get("/v1/check?policy=api&key=k&cost=5").status, 200);
    let told = head("/v1/check?policy=api&key=k");
    assert!(told.starts_with("HTTP/1.1 429") && told.contains("retry-after: "), "{told}");
    assert!(head("/v1/explain?policy=api&key=k").starts_with("HTTP/1.1 200"));
    assert!(head("/v1/release?policy=api&key=k&id=1").starts_with("HTTP/1.1 405"));
}

#[test]
fn what_is_too_long_says_what_of_it() {
    let daemon = TestDaemon::start();
    let key = "k".repeat(65_536);
    assert_eq!(status(&daemon, &format!("GET /v1/check?policy=api&key={key} HTTP/1.1\r\nhost: x\r\n\r\n")), 414);
    assert_eq!(status(&daemon, &format!("\r\nGET /v1/check?policy=api&key={key}")), 414);
    let post = "POST /v1/check?policy=api HTTP/1.1\r\nhost: x\r\n";
    let length = 4 + key.len();
    assert_eq!(status(&daemon, &format!("{post}content-length: {length}\r\n\r\nkey={key}")), 200);
    assert_eq!(status(&daemon, &format!("{post}content-length: 262145\r\n\r\n")), 413);
    let chunks = format!("10000\r\n{key}\r\n").repeat(5);
    assert_eq!(status(&daemon, &format!("{post}transfer-encoding: chunked\r\n\r\n{chunks}")), 413);
    let field = "y".repeat(600_000);
    assert_eq!(status(&daemon, &format!("{post}x: {field}\r\n\r\n")), 431);
}

#[test]
fn what_is_not_spoken_here_says_so() {
    let daemon = TestDaemon::start();
    let rest = "host: x\r\n\r\n";
    for version in ["1.2", "2.0", "3.0", "0.9"] {
        assert_eq!(status(&daemon, &format!("GET / HTTP/{version}\r\n{rest}")), 505, "{version}");
    }
    assert_eq!(status(&daemon, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
    let path = "/v1/check?policy=api&key=k";
    assert_eq!(status(&daemon, &format!("BREW {path} HTTP/1.1\r\n{rest}")), 501);
    assert_eq!(status(&daemon, &format!("PUT {path} HTTP/1.1\r\n{rest}")), 405);
    let post = format!("POST {path} HTTP/1.1\r\n");
    let end = format!("{rest}0\r\n\r\n");
    assert_eq!(status(&daemon, &format!("{post}transfer-encoding: gzip, chunked\r\n{end}")), 501);
    assert_eq!(status(&daemon, &format!("{post}transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n{end}")), 501);
    assert_eq!(status(&daemon, &format!("{post}content-encoding: gzip\r\ncontent-length: 0\r\n{rest}")), 415);
    let asked = format!("GET {path}&cost=0 HTTP/1.1\r\ncontent-encoding: gzip\r\n{rest}");
    assert_eq!(status(&daemon, &asked), 200, "a proxy sends the fields of its client's request");
    assert_eq!(status(&daemon, &format!("{post}transfer-encoding: Chunked\r\n{end}")), 200);
    let mut http = Http::connect(&daemon);
    assert_eq!(http.get("/v1/explain?policy=api&key=k").json()["remaining"], 4, "one was charged");
}

#[test]
fn empty_lines_before_a_request_are_ignored() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    for lines in ["\r\n", "\r\n\r\n\r\n", "\n"] {
        http.send(lines);
        assert_eq!(http.get("/v1/check?policy=api&key=k&cost=0").status, 200);
        assert_eq!(status(&daemon, &format!("{lines}GET /v1/check?policy=api&key=k HTTP/1.0\r\n\r\n")), 200);
    }
}

#[test]
fn a_name_of_a_json_object_stands_once() {
    let daemon = TestDaemon::start();
    let mut http = Http::connect(&daemon);
    let body = r#"{"policy":"api","key":"j","cost":1,"cost":5}"#;
    let refused = http.post("/v1/check", "application/json", body);
    assert_eq!((refused.status, refused.json()["detail"].as_str()), (400, Some("the parameter 'cost' stands twice")));
    assert_eq!(http.get("/v1/explain?policy=api&key=j").json()["remaining"], 5);
}
