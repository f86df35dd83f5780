//! One open connection: requests are sent together, and each answer belongs to the oldest request without one.
//!
//! A caller that has given up keeps its position, so that the next caller does not get its answer. Requests without
//! an answer are bounded in number, and unsent ones in bytes.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use super::super::{ClientError, Reply};
use crate::wire::value::ReplyError;

/// Most requests without an answer.
const MOST_WAITING: usize = 1_024;
/// Most unsent bytes; the last request may exceed them.
const MOST_UNSENT: usize = 256 << 10;
/// Bytes of one read.
const READ: usize = 16 << 10;

/// One request, and the channel for its answer.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) bytes: Vec<u8>,
    /// `None` when nobody waits for the answer.
    pub(super) asker: Option<oneshot::Sender<Result<Reply, ClientError>>>,
}

impl Job {
    /// Its caller no longer waits, so it need not be sent.
    pub(super) fn is_given_up(&self) -> bool {
        self.asker.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    pub(super) fn fail(self, error: ClientError) {
        if let Some(asker) = self.asker {
            // The caller may be gone.
            let _ = asker.send(Err(error));
        }
    }
}

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// All handles were dropped, and all requests sent.
    Left,
    /// It broke, or the daemon closed it.
    Broken(io::Error),
    /// The daemon sent nothing although answers were expected.
    Silent,
    /// The bytes that came are not RESP.
    Protocol(ReplyError),
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    read: Box<[u8]>,
    waiting: VecDeque<Option<oneshot::Sender<Result<Reply, ClientError>>>>,
    timeouts: Duration,
    silence: Pin<Box<Sleep>>,
    /// Since `silence` began, bytes came or the first request was sent.
    heard: bool,
    /// At least one answer came.
    pub(super) has_answered: bool,
}

impl Line {
    /// A connection over `stream`. Must be called inside a runtime.
    pub(super) fn new(stream: UnixStream, timeouts: Duration) -> Self {
        Self {
            stream,
            outgoing: Vec::new(),
            sent: 0,
            incoming: Vec::new(),
            read: vec![0; READ].into_boxed_slice(),
            waiting: VecDeque::new(),
            timeouts,
            silence: Box::pin(tokio::time::sleep(timeouts)),
            heard: true,
            has_answered: false,
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        if job.is_given_up() {
            return;
        }
        self.heard |= self.waiting.is_empty();
        self.outgoing.extend_from_slice(&job.bytes);
        self.waiting.push_back(job.asker);
    }

    /// Sends and receives what can be, until the connection ends.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, jobs: &mut mpsc::Receiver<Job>) -> Poll<End> {
        loop {
            let mut left = false;
            while self.waiting.len() < MOST_WAITING && self.outgoing.len() - self.sent < MOST_UNSENT {
                match jobs.poll_recv(cx) {
                    Poll::Ready(Some(job)) => self.push(job),
                    Poll::Ready(None) => {
                        left = true;
                        break;
                    }
                    Poll::Pending => break,
                }
            }
            if let Err(error) = self.write(cx) {
                return Poll::Ready(End::Broken(error));
            }
            if left && self.waiting.is_empty() {
                return Poll::Ready(End::Left);
            }
            match self.poll_read(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending if self.is_silent(cx) => return Poll::Ready(End::Silent),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match self.stream.try_write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.stream.poll_write_ready(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(ready) => ready?,
                },
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once, and delivers the answers that are complete.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let len = loop {
            match self.stream.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(End::Broken(error))),
                Poll::Ready(Ok(())) => {}
            }
            match self.stream.try_read(&mut self.read) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(End::Broken(error))),
            }
        };
        if len == 0 {
            let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the daemon");
            return Poll::Ready(Err(End::Broken(closed)));
        }
        self.heard = true;
        self.incoming.extend_from_slice(&self.read[..len]);
        Poll::Ready(self.hand_out())
    }

    fn hand_out(&mut self) -> Result<(), End> {
        let mut taken = 0;
        while let Some((reply, len)) = Reply::parse(&self.incoming[taken..]).map_err(End::Protocol)? {
            taken += len;
            self.has_answered = true;
            let Some(asker) = self.waiting.pop_front() else {
                let unasked = io::Error::new(io::ErrorKind::InvalidData, "an answer that nobody asked for");
                return Err(End::Broken(unasked));
            };
            if let Some(asker) = asker {
                // The caller may be gone.
                let _ = asker.send(ClientError::unless_refused(reply));
            }
        }
        self.incoming.drain(..taken);
        Ok(())
    }

    /// Whether the daemon has sent nothing for the whole timeout although answers are expected.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.waiting.is_empty() && self.silence.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.heard) {
                return true;
            }
            self.silence.set(tokio::time::sleep(self.timeouts));
        }
        false
    }

    /// Ends the connection: all waiting requests get `error`, the oldest first.
    pub(super) fn end(mut self, mut error: impl FnMut() -> ClientError) {
        for asker in self.waiting.drain(..).flatten() {
            let _ = asker.send(Err(error()));
        }
    }
}
