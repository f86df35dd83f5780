//! A limit: so many tokens per period, and by which algorithm. Parsed once, at the edge.
//!
//! Grammar: `COUNT/PERIOD [gcra|fixed [from-first]|sliding|concurrent] [burst N]`, for example
//! `100/1s burst 200`, `5000/1h fixed`, `20000/1d sliding`, `10/30s concurrent`. `gcra` is the default.

use std::fmt;

use super::time::Micros;

/// Most limits that one policy may have.
pub const MAX_LIMITS: usize = 8;

/// Largest count or burst of a limit.
pub const MAX_COUNT: u64 = u32::MAX as u64;

/// Longest period: 366 days.
pub const MAX_PERIOD: Micros = Micros(366 * 86_400 * 1_000_000);

/// Integers above this are not exact in the scripts' numbers (doubles).
const EXACT: u128 = 1 << 53;

/// How tokens come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A token bucket by the generic cell rate algorithm: one token each `period / count`.
    Gcra,
    /// A count per window, aligned to the Unix epoch.
    Fixed,
    /// A count per window that opens with the first request.
    FixedFromFirst,
    /// Two aligned windows, the earlier weighted by how much of it the sliding window still covers.
    Sliding,
    /// At most `count` at a time: tokens are slots, and come back when they are released, or after `period`.
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
    /// `period / count` in lowest terms, in microseconds: one token's emission interval (gcra).
    interval: (u64, u64),
    /// What the whole burst costs in single tokens (gcra).
    depth: Micros,
}

/// What is wrong with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The text does not follow the grammar.
    Syntax {
        /// The part that was seen.
        seen: String,
        /// What was wanted in its place.
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

    /// A limit by `algorithm`; `burst` counts for gcra only.
    ///
    /// # Errors
    /// A number outside its range.
    pub fn new(count: u64, period: Micros, algorithm: Algorithm, burst: u64) -> Result<Self, LimitError> {
        let burst = if algorithm == Algorithm::Gcra { burst } else { count };
        for (what, value) in [("count", count), ("burst", burst)] {
            if !(1..=MAX_COUNT).contains(&value) {
                return Err(LimitError::Range { what, seen: value.to_string(), wanted: format!("1 to {MAX_COUNT}") });
            }
        }
        let least = if algorithm == Algorithm::Gcra { Micros(1) } else { Micros::from_millis(1) };
        if period < least || period > MAX_PERIOD {
            let wanted = format!("{}us to 366d", least.0);
            return Err(LimitError::Range { what: "period", seen: format!("{}us", period.0), wanted });
        }
        let divisor = gcd(period.0, count);
        let interval = (period.0 / divisor, count / divisor);
        let depth = (u128::from(burst) * u128::from(interval.0)).div_ceil(u128::from(interval.1));
        // Single costs round up; a full bucket takes all of its burst one by one all the same.
        let slack = if interval.0.is_multiple_of(interval.1) { 0 } else { burst.min(interval.0 / interval.1) };
        let depth = Micros(u64::try_from(depth + u128::from(slack)).unwrap_or(u64::MAX));
        let limit = Self { count, period, burst, algorithm, interval, depth };
        if algorithm == Algorithm::Gcra && !limit.is_exact() {
            return Err(LimitError::Range {
                what: "burst",
                seen: burst.to_string(),
                wanted: format!("smaller: burst times count must stay below 2^53 with {count}/{}us", period.0),
            });
        }
        Ok(limit)
    }

    /// The scripts compute `tokens * (period mod count)` in doubles: exact below 2^53.
    fn is_exact(&self) -> bool {
        let (period, count) = (u128::from(self.interval.0), u128::from(self.interval.1));
        let tokens = u128::from(self.burst) + 2;
        tokens * count < EXACT && tokens * period / count < EXACT / 4
    }

    /// Parses the grammar above.
    ///
    /// # Errors
    /// What was seen and what was wanted.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        let syntax = |seen: &str, wanted| LimitError::Syntax { seen: seen.to_owned(), wanted };
        let mut words = text.split_whitespace().peekable();
        let rate = words.next().unwrap_or("");
        let (count, period) = rate.split_once('/').ok_or_else(|| syntax(rate, "COUNT/PERIOD, like 100/1s,"))?;
        let number = |seen: &str| seen.replace('_', "").parse().map_err(|_| syntax(seen, "a whole number"));
        let count = number(count)?;
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
            burst = number(words.next().unwrap_or(""))?;
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

    /// What the whole burst costs under gcra, taken in single tokens, as far as a token's cost allows.
    #[must_use]
    pub const fn depth(&self) -> Micros {
        self.depth
    }

    /// Whether tokens come back one by one, not all at a window's end.
    #[must_use]
    pub const fn trickles(&self) -> bool {
        matches!(self.algorithm, Algorithm::Gcra | Algorithm::Sliding)
    }

    /// One token's emission interval as a fraction in lowest terms: (microseconds, tokens).
    #[must_use]
    pub const fn interval(&self) -> (u64, u64) {
        self.interval
    }
}

/// Parses a length of time: a whole number and one of `us ms s m h d`.
///
/// # Errors
/// What was seen and what was wanted.
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
    let number: u64 = number.parse().map_err(|_| error())?;
    number.checked_mul(scale).map(Micros).ok_or_else(error)
}

/// Writes a length of time in the largest unit that divides it.
#[must_use]
pub fn format_period(period: Micros) -> String {
    let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    for (scale, unit) in units {
        if period.0 >= scale && period.0.is_multiple_of(scale) {
            return format!("{}{unit}", period.0 / scale);
        }
    }
    format!("{}us", period.0)
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, format_period(self.period))?;
        match self.algorithm {
            Algorithm::Gcra if self.burst == self.count => Ok(()),
            Algorithm::Gcra => write!(f, " burst {}", self.burst),
            Algorithm::Fixed => write!(f, " fixed"),
            Algorithm::FixedFromFirst => write!(f, " fixed from-first"),
            Algorithm::Sliding => write!(f, " sliding"),
            Algorithm::Concurrent => write!(f, " concurrent"),
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
            "99999999999/1s",
            "1/99999d",
            "1/1s concurrent burst 2",
            "4000000007/7d burst 4000000007",
        ] {
            assert!(Limit::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn interval_is_in_lowest_terms() {
        assert_eq!(Limit::parse("30/60s").unwrap().interval(), (2_000_000, 1));
        assert_eq!(Limit::parse("3/1s").unwrap().interval(), (1_000_000, 3));
    }
}
