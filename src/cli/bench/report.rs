//! The outcome as text and as JSON.

use serde_json::{Value, json};

use super::load::Plan;
use super::outcome::Outcome;

const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// For programs. Latencies are microseconds.
pub(super) fn json(outcome: &Outcome) -> Value {
    let micros = |nanos: f64| (nanos / 10.0).round() / 100.0;
    let mut latency = serde_json::Map::new();
    latency.insert("mean".into(), json!(micros(outcome.latency.mean())));
    for (name, quantile) in QUANTILES {
        latency.insert(name.into(), json!(micros(outcome.latency.value_at_quantile(quantile) as f64)));
    }
    latency.insert("max".into(), json!(micros(outcome.latency.max() as f64)));
    json!({
        "replies": outcome.replies(),
        "seconds": outcome.nanos as f64 / 1e9,
        "replies_per_second": per_second(outcome).round(),
        "errors": outcome.errors,
        "limited": outcome.ones,
        "unanswered": outcome.unanswered,
        "latency_us": latency,
    })
}

/// For people.
pub(super) fn text(plan: &Plan, command: &str, outcome: &Outcome) -> String {
    let keys = if plan.keys == 1 { "one key".to_owned() } else { format!("{} keys", grouped(plan.keys)) };
    let pace = plan.rate.map(|rate| format!(", {} due a second", grouped(rate))).unwrap_or_default();
    let mut lines = vec![
        format!("{command} on {}", plan.target),
        format!("{} connections, pipeline {}, {keys}{pace}", grouped(plan.connections as u64), plan.pipeline),
        String::new(),
        format!(
            "{:>12} replies a second ({} in {:.3} s)",
            grouped(per_second(outcome).round() as u64),
            grouped(outcome.replies()),
            outcome.nanos as f64 / 1e9
        ),
    ];
    for (count, what) in [
        (outcome.ones, "began with 1 (limited)"),
        (outcome.errors, "errors"),
        (outcome.unanswered, "commands without an answer"),
    ] {
        if count > 0 {
            lines.push(format!("{:>12} {what}", grouped(count)));
        }
    }
    let millis = |nanos: u64| format!("{:>12.3} ms", nanos as f64 / 1e6);
    lines.push(String::new());
    for (name, quantile) in QUANTILES {
        lines.push(format!("{name:>7}{}", millis(outcome.latency.value_at_quantile(quantile))));
    }
    lines.push(format!("{:>7}{}", "max", millis(outcome.latency.max())));
    lines.join("\n")
}

fn per_second(outcome: &Outcome) -> f64 {
    outcome.replies() as f64 * 1e9 / outcome.nanos.max(1) as f64
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        let texts = [0, 999, 1_000, 12_345, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
