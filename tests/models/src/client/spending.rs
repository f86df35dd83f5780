//! No more is spent than was lent, whoever spends while another one puts a lease in.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::Mutex;
use loom::thread;

use super::lease::Lease;
use super::local_tokens::{RefillState, AfterRefill, LocalTokens, Turn};
use super::{Reply, OnDaemonLoss};
use crate::Model;

/// All of them.
pub(crate) const MODELS: &[Model] = &[
    ("two spend no more than was lent", Some(3), two_spend_no_more_than_was_lent),
    ("three spend no more than was lent", Some(2), three_spend_no_more_than_was_lent),
];

/// Longer than any model runs: no path of it depends on the time.
const LIFE: Duration = Duration::from_secs(1_000_000);

/// One who lends: so many tokens for each time that it is asked.
struct Desk {
    refill: RefillState,
    lent: u64,
}

fn lease(granted: u64) -> Lease {
    let number = |number: u64| Reply::Integer(i64::try_from(number).expect("it is small"));
    let life = u64::try_from(LIFE.as_millis()).expect("it is short");
    let mut fields: Vec<Reply> = [granted, life, 0, 10, 9, 0, 1, 0, 0].map(number).into();
    fields.extend(["ok", "10/1h", "lease"].map(|word| Reply::Bulk(word.into())));
    Lease::read(Reply::Array(fields)).expect("it is one")
}

fn allow(tokens: &LocalTokens, desk: &Mutex<Desk>, most: u64) -> bool {
    if let Some(decided) = tokens.decide(1) {
        return decided;
    }
    let mut desk = desk.lock().expect("nobody has panicked");
    match tokens.turn(&mut desk.refill, 1) {
        Turn::Over(passes) => passes,
        Turn::Lease { now, want } => {
            let granted = want.min(most - desk.lent);
            desk.lent += granted;
            if granted == 0 {
                return false;
            }
            match tokens.take(&mut desk.refill, now, 1, Ok(lease(granted))) {
                AfterRefill::Over(passes) => passes,
                AfterRefill::Check => false,
            }
        }
    }
}

/// `spenders` threads ask for one token each `times` times, of `most`; and the first of them before the others begin.
fn spend(spenders: usize, times: usize, most: u64) {
    let tokens = Arc::new(LocalTokens::new());
    let desk = Arc::new(Mutex::new(Desk { refill: RefillState::new(OnDaemonLoss::Deny), lent: 0 }));
    let mut passed = u64::from(allow(&tokens, &desk, most));
    let threads: Vec<_> = (0..spenders)
        .map(|_| {
            let (tokens, desk) = (tokens.clone(), desk.clone());
            thread::spawn(move || (0..times).filter(|_| allow(&tokens, &desk, most)).count() as u64)
        })
        .collect();
    passed += threads.into_iter().map(|thread| thread.join().expect("it ends")).sum::<u64>();
    let desk = desk.lock().expect("nobody has panicked");
    let left = tokens.left(&desk.refill);
    assert!(passed + left <= desk.lent, "{passed} passed, {left} are left, {} were lent", desk.lent);
}

fn two_spend_no_more_than_was_lent() {
    spend(2, 2, 8);
}

fn three_spend_no_more_than_was_lent() {
    spend(3, 1, 8);
}
