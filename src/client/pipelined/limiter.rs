//! Decisions in the caller's own process, for tasks: [`Limiter`](super::super::Limiter) over a shared connection.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::super::lease::Lease;
use super::super::purse::{Habits, Next, Purse, Turn};
use super::super::{WhenAway, request};
use super::AsyncClient;

/// Decides for one key of one policy. Cheap to clone; clones share their tokens, and limiters of one client its
/// connection. Most decisions wait for nothing.
///
/// ```
/// use rationd::client::{AsyncClient, AsyncLimiter, WhenAway};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let rations = AsyncClient::new("/nowhere/rationd.sock");
/// let limiter = AsyncLimiter::new(&rations, "api", b"user:42", WhenAway::Deny);
/// assert!(!limiter.allow(1).await, "there is no daemon");
/// println!("{}", limiter.trouble().await.unwrap_or_default());
/// # });
/// # Ok::<(), std::io::Error>(())
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
    purse: Purse,
    habits: Mutex<Habits>,
}

impl AsyncLimiter {
    /// A limiter that holds nothing yet: the first decision asks the daemon.
    #[must_use]
    pub fn new(client: &AsyncClient, policy: &str, key: impl AsRef<[u8]>, when_away: WhenAway) -> Self {
        let inner = Inner {
            client: client.clone(),
            policy: policy.to_owned(),
            key: key.as_ref().into(),
            purse: Purse::new(),
            habits: Mutex::new(Habits::new(when_away)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether a request that costs so much may pass; it is charged then.
    ///
    /// # Panics
    /// Outside a tokio runtime with IO and time.
    pub async fn allow(&self, cost: u64) -> bool {
        if let Some(decided) = self.inner.purse.decide(cost) {
            return decided;
        }
        // A task of its own: what is lent to a caller who gave up meanwhile is there for the next.
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.ask(cost).await }).await.unwrap_or(false)
    }

    /// Why the daemon could not be asked the last time, until it can be again.
    pub async fn trouble(&self) -> Option<String> {
        self.inner.habits.lock().await.trouble.clone()
    }
}

impl Inner {
    /// Asks for more, unless somebody else has meanwhile.
    async fn ask(&self, cost: u64) -> bool {
        let mut habits = self.habits.lock().await;
        let (now, want) = match self.purse.turn(&mut habits, cost) {
            Turn::Over(passes) => return passes,
            Turn::Lease { now, want } => (now, want),
        };
        let answer = self.client.ask(request::lease(&self.policy, &self.key, want)).await.and_then(Lease::read);
        match self.purse.take(&mut habits, now, cost, answer) {
            Next::Over(passes) => passes,
            Next::Check => {
                let checked = self.client.check(&self.policy, &self.key, cost).await;
                checked.is_ok_and(|decision| decision.is_allowed())
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let left = self.purse.left(self.habits.get_mut());
        if left > 0 {
            // Lost if the daemon is gone: too little is admitted then, never too much.
            self.client.mention(request::hand_back(&self.policy, &self.key, left));
        }
    }
}
