//! A lone node that leases from a store answers as the embedded store does: the same verdict, what is left and
//! the same wait, to what a trip to the store and the drift of a clock may change.
//!
//! Random limits, one to three of them, random costs and pauses, on virtual time. The embedded store decides
//! straight from its counters; it is the formula. A denial that says itself that enough is left is a bug
//! wherever it appears.

use crate::support;

use std::sync::Arc;

use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::shard::Request;
use rationd::core::time::{Micros, Timestamp};
use rationd::store::embedded::Embedded;

use support::calls::Random;
use support::lone::Lone;

/// One check, and how long after the one before it comes.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause: Micros,
    cost: u64,
}

/// Runs the steps through a lone node and through the embedded store. What differs beyond what the trip allows.
fn differences(limits: &[&str], trip: Micros, steps: &[Step]) -> Vec<String> {
    let parsed: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
    let rule = Arc::new(Rule::of("p", &parsed));
    let mut node = Lone::new(trip);
    let mut embedded = Embedded::new(10, 7);
    let mut found = Vec::new();
    // When the window of each limit ends that begins with its first request.
    let mut ends = vec![Timestamp(0); parsed.len()];
    for (index, step) in steps.iter().enumerate() {
        node.wait(step.pause);
        let asked = node.store_time();
        let seen = node.check(&rule, step.cost);
        // Of two windows it may have been decided in either, without a trip, too: who comes just before a window for
        // which tokens are held waits for it. What follows depends on which.
        let turns = |(limit, end): (&Limit, &Timestamp)| match limit.algorithm {
            Algorithm::FixedFromFirst => asked < *end && *end <= node.store_time(),
            _ => asked.0 / limit.period.0 != node.store_time().0 / limit.period.0,
        };
        if parsed.iter().zip(&ends).any(turns) {
            break;
        }
        // The store decides somewhere within the trip; the formula is asked at both ends of it.
        let request = Request { rule: &rule, digest: Digest::of("p", b"k"), key: b"k", cost: step.cost, peek: true };
        let (first, last) = (embedded.check(asked, request), embedded.check(node.store_time(), request));
        let at = if seen.verdict == first.verdict { asked } else { node.store_time() };
        let charged = embedded.check(at, Request { peek: seen.verdict == Verdict::Deny, ..request });
        for (limit, end) in parsed.iter().zip(&mut ends) {
            if seen.verdict == Verdict::Allow && *end <= at {
                *end = at + limit.period;
            }
        }
        if let Some(what) = differs(&rule, step.cost, (&first, &last, &charged), &seen, trip) {
            let log = node.log[node.log.len().saturating_sub(8)..].join("\n");
            found.push(format!(
                "{limits:?} step {index} of {:?}: {what}\n{log}\n  node    {seen:?}\n  formula {charged:?}\n",
                steps[..=index].iter().map(|step| (step.pause.0, step.cost)).collect::<Vec<_>>()
            ));
            break;
        }
    }
    found
}

fn differs(
    rule: &Rule,
    cost: u64,
    (first, last, charged): (&Decision, &Decision, &Decision),
    seen: &Decision,
    trip: Micros,
) -> Option<&'static str> {
    if seen.verdict == Verdict::Deny && seen.reason == Reason::Rate && seen.remaining >= cost {
        return Some("denied though it says that enough is left");
    }
    if seen.verdict != first.verdict && seen.verdict != last.verdict {
        return Some("another verdict");
    }
    // What trickles in within so long after a trip may be left, or not.
    let blur = Micros(2 * trip.0 + 2_000);
    let trickle: u64 = rule.limits.iter().map(|limit| 2 + limit.count * blur.0 / limit.period.0).max().unwrap_or(2);
    if seen.verdict == Verdict::Allow && seen.remaining.abs_diff(charged.remaining) > trickle {
        return Some("something else is left");
    }
    let (told, right) = (seen.retry_after.unwrap_or_default().0, charged.retry_after.unwrap_or_default().0);
    // A clock may drift by 200 ppm while the client waits, and while the node has not heard of the store's.
    let drift = right / 1_000 + 5_000;
    if seen.reason == Reason::Rate && told.abs_diff(right) > blur.0 + drift {
        return Some("another wait");
    }
    None
}

