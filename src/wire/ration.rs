//! Parses the arguments of `RATION.*` into a typed command. Called by `parse.rs`.

use super::arguments::{amount, arity, key};
use super::command::{Admin, Command, MAX_KEYS};
use super::command_error::CommandError;
use super::headers::Style;
use super::resp::Args;

/// Most keys of one page of `RATION.KEYS`.
const MAX_LISTED: usize = 1_000;

/// One of the keys of `RATION.MCHECK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The policy's name.
    pub policy: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// Tokens asked for.
    pub cost: u64,
}

/// The keys of a `RATION.MCHECK` that was parsed before.
pub fn parts<'a>(args: Args<'a>) -> impl Iterator<Item = Part<'a>> {
    (2..args.len()).step_by(3).filter_map(move |at| {
        let (policy, subject) = (args.get(at)?, args.get(at + 1)?);
        Some(Part { policy, key: key(subject).ok()?, cost: amount(args.get(at + 2)?).ok()? })
    })
}

/// The options after a policy and a key.
#[derive(Default)]
struct Options {
    cost: Option<u64>,
    ttl_ms: Option<u64>,
    style: Option<Style>,
    peek: bool,
}

/// Parses the `known` options from the argument `at` on. Each may be given once.
fn options<'a>(args: Args<'a>, mut at: usize, known: &[&str]) -> Result<Options, CommandError<'a>> {
    let mut options = Options::default();
    while let Some(name) = args.get(at) {
        let is = |wanted: &str| known.contains(&wanted) && name.eq_ignore_ascii_case(wanted.as_bytes());
        let value = || args.get(at + 1).ok_or(CommandError::Syntax);
        if is("PEEK") && !options.peek {
            options.peek = true;
            at += 1;
            continue;
        } else if is("COST") && options.cost.is_none() {
            options.cost = Some(amount(value()?)?);
        } else if is("TTL") && options.ttl_ms.is_none() {
            options.ttl_ms = Some(amount(value()?)?);
        } else if is("STYLE") && options.style.is_none() {
            options.style = Some(Style::named(value()?).ok_or(CommandError::Style(value()?))?);
        } else {
            return Err(CommandError::Syntax);
        }
        at += 2;
    }
    Ok(options)
}

pub(super) fn check<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let (Some(policy), Some(subject)) = (args.get(1), args.get(2)) else { return Err(arity(args)) };
    let Options { cost, peek, .. } = options(args, 3, &["COST", "PEEK"])?;
    Ok(Command::Check { policy, key: key(subject)?, cost: cost.unwrap_or(1), peek })
}

fn many<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let count = usize::try_from(amount(args.get(1).ok_or(arity(args))?)?).unwrap_or(usize::MAX);
    if count == 0 || count > MAX_KEYS {
        return Err(CommandError::Keys(count));
    }
    if args.len() != 2 + 3 * count {
        return Err(arity(args));
    }
    for at in (2..args.len()).step_by(3) {
        key(args.get(at + 1).unwrap_or_default())?;
        amount(args.get(at + 2).unwrap_or_default())?;
    }
    Ok(Command::MCheck)
}

