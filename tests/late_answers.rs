//! What a shard makes of answers that come late, twice, or across the end of a window or the loss of a key, on
//! virtual time.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{CALL_LIFE, Call, Known, Op, StoreError};
use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::shard::Request;
use rationd::core::time::{Micros, Timestamp};
use rationd::core::usage::{Count, PeerIndex, Usage};
use support::bench::{Bench, SECOND};
use support::lone::Lone;

/// A fleet of three that has met.
fn in_fleet(mut bench: Bench) -> Bench {
    let heard = Some(bench.now);
    let view = FleetView { live: 3, largest: 3, has_looked: true, is_steady: true, heard, ..FleetView::UNKNOWN };
    bench.shard.handle_fleet(view);
    bench
}

/// A check that has to wait, and the acquire that it waits for.
fn park(bench: &mut Bench, cost: u64) -> Call {
    assert_eq!(bench.check(cost), None, "the store is asked");
    bench.acquire()
}

/// A check of what is held, at once.
fn spend(bench: &mut Bench, tokens: u64) {
    for _ in 0..tokens {
        assert_eq!(bench.check(1), Some(Verdict::Allow));
        let refill = bench.try_acquire();
        refill.iter().for_each(|call| bench.grant(call, 0));
    }
}

/// The end of the window in which a call was sent.
fn window(bench: &Bench, call: &Call) -> Timestamp {
    let period = bench.rule.limits[0].period.0;
    let sent = call.sent_at.0 + 1_800_000_000_000_000 - 1_000_000_000;
    Timestamp(sent / period * period + period)
}

/// A peer tells that the store lost what it knew of the window that ends then, and began this epoch.
fn hear_of_a_loss(bench: &mut Bench, window: Timestamp, epoch: u64) {
    let count = Count { admitted: 20, refunded: 0 };
    let usage = Usage { digest: Digest::of("test", &[0]), limit: 0, window, count, epoch };
    bench.shard.handle_usage(bench.now, PeerIndex(1), &usage);
    bench.advance(Micros::ZERO);
}

#[test]
fn a_window_that_seemed_over_and_is_not_is_told_to_the_store_as_it_was() {
    let mut bench = Bench::new("100/1s fixed");
    bench.advance(Micros(100_000));
    let first = park(&mut bench, 5);
    // The store read its clock 150 to 700 ms ago, for all that this node knows.
    bench.advance(Micros(700_000));
    bench.behind = 550_000;
    bench.grant(&first, 5);
    bench.advance(Micros(100_000));
    let second = park(&mut bench, 2);
    let at = window(&bench, &first);
    assert_eq!(bench.order(&second).known[0], Known { used: 5, at }, "it may be open yet");
    bench.behind = 0;
    bench.grant(&second, 2);
    let third = park(&mut bench, 3);
    assert_eq!(bench.order(&third).known[0], Known { used: 7, at }, "it is");
}

/// The call for tokens of the next window, of a node that goes on checking.
fn order_ahead(bench: &mut Bench) -> Call {
    let ahead = (0..100).find_map(|turn| {
        bench.advance(Micros(10_000));
        (turn % 10 == 0).then(|| bench.check(1));
        let calls = bench.calls();
        let ahead = |call: &&Call| matches!(call.op, Op::Acquire(order) if order.window.is_next());
        calls.iter().filter(|call| !ahead(call)).for_each(|call| bench.grant(call, 3));
        calls.iter().find(ahead).cloned()
    });
    ahead.expect("tokens of the next window are asked for")
}