fn steps(costs: &[u64], pause: u64) -> Vec<Step> {
    costs.iter().map(|cost| Step { pause: Micros(pause), cost: *cost }).collect()
}

#[test]
fn costs_that_vary_are_admitted_while_enough_is_left() {
    let costs = [47, 91, 2, 1, 1, 1, 1, 1, 1];
    for limits in ["162/1h sliding", "5223/1h burst 162", "162/1h fixed"] {
        assert_eq!(differences(&[limits], Micros(300), &steps(&costs, 20_000)), [""; 0]);
    }
}

#[test]
fn large_requests_are_admitted_while_much_is_left() {
    let mut costs = vec![60_000];
    costs.extend([500; 100]);
    for limits in ["100000/1h sliding", "100000/1h", "100000/1h fixed"] {
        assert_eq!(differences(&[limits], Micros(300), &steps(&costs, 20_000)), [""; 0]);
    }
}

#[test]
fn the_wait_for_a_whole_burst_counts_what_is_held_here() {
    assert_eq!(differences(&["60/1m burst 6"], Micros(300), &steps(&[1, 2, 6], 20_000)), [""; 0]);
}

/// Costs as clients of a language model have: two in a thousand to three fifths of the limit.
#[test]
fn budgets_of_tokens_are_spent_to_the_last() {
    let mut random = Random(17);
    let mut found = Vec::new();
    for limits in ["10000/1m", "10000/1m sliding", "100000/1h", "100000/1h sliding", "10000/1m fixed"] {
        let capacity = Limit::parse(limits).expect(limits).capacity();
        for _ in 0..40 {
            let mut one = || match random.below(10) {
                0 => capacity / 1_000 * (1 + random.below(600)),
                _ => capacity / 1_000 * (2 + random.below(40)),
            };
            let steps: Vec<_> = (0..60).map(|_| Step { pause: Micros(random_pause(one())), cost: one() }).collect();
            found.extend(differences(&[limits], Micros(300), &steps));
        }
    }
    assert_eq!(found, [""; 0]);
}

/// Up to 50 ms.
fn random_pause(bits: u64) -> u64 {
    bits * 7_919 % 50_000
}

fn limit(random: &mut Random) -> String {
    let count = [1, 3, 7, 20, 162, 1_000, 5_223, 100_000][random.below(8) as usize];
    let period = ["1s", "2s", "10s", "1m", "7m", "1h", "1d"][random.below(7) as usize];
    match random.below(5) {
        0 => format!("{count}/{period} fixed"),
        1 => format!("{count}/{period} fixed from-first"),
        2 => format!("{count}/{period} sliding"),
        3 => format!("{count}/{period}"),
        _ => format!("{count}/{period} burst {}", 1 + random.below(2 * count)),
    }
}

fn sequence(random: &mut Random, trip: Micros) -> Vec<String> {
    let limits: Vec<_> = (0..1 + random.below(3)).map(|_| limit(random)).collect();
    let limits: Vec<_> = limits.iter().map(String::as_str).collect();
    let capacity = limits.iter().map(|text| Limit::parse(text).expect(text).capacity()).min().unwrap_or(1);
    let steps: Vec<_> = (0..5 + random.below(40))
        .map(|_| {
            let pause = match random.below(4) {
                0 => random.below(5_000_000),
                1 => random.below(50_000),
                2 => random.below(1_000),
                _ => 20_000,
            };
            let cost = match random.below(6) {
                0 => 1 + random.below(capacity + 1),
                1 => capacity,
                2 => 1 + random.below(capacity / 3 + 1),
                3 => 1 + random.below(capacity / 40 + 1),
                _ => 1,
            };
            Step { pause: Micros(pause), cost }
        })
        .collect();
    differences(&limits, trip, &steps)
}

