//! Checks of the shared store: whether it answers, is of the right kind and version, keeps what is written, and is
//! closed to strangers.

use super::check::{Check, Look};
use super::patient::Patient;
use crate::core::time::Micros;
use crate::store::redis::{Survey, Surveyed};

/// The oldest Redis that has all that the scripts use.
const OLDEST: (u64, u64) = (6, 2);
/// The most by which clocks may differ without a warning.
const APART_MS: i64 = 1_000;
/// A silent master is replaced after `cluster-node-timeout`. With more than this, a part of all keys is without a store
/// for long.
const NODE_TIMEOUT_MS: u64 = 5_000;
/// From so many percent of `maxmemory` on a server counts as nearly full.
const NEARLY_FULL: u128 = 90;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "store.reachable",
        why: "Without the store a node decides by its share of each limit, and nothing is counted for all nodes.",
        next: "Start it, or set store.url, store.ca and store.password_file right; look for a firewall between.",
        see: "concepts/outages.md",
        look: reachable,
    },
    Check {
        id: "store.kind",
        why: "A cluster refuses the keys that another of its servers owns, and a single server knows no slots.",
        next: "Write redis-cluster:// for a cluster, redis:// for a single server, and no address of a Sentinel.",
        see: "operate/redis.md",
        look: kind,
    },
    Check {
        id: "store.role",
        why: "A replica takes no writes: no token is ever leased.",
        next: "Name the master in store.url.",
        see: "operate/redis.md",
        look: role,
    },
    Check {
        id: "store.version",
        why: "The scripts use commands of Redis 6.2.",
        next: "Upgrade the server to Redis or Valkey 6.2 or newer.",
        see: "operate/redis.md",
        look: version,
    },
    Check {
        id: "store.bits",
        why: "A build for 32 bits writes large numbers wrong, and counters would be damaged.",
        next: "Use a build for 64 bits.",
        see: "operate/redis.md",
        look: bits,
    },
    Check {
        id: "store.rights",
        why: "A call that its user may not make fails, and the store counts as away.",
        next: "Give the user the rights that the page names; the keys begin with store.prefix.",
        see: "operate/redis.md#an-acl-user-with-no-more-than-is-needed",
        look: rights,
    },
    Check {
        id: "store.writes",
        why: "A server that takes no writes leases no token.",
        next: "Do what the message asks for: free memory, repair the disk, or lower min-replicas-to-write.",
        see: "operate/redis.md#settings-of-the-server",
        look: writes,
    },
    Check {
        id: "store.latency",
        why: "A check that finds no token waits for the store, store.timeout at most, and is decided as in overload then.",
        next: "Move the store nearer, or raise store.timeout to several trips.",
        see: "concepts/outages.md#slow-is-not-lost",
        look: latency,
    },
    Check {
        id: "store.clock",
        why: "Limits go by the store's clock: clients are told times that are not theirs, and certificates go by yours.",
        next: "Set both clocks by NTP.",
        see: "decisions/0002-the-stores-clock.md",
        look: clocks,
    },
    Check {
        id: "store.eviction",
        why: "A counter that is evicted is a fresh budget: the limit is admitted anew.",
        next: "Set maxmemory-policy noeviction, and share the server with no cache.",
        see: "operate/redis.md#settings-of-the-server",
        look: eviction,
    },
    Check {
        id: "store.memory",
        why: "When it is full, a server that does not evict takes no writes.",
        next: "Raise maxmemory; a key of rationd takes about 300 bytes.",
        see: "operate/capacity.md#calls-to-the-store",
        look: memory,
    },
    Check {
        id: "store.persistence",
        why: "Counters are gone when the server restarts, and limits are admitted anew.",
        next: "Set appendonly yes, or have a replica take over.",
        see: "operate/redis.md#settings-of-the-server",
        look: persistence,
    },
    Check {
        id: "store.password",
        why: "Whoever reaches the server may change or remove every count.",
        next: "Give rationd a user of its own, and set store.password_file.",
        see: "operate/redis.md#an-acl-user-with-no-more-than-is-needed",
        look: password,
    },
    Check {
        id: "store.tls",
        why: "The password and the counts go over the network as they are.",
        next: "Write rediss:// or rediss-cluster://, and set store.ca.",
        see: "operate/redis.md",
        look: tls,
    },
    Check {
        id: "cluster.slots",
        why: "Keys whose slot nobody owns are decided as without a store.",
        next: "redis-cli --cluster fix, or wait until a replica has taken over.",
        see: "operate/redis.md",
        look: slots,
    },
    Check {
        id: "cluster.replicas",
        why: "When a master without a replica dies, its part of all keys is away until it is back, and its counts are lost.",
        next: "Give each master a replica on another machine.",
        see: "concepts/guarantees.md#what-is-not-covered",
        look: replicas,
    },
    Check {
        id: "cluster.node-timeout",
        why: "So long and a little longer a part of all keys is without a master when one dies.",
        next: "Set cluster-node-timeout 3000.",
        see: "operate/redis.md#settings-of-the-server",
        look: node_timeout,
    },
    Check {
        id: "cluster.coverage",
        why: "All masters stop when one part of the slots has none.",
        next: "Set cluster-require-full-coverage no.",
        see: "operate/redis.md#settings-of-the-server",
        look: coverage,
    },
];

