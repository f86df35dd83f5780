//! The daemon beside the formula: random sequences of checks against real daemons, on the embedded store, a real
//! Redis and a real Redis Cluster, every field of every answer judged by what the limits say. Stores must answer
//! alike within a trip. Prints a table; a divergence without a declared reason fails.
//!
//! `RATIOND_ORACLE_SEQUENCES` says how many a store (600 by itself), `RATIOND_ORACLE_SEED` which; with
//! `RATIOND_ORACLE_STRICT`, for a machine that does nothing else, not one divergence is forgiven, otherwise one in
//! fifty of those stores that are a trip away. `alike.rs` asks the same on virtual time, where nothing is late.

use crate::support;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use support::clock::{Watch, wall_us};
use support::cluster::RedisCluster;
use support::formula::Span;
use support::judge::{Answered, Ask, Divergence, Judge, More};
use support::process::Daemon;
use support::resp::{Connection, Reply};
use support::sequences::{self, Sequence};
use support::server::Server;

/// Policies that the sequences share.
const POLICIES: u64 = 400;
/// Connections, and sequences under way on each.
const CONNECTIONS: usize = 4;
const AT_ONCE: usize = 200;
/// What a divergence may be, and why.
const DECLARED: [(&str, &str); 11] = [
    ("after a late answer", "what was asked for in vain is kept for a second, and counts as of then"),
    ("as a window ends", "what arrives as its window ends is lent to nobody"),
    (ENDS, "what arrives as its window ends is lent to nobody"),
    (STOOD_STILL, "a PING that the test sent to the store itself was late, too: the policy chose"),
    (
        "within a longer trip",
        "a call behind the answer took longer than the checks of this key, and no longer than store.timeout beyond the \
         longest PING",
    ),
    ("retry_after larger by up to 200 ppm", DRIFT),
    ("retry_after_ms larger by up to 200 ppm", DRIFT),
    ("retry_after larger by up to 200 ppm, under other numbers", DRIFT),
    ("retry_after_ms larger by up to 200 ppm, under other numbers", DRIFT),
    ("retry_after larger by up to 200 ppm, after a refund of more than the window was charged", DRIFT),
    ("retry_after_ms larger by up to 200 ppm, after a refund of more than the window was charged", DRIFT),
];
/// What was denied for the little that is left of a window.
const ENDS: &str = "denied as its window ends";
/// What was turned away while the store, or all of this machine, did nothing.
const STOOD_STILL: &str = "turned away while the store stood still";
/// A PING that takes so long found no queue that is the daemon's.
const STILL_US: u64 = 8_000;
/// Between two of them.
const PING: Duration = Duration::from_millis(2);
/// Why a wait may be longer.
const DRIFT: &str = "clocks drift while the client waits: docs/concepts/guarantees.md";
/// Examples shown of each class.
const SHOWN: usize = 4;
/// `store.timeout`.
const TIMEOUT_US: u64 = 50_000;
/// A check is turned away as soon as the store's queue is longer than what is left of the timeout.
const LATE_US: u64 = TIMEOUT_US / 2;

/// Two cores: one store at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// What a store's answers came to.
#[derive(Default)]
struct Outcome {
    sequences: u64,
    off: u64,
    compared: u64,
    equal: u64,
    classes: BTreeMap<String, (u64, Vec<String>)>,
}

impl Outcome {
    fn merge(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.off += other.off;
        self.compared += other.compared;
        self.equal += other.equal;
        for (class, (count, examples)) in other.classes {
            let known = self.classes.entry(class).or_default();
            known.0 += count;
            known.1.extend(examples);
        }
    }
}

/// How exactly the time of a decision is known.
#[derive(Clone, Copy)]
struct Trip {
    /// Beside what the test saw of the sending and the receiving.
    slack_us: u64,
    /// A call goes to a store and comes back.
    is_far: bool,
}

const FAR: Trip = Trip { slack_us: 2_000, is_far: true };

/// When a server of the store did not answer a PING at once, or this machine did not run who sends it.
struct Stalls {
    watch: Watch,
    /// From when to when.
    known: Mutex<Vec<(u64, u64)>>,
    /// Per server, since when its answer is awaited, or whoever sends the next PING should have been run.
    due: Vec<AtomicU64>,
}

