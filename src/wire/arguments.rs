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

pub(super) fn integer(text: &[u8]) -> Result<i64, CommandError<'_>> {
    let parsed = match text {
        [digit @ b'0'..=b'9'] => Some(i64::from(digit - b'0')),
        _ => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
    };
    parsed.ok_or(CommandError::Integer(text))
}