/// The findings about each server that answered.
fn each(
    patient: &Patient,
    wrong: fn(String) -> Look,
    well: impl Into<String>,
    problem: impl Fn(&Survey, &Surveyed) -> Option<String>,
) -> Look {
    let Some(survey) = &patient.store else { return Look::Apart };
    let mut in_touch = survey.servers.iter().filter(|server| server.problem.is_none()).peekable();
    if in_touch.peek().is_none() {
        return Look::Apart;
    }
    let finding = |server: &Surveyed| Some(format!("{}: {}", server.address, problem(survey, server)?));
    Look::none_of(in_touch.filter_map(finding).collect(), wrong, well)
}

/// The same where the store is a cluster.
fn each_of_cluster(patient: &Patient, well: &str, problem: impl Fn(&Survey, &Surveyed) -> Option<String>) -> Look {
    match &patient.store {
        Some(survey) if survey.as_cluster => each(patient, Look::Warning, well, problem),
        _ => Look::Apart,
    }
}

fn number(server: &Surveyed, name: &str) -> Option<u64> {
    server.fact(name)?.parse().ok()
}

fn reachable(patient: &Patient) -> Look {
    let Some(survey) = &patient.store else { return Look::Apart };
    let finding = |server: &Surveyed| Some(format!("{}: {}", server.address, server.problem.as_ref()?));
    let problems: Vec<_> = survey.servers.iter().filter_map(finding).collect();
    // The daemon sends no calls to replicas, so one that is away endangers safety, but not service.
    let is_served = survey.servers.iter().all(|server| server.problem.is_none() || server.is_replica);
    Look::none_of(
        problems,
        if is_served { Look::Warning } else { Look::Fatal },
        format!("{} servers answer", survey.servers.len()),
    )
}

fn kind(patient: &Patient) -> Look {
    each(patient, Look::Fatal, "as store.url says", |survey, server| {
        match (survey.as_cluster, server.fact("redis_mode")?) {
            (false, "cluster") => Some("a server of a cluster, and store.url names a single server".to_owned()),
            (true, "standalone") => Some("a single server, and store.url names a cluster".to_owned()),
            (_, "sentinel") => Some("a Sentinel".to_owned()),
            _ => None,
        }
    })
}

fn role(patient: &Patient) -> Look {
    each(patient, Look::Fatal, "masters are masters", |_, server| {
        let is_wrong = !server.is_replica && server.fact("role") == Some("slave");
        is_wrong.then(|| format!("a replica of {}", server.fact("master_host").unwrap_or("another server")))
    })
}

fn version(patient: &Patient) -> Look {
    let versions = patient.store.iter().flat_map(|survey| &survey.servers).filter_map(|server| {
        server
            .fact("valkey_version")
            .map(|version| format!("Valkey {version}"))
            .or_else(|| server.fact("redis_version").map(|version| format!("Redis {version}")))
    });
    let mut versions: Vec<_> = versions.collect();
    versions.sort();
    versions.dedup();
    let well = if versions.is_empty() { "not told".to_owned() } else { versions.join(", ") };
    each(patient, Look::Fatal, well, |_, server| {
        let version = server.fact("redis_version")?;
        let mut parts = version.split('.').filter_map(|part| part.parse::<u64>().ok());
        let seen = (parts.next()?, parts.next().unwrap_or(0));
        (seen < OLDEST).then(|| format!("version {version}"))
    })
}

