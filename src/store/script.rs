//! The scripts of `lua/`: their texts, the arguments of a call, and the grant that a reply describes.
//!
//! The text of each script begins and ends with files that all of them share, and is written in several forms: for one
//! limit, which most policies have, for several, and for one limit of each kind of which tokens are set aside. Numbers
//! are clamped here to what the scripts take, below 2^53, so that no valid call is refused. Called by `redis.rs`, which
//! sends the commands, and by the simulations, which run the scripts themselves; knows no connection.

use std::fmt;
use std::sync::{LazyLock, OnceLock};

use super::form::{Form, written};
use super::words::{EXACT, LONGEST_NODE, Words};
pub use super::words::{WIDTH, numbers_in, text_of};
use crate::core::call::{Acquire, Call, Counter, Grant, Op, Voided};
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::time::{StoredTime, Timestamp};

/// Numbers of a reply that come before those of the limits.
const HEAD: usize = 4;

/// Most numbers of a reply.
const MOST_NUMBERS: usize = HEAD + 3 * MAX_LIMITS;

/// One script.
#[derive(Debug)]
pub struct Script {
    /// Its name: that of its file, and whether it is for one limit.
    pub name: &'static str,
    /// What `SCRIPT LOAD` takes.
    pub text: &'static str,
    /// The SHA1 of the text, once somebody has needed it.
    pub sha: OnceLock<String>,
}

impl Script {
    /// Of that name and text.
    #[must_use]
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, sha: OnceLock::new() }
    }
}

/// A script as its files have it. [`written`] makes its text in each [`Form`].
#[derive(Debug)]
struct Source {
    /// The name of its file, and of the script for several limits.
    name: &'static str,
    /// The name of the script for one limit.
    name_of_one: &'static str,
    /// The name of the script for one fixed limit of which tokens are set aside.
    name_entitled: &'static str,
    /// The same for one sliding limit.
    name_sliding: &'static str,
    /// The same for one limit whose windows open with the first request.
    name_opened: &'static str,
    /// The same for one bucket.
    name_bucket: &'static str,
    /// Its files, one behind the other.
    text: &'static str,
}

/// A script of these files. In its first lines stand the formats of what ARGV has, and how many bytes they are: time, id
/// and so many integers of the call; of each limit its kind, three integers and so many more; and all of this in one text,
/// the limit first, as a script for one limit has it.
macro_rules! source {
    ($name:literal, $call:literal $call_bytes:literal, $limit:literal $limit_bytes:literal, [$($file:literal),*]) => {
        Source {
            name: $name,
            name_of_one: concat!($name, " of one"),
            name_entitled: concat!($name, " entitled"),
            name_sliding: concat!($name, " entitled sliding"),
            name_opened: concat!($name, " entitled from-first"),
            name_bucket: concat!($name, " entitled bucket"),
            text: concat!(
                "local HEAD, HEAD_BYTES = '<I7I7", $call, "', 14 + ", $call_bytes, "\n",
                "local LIMIT, LIMIT_BYTES = '<c1I7I7I7", $limit, "', 22 + ", $limit_bytes, "\n",
                "local ALL, ALL_BYTES = '<c1I7I7I7I7I7", $call, $limit, "', 36 + ", $call_bytes, " + ", $limit_bytes, "\n",
                $(include_str!(concat!("../../lua/", $file, ".lua")), "\n",)*
            ),
        }
    };
}

static SOURCES: [Source; 5] = [
    source!("acquire", "I7I7I7I7I7" 49, "I7I7I7" 21, ["claim", "lib", "entitled", "silent", "account", "acquire", "tail"]),
    source!("return", "I7I7I7I7I7I7I7I7" 56, "I7I7" 14, ["lib", "entitled", "silent", "account", "return", "tail"]),
    source!("peek", "" 0, "" 0, ["lib", "entitled", "silent", "peek", "tail"]),
    source!("refund", "I7I7" 14, "I7" 7, ["lib", "entitled", "silent", "account", "refund", "tail"]),
    source!("reset", "" 0, "" 0, ["lib", "entitled", "silent", "reset", "tail"]),
];

/// Permits of concurrent limits. It shares no file with the others.
static OCCUPY: Script = Script::new("occupy", include_str!("../../lua/occupy.lua"));

