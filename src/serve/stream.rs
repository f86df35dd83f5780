//! A client's bytes as a connection needs them: a Unix socket, or what a simulation puts in its place.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// A stream to one client.
pub trait ClientStream: AsyncRead + AsyncWrite + Send + Sized + Unpin + 'static {
    /// The stream while no runtime knows it.
    type Resting: Send + 'static;

    /// Takes it from the runtime that it belongs to, so that another thread's can have it.
    ///
    /// # Errors
    /// The runtime does not let it go.
    fn rest(self) -> io::Result<Self::Resting>;

    /// Gives it to the runtime that this is called in.
    ///
    /// # Errors
    /// The runtime does not take it.
    fn resume(resting: Self::Resting) -> io::Result<Self>;

    /// Writes what the client takes at once; `WouldBlock` when that is nothing.
    ///
    /// # Errors
    /// Those of the stream.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ready when the client may take bytes again.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Bytes that have come and were not read.
    fn unread(&self) -> u64;

    /// Reads what has come, though the runtime may not have noticed it yet; 0 for nothing, whatever the cause.
    fn read_at_once(&self, buffer: &mut [u8]) -> usize;

    /// Writes what the client takes at once, though the runtime may not know yet that a fresh stream takes any.
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

/// The socket as the operating system knows it, which is ahead of the runtime.
fn same(stream: &UnixStream) -> io::Result<std::os::unix::net::UnixStream> {
    stream.as_fd().try_clone_to_owned().map(std::os::unix::net::UnixStream::from)
}
