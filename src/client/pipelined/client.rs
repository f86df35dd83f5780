//! The handle that tasks use: clones are cheap, and share one connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::super::{ClientError, Decision, Reply, Timeouts, request, write_request};
use super::driver::drive;
use super::line::Job;

/// Requests that wait to be sent.
const QUEUE: usize = 256;

/// A connection to a daemon's socket that many tasks share. Clones are cheap; their requests are pipelined.
///
/// The first request opens the connection. After the connection has ended, the next request opens a new one: at once
/// if the last one had brought an answer. Otherwise requests fail at once for 25 to 75 ms; each further failure
/// doubles that time, up to 200 to 600 ms. No request is ever sent twice: a check without an answer may have been
/// charged, and only the caller knows whether to ask again.
///
/// A request fails when its answer takes longer than [`Timeouts::answer`], including the wait for a connection. Its
/// future may be dropped before that, for example by a shorter deadline: no other request gets its answer, and a
/// request that was not sent yet is not sent. If nothing comes from the daemon for that time while answers are
/// expected, the connection is closed.
///
/// Requests panic outside a tokio runtime that has IO and time enabled. A task of that runtime serves the connection.
/// A request from another runtime, after the first has ended, opens another connection.
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
    timeouts: Timeouts,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
}

impl AsyncClient {
    /// A client of the daemon whose socket is at `path`. It never fails, because only the first request connects.
    ///
    /// ```
    /// let rations = rationd::client::AsyncClient::new("/run/rationd/rationd.sock");
    /// ```
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self::with_timeouts(path, Timeouts::default())
    }

    /// The same with timeouts of the caller's choice; [`AsyncClient::new`] waits a second for each.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rationd::client::{AsyncClient, Timeouts};
    ///
    /// let hasty = Timeouts { answer: Duration::from_millis(100), ..Timeouts::default() };
    /// let rations = AsyncClient::with_timeouts("/run/rationd/rationd.sock", hasty);
    /// ```
    #[must_use]
    pub fn with_timeouts(path: impl AsRef<Path>, timeouts: Timeouts) -> Self {
        let inner = Inner { path: path.as_ref().to_owned(), timeouts, jobs: Mutex::new(None) };
        Self { inner: Arc::new(inner) }
    }

    /// Asks whether a request for `key` of `cost` tokens is admitted under `policy`. If it is, the tokens are
    /// charged; a cost of 0 charges nothing.
    ///
    /// ```
    /// # rationd::example::run_async(async |socket| {
    /// # let rations = rationd::client::AsyncClient::new(socket);
    /// let (one, other) = (rations.clone(), rations);
    /// let task = tokio::spawn(async move { one.check("api", "user:42", 5).await }); // of 100 tokens a day
    /// assert!(other.check("api", "user:42", 5).await?.is_allowed());
    /// assert!(task.await??.is_allowed());
    /// assert_eq!(other.peek("api", "user:42", 0).await?.remaining, 90);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// No answer, or the daemon does not know the policy ([`ClientError::Refused`]). A denial is no error.
    ///
    /// # Panics
    /// Outside a tokio runtime with IO and time, as all methods that send.
    pub async fn check(&self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::check(policy, key.as_ref(), cost)).await.and_then(Decision::read)
    }

    /// Asks for the decision of [`Self::check`], but charges nothing.
    ///
    /// ```
    /// # rationd::example::run_async(async |socket| {
    /// # let rations = rationd::client::AsyncClient::new(socket);
    /// assert!(!rations.peek("api", "user:42", 101).await?.is_allowed());
    /// assert_eq!(rations.peek("api", "user:42", 0).await?.remaining, 100);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As for [`Self::check`].
    pub async fn peek(&self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::peek(policy, key.as_ref(), cost)).await.and_then(Decision::read)
    }

    /// Gives back a cost that was charged, for example after a request that failed. What is left never exceeds the
    /// limit.
    ///
    /// ```
    /// # rationd::example::run_async(async |socket| {
    /// # let rations = rationd::client::AsyncClient::new(socket);
    /// rations.check("api", "user:42", 30).await?;
    /// rations.refund("api", "user:42", 10).await?;
    /// assert_eq!(rations.peek("api", "user:42", 0).await?.remaining, 80);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As for [`Client::refund`](super::super::Client::refund).
    pub async fn refund(&self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<(), ClientError> {
        self.ask(request::refund(policy, key.as_ref(), cost)).await.map(drop)
    }

    /// Releases a slot of a concurrent limit, by the id in the check's answer ([`Decision::slot`]). A slot also ends
    /// with the connection, which all clones share, and after the limit's period.
    ///
    /// ```
    /// # rationd::example::run_async(async |socket| {
    /// # let rations = rationd::client::AsyncClient::new(socket);
    /// let slot = rations.check("jobs", "tenant:7", 1).await?.slot.ok_or("denied")?; // of "2/30s concurrent"
    /// // … the job is done …
    /// rations.release("jobs", "tenant:7", &slot).await?;
    /// assert_eq!(rations.check("jobs", "tenant:7", 0).await?.remaining, 2);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As for [`Client::release`](super::super::Client::release).
    pub async fn release(&self, policy: &str, key: impl AsRef<[u8]>, slot: &str) -> Result<(), ClientError> {
        self.ask(request::release(policy, key.as_ref(), slot)).await.map(drop)
    }

    /// Resets `key` under `policy` at all nodes, as if it had spent nothing.
    ///
    /// ```
    /// # rationd::example::run_async(async |socket| {
    /// # let rations = rationd::client::AsyncClient::new(socket);
    /// rations.check("api", "user:42", 100).await?;
    /// rations.reset("api", "user:42").await?;
    /// assert_eq!(rations.peek("api", "user:42", 0).await?.remaining, 100);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As for [`Client::reset`](super::super::Client::reset).
    pub async fn reset(&self, policy: &str, key: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.ask(request::reset(policy, key.as_ref())).await.map(drop)
    }

    /// Sends any command, given as its name and arguments, and waits for its answer.
    ///
    /// ```
    /// # rationd::example::run_async(async |socket| {
    /// # let rations = rationd::client::AsyncClient::new(socket);
    /// let reply = rations.command(&[b"RATION.HEADERS", b"api", b"user:42"]).await?;
    /// assert_eq!(reply.as_array().and_then(|fields| fields[0].as_integer()), Some(0), "it may pass");
    /// # Ok(()) });
    /// ```
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
        let Inner { path, timeouts, .. } = &*self.inner;
        let late = || ClientError::TimedOut { path: path.clone(), after: timeouts.answer };
        tokio::time::timeout(timeouts.answer, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Sends a command whose answer nobody needs, if there is a connection.
    pub(super) fn mention(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &*jobs {
            let _ = jobs.try_send(Job { bytes: written(write), asker: None });
        }
    }

    /// The channel to the driver; a new one if the runtime of the last driver has ended.
    fn jobs(&self) -> mpsc::Sender<Job> {
        let mut jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = jobs.as_ref().filter(|jobs| !jobs.is_closed()) {
            return jobs.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(drive(self.inner.path.clone(), self.inner.timeouts, receiver));
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
