//! The embedded store as a limiter: one shard of keys that are counted in this process.
//!
//! One node alone has nobody to lease from and nobody to share with, so a check is one look at one cell: exact,
//! without waiting and without timers. It answers as `core::shard::Shard` does, with the same arithmetic.
//! `serve/node.rs` puts one or the other behind each lock.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::inflight::InFlight;
use super::memory::{MemoryStore, Spent};
use super::names::Names;
use crate::core::answer::{self, Resolution, Standing};
use crate::core::call::{Acquire, Call, Grant, Known, OPEN, Op, StoreError, Window, Windows};
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::holds::Charge;
use crate::core::key::{Digest, DigestKey};
use crate::core::limit::MAX_LIMITS;
use crate::core::page::Place;
use crate::core::policy::{OnStoreLoss, Rule};
use crate::core::shard::{KeyInfo, Request};
use crate::core::stats::{PolicyStats, ShardStats};
use crate::core::table::Full;
use crate::core::time::{Instant, Micros, Timestamp};

/// Memory for the names of keys, per key that the table may hold.
const NAME_BYTES: usize = 16;

/// One shard of the embedded store.
#[derive(Debug)]
pub struct Embedded {
    store: MemoryStore,
    in_flight: InFlight,
    names: Names,
    digests: DigestKey,
    policies: Vec<(Arc<str>, PolicyStats)>,
}

impl Embedded {
    /// An empty shard of at most `max_keys` keys, with digests that anybody can compute. `secret` keys the table's
    /// hash and should be random.
    #[must_use]
    pub fn new(max_keys: usize, secret: u128) -> Self {
        Self::with_digests(max_keys, secret, DigestKey::default())
    }

    /// The same, with digests keyed by `digests`.
    #[must_use]
    pub fn with_digests(max_keys: usize, secret: u128, digests: DigestKey) -> Self {
        // Clients see permit ids, so the first one comes from a one-way function: an id must not reveal the table's
        // secret.
        let first_id = DigestKey::secret(secret.to_le_bytes()).digest("in flight", b"").0 as u64 >> 16;
        Self {
            store: MemoryStore::new(max_keys, secret),
            in_flight: InFlight::new(max_keys, first_id),
            names: Names::new(max_keys * NAME_BYTES),
            digests,
            policies: Vec::new(),
        }
    }

    /// Decides at once. Allocates nothing for a key that is already stored.
    pub fn check(&mut self, now: Timestamp, request: Request<'_>) -> Decision {
        if request.rule.is_concurrent() {
            return self.occupy(now, &request);
        }
        if request.peek || request.cost == 0 {
            return self.peek(now, &request);
        }
        let limits = &request.rule.limits;
        let decision = if limits.iter().any(|limit| request.cost > limit.capacity()) {
            let grant = self.ask(now, &request, Op::Peek);
            self.answer(now, &request, grant, Some(Resolution::deny(Reason::Cost, Source::Policy)))
        } else if let Some(spent) = self.store.spend(now, request.digest, limits, request.cost) {
            let Spent { lent, counter, epoch } = spent;
            let resolution =
                if lent { Resolution::allow(Source::Store) } else { Resolution::deny(Reason::Rate, Source::Store) };
            Decision { epoch, ..answer::decision(request.rule, &[counter], now, request.cost, resolution) }
        } else {
            self.acquire(now, &request)
        };
        self.count(&request, &decision);
        decision
    }

    fn occupy(&mut self, now: Timestamp, request: &Request<'_>) -> Decision {
        let decision = match self.in_flight.check(now, request) {
            Ok(decision) => decision,
            Err(Full) => self.answer(now, request, Err(StoreError::Full), None),
        };
        if !request.peek && request.cost > 0 {
            self.count(request, &decision);
        }
        decision
    }

    /// Releases a permit of a concurrent limit; false when there is no such permit.
    pub fn release(&mut self, now: Timestamp, digest: Digest, permit: NonZeroU64) -> bool {
        self.in_flight.release(now, digest, permit)
    }

    /// The slower path: a key's first check, and policies with several limits.
    fn acquire(&mut self, now: Timestamp, request: &Request<'_>) -> Decision {
        let cost = request.cost;
        let known = [Known::default(); MAX_LIMITS];
        let order = Acquire {
            need: cost,
            want: cost,
            least: cost,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: crate::core::call::JUST_NOW,
            known,
            until: None,
            claim: None,
        };
        let cells = self.store.len();
        let grant = self.ask(now, request, Op::Acquire(order));
        if self.store.len() > cells {
            self.names.push(request.rule, request.key);
        }
        self.answer(now, request, grant, None)
    }

    /// Takes back a cost that was spent.
    pub fn refund(&mut self, now: Timestamp, request: Request<'_>) -> Decision {
        self.take_back(now, request, 0, OPEN)
    }