#[test]
fn random_sequences_are_answered_as_the_embedded_store_answers_them() {
    let mut random = Random(std::env::var("RATIOND_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(5));
    let mut found = Vec::new();
    let mut count = 0;
    for index in 0..4_000 {
        let trip = [Micros(0), Micros(300), Micros(5_000)][index % 3];
        let differs = sequence(&mut random, trip);
        count += differs.len();
        found.extend(differs.into_iter().filter(|_| count <= 12));
    }
    found.sort_by_key(String::len);
    assert!(count == 0, "{count} sequences differ\n{}", found.join("\n"));
}

/// Buckets whose clients take back what they spent: random checks, and refunds of no more than was admitted.
#[test]
fn what_is_taken_back_from_a_bucket_can_be_spent_again() {
    let mut random = Random(23);
    let mut found = Vec::new();
    for index in 0..1_000 {
        let trip = [Micros(0), Micros(300), Micros(5_000)][index % 3];
        let (count, period) = (random.one_of(&[3, 129, 1_000, 9_632, 100_000]), random.one_of(&["6s", "73s", "1h"]));
        let rule = Arc::new(Rule::of("p", &[Limit::parse(&format!("{count}/{period}")).expect("a limit")]));
        let (mut node, mut embedded, mut spent) = (Lone::new(trip), Embedded::new(10, 7), 0);
        let mut steps = Vec::new();
        for _ in 0..12 {
            node.wait(Micros(random.one_of(&[100, 600, 20_000, 80_000, 1_900_000, 3_100_000])));
            let (asked, is_refund) = (node.store_time(), spent > 0 && random.percent(35));
            let cost = if is_refund { 1 + random.below(spent) } else { random.one_of(&[1, count / 3 + 1, count]) };
            steps.push((node.store_time().0 % 10_000_000_000, is_refund, cost));
            let digest = Digest::of("p", b"k");
            let request = Request { rule: &rule, digest, key: b"k", cost, peek: false };
            let (seen, first, last) = if is_refund {
                spent -= cost;
                let seen = node.refund(&rule, cost);
                embedded.refund(asked, request);
                let look = embedded.check(node.store_time(), Request { cost: 0, peek: true, ..request });
                (seen, look, look)
            } else {
                let seen = node.check(&rule, cost);
                let peek = Request { peek: true, ..request };
                let (first, last) = (embedded.check(asked, peek), embedded.check(node.store_time(), peek));
                let at = if seen.verdict == first.verdict { asked } else { node.store_time() };
                spent += if seen.verdict == Verdict::Allow { cost } else { 0 };
                let charged = embedded.check(at, Request { peek: seen.verdict == Verdict::Deny, ..request });
                (seen, Decision { remaining: charged.remaining, ..first }, last)
            };
            let blur = 2 + count * (2 * trip.0 + 2_000) / rule.limits[0].period.0;
            let same = seen.verdict == first.verdict || seen.verdict == last.verdict;
            if !same || seen.verdict == Verdict::Allow && seen.remaining.abs_diff(first.remaining) > blur {
                let log = node.log[node.log.len().saturating_sub(6)..].join("\n");
                found.push(format!("{rule:?} {steps:?}\n{log}\n  node    {seen:?}\n  formula {first:?}\n"));
                break;
            }
        }
    }
    found.sort_by_key(String::len);
    assert!(found.is_empty(), "{} sequences differ\n{}", found.len(), found[..found.len().min(3)].join("\n"));
}

/// A bucket under other numbers, as a client of `CL.THROTTLE` may send them with each question: checks, looks,
/// and amounts given back.
#[test]
fn a_bucket_whose_numbers_change_is_answered_as_the_embedded_store_answers() {
    let mut random = Random(std::env::var("RATIOND_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(29));
    let mut found = Vec::new();
    for index in 0..6_000 {
        found.extend(changing(&mut random, [Micros(0), Micros(300), Micros(5_000)][index % 3]));
    }
    found.sort_by_key(String::len);
    assert!(found.is_empty(), "{} sequences differ\n{}", found.len(), found[..found.len().min(4)].join("\n"));
}

fn changing(random: &mut Random, trip: Micros) -> Option<String> {
    let digest = Digest::of("p", b"k");
    let mut numbers = [random.one_of(&[3, 129, 9_632, 100_000]), random.one_of(&[1, 5, 10, 3_600]), 0];
    numbers[2] = numbers[0];
    let (mut node, mut embedded) = (Lone::new(trip), Embedded::new(10, 7));
    let (mut steps, mut charged) = (Vec::new(), 0);
    let changes = random.percent(50);
    for _ in 0..4 + random.below(8) {
        node.wait(Micros(random.one_of(&[0, 200, 20_000, 120_000, 1_900_000, 2_600_000])));
        if changes && random.percent(30) {
            let [count, period, burst] = &mut numbers;
            match random.below(3) {
                0 => *burst = 1 + random.below(2 * *burst),
                1 => *count = 1 + random.below(2 * *count),
                _ => *period = 1 + random.below(2 * *period),
            }
        }
        let [count, period, burst] = numbers;
        let limit = Limit::parse(&format!("{count}/{period}s burst {burst}")).expect("a limit");
        let rule = Arc::new(Rule::of("p", &[limit]));
        let cost = match random.below(6) {
            0 => burst,
            1 => 1 + random.below(2 * burst),
            2 => 1 + random.below(burst / 3 + 1),
            _ => 1,
        };
        let (asked, kind) = (node.store_time(), random.below(10));
        let request = Request { rule: &rule, digest, key: b"k", cost, peek: false };
        let look = Request { cost: 0, peek: true, ..request };
        let (seen, first, last) = if kind == 0 {
            let seen = node.peek(&rule, 0);
            (seen, embedded.check(asked, look), embedded.check(node.store_time(), look))
        } else if kind <= 2 && charged > 0 {
            let cost = cost.min(charged);
            charged -= cost;
            let seen = node.refund(&rule, cost);
            embedded.refund(asked, Request { cost, ..request });
            (seen, embedded.check(asked, look), embedded.check(node.store_time(), look))
        } else {
            let seen = node.check(&rule, cost);
            let peek = Request { peek: true, ..request };
            let (first, last) = (embedded.check(asked, peek), embedded.check(node.store_time(), peek));
            let at = if seen.verdict == first.verdict { asked } else { node.store_time() };
            if seen.verdict == Verdict::Allow {
                charged += cost;
                embedded.check(at, request);
            }
            let [left, right] = [asked, node.store_time()].map(|at| embedded.check(at, look));
            let after = |known: Decision, now: Decision| Decision {
                retry_after: known.retry_after,
                verdict: known.verdict,
                ..now
            };
            (seen, after(first, left), after(last, right))
        };
        steps.push(format!("{} {kind} {cost} of {limit:?}", node.store_time().0 % 10_000_000_000));
        let blur = 2 * trip.0 + 2_000 + 2 * rule.limits[0].period.0 / count;
        let tokens = 2 + count * blur / rule.limits[0].period.0;
        let what = if seen.verdict != first.verdict && seen.verdict != last.verdict {
            "another verdict"
        } else if seen.remaining + tokens < last.remaining.min(first.remaining)
            || seen.remaining > last.remaining.max(first.remaining) + tokens
        {
            "something else is left"
        } else if seen.reset_after.0 > first.reset_after.0 + first.reset_after.0 / 1_000 + blur
            || seen.reset_after.0 + blur < last.reset_after.0
        {
            "whole at another time"
        } else if let (Some(told), Some(right)) = (seen.retry_after, first.retry_after)
            && told.0.abs_diff(right.0) > blur + right.0 / 1_000 + 5_000
        {
            "another wait"
        } else {
            continue;
        };
        let log = node.log[node.log.len().saturating_sub(6)..].join("\n");
        return Some(format!(
            "{what} with {trip:?}:\n{}\n{log}\n  node    {seen:?}\n  formula {first:?}\n",
            steps.join("\n")
        ));
    }
    None
}

#[test]
fn a_denied_check_and_a_pause_change_nothing() {
    let rule = Arc::new(Rule::of("p", &[Limit::parse("10/1h").expect("a limit")]));
    let mut node = Lone::new(Micros(300));
    assert_eq!(node.check(&rule, 4).remaining, 6);
    for _ in 0..5 {
        node.wait(Micros(700_000));
        assert_eq!(node.check(&rule, 8).verdict, Verdict::Deny);
    }
    assert_eq!(node.check(&rule, 6).verdict, Verdict::Allow);
    assert!(node.store_time() > Timestamp(0));
}

#[test]
fn a_peek_counts_nothing_that_has_yet_to_come() {
    let rule = Arc::new(Rule::of("p", &[Limit::parse("100/1s").expect("a limit")]));
    let mut node = Lone::new(Micros(300));
    assert_eq!(node.check(&rule, 100).verdict, Verdict::Allow);
    for _ in 0..3 {
        node.wait(Micros(20_000));
        node.check(&rule, 50);
    }
    let look = node.peek(&rule, 50);
    assert_eq!((look.verdict, look.remaining >= 50), (Verdict::Deny, false), "{look:?}");
}

/// More is taken back than was spent: the bucket is full then, whatever of the spending the store had yet to hear.
#[test]
fn a_refund_of_more_than_was_spent_fills_a_bucket_beside_a_window() {
    let limits = ["100000/4s", "1686/25575s sliding", "13/86400s burst 13"];
    let limits = limits.map(|text| Limit::parse(text).expect(text));
    let rule = Arc::new(Rule::of("p", &limits));
    for trip in [0, 300, 5_000] {
        let mut node = Lone::new(Micros(trip));
        for (pause, cost) in [(33_000, 2), (1_867_000, 1), (4_000, 8)] {
            node.wait(Micros(pause));
            assert_eq!(node.check(&rule, cost).verdict, Verdict::Allow);
        }
        node.wait(Micros(763_000));
        node.refund(&rule, 13);
        let left = [400_000, 3_000_000, 10_000_000].map(|pause| {
            node.wait(Micros(pause));
            node.peek(&rule, 0).remaining
        });
        assert_eq!(left, [13; 3], "trip {trip}\n{}", node.log.join("\n"));
        assert_eq!(node.check(&rule, 13).verdict, Verdict::Allow);
    }
}

/// What is taken back as a short window ends is not lost to the long one beside it.
#[test]
fn a_refund_near_the_end_of_a_window_counts_in_a_longer_one() {
    let limits = ["286162/110s sliding", "8/241s sliding", "1132765855/9s sliding"];
    let limits = limits.map(|text| Limit::parse(text).expect(text));
    let rule = Arc::new(Rule::of("p", &limits));
    let mut lost = Vec::new();
    for before in (0..3_000_000).step_by(7_919) {
        let mut node = Lone::new(Micros(2_000));
        let to_end = 9_000_000 - node.store_time().0 % 9_000_000;
        node.wait(Micros(to_end + 9_000_000 - before - 520_000));
        assert_eq!(node.check(&rule, 1).verdict, Verdict::Allow);
        node.wait(Micros(520_000));
        node.refund(&rule, 1);
        node.wait(Micros(before + 700_000));
        if node.check(&rule, 2).remaining != 6 {
            lost.push(format!("{before} us before: {}", node.log.join("\n")));
        }
    }
    assert!(lost.is_empty(), "{} lost\n{}", lost.len(), lost[0]);
}

/// What is on its way back to the store is there once: a look while it is under way does not count it twice.
#[test]
fn a_peek_counts_what_is_on_its_way_back_once() {
    let rule = Arc::new(Rule::of("p", &[Limit::parse("8387671535/139s sliding").expect("a limit")]));
    let mut node = Lone::new(Micros(5_000));
    node.wait(Micros(136_000_000 - node.store_time().0 % 139_000_000));
    for cost in [1, 3_111_826_139, 285_180_832, 260_017_817, 1, 1] {
        assert_eq!(node.check(&rule, cost).verdict, Verdict::Allow);
        node.wait(Micros(400_000));
    }
    for step in 0..2_000 {
        let look = node.peek(&rule, 8_387_671_535);
        assert_eq!(look.verdict, Verdict::Deny, "after {step} ms: {look:?}");
        node.wait(Micros(1_000));
    }
}

/// A refund of more than was ever spent fills the bucket, and no answer after it says otherwise.
#[test]
fn a_bucket_that_is_given_back_more_than_was_spent_is_whole() {
    for (limit, pause) in [("9/6s burst 2794125", 37_000), ("100017/5723s burst 100000", 57_000), ("10/10s", 5)] {
        let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)]));
        let capacity = rule.limits[0].capacity();
        let (mut node, mut embedded) = (Lone::new(Micros(300)), Embedded::new(10, 7));
        let request = |cost| Request { rule: &rule, digest: Digest::of("p", b"k"), key: b"k", cost, peek: false };
        for cost in [1, 1, 3] {
            let seen = node.check(&rule, cost);
            embedded.check(node.store_time(), request(cost));
            node.wait(Micros(pause));
            let back = node.refund(&rule, capacity / 2);
            embedded.refund(node.store_time(), request(capacity / 2));
            let told = format!("{limit}: {seen:?}, then {back:?}\n{}", node.log.join("\n"));
            assert_eq!((back.remaining, back.reset_after), (capacity, Micros(0)), "{told}");
            let (again, whole) = (node.check(&rule, 1), embedded.check(node.store_time(), request(1)));
            let told = format!("{told}\nthen {again:?}, by the formula {whole:?}");
            // A token may come back within what the trip leaves open.
            assert!(again.remaining.abs_diff(whole.remaining) <= 1, "{told}");
            assert!(again.reset_after <= whole.reset_after + Micros(2_000), "{told}");
            node.wait(Micros(pause));
            node.refund(&rule, 1);
            embedded.refund(node.store_time(), request(1));
            node.wait(Micros(pause));
        }
    }
}

