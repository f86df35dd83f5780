//! Loops that must not end: one that panics is begun anew after a moment.
//!
//! Sound for loops that keep their state behind locks which hold plain values, whole at any time.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;

/// Between a panic and the next attempt.
const REST: Duration = Duration::from_millis(250);

/// Runs what `begin` makes to its end, and again from its beginning whenever it has panicked.
pub(super) async fn supervised<F>(name: &'static str, mut begin: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        // What is in it ends when this is dropped.
        let mut running = JoinSet::new();
        running.spawn(begin());
        match running.join_next().await {
            Some(Err(error)) if error.is_panic() => tracing::error!("{name} has panicked and is begun anew"),
            _ => return,
        }
        tokio::time::sleep(REST).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn goes_on_after_a_panic() {
        let mut begun = 0;
        let loops = supervised("a loop", || {
            begun += 1;
            let count = begun;
            async move {
                tokio::task::yield_now().await;
                if count < 3 {
                    std::panic::resume_unwind(Box::new("a bug"));
                }
            }
        });
        tokio::time::timeout(Duration::from_secs(60), loops).await.expect("it ends in the end");
        assert_eq!(begun, 3);
    }
}
