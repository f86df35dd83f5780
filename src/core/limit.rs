//! A limit: so many tokens per period, by an algorithm. Parsed once, where text comes in.
//!
//! Grammar: `COUNT/PERIOD [gcra|fixed [from-first]|sliding|concurrent] [burst N]`, for example `100/1s burst 200`,
//! `5000/1h fixed`, `20000/1d sliding`, `10/30s concurrent`. `gcra` is the default.

use std::fmt;

use super::time::Micros;

/// Most limits that one policy may have.
pub const MAX_LIMITS: usize = 8;

/// Largest count or burst of a limit, and largest number of tokens anywhere. The scripts' numbers (doubles) are exact
/// up to here.
pub const MAX_COUNT: u64 = (1 << 53) - 1;

/// Most permits of a concurrent limit. A node remembers each one that is held.
pub const MAX_SLOTS: u64 = u32::MAX as u64;

/// Longest period: ten years, of 366 days.
pub const MAX_PERIOD: Micros = Micros(3_660 * 86_400 * 1_000_000);

/// The longest time that an empty bucket may take to fill: 71 years. Sums with it stay exact.
const DEEPEST: u128 = 1 << 51;

/// How tokens come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A token bucket by the generic cell rate algorithm: one token each `period / count`.
    Gcra,
    /// A count per window; windows are aligned to the Unix epoch.
    Fixed,
    /// A count per window that opens with the first request.
    FixedFromFirst,
    /// Two aligned windows, of which the earlier counts by the fraction that the sliding window still covers.
    Sliding,
    /// At most `count` at a time. Tokens are permits, which come back when they are released, or after `period`.
    Concurrent,
}

/// `count` tokens per `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Tokens per period: 1 to [`MAX_COUNT`].
    pub count: u64,
    /// The period: 1 ms to [`MAX_PERIOD`] (1 µs for gcra).
    pub period: Micros,
    /// Tokens the bucket holds: 1 to [`MAX_COUNT`]. Equals `count` for windows.
    pub burst: u64,
    /// How tokens come back.
    pub algorithm: Algorithm,
    /// `period / count` in lowest terms, in microseconds: the emission interval of one token (GCRA).
    interval: (u64, u64),
    /// The cost of the whole burst, taken as single tokens (GCRA).
    depth: Micros,
}

/// What is wrong with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The text does not follow the grammar.
    Syntax {
        /// The part of the text that is wrong.
        seen: String,
        /// What was expected in its place.
        wanted: &'static str,
    },
    /// A number is outside its range.
    Range {
        /// Which number.
        what: &'static str,
        /// What was seen.
        seen: String,
        /// The range.
        wanted: String,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { seen, wanted } => write!(f, "{seen:?} where {wanted} was wanted"),
            Self::Range { what, seen, wanted } => write!(f, "{what} is {seen}: it must be {wanted}"),
        }
    }
}

impl std::error::Error for LimitError {}

