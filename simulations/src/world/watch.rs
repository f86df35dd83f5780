//! Hands what is seen in a run to its observers.
//!
//! There are many checkers, and the code of all of them is larger than a processor's cache. So the watch collects some
//! events before it hands them on, all of them to one observer and then all to the next. Each observer still gets the
//! same events in the same order, which is enough because no observer changes anything and none knows of another.

use std::mem;
use std::num::NonZeroU64;
use std::sync::Arc;

use rationd::core::call::{Call, Grant};
use rationd::core::decision::Decision;
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;
use rationd::core::usage::Usage;

use super::crowd::Crowd;
use crate::frames::Frames;
use crate::maps::Set;
use crate::observe::{Balance, Holding, Moment, Observer, Ran, Request, Seen, Topic};
use crate::trace::Trace;

/// How many events are collected before they are handed on. With 128, `swarm --from 76000000000 --seeds 120` took a
/// twentieth longer on one thread, because the code of all observers was fetched more often; with 512 it was no
/// quicker, because the collected events displace other data from the cache.
const BATCH: usize = 256;

/// The observers of a run, and the events that are collected for them.
pub struct Watch<'a> {
    /// Checkers, ledger and series; each with a bit for each [`place`] that it wants.
    observers: Vec<(u32, &'a mut dyn Observer)>,
    /// The collected events, which of them belong to which [`place`], and how many are collected at most.
    kept: Vec<(Moment, Kept)>,
    places: Places,
    large: Large,
    batch: usize,
    /// The hash of all events.
    pub(super) trace: Trace,
    /// Keys of concurrent limits.
    pub(super) in_flight: Set<u32>,
    /// Present if some table has no room for all keys.
    pub(super) crowd: Option<Crowd>,
}

/// Which of the collected events belong to each [`place`]: a bit for each event, in its order.
#[derive(Debug, Default)]
struct Places([[u64; BATCH / 64]; 2 * TOPICS.len()]);

/// A frequent event with all that it refers to; large parts are in [`Large`] at the given index.
#[derive(Debug)]
enum Kept {
    Asked(Request),
    Answered { request: Request, rule: Arc<Rule>, decision: Decision, parked: bool, store: Timestamp },
    TakenBack { request: Request, rule: Arc<Rule>, kept: Option<u64>, store: Timestamp },
    Executed(usize),
    Called(usize),
    Settled(usize),
    Reported { from: u32, to: u32, frames: Frames, lies: bool },
    Picked { node: u32, usage: Vec<Usage>, lies: bool },
    Repeated(usize),
    Audit { node: u32, balance: Balance, keys: u64, waiting: u64 },
    Hold(u64, Held),
    Keeps { node: u32, incarnation: u64, key: u32, permit: NonZeroU64, until: u64 },
    Released { node: u32, incarnation: u64, key: u32, permit: NonZeroU64, released: bool },
}

/// See [`Holding`].
#[derive(Debug)]
enum Held {
    Kept { request: Request, ttl: u64 },
    Settles { actual: u64 },
    Asks(Request),
    Stands(u64),
}

impl Held {
    fn of(holding: Holding<'_>) -> Self {
        match holding {
            Holding::Kept { request, ttl } => Self::Kept { request: *request, ttl },
            Holding::Settles { actual } => Self::Settles { actual },
            Holding::Asks(request) => Self::Asks(*request),
            Holding::Stands(tokens) => Self::Stands(tokens),
        }
    }

    fn seen(&self) -> Holding<'_> {
        match self {
            Self::Kept { request, ttl } => Holding::Kept { request, ttl: *ttl },
            Self::Settles { actual } => Holding::Settles { actual: *actual },
            Self::Asks(request) => Holding::Asks(request),
            Self::Stands(tokens) => Holding::Stands(*tokens),
        }
    }
}

