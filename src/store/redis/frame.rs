//! Finds where each reply of Redis ends in the received bytes, and what it says. Pure.
//!
//! An array of integers and a string, which is how scripts answer, are parsed here. Of any other reply only the end is found, and
//! the redis crate parses it; its parser clears a buffer of 8 KiB for each reply, which costs more than reading a short one.
//! Source: the RESP3 specification (Redis does not send its streamed types). Called by
//! `wire.rs`.

use redis::Value;

/// How deep arrays may be nested.
const DEEPEST: u32 = 32;

/// Most integers of an array that is parsed here.
const INTEGERS: usize = 64;

/// A reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply<'a> {
    /// An array of integers.
    Integers(&'a [i64]),
    /// Anything else.
    Value(Value),
}

impl Reply<'_> {
    /// Converts it to a value of the redis crate.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Integers(integers) => Value::Array(integers.iter().copied().map(Value::Int).collect()),
            Self::Value(value) => value,
        }
    }
}

/// What the received bytes begin with.
#[derive(Debug, PartialEq)]
pub(super) enum Frame<'a> {
    /// A reply that is not complete yet.
    Part,
    /// A push message, which answers no command, of so many bytes.
    Push(usize),
    /// A reply of so many bytes.
    Reply(usize, Reply<'a>),
}

/// The bytes are not RESP.
#[derive(Debug, PartialEq)]
pub(super) struct Malformed;

/// Parses the beginning of `bytes`. The parsed integers are stored in `integers`.
pub(super) fn read<'a>(bytes: &[u8], integers: &'a mut Vec<i64>) -> Result<Frame<'a>, Malformed> {
    if let Some(end) = read_integers(bytes, integers) {
        return Ok(Frame::Reply(end, Reply::Integers(integers)));
    }
    let Some(end) = end_of(bytes, 0, 0)? else { return Ok(Frame::Part) };
    if bytes[0] == b'>' {
        return Ok(Frame::Push(end));
    }
    let value = match string(&bytes[..end]) {
        Some(string) => Value::BulkString(string.to_vec()),
        None => redis::parse_redis_value(&bytes[..end]).map_err(|_| Malformed)?,
    };
    Ok(Frame::Reply(end, Reply::Value(value)))
}

/// What a whole reply says that is a string and not null.
fn string(reply: &[u8]) -> Option<&[u8]> {
    let size =
        reply.strip_prefix(b"$").filter(|rest| !rest.starts_with(b"-"))?.iter().position(|byte| *byte == b'\r')?;
    reply.get(size + 3..)?.strip_suffix(b"\r\n")
}

/// Parses an array of integers, and returns where it ends; `None` when it is something else or incomplete.
fn read_integers(bytes: &[u8], integers: &mut Vec<i64>) -> Option<usize> {
    integers.clear();
    let (count, mut at) = read_integer(bytes, 0, b'*')?;
    let count = usize::try_from(count).ok().filter(|count| *count <= INTEGERS)?;
    for _ in 0..count {
        let (integer, end) = read_integer(bytes, at, b':')?;
        integers.push(integer);
        at = end;
    }
    Some(at)
}

/// Parses an integer that begins with the byte `kind`, and returns it and where it ends; `None` when there is none.
fn read_integer(bytes: &[u8], at: usize, kind: u8) -> Option<(i64, usize)> {
    let rest = bytes.get(at..)?.strip_prefix(&[kind])?;
    let (is_negative, rest) = rest.strip_prefix(b"-").map_or((false, rest), |rest| (true, rest));
    let (mut value, mut digits) = (0, 0);
    loop {
        match rest.get(digits)? {
            // A number with more digits may exceed 64 bits; the crate parses it.
            digit @ b'0'..=b'9' if digits < 18 => value = value * 10 + i64::from(digit - b'0'),
            b'\r' if digits > 0 && rest.get(digits + 1) == Some(&b'\n') => break,
            _ => return None,
        }
        digits += 1;
    }
    let value = if is_negative { -value } else { value };
    Some((value, bytes.len() - rest.len() + digits + 2))
}

