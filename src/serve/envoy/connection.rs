//! One connection of Envoy: HTTP/2 by the `h2` crate, with bounds for what a client may make it keep.
//!
//! Most requests are there whole when their stream is accepted, and are answered from tokens that the node holds. So the
//! connection first accepts all that has come, then answers it in its own task, and then writes all answers at once. Only a
//! request that must wait, for the rest of its message or for the store, gets a task of its own.

use std::future::{Future, poll_fn};
use std::io::Cursor;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::server::{Builder, Connection, SendResponse};
use h2::{Error, Ping, PingPong, RecvStream};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tonic::Status;

use super::counted::Counter;
use super::proto::SHOULD_RATE_LIMIT;
use super::service::Service;
use super::unary::{Answer, receive};
use super::unvectored::Unvectored;
use crate::serve::admission::ConnectionGuard;

/// Most concurrent requests of a connection.
const MAX_STREAMS: u32 = 256;
/// Largest request. Together with [`MAX_STREAMS`] it bounds the memory that a connection can use.
const MAX_MESSAGE: usize = 128 << 10;
/// Largest list of header fields of a request.
const MAX_HEADERS: u32 = 16 << 10;
/// Largest frame; HTTP/2 allows no smaller limit.
const MAX_FRAME: u32 = 16 << 10;
/// Flow-control window of a stream and of a connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Most streams that a client may reset before they are accepted. Envoy resets a stream whenever its timeout passes.
const MAX_RESETS: usize = 1_024;
/// A client has this long to answer a PING.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time for a request to arrive and be answered, and for a client over TCP to begin.
const LIFE: Duration = Duration::from_secs(10);

type Streams<S> = Connection<Unvectored<S>, Cursor<Vec<u8>>>;
type Respond = SendResponse<Cursor<Vec<u8>>>;

/// Serves a connection until it closes. Where it is given how long a connection may be `quiet`, the client is then asked whether it is
/// still there.
pub(super) async fn converse<S>(
    stream: S,
    quiet: Option<Duration>,
    pass: &ConnectionGuard,
    service: Service,
    counter: Counter,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let greeted = greet(stream, quiet.map(|_| LIFE), |cx| pass.is_to_leave(cx)).await;
    let served = match greeted {
        None => return,
        Some(Err(error)) => Err(error),
        Some(Ok(mut streams)) => {
            let presence = quiet.zip(streams.ping_pong()).map(|(quiet, pings)| Presence::new(quiet, pings));
            let answer = |request| answer(service.clone(), counter.clone(), request);
            let (accepted, answering) = (Vec::new(), Answering(Box::pin(None)));
            let mut conversation = Conversation { streams, presence, leaves: false, answer, accepted, answering };
            poll_fn(|cx| conversation.poll(cx, pass)).await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of Envoy ended badly");
    }
}

/// Begins to speak HTTP/2 with a client; `None` if it has not begun to by the time that the connection is to be left, or `within` the time
/// that it is given. Without that time, whoever opens a connection over TCP and vanishes before it has said anything would keep its place
/// for ever: only a connection that speaks HTTP/2 can be asked whether its client is there.
async fn greet<S>(
    stream: S,
    within: Option<Duration>,
    mut is_to_leave: impl FnMut(&mut Context<'_>) -> bool,
) -> Option<Result<Streams<S>, Error>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut greeting = Builder::new()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .max_frame_size(MAX_FRAME)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .handshake(Unvectored(stream));
    let greeted = poll_fn(|cx| {
        // A client that has not begun to speak HTTP/2 yet has nothing to finish.
        if is_to_leave(cx) { Poll::Ready(None) } else { Pin::new(&mut greeting).poll(cx).map(Some) }
    });
    match within {
        Some(within) => tokio::time::timeout(within, greeted).await.ok().flatten(),
        None => greeted.await,
    }
}

/// A connection that speaks HTTP/2.
struct Conversation<S, A, F> {
    streams: Streams<S>,
    presence: Option<Presence>,
    /// The client was told to ask no more.
    leaves: bool,
    answer: A,
    /// Requests that have come and are not answered yet.
    accepted: Vec<(Request<RecvStream>, Respond)>,
    answering: Answering<F>,
}

/// The place in which a request is answered. It is made once for all that are answered at once, as its size makes an allocation
/// dear; one that must wait takes it along.
struct Answering<F>(Pin<Box<Option<F>>>);

impl<S, A, F> Conversation<S, A, F>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<RecvStream>) -> F,
    F: Future<Output = Result<Answer, Status>> + Send + 'static,
{
    /// Accepts and answers what has come, and writes the answers; ready when the connection has ended. What comes meanwhile has to wait
    /// for the thread's next turn, because a client that asks without a pause must not keep the others from theirs.
    fn poll(&mut self, cx: &mut Context<'_>, pass: &ConnectionGuard) -> Poll<Result<(), Error>> {
        if !self.leaves && pass.is_to_leave(cx) {
            self.leaves = true;
            self.streams.graceful_shutdown();
        }
        if self.accept(cx)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if let Some(presence) = &mut self.presence {
            presence.is_heard |= !self.accepted.is_empty();
            if presence.poll(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
        }
        if self.accepted.is_empty() {
            return Poll::Pending;
        }
        for (request, mut respond) in self.accepted.drain(..) {
            match self.answering.begin(cx, (self.answer)(request)) {
                Poll::Ready(answer) => send(&mut respond, answer),
                Poll::Pending => self.answering.take().go_on(respond),
            }
        }
        // To accept is also what writes.
        if self.accept(cx)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !self.accepted.is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Accepts all requests that have come; ready when no more will.
    fn accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while let Some(accepted) = ready!(self.streams.poll_accept(cx)) {
            self.accepted.push(accepted?);
        }
        Poll::Ready(Ok(()))
    }
}

impl<F: Future<Output = Result<Answer, Status>> + Send + 'static> Answering<F> {
    /// Begins to answer, in the place of what was answered before.
    fn begin(&mut self, cx: &mut Context<'_>, answer: F) -> Poll<F::Output> {
        self.0.set(Some(answer));
        let answer = self.poll(cx);
        if answer.is_ready() {
            self.0.set(None);
        }
        answer
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.0.as_mut().as_pin_mut().map_or(Poll::Pending, |answer| answer.poll(cx))
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self(Box::pin(None)))
    }

    /// Goes on in a task of its own.
    fn go_on(mut self, mut respond: Respond) {
        tokio::spawn(async move {
            let mut late = pin!(tokio::time::sleep(LIFE));
            let answer = poll_fn(|cx| {
                if let Poll::Ready(answer) = self.poll(cx) {
                    return Poll::Ready(Some(answer));
                }
                if late.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(Err(Status::deadline_exceeded("the request did not come whole in time"))));
                }
                // Nobody waits for the answer to a stream that was reset.
                respond.poll_reset(cx).map(|_| None)
            });
            if let Some(answer) = answer.await {
                send(&mut respond, answer);
            }
        });
    }
}

