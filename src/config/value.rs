//! One value of a configuration: what was written, and whether its key accepts it.
//!
//! Accepted values are converted to one form (periods in microseconds, modes as numbers), which `tree.rs` reads and
//! [`Kind::show`] writes back.

use std::net::SocketAddr;
use std::ops::Range;

use figment::value::Value;

use super::problem::{did_you_mean, mask_password, nearest};
use crate::core::limit::{format_period, parse_period};
use crate::core::time::Micros;

/// The kind of values that a key accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Text,
    Path,
    Bool,
    /// A whole number within these bounds.
    Count(i64, i64),
    /// A duration within these bounds, in microseconds.
    Period(u64, u64),
    /// A number of bytes within these bounds.
    Size(u64, u64),
    Choice(&'static [&'static str]),
    /// File permissions in octal.
    Mode,
    Uids,
    /// An IP address with a port, or `off`.
    Address,
    /// The path of a socket, or an IP address with a port, or `off`.
    ListenAddress,
    /// An IP address with a port, to listen on.
    Listen,
    /// An IP address with a port, at which others reach this node.
    Reach,
    Url,
    Prefix,
    Name,
    /// A label of a DNS name.
    Label,
    Texts,
    /// A list of words.
    Words,
    /// One of a list of limits. The policy compiler checks its grammar.
    Limit,
    Seeds,
    /// One of a list of seeds: a host or an IP address, with a port.
    Seed,
}

/// A value as it was written in a file, a variable or a flag.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    Text(String),
    Integer(i64),
    Bool(bool),
    List(Vec<(Range<usize>, Seen)>),
    /// A type that no key accepts, by its name.
    Other(String),
}

/// Why a value is not accepted.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The index of the faulty element, if the value is a list.
    pub(crate) element: Option<usize>,
    pub(crate) seen: String,
    pub(crate) wanted: String,
    pub(crate) hint: Option<String>,
}

impl Fault {
    /// The error message about the value of `key`.
    pub(crate) fn message(&self, key: &str) -> String {
        let verb = if self.element.is_some() { "holds" } else { "is" };
        format!("{key} {verb} {}: {} was wanted", self.seen, self.wanted)
    }
}

const SCHEMES: [&str; 5] = ["redis://", "rediss://", "redis+unix://", "redis-cluster://", "rediss-cluster://"];

impl Seen {
    /// Parses the text of a variable or a flag into the form in which `kind` is written there.
    pub(crate) fn from_text(kind: Kind, text: &str) -> Self {
        let whole = || Self::Text(text.to_owned());
        match kind {
            Kind::Bool => text.parse().map_or_else(|_| whole(), Self::Bool),
            Kind::Count(..) => text.replace('_', "").parse().map_or_else(|_| whole(), Self::Integer),
            Kind::Uids => {
                Self::List(split_list(text).map(|part| (0..0, Self::from_text(Kind::Count(0, 0), part))).collect())
            }
            Kind::Texts | Kind::Words | Kind::Seeds => {
                Self::List(split_list(text).map(|part| (0..0, Self::Text(part.to_owned()))).collect())
            }
            _ => whole(),
        }
    }

    /// The value, as an error message shows it.
    fn describe(&self) -> String {
        match self {
            Self::Text(text) => {
                let short: String = mask_password(text).chars().take(80).collect();
                format!("{short:?}")
            }
            Self::Integer(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::List(_) => "a list".to_owned(),
            Self::Other(name) => name.clone(),
        }
    }
}

/// Elements of `a, b` or `["a", "b"]`.
fn split_list(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    inner.split(',').map(|part| part.trim().trim_matches('"').trim()).filter(|part| !part.is_empty())
}

impl Kind {
    /// Converts the value to its one form, or returns everything that is wrong with it.
    pub(crate) fn accept(self, seen: &Seen) -> Result<Value, Vec<Fault>> {
        match (self, seen) {
            // An empty list of users could mean nobody or everybody, so it is not accepted.
            (Self::Uids, Seen::List(parts)) if parts.is_empty() => {}
            (Self::Uids | Self::Texts | Self::Words | Self::Seeds, Seen::List(parts)) => {
                return self.accept_list(parts);
            }
            _ => {}
        }
        self.accept_one(seen)
            .map_err(|hint| vec![Fault { element: None, seen: seen.describe(), wanted: self.wanted(), hint }])
    }

