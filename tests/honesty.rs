//! What a decision promises is kept: who waits `retry_after` is admitted if nobody else spends, no
//! number exceeds its limit, and a window's end does not wobble. For the embedded store, and for a
//! shard that leases over a network with a delay; for chosen limits, and for random ones as clients are told:
//! in milliseconds, in whole seconds, by `CL.THROTTLE`.

use std::sync::Arc;

use proptest::prelude::*;
use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::embedded::Embedded;
use rationd::store::memory::MemoryStore;
use rationd::wire::command::Command;
use rationd::wire::reply::{Protocol, Writer};
use rationd::wire::resp::Parser;
use rationd::wire::value::Value;

const START: u64 = 1_800_000_000_123_457;

const RULES: [&[&str]; 8] = [
    &["7/3s burst 5"],
    &["1000/1s burst 3"],
    &["1/1m"],
    &["20/1s fixed"],
    &["20/700ms fixed from-first"],
    &["30/1s sliding"],
    &["5/1s fixed", "40/10s sliding"],
    &["10/1s", "30/5s fixed"],
];

/// Something that decides, and a clock.
trait Limiter {
    fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision;
    fn wait(&mut self, span: Micros);
}

struct InLine {
    store: Embedded,
    now: Timestamp,
}

impl Limiter for InLine {
    fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        let digest = Digest::of("p", b"k");
        self.store.check(self.now, Request { rule, digest, key: b"k", cost, peek: false })
    }

    fn wait(&mut self, span: Micros) {
        self.now = self.now + span;
    }
}

/// A shard whose calls take `trip` there and back, the store's clock being read half-way, and whose own clock is `ppm`
/// millionths fast.
struct Leasing {
    shard: Shard,
    store: MemoryStore,
    now: Instant,
    trip: Micros,
    ppm: i64,
}

/// What the clock of a [`Leasing`] shows at first.
const BORN: Instant = Instant(3_600_000_000);

impl Leasing {
    fn new(trip: Micros, ppm: i64) -> Self {
        let now = BORN;
        let settings = Settings { max_keys: 10, timeout: Micros(50_000), lease_ahead: true };
        let shard = Shard::new(settings, 7, 1, 1, (now, Timestamp(START)));
        Self { shard, store: MemoryStore::new(100, 7), now, trip, ppm }
    }

    /// What the store's clock shows when the shard's shows `local`.
    fn store_time(&self, local: Instant) -> Timestamp {
        let passed = i128::from(local.since(BORN).0) * 1_000_000 / i128::from(1_000_000 + self.ppm);
        Timestamp(START + u64::try_from(passed).expect("clocks run forwards"))
    }

    /// Carries out what the shard asks for until nothing is left to do; the reply seen, if any.
    fn settle(&mut self) -> Option<Decision> {
        let mut reply = None;
        while let Some(effect) = self.shard.poll_effect() {
            match effect {
                Effect::Ask { .. } | Effect::Answer { .. } => panic!("nobody told it of peers to ask"),
                Effect::Reply { decision, .. } => reply = Some(decision),
                Effect::Call(call) => {
                    let half = Micros(self.trip.0 / 2);
                    let outcome = self.store.call(self.store_time(self.now + half), "n", &call);
                    self.now = self.now + self.trip;
                    self.shard.handle_outcome(self.now, &call, outcome);
                }
            }
        }
        reply
    }
}

impl Limiter for Leasing {
    fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        let digest = Digest::of("p", b"k");
        let outcome = self.shard.check(self.now, Request { rule, digest, key: b"k", cost, peek: false });
        let mut reply = self.settle();
        if let Outcome::Decided(decision) = outcome {
            return decision;
        }
        loop {
            if let Some(decision) = reply {
                return decision;
            }
            self.now = self.now.max(self.shard.poll_timeout().expect("a parked check has a deadline"));
            self.shard.handle_timeout(self.now);
            reply = self.settle();
        }
    }

    fn wait(&mut self, span: Micros) {
        let end = self.now + span;
        while let Some(at) = self.shard.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.shard.handle_timeout(self.now);
            self.settle();
        }
        self.now = self.now.max(end);
    }
}

