//! What requests of several keys rest on, on virtual time: a look, tokens in advance, and a way back.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{Op, StoreError};
use rationd::core::decision::{Source, Verdict};
use rationd::core::key::Digest;
use rationd::core::page::Place;
use rationd::core::policy::Rule;
use rationd::core::shard::{Request, Settings, Shard};
use rationd::core::time::Micros;

use support::bench::{Bench, SECOND};

fn request<'a>(rule: &'a Arc<Rule>, cost: u64) -> Request<'a> {
    Request { rule, digest: Digest::of("test", &[0]), key: &[0], cost, peek: false }
}

/// Takes back the last admission.
fn rollback(bench: &mut Bench, cost: u64) {
    let (rule, decision) = (bench.rule.clone(), bench.last.expect("a decision"));
    bench.shard.rollback(bench.now, request(&rule, cost), &decision);
}

/// A key of `100/1s fixed` whose store was lost in the window before, so that this window's share is there.
fn in_an_outage() -> Bench {
    let mut bench = Bench::new("100/1s fixed");
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.replies();
    bench.advance(SECOND + Micros(100_000));
    bench
}

#[test]
fn an_admission_from_a_lease_is_undone_in_memory_and_not_counted() {
    let mut bench = Bench::new("100/1s fixed");
    bench.hold(10);
    assert_eq!(bench.check(4), Some(Verdict::Allow));
    let admitted = |bench: &Bench| bench.shard.policy_stats().flat_map(|(_, stats)| stats.checks()).map(|c| c.3).sum();
    let (held, counted): (u64, u64) = (bench.shard.held(), admitted(&bench));
    rollback(&mut bench, 4);
    assert_eq!(bench.shard.held(), held + 4);
    assert_eq!(admitted(&bench), counted - 1);
    assert!(bench.shard.poll_effect().is_none(), "the store is not asked");
}

#[test]
fn an_admission_is_undone_in_memory_though_the_rest_was_given_back() {
    let mut bench = Bench::new("100/1s fixed");
    bench.hold(10);
    assert_eq!(bench.check(4), Some(Verdict::Allow));
    bench.shard.handle_drain(bench.now);
    while bench.shard.poll_effect().is_some() {}
    assert_eq!(bench.shard.held(), 0);
    rollback(&mut bench, 4);
    assert_eq!(bench.shard.held(), 4);
}

#[test]
fn an_admission_on_the_share_goes_back_to_the_share() {
    let mut bench = in_an_outage();
    let admitted = |bench: &mut Bench| {
        let mut count = 0;
        while bench.check(1) == Some(Verdict::Allow) {
            assert_eq!(bench.last.map(|decision| decision.source), Some(Source::Share));
            count += 1;
        }
        count
    };
    assert_eq!(bench.check(5), Some(Verdict::Allow));
    rollback(&mut bench, 5);
    let first = admitted(&mut bench);
    assert_eq!(first, 95, "the whole share is left");
}

#[test]
fn what_was_admitted_in_a_window_that_is_over_does_not_go_back_to_the_next_one() {
    for limit in ["10/1s fixed", "10/1s sliding", "10/1s fixed from-first"] {
        let mut bench = Bench::new(limit);
        bench.hold(4);
        assert_eq!(bench.check(4), Some(Verdict::Allow), "{limit}");
        let first = bench.last.expect("a decision");
        // Another key of the request has to ask the store, and is denied when the next window is open and used up.
        bench.settle_window(SECOND + SECOND);
        bench.calls().iter().for_each(|call| bench.grant(call, 0));
        assert_eq!(bench.check(4), None, "{limit}: {:?}", bench.last);
        let call = bench.acquire();
        bench.grant(&call, 10);
        assert_eq!(bench.check(6), Some(Verdict::Allow), "{limit}");
        while bench.shard.poll_effect().is_some() {}
        let rule = bench.rule.clone();
        let outcome = bench.shard.rollback(bench.now, request(&rule, 4), &first);
        assert!(
            outcome.is_none() && bench.shard.poll_effect().is_none(),
            "{limit}: the store is asked for {outcome:?}"
        );
        assert_eq!(bench.shard.held(), 0, "{limit}");
    }
}

/// A table with room for one key has forgotten the one that was admitted, for the next of the request, which the store has answered or not.
/// The node then goes by its own clock, by which the window is over, or has no room for the key; but the store knows better.
#[test]
fn an_admission_goes_back_to_the_store_where_its_key_was_forgotten_meanwhile() {
    for (limit, is_answered) in
        ["10/1s fixed", "10/1s sliding", "10/100s"].into_iter().flat_map(|limit| [(limit, true), (limit, false)])
    {
        let mut bench = Bench::with_keys(limit, 1);
        let settings = Settings { max_keys: 1, timeout: Micros(50_000), lease_ahead: true };
        let wrong = bench.store_now() + Micros(3_600 * SECOND.0);
        bench.shard = Shard::new(settings, 7, 1, 1, (bench.now, wrong));
        bench.hold(9);
        assert_eq!(bench.check(4), Some(Verdict::Allow), "{limit}");
        let (first, rule) = (bench.last.expect("a decision"), bench.rule.clone());
        bench.advance(Micros(1_000));
        assert_eq!(bench.check_key(1, 1), None, "{limit}");
        let call = bench.acquire();
        if is_answered {
            bench.grant(&call, 1);
            bench.calls();
            assert_eq!(bench.replies(), [Verdict::Allow], "{limit}");
        }
        bench.shard.rollback(bench.now, request(&rule, 4), &first);
        bench.advance(Micros(0));
        let refunded = bench.calls().into_iter().find_map(|call| match call.op {
            Op::Refund { amount, windows, .. } => Some((call.digest, amount, windows[0].is_some())),
            _ => None,
        });
        // A bucket takes back what it owes.
        let names_window = limit != "10/100s";
        assert_eq!(refunded, Some((Digest::of("test", &[0]), 4, names_window)), "{limit}, answered: {is_answered}");
    }
}

