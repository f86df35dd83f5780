//! What a share admits, owes and has left.

use super::*;
use crate::core::rule::OnStoreLoss;

const NONE: Lent<'static> = Lent { own: &[0; MAX_LIMITS], all: None };

fn rule(text: &str) -> Rule {
    Rule::of("p", &[Limit::parse(text).unwrap()])
}

fn admitted(budget: &mut FallbackBudget, rule: &Rule, ppm: u64, now: u64) -> u64 {
    (0..1_000_000).take_while(|_| budget.spend(rule, &[ppm], Timestamp(now), 1, &NONE)).count() as u64
}

#[test]
fn a_lone_node_admits_95_percent_of_each_later_window() {
    let rule = rule("1000/1s fixed");
    let mut budget = FallbackBudget::open(&rule, Timestamp(10_500_000));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 10_600_000), 0);
    for window in 11..15 {
        assert_eq!(admitted(&mut budget, &rule, share_ppm(1), window * 1_000_000 + 7), 950);
    }
}

#[test]
fn shares_of_all_nodes_sum_to_less_than_the_limit() {
    for nodes in 1..200 {
        assert!(share_ppm(nodes) * u64::from(nodes) <= SAFE_PPM);
    }
}

#[test]
fn a_budget_is_fixed_once_per_window() {
    let rule = rule("1000/1s fixed");
    let mut budget = FallbackBudget::open(&rule, Timestamp(0));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(4), 5_000_000), 237);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 5_000_001), 0);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 6_000_000), 950);
    assert!(budget.spend(&rule, &[share_ppm(1)], Timestamp(7_000_000), 100, &NONE));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(4), 7_000_001), 137);
}

#[test]
fn what_a_sliding_window_of_entitlements_has_lent_pays_for_what_was_admitted_in_it_when_it_is_over_too() {
    let rule = Rule { on_store_loss: OnStoreLoss::Entitled, ..rule("100/1s sliding") };
    let mut budget = FallbackBudget::open(&rule, Timestamp(500_000));
    assert_eq!(admitted(&mut budget, &rule, 80_000, 1_500_000), 8);
    assert_eq!(budget.pay_in_window(&rule, Timestamp(1_999_999), 3), 3);
    // Of the next window nothing is admitted, and the budget is of that one now.
    assert!(!budget.spend(&rule, &[0], Timestamp(2_000_000), 1, &NONE));
    assert_eq!(budget.pay_in_window(&rule, Timestamp(2_000_000), 9), 0, "nothing was admitted in this one");
    assert_eq!(budget.pay_in_window(&rule, Timestamp(1_999_999), 9), 5);
    assert_eq!(budget.pay_in_window(&rule, Timestamp(1_999_999), 9), 0);
}

#[test]
fn a_long_window_releases_its_share_by_the_minute() {
    let rule = rule("6000/1h fixed");
    let mut budget = FallbackBudget::open(&rule, Timestamp(30_000_000));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 59_000_000), 0);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 60_000_000), 95);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 3_599_000_000), 95 * 58);
}

#[test]
fn gcra_starts_empty_and_refills_at_the_share() {
    let rule = rule("1000/1s burst 500");
    let mut budget = FallbackBudget::open(&rule, Timestamp(10_000_000));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 10_000_000), 0);
    let mut total = 0;
    for step in 1..=100 {
        total += admitted(&mut budget, &rule, share_ppm(1), 10_000_000 + step * 10_000);
    }
    assert!((940..=950).contains(&total), "{total}");
}

#[test]
fn a_buckets_share_has_nothing_of_what_the_store_lent_between_two_losses() {
    let rule = rule("100/1s burst 100");
    let mut budget = FallbackBudget::open(&rule, Timestamp(1_000_000));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 2_000_000), 94);
    budget.pay(&rule, Timestamp(2_000_000), 94, Payer::Store);
    // Another loss: until it began the store has lent all that came.
    budget.reopen(&rule, Timestamp(3_000_000), Timestamp(3_000_000), Some(Timestamp(2_900_000)));
    assert_eq!(budget.debt(&rule, Timestamp(3_000_000)), 0);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 3_000_000), 0);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 3_500_000), 47);
    // The same one, within a second: the last that was lent has come at 3.7 s.
    budget.pay(&rule, Timestamp(3_500_000), 47, Payer::Store);
    budget.reopen(&rule, Timestamp(3_800_000), Timestamp(3_800_000), Some(Timestamp(3_700_000)));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 3_700_000), 0);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 4_200_000), 47);
}

