//! The ledger, told things by hand.

use std::sync::Arc;

use rationd::core::call::{Call, Op};
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::{Instant, Micros, Timestamp};

use super::{Figures, Ledger};
use crate::observe::{Balance, Kind, Moment, Observer, Request, Seen, Setting};
use crate::plan::Plan;
use crate::span::Span;

/// The store's clock at the start: a whole second.
const START: u64 = 1_800_000_000_000_000;

/// A ledger that is told things by hand.
struct Story {
    ledger: Ledger,
    rule: Arc<Rule>,
    skew: u64,
    key: u32,
    id: u64,
}

impl Story {
    fn new(limit: &str, warm_up: Span) -> Self {
        let rule = Arc::new(Rule::of("api", &[Limit::parse(limit).expect(limit)]));
        let plan = Plan { warm_up, ..Plan::default() };
        let ledger = Ledger::new(&Setting { plan, rules: vec![rule.clone()] });
        Self { ledger, rule, skew: 0, key: 0, id: 0 }
    }

    fn see(&mut self, at: u64, seen: &Seen<'_>) {
        self.ledger.see(Moment { at, store: Timestamp(START + at) }, seen);
    }

    fn answer(&mut self, at: u64, kind: Kind, node: u32, cost: u64, took: u64, admitted: bool) {
        self.id += 1;
        let request = Request { id: self.id, node, key: self.key, policy: 0, cost, kind, asked: at - took };
        let decision = Decision {
            verdict: if admitted { Verdict::Allow } else { Verdict::Deny },
            limit: 0,
            remaining: 0,
            retry_after: None,
            reset_after: Micros(0),
            reset_at: Timestamp(0),
            reason: if admitted { Reason::Ok } else { Reason::Rate },
            source: if took > 0 { Source::Store } else { Source::Lease },
            limit_index: 0,
            slot: None,
            epoch: 0,
        };
        let store = Timestamp(START + at + self.skew);
        let rule = self.rule.clone();
        self.see(at, &Seen::Answered { request: &request, rule: &rule, decision: &decision, parked: took > 0, store });
    }

    /// So many checks of one token each at one moment.
    fn checks(&mut self, at: u64, admitted: u64, denied: u64) {
        (0..admitted).for_each(|_| self.answer(at, Kind::Check, 0, 1, 0, true));
        (0..denied).for_each(|_| self.answer(at, Kind::Check, 0, 1, 0, false));
    }

    fn call(&mut self, at: u64, node: u32) {
        let (rule, op) = (self.rule.clone(), Op::Peek);
        let call = Call { id: 1, digest: Digest::of("api", b"key"), rule, op, sent_at: Instant(at) };
        self.see(at, &Seen::Called { node, key: 0, call: &call, sent: true });
    }

    fn over(mut self, at: u64) -> Figures {
        self.see(at, &Seen::Over);
        self.ledger.figures()
    }
}

#[test]
fn window_over_its_limit_is_seen_and_counted() {
    let mut story = Story::new("1000/1s fixed", Span(0));
    story.checks(100, 1_000, 5);
    story.checks(1_000_100, 1_001, 0);
    let figures = story.over(2_000_000);
    assert_eq!((figures.windows, figures.windows_over, figures.over), (2, 1, 100), "0.1 % of 1000");
    assert_eq!(figures.window_peak, 100_100);
    assert_eq!((figures.checks, figures.admitted, figures.denied), (2_006, 2_001, 5));
}

#[test]
fn used_is_a_part_of_what_an_exact_counter_admits() {
    let mut story = Story::new("100/1s fixed", Span(0));
    story.checks(100, 90, 60); // 100 were possible
    story.checks(1_000_100, 50, 0); // 50 were asked for
    let figures = story.over(2_000_000);
    assert_eq!((figures.used_tokens, figures.possible_tokens), (140, 150));
    assert_eq!(figures.used, Some(93_333));
}

#[test]
fn windows_that_are_cut_do_not_count_as_used() {
    let mut story = Story::new("100/1s fixed", Span::millis(500));
    story.checks(400_000, 0, 100); // warm-up
    story.checks(600_000, 0, 100); // its window began in the warm-up
    story.checks(1_500_000, 99, 100);
    story.checks(2_500_000, 0, 100); // cut by the end
    let figures = story.over(2_999_999);
    assert_eq!(figures.used, Some(99_000));
    assert_eq!(figures.checks, 399, "the warm-up alone is left out");
}

#[test]
fn windows_are_those_of_the_owners_clock() {
    let mut story = Story::new("10/1s fixed", Span(0));
    story.skew = 300_000;
    story.checks(600_000, 10, 0);
    story.checks(800_000, 10, 0);
    let figures = story.over(1_700_000);
    assert_eq!((figures.windows_over, figures.used_tokens), (0, 10), "the first began before the run");
}

#[test]
fn clock_that_steps_back_does_not_merge_windows() {
    let mut story = Story::new("10/1s fixed", Span(0));
    story.skew = 5_000_000;
    story.checks(100_000, 10, 0);
    story.skew = 0;
    story.checks(200_000, 0, 10);
    story.checks(1_200_000, 10, 0);
    assert_eq!(story.over(2_000_000).windows_over, 0);
}

