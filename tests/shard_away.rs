//! What a shard makes of a store that is away, slow or late, or has lost what it knew: its share, answers that
//! come when nobody waits, and tokens that are void. On virtual time, against a store that the test plays.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{Call, Op, StoreError};
use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::core::usage::{Count, PeerIndex, Usage};
use rationd::store::memory::MemoryStore;

use support::bench::{Bench, SECOND};

#[test]
fn an_unknown_outcome_is_asked_again_under_the_same_id() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let first = bench.acquire();
    bench.advance(Micros(10_000));
    assert!(bench.try_acquire().is_none(), "a call whose connection lives is not sent again");
    bench.fail(&first, StoreError::Unknown);
    let second = bench.acquire();
    assert_eq!(first.id, second.id);
    bench.grant(&second, 1);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    bench.grant(&first, 1);
    assert_eq!(bench.held(), 0, "the same answer twice is one grant");
}

/// A check whose order is given up: the connection broke three times before its answer.
fn given_up(limit: &str) -> (Bench, Call) {
    let mut bench = Bench::new(limit);
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Unknown);
    for _ in 0..2 {
        let again = bench.acquire();
        bench.fail(&again, StoreError::Unknown);
    }
    (bench, call)
}

/// The return that says of an order that it is void.
fn voiding(bench: &mut Bench, id: u64) -> Call {
    let calls = bench.calls();
    let voids = |call: &Call| matches!(call.op, Op::Return { voids: Some(voids), .. } if voids.id == id);
    assert!(calls.len() == 1 && voids(&calls[0]), "the store hears first what is void: {calls:?}");
    calls[0].clone()
}

/// A fuzz target found its timer ringing each microsecond, from two seconds after its last check on.
#[test]
fn a_key_that_waits_to_tell_of_a_void_order_sleeps_meanwhile() {
    for limit in ["100/1s fixed", "100/1s sliding", "100/1h"] {
        let (mut bench, _) = given_up(limit);
        let end = bench.now + Micros::from_secs(5);
        let mut rings = 0;
        while let Some(at) = bench.shard.poll_timeout().filter(|at| *at <= end && rings < 1_000) {
            bench.now = bench.now.max(at);
            bench.shard.handle_timeout(bench.now);
            bench.advance(Micros::ZERO);
            rings += 1;
            let since = bench.now;
            bench.calls().iter().for_each(|call| bench.fail(call, StoreError::Away { since }));
        }
        assert!(rings < 200, "{limit}: its timer rang {rings} times until {:?}", bench.now);
    }
}

#[test]
fn an_order_that_was_given_up_is_void_as_soon_as_the_store_can_be_told() {
    for limit in ["100/1s fixed", "100/1s sliding", "100/1h"] {
        let (mut bench, call) = given_up(limit);
        assert_eq!(bench.replies().len(), 1, "{limit}: decided alone");
        bench.advance(Micros(250_000));
        let told = voiding(&mut bench, call.id);
        bench.fail(&told, StoreError::Away { since: bench.now });
        bench.advance(Micros(250_000));
        let told = voiding(&mut bench, call.id);
        bench.grant(&call, 1);
        assert_eq!(bench.held(), 0, "{limit}: what was lent to nobody goes back");
        bench.grant(&told, 0);
        bench.advance(Micros(250_000));
        let void_again = bench.calls().iter().any(|call| matches!(call.op, Op::Return { .. }));
        assert!(!void_again, "{limit}: told once");
    }
}

/// The store closes the account of whose acquire is void, and charges no more of it than it is told. What a return had reported that
/// was lost shortly before counted as free: a bucket lent it again (`bugs/a-lost-return-before-a-void-order`).
#[test]
fn what_a_lost_return_reported_is_told_with_the_order_that_is_void() {
    for (is_lost, reported) in [(true, 6), (false, 0)] {
        let mut bench = Bench::new("24/1h");
        bench.hold(20);
        for _ in 0..6 {
            bench.advance(Micros(5_000));
            assert_eq!(bench.check(1), Some(Verdict::Allow));
        }
        let mut returned = bench.calls();
        while returned.is_empty() {
            bench.advance(Micros(10_000));
            returned = bench.calls();
        }
        let mut returned = returned.remove(0);
        assert!(matches!(returned.op, Op::Return { amount: 14, held: 0, .. }), "it lies idle: {:?}", returned.op);
        if is_lost {
            for _ in 0..2 {
                bench.fail(&returned, StoreError::Unknown);
                returned = bench.calls().remove(0);
            }
            bench.fail(&returned, StoreError::Unknown);
        } else {
            bench.used = 6;
            bench.grant(&returned, 0);
        }
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        bench.fail(&call, StoreError::Unknown);
        for _ in 0..2 {
            let again = bench.acquire();
            bench.fail(&again, StoreError::Unknown);
        }
        bench.advance(Micros(250_000));
        let Op::Return { voids: Some(voids), .. } = voiding(&mut bench, call.id).op else { unreachable!() };
        assert_eq!(voids.reported, reported);
    }
}

/// The seconds of those who find the store again begin with its first answer, whatever it was asked: a key that is asked for
/// little went on by its share for 2.8 s (`bugs/lent-to-nobody-who-waits`).
#[test]
fn a_share_ends_a_second_after_the_store_has_answered_to_anything() {
    let (mut bench, call) = given_up("10/250ms fixed from-first");
    bench.advance(Micros(250_000));
    let told = voiding(&mut bench, call.id);
    bench.grant(&told, 0);
    bench.advance(Micros(900_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow), "others may have yet to pay");
    assert_eq!(bench.last.unwrap().source, Source::Share);
    let paid = bench.acquire();
    bench.grant(&paid, 1);
    bench.advance(Micros(250_000));
    assert_eq!(bench.check(1), None, "the store decides");
}

