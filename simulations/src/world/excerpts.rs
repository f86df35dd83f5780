//! What a script did to a key's hash: the part of the hash that concerns the calling node, before and after, and any
//! write outside of it. For a concurrent limit that part is the permits of all nodes. The second opinion judges it.

use std::sync::Arc;

use rationd::core::call::{Call, Op};
use rationd::core::time::Timestamp;
use rationd::store::excerpt::{Excerpt, Occupied, field, field_of_node};

use crate::keyspace::{Keyspace, Written};
use crate::observe::{Dropped, Ran};

/// An observation of the hash that a call is about.
pub(super) struct Look<'a> {
    place: Place<'a>,
    mark: usize,
    was_there: bool,
    /// What was seen so far. It is large, so each part is written in place.
    ran: Ran,
}

/// What is looked at.
struct Place<'a> {
    key: &'a str,
    /// The field of the record of the node that asked.
    record: Vec<u8>,
    now: u64,
    call: &'a Call,
}

impl<'a> Look<'a> {
    /// Reads the hash before the script runs, at this time of the server's clock.
    pub(super) fn before(keyspace: &Keyspace, key: &'a str, node: &Arc<str>, now: u64, call: &'a Call) -> Self {
        let place = Place { key, record: field_of_node(node), now, call };
        let (mark, was_there) = (keyspace.mark(), keyspace.look(key, now).is_some());
        let mut look = Self { place, mark, was_there, ran: Ran { node: node.clone(), ..Ran::default() } };
        look.read(keyspace, 0);
        look
    }

    /// Reads the hash before the script (0), or after it (1).
    fn read(&mut self, keyspace: &Keyspace, when: usize) {
        let (place, ran) = (&self.place, &mut self.ran);
        let Some(entry) = keyspace.look(place.key, place.now) else { return };
        let Some(last) = entry.expires_ms() else {
            ran.stray = Some("a key that never expires".into());
            return;
        };
        // It is there for the whole of its last millisecond.
        let expires = Timestamp((last.unsigned_abs() + 1) * 1_000);
        let read = if matches!(place.call.op, Op::Occupy(_)) {
            Occupied::read(expires, entry.fields()).map(|slots| ran.slots[when] = Some(slots))
        } else {
            let tokens = Excerpt::read(&place.record, &place.call.rule.limits, expires, |name| entry.field(name));
            let hash = Arc::get_mut(&mut ran.hash).expect("nobody else has it yet");
            tokens.map(|tokens| hash[when] = tokens)
        };
        if let Err(unreadable) = read {
            ran.stray = Some(unreadable.seen);
        }
    }

    /// Reads the hash again after the script.
    pub(super) fn after(mut self, keyspace: &Keyspace) -> Ran {
        for written in keyspace.written_since(self.mark, self.place.key) {
            match written {
                Written::Deleted => self.ran.deleted |= self.was_there,
                Written::Field(name, _) if self.place.is_own(name) => {}
                Written::Field(name, before) => self.place.beside(&mut self.ran, keyspace, name, before),
            }
        }
        self.read(keyspace, 1);
        self.ran
    }
}

impl Place<'_> {
    /// Whether a field is this call's to write.
    fn is_own(&self, name: &[u8]) -> bool {
        let limits = self.call.rule.limits.iter().enumerate();
        if matches!(self.call.op, Op::Occupy(_)) {
            // The second opinion compares the permits of all nodes with those of the memory store, and so sees which of
            // them a call wrote or dropped.
            return name.starts_with(b"p:");
        }
        match name {
            [b'e' | b'z' | b'c' | b'o' | b'a' | b'b' | b'd' | b'h'] => true,
            // Shares that other nodes have set aside are dropped when they have lapsed, and written again by a reset.
            [b'a' | b'b' | b'd' | b'h', b':', ..] => self.call.sets_aside(),
            // A reset writes the records of the other nodes again, with little more than when they last asked, so that they stay counted.
            [b'n', b':', ..] if matches!(self.call.op, Op::Reset) => true,
            [_, _] => limits.into_iter().any(|(index, limit)| field(index, limit) == name),
            _ => name == self.record,
        }
    }

    /// Takes note of a write to a field that is not the call's.
    fn beside(&self, ran: &mut Ran, keyspace: &Keyspace, name: &[u8], before: Option<&[u8]>) {
        let is_there = keyspace.get(self.key).is_some_and(|entry| entry.field(name).is_some());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match before.and_then(last_calls) {
            Some((asked_in, id, other)) if !is_there && name.starts_with(b"n:") => {
                ran.dropped.push(Dropped { record: text(name), asked_in, id, other });
            }
            _ => ran.stray = Some(format!("{} was written", text(name))),
        }
    }
}

/// From a node's record in one of the forms that `lua/lib.lua` describes: the census period of its last acquire, the id
/// of that, and the id of its last return, refund or reset.
fn last_calls(record: &[u8]) -> Option<(u64, u64, u64)> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    let seven = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mark = record.iter().position(|byte| !byte.is_ascii_digit())?;
    let (asked_in, behind) = (number(&record[..mark])?, &record[mark + 1..]);
    match record[mark] {
        b' ' => {
            let mut numbers = behind.split(|byte| *byte == b' ');
            Some((asked_in, number(numbers.next()?)?, numbers.nth(1).and_then(number).unwrap_or(0)))
        }
        // The acquire's id is followed by its grant.
        b':' => Some((asked_in, behind.get(..7).map(seven)?, behind.get(14..21).map(seven)?)),
        b';' | b',' => Some((asked_in, behind.get(..7).map(seven)?, 0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::last_calls;

    #[test]
    fn a_record_tells_of_the_last_calls_in_each_of_its_forms() {
        let seven = |number: u64| number.to_le_bytes()[..7].to_vec();
        let long = [b"300:".to_vec(), seven(1 << 40), seven(5), seven(70_000), seven(0), vec![0; 4]].concat();
        assert_eq!(last_calls(&long), Some((300, 1 << 40, 70_000)));
        assert_eq!(last_calls(&long[..20]), None);
        for mark in [";", ","] {
            let short = [b"300".to_vec(), mark.into(), seven(8), vec![5, 0, 1, 2, 3, 4]].concat();
            assert_eq!(last_calls(&short), Some((300, 8, 0)));
        }
        assert_eq!(last_calls(b"300 8 5 9 0 0 17"), Some((300, 8, 9)));
        assert_eq!(last_calls(b"300 8"), Some((300, 8, 0)));
        assert_eq!([last_calls(b"300"), last_calls(b"300?8")], [None, None]);
    }
}
