//! What one shard has denied since it was last asked: by key, limit and reason, in bounded memory.
//!
//! The first keys of a second have entries of their own. When these are used up, a further key's denials are counted
//! under its policy. So the sums are exact, and no flood of keys can fill memory or a disk. Called by `node` for each
//! denial, while the shard is locked; `observer` takes the entries each second in which there are any, for
//! `denial_log`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::sketch::KeyStart;
use crate::core::decision::{Decision, Reason};
use crate::core::key::Digest;
use crate::core::policy::Rule;
use crate::core::time::Instant;

/// Most keys with entries of their own between two calls of [`Denied::take`].
const MOST: usize = 32;
/// Most policies that are counted by name when there is no room for keys.
const MOST_POLICIES: usize = 16;

/// Denials of one key by one limit for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The policy; `None` for all those of which there were too many.
    pub policy: Option<Arc<str>>,
    /// The limit that denied; `None` where none did, or where it is of several keys.
    pub limit: Option<(Arc<Rule>, u8)>,
    /// The key; `None` where it is of several keys.
    pub key: Option<(Digest, KeyStart)>,
    /// Why; `None` where it is of several keys.
    pub reason: Option<Reason>,
    /// How many.
    pub count: u64,
    /// When the first was.
    pub first: Instant,
    /// When the last was.
    pub last: Instant,
}

/// The key of a denial.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The policy.
    pub policy: &'a Arc<str>,
    /// The rule that denied; `None` where the policy blocks the key.
    pub rule: Option<&'a Arc<Rule>>,
    /// The digest of policy and key.
    pub digest: Digest,
    /// The key's bytes, or the beginning of them.
    pub key: &'a [u8],
}

/// The denials of one shard.
#[derive(Debug, Default)]
pub struct Denied {
    /// Each entry's key, limit and reason in one number, so that a search reads little memory.
    tags: Vec<u64>,
    entries: Vec<Denial>,
    /// Denials for which there was no entry, by policy.
    rest: Vec<Denial>,
}

impl Denied {
    /// Counts a denial.
    pub fn count(&mut self, now: Instant, subject: &Subject<'_>, decision: &Decision) {
        let Subject { policy, rule, digest, key } = *subject;
        let tag = (digest.0 as u64) ^ (decision.reason as u64) << 8 ^ u64::from(decision.limit_index);
        if let Some(index) = self.tags.iter().position(|known| *known == tag) {
            let entry = &mut self.entries[index];
            entry.count += 1;
            entry.last = now;
            return;
        }
        if self.entries.len() < MOST {
            self.tags.push(tag);
            return self.entries.push(Denial {
                policy: Some(policy.clone()),
                limit: rule.map(|rule| (rule.clone(), decision.limit_index)),
                key: Some((digest, KeyStart::of(key))),
                reason: Some(decision.reason),
                count: 1,
                first: now,
                last: now,
            });
        }
        let of_policy = self.rest.iter().position(|rest| rest.policy.as_ref().is_none_or(|known| known == policy));
        match of_policy {
            Some(index) => {
                self.rest[index].count += 1;
                self.rest[index].last = now;
            }
            None => {
                // The last entry takes all further policies.
                let policy = (self.rest.len() + 1 < MOST_POLICIES).then(|| policy.clone());
                let (limit, key, reason) = (None, None, None);
                self.rest.push(Denial { policy, limit, key, reason, count: 1, first: now, last: now });
            }
        }
    }

    /// Moves all entries.
    pub fn take(&mut self, into: &mut Vec<Denial>) {
        self.tags.clear();
        into.append(&mut self.entries);
        into.append(&mut self.rest);
    }
}

/// Wakes the task that takes denials, which sleeps while there are none.
#[derive(Debug, Default)]
pub struct Bell {
    rests: AtomicBool,
    rung: Notify,
}

impl Bell {
    /// Called at each denial, with the shard locked.
    #[inline]
    pub(super) fn ring(&self) {
        if self.rests.load(Ordering::Relaxed) && self.rests.swap(false, Ordering::Relaxed) {
            self.rung.notify_one();
        }
    }

    /// From now on the next denial rings. The caller must take denials once more after this, since earlier ones did not
    /// ring. No denial is missed in between: taking them locks each shard, so whatever a shard denies after that sees
    /// that it has to ring.
    pub(super) fn rest(&self) {
        self.rests.store(true, Ordering::Relaxed);
    }

    /// Waits until it is rung.
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::Limit;
    use crate::core::policy::Plan;

    fn denied(denied: &mut Denied, at: u64, policy: &str, key: &[u8]) {
        let rule = Arc::new(Rule::of(policy, &[Limit::parse("1/1h").expect("a limit")]));
        let decision = Plan::Blocked.fixed_decision().expect("it is fixed");
        let decision = Decision { reason: Reason::Rate, ..decision };
        let digest = Digest::of(policy, key);
        let subject = Subject { policy: &rule.policy, rule: Some(&rule), digest, key };
        denied.count(Instant(at), &subject, &decision);
    }

    #[test]
    fn a_key_has_one_entry_until_it_is_taken() {
        let (mut shard, mut taken) = (Denied::default(), Vec::new());
        (5..8).for_each(|at| denied(&mut shard, at, "p", b"k"));
        denied(&mut shard, 9, "p", b"other");
        shard.take(&mut taken);
        assert_eq!(taken.len(), 2, "{taken:?}");
        assert_eq!((taken[0].count, taken[0].first, taken[0].last), (3, Instant(5), Instant(7)));
        denied(&mut shard, 10, "p", b"k");
        shard.take(&mut taken);
        assert_eq!((taken.len(), taken[2].count), (3, 1));
    }

    #[test]
    fn nothing_is_lost_of_a_flood_and_memory_is_bounded() {
        let (mut shard, mut taken) = (Denied::default(), Vec::new());
        for number in 0..10_000_u64 {
            denied(&mut shard, number, &format!("p{}", number % 40), &number.to_le_bytes());
        }
        shard.take(&mut taken);
        assert_eq!(taken.len(), MOST + MOST_POLICIES);
        assert_eq!(taken.iter().map(|entry| entry.count).sum::<u64>(), 10_000);
        assert_eq!(taken.iter().filter(|entry| entry.policy.is_none()).count(), 1);
    }
}
