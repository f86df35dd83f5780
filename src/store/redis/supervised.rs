//! Restarts a loop that must not end when it panics.
//!
//! This is sound for loops whose state is behind locks that hold plain values, which are consistent at any time.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;

/// Time between a panic and the restart.
const REST: Duration = Duration::from_millis(250);

/// Runs the future that `begin` makes until it ends, and starts a new one whenever it panics.
pub(super) async fn supervised<F>(name: &'static str, mut begin: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        // Dropping the set aborts the task in it.
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
