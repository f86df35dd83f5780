//! Decisions in the caller's own process, from tokens that the daemon lent it.
//!
//! Most are one subtraction. When the tokens are spent or their time is over, one caller asks for more (twice
//! as many as before if they were used up, half as many if they were not), and the others wait for it. A denial is
//! remembered for as long as the daemon says. What is left is handed back when the last handle is dropped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Client, ClientError, Decision, Patience, Reply};
use crate::clock::{self, Clock};

/// Most tokens asked for at once.
const MOST: u64 = 1 << 20;

/// How long a daemon that could not be asked is left alone: at least, and up to twice that.
const REST: Duration = Duration::from_millis(100);

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
    clock: Clock,
    /// Tokens that are left.
    tokens: AtomicU64,
    /// They cannot be spent from here on: nanoseconds of the clock.
    ends: AtomicU64,
    /// Nothing is to be had before.
    shut: AtomicU64,
    desk: Mutex<Desk>,
}

/// What only the one who asks needs.
#[derive(Debug)]
struct Desk {
    path: PathBuf,
    policy: String,
    key: Box<[u8]>,
    when_away: WhenAway,
    client: Option<Client>,
    want: u64,
    /// The latest lease: tokens, and for how many nanoseconds.
    lent: (u64, u64),
    trouble: Option<String>,
}

impl Limiter {
    /// A limiter that holds nothing yet: the first decision asks the daemon.
    #[must_use]
    pub fn new(path: impl AsRef<Path>, policy: &str, key: impl AsRef<[u8]>, when_away: WhenAway) -> Self {
        let desk = Desk {
            path: path.as_ref().to_owned(),
            policy: policy.to_owned(),
            key: key.as_ref().into(),
            when_away,
            client: None,
            want: 1,
            lent: (0, 0),
            trouble: None,
        };
        let inner = Inner {
            clock: Clock::start(),
            tokens: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            shut: AtomicU64::new(0),
            desk: Mutex::new(desk),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether a request that costs so much may pass; it is charged then.
    #[must_use]
    pub fn allow(&self, cost: u64) -> bool {
        let inner = &*self.inner;
        let now = inner.clock.nanos();
        inner.spend(now, cost) || (now >= inner.shut.load(Ordering::Relaxed) && inner.ask(cost))
    }

    /// Why the daemon could not be asked the last time, until it can be again.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.inner.desk().trouble.clone()
    }
}

impl Inner {
    fn spend(&self, now: u64, cost: u64) -> bool {
        let taken = |tokens: u64| tokens.checked_sub(cost);
        now < self.ends.load(Ordering::Acquire)
            && self.tokens.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_ok()
    }

    /// Asks for more, unless somebody else has meanwhile.
    #[cold]
    fn ask(&self, cost: u64) -> bool {
        let mut desk = self.desk();
        let now = self.clock.nanos();
        if self.spend(now, cost) {
            return true;
        }
        if now < self.shut.load(Ordering::Relaxed) {
            return false;
        }
        let left = self.tokens.load(Ordering::Relaxed);
        let used_up = now < self.ends.load(Ordering::Relaxed);
        desk.want = match desk.lent.0 {
            0 => 1,
            lent if used_up => (2 * lent).min(MOST),
            lent if left > lent / 2 => (lent / 2).max(1),
            lent => lent,
        };
        match desk.lease(cost) {
            Ok(lease) => {
                desk.trouble = None;
                self.take(&mut desk, now, cost, &lease)
            }
            Err(error) => {
                desk.trouble = Some(error.to_string());
                self.alone(&desk, now, cost)
            }
        }
    }

    fn take(&self, desk: &mut Desk, now: u64, cost: u64, lease: &Lease) -> bool {
        if lease.granted == 0 {
            if lease.decision.is_allowed() {
                return true;
            }
            let wait = lease.decision.retry_after.unwrap_or(Duration::from_secs(1));
            self.shut.store(now.saturating_add(nanos(wait)), Ordering::Relaxed);
            return false;
        }
        desk.lent = (lease.granted, nanos(lease.life));
        // Counted from before it was asked for, so that it ends early rather than late.
        self.hold(now, lease.granted, nanos(lease.life));
        if self.spend(now, cost) {
            return true;
        }
        // More than is lent at once is asked for by itself.
        desk.check(cost).is_ok_and(|decision| decision.is_allowed())
    }

    /// Puts tokens in the place of those that were held.
    fn hold(&self, now: u64, tokens: u64, life: u64) {
        let (ends, left) = (self.ends.load(Ordering::Relaxed), self.tokens.swap(0, Ordering::AcqRel));
        let (kept, ends) = if now < ends { (left, ends.min(now + life)) } else { (0, now + life) };
        self.ends.store(ends, Ordering::Release);
        self.tokens.store(kept + tokens, Ordering::Release);
    }

    /// The daemon cannot be asked.
    fn alone(&self, desk: &Desk, now: u64, cost: u64) -> bool {
        let rest = nanos(REST) + clock::random() % nanos(REST);
        match desk.when_away {
            // Asked again soon, and meanwhile as if it had lent more than anybody spends.
            WhenAway::Allow => {
                self.hold(now, u64::from(u32::MAX), rest);
                true
            }
            WhenAway::LastShare if desk.lent.1 > 0 => {
                // Nothing more before this is over.
                self.shut.store(now.saturating_add(desk.lent.1), Ordering::Relaxed);
                self.hold(now, desk.lent.0, desk.lent.1);
                self.spend(now, cost)
            }
            WhenAway::Deny | WhenAway::LastShare => {
                self.shut.store(now + rest, Ordering::Relaxed);
                false
            }
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to `RATION.LEASE`.
struct Lease {
    granted: u64,
    life: Duration,
    decision: Decision,
}

impl Desk {
    fn lease(&mut self, cost: u64) -> Result<Lease, ClientError> {
        let want = self.want.max(cost).to_string();
        let reply = self.command(b"RATION.LEASE", want.as_bytes())?;
        let read = || {
            let fields = reply.as_array()?;
            let number = |index: usize| fields.get(index)?.as_integer().and_then(|value| u64::try_from(value).ok());
            let decision = Decision::from_reply(&Reply::Array(fields.get(2..)?.to_vec()))?;
            Some(Lease { granted: number(0)?, life: Duration::from_millis(number(1)?), decision })
        };
        read().ok_or_else(|| ClientError::Unexpected { command: "RATION.LEASE", reply: reply.clone() })
    }

    fn check(&mut self, cost: u64) -> Result<Decision, ClientError> {
        let (policy, key) = (self.policy.clone(), self.key.clone());
        self.connected()?.check(&policy, key, cost)
    }

    fn command(&mut self, name: &[u8], last: &[u8]) -> Result<Reply, ClientError> {
        let (policy, key) = (self.policy.clone(), self.key.clone());
        self.connected()?.command(&[name, policy.as_bytes(), &key, last])
    }

    fn connected(&mut self) -> Result<&mut Client, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect_with(&self.path, Patience::default())?,
        };
        Ok(self.client.insert(client))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (left, ends) = (self.tokens.load(Ordering::Relaxed), self.ends.load(Ordering::Relaxed));
        let over = self.clock.nanos() >= ends;
        let mut desk = self.desk();
        if left > 0 && !over && desk.trouble.is_none() && desk.client.is_some() {
            // Lost if the daemon is gone: too little is admitted then, never too much.
            let _ = desk.command(b"RATION.RETURN", left.to_string().as_bytes());
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
