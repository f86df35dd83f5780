//! The memory store over time: windows that end, keys that expire, a table that is full.

use std::sync::Arc;

use rationd::core::call::{
    Acquire, Call, Claim, Counter, Frees, Grant, JUST_NOW, Known, OPEN, Op, StoreError, Voided, Window,
};
use rationd::core::entitled::{generation, lapses};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;

/// A multiple of an hour, and so the start of all windows used here.
const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
const SECOND: Micros = Micros(1_000_000);

struct Bench {
    store: MemoryStore,
    now: Timestamp,
    rule: Arc<Rule>,
    next_id: u64,
}

impl Bench {
    fn new(limits: &[&str]) -> Self {
        Self::of(MemoryStore::new(1_000, 1 << 64 | 1), limits)
    }

    fn of(store: MemoryStore, limits: &[&str]) -> Self {
        let limits = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
        let rule = Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Share });
        Self { store, now: NOW, rule, next_id: 0 }
    }

    fn ask(&mut self, key: u128, node: &str, id: u64, op: Op) -> Result<Grant, StoreError> {
        let call = Call { id, digest: Digest(key), rule: self.rule.clone(), op, sent_at: Instant(0) };
        self.store.call(self.now, node, &call)
    }

    fn lend(&mut self, tokens: u64) -> Grant {
        self.next_id += 1;
        self.ask(1, "a", self.next_id, acquire(tokens)).expect("room")
    }

    fn pass(&mut self, span: Micros) -> &mut Self {
        self.now = self.now + span;
        self
    }
}

fn acquire(tokens: u64) -> Op {
    let known = [Known::default(); MAX_LIMITS];
    Op::Acquire(Acquire {
        need: tokens,
        want: tokens,
        least: 0,
        window: Window::Current,
        epoch: 0,
        held: 0,
        ages: JUST_NOW,
        known,
        until: None,
        claim: None,
    })
}

#[test]
fn aligned_window_is_fresh_at_its_boundary_and_not_before() {
    let mut bench = Bench::new(&["10/10s fixed"]);
    assert_eq!(bench.lend(10).granted, 10);
    assert_eq!(bench.pass(Micros(9_999_999)).lend(1).granted, 0);
    assert_eq!(bench.pass(Micros(1)).lend(11).granted, 10);
}

#[test]
fn what_was_lent_ahead_is_missing_from_the_next_window() {
    let mut bench = Bench::new(&["10/10s fixed"]);
    let Op::Acquire(ask) = acquire(4) else { unreachable!() };
    let ahead = Op::Acquire(Acquire { window: Window::Next { begins: NOW + Micros(10_000_000) }, ..ask });
    assert_eq!(bench.ask(1, "a", 1, ahead).unwrap().granted, 4);
    bench.next_id = 1;
    assert_eq!(bench.lend(10).granted, 10, "this window is whole");
    assert_eq!(bench.pass(Micros(10_000_000)).lend(10).granted, 6);
}

#[test]
fn window_from_first_ends_a_period_after_its_first_token() {
    let mut bench = Bench::new(&["10/10s fixed from-first"]);
    bench.pass(SECOND).lend(4);
    assert_eq!(bench.pass(Micros(9_999_999)).lend(10).granted, 6);
    assert_eq!(bench.pass(Micros(1)).lend(10).granted, 10);
}

#[test]
fn bucket_lends_again_at_its_rate() {
    let mut bench = Bench::new(&["10/10s burst 3"]);
    assert_eq!(bench.lend(9).granted, 3);
    assert_eq!(bench.pass(Micros(999_999)).lend(9).granted, 0);
    assert_eq!(bench.pass(Micros(1)).lend(9).granted, 1);
    assert_eq!(bench.pass(Micros(900_000_000)).lend(9).granted, 3);
}

#[test]
fn sliding_window_remembers_the_last_one_by_its_weight() {
    let mut bench = Bench::new(&["10/10s sliding"]);
    assert_eq!(bench.lend(10).granted, 10);
    assert_eq!(bench.pass(Micros(10_000_000)).lend(10).granted, 0);
    assert_eq!(bench.pass(Micros(5_000_000)).lend(10).granted, 5);
    assert_eq!(bench.pass(Micros(15_000_000)).lend(10).granted, 10);
}

