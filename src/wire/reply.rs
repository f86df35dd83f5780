//! Writes replies directly into the output, without allocations and formatting machinery.
//!
//! A [`Writer`] knows which protocol its connection speaks (2 or 3), and nothing else. Decisions are flat arrays in
//! both protocols, as the reference of the commands describes them.

use crate::core::decision::{Decision, Verdict};
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit};
use crate::core::policy::Rule;

/// The version of RESP that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Writer<'a> {
    /// Writes to the end of `out`.
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// `+text`. The caller makes sure that it has no line break.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `-text`, with line breaks replaced by spaces.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        self.out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.end();
    }

    /// `:value`.
    pub fn integer(&mut self, value: i64) {
        match value {
            -1 => self.out.extend_from_slice(NONE),
            _ => self.number(b':', value),
        }
    }

    /// `:value` of a count, limited to the largest integer of RESP.
    pub fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// `$n bytes`.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// `*n`: the caller appends `n` replies.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// A map of `len` pairs: the caller appends key, value, key, … An array of twice that in RESP2.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Two => self.header(b'*', 2 * len),
            Protocol::Three => self.header(b'%', len),
        }
    }

    /// A null.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Two => b"$-1\r\n",
            Protocol::Three => b"_\r\n",
        });
    }

    /// A complete reply that was written elsewhere.
    pub fn raw(&mut self, reply: &[u8]) {
        self.out.extend_from_slice(reply);
    }

    /// The reply to `CL.THROTTLE`: redis-cell's five integers.
    pub fn throttle(&mut self, decision: &Decision) {
        self.array(5);
        self.five(decision);
    }

    /// The reply to `THROTTLE`: throttlecrab's five integers, with 1 for allowed, and the two waits in the opposite
    /// order of redis-cell's. Its `reset_after` ends when the bucket is full but for two tokens, and is rounded down.
    /// `retry_after` is rounded up, so that a client that waits for it is admitted.
    pub fn throttlecrab(&mut self, decision: &Decision, limit: &Limit) {
        self.array(5);
        self.integer(i64::from(decision.verdict == Verdict::Allow));
        self.count(decision.limit);
        self.count(decision.remaining.min(decision.limit));
        let reset_after = decision.reset_after.0 + gcra::worth(limit, limit.burst).0;
        self.count(reset_after.saturating_sub(gcra::worth(limit, 2).0) / 1_000_000);
        match (decision.verdict, decision.retry_after) {
            (Verdict::Deny, Some(wait)) => self.count(wait.as_secs_ceil().max(1)),
            (Verdict::Deny, None) => self.integer(-1),
            _ => self.integer(0),
        }
    }

    /// A decision: the ten fields of `RATION.CHECK`. Under a concurrent limit the permit's id follows, empty where
    /// none was taken. Without a rule, which means that the policy counts nothing, the limit has no name.
    pub fn decision(&mut self, decision: &Decision, rule: Option<&Rule>) {
        let is_concurrent = rule.is_some_and(Rule::is_concurrent);
        self.array(if is_concurrent { 11 } else { 10 });
        self.ten(decision, rule);
        if is_concurrent {
            let id = decision.slot.map_or_else(String::new, |slot| format!("{slot:016x}"));
            self.bulk(id.as_bytes());
        }
    }

    /// The ten fields without the array's header, for a caller that adds further fields.
    pub fn ten(&mut self, decision: &Decision, rule: Option<&Rule>) {
        let mut text = Backwards::<TEN>::new();
        text.bulk(|text| text.push(decision.source.as_str().as_bytes()));
        text.bulk(|text| {
            if let Some(limit) = rule.and_then(|rule| rule.limits.get(usize::from(decision.limit_index))) {
                text.limit(limit);
            }
        });
        text.bulk(|text| text.push(decision.reason.as_str().as_bytes()));
        text.count(decision.reset_at.as_millis_ceil());
        match decision.retry_after {
            Some(wait) => text.count(wait.as_millis_ceil()),
            None => text.push(NONE),
        }
        text.five(decision);
        self.out.extend_from_slice(text.as_bytes());
    }

    fn five(&mut self, decision: &Decision) {
        let mut text = Backwards::<FIVE>::new();
        text.five(decision);
        self.out.extend_from_slice(text.as_bytes());
    }

    fn header(&mut self, kind: u8, len: usize) {
        self.number(kind, i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// A line that is a number.
    fn number(&mut self, kind: u8, value: i64) {
        if (0..10).contains(&value) {
            return self.out.extend_from_slice(&[kind, b'0' + value as u8, b'\r', b'\n']);
        }
        let mut line = Backwards::<LINE>::new();
        line.line(kind, value);
        self.out.extend_from_slice(line.as_bytes());
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.end();
    }

    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The integer that stands for none.
const NONE: &[u8] = b":-1\r\n";

/// Most bytes of a line with any 64-bit integer: its kind, a sign, the decimal digits and a CRLF.
const LINE: usize = 2 + 20 + 2;

/// Most bytes of redis-cell's five integers.
const FIVE: usize = 5 * LINE;

/// Most bytes of a limit's name: two numbers with a slash between them, a unit, and the burst or the algorithm.
const NAME: usize = 20 + 1 + 20 + 2 + 27;

/// Most bytes of the ten fields: seven integers, and three texts with their lengths. Reasons and sources have 16 bytes at most.
const TEN: usize = 7 * LINE + (NAME + LINE) + 2 * (16 + LINE);

/// The digits of all numbers below 100, two each: a division gives two of them.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Text on the stack that is written from its end to its beginning. Divisions yield a number's digits in that order, and the length of a
/// bulk string, which stands before it, is known when it has been written.
#[derive(Debug)]
struct Backwards<const ROOM: usize> {
    bytes: [u8; ROOM],
    /// Where the text begins.
    from: usize,
}

impl<const ROOM: usize> Backwards<ROOM> {
    fn new() -> Self {
        Self { bytes: [0; ROOM], from: ROOM }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    #[inline]
    fn push(&mut self, text: &[u8]) {
        let end = self.from;
        self.from -= text.len();
        self.bytes[self.from..end].copy_from_slice(text);
    }

    /// The same for text whose length is known.
    #[inline]
    fn put<const N: usize>(&mut self, text: [u8; N]) {
        self.push(&text);
    }

    /// The digits of a number.
    #[inline]
    fn number(&mut self, mut value: u64) {
        while value >= 100 {
            self.put(PAIRS[(value % 100) as usize]);
            value /= 100;
        }
        if value < 10 {
            self.put([b'0' + value as u8]); // one digit
        } else {
            self.put(PAIRS[value as usize]);
        }
    }

    /// A line that is a number.
    #[inline]
    fn line(&mut self, kind: u8, value: i64) {
        if (0..10).contains(&value) {
            return self.put([kind, b'0' + value as u8, b'\r', b'\n']);
        }
        self.put(*b"\r\n");
        self.number(value.unsigned_abs());
        if value < 0 {
            self.put(*b"-");
        }
        self.put([kind]);
    }

    /// `:value` of a count, limited to the largest integer of RESP.
    #[inline]
    fn count(&mut self, value: u64) {
        self.line(b':', i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// `$n bytes`, where `write` writes the bytes.
    #[inline]
    fn bulk(&mut self, write: impl FnOnce(&mut Self)) {
        self.put(*b"\r\n");
        let end = self.from;
        write(self);
        self.line(b'$', (end - self.from) as i64); // at most `ROOM`
    }

    /// redis-cell's five integers.
    #[inline]
    fn five(&mut self, decision: &Decision) {
        self.count(decision.reset_after.as_secs_ceil());
        match (decision.verdict, decision.retry_after) {
            (Verdict::Deny, Some(wait)) => self.count(wait.as_secs_ceil().max(1)),
            _ => self.push(NONE),
        }
        self.count(decision.remaining.min(decision.limit));
        self.count(decision.limit);
        self.line(b':', i64::from(decision.verdict == Verdict::Deny));
    }

    /// A limit's name, in the form that `Limit` displays and the configuration uses.
    fn limit(&mut self, limit: &Limit) {
        const UNITS: [(u64, &[u8]); 6] = [
            (86_400_000_000, b"d"),
            (3_600_000_000, b"h"),
            (60_000_000, b"m"),
            (1_000_000, b"s"),
            (1_000, b"ms"),
            (1, b"us"),
        ];
        match limit.algorithm {
            Algorithm::Gcra if limit.burst == limit.count => {}
            Algorithm::Gcra => {
                self.number(limit.burst);
                self.push(b" burst ");
            }
            Algorithm::Fixed => self.push(b" fixed"),
            Algorithm::FixedFromFirst => self.push(b" fixed from-first"),
            Algorithm::Sliding => self.push(b" sliding"),
            Algorithm::Concurrent => self.push(b" concurrent"),
        }
        let period = limit.period.0;
        let unit = UNITS.iter().find(|(scale, _)| period >= *scale && period.is_multiple_of(*scale));
        let (scale, unit) = unit.unwrap_or(&UNITS[5]);
        self.push(unit);
        self.number(period / scale);
        self.put(*b"/");
        self.number(limit.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::decision::{Reason, Source};
    use crate::core::policy::Plan;
    use crate::core::time::{Micros, Timestamp};

    fn written(protocol: Protocol, write: impl FnOnce(&mut Writer<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers_are_written_whole() {
        for value in [0, 7, 9, 10, 11, 99, 100, 101, 999, 1_000, -1, -9, -10, 1_234_567, 12_345_678, i64::MAX, i64::MIN]
        {
            assert_eq!(written(Protocol::Two, |w| w.integer(value)), format!(":{value}\r\n"));
        }
    }

    #[test]
    fn names_of_limits_are_their_text() {
        for text in [
            "1/1s",
            "100/1s burst 200",
            "5000/1h fixed",
            "3/250ms fixed from-first",
            "4294967295/366d sliding",
            "9007199254740991/3660d fixed from-first",
            "7/90s",
        ] {
            let limit = Limit::parse(text).unwrap();
            let mut name = Backwards::<NAME>::new();
            name.limit(&limit);
            assert_eq!(name.as_bytes(), limit.to_string().as_bytes());
        }
        let limit = Limit::gcra(9_007_199_254_740_990, Micros(316_223_999_999_999), 9_007_199_254_740_991).unwrap();
        let mut name = Backwards::<NAME>::new();
        name.limit(&limit);
        assert_eq!(name.as_bytes(), limit.to_string().as_bytes());
    }

    /// The buffer on the stack has room for whatever a decision may say.
    #[test]
    fn the_longest_decision_is_written_whole() {
        let most = u64::MAX;
        let count = i64::MAX.to_string();
        let limits = [
            Limit::gcra(9_007_199_254_740_990, Micros(316_223_999_999_999), 9_007_199_254_740_991).unwrap(),
            Limit::parse("9007199254740991/316223999999ms fixed from-first").unwrap(),
        ];
        for limit in limits {
            let rule = Rule::of("p", &[limit]);
            let decision = Decision {
                verdict: Verdict::Deny,
                limit: most,
                remaining: most,
                retry_after: Some(Micros(most)),
                reset_after: Micros(most),
                reset_at: Timestamp(most),
                reason: Reason::Overload,
                source: Source::Prefilter,
                ..Plan::Blocked.fixed_decision().unwrap()
            };
            let told = written(Protocol::Two, |w| w.ten(&decision, Some(&rule)));
            let [secs, millis] = [1_000_000, 1_000].map(|unit| most.div_ceil(unit));
            let name = limit.to_string();
            assert!(name.len() <= NAME, "{name}");
            let wanted = format!(
                ":1\r\n:{count}\r\n:{count}\r\n:{secs}\r\n:{secs}\r\n:{millis}\r\n:{millis}\r\n$8\r\noverload\r\n${}\r\n{name}\r\n$9\r\nprefilter\r\n",
                name.len()
            );
            assert_eq!(told, wanted);
        }
    }

    #[test]
    fn a_denial_never_says_retry_in_nothing() {
        let decision = Decision {
            verdict: Verdict::Deny,
            limit: 1,
            remaining: 0,
            retry_after: Some(Micros(0)),
            reset_after: Micros(1),
            reset_at: Timestamp(1_500),
            reason: Reason::Rate,
            source: Source::Store,
            limit_index: 0,
            slot: None,
            epoch: 0,
        };
        assert_eq!(written(Protocol::Two, |w| w.throttle(&decision)), "*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:1\r\n");
        let rule = Rule::of("p", &[Limit::parse("1/1m").unwrap()]);
        let text = written(Protocol::Three, |w| w.decision(&decision, Some(&rule)));
        assert!(text.starts_with("*10\r\n"), "{text}");
        assert!(text.ends_with(":2\r\n$4\r\nrate\r\n$4\r\n1/1m\r\n$5\r\nstore\r\n"), "{text}");
    }

    #[test]
    fn maps_and_nothing_differ_by_protocol() {
        assert_eq!(written(Protocol::Two, |w| w.map(2)), "*4\r\n");
        assert_eq!(written(Protocol::Three, |w| w.map(2)), "%2\r\n");
        assert_eq!(written(Protocol::Two, |w| w.null()), "$-1\r\n");
        assert_eq!(written(Protocol::Three, |w| w.null()), "_\r\n");
    }

    #[test]
    fn an_error_stays_on_one_line() {
        assert_eq!(written(Protocol::Two, |w| w.error("ERR a\r\nb")), "-ERR a  b\r\n");
    }
}
