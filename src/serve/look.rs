//! Looks at peers as bytes: the question, and the answer.
//!
//! ```text
//! question = 1 (format) keys (2, little-endian) [more]
//! answer   = 1 (format) 0
//!          | 1 (format) 1 (totals) or 2 (keys, too) object (JSON, to the end)
//! ```
//!
//! The object is what `RATION.TOP` answers, without `fleet`, and with `owns` in its place. A reader skips fields that
//! it does not know, and takes missing ones for empty, because daemons of several versions answer. Every number and
//! text in it is bounded when it is read. Knows no connections.

use std::cmp::Reverse;
use std::fmt;

use serde_json::{Value, json};

use crate::config::FleetTop;
use crate::fleet::LONGEST_ANSWER;

const FORMAT: u8 = 1;

/// Most keys of each list in an answer.
pub const MOST_KEYS: usize = 200;
/// Largest number that is accepted from a peer: a million a second for thirty years. The sum over a whole fleet still
/// fits into 64 bits.
pub const LARGEST: u64 = 1_000_000_000_000_000;
/// Longest text, in characters.
const LONGEST: usize = 512;

/// A peer's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum LookAnswer {
    /// Its `fleet.top` is `off`.
    Off,
    /// What it does now, with its hottest keys or without.
    Top(FleetTop, Value),
}

/// Why an answer cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadAnswer {
    /// It is of a format that only other versions know.
    Format,
    /// It is no object.
    Garbage,
}

impl fmt::Display for BadAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => "it answers in a format that this version does not know",
            Self::Garbage => "what it answers makes no sense",
        })
    }
}

/// The question for what a peer does, with so many keys of each list.
#[must_use]
pub fn question(keys: usize) -> Vec<u8> {
    let keys = u16::try_from(keys).unwrap_or(u16::MAX);
    [&[FORMAT], &keys.to_le_bytes()[..]].concat()
}

/// How many keys of each list a question asks for; `None` when the bytes are no question.
#[must_use]
pub fn read_question(bytes: &[u8]) -> Option<usize> {
    let (keys, _) = bytes.strip_prefix(&[FORMAT])?.split_first_chunk()?;
    Some(usize::from(u16::from_le_bytes(*keys)).min(MOST_KEYS))
}

/// The answer of a node whose `fleet.top` is `off`.
#[must_use]
pub fn nothing() -> Vec<u8> {
    vec![FORMAT, 0]
}

/// The answer of a node that does what `top` says, with so many keys of each list at most. What is too long for an answer is left
/// out: first keys, and then the policies that are asked least, which `policies_left_out` counts.
#[must_use]
pub fn answer(top: &Value, detail: FleetTop, keys: usize) -> Vec<u8> {
    let kind = match detail {
        FleetTop::Off => return nothing(),
        FleetTop::Totals => 1,
        FleetTop::Keys => 2,
    };
    let mut object = top.clone();
    if detail == FleetTop::Totals {
        object["hot"] = Value::Null;
    }
    let (mut keys, mut policies) = (keys.min(MOST_KEYS), usize::MAX);
    loop {
        cut(&mut object, keys, policies);
        let bytes = [&[FORMAT, kind], object.to_string().as_bytes()].concat();
        let left = object["policies"].as_array().map_or(0, Vec::len);
        match (bytes.len() <= LONGEST_ANSWER, keys, left) {
            (true, ..) => return bytes,
            (false, 1.., _) => keys = keys * 3 / 4,
            (false, 0, 1..) => policies = left * 3 / 4,
            // Without keys and policies it is still too long: the store has more servers than fit, so they are left
            // out.
            (false, 0, 0) if !object["store"].is_null() => object["store"] = Value::Null,
            // Cannot happen with answers of this version, in which only a few numbers are left.
            (false, 0, 0) => object = json!({"hot": null}),
        }
    }
}

/// Cuts the lists to so many keys and policies.
fn cut(object: &mut Value, keys: usize, policies: usize) {
    for kind in ["used", "denied"] {
        if let Some(list) = object.pointer_mut(&format!("/hot/{kind}")).and_then(Value::as_array_mut) {
            list.truncate(keys);
        }
    }
    let left_out = object["policies_left_out"].as_u64().unwrap_or(0);
    if let Some(list) = object.get_mut("policies").and_then(Value::as_array_mut).filter(|list| list.len() > policies) {
        let checks =
            |policy: &Value| ["allowed", "denied"].iter().filter_map(|field| policy[*field].as_u64()).sum::<u64>();
        list.sort_by_key(|policy| Reverse(checks(policy)));
        let left_out = (left_out + (list.len() - policies) as u64).min(LARGEST);
        list.truncate(policies);
        object["policies_left_out"] = json!(left_out);
    }
}

/// Reads an answer.
///
/// # Errors
/// It makes no sense.
pub fn read_answer(bytes: &[u8]) -> Result<LookAnswer, BadAnswer> {
    let (kind, object) = match bytes {
        [FORMAT, kind, object @ ..] => (kind, object),
        _ => return Err(BadAnswer::Format),
    };
    let detail = match kind {
        0 => return Ok(LookAnswer::Off),
        1 => FleetTop::Totals,
        2 => FleetTop::Keys,
        _ => return Err(BadAnswer::Format),
    };
    let object: Value = serde_json::from_slice(object).map_err(|_| BadAnswer::Garbage)?;
    let mut object = Some(object).filter(Value::is_object).ok_or(BadAnswer::Garbage)?;
    bound(&mut object);
    if detail == FleetTop::Totals {
        object["hot"] = Value::Null;
    }
    Ok(LookAnswer::Top(detail, object))
}

