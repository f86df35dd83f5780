//! The shard's behaviour against a store that the test plays by hand, on virtual time.
//!
//! The first seven tests are the traps of the token-lease code printed in Rockset's article on
//! distributed rate limiting: each names the trap that it keeps shut.

use crate::support;

use rationd::core::call::{Call, OPEN, Op, StoreError};
use rationd::core::decision::{Reason, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::time::Micros;

use support::bench::{Bench, SECOND};

#[test]
fn trap_1_inverted_expiry_a_live_lease_is_spent_and_a_dead_one_is_not() {
    let mut bench = Bench::new("100/1s fixed");
    bench.hold(10);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "the lease is alive");
    bench.advance(SECOND);
    assert_eq!(bench.check(1), None, "the lease died with its window: the store is asked");
}

#[test]
fn trap_2_flag_never_cleared_the_next_miss_asks_again() {
    let mut bench = Bench::new("100/1s fixed");
    for _ in 0..3 {
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        bench.grant(&call, 1);
        assert_eq!(bench.replies(), [Verdict::Allow]);
    }
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.replies();
    bench.advance(Micros(300_000));
    bench.check(1);
    assert!(bench.try_acquire().is_some(), "after a failure too");
}

#[test]
fn trap_3_sleepers_are_woken_by_the_answer() {
    let mut bench = Bench::new("100/1s fixed");
    for _ in 0..5 {
        assert_eq!(bench.check(1), None);
    }
    let call = bench.acquire();
    assert!(bench.try_acquire().is_none(), "one acquire in flight per key");
    bench.grant(&call, 1);
    assert_eq!(bench.replies(), [Verdict::Allow], "what was granted serves the head of the line");
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 4, "the next acquire covers those who came meanwhile");
    bench.grant(&call, 4);
    assert_eq!(bench.replies(), [Verdict::Allow; 4]);
}

#[test]
fn trap_3_sleepers_are_woken_by_failure_and_by_silence() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    assert_eq!(bench.replies().len(), 2);
    bench.advance(SECOND);
    let mut silent = Bench::new("100/1s fixed");
    silent.check(1);
    silent.advance(Micros(50_000));
    assert_eq!(silent.replies().len(), 1, "nobody waits longer than the timeout");
}

#[test]
fn trap_4_leftovers_are_added_to_not_overwritten() {
    let mut bench = Bench::new("1000/10s fixed");
    bench.hold(40);
    bench.spend_to_low_water();
    let call = bench.acquire();
    let held = bench.held();
    assert!(held > 0);
    bench.grant(&call, 20);
    assert_eq!(bench.held(), held + 20);
}

#[test]
fn trap_5_a_partial_grant_is_used() {
    let mut bench = Bench::new("100/1s fixed");
    for _ in 0..5 {
        bench.check(1);
    }
    let call = bench.acquire();
    bench.grant(&call, 1);
    let call = bench.acquire();
    bench.used = 98; // nothing is left after these
    bench.grant(&call, 2);
    assert_eq!(bench.replies(), [Verdict::Allow, Verdict::Allow, Verdict::Allow, Verdict::Deny, Verdict::Deny]);
}

#[test]
fn trap_6_nobody_barges_past_the_line() {
    let mut bench = Bench::new("100/1s fixed");
    bench.hold(3);
    assert_eq!(bench.check(5), None, "five do not fit: wait");
    assert_eq!(bench.check(1), None, "one would fit, but somebody waits");
    let call = bench.acquire();
    bench.grant(&call, 2);
    assert_eq!(bench.replies(), [Verdict::Allow], "the head of the line first");
}

#[test]
fn trap_7_the_leader_counts_what_lines_up_behind_it() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    for _ in 0..7 {
        bench.check(2);
    }
    bench.grant(&call, 1);
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 14);
}

#[test]
fn a_remembered_denial_costs_no_call_until_the_probe() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.used = 100;
    bench.grant(&call, 0);
    assert_eq!(bench.replies(), [Verdict::Deny]);
    for _ in 0..1_000 {
        assert_eq!(bench.check(1), Some(Verdict::Deny));
    }
    assert!(bench.try_acquire().is_none());
    bench.advance(Micros(330_000));
    assert_eq!(bench.check(1), Some(Verdict::Deny));
    let probe = bench.acquire();
    assert_eq!(bench.order(&probe).need, 0, "a probe has nobody waiting");
    bench.used = 90;
    bench.grant(&probe, 5);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "somebody gave tokens back");
}

#[test]
fn a_denial_is_not_remembered_past_its_window() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.used = 100;
    bench.grant(&call, 0);
    bench.replies();
    bench.advance(SECOND);
    assert_eq!(bench.check(1), None);
}

