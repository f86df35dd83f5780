//! What was admitted over time, for each algorithm, in worlds drawn from seeds: many nodes, drifting
//! clocks, late, lost and repeated messages, crashes and outages. The bounds are those of docs/concepts.

use crate::support;

use std::collections::BTreeMap;

use rationd::core::decision::Source;
use rationd::core::gcra;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::{Micros, Timestamp};

use support::world::{Admission, Ledger, Weather, World};

const SEEDS: u64 = 24;

fn run(seed: u64, limits: &[&str], weather: Weather) -> Ledger {
    let limits: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
    World::new(seed, Rule::of("p", &limits), weather).run()
}

/// Weathers from fair to foul.
fn weathers(seed: u64, rate: u64, span: Micros) -> Vec<Weather> {
    let fair = Weather::fair(1 + (seed % 7) as usize, rate, span);
    let lossy = Weather { loss: 50 + seed % 200, repeats: 100, delay: Micros(400), cost: 3, ..fair };
    let slow = Weather { delay: Micros(9_000), repeats: 300, skew: 600, ..fair };
    let crashing = Weather { crashes: Some(Micros(span.0 / 9)), ..lossy };
    vec![fair, lossy, slow, crashing]
}

/// What was admitted from leases: what a node admits on its share, while the store is away from it,
/// comes on top (docs/concepts/guarantees.md names it), and has a test of its own.
fn leased(ledger: &Ledger) -> impl Iterator<Item = &Admission> {
    ledger.admissions.iter().filter(|admission| admission.decision.source != Source::Share)
}

/// Tokens admitted per aligned window.
fn per_window<'a>(admissions: impl Iterator<Item = &'a Admission>, period: u64) -> BTreeMap<u64, u64> {
    let mut windows = BTreeMap::new();
    for admission in admissions {
        *windows.entry(admission.at.0 / period).or_default() += admission.tokens;
    }
    windows
}

fn answered_in_time(ledger: &Ledger) {
    // A slow clock's 50 ms.
    assert!(ledger.longest_wait <= Micros(50_010), "waited {:?}", ledger.longest_wait);
}

#[test]
fn fixed_never_admits_more_than_the_limit_in_any_window() {
    for seed in 0..SEEDS {
        for weather in weathers(seed, 2_500, Micros(6_000_000)) {
            let ledger = run(seed, &["1000/1s fixed"], weather);
            for (window, tokens) in per_window(leased(&ledger), 1_000_000) {
                assert!(tokens <= 1_000, "seed {seed}, {weather:?}: window {window} admitted {tokens}");
            }
            answered_in_time(&ledger);
        }
    }
}

#[test]
fn fixed_from_first_never_admits_more_than_the_limit_in_a_window() {
    for seed in 0..SEEDS {
        for weather in weathers(seed, 900, Micros(8_000_000)) {
            let ledger = run(seed, &["200/700ms fixed from-first"], weather);
            let mut windows: BTreeMap<Timestamp, u64> = BTreeMap::new();
            for admission in leased(&ledger) {
                let end = admission.decision.reset_at;
                assert!(admission.at < end && end <= admission.at + Micros(700_000), "{admission:?}");
                *windows.entry(end).or_default() += admission.tokens;
            }
            assert!(windows.values().all(|tokens| *tokens <= 200), "seed {seed}, {weather:?}: {windows:?}");
        }
    }
}

#[test]
fn sliding_estimate_never_exceeds_the_limit() {
    for seed in 0..SEEDS {
        for weather in weathers(seed, 900, Micros(8_000_000)) {
            let ledger = run(seed, &["300/1s sliding"], weather);
            let mut windows: BTreeMap<u64, u64> = BTreeMap::new();
            for admission in leased(&ledger) {
                let (window, elapsed) = (admission.at.0 / 1_000_000, admission.at.0 % 1_000_000);
                let previous = windows.get(&(window - 1)).copied().unwrap_or(0);
                let current = windows.entry(window).or_default();
                *current += admission.tokens;
                let estimate = *current * 1_000_000 + previous * (1_000_000 - elapsed);
                assert!(estimate <= 300 * 1_000_000, "seed {seed}, {weather:?}: {estimate} at {admission:?}");
            }
        }
    }
}

/// The most by which any interval's admissions exceed what the rate alone gives, in tokens.
fn worst_excess(ledger: &Ledger, limit: &Limit) -> f64 {
    let rate = limit.count as f64 / limit.period.0 as f64;
    let (mut sum, mut lowest, mut worst) = (0.0, f64::MAX, 0.0_f64);
    for admission in leased(ledger) {
        let due = rate * (admission.at.0 % 1_000_000_000_000) as f64;
        lowest = lowest.min(sum - due);
        sum += admission.tokens as f64;
        worst = worst.max(sum - due - lowest);
    }
    worst
}

