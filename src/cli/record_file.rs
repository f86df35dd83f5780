//! `record.file`: the thread that writes what has come, which may stall without stopping anything else.
//!
//! It takes the arrivals of all shards fifty times a second. When the file stalls, the shards keep a bounded number of
//! them; what has no room is lost and counted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::core::time::Micros;
use crate::serve::ServerState;
use crate::serve::recording::Arrived;
use crate::serve::recording::file::{ArrivalsError, Ring, digest_tag};

/// Between two times that arrivals are taken.
const EVERY: Duration = Duration::from_millis(20);

/// After a longer time without taking any, when each arrival was can no longer be told.
const TOO_LATE: Micros = Micros::from_secs(1_200);

/// Losses are told about as often as this at most.
const TOLD: Duration = Duration::from_secs(10);

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
    let mut before = state.node.clock.now();
    loop {
        std::thread::park_timeout(EVERY);
        let (now, wall) = (state.node.clock.now(), state.node.clock.wall());
        let is_late = now.since(before) > TOO_LATE;
        before = now;
        state.node.take_arrived(&mut arrived, |arrived| {
            lost += arrived.lost();
            let (records, keys) = arrived.records();
            if is_late {
                lost += records.len() as u64;
            } else if let Err(error) = ring.append(records, keys, (now, wall)) {
                lost += arrived.len() as u64;
                problem = Some(error);
            }
        });
        since += EVERY;
        if lost > 0 && since >= TOLD {
            let error = problem.take().map(|error| error.to_string());
            tracing::warn!(path = %path.display(), lost, error, "record.file did not keep up: arrivals are missing in it");
            (lost, since) = (0, Duration::ZERO);
        }
    }
}