/// The store executes the call for the next window at once, and its answer comes 40 ms later, as it waits for replicas.
#[test]
fn what_was_lent_ahead_starts_when_a_quicker_answer_shows_that_its_window_has_begun() {
    let mut bench = Bench::new("100/1s fixed");
    bench.hold(30);
    let ahead = order_ahead(&mut bench);
    bench.settle_window(Micros(40_000));
    bench.behind = 39_900;
    bench.grant(&ahead, 20);
    bench.spend_to_low_water();
    let refill = bench.acquire();
    bench.settle_window(Micros(400));
    bench.behind = 200;
    bench.grant(&refill, 3);
    let left = window(&bench, &ahead).since(bench.store_time());
    assert!(left > Micros(1_000), "both have come before the window begins");
    bench.settle_window(left + Micros(1_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.last.map(|last| last.source), Some(Source::Lease));
    assert!(bench.try_acquire().is_none(), "the store is asked for nothing");
}

/// The answer that lent ahead shows the store's clock at its arrival, and the last one before the window begins shows it when its call left, 8 ms before. So the
/// tokens may be spent when their window has begun, and for 8 ms the latest answer leaves open whether it has. The decision tells
/// which window it is of.
#[test]
fn an_admission_goes_back_to_the_window_that_was_told_though_the_one_before_may_be_open() {
    let mut bench = Bench::new("100/1s fixed");
    assert_eq!([1, 1, 1, 1].map(|cost| bench.check(cost)), [None; 4]);
    for granted in [1, 33] {
        let call = bench.acquire();
        bench.settle_window(Micros(8_000));
        bench.grant(&call, granted);
    }
    let ahead = order_ahead(&mut bench);
    bench.settle_window(Micros(8_000));
    bench.grant(&ahead, 20);
    bench.spend_to_low_water();
    let refill = bench.acquire();
    bench.settle_window(Micros(8_000));
    bench.behind = 8_000;
    bench.grant(&refill, 3);
    let begins = window(&bench, &ahead);
    bench.settle_window(begins.since(bench.store_time()) + Micros(2_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    let told = bench.last.expect("a decision");
    assert_eq!((told.source, told.reset_at), (Source::Lease, begins + SECOND));
    assert!(told.reset_after > SECOND, "the window before may be open");
    let (rule, held) = (bench.rule.clone(), bench.shard.held());
    let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost: 1, peek: false };
    bench.shard.rollback(bench.now, request, &told);
    assert_eq!(bench.shard.held(), held + 1);
}

#[test]
fn what_was_lent_ahead_and_went_back_was_admitted_by_nobody() {
    let mut bench = in_fleet(Bench::new("100/1s fixed"));
    bench.hold(30);
    let ahead = order_ahead(&mut bench);
    bench.grant(&ahead, 20);
    // Whoever leaves hands back what was lent for the next window, too; both answers are slow.
    bench.shard.handle_drain(bench.now);
    bench.advance(Micros::ZERO);
    let before = bench.calls();
    let returned = before.iter().map(|call| if let Op::Return { amount, .. } = call.op { amount } else { 0 });
    assert_eq!(returned.collect::<Vec<_>>()[1..], [20]);
    bench.settle_window(Micros(1_001_000_000 - bench.now.0 + 100));
    bench.shard.handle_drain(bench.now);
    bench.advance(Micros::ZERO);
    assert!(bench.calls().is_empty(), "nothing is handed back twice");
    bench.behind = 5_000;
    before.iter().for_each(|call| bench.grant(call, 0));
    bench.settle_window(Micros(600_000));
    let mut told = Vec::new();
    bench.shard.drain_usage(bench.now, usize::MAX, &mut told);
    let of_next: Vec<_> =
        told.iter().map(|report| report.usage).filter(|usage| usage.window > window(&bench, &before[0])).collect();
    assert!(of_next.iter().all(|usage| usage.count.admitted == 0), "{of_next:?}");
}

#[test]
fn who_waits_for_its_peers_after_a_loss_is_not_hurried_by_what_one_of_them_told_before() {
    for told in [6, 7] {
        let mut bench = in_fleet(Bench::new("100/10s fixed"));
        bench.hold(5);
        spend(&mut bench, 5);
        let call = park(&mut bench, 1);
        let at = window(&bench, &call);
        hear_of_a_loss(&mut bench, at, told);
        (bench.epoch, bench.used) = (6, 9);
        bench.grant(&call, 0);
        assert!(bench.try_acquire().is_none(), "its peers have yet to tell the store what they hold: {told}");
        assert_eq!(bench.last.map(|last| last.source), Some(Source::Share));
    }
}

/// Its account stayed open, so that the key asked anew every ten milliseconds, and at last gave back what it had been lent
/// of the window.
#[test]
fn the_account_of_a_bucket_ends_with_its_limits() {
    let mut bench = Bench::new("100/1s burst 100");
    bench.nodes = 2;
    bench.hold(20);
    bench.rule = Arc::new(Rule::of("test", &[Limit::parse("1000000/1d fixed").expect("a limit")]));
    bench.used = 0;
    bench.hold(20_000);
    let mut acquires = 0;
    for _ in 0..5_000 {
        bench.advance(Micros(1_000));
        assert_eq!(bench.check(1), Some(Verdict::Allow));
        for call in bench.calls() {
            assert!(matches!(call.op, Op::Acquire(_)), "{call:?}");
            acquires += 1;
            bench.grant(&call, 0);
        }
    }
    assert!(acquires < 5, "{acquires} calls");
    assert_eq!(bench.held(), 15_000);
}

#[test]
fn a_loss_that_is_told_of_a_window_long_past_asks_nothing() {
    let mut bench = in_fleet(Bench::new("100/10s fixed"));
    bench.hold(5);
    let past = bench.last.expect("a decision").reset_at - Micros(50_000_000);
    hear_of_a_loss(&mut bench, past, 6);
    assert!(bench.try_acquire().is_none());
}

#[test]
fn a_key_that_waits_for_its_peers_makes_no_room() {
    let mut bench = in_fleet(Bench::with_keys("100/10s fixed", 1));
    bench.hold(5);
    spend(&mut bench, 5);
    let call = park(&mut bench, 1);
    (bench.epoch, bench.used) = (6, 9);
    bench.grant(&call, 0);
    assert_eq!(bench.check_key(1, 1), Some(Verdict::Deny));
    assert_eq!(bench.last.map(|last| last.reason), Some(Reason::Overload));
    assert_eq!(bench.check(1), Some(Verdict::Deny), "forgotten, it would be lent what peers hold");
}

#[test]
fn a_store_that_lends_nothing_because_it_was_told_what_it_lost_has_denied_nobody() {
    let mut bench = Bench::with_loss("100/10s fixed", OnStoreLoss::Allow);
    bench.hold(5);
    spend(&mut bench, 5);
    let mut call = park(&mut bench, 1);
    for epoch in [6, 7] {
        (bench.epoch, bench.used) = (epoch, 9);
        bench.grant(&call, 0);
        call = bench.acquire();
    }
    bench.advance(Micros(50_000));
    assert_eq!(bench.last.map(|last| (last.verdict, last.reason)), Some((Verdict::Allow, Reason::Overload)));
}

#[test]
fn a_reset_that_the_answer_to_a_repeat_shows_voids_what_was_lent_before() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    bench.spend_to_low_water();
    let first = bench.acquire();
    bench.fail(&first, StoreError::Unknown);
    let again = bench.acquire();
    assert_eq!(first.id, again.id);
    bench.grant(&first, 5);
    assert!(bench.held() > 5);
    // Between the two sendings somebody reset the key: the second one was executed anew.
    bench.advance(Micros(1_000));
    (bench.epoch, bench.was_reset, bench.used) = (99, true, 0);
    bench.grant(&again, 5);
    assert_eq!(bench.held(), 0);
    let call = park(&mut bench, 1);
    assert_eq!(bench.order(&call).epoch, 99);
}

/// The store had said that it has too little, and then the key was reset. Who has waited as long as it may is turned away,
/// and not denied for want of tokens.
#[test]
fn what_the_store_said_before_a_reset_denies_nobody_after_it() {
    for (is_reset, reason) in [(false, Reason::Rate), (true, Reason::Overload)] {
        let mut bench = Bench::new("10/1h sliding");
        for _ in 0..3 {
            assert_eq!(bench.check(1), None);
        }
        // The first is lent all that it asked for, the second and the third a part, and the third nothing.
        for (tokens, replies) in [(1, &[Verdict::Allow][..]), (1, &[Verdict::Allow]), (0, &[])] {
            let call = bench.acquire();
            bench.grant(&call, tokens);
            assert_eq!(bench.replies(), replies);
        }
        if is_reset {
            bench.reset();
            let reset = bench.calls().into_iter().find(|call| call.op == Op::Reset).expect("it leaves");
            (bench.epoch, bench.was_reset, bench.used) = (99, true, 0);
            bench.grant(&reset, 0);
            bench.replies();
        }
        bench.advance(Micros(50_000));
        assert_eq!(bench.replies(), [Verdict::Deny]);
        assert_eq!(bench.last.expect("an answer").reason, reason);
    }
}

/// A node stood still for so long that the account may be closed: it denied its client, by an answer that said that
/// enough was left.
#[test]
fn a_token_of_an_account_that_is_over_when_it_arrives_goes_back_and_is_asked_for_again() {
    let mut bench = Bench::new("10/1s burst 1");
    let call = park(&mut bench, 1);
    bench.settle_window(Micros(4_000_000));
    bench.behind = 3_999_000;
    bench.grant(&call, 1);
    assert!(bench.replies().is_empty(), "{:?}", bench.last);
    let calls = bench.calls();
    let [back] = &calls[..] else { panic!("wanted a return: {calls:?}") };
    assert!(matches!(back.op, Op::Return { amount: 1, .. }), "{back:?}");
    (bench.behind, bench.used) = (0, 0);
    bench.grant(back, 0);
    let call = bench.acquire();
    bench.grant(&call, 1);
    assert_eq!(bench.replies(), [Verdict::Allow]);
}

/// Leftovers of a window whose account the store closed while an acquire was under way would be charged as spent,
/// beyond what the bucket holds, and then credited in full.
#[test]
fn leftovers_of_a_bucket_wait_for_the_acquire_under_way() {
    let limits = ["50/1500ms burst 13", "37/500ms sliding"].map(|text| Limit::parse(text).expect("a limit"));
    let rule = Arc::new(Rule::of("p", &limits));
    let (trip, late, interval) = (11_000, 120_000, 30_000);
    let mut lone = Lone::new(Micros(trip));
    let mut level = Timestamp(0);
    for turn in 0..4_000_u64 {
        lone.wait(Micros(5_000 + turn * 7_919 % 40_000));
        lone.late = Micros(if turn % 9 == 0 { late } else { 0 });
        let decision = lone.check(&rule, 1);
        if decision.verdict == Verdict::Allow && decision.reason == Reason::Ok {
            let now = lone.store_time();
            level = level.max(now) + Micros(interval);
            let (most, at_once) = (13 + 1 + (trip + late) / interval, level.since(now).0 / interval);
            assert!(at_once <= most, "{at_once} tokens at once in turn {turn}");
        }
    }
    assert!(SECOND < lone.store_time().since(Timestamp(1_800_000_000_123_457)));
}

/// Until when the store may execute an acquire.
fn until(bench: &Bench, call: &Call) -> Timestamp {
    bench.order(call).until.expect("it is bounded").time()
}

#[test]
fn an_acquire_says_until_when_it_may_be_executed_counted_from_its_first_sending() {
    let mut bench = Bench::new("100/1s fixed");
    let first = park(&mut bench, 1);
    assert_eq!(bench.order(&first).until, None, "nobody has seen the store's clock yet");
    bench.advance(Micros(2_000));
    bench.grant(&first, 1);
    // Of another key nobody knows which master has it.
    assert_eq!(bench.check_key(9, 1), None);
    let other = bench.acquire();
    let middle = bench.store_now() + Micros(1_000);
    assert_eq!(until(&bench, &other), middle + Micros(CALL_LIFE.0 / 2));
    bench.advance(Micros(30_000));
    bench.fail(&other, StoreError::Unknown);
    let again = bench.acquire();
    assert_eq!((again.id, until(&bench, &again)), (other.id, until(&bench, &other)));
    bench.advance(SECOND);
    let next = park(&mut bench, 1);
    // The store may have read its clock as late as the answer came, and either clock may drift.
    let earliest = bench.store_now();
    let ends = until(&bench, &next);
    assert!(earliest + CALL_LIFE - Micros(300) <= ends && ends <= earliest + CALL_LIFE, "{ends:?} of {earliest:?}");
}

/// A store forgets whom it has answered when a key has come to its end, and a connection may hold a repeat for longer than that.
#[test]
fn an_acquire_that_said_no_time_is_executed_by_no_store_that_does_not_remember_it_when_it_is_sent_again() {
    for timeout in [50, 501] {
        let mut bench = Bench::with_timeout("100/1s fixed", Micros::from_millis(timeout));
        let first = park(&mut bench, 1);
        assert_eq!(bench.order(&first).until, None, "nobody has seen the store's clock yet");
        for _ in 0..2 {
            bench.advance(Micros(10_000));
            bench.fail(&first, StoreError::Unknown);
            let again = bench.acquire();
            assert_eq!(again.id, first.id, "it asks what the first was lent");
            assert!(bench.order(&again).is_late(Timestamp(2)), "and is not executed, however early it comes");
        }
        // Where the first has been lost, the answer says so, and what is still wanted is asked for under another id.
        bench.refuse(&first, bench.store_now());
        let anew = bench.acquire();
        assert!(anew.id > first.id && bench.replies().is_empty(), "whoever waits is denied nothing");
        assert!(!bench.order(&anew).is_late(bench.store_now()));
    }
}

#[test]
fn a_refused_acquire_is_asked_anew_by_the_clock_that_the_store_has() {
    let mut bench = Bench::new("100/1s fixed");
    assert_eq!(bench.check_key(8, 1), None);
    let before = bench.acquire();
    bench.grant(&before, 1);
    bench.replies();
    let first = park(&mut bench, 1);
    bench.advance(Micros(1_000));
    let store = bench.store_now() + Micros::from_secs(7);
    bench.refuse(&first, store);
    let second = bench.acquire();
    assert!(second.id > first.id && bench.replies().is_empty(), "whoever waits is denied nothing");
    let ends = until(&bench, &second);
    assert!(store < ends && ends <= store + CALL_LIFE, "{ends:?} by a clock of {store:?}");
    // So do keys that nobody has asked for yet.
    assert_eq!(bench.check_key(9, 1), None);
    let other = bench.acquire();
    assert!(store < until(&bench, &other) && until(&bench, &other) <= store + CALL_LIFE);
}

#[test]
fn a_store_that_is_slow_for_all_calls_may_execute_them_whenever_they_come() {
    for (timeout, is_bounded) in [(500, true), (501, false)] {
        let mut bench = Bench::with_timeout("100/1s fixed", Micros::from_millis(timeout));
        assert_eq!(bench.check_key(8, 1), None);
        let before = bench.acquire();
        bench.grant(&before, 1);
        let call = park(&mut bench, 1);
        assert_eq!(bench.order(&call).until.is_some(), is_bounded, "{timeout} ms");
    }
}

#[test]
fn what_nobody_waits_for_is_not_asked_anew_of_a_slow_store() {
    let mut bench = Bench::new("100/1s fixed");
    let call = park(&mut bench, 1);
    bench.advance(SECOND + SECOND);
    assert_eq!(bench.replies().len(), 1, "it was answered in time");
    bench.refuse(&call, bench.store_now());
    assert!(bench.try_acquire().is_none());
    assert_eq!(bench.check(1), None, "the next one is asked for");
    assert!(bench.acquire().id > call.id);
}

#[test]
fn what_came_too_late_for_its_waiter_is_charged_once_though_the_next_call_is_never_answered() {
    let mut bench = Bench::new("3/3s burst 3");
    let call = park(&mut bench, 2);
    bench.advance(Micros(60_000));
    assert_eq!(bench.replies(), [Verdict::Deny], "nobody waits any more");
    bench.grant(&call, 2);
    assert_eq!(bench.check(3), None, "the store is asked for the third");
    for _ in 0..3 {
        let call = bench.calls().pop().expect("it is asked again");
        bench.advance(Micros(50_000));
        bench.fail(&call, StoreError::Unknown);
    }
    bench.replies();
    assert_eq!(bench.check(2), Some(Verdict::Allow), "the two are held");
    let last = bench.last.expect("a decision");
    assert!(last.reset_after < Micros(2_100_000), "two tokens were charged, and take two seconds: {last:?}");
}
