//! A look at all servers of a store, once and for people: what each says of itself, how long a trip takes, and whether
//! the rights of our user are enough.
//!
//! Judges nothing: `rationd doctor` does. Writes one key for each master, under the store's prefix, and removes it. Where
//! an ACL forbids a question, its answer is not known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::address::Address;
use super::dialer::Dialer;
use super::evalsha;
use super::link::{DialOptions, Link};
use super::options::{OptionsError, RedisOptions};
use super::reply::text;
use super::slots::{self, Range, SLOTS, slot_of};
use crate::clock::{self, Clock};
use crate::core::time::Micros;

/// Longest wait for all that one server is asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// Round trips that are measured; the median counts.
const TRIPS: usize = 9;

/// Settings that `INFO` does not tell.
const SETTINGS: [&str; 4] = ["save", "cluster-node-timeout", "cluster-require-full-coverage", "min-replicas-to-write"];

/// Tries on `KEYS[1]` what our scripts do to a key, and removes it: a line for each command that fails, `HSET: why`.
const TRIES: &str = "
local failed = {}
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  if type(reply) == 'table' and reply.err then failed[#failed + 1] = name .. ': ' .. reply.err end
end
local key = KEYS[1]
try('TIME')
try('HSET', key, 'f', '1')
try('PEXPIRE', key, '10000')
try('HMGET', key, 'f')
try('HKEYS', key)
try('HLEN', key)
try('HDEL', key, 'f')
try('DEL', key)
return failed";

/// A script without effect, to see whether scripts may be loaded and called by their hash.
const NOTHING: &str = "return 1";

/// What all servers of a store said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The URL is a cluster's.
    pub as_cluster: bool,
    /// It has a password.
    pub has_password: bool,
    /// Connections to it are TLS.
    pub has_tls: bool,
    /// Masters, and of a cluster its replicas: one at least.
    pub servers: Vec<Surveyed>,
    /// Slots of a cluster that nobody owns; `None`: it did not say.
    pub orphans: Option<usize>,
}

/// What one server said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// Where it is.
    pub address: String,
    /// It is on this machine.
    pub is_local: bool,
    /// The slot map calls it a replica.
    pub is_replica: bool,
    /// Why it could not be asked.
    pub problem: Option<String>,
    /// A round trip.
    pub trip: Option<Micros>,
    /// Its clock less ours, in milliseconds.
    pub ahead_ms: Option<i64>,
    /// Commands that our user may not use, or not on our keys, with what the server said.
    pub forbidden: Vec<String>,
    /// Why it took no write, though our user may.
    pub unwritable: Option<String>,
    /// It is a build whose scripts do not write large numbers: what is wrong.
    pub narrow: Option<String>,
    /// Fields of `INFO`, and settings, by their names there.
    pub facts: BTreeMap<String, String>,
}

impl Surveyed {
    /// A field of its `INFO`, or a setting, by its name there; `None`: it did not say.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.facts.get(name).map(String::as_str)
    }
}

/// Looks at the store that `options` describe. Returns after some seconds, however its servers are. Where there is TLS,
/// [`install_crypto`](super::install_crypto) comes first.
///
/// # Errors
/// The first thing that is wrong with the options.
pub async fn survey(options: &RedisOptions) -> Result<Survey, OptionsError> {
    let target = options.target()?;
    let dialer = Arc::new(target.dialer);
    let ranges = if target.cluster { slot_map(&dialer, &target.seeds).await } else { None };
    let servers = match &ranges {
        Some(ranges) => owners(ranges),
        None => target.seeds.iter().map(|seed| (seed.clone(), Some(Vec::new()))).collect(),
    };
    let mut asked = JoinSet::new();
    for (index, (address, owned)) in servers.into_iter().enumerate() {
        let (dialer, prefix) = (dialer.clone(), options.prefix.clone());
        asked.spawn(async move {
            let mut seen = Surveyed {
                address: address.to_string(),
                is_local: is_local(&address),
                is_replica: owned.is_none(),
                ..Surveyed::default()
            };
            let key = owned.map(|owned| key_within(&prefix, &owned));
            let looked = timeout(PATIENCE, look(&dialer, &address, key, &mut seen)).await;
            let problem = looked.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))).err();
            (index, Surveyed { problem, ..seen })
        });
    }
    let mut servers: Vec<_> = asked.join_all().await;
    servers.sort_by_key(|(index, _)| *index);
    let owned = |ranges: &Vec<Range>| {
        let mut owned = vec![false; SLOTS];
        ranges.iter().for_each(|range| owned[usize::from(range.first)..=usize::from(range.last)].fill(true));
        owned.iter().filter(|owned| !**owned).count()
    };
    Ok(Survey {
        as_cluster: target.cluster,
        has_password: dialer.password.is_some(),
        has_tls: dialer.tls.is_some(),
        orphans: ranges.as_ref().map(owned),
        servers: servers.into_iter().map(|(_, server)| server).collect(),
    })
}