#[test]
fn a_cost_above_the_limit_never_passes_and_asks_for_nothing() {
    let mut bench = Bench::new("10/1s fixed");
    bench.hold(1);
    assert_eq!(bench.check(11), Some(Verdict::Deny));
    let last = bench.last.unwrap();
    assert_eq!((last.reason, last.retry_after), (Reason::Cost, None));
    assert!(bench.try_acquire().is_none());
}

#[test]
fn drain_hands_back_everything_once() {
    let mut bench = Bench::new("1000/10s fixed");
    bench.hold(40);
    bench.shard.handle_drain(bench.now);
    bench.advance(Micros::ZERO);
    let returned: Vec<_> = bench.calls().into_iter().filter(|call| matches!(call.op, Op::Return { .. })).collect();
    assert_eq!(returned.len(), 1);
    assert!(matches!(returned[0].op, Op::Return { amount: 40, .. }));
    assert_eq!(bench.held(), 0);
}

#[test]
fn drain_keeps_what_is_held_of_a_bucket_until_the_acquire_under_way_is_answered() {
    let mut bench = Bench::new("100/1s burst 100");
    bench.hold(40);
    bench.spend_to_low_water();
    let call = bench.acquire();
    let held = bench.held();
    bench.shard.handle_drain(bench.now);
    assert!(held > 0 && bench.held() == held, "the store would take what the acquire lends for spent");
    bench.grant(&call, 20);
    let returned = bench.calls().into_iter().map(|call| match call.op {
        Op::Return { amount, held, .. } => (amount, held),
        other => panic!("not a return: {other:?}"),
    });
    assert_eq!(returned.collect::<Vec<_>>(), [(held + 20, 0)]);
}

#[test]
fn drain_hands_back_what_is_held_of_a_bucket_when_the_acquire_under_way_is_given_up() {
    let mut bench = Bench::new("100/1s burst 100");
    bench.hold(40);
    bench.spend_to_low_water();
    let (call, held) = (bench.acquire(), bench.held());
    bench.shard.handle_drain(bench.now);
    bench.fail(&call, StoreError::Away { since: bench.now });
    let calls = bench.calls();
    let [back] = &calls[..] else { panic!("wanted a return: {calls:?}") };
    assert!(matches!(back.op, Op::Return { amount, held: 0, .. } if amount == held), "{back:?}");
}

/// Four acquires in a row would leave, and the last would be denied for what is there in a moment.
#[test]
fn an_acquire_that_overtook_tokens_on_their_way_back_is_not_repeated_before_they_are_there() {
    let mut bench = Bench::new("10/1s sliding");
    bench.hold(2);
    bench.calls();
    bench.settle_window(SECOND);
    assert_eq!(bench.check(3), None);
    let calls = bench.calls();
    let [back, acquire] = &calls[..] else { panic!("wanted a return and an acquire: {calls:?}") };
    assert!(matches!(back.op, Op::Return { amount: 2, .. }), "{back:?}");
    bench.used = 9;
    bench.grant(acquire, 0);
    assert_eq!((bench.calls().len(), bench.replies().len()), (0, 0));
    bench.used = 7;
    bench.grant(back, 0);
    let acquire = bench.acquire();
    bench.grant(&acquire, 3);
    assert_eq!(bench.replies(), [Verdict::Allow]);
}

#[test]
fn refund_gives_back_what_was_spent_here_and_no_more() {
    let mut bench = Bench::new("100/10s fixed");
    bench.used = 40; // by others
    bench.hold(10);
    bench.check(4);
    assert!(bench.refund(3));
    assert_eq!(bench.held(), 9);
    assert!(!bench.refund(9), "five more were spent here, the rest is the store's to credit");
    assert_eq!(bench.held(), 14);
    let refund = bench.calls().pop().unwrap();
    assert_eq!(refund.op, Op::Refund { amount: 4, epoch: 0, windows: OPEN });
}

#[test]
fn a_full_table_turns_new_keys_away_only_when_all_are_busy() {
    let mut bench = Bench::with_keys("100/1s fixed", 4);
    for key in 0..4 {
        assert_eq!(bench.check_key(key, 1), None);
    }
    assert_eq!(bench.check_key(9, 1), Some(Verdict::Deny));
    assert_eq!(bench.last.unwrap().reason, Reason::Overload);
    for call in bench.calls() {
        bench.grant(&call, 1);
    }
    assert_eq!(bench.check_key(9, 1), None, "a quiet key made room");
}

#[test]
fn reset_voids_what_is_held() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    bench.reset();
    let call = bench.calls().pop().unwrap();
    bench.epoch = 99;
    bench.was_reset = true;
    bench.grant(&call, 0);
    assert_eq!(bench.held(), 0);
}

