//! The part of a Redis server that the scripts touch: hashes by key, with expiry, in virtual time.
//!
//! Semantics are those of Redis 7, and `tests/differential` holds them to a real server. Knows
//! no Lua and no network: `lua.rs` carries the commands of a script here, the world carries its
//! faults. What a script writes is kept in a journal, because a failover to a replica that lags
//! undoes the last writes; what the world itself does (flush, evict, move) is final.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// The name of a key.
pub type Key = Rc<str>;

/// A field of a hash, or its value.
pub type Bytes = Rc<[u8]>;

/// Redis' words for a hash command on another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The commands.
pub const COMMANDS: [&str; 8] = ["HMGET", "HSET", "HDEL", "HKEYS", "HGETALL", "HLEN", "DEL", "PEXPIRE"];

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number.
    Integer(i64),
    /// Strings; `None` is nil.
    Strings(Vec<Option<Bytes>>),
    /// Redis' error line.
    Error(String),
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    value: Value,
    /// The last millisecond in which it is there; `None` = for ever.
    expires: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Hash(Hash),
    Text(Bytes),
}

/// Fields in their order as bytes. Redis promises none; this one repeats itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Hash(Vec<Pair>);

/// A field and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    /// The field's first bytes stand beside it, too, because most fields differ in them and many have no more.
    head: u64,
    field: Bytes,
    value: Bytes,
}

/// The first eight bytes of a field, in their order, with zeros behind them where there are fewer.
fn head(field: &[u8]) -> u64 {
    match field.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        // Most have two.
        None => field.iter().fold(0, |head, byte| head << 8 | u64::from(*byte)) << (8 * (8 - field.len()) % 64),
    }
}

/// What a command wrote.
#[derive(Clone, Debug)]
struct Change {
    at: u64,
    key: Key,
    before: Before,
}

/// What was there before: no more of it than was written, as keys have a field for each node.
#[derive(Clone, Debug)]
enum Before {
    Entry(Option<Entry>),
    Fields(Vec<(Bytes, Option<Bytes>)>),
    Expires(Option<i64>),
}

/// Something that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written<'a> {
    /// The key was deleted, or had expired.
    Deleted,
    /// A field was set or deleted, and this is what it held before.
    Field(&'a [u8], Option<&'a [u8]>),
}

/// One server's keys.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    entries: BTreeMap<Key, Entry>,
    journal: VecDeque<Change>,
    now: u64,
}

impl Entry {
    /// Its fields and their values in order, or nothing if it holds no hash.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = if let Value::Hash(hash) = &self.value { hash.0.as_slice() } else { &[] };
        fields.iter().map(|pair| (&*pair.field, &*pair.value))
    }

    /// What a field of its hash holds.
    #[must_use]
    pub fn field(&self, field: &[u8]) -> Option<&[u8]> {
        let Value::Hash(hash) = &self.value else { return None };
        hash.find(field).ok().map(|place| &*hash.0[place].value)
    }

    /// The string it holds, if it holds no hash.
    #[must_use]
    pub fn text(&self) -> Option<&[u8]> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The last millisecond in which it is there; `None` = for ever.
    #[must_use]
    pub fn expires_ms(&self) -> Option<i64> {
        self.expires
    }

    /// As it is handed from a server whose clock shows `leaves` to one whose clock shows `arrives`, as `MIGRATE` does it:
    /// with the time that it has left.
    #[must_use]
    pub fn handed_over(&self, leaves: u64, arrives: u64) -> Self {
        let expires = self.expires.map(|last| last - millis(leaves) + millis(arrives));
        Self { expires, ..self.clone() }
    }

    fn is_past(&self, now_us: u64) -> bool {
        self.expires.is_some_and(|last| millis(now_us) > last)
    }
}

impl Hash {
    fn find(&self, field: &[u8]) -> Result<usize, usize> {
        let wanted = head(field);
        let is_short = field.len() <= 8;
        self.0.binary_search_by(|pair| {
            pair.head.cmp(&wanted).then_with(|| match is_short && pair.field.len() <= 8 {
                true => pair.field.len().cmp(&field.len()),
                false => (*pair.field).cmp(field),
            })
        })
    }

    fn get(&self, field: &[u8]) -> Option<Bytes> {
        self.find(field).ok().map(|place| self.0[place].value.clone())
    }

    /// Gives what the field was before.
    fn set(&mut self, field: &[u8], value: Option<&[u8]>) -> (Bytes, Option<Bytes>) {
        match (self.find(field), value) {
            (Ok(place), Some(value)) => {
                let pair = &mut self.0[place];
                (pair.field.clone(), Some(std::mem::replace(&mut pair.value, value.into())))
            }
            (Ok(place), None) => {
                let Pair { field, value, .. } = self.0.remove(place);
                (field, Some(value))
            }
            (Err(place), Some(value)) => {
                let field = Bytes::from(field);
                self.0.insert(place, Pair { head: head(&field), field: field.clone(), value: value.into() });
                (field, None)
            }
            (Err(_), None) => (field.into(), None),
        }
    }
}

