//! The byte stream of a client as a connection uses it: a Unix socket, a TCP connection, or a simulation's replacement.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A stream to one client.
pub trait ClientStream: AsyncRead + AsyncWrite + Send + Sized + Unpin + 'static {
    /// The stream while it belongs to no runtime.
    type Resting: Send + 'static;

    /// Detaches it from its runtime, so that another thread's runtime can take it.
    ///
    /// # Errors
    /// The runtime does not release it.
    fn rest(self) -> io::Result<Self::Resting>;

    /// Attaches it to the runtime that this is called in.
    ///
    /// # Errors
    /// The runtime does not accept it.
    fn resume(resting: Self::Resting) -> io::Result<Self>;

    /// Writes as much as the client takes at once; `WouldBlock` when that is nothing.
    ///
    /// # Errors
    /// Errors of the stream.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ready when the client may take bytes again.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Bytes that have arrived and were not read.
    fn unread(&self) -> u64;

    /// Reads what has arrived, even if the runtime has not noticed it yet; 0 for nothing, whatever the cause.
    fn read_at_once(&self, buffer: &mut [u8]) -> usize;

    /// Writes as much as the client takes at once, even if the runtime does not know yet that a new stream is
    /// writable.
    fn write_at_once(&self, bytes: &[u8]);
}

/// A stream of the daemon's own socket or of its TCP address.
#[derive(Debug)]
pub enum Stream {
    /// The daemon's own, or the inner end of a TCP connection with TLS.
    Unix(UnixStream),
    /// A plain TCP connection.
    Tcp(TcpStream),
}

/// The same while it belongs to no runtime.
#[derive(Debug)]
pub enum RestingStream {
    /// A Unix stream.
    Unix(std::os::unix::net::UnixStream),
    /// A TCP stream.
    Tcp(std::net::TcpStream),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl ClientStream for Stream {
    type Resting = RestingStream;

    fn rest(self) -> io::Result<Self::Resting> {
        match self {
            Self::Unix(stream) => stream.into_std().map(RestingStream::Unix),
            Self::Tcp(stream) => stream.into_std().map(RestingStream::Tcp),
        }
    }

    fn resume(resting: Self::Resting) -> io::Result<Self> {
        match resting {
            RestingStream::Unix(stream) => UnixStream::from_std(stream).map(Self::Unix),
            RestingStream::Tcp(stream) => TcpStream::from_std(stream).map(Self::Tcp),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tcp(stream) => stream.try_write(bytes),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Unix(stream) => stream.poll_write_ready(cx),
            Self::Tcp(stream) => stream.poll_write_ready(cx),
        }
    }

    fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(self.as_fd()).unwrap_or(0)
    }

    fn read_at_once(&self, buffer: &mut [u8]) -> usize {
        recv(self.as_fd(), buffer, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len)
    }

    fn write_at_once(&self, bytes: &[u8]) {
        let _ = send(self.as_fd(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}
