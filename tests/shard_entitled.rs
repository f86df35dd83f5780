//! What a shard makes of tokens that the store has set aside for it: when it may admit them without the store, and what its
//! calls say. On virtual time, against a store that the test plays.

use std::sync::Arc;

use crate::support;

use rationd::core::call::{Call, Claim, Frees, Op, StoreError};
use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Micros, Timestamp};

use support::bench::{Bench, SECOND};

/// A window begins as this ends.
const HALF: Micros = Micros(500_000);

fn claim(call: &Call) -> Claim {
    match call.op {
        Op::Acquire(order) => order.claim.expect("of such a key each acquire says what is believed"),
        other => panic!("not an acquire: {other:?}"),
    }
}

/// Half a second after a window of a hundred tokens has begun, a node is lent one, and told that so many of each are set aside for
/// it.
fn entitled(tokens: u64) -> Bench {
    entitled_to("100/1s fixed", tokens)
}

fn entitled_to(limit: &str, tokens: u64) -> Bench {
    let mut bench = Bench::with_loss(limit, OnStoreLoss::Entitled);
    bench.advance(HALF);
    bench.entitled = tokens;
    bench.check(1);
    let first = bench.acquire();
    assert_eq!(claim(&first).believes, None);
    bench.grant(&first, 1);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    bench
}

/// The same, and then the store is gone.
fn lost(tokens: u64) -> Bench {
    without_store(entitled(tokens))
}

fn without_store(mut bench: Bench) -> Bench {
    bench.check(1);
    let call = bench.acquire();
    let since = bench.now;
    bench.fail(&call, StoreError::Away { since });
    assert_eq!(bench.replies(), [Verdict::Deny], "its first call may have freed what was set aside");
    bench
}

/// The acquire and all that are sent after it in its place are not answered, so that nobody knows whether they were executed.
fn unanswered(bench: &mut Bench, acquire: Call) {
    let mut lost = Some(acquire);
    while let Some(call) = lost {
        bench.fail(&call, StoreError::Unknown);
        bench.advance(Micros(60_000));
        lost = bench.calls().into_iter().rfind(|call| matches!(call.op, Op::Acquire(_)) && !claim(call).is_probe());
    }
}

/// How many of so many checks pass.
fn passed(bench: &mut Bench, checks: u32) -> usize {
    (0..checks).filter(|_| bench.check(1) == Some(Verdict::Allow)).count()
}

#[test]
fn what_is_set_aside_is_admitted_in_the_windows_after_the_loss() {
    let mut bench = lost(7);
    let denied = bench.last.expect("a decision");
    assert_eq!((denied.reason, denied.source), (Reason::Share, Source::Share));
    let wait = denied.retry_after.expect("a wait");
    bench.advance(wait);
    assert_eq!(passed(&mut bench, 20), 7);
    assert_eq!(bench.last.expect("a decision").source, Source::Share);
    for _ in 0..5 {
        assert_eq!(bench.check(1), Some(Verdict::Deny), "there is no more of this window");
        for probe in bench.calls() {
            let since = bench.now;
            bench.fail(&probe, StoreError::Away { since });
        }
        bench.advance(Micros(200_000));
    }
    // Clocks drift while nobody hears of the store.
    bench.advance(Micros(10_000));
    assert_eq!(passed(&mut bench, 20), 7, "in each of them");
}

/// Shortly before a window ends that was spent some time ago: the first call that leaves of the node's own accord.
fn first_after_spent_window() -> (Bench, Call) {
    let mut bench = Bench::with_loss("1000/1s fixed", OnStoreLoss::Entitled);
    (bench.entitled, bench.nodes) = (200, 5);
    bench.advance(HALF);
    bench.hold(60);
    bench.spend_to_low_water();
    let last = bench.acquire();
    bench.used = 1_000;
    bench.grant(&last, 0);
    while bench.held() > 0 {
        assert_eq!(bench.check(1), Some(Verdict::Allow));
    }
    loop {
        bench.advance(Micros(1_000));
        assert_eq!(bench.check(1), Some(Verdict::Deny));
        if let Some(call) = bench.try_acquire() {
            return (bench, call);
        }
    }
}

