//! Percentages as people write and read them, in millionths.

/// A percentage as `0.1%` or `0.1`.
///
/// # Errors
/// What was seen, and what was wanted.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent: Option<f64> = number.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent
        .map(|percent| (percent * 10_000.0).round() as u64)
        .ok_or_else(|| format!("{text:?}: a percentage was wanted, like 0.1%"))
}

/// `part` of `all` in millionths; 0 if `all` is 0.
pub(super) fn of(part: u64, all: u64) -> u64 {
    (u128::from(part) * 1_000_000 / u128::from(all.max(1))) as u64
}

/// The text for people.
pub(super) fn text(millionths: u64) -> String {
    format!("{} %", millionths as f64 / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_and_written() {
        assert_eq!((parse("0.1%"), parse("100"), parse("0 %")), (Ok(1_000), Ok(1_000_000), Ok(0)));
        for wrong in ["", "%", "-1", "101%", "NaN", "x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!((of(1, 8), of(0, 0), text(125_000), text(1)), (125_000, 0, "12.5 %".into(), "0.0001 %".into()));
    }
}