fn millis(us: u64) -> i64 {
    (us / 1_000) as i64 // below 2^54
}

/// As strict as Redis: no sign before a positive number, no zeros before others.
fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

fn error(text: &str) -> Reply {
    Reply::Error(text.into())
}

impl Keyspace {
    /// Begins a script, or a command outside of one: all that follows happens at this time of the
    /// server's clock.
    pub fn begin(&mut self, now_us: u64) {
        self.now = now_us;
    }

    /// Executes a command on a key at the time of the last [`Self::begin`].
    pub fn execute<A: AsRef<[u8]>>(&mut self, command: &[u8], key: &str, arguments: &[A]) -> Reply {
        self.forget_if_past(key);
        match (command, arguments) {
            (b"HMGET", [_, ..]) => self.hmget(key, arguments),
            (b"HSET", [_, _, ..]) if arguments.len().is_multiple_of(2) => self.hset(key, arguments),
            (b"HDEL", [_, ..]) => self.hdel(key, arguments),
            (b"HKEYS", []) => {
                self.read(key, |hash| Reply::Strings(hash.0.iter().map(|pair| Some(pair.field.clone())).collect()))
            }
            (b"HGETALL", []) => {
                let pair = |pair: &Pair| [Some(pair.field.clone()), Some(pair.value.clone())];
                self.read(key, |hash| Reply::Strings(hash.0.iter().flat_map(pair).collect()))
            }
            (b"HLEN", []) => self.read(key, |hash| Reply::Integer(hash.0.len() as i64)),
            (b"DEL", []) => self.del(key),
            (b"PEXPIRE", [span]) => self.pexpire(key, span.as_ref()),
            (b"HMGET" | b"HSET" | b"HDEL" | b"HKEYS" | b"HGETALL" | b"HLEN" | b"DEL" | b"PEXPIRE", _) => {
                error("ERR wrong number of arguments for a command, or more than simulations know")
            }
            _ => Reply::Error(format!("ERR simulations know no command {}", String::from_utf8_lossy(command))),
        }
    }

    fn forget_if_past(&mut self, key: &str) {
        if self.entries.get(key).is_some_and(|entry| entry.is_past(self.now)) {
            self.remove(key);
        }
    }

    /// Says whether it was there.
    fn remove(&mut self, key: &str) -> bool {
        let Some((key, entry)) = self.entries.remove_entry(key) else { return false };
        self.note(key, Before::Entry(Some(entry)));
        true
    }

    fn read(&self, key: &str, answer: impl FnOnce(&Hash) -> Reply) -> Reply {
        match self.entries.get(key).map(|entry| &entry.value) {
            Some(Value::Hash(hash)) => answer(hash),
            Some(Value::Text(_)) => error(WRONG_TYPE),
            None => answer(&Hash::default()),
        }
    }

    fn hmget<A: AsRef<[u8]>>(&self, key: &str, fields: &[A]) -> Reply {
        self.read(key, |hash| Reply::Strings(fields.iter().map(|field| hash.get(field.as_ref())).collect()))
    }

    fn hset<A: AsRef<[u8]>>(&mut self, key: &str, pairs: &[A]) -> Reply {
        if !self.entries.contains_key(key) {
            let key = Key::from(key);
            let value = Value::Hash(Hash(Vec::with_capacity(pairs.len() / 2)));
            self.entries.insert(key.clone(), Entry { value, expires: None });
            self.note(key, Before::Entry(None));
        }
        let pairs = pairs.chunks_exact(2).map(|pair| (pair[0].as_ref(), Some(pair[1].as_ref())));
        self.write(key, pairs, |before| before.is_none())
    }

    fn hdel<A: AsRef<[u8]>>(&mut self, key: &str, fields: &[A]) -> Reply {
        if !self.entries.contains_key(key) {
            return Reply::Integer(0);
        }
        let deleted = self.write(key, fields.iter().map(|field| (field.as_ref(), None)), Option::is_some);
        // A hash without fields is no key.
        if self.read(key, |hash| Reply::Integer(hash.0.len() as i64)) == Reply::Integer(0) {
            self.remove(key);
        }
        deleted
    }