/// A call that leases ahead of a window frees what is set aside of that, whatever becomes of it.
#[test]
fn a_node_leases_ahead_only_when_it_has_just_heard_of_the_store() {
    let (mut bench, first) = first_after_spent_window();
    assert!(!bench.order(&first).window.is_next(), "{first:?}");
    bench.grant(&first, 0);
    bench.advance(Micros(20_000));
    let ahead = bench.acquire();
    assert!(bench.order(&ahead).window.is_next(), "{ahead:?}");
    // Where the store does not answer, all of the next window's part is still set aside.
    let (mut bench, first) = first_after_spent_window();
    unanswered(&mut bench, first);
    bench.advance(HALF);
    assert_eq!(passed(&mut bench, 300), 200);
}

/// Of a sliding window what is set aside may be admitted by the part of the window that has passed: the one before weighs less by that.
#[test]
fn of_a_sliding_window_it_comes_as_the_window_passes() {
    let mut bench = without_store(entitled_to("100/1s sliding", 8));
    let begins = bench.now + HALF;
    // At the beginning, in the midst and near the end of a window, and of the next. Clocks may have drifted apart.
    for (millis, come) in [(10, 0), (510, 4), (990, 3), (1_010, 0), (1_260, 2), (1_990, 5)] {
        bench.advance((begins + Micros(millis * 1_000)).since(bench.now));
        for probe in bench.calls() {
            let since = bench.now;
            bench.fail(&probe, StoreError::Away { since });
        }
        assert_eq!(passed(&mut bench, 20), come, "{millis} ms");
    }
}

#[test]
fn of_a_sliding_window_a_wait_ends_when_so_much_has_come() {
    let mut bench = without_store(entitled_to("100/1s sliding", 8));
    for cost in [1, 3, 3, 1, 5, 2] {
        let denied = (bench.check(cost), bench.last.expect("a decision"));
        assert_eq!((denied.0, denied.1.reason), (Some(Verdict::Deny), Reason::Share));
        let wait = denied.1.retry_after.expect("a wait");
        assert!(wait <= SECOND, "{wait:?}");
        bench.advance(wait);
        for probe in bench.calls() {
            let since = bench.now;
            bench.fail(&probe, StoreError::Away { since });
        }
        assert_eq!(bench.check(cost), Some(Verdict::Allow), "after {wait:?}");
    }
}

/// A node that is entitled to seven of each window from the first request, and has been without the store for longer than such a window
/// lasts.
fn between_windows() -> Bench {
    let mut bench = Bench::with_loss("100/1s fixed from-first", OnStoreLoss::Entitled);
    bench.check(1);
    let first = bench.acquire();
    bench.entitled = 7;
    let (now, ends) = (bench.store_time(), bench.store_time() + SECOND);
    bench.answer_as_of(&first, 1, now, ends);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    bench.advance(HALF);
    without_store(bench)
}

/// All calls fail, and so much time passes.
fn away(bench: &mut Bench, micros: u64) {
    for call in bench.calls() {
        let since = bench.now;
        bench.fail(&call, StoreError::Away { since });
    }
    bench.advance(Micros(micros));
}

/// The node does not know when the store's windows open, so that each second may be one.
#[test]
fn of_windows_from_the_first_request_no_time_as_long_as_one_has_more() {
    let mut bench = between_windows();
    let wait = bench.last.expect("a decision").retry_after.expect("a wait");
    assert!(
        (HALF..SECOND + HALF).contains(&wait),
        "until no window can be open that the call may have opened: {wait:?}"
    );
    bench.advance(wait);
    let mut admitted = Vec::new();
    for step in 0..100_u64 {
        let asked = [1, 0, 3, 1, 9, 0, 2, 1][step as usize % 8];
        let some = passed(&mut bench, asked);
        admitted.push(some);
        away(&mut bench, 90_000);
    }
    // Eleven steps take 0.99 seconds.
    assert!(admitted.windows(12).all(|span| span.iter().sum::<usize>() <= 7), "{admitted:?}");
    let all: usize = admitted.iter().sum();
    assert!((55..=63).contains(&all), "nine seconds have 63, of which sixteen of seventeen can be had: {all}");
}

