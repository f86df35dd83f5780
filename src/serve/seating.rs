//! Moves a connection from the data thread that has accepted it to the one that serves it.
//!
//! `admission` chooses the thread. A connection moves at most once, before anything is read from it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::admission::ConnectionGuard;
use super::envoy;
use super::stream::ClientStream;

/// A connection that was admitted.
pub(super) enum Guest<S> {
    /// On the daemon's socket.
    Client(S, ConnectionGuard),
    /// On Envoy's listener.
    Envoy(envoy::Accepted, ConnectionGuard),
}

/// A connection on its way to another thread, detached from its runtime.
enum Walking<S: ClientStream> {
    Client(S::Resting, ConnectionGuard),
    Envoy(envoy::Resting, ConnectionGuard),
}

/// One data thread's end of the channels.
pub(super) struct Seating<S: ClientStream> {
    /// The number of the thread.
    pub(super) own: usize,
    coming: mpsc::UnboundedReceiver<Walking<S>>,
    threads: Arc<[mpsc::UnboundedSender<Walking<S>>]>,
}

impl<S: ClientStream> Seating<S> {
    /// The ends for `threads` data threads.
    pub(super) fn of(threads: usize) -> Vec<Self> {
        let (senders, coming): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::unbounded_channel()).unzip();
        let threads: Arc<[_]> = senders.into();
        let seating = |(own, coming)| Self { own, coming, threads: threads.clone() };
        coming.into_iter().enumerate().map(seating).collect()
    }

    /// Sends `guest` to the thread of that number, or returns it if this thread serves it.
    pub(super) fn lead(&self, thread: usize, guest: Guest<S>) -> Option<Guest<S>> {
        if thread == self.own {
            return Some(guest);
        }
        // A thread that has ended takes no connection, so this one keeps it.
        match self.threads.get(thread)?.send(guest.rest()?) {
            Ok(()) => None,
            Err(mpsc::error::SendError(walking)) => walking.arrive(),
        }
    }

    /// The next connection that another thread sends. Dropping the future loses no connection.
    pub(super) async fn next(&mut self) -> Option<Guest<S>> {
        loop {
            if let Some(guest) = self.coming.recv().await?.arrive() {
                return Some(guest);
            }
        }
    }

    /// Takes no more connections, and returns those that were sent before.
    pub(super) fn close(&mut self) -> Vec<Guest<S>> {
        self.coming.close();
        std::iter::from_fn(|| self.coming.try_recv().ok()).filter_map(Walking::arrive).collect()
    }
}

impl<S: ClientStream> Guest<S> {
    /// Detaches the connection; `None` when it is broken.
    fn rest(self) -> Option<Walking<S>> {
        match self {
            Self::Client(stream, pass) => Some(Walking::Client(stream.rest().ok()?, pass)),
            Self::Envoy(accepted, pass) => Some(Walking::Envoy(accepted.rest().ok()?, pass)),
        }
    }
}

impl<S: ClientStream> Walking<S> {
    fn arrive(self) -> Option<Guest<S>> {
        let arrived = match self {
            Self::Client(stream, pass) => S::resume(stream).map(|stream| Guest::Client(stream, pass)),
            Self::Envoy(accepted, pass) => accepted.resume().map(|accepted| Guest::Envoy(accepted, pass)),
        };
        arrived.inspect_err(|error| tracing::warn!(%error, "a connection could not go to its thread")).ok()
    }
}
