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
    /// Report here once all lines before are written.
    Confirm(SyncSender<()>),
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

    /// Waits until the lines that were taken so far are written, but at most for `most`. It is for the end of the
    /// process, which ends the thread as well.
    pub(super) fn flush(&self, most: Duration) {
        let (done, written) = sync_channel(1);
        // If the queue is full, the file has stalled for seconds, and waiting would not help.
        if self.orders.try_send(Order::Confirm(done)).is_ok() {
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
            Order::Confirm(done) => {
                // Fails if the caller has stopped waiting.
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
        // Lines are dropped while this thread stalls in a write, so they are reported as soon as the write has ended.
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(lines = dropped, "lines about denials were dropped: denials.file did not keep up");
        }
    }
}

/// Appends all lines or none. If a part of a line stayed in the file, the next lines would be appended to it.
fn append(file: &mut File, text: &str) -> io::Result<()> {
    let before = file.metadata()?.len();
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // Fails for what is no file on a disk, such as a pipe, which cannot be shortened.
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
        // The thread may have one batch, beside those in the queue.
        (0..2 * WAITING + 5).for_each(|_| sink("a\nb\n"));
        let dropped = file.shared.dropped.load(Ordering::Relaxed);
        assert!(dropped >= 2 * (WAITING as u64 + 4), "{dropped}");
        // A daemon that leaves does not wait, either, because the queue has no room for its order.
        file.flush(Duration::from_secs(600));
    }
}
