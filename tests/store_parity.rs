//! The memory store and the scripts in a real Redis answer alike: random sequences of calls, under
//! injected time.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Grant, JUST_NOW, Known, Occupy, Op, Window};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::Rule;
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;
use rationd::store::redis::evalsha;
use rationd::store::script::{self, Caller as Asked};
use redis::{Connection, Pipeline, Value};
use support::calls::{Caller, Random};
use support::redis_server::RedisServer;

/// Calls to compare; `PARITY_CALLS` and `PARITY_SEED` in the environment ask for more, or others.
const CALLS: u64 = 110_000;
const SEED: u64 = 0x5eed_0002;
/// Batches that were once answered differently, most of them where the limit of a key changes.
const ONCE_BAD: [u64; 8] = [0x5eee_a042, 0x5eed_12c2, 0x5eed_2fd2, 0x10ff, 0x4_d6bd, 0x7_b7f2, 0x9_3d9d, 0x1_ed25];
const BATCH: usize = 240;

/// One call, what the memory store answered, and what Redis has to say.
struct Expected {
    now: Timestamp,
    node: &'static str,
    call: Call,
    grant: Grant,
    /// What is left of the key's life: to be read back from Redis where this call has set it.
    life: Option<Micros>,
    /// It was another before this call.
    is_new: bool,
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Asks the memory store, and writes what to ask Redis into the pipeline. Redis must neither forget
/// by its own clock (PERSIST) nor keep what the memory store has forgotten (DEL).
fn ask(store: &mut MemoryStore, caller: &mut Caller, random: &mut Random, pipe: &mut Pipeline) -> Expected {
    let expires = caller.expires(store);
    let (node, call) = caller.next(random, expires);
    let now = caller.now;
    let key = script::key("parity", call.digest);
    if expires.is_some_and(|at| at <= now) {
        pipe.cmd("DEL").arg(&key).ignore();
    }
    let lived_until = store.expires_at(call.digest);
    let grant = store.call(now, node, &call).expect("the store is large enough");
    caller.answered(node, call.clone(), grant);
    pipe.add_command(evalsha::command(&Asked { prefix: "parity", node, now: Some(now) }, &call, false));
    pipe.cmd("PTTL").arg(&key);
    pipe.cmd("PERSIST").arg(&key).ignore();
    let life = store.expires_at(call.digest).map(|at| at.since(now));
    let is_new = life.is_some() && store.expires_at(call.digest) != lived_until;
    Expected { now, node, call, grant, life, is_new }
}

fn compare(batch: &[Expected], replies: &[Value], seed: u64) {
    assert_eq!(replies.len(), 2 * batch.len());
    for (index, (expected, reply)) in batch.iter().zip(replies.chunks_exact(2)).enumerate() {
        let seen = evalsha::grant(&expected.call, &reply[0]).unwrap_or_else(|error| panic!("{error}"));
        if seen != expected.grant {
            let same_key = |other: &&Expected| other.call.digest == expected.call.digest;
            for before in batch[..=index].iter().filter(same_key).rev().take(12).collect::<Vec<_>>().iter().rev() {
                eprintln!("at {} {} asks {:?}\n  memory: {:?}", before.now.0, before.node, before.call, before.grant);
            }
            panic!("seed {seed:#x}, call {index}\n  redis:  {seen:?}");
        }
        // Redis says how long the key lives on only where this call has said so.
        match (&reply[1], expected.life) {
            (Value::Int(left @ 0..), Some(life)) => {
                let wanted = (life.0 / 1_000) as i64;
                assert!((wanted - 1_000..=wanted).contains(left), "{left} of {wanted} ms to live: {:?}", expected.call);
            }
            (other, _) => assert!(!expected.is_new, "no life was set: {other:?} by {:?}", expected.call),
        }
    }
}

#[test]
fn memory_store_and_scripts_answer_alike() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let (wanted, first_seed) = (setting("PARITY_CALLS", CALLS), setting("PARITY_SEED", SEED));
    let (mut calls, mut granted, mut replayed, mut credited) = (0, 0, 0, 0);
    let mut seeds = ONCE_BAD.into_iter();
    while calls < wanted as usize {
        let seed = seeds.next().unwrap_or(first_seed + calls as u64);
        let mut random = Random(seed);
        // Each key has a clock of its own, and so a store of its own.
        let secret = u128::from(random.next()) << 64 | 1;
        let mut keys = [(); 2].map(|()| (MemoryStore::new(1_000, secret), Caller::new(&mut random)));
        let mut pipe = redis::pipe();
        // A seed that comes twice has the same keys.
        pipe.cmd("FLUSHALL").ignore();
        let mut batch = Vec::new();
        for _ in 0..BATCH {
            let (store, caller) = &mut keys[random.below(2) as usize];
            batch.push(ask(store, caller, &mut random, &mut pipe));
        }
        let replies: Vec<Value> = pipe.query(&mut connection).unwrap_or_else(|error| panic!("seed {seed:#x}: {error}"));
        compare(&batch, &replies, seed);
        calls += batch.len();
        replayed += batch.iter().filter(|one| one.grant.replayed || one.grant.outdated).count();
        let lent = |one: &&Expected| matches!(one.call.op, Op::Acquire(_)) && one.grant.granted > 0;
        granted += batch.iter().filter(lent).count();
        credited += batch.iter().filter(|one| one.grant.granted > 0 && !lent(one)).count();
    }
    println!("{calls} calls answered alike: {granted} lent tokens, {credited} credited some, {replayed} were replays");
    // The calls must not have missed what they are made for.
    assert!(granted > calls / 5 && replayed > calls / 20 && credited > calls / 20);
}