impl Stalls {
    fn new(servers: usize) -> Self {
        let due = (0..servers).map(|_| AtomicU64::new(u64::MAX)).collect();
        Self { watch: Watch::start(), known: Mutex::default(), due }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.watch.elapsed().as_micros()).expect("a test of this age")
    }

    /// Sends PINGs to a server, on a connection that has nothing else to do, until `stop`.
    fn watch(&self, number: usize, server: &Server, stop: &AtomicBool) {
        let mut connection = server.connect().expect("the server accepts");
        let mut due = self.now_us();
        while !stop.load(Ordering::Relaxed) {
            self.due[number].store(due, Ordering::SeqCst);
            let _pong: String = redis::cmd("PING").query(&mut connection).expect("an answer");
            let now = self.now_us();
            if now > due + STILL_US {
                self.known.lock().expect("nobody panics with it").push((due, now));
            }
            due = now + PING.as_micros() as u64;
            self.due[number].store(due, Ordering::SeqCst);
            Watch::start().pause_until(PING);
        }
        self.due[number].store(u64::MAX, Ordering::SeqCst);
    }

    /// The longest of them between `first` and `last`, which is over or goes on.
    fn between(&self, first: u64, last: u64) -> Option<u64> {
        let known = self.known.lock().expect("nobody panics with it");
        // They are kept as they end, but for what one thread notes a little later than another.
        let late = known.iter().rev().take_while(|(_, end)| *end + 1_000_000 > first);
        let over = late.filter(|(begin, end)| *begin < last && *end > first).map(|(begin, end)| end - begin);
        let now = self.now_us();
        let goes_on = self.due.iter().map(|due| due.load(Ordering::SeqCst)).filter(|due| *due < last);
        over.chain(goes_on.map(|due| now - due)).filter(|length| *length > STILL_US).max()
    }
}

/// A sequence under way.
struct Running {
    sequence: Sequence,
    policy: String,
    key: String,
    judge: Judge,
    /// The same, where each call may have taken as long as it may: what a call behind an answer took nobody sees.
    loose: Judge,
    next: usize,
    rate: Option<[u64; 3]>,
    longest_us: u64,
    began_us: u64,
    /// The same by the clock of stalls.
    begun_us: u64,
    story: String,
    diverged: bool,
    /// An answer came too late for its check.
    was_late: bool,
}

impl Running {
    fn new(policy: String, sequence: Sequence, trip: Trip) -> Self {
        let judge = Judge::new(&sequence.formulas(), trip.is_far);
        let key = format!("oracle:{}", sequence.name.replace(' ', "-"));
        Self {
            sequence,
            policy,
            key,
            loose: judge.clone(),
            judge,
            next: 0,
            rate: None,
            longest_us: 0,
            began_us: 0,
            begun_us: 0,
            story: String::new(),
            diverged: false,
            was_late: false,
        }
    }

    fn pause_us(&self) -> Option<u64> {
        self.sequence.steps.get(self.next).map(|step| step.pause_us)
    }