#[test]
fn reset_at_does_not_wobble() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    let mut seen = Vec::new();
    for _ in 0..8 {
        bench.check(1);
        seen.push(bench.last.unwrap().reset_at);
        bench.advance(Micros(123_457));
    }
    assert!(seen.iter().all(|at| *at == seen[0]), "{seen:?}");
}

#[test]
fn a_refund_above_what_was_spent_does_not_credit_twice() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    assert!(bench.refund(50), "the four that were spent here; the store was charged for no others");
    assert_eq!(bench.held(), 14);
    assert!(bench.calls().iter().all(|call| !matches!(call.op, Op::Refund { .. })));
}

/// The store has charged what somebody needed: held again, it would be spent while the bucket refills.
#[test]
fn what_a_bucket_was_charged_for_a_waiter_goes_back_to_the_store() {
    let mut bench = Bench::new("10/10s burst 8");
    assert_eq!(bench.check(2), None);
    let call = bench.calls().pop().unwrap();
    let Op::Acquire(order) = call.op else { panic!("{call:?}") };
    assert_eq!(order.need, 2);
    bench.grant(&call, 5);
    assert_eq!(bench.held(), 3);
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert!(!bench.refund(3), "one more was spent here that the store does not know of");
    assert_eq!(bench.held(), 3);
    let refunds: Vec<_> = bench.calls().into_iter().filter(|call| matches!(call.op, Op::Refund { .. })).collect();
    assert_eq!(refunds[0].op, Op::Refund { amount: 2, epoch: 0, windows: OPEN });
}

/// What comes of 40 tokens held by a node that is idle from a tenth of the window on, where so much
/// had been used by then.
fn given_back_when_idle(used: u64) -> u64 {
    let mut bench = Bench::new("1000/10s fixed");
    bench.advance(SECOND);
    bench.used = used;
    bench.hold(40);
    bench.calls();
    for _ in 0..8 {
        bench.advance(Micros(500_000));
    }
    let amount = |call: Call| if let Op::Return { amount, .. } = call.op { amount } else { 0 };
    bench.calls().into_iter().map(amount).max().unwrap_or(0)
}

#[test]
fn the_idle_give_back_what_others_will_want_before_the_window_ends() {
    assert_eq!(given_back_when_idle(200), 40, "ten times that would be twice the limit");
    assert_eq!(given_back_when_idle(10), 0, "most of the limit will be left");
}

#[test]
fn nothing_is_given_back_while_somebody_waits_for_more() {
    let mut bench = Bench::new("70/250ms fixed");
    bench.used = 50;
    bench.hold(10);
    bench.now = bench.now + Micros(130_000);
    assert_eq!(bench.check(12), None);
    bench.advance(Micros(45_000));
    assert!(bench.calls().iter().all(|call| !matches!(call.op, Op::Return { .. })));
}

#[test]
fn a_token_that_may_have_trickled_in_is_waited_for_and_not_asked_for() {
    let mut bench = Bench::new("100/1s burst 20");
    assert_eq!(bench.check(1), None);
    let order = bench.acquire();
    // The answer is two milliseconds under way, so that the store's clock is not known any better.
    bench.now = bench.now + Micros(2_000);
    bench.grant(&order, 40);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    bench.calls();
    while bench.check(1) == Some(Verdict::Allow) {}
    // Denied as long as it surely has not come; then who asks waits for it.
    let mut waited = None;
    for _ in 0..1_200 {
        match bench.check(1) {
            Some(verdict) => assert_eq!(verdict, Verdict::Deny),
            None => waited = Some(bench.now),
        }
        if waited.is_some() {
            break;
        }
        bench.advance(Micros(10));
    }
    let begun = waited.expect("two milliseconds are in doubt");
    assert_eq!(bench.calls().len(), 0);
    while bench.replies().is_empty() {
        assert!(bench.now.since(begun) <= Micros(2_100), "it has come by then");
        bench.advance(Micros(10));
    }
    assert_eq!(bench.last.unwrap().verdict, Verdict::Allow);
}

#[test]
fn a_node_that_is_alone_with_a_bucket_asks_for_what_comes_soon() {
    let mut bench = Bench::new("100/1s burst 20");
    let mut most = 0;
    for _ in 0..400 {
        bench.check(1);
        for call in bench.calls() {
            if matches!(call.op, Op::Acquire(_)) {
                let order = bench.order(&call);
                most = most.max(order.want + order.held);
                bench.grant(&call, order.want);
            }
        }
        bench.advance(Micros(5_000));
    }
    assert!((16..=20).contains(&most), "of twenty, {most} were held at most");
}