#[test]
fn gcra_admits_at_most_its_burst_and_what_leases_live_over_any_interval() {
    for text in ["1000/1s burst 200", "100/1s burst 1", "50/1s burst 400", "7/3s burst 5"] {
        let limit = Limit::parse(text).unwrap();
        // What waits is spent when the store grants it, a trip before anybody sees it.
        let bound = limit.burst + 1 + gcra::tokens_in(&limit, Micros(50_000));
        for seed in 0..SEEDS / 3 {
            for weather in weathers(seed, 1_500, Micros(4_000_000)) {
                let ledger = run(seed, &[text], weather);
                let worst = worst_excess(&ledger, &limit);
                assert!(worst <= bound as f64, "{text}, seed {seed}, {weather:?}: {worst} > {bound}");
            }
        }
    }
}

#[test]
fn every_limit_of_a_policy_holds() {
    for seed in 0..SEEDS {
        for weather in weathers(seed, 900, Micros(10_000_000)) {
            let ledger = run(seed, &["100/1s fixed", "1500/5s fixed", "400/1s burst 300"], weather);
            assert!(per_window(leased(&ledger), 1_000_000).values().all(|tokens| *tokens <= 100));
            assert!(per_window(leased(&ledger), 5_000_000).values().all(|tokens| *tokens <= 1_500));
        }
    }
}

#[test]
fn lone_nodes_share_stays_below_the_limit_while_the_store_is_away() {
    for seed in 0..SEEDS {
        let outage = Some((Micros(2_300_000), Micros(6_700_000)));
        let weather = Weather { outage, ..Weather::fair(1 + (seed % 5) as usize, 3_000, Micros(10_000_000)) };
        let ledger = run(seed, &["1000/1s fixed"], weather);
        let windows = per_window(ledger.admissions.iter(), 1_000_000);
        assert!(windows.values().all(|tokens| *tokens <= 1_000), "seed {seed}, {weather:?}: {windows:?}");
        let total: u64 = windows.values().sum();
        assert!(total >= 8_000, "seed {seed}: {windows:?}");
        answered_in_time(&ledger);
    }
}

#[test]
fn fixed_is_used_up_at_twice_the_demand_with_few_calls_and_few_waits() {
    for nodes in [1, 3, 10] {
        let ledger = run(5, &["1000/1s fixed"], Weather::fair(nodes, 2_000, Micros(20_000_000)));
        let windows = per_window(ledger.admissions.iter(), 1_000_000);
        let whole = windows.len() - 2;
        let used: u64 = windows.values().skip(1).take(whole).sum();
        let (calls, waits) = (ledger.calls * 1_000 / ledger.checks, ledger.parked * 1_000 / ledger.checks);
        println!("{nodes} nodes: {used} of {} used, {calls} calls and {waits} waits per 1000 checks", whole * 1_000);
        assert!(used * 1_000 >= whole as u64 * 1_000 * 990, "{windows:?}");
        assert!(calls <= 80 && waits <= 10, "{calls} calls, {waits} waits per 1000 checks");
    }
}

#[test]
fn gcra_is_used_up_at_twice_the_demand_with_few_calls() {
    for nodes in [1, 3, 10] {
        let ledger = run(5, &["1000/1s burst 1000"], Weather::fair(nodes, 2_000, Micros(20_000_000)));
        let admitted: u64 = ledger.admissions.iter().map(|admission| admission.tokens).sum();
        let calls = ledger.calls * 1_000 / ledger.checks;
        println!("{nodes} nodes: {admitted} admitted of {}, {calls} calls per 1000 checks", 21_000);
        assert!(admitted >= 21_000 * 90 / 100, "{admitted}");
        assert!(calls <= 80, "{calls} calls per 1000 checks");
    }
}

#[test]
fn every_token_lent_is_spent_returned_expired_or_held() {
    for limits in [&["1000/1s fixed"][..], &["300/1s sliding"], &["500/1s burst 100"], &["100/1s fixed", "900/5s"]] {
        for seed in 0..SEEDS / 3 {
            let outage = Some((Micros(1_300_000), Micros(2_700_000)));
            for weather in weathers(seed, 1_200, Micros(4_000_000)) {
                for weather in [weather, Weather { outage, ..weather }] {
                    for balance in run(seed, limits, weather).balances {
                        let [granted, spent, returned, expired, held] = balance;
                        let accounted = spent + returned + expired + held;
                        assert_eq!(granted, accounted, "{limits:?}, seed {seed}, {weather:?}: {balance:?}");
                    }
                }
            }
        }
    }
}
