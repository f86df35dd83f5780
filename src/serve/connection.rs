//! One connection on its data thread: bytes in, commands run, bytes out, nothing in between.
//!
//! Reads into the thread's buffer, parses in place, collects all replies of the batch and writes them
//! at once. Owns memory only while something is unfinished: a part of a command, replies that the
//! peer has not taken. Stops reading while too much waits to be sent. Knows no command.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;

use super::hub::{Hub, Pass};
use super::session::{Batch, Session};
use super::worker::{Scratch, Worker};
use crate::core::time::Instant;
use crate::wire::resp::{Parser, ProtocolError};

/// Most bytes that wait to be sent; beyond it nothing more is read or run.
pub const MAX_PENDING: usize = 256 << 10;

/// Most answers that wait for the store.
const MAX_WAITING: usize = 1_024;

/// Memory that an idle connection may keep.
const KEEP: usize = 4 << 10;

/// What a turn came to.
enum Turn {
    /// Everything is told, or nothing more can be: close.
    Over,
    /// There is more at once, but it is somebody else's turn.
    Yield,
    /// The peer speaks HTTP.
    Http,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    pass: Pass,
    session: Session,
    intake: Intake,
    /// Replies that the peer has not taken, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    ended: bool,
}

/// Input that is not yet used up.
#[derive(Debug, Default)]
struct Intake {
    parser: Parser,
    pending: Vec<u8>,
    /// `pending` may hold whole commands: there was no room for their replies.
    halted: bool,
    /// Something was understood.
    is_begun: bool,
    /// The first line was HTTP's: nothing is used up.
    is_http: bool,
}

impl Connection {
    /// A connection that was let in.
    #[must_use]
    pub fn new(stream: UnixStream, pass: Pass) -> Self {
        let session = Session::new(pass.id, pass.uid.unwrap_or(u32::MAX), pass.mailbox.clone());
        Self { stream, pass, session, intake: Intake::default(), unsent: Vec::new(), sent: 0, ended: false }
    }

    /// Serves it to its end.
    pub async fn serve(mut self, hub: Arc<Hub>, worker: Arc<Worker>) {
        loop {
            match std::future::poll_fn(|cx| self.poll_turn(cx, &hub, &worker)).await {
                Turn::Yield => tokio::task::yield_now().await,
                Turn::Over => return self.session.end(&hub),
                Turn::Http => break,
            }
        }
        drop(worker);
        let Self { stream, pass, intake, .. } = self;
        super::http::serve(stream, intake.pending, pass, hub).await;
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, hub: &Arc<Hub>, worker: &Worker) -> Poll<Turn> {
        self.pass.mailbox.listen(cx.waker());
        let mut scratch = worker.lock();
        let scratch = &mut *scratch;
        loop {
            scratch.direct.clear();
            self.collect_answers(hub, scratch);
            let input = match self.poll_input(cx, hub, scratch) {
                Ok(input) => input,
                Err(_) => return Poll::Ready(Turn::Over),
            };
            hub.node.flush(&mut scratch.outgoing);
            if self.intake.is_http {
                return Poll::Ready(Turn::Http);
            }
            if self.send(cx, &scratch.direct).is_err() {
                return Poll::Ready(Turn::Over);
            }
            let told = self.unsent.is_empty() && self.session.outbox().waiting() == 0;
            let last = self.ended || self.session.is_closing();
            let idle = !self.intake.halted && matches!(input, Poll::Pending);
            if told && ((last && !self.intake.halted) || (idle && hub.doors.is_stopping())) {
                return Poll::Ready(Turn::Over);
            }
            match input {
                Poll::Ready(true) => return Poll::Ready(Turn::Yield),
                Poll::Ready(false) => {}
                Poll::Pending if self.intake.halted && self.has_room() => {}
                Poll::Pending => {
                    self.shrink(scratch);
                    return Poll::Pending;
                }
            }
        }
    }

    fn collect_answers(&mut self, hub: &Hub, scratch: &mut Scratch) {
        self.pass.mailbox.take(&mut scratch.mail);
        if scratch.mail.is_empty() {
            return;
        }
        let now = hub.node.clock.now();
        let outbox = self.session.outbox();
        for (seq, answer) in scratch.mail.drain(..) {
            outbox.fill(seq, answer);
        }
        outbox.release(now, &mut scratch.direct, &mut scratch.tally);
    }

