//! Foreign values where our hashes should be: taken as missing, told, healed; never an error.

use crate::support;

use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Grant, JUST_NOW, Known, OPEN, Op, Window};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;
use rationd::store::redis::evalsha;
use rationd::store::script::{self, Caller, Script, WIDTH};
use redis::{Connection, RedisResult, Value};
use support::redis_server::RedisServer;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
const KEY: Digest = Digest(7);

/// One limit of each algorithm: fields f1, g2, s3, o4.
const LIMITS: [&str; 4] = ["10/1h fixed", "10/1h", "10/1h sliding", "10/1h fixed from-first"];

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

    fn run<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut self.connection)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn call(&mut self, id: u64, op: Op) -> Grant {
        let call = call(id, op);
        let caller = Caller { prefix: "d", node: "a", now: Some(NOW) };
        let reply: Value = evalsha::command(&caller, &call, false).query(&mut self.connection).expect("no error");
        evalsha::grant(&call, &reply).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Redis {
    /// The script's answer to a node that asks for a token under these limits.
    fn ask(&mut self, limits: &[&str], node: usize, id: u64, now: Timestamp) -> Grant {
        self.does(limits, node, id, acquire(1), now)
    }

    fn does(&mut self, limits: &[&str], node: usize, id: u64, op: Op, now: Timestamp) -> Grant {
        let (call, node) = (call_under(limits, id, op), format!("n{node}"));
        let caller = Caller { prefix: "d", node: &node, now: Some(now) };
        let reply: Value = evalsha::command(&caller, &call, false).query(&mut self.connection).expect("no error");
        evalsha::grant(&call, &reply).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, which the memory store answers as well.
    fn both(&mut self, store: &mut MemoryStore, limits: &[&str], node: usize, id: u64, now: Timestamp) -> Grant {
        self.both_do(store, limits, node, (id, acquire(1)), now)
    }

    fn both_do(
        &mut self,
        store: &mut MemoryStore,
        limits: &[&str],
        node: usize,
        (id, op): (u64, Op),
        now: Timestamp,
    ) -> Grant {
        let grant = self.does(limits, node, id, op, now);
        let own = store.call(now, &format!("n{node}"), &call_under(limits, id, op)).expect("there is room");
        assert_eq!(own, grant, "{limits:?}, n{node}, {op:?}");
        grant
    }
}

fn call(id: u64, op: Op) -> Call {
    call_under(&LIMITS, id, op)
}

fn call_under(limits: &[&str], id: u64, op: Op) -> Call {
    let limits = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
    let rule = Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Share });
    Call { id, digest: KEY, rule, op, sent_at: Instant(0) }
}

fn acquire(tokens: u64) -> Op {
    let known = [Known::default(); MAX_LIMITS];
    Op::Acquire(Acquire {
        need: tokens,
        want: tokens,
        least: 0,
        window: Window::Current,
        epoch: 0,
        held: 0,
        ages: JUST_NOW,
        known,
        until: None,
        claim: None,
    })
}

fn all_ops() -> [Op; 5] {
    let back =
        Op::Return { amount: 1, epoch: 5, held: 0, voids: None, ages: JUST_NOW, windows: [NOW.stored(); MAX_LIMITS] };
    [Op::Peek, back, Op::Refund { amount: 1, epoch: 0, windows: OPEN }, acquire(3), Op::Reset]
}

#[test]
fn key_of_another_type_is_taken_as_missing_and_replaced() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    for make in [["SET", &key, "x"], ["LPUSH", &key, "x"], ["SADD", &key, "x"]] {
        for op in all_ops() {
            redis.run::<()>(&["DEL", &key]);
            redis.run::<()>(&make);
            let grant = redis.call(9, op);
            assert!(grant.damaged, "{make:?} {op:?}");
            if op == acquire(3) {
                assert_eq!((grant.granted, grant.epoch), (3, 9));
                assert!(!redis.call(10, acquire(1)).damaged, "it is healed");
            }
        }
    }
}

