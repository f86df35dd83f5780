//! What peers are shown that look at this node: pictures of a moment ago, as many as this node can spare for all of them together.
//!
//! The fleet bounds how often each peer is answered, and this how often all are: a picture is made for few questions of a moment,
//! and what leaves within a second is bounded. Whoever comes when there is nothing left is not answered, which it takes for a node
//! that has more to do. Knows neither peers nor what is told.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::fleet_look::FRESH;
use crate::core::time::Instant;

/// Answers to different questions that are made of the same figures.
const MOST: usize = 4;

/// What all peers together are sent in a second. Fifteen hundred of them may look each second at a node of a few policies, and at
/// one whose answers are as long as they may be, sixty-four.
const BYTES_A_SECOND: u64 = 4 << 20;

/// What an answer costs at least, since it has its stream and its packets.
const LEAST: u64 = 512;

/// What is to be done for a peer that looks.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It is sent this.
    Send(Bytes),
    /// An answer is to be [made](Pictures::make) of these figures, or of new ones.
    Make(Option<Arc<Value>>),
    /// It is not answered.
    Refuse,
}

/// The pictures of a moment.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    /// When the figures were made, and what they are.
    top: Option<(Instant, Arc<Value>)>,
    /// The answers of them, by how many keys were asked for.
    answers: Vec<(usize, Bytes)>,
    /// Bytes that were sent and whose time is not over by `counted`.
    sent: u64,
    counted: Instant,
}

impl Pictures {
    /// A peer asks for so many keys.
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

    /// The answer for so many keys is made of `top`, and sent. `now` is when that began.
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
