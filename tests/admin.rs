//! The admin address: what every program of the host may ask there, web pages in a browser among them, and what not.

use crate::support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use support::metrics::get;
use support::process::Daemon;

const POLICIES: &str = "[policy.api]\nlimits = [\"5/1h fixed\"]\n";
const CHECK: &str = "/v1/check?policy=api&key=k";

/// The answer to a request with these lines, on a connection of its own.
fn ask(admin: SocketAddr, lines: &[&str]) -> String {
    let mut stream = TcpStream::connect(admin).expect("the admin address accepts");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out is not zero");
    let head = format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
    stream.write_all(head.as_bytes()).expect("a request goes out");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes whole");
    answer
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {answer}"))
}

/// What is left of the key that all tests here ask for.
fn left(daemon: &Daemon) -> i64 {
    let mut client = daemon.connect().expect("it listens");
    client.ask_text("RATION.CHECK api k PEEK").expect("an answer").items()[2].int()
}

#[test]
fn checks_are_served_only_where_they_are_wanted() {
    let daemon = Daemon::start(POLICIES);
    let post = format!("POST {CHECK} HTTP/1.1");
    for line in [&post, &format!("GET {CHECK} HTTP/1.1"), "GET /v1/explain?policy=api&key=k HTTP/1.1"] {
        let refused = ask(daemon.admin(), &[line, "host: localhost"]);
        assert_eq!(status(&refused), 403, "{refused}");
        assert!(refused.contains("set listen.admin_checks = true"), "{refused}");
    }
    assert!(!get(daemon.admin(), "/").1.contains("/v1"));
    assert_eq!(left(&daemon), 5);
    let daemon = Daemon::start(&format!("admin_checks = true\n{POLICIES}"));
    let passed = ask(daemon.admin(), &[&post, "host: localhost"]);
    assert_eq!((status(&passed), left(&daemon)), (200, 4), "{passed}");
    assert!(get(daemon.admin(), "/").1.contains("/v1/check"));
}

#[test]
fn a_get_never_charges_there_and_says_what_does() {
    let daemon = Daemon::start(&format!("admin_checks = true\n{POLICIES}"));
    let refused = ask(daemon.admin(), &[&format!("GET {CHECK} HTTP/1.1"), "host: localhost"]);
    assert_eq!(status(&refused), 405, "{refused}");
    assert!(refused.contains("allow: HEAD, POST") && refused.contains("only HEAD and POST"), "{refused}");
    let told = ask(daemon.admin(), &[&format!("HEAD {CHECK} HTTP/1.1"), "host: localhost"]);
    assert_eq!(status(&told), 200, "{told}");
    let explained = ask(daemon.admin(), &["GET /v1/explain?policy=api&key=k HTTP/1.1", "host: localhost"]);
    assert_eq!(status(&explained), 200, "{explained}");
    assert_eq!(left(&daemon), 5);
}

#[test]
fn web_pages_are_refused_and_health_is_not() {
    let daemon = Daemon::start(&format!("admin_checks = true\nadmin_hosts = [\"node.internal\"]\n{POLICIES}"));
    let post = format!("POST {CHECK} HTTP/1.1");
    let foreign: [&[&str]; 5] = [
        &["host: evil.example"],
        &["host: evil.example", "sec-fetch-site: none"],
        &["host: 127.0.0.1", "sec-fetch-site: cross-site"],
        &["host: localhost", "sec-fetch-site: same-site"],
        &["host: localhost", "origin: null"],
    ];
    for (index, fields) in foreign.iter().enumerate() {
        let with = |line: &str| ask(daemon.admin(), &[&[line], *fields].concat());
        assert_eq!(status(&with(&post)), 403, "{fields:?}");
        assert_eq!(status(&with("GET /v1/explain?policy=api&key=k HTTP/1.1")), 403, "{fields:?}");
        let metrics = if index < 4 { 403 } else { 200 };
        assert_eq!(status(&with("GET /metrics HTTP/1.1")), metrics, "{fields:?}");
        assert_eq!(status(&with("GET /livez HTTP/1.1")), 200, "{fields:?}");
        assert_eq!(status(&with("GET /readyz HTTP/1.1")), 200, "{fields:?}");
    }
    assert!(ask(daemon.admin(), &["GET / HTTP/1.1", "host: other"]).contains("listen.admin_hosts"));
    assert_eq!(left(&daemon), 5);
    let programs: [&[&str]; 4] = [
        &["host: node.internal:9464"],
        &["host: 10.1.2.3"],
        &["host: [::1]:9464"],
        &["host: localhost", "sec-fetch-site: same-origin"],
    ];
    for (index, fields) in (0..).zip(programs) {
        assert_eq!(status(&ask(daemon.admin(), &[&[post.as_str()], fields].concat())), 200, "{fields:?}");
        assert_eq!(left(&daemon), 4 - index);
    }
}

#[test]
fn requests_are_judged_as_on_the_socket() {
    let daemon = Daemon::start(POLICIES);
    for (lines, wanted) in [
        (&["GET /livez HTTP/1.1"][..], 400),
        (&["GET /livez HTTP/1.1", "host: a", "host: a"], 400),
        (&["GET /livez HTTP/1.0"], 200),
        (&["GET /livez HTTP/1.2", "host: localhost"], 505),
        (&["PRI * HTTP/2.0", "", "SM", ""], 505),
        (&["", "", "HEAD /livez HTTP/1.1", "host: localhost"], 200),
        (&[&format!("GET /{} HTTP/1.1", "x".repeat(8 << 10)), "host: localhost"], 414),
    ] {
        assert_eq!(status(&ask(daemon.admin(), lines)), wanted, "{lines:?}");
    }
}

#[test]
fn whatever_others_leave_open_health_is_told() {
    let daemon = Daemon::start(&format!("admin_checks = true\n{POLICIES}"));
    let half_head = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n";
    let half_body = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nkey";
    for half in [half_head, half_body, ""] {
        let mut open = Vec::new();
        for _ in 0..200 {
            let mut stream = TcpStream::connect(daemon.admin()).expect("the admin address accepts");
            stream.write_all(half.as_bytes()).expect("a part goes out");
            open.push(stream);
        }
        for path in ["/livez", "/readyz", "/metrics"] {
            assert_eq!(get(daemon.admin(), path).0, 200, "{path} beside 200 × {half:?}");
        }
        drop(open);
    }
}
