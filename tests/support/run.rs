//! One run of a scenario with a fleet: what its clients saw, what its daemons counted, and which promises
//! were not kept.

use std::time::Duration;

use super::ledger::{Check, Ledger, word};
use super::metrics::Metrics;

/// `store.timeout` of 50 ms and what a busy machine adds.
const LATEST_US: u64 = 150_000;

/// What one run of a scenario showed.
#[derive(Default)]
pub struct Run {
    pub ledger: Ledger,
    pub limit: u64,
    pub period: Duration,
    /// Most that a window may come to.
    pub most: u64,
    /// Least part of the limit that is used.
    pub least: f64,
    /// Once a window the store forgets what it has lent.
    pub loses_data: bool,
    /// Daemons that end take requests with them.
    pub daemons_end: bool,
    /// What the daemons counted before and after; of those that lived through it.
    pub metrics: Vec<(Metrics, Metrics)>,
    pub notes: Vec<String>,
    pub broken: Vec<String>,
}

/// When the store was stopped, let go on, and answered again: Unix microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outage {
    pub away: u64,
    pub back: u64,
    pub up: u64,
}

impl Run {
    /// Of a limit that must be used to this part.
    pub fn new(limit: u64, period: Duration, least: f64) -> Self {
        Self { limit, period, least, most: limit, ..Self::default() }
    }

    /// Notes what is broken unless it is kept.
    pub fn demand(&mut self, kept: bool, what: impl FnOnce() -> String) {
        if !kept {
            self.broken.push(what());
        }
    }