/// The slot map as the first seed that knows it tells it.
async fn slot_map(dialer: &Dialer, seeds: &[Address]) -> Option<Vec<Range>> {
    for seed in seeds {
        let asked = timeout(PATIENCE, async {
            let link = dial(dialer, seed).await.ok()?;
            let mut question = Pipeline::new();
            question.cmd("CLUSTER").arg("SLOTS");
            slots::parse(link.send_all(&question).await.ok()?.pop()?, seed)
        });
        if let Ok(Some(ranges)) = asked.await {
            return Some(ranges);
        }
    }
    None
}

/// First and last slot of each range that a server owns; `None`: it is a replica.
type Owned = Option<Vec<(u16, u16)>>;

/// The masters with the slots of each, and the replicas without.
fn owners(ranges: &[Range]) -> Vec<(Address, Owned)> {
    let mut masters: BTreeMap<Address, Vec<(u16, u16)>> = BTreeMap::new();
    let mut replicas: Vec<Address> = Vec::new();
    for range in ranges {
        masters.entry(range.master.clone()).or_default().push((range.first, range.last));
        replicas.extend(range.replicas.iter().cloned());
    }
    replicas.sort();
    replicas.dedup();
    let masters = masters.into_iter().map(|(address, owned)| (address, Some(owned)));
    masters.chain(replicas.into_iter().map(|address| (address, None))).collect()
}

fn is_local(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Tcp(host, _) => {
            **host == *"localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
    }
}

/// A key of ours that nobody uses, in one of these ranges of slots if there are any.
fn key_within(prefix: &str, owned: &[(u16, u16)]) -> String {
    let draw = clock::unguessable();
    let mut keys = (0..u128::MAX).map(|step| format!("{prefix}:{{{:032x}}}", draw.wrapping_add(step)));
    let fits = |key: &String| {
        let slot = slot_of(key.as_bytes());
        owned.is_empty() || owned.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    };
    keys.find(fits).expect("each slot has keys without end")
}

async fn dial(dialer: &Dialer, address: &Address) -> Result<Link, String> {
    let making = DialOptions { dialer, clock: Clock::start(), generation: 0, confirming: None };
    Link::dial(making, address, |_, _| ()).await
}