/// Fields of a key and their values, in order.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What Redis has of a key, and how long that lives.
fn state(connection: &mut Connection, key: &str) -> (Fields, i64) {
    // What is no hash is none until something is written.
    let mut fields: Fields = redis::cmd("HGETALL").arg(key).query(connection).unwrap_or_default();
    fields.sort();
    (fields, redis::cmd("PTTL").arg(key).query(connection).expect("a time"))
}

#[test]
fn keys_that_are_asked_for_at_once_are_answered_as_one_by_one() {
    const KEYS: u64 = 8;
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let (mut random, mut joined, mut granted, mut replayed) = (Random(SEED), 0, 0, 0);
    while joined < 4_000 {
        let batch = random.next();
        redis::cmd("FLUSHALL").exec(&mut connection).expect("it is empty");
        // Eight keys, each with a past of its own under one of the same policies, and each under two prefixes.
        let mut shaper = Caller::new(&mut random);
        let digests: Vec<_> = (0..KEYS).map(|key| Digest(u128::from(batch) << 64 | u128::from(key))).collect();
        // Of some batches most keys are new when they are first asked for together, as those of a busy node are.
        let new = if random.percent(50) { 0 } else { 80 };
        for round in 0..12 {
            // A call in turn, or damage; and then one that all of them are asked at once.
            for digest in &digests {
                let (node, call) = shaper.next(&mut random, None);
                if round == 0 && random.percent(new) {
                    continue;
                }
                let call = Call { digest: *digest, ..call };
                let damage = random.percent(3);
                for prefix in ["alone", "joined"] {
                    let key = script::key(prefix, *digest);
                    if damage {
                        redis::cmd("SET").arg(&key).arg("no hash").exec(&mut connection).expect("it is set");
                    } else {
                        let asked = Asked { prefix, node, now: Some(shaper.now) };
                        evalsha::command(&asked, &call, false).query::<Value>(&mut connection).expect("an answer");
                    }
                }
            }
            let (node, call) = shaper.next(&mut random, None);
            let ids = random.below(3);
            let calls = digests.iter().zip(0..).map(|(digest, n)| Call {
                digest: *digest,
                id: call.id + n * ids,
                ..call.clone()
            });
            // Some of them say what they know, and others know nothing.
            let calls = calls.map(|call| match call.op {
                Op::Acquire(ask) if random.percent(40) => {
                    let op = Op::Acquire(Acquire { known: Default::default(), ages: JUST_NOW, ..ask });
                    Call { op, ..call }
                }
                _ => call,
            });
            let calls: Vec<_> = calls.collect();
            let now = Some(shaper.now);
            let asked = |prefix| Asked { prefix, node, now };
            let Some(at_once) = evalsha::command_of_many(&asked("joined"), &calls) else { continue };
            let told: Vec<u8> = at_once.query(&mut connection).expect("an answer");
            for (place, call) in calls.iter().enumerate() {
                let alone: Value =
                    evalsha::command(&asked("alone"), call, false).query(&mut connection).expect("an answer");
                let alone = evalsha::grant(call, &alone).expect("a grant");
                let told = script::answer_at(&told, calls.len(), place).expect("seven numbers for each key");
                let told = script::grant_in(call, told).expect("a grant");
                assert_eq!(told, alone, "batch {batch:#x}, key {place}: {call:?}");
                let [there, here] =
                    ["alone", "joined"].map(|prefix| state(&mut connection, &script::key(prefix, call.digest)));
                assert_eq!(there.0, here.0, "batch {batch:#x}, key {place}: {call:?}");
                assert!((there.1 - here.1).abs() < 2_000, "{} and {} ms to live: {call:?}", there.1, here.1);
                granted += u64::from(alone.granted > 0);
                replayed += u64::from(alone.replayed || alone.outdated);
                shaper.answered(node, call.clone(), alone);
            }
            joined += KEYS;
        }
    }
    assert!(granted > joined / 5 && replayed > joined / 20, "{granted} lent tokens, {replayed} were replays");
}