    /// Gives a part of a charge back, only to those windows in which it was charged, and nothing where the key was reset
    /// since: what others spent after that is not taken back for it.
    pub fn give_back(&mut self, now: Timestamp, request: Request<'_>, charge: &Charge) -> Decision {
        match charge.windows(request.rule).filter(|_| charge.is_counted) {
            Some(windows) => self.take_back(now, request, charge.epoch, windows),
            None => {
                let found = self.ask(now, &request, Op::Peek);
                self.answer(now, &request, found, Some(Resolution::allow(Source::Store)))
            }
        }
    }

    fn take_back(&mut self, now: Timestamp, request: Request<'_>, epoch: u64, windows: Windows) -> Decision {
        let grant = self.ask(now, &request, Op::Refund { amount: request.cost, epoch, windows });
        self.answer(now, &request, grant, Some(Resolution::allow(Source::Store)))
    }

    /// Takes back an admission whose request was not admitted after all, because another key of the same request
    /// denied it.
    pub fn rollback(&mut self, now: Timestamp, request: Request<'_>, decision: &Decision) {
        if let Some((_, stats)) = self.policies.iter_mut().find(|(name, _)| *name == request.rule.policy) {
            stats.uncount(decision);
            stats.spent = stats.spent.saturating_sub(request.cost);
        }
        match decision.slot {
            Some(permit) => drop(self.release(now, request.digest, permit)),
            None => drop(self.refund(now, request)),
        }
    }

    /// Forgets the key.
    pub fn reset(&mut self, now: Timestamp, request: Request<'_>) -> Decision {
        let grant = self.ask(now, &request, Op::Reset);
        self.answer(now, &request, grant, Some(Resolution::allow(Source::Store)))
    }

