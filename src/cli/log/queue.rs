//! The queue of log lines on their way to stderr: it is bounded, and one thread writes.
//!
//! Logging never waits; otherwise a stalled reader of the log would stop the daemon at its next line. Lines for which
//! there is no room are dropped and counted, and the log reports their number once its reader takes lines again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Most bytes that wait to be written.
const MOST: usize = 1 << 20;

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    /// A line was added or written.
    moved: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// A line was taken and is not written yet.
    writing: bool,
    /// Dropped lines that the log has not reported yet.
    unreported: u64,
}

impl Queue {
    /// Starts the thread that writes to stderr.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub(crate) fn to_stderr() -> io::Result<Self> {
        // A descriptor of its own: writers to std's stderr share a lock, and would wait for a write that is stuck.
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        Self::to(stderr)
    }

    fn to(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let inner = Arc::new(Inner::default());
        let of_thread = inner.clone();
        std::thread::Builder::new().name("rationd-log".into()).spawn(move || of_thread.write_to(&mut out))?;
        Ok(Self { inner })
    }

    /// Lines that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, but at most for `patience`. Returns whether they are.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        let waiting = self.inner.lock();
        let unfinished = |waiting: &mut Waiting| waiting.writing || !waiting.lines.is_empty();
        let waited = self.inner.moved.wait_timeout_while(waiting, patience, unfinished);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.inner.lock();
        if waiting.bytes + line.len() > MOST {
            waiting.unreported += 1;
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.inner.moved.notify_all();
    }
}

impl Inner {
    fn write_to(&self, out: &mut impl Write) {
        loop {
            let mut waiting = self.lock();
            waiting.writing = false;
            self.moved.notify_all();
            if waiting.lines.is_empty() && waiting.unreported > 0 {
                let lines = std::mem::take(&mut waiting.unreported);
                drop(waiting);
                // This warning goes through the queue, as every line does.
                tracing::warn!(lines, "log lines were dropped: whoever reads the log did not keep up");
                continue;
            }
            let idle = self.moved.wait_while(waiting, |waiting| waiting.lines.is_empty());
            let mut waiting = idle.unwrap_or_else(PoisonError::into_inner);
            let Some(line) = waiting.lines.pop_front() else { continue };
            waiting.bytes -= line.len();
            waiting.writing = true;
            drop(waiting);
            // If the reader has gone the daemon goes on, and the error cannot be reported anywhere.
            let _ = out.write_all(&line);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects the bytes of one event.
#[derive(Debug)]
pub(crate) struct Line<'q>(&'q Queue);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'q> MakeWriter<'q> for Queue {
    type Writer = Line<'q>;

    fn make_writer(&'q self) -> Line<'q> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A writer that takes a line only when the test allows it.
    struct Slow {
        let_through: mpsc::Receiver<()>,
        taken: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.let_through.recv();
            let _ = self.taken.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_does_not_fit_is_counted() {
        let (let_through, gate) = mpsc::channel();
        let (taken, written) = mpsc::channel();
        let queue = Queue::to(Slow { let_through: gate, taken }).expect("a thread");
        let line = vec![b'x'; 1_000];
        let lines = 2 * MOST / line.len();
        (0..lines).for_each(|_| queue.push(&line));
        assert!(!queue.flush(Duration::ZERO), "nothing can have been written");
        let kept = lines - queue.dropped() as usize;
        // One line may be with the writer, beside those in the queue.
        assert!((MOST / line.len()..=MOST / line.len() + 1).contains(&kept), "{kept} of {lines} were kept");
        drop(let_through);
        assert!((0..kept).all(|_| written.recv_timeout(Duration::from_secs(10)).is_ok_and(|seen| seen == line)));
        assert!(queue.flush(Duration::from_secs(10)));
    }
}
