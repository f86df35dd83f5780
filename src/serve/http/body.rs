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

/// The body of an admission. `name` is that of the limit which fills the decision's numbers.
pub(super) fn admission(result: &CheckResult, name: Option<&str>) -> Vec<u8> {
    body(result, name, None)
}

/// The body of a denial by the policy of that name. `status` is the response's.
pub(super) fn denial(result: &CheckResult, name: Option<&str>, policy: &str, status: StatusCode) -> Vec<u8> {
    body(result, name, Some((policy, status)))
}

/// What begins a member with a name of ours, which needs no escaping.
macro_rules! member {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

fn body(result: &CheckResult, name: Option<&str>, denial: Option<(&str, StatusCode)>) -> Vec<u8> {
    let CheckResult { decision, .. } = result;
    let mut object = Object::new();
    if denial.is_some() {
        object.text(member!("detail"), Why { result, name: name.unwrap_or_default() });
    }
    object.number(member!("limit"), Some(decision.limit));
    object.plain(member!("limit_name"), name);
    object.raw(member!("limited"), if decision.verdict == Verdict::Deny { "true" } else { "false" });
    if let Some((policy, _)) = denial {
        object.text(member!("policy"), policy);
    }
    object.plain(member!("reason"), Some(decision.reason.as_str()));
    object.number(member!("remaining"), Some(decision.remaining));
    object.number(member!("reset_after_ms"), Some(decision.reset_after.as_millis_ceil()));
    object.number(member!("reset_at_ms"), Some(decision.reset_at.as_millis_ceil()));
    object.number(member!("retry_after_ms"), decision.retry_after.map(Micros::as_millis_ceil));
    if let Some(slot) = decision.slot {
        object.text(member!("slot"), format_args!("{slot:016x}"));
    }
    object.plain(member!("source"), Some(decision.source.as_str()));
    if let Some((_, status)) = denial {
        object.number(member!("status"), Some(status.as_u16().into()));
        object.plain(member!("title"), Some(TITLE));
        object.plain(member!("type"), Some(QUOTA));
        match name {
            Some(name) => object.raw(concat!(member!("violated-policies"), "[\""), name).raw("\"", "]"),
            None => object.raw(member!("violated-policies"), "[]"),
        };
    }
    object.end()
}

/// A JSON object that is being written. Each member begins with a comma, and the first of them becomes the brace.
struct Object(Vec<u8>);

impl Object {
    fn new() -> Self {
        Self(Vec::with_capacity(ROOM))
    }

    /// A member whose value is JSON already.
    fn raw(&mut self, begins: &'static str, value: &str) -> &mut Self {
        self.0.extend_from_slice(begins.as_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self
    }

    /// A text that needs no escaping: a word of ours, or the name of a limit, which has letters, digits, slashes and spaces.
    fn plain(&mut self, begins: &'static str, value: Option<&str>) {
        match value {
            Some(value) => {
                self.raw(begins, "\"").raw("", value).0.push(b'"');
            }
            None => {
                self.raw(begins, "null");
            }
        }
    }

    fn number(&mut self, begins: &'static str, value: Option<u64>) {
        match value {
            Some(value) => self.raw(begins, itoa::Buffer::new().format(value)),
            None => self.raw(begins, "null"),
        };
    }

    fn text(&mut self, begins: &'static str, value: impl Display) {
        self.raw(begins, "\"");
        write!(Escaped(&mut self.0), "{value}").expect("a Vec takes what is written");
        self.0.push(b'"');
    }

    fn end(mut self) -> Vec<u8> {
        if let Some(first) = self.0.first_mut() {
            *first = b'{';
        }
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
            let name =
                result.rule.as_ref().map(|rule| rule.limits[usize::from(result.decision.limit_index)].to_string());
            let admitted = admission(&result, name.as_deref());
            assert_eq!(String::from_utf8(admitted).unwrap(), Value::Object(object.clone()).to_string());
            let more = json!({
                "type": QUOTA,
                "title": TITLE,
                "status": 403,
                "detail": listing::why(&result),
                "violated-policies": name.as_slice(),
                "policy": "a \"b\"\\\u{e9}",
            });
            object.append(&mut more.as_object().unwrap().clone());
            let denied = denial(&result, name.as_deref(), "a \"b\"\\\u{e9}", StatusCode::FORBIDDEN);
            assert_eq!(String::from_utf8(denied).unwrap(), Value::Object(object).to_string());
        }
    }

    #[test]
    fn any_text_comes_back_as_it_was() {
        let all: String = (0..0x300).filter_map(char::from_u32).chain("\u{1f980}".chars()).collect();
        for text in ["", "plain", "\"", "\\\\", "a\u{0}b\n", &all] {
            let mut object = Object::new();
            object.text(member!("text"), text);
            let read: Value = serde_json::from_slice(&object.end()).expect("it is JSON");
            assert_eq!(read["text"], text);
        }
    }
}
