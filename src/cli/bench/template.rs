//! The command to send, with places for keys, and the choice of keys.

use std::sync::Arc;

use crate::client::write_request;

/// The placeholder of a key in a template.
const PLACE: &str = "{key}";

/// Digits of a key's number. All keys have the same length, so that they can be overwritten in place.
const DIGITS: usize = 10;

/// One command as bytes.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    /// Positions of the keys' digits.
    places: Vec<usize>,
}

impl Template {
    /// Parses words separated by blanks, each with any number of `{key}`.
    ///
    /// # Errors
    /// There is no word.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<String> =
            text.split_whitespace().map(|word| word.replace(PLACE, &format!("key:\0{:1$}", "", DIGITS - 1))).collect();
        if words.is_empty() {
            return Err("--command is empty: name a command, like 'CL.THROTTLE {key} 15 30 60'".to_owned());
        }
        let mut bytes = Vec::new();
        write_request(&mut bytes, &words.iter().map(String::as_bytes).collect::<Vec<_>>());
        let places = bytes.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
        Ok(Self { bytes, places })
    }
}

/// Several commands, which are sent together with new keys each time.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    template: Template,
    bytes: Vec<u8>,
}

impl Batch {
    /// A batch of at most `most` commands.
    pub(super) fn new(template: Template, most: usize) -> Self {
        let bytes = template.bytes.repeat(most);
        Self { template, bytes }
    }

    /// The bytes of `count` commands with the next keys.
    pub(super) fn fill(&mut self, count: usize, keys: &mut Keys) -> &[u8] {
        let len = self.template.bytes.len();
        for command in self.bytes.chunks_exact_mut(len).take(count) {
            let mut key = keys.next();
            let mut digits = [0; DIGITS];
            for digit in digits.iter_mut().rev() {
                *digit = b'0' + (key % 10) as u8; // one digit
                key /= 10;
            }
            for &place in &self.template.places {
                command[place..place + DIGITS].copy_from_slice(&digits);
            }
        }
        &self.bytes[..count * len]
    }
}

/// The order in which keys are used. Equal seeds choose equal keys.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Evenly at random.
    Random { seed: u64 },
    /// By Zipf's law at random, the first key most often.
    Zipf { seed: u64, law: Arc<Zipf> },
    /// One after another, and then from the first again.
    Sequence,
}

/// How probable each key is, where the n-th is chosen 1 / n^exponent times as often as the first.
#[derive(Debug)]
pub(super) struct Zipf {
    /// Of each key, the probability that it or one before it is chosen, scaled to 2^64.
    sums: Vec<u64>,
}

impl Zipf {
    /// Takes eight bytes a key.
    pub(super) fn new(keys: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        // A cast of what is too large gives the largest number.
        Self { sums: sums.into_iter().map(|below| (below / sum * 2_f64.powi(64)) as u64).collect() }
    }

    /// The key for a random number.
    fn key(&self, random: u64) -> u64 {
        self.sums.partition_point(|below| *below <= random).min(self.sums.len() - 1) as u64
    }
}

/// The keys that one thread uses.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    order: Order,
    count: u64,
    state: u64,
    step: u64,
}

impl Keys {
    /// Keys 0 to `count` - 1 for thread `index` of `threads`. In a sequence each thread has a part of its own.
    pub(super) fn new(order: Order, count: u64, index: usize, threads: usize) -> Self {
        let state = match order {
            Order::Random { seed } | Order::Zipf { seed, .. } => seed.wrapping_add((index as u64) << 40),
            Order::Sequence => index as u64,
        };
        Self { order, count, state, step: threads as u64 }
    }

    fn next(&mut self) -> u64 {
        match &self.order {
            _ if self.count == 1 => 0,
            Order::Sequence => {
                let key = self.state % self.count;
                self.state = self.state.wrapping_add(self.step);
                key
            }
            // Scaled to the range by its upper half, which is below `count`.
            Order::Random { .. } => ((u128::from(next_random(&mut self.state)) * u128::from(self.count)) >> 64) as u64,
            Order::Zipf { law, .. } => law.key(next_random(&mut self.state)),
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_filled_into_every_place() {
        let template = Template::parse("EVALSHA  abc 1 {key} p:{key}").unwrap();
        let mut batch = Batch::new(template, 2);
        let mut keys = Keys::new(Order::Sequence, 12, 1, 10);
        let text = String::from_utf8(batch.fill(2, &mut keys).to_vec()).unwrap();
        let one = |key| {
            format!(
                "*5\r\n$7\r\nEVALSHA\r\n$3\r\nabc\r\n$1\r\n1\r\n$14\r\nkey:00000000{key}\r\n$16\r\np:key:00000000{key}\r\n"
            )
        };
        assert_eq!(text, one("01") + &one("11"));
    }

    #[test]
    fn a_command_without_a_key_stays_as_it_is() {
        let mut batch = Batch::new(Template::parse("PING").unwrap(), 3);
        assert_eq!(batch.fill(1, &mut Keys::new(Order::Sequence, 1, 0, 1)), b"*1\r\n$4\r\nPING\r\n");
        assert!(Template::parse("  ").is_err());
    }

    #[test]
    fn random_keys_cover_the_range_and_repeat_with_the_seed() {
        let draw = |seed| {
            let mut keys = Keys::new(Order::Random { seed }, 8, 0, 1);
            (0..200).map(|_| keys.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let drawn = draw(7);
        assert!((0..8).all(|key| drawn.contains(&key)) && drawn.iter().all(|key| *key < 8), "{drawn:?}");
    }

    #[test]
    fn by_zipfs_law_the_first_key_comes_as_often_as_the_law_says() {
        let order = Order::Zipf { seed: 3, law: Arc::new(Zipf::new(4, 1.0)) };
        let mut keys = Keys::new(order, 4, 0, 1);
        let mut counts = [0_u32; 4];
        for _ in 0..25_000 {
            counts[keys.next() as usize] += 1;
        }
        // 1 + 1/2 + 1/3 + 1/4 = 25/12.
        for (count, wanted) in counts.into_iter().zip([12_000, 6_000, 4_000, 3_000]) {
            assert!(count.abs_diff(wanted) < wanted / 20, "{counts:?}");
        }
        assert_eq!([0, u64::MAX].map(|random| Zipf::new(3, 0.0).key(random)), [0, 2]);
    }
}
