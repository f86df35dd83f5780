//! The figures as tables of words, sorted and filtered. `screen` draws them, and `--once` prints them.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::super::{keys, output};
use super::sort::Sort;

/// Which policies and keys are shown, and in which order.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) sort: Sort,
    /// Policies and keys are shown if their name has this in it.
    pub(super) filter: String,
}

/// Rows, of which the first is the head.
pub(super) type Rows = Vec<Vec<String>>;

impl View {
    pub(super) fn policies(&self, figures: &Value) -> Rows {
        let head = ["POLICY", "ADMITTED/S", "DENIED/S", "SHADOW/S", "WAITED/S", "HELD", "SHARE"];
        let rows = self.shown_policies(figures).into_iter().map(|policy| {
            let fields = ["allowed_per_s", "denied_per_s", "shadowed_per_s", "waited_per_s", "held", "share"];
            std::iter::once(text(&policy["name"])).chain(fields.map(|field| text(&policy[field]))).collect()
        });
        rows_of(&head, rows)
    }

    fn shown_policies<'a>(&self, figures: &'a Value) -> Vec<&'a Value> {
        let mut policies: Vec<&Value> = figures["policies"].as_array().into_iter().flatten().collect();
        policies.retain(|policy| self.shows(&policy["name"]));
        let tenths = |policy: &Value, field: &str| (policy[field].as_f64().unwrap_or(0.0) * 10.0) as u64;
        policies.sort_by_key(|policy| {
            let denied = tenths(policy, "denied_per_s");
            Reverse(match self.sort {
                Sort::Rate => tenths(policy, "allowed_per_s") + denied,
                Sort::Denied => denied,
                Sort::Held => tenths(policy, "held"),
                Sort::Name => 0,
            })
        });
        policies
    }

    /// Hot keys; `kind` is `used` or `denied`.
    pub(super) fn keys(&self, figures: &Value, kind: &str) -> Rows {
        let shown = self.shown_keys(figures, kind).into_iter();
        let rows = shown.map(|key| vec![text(&key["per_s"]), text(&key["policy"]), keys::name(key)]);
        rows_of(&[if kind == "used" { "CHECKS/S" } else { "DENIALS/S" }, "POLICY", "KEY"], rows)
    }

    fn shown_keys<'a>(&self, figures: &'a Value, kind: &str) -> Vec<&'a Value> {
        let keys = figures["hot"][kind].as_array().into_iter().flatten();
        keys.filter(|key| self.shows(&key["policy"]) || self.shows(&key["key"])).collect()
    }

    /// For programs: policies and keys filtered and sorted as people see them, and everything else unchanged.
    pub(super) fn json(&self, figures: &Value) -> Value {
        let mut shown = figures.clone();
        shown["policies"] = json!(self.shown_policies(figures));
        for kind in ["used", "denied"] {
            if figures["hot"][kind].is_array() {
                shown["hot"][kind] = json!(self.shown_keys(figures, kind));
            }
        }
        shown
    }

    fn shows(&self, name: &Value) -> bool {
        self.filter.is_empty() || name.as_str().is_some_and(|name| name.contains(&self.filter))
    }

    /// All of it, for `--once`.
    pub(super) fn text(&self, figures: &Value) -> String {
        let mut parts = vec![head(figures).join("\n"), output::table(&self.policies(figures))];
        let hot = [self.keys(figures, "used"), self.keys(figures, "denied")];
        let lists = hot.into_iter().chain([daemons(figures), servers(figures), peers(figures)]).collect::<Vec<_>>();
        parts.extend(lists.iter().filter(|rows| rows.len() > 1).map(|rows| output::table(rows)));
        parts.join("\n\n")
    }
}