#[test]
fn malformed_fields_are_taken_as_missing_and_healed() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let long = "9".repeat(5_000);
    let garbage = [
        "",
        " ",
        "x",
        "-1 0 0",
        "1.5 0 0",
        "1e3 0 0",
        "0x10 0 0",
        "1 2",
        "nan",
        "inf 0 0",
        "9007199254740993 0 0",
        "99999999999999999999 0 0",
        "\u{0}",
        "1 0 0\n",
        long.as_str(),
    ];
    for field in ["e", "z", "c", "n:a", "o", "f1", "g2", "s3", "o4"] {
        for value in garbage {
            for op in all_ops() {
                redis.run::<()>(&["DEL", &key]);
                redis.call(5, acquire(2));
                redis.run::<()>(&["HSET", &key, field, value]);
                let grant = redis.call(9, op);
                assert!(grant.damaged, "{field} = {value:?}, {op:?}");
                if op == acquire(3) {
                    assert_eq!(grant.granted, 3, "{field} = {value:?}");
                    assert!(!redis.call(10, acquire(1)).damaged, "{field} = {value:?} is healed");
                }
            }
        }
    }
}

#[test]
fn counts_and_times_out_of_range_do_no_harm() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let huge = "9007199254740991";
    for (field, value, damaged, granted) in [
        ("f1", format!("9007199254740992 0 {}", NOW.0 + 1), true, 3),
        ("f1", format!("{huge} {huge} {}", NOW.0 + 1), false, 0),
        ("f1", format!("4294967295 0 {}", NOW.0 + 1), false, 0),
        ("f1", format!("10 0 {huge}"), false, 0),
        ("g2", format!("0 0 {huge}"), false, 0),
        ("g2", format!("999999 3599 {huge}"), false, 0),
        ("g2", format!("1000000 0 {}", NOW.0 + 1), true, 3),
        ("g2", format!("0 4294967296 {}", NOW.0 + 1), true, 3),
        ("s3", format!("0 4294967295 {}", NOW.0 / 3_600_000_000 * 3_600_000_000), false, 0),
        ("s3", format!("0 0 {huge}"), false, 3),
        ("o4", format!("0 0 {huge}"), false, 3),
        ("c", format!("{huge} {huge} {huge} {huge}"), false, 3),
        ("n:a", format!("{huge} 0 {huge} 0 {huge} {huge}"), false, 3),
        ("n:a", format!("{huge} 0 {huge} 0"), true, 3),
        ("o", format!("0 0 {huge}"), true, 3),
        ("o", format!("{huge} {huge} 0"), false, 0),
        ("o", format!("4294967295 0 {}", NOW.0 / 2_000_000), false, 0),
    ] {
        redis.run::<()>(&["DEL", &key]);
        redis.call(5, acquire(1));
        redis.run::<()>(&["HSET", &key, field, &value]);
        let grant = redis.call(9, acquire(3));
        assert_eq!((grant.damaged, grant.granted), (damaged, granted), "{field} = {value}");
        let ttl: i64 = redis.run(&["PTTL", &key]);
        assert!((1..=4 * 3_600_000).contains(&ttl), "{field} = {value} lives {ttl} ms");
    }
}

#[test]
fn damaged_record_never_grants_more_than_was_asked_for() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let lent = redis.call(5, acquire(1)).counters.map(|counter| counter.at.0);
    let period = NOW.0 / 2_000_000;
    let at = format!("0 {period} {} 0 {} {}", lent[0], lent[2], lent[3]);
    for (granted, seen) in [("1", 1), ("4294967295", 3), ("9007199254740991", 3)] {
        redis.run::<()>(&["HSET", &key, "n:a", &format!("1 9 {granted} 0 {at}")]);
        let grant = redis.call(9, acquire(3));
        assert_eq!((grant.granted, grant.replayed), (seen, true), "{granted}");
    }
}

#[test]
fn random_bytes_in_every_field_never_make_an_error() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let mut random = support::calls::Random(3);
    let alphabet =
        ["0", "1", "9", " ", "-", ".", "e", "\u{7f}", "18446744073709551616", "4294967295", "1800000000000001"];
    for round in 0..3_000 {
        let mut words = vec!["HSET", &key];
        let values: Vec<String> =
            (0..9).map(|_| (0..random.below(9)).map(|_| random.one_of(&alphabet)).collect()).collect();
        for (field, value) in ["e", "z", "c", "n:a", "o", "f1", "g2", "s3", "o4"].iter().zip(&values) {
            words.extend([field, value.as_str()]);
        }
        redis.run::<()>(&words);
        for op in all_ops() {
            let grant = redis.call(1 + round, op);
            assert!(grant.granted <= 10, "{values:?}: {grant:?}");
        }
    }
}

