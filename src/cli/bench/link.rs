//! One connection under load, over a Unix socket or TCP.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The server under load.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Unix(PathBuf),
    Tcp(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// A stream that never blocks.
#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A connection, and for each unanswered command when it was sent or due (in nanoseconds).
#[derive(Debug)]
pub(super) struct Link {
    stream: Stream,
    pub(super) sent: VecDeque<u64>,
    /// Commands that the socket did not take.
    unwritten: Vec<u8>,
    /// The beginning of an incomplete reply.
    pub(super) partial: Vec<u8>,
    /// Replies are expected on it.
    pub(super) is_busy: bool,
}

impl Link {
    pub(super) fn open(target: &Target) -> io::Result<Self> {
        let stream = match target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Stream::Unix(stream)
            }
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address.as_str())?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Stream::Tcp(stream)
            }
        };
        Ok(Self { stream, sent: VecDeque::new(), unwritten: Vec::new(), partial: Vec::new(), is_busy: false })
    }

    /// Writes commands. Bytes that the socket does not take are written with the next call.
    pub(super) fn write(&mut self, commands: &[u8]) -> io::Result<()> {
        if self.unwritten.is_empty() {
            let written = self.stream.put(commands)?;
            self.unwritten.extend_from_slice(&commands[written..]);
            return Ok(());
        }
        self.unwritten.extend_from_slice(commands);
        self.write_rest()
    }

    /// Reads what has arrived; `None` when nothing has.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.unwritten.is_empty() {
            self.write_rest()?;
        }
        match self.stream.get(buffer) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other side")),
            Ok(len) => Ok(Some(len)),
            Err(error) if is_later(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write_rest(&mut self) -> io::Result<()> {
        let written = self.stream.put(&self.unwritten)?;
        self.unwritten.drain(..written);
        Ok(())
    }
}

impl Stream {
    fn get(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        };
        match written {
            Err(error) if is_later(&error) => Ok(0),
            written => written,
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
