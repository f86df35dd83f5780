//! Who leaves, who waits, in which order.

use super::*;

fn gate() -> Arc<Gate> {
    Arc::new(Gate::new(Clock::start(), Micros::from_millis(50)))
}

fn parcel(key: u128, errand: bool) -> Parcel {
    let letter = Letter { command: redis::cmd("PING"), asking: false };
    Parcel { letter, confirmed: false, asker: Asker::NODE, key, errand, again: false, until: Instant(u64::MAX) }
}

/// Takes all places that are free for it.
fn fill(gate: &Arc<Gate>, errand: bool) -> Vec<Permit> {
    let mut permits = Vec::new();
    for key in 1_000.. {
        match gate.enter(parcel(key, errand)) {
            Entry::Leave(permit, _) => permits.push(permit),
            Entry::Wait(number, _) => {
                assert!(gate.withdraw(number).is_some(), "it waits");
                break;
            }
            Entry::Full(_) => panic!("nobody waits yet"),
        }
    }
    permits
}

fn line_up(gate: &Arc<Gate>, key: u128, errand: bool) -> (Spot, oneshot::Receiver<Result<Answer, Failure>>) {
    match gate.enter(parcel(key, errand)) {
        Entry::Wait(number, answer) => (number, answer),
        _ => panic!("key {key} does not wait"),
    }
}

fn keys(batch: &[(Permit, Parcel, Reply)]) -> Vec<u128> {
    batch.iter().map(|(_, parcel, _)| parcel.key).collect()
}

#[test]
fn whoever_waits_leaves_in_order_when_there_is_room() {
    let gate = gate();
    let mut permits = fill(&gate, false);
    let _answers: Vec<_> = (1..=5).map(|key| line_up(&gate, key, false)).collect();
    assert!(gate.depart().is_empty());
    permits.truncate(permits.len() - 3);
    let batch = gate.depart();
    assert_eq!(keys(&batch), [1, 2, 3]);
    // The three have perhaps not left yet: whoever comes now lines up behind all.
    drop(permits);
    let _sixth = line_up(&gate, 6, false);
    assert_eq!(keys(&gate.depart()), [4, 5, 6]);
    assert!(gate.depart().is_empty());
    assert!(matches!(gate.enter(parcel(7, false)), Entry::Leave(..)));
}

#[test]
fn errands_take_half_of_the_window() {
    let gate = gate();
    let errands = fill(&gate, true);
    let checks = fill(&gate, false);
    assert_eq!((errands.len(), checks.len()), (32, 32));
    let _errands: Vec<_> = (1..=3).map(|key| line_up(&gate, key, true)).collect();
    let _checks: Vec<_> = (11..=13).map(|key| line_up(&gate, key, false)).collect();
    drop((errands, checks));
    assert_eq!(keys(&gate.depart()), [1, 11, 2, 12, 3, 13]);
}

#[test]
fn a_key_keeps_its_order_among_errands_and_checks() {
    let gate = gate();
    let _errands = fill(&gate, true);
    let _errand = line_up(&gate, 7, true);
    let (number, _check) = line_up(&gate, 7, false);
    assert!(matches!(gate.enter(parcel(8, false)), Entry::Leave(..)), "another key passes");
    assert!(gate.withdraw(number).is_some());
    let (first, _answer) = line_up(&gate, 9, true);
    assert!(gate.withdraw(first).is_some());
    assert!(matches!(gate.enter(parcel(9, false)), Entry::Leave(..)), "nothing of it waits any more");
}

#[test]
fn an_errand_does_not_lead_its_key_past_those_who_wait() {
    let gate = gate();
    let permits = fill(&gate, false);
    let _first = line_up(&gate, 7, false);
    let (_peek, _second) = (line_up(&gate, 7, true), line_up(&gate, 7, false));
    let _other = line_up(&gate, 8, true);
    drop(permits);
    let mut left = Vec::new();
    while let batch = gate.depart()
        && !batch.is_empty()
    {
        left.extend(batch.iter().filter(|(_, parcel, _)| parcel.key == 7).map(|(_, parcel, _)| parcel.errand));
    }
    assert_eq!(left, [false, true, false], "the order in which they came");
}

#[test]
fn whoever_would_be_answered_too_late_does_not_leave() {
    let gate = gate();
    let permits = fill(&gate, false);
    let Entry::Wait(_, mut late) = gate.enter(Parcel { until: Instant(0), ..parcel(1, false) }) else {
        panic!("the window is full")
    };
    let _punctual = line_up(&gate, 2, false);
    drop(permits);
    assert_eq!(keys(&gate.depart()), [2]);
    assert!(matches!(late.try_recv(), Ok(Err(Failure::Busy(_)))));
}

#[test]
fn whoever_was_sent_on_passes_those_who_wait() {
    let gate = gate();
    let _permits = fill(&gate, false);
    let _waits = line_up(&gate, 1, false);
    assert!(matches!(gate.enter(Parcel { again: true, ..parcel(1, false) }), Entry::Leave(..)));
}

#[test]
fn a_line_is_bounded() {
    let gate = gate();
    let _permits = fill(&gate, false);
    let _answers: Vec<_> = (0..ALONE as u128).map(|key| line_up(&gate, key, false)).collect();
    assert!(matches!(gate.enter(parcel(0, false)), Entry::Full(_)));
    assert!(matches!(gate.enter(parcel(LINE as u128, true)), Entry::Wait(..)), "errands have a line of their own");
}

#[test]
fn a_line_that_many_fill_has_room_for_who_is_not_in_it() {
    let gate = gate();
    let _permits = fill(&gate, false);
    let mut answers = Vec::new();
    for connection in 0..100 {
        let of = |number: usize| Parcel { asker: Asker::new(Some(7), connection), ..parcel(number as u128, false) };
        let before = answers.len();
        while let Entry::Wait(_, answer) = gate.enter(of(answers.len())) {
            answers.push(answer);
        }
        assert!(answers.len() > before, "{before} letters of {connection} connections");
    }
    assert!(answers.len() < LINE);
}

#[test]
fn all_are_turned_away_from_a_server_that_is_away() {
    let gate = gate();
    let _permits = fill(&gate, false);
    let (_, mut answer) = line_up(&gate, 1, false);
    gate.turn_away(Instant(9));
    assert_eq!(answer.try_recv().expect("an outcome").err(), Some(Failure::Away(Instant(9))));
    assert!(gate.depart().is_empty());
}