    /// Runs what is there to run. Ready: something was done, and whether it was a full buffer.
    /// Pending: nothing can be done before a wake-up.
    fn poll_input(&mut self, cx: &mut Context<'_>, hub: &Arc<Hub>, scratch: &mut Scratch) -> io::Result<Poll<bool>> {
        if self.session.is_closing() || !self.has_room() {
            return Ok(Poll::Pending);
        }
        if self.intake.halted {
            self.run_pending(hub, scratch, hub.node.clock.now());
            return Ok(Poll::Ready(true));
        }
        if self.ended {
            return Ok(Poll::Pending);
        }
        let mut read = std::mem::take(&mut scratch.read);
        let mut buffer = ReadBuf::new(&mut read);
        let mut polled = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        if polled.is_pending() && hub.doors.is_stopping() {
            let len = read_at_once(&self.stream, buffer.initialize_unfilled());
            if len > 0 {
                buffer.advance(len);
                polled = Poll::Ready(Ok(()));
            }
        }
        let full = buffer.remaining() == 0;
        let result = match polled {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                self.ended = true;
                Ok(Poll::Ready(false))
            }
            Poll::Ready(Ok(())) => {
                let now = hub.node.clock.now();
                if self.intake.pending.is_empty() {
                    let used = self.run(hub, scratch, now, buffer.filled());
                    self.intake.pending.extend_from_slice(&buffer.filled()[used..]);
                } else {
                    self.intake.pending.extend_from_slice(buffer.filled());
                    self.run_pending(hub, scratch, now);
                }
                Ok(Poll::Ready(full))
            }
        };
        scratch.read = read;
        result
    }

    fn run_pending(&mut self, hub: &Arc<Hub>, scratch: &mut Scratch, now: Instant) {
        let mut pending = std::mem::take(&mut self.intake.pending);
        let used = self.run(hub, scratch, now, &pending);
        pending.drain(..used);
        self.intake.pending = pending;
    }

    /// Runs the whole commands in `input`, and returns how much of it they were.
    fn run(&mut self, hub: &Arc<Hub>, scratch: &mut Scratch, now: Instant, input: &[u8]) -> usize {
        let policies = hub.policies.load();
        let Scratch { direct, rules, outgoing, tally, .. } = scratch;
        let mut batch = Batch { now, hub, policies: &policies, rules, outgoing, tally, direct };
        let (intake, session) = (&mut self.intake, &mut self.session);
        let waiting_to_be_sent = self.unsent.len() - self.sent;
        let mut used = 0;
        intake.halted = false;
        while used < input.len() && !session.is_closing() {
            let outbox = session.outbox();
            let pending = waiting_to_be_sent + batch.direct.len() + outbox.held_back();
            if pending >= MAX_PENDING || outbox.waiting() >= MAX_WAITING {
                intake.halted = true;
                break;
            }
            match intake.parser.parse(&input[used..]) {
                Ok(None) => break,
                Err(ProtocolError::Http) if !intake.is_begun => {
                    intake.is_http = true;
                    break;
                }
                Ok(Some(len)) => {
                    intake.is_begun = true;
                    session.run(&mut batch, intake.parser.args(&input[used..]));
                    used += len;
                }
                Err(problem) => session.break_off(&mut batch, &problem),
            }
        }
        let at_once = std::mem::take(&mut batch.tally.at_once);
        if at_once > 0 {
            // One reading for all: each waited until the last of the batch was decided.
            batch.tally.durations.add(hub.node.clock.now().since(now), at_once);
        }
        if session.is_closing() { input.len() } else { used }
    }

    fn has_room(&mut self) -> bool {
        let outbox = self.session.outbox();
        self.unsent.len() - self.sent + outbox.held_back() < MAX_PENDING && outbox.waiting() < MAX_WAITING
    }

    /// Writes what is there; what the peer does not take now is kept, and a wake-up arranged.
    fn send(&mut self, cx: &mut Context<'_>, direct: &[u8]) -> io::Result<()> {
        let mut written = 0;
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(direct);
            written = direct.len();
        }
        loop {
            let kept = !self.unsent.is_empty();
            let rest = if kept { &self.unsent[self.sent..] } else { &direct[written..] };
            if rest.is_empty() {
                self.unsent.clear();
                self.sent = 0;
                return Ok(());
            }
            match self.stream.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) if kept => self.sent += len,
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !kept {
                        self.unsent.extend_from_slice(&direct[written..]);
                        written = direct.len();
                    }
                    match self.stream.poll_write_ready(cx) {
                        Poll::Pending => return Ok(()),
                        Poll::Ready(ready) => ready?,
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives memory back that a busy moment took.
    fn shrink(&mut self, scratch: &mut Scratch) {
        if self.intake.pending.is_empty() && self.intake.pending.capacity() > KEEP {
            self.intake.pending = Vec::new();
        }
        if self.unsent.is_empty() && self.unsent.capacity() > KEEP {
            self.unsent = Vec::new();
        }
        self.intake.parser.shrink();
        scratch.shrink();
    }
}

/// What has come, though the runtime may not have noticed it yet; 0 for nothing, whatever the cause.
fn read_at_once(stream: &UnixStream, buffer: &mut [u8]) -> usize {
    let same = stream.as_fd().try_clone_to_owned().map(std::os::unix::net::UnixStream::from);
    same.and_then(|mut stream| stream.read(buffer)).unwrap_or(0)
}
