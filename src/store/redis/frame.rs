//! Finds where each reply of Redis ends in the received bytes, and what it says. Pure.
//!
//! A string, which is how scripts answer, is read here. Of any other reply only the end is found, and the redis crate parses it;
//! its parser clears a buffer of 8 KiB for each reply, which costs more than reading a short one.
//! Source: the RESP3 specification (Redis does not send its streamed types). Called by
//! `wire.rs`.

use redis::Value;

/// How deep arrays may be nested.
const DEEPEST: u32 = 32;

/// A reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply<'a> {
    /// A string.
    Text(&'a [u8]),
    /// Anything else.
    Value(Value),
}

impl Reply<'_> {
    /// Converts it to a value of the redis crate.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Text(text) => Value::BulkString(text.to_vec()),
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

/// Parses the beginning of `bytes`.
pub(super) fn read(bytes: &[u8]) -> Result<Frame<'_>, Malformed> {
    let Some(end) = end_of(bytes, 0, 0)? else { return Ok(Frame::Part) };
    if bytes[0] == b'>' {
        return Ok(Frame::Push(end));
    }
    let reply = match string(&bytes[..end]) {
        Some(string) => Reply::Text(string),
        None => Reply::Value(redis::parse_redis_value(&bytes[..end]).map_err(|_| Malformed)?),
    };
    Ok(Frame::Reply(end, reply))
}

/// What a whole reply says that is a string and not null.
fn string(reply: &[u8]) -> Option<&[u8]> {
    let size =
        reply.strip_prefix(b"$").filter(|rest| !rest.starts_with(b"-"))?.iter().position(|byte| *byte == b'\r')?;
    reply.get(size + 3..)?.strip_suffix(b"\r\n")
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
            for end in 0..reply.len() {
                assert_eq!(read(&reply[..end]), Ok(Frame::Part), "{:?}", reply[..end].escape_ascii());
            }
            let more = [reply, b"+PONG\r\n"].concat();
            let Ok(Frame::Reply(end, seen)) = read(&more) else { panic!("{}", reply.escape_ascii()) };
            assert_eq!(end, reply.len(), "{}", reply.escape_ascii());
            assert_eq!(seen.into_value(), redis::parse_redis_value(reply).expect("a reply"));
        }
    }

    #[test]
    fn what_a_script_answers_is_read_where_it_was_received() {
        let answer = b"$6\r\nab\r\ncd\r\n+OK\r\n";
        assert_eq!(read(answer), Ok(Frame::Reply(answer.len() - 5, Reply::Text(b"ab\r\ncd"))));
        // No reply at all is none that says nothing.
        assert_eq!(read(b"$-1\r\n"), Ok(Frame::Reply(5, Reply::Value(Value::Nil))));
    }

    #[test]
    fn pushes_answer_nobody() {
        let push = b">2\r\n+invalidate\r\n_\r\n";
        assert_eq!(read(push), Ok(Frame::Push(push.len())));
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
            assert_eq!(read(bytes), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }
}
