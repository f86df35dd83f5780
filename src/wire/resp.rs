//! Parses requests as Redis clients write them: arrays of bulk strings, and inline commands.
//!
//! It finds where a command ends and where its arguments are. It copies nothing, except for inline commands, whose
//! quotes must be resolved, and allocates only while its table of ranges grows. Every length is checked before it is
//! used. Does not know what any command means. Called by the connection with all bytes that have arrived; it
//! continues where the last call had to stop.

use std::fmt;
use std::ops::Range;

/// Most bytes of one request.
pub const MAX_REQUEST: usize = 1 << 20;
/// Most arguments of one request, its name among them.
pub const MAX_ARGUMENTS: usize = 1_024;
/// Longest inline command, and longest line that holds a length.
pub const MAX_LINE: usize = 64 << 10;

/// Why a request cannot be parsed. The parser no longer knows where the next request begins, so the connection must
/// be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number after `*` is invalid, or above [`MAX_ARGUMENTS`].
    ArrayLength,
    /// The line after `*` is too long.
    ArrayLine,
    /// This byte stands where `$` was expected.
    NoBulk(u8),
    /// The number after `$` is invalid, or makes the request longer than [`MAX_REQUEST`].
    BulkLength,
    /// The line after `$` is too long.
    BulkLine,
    /// A bulk string does not end where its length says.
    BulkEnd,
    /// An inline command longer than [`MAX_LINE`], or of too many arguments.
    InlineLength,
    /// An inline command with a quote that does not close.
    Quotes,
    /// An HTTP request line. As the first bytes of a connection it is no error; the connection then speaks HTTP.
    Http,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            Self::ArrayLength => write!(f, "invalid multibulk length: 1 to {MAX_ARGUMENTS} arguments are understood"),
            Self::ArrayLine => f.write_str("too big mbulk count string"),
            Self::NoBulk(seen) => write!(f, "expected '$', got '{}'", seen.escape_ascii()),
            Self::BulkLength => write!(f, "invalid bulk length: a request has {MAX_REQUEST} bytes at most"),
            Self::BulkLine => f.write_str("too big bulk count string"),
            Self::BulkEnd => f.write_str("expected CRLF after a bulk string"),
            Self::InlineLength => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::Http => f.write_str("HTTP on a connection that speaks RESP: open another"),
        }
    }
}

impl std::error::Error for ProtocolError {}

/// Finds commands in a stream of bytes. Each connection has one, because it remembers how much it has parsed of a
/// command that has arrived in part.
#[derive(Debug, Default)]
pub struct Parser {
    /// The positions of the arguments: in the input, counted from the command's first byte, or in `inline`.
    ranges: Vec<Range<u32>>,
    /// The arguments of an inline command, one after another, without their quotes.
    inline: Vec<u8>,
    is_inline: bool,
    /// Missing arguments of an incomplete array; 0 between commands.
    wanted: usize,
    /// How much of an incomplete command was parsed.
    cursor: usize,
}

/// The arguments of one command. Borrows from the input.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<u32>],
}

impl<'a> Args<'a> {
    /// The arguments that are in `bytes` at `ranges`.
    #[must_use]
    pub fn new(bytes: &'a [u8], ranges: &'a [Range<u32>]) -> Self {
        Self { bytes, ranges }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none, as in an empty line or `*0`. Such a command has no reply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The argument at `index`, 0 being the command's name.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let range = self.ranges.get(index)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.ranges.iter().map(move |range| &bytes[range.start as usize..range.end as usize])
    }
}

impl Parser {
    /// A parser for a new connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks for a complete command at the beginning of `input`. `Some(n)` means that it has `n` bytes, and that
    /// [`Self::args`] returns its arguments. `None` means that more bytes must arrive; the next call must bring the
    /// same bytes again, with more after them.
    ///
    /// # Errors
    /// The bytes are no request.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.wanted == 0 {
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.parse_inline(input),
            }
            let Some((count, cursor)) = length(input, 1, ProtocolError::ArrayLength, ProtocolError::ArrayLine)? else {
                return Ok(None);
            };
            self.is_inline = false;
            self.ranges.clear();
            if count <= 0 {
                return Ok(Some(cursor));
            }
            if count > MAX_ARGUMENTS as i64 {
                return Err(ProtocolError::ArrayLength);
            }
            (self.wanted, self.cursor) = (count as usize, cursor);
        }
        while self.wanted > 0 {
            match bulk(input, self.cursor)? {
                None => return Ok(None),
                Some((range, next)) => {
                    self.ranges.push(range);
                    self.cursor = next;
                    self.wanted -= 1;
                }
            }
        }
        Ok(Some(self.cursor))
    }

    /// The arguments of the command that [`Self::parse`] found in `input` (the same bytes).
    #[must_use]
    pub fn args<'a>(&'a self, input: &'a [u8]) -> Args<'a> {
        Args { bytes: if self.is_inline { &self.inline } else { input }, ranges: &self.ranges }
    }

    /// Frees memory that a large command has used.
    pub fn shrink(&mut self) {
        if self.inline.capacity() > 4 << 10 {
            self.inline = Vec::new();
        }
        if self.wanted == 0 && self.ranges.capacity() > 64 {
            self.ranges = Vec::new();
        }
    }

    fn parse_inline(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let head = &input[..input.len().min(MAX_LINE)];
        let Some(end) = head.iter().position(|&byte| byte == b'\n') else {
            return match input.len() >= MAX_LINE {
                true if begins_as_http(head) => Err(ProtocolError::Http),
                true => Err(ProtocolError::InlineLength),
                false => Ok(None),
            };
        };
        let line = head[..end].strip_suffix(b"\r").unwrap_or(&head[..end]);
        if ends_as_http(line) {
            return Err(ProtocolError::Http);
        }
        self.is_inline = true;
        self.ranges.clear();
        self.inline.clear();
        let mut rest = line.trim_ascii_start();
        while !rest.is_empty() {
            if self.ranges.len() == MAX_ARGUMENTS {
                return Err(ProtocolError::InlineLength);
            }
            let start = self.inline.len() as u32; // below MAX_LINE
            rest = unquote(rest, &mut self.inline)?.trim_ascii_start();
            self.ranges.push(start..self.inline.len() as u32);
        }
        Ok(Some(end + 1))
    }
}