#[test]
fn repeated_acquire_of_a_window_that_is_over_grants_nothing() {
    let mut bench = Bench::new(&["10/10s fixed"]);
    bench.lend(4);
    let repeat = |bench: &mut Bench| bench.ask(1, "a", 1, acquire(4)).map(|grant| (grant.granted, grant.replayed));
    assert_eq!(repeat(bench.pass(Micros(9_999_999))), Ok((4, true)));
    assert_eq!(repeat(bench.pass(Micros(1))), Ok((0, true)));
}

#[test]
fn census_counts_this_period_and_the_last() {
    let mut bench = Bench::new(&["100/10s fixed"]);
    let nodes = |bench: &mut Bench, node: &str| {
        bench.next_id += 1;
        bench.ask(1, node, bench.next_id, acquire(0)).unwrap().nodes
    };
    assert_eq!([nodes(&mut bench, "a"), nodes(&mut bench, "b"), nodes(&mut bench, "a")], [1, 2, 2]);
    bench.pass(Micros(10_000_000));
    assert_eq!([nodes(&mut bench, "a"), nodes(&mut bench, "c")], [2, 3]);
    bench.pass(Micros(10_000_000));
    assert_eq!(nodes(&mut bench, "a"), 2, "b has not asked for a period");
}

#[test]
fn key_expires_when_its_life_ends_and_not_before() {
    let mut bench = Bench::new(&["10/10s fixed"]);
    let epoch = bench.lend(4).epoch;
    let end = bench.store.expires_at(Digest(1)).expect("stored");
    assert_eq!(end, NOW + Micros(20_001_000), "a window after the window, and a millisecond");
    bench.now = end - Micros(1);
    assert_eq!(bench.ask(1, "a", 0, Op::Peek).unwrap().epoch, epoch);
    bench.now = end;
    assert_eq!(bench.ask(1, "a", 0, Op::Peek).unwrap().epoch, 0);
    assert!(bench.store.is_empty());
    assert_ne!(bench.lend(1).epoch, epoch);
}

/// A node that spends slowly tells so every two seconds, and asks for nothing: the key was forgotten six seconds after
/// its acquire, and with it what was set aside.
#[test]
fn key_lasts_as_long_as_a_node_holds_some_of_its_bucket() {
    let mut bench = Bench::new(&["10/1s burst 10"]);
    let Op::Acquire(order) = acquire(1) else { panic!("an acquire") };
    bench.next_id += 1;
    let lent = bench.ask(1, "a", bench.next_id, Op::Acquire(Acquire { want: 10, ..order })).expect("room");
    for told in 1..9 {
        bench.pass(SECOND).pass(SECOND);
        bench.next_id += 1;
        let held = 9 - told;
        let (epoch, voids) = (lent.epoch, None);
        let back = Op::Return { amount: 0, epoch, held, ages: JUST_NOW, windows: OPEN, voids };
        let grant = bench.ask(1, "a", bench.next_id, back).expect("room");
        assert_eq!((grant.epoch, grant.counters[0].used), (lent.epoch, held), "after {told} times 2 s");
    }
}

/// A node has what it was lent for one to two periods, of a sixth of the time in which the bucket fills: of several buckets, the one that
/// fills soonest.
#[test]
fn what_is_lent_of_a_bucket_that_fills_slowly_is_its_nodes_for_longer() {
    for (limits, period) in [
        (&["60/1s burst 60"][..], 2),
        (&["60/1s burst 1439"], 2),
        (&["60/1m"], 10),
        (&["600/1h"], 16),
        (&["600/1h", "60/30s", "60/1d fixed"], 4),
    ] {
        let mut bench = Bench::new(limits);
        bench.now = Timestamp(1_800_000_000_000_000);
        let Op::Acquire(order) = acquire(1) else { unreachable!("it is one") };
        bench.ask(1, "a", 1, Op::Acquire(Acquire { want: 4, ..order })).expect("room");
        let mut held_at = |seconds: u64| {
            bench.now = Timestamp(1_800_000_000_000_000 + seconds * SECOND.0 - 1);
            bench.ask(1, "b", 0, Op::Peek).expect("a look").counters[0].used
        };
        assert_eq!([held_at(2 * period), held_at(2 * period + 1)], [3, 0], "{limits:?}");
    }
}

