//! One policy's windows, each summed over the keys that were asked about in it. Windows go by the
//! clocks of the keys' owners. Short windows are taken together, so that a chart can show them.

use std::sync::Arc;

use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;

use crate::observe::{Moment, Request};

/// About how many windows a chart can show.
const SHOWN: u64 = 400;

/// The windows of one policy's longest limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// The policy's name.
    pub policy: Arc<str>,
    /// The limit as it was first.
    pub limit: Limit,
    /// Which of the policy's limits it is.
    index: usize,
    /// Microseconds of one window, or of several short ones. For gcra: of one period.
    pub period: u64,
    /// True microseconds at the start of the first window; it may lie before the run.
    pub start: i64,
    /// In order; the first is the one in which the first check was answered.
    pub windows: Vec<Window>,
    /// The number of the first window.
    first: u64,
    keys: Vec<Key>,
}

/// One window of all keys together, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// What the keys that were asked about may get in it.
    pub limit: u64,
    /// What was asked for.
    pub asked: u64,
    /// What was asked for, of each key at most its limit.
    pub wanted: u64,
    /// What was admitted.
    pub admitted: u64,
    /// The most that one key got, in thousandths of a percent of its limit.
    pub fullest: u64,
}

/// A key in the last window in which it was asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    /// The window's number and one; 0: none.
    window: u64,
    asked: u64,
    admitted: u64,
}

impl Track {
    /// The empty track of a policy in a run of so many microseconds.
    pub(super) fn new(rule: &Rule, span: u64) -> Self {
        let limits = rule.limits.iter().enumerate();
        let longest = limits.max_by_key(|(_, limit)| (limit.algorithm != Algorithm::Gcra, limit.period));
        let (index, limit) = longest.expect("a rule has a limit");
        let together = (span / SHOWN / limit.period.0).max(1);
        Self {
            policy: rule.policy.clone(),
            limit: *limit,
            index,
            period: limit.period.0 * together,
            start: 0,
            windows: Vec::new(),
            first: 0,
            keys: Vec::new(),
        }
    }

    /// Counts a check that was answered.
    pub(super) fn check(&mut self, request: &Request, rule: &Rule, admitted: bool, moment: Moment, store: Timestamp) {
        let Some(limit) = rule.limits.get(self.index) else { return };
        let most = u128::from(limit.count) * u128::from(self.period) / u128::from(limit.period.0); // rounded down
        let most = u64::try_from(most).unwrap_or(u64::MAX).max(1);
        let number = store.0 / self.period;
        if self.windows.is_empty() {
            self.first = number;
            let start = i128::from(number) * i128::from(self.period);
            self.start = (start - i128::from(moment.store.0) + i128::from(moment.at)) as i64; // a run is short
        }
        let place = number.saturating_sub(self.first) as usize;
        if place >= self.windows.len() {
            self.windows.resize(place + 1, Window::default());
        }
        let index = request.key as usize;
        if index >= self.keys.len() {
            self.keys.resize(index + 1, Key::default());
        }
        let (window, key) = (&mut self.windows[place], &mut self.keys[index]);
        if key.window != number + 1 {
            *key = Key { window: number + 1, asked: 0, admitted: 0 };
            window.limit += most;
        }
        window.take(key, request.cost, admitted, most);
    }
}

impl Window {
    fn take(&mut self, key: &mut Key, cost: u64, admitted: bool, most: u64) {
        let before = key.asked.min(most);
        key.asked += cost;
        self.asked += cost;
        self.wanted += key.asked.min(most) - before;
        if admitted {
            key.admitted += cost;
            self.admitted += cost;
            let part = u128::from(key.admitted) * 100_000 / u128::from(most); // rounded down
            self.fullest = self.fullest.max(u64::try_from(part).unwrap_or(u64::MAX));
        }
    }
}