/// A check that was looked up for its cost alone began the second in which others pay for their shares, however long ago the
/// loss was and whether there are shares, and the next checks were denied (`bugs/denied-though-the-store-has-answered`).
#[test]
fn an_old_loss_begins_no_wait_once_the_store_has_answered_to_anything() {
    let (deny, allow) = (Verdict::Deny, Verdict::Allow);
    for (choice, verdict) in [(OnStoreLoss::Deny, deny), (OnStoreLoss::Allow, allow), (OnStoreLoss::Share, deny)] {
        let mut bench = Bench::with_loss("10/1s fixed", choice);
        bench.check(1);
        let call = bench.acquire();
        bench.fail(&call, StoreError::Away { since: bench.now });
        assert_eq!(bench.replies(), [verdict]);
        bench.advance(Micros(1_300_000));
        assert!(!bench.peek(), "so long after a lost call the store is asked");
        let looked = bench.calls().remove(0);
        bench.grant(&looked, 0);
        bench.advance(Micros(100_000));
        assert_eq!(bench.check(1), None, "the store decides");
    }
}

/// While a server is tried, one call goes to it, and all others were told that it is away, even if they are about the same key.
/// (They wait for its outcome since; one that a redirect sends there is told so still.) That key took itself for lost though the answer to the one came, and it was asked by nobody for the second in which others
/// pay: its next checks were denied for two seconds more.
#[test]
fn the_answer_to_the_call_that_tries_a_server_ends_the_loss_of_its_key() {
    let mut bench = Bench::new("1/250ms fixed");
    let since = bench.now;
    bench.advance(Micros::from_secs(3));
    assert!(!bench.peek());
    let tried = bench.calls().remove(0);
    assert_eq!(bench.check(1), None);
    let barred = bench.acquire();
    bench.settle_window(Micros(20));
    bench.fail(&barred, StoreError::Away { since });
    assert_eq!(bench.replies(), [Verdict::Deny]);
    bench.settle_window(Micros(500));
    bench.grant(&tried, 0);
    bench.advance(Micros(1_200_000));
    assert_eq!(bench.check(1), None, "the store decides");
}

/// Two answers that left somebody waiting were of limits of before, and of those of now the store has said nothing.
#[test]
fn who_waits_when_limits_change_is_denied_by_no_answer_under_those_of_before() {
    let mut bench = Bench::new("6/1s fixed");
    assert_eq!(bench.check(1), None);
    for _ in 0..2 {
        let call = bench.acquire();
        bench.grant(&call, 0);
    }
    assert!(bench.replies().is_empty());
    bench.advance(Micros(30_000));
    bench.rule = Arc::new(Rule::of("test", &[Limit::parse("8/1s fixed").unwrap()]));
    assert_eq!(bench.check(1), None);
    bench.advance(Micros(25_000));
    assert_eq!(bench.replies(), [Verdict::Deny]);
    assert_eq!(bench.last.map(|last| last.reason), Some(Reason::Overload));
}

#[test]
fn what_was_lent_under_other_limits_is_void() {
    let mut bench = Bench::new("6/1s fixed");
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.rule = Arc::new(Rule::of("test", &[Limit::parse("2/1s fixed").unwrap()]));
    assert_eq!(bench.check(1), None);
    let calls = bench.calls();
    assert!(
        matches!(calls[0].op, Op::Return { voids: Some(voids), .. } if voids.id == call.id),
        "it goes back: {:?}",
        calls[0].op
    );
    bench.grant(&call, 6);
    assert_eq!((bench.held(), bench.replies()), (0, vec![]));
    let call = &calls[1];
    assert_eq!((call.rule.limits[0].count, bench.order(call).need), (2, 1), "who waits asks under the new ones");
    bench.used = 0;
    bench.grant(call, 1);
    let next = bench.acquire();
    let need = bench.order(&next).need;
    assert_eq!((bench.replies(), need), (vec![Verdict::Allow], 1), "and so does the next");
}

#[test]
fn a_slow_answer_charges_nobody_who_was_denied_and_serves_the_next() {
    let mut bench = Bench::with_loss("100/1s", OnStoreLoss::Deny);
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.advance(Micros(60_000));
    let denied = bench.last.unwrap();
    assert_eq!((denied.verdict, denied.reason), (Verdict::Deny, Reason::Overload), "slow is not lost");
    assert!(bench.calls().is_empty(), "the call goes on");
    bench.grant(&call, 1);
    assert_eq!(bench.held(), 1, "kept for the next");
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.advance(Micros(60_000));
    bench.grant(&call, 1);
    bench.advance(SECOND);
    let back = bench.calls().into_iter().find_map(|call| match call.op {
        Op::Return { amount, held, .. } => Some((amount, held)),
        _ => None,
    });
    assert_eq!((back, bench.held()), (Some((1, 0)), 0), "nobody came: the charge is taken back");
}

#[test]
fn the_first_check_of_a_bucket_is_not_denied_for_one_late_answer() {
    let mut bench = Bench::new("5/1h");
    assert_eq!([bench.check(1), bench.check(1)], [None, None]);
    let call = bench.acquire();
    bench.advance(Micros(50_000));
    assert_eq!(bench.replies(), [Verdict::Allow, Verdict::Deny], "the first passes on credit");
    let denied = bench.last.unwrap();
    assert_eq!((denied.reason, denied.retry_after), (Reason::Overload, Some(Micros(50_000))));
    bench.advance(Micros(100_000));
    bench.grant(&call, 1);
    assert_eq!(bench.held(), 0, "the grant paid for it");
}

