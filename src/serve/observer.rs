//! Tasks of the control runtime that look at the shards now and then, for people: what was denied, and the samples of the
//! charts. Nothing is decided by them, and nothing waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::server_state::ServerState;

/// Between two times that denials are taken.
const DENIALS: Duration = Duration::from_secs(1);
/// Between two samples of the charts: with their number, fifteen minutes.
const SAMPLES: Duration = Duration::from_secs(5);

/// Observes until it is aborted.
pub(super) async fn run(hub: Arc<ServerState>) {
    let (mut denials, mut samples) = (tokio::time::interval(DENIALS), tokio::time::interval(SAMPLES));
    denials.set_missed_tick_behavior(MissedTickBehavior::Delay);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = denials.tick() => take_denials(&hub),
            _ = samples.tick() => {
                hub.history.sample(hub.node.clock.now(), &hub.stats(), hub.store_snapshot().as_ref());
            }
        }
    }
}

fn take_denials(hub: &ServerState) {
    let mut denials = Vec::new();
    hub.node.take_denials(&mut denials);
    if !denials.is_empty() {
        let clock = &hub.node.clock;
        hub.denials.add(denials, &hub.policies.load(), (clock.now(), clock.wall()));
    }
}
