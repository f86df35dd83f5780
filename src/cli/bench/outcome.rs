//! The outcome of a load, or why there is none.

use std::fmt;
use std::io;

use hdrhistogram::Histogram;

use super::link::Target;
use super::replies::Kind;

/// Longest latency that is distinguished from longer ones, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// The outcome. Replies during the warm-up are not counted.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Nanoseconds from the time when a command was sent (with a rate: due) to its reply.
    pub(super) latency: Histogram<u64>,
    /// Replies that begin with 1.
    pub(super) ones: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// Commands that were sent or due, but not answered.
    pub(super) unanswered: u64,
    /// From the end of the warm-up to the last reply.
    pub(super) nanos: u64,
}

/// Why there is no outcome.
#[derive(Debug)]
pub(super) enum LoadError {
    /// A connection could not be made.
    Connect { target: Target, error: io::Error },
    /// A connection broke.
    Closed { target: Target, error: io::Error },
    /// No reply came.
    Silent { target: Target },
    /// The reply was not RESP.
    Garbled { target: Target, start: String },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { target, error } => write!(
                f,
                "nobody answers on {target}: {error}; start one with `rationd serve`, or name another with --socket or --tcp"
            ),
            Self::Closed { target, error } => write!(f, "{target} broke off under load: {error}; see its log"),
            Self::Silent { target } => {
                write!(f, "{target} accepted connections and answered nothing: is it hanging, or no RESP server?")
            }
            Self::Garbled { target, start } => write!(f, "{target} answered with no RESP: {start:?}"),
        }
    }
}

impl Outcome {
    pub(super) fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are constant and valid");
        Self { latency, ones: 0, errors: 0, first_error: None, unanswered: 0, nanos: 0 }
    }

    /// Number of counted replies.
    pub(super) fn replies(&self) -> u64 {
        self.latency.len()
    }

    /// Counts a reply with this latency, `nanos` after counting began.
    pub(super) fn count(&mut self, kind: Kind, reply: &[u8], latency: u64, nanos: u64) {
        self.latency.saturating_record(latency);
        self.nanos = nanos;
        match kind {
            Kind::Other => {}
            Kind::One => self.ones += 1,
            Kind::Error => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| String::from_utf8_lossy(reply).trim_end().to_owned());
            }
        }
    }

    /// Adds another thread's outcome.
    pub(super) fn add(&mut self, other: Self) {
        self.latency.add(&other.latency).expect("both have the same bounds");
        self.ones += other.ones;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.unanswered += other.unanswered;
        self.nanos = self.nanos.max(other.nanos);
    }
}