    /// Counts of the shard.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        ShardStats { keys: (self.store.len() + self.in_flight.len()) as u64, ..ShardStats::default() }
    }

    /// Counts per policy.
    pub fn policy_stats(&self) -> impl Iterator<Item = (&Arc<str>, &PolicyStats)> {
        self.policies.iter().map(|(name, stats)| (name, stats))
    }

    /// Lists up to `most` keys from a position on, each with the position of the next one. The keys seen last come
    /// first, as far as their names are remembered. `rule_of` gives the rule that a policy applies to a key now; ad
    /// hoc limits are listed with the numbers seen last.
    #[must_use]
    pub fn keys(
        &mut self,
        now: Timestamp,
        from: Place,
        most: usize,
        rule_of: impl Fn(&str, &[u8]) -> Option<Arc<Rule>>,
    ) -> Vec<(Place, KeyInfo)> {
        let in_flight = from.digest().into_iter().flat_map(|from| self.in_flight.keys(now, from));
        let mut keys: Vec<_> = in_flight.take(most).collect();
        let mut shown: HashSet<_> = keys.iter().map(|(_, info)| info.digest.0).collect();
        let mut before = if from.turn() == 0 { u64::MAX } else { from.turn() };
        while keys.len() < most {
            let names = self.names.before(before);
            let Some(&(last, ..)) = names.last() else { break };
            before = last;
            for (number, latest, key) in names {
                let rule = rule_of(&latest.policy, &key).unwrap_or(latest);
                let digest = self.digests.digest(&rule.policy, &key);
                if keys.len() == most {
                    break;
                }
                // The list of names has one entry for each time that its key was created, so a name may come up
                // twice.
                let is_gone = self.store.expires_at(digest).is_none_or(|at| at <= now);
                if is_gone || !shown.insert(digest.0) {
                    continue;
                }
                let request = Request { rule: &rule, digest, key: &key, cost: 0, peek: true };
                let decision = self.peek(now, &request);
                keys.push((
                    Place::at(number),
                    KeyInfo { digest, key: Some(key), rule: rule.clone(), held: 0, decision },
                ));
            }
        }
        keys
    }

    /// How each limit of a key stands.
    pub fn standings(&mut self, now: Timestamp, request: &Request<'_>) -> Option<Vec<Standing>> {
        let grant = self.ask(now, request, Op::Peek).ok()?;
        Some(answer::standings(request.rule, &grant.counters, grant.now))
    }

    fn peek(&mut self, now: Timestamp, request: &Request<'_>) -> Decision {
        let grant = self.ask(now, request, Op::Peek);
        let cost = request.cost;
        let fits = |grant: &Grant| {
            let counters = request.rule.limits.iter().zip(&grant.counters);
            counters.map(|(limit, counter)| counter.left(limit, grant.now)).min().unwrap_or(0) >= cost
        };
        let resolution = match &grant {
            Ok(_) if request.rule.limits.iter().any(|limit| cost > limit.capacity()) => {
                Resolution::deny(Reason::Cost, Source::Policy)
            }
            Ok(grant) if !fits(grant) => Resolution::deny(Reason::Rate, Source::Store),
            _ => Resolution::allow(Source::Store),
        };
        self.answer(now, request, grant, Some(resolution))
    }

    fn ask(&mut self, now: Timestamp, request: &Request<'_>, op: Op) -> Result<Grant, StoreError> {
        let call = Call { id: 0, digest: request.digest, rule: request.rule.clone(), op, sent_at: Instant(0) };
        self.store.call(now, "", &call)
    }

    fn answer(
        &self,
        now: Timestamp,
        request: &Request<'_>,
        grant: Result<Grant, StoreError>,
        resolution: Option<Resolution>,
    ) -> Decision {
        let limits = request.rule.limits.len();
        match grant {
            Ok(grant) => {
                let granted = grant.granted >= request.cost;
                let resolution = resolution.unwrap_or(if granted {
                    Resolution::allow(Source::Store)
                } else {
                    Resolution::deny(Reason::Rate, Source::Store)
                });
                let counters = &grant.counters[..limits];
                let decision = answer::decision(request.rule, counters, grant.now, request.cost, resolution);
                Decision { epoch: grant.epoch, ..decision }
            }
            // The table is full of live keys, so one more key could not be counted.
            Err(_) => {
                let resolution = match request.rule.on_store_loss {
                    OnStoreLoss::Allow => Resolution { reason: Reason::Overload, ..Resolution::allow(Source::Policy) },
                    _ => Resolution::deny(Reason::Overload, Source::Policy).after(Micros::from_secs(1)),
                };
                let unknown = [Default::default(); MAX_LIMITS];
                let decision = answer::decision(request.rule, &unknown[..limits], now, request.cost, resolution);
                Decision { remaining: 0, ..decision }
            }
        }
    }

    fn count(&mut self, request: &Request<'_>, decision: &Decision) {
        let policy = &request.rule.policy;
        let known = self.policies.iter().position(|(name, _)| Arc::ptr_eq(name, policy) || name == policy);
        let index = known.unwrap_or_else(|| {
            self.policies.push((policy.clone(), PolicyStats::default()));
            self.policies.len() - 1
        });
        let stats = &mut self.policies[index].1;
        stats.count(decision);
        if decision.verdict == Verdict::Allow && decision.reason == Reason::Ok {
            stats.granted += request.cost;
            stats.spent += request.cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::Limit;

    const START: Timestamp = Timestamp(1_800_000_000_000_000);

    fn embedded(max_keys: usize) -> Embedded {
        Embedded::new(max_keys, 42)
    }

    fn throttle(store: &mut Embedded, burst: u64, count: u64, period: u64, cost: u64) -> [i64; 5] {
        let limit = Limit::gcra(count, Micros::from_secs(period), burst + 1).unwrap();
        let rule = Arc::new(Rule::of("cl.throttle", &[limit]));
        let digest = Digest::of("cl.throttle", b"user:42");
        let decision = store.check(START, Request { rule: &rule, digest, key: b"user:42", cost, peek: false });
        let retry = decision.retry_after.map_or(-1, |wait| wait.as_secs_ceil() as i64);
        let limited = i64::from(decision.verdict == Verdict::Deny);
        let (limit, remaining) = (decision.limit as i64, decision.remaining as i64);
        [limited, limit, remaining, retry, decision.reset_after.as_secs_ceil() as i64]
    }

    #[test]
    fn answers_as_recorded_from_redis_cell() {
        let mut store = embedded(10);
        assert_eq!(throttle(&mut store, 15, 30, 60, 1), [0, 16, 15, -1, 2]);
        assert_eq!(throttle(&mut store, 15, 30, 60, 1), [0, 16, 14, -1, 4]);
        assert_eq!(throttle(&mut store, 15, 30, 60, 20), [1, 16, 14, -1, 4]);
        assert_eq!(throttle(&mut store, 15, 30, 60, 0), [0, 16, 14, -1, 4]);
        assert_eq!(throttle(&mut embedded(10), 15, 30, 60, 0), [0, 16, 16, -1, 0]);
        let mut store = embedded(10);
        assert_eq!(throttle(&mut store, 0, 1, 60, 1), [0, 1, 0, -1, 60]);
        assert_eq!(throttle(&mut store, 0, 1, 60, 1), [1, 1, 0, 60, 60]);
        let mut store = embedded(10);
        assert_eq!(throttle(&mut store, 15, 30, 60, 16), [0, 16, 0, -1, 32]);
        assert_eq!(throttle(&mut store, 15, 30, 60, 1), [1, 16, 0, 2, 32]);
    }

    #[test]
    fn what_was_charged_before_a_reset_is_not_taken_off_what_was_spent_since() {
        for limit in ["10/1h", "10/1h fixed"] {
            let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).unwrap()]));
            let request = |cost| Request { rule: &rule, digest: Digest::of("p", b"k"), key: b"k", cost, peek: false };
            let mut store = embedded(10);
            let before = [3, 3].map(|cost| Charge::of(cost, &store.check(START, request(cost))));
            store.reset(START, request(0));
            let since = [4, 2].map(|cost| Charge::of(cost, &store.check(START, request(cost))));
            for charge in before {
                assert_eq!(store.give_back(START, request(3), &charge).remaining, 4, "{limit}");
            }
            assert_eq!(store.give_back(START, request(3), &since[0]).remaining, 7, "{limit}");
            assert_eq!(store.give_back(START, request(1), &since[1]).remaining, 8, "{limit}");
        }
    }

    #[test]
    fn other_numbers_on_a_key_keep_its_debt_as_redis_cell_does() {
        let mut store = embedded(10);
        assert_eq!(throttle(&mut store, 0, 1, 3_600, 1), [0, 1, 0, -1, 3_600]);
        assert_eq!(throttle(&mut store, 0, 1, 60, 1), [1, 1, 0, 3_600, 3_600]);
        let mut store = embedded(10);
        assert_eq!(throttle(&mut store, 9, 10, 3_600, 10), [0, 10, 0, -1, 3_600]);
        assert_eq!(throttle(&mut store, 9, 100, 3_600, 1), [1, 10, 0, 3_276, 3_600]);
        assert_eq!(throttle(&mut store, 19, 10, 3_600, 5), [0, 20, 5, -1, 5_400]);
    }

    #[test]
    fn ten_gigabytes_a_day_are_a_limit() {
        for text in ["10000000000/1d", "10000000000/1d fixed", "10000000000/1d sliding"] {
            let rule = Arc::new(Rule::of("p", &[Limit::parse(text).unwrap()]));
            let (mut store, digest) = (embedded(10), Digest::of("p", b"k"));
            let mut check = |cost| {
                let decision = store.check(START, Request { rule: &rule, digest, key: b"k", cost, peek: false });
                (decision.verdict, decision.reason, decision.remaining)
            };
            assert_eq!(check(4_999_999_999), (Verdict::Allow, Reason::Ok, 5_000_000_001), "{text}");
            assert_eq!(check(5_000_000_001), (Verdict::Allow, Reason::Ok, 0), "{text}");
            assert_eq!(check(1), (Verdict::Deny, Reason::Rate, 0), "{text}");
            assert_eq!(check(10_000_000_001), (Verdict::Deny, Reason::Cost, 0), "{text}");
        }
    }

    #[test]
    fn short_way_and_long_way_answer_alike() {
        for text in ["7/3s burst 5", "1000/1s", "5/1s fixed", "5/700ms fixed from-first", "9/1s sliding"] {
            let rule = Arc::new(Rule::of("p", &[Limit::parse(text).unwrap()]));
            let (mut short, mut long) = (embedded(10), embedded(10));
            let digest = Digest::of("p", b"k");
            let mut now = START;
            for step in 0..5_000_u64 {
                now = now + Micros(step * 7_919 % 450_000);
                let cost = 1 + step % 4;
                let request = Request { rule: &rule, digest, key: b"k", cost, peek: false };
                let (one, other) = (short.check(now, request), long.acquire(now, &request));
                assert_eq!(one, other, "{text}, step {step}");
            }
        }
    }

    #[test]
    fn lists_the_keys_seen_last_by_name() {
        let mut store = embedded(10);
        let rule = Arc::new(Rule::of("api", &[Limit::parse("5/1s").unwrap()]));
        for key in [b"a", b"b", b"c"] {
            let digest = Digest::of("api", key);
            store.check(START, Request { rule: &rule, digest, key, cost: 1, peek: false });
        }
        let keys = store.keys(START, Place::default(), 2, |_, _| Some(rule.clone()));
        let names: Vec<_> = keys.iter().map(|(_, info)| info.key.as_deref().unwrap()).collect();
        assert_eq!(names, [b"c", b"b"]);
        assert_eq!(keys[0].1.decision.remaining, 4);
        assert_eq!(
            store.keys(START, Place::default(), 9, |_, _| None).len(),
            3,
            "rules without a policy in the configuration"
        );
    }

    #[test]
    fn a_table_full_of_live_keys_turns_new_ones_away() {
        let mut store = embedded(4);
        let rule = Arc::new(Rule::of("api", &[Limit::parse("1/1h").unwrap()]));
        let mut check = |key: &[u8]| {
            let digest = Digest::of("api", key);
            store.check(START, Request { rule: &rule, digest, key, cost: 1, peek: false })
        };
        for key in 0..4_u8 {
            assert_eq!(check(&[key]).verdict, Verdict::Allow);
        }
        assert_eq!(check(&[9]).reason, Reason::Overload);
        assert_eq!(check(&[1]).reason, Reason::Rate, "known keys are still counted");
    }
}