/// The large parts of collected events. They are reused over and over, because a fresh box for each was memory outside
/// the processor's cache.
#[derive(Debug, Default)]
struct Large {
    executed: Vec<Executed>,
    called: Vec<Called>,
    settled: Vec<Settled>,
    repeated: Vec<Repeated>,
}

/// See [`Seen::Called`].
#[derive(Debug)]
struct Called {
    node: u32,
    key: u32,
    call: Call,
    sent: bool,
}

/// See [`Seen::Executed`].
#[derive(Debug)]
struct Executed {
    master: u32,
    node: u32,
    incarnation: u64,
    key: u32,
    call: Call,
    grant: Grant,
    stale: bool,
    ran: Ran,
}

/// See [`Seen::Settled`].
#[derive(Debug)]
struct Settled {
    node: u32,
    incarnation: u64,
    key: u32,
    call: Call,
    grant: Option<Grant>,
}

/// See [`Seen::Repeated`].
#[derive(Debug)]
struct Repeated {
    now: Timestamp,
    key: u32,
    call: Call,
    grant: Result<Grant, String>,
    ran: Ran,
}

impl<'a> Watch<'a> {
    /// A watch for these observers, which also takes a trace.
    #[must_use]
    pub fn new(observers: Vec<&'a mut dyn Observer>) -> Self {
        let observers = observers.into_iter().map(|observer| (wanted(observer), observer)).collect();
        let (trace, in_flight) = (Trace::default(), Set::default());
        let (kept, places, large) = (Vec::with_capacity(BATCH), Places::default(), Large::default());
        Self { observers, kept, places, large, batch: BATCH, trace, in_flight, crowd: None }
    }

    /// Hands each event on before the next one happens, so that none is missing when a run panics.
    #[must_use]
    pub fn at_once(self) -> Self {
        Self { batch: 1, ..self }
    }

    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.trace.see(moment, seen);
        self.pass_on(moment, seen);
        if let Some(node) = self.crowd.as_mut().and_then(|crowd| crowd.see(seen)) {
            self.pass_on(moment, &Seen::Crowded { node });
        }
    }

    fn pass_on(&mut self, moment: Moment, seen: &Seen<'_>) {
        let of_permits = !self.in_flight.is_empty() && seen.key().is_some_and(|key| self.in_flight.contains(&key));
        let place = place(seen.topic(), of_permits);
        match self.large.keep(seen) {
            Some(kept) => {
                self.places.put(place, self.kept.len());
                self.kept.push((moment, kept));
                if self.kept.len() >= self.batch {
                    self.hand_on();
                }
            }
            None => {
                self.hand_on();
                for (wanted, observer) in &mut self.observers {
                    if *wanted & 1 << place != 0 {
                        observer.see(moment, seen);
                    }
                }
            }
        }
    }

    /// Hands the collected events on.
    fn hand_on(&mut self) {
        let (mut kept, places, large) = (mem::take(&mut self.kept), mem::take(&mut self.places), &self.large);
        let seen: Vec<_> = kept.iter().map(|(moment, kept)| (*moment, large.seen(kept))).collect();
        let present = places.present();
        for (wanted, observer) in &mut self.observers {
            for (part, seen) in seen.chunks(64).enumerate() {
                let mut rest = places.of(*wanted & present, part);
                while rest != 0 {
                    let (moment, seen) = &seen[rest.trailing_zeros() as usize];
                    rest &= rest - 1;
                    observer.see(*moment, seen);
                }
            }
        }
        drop(seen);
        kept.clear();
        self.large.clear();
        self.kept = kept;
    }
}

impl Places {
    /// The next event, number `before`, belongs to this place.
    fn put(&mut self, place: u32, before: usize) {
        self.0[place as usize][before / 64] |= 1 << (before % 64);
    }

    /// The places with events: a bit for each.
    fn present(&self) -> u32 {
        self.0
            .iter()
            .enumerate()
            .fold(0, |present, (place, bits)| present | u32::from(*bits != [0; BATCH / 64]) << place)
    }