async fn answer(service: Service, counter: Counter, request: Request<RecvStream>) -> Result<Answer, Status> {
    if request.uri().path() != SHOULD_RATE_LIMIT {
        return Err(Status::unimplemented(format!("only {SHOULD_RATE_LIMIT} is served here")));
    }
    let (head, body) = request.into_parts();
    service.answer(receive(&head.headers, counter.count(body), MAX_MESSAGE).await?).await
}

/// Sends a message and the status OK behind it, or another status alone. What cannot be sent was reset by the client.
fn send(respond: &mut Respond, answer: Result<Answer, Status>) {
    let message = match answer {
        Ok(message) => message,
        Err(status) => {
            let _ = respond.send_response(status.into_http::<()>(), true);
            return;
        }
    };
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if let Ok(mut stream) = respond.send_response(head, false) {
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        let _ = stream.send_data(Cursor::new(message), false).and_then(|()| stream.send_trailers(trailers));
    }
}

/// Whether the client of a TCP connection is still there, where nothing else shows it.
struct Presence {
    quiet: Duration,
    pings: PingPong,
    /// It has asked for something since the timer was last set.
    is_heard: bool,
    /// A PING was sent that it has not answered.
    is_asked: bool,
    timer: Pin<Box<Sleep>>,
}

impl Presence {
    fn new(quiet: Duration, pings: PingPong) -> Self {
        Self { quiet, pings, is_heard: false, is_asked: false, timer: Box::pin(tokio::time::sleep(quiet)) }
    }

    /// Ready when the client has not answered in time. Asks it where it has been quiet for a whole turn of the timer.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if self.is_asked && self.pings.poll_pong(cx)?.is_ready() {
                (self.is_asked, self.is_heard) = (false, true);
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.is_asked && !self.is_heard {
                return Poll::Ready(Ok(()));
            }
            if !self.is_heard {
                self.pings.send_ping(Ping::opaque())?;
                self.is_asked = true;
            }
            let next = if self.is_asked { PATIENCE } else { self.quiet };
            self.is_heard = false;
            self.timer.as_mut().set(tokio::time::sleep(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_quiet_client_stays_as_long_as_it_answers_pings() {
        let (ours, theirs) = tokio::io::duplex(4 << 10);
        let (hang, hangs) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            let (sender, connection) = h2::client::handshake(theirs).await.expect("HTTP/2");
            let mut connection = pin!(connection);
            tokio::select! { _ = &mut connection => (), _ = hangs => () }
            // From now on it reads nothing, and its connection stays open.
            std::future::pending::<()>().await;
            drop(sender);
        });
        let mut streams: Streams<_> = Builder::new().handshake(Unvectored(ours)).await.expect("HTTP/2");
        let mut presence = Presence::new(QUIET, streams.ping_pong().expect("nobody took it"));
        let mut watch = poll_fn(|cx| {
            assert!(streams.poll_accept(cx).is_pending(), "nothing is asked");
            presence.poll(cx)
        });
        assert!(tokio::time::timeout(10 * QUIET, &mut watch).await.is_err(), "it answers");
        hang.send(()).expect("it is there");
        let gone = tokio::time::timeout(2 * QUIET + PATIENCE, &mut watch).await;
        gone.expect("its silence is noticed").expect("the connection is whole");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_begins_gives_its_place_back() {
        let (ours, theirs) = tokio::io::duplex(4 << 10);
        assert!(greet(ours, Some(LIFE), |_| false).await.is_none());
        drop(theirs);
        // One that has time is served whenever it begins.
        let (ours, theirs) = tokio::io::duplex(4 << 10);
        let mut greeting = pin!(greet(ours, None, |_| false));
        assert!(tokio::time::timeout(2 * LIFE, &mut greeting).await.is_err(), "it is waited for");
        let client = tokio::spawn(h2::client::handshake(theirs));
        assert!(greeting.await.is_some_and(|begun| begun.is_ok()));
        assert!(client.await.is_ok_and(|begun| begun.is_ok()));
    }
}
