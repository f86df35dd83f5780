//! Header fields as a parser of structured fields (RFC 9651) that is not ours reads them: from `RATION.HEADERS` and
//! from the HTTP door, of limits of every kind and of policies with names of every kind.
//! `tests/run packages` sets the parser up.

use crate::support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use serde_json::Value;
use support::installed::installed;
use support::matrix::{driver, output};
use support::process::Daemon;
use support::web::ask;

type Fields = BTreeMap<String, String>;

/// What free text may hold, and header fields may not.
const ODD_NAME: &str = "a\"b\\c; d=1, \u{fc}\u{540d}\t\u{1f}/%";

/// What the draft must say of a limit: its name, `q` and `w`.
type Item = (&'static str, u64, u64);

/// Limits, and what must be said of them, in order.
const KINDS: [(&[&str], &[Item]); 5] = [
    (&["5/1h fixed"], &[("5/1h fixed", 5, 3_600)]),
    (&["5/90m fixed from-first"], &[("5/90m fixed from-first", 5, 5_400)]),
    (&["5/1d sliding", "100/7d"], &[("5/1d sliding", 5, 86_400), ("100/7d", 100, 604_800)]),
    (&["1/1h burst 5", "250/250ms fixed"], &[("1/1h burst 5", 5, 18_000), ("250/250ms fixed", 250, 1)]),
    (
        &["5/30d fixed", "4294967295/366d fixed", "1/366d burst 60", "9007199254740991/3660d fixed"],
        &[
            ("5/30d fixed", 5, 2_592_000),
            ("4294967295/366d fixed", 4_294_967_295, 31_622_400),
            ("1/366d burst 60", 60, 1_897_344_000),
            // The largest integer of a structured field.
            ("9007199254740991/3660d fixed", 999_999_999_999_999, 316_224_000),
        ],
    ),
];

fn name(index: usize) -> String {
    format!("{ODD_NAME}{index}")
}

fn daemon() -> Daemon {
    let policies = KINDS.iter().enumerate().map(|(index, (limits, _))| {
        // JSON's escapes are TOML's as well.
        format!("[policy.{}]\nlimits = {limits:?}\n", serde_json::to_string(&name(index)).expect("a text"))
    });
    Daemon::start(&format!("admin_checks = true\n{}", policies.collect::<String>()))
}

/// What `RATION.HEADERS` tells of this request.
fn fields(daemon: &Daemon, index: usize, key: &str, rest: &[&[u8]]) -> Fields {
    let mut connection = daemon.connect().expect("it accepts");
    let policy = name(index);
    let words = [&[b"RATION.HEADERS", policy.as_bytes(), key.as_bytes()], rest].concat();
    let reply = connection.ask(&words).expect("an answer");
    reply.items()[1..].chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

/// What the HTTP door tells of a request, all in lower case.
fn sent(daemon: &Daemon, index: usize, key: &str) -> Fields {
    let policy = name(index).bytes().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "%{byte:02x}");
        text
    });
    let body = format!("policy={policy}&key={key}");
    let response = ask(daemon.admin().port(), "/v1/check", &body).expect("an answer");
    let fields = response.head.lines().filter_map(|line| line.split_once(": "));
    fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect()
}

/// Those fields as the parser reads them.
fn parsed(responses: &[Fields]) -> Vec<Value> {
    let lines = responses.iter().map(|fields| serde_json::to_string(fields).expect("texts") + "\n");
    let mut command = Command::new(installed("venv/bin/python"));
    let said = output(command.arg(driver("structured_fields.py")), &lines.collect::<String>());
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn both_doors_send_structured_fields_whatever_the_names() {
    let daemon = daemon();
    let mut responses = Vec::new();
    for index in 0..KINDS.len() {
        responses.extend((0..6).map(|_| fields(&daemon, index, "told", &[b"STYLE", b"draft"])));
        responses.extend((0..6).map(|_| sent(&daemon, index, "sent")));
    }
    for (number, read) in parsed(&responses).iter().enumerate() {
        let ((_, limits), left) = (KINDS[number / 12], 5_u64.saturating_sub(1 + number as u64 % 6));
        let policy = read["policy"].as_array().expect("a list");
        assert_eq!(policy.len(), limits.len(), "{read}");
        for (item, (name, quota, window)) in policy.iter().zip(limits) {
            assert_eq!((item[0].as_str(), item[1]["q"].as_u64()), (Some(*name), Some(*quota)), "{read}");
            assert_eq!(item[1]["w"].as_u64(), Some(*window), "{read}");
        }
        let [tightest] = &read["limit"].as_array().expect("a list")[..] else { panic!("one limit: {read}") };
        assert_eq!((tightest[0].as_str(), tightest[1]["r"].as_u64()), (Some(limits[0].0), Some(left)), "{read}");
        let more = tightest[1]["t"].as_u64().expect("a time");
        let is_denied = number % 6 == 5;
        // What a sliding window counts fades in the next one.
        let longest = limits[0].2 * if limits[0].0.ends_with("sliding") { 2 } else { 1 };
        assert!(more > 0 && more <= longest, "{read}");
        assert_eq!(read["wait"].as_u64().is_some_and(|wait| wait >= more), is_denied, "{read}");
        assert_eq!(read["wait"].is_null(), !is_denied, "{read}");
    }
}

#[test]
fn what_never_passes_is_not_told_to_wait() {
    let daemon = daemon();
    let never = fields(&daemon, 0, "never", &[b"COST", b"6"]);
    assert!(!never.contains_key("retry-after"), "{never:?}");
    let read = &parsed(&[never])[0];
    assert_eq!((read["limit"][0][1]["r"].as_u64(), read["wait"].is_null()), (Some(5), true), "{read}");
}

#[test]
fn older_styles_hold_nothing_that_a_header_may_not() {
    let daemon = daemon();
    for style in [b"x".as_slice(), b"github"] {
        let fields = fields(&daemon, 0, "older", &[b"STYLE", style]);
        assert!(fields.len() >= 3, "{fields:?}");
        for (name, value) in fields {
            let is_text = name == "x-ratelimit-resource" && value.chars().all(|c| c == ' ' || c.is_ascii_graphic());
            assert!(is_text || value.parse::<u64>().is_ok(), "{name}: {value}");
        }
    }
}
