//! The series, told things by hand.

use std::sync::Arc;

use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::{Micros, Timestamp};

use super::*;
use crate::observe::Request;
use crate::plan::{Fault, Plan, What};
use crate::span::Span;

/// The store's clock at the start: a whole second and a half.
const START: u64 = 1_800_000_000_500_000;

fn see(series: &mut Series, at: u64, seen: &Seen<'_>) {
    series.see(Moment { at, store: Timestamp(START + at) }, seen);
}

fn series(limit: &str) -> (Series, Arc<Rule>) {
    let rule = Arc::new(Rule::of("api", &[Limit::parse(limit).expect(limit)]));
    let plan = Plan { span: Span::secs(4), ..Plan::default() };
    (Series::new(&Setting { plan, rules: vec![rule.clone()] }), rule)
}

fn check(series: &mut Series, rule: &Arc<Rule>, at: u64, key: u32, admitted: bool) {
    let request = Request { id: 1, node: 1, key, policy: 0, cost: 1, kind: Kind::Check, asked: at };
    let decision = Decision {
        verdict: if admitted { Verdict::Allow } else { Verdict::Deny },
        limit: 0,
        remaining: 0,
        retry_after: None,
        reset_after: Micros(0),
        reset_at: Timestamp(0),
        reason: Reason::Ok,
        source: Source::Share,
        limit_index: 0,
        slot: None,
        epoch: 0,
    };
    let store = Timestamp(START + at);
    see(series, at, &Seen::Answered { request: &request, rule, decision: &decision, parked: false, store });
}

#[test]
fn buckets_cover_the_run_and_keep_the_nodes() {
    let (mut series, rule) = series("2/1s fixed");
    see(&mut series, 0, &Seen::Joined { node: 1, incarnation: 1 });
    check(&mut series, &rule, 25_000, 0, true);
    see(&mut series, 35_000, &Seen::Joined { node: 2, incarnation: 2 });
    see(&mut series, 4_000_000, &Seen::Over);
    assert_eq!((series.width, series.buckets.len()), (10_000, 400));
    let nodes: Vec<u32> = series.buckets[..5].iter().map(|bucket| bucket.nodes).collect();
    assert_eq!(nodes, [1, 1, 1, 2, 2]);
    assert_eq!((series.buckets[2].checks, series.buckets[2].on_share), (1, 1));
    assert_eq!((series.nodes[1].checks, series.nodes[1].admitted), (1, 1));
}

#[test]
fn windows_sum_up_keys_each_within_its_limit() {
    let (mut series, rule) = series("2/1s fixed");
    (0..5).for_each(|_| check(&mut series, &rule, 0, 0, true));
    check(&mut series, &rule, 0, 1, true);
    check(&mut series, &rule, 600_000, 1, false);
    let track = &series.tracks[0];
    assert_eq!(track.start, -500_000);
    let first = Window { limit: 4, asked: 6, wanted: 3, admitted: 6, fullest: 250_000 };
    assert_eq!(track.windows, [first, Window { limit: 2, asked: 1, wanted: 1, admitted: 0, fullest: 0 }]);
}

#[test]
fn books_are_spread_over_the_time_they_tell_of() {
    let (mut series, _) = series("2/1s fixed");
    let balance = |spent| Balance { granted: 9, spent, returned: 0, expired: 0, held: 0 };
    see(&mut series, 0, &Seen::Joined { node: 0, incarnation: 1 });
    see(&mut series, 35_000, &Seen::Audit { node: 0, balance: balance(7), keys: 1, waiting: 0 });
    see(&mut series, 45_000, &Seen::Audit { node: 0, balance: balance(8), keys: 1, waiting: 0 });
    let spent: Vec<u64> = series.buckets.iter().map(|bucket| bucket.tokens.spent).collect();
    assert_eq!(spent, [0, 2, 2, 3, 1]);
}

#[test]
fn faults_become_bars() {
    let (mut series, _) = series("2/1s fixed");
    let clog = Fault { at: Span(5), lasts: Span(10), what: What::Clog { master: 1 } };
    let kill = Fault { at: Span(7), lasts: Span(0), what: What::Kill { master: 0 } };
    see(&mut series, 5, &Seen::Begins(&clog));
    see(&mut series, 7, &Seen::Begins(&kill));
    see(&mut series, 15, &Seen::Ends(&clog));
    let until: Vec<_> = series.bars.iter().map(|bar| (bar.label.as_str(), bar.until)).collect();
    assert_eq!(until, [("clog master 1", Some(15)), ("kill master 0", Some(7))]);
}