#[test]
fn an_error_is_of_its_key_alone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let rule = Arc::new(Rule::of("p", &[Limit::parse("5/1h fixed").expect("a limit")]));
    let ask = Acquire {
        need: 1,
        want: 1,
        least: 1,
        window: Window::Current,
        epoch: 0,
        held: 0,
        ages: JUST_NOW,
        known: [Known::default(); MAX_LIMITS],
        until: None,
        claim: None,
    };
    let calls: Vec<_> = (0..3)
        .map(|n| Call {
            id: 10 + n,
            digest: Digest(n.into()),
            rule: rule.clone(),
            op: Op::Acquire(ask),
            sent_at: Instant(0),
        })
        .collect();
    let asked = Asked { prefix: "joined", node: "a", now: None };
    let command = evalsha::command_of_many(&asked, &calls).expect("they are of one kind");
    // The second head is cut short.
    let mut words: Vec<Vec<u8>> = command
        .args_iter()
        .map(|word| match word {
            redis::Arg::Simple(word) => word.to_vec(),
            redis::Arg::Cursor => Vec::new(),
            _ => unreachable!("no other words"),
        })
        .collect();
    let last = words.len() - 1;
    words[last - 1].pop();
    let mut wrong = redis::Cmd::new();
    words.iter().for_each(|word| _ = wrong.arg(&word[..]));
    let mut pipe = redis::pipe();
    pipe.add_command(wrong).ignore_errors();
    let replies: Vec<Value> = pipe.query(&mut connection).expect("an answer");
    let Some(Value::Array(each)) = replies.first() else { panic!("{replies:?}") };
    assert!(matches!(&each[..], [Value::BulkString(_), Value::ServerError(_), Value::BulkString(_)]), "{each:?}");
    for (call, reply) in calls.iter().zip(each) {
        let used = state(&mut connection, &script::key("joined", call.digest)).0.len();
        match reply {
            Value::BulkString(told) => {
                let told = script::answer_alone(told).expect("seven numbers");
                assert_eq!((script::grant(call, &told).expect("a grant").granted, used), (1, 4));
            }
            _ => assert_eq!(used, 0, "nothing was done"),
        }
    }
    // Nothing at all is done where the words are not as many as they say.
    words.pop();
    let mut short = redis::Cmd::new();
    words.iter().for_each(|word| _ = short.arg(&word[..]));
    let error = short.query::<Value>(&mut connection).expect_err("one is missing");
    assert!(error.to_string().contains("wrong arguments"), "{error}");
}

