//! One connection to a server: sends commands, and delivers each reply to its sender, in order.
//!
//! A sender appends its command to a buffer. One task writes all that has gathered in one go, and delivers all
//! replies that one read has brought. So calls that leave in the same turn of the runtime share a write, those of one
//! kind even a command (`joined.rs`), and no call has a task or a timer of its own. A reply may take as long as the
//! connection lives; when `heart.rs` gives the connection up, all who wait learn that it is lost. Knows neither calls
//! nor breaker. Called by `link.rs`.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::evalsha::Loaded;
use super::frame::{self, Frame, Reply};
use super::heart::{ConnectionLost, Heart, Way};
use super::joined::{Answers, Joined};
use super::stream::Stream;
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};
use crate::store::script::Script;

/// Bytes that one read takes at most, unless a reply is longer.
const READ: usize = 16 << 10;

/// Reads in one turn of the task: some hundred replies, after which other tasks get a turn.
const READS: usize = 4;

/// Longest reply in bytes. The slot map of a large cluster takes a hundredth of that.
const LONGEST: usize = 64 << 20;

/// Size to which buffers are shrunk when they are empty.
const KEPT: usize = 256 << 10;

/// Lets the next command access a key whose slot is being migrated to this server.
pub(super) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// The answer to a command.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) reply: Reply<'a>,
    /// How many replicas have confirmed the write, where that was awaited.
    pub(crate) replicas: Option<i64>,
    /// How long the server took to answer, without the wait for a replica.
    pub(crate) took: Micros,
    /// When it came, and a replica had confirmed it where that was awaited. All replies of one read share one reading of the
    /// clock.
    pub(crate) at: Instant,
    /// It is one error for several calls: some of them may have been executed before that.
    pub(crate) is_error_of_several: bool,
}

impl<'a> Answer<'a> {
    /// One for which no replica was awaited, to a command that left at that time.
    fn of(reply: Reply<'a>, left: Instant, now: Instant) -> Self {
        Self { reply, replicas: None, took: now.since(left), at: now, is_error_of_several: false }
    }
}

/// A command, and what takes its answer.
pub(crate) trait Pending: Send {
    /// Appends the command.
    fn write(&self, line: &mut Vec<u8>);

    /// The script that it calls, where that is not loaded on every new connection: it must be loaded before.
    fn unusual(&self) -> Option<&'static Script> {
        None
    }

    /// Adds it to those that will be one command, in place of [`Self::write`]; false where it is none of them.
    fn join(&self, _joined: &mut Joined) -> bool {
        false
    }

    /// Takes the answer, or the news that the connection broke.
    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, ConnectionLost>);
}

/// An awaited reply.
enum Awaited {
    /// To be discarded.
    Nobody,
    /// Of a command that was sent at this time.
    One(Instant, Box<dyn Pending>),
    /// One reply to so many of the next ones, which are one command.
    Together(usize),
    /// To one of several commands whose replies are delivered together: so many are still missing.
    Several(usize, Vec<Value>, oneshot::Sender<Vec<Value>>),
}

/// The sending side of a connection.
pub(super) struct Wire {
    clock: Clock,
    /// Calls about several keys may be one command.
    joins: AtomicBool,
    buffer: Mutex<SendBuffer>,
}

/// Commands that the task has not taken yet.
#[derive(Default)]
struct SendBuffer {
    bytes: Vec<u8>,
    awaited: VecDeque<Awaited>,
    /// Calls whose command is not in `bytes` yet; they are the last of those awaited.
    joined: Joined,
    loaded: Loaded,
    /// Wakes the task, if it sleeps.
    sleeper: Option<Waker>,
    ended: bool,
}

impl SendBuffer {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.joined.count() == 0
    }

    /// Adds a command to those that will be sent as one, if it can share a command with them.
    fn join(&mut self, pending: &dyn Pending) -> bool {
        let joins = pending.join(&mut self.joined);
        if joins || self.joined.count() == 0 {
            return joins;
        }
        self.close();
        pending.join(&mut self.joined)
    }

    /// Writes the command that loads this script, where the connection has not loaded it. What it says is nobody's concern: where
    /// it is refused, the call is, too, and brings the script's source along.
    fn load(&mut self, script: &'static Script) {
        self.close();
        if self.loaded.load(&mut self.bytes, script) {
            self.awaited.push_back(Awaited::Nobody);
        }
    }

    /// Writes the gathered commands as one; commands that come after it are written behind it.
    fn close(&mut self) {
        let count = self.joined.count();
        self.joined.write(&mut self.bytes);
        if count > 1 {
            self.awaited.insert(self.awaited.len() - count, Awaited::Together(count));
        }
    }
}

