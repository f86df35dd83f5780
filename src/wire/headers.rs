//! Decisions as HTTP header fields, for a caller that answers an HTTP client.
//!
//! There are three styles: the IETF draft (draft-ietf-httpapi-ratelimit-headers-10, structured fields), the
//! `X-RateLimit` family with a wait in seconds, and GitHub's with a point in time. `Retry-After` is sent on a denial
//! only, and is never shorter than the wait in the other fields. Knows no transport.

use std::fmt::Write as _;

use crate::core::decision::{Decision, Verdict};
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::policy::Rule;
use crate::core::time::Micros;

/// A style of header fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// `RateLimit-Policy`, `RateLimit`.
    #[default]
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` (seconds to wait).
    X,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Used`, `-Reset` (seconds since 1970), `-Resource`.
    Github,
}

impl Style {
    /// The style of that name, whose case does not matter.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        let all = [("draft", Self::Draft), ("x", Self::X), ("github", Self::Github)];
        all.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, style)| style)
    }
}

/// A header field: its name in lower case, and its value.
pub type Field = (&'static str, String);

/// What answers say of a rule, whatever the decision is. To write it takes longer than to decide, so who answers many requests
/// under one rule makes it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// The value of `RateLimit-Policy`.
    pub policy: String,
    /// Where the names of the limits begin and end in it.
    names: [(u16, u16); MAX_LIMITS],
}

impl RuleText {
    /// The text of a rule.
    #[must_use]
    pub fn of(rule: &Rule) -> Self {
        let (mut policy, mut names) = (String::with_capacity(64), [(0, 0); MAX_LIMITS]);
        for (limit, name) in rule.limits.iter().zip(&mut names) {
            policy.push_str(if policy.is_empty() { "\"" } else { ",\"" });
            let begins = policy.len();
            let _ = write!(policy, "{limit}");
            *name = (begins as u16, policy.len() as u16); // eight limits of a hundred bytes, at most
            push(&mut policy, "\";q=", sized(limit.capacity()));
            push(&mut policy, ";w=", window(limit));
        }
        Self { policy, names }
    }

    /// The name of the limit at this position; `None` where the rule has none there.
    #[must_use]
    pub fn name(&self, position: usize) -> Option<&str> {
        let (begins, ends) = *self.names.get(position)?;
        self.policy.get(begins.into()..ends.into()).filter(|name| !name.is_empty())
    }
}

/// Appends the value of `RateLimit`: what is left of the limit of that name, and when there is more.
pub fn push_tightest(into: &mut String, name: &str, decision: &Decision, limit: &Limit) {
    into.push('"');
    into.push_str(name);
    push(into, "\";r=", sized(decision.remaining.min(decision.limit)));
    push(into, ";t=", more_after(decision, limit).as_secs_ceil());
}

/// The value of `Retry-After`, on a denial.
#[must_use]
pub fn retry_after(decision: &Decision) -> Option<u64> {
    let wait = decision.retry_after.filter(|_| decision.verdict == Verdict::Deny)?;
    Some(wait.as_secs_ceil().max(1))
}

/// The header fields for `decision`. Without a rule, which means that the policy counts nothing, there are none.
#[must_use]
pub fn fields(style: Style, decision: &Decision, rule: Option<&Rule>) -> Vec<Field> {
    let Some(rule) = rule else { return Vec::new() };
    let Some(limit) = rule.limits.get(usize::from(decision.limit_index)) else { return Vec::new() };
    let remaining = decision.remaining.min(decision.limit);
    let mut fields = match style {
        Style::Draft => {
            let (text, mut tightest) = (RuleText::of(rule), String::with_capacity(64));
            let name = text.name(decision.limit_index.into()).unwrap_or_default();
            push_tightest(&mut tightest, name, decision, limit);
            vec![("ratelimit-policy", text.policy), ("ratelimit", tightest)]
        }
        Style::X => vec![
            ("x-ratelimit-limit", decision.limit.to_string()),
            ("x-ratelimit-remaining", remaining.to_string()),
            ("x-ratelimit-reset", decision.reset_after.as_secs_ceil().to_string()),
        ],
        Style::Github => vec![
            ("x-ratelimit-limit", decision.limit.to_string()),
            ("x-ratelimit-remaining", remaining.to_string()),
            ("x-ratelimit-used", (decision.limit - remaining).to_string()),
            ("x-ratelimit-reset", decision.reset_at.as_millis_ceil().div_ceil(1_000).to_string()),
            ("x-ratelimit-resource", resource(&rule.policy)),
        ],
    };
    if let Some(wait) = retry_after(decision) {
        fields.push(("retry-after", wait.to_string()));
    }
    fields
}

/// Appends a number. `write!` takes three times as long for it.
fn push(text: &mut String, name: &str, number: u64) {
    text.push_str(name);
    let (mut digits, mut first, mut rest) = ([0; 20], 20, number);
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&digits[first..]).unwrap_or_default());
}

/// The longest time until more tokens are available than now: the wait of a denied request, the next token of a
/// bucket, or the end of a window.
fn more_after(decision: &Decision, limit: &Limit) -> Micros {
    match (decision.retry_after, limit.algorithm) {
        (Some(wait), _) => Micros(wait.0.max(1)),
        (None, Algorithm::Gcra) => {
            let each = (limit.period.0 / limit.count).max(1);
            match decision.reset_after.0 {
                0 => Micros::ZERO,
                whole => Micros(whole % each + if whole.is_multiple_of(each) { each } else { 0 }),
            }
        }
        (None, Algorithm::Sliding) => {
            // In a sliding window, what this window counted only begins to fade in the next one, so its first token
            // returns then. What the last window counted fades already, so more may be available sooner.
            let used = decision.limit.saturating_sub(decision.remaining).max(1);
            let until_next = decision.reset_after.0.saturating_sub(limit.period.0);
            Micros(until_next + (decision.reset_after.0 - until_next).div_ceil(used))
        }
        (None, Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Concurrent) => decision.reset_after,
    }
}