async fn look(dialer: &Dialer, address: &Address, key: Option<String>, seen: &mut Surveyed) -> Result<(), String> {
    let link = dial(dialer, address).await?;
    let ask = async |pipeline: &Pipeline| link.send_all(pipeline).await.map_err(|_| "the connection broke".to_owned());
    let one = |words: &[&str]| {
        let mut pipeline = Pipeline::new();
        let (name, arguments) = words.split_first().expect("a command has a name");
        pipeline.cmd(name).arg(arguments);
        pipeline
    };
    let clock = Clock::start();
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let left = clock.now();
        let pong = ask(&one(&["PING"])).await?;
        trips.push(clock.now().since(left));
        note(seen, "PING", &pong);
    }
    trips.sort_unstable();
    seen.trip = trips.get(TRIPS / 2).copied();
    let info = ask(&one(&["INFO"])).await?;
    note(seen, "INFO", &info);
    let fields = info.first().and_then(text);
    let fields = fields.iter().flat_map(|info| info.lines()).filter_map(|line| line.trim().split_once(':'));
    seen.facts.extend(fields.map(|(name, value)| (name.to_owned(), value.to_owned())));
    for name in SETTINGS {
        let answer = ask(&one(&["CONFIG", "GET", name])).await?;
        seen.facts.extend(answer.first().and_then(setting).map(|value| (name.to_owned(), value)));
    }
    let left = clock::wall();
    let time = ask(&one(&["TIME"])).await?;
    let ours = left.0 + clock::wall().0.saturating_sub(left.0) / 2;
    seen.ahead_ms = time
        .first()
        .and_then(micros)
        .map(|theirs| (i128::from(theirs) - i128::from(ours)) / 1_000)
        .and_then(|millis| i64::try_from(millis).ok());
    let Some(key) = key else { return Ok(()) };
    for words in [&["SCRIPT", "LOAD", NOTHING][..], &["EVALSHA", &evalsha::hash(NOTHING), "0"], &["WAIT", "0", "1"]] {
        let answer = ask(&one(words)).await?;
        note(seen, words[0], &answer);
    }
    let tried = ask(&one(&["EVAL", TRIES, "1", &key])).await?;
    note(seen, "EVAL", &tried);
    if let Some(Value::Array(failed)) = tried.first() {
        for line in failed.iter().filter_map(text) {
            sort_out(seen, &line);
        }
    }
    let introduced = ask(&evalsha::introduction()).await?;
    seen.narrow = evalsha::check_introduction(&introduced).err();
    Ok(())
}

/// Notes an error reply to a command.
fn note(seen: &mut Surveyed, command: &str, answers: &[Value]) {
    if let Some(Value::ServerError(error)) = answers.first() {
        sort_out(seen, &format!("{command}: {} {}", error.code(), error.details().unwrap_or_default()));
    }
}

/// A line that tells of a failed command: for want of rights, or because the server takes no writes.
fn sort_out(seen: &mut Surveyed, line: &str) {
    // Redis 7 leaves the code away where a script asked.
    let is_forbidden = ["NOPERM", "The user executing the script", "can't run this command", "no permissions"];
    if is_forbidden.iter().any(|sign| line.contains(sign)) {
        if !seen.forbidden.iter().any(|known| known == line) {
            seen.forbidden.push(line.to_owned());
        }
    } else {
        seen.unwritable.get_or_insert_with(|| line.to_owned());
    }
}

/// The value in the reply to a `CONFIG GET` of one name, in RESP2's or RESP3's shape.
fn setting(reply: &Value) -> Option<String> {
    let value = match reply {
        Value::Map(pairs) => &pairs.first()?.1,
        Value::Array(items) => items.get(1)?,
        _ => return None,
    };
    text(value).map(std::borrow::Cow::into_owned)
}

/// What `TIME` says, in microseconds.
fn micros(reply: &Value) -> Option<u64> {
    let Value::Array(parts) = reply else { return None };
    let part = |index: usize| parts.get(index).and_then(text)?.parse::<u64>().ok();
    part(0)?.checked_mul(1_000_000)?.checked_add(part(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_master_is_in_its_slots() {
        let key = key_within("ration", &[(7, 7), (16_000, 16_001)]);
        assert!(key.starts_with("ration:{") && [7, 16_000, 16_001].contains(&slot_of(key.as_bytes())), "{key}");
    }

    #[test]
    fn want_of_rights_is_told_apart_from_a_server_that_takes_no_writes() {
        let mut seen = Surveyed::default();
        for line in [
            "HSET: NOPERM this user has no permissions to run the 'hset' command",
            "HSET: ERR The user executing the script can't access at least one of the keys",
            "EVAL: OOM command not allowed when used memory > 'maxmemory'.",
        ] {
            sort_out(&mut seen, line);
        }
        assert_eq!(seen.forbidden.len(), 2, "{seen:?}");
        assert!(seen.unwritable.is_some_and(|line| line.starts_with("EVAL: OOM")));
    }
}