/// A fleet of one that grew to thirteen while its store was away let a check of a bucket of one pass at each newcomer.
#[test]
fn who_has_just_come_to_a_fleet_lets_no_first_check_pass() {
    for (has_looked, verdict) in [(true, Verdict::Allow), (false, Verdict::Deny)] {
        let mut bench = Bench::new("1/1h");
        bench.shard.handle_fleet(FleetView { has_looked, ..FleetView::UNKNOWN });
        assert_eq!(bench.check(1), None);
        bench.advance(Micros(50_000));
        assert_eq!(bench.replies(), [verdict]);
    }
}

/// Its next check passed on credit, too, each time that another key had taken its place: three tokens of a bucket of one in
/// half a second, in a table of eight for eleven keys.
#[test]
fn a_bucket_that_owes_for_its_first_check_is_not_forgotten_for_another_key() {
    let mut bench = Bench::with_keys("5/1h", 1);
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.advance(Micros(50_000));
    assert_eq!(bench.replies(), [Verdict::Allow], "on credit");
    bench.grant(&call, 0);
    bench.check_key(9, 1);
    assert_eq!(bench.last.unwrap().reason, Reason::Overload, "it takes nobody's place");
    bench.settle_window(Micros::from_secs(720));
    assert_eq!(bench.check_key(9, 1), None, "a token has trickled in");
}

/// Seven seconds after a push a node was lent the only token of a window for a check that a bucket had let pass before, and denied
/// the one that waited.
#[test]
fn a_window_pays_for_no_check_that_a_bucket_let_pass() {
    for (limit, need) in [("5/1h fixed", 1), ("5/1h sliding", 1), ("5/1h burst 2", 2)] {
        let mut bench = Bench::new("1/1s burst 1");
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        bench.advance(Micros(50_000));
        assert_eq!(bench.replies(), [Verdict::Allow], "on credit");
        bench.used = 1;
        bench.grant(&call, 0);
        bench.rule = Arc::new(Rule::of("test", &[Limit::parse(limit).unwrap()]));
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        assert_eq!(bench.order(&call).need, need, "{limit}");
    }
}

#[test]
fn waits_no_longer_than_the_timeout_and_lives_on_its_share_when_the_store_is_lost() {
    let mut bench = Bench::new("1000/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.advance(Micros(50_000));
    assert_eq!(bench.last.unwrap().reason, Reason::Overload, "it may be slow");
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.check(1);
    assert_eq!(bench.last.unwrap().reason, Reason::Share, "the window in which it began: what it holds, nothing");
    bench.advance(SECOND);
    let allowed = (0..1_000).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert_eq!(allowed, 950);
    let last = bench.last.unwrap();
    assert_eq!((last.reason, last.source), (Reason::Share, Source::Share));
}

#[test]
fn a_busy_store_turns_checks_away_and_is_not_lost() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Busy { wait: Micros(70_000) });
    let denied = bench.last.unwrap();
    assert_eq!((denied.reason, denied.retry_after), (Reason::Overload, Some(Micros(70_000))));
    assert_eq!(bench.check(1), None, "the next one asks anew");
}

/// The store is away, one check was admitted on the share, and the store is asked whether it is back.
fn on_its_share() -> (Bench, Call) {
    on_its_share_for(Micros::ZERO)
}

/// So long after its window began.
fn on_its_share_for(late: Micros) -> (Bench, Call) {
    let mut bench = Bench::new("1000/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(SECOND + late);
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    let call = bench.acquire();
    (bench, call)
}

#[test]
fn what_the_share_admitted_is_charged_when_the_store_is_back() {
    let (mut bench, call) = on_its_share();
    bench.fail(&call, StoreError::Away { since: bench.now });
    for _ in 0..99 {
        assert_eq!(bench.check(1), Some(Verdict::Allow));
    }
    bench.advance(Micros(250_000));
    let call = bench.acquire();
    let order = bench.order(&call);
    assert_eq!((order.need, order.want), (950, 950), "what is owed and what the share has left, not a part of it");
    bench.grant(&call, 950);
    assert_eq!(bench.held(), 850, "it paid what was owed");
    let allowed = (0..900).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert_eq!(allowed, 850, "all that is left of the share is leased");
    assert_eq!(bench.last.unwrap().source, Source::Share, "others have yet to pay theirs");
    bench.advance(SECOND);
    assert_eq!(bench.check(1), None, "back to leases");
}

/// A check that came when the outage was over, and before the timer, ended it, and nobody took the key off the count: that stayed up for as
/// long as the node lived, also when it had no key any more.
#[test]
fn keys_without_the_store_are_counted_for_as_long_as_they_are() {
    let (mut bench, call) = on_its_share();
    assert_eq!(bench.shard.stats().degraded, 1);
    let want = bench.order(&call).want;
    bench.grant(&call, want);
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.shard.stats().degraded, 1, "others have yet to pay theirs");
    bench.settle_window(SECOND + SECOND);
    bench.check(1);
    for _ in 0..20 {
        bench.calls().iter().for_each(|call| bench.grant(call, 0));
        bench.advance(Micros(100_000));
    }
    assert_eq!(bench.shard.stats().degraded, 0, "the store is back");
}

/// A newcomer that the store had answered with nothing to charge took its share when it knew its fleet, half a second later,
/// beside others who had leased the whole window.
#[test]
fn who_finds_the_fleet_after_the_store_has_answered_has_no_share_of_that_loss() {
    for settles_later in [false, true] {
        let mut bench = Bench::new("1000/1s fixed");
        bench.shard.handle_fleet(FleetView { looks_until: Some(bench.now + SECOND + SECOND), ..FleetView::UNKNOWN });
        bench.check(1);
        let call = bench.acquire();
        bench.fail(&call, StoreError::Away { since: bench.now });
        bench.advance(SECOND);
        assert_eq!(bench.check(1), Some(Verdict::Deny), "it does not know how many share the limit");
        let settled = |bench: &mut Bench| {
            let looks_until = Some(bench.now);
            bench.shard.handle_fleet(FleetView { has_looked: true, looks_until, ..FleetView::UNKNOWN });
        };
        if !settles_later {
            settled(&mut bench);
            bench.advance(Micros(1));
        }
        for call in bench.calls() {
            bench.grant(&call, 0);
        }
        bench.advance(Micros(100_000));
        if settles_later {
            settled(&mut bench);
        }
        let verdict = if settles_later { Verdict::Deny } else { Verdict::Allow };
        assert_eq!(bench.check(1), Some(verdict));
        assert_eq!(bench.last.unwrap().source, Source::Share);
    }
}

