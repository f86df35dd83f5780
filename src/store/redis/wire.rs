//! One connection: commands leave by it, and replies come back to whoever awaits them, in order.
//!
//! Whoever sends appends bytes and lines up; one task writes all that has gathered at once, and hands on all replies
//! that one read has brought. So calls that leave in the same turn share a write, and none has a task or a timer of
//! its own. A reply may take as long as the connection lives: `heart.rs` says when it is given up, and then all who
//! wait learn it. Knows neither calls nor breaker. Called by `link.rs`.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::frame::{self, Frame, Reply};
use super::heart::{Heart, Lost, Way};
use super::stream::Stream;
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};

/// Bytes that one read brings at most, unless a reply is longer.
const READ: usize = 16 << 10;

/// Reads in one turn of the task: some hundred replies, after which others have theirs.
const READS: usize = 4;

/// Most bytes of one reply: the slots of a large cluster are a hundredth of it.
const LONGEST: usize = 64 << 20;

/// Of the buffers so much is kept when they are empty.
const KEPT: usize = 256 << 10;

/// What lets the next command pass to a key that is on its way here.
pub(super) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// The answer to a command.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) reply: Reply<'a>,
    /// Replicas that have it, when that was awaited.
    pub(crate) replicas: Option<i64>,
    /// What the server took to answer; the wait for a replica is not in it.
    pub(crate) took: Micros,
}

/// A command, and who awaits the answer.
pub(crate) trait Awaits: Send {
    /// Appends the command.
    fn write(&self, line: &mut Vec<u8>);

    /// It has come, or never will.
    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, Lost>);
}

/// In which order replies are awaited.
enum Awaited {
    /// Nobody awaits this one.
    Nobody,
    /// A command that left then.
    One(Instant, Box<dyn Awaits>),
    /// So many replies are still to come, for whom all are.
    Several(usize, Vec<Value>, oneshot::Sender<Vec<Value>>),
}

/// A connection as those who send see it.
pub(super) struct Wire {
    clock: Clock,
    desk: Mutex<Desk>,
}

/// What has yet to be taken by the task.
#[derive(Default)]
struct Desk {
    bytes: Vec<u8>,
    awaited: VecDeque<Awaited>,
    /// Who takes it, while it sleeps.
    sleeper: Option<Waker>,
    ended: bool,
}

impl Wire {
    /// A connection over `stream`, until `heart` ends or it breaks; `on_break` is called before anybody else learns
    /// that. Needs a tokio runtime.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        (heart, way): (Arc<Heart>, Way),
        clock: Clock,
        on_break: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let wire = Arc::new(Self { clock, desk: Mutex::default() });
        let mut carrier = Carrier {
            wire: wire.clone(),
            heart: heart.clone(),
            way,
            stream,
            writing: Vec::new(),
            written: 0,
            read: vec![0; READ],
            filled: 0,
            awaited: VecDeque::new(),
            integers: Vec::new(),
        };
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = heart.ended() => {}
                () = poll_fn(|cx| carrier.poll(cx)) => on_break(),
            }
        });
        wire
    }

    /// Sends a command; `asking`: behind an `ASKING`. Returns at once.
    pub(super) fn send(&self, asking: bool, awaits: Box<dyn Awaits>) {
        let now = self.clock.now();
        let mut desk = self.lock();
        if desk.ended {
            drop(desk);
            return awaits.handle_answer(Err(Lost));
        }
        if asking {
            desk.bytes.extend_from_slice(ASKING);
            desk.awaited.push_back(Awaited::Nobody);
        }
        awaits.write(&mut desk.bytes);
        desk.awaited.push_back(Awaited::One(now, awaits));
        wake(desk);
    }

    /// Sends commands and awaits all replies, in order. `count` commands are in `bytes`, at least one.
    pub(super) async fn ask_all(&self, bytes: &[u8], count: usize) -> Result<Vec<Value>, Lost> {
        let (sender, replies) = oneshot::channel();
        {
            let mut desk = self.lock();
            if desk.ended {
                return Err(Lost);
            }
            desk.bytes.extend_from_slice(bytes);
            desk.awaited.push_back(Awaited::Several(count, Vec::with_capacity(count), sender));
            wake(desk);
        }
        replies.await.map_err(|_| Lost)
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        // Nothing panics while it is held, and if it did what was written is still whole.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(mut desk: MutexGuard<'_, Desk>) {
    let sleeper = desk.sleeper.take();
    drop(desk);
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

/// The task of a connection. When it is dropped, whoever waits has lost the reply.
struct Carrier {
    wire: Arc<Wire>,
    heart: Arc<Heart>,
    way: Way,
    stream: Box<dyn Stream>,
    writing: Vec<u8>,
    written: usize,
    read: Vec<u8>,
    /// So much of `read` has come and is not understood yet.
    filled: usize,
    awaited: VecDeque<Awaited>,
    integers: Vec<i64>,
}

/// The connection is of no use any more.
struct Broken;

impl Carrier {
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
            let mut desk = self.wire.lock();
            // While the socket takes nothing more it is the socket that wakes this.
            if !done || desk.bytes.is_empty() {
                desk.sleeper = done.then(|| cx.waker().clone());
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when all that has gathered is written.
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

    /// Takes what has gathered; false when nothing has.
    fn take(&mut self) -> bool {
        self.written = 0;
        self.writing.clear();
        self.writing.shrink_to(KEPT);
        let mut desk = self.wire.lock();
        if desk.bytes.is_empty() {
            return false;
        }
        std::mem::swap(&mut desk.bytes, &mut self.writing);
        self.heart.handle_departures(self.way, desk.awaited.len());
        self.awaited.append(&mut desk.awaited);
        true
    }

    /// Reads once and hands on what has come.
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

    /// Hands on the replies that have come.
    fn hand_on(&mut self) -> Result<(), Broken> {
        let now = self.wire.clock.now();
        let (mut at, mut replies) = (0, 0);
        let ended = loop {
            match frame::read(&self.read[at..self.filled], &mut self.integers) {
                Ok(Frame::Part) => break Ok(()),
                Ok(Frame::Push(length)) => at += length,
                Ok(Frame::Reply(length, reply)) => {
                    at += length;
                    // A reply that nobody awaits: from here on each would be taken for another.
                    let Some(is_last) = deliver(&mut self.awaited, now, reply) else { break Err(Broken) };
                    replies += usize::from(is_last);
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

/// Hands a reply to whoever is next; whether it was the last that he awaited. `None`: nobody is.
fn deliver(awaited: &mut VecDeque<Awaited>, now: Instant, reply: Reply<'_>) -> Option<bool> {
    match awaited.front_mut()? {
        Awaited::Several(left, values, _) => {
            values.push(reply.into_value());
            *left -= 1;
            if *left > 0 {
                return Some(false);
            }
            if let Some(Awaited::Several(_, values, sender)) = awaited.pop_front() {
                // Whoever asked may be gone.
                let _ = sender.send(values);
            }
        }
        Awaited::Nobody | Awaited::One(..) => {
            if let Some(Awaited::One(left, awaits)) = awaited.pop_front() {
                awaits.handle_answer(Ok(Answer { reply, replicas: None, took: now.since(left) }));
            }
        }
    }
    Some(true)
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let left = {
            let mut desk = self.wire.lock();
            desk.ended = true;
            std::mem::take(&mut desk.awaited)
        };
        for awaited in self.awaited.drain(..).chain(left) {
            if let Awaited::One(_, awaits) = awaited {
                awaits.handle_answer(Err(Lost));
            }
        }
    }
}

#[cfg(test)]
mod tests;
