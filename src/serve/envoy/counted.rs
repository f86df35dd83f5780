//! Counts the bytes of incomplete requests, so that those of a connection stay within its memory bound.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use h2::{Reason, RecvStream};
use hyper::body::Bytes;
use tonic::Status;

use crate::serve::budget::Account;

/// The memory of a connection's requests.
#[derive(Clone, Debug)]
pub(super) struct Counter(Arc<Mutex<(Account, usize)>>);

/// A request's body, whose bytes count until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    body: RecvStream,
    counter: Counter,
    bytes: usize,
}

impl Counter {
    /// No byte counts yet.
    pub(super) fn new(account: Account) -> Self {
        Self(Arc::new(Mutex::new((account, 0))))
    }

    /// Wraps a body so that its bytes count.
    pub(super) fn count(&self, body: RecvStream) -> Counted {
        Counted { body, counter: self.clone(), bytes: 0 }
    }

    /// Counts more bytes; false when there is no room for them.
    fn add(&self, bytes: usize) -> bool {
        let mut inner = self.lock();
        let (account, held) = &mut *inner;
        *held += bytes;
        let has_room = account.has_room(*held);
        account.note_held(*held);
        has_room
    }

    fn lock(&self) -> MutexGuard<'_, (Account, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut inner = self.counter.lock();
        let (account, held) = &mut *inner;
        *held -= self.bytes;
        account.note_held(*held);
    }
}

impl Counted {
    /// The next piece; `None` behind the last one.
    pub(super) async fn data(&mut self) -> Option<Result<Bytes, Status>> {
        let data = match poll_fn(|cx| self.body.poll_data(cx)).await? {
            Ok(data) => data,
            // The client takes the request back.
            Err(error) if matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => return None,
            Err(error) => return Some(Err(Status::unknown(error.to_string()))),
        };
        // The client may send as much again. Whoever has no stream any more sends nothing.
        let _ = self.body.flow_control().release_capacity(data.len());
        self.bytes += data.len();
        if !data.is_empty() && !self.counter.add(data.len()) {
            return Some(Err(Status::resource_exhausted("no memory is left for so long a request")));
        }
        Some(Ok(data))
    }
}
