//! A RESP2 client of a few lines, apart from the product's own codec so that a mistake there shows.
//! Works over any stream: Unix sockets of daemons, TCP to Redis.

use std::io::{self, Read, Write};

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+text`
    Simple(String),
    /// `-text`
    Error(String),
    /// `:number`
    Int(i64),
    /// `$bytes`
    Bulk(Vec<u8>),
    /// A null of either kind.
    Nil,
    /// `*items`
    Array(Vec<Reply>),
}

impl Reply {
    /// The items of an array.
    ///
    /// # Panics
    /// When it is something else.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("an array was wanted, not {other:?}"),
        }
    }

    /// A whole number, also when it came as text.
    ///
    /// # Panics
    /// When it is something else.
    #[must_use]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => other.text().parse().unwrap_or_else(|_| panic!("a number was wanted, not {other:?}")),
        }
    }

    /// Text, lossily.
    ///
    /// # Panics
    /// When it holds none.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("text was wanted, not {other:?}"),
        }
    }
}

/// Writes a command as an array of bulk strings.
pub fn encode(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Bytes as they arrive, and the replies in them.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Reads once from `stream`; false at its end.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn fill(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        let mut chunk = [0; 16 * 1024];
        let count = stream.read(&mut chunk)?;
        self.push(&chunk[..count]);
        Ok(count > 0)
    }

    /// Takes bytes that were read elsewhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole reply, if its bytes are here.
    pub fn next(&mut self) -> Option<Reply> {
        let mut at = self.taken;
        let reply = parse(&self.bytes, &mut at)?;
        self.taken = at;
        Some(reply)
    }
}

fn parse(bytes: &[u8], at: &mut usize) -> Option<Reply> {
    let end = *at + bytes[*at..].windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, rest) = (bytes[*at], std::str::from_utf8(&bytes[*at + 1..end]).expect("a line of text"));
    *at = end + 2;
    let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("a number was wanted in {rest:?}"));
    Some(match kind {
        b'+' => Reply::Simple(rest.to_owned()),
        b'-' => Reply::Error(rest.to_owned()),
        b':' => Reply::Int(number()),
        b'$' | b'*' if number() < 0 => Reply::Nil,
        b'_' => Reply::Nil,
        b'$' => {
            let length = usize::try_from(number()).expect("a length");
            let body = bytes.get(*at..*at + length + 2)?;
            *at += length + 2;
            Reply::Bulk(body[..length].to_vec())
        }
        b'*' => Reply::Array((0..number()).map(|_| parse(bytes, at)).collect::<Option<_>>()?),
        other => panic!("a reply does not begin with {:?}", char::from(other)),
    })
}

/// A connection that asks and waits.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    decoder: Decoder,
}

impl<S: Read + Write> Connection<S> {
    /// Speaks over `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, decoder: Decoder::default() }
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Errors
    /// Those of the stream; the end of the stream is `UnexpectedEof`.
    pub fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        let mut request = Vec::new();
        encode(&mut request, words);
        self.stream.write_all(&request)?;
        loop {
            if let Some(reply) = self.decoder.next() {
                return Ok(reply);
            }
            if !self.decoder.fill(&mut self.stream)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The same for words of text.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn ask_text(&mut self, command: &str) -> io::Result<Reply> {
        self.ask(&command.split_whitespace().map(str::as_bytes).collect::<Vec<_>>())
    }
}
