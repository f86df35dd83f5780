//! The core between a store that answers whatever a script might and peers that tell whatever they like.
//!
//! Holds: each parked check is answered once, and not after its deadline; with `on_store_loss = "deny"` no more is
//! admitted than the store has lent and clients gave back; and timers ring twice a millisecond at most.
//!
//! An input is steps of a few bytes each: what happens, and with what numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::call::{Call, Op, StoreError};
use rationd::core::decision::{Decision, Verdict};
use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard, Ticket};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::core::usage::{Count, PeerIndex, Usage};
use rationd::store::script;

/// What steps are made of.
pub const WORDS: &[&[u8]] = &[
    b"\x00\x00\x01",
    b"\x01\x00\x05",
    b"\x02\x20",
    b"\x03\x00",
    b"\x04",
    b"\x05\x00\x00",
    b"\x06",
    b"\x07\x00",
    b"\xff\xff",
    b"\x80",
];

/// Longest wait of a check.
const TIMEOUT: Micros = Micros(50_000);
/// So often timers may ring at once, and twice a millisecond beside: whatever shares a moment, of three keys.
const RINGS: u64 = 1_000;
/// Longest step of time: an hour of a key that is in use are many timers.
const LONGEST: Micros = Micros(60_000_000);
/// The wall clock when the shard began.
const WALL: u64 = 1_800_000_000_000_000;
/// Limits, of which an input chooses.
const LIMITS: [&[&str]; 6] = [
    &["10/1s fixed"],
    &["100/10s burst 20"],
    &["50/1s sliding"],
    &["20/1m fixed from-first"],
    &["100/1s fixed", "1000/1h"],
    &["3/30s concurrent"],
];

/// See the module.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let mut stage = Stage::new(bytes.byte());
    while !bytes.0.is_empty() {
        stage.step(&mut bytes);
        stage.drain();
    }
    stage.pass(TIMEOUT);
    assert!(stage.parked.is_empty(), "never answered: {:?}", stage.parked);
}

/// What is left of an input; zeros follow it.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number, small or huge.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small),
            shift @ 200..=252 => (1 << (shift - 200)) + u64::from(self.byte()) - 128_u64.min(1 << (shift - 200)),
            253 => (1 << 53) - 1,
            254 => WALL + u64::from(self.byte()) * 100_000,
            255 => u64::from(self.byte()) << 8 | u64::from(self.byte()),
        }
    }
}

struct Stage {
    shard: Shard,
    rule: Arc<Rule>,
    now: Instant,
    calls: Vec<Call>,
    /// With their deadlines.
    parked: BTreeMap<Ticket, (Instant, u64)>,
    admitted: u64,
    lent: u64,
}

