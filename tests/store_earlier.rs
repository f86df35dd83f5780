//! A rolling upgrade loses nothing: today's scripts read the keys that earlier ones have written, on a real redis-server, and
//! answer about them as those would have.
//!
//! `tests/earlier/make` has made the dumps, with the scripts of the last commit that wrote records as text, and noted what
//! those scripts answered.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Counter, Grant, JUST_NOW, Known, Occupy, Op, Window};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::redis::evalsha;
use rationd::store::script::{self, Caller};
use redis::{Connection, Value};
use support::redis_server::RedisServer;
use support::skip::skipped;

const MADE: &str = include_str!("earlier/text_records.txt");

/// When the dumps were made, by the clock that the scripts were told.
const NOW: u64 = 1_800_000_000_000_000;

/// A key of the file, and what was answered about it.
struct Key {
    digest: Digest,
    rule: Arc<Rule>,
    lives_ms: u64,
    dump: Vec<u8>,
    /// Before anything else, to node b, by a script that writes nothing; a concurrent limit has none.
    peeked: Option<Vec<u64>>,
    /// To the last call of node a, which came once more, and to its next one.
    calls: [(Vec<u64>, Vec<u64>); 2],
}

fn keys() -> Vec<Key> {
    let mut lines = MADE.lines().filter(|line| !line.starts_with('#')).peekable();
    let mut keys = Vec::new();
    while let Some(line) = lines.next() {
        let [name, limits, lives, dump] = fields(line.strip_prefix("key ").expect("a key"));
        let limits = limits.split(", ").map(|text| Limit::parse(text).expect(text)).collect();
        let rule = Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Share });
        let peeked = lines.next_if(|line| line.starts_with("peeked ")).map(|line| numbers(&line[7..], ','));
        let mut call = |what: &str| {
            let [asked, answered] = fields(lines.next().and_then(|line| line.strip_prefix(what)).expect(what));
            (numbers(asked, ' '), numbers(answered, ','))
        };
        let calls = [call("again "), call("next ")];
        let digest = Digest(name.parse().expect("a number"));
        let byte = |at: usize| u8::from_str_radix(&dump[at..at + 2], 16).expect("hexadecimal digits");
        let dump = (0..dump.len()).step_by(2).map(byte).collect();
        keys.push(Key { digest, rule, lives_ms: lives.parse().expect("milliseconds"), dump, peeked, calls });
    }
    keys
}

fn fields<const COUNT: usize>(line: &str) -> [&str; COUNT] {
    let fields: Vec<_> = line.split(" | ").collect();
    fields.try_into().unwrap_or_else(|fields| panic!("{fields:?}"))
}

fn numbers(text: &str, between: char) -> Vec<u64> {
    text.split(between).map(|word| word.parse().unwrap_or_else(|_| panic!("{text}"))).collect()
}

struct Redis {
    connection: Connection,
    _server: RedisServer,
}

impl Redis {
    fn start() -> Self {
        let server = RedisServer::start();
        let mut connection = server.connect();
        server.load_scripts(&mut connection);
        Self { connection, _server: server }
    }

