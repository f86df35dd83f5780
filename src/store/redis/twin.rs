//! A stand-in for Redis in this process that executes our scripts and nothing else: it reads their arguments, asks the
//! memory store, and writes their replies.
//!
//! For `rationd demo` on a machine without Redis. The memory store counts as the scripts do, so a fleet behaves with it
//! as with Redis. Commands and replies are bytes here, which the caller receives and sends. Reads arguments as
//! `store/script.rs` writes them. Knows no socket and no clock.

use crate::core::call::{Acquire, Call, Claim, Frees, Grant, Known, Occupy, Op, Voided, Window};
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::policy::{OnStoreLoss, Rule};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::store::memory::MemoryStore;
use crate::store::redis::evalsha;
use crate::store::script::{self, OF_LIMIT, WIDTH};

/// Most keys that are held.
const MOST: usize = 100_000;

/// The answer to `INFO`, which the monitor asks for.
const INFO: &str = "redis_version:7.2.0\r\nredis_mode:standalone\r\nrole:master\r\nconnected_slaves:0\r\n\
                    maxmemory_policy:noeviction\r\n";

/// Bytes of the numbers of an acquire of one limit: the time, its id, seven of its own, and three of the limit.
const ACQUIRE: usize = 12 * WIDTH;

const REFUSED: &[u8] = b"-ERR this server runs rationd's scripts only\r\n";

const FULL: &[u8] = b"-OOM the twin holds as many keys as it may\r\n";

/// The stand-in.
#[derive(Debug)]
pub struct Twin {
    counters: MemoryStore,
    secret: u128,
}

impl Twin {
    /// An empty one. `secret` should be random.
    #[must_use]
    pub fn new(secret: u128) -> Self {
        Self { counters: MemoryStore::new(MOST, secret), secret }
    }

    /// Executes one command at `now`: its reply as bytes.
    pub fn answer(&mut self, now: Timestamp, words: &[&[u8]]) -> Vec<u8> {
        let name = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        match (&*name, words) {
            (b"HELLO", _) => b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec(),
            (b"PING", _) => b"+PONG\r\n".to_vec(),
            (b"INFO", _) => bulk(INFO),
            (b"FLUSHALL", _) => {
                *self = Self::new(self.secret);
                b"+OK\r\n".to_vec()
            }
            (b"SCRIPT", [_, _, text]) => bulk(&evalsha::hash(&String::from_utf8_lossy(text))),
            (b"EVAL" | b"EVALSHA", [_, script, b"1", key, arguments @ ..]) => {
                let call = script_of(script).and_then(|name| read(name, key, arguments));
                match call.map(|(node, call)| self.counters.call(now, &node, &call).map(|grant| (call, grant))) {
                    None => REFUSED.to_vec(),
                    Some(Err(_)) => FULL.to_vec(),
                    Some(Ok((call, grant))) => text(&script::text_of(&numbers(&call, &grant))),
                }
            }
            (b"EVALSHA", [_, script, keys, arguments @ ..]) if *script == evalsha::sha(script::many()).as_bytes() => {
                self.answer_many(now, keys, arguments).unwrap_or_else(|| REFUSED.to_vec())
            }
            // What Redis on a 64-bit machine writes for 2^52: see `evalsha::check_introduction`.
            (b"EVAL", [_, _, b"0"]) => bulk(&(1_u64 << 52).to_string()),
            _ => REFUSED.to_vec(),
        }
    }

    /// The calls of a script command, each with the node that makes it; `None` for any other command.
    #[must_use]
    pub fn calls(words: &[&[u8]]) -> Option<Vec<(String, Call)>> {
        match words {
            [_, script, b"1", key, arguments @ ..] => Some(vec![read(script_of(script)?, key, arguments)?]),
            [_, script, keys, arguments @ ..] if script_of(script) == Some(script::many().name) => {
                read_many(keys, arguments)
            }
            _ => None,
        }
    }

    /// Executes the acquires of several keys in one command, which share their limit.
    fn answer_many(&mut self, now: Timestamp, keys: &[u8], arguments: &[&[u8]]) -> Option<Vec<u8>> {
        let mut answers = Vec::new();
        for (node, call) in read_many(keys, arguments)? {
            let grant = self.counters.call(now, &node, &call);
            answers.push(grant.map(|grant| script::text_of(&numbers(&call, &grant))));
        }
        Some(match answers.iter().cloned().collect::<Result<Vec<_>, _>>() {
            Ok(each) => text(&each.concat()),
            Err(_) => {
                let items = answers.iter().flat_map(|one| one.as_ref().map_or(FULL.to_vec(), |bytes| text(bytes)));
                format!("*{}\r\n", answers.len()).into_bytes().into_iter().chain(items).collect()
            }
        })
    }
}

