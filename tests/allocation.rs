//! A check of a known key allocates nothing: from its bytes to its reply, and over a real socket.

#[allow(dead_code, reason = "a program of its own, which counts what it allocates, uses a part")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use support::daemon::{TestDaemon, encode};

/// Counts what every thread asks for.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code, reason = "an allocator cannot be written without it; it only counts and passes on")]
// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Fewest allocations in the whole process, of three times that `rounds` batches are sent and answered:
/// a runtime that starts something by itself disturbs one of them.
fn allocations(daemon: &TestDaemon, batch: &[u8], reply_lines: usize, rounds: usize) -> u64 {
    let mut stream = std::os::unix::net::UnixStream::connect(&daemon.socket).unwrap();
    let mut buffer = vec![0; 64 << 10];
    let mut round = |stream: &mut std::os::unix::net::UnixStream| {
        stream.write_all(batch).unwrap();
        let mut lines = 0;
        while lines < reply_lines {
            let len = stream.read(&mut buffer).unwrap();
            assert!(len > 0, "the daemon closed");
            assert!(!buffer[..len].contains(&b'-') || !buffer[..len].starts_with(b"-"), "an error");
            lines += buffer[..len].iter().filter(|&&byte| byte == b'\n').count();
        }
    };
    for _ in 0..20 {
        round(&mut stream);
    }
    let times = (0..3).map(|_| {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (0..rounds).for_each(|_| round(&mut stream));
        ALLOCATIONS.load(Ordering::SeqCst) - before
    });
    times.min().unwrap_or(u64::MAX)
}

/// One test: the counter is the whole process's, and the harness allocates when another one starts.
#[test]
fn a_check_of_a_known_key_allocates_nothing() {
    the_counter_counts();
    checks_over_a_socket_allocate_nothing();
    checks_of_leased_keys_allocate_nothing();
}

fn the_counter_counts() {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > before);
}

fn checks_over_a_socket_allocate_nothing() {
    let daemon = TestDaemon::start();
    let throttle = encode(&[b"CL.THROTTLE", b"k", b"15", b"30", b"60"]);
    assert_eq!(allocations(&daemon, &throttle, 6, 1_000), 0, "one check a batch, allowed or denied");
    assert_eq!(allocations(&daemon, &throttle.repeat(16), 6 * 16, 1_000), 0, "sixteen checks a batch");
    let check = encode(&[b"RATION.CHECK", b"api", b"acme"]);
    assert_eq!(allocations(&daemon, &check.repeat(16), 14 * 16, 1_000), 0, "decisions under a policy");
    let peek = encode(&[b"RATION.CHECK", b"api", b"acme", b"COST", b"5", b"PEEK"]);
    assert_eq!(allocations(&daemon, &peek, 14, 1_000), 0, "peeks");
    let inline = b"CL.THROTTLE k 15 30 60\r\n";
    assert_eq!(allocations(&daemon, inline, 6, 1_000), 0, "inline commands");
}

fn checks_of_leased_keys_allocate_nothing() {
    use rationd::clock::Clock;
    use rationd::core::call::Call;
    use rationd::core::key::Digest;
    use rationd::core::limit::Limit;
    use rationd::core::policy::Rule;
    use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
    use rationd::core::time::{Micros, Timestamp};
    use rationd::store::memory::MemoryStore;
    use rationd::wire::command::Command;
    use rationd::wire::reply::{Protocol, Writer};
    use rationd::wire::resp::Parser;
    use std::sync::Arc;

    let clock = Clock::start();
    let now = clock.now();
    let settings = Settings { max_keys: 100, timeout: Micros::from_millis(50), lease_ahead: true };
    // The store's clock runs as fast as the node's. A test that read the system's here failed on a busy machine, where the
    // store's time ran far ahead of the rounds.
    let wall = Timestamp(1_800_000_000_000_000);
    let mut shard = Shard::new(settings, 1, 1, 1, (now, wall));
    let mut store = MemoryStore::new(100, 1);
    let rule = Arc::new(Rule::of("api", &[Limit::parse("1000000/1h fixed").unwrap()]));
    let mut parser = Parser::new();
    let mut out = Vec::with_capacity(4_096);
    let input = encode(&[b"RATION.CHECK", b"api", b"k"]);
    let mut hits = 0;
    for round in 0..20_000_u64 {
        out.clear();
        let now = now + Micros(round);
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        let len = parser.parse(&input).unwrap().unwrap();
        assert_eq!(len, input.len());
        let Ok(Command::Check { key, cost, peek, .. }) = Command::parse(parser.args(&input)) else { panic!("a check") };
        let request = Request { rule: &rule, digest: Digest::of("api", key), key, cost, peek };
        let outcome = shard.check(now, request);
        if let Outcome::Decided(decision) = &outcome {
            Writer::new(&mut out, Protocol::Two).decision(decision, Some(&rule));
        }
        let mut calls: [Option<Call>; 4] = Default::default();
        let mut effects = 0;
        while let Some(effect) = shard.poll_effect() {
            if let Effect::Call(call) = effect {
                calls[effects] = Some(*call);
                effects += 1;
            }
        }
        if effects == 0 && matches!(outcome, Outcome::Decided(_)) && round > 100 {
            hits += 1;
            assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before, "round {round}");
        }
        for call in calls.iter().flatten() {
            let outcome = store.call(wall + Micros(round), "n", call);
            shard.handle_outcome(now, call, outcome);
            while shard.poll_effect().is_some() {}
        }
    }
    assert!(hits > 15_000, "{hits} hits");
}