/// A node that was lent a token of a key that two nodes use, and has just lost the store.
fn away_from_two(limits: &[&str]) -> Bench {
    let mut bench = Bench::new(limits[0]);
    let limits: Vec<_> = limits.iter().map(|limit| Limit::parse(limit).unwrap()).collect();
    bench.rule = Arc::new(Rule::of("test", &limits));
    bench.nodes = 2;
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.advance(SECOND + SECOND);
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench
}

/// The share went on for a second after the store was back, and nobody has asked since. A bucket's share has not filled up by then, but all
/// nodes have paid long ago, so the store decides.
#[test]
fn a_bucket_beside_a_window_is_asked_of_the_store_long_after_an_outage() {
    let mut bench = away_from_two(&["147/1500ms burst 294", "985/1s fixed"]);
    let mut admitted = 0;
    // The share begins with the next window.
    for step in 0..200 {
        let is_admitted = bench.check(3) == Some(Verdict::Allow);
        admitted += u64::from(is_admitted && bench.last.is_some_and(|last| last.source == Source::Share));
        for call in bench.calls() {
            match call.op {
                Op::Acquire(order) if step > 120 => bench.grant(&call, order.need),
                _ => bench.fail(&call, StoreError::Away { since: bench.now }),
            }
        }
        bench.advance(Micros(10_000));
    }
    assert!(admitted > 20, "{admitted}");
    bench.replies();
    bench.advance(Micros(1_300_000));
    bench.calls();
    assert_eq!(bench.check(1), None, "{:?}", bench.last);
    let call = bench.acquire();
    let order = bench.order(&call);
    assert!(order.need >= 1, "it is asked for what is waited for: {order:?}");
    bench.grant(&call, order.need);
    assert_eq!(bench.last.map(|last| (last.verdict, last.source)), Some((Verdict::Allow, Source::Store)));
}

/// The share went on for a second of which the store heard only when that was over, beside others who leased all of the rate; of a bucket
/// beside a window, too.
#[test]
fn a_buckets_share_that_goes_on_is_charged_as_it_is_spent() {
    for limits in [&["20/1s burst 5"][..], &["20/1s burst 5", "60/1s fixed"]] {
        let mut bench = away_from_two(limits);
        // Of what was admitted before the first charge the bucket has forgotten some.
        let (mut admitted, mut charged, mut forgotten) = (0, 0, None);
        for step in 0..220 {
            let verdict = bench.check(1);
            let allows = verdict == Some(Verdict::Allow);
            admitted += u64::from(allows && bench.last.is_some_and(|last| last.source == Source::Share));
            if let Some(call) = bench.try_acquire() {
                // The store is back after a second, in a window that has begun since,, and lends what is needed and nothing else.
                let need = bench.order(&call).need;
                if step < 120 {
                    bench.fail(&call, StoreError::Away { since: bench.now });
                } else {
                    charged += need - u64::from(verdict.is_none());
                    bench.grant(&call, need);
                    forgotten = forgotten.or(Some(admitted - charged));
                }
            }
            bench.advance(Micros(10_000));
            if let Some(forgotten) = forgotten {
                assert!(forgotten + charged + 1 >= admitted, "{forgotten} and {charged} of {admitted} at step {step}");
            }
        }
        assert!(admitted >= if limits.len() == 1 { 9 } else { 4 }, "{admitted}: it went on");
    }
}

/// It was forgotten: each new limit let a node admit its share of the window once more, and the store never heard of
/// what had been admitted before.
#[test]
fn what_the_share_admitted_counts_under_other_limits_and_is_charged() {
    for (limit, left, owed) in [("900/1s fixed", 755, 100), ("200/1s sliding", 90, 100), ("80/250ms fixed", 0, 100)] {
        let (mut bench, call) = on_its_share();
        let lost = StoreError::Away { since: bench.now };
        bench.fail(&call, lost.clone());
        for _ in 0..99 {
            assert_eq!(bench.check(1), Some(Verdict::Allow));
        }
        bench.rule = Arc::new(Rule::of("test", &[Limit::parse(limit).unwrap()]));
        let allowed = (0..1_000).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
        assert!(allowed <= left, "{limit}: {allowed} more in the same window");
        let call = bench.try_acquire().unwrap_or_else(|| {
            bench.advance(Micros(250_000));
            bench.check(1);
            bench.acquire()
        });
        let need = bench.order(&call).need;
        assert!(need >= owed as u64 + allowed as u64, "{limit}: {need} are charged");
    }
}

/// The store had been charged for what the share had admitted, so that nothing was owed; the node forgot it then, and a share under
/// lower limits began anew in the window in which more than that had been admitted already.
#[test]
fn what_the_share_admitted_and_paid_counts_under_other_limits_of_the_same_window() {
    let mut bench = Bench::new("1000/1s sliding");
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(SECOND);
    let allowed = (0..100).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert_eq!(allowed, 100);
    let call = bench.acquire();
    bench.grant(&call, 100);
    bench.rule = Arc::new(Rule::of("test", &[Limit::parse("100/1s sliding").unwrap()]));
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(Micros(750_000));
    assert_eq!(bench.check(1), Some(Verdict::Deny), "a hundred were admitted, and the share is 95");
    assert_eq!(bench.last.unwrap().reason, Reason::Share);
}