fn bulk(said: &str) -> Vec<u8> {
    text(said.as_bytes())
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The name of a script by its hash or its text.
fn script_of(word: &[u8]) -> Option<&'static str> {
    let named = |script: &&script::Script| evalsha::sha(script).as_bytes() == word || script.text.as_bytes() == word;
    script::all().into_iter().find(named).map(|script| script.name)
}

/// What a script answers.
fn numbers(call: &Call, grant: &Grant) -> Vec<u64> {
    let replayed = if grant.late {
        3
    } else if grant.outdated {
        2
    } else {
        u64::from(grant.replayed)
    };
    let marks = replayed + 4 * u64::from(grant.damaged) + 8 * u64::from(grant.reset) + 16 * u64::from(grant.nodes);
    let head = [grant.granted, marks, grant.epoch, grant.now.0];
    let counters = grant.counters[..call.rule.limits.len()].iter();
    let entitled = call.sets_aside().then_some(grant.entitled);
    let is_bucket = call.sets_aside() && call.rule.limits[0].algorithm == Algorithm::Gcra;
    let not_kept = is_bucket.then_some(grant.not_kept);
    let counters = counters.flat_map(|c| [c.used, c.prev, c.at.0]);
    head.into_iter().chain(counters).chain(entitled).chain(not_kept).collect()
}

/// The numbers of one argument, in order.
struct Numbers<'a>(std::slice::ChunksExact<'a, u8>);

impl Numbers<'_> {
    fn of(bytes: &[u8]) -> Numbers<'_> {
        Numbers(bytes.chunks_exact(WIDTH))
    }

    fn next(&mut self) -> Option<u64> {
        self.0.next().map(|bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.next().map(Timestamp)
    }

    fn span(&mut self) -> Option<Micros> {
        self.next().map(Micros)
    }
}

/// The node that asks, and its call; `None`: they are not what `script::arguments` writes.
fn read(script: &str, key: &[u8], arguments: &[&[u8]]) -> Option<(String, Call)> {
    let [node, head, rest @ ..] = arguments else { return None };
    let node = node.strip_prefix(b"n:").or_else(|| node.strip_prefix(b"p:"))?;
    let tag = std::str::from_utf8(key).ok()?.rsplit_once('{')?.1.strip_suffix('}')?;
    let digest = Digest(u128::from_str_radix(tag, 16).ok()?);
    let is_entitled = script.contains(" entitled");
    // One limit stands before the numbers of the call, and what the call says of it behind them.
    let is_alone = rest.is_empty() || is_entitled;
    let (alone, head) = if is_alone { head.split_at_checked(OF_LIMIT)? } else { (&[][..], *head) };
    let each = if is_alone { &[alone][..] } else { rest };
    let mut head = Numbers::of(head);
    let (_now, id) = (head.next()?, head.next()?);
    let mut op = read_op(script, &mut head)?;
    if each.is_empty() || each.len() > MAX_LIMITS {
        return None;
    }
    let mut limits = Vec::with_capacity(each.len());
    for (index, argument) in each.iter().enumerate() {
        let (letter, numbers) = argument.split_first()?;
        let mut own = Numbers::of(numbers);
        limits.push(read_limit(*letter, &mut own)?);
        let numbers = if is_alone { &mut head } else { &mut own };
        match &mut op {
            Op::Acquire(ask) => {
                ask.ages[index] = numbers.span()?;
                ask.known[index] = Known { used: numbers.next()?, at: numbers.time()? };
            }
            Op::Return { windows, ages, .. } => {
                (ages[index], windows[index]) = (numbers.span()?, numbers.time()?.stored());
            }
            Op::Refund { windows, .. } => windows[index] = numbers.time()?.stored(),
            Op::Peek | Op::Reset | Op::Occupy(_) => {}
        }
    }
    let on_store_loss = if is_entitled { OnStoreLoss::Entitled } else { OnStoreLoss::Share };
    let rule = Rule { on_store_loss, ..Rule::of("twin", &limits) }.into();
    let node = String::from_utf8_lossy(node).into_owned();
    Some((node, Call { id, digest, rule, op, sent_at: Instant(0) }))
}

