//! Admission of connections: who may connect, how many are open, how much memory each may use, and which data thread
//! serves it.
//!
//! All data threads listen to the same sockets, and the thread that is awake anyway accepts most connections: one of
//! two threads was measured to do 80 to 100 % of the work. So a connection is served by the thread that has the
//! fewest, whichever accepted it. Called by the data threads for each connection; tells all connections when the
//! daemon stops. Knows no protocol.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use super::budget::{Account, Budget, Loan};
use super::mailbox::Mailbox;
use super::rights::Rights;
use crate::store::turns::Asker;

/// Bounds on the connections of the sockets.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections: usize,
    /// Most connections of one uid.
    pub connections_per_uid: usize,
    /// Uids that may connect; empty when everybody may who can open the socket.
    pub allow_uids: Vec<u32>,
    /// Uids that may run administrative commands; `None` for root and the daemon's own user.
    pub admin_uids: Option<Vec<u32>>,
    /// How long a request may stay incomplete: a command, or the head or body of an HTTP request.
    pub patience: Duration,
    /// Most bytes of unread replies, queued transactions and incomplete requests of one connection. A pipeline of
    /// 100,000 checks needs a third of it.
    pub kept: usize,
    /// Most bytes of the same kind in all connections together: as much as eight of them may use.
    pub kept_in_all: usize,
    /// Most bytes of holds.
    pub held: usize,
    /// How long a client may neither read nor ask while too many bytes wait for it.
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
pub enum TurnedAway {
    /// The limit of connections is reached, in total or for this uid.
    TooMany,
    /// The uid may not connect.
    Uid,
}

impl TurnedAway {
    /// The error reply that the client gets.
    #[must_use]
    pub fn as_reply(self) -> &'static [u8] {
        match self {
            Self::TooMany => b"-ERR max number of clients reached\r\n",
            Self::Uid => b"-NOPERM this uid may not connect: see listen.allow_uids\r\n",
        }
    }
}

/// The socket by which a connection came. Connections are spread over threads per socket, because those of one socket
/// cause similar load: Envoy opens few, and sends much over each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// The daemon's own.
    Socket,
    /// Envoy's.
    Envoy,
}

/// Number of [`Entrance`]s.
const ENTRANCES: usize = 2;

/// Decides which connections are admitted, and counts them.
#[derive(Debug)]
pub struct Admission {
    /// Who may run administrative commands.
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
    /// Connections that each data thread serves, by [`Entrance`].
    seated: Vec<[usize; ENTRANCES]>,
}

/// One admitted connection; it stops counting when this is dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    admission: Arc<Admission>,
    /// The connection's number.
    pub id: u64,
    /// The uid of its peer, if known.
    pub uid: Option<u32>,
    /// Its mailbox.
    pub mailbox: Arc<Mailbox>,
    /// The data thread that serves it, and its entrance; `None` before a thread is chosen.
    seat: Option<(usize, Entrance)>,
}