static OF_ONE: LazyLock<[Script; 5]> = LazyLock::new(|| each(Form::One));
static ENTITLED: LazyLock<[Script; 5]> = LazyLock::new(|| each(Form::Entitled));
static SLIDING: LazyLock<[Script; 5]> = LazyLock::new(|| each(Form::Sliding));
static OPENED: LazyLock<[Script; 5]> = LazyLock::new(|| each(Form::Opened));
static BUCKET: LazyLock<[Script; 5]> = LazyLock::new(|| each(Form::Bucket));
static OF_SEVERAL: LazyLock<[Script; 5]> = LazyLock::new(|| each(Form::Several));
static OF_MANY: LazyLock<Script> = LazyLock::new(|| one_of(&SOURCES[0], Form::Many));

fn each(form: Form) -> [Script; 5] {
    std::array::from_fn(|place| one_of(&SOURCES[place], form))
}

fn one_of(source: &Source, form: Form) -> Script {
    // A script is made once and used until the process ends.
    Script::new(source.name_in(form), Box::leak(written(source.text, form).into_boxed_str()))
}

impl Source {
    fn name_in(&self, form: Form) -> &'static str {
        match form {
            Form::One => self.name_of_one,
            Form::Entitled => self.name_entitled,
            Form::Sliding => self.name_sliding,
            Form::Opened => self.name_opened,
            Form::Bucket => self.name_bucket,
            Form::Many => "acquire of many",
            Form::Several => self.name,
        }
    }
}

/// All scripts.
#[must_use]
pub fn all() -> [&'static Script; 32] {
    std::array::from_fn(|place| match place {
        0..12 => usual()[place],
        12..17 => &ENTITLED[place - 12],
        17..22 => &BUCKET[place - 17],
        22..27 => &SLIDING[place - 22],
        _ => &OPENED[place - 27],
    })
}

/// Those that are loaded on a new connection, because most policies need no other.
#[must_use]
pub fn usual() -> [&'static Script; 12] {
    std::array::from_fn(|place| match place {
        0..5 => &OF_ONE[place],
        5..10 => &OF_SEVERAL[place - 5],
        10 => &OF_MANY,
        _ => &OCCUPY,
    })
}

/// The script that [`Script::of_many`] gives.
#[must_use]
pub fn many() -> &'static Script {
    &OF_MANY
}

/// Each script as its files have it; that of concurrent limits has one form.
#[must_use]
pub fn sources() -> [(&'static str, &'static str); 6] {
    std::array::from_fn(|place| SOURCES.get(place).map_or((OCCUPY.name, OCCUPY.text), |of| (of.name, of.text)))
}

/// The names and texts of [`all`], made from files that `edit` has changed.
#[must_use]
pub fn edited(edit: impl Fn(&str) -> String) -> Vec<(&'static str, String)> {
    let mut texts = vec![(OCCUPY.name, edit(OCCUPY.text))];
    for source in &SOURCES {
        let text = edit(source.text);
        texts.extend(
            [Form::One, Form::Entitled, Form::Sliding, Form::Opened, Form::Bucket, Form::Several]
                .map(|form| (source.name_in(form), written(&text, form))),
        );
        if source.name == SOURCES[0].name {
            texts.push((OF_MANY.name, written(&text, Form::Many)));
        }
    }
    texts
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
        write!(
            f,
            "the store's script answered {}: wanted {HEAD} numbers of {WIDTH} bytes and 3 per limit; ",
            self.seen
        )?;
        write!(f, "is another program writing under this prefix, or a proxy between?")
    }
}

impl std::error::Error for BadReply {}

impl Script {
    /// The script for a call.
    #[must_use]
    pub fn of(call: &Call) -> &'static Self {
        let scripts = match (call.rule.limits.len(), call.rule.limits[0].algorithm) {
            (_, Algorithm::Gcra) if call.sets_aside() => &BUCKET,
            (_, Algorithm::Sliding) if call.sets_aside() => &SLIDING,
            (_, Algorithm::FixedFromFirst) if call.sets_aside() => &OPENED,
            _ if call.sets_aside() => &ENTITLED,
            (1, _) => &OF_ONE,
            _ => &OF_SEVERAL,
        };
        match call.op {
            Op::Acquire(_) => &scripts[0],
            Op::Return { .. } => &scripts[1],
            Op::Peek => &scripts[2],
            Op::Refund { .. } => &scripts[3],
            Op::Reset => &scripts[4],
            Op::Occupy(_) => &OCCUPY,
        }
    }

    /// The script for a call, where it is none of the [`usual`] ones.
    #[must_use]
    pub fn unusual(call: &Call) -> Option<&'static Self> {
        call.sets_aside().then(|| Self::of(call)).filter(|script| !std::ptr::eq(*script, &OCCUPY))
    }

    /// The script that takes several calls of this kind at once, about keys that one server has; `None`: it goes alone.
    #[must_use]
    pub fn of_many(call: &Call) -> Option<&'static Self> {
        let is_plain = call.rule.limits.len() == 1 && !call.sets_aside();
        (is_plain && matches!(call.op, Op::Acquire(_))).then(many)
    }
}

