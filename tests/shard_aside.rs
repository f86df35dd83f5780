//! What a shard that cannot reach the store lends to its peers of what the store has set aside for it, and what it makes of what they lend
//! of theirs. On virtual time, against a store and peers that the test plays by hand.

use crate::support;

use rationd::core::ask::{Ask, Loan, Refusal, Terms};
use rationd::core::call::{Call, Counter, StoreError};
use rationd::core::decision::{Source, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::limit::MAX_LIMITS;
use rationd::core::owners::{Candidate, OwnerName, name_hash};
use rationd::core::policy::OnStoreLoss;
use rationd::core::shard::{AskOutcome, Request};
use rationd::core::time::{Micros, Timestamp};
use rationd::core::usage::{Count, PeerIndex, Usage};

use support::bench::{Bench, SECOND};

const HALF: Micros = Micros(500_000);

/// A while after a window has begun, when its beginning is in no doubt.
const BEGUN: Micros = Micros(20_000);

fn name(name: &str) -> OwnerName {
    OwnerName { hash: name_hash(name), is_always: false }
}

/// This node is one of so many that ask each other.
fn join(bench: &mut Bench, live: u32) {
    let fleet = FleetView {
        live,
        largest: live,
        has_looked: true,
        is_steady: true,
        heard: Some(bench.now),
        ..FleetView::UNKNOWN
    };
    bench.shard.handle_fleet(fleet);
    let peers = (1..live).map(|peer| Candidate { peer: PeerIndex(peer), name: name(&format!("peer-{peer}")) });
    bench.shard.handle_owners(name("own"), &peers.collect::<Vec<_>>());
}

fn away(bench: &mut Bench, calls: &[Call]) {
    let since = bench.now;
    calls.iter().for_each(|call| bench.fail(call, StoreError::Away { since }));
}

fn lose_all(bench: &mut Bench) {
    let calls = bench.calls();
    away(bench, &calls);
}

/// Half a second after a window has begun, a node was lent a token of it and told that so many of each are set aside for it; and then the store
/// is gone.
fn lost(limit: &str, tokens: u64) -> Bench {
    let mut bench = Bench::with_loss(limit, OnStoreLoss::Entitled);
    bench.advance(HALF);
    bench.entitled = tokens;
    bench.check(1);
    let first = bench.acquire();
    bench.grant(&first, 1);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    bench.check(1);
    let call = bench.acquire();
    away(&mut bench, &[call]);
    bench.replies();
    bench
}

/// The same, and it has seen whole windows since, in which nobody asked it.
fn idle(limit: &str, tokens: u64) -> Bench {
    let mut bench = lost(limit, tokens);
    next_window(&mut bench);
    assert_eq!(asks(&mut bench, tokens, true).map(|loan| loan.tokens), Ok(0), "it keeps what was used before");
    (0..2).for_each(|_| next_window(&mut bench));
    bench
}

/// A peer asks for so many tokens. Whatever the node asks the store meanwhile is not answered.
fn asks(bench: &mut Bench, want: u64, aside: bool) -> Result<Loan, Refusal> {
    let rule = bench.rule.clone();
    let terms = Terms { rule: rule.fingerprint(), want, least: 1, patience: Micros(5_000), aside };
    let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost: want, peek: false };
    let AskOutcome::Answered(answer) = bench.shard.handle_ask(bench.now, request, &terms) else {
        panic!("a node without the store answers at once")
    };
    bench.advance(Micros(0));
    lose_all(bench);
    answer
}

fn passed(bench: &mut Bench, checks: u32) -> usize {
    let passed = (0..checks).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    lose_all(bench);
    passed
}

/// Passes the rest of a window, with a look at the store that finds nothing.
fn next_window(bench: &mut Bench) {
    let period = bench.rule.limits[0].period.0;
    let rest = period - bench.store_time().0 % period;
    for _ in 0..4 {
        bench.advance(Micros(rest / 4));
        lose_all(bench);
    }
    bench.advance(BEGUN);
    lose_all(bench);
}

#[test]
fn what_a_node_lends_of_what_is_set_aside_it_does_not_admit_itself() {
    for (limit, at_once) in [("100/1s fixed", 30), ("100/1s sliding", 0)] {
        let mut bench = idle(limit, 30);
        let mut lent = 0;
        for _ in 0..9 {
            lent += asks(&mut bench, 7, true).expect("it has some").tokens;
            bench.advance(Micros(100_000));
            lose_all(&mut bench);
        }
        assert!(lent >= at_once && lent >= 20, "{limit}: {lent}");
        assert!(lent + passed(&mut bench, 40) as u64 <= 30, "{limit}: {lent}");
    }
}

