//! The byte stream of a client as a connection uses it: a Unix socket, or a simulation's replacement.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

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

impl ClientStream for UnixStream {
    type Resting = std::os::unix::net::UnixStream;

    fn rest(self) -> io::Result<Self::Resting> {
        self.into_std()
    }

    fn resume(resting: Self::Resting) -> io::Result<Self> {
        Self::from_std(resting)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        UnixStream::try_write(self, bytes)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        UnixStream::poll_write_ready(self, cx)
    }

    fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(self).unwrap_or(0)
    }

    fn read_at_once(&self, buffer: &mut [u8]) -> usize {
        same(self).and_then(|mut stream| stream.read(buffer)).unwrap_or(0)
    }

    fn write_at_once(&self, bytes: &[u8]) {
        let _ = same(self).and_then(|mut stream| stream.write(bytes));
    }
}

/// The same socket without the runtime, which may not have noticed the latest events.
fn same(stream: &UnixStream) -> io::Result<std::os::unix::net::UnixStream> {
    stream.as_fd().try_clone_to_owned().map(std::os::unix::net::UnixStream::from)
}