/// Two lines about the daemon as a whole.
pub(super) fn head(figures: &Value) -> Vec<String> {
    let seconds = figures["uptime_ms"].as_u64().unwrap_or(0) / 1_000;
    let rows = figures["by_daemon"].as_array().into_iter().flatten();
    let asked = rows.map(|row| row["daemons"].as_u64().unwrap_or(1)).sum::<u64>();
    let daemons = figures["daemons"].as_u64().map_or(String::new(), |count| match count < asked {
        true => format!("{count} OF {asked} daemons of "),
        false => format!("{count} daemons of "),
    });
    let first = format!(
        "{daemons}rationd {}, up {}: {} checks/s, half within {}, 99 % within {}; {} connections, {} keys, {} errors/s",
        text(&figures["version"]),
        up(seconds),
        text(&figures["checks_per_s"]),
        micros(&figures["p50_us"]),
        micros(&figures["p99_us"]),
        text(&figures["connections"]),
        text(&figures["keys"]),
        text(&figures["errors_per_s"]),
    );
    let store = &figures["store"];
    if store.is_null() {
        return vec![first, "store: in this process".to_owned()];
    }
    let away = store["servers"].as_array().into_iter().flatten().filter(|server| server["up"] == false).count();
    let state = if away == 0 { String::new() } else { format!("; {away} SERVERS AWAY") };
    let second = format!(
        "store: {} calls/s, {} per 1000 checks, half within {}, 99 % within {}, {} failed/s; {} checks wait; {} keys without it{state}",
        text(&store["calls_per_s"]),
        text(&store["calls_per_1000"]),
        micros(&store["p50_us"]),
        micros(&store["p99_us"]),
        text(&store["failed_per_s"]),
        text(&figures["waiting"]),
        text(&figures["degraded"]),
    );
    vec![first, second]
}

/// The daemons, if several were asked: first those that do not answer, then the busiest.
pub(super) fn daemons(figures: &Value) -> Rows {
    let mut daemons: Vec<&Value> = figures["by_daemon"].as_array().into_iter().flatten().collect();
    daemons.sort_by_key(|daemon| {
        let tenths = (daemon["checks_per_s"].as_f64().unwrap_or(0.0) * 10.0) as u64;
        (is_there(daemon), daemon["problem"].is_null(), Reverse(tenths))
    });
    let rows = daemons.into_iter().map(|daemon| {
        let state = |up: &Value| match up.as_bool() {
            Some(true) => "up".to_owned(),
            Some(false) => "AWAY".to_owned(),
            None => "-".to_owned(),
        };
        let is_there = Value::Bool(is_there(daemon));
        let problem = if daemon["problem"].is_null() { String::new() } else { text(&daemon["problem"]) };
        let figures = ["checks_per_s", "denied_per_s"].map(|field| text(&daemon[field]));
        let [checks, denied] = figures;
        let (p99, store) = (micros(&daemon["p99_us"]), state(&daemon["store_up"]));
        let name = if daemon["node"].is_null() { &daemon["socket"] } else { &daemon["node"] };
        vec![text(name), state(&is_there), checks, denied, p99, text(&daemon["keys"]), store, problem]
    });
    rows_of(&["DAEMON", "STATE", "CHECKS/S", "DENIED/S", "99 %", "KEYS", "STORE", "PROBLEM"], rows)
}

/// Whether a daemon can be reached, even if its figures are missing.
fn is_there(daemon: &Value) -> bool {
    daemon["away"].as_bool().map_or(daemon["problem"].is_null(), |away| !away)
}

/// The servers of the store.
pub(super) fn servers(figures: &Value) -> Rows {
    let servers = figures["store"]["servers"].as_array().into_iter().flatten();
    let rows = servers.map(|server| {
        let state = if server["up"] == true { "up" } else { "AWAY" };
        let calls =
            format!("{} of {}, {} wait", text(&server["out"]), text(&server["window"]), text(&server["waiting"]));
        let problem = if server["problem"].is_null() { String::new() } else { text(&server["problem"]) };
        vec![
            text(&server["address"]),
            state.to_owned(),
            text(&server["breaker"]),
            calls,
            text(&server["replicas"]),
            problem,
        ]
    });
    rows_of(&["SERVER", "STATE", "BREAKER", "CALLS", "REPLICAS", "PROBLEM"], rows)
}

/// The nodes of the fleet.
pub(super) fn peers(figures: &Value) -> Rows {
    let peers = figures["fleet"]["peers"].as_array().into_iter().flatten();
    let rows = peers.map(|peer| {
        let heard = match (peer["self"].as_bool(), peer["heard_ms_ago"].as_u64()) {
            (Some(true), _) => "this node".to_owned(),
            (_, Some(millis)) => format!("{millis} ms ago"),
            _ => "not yet".to_owned(),
        };
        vec![text(&peer["name"]), text(&peer["state"]), text(&peer["address"]), heard, text(&peer["owns"])]
    });
    rows_of(&["NODE", "STATE", "ADDRESS", "HEARD", "OWNS"], rows)
}

