//! Parses single arguments of a command: keys and numbers.
//!
//! Knows no command. Called by the parsers of all commands.

use super::command::MAX_KEY;
use super::command_error::CommandError;
use super::resp::Args;

pub(super) fn arity<'a>(args: Args<'a>) -> CommandError<'a> {
    CommandError::Arity(args.get(0).unwrap_or_default())
}

pub(super) fn key(key: &[u8]) -> Result<&[u8], CommandError<'_>> {
    if key.len() > MAX_KEY { Err(CommandError::LongKey(key.len())) } else { Ok(key) }
}

pub(super) fn amount(text: &[u8]) -> Result<u64, CommandError<'_>> {
    let value = integer(text)?;
    u64::try_from(value).map_err(|_| CommandError::Negative("the amount", value))
}

/// Numbers of up to so many digits are read without a check for overflow, because all of them fit into 64 bits.
const SAFE_DIGITS: usize = 18;

pub(super) fn integer(text: &[u8]) -> Result<i64, CommandError<'_>> {
    if !text.is_empty() && text.len() <= SAFE_DIGITS {
        let mut value = 0;
        let mut bytes = text.iter();
        // Each check brings three to five numbers, and nearly all of them are digits alone.
        while let Some(digit @ b'0'..=b'9') = bytes.next() {
            value = value * 10 + i64::from(digit - b'0');
            if bytes.as_slice().is_empty() {
                return Ok(value);
            }
        }
    }
    any_integer(text)
}

/// The same with a sign, or of any length.
#[cold]
fn any_integer(text: &[u8]) -> Result<i64, CommandError<'_>> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or(CommandError::Integer(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_is_read_as_the_standard_library_reads_it() {
        let texts: [&[u8]; 20] = [
            b"",
            b"0",
            b"7",
            b"007",
            b"60",
            b"100000000",
            b"-1",
            b"+1",
            b"-",
            b"+",
            b"1a",
            b"a1",
            b" 1",
            b"1 ",
            b"\xff",
            b"999999999999999999",
            b"9223372036854775807",
            b"9223372036854775808",
            b"-9223372036854775808",
            b"1:",
        ];
        for text in texts {
            let wanted = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
            assert_eq!(integer(text).ok(), wanted, "{}", text.escape_ascii());
        }
    }
}