/// Bounds every number and text. Lists need no bound, because the answer's length has one.
fn bound(value: &mut Value) {
    match value {
        Value::Null | Value::Bool(_) => {}
        // No number of an answer has a sign or a fraction.
        Value::Number(number) => *value = json!(number.as_u64().unwrap_or(0).min(LARGEST)),
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(LONGEST) {
                text.truncate(end);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(bound),
        Value::Object(fields) => fields.values_mut().for_each(bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(policies: usize, keys: usize) -> Value {
        let policies: Vec<Value> = (0..policies)
            .map(|number| json!({"name": format!("policy-{number}"), "allowed": number, "denied": 0}))
            .collect();
        let keys: Vec<Value> = (0..keys)
            .map(|number| json!({"policy": "api", "key": "k".repeat(64), "digest": "d".repeat(32), "times": number}))
            .collect();
        json!({"at_ms": 5, "policies": policies, "hot": {"span_ms": 9, "used": keys, "denied": keys}, "store": null, "owns": 7})
    }

    fn read(bytes: &[u8]) -> (FleetTop, Value) {
        match read_answer(bytes) {
            Ok(LookAnswer::Top(detail, top)) => (detail, top),
            other => panic!("{other:?}"),
        }
    }

    fn len(list: &Value) -> usize {
        list.as_array().map_or(0, Vec::len)
    }

    /// This test is kept forever: nodes of other versions read these bytes.
    #[test]
    fn questions_and_answers_have_these_bytes() {
        assert_eq!(question(20), [1, 20, 0]);
        assert_eq!(read_question(&[1, 20, 0]), Some(20));
        assert_eq!(read_question(&[1, 20, 0, 9, 9]), Some(20), "what a later version adds is skipped");
        assert_eq!(nothing(), [1, 0]);
        assert_eq!(answer(&json!({"keys": 3}), FleetTop::Totals, 0), b"\x01\x01{\"hot\":null,\"keys\":3}");
        assert_eq!(answer(&json!({"keys": 3}), FleetTop::Keys, 0), b"\x01\x02{\"keys\":3}");
    }

    #[test]
    fn what_a_node_tells_is_read() {
        let all = top(3, 5);
        assert_eq!(read(&answer(&all, FleetTop::Keys, 5)), (FleetTop::Keys, all.clone()));
        assert_eq!(len(&read(&answer(&all, FleetTop::Keys, 2)).1["hot"]["used"]), 2);
        let (detail, totals) = read(&answer(&all, FleetTop::Totals, 5));
        assert_eq!((detail, &totals["hot"], &totals["policies"]), (FleetTop::Totals, &Value::Null, &all["policies"]));
        assert_eq!(read_answer(&answer(&all, FleetTop::Off, 5)), Ok(LookAnswer::Off));
        assert_eq!(read_question(&question(usize::MAX)), Some(MOST_KEYS));
    }

    #[test]
    fn what_is_too_long_is_left_out_and_counted() {
        let many = read(&answer(&top(3, 2_000), FleetTop::Keys, 2_000)).1;
        assert!((50..=MOST_KEYS).contains(&len(&many["hot"]["used"])), "{}", len(&many["hot"]["used"]));
        assert_eq!((len(&many["policies"]), &many["policies_left_out"]), (3, &Value::Null));
        let bytes = answer(&top(5_000, 50), FleetTop::Keys, 50);
        assert!(bytes.len() <= LONGEST_ANSWER, "{}", bytes.len());
        let wide = read(&bytes).1;
        let left = len(&wide["policies"]);
        assert!(left > 300, "{left}");
        assert_eq!(
            (&wide["policies_left_out"], &wide["policies"][0]["allowed"]),
            (&json!(5_000 - left), &json!(4_999))
        );
        let mut servers = top(1, 1);
        servers["store"] = json!({"servers": vec!["s".repeat(100); 2_000]});
        assert_eq!(read(&answer(&servers, FleetTop::Keys, 1)).1["owns"], 7);
    }

    #[test]
    fn what_makes_no_sense_is_an_error_or_bounded() {
        for bytes in [&b""[..], b"\x01", b"\x02\x01{}", b"\x01\x03{}", b"{}"] {
            assert_eq!(read_answer(bytes), Err(BadAnswer::Format), "{bytes:?}");
        }
        let deep = [b"\x01\x01", "[".repeat(LONGEST_ANSWER).as_bytes()].concat();
        for bytes in [&b"\x01\x01"[..], b"\x01\x01[]", b"\x01\x01null", b"\x01\x02{\"keys\":", b"\x01\x01\xff", &deep] {
            assert_eq!(read_answer(bytes), Err(BadAnswer::Garbage));
        }
        for bytes in [&b""[..], b"\x01", b"\x01\x05", b"\x02\x05\x00"] {
            assert_eq!(read_question(bytes), None, "{bytes:?}");
        }
        let odd = json!({"keys": u64::MAX, "errors": -5, "waiting": 1.5, "version": "ä".repeat(9_000)});
        let object = read(&[b"\x01\x01", odd.to_string().as_bytes()].concat()).1;
        assert_eq!((&object["keys"], &object["errors"], &object["waiting"]), (&json!(LARGEST), &json!(0), &json!(0)));
        assert_eq!(object["version"].as_str().map(|text| text.chars().count()), Some(LONGEST));
    }

    /// An answer marked as totals yields no keys, even if the peer sends some.
    #[test]
    fn totals_have_no_keys() {
        let lie = [b"\x01\x01", top(1, 1).to_string().as_bytes()].concat();
        assert_eq!(read(&lie).1["hot"], Value::Null);
    }
}
