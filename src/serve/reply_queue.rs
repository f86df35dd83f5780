//! The replies that a connection has yet to send, in order.
//!
//! As long as all answers come at once, replies are written directly into the thread's output buffer. When a check
//! must wait for the store, a pending reply is queued; later replies are stored behind it, and move up when its
//! answer comes. Knows replies, not sockets.

use std::collections::VecDeque;
use std::sync::Arc;

use super::mailbox::Answer;
use super::spool::Spool;
use super::thread_stats::ThreadStats;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::key::Digest;
use crate::core::policy::{Policy, Rule};
use crate::core::time::Instant;
use crate::wire::reply::{Protocol, Writer};

/// How a decision is written as a reply.
#[derive(Clone, Debug)]
pub enum ReplyFormat {
    /// As the reply to `CL.THROTTLE`.
    Throttle,
    /// As the reply to `THROTTLE`, for the limit of this rule.
    Throttlecrab(Arc<Rule>),
    /// As the reply to `RATION.CHECK`.
    Decision {
        /// The key's policy, which may be in shadow mode.
        policy: Arc<Policy>,
        /// The key's rule.
        rule: Arc<Rule>,
        /// The key's digest.
        digest: Digest,
        /// The request charges the key, so the decision is counted.
        charged: bool,
    },
    /// As `+OK`, or as the error that the store did not execute it.
    Done,
    /// The answer is a complete reply.
    Whole,
}

impl ReplyFormat {
    /// Whether it is the reply to a check of one key.
    fn is_check(&self) -> bool {
        matches!(self, Self::Throttle | Self::Throttlecrab(_) | Self::Decision { .. })
    }

    /// Writes `answer` in this format.
    pub fn write(&self, out: &mut Vec<u8>, answer: &Answer, stats: &mut ThreadStats) {
        let mut writer = Writer::new(out, Protocol::Two);
        match (self, answer) {
            (_, Answer::Reply(reply)) => writer.raw(reply),
            (Self::Throttle, Answer::Decision(decision)) => writer.throttle(decision),
            (Self::Throttlecrab(rule), Answer::Decision(decision)) => writer.throttlecrab(decision, &rule.limits[0]),
            (Self::Decision { policy, rule, digest, charged }, Answer::Decision(decision)) => {
                let mut decision = *decision;
                stats.enforce(policy, *digest, &mut decision, *charged);
                writer.decision(&decision, Some(rule));
            }
            (Self::Done | Self::Whole, Answer::Decision(decision)) => write_done(&mut writer, decision),
        }
    }
}

/// Writes the reply to a refund or a reset.
pub fn write_done(writer: &mut Writer<'_>, decision: &Decision) {
    match decision.reason {
        Reason::Store if decision.source == Source::Store => {
            writer.error("ERR the store has not answered in time: it may have done it, or do it yet");
        }
        Reason::Store => writer.error("ERR the store is away and did not take it: try again later"),
        Reason::Overload => writer.error("ERR this node has as much to do as it may: try again later"),
        _ => writer.simple("OK"),
    }
}

#[derive(Debug)]
struct PendingReply {
    /// Its position in `behind`: it comes before the byte with this number.
    at: u64,
    /// When the request arrived.
    asked: Instant,
    format: ReplyFormat,
    answer: Option<Answer>,
}

/// Pending replies, and the complete replies behind them.
#[derive(Debug, Default)]
pub struct ReplyQueue {
    pending: VecDeque<PendingReply>,
    /// The number of the first pending reply; the others follow without a break.
    first: u64,
    behind: Spool,
    /// Bytes of complete replies that have come for pending ones.
    filled: usize,
}

/// The end of the replies at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    direct: usize,
    behind: u64,
}

impl ReplyQueue {
    /// The buffer for the next reply.
    pub fn sink<'a>(&'a mut self, direct: &'a mut Vec<u8>) -> &'a mut Vec<u8> {
        if self.is_empty() { direct } else { self.behind.tail() }
    }

    /// The present end of the replies.
    #[must_use]
    pub fn mark(&self, direct: &[u8]) -> Mark {
        Mark { direct: direct.len(), behind: self.behind.end() }
    }

    /// Removes the replies that were written after `mark`.
    pub fn cut(&mut self, mark: Mark, direct: &mut Vec<u8>) {
        direct.truncate(mark.direct);
        self.behind.cut(mark.behind);
    }

