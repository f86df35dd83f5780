//! Rates and percentiles of the time between two answers of `RATION.TOP`. Computes; shows nothing.

use serde_json::{Value, json};

use crate::core::policy::ON_TRIAL;
use crate::core::time::Micros;
use crate::serve::figures::percentile;

/// The policies of an answer.
fn listed(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["policies"].as_array().into_iter().flatten()
}

/// The figures of the time between two answers, as JSON. If the daemon was restarted in between, they are since its
/// start.
pub(super) fn between(before: &Value, after: &Value) -> Value {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let is_same = number(&before["uptime_ms"]) <= number(&after["uptime_ms"]);
    let nothing = Value::Null;
    let before = if is_same { before } else { &nothing };
    let span = match is_same {
        true => number(&after["at_ms"]).saturating_sub(number(&before["at_ms"])),
        false => number(&after["uptime_ms"]),
    };
    let grown = |before: &Value, after: &Value| number(after).saturating_sub(number(before));
    let rate = |before: &Value, after: &Value| per_second(grown(before, after), span);
    // Each present policy with its earlier counts.
    let pairs: Vec<(&Value, &Value)> = listed(after)
        .map(|policy| (listed(before).find(|known| known["name"] == policy["name"]).unwrap_or(&nothing), policy))
        .collect();
    let policies: Vec<Value> = pairs
        .iter()
        .map(|&(known, policy)| {
            let rate = |field: &str| rate(&known[field], &policy[field]);
            json!({
                "name": policy["name"],
                "allowed_per_s": rate("allowed"),
                "denied_per_s": rate("denied"),
                "shadowed_per_s": rate("shadowed"),
                "waited_per_s": rate("waited"),
                "held": policy["held"],
                "share": policy["share"],
            })
        })
        .collect();
    // Limits on trial are left out, because their checks are counted with the policy.
    let asked = |policy: &Value| policy["name"].as_str().is_some_and(|name| !name.ends_with(ON_TRIAL));
    let checks: u64 = pairs
        .iter()
        .filter(|(_, policy)| asked(policy))
        .map(|&(known, policy)| {
            ["allowed", "denied"].iter().map(|field| grown(&known[*field], &policy[*field])).sum::<u64>()
        })
        .sum();
    let store = (!after["store"].is_null()).then(|| {
        let calls = grown(&before["store"]["calls"], &after["store"]["calls"]);
        let took = took(&before["store"]["took"], &after["store"]["took"]);
        let [p50, p99] = percentiles(&took);
        json!({
            "calls_per_s": per_second(calls, span),
            "calls_per_1000": (calls * 10_000).checked_div(checks).map(tenths),
            "failed_per_s": rate(&before["store"]["failed"], &after["store"]["failed"]),
            "p50_us": p50,
            "p99_us": p99,
            "took": took,
            "servers": after["store"]["servers"],
        })
    });
    let took = took(&before["took"], &after["took"]);
    let [p50, p99] = percentiles(&took);
    json!({
        "version": after["version"],
        "uptime_ms": after["uptime_ms"],
        "span_ms": span,
        "checks_per_s": per_second(checks, span),
        "commands_per_s": rate(&before["commands"], &after["commands"]),
        "errors_per_s": rate(&before["errors"], &after["errors"]),
        "p50_us": p50,
        "p99_us": p99,
        "took": took,
        "keys": after["keys"],
        "waiting": after["waiting"],
        "degraded": after["degraded"],
        "connections": after["connections"],
        "policies": policies,
        "hot": hot(&after["hot"]),
        "store": store,
        "fleet": after["fleet"],
    })
}

/// A rate, with one decimal if it is small, so that one check each five seconds is not shown as 0.
fn per_second(count: u64, span_ms: u64) -> Value {
    tenths_value(count * 10_000 / span_ms.max(1))
}

fn tenths(number: u64) -> f64 {
    number as f64 / 10.0
}

fn tenths_value(number: u64) -> Value {
    if number >= 100 { json!(number / 10) } else { json!(tenths(number)) }
}

/// The hot keys with their rates.
fn hot(hot: &Value) -> Value {
    let span = hot["span_ms"].as_u64().unwrap_or(0);
    let list = |kind: &str| -> Vec<Value> {
        let keys = hot[kind].as_array().into_iter().flatten();
        keys.map(|key| {
            let mut key = key.clone();
            key["per_s"] = per_second(key["times"].as_u64().unwrap_or(0), span);
            key
        })
        .collect()
    };
    json!({"span_ms": span, "used": list("used"), "denied": list("denied")})
}