#[test]
fn a_node_keeps_what_its_own_clients_will_want() {
    let mut bench = lost("100/1s fixed", 30);
    for _ in 0..3 {
        next_window(&mut bench);
        assert_eq!(passed(&mut bench, 20), 20);
    }
    next_window(&mut bench);
    let first = asks(&mut bench, 30, true).expect("it has some");
    assert!((9..=11).contains(&first.tokens), "{first:?}");
    assert!(first.aside && first.wait > Micros(0), "{first:?}");
    assert_eq!(asks(&mut bench, 1, true).map(|loan| loan.tokens), Ok(0));
    // By the middle of the window half as many will come, and nobody has come yet.
    bench.advance(HALF);
    lose_all(&mut bench);
    let later = asks(&mut bench, 30, true).expect("it has some");
    assert!((8..=11).contains(&later.tokens), "{later:?}");
    assert_eq!(passed(&mut bench, 40) as u64, 30 - first.tokens - later.tokens);
}

#[test]
fn what_is_lent_ends_with_its_window() {
    let mut bench = idle("100/1s fixed", 30);
    let loan = asks(&mut bench, 1, true).expect("it has some");
    let rest = 1_000_000 - bench.store_time().0 % 1_000_000;
    let lasts = loan.lasts.expect("a window ends").0;
    assert!(lasts <= rest && lasts + 10_000 > rest, "{lasts} of {rest}");
    let [earliest, latest] = loan.clock;
    assert!(earliest <= bench.store_time() && bench.store_time() <= latest);
}

#[test]
fn nothing_is_lent_of_a_window_for_which_the_store_was_asked() {
    let mut bench = lost("100/1s fixed", 30);
    let loan = asks(&mut bench, 1, true).expect("it has some of the next window");
    assert_eq!((loan.tokens, loan.aside), (0, true));
    bench.advance(loan.wait);
    lose_all(&mut bench);
    assert!(passed(&mut bench, 1) == 1, "then it has some");
}

#[test]
fn nothing_is_lent_to_builds_that_do_not_ask_for_that_and_of_keys_of_which_nothing_is_set_aside() {
    let mut bench = lost("100/1s fixed", 30);
    next_window(&mut bench);
    assert_eq!(asks(&mut bench, 1, false), Err(Refusal::NoStore));
    for limit in ["100/1s fixed", "100/1s burst 100"] {
        let mut bench = lost(limit, 0);
        next_window(&mut bench);
        assert_eq!(asks(&mut bench, 1, true), Err(Refusal::NoStore), "{limit}");
    }
}

#[test]
fn what_was_lent_is_owed_to_the_store() {
    let mut bench = idle("100/1s fixed", 30);
    assert_eq!(asks(&mut bench, 12, true).map(|loan| loan.tokens), Ok(12));
    assert_eq!(passed(&mut bench, 3), 3);
    bench.advance(Micros(260_000));
    let probe = bench.acquire();
    assert_eq!(bench.order(&probe).need, 0, "it only looks");
    bench.grant(&probe, 0);
    assert!(bench.check(1).is_none(), "the store is back");
    let acquire = bench.acquire();
    assert_eq!(bench.order(&acquire).need, 15 + 1);
}

/// What a peer lends of what is set aside for it, of a window that lasts so long.
fn aside(bench: &Bench, tokens: u64, lasts: Micros, wait: Micros) -> Loan {
    let (now, mut counters) = (bench.store_time(), [Counter::default(); MAX_LIMITS]);
    counters[0] = Counter { used: 0, prev: 0, at: Timestamp((now.0 / 1_000_000 + 1) * 1_000_000) };
    Loan { tokens, lasts: Some(lasts), clock: [now, now], epoch: 5, counters, wait, aside: true }
}

/// A node of a fleet has used up what is set aside for it of a window.
fn spent(live: u32) -> Bench {
    let mut bench = lost("100/1s fixed", 3);
    join(&mut bench, live);
    next_window(&mut bench);
    assert_eq!(passed(&mut bench, 3), 3, "its own part is first");
    assert!(bench.asks().is_empty());
    bench
}

fn asked(bench: &mut Bench) -> Ask {
    let ask = bench.try_ask().expect("a peer is asked");
    lose_all(bench);
    ask
}

#[test]
fn a_check_is_admitted_with_what_a_peer_lends_of_what_is_set_aside_for_it() {
    let mut bench = spent(3);
    assert_eq!(bench.check(1), None);
    let ask = asked(&mut bench);
    assert!(ask.terms.aside && (ask.terms.want, ask.terms.least) == (1, 1), "{ask:?}");
    let loan = aside(&bench, 1, Micros(300_000), Micros(0));
    bench.answer(&ask, &Ok(loan));
    assert_eq!(bench.replies(), [Verdict::Allow]);
    assert_eq!(bench.last.map(|last| (last.source, last.remaining)), Some((Source::Peer, 0)));
    bench.answer(&ask, &Ok(loan));
    assert_eq!(bench.check(1), None, "it is asked for once");
}