/// Spends until denied, waits as told, and must be admitted; over and over, with pauses between.
fn holds_to_its_word(limiter: &mut impl Limiter, rule: &Arc<Rule>, what: &str) {
    let capacity = rule.limits.iter().map(Limit::capacity).min().unwrap();
    for round in 0..200_u64 {
        let cost = 1 + round * 7 % capacity.min(4);
        let mut decision = limiter.check(rule, cost);
        for _ in 0..100 {
            assert!(decision.remaining <= decision.limit, "{what}: {decision:?}");
            if decision.verdict == Verdict::Deny {
                break;
            }
            decision = limiter.check(rule, cost);
        }
        if decision.verdict == Verdict::Deny {
            assert_eq!(decision.reason, Reason::Rate, "{what}, round {round}");
            let wait = decision.retry_after.expect("it will pass some day");
            limiter.wait(wait);
            let again = limiter.check(rule, cost);
            assert_eq!(again.verdict, Verdict::Allow, "{what}, round {round}: told {wait:?}, then {again:?}");
        }
        limiter.wait(Micros(round * 104_729 % 900_000));
    }
}

fn rule(limits: &[&str]) -> Arc<Rule> {
    let limits: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
    Arc::new(Rule::of("p", &limits))
}

#[test]
fn embedded_store_holds_to_its_word() {
    for limits in RULES {
        let mut limiter = InLine { store: Embedded::new(100, 7), now: Timestamp(START) };
        holds_to_its_word(&mut limiter, &rule(limits), &format!("{limits:?}"));
    }
}

#[test]
fn leasing_shard_holds_to_its_word() {
    for trip in [Micros(0), Micros(300), Micros(4_000)] {
        for limits in RULES {
            holds_to_its_word(&mut Leasing::new(trip, 0), &rule(limits), &format!("{limits:?} at {trip:?}"));
        }
    }
}

#[test]
fn leasing_shard_whose_clock_drifts_holds_to_its_word() {
    const LONG: [&[&str]; 3] = [&["20/10s fixed"], &["20/7s fixed from-first"], &["30/9s sliding"]];
    let rules = || RULES.into_iter().chain(LONG);
    for (ppm, limits) in [-190, 190].into_iter().flat_map(|ppm| rules().map(move |limits| (ppm, limits))) {
        let mut limiter = Leasing::new(Micros(300), ppm);
        holds_to_its_word(&mut limiter, &rule(limits), &format!("{limits:?}, {ppm} ppm fast"));
    }
}

/// How a client is told its wait.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Exact,
    Milliseconds,
    Seconds,
}

impl Unit {
    fn rounded(self, wait: Micros) -> Micros {
        match self {
            Self::Exact => wait,
            Self::Milliseconds => Micros::from_millis(wait.as_millis_ceil()),
            Self::Seconds => Micros::from_secs(wait.as_secs_ceil()),
        }
    }
}

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![Just(Unit::Exact), Just(Unit::Milliseconds), Just(Unit::Seconds)]
}

/// Small counts and short periods mostly: there every token is a decision of its own.
fn limit() -> impl Strategy<Value = String> {
    let count = prop_oneof![1..20_u64, 1..2_000_u64];
    let period_ms = prop_oneof![100..5_000_u64, 1_000..7_200_000_u64];
    let kind = prop_oneof![
        (1..200_u64).prop_map(|burst| format!("burst {burst}")),
        Just("fixed".to_owned()),
        Just("fixed from-first".to_owned()),
        Just("sliding".to_owned()),
    ];
    (count, period_ms, kind).prop_map(|(count, period, kind)| format!("{count}/{period}ms {kind}"))
}

/// A client that spends until it is denied, and the pause before.
#[derive(Clone, Debug)]
struct Spender {
    pause: u64,
    cost: u64,
    unit: Unit,
}

fn spenders() -> impl Strategy<Value = Vec<Spender>> {
    let spender = (0..3_000_000_u64, 1..40_u64, unit());
    prop::collection::vec(spender.prop_map(|(pause, cost, unit)| Spender { pause, cost, unit }), 1..8)
}