/// The node took what it owed for forgotten with the key, though it may have admitted that after the reset, and spent the
/// tokens that were to pay for it.
#[test]
fn what_the_share_admitted_is_charged_though_another_node_has_reset_the_key() {
    let mut bench = Bench::new("1000/1s fixed");
    bench.advance(Micros(500_000));
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.advance(SECOND);
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(SECOND);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "on its share");
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 950);
    (bench.epoch, bench.was_reset, bench.used) = (99, true, 0);
    bench.grant(&call, 950);
    assert_eq!(bench.held(), 949);
}

/// A change of limits made the node forget when the store had last answered, and with it that it had leased tokens of the
/// window at hand.
#[test]
fn a_share_begins_in_the_window_after_the_last_answer_under_whatever_limits() {
    let mut bench = Bench::new("1000/1s fixed");
    bench.advance(Micros(500_000));
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.rule = Arc::new(Rule::of("test", &[Limit::parse("500/1s fixed").unwrap()]));
    assert_eq!(bench.check(1), None);
    bench.replies();
    let call = bench.acquire();
    // By what other keys met the server has been away for long.
    bench.fail(&call, StoreError::Away { since: bench.now - SECOND });
    assert_eq!((bench.replies(), bench.last.unwrap().reason), (vec![Verdict::Deny], Reason::Share));
    bench.advance(SECOND);
    assert_eq!(bench.check(1), Some(Verdict::Allow));
}

#[test]
fn who_owes_nothing_is_lent_nothing_until_others_have_paid_theirs() {
    let mut bench = Bench::new("10/1s fixed");
    bench.nodes = 20;
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(SECOND);
    assert_eq!(bench.check(1), Some(Verdict::Deny), "a twentieth of it is no whole token");
    let call = bench.acquire();
    let order = bench.order(&call);
    assert_eq!((order.need, order.want), (0, 0), "what seems to be left others may have spent");
    bench.grant(&call, 0);
    for _ in 0..9 {
        bench.advance(Micros(110_000));
        assert_eq!(bench.check(1), Some(Verdict::Deny), "others have yet to pay theirs");
        if let Some(call) = bench.try_acquire() {
            assert_eq!(bench.order(&call).want, 0);
            bench.grant(&call, 0);
        }
    }
    bench.advance(Micros(20_000));
    bench.check(1);
    let call = bench.acquire();
    assert!(bench.order(&call).want > 0, "by now all have");
}

/// Of a bucket of 100 a second, the part of one of twenty nodes fills by a token in 211 ms, and that of all of them in 11 ms.
#[test]
fn who_owes_nothing_of_a_bucket_is_lent_nothing_until_others_have_paid_theirs() {
    for (nodes, waits) in [(20, true), (1, false)] {
        let mut bench = Bench::new("100/1s");
        bench.nodes = nodes;
        bench.check(1);
        let call = bench.acquire();
        bench.grant(&call, 1);
        bench.check(1);
        let call = bench.acquire();
        bench.fail(&call, StoreError::Away { since: bench.now });
        bench.advance(Micros(251_000));
        bench.check(100);
        let call = bench.acquire();
        let order = bench.order(&call);
        assert_eq!((order.need, order.want) == (0, 0), waits, "{nodes} nodes, {order:?}");
    }
}

#[test]
fn what_a_share_has_left_is_kept_until_others_have_paid_theirs() {
    let (mut bench, call) = on_its_share();
    bench.used = 1_000;
    bench.grant(&call, 950);
    for _ in 0..20 {
        bench.advance(Micros(10_000));
        assert_eq!(bench.check(1), Some(Verdict::Allow));
    }
    bench.advance(Micros(500_000));
    assert!(bench.calls().is_empty(), "given back, the share would have it once more");
    assert_eq!(bench.held(), 929);
}

/// The store, asked each quarter of a second, is back when its window is about to end.
fn back_at_the_end() -> (Bench, Call) {
    let (mut bench, mut call) = on_its_share_for(Micros(240_000));
    for _ in 0..3 {
        bench.fail(&call, StoreError::Away { since: bench.now });
        bench.advance(Micros(250_000));
        call = bench.acquire();
    }
    (bench, call)
}

#[test]
fn a_share_goes_on_in_a_window_that_begins_before_others_have_paid_theirs() {
    let (mut bench, call) = back_at_the_end();
    bench.grant(&call, 950);
    bench.advance(Micros(20_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.last.unwrap().source, Source::Share);
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 950, "charged, too");
    bench.used = 0;
    bench.grant(&call, 950);
    bench.advance(Micros(970_000));
    while bench.check(1) == Some(Verdict::Allow) {}
    assert_eq!(bench.last.unwrap().source, Source::Share, "others have yet to pay theirs");
    assert!(bench.try_acquire().is_none());
    bench.advance(Micros(10_000));
    bench.check(1);
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 0, "by now all have: it leases again");
}

