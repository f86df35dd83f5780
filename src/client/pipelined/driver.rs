//! The task behind a client: opens a connection when there is a request, and backs off after failures.
//!
//! During the backoff, requests fail at once as unreachable. Nothing is ever sent twice.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::super::backoff::{again, backoff};
use super::super::{ClientError, Timeouts};
use super::line::{End, Job, Line};

/// Serves `jobs` until all handles are dropped.
pub(super) async fn drive(path: PathBuf, timeouts: Timeouts, mut jobs: mpsc::Receiver<Job>) {
    let mut failures = 0;
    while let Some(first) = jobs.recv().await {
        if first.is_given_up() {
            continue;
        }
        let error = match connect(&path, timeouts).await {
            Ok(stream) => {
                let mut line = Line::new(stream, timeouts.answer);
                line.push(first);
                let end = poll_fn(|cx| line.poll(cx, &mut jobs)).await;
                let worked = line.has_answered;
                let error = report_end(end, line, &path, timeouts);
                if worked {
                    // The connection had worked, so the daemon may only have been restarted: no backoff.
                    failures = 0;
                    continue;
                }
                error
            }
            Err(error) => {
                first.fail(ClientError::Unreachable { path: path.clone(), error: again(&error) });
                error
            }
        };
        failures += 1;
        pause(&mut jobs, failures, || ClientError::Unreachable { path: path.clone(), error: again(&error) }).await;
    }
}

async fn connect(path: &Path, timeouts: Timeouts) -> io::Result<UnixStream> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("not accepted within {:?}", timeouts.connect));
    tokio::time::timeout(timeouts.connect, UnixStream::connect(path)).await.unwrap_or_else(|_| Err(late()))
}

/// Reports to the waiting requests how the connection ended, and returns the error for later ones.
fn report_end(end: End, line: Line, path: &Path, timeouts: Timeouts) -> io::Error {
    let path = || path.to_owned();
    match end {
        End::Left => io::ErrorKind::NotConnected.into(),
        End::Broken(error) => {
            line.end(|| ClientError::Broken { path: path(), error: again(&error) });
            error
        }
        End::Silent => {
            line.end(|| ClientError::TimedOut { path: path(), after: timeouts.answer });
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", timeouts.answer))
        }
        End::Protocol(error) => {
            let text = error.to_string();
            let mut first = Some(error);
            line.end(|| match first.take() {
                Some(error) => ClientError::Protocol { path: path(), error },
                None => ClientError::Broken { path: path(), error: io::Error::other(text.clone()) },
            });
            io::Error::new(io::ErrorKind::InvalidData, text)
        }
    }
}

/// Waits for the backoff, and refuses requests meanwhile.
async fn pause(jobs: &mut mpsc::Receiver<Job>, failures: u32, error: impl Fn() -> ClientError) {
    let mut over = pin!(tokio::time::sleep(backoff(failures)));
    poll_fn(|cx| {
        loop {
            match jobs.poll_recv(cx) {
                Poll::Ready(Some(job)) => job.fail(error()),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return over.as_mut().poll(cx),
            }
        }
    })
    .await;
}