    /// Asks, and judges the answer.
    fn step(&mut self, connection: &mut Connection<UnixStream>, trip: Trip, stalls: &Stalls, outcome: &mut Outcome) {
        let step = self.sequence.steps[self.next].clone();
        self.next += 1;
        if let Some(rate) = step.rate {
            self.rate = Some(rate);
            let limits = [sequences::throttled(rate)];
            self.judge.change(&limits);
            self.loose.change(&limits);
        }
        let ask = match step.ask {
            // There a quantity of 0 peeks, and there is no other peek.
            Ask::Peek(_) if self.rate.is_some() => Ask::Peek(0),
            ask => ask,
        };
        let words = self.words(ask);
        let (sent, asked_us) = (wall_us(), stalls.now_us());
        let reply = connection.ask(&words.iter().map(String::as_bytes).collect::<Vec<_>>()).expect("an answer");
        let (received, answered_us) = (wall_us(), stalls.now_us());
        if self.began_us == 0 {
            (self.began_us, self.begun_us) = (sent, asked_us);
        }
        self.longest_us = self.longest_us.max(received - sent);
        let stall = stalls.between(asked_us, answered_us);
        let away = trip.slack_us + if trip.is_far { self.longest_us } else { 0 };
        let span = Span { first: sent - away, last: received + away };
        // A call behind an answer, of which nobody sees how long it took, stood as long as the store did.
        let wide = widened(span, stalls.between(self.begun_us, answered_us));
        let found = match answered(&reply) {
            Some(told) => self.judged((span, wide), trip, ask, &told, (answered_us - asked_us, stall)),
            None if reply == Reply::Simple("OK".into()) => {
                let Ask::Refund(cost) = ask else { panic!("OK to {words:?}") };
                self.judge.refunded(span, cost);
                self.loose.refunded(wide, cost);
                Vec::new()
            }
            None => {
                let Ask::Refund(cost) = ask else { panic!("{words:?}: {reply:?}") };
                self.judge.perhaps_refunded(span, cost);
                self.loose.perhaps_refunded(wide, cost);
                let class = if stall.is_some() { STOOD_STILL } else { "refund refused" };
                vec![Divergence { class: class.into(), detail: format!("{}, {}", reply.text(), said(stall)) }]
            }
        };
        outcome.compared += 1;
        outcome.equal += u64::from(found.is_empty());
        let numbers: Vec<_> = match &reply {
            Reply::Array(items) => items
                .iter()
                .map(|item| match item {
                    Reply::Int(number) => number.to_string(),
                    other => other.text(),
                })
                .collect(),
            other => vec![other.text()],
        };
        let asked = if self.rate.is_some() { words[2..].join(" ") } else { words[3..].join(" ") };
        let at = (sent - self.began_us) as f64 / 1_000.0;
        let (command, answer, took) = (&words[0], numbers.join(" "), answered_us - asked_us);
        self.story += &format!(
            "\n      {at:8.3} ms: {command} {asked} -> {answer} ({took} us{})",
            stall.map_or_else(String::new, |us| format!(", stall {us}"))
        );
        for divergence in &found {
            self.note(divergence, outcome);
        }
        self.diverged |= !found.is_empty();
        if self.pause_us().is_none() {
            outcome.sequences += 1;
            outcome.off += u64::from(self.diverged);
        }
    }

    fn judged(
        &mut self,
        (span, wide): (Span, Span),
        trip: Trip,
        ask: Ask,
        told: &Answered,
        (took_us, stall): (u64, Option<u64>),
    ) -> Vec<Divergence> {
        if !trip.is_far {
            return self.judge.judge(span, ask, told);
        }
        let (before, before_loose) = (self.judge.clone(), self.loose.clone());
        let found = self.judge.judge(span, ask, told);
        let found_loosely = self.loose.judge(wide, ask, told);
        if found.is_empty() {
            return found;
        }
        let explained = |class: &str, detail: String| vec![Divergence { class: class.into(), detail }];
        if found_loosely.is_empty() {
            self.judge = self.loose.clone();
            return explained("within a longer trip", format!("within {} us", span.first - wide.first));
        }
        let is_off = |one: &Divergence| !one.class.starts_with("falsely");
        if self.was_late && found.iter().all(is_off) {
            return explained("after a late answer", found[0].class.clone());
        }
        if before_loose.turns(wide) && found.iter().all(is_off) {
            return explained("as a window ends", found[0].class.clone());
        }
        // What was asked for arrived too late, and whoever is denied is told to come back in the next window.
        let ends = |more: &More| more.reason == "rate" && more.retry_ms * 1_000 <= TIMEOUT_US as i64;
        if before_loose.turns(wide) && told.more.as_ref().is_some_and(ends) {
            return explained(ENDS, format!("{}: {}", found[0].class, found[0].detail));
        }
        // `CL.THROTTLE` does not say why: what is turned away waits for no more than a second, and has not got enough.
        let is_turned_away = match &told.more {
            Some(more) => more.reason == "overload" || more.source == "share",
            None if told.limited => told.retry_s == 1,
            None => took_us >= LATE_US,
        };
        let is_verdict = !found.iter().all(is_off);
        if !is_turned_away || !is_verdict && took_us < LATE_US {
            return found;
        }
        if stall.is_none() {
            let is_late = if took_us >= LATE_US { ", late" } else { "" };
            return found.into_iter().map(|one| Divergence { class: one.class + is_late, ..one }).collect();
        }
        self.was_late = true;
        for (judge, before, span) in [(&mut self.judge, before, span), (&mut self.loose, before_loose, wide)] {
            *judge = before;
            match ask {
                // Whoever is let pass without an answer has spent all the same.
                Ask::Check(cost) if !told.limited => judge.surely_charged(span, cost),
                Ask::Check(_) => judge.perhaps_opened(span),
                Ask::Refund(cost) => judge.perhaps_refunded(span, cost),
                Ask::Peek(_) => {}
            }
        }
        explained(STOOD_STILL, format!("after {took_us} us, {}", said(stall)))
    }

