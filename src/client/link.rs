//! The blocking client: one connection to a daemon, and the commands over it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use super::backoff::{again, backoff};
use super::{ClientError, Decision, Reply, request, write_request};
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};

/// How long a client waits.
///
/// ```
/// use std::time::Duration;
///
/// use rationd::client::{Client, Timeouts};
///
/// let hasty = Timeouts { answer: Duration::from_millis(100), ..Timeouts::default() };
/// assert_eq!(hasty.connect, Duration::from_secs(1));
/// assert!(Client::connect_with("/nowhere/rationd.sock", hasty).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection. A daemon accepts at once, so only one that hangs takes longer.
    pub connect: Duration,
    /// For a complete answer. Writing a command may take as long again, because a daemon that hangs reads nothing.
    pub answer: Duration,
}

impl Default for Timeouts {
    /// One second each. A check waits at most 50 ms for the store unless configured otherwise.
    fn default() -> Self {
        Self { connect: Duration::from_secs(1), answer: Duration::from_secs(1) }
    }
}

/// A connection to a daemon's socket, for one thread at a time; give each thread its own.
///
/// A timeout closes the connection, since a late answer would be taken for that of the next command. The next command
/// opens a new connection. If that fails, commands fail at once for 25 to 75 ms; each further failure doubles that
/// time, up to 200 to 600 ms. No command is ever sent twice: a check without an answer may have been charged, and
/// only the caller knows whether to ask again.
///
/// ```
/// use rationd::client::Client;
///
/// let socket = "/run/rationd/rationd.sock";
/// # rationd::example::run(|socket| {
/// let mut rations = Client::connect(socket)?;
/// let decision = rations.check("api", "user:42", 5)?; // of 100 tokens a day
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining, 95);
/// # Ok(()) });
/// ```
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    pub(super) timeouts: Timeouts,
    clock: Clock,
    stream: Option<UnixStream>,
    /// Failed attempts to connect in a row; the last error, and until when no other attempt is made.
    failures: u32,
    away: Option<(io::Error, Instant)>,
    /// Commands that were not written to the socket yet.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// How much of `incoming` was parsed.
    taken: usize,
    waiting: usize,
}