    /// Notes how long something took, which may be so long.
    pub fn took(&mut self, time: Option<Duration>, allowed: Duration, what: &str) {
        let time_text = time.map_or("never".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
        let line = format!("{what}: {time_text}, {allowed:.1?} allowed");
        self.demand(time.is_some_and(|time| time <= allowed), || line.clone());
        self.notes.push(line);
    }

    /// How often each node called the store in each window.
    pub fn calls_per_window(&self) -> Vec<f64> {
        let windows = self.ledger.windows().len().max(1) as f64;
        let calls = |metrics: &Metrics| metrics.sum("rationd_store_calls_total", &[]);
        self.metrics.iter().map(|(before, after)| (calls(after) - calls(before)) / windows).collect()
    }

    /// Notes what for each node called the store in each window, and what denied checks.
    pub fn note_causes(&mut self) {
        let grown = |name: &str, label: String| -> f64 {
            let sum = |metrics: &Metrics| metrics.sum(name, &[&label]);
            self.metrics.iter().map(|(before, after)| sum(after) - sum(before)).sum()
        };
        let each = (self.ledger.windows().len() * self.metrics.len()).max(1) as f64;
        let calls = ["acquire", "return", "peek", "refund", "reset"]
            .map(|op| format!("{op} {:.1}", grown("rationd_store_calls_total", format!("op={op:?}")) / each));
        let denied = ["lease", "store", "prefilter", "share"].map(|source| {
            let denied = self.ledger.checks.iter().filter(|check| !check.answer.allowed);
            let count = denied.filter(|check| check.answer.source == word(source.as_bytes())).count();
            format!("{source} {count}")
        });
        self.notes.push(format!("calls per window and node: {}; denied by {}", calls.join(", "), denied.join(", ")));
    }

    /// Notes what each node admitted from a moment on until a window's end (Unix microseconds).
    pub fn note_admitted(&mut self, what: &str, from: u64, end: u64) {
        let nodes = self.ledger.checks.iter().map(|check| check.node).max().map_or(0, |node| node + 1);
        let of_node = |node: u8| {
            let of_window = |check: &&Check| check.sent_us >= from && check.answer.reset_at_ms * 1_000 == end;
            let admitted = |check: &&Check| check.node == node && check.answer.allowed;
            let times: Vec<_> = self.ledger.checks.iter().filter(of_window).filter(admitted).collect();
            let after = |at: Option<u64>| at.map_or(0, |at| (at - from) / 1_000);
            let (first, last) = (times.iter().map(|c| c.sent_us).min(), times.iter().map(|c| c.sent_us).max());
            format!("{} ({}..{} ms)", times.len(), after(first), after(last))
        };
        let nodes: Vec<_> = (0..nodes).map(of_node).collect();
        self.notes.push(format!("{what}: admitted after that by each node: {}", nodes.join(", ")));
    }

    pub fn head() -> String {
        format!(
            "{:14} {:>6} {:>8} {:>7} {:>6} {:>7} {:>9} {:>8} {:>8} {:>8} {:>6} {:>6}  admitted in each window (+ on shares)",
            "scenario",
            "took s",
            "checks",
            "windows",
            "worst",
            "used %",
            "calls/w/n",
            "p99 ms",
            "max ms",
            "late ms",
            "errors",
            "lost"
        )
    }

    /// The figures, and what was noted below them.
    pub fn lines(&self, name: &str, took: Duration) -> String {
        let ledger = &self.ledger;
        let (longest, p99) = ledger.waits_us();
        let calls = self.calls_per_window();
        let windows = ledger.windows().into_values().map(|window| match window.admitted() - window.lent {
            0 => window.lent.to_string(),
            shared => format!("{}+{shared}", window.lent),
        });
        let line = format!(
            "{name:14} {:6.1} {:8} {:7} {:6} {:7.2} {:9.1} {:8.1} {:8.1} {:8.1} {:6} {:6}  {}",
            took.as_secs_f64(),
            ledger.checks.len(),
            ledger.full_windows().len(),
            ledger.worst(),
            100.0 * ledger.utilisation(self.limit),
            calls.iter().sum::<f64>() / calls.len().max(1) as f64,
            p99 as f64 / 1000.0,
            longest as f64 / 1000.0,
            ledger.late.as_secs_f64() * 1000.0,
            ledger.errors.len(),
            ledger.unanswered,
            windows.collect::<Vec<_>>().join(" ")
        );
        let notes = self.notes.iter().map(|note| format!("\n  {note}"));
        notes.fold(line, |text, note| text + &note)
    }

    /// What was admitted beyond what no machine that stands still excuses: see [`Ledger::excesses`]. A store that
    /// has forgotten lends once more what nodes could not tell in time.
    pub fn excesses(&self) -> Vec<String> {
        let lent = if self.loses_data { self.limit * 2 } else { self.most };
        self.ledger.excesses(lent, self.limit)
    }

    /// All that was promised and not kept.
    pub fn failures(mut self) -> Vec<String> {
        let ledger = std::mem::take(&mut self.ledger);
        let errors: Vec<_> = ledger.errors.iter().take(3).collect();
        self.demand(errors.is_empty(), || format!("error replies: {errors:?}"));
        let unanswered = ledger.unanswered;
        self.demand(unanswered == 0 || self.daemons_end, || format!("{unanswered} unanswered"));
        let used = ledger.utilisation(self.limit);
        let least = self.least;
        self.demand(used >= least, || {
            format!("{:.2} % of the limit used: {:.0} % wanted", 100.0 * used, 100.0 * least)
        });
        let misplaced = ledger.misplaced(self.period.as_millis() as u64);
        self.demand(misplaced == 0, || format!("{misplaced} replies named a window they were not in"));
        for (end, window) in ledger.windows() {
            let most = self.most;
            self.demand(window.admitted() <= most, || format!("{window:?} in the window until {end}: {most} allowed"));
        }
        self.broken
    }

    /// What holds while the store is away, and from when it is back.
    pub fn judge_outage(&mut self, outage: Outage) {
        let Outage { away, back, up } = outage;
        let period = self.period.as_micros() as u64;
        let (limit, windows) = (self.limit, self.ledger.windows());
        // A server that says nothing is slow for a second, and only then lost: docs/concepts/outages.md.
        let lost = away + 1_000_000;
        let (first, last) = (lost.div_ceil(period) + 1, back / period);
        let admitted = (first..=last).map(|end| windows.get(&(end * period / 1_000)).map_or(0, |w| w.admitted()));
        let used = admitted.sum::<u64>() as f64 / (limit * (last + 1).saturating_sub(first)) as f64;
        let whole = (last + 1).saturating_sub(first);
        self.notes.push(format!(
            "{:.2} % admitted of {whole} windows that lay wholly in the outage, from a second after it began",
            100.0 * used
        ));
        self.demand(used >= 0.85 && whole >= 8, || format!("{:.2} % of {whole} windows without a store", 100.0 * used));

        let (calm, storm) =
            (self.waits(|check| check.sent_us < away), self.waits(|check| (away..back).contains(&check.sent_us)));
        self.notes.push(format!("waits before the outage {calm:?}, in it {storm:?}"));
        // On a machine that is busy with other things a check takes longer at all times.
        self.demand(storm.p99_us <= 1_000.max(calm.p99_us * 3), || format!("{storm:?} after {calm:?}: 1 ms allowed"));
        self.demand(storm.longest_us <= LATEST_US, || format!("an answer took {} us", storm.longest_us));

        for (end, window) in windows.iter().filter(|(end, _)| **end * 1_000 >= back + period) {
            self.demand(window.admitted() <= limit, || format!("back: {window:?} in the window until {end}"));
        }
        let lent =
            |check: &&Check| check.answer.allowed && check.answer.source != word(b"share") && check.sent_us >= back;
        let nodes = self.ledger.checks.iter().map(|check| check.node).max().map_or(0, |node| node + 1);
        let flows: Vec<_> = (0..nodes)
            .map(|node| {
                let of_node = self.ledger.checks.iter().filter(|check| check.node == node).filter(lent);
                of_node.map(|check| check.replied_us.saturating_sub(up)).min().map(Duration::from_micros)
            })
            .collect();
        self.notes.push(format!("Redis answers {:.1?} after it was let go on", Duration::from_micros(up - back)));
        self.notes.push(format!("each node spends leases so long after that: {flows:.1?}"));
        let latest = flows.iter().copied().reduce(|one, other| Some(one?.max(other?))).flatten();
        self.took(latest, Duration::from_secs(2), "all nodes spend leases");
    }

    fn waits(&self, of: impl Fn(&Check) -> bool) -> Waits {
        let checks = self.ledger.checks.iter().filter(|check| of(check));
        let mut waits: Vec<_> = checks.map(|check| check.replied_us - check.sent_us).collect();
        waits.sort_unstable();
        let at = |part: usize| waits.get((waits.len() * part / 100).min(waits.len().saturating_sub(1)));
        let [p99_us, longest_us] = [99, 100].map(|part| at(part).copied().unwrap_or(0));
        Waits { p99_us, longest_us }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    p99_us: u64,
    longest_us: u64,
}