#[test]
fn what_a_share_admitted_in_a_window_that_is_over_does_not_go_back_to_the_next_one() {
    let mut bench = in_an_outage();
    assert_eq!(bench.check(5), Some(Verdict::Allow));
    let first = bench.last.expect("a decision");
    for _ in 0..10 {
        bench.advance(Micros(100_000));
        bench.calls().iter().for_each(|call| bench.fail(call, StoreError::Away { since: call.sent_at }));
    }
    let mut left = 95;
    let mut spend = |bench: &mut Bench, cost| {
        left -= cost;
        assert_eq!(bench.check(cost), Some(Verdict::Allow), "{left} left: {:?}", bench.last);
        let source = bench.last.map(|decision| decision.source);
        assert_eq!(source, Some(Source::Share));
    };
    spend(&mut bench, 90);
    let rule = bench.rule.clone();
    bench.shard.rollback(bench.now, request(&rule, 5), &first);
    spend(&mut bench, 5);
    assert_eq!(bench.check(1), Some(Verdict::Deny), "the share of this window was 95");
}

#[test]
fn a_look_charges_nothing_and_asks_nobody() {
    let mut bench = Bench::new("100/1s fixed");
    let rule = bench.rule.clone();
    let unknown = bench.shard.peek_local(bench.now, request(&rule, 1));
    assert_eq!((unknown.verdict, unknown.remaining), (Verdict::Allow, 100));
    assert!(bench.shard.poll_effect().is_none() && bench.shard.keys(bench.now, Place::default(), 9).is_empty());
    bench.hold(10);
    let held = bench.shard.held();
    assert_eq!(bench.shard.peek_local(bench.now, request(&rule, 3)).verdict, Verdict::Allow);
    assert_eq!(bench.shard.held(), held);
}

#[test]
fn what_a_check_will_lack_is_leased_before_it_comes() {
    let mut bench = Bench::new("100/1s fixed");
    let rule = bench.rule.clone();
    bench.shard.prefetch(bench.now, request(&rule, 1));
    bench.shard.prefetch(bench.now, request(&rule, 1));
    let calls: Vec<_> = std::iter::from_fn(|| bench.shard.poll_effect()).collect();
    let [rationd::core::shard::Effect::Call(call)] = &calls[..] else { panic!("one acquire: {calls:?}") };
    assert!(matches!(call.op, Op::Acquire(_)));
    bench.grant(call, 1);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "it is there");
}

/// It was leased as if nobody waited for it, so that of a bucket it was set aside, and a call had to say when it was spent.
#[test]
fn what_a_check_will_lack_of_a_bucket_is_charged_at_once() {
    for comes in [true, false] {
        let mut bench = Bench::new("100/1m");
        let settings = Settings { max_keys: 1, timeout: Micros(50_000), lease_ahead: false };
        bench.shard = Shard::new(settings, 7, 1, 1, (bench.now, bench.store_now()));
        let rule = bench.rule.clone();
        bench.shard.prefetch(bench.now, request(&rule, 2));
        bench.advance(Micros(0));
        let call = bench.acquire();
        assert_eq!((bench.order(&call).need, bench.order(&call).least), (2, 2));
        bench.grant(&call, 2);
        bench.advance(Micros(1_000));
        assert!(bench.calls().is_empty(), "the check may come yet");
        if comes {
            assert_eq!(bench.check(2), Some(Verdict::Allow));
        }
        (0..5).for_each(|_| bench.advance(SECOND));
        let back = bench.calls().into_iter().map(|call| match call.op {
            Op::Return { amount, .. } => amount,
            other => panic!("{other:?}"),
        });
        assert_eq!(back.collect::<Vec<_>>(), if comes { vec![] } else { vec![2] });
    }
}

#[test]
fn what_was_leased_before_a_check_and_never_answered_is_given_back() {
    let mut bench = Bench::new("100/1s fixed");
    let rule = bench.rule.clone();
    bench.shard.prefetch(bench.now, request(&rule, 1));
    bench.advance(Micros(0));
    // Nobody knows whether the store has executed it.
    let first = bench.acquire();
    bench.fail(&first, StoreError::Unknown);
    let again = bench.acquire();
    assert_eq!(again.id, first.id);
    bench.fail(&again, StoreError::Away { since: bench.now });
    bench.advance(SECOND);
    let voided = bench.calls().into_iter().find_map(|call| match call.op {
        Op::Return { voids: Some(voids), .. } => Some(voids.id),
        _ => None,
    });
    assert_eq!(voided, Some(first.id), "the key was not forgotten");
}