#[test]
fn a_buckets_share_that_nothing_was_spent_of_fills_up_after_what_the_store_has_lent() {
    let rule = rule("100/1s burst 100");
    let mut budget = FallbackBudget::open(&rule, Timestamp(1_000_000));
    budget.reopen(&rule, Timestamp(1_800_000), Timestamp(1_700_000), Some(Timestamp(1_600_000)));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 1_600_000), 0);
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 2_100_000), 47);
}

#[test]
fn a_bucket_owes_in_the_next_loss_what_it_has_not_paid_and_still_remembers() {
    let rule = rule("100/1s burst 100");
    let mut budget = FallbackBudget::open(&rule, Timestamp(1_000_000));
    assert_eq!(admitted(&mut budget, &rule, share_ppm(1), 2_000_000), 94);
    let owed = budget.debt(&rule, Timestamp(2_500_000));
    budget.reopen(&rule, Timestamp(2_500_000), Timestamp(2_500_000), None);
    assert_eq!(budget.debt(&rule, Timestamp(2_500_000)), owed);
    assert!((1..94).contains(&owed), "{owed}");
}

#[test]
fn leases_and_share_together_stay_within_the_share() {
    let rule = rule("1000/1s fixed");
    let mut budget = FallbackBudget::open(&rule, Timestamp(0));
    let mut admitted = 0;
    let lent = Lent { own: &[250], all: None };
    while budget.spend(&rule, &[share_ppm(1)], Timestamp(3_000_000), 1, &lent) {
        admitted += 1;
    }
    assert_eq!(admitted, 700);
}

#[test]
fn a_budget_opened_by_a_clock_that_was_ahead_is_moved_to_the_stores() {
    let rule = rule("1000/1s burst 500");
    let guess = Timestamp(60_000_000);
    let mut budget = FallbackBudget::open(&rule, guess);
    assert!(admitted(&mut budget, &rule, share_ppm(1), guess.0 + 100_000) > 0);
    let debt = budget.debt(&rule, guess + Micros(100_000));
    let known = Timestamp(3_000_000);
    budget.rebase(&rule, [guess + Micros(100_000), known], Micros::ZERO);
    assert_eq!(budget.debt(&rule, known), debt);
    assert_eq!(budget.debt(&rule, known + Micros(600_000)), 0);
}

/// By a clock that is ahead, a window ends while the store's goes on: what it admitted is owed together with what the next one did.
#[test]
fn what_a_window_admitted_that_ended_by_a_wrong_clock_is_still_owed() {
    let (ends, next) = (Timestamp(9_900_000), Timestamp(10_100_000));
    for (known, both) in [(Timestamp(9_500_000), true), (Timestamp(10_050_000), false), (Timestamp(30_800_000), true)] {
        for spent in [[3, 4], [3, 0], [0, 4]] {
            let rule = rule("1000/1s fixed");
            let mut budget = FallbackBudget::open(&rule, Timestamp(0));
            assert!(budget.spend(&rule, &[share_ppm(1)], ends, spent[0], &NONE));
            assert!(budget.spend(&rule, &[share_ppm(1)], next, spent[1], &NONE) || spent[1] == 0);
            budget.rebase(&rule, [next, known], Micros(30_000));
            let owed = if both { spent[0] + spent[1] } else { spent[1] };
            assert_eq!(budget.debt(&rule, known), owed, "{known:?} {spent:?}");
        }
    }
}

#[test]
fn debt_is_what_open_windows_admitted() {
    let rule = rule("1000/1s fixed");
    let mut budget = FallbackBudget::open(&rule, Timestamp(0));
    assert!(budget.spend(&rule, &[share_ppm(1)], Timestamp(2_000_000), 7, &NONE));
    assert_eq!(budget.debt(&rule, Timestamp(2_100_000)), 7);
    budget.pay(&rule, Timestamp(2_100_000), 5, Payer::Store);
    assert_eq!(budget.debt(&rule, Timestamp(2_100_000)), 2);
    assert_eq!(budget.debt(&rule, Timestamp(3_000_000)), 0);
}

#[test]
fn a_bucket_owes_what_is_admitted_after_it_has_paid() {
    let rule = rule("20/1s burst 5");
    let mut budget = FallbackBudget::open(&rule, Timestamp(0));
    let half = [share_ppm(2)];
    let mut at = Timestamp(2_000_000);
    // For so long that the bucket has forgotten most of it.
    for _ in 0..20 {
        at = at + Micros(110_000);
        assert!(budget.spend(&rule, &half, at, 1, &NONE));
    }
    let open = budget.debt(&rule, at);
    assert!((1..=5).contains(&open), "{open}");
    budget.pay(&rule, at, open, Payer::Store);
    assert_eq!(budget.debt(&rule, at), 0);
    at = at + Micros(110_000);
    assert!(budget.spend(&rule, &half, at, 1, &NONE));
    assert_eq!(budget.debt(&rule, at), 1);
    budget.pay(&rule, at, 1, Payer::Store);
    assert_eq!(budget.debt(&rule, at), 0);
}

