//! Writes the answer to a request in one pass: a `RateLimitResponse` as bytes, behind the head of a gRPC frame.
//!
//! When it was built as a value and encoded by prost, it cost more than the decision: that allocated a dozen strings
//! and a map, and computed the length of each part again for every part around it.

use std::fmt::{self, Display, Write as _};

use super::proto::{Code, Unit};
use crate::core::decision::{Reason, Verdict};
use crate::serve::ask::CheckRequest;
use crate::serve::check_request::CheckResult;
use crate::wire::headers::{Style, fields, window};

/// Bytes before a message: the compression flag and the length.
pub(super) const FRAME_HEAD: usize = 5;

/// Initial capacity, enough for most answers.
const ROOM: usize = 512;

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hits {
    /// A charge of so many tokens.
    Take(u64),
    /// A peek: is a token left?
    Peek,
    /// A refund of so many tokens.
    Give(u64),
}

/// A descriptor that a policy limits, and its position in the request.
#[derive(Debug)]
pub(super) struct Limited {
    pub(super) place: usize,
    pub(super) hits: Hits,
    pub(super) check: CheckRequest,
}

/// The answer about `count` descriptors. Those that are `limited` have `results`; the others are admitted.
pub(super) fn write(count: usize, limited: &[Limited], results: &[CheckResult], style: Option<Style>) -> Vec<u8> {
    let mut answer = Message(Vec::with_capacity(ROOM));
    answer.0.extend_from_slice(&[0; FRAME_HEAD]);
    let is_denied = results.iter().any(|result| result.decision.verdict == Verdict::Deny);
    answer.number(1, code(is_denied));
    let mut rest = limited.iter().zip(results).peekable();
    for place in 0..count {
        answer.part(2, |status| match rest.next_if(|(limited, _)| limited.place == place) {
            Some((limited, result)) => write_status(status, limited, result),
            None => status.number(1, code(false)),
        });
    }
    if let Some((limited, result)) = limited.iter().zip(results).min_by_key(|(_, result)| tightness(result)) {
        let fields = style.map_or(Vec::new(), |style| fields(style, &result.decision, result.rule.as_deref()));
        for (name, value) in fields {
            answer.part(3, |field| {
                field.text(1, name);
                field.text(2, &value);
            });
        }
        answer.part(6, |metadata| write_metadata(metadata, limited, result));
    }
    let Message(mut bytes) = answer;
    let length = u32::try_from(bytes.len() - FRAME_HEAD).unwrap_or(u32::MAX);
    bytes[1..FRAME_HEAD].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Orders results by what a client must respect first: the longest wait, then what shadow mode would have denied,
/// then the fewest tokens left, then results without a limit.
fn tightness(result: &CheckResult) -> (u8, u64) {
    let decision = &result.decision;
    match decision.verdict {
        Verdict::Deny => (0, u64::MAX - decision.retry_after.map_or(u64::MAX, |wait| wait.0)),
        Verdict::Allow if decision.reason == Reason::Shadow => (1, 0),
        Verdict::Allow if result.rule.is_some() => (2, decision.remaining),
        Verdict::Allow => (3, 0),
    }
}

/// A `DescriptorStatus`.
fn write_status(status: &mut Message, limited: &Limited, result: &CheckResult) {
    let decision = &result.decision;
    let is_denied = decision.verdict == Verdict::Deny;
    status.number(1, code(is_denied));
    let limit = result.rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
    let Some(limit) = limit else {
        return status.number(3, if is_denied { 0 } else { u32::MAX.into() });
    };
    status.part(2, |current| {
        let length = window(limit);
        let unit = Unit::LENGTHS.into_iter().find(|(_, seconds)| *seconds == length);
        current.number(1, small(limit.capacity()));
        current.number(2, unit.map_or(0, |(unit, _)| unit as u64));
        current.text(3, &limited.check.policy.name);
    });
    status.number(3, small(decision.remaining.min(decision.limit)));
    // Envoy passes on only whole seconds to its clients, so they are rounded up.
    status.part(4, |until| until.number(1, decision.reset_after.as_secs_ceil().min(i64::MAX as u64)));
}

/// Writes a `Struct` for access logs and later filters.
fn write_metadata(metadata: &mut Message, limited: &Limited, result: &CheckResult) {
    let decision = &result.decision;
    let limit = result.rule.as_ref().and_then(|rule| rule.limits.get(usize::from(decision.limit_index)));
    metadata.entry("descriptor", |value| value.double(2, limited.place as f64));
    if let Some(limit) = limit {
        metadata.entry("limit", |value| value.shown(3, limit));
    }
    metadata.entry("policy", |value| value.string(3, &limited.check.policy.name));
    metadata.entry("reason", |value| value.string(3, decision.reason.as_str()));
    metadata.entry("source", |value| value.string(3, decision.source.as_str()));
}

fn code(is_denied: bool) -> u64 {
    (if is_denied { Code::OverLimit } else { Code::Ok }) as u64
}

fn small(number: u64) -> u64 {
    number.min(u32::MAX.into())
}

/// A protobuf message that is being written. As in proto3, numbers that are 0 and empty strings are left out.
struct Message(Vec<u8>);

/// The wire types: a varint, eight bytes, or a length and so many bytes.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
}

