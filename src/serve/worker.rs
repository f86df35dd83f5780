//! A data thread: a single-threaded runtime that owns its connections, so that nothing on the path of a check is
//! shared with other threads but the shards.
//!
//! It accepts connections, asks `admission` about each, and starts its task or sends it to the thread that has fewer.
//! `thread` has the thread's buffers.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::admission::{Entrance, TurnedAway};
use super::connection::Connection;
use super::envoy;
use super::node::Node;
use super::seating::{Guest, Seating};
use super::server_state::ServerState;
use super::stream::{ClientStream, Stream};
use super::tcp::TcpClients;
use super::thread::Worker;
use super::vital::Pulse;

/// How long Envoy's listener pauses after a failed accept, and longest wait for a client that is turned away.
const RESTING: Duration = Duration::from_millis(10);

/// How long connections may take to end once the daemon stops.
const ENDING: Duration = Duration::from_secs(1);

impl Worker {
    /// Serves `listener` and Envoy's listener on the calling thread until `stop` changes, then ends the open
    /// connections.
    ///
    /// # Errors
    /// The runtime or the listener cannot be set up.
    pub(super) fn run(
        self: Arc<Self>,
        state: Arc<ServerState>,
        listeners: Listeners,
        seating: Seating<Stream>,
        stop: watch::Receiver<bool>,
        pulse: Pulse,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(async move {
            let comers = listeners.listen(&state)?;
            self.serve(state, comers, seating, stop, pulse).await;
            Ok(())
        })
    }

    /// Serves the clients that come until `stop` changes, then ends the open connections: all that a data thread
    /// does.
    pub(super) async fn serve<C: Comers>(
        self: Arc<Self>,
        state: Arc<ServerState>,
        (mut comers, door): (C, Option<envoy::Listener>),
        mut seating: Seating<C::Stream>,
        mut stop: watch::Receiver<bool>,
        pulse: Pulse,
    ) {
        let mut tasks = JoinSet::new();
        let wake_list = self.wake_list.clone();
        // This task runs until the runtime ends, and with it all tasks that it could wake.
        tokio::spawn(async move { wake_list.run().await });
        tokio::spawn(self.clone().ring_in_turn(state.node.clone()));
        let mut beats = Pulse::timer();
        // After a failed accept only Envoy's listener rests; the daemon's socket goes on.
        let mut rest = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            tokio::select! {
                (stream, uid) = comers.next() => {
                    if let Some(guest) = welcome(&state, stream, uid, &seating) {
                        self.clone().begin(&state, guest, &mut tasks);
                    }
                }
                Some(guest) = seating.next() => self.clone().begin(&state, guest, &mut tasks),
                () = rest.as_mut(), if !rest.is_elapsed() => {}
                accepted = next_accepted(door.as_ref()), if rest.is_elapsed() => match accepted {
                    Ok(accepted) => {
                        if let Some(guest) = receive(&state, accepted, &seating) {
                            self.clone().begin(&state, guest, &mut tasks);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection of Envoy could not be accepted");
                        rest.set(tokio::time::sleep(RESTING));
                    }
                },
                _ = stop.changed() => break,
                _ = beats.tick() => pulse.beat(state.node.clock.now()),
                Some(_) = tasks.join_next() => {}
            }
        }
        drop(door);
        for guest in seating.close() {
            self.clone().begin(&state, guest, &mut tasks);
        }
        let all = async {
            let served = async { while tasks.join_next().await.is_some() {} };
            tokio::join!(comers.leave(), served);
        };
        // Connections that take longer are dropped with the runtime.
        let _ = tokio::time::timeout(ENDING, all).await;
        // The task that rings for their last calls is dropped with it, too, so it is done here.
        state.node.ring(&mut self.lock().outgoing);
    }

    /// Rings the dispatcher once for the calls of all connections that ran in a turn of this thread. Waking another
    /// thread costs more than deciding a check, and if both share a core, it would run after the first call and
    /// dispatch that alone. Runs until the runtime ends.
    async fn ring_in_turn(self: Arc<Self>, node: Arc<Node>) {
        let bell = Arc::<Notify>::default();
        self.lock().outgoing.ring_at_the_end(bell.clone());
        loop {
            // The first call notifies this task, which then runs after all tasks that were ready by then.
            bell.notified().await;
            node.ring(&mut self.lock().outgoing);
        }
    }

    fn begin<S: ClientStream>(self: Arc<Self>, state: &Arc<ServerState>, guest: Guest<S>, tasks: &mut JoinSet<()>) {
        match guest {
            Guest::Client(stream, pass) => {
                let asker = pass.mailbox.asker();
                let connection =
                    Connection::new(stream, pass, state.admission.account(), state.node.crowd.place(asker));
                tasks.spawn(connection.serve(state.clone(), self));
            }
            Guest::Envoy(accepted, pass) => drop(tasks.spawn(envoy::serve(accepted, pass, state.clone()))),
        }
    }
}

