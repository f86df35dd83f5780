//! What the project promises itself, and whether this run met it.

use super::probe::Sample;
use super::servers::{EVALSHA, GET, RATIOND};

/// Gates in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Gates {
    rows: Vec<Row>,
}

struct Row {
    text: String,
    value: f64,
    wanted: f64,
    at_least: bool,
}

/// Workload, the server to beat, by how much.
const THROUGHPUT: [(&str, usize, f64); 4] = [
    ("one key, no pipeline", EVALSHA, 2.5),
    ("one key, no pipeline", GET, 1.0),
    ("one key, pipeline 16", EVALSHA, 6.0),
    ("1M random keys, pipeline 16", EVALSHA, 4.5),
];

impl Gates {
    /// Compares the throughput of one workload.
    pub(crate) fn throughput(&mut self, workload: &str, medians: &[Sample]) {
        for (_, rival, wanted) in THROUGHPUT.iter().filter(|(name, ..)| *name == workload) {
            let name = if *rival == GET { "Redis GET" } else { "Redis EVALSHA" };
            let value = medians[RATIOND].rate / medians[*rival].rate;
            self.add(format!("{workload}: throughput / {name}"), value, *wanted, true);
        }
    }

    /// Compares latency at a fixed rate: the first is ours.
    pub(crate) fn latency(&mut self, [ours, theirs]: &[Sample; 2]) {
        self.add("20,000/s: p99 / Redis GET's p99".to_owned(), ours.p99_us / theirs.p99_us, 1.0, false);
    }

    /// Bytes for each key of a full table, and after more keys came than it holds.
    pub(crate) fn memory(&mut self, full: f64, overfull: f64) {
        self.add("memory a key, 1M keys (B)".to_owned(), full, 160.0, false);
        self.add("memory after 3M keys / after 1M".to_owned(), overfull / full, 1.1, false);
    }

    /// Prints all.
    pub(crate) fn print(&self) {
        for row in &self.rows {
            let met = if row.at_least { row.value >= row.wanted } else { row.value <= row.wanted };
            let (sign, verdict) = (if row.at_least { ">=" } else { "<=" }, if met { "MET" } else { "NOT MET" });
            println!("{:<52} {:>8.2}  gate {sign} {:>6.2}  {verdict}", row.text, row.value, row.wanted);
        }
    }

    fn add(&mut self, text: String, value: f64, wanted: f64, at_least: bool) {
        self.rows.push(Row { text, value, wanted, at_least });
    }
}
