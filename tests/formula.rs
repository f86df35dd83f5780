//! The judge of tests/oracle.rs, judged: on virtual time, where the moment of a decision is known to the microsecond,
//! the embedded store must say what the formula says, over windows that turn and buckets that fill; and an answer
//! that is wrong in any one field must be noticed.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::decision::{Decision, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::Rule;
use rationd::core::shard::Request;
use rationd::core::time::{Micros, Timestamp};
use rationd::store::embedded::Embedded;
use support::formula::{Kind, Span};
use support::judge::{Answered, Ask, Judge, More};
use support::random::below;
use support::sequences::{Sequence, sequence, throttled};

const START: u64 = 1_800_000_000_123_457;
const SEQUENCES: u64 = 6_000;
const POLICIES: u64 = 1_000;

/// The embedded store at a time of the test's choice.
struct Clocked {
    store: Embedded,
    now: Timestamp,
}

impl Clocked {
    fn ask(&mut self, rule: &Arc<Rule>, ask: Ask) -> Answered {
        let (digest, now) = (Digest::of("p", b"k"), self.now);
        let request = |cost, peek| Request { rule, digest, key: b"k", cost, peek };
        answered(
            rule,
            &match ask {
                Ask::Check(cost) => self.store.check(now, request(cost, false)),
                Ask::Peek(cost) => self.store.check(now, request(cost, true)),
                Ask::Refund(cost) => self.store.refund(now, request(cost, false)),
            },
        )
    }
}

/// A decision as a client reads it.
fn answered(rule: &Rule, decision: &Decision) -> Answered {
    let waits =
        |wait: Option<Micros>, of: fn(Micros) -> u64| wait.map_or(-1, |wait| i64::try_from(of(wait)).expect("short"));
    let limit = &rule.limits[usize::from(decision.limit_index)];
    Answered {
        limited: decision.verdict == Verdict::Deny,
        limit: decision.limit,
        remaining: decision.remaining,
        retry_s: waits(decision.retry_after, Micros::as_secs_ceil),
        reset_s: decision.reset_after.as_secs_ceil(),
        more: Some(More {
            retry_ms: waits(decision.retry_after, Micros::as_millis_ceil),
            reset_at_ms: decision.reset_at.as_millis_ceil(),
            reason: decision.reason.as_str().to_owned(),
            limit_name: limit.to_string(),
            source: decision.source.as_str().to_owned(),
        }),
    }
}

/// The limits as the product reads them.
fn rule(sequence: &Sequence) -> Arc<Rule> {
    let limits: Vec<Limit> = match sequence.steps[0].rate {
        Some([burst, count, period]) => {
            vec![Limit::gcra(count, Micros::from_secs(period), burst + 1).expect("a limit")]
        }
        None => sequence.limits.iter().map(|text| Limit::parse(text).expect("a limit")).collect(),
    };
    assert!(limits.len() <= MAX_LIMITS);
    Arc::new(Rule::of("p", &limits))
}

/// The same with one thing wrong.
fn spoiled(told: &Answered, dice: &mut u64) -> Answered {
    let mut wrong = told.clone();
    let more = wrong.more.as_mut().expect("ten fields");
    match below(dice, 5) {
        0 => {
            wrong.limited = !wrong.limited;
            let (reason, retry) = if wrong.limited { ("rate", 1) } else { ("ok", -1) };
            more.reason = reason.to_owned();
            (wrong.retry_s, more.retry_ms) = (retry, retry);
        }
        1 => wrong.remaining += 2,
        // A deep bucket is deeper by up to a microsecond for each token.
        2 if more.retry_ms > 0 => more.retry_ms += 200 + i64::try_from(wrong.limit / 1_000).expect("short"),
        3 => more.reset_at_ms += 2,
        _ => wrong.reset_s += 2,
    }
    wrong
}

/// Runs sequences, and hands each answer, what may be true, the moment, and whether tokens are that fine to `each`.
fn run(seed: u64, each: &mut impl FnMut(&mut Judge, Span, (Ask, Answered), bool, &str)) {
    let mut dice = seed;
    for number in 0..SEQUENCES {
        let (_, sequence) = sequence(seed, number, POLICIES);
        let formulas = match sequence.steps[0].rate {
            // A limit has a name here; over CL.THROTTLE it has none.
            Some(rate) => vec![throttled(rate)],
            None => sequence.formulas(),
        };
        let rule = rule(&sequence);
        let mut judge = Judge::new(&formulas, false);
        let mut clocked = Clocked { store: Embedded::new(10, 7), now: Timestamp(START + below(&mut dice, 1 << 40)) };
        let longest = formulas.iter().map(|limit| limit.period_us).max().expect("a limit");
        // Charges round up to microseconds: of a bucket with that many tokens in one the judge is not so sure.
        let is_fine = formulas.iter().any(|limit| limit.kind == Kind::Bucket && 4 * limit.count >= limit.period_us);
        let mut story = format!("{} {:?}", sequence.name, rule.limits);
        for step in &sequence.steps {
            let pause = if below(&mut dice, 2) == 0 { step.pause_us } else { below(&mut dice, longest * 3 / 2) };
            clocked.now = clocked.now + Micros(pause);
            let answer = clocked.ask(&rule, step.ask);
            story += &format!("\n  {} {:?} -> {answer:?}", clocked.now.0, step.ask);
            let at = Span { first: clocked.now.0, last: clocked.now.0 };
            each(&mut judge, at, (step.ask, answer), is_fine, &story);
        }
    }
}

#[test]
fn embedded_store_says_what_the_formula_says() {
    let (mut judged, mut denied) = (0, 0);
    run(1, &mut |judge, at, (ask, answer), _, story| {
        judged += 1;
        denied += u64::from(answer.limited);
        let found = judge.judge(at, ask, &answer);
        assert!(found.is_empty(), "{found:?}\n{story}");
    });
    assert!(judged > 4 * SEQUENCES && denied > SEQUENCES / 2, "{judged} judged, {denied} denied");
}

#[test]
fn judge_notices_whatever_is_wrong() {
    let (mut dice, mut spoilt, mut missed) = (5, 0, BTreeMap::new());
    run(2, &mut |judge, at, (ask, answer), is_fine, story| {
        let wrong = spoiled(&answer, &mut dice);
        let found = judge.clone().judge(at, ask, &wrong);
        spoilt += 1;
        if found.is_empty() && !is_fine {
            missed.entry(format!("{wrong:?}")).or_insert_with(|| story.to_owned());
        }
        judge.judge(at, ask, &answer);
    });
    let examples: Vec<_> = missed.iter().take(3).collect();
    // The last token of a bucket whose charges were all rounded up may be there or not.
    assert!(missed.len() * 5_000 <= spoilt, "{} of {spoilt} went unnoticed: {examples:#?}", missed.len());
}
