//! Where Envoy comes in: a listener, and its connections with their bounds.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tonic::Status;

use super::counted::{Counted, Counter};
use super::plain::Plain;
use super::proto::SHOULD_RATE_LIMIT;
use super::service::Service;
use super::unary::{Answer, receive, respond};
use crate::config;
use crate::serve::admission::ConnectionGuard;
use crate::serve::handed::Handed;
use crate::serve::server_state::ServerState;
use crate::serve::socket::{Socket, SocketError};
use crate::wire::headers::Style;

/// Most requests of a connection at once.
const MAX_STREAMS: u32 = 256;
/// Largest request: with [`MAX_STREAMS`] it bounds what a connection can make this process hold.
const MAX_MESSAGE: usize = 128 << 10;
/// Largest list of header fields of a request.
const MAX_HEADERS: u32 = 16 << 10;
/// Largest frame: the least that HTTP/2 knows.
const MAX_FRAME: u32 = 16 << 10;
/// What a stream and a connection may send ahead.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Streams that were reset before they were seen: Envoy resets one whenever its timeout is over.
const MAX_RESETS: usize = 1_024;
/// After so long without a frame a connection over TCP is asked whether it is still there, and so long it may take.
const QUIET: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time for a request to come whole and be answered.
const LIFE: Duration = Duration::from_secs(10);

/// What the door is started with.
#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    /// Where.
    pub door: config::Door,
    /// Which header fields Envoy adds to its responses; `None`: none of ours.
    pub headers: Option<Style>,
}

/// A bound door. The file of a Unix socket goes away with it.
#[derive(Debug)]
pub struct Door {
    bound: Bound,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Bound {
    Unix(Socket),
    Tcp(StdTcpListener, SocketAddr),
}

/// Why the door cannot be bound.
#[derive(Debug)]
pub enum BindError {
    /// Its socket.
    Socket(SocketError),
    /// Its address.
    Tcp {
        /// Which.
        address: SocketAddr,
        /// What the operating system says.
        error: io::Error,
    },
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Tcp { address, error } => {
                write!(f, "cannot bind {address}: {error}; choose another listen.envoy, or \"off\"")
            }
        }
    }
}

impl std::error::Error for BindError {}

impl Door {
    /// Binds it, unless it was handed over; a Unix socket gets `mode` and `group`. Port 0 lets the operating system
    /// choose.
    ///
    /// # Errors
    /// The place is in use, or the operating system refuses.
    pub fn bind(options: &EnvoyOptions, mode: u32, group: Option<u32>, handed: &mut Handed) -> Result<Self, BindError> {
        let bound = match &options.door {
            config::Door::Path(path) => {
                let socket = match handed.take_unix(path) {
                    Some(listener) => Socket::adopt(listener, path),
                    None => Socket::bind(path, mode, group),
                };
                Bound::Unix(socket.map_err(BindError::Socket)?)
            }
            config::Door::Address(address) => {
                let listener = match handed.take_tcp(*address) {
                    Some(listener) => Ok(listener),
                    None => StdTcpListener::bind(address),
                };
                let bound = listener.and_then(prepared);
                let (listener, address) = bound.map_err(|error| BindError::Tcp { address: *address, error })?;
                Bound::Tcp(listener, address)
            }
        };
        Ok(Self { bound, headers: options.headers })
    }

    /// Where it is, with the port that was chosen.
    #[must_use]
    pub fn place(&self) -> config::Door {
        match &self.bound {
            Bound::Unix(socket) => config::Door::Path(socket.path().to_owned()),
            Bound::Tcp(_, address) => config::Door::Address(*address),
        }
    }

    /// Another handle, for one more thread.
    pub(crate) fn handle(&self) -> io::Result<Handle> {
        let inner = match &self.bound {
            Bound::Unix(socket) => Inner::Unix(socket.listener()?),
            Bound::Tcp(listener, _) => Inner::Tcp(listener.try_clone()?),
        };
        Ok(Handle { inner, headers: self.headers })
    }
}