impl Wire {
    /// A connection over `stream`, which lasts until `heart` ends or the stream breaks. In the second case `on_break`
    /// is called before any sender learns of it. Needs a tokio runtime.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        (heart, way): (Arc<Heart>, Way),
        clock: Clock,
        on_break: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let wire = Arc::new(Self { clock, joins: AtomicBool::new(false), buffer: Mutex::default() });
        let mut task = ConnectionTask {
            wire: wire.clone(),
            heart: heart.clone(),
            way,
            stream,
            writing: Vec::new(),
            written: 0,
            read: vec![0; READ],
            filled: 0,
            awaited: VecDeque::new(),
        };
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = heart.ended() => {}
                () = poll_fn(|cx| task.poll(cx)) => on_break(),
            }
        });
        wire
    }

    /// Sends a command at `now`, preceded by `ASKING` if asked for. Returns at once.
    pub(super) fn send(&self, now: Instant, asking: bool, pending: Box<dyn Pending>) {
        let mut buffer = self.lock();
        if buffer.ended {
            drop(buffer);
            return pending.handle_answer(Err(ConnectionLost));
        }
        if let Some(script) = pending.unusual() {
            buffer.load(script);
        }
        if asking {
            buffer.close();
            buffer.bytes.extend_from_slice(ASKING);
            buffer.awaited.push_back(Awaited::Nobody);
        }
        if asking || !self.joins() || !buffer.join(&*pending) {
            buffer.close();
            pending.write(&mut buffer.bytes);
        }
        buffer.awaited.push_back(Awaited::One(now, pending));
        wake(buffer);
    }

    /// Whether calls about several keys may be one command from now on.
    pub(super) fn set_joins(&self, joins: bool) {
        self.joins.store(joins, Relaxed);
    }

    /// Whether they may.
    pub(super) fn joins(&self) -> bool {
        self.joins.load(Relaxed)
    }

    /// Sends `count` commands, at least one, which are in `bytes`, and awaits all replies, in order.
    pub(super) async fn ask_all(&self, bytes: &[u8], count: usize) -> Result<Vec<Value>, ConnectionLost> {
        let (sender, replies) = oneshot::channel();
        {
            let mut buffer = self.lock();
            if buffer.ended {
                return Err(ConnectionLost);
            }
            buffer.close();
            buffer.bytes.extend_from_slice(bytes);
            buffer.awaited.push_back(Awaited::Several(count, Vec::with_capacity(count), sender));
            wake(buffer);
        }
        replies.await.map_err(|_| ConnectionLost)
    }

    fn lock(&self) -> MutexGuard<'_, SendBuffer> {
        // No code panics while it holds this lock, and the buffer would be consistent even if it did.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(mut buffer: MutexGuard<'_, SendBuffer>) {
    let sleeper = buffer.sleeper.take();
    drop(buffer);
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

/// The task of a connection. When it is dropped, all awaited replies are lost.
struct ConnectionTask {
    wire: Arc<Wire>,
    heart: Arc<Heart>,
    way: Way,
    stream: Box<dyn Stream>,
    writing: Vec<u8>,
    written: usize,
    read: Vec<u8>,
    /// So many bytes of `read` are filled and not parsed yet.
    filled: usize,
    awaited: VecDeque<Awaited>,
}

/// The connection cannot be used any more.
struct Broken;