fn evaluate(redis: &mut Redis, sha: &str, key: &str, arguments: &[Vec<u8>]) -> RedisResult<Value> {
    redis::cmd("EVALSHA").arg(sha).arg(1).arg(key).arg(arguments).query(&mut redis.connection)
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_written() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let mut good = Vec::new();
    let caller = Caller { prefix: "d", node: "a", now: Some(NOW) };
    let call = call(9, acquire(3));
    script::arguments(&caller, &call, &mut |argument| good.push(argument.to_vec()));
    let sha = evalsha::sha(Script::of(&call));
    // Each integer, and the letter of a limit, in its place; the node's name may be anything. Seven bytes say no more than
    // an integer, but they may say too large a one, and be too few or too many.
    let places: Vec<(usize, usize)> = good
        .iter()
        .enumerate()
        .skip(1)
        .flat_map(|(at, argument)| (argument.len() % WIDTH..argument.len()).step_by(WIDTH).map(move |byte| (at, byte)))
        .collect();
    assert_eq!(places.len(), 9 + 4 * 6);
    let mut refused = |at: usize, edited: Vec<u8>, what: &str| {
        let mut arguments = good.clone();
        arguments[at] = edited;
        let reply = evaluate(&mut redis, sha, &key, &arguments);
        let error = reply.expect_err(&format!("{what} in {at} must be refused")).to_string();
        assert!(error.contains("rationd"), "{what} in {at}: {error}");
    };
    for (at, byte) in places {
        for wrong in [1_u64 << 53, (1 << 56) - 1] {
            let mut edited = good[at].clone();
            edited[byte..byte + WIDTH].copy_from_slice(&wrong.to_le_bytes()[..WIDTH]);
            refused(at, edited, &format!("{wrong} at {byte}"));
        }
        let (before, behind) = good[at].split_at(byte);
        refused(at, [before, &behind[WIDTH..]].concat(), "one number too few");
        refused(at, [before, &[0; WIDTH], behind].concat(), "one number too many");
    }
    for (at, argument) in good.iter().enumerate().skip(1) {
        refused(at, argument[..argument.len() - 1].to_vec(), "a byte too few");
        refused(at, [&argument[..], &[0]].concat(), "a byte too many");
        refused(at, Vec::new(), "nothing");
        refused(at, vec![b'0'; 300], "text");
    }
    for (at, limit) in good.iter().enumerate().skip(2) {
        for letter in [0, b'c', b'F', b'1', 255] {
            refused(at, [&[letter], &limit[1..]].concat(), "a letter that is none");
        }
    }
    // Arguments for fewer limits are right ones.
    for length in 0..3 {
        assert!(evaluate(&mut redis, sha, &key, &good[..length]).is_err(), "{length} arguments");
    }
    let nine = [&good[..2], &vec![good[2].clone(); 9]].concat();
    assert!(evaluate(&mut redis, sha, &key, &nine).is_err(), "nine limits");
    assert!(!redis.run::<bool>(&["EXISTS", &key]));
}