    fn accept_list(self, parts: &[(Range<usize>, Seen)]) -> Result<Value, Vec<Fault>> {
        let element = match self {
            Self::Uids => Self::Count(0, i64::from(u32::MAX)),
            Self::Seeds => Self::Seed,
            Self::Words => Self::Text,
            _ => Self::Limit,
        };
        let (mut values, mut faults) = (Vec::new(), Vec::new());
        for (index, (_, part)) in parts.iter().enumerate() {
            match element.accept_one(part) {
                Ok(value) => values.push(value),
                Err(hint) => {
                    faults.push(Fault { element: Some(index), seen: part.describe(), wanted: element.wanted(), hint });
                }
            }
        }
        if faults.is_empty() { Ok(Value::from(values)) } else { Err(faults) }
    }

    /// The error is a hint, if there is one.
    fn accept_one(self, seen: &Seen) -> Result<Value, Option<String>> {
        match (self, seen) {
            (Self::Bool, Seen::Bool(value)) => Ok(Value::from(*value)),
            (Self::Count(least, most), Seen::Integer(number)) if (least..=most).contains(number) => {
                Ok(Value::from(*number))
            }
            (Self::Count(..), Seen::Text(text)) if text.parse::<i64>().is_ok() => {
                Err(Some("write it without quotes".into()))
            }
            (Self::Bool, Seen::Text(text)) if text.parse::<bool>().is_ok() => {
                Err(Some("write it without quotes".into()))
            }
            (Self::Period(..), Seen::Integer(number)) => Err(Some(format!("did you mean \"{number}ms\"?"))),
            (Self::Size(least, most), Seen::Integer(number)) => match u64::try_from(*number) {
                Ok(bytes) if (least..=most).contains(&bytes) => Ok(Value::from(bytes)),
                _ => Err(Some(format!("did you mean \"{number}MiB\"?"))),
            },
            (Self::Mode, Seen::Integer(_)) => Err(Some("write it in quotes".into())),
            (Self::Texts | Self::Words | Self::Seeds, Seen::Text(_)) => Err(Some("write it in brackets".into())),
            (Self::Uids, Seen::Integer(_)) => Err(Some("write it in brackets".into())),
            (_, Seen::Text(text)) => self.accept_text(text),
            _ => Err(None),
        }
    }

    fn accept_text(self, text: &str) -> Result<Value, Option<String>> {
        let plain = || Ok(Value::from(text));
        match self {
            Self::Limit => plain(),
            Self::Text | Self::Path if !text.is_empty() && !text.contains('\0') => plain(),
            Self::Choice(words) if words.contains(&text) => plain(),
            Self::Choice(words) => Err(did_you_mean(nearest(text, words.iter().copied()))),
            Self::Period(least, most) => match parse_period(text) {
                Ok(period) if (least..=most).contains(&period.0) => Ok(Value::from(period.0)),
                Ok(_) => Err(None),
                Err(_) => Err(text.parse::<u64>().ok().map(|number| format!("did you mean `{number}ms`?"))),
            },
            Self::Size(least, most) => match parse_size(text) {
                Some(bytes) if (least..=most).contains(&bytes) => Ok(Value::from(bytes)),
                Some(_) => Err(None),
                None => Err(text.parse::<u64>().ok().map(|number| format!("did you mean `{number}MiB`?"))),
            },
            Self::Mode => match u32::from_str_radix(text, 8) {
                Ok(mode) if mode <= 0o777 && text.bytes().all(|c| c.is_ascii_digit()) => Ok(Value::from(mode)),
                _ => Err(None),
            },
            Self::Address if text == "off" || text.parse::<SocketAddr>().is_ok() => plain(),
            Self::ListenAddress if is_listen_address(text) => plain(),
            Self::ListenAddress if !text.contains([':', '/', '\0']) => Err(did_you_mean(Some(&format!("./{text}")))),
            Self::Listen if text.parse::<SocketAddr>().is_ok() => plain(),
            Self::Reach if text.parse::<SocketAddr>().is_ok_and(|address| !address.ip().is_unspecified()) => plain(),
            Self::Seed if is_host_and_port(text) => plain(),
            Self::Label if is_label(text) => plain(),
            Self::Name if (1..=128).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic()) => plain(),
            Self::Prefix if is_prefix(text) => plain(),
            Self::Url if text == "memory:" || has_scheme(text) => plain(),
            Self::Url if text == "memory" || text == "memory://" => Err(Some("did you mean `memory:`?".into())),
            Self::Url => Err(near_scheme(text)),
            _ => Err(None),
        }
    }