    fn words(&self, ask: Ask) -> Vec<String> {
        let key = self.key.clone();
        let mut words = match (self.rate, ask) {
            (Some(_), _) => vec!["CL.THROTTLE".to_owned(), key],
            (None, Ask::Refund(_)) => vec!["RATION.REFUND".to_owned(), self.policy.clone(), key],
            (None, _) => vec!["RATION.CHECK".to_owned(), self.policy.clone(), key, "COST".to_owned()],
        };
        words.extend(self.rate.iter().flatten().map(u64::to_string));
        match (self.rate, ask) {
            (Some(_), Ask::Refund(cost)) => words.push(format!("-{cost}")),
            (None, Ask::Peek(cost)) => words.extend([cost.to_string(), "PEEK".to_owned()]),
            (_, Ask::Check(cost) | Ask::Refund(cost) | Ask::Peek(cost)) => words.push(cost.to_string()),
        }
        words
    }

    fn note(&self, divergence: &Divergence, outcome: &mut Outcome) {
        let (count, examples) = outcome.classes.entry(divergence.class.clone()).or_default();
        *count += 1;
        if examples.len() < SHOWN {
            let what = self.sequence.limits.join(", ");
            examples.push(format!("{} {what}: {}{}", self.sequence.name, divergence.detail, self.story));
        }
    }
}

fn said(stall: Option<u64>) -> String {
    stall.map_or_else(|| "every PING was answered".to_owned(), |us| format!("while a PING took {us} us"))
}

/// The span of a call that took as long as one may, and as long as the store stood still meanwhile.
fn widened(span: Span, stall: Option<u64>) -> Span {
    let most = TIMEOUT_US + stall.unwrap_or(0);
    Span { first: span.first - most, last: span.last + most }
}

/// The fields of a decision, if it is one.
fn answered(reply: &Reply) -> Option<Answered> {
    let Reply::Array(fields) = reply else { return None };
    let count = |index: usize| u64::try_from(fields[index].int()).expect("a count");
    let more = (fields.len() == 10).then(|| More {
        retry_ms: fields[5].int(),
        reset_at_ms: count(6),
        reason: fields[7].text(),
        limit_name: fields[8].text(),
        source: fields[9].text(),
    });
    Some(Answered {
        limited: fields[0].int() == 1,
        limit: count(1),
        remaining: count(2),
        retry_s: fields[3].int(),
        reset_s: count(4),
        more,
    })
}

/// Runs these sequences on one connection, many at a time.
fn run(daemon: &Daemon, sequences: Vec<(String, Sequence)>, trip: Trip, stalls: &Stalls) -> Outcome {
    let mut connection = daemon.connect().expect("the daemon accepts");
    let mut outcome = Outcome::default();
    let mut waiting = sequences.into_iter();
    let (mut due, mut slots) = (BinaryHeap::new(), BTreeMap::new());
    for index in 0.. {
        let watch = Watch::start();
        while slots.len() < AT_ONCE {
            let Some((policy, sequence)) = waiting.next() else { break };
            let running = Running::new(policy, sequence, trip);
            let number = index * AT_ONCE + slots.len();
            due.push(Reverse((wall_us() + running.pause_us().expect("a step"), number)));
            slots.insert(number, running);
        }
        let Some(Reverse((at, number))) = due.pop() else { break };
        watch.pause_until(Duration::from_micros(at.saturating_sub(wall_us())));
        let running = slots.get_mut(&number).expect("it is under way");
        running.step(&mut connection, trip, stalls, &mut outcome);
        match running.pause_us() {
            Some(pause) => due.push(Reverse((wall_us() + pause, number))),
            None => drop(slots.remove(&number)),
        }
    }
    outcome
}