/// Limits change from buckets whose accounts last for twenty seconds at most to others that know four, and back. What a node says that it
/// holds is set aside once, whoever has taken it for lapsed.
#[test]
fn what_lapses_sooner_under_other_limits_is_set_aside_anew_when_its_node_says_that_it_has_it() {
    let mut bench = Bench::new(&["60/1m"]);
    bench.now = Timestamp(1_800_000_000_000_000);
    let slow = bench.rule.clone();
    let quick = Bench::new(&["60/1s burst 60"]).rule;
    let Op::Acquire(order) = acquire(1) else { unreachable!("it is one") };
    bench.ask(1, "a", 1, Op::Acquire(Acquire { want: 4, ..order })).expect("room");
    bench.now = bench.now + Micros(5 * SECOND.0);
    bench.rule = quick;
    let seen = bench.ask(1, "b", 2, acquire(1)).expect("room");
    assert_eq!(seen.counters[0].used, 0, "charged");
    bench.rule = slow;
    bench.now = bench.now + SECOND;
    let kept = bench.ask(1, "a", 3, Op::Acquire(Acquire { need: 0, want: 0, held: 3, ..order })).expect("room");
    assert_eq!(kept.counters[0].used, 3, "of what it was lent none is spent");
}

#[test]
fn what_a_node_keeps_of_an_account_that_was_over_is_set_aside() {
    let mut bench = Bench::new(&["10/1h burst 8"]);
    let Op::Acquire(order) = acquire(1) else { unreachable!("it is one") };
    let lent = bench.ask(1, "a", 1, Op::Acquire(Acquire { want: 3, ..order })).expect("room");
    assert_eq!((lent.granted, lent.counters[0].used), (3, 2));
    // Nobody has accounted for them in two periods of sixteen seconds: they count as spent, until the node says that it has
    // spent none, and hands one of them back.
    bench.pass(Micros(49 * SECOND.0));
    let (epoch, voids) = (lent.epoch, None);
    let back = Op::Return { amount: 1, epoch, held: 1, voids, ages: JUST_NOW, windows: OPEN };
    let after = bench.ask(1, "a", 2, back).expect("room").counters[0];
    assert_eq!((after.used, after.at), (1, lent.counters[0].at));
}

#[test]
fn reset_lives_for_two_periods() {
    let mut bench = Bench::new(&["10/10s fixed"]);
    bench.lend(4);
    bench.pass(SECOND).ask(1, "a", 9, Op::Reset).unwrap();
    assert_eq!(bench.store.expires_at(Digest(1)), Some(bench.now + Micros(20_001_000)));
}

#[test]
fn live_keys_are_never_evicted_for_new_ones() {
    let mut bench = Bench::of(MemoryStore::new(3, 1 << 64 | 1), &["10/10s fixed"]);
    for key in 1..=3 {
        bench.ask(key, "a", 0, acquire(4)).unwrap();
    }
    assert_eq!(bench.ask(4, "a", 0, acquire(1)), Err(StoreError::Full));
    assert!(bench.ask(4, "a", 0, Op::Peek).is_ok(), "only a new key needs room");
    for key in 1..=3 {
        assert_eq!(bench.ask(key, "a", 0, acquire(9)).unwrap().granted, 6, "key {key} was kept");
    }
    bench.pass(Micros(20_001_000));
    assert_eq!(bench.ask(4, "a", 0, acquire(1)).unwrap().granted, 1, "expired keys make room");
}

#[test]
fn reset_of_a_key_succeeds_in_a_full_table() {
    let mut bench = Bench::of(MemoryStore::new(2, 1 << 64 | 1), &["10/10s fixed", "20/1h fixed"]);
    bench.ask(1, "a", 0, acquire(4)).unwrap();
    let grant = bench.ask(1, "a", 0, Op::Reset).unwrap();
    assert_eq!((grant.reset, grant.epoch, grant.counters[1].used), (true, 2, 0));
    assert_eq!(bench.ask(1, "a", 0, acquire(10)).unwrap().granted, 10);
}

#[test]
fn key_of_one_limit_costs_less_than_sixty_bytes() {
    let mut bench = Bench::of(MemoryStore::new(1 << 20, 1 << 64 | 1), &["10/1h fixed"]);
    for key in 0..100_000_u128 {
        bench.ask((key << 64) | (key * 7), "a", 0, acquire(1)).unwrap();
    }
    let each = bench.store.bytes() / bench.store.len();
    assert!((50..60).contains(&each), "{each} bytes a key");
}

