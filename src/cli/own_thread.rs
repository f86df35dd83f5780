//! A single-threaded runtime on a thread of its own. It saves the wake-ups with which a runtime of several threads
//! spreads its tasks.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The thread, which ends when this is dropped.
pub(super) struct OwnThread {
    handle: Handle,
    stop: oneshot::Sender<()>,
    ended: mpsc::Receiver<()>,
}

impl OwnThread {
    /// Starts it under this name.
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (ends, ended) = mpsc::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Nothing is ever sent on these channels; each side waits until the other one's sender is dropped.
            let _ends: mpsc::Sender<()> = ends;
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop, ended })
    }

    /// For tasks that run on it.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends it with all of its tasks, and waits for that, but not for longer than `ending`: a task may be stuck.
    pub(super) fn end(self, ending: Duration) {
        drop(self.stop);
        let _ = self.ended.recv_timeout(ending);
    }
}