#[test]
fn who_comes_back_pays_what_may_be_in_the_window_that_is_open() {
    // So long ago the store's window began, if one is open, and what is owed of what was admitted 0.8 s and 0.3 s ago.
    for (begun, owed) in [(Some(900_000), 5), (Some(500_000), 2), (None, 0)] {
        let mut bench = between_windows();
        for _ in 0..8 {
            away(&mut bench, 200_000);
            bench.check(9);
        }
        assert_eq!(passed(&mut bench, 3), 3);
        away(&mut bench, 500_000);
        assert_eq!(passed(&mut bench, 2), 2);
        away(&mut bench, 300_000);
        assert_eq!(bench.check(9), Some(Verdict::Deny), "and the store is asked whether it is back");
        let probe = bench.acquire();
        assert!(claim(&probe).is_probe(), "{probe:?}");
        let now = bench.store_time();
        let at = begun.map_or(Timestamp(0), |ago| now + SECOND - Micros(ago));
        bench.answer_as_of(&probe, 0, now, at);
        assert_eq!(bench.check(1), None, "the store decides again");
        let paid = bench.acquire();
        assert_eq!((claim(&paid).believes, bench.order(&paid).need), (Some(7), owed + 1), "{begun:?}");
    }
}

/// Limits change while a node is without the store. What it has admitted it owes under those of now, too.
#[test]
fn what_was_admitted_of_a_window_from_the_first_request_is_owed_under_other_limits() {
    for limit in ["50/2s fixed from-first", "50/1s fixed"] {
        let mut bench = between_windows();
        for _ in 0..8 {
            away(&mut bench, 200_000);
            bench.check(9);
        }
        assert_eq!(passed(&mut bench, 3), 3);
        let mut rule = Rule::of("test", &[Limit::parse(limit).expect("a limit")]);
        rule.on_store_loss = OnStoreLoss::Entitled;
        bench.rule = Arc::new(rule);
        away(&mut bench, 300_000);
        assert_eq!(bench.check(1), Some(Verdict::Deny), "nothing is set aside of these limits, as far as it knows");
        let probe = bench.calls().into_iter().rfind(|call| matches!(call.op, Op::Acquire(_))).expect("a probe");
        bench.grant(&probe, 0);
        assert_eq!(bench.check(1), None);
        let paid = bench.acquire();
        assert_eq!(bench.order(&paid).need, 3 + 1, "{limit}");
    }
}

#[test]
fn nothing_is_admitted_of_a_key_that_the_store_has_set_nothing_aside_of() {
    let mut bench = lost(0);
    bench.advance(SECOND);
    assert_eq!(passed(&mut bench, 3), 0);
}

#[test]
fn calls_only_look_while_the_store_is_away_and_the_first_after_that_pays() {
    let mut bench = lost(7);
    bench.advance(SECOND);
    bench.calls();
    assert_eq!(passed(&mut bench, 5), 5);
    bench.advance(Micros(100_000));
    bench.check(1);
    let probe = bench.calls().into_iter().rfind(|call| matches!(call.op, Op::Acquire(_))).expect("a probe");
    assert!(claim(&probe).is_probe() && bench.order(&probe).need == 0, "{probe:?}");
    bench.grant(&probe, 0);
    assert_eq!(bench.check(1), None, "the store decides again");
    let paid = bench.acquire();
    assert!(!claim(&paid).is_probe(), "{paid:?}");
    assert_eq!((claim(&paid).believes, bench.order(&paid).need), (Some(7), 6 + 1), "six were admitted, and one waits");
    unanswered(&mut bench, paid);
    assert_eq!(bench.replies(), [Verdict::Deny], "the call may have freed the rest");
}

