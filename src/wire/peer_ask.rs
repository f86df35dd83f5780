//! What a node asks of a peer, and the answer, as bytes.
//!
//! A frame is a version byte and a body. The body of a version begins with the body of the version before: a build reads
//! the frames of older versions, and the part that it knows of those of the next one. Numbers are little-endian.
//!
//! ```text
//! ask    = version (1) id (8) rule (8) want (8) least (8) patience (4, us) length (1) policy length (2) key aside (1)
//! answer = version (1) id (8) verdict (1): 0, and a loan; or a refusal
//! loan   = tokens (8) lasts (8) earliest (8) latest (8) epoch (8) wait (8) counters (1), each: used (8) prev (8) at (8);
//!          aside (1)
//! ```
//!
//! Version 2 brought `aside`, 0 or 1. A build of version 1 reads nothing of it: it asks for nothing that is set aside, and so is lent nothing
//! of that.
//!
//! Frames come from peers: their size is checked first, and every number is bounded, so that the core may calculate
//! with it. What they say is a claim. The caller checks whether an answer fits what was asked. Called by `serve`.

use std::fmt;

use crate::core::ask::{Answer, Loan, Refusal, Terms};
use crate::core::call::Counter;
use crate::core::limit::{MAX_COUNT, MAX_LIMITS};
use crate::core::time::{Micros, Timestamp};

/// The version that this build writes. It reads all versions before it, and the next one.
pub const VERSION: u8 = 2;

/// The first version that says whether what is set aside is asked for, or lent.
const TELLS_ASIDE: u8 = 2;

/// Longest frame, in bytes.
pub const LONGEST: usize = 1_024;

/// Longest name of a policy in an ask, in bytes. For keys of policies with longer names a node asks the store.
pub const LONGEST_POLICY: usize = 255;

/// Longest key in an ask, in bytes. For longer ones a node asks the store.
pub const LONGEST_KEY: usize = 256;

/// The longest time for which an answer is awaited.
pub const MOST_PATIENCE: Micros = Micros::from_secs(10);

/// Times, epochs and counters are no larger than what the store can count.
const MOST: u64 = MAX_COUNT;

/// Stands for tokens that do not last: they must be spent at once.
const AT_ONCE: u64 = u64::MAX;

/// The verdict of a loan. A refusal's is its place in [`Refusal::ALL`], counted from 1.
const LENT: u8 = 0;

/// What a node asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAsk<'a> {
    /// The answer carries it, too.
    pub id: u64,
    /// The policy's name.
    pub policy: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// What is wanted.
    pub terms: Terms,
}

/// Why bytes are no ask and no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadAsk {
    /// There are none.
    Empty,
    /// There are more than [`LONGEST`].
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// A version that this build does not read.
    Version {
        /// Its number.
        seen: u8,
    },
    /// It cannot be decoded, or a number in it is out of its bounds.
    Malformed,
}

impl fmt::Display for BadAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "an empty frame"),
            Self::TooLong { bytes } => write!(f, "a frame of {bytes} bytes: {LONGEST} are the most"),
            Self::Version { seen } => write!(f, "a frame of version {seen}: this build reads 1 to {}", VERSION + 1),
            Self::Malformed => write!(f, "bytes that are no ask and no answer"),
        }
    }
}

impl std::error::Error for BadAsk {}

impl<'a> PeerAsk<'a> {
    /// Encodes the ask; `None` when its policy or key is too long, or nobody waits for the answer.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let Self { id, policy, key, terms } = self;
        if key.len() > LONGEST_KEY || terms.patience == Micros::ZERO {
            return None;
        }
        let policy_len = u8::try_from(policy.len()).ok()?;
        let patience = terms.patience.min(MOST_PATIENCE).0 as u32; // ten seconds at most
        let mut bytes = vec![VERSION];
        for number in [*id, terms.rule, terms.want, terms.least] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(patience.to_le_bytes());
        bytes.push(policy_len);
        bytes.extend(policy.as_bytes());
        bytes.extend((key.len() as u16).to_le_bytes()); // at most LONGEST_KEY
        bytes.extend(*key);
        bytes.push(terms.aside.into());
        Some(bytes)
    }

    /// Decodes an ask.
    ///
    /// # Errors
    /// The bytes are no complete ask of a version that this build reads.
    pub fn decode(frame: &'a [u8]) -> Result<Self, BadAsk> {
        let mut body = Body::of(frame)?;
        let ask = body.ask().ok_or(BadAsk::Malformed)?;
        body.end()?;
        Ok(ask)
    }
}

