//! What a key asks of the store beside leases: however many ask for it, the store is asked for it once at a time.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{Call, Op, StoreError};
use rationd::core::decision::{Reason, Verdict};
use rationd::core::holds::Charge;
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::Request;
use rationd::core::time::Micros;
use support::bench::{Bench, SECOND};

/// The one call that was sent since.
fn only(bench: &mut Bench) -> Call {
    let mut calls = bench.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.pop().expect("one")
}

fn amount(call: &Call) -> u64 {
    match call.op {
        Op::Refund { amount, .. } => amount,
        other => panic!("no refund: {other:?}"),
    }
}

#[test]
fn peeks_of_a_key_share_one_call() {
    let mut bench = Bench::new("10/1h fixed");
    (0..100).for_each(|_| assert!(!bench.peek()));
    let peek = only(&mut bench);
    assert_eq!(peek.op, Op::Peek);
    bench.grant(&peek, 0);
    assert_eq!(bench.replies(), [Verdict::Allow; 100]);
    assert!(bench.calls().is_empty());
}

/// One that is asked for now may not have been told by one that has left: it is another's charge that it forgets.
#[test]
fn resets_share_the_one_that_leaves_next() {
    let mut bench = Bench::new("10/1h fixed");
    (0..100).for_each(|_| bench.reset());
    let first = only(&mut bench);
    assert_eq!(first.op, Op::Reset);
    bench.grant(&first, 0);
    assert_eq!(bench.replies().len(), 1);
    let second = only(&mut bench);
    assert!(second.op == Op::Reset && second.id > first.id);
    bench.grant(&second, 0);
    assert_eq!(bench.replies().len(), 99);
    assert!(bench.calls().is_empty());
}

#[test]
fn refunds_add_up() {
    let mut bench = Bench::new("1000/1h fixed");
    (0..10).for_each(|_| assert!(!bench.refund(2)));
    let first = only(&mut bench);
    assert_eq!(amount(&first), 2);
    bench.grant(&first, 0);
    let rest = only(&mut bench);
    assert_eq!(amount(&rest), 18);
    bench.grant(&rest, 0);
    assert_eq!(bench.replies().len(), 10);
}

/// Left together, they might reach the store in another order, which would take the return for outdated: all that was held
/// was lost until the window was over.
#[test]
fn a_refund_leaves_when_what_goes_back_before_it_is_there() {
    let mut bench = Bench::new("100/10s fixed");
    let limits = ["100/10s fixed", "1000/1s burst 1000"].map(|text| Limit::parse(text).expect("a limit"));
    bench.rule = Arc::new(Rule::of("test", &limits));
    bench.hold(10);
    bench.calls();
    assert!(!bench.refund(2), "the bucket was charged less");
    let back = only(&mut bench);
    assert!(matches!(back.op, Op::Return { amount: 10, .. }), "{back:?}");
    bench.grant(&back, 0);
    assert_eq!(amount(&only(&mut bench)), 2);
}

/// They cannot be one call, and nothing is won by waiting.
#[test]
fn refunds_of_other_windows_leave_at_once() {
    let mut bench = Bench::new("100/10s fixed");
    bench.used = 40; // by others
    bench.hold(10);
    assert_eq!(bench.check(4), Some(Verdict::Allow));
    let charge = Charge::of(4, &bench.last.expect("an answer"));
    let rule = bench.rule.clone();
    let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost: 30, peek: false };
    bench.calls();
    bench.shard.give_back(bench.now, request, &charge);
    assert!(!bench.refund(5));
    let sent = bench.calls();
    let windows = charge.windows(&rule).expect("they are known");
    let ops: Vec<_> = sent.iter().map(|call| call.op).collect();
    assert!(
        matches!(ops[..], [Op::Refund { windows: of_it, .. }, Op::Refund { windows: open, .. }]
        if of_it == windows && open != windows),
        "{ops:?}"
    );
    assert!(!bench.refund(6));
    assert!(bench.calls().is_empty(), "its like is under way");
}

#[test]
fn what_was_asked_for_first_is_done_first() {
    let mut bench = Bench::new("1000/1h fixed");
    bench.reset();
    bench.refund(2);
    bench.reset();
    bench.refund(3);
    assert!(!bench.peek());
    let sent = bench.calls();
    assert!(matches!([sent[0].op, sent[1].op], [Op::Reset, Op::Refund { amount: 2, .. }]), "{sent:?}");
    assert_eq!(sent.len(), 2);
    // Somebody wants tokens, which those before may bring.
    assert_eq!(bench.check(1), None);
    let sent = bench.calls();
    let ops: Vec<_> = sent.iter().map(|call| call.op).collect();
    assert!(matches!(ops[..], [Op::Reset, Op::Refund { amount: 3, .. }, Op::Peek, Op::Acquire(_)]), "{ops:?}");
    assert!(sent.is_sorted_by_key(|call| call.id));
}

#[test]
fn one_that_fails_fails_for_its_own_and_the_next_leaves() {
    let mut bench = Bench::new("10/1h fixed");
    (0..3).for_each(|_| bench.reset());
    let first = only(&mut bench);
    bench.fail(&first, StoreError::Away { since: bench.now });
    assert_eq!(bench.last.expect("an answer").reason, Reason::Store);
    assert_eq!(bench.replies().len(), 1);
    let second = only(&mut bench);
    bench.grant(&second, 0);
    assert_ne!(bench.last.expect("an answer").reason, Reason::Store);
    assert_eq!(bench.replies().len(), 2);
}

#[test]
fn a_store_that_is_asked_too_much_is_not_away() {
    let mut bench = Bench::new("10/1h fixed");
    bench.reset();
    let reset = only(&mut bench);
    bench.fail(&reset, StoreError::Busy { wait: SECOND });
    assert_eq!(bench.last.expect("an answer").reason, Reason::Overload);
}

#[test]
fn whoever_waits_is_answered_in_time_and_what_he_asked_for_is_done() {
    let mut bench = Bench::new("10/1h fixed");
    (0..3).for_each(|_| bench.reset());
    let first = only(&mut bench);
    bench.advance(Micros(50_000));
    assert_eq!(bench.replies().len(), 3);
    bench.advance(SECOND);
    bench.grant(&first, 0);
    let second = only(&mut bench);
    bench.grant(&second, 0);
    assert!(bench.replies().is_empty() && bench.calls().is_empty());
}

#[test]
fn no_more_than_so_many_wait_for_a_key() {
    let mut bench = Bench::new("10/1h fixed");
    (0..10_000).for_each(|_| bench.reset());
    for _ in 0..2 {
        let reset = only(&mut bench);
        bench.grant(&reset, 0);
    }
    assert_eq!(bench.replies().len(), 8_192);
    let mut bench = Bench::new("1000/1h fixed");
    bench.hold(10);
    assert_eq!(bench.check(4), Some(Verdict::Allow));
    bench.calls();
    (0..8_192).for_each(|_| bench.reset());
    let held = bench.held();
    assert!(bench.refund(3) && bench.held() == held, "all of it is turned away, or nothing");
    let mut bench = Bench::new("1000/1h fixed");
    for _ in 0..1_000 {
        bench.reset();
        bench.refund(1);
    }
    assert_eq!(bench.calls().len(), 2, "others wait until these are back");
}
