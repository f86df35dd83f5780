//! What every store does, whatever it is made of: one suite over all of them.
//!
//! Real stores go by their own clock, so nothing here depends on the time: the periods are so long
//! that no window ends. What time changes is in `store_parity.rs` and in the stores' own tests.

use std::sync::Arc;

use rationd::core::call::{Acquire, CALL_LIFE, Call, Grant, JUST_NOW, Known, OPEN, Op, Voided, Window, Windows};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros, Timestamp};

/// One store as several nodes see it.
pub trait Stores {
    /// The answer to a call of node 0, 1 or 2. A store that does not answer fails the test.
    fn call(&mut self, node: usize, call: &Call) -> Grant;
}

/// One key that nobody has asked for.
pub struct Key<'a> {
    stores: &'a mut dyn Stores,
    digest: Digest,
    rule: Arc<Rule>,
    next_id: u64,
}

/// Stands for Y in a limit's text: longer than any test.
const YEAR: &str = "366d";

/// Runs the whole suite; a failure names the behaviour.
pub fn run(stores: &mut dyn Stores) {
    for (name, behaviour) in BEHAVIOURS {
        println!("behaviour: {name}");
        let digest = Digest(u128::from(rationd::clock::random()) << 64 | u128::from(rationd::clock::random()));
        behaviour(&mut Key { stores, digest, rule: rule(&["10/Y fixed"]), next_id: 1 << 40 });
    }
    println!("{} behaviours hold", BEHAVIOURS.len());
}