    /// Puts a key where it was, for as long as it had left; false where the server is older than the one that made the dump.
    fn restore(&mut self, key: &Key) -> bool {
        let name = script::key("d", key.digest);
        let restored: Result<(), _> =
            redis::cmd("RESTORE").arg(name).arg(key.lives_ms).arg(&key.dump).arg("REPLACE").query(&mut self.connection);
        match restored {
            Ok(()) => true,
            Err(error) if error.to_string().contains("version") => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn call(&mut self, key: &Key, node: &str, later: u64, id: u64, op: Op) -> Grant {
        let call = Call { id, digest: key.digest, rule: key.rule.clone(), op, sent_at: Instant(0) };
        let caller = Caller { prefix: "d", node, now: Some(Timestamp(NOW + later)) };
        let reply: Value = evalsha::command(&caller, &call, false).query(&mut self.connection).expect("no error");
        evalsha::grant(&call, &reply).unwrap_or_else(|error| panic!("{error}"))
    }

    fn repeat(&mut self, key: &Key, later: u64, asked: &[u64]) -> Grant {
        self.call(key, "a", later, asked[0], op(&key.rule, asked))
    }

    /// What stands in a field, as text.
    fn field(&mut self, key: &Key, name: &str) -> Option<String> {
        let field: Option<Vec<u8>> =
            redis::cmd("HGET").arg(script::key("d", key.digest)).arg(name).query(&mut self.connection).expect("a hash");
        field.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn lives_us(&mut self, key: &Key) -> u64 {
        let left: u64 =
            redis::cmd("PTTL").arg(script::key("d", key.digest)).query(&mut self.connection).expect("it lives");
        left * 1_000
    }
}

/// The call that the file has so: an acquire, or of a concurrent limit what is occupied.
fn op(rule: &Rule, asked: &[u64]) -> Op {
    if rule.is_concurrent() {
        return Op::Occupy(Occupy { used: asked[1], need: asked[2], want: asked[3], lease: Micros::from_secs(60) });
    }
    Op::Acquire(Acquire {
        need: asked[1],
        want: asked[2],
        least: 0,
        window: Window::Current,
        epoch: 0,
        held: asked.get(3).copied().unwrap_or(0),
        ages: JUST_NOW,
        known: [Known::default(); MAX_LIMITS],
        until: None,
        claim: None,
    })
}

/// An answer as the scripts of then wrote it: granted, replayed, damaged, epoch, reset, nodes, now, and three numbers of each limit.
fn as_then(grant: &Grant, rule: &Rule) -> Vec<u64> {
    let [replayed, damaged, reset] = [grant.replayed, grant.damaged, grant.reset].map(u64::from);
    let mut numbers = vec![grant.granted, replayed, damaged, grant.epoch, reset, grant.nodes.into(), grant.now.0];
    let counters = grant.counters.iter().take(rule.limits.len());
    // Of slots the scripts of then did not say how many the node had before.
    let prev = |counter: &Counter| if rule.is_concurrent() { 0 } else { counter.prev };
    numbers.extend(counters.flat_map(|counter| [counter.used, prev(counter), counter.at.0]));
    numbers
}

#[test]
fn records_that_were_text_say_what_they_said() {
    let mut redis = Redis::start();
    for key in keys() {
        if !redis.restore(&key) {
            return skipped("store_earlier", "RESTORE refuses the dump", "a redis-server of 7.0 or later");
        }
        let (rule, [again, next]) = (key.rule.clone(), &key.calls);
        let what = format!("key {}, {:?}", key.digest.0, rule.limits);
        let own = if rule.is_concurrent() { "p:a" } else { "n:a" };
        let is_text = |record: &str| record.split(' ').all(|word| word.parse::<u64>().is_ok());
        let of_other = own.replace('a', "b");
        let [record, other] = [own, &of_other].map(|name| redis.field(&key, name));
        assert!(record.as_deref().is_some_and(is_text), "{what}: {record:?}");

        if let Some(peeked) = &key.peeked {
            assert_eq!(as_then(&redis.call(&key, "b", 2_000, 0, Op::Peek), &rule), *peeked, "{what}: a peek");
        }
        assert_eq!(as_then(&redis.repeat(&key, 3_000, &again.0), &rule), again.1, "{what}: what was asked for before");
        let granted = redis.repeat(&key, 4_000, &next.0);
        assert_eq!(as_then(&granted, &rule), next.1, "{what}: what is asked for next");

        // The node's own record is today's from then on, the other's is as it was, and the key lives until it says nothing.
        assert_eq!(redis.field(&key, &of_other), other, "{what}");
        let record = redis.field(&key, own).expect("it was written");
        assert!(is_text(&record) == rule.is_concurrent(), "{what}: {record:?}");
        let replayed = redis.repeat(&key, 5_000, &next.0);
        assert_eq!((replayed.replayed, replayed.granted), (true, granted.granted), "{what}: {record:?}");
        let ends = granted.counters.iter().map(|counter| counter.at.0.saturating_sub(NOW)).max();
        assert!(Some(redis.lives_us(&key)) >= ends.map(|ends| ends.saturating_sub(1_000_000)), "{what}");
    }
}

/// Scripts for tokens that are set aside read the same records, if a policy comes to set some aside with the upgrade.
#[test]
fn records_that_were_text_say_the_same_where_tokens_are_set_aside() {
    let (mut redis, mut read) = (Redis::start(), 0);
    for mut key in keys() {
        let (limits, policy) = (key.rule.limits.clone(), key.rule.policy.clone());
        key.rule = Arc::new(Rule { policy, limits, on_store_loss: OnStoreLoss::Entitled });
        if !key.rule.is_entitled() {
            continue;
        }
        if !redis.restore(&key) {
            return skipped("store_earlier", "RESTORE refuses the dump", "a redis-server of 7.0 or later");
        }
        let (asked, answered) = &key.calls[0];
        assert_eq!(as_then(&redis.repeat(&key, 3_000, asked), &key.rule), *answered, "key {}", key.digest.0);
        read += 1;
    }
    assert_eq!(read, 4, "three buckets and a window of a minute");
}
