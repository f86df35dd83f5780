//! Counts the bytes of incomplete requests, so that those of a connection stay within its memory bound.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tonic::Status;

use crate::serve::budget::Account;

/// The memory of a connection's requests.
#[derive(Clone, Debug)]
pub(super) struct Counter(Arc<Mutex<(Account, usize)>>);

/// A request's body, whose bytes count until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    body: Incoming,
    counter: Counter,
    bytes: usize,
}

impl Counter {
    /// No byte counts yet.
    pub(super) fn new(account: Account) -> Self {
        Self(Arc::new(Mutex::new((account, 0))))
    }

    /// Wraps a body so that its bytes count.
    pub(super) fn count(&self, body: Incoming) -> Counted {
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

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map(|frame| {
            Some(match frame? {
                Ok(frame) => {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    self.bytes += bytes;
                    if bytes > 0 && !self.counter.add(bytes) {
                        return Some(Err(Status::resource_exhausted("no memory is left for so long a request")));
                    }
                    Ok(frame)
                }
                Err(error) => Err(Status::unknown(error.to_string())),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