/// The period over which a limit's quota is granted, in seconds.
#[must_use]
pub fn window(limit: &Limit) -> u64 {
    if limit.algorithm == Algorithm::Gcra { limit.depth().as_secs_ceil() } else { limit.period.as_secs_ceil() }
}

/// Limits a number to fifteen digits, as an integer of a structured field (RFC 8941) has at most so many.
fn sized(tokens: u64) -> u64 {
    tokens.min(999_999_999_999_999)
}

/// The part of a policy's name that a header field may contain; names are free text.
fn resource(policy: &str) -> String {
    policy.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::decision::{Reason, Source};
    use crate::core::time::Timestamp;

    fn rule() -> Rule {
        Rule::of("api", &[Limit::parse("100/1m").unwrap(), Limit::parse("1000/1d fixed").unwrap()])
    }

    fn decision(verdict: Verdict, remaining: u64) -> Decision {
        Decision {
            verdict,
            limit: 100,
            remaining,
            retry_after: (verdict == Verdict::Deny).then_some(Micros(1_200_000)),
            reset_after: Micros(30_100_000),
            reset_at: Timestamp(1_700_000_000_500_000),
            reason: Reason::Ok,
            source: Source::Lease,
            limit_index: 0,
            slot: None,
            epoch: 0,
        }
    }

    fn lines(style: Style, decision: &Decision) -> String {
        let fields = fields(style, decision, Some(&rule()));
        fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    #[test]
    fn a_number_is_written_as_the_standard_library_writes_it() {
        for number in [0, 1, 9, 10, 99, 100, 4_000_000_000, u64::MAX - 1, u64::MAX] {
            let mut text = "a".to_owned();
            push(&mut text, "b=", number);
            assert_eq!(text, format!("ab={number}"));
        }
    }

    #[test]
    fn a_rule_has_the_names_of_its_limits_and_no_others() {
        let limits =
            (1..=MAX_LIMITS as u64).map(|count| Limit::parse(&format!("{count}/1d fixed from-first")).unwrap());
        let text = RuleText::of(&Rule::of("api", &limits.clone().collect::<Vec<_>>()));
        for (position, limit) in limits.enumerate() {
            assert_eq!(text.name(position), Some(&*limit.to_string()));
        }
        assert_eq!(text.name(MAX_LIMITS), None);
        assert_eq!((RuleText::of(&rule()).name(1), RuleText::of(&rule()).name(2)), (Some("1000/1d fixed"), None));
    }

    #[test]
    fn draft_names_all_limits_and_the_tightest() {
        let policy = "ratelimit-policy: \"100/1m\";q=100;w=60,\"1000/1d fixed\";q=1000;w=86400\n";
        let allowed = lines(Style::Draft, &decision(Verdict::Allow, 50));
        assert_eq!(allowed, format!("{policy}ratelimit: \"100/1m\";r=50;t=1\n"));
        let denied = lines(Style::Draft, &decision(Verdict::Deny, 0));
        assert_eq!(denied, format!("{policy}ratelimit: \"100/1m\";r=0;t=2\nretry-after: 2\n"));
    }

    #[test]
    fn a_window_has_more_when_it_ends_and_a_whole_bucket_waits_for_nothing() {
        let mut window = decision(Verdict::Allow, 7);
        window.limit_index = 1;
        assert!(lines(Style::Draft, &window).ends_with("r=7;t=31\n"));
        let whole = Decision { reset_after: Micros::ZERO, ..decision(Verdict::Allow, 100) };
        assert!(lines(Style::Draft, &whole).ends_with("r=100;t=0\n"));
    }

    #[test]
    fn a_sliding_window_has_more_when_its_first_token_fades() {
        let rule = Rule::of("api", &[Limit::parse("100/1m sliding").unwrap()]);
        let ratelimit = |remaining, reset_s| {
            let reset_after = Micros::from_secs(reset_s);
            let decision = Decision { reset_after, ..decision(Verdict::Allow, remaining) };
            fields(Style::Draft, &decision, Some(&rule))[1].1.clone()
        };
        assert_eq!(ratelimit(96, 80), "\"100/1m sliding\";r=96;t=35", "20 s of this window, a quarter of the next");
        assert_eq!(ratelimit(99, 80), "\"100/1m sliding\";r=99;t=80");
        assert_eq!(ratelimit(96, 40), "\"100/1m sliding\";r=96;t=10", "all of it was counted by the last window");
        assert_eq!(ratelimit(100, 0), "\"100/1m sliding\";r=100;t=0");
    }

    #[test]
    fn older_styles_tell_a_wait_or_a_time() {
        let denied = decision(Verdict::Deny, 0);
        assert_eq!(
            lines(Style::X, &denied),
            "x-ratelimit-limit: 100\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 31\nretry-after: 2\n"
        );
        let github = lines(Style::Github, &decision(Verdict::Allow, 40));
        assert!(github.contains("x-ratelimit-used: 60\nx-ratelimit-reset: 1700000001\nx-ratelimit-resource: api\n"));
        assert!(!github.contains("retry-after"));
    }

    #[test]
    fn what_counts_nothing_tells_nothing() {
        assert!(fields(Style::X, &decision(Verdict::Allow, 0), None).is_empty());
        assert_eq!((Style::named(b"GitHub"), Style::named(b"y")), (Some(Style::Github), None));
    }
}
