//! Checks of the running daemon: whether it answers, its version, its policies, and what it reports as wrong.

use serde_json::Value;

use super::check::{Check, Look};
use super::patient::Patient;
use crate::core::policy::Plan;
use crate::serve::listing;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "daemon.answers",
        why: "Nobody decides, and applications go by what they do without a daemon.",
        next: "Start it with `rationd serve`, or name its socket with --socket.",
        see: "operate/troubleshooting.md",
        look: answers,
    },
    Check {
        id: "daemon.version",
        why: "What was installed does not count before the daemon is started again.",
        next: "Restart the daemon.",
        see: "operate/upgrading.md",
        look: version,
    },
    Check {
        id: "daemon.policies",
        why: "What the files say does not count before it is loaded.",
        next: "`rationd reload`.",
        see: "configure.md#reloading",
        look: policies,
    },
    Check {
        id: "daemon.new-policies",
        why: "A limit that is new denies at once; whom, nobody has seen yet.",
        next: "Set shadow = true for a day, look at reason `shadow` in the metrics, and enforce it for more keys bit by bit.",
        see: "configure.md#trying-a-policy-out",
        look: new_policies,
    },
    Check {
        id: "daemon.store",
        why: "Keys are decided by this node's share: the store cannot be reached from the daemon, or could not lately.",
        next: "Look at the checks store.*, and at the daemon's log.",
        see: "concepts/outages.md#what-happens-then",
        look: store,
    },
    Check {
        id: "daemon.lost",
        why: "The store has lost counts, and limits were admitted anew.",
        next: "Look at store.eviction and store.persistence, and at what else writes there.",
        see: "concepts/guarantees.md#what-is-not-covered",
        look: lost,
    },
    Check {
        id: "daemon.overload",
        why: "Checks were denied because the store was slow or the table of keys is full, and not by a limit.",
        next: "Look at store.latency and machine.memory, and at rationd_store_waiting.",
        see: "operate/capacity.md",
        look: overload,
    },
    Check {
        id: "daemon.costs",
        why: "A cost beyond the burst never passes, however long somebody waits.",
        next: "Raise the burst of the policy, or have applications ask for less at once.",
        see: "operate/troubleshooting.md",
        look: costs,
    },
];

fn answers(patient: &Patient) -> Look {
    let daemon = &patient.daemon;
    match &daemon.silence {
        _ if patient.config().is_none() => Look::Apart,
        Some(silence) => Look::Warning(silence.clone()),
        None => Look::Ok(format!("on {}", daemon.socket.display())),
    }
}

fn version(patient: &Patient) -> Look {
    let (Some(seen), own) = (&patient.daemon.version, env!("CARGO_PKG_VERSION")) else { return Look::Apart };
    if seen == own {
        Look::Ok(format!("{own}, as this program"))
    } else {
        Look::Warning(format!("the daemon is {seen}, and this program {own}"))
    }
}

/// The policies of the files and of the daemon by name, as a daemon lists them.
fn both(patient: &Patient) -> Option<(Vec<Value>, &Vec<Value>)> {
    let (loaded, _) = patient.loaded.as_ref().ok()?;
    let files = serde_json::from_str(&listing::policies(&loaded.policies)).ok()?;
    Some((files, patient.daemon.policies.as_array()?))
}

fn policies(patient: &Patient) -> Look {
    let Some((files, daemon)) = both(patient) else { return Look::Apart };
    let find = |list: &[Value], name: &Value| list.iter().find(|policy| policy["name"] == *name).cloned();
    let changed = files.iter().filter_map(|policy| match find(daemon, &policy["name"]) {
        None => Some(format!("{} is not loaded", policy["name"])),
        Some(known) => (known != *policy).then(|| format!("{} is another in the daemon", policy["name"])),
    });
    let gone = daemon.iter().filter(|policy| find(&files, &policy["name"]).is_none());
    let gone = gone.map(|policy| format!("{} is in no file any more", policy["name"]));
    Look::none_of(changed.chain(gone).collect(), Look::Warning, "the daemon has those of the files")
}

fn new_policies(patient: &Patient) -> Look {
    let (Some((_, daemon)), Ok((loaded, _))) = (both(patient), &patient.loaded) else { return Look::Apart };
    let is_new = |name: &str| !daemon.iter().any(|policy| policy["name"] == name);
    let new = loaded.policies.iter().filter(|policy| is_new(&policy.name));
    let strict = new.filter(|policy| policy.enforce == 100 && matches!(policy.plan, Plan::Limited(_)));
    let findings = strict.map(|policy| format!("{:?} is new and denies for all keys", policy.name));
    Look::none_of(findings.collect(), Look::Warning, "none denies that was not seen before")
}

fn store(patient: &Patient) -> Look {
    let Some(degraded) = patient.daemon.stats["degraded"].as_u64() else { return Look::Apart };
    let shares = patient.daemon.decided("share") + patient.daemon.decided("store");
    match (degraded, shares) {
        (0, 0) => Look::Ok("no key is decided without it".to_owned()),
        (0, denied) => Look::Warning(format!("{denied} checks were denied for want of it since the daemon started")),
        (keys, _) => Look::Warning(format!("{keys} keys are decided without it now")),
    }
}

fn lost(patient: &Patient) -> Look {
    let stats = &patient.daemon.stats;
    let (Some(lost), Some(damaged)) = (stats["lost_epochs"].as_u64(), stats["damaged"].as_u64()) else {
        return Look::Apart;
    };
    let mut findings = Vec::new();
    if lost > 0 {
        findings.push(format!("counts of keys were found gone {lost} times"));
    }
    if damaged > 0 {
        findings.push(format!("{damaged} values made no sense"));
    }
    Look::none_of(findings, Look::Warning, "none since the daemon started")
}

fn overload(patient: &Patient) -> Look {
    if patient.daemon.stats.is_null() {
        return Look::Apart;
    }
    match patient.daemon.decided("overload") {
        0 => Look::Ok("none since the daemon started".to_owned()),
        count => Look::Warning(format!("{count} checks since the daemon started")),
    }
}

fn costs(patient: &Patient) -> Look {
    if patient.daemon.stats.is_null() {
        return Look::Apart;
    }
    match patient.daemon.decided("cost") {
        0 => Look::Ok("each fitted its limit since the daemon started".to_owned()),
        count => Look::Warning(format!("{count} checks asked for more than a limit ever holds")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_daemon_says_of_itself_is_judged() {
        let mut patient = Patient::of("", None);
        let overload = json!([{"verdict": "deny", "reason": "overload", "source": "store", "count": 2}]);
        let cost = json!([{"verdict": "deny", "reason": "cost", "source": "policy", "count": 2}]);
        let policies = json!({"api": {"checks": overload}, "api (candidate)": {"checks": cost}});
        patient.daemon.stats = json!({"policies": policies, "degraded": 0});
        patient.daemon.version = Some("0.0.1".to_owned());
        for (id, word) in [("daemon.overload", "warning"), ("daemon.version", "warning"), ("daemon.costs", "ok")] {
            let check = CHECKS.iter().find(|check| check.id == id).expect("there is such a check");
            assert_eq!((check.look)(&patient).word(), word, "{id}");
        }
    }
}
