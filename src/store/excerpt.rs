//! The state of one key in a store, as far as it affects the calls of one node under some limits. Both stores can be
//! described in these terms, so that tests can compare their states.
//!
//! The memory store reads and writes an excerpt; the scripts' hash is only read here, by the fields that
//! `lua/lib.lua` describes. Records of other nodes are not part of it. Knows no connection, and the daemon does not
//! use it.

use std::collections::BTreeMap;

use super::aside::{Aside, Form, PART, Part, SUMS, Sums};
use super::census::RECORD;
use super::script::WIDTH;
use super::silent::Silent;
use crate::core::call::Counter;
use crate::core::entitled::window_end;
use crate::core::gcra::UNIT;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::time::{Micros, Timestamp};

/// One key, as one node's calls see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// Below 2^53, never 0.
    pub epoch: u64,
    /// The epoch began with a reset.
    pub reset: bool,
    /// When the key is forgotten.
    pub expires: Timestamp,
    /// The counter of each limit, where one is stored. A zero counter means what a missing one means, but it is
    /// written again.
    pub counters: [Option<Counter>; MAX_LIMITS],
    /// The field `c`.
    pub census: Option<[u64; 4]>,
    /// The field `o`, zeros if it is missing or nothing is lent.
    pub lent: [u64; 3],
    /// The field `n:NODE`, in whichever of its forms; windows that it does not name are zero.
    pub record: Option<[u64; RECORD]>,
    /// The field `a`, or `b` where the limit is a bucket, `d` where it is a sliding one, or `h` where its windows open with the first
    /// request; zeros if it is missing.
    pub aside: [u64; SUMS],
    /// The field `a:NODE`, `b:NODE`, `d:NODE` or `h:NODE`.
    pub part: Option<[u64; PART]>,
}

/// The permits of a key of concurrent limits: those of all nodes, since each of them counts in the call of any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// When the key is forgotten.
    pub expires: Timestamp,
    /// The field `p:NODE` of each node: the id of its last call, its permits, and when they lapse.
    pub nodes: BTreeMap<Box<str>, [u64; 3]>,
}

/// Bytes of each number of the fields `a`, `d` and `h`, of `b`, and of `a:NODE` and its like.
const WINDOW_SUMS: [usize; SUMS - 3] = [4, 7, 7, 7, 7, 7, 7, 7];
const BUCKET_SUMS: [usize; SUMS] = [4, 6, 6, 6, 6, 4, 6, 6, 7, 7, 3];
const PART_WIDTHS: [usize; PART] = [4, 7, 7, 7, 7];

/// A field with a content that no script writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The name of the field and its content.
    pub seen: String,
}

/// The name of the field for the limit at `index`.
#[must_use]
pub fn field(index: usize, limit: &Limit) -> [u8; 2] {
    let letter = match limit.algorithm {
        Algorithm::Gcra => b'g',
        Algorithm::Fixed => b'f',
        Algorithm::FixedFromFirst => b'o',
        Algorithm::Sliding | Algorithm::Concurrent => b's',
    };
    [letter, b'1' + index as u8] // at most 8
}

/// The name of the field for a node.
#[must_use]
pub fn field_of_node(node: &str) -> Vec<u8> {
    [b"n:", &node.as_bytes()[..node.len().min(255)]].concat()
}

impl Excerpt {
    /// The store's own counter behind one that an answer reported: answers count tokens that are set aside for other
    /// nodes as used, and this does not.
    #[must_use]
    pub fn counted(&self, limit: &Limit, now: Timestamp, shown: Counter) -> Counter {
        let (sums, part) = (Sums::of(self.aside), Part::of(self.part.unwrap_or_default()));
        let aside = match limit.algorithm {
            Algorithm::Gcra => Silent::new(sums, part, limit, now, now.0 / UNIT.0, (Timestamp::default(), 0)).shown(),
            Algorithm::FixedFromFirst => Aside::new(sums, part, limit, now, shown.at).shown(),
            _ => {
                let end = window_end(limit, now);
                let at = if limit.algorithm == Algorithm::Sliding { end - limit.period } else { end };
                Aside::new(sums, part, limit, now, at).shown()
            }
        };
        let stored = self.counters[0].unwrap_or_default().rolled(limit, now);
        let prev = if limit.algorithm == Algorithm::Sliding { stored.prev } else { shown.prev };
        Counter { used: shown.used.saturating_sub(aside), prev, ..shown }
    }

