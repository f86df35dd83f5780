//! Tests of which requests leave, which wait, and in what order.

use std::future::Future;
use std::task::{Context, Waker};

use super::*;

fn gate() -> Arc<Gate> {
    Arc::new(Gate::new(Clock::start(), Micros::from_millis(50)))
}

/// A request that is never sent.
struct Blank;

impl Request for Blank {
    fn write(&self, _: &mut Vec<u8>) {}

    fn handle_answer(self: Box<Self>, _: Result<Answer<'_>, Failure>) {}
}

fn submission(key: u128, errand: bool) -> Submission {
    Submission {
        request: Box::new(Blank),
        asking: false,
        confirmed: false,
        asker: Asker::NODE,
        key,
        errand,
        again: false,
        until: Instant(u64::MAX),
    }
}

/// Takes all permits that are free for checks or for errands.
fn fill(gate: &Arc<Gate>, errand: bool) -> Vec<GatePermit> {
    let mut permits = Vec::new();
    for key in 1_000.. {
        match gate.enter(gate.clock.now(), Submission { until: EARLY, ..submission(key, errand) }) {
            Entry::Leave(permit, _) => permits.push(permit),
            Entry::Wait => {
                assert_eq!(expired(gate, EARLY), [key]);
                break;
            }
            Entry::Full(..) => panic!("nobody waits yet"),
        }
    }
    permits
}

/// A deadline before all other times of these tests.
const EARLY: Instant = Instant(1);

fn line_up_until(gate: &Arc<Gate>, key: u128, errand: bool, until: Instant) {
    let entry = gate.enter(gate.clock.now(), Submission { until, ..submission(key, errand) });
    assert!(matches!(entry, Entry::Wait), "key {key} does not wait");
}

fn line_up(gate: &Arc<Gate>, key: u128, errand: bool) {
    line_up_until(gate, key, errand, Instant(u64::MAX));
}

fn keys(called: &Called) -> Vec<u128> {
    called.leaving.iter().map(|(_, submission)| submission.key).collect()
}

fn expired(gate: &Arc<Gate>, now: Instant) -> Vec<u128> {
    gate.expire(now).iter().map(|(submission, _)| submission.key).collect()
}

#[test]
fn whoever_waits_leaves_in_order_when_there_is_room() {
    let gate = gate();
    let mut permits = fill(&gate, false);
    (1..=5).for_each(|key| line_up(&gate, key, false));
    assert!(gate.depart().leaving.is_empty());
    permits.truncate(permits.len() - 3);
    let batch = gate.depart();
    assert_eq!(keys(&batch), [1, 2, 3]);
    // The three requests may not have been sent yet, so a new one joins the line behind them.
    drop(permits);
    line_up(&gate, 6, false);
    assert_eq!(keys(&gate.depart()), [4, 5, 6]);
    assert!(gate.depart().leaving.is_empty());
    assert!(matches!(gate.enter(gate.clock.now(), submission(7, false)), Entry::Leave(..)));
}

#[test]
fn errands_take_half_of_the_window() {
    let gate = gate();
    let errands = fill(&gate, true);
    let checks = fill(&gate, false);
    assert_eq!((errands.len(), checks.len()), (32, 32));
    (1..=3).for_each(|key| line_up(&gate, key, true));
    (11..=13).for_each(|key| line_up(&gate, key, false));
    drop((errands, checks));
    assert_eq!(keys(&gate.depart()), [1, 11, 2, 12, 3, 13]);
}

#[test]
fn a_key_keeps_its_order_among_errands_and_checks() {
    let gate = gate();
    let _errands = fill(&gate, true);
    line_up(&gate, 7, true);
    line_up_until(&gate, 7, false, EARLY);
    assert!(matches!(gate.enter(gate.clock.now(), submission(8, false)), Entry::Leave(..)), "another key passes");
    assert_eq!(expired(&gate, EARLY), [7]);
    line_up_until(&gate, 9, true, EARLY);
    assert_eq!(expired(&gate, EARLY), [9]);
    assert!(
        matches!(gate.enter(gate.clock.now(), submission(9, false)), Entry::Leave(..)),
        "nothing of it waits any more"
    );
}

#[test]
fn an_errand_does_not_lead_its_key_past_those_who_wait() {
    let gate = gate();
    let permits = fill(&gate, false);
    line_up(&gate, 7, false);
    line_up(&gate, 7, true);
    line_up(&gate, 7, false);
    line_up(&gate, 8, true);
    drop(permits);
    let mut left = Vec::new();
    while let batch = gate.depart().leaving
        && !batch.is_empty()
    {
        left.extend(
            batch.iter().filter(|(_, submission)| submission.key == 7).map(|(_, submission)| submission.errand),
        );
    }
    assert_eq!(left, [false, true, false], "the order in which they came");
}

#[test]
fn whoever_would_be_answered_too_late_does_not_leave() {
    let gate = gate();
    let permits = fill(&gate, false);
    line_up_until(&gate, 1, false, EARLY);
    line_up(&gate, 2, false);
    drop(permits);
    let called = gate.depart();
    assert_eq!(keys(&called), [2]);
    assert_eq!(called.late.iter().map(|(submission, _)| submission.key).collect::<Vec<_>>(), [1]);
}

#[test]
fn whoever_has_waited_for_too_long_waits_no_longer() {
    let gate = gate();
    let _permits = fill(&gate, false);
    assert_eq!(gate.due(), None);
    let at = |millis| Instant(10_000_000) + Micros::from_millis(millis);
    for (key, millis) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
        line_up_until(&gate, key, false, at(millis));
    }
    assert_eq!(gate.due(), Some(at(10)));
    assert_eq!(expired(&gate, at(9)), []);
    assert_eq!(expired(&gate, at(21)), [3], "who has been due for longer than by chance has the time more");
    assert_eq!(gate.due(), Some(at(30)));
    assert_eq!(expired(&gate, at(32)), [1, 2]);
    // One second has passed in which this process did not run.
    assert_eq!(expired(&gate, at(1_040)), []);
    assert_eq!(gate.due(), Some(at(1_090)), "no longer than they would wait at all");
    assert_eq!(expired(&gate, at(2_000)), [4], "once");
    assert_eq!(gate.due(), None);
}

