//! A queue of bytes in pieces. Bytes that have left free their memory, and appending copies none that were there
//! before.

use std::collections::VecDeque;

/// Bytes of a piece. A larger one holds the end of one large write.
const PIECE: usize = 64 << 10;

/// A piece with less room than this gets no further reply, since most replies are shorter.
const MARGIN: usize = 1 << 10;

/// A queue of bytes.
#[derive(Debug, Default)]
pub struct Spool {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that have left.
    start: usize,
    /// Bytes of all pieces but the last.
    finished: usize,
    /// Bytes that have ever left.
    taken: u64,
}

impl Spool {
    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.finished + self.pieces.back().map_or(0, Vec::len) - self.start
    }

    /// Whether none wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes have left so far; this is the position of the first byte that waits.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The position after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.taken + self.len() as u64
    }

    /// The buffer to which a few bytes can be appended.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.pieces.back().is_none_or(|last| last.len() > PIECE - MARGIN) {
            self.finished += self.pieces.back().map_or(0, Vec::len);
            // The first piece grows as needed: most clients have few bytes waiting, if any.
            let capacity = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push_back(Vec::with_capacity(capacity));
        }
        self.pieces.back_mut().expect("one was just made sure of")
    }

    /// Appends many bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let tail = self.tail();
            let part = bytes.len().min(PIECE - tail.len());
            tail.extend_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
        }
    }

    /// Some of the waiting bytes, from the first one on; empty only if none wait.
    #[must_use]
    pub fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |first| &first[self.start..])
    }

    /// Removes the first `count` bytes of [`Self::front`].
    pub fn take(&mut self, count: usize) {
        self.taken += count as u64;
        self.start += count;
        let Some(first) = self.pieces.front() else { return };
        debug_assert!(self.start <= first.len(), "only what was seen can leave");
        if self.start == first.len() {
            self.start = 0;
            if self.pieces.len() > 1 {
                self.finished -= first.len();
            }
            self.pieces.pop_front();
        }
    }

    /// Removes all bytes after the position `end`.
    pub fn cut(&mut self, end: u64) {
        let mut surplus = usize::try_from(self.end().saturating_sub(end)).unwrap_or(usize::MAX).min(self.len());
        while let Some(last) = self.pieces.back_mut().filter(|_| surplus > 0) {
            let part = surplus.min(last.len());
            last.truncate(last.len() - part);
            surplus -= part;
            if last.is_empty() {
                self.pieces.pop_back();
                self.finished -= self.pieces.back().map_or(0, Vec::len);
            }
        }
        if self.is_empty() {
            self.pieces.clear();
            (self.start, self.finished) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes everything out in parts of odd sizes.
    fn drain(spool: &mut Spool) -> Vec<u8> {
        let mut out = Vec::new();
        while !spool.is_empty() {
            let part = spool.front().len().div_ceil(3);
            out.extend_from_slice(&spool.front()[..part]);
            spool.take(part);
        }
        out
    }

    #[test]
    fn bytes_leave_as_they_came() {
        let mut spool = Spool::default();
        let bytes: Vec<u8> = (0..400_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        for (number, part) in bytes.chunks(777).enumerate() {
            if number % 2 == 0 { spool.push(part) } else { spool.tail().extend_from_slice(part) }
        }
        assert_eq!((spool.len(), spool.end()), (bytes.len(), bytes.len() as u64));
        assert_eq!(drain(&mut spool), bytes);
        assert_eq!((spool.len(), spool.taken(), spool.pieces.len()), (0, bytes.len() as u64, 0));
    }

    #[test]
    fn what_is_taken_back_was_never_there() {
        let mut spool = Spool::default();
        spool.push(&vec![b'a'; 100_000]);
        spool.take(10);
        let end = spool.end();
        spool.tail().extend_from_slice(&vec![b'b'; 300_000]);
        spool.push(&vec![b'b'; 300_000]);
        spool.cut(end);
        assert_eq!((spool.len(), spool.end()), (99_990, end));
        spool.push(b"c");
        spool.cut(end + 1);
        let left = drain(&mut spool);
        assert!(left.len() == 99_991 && left[..99_990].iter().all(|&byte| byte == b'a'));
        spool.push(b"x");
        spool.cut(spool.taken());
        assert_eq!((spool.len(), spool.front()), (0, &b""[..]));
        spool.push(b"y");
        assert_eq!(spool.front(), b"y");
    }
}
