//! A key's 128-bit digest: what the tables and the store know a key by.
//!
//! The digest is SipHash-1-3 with a 128-bit result under a fixed key, because every node of a fleet
//! must compute the same one. Tables mix it with a secret of the process (see `table.rs`), so that
//! knowing the digest does not let anybody aim at a bucket.

use std::fmt;

/// The digest of a policy's name and a key. Equal on all nodes of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub u128);

impl Digest {
    /// The digest of `key` (any bytes) under the policy called `policy`.
    #[must_use]
    pub fn of(policy: &str, key: &[u8]) -> Self {
        let mut sip = Sip::new();
        // The length first, so that ("ab", "c") and ("a", "bc") differ.
        sip.word(policy.len() as u64);
        sip.bytes(policy.as_bytes());
        sip.bytes(key);
        Self(sip.finish())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// SipHash-1-3-128 over a sequence of byte strings, each padded with its length to whole words.
/// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), 128-bit variant.
struct Sip {
    v: [u64; 4],
}

const KEY: [u64; 2] = [0x7261_7469_6f6e_6420, 0x6469_6765_7374_2031];

impl Sip {
    fn new() -> Self {
        Self {
            v: [
                KEY[0] ^ 0x736f_6d65_7073_6575,
                KEY[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                KEY[0] ^ 0x6c79_6765_6e65_7261,
                KEY[1] ^ 0x7465_6462_7974_6573,
            ],
        }
    }

    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.v;
        *v0 = v0.wrapping_add(*v1);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v3);
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.wrapping_add(*v3);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }

    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = rest.len() as u8; // at most 7 bytes are left, so this place is free
        self.word(u64::from_le_bytes(last));
    }

    fn finish(mut self) -> u128 {
        self.v[2] ^= 0xee;
        for _ in 0..3 {
            self.round();
        }
        let low = self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3];
        self.v[1] ^= 0xdd;
        for _ in 0..3 {
            self.round();
        }
        let high = self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3];
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundary_between_policy_and_key_matters() {
        assert_ne!(Digest::of("ab", b"c"), Digest::of("a", b"bc"));
        assert_ne!(Digest::of("", b"abc"), Digest::of("abc", b""));
    }

    #[test]
    fn trailing_zero_bytes_matter() {
        let digests: Vec<_> = (0..20).map(|n| Digest::of("p", &vec![0; n])).collect();
        for (i, a) in digests.iter().enumerate() {
            assert!(digests[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn digest_is_the_same_for_ever() {
        // Nodes of different versions share counters under this name: it must never change.
        assert_eq!(Digest::of("api", b"user:42").to_string(), "4e2d0cceadfba6075d46c5ece472d938");
    }
}
