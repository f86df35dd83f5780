//! The Prometheus text format: families, samples and escaped labels. Knows no metric.

use std::fmt::{Display, Write};

/// A text that is being written.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

/// The type of a family's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Buckets, a sum and a count.
    Histogram,
}

impl Exposition {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: Type, help: &str) {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            escape(text, &mut self.text);
            self.text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Type, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Writes a family of one histogram. `counts` has one number per bucket (not cumulative), and the last one is for
    /// all above the bounds; `sum` is the sum of the observed values.
    pub fn histogram(&mut self, name: &str, help: &str, bounds: &[f64], counts: &[u64], sum: f64) {
        self.family(name, Type::Histogram, help);
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in bounds.iter().zip(counts) {
            below += count;
            self.sample(&bucket, &[("le", &bound.to_string())], below);
        }
        let all: u64 = counts.iter().sum();
        self.sample(&bucket, &[("le", "+Inf")], all);
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], all);
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut out = Exposition::default();
        out.sample("m", &[("a", "x\\\"\n"), ("b", "")], 1);
        assert_eq!(out.finish(), "m{a=\"x\\\\\\\"\\n\",b=\"\"} 1\n");
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let mut out = Exposition::default();
        out.histogram("h", "help", &[0.5, 1.0], &[1, 2, 3], 9.5);
        let text = out.finish();
        for line in
            ["h_bucket{le=\"0.5\"} 1", "h_bucket{le=\"1\"} 3", "h_bucket{le=\"+Inf\"} 6", "h_sum 9.5", "h_count 6"]
        {
            assert!(text.lines().any(|seen| seen == line), "{line} is not in {text}");
        }
    }
}