/// Where a policy has one limit, that and the numbers of the call are one argument. What is behind those of the acquire itself is read
/// only where a call needs it.
#[test]
fn wrong_arguments_about_one_limit_are_refused_before_anything_is_written() {
    // The limit's, the time and the id, those of the acquire, and two more that are read of a key which nobody knows.
    const READ: usize = 3 + 2 + 5 + 2;
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    for text in ["10/1s", "10/1s fixed"] {
        let rule = Arc::new(Rule::of("p", &[Limit::parse(text).expect(text)]));
        let call = Call { rule, ..call(9, acquire(3)) };
        let (caller, mut good) = (Caller { prefix: "d", node: "a", now: Some(NOW) }, Vec::new());
        script::arguments(&caller, &call, &mut |argument| good.push(argument.to_vec()));
        let sha = evalsha::sha(Script::of(&call));
        let mut refused = |arguments: &[Vec<u8>], what: &str| {
            let error = evaluate(&mut redis, sha, &key, arguments).expect_err(what).to_string();
            assert!(error.contains("rationd"), "{text}, {what}: {error}");
        };
        let numbers = &good[1];
        let with = |numbers: Vec<u8>| [good[0].clone(), numbers];
        for number in 0..READ {
            for wrong in [1_u64 << 53, (1 << 56) - 1] {
                let (mut edited, byte) = (numbers.clone(), 1 + number * WIDTH);
                edited[byte..byte + WIDTH].copy_from_slice(&wrong.to_le_bytes()[..WIDTH]);
                refused(&with(edited), &format!("{wrong} as number {number}"));
            }
        }
        for letter in [0, b'c', b'F', b'1', 255] {
            refused(&with([&[letter], &numbers[1..]].concat()), "a letter that is none");
        }
        for length in [0, 1, numbers.len() - WIDTH, numbers.len() - 1] {
            refused(&with(numbers[..length].to_vec()), "too few bytes");
        }
        refused(&with([&numbers[..], &[0]].concat()), "a byte too many");
        refused(&with([&numbers[..], &[0; WIDTH]].concat()), "a number too many");
        refused(&good[..1], "no numbers");
        refused(&[&good[..], &[b"n:a".to_vec()]].concat(), "an argument too many");
        refused(&[vec![b'n'; 258], numbers.clone()], "a name that is too long");
        assert!(!redis.run::<bool>(&["EXISTS", &key]));
    }
}

/// Two sets of limits, and calls of many nodes under one of them, which are repeated after a call under the other.
const CHANGES: [[&[&str]; 2]; 9] = [
    [&["502/2s burst 502"], &["126/2s burst 126"]],
    [&["9/30s"], &["9/20s"]],
    [&["9/10s fixed"], &["9/11s fixed"]],
    [&["9/2s sliding"], &["9/3s sliding"]],
    [&["9/1s fixed from-first"], &["9/50s fixed from-first"]],
    [&["9/1h fixed"], &["9/1s fixed"]],
    [&["9/1h sliding"], &["9/5s"]],
    [&["9/2s"], &["9/2s fixed"]],
    [&["9/1h fixed", "9/2s sliding"], &["9/1h fixed", "9/3s sliding"]],
];

/// Nodes learn of new limits one after another, and meanwhile both are gone by. Where census periods are as long as others they have
/// other numbers, by which every record of a node that goes by the other limits looked as old as the hills.
#[test]
fn a_repeat_is_not_executed_where_a_node_that_goes_by_other_limits_has_called_meanwhile() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let mut check = |then: &[&str], back: &[&str], begins: Timestamp| {
        let mut store = MemoryStore::new(1_000, 1 << 64 | 1);
        redis.run::<()>(&["FLUSHALL"]);
        for node in 1..=40 {
            redis.both(&mut store, then, node, 7, begins);
        }
        redis.both(&mut store, back, 99, 7, begins + Micros(100_000));
        for node in 1..=40 {
            let grant = redis.both(&mut store, then, node, 7, begins + Micros(999_000));
            assert!(grant.replayed, "{then:?} beside {back:?}, n{node}: {grant:?}");
        }
        // They do go when they are old, though the key is seldom asked for.
        redis.run::<()>(&["PERSIST", &key]);
        for seconds in [200, 5_000] {
            redis.ask(then, 98, seconds, begins + Micros::from_secs(seconds));
        }
        let fields: u64 = redis.run(&["HLEN", &key]);
        assert!(fields < 12, "{then:?} beside {back:?}: {fields} fields are left");
    };
    for [one, other] in CHANGES {
        for begins in [NOW, NOW + Micros(700_000), NOW + Micros(59_500_000)] {
            check(one, other, begins);
            check(other, one, begins);
        }
    }
}

