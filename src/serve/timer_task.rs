//! The timer task: sleeps until the earliest deadline of any shard, then has it handled.
//!
//! It is one task, on the runtime that carries calls to the store. A thread that sets an earlier deadline wakes it. Beside that it
//! wakes once a second, to report that it lives and to adjust the embedded store's clock to the wall clock. If it wakes late,
//! this process did not run meanwhile, and did not read replies that had come either, so deadlines are extended by
//! that time.

use std::sync::Arc;
use std::time::Duration;

use super::node::{Node, Outgoing};
use super::vital::Pulse;
use crate::core::time::{Instant, Micros};
use crate::store::pulse::LATE;

/// The most by which the embedded store's clock is adjusted per second: 1000 ppm, which is more than clocks drift.
const DRAW: Micros = Micros(1_000);

/// How often this task yields before it handles late deadlines. Three other tasks may each need a turn: the one that
/// reads from a socket, the one that delivers the reply, and the one that hands it to the shard.
const TURNS: u32 = 3;

/// By how much deadlines that have passed are extended. Never by more than a check may wait, because deadlines that
/// were set since must be met.
fn grace(due: Instant, now: Instant, timeout: Micros) -> Option<Micros> {
    let late = now.since(due);
    (late > LATE).then(|| late.min(timeout))
}

/// Runs until it is aborted.
pub async fn run(node: Arc<Node>, pulse: Pulse) {
    let mut out = Outgoing::default();
    let mut drawn = node.clock.now();
    let mut beats = Pulse::timer();
    loop {
        if node.earliest() <= node.clock.now().0 {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        }
        let now = node.clock.now();
        node.handle_timeouts(now, &mut out);
        node.flush(&mut out);
        if node.is_embedded() && now.since(drawn) >= Micros::from_secs(1) {
            node.draw_to_wall(DRAW);
            drawn = now;
        }
        let Some(next) = node.timer.set(|| node.earliest()) else { continue };
        // It need not sleep for longer than until its next beat.
        let wait = next.saturating_sub(node.clock.now().0).min(3_600_000_000);
        let due = node.clock.now() + Micros(wait);
        tokio::select! {
            () = node.wakeup.notified() => {}
            () = tokio::time::sleep(Duration::from_micros(wait)) => {}
            _ = beats.tick() => pulse.beat(node.clock.now()),
        }
        if let Some(grace) = grace(due, node.clock.now(), node.timeout) {
            tokio::time::sleep(Duration::from_micros(grace.0)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_have_the_time_more_for_which_the_node_was_not_run() {
        let (due, timeout) = (Instant(10_000_000), Micros::from_millis(50));
        let grace = |late| grace(due, due + Micros::from_millis(late), timeout);
        assert_eq!(grace(0), None);
        assert_eq!(grace(5), None, "timers are late by chance, too");
        assert_eq!(grace(20), Some(Micros::from_millis(20)));
        assert_eq!(grace(3_000), Some(timeout));
        assert_eq!(super::grace(due, due - timeout, timeout), None, "the bell rang before");
    }
}
