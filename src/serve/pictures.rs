//! The answers to peers that look at this node. They are kept for a moment and sent to all that ask for the same, and
//! bounded for all peers together.
//!
//! `fleet::look` bounds how often each peer is answered; this bounds what all of them together cost: how many different
//! answers are made of the figures of one moment, and how many bytes are sent in a second. A peer that looks beyond
//! that gets no answer. Knows neither peers nor what answers say.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::fleet_look::FRESH;
use crate::core::time::Instant;

/// Most different answers that are made of the same figures: questions differ only in how many keys they ask for.
const MOST: usize = 4;

/// Most bytes that are sent to all peers together in a second. That is enough for 1,500 peers that look each second at
/// a node with a few policies (2.8 KB), or for 64 whose answers are as long as they may be.
const BYTES_A_SECOND: u64 = 4 << 20;

/// The least bytes that an answer counts for, because it needs a stream and packets of its own.
const LEAST: u64 = 512;

/// What the caller must do for a peer that looks.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Send this.
    Send(Bytes),
    /// Make an answer of these figures, or of new ones, and call [`Pictures::make`].
    Make(Option<Arc<Value>>),
    /// Do not answer it.
    Refuse,
}

/// The figures of a moment, and the answers that were made of them.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    /// When the figures were made, and what they are.
    top: Option<(Instant, Arc<Value>)>,
    /// The answers that were made of them, by how many keys were asked for.
    answers: Vec<(usize, Bytes)>,
    /// Bytes sent within the last second, as of `counted`: they leak at [`BYTES_A_SECOND`].
    sent: u64,
    counted: Instant,
}

impl Pictures {
    /// Decides about a peer that asks for so many keys.
    pub(super) fn step(&mut self, now: Instant, keys: usize) -> Step {
        let over = now.since(self.counted).0.saturating_mul(BYTES_A_SECOND) / 1_000_000;
        (self.sent, self.counted) = (self.sent.saturating_sub(over), now);
        if self.sent >= BYTES_A_SECOND {
            return Step::Refuse;
        }
        if self.top.as_ref().is_some_and(|(at, _)| now.since(*at) >= FRESH) {
            self.top = None;
            self.answers.clear();
        }
        if let Some((_, answer)) = self.answers.iter().find(|(known, _)| *known == keys) {
            self.sent += (answer.len() as u64).max(LEAST);
            return Step::Send(answer.clone());
        }
        if self.answers.len() == MOST {
            return Step::Refuse;
        }
        Step::Make(self.top.as_ref().map(|(_, top)| top.clone()))
    }

    /// Keeps the answer for so many keys, which was made of `top` and is sent. `now` is when making it began.
    pub(super) fn make(&mut self, now: Instant, top: Arc<Value>, keys: usize, answer: Bytes) {
        self.top.get_or_insert((now, top));
        self.sent += (answer.len() as u64).max(LEAST);
        self.answers.push((keys, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::LONGEST_ANSWER;

    /// What comes of looks: how many were sent something, how many pictures and answers were made, and how many bytes were sent.
    #[derive(Debug, Default)]
    struct Shown {
        sent: u64,
        tops: u64,
        answers: u64,
        bytes: u64,
    }

    /// Looks for so many seconds, so many each second; each asks for what `keys` says of its number.
    fn looks(seconds: u64, each_second: u64, bytes: usize, keys: impl Fn(u64) -> usize) -> Shown {
        let (mut pictures, mut shown) = (Pictures::default(), Shown::default());
        for number in 0..seconds * each_second {
            let now = Instant(5_000_000 + number * 1_000_000 / each_second);
            let answer = match pictures.step(now, keys(number)) {
                Step::Refuse => continue,
                Step::Send(answer) => answer,
                Step::Make(known) => {
                    shown.tops += u64::from(known.is_none());
                    shown.answers += 1;
                    let answer = Bytes::from(vec![7; bytes]);
                    pictures.make(now, known.unwrap_or_default(), keys(number), answer.clone());
                    answer
                }
            };
            shown.sent += 1;
            shown.bytes += answer.len() as u64;
        }
        shown
    }

    #[test]
    fn all_nodes_of_a_large_fleet_may_look_at_once() {
        let shown = looks(10, 1_000, 2_800, |number| [0, 40][number as usize % 2]);
        assert_eq!(shown.sent, 10_000, "{shown:?}");
        // One each fifth of a second, for either question.
        assert_eq!((shown.tops, shown.answers), (50, 100), "{shown:?}");
    }

    #[test]
    fn what_all_peers_together_are_answered_is_bounded() {
        // Each of a thousand peers looks five times a second, at a node that has as much to tell as an answer takes.
        let shown = looks(10, 5_000, LONGEST_ANSWER, |_| 200);
        assert!(shown.bytes <= 11 * BYTES_A_SECOND + LONGEST_ANSWER as u64, "{shown:?}");
        assert!(shown.sent >= 600, "{shown:?}");
        // They all ask for something else, so that each answer is another.
        let shown = looks(10, 5_000, 2_800, |number| number as usize % 200);
        assert!(shown.tops <= 51 && shown.answers <= 51 * MOST as u64, "{shown:?}");
        // What was answered before has an end: whoever comes then is answered.
        let mut pictures = Pictures::default();
        pictures.make(Instant(0), Arc::default(), 0, Bytes::from(vec![7; LONGEST_ANSWER]));
        let answered = (0..5_000).filter(|_| pictures.step(Instant(9), 0) != Step::Refuse).count();
        assert!((60..=65).contains(&answered), "{answered}");
        assert_eq!(pictures.step(Instant(100_000_000), 0), Step::Make(None));
    }
}
