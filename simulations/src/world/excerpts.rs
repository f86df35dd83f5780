//! What a script did to a key's hash: the hash before and after, as far as it concerns the node that asked, and all
//! that was written beside. Of slots of a concurrent limit all nodes' concern each. For the second opinion; decides
//! nothing.

use std::sync::Arc;

use rationd::core::call::{Call, Op};
use rationd::core::time::Timestamp;
use rationd::store::excerpt::{Excerpt, Occupied, field, field_of_node};

use crate::keyspace::{Keyspace, Written};
use crate::observe::{Dropped, Ran};

/// A look at the hash that a call is about.
pub(super) struct Look<'a> {
    key: &'a str,
    node: &'a Arc<str>,
    /// The field of its record.
    record: Vec<u8>,
    now: u64,
    call: &'a Call,
    mark: usize,
    was_there: bool,
    before: Result<State, String>,
}

/// What a hash says: of tokens, or of slots.
#[derive(Default)]
struct State {
    tokens: Option<Excerpt>,
    slots: Option<Occupied>,
}

impl<'a> Look<'a> {
    /// Looks before the script runs, at this time of the server's clock.
    pub(super) fn before(keyspace: &Keyspace, key: &'a str, node: &'a Arc<str>, now: u64, call: &'a Call) -> Self {
        let (record, mark, was_there) = (field_of_node(node), keyspace.mark(), keyspace.look(key, now).is_some());
        let look = Self { key, node, record, now, call, mark, was_there, before: Ok(State::default()) };
        Self { before: look.read(keyspace), ..look }
    }

    fn read(&self, keyspace: &Keyspace) -> Result<State, String> {
        let Some(entry) = keyspace.look(self.key, self.now) else { return Ok(State::default()) };
        // It is there for the whole of its last millisecond.
        let Some(last) = entry.expires_ms() else { return Err("a key that never expires".into()) };
        let expires = Timestamp((last.unsigned_abs() + 1) * 1_000);
        let state = if matches!(self.call.op, Op::Occupy(_)) {
            Occupied::read(expires, entry.fields()).map(|slots| State { tokens: None, slots: Some(slots) })
        } else {
            let tokens = Excerpt::read(&self.record, &self.call.rule.limits, expires, |name| entry.field(name));
            tokens.map(|tokens| State { tokens, slots: None })
        };
        state.map_err(|unreadable| unreadable.seen)
    }

    /// Looks again after it.
    pub(super) fn after(self, keyspace: &Keyspace) -> Ran {
        let mut ran = Ran { node: self.node.clone(), ..Ran::default() };
        let after = self.read(keyspace);
        for written in keyspace.written_since(self.mark, self.key) {
            match written {
                Written::Deleted => ran.deleted |= self.was_there,
                Written::Field(name, _) if self.is_own(name) => {}
                Written::Field(name, before) => self.beside(&mut ran, keyspace, name, before),
            }
        }
        let mut hash = [None, None];
        for (place, state) in [self.before, after].into_iter().enumerate() {
            match state {
                Ok(State { tokens, slots }) => (hash[place], ran.slots[place]) = (tokens, slots),
                Err(seen) => ran.stray = Some(seen),
            }
        }
        Ran { hash: Arc::new(hash), ..ran }
    }

    /// Whether a field is this call's to write.
    fn is_own(&self, name: &[u8]) -> bool {
        let limits = self.call.rule.limits.iter().enumerate();
        if matches!(self.call.op, Op::Occupy(_)) {
            // Which of them a call may write, and drop, is compared with all that the memory store has left.
            return name.starts_with(b"p:");
        }
        match name {
            [b'e' | b'z' | b'c' | b'o' | b'a' | b'b' | b'd'] => true,
            // Those of other nodes are dropped when they have lapsed, and written again by a reset.
            [b'a' | b'b' | b'd', b':', ..] => self.call.sets_aside(),
            // A reset writes the records of the other nodes again, with little more than when they last asked, so that they stay counted.
            [b'n', b':', ..] if matches!(self.call.op, Op::Reset) => true,
            [_, _] => limits.into_iter().any(|(index, limit)| field(index, limit) == name),
            _ => name == self.record,
        }
    }

    /// Takes note of one that is not.
    fn beside(&self, ran: &mut Ran, keyspace: &Keyspace, name: &[u8], before: Option<&[u8]>) {
        let is_there = keyspace.get(self.key).is_some_and(|entry| entry.field(name).is_some());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match before.and_then(last_acquire) {
            Some((asked_in, id)) if !is_there && name.starts_with(b"n:") => {
                ran.dropped.push(Dropped { record: text(name), asked_in, id });
            }
            _ => ran.stray = Some(format!("{} was written", text(name))),
        }
    }
}

/// The census period of a node's last acquire and its id, by its record in one of the forms that `lua/lib.lua` tells of.
fn last_acquire(record: &[u8]) -> Option<(u64, u64)> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    let mark = record.iter().position(|byte| !byte.is_ascii_digit())?;
    let (asked_in, behind) = (number(&record[..mark])?, &record[mark + 1..]);
    let id = match record[mark] {
        b' ' => number(behind.split(|byte| *byte == b' ').next()?)?,
        b':' | b';' | b',' => behind.get(..7)?.iter().rev().fold(0, |id, byte| id << 8 | u64::from(*byte)),
        _ => return None,
    };
    Some((asked_in, id))
}