/// A regression: a node that had paid with what a peer lent told its peers so much less of the window than it was lent and admitted.
#[test]
fn what_a_peer_lent_pays_and_is_no_part_of_what_this_node_was_lent() {
    for (by, carried, left) in [(Payer::Store, 40, 35), (Payer::Peer, 0, 5)] {
        let (sliding, fixed) = (rule("100/1s sliding"), rule("100/1s fixed"));
        let mut budget = FallbackBudget::open(&sliding, Timestamp(0));
        assert!(budget.spend(&sliding, &[share_ppm(1)], Timestamp(2_900_000), 80, &NONE));
        budget.pay(&sliding, Timestamp(3_500_000), 40, by);
        assert_eq!((budget.debt(&sliding, Timestamp(3_500_000)), budget.carried(0, 3)), (0, carried), "{by:?}");
        // It was lent 40 itself: to pay for 30 of what the share has admitted, or beside that.
        let mut budget = FallbackBudget::open(&fixed, Timestamp(0));
        assert!(budget.spend(&fixed, &[share_ppm(1)], Timestamp(2_100_000), 50, &NONE));
        budget.pay(&fixed, Timestamp(2_100_000), 30, by);
        let lent = Lent { own: &[40], all: None };
        assert_eq!(budget.left(&fixed, Timestamp(2_200_000), &lent), left, "{by:?}");
    }
}

#[test]
fn a_sliding_window_is_owed_in_the_next_one_as_far_as_it_still_weighs() {
    let rule = rule("100/1s sliding");
    let mut budget = FallbackBudget::open(&rule, Timestamp(0));
    assert!(budget.spend(&rule, &[share_ppm(1)], Timestamp(2_900_000), 80, &NONE));
    assert_eq!(budget.debt(&rule, Timestamp(2_950_000)), 80);
    assert_eq!(budget.debt(&rule, Timestamp(3_000_001)), 80, "rounded up");
    assert_eq!(budget.debt(&rule, Timestamp(3_750_000)), 20);
    assert_eq!(budget.debt(&rule, Timestamp(4_000_000)), 0);
    let mut other = budget.clone();
    // All of it is paid, although it would weigh less later.
    budget.pay(&rule, Timestamp(3_500_000), 40, Payer::Store);
    assert_eq!(budget.debt(&rule, Timestamp(3_500_000)), 0);
    // What is admitted in this window is owed beside it.
    assert!(other.spend(&rule, &[share_ppm(1)], Timestamp(3_500_000), 7, &NONE));
    assert_eq!(other.debt(&rule, Timestamp(3_500_000)), 47);
    other.pay(&rule, Timestamp(3_500_000), 20, Payer::Store);
    assert_eq!(other.debt(&rule, Timestamp(3_500_000)), 27);
    other.pay(&rule, Timestamp(3_500_000), 27, Payer::Store);
    assert_eq!(other.debt(&rule, Timestamp(3_500_000)), 0);
    assert_eq!(other.refund(&rule, [Timestamp(3_500_000); 2], 7), 0, "it is paid");
}

#[test]
fn a_bucket_of_one_token_has_a_share() {
    let rule = rule("1/1s");
    let mut budget = FallbackBudget::open(&rule, Timestamp(10_000_000));
    let times = (0..100).map(|step| 10_000_000 + step * 100_000);
    let total: u64 = times.map(|now| admitted(&mut budget, &rule, share_ppm(1), now)).sum();
    assert!((8..=9).contains(&total), "{total}");
    assert_eq!(admitted(&mut budget, &rule, share_ppm(2), 100_000_000), 0, "another node may have it");
}

#[test]
fn who_is_alone_counts_on_from_what_the_store_said() {
    let rule = rule("1000/1h fixed");
    let (mut budget, now) = (FallbackBudget::open(&rule, Timestamp(30_000_000)), Timestamp(31_000_000));
    let counters = [Counter { used: 600, prev: 0, at: Timestamp(3_600_000_000) }];
    let lent = Lent { own: &[50], all: Some(&counters) };
    let parts = [share_ppm(1)];
    assert_eq!(budget.left(&rule, now, &NONE), 0);
    let spent = (0..1_000).filter(|_| budget.spend(&rule, &parts, now, 1, &lent)).count();
    assert_eq!((spent, budget.left(&rule, now, &lent)), (350, 0), "five in a hundred are nobody's");
    assert_eq!(budget.ready(&rule, &parts, [now; 2], 1, &lent), Some(Timestamp(3_600_000_000)));
    assert_eq!(budget.ready(&rule, &parts, [now; 2], 951, &lent), None);
}

