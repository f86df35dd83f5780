//! What a hold gives back: of the windows that it was charged in, and of nothing else. On virtual time, against
//! a store that the test plays.

use crate::support;

use rationd::core::call::{Call, Op, StoreError};
use rationd::core::decision::{Source, Verdict};
use rationd::core::holds::Charge;
use rationd::core::key::Digest;
use rationd::core::shard::{Outcome, Request};
use rationd::core::time::Micros;

use support::bench::{Bench, SECOND};

/// Charges key 0, which must be admitted at once.
fn hold(bench: &mut Bench, cost: u64) -> Charge {
    assert_eq!(bench.check(cost), Some(Verdict::Allow));
    Charge::of(cost, &bench.last.unwrap())
}

/// Gives back; true when the shard settled it alone.
fn give_back(bench: &mut Bench, tokens: u64, charge: &Charge) -> bool {
    let rule = bench.rule.clone();
    let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost: tokens, peek: false };
    let outcome = bench.shard.give_back(bench.now, request, charge);
    bench.advance(Micros::ZERO);
    matches!(outcome, Outcome::Decided(_))
}

fn refunds(bench: &mut Bench) -> Vec<Op> {
    bench.calls().into_iter().map(|call| call.op).filter(|op| matches!(op, Op::Refund { .. })).collect()
}

#[test]
fn what_was_too_much_is_held_again_and_the_rest_is_the_stores_to_credit() {
    let mut bench = Bench::new("100/10s fixed");
    bench.used = 40; // by others
    bench.hold(10);
    let charge = hold(&mut bench, 4);
    assert!(give_back(&mut bench, 3, &charge));
    assert_eq!(bench.held(), 9);
    assert!(!give_back(&mut bench, 9, &charge), "five more were spent here");
    assert_eq!(bench.held(), 14);
    let windows = charge.windows(&bench.rule).unwrap();
    assert_eq!(refunds(&mut bench), [Op::Refund { amount: 4, epoch: charge.epoch, windows }]);
}

#[test]
fn nothing_goes_back_to_another_window() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    let charge = hold(&mut bench, 4);
    bench.settle_window(Micros(10 * SECOND.0));
    bench.hold(10);
    assert_eq!(bench.check(6), Some(Verdict::Allow));
    let held = bench.held();
    assert!(give_back(&mut bench, 4, &charge));
    assert_eq!((bench.held(), refunds(&mut bench)), (held, vec![]));
}

#[test]
fn what_was_never_counted_is_not_given_back() {
    let mut bench = Bench::new("100/10s fixed");
    bench.hold(10);
    let charge = hold(&mut bench, 4);
    let held = bench.held();
    assert!(give_back(&mut bench, 4, &Charge { is_counted: false, ..charge }));
    assert_eq!((bench.held(), refunds(&mut bench)), (held, vec![]));
}

/// Others have reset the key, of which the node hears as it asks for ten. It holds four more.
fn reset_since(limit: &str) -> (Bench, Charge) {
    let (mut bench, charge) = charged_bucket(limit, 100);
    (bench.epoch, bench.was_reset, bench.used) = (6, true, 0);
    assert_eq!(bench.check(10), None);
    let order = bench.acquire();
    bench.grant(&order, 14);
    assert_eq!((bench.replies(), bench.held()), (vec![Verdict::Allow], 4), "{limit}");
    (bench, charge)
}

/// The store has forgotten it together with the charge, and counts what was spent since.
#[test]
fn what_was_charged_before_a_reset_is_not_given_back() {
    for limit in ["1000/100s", "1000/100s fixed"] {
        let (mut bench, charge) = reset_since(limit);
        assert!(give_back(&mut bench, 2, &charge), "{limit}");
        assert_eq!((bench.held(), refunds(&mut bench)), (4, vec![]), "{limit}");
        assert!(give_back(&mut bench, 2, &Charge { epoch: 6, ..charge }), "{limit}");
        assert_eq!(bench.held(), 6, "{limit}: ten were spent here since");
    }
}

/// The node was lent none of it under this epoch, and others have spent most of what the bucket owes.
#[test]
fn what_a_client_takes_back_of_before_a_reset_is_the_stores_to_decide() {
    let (mut bench, _) = reset_since("1000/100s");
    bench.owed_by_others = 100;
    for _ in 0..4 {
        assert_eq!(bench.check(1), Some(Verdict::Allow));
    }
    let order = bench.acquire();
    bench.grant(&order, 1);
    assert!(!bench.refund(15), "fourteen were spent here since");
    let told = bench.calls();
    let is_refund = |call: &&Call| matches!(call.op, Op::Refund { .. });
    told.iter().filter(|call| !is_refund(call)).for_each(|call| bench.grant(call, 0));
    assert_eq!(told.iter().chain(&bench.calls()).filter(is_refund).count(), 1);
}

/// A store that has lost its data is told again what was charged.
#[test]
fn what_was_charged_before_a_loss_is_given_back() {
    let (mut bench, charge) = charged_bucket("1000/100s", 100);
    bench.epoch = 6;
    assert_eq!(bench.check(1), None);
    let order = bench.acquire();
    bench.grant(&order, 0);
    bench.calls();
    assert!(!give_back(&mut bench, 2, &charge));
    assert_eq!(refunds(&mut bench).len(), 1);
}