/// All sequences against a daemon with this store, whose servers are watched.
fn compare(name: &str, store: &str, servers: &[Server], trip: Trip) {
    let seed = variable("RATIOND_ORACLE_SEED", rationd::clock::random() >> 32);
    let many = variable("RATIOND_ORACLE_SEQUENCES", 600);
    let mut config = store.to_owned();
    let known = sequences::known();
    let policies = (0..POLICIES).map(|number| sequences::policy(seed, number));
    for (number, limits) in policies.chain(known.iter().map(|known| known.limits.clone())).enumerate() {
        if !limits.is_empty() {
            config += &format!("[policy.p{number}]\nlimits = {limits:?}\n");
        }
    }
    let daemon = Daemon::start(&config);
    let named = known.into_iter().enumerate().map(|(index, known)| (format!("p{}", POLICIES + index as u64), known));
    let random = (0..many).map(|number| {
        let (policy, sequence) = sequences::sequence(seed, number, POLICIES);
        (policy.map_or_else(String::new, |number| format!("p{number}")), sequence)
    });
    let mut parts: Vec<Vec<_>> = (0..CONNECTIONS).map(|_| Vec::new()).collect();
    for (index, one) in named.chain(random).enumerate() {
        parts[index % CONNECTIONS].push(one);
    }
    let watch = Watch::start();
    let (mut outcome, stalls, stop) = (Outcome::default(), Stalls::new(servers.len()), AtomicBool::new(false));
    thread::scope(|scope| {
        let (daemon, stalls, stop) = (&daemon, &stalls, &stop);
        for (number, server) in servers.iter().enumerate() {
            scope.spawn(move || stalls.watch(number, server, stop));
        }
        let begin = |part| scope.spawn(move || run(daemon, part, trip, stalls));
        let running: Vec<_> = parts.into_iter().map(begin).collect();
        let ended: Vec<_> = running.into_iter().map(|part| part.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|part| outcome.merge(part.expect("a connection ended by itself")));
    });
    show(name, seed, &outcome, watch.elapsed());
    let undeclared: Vec<_> = outcome.classes.iter().filter(|(class, _)| reason(class).is_none()).collect();
    let count: u64 = undeclared.iter().map(|(_, (count, _))| count).sum();
    // Where other work starves the daemon its store is often too slow, and what follows is told by no formula.
    let is_strict = !trip.is_far || std::env::var_os("RATIOND_ORACLE_STRICT").is_some();
    let allowed = if is_strict { 0 } else { 1 + outcome.compared / 50 };
    let classes: Vec<_> = undeclared.iter().map(|(class, _)| class).collect();
    assert!(count <= allowed, "{name}, RATIOND_ORACLE_SEED={seed}: no reason is declared for {count}: {classes:?}");
}

fn reason(class: &str) -> Option<&'static str> {
    DECLARED.iter().find(|(declared, _)| *declared == class).map(|(_, reason)| *reason)
}

fn show(name: &str, seed: u64, outcome: &Outcome, took: Duration) {
    let Outcome { sequences, off, compared, equal, classes } = outcome;
    let mut text = format!(
        "| store | sequences | off the formula | compared | equal |\n| {name} | {sequences} | {off} | {compared} | {equal} |\n"
    );
    text += &format!("  RATIOND_ORACLE_SEED={seed}, {:.0} s\n", took.as_secs_f64());
    for (class, (count, examples)) in classes {
        text += &format!("  {count:6} {class}: {}\n", reason(class).unwrap_or("NO REASON DECLARED"));
        for example in examples.iter().take(SHOWN) {
            text += &format!("    {example}\n");
        }
    }
    std::io::stderr().write_all(text.as_bytes()).expect("stderr takes text");
}

#[test]
fn embedded_store_answers_by_the_formula() {
    let _turn = alone();
    compare("embedded", "", &[], Trip { slack_us: 1_000, is_far: false });
}

#[test]
fn redis_answers_by_the_formula() {
    let _turn = alone();
    let redis = Server::plain();
    compare("Redis", &format!("[store]\nurl = \"{}\"\n", redis.url()), std::slice::from_ref(&redis), FAR);
}

#[test]
fn cluster_answers_by_the_formula() {
    let _turn = alone();
    let cluster = RedisCluster::start();
    compare("Redis Cluster", &format!("[store]\nurl = \"{}\"\n", cluster.url()), &cluster.servers, FAR);
}
