//! The part of a Redis server that the scripts touch: hashes by key, with expiry in virtual time.
//!
//! Behaves as Redis 7 does (`tests/differential.rs` compares them): a hash without fields is no key,
//! a key past its time is absent, expiry counts in milliseconds. Time is the server's own clock in
//! microseconds and comes in with each call. Keeps a journal, so that a replica that lags can take
//! over with what it had seen.

use std::collections::{BTreeMap, VecDeque};

/// A key's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// Only damage is of this kind.
    Text(Vec<u8>),
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    value: Value,
    /// When it is absent, in milliseconds.
    expires: Option<u64>,
}

/// What a key was before a write.
#[derive(Clone, Debug)]
struct Before {
    at: u64,
    key: String,
    entry: Option<Entry>,
}

/// All keys of a server.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    keys: BTreeMap<String, Entry>,
    journal: VecDeque<Before>,
}

/// A command that the key's type does not have.
pub const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Keyspace {
    /// No keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is such a key at `now`.
    #[must_use]
    pub fn exists(&self, key: &str, now: u64) -> bool {
        self.live(key, now).is_some()
    }

    /// All keys, also those past their time, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.keys.keys().cloned().collect()
    }

    fn live(&self, key: &str, now: u64) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| entry.expires.is_none_or(|at| now / 1_000 < at))
    }

    /// The key as a writer finds it: noted in the journal, dropped if it is past its time.
    fn touch(&mut self, key: &str, now: u64) -> &mut BTreeMap<String, Entry> {
        let noted = self.journal.back().is_some_and(|before| before.at == now && before.key == key);
        if !noted {
            let entry = self.keys.get(key).cloned();
            self.journal.push_back(Before { at: now, key: key.to_owned(), entry });
        }
        if self.live(key, now).is_none() {
            self.keys.remove(key);
        }
        &mut self.keys
    }

    fn hash(&self, key: &str, now: u64) -> Result<Option<&BTreeMap<Vec<u8>, Vec<u8>>>, &'static str> {
        match self.live(key, now).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Hash(hash)) => Ok(Some(hash)),
            Some(Value::Text(_)) => Err(WRONGTYPE),
        }
    }

    /// `HGET`.
    ///
    /// # Errors
    /// A key that is no hash.
    pub fn get(&self, key: &str, field: &[u8], now: u64) -> Result<Option<&[u8]>, &'static str> {
        Ok(self.hash(key, now)?.and_then(|hash| hash.get(field)).map(Vec::as_slice))
    }

    /// `HSET` of one field; how many were new.
    ///
    /// # Errors
    /// A key that is no hash.
    pub fn set(&mut self, key: &str, field: &[u8], value: &[u8], now: u64) -> Result<u64, &'static str> {
        self.hash(key, now)?;
        let fresh = || Entry { value: Value::Hash(BTreeMap::new()), expires: None };
        let keys = self.touch(key, now);
        if !keys.contains_key(key) {
            keys.insert(key.to_owned(), fresh());
        }
        let Some(Entry { value: Value::Hash(hash), .. }) = keys.get_mut(key) else { return Err(WRONGTYPE) };
        match hash.get_mut(field) {
            Some(old) => {
                old.clear();
                old.extend_from_slice(value);
                Ok(0)
            }
            None => {
                hash.insert(field.to_owned(), value.to_owned());
                Ok(1)
            }
        }
    }

    /// `HDEL` of one field; how many went.
    ///
    /// # Errors
    /// A key that is no hash.
    pub fn unset(&mut self, key: &str, field: &[u8], now: u64) -> Result<u64, &'static str> {
        if self.get(key, field, now)?.is_none() {
            return Ok(0);
        }
        let keys = self.touch(key, now);
        let Some(Entry { value: Value::Hash(hash), .. }) = keys.get_mut(key) else { return Err(WRONGTYPE) };
        hash.remove(field);
        if hash.is_empty() {
            keys.remove(key);
        }
        Ok(1)
    }

    /// The fields of a hash, in order.
    ///
    /// # Errors
    /// A key that is no hash.
    pub fn fields(&self, key: &str, now: u64) -> Result<Vec<Vec<u8>>, &'static str> {
        Ok(self.hash(key, now)?.map(|hash| hash.keys().cloned().collect()).unwrap_or_default())
    }

    /// `DEL`; how many went.
    pub fn delete(&mut self, key: &str, now: u64) -> u64 {
        if !self.exists(key, now) {
            return 0;
        }
        u64::from(self.touch(key, now).remove(key).is_some())
    }

    /// `PEXPIRE`, in milliseconds from `now`; how many keys it was set for.
    pub fn expire(&mut self, key: &str, millis: i64, now: u64) -> u64 {
        if !self.exists(key, now) {
            return 0;
        }
        let at = (now / 1_000).saturating_add_signed(millis);
        let keys = self.touch(key, now);
        if millis <= 0 {
            keys.remove(key);
        } else if let Some(entry) = keys.get_mut(key) {
            entry.expires = Some(at);
        }
        1
    }

    /// Everything a key holds at `now`, and the milliseconds it has left: for comparisons.
    #[must_use]
    pub fn dump(&self, key: &str, now: u64) -> Option<(Vec<(Vec<u8>, Vec<u8>)>, Option<u64>)> {
        let entry = self.live(key, now)?;
        let fields = match &entry.value {
            Value::Hash(hash) => hash.iter().map(|(field, value)| (field.clone(), value.clone())).collect(),
            Value::Text(text) => vec![(Vec::new(), text.clone())],
        };
        Some((fields, entry.expires.map(|at| at - now / 1_000)))
    }

    /// Damage: a key becomes a string.
    pub fn set_text(&mut self, key: &str, text: &[u8], now: u64) {
        let entry = Entry { value: Value::Text(text.to_owned()), expires: None };
        self.touch(key, now).insert(key.to_owned(), entry);
    }

    /// A key leaves for another server.
    pub fn take(&mut self, key: &str, now: u64) -> Option<Entry> {
        self.live(key, now)?;
        self.touch(key, now).remove(key)
    }

    /// A key comes from another server.
    pub fn put(&mut self, key: &str, entry: Entry, now: u64) {
        self.touch(key, now).insert(key.to_owned(), entry);
    }

    /// A key is evicted. As nobody asked for it, no failover brings it back.
    pub fn evict(&mut self, key: &str) {
        self.keys.remove(key);
        self.journal.retain(|before| before.key != key);
    }

    /// All keys are lost; which there were.
    pub fn flush(&mut self) -> Vec<String> {
        self.journal.clear();
        std::mem::take(&mut self.keys).into_keys().collect()
    }

    /// Puts every key back to what it was at `at`; which ones were changed after it.
    pub fn undo_after(&mut self, at: u64) -> Vec<String> {
        let mut undone = Vec::new();
        while self.journal.back().is_some_and(|before| before.at > at) {
            let Some(before) = self.journal.pop_back() else { break };
            match before.entry {
                Some(entry) => self.keys.insert(before.key.clone(), entry),
                None => self.keys.remove(&before.key),
            };
            undone.push(before.key);
        }
        undone.sort();
        undone.dedup();
        undone
    }

    /// Nobody will ask for what was before `at`.
    pub fn settle_before(&mut self, at: u64) {
        while self.journal.front().is_some_and(|before| before.at < at) {
            self.journal.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 5_000_000;

    #[test]
    fn a_hash_without_fields_is_no_key() {
        let mut keyspace = Keyspace::new();
        assert_eq!(keyspace.set("k", b"f", b"1", NOW), Ok(1));
        assert_eq!(keyspace.set("k", b"f", b"2", NOW), Ok(0));
        assert_eq!(keyspace.get("k", b"f", NOW), Ok(Some(&b"2"[..])));
        assert_eq!(keyspace.unset("k", b"f", NOW), Ok(1));
        assert!(!keyspace.exists("k", NOW));
    }

    #[test]
    fn a_key_past_its_time_is_absent_and_starts_anew() {
        let mut keyspace = Keyspace::new();
        keyspace.set("k", b"f", b"1", NOW).unwrap();
        assert_eq!(keyspace.expire("k", 10, NOW), 1);
        assert!(keyspace.exists("k", NOW + 9_999));
        assert!(!keyspace.exists("k", NOW + 10_000));
        keyspace.set("k", b"g", b"1", NOW + 10_000).unwrap();
        assert_eq!(keyspace.dump("k", NOW + 10_000), Some((vec![(b"g".to_vec(), b"1".to_vec())], None)));
    }

    #[test]
    fn a_string_is_no_hash() {
        let mut keyspace = Keyspace::new();
        keyspace.set_text("k", b"x", NOW);
        assert_eq!(keyspace.get("k", b"f", NOW), Err(WRONGTYPE));
        assert_eq!(keyspace.set("k", b"f", b"1", NOW), Err(WRONGTYPE));
    }

    #[test]
    fn undoes_what_came_after() {
        let mut keyspace = Keyspace::new();
        keyspace.set("a", b"f", b"1", NOW).unwrap();
        keyspace.set("a", b"f", b"2", NOW + 5).unwrap();
        keyspace.set("b", b"f", b"1", NOW + 6).unwrap();
        keyspace.delete("a", NOW + 7);
        let mut kept = keyspace.clone();
        assert_eq!(keyspace.undo_after(NOW + 4), ["a", "b"]);
        assert_eq!(keyspace.get("a", b"f", NOW), Ok(Some(&b"1"[..])));
        assert!(!keyspace.exists("b", NOW));
        kept.settle_before(NOW + 7);
        assert_eq!(kept.undo_after(0), ["a"]);
        assert_eq!(kept.get("a", b"f", NOW), Ok(Some(&b"2"[..])));
    }
}
