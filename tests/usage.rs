//! What a shard tells its peers and what it makes of what they tell, on virtual time and against a
//! store that the test plays by hand.

use crate::support;

use rationd::core::call::{Call, Op, StoreError};
use rationd::core::decision::{Source, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::time::{Micros, Timestamp};
use rationd::core::usage::{Count, PeerIndex, Report, Usage};

use std::sync::Arc;

use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use support::bench::{Bench, SECOND};

const PEER: PeerIndex = PeerIndex(1);
const OTHER: PeerIndex = PeerIndex(2);

/// A bench in a fleet of so many nodes.
fn bench_of(live: u32, limit: &str) -> Bench {
    in_fleet(Bench::new(limit), live)
}

fn in_fleet(mut bench: Bench, live: u32) -> Bench {
    let heard = Some(bench.now);
    bench.shard.handle_fleet(FleetView {
        live,
        largest: live,
        has_looked: true,
        is_steady: true,
        heard,
        ..FleetView::UNKNOWN
    });
    bench
}

/// A peer tells of the first limit's window at hand.
fn hear_of(bench: &mut Bench, admitted: u64) {
    let now = bench.now.0 + 1_800_000_000_000_000 - 1_000_000_000;
    let usage = usage(Timestamp(now / 10_000_000 * 10_000_000 + 10_000_000), admitted);
    bench.shard.handle_usage(bench.now, PEER, &usage);
}

/// What is told now: admitted and refunded tokens by window.
fn reported(bench: &mut Bench) -> Vec<(Timestamp, u64, u64)> {
    let mut usage = Vec::new();
    bench.shard.drain_usage(bench.now, usize::MAX, &mut usage);
    usage.iter().map(|Report { usage, .. }| (usage.window, usage.count.admitted, usage.count.refunded)).collect()
}

/// A peer tells what it admitted in the window at hand.
fn hear(bench: &mut Bench, origin: PeerIndex, admitted: u64) {
    let window = window(bench);
    let usage = usage(window, admitted);
    bench.shard.handle_usage(bench.now, origin, &usage);
}

fn usage(window: Timestamp, admitted: u64) -> Usage {
    Usage { digest: Digest::of("test", &[0]), limit: 0, window, count: Count { admitted, refunded: 0 }, epoch: 0 }
}

/// The window at hand, as the last decision told it.
fn window(bench: &Bench) -> Timestamp {
    bench.last.expect("something was decided").reset_at
}

/// Spends `tokens` that are held; the store has no more to lend meanwhile.
fn spend(bench: &mut Bench, tokens: u64) {
    for _ in 0..tokens {
        assert_eq!(bench.check(1), Some(Verdict::Allow));
        let refill = bench.try_acquire();
        refill.iter().for_each(|call| bench.grant(call, 0));
    }
}

#[test]
fn what_was_admitted_is_told_and_not_what_is_held() {
    let mut bench = bench_of(2, "100/10s fixed");
    bench.hold(20);
    assert_eq!(reported(&mut bench), [(window(&bench), 4, 0)]);
    spend(&mut bench, 9);
    bench.settle_window(SECOND + SECOND);
    assert_eq!(reported(&mut bench), [(window(&bench), 13, 0)]);
    assert_eq!(reported(&mut bench), [], "nothing has moved since");
}

#[test]
fn small_moves_wait_and_a_refund_is_told_beside_what_was_admitted() {
    let mut bench = bench_of(2, "1000/10s fixed");
    bench.used = 200;
    bench.hold(300);
    reported(&mut bench);
    spend(&mut bench, 20);
    bench.settle_window(SECOND + SECOND);
    assert_eq!(reported(&mut bench), [], "20 are less than a sixteenth of a share");
    spend(&mut bench, 20);
    assert_eq!(reported(&mut bench), [(window(&bench), 44, 0)]);
    assert!(bench.refund(5));
    bench.settle_window(SECOND + SECOND);
    assert_eq!(reported(&mut bench), [(window(&bench), 44, 5)]);
}

/// The call was lost, and came again when the next window had begun, so that the store takes it off that. It was recorded of the
/// window before alone, and the node told to have admitted more of the next one than the store counts.
#[test]
fn a_refund_that_the_store_takes_off_a_later_window_is_told_of_that() {
    for (replayed, told_of_it) in [(false, 5), (true, 0)] {
        let mut bench = bench_of(2, "100/10s fixed");
        bench.used = 40;
        bench.hold(10);
        assert!(!bench.refund(9), "four go back to the lease, and five to the store");
        let refund = bench.calls().pop().expect("a refund");
        bench.settle_window(Micros::from_secs(10));
        (bench.used, bench.replayed) = (10, replayed);
        bench.grant(&Call { sent_at: bench.now, ..refund }, 5);
        bench.replayed = false;
        assert_eq!([(); 4].map(|()| bench.check(1)), [None; 4]);
        let call = bench.acquire();
        bench.grant(&call, 4);
        let of_it = reported(&mut bench).into_iter().find(|(at, ..)| *at == window(&bench));
        assert_eq!(of_it, Some((window(&bench), 4, told_of_it)));
    }
}

#[test]
fn what_a_window_came_to_is_told_three_times() {
    let mut bench = bench_of(2, "100/1s fixed");
    bench.hold(20);
    spend(&mut bench, 9);
    let over = window(&bench);
    bench.settle_window(SECOND);
    for _ in 0..3 {
        assert_eq!(reported(&mut bench), [(over, 13, 0)]);
    }
    assert_eq!(reported(&mut bench), []);
}

#[test]
fn what_peers_spent_denies_without_asking_and_the_store_is_asked_behind_it() {
    let mut bench = bench_of(3, "100/10s fixed");
    bench.hold(5);
    spend(&mut bench, 5);
    hear(&mut bench, PEER, 60);
    assert_eq!(bench.check(1), None, "69 of 100 are known: the store is asked");
    let call = bench.acquire();
    bench.grant(&call, 1);
    hear(&mut bench, OTHER, 30);
    assert_eq!(bench.check(1), Some(Verdict::Deny));
    assert_eq!(bench.last.map(|last| (last.source, last.remaining)), Some((Source::Prefilter, 0)));
    let call = bench.acquire();
    assert_eq!(bench.check(1), Some(Verdict::Deny));
    assert!(bench.try_acquire().is_none(), "it is asked once");
    bench.used = 100;
    bench.grant(&call, 0);
    assert_eq!(bench.check(1), Some(Verdict::Deny));
    assert_eq!(bench.last.map(|last| last.source), Some(Source::Lease), "now the store has said so itself");
}

/// The only answer was 40 ms under way, and by so much the store's clock may be behind.
#[test]
fn peers_deny_nobody_by_a_window_that_may_not_have_begun() {
    for (later, verdict) in [(30_000, None), (80_000, Some(Verdict::Deny))] {
        let mut bench = bench_of(3, "100/10s fixed");
        bench.advance(Micros(9_900_000));
        bench.check(1);
        let call = bench.acquire();
        bench.advance(Micros(40_000));
        bench.grant(&call, 1);
        let next = Timestamp(1_800_000_020_000_000);
        bench.advance(Micros(later));
        bench.shard.handle_usage(bench.now, PEER, &usage(next, 1_000));
        assert_eq!(bench.check(1), verdict, "{later} us later");
    }
}

#[test]
fn a_store_that_lends_refutes_what_peers_told_for_that_window() {
    let mut bench = bench_of(3, "100/10s fixed");
    bench.hold(5);
    spend(&mut bench, 5);
    hear(&mut bench, PEER, 1_000_000);
    assert_eq!(bench.check(1), Some(Verdict::Deny));
    let call = bench.acquire();
    bench.grant(&call, 2);
    assert_eq!([bench.check(1), bench.check(1)], [Some(Verdict::Allow); 2]);
    hear(&mut bench, PEER, 2_000_000);
    assert_eq!(bench.check(1), None, "the store is asked, whatever a peer says");
}

/// What a client takes back meanwhile stays here, so that by the time of the answer less than all is spent.
#[test]
fn a_store_that_lends_refutes_what_denied_a_check_before_tokens_were_taken_back() {
    for lends in [true, false] {
        let mut bench = bench_of(3, "100/10s fixed");
        bench.hold(5);
        spend(&mut bench, 5);
        hear(&mut bench, PEER, 91);
        assert_eq!(bench.check(1), Some(Verdict::Deny), "nine were spent here");
        let call = bench.acquire();
        assert!(bench.refund(3));
        bench.used = 90;
        bench.grant(&call, if lends { 2 } else { 0 });
        for _ in 0..if lends { 5 } else { 3 } {
            assert_eq!(bench.check(1), Some(Verdict::Allow));
        }
        hear(&mut bench, PEER, 100);
        let denied = bench.check(1).map(|_| bench.last.expect("it is decided").source);
        assert_eq!(denied, Some(Source::Prefilter).filter(|_| !lends), "{lends}");
    }
}

#[test]
fn who_has_had_no_answer_of_the_store_knows_of_no_window_that_peers_have_spent() {
    let mut bench = bench_of(3, "100/10s fixed");
    assert_eq!(bench.check(1), None);
    hear_of(&mut bench, 100);
    assert_eq!(bench.check(1), None, "by its own clock, which may be ahead or behind, the window is spent");
    let call = bench.acquire();
    bench.used = 100;
    bench.grant(&call, 0);
    assert_eq!(bench.check(1), Some(Verdict::Deny));
}

/// Without an answer it goes by its own clock, which is ten windows ahead, and remembers as many windows as it can of those that are
/// at hand by that.
#[test]
fn windows_of_a_clock_that_was_ahead_leave_room_for_those_at_hand() {
    let mut bench = in_fleet(Bench::with_loss("100/100ms fixed", OnStoreLoss::Deny), 3);
    assert_eq!(bench.check(1), None);
    let (lost, since) = (bench.acquire(), bench.now);
    bench.fail(&lost, StoreError::Away { since });
    for _ in 0..3 {
        for windows in 0..=2 {
            let window = bench.store_now() + Micros(windows * 100_000);
            bench.shard.handle_usage(bench.now, PEER, &usage(window, 1));
            bench.shard.handle_usage(bench.now, PEER, &usage(window - Micros(200_000), 1));
        }
        bench.advance(Micros(100_000));
    }
    assert_eq!(bench.check(1), Some(Verdict::Deny), "the store is away");
    let (call, now) = (bench.acquire(), bench.store_now() - Micros(1_000_000));
    bench.used = 20;
    let window = now + Micros(100_000);
    bench.answer_as_of(&call, 20, now, window);
    assert_eq!([bench.check(1), bench.check(1)], [Some(Verdict::Allow); 2]);
    assert_eq!(reported(&mut bench), [(window, 2, 0)]);
    bench.advance(Micros(100_000));
    assert_eq!(reported(&mut bench), [(window, 2, 0)], "once more, when it is over");
}

#[test]
fn peers_who_confirm_that_all_is_spent_spare_the_store_a_question() {
    let probes = |spent: u64| {
        let mut bench = bench_of(3, "100/1s fixed");
        bench.hold(5);
        spend(&mut bench, 5);
        bench.used = 100;
        let call = bench.check(1).is_none().then(|| bench.acquire()).expect("the store is asked");
        bench.grant(&call, 0);
        hear(&mut bench, PEER, spent);
        (0..40)
            .filter(|_| {
                bench.settle_window(Micros(20_000));
                bench.check(1);
                let probe = bench.try_acquire();
                probe.iter().for_each(|probe| bench.grant(probe, 0));
                probe.is_some()
            })
            .count()
    };
    assert_eq!((probes(50), probes(95)), (3, 0));
}

/// A peer tells that it admitted so much, and that the store began that epoch when it had lost the key.
fn hear_of_a_loss(bench: &mut Bench, admitted: u64, epoch: u64) {
    let usage = Usage { epoch, ..usage(window(bench), admitted) };
    bench.shard.handle_usage(bench.now, PEER, &usage);
    bench.advance(Micros::ZERO);
}

/// Epochs that are told now.
fn losses(bench: &mut Bench) -> Vec<u64> {
    let mut usage = Vec::new();
    bench.shard.drain_usage(bench.now, usize::MAX, &mut usage);
    usage.iter().map(|report| report.usage.epoch).collect()
}

#[test]
fn whoever_finds_the_stores_count_lost_tells_so_and_leases_when_all_have_told_theirs() {
    let mut bench = bench_of(3, "100/10s fixed");
    bench.hold(20);
    spend(&mut bench, 20);
    assert_eq!(losses(&mut bench), [0]);
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    (bench.epoch, bench.used) = (6, 24);
    bench.grant(&call, 0);
    let denied = bench.last.unwrap();
    assert_eq!((denied.verdict, denied.source), (Verdict::Deny, Source::Share));
    assert!(denied.retry_after.is_some_and(|wait| wait <= Micros(400_000)), "{denied:?}");
    assert_eq!(losses(&mut bench), [6]);
    for _ in 0..3 {
        assert_eq!(bench.check(1), Some(Verdict::Deny));
        assert!(bench.try_acquire().is_none(), "others would be lent what peers hold");
        bench.advance(Micros(100_000));
    }
    bench.advance(Micros(100_000));
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.grant(&call, 5);
    assert_eq!(bench.last.map(|last| last.verdict), Some(Verdict::Allow));
}

/// A round of gossip may have room for one of many keys. Peers whose tokens the store lends again must not wait for all others.
#[test]
fn what_the_store_has_lost_is_told_before_keys_that_have_waited_longer() {
    let mut bench = bench_of(3, "100/10s fixed");
    for key in 1..9 {
        assert_eq!(bench.check_key(key, 4), None);
        let call = bench.acquire();
        bench.grant(&call, 4);
    }
    bench.hold(20);
    spend(&mut bench, 20);
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    (bench.epoch, bench.used) = (6, 24);
    bench.grant(&call, 0);
    let mut usage = Vec::new();
    bench.shard.drain_losses(bench.now, 4, &mut usage);
    let of_key_0 =
        |told: &[Report]| told.iter().map(|told| told.usage.digest == Digest::of("test", &[0])).collect::<Vec<_>>();
    assert_eq!((of_key_0(&usage), usage[0].usage.epoch), (vec![true], 6));
    assert!(bench.refund(1));
    usage.clear();
    bench.shard.drain_usage(bench.now, 4, &mut usage);
    assert_eq!(of_key_0(&usage), [true, false, false, false], "and the others have the room that is left");
}

#[test]
fn whoever_hears_of_a_loss_tells_the_store_what_it_was_lent_once_a_second() {
    let mut bench = bench_of(3, "100/10s fixed");
    bench.hold(5);
    spend(&mut bench, 2);
    let epoch = bench.epoch;
    for (told, asks) in [(epoch, false), (0, false), (6, true), (7, false)] {
        hear_of_a_loss(&mut bench, 20, told);
        let call = bench.try_acquire();
        assert_eq!(call.is_some(), asks, "{told}");
        if let Some(call) = call {
            let order = bench.order(&call);
            assert_eq!(order.known[0].used, 9);
            assert_eq!(order.want, 0, "a peer's word leases nothing that nobody asks for");
            bench.epoch = 6;
            bench.grant(&call, 0);
        }
    }
    bench.advance(SECOND);
    hear_of_a_loss(&mut bench, 20, 7);
    assert!(bench.try_acquire().is_some(), "a second later it may be news");
}

#[test]
fn a_loss_that_is_told_while_the_store_is_asked_is_looked_into_afterwards() {
    for (told, again) in [(6, true), (5, false)] {
        let mut bench = bench_of(3, "100/10s fixed");
        bench.hold(5);
        spend(&mut bench, 5);
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        hear_of_a_loss(&mut bench, 20, told);
        assert!(bench.try_acquire().is_none());
        bench.grant(&call, 20);
        assert_eq!(bench.try_acquire().is_some(), again);
    }
}

#[test]
fn whoever_holds_nothing_of_a_lost_window_is_lent_at_once() {
    let mut bench = bench_of(3, "100/1s fixed");
    bench.hold(5);
    bench.settle_window(SECOND + SECOND);
    (bench.epoch, bench.used) = (6, 0);
    assert_eq!(bench.check(1), None, "the store forgets windows that are over");
    let call = bench.acquire();
    bench.grant(&call, 1);
    assert_eq!(bench.last.map(|last| (last.verdict, last.source)), Some((Verdict::Allow, Source::Store)));
}

/// A key that nobody asks for the store drops, and it begins anew under another epoch. A node that still knew the old one took
/// that for a loss, and denied for two rounds of gossip what the store had to lend.
#[test]
fn a_key_that_came_to_its_end_in_the_store_is_not_lost() {
    for (rests, lost) in [(Micros(4_200_000), 0), (Micros(3_900_000), 1)] {
        let mut bench = bench_of(3, "5/2s fixed");
        let start = bench.now;
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        bench.used = 4;
        bench.grant(&call, 1);
        bench.advance(Micros(1_500_000));
        assert_eq!(
            bench.check(1),
            Some(Verdict::Deny),
            "the key is remembered longer by that, and no call is answered"
        );
        let call = bench.acquire();
        bench.fail(&call, StoreError::Busy { wait: Micros(1_000) });
        bench.advance(Micros(rests.0 - 1_500_000));
        let now = bench.now.since(start).0;
        let usage = usage(Timestamp(1_800_000_000_000_000 + now / 2_000_000 * 2_000_000 + 2_000_000), 3);
        bench.shard.handle_usage(bench.now, PEER, &usage);
        assert_eq!(bench.check(1), None);
        let call = bench.acquire();
        (bench.epoch, bench.used) = (6, 3);
        bench.grant(&call, 1);
        assert_eq!(bench.shard.stats().lost_epochs, lost, "after {rests:?}");
        assert_eq!(bench.check(1), if lost > 0 { Some(Verdict::Deny) } else { None }, "after {rests:?}");
    }
}

#[test]
fn what_is_told_of_windows_long_past_or_far_ahead_is_dropped() {
    let mut bench = bench_of(3, "100/10s fixed");
    bench.hold(5);
    let at = window(&bench);
    for away in 3..10 {
        bench.shard.handle_usage(bench.now, PEER, &usage(at + Micros(away * 10_000_000), 100));
        bench.shard.handle_usage(bench.now, PEER, &usage(at - Micros(away * 10_000_000), 100));
    }
    hear(&mut bench, PEER, 95);
    spend(&mut bench, 5);
    assert_eq!(bench.check(1), Some(Verdict::Deny), "what is told of this one has its place");
}

#[test]
fn after_a_loss_of_data_what_peers_told_binds_even_what_is_held() {
    let mut bench = bench_of(3, "100/10s fixed");
    bench.hold(5);
    bench.spend_to_low_water();
    hear(&mut bench, PEER, 80);
    let call = bench.acquire();
    (bench.epoch, bench.used) = (6, 0);
    bench.grant(&call, 40);
    let admitted = (0..100).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert!(admitted <= 20, "{admitted} after 80 of peers");
    assert!(bench.held() > 0);
}

#[test]
fn a_bucket_beside_the_window_unbinds_nothing() {
    let mut bench = bench_of(3, "100/10s fixed");
    let limits = ["100/10s fixed", "1000/1s burst 1000"].map(|text| Limit::parse(text).expect("a limit"));
    bench.rule = Arc::new(Rule::of("test", &limits));
    bench.hold(5);
    bench.spend_to_low_water();
    hear_of(&mut bench, 90);
    let call = bench.acquire();
    (bench.epoch, bench.used) = (6, 0);
    bench.grant(&call, 40);
    let admitted = (0..100).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert!(admitted <= 10, "{admitted} after 90 of peers");
}

/// What one of two nodes that live, of so many that did, admits in the window after it lost the store.
fn admitted_on_share(bench: &mut Bench, largest: u32) -> usize {
    let view = FleetView { live: 2, largest, has_looked: true, is_steady: largest == 2, ..FleetView::UNKNOWN };
    bench.shard.handle_fleet(FleetView { heard: Some(bench.now), ..view });
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now });
    bench.advance(SECOND);
    bench.shard.handle_fleet(FleetView { heard: Some(bench.now), ..view });
    (0..200).filter(|_| bench.check(1) == Some(Verdict::Allow)).count()
}