    /// Which of 64 events belong to any of those places.
    fn of(&self, mut wanted: u32, part: usize) -> u64 {
        let mut things = 0;
        while wanted != 0 {
            things |= self.0[wanted.trailing_zeros() as usize][part];
            wanted &= wanted - 1;
        }
        things
    }
}

/// The topics of events: first those that most observers want, then those that few want.
const TOPICS: [Option<Topic>; 10] = [
    None,
    Some(Topic::Answered),
    Some(Topic::Executed),
    Some(Topic::Called),
    Some(Topic::Settled),
    Some(Topic::Asked),
    Some(Topic::Audit),
    Some(Topic::Reported),
    Some(Topic::Picked),
    Some(Topic::Repeated),
];

/// How many of them most observers want.
const MOST: usize = 5;

/// The index of a topic among them; events about concurrent limits come after all others.
fn place(topic: Option<Topic>, of_permits: bool) -> u32 {
    let place = match topic {
        None | Some(Topic::Permits) => 0,
        Some(Topic::Answered) => 1,
        Some(Topic::Executed) => 2,
        Some(Topic::Called) => 3,
        Some(Topic::Settled) => 4,
        Some(Topic::Asked) => 5,
        Some(Topic::Audit) => 6,
        Some(Topic::Reported) => 7,
        Some(Topic::Picked) => 8,
        Some(Topic::Repeated) => 9,
    };
    place + if of_permits { TOPICS.len() as u32 } else { 0 }
}

/// The places that an observer wants: a bit for each.
fn wanted(observer: &dyn Observer) -> u32 {
    let is_wanted = |place: usize| match TOPICS[place] {
        Some(topic) if place < MOST => !observer.ignores(topic),
        Some(topic) => observer.minds(topic),
        None => true,
    };
    let plain = (0..TOPICS.len()).filter(|place| is_wanted(*place)).fold(0, |wanted, place| wanted | 1 << place);
    plain | if observer.minds(Topic::Permits) { plain << TOPICS.len() } else { 0 }
}

impl Large {
    /// Collects a frequent event; `None` for others, which are handed on at once.
    fn keep(&mut self, seen: &Seen<'_>) -> Option<Kept> {
        Some(match *seen {
            Seen::Asked(request) => Kept::Asked(*request),
            Seen::Answered { request, rule, decision, parked, store } => {
                Kept::Answered { request: *request, rule: rule.clone(), decision: *decision, parked, store }
            }
            Seen::TakenBack { request, rule, kept, store } => {
                Kept::TakenBack { request: *request, rule: rule.clone(), kept, store }
            }
            Seen::Executed { master, node, incarnation, key, call, grant, stale, ran } => {
                let (call, grant, ran) = (call.clone(), *grant, ran.clone());
                Kept::Executed(put(
                    &mut self.executed,
                    Executed { master, node, incarnation, key, call, grant, stale, ran },
                ))
            }
            Seen::Called { node, key, call, sent } => {
                Kept::Called(put(&mut self.called, Called { node, key, call: call.clone(), sent }))
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let (call, grant) = (call.clone(), grant.copied());
                Kept::Settled(put(&mut self.settled, Settled { node, incarnation, key, call, grant }))
            }
            Seen::Reported { from, to, frames, lies } => Kept::Reported { from, to, frames: frames.clone(), lies },
            Seen::Picked { node, usage, lies } => Kept::Picked { node, usage: usage.to_vec(), lies },
            Seen::Audit { node, balance, keys, waiting } => Kept::Audit { node, balance, keys, waiting },
            Seen::Repeated { now, key, call, grant, ran } => {
                let (call, grant, ran) = (call.clone(), grant.copied().map_err(String::clone), ran.clone());
                Kept::Repeated(put(&mut self.repeated, Repeated { now, key, call, grant, ran }))
            }
            Seen::Hold(hold, holding) => Kept::Hold(hold, Held::of(holding)),
            Seen::Keeps { node, incarnation, key, permit, until } => {
                Kept::Keeps { node, incarnation, key, permit, until }
            }
            Seen::Released { node, incarnation, key, permit, released } => {
                Kept::Released { node, incarnation, key, permit, released }
            }
            _ => return None,
        })
    }

