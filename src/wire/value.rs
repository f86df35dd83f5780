//! Parses replies as a client receives them: any RESP2 or RESP3 value, within bounds.
//!
//! Called by the client and by the command line. Never panics, whatever the bytes are.

use std::fmt;

/// Deepest nesting of a reply.
pub const MAX_DEPTH: usize = 16;
/// Most bytes of one reply.
pub const MAX_REPLY: usize = 512 << 20;

/// One reply. The byte that begins each kind on the wire is given with it.
///
/// ```
/// use rationd::wire::value::Value;
///
/// let (reply, _) = Value::parse(b"*2\r\n:15\r\n$2\r\nok\r\n")?.expect("it is whole");
/// assert_eq!(reply, Value::Array(vec![Value::Integer(15), Value::Bulk(b"ok".to_vec())]));
/// # Ok::<(), rationd::wire::value::ReplyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `+`: a status.
    Simple(String),
    /// `-` or `!`: an error, with its leading code.
    Error(String),
    /// `:`: an integer.
    Integer(i64),
    /// `$` or `=`: a byte string. Of `=` the three letters of the format are removed.
    Bulk(Vec<u8>),
    /// `*`, `~` or `>`: an array, a set or a push.
    Array(Vec<Value>),
    /// `%`: a map, in the order of the reply.
    Map(Vec<(Value, Value)>),
    /// `_`, or `$` or `*` with a length of -1: nothing.
    Null,
    /// `#`: a boolean.
    Bool(bool),
    /// `,`: a floating-point number.
    Double(f64),
    /// `(`: an integer of any size, as its digits.
    BigNumber(String),
}

/// Why bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyError {
    /// What is wrong.
    pub problem: &'static str,
    /// The position of the error.
    pub at: usize,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a RESP reply: {} at byte {}", self.problem, self.at)
    }
}

impl std::error::Error for ReplyError {}

impl Value {
    /// Parses the reply at the beginning of `input`, and returns it with its length; `None` when it has not arrived
    /// completely.
    ///
    /// ```
    /// use rationd::wire::value::Value;
    ///
    /// assert_eq!(Value::parse(b"+PO")?, None);
    /// assert_eq!(Value::parse(b"+PONG\r\n:1\r\n")?, Some((Value::Simple("PONG".to_owned()), 7)));
    /// assert!(Value::parse(b"HTTP/1.1 400\r\n").is_err());
    /// # Ok::<(), rationd::wire::value::ReplyError>(())
    /// ```
    ///
    /// # Errors
    /// The bytes are no RESP, are nested deeper than [`MAX_DEPTH`], or announce a string longer than [`MAX_REPLY`].
    pub fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, ReplyError> {
        let mut reader = Reader { input, at: 0 };
        Ok(reader.value(0)?.map(|value| (value, reader.at)))
    }

