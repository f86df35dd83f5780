//! One connection on its data thread: bytes in, commands run, bytes out, nothing in between.
//!
//! Reads into the thread's buffer, parses in place, collects all replies of the batch and writes them
//! at once. Owns memory only while something is unfinished: a part of a command, a transaction, replies
//! that the peer has not taken. Many clients write a whole pipeline before they read, so replies are kept
//! as far as the budget allows; only beyond it nothing more is read or run. Ends where a peer then reads
//! nothing for too long, or a request stays half. Knows no command.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::admission::ConnectionGuard;
use super::arrivals::Arrivals;
use super::budget::{Account, FLOOR};
use super::crowd::Place;
use super::server_state::ServerState;
use super::session::{Batch, Session};
use super::spool::Spool;
use super::stream::ClientStream;
use super::thread::{BATCH, Scratch, Worker};
use crate::core::time::Instant;
use crate::wire::resp::{Parser, ProtocolError};

/// Whoever lets no more than this wait may take all the time in the world to read it.
const LENIENT: usize = 1 << 20;

/// What a client is told whose request is half, and for whose rest there is no memory.
const NO_ROOM: &str = "this daemon's clients keep as much as they may: no memory is left for so long a request";

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
pub struct Connection<S> {
    stream: S,
    pass: ConnectionGuard,
    session: Session,
    intake: Intake,
    /// Replies that the peer has not taken.
    unsent: Spool,
    account: Account,
    /// Where it awaits answers of the store.
    place: Place,
    /// When what waits while it is not read on had come, and when that is to be counted.
    arrivals: Arrivals,
    recount: Option<Pin<Box<Sleep>>>,
    /// Rings when a peer that has too much wait has read nothing for too long.
    stall: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// When what is half by now must be whole; `None`: nothing is.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Input that is not yet used up.
#[derive(Debug, Default)]
struct Intake {
    parser: Parser,
    pending: Vec<u8>,
    /// `pending` may hold whole commands: there was no room for their replies.
    halted: bool,
    /// The next command may ask the store however late it is.
    asks_late: bool,
    /// Something was understood.
    is_begun: bool,
    /// The first line was HTTP's: nothing is used up.
    is_http: bool,
}

impl<S: ClientStream> Connection<S> {
    /// A connection that was let in. `account`: what it may keep; `place`: what it may await.
    #[must_use]
    pub fn new(stream: S, pass: ConnectionGuard, account: Account, place: Place) -> Self {
        let session = Session::new(pass.id, pass.uid.unwrap_or(u32::MAX), pass.mailbox.clone());
        Self {
            stream,
            pass,
            session,
            intake: Intake::default(),
            unsent: Spool::default(),
            account,
            place,
            arrivals: Arrivals::default(),
            recount: None,
            stall: None,
            ended: false,
            deadline: None,
        }
    }