/// Whether a line ends like an HTTP request line of any version.
fn ends_as_http(line: &[u8]) -> bool {
    matches!(line, [.., b' ', b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'])
}

/// Whether an incomplete line begins like an HTTP request line: a method and a path.
fn begins_as_http(head: &[u8]) -> bool {
    let method = head.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    method > 0 && head[method..].starts_with(b" /")
}

/// The number in `input` between `start` and a CRLF, and the position after the CRLF.
#[inline]
fn length(
    input: &[u8],
    start: usize,
    bad: ProtocolError,
    endless: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let digit = |byte: u8| i64::from(byte - b'0');
    // Nearly all numbers of a check have one or two digits.
    match input.get(start..) {
        Some(&[ones @ b'0'..=b'9', b'\r', b'\n', ..]) => Ok(Some((digit(ones), start + 3))),
        Some(&[tens @ b'0'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', ..]) => {
            Ok(Some((10 * digit(tens) + digit(ones), start + 4)))
        }
        _ => any_length(input, start, bad, endless),
    }
}

/// The same for a number of any length, which may have arrived in part.
#[inline(never)]
fn any_length(
    input: &[u8],
    start: usize,
    bad: ProtocolError,
    endless: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let mut value = 0_i64;
    let mut at = start;
    let negative = input.get(at) == Some(&b'-');
    at += usize::from(negative);
    let first = at;
    while let Some(&byte) = input.get(at) {
        match byte {
            b'0'..=b'9' if at - first < 18 => value = value * 10 + i64::from(byte - b'0'),
            b'\r' if at > first => {
                return match input.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((if negative { -value } else { value }, at + 2))),
                    Some(_) => Err(bad),
                };
            }
            b'0'..=b'9' => return Err(endless),
            _ => return Err(bad),
        }
        at += 1;
    }
    Ok(None)
}

/// The bulk string that begins with `$` at `start`: the range of its bytes, and the position after it.
fn bulk(input: &[u8], start: usize) -> Result<Option<(Range<u32>, usize)>, ProtocolError> {
    match input.get(start) {
        None => return Ok(None),
        Some(b'$') => {}
        Some(&seen) => return Err(ProtocolError::NoBulk(seen)),
    }
    let Some((count, from)) = length(input, start + 1, ProtocolError::BulkLength, ProtocolError::BulkLine)? else {
        return Ok(None);
    };
    if count < 0 || count > MAX_REQUEST as i64 || from + count as usize + 2 > MAX_REQUEST {
        return Err(ProtocolError::BulkLength);
    }
    let to = from + count as usize;
    match input.get(to..to + 2) {
        // Part of the CRLF is still missing; it is checked when it is complete.
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((from as u32..to as u32, to + 2))),
        Some(_) => Err(ProtocolError::BulkEnd),
    }
}

/// Appends the first word of `line` to `out`, with quotes and escapes resolved as Redis does it, and returns the rest
/// of the line.
fn unquote<'a>(line: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | 0 => break,
            b'"' | b'\'' => {
                at = quoted(line, at + 1, byte, out)?;
                if line.get(at).is_some_and(|next| !next.is_ascii_whitespace()) {
                    return Err(ProtocolError::Quotes);
                }
                break;
            }
            _ => out.push(byte),
        }
        at += 1;
    }
    // A NUL ends a word, as in Redis. It must be skipped, or the next word would never begin.
    Ok(&line[at + usize::from(line.get(at) == Some(&0))..])
}

/// Appends the bytes up to the closing `quote`, and returns the position after the quote.
fn quoted(line: &[u8], mut at: usize, quote: u8, out: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    loop {
        let &byte = line.get(at).ok_or(ProtocolError::Quotes)?;
        if byte == quote {
            return Ok(at + 1);
        }
        if byte == b'\\' && quote == b'\'' && line.get(at + 1) == Some(&b'\'') {
            out.push(b'\'');
            at += 2;
        } else if byte == b'\\' && quote == b'"' && at + 1 < line.len() {
            let (value, size) = escape(&line[at + 1..]);
            out.push(value);
            at += 1 + size;
        } else {
            out.push(byte);
            at += 1;
        }
    }
}

/// The byte that an escape stands for, and the length of the escape without its backslash.
fn escape(rest: &[u8]) -> (u8, usize) {
    let hex = |index: usize| rest.get(index).and_then(|&digit| char::from(digit).to_digit(16));
    match rest[0] {
        b'x' => match (hex(1), hex(2)) {
            (Some(high), Some(low)) => ((high * 16 + low) as u8, 3), // two digits: below 256
            _ => (b'x', 1),
        },
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'b' => (8, 1),
        b'a' => (7, 1),
        other => (other, 1),
    }
}