#[test]
fn the_porter_is_told_of_an_earlier_deadline() {
    let gate = gate();
    let _permits = fill(&gate, false);
    let is_told = || {
        let notice = std::pin::pin!(gate.room.notified());
        notice.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    is_told();
    for (until, wanted) in [(9_000, true), (9_500, false), (8_000, true), (8_000, false)] {
        line_up_until(&gate, 1, false, Instant(until));
        assert_eq!(is_told(), wanted, "{until}");
    }
}

#[test]
fn whoever_was_sent_on_passes_those_who_wait() {
    let gate = gate();
    let _permits = fill(&gate, false);
    line_up(&gate, 1, false);
    assert!(matches!(
        gate.enter(gate.clock.now(), Submission { again: true, ..submission(1, false) }),
        Entry::Leave(..)
    ));
}

#[test]
fn a_line_is_bounded() {
    let gate = gate();
    let _permits = fill(&gate, false);
    (0..ALONE as u128).for_each(|key| line_up(&gate, key, false));
    assert!(matches!(gate.enter(gate.clock.now(), submission(0, false)), Entry::Full(..)));
    assert!(
        matches!(gate.enter(gate.clock.now(), submission(LINE as u128, true)), Entry::Wait),
        "errands have a line of their own"
    );
}

#[test]
fn a_line_that_many_fill_has_room_for_who_is_not_in_it() {
    let gate = gate();
    let _permits = fill(&gate, false);
    let mut waiting = 0;
    for connection in 0..100 {
        let of =
            |number: usize| Submission { asker: Asker::new(Some(7), connection), ..submission(number as u128, false) };
        let before = waiting;
        while matches!(gate.enter(gate.clock.now(), of(waiting)), Entry::Wait) {
            waiting += 1;
        }
        assert!(waiting > before, "{before} requests of {connection} connections");
    }
    assert!(waiting < LINE);
}

#[test]
fn who_waits_for_a_call_of_the_node_does_not_wait_for_all_that_the_node_asks() {
    let gate = gate();
    let permits = fill(&gate, false);
    (0..40).for_each(|key| line_up(&gate, key, false));
    line_up_until(&gate, 40, false, EARLY);
    gate.hurry(Asker::new(Some(7), 1), 39);
    gate.hurry(Asker::new(Some(7), 1), 40);
    gate.hurry(Asker::new(Some(7), 2), 41);
    assert_eq!(expired(&gate, EARLY), [40], "who has moved still has a deadline");
    drop(permits);
    assert_eq!(keys(&gate.depart())[..4], [0, 39, 1, 2]);
}

#[test]
fn all_are_turned_away_from_a_server_that_is_away() {
    let gate = gate();
    let _permits = fill(&gate, false);
    line_up(&gate, 1, false);
    line_up(&gate, 2, true);
    let away = gate.turn_away();
    assert_eq!(away.iter().map(|submission| submission.key).collect::<Vec<_>>(), [1, 2]);
    assert!(gate.depart().leaving.is_empty());
}