    /// The most that an acquire of this node may charge a bucket for nodes that were silent, as time and as tokens,
    /// beside what it is lent and owes; and whether tokens that it reports as spent count as spent now.
    #[must_use]
    pub fn silence(&self, limit: &Limit, now: Timestamp) -> (Micros, u64, bool) {
        let (sums, part) = (Sums::of(self.aside), Part::of(self.part.unwrap_or_default()));
        let silent = Silent::new(sums, part, limit, now, now.0 / UNIT.0, (Timestamp::default(), 0));
        let (charge, tokens) = silent.due();
        (charge, tokens, silent.is_late(now))
    }

    /// Tokens of each window that stay set aside for this node.
    #[must_use]
    pub fn entitled(&self) -> u64 {
        self.part.map_or(0, |[_, held, ..]| held)
    }

    /// Whether two excerpts are equal but for the key's expiry.
    #[must_use]
    pub fn says_as(&self, other: &Self) -> bool {
        let counters = |excerpt: &Self| excerpt.counters.map(Option::unwrap_or_default);
        counters(self) == counters(other) && *self == Self { expires: self.expires, counters: self.counters, ..*other }
    }

    /// Reads an excerpt from the fields of the scripts' hash; `node` is the name of the node's field. `None` when the
    /// hash does not exist.
    ///
    /// # Errors
    /// [`Unreadable`] when a field has a content that no script writes.
    pub fn read<'a>(
        node: &[u8],
        limits: &[Limit],
        expires: Timestamp,
        value: impl Fn(&[u8]) -> Option<&'a [u8]>,
    ) -> Result<Option<Self>, Unreadable> {
        let numbers = |name: &[u8], list: &mut [u64], least: usize| match value(name) {
            None => Ok(false),
            Some(text) => parse(text, list, least).ok_or_else(|| unreadable(name, text)).map(|()| true),
        };
        let (mut epoch, mut census, mut lent, mut record) = ([0], [0; 4], [0; 3], [0; RECORD]);
        let is_counted = numbers(b"c", &mut census, 4)?;
        let is_known = match value(node) {
            None => false,
            Some(text) => {
                packed(text, &mut record)
                    .or_else(|| parse(text, &mut record, 6))
                    .ok_or_else(|| unreadable(node, text))?;
                true
            }
        };
        numbers(b"o", &mut lent, 3)?;
        if lent[0] + lent[1] == 0 {
            lent = [0; 3];
        }
        let binary = |name: &[u8], list: &mut [u64], widths: &[usize]| match value(name) {
            None => Ok(false),
            Some(text) => numbers_of(text, list, widths).ok_or_else(|| unreadable(name, text)).map(|()| true),
        };
        let (mut aside, mut part) = ([0; SUMS], [0; PART]);
        let (name, widths): (&[u8], &[usize]) = match Form::of(limits) {
            Form::Window => (b"a", &WINDOW_SUMS),
            Form::Bucket => (b"b", &BUCKET_SUMS),
            Form::Sliding => (b"d", &WINDOW_SUMS),
            Form::Opened => (b"h", &WINDOW_SUMS),
        };
        binary(name, &mut aside, widths)?;
        let part = binary(&[name, b":", &node[2..]].concat(), &mut part, &PART_WIDTHS)?.then_some(part);
        let mut counters = [None; MAX_LIMITS];
        for (index, limit) in limits.iter().enumerate() {
            let mut stored = [0; 3];
            if numbers(&field(index, limit), &mut stored, 3)? {
                counters[index] = Some(counter(limit, stored));
            }
        }
        if !numbers(b"e", &mut epoch, 1)? {
            let stray = value(b"z").or_else(|| value(node)).or_else(|| value(b"c"));
            return stray.map_or(Ok(None), |text| Err(unreadable(b"e", text)));
        }
        Ok(Some(Self {
            epoch: epoch[0],
            reset: value(b"z") == Some(b"1"),
            expires,
            counters,
            census: is_counted.then_some(census),
            lent,
            record: is_known.then_some(record),
            aside,
            part,
        }))
    }
}