/// The name of a key's hash. The digest in it is the hash tag, which chooses the slot in a cluster.
#[must_use]
pub fn key(prefix: &str, digest: Digest) -> String {
    let tag = digits(digest);
    let tag = std::str::from_utf8(&tag).expect("hexadecimal digits are text");
    [prefix, ":{", tag, "}"].concat()
}

/// The name under which a node's records stand in the hashes of its keys. Redis stores it with each key that the node has leased, so
/// of a longer name it is eleven letters made from the name's digest.
#[must_use]
pub fn name_in_keys(node: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    if node.len() <= LONGEST_NAME {
        return node.to_owned();
    }
    let Digest(digest) = Digest::of("node", node.as_bytes());
    (0..LONGEST_NAME).map(|place| char::from(LETTERS[(digest >> (6 * place) & 63) as usize])).collect()
}

/// Most letters of that name. Eleven have 66 bits, which no two nodes of a fleet have in common.
const LONGEST_NAME: usize = 11;

/// The 32 hexadecimal digits of a digest. They choose the key's slot in a cluster.
#[must_use]
pub fn digits(digest: Digest) -> [u8; 32] {
    let bytes = digest.0.to_be_bytes();
    std::array::from_fn(|place| b"0123456789abcdef"[usize::from(bytes[place / 2] >> (4 - place % 2 * 4) & 15)])
}

/// The ARGV of a call, in order: the name of the node's field; the time, the id and the integers of the call; then each
/// limit. Where there is one limit, all numbers are one argument, the limit first, because each argument costs Redis as much
/// as several numbers; and where tokens are set aside, the name of the field of the node's part follows. Numbers are binary,
/// because cutting a decimal number out of a text and converting it costs Redis more time than a whole command.
pub fn arguments(caller: &Caller<'_>, call: &Call, push: &mut dyn FnMut(&[u8])) {
    let mut words = Words::default();
    let node = &caller.node.as_bytes()[..caller.node.len().min(LONGEST_NODE)];
    let is_alone = call.rule.limits.len() == 1;
    words.write(if matches!(call.op, Op::Occupy(_)) { b"p:" } else { b"n:" });
    words.write(node);
    words.push(push);
    if is_alone {
        words.add_limit(&call.rule.limits[0]);
    }
    words.add_all(&[caller.now.map_or(0, |now| now.0.max(1)), call.id]);
    match &call.op {
        Op::Acquire(ask) => {
            let [need, want, least, held] =
                [ask.need, ask.want, ask.least, ask.held].map(|tokens| tokens.min(MAX_COUNT));
            words.add_all(&[need, want, least, ask.window.on_wire(), held]);
            if call.sets_aside() {
                let claim = ask.claim.unwrap_or_default();
                let believes = claim.believes.map_or(0, |tokens| tokens.min(MAX_COUNT - 1) + 1);
                words.add_all(&[believes, claim.demand, claim.frees.on_wire()]);
                if call.rule.limits[0].algorithm == Algorithm::Gcra {
                    words.add(claim.owes.min(MAX_COUNT));
                }
            }
            words.add_all(&[StoredTime::number(ask.until), ask.epoch]);
        }
        Op::Return { amount, epoch, held, voids, .. } => {
            let Voided { id, need, reported, spent, answered } = voids.unwrap_or_default(); // zeros: it voids none
            let [amount, held, need, reported, spent] =
                [*amount, *held, need, reported, spent].map(|tokens| tokens.min(MAX_COUNT));
            words.add_all(&[amount, *epoch, held, id, need, reported, spent, answered]);
        }
        Op::Refund { amount, epoch, .. } => words.add_all(&[(*amount).min(MAX_COUNT), *epoch]),
        Op::Occupy(ask) => words.add_all(&[ask.used, ask.need, ask.want, ask.lease.0]),
        Op::Peek | Op::Reset => {}
    }
    if !is_alone {
        words.push(push);
    }
    for (index, limit) in call.rule.limits.iter().enumerate() {
        if !is_alone {
            words.add_limit(limit);
        }
        match &call.op {
            Op::Acquire(Acquire { known, ages, .. }) => {
                words.add_all(&[ages[index].0, known[index].used, known[index].at.0]);
            }
            Op::Return { windows, ages, .. } => words.add_all(&[ages[index].0, StoredTime::number(windows[index])]),
            Op::Refund { windows, .. } => words.add(StoredTime::number(windows[index])),
            Op::Peek | Op::Reset | Op::Occupy(_) => {}
        }
        words.push(push);
    }
    if sets_part_aside(call) {
        words.write(part_of(&call.rule.limits[0]));
        words.write(node);
        words.push(push);
    }
}

