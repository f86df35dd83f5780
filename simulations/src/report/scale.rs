//! Axes: round ticks and short numbers. For eyes only: nothing that is judged goes through here.

/// One axis: values from `low` to `high` on places from `from` to `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) from: f64,
    pub(super) to: f64,
}

impl Axis {
    /// The place of a value; values beyond an end are at the end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = (value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Some `count` round values within the axis.
    pub(super) fn ticks(&self, count: u32) -> Vec<f64> {
        let step = round_step((self.high - self.low) / f64::from(count));
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

/// The smallest of 1, 2, 5, 10, … that is not below `step`.
pub(super) fn round_step(step: f64) -> f64 {
    if !step.is_finite() || step <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(step.log10().floor());
    let digits = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= step * 0.999_999);
    digits.unwrap_or(10.0) * power
}

/// The next round value above `high`, for some four ticks.
pub(super) fn round_top(high: f64) -> f64 {
    let step = round_step(high / 4.0);
    if high > 0.0 { (high / step * 0.999_999).ceil() * step } else { 1.0 }
}

/// A number in a few letters: `1.5k`, `20M`, `0.25`.
pub(super) fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = units.into_iter().find(|(size, _)| value.abs() >= *size);
    let (size, unit) = unit.unwrap_or((1.0, ""));
    let text = format!("{:.2}", value / size);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{unit}", if text == "-0" { "0" } else { text })
}

/// A whole number with spaces: `1 234 567`.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as people read them: `250 µs`, `1.25 ms`, `2 s`.
pub(super) fn time(micros: u64) -> String {
    match micros {
        0 => "at once".to_owned(),
        1..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", short(micros as f64 / 1e3)),
        _ => format!("{} s", short(micros as f64 / 1e6)),
    }
}

/// What the time axis counts: microseconds each, and its name.
pub(super) fn time_unit(end: u64) -> (f64, &'static str) {
    match end {
        0..2_000_000 => (1e3, "milliseconds"),
        2_000_000..300_000_000 => (1e6, "seconds"),
        300_000_000..18_000_000_000 => (60e6, "minutes"),
        _ => (3_600e6, "hours"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let axis = Axis { low: 0.0, high: 60.0, from: 0.0, to: 1.0 };
        assert_eq!(axis.ticks(6), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(round_top(93.0), 100.0);
        assert_eq!(round_top(0.0), 1.0);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [(1500.0, "1.5k"), (0.25, "0.25"), (20e6, "20M"), (-0.001, "0"), (100.0, "100")] {
            assert_eq!(short(value), text);
        }
        assert_eq!([time(0), time(250), time(1_250), time(2_000_000)], ["at once", "250 µs", "1.25 ms", "2 s"]);
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