/// A node's acquire of so many tokens, where a fifth of the demand for a window of 100 tokens is its own, and it believes that so
/// many are set aside for it.
fn claim(tokens: u64, believes: impl Into<Option<u64>>, frees: Frees) -> Op {
    let Op::Acquire(ask) = acquire(tokens) else { unreachable!() };
    Op::Acquire(Acquire { claim: Some(Claim { believes: believes.into(), demand: 20, frees, owes: 0 }), ..ask })
}

/// Nodes of whom each has asked twice, and knows what is set aside for it; in the window after that.
fn entitled(nodes: [&str; 5]) -> (Bench, [u64; 5]) {
    entitled_to("100/10s fixed", nodes)
}

fn entitled_to(limit: &str, nodes: [&str; 5]) -> (Bench, [u64; 5]) {
    let mut bench = Bench::new(&[limit]);
    Arc::get_mut(&mut bench.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Entitled;
    let mut known = [0; 5];
    for _ in 0..3 {
        for (node, known) in nodes.iter().zip(&mut known) {
            bench.next_id += 1;
            *known = bench.ask(1, node, bench.next_id, claim(0, *known, Frees::AtAnyTime)).expect("room").entitled;
        }
    }
    bench.pass(Micros(10_000_000));
    (bench, known)
}

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];

impl Bench {
    fn claim(&mut self, node: &str, op: Op) -> Grant {
        self.next_id += 1;
        self.ask(1, node, self.next_id, op).expect("room")
    }
}

#[test]
fn what_is_set_aside_follows_demand_and_is_95_percent_at_most() {
    let (_, known) = entitled(NODES);
    assert_eq!(known, [19; 5]);
}

#[test]
fn nobody_is_lent_what_is_set_aside_for_nodes_that_have_not_called() {
    let (mut bench, _) = entitled(NODES);
    let grant = bench.claim("a", claim(100, 19, Frees::AtAnyTime));
    assert_eq!((grant.granted, grant.counters[0].used), (24, 100), "its own, and what is nobody's");
    assert_eq!(bench.claim("b", claim(100, 19, Frees::AtAnyTime)).granted, 19);
    for node in ["c", "d"] {
        assert_eq!(bench.claim(node, claim(0, 19, Frees::AtAnyTime)).granted, 0);
    }
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 38, "they have called");
    assert_eq!(bench.claim("e", claim(100, 19, Frees::AtAnyTime)).granted, 19);
}

#[test]
fn a_call_that_only_looks_frees_nothing_and_is_lent_nothing() {
    for frees in [Frees::Never, Frees::Until(NOW + Micros(9_999_999))] {
        let (mut bench, _) = entitled(NODES);
        assert_eq!(bench.claim("b", claim(5, 19, frees)).granted, 0);
        assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24);
    }
}

#[test]
fn a_call_ahead_of_a_window_frees_what_is_set_aside_of_it() {
    let (mut bench, _) = entitled(NODES);
    let Op::Acquire(ask) = claim(1, 19, Frees::AtAnyTime) else { unreachable!() };
    let ahead = Op::Acquire(Acquire { window: Window::Next { begins: NOW + Micros(20_000_000) }, ..ask });
    assert_eq!(bench.claim("b", ahead).granted, 1);
    bench.pass(Micros(10_000_000));
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 5 + 19 + 19 - 1);
}

#[test]
fn a_lowered_entitlement_stays_set_aside_until_its_node_knows() {
    let (mut bench, _) = entitled(NODES);
    let Op::Acquire(ask) = claim(0, 19, Frees::AtAnyTime) else { unreachable!() };
    let few = |believes| Claim { believes: Some(believes), demand: 0, frees: Frees::AtAnyTime, owes: 0 };
    let told = bench.claim("b", Op::Acquire(Acquire { claim: Some(few(19)), ..ask }));
    assert_eq!(told.entitled, 0);
    bench.pass(Micros(10_000_000));
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24, "the answer may have been lost");
    bench.claim("b", Op::Acquire(Acquire { claim: Some(few(0)), ..ask }));
    bench.pass(Micros(10_000_000));
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24 + 19);
}