/// Whoever is denied for want of tokens waits as told and is admitted. Says how often that was.
fn keeps_its_word(limiter: &mut impl Limiter, rule: &Arc<Rule>, spenders: &[Spender]) -> Result<usize, TestCaseError> {
    let capacity = rule.limits.iter().map(Limit::capacity).min().expect("there is a limit");
    let mut denied = 0;
    for Spender { pause, cost, unit } in spenders {
        limiter.wait(Micros(*pause));
        let cost = 1 + cost % capacity;
        let Some(decision) = (0..300).map(|_| limiter.check(rule, cost)).find(|told| told.verdict == Verdict::Deny)
        else {
            continue;
        };
        prop_assert_eq!(decision.reason, Reason::Rate);
        let wait = unit.rounded(decision.retry_after.expect("it will pass some day"));
        limiter.wait(wait);
        let again = limiter.check(rule, cost);
        prop_assert_eq!(again.verdict, Verdict::Allow, "cost {}: told {:?}, then {:?}", cost, decision, again);
        denied += 1;
    }
    Ok(denied)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_waits_is_admitted_by_the_embedded_store(
        limits in prop::collection::vec(limit(), 1..4),
        spenders in spenders(),
        start in 0..10_000_000_000_u64,
    ) {
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        let mut limiter = InLine { store: Embedded::new(100, 7), now: Timestamp(START + start) };
        keeps_its_word(&mut limiter, &rule(&limits), &spenders)?;
    }

    #[test]
    fn whoever_waits_is_admitted_by_a_shard_that_leases(
        limits in prop::collection::vec(limit(), 1..4),
        spenders in spenders(),
        trip in 0..5_000_u64,
    ) {
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        // A bucket beside a window may be charged for what comes when the window has just ended, and that is
        // gone: docs/concepts/algorithms.md says so.
        let buckets = limits.iter().filter(|limit| limit.contains("burst")).count();
        prop_assume!(buckets == 0 || buckets == limits.len());
        keeps_its_word(&mut Leasing::new(Micros(trip), 0), &rule(&limits), &spenders)?;
    }

    #[test]
    fn whoever_waits_the_seconds_of_cl_throttle_is_admitted(
        (burst, count, period) in (0..50_u64, prop_oneof![1..50_u64, 1..200_000_u64], 1..3_600_u64),
        quantities in prop::collection::vec(0..60_u64, 1..8),
    ) {
        let mut limiter = InLine { store: Embedded::new(100, 7), now: Timestamp(START) };
        for quantity in quantities {
            let quantity = 1 + quantity % (burst + 1);
            let words = ["CL.THROTTLE".to_owned(), "k".into(), burst.to_string(), count.to_string(), period.to_string()];
            let line = words.join(" ") + &format!(" {quantity}\r\n");
            let ask = |limiter: &mut InLine| throttle(limiter, line.as_bytes());
            let Some(denied) = (0..200).map(|_| ask(&mut limiter)).find(|five| five[0] == 1) else { continue };
            prop_assert!(denied[3] >= 1, "a wait of nothing: {:?}", denied);
            limiter.wait(Micros::from_secs(denied[3].unsigned_abs()));
            let again = ask(&mut limiter);
            prop_assert_eq!(again[0], 0, "{}: told {:?}, then {:?}", line.trim(), denied, again);
        }
    }
}

/// The five integers that a client reads.
fn throttle(limiter: &mut InLine, line: &[u8]) -> Vec<i64> {
    let mut parser = Parser::default();
    let len = parser.parse(line).expect("an inline command").expect("a whole one");
    assert_eq!(len, line.len());
    let command = Command::parse(parser.args(line)).expect("a command");
    let Command::Throttle { rate, quantity, .. } = command else { panic!("another command: {command:?}") };
    let rule = Arc::new(Rule::of("p", &[rate.limit().expect("a limit")]));
    let mut reply = Vec::new();
    Writer::new(&mut reply, Protocol::Two).throttle(&limiter.check(&rule, quantity.unsigned_abs()));
    let (value, _) = Value::parse(&reply).expect("RESP").expect("a whole reply");
    value.as_array().expect("five").iter().map(|one| one.as_integer().expect("integers")).collect()
}
