//! The scripts of `lua/`: their texts and hashes, the arguments of a call, and the grant that a reply says.
//!
//! `lib.lua` and `tail.lua`, which the scripts share, are put around each of them; the whole text is hashed and
//! loaded. Arguments are clamped here to what the scripts' numbers hold, below 2^53, so that no valid call is
//! refused. Called by `redis.rs`, which carries the commands, and by simulations, which run the scripts themselves.
//! Knows no connection.

use std::fmt;

use crate::core::call::{Acquire, Call, Counter, Grant, Op};
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::time::Timestamp;

/// The largest integer that the scripts' numbers hold exactly.
const EXACT: u64 = (1 << 53) - 1;

/// Integers of a reply that come before those of the limits.
const HEAD: usize = 7;

/// One script.
#[derive(Debug)]
pub struct Script {
    /// The name of its file, which is also a label of metrics.
    pub name: &'static str,
    /// What `SCRIPT LOAD` takes.
    pub text: &'static str,
}

/// Puts a script together from its files. The first line declares the binary formats of ARGV for `struct.unpack` and
/// their lengths in bytes: of the call (time, id, and so many integers) and of each limit (its kind, three integers,
/// and so many more).
macro_rules! script {
    ($name:literal, $call:literal $call_bytes:literal, $limit:literal $limit_bytes:literal, [$($file:literal),*]) => {
        Script {
            name: $name,
            text: concat!(
                "local HEAD, HEAD_BYTES = '<I7I7", $call, "', 14 + ", $call_bytes, "\n",
                "local LIMIT, LIMIT_BYTES = '<c1I7I7I7", $limit, "', 22 + ", $limit_bytes, "\n",
                $(include_str!(concat!("../../lua/", $file, ".lua")), "\n",)*
            ),
        }
    };
}

static ACQUIRE: Script = script!("acquire", "I7I7I7I7I7I7" 42, "I7I7I7" 21, ["lib", "account", "acquire", "tail"]);
static RETURN: Script = script!("return", "I7I7I7I7I7I7I7I7" 56, "I7I7" 14, ["lib", "account", "return", "tail"]);
static PEEK: Script = script!("peek", "" 0, "" 0, ["lib", "peek", "tail"]);
static REFUND: Script = script!("refund", "I7" 7, "I7" 7, ["lib", "account", "refund", "tail"]);
static RESET: Script = script!("reset", "" 0, "" 0, ["lib", "reset", "tail"]);
/// Permits of concurrent limits are counted without windows or buckets, so this script shares nothing with the
/// others.
static OCCUPY: Script = Script { name: "occupy", text: include_str!("../../lua/occupy.lua") };

/// All scripts, to be loaded on a new connection.
#[must_use]
pub fn all() -> [&'static Script; 6] {
    [&ACQUIRE, &RETURN, &PEEK, &REFUND, &RESET, &OCCUPY]
}

/// The node that asks, and the clock that the script uses.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Prefix of all keys.
    pub prefix: &'a str,
    /// This node's name; the scripts use its first 255 bytes.
    pub node: &'a str,
    /// The time that the script uses, for tests. `None` means the clock of Redis.
    pub now: Option<Timestamp>,
}

/// A reply that none of the scripts would give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadReply {
    /// What was seen.
    pub seen: String,
}

impl BadReply {
    /// Keeps the first 200 characters of the reply.
    #[must_use]
    pub fn new(reply: &dyn fmt::Debug) -> Self {
        let mut seen = format!("{reply:?}");
        if let Some((end, _)) = seen.char_indices().nth(200) {
            seen.truncate(end);
        }
        Self { seen }
    }
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store's script answered {}: wanted {HEAD} integers and 3 per limit; ", self.seen)?;
        write!(f, "is another program writing under this prefix, or a proxy between?")
    }
}

impl std::error::Error for BadReply {}

impl Script {
    /// The script for an operation.
    #[must_use]
    pub fn of(op: &Op) -> &'static Self {
        match op {
            Op::Acquire(_) => &ACQUIRE,
            Op::Return { .. } => &RETURN,
            Op::Peek => &PEEK,
            Op::Refund { .. } => &REFUND,
            Op::Reset => &RESET,
            Op::Occupy(_) => &OCCUPY,
        }
    }
}

/// The name of a key's hash. The digest in it is the hash tag, which chooses the slot in a cluster.
#[must_use]
pub fn key(prefix: &str, digest: Digest) -> String {
    let tag = digits(digest);
    let tag = std::str::from_utf8(&tag).expect("hexadecimal digits are text");
    [prefix, ":{", tag, "}"].concat()
}

/// The 32 hexadecimal digits of a digest. They choose the key's slot in a cluster.
#[must_use]
pub fn digits(digest: Digest) -> [u8; 32] {
    std::array::from_fn(|place| b"0123456789abcdef"[(digest.0 >> (124 - 4 * place) & 15) as usize])
}