/// A node that has not asked for two census periods may hand back what it holds of a long window, or take back a cost. Its record says
/// which call that was, and was dropped when the next census period began, so that the same call was executed once more.
#[test]
fn what_an_idle_node_hands_back_it_hands_back_once() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    let mut found = Vec::new();
    let long: &[&[&str]] = &[
        &["100/1h fixed"],
        &["100/1h fixed from-first"],
        &["100/1h sliding"],
        &["100/1h burst 100"],
        &["100/1h fixed", "100/1h burst 100"],
        &["100/1h fixed", "50/1s fixed"],
        &["100/1h burst 100", "50/1s fixed"],
    ];
    for limits in long {
        let census = if limits.len() > 1 && limits[1].contains("1s") { 1_000_000 } else { 60_000_000 };
        // It asked this many census periods before, and hands back at the end of one, or comes from nowhere.
        for idle in [1, 2, 3, 7] {
            for (asks, what) in
                [(true, "return"), (true, "refund"), (true, "settle"), (false, "refund"), (true, "reset")]
            {
                let mut store = MemoryStore::new(1_000, 1 << 64 | 1);
                redis.run::<()>(&["FLUSHALL"]);
                let mut lent = redis.both_do(&mut store, limits, 2, (7, acquire(8)), NOW);
                if asks {
                    lent = redis.both_do(&mut store, limits, 1, (7, acquire(8)), NOW);
                }
                for node in 3..=40 {
                    redis.both(&mut store, limits, node, 7, NOW);
                }
                let windows = std::array::from_fn(|at| {
                    let is_window = limits.get(at).is_some_and(|limit| !limit.contains("burst"));
                    is_window.then(|| lent.counters[at].at.stored()).flatten()
                });
                let (epoch, amount) = (lent.epoch, 3);
                let (held, voids, ages) = (0, None, JUST_NOW);
                let op = match what {
                    "return" => Op::Return { amount, epoch, held, voids, ages, windows },
                    "refund" => Op::Refund { amount, epoch: 0, windows: OPEN },
                    // As far as its windows are open.
                    "settle" if census > 1_000_000 => Op::Refund { amount, epoch, windows },
                    "settle" => continue,
                    _ => Op::Reset,
                };
                let back = NOW + Micros(census * (idle + 1) - 1);
                let first = redis.both_do(&mut store, limits, 1, (8, op), back);
                let rolled = redis.both(&mut store, limits, 99, 9, back + Micros(1));
                let again = redis.both_do(&mut store, limits, 1, (8, op), back + Micros(999_999));
                let shown = |grant: &Grant| grant.counters[0];
                if (first.granted > 0 || what == "reset") && !again.replayed {
                    found.push(format!(
                        "{limits:?}, {what} {idle} periods after{}: {:?} {:?} {:?}",
                        if asks { "" } else { " others" },
                        shown(&first),
                        shown(&rolled),
                        shown(&again)
                    ));
                }
                // Records go all the same when they are old.
                redis.run::<()>(&["PERSIST", &key]);
                for seconds in [1_000, 2_000, 3_000] {
                    redis.ask(limits, 98, seconds, NOW + Micros::from_secs(seconds));
                }
                let fields: u64 = redis.run(&["HLEN", &key]);
                assert!(fields < 12, "{limits:?}, {what}: {fields} fields are left");
            }
        }
    }
    assert!(found.is_empty(), "executed twice:\n{}", found.join("\n"));
}

#[test]
fn records_of_nodes_that_left_are_pruned() {
    let mut redis = Redis::start();
    let key = script::key("d", KEY);
    redis.call(1, acquire(0));
    let names: Vec<String> = (0..2_000).map(|n| format!("n:gone-{n}")).collect();
    for name in &names {
        redis.run::<()>(&["HSET", &key, name, "3 1 0 0 0"]);
    }
    let fields = |redis: &mut Redis| redis.run::<u64>(&["HLEN", &key]);
    let mut before = fields(&mut redis);
    redis.run::<()>(&["HSET", &key, "c", "3 1 0 0"]);
    redis.call(2, acquire(0));
    let after = fields(&mut redis);
    assert!((before - 500..before - 400).contains(&after), "{before} fields, then {after}: at most 500 at once");
    for round in 3..9 {
        redis.run::<()>(&["HSET", &key, "c", "3 1 0 0"]);
        redis.call(round, acquire(0));
        assert!(fields(&mut redis) <= before);
        before = fields(&mut redis);
    }
    assert!(before < 60, "{before} fields are left");
}
