//! Randomness drawn from a seed: the C library's source of it, for the whole test binary, and a generator of its own for
//! what a test decides.
//!
//! What a seeded thread draws (hash maps, `rand`, tokio's choices, `clock::random`) follows from its seed. ring asks the
//! kernel itself, so keys of TLS differ between two runs.

use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::ops::Range;

thread_local! {
    /// What the numbers of this thread are drawn from; `None`: from the system.
    static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread draws from `seed`; `None`: from the system.
pub fn draw_from(seed: Option<u64>) {
    RANDOM.set(seed);
}

/// The C library's source of randomness, for this test binary alone: a seeded thread draws from its seed.
///
/// # Safety
/// `buffer` must be valid for writing `len` bytes, as getrandom(2) demands.
#[allow(unsafe_code, reason = "a symbol of C's cannot be written without it; no safe seam reaches std and rand")]
// SAFETY: name and signature are those of the C library's function, which this one stands for.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    if len == 0 {
        return 0;
    }
    // SAFETY: the caller promises that these bytes may be written; zeros make them a slice.
    let bytes = unsafe {
        buffer.write_bytes(0, len);
        std::slice::from_raw_parts_mut(buffer, len)
    };
    let seeded = RANDOM.try_with(|random| match random.get() {
        None => false,
        Some(mut state) => {
            for byte in bytes.iter_mut() {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                *byte = (state >> 56) as u8;
            }
            random.set(Some(state));
            true
        }
    });
    if seeded != Ok(true) {
        let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes));
        read.expect("the system has a source of randomness");
    }
    len as isize
}

/// Numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws for a part of a run, which what other parts draw does not change.
    pub fn part(seed: u64, part: u64) -> Self {
        // Mixed, because seeds that differ by a step of the generator draw the same numbers one place apart.
        Self(Self(seed).next() ^ Self(!part).next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in the range.
    pub fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.of(0..times) == 0
    }

    /// One of these.
    pub fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.of(0..all.len() as u64) as usize]
    }
}
