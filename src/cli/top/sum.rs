//! The figures of several daemons as those of one, whether they came from each daemon or from one of a fleet. Computes;
//! shows nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::figures::{calls_per_1000, percentiles};
use crate::core::policy::ON_TRIAL;

/// Adds the figures of several daemons: counts and rates by policy and by key; percentiles are computed from the sum of
/// the histograms. `rows` has an object for each daemon, also for those that did not answer; `most` bounds each list of
/// keys.
pub(super) fn sum(each: &[Value], rows: Vec<Value>, most: usize) -> Value {
    let took = added_histogram(each.iter().map(|figures| &figures["took"]));
    let [p50, p99] = percentiles(&took);
    let policies = by(each.iter().flat_map(|figures| listed(&figures["policies"])), |policy| name(&policy["name"]));
    let policies: Vec<Value> = policies.into_values().map(|same| added(&same)).collect();
    let mut together = added(&each.iter().collect::<Vec<_>>());
    let more = json!({
        "daemons": each.len(),
        "by_daemon": rows,
        "version": versions(each),
        "uptime_ms": each.iter().filter_map(|figures| figures["uptime_ms"].as_u64()).min(),
        "span_ms": each.iter().filter_map(|figures| figures["span_ms"].as_u64()).max(),
        "p50_us": p50,
        "p99_us": p99,
        "took": took,
        "policies": policies,
        "hot": hot(each, most),
        "store": store(each),
        "fleet": fleet(each),
    });
    if let (Some(together), Value::Object(more)) = (together.as_object_mut(), more) {
        together.extend(more);
    }
    together
}

/// The object for one daemon beside the sum: its `socket` or `node`, and its state. `left_out` counts the policies for
/// which its answer had no room.
pub(super) fn row((kind, daemon): (&str, &str), figures: &Value, left_out: Option<u64>) -> Value {
    let policies = listed(&figures["policies"]).filter(|policy| !name(&policy["name"]).ends_with(ON_TRIAL));
    let denied = policies.filter_map(|policy| policy["denied_per_s"].as_f64()).sum();
    let servers = &figures["store"]["servers"];
    json!({
        kind: daemon,
        "away": false,
        "checks_per_s": figures["checks_per_s"],
        "denied_per_s": rate(denied),
        "p99_us": figures["p99_us"],
        "keys": figures["keys"],
        "store_up": servers.is_array().then(|| listed(servers).all(|server| server["up"] == true)),
        "problem": left_out.map(|count| format!("{count} policies are left out: those that are asked least")),
    })
}

fn listed(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn name(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Groups objects by the name that `of` gives.
fn by<'a>(all: impl Iterator<Item = &'a Value>, of: impl Fn(&Value) -> String) -> BTreeMap<String, Vec<&'a Value>> {
    let mut groups = BTreeMap::<String, Vec<&Value>>::new();
    all.for_each(|one| groups.entry(of(one)).or_default().push(one));
    groups
}

/// Adds objects: numbers are added, and other fields are those of the first object that has them.
fn added(same: &[&Value]) -> Value {
    let mut together = Map::new();
    for (field, value) in same.iter().filter_map(|one| one.as_object()).flatten() {
        let before = together.entry(field.clone()).or_insert(Value::Null);
        match (before.as_u64().zip(value.as_u64()), before.as_f64().zip(value.as_f64())) {
            (Some((sum, more)), _) => *before = json!(sum.saturating_add(more)),
            (None, Some((sum, more))) => *before = rate(sum + more),
            _ if before.is_null() => *before = value.clone(),
            _ => {}
        }
    }
    Value::Object(together)
}

/// As `figures` writes it: with one decimal where it is small.
fn rate(sum: f64) -> Value {
    if sum >= 10.0 { json!(sum.round() as u64) } else { json!((sum * 10.0).round() / 10.0) }
}

