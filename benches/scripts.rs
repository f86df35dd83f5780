//! What does Redis spend on a script? `cargo bench --bench scripts`
//!
//! A redis-server of its own runs each script of `lua/` on keys that are new and on keys that it knows, and a plain
//! GCRA check as many applications run it. All take turns, round after round, so that what disturbs the machine
//! disturbs all; medians of what Redis itself counts for EVALSHA are compared. The bytes are those of
//! `MEMORY USAGE` for one key that one node has leased of. Where several keys can be asked for at once, a row says what each of
//! sixteen takes.

use std::sync::Arc;

use rationd::clock;
use rationd::core::call::{Acquire, CALL_LIFE, Call, Claim, Frees, JUST_NOW, Known, OPEN, Op, Window};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros};
use rationd::store::redis::evalsha;
use rationd::store::script::{self, Caller};
use redis::{Cmd, Connection, Pipeline, Value};

#[path = "support/process.rs"]
mod process;

use process::{await_condition, redis_server};

const ROUNDS: usize = 9;
const KEYS: u64 = 2_000;
/// Keys of one call, as a busy node asks for them.
const AT_ONCE: u64 = 16;
/// A node's name as applications have it.
const NODE: &str = "host-17.example:7946";
/// Ids are microseconds since 1970, or more.
const FIRST_ID: u64 = 1_800_000_000_000_000;

/// Limits as applications have them: a bucket and a window, without and with tokens that the store sets aside, a sliding window and one
/// from the first request of which it does, bucket and window, and three.
const LIMITS: [(&[&str], OnStoreLoss); 8] = [
    (&["10/60s burst 100"], OnStoreLoss::Share),
    (&["10/60s burst 100"], OnStoreLoss::Entitled),
    (&["1000/60s fixed"], OnStoreLoss::Share),
    (&["1000/60s fixed"], OnStoreLoss::Entitled),
    (&["1000/60s sliding"], OnStoreLoss::Entitled),
    (&["1000/60s fixed from-first"], OnStoreLoss::Entitled),
    (&["10/60s burst 100", "1000/60s fixed"], OnStoreLoss::Share),
    (&["10/60s burst 100", "1000/60s fixed", "5000/1h sliding"], OnStoreLoss::Share),
];

/// What is asked of a key of that epoch.
type Step = fn(u64) -> Op;

/// A script on keys of one kind, with what it took in each round, in microseconds a call.
struct Row {
    name: String,
    taken: Vec<f64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (_server, socket) = redis_server(None)?;
    let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
    let mut redis = await_condition("redis-server", || client.get_connection().ok())?;
    for script in script::all() {
        redis::cmd("SCRIPT").arg("LOAD").arg(script.text).exec(&mut redis)?;
    }
    let gcra = include_str!("compare/gcra.lua");
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(gcra).query(&mut redis)?;
    let plain =
        |key: u64| redis::cmd("EVALSHA").arg(&sha).arg(1).arg(format!("plain:{key}")).arg(&[100, 10, 60]).clone();

