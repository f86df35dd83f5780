//! Decisions in the caller's own process, for tasks: [`Limiter`](super::super::Limiter) over a shared connection.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::super::lease::Lease;
use super::super::local_tokens::{LocalTokens, Next, RefillState, Turn};
use super::super::{OnDaemonLoss, request};
use super::AsyncClient;

/// Decides for one key of one policy, in this process, as [`Limiter`](super::super::Limiter) does. Clones are cheap and
/// share their tokens; all limiters of one [`AsyncClient`] share its connection. What is left goes back to the daemon
/// when the last clone is dropped, as long as the runtime lives.
///
/// ```
/// use rationd::client::{AsyncClient, AsyncLimiter, OnDaemonLoss};
///
/// let socket = "/run/rationd/rationd.sock";
/// # rationd::example::run_async(async |socket| {
/// let rations = AsyncClient::new(socket);
/// let limiter = AsyncLimiter::new(&rations, "api", "user:42", OnDaemonLoss::LastShare); // of 100 tokens a day
/// let tasks = [limiter.clone(), limiter].map(|limiter| {
///     tokio::spawn(async move {
///         let mut passed = 0;
///         for _ in 0..1_000 {
///             passed += u64::from(limiter.allow(1).await);
///         }
///         passed
///     })
/// });
/// let mut passed = 0;
/// for task in tasks {
///     passed += task.await?;
/// }
/// assert_eq!(passed, 100);
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
pub struct AsyncLimiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: AsyncClient,
    policy: String,
    key: Box<[u8]>,
    tokens: LocalTokens,
    refill: Mutex<RefillState>,
}

impl AsyncLimiter {
    /// A limiter for `key` under `policy` by the daemon of `client`. It has no tokens yet and asks nobody: the first
    /// decision does.
    ///
    /// ```
    /// use rationd::client::{AsyncClient, AsyncLimiter, OnDaemonLoss};
    ///
    /// let rations = AsyncClient::new("/run/rationd/rationd.sock");
    /// let limiters = ["user:42", "user:43"].map(|key| AsyncLimiter::new(&rations, "api", key, OnDaemonLoss::Deny));
    /// ```
    #[must_use]
    pub fn new(client: &AsyncClient, policy: &str, key: impl AsRef<[u8]>, on_daemon_loss: OnDaemonLoss) -> Self {
        let inner = Inner {
            client: client.clone(),
            policy: policy.to_owned(),
            key: key.as_ref().into(),
            tokens: LocalTokens::new(),
            refill: Mutex::new(RefillState::new(on_daemon_loss)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether a request of this cost, in tokens, may pass; it is charged then. Most calls wait for nothing. When there
    /// are too few tokens, one task asks the daemon for more, and the others that need some wait for it, as for
    /// [`Limiter::allow`](super::super::Limiter::allow). The future may be dropped: what is lent meanwhile is there for
    /// the next call.
    ///
    /// ```
    /// # use rationd::client::{AsyncClient, AsyncLimiter, OnDaemonLoss};
    /// # rationd::example::run_async(async |socket| {
    /// # let limiter = AsyncLimiter::new(&AsyncClient::new(socket), "api", "user:42", OnDaemonLoss::Deny);
    /// assert!(limiter.allow(60).await); // of 100 tokens a day
    /// assert!(!limiter.allow(60).await, "40 are left");
    /// # Ok(()) });
    /// ```
    ///
    /// # Panics
    /// Outside a tokio runtime with IO and time.
    pub async fn allow(&self, cost: u64) -> bool {
        if let Some(decided) = self.inner.tokens.decide(cost) {
            return decided;
        }
        // A task of its own: what is lent to a caller who gave up meanwhile is there for the next.
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.ask(cost).await }).await.unwrap_or(false)
    }

    /// Why the daemon could not be asked, where the last attempt to ask for tokens failed: for a log or a metric. Waits
    /// while another task asks.
    ///
    /// ```
    /// use rationd::client::{AsyncClient, AsyncLimiter, OnDaemonLoss};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let rations = AsyncClient::new("/nowhere/rationd.sock");
    /// let limiter = AsyncLimiter::new(&rations, "api", "user:42", OnDaemonLoss::Allow);
    /// assert!(limiter.allow(1).await);
    /// assert!(limiter.last_error().await.is_some_and(|why| why.contains("there is no such socket")));
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn last_error(&self) -> Option<String> {
        self.inner.refill.lock().await.last_error.clone()
    }
}

impl Inner {
    /// Asks for more, unless somebody else has meanwhile.
    async fn ask(&self, cost: u64) -> bool {
        let mut refill = self.refill.lock().await;
        let (now, want) = match self.tokens.turn(&mut refill, cost) {
            Turn::Over(passes) => return passes,
            Turn::Lease { now, want } => (now, want),
        };
        let answer = self.client.ask(request::lease(&self.policy, &self.key, want)).await.and_then(Lease::read);
        match self.tokens.take(&mut refill, now, cost, answer) {
            Next::Over(passes) => passes,
            Next::Check => {
                let answer = self.client.check(&self.policy, &self.key, cost).await;
                self.tokens.take_check(&mut refill, cost, answer)
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let left = self.tokens.left(self.refill.get_mut());
        if left > 0 {
            // Lost if the daemon is gone: too little is admitted then, never too much.
            self.client.mention(request::hand_back(&self.policy, &self.key, left));
        }
    }
}
