//! What a shard asks of its peers before it asks the store, or when it cannot, and what it makes of what they say. On
//! virtual time, against a store and peers that the test plays by hand.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::ask::{Answer, Ask, Loan, Refusal, Terms};
use rationd::core::call::{Acquire, Counter, Op, StoreError, Window};
use rationd::core::decision::{Source, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::owners::{Candidate, KeyOwner, OwnerName, name_hash};
use rationd::core::policy::Rule;
use rationd::core::shard::{AskOutcome, Request};
use rationd::core::time::{Micros, Timestamp};
use rationd::core::usage::{Count, PeerIndex, Report, Usage};

use support::bench::{Bench, SECOND};

const MINUTE: Micros = Micros(60_000_000);

fn name(name: &str) -> OwnerName {
    OwnerName { hash: name_hash(name), is_always: false }
}

/// A bench in a fleet of so many nodes that all may own keys.
fn bench_of(live: u32, limit: &str) -> Bench {
    let mut bench = Bench::new(limit);
    join(&mut bench, live);
    bench
}

fn fleet_of(live: u32, bench: &Bench) -> FleetView {
    FleetView { live, largest: live, has_looked: true, is_steady: true, heard: Some(bench.now), ..FleetView::UNKNOWN }
}

fn join(bench: &mut Bench, live: u32) {
    bench.shard.handle_fleet(fleet_of(live, bench));
    let peers = (1..live).map(|peer| Candidate { peer: PeerIndex(peer), name: name(&format!("peer-{peer}")) });
    bench.shard.handle_owners(name("own"), &peers.collect::<Vec<_>>());
}

/// Who owns a key.
fn owner(bench: &Bench, key: u8) -> Option<KeyOwner> {
    let (rule, digest) = (bench.rule.clone(), Digest::of("test", &[key]));
    bench.shard.owner(bench.now, &Request { rule: &rule, digest, key: &[key], cost: 1, peek: false })
}

fn is_of_peer(bench: &Bench, key: u8) -> bool {
    owner(bench, key).is_some_and(|owner| owner != KeyOwner::This)
}

/// A key that this node owns, and one that a peer owns.
fn owned(bench: &Bench, wanted: fn(KeyOwner) -> bool) -> u8 {
    (0..=u8::MAX).find(|key| owner(bench, *key).is_some_and(wanted)).expect("each owns some")
}

/// What a peer lends by that clock, of a window that has this end.
fn loan(tokens: u64, clock: Timestamp, ends: Timestamp) -> Loan {
    let mut counters = [Counter::default(); MAX_LIMITS];
    counters[0] = Counter { used: tokens, prev: 0, at: ends };
    let lasts = Some(ends.since(clock)).filter(|_| ends.0 > 0);
    Loan { tokens, lasts, clock: [clock, clock], epoch: 5, counters, wait: Micros::ZERO, aside: false }
}

/// The store is lost: the connection broke a while ago.
fn lose(bench: &mut Bench) {
    let (since, calls) = (bench.now - SECOND, bench.calls());
    calls.iter().for_each(|call| bench.fail(call, StoreError::Away { since }));
}

/// A peer asks for so many tokens of a key, and waits for 5 ms; `None`: it has to wait for the store.
fn asked(bench: &mut Bench, key: u8, want: u64) -> Option<Answer> {
    let rule = bench.rule.clone();
    let terms = Terms { rule: rule.fingerprint(), want, least: 1, patience: Micros(5_000), aside: false };
    let request = Request { rule: &rule, digest: Digest::of("test", &[key]), key: &[key], cost: want, peek: false };
    let outcome = bench.shard.handle_ask(bench.now, request, &terms);
    bench.advance(Micros(0));
    if let AskOutcome::Answered(answer) = outcome { Some(answer) } else { None }
}

#[test]
fn an_owner_leases_a_new_key_for_each_node_of_its_fleet() {
    let mut bench = bench_of(20, "100/1m fixed");
    let key = owned(&bench, |owner| owner == KeyOwner::This);
    assert_eq!(bench.check_key(key, 1), None);
    let call = bench.acquire();
    let order = bench.order(&call);
    assert_eq!((order.need, order.want), (1, 20));
}

/// Of keys by Zipf's law most are asked for once: leases ahead of the next window were a fifth of all calls.
#[test]
fn an_owner_leases_nothing_ahead_of_a_key_that_was_asked_for_once() {
    let mut bench = bench_of(20, "100/1s fixed");
    let key = owned(&bench, |owner| owner == KeyOwner::This);
    bench.advance(Micros(600_000));
    assert_eq!(bench.check_key(key, 1), None);
    let call = bench.acquire();
    bench.grant(&call, 20);
    bench.advance(Micros(399_000));
    assert!(bench.try_acquire().is_none());
}

#[test]
fn an_owner_leases_for_one_what_others_would_lack_or_what_would_have_to_go_back() {
    for (limit, want) in [("5/1m fixed", 3), ("100/1m sliding", 1), ("100/1s", 1)] {
        let mut bench = bench_of(20, limit);
        let key = owned(&bench, |owner| owner == KeyOwner::This);
        assert_eq!(bench.check_key(key, 1), None);
        let call = bench.acquire();
        assert_eq!(bench.order(&call).want, want, "{limit}");
    }
}

/// Whoever wants some asks the owner, so a second call a window, for the tokens that it left in the store, would serve nobody else. Of a limit with
/// more tokens, or of which the store has counted another lessee, some are left.
#[test]
fn an_owner_that_leases_for_all_leases_all_of_a_few_tokens() {
    for (limit, nodes, want) in [("5/4s fixed", 1, 5), ("5/4s fixed", 2, 3), ("10/4s fixed", 1, 6)] {
        let mut bench = bench_of(20, limit);
        bench.nodes = nodes;
        let key = owned(&bench, |owner| owner == KeyOwner::This);
        let mut asked = 0;
        for _ in 0..60 {
            bench.check_key(key, 1);
            for call in bench.calls() {
                if let Op::Acquire(Acquire { want, window: Window::Current, .. }) = call.op {
                    asked = asked.max(want);
                }
                bench.used = 0;
                bench.grant(&call, 1);
            }
            bench.advance(Micros(200_000));
        }
        assert_eq!(asked, want, "{limit}, {nodes}");
    }
}

#[test]
fn a_cold_key_of_a_peer_is_asked_for_there_and_not_at_the_store() {
    let mut bench = bench_of(20, "100/1m fixed");
    let key = owned(&bench, |owner| owner != KeyOwner::This);
    assert_eq!(bench.check_key(key, 1), None);
    let ask = bench.try_ask().expect("a peer is asked");
    assert!(bench.try_acquire().is_none());
    let now = bench.store_time();
    bench.answer(&ask, &Ok(loan(1, now, Timestamp(now.0 + 1_000_000))));
    assert_eq!(bench.replies(), [Verdict::Allow]);
}

/// The answer has taken 3 ms, and the peer lends nothing on the last 3 of the time for which the next one is awaited: it would come too late. Under
/// two limits it is told of all the time, as it lends nothing that ends within it.
#[test]
fn a_peer_is_told_for_how_long_it_may_answer() {
    for (limits, way) in [(&["100/1m fixed"][..], 3_000), (&["100/1m fixed", "1000/1h fixed"], 0)] {
        let mut bench = bench_of(2, limits[0]);
        let limits: Vec<_> = limits.iter().map(|limit| Limit::parse(limit).expect(limit)).collect();
        bench.rule = Arc::new(Rule::of("test", &limits));
        let keys: Vec<u8> = (0..=u8::MAX).filter(|key| is_of_peer(&bench, *key)).take(2).collect();
        let told = keys.into_iter().map(|key| {
            assert_eq!(bench.check_key(key, 1), None);
            let ask = bench.try_ask().expect("a peer is asked");
            bench.advance(Micros(3_000));
            bench.answer(&ask, &Err(Refusal::Busy));
            ask.awaited.0 - ask.terms.patience.0
        });
        assert_eq!(told.collect::<Vec<_>>(), [0, way], "{limits:?}");
    }
}

#[test]
fn who_comes_back_when_told_is_not_denied_because_a_peer_waits_with_its_next_call() {
    let mut bench = bench_of(3, "10/1m burst 10");
    let key = owned(&bench, |owner| owner != KeyOwner::This);
    assert_eq!(bench.check_key(key, 1), None);
    let ask = bench.try_ask().expect("a peer is asked");
    bench.answer(&ask, &Err(Refusal::Busy));
    // The store has no token, and the client is told when it will have one.
    let call = bench.acquire();
    bench.used = 10;
    bench.grant(&call, 0);
    assert_eq!(bench.replies(), [Verdict::Deny]);
    let wait = bench.last.and_then(|last| last.retry_after).expect("a denial says how long to wait");
    bench.advance(wait);
    assert_eq!(bench.check_key(key, 1), None);
    let ask = bench.try_ask().expect("the peer is asked again");
    // Its counters show a full bucket; but it asks the store for all nodes, and not yet.
    let now = bench.store_time();
    bench.answer(&ask, &Ok(Loan { wait: Micros(300_000), lasts: None, ..loan(0, now, now) }));
    assert_eq!(bench.replies(), [], "the client waited for as long as it was told");
    let call = bench.acquire();
    assert_eq!(bench.order(&call).need, 1, "so the store is asked");
}

/// The store had two tokens, and has three by the time that a client was told. The peer has last heard of the store when it had fewer, so
/// who has waited as long is not denied by that; who comes before is.
#[test]
fn who_comes_back_when_told_is_not_denied_by_a_peer_that_knows_less() {
    for (early, is_denied) in [(Micros::ZERO, false), (Micros(300_000), true)] {
        let mut bench = bench_of(3, "10/4s sliding");
        let key = owned(&bench, |owner| owner != KeyOwner::This);
        assert_eq!(bench.check_key(key, 3), None);
        let ask = bench.try_ask().expect("a peer is asked");
        bench.answer(&ask, &Err(Refusal::Busy));
        let call = bench.acquire();
        bench.used = 8;
        bench.grant(&call, 0);
        assert_eq!(bench.replies(), [Verdict::Deny]);
        let wait = bench.last.and_then(|last| last.retry_after).expect("a denial says how long to wait");
        bench.advance(Micros(wait.0 - early.0));
        assert_eq!(bench.check_key(key, if is_denied { 1 } else { 3 }), None);
        let ask = bench.try_ask().expect("the peer is asked again");
        let now = bench.store_time();
        let at = Timestamp(now.0 / 4_000_000 * 4_000_000);
        let counters = std::array::from_fn(|_| Counter { used: 10, prev: 10, at });
        bench.answer(&ask, &Ok(Loan { wait: SECOND, lasts: None, counters, ..loan(0, now, at) }));
        let denied: &[Verdict] = if is_denied { &[Verdict::Deny] } else { &[] };
        assert_eq!(bench.replies(), denied, "{:?}", bench.last);
        assert_eq!(bench.try_acquire().is_some(), !is_denied, "the store is asked");
    }
}

/// What trickles in while all pause can be lent as long as the window lasts, and is lost when it ends.
#[test]
fn a_peer_that_has_nothing_of_a_sliding_window_is_asked_again_before_that_ends() {
    let mut bench = bench_of(8, "100/1s sliding");
    let key = owned(&bench, |owner| owner != KeyOwner::This);
    let begins = bench.store_time();
    bench.advance(Micros(800_000));
    assert_eq!(bench.check_key(key, 1), None);
    let ask = bench.try_ask().expect("a peer is asked");
    let none = loan(0, bench.store_time(), Timestamp(0));
    let counters = std::array::from_fn(|_| Counter { used: 40, prev: 97, at: begins });
    bench.answer(&ask, &Ok(Loan { wait: Micros(400_000), lasts: None, counters, ..none }));
    assert_eq!(bench.replies(), [Verdict::Deny]);
    bench.advance(Micros(40_000));
    assert_eq!(bench.check_key(key, 1), Some(Verdict::Deny), "the peer keeps for all what its counters show");
    bench.advance(Micros(159_900));
    assert_eq!(bench.check_key(key, 1), None, "the window is about to end");
    assert!(bench.try_ask().is_some());
}

#[test]
fn what_a_share_has_admitted_is_paid_from_what_peers_lend() {
    for limit in ["100/1s", "100/1m fixed"] {
        let mut bench = Bench::new(limit);
        // Alone, and without its store since before this window, it has a share.
        bench.settle_window(MINUTE);
        let mut admitted = 0;
        for _ in 0..50 {
            let verdict = bench.check(1);
            lose(&mut bench);
            let verdict = verdict.or(bench.replies().pop());
            admitted += u64::from(verdict == Some(Verdict::Allow));
        }
        assert!(admitted > 10, "{limit}: {admitted}");
        join(&mut bench, 3);
        assert_eq!(bench.check(1), None, "{limit}");
        let ask = bench.try_ask().expect("a peer is asked");
        assert_eq!((ask.terms.want, ask.terms.least), (admitted + 1, 1), "{limit}");
        // It lends half of that: all of it is owed.
        let now = bench.store_time();
        let ends =
            if limit.contains("fixed") { Timestamp(now.0 / MINUTE.0 * MINUTE.0 + MINUTE.0) } else { Timestamp(0) };
        let half = admitted / 2;
        bench.answer(&ask, &Ok(loan(half, now, ends)));
        assert_eq!(bench.replies(), [], "{limit}: what was lent is owed");
        let ask = bench.try_ask().expect("a peer is asked for the rest");
        assert_eq!(ask.terms.want, admitted - half + 1, "{limit}");
        bench.answer(&ask, &Ok(loan(ask.terms.want, now, ends)));
        assert_eq!(bench.replies(), [Verdict::Allow], "{limit}");
        assert_eq!(bench.last.map(|last| last.source), Some(Source::Peer), "{limit}");
    }
}

#[test]
fn no_check_waits_for_a_peer_that_has_no_store_but_one_pays_for_the_share_when_it_has_one_again() {
    let mut bench = Bench::new("100/1m fixed");
    // Alone, and without its store since before this window, it has a share.
    bench.settle_window(MINUTE);
    bench.check(1);
    lose(&mut bench);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    join(&mut bench, 2);
    assert_eq!(bench.check(1), None, "it waits for the peer");
    let ask = bench.try_ask().expect("the peer is asked");
    bench.answer(&ask, &Err(Refusal::NoStore));
    assert_eq!(bench.replies(), [Verdict::Allow]);
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert!(bench.try_ask().is_none(), "the peer has just said that it has no store");
    bench.advance(SECOND);
    lose(&mut bench);
    assert_eq!(bench.check(1), Some(Verdict::Allow), "it does not wait");
    let ask = bench.try_ask().expect("the peer is asked beside it");
    assert_eq!((ask.terms.want, ask.terms.least), (4, 1), "for what the share has admitted");
    assert_eq!(bench.check(1), Some(Verdict::Allow), "nor does the next");
    let now = bench.store_time();
    let ends = Timestamp(now.0 / MINUTE.0 * MINUTE.0 + MINUTE.0);
    bench.answer(&ask, &Ok(loan(4, now, ends)));
    assert_eq!(bench.check(1), None, "it waits for a peer that lends");
    let ask = bench.try_ask().expect("the peer is asked");
    assert_eq!(ask.terms.want, 2, "for the check, and for what is owed yet");
}

#[test]
fn what_a_peer_lends_counts_where_the_store_has_begun_another_epoch_meanwhile() {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    join(&mut bench, 2);
    bench.advance(SECOND);
    assert_eq!(bench.check(1), None);
    lose(&mut bench);
    let ask = bench.try_ask().expect("the peer is asked");
    // Nobody asked for the key for a while, so the store dropped it, and has lent of it to the peer since.
    let now = bench.store_time();
    let lent = Loan { epoch: 77, ..loan(1, now, Timestamp(now.0 + 900_000)) };
    bench.answer(&ask, &Ok(lent));
    assert_eq!(bench.replies(), [Verdict::Allow]);
    assert_eq!(bench.last.map(|last| last.source), Some(Source::Peer));
}

/// Lies about the clock, each as far ahead as brings the end of another window near, and lends nothing.
fn lie(bench: &mut Bench, ask: &Ask, windows: u64) {
    let now = bench.store_time();
    let ends = Timestamp(now.0 / MINUTE.0 * MINUTE.0 + windows * MINUTE.0);
    bench.answer(ask, &Ok(loan(0, Timestamp(ends.0 - 1_000), ends)));
}

#[test]
fn a_peer_that_lies_about_the_clock_opens_no_window_of_a_share() {
    let mut bench = Bench::new("1000/1m fixed");
    bench.check(1);
    let call = bench.acquire();
    bench.grant(&call, 1);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    join(&mut bench, 2);
    let window = |bench: &Bench| bench.store_time().0 / MINUTE.0;
    let (mut admitted, mut lies) = (BTreeMap::new(), 0);
    for windows in 1..=120 {
        let mut verdicts = Vec::new();
        // A lie with the first answer, and then nothing for a second, in which the node is on its share.
        let mut lied = false;
        for _ in 0..14 {
            verdicts.push(bench.check(1));
            lose(&mut bench);
            for _ in 0..20 {
                for ask in bench.asks() {
                    if std::mem::replace(&mut lied, true) {
                        bench.answer(&ask, &Err(Refusal::NoStore));
                    } else {
                        lies += 1;
                        lie(&mut bench, &ask, windows);
                    }
                }
                lose(&mut bench);
            }
            bench.advance(Micros(10_000));
        }
        verdicts.extend(bench.replies().into_iter().map(Some));
        let count = verdicts.into_iter().filter(|verdict| *verdict == Some(Verdict::Allow)).count();
        *admitted.entry(window(&bench)).or_insert(0) += count;
        bench.advance(SECOND);
        lose(&mut bench);
    }
    assert!(lies > 20, "{lies}");
    // A node that has seen no whole window has a fortieth of the limit, less 5 %.
    assert!(admitted.values().all(|admitted| *admitted <= 25), "{admitted:?}");
}

/// A node tells a store that has lost a key what it was lent, and its peers do so within two rounds of gossip. Until then it goes by its
/// share. A peer without a share leases again after that, and a node that owed for its share kept to that for a second more, as after an
/// outage: its share and what the peer was lent were more than the limit.
#[test]
fn who_owes_for_its_share_when_peers_have_restored_a_key_leases_as_soon_as_they() {
    let mut bench = Bench::new("100/1s sliding");
    bench.settle_window(SECOND);
    // It has used 40 of each window, and 1 of this one.
    for used in [40, 40, 40, 40, 40, 1] {
        bench.advance(SECOND);
        bench.used = 0;
        bench.shard.handle_fleet(FleetView { round: Micros(100_000), ..fleet_of(2, &bench) });
        bench.check(used);
        let call = bench.acquire();
        bench.grant(&call, used);
        assert_eq!(bench.replies(), [Verdict::Allow]);
    }
    // The store has lost that in the midst of the window.
    bench.advance(Micros(600_000));
    bench.check(1);
    let call = bench.acquire();
    bench.epoch = 99;
    bench.grant(&call, 0);
    assert_eq!(bench.replies(), [Verdict::Deny]);
    // In the last quarter of it this node has a share.
    bench.advance(Micros(151_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    assert_eq!(bench.last.map(|last| last.source), Some(Source::Share));
    assert!(bench.try_acquire().is_none(), "its peers have not had their time");
    // They have, and it pays for its share.
    bench.advance(Micros(50_000));
    bench.check(1);
    let call = bench.acquire();
    let need = bench.order(&call).need;
    bench.grant(&call, need);
    bench.replies();
    // When nothing is left of that, it asks the store for more.
    let held = std::iter::repeat_with(|| bench.check(1)).take_while(|verdict| *verdict == Some(Verdict::Allow)).count();
    assert!(bench.try_acquire().is_some(), "{held} of {need}: {:?}", bench.last);
}

/// A peer that is refused asks another one, for all keys and for a second. The next one knows nothing of the key, nor does the store:
/// fifty nodes that shared 10,000 keys of `4/4s` admitted eight of one where the store lost its data.
#[test]
fn an_owner_lends_what_it_holds_while_nodes_tell_the_store_what_it_has_lost_and_then_says_how_long_they_do() {
    let mut bench = bench_of(3, "100/1m fixed");
    let key = owned(&bench, |owner| owner == KeyOwner::This);
    assert_eq!(bench.check_key(key, 1), None);
    let call = bench.acquire();
    bench.grant(&call, 4);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    // Of three tokens that it holds it is asked for five, so it asks the store, which has lost the key.
    assert_eq!(bench.check_key(key, 5), None);
    let call = bench.acquire();
    (bench.epoch, bench.used) = (99, 4);
    bench.grant(&call, 0);
    assert_eq!(asked(&mut bench, key, 2).map(|answer| answer.map(|loan| loan.tokens)), Some(Ok(2)), "it holds three");
    let none = asked(&mut bench, key, 2).expect("it answers at once").expect("no refusal");
    assert_eq!((none.tokens, none.aside), (0, false));
    assert!(
        none.wait > Micros::ZERO && none.wait <= FleetView::UNKNOWN.round + FleetView::UNKNOWN.round,
        "{:?}",
        none.wait
    );
    bench.advance(none.wait);
    assert_eq!(asked(&mut bench, key, 2), None, "the store is asked again");
    assert!(bench.try_acquire().is_some());
}

/// What the store lent behind a denial lay at a node that nobody asked, while the owner lent all of the window to others.
#[test]
fn what_a_peer_has_denied_is_asked_of_it_again_and_not_of_the_store_behind_a_denial() {
    for (limit, again) in [("10/1m fixed", true), ("10/1m sliding", false)] {
        let mut bench = bench_of(20, limit);
        let key = owned(&bench, |owner| owner != KeyOwner::This);
        assert_eq!(bench.check_key(key, 1), None);
        let ask = bench.try_ask().expect("a peer is asked");
        let (now, length) = (bench.store_time(), bench.rule.limits[0].period);
        let at = Timestamp(now.0 / length.0 * length.0);
        let is_fixed = limit.ends_with("fixed");
        let none = loan(0, now, if is_fixed { at + length } else { at });
        let counters = std::array::from_fn(|_| Counter { used: 10, ..none.counters[0] });
        bench.answer(&ask, &Ok(Loan { counters, lasts: None, wait: MINUTE, ..none }));
        assert_eq!(bench.replies(), [Verdict::Deny]);
        assert_eq!(bench.check_key(key, 1), Some(Verdict::Deny), "it is remembered");
        bench.advance(Micros(2_600_000));
        assert_eq!(bench.check_key(key, 1), if again { None } else { Some(Verdict::Deny) }, "{limit}");
        assert_eq!((bench.try_ask().is_some(), bench.try_acquire().is_some()), (again, !again), "{limit}");
    }
}

/// The store would lend of the next window to whoever asks it first, though the owner has leased of it ahead for all.
#[test]
fn a_peer_that_has_nothing_of_a_window_that_is_over_when_its_answer_comes_is_asked_once_more() {
    let mut bench = bench_of(20, "10/1s fixed");
    let key = owned(&bench, |owner| owner != KeyOwner::This);
    let ends = Timestamp((bench.store_time().0 / SECOND.0 + 1) * SECOND.0);
    let left = ends.since(bench.store_time());
    bench.advance(Micros(left.0 - 300));
    assert_eq!(bench.check_key(key, 1), None);
    let ask = bench.try_ask().expect("a peer is asked");
    let then = bench.store_time();
    bench.advance(Micros(400));
    let none = loan(0, then, ends);
    let counters = std::array::from_fn(|_| Counter { used: 10, ..none.counters[0] });
    bench.answer(&ask, &Ok(Loan { counters, lasts: None, wait: Micros(300), ..none }));
    assert!(bench.try_acquire().is_none(), "the store is not asked");
    assert!(bench.try_ask().is_some());
}

/// A peer that waits in vain asks the store, though a window began that the owner had leased of.
#[test]
fn a_peer_does_not_wait_for_a_window_that_begins_when_it_has_gone() {
    for (before, asks) in [(9_000, true), (4_000, false)] {
        let mut bench = bench_of(20, "100/1s fixed");
        let key = owned(&bench, |owner| owner == KeyOwner::This);
        for _ in 0..12 {
            bench.advance(Micros(75_000));
            bench.check_key(key, 1);
            bench.calls().into_iter().for_each(|call| bench.grant(&call, 1));
        }
        let ends = Timestamp((bench.store_time().0 / SECOND.0 + 1) * SECOND.0);
        bench.advance(Micros(ends.since(bench.store_time()).0 - 20_000));
        let ahead = bench.try_acquire().expect("it leases of the next window");
        bench.used = 5;
        bench.answer_as_of(&ahead, 5, bench.store_time(), ends);
        bench.advance(Micros(20_000 - before));
        assert_eq!(asked(&mut bench, key, 1), None, "nothing of this window is here");
        assert_eq!(bench.try_acquire().is_some(), asks, "{before}");
    }
}

/// What the bench's node reports of a key now: how much it has admitted, and the peers that have to hear it; `None`: all of them.
fn reports(bench: &mut Bench, key: u8) -> Vec<(u64, Option<Vec<u32>>)> {
    let mut reports = Vec::new();
    bench.shard.drain_usage(bench.now, usize::MAX, &mut reports);
    assert!(reports.iter().all(|report| report.usage.digest == Digest::of("test", &[key])));
    let hearers = |report: &Report| report.to.as_ref().map(|to| to.iter().map(|peer| peer.0).collect());
    reports.iter().map(|report| (report.usage.count.admitted, hearers(report))).collect()
}

/// A peer reports what it has admitted of a key in the window at hand.
fn hear(bench: &mut Bench, peer: u32, key: u8, epoch: u64) {
    let period = bench.rule.limits[0].period;
    let window = Timestamp((bench.store_time().0 / period.0 + 1) * period.0);
    let count = Count { admitted: 9, refunded: 0 };
    let usage = Usage { digest: Digest::of("test", &[key]), limit: 0, window, count, epoch };
    bench.shard.handle_usage(bench.now, PeerIndex(peer), &usage);
    bench.advance(Micros::ZERO);
}

/// Those that use the key ask its owner, whose answers say what is left: of 20 nodes two have to hear of it, and who leases it as well.
#[test]
fn an_owner_that_leases_for_all_reports_to_those_that_lease_the_key_and_who_would_own_it() {
    let mut bench = bench_of(20, "100/10s fixed");
    let key = owned(&bench, |owner| owner == KeyOwner::This);
    assert_eq!(bench.check_key(key, 1), None);
    let call = bench.acquire();
    bench.grant(&call, 20);
    let told = reports(&mut bench, key);
    let [(1, Some(two))] = &told[..] else { panic!("{told:?}") };
    assert_eq!(two.len(), 2);
    let other = (1..20).find(|peer| !two.contains(peer)).expect("there are more");
    hear(&mut bench, other, key, 0);
    assert_eq!(bench.check_key(key, 18), Some(Verdict::Allow));
    bench.advance(Micros(1_700_000));
    let mut three = [&two[..], &[other]].concat();
    three.sort_unstable();
    assert_eq!(reports(&mut bench, key), [(19, Some(three))]);
    assert_eq!(bench.check_key(key, 1), Some(Verdict::Allow));
    bench.shard.handle_drain(bench.now);
    assert_eq!(reports(&mut bench, key), [(20, None)], "what a node that leaves has admitted all have to hear");
}

#[test]
fn a_loss_of_the_store_an_owner_reports_to_all() {
    let mut bench = bench_of(20, "100/10s fixed");
    let key = owned(&bench, |owner| owner == KeyOwner::This);
    assert_eq!(bench.check_key(key, 1), None);
    let call = bench.acquire();
    bench.grant(&call, 20);
    assert!(matches!(&reports(&mut bench, key)[..], [(1, Some(_))]));
    assert_eq!(bench.check_key(key, 19), Some(Verdict::Allow));
    assert_eq!(bench.check_key(key, 1), None);
    let call = bench.acquire();
    (bench.epoch, bench.used) = (6, 24);
    bench.grant(&call, 0);
    assert_eq!(reports(&mut bench, key), [(20, None)]);
}

/// Before a node knew its fleet it leased a few tokens of a key. From now on it asks the owner, which reckons with those. Of a key that is hot here
/// it leases more, and everybody hears of that.
#[test]
fn what_was_leased_before_the_owner_was_known_its_owner_hears_and_who_would_own_it_next() {
    for (checks, hearers) in [(1, Some(2)), (30, None)] {
        let mut bench = bench_of(20, "100/10s fixed");
        let key = owned(&bench, |owner| owner != KeyOwner::This);
        let Some(KeyOwner::Peer(owner)) = owner(&bench, key) else { panic!("a peer owns it") };
        bench.shard.handle_owners(name("own"), &[]);
        bench.used = 30;
        for _ in 0..checks {
            bench.check_key(key, 1);
            bench.calls().into_iter().for_each(|call| bench.grant(&call, 2));
            bench.advance(Micros(10_000));
        }
        join(&mut bench, 20);
        let told = reports(&mut bench, key);
        let (_, to) = told.first().expect("there is something to report");
        assert_eq!(to.as_ref().map(Vec::len), hearers, "{told:?}");
        assert!(to.as_ref().is_none_or(|to| to.contains(&owner.0)), "{told:?}");
    }
}
