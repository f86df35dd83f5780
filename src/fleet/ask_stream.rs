//! Asks and their answers on the connection between two nodes: one long-lived stream for all that the one asks the other.
//!
//! ```text
//! stream = channel (1 byte) asks, and answers on the way back
//! ask, answer = length (2, little-endian) as many bytes, at most 1,024
//! ```
//!
//! Asks that wait are written together. Answers come in any order, or not at all: an ask is never sent twice, and
//! nothing here remembers one. Asks of one peer that are not answered yet are bounded; a further one is dropped without
//! an answer. Does not know what asks mean. `ask_queue.rs` has asks that wait to be sent; the daemon takes those that
//! arrive. `streams.rs` reads the first byte of each stream.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use quinn::{ReadError, RecvStream, SendStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::frame::Channel;
use super::link::{Closing, Link};
use super::peer::PeerId;
use super::stats::Counters;
use crate::clock::Clock;
use crate::core::time::Instant;
use crate::wire::peer_ask::LONGEST;

/// Longest time for a stream to open, and longest time for which it may accept no bytes.
const STUCK: Duration = Duration::from_secs(1);
/// Most asks of one peer that are not answered yet.
const OPEN: usize = 1_024;
/// Frames that are written at once, and bytes that are read at once.
const TOGETHER: (usize, usize) = (64, 16 << 10);

/// Takes what peers ask, and what they answer. Both must return soon.
pub trait AskTaker: Send + Sync + 'static {
    /// A peer asks. It is answered by `reply`, or not at all when that is dropped.
    fn handle_ask(&self, from: &PeerId, ask: &[u8], reply: Reply);

    /// A peer has answered one of the asks that were sent to it.
    fn handle_answer(&self, from: &PeerId, answer: &[u8]);
}

/// Sends one answer to the peer that asked.
#[derive(Debug)]
pub struct Reply {
    answers: mpsc::UnboundedSender<Answer>,
    slot: OwnedSemaphorePermit,
}

/// An answer, and the slot of its ask until it is written.
type Answer = (Bytes, OwnedSemaphorePermit);

impl Reply {
    /// Sends the answer, without waiting.
    pub fn send(self, answer: Vec<u8>) {
        // The connection may have ended; then the answer is of no use.
        let _ = self.answers.send((answer.into(), self.slot));
    }
}

/// Who takes asks and answers, once [`Self::begin`] has said so. The taker may end before its fleet does.
#[derive(Default)]
pub(crate) struct AskTakerCell(OnceLock<Weak<dyn AskTaker>>);

impl std::fmt::Debug for AskTakerCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AskTakerCell({})", self.0.get().is_some())
    }
}

impl AskTakerCell {
    /// Hands asks and answers to `taker` from now on. Only the first call has an effect.
    pub(crate) fn begin(&self, taker: &Arc<dyn AskTaker>) {
        let _ = self.0.set(Arc::downgrade(taker));
    }

    fn get(&self) -> Option<Arc<dyn AskTaker>> {
        self.0.get()?.upgrade()
    }
}

/// An ask that waits to be written.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) frame: Bytes,
    /// Until when the answer is of use.
    pub(crate) until: Instant,
}

