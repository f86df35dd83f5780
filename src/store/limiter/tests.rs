//! The limiter against a model of a server.

use std::collections::VecDeque;

use super::*;

const NOW: Instant = Instant(10_000_000);
const PATIENCE: Micros = Micros::from_millis(50);

/// A server behind a network, which executes one call after another.
struct Model {
    limiter: Limiter,
    now: Instant,
    way: Micros,
    service: Micros,
    /// The period of a processor quota, and the part of it in which the server runs; `None` for a server that always
    /// runs.
    turn: Option<(Micros, Micros)>,
    /// When the server has executed all calls that it has.
    busy_until: Instant,
    out: VecDeque<(Instant, Instant, Permit)>,
    longest_queue: Micros,
    served: u64,
}

impl Model {
    fn new(way: Micros, service: Micros) -> Self {
        Self {
            limiter: Limiter::new(PATIENCE),
            now: NOW,
            way,
            service,
            turn: None,
            busy_until: NOW,
            out: VecDeque::new(),
            longest_queue: Micros::ZERO,
            served: 0,
        }
    }

    /// Sends as many calls as the limiter admits, at any time.
    fn saturate(&mut self, lasts: Micros) {
        let end = self.now + lasts;
        while self.now < end {
            while let Some(permit) = self.limiter.admit(self.now) {
                let there = self.now + Micros(self.way.0 / 2);
                let begins = self.run_at(self.busy_until.max(there));
                self.longest_queue = self.longest_queue.max(begins.since(there));
                self.busy_until = begins + self.service;
                let back = self.busy_until + Micros(self.way.0 / 2);
                self.out.push_back((back, self.now, permit));
            }
            self.land();
        }
    }

    /// The next time at which the server runs, from `time` on.
    fn run_at(&self, time: Instant) -> Instant {
        match self.turn {
            Some((whole, part)) if time.0 % whole.0 >= part.0 => Instant((time.0 / whole.0 + 1) * whole.0),
            _ => time,
        }
    }

    fn land(&mut self) {
        let (back, left, permit) = self.out.pop_front().expect("something is out");
        self.now = back;
        self.served += 1;
        self.limiter.handle_answer(back, permit, back.since(left));
    }

    /// Sends no more calls until all have come back.
    fn empty(&mut self) {
        while !self.out.is_empty() {
            self.land();
        }
    }
}

#[test]
fn the_queue_of_a_saturated_server_stays_below_half_the_patience() {
    for (way, service) in [(200, 50), (200, 1_000), (2_000, 20), (80_000, 50), (160_000, 400)] {
        let mut model = Model::new(Micros(way), Micros(service));
        model.saturate(Micros::from_secs(15));
        (model.longest_queue, model.served) = (Micros::ZERO, 0);
        // On a slow network the window opens in bursts after a measurement, so more time is needed to see its usual
        // size.
        let lasts = if way < 10_000 { Micros::from_secs(60) } else { Micros::from_secs(14) };
        model.saturate(lasts);
        let what = format!("way {way} us, service {service} us: {:?}", model.limiter);
        assert!(model.longest_queue.0 < PATIENCE.0 / 2, "queue {:?}; {what}", model.longest_queue);
        let capacity = lasts.0 / service;
        assert!(model.served * 100 >= capacity * 97, "served {} of {capacity}; {what}", model.served);
    }
}

#[test]
fn the_window_of_a_server_that_is_rarely_run_is_what_it_takes_in_its_turn() {
    for way in [200, 1_000] {
        // The server runs for 2 of each 20 ms, in which it executes 60 calls.
        let mut model = Model::new(Micros(way), Micros(33));
        model.turn = Some((Micros::from_millis(20), Micros::from_millis(2)));
        model.saturate(Micros::from_secs(2));
        let mut trials = 0;
        for second in 0..90 {
            (model.longest_queue, model.served) = (Micros::ZERO, 0);
            model.saturate(Micros::from_secs(1));
            let what = format!("way {way} us, second {second}: {:?}", model.limiter);
            assert!(model.longest_queue < Micros::from_millis(80), "queue {:?}; {what}", model.longest_queue);
            assert!(model.served >= 2_700, "served {} of 3000; {what}", model.served);
            trials += u32::from(model.longest_queue > Micros::from_millis(42));
        }
        assert!(trials <= 4, "calls waited for a third turn in {trials} seconds of 90");
    }
}

#[test]
fn a_way_that_becomes_longer_is_no_queue() {
    let mut model = Model::new(Micros(200), Micros(50));
    model.saturate(Micros::from_secs(2));
    model.way = Micros::from_millis(160);
    model.saturate(Micros::from_secs(40));
    model.served = 0;
    model.saturate(Micros::from_secs(10));
    assert!(model.served * 100 >= 200_000 * 90, "{} of 200000: {:?}", model.served, model.limiter);
    model.way = Micros(200);
    model.saturate(LOOK + Micros::from_secs(2));
    model.longest_queue = Micros::ZERO;
    model.saturate(Micros::from_secs(2));
    assert!(model.longest_queue.0 < PATIENCE.0 / 2, "{:?}", model.longest_queue);
}