fn bits(patient: &Patient) -> Look {
    each(patient, Look::Fatal, "numbers are written whole", |_, server| server.narrow.clone())
}

fn rights(patient: &Patient) -> Look {
    each(patient, Look::Fatal, "all that is used may be used", |_, server| {
        (!server.forbidden.is_empty()).then(|| server.forbidden.join(", "))
    })
}

fn writes(patient: &Patient) -> Look {
    each(patient, Look::Fatal, "a key was written and removed", |_, server| {
        // Replicas, and servers of another kind, are reported by other checks.
        server.unwritable.clone().filter(|_| server.fact("role") != Some("slave"))
    })
}

fn latency(patient: &Patient) -> Look {
    let Some(timeout) = patient.config().map(|config| config.store.timeout) else { return Look::Apart };
    let millis = |time: Micros| format!("{}.{:03} ms", time.0 / 1_000, time.0 % 1_000);
    let trips = patient.store.iter().flat_map(|survey| &survey.servers).filter_map(|server| server.trip);
    let Some(longest) = trips.max() else { return Look::Apart };
    let seen = format!("a trip takes {}, store.timeout is {}", millis(longest), millis(timeout));
    match longest {
        trip if trip >= timeout => Look::Fatal(seen),
        // A call takes one round trip, and two after a redirect or a missing script.
        trip if Micros(trip.0.saturating_mul(2)) >= timeout => Look::Warning(seen),
        _ => Look::Ok(seen),
    }
}

fn clocks(patient: &Patient) -> Look {
    each(patient, Look::Warning, "within a second of this machine's", |_, server| {
        let ahead = server.ahead_ms.filter(|ahead| ahead.abs() > APART_MS)?;
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        Some(format!("{} s {way} this machine's", ahead.abs() / 1_000))
    })
}

fn eviction(patient: &Patient) -> Look {
    let policy =
        |server: &Surveyed| server.fact("maxmemory_policy").filter(|policy| *policy != "noeviction").map(str::to_owned);
    let bounded = |server: &Surveyed| number(server, "maxmemory").is_some_and(|most| most > 0);
    let masters = patient.store.iter().flat_map(|survey| &survey.servers);
    let evicts = masters.into_iter().any(|server| policy(server).is_some() && bounded(server));
    let wrong = if evicts { Look::Fatal } else { Look::Warning };
    each(patient, wrong, "noeviction", |_, server| {
        let when = if bounded(server) { "" } else { ", as soon as somebody sets maxmemory" };
        Some(format!("maxmemory-policy {}{when}", policy(server)?))
    })
}

fn memory(patient: &Patient) -> Look {
    each(patient, Look::Warning, "there is room", |_, server| {
        let (used, most) = (number(server, "used_memory")?, number(server, "maxmemory").filter(|most| *most > 0)?);
        let percent = u128::from(used) * 100 / u128::from(most);
        (percent >= NEARLY_FULL).then(|| format!("{percent} % of maxmemory ({} MiB) are used", most >> 20))
    })
}

fn persistence(patient: &Patient) -> Look {
    each(patient, Look::Warning, "counters outlive a restart", |_, server| {
        let appends = number(server, "aof_enabled")? > 0;
        let followed = number(server, "connected_slaves").is_some_and(|replicas| replicas > 0);
        if appends || followed || server.is_replica {
            return None;
        }
        let saves = server.fact("save").is_some_and(|save| !save.is_empty());
        let seen = if saves { "snapshots only: what came after the last is lost" } else { "nothing is kept on disk" };
        Some(format!("{seen}, and there is no replica"))
    })
}

fn password(patient: &Patient) -> Look {
    each(patient, Look::Warning, "it asks who comes, or nobody else reaches it", |survey, server| {
        (!survey.has_password && !server.is_local).then(|| "takes commands without a password".to_owned())
    })
}

fn tls(patient: &Patient) -> Look {
    each(patient, Look::Warning, "TLS, or it does not leave this machine", |survey, server| {
        (!survey.has_tls && !server.is_local).then(|| "on another machine, without TLS".to_owned())
    })
}