#[test]
fn who_was_told_that_nothing_is_set_aside_for_it_frees_what_was() {
    let (mut bench, _) = entitled(NODES);
    bench.claim("b", claim(0, 0, Frees::AtAnyTime));
    bench.pass(Micros(10_000_000));
    for node in ["a", "b"] {
        assert_eq!(bench.claim(node, claim(0, 19, Frees::AtAnyTime)).entitled, 19);
    }
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24 + 19);
}

#[test]
fn another_process_under_the_name_frees_nothing_in_the_window_in_which_it_comes() {
    let (mut bench, _) = entitled(NODES);
    let grant = bench.claim("b", claim(0, None, Frees::AtAnyTime));
    assert_eq!(grant.entitled, 19);
    bench.claim("b", claim(0, 19, Frees::AtAnyTime));
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24, "the one before may have spent it");
    bench.pass(Micros(10_000_000)).claim("b", claim(0, 19, Frees::AtAnyTime));
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24 + 19);
}

#[test]
fn an_entitlement_lapses_that_is_not_renewed_and_outlasts_the_window_till_then() {
    let (mut bench, _) = entitled(NODES);
    bench.now = Timestamp(lapses(generation(NOW)).0 - 10_000_000);
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24);
    bench.pass(Micros(10_000_000));
    let lent = bench.claim("a", claim(100, 19, Frees::AtAnyTime));
    assert_eq!((lent.granted, lent.entitled), (100, 80), "nobody else asks, and it is four times what it uses");
}

#[test]
fn four_times_what_a_node_uses_is_set_aside_for_it_at_most() {
    for limit in ["100/10s fixed", SLIDING] {
        for (demand, entitled) in [(1, 4), (20, 80), (24, 95)] {
            let mut bench = Bench::new(&[limit]);
            Arc::get_mut(&mut bench.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Entitled;
            let Op::Acquire(ask) = claim(0, 0, Frees::AtAnyTime) else { unreachable!() };
            let wish = Claim { demand, ..ask.claim.expect("it claims") };
            let given = bench.claim("a", Op::Acquire(Acquire { claim: Some(wish), ..ask })).entitled;
            assert_eq!(given, entitled, "{limit} {demand}");
            bench.pass(Micros(10_000_000));
            assert_eq!(bench.claim("b", claim(100, 0, Frees::AtAnyTime)).granted, 100 - entitled, "{limit} {demand}");
        }
    }
}

#[test]
fn a_reset_forgets_what_was_spent_and_not_what_is_set_aside() {
    let (mut bench, _) = entitled(NODES);
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24);
    assert_eq!(bench.claim("a", Op::Reset).counters[0].used, 76);
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24);
}

#[test]
fn what_a_void_acquire_had_freed_is_set_aside_again() {
    let (mut bench, _) = entitled(NODES);
    // It has spent five of its part, and its acquire, of which it hears nothing, is to pay for them.
    let Op::Acquire(ask) = claim(5, 19, Frees::AtAnyTime) else { unreachable!() };
    let owing = bench.claim("b", Op::Acquire(Acquire { need: 5, ..ask }));
    assert_eq!(owing.granted, 5);
    let voids = Some(Voided { id: bench.next_id, need: 5, ..Voided::default() });
    let back = Op::Return { amount: 0, epoch: owing.epoch, held: 0, ages: JUST_NOW, windows: OPEN, voids };
    bench.claim("b", back);
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24, "the five have been admitted");
    assert_eq!(bench.claim("b", claim(100, 19, Frees::AtAnyTime)).granted, 19, "they are there to be paid");
}

/// The others were lent meanwhile what the acquire had freed. Were it set aside again beside that, more would be lent and set aside than
/// the limit, and who comes back would not be lent what it has to pay.
#[test]
fn what_a_void_acquire_had_freed_is_not_set_aside_again_where_others_were_lent_it() {
    for limit in ["100/10s fixed", FROM_FIRST, SLIDING] {
        let (mut bench, _) = entitled_to(limit, NODES);
        let Op::Acquire(ask) = claim(7, 19, Frees::AtAnyTime) else { unreachable!() };
        // Of these seven somebody waited for five, or they were to pay.
        let lent = bench.claim("b", Op::Acquire(Acquire { need: 5, ..ask }));
        let voids = Some(Voided { id: bench.next_id, need: 5, ..Voided::default() });
        let rest = bench.claim("a", claim(100, 19, Frees::AtAnyTime));
        assert_eq!((lent.granted, rest.granted), (7, 36), "{limit}: all but what is set aside for three");
        let back = Op::Return { amount: 0, epoch: lent.epoch, held: 0, ages: JUST_NOW, windows: OPEN, voids };
        bench.claim("b", back);
        for node in ["c", "d", "e"] {
            let pays = bench.claim(node, claim(19, 19, Frees::AtAnyTime)).granted;
            assert_eq!(pays, 19, "{limit}: {node} has admitted them without the store");
        }
        let left = bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted;
        assert_eq!(left, 2, "{limit}: what the acquire was to pay stays charged, and the rest has come back");
    }
}

