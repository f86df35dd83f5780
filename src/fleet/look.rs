//! Looks: questions to a peer about what it does now. Each look has a stream of its own, and one answer.
//!
//! ```text
//! stream = channel (1 byte) question (to the end, at most 64 bytes), and on the way back
//! answer = at most 65,536 bytes, to the end
//! ```
//!
//! Answers are large and only shown to people, so they must not slow a node down however often it is asked: the looks
//! of one connection are answered one after the other, with a pause after each, and answers leave after gossip and
//! asks. A peer that looks in a loop fills its own streams, and waits. Peers of a version without looks say so in their
//! hello, and are sent none. Does not know what questions and answers mean; the daemon does.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use quinn::{ReadError, ReadToEndError, RecvStream, SendStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::frame::Channel;
use super::link::{Closing, Link};
use super::peer::PeerId;
use super::stats::Counters;

/// Longest question, in bytes.
const LONGEST_QUESTION: usize = 64;
/// Longest answer, in bytes.
pub const LONGEST_ANSWER: usize = 64 << 10;
/// Longest time that a look takes, from its first byte to the last of its answer, with the wait for its turn.
const LONGEST: Duration = Duration::from_secs(2);
/// After each answer the next look of the same connection waits for this long.
const PAUSE: Duration = Duration::from_millis(200);
/// The priority of answers, below that of all other streams.
const LAST: i32 = -1;

/// Answers looks. It must return soon.
pub trait LookTaker: Send + Sync + 'static {
    /// A peer looks. It is answered by `show`, or not at all when that is dropped.
    fn handle_look(&self, from: &PeerId, question: &[u8], show: Show);
}

/// Sends one answer to the peer that looks.
#[derive(Debug)]
pub struct Show(oneshot::Sender<Bytes>);

impl Show {
    /// Sends the answer, without waiting; one that is longer than [`LONGEST_ANSWER`] is not sent.
    pub fn send(self, answer: Bytes) {
        if answer.len() <= LONGEST_ANSWER {
            // The look may have timed out; then the answer is of no use.
            let _ = self.0.send(answer);
        }
    }
}

/// Why a look at a peer has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// It is no member any more.
    Gone,
    /// It is of a build that does not answer looks.
    Earlier,
    /// It cannot be reached, or has not answered in time.
    Silent,
    /// It has ended the stream without an answer: it gets more looks than it answers, or its daemon takes none yet.
    Refused,
}

impl Unseen {
    /// Whether the node itself cannot be reached, and not only its answer is missing.
    #[must_use]
    pub fn is_away(self) -> bool {
        matches!(self, Self::Gone | Self::Silent)
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "it is no member of the fleet any more",
            Self::Earlier => "it is of an earlier version, which cannot be asked",
            Self::Silent => "no answer in time",
            Self::Refused => "it does not answer now: it may be that too many look at it",
        })
    }
}

/// Answers looks, once [`Self::begin`] has set it. It may end before its fleet does.
#[derive(Default)]
pub(crate) struct Looks(OnceLock<Weak<dyn LookTaker>>);

impl fmt::Debug for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Looks({})", self.0.get().is_some())
    }
}

impl Looks {
    /// Hands looks to `taker` from now on. Only the first call has an effect.
    pub(crate) fn begin(&self, taker: &Arc<dyn LookTaker>) {
        let _ = self.0.set(Arc::downgrade(taker));
    }

    fn taker(&self) -> Option<Arc<dyn LookTaker>> {
        self.0.get()?.upgrade()
    }
}

/// Answers the look on one stream, whose first byte was read already.
pub(crate) async fn answer(
    link: &Arc<Link>,
    looks: &Looks,
    counters: &Counters,
    mut answers: SendStream,
    mut asked: RecvStream,
) {
    let is_answered = timeout(LONGEST, show(link, looks, counters, &mut answers, &mut asked)).await;
    if is_answered != Ok(Some(())) {
        counters.dropped_in.add(1);
        // Fails when the peer has already closed its side, which is what this is for.
        let _ = answers.reset(Closing::Refused.code());
        let _ = asked.stop(Closing::Refused.code());
    }
}

async fn show(
    link: &Arc<Link>,
    looks: &Looks,
    counters: &Counters,
    answers: &mut SendStream,
    asked: &mut RecvStream,
) -> Option<()> {
    let question = match asked.read_to_end(LONGEST_QUESTION).await {
        Ok(question) => question,
        Err(why) => {
            counters.oversized.add(usize::from(why == ReadToEndError::TooLong));
            return None;
        }
    };
    counters.frames_in.add(1);
    counters.bytes_in.add(1 + question.len());
    link.has_spoken();
    let turn = link.look_turn.clone().acquire_owned().await.ok()?;
    let (send, shown) = oneshot::channel();
    looks.taker()?.handle_look(&link.peer, &question, Show(send));
    let shown = shown.await.ok()?;
    // Fails when the stream has ended; then the write below fails, too.
    let _ = answers.set_priority(LAST);
    answers.write_all(&shown).await.ok()?;
    answers.finish().ok()?;
    counters.frames_out.add(1);
    counters.bytes_out.add(shown.len());
    // The stream is finished at once; the turn is kept for the pause, so that the peer's next look waits.
    tokio::spawn(async move {
        sleep(PAUSE).await;
        drop(turn);
    });
    Some(())
}

/// Looks at the peer of `link`.
///
/// # Errors
/// It does not answer.
pub(crate) async fn look(link: &Link, counters: &Counters, question: &[u8]) -> Result<Bytes, Unseen> {
    if !link.shows {
        return Err(Unseen::Earlier);
    }
    let (mut asks, mut answer) = link.connection.open_bi().await.map_err(|_| Unseen::Silent)?;
    let question = [&[Channel::Look as u8], question].concat();
    asks.write_all(&question).await.map_err(|_| Unseen::Silent)?;
    asks.finish().map_err(|_| Unseen::Silent)?;
    counters.frames_out.add(1);
    counters.bytes_out.add(question.len());
    match answer.read_to_end(LONGEST_ANSWER).await {
        Ok(shown) => {
            counters.frames_in.add(1);
            counters.bytes_in.add(shown.len());
            link.has_spoken();
            Ok(shown.into())
        }
        Err(ReadToEndError::TooLong) => {
            counters.oversized.add(1);
            Err(Unseen::Refused)
        }
        Err(ReadToEndError::Read(ReadError::Reset(_))) => Err(Unseen::Refused),
        Err(ReadToEndError::Read(_)) => Err(Unseen::Silent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_is_not_sent() {
        let send = |len: usize| {
            let (send, mut shown) = oneshot::channel();
            Show(send).send(vec![0; len].into());
            shown.try_recv().map(|shown| shown.len()).ok()
        };
        assert_eq!((send(LONGEST_ANSWER), send(LONGEST_ANSWER + 1)), (Some(LONGEST_ANSWER), None));
    }
}
