//! A duration as scenarios write it: `250us`, `10ms`, `1.5s`, `2m`, `1h`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use rationd::core::time::Micros;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// From the largest to the smallest.
const UNITS: [(&str, u64); 5] = [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

impl Span {
    /// So many seconds.
    #[must_use]
    pub const fn secs(seconds: u64) -> Self {
        Self(seconds * 1_000_000)
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn millis(millis: u64) -> Self {
        Self(millis * 1_000)
    }

    /// The same in the core's type.
    #[must_use]
    pub const fn micros(self) -> Micros {
        Micros(self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = *UNITS.iter().find(|(_, size)| self.0.is_multiple_of(*size)).unwrap_or(&("us", 1));
        if self.0 == 0 { f.write_str("0s") } else { write!(f, "{}{unit}", self.0 / size) }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no span of time: wanted a number with us, ms, s, m or h, like `250ms`");
        let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(split);
        let size = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let (whole, digits) = (whole.parse::<u64>().map_err(|_| wrong())?, part.len() as u32);
        let part = part.parse::<u64>().map_err(|_| wrong())?;
        let unit_part = 10_u64.checked_pow(digits).ok_or_else(wrong)?;
        let part = part.checked_mul(size).ok_or_else(wrong)? / unit_part;
        whole.checked_mul(size).and_then(|whole| whole.checked_add(part)).map(Self).ok_or_else(wrong)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(us|ms|s|m|h)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["0s", "250us", "10ms", "90s", "2m", "1h"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("1.5s".parse::<Span>().unwrap(), Span::millis(1_500));
        assert_eq!("90s".parse::<Span>().unwrap().to_string(), "90s");
    }

    #[test]
    fn says_what_was_wanted() {
        for text in ["", "5", "5 s", "-1s", "ms", "1d", "99999999999999999999s"] {
            assert!(text.parse::<Span>().unwrap_err().contains("wanted"), "{text}");
        }
    }
}
