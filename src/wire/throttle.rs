//! Parses `CL.THROTTLE`, `THROTTLE`, and the script that calls them. Called by `parse.rs`, and by sessions for a
//! script that was loaded before.

use super::arguments::{arity, integer, key};
use super::command::{Command, Script};
use super::command_error::CommandError;
use super::rate::{Dialect, Rate};
use super::resp::Args;

/// `THROTTLE key max_burst count period [quantity]`. The errors are those of throttlecrab, in its order.
pub(super) fn throttlecrab<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    if !(5..=6).contains(&args.len()) {
        return Err(arity(args));
    }
    let key = key(args.get(1).unwrap_or_default())?;
    let number = |index, what| match args.get(index) {
        None => Ok(1),
        Some(text) => integer(text).map_err(|_| CommandError::ThrottlecrabNumber(what)),
    };
    let (max_burst, count) = (number(2, "max_burst")?, number(3, "count_per_period")?);
    let (period, quantity) = (number(4, "period")?, number(5, "quantity")?);
    if quantity < 0 {
        return Err(CommandError::ThrottlecrabQuantity(quantity));
    }
    let positive =
        |value: i64| u64::try_from(value).ok().filter(|value| *value > 0).ok_or(CommandError::ThrottlecrabRate);
    let rate = Rate {
        dialect: Dialect::Throttlecrab,
        max_burst: positive(max_burst)?,
        count: positive(count)?,
        period_s: positive(period)?,
    };
    Ok(Command::Throttle { key, rate, quantity })
}

/// `CL.THROTTLE`, whose key is the argument at `place`, followed by the numbers.
pub(super) fn throttle<'a>(args: Args<'a>, place: usize) -> Result<Command<'a>, CommandError<'a>> {
    if !(place + 4..=place + 5).contains(&args.len()) {
        return Err(CommandError::ThrottleUsage);
    }
    let key = key(args.get(place).unwrap_or_default())?;
    let number = |index| args.get(place + index).map_or(Ok(1), integer);
    let (max_burst, count, period, quantity) = (number(1)?, number(2)?, number(3)?, number(4)?);
    let positive = |what, value: i64| u64::try_from(value).map_err(|_| CommandError::Negative(what, value));
    let rate = Rate {
        dialect: Dialect::RedisCell,
        max_burst: positive("max_burst", max_burst)?,
        count: positive("count", count)?,
        period_s: positive("period", period)?,
    };
    if rate.count == 0 || rate.period_s == 0 {
        return Err(CommandError::ZeroRate);
    }
    Ok(Command::Throttle { key, rate, quantity })
}

/// Parses `EVAL` and `EVALSHA`, for clients that call the command from a script.
pub(super) fn eval<'a>(args: Args<'a>, by_hash: bool) -> Result<Command<'a>, CommandError<'a>> {
    let script = args.get(1).filter(|_| args.len() >= 3).ok_or(arity(args))?;
    if by_hash {
        return Ok(Command::Script(Script::EvalSha(script)));
    }
    if !is_understood(script) {
        return Err(CommandError::Script);
    }
    scripted(args)?;
    Ok(Command::Script(Script::Eval(script)))
}

/// The command that an `EVAL` or `EVALSHA` of a recognized script executes.
///
/// # Errors
/// Those of `CL.THROTTLE`; or the number of keys is not 1.
pub fn scripted<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    if args.get(2) == Some(b"1") { throttle(args, 3) } else { Err(CommandError::Script) }
}

pub(super) fn script<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let sub = args.get(1).ok_or(arity(args))?;
    let is = |wanted: &str| sub.eq_ignore_ascii_case(wanted.as_bytes());
    let text = args.get(2).unwrap_or_default();
    let script = match args.len() {
        3 if is("LOAD") && is_understood(text) => Script::Load(text),
        3 if is("LOAD") => return Err(CommandError::Script),
        3.. if is("EXISTS") => Script::Exists,
        2 | 3 if is("FLUSH") => Script::Flush,
        2 if is("HELP") => return Ok(Command::Help("SCRIPT")),
        _ if is("LOAD") || is("EXISTS") || is("FLUSH") => return Err(arity(args)),
        _ => return Err(CommandError::Subcommand("SCRIPT", sub)),
    };
    Ok(Command::Script(script))
}

/// Whether the script only calls `cl.throttle`, whatever its spaces, case and quotes.
fn is_understood(script: &[u8]) -> bool {
    const CALL: &str = "returnredis.call('cl.throttle',keys[1],argv[1],argv[2],argv[3]";
    let text = String::from_utf8_lossy(&script[..script.len().min(256)]).to_lowercase().replace('"', "'");
    let text: String = text.split_whitespace().collect();
    matches!(text.trim_end_matches(';').strip_prefix(CALL), Some(")" | ",argv[4])"))
}
