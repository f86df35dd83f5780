//! The tests' only clock: measuring, pacing an open-loop load, and the wall clock for comparing with
//! `reset_at`. No test sleeps: what waits for a condition does it with `poll.rs`.

#![allow(clippy::disallowed_methods, reason = "this is the tests' clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::poll::wait_until;

/// A stopwatch: tests measure with it instead of reading clocks.
#[derive(Clone, Copy, Debug)]
pub struct Watch(Instant);

impl Watch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Returns when `due` has passed since the start; at once when it already has.
    pub fn pause_until(&self, due: Duration) {
        if let Some(rest) = due.checked_sub(self.elapsed()) {
            thread::sleep(rest);
        }
    }
}

/// Unix time in microseconds.
#[must_use]
pub fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::try_from(since.as_micros()).expect("the clock is before the year 500,000")
}

/// Returns when the wall clock is `before` a whole multiple of `period`, so that a load that starts
/// then covers the next windows whole.
pub fn wait_for_boundary(period: Duration, before: Duration) {
    let period = u64::try_from(period.as_micros()).expect("a short period");
    let before = u64::try_from(before.as_micros()).expect("a short time");
    let start = wall_us() + before;
    Watch::start().pause_until(Duration::from_micros(period - start % period));
}

/// For how long this machine kept a thread waiting that wanted to run: a test that bounds how long an answer takes
/// excuses that much.
pub struct Starved {
    noted: Arc<Noted>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Noted {
    longest_us: AtomicU64,
    rounds: AtomicU64,
    stop: AtomicBool,
}

impl Noted {
    fn watch(&self) {
        let watch = Watch::start();
        while !self.stop.load(Ordering::Relaxed) {
            let due = watch.elapsed() + Duration::from_millis(2);
            watch.pause_until(due);
            let late = u64::try_from(watch.elapsed().saturating_sub(due).as_micros()).expect("a short time");
            self.longest_us.fetch_max(late, Ordering::Relaxed);
            self.rounds.fetch_add(1, Ordering::Release);
        }
    }
}

impl Starved {
    /// Watches from now on.
    #[must_use]
    pub fn watch() -> Self {
        let noted = Arc::new(Noted::default());
        let of_thread = Arc::clone(&noted);
        Self { noted, thread: Some(thread::spawn(move || of_thread.watch())) }
    }

    /// The longest since it was last taken, as far as it is noted.
    #[allow(clippy::must_use_candidate, reason = "some only begin anew")]
    pub fn take(&self) -> Duration {
        Duration::from_micros(self.noted.longest_us.swap(0, Ordering::Relaxed))
    }

    /// The same, when the thread that notes it has itself run again: it may have waited until now.
    #[must_use]
    pub fn take_whole(&self) -> Duration {
        let rounds = self.noted.rounds.load(Ordering::Acquire);
        wait_until("it has run again", 10, || self.noted.rounds.load(Ordering::Acquire) > rounds);
        self.take()
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        self.noted.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