impl Message {
    fn key(&mut self, tag: u8, wire: Wire) {
        self.0.push(tag << 3 | wire as u8);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, tag: u8, number: u64) {
        if number != 0 {
            self.key(tag, Wire::Varint);
            self.varint(number);
        }
    }

    fn text(&mut self, tag: u8, text: &str) {
        if !text.is_empty() {
            self.string(tag, text);
        }
    }

    /// A string in a `oneof`, which is written even if it is empty.
    fn string(&mut self, tag: u8, text: &str) {
        self.key(tag, Wire::Length);
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A number in a `oneof`, which is written even if it is 0.
    fn double(&mut self, tag: u8, number: f64) {
        self.key(tag, Wire::Fixed64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// The same of what shows itself as text.
    fn shown(&mut self, tag: u8, text: impl Display) {
        self.part(tag, |part| write!(part, "{text}").expect("a Vec takes what is written"));
    }

    /// An entry of a map with string keys.
    fn entry(&mut self, name: &str, value: impl FnOnce(&mut Self)) {
        self.part(1, |entry| {
            entry.text(1, name);
            entry.part(2, value);
        });
    }

    /// A nested message. One byte is reserved for its length, which suffices for most; a longer message is moved.
    fn part(&mut self, tag: u8, write: impl FnOnce(&mut Self)) {
        self.key(tag, Wire::Length);
        let at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - at - 1;
        if length < 0x80 {
            self.0[at] = length as u8;
            return;
        }
        let mut head = Self(Vec::with_capacity(4));
        head.varint(length as u64);
        self.0.splice(at..=at, head.0);
    }
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use prost::Message as _;

    use super::*;
    use crate::core::decision::{Decision, Source};
    use crate::core::key::Digest;
    use crate::core::limit::Limit;
    use crate::core::overrides::Overrides;
    use crate::core::policy::{Plan, Policy, Rule};
    use crate::core::time::{Micros, Timestamp};
    use crate::serve::envoy::proto::{
        DescriptorStatus, Duration, HeaderValue, Kind, RateLimit, RateLimitResponse, Struct, Value,
    };
    use crate::store::turns::Asker;

    /// The same answer, built as a value.
    fn built(count: usize, limited: &[Limited], results: &[CheckResult], style: Option<Style>) -> RateLimitResponse {
        let free = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        let mut statuses = vec![free; count];
        for (limited, result) in limited.iter().zip(results) {
            statuses[limited.place] = status(limited, result);
        }
        let is_denied = results.iter().any(|result| result.decision.verdict == Verdict::Deny);
        let tightest = limited.iter().zip(results).min_by_key(|(_, result)| tightness(result));
        let (headers, dynamic_metadata) = tightest.map_or((Vec::new(), None), |(limited, result)| {
            let fields = style.map_or(Vec::new(), |style| fields(style, &result.decision, result.rule.as_deref()));
            (fields, Some(metadata(limited, result)))
        });
        let header = |(key, value): (&str, String)| HeaderValue { key: key.to_owned(), value };
        RateLimitResponse {
            overall_code: if is_denied { Code::OverLimit } else { Code::Ok }.into(),
            statuses,
            response_headers_to_add: headers.into_iter().map(header).collect(),
            dynamic_metadata,
        }
    }

    fn limit_of(result: &CheckResult) -> Option<&Limit> {
        result.rule.as_ref().map(|rule| &rule.limits[usize::from(result.decision.limit_index)])
    }

    fn status(limited: &Limited, result: &CheckResult) -> DescriptorStatus {
        let is_denied = result.decision.verdict == Verdict::Deny;
        let code = if is_denied { Code::OverLimit } else { Code::Ok }.into();
        let clipped = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let Some(limit) = limit_of(result) else {
            let limit_remaining = if is_denied { 0 } else { u32::MAX };
            return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
        };
        let unit = Unit::LENGTHS.into_iter().find(|(_, seconds)| *seconds == window(limit));
        DescriptorStatus {
            code,
            current_limit: Some(RateLimit {
                name: limited.check.policy.name.to_string(),
                requests_per_unit: clipped(limit.capacity()),
                unit: unit.map_or(Unit::Unknown, |(unit, _)| unit).into(),
            }),
            limit_remaining: clipped(result.decision.remaining.min(result.decision.limit)),
            duration_until_reset: Some(Duration {
                seconds: i64::try_from(result.decision.reset_after.as_secs_ceil()).unwrap_or(i64::MAX),
                nanos: 0,
            }),
        }
    }

    fn metadata(limited: &Limited, result: &CheckResult) -> Struct {
        let text = |text: &str| Value { kind: Some(Kind::Text(text.to_owned())) };
        let mut fields = BTreeMap::from([
            ("policy".to_owned(), text(&limited.check.policy.name)),
            ("reason".to_owned(), text(result.decision.reason.as_str())),
            ("source".to_owned(), text(result.decision.source.as_str())),
            ("descriptor".to_owned(), Value { kind: Some(Kind::Number(limited.place as f64)) }),
        ]);
        fields.extend(limit_of(result).map(|limit| ("limit".to_owned(), text(&limit.to_string()))));
        Struct { fields }
    }

    fn limited(place: usize, name: &str) -> Limited {
        let (plan, overrides) = (Plan::Unlimited, Overrides::default());
        let policy = Policy { name: name.into(), plan, overrides, enforce: 100, refunds: true, candidate: None };
        let check =
            CheckRequest { policy: Arc::new(policy), key: b"k"[..].into(), cost: 1, peek: false, asker: Asker::NODE };
        Limited { place, hits: Hits::Take(1), check }
    }

    #[test]
    fn what_is_written_says_what_values_would() {
        let texts = ["100/1m", "9/1d fixed", "7/3s", "4000000000/1d fixed from-first", "5/1s concurrent"];
        let rules: Vec<_> = texts.map(|text| Some(Arc::new(Rule::of("api", &[Limit::parse(text).unwrap()])))).into();
        let (long, huge) = ("n".repeat(127), "n".repeat(20_000));
        let names = ["api", "", "\u{e9}", &long, &huge];
        let mut number = 0_u64;
        let mut draw = |most: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % most
        };
        for round in 0..2_000 {
            let count = 1 + draw(64) as usize;
            let places: Vec<usize> = (0..count).filter(|_| draw(3) > 0).collect();
            let limited: Vec<_> = places.iter().map(|&place| limited(place, names[draw(5) as usize])).collect();
            let results: Vec<_> = places
                .iter()
                .map(|_| {
                    let rule = if draw(4) == 0 { None } else { rules[draw(5) as usize].clone() };
                    let numbers = [0, 1, 127, 128, u64::from(u32::MAX), u64::MAX];
                    let verdict = if draw(3) == 0 { Verdict::Deny } else { Verdict::Allow };
                    let decision = Decision {
                        verdict,
                        limit: numbers[draw(6) as usize],
                        remaining: numbers[draw(6) as usize],
                        retry_after: (verdict == Verdict::Deny).then(|| Micros(draw(9_000_000))),
                        reset_after: Micros(numbers[draw(6) as usize]),
                        reset_at: Timestamp(1_700_000_000_500_000),
                        reason: Reason::ALL[draw(8) as usize],
                        source: Source::ALL[draw(5) as usize],
                        limit_index: 0,
                        slot: None,
                        epoch: 0,
                    };
                    CheckResult { decision, rule, digest: Digest::of("api", b"k") }
                })
                .collect();
            let style = [None, Some(Style::Draft), Some(Style::X), Some(Style::Github)][round % 4];
            let bytes = write(count, &limited, &results, style);
            let (head, message) = bytes.split_at(FRAME_HEAD);
            assert_eq!(head, [&[0][..], &(message.len() as u32).to_be_bytes()].concat());
            let wanted = built(count, &limited, &results, style);
            assert_eq!(RateLimitResponse::decode(message).expect("it is a message"), wanted);
            assert_eq!(message.len(), wanted.encoded_len(), "nothing is said that could be left out");
        }
    }
}