    /// Serves it to its end.
    pub async fn serve(mut self, hub: Arc<ServerState>, worker: Arc<Worker>) {
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

    fn poll_turn(&mut self, cx: &mut Context<'_>, hub: &Arc<ServerState>, worker: &Worker) -> Poll<Turn> {
        self.pass.mailbox.listen(cx.waker(), Some(&worker.reveille));
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
            let waits = self.waits();
            self.account.settle(waits);
            self.place.note(self.session.outbox().waiting());
            if self.session.outbox().is_ready() {
                return Poll::Ready(Turn::Yield);
            }
            let told = self.unsent.is_empty() && self.session.outbox().is_empty();
            let last = self.ended || self.session.is_closing();
            let idle = !self.intake.halted && matches!(input, Poll::Pending);
            if told && ((last && !self.intake.halted) || (idle && hub.doors.is_stopping())) {
                return Poll::Ready(Turn::Over);
            }
            match input {
                Poll::Ready(true) => return Poll::Ready(Turn::Yield),
                Poll::Ready(false) => {}
                Poll::Pending if self.intake.halted && self.has_room(hub) => {}
                Poll::Pending => {
                    if self.is_stalled(cx, hub) || self.is_overdue(cx, hub) {
                        return Poll::Ready(Turn::Over);
                    }
                    self.count_arrivals(cx, hub);
                    self.shrink(scratch);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Whether the rest of a request, or the end of a long transaction, is awaited for too long. Only the peer's own
    /// delay counts: not while its input is not read.
    fn is_overdue(&mut self, cx: &mut Context<'_>, hub: &ServerState) -> bool {
        let is_half = !self.intake.pending.is_empty() || self.session.queued() > KEEP;
        if !is_half || self.intake.halted || self.session.is_closing() || !self.has_room(hub) {
            self.deadline = None;
            return false;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(hub.doors.patience())));
        deadline.as_mut().poll(cx).is_ready()
    }

    fn collect_answers(&mut self, hub: &ServerState, scratch: &mut Scratch) {
        self.pass.mailbox.take(&mut scratch.mail);
        for (seq, answer) in scratch.mail.drain(..) {
            let bytes = answer.bytes();
            let has_room = bytes < FLOOR || {
                let waits = self.waits();
                self.account.covers(waits + bytes)
            };
            self.session.fill(seq, answer, has_room);
        }
        if self.session.outbox().is_ready() {
            let now = hub.node.clock.now();
            self.session.outbox().release(now, &mut scratch.direct, BATCH, &mut scratch.tally);
        }
    }

    /// Bytes that are kept for the peer.
    fn waits(&mut self) -> usize {
        let half = if self.intake.halted { 0 } else { self.intake.pending.len() };
        self.unsent.len() + self.session.outbox().held_back() + self.session.queued() + half
    }

    /// Runs what is there to run. Ready: something was done, and whether it was a full buffer.
    /// Pending: nothing can be done before a wake-up.
    fn poll_input(
        &mut self,
        cx: &mut Context<'_>,
        hub: &Arc<ServerState>,
        scratch: &mut Scratch,
    ) -> io::Result<Poll<bool>> {
        if scratch.direct.len() >= BATCH {
            return Ok(Poll::Ready(true));
        }
        if self.session.is_closing() || !self.has_room(hub) {
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
            let len = self.stream.read_at_once(buffer.initialize_unfilled());
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

    fn run_pending(&mut self, hub: &Arc<ServerState>, scratch: &mut Scratch, now: Instant) {
        let mut pending = std::mem::take(&mut self.intake.pending);
        let used = self.run(hub, scratch, now, &pending);
        pending.drain(..used);
        self.intake.pending = pending;
    }

    /// Runs the whole commands in `input`, and returns how much of it they were.
    fn run(&mut self, hub: &Arc<ServerState>, scratch: &mut Scratch, now: Instant, input: &[u8]) -> usize {
        let policies = hub.policies.load();
        let Scratch { direct, rules, outgoing, tally, .. } = scratch;
        let mut batch = Batch { now, came: now, hub, policies: &policies, rules, outgoing, tally, direct };
        let (intake, session) = (&mut self.intake, &mut self.session);
        let unsent = self.unsent.len();
        let mut kept = unsent + session.outbox().held_back() + batch.direct.len();
        let mut used = 0;
        (intake.halted, intake.asks_late) = (false, false);
        while (session.is_running() || used < input.len()) && !session.is_closing() {
            let came = self.arrivals.came(used).filter(|_| !session.is_running());
            let is_late = came.is_some_and(|came| now >= came + hub.node.timeout);
            if batch.direct.len() >= BATCH
                || !may_run(session, &self.place, is_late)
                || !has_room(session, &mut self.account, kept)
            {
                (intake.halted, intake.asks_late) = (true, session.is_running());
                break;
            }
            batch.came = came.unwrap_or(now);
            let mark = session.outbox().mark(batch.direct);
            if session.is_running() {
                session.go_on(&mut batch);
            } else {
                match intake.parser.parse(&input[used..]) {
                    Ok(None) => break,
                    Err(ProtocolError::Http) if !intake.is_begun => {
                        intake.is_http = true;
                        break;
                    }
                    Ok(Some(len)) => {
                        let args = intake.parser.args(&input[used..]);
                        if is_late && !self.place.has_room(session.outbox().waiting()) && !session.is_told_late(args) {
                            (intake.halted, intake.asks_late) = (true, true);
                            break;
                        }
                        // An HTTP client may send empty lines before its first request.
                        intake.is_begun |= !args.is_empty();
                        session.run(&mut batch, args);
                        used += len;
                    }
                    Err(problem) => session.break_off(&mut batch, &problem),
                }
            }
            let before = std::mem::replace(&mut kept, unsent + session.outbox().held_back() + batch.direct.len());
            if kept >= before + FLOOR && !self.account.covers(kept + session.queued()) {
                session.withhold(&mut batch, mark);
                kept = unsent + session.outbox().held_back() + batch.direct.len();
            }
        }
        self.arrivals.pass(used);
        let half = if intake.halted { 0 } else { input.len() - used };
        if half >= FLOOR && !session.is_closing() && !self.account.has_room(kept + session.queued() + half) {
            session.break_off(&mut batch, &NO_ROOM);
        }
        if used > 0 && session.queued() <= KEEP {
            self.deadline = None;
        }
        let at_once = std::mem::take(&mut batch.tally.at_once);
        if at_once > 0 {
            // One reading for all: each waited until the last of the batch was decided.
            batch.tally.durations.add(hub.node.clock.now().since(now), at_once);
        }
        if session.is_closing() { input.len() } else { used }
    }

    fn has_room(&mut self, hub: &ServerState) -> bool {
        let kept = self.unsent.len() + self.session.outbox().held_back();
        let came = self.arrivals.came(0).filter(|_| !self.intake.asks_late);
        let is_late = came.is_some_and(|came| hub.node.clock.now() >= came + hub.node.timeout);
        may_run(&mut self.session, &self.place, is_late) && has_room(&mut self.session, &mut self.account, kept)
    }

    /// Counts what waits while this is not read on because as much of the store is awaited as may be. What has waited
    /// for as long as it may is then run all the same: what the store must be asked for is turned away.
    fn count_arrivals(&mut self, cx: &mut Context<'_>, hub: &ServerState) {
        if self.place.has_room(self.session.outbox().waiting()) {
            self.recount = None;
            return;
        }
        let (now, patience) = (hub.node.clock.now(), hub.node.timeout);
        if now >= self.arrivals.due() {
            let unread = self.stream.unread();
            self.arrivals.count(now, self.intake.pending.len() as u64 + unread, patience);
        }
        let rest = || tokio::time::sleep(Duration::from_micros(self.arrivals.due().since(now).0));
        let timer = self.recount.get_or_insert_with(|| Box::pin(rest()));
        if timer.as_mut().poll(cx).is_ready() {
            timer.set(rest());
            let _ = timer.as_mut().poll(cx);
        }
    }

    /// Writes what is there; what the peer does not take now is kept, and a wake-up arranged.
    fn send(&mut self, cx: &mut Context<'_>, mut direct: &[u8]) -> io::Result<()> {
        loop {
            let kept = !self.unsent.is_empty();
            let rest = if kept { self.unsent.front() } else { direct };
            if rest.is_empty() {
                return Ok(());
            }
            match self.stream.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    self.stall = None;
                    if kept {
                        self.unsent.take(len);
                    } else {
                        direct = &direct[len..];
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.stream.poll_write_ready(cx) {
                    Poll::Pending => {
                        self.unsent.push(direct);
                        return Ok(());
                    }
                    Poll::Ready(ready) => ready?,
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the peer has read nothing for too long while too much waits for it: more than a peer may leave
    /// unread, or what keeps its input from being read.
    fn is_stalled(&mut self, cx: &mut Context<'_>, hub: &ServerState) -> bool {
        let (bytes, limit) = (self.unsent.len(), hub.doors.stall_after());
        if bytes <= LENIENT && !(bytes > 0 && self.intake.halted && may_run(&mut self.session, &self.place, false)) {
            self.stall = None;
            return false;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if stall.as_mut().poll(cx).is_pending() {
            return false;
        }
        hub.doors.note_stalled();
        let uid = self.pass.uid;
        tracing::warn!(
            uid,
            bytes,
            "a client is closed: it read nothing for {limit:?} while so many bytes of replies waited; shorter pipelines help"
        );
        true
    }

    /// Gives memory back that a busy moment took.
    fn shrink(&mut self, scratch: &mut Scratch) {
        if self.intake.pending.is_empty() && self.intake.pending.capacity() > KEEP {
            self.intake.pending = Vec::new();
        }
        self.intake.parser.shrink();
        scratch.shrink();
    }
}

/// Whether nothing is awaited that must come before the next command. What is late awaits nothing.
fn may_run(session: &mut Session, place: &Place, is_late: bool) -> bool {
    (is_late || place.has_room(session.outbox().waiting())) && !session.is_asking()
}

/// Whether there is room for one more reply beside the bytes that are kept. If not because of what a transaction
/// has queued, that is given up: its client may write all of it before it reads.
fn has_room(session: &mut Session, account: &mut Account, kept: usize) -> bool {
    let queued = session.queued();
    account.has_room(kept + queued) || (session.is_running() && kept < FLOOR) || (queued > kept && session.give_up())
}