/// Adds histograms of durations; null if daemons of two versions have different bounds.
fn added_histogram<'a>(mut each: impl Iterator<Item = &'a Value>) -> Value {
    let Some(first) = each.next() else { return Value::Null };
    let mut counts: Vec<u64> = listed(&first["counts"]).filter_map(Value::as_u64).collect();
    for more in each {
        if more["bounds_us"] != first["bounds_us"] {
            return Value::Null;
        }
        counts
            .iter_mut()
            .zip(listed(&more["counts"]))
            .for_each(|(count, more)| *count = count.saturating_add(more.as_u64().unwrap_or(0)));
    }
    json!({"bounds_us": first["bounds_us"], "counts": counts})
}

/// Each version once.
fn versions(each: &[Value]) -> String {
    let mut versions: Vec<String> = each.iter().map(|figures| name(&figures["version"])).collect();
    versions.sort();
    versions.dedup();
    versions.join(" and ")
}

/// Adds hot keys by policy and digest, since their text may be cut. Each sketch gives a lower bound of how often a key
/// was seen, so the sum is one, too.
fn hot(each: &[Value], most: usize) -> Value {
    let list = |kind: &str| -> Vec<Value> {
        let all = each.iter().flat_map(|figures| listed(&figures["hot"][kind]));
        let keys = by(all, |key| format!("{} {}", key["policy"], key["digest"]));
        let mut keys: Vec<Value> = keys.into_values().map(|same| added(&same)).collect();
        keys.sort_by_key(|key| Reverse(key["times"].as_u64()));
        keys.truncate(most);
        keys
    };
    let span = each.iter().filter_map(|figures| figures["hot"]["span_ms"].as_u64()).max();
    json!({"span_ms": span, "used": list("used"), "denied": list("denied")})
}

/// A server counts as away where one daemon cannot reach it, and its breaker is the first that is not closed.
fn store(each: &[Value]) -> Value {
    let stores: Vec<&Value> = each.iter().map(|figures| &figures["store"]).filter(|store| !store.is_null()).collect();
    if stores.is_empty() {
        return Value::Null;
    }
    let took = added_histogram(stores.iter().map(|store| &store["took"]));
    let [p50, p99] = percentiles(&took);
    let servers = by(stores.iter().flat_map(|store| listed(&store["servers"])), |server| name(&server["address"]));
    let servers: Vec<Value> = servers
        .into_values()
        .map(|same| {
            let mut server = added(&same);
            server["up"] = json!(same.iter().all(|one| one["up"] == true));
            let breaker = same.iter().map(|one| &one["breaker"]).find(|breaker| **breaker != "closed");
            server["breaker"] = breaker.unwrap_or(&server["breaker"]).clone();
            server["replicas"] = json!(same.iter().filter_map(|one| one["replicas"].as_u64()).max());
            server
        })
        .collect();
    let mut together = added(&stores);
    together["calls_per_1000"] = calls_per_1000(&together["calls_per_s"], &checks_per_second(each));
    together["servers"] = json!(servers);
    (together["p50_us"], together["p99_us"], together["took"]) = (json!(p50), json!(p99), took);
    together
}

fn checks_per_second(each: &[Value]) -> Value {
    rate(each.iter().filter_map(|figures| figures["checks_per_s"].as_f64()).sum())
}

/// The nodes that any daemon sees. How many keys a node owns is its own count, if it was asked.
fn fleet(each: &[Value]) -> Value {
    let seen = each.iter().flat_map(|figures| listed(&figures["fleet"]["peers"]));
    let nodes = by(seen, |peer| name(&peer["name"]));
    let peers: Vec<Value> = nodes
        .into_values()
        .map(|same| {
            let itself = same.iter().find(|peer| peer["self"] == true);
            let heard = same.iter().filter(|peer| peer["heard_ms_ago"].is_u64());
            let latest = heard.min_by_key(|peer| peer["heard_ms_ago"].as_u64());
            (*itself.or(latest).unwrap_or(&same[0])).clone()
        })
        .collect();
    if peers.is_empty() { Value::Null } else { json!({"peers": peers}) }
}

#[cfg(test)]
mod tests {
    use super::super::figures::{between, tests::answer};
    use super::*;
    use crate::core::key::Digest;
    use crate::core::time::Instant;
    use crate::serve::hot_keys::{HotKeys, Kind, top};
    use crate::serve::sketch::Seen;