fn slots(patient: &Patient) -> Look {
    let Some(survey) = patient.store.as_ref().filter(|survey| survey.as_cluster) else { return Look::Apart };
    match survey.orphans {
        None => Look::Fatal("no server told who owns which slot".to_owned()),
        Some(0) => Look::Ok("each has an owner".to_owned()),
        Some(count) => Look::Fatal(format!("{count} of 16384 slots have no owner")),
    }
}

fn replicas(patient: &Patient) -> Look {
    each_of_cluster(patient, "each master has one", |_, server| {
        let alone = !server.is_replica && number(server, "connected_slaves")? == 0;
        alone.then(|| "a master without a replica".to_owned())
    })
}

fn node_timeout(patient: &Patient) -> Look {
    each_of_cluster(patient, "5 s at most", |_, server| {
        let timeout = number(server, "cluster-node-timeout").filter(|timeout| *timeout > NODE_TIMEOUT_MS)?;
        Some(format!("cluster-node-timeout {timeout}"))
    })
}

fn coverage(patient: &Patient) -> Look {
    each_of_cluster(patient, "parts fail alone", |_, server| {
        (server.fact("cluster-require-full-coverage")? == "yes").then(|| "cluster-require-full-coverage yes".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[store]\nurl = \"redis://10.0.0.1\"\n[policy.api]\nlimits = [\"1/1s\"]\n";

    /// The word of the check of this name about a server in which only `spoil` is wrong.
    fn said(id: &str, spoil: impl FnOnce(&mut Survey)) -> &'static str {
        let facts = [("redis_version", "7.2.4"), ("redis_mode", "standalone"), ("role", "master")];
        let server = Surveyed {
            address: "10.0.0.1:6379".to_owned(),
            trip: Some(Micros(300)),
            ahead_ms: Some(3),
            facts: facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Surveyed::default()
        };
        let mut survey = Survey { has_password: true, has_tls: true, servers: vec![server], ..Survey::default() };
        spoil(&mut survey);
        let check = CHECKS.iter().find(|check| check.id == id).expect("there is such a check");
        (check.look)(&Patient::of(CONFIG, Some(survey))).word()
    }

    #[test]
    fn what_no_server_of_a_test_can_be_made_to_say_is_found() {
        type Spoil = fn(&mut Survey);
        let fact = |survey: &mut Survey, name: &str, value: &str| {
            survey.servers[0].facts.insert(name.to_owned(), value.to_owned());
        };
        let spoils: [(&str, &str, Spoil); 8] = [
            ("store.version", "fatal", |survey| {
                survey.servers[0].facts.insert("redis_version".to_owned(), "6.0.16".to_owned());
            }),
            ("store.bits", "fatal", |survey| survey.servers[0].narrow = Some("32 bits".to_owned())),
            ("store.latency", "warning", |survey| survey.servers[0].trip = Some(Micros::from_millis(30))),
            ("store.latency", "fatal", |survey| survey.servers[0].trip = Some(Micros::from_millis(50))),
            ("store.clock", "warning", |survey| survey.servers[0].ahead_ms = Some(-2_500)),
            ("store.password", "warning", |survey| survey.has_password = false),
            ("store.tls", "warning", |survey| survey.has_tls = false),
            ("store.kind", "fatal", |survey| {
                survey.servers[0].facts.insert("redis_mode".to_owned(), "sentinel".to_owned());
            }),
        ];
        for (id, word, spoil) in spoils {
            assert_eq!(said(id, |_| ()), "ok", "{id}");
            assert_eq!(said(id, spoil), word, "{id}");
        }
        assert_eq!(said("store.version", |survey| fact(survey, "redis_version", "10.0.1")), "ok");
        assert_eq!(said("store.tls", |survey| (survey.has_tls, survey.servers[0].is_local) = (false, true)), "ok");
    }

    #[test]
    fn what_an_acl_hides_is_not_judged() {
        for check in CHECKS {
            let word = said(check.id, |survey| survey.servers[0].facts.clear());
            assert!(matches!(word, "ok" | "apart"), "{}: {word}", check.id);
        }
    }
}
