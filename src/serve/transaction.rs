//! Commands that are queued between `MULTI` and `EXEC`.
//!
//! Their bytes are copied, since the input buffer is reused, into pieces that are freed as commands run. The owner
//! bounds their memory.

use std::collections::VecDeque;
use std::ops::Range;

use crate::wire::resp::Args;

/// Bytes of a piece. A larger command has a piece of its own.
const PIECE: usize = 64 << 10;

/// Bytes of each number before the arguments.
const NUMBER: usize = 4;

/// The queue of one connection, which is first filled and then run.
#[derive(Debug, Default)]
pub struct Transaction {
    /// For each command the number of arguments, the length of each, and their bytes.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that have been run.
    start: usize,
    bytes: usize,
    commands: usize,
    spoilt: bool,
    overflown: bool,
    /// Positions of the arguments of the command that runs.
    ranges: Vec<Range<u32>>,
}

impl Transaction {
    /// Queues a command.
    pub fn queue(&mut self, args: Args<'_>) {
        let size = NUMBER * (1 + args.len()) + args.iter().map(<[u8]>::len).sum::<usize>();
        if self.pieces.back().is_none_or(|last| last.len() + size > PIECE) {
            // The first piece grows as needed: most transactions are short.
            let capacity = if self.pieces.is_empty() { size } else { size.max(PIECE) };
            self.pieces.push_back(Vec::with_capacity(capacity));
        }
        let piece = self.pieces.back_mut().expect("one was just made sure of");
        // A request has at most MAX_REQUEST bytes.
        let mut number = |number: usize| piece.extend_from_slice(&(number as u32).to_le_bytes());
        number(args.len());
        args.iter().for_each(|arg| number(arg.len()));
        args.iter().for_each(|arg| piece.extend_from_slice(arg));
        self.bytes += size;
        self.commands += 1;
    }

    /// Makes `EXEC` fail, because a command was refused or there are too many. The queue is emptied.
    pub fn spoil(&mut self) {
        *self = Self { spoilt: true, ..Self::default() };
    }

    /// Makes `EXEC` fail, because there is no memory for more. The next command gets an error that says so.
    pub fn overflow(&mut self) {
        self.spoil();
        self.overflown = true;
    }

    /// Whether the present command must get the error that there was no memory.
    pub fn has_overflown(&mut self) -> bool {
        std::mem::take(&mut self.overflown)
    }

    /// Whether `EXEC` will fail.
    #[must_use]
    pub fn is_spoilt(&self) -> bool {
        self.spoilt
    }

    /// How many commands are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands
    }

    /// Whether none is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Bytes of its memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the next command out.
    pub fn next_command(&mut self) -> Option<Args<'_>> {
        if self.pieces.front()?.len() == self.start {
            self.pieces.pop_front();
            self.start = 0;
        }
        let piece = self.pieces.front()?;
        let rest = &piece[self.start..];
        let number = |index: usize| {
            let bytes = rest[NUMBER * index..][..NUMBER].try_into().expect("so many bytes were taken");
            u32::from_le_bytes(bytes)
        };
        let count = number(0) as usize;
        let mut at = (NUMBER * (1 + count)) as u32;
        self.ranges.clear();
        for index in 1..=count {
            self.ranges.push(at..at + number(index));
            at += number(index);
        }
        self.start += at as usize;
        self.bytes -= at as usize;
        self.commands -= 1;
        Some(Args::new(rest, &self.ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues a command whose arguments are these.
    fn queue(transaction: &mut Transaction, words: &[&[u8]]) {
        let bytes = words.concat();
        let mut at = 0;
        let ranges: Vec<_> = words
            .iter()
            .map(|word| {
                at += word.len() as u32;
                at - word.len() as u32..at
            })
            .collect();
        transaction.queue(Args::new(&bytes, &ranges));
    }

    #[test]
    fn commands_come_out_as_they_went_in_and_leave_nothing_behind() {
        let mut transaction = Transaction::default();
        let long = vec![b'x'; 300_000];
        for number in 0..20_000 {
            let text = number.to_string();
            queue(&mut transaction, &[b"ECHO", text.as_bytes(), b"", if number % 5_000 == 0 { &long } else { b"y" }]);
        }
        assert_eq!(transaction.len(), 20_000);
        let bytes = transaction.bytes();
        assert!((4 * 300_000 + 20_000 * 25..4 * 300_000 + 20_000 * 40).contains(&bytes), "{bytes}");
        for number in 0..20_000 {
            let args = transaction.next_command().expect("it was queued");
            assert_eq!((args.len(), args.get(0), args.get(2)), (4, Some(&b"ECHO"[..]), Some(&b""[..])));
            assert_eq!(args.get(1), Some(number.to_string().as_bytes()));
            assert_eq!(args.get(3).map(<[u8]>::len), Some(if number % 5_000 == 0 { 300_000 } else { 1 }));
        }
        assert!(transaction.next_command().is_none());
        assert_eq!((transaction.len(), transaction.bytes(), transaction.pieces.len()), (0, 0, 0));
    }

    #[test]
    fn a_spoilt_one_keeps_nothing() {
        let mut transaction = Transaction::default();
        queue(&mut transaction, &[b"PING"]);
        transaction.spoil();
        assert_eq!((transaction.is_spoilt(), transaction.len(), transaction.bytes()), (true, 0, 0));
    }
}
