//! Decisions in the caller's own process, from tokens that the daemon lent it.
//!
//! Most are one subtraction. When the tokens are spent or their time is over, one caller asks for more (twice
//! as many as before if they were used up, half as many if they were not), and the others wait for it. A denial is
//! remembered for as long as the daemon says. What is left is handed back when the last handle is dropped.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::lease::Lease;
use super::purse::{Habits, Next, Purse, Turn};
use super::{Client, ClientError, Decision, Patience, request};

/// What to do when the daemon cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenAway {
    /// Everything passes.
    Allow,
    /// Nothing passes.
    #[default]
    Deny,
    /// As much passes as was lent last, each time as long as that was lent for.
    LastShare,
}

/// Decides for one key of one policy. Cheap to clone; clones share their tokens.
///
/// ```no_run
/// use rationd::client::{Limiter, WhenAway};
///
/// let limiter = Limiter::new("/run/rationd/rationd.sock", "api", b"user:42", WhenAway::LastShare);
/// if limiter.allow(1) {
///     // serve the request
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    purse: Purse,
    desk: Mutex<Desk>,
}

/// What only the one who asks needs.
#[derive(Debug)]
struct Desk {
    path: PathBuf,
    policy: String,
    key: Box<[u8]>,
    client: Option<Client>,
    habits: Habits,
}

impl Limiter {
    /// A limiter that holds nothing yet: the first decision asks the daemon.
    #[must_use]
    pub fn new(path: impl AsRef<Path>, policy: &str, key: impl AsRef<[u8]>, when_away: WhenAway) -> Self {
        let desk = Desk {
            path: path.as_ref().to_owned(),
            policy: policy.to_owned(),
            key: key.as_ref().into(),
            client: None,
            habits: Habits::new(when_away),
        };
        Self { inner: Arc::new(Inner { purse: Purse::new(), desk: Mutex::new(desk) }) }
    }

    /// Whether a request that costs so much may pass; it is charged then.
    #[must_use]
    pub fn allow(&self, cost: u64) -> bool {
        self.inner.purse.decide(cost).unwrap_or_else(|| self.inner.ask(cost))
    }

    /// Why the daemon could not be asked the last time, until it can be again.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.inner.desk().habits.trouble.clone()
    }
}

impl Inner {
    /// Asks for more, unless somebody else has meanwhile.
    #[cold]
    fn ask(&self, cost: u64) -> bool {
        let mut desk = self.desk();
        let (now, want) = match self.purse.turn(&mut desk.habits, cost) {
            Turn::Over(passes) => return passes,
            Turn::Lease { now, want } => (now, want),
        };
        let answer = desk.lease(want);
        match self.purse.take(&mut desk.habits, now, cost, answer) {
            Next::Over(passes) => passes,
            Next::Check => desk.check(cost).is_ok_and(|decision| decision.is_allowed()),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    fn lease(&mut self, want: u64) -> Result<Lease, ClientError> {
        let Self { path, policy, key, client, .. } = self;
        connected(client, path)?.ask(request::lease(policy, key, want)).and_then(Lease::read)
    }

    fn check(&mut self, cost: u64) -> Result<Decision, ClientError> {
        let Self { path, policy, key, client, .. } = self;
        connected(client, path)?.check(policy, key, cost)
    }
}

fn connected<'c>(client: &'c mut Option<Client>, path: &Path) -> Result<&'c mut Client, ClientError> {
    let connected = match client.take() {
        Some(connected) => connected,
        None => Client::connect_with(path, Patience::default())?,
    };
    Ok(client.insert(connected))
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut desk = self.desk();
        let left = self.purse.left(&desk.habits);
        let Desk { policy, key, client, .. } = &mut *desk;
        if let Some(client) = client.as_mut().filter(|_| left > 0) {
            // Lost if the daemon is gone: too little is admitted then, never too much.
            let _ = client.ask(request::hand_back(policy, key, left));
        }
    }
}
