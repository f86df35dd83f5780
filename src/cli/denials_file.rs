//! `denials.file`: the thread that appends lines about denials, which may stall without stopping anything else.
//!
//! Lines come each second from `serve::denial_log`. A few batches may wait; what does not fit is dropped and counted.
//! The file is opened again at SIGHUP, so that it can be rotated; it holds keys, so only its owner can read it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::serve::denial_log::Sink;

/// Batches that may wait: seconds that the file may stall before lines are lost.
const WAITING: usize = 8;

/// The file, while its thread writes it.
#[derive(Clone, Debug)]
pub(super) struct DenialsFile {
    orders: SyncSender<Order>,
    shared: Arc<Shared>,
}

/// What the thread does, in this order.
#[derive(Debug)]
enum Order {
    /// These lines are appended.
    Append(String),
    /// Whoever waits here is told that all lines before are written.
    Tell(SyncSender<()>),
}

#[derive(Debug, Default)]
struct Shared {
    /// The file is to be opened again.
    reopen: AtomicBool,
    /// Lines for which there was no room.
    dropped: AtomicU64,
}

impl DenialsFile {
    /// Starts the thread that writes to `path`.
    ///
    /// # Errors
    /// No thread is left.
    pub(super) fn start(path: PathBuf) -> io::Result<Self> {
        let (orders, taken) = sync_channel(WAITING);
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        std::thread::Builder::new().name("rationd-denials".into()).spawn(move || write(&path, &taken, &of_thread))?;
        Ok(Self { orders, shared })
    }

    /// Takes lines for the file; never waits.
    pub(super) fn sink(&self) -> Sink {
        let (orders, shared) = (self.orders.clone(), self.shared.clone());
        Arc::new(move |text: &str| {
            if orders.try_send(Order::Append(text.to_owned())).is_err() {
                shared.dropped.fetch_add(text.lines().count() as u64, Ordering::Relaxed);
            }
        })
    }

    /// Waits until what it took so far is written, `most` at most: the process that ends takes the thread with it.
    pub(super) fn flush(&self, most: Duration) {
        let (done, written) = sync_channel(1);
        // Where there is no room for it, the file has stalled for seconds.
        if self.orders.try_send(Order::Tell(done)).is_ok() {
            let _ = written.recv_timeout(most);
        }
    }

    /// Has the file opened again before the next line.
    pub(super) fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
    }
}

/// Opening is done here, too: it may stall where the path is a pipe without a reader.
fn write(path: &Path, orders: &Receiver<Order>, shared: &Shared) {
    let mut file: Option<File> = None;
    // Lines that could not be written since the last that could.
    let mut lost = 0;
    while let Ok(order) = orders.recv() {
        let text = match order {
            Order::Append(text) => text,
            Order::Tell(done) => {
                // Whoever has waited for too long is gone.
                let _ = done.try_send(());
                continue;
            }
        };
        if shared.reopen.swap(false, Ordering::Relaxed) {
            file = None;
        }
        let opened = match file.take() {
            Some(file) => Ok(file),
            None => OpenOptions::new().append(true).create(true).mode(0o600).open(path),
        };
        match opened.and_then(|mut open| append(&mut open, &text).map(|()| open)) {
            Ok(open) => {
                file = Some(open);
                if lost > 0 {
                    tracing::warn!(path = %path.display(), lines = lost, "denials.file is written again: lines are missing in it");
                }
                lost = 0;
            }
            Err(error) => {
                if lost == 0 {
                    tracing::warn!(path = %path.display(), %error, "denials.file cannot be written");
                }
                lost += text.lines().count();
            }
        }
        // Lines are dropped while this thread stalls above, so they are told of as soon as it goes on.
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(lines = dropped, "lines about denials were dropped: denials.file did not keep up");
        }
    }
}

/// Appends lines, or none of them: what is written later would be appended to the part of a line that had room.
fn append(file: &mut File, text: &str) -> io::Result<()> {
    let before = file.metadata()?.len();
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // What is no file on a disk, like a pipe, cannot be made shorter.
        let _ = file.set_len(before);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_file_that_stalls() {
        let directory = tempfile::tempdir().expect("a directory");
        // A pipe that nobody reads: to open it for writing stalls.
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo exists");
        assert!(made.success());
        let file = DenialsFile::start(path).expect("a thread");
        let sink = file.sink();
        // One may be with the thread, beside those that wait.
        (0..2 * WAITING + 5).for_each(|_| sink("a\nb\n"));
        let dropped = file.shared.dropped.load(Ordering::Relaxed);
        assert!(dropped >= 2 * (WAITING as u64 + 4), "{dropped}");
        // Nor does a daemon that leaves: there is no room for its question, either.
        file.flush(Duration::from_secs(600));
    }
}
