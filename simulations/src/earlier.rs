//! The scripts of the previous build, in `earlier/`, and how that build called them. In a rolling upgrade both builds
//! work on the same keys.
//!
//! They read and write records of nodes as text, and take their arguments as text. When the scripts of `lua/` store
//! something in another form, these are replaced by those of the last commit with the old form. Called by the world
//! for nodes of that build, and by the differential test for some of its calls.

use rationd::core::call::{Acquire, Call, Op, Voided};
use rationd::core::limit::{Algorithm, Limit, MAX_COUNT};
use rationd::core::time::StoredTime;
use rationd::store::script::{Caller, Script};

/// The largest integer that the scripts' numbers hold exactly.
const EXACT: u64 = (1 << 53) - 1;

/// A script of these files, behind the patterns of its arguments.
macro_rules! script {
    ($name:literal, $call:literal, $limit:literal, [$($file:literal),*]) => {
        Script::new(
            concat!("earlier ", $name),
            concat!(
                "local HEAD, LIMIT = '^(%d+)", $call, "$', '^([gfos]) (%d+) (%d+) (%d+)", $limit, "$'\n",
                $(include_str!(concat!("earlier/", $file, ".lua")), "\n",)*
            ),
        )
    };
}

static ACQUIRE: Script = script!(
    "acquire",
    " (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)",
    " (%d+) (%d+) (%d+)",
    ["lib", "account", "acquire", "tail"]
);
static RETURN: Script = script!(
    "return",
    " (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)",
    " (%d+) (%d+)",
    ["lib", "account", "return", "tail"]
);
static PEEK: Script = script!("peek", "", "", ["lib", "peek", "tail"]);
static REFUND: Script = script!("refund", " (%d+)", " (%d+)", ["lib", "account", "refund", "tail"]);
static RESET: Script = script!("reset", "", "", ["lib", "reset", "tail"]);
static OCCUPY: Script = Script::new("earlier occupy", include_str!("earlier/occupy.lua"));

/// All of them.
#[must_use]
pub fn all() -> [&'static Script; 6] {
    [&ACQUIRE, &RETURN, &PEEK, &REFUND, &RESET, &OCCUPY]
}

/// The script for an operation.
#[must_use]
pub fn of(op: &Op) -> &'static Script {
    match op {
        Op::Acquire(_) => &ACQUIRE,
        Op::Return { .. } => &RETURN,
        Op::Peek => &PEEK,
        Op::Refund { .. } => &REFUND,
        Op::Reset => &RESET,
        Op::Occupy(_) => &OCCUPY,
    }
}

/// The call as that build makes it: without a time until which it may be executed, and refunds without an epoch.
#[must_use]
pub fn call(call: &Call) -> Call {
    let op = match call.op {
        Op::Acquire(order) => Op::Acquire(Acquire { until: None, ..order }),
        Op::Refund { amount, windows, .. } => Op::Refund { amount, epoch: 0, windows },
        op => op,
    };
    Call { op, ..call.clone() }
}

/// The ARGV of a call: the time, the node, the id and the integers of the call, then each limit.
pub fn arguments(caller: &Caller<'_>, call: &Call, push: &mut dyn FnMut(&[u8])) {
    push(caller.now.map_or(0, |now| now.0.max(1)).to_string().as_bytes());
    push(&caller.node.as_bytes()[..caller.node.len().min(255)]);
    let numbers = match &call.op {
        Op::Acquire(ask) => {
            let [need, want, least, held] =
                [ask.need, ask.want, ask.least, ask.held].map(|tokens| tokens.min(MAX_COUNT));
            vec![need, want, least, ask.window.on_wire(), ask.epoch, held]
        }
        Op::Return { amount, epoch, held, voids, .. } => {
            let Voided { id, need, reported, spent, answered } = voids.unwrap_or_default();
            let [amount, held, need, reported, spent] =
                [*amount, *held, need, reported, spent].map(|tokens| tokens.min(MAX_COUNT));
            vec![amount, *epoch, held, id, need, reported, spent, answered]
        }
        Op::Refund { amount, .. } => vec![(*amount).min(MAX_COUNT)],
        Op::Occupy(ask) => vec![ask.used, ask.need, ask.want, ask.lease.0],
        Op::Peek | Op::Reset => Vec::new(),
    };
    push(words(None, [call.id].into_iter().chain(numbers)).as_bytes());
    for (index, limit) in call.rule.limits.iter().enumerate() {
        let more = match &call.op {
            Op::Acquire(Acquire { known, ages, .. }) => vec![known[index].used, known[index].at.0, ages[index].0],
            Op::Return { windows, ages, .. } => vec![StoredTime::number(windows[index]), ages[index].0],
            Op::Refund { windows, .. } => vec![StoredTime::number(windows[index])],
            Op::Peek | Op::Reset | Op::Occupy(_) => Vec::new(),
        };
        push(words(Some(letter(limit)), of_limit(limit).into_iter().chain(more)).as_bytes());
    }
}

/// That build's answer in the form of the present `lua/lib.lua`: its flags for replayed, damaged and reset and its
/// count of nodes become one number. It sets nothing aside.
#[must_use]
pub fn reply(numbers: &[i64], call: &Call) -> Vec<i64> {
    let [granted, replayed, damaged, epoch, reset, nodes, now, counters @ ..] = numbers else {
        return numbers.to_vec();
    };
    let marks = replayed + 4 * damaged + 8 * reset + 16 * nodes;
    let entitled: &[i64] = match () {
        () if call.sets_aside() && call.rule.is_entitled_bucket() => &[0, 0],
        () if call.sets_aside() => &[0],
        () => &[],
    };
    [&[*granted, marks, *epoch, *now], counters, entitled].concat()
}

fn words(letter: Option<&str>, numbers: impl Iterator<Item = u64>) -> String {
    let numbers = numbers.map(|number| number.min(EXACT).to_string());
    letter.map(str::to_owned).into_iter().chain(numbers).collect::<Vec<_>>().join(" ")
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

/// Count, period, burst.
fn of_limit(limit: &Limit) -> [u64; 3] {
    if limit.algorithm == Algorithm::Gcra {
        let (period, count) = limit.interval();
        [count, period, limit.burst]
    } else {
        [limit.count, limit.period.0, limit.burst]
    }
}