/// Encodes the answer to the ask of that id.
#[must_use]
pub fn encode_answer(id: u64, answer: &Answer) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(id.to_le_bytes());
    let loan = match answer {
        Ok(loan) => loan,
        Err(refusal) => {
            bytes.push(1 + *refusal as u8);
            return bytes;
        }
    };
    bytes.push(LENT);
    let lasts = loan.lasts.map_or(AT_ONCE, |lasts| lasts.0.min(MOST));
    let [earliest, latest] = loan.clock.map(|at| at.0);
    for number in [loan.tokens, lasts, earliest, latest, loan.epoch, loan.wait.0.min(MOST)] {
        bytes.extend(number.to_le_bytes());
    }
    // Counters beyond the limits of the rule are zero.
    let last = loan.counters.iter().rposition(|counter| *counter != Counter::default());
    let used = &loan.counters[..last.map_or(0, |last| last + 1)];
    bytes.push(used.len() as u8); // at most MAX_LIMITS
    for number in used.iter().flat_map(|counter| [counter.used, counter.prev, counter.at.0]) {
        bytes.extend(number.to_le_bytes());
    }
    bytes.push(loan.aside.into());
    bytes
}

/// Decodes an answer, and the id of its ask.
///
/// # Errors
/// The bytes are no complete answer of a version that this build reads.
pub fn decode_answer(frame: &[u8]) -> Result<(u64, Answer), BadAsk> {
    let mut body = Body::of(frame)?;
    let answer = body.answer().ok_or(BadAsk::Malformed)?;
    body.end()?;
    Ok(answer)
}

/// The part of a frame that is still to be read, and its version.
struct Body<'a>(&'a [u8], u8);

impl<'a> Body<'a> {
    fn of(frame: &'a [u8]) -> Result<Self, BadAsk> {
        let (version, body) = frame.split_first().ok_or(BadAsk::Empty)?;
        if frame.len() > LONGEST {
            return Err(BadAsk::TooLong { bytes: frame.len() });
        }
        if !(1..=VERSION + 1).contains(version) {
            return Err(BadAsk::Version { seen: *version });
        }
        Ok(Self(body, *version))
    }

    /// Checks that nothing is left unread. Only a frame of the next version may have more, which this build does not
    /// know.
    fn end(&self) -> Result<(), BadAsk> {
        if self.1 <= VERSION && !self.0.is_empty() { Err(BadAsk::Malformed) } else { Ok(()) }
    }