#[test]
fn a_share_does_not_grow_where_a_store_that_is_back_has_yet_to_hear_of_others() {
    let mut bench = Bench::new("1000/1s fixed");
    bench.nodes = 4;
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.advance(SECOND);
    bench.check(1);
    let mut call = bench.acquire();
    for _ in 0..7 {
        bench.fail(&call, StoreError::Away { since: bench.now });
        bench.advance(Micros(250_000));
        bench.check(1);
        call = bench.acquire();
    }
    bench.nodes = 1;
    bench.grant(&call, 237);
    bench.advance(Micros(260_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 237, "95 % of a fourth");
}

/// What a node of two admits on its share in a second, of 100 tokens. In each second before that it was lent so many and spent 60, by the
/// store's count was one of so many, and its peer reported so many.
fn share_beside(lent: u64, nodes: u32, peer: u64) -> u64 {
    let mut bench = Bench::new("100/1s fixed");
    // What it holds it keeps until the window is over.
    let settings = Settings { max_keys: 1_000, timeout: Micros(50_000), lease_ahead: false };
    bench.shard = Shard::new(settings, 7, 1, 1, (bench.now, bench.store_now()));
    bench.nodes = nodes;
    for is_there in [true, true, true, true, true, false] {
        let view = FleetView { live: 2, largest: 2, has_looked: true, heard: Some(bench.now), ..FleetView::UNKNOWN };
        bench.shard.handle_fleet(view);
        bench.used = 0;
        bench.check(60);
        let call = bench.acquire();
        if is_there {
            bench.grant(&call, lent);
            assert_eq!(bench.replies(), [Verdict::Allow]);
        } else {
            bench.fail(&call, StoreError::Away { since: bench.now });
        }
        // The last report of the window before.
        bench.advance(Micros(150_000));
        let window = Timestamp(bench.store_time().0 / SECOND.0 * SECOND.0);
        let count = Count { admitted: peer, refunded: 0 };
        let usage = Usage { digest: Digest::of("test", &[0]), limit: 0, window, count, epoch: 0 };
        bench.shard.handle_usage(bench.now, PeerIndex(1), &usage);
        bench.advance(Micros(850_000));
    }
    let view = FleetView { live: 2, largest: 2, has_looked: true, heard: Some(bench.now), ..FleetView::UNKNOWN };
    bench.shard.handle_fleet(view);
    bench.advance(Micros(10_000));
    (0..100).filter(|_| bench.check(1) == Some(Verdict::Allow)).count() as u64
}

/// A peer that has lost the store admits 45. All 60 that this node was lent it has spent, so that the peer may have been lent 40 of them. Or
/// it was lent 80, and holds 20 when the window is over, which the peer was not lent either.
#[test]
fn a_share_is_reckoned_beside_all_that_a_peer_cannot_have_been_lent() {
    assert_eq!([share_beside(60, 2, 45), share_beside(80, 2, 45)], [52, 41]);
}

/// Of what was unused in each window either of two nodes has a half, also where the store does not count the peer, because that has a share
/// and does not ask.
#[test]
fn what_was_unused_is_divided_among_all_that_have_told_of_the_key() {
    assert_eq!([share_beside(60, 2, 20), share_beside(60, 1, 20)], [65, 65]);
}

#[test]
fn an_answer_between_two_shares_ends_none() {
    let (mut bench, call) = back_at_the_end();
    bench.advance(Micros(40_000));
    bench.behind = 35_000;
    bench.grant(&call, 0);
    bench.behind = 0;
    bench.calls();
    assert_eq!(bench.check(1), Some(Verdict::Deny), "in which window is not sure");
    let call = bench.acquire();
    bench.grant(&call, 0);
    bench.advance(Micros(20_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.last.unwrap().source, Source::Share);
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 950, "others may have spent theirs already");
}

#[test]
fn a_share_ends_where_a_store_that_is_back_has_no_more_to_lend() {
    let (mut bench, call) = on_its_share();
    bench.grant(&call, 10);
    let allowed = (0..900).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert_eq!(allowed, 9, "what the store lent beside the one that was owed");
}

/// Others go by their shares of the next window, and have yet to pay for them.
#[test]
fn a_share_that_was_paid_in_part_goes_on_in_the_next_window() {
    let (mut bench, call) = back_at_the_end();
    bench.grant(&call, 10);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "of what the store lent");
    while bench.check(1) == Some(Verdict::Allow) {}
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 0, "the share is over, and it is paid");
    bench.grant(&call, 0);
    bench.advance(Micros(20_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.last.unwrap().source, Source::Share);
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 950, "and is charged there");
}

#[test]
fn a_share_is_charged_in_each_window_of_the_shorter_of_two_limits() {
    let mut bench = Bench::new("1000/1s fixed");
    let limits = ["1000/1s fixed", "3000/3s fixed"].map(|limit| Limit::parse(limit).unwrap());
    bench.rule = Arc::new(Rule::of("test", &limits));
    bench.check(1);
    let mut call = bench.acquire();
    bench.advance(Micros(240_000));
    for _ in 0..15 {
        bench.fail(&call, StoreError::Away { since: bench.now });
        bench.advance(Micros(250_000));
        bench.check(1);
        call = bench.acquire();
    }
    bench.grant(&call, bench.order(&call).need);
    bench.advance(Micros(20_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.last.unwrap().source, Source::Share, "others have yet to pay theirs of this second");
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 950, "the three seconds go on, and nothing of this one is paid");
}

#[test]
fn what_a_share_admitted_of_a_sliding_window_is_charged_in_the_next_one_too() {
    let (mut bench, mut call) = (Bench::new("1000/1s sliding"), None);
    bench.check(1);
    bench.advance(Micros(240_000));
    for _ in 0..7 {
        let acquire = call.unwrap_or_else(|| bench.acquire());
        bench.fail(&acquire, StoreError::Away { since: bench.now });
        bench.advance(Micros(250_000));
        while bench.check(1) == Some(Verdict::Allow) {}
        call = bench.try_acquire();
    }
    // It is 1.99 s, and all of the share is spent; in a hundredth of a second the next window has begun.
    bench.fail(&call.expect("a share asks the store"), StoreError::Away { since: bench.now });
    bench.advance(Micros(250_000));
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 722, "950 weigh 76 % at 2.24 s");
    bench.grant(&call, 722);
    assert_eq!(bench.held(), 0, "it is paid");
}