    /// The values that this kind accepts, for error messages.
    pub(super) fn wanted(self) -> String {
        match self {
            Self::Text => "a text".into(),
            Self::Path => "a path".into(),
            Self::Bool => "true or false".into(),
            Self::Count(least, most) => format!("a whole number from {least} to {most}"),
            Self::Period(least, most) => {
                format!("a period from {} to {}, like 50ms,", format_period(Micros(least)), format_period(Micros(most)))
            }
            Self::Size(least, most) => {
                format!("a size from {} to {}, like 512MiB,", format_size(least), format_size(most))
            }
            Self::Choice(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
                quoted.join(" or ")
            }
            Self::Mode => "permissions in octal, like \"0660\",".into(),
            Self::Uids => "a list of user ids, like [0, 1000],".into(),
            Self::Address => "an IP address with a port, like \"127.0.0.1:9464\", or \"off\"".into(),
            Self::ListenAddress => {
                "a path of a socket, like \"/run/rationd/rls.sock\", an IP address with a port, or \"off\"".into()
            }
            Self::Listen => "an IP address with a port, like \"0.0.0.0:7946\",".into(),
            Self::Reach => "an IP address with a port that peers can reach, like \"10.0.0.17:7946\",".into(),
            Self::Url => "memory: or one of redis:// rediss:// redis+unix:// redis-cluster:// rediss-cluster://".into(),
            Self::Prefix => "1 to 64 printable ASCII characters without spaces and {}*?[]\\".into(),
            Self::Name => "1 to 128 printable ASCII characters without spaces".into(),
            Self::Label => "1 to 63 lower-case letters, digits and inner hyphens, like \"prod\",".into(),
            Self::Seed => "a host and a port in quotes, like \"rationd.internal:7946\",".into(),
            Self::Seeds => "a list of hosts and ports, like [\"10.0.0.1:7946\"],".into(),
            Self::Limit => "a limit in quotes, like \"100/1s\",".into(),
            Self::Words => "a list of texts, like [\"remote_address\"],".into(),
            Self::Texts => "a list of limits, like [\"100/1s burst 200\"],".into(),
        }
    }

    /// An accepted value as a file would write it, with passwords masked.
    pub(crate) fn show(self, value: &Value) -> String {
        match (self, value) {
            (Self::Period(..), _) => {
                format!("{:?}", format_period(Micros(value.to_u128().and_then(|us| us.try_into().ok()).unwrap_or(0))))
            }
            (Self::Size(..), _) => {
                format!("{:?}", format_size(value.to_u128().and_then(|bytes| bytes.try_into().ok()).unwrap_or(0)))
            }
            (Self::Mode, _) => format!("\"{:04o}\"", value.to_u128().unwrap_or(0)),
            (_, Value::String(_, text)) => format!("{:?}", mask_password(text)),
            (_, Value::Bool(_, flag)) => flag.to_string(),
            (Self::Texts | Self::Words | Self::Seeds, Value::Array(_, parts)) => {
                list(parts, |part| Self::Text.show(part))
            }
            (_, Value::Array(_, parts)) => list(parts, |part| Self::Count(0, 0).show(part)),
            _ => value.to_i128().map_or_else(|| "?".to_owned(), |number| number.to_string()),
        }
    }
}

/// Units of sizes, the largest first.
const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Parses a whole number with its unit.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    number.trim_end().parse::<u64>().ok()?.checked_mul(*unit)
}

/// A size in the largest unit that divides it.
fn format_size(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

fn list(parts: &[Value], show: impl Fn(&Value) -> String) -> String {
    let parts: Vec<_> = parts.iter().map(show).collect();
    format!("[{}]", parts.join(", "))
}

/// Whether the text is `off`, an address, or a path. A path must contain a slash, so that a mistyped address is not
/// taken for one.
pub(crate) fn is_listen_address(text: &str) -> bool {
    text == "off" || text.parse::<SocketAddr>().is_ok() || (text.contains('/') && !text.contains('\0'))
}

fn is_prefix(text: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_graphic() && !b"{}*?[]\\".contains(&c);
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}

fn is_label(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_host_and_port(text: &str) -> bool {
    let host_and_port = || {
        let (host, port) = text.rsplit_once(':')?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
        let named = (1..=253).contains(&host.len()) && host.bytes().all(plain);
        (named && port.parse::<u16>().is_ok_and(|port| port != 0)).then_some(())
    };
    text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0) || host_and_port().is_some()
}

fn has_scheme(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
        && !text.contains(char::is_whitespace)
}

fn near_scheme(text: &str) -> Option<String> {
    let (scheme, _) = text.split_once("://")?;
    if SCHEMES.iter().any(|known| known.strip_suffix("://") == Some(scheme)) {
        return Some("a host is missing, or there is a space in it".into());
    }
    did_you_mean(nearest(scheme, SCHEMES.iter().filter_map(|known| known.strip_suffix("://"))))
}
