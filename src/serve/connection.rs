//! One connection on its data thread: reads bytes, has commands run, writes replies, without another task in between.
//!
//! It reads into the thread's buffer, parses in place, collects all replies of the batch and writes them at once. It
//! owns memory only while something is incomplete: a part of a command, a transaction, replies that the client has
//! not read. Many clients write a whole pipeline before they read, so replies are kept as long as the memory budget
//! allows; only beyond that the connection stops reading and running commands. It closes when the client then reads
//! nothing for too long, or leaves a request incomplete. Knows no command.

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
use super::caller::Caller;
use super::crowd::Place;
use super::server_state::ServerState;
use super::session::{Batch, Session};
use super::spool::Spool;
use super::stream::ClientStream;
use super::thread::{BATCH, Scratch, Worker};
use crate::core::time::Instant;
use crate::wire::resp::{Parser, ProtocolError};

/// A client with no more unread bytes than this may take any time to read them.
const LENIENT: usize = 1 << 20;

/// The error for a client whose request is incomplete when no memory is left for the rest.
const NO_ROOM: &str = "this daemon's clients keep as much as they may: no memory is left for so long a request";

/// Memory that an idle connection may keep.
const KEEP: usize = 4 << 10;

/// How a turn of the connection ended.
enum TurnEnd {
    /// All replies are sent, or no more can be: close.
    Over,
    /// There is more to do, but other connections get a turn first.
    Yield,
    /// The client speaks HTTP.
    Http,
}

/// What became of a client's input.
enum Input {
    /// There is more to run at once.
    Full,
    /// Some commands were run, and there may be more.
    Some,
    /// Nothing can be done before a wake-up, which is arranged.
    Awaited,
    /// It is not read, since too many replies or answers are awaited.
    Withheld,
}

/// One connection.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    pass: ConnectionGuard,
    session: Session,
    intake: Intake,
    /// Replies that the client has not taken.
    unsent: Spool,
    account: Account,
    /// Counts the answers of the store that this connection awaits.
    place: Place,
    /// When the unread bytes in the socket arrived.
    arrivals: Arrivals,
    recount: Option<Pin<Box<Sleep>>>,
    /// Fires when a client with too many unread bytes has read nothing for too long.
    stall: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// Fires when an incomplete request was not completed in time; `None` while no request is incomplete.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Input that no command has used yet.
#[derive(Debug, Default)]
struct Intake {
    parser: Parser,
    pending: Vec<u8>,
    /// `pending` may contain complete commands that were not run because there was no room for their replies.
    halted: bool,
    /// The next command may ask the store although it is late.
    asks_late: bool,
    /// At least one command was parsed.
    is_begun: bool,
    /// The first line was HTTP's. Its bytes are still in `pending`.
    is_http: bool,
}