#[test]
fn a_clock_that_was_set_back_before_a_restart_locks_nobody_out() {
    let rule = Arc::new(Rule::of("test", &[Limit::parse("10/1s fixed").unwrap()]));
    let mut store = MemoryStore::new(10, 1);
    let noon = Timestamp(1_800_000_000_000_000);
    for (start, round) in [(noon, 0), (noon - Micros(3_600 * SECOND.0), 1)] {
        let settings = Settings { max_keys: 10, timeout: Micros(50_000), lease_ahead: true };
        let mut shard = Shard::new(settings, 1, start.0, 1, (Instant(0), start));
        let request = Request { rule: &rule, digest: Digest::of("test", b"k"), key: b"k", cost: 1, peek: false };
        assert!(matches!(shard.check(Instant(0), request), Outcome::Parked(_)));
        let mut reply = None;
        while let Some(effect) = shard.poll_effect() {
            match effect {
                Effect::Call(call) => {
                    let outcome = store.call(noon, "node", &call);
                    shard.handle_outcome(Instant(0), &call, outcome);
                }
                Effect::Ask { .. } | Effect::Answer { .. } => panic!("nobody told it of peers to ask"),
                Effect::Reply { decision, .. } => reply = Some(decision.verdict),
            }
        }
        assert_eq!(reply, Some(Verdict::Allow), "round {round}");
    }
}

/// A bucket's share is open until it has filled up. A check that came long after an outage, the key's first since, began the
/// second in which others pay for their shares, and was decided by the share though the store had answered
/// (`bugs/a-buckets-share-long-after-an-outage`).
#[test]
fn an_old_loss_of_a_bucket_begins_no_wait() {
    let mut bench = Bench::new("10/10s burst 10");
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.replies();
    bench.advance(Micros(200_000));
    bench.advance(Micros(3 * SECOND.0));
    bench.calls();
    assert_eq!(bench.check(1), None, "the store is asked");
    let call = bench.acquire();
    let need = bench.order(&call).need;
    assert!((1..=2).contains(&need), "for the check, and for what is owed: {need}");
    bench.grant(&call, need);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    assert_eq!(bench.last.unwrap().source, Source::Store);
}

#[test]
fn an_old_loss_of_the_store_is_forgotten_and_a_new_one_noticed_in_time() {
    let mut bench = Bench::new("1000/10s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(Micros(3 * SECOND.0));
    assert_eq!(bench.check(1), None, "the store is asked");
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    let last = bench.last.unwrap();
    assert_eq!(last.source, Source::Share, "it did not answer");
}

#[test]
fn a_line_that_the_store_serves_slowly_is_not_left_alone() {
    let mut bench = Bench::new("1000/1s fixed");
    assert_eq!(bench.check(1), None);
    for _ in 0..2 {
        bench.advance(Micros(5_000));
        let call = bench.acquire();
        bench.grant(&call, 0);
    }
    bench.advance(Micros(40_000));
    let last = bench.last.unwrap();
    assert_eq!((last.verdict, last.reason, last.source), (Verdict::Deny, Reason::Rate, Source::Store));
}

#[test]
fn on_store_loss_says_what_happens() {
    for (choice, verdict, reason) in
        [(OnStoreLoss::Allow, Verdict::Allow, Reason::Ok), (OnStoreLoss::Deny, Verdict::Deny, Reason::Store)]
    {
        let mut bench = Bench::with_loss("10/1s fixed", choice);
        bench.check(1);
        let call = bench.acquire();
        bench.fail(&call, StoreError::Away { since: bench.now });
        assert_eq!(bench.replies(), [verdict]);
        bench.check(1);
        assert_eq!(bench.last.unwrap().reason, reason);
    }
}

#[test]
fn a_share_under_other_limits_is_not_forgotten_for_another_key() {
    let mut bench = Bench::with_keys("30/500ms burst 8", 1);
    bench.check(1);
    let call = bench.acquire();
    let lost = StoreError::Away { since: bench.now };
    bench.fail(&call, lost.clone());
    bench.advance(SECOND);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "of the share");
    for call in bench.calls() {
        bench.fail(&call, lost.clone());
    }
    // What was spent under the old limits counts in no bucket of the new ones: that one begins empty.
    bench.rule = Arc::new(Rule::of("test", &[Limit::parse("23/500ms burst 6").unwrap()]));
    assert_eq!(bench.check(1), Some(Verdict::Deny));
    for call in bench.calls() {
        bench.fail(&call, lost.clone());
    }
    bench.check_key(9, 1);
    assert_eq!(bench.last.unwrap().reason, Reason::Overload, "it takes nobody's place");
    assert_eq!(bench.check(1), Some(Verdict::Deny));
}

#[test]
fn an_answer_that_comes_too_late_says_how_many_share_a_key() {
    let mut bench = Bench::new("40/1s fixed from-first");
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.advance(Micros(500_000));
    assert!(!bench.peek());
    let peek = bench.calls().pop().unwrap();
    bench.advance(Micros(60_000));
    bench.nodes = 4;
    bench.grant(&peek, 0);
    bench.advance(SECOND);
    bench.check(1);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(SECOND);
    let admitted = (0..40).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert_eq!(admitted, 9, "95 % of a fourth");
}

#[test]
fn an_answer_about_another_window_denies_nobody() {
    let mut bench = Bench::new("10000/1s fixed");
    bench.hold(10);
    let ahead = loop {
        bench.advance(Micros(9_000));
        let call = bench.calls().into_iter().find(|call| matches!(call.op, Op::Acquire(_)));
        match call {
            Some(call) if bench.order(&call).window.is_next() => break call,
            Some(call) => bench.grant(&call, 4),
            None => _ = bench.check(1),
        }
    };
    while bench.check(1) == Some(Verdict::Allow) {}
    bench.grant(&ahead, 2);
    let call = bench.acquire();
    // The process is stopped, and what the store lent is over when it goes on.
    bench.settle_window(SECOND + SECOND);
    bench.grant(&call, 3);
    bench.replies();
    bench.advance(Micros::ZERO);
    assert_eq!(bench.last.unwrap().reason, Reason::Overload, "nothing is known of this window");
}