#[test]
fn who_is_alone_remembers_the_window_before_of_a_sliding_limit() {
    let rule = rule("1000/1h sliding");
    let (mut budget, hour, parts) = (FallbackBudget::open(&rule, Timestamp(0)), 3_600_000_000, [share_ppm(1)]);
    let at = |now: u64| [Counter { used: 0, prev: 0, at: Timestamp(now / hour * hour) }];
    let mut spend = |now: u64| {
        let counters = at(now);
        let lent = Lent { own: &[0], all: Some(&counters) };
        (0..1_000).filter(|_| budget.spend(&rule, &parts, Timestamp(now), 1, &lent)).count()
    };
    assert_eq!(spend(hour - 1), 950);
    assert_eq!(spend(hour), 0);
    assert_eq!(spend(hour + hour / 2), 475);
    assert_eq!(spend(3 * hour), 950);
}

/// Limits with windows of different kinds, some long enough to be released by the minute.
const SETS: [&[&str]; 7] = [
    &["10/1s"],
    &["1/1s", "7/3s fixed"],
    &["10/1s", "60/3s fixed", "1000/1h sliding"],
    &["3/1h fixed"],
    &["40/7m sliding", "5/2s fixed"],
    &["20/1s sliding", "100/1m fixed from-first"],
    &["100/1m burst 5", "9/10s fixed", "200/1h fixed"],
];

proptest::proptest! {
    #[test]
    fn waiting_as_told_is_enough_and_less_is_not(
        set in 0..SETS.len(),
        nodes in 1..4u32,
        counted in proptest::bool::ANY,
        steps in proptest::collection::vec((0..4_000_000u64, 0..40u32, 1..12u64), 1..30),
    ) {
        let limits: Vec<_> = SETS[set].iter().map(|text| Limit::parse(text).unwrap()).collect();
        let rule = Rule::of("p", &limits);
        let mut now = Timestamp(1_800_000_000_123_457);
        let mut budget = FallbackBudget::open(&rule, now);
        let parts = vec![share_ppm(nodes); limits.len()];
        let none = vec![0; limits.len()];
        let counters = |now| limits.iter().map(|limit| Counter::default().rolled(limit, now)).collect::<Vec<_>>();
        for (pause, scale, cost) in steps {
            now = now + Micros(pause << (scale / 4));
            let (this, all) = (now, counters(now));
            let lent = Lent { own: &none, all: Some(&*all).filter(|_| counted) };
            let ready = budget.ready(&rule, &parts, [this; 2], cost, &lent);
            let fits = |at: Timestamp| {
                let all = counters(at);
                let lent = Lent { own: &none, all: Some(&*all).filter(|_| counted) };
                budget.clone().spend(&rule, &parts, at, cost, &lent)
            };
            match ready {
                Some(at) => {
                    proptest::prop_assert!(fits(at), "{at:?} of {now:?}");
                    proptest::prop_assert!(at == now || !fits(at - Micros(1)), "{at:?} of {now:?} is late");
                }
                None => proptest::prop_assert!(!fits(now)),
            }
            while budget.spend(&rule, &parts, now, cost, &lent) {}
        }
    }
}

#[test]
fn nobody_owes_anything_while_one_of_the_limits_releases_no_share() {
    let second = |at: u64| Timestamp(at * 1_000_000);
    let spans = |limits: &str, now: u64, found: u64| {
        let limits: Vec<_> = limits.split(" & ").map(|limit| Limit::parse(limit).unwrap()).collect();
        let rule = Rule::of("p", &limits);
        FallbackBudget::open(&rule, second(10)).spans(&rule, second(now), second(found))
    };
    for (limits, now, found, owed) in [
        ("100/1s fixed", 10, 12, false),
        ("100/1s fixed", 11, 13, true),
        ("100/1s fixed & 5000/1m fixed", 11, 13, false),
        ("100/1s fixed & 5000/1m fixed", 57, 59, false),
        ("100/1s fixed & 5000/1m fixed", 58, 60, true),
        ("100/1s fixed & 100/1s", 11, 13, true),
        ("100/1s fixed & 5000/1m fixed from-first", 11, 13, false),
        ("100/1s fixed from-first", 11, 13, false),
        // A token of `5/1m` comes in 12 s, and one of 95 % of it in 12.6 s.
        ("100/1s", 10, 12, true),
        ("5/1m", 20, 22, false),
        ("5/1m", 21, 23, true),
        ("100/1s & 5/1m", 20, 22, false),
        ("100/1s & 5/1m", 21, 23, true),
    ] {
        assert_eq!(spans(limits, now, found), owed, "{limits} at {now} s");
    }
}