    /// The number that [`Self::park`] will use next.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.first + self.pending.len() as u64
    }

    /// Whether the reply with that number has not moved up yet.
    #[must_use]
    pub fn awaits(&self, seq: u64) -> bool {
        (self.first..self.next_seq()).contains(&seq)
    }

    /// Queues a pending reply, whose answer comes later.
    pub fn park(&mut self, now: Instant, format: ReplyFormat) {
        self.pending.push_back(PendingReply { at: self.behind.end(), asked: now, format, answer: None });
    }

    /// Stores the answer of a pending reply.
    pub fn fill(&mut self, seq: u64, answer: Answer) {
        let index = seq.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(pending) = index.and_then(|index| self.pending.get_mut(index)) {
            self.filled += answer.bytes();
            pending.answer = Some(answer);
        }
    }

    /// Moves complete replies to `direct` until a pending one comes, or there are about `most` bytes.
    pub fn release(&mut self, now: Instant, direct: &mut Vec<u8>, most: usize, stats: &mut ThreadStats) {
        while direct.len() < most {
            let ready = self.pending.front().map_or(self.behind.end(), |pending| pending.at) - self.behind.taken();
            if ready > 0 {
                let front = self.behind.front();
                let part = front.len().min(most - direct.len()).min(usize::try_from(ready).unwrap_or(usize::MAX));
                direct.extend_from_slice(&front[..part]);
                self.behind.take(part);
                continue;
            }
            let Some(answer) = self.pending.front_mut().and_then(|pending| pending.answer.take()) else { return };
            let pending = self.pending.pop_front().expect("it was seen just now");
            self.first += 1;
            self.filled -= answer.bytes();
            pending.format.write(direct, &answer, stats);
            if pending.format.is_check() {
                stats.durations.add(now.since(pending.asked), 1);
            }
        }
    }

    /// Whether [`Self::release`] has something to move up.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self.pending.front() {
            Some(pending) => pending.answer.is_some() || pending.at > self.behind.taken(),
            None => !self.behind.is_empty(),
        }
    }

    /// Whether no reply waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.behind.is_empty()
    }

    /// Pending replies without an answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Bytes of replies that wait behind or for a pending reply.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.behind.len() + self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Answer {
        Answer::Reply(text.as_bytes().to_vec())
    }

    #[test]
    fn replies_keep_their_order_however_answers_come() {
        let (mut replies, mut direct) = (ReplyQueue::default(), Vec::new());
        replies.sink(&mut direct).extend(b"a");
        let first = replies.next_seq();
        replies.park(Instant(1), ReplyFormat::Whole);
        replies.sink(&mut direct).extend(b"c");
        let second = replies.next_seq();
        replies.park(Instant(1), ReplyFormat::Whole);
        replies.sink(&mut direct).extend(b"e");
        replies.fill(second, reply("d"));
        replies.release(Instant(2), &mut direct, usize::MAX, &mut ThreadStats::default());
        assert_eq!(direct, b"a");
        replies.fill(first, reply("b"));
        replies.release(Instant(2), &mut direct, usize::MAX, &mut ThreadStats::default());
        assert_eq!(direct, b"abcde");
        replies.sink(&mut direct).extend(b"f");
        assert_eq!(direct, b"abcdef");
        assert_eq!((replies.waiting(), replies.held_back()), (0, 0));
    }

    #[test]
    fn what_stands_between_two_gaps_waits_for_the_first_only() {
        let (mut replies, mut direct) = (ReplyQueue::default(), Vec::new());
        replies.park(Instant(1), ReplyFormat::Whole);
        replies.sink(&mut direct).extend(b"b");
        replies.park(Instant(1), ReplyFormat::Whole);
        replies.sink(&mut direct).extend(b"d");
        replies.fill(0, reply("a"));
        replies.release(Instant(2), &mut direct, usize::MAX, &mut ThreadStats::default());
        assert_eq!(direct, b"ab");
        replies.fill(1, reply("c"));
        replies.release(Instant(2), &mut direct, usize::MAX, &mut ThreadStats::default());
        assert_eq!(direct, b"abcd");
    }

    #[test]
    fn much_moves_up_in_parts_and_keeps_its_order() {
        let (mut replies, mut direct) = (ReplyQueue::default(), Vec::new());
        replies.park(Instant(1), ReplyFormat::Whole);
        let mut wanted = b"first".to_vec();
        for number in 0..100_000_u32 {
            let line = format!("{number}\r\n");
            replies.sink(&mut direct).extend(line.as_bytes());
            wanted.extend(line.as_bytes());
        }
        assert!(!replies.is_ready());
        replies.fill(0, reply("first"));
        assert_eq!(replies.held_back(), wanted.len());
        let mut written = Vec::new();
        while replies.is_ready() {
            replies.release(Instant(2), &mut direct, 10_000, &mut ThreadStats::default());
            assert!(direct.len() <= 10_000);
            written.append(&mut direct);
        }
        assert_eq!(written, wanted);
        assert!(replies.is_empty() && replies.held_back() == 0);
    }

    #[test]
    fn what_is_taken_back_leaves_what_stood_before() {
        let (mut replies, mut direct) = (ReplyQueue::default(), b"a".to_vec());
        let mark = replies.mark(&direct);
        replies.sink(&mut direct).extend(b"b");
        replies.cut(mark, &mut direct);
        assert_eq!(direct, b"a");
        replies.park(Instant(1), ReplyFormat::Whole);
        replies.sink(&mut direct).extend(b"c");
        let mark = replies.mark(&direct);
        replies.sink(&mut direct).extend(b"d");
        replies.cut(mark, &mut direct);
        replies.fill(0, reply("b"));
        replies.release(Instant(2), &mut direct, usize::MAX, &mut ThreadStats::default());
        assert_eq!(direct, b"abc");
    }

    #[test]
    fn an_answer_to_nobody_is_dropped() {
        let (mut replies, mut direct) = (ReplyQueue::default(), Vec::new());
        replies.fill(7, reply("x"));
        replies.release(Instant(2), &mut direct, usize::MAX, &mut ThreadStats::default());
        assert!(direct.is_empty());
    }
}
