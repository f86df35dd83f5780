//! What is wrong with a command, in the wording that clients know from Redis, redis-cell and throttlecrab.
//!
//! Borrows from the request, and allocates only when it is formatted. Created by the parsers, and shown by sessions.

use std::fmt;

use super::command::{MAX_KEY, MAX_KEYS};
use super::resp::Args;

/// What is wrong with a command. It is displayed as the text after `-` in the reply.
#[derive(Clone, Copy, Debug)]
pub enum CommandError<'a> {
    /// No command of that name.
    Unknown(Args<'a>),
    /// No subcommand of that name.
    Subcommand(&'static str, &'a [u8]),
    /// Too few or too many arguments.
    Arity(&'a [u8]),
    /// An option that the command does not have, or has twice.
    Syntax,
    /// Not an integer.
    Integer(&'a [u8]),
    /// An integer that is negative or too large.
    Negative(&'static str, i64),
    /// A style of header fields that does not exist.
    Style(&'a [u8]),
    /// `RATION.MCHECK` of no key, or of too many.
    Keys(usize),
    /// Not a cursor of `RATION.KEYS`.
    Cursor(&'a [u8]),
    /// A script that is not recognized.
    Script,
    /// The hash of an unknown script, whose text must be sent.
    UnknownScript,
    /// `CL.THROTTLE` with too few or too many arguments.
    ThrottleUsage,
    /// `CL.THROTTLE` with a count or a period of zero.
    ZeroRate,
    /// `THROTTLE` with something else than an integer.
    ThrottlecrabNumber(&'static str),
    /// `THROTTLE` with a quantity below zero.
    ThrottlecrabQuantity(i64),
    /// `THROTTLE` with a burst, a count or a period of zero or less.
    ThrottlecrabRate,
    /// A key above [`MAX_KEY`].
    LongKey(usize),
    /// `HELLO` with another protocol than 2 or 3.
    Protocol,
    /// `HELLO` with something else than a number.
    ProtocolNumber,
    /// `HELLO` with an unknown option, or with an option that lacks its arguments.
    HelloOption(&'a [u8]),
    /// `CLIENT REPLY` with anything but `ON`.
    Silence,
    /// `SELECT` of another database than 0.
    Database,
    /// A client name with characters that would break a listing.
    ClientName,
}

impl fmt::Display for CommandError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(args) => unknown(f, args),
            Self::Subcommand(command, name) => {
                write!(f, "ERR unknown subcommand '{}'. Try {command} HELP.", clipped(name))
            }
            Self::Arity(name) => {
                write!(f, "ERR wrong number of arguments for '{}' command", clipped(name).to_lowercase())
            }
            Self::Syntax => f.write_str("ERR syntax error"),
            Self::Integer(seen) => write!(f, "ERR Couldn't parse as integer: {}", clipped(seen)),
            Self::Negative(what, seen) => write!(f, "ERR {what} is {seen}: it must not be negative"),
            Self::Style(seen) => write!(f, "ERR no header style '{}': there are draft, x and github", clipped(seen)),
            Self::Keys(seen) => write!(f, "ERR {seen} keys: RATION.MCHECK takes 1 to {MAX_KEYS}"),
            Self::Cursor(seen) => {
                write!(
                    f,
                    "ERR CURSOR is '{}': it is 0 for the first page, then what the last page named",
                    clipped(seen)
                )
            }
            Self::Script => f.write_str(
                "ERR no scripts run here: the one that is understood is return redis.call('cl.throttle', \
                 KEYS[1], ARGV[1], ARGV[2], ARGV[3]); use CL.THROTTLE or RATION.CHECK instead",
            ),
            Self::UnknownScript => f.write_str("NOSCRIPT No matching script. Please use EVAL."),
            Self::ThrottleUsage => {
                f.write_str("ERR Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]")
            }
            Self::ZeroRate => f.write_str("ERR Zero rates are not supported"),
            Self::ThrottlecrabNumber(what) => write!(f, "ERR invalid {what}"),
            Self::ThrottlecrabQuantity(seen) => write!(f, "ERR Rate limit check failed: negative quantity: {seen}"),
            Self::ThrottlecrabRate => f.write_str("ERR Rate limit check failed: invalid rate limit parameters"),
            Self::LongKey(len) => write!(f, "ERR the key has {len} bytes: at most {MAX_KEY} are allowed"),
            Self::Protocol => f.write_str("NOPROTO unsupported protocol version: HELLO 2 and HELLO 3 are understood"),
            Self::ProtocolNumber => f.write_str("ERR Protocol version is not an integer or out of range"),
            Self::HelloOption(seen) => write!(f, "ERR Syntax error in HELLO option '{}'", clipped(seen)),
            Self::Silence => f.write_str("ERR every command is answered here: CLIENT REPLY takes ON only"),
            Self::Database => f.write_str("ERR DB index is out of range: 0 is the only one"),
            Self::ClientName => f.write_str("ERR Client names cannot contain spaces, newlines or special characters."),
        }
    }
}

/// Redis' wording: the name, then the beginning of the arguments.
fn unknown(f: &mut fmt::Formatter<'_>, args: &Args<'_>) -> fmt::Result {
    const MOST: usize = 128;
    let name = args.get(0).unwrap_or_default();
    write!(f, "ERR unknown command '{}', with args beginning with: ", clipped(name))?;
    let mut written = 0;
    for arg in args.iter().skip(1) {
        if written >= MOST {
            break;
        }
        let shown = &arg[..arg.len().min(MOST - written)];
        write!(f, "'{}' ", String::from_utf8_lossy(shown))?;
        written += shown.len() + 3;
    }
    Ok(())
}

fn clipped(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned()
}
