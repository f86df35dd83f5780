//! What tasks hold: cheap to clone, and all clones share one connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::super::{ClientError, Decision, Patience, Reply, request, write_request};
use super::driver::drive;
use super::line::Job;

/// Requests that wait for their turn to be sent.
const QUEUE: usize = 256;

/// A daemon's socket for many tasks at once. Clones share one connection, on which requests are pipelined.
///
/// The connection is opened with the first request, and anew after it broke: at once if it had worked, else after a
/// rest with jitter that doubles from 50 ms to 0.4 s. During a rest requests fail at once. No request is ever
/// sent twice: a check without an answer may have been charged, and it is the caller who knows whether to ask again.
///
/// Every request has a deadline ([`Patience::answer`]), the wait for a connection included. A future may be dropped at
/// any time, for a shorter deadline say: its answer is thrown away when it comes, and what was not sent is not
/// sent at all. A daemon that owes answers and says nothing for the patience is hung up on.
///
/// ```
/// use std::time::Duration;
///
/// use rationd::client::AsyncClient;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let rations = AsyncClient::new("/nowhere/rationd.sock");
/// let checked = rations.check("api", b"user:42", 1);
/// let passes = match tokio::time::timeout(Duration::from_millis(50), checked).await {
///     Ok(Ok(decision)) => decision.is_allowed(),
///     Ok(Err(error)) if error.is_unreachable() => true, // no daemon: everything passes
///     Ok(Err(error)) => return Err(error),              // no such policy, say
///     Err(_late) => true,
/// };
/// assert!(passes);
/// # Ok(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    patience: Patience,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
}

impl AsyncClient {
    /// A client of the socket at `path`; it is connected to when something is asked.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self::with(path, Patience::default())
    }

    /// With time-outs of the caller's choice.
    #[must_use]
    pub fn with(path: impl AsRef<Path>, patience: Patience) -> Self {
        let inner = Inner { path: path.as_ref().to_owned(), patience, jobs: Mutex::new(None) };
        Self { inner: Arc::new(inner) }
    }

    /// Checks `key` against `policy` and charges `cost` if it passes. A cost of 0 peeks.
    ///
    /// # Errors
    /// No answer, or the daemon knows no such policy.
    ///
    /// # Panics
    /// Outside a tokio runtime with IO and time, as all that asks.
    pub async fn check(&self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::check(policy, key.as_ref(), cost)).await.and_then(Decision::read)
    }

    /// Tells what [`Self::check`] would answer, and charges nothing.
    ///
    /// # Errors
    /// As for [`Self::check`].
    pub async fn peek(&self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::peek(policy, key.as_ref(), cost)).await.and_then(Decision::read)
    }

    /// Gives back a cost that was charged. It never lifts what remains above the limit.
    ///
    /// # Errors
    /// No answer, or the store did not take it.
    pub async fn refund(&self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<(), ClientError> {
        self.ask(request::refund(policy, key.as_ref(), cost)).await.map(drop)
    }

    /// Ends a slot of a concurrent limit ([`Decision::slot`]).
    ///
    /// # Errors
    /// No answer, or there is no such slot: its time is over, or it was released before.
    pub async fn release(&self, policy: &str, key: impl AsRef<[u8]>, slot: &str) -> Result<(), ClientError> {
        self.ask(request::release(policy, key.as_ref(), slot)).await.map(drop)
    }

    /// Forgets `key` under `policy`, fleet-wide.
    ///
    /// # Errors
    /// No answer, or the store did not take it.
    pub async fn reset(&self, policy: &str, key: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.ask(request::reset(policy, key.as_ref())).await.map(drop)
    }

    /// Sends any command and waits for its answer.
    ///
    /// # Errors
    /// No answer, or an error reply ([`ClientError::Refused`]).
    pub async fn command(&self, words: &[&[u8]]) -> Result<Reply, ClientError> {
        self.ask(|out| write_request(out, words)).await
    }

    pub(super) async fn ask(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Reply, ClientError> {
        let (asker, answer) = oneshot::channel();
        let job = Job { bytes: written(write), asker: Some(asker) };
        let asked = async {
            self.jobs().send(job).await.map_err(|_| self.abandoned())?;
            answer.await.unwrap_or_else(|_| Err(self.abandoned()))
        };
        let Inner { path, patience, .. } = &*self.inner;
        let late = || ClientError::TimedOut { path: path.clone(), after: patience.answer };
        tokio::time::timeout(patience.answer, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Says something whose answer nobody waits for, if there is a connection to say it on.
    pub(super) fn mention(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &*jobs {
            let _ = jobs.try_send(Job { bytes: written(write), asker: None });
        }
    }

    /// The way to the driver; another one if the runtime of the last has ended.
    fn jobs(&self) -> mpsc::Sender<Job> {
        let mut jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = jobs.as_ref().filter(|jobs| !jobs.is_closed()) {
            return jobs.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(drive(self.inner.path.clone(), self.inner.patience, receiver));
        jobs.insert(sender).clone()
    }

    fn abandoned(&self) -> ClientError {
        let error = std::io::Error::other("the runtime that held it has ended");
        ClientError::Broken { path: self.inner.path.clone(), error }
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}
