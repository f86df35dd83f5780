//! A connection in memory, on tokio's time: bytes come after a while, a few at a time, as far as there is room; and it
//! breaks at a byte.
//!
//! Both ends are a stream of tokio's; one end is also what a daemon serves a client over. What is broken is broken for
//! both: whoever reads is told so once it has read what came before, and what was under way the other way is lost.

#![allow(clippy::disallowed_methods, reason = "the time is tokio's, which the test has paused")]

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rationd::serve::stream::ClientStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::seeded::Draws;

/// What bytes meet with on their way.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Shortest way of a byte.
    pub latency: Duration,
    /// What is added at most; no byte overtakes another.
    pub jitter: Duration,
    /// Most bytes that one read of a daemon brings.
    pub chunk: usize,
    /// Most bytes that are under way and unread.
    pub room: usize,
}

/// One direction.
struct Half {
    way: Way,
    draws: Draws,
    /// When bytes come, which, and how many of them were read.
    under_way: VecDeque<(Instant, Vec<u8>, usize)>,
    bytes: usize,
    written: u64,
    /// The connection breaks behind so many bytes.
    breaks_at: Option<u64>,
    state: State,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// No more is written: behind what is under way comes the end.
    Ended,
    /// Behind what is under way comes an error.
    Broken,
}

/// One end of a connection.
pub struct End {
    inbound: Arc<Mutex<Half>>,
    outbound: Arc<Mutex<Half>>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Takes from a connection where it would break.
pub struct Mender([Weak<Mutex<Half>>; 2]);

impl Mender {
    pub fn mend(&self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|half| lock(&half).breaks_at = None);
    }
}

/// A connection whose two directions break behind so many bytes: what is written to a daemon, and what it writes. Comes
/// as the daemon's end, which reads a few bytes at a time, and the other one, which reads all that has come.
pub fn pair(way: Way, seed: u64, breaks_at: [Option<u64>; 2]) -> (End, End) {
    let half = |part: usize| {
        Arc::new(Mutex::new(Half {
            way: Way { chunk: if part == 0 { way.chunk } else { usize::MAX }, ..way },
            draws: Draws::part(seed, part as u64 + 1),
            under_way: VecDeque::new(),
            bytes: 0,
            written: 0,
            breaks_at: breaks_at[part],
            state: State::Open,
            reader: None,
            writer: None,
        }))
    };
    let (there, back) = (half(0), half(1));
    let daemons = End { inbound: there.clone(), outbound: back.clone(), timer: None };
    (daemons, End { inbound: back, outbound: there, timer: None })
}

impl End {
    pub fn mender(&self) -> Mender {
        Mender([&self.inbound, &self.outbound].map(Arc::downgrade))
    }
}

impl Half {
    fn room(&self) -> usize {
        self.way.room - self.bytes
    }

    fn push(&mut self, bytes: &[u8]) {
        let jitter = self.way.jitter.as_micros() as u64;
        let due = Instant::now() + self.way.latency + Duration::from_micros(self.draws.of(0..jitter + 1));
        let due = self.under_way.back().map_or(due, |(last, ..)| due.max(*last));
        self.under_way.push_back((due, bytes.to_vec(), 0));
        self.bytes += bytes.len();
        self.written += bytes.len() as u64;
        wake(&mut self.reader);
    }

    /// Takes bytes that have come.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let most = self.way.chunk.min(buffer.len());
        let mut taken = 0;
        while taken < most
            && let Some((due, bytes, read)) = self.under_way.front_mut()
            && *due <= Instant::now()
        {
            let length = (bytes.len() - *read).min(most - taken);
            buffer[taken..taken + length].copy_from_slice(&bytes[*read..*read + length]);
            (taken, *read) = (taken + length, *read + length);
            if *read == bytes.len() {
                self.under_way.pop_front();
            }
        }
        self.bytes -= taken;
        if taken > 0 {
            wake(&mut self.writer);
        }
        taken
    }

    fn end(&mut self, state: State) {
        if self.state == State::Open {
            self.state = state;
        }
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn lock(half: &Arc<Mutex<Half>>) -> MutexGuard<'_, Half> {
    half.lock().expect("nobody panicked")
}

impl End {
    /// Breaks the connection, with all that is under way.
    pub fn reset(&self) {
        for half in [&self.inbound, &self.outbound] {
            let mut half = lock(half);
            half.under_way.clear();
            half.bytes = 0;
            half.end(State::Broken);
        }
    }

    /// Writes what there is room for; `None`: nothing.
    fn write_some(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut outbound = lock(&self.outbound);
        if outbound.state != State::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let length = outbound.room().min(bytes.len());
        if length == 0 {
            return Ok(None);
        }
        let left = outbound.breaks_at.map_or(u64::MAX, |at| at.saturating_sub(outbound.written));
        if (length as u64) < left {
            outbound.push(&bytes[..length]);
        } else {
            if left > 0 {
                outbound.push(&bytes[..left as usize]);
            }
            outbound.end(State::Broken);
            drop(outbound);
            let mut inbound = lock(&self.inbound);
            inbound.under_way.clear();
            inbound.bytes = 0;
            inbound.end(State::Broken);
        }
        Ok(Some(length))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.outbound).end(State::Ended);
        let mut inbound = lock(&self.inbound);
        // Who writes to an end that has gone is told so.
        inbound.under_way.clear();
        inbound.bytes = 0;
        inbound.end(State::Broken);
    }
}

impl AsyncRead for End {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let due = {
                let mut inbound = lock(&self.inbound);
                let most = inbound.way.chunk.min(buffer.remaining()).min(inbound.bytes);
                let taken = inbound.take(buffer.initialize_unfilled_to(most));
                if taken > 0 {
                    buffer.advance(taken);
                    return Poll::Ready(Ok(()));
                }
                let due = inbound.under_way.front().map(|(due, ..)| *due);
                match (due, inbound.state) {
                    (None, State::Ended) => return Poll::Ready(Ok(())),
                    (None, State::Broken) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    _ => inbound.reader = Some(cx.waker().clone()),
                }
                due
            };
            let Some(due) = due else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            timer.as_mut().reset(due);
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.write_some(bytes)? {
            Some(length) => Poll::Ready(Ok(length)),
            None => {
                lock(&self.outbound).writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.outbound).end(State::Ended);
        Poll::Ready(Ok(()))
    }
}

impl ClientStream for End {
    type Resting = Self;

    fn rest(self) -> io::Result<Self> {
        Ok(self)
    }

    fn resume(resting: Self) -> io::Result<Self> {
        Ok(resting)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(bytes)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outbound = lock(&self.outbound);
        if outbound.state != State::Open || outbound.room() > 0 {
            return Poll::Ready(Ok(()));
        }
        outbound.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn unread(&self) -> u64 {
        let inbound = lock(&self.inbound);
        let come = inbound.under_way.iter().take_while(|(due, ..)| *due <= Instant::now());
        come.map(|(_, bytes, read)| (bytes.len() - read) as u64).sum()
    }

    fn read_at_once(&self, buffer: &mut [u8]) -> usize {
        lock(&self.inbound).take(buffer)
    }

    fn write_at_once(&self, bytes: &[u8]) {
        let _ = self.write_some(bytes);
    }
}
