//! Decisions as HTTP header fields, for a caller that answers an HTTP client.
//!
//! There are three styles: the IETF draft (draft-ietf-httpapi-ratelimit-headers-10, structured fields), the
//! `X-RateLimit` family with a wait in seconds, and GitHub's with a point in time. `Retry-After` is sent on a denial
//! only, and is never shorter than the wait in the other fields. Knows no transport.

use std::fmt::Write as _;

use crate::core::decision::{Decision, Verdict};
use crate::core::limit::{Algorithm, Limit};
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

/// The header fields for `decision`. Without a rule, which means that the policy counts nothing, there are none.
#[must_use]
pub fn fields(style: Style, decision: &Decision, rule: Option<&Rule>) -> Vec<Field> {
    let Some(rule) = rule else { return Vec::new() };
    let Some(limit) = rule.limits.get(usize::from(decision.limit_index)) else { return Vec::new() };
    let remaining = decision.remaining.min(decision.limit);
    let mut fields = match style {
        Style::Draft => {
            let more = more_after(decision, limit).as_secs_ceil();
            let (mut policy, mut tightest) = (String::with_capacity(64), String::with_capacity(48));
            for (index, each) in rule.limits.iter().enumerate() {
                policy.push_str(if policy.is_empty() { "\"" } else { ",\"" });
                let begins = policy.len();
                let _ = write!(policy, "{each}");
                if index == usize::from(decision.limit_index) {
                    tightest.push('"');
                    tightest.push_str(&policy[begins..]);
                }
                push(&mut policy, "\";q=", sized(each.capacity()));
                push(&mut policy, ";w=", window(each));
            }
            push(&mut tightest, "\";r=", sized(remaining));
            push(&mut tightest, ";t=", more);
            vec![("ratelimit-policy", policy), ("ratelimit", tightest)]
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
    if let (Verdict::Deny, Some(wait)) = (decision.verdict, decision.retry_after) {
        fields.push(("retry-after", wait.as_secs_ceil().max(1).to_string()));
    }
    fields
}

fn push(text: &mut String, name: &str, number: u64) {
    text.push_str(name);
    let _ = write!(text, "{number}");
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