impl Stage {
    fn new(choice: u8) -> Self {
        let limits = LIMITS[usize::from(choice) % LIMITS.len()];
        let limits: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect("it is right")).collect();
        let mut rule = Rule::of("test", &limits);
        rule.on_store_loss = match choice / 6 % 4 {
            0 | 1 => OnStoreLoss::Deny,
            2 => OnStoreLoss::Share,
            _ => OnStoreLoss::Allow,
        };
        let now = Instant(3_600_000_000);
        let settings = Settings { max_keys: 3, timeout: TIMEOUT, lease_ahead: choice < 128 };
        let shard = Shard::new(settings, 7, 1, 1, (now, Timestamp(WALL)));
        Self { shard, rule: Arc::new(rule), now, calls: Vec::new(), parked: BTreeMap::new(), admitted: 0, lent: 0 }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.byte() % 10 {
            0 | 1 => {
                let (key, cost) = (bytes.byte() % 5, bytes.number());
                self.ask(key, (cost, cost), |shard, now, request| shard.check(now, request));
            }
            2 => self.pass(Micros(bytes.number().min(LONGEST.0 / 100) * 100)),
            3 | 4 => self.answer(bytes),
            5 => {
                let (place, kind) = (bytes.byte(), bytes.byte());
                let error = match kind % 4 {
                    0 => StoreError::Unknown,
                    1 => StoreError::Away { since: Instant(self.now.0 - u64::from(kind) * 10_000) },
                    2 => StoreError::Busy { wait: Micros(u64::from(kind) * 100) },
                    _ => StoreError::Full,
                };
                if let Some(call) = self.take(place) {
                    self.shard.handle_outcome(self.now, &call, Err(error));
                }
            }
            6 => {
                let usage = Usage {
                    digest: digest(bytes.byte() % 5),
                    limit: bytes.byte() % 9,
                    window: Timestamp(bytes.number()),
                    count: Count { admitted: bytes.number(), refunded: bytes.number() },
                    epoch: bytes.number(),
                };
                self.shard.handle_usage(self.now, PeerIndex(u32::from(bytes.byte() % 4)), &usage);
            }
            7 => {
                let (key, cost) = (bytes.byte() % 5, bytes.number());
                // What was spent here goes back to what is held here.
                self.lent = self.lent.saturating_add(cost);
                self.ask(key, (cost, 0), |shard, now, request| shard.refund(now, request));
            }
            8 => {
                let live = u32::from(bytes.byte() % 8) + 1;
                let flags = bytes.byte();
                let largest = live + u32::from(flags >> 4);
                let (has_looked, is_steady) = (flags & 1 > 0, flags & 2 > 0);
                let heard = Instant(self.now.0 - u64::from(flags) * 1_000);
                let round = Micros(200_000);
                let looks_until = if has_looked { heard } else { self.now + round };
                self.shard.handle_fleet(FleetView {
                    live,
                    largest,
                    has_looked,
                    looks_until: Some(looks_until),
                    is_steady,
                    heard: Some(heard),
                    round,
                });
            }
            _ => match bytes.byte() % 4 {
                0 => self.shard.handle_drain(self.now),
                1 => self.shard.drain_usage(self.now, 100, &mut Vec::new()),
                _ => self.ask(0, (0, 0), |shard, now, request| shard.reset(now, request)),
            },
        }
    }

    /// Asks; an admission counts as `counts` tokens.
    fn ask(&mut self, key: u8, (cost, counts): (u64, u64), asking: Asking) {
        let rule = self.rule.clone();
        let request = Request { rule: &rule, digest: digest(key), key: &[key], cost, peek: false };
        match asking(&mut self.shard, self.now, request) {
            Outcome::Decided(decision) => self.decided(counts, &decision),
            Outcome::Parked(ticket) => {
                let is_new = self.parked.insert(ticket, (self.now + TIMEOUT, counts)).is_none();
                assert!(is_new, "{ticket:?} is given twice");
            }
        }
    }

    fn decided(&mut self, counts: u64, decision: &Decision) {
        assert!(decision.remaining <= decision.limit, "{decision:?}");
        if decision.verdict == Verdict::Allow {
            self.admitted = self.admitted.saturating_add(counts);
        }
        let counts = self.rule.on_store_loss == OnStoreLoss::Deny && !self.rule.is_concurrent();
        assert!(
            !counts || self.admitted <= self.lent,
            "{} tokens are admitted, {} were lent",
            self.admitted,
            self.lent
        );
    }

    /// Time passes; what is due is done when it is due.
    fn pass(&mut self, span: Micros) {
        let end = self.now + span;
        let mut rings = 0;
        while let Some(due) = self.shard.poll_timeout().filter(|due| *due <= end) {
            rings += 1;
            assert!(rings <= RINGS + span.0 / 500, "timers ring {rings} times until {:?}, of {span:?}", self.now);
            self.now = self.now.max(due);
            self.shard.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
        let late = self.parked.iter().find(|(_, (deadline, _))| *deadline <= end);
        assert!(late.is_none(), "not answered by its deadline: {late:?} at {end:?}");
    }

    /// The store answers a call with what a script might.
    fn answer(&mut self, bytes: &mut Bytes<'_>) {
        let Some(call) = self.take(bytes.byte()) else { return };
        let (granted, flags) = (bytes.number(), bytes.byte());
        let most = match call.op {
            Op::Acquire(ask) => ask.want,
            Op::Return { amount, .. } | Op::Refund { amount, .. } => amount,
            Op::Occupy(ask) => ask.used.max(ask.want),
            Op::Peek | Op::Reset => 0,
        };
        // Mostly it is a grant that is used: nearly any number is none.
        let granted = if flags & 0x80 > 0 { granted } else { granted.min(most) };
        let now = WALL + (self.now.0 - 3_600_000_000) + u64::from(flags >> 4 & 7) * 1_000;
        let (epoch, nodes) = (5 + u64::from(flags >> 3 & 1), bytes.byte() % 9);
        // Replayed, damaged, and how many nodes.
        let marks = u64::from(flags & 7) + 16 * u64::from(nodes);
        let head = [granted, marks, epoch, now];
        let mut reply: Vec<u64> = head.into();
        for _ in 0..call.rule.limits.len() {
            reply.extend([bytes.number(), bytes.number()]);
            reply.push(match bytes.byte() {
                0..=99 => now + 1_000_000,
                100..=149 => now,
                _ => bytes.number(),
            });
        }
        let reply: Vec<i64> = reply.into_iter().map(|number| i64::try_from(number).unwrap_or(i64::MAX)).collect();
        let Ok(grant) = script::grant(&call, &reply) else {
            return self.shard.handle_outcome(self.now, &call, Err(StoreError::Unknown));
        };
        if matches!(call.op, Op::Acquire(_)) {
            self.lent = self.lent.saturating_add(grant.granted);
        }
        self.shard.handle_outcome(self.now, &call, Ok(grant));
    }

    fn take(&mut self, place: u8) -> Option<Call> {
        let count = self.calls.len();
        (count > 0).then(|| self.calls.remove(usize::from(place) % count))
    }

    fn drain(&mut self) {
        for _ in 0..100_000 {
            match self.shard.poll_effect() {
                None => return,
                Some(Effect::Call(call)) => self.calls.push(*call),
                Some(Effect::Reply { ticket, decision }) => {
                    let (_, counts) = self.parked.remove(&ticket).expect("it was parked, and not answered before");
                    self.decided(counts, &decision);
                }
                Some(effect @ (Effect::Ask { .. } | Effect::Answer { .. })) => panic!("it knows no peers: {effect:?}"),
            }
        }
        panic!("there is no end of effects");
    }
}

type Asking = fn(&mut Shard, Instant, Request<'_>) -> Outcome;

fn digest(key: u8) -> Digest {
    Digest::of("test", &[key])
}