#[test]
fn shares_follow_what_each_node_admitted_when_everybody_was_heard() {
    // Of `lost` windows the peer's report that comes after they were over is lost.
    let share = |largest: u32, lost: std::ops::Range<u32>| {
        let mut bench = bench_of(2, "100/1s fixed");
        // What comes a second later comes 0.2 s after the end of the window, and not just then.
        bench.advance(Micros(200_000));
        // Four windows in which this node admitted 44 and its peer 50.
        for number in 0..4 {
            bench.used = 50;
            bench.hold(40);
            spend(&mut bench, 40);
            let told = usage(window(&bench), 50);
            bench.shard.handle_usage(bench.now, PEER, &told);
            bench.used = 0;
            bench.advance(SECOND);
            if !lost.contains(&number) {
                bench.shard.handle_usage(bench.now, PEER, &told);
            }
        }
        admitted_on_share(&mut bench, largest)
    };
    // 95 % of (95 % of 44 and of half of what nobody used, or of 44; and 5 % for all alike). The store counts this node alone, but a peer has
    // told of the key, too, and has the other half.
    assert_eq!((share(2, 0..0), share(3, 0..0)), (44, 41));
    // The peer may have admitted more in a window than it had told before it was over. That counts as full: all of them, or one of three.
    assert_eq!((share(2, 0..4), share(2, 2..3)), (42, 43));
}