    /// Sets fields of a key that is there, and counts those that were so before.
    fn write<'a>(
        &mut self,
        key: &str,
        fields: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        counts: impl Fn(&Option<Bytes>) -> bool,
    ) -> Reply {
        let Some(entry) = self.entries.get_mut(key) else { return Reply::Integer(0) };
        let Value::Hash(hash) = &mut entry.value else { return error(WRONG_TYPE) };
        let before: Vec<_> = fields.map(|(field, value)| hash.set(field, value)).collect();
        let counted = before.iter().filter(|(_, before)| counts(before)).count();
        self.note(key.into(), Before::Fields(before));
        Reply::Integer(counted as i64)
    }

    fn del(&mut self, key: &str) -> Reply {
        Reply::Integer(self.remove(key).into())
    }

    /// A time that is not ahead deletes the key at once, as in Redis.
    fn pexpire(&mut self, key: &str, span: &[u8]) -> Reply {
        let Some(span) = integer(span) else { return error("ERR value is not an integer or out of range") };
        let Some(last) = millis(self.now).checked_add(span) else {
            return error("ERR invalid expire time in 'pexpire' command");
        };
        if span <= 0 {
            return self.del(key);
        }
        let Some(entry) = self.entries.get_mut(key) else { return Reply::Integer(0) };
        let before = entry.expires.replace(last);
        self.note(key.into(), Before::Expires(before));
        Reply::Integer(1)
    }

    fn note(&mut self, key: Key, before: Before) {
        self.journal.push_back(Change { at: self.now, key, before });
    }

    /// Undoes what scripts wrote after this time of the server's clock: what a failover does to a
    /// replica that lags. Says which keys had been written since, in order. Relies on the times of
    /// [`Self::begin`] not running backwards.
    pub fn undo_after(&mut self, at: u64) -> Vec<Key> {
        let mut keys = BTreeSet::new();
        while self.journal.back().is_some_and(|change| change.at > at) {
            let Some(change) = self.journal.pop_back() else { break };
            self.undo(&change.key, change.before);
            keys.insert(change.key);
        }
        keys.into_iter().collect()
    }

    fn undo(&mut self, key: &Key, before: Before) {
        match (before, self.entries.get_mut(key)) {
            (Before::Entry(Some(entry)), _) => drop(self.entries.insert(key.clone(), entry)),
            (Before::Entry(None), _) => drop(self.entries.remove(key)),
            (Before::Expires(before), Some(entry)) => entry.expires = before,
            (Before::Fields(before), Some(Entry { value: Value::Hash(hash), .. })) => {
                for (field, value) in before.iter().rev() {
                    hash.set(field, value.as_deref());
                }
            }
            (Before::Expires(_) | Before::Fields(_), _) => {} // it has expired since
        }
    }

    /// Makes what was written up to this time of the server's clock final.
    pub fn settle_before(&mut self, at: u64) {
        let settled = self.journal.partition_point(|change| change.at <= at);
        self.journal.drain(..settled);
    }

    /// Loses everything for good, and says which keys that were, in order.
    pub fn flush(&mut self) -> Vec<Key> {
        self.journal.clear();
        std::mem::take(&mut self.entries).into_keys().collect()
    }

    /// Loses one key for good; says whether it was there.
    pub fn evict(&mut self, key: &str) -> bool {
        self.take(key).is_some()
    }

    /// Hands over what a key holds, for good: to be put into another server.
    pub fn take(&mut self, key: &str) -> Option<Entry> {
        self.journal.retain(|change| *change.key != *key);
        self.entries.remove(key)
    }

    /// Holds this for the key from now on, for good.
    pub fn put(&mut self, key: Key, entry: Entry) {
        self.take(&key);
        self.entries.insert(key, entry);
    }

    /// What a foreign program's SET does, for good.
    pub fn set_string(&mut self, key: &str, text: &[u8]) {
        self.put(key.into(), Entry { value: Value::Text(text.into()), expires: None });
    }

    /// Forgets the keys that expired before this time, as Redis does in the background.
    pub fn expire(&mut self, now_us: u64) {
        self.entries.retain(|_, entry| !entry.is_past(now_us));
    }

    /// How much has been written and is not final: where [`Self::written_since`] begins.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.journal.len()
    }

    /// What scripts wrote to a key since then, one after the other.
    pub fn written_since(&self, mark: usize, key: &str) -> impl Iterator<Item = Written<'_>> {
        let changes = self.journal.range(mark.min(self.journal.len())..);
        changes.filter(move |change| *change.key == *key).flat_map(|change| {
            let fields = if let Before::Fields(fields) = &change.before { fields.as_slice() } else { &[] };
            let deleted = matches!(&change.before, Before::Entry(Some(_))).then_some(Written::Deleted);
            deleted.into_iter().chain(fields.iter().map(|(name, before)| Written::Field(name, before.as_deref())))
        })
    }

    /// What a key holds at this time of the server's clock.
    #[must_use]
    pub fn look(&self, key: &str, now_us: u64) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| !entry.is_past(now_us))
    }

    /// What a key holds, expired or not.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All keys in order, also those that have expired and were not asked for since.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }
}

#[cfg(test)]
mod tests;