#[test]
fn a_debt_outlasts_other_numbers_and_no_longer_than_its_bucket_takes() {
    const HOUR: u64 = 3_600_000_000;
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let (mut store, mut id) = (MemoryStore::new(10, 1), 0);
    let mut ask = |now: u64, text: &str, tokens: u64| {
        id += 1;
        let (now, need, none) = (Timestamp(now), tokens, Known::default());
        let (rule, digest) = (Arc::new(Rule::of("p", &[Limit::parse(text).expect(text)])), Digest::of("debt", b"k"));
        let ask = Acquire {
            need,
            want: need,
            least: need,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: JUST_NOW,
            known: [none; MAX_LIMITS],
            until: None,
            claim: None,
        };
        let op = if tokens == 0 { Op::Peek } else { Op::Acquire(ask) };
        let call = Call { id, digest, rule, op, sent_at: Instant(0) };
        let here = store.call(now, "a", &call).expect("there is room");
        let asked = Asked { prefix: "debt", node: "a", now: Some(now) };
        let there: Value = evalsha::command(&asked, &call, false).query(&mut connection).expect("an answer");
        assert_eq!(evalsha::grant(&call, &there).expect("a grant"), here, "{text} at {}", now.0);
        (here.granted, here.counters[0].at.0 as i64 - now.0 as i64)
    };
    let (now, hour) = (1_800_000_000_000_000, HOUR as i64);
    assert_eq!(ask(now, "10/1h", 10), (10, hour));
    // Denied, and asked without a charge, under a bucket that fills in six minutes.
    assert_eq!((ask(now, "100/1h burst 10", 1), ask(now, "100/1h burst 10", 0)), ((0, hour), (0, hour)));
    assert_eq!(ask(now + HOUR / 2, "100/1h burst 10", 1), (0, hour / 2));
    // The clock steps back a day: an hour is the longest, whichever bucket asks.
    assert_eq!(ask(now - 24 * HOUR, "100/1h burst 10", 1), (0, hour));
    assert_eq!(ask(now - 48 * HOUR, "10/1h", 1), (0, hour));
    // What is owed fits again into the smaller bucket, and what is charged now is charged to that.
    let later = now - 47 * HOUR;
    assert_eq!(ask(later - HOUR / 10, "100/1h burst 10", 1), (0, hour / 10));
    assert_eq!(ask(later - HOUR / 20, "100/1h burst 10", 5), (5, hour / 10));
    assert_eq!(ask(later - 24 * HOUR, "100/1h burst 10", 1), (0, hour / 10), "a tenth of an hour is the longest");
}

