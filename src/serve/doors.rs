//! Who may come in, how many are in, and what each may keep here.
//!
//! Told of each connection by the data threads; tells all of them when the daemon stops. Knows no protocol.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use super::budget::{Account, Budget, Loan};
use super::hub::Hub;
use super::mailbox::Mailbox;
use super::rights::Rights;
use crate::store::turns::Asker;

/// Bounds of the socket.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections: usize,
    /// Most connections of one uid.
    pub connections_per_uid: usize,
    /// Uids that may connect; empty: whoever may open the socket.
    pub allow_uids: Vec<u32>,
    /// Uids that may do what concerns others; `None`: root's and the daemon's own.
    pub admin_uids: Option<Vec<u32>>,
    /// How long a request may stay half: a part of a command, of a head or of a body.
    pub patience: Duration,
    /// Most bytes of replies, transactions and requests that are half that one connection may have wait here: a
    /// pipeline of 100,000 checks takes a third of it.
    pub kept: usize,
    /// Most bytes of them that all connections together may have wait here: what eight of them may.
    pub kept_in_all: usize,
    /// Most bytes of holds.
    pub held: usize,
    /// How long a client may read nothing while too much waits for it.
    pub stall_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_uid: 1_024,
            allow_uids: Vec::new(),
            admin_uids: None,
            patience: Duration::from_secs(30),
            kept: 32 << 20,
            kept_in_all: 256 << 20,
            held: 64 << 20,
            stall_after: Duration::from_secs(10),
        }
    }
}

/// Why a connection is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many are open as may be, in all or of this uid.
    TooMany,
    /// The uid is not on the list.
    Uid,
}

impl Refusal {
    /// The reply that says so.
    #[must_use]
    pub fn as_reply(self) -> &'static [u8] {
        match self {
            Self::TooMany => b"-ERR max number of clients reached\r\n",
            Self::Uid => b"-NOPERM this uid may not connect: see listen.allow_uids\r\n",
        }
    }
}

/// Counts who is in, and decides who may come in.
#[derive(Debug)]
pub struct Doors {
    /// Who may do what concerns others.
    pub rights: Rights,
    limits: Limits,
    inside: Mutex<Inside>,
    next_id: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    stalled: AtomicU64,
    budget: Arc<Budget>,
    for_holds: Arc<Budget>,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct Inside {
    mailboxes: HashMap<u64, Weak<Mailbox>>,
    per_uid: HashMap<Option<u32>, usize>,
}

/// A connection's place inside; given back when dropped.
#[derive(Debug)]
pub struct Pass {
    hub: Arc<Hub>,
    /// The connection's number.
    pub id: u64,
    /// Whose it is, where that can be told.
    pub uid: Option<u32>,
    /// Its mailbox.
    pub mailbox: Arc<Mailbox>,
}

impl Doors {
    /// Nobody is in.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            rights: Rights::new(limits.admin_uids.clone()),
            budget: Arc::new(Budget::new(limits.kept_in_all)),
            for_holds: Arc::new(Budget::new(limits.held)),
            limits,
            inside: Mutex::default(),
            next_id: AtomicU64::new(1),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Lets a peer in, or says why not. `None`: a peer over TCP, who has no uid to judge by; all of them together
    /// may have as many connections as one uid.
    ///
    /// # Errors
    /// There are too many, or this one may not.
    pub fn admit(hub: &Arc<Hub>, uid: Option<u32>) -> Result<Pass, Refusal> {
        let doors = &hub.doors;
        let mut inside = doors.lock();
        let of_uid = inside.per_uid.get(&uid).copied().unwrap_or(0);
        let allowed = &doors.limits.allow_uids;
        let refusal = if uid.is_some_and(|uid| !allowed.is_empty() && !allowed.contains(&uid)) {
            Some(Refusal::Uid)
        } else if inside.mailboxes.len() >= doors.limits.connections || of_uid >= doors.limits.connections_per_uid {
            Some(Refusal::TooMany)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            doors.refused.fetch_add(1, Ordering::Relaxed);
            return Err(refusal);
        }
        doors.accepted.fetch_add(1, Ordering::Relaxed);
        let id = doors.next_id.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::new(Mailbox::of(Asker::new(uid, id)));
        inside.mailboxes.insert(id, Arc::downgrade(&mailbox));
        *inside.per_uid.entry(uid).or_default() += 1;
        Ok(Pass { hub: hub.clone(), id, uid, mailbox })
    }

    /// The account of a connection that was let in.
    #[must_use]
    pub fn account(&self) -> Account {
        self.budget.account(self.limits.kept)
    }

    /// Memory for a hold of so many bytes; `None`: holds have as much as they may.
    #[must_use]
    pub fn memory_for_hold(&self, bytes: usize) -> Option<Loan> {
        self.for_holds.lend(bytes)
    }

    /// How long a request may stay half.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.limits.patience
    }

    /// How long a client may read nothing while too much waits for it.
    #[must_use]
    pub fn stall_after(&self) -> Duration {
        self.limits.stall_after
    }

    /// Counts a connection that is closed since its client read nothing.
    pub fn note_stalled(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.lock().mailboxes.len()
    }

    /// Connections ever let in.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections turned away.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a connection that is turned away before anybody could ask for it.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections closed since their clients read nothing.
    #[must_use]
    pub fn stalled(&self) -> u64 {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Bytes that wait for clients in all connections.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.budget.held() as u64
    }

    /// Whether connections are to close once what has come is answered.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells all connections to close once what has come is answered.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let all: Vec<_> = self.lock().mailboxes.values().filter_map(Weak::upgrade).collect();
        for mailbox in all {
            mailbox.nudge();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Drives a connection on; when the daemon stops, `leave` tells it to take nothing more.
    pub fn drive<C: Future>(
        &self,
        cx: &mut Context<'_>,
        mut connection: Pin<&mut C>,
        leave: impl FnOnce(Pin<&mut C>),
    ) -> Poll<C::Output> {
        if self.is_to_leave(cx) {
            leave(connection.as_mut());
        }
        connection.poll(cx)
    }

    /// Whether the daemon stops, so that a connection is to take nothing more; a wake-up comes when it does.
    #[must_use]
    pub fn is_to_leave(&self, cx: &Context<'_>) -> bool {
        self.mailbox.listen(cx.waker(), None);
        self.hub.doors.is_stopping()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.hub.doors.lock();
        inside.mailboxes.remove(&self.id);
        if let Some(count) = inside.per_uid.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                inside.per_uid.remove(&self.uid);
            }
        }
    }
}
