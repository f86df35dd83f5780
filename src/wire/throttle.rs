//! `CL.THROTTLE`, `THROTTLE`, and the script that wraps them: numbers become a rate. Part of `command.rs`.

use super::command::{Command, CommandError, arity, integer, key};
use super::resp::Args;
use crate::core::limit::{self, Limit, LimitError, MAX_COUNT, MAX_PERIOD};
use crate::core::time::Micros;

/// The numbers of `CL.THROTTLE` or `THROTTLE`, known to be positive (a burst of 0 is redis-cell's).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// As throttlecrab means them: `max_burst` is all that may come at once, not what may come above the first.
    pub crab: bool,
    /// As it was written.
    pub max_burst: u64,
    /// Tokens per period.
    pub count: u64,
    /// The period in seconds.
    pub period_s: u64,
}

impl Rate {
    /// The token bucket that redis-cell or throttlecrab means by these numbers.
    ///
    /// # Errors
    /// A number is out of range, in the words and units of the request.
    pub fn limit(&self) -> Result<Limit, LimitError> {
        let longest = MAX_PERIOD.0 / 1_000_000;
        let first = u64::from(!self.crab);
        let range = |what, seen: u64, wanted| Err(LimitError::Range { what, seen: seen.to_string(), wanted });
        if self.count > MAX_COUNT {
            return range("count", self.count, format!("1 to {MAX_COUNT} (2^53 - 1)"));
        }
        if self.period_s > longest {
            return range("period", self.period_s, format!("1 to {longest} (seconds, of ten years)"));
        }
        if self.max_burst > MAX_COUNT - first {
            let wanted = format!("{} to {} (below 2^53)", 1 - first, MAX_COUNT - first);
            return range("max_burst", self.max_burst, wanted);
        }
        let (period, burst) = (Micros::from_secs(self.period_s), self.max_burst + first);
        let deepest = limit::deepest(self.count, period);
        if burst > deepest {
            let wanted = format!(
                "{} at most, or 71 years would not fill the bucket at {} per {} s",
                deepest - first,
                self.count,
                self.period_s
            );
            return range("max_burst", self.max_burst, wanted);
        }
        Limit::gcra(self.count, period, burst)
    }
}

/// `THROTTLE key max_burst count period [quantity]`, with throttlecrab's errors, in its order.
pub(super) fn crab<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    if !(5..=6).contains(&args.len()) {
        return Err(arity(args));
    }
    let key = key(args.get(1).unwrap_or_default())?;
    let number = |index, what| match args.get(index) {
        None => Ok(1),
        Some(text) => integer(text).map_err(|_| CommandError::CrabNumber(what)),
    };
    let (max_burst, count) = (number(2, "max_burst")?, number(3, "count_per_period")?);
    let (period, quantity) = (number(4, "period")?, number(5, "quantity")?);
    if quantity < 0 {
        return Err(CommandError::CrabQuantity(quantity));
    }
    let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0).ok_or(CommandError::CrabRate);
    let rate =
        Rate { crab: true, max_burst: positive(max_burst)?, count: positive(count)?, period_s: positive(period)? };
    Ok(Command::Throttle { key, rate, quantity })
}

/// The numbers of `CL.THROTTLE` begin behind its key, which is the argument at `place`.
pub(super) fn throttle<'a>(args: Args<'a>, place: usize) -> Result<Command<'a>, CommandError<'a>> {
    if !(place + 4..=place + 5).contains(&args.len()) {
        return Err(CommandError::ThrottleUsage);
    }
    let key = key(args.get(place).unwrap_or_default())?;
    let number = |index| args.get(place + index).map_or(Ok(1), integer);
    let (max_burst, count, period, quantity) = (number(1)?, number(2)?, number(3)?, number(4)?);
    let positive = |what, value: i64| u64::try_from(value).map_err(|_| CommandError::Negative(what, value));
    let rate = Rate {
        crab: false,
        max_burst: positive("max_burst", max_burst)?,
        count: positive("count", count)?,
        period_s: positive("period", period)?,
    };
    if rate.count == 0 || rate.period_s == 0 {
        return Err(CommandError::ZeroRate);
    }
    Ok(Command::Throttle { key, rate, quantity })
}

/// What is asked about scripts. All that are understood do the same: call `cl.throttle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script<'a> {
    /// `EVAL script 1 key max_burst count period [quantity]`: of a script that is understood.
    Eval(&'a [u8]),
    /// `EVALSHA sha1 1 key …`: of a script that came before, or not.
    EvalSha(&'a [u8]),
    /// `SCRIPT LOAD script`: of one that is understood.
    Load(&'a [u8]),
    /// `SCRIPT EXISTS sha1 …`: the arguments from the third on.
    Exists,
    /// `SCRIPT FLUSH`.
    Flush,
}

/// `EVAL` and `EVALSHA`, for callers that wrap the command in a script.
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

/// What an `EVAL` or `EVALSHA` of an understood script comes to.
///
/// # Errors
/// Those of `CL.THROTTLE`, or another number of keys.
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

/// Whatever its spaces, case and quotes.
fn is_understood(script: &[u8]) -> bool {
    const CALL: &str = "returnredis.call('cl.throttle',keys[1],argv[1],argv[2],argv[3]";
    let text = String::from_utf8_lossy(&script[..script.len().min(256)]).to_lowercase().replace('"', "'");
    let text: String = text.split_whitespace().collect();
    matches!(text.trim_end_matches(';').strip_prefix(CALL), Some(")" | ",argv[4])"))
}
