//! Small changes to an input, drawn from a seed: the same seed gives the same inputs.

/// Numbers that bounds are near to.
const EDGES: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, (1 << 53) - 1, 1 << 53, u64::MAX];

/// Draws and changes.
#[derive(Debug)]
pub(crate) struct Mutator {
    state: u64,
    longest: usize,
    words: &'static [&'static [u8]],
}

impl Mutator {
    /// Of inputs of `longest` bytes, in which `words` may stand.
    pub(crate) fn new(seed: u64, longest: usize, words: &'static [&'static [u8]]) -> Self {
        Self { state: seed, longest, words }
    }

    /// A number below `bound`, which is not 0 (splitmix64).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((u128::from(mixed ^ mixed >> 31) * bound as u128) >> 64).unwrap_or(0)
    }

    /// An input of the corpus with one to eight changes.
    pub(crate) fn change(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        let changes = 1 << self.below(4);
        for _ in 0..changes {
            self.change_once(&mut input, corpus);
        }
        input.truncate(self.longest);
        input
    }

    fn change_once(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let span = 1 << self.below(7);
        let end = (at + 1 + self.below(span)).min(input.len());
        match self.below(10) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.below(256) as u8,
            2 => input.insert(at, self.below(256) as u8),
            3 if at < end => drop(input.drain(at..end)),
            4 if at < end => {
                let part = input[at..end].to_vec();
                let times = 1 + self.below(3);
                (0..times).for_each(|_| drop(input.splice(at..at, part.iter().copied())));
            }
            5 if !self.words.is_empty() => {
                let word = self.words[self.below(self.words.len())];
                // In the place of something else, or between.
                let end = if self.below(2) == 0 { (at + word.len()).min(input.len()) } else { at };
                input.splice(at..end, word.iter().copied());
            }
            6 => {
                let other = &corpus[self.below(corpus.len())];
                let (from, to) = (self.below(other.len() + 1), self.below(other.len() + 1));
                input.splice(at..end.max(at), other[from.min(to)..from.max(to)].iter().copied());
            }
            7 => {
                let edge = EDGES[self.below(EDGES.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1);
                let bytes = match self.below(4) {
                    0 => edge.to_string().into_bytes(),
                    1 => edge.to_le_bytes()[..1 << self.below(4)].to_vec(),
                    2 => edge.to_be_bytes()[8 - (1 << self.below(4))..].to_vec(),
                    _ => (edge as i64).to_string().into_bytes(),
                };
                let end = if self.below(2) == 0 { (at + bytes.len()).min(input.len()) } else { at };
                input.splice(at..end, bytes);
            }
            8 => self.renumber(input, at),
            _ => input.truncate(at.max(1)),
        }
    }

    /// Changes the first digit from a place on: lengths are texts, too.
    fn renumber(&mut self, input: &mut [u8], from: usize) {
        let digit = (from..input.len()).find(|at| input[*at].is_ascii_digit());
        if let Some(at) = digit {
            input[at] = b'0' + self.below(10) as u8;
        }
    }
}