#[test]
fn refund_makes_room_in_its_window() {
    let mut story = Story::new("10/1s fixed", Span(0));
    story.checks(100, 10, 0);
    story.answer(200, Kind::Refund, 0, 4, 0, true);
    story.checks(300, 4, 0);
    let figures = story.over(1_000_000);
    assert_eq!((figures.over, figures.used), (0, Some(100_000)));
}

#[test]
fn window_with_a_reset_counts_for_nothing() {
    let mut story = Story::new("10/1s fixed", Span(0));
    story.checks(100, 10, 0);
    story.answer(200, Kind::Reset, 0, 0, 0, true);
    story.checks(300, 10, 0);
    let figures = story.over(1_000_000);
    assert_eq!((figures.over, figures.used), (0, None));
}

#[test]
fn gcra_is_measured_over_every_interval() {
    let mut story = Story::new("100/1s gcra burst 50", Span(0));
    story.checks(0, 50, 10);
    story.checks(500_000, 55, 0); // 50 came back
    story.checks(1_500_000, 50, 0);
    let figures = story.over(2_000_000);
    assert_eq!((figures.burst_peak, figures.burst_over, figures.bursts_over), (110_000, 10_000, 1));
    assert_eq!((figures.used_tokens, figures.possible_tokens), (155, 150));
    assert_eq!(figures.used, Some(100_000));
    assert_eq!(figures.windows, 0);
}

#[test]
fn waits_and_answer_times_are_those_of_checks() {
    let mut story = Story::new("1000/1s fixed", Span(0));
    story.checks(1_000, 199, 0);
    story.answer(9_000, Kind::Check, 0, 1, 500, true);
    story.answer(9_000, Kind::Peek, 0, 1, 9_000, true);
    let figures = story.over(1_000_000);
    assert_eq!(figures.waits, 500, "one of 200 is 0.5 %");
    assert_eq!((figures.answer_p50_us, figures.answer_p99_us), (0, 0));
    assert_eq!((figures.answer_p999_us, figures.answer_longest_us), (500, 500));
    assert_eq!(figures.sources["lease"], 199);
}

#[test]
fn calls_are_counted_per_check_window_and_ten_milliseconds() {
    let mut story = Story::new("1000/1s fixed", Span(0));
    for node in [0, 1] {
        story.see(0, &Seen::Joined { node, incarnation: 1 });
    }
    story.checks(0, 300, 0);
    for at in [0, 100_000, 105_000, 109_999, 110_000, 900_000] {
        story.call(at, 0);
    }
    story.call(950_000, 1);
    story.call(1_500_000, 0);
    let figures = story.over(2_000_000);
    assert_eq!((figures.calls, figures.calls_per_1000, figures.calls_per_million), (8, 27, 26_667));
    assert_eq!((figures.calls_per_window, figures.calls_per_window_mean), (6, 2_000));
    assert_eq!(figures.herd, 75_000, "three where the mean is 0.04");
}

#[test]
fn fairness_is_jains_index() {
    let mut story = Story::new("1000/1s fixed", Span(0));
    for (node, admitted) in [(0, 100), (1, 50), (2, 0)] {
        (0..100).for_each(|check| story.answer(0, Kind::Check, node, 1, 0, check < admitted));
    }
    story.answer(0, Kind::Check, 3, 1, 0, false); // asked too little
    assert_eq!(story.over(1_000_000).fairness, 600, "(1 + 0.5)^2 / (3 * 1.25)");
}

#[test]
fn first_answer_of_a_node_that_joined_is_kept() {
    let mut story = Story::new("1000/1s fixed", Span(0));
    story.see(0, &Seen::Joined { node: 0, incarnation: 1 });
    story.answer(5_000, Kind::Check, 0, 1, 5_000, true);
    story.see(6_000, &Seen::Joined { node: 1, incarnation: 2 });
    story.answer(7_000, Kind::Check, 1, 1, 400, true);
    story.answer(9_000, Kind::Check, 1, 1, 900, true);
    let figures = story.over(1_000_000);
    assert_eq!((figures.first_answer_us, figures.nodes), (400, 2));
}

#[test]
fn tokens_of_all_incarnations_add_up() {
    let mut story = Story::new("1000/1s fixed", Span(0));
    let books = |granted| Balance { granted, spent: granted - 1, returned: 0, expired: 1, held: 0 };
    for (at, granted) in [(0, 10), (1_000, 20)] {
        story.see(at, &Seen::Joined { node: 0, incarnation: at });
        story.see(at + 1, &Seen::Audit { node: 0, balance: books(granted - 5), keys: 1, waiting: 0 });
        story.see(at + 2, &Seen::Audit { node: 0, balance: books(granted), keys: 1, waiting: 0 });
    }
    let tokens = story.over(2_000).tokens;
    assert_eq!((tokens.granted, tokens.spent, tokens.expired), (30, 28, 2));
}

#[test]
fn books_of_old_keys_are_closed_without_a_trace() {
    let mut story = Story::new("10/1s fixed", Span(0));
    for key in 0..10_000 {
        story.key = key;
        story.checks(u64::from(key) * 1_000, 1, 0);
    }
    assert!(story.ledger.open <= super::SWEEP, "{}", story.ledger.open);
    assert_eq!(story.over(10_000_000).used_tokens, 10_000);
}