/// The store is gone, and the first check of a window finds out: its call never left, so it has freed nothing.
/// The check was denied, as if the call might have been executed, and so was the first check of every key that is seldom asked for.
#[test]
fn a_call_that_never_left_frees_nothing() {
    for is_sent in [false, true] {
        let mut bench = entitled(7);
        bench.advance(SECOND);
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        let since = bench.now;
        match is_sent {
            false => bench.fail(&call, StoreError::Away { since }),
            true => unanswered(&mut bench, call),
        }
        assert_eq!(bench.replies(), [if is_sent { Verdict::Deny } else { Verdict::Allow }]);
        assert_eq!(passed(&mut bench, 9), if is_sent { 0 } else { 6 });
    }
}

/// Of the window in which an acquire was executed nothing is set aside, whatever became of the next.
#[test]
fn what_an_earlier_call_has_freed_stays_free_when_the_next_never_left() {
    let mut bench = lost(7);
    assert_eq!(passed(&mut bench, 9), 0);
}

/// The store is found by the answer to the call that voids the acquire of before, and has not executed the one that only looks.
#[test]
fn who_has_only_looked_when_the_store_is_found_pays_with_what_is_asked_anew() {
    let mut bench = entitled(7);
    bench.check(1);
    for _ in 0..3 {
        let call = bench.acquire();
        bench.fail(&call, StoreError::Unknown);
    }
    bench.advance(SECOND);
    for call in bench.calls() {
        let since = bench.now;
        bench.fail(&call, StoreError::Away { since });
    }
    bench.advance(SECOND);
    assert_eq!(passed(&mut bench, 3), 3);
    let calls = bench.calls();
    let (voiding, probe) = (&calls[0], &calls[1]);
    assert!(matches!(voiding.op, Op::Return { .. }) && claim(probe).is_probe(), "{calls:?}");
    bench.grant(voiding, 0);
    let now = bench.store_now();
    bench.refuse(probe, now);
    let paid = bench.acquire();
    assert!(!claim(&paid).is_probe(), "{paid:?}");
    assert_eq!(bench.order(&paid).need, 3, "what it frees pays for what was admitted");
}

/// The store counts a grant of a sliding window in the next one, too. What it pays for was admitted, whenever the answer comes.
#[test]
fn what_pays_for_a_sliding_window_does_not_go_back_when_the_answer_comes_after_it() {
    let mut bench = without_store(entitled_to("100/1s sliding", 8));
    let begins = bench.now + HALF;
    for (millis, come) in [(10, 0), (510, 4)] {
        bench.advance((begins + Micros(millis * 1_000)).since(bench.now));
        for probe in bench.calls() {
            let since = bench.now;
            bench.fail(&probe, StoreError::Away { since });
        }
        assert_eq!(passed(&mut bench, 20), come, "{millis} ms");
    }
    bench.advance((begins + Micros(960_000)).since(bench.now));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    let probe = bench.calls().into_iter().rfind(|call| matches!(call.op, Op::Acquire(_))).expect("a probe");
    assert!(claim(&probe).is_probe(), "{probe:?}");
    bench.grant(&probe, 0);
    assert_eq!(bench.check(1), None, "the store decides again");
    let paid = bench.acquire();
    assert_eq!(bench.order(&paid).need, 5 + 1, "five were admitted, and one waits");
    // Executed at once, and answered in the next window.
    bench.behind = 45_000;
    bench.advance(Micros(45_000));
    bench.grant(&paid, 6);
    bench.advance(SECOND);
    let back = bench.calls().into_iter().filter_map(|call| match call.op {
        Op::Return { amount, .. } => Some(amount),
        _ => None,
    });
    assert!(back.sum::<u64>() <= 1, "nobody has taken the one that waited for it");
}

#[test]
fn an_acquire_frees_nothing_after_the_window_in_which_it_was_sent() {
    let mut bench = entitled(7);
    bench.check(1);
    let call = bench.acquire();
    let end = bench.now.0 + 1_800_000_000_000_000 - 1_000_000_000 + 500_000;
    assert_eq!(claim(&call).frees, Frees::Until(Timestamp(end - 1)));
}

#[test]
fn an_answer_that_came_too_late_gives_nothing() {
    let mut bench = entitled(7);
    bench.check(1);
    let call = bench.acquire();
    bench.entitled = 50;
    bench.advance(SECOND);
    bench.grant(&call, 0);
    bench.calls();
    bench.check(1);
    let call = bench.acquire();
    assert_eq!(claim(&call).believes, Some(7));
}

