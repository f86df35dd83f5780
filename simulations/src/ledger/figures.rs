//! The figures of a run: integers, so that every build and machine writes the same. Decides
//! nothing; the ledger fills it, reports print it, and `judge` compares it with what a plan expects.

use std::collections::BTreeMap;

use serde::Serialize;

/// What a run came to, after its warm-up.
///
/// Parts are in thousandths of a percent (100000 = all), rates as their names say, times in true
/// microseconds. Counts are of checks that charge; peeks, refunds and resets are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Checks that were answered.
    pub checks: u64,
    /// Those that were admitted.
    pub admitted: u64,
    /// Those that were denied.
    pub denied: u64,
    /// Those that got no answer, because their node died.
    pub orphaned: u64,
    /// Answers by reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Answers by source.
    pub sources: BTreeMap<&'static str, u64>,
    /// Part of the checks that were denied although, by what was really admitted, there were tokens: these were lent to
    /// other nodes, or the node did not know of them.
    pub false_denials: u64,
    /// Store calls that left a node; each sending counts.
    pub calls: u64,
    /// Store calls that did not, because a breaker was open.
    pub held_back: u64,
    /// Store calls per 1000 checks, rounded.
    pub calls_per_1000: u64,
    /// Store calls per 1000000 checks, rounded.
    pub calls_per_million: u64,
    /// Most store calls of one node in one period of the first policy's longest limit.
    pub calls_per_window: u64,
    /// The mean of the same over nodes and time, in thousandths.
    pub calls_per_window_mean: u64,
    /// Most store calls in any 10 ms, in thousandths of the mean in 10 ms.
    pub herd: u64,
    /// Most store calls in the first second in which nodes reach the store again, in thousandths of those in a second
    /// before they lost it first; 0 when they never lost it.
    pub herd_back: u64,
    /// Part of the checks that waited for the store.
    pub waits: u64,
    /// The same of those that waited for a peer, which answered them.
    pub peer_waits: u64,
    /// Part of the checks that a share decided.
    pub shares: u64,
    /// The time within which half of the checks were answered, to 3 %.
    pub answer_p50_us: u64,
    /// The same for 99 %.
    pub answer_p99_us: u64,
    /// The same for 99.9 %.
    pub answer_p999_us: u64,
    /// The longest answer.
    pub answer_longest_us: u64,
    /// As `answer_p99_us`, of those that waited for a peer, which answered them.
    pub peer_answer_p99_us: u64,
    /// Part of the tokens that nodes lent to each other whose loan came too late, or not at all; rounded up.
    pub loans_lost: u64,
    /// How old a node's knowledge of a peer had become, at most, in 99 % of the cases in which a report of the peer
    /// came: the time since the peer had admitted the first token of a window that the node did not know of. 0 without
    /// reports.
    pub news_p99_us: u64,
    /// The longest first answer of a node that joined during the run.
    pub first_answer_us: u64,
    /// Part admitted of what one exact counter would have admitted of the same checks, at most all,
    /// in tokens over whole windows; `None` when no window was whole.
    pub used: Option<u64>,
    /// Tokens admitted in those windows.
    pub used_tokens: u64,
    /// Tokens that the exact counter would have admitted in them.
    pub possible_tokens: u64,
    /// Windows of single keys that were asked about.
    pub windows: u64,
    /// Those that admitted more than their limit.
    pub windows_over: u64,
    /// Most that a window admitted, as a part of its limit; rounded up.
    pub window_peak: u64,
    /// Most that a window admitted beyond its limit, as a part of that; 0 when none did.
    pub over: u64,
    /// Most that any interval T of a gcra limit admitted beyond `rate * T`, as a part of its burst.
    pub burst_peak: u64,
    /// The part of that beyond the burst; 0 when there is none.
    pub burst_over: u64,
    /// How often a bucket went below empty.
    pub bursts_over: u64,
    /// Most slots of a concurrent limit that clients held at a time, as a part of the limit; rounded up. All slots
    /// count, also those given on a share or after faults. No other figure counts slots.
    pub slots_peak: u64,
    /// The part of that beyond the limit; 0 when there is none.
    pub slots_over: u64,
    /// Slots that clients held when a check was answered, on average, as a part of the limit; `None` when none was checked.
    pub slots_used: Option<u64>,
    /// Part of the checks of concurrent limits that were denied though so many slots were in nobody's hands.
    pub slots_denied: u64,
    /// Jain's index of admitted / asked over the nodes that were asked 100 checks, in thousandths.
    pub fairness: u64,
    /// Bytes a second that came to peers of what one node tells of usage, of the node that tells most.
    pub told_per_second: u64,
    /// Most nodes at a time.
    pub nodes: u64,
    /// Tokens of the whole run, its warm-up too, as the nodes' books last showed them.
    pub tokens: Tokens,
}

impl Figures {
    /// Most that was admitted beyond a limit of any algorithm: for windows as a part of the limit, for buckets as a
    /// part of the burst.
    #[must_use]
    pub fn beyond(&self) -> u64 {
        self.over.max(self.burst_over)
    }
}

/// What became of lent tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Lent to nodes.
    pub granted: u64,
    /// Spent by checks.
    pub spent: u64,
    /// Handed back.
    pub returned: u64,
    /// Lapsed.
    pub expired: u64,
}