const SLIDING: &str = "100/10s sliding";
const FROM_FIRST: &str = "100/10s fixed from-first";

/// A window opens with the call that is lent the first of it, and who has called in one is as silent as the others in the next.
#[test]
fn nobody_is_lent_what_is_set_aside_of_a_window_from_the_first_request() {
    let (mut bench, known) = entitled_to(FROM_FIRST, NODES);
    assert_eq!(known, [19; 5]);
    for node in ["a", "b"] {
        let begun = bench.now;
        let grant = bench.claim(node, claim(100, 19, Frees::AtAnyTime));
        let Counter { used, at, .. } = grant.counters[0];
        assert_eq!((grant.granted, used, at), (24, 100, begun + Micros(10_000_000)), "its own, and what is nobody's");
        bench.pass(Micros(7_000_000));
        assert_eq!(bench.claim("c", claim(100, 19, Frees::AtAnyTime)).granted, 19);
        assert_eq!(bench.claim("c", claim(100, 19, Frees::AtAnyTime)).granted, 0, "what it frees is free once");
        bench.pass(Micros(3_000_000));
    }
}

/// All there is is set aside for others. If the answer named no window it would say that nothing is used, and the node would ask
/// again at once.
#[test]
fn a_window_opens_with_the_first_request_also_where_that_is_lent_nothing() {
    let (mut bench, _) = entitled_to(FROM_FIRST, NODES);
    let looks = bench.claim("f", claim(0, 0, Frees::AtAnyTime)).counters[0];
    assert_eq!(looks.at, Timestamp(0), "who wants nothing opens none");
    let Op::Acquire(ask) = claim(6, 0, Frees::AtAnyTime) else { unreachable!() };
    let told = bench.claim("f", Op::Acquire(Acquire { least: 6, ..ask }));
    assert_eq!((told.granted, told.counters[0].at), (0, bench.now + Micros(10_000_000)));
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 19 + 5 - told.entitled);
}

#[test]
fn nobody_is_lent_what_is_set_aside_of_a_sliding_window_for_nodes_that_have_not_called() {
    let (mut bench, known) = entitled_to(SLIDING, NODES);
    assert_eq!(known, [19; 5]);
    let grant = bench.claim("a", claim(100, 19, Frees::AtAnyTime));
    let Counter { used, prev, .. } = grant.counters[0];
    assert_eq!((grant.granted, used, prev), (24, 100, 0), "its own, and what is nobody's");
    bench.pass(Micros(5_000_000));
    assert_eq!(
        bench.claim("b", claim(100, 19, Frees::AtAnyTime)).granted,
        19,
        "in the midst of it as at its beginning"
    );
}

#[test]
fn what_was_set_aside_of_the_sliding_window_before_for_silent_nodes_weighs_as_if_it_was_used() {
    let (mut bench, _) = entitled_to(SLIDING, NODES);
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 24);
    bench.pass(Micros(10_000_000));
    // The window before has 24 that are used, and 76 that others may have admitted; of this one they may admit as many more.
    let grant = bench.claim("a", claim(100, 19, Frees::AtAnyTime));
    let Counter { used, prev, .. } = grant.counters[0];
    assert_eq!((grant.granted, used, prev), (0, 76, 24));
    bench.pass(Micros(5_000_000));
    let peek = bench.claim("a", Op::Peek).counters[0];
    assert_eq!((peek.used, peek.prev), (76, 24), "however often it is asked");
    assert_eq!(bench.claim("a", claim(100, 19, Frees::AtAnyTime)).granted, 12);
    // Another one has admitted half of what is its own, which it frees now, and pays.
    assert_eq!(bench.claim("b", claim(9, 19, Frees::AtAnyTime)).granted, 9);
}