impl<S: ClientStream> Connection<S> {
    /// A connection that was admitted. `account` bounds its memory, `place` the answers of the store that it may
    /// await.
    #[must_use]
    pub fn new(stream: S, pass: ConnectionGuard, account: Account, place: Place) -> Self {
        let session = Session::new(pass.id, Caller::of(pass.uid), pass.mailbox.clone());
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

    /// Serves the connection until it is closed.
    pub async fn serve(mut self, state: Arc<ServerState>, worker: Arc<Worker>) {
        loop {
            match std::future::poll_fn(|cx| self.poll_turn(cx, &state, &worker)).await {
                TurnEnd::Yield => tokio::task::yield_now().await,
                TurnEnd::Over => return self.session.end(&state),
                TurnEnd::Http => break,
            }
        }
        drop(worker);
        let Self { stream, pass, intake, .. } = self;
        super::http::serve(stream, intake.pending, pass, state).await;
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, state: &Arc<ServerState>, worker: &Worker) -> Poll<TurnEnd> {
        self.pass.mailbox.listen(cx.waker(), Some(&worker.wake_list));
        let mut scratch = worker.lock();
        let scratch = &mut *scratch;
        if self.arrivals.are_counted() {
            self.arrivals.excuse(state.node.clock.now(), state.node.timeout);
        }
        loop {
            scratch.direct.clear();
            self.collect_answers(state, scratch);
            let input = match self.poll_input(cx, state, scratch) {
                Ok(input) => input,
                Err(_) => return Poll::Ready(TurnEnd::Over),
            };
            state.node.flush(&mut scratch.outgoing);
            if self.intake.is_http {
                return Poll::Ready(TurnEnd::Http);
            }
            if self.send(cx, &scratch.direct).is_err() {
                return Poll::Ready(TurnEnd::Over);
            }
            let waits = self.waits();
            self.account.note_held(waits);
            self.place.note(self.session.replies().waiting());
            if self.session.replies().is_ready() {
                return Poll::Ready(TurnEnd::Yield);
            }
            let is_all_sent = self.unsent.is_empty() && self.session.replies().is_empty();
            let last = self.ended || self.session.is_closing();
            let idle = !self.intake.halted && matches!(input, Input::Awaited | Input::Withheld);
            if is_all_sent && ((last && !self.intake.halted) || (idle && state.admission.is_stopping())) {
                return Poll::Ready(TurnEnd::Over);
            }
            match input {
                Input::Full => return Poll::Ready(TurnEnd::Yield),
                Input::Some => {}
                // Sending may have made room for more input. This must be checked here, because no wake-up will come:
                // the stream took everything, so nothing waits for it to become writable.
                Input::Withheld if self.has_room(state) => {}
                Input::Awaited | Input::Withheld => {
                    if self.is_stalled(cx, state) || self.is_overdue(cx, state) {
                        return Poll::Ready(TurnEnd::Over);
                    }
                    self.count_arrivals(cx, state);
                    self.shrink(scratch);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Whether the client has left a request or a long transaction incomplete for too long, or has not said for as long who
    /// it is where it has to. Time in which its input
    /// is not read does not count, since that is not the client's delay.
    fn is_overdue(&mut self, cx: &mut Context<'_>, state: &ServerState) -> bool {
        let is_half =
            !self.intake.pending.is_empty() || self.session.queued() > KEEP || self.session.is_stranger(state);
        if !is_half || self.intake.halted || self.session.is_closing() || !self.has_room(state) {
            self.deadline = None;
            return false;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(state.admission.patience())));
        deadline.as_mut().poll(cx).is_ready()
    }

    fn collect_answers(&mut self, state: &ServerState, scratch: &mut Scratch) {
        self.pass.mailbox.take(&mut scratch.mail);
        for (seq, answer) in scratch.mail.drain(..) {
            let bytes = answer.bytes();
            let has_room = bytes < FLOOR || {
                let waits = self.waits();
                self.account.covers(waits + bytes)
            };
            self.session.fill(seq, answer, has_room);
        }
        if self.session.replies().is_ready() {
            let now = state.node.clock.now();
            self.session.replies().release(now, &mut scratch.direct, BATCH, &mut scratch.stats);
        }
    }

    /// Bytes that are kept in memory for this client.
    fn waits(&mut self) -> usize {
        let half = if self.intake.halted { 0 } else { self.intake.pending.len() };
        self.unsent.len() + self.session.replies().held_back() + self.session.queued() + half
    }

    /// Runs what there is to run.
    fn poll_input(
        &mut self,
        cx: &mut Context<'_>,
        state: &Arc<ServerState>,
        scratch: &mut Scratch,
    ) -> io::Result<Input> {
        if scratch.direct.len() >= BATCH {
            return Ok(Input::Full);
        }
        if self.session.is_closing() {
            return Ok(Input::Awaited);
        }
        if !self.has_room(state) {
            return Ok(Input::Withheld);
        }
        if self.intake.halted {
            self.run_pending(state, scratch, state.node.clock.now());
            return Ok(Input::Full);
        }
        if self.ended {
            return Ok(Input::Awaited);
        }
        let mut read = std::mem::take(&mut scratch.read);
        let mut buffer = ReadBuf::new(&mut read);
        let mut polled = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        if polled.is_pending() && state.admission.is_stopping() {
            let len = self.stream.read_at_once(buffer.initialize_unfilled());
            if len > 0 {
                buffer.advance(len);
                polled = Poll::Ready(Ok(()));
            }
        }
        let full = buffer.remaining() == 0;
        let result = match polled {
            Poll::Pending => Ok(Input::Awaited),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                self.ended = true;
                Ok(Input::Some)
            }
            Poll::Ready(Ok(())) => {
                let now = state.node.clock.now();
                if self.intake.pending.is_empty() {
                    let used = self.run(state, scratch, now, buffer.filled());
                    self.intake.pending.extend_from_slice(&buffer.filled()[used..]);
                } else {
                    self.intake.pending.extend_from_slice(buffer.filled());
                    self.run_pending(state, scratch, now);
                }
                Ok(if full { Input::Full } else { Input::Some })
            }
        };
        scratch.read = read;
        result
    }

    fn run_pending(&mut self, state: &Arc<ServerState>, scratch: &mut Scratch, now: Instant) {
        let mut pending = std::mem::take(&mut self.intake.pending);
        let used = self.run(state, scratch, now, &pending);
        pending.drain(..used);
        self.intake.pending = pending;
    }

    /// Runs the complete commands in `input`, and returns how many bytes they were.
    fn run(&mut self, state: &Arc<ServerState>, scratch: &mut Scratch, now: Instant, input: &[u8]) -> usize {
        let policies = state.policies.load();
        let Scratch { direct, rules, outgoing, stats, .. } = scratch;
        let mut batch = Batch { now, came: now, state, policies: &policies, rules, outgoing, stats, direct };
        let (intake, session) = (&mut self.intake, &mut self.session);
        let unsent = self.unsent.len();
        let mut kept = unsent + session.replies().held_back() + batch.direct.len();
        let mut used = 0;
        (intake.halted, intake.asks_late) = (false, false);
        while (session.is_running() || used < input.len()) && !session.is_closing() {
            let came = self.arrivals.came(used).filter(|_| !session.is_running());
            let is_late = came.is_some_and(|came| now >= came + state.node.timeout);
            if batch.direct.len() >= BATCH
                || !may_run(session, &self.place, is_late)
                || !has_room(session, &mut self.account, kept)
            {
                (intake.halted, intake.asks_late) = (true, session.is_running());
                break;
            }
            batch.came = came.unwrap_or(now);
            let mark = session.replies().mark(batch.direct);
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
                        if is_late && !self.place.has_room(session.replies().waiting()) && !session.answers_late(args) {
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
            let before = std::mem::replace(&mut kept, unsent + session.replies().held_back() + batch.direct.len());
            if kept >= before + FLOOR && !self.account.covers(kept + session.queued()) {
                session.withhold(&mut batch, mark);
                kept = unsent + session.replies().held_back() + batch.direct.len();
            }
        }
        self.arrivals.pass(used);
        let half = if intake.halted { 0 } else { input.len() - used };
        if half >= FLOOR && !session.is_closing() && !self.account.has_room(kept + session.queued() + half) {
            session.break_off(&mut batch, &NO_ROOM);
        }
        if used > 0 {
            // Many clients write a long pipeline to its end before they read.
            self.stall = None;
            if session.queued() <= KEEP {
                self.deadline = None;
            }
        }
        let at_once = std::mem::take(&mut batch.stats.at_once);
        if at_once > 0 {
            // One reading of the clock for the whole batch: each reply is sent when the last command is decided.
            batch.stats.durations.add(state.node.clock.now().since(now), at_once);
        }
        if session.is_closing() { input.len() } else { used }
    }

    fn has_room(&mut self, state: &ServerState) -> bool {
        let kept = self.unsent.len() + self.session.replies().held_back();
        let came = self.arrivals.came(0).filter(|_| !self.intake.asks_late);
        let is_late = came.is_some_and(|came| state.node.clock.now() >= came + state.node.timeout);
        may_run(&mut self.session, &self.place, is_late) && has_room(&mut self.session, &mut self.account, kept)
    }

    /// Records when unread bytes arrived, while the connection is not read because it awaits as many answers of the
    /// store as it may. A command that has waited for as long as it may is then run all the same, and denied if it
    /// needs the store.
    fn count_arrivals(&mut self, cx: &mut Context<'_>, state: &ServerState) {
        if self.place.has_room(self.session.replies().waiting()) {
            self.recount = None;
            return;
        }
        let (now, patience) = (state.node.clock.now(), state.node.timeout);
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

    /// Writes as much as the client takes. The rest is kept, and a wake-up arranged.
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

    /// Whether the client has neither read nor asked anything for too long, while it has either more unread bytes than
    /// allowed or so many that its input is not read.
    fn is_stalled(&mut self, cx: &mut Context<'_>, state: &ServerState) -> bool {
        let (bytes, limit) = (self.unsent.len(), state.admission.stall_after());
        if bytes <= LENIENT && !(bytes > 0 && self.intake.halted && may_run(&mut self.session, &self.place, false)) {
            self.stall = None;
            return false;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if stall.as_mut().poll(cx).is_pending() {
            return false;
        }
        state.admission.note_stalled();
        let uid = self.pass.uid;
        tracing::warn!(
            uid,
            bytes,
            "a client is closed: it read nothing for {limit:?} while so many bytes of replies waited; shorter pipelines help"
        );
        true
    }

    /// Frees memory that is no longer needed.
    fn shrink(&mut self, scratch: &mut Scratch) {
        if self.intake.pending.is_empty() && self.intake.pending.capacity() > KEEP {
            self.intake.pending = Vec::new();
        }
        self.intake.parser.shrink();
        scratch.shrink();
    }
}

/// Whether the next command may run: no answer is awaited that it depends on, and there is room to await another. A
/// late command is denied without waiting, so it needs no such room.
fn may_run(session: &mut Session, place: &Place, is_late: bool) -> bool {
    (is_late || place.has_room(session.replies().waiting())) && !session.is_asking()
}

/// Whether there is memory for one more reply. If the bytes of an open transaction are the reason why not, the
/// transaction is given up, because its client may write all of it before it reads.
fn has_room(session: &mut Session, account: &mut Account, kept: usize) -> bool {
    let queued = session.queued();
    account.has_room(kept + queued) || (session.is_running() && kept < FLOOR) || (queued > kept && session.give_up())
}
