//! A decision as JSON: an object for an admission, a problem document (RFC 9457) for a denial.
//!
//! It is written directly into the bytes that are sent. When it was built from maps, as other answers are, a denial
//! cost 1.4 times as much as an admission, and a daemon under attack mostly denies. Names are in alphabetical order.

use std::fmt::{self, Display, Write as _};

use hyper::StatusCode;

use crate::core::decision::Verdict;
use crate::core::time::Micros;
use crate::serve::check_request::CheckResult;
use crate::serve::listing::Why;

/// The type of the problem document.
const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";

/// Initial capacity, enough for most bodies.
const ROOM: usize = 640;

/// The body of an admission.
pub(super) fn admission(result: &CheckResult) -> Vec<u8> {
    body(result, None)
}

/// The body of a denial by the policy of that name. `status` is the response's.
pub(super) fn denial(result: &CheckResult, policy: &str, status: StatusCode) -> Vec<u8> {
    body(result, Some((policy, status)))
}

fn body(result: &CheckResult, denial: Option<(&str, StatusCode)>) -> Vec<u8> {
    let CheckResult { decision, rule, .. } = result;
    let limit = rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
    let name = limit.map(ToString::to_string);
    let mut object = Object::new();
    if denial.is_some() {
        object.text("detail", Why { result, name: name.as_deref().unwrap_or_default() });
    }
    object.number("limit", Some(decision.limit));
    match &name {
        Some(name) => object.text("limit_name", name),
        None => object.raw("limit_name", "null"),
    }
    object.raw("limited", if decision.verdict == Verdict::Deny { "true" } else { "false" });
    if let Some((policy, _)) = denial {
        object.text("policy", policy);
    }
    object.text("reason", decision.reason.as_str());
    object.number("remaining", Some(decision.remaining));
    object.number("reset_after_ms", Some(decision.reset_after.as_millis_ceil()));
    object.number("reset_at_ms", Some(decision.reset_at.as_millis_ceil()));
    object.number("retry_after_ms", decision.retry_after.map(Micros::as_millis_ceil));
    if let Some(slot) = decision.slot {
        object.text("slot", format_args!("{slot:016x}"));
    }
    object.text("source", decision.source.as_str());
    if let Some((_, status)) = denial {
        object.number("status", Some(status.as_u16().into()));
        object.text("title", TITLE);
        object.text("type", QUOTA);
        object.list("violated-policies", name.as_deref());
    }
    object.end()
}

/// A JSON object that is being written.
struct Object(Vec<u8>);

impl Object {
    fn new() -> Self {
        let mut bytes = Vec::with_capacity(ROOM);
        bytes.push(b'{');
        Self(bytes)
    }

    /// A name of ours, which needs no escaping.
    fn key(&mut self, key: &'static str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// A value that is JSON already.
    fn raw(&mut self, key: &'static str, value: &str) {
        self.key(key);
        self.0.extend_from_slice(value.as_bytes());
    }

    fn number(&mut self, key: &'static str, value: Option<u64>) {
        match value {
            Some(value) => self.raw(key, itoa::Buffer::new().format(value)),
            None => self.raw(key, "null"),
        }
    }

    fn text(&mut self, key: &'static str, value: impl Display) {
        self.key(key);
        self.quote(value);
    }

    /// A list with one text, or an empty one.
    fn list(&mut self, key: &'static str, value: Option<&str>) {
        self.key(key);
        self.0.push(b'[');
        if let Some(value) = value {
            self.quote(value);
        }
        self.0.push(b']');
    }

    fn quote(&mut self, value: impl Display) {
        self.0.push(b'"');
        write!(Escaped(&mut self.0), "{value}").expect("a Vec takes what is written");
        self.0.push(b'"');
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

/// Writes text inside of a JSON string, escaped where needed.
struct Escaped<'b>(&'b mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        let is_special = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
        while let Some(at) = text.bytes().position(is_special) {
            // Characters that need escaping are ASCII, so one byte each.
            let (plain, rest) = text.split_at(at);
            self.0.extend_from_slice(plain.as_bytes());
            let byte = rest.as_bytes()[0];
            match byte {
                b'"' | b'\\' => self.0.extend_from_slice(&[b'\\', byte]),
                _ => {
                    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
                    self.0.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
                }
            }
            text = &rest[1..];
        }
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::core::decision::{Decision, Reason, Source};
    use crate::core::key::Digest;
    use crate::core::limit::Limit;
    use crate::core::policy::Rule;
    use crate::core::time::Timestamp;
    use crate::serve::listing;

    /// Decisions of all reasons and sources, with limits and without.
    fn results() -> impl Iterator<Item = CheckResult> {
        let rule = Rule::of("api", &[Limit::parse("100/1m").unwrap(), Limit::parse("9/1d fixed").unwrap()]);
        let rules = [None, Some(Arc::new(rule))];
        let kinds = Reason::ALL.into_iter().flat_map(|reason| Source::ALL.map(|source| (reason, source)));
        kinds.enumerate().flat_map(move |(index, (reason, source))| {
            rules.clone().map(|rule| {
                let decision = Decision {
                    verdict: if index % 2 == 0 { Verdict::Deny } else { Verdict::Allow },
                    limit: u64::MAX,
                    remaining: index as u64,
                    retry_after: (index % 3 > 0).then_some(Micros(1_234_567)),
                    reset_after: Micros(30_100_000),
                    reset_at: Timestamp(1_700_000_000_500_000),
                    reason,
                    source,
                    limit_index: (index % 2) as u8,
                    slot: if index % 5 == 0 { NonZeroU64::new(0xabc) } else { None },
                    epoch: 0,
                };
                CheckResult { decision, rule, digest: Digest::of("api", b"k") }
            })
        })
    }

    #[test]
    fn bodies_say_what_maps_would() {
        for result in results() {
            let mut object = listing::decision(&result);
            assert_eq!(String::from_utf8(admission(&result)).unwrap(), Value::Object(object.clone()).to_string());
            let name =
                result.rule.as_ref().map(|rule| rule.limits[usize::from(result.decision.limit_index)].to_string());
            let more = json!({
                "type": QUOTA,
                "title": TITLE,
                "status": 403,
                "detail": listing::why(&result),
                "violated-policies": name.as_slice(),
                "policy": "a \"b\"\\\u{e9}",
            });
            object.append(&mut more.as_object().unwrap().clone());
            let denied = denial(&result, "a \"b\"\\\u{e9}", StatusCode::FORBIDDEN);
            assert_eq!(String::from_utf8(denied).unwrap(), Value::Object(object).to_string());
        }
    }

    #[test]
    fn any_text_comes_back_as_it_was() {
        let all: String = (0..0x300).filter_map(char::from_u32).chain("\u{1f980}".chars()).collect();
        for text in ["", "plain", "\"", "\\\\", "a\u{0}b\n", &all] {
            let mut object = Object::new();
            object.text("text", text);
            let read: Value = serde_json::from_slice(&object.end()).expect("it is JSON");
            assert_eq!(read["text"], text);
        }
    }
}