    fn seen<'a>(&'a self, kept: &'a Kept) -> Seen<'a> {
        match kept {
            Kept::Asked(request) => Seen::Asked(request),
            Kept::Answered { request, rule, decision, parked, store } => {
                Seen::Answered { request, rule, decision, parked: *parked, store: *store }
            }
            Kept::TakenBack { request, rule, kept, store } => {
                Seen::TakenBack { request, rule, kept: *kept, store: *store }
            }
            Kept::Executed(place) => {
                let Executed { master, node, incarnation, key, ref call, ref grant, stale, ref ran } =
                    self.executed[*place];
                Seen::Executed { master, node, incarnation, key, call, grant, stale, ran }
            }
            Kept::Called(place) => {
                let Called { node, key, ref call, sent } = self.called[*place];
                Seen::Called { node, key, call, sent }
            }
            Kept::Settled(place) => {
                let Settled { node, incarnation, key, ref call, ref grant } = self.settled[*place];
                Seen::Settled { node, incarnation, key, call, grant: grant.as_ref() }
            }
            Kept::Reported { from, to, frames, lies } => Seen::Reported { from: *from, to: *to, frames, lies: *lies },
            Kept::Repeated(place) => {
                let Repeated { now, key, ref call, ref grant, ref ran } = self.repeated[*place];
                Seen::Repeated { now, key, call, grant: grant.as_ref(), ran }
            }
            Kept::Picked { node, usage, lies } => Seen::Picked { node: *node, usage, lies: *lies },
            Kept::Audit { node, balance, keys, waiting } => {
                Seen::Audit { node: *node, balance: *balance, keys: *keys, waiting: *waiting }
            }
            Kept::Hold(hold, held) => Seen::Hold(*hold, held.seen()),
            Kept::Keeps { node, incarnation, key, permit, until } => {
                Seen::Keeps { node: *node, incarnation: *incarnation, key: *key, permit: *permit, until: *until }
            }
            Kept::Released { node, incarnation, key, permit, released } => Seen::Released {
                node: *node,
                incarnation: *incarnation,
                key: *key,
                permit: *permit,
                released: *released,
            },
        }
    }

    fn clear(&mut self) {
        self.executed.clear();
        self.called.clear();
        self.settled.clear();
        self.repeated.clear();
    }
}

/// Appends an item, and returns its index.
fn put<T>(list: &mut Vec<T>, item: T) -> usize {
    list.push(item);
    list.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lua::Scripts;
    use crate::swarm;
    use crate::world::{World, setting};

    /// Writes down all events, or those without a topic.
    #[derive(Default)]
    struct Log {
        topics: bool,
        lines: Vec<String>,
    }

    impl Observer for Log {
        fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
            self.lines.push(format!("{moment:?} {seen:?}"));
        }

        fn minds(&self, _: Topic) -> bool {
            self.topics
        }
    }

    #[test]
    fn what_is_kept_is_told_in_order_and_to_the_last() {
        // Of many nodes, with faults; and with a concurrent limit.
        for seed in [3, 16] {
            let setting = setting(&swarm::plan(seed)).unwrap();
            let seen = |at_once: bool| {
                let mut logs = [true, false].map(|topics| Log { topics, ..Log::default() });
                let [one, other] = &mut logs;
                let watch = Watch::new(vec![one, other]);
                let watch = if at_once { watch.at_once() } else { watch };
                World::new(&setting, &mut Scripts::new(), watch).run();
                logs.map(|log| log.lines)
            };
            let [all, some] = seen(true);
            assert!(all.len() > some.len() && some.len() > 10 * BATCH);
            assert!(seen(false) == [all, some], "seed {seed}");
        }
    }
}