/// The histogram of the durations between two answers of `RATION.TOP`.
fn took(before: &Value, after: &Value) -> Value {
    let (mut counts, old) = (numbers(&after["counts"]), numbers(&before["counts"]));
    counts.iter_mut().zip(old).for_each(|(count, old)| *count = count.saturating_sub(old));
    json!({"bounds_us": after["bounds_us"], "counts": counts})
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// The times within which half and 99 % of answers were there, in microseconds; `None` where there were none.
pub(super) fn percentiles(took: &Value) -> [Option<u64>; 2] {
    let (bounds, counts) = (numbers(&took["bounds_us"]), numbers(&took["counts"]));
    [500, 990].map(|thousandths| percentile(&counts, &bounds, thousandths).map(|Micros(span)| span))
}

/// Store calls for 1,000 checks, where there were any; of rates, both a second.
pub(super) fn calls_per_1000(calls: &Value, checks: &Value) -> Value {
    let (calls, checks) = (calls.as_f64().unwrap_or(0.0), checks.as_f64().unwrap_or(0.0));
    if checks > 0.0 { json!((calls * 10_000.0 / checks).round() / 10.0) } else { Value::Null }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn answer(at_ms: u64, allowed: u64, denied: u64, calls: u64) -> Value {
        json!({
            "version": "0.1.0", "at_ms": at_ms, "uptime_ms": at_ms,
            "policies": [
                {"name": "api", "allowed": allowed, "denied": denied, "shadowed": 0, "waited": calls, "lent": 50,
                    "held": 7, "share": 100},
                {"name": "slow", "allowed": 0, "denied": 0, "shadowed": 0, "waited": 0, "lent": 0, "held": 0, "share": 5},
            ],
            "hot": {"span_ms": 10_000, "denied": [], "used": [
                {"policy": "api", "key": "acct:\u{7}1", "digest": "aa", "times": 500},
                {"policy": "slow", "key": "other", "digest": "bb", "times": 20},
            ]},
            "took": {"bounds_us": [25, 50], "counts": [allowed, denied, 0]},
            "keys": 9, "waiting": 0, "degraded": 0, "connections": 2, "commands": allowed + denied, "errors": 0,
            "store": {"calls": calls, "failed": 0, "took": {"bounds_us": [100, 250], "counts": [0, calls, 0]},
                "servers": [{"address": "10.0.0.9:6379", "up": true, "breaker": "closed", "problem": null,
                    "window": 16, "out": 1, "waiting": 0, "replicas": 1}]},
            "fleet": null,
        })
    }

    #[test]
    fn rates_are_what_two_answers_differ_by() {
        let figures = between(&answer(1_000, 100, 0, 10), &answer(3_000, 1_900, 200, 30));
        assert_eq!(figures["checks_per_s"], 1_000);
        assert_eq!(figures["policies"][0]["allowed_per_s"], 900);
        assert_eq!(figures["policies"][0]["denied_per_s"], 100);
        assert_eq!(figures["store"]["calls_per_s"], 10);
        assert_eq!(figures["store"]["calls_per_1000"], 10.0);
        assert_eq!((&figures["p50_us"], &figures["p99_us"]), (&json!(25), &json!(50)));
        assert_eq!(figures["hot"]["used"][1]["per_s"], 2.0);
    }

    #[test]
    fn what_limits_on_trial_decide_counts_with_the_policy_alone() {
        let tried = |mut answer: Value| {
            let mut candidate = answer["policies"][0].clone();
            candidate["name"] = json!("api (candidate)");
            answer["policies"].as_array_mut().expect("a list").push(candidate);
            answer
        };
        let figures = between(&tried(answer(1_000, 100, 0, 10)), &tried(answer(3_000, 1_900, 200, 30)));
        assert_eq!((&figures["checks_per_s"], &figures["store"]["calls_per_1000"]), (&json!(1_000), &json!(10.0)));
        assert_eq!(figures["policies"][2]["allowed_per_s"], 900, "it is shown with what it says");
    }

    #[test]
    fn a_daemon_that_was_started_again_counts_from_its_start() {
        let figures = between(&answer(90_000, 5_000, 0, 10), &answer(500, 300, 0, 1));
        assert_eq!((&figures["span_ms"], &figures["checks_per_s"]), (&json!(500), &json!(600)));
    }
}