/// How many arguments those are.
#[must_use]
pub fn argument_count(call: &Call) -> usize {
    match call.rule.limits.len() {
        1 => 2 + usize::from(sets_part_aside(call)),
        limits => 2 + limits,
    }
}

/// Whether the call's script has to do with the part that is set aside for its node. A concurrent limit has no such parts.
fn sets_part_aside(call: &Call) -> bool {
    call.sets_aside() && !matches!(call.op, Op::Occupy(_))
}

/// What the name of the field begins with that says what is set aside of this limit for a node.
fn part_of(limit: &Limit) -> &'static [u8; 2] {
    match limit.algorithm {
        Algorithm::Gcra => b"b:",
        Algorithm::Sliding => b"d:",
        Algorithm::FixedFromFirst => b"h:",
        Algorithm::Fixed | Algorithm::Concurrent => b"a:",
    }
}

/// Bytes of a limit's argument that say what the limit is. Those behind them belong to the call.
pub const OF_LIMIT: usize = 1 + 3 * WIDTH;

/// Bytes at the end of the argument of an acquire that say what the node knows of the limit.
const OF_KNOWN: usize = 3 * WIDTH;

/// The bytes of an acquire's argument about one limit that are not about what the limit is. Those at the end are left out where
/// all of them are 0.
#[must_use]
pub fn of_call(argument: &[u8]) -> &[u8] {
    let of_call = argument.get(OF_LIMIT..).unwrap_or_default();
    let (numbers, known) = of_call.split_at(of_call.len().saturating_sub(OF_KNOWN));
    if known.iter().all(|byte| *byte == 0) { numbers } else { of_call }
}

/// The ARGV of several calls of one node at once: the name of the node's field, the limit, and the numbers of each call. `None`
/// where their limits differ.
#[must_use]
pub fn arguments_of_many<'a>(caller: &Caller<'_>, calls: impl Iterator<Item = &'a Call>) -> Option<Vec<Vec<u8>>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for call in calls {
        Script::of_many(call)?;
        let mut said = Vec::new();
        arguments(caller, call, &mut |argument| said.push(argument.to_vec()));
        let [node, numbers] = <[Vec<u8>; 2]>::try_from(said).ok()?;
        let shared = numbers.get(..OF_LIMIT)?;
        if all.is_empty() {
            all.extend([node, shared.to_vec()]);
        }
        all.push((all[1] == shared).then(|| of_call(&numbers).to_vec())?);
    }
    Some(all)
}

/// Numbers of an answer about one key to [`Script::of_many`].
const OF_KEY: usize = HEAD + 3;

/// The answer about one of `count` keys, the one at `place`, in what [`Script::of_many`] has answered: text as
/// [`grant_in`] reads it.
#[must_use]
pub fn answer_at(answer: &[u8], count: usize, place: usize) -> Option<&[u8]> {
    if answer.len() != count * OF_KEY * WIDTH {
        return None;
    }
    answer.chunks_exact(OF_KEY * WIDTH).nth(place)
}

/// The numbers of such an answer where it is about one key, and may come by itself, because there was an error about another one.
#[must_use]
pub fn answer_alone(answer: &[u8]) -> Option<[i64; OF_KEY]> {
    let mut said = numbers_in(answer).filter(|said| said.len() == OF_KEY)?;
    Some(std::array::from_fn(|_| said.next().unwrap_or_default()))
}

/// Reads the grant from a script's reply, a text of numbers.
///
/// # Errors
/// Anything but the numbers that `lua/lib.lua` describes, within their ranges.
pub fn grant_in(call: &Call, reply: &[u8]) -> Result<Grant, BadReply> {
    let mut numbers = [0; MOST_NUMBERS];
    let said = numbers_in(reply)
        .filter(|said| said.len() <= MOST_NUMBERS)
        .ok_or_else(|| BadReply::new(&reply.escape_ascii().to_string()))?;
    let count = said.len();
    numbers.iter_mut().zip(said).for_each(|(number, said)| *number = said);
    grant(call, &numbers[..count])
}

