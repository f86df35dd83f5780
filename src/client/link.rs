//! One connection to a daemon, and what may be asked over it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use super::rest::{again, rest};
use super::{ClientError, Decision, Reply, request, write_request};
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};

/// How long a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the connection. A daemon accepts at once; only a hanging one takes longer.
    pub connect: Duration,
    /// For the whole of one answer, and for room to write a command.
    pub answer: Duration,
}

impl Default for Patience {
    /// One second each: a check waits for the store 50 ms at most unless configured otherwise.
    fn default() -> Self {
        Self { connect: Duration::from_secs(1), answer: Duration::from_secs(1) }
    }
}

/// A connection to a daemon's socket. Not shared between threads: each opens its own.
///
/// After a failure that leaves the connection out of step (a time-out, a broken connection) the next
/// command opens a new one; while that fails, commands fail at once for 25 to 75 ms, then for twice as long each time,
/// up to 0.2 to 0.6 s. No command is ever sent twice: a check without an answer may have been
/// charged, and it is the caller who knows whether to ask again.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    pub(super) patience: Patience,
    clock: Clock,
    stream: Option<UnixStream>,
    /// Attempts to connect that failed in a row; the last one's error, and until when no other is made.
    failures: u32,
    away: Option<(io::Error, Instant)>,
    /// Commands written here and not yet to the socket.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// How much of `incoming` has been handed out.
    taken: usize,
    waiting: usize,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// Nobody listens there, or not in time.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::connect_with(path, Patience::default())
    }

    /// Connects with time-outs of the caller's choice.
    ///
    /// # Errors
    /// Nobody listens there, or not in time.
    pub fn connect_with(path: impl AsRef<Path>, patience: Patience) -> Result<Self, ClientError> {
        let mut client = Self {
            path: path.as_ref().to_owned(),
            patience,
            clock: Clock::start(),
            stream: None,
            failures: 0,
            away: None,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            taken: 0,
            waiting: 0,
        };
        client.stream()?;
        Ok(client)
    }

    /// Checks `key` against `policy` and charges `cost` if it passes. A cost of 0 peeks.
    ///
    /// # Errors
    /// No answer, or the daemon knows no such policy.
    pub fn check(&mut self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::check(policy, key.as_ref(), cost)).and_then(Decision::read)
    }

    /// Tells what [`Self::check`] would answer, and charges nothing.
    ///
    /// # Errors
    /// As for [`Self::check`].
    pub fn peek(&mut self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::peek(policy, key.as_ref(), cost)).and_then(Decision::read)
    }

    /// Gives back a cost that was charged. It never lifts what remains above the limit.
    ///
    /// # Errors
    /// No answer, or the store did not take it.
    pub fn refund(&mut self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<(), ClientError> {
        self.ask(request::refund(policy, key.as_ref(), cost)).map(drop)
    }

    /// Ends a slot of a concurrent limit ([`Decision::slot`]).
    ///
    /// # Errors
    /// No answer, or there is no such slot: its time is over, or it was released before.
    pub fn release(&mut self, policy: &str, key: impl AsRef<[u8]>, slot: &str) -> Result<(), ClientError> {
        self.ask(request::release(policy, key.as_ref(), slot)).map(drop)
    }

    /// Forgets `key` under `policy`, fleet-wide.
    ///
    /// # Errors
    /// No answer, or the store did not take it.
    pub fn reset(&mut self, policy: &str, key: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.ask(request::reset(policy, key.as_ref())).map(drop)
    }

    /// Sends any command and waits for its answer. Answers to commands sent before are dropped.
    ///
    /// # Errors
    /// No answer, or an error reply ([`ClientError::Refused`]).
    pub fn command(&mut self, words: &[&[u8]]) -> Result<Reply, ClientError> {
        self.ask(|out| write_request(out, words))
    }

    pub(super) fn ask(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Reply, ClientError> {
        while self.waiting > 0 {
            match self.receive() {
                Ok(_) | Err(ClientError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.queue(write)?;
        self.receive()
    }

    /// Queues a command without waiting; [`Self::receive`] brings the answers in the same order.
    /// Commands leave together, at the latest with the next `receive`.
    ///
    /// # Errors
    /// The daemon cannot be reached, or does not read what was sent.
    pub fn send(&mut self, words: &[&[u8]]) -> Result<(), ClientError> {
        self.queue(|out| write_request(out, words))
    }

    fn queue(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), ClientError> {
        const ENOUGH: usize = 16 << 10;
        self.stream()?;
        write(&mut self.outgoing);
        self.waiting += 1;
        if self.outgoing.len() >= ENOUGH { self.flush() } else { Ok(()) }
    }

    /// The answer to the oldest command that has none.
    ///
    /// # Errors
    /// No answer, or an error reply ([`ClientError::Refused`]).
    pub fn receive(&mut self) -> Result<Reply, ClientError> {
        if self.waiting == 0 {
            return Err(ClientError::NothingSent);
        }
        self.flush()?;
        let reply = self.read_reply()?;
        self.waiting -= 1;
        ClientError::unless_refused(reply)
    }

    /// Commands whose answers have not been received.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let outgoing = std::mem::take(&mut self.outgoing);
        let written = self.stream()?.write_all(&outgoing);
        self.outgoing = outgoing;
        self.outgoing.clear();
        written.map_err(|error| self.lose(error))
    }

    fn read_reply(&mut self) -> Result<Reply, ClientError> {
        let mut deadline: Option<Instant> = None;
        loop {
            match Reply::parse(&self.incoming[self.taken..]) {
                Ok(Some((reply, len))) => {
                    self.taken += len;
                    if deadline.is_some() {
                        let answer = self.patience.answer;
                        self.stream()?.set_read_timeout(Some(answer)).map_err(|error| self.lose(error))?;
                    }
                    return Ok(reply);
                }
                Ok(None) => {}
                Err(error) => {
                    self.hang_up();
                    return Err(ClientError::Garbled { path: self.path.clone(), error });
                }
            }
            self.incoming.drain(..self.taken);
            self.taken = 0;
            self.read_part(&mut deadline).map_err(|error| self.lose(error))?;
        }
    }

    /// Reads once. The first read may take the whole patience; if it brings only a part of the answer,
    /// the others share what is left.
    fn read_part(&mut self, deadline: &mut Option<Instant>) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let now = self.clock.now();
        match *deadline {
            None => {
                let patience = u64::try_from(self.patience.answer.as_micros()).unwrap_or(u64::MAX);
                *deadline = Some(now + Micros(patience));
            }
            Some(deadline) => {
                let left = deadline.since(now).0;
                if left == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                stream.set_read_timeout(Some(Duration::from_micros(left)))?;
            }
        }
        let mut part = [0; 16 << 10];
        match stream.read(&mut part)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the daemon")),
            len => {
                self.incoming.extend_from_slice(&part[..len]);
                Ok(())
            }
        }
    }

    /// The open connection, or a new one.
    fn stream(&mut self) -> Result<&mut UnixStream, ClientError> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open().map_err(|error| ClientError::Unreachable { path: self.path.clone(), error })?,
        };
        Ok(self.stream.insert(stream))
    }

    /// A new connection, unless the last attempt failed a moment ago.
    fn open(&mut self) -> io::Result<UnixStream> {
        if let Some((error, _)) = self.away.as_ref().filter(|(_, until)| self.clock.now() < *until) {
            return Err(again(error));
        }
        let opened = open(&self.path, self.patience);
        match &opened {
            Ok(_) => (self.failures, self.away) = (0, None),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let micros = u64::try_from(rest(self.failures).as_micros()).unwrap_or(u64::MAX);
                self.away = Some((again(error), self.clock.now() + Micros(micros)));
            }
        }
        opened
    }

    fn lose(&mut self, error: io::Error) -> ClientError {
        self.hang_up();
        let path = self.path.clone();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::TimedOut { path, after: self.patience.answer }
            }
            _ => ClientError::Broken { path, error },
        }
    }

    fn hang_up(&mut self) {
        self.stream = None;
        self.outgoing.clear();
        self.incoming.clear();
        self.taken = 0;
        self.waiting = 0;
    }
}

/// Connects within the patience. `std` has no time-out for Unix sockets, and a hanging daemon's full
/// queue blocks for ever: so a thread tries, and is left behind if it takes too long.
fn open(path: &Path, patience: Patience) -> io::Result<UnixStream> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::Builder::new()
        .name("rationd-connect".into())
        .spawn(move || drop(sender.send(UnixStream::connect(path))))?;
    let stream = receiver.recv_timeout(patience.connect).map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("not accepted within {:?}", patience.connect))
    })??;
    stream.set_read_timeout(Some(patience.answer))?;
    stream.set_write_timeout(Some(patience.answer))?;
    Ok(stream)
}