/// The ARGV of a call, in order: the node; the time, the id and the integers of the call; then each limit. Numbers
/// are binary, because cutting a decimal number out of a text and converting it costs Redis more time than a whole
/// command.
pub fn arguments(caller: &Caller<'_>, call: &Call, push: &mut dyn FnMut(&[u8])) {
    let mut words = Words::default();
    push(&caller.node.as_bytes()[..caller.node.len().min(255)]);
    words.add_all(&[caller.now.map_or(0, |now| now.0.max(1)), call.id]);
    match &call.op {
        Op::Acquire(ask) => {
            let [need, want, least, held] =
                [ask.need, ask.want, ask.least, ask.held].map(|tokens| tokens.min(MAX_COUNT));
            words.add_all(&[need, want, least, ask.window.on_wire().0, ask.epoch, held]);
        }
        Op::Return { amount, epoch, held, voids, .. } => {
            let [amount, held, need, told, spent] =
                [*amount, *held, voids.need, voids.told, voids.spent].map(|tokens| tokens.min(MAX_COUNT));
            words.add_all(&[amount, *epoch, held, voids.id, need, told, spent, voids.answered]);
        }
        Op::Refund { amount, .. } => words.add((*amount).min(MAX_COUNT)),
        Op::Occupy(ask) => words.add_all(&[ask.used, ask.need, ask.want, ask.lease.0]),
        Op::Peek | Op::Reset => {}
    }
    words.push(push);
    for (index, limit) in call.rule.limits.iter().enumerate() {
        words.write(letter(limit).as_bytes());
        words.add_all(&numbers(limit));
        match &call.op {
            Op::Acquire(Acquire { known, ages, .. }) => {
                words.add_all(&[known[index].used, known[index].at.0, ages[index].0]);
            }
            Op::Return { windows, ages, .. } => words.add_all(&[windows[index].0, ages[index].0]),
            Op::Refund { windows, .. } => words.add(windows[index].0),
            Op::Peek | Op::Reset | Op::Occupy(_) => {}
        }
        words.push(push);
    }
}

/// One argument: a limit's letter, and numbers of seven bytes.
struct Words {
    text: [u8; LONGEST],
    len: usize,
}

/// Bytes of a number in an argument, lowest first: enough for every number below 2^53.
pub const WIDTH: usize = 7;

/// Room for one argument. A return has most numbers, ten.
const LONGEST: usize = 10 * WIDTH;

impl Default for Words {
    fn default() -> Self {
        Self { text: [0; LONGEST], len: 0 }
    }
}

impl Words {
    fn write(&mut self, bytes: &[u8]) {
        self.text[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn add(&mut self, value: u64) {
        self.write(&value.min(EXACT).to_le_bytes()[..WIDTH]);
    }

    fn add_all(&mut self, values: &[u64]) {
        for value in values {
            self.add(*value);
        }
    }

    /// Passes the argument to `push`, and begins the next one.
    fn push(&mut self, push: &mut dyn FnMut(&[u8])) {
        push(&self.text[..self.len]);
        self.len = 0;
    }
}

fn letter(limit: &Limit) -> &'static str {
    match limit.algorithm {
        Algorithm::Gcra => "g",
        Algorithm::Fixed => "f",
        Algorithm::FixedFromFirst => "o",
        Algorithm::Sliding => "s",
        Algorithm::Concurrent => "c",
    }
}

/// The limit's count, period and burst.
fn numbers(limit: &Limit) -> [u64; 3] {
    if limit.algorithm == Algorithm::Gcra {
        let (period, count) = limit.interval();
        [count, period, limit.burst]
    } else {
        [limit.count, limit.period.0, limit.burst]
    }
}

/// Reads the grant from a script's reply, an array of integers.
///
/// # Errors
/// Anything but the integers that `lua/lib.lua` describes, within their ranges.
pub fn grant(call: &Call, reply: &[i64]) -> Result<Grant, BadReply> {
    let mut numbers = [0; HEAD + 3 * MAX_LIMITS];
    let expected = HEAD + 3 * call.rule.limits.len();
    if reply.len() != expected || expected > numbers.len() {
        return Err(BadReply::new(&reply));
    }
    for (number, value) in numbers.iter_mut().zip(reply) {
        *number = u64::try_from(*value).ok().filter(|value| *value <= EXACT).ok_or_else(|| BadReply::new(&reply))?;
    }
    let [granted, replayed, damaged, epoch, reset, nodes, now, ..] = numbers;
    let Ok(nodes) = u32::try_from(nodes) else {
        return Err(BadReply::new(&reply));
    };
    if granted > most(&call.op) || nodes == 0 || replayed > 2 || [damaged, reset].iter().any(|flag| *flag > 1) {
        return Err(BadReply::new(&reply));
    }
    let mut counters = [Counter::default(); MAX_LIMITS];
    for (counter, triple) in counters.iter_mut().zip(numbers[HEAD..expected].chunks_exact(3)) {
        *counter = Counter { used: triple[0], prev: triple[1], at: Timestamp(triple[2]) };
    }
    Ok(Grant {
        granted,
        replayed: replayed == 1,
        outdated: replayed == 2,
        confirmed: true,
        damaged: damaged == 1,
        epoch,
        reset: reset == 1,
        nodes,
        now: Timestamp(now),
        counters,
    })
}

/// The most tokens that a correct answer to this operation may grant.
fn most(op: &Op) -> u64 {
    match op {
        Op::Acquire(ask) => ask.want.max(ask.need),
        Op::Return { amount, .. } => *amount,
        // A node keeps the permits that it already has, even above the limit: its own claim is recorded, so it may be
        // confirmed.
        Op::Occupy(ask) => ask.used.max(ask.want),
        Op::Refund { amount, .. } => *amount,
        Op::Peek | Op::Reset => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::OPEN;
    use crate::core::call::Window;
    use crate::core::policy::{OnStoreLoss, Rule};
    use crate::core::time::Instant;

    fn call(op: Op, limits: &[&str]) -> Call {
        let limits = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
        let rule = Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Share });
        Call { id: 9, digest: Digest(0xab), rule, op, sent_at: Instant(0) }
    }