    let node = script::name_in_keys(NODE);
    let caller = Caller { prefix: "bench", node: &node, now: None };
    let (mut rows, mut bytes): (Vec<Row>, Vec<(String, u64)>) = (Vec::new(), Vec::new());
    let mut ids = FIRST_ID..;
    for _ in 0..ROUNDS {
        let mut place = 0;
        let mut note = |name: String, taken: f64| {
            if place == rows.len() {
                rows.push(Row { name, taken: Vec::new() });
            }
            rows[place].taken.push(taken);
            place += 1;
        };
        redis::cmd("FLUSHALL").exec(&mut redis)?;
        for known in ["new key", "known key"] {
            note(format!("plain GCRA, {known}"), measure(&mut redis, plain)?);
        }
        for (limits, on_store_loss) in LIMITS {
            let rule = rule(limits, on_store_loss);
            let said = limits.join(" and ") + if rule.is_entitled() { ", entitled" } else { "" };
            redis::cmd("FLUSHALL").exec(&mut redis)?;
            // A key's epoch is the id of the first order for it.
            let mut epochs = vec![0; KEYS as usize];
            let steps: [(&str, Step); 5] = [
                ("acquire, new key", acquire),
                ("acquire, known key", acquire),
                ("return", give_back),
                ("refund", |_| Op::Refund { amount: 1, epoch: 0, windows: OPEN }),
                ("peek", |_| Op::Peek),
            ];
            for (name, op) in steps {
                let taken = measure(&mut redis, |key| {
                    let id = ids.next().unwrap_or(u64::MAX);
                    let (digest, epoch) = (Digest(u128::from(key)), &mut epochs[key as usize]);
                    let op = claimed(op(*epoch), &rule);
                    let call = Call { id, digest, rule: rule.clone(), op, sent_at: Instant(0) };
                    *epoch = if *epoch == 0 { id } else { *epoch };
                    evalsha::command(&caller, &call, false)
                })?;
                note(format!("{name}, {said}"), taken);
                if name == "acquire, known key" && bytes.len() < LIMITS.len() {
                    let key = script::key(caller.prefix, Digest(0));
                    bytes.push((said.clone(), redis::cmd("MEMORY").arg("USAGE").arg(key).query(&mut redis)?));
                }
            }
            let mut at_once = |first: u64| {
                let calls: Vec<_> = (first * AT_ONCE..(first + 1) * AT_ONCE)
                    .zip(&mut ids)
                    .map(|(key, id)| {
                        let digest = Digest(1 << 64 | u128::from(key));
                        Call { id, digest, rule: rule.clone(), op: claimed(acquire(0), &rule), sent_at: Instant(0) }
                    })
                    .collect();
                evalsha::command_of_many(&caller, &calls)
            };
            if at_once(0).is_some() {
                let taken = measure_some(&mut redis, 1..KEYS / AT_ONCE, 100 / AT_ONCE, |first| {
                    at_once(first).expect("as the first")
                })?;
                note(format!("acquire, each of {AT_ONCE} new keys at once, {said}"), taken / AT_ONCE as f64);
            }
        }
    }
    let reference = median(&rows[1].taken);
    println!("{:<64} {:>9} {:>14}", "script", "us a call", "of plain, known");
    for row in &rows {
        let taken = median(&row.taken);
        println!("{:<64} {taken:>9.1} {:>14.2}", row.name, taken / reference);
    }
    for (limits, bytes) in bytes {
        println!("{bytes} bytes a key in Redis: {limits}, one node");
    }
    Ok(())
}

fn rule(limits: &[&str], on_store_loss: OnStoreLoss) -> Arc<Rule> {
    let limits = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
    Arc::new(Rule { policy: "bench".into(), limits, on_store_loss })
}

/// What an acquire also says where the store sets tokens aside: that this node knows of none yet, and uses some.
fn claimed(op: Op, rule: &Rule) -> Op {
    match op {
        Op::Acquire(order) if rule.is_entitled() => Op::Acquire(Acquire {
            claim: Some(Claim { believes: Some(0), demand: 10, frees: Frees::AtAnyTime, owes: 0 }),
            ..order
        }),
        op => op,
    }
}

/// As a check asks for a key that nothing is held of.
fn acquire(epoch: u64) -> Op {
    let known = [Known::default(); MAX_LIMITS];
    let (window, until) = (Window::Current, (clock::wall() + Micros(CALL_LIFE.0 / 2)).stored());
    Op::Acquire(Acquire {
        need: 1,
        want: 1,
        least: 1,
        window,
        epoch,
        held: 0,
        ages: JUST_NOW,
        known,
        until,
        claim: None,
    })
}

/// As a node gives the rest of a lease back under gcra: it says what it spent.
fn give_back(epoch: u64) -> Op {
    Op::Return { amount: 1, epoch, held: 0, voids: None, ages: JUST_NOW, windows: Default::default() }
}

/// Microseconds that Redis counts for one EVALSHA, when each key is asked for once.
fn measure(redis: &mut Connection, command: impl FnMut(u64) -> Cmd) -> redis::RedisResult<f64> {
    measure_some(redis, 0..KEYS, 100, command)
}

/// The same of as many commands as `places` has, so many in one go: what takes Redis long in one go is what other processes
/// interrupt, and Redis counts that, too.
fn measure_some(
    redis: &mut Connection,
    places: std::ops::Range<u64>,
    in_one_go: u64,
    mut command: impl FnMut(u64) -> Cmd,
) -> redis::RedisResult<f64> {
    redis::cmd("CONFIG").arg("RESETSTAT").exec(redis)?;
    for first in places.clone().step_by(in_one_go as usize) {
        let mut pipeline = Pipeline::new();
        for place in first..places.end.min(first + in_one_go) {
            pipeline.add_command(command(place));
        }
        pipeline.query::<Vec<Value>>(redis)?;
    }
    let counted: String = redis::cmd("INFO").arg("commandstats").query(redis)?;
    let line = counted.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
    let taken = line.split(',').find_map(|part| part.strip_prefix("usec_per_call="));
    Ok(taken.and_then(|text| text.parse().ok()).unwrap_or(f64::NAN))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