impl Client {
    /// Connects to the socket at `path`, within a second.
    ///
    /// ```no_run
    /// let rations = rationd::client::Client::connect("/run/rationd/rationd.sock")?;
    /// # Ok::<(), rationd::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`]: no daemon listens there, this user may not connect, or it took too long.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::connect_with(path, Timeouts::default())
    }

    /// Connects with timeouts of the caller's choice.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rationd::client::{Client, Timeouts};
    ///
    /// let hasty = Timeouts { answer: Duration::from_millis(100), ..Timeouts::default() };
    /// let rations = Client::connect_with("/run/rationd/rationd.sock", hasty)?;
    /// # Ok::<(), rationd::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_with(path: impl AsRef<Path>, timeouts: Timeouts) -> Result<Self, ClientError> {
        let mut client = Self {
            path: path.as_ref().to_owned(),
            timeouts,
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

    /// Asks whether a request for `key` of `cost` tokens is admitted under `policy`. If it is, the tokens are
    /// charged; a cost of 0 charges nothing.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// assert_eq!(rations.check("api", "user:42", 5)?.remaining, 95);
    /// assert_eq!(rations.check("api", "user:42", 5)?.remaining, 90);
    /// assert_eq!(rations.check("api", "user:43", 5)?.remaining, 95);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// No answer, or the daemon does not know the policy ([`ClientError::Refused`]). A denial is no error.
    pub fn check(&mut self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::check(policy, key.as_ref(), cost)).and_then(Decision::read)
    }

    /// Asks for the decision of [`Self::check`], but charges nothing.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// assert!(rations.peek("api", "user:42", 100)?.is_allowed());
    /// assert!(!rations.peek("api", "user:42", 101)?.is_allowed());
    /// assert_eq!(rations.peek("api", "user:42", 0)?.remaining, 100);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As for [`Self::check`].
    pub fn peek(&mut self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, ClientError> {
        self.ask(request::peek(policy, key.as_ref(), cost)).and_then(Decision::read)
    }

    /// Gives back a cost that was charged, for example after a request that failed. What is left never exceeds the
    /// limit.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// rations.check("api", "user:42", 30)?;
    /// rations.refund("api", "user:42", 10)?;
    /// assert_eq!(rations.peek("api", "user:42", 0)?.remaining, 80);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// No answer, or the daemon refused: it does not know the policy, the policy accepts no refunds (`refunds =
    /// false`) or has a concurrent limit, or the store has not answered in time, and may still execute the refund.
    pub fn refund(&mut self, policy: &str, key: impl AsRef<[u8]>, cost: u64) -> Result<(), ClientError> {
        self.ask(request::refund(policy, key.as_ref(), cost)).map(drop)
    }

    /// Releases a slot of a concurrent limit, by the id in the check's answer ([`Decision::slot`]). A slot also ends
    /// with the connection over which it was taken, and after the limit's period.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// let slot = rations.check("jobs", "tenant:7", 1)?.slot.ok_or("denied")?; // of "2/30s concurrent"
    /// assert_eq!(rations.check("jobs", "tenant:7", 0)?.remaining, 1);
    /// // … the job is done …
    /// rations.release("jobs", "tenant:7", &slot)?;
    /// assert_eq!(rations.check("jobs", "tenant:7", 0)?.remaining, 2);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// No answer, or the daemon refused: the slot has ended already, or another node granted it.
    pub fn release(&mut self, policy: &str, key: impl AsRef<[u8]>, slot: &str) -> Result<(), ClientError> {
        self.ask(request::release(policy, key.as_ref(), slot)).map(drop)
    }

    /// Resets `key` under `policy` at all nodes, as if it had spent nothing.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// rations.check("api", "user:42", 100)?;
    /// rations.reset("api", "user:42")?;
    /// assert_eq!(rations.peek("api", "user:42", 0)?.remaining, 100);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// No answer, or the daemon refused: this user is no administrator (`listen.admin_uids`; by default, root and the
    /// daemon's own user are), the daemon does not know the policy, the policy has a concurrent limit, or the store
    /// has not answered in time, and may still execute the reset.
    pub fn reset(&mut self, policy: &str, key: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.ask(request::reset(policy, key.as_ref())).map(drop)
    }

    /// Sends any command, given as its name and arguments, and waits for its answer. Answers to commands that were
    /// [sent](Self::send) before and not received are dropped.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// // Two keys, both charged or none; the answer begins with 1 where it is none.
    /// let words: [&[u8]; 8] = [b"RATION.MCHECK", b"2", b"api", b"user:42", b"1", b"api", b"tenant:7", b"1"];
    /// let reply = rations.command(&words)?;
    /// assert_eq!(reply.as_array().and_then(|fields| fields[0].as_integer()), Some(0));
    /// # Ok(()) });
    /// ```
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

    /// Pipelines a command: it is queued, and [`Self::receive`] returns the answers in the order of the commands.
    /// Queued commands are written together, with the next `receive` or when they reach 16 KiB.
    ///
    /// ```
    /// use rationd::client::Decision;
    ///
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// for key in [b"user:1", b"user:2", b"user:3"] {
    ///     rations.send(&[b"RATION.CHECK", b"api", key])?;
    /// }
    /// assert_eq!(rations.waiting(), 3);
    /// while rations.waiting() > 0 {
    ///     let decision = Decision::from_reply(&rations.receive()?).ok_or("another kind of daemon")?;
    ///     assert!(decision.is_allowed());
    /// }
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// The daemon cannot be reached, or does not read. All answers that were still expected are lost then.
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

    /// Waits for the answer to the oldest command that was [sent](Self::send) and is not answered yet.
    ///
    /// ```
    /// use rationd::client::{ClientError, Reply};
    ///
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// rations.send(&[b"PING"])?;
    /// assert_eq!(rations.receive()?, Reply::Simple("PONG".to_owned()));
    /// assert!(matches!(rations.receive(), Err(ClientError::NothingSent)));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// No command waits for an answer, none came in time, or it is an error reply. An error reply
    /// ([`ClientError::Refused`]) concerns only its own command, and the next answers can still be received.
    pub fn receive(&mut self) -> Result<Reply, ClientError> {
        if self.waiting == 0 {
            return Err(ClientError::NothingSent);
        }
        self.flush()?;
        let reply = self.read_reply()?;
        self.waiting -= 1;
        ClientError::unless_refused(reply)
    }

    /// How many commands were sent whose answers were not received yet. It is 0 after the connection has ended,
    /// because those answers will never come.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// assert_eq!(rations.waiting(), 0);
    /// rations.send(&[b"PING"])?;
    /// assert_eq!(rations.waiting(), 1);
    /// # Ok(()) });
    /// ```
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
                        let answer = self.timeouts.answer;
                        self.stream()?.set_read_timeout(Some(answer)).map_err(|error| self.lose(error))?;
                    }
                    return Ok(reply);
                }
                Ok(None) => {}
                Err(error) => {
                    self.hang_up();
                    return Err(ClientError::Protocol { path: self.path.clone(), error });
                }
            }
            self.incoming.drain(..self.taken);
            self.taken = 0;
            self.read_part(&mut deadline).map_err(|error| self.lose(error))?;
        }
    }

    /// Reads once. The first read may take the whole timeout of an answer. If it brings only a part of the answer,
    /// further reads share what is left of the timeout.
    fn read_part(&mut self, deadline: &mut Option<Instant>) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let now = self.clock.now();
        match *deadline {
            None => {
                let timeout = u64::try_from(self.timeouts.answer.as_micros()).unwrap_or(u64::MAX);
                *deadline = Some(now + Micros(timeout));
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

    /// A new connection, unless the backoff after a failure lasts.
    fn open(&mut self) -> io::Result<UnixStream> {
        if let Some((error, _)) = self.away.as_ref().filter(|(_, until)| self.clock.now() < *until) {
            return Err(again(error));
        }
        let opened = open(&self.path, self.timeouts);
        match &opened {
            Ok(_) => (self.failures, self.away) = (0, None),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let micros = u64::try_from(backoff(self.failures).as_micros()).unwrap_or(u64::MAX);
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
                ClientError::TimedOut { path, after: self.timeouts.answer }
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

/// Connects within the timeouts. `std` has no timeout for Unix sockets, and connecting to a hanging daemon with a
/// full queue blocks forever. So a separate thread connects, and is abandoned if it takes too long.
fn open(path: &Path, timeouts: Timeouts) -> io::Result<UnixStream> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::Builder::new()
        .name("rationd-connect".into())
        .spawn(move || drop(sender.send(UnixStream::connect(path))))?;
    let stream = receiver.recv_timeout(timeouts.connect).map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("not accepted within {:?}", timeouts.connect))
    })??;
    stream.set_read_timeout(Some(timeouts.answer))?;
    stream.set_write_timeout(Some(timeouts.answer))?;
    Ok(stream)
}