impl Limit {
    /// A token bucket that holds `burst` and gains `count` tokens per `period`.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn gcra(count: u64, period: Micros, burst: u64) -> Result<Self, LimitError> {
        Self::new(count, period, Algorithm::Gcra, burst)
    }

    /// A limit with this `algorithm`; `burst` matters only for GCRA.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn new(count: u64, period: Micros, algorithm: Algorithm, burst: u64) -> Result<Self, LimitError> {
        let burst = if algorithm == Algorithm::Gcra { burst } else { count };
        for (what, value) in [("count", count), ("burst", burst)] {
            if !(1..=most_of(algorithm)).contains(&value) {
                return Err(LimitError::Range { what, seen: value.to_string(), wanted: counts_of(algorithm) });
            }
        }
        let least = if algorithm == Algorithm::Gcra { Micros(1) } else { Micros::from_millis(1) };
        if period < least || period > MAX_PERIOD {
            let wanted = format!("{} to {}", format_period(least), format_period(MAX_PERIOD));
            return Err(LimitError::Range { what: "period", seen: format_period(period), wanted });
        }
        let deepest = deepest(count, period);
        if algorithm == Algorithm::Gcra && burst > deepest {
            let wanted =
                format!("{deepest} at most, or 71 years would not fill it at {count}/{}", format_period(period));
            return Err(LimitError::Range { what: "burst", seen: burst.to_string(), wanted });
        }
        let divisor = gcd(period.0, count);
        let interval = (period.0 / divisor, count / divisor);
        let depth = (u128::from(burst) * u128::from(interval.0)).div_ceil(u128::from(interval.1));
        // The cost of a single token is rounded up. The slack makes sure that a full bucket still has room for all of
        // its burst, taken one by one.
        let slack = if interval.0.is_multiple_of(interval.1) { 0 } else { burst.min(interval.0 / interval.1) };
        let depth = Micros(u64::try_from(depth + u128::from(slack)).unwrap_or(u64::MAX));
        Ok(Self { count, period, burst, algorithm, interval, depth })
    }

    /// Parses the grammar above.
    ///
    /// # Errors
    /// What was seen, and what was expected.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        let syntax = |seen: &str, wanted| LimitError::Syntax { seen: seen.to_owned(), wanted };
        let mut words = text.split_whitespace().peekable();
        let rate = words.next().unwrap_or("");
        let (count, period) = rate.split_once('/').ok_or_else(|| syntax(rate, "COUNT/PERIOD, like 100/1s,"))?;
        let count = number("count", count)?;
        let period = parse_period(period)?;
        let mut algorithm = Algorithm::Gcra;
        match words.peek().copied() {
            Some("gcra") => {
                words.next();
            }
            Some("fixed") => {
                words.next();
                algorithm = Algorithm::Fixed;
                if words.next_if_eq(&"from-first").is_some() {
                    algorithm = Algorithm::FixedFromFirst;
                }
            }
            Some("sliding") => {
                words.next();
                algorithm = Algorithm::Sliding;
            }
            Some("concurrent") => {
                words.next();
                algorithm = Algorithm::Concurrent;
            }
            _ => {}
        }
        let mut burst = count;
        if words.next_if_eq(&"burst").is_some() {
            if algorithm != Algorithm::Gcra {
                return Err(syntax("burst", "nothing more (only gcra has a burst)"));
            }
            burst = number("burst", words.next().unwrap_or(""))?;
        }
        match words.next() {
            None => Self::new(count, period, algorithm, burst),
            Some(seen) => Err(syntax(seen, "gcra, fixed, fixed from-first, sliding, concurrent or burst N")),
        }
    }

    /// Tokens of the limit when it is whole.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.burst
    }

    /// The cost of the whole burst under GCRA, taken as single tokens, as far as a token's cost allows.
    #[must_use]
    pub const fn depth(&self) -> Micros {
        self.depth
    }

    /// Whether tokens come back one by one, and not all at the end of a window.
    #[must_use]
    pub const fn trickles(&self) -> bool {
        matches!(self.algorithm, Algorithm::Gcra | Algorithm::Sliding)
    }

    /// The emission interval of one token as a fraction in lowest terms: (microseconds, tokens).
    #[must_use]
    pub const fn interval(&self) -> (u64, u64) {
        self.interval
    }
}