#[test]
fn a_server_that_becomes_slower_gets_fewer_calls() {
    let mut model = Model::new(Micros(200), Micros(20));
    model.saturate(Micros::from_secs(2));
    let before = model.limiter.window();
    model.service = Micros(500);
    model.saturate(Micros::from_secs(2));
    model.longest_queue = Micros::ZERO;
    model.saturate(Micros::from_secs(2));
    assert!(model.limiter.window() < before / 5, "{before} then {}", model.limiter.window());
    assert!(model.longest_queue.0 < PATIENCE.0 / 2, "{:?}", model.longest_queue);
}

#[test]
fn one_stall_shrinks_the_window_once_at_most() {
    let mut model = Model::new(Micros(200), Micros(50));
    model.saturate(Micros::from_secs(2));
    let before = model.limiter.window();
    model.empty();
    // The server stalls for 400 ms with a full window of calls in its queue.
    model.busy_until = model.now + Micros::from_millis(400);
    while let Some(permit) = model.limiter.admit(model.now) {
        model.busy_until = model.busy_until + model.service;
        model.out.push_back((model.busy_until, model.now, permit));
    }
    model.empty();
    assert!(model.limiter.window() >= before / 2, "{before} then {}", model.limiter.window());
}

#[test]
fn late_replies_among_quick_ones_are_no_queue() {
    let mut limiter = Limiter::new(PATIENCE);
    let mut now = NOW;
    for _ in 0..1_000 {
        let permits: Vec<_> = std::iter::from_fn(|| limiter.admit(now)).take(64).collect();
        for (index, permit) in permits.into_iter().enumerate() {
            // This process stalls for 95 ms. Replies that it read before look quick, the others slow.
            let took = if index % 16 == 0 { Micros(300) } else { Micros::from_millis(95) };
            limiter.handle_answer(now + took, permit, took);
        }
        now = now + Micros::from_millis(100);
    }
    assert!(limiter.window() >= 64, "{limiter:?}");
}

#[test]
fn a_node_that_is_rarely_run_sees_no_queue() {
    let mut limiter = Limiter::new(PATIENCE);
    let mut now = NOW;
    for _ in 0..1_000 {
        let permits: Vec<_> = std::iter::from_fn(|| limiter.admit(now)).take(64).collect();
        // This process runs again after 95 ms, and finds all replies at once.
        now = now + Micros::from_millis(95);
        for (index, permit) in permits.into_iter().enumerate() {
            let read = now + Micros(index as u64);
            limiter.handle_answer(read, permit, read.since(now) + Micros::from_millis(95));
        }
        now = now + Micros::from_millis(1);
        // One reply is read at once, and becomes the base latency.
        let permit = limiter.admit(now).expect("all have been answered");
        limiter.handle_answer(now + Micros(200), permit, Micros(200));
        now = now + Micros(200);
    }
    assert!(limiter.window() >= 64, "{limiter:?}");
}

#[test]
fn a_server_that_is_not_saturated_is_never_looked_at() {
    // There are always twenty calls on a slow network: never almost alone, and never a full window.
    let mut limiter = Limiter::new(PATIENCE);
    let trip = Micros::from_millis(160);
    let mut out: VecDeque<(Instant, Permit)> = VecDeque::new();
    for index in 0..20_000 {
        let now = NOW + Micros(index * 8_000);
        if out.front().is_some_and(|(left, _)| *left + trip <= now) {
            let (left, permit) = out.pop_front().expect("just seen");
            limiter.handle_answer(now, permit, now.since(left));
        }
        let permit = limiter.admit(now).expect("there is room at any time");
        out.push_back((now, permit));
    }
}

#[test]
fn a_window_that_nobody_fills_does_not_grow() {
    let mut limiter = Limiter::new(PATIENCE);
    for index in 0..1_000 {
        let now = NOW + Micros(index * 1_000);
        let permit = limiter.admit(now).expect("nothing is out");
        limiter.handle_answer(now + Micros(200), permit, Micros(200));
    }
    assert_eq!((limiter.window(), limiter.out()), (FIRST, 0));
}

#[test]
fn a_lost_call_makes_room_and_a_new_connection_begins_anew() {
    let mut limiter = Limiter::new(PATIENCE);
    let permits: Vec<_> = std::iter::from_fn(|| limiter.admit(NOW)).collect();
    assert_eq!(limiter.out(), FIRST);
    limiter.handle_connection(NOW, false);
    assert!(limiter.admit(NOW).is_none(), "calls of the old connection are still out");
    permits.into_iter().for_each(|permit| limiter.handle_loss(permit));
    assert!(limiter.admit(NOW).is_some());
}

#[test]
fn one_call_goes_before_the_others_where_the_server_is_doubted() {
    let mut limiter = Limiter::new(PATIENCE);
    limiter.handle_connection(NOW, true);
    let lost = limiter.admit(NOW).expect("the first");
    assert!(limiter.admit(NOW).is_none());
    limiter.handle_loss(lost);
    let first = limiter.admit(NOW).expect("another");
    assert!(limiter.admit(NOW).is_none());
    limiter.handle_answer(NOW + Micros(200), first, Micros(200));
    assert_eq!(std::iter::from_fn(|| limiter.admit(NOW)).count(), FIRST as usize);
}

#[test]
fn the_wait_is_what_those_before_need() {
    let mut model = Model::new(Micros(200), Micros(100));
    model.saturate(Micros::from_secs(2));
    // A thousand calls, each of which the server executes in 100 us.
    let wait = model.limiter.wait(1_000);
    assert!((80_000..=130_000).contains(&wait.0), "{wait:?}");
}
