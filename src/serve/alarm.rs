//! The alarm: sleeps until the earliest deadline of any shard, and no longer.
//!
//! One task on the control runtime. A thread that sets an earlier deadline rings the bell; nothing
//! else wakes it, except that an embedded store's clock is drawn to the wall clock once a second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::node::{Node, Outgoing};
use crate::core::time::Micros;

/// How much an embedded store's clock may gain or lose in a second: 1000 ppm, more than clocks drift.
const DRAW: Micros = Micros(1_000);

/// Runs until it is aborted.
pub async fn run(node: Arc<Node>) {
    let mut out = Outgoing::default();
    let mut drawn = node.clock.now();
    loop {
        let now = node.clock.now();
        node.handle_timeouts(now, &mut out);
        node.flush(&mut out);
        if node.is_embedded() && now.since(drawn) >= Micros::from_secs(1) {
            node.draw_to_wall(DRAW);
            drawn = now;
        }
        let next = node.earliest();
        node.alarm.store(next, Ordering::SeqCst);
        if node.earliest() < next {
            continue;
        }
        let mut wait = next.saturating_sub(node.clock.now().0);
        if node.is_embedded() {
            wait = wait.min(1_000_000);
        }
        // Far enough for any deadline there is, near enough for any timer.
        let wait = Duration::from_micros(wait.min(3_600_000_000));
        tokio::select! {
            () = node.bell.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}
