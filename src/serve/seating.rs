//! The way of a connection from the data thread that has accepted it to the one that serves it.
//!
//! The doors say which that is. A connection changes its thread once, before anything is read of it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::admission::ConnectionGuard;
use super::envoy;
use super::stream::ClientStream;

/// Somebody who was let in.
pub(super) enum Guest<S> {
    /// At the socket.
    Client(S, ConnectionGuard),
    /// At Envoy's door.
    Envoy(envoy::Visitor, ConnectionGuard),
}

/// The same on the way to another thread.
enum Walking<S: ClientStream> {
    Client(S::Resting, ConnectionGuard),
    Envoy(envoy::Resting, ConnectionGuard),
}

/// One data thread's part of it.
pub(super) struct Seating<S: ClientStream> {
    /// Which thread it is.
    pub(super) own: usize,
    coming: mpsc::UnboundedReceiver<Walking<S>>,
    threads: Arc<[mpsc::UnboundedSender<Walking<S>>]>,
}

impl<S: ClientStream> Seating<S> {
    /// Those of so many data threads.
    pub(super) fn of(threads: usize) -> Vec<Self> {
        let (senders, coming): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::unbounded_channel()).unzip();
        let threads: Arc<[_]> = senders.into();
        let seating = |(own, coming)| Self { own, coming, threads: threads.clone() };
        coming.into_iter().enumerate().map(seating).collect()
    }

    /// Sends `guest` to the thread of that number; the answer is a guest who is to be served here.
    pub(super) fn lead(&self, thread: usize, guest: Guest<S>) -> Option<Guest<S>> {
        if thread == self.own {
            return Some(guest);
        }
        // A thread that has ended takes nobody, and then the guest stays.
        match self.threads.get(thread)?.send(guest.rest()?) {
            Ok(()) => None,
            Err(mpsc::error::SendError(walking)) => walking.arrive(),
        }
    }

    /// The next one whom another thread sends here. May be dropped before it is ready, and then nobody is lost.
    pub(super) async fn next(&mut self) -> Option<Guest<S>> {
        loop {
            if let Some(guest) = self.coming.recv().await?.arrive() {
                return Some(guest);
            }
        }
    }

    /// Nobody is sent here from now on; the answer is who was sent before.
    pub(super) fn close(&mut self) -> Vec<Guest<S>> {
        self.coming.close();
        std::iter::from_fn(|| self.coming.try_recv().ok()).filter_map(Walking::arrive).collect()
    }
}

impl<S: ClientStream> Guest<S> {
    /// `None`: the connection is broken.
    fn rest(self) -> Option<Walking<S>> {
        match self {
            Self::Client(stream, pass) => Some(Walking::Client(stream.rest().ok()?, pass)),
            Self::Envoy(visitor, pass) => Some(Walking::Envoy(visitor.rest().ok()?, pass)),
        }
    }
}

impl<S: ClientStream> Walking<S> {
    fn arrive(self) -> Option<Guest<S>> {
        let arrived = match self {
            Self::Client(stream, pass) => S::resume(stream).map(|stream| Guest::Client(stream, pass)),
            Self::Envoy(visitor, pass) => visitor.resume().map(|visitor| Guest::Envoy(visitor, pass)),
        };
        arrived.inspect_err(|error| tracing::warn!(%error, "a connection could not go to its thread")).ok()
    }
}
