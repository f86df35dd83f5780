//! `record.file`: the thread that writes what has come, which may stall without stopping anything else.
//!
//! It takes what has come ten times a second, and sooner where much comes; while nothing comes it sleeps. When the file stalls, a
//! bounded number of arrivals is kept for it; what has no room is lost and counted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Thread;
use std::time::Duration;

use crate::core::time::{Instant, Micros};
use crate::serve::ServerState;
use crate::serve::recording::file::{ArrivalsError, Ring, digest_tag};
use crate::serve::recording::{Arrived, Recording};

/// Between two times that arrivals are taken, where they are few. So much of a recording is missing at most if the process is
/// killed.
const EVERY: Duration = Duration::from_millis(100);

/// After a longer time without taking any, when each arrival was can no longer be told.
const TOO_LATE: Micros = Micros::from_secs(1_200);

/// Losses are told about as often as this at most.
const WARN_EVERY: Micros = Micros::from_secs(10);

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

/// The thread that writes the file, until the process ends.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    thread: Thread,
    /// Who is to hear that all that had come is written.
    confirm: SyncSender<SyncSender<()>>,
}

impl Recorder {
    /// Waits until what has come so far is written, but at most for `most`. It is for the end of the process, which ends
    /// the thread as well.
    pub(super) fn flush(&self, most: Duration) {
        let (done, written) = sync_channel(1);
        if self.confirm.try_send(done).is_ok() {
            self.thread.unpark();
            let _ = written.recv_timeout(most);
        }
    }
}

impl RecordFile {
    /// Opens the file and starts the thread that writes it.
    ///
    /// # Errors
    /// It cannot be opened, is another file, or no thread is left.
    pub(super) fn start(&self, state: Arc<ServerState>) -> Result<Recorder, String> {
        let failed = |error: ArrivalsError| format!("record.file {}: {error}", self.path.display());
        let digests = digest_tag(state.node.digests);
        let ring = Ring::open(&self.path, self.size, self.keys, digests).map_err(failed)?;
        state.node.record(self.keys);
        let (confirm, confirmed) = sync_channel(1);
        let path = self.path.clone();
        let thread = std::thread::Builder::new().name("rationd-record".into());
        let started = thread.spawn(move || {
            // It was set above.
            if let Some(recording) = state.node.recording() {
                write(ring, &path, &state, recording, &confirmed);
            }
        });
        let started = started.map_err(|error| failed(error.into()))?;
        Ok(Recorder { thread: started.thread().clone(), confirm })
    }
}

fn write(
    mut ring: Ring,
    path: &Path,
    state: &ServerState,
    recording: &Recording,
    confirmed: &Receiver<SyncSender<()>>,
) {
    let mut arrived = Arrived::default();
    let (mut lost, mut problem) = (0, None::<io::Error>);
    let mut before = state.node.clock.now();
    let (mut warned, mut rests) = (None::<Instant>, false);
    recording.wake_me();
    loop {
        let done = confirmed.try_recv();
        let (now, wall) = (state.node.clock.now(), state.node.clock.wall());
        // A thread that has rested has left nothing behind.
        let is_late = !rests && now.since(before) > TOO_LATE;
        before = now;
        let mut taken = 0;
        recording.take(&mut arrived, |arrived| {
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
        if let Ok(done) = done {
            // Fails if the caller has stopped waiting.
            let _ = done.try_send(());
        }
        if lost > 0 && warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY) {
            let error = problem.take().map(|error| error.to_string());
            tracing::warn!(path = %path.display(), lost, error, "record.file did not keep up: arrivals are missing in it");
            (lost, warned) = (0, Some(now));
        }
        if taken > 0 || (rests && lost > 0) {
            rests &= taken == 0;
            std::thread::park_timeout(EVERY);
        } else if rests {
            std::thread::park();
        } else {
            // What came before this is taken once more, and what comes after it wakes this thread.
            recording.rest();
            rests = true;
        }
    }
}