/// The same of acquires of so many keys.
fn read_many(keys: &[u8], arguments: &[&[u8]]) -> Option<Vec<(String, Call)>> {
    let keys = std::str::from_utf8(keys).ok()?.parse().ok()?;
    let (keys, [node, limit, heads @ ..]) = arguments.split_at_checked(keys)? else { return None };
    let call = |(key, head): (&&[u8], &&[u8])| {
        // What a call knows of the limit stands behind its numbers, unless that is nothing.
        let mut numbers = [*limit, *head].concat();
        numbers.resize(OF_LIMIT + ACQUIRE, 0);
        read(script::many().name, key, &[node, &numbers])
    };
    keys.iter().zip(heads).map(call).collect()
}

fn read_op(script: &str, head: &mut Numbers<'_>) -> Option<Op> {
    // A script for one limit is called with the same arguments.
    let is_entitled = script.contains(" entitled");
    Some(match script.split(' ').next().unwrap_or(script) {
        "acquire" => Op::Acquire(Acquire {
            need: head.next()?,
            want: head.next()?,
            least: head.next()?,
            window: Window::from_wire(head.next()?),
            held: head.next()?,
            ages: Default::default(),
            known: Default::default(),
            claim: match is_entitled {
                true => Some(Claim {
                    believes: head.next()?.checked_sub(1),
                    demand: head.next()?,
                    frees: Frees::from_wire(head.next()?),
                    owes: if script.ends_with(" bucket") { head.next()? } else { 0 },
                }),
                false => None,
            },
            until: head.time()?.stored(),
            epoch: head.next()?,
        }),
        "return" => Op::Return {
            amount: head.next()?,
            epoch: head.next()?,
            held: head.next()?,
            voids: Some(Voided {
                id: head.next()?,
                need: head.next()?,
                reported: head.next()?,
                spent: head.next()?,
                answered: head.next()?,
            })
            .filter(|voids| voids.id != 0),
            ages: Default::default(),
            windows: Default::default(),
        },
        "refund" => Op::Refund { amount: head.next()?, epoch: head.next()?, windows: Default::default() },
        "occupy" => {
            Op::Occupy(Occupy { used: head.next()?, need: head.next()?, want: head.next()?, lease: head.span()? })
        }
        "peek" => Op::Peek,
        "reset" => Op::Reset,
        _ => return None,
    })
}

