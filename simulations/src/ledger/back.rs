//! Measures the burst of calls when the store is back after an outage: those in the first second, compared with those
//! in a usual second before.

use super::judge::ratio;
use crate::observe::Setting;
use crate::plan::What;

/// The time in which calls after an outage are counted, in microseconds.
const FIRST: u64 = 1_000_000;

/// Calls before the first outage, and after each.
#[derive(Clone, Debug)]
pub(super) struct Back {
    /// When the first outage begins.
    lost: u64,
    /// When each ends, and how many calls there were in the second after.
    ends: Vec<(u64, u64)>,
    /// Calls before the first outage.
    before: u64,
}

impl Back {
    /// Of a run that has not begun.
    pub(super) fn new(setting: &Setting) -> Self {
        let outages = || setting.plan.faults.iter().filter(|fault| takes_the_store(&fault.what));
        Self {
            lost: outages().map(|fault| fault.at.0).min().unwrap_or(0),
            ends: outages().map(|fault| (fault.at.0 + fault.lasts.0, 0)).collect(),
            before: 0,
        }
    }

    /// A node called the store at the true time `at`.
    pub(super) fn call(&mut self, at: u64) {
        self.before += u64::from(at < self.lost);
        let after = self.ends.iter_mut().filter(|(end, _)| (*end..*end + FIRST).contains(&at));
        after.for_each(|(_, calls)| *calls += 1);
    }

    /// The most calls in a first second, in thousandths of those in a second between the end of the warm-up and the
    /// first outage; 0 without an outage, or when there was no such second.
    pub(super) fn figure(&self, warm: u64) -> u64 {
        let most = self.ends.iter().map(|(_, calls)| *calls).max().unwrap_or(0);
        let seconds = self.lost.saturating_sub(warm) / FIRST;
        if seconds == 0 { 0 } else { ratio(most * seconds, self.before, 1_000) }
    }
}

/// Whether the fault takes all masters, or one, from the nodes while it lasts.
fn takes_the_store(what: &What) -> bool {
    matches!(
        what,
        What::Cut { .. } | What::Clog { .. } | What::Pause { .. } | What::Isolate { .. } | What::Refuse { .. }
    )
}
