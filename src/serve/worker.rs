//! A data thread: one current-thread runtime that owns its connections and shares nothing hot.
//!
//! Accepts, asks the doors, and starts a connection's task. Its buffers are used by one connection at
//! a time, for the length of one batch.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdListener;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection::{BATCH, Connection};
use super::envoy;
use super::hub::{Doors, Hub, Refusal};
use super::mailbox::Answer;
use super::node::Outgoing;
use super::reveille::Reveille;
use super::rules::Rules;
use super::tally::Tally;
use super::vital::Pulse;

/// Bytes of one read.
const READ: usize = 64 << 10;

/// How long Envoy's door rests after a connection could not be accepted.
const RESTING: Duration = Duration::from_millis(10);

/// How long connections may take to end after they were told to.
const ENDING: Duration = Duration::from_secs(1);

/// A data thread's own things.
#[derive(Debug)]
pub struct Worker {
    scratch: Mutex<Scratch>,
    /// Wakes its connections.
    pub(super) reveille: Arc<Reveille>,
}

/// Buffers and counts, used by one connection at a time.
#[derive(Debug)]
pub struct Scratch {
    pub(super) read: Box<[u8]>,
    pub(super) direct: Vec<u8>,
    pub(super) rules: Rules,
    pub(super) outgoing: Outgoing,
    pub(super) tally: Tally,
    pub(super) mail: Vec<(u64, Answer)>,
}

impl Scratch {
    pub(super) fn shrink(&mut self) {
        if self.direct.capacity() > 2 * BATCH {
            self.direct = Vec::with_capacity(READ);
        }
    }
}

impl Worker {
    /// Fresh buffers.
    #[must_use]
    pub fn new() -> Self {
        let scratch = Scratch {
            read: vec![0; READ].into_boxed_slice(),
            direct: Vec::with_capacity(READ),
            rules: Rules::new(),
            outgoing: Outgoing::default(),
            tally: Tally::default(),
            mail: Vec::new(),
        };
        Self { scratch: Mutex::new(scratch), reveille: Arc::default() }
    }

    /// The buffers, for the length of one batch; never across an await.
    pub fn lock(&self) -> MutexGuard<'_, Scratch> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.read.is_empty() {
            // Only after a panic in the middle of a batch.
            scratch.read = vec![0; READ].into_boxed_slice();
        }
        scratch
    }

    /// Serves `listener` and Envoy's door on the calling thread until `stop` changes, then ends what is open.
    ///
    /// # Errors
    /// The runtime or the listener cannot be set up.
    pub(super) fn run(
        self: Arc<Self>,
        hub: Arc<Hub>,
        (listener, door): (StdListener, Option<envoy::Handle>),
        mut stop: watch::Receiver<bool>,
        pulse: Pulse,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(async move {
            let listener = UnixListener::from_std(listener)?;
            let door = door.map(envoy::Handle::listen).transpose()?;
            let mut tasks = JoinSet::new();
            let reveille = self.reveille.clone();
            // Until the runtime ends, and with it all whom it could wake.
            tokio::spawn(async move { reveille.run().await });
            let mut reserve = spare(&listener);
            let mut beats = Pulse::timer();
            // After a failed accept the door rests; the socket does not wait for it.
            let mut rest = pin!(tokio::time::sleep(Duration::ZERO));
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => self.clone().welcome(&hub, stream, &mut tasks),
                        Err(error) => recover(&error, &listener, &mut reserve, &hub).await,
                    },
                    () = rest.as_mut(), if !rest.is_elapsed() => {}
                    accepted = next_visitor(door.as_ref()), if rest.is_elapsed() => match accepted {
                        Ok(visitor) => receive(&hub, visitor, &mut tasks),
                        Err(error) => {
                            tracing::warn!(%error, "a connection of Envoy could not be accepted");
                            rest.set(tokio::time::sleep(RESTING));
                        }
                    },
                    _ = stop.changed() => break,
                    _ = beats.tick() => pulse.beat(hub.node.clock.now()),
                    Some(_) = tasks.join_next() => {}
                }
            }
            drop((listener, door));
            let all = async { while tasks.join_next().await.is_some() {} };
            // What takes longer is cut off with the runtime.
            let _ = tokio::time::timeout(ENDING, all).await;
            Ok(())
        })
    }

    fn welcome(self: Arc<Self>, hub: &Arc<Hub>, stream: UnixStream, tasks: &mut JoinSet<()>) {
        // A peer whose uid cannot be told is nobody's.
        let uid = stream.peer_cred().map_or(u32::MAX, |cred| cred.uid());
        match Doors::admit(hub, Some(uid)) {
            Ok(pass) => {
                let asker = pass.mailbox.asker();
                let connection = Connection::new(stream, pass, hub.doors.account(), hub.node.crowd.place(asker));
                tasks.spawn(connection.serve(hub.clone(), self));
            }
            Err(refusal) => turn_away(stream, refusal),
        }
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self::new()
    }
}

async fn next_visitor(door: Option<&envoy::Listener>) -> io::Result<envoy::Visitor> {
    match door {
        Some(door) => door.accept().await,
        None => std::future::pending().await,
    }
}

/// Whoever is turned away here sees the connection end: gRPC has no other word before a request.
fn receive(hub: &Arc<Hub>, visitor: envoy::Visitor, tasks: &mut JoinSet<()>) {
    if let Ok(pass) = Doors::admit(hub, visitor.uid()) {
        tasks.spawn(envoy::serve(visitor, pass, hub.clone()));
    }
}

/// Tells why, as far as that is possible at once, and closes.
fn turn_away(stream: UnixStream, refusal: Refusal) {
    // The runtime does not know yet that a fresh stream takes bytes; the operating system does.
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(refusal.as_reply());
    }
}

/// A descriptor kept for the moment when there is no other.
fn spare(listener: &UnixListener) -> Option<std::os::fd::OwnedFd> {
    listener.as_fd().try_clone_to_owned().ok()
}

/// After a failed accept. Out of descriptors: the spare one is given up to tell the peer so, or it
/// would hang in the queue and the listener would report it for ever.
async fn recover(error: &io::Error, listener: &UnixListener, reserve: &mut Option<std::os::fd::OwnedFd>, hub: &Hub) {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
        tracing::warn!(%error, "a connection could not be accepted");
        return tokio::task::yield_now().await;
    }
    hub.doors.note_refused();
    *reserve = None;
    if let Ok(Ok((stream, _))) = tokio::time::timeout(Duration::from_millis(10), listener.accept()).await {
        turn_away(stream, Refusal::TooMany);
    }
    *reserve = spare(listener);
    if reserve.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