type Behaviour = fn(&mut Key<'_>);

const BEHAVIOURS: &[(&str, Behaviour)] = &[
    ("lends the limit once, to all nodes together", lends_the_limit_once),
    ("lends what is left, or nothing when that is too little", lends_a_part),
    ("debits a repeated acquire once", debits_a_repeated_acquire_once),
    ("lends nothing to a duplicate of an older acquire", lends_nothing_to_an_older_duplicate),
    ("executes an acquire of which it may have forgotten in its time only", executes_in_its_time_only),
    ("remembers nothing of id 0", remembers_nothing_of_id_zero),
    ("takes unspent tokens back once", takes_tokens_back_once),
    ("takes nothing back of another epoch or window", takes_nothing_back_of_another_time),
    ("refunds once and never above the limit", refunds_once_and_never_above),
    ("refunds of the windows that were charged", refunds_of_the_windows_that_were_charged),
    ("forgets on reset, and hears nothing of before", forgets_on_reset),
    ("credits nothing of before a reset", a_refund_of_a_charge_from_before_a_reset_credits_nothing),
    ("credits what was brought back", a_refund_of_an_epoch_that_was_lost_credits_what_was_brought_back),
    ("counts its nodes after a reset as before", counts_who_uses_the_key_after_a_reset_as_before),
    ("begins an epoch with each reset", resets_never_bring_an_epoch_back),
    ("creates nothing but by an acquire", creates_nothing_but_by_an_acquire),
    ("is lifted to what a node knows", is_lifted_to_what_a_node_knows),
    ("begins another epoch than the one that was lost", begins_another_epoch),
    ("counts nodes and shares what is left", shares_what_is_left),
    ("lends of several limits all or nothing", lends_of_several_limits),
    ("lends ahead from the next window", lends_ahead),
    ("takes back what an order was lent that is void", takes_back_what_a_void_order_was_lent),
    ("charges an account that the node knows nothing of", charges_an_account_that_the_node_knows_nothing_of),
    ("sets aside what a bucket lends until it is spent or back", sets_aside_what_a_bucket_lends),
    ("opens a window from first when tokens are lent", opens_a_window_from_first),
    ("slides", slides),
    ("keeps what was spent when the policy changes", keeps_what_was_spent),
    ("keeps what is owed when a bucket's numbers change", keeps_what_is_owed),
    ("counts beyond 2^32, and to 2^53", counts_beyond_32_bits),
];

fn rule(limits: &[&str]) -> Arc<Rule> {
    let limit = |text: &&str| Limit::parse(&text.replace('Y', YEAR)).expect(text);
    let limits = limits.iter().map(limit).collect();
    Arc::new(Rule { policy: "suite".into(), limits, on_store_loss: OnStoreLoss::Share })
}

fn ask(tokens: u64) -> Acquire {
    let known = [Known::default(); MAX_LIMITS];
    let (window, until) = (Window::Current, None);
    Acquire {
        need: tokens,
        want: tokens,
        least: 0,
        window,
        epoch: 0,
        held: 0,
        ages: JUST_NOW,
        known,
        until,
        claim: None,
    }
}

impl Key<'_> {
    fn limited(&mut self, limits: &[&str]) -> &mut Self {
        self.rule = rule(limits);
        self
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn call(&mut self, node: usize, id: u64, op: Op) -> Grant {
        let call = Call { id, digest: self.digest, rule: self.rule.clone(), op, sent_at: Instant(0) };
        self.stores.call(node, &call)
    }

    fn acquire(&mut self, node: usize, ask: Acquire) -> Grant {
        let id = self.id();
        self.call(node, id, Op::Acquire(ask))
    }

    fn lend(&mut self, tokens: u64) -> Grant {
        self.acquire(0, ask(tokens))
    }

    fn peek(&mut self) -> Grant {
        self.call(0, 0, Op::Peek)
    }

    fn used(&mut self) -> u64 {
        self.peek().counters[0].used
    }
}

fn windows(grant: &Grant) -> Windows {
    grant.counters.map(|counter| counter.at.stored())
}

fn lends_the_limit_once(key: &mut Key<'_>) {
    assert_eq!((key.lend(6).granted, key.acquire(1, ask(6)).granted, key.acquire(2, ask(1)).granted), (6, 4, 0));
    let grant = key.peek();
    assert_eq!((grant.counters[0].used, grant.counters[1].used), (10, 0));
    let (now, end, period) = (grant.now, grant.counters[0].at, key.rule.limits[0].period.0);
    assert!(end > now && end.0 % period == 0, "{end:?} is the end of an aligned window");
}

fn lends_a_part(key: &mut Key<'_>) {
    key.lend(7);
    assert_eq!(key.acquire(0, Acquire { least: 4, ..ask(5) }).granted, 0);
    assert_eq!(key.used(), 7);
    assert_eq!(key.acquire(0, Acquire { least: 3, ..ask(5) }).granted, 3);
}

fn debits_a_repeated_acquire_once(key: &mut Key<'_>) {
    let id = key.id();
    let first = key.call(0, id, Op::Acquire(ask(4)));
    let again = key.call(0, id, Op::Acquire(ask(4)));
    assert_eq!((again.granted, again.replayed, again.epoch), (4, true, first.epoch));
    assert_eq!(again.counters, first.counters);
    let other = key.call(1, id, Op::Acquire(ask(4)));
    assert_eq!((other.granted, other.replayed), (4, false), "ids are of one node");
}

fn lends_nothing_to_an_older_duplicate(key: &mut Key<'_>) {
    let older = key.id();
    key.call(0, older, Op::Acquire(ask(2)));
    key.lend(3);
    let late = key.call(0, older, Op::Acquire(ask(2)));
    assert_eq!((late.granted, late.replayed, late.outdated), (0, false, true));
    assert_eq!(key.used(), 5);
}

fn executes_in_its_time_only(key: &mut Key<'_>) {
    let now = key.peek().now;
    let early = now + CALL_LIFE + Micros::from_secs(60);
    for until in [Timestamp(now.0 - 1).stored(), early.stored()] {
        let grant = key.acquire(0, Acquire { until, ..ask(3) });
        assert_eq!((grant.granted, grant.late, grant.epoch), (0, true, 0), "{until:?} at {now:?}");
    }
    assert_eq!(key.used(), 0);
    let (id, until) = (key.id(), (now + CALL_LIFE).stored());
    assert_eq!(key.call(0, id, Op::Acquire(Acquire { until, ..ask(3) })).granted, 3);
    // What it remembers of the node tells it more than the time does.
    let (past, another) = (Timestamp(now.0 - 1).stored(), key.id());
    let again = key.call(0, id, Op::Acquire(Acquire { until: past, ..ask(3) }));
    assert_eq!((again.granted, again.replayed, again.late), (3, true, false));
    assert_eq!(key.call(0, another, Op::Acquire(Acquire { until: past, ..ask(3) })).granted, 3);
    assert!(key.acquire(1, Acquire { until: past, ..ask(3) }).late, "of another node it remembers nothing");
    assert_eq!(key.used(), 6);
}

fn remembers_nothing_of_id_zero(key: &mut Key<'_>) {
    for wanted in [4, 4, 2, 0] {
        let grant = key.call(0, 0, Op::Acquire(ask(4)));
        assert_eq!((grant.granted, grant.replayed, grant.nodes, grant.epoch), (wanted, false, 1, 1));
    }
}

fn takes_tokens_back_once(key: &mut Key<'_>) {
    let grant = key.lend(6);
    let (id, op) = (
        key.id(),
        Op::Return { amount: 4, epoch: grant.epoch, held: 0, voids: None, ages: JUST_NOW, windows: windows(&grant) },
    );
    let taken = key.call(0, id, op);
    assert_eq!((taken.granted, taken.replayed, taken.counters[0].used), (4, false, 2));
    let again = key.call(0, id, op);
    assert_eq!((again.granted, again.replayed, again.counters[0].used), (0, true, 2));
    assert_eq!(key.lend(9).granted, 8);
}

fn takes_nothing_back_of_another_time(key: &mut Key<'_>) {
    let grant = key.lend(6);
    let lent = windows(&grant);
    let mut earlier = lent;
    earlier[0] = (grant.counters[0].at - key.rule.limits[0].period).stored();
    for (epoch, windows) in
        [(grant.epoch + 1, lent), (0, lent), (grant.epoch, earlier), (grant.epoch, Default::default())]
    {
        let id = key.id();
        let taken = key.call(0, id, Op::Return { amount: 4, epoch, held: 0, voids: None, ages: JUST_NOW, windows });
        assert_eq!((taken.granted, taken.counters[0].used), (0, 6), "{epoch} {windows:?}");
    }
}

fn refunds_once_and_never_above(key: &mut Key<'_>) {
    key.lend(6);
    let id = key.id();
    assert_eq!(key.call(0, id, Op::Refund { amount: 2, epoch: 0, windows: OPEN }).counters[0].used, 4);
    let again = key.call(0, id, Op::Refund { amount: 2, epoch: 0, windows: OPEN });
    assert_eq!((again.granted, again.replayed, again.counters[0].used), (0, true, 4));
    assert_eq!(key.call(0, 0, Op::Refund { amount: u64::MAX, epoch: 0, windows: OPEN }).counters[0].used, 0);
    assert_eq!(key.lend(99).granted, 10);
}

fn refunds_of_the_windows_that_were_charged(key: &mut Key<'_>) {
    key.limited(&["10/Y fixed", "20/Y sliding", "30/Y", "40/Y fixed"]);
    let grant = key.lend(6);
    let mut charged = windows(&grant);
    charged[2] = (grant.now + Micros(1 << 40)).stored();
    let id = key.id();
    let taken = key.call(0, id, Op::Refund { amount: 2, epoch: 0, windows: charged });
    assert_eq!((taken.granted, taken.counters[0].used, taken.counters[1].used), (2, 4, 4));
    let [first, second] = [0, 1].map(|place: usize| grant.counters[place].at);
    for (place, at) in [(0, first - Micros(1)), (1, second + Micros(1)), (2, grant.now), (3, Timestamp(1))] {
        let (id, mut windows) = (key.id(), charged);
        windows[place] = at.stored();
        let refused = key.call(0, id, Op::Refund { amount: 2, epoch: 0, windows });
        assert_eq!((refused.granted, refused.counters[0].used), (0, 4), "{place}");
    }
}

fn forgets_on_reset(key: &mut Key<'_>) {
    let before = key.lend(6);
    let (late, reset) = (key.id(), key.id());
    let grant = key.call(0, reset, Op::Reset);
    assert_eq!((grant.reset, grant.counters[0].used, grant.nodes), (true, 0, 1));
    assert_ne!(grant.epoch, before.epoch);
    assert!(key.call(0, reset, Op::Reset).replayed);
    let late = key.call(0, late, Op::Acquire(ask(1)));
    assert_eq!((late.granted, late.replayed, late.outdated), (0, false, true), "asked before the reset");
    let mut knowing = ask(1);
    knowing.epoch = before.epoch;
    knowing.known[0] = Known { used: 9, at: before.counters[0].at };
    let grant = key.acquire(0, knowing);
    assert_eq!((grant.granted, grant.reset, grant.counters[0].used), (1, true, 1));
    let second = key.call(0, 0, Op::Reset);
    assert!(second.epoch != grant.epoch && second.reset);
}

fn a_refund_of_a_charge_from_before_a_reset_credits_nothing(key: &mut Key<'_>) {
    let before = key.lend(6).epoch;
    let id = key.id();
    key.call(0, id, Op::Reset);
    let now = key.lend(5).epoch;
    for (epoch, used) in [(before, 5), (now, 4), (0, 3)] {
        let id = key.id();
        let grant = key.call(0, id, Op::Refund { amount: 1, epoch, windows: OPEN });
        assert_eq!(grant.counters[0].used, used, "{epoch} of {before} and {now}");
    }
}

/// A store that has lost the key is told what its nodes know of the epoch before, so that counts as it did.
fn a_refund_of_an_epoch_that_was_lost_credits_what_was_brought_back(key: &mut Key<'_>) {
    key.lend(6);
    let id = key.id();
    assert_eq!(key.call(0, id, Op::Refund { amount: 2, epoch: 77, windows: OPEN }).counters[0].used, 4);
}

fn counts_who_uses_the_key_after_a_reset_as_before(key: &mut Key<'_>) {
    key.limited(&["100/Y fixed"]);
    let late = key.id();
    for node in [0, 1, 2] {
        key.acquire(node, ask(9));
    }
    let id = key.id();
    let reset = key.call(0, id, Op::Reset);
    assert_eq!((reset.nodes, reset.counters[0].used), (3, 0));
    for node in [1, 0, 2, 1] {
        assert_eq!(key.acquire(node, ask(1)).nodes, 3, "{node}");
    }
    let late = key.call(2, late, Op::Acquire(ask(9)));
    assert_eq!((late.granted, late.outdated), (0, true), "asked before the reset");
}

fn resets_never_bring_an_epoch_back(key: &mut Key<'_>) {
    let mut seen = vec![key.lend(6).epoch];
    let (one, other) = (key.id(), key.id());
    for (node, id) in [(0, one), (1, other), (0, one), (1, other)] {
        let grant = key.call(node, id, Op::Reset);
        assert!(!grant.replayed && !seen.contains(&grant.epoch), "{grant:?} after {seen:?}");
        seen.push(grant.epoch);
    }
}

fn creates_nothing_but_by_an_acquire(key: &mut Key<'_>) {
    let id = key.id();
    let back = Op::Return {
        amount: 1,
        epoch: 1,
        held: 0,
        voids: None,
        ages: JUST_NOW,
        windows: [Timestamp(1).stored(); MAX_LIMITS],
    };
    for op in [back, Op::Refund { amount: 1, epoch: 0, windows: OPEN }, Op::Reset, Op::Peek] {
        let grant = key.call(0, id, op);
        assert_eq!((grant.granted, grant.replayed, grant.epoch, grant.nodes), (0, false, 0, 1), "{op:?}");
        assert!(grant.counters[0].at > grant.now, "a fresh window is shown");
    }
}

/// The one that was lost may have begun with a call of another node under this very id.
fn begins_another_epoch(key: &mut Key<'_>) {
    let id = key.id();
    let grant = key.call(0, id, Op::Acquire(Acquire { epoch: id, ..ask(1) }));
    assert!(grant.epoch != id && grant.epoch != 0, "{}", grant.epoch);
}

fn is_lifted_to_what_a_node_knows(key: &mut Key<'_>) {
    let window = key.peek().counters[0].at;
    let mut knowing = ask(10);
    knowing.known[0] = Known { used: 7, at: window };
    knowing.epoch = 77;
    let grant = key.acquire(0, knowing);
    assert_eq!((grant.granted, grant.counters[0].used), (0, 7), "others may have as much to tell");
    assert_ne!(grant.epoch, 77, "what was lost has another epoch");
    let other = key.acquire(1, Acquire { known: [Known { used: 1, at: window }; MAX_LIMITS], ..knowing });
    assert_eq!((other.granted, other.counters[0].used), (0, 8));
    let next = key.acquire(0, Acquire { epoch: grant.epoch, ..knowing });
    assert_eq!((next.granted, next.counters[0].used), (2, 10));
    key.limited(&["10/Y burst 8"]);
    let bucket = key.acquire(0, Acquire { want: 2, need: 2, ..knowing });
    assert_eq!(bucket.granted, 2, "of buckets peers know nothing: nobody waits for them");
}

fn shares_what_is_left(key: &mut Key<'_>) {
    key.limited(&["100/Y fixed"]);
    let eager = Acquire { need: 1, want: 100, ..ask(0) };
    key.acquire(0, ask(0));
    let second = key.acquire(1, eager);
    assert_eq!((second.nodes, second.granted), (2, 50));
    let third = key.acquire(2, eager);
    assert_eq!((third.nodes, third.granted), (3, 17));
    assert_eq!(key.acquire(2, Acquire { need: 30, ..eager }).granted, 30, "what waits is served");
    assert_eq!(key.peek().nodes, 3);
}

fn lends_of_several_limits(key: &mut Key<'_>) {
    key.limited(&["10/Y fixed", "4/Y sliding", "6/Y"]);
    let grant = key.lend(9);
    assert_eq!(grant.granted, 4);
    assert_eq!((grant.counters[0].used, grant.counters[1].used), (4, 4));
    assert_eq!(key.lend(1).granted, 0);
    assert_eq!(key.used(), 4, "a denial charges no limit");
}

fn lends_ahead(key: &mut Key<'_>) {
    let end = key.lend(10).counters[0].at;
    let ahead = |at| Acquire { window: Window::Next { begins: at }, ..ask(4) };
    let grant = key.acquire(0, ahead(end));
    assert_eq!((grant.granted, grant.counters[0].used, grant.counters[0].prev), (4, 10, 4));
    assert_eq!(key.acquire(0, ahead(end - key.rule.limits[0].period)).granted, 0);
    let rest = key.acquire(0, Acquire { want: 9, need: 9, ..ahead(end) });
    assert_eq!(rest.granted, 2, "two fifths are kept for who asks in that window");
    let mut lent = windows(&grant);
    lent[0] = (end + key.rule.limits[0].period).stored();
    let id = key.id();
    let back = key.call(
        0,
        id,
        Op::Return { amount: 3, epoch: grant.epoch, held: 0, voids: None, ages: JUST_NOW, windows: lent },
    );
    assert_eq!((back.granted, back.counters[0].used, back.counters[0].prev), (3, 10, 3));
    key.limited(&["10/Y"]);
    assert_eq!(key.acquire(0, ahead(end)).granted, 0, "gcra lends nothing ahead");
}

fn takes_back_what_a_void_order_was_lent(key: &mut Key<'_>) {
    let voiding = |epoch, held, voids| Op::Return { amount: 0, epoch, held, ages: JUST_NOW, windows: OPEN, voids };
    // Of a window all that it was lent.
    let order = key.id();
    let lent = key.call(0, order, Op::Acquire(Acquire { need: 2, want: 6, ..ask(0) }));
    let (id, voids) = (key.id(), Some(Voided { id: order, need: 2, reported: 0, spent: 0, answered: 0 }));
    assert_eq!(key.call(0, id, voiding(lent.epoch, 0, voids)).counters[0].used, lent.counters[0].used - lent.granted);
    assert_eq!(key.lend(10).granted, 10);
    // Of a bucket what it was charged at once, and what is in the account: one token of two was spent since.
    key.limited(&["10/Y burst 8"]);
    let slot = key.rule.limits[0].period.0 / 10;
    let first = key.acquire(0, Acquire { need: 1, want: 3, ..ask(0) });
    let order = key.id();
    key.call(0, order, Op::Acquire(Acquire { need: 2, want: 5, held: 2, ..ask(0) }));
    let (id, voids) = (key.id(), Some(Voided { id: order, need: 2, reported: 0, spent: 1, answered: 0 }));
    let after = key.call(0, id, voiding(first.epoch, 1, voids));
    assert_eq!((after.counters[0].used, after.counters[0].at.0), (1, first.counters[0].at.0 + slot));
    // One that was not executed told nothing: the node says it again.
    let (answered, order) = (id, key.id());
    let (id, voids) = (key.id(), Some(Voided { id: order, need: 2, reported: 1, spent: 0, answered }));
    let after = key.call(0, id, voiding(first.epoch, 0, voids));
    let spent = first.counters[0].at.0 + 2 * slot;
    assert_eq!((after.counters[0].used, after.counters[0].at.0), (0, spent));
    // Should it be executed after all, it is lent nothing; and told twice, it gives nothing back twice.
    let late = key.call(0, order, Op::Acquire(Acquire { need: 2, want: 5, ..ask(0) }));
    assert_eq!((late.granted, late.replayed, late.counters[0].at.0), (0, true, spent));
    let id = key.id();
    assert_eq!(key.call(0, id, voiding(first.epoch, 0, voids)).counters[0].at.0, spent);
    // Who never had an answer knows no epoch.
    let order = key.id();
    key.call(0, order, Op::Acquire(Acquire { need: 2, want: 2, ..ask(0) }));
    let (id, voids) = (key.id(), Some(Voided { id: order, need: 2, reported: 0, spent: 0, answered: 0 }));
    assert_eq!(key.call(0, id, voiding(0, 0, voids)).counters[0].at.0, spent);
}

fn charges_an_account_that_the_node_knows_nothing_of(key: &mut Key<'_>) {
    key.limited(&["100/Y burst 90"]);
    let slot = key.rule.limits[0].period.0 / 100;
    // The last answer was that to the acquire; or to a call that the store has lost; or to none of this process.
    for (case, spent) in [("that", 0), ("lost", 2), ("none", 2)] {
        let (order, lost, void, id) = (key.id(), key.id(), key.id(), key.id());
        let lent = key.call(0, order, Op::Acquire(Acquire { need: 1, want: 3, ..ask(0) }));
        let (epoch, answered) = match case {
            "that" => (lent.epoch, order),
            "lost" => (lent.epoch, lost),
            _ => (0, 0),
        };
        let voids = Some(Voided { id: void, need: 1, reported: 0, spent: 0, answered });
        let back = Op::Return { amount: 0, epoch, held: 0, ages: JUST_NOW, windows: OPEN, voids };
        let after = key.call(0, id, back).counters[0];
        assert_eq!((after.used, after.at.0), (0, lent.counters[0].at.0 + spent * slot), "{case}");
    }
}

fn sets_aside_what_a_bucket_lends(key: &mut Key<'_>) {
    key.limited(&["10/Y burst 8"]);
    let slot = key.rule.limits[0].period.0 / 10;
    let seen = |grant: &Grant| (grant.granted, grant.counters[0].used);
    let eager = Acquire { need: 1, want: 3, ..ask(0) };
    let first = key.acquire(0, eager);
    assert_eq!(seen(&first), (3, 2), "what waits is spent, the rest is set aside");
    assert_eq!(first.counters[0].at.0, first.now.0 + slot);
    let second = key.acquire(0, Acquire { need: 0, held: 1, ..eager });
    assert_eq!(seen(&second), (3, 4), "one of two was spent, and one is held");
    assert_eq!(second.counters[0].at.0, first.counters[0].at.0 + slot);
    let id = key.id();
    let windows = windows(&second);
    let back = Op::Return { amount: 2, epoch: first.epoch, held: 2, voids: None, ages: JUST_NOW, windows };
    assert_eq!(seen(&key.call(0, id, back)), (2, 2));
    assert_eq!(seen(&key.call(0, id, back)), (0, 2), "once");
    assert_eq!(seen(&key.acquire(1, Acquire { need: 0, want: 9, ..eager })), (2, 4), "nobody takes more than its part");
    let id = key.id();
    let rest =
        key.call(0, id, Op::Return { amount: 1, epoch: first.epoch, held: 0, voids: None, ages: JUST_NOW, windows });
    assert_eq!((seen(&rest), rest.counters[0].at.0), ((1, 2), second.counters[0].at.0 + slot), "the other was spent");
}

fn opens_a_window_from_first(key: &mut Key<'_>) {
    key.limited(&["10/Y fixed from-first"]);
    assert_eq!(key.lend(0).counters[0].at, Timestamp(0));
    let opened = key.lend(3);
    assert_eq!(opened.counters[0].at, opened.now + key.rule.limits[0].period);
    assert_eq!(key.lend(3).counters[0].at, opened.counters[0].at, "reset_at does not wobble");
}

fn slides(key: &mut Key<'_>) {
    key.limited(&["10/Y sliding"]);
    let grant = key.lend(7);
    assert!(grant.counters[0].at <= grant.now);
    assert_eq!((grant.granted, key.lend(7).granted, key.lend(1).granted), (7, 3, 0));
}

fn keeps_what_is_owed(key: &mut Key<'_>) {
    key.limited(&["10/Y"]);
    let owed = key.lend(10).counters[0].at;
    key.limited(&["100/Y burst 10"]);
    assert_eq!(key.peek().counters[0].at, owed, "as this bucket could not owe it");
    let denied = key.lend(1);
    assert_eq!((denied.granted, denied.counters[0].at), (0, owed), "a denied check forgives nothing");
    key.limited(&["10/Y burst 20"]);
    let token = key.rule.limits[0].period.0 / 10;
    let grant = key.lend(5);
    assert_eq!((grant.granted, grant.counters[0].at.0), (5, owed.0 + 5 * token));
    assert_eq!(grant.counters[0].left(&key.rule.limits[0], grant.now), 5);
    key.limited(&["100/Y burst 10"]);
    let id = key.id();
    let refund = key.call(0, id, Op::Refund { amount: 10, epoch: 0, windows: OPEN });
    assert_eq!(refund.counters[0].at.0, owed.0 + 4 * token, "ten of these are one of those");
}

fn counts_beyond_32_bits(key: &mut Key<'_>) {
    let (gigabytes, most) = (10_000_000_000, (1 << 53) - 1);
    for text in ["10000000000/Y fixed", "10000000000/Y sliding"] {
        key.digest.0 += 1;
        key.limited(&[text]);
        assert_eq!(key.lend(gigabytes / 2 - 1).granted, gigabytes / 2 - 1, "{text}");
        assert_eq!(key.acquire(1, ask(gigabytes)).granted, gigabytes / 2 + 1, "{text}");
        assert_eq!(key.lend(1).granted, 0, "{text}");
        let id = key.id();
        assert_eq!(
            key.call(0, id, Op::Refund { amount: 5_000_000_000, epoch: 0, windows: OPEN }).granted,
            5_000_000_000
        );
        assert_eq!(key.acquire(2, Acquire { least: 5_000_000_000, ..ask(5_000_000_000) }).granted, 5_000_000_000);
    }
    for text in ["9007199254740991/Y fixed", "9007199254740991/Y fixed from-first", "9007199254740991/Y sliding"] {
        key.digest.0 += 1;
        key.limited(&[text]);
        assert_eq!(
            (key.lend(most - 1).granted, key.lend(most).granted, key.lend(1).granted),
            (most - 1, 1, 0),
            "{text}"
        );
        assert_eq!(key.used(), most, "{text}");
    }
    key.digest.0 += 1;
    key.limited(&["9007199254740991/Y"]);
    let grant = key.lend(most);
    assert_eq!((grant.granted, grant.counters[0].at), (most, grant.now + key.rule.limits[0].period));
}

fn keeps_what_was_spent(key: &mut Key<'_>) {
    let epoch = key.lend(7).epoch;
    key.limited(&["8/Y fixed", "100/Y fixed"]);
    let grant = key.lend(5);
    assert_eq!((grant.granted, grant.epoch, grant.counters[1].used), (1, epoch, 1));
    key.limited(&["10/Y sliding"]);
    assert_eq!(key.lend(1).epoch, epoch);
    key.limited(&["5/Y fixed"]);
    assert_eq!((key.lend(1).granted, key.used()), (0, 8));
}