#[test]
fn who_no_longer_uses_the_key_says_that_nothing_need_be_set_aside() {
    let mut bench = entitled(7);
    bench.advance(SECOND);
    bench.calls();
    bench.advance(SECOND + SECOND);
    let call = bench.acquire();
    let wanted = Claim { believes: Some(0), demand: 0, frees: claim(&call).frees, owes: 0 };
    assert!(claim(&call) == wanted && !wanted.is_probe() && bench.order(&call).want == 0, "{call:?}");
    bench.entitled = 0;
    bench.grant(&call, 0);
    bench.advance(SECOND);
    assert!(bench.calls().is_empty() && bench.shard.poll_timeout().is_none(), "the key is forgotten");
}

/// A bucket that the node asks for a while, of which half is its own. Then the store is gone, at the beginning of an even second.
fn lost_bucket() -> Bench {
    let mut bench = Bench::with_loss("100/1s burst 100", OnStoreLoss::Entitled);
    bench.entitled = 500_000;
    for _ in 0..40 {
        bench.check(1);
        for call in bench.calls() {
            match call.op {
                Op::Acquire(order) => bench.grant(&call, order.need),
                _ => bench.grant(&call, 0),
            }
        }
        bench.advance(Micros(100_000));
    }
    bench.check(1);
    let call = bench.acquire();
    assert!(claim(&call).demand > 0 && claim(&call).believes == Some(500_000), "{call:?}");
    let since = bench.now;
    bench.fail(&call, StoreError::Away { since });
    bench
}

/// How many of so many checks pass, while the store answers nothing.
fn passed_alone(bench: &mut Bench, checks: u32) -> usize {
    let mut passed = 0;
    for _ in 0..checks {
        passed += usize::from(bench.check(1) == Some(Verdict::Allow));
        for probe in bench.calls() {
            let since = bench.now;
            bench.fail(&probe, StoreError::Away { since });
        }
    }
    passed
}

/// Lets time pass in which the store answers nothing.
fn advance_alone(bench: &mut Bench, span: Micros) {
    bench.advance(span);
    passed_alone(bench, 0);
}

#[test]
fn a_share_of_a_bucket_is_empty_until_others_have_made_room_for_it() {
    let mut bench = lost_bucket();
    advance_alone(&mut bench, Micros(5_900_000));
    assert_eq!(passed_alone(&mut bench, 5), 0);
    advance_alone(&mut bench, Micros(1_110_000));
    let passed = passed_alone(&mut bench, 100);
    assert!((49..=50).contains(&passed), "{passed} come in a second of half of the rate");
    advance_alone(&mut bench, Micros(10_000_000));
    let passed = passed_alone(&mut bench, 100);
    assert!((49..=50).contains(&passed), "{passed}, as it has half of the burst");
}

#[test]
fn the_first_acquire_of_a_bucket_says_what_was_admitted_and_ends_the_share() {
    let mut bench = lost_bucket();
    advance_alone(&mut bench, Micros(6_900_000));
    // It has forgotten that the store was away, and asks it.
    passed_alone(&mut bench, 1);
    advance_alone(&mut bench, Micros(110_000));
    assert_eq!(passed_alone(&mut bench, 20), 20);
    bench.advance(Micros(300_000));
    let probe = bench.calls().into_iter().rfind(|call| matches!(call.op, Op::Acquire(_))).expect("a probe");
    assert!(claim(&probe).is_probe() && claim(&probe).owes == 0, "{probe:?}");
    bench.grant(&probe, 0);
    bench.check(1);
    let paid = bench.acquire();
    assert!(!claim(&paid).is_probe() && (4..=20).contains(&claim(&paid).owes), "{paid:?}");
    assert_eq!(bench.order(&paid).need, 1, "what it owes is not lent");
    unanswered(&mut bench, paid);
    bench.advance(SECOND);
    assert_eq!(passed_alone(&mut bench, 5), 0, "the call may have been executed");
}