    /// Reads `aside`, which frames of version 1 do not have: they count as false.
    fn aside(&mut self) -> Option<bool> {
        if self.1 < TELLS_ASIDE {
            return Some(false);
        }
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            [_] => None,
        }
    }

    fn ask(&mut self) -> Option<PeerAsk<'a>> {
        let (id, rule, want, least) = (self.number()?, self.number()?, self.number()?, self.number()?);
        let patience = Micros(u32::from_le_bytes(self.take()?).into());
        let [length] = self.take()?;
        let policy = std::str::from_utf8(self.bytes(length.into())?).ok()?;
        let length = u16::from_le_bytes(self.take()?);
        let key = self.bytes(length.into()).filter(|key| key.len() <= LONGEST_KEY)?;
        let aside = self.aside()?;
        let is_sound = (1..=want).contains(&least) && want <= MOST;
        let is_in_time = patience > Micros::ZERO && patience <= MOST_PATIENCE;
        let terms = Terms { rule, want, least, patience, aside };
        (is_sound && is_in_time).then_some(PeerAsk { id, policy, key, terms })
    }

    fn answer(&mut self) -> Option<(u64, Answer)> {
        let id = self.number()?;
        let [verdict] = self.take()?;
        if verdict != LENT {
            let refusal = Refusal::ALL.get(usize::from(verdict) - 1)?;
            return Some((id, Err(*refusal)));
        }
        let tokens = self.bounded()?;
        let lasts = match self.number()? {
            AT_ONCE => None,
            lasts if lasts > MOST => return None,
            lasts => Some(Micros(lasts)),
        };
        let [earliest, latest, epoch, wait] = [self.bounded()?, self.bounded()?, self.bounded()?, self.bounded()?];
        let [length] = self.take()?;
        let mut counters = [Counter::default(); MAX_LIMITS];
        for counter in counters.get_mut(..usize::from(length))? {
            *counter = Counter { used: self.bounded()?, prev: self.bounded()?, at: Timestamp(self.bounded()?) };
        }
        let clock = [Timestamp(earliest), Timestamp(latest)];
        let aside = self.aside()?;
        let loan = Loan { tokens, lasts, clock, epoch, counters, wait: Micros(wait), aside };
        (earliest <= latest).then_some((id, Ok(loan)))
    }

    fn bounded(&mut self) -> Option<u64> {
        self.number().filter(|number| *number <= MOST)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { rule: 0x0102_0304, want: 7, least: 2, patience: Micros(5_000), aside: true };
    const ASK: PeerAsk<'_> = PeerAsk { id: 0x0a0b, policy: "api", key: b"user:42", terms: TERMS };

    fn loan() -> Loan {
        let mut counters = [Counter::default(); MAX_LIMITS];
        counters[0] = Counter { used: 9, prev: 1, at: Timestamp(1_800_000_060_000_000) };
        counters[1] = Counter { used: 70, prev: 0, at: Timestamp(1_800_003_600_000_000) };
        Loan {
            tokens: 7,
            lasts: Some(Micros(250_000)),
            clock: [Timestamp(1_800_000_000_000_000), Timestamp(1_800_000_000_000_900)],
            epoch: 3,
            counters,
            wait: Micros(0),
            aside: true,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    /// These tests are kept forever: a build that writes other bytes cannot ask older ones.
    #[test]
    fn a_golden_ask_of_version_2_is_written_and_one_of_each_version_is_read() {
        let frame = ASK.encode().expect("it is short");
        let numbers = "0b0a00000000000004030201000000000700000000000000020000000000000088130000";
        let body = format!("{numbers}03{}0700{}", hex(b"api"), hex(b"user:42"));
        assert_eq!(hex(&frame), format!("02{body}01"));
        assert_eq!(PeerAsk::decode(&frame), Ok(ASK));
        let of_before = PeerAsk { terms: Terms { aside: false, ..TERMS }, ..ASK };
        assert_eq!(PeerAsk::decode(&bytes(&format!("01{body}"))), Ok(of_before));
    }

    #[test]
    fn golden_answers_of_version_2_are_written_and_those_of_each_version_are_read() {
        for (place, refusal) in Refusal::ALL.into_iter().enumerate() {
            let frame = encode_answer(5, &Err(refusal));
            assert_eq!(hex(&frame), format!("020500000000000000{:02x}", place + 1));
            assert_eq!(decode_answer(&frame), Ok((5, Err(refusal))));
            assert_eq!(decode_answer(&[&[1], &frame[1..]].concat()), Ok((5, Err(refusal))));
        }
        let frame = encode_answer(5, &Ok(loan()));
        assert_eq!(hex(&frame), format!("02050000000000000000{GOLDEN}01"));
        assert_eq!(decode_answer(&frame), Ok((5, Ok(loan()))));
        let of_before = Loan { aside: false, ..loan() };
        assert_eq!(decode_answer(&bytes(&format!("01050000000000000000{GOLDEN}"))), Ok((5, Ok(of_before))));
    }
    const GOLDEN: &str = concat!(
        "0700000000000000",
        "90d0030000000000",
        "0080982817650600",
        "8483982817650600",
        "0300000000000000",
        "0000000000000000",
        "02",
        "0900000000000000",
        "0100000000000000",
        "00072c2c17650600",
        "4600000000000000",
        "0000000000000000",
        "00242cff17650600",
    );

    #[test]
    fn who_has_longer_names_or_no_time_asks_the_store() {
        let long = "p".repeat(LONGEST_POLICY + 1);
        assert_eq!(PeerAsk { policy: &long, ..ASK }.encode(), None);
        assert_eq!(PeerAsk { key: &[7; LONGEST_KEY + 1], ..ASK }.encode(), None);
        assert_eq!(PeerAsk { terms: Terms { patience: Micros(0), ..TERMS }, ..ASK }.encode(), None);
        let longest = PeerAsk { policy: &long[1..], key: &[7; LONGEST_KEY], ..ASK };
        let frame = longest.encode().expect("these are the longest");
        assert!(frame.len() <= LONGEST);
        assert_eq!(PeerAsk::decode(&frame), Ok(longest));
    }

    #[test]
    fn a_frame_of_the_next_version_is_read_as_far_as_it_is_known() {
        let next = |frame: Vec<u8>| [&[VERSION + 1], &frame[1..], b"more"].concat();
        assert_eq!(PeerAsk::decode(&next(ASK.encode().expect("it is short"))), Ok(ASK));
        assert_eq!(decode_answer(&next(encode_answer(5, &Ok(loan())))), Ok((5, Ok(loan()))));
    }

    #[test]
    fn anything_else_is_refused_and_said() {
        let (ask, answer) = (ASK.encode().expect("it is short"), encode_answer(5, &Ok(loan())));
        assert_eq!(PeerAsk::decode(&[]), Err(BadAsk::Empty));
        assert_eq!(PeerAsk::decode(&[0; 60]), Err(BadAsk::Version { seen: 0 }));
        assert_eq!(decode_answer(&[VERSION + 2; 60]), Err(BadAsk::Version { seen: VERSION + 2 }));
        assert_eq!(decode_answer(&vec![VERSION; LONGEST + 1]), Err(BadAsk::TooLong { bytes: LONGEST + 1 }));
        assert!((1..ask.len()).all(|end| PeerAsk::decode(&ask[..end]) == Err(BadAsk::Malformed)));
        assert!((1..answer.len()).all(|end| decode_answer(&answer[..end]) == Err(BadAsk::Malformed)));
        for frame in [&ask, &answer] {
            let longer = [&frame[..], &[0]].concat();
            assert!(PeerAsk::decode(&longer).is_err() && decode_answer(&longer).is_err());
        }
        let unknown = [&encode_answer(5, &Err(Refusal::Busy))[..9], &[1 + Refusal::ALL.len() as u8]].concat();
        assert_eq!(decode_answer(&unknown), Err(BadAsk::Malformed));
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let ask = |terms| PeerAsk::decode(&PeerAsk { terms, ..ASK }.encode().expect("it is short")).map(|_| ());
        assert_eq!(ask(TERMS), Ok(()));
        assert_eq!(ask(Terms { least: 0, ..TERMS }), Err(BadAsk::Malformed));
        assert_eq!(ask(Terms { least: 8, ..TERMS }), Err(BadAsk::Malformed));
        assert_eq!(ask(Terms { want: MOST + 1, ..TERMS }), Err(BadAsk::Malformed));
        let answer = |loan| decode_answer(&encode_answer(5, &Ok(loan))).map(|_| ());
        let [earliest, latest] = loan().clock;
        assert_eq!(answer(Loan { lasts: None, ..loan() }), Ok(()));
        assert_eq!(answer(Loan { tokens: MOST + 1, ..loan() }), Err(BadAsk::Malformed));
        assert_eq!(answer(Loan { clock: [latest, earliest], ..loan() }), Err(BadAsk::Malformed));
        assert_eq!(answer(Loan { clock: [earliest, Timestamp(MOST + 1)], ..loan() }), Err(BadAsk::Malformed));
        assert_eq!(answer(Loan { epoch: MOST + 1, ..loan() }), Err(BadAsk::Malformed));
    }

    proptest! {
        #[test]
        fn what_is_read_of_any_bytes_is_written_as_the_same(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            // Most random bytes name a version that is not read, so each frame is also tried with a known one before
            // it.
            for frame in [bytes.clone(), [&[VERSION], &bytes[..]].concat()] {
                if let Ok(ask) = PeerAsk::decode(&frame) {
                    let again = ask.encode().expect("it was short");
                    prop_assert_eq!(PeerAsk::decode(&again), Ok(ask));
                }
                if let Ok((id, answer)) = decode_answer(&frame) {
                    prop_assert_eq!(decode_answer(&encode_answer(id, &answer)), Ok((id, answer)));
                }
            }
        }

        #[test]
        fn asks_arrive_as_they_were_sent(
            (id, rule, want) in (any::<u64>(), any::<u64>(), 1..=MOST),
            (part, patience) in (0.0..=1.0_f64, 1..=MOST_PATIENCE.0),
            policy in "\\PC{0,60}",
            key in prop::collection::vec(any::<u8>(), 0..=LONGEST_KEY),
        ) {
            let least = ((want as f64 * part) as u64).clamp(1, want);
            let terms = Terms { rule, want, least, patience: Micros(patience), aside: want % 2 == 0 };
            let ask = PeerAsk { id, policy: &policy, key: &key, terms };
            let frame = ask.encode().expect("it is short");
            prop_assert!(frame.len() <= LONGEST);
            prop_assert_eq!(PeerAsk::decode(&frame), Ok(ask));
        }

        #[test]
        fn loans_arrive_as_they_were_lent(
            id in any::<u64>(),
            numbers in prop::collection::vec(0..=MOST, 5 + 3 * MAX_LIMITS),
            lasts in prop::option::of(0..=MOST),
            limits in 0..=MAX_LIMITS,
        ) {
            let mut counters = [Counter::default(); MAX_LIMITS];
            for (counter, numbers) in counters.iter_mut().zip(numbers[5..].chunks(3)).take(limits) {
                *counter = Counter { used: numbers[0], prev: numbers[1], at: Timestamp(numbers[2]) };
            }
            let clock = [numbers[1].min(numbers[2]), numbers[1].max(numbers[2])].map(Timestamp);
            let (tokens, lasts, epoch) = (numbers[0], lasts.map(Micros), numbers[3]);
            let aside = tokens % 2 == 0;
            let loan = Loan { tokens, lasts, clock, epoch, counters, wait: Micros(numbers[4]), aside };
            let frame = encode_answer(id, &Ok(loan));
            prop_assert!(frame.len() <= LONGEST);
            prop_assert_eq!(decode_answer(&frame), Ok((id, Ok(loan))));
        }
    }
}