#[test]
fn sliding_windows_in_which_nobody_called_weigh_as_all_that_was_set_aside() {
    let (mut bench, _) = entitled_to(SLIDING, NODES);
    bench.pass(Micros(20_000_000));
    let grant = bench.claim("a", claim(100, 19, Frees::AtAnyTime));
    assert_eq!((grant.granted, grant.counters[0].used, grant.counters[0].prev), (5, 81, 19));
}

#[test]
fn what_was_freed_of_a_sliding_window_is_not_set_aside_once_more_for_another_process_under_the_name() {
    let (mut bench, _) = entitled_to(SLIDING, NODES);
    assert_eq!(bench.claim("b", claim(19, 19, Frees::AtAnyTime)).granted, 19);
    let told = bench.claim("b", claim(0, None, Frees::AtAnyTime)).counters[0];
    assert_eq!((told.used, told.prev), (19 + 76, 0), "what is lent, and what is set aside for the four others");
    bench.pass(Micros(10_000_000));
    let told = bench.claim("a", claim(0, 19, Frees::AtAnyTime)).counters[0];
    assert_eq!((told.used, told.prev), (76, 19 + 76 - 76));
}

#[test]
fn what_grows_for_another_process_under_the_name_nobody_may_have_spent_of_the_sliding_window_in_which_it_comes() {
    let (mut bench, _) = entitled_to(SLIDING, NODES);
    let Op::Acquire(ask) = claim(0, 0, Frees::AtAnyTime) else { unreachable!() };
    let none = Claim { believes: Some(0), demand: 0, frees: Frees::AtAnyTime, owes: 0 };
    bench.claim("a", Op::Acquire(Acquire { claim: Some(none), ..ask }));
    let told = bench.claim("b", claim(0, None, Frees::AtAnyTime));
    assert_eq!((told.entitled, told.counters[0].used), (24, 4 * 19), "19 of b's may have been spent");
    let told = bench.claim("b", claim(0, 24, Frees::AtAnyTime));
    assert_eq!((told.entitled, told.counters[0].used), (24, 4 * 19), "whatever it asks for in that window");
    bench.pass(Micros(10_000_000));
    let told = bench.claim("a", claim(0, 0, Frees::AtAnyTime)).counters[0];
    assert_eq!((told.used, told.prev), (24 + 3 * 19, 0), "more than four times 19");
}

#[test]
fn what_lapses_as_a_sliding_window_begins_weighs_in_it_all_the_same() {
    // In the last microsecond before it lapses, in the window that begins then, and after that.
    for (at, used) in [(-1, (95, 0)), (0, (0, 95)), (9_999_999, (0, 95)), (10_000_000, (0, 0))] {
        let (mut bench, _) = entitled_to(SLIDING, NODES);
        bench.now = Timestamp(lapses(generation(NOW)).0.saturating_add_signed(at));
        let told = bench.claim("f", Op::Peek).counters[0];
        assert_eq!((told.used, told.prev), used, "{at}");
    }
}

