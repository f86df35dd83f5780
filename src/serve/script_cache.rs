//! Lua scripts of clients that were recognized, and the hashes by which clients call them afterwards.
//!
//! Every accepted script only calls `cl.throttle`, so no Lua is run; this remembers which hashes may be called. The
//! number of texts is bounded, and the oldest is dropped. Shared by all sessions.

use std::collections::VecDeque;

use crate::store::redis::evalsha;

/// Most texts that are remembered. Texts of one script may differ in white space.
const MOST: usize = 64;

/// The texts, newest last, and their hashes.
#[derive(Debug, Default)]
pub struct ScriptCache {
    known: VecDeque<(Box<[u8]>, String)>,
}

impl ScriptCache {
    /// Remembers `text`, and returns its hash.
    pub fn learn(&mut self, text: &[u8]) -> String {
        if let Some((_, hash)) = self.known.iter().find(|(known, _)| **known == *text) {
            return hash.clone();
        }
        if self.known.len() >= MOST {
            self.known.pop_front();
        }
        let hash = evalsha::hash(&String::from_utf8_lossy(text));
        self.known.push_back((text.into(), hash.clone()));
        hash
    }

    /// Whether a text with this hash is remembered.
    #[must_use]
    pub fn has(&self, hash: &[u8]) -> bool {
        self.known.iter().any(|(_, known)| known.as_bytes().eq_ignore_ascii_case(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_texts_are_known_by_their_sha1() {
        let mut scripts = ScriptCache::default();
        assert_eq!(scripts.learn(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(scripts.has(b"A9993E364706816ABA3E25717850C26C9CD0D89D") && !scripts.has(b"a9"));
        for number in 0..MOST {
            assert_eq!(scripts.learn(number.to_string().as_bytes()), scripts.learn(number.to_string().as_bytes()));
        }
        assert_eq!((scripts.known.len(), scripts.has(b"a9993e364706816aba3e25717850c26c9cd0d89d")), (MOST, false));
    }
}
