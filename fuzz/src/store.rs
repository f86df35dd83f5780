//! Replies of a store: what scripts answer, `CLUSTER SLOTS`, and refusals.
//!
//! Holds: a grant is never more than was asked for, and of its numbers each is one that the scripts hold exactly; ranges
//! of slots lie within the cluster and have an owner.

use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Grant, JUST_NOW, OPEN, Occupy, Op, Window};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::redis::{cluster_slots, evalsha, refused};
use redis::Value;

/// What replies are made of.
pub const WORDS: &[&[u8]] = &[
    b"$49\r\n",
    b"$70\r\n",
    b"\0\0\0\0\0\0\0",
    b"\x03\0\0\0\0\0\0",
    b"\x10\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\x1f",
    b"\0\0\0\0\0\0\x20",
    b"\0\0\0\0\x10\0\0",
    b"*7\r\n",
    b"*10\r\n",
    b"*3\r\n",
    b"*2\r\n",
    b":0\r\n",
    b":1\r\n",
    b":-1\r\n",
    b":5\r\n",
    b":16383\r\n",
    b":16384\r\n",
    b":9007199254740991\r\n",
    b":9007199254740992\r\n",
    b":4294967296\r\n",
    b":1800000000000000\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"$9\r\n127.0.0.1\r\n",
    b"$1\r\n?\r\n",
    b"-MOVED 3999 127.0.0.1:6381\r\n",
    b"-ASK 3999 :6381\r\n",
    b"-NOSCRIPT x\r\n",
    b"-CLUSTERDOWN x\r\n",
    b"-ERR x: -READONLY x\r\n",
    b"-LOADING\r\n",
    b"-MOVED\r\n",
    b"_\r\n",
    b"%1\r\n",
    b"\r\n",
    b":6379\r\n",
];

/// Largest number that a script may answer.
const EXACT: u64 = (1 << 53) - 1;

/// See the module.
pub fn run(input: &[u8]) {
    let Ok(value) = redis::parse_redis_value(input) else { return };
    for limits in [&["100/1s"][..], &["100/1h fixed", "5/1s sliding"], &["3/30s concurrent"]] {
        for op in ops() {
            let call = call(op, limits);
            match evalsha::grant(&call, &value) {
                Ok(grant) => check(&call, &grant),
                Err(problem) => assert!(problem.seen.chars().count() <= 200),
            }
        }
    }
    if let Some(text) = refused(&value) {
        assert!(matches!(value, Value::ServerError(_)), "{text}");
    }
    for (first, last, nodes) in cluster_slots(value, "10.0.0.9").unwrap_or_default() {
        assert!(first <= last && last < 16_384, "{first} to {last}");
        assert!(
            !nodes.is_empty() && nodes.iter().all(|node| node.contains(':') && !node.starts_with(':')),
            "{nodes:?}"
        );
    }
}

fn ops() -> [Op; 6] {
    let acquire = Acquire {
        need: 2,
        want: 7,
        least: 0,
        window: Window::Current,
        epoch: 0,
        held: 0,
        ages: JUST_NOW,
        known: Default::default(),
        until: Timestamp(9).stored(),
        claim: None,
    };
    let back = Op::Return { amount: 5, epoch: 1, held: 0, ages: JUST_NOW, windows: OPEN, voids: None };
    let occupy = Occupy { used: 1, need: 1, want: 3, lease: Micros::from_secs(30) };
    [
        Op::Acquire(acquire),
        back,
        Op::Peek,
        Op::Refund { amount: 3, epoch: 0, windows: OPEN },
        Op::Occupy(occupy),
        Op::Reset,
    ]
}

fn call(op: Op, limits: &[&str]) -> Call {
    let limits: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect("it is right")).collect();
    Call { id: 9, digest: Digest(0xab), rule: Arc::new(Rule::of("p", &limits)), op, sent_at: Instant(0) }
}

fn check(call: &Call, grant: &Grant) {
    let most = match call.op {
        Op::Acquire(ask) => ask.want,
        Op::Return { amount, .. } | Op::Refund { amount, .. } => amount,
        Op::Occupy(ask) => ask.want,
        Op::Peek | Op::Reset => 0,
    };
    assert!(grant.granted <= most, "{grant:?}");
    assert!(grant.nodes >= 1 && !(grant.replayed && grant.outdated), "{grant:?}");
    let counters = grant.counters.iter().flat_map(|counter| [counter.used, counter.prev, counter.at.0]);
    assert!(counters.chain([grant.epoch, grant.now.0]).all(|number| number <= EXACT), "{grant:?}");
}