/// A share admitted ten of a window from the first request. The store is back, has lent nothing yet and has told of a window of
/// its own; the call charges those ten and a check that waits.
fn paying_for_its_share() -> (Bench, Call) {
    let mut bench = bench_of(2, "100/10s fixed from-first");
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    bench.fail(&call, StoreError::Away { since: bench.now - Micros::from_secs(10) });
    assert_eq!(bench.replies(), [Verdict::Allow]);
    for _ in 0..9 {
        assert_eq!(bench.check(1), Some(Verdict::Allow));
    }
    assert_eq!(bench.last.map(|last| last.source), Some(Source::Share));
    let call = bench.acquire();
    bench.used = 50;
    bench.grant(&call, 0);
    assert_eq!(reported(&mut bench), []);
    assert_eq!(bench.check(1), None);
    let call = bench.acquire();
    (bench, call)
}

/// Its part was none while it did not know the fleet, and stayed none for as long as the loss lasted.
#[test]
fn a_bucket_that_was_asked_for_before_its_node_knew_the_fleet_has_its_part_from_then_on() {
    let mut bench = bench_of(2, "100/1s");
    let view = FleetView { live: 2, largest: 2, ..FleetView::UNKNOWN };
    bench.shard.handle_fleet(view);
    bench.check(1);
    let mut call = Some(bench.acquire());
    let mut later = |bench: &mut Bench| {
        if let Some(call) = call.take() {
            bench.fail(&call, StoreError::Away { since: bench.now });
        }
        bench.advance(Micros(250_000));
        let admitted = (0..200).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
        assert_eq!(bench.last.unwrap().source, Source::Share);
        call = bench.try_acquire();
        admitted
    };
    let admitted = [(); 8].map(|()| later(&mut bench));
    assert_eq!(admitted, [0; 8], "it may be one of a thousand nodes");
    bench.shard.handle_fleet(FleetView { has_looked: true, heard: Some(bench.now), ..view });
    let admitted = [(); 8].map(|()| later(&mut bench));
    assert!(
        admitted[1..].iter().all(|admitted| (11..=12).contains(admitted)),
        "95 % of 100 a second in two: {admitted:?}"
    );
}