#[test]
fn what_a_peer_lent_of_a_window_that_is_over_admits_nobody() {
    let mut bench = spent(3);
    assert_eq!(bench.check(1), None);
    let ask = asked(&mut bench);
    bench.advance(Micros(1_000));
    let loan = aside(&bench, 1, Micros(1_000), Micros(0));
    bench.answer(&ask, &Ok(loan));
    let next = bench.try_ask();
    assert!(!bench.replies().contains(&Verdict::Allow) && next.is_none_or(|next| next.id != ask.id));
}

#[test]
fn two_peers_are_asked_for_a_check_and_whoever_had_nothing_is_left_out_for_as_long_as_it_said() {
    let mut bench = spent(3);
    assert_eq!(bench.check(1), None);
    for asks in 1..=2 {
        let ask = asked(&mut bench);
        let none = aside(&bench, 0, Micros(0), HALF);
        bench.answer(&ask, &Ok(none));
        assert_eq!(bench.replies().len(), asks / 2, "the second answer is the last");
    }
    lose_all(&mut bench);
    assert_eq!(bench.check(1), Some(Verdict::Deny), "nobody has any");
    lose_all(&mut bench);
    assert!(bench.asks().is_empty());
    bench.advance(HALF);
    lose_all(&mut bench);
    assert_eq!(bench.check(1), None, "they may have some again");
}

/// A fleet of nodes that have nothing asks no more than one that is small.
#[test]
fn a_key_of_which_nobody_has_anything_is_asked_for_a_few_times_in_a_window() {
    let mut bench = spent(64);
    let mut count = 0;
    for _ in 0..200 {
        if bench.check(1).is_none() {
            while let Some(ask) = bench.try_ask() {
                count += 1;
                let none = aside(&bench, 0, Micros(0), SECOND);
                bench.answer(&ask, &Ok(none));
            }
        }
        lose_all(&mut bench);
        bench.advance(Micros(1_000));
        lose_all(&mut bench);
    }
    assert!((8..=10).contains(&count), "{count} asks");
}

/// What a peer said of it, which had not noticed yet that its own way to the store is cut, is older than what the store says.
#[test]
fn what_a_peer_denied_is_forgotten_when_the_store_answers() {
    let mut bench = lost("100/4s sliding", 3);
    join(&mut bench, 3);
    (0..3).for_each(|_| next_window(&mut bench));
    bench.advance(Micros(2_500_000));
    lose_all(&mut bench);
    assert_eq!(passed(&mut bench, 1), 1, "no client waits any more");
    assert_eq!(bench.check(10), None);
    let ask = asked(&mut bench);
    let (now, mut counters) = (bench.store_time(), [Counter::default(); MAX_LIMITS]);
    counters[0] = Counter { used: 97, prev: 0, at: Timestamp(now.0 / 4_000_000 * 4_000_000) };
    let none = Loan { tokens: 0, lasts: None, clock: [now, now], epoch: 5, counters, wait: SECOND, aside: false };
    bench.answer(&ask, &Ok(none));
    assert_eq!(bench.replies(), [Verdict::Deny]);
    bench.advance(Micros(260_000));
    assert_eq!(bench.check(10), Some(Verdict::Deny), "as the peer said");
    let probe = bench.acquire();
    assert_eq!(bench.order(&probe).need, 0, "it only looks");
    bench.grant(&probe, 0);
    assert_eq!(bench.check(10), None, "the store has some, and is asked");
}

/// The store has lost the key while this node was without it, so that it lends to others what was set aside for this node. Until
/// peers have told the store what it has lost, a node goes by its share.
#[test]
fn what_was_set_aside_is_spent_no_more_once_the_store_is_known_to_have_lost_it() {
    let mut bench = lost("100/4s fixed", 30);
    join(&mut bench, 3);
    next_window(&mut bench);
    bench.advance(SECOND);
    lose_all(&mut bench);
    assert_eq!(passed(&mut bench, 2), 2);
    bench.advance(Micros(260_000));
    assert_eq!(bench.check(1), Some(Verdict::Allow));
    let probe = bench.acquire();
    assert_eq!(bench.order(&probe).need, 0, "it only looks");
    let (window, count) =
        (Timestamp((bench.store_time().0 / 4_000_000 + 1) * 4_000_000), Count { admitted: 5, refunded: 0 });
    let usage = Usage { digest: Digest::of("test", &[0]), limit: 0, window, count, epoch: bench.epoch };
    bench.shard.handle_usage(bench.now, PeerIndex(1), &usage);
    (bench.epoch, bench.entitled) = (bench.epoch + 1, 0);
    bench.grant(&probe, 0);
    let allowed = (0..5).filter(|_| bench.check(1) == Some(Verdict::Allow)).count();
    assert_eq!(allowed, 0);
}