pub(super) fn ration<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let name = args.get(0).unwrap_or_default();
    let is = |wanted: &str| name[7..].eq_ignore_ascii_case(wanted.as_bytes());
    let (policy, subject) = (args.get(1).unwrap_or_default(), args.get(2).unwrap_or_default());
    let exactly = |len| if args.len() == len { Ok(()) } else { Err(arity(args)) };
    let at_least = |len| if args.len() >= len { Ok(()) } else { Err(arity(args)) };
    let number = |at| amount(args.get(at).unwrap_or_default());
    if is("MCHECK") {
        return many(args);
    }
    if is("HEADERS") {
        at_least(3)?;
        let Options { cost, style, .. } = options(args, 3, &["COST", "STYLE"])?;
        let (cost, style) = (cost.unwrap_or(1), style.unwrap_or_default());
        return Ok(Command::Headers { policy, key: key(subject)?, cost, style });
    }
    if is("HOLD") {
        at_least(4)?;
        let Options { ttl_ms, .. } = options(args, 4, &["TTL"])?;
        return Ok(Command::Hold { policy, key: key(subject)?, cost: number(3)?, ttl_ms });
    }
    if is("SETTLE") {
        exactly(3)?;
        return Ok(Command::Settle { id: policy, cost: number(2)? });
    }
    if is("LEASE") {
        exactly(4)?;
        return Ok(Command::Lease { policy, key: key(subject)?, want: number(3)? });
    }
    if is("REFUND") || is("RETURN") {
        exactly(4)?;
        return Ok(Command::Refund { policy, key: key(subject)?, cost: number(3)? });
    }
    if is("RELEASE") {
        exactly(4)?;
        return Ok(Command::Release { policy, key: key(subject)?, id: args.get(3).unwrap_or_default() });
    }
    if is("RESET") {
        exactly(3)?;
        return Ok(Command::Reset { policy, key: key(subject)? });
    }
    if is("EXPLAIN") {
        exactly(3)?;
        return Ok(Command::Explain { policy, key: key(subject)? });
    }
    if is("RELOAD") {
        let dry_run = match (args.get(1), args.len()) {
            (None, _) => false,
            (Some(option), 2) if option.eq_ignore_ascii_case(b"DRYRUN") => true,
            _ => return Err(CommandError::Syntax),
        };
        return Ok(Command::Admin(Admin::Reload { dry_run }));
    }
    if is("TOP") {
        return top(args);
    }
    if is("KEYS") {
        return keys(args);
    }
    let admin =
        [("POLICIES", Admin::Policies), ("PEERS", Admin::Peers), ("STATS", Admin::Stats), ("DENIALS", Admin::Denials)];
    let Some((_, admin)) = admin.into_iter().find(|(wanted, _)| is(wanted)) else {
        return Err(CommandError::Unknown(args));
    };
    exactly(1)?;
    Ok(Command::Admin(admin))
}

/// `RATION.TOP [COUNT n] [FLEET]`.
fn top<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let (mut most, mut fleet) = (None, false);
    let mut at = 1;
    while let Some(option) = args.get(at) {
        if option.eq_ignore_ascii_case(b"COUNT") && most.is_none() {
            most = Some(amount(args.get(at + 1).ok_or(CommandError::Syntax)?)?);
            at += 2;
        } else if option.eq_ignore_ascii_case(b"FLEET") && !fleet {
            fleet = true;
            at += 1;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    let most = usize::try_from(most.unwrap_or(20)).unwrap_or(usize::MAX).min(MAX_LISTED);
    Ok(Command::Admin(Admin::Top { most, fleet }))
}

/// `RATION.KEYS [CURSOR cursor] [COUNT n]`.
fn keys<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let (mut cursor, mut most) = (None, None);
    let mut at = 1;
    while let Some(option) = args.get(at) {
        let value = args.get(at + 1).ok_or(CommandError::Syntax)?;
        if option.eq_ignore_ascii_case(b"CURSOR") && cursor.is_none() {
            let text = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
            let number = text.and_then(|text| u128::from_str_radix(text, 16).ok());
            cursor = Some(number.ok_or(CommandError::Cursor(value))?);
        } else if option.eq_ignore_ascii_case(b"COUNT") && most.is_none() {
            most = Some(usize::try_from(amount(value)?).unwrap_or(usize::MAX));
        } else {
            return Err(CommandError::Syntax);
        }
        at += 2;
    }
    // A page must have at least one key, because an empty page means the end of the listing.
    let least = usize::from(cursor.is_some());
    Ok(Command::Admin(Admin::Keys { cursor, most: most.unwrap_or(100).clamp(least, MAX_LISTED) }))
}