/// The same of the numbers that the reply says.
///
/// # Errors
/// The same.
pub fn grant(call: &Call, reply: &[i64]) -> Result<Grant, BadReply> {
    let mut numbers = [0; MOST_NUMBERS];
    let last = HEAD + 3 * call.rule.limits.len();
    // Where tokens are set aside, those of this node come last; of a bucket also what it may not keep.
    let is_bucket = call.rule.limits[0].algorithm == Algorithm::Gcra;
    let expected = last + if call.sets_aside() { 1 + usize::from(is_bucket) } else { 0 };
    if reply.len() != expected || expected > numbers.len() {
        return Err(BadReply::new(&reply));
    }
    for (number, value) in numbers.iter_mut().zip(reply) {
        *number = u64::try_from(*value).ok().filter(|value| *value <= EXACT).ok_or_else(|| BadReply::new(&reply))?;
    }
    let [granted, marks, epoch, now, ..] = numbers;
    let (replayed, damaged, reset) = (marks & 3, marks & 4 != 0, marks & 8 != 0);
    let Ok(nodes) = u32::try_from(marks >> 4) else {
        return Err(BadReply::new(&reply));
    };
    let is_bounded = matches!(call.op, Op::Acquire(Acquire { until, .. }) if until.is_some());
    if granted > most(&call.op) || nodes == 0 || replayed == 3 && !is_bounded {
        return Err(BadReply::new(&reply));
    }
    let mut counters = [Counter::default(); MAX_LIMITS];
    for (counter, triple) in counters.iter_mut().zip(numbers[HEAD..last].chunks_exact(3)) {
        *counter = Counter { used: triple[0], prev: triple[1], at: Timestamp(triple[2]) };
    }
    Ok(Grant {
        granted,
        replayed: replayed == 1,
        outdated: replayed >= 2,
        late: replayed == 3,
        confirmed: true,
        damaged,
        epoch,
        reset,
        nodes,
        now: Timestamp(now),
        counters,
        entitled: numbers[last..expected].first().copied().unwrap_or(0),
        not_kept: numbers[last..expected].get(1).copied().unwrap_or(0),
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
    use crate::core::call::{Claim, Frees, Known, OPEN, Occupy, Window};
    use crate::core::policy::{OnStoreLoss, Rule};
    use crate::core::time::{Instant, Micros};

    fn call(op: Op, limits: &[&str]) -> Call {
        let limits = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
        let rule = Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Share });
        Call { id: 9, digest: Digest(0xab), rule, op, sent_at: Instant(0) }
    }

    /// The arguments as text: the names of fields, and the numbers of each argument, a limit's letter first.
    fn argv(call: &Call) -> Vec<String> {
        let caller = Caller { prefix: "ration", node: "n1", now: None };
        let mut list = Vec::new();
        arguments(&caller, call, &mut |argument| {
            let is_name = argument.ends_with(b":n1");
            let (letter, numbers) = argument.split_at(if is_name { argument.len() } else { argument.len() % WIDTH });
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
        let wanted = ["n:n1", "0 9", "g 1 2000000 5", "f 30 60000000 30"];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn one_limit_travels_with_the_numbers_of_its_call() {
        let ask = Acquire {
            need: 1,
            want: 2,
            least: 3,
            window: Window::Current,
            epoch: 4,
            held: 5,
            ages: [Micros(6); MAX_LIMITS],
            known: [Known { used: 7, at: Timestamp(8) }; MAX_LIMITS],
            until: Timestamp(9).stored(),
            claim: None,
        };
        let plain = call(Op::Acquire(ask), &["30/60s burst 5"]);
        assert_eq!(argv(&plain), ["n:n1", "g 1 2000000 5 0 9 1 2 3 0 5 9 4 6 7 8"]);
        let claim = Claim { believes: Some(10), demand: 11, frees: Frees::Until(Timestamp(12)), owes: 13 };
        let mut entitled = call(Op::Acquire(Acquire { claim: Some(claim), ..ask }), &["30/60s burst 5"]);
        let limits = plain.rule.limits.clone();
        entitled.rule = Arc::new(Rule { policy: "p".into(), limits, on_store_loss: OnStoreLoss::Entitled });
        assert_eq!(argv(&entitled), ["n:n1", "g 1 2000000 5 0 9 1 2 3 0 5 11 11 12 13 9 4 6 7 8", "b:n1"]);
        let occupy = call(Op::Occupy(Occupy { used: 1, need: 2, want: 3, lease: Micros(4) }), &["7/1s concurrent"]);
        assert_eq!(argv(&occupy), ["p:n1", "c 7 1000000 7 0 9 1 2 3 4"]);
        for call in [plain, entitled, occupy, call(Op::Peek, &["1/1s", "1/1s", "1/1s"])] {
            assert_eq!(argv(&call).len(), argument_count(&call));
        }
    }

    #[test]
    fn numbers_beyond_the_scripts_are_clamped() {
        let refund = Op::Refund { amount: u64::MAX, epoch: 0, windows: OPEN };
        let mut call = call(refund, &["1/1s"]);
        call.id = u64::MAX;
        assert_eq!(argv(&call)[1], format!("g 1 1000000 1 0 {EXACT} {MAX_COUNT} 0 0"));
    }

    #[test]
    fn key_has_the_digest_as_its_hash_tag() {
        assert_eq!(key("ration", Digest(0xab)), "ration:{000000000000000000000000000000ab}");
        let digest = Digest(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
        assert_eq!(digits(digest), digest.to_string().as_bytes());
    }

    #[test]
    fn a_long_name_is_a_short_one_in_keys_and_stays_its_own() {
        assert_eq!(name_in_keys("node-7:7946"), "node-7:7946");
        let names = ["host-17.example:7946", "host-18.example:7946", "rationd-7c9f8b5d4-x2x9z.default.svc:7946"];
        let short = names.map(name_in_keys);
        assert!(short.iter().all(|name| name.len() == 11 && name.chars().all(|letter| letter.is_ascii_graphic())));
        assert!(short[0] != short[1] && short[1] != short[2] && short[0] == name_in_keys(names[0]));
        // It must be the same in every build, or a node would count as two.
        assert_eq!(short[0], "AZrk1-syyj4");
    }

    #[test]
    fn a_call_takes_the_script_for_as_many_limits_as_it_has() {
        let name = |limits: &[&str]| Script::of(&call(Op::Peek, limits)).name;
        assert_eq!((name(&["1/1s"]), name(&["1/1s", "9/1m"])), ("peek of one", "peek"));
        for script in all() {
            for left in ["--<", "-->", "--=", "no block"] {
                assert!(!script.text.contains(left), "{} says `{left}`", script.name);
            }
            let speaks_of_several = script.text.contains("limits[");
            assert!(!(speaks_of_several && script.name.ends_with(" of one")), "{}", script.name);
        }
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
            until: None,
            claim: None,
        };
        let call = call(Op::Acquire(ask), &["1/1s fixed"]);
        let grant = grant(&call, &[3, 1 + 8 + 2 * 16, 77, 1_000, 4, 5, 6]).unwrap();
        assert_eq!((grant.granted, grant.replayed, grant.damaged), (3, true, false));
        assert_eq!((grant.epoch, grant.reset, grant.nodes, grant.now), (77, true, 2, Timestamp(1_000)));
        assert_eq!(grant.counters[0], Counter { used: 4, prev: 5, at: Timestamp(6) });
        let text = text_of(&[3, 1 + 8 + 2 * 16, 77, 1_000, 4, 5, 6]);
        assert_eq!(grant_in(&call, &text), Ok(grant));
        let unread = grant_in(&call, &text[..48]).unwrap_err();
        assert!(unread.to_string().contains("wanted 4 numbers of 7 bytes and 3 per limit"), "{unread}");
    }

    #[test]
    fn reply_out_of_its_ranges_is_refused() {
        let call = call(
            Op::Return {
                amount: 5,
                epoch: 1,
                held: 0,
                voids: None,
                ages: crate::core::call::JUST_NOW,
                windows: Default::default(),
            },
            &["1/1s fixed"],
        );
        let good = [5, 16, 7, 1_000, 4, 5, 6];
        assert!(grant(&call, &good).is_ok());
        for (place, value) in [(0, 6), (0, -1), (1, 16 + 3), (1, 15), (1, 1 << 36), (2, 1 << 53), (6, -1)] {
            let mut reply = good;
            reply[place] = value;
            assert!(grant(&call, &reply).is_err(), "{value} at {place} was taken");
        }
        assert!(grant(&call, &good[..6]).is_err());
    }
}
