//! Watches over what the daemon cannot work without: its loops and its shards.
//!
//! A task that panics ends alone; the daemon would then accept requests and never answer them. So a panic of a vital
//! task aborts the process, and a supervisor restarts it. A loop that hangs is noticed by its beats, which stop: then
//! `/livez` fails, and systemd's watchdog is no longer notified.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

use crate::core::time::{Instant, Micros};

/// Time between two beats. A beat wakes a thread that may have nothing else to do, so beats are as rare as [`STILL`]
/// allows if one of them comes late.
const BEAT: Duration = Duration::from_secs(4);

/// A loop without a beat for this long counts as hanging.
const STILL: Micros = Micros::from_secs(10);

/// A function that is called before the process aborts.
static LAST_WORDS: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Registers a function to be called before the process aborts, for example to write the rest of the log. It must be
/// quick. Only the first call has an effect.
pub fn on_abort(words: impl Fn() + Send + Sync + 'static) {
    let _ = LAST_WORDS.set(Box::new(words));
}

/// Aborts the process, because it can no longer do its work.
pub fn abort(why: &str) -> ! {
    tracing::error!("aborting: {why}");
    if let Some(words) = LAST_WORDS.get() {
        words();
    }
    std::process::abort()
}

/// Aborts the process when it is dropped by a panic.
#[derive(Debug)]
pub struct Vital(&'static str);

impl Vital {
    /// Guards the rest of a scope.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self(name)
    }
}

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            abort(&format!("{} has panicked, and nothing goes on without it", self.0));
        }
    }
}

/// Runs a task whose panic aborts the process.
pub async fn vital<F: Future>(name: &'static str, task: F) -> F::Output {
    let _watched = Vital::new(name);
    task.await
}

/// The loops that must beat.
#[derive(Debug, Default)]
pub struct Vitals(Mutex<Vec<Arc<Beats>>>);

#[derive(Debug)]
struct Beats {
    name: String,
    /// The time of the last beat.
    at: AtomicU64,
}

/// Reports the beats of one loop.
#[derive(Debug)]
pub struct Pulse(Arc<Beats>);

impl Vitals {
    /// Expects beats of a loop from now on, until the pulse is dropped.
    pub fn expect(&self, name: impl Into<String>, now: Instant) -> Pulse {
        let beats = Arc::new(Beats { name: name.into(), at: AtomicU64::new(now.0) });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|beats| Arc::strong_count(beats) > 1);
        all.push(beats.clone());
        Pulse(beats)
    }

    /// The name of a loop that has not beaten for too long.
    #[must_use]
    pub fn still(&self, now: Instant) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |beats: &Beats| now.since(Instant(beats.at.load(Ordering::Relaxed)));
        let alive = all.iter().filter(|beats| Arc::strong_count(beats) > 1);
        let still = alive.map(|beats| (since(beats), beats)).filter(|(since, _)| *since > STILL);
        let (since, beats) = still.max_by_key(|(since, _)| *since)?;
        Some(format!("{} has not moved for {} s", beats.name, since.as_secs_ceil()))
    }
}

impl Pulse {
    /// Records a beat.
    pub fn beat(&self, now: Instant) {
        #[cfg(debug_assertions)]
        fault::happen(&self.0.name);
        self.0.at.store(now.0, Ordering::Relaxed);
    }

    /// A timer for beats.
    #[must_use]
    pub fn timer() -> Interval {
        let mut timer = tokio::time::interval(BEAT);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        timer
    }
}

/// Faults that tests inject at the next beat; not in a release build.
#[cfg(debug_assertions)]
pub mod fault {
    use std::sync::{Mutex, PoisonError};

    static NEXT: Mutex<Option<String>> = Mutex::new(None);

    /// Makes the loop of that name panic at its next beat.
    pub fn inject(name: &str) {
        *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
    }

    pub(super) fn happen(name: &str) {
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        let due = next.take_if(|wanted| wanted == name);
        drop(next);
        assert!(due.is_none(), "a fault was injected into {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_gives_no_sign_of_life_is_named() {
        let vitals = Vitals::default();
        let at = |seconds: u64| Instant(seconds * 1_000_000);
        let (first, second) = (vitals.expect("the alarm", at(0)), vitals.expect("data thread 0", at(0)));
        assert_eq!(vitals.still(at(10)), None);
        first.beat(at(9));
        assert_eq!(vitals.still(at(12)).as_deref(), Some("data thread 0 has not moved for 12 s"));
        second.beat(at(12));
        assert_eq!(vitals.still(at(19)), None);
        drop(first);
        assert_eq!(vitals.still(at(21)), None, "it has ended and is expected no longer");
    }
}