/// A limit by its letter, count, period and burst.
fn read_limit(letter: u8, numbers: &mut Numbers<'_>) -> Option<Limit> {
    let (count, period, burst) = (numbers.next()?, numbers.span()?, numbers.next()?);
    let algorithm = match letter {
        b'g' => Algorithm::Gcra,
        b'f' => Algorithm::Fixed,
        b'o' => Algorithm::FixedFromFirst,
        b's' => Algorithm::Sliding,
        b'c' => Algorithm::Concurrent,
        _ => return None,
    };
    Limit::new(count, period, algorithm, burst).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::OPEN;
    use crate::store::script::{Caller, Script};

    fn calls() -> Vec<Call> {
        let limits = ["100/1s fixed", "2/1s burst 7", "9/1h sliding", "3/1m fixed from-first"];
        let mut limits: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect("a limit")).collect();
        // As the scripts are told it: in lowest terms.
        limits[1] = Limit::gcra(1, Micros::from_millis(500), 7).expect("a limit");
        let (mut known, mut ages, mut windows) = ([Known::default(); MAX_LIMITS], [Micros(0); MAX_LIMITS], OPEN);
        for index in 0..limits.len() {
            let n = index as u64 + 1;
            known[index] = Known { used: n, at: Timestamp(10 * n) };
            ages[index] = Micros(100 * n);
            windows[index] = Timestamp(1_000 * n).stored();
        }
        let window = Window::Next { begins: Timestamp(77) };
        let voids = Some(Voided { id: 4, need: 5, reported: 6, spent: 7, answered: 8 });
        let ops = [
            Op::Acquire(Acquire {
                need: 1,
                want: 2,
                least: 3,
                window,
                epoch: 5,
                held: 6,
                ages,
                known,
                until: Timestamp(7).stored(),
                claim: None,
            }),
            Op::Return { amount: 1, epoch: 2, held: 3, voids, ages, windows },
            Op::Peek,
            Op::Refund { amount: 1, epoch: 5, windows },
            Op::Reset,
            Op::Occupy(Occupy { used: 1, need: 2, want: 3, lease: Micros(4) }),
        ];
        let rule = Arc::new(Rule::of("twin", &limits));
        ops.map(|op| Call { id: 1 << 40, digest: Digest(0xab), rule: rule.clone(), op, sent_at: Instant(0) }).into()
    }

    fn words(call: &Call) -> Vec<Vec<u8>> {
        let mut words = vec![
            b"EVALSHA".to_vec(),
            evalsha::sha(Script::of(call)).into(),
            b"1".to_vec(),
            script::key("ration", call.digest).into_bytes(),
        ];
        let caller = Caller { prefix: "ration", node: "n1", now: None };
        script::arguments(&caller, call, &mut |argument| words.push(argument.to_vec()));
        words
    }

    #[test]
    fn a_call_is_read_as_it_was_written() {
        for call in calls() {
            let words = words(&call);
            let arguments: Vec<&[u8]> = words[4..].iter().map(Vec::as_slice).collect();
            let (node, read) = read(Script::of(&call).name, &words[3], &arguments).expect("it is ours");
            let all: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            assert_eq!(Twin::calls(&all).map(|calls| calls[0].1.id), Some(call.id));
            assert_eq!((&*node, read.id, read.digest, read.op), ("n1", call.id, call.digest, call.op));
            assert_eq!(read.rule.limits, call.rule.limits);
        }
    }

    #[test]
    fn it_answers_as_the_memory_store_does() {
        let now = Timestamp(1_700_000_000_000_000);
        let (mut twin, mut counters) = (Twin::new(1), MemoryStore::new(100, 1));
        for call in calls().into_iter().filter(|call| !matches!(call.op, Op::Occupy(_))) {
            let words = words(&call);
            let reply = twin.answer(now, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let value = redis::parse_redis_value(&reply).expect("RESP");
            let wanted = counters.call(now, "n1", &call).expect("there is room");
            assert_eq!(
                evalsha::grant(&call, &value).expect("a grant"),
                Grant { confirmed: true, ..wanted },
                "{call:?}"
            );
        }
    }

    #[test]
    fn several_keys_are_answered_one_after_another() {
        let now = Timestamp(1_700_000_000_000_000);
        let (mut twin, mut counters) = (Twin::new(1), MemoryStore::new(100, 1));
        let mut acquire = calls().swap_remove(0);
        if let Op::Acquire(order) = &mut acquire.op {
            // A call says as much of each limit as its rule has, and that has one here.
            order.ages[1..].fill(Micros::ZERO);
            order.known[1..].fill(Known::default());
        }
        let limit = Limit::parse("100/1s fixed").expect("a limit");
        let rule = Arc::new(Rule::of("twin", &[limit]));
        let calls: Vec<_> =
            (1..4).map(|n| Call { id: n, digest: Digest(n.into()), rule: rule.clone(), ..acquire.clone() }).collect();
        let caller = Caller { prefix: "ration", node: "n1", now: None };
        let command = evalsha::command_of_many(&caller, &calls).expect("they are of one kind");
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(word) => word,
            _ => unreachable!("no other words"),
        });
        let words: Vec<_> = words.collect();
        let reply = twin.answer(now, &words);
        let Ok(redis::Value::BulkString(answer)) = redis::parse_redis_value(&reply) else { panic!("{reply:?}") };
        for (place, call) in calls.iter().enumerate() {
            let wanted = counters.call(now, "n1", call).expect("there is room");
            let (node, read) = &Twin::calls(&words).expect("it is ours")[place];
            assert_eq!((&**node, read.id, read.digest, &read.op), ("n1", call.id, call.digest, &call.op));
            let numbers = script::answer_at(&answer, calls.len(), place).expect("seven numbers");
            assert_eq!(script::grant_in(call, numbers).expect("a grant"), Grant { confirmed: true, ..wanted });
        }
    }

    #[test]
    fn what_is_no_script_of_ours_is_refused() {
        let mut twin = Twin::new(1);
        for words in
            [&[&b"GET"[..], b"k"][..], &[b"EVALSHA", b"0", b"1", b"k"], &[b"EVAL", b"return 1", b"1", b"k"], &[]]
        {
            assert!(twin.answer(Timestamp(1), words).starts_with(b"-ERR"), "{words:?}");
        }
    }
}