/// A whole number, with or without `_` between its digits.
fn number(what: &'static str, seen: &str) -> Result<u64, LimitError> {
    let digits = seen.replace('_', "");
    digits.parse().map_err(|_| {
        let seen = seen.to_owned();
        if is_number(&digits) {
            LimitError::Range { what, seen, wanted: counts_of(Algorithm::Gcra) }
        } else {
            LimitError::Syntax { seen, wanted: "a whole number" }
        }
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Largest count for that algorithm.
fn most_of(algorithm: Algorithm) -> u64 {
    if algorithm == Algorithm::Concurrent { MAX_SLOTS } else { MAX_COUNT }
}

/// The valid counts, for an error message.
fn counts_of(algorithm: Algorithm) -> String {
    if algorithm == Algorithm::Concurrent {
        format!("1 to {MAX_SLOTS}, as a node keeps every slot")
    } else {
        format!("1 to {MAX_COUNT} (2^53 - 1)")
    }
}

/// The largest burst of a bucket that gains `count` tokens per `period`; it takes 71 years to fill.
#[must_use]
pub fn deepest(count: u64, period: Micros) -> u64 {
    let tokens = DEEPEST * u128::from(count) / u128::from(period.0.max(1));
    u64::try_from(tokens - 2).unwrap_or(u64::MAX).min(MAX_COUNT)
}

/// Parses a length of time: a whole number and one of `us ms s m h d`.
///
/// # Errors
/// What was seen, and what was expected.
pub fn parse_period(text: &str) -> Result<Micros, LimitError> {
    let error = || LimitError::Syntax { seen: text.to_owned(), wanted: "a period, like 250ms, 10s, 1m, 24h or 7d," };
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60 * 1_000_000,
        "h" => 3_600 * 1_000_000,
        "d" => 86_400 * 1_000_000,
        _ => return Err(error()),
    };
    let parsed = number.parse().ok().and_then(|number: u64| number.checked_mul(scale));
    parsed.map(Micros).ok_or_else(|| match is_number(number) {
        true => LimitError::Range {
            what: "period",
            seen: text.to_owned(),
            wanted: format!("{} at most", format_period(MAX_PERIOD)),
        },
        false => error(),
    })
}

/// Writes a length of time in the largest unit that divides it.
#[must_use]
pub fn format_period(period: Micros) -> String {
    Period(period).to_string()
}

/// A length of time that shows itself so. A response about a limit shows it twice, so it takes no memory of its own.
struct Period(Micros);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
        let Self(Micros(period)) = *self;
        let fits = |&(scale, _): &(u64, &str)| period >= scale && period.is_multiple_of(scale);
        let (scale, unit) = units.into_iter().find(fits).unwrap_or((1, "us"));
        (period / scale).fmt(f)?;
        f.write_str(unit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count.fmt(f)?;
        f.write_str("/")?;
        Period(self.period).fmt(f)?;
        match self.algorithm {
            Algorithm::Gcra if self.burst == self.count => Ok(()),
            Algorithm::Gcra => write!(f, " burst {}", self.burst),
            Algorithm::Fixed => f.write_str(" fixed"),
            Algorithm::FixedFromFirst => f.write_str(" fixed from-first"),
            Algorithm::Sliding => f.write_str(" sliding"),
            Algorithm::Concurrent => f.write_str(" concurrent"),
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_it_prints() {
        for text in ["100/1s burst 200", "100/1s", "5000/1h fixed", "1/250ms fixed from-first", "20000/1d sliding"] {
            assert_eq!(Limit::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn default_burst_is_the_count() {
        assert_eq!(Limit::parse("100/1s gcra").unwrap().burst, 100);
    }

    #[test]
    fn rejects_what_is_not_a_limit() {
        for text in [
            "",
            "100",
            "x/1s",
            "1/1y",
            "1/s",
            "0/1s",
            "1/0s",
            "1/1s fixed burst 2",
            "1/1s odd",
            "-1/1s",
            "1/1s burst",
            "1/1s burst 0",
            "9007199254740992/1s",
            "1/3661d",
            "1/1s concurrent burst 2",
            "4294967296/1s concurrent",
            "1/3660d burst 6",
        ] {
            assert!(Limit::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn counts_reach_2_to_the_53_and_periods_ten_years() {
        for text in [
            "10000000000/1d",
            "10000000000/1d fixed",
            "4000000007/7d burst 4000000009",
            "9007199254740991/1d",
            "9007199254740991/3660d sliding",
            "9007199254740991/1ms fixed from-first",
            "1/3660d burst 5",
        ] {
            assert_eq!(Limit::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_does_not_fit_says_which_bound_and_why() {
        for (text, wanted) in [
            ("9007199254740992/1d fixed", "count is 9007199254740992: it must be 1 to 9007199254740991 (2^53 - 1)"),
            ("99999999999999999999/1d", "count is 99999999999999999999: it must be 1 to 9007199254740991 (2^53 - 1)"),
            ("1/1s burst 0", "burst is 0: it must be 1 to 9007199254740991 (2^53 - 1)"),
            ("1/4000d", "period is 4000d: it must be 1us to 3660d"),
            ("1/99999999999999999999d", "period is 99999999999999999999d: it must be 3660d at most"),
            ("1/1us fixed", "period is 1us: it must be 1ms to 3660d"),
            ("1/3660d burst 6", "burst is 6: it must be 5 at most, or 71 years would not fill it at 1/3660d"),
            ("5000000000/1m concurrent", "count is 5000000000: it must be 1 to 4294967295, as a node keeps every slot"),
            ("1x/1s", "\"1x\" where a whole number was wanted"),
        ] {
            assert_eq!(Limit::parse(text).expect_err(text).to_string(), wanted);
        }
    }

    #[test]
    fn interval_is_in_lowest_terms() {
        assert_eq!(Limit::parse("30/60s").unwrap().interval(), (2_000_000, 1));
        assert_eq!(Limit::parse("3/1s").unwrap().interval(), (1_000_000, 3));
    }
}