/// Of which window from the first request a share is the store says when it is paid. It was told of a window that the store
/// had opened meanwhile, and peers denied checks by that of which the store had tokens left.
#[test]
fn what_a_share_admitted_is_told_of_a_window_from_the_first_request_once_it_is_paid() {
    let (mut bench, call) = paying_for_its_share();
    assert_eq!(bench.order(&call).need, 11);
    bench.grant(&call, 11);
    assert_eq!(reported(&mut bench), [(window(&bench), 11, 0)]);
}

/// The store takes back a refund of a share that it was charged for, and goes on counting the rest as lent to the node. The
/// node told the refund twice, as admitted, too, so that peers went on denying by tokens that were free again.
#[test]
fn what_the_store_takes_back_is_not_told_as_admitted_once_more() {
    let (mut bench, call) = paying_for_its_share();
    bench.grant(&call, 11);
    assert_eq!(reported(&mut bench), [(window(&bench), 11, 0)]);
    assert!(!bench.refund(4), "the store is asked to take it back");
    bench.settle_window(SECOND + SECOND);
    assert_eq!(reported(&mut bench), [(window(&bench), 11, 4)]);
}

#[test]
fn what_lies_idle_goes_back_when_peers_spend() {
    for (peer, gone) in [(450, 0), (650, 100)] {
        let mut bench = bench_of(2, "1000/60s fixed");
        bench.advance(Micros::from_secs(30));
        bench.hold(100);
        bench.advance(Micros::from_secs(10));
        assert!(bench.calls().is_empty(), "there is plenty");
        hear(&mut bench, PEER, peer);
        bench.advance(Micros::from_secs(10));
        // Sent once more each time that no answer comes.
        let back = bench.calls().first().map_or(0, |call| match call.op {
            Op::Return { amount, .. } => amount,
            op => panic!("{op:?}"),
        });
        assert_eq!(back, gone, "after {peer} of a peer");
    }
}