fn prepared(listener: StdTcpListener) -> io::Result<(StdTcpListener, SocketAddr)> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// A thread's listener before its runtime knows it.
#[derive(Debug)]
pub(crate) struct Handle {
    inner: Inner,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Inner {
    Unix(std::os::unix::net::UnixListener),
    Tcp(StdTcpListener),
}

/// A thread's listener.
#[derive(Debug)]
pub(crate) struct Listener {
    accepting: Accepting,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Accepting {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Somebody who came.
#[derive(Debug)]
pub(crate) struct Visitor {
    stream: Stream,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Somebody who came, while no runtime knows the connection.
#[derive(Debug)]
pub(crate) struct Resting {
    inner: RestingStream,
    headers: Option<Style>,
}

#[derive(Debug)]
enum RestingStream {
    Unix(std::os::unix::net::UnixStream),
    Tcp(std::net::TcpStream),
}

impl Handle {
    /// For the runtime this is called in.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        let accepting = match self.inner {
            Inner::Unix(listener) => Accepting::Unix(UnixListener::from_std(listener)?),
            Inner::Tcp(listener) => Accepting::Tcp(TcpListener::from_std(listener)?),
        };
        Ok(Listener { accepting, headers: self.headers })
    }
}

impl Listener {
    /// The next visitor.
    pub(crate) async fn accept(&self) -> io::Result<Visitor> {
        let stream = match &self.accepting {
            Accepting::Unix(listener) => Stream::Unix(listener.accept().await?.0),
            Accepting::Tcp(listener) => Stream::Tcp(listener.accept().await?.0),
        };
        Ok(Visitor { stream, headers: self.headers })
    }
}

impl Visitor {
    /// Takes the connection from the runtime that it belongs to, so that another thread's can have it.
    pub(crate) fn rest(self) -> io::Result<Resting> {
        let inner = match self.stream {
            Stream::Unix(stream) => RestingStream::Unix(stream.into_std()?),
            Stream::Tcp(stream) => RestingStream::Tcp(stream.into_std()?),
        };
        Ok(Resting { inner, headers: self.headers })
    }

    /// The peer's user, where it can be told.
    pub(crate) fn uid(&self) -> Option<u32> {
        match &self.stream {
            // A peer whose uid cannot be told is nobody's.
            Stream::Unix(stream) => Some(stream.peer_cred().map_or(u32::MAX, |cred| cred.uid())),
            Stream::Tcp(_) => None,
        }
    }
}

impl Resting {
    /// Gives the connection to the runtime that this is called in.
    pub(crate) fn resume(self) -> io::Result<Visitor> {
        let stream = match self.inner {
            RestingStream::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
            RestingStream::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
        };
        Ok(Visitor { stream, headers: self.headers })
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve(visitor: Visitor, pass: ConnectionGuard, hub: Arc<ServerState>) {
    let counter = Counter::new(hub.doors.account());
    let service = Service::new(hub, visitor.headers, pass.mailbox.asker());
    match visitor.stream {
        // The operating system tells when the other side is gone.
        Stream::Unix(stream) => converse(stream, None, pass, (service, counter)).await,
        Stream::Tcp(stream) => {
            // Without it answers wait for more; where it cannot be set they merely do.
            let _ = stream.set_nodelay(true);
            converse(stream, Some(QUIET), pass, (service, counter)).await;
        }
    }
}

async fn converse<S>(stream: S, quiet: Option<Duration>, pass: ConnectionGuard, (service, counter): (Service, Counter))
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answering = service_fn(move |request: Request<Incoming>| {
        let counter = counter.clone();
        answer(service.clone(), request.map(|body| counter.count(body)))
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .max_frame_size(MAX_FRAME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .keep_alive_interval(quiet)
        .keep_alive_timeout(PATIENCE)
        .serve_connection(TokioIo::new(Plain(stream)), answering);
    let mut connection = pin!(connection);
    let served = poll_fn(|cx| pass.drive(cx, connection.as_mut(), |connection| connection.graceful_shutdown()));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection of Envoy ended badly");
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

/// Boxed, because hyper moves it several times, and it is large.
fn answer(service: Service, request: Request<Counted>) -> Answering {
    Box::pin(async move {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Ok(Status::unimplemented(format!("only {SHOULD_RATE_LIMIT} is served here")).into_http());
        }
        let mut answered = pin!(async move {
            let (head, body) = request.into_parts();
            let told = match receive(&head.headers, body, MAX_MESSAGE).await {
                Ok(message) => service.answer(message).await,
                Err(status) => Err(status),
            };
            told.map_or_else(Status::into_http, respond)
        });
        // Most are answered at once, and need no timer.
        if let Poll::Ready(response) = poll_fn(|cx| Poll::Ready(answered.as_mut().poll(cx))).await {
            return Ok(response);
        }
        let late = || Status::deadline_exceeded("the request did not come whole in time").into_http();
        Ok(tokio::time::timeout(LIFE, answered).await.unwrap_or_else(|_| late()))
    })
}
