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
pub(super) async fn run(state: Arc<ServerState>) {
    let (mut denials, mut samples) = (tokio::time::interval(DENIALS), tokio::time::interval(SAMPLES));
    denials.set_missed_tick_behavior(MissedTickBehavior::Delay);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = denials.tick() => take_denials(&state),
            _ = samples.tick() => {
                state.history.sample(state.node.clock.now(), &state.stats(), state.store_snapshot().as_ref());
            }
        }
    }
}

/// Takes what was denied since it was taken last. At the end it is called once more, as the next second does not come.
pub(super) fn take_denials(state: &ServerState) {
    let mut denials = Vec::new();
    state.node.take_denials(&mut denials);
    if !denials.is_empty() {
        let clock = &state.node.clock;
        state.denials.add(denials, &state.policies.load(), (clock.now(), clock.wall()));
    }
}
