//! Decisions in the caller's own process, by tokens that the daemon has lent to it.
//!
//! Most decisions are one subtraction. When the tokens are spent or have expired, one caller asks the daemon for more
//! (twice as many as before if all were used, half as many if more than half were left), and the others wait for the
//! answer. A denial is remembered for as long as the daemon says that it lasts. Tokens that are left are returned
//! when the last handle is dropped.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::lease::Lease;
use super::local_tokens::{AfterRefill, LocalTokens, RefillState, Turn};
use super::{Client, ClientError, Decision, Timeouts, request};

/// What a limiter decides while it has no tokens and cannot get any: no daemon runs, the daemon does not answer in
/// time, or it answers with an error, for example because it does not know the policy. It is asked again after 100 to
/// 200 ms.
///
/// ```
/// use rationd::client::{Limiter, OnDaemonLoss};
///
/// let limiter = |on_daemon_loss| Limiter::new("/nowhere/rationd.sock", "api", "user:42", on_daemon_loss);
/// assert!(limiter(OnDaemonLoss::Allow).allow(1));
/// assert!(!limiter(OnDaemonLoss::Deny).allow(1));
/// assert!(!limiter(OnDaemonLoss::LastShare).allow(1), "nothing was lent before");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDaemonLoss {
    /// Every request is admitted.
    Allow,
    /// Every request is denied.
    #[default]
    Deny,
    /// The limiter goes on as if the daemon had granted the last lease again: as many tokens, for as long. When that
    /// time is over the daemon is asked again, and if it still does not answer, the same lease begins anew. Nothing
    /// is admitted if nothing was lent before. Each limiter has this bound for itself, so all limiters together may
    /// admit more than the limit.
    LastShare,
}

/// Decides for one key of one policy in this process, by tokens that the daemon lends to it. All limiters in all
/// processes on all hosts together admit what the policy allows.
///
/// Clones share their tokens and are cheap: give one to each thread. Tokens that are left go back to the daemon when
/// the last clone is dropped; those of a process that is killed expire. Concurrent limits have no tokens to lend: ask
/// a [`Client`] about them.
///
/// ```
/// use rationd::client::{Limiter, OnDaemonLoss};
///
/// let socket = "/run/rationd/rationd.sock";
/// # rationd::example::run(|socket| {
/// let limiter = Limiter::new(socket, "api", "user:42", OnDaemonLoss::LastShare); // of 100 tokens a day
/// let threads = [limiter.clone(), limiter].map(|limiter| {
///     std::thread::spawn(move || (0..1_000).filter(|_| limiter.allow(1)).count())
/// });
/// let passed: usize = threads.map(|thread| thread.join().expect("no panic")).iter().sum();
/// assert_eq!(passed, 100);
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokens: LocalTokens,
    asker: Mutex<Asker>,
}

/// What the caller who asks the daemon needs, behind a lock.
#[derive(Debug)]
struct Asker {
    path: PathBuf,
    policy: String,
    key: Box<[u8]>,
    client: Option<Client>,
    refill: RefillState,
}

impl Limiter {
    /// A limiter for `key` under `policy`, with the daemon whose socket is at `path`. It has no tokens yet; the first
    /// decision asks the daemon.
    ///
    /// ```
    /// use rationd::client::{Limiter, OnDaemonLoss};
    ///
    /// let limiter = Limiter::new("/nowhere/rationd.sock", "api", "user:42", OnDaemonLoss::Deny);
    /// assert_eq!(limiter.last_error(), None, "nobody was asked");
    /// ```
    #[must_use]
    pub fn new(path: impl AsRef<Path>, policy: &str, key: impl AsRef<[u8]>, on_daemon_loss: OnDaemonLoss) -> Self {
        let asker = Asker {
            path: path.as_ref().to_owned(),
            policy: policy.to_owned(),
            key: key.as_ref().into(),
            client: None,
            refill: RefillState::new(on_daemon_loss),
        };
        Self { inner: Arc::new(Inner { tokens: LocalTokens::new(), asker: Mutex::new(asker) }) }
    }

    /// Whether a request of `cost` tokens is admitted; if so, it is charged.
    ///
    /// Most calls are one subtraction. When too few tokens are left, the call asks the daemon for more and waits for
    /// the answer, as other threads do that need some: for at most a second for the connection, and one for each
    /// answer. A cost above what the daemon lends at once is checked by itself. A denial is remembered for as long as
    /// the daemon says that it lasts, so a spent limit causes no requests.
    ///
    /// ```
    /// # use rationd::client::{Limiter, OnDaemonLoss};
    /// # rationd::example::run(|socket| {
    /// # let limiter = Limiter::new(socket, "api", "user:42", OnDaemonLoss::Deny);
    /// assert!(limiter.allow(60)); // of 100 tokens a day
    /// assert!(!limiter.allow(60), "40 are left");
    /// # Ok(()) });
    /// ```
    ///
    /// There are no errors: while the daemon cannot be asked, [`OnDaemonLoss`] decides, and [`Self::last_error`] has
    /// the cause.
    #[must_use]
    pub fn allow(&self, cost: u64) -> bool {
        self.inner.tokens.decide(cost).unwrap_or_else(|| self.inner.ask(cost))
    }

    /// Why the last attempt to ask for tokens failed, if it did: for a log or a metric, because [`Self::allow`] then
    /// decides by [`OnDaemonLoss`] and reports nothing. Waits while another thread asks the daemon.
    ///
    /// ```
    /// use rationd::client::{Limiter, OnDaemonLoss};
    ///
    /// let limiter = Limiter::new("/nowhere/rationd.sock", "api", "user:42", OnDaemonLoss::Allow);
    /// assert!(limiter.allow(1));
    /// assert!(limiter.last_error().is_some_and(|why| why.contains("there is no such socket")));
    /// ```
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.inner.asker().refill.last_error.clone()
    }
}

impl Inner {
    /// Asks for more tokens, unless another thread has done so meanwhile.
    #[cold]
    fn ask(&self, cost: u64) -> bool {
        let mut asker = self.asker();
        let (now, want) = match self.tokens.turn(&mut asker.refill, cost) {
            Turn::Over(passes) => return passes,
            Turn::Lease { now, want } => (now, want),
        };
        let answer = asker.lease(want);
        match self.tokens.take(&mut asker.refill, now, cost, answer) {
            AfterRefill::Over(passes) => passes,
            AfterRefill::Check => {
                let answer = asker.check(cost);
                self.tokens.take_check(&mut asker.refill, cost, answer)
            }
        }
    }

    fn asker(&self) -> MutexGuard<'_, Asker> {
        self.asker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asker {
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
        None => Client::connect_with(path, Timeouts::default())?,
    };
    Ok(client.insert(connected))
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut asker = self.asker();
        let left = self.tokens.left(&asker.refill);
        let Asker { policy, key, client, .. } = &mut *asker;
        if let Some(client) = client.as_mut().filter(|_| left > 0) {
            // If this fails, the tokens are lost until they expire: too little is admitted then, never too much.
            let _ = client.ask(request::hand_back(policy, key, left));
        }
    }
}
