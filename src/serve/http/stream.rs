//! One HTTP connection: a stream of which some bytes were read already, with a time limit for incomplete heads.
//!
//! hyper parses and writes. hyper starts the time limit for a head at the end of the previous request, so it includes
//! the connection's idle time. Here a head that has begun gets less time than an idle connection. Knows no request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

use super::line::{Line, judge};
use super::rest_timer::RestTimer;
use crate::serve::budget::Account;

/// Bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Longest head, in bytes.
    pub(crate) head: usize,
    /// Longest first line of a connection, in bytes. Until it is complete, the protocol is unknown.
    pub(crate) line: usize,
    /// Longest idle time between two requests.
    pub(crate) rest: Duration,
    /// Longest time for a head once it has begun.
    pub(crate) half: Duration,
}

/// Serves a connection until it closes; the bytes in `head` were read before. The caller can observe `progress`;
/// `account` bounds the memory of its requests. `leave` tells whether to take no more requests, and registers a
/// wake-up for when that changes.
pub(crate) async fn converse<S, A, F, B>(
    mut stream: S,
    mut head: Vec<u8>,
    bounds: &Bounds,
    progress: Arc<Progress>,
    mut account: Account,
    answer: A,
    mut leave: impl FnMut(&mut Context<'_>) -> bool,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let first = tokio::time::timeout(bounds.half, first_line(&mut stream, &mut head, bounds.line));
    match first.await {
        Ok(Ok(Line::Ours)) => {}
        Ok(Ok(Line::Refused(response))) => {
            let refusing = async {
                stream.write_all(response.as_bytes()).await?;
                stream.shutdown().await
            };
            let _ = tokio::time::timeout(bounds.half, refusing).await;
            return;
        }
        // The client has gone, or did not complete its first line.
        _ => return,
    }
    progress.bytes_came(head.len());
    // The answer is made where it is awaited: if it were made before, its future would be there twice, and is moved with each request.
    let (answer, answering) = (&answer, &progress);
    let service = service_fn(move |request| {
        answering.head_is_whole();
        async move {
            let reply = answer(request).await;
            answering.answered();
            Ok::<_, Infallible>(reply)
        }
    });
    let stream = Resumed { head, taken: 0, stream, progress: progress.clone() };
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(RestTimer::default())
        .header_read_timeout(bounds.rest)
        .max_buf_size(bounds.head)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut deadline: Option<(u64, Pin<Box<Sleep>>)> = None;
    let served = poll_fn(|cx| {
        if leave(cx) {
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(served) = connection.as_mut().poll(cx) {
            return Poll::Ready(served);
        }
        let bytes = progress.bytes();
        if !account.has_room(bytes) {
            tracing::debug!(bytes, "an HTTP connection is closed: no memory is left for its request");
            return Poll::Ready(Ok(()));
        }
        account.note_held(bytes);
        let Some(which) = progress.half() else {
            deadline = None;
            return Poll::Pending;
        };
        let (of, end) = deadline.get_or_insert_with(|| (which, Box::pin(tokio::time::sleep(bounds.half))));
        if *of != which {
            (*of, *end) = (which, Box::pin(tokio::time::sleep(bounds.half)));
        }
        end.as_mut().poll(cx).map(Ok)
    });
    if let Err(error) = served.await {
        tracing::debug!(%error, "an HTTP connection ended badly");
    }
}

/// Reads until the first line can be judged. If the stream ends before, the error is
/// [`io::ErrorKind::UnexpectedEof`].
async fn first_line<S: AsyncRead + Unpin>(stream: &mut S, head: &mut Vec<u8>, most: usize) -> io::Result<Line> {
    loop {
        if let Some(line) = judge(head, most) {
            return Ok(line);
        }
        head.reserve(1 << 10);
        if stream.read_buf(head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The state of a connection: idle, in a head, or in an answer. It counts the heads, so that one can be distinguished
/// from the next.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    stage: AtomicU64,
    /// Bytes that arrived since the last answer.
    bytes: AtomicUsize,
}

impl Progress {
    const IN_HEAD: u64 = 1;
    const IN_ANSWER: u64 = 2;
    const STAGES: u64 = 3;

    fn bytes_came(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let now = self.stage.load(Ordering::Relaxed);
        if now.is_multiple_of(Self::STAGES) {
            self.stage.store(now + Self::IN_HEAD, Ordering::Relaxed);
        }
    }

    fn head_is_whole(&self) {
        let now = self.stage.load(Ordering::Relaxed);
        self.stage.store(now - now % Self::STAGES + Self::IN_ANSWER, Ordering::Relaxed);
    }

    fn answered(&self) {
        let now = self.stage.load(Ordering::Relaxed);
        self.stage.store(now - now % Self::STAGES + Self::STAGES, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes of the present request that have arrived.
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a request has arrived and is being answered.
    pub(crate) fn is_answering(&self) -> bool {
        self.stage.load(Ordering::Relaxed) % Self::STAGES == Self::IN_ANSWER
    }

    /// The number of the head that is incomplete, if one is.
    fn half(&self) -> Option<u64> {
        Some(self.stage.load(Ordering::Relaxed)).filter(|now| now % Self::STAGES == Self::IN_HEAD)
    }
}

/// A stream of which some bytes were read already.
struct Resumed<S> {
    head: Vec<u8>,
    taken: usize,
    stream: S,
    progress: Arc<Progress>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Resumed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = &self.head[self.taken..];
        if rest.is_empty() {
            self.head = Vec::new();
            self.taken = 0;
            let before = into.filled().len();
            let polled = Pin::new(&mut self.stream).poll_read(cx, into);
            let came = into.filled().len() - before;
            if came > 0 {
                self.progress.bytes_came(came);
            }
            return polled;
        }
        let len = rest.len().min(into.remaining());
        into.put_slice(&rest[..len]);
        self.taken += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Resumed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_half_from_its_first_byte_to_its_last_and_each_is_another() {
        let progress = Progress::default();
        assert_eq!(progress.half(), None);
        progress.bytes_came(1);
        let first = progress.half();
        progress.bytes_came(1);
        assert!(first.is_some() && progress.half() == first);
        progress.head_is_whole();
        progress.bytes_came(1);
        assert_eq!(progress.half(), None, "what comes now is a body");
        progress.answered();
        assert_eq!(progress.half(), None);
        progress.bytes_came(1);
        assert!(progress.half().is_some() && progress.half() != first);
        progress.head_is_whole();
        progress.answered();
        progress.head_is_whole();
        assert_eq!(progress.half(), None, "it came with the one before");
    }
}
