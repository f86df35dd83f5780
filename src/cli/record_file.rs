//! `record.file`: the thread that writes what has come, which may stall without stopping anything else.
//!
//! It takes what has come fifty times a second, and more often where much comes. When the file stalls, a bounded number of
//! arrivals is kept for it; what has no room is lost and counted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::core::time::Micros;
use crate::serve::ServerState;
use crate::serve::recording::Arrived;
use crate::serve::recording::file::{ArrivalsError, Ring, digest_tag};

/// Between two times that arrivals are taken, where few come.
const EVERY: Duration = Duration::from_millis(20);

/// As many as should come meanwhile, where more would: so many share what it costs to wake this thread, and they are still in the
/// processor's second cache then, of which they take 150 KiB.
const FEW: usize = 16_384;

/// The shortest time between two that arrivals are taken, because the page that is not full is written each time.
const SHORTEST: Duration = Duration::from_millis(2);

/// After a longer time without taking any, when each arrival was can no longer be told.
const TOO_LATE: Micros = Micros::from_secs(1_200);

/// Losses are told about as often as this at most.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// What to record, and where.
#[derive(Clone, Debug)]
pub(super) struct RecordFile {
    /// The file.
    pub(super) path: PathBuf,
    /// About how many bytes it takes at most.
    pub(super) size: u64,
    /// It has the keys' first bytes.
    pub(super) keys: bool,
}

impl RecordFile {
    /// Opens the file and starts the thread that writes it, until the process ends.
    ///
    /// # Errors
    /// It cannot be opened, is another file, or no thread is left.
    pub(super) fn start(&self, state: Arc<ServerState>) -> Result<(), String> {
        let told = |error: ArrivalsError| format!("record.file {}: {error}", self.path.display());
        let digests = digest_tag(state.node.digests);
        let ring = Ring::open(&self.path, self.size, self.keys, digests).map_err(told)?;
        state.node.record(self.keys);
        let path = self.path.clone();
        let thread = std::thread::Builder::new().name("rationd-record".into());
        let started = thread.spawn(move || write(ring, &path, &state));
        started.map(|_| ()).map_err(|error| told(error.into()))
    }
}

fn write(mut ring: Ring, path: &Path, state: &ServerState) {
    let mut arrived = Arrived::default();
    let (mut lost, mut problem, mut since) = (0, None::<io::Error>, Duration::ZERO);
    let (mut before, mut pause) = (state.node.clock.now(), EVERY);
    loop {
        std::thread::park_timeout(pause);
        let (now, wall) = (state.node.clock.now(), state.node.clock.wall());
        let is_late = now.since(before) > TOO_LATE;
        before = now;
        let mut taken = 0;
        state.node.take_arrived(&mut arrived, |arrived| {
            lost += arrived.lost();
            taken += arrived.len();
            let (groups, keys) = arrived.bytes();
            if is_late {
                lost += arrived.len() as u64;
            } else if let Err(error) = ring.append(groups, keys, (now, wall)) {
                lost += arrived.len() as u64;
                problem = Some(error);
            }
        });
        since += pause;
        pause = next_pause(pause, taken);
        if lost > 0 && since >= WARN_EVERY {
            let error = problem.take().map(|error| error.to_string());
            tracing::warn!(path = %path.display(), lost, error, "record.file did not keep up: arrivals are missing in it");
            (lost, since) = (0, Duration::ZERO);
        }
    }
}

/// How long to wait until [`FEW`] arrivals have come, if they come as fast as these did within `pause`.
fn next_pause(pause: Duration, taken: usize) -> Duration {
    let few = pause.as_micros() * FEW as u128 / taken.max(1) as u128;
    u64::try_from(few).map_or(EVERY, Duration::from_micros).clamp(SHORTEST, EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_taken_more_often() {
        assert_eq!(next_pause(EVERY, 0), EVERY);
        assert_eq!(next_pause(EVERY, FEW), EVERY);
        // A million a second.
        let pause = next_pause(EVERY, 20_000);
        assert_eq!(pause, Duration::from_micros(16_384));
        assert_eq!(next_pause(pause, FEW), pause, "and it stays so");
        assert_eq!(next_pause(pause, 200_000), SHORTEST);
        assert_eq!(next_pause(SHORTEST, 1), EVERY);
    }
}
