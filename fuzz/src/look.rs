//! What nodes tell each other while somebody looks at the whole fleet.
//!
//! Holds: what was understood is no longer than what came may be, is told again as the same, and has no number with which a sum of many
//! nodes would overflow. Totals have no keys.

use rationd::config::FleetTop;
use rationd::fleet::LONGEST_ANSWER;
use rationd::serve::look::{LARGEST, LookAnswer, MOST_KEYS, answer, read_answer, read_question};
use serde_json::Value;

/// What they are made of.
pub const WORDS: &[&[u8]] = &[
    b"\x01\x00",
    b"\x01\x01{",
    b"\x01\x02{",
    b"\"policies\":[",
    b"{\"name\":\"api\",\"allowed\":7,\"denied\":1}",
    b"\"hot\":{\"span_ms\":9,\"used\":[",
    b"\"denied\":[",
    b"{\"policy\":\"api\",\"key\":\"k\",\"digest\":\"00\",\"times\":3}",
    b"\"store\":{\"servers\":[",
    b"18446744073709551615",
    b"-1.5e300",
    b"\"\\ud83d\\ude00\"",
    b"null",
    b"]",
    b"}",
    b",",
];

/// See the module.
pub fn run(input: &[u8]) {
    assert!(read_question(input).is_none_or(|keys| keys <= MOST_KEYS));
    let Ok(LookAnswer::Top(detail, top)) = read_answer(input) else { return };
    assert!(is_bounded(&top), "{top}");
    assert!(detail == FleetTop::Keys || top["hot"].is_null(), "{top}");
    let again = answer(&top, detail, MOST_KEYS);
    assert!(again.len() <= LONGEST_ANSWER, "{} bytes", again.len());
    let Ok(LookAnswer::Top(_, look)) = read_answer(&again) else {
        panic!("it does not understand what it tells: {top}")
    };
    assert_eq!(answer(&look, detail, MOST_KEYS), again);
}

fn is_bounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_u64().is_some_and(|number| number <= LARGEST),
        Value::Array(list) => list.iter().all(is_bounded),
        Value::Object(fields) => fields.values().all(is_bounded),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}