#[test]
fn scripts_of_before_and_after_read_each_others_buckets() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let (digest, now) = (Digest::of("upgrade", b"k"), Timestamp(1_800_000_000_000_000));
    let key = script::key("upgrade", digest);
    let limit = Limit::parse("1/3660d burst 5").expect("a limit");
    let rule = Arc::new(Rule::of("p", &[limit]));
    let peek = |connection: &mut redis::Connection| {
        let call = Call { id: 0, digest, rule: rule.clone(), op: Op::Peek, sent_at: Instant(0) };
        let asked = Asked { prefix: "upgrade", node: "a", now: Some(now) };
        let reply: Value = evalsha::command(&asked, &call, false).query(connection).expect("an answer");
        evalsha::grant(&call, &reply).expect("a grant")
    };
    // As version 0.1 wrote it: nothing of the bucket's depth.
    let hset = |connection: &mut redis::Connection, value: &str| {
        redis::cmd("HSET").arg(&key).arg("e").arg("7").arg("g1").arg(value).exec(connection).expect("a hash");
    };
    hset(&mut connection, &format!("0 0 {}", now.0 + 5_000));
    let grant = peek(&mut connection);
    assert_eq!((grant.damaged, grant.counters[0].at, grant.counters[0].prev), (false, now + Micros(5_000), 0));
    hset(&mut connection, &format!("0 0 {}", now.0 * 4));
    assert_eq!(peek(&mut connection).counters[0].at, now + limit.depth(), "the bucket at hand bounds it");
    let call = Call {
        id: 0,
        digest,
        rule: rule.clone(),
        op: Op::Acquire(Acquire {
            need: 1,
            want: 1,
            least: 1,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: JUST_NOW,
            known: [Known::default(); MAX_LIMITS],
            until: None,
            claim: None,
        }),
        sent_at: Instant(0),
    };
    redis::cmd("DEL").arg(&key).exec(&mut connection).expect("a key");
    let asked = Asked { prefix: "upgrade", node: "a", now: Some(now) };
    evalsha::command(&asked, &call, false).query::<Value>(&mut connection).expect("an answer");
    let written: String = redis::cmd("HGET").arg(&key).arg("g1").query(&mut connection).expect("a field");
    let numbers: Vec<u64> = written.split(' ').map(|number| number.parse().expect("a number")).collect();
    // It refused what was above 2^32 here, and took it for damage.
    assert!(numbers.len() == 3 && numbers[0] <= u32::MAX.into() && numbers[1] <= u32::MAX.into(), "{written}");
    assert_eq!(numbers[1] * 1_000_000 + numbers[0], limit.depth().0);
}

/// A key as the build before left it: node `a` had ordered three tokens of a window and five of a bucket under the id 41,
/// and had one of the bucket charged at once.
#[test]
fn a_key_of_the_build_before_is_read_once_and_rewritten() {
    const MINUTE: u64 = 60_000_000;
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let now = Timestamp(1_800_000_000_000_000);
    let (census, period, ends) = (now.0 / MINUTE, now.0 / 2_000_000, now.0 + MINUTE);
    let cases = [
        ("10/1m fixed", "f1", format!("3 0 {ends}"), format!("{census} 41 3 40 0 0 {ends}"), 3),
        // A token of it is worth six seconds.
        ("10/60s", "g1", format!("0 60 {}", now.0 + 6_000_000), format!("{census} 41 5 40 4 {period} 0"), 5),
    ];
    for (limit, field, counter, record, granted) in cases {
        let digest = Digest::of("upgrade", limit.as_bytes());
        let (key, rule) =
            (script::key("upgrade", digest), Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)])));
        let mut hash = redis::cmd("HSET");
        hash.arg(&key).arg(&["e", "7", "c", &format!("{census} 1 0 1"), field, &counter, "n:a", &record]);
        if field == "g1" {
            hash.arg("o").arg(format!("4 0 {period}"));
        }
        hash.exec(&mut connection).expect("a hash");
        let mut call = |id: u64, op: Op| {
            let call = Call { id, digest, rule: rule.clone(), op, sent_at: Instant(0) };
            let asked = Asked { prefix: "upgrade", node: "a", now: Some(now) };
            let reply: Value = evalsha::command(&asked, &call, false).query(&mut connection).expect("an answer");
            let grant = evalsha::grant(&call, &reply).expect("a grant");
            assert!(!grant.damaged && grant.epoch == 7, "{limit}: {grant:?}");
            grant
        };
        let acquire = |held: u64| {
            let known = [Known::default(); MAX_LIMITS];
            let (window, ages) = (Window::Current, JUST_NOW);
            Op::Acquire(Acquire {
                need: 2,
                want: 5,
                least: 1,
                window,
                epoch: 7,
                held,
                ages,
                known,
                until: None,
                claim: None,
            })
        };
        let again = call(41, acquire(0));
        assert_eq!((again.granted, again.replayed), (granted, true), "{limit}: the answer of then");
        assert!(call(39, acquire(0)).outdated && call(40, Op::Reset).replayed, "{limit}: ids of then");
        let before = call(0, Op::Peek).counters[0];
        // Of the four that were set aside one is held yet: the node has spent three.
        let after = call(42, acquire(1));
        assert_eq!((after.granted, after.nodes), (5, 1), "{limit}");
        match field {
            "f1" => assert_eq!((before.used, after.counters[0].used), (3, 8)),
            _ => assert_eq!(after.counters[0].at, before.at + Micros(6_000_000 * (3 + 2)), "three, and two at once"),
        }
        let written: Vec<u8> = redis::cmd("HGET").arg(&key).arg("n:a").query(&mut connection).expect("a field");
        assert!(written.starts_with(format!("{census}:").as_bytes()), "{limit}: {written:?}");
    }
}