    fn figures(allowed: u64, denied: u64, calls: u64) -> Value {
        between(&answer(1_000, 0, 0, 0), &answer(2_000, allowed, denied, calls))
    }

    #[test]
    fn rates_keys_and_calls_are_added() {
        let together = sum(&[figures(900, 100, 10), figures(90, 10, 1)], Vec::new(), 20);
        assert_eq!((&together["daemons"], &together["checks_per_s"]), (&json!(2), &json!(1_100)));
        assert_eq!(together["policies"][0]["allowed_per_s"], 990);
        assert_eq!(together["policies"][0]["held"], 14);
        assert_eq!(together["hot"]["used"][0]["times"], 1_000);
        assert_eq!(together["store"]["calls_per_1000"], 10.0);
        assert_eq!(together["store"]["servers"].as_array().map(Vec::len), Some(1));
        assert_eq!((&together["version"], &together["errors_per_s"]), (&json!("0.1.0"), &json!(0.0)));
    }

    #[test]
    fn small_rates_keep_their_decimal() {
        let together = sum(&[figures(4, 0, 0), figures(3, 0, 0)], Vec::new(), 20);
        assert_eq!(together["checks_per_s"], 7.0);
        assert_eq!(sum(&[figures(9, 0, 0), figures(8, 0, 0)], Vec::new(), 20)["checks_per_s"], 17);
    }

    #[test]
    fn percentiles_are_those_of_all_answers() {
        // All answers of one daemon took up to 25 us, all of the other up to 50.
        let (quick, slow) = (figures(900, 0, 0), figures(0, 100, 0));
        assert_eq!((&quick["p99_us"], &slow["p50_us"]), (&json!(25), &json!(50)));
        let together = sum(&[quick, slow], Vec::new(), 20);
        assert_eq!((&together["p50_us"], &together["p99_us"]), (&json!(25), &json!(50)));
    }

    #[test]
    fn keys_that_are_hot_on_many_nodes_come_first() {
        let mut other = figures(1, 0, 0);
        other["hot"]["used"] = json!([{"policy": "slow", "key": "other", "digest": "bb", "times": 700, "per_s": 70}]);
        let together = sum(&[figures(1, 0, 0), other], Vec::new(), 1);
        let used = together["hot"]["used"].as_array().expect("a list");
        assert_eq!((used.len(), &used[0]["key"], &used[0]["times"]), (1, &json!("other"), &json!(720)));
    }

    /// Each of eight nodes sees an eighth of the checks, whose keys follow Zipf's law with exponent 1.1, and reports
    /// ten times as many keys as are shown. The twenty keys that came most often in the whole fleet are found.
    #[test]
    fn the_top_twenty_of_a_fleet_are_found() {
        const KEYS: u64 = 100_000;
        const NODES: usize = 8;
        let weights = (1..=KEYS).map(|rank| (rank as f64).powf(-1.1));
        let sums: Vec<f64> =
            weights.scan(0.0, |sum, weight| Some(std::mem::replace(sum, *sum + weight) + weight)).collect();
        let policy = "p".into();
        for seed in 1..=3_u64 {
            let mut shards: Vec<HotKeys> = (0..64 * NODES).map(|_| HotKeys::default()).collect();
            let mut counts = BTreeMap::<String, u64>::new();
            let mut state = seed;
            for _ in 0..400_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let drawn = (state >> 11) as f64 / (1_u64 << 53) as f64 * sums[sums.len() - 1];
                let rank = sums.partition_point(|sum| *sum < drawn) as u64;
                // Multiplied first, because the bits of the state that the key does not use are hardly random.
                let node = (state.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % NODES;
                let digest = Digest::of("p", &rank.to_le_bytes());
                let shard = &mut shards[node * 64 + (digest.0 >> 64) as usize % 64];
                let now = Instant(15_000_000);
                if let Some(note) = shard.count(now, Kind::Used, digest) {
                    shard.note(now, (Kind::Used, note), digest, &policy, b"k");
                }
                *counts.entry(digest.to_string()).or_default() += 1;
            }
            let answers = shards.chunks_mut(64).map(|node| {
                let mut seen = Vec::new();
                node.iter_mut().for_each(|shard| shard.seen(Instant(15_000_000), Kind::Used, &mut seen));
                let key =
                    |seen: &Seen| json!({"policy": "p", "digest": seen.name.digest.to_string(), "times": seen.times});
                json!({"hot": {"used": top(seen, 200).iter().map(key).collect::<Vec<_>>(), "denied": []}})
            });
            let together = hot(&answers.collect::<Vec<_>>(), 20);
            let mut wanted: Vec<_> = counts.into_iter().collect();
            wanted.sort_by_key(|(_, count)| Reverse(*count));
            let named: Vec<_> = listed(&together["used"]).map(|key| name(&key["digest"])).collect();
            let missed: Vec<_> = wanted[..20].iter().filter(|(key, _)| !named.contains(key)).collect();
            assert!(missed.is_empty(), "seed {seed}: {missed:?} of {:?}", &wanted[..25]);
        }
    }