/// Where the value that begins at `at` ends; `None` when it is incomplete.
fn end_of(bytes: &[u8], at: usize, depth: u32) -> Result<Option<usize>, Malformed> {
    let Some(&kind) = bytes.get(at) else { return Ok(None) };
    let Some(length) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, mut end) = (&bytes[at + 1..(at + length).max(at + 1)], at + length + 2);
    let parts = match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => 0,
        b'$' | b'!' | b'=' => {
            let Some(size) = size(line)? else { return Ok(Some(end)) };
            let whole = end.checked_add(size).and_then(|end| end.checked_add(2)).ok_or(Malformed)?;
            return Ok((whole <= bytes.len()).then_some(whole));
        }
        b'*' | b'~' | b'>' => size(line)?.unwrap_or(0),
        b'%' => size(line)?.unwrap_or(0).checked_mul(2).ok_or(Malformed)?,
        b'|' => size(line)?.unwrap_or(0).checked_mul(2).and_then(|parts| parts.checked_add(1)).ok_or(Malformed)?,
        _ => return Err(Malformed),
    };
    if parts > 0 && depth == DEEPEST {
        return Err(Malformed);
    }
    for _ in 0..parts {
        let Some(next) = end_of(bytes, end, depth + 1)? else { return Ok(None) };
        end = next;
    }
    Ok(Some(end))
}

/// Parses a length; `None` for -1, which means a null.
fn size(line: &[u8]) -> Result<Option<usize>, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed)?;
    if text == "-1" { Ok(None) } else { text.parse().map(Some).map_err(|_| Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&[u8]; 15] = [
        b"*3\r\n:1\r\n:-20\r\n:9007199254740991\r\n",
        b"*0\r\n",
        b"*2\r\n:9223372036854775807\r\n:-9223372036854775808\r\n",
        b"*-1\r\n",
        b"*2\r\n:1\r\n$1\r\nx\r\n",
        b"+OK\r\n",
        b"-MOVED 3999 127.0.0.1:6381\r\n",
        b":17\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$6\r\nab\r\ncd\r\n",
        b"_\r\n",
        b"%1\r\n+server\r\n*1\r\n+redis\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"*1\r\n*1\r\n*2\r\n#t\r\n,1.5\r\n",
    ];

    #[test]
    fn a_reply_is_read_once_all_of_it_is_there() {
        for reply in REPLIES {
            let mut integers = Vec::new();
            for end in 0..reply.len() {
                assert_eq!(read(&reply[..end], &mut integers), Ok(Frame::Part), "{:?}", reply[..end].escape_ascii());
            }
            let more = [reply, b"+PONG\r\n"].concat();
            let Ok(Frame::Reply(end, seen)) = read(&more, &mut integers) else { panic!("{}", reply.escape_ascii()) };
            assert_eq!(end, reply.len(), "{}", reply.escape_ascii());
            assert_eq!(seen.into_value(), redis::parse_redis_value(reply).expect("a reply"));
        }
    }

    #[test]
    fn what_a_script_answers_is_an_array_of_integers() {
        let mut integers = Vec::new();
        let seen = read(REPLIES[0], &mut integers);
        assert_eq!(seen, Ok(Frame::Reply(REPLIES[0].len(), Reply::Integers(&[1, -20, 9_007_199_254_740_991]))));
    }

    #[test]
    fn pushes_answer_nobody() {
        let push = b">2\r\n+invalidate\r\n_\r\n";
        assert_eq!(read(push, &mut Vec::new()), Ok(Frame::Push(push.len())));
    }

    #[test]
    fn what_redis_would_not_send_is_refused() {
        let deep = b"*1\r\n".repeat(100);
        let refused: [&[u8]; 8] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"*99999999999999999999\r\n",
            b"%9223372036854775808\r\n",
            b"$18446744073709551615\r\n",
            b"\r\n",
            &deep,
        ];
        for bytes in refused {
            assert_eq!(read(bytes, &mut Vec::new()), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }
}