/// The answer that a bucket's first check is given before the store has spoken shows what it spent, and so does every
/// other until the store has been charged for it.
#[test]
fn a_first_check_that_passes_on_credit_shows_what_it_spent() {
    for (limit, cost) in [("1/7s burst 2", 1), ("1/14s burst 3", 1), ("100/1s burst 100", 5)] {
        let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)]));
        let (mut node, mut embedded) = (Lone::new(Micros(300)), Embedded::new(10, 7));
        let request = |cost| Request { rule: &rule, digest: Digest::of("p", b"k"), key: b"k", cost, peek: false };
        node.late = Micros(200_000);
        let seen = node.check(&rule, cost);
        let whole = embedded.check(node.store_time(), request(cost));
        let told = format!("{limit}: {seen:?}, by the formula {whole:?}\n{}", node.log.join("\n"));
        assert_eq!((seen.verdict, seen.remaining), (Verdict::Allow, whole.remaining), "{told}");
        assert_eq!(seen.reset_after, whole.reset_after, "{told}");
        // The first answer is under way still.
        let late = node.check(&rule, rule.limits[0].capacity());
        let whole = embedded.check(node.store_time(), Request { peek: true, ..request(0) });
        let told = format!("{told}\nthen {late:?}, by the formula {whole:?}");
        assert!(late.remaining <= whole.remaining, "{told}");
        assert!(late.reset_after.0.abs_diff(whole.reset_after.0) <= 2_000, "{told}");
    }
}

/// Whoever is told that a refund was not done asks again, and it may be done twice.
#[test]
fn a_refund_that_the_store_has_not_answered_in_time_is_not_said_to_be_undone() {
    let rule = Arc::new(Rule::of("p", &[Limit::parse("10/1h fixed").expect("a limit")]));
    let mut node = Lone::new(Micros(300));
    node.late = Micros(200_000);
    let told = node.refund(&rule, 3);
    assert_eq!((told.reason, told.source), (Reason::Store, Source::Store), "{told:?}");
}
