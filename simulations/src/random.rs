//! Random numbers from a seed, in independent streams: what the network draws does not change the demand. Integers
//! only, so that every build draws the same.

/// One stream. Source of the mixing: splitmix64 (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream called `name` of a seed.
    #[must_use]
    pub fn stream(seed: u64, name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut stream = Self(seed ^ hash);
        stream.0 = stream.bits();
        stream
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Evenly from `0..bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64 // below `bound`
    }

    /// Evenly from `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of the choices.
    ///
    /// # Panics
    /// On an empty slice.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Exponentially distributed with this mean, at most 44 times it.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        // -ln(u) = ln2 * (1 + leading zeros - log2 of the mantissa in [1, 2)), in 32.32 fixed point.
        let bits = self.bits() | 1;
        let zeros = u64::from(bits.leading_zeros());
        let mut mantissa = (bits << zeros) >> 32; // [1, 2) as 1.31: its square fits
        let mut log = 0_u64;
        for _ in 0..16 {
            mantissa = mantissa.wrapping_mul(mantissa) >> 31;
            // Each bit is even odds, so a branch on it would be guessed wrong every other time.
            let bit = mantissa >> 32 & 1;
            mantissa >>= bit;
            log = log << 1 | bit;
        }
        const LN2: u128 = 2_977_044_472; // ln(2) * 2^32
        let negative_log2 = ((1 + zeros) << 32) - (log << 16);
        ((((u128::from(negative_log2) * LN2) >> 32) * u128::from(mean)) >> 32) as u64 // below 45 * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let mut network = Random::stream(1, "network");
        let mut demand = Random::stream(1, "demand");
        assert_ne!(network.bits(), demand.bits());
        assert_eq!(Random::stream(1, "network").bits(), Random::stream(1, "network").bits());
        assert_ne!(Random::stream(1, "network").bits(), Random::stream(2, "network").bits());
    }

    #[test]
    fn exponential_has_its_mean_and_its_median() {
        let mut random = Random::stream(7, "test");
        let mut drawn: Vec<u64> = (0..100_000).map(|_| random.exponential(1_000_000)).collect();
        drawn.sort_unstable();
        let mean = drawn.iter().sum::<u64>() / 100_000;
        assert!((990_000..1_010_000).contains(&mean), "{mean}");
        assert!((683_000..703_000).contains(&drawn[50_000]), "{}", drawn[50_000]);
    }
}
