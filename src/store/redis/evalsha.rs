//! The scripts' calls and replies as Redis transfers them: bytes for our own connections, and commands and values of
//! the redis crate.
//!
//! Called by `redis.rs`, and by tests that run scripts over a connection of the crate. Knows no connection.

use redis::{Cmd, Pipeline, Value};

use super::reply::text;
use crate::core::call::{Call, Grant};
use crate::core::key::Digest;
use crate::store::script::{self, BadReply, Caller, Script};

/// The SHA1 of a text in hexadecimal.
#[must_use]
pub fn hash(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// The SHA1 of a script's text in hexadecimal, as EVALSHA wants it.
#[must_use]
pub fn sha(script: &Script) -> &str {
    script.sha.get_or_init(|| hash(script.text))
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

/// The `EVALSHA` command of several calls of one node at once; `None`: they do not say the same of their limit. Its answer is
/// read by [`script::answer_at`].
#[must_use]
pub fn command_of_many(caller: &Caller<'_>, calls: &[Call]) -> Option<Cmd> {
    let script = Script::of_many(calls.first()?)?;
    let arguments = script::arguments_of_many(caller, calls.iter())?;
    let mut command = redis::cmd("EVALSHA");
    command.arg(sha(script)).arg(calls.len());
    calls.iter().for_each(|call| _ = command.arg(script::key(caller.prefix, call.digest)));
    arguments.iter().for_each(|argument| _ = command.arg(&argument[..]));
    Some(command)
}

/// Writes the command of one call as bytes, without building a `Cmd`.
pub(crate) fn write(line: &mut Vec<u8>, caller: &Caller<'_>, call: &Call, with_source: bool) {
    let (script, arguments) = (Script::of(call), script::argument_count(call));
    if with_source {
        length(line, b'*', BEFORE_KEYS + 1 + arguments);
        [b"EVAL", script.text.as_bytes(), b"1"].into_iter().for_each(|argument| bulk(line, argument));
    } else {
        begin(line, script, 1, arguments);
    }
    bulk_key(line, caller.prefix, call.digest);
    script::arguments(caller, call, &mut |argument| bulk(line, argument));
}

/// Writes how an `EVALSHA` command with so many keys and `arguments` behind them begins.
pub(super) fn begin(line: &mut Vec<u8>, script: &Script, keys: usize, arguments: usize) {
    length(line, b'*', BEFORE_KEYS + keys + arguments);
    [EVALSHA, sha(script).as_bytes(), b"\r\n"].into_iter().for_each(|part| line.extend_from_slice(part));
    match keys {
        0..10 => line.extend_from_slice(&[b'$', b'1', b'\r', b'\n', b'0' + keys as u8, b'\r', b'\n']),
        _ => bulk(line, keys.to_string().as_bytes()),
    }
}

/// How each call begins behind its length, up to the hash of the script, which is 40 digits long.
const EVALSHA: &[u8] = b"$7\r\nEVALSHA\r\n$40\r\n";

/// Arguments before the keys: command, script and number of keys.
const BEFORE_KEYS: usize = 3;

/// Writes the line of a length.
fn length(line: &mut Vec<u8>, kind: u8, length: usize) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    match length {
        0..10 => line.extend_from_slice(&[kind, digit(length), b'\r', b'\n']),
        10..100 => line.extend_from_slice(&[kind, digit(length / 10), digit(length), b'\r', b'\n']),
        // Nothing of a call is so long but a long prefix and the source of a script.
        _ => line.extend_from_slice(format!("{}{length}\r\n", char::from(kind)).as_bytes()),
    }
}

pub(super) fn bulk(line: &mut Vec<u8>, bytes: &[u8]) {
    // Reserves room for the length line, too, so that the buffer grows once.
    line.reserve(bytes.len() + 25);
    length(line, b'$', bytes.len());
    line.extend_from_slice(bytes);
    line.extend_from_slice(b"\r\n");
}

/// The key's name as [`script::key`] makes it, without a text of its own.
pub(super) fn bulk_key(line: &mut Vec<u8>, prefix: &str, digest: Digest) {
    let digits = script::digits(digest);
    length(line, b'$', prefix.len() + digits.len() + 3);
    [prefix.as_bytes(), b":{", &digits, b"}\r\n"].into_iter().for_each(|part| line.extend_from_slice(part));
}

/// A script that shows how a server writes a large number.
const WRITES: &str = "return string.format('%d', 2 ^ 52)";

/// Commands that load the scripts that most policies need, then run `WRITES`. Scripts are loaded first, because a call
/// whose script is missing must be sent twice, and later calls of its key would be executed before its second attempt.
/// The first to load a script has Redis compile it, which takes about a millisecond. Their hashes, which take some time, too, are
/// made here, before anybody waits.
#[must_use]
pub fn introduction() -> Pipeline {
    let mut pipeline = Pipeline::new();
    for script in script::usual() {
        let _ = sha(script);
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
    }
    pipeline.cmd("EVAL").arg(WRITES).arg(0);
    pipeline
}

/// The unusual scripts that a connection has loaded.
#[derive(Debug, Default)]
pub(super) struct Loaded(Vec<&'static Script>);

impl Loaded {
    /// Writes the command that loads a script, where this connection has not loaded it; false where it has.
    pub(super) fn load(&mut self, line: &mut Vec<u8>, script: &'static Script) -> bool {
        let is_new = !self.0.iter().any(|loaded| std::ptr::eq(*loaded, script));
        if is_new {
            self.0.push(script);
            length(line, b'*', 3);
            [&b"SCRIPT"[..], b"LOAD", script.text.as_bytes()].into_iter().for_each(|argument| bulk(line, argument));
        }
        is_new
    }
}

/// The command that loads the script for several keys: no single call that is refused brings it along.
pub(super) fn of_many() -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("SCRIPT").arg("LOAD").arg(script::many().text);
    pipeline
}

/// Whether scripts were loaded, by the answers to the commands that load them.
pub(super) fn have_loaded(answers: &[Value]) -> bool {
    !answers.is_empty() && answers.iter().all(|answer| text(answer).is_some())
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
/// Anything but the numbers that `lua/lib.lua` describes, within their ranges.
pub fn grant(call: &Call, reply: &Value) -> Result<Grant, BadReply> {
    match reply {
        Value::BulkString(text) => script::grant_in(call, text),
        _ => Err(BadReply::new(reply)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::{Acquire, JUST_NOW, OPEN, Occupy, Op, Window};
    use crate::core::limit::{Limit, MAX_LIMITS};
    use crate::core::policy::Rule;
    use crate::core::time::{Instant, Micros, Timestamp};

    #[test]
    fn lengths_are_written_in_decimal() {
        for value in [0, 9, 10, 63, 99, 100, 1_234_567_890] {
            let mut line = Vec::new();
            length(&mut line, b'$', value);
            assert_eq!(line, format!("${value}\r\n").as_bytes());
        }
    }

    #[test]
    fn a_prefix_may_be_long() {
        let rule = Arc::new(Rule::of("p", &[Limit::parse("1/1s fixed").unwrap()]));
        let call = Call { id: 9, digest: Digest(0xab), rule, op: Op::Peek, sent_at: Instant(0) };
        for length in [0, 1, 64, 65, 300] {
            let (prefix, mut line) = ("x".repeat(length), Vec::new());
            let caller = Caller { prefix: &prefix, node: "node-1", now: None };
            write(&mut line, &caller, &call, false);
            assert_eq!(line, command(&caller, &call, false).get_packed_command(), "{length}");
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
            until: Timestamp(9).stored(),
            claim: None,
        };
        let back = Op::Return { amount: 5, epoch: 1, held: 0, voids: None, ages: JUST_NOW, windows: OPEN };
        let occupy = Op::Occupy(Occupy { used: 1, need: 2, want: 3, lease: Micros(4) });
        let ops = [
            Op::Acquire(acquire),
            back,
            Op::Peek,
            Op::Refund { amount: 1, epoch: 0, windows: OPEN },
            Op::Reset,
            occupy,
        ];
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
    fn who_is_introduced_has_the_hashes_of_what_most_calls_need() {
        assert!(introduction().len() > script::usual().len());
        assert!(script::usual().iter().all(|script| script.sha.get().is_some()));
    }

    #[test]
    fn every_script_has_its_own_hash() {
        let mut hashes: Vec<_> = script::all().into_iter().map(sha).collect();
        hashes.sort_unstable();
        hashes.dedup();
        // Five in six forms, that of slots, and that of many keys.
        assert_eq!(hashes.len(), 32);
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
    fn a_reply_of_anything_but_numbers_is_refused() {
        let rule = Arc::new(Rule::of("p", &[Limit::parse("1/1s fixed").unwrap()]));
        let call = Call { id: 9, digest: Digest(0xab), rule, op: Op::Peek, sent_at: Instant(0) };
        let good = [0, 16, 7, 1_000, 4, 5, 6];
        let text = script::text_of(&good);
        assert!(grant(&call, &Value::BulkString(text.clone())).is_ok());
        assert!(grant(&call, &Value::Nil).is_err());
        for cut in 0..text.len() {
            assert!(grant(&call, &Value::BulkString(text[..cut].to_vec())).is_err(), "{cut} bytes");
        }
        assert!(grant(&call, &Value::BulkString(text.repeat(100))).is_err());
        // As scripts of an earlier build would answer.
        assert!(grant(&call, &Value::Array(good.map(|number| Value::Int(number as i64)).to_vec())).is_err());
    }
}
