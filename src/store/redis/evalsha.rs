//! The scripts' calls and replies as Redis transfers them: bytes for our own connections, and commands and values of
//! the redis crate.
//!
//! Called by `redis.rs`, and by tests that run scripts over a connection of the crate. Knows no connection.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Value};

use super::reply::text;
use crate::core::call::{Call, Grant};
use crate::store::script::{self, BadReply, Caller, Script};

static HASHES: LazyLock<Vec<(&'static str, String)>> =
    LazyLock::new(|| script::all().into_iter().map(|script| (script.name, hash(script.text))).collect());

/// The SHA1 of a text in hexadecimal.
#[must_use]
pub fn hash(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// The SHA1 of a script's text in hexadecimal, as EVALSHA wants it.
///
/// # Panics
/// Never: every script is hashed.
#[must_use]
pub fn sha(script: &Script) -> &'static str {
    let found = HASHES.iter().find(|(name, _)| *name == script.name);
    &found.expect("every script is hashed").1
}

/// The `EVALSHA` command of a call, or the `EVAL` command with the script's source.
#[must_use]
pub fn command(caller: &Caller<'_>, call: &Call, with_source: bool) -> Cmd {
    let script = Script::of(call);
    let mut command = redis::cmd(if with_source { "EVAL" } else { "EVALSHA" });
    command.arg(if with_source { script.text } else { sha(script) });
    command.arg(1).arg(script::key(caller.prefix, call.digest));
    script::arguments(caller, call, &mut |argument| {
        command.arg(argument);
    });
    command
}

/// Writes the same command as bytes, without building a `Cmd`.
pub(crate) fn write(line: &mut Vec<u8>, caller: &Caller<'_>, call: &Call, with_source: bool) {
    let count = BEFORE_LIMITS + call.rule.limits.len();
    line.push(b'*');
    line.extend_from_slice(decimal(count as u64, &mut [0; 20]));
    line.extend_from_slice(b"\r\n");
    let script = Script::of(call);
    let mut written = 0;
    let mut push = |argument: &[u8]| {
        written += 1;
        bulk(line, argument);
    };
    push(if with_source { b"EVAL" } else { b"EVALSHA" });
    push(if with_source { script.text } else { sha(script) }.as_bytes());
    push(b"1");
    push(script::key(caller.prefix, call.digest).as_bytes());
    script::arguments(caller, call, &mut push);
    debug_assert_eq!(written, count);
}

/// Arguments before the limits: command, script, number of keys, the key, and of the ARGV the node and the call.
const BEFORE_LIMITS: usize = 6;

/// The decimal digits of a number, written to the end of `room`.
fn decimal(mut value: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut first = room.len();
    loop {
        first -= 1;
        room[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &room[first..];
        }
    }
}

fn bulk(line: &mut Vec<u8>, bytes: &[u8]) {
    // Reserves room for the length line, too, so that the buffer grows once.
    line.reserve(bytes.len() + 25);
    line.push(b'$');
    line.extend_from_slice(decimal(bytes.len() as u64, &mut [0; 20]));
    line.extend_from_slice(b"\r\n");
    line.extend_from_slice(bytes);
    line.extend_from_slice(b"\r\n");
}

/// A script that shows how a server writes a large number.
const WRITES: &str = "return string.format('%d', 2 ^ 52)";

/// Commands that load all scripts, then run `WRITES`. Scripts are loaded first, because a call whose script is
/// missing must be sent twice, and later calls of its key would be executed before its second attempt.
#[must_use]
pub fn introduction() -> Pipeline {
    let mut pipeline = Pipeline::new();
    for script in script::all() {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
    }
    pipeline.cmd("EVAL").arg(WRITES).arg(0);
    pipeline
}

/// Checks by the answers to the [`introduction`] that a server does not truncate counters.
///
/// # Errors
/// A server with 32-bit integers, whose scripts write no number above 2^31. A server that refuses to run the check is
/// trusted.
pub fn check_introduction(answers: &[Value]) -> Result<(), String> {
    match answers.last().and_then(text) {
        Some(seen) if seen != (1_u64 << 52).to_string() => Err(format!(
            "its scripts write 2^52 as {seen}: it is a build of 32 bits, where counters would be damaged; \
             use a build of 64 bits"
        )),
        _ => Ok(()),
    }
}

/// The grant in a reply.
///
/// # Errors
/// Anything but the integers that `lua/lib.lua` describes, within their ranges.
pub fn grant(call: &Call, reply: &Value) -> Result<Grant, BadReply> {
    let integer = |item: &Value| match item {
        Value::Int(value) => Some(*value),
        _ => None,
    };
    let integers: Option<Vec<i64>> = match reply {
        Value::Array(items) => items.iter().map(integer).collect(),
        _ => None,
    };
    script::grant(call, &integers.ok_or_else(|| BadReply::new(reply))?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::{Acquire, JUST_NOW, OPEN, Occupy, Op, Voided, Window};
    use crate::core::key::Digest;
    use crate::core::limit::{Limit, MAX_LIMITS};
    use crate::core::policy::Rule;
    use crate::core::time::{Instant, Micros};

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for value in [0, 9, 10, 1_234_567_890, (1 << 53) - 1, u64::MAX] {
            assert_eq!(decimal(value, &mut [0; 20]), value.to_string().as_bytes());
        }
    }

    #[test]
    fn what_is_written_is_what_the_crate_would_pack() {
        let acquire = Acquire {
            need: 1,
            want: u64::MAX,
            least: 0,
            window: Window::Current,
            epoch: 7,
            held: 12,
            ages: JUST_NOW,
            known: Default::default(),
            claim: None,
        };
        let back = Op::Return { amount: 5, epoch: 1, held: 0, voids: Voided::default(), ages: JUST_NOW, windows: OPEN };
        let occupy = Op::Occupy(Occupy { used: 1, need: 2, want: 3, lease: Micros(4) });
        let ops = [Op::Acquire(acquire), back, Op::Peek, Op::Refund { amount: 1, windows: OPEN }, Op::Reset, occupy];
        let caller = Caller { prefix: "ration", node: "n1", now: None };
        for op in ops {
            for count in [1, MAX_LIMITS] {
                let limits: Vec<_> = (0..count).map(|_| Limit::parse("30/60s burst 5").unwrap()).collect();
                let rule = Arc::new(Rule::of("p", &limits));
                let call = Call { id: 1 << 60, digest: Digest(u128::MAX / 3), rule, op, sent_at: Instant(0) };
                for with_source in [false, true] {
                    let mut line = b"before".to_vec();
                    write(&mut line, &caller, &call, with_source);
                    let packed = command(&caller, &call, with_source).get_packed_command();
                    assert_eq!(line[6..], packed, "{op:?} with {count} limits");
                }
            }
        }
    }

    #[test]
    fn every_script_has_its_own_hash() {
        let mut hashes: Vec<_> = script::all().into_iter().map(sha).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 11);
        assert!(hashes.iter().all(|sha| sha.len() == 40));
    }

    #[test]
    fn a_server_of_32_bits_is_refused() {
        let wrote = |text: &str| check_introduction(&[Value::Nil, Value::BulkString(text.into())]);
        assert_eq!(wrote("4503599627370496"), Ok(()));
        assert!(wrote("-2147483648").unwrap_err().contains("32 bits"));
        let denied = redis::parse_redis_value(b"-NOPERM no\r\n").expect("a reply");
        assert_eq!(check_introduction(&[denied]), Ok(()));
    }

    #[test]
    fn a_reply_of_anything_but_integers_is_refused() {
        let rule = Arc::new(Rule::of("p", &[Limit::parse("1/1s fixed").unwrap()]));
        let call = Call { id: 9, digest: Digest(0xab), rule, op: Op::Peek, sent_at: Instant(0) };
        let good = [0, 16, 7, 1_000, 4, 5, 6].map(Value::Int);
        assert!(grant(&call, &Value::Array(good.to_vec())).is_ok());
        assert!(grant(&call, &Value::Nil).is_err());
        assert!(grant(&call, &Value::Array(vec![Value::Nil; 7])).is_err());
    }
}
