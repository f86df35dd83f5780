//! What is counted of a shard's keys for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::decision::{Decision, Verdict};
use crate::core::policy::Rule;
use crate::core::time::Instant;
use crate::serve::denied::{Denied, Subject};
use crate::serve::hot_keys::{HotKeys, Kind, Note};

/// What is counted of a shard's keys for people; no decision depends on it.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub hot: HotKeys,
    pub denied: Denied,
    /// What limits on trial would have admitted and denied, by the names of their rules.
    pub tried: BTreeMap<Arc<str>, [u64; 2]>,
}

impl Watched {
    /// Apart, so that what is admitted does not save the registers that this takes; and this saves none for what there seldom is to
    /// note.
    #[inline(never)]
    pub(super) fn denied(&mut self, now: Instant, subject: &Subject<'_>, decision: &Decision) {
        match self.hot.count(now, Kind::Denied, subject.digest) {
            Some(note) => self.denied_and_noted(now, note, subject, decision),
            None => self.denied.count(now, subject, decision),
        }
    }

    #[cold]
    #[inline(never)]
    fn denied_and_noted(&mut self, now: Instant, note: Note, subject: &Subject<'_>, decision: &Decision) {
        self.hot.note(now, (Kind::Denied, note), subject.digest, subject.policy, subject.key);
        self.denied.count(now, subject, decision);
    }

    /// Counts a decision of limits on trial.
    pub(super) fn tried(&mut self, rule: &Rule, decision: &Decision) {
        let index = usize::from(decision.verdict == Verdict::Deny);
        if let Some(counts) = self.tried.get_mut(&rule.policy) {
            counts[index] += 1;
        } else {
            self.tried.entry(rule.policy.clone()).or_default()[index] += 1;
        }
    }
}