fn rows_of(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Rows {
    let head = head.iter().map(|&word| word.to_owned()).collect();
    std::iter::once(head).chain(rows).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => output::visible(text),
        other => other.to_string(),
    }
}

fn micros(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |span| {
        if span < 1_000 { format!("{span} us") } else { format!("{} ms", span as f64 / 1e3) }
    })
}

fn up(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::{between, tests::answer};
    use super::*;

    fn view(sort: Sort, filter: &str) -> View {
        View { sort, filter: filter.to_owned() }
    }

    #[test]
    fn policies_are_sorted_and_filtered() {
        let figures = between(&answer(1_000, 0, 0, 0), &answer(2_000, 50, 5, 3));
        let names =
            |view: View| view.policies(&figures).into_iter().skip(1).map(|row| row[0].clone()).collect::<Vec<_>>();
        assert_eq!(names(view(Sort::Rate, "")), ["api", "slow"]);
        assert_eq!(names(view(Sort::Name, "slo")), ["slow"]);
        assert_eq!(view(Sort::Rate, "acct").keys(&figures, "used").len(), 2);
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let figures = between(&answer(1_000, 0, 0, 0), &answer(2_000, 50, 5, 3));
        let text = view(Sort::Rate, "").text(&figures);
        assert!(text.contains("acct:\u{fffd}1") && !text.contains('\u{7}'), "{text}");
        for part in ["10.0.0.9:6379", "3.0 calls/s", "54.5 per 1000", "1 of 16, 0 wait", "half within 25 us"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_fleet_is_told_with_what_each_node_owns() {
        let peer = |name, own: bool, owns| serde_json::json!({"name": name, "state": "alive", "address": "10.0.0.1:7946", "self": own, "heard_ms_ago": 180, "owns": owns});
        // A daemon of before does not say what nodes own.
        let figures = serde_json::json!({"fleet": {"peers": [peer("a", true, Some(7)), peer("b", false, None)]}});
        assert_eq!(
            peers(&figures),
            [
                ["NODE", "STATE", "ADDRESS", "HEARD", "OWNS"],
                ["a", "alive", "10.0.0.1:7946", "this node", "7"],
                ["b", "alive", "10.0.0.1:7946", "180 ms ago", "-"],
            ]
        );
    }

    #[test]
    fn who_does_not_answer_stands_above_the_busiest() {
        let daemon = |socket, checks| json!({"socket": socket, "checks_per_s": checks, "denied_per_s": 1.5, "p99_us": 50, "keys": 9, "store_up": false, "problem": null});
        let silent = json!({"socket": "c.sock", "problem": "no answer"});
        let figures = json!({"daemons": 2, "by_daemon": [daemon("a.sock", 5), daemon("b.sock", 70), silent]});
        let rows = daemons(&figures);
        assert_eq!(rows[1], ["c.sock", "AWAY", "-", "-", "-", "-", "-", "no answer"]);
        assert_eq!(rows[2], ["b.sock", "up", "70", "1.5", "50 us", "9", "AWAY", ""]);
        assert_eq!(rows[3][0], "a.sock");
        assert!(head(&figures)[0].starts_with("2 OF 3 daemons of rationd "), "{:?}", head(&figures));
        let missed = json!({"daemons": 2, "by_daemon": [daemon("a", 5), daemon("b", 6), {"node": "(3 more)", "away": true, "daemons": 3, "problem": "gone"}]});
        assert!(head(&missed)[0].starts_with("2 OF 5 daemons of rationd "), "{:?}", head(&missed));
        let off = json!({"by_daemon": [daemon("a", 5), {"node": "b", "away": false, "problem": "it tells nothing"}]});
        assert_eq!(daemons(&off)[1], ["b", "up", "-", "-", "-", "-", "-", "it tells nothing"]);
        assert_eq!(daemons(&json!({})).len(), 1, "one daemon has no such table");
    }

    #[test]
    fn a_server_that_is_away_is_told_of_in_the_head() {
        let mut figures = between(&answer(1_000, 0, 0, 0), &answer(2_000, 50, 5, 3));
        figures["store"]["servers"][0]["up"] = Value::Bool(false);
        assert!(head(&figures)[1].ends_with("1 SERVERS AWAY"), "{:?}", head(&figures));
    }
}