/// Admits a client of the daemon's socket or of its TCP address; returns it if this thread is to serve it.
fn welcome<S: ClientStream>(
    state: &ServerState,
    stream: S,
    uid: Option<u32>,
    seating: &Seating<S>,
) -> Option<Guest<S>> {
    match state.admission.admit(uid) {
        Ok(mut pass) => {
            let thread = pass.take_seat(Entrance::Socket, seating.own);
            seating.lead(thread, Guest::Client(stream, pass))
        }
        Err(refusal) => {
            turn_away(&stream, refusal);
            None
        }
    }
}

async fn next_accepted(door: Option<&envoy::Listener>) -> io::Result<envoy::Accepted> {
    match door {
        Some(door) => door.accept().await,
        None => std::future::pending().await,
    }
}

/// Admits a connection of Envoy. One that is turned away is just closed, since gRPC has no message before a request.
fn receive<S: ClientStream>(state: &ServerState, accepted: envoy::Accepted, seating: &Seating<S>) -> Option<Guest<S>> {
    let mut pass = state.admission.admit(accepted.uid()).ok()?;
    let thread = pass.take_seat(Entrance::Envoy, seating.own);
    seating.lead(thread, Guest::Envoy(accepted, pass))
}

/// Writes the reason if the client takes it at once, and closes.
fn turn_away(stream: &impl ClientStream, refusal: TurnedAway) {
    stream.write_at_once(refusal.as_reply());
}

/// The source of clients: a listening socket, or a simulation.
pub trait Comers: Send {
    /// The stream to a client.
    type Stream: ClientStream;

    /// The next client and the uid of its process, which is `u32::MAX` (nobody's uid) if it cannot be read, and `None`
    /// for a client of the TCP address. Dropping the future loses no client.
    fn next(&mut self) -> impl Future<Output = (Self::Stream, Option<u32>)> + Send;

    /// Takes no more clients, and waits until what was written to them has left.
    fn leave(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async move { drop(self) }
    }
}

/// The listeners of one data thread, before they are attached to its runtime.
pub(super) struct Listeners {
    pub(super) socket: StdListener,
    pub(super) envoy: Option<envoy::Handle>,
    pub(super) tcp: Option<std::net::TcpListener>,
}

impl Listeners {
    /// Attaches them to the runtime inside of which this is called.
    pub(super) fn listen(self, state: &Arc<ServerState>) -> io::Result<(Clients, Option<envoy::Listener>)> {
        let remote = self.tcp.map(|tcp| TcpClients::of(tcp, state.remote.clone())).transpose()?;
        let clients = Clients::of(UnixListener::from_std(self.socket)?, remote, state);
        Ok((clients, self.envoy.map(envoy::Handle::listen).transpose()?))
    }
}

/// Clients of the daemon's socket and of its TCP address.
pub(super) struct Clients {
    listener: UnixListener,
    remote: Option<TcpClients>,
    state: Arc<ServerState>,
    /// A spare descriptor, for the moment when no other is left.
    reserve: Option<OwnedFd>,
}

impl Comers for Clients {
    type Stream = Stream;

    async fn next(&mut self) -> (Stream, Option<u32>) {
        // If this was dropped during a recovery, the spare descriptor is missing and is opened again.
        self.reserve = self.reserve.take().or_else(|| spare(&self.listener));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted.map(|(stream, _)| {
                    let uid = stream.peer_cred().map_or(u32::MAX, |cred| cred.uid());
                    (Stream::Unix(stream), Some(uid))
                }),
                accepted = next_remote(self.remote.as_mut()) => accepted.map(|stream| (stream, None)),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => self.recover(&error).await,
            }
        }
    }

    async fn leave(self) {
        let Self { listener, remote, .. } = self;
        drop(listener);
        if let Some(remote) = remote {
            remote.leave().await;
        }
    }
}

async fn next_remote(remote: Option<&mut TcpClients>) -> io::Result<Stream> {
    match remote {
        Some(remote) => remote.accept().await,
        None => std::future::pending().await,
    }
}

impl Clients {
    fn of(listener: UnixListener, remote: Option<TcpClients>, state: &Arc<ServerState>) -> Self {
        let reserve = spare(&listener);
        Self { listener, remote, state: state.clone(), reserve }
    }

    /// Handles a failed accept. When descriptors have run out, the spare one is closed to accept the client and tell
    /// it so. Otherwise the client would stay in the queue, and accept would fail forever.
    async fn recover(&mut self, error: &io::Error) {
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
            tracing::warn!(%error, "a connection could not be accepted");
            return tokio::task::yield_now().await;
        }
        self.state.admission.note_refused();
        self.reserve = None;
        let (listener, remote) = (&self.listener, self.remote.as_mut());
        let turned_away = async {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    turn_away(&Stream::Unix(stream), TurnedAway::TooMany);
                },
                // There is no descriptor for TLS, so nothing could be said to a client that expects it.
                accepted = next_remote(remote) => if let Ok(stream @ Stream::Tcp(_)) = accepted {
                    turn_away(&stream, TurnedAway::TooMany);
                },
            }
        };
        let _ = tokio::time::timeout(RESTING, turned_away).await;
        self.reserve = spare(&self.listener);
        if self.reserve.is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn spare(listener: &UnixListener) -> Option<OwnedFd> {
    listener.as_fd().try_clone_to_owned().ok()
}