/// The parts of two nodes of a bucket of 100 tokens, each of which has asked twice.
fn entitled_bucket() -> (Bench, [u64; 2]) {
    let mut bench = Bench::new(&["10/1s burst 100"]);
    Arc::get_mut(&mut bench.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Entitled;
    let mut known = [0; 2];
    for _ in 0..3 {
        for (node, known) in ["a", "b"].iter().zip(&mut known) {
            *known = bench.claim(node, claim(0, *known, Frees::AtAnyTime)).entitled;
        }
    }
    (bench, known)
}

/// An acquire of so many tokens of which nobody waits, where so many are held.
fn keep(tokens: u64, held: u64, believes: u64) -> Op {
    let Op::Acquire(ask) = claim(0, believes, Frees::AtAnyTime) else { unreachable!() };
    Op::Acquire(Acquire { want: tokens, held, ..ask })
}

/// When the second period after this one begins, in which who calls no more is silent.
const SILENT: Micros = Micros(4_000_000);

#[test]
fn nothing_of_a_bucket_is_withheld_while_all_call() {
    let (mut bench, known) = entitled_bucket();
    assert_eq!(known, [475_000; 2]);
    assert_eq!(bench.pass(Micros(3_999_999)).claim("a", claim(100, known[0], Frees::AtAnyTime)).granted, 100);
}

#[test]
fn who_falls_silent_leaves_its_part_of_a_bucket_to_nobody() {
    let (mut bench, known) = entitled_bucket();
    bench.pass(SILENT);
    let told = bench.claim("a", claim(100, known[0], Frees::AtAnyTime));
    assert_eq!((told.granted, told.counters[0].used), (52, 48), "47.5 tokens are the part of b");
    // In a second ten come, of which b has 4.75 from the next period on. In this one its share is empty.
    for granted in [10, 10, 5, 5] {
        bench.pass(SECOND);
        assert_eq!(bench.claim("a", claim(100, known[0], Frees::AtAnyTime)).granted, granted);
    }
    let owes = |owes| {
        let Op::Acquire(ask) = claim(0, known[1], Frees::AtAnyTime) else { unreachable!() };
        let claim = ask.claim.map(|claim| Claim { owes, ..claim });
        Op::Acquire(Acquire { claim, ..ask })
    };
    bench.claim("b", owes(40));
    assert_eq!(
        bench.claim("a", claim(100, known[0], Frees::AtAnyTime)).granted,
        8,
        "b is back, and has spent all but 8"
    );
}

#[test]
fn who_falls_silent_beside_silent_nodes_is_charged_for_at_once() {
    let mut bench = Bench::new(&["10/1s burst 100"]);
    Arc::get_mut(&mut bench.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Entitled;
    let mut known = [0; 3];
    let mut ask = |bench: &mut Bench, node: usize, tokens| {
        let told = bench.claim(["a", "b", "c"][node], claim(tokens, known[node], Frees::AtAnyTime));
        known[node] = told.entitled;
        told.granted
    };
    for _ in 0..4 {
        (0..3).for_each(|node| _ = ask(&mut bench, node, 0));
    }
    bench.pass(Micros(2_000_000));
    (0..2).for_each(|node| _ = ask(&mut bench, node, 0));
    // The part of each is 31 tokens and two thirds. Now c is silent, and is not charged for: its share is empty.
    assert_eq!(ask(bench.pass(Micros(2_000_000)), 0, 30), 30);
    // Now b is silent, too, and 10 of the 30 are left. In two seconds 20 come, of which b and c have 12.7, so that 2.7 are left.
    assert_eq!(ask(bench.pass(Micros(2_000_000)), 0, 0), 0);
    assert_eq!(ask(bench.pass(Micros(2_000_000)), 0, 100), 100 - 64 - 3);
}

#[test]
fn accounts_are_renewed_only_up_to_what_silent_nodes_leave() {
    let (mut bench, known) = entitled_bucket();
    bench.pass(Micros(2_000_000));
    let mut held = 0;
    for _ in 0..3 {
        held += bench.claim("a", keep(100, held, known[0])).granted;
    }
    assert!(held > 80, "{held}");
    bench.pass(Micros(2_000_000));
    let told = bench.claim("a", keep(0, held, known[0]));
    assert_eq!(told.not_kept, held - 52);
    bench.pass(Micros(2_000_000));
    let left = bench.claim("a", keep(0, 52, known[0]));
    assert_eq!((left.not_kept, left.counters[0].used), (0, 52 + 48));
}

#[test]
fn another_process_under_the_name_is_charged_what_the_one_before_may_have_spent() {
    let (mut bench, known) = entitled_bucket();
    bench.pass(SILENT);
    bench.claim("b", claim(0, None, Frees::AtAnyTime));
    assert_eq!(bench.claim("a", claim(100, known[0], Frees::AtAnyTime)).granted, 52);
}

#[test]
fn a_part_of_a_bucket_that_lapses_is_charged() {
    let (mut bench, known) = entitled_bucket();
    let lapses = lapses(generation(NOW));
    for second in 1..lapses.0 / 1_000_000 - NOW.0 / 1_000_000 {
        bench.now = NOW + Micros(second * 1_000_000);
        bench.claim("a", claim(0, known[0], Frees::AtAnyTime));
    }
    bench.now = lapses;
    assert_eq!(bench.claim("a", claim(100, known[0], Frees::AtAnyTime)).granted, 52);
    for _ in 0..10 {
        bench.pass(SECOND).claim("a", claim(0, known[0], Frees::AtAnyTime));
    }
    assert_eq!(bench.claim("a", claim(100, known[0], Frees::AtAnyTime)).granted, 100);
}
