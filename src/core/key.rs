//! The 128-bit digest of a key, by which tables and the store know it.
//!
//! It is SipHash-1-3 with a 128-bit result, and all nodes of a store must compute the same one. Whoever knows the
//! hash's key can search for two keys with the same digest, which would share a counter; so the hash's key can be a
//! secret of the nodes (`store.digest_secret_file`). Hashes that need no secret are slower: SHA-256 and BLAKE3 would
//! take 99 and 106 ns of a check, and this takes 38. Tables mix the digest with a secret of the process (see
//! `table.rs`), so that nobody who knows digests can aim at a place in them.

use std::fmt;

/// The digest of a policy's name and a key. Equal on all nodes of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub u128);

impl Digest {
    /// The digest of `key` (any bytes) under the policy called `policy`, without a secret.
    #[must_use]
    pub fn of(policy: &str, key: &[u8]) -> Self {
        DigestKey::default().digest(policy, key)
    }
}

/// The key of the hash: a secret, or a public constant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigestKey([u64; 2]);

impl DigestKey {
    /// A secret key, drawn at random or hashed from a text. All nodes of a store must use the same one.
    #[must_use]
    pub fn secret(bytes: [u8; 16]) -> Self {
        let word = |half: &[u8]| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Self([word(&bytes[..8]), word(&bytes[8..])])
    }

    /// The digest of `key` (any bytes) under the policy called `policy`.
    #[must_use]
    pub fn digest(self, policy: &str, key: &[u8]) -> Digest {
        let mut sip = Sip::new(self.0);
        // The length comes first, so that ("ab", "c") and ("a", "bc") differ.
        sip.word(policy.len() as u64);
        sip.bytes(policy.as_bytes());
        sip.bytes(key);
        Digest(sip.finish())
    }
}

impl Default for DigestKey {
    fn default() -> Self {
        Self([0x7261_7469_6f6e_6420, 0x6469_6765_7374_2031])
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::default() { "DigestKey(public)" } else { "DigestKey(secret)" })
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

/// SipHash-1-3-128 over a sequence of byte strings, each padded to whole words together with its length.
/// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), 128-bit variant.
struct Sip {
    v: [u64; 4],
}

impl Sip {
    fn new(key: [u64; 2]) -> Self {
        Self {
            v: [
                key[0] ^ 0x736f_6d65_7073_6575,
                key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                key[0] ^ 0x6c79_6765_6e65_7261,
                key[1] ^ 0x7465_6462_7974_6573,
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
        // At most 7 bytes are left, so the highest place is free for their number.
        self.word(last_word(bytes, rest) | (rest.len() as u64) << 56);
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

/// The word of the `rest`, the last 0 to 7 of these `bytes`, with zeros above them. It is put together of few loads: to copy so many bytes
/// and to load what was copied costs more than a round.
#[inline]
fn last_word(bytes: &[u8], rest: &[u8]) -> u64 {
    let bits = 8 * rest.len() as u32;
    match (bytes.last_chunk(), rest) {
        (_, []) => 0,
        (Some(last), _) => u64::from_le_bytes(*last) >> (64 - bits),
        (None, [first, .., last]) => match (rest.first_chunk(), rest.last_chunk()) {
            (Some(low), Some(high)) => {
                u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << (bits - 32)
            }
            // Of two the second is in the middle, too.
            _ => {
                u64::from(*first) | u64::from(rest[rest.len() / 2]) << (bits / 16 * 8) | u64::from(*last) << (bits - 8)
            }
        },
        (None, [only]) => u64::from(*only),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_the_bytes_that_it_has() {
        let bytes: Vec<u8> = (1..40).map(|number| number * 6).collect();
        for end in 0..bytes.len() {
            for start in [0, end.saturating_sub(1), end.saturating_sub(9)] {
                let bytes = &bytes[start..end];
                let rest = bytes.as_chunks::<8>().1;
                let wanted = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                assert_eq!(last_word(bytes, rest), wanted, "{bytes:?}");
            }
        }
    }

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
        // Nodes of different versions share counters under these digests, so they must never change.
        assert_eq!(Digest::of("api", b"user:42").to_string(), "4e2d0cceadfba6075d46c5ece472d938");
        let secret = DigestKey::secret(*b"sixteen bytes it");
        assert_eq!(secret.digest("api", b"user:42").to_string(), "5e1ca73fb548dc43143f9337f2c5aca0");
    }

    #[test]
    fn each_bit_of_the_secret_matters() {
        let with = |bit: usize| {
            let mut bytes = [0; 16];
            bytes[bit / 8] = 1 << (bit % 8);
            DigestKey::secret(bytes).digest("api", b"user:42")
        };
        let digests: std::collections::BTreeSet<_> = (0..128).map(with).collect();
        assert_eq!(digests.len(), 128);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", DigestKey::secret([7; 16])), "DigestKey(secret)");
    }
}