/// How often the shard wants to be woken within a second and a half, while it holds tokens of a bucket of which nobody has spent much. Its
/// account, which lasts for ten seconds at least, does not close by then.
fn looks_at_a_bucket() -> usize {
    let mut bench = Bench::new("1000/60s");
    bench.hold(10);
    let end = bench.now + Micros(1_500_000);
    let mut looks = 0;
    while let Some(at) = bench.shard.poll_timeout().filter(|at| *at <= end) {
        bench.settle_window(at.since(bench.now));
        bench.shard.handle_timeout(bench.now);
        looks += 1;
    }
    looks
}

/// Tokens go back before an account closes only where others lack them. A bucket is not short of tokens of itself, and a node holds
/// tokens of many keys.
#[test]
fn a_bucket_of_which_much_is_left_is_left_alone_until_its_account_closes() {
    let looks = looks_at_a_bucket();
    assert!(looks <= 6, "{looks} looks");
}

/// Most tokens of `1000/60s fixed` that a node asks for in one call, which is lent whatever it asks for and could spend
/// more than all of them. `nodes`: how many share the key, as the store says.
fn most_wanted(nodes: u32, fleet: Option<FleetView>) -> u64 {
    let mut bench = Bench::new("1000/60s fixed");
    bench.nodes = nodes;
    fleet.into_iter().for_each(|view| bench.shard.handle_fleet(view));
    let mut most = 0;
    for _ in 0..5_000 {
        bench.now = bench.now + Micros(100);
        bench.check(1);
        if let Some(call) = bench.try_acquire() {
            let want = bench.order(&call).want;
            // Others have given back what they were lent: there is enough.
            bench.used = 0;
            bench.grant(&call, want);
            most = most.max(want);
        }
    }
    most
}

#[test]
fn a_node_asks_for_no_more_than_its_part_of_a_limit() {
    assert_eq!([1, 2, 3, 5].map(|nodes| most_wanted(nodes, None)), [600, 500, 334, 200]);
    // The store remembers nodes for a while that are gone, and the fleet knows it.
    let fleet = |live| FleetView { live, largest: 5, has_looked: true, is_steady: true, ..FleetView::UNKNOWN };
    assert_eq!([1, 2, 5].map(|live| most_wanted(5, Some(fleet(live)))), [600, 500, 200]);
    let wavering = FleetView { is_steady: false, ..fleet(2) };
    assert_eq!(most_wanted(5, Some(wavering)), 200, "a view that wavers lifts no bound");
}

/// What a node that is asked for so many a second holds of its part of 600, after a second.
fn leased_in_a_second(limit: &str, rate: u64) -> u64 {
    let mut bench = Bench::new(limit);
    bench.nodes = 4;
    let mut lent = 0;
    for _ in 0..rate {
        bench.now = bench.now + Micros(1_000_000 / rate);
        bench.check(1);
        if let Some(call) = bench.try_acquire() {
            let want = bench.order(&call).want;
            bench.grant(&call, want);
            lent += want;
        }
    }
    lent
}

#[test]
fn a_part_of_ten_minutes_is_not_leased_for_a_flood_of_a_second() {
    assert!((50..=85).contains(&leased_in_a_second("600/10m fixed", 50)), "fifty are spent in it");
    assert!(leased_in_a_second("600/10m fixed", 700) >= 600, "all is spent before it could ask again");
}

#[test]
fn what_has_waited_before_waits_for_the_rest_of_its_time() {
    let mut bench = Bench::new("100/1s fixed");
    assert_eq!(bench.check_that_came(Micros(30_000), 0, 1), None);
    bench.advance(Micros(19_999));
    assert_eq!(bench.replies(), []);
    bench.advance(Micros(1));
    assert_eq!(bench.replies(), [Verdict::Deny], "after 50 ms in all");
}

#[test]
fn what_has_waited_as_long_as_it_may_is_told_what_is_known_here() {
    let late = Micros(50_000);
    let mut bench = Bench::new("100/1s fixed");
    assert_eq!(bench.check_that_came(late, 0, 1), Some(Verdict::Deny));
    assert_eq!(bench.last.map(|told| told.reason), Some(Reason::Overload));
    assert!(bench.try_acquire().is_none(), "nobody waits for what the store would lend");

    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.grant(&call, 2);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    assert_eq!(bench.check_that_came(late, 0, 1), Some(Verdict::Allow), "it is held");
    while let Some(call) = bench.try_acquire() {
        bench.grant(&call, 0);
    }
    assert_eq!(bench.check_that_came(late, 0, 50), Some(Verdict::Deny));
    assert!(bench.try_acquire().is_some(), "a key that was lent something is leased for the next who asks");
}