impl Occupied {
    /// Reads the fields of the scripts' hash.
    ///
    /// # Errors
    /// [`Unreadable`] when a field is none that `lua/occupy.lua` writes, or has another content.
    pub fn read<'a>(
        expires: Timestamp,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, Unreadable> {
        let mut nodes = BTreeMap::new();
        for (name, text) in fields {
            let mut numbers = [0; 3];
            let node = name.strip_prefix(b"p:").and_then(|node| std::str::from_utf8(node).ok());
            match (node, parse(text, &mut numbers, 3)) {
                (Some(node), Some(())) => nodes.insert(node.into(), numbers),
                _ => return Err(unreadable(name, text)),
            };
        }
        Ok(Self { expires, nodes })
    }
}

fn counter(limit: &Limit, [used, prev, at]: [u64; 3]) -> Counter {
    match limit.algorithm {
        Algorithm::Gcra => Counter { used: 0, prev: prev * 1_000_000 + used, at: Timestamp(at) },
        _ => Counter { used, prev, at: Timestamp(at) },
    }
}

/// Parses at least `least` numbers, and at most as many as `list` has room for.
fn parse(text: &[u8], list: &mut [u64], least: usize) -> Option<()> {
    let (mut count, mut number, mut digits) = (0, 0, 0);
    for byte in text {
        match byte {
            b'0'..=b'9' if digits < 16 => {
                number = number * 10 + u64::from(byte - b'0');
                digits += 1;
            }
            b' ' if digits > 0 => {
                *list.get_mut(count)? = number;
                (count, number, digits) = (count + 1, 0, 0);
            }
            _ => return None,
        }
    }
    *list.get_mut(count).filter(|_| digits > 0)? = number;
    (count + 1 >= least).then_some(())
}

