//! Callers that acquire token after token, each under its own key, and keep books of it.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rationd::clock::Clock;
use rationd::core::call::{Acquire, Call, Grant, Known, Op, StoreError, Window};
use rationd::core::key::Digest;
use rationd::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS, MAX_PERIOD};
use rationd::core::policy::Rule;
use rationd::store::redis::RedisStore;

/// A rule that no test exhausts, with a window that ends after the test.
pub fn endless() -> Arc<Rule> {
    let limit = Limit::new(MAX_COUNT, MAX_PERIOD, Algorithm::Fixed, MAX_COUNT).expect("a limit");
    Arc::new(Rule::of("load", &[limit]))
}

/// An acquire of one token.
pub fn acquire_one(clock: &Clock, rule: &Arc<Rule>, digest: Digest, id: u64) -> Call {
    let op = Op::Acquire(Acquire {
        need: 1,
        want: 1,
        least: 1,
        window: Window::Current,
        epoch: 0,
        held: 0,
        ages: rationd::core::call::JUST_NOW,
        known: [Known::default(); MAX_LIMITS],
        until: None,
        claim: None,
    });
    Call { id, digest, rule: rule.clone(), op, sent_at: clock.now() }
}

/// A look at a key.
pub fn peek(clock: &Clock, rule: &Arc<Rule>, digest: Digest) -> Call {
    Call { id: 0, digest, rule: rule.clone(), op: Op::Peek, sent_at: clock.now() }
}

/// What one caller saw.
#[derive(Clone, Debug)]
pub struct Book {
    pub digest: Digest,
    /// Which of the caller's groups it belongs to.
    pub shard: usize,
    /// Tokens that grants said it got.
    pub granted: u64,
    /// 1 when the last call was left open.
    pub open: u64,
    pub calls: u64,
    pub replays: u64,
    pub unknown: u64,
    pub away: u64,
    pub unconfirmed: u64,
    /// Longest time between two answers, and when it began.
    pub gap: Duration,
    pub gap_from: Instant,
    pub last: Instant,
    /// Slowest answered call.
    pub slowest: Duration,
}

/// Callers at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Book>>,
}

/// `per_shard` digests for each of three equal parts of the slots, by `slot_of`.
pub fn digests(per_shard: usize, slot_of: impl Fn(&str) -> u16) -> Vec<(usize, Digest)> {
    let mut found: Vec<(usize, Digest)> = Vec::new();
    for number in 0.. {
        let digest = Digest::of("load", format!("caller {number}").as_bytes());
        let shard = usize::from(slot_of(&format!("x:{{{digest}}}")) / 5_461).min(2);
        if found.iter().filter(|(seen, _)| *seen == shard).count() < per_shard {
            found.push((shard, digest));
        }
        if found.len() == 3 * per_shard {
            break;
        }
    }
    found
}

impl Load {
    /// Starts one caller a digest on `runtime`, each at most one call per `pace`.
    pub fn start(
        runtime: &tokio::runtime::Runtime,
        store: &Arc<RedisStore>,
        clock: Clock,
        digests: &[(usize, Digest)],
        pace: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = digests
            .iter()
            .map(|&(shard, digest)| runtime.spawn(work(store.clone(), clock, shard, digest, stop.clone(), pace)))
            .collect();
        Self { stop, callers }
    }

    /// Ends the work: everybody's book.
    pub fn finish(self, runtime: &tokio::runtime::Runtime) -> Vec<Book> {
        self.stop.store(true, Relaxed);
        runtime.block_on(async {
            let mut books = Vec::new();
            for caller in self.callers {
                books.push(caller.await.expect("a caller"));
            }
            books
        })
    }
}

async fn work(
    store: Arc<RedisStore>,
    clock: Clock,
    shard: usize,
    digest: Digest,
    stop: Arc<AtomicBool>,
    pace: Duration,
) -> Book {
    let rule = endless();
    let now = Instant::now();
    let mut book = Book {
        digest,
        shard,
        granted: 0,
        open: 0,
        calls: 0,
        replays: 0,
        unknown: 0,
        away: 0,
        unconfirmed: 0,
        gap: Duration::ZERO,
        gap_from: now,
        last: now,
        slowest: Duration::ZERO,
    };
    let mut tick = tokio::time::interval(pace);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut id = 0;
    while !stop.load(Relaxed) {
        id += 1;
        book.open = 0;
        loop {
            tick.tick().await;
            let began = Instant::now();
            let result = store.call(&acquire_one(&clock, &rule, digest, id)).await;
            book.calls += 1;
            match result {
                Ok(grant) => {
                    book.note(&grant, began);
                    break;
                }
                Err(StoreError::Unknown) => {
                    book.unknown += 1;
                    book.open = 1;
                }
                Err(_) => book.away += 1,
            }
            if stop.load(Relaxed) {
                break;
            }
        }
    }
    book
}

impl Book {
    fn note(&mut self, grant: &Grant, began: Instant) {
        let now = Instant::now();
        self.granted += grant.granted;
        self.open = 0;
        self.replays += u64::from(grant.replayed);
        self.unconfirmed += u64::from(!grant.confirmed);
        self.slowest = self.slowest.max(now - began);
        if now - self.last > self.gap {
            self.gap = now - self.last;
            self.gap_from = self.last;
        }
        self.last = now;
    }
}

/// Compares books with what the store holds: `(granted, open, stored)` in all.
pub fn settle(runtime: &tokio::runtime::Runtime, store: &RedisStore, clock: &Clock, books: &[Book]) -> (u64, u64, u64) {
    let rule = endless();
    let mut stored = 0;
    for book in books {
        let call = peek(clock, &rule, book.digest);
        let seen = super::poll::wait_for("the store answers a peek", 10, || runtime.block_on(store.call(&call)).ok());
        let used = seen.counters[0].used;
        assert!(
            used <= book.granted + book.open,
            "executed twice: {used} tokens are booked for {:?}, {} were granted and {} call is open",
            book.digest,
            book.granted,
            book.open
        );
        stored += used;
    }
    (books.iter().map(|book| book.granted).sum(), books.iter().map(|book| book.open).sum(), stored)
}

/// The longest gap of each group, and a line about it all.
pub fn summary(books: &[Book]) -> ([Duration; 3], String) {
    let of = |shard: usize| books.iter().filter(move |book| book.shard == shard);
    let gaps = std::array::from_fn(|shard| of(shard).map(|book| book.gap).max().unwrap_or_default());
    let sum = |part: fn(&Book) -> u64| books.iter().map(part).sum::<u64>();
    let slowest = books.iter().map(|book| book.slowest).max().unwrap_or_default();
    let line = format!(
        "{} calls, {} granted, {} replayed, {} unknown, {} away, {} unconfirmed, gaps {gaps:?}, slowest answer {slowest:?}",
        sum(|book| book.calls),
        sum(|book| book.granted),
        sum(|book| book.replays),
        sum(|book| book.unknown),
        sum(|book| book.away),
        sum(|book| book.unconfirmed),
    );
    (gaps, line)
}