/// Ten tokens of a share of `100/1s fixed`, of a node that the store has never answered.
fn held_on_a_share() -> (Bench, Charge) {
    let mut bench = Bench::new("100/1s fixed");
    bench.check(1);
    for _ in 0..3 {
        let call = bench.acquire();
        bench.fail(&call, StoreError::Unknown);
    }
    bench.settle_window(SECOND);
    let charge = hold(&mut bench, 10);
    assert_eq!((charge.source, charge.epoch), (Source::Share, 0));
    (bench, charge)
}

/// What a lone node admits of a window on its share, where ten were held and so many of them given back.
fn alone(back: u64) -> usize {
    let (mut bench, charge) = held_on_a_share();
    assert!(give_back(&mut bench, back, &charge));
    assert_eq!(refunds(&mut bench), []);
    (0..100).filter(|_| bench.check(1) == Some(Verdict::Allow)).count()
}

#[test]
fn what_a_share_admitted_goes_back_to_the_share() {
    assert_eq!((alone(0), alone(4)), (85, 89));
}

/// A node that the store had never answered about the key guessed its clock, so the store may have been charged in another window than
/// the node has told its client: it would take the cost off what others are charged there.
#[test]
fn what_a_share_admitted_by_a_guessed_clock_does_not_go_back_once_the_store_was_charged() {
    let (mut bench, charge) = held_on_a_share();
    bench.advance(Micros(250_000));
    bench.check(1);
    let call = bench.acquire();
    let need = bench.order(&call).need;
    assert!(need >= 10, "it pays");
    bench.grant(&call, need);
    bench.calls();
    assert!(give_back(&mut bench, 4, &charge));
    assert_eq!(refunds(&mut bench), []);
}

/// A bucket that was charged for somebody who waited.
fn charged_bucket(limit: &str, cost: u64) -> (Bench, Charge) {
    let mut bench = Bench::new(limit);
    assert_eq!(bench.check(cost), None);
    let order = bench.acquire();
    bench.grant(&order, cost);
    assert_eq!(bench.replies(), [Verdict::Allow]);
    let charge = Charge::of(cost, &bench.last.unwrap());
    (bench, charge)
}

#[test]
fn a_bucket_keeps_what_comes_back_for_the_next_checks() {
    let (mut bench, charge) = charged_bucket("1000/100s", 100);
    assert!(give_back(&mut bench, 40, &charge));
    assert_eq!((bench.held(), refunds(&mut bench)), (40, vec![]));
    assert_eq!(bench.check(30), Some(Verdict::Allow), "the store was charged for it already");
    // Little is left, so that the next order is sent. It says what is held: the store takes that charge back.
    let order = bench.acquire();
    assert_eq!((bench.order(&order).held, bench.order(&order).need), (10, 0));
}

#[test]
fn what_a_bucket_keeps_goes_back_before_its_charge_has_leaked_away() {
    let (mut bench, charge) = charged_bucket("1000/100s", 15);
    // Fifteen tokens are owed for a second and a half, twice five of them for half a second.
    assert!(give_back(&mut bench, 5, &charge));
    bench.advance(Micros(490_000));
    assert_eq!((bench.held(), bench.calls().len()), (5, 0));
    bench.advance(Micros(11_000));
    let returned = |op| if let Op::Return { amount, held, .. } = op { Some((amount, held)) } else { None };
    let calls: Vec<_> = bench.calls().into_iter().filter_map(|call| returned(call.op)).collect();
    assert_eq!((bench.held(), calls), (0, vec![(5, 0)]));
}

#[test]
fn what_a_bucket_owes_no_more_is_the_stores_to_decide() {
    let (mut bench, charge) = charged_bucket("1000/100s", 10);
    bench.advance(Micros(100_000));
    assert!(!give_back(&mut bench, 5, &charge), "nine tokens are owed still");
    assert_eq!(bench.held(), 0);
    assert_eq!(refunds(&mut bench).len(), 1);
}

#[test]
fn without_an_open_account_a_refund_goes_to_the_store() {
    let (mut bench, charge) = charged_bucket("1000/100s", 100);
    bench.advance(Micros(5 * SECOND.0));
    bench.calls();
    assert!(!give_back(&mut bench, 40, &charge));
    assert_eq!((bench.held(), refunds(&mut bench).len()), (0, 1));
}

#[test]
fn what_another_node_spent_is_the_stores_to_take_back() {
    let (mut bench, charge) = charged_bucket("1000/100s", 100);
    assert!(give_back(&mut bench, 40, &charge));
    assert!(!give_back(&mut bench, 61, &charge), "sixty are left of what was spent here");
    // What is kept of the first goes back before.
    let returns = bench.calls().into_iter().filter(|call| matches!(call.op, Op::Return { .. }));
    returns.collect::<Vec<_>>().iter().for_each(|call| bench.grant(call, 0));
    assert_eq!(refunds(&mut bench).len(), 1);
}