/// Parses a record in one of its binary forms: the census period as digits, and behind a colon numbers of seven bytes each,
/// except for one of four; or behind a semicolon or comma the three numbers of the short form.
fn packed(text: &[u8], record: &mut [u64; RECORD]) -> Option<()> {
    let digits = text.iter().position(|byte| !byte.is_ascii_digit())?;
    let (mut list, mark, mut rest) = ([0; RECORD], text[digits], &text[digits + 1..]);
    parse(&text[..digits], &mut list[..1], 1)?;
    let mut next = |width: usize| {
        let (bytes, behind) = rest.split_at_checked(width)?;
        rest = behind;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    match mark {
        b':' => {
            for (place, number) in list.iter_mut().enumerate().skip(1) {
                match next(if place == 5 { 4 } else { WIDTH }) {
                    Some(value) => *number = value,
                    None if place >= 6 => break,
                    None => return None,
                }
            }
        }
        b';' | b',' => {
            (list[1], list[2]) = (next(WIDTH)?, next(2)?);
            let seconds = next(4)?;
            *(if mark == b';' { &mut list[6] } else { &mut list[5] }) = seconds;
            list[6] *= 1_000_000;
        }
        _ => return None,
    }
    *record = list;
    rest.is_empty().then_some(())
}

/// Numbers as the scripts pack them, the lowest byte first: of so many bytes each.
fn numbers_of(mut text: &[u8], list: &mut [u64], widths: &[usize]) -> Option<()> {
    for (place, width) in list.iter_mut().zip(widths) {
        let (number, rest) = text.split_at_checked(*width)?;
        *place = number.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        text = rest;
    }
    text.is_empty().then_some(())
}

fn unreadable(name: &[u8], text: &[u8]) -> Unreadable {
    let [name, text] = [name, text].map(String::from_utf8_lossy);
    Unreadable { seen: format!("{name} = `{text}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &[(&str, &str)]) -> Result<Option<Excerpt>, Unreadable> {
        let limits = [Limit::parse("9/1s fixed").unwrap(), Limit::parse("9/1s").unwrap()];
        let value = |name: &[u8]| {
            let field = fields.iter().find(|(field, _)| field.as_bytes() == name);
            field.map(|(_, value)| value.as_bytes())
        };
        Excerpt::read(&field_of_node("a"), &limits, Timestamp(7), value)
    }

    #[test]
    fn fields_become_numbers() {
        let fields =
            [("e", "5"), ("z", "1"), ("c", "1 2 3 4"), ("o", "1 2 3"), ("n:a", "1 2 3 4 5 6 7"), ("f1", "1 2 3")];
        let seen = read(&fields).unwrap().unwrap();
        assert_eq!((seen.epoch, seen.reset, seen.census, seen.lent), (5, true, Some([1, 2, 3, 4]), [1, 2, 3]));
        assert_eq!(seen.record.unwrap()[..8], [1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(seen.counters[..2], [Some(Counter { used: 1, prev: 2, at: Timestamp(3) }), None]);
    }

    #[test]
    fn slots_are_read_of_all_nodes_and_what_is_no_slot_is_told() {
        let read = |fields: &[(&'static str, &'static str)]| {
            Occupied::read(Timestamp(7), fields.iter().map(|(name, text)| (name.as_bytes(), text.as_bytes())))
        };
        let occupied = read(&[("p:a", "5 2 9"), ("p:b c", "6 0 8")]).unwrap();
        assert_eq!((occupied.expires, occupied.nodes.len()), (Timestamp(7), 2));
        assert_eq!((occupied.nodes["a"], occupied.nodes["b c"]), ([5, 2, 9], [6, 0, 8]));
        for field in [("e", "5"), ("p:a", "5 2"), ("p:a", "5 2 9 1"), ("p:a", "5 2 x")] {
            assert!(read(&[field]).is_err(), "{field:?}");
        }
    }

    #[test]
    fn record_is_read_in_all_its_forms() {
        let bytes = |numbers: &[u64], width: usize| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width)).collect()
        };
        let record = [&b"1:"[..], &bytes(&[2, 3, 4, 5], 7), &bytes(&[6], 4), &bytes(&[7], 7)].concat();
        let read = |record: &[u8]| {
            let mut list = [0; RECORD];
            packed(record, &mut list).map(|()| list)
        };
        assert_eq!(read(&record).unwrap()[..8], [1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(read(&record[..34]).unwrap()[..8], [1, 2, 3, 4, 5, 6, 0, 0], "without a window");
        let short = |mark: &[u8]| [b"1", mark, &bytes(&[2], 7), &bytes(&[3], 2), &bytes(&[4], 4)].concat();
        assert_eq!(read(&short(b";")).unwrap()[..8], [1, 2, 3, 0, 0, 0, 4_000_000, 0], "of a window");
        assert_eq!(read(&short(b",")).unwrap()[..8], [1, 2, 3, 0, 0, 4, 0, 0], "of a bucket");
        let [short_of_one, long] = [short(b";")[..14].to_vec(), [&short(b",")[..], b"0"].concat()];
        for wrong in [&short_of_one[..], &long, &record[1..], &record[..33], &record[..40], b"1 2 3 4 5 6", b":"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn bucket_has_its_depth_in_two_numbers() {
        let seen = read(&[("e", "5"), ("g2", "1 2 3")]).unwrap().unwrap();
        assert_eq!(seen.counters[1], Some(Counter { used: 0, prev: 2_000_001, at: Timestamp(3) }));
    }

    #[test]
    fn zeros_say_what_absence_says() {
        let [zeros, none] =
            [&[("e", "5"), ("f1", "0 0 0")][..], &[("e", "5")]].map(|fields| read(fields).unwrap().unwrap());
        assert!(zeros.says_as(&none) && !Excerpt { epoch: 6, ..zeros }.says_as(&none));
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn what_no_script_writes_is_told() {
        for field in [("e", "x"), ("f1", "1 2"), ("c", "1 2 3 4 5"), ("n:a", "1  2 3 4 5 6"), ("o", "")] {
            assert!(read(&[("e", "5"), field]).is_err() || field.0 == "e", "{field:?}");
        }
        assert!(read(&[("e", "x")]).is_err() && read(&[("z", "1")]).is_err());
    }
}
