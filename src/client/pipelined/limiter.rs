//! Decisions in the caller's own process, for tasks: [`Limiter`](super::super::Limiter) over a shared connection.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::super::lease::Lease;
use super::super::local_tokens::{AfterRefill, LocalTokens, RefillState, Turn};
use super::super::{OnDaemonLoss, request};
use super::AsyncClient;

/// Decides for one key of one policy in this process, as [`Limiter`](super::super::Limiter) does. Clones are cheap
/// and share their tokens; all limiters of one [`AsyncClient`] share its connection. Tokens that are left go back to
/// the daemon when the last clone is dropped, if the runtime still lives.
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
    /// A limiter for `key` under `policy`, with the daemon of `client`. It has no tokens yet; the first decision asks
    /// the daemon.
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

    /// Whether a request of `cost` tokens is admitted; if so, it is charged. Most calls wait for nothing. When too
    /// few tokens are left, one task asks the daemon for more, and the others that need some wait for the answer, as
    /// in [`Limiter::allow`](super::super::Limiter::allow). The future may be dropped: tokens that are lent meanwhile
    /// are kept for the next call.
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
        // Runs in a task of its own, so that tokens lent to a caller who has given up are kept for the next.
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.ask(cost).await }).await.unwrap_or(false)
    }

    /// Why the last attempt to ask for tokens failed, if it did: for a log or a metric. Waits while another task asks
    /// the daemon.
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
    /// Asks for more tokens, unless another task has done so meanwhile.
    async fn ask(&self, cost: u64) -> bool {
        let mut refill = self.refill.lock().await;
        let (now, want) = match self.tokens.turn(&mut refill, cost) {
            Turn::Over(passes) => return passes,
            Turn::Lease { now, want } => (now, want),
        };
        let answer = self.client.ask(request::lease(&self.policy, &self.key, want)).await.and_then(Lease::read);
        match self.tokens.take(&mut refill, now, cost, answer) {
            AfterRefill::Over(passes) => passes,
            AfterRefill::Check => {
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
            // If this fails, the tokens are lost until they expire: too little is admitted then, never too much.
            self.client.mention(request::hand_back(&self.policy, &self.key, left));
        }
    }
}
