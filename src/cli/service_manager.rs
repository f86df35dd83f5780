//! Notifies a service manager such as systemd that the daemon is ready, that it stops, and that it lives.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. Sending may block, so nothing else waits for it.

use std::sync::Arc;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

use crate::serve::ServerState;

/// Notifies that the daemon is ready. With `WATCHDOG_USEC` it then notifies twice in that time that the daemon lives,
/// as long as all vital tasks do.
pub(crate) async fn ready(state: Arc<ServerState>) {
    notify(NotifyState::Ready).await;
    let Some(patience) = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero()) else { return };
    let mut beats = tokio::time::interval(patience / 2);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::spawn(async move {
        loop {
            beats.tick().await;
            match state.vitals.still(state.node.clock.now()) {
                None => notify(NotifyState::Watchdog).await,
                Some(why) => tracing::error!("the watchdog is not fed: {why}"),
            }
        }
    });
}

/// Notifies that the daemon stops.
pub(crate) async fn stopping() {
    notify(NotifyState::Stopping).await;
}

async fn notify(state: NotifyState<'static>) {
    let notified = tokio::task::spawn_blocking(move || sd_notify::notify(&[state]));
    if let Ok(Err(error)) =
        tokio::time::timeout(std::time::Duration::from_millis(200), notified).await.unwrap_or(Ok(Ok(())))
    {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