    #[test]
    fn a_server_that_one_daemon_cannot_reach_is_away() {
        let mut cut = figures(1, 0, 0);
        cut["store"]["servers"][0]["up"] = json!(false);
        cut["store"]["servers"][0]["breaker"] = json!("open");
        cut["store"]["servers"][0]["problem"] = json!("refused");
        let server = sum(&[figures(1, 0, 0), cut], Vec::new(), 20)["store"]["servers"][0].clone();
        assert_eq!(
            (&server["up"], &server["breaker"], &server["problem"]),
            (&json!(false), &json!("open"), &json!("refused"))
        );
        assert_eq!((&server["replicas"], &server["window"]), (&json!(1), &json!(32)));
    }

    #[test]
    fn a_node_says_itself_what_it_owns() {
        let peer = |name: &str, own: bool, owns: u64| json!({"name": name, "self": own, "heard_ms_ago": (!own).then_some(90), "owns": owns});
        let (mut a, mut b) = (figures(1, 0, 0), figures(1, 0, 0));
        a["fleet"] = json!({"peers": [peer("a", true, 7), peer("b", false, 1), peer("c", false, 3)]});
        b["fleet"] = json!({"peers": [peer("a", false, 2), peer("b", true, 9), peer("c", false, 4)]});
        let fleet = sum(&[a, b], Vec::new(), 20)["fleet"].clone();
        let owns: Vec<_> = listed(&fleet["peers"]).map(|peer| (name(&peer["name"]), peer["owns"].clone())).collect();
        assert_eq!(owns, [("a".into(), json!(7)), ("b".into(), json!(9)), ("c".into(), json!(3))]);
    }

    #[test]
    fn each_daemon_is_told_beside_the_sum() {
        let mut tried = figures(900, 100, 10);
        tried["policies"][1] = json!({"name": "api (candidate)", "denied_per_s": 500});
        tried["store"]["servers"][0]["up"] = json!(false);
        let summed = row(("socket", "a.sock"), &tried, None);
        assert_eq!((&summed["socket"], &summed["checks_per_s"]), (&json!("a.sock"), &json!(1_000)));
        assert_eq!(summed["denied_per_s"], 100, "limits on trial deny nobody");
        assert_eq!(
            (&summed["store_up"], &summed["p99_us"], &summed["problem"]),
            (&json!(false), &json!(50), &Value::Null)
        );
        tried["store"] = Value::Null;
        let summed = row(("node", "a"), &tried, Some(3));
        assert_eq!(summed["store_up"], Value::Null, "it counts in its own memory");
        assert_eq!((&summed["node"], &summed["away"]), (&json!("a"), &json!(false)));
        assert!(summed["problem"].as_str().is_some_and(|problem| problem.starts_with("3 policies")), "{summed}");
    }

    /// Each of several daemons reports ten times as many keys as are shown.
    #[test]
    fn the_only_one_that_answers_tells_no_more_keys_than_are_shown() {
        let together = sum(&[figures(1, 0, 0)], Vec::new(), 1);
        assert_eq!(together["daemons"], 1);
        assert_eq!(together["hot"]["used"].as_array().map(Vec::len), Some(1));
    }
}
