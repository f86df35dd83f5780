//! For how long a key is kept: its timer, the node that leaves, and the key that makes room for another.

use super::advance::advance;
use super::key::LeasedKey;
use super::timers::{has_to_void, is_at_rest, keep_until};
use super::wish::Wish;
use crate::core::context::Context;
use crate::core::time::Instant;

/// Does what is due by the clock. False when the key can be forgotten.
pub(in crate::core) fn handle_timer(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> bool {
    if is_at_rest(key, now) {
        return true;
    }
    advance(key, cx, now, Wish::Look);
    is_of_use(key, now)
}

/// Whether something would be lost by forgetting the key.
fn is_of_use(key: &LeasedKey, now: Instant) -> bool {
    let is_busy = !key.is_quiet() || has_to_void(key, now) || key.holdings.lease().held() > 0;
    is_busy || !keep_until(key, now).has_come(now) || key.is_indebted(now) || key.is_entitled(now)
}

/// The node leaves, so it returns everything.
pub(in crate::core) fn give_all_back(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    advance(key, cx, now, Wish::Leave);
}

/// The key is about to be forgotten: returns what it holds, and reports what was spent. Nobody takes the answers.
pub(in crate::core) fn part_with(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    advance(key, cx, now, Wish::MakeRoom);
    key.rare.calls.forget_errands();
}

/// The key was forgotten; what it held is lost until it lapses.
pub(in crate::core) fn note_forgotten(key: &mut LeasedKey, cx: &mut Context) {
    cx.policy_stats(key.policy()).expired += key.all_held();
    cx.stats.evicted += 1;
    key.recount_away(cx, false);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::Counter;
    use crate::core::lease::Segment;
    use crate::core::limit::{Algorithm, Limit};
    use crate::core::request::Settings;
    use crate::core::rule::Rule;
    use crate::core::store_clock::StoreClock;
    use crate::core::time::{Micros, Timestamp};

    const NOW: Instant = Instant(100_000_000);

    /// A key that so many nodes use, of which this one was lent `held` tokens and has spent some. A bucket is full again after `full_after`.
    fn key_of(limits: &[Limit], nodes: u32, full_after: Micros, [held, spent]: [u64; 2]) -> (LeasedKey, Arc<Rule>) {
        let rule = Arc::new(Rule::of("p", limits));
        let clock = StoreClock::new(NOW, NOW, Timestamp(NOW.0));
        let mut key = LeasedKey::new(1, b"k", &rule, 0, nodes, clock);
        let is_bucket = |limit: &Limit| limit.algorithm == Algorithm::Gcra;
        let at = |limit: &Limit| if is_bucket(limit) { Timestamp(NOW.0) + full_after } else { Timestamp(120_000_000) };
        let ends: Vec<_> = limits.iter().map(at).collect();
        let windows: Vec<_> = ends.iter().map(|at| at.stored()).collect();
        key.view.note_answered(NOW, false);
        for (index, at) in ends.iter().enumerate() {
            key.view.note_counter(index, Counter { used: 0, prev: 0, at: *at });
            key.view.note_lent(index, windows[index], held, &key.order(NOW));
        }
        key.holdings.account(&rule, NOW, NOW, Timestamp(NOW.0));
        assert_eq!(key.holdings.add(Segment::new(&rule, held, NOW, clock, &windows, false)), None);
        key.demand.note_check(NOW);
        assert!(key.holdings.spend(NOW, spent));
        key.note_spent(NOW, spent);
        (key, rule)
    }

    #[test]
    fn a_look_at_a_key_at_rest_changes_nothing() {
        let settings = Settings { max_keys: 1, timeout: Micros::from_millis(50), lease_ahead: true };
        let (mut at_rest, mut others) = (0, 0);
        for text in ["100/1m", "8000/1m", "10/1s", "1000/1h", "100/1m & 50/10s", "100/1m & 50/10s fixed", "60/1m fixed"]
        {
            let limits: Vec<_> = text.split(" & ").map(|limit| Limit::parse(limit).expect(limit)).collect();
            for (nodes, full_after) in [1, 2, 9].into_iter().flat_map(|nodes| [0, 1, 30].map(|full| (nodes, full))) {
                for amounts in [[1, 0], [8, 1], [8, 7], [40, 0], [40, 39]] {
                    for wait in (0..80).map(|quarters| Micros(quarters * 250_000)) {
                        let (mut key, rule) = key_of(&limits, nodes, Micros::from_secs(full_after), amounts);
                        if !is_at_rest(&key, NOW + wait) {
                            others += 1;
                            continue;
                        }
                        at_rest += 1;
                        let mut cx = Context::new(settings, 1, 1, 1, (NOW, Timestamp(NOW.0)));
                        cx.policy(&rule);
                        let before = format!("{key:?}");
                        advance(&mut key, &mut cx, NOW + wait, Wish::Look);
                        let seen = (format!("{key:?}"), cx.has_effects(), is_of_use(&key, NOW + wait));
                        assert_eq!(seen, (before, false, true), "{text}, {nodes} nodes, {amounts:?}, after {wait:?}");
                    }
                }
            }
        }
        assert!(at_rest > 1_000 && others > 1_000, "{at_rest} {others}");
    }
}