/// With the longest name that a node may have, an id as they are drawn, and counts of several digits.
#[test]
fn a_key_of_one_limit_takes_two_hundred_bytes_in_redis() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let (node, mut id) = (script::name_in_keys(&"n".repeat(128)), 1_800_000_000_123_456);
    for limit in ["1000/60s fixed", "10/60s burst 100", "5000/1h fixed"] {
        let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)]));
        let (digest, known) = (Digest::of("bytes", limit.as_bytes()), [Known::default(); MAX_LIMITS]);
        let mut epoch = 0;
        for tokens in [1, 80] {
            id += 1;
            let (window, ages) = (Window::Current, JUST_NOW);
            let op = Op::Acquire(Acquire {
                need: tokens,
                want: tokens,
                least: 1,
                window,
                epoch,
                held: 0,
                ages,
                known,
                until: None,
                claim: None,
            });
            let call = Call { id, digest, rule: rule.clone(), op, sent_at: Instant(0) };
            let asked = Asked { prefix: "ration", node: &node, now: None };
            let reply: Value = evalsha::command(&asked, &call, false).query(&mut connection).expect("an answer");
            let grant = evalsha::grant(&call, &reply).expect("a grant");
            assert_eq!(grant.granted, tokens, "{limit}");
            epoch = grant.epoch;
            let key = script::key("ration", digest);
            let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(&key).query(&mut connection).expect("a number");
            println!("{limit}, {tokens} lent: {bytes} bytes");
            assert!(bytes <= 200, "{limit}, {tokens} lent: {bytes} bytes");
        }
    }
}

/// What two nodes say of the slots of one key, old words among it.
fn occupy(random: &mut Random, rule: &Arc<Rule>, ids: &mut u64, past: &[Call]) -> Call {
    if !past.is_empty() && random.below(6) == 0 {
        return past[random.below(past.len() as u64) as usize].clone();
    }
    *ids += 1;
    let used = random.below(6);
    let (need, more) = (random.below(3), random.below(8));
    let lease = Micros(random.one_of(&[1_000_000, 2_500_000, 10_000_000]));
    let op = Op::Occupy(Occupy { used, need, want: used + more, lease });
    Call { id: *ids, digest: Digest::of("slots", b"k"), rule: rule.clone(), op, sent_at: Instant(0) }
}