#[test]
fn a_share_is_not_spent_where_its_window_is_in_doubt() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.advance(Micros(30_000));
    bench.grant(&call, 1);
    bench.advance(Micros(500_000));
    let lost = StoreError::Away { since: bench.now };
    bench.advance(Micros(1_200_000));
    bench.check(1);
    let call = bench.calls().pop().unwrap();
    bench.fail(&call, lost);
    // The store may have read its clock 30 ms before its answer came: the window ends then, or now.
    for (at, verdict) in [(969, Verdict::Allow), (971, Verdict::Deny), (999, Verdict::Deny), (1_001, Verdict::Allow)] {
        let end = 1_001_000_000 + at * 1_000;
        bench.advance(Micros(end - bench.now.0));
        assert_eq!(bench.check(1), Some(verdict), "{at}");
    }
}

#[test]
fn what_a_lost_store_lent_is_void_when_it_comes_after_the_loss() {
    let mut bench = Bench::new("1000/2s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.check(1);
    let given_up = bench.acquire();
    bench.advance(Micros(60_000));
    for _ in 0..3 {
        bench.fail(&given_up, StoreError::Unknown);
    }
    bench.calls();
    bench.advance(Micros(300_000));
    bench.check(1);
    let call = bench.calls().pop().unwrap();
    // What this node knew was counted again, without what is still under way.
    bench.epoch = 9;
    bench.advance(Micros(1_000));
    bench.grant(&call, 4);
    let held = bench.held();
    bench.advance(Micros(5_000));
    (bench.epoch, bench.behind) = (5, 200_000);
    bench.grant(&given_up, 40);
    assert_eq!(bench.held(), held);
}

#[test]
fn a_late_answer_is_news_however_late() {
    let mut bench = Bench::new("1000/10s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.advance(Micros(3_000_000));
    assert!(!bench.peek());
    let peek = bench.calls().pop().unwrap();
    bench.advance(Micros(60_000));
    bench.used = 600;
    bench.grant(&peek, 0);
    assert!(bench.peek());
    assert_eq!(bench.last.unwrap().remaining, 400);
}

/// Who peeked at a key that the store had lost was told 82 of 90 left, though the very answer had said that others had been lent 24
/// since: what a store has lost makes its counters too low, and never too high.
#[test]
fn what_a_store_that_lost_a_key_has_lent_of_it_since_is_not_left() {
    let mut bench = Bench::new("1000/10s fixed");
    bench.used = 99;
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    bench.epoch = 99;
    for (used, remaining) in [(40, 900), (600, 400), (50, 400)] {
        bench.advance(Micros(2_000_000));
        assert!(!bench.peek());
        let peek = bench.calls().pop().unwrap();
        bench.used = used;
        bench.grant(&peek, 0);
        assert_eq!(bench.last.unwrap().remaining, remaining, "{used} are used, as far as the store knows");
    }
}

/// A peek that was long under way shows the store's clock so vaguely that the window may be over. The answer to a check, which
/// the peek's has overtaken, shows that it is not: the check was told that all of it is left, its own cost included.
#[test]
fn a_window_that_is_open_after_all_is_as_used_as_was_shown() {
    for limit in ["20/1s fixed", "20/1s sliding"] {
        let mut bench = Bench::new(limit);
        bench.advance(Micros(985_000));
        assert!(!bench.peek());
        let peek = bench.calls().pop().unwrap();
        bench.advance(Micros(10_000));
        assert_eq!(bench.check(5), None);
        let call = bench.acquire();
        bench.advance(Micros(3_000));
        (bench.used, bench.behind) = (5, 1_000);
        bench.grant(&peek, 0);
        assert_eq!(
            bench.last.unwrap().remaining,
            if limit.ends_with("fixed") { 20 } else { 15 },
            "as of the next window"
        );
        (bench.used, bench.behind) = (0, 2_000);
        bench.grant(&call, 5);
        let told = bench.last.unwrap();
        assert_eq!((told.verdict, told.remaining), (Verdict::Allow, 15), "{limit}: {told:?}");
    }
}

#[test]
fn what_others_held_of_a_bucket_long_ago_denies_nobody() {
    let mut bench = Bench::new("20/1s burst 5");
    bench.check(1);
    let call = bench.acquire();
    bench.used = 5;
    bench.grant(&call, 0);
    assert_eq!(bench.replies(), [Verdict::Deny]);
    bench.advance(Micros(200_000));
    assert_eq!(bench.check(1), Some(Verdict::Deny), "they may hold it yet");
    bench.advance(SECOND);
    assert_eq!(bench.check(1), None, "the store knows");
}

#[test]
fn reset_voids_what_was_asked_for_before() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    bench.spend_to_low_water();
    let before = bench.acquire();
    bench.reset();
    let call = bench.calls().pop().unwrap();
    bench.advance(Micros(1_000));
    (bench.epoch, bench.was_reset) = (99, true);
    bench.grant(&call, 0);
    // Lent under the epoch that is gone, and late.
    bench.advance(Micros(1_000));
    (bench.epoch, bench.was_reset, bench.behind) = (5, false, 2_000);
    bench.grant(&before, 20);
    assert_eq!(bench.held(), 0);
    assert_eq!(bench.check(1), None, "the store is asked again");
    let call = bench.acquire();
    assert_eq!(bench.order(&call).epoch, 99);
}