impl Admission {
    /// No connections, and `threads` data threads that serve those to come.
    #[must_use]
    pub fn new(limits: Limits, threads: usize) -> Self {
        Self {
            rights: Rights::new(limits.admin_uids.clone()),
            budget: Arc::new(Budget::new(limits.kept_in_all)),
            for_holds: Arc::new(Budget::new(limits.held)),
            limits,
            inside: Mutex::new(Inside { seated: vec![[0; ENTRANCES]; threads.max(1)], ..Inside::default() }),
            next_id: AtomicU64::new(1),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Admits a connection, or returns why not. `None` is for TCP, where the peer has no uid; all such connections
    /// together may be as many as those of one uid.
    ///
    /// # Errors
    /// Too many connections are open, or this uid may not connect.
    pub fn admit(self: &Arc<Self>, uid: Option<u32>) -> Result<ConnectionGuard, TurnedAway> {
        let mut inside = self.lock();
        let of_uid = inside.per_uid.get(&uid).copied().unwrap_or(0);
        let allowed = &self.limits.allow_uids;
        let refusal = if uid.is_some_and(|uid| !allowed.is_empty() && !allowed.contains(&uid)) {
            Some(TurnedAway::Uid)
        } else if inside.mailboxes.len() >= self.limits.connections || of_uid >= self.limits.connections_per_uid {
            Some(TurnedAway::TooMany)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(refusal);
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::new(Mailbox::of(Asker::new(uid, id)));
        inside.mailboxes.insert(id, Arc::downgrade(&mailbox));
        *inside.per_uid.entry(uid).or_default() += 1;
        Ok(ConnectionGuard { admission: self.clone(), id, uid, mailbox, seat: None })
    }

    /// Connections that each data thread serves.
    #[must_use]
    pub fn seated(&self) -> Vec<usize> {
        self.lock().seated.iter().map(|of| of.iter().sum()).collect()
    }

    /// The memory account of a new connection.
    #[must_use]
    pub fn account(&self) -> Account {
        self.budget.account(self.limits.kept)
    }

    /// Memory for a hold of so many bytes; `None` when holds use as much as they may.
    #[must_use]
    pub fn memory_for_hold(&self, bytes: usize) -> Option<Loan> {
        self.for_holds.lend(bytes)
    }

    /// How long a request may stay incomplete.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.limits.patience
    }

    /// How long a client may neither read nor ask while too much waits for it.
    #[must_use]
    pub fn stall_after(&self) -> Duration {
        self.limits.stall_after
    }

    /// Counts a connection that was closed because its client did not read.
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

    /// Counts a connection that was turned away before [`Self::admit`] was asked.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections that were closed because their clients did not read.
    #[must_use]
    pub fn stalled(&self) -> u64 {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Bytes that wait for clients, in all connections.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.budget.held() as u64
    }

    /// Whether the daemon stops: connections answer what has come, and close.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells all connections to answer what has come, and close.
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

impl ConnectionGuard {
    /// Chooses the data thread that serves a connection which `accepted_by` has accepted: the one with the fewest
    /// connections of this entrance, and among those the one with the fewest in all. The connection counts for that
    /// thread from now on.
    pub fn take_seat(&mut self, entrance: Entrance, accepted_by: usize) -> usize {
        let mut inside = self.admission.lock();
        inside.leave_seat(self.seat.take());
        let busy = |(thread, of): (usize, &[usize; ENTRANCES])| {
            ((of[entrance as usize], of.iter().sum::<usize>(), thread != accepted_by), thread)
        };
        let (_, thread) = inside.seated.iter().enumerate().map(busy).min().unwrap_or_default();
        inside.seated[thread][entrance as usize] += 1;
        drop(inside);
        self.seat = Some((thread, entrance));
        thread
    }

    /// Polls a connection. Once the daemon stops, `leave` is called before, so that the connection takes no more
    /// requests.
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

    /// Whether the daemon stops. Registers a wake-up for when it does.
    #[must_use]
    pub fn is_to_leave(&self, cx: &Context<'_>) -> bool {
        self.mailbox.listen(cx.waker(), None);
        self.admission.is_stopping()
    }
}

impl Inside {
    fn leave_seat(&mut self, seat: Option<(usize, Entrance)>) {
        if let Some((thread, entrance)) = seat {
            self.seated[thread][entrance as usize] -= 1;
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut inside = self.admission.lock();
        inside.leave_seat(self.seat.take());
        inside.mailboxes.remove(&self.id);
        if let Some(count) = inside.per_uid.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                inside.per_uid.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(threads: usize) -> Arc<Admission> {
        Arc::new(Admission::new(Limits::default(), threads))
    }

    fn seat(admission: &Arc<Admission>, entrance: Entrance, accepted_by: usize) -> (usize, ConnectionGuard) {
        let mut pass = admission.admit(Some(7)).expect("there is room");
        (pass.take_seat(entrance, accepted_by), pass)
    }

    #[test]
    fn whoever_accepts_connections_go_to_the_thread_that_has_the_fewest() {
        let admission = admission(3);
        let (threads, mut passes): (Vec<_>, Vec<_>) = (0..7).map(|_| seat(&admission, Entrance::Socket, 1)).unzip();
        assert_eq!(threads[0], 1, "of those that have as few it is the one that is awake");
        assert_eq!(admission.seated(), [2, 3, 2]);
        passes.retain(|pass| pass.seat != Some((2, Entrance::Socket)));
        assert_eq!(admission.seated(), [2, 3, 0], "who goes gives the seat back");
        assert_eq!([0; 2].map(|_| passes.push(seat(&admission, Entrance::Socket, 0).1)).len(), 2);
        assert_eq!(admission.seated(), [2, 3, 2]);
        drop(passes);
        assert_eq!(admission.seated(), [0; 3]);
    }

    #[test]
    fn connections_of_envoy_are_shared_out_among_themselves() {
        let admission = admission(2);
        let clients: Vec<_> = (0..3).map(|_| seat(&admission, Entrance::Socket, 0)).collect();
        assert_eq!(admission.seated(), [2, 1]);
        let envoys: Vec<_> = (0..2).map(|_| seat(&admission, Entrance::Envoy, 0)).collect();
        assert_eq!([envoys[0].0, envoys[1].0], [1, 0], "the first goes where fewest are at all");
        drop((clients, envoys));
        assert_eq!(admission.seated(), [0, 0]);
    }
}
