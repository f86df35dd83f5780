//! The interpreter and the keyspace of the simulations answer as a real redis-server does: random
//! calls and disturbances on both, under one clock that often stands exactly on a boundary.

#[allow(dead_code, unreachable_pub, missing_docs, reason = "shared with the tests of the product")]
#[path = "../../../tests/support/calls.rs"]
mod calls;
mod disturb;
mod pair;
mod server;

use calls::{Caller, Random};
use pair::Pair;
use rationd::core::call::{Call, Grant};
use rationd::core::key::Digest;
use rationd::core::time::Timestamp;
use rationd::store::script::{self, Caller as Asked, Script};
use simulations::earlier;
use simulations::lua::Scripts;

/// Calls of scripts to compare; `DIFFERENTIAL_CALLS` and `DIFFERENTIAL_SEED` in the environment ask
/// for more, or others.
const CALLS: u64 = 620_000;
const SEED: u64 = 0x5eed_0010;

/// Calls about one key, and keys until everything is flushed.
const STRETCH: u64 = 240;
const KEYS: u64 = 6;

/// What was compared.
#[derive(Debug, Default)]
struct Seen {
    calls: u64,
    /// Calls of scripts of the build before.
    by_earlier: u64,
    /// Calls that took their time from the server.
    by_clock: u64,
    granted: u64,
    replayed: u64,
    damaged: u64,
    /// Calls that a script refused or failed at.
    refused: u64,
    /// Calls within a microsecond of the key's expiry.
    on_expiry: u64,
    /// Keys that were compared with all they hold.
    keys: usize,
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// So many calls, or the first difference.
fn run(scripts: Scripts, calls: u64, seed: u64) -> Result<Seen, String> {
    let (mut pair, mut seen) = (Pair::new(scripts), Seen::default());
    for stretch in 0..calls.div_ceil(STRETCH) {
        let seed = seed + stretch;
        let outcome = one_key(&mut pair, seed, &mut seen);
        let keys = outcome.and_then(|()| pair.compare()).map_err(|text| format!("seed {seed:#x}\n{text}"))?;
        seen.keys += keys;
        if stretch % KEYS == KEYS - 1 {
            pair.flush();
        }
    }
    pair.compare()?;
    Ok(seen)
}

/// Calls about one key. Half of them tell their time, the others go by the server's clock.
fn one_key(pair: &mut Pair, seed: u64, seen: &mut Seen) -> Result<(), String> {
    let (random, key) = (&mut Random(seed), script::key("d", Digest(seed.into())));
    let mut caller = Caller::new(random);
    pair.set_clock(caller.now.0)?;
    // Nodes are upgraded one after the other.
    let upgraded = [random.below(STRETCH), random.below(STRETCH)];
    for step in 0..STRETCH {
        let expires = pair.expires_at(&key);
        let (node, call) = caller.next(random, expires.map(Timestamp));
        let by_clock = random.percent(50);
        if by_clock {
            pair.set_clock(caller.now.0)?;
        } else if let Some(at) = expires.filter(|_| random.percent(10)) {
            pair.set_clock((at + random.below(3)).saturating_sub(random.one_of(&[1, 1, 1_001])))?;
        }
        seen.by_clock += u64::from(by_clock);
        seen.on_expiry += u64::from(expires.is_some_and(|at| at.abs_diff(pair.now()) <= 1));
        let asked = Asked { prefix: "d", node, now: (!by_clock).then_some(caller.now) };
        if let Some(grant) = one_call(pair, random, &key, &asked, &call, step < upgraded[node.len() % 2], seen) {
            let rule = call.rule.clone();
            caller.answered(node, call, grant);
            if random.percent(6) {
                disturb::disturb(random, pair, &key, &rule);
            }
        }
    }
    Ok(())
}

/// One call, or one like it with a wrong argument, which grants nothing.
fn one_call(
    pair: &mut Pair,
    random: &mut Random,
    key: &str,
    asked: &Asked<'_>,
    call: &Call,
    is_earlier: bool,
    seen: &mut Seen,
) -> Option<Grant> {
    let mut argv = Vec::new();
    // A call in a hundred is of a node that went back to the build before, and does not understand its own record.
    let by_earlier = is_earlier || random.percent(1);
    if by_earlier {
        earlier::arguments(asked, call, &mut |argument| argv.push(argument.to_vec()));
    } else {
        script::arguments(asked, call, &mut |argument| argv.push(argument.to_vec()));
    }
    let spoiled = random.percent(2);
    if spoiled {
        disturb::spoil(random, &mut argv);
    }
    let script = if by_earlier { earlier::of(&call.op) } else { Script::of(call) };
    let reply = pair.script(script, key, argv);
    seen.calls += 1;
    seen.by_earlier += u64::from(by_earlier);
    seen.refused += u64::from(reply.is_err());
    let reply = reply.ok().filter(|_| !spoiled)?;
    let reply = if by_earlier { earlier::reply(&reply, call) } else { reply };
    let grant = script::grant(call, &reply).unwrap_or_else(|error| panic!("{call:?}: {error}"));
    seen.granted += u64::from(grant.granted > 0);
    seen.replayed += u64::from(grant.replayed || grant.outdated);
    seen.damaged += u64::from(grant.damaged);
    Some(grant)
}

/// Half of the calls, on a server of its own.
fn check_half(half: u64) {
    let calls = setting("DIFFERENTIAL_CALLS", CALLS) / 2;
    let seed = setting("DIFFERENTIAL_SEED", SEED) + (half << 32);
    let seen = run(Scripts::new(), calls, seed).unwrap_or_else(|text| panic!("{text}"));
    println!("{seen:?}");
    // The calls must not have missed what they are made for.
    assert!(seen.calls >= calls && seen.by_clock > calls * 2 / 5 && seen.granted > calls / 6);
    assert!(seen.replayed > calls / 20 && seen.damaged > calls / 100 && seen.refused > calls / 200);
    assert!(seen.by_earlier > calls / 5);
    assert!(seen.on_expiry > calls / 200 && seen.keys as u64 > calls / STRETCH);
}

#[test]
fn simulated_and_real_redis_answer_alike() {
    // Each half waits for its server most of the time.
    std::thread::scope(|scope| {
        scope.spawn(|| check_half(0));
        scope.spawn(|| check_half(1));
    });
}

#[test]
fn difference_is_seen() {
    let mutants = [
        ("sum = (sum - 1) / b", "sum = (sum - b) / b"),
        ("if now >= at then", "if now > at then"),
        ("(lasts - lasts % 1000 - now + now % 1000) / 1000 + 1", "(lasts - lasts % 1000 - now + now % 1000) / 1000"),
        ("if #stale > 0 then", "if #stale > 500 then"),
    ];
    for edit in mutants {
        assert!(run(Scripts::edited(&[edit]), 20_000, SEED).is_err(), "nobody saw {edit:?}");
    }
}