#[test]
fn slots_are_counted_alike() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.load_scripts(&mut connection);
    let (mut lent, mut short, mut overtaken) = (0, 0, 0);
    for seed in 0..60 {
        let mut random = Random(SEED + seed);
        let limit = Limit::parse(&format!("{}/30s concurrent", 1 + random.below(12))).expect("a limit");
        let rule = Arc::new(Rule::of("slots", &[limit]));
        let key = script::key("parity", Digest::of("slots", b"k"));
        let (mut store, mut pipe, mut expected) = (MemoryStore::new(10, 1), redis::pipe(), Vec::new());
        let (mut now, mut ids, mut past) = (Timestamp(1_800_000_000_000_000), 0, [Vec::new(), Vec::new(), Vec::new()]);
        pipe.cmd("DEL").arg(&key).ignore();
        for _ in 0..200 {
            // Exactly onto the ends of leases, too.
            now = now + Micros(random.one_of(&[0, 1, 1_000, 250_000, 1_000_000, 2_500_000, 10_000_000]));
            let index = random.below(3) as usize;
            let node = ["a", "b", "node with spaces"][index];
            let call = occupy(&mut random, &rule, &mut ids, &past[index]);
            past[index].push(call.clone());
            let grant = store.call(now, node, &call).expect("the store is large enough");
            pipe.add_command(evalsha::command(&Asked { prefix: "parity", node, now: Some(now) }, &call, false));
            // Redis must not forget by its own clock.
            pipe.cmd("PERSIST").arg(&key).ignore();
            expected.push((now, node, call, grant));
        }
        let replies: Vec<Value> = pipe.query(&mut connection).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for ((now, node, call, grant), reply) in expected.iter().zip(&replies) {
            let seen = evalsha::grant(call, reply).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(seen, *grant, "seed {seed}, at {} {node} says {:?} under {}", now.0, call.op, call.id);
            let Op::Occupy(ask) = call.op else { continue };
            lent += u64::from(grant.granted > ask.used);
            short += u64::from(grant.granted < ask.want);
            overtaken += u64::from(grant.outdated || grant.replayed);
        }
    }
    assert!(lent > 1_000 && short > 1_000 && overtaken > 1_000, "{lent} {short} {overtaken}");
}

/// What `daemon_seeded` asks the memory store about. It stands here and not beside what it tests, because programs that count what they
/// allocate have that part of the tests, too, and its scripts would be counted.
#[test]
fn another_answer_or_other_remains_of_any_part_of_a_command_are_noticed() {
    use redis_model::keyspace::Keyspace;
    use redis_model::scripts::Scripts;
    use support::opinion::{found, objection};

    const NOW: u64 = 1_800_000_000_000_500;
    let call = |key: u64| {
        let ask = Acquire {
            need: key,
            want: 4,
            least: 0,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: JUST_NOW,
            known: Default::default(),
            until: None,
            claim: None,
        };
        let rule = Arc::new(Rule::of("p", &[Limit::parse("10/1s fixed").expect("a limit")]));
        Call { id: 7, digest: Digest(key.into()), rule, op: Op::Acquire(ask), sent_at: Instant(0) }
    };
    let caller = script::Caller { prefix: "s", node: "n", now: None };
    let command = evalsha::command_of_many(&caller, &[call(1), call(2)]).expect("they are of one kind");
    let word = |word: redis::Arg<&[u8]>| if let redis::Arg::Simple(word) = word { word.to_vec() } else { Vec::new() };
    let words: Vec<Vec<u8>> = command.args_iter().map(word).collect();
    let texts = script::all().map(|script| (script.name, script.text.to_owned()));
    let (mut scripts, mut keyspace) = (Scripts::read(&texts).expect("they are Lua"), Keyspace::default());
    let objections = |keyspace: &Keyspace, told: &[Vec<u8>], more: i64, is_gone: bool| {
        let found = found(&Keyspace::default(), NOW, &words);
        let each = found.into_iter().zip(told).map(|((found, key), told)| {
            let mut numbers = script::answer_alone(told).expect("seven numbers");
            numbers[0] += more;
            let after = keyspace.look(&key, NOW).filter(|_| !is_gone);
            u64::from(objection(found, after, &numbers, NOW).is_some())
        });
        each.sum::<u64>()
    };
    let keys = [1, 2].map(|key| script::key("s", Digest(key)));
    let names = keys.each_ref().map(String::as_str);
    let ran = scripts.run_many(&mut keyspace, script::many().name, &names, NOW, |push| {
        words[5..].iter().for_each(|argument| push(argument));
    });
    let told: Vec<_> = ran.expect("an answer").into_iter().map(|told| told.expect("no error")).collect();
    assert_eq!([objections(&keyspace, &told, 0, false), objections(&keyspace, &told, 1, false)], [0, 2]);
    assert_eq!(objections(&keyspace, &told, 0, true), 2, "nothing was left");
}
