//! What a service manager like systemd is told: when the daemon serves, when it leaves, and that it lives.
//!
//! Without `NOTIFY_SOCKET` nothing is told. Sending may wait for the manager, and so stands before nothing else.

use std::sync::Arc;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

use crate::serve::ServerState;

/// Tells that the daemon serves, and with `WATCHDOG_USEC` from now on that it lives: twice in each such time, as long
/// as all that is vital moves.
pub(crate) async fn ready(hub: Arc<ServerState>) {
    tell(NotifyState::Ready).await;
    let Some(patience) = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero()) else { return };
    let mut beats = tokio::time::interval(patience / 2);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::spawn(async move {
        loop {
            beats.tick().await;
            match hub.vitals.still(hub.node.clock.now()) {
                None => tell(NotifyState::Watchdog).await,
                Some(why) => tracing::error!("the watchdog is not fed: {why}"),
            }
        }
    });
}

/// Tells that the daemon leaves.
pub(crate) async fn stopping() {
    tell(NotifyState::Stopping).await;
}

async fn tell(state: NotifyState<'static>) {
    let told = tokio::task::spawn_blocking(move || sd_notify::notify(&[state]));
    if let Ok(Err(error)) =
        tokio::time::timeout(std::time::Duration::from_millis(200), told).await.unwrap_or(Ok(Ok(())))
    {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