#[test]
fn a_share_follows_the_mean_of_three_windows() {
    let mut bench = bench_of(2, "100/1s fixed");
    for (own, peer) in [(60_u64, 40), (30, 70), (60, 40), (30, 70)] {
        bench.used = peer;
        bench.hold(own - 4);
        spend(&mut bench, own - 4);
        hear(&mut bench, PEER, peer);
        bench.used = 0;
        bench.advance(SECOND);
    }
    // 95 % of (95 % of 40, the lower of two means, and 5 % for all alike).
    assert_eq!(admitted_on_share(&mut bench, 2), 38);
}

/// Others that were asked noticed the loss at once. Who was not took its part by windows that no other had looked at, and all
/// of them admitted more than 95 % of the limit.
#[test]
fn who_notices_a_loss_late_goes_by_the_windows_before_its_last_answer_too() {
    let share = |is_late: bool| {
        let mut bench = bench_of(2, "100/1s fixed");
        for own in [5, 5, 5, 80] {
            bench.used = 0;
            bench.hold(own - 4);
            spend(&mut bench, own - 4);
            bench.used = 0;
            bench.advance(SECOND);
        }
        if is_late {
            bench.settle_window(Micros(995_000));
        }
        admitted_on_share(&mut bench, 3)
    };
    // 95 % of (95 % of 5 and 5 % for three alike).
    assert_eq!((share(false), share(true)), (6, 6));
}