    /// The value of an integer; `None` for other kinds.
    ///
    /// ```
    /// use rationd::wire::value::Value;
    ///
    /// assert_eq!(Value::Integer(15).as_integer(), Some(15));
    /// assert_eq!(Value::Null.as_integer(), None);
    /// ```
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        if let Self::Integer(value) = self { Some(*value) } else { None }
    }

    /// The bytes of a bulk or simple string; `None` for other kinds.
    ///
    /// ```
    /// use rationd::wire::value::Value;
    ///
    /// assert_eq!(Value::Simple("OK".to_owned()).as_bytes(), Some(&b"OK"[..]));
    /// assert_eq!(Value::Bulk(b"ok".to_vec()).as_bytes(), Some(&b"ok"[..]));
    /// ```
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) => Some(bytes),
            Self::Simple(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The elements of an array; `None` for other kinds.
    ///
    /// ```
    /// use rationd::wire::value::Value;
    ///
    /// let reply = Value::Array(vec![Value::Integer(0), Value::Integer(200)]);
    /// assert_eq!(reply.as_array().map(<[Value]>::len), Some(2));
    /// ```
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(values) = self { Some(values) } else { None }
    }
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, problem: &'static str) -> Result<T, ReplyError> {
        Err(ReplyError { problem, at: self.at })
    }

    fn value(&mut self, depth: usize) -> Result<Option<Value>, ReplyError> {
        if depth > MAX_DEPTH {
            return self.fail("nested too deep");
        }
        let Some(&kind) = self.input.get(self.at) else { return Ok(None) };
        if !b"+-:$*_%#,(!=~>".contains(&kind) {
            return self.fail("an unknown kind");
        }
        let Some(line) = self.line()? else { return Ok(None) };
        let text = || String::from_utf8_lossy(line).into_owned();
        let value = match kind {
            b'+' => Value::Simple(text()),
            b'-' => Value::Error(text()),
            b'(' => Value::BigNumber(text()),
            b'_' => Value::Null,
            b'#' => match line {
                b"t" => Value::Bool(true),
                b"f" => Value::Bool(false),
                _ => return self.fail("a bool that is neither t nor f"),
            },
            b',' => match text().parse() {
                Ok(number) => Value::Double(number),
                Err(_) => return self.fail("not a number"),
            },
            _ => {
                let Some(number) = std::str::from_utf8(line).ok().and_then(|line| line.parse::<i64>().ok()) else {
                    return self.fail("not an integer");
                };
                return if kind == b':' { Ok(Some(Value::Integer(number))) } else { self.sized(kind, number, depth) };
            }
        };
        Ok(Some(value))
    }

    fn sized(&mut self, kind: u8, number: i64, depth: usize) -> Result<Option<Value>, ReplyError> {
        if number == -1 {
            return Ok(Some(Value::Null));
        }
        let Some(len) = usize::try_from(number).ok().filter(|&len| len <= MAX_REPLY) else {
            return self.fail("a length out of range");
        };
        match kind {
            b'$' | b'!' | b'=' => {
                let Some(bytes) = self.bytes(len)? else { return Ok(None) };
                Ok(Some(match kind {
                    b'!' => Value::Error(String::from_utf8_lossy(bytes).into_owned()),
                    b'=' => Value::Bulk(bytes.get(4..).unwrap_or(bytes).to_vec()),
                    _ => Value::Bulk(bytes.to_vec()),
                }))
            }
            b'%' => {
                let Some(flat) = self.values(len.saturating_mul(2), depth)? else { return Ok(None) };
                let mut pairs = Vec::with_capacity(flat.len() / 2);
                let mut flat = flat.into_iter();
                while let (Some(key), Some(value)) = (flat.next(), flat.next()) {
                    pairs.push((key, value));
                }
                Ok(Some(Value::Map(pairs)))
            }
            _ => Ok(self.values(len, depth)?.map(Value::Array)),
        }
    }

    fn values(&mut self, len: usize, depth: usize) -> Result<Option<Vec<Value>>, ReplyError> {
        // No capacity is reserved: memory grows with what has arrived, not with what was announced.
        let mut values = Vec::new();
        for _ in 0..len {
            match self.value(depth + 1)? {
                Some(value) => values.push(value),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }

    /// The bytes between the kind and the end of the line.
    fn line(&mut self) -> Result<Option<&'a [u8]>, ReplyError> {
        let rest = &self.input[self.at + 1..];
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let Some(line) = rest[..end].strip_suffix(b"\r") else { return self.fail("a line without CRLF") };
        self.at += end + 2;
        Ok(Some(line))
    }

    fn bytes(&mut self, len: usize) -> Result<Option<&'a [u8]>, ReplyError> {
        let Some(bytes) = self.input.get(self.at..self.at + len) else { return Ok(None) };
        match self.input.get(self.at + len..self.at + len + 2) {
            None => Ok(None),
            Some(b"\r\n") => {
                self.at += len + 2;
                Ok(Some(bytes))
            }
            Some(_) => self.fail("a string that does not end where its length says"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind() {
        let input =
            b"*9\r\n+OK\r\n-ERR x\r\n:-5\r\n$3\r\na\r\n\r\n$-1\r\n%1\r\n+k\r\n_\r\n#t\r\n,1.5\r\n=7\r\ntxt:abc\r\n";
        let (value, len) = Value::parse(input).unwrap().unwrap();
        assert_eq!(len, input.len());
        let wanted = vec![
            Value::Simple("OK".into()),
            Value::Error("ERR x".into()),
            Value::Integer(-5),
            Value::Bulk(b"a\r\n".to_vec()),
            Value::Null,
            Value::Map(vec![(Value::Simple("k".into()), Value::Null)]),
            Value::Bool(true),
            Value::Double(1.5),
            Value::Bulk(b"abc".to_vec()),
        ];
        assert_eq!(value, Value::Array(wanted));
    }

    #[test]
    fn any_shorter_part_is_incomplete() {
        let input = b"*3\r\n$3\r\nabc\r\n%1\r\n+a\r\n:12\r\n-ERR no\r\n";
        for end in 0..input.len() {
            assert_eq!(Value::parse(&input[..end]), Ok(None), "at {end}");
        }
    }

    #[test]
    fn refuses_what_is_no_reply() {
        for bad in [&b"x\r\n"[..], b":1x\r\n", b"$-2\r\n", b"$99999999999999\r\n", b"+a\n", b"$1\r\nabc", b"#x\r\n"] {
            assert!(Value::parse(bad).is_err(), "{:?}", bad.escape_ascii().to_string());
        }
        let deep = b"*1\r\n".repeat(100);
        assert!(Value::parse(&deep).is_err());
    }
}