impl ConnectionTask {
    /// Writes and reads what there is; ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..READS {
            let done = match self.poll_write(cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                written => written.is_ready(),
            };
            match self.poll_read(cx) {
                Poll::Ready(Err(Broken)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => continue,
                Poll::Pending => {}
            }
            let mut buffer = self.wire.lock();
            // When the socket takes no more bytes, the socket wakes this task, and senders need not.
            if !done || buffer.is_empty() {
                buffer.sleeper = done.then(|| cx.waker().clone());
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when all gathered commands are written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
                if !self.take() {
                    return Poll::Ready(Ok(()));
                }
            }
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.writing[self.written..]))? {
                0 => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
    }

    /// Takes the gathered commands; false when there are none.
    fn take(&mut self) -> bool {
        self.written = 0;
        self.writing.clear();
        self.writing.shrink_to(KEPT);
        let mut buffer = self.wire.lock();
        buffer.close();
        if buffer.bytes.is_empty() {
            return false;
        }
        std::mem::swap(&mut buffer.bytes, &mut self.writing);
        self.heart.handle_departures(self.way, buffer.awaited.len());
        self.awaited.append(&mut buffer.awaited);
        true
    }

    /// Reads once, and delivers the replies.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let mut room = ReadBuf::new(&mut self.read[self.filled..]);
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room));
        let brought = room.filled().len();
        if read.is_err() || brought == 0 {
            return Poll::Ready(Err(Broken));
        }
        self.filled += brought;
        Poll::Ready(self.hand_on())
    }

    /// Delivers the replies that are complete.
    fn hand_on(&mut self) -> Result<(), Broken> {
        let now = self.wire.clock.now();
        let (mut at, mut replies) = (0, 0);
        let ended = loop {
            match frame::read(&self.read[at..self.filled]) {
                Ok(Frame::Part) => break Ok(()),
                Ok(Frame::Push(length)) => at += length,
                Ok(Frame::Reply(length, reply)) => {
                    at += length;
                    // A reply that nobody awaits: every later reply would go to the wrong sender.
                    let Some(ended) = deliver(&mut self.awaited, &self.wire.joins, now, reply) else {
                        break Err(Broken);
                    };
                    replies += ended;
                }
                Err(frame::Malformed) => break Err(Broken),
            }
        };
        self.heart.handle_replies(self.way, replies);
        self.read.copy_within(at..self.filled, 0);
        self.filled -= at;
        if self.filled == self.read.len() {
            if self.filled >= LONGEST {
                return Err(Broken);
            }
            self.read.resize(2 * self.filled, 0);
        } else if self.filled == 0 && self.read.len() > KEPT {
            self.read.truncate(READ);
            self.read.shrink_to_fit();
        }
        ended
    }
}

/// Delivers a reply to the next sender, and returns how many of those awaited have ended with it; `None` when no reply
/// is awaited.
fn deliver(awaited: &mut VecDeque<Awaited>, joins: &AtomicBool, now: Instant, reply: Reply<'_>) -> Option<usize> {
    match awaited.front_mut()? {
        Awaited::Several(left, values, _) => {
            values.push(reply.into_value());
            *left -= 1;
            if *left > 0 {
                return Some(0);
            }
            if let Some(Awaited::Several(_, values, sender)) = awaited.pop_front() {
                // The receiver may have been dropped.
                let _ = sender.send(values);
            }
        }
        Awaited::Together(count) => {
            let count = *count;
            awaited.pop_front();
            let answers = Answers::read(reply, count);
            if answers.is_error_of_all() {
                // The server may have lost the script for several keys, which no single call brings along. So calls
                // leave one by one until the monitor has loaded it again.
                joins.store(false, Relaxed);
            }
            for place in 0..count {
                if let Some(Awaited::One(left, pending)) = awaited.pop_front() {
                    answers.with(count, place, |reply| {
                        let answer = Answer::of(reply, left, now);
                        pending.handle_answer(Ok(Answer { is_error_of_several: answers.is_error_of_all(), ..answer }));
                    });
                }
            }
            return Some(count + 1);
        }
        Awaited::Nobody | Awaited::One(..) => {
            if let Some(Awaited::One(left, pending)) = awaited.pop_front() {
                pending.handle_answer(Ok(Answer::of(reply, left, now)));
            }
        }
    }
    Some(1)
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        let left = {
            let mut buffer = self.wire.lock();
            buffer.ended = true;
            std::mem::take(&mut buffer.awaited)
        };
        for awaited in self.awaited.drain(..).chain(left) {
            if let Awaited::One(_, pending) = awaited {
                pending.handle_answer(Err(ConnectionLost));
            }
        }
    }
}

#[cfg(test)]
mod tests;