/// Answers the asks on one stream, whose first byte was read already.
pub(crate) async fn serve(
    link: Arc<Link>,
    taker: Arc<AskTakerCell>,
    counters: Arc<Counters>,
    mut answers: SendStream,
    asks: RecvStream,
) {
    let (send, mut waiting) = mpsc::unbounded_channel::<Answer>();
    let slots = Arc::new(Semaphore::new(OPEN));
    let mut asks = Frames::new(asks);
    let reading = async {
        while let Some(ask) = asks.next(&counters).await {
            link.has_spoken();
            match (taker.get(), slots.clone().try_acquire_owned()) {
                (Some(taker), Ok(slot)) => taker.handle_ask(&link.peer, &ask, Reply { answers: send.clone(), slot }),
                _ => counters.dropped_in.add(1),
            }
            consume_budget().await;
        }
    };
    let writing = async {
        let mut together = Vec::new();
        while waiting.recv_many(&mut together, TOGETHER.0).await > 0 {
            let (frames, slots): (Vec<_>, Vec<_>) = together.drain(..).unzip();
            if !write(&mut answers, &frames, &counters).await {
                return;
            }
            drop(slots);
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    // Fails when the peer has already closed its side, which is what this is for.
    let _ = answers.reset(Closing::Refused.code());
    asks.refuse();
}

/// Sends `first` and then all asks of `queue` to the peer of `link`, until the stream ends or another connection to the
/// peer is preferred.
pub(crate) async fn ask(
    link: &Link,
    taker: &AskTakerCell,
    counters: &Counters,
    clock: Clock,
    first: Waiting,
    queue: &mut mpsc::Receiver<Waiting>,
) {
    let Ok(Ok((mut asks, answers))) = timeout(STUCK, link.connection.open_bi()).await else {
        return counters.dropped_out.add(1);
    };
    let mut answers = Frames::new(answers);
    let reading = async {
        while let Some(answer) = answers.next(counters).await {
            link.has_spoken();
            let Some(taker) = taker.get() else { return };
            taker.handle_answer(&link.peer, &answer);
            consume_budget().await;
        }
    };
    let writing = async {
        let mut together = vec![first];
        let mut head = Some(Bytes::from_static(&[Channel::Ask as u8]));
        loop {
            let now = clock.now();
            let in_time = together.drain(..).filter(|ask| ask.until > now).map(|ask| ask.frame);
            let frames: Vec<Bytes> = in_time.collect();
            let is_opened = match head.take() {
                Some(head) => asks.write_all(&head).await.is_ok(),
                None => true,
            };
            if !is_opened || !write(&mut asks, &frames, counters).await || link.is_superseded() {
                return;
            }
            if queue.recv_many(&mut together, TOGETHER.0).await == 0 {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    // A peer that takes no asks ends the stream, and the asks on it are lost.
    counters.dropped_out.add(usize::from(answers.is_refused));
    let _ = asks.reset(Closing::Refused.code());
    answers.refuse();
}

/// Writes frames together; false when the peer does not take them.
async fn write(stream: &mut SendStream, frames: &[Bytes], counters: &Counters) -> bool {
    let mut bytes = BytesMut::new();
    for frame in frames {
        bytes.extend_from_slice(&(frame.len() as u16).to_le_bytes()); // at most LONGEST
        bytes.extend_from_slice(frame);
    }
    let is_written = matches!(timeout(STUCK, stream.write_all(&bytes)).await, Ok(Ok(())));
    if is_written {
        counters.frames_out.add(frames.len());
        counters.bytes_out.add(bytes.len());
    } else {
        counters.dropped_out.add(frames.len());
    }
    is_written
}

/// Frames as they come on a stream.
struct Frames {
    stream: RecvStream,
    /// Received bytes that are no whole frame yet.
    come: BytesMut,
    /// The peer has ended the stream.
    is_refused: bool,
}

impl Frames {
    fn new(stream: RecvStream) -> Self {
        Self { stream, come: BytesMut::new(), is_refused: false }
    }

    /// The next frame; `None` when the stream has ended, or says nothing that can be read.
    async fn next(&mut self, counters: &Counters) -> Option<Bytes> {
        loop {
            if let Some((length, _)) = self.come.split_first_chunk() {
                let length = usize::from(u16::from_le_bytes(*length));
                if length > LONGEST {
                    counters.oversized.add(1);
                    return None;
                }
                if self.come.len() >= 2 + length {
                    self.come.advance(2);
                    counters.frames_in.add(1);
                    return Some(self.come.split_to(length).freeze());
                }
            }
            let came = self.fill().await?;
            counters.bytes_in.add(came);
        }
    }

    /// Reads once, and returns how many bytes came.
    async fn fill(&mut self) -> Option<usize> {
        let read = self.stream.read_chunk(TOGETHER.1, true).await;
        self.is_refused = matches!(read, Err(ReadError::Reset(_)));
        let chunk = read.ok()??;
        self.come.extend_from_slice(&chunk.bytes);
        Some(chunk.bytes.len())
    }

    /// Tells the peer that no more is read from this stream.
    fn refuse(&mut self) {
        // Fails when the stream has ended already, which is what this is for.
        let _ = self.stream.stop(Closing::Refused.code());
    }
}