    /// The arguments as text: the node, then the numbers of each argument, a limit's letter first.
    fn argv(call: &Call) -> Vec<String> {
        let caller = Caller { prefix: "ration", node: "n1", now: None };
        let mut list = Vec::new();
        arguments(&caller, call, &mut |argument| {
            let (letter, numbers) =
                argument.split_at(if list.is_empty() { argument.len() } else { argument.len() % WIDTH });
            let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let words = numbers.chunks(WIDTH).map(|bytes| number(bytes).to_string());
            let letter = String::from_utf8_lossy(letter).into_owned();
            list.push(std::iter::once(letter).chain(words).collect::<Vec<_>>().join(" ").trim().to_owned());
        });
        list
    }

    #[test]
    fn gcra_travels_in_lowest_terms_and_windows_as_written() {
        let seen = argv(&call(Op::Peek, &["30/60s burst 5", "30/60s fixed"]));
        let wanted = ["n1", "0 9", "g 1 2000000 5", "f 30 60000000 30"];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn numbers_beyond_the_scripts_are_clamped() {
        let refund = Op::Refund { amount: u64::MAX, windows: OPEN };
        let mut call = call(refund, &["1/1s"]);
        call.id = u64::MAX;
        assert_eq!(argv(&call)[1], format!("0 {EXACT} {MAX_COUNT}"));
    }

    #[test]
    fn key_has_the_digest_as_its_hash_tag() {
        assert_eq!(key("ration", Digest(0xab)), "ration:{000000000000000000000000000000ab}");
        let digest = Digest(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
        assert_eq!(digits(digest), digest.to_string().as_bytes());
    }

    #[test]
    fn reply_becomes_a_grant() {
        let ask = Acquire {
            need: 2,
            want: 3,
            least: 0,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: crate::core::call::JUST_NOW,
            known: Default::default(),
        };
        let call = call(Op::Acquire(ask), &["1/1s fixed"]);
        let grant = grant(&call, &[3, 1, 0, 77, 1, 2, 1_000, 4, 5, 6]).unwrap();
        assert_eq!((grant.granted, grant.replayed, grant.damaged), (3, true, false));
        assert_eq!((grant.epoch, grant.reset, grant.nodes, grant.now), (77, true, 2, Timestamp(1_000)));
        assert_eq!(grant.counters[0], Counter { used: 4, prev: 5, at: Timestamp(6) });
    }

    #[test]
    fn reply_out_of_its_ranges_is_refused() {
        let call = call(
            Op::Return {
                amount: 5,
                epoch: 1,
                held: 0,
                voids: crate::core::call::Voided::default(),
                ages: crate::core::call::JUST_NOW,
                windows: Default::default(),
            },
            &["1/1s fixed"],
        );
        let good = [5, 0, 0, 7, 0, 1, 1_000, 4, 5, 6];
        assert!(grant(&call, &good).is_ok());
        for (place, value) in [(0, 6), (0, -1), (1, 3), (2, 2), (3, 1 << 53), (4, 3), (5, 0), (5, 1 << 32), (9, -1)] {
            let mut reply = good;
            reply[place] = value;
            assert!(grant(&call, &reply).is_err(), "{value} at {place} was taken");
        }
        assert!(grant(&call, &good[..9]).is_err());
    }
}
