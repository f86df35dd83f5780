//! Baselines that ask the store: for every check, or for leases of a batch that they choose simply.
//!
//! None sends a call again whose answer was lost, refills before it has run dry, or gives anything back. While the
//! store is away, checks are denied unless `on_store_loss = "allow"`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rationd::core::answer::{self, Resolution};
use rationd::core::call::{Acquire, Call, Counter, Grant, Known, Op, StoreError, Window};
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::key::Digest;
use rationd::core::lease::{Lease, Segment};
use rationd::core::limit::MAX_LIMITS;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::shard::{Effect, Outcome, Request, Ticket};
use rationd::core::store_clock::StoreClock;
use rationd::core::time::{Instant, Micros};

use crate::limiter::{Limiter, Start};
use crate::observe::Balance;
use crate::plan::Brain;

/// The first batch of `GrowHalve`.
const FIRST_BATCH: u64 = 10;

/// One of `PerRequest`, `Remembered`, `BatchOne`, `BatchThousand` and `GrowHalve`.
#[derive(Debug)]
pub struct Leasing {
    brain: Brain,
    timeout: Micros,
    clock: StoreClock,
    books: BTreeMap<Digest, Book>,
    effects: VecDeque<Effect>,
    /// Waiting checks, in the order of their deadlines.
    waiting: BTreeMap<Ticket, (Instant, Digest)>,
    balance: Balance,
    next_id: u64,
    next_ticket: u64,
}

/// What is known of one key.
#[derive(Debug)]
struct Book {
    rule: Arc<Rule>,
    counters: [Counter; MAX_LIMITS],
    clock: StoreClock,
    lease: Lease,
    line: VecDeque<Waiter>,
    /// The id of the acquire that is under way, its size, and when it counts as lost.
    asked: Option<(u64, u64, Instant)>,
    /// A cost that was denied, and until when that is remembered.
    denied: Option<(u64, Instant)>,
    batch: u64,
    /// The tokens of the last grant, and how many were spent since.
    lot: u64,
    spent: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    ticket: Ticket,
    cost: u64,
    asked: Instant,
}

impl Leasing {
    /// A baseline without any state.
    #[must_use]
    pub fn new(brain: Brain, start: &Start) -> Self {
        Self {
            brain,
            timeout: start.settings.timeout,
            clock: StoreClock::new(start.clock.0, start.clock.0, start.clock.1),
            books: BTreeMap::new(),
            effects: VecDeque::new(),
            waiting: BTreeMap::new(),
            balance: Balance::default(),
            next_id: start.first_id.max(1),
            next_ticket: 0,
        }
    }

    /// Whether each check sends a call of its own.
    fn asks_each_time(&self) -> bool {
        matches!(self.brain, Brain::PerRequest | Brain::Remembered)
    }

    fn call(&mut self, now: Instant, id: u64, digest: Digest, need: u64, least: u64) {
        let known = [Known::default(); MAX_LIMITS];
        let order = Acquire {
            need,
            want: need,
            least,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: rationd::core::call::JUST_NOW,
            known,
            until: None,
            claim: None,
        };
        let rule = self.books[&digest].rule.clone();
        let call = Call { id, digest, rule, op: Op::Acquire(order), sent_at: now };
        self.effects.push_back(Effect::Call(Box::new(call)));
    }

    /// Asks for the next batch, unless an acquire is under way.
    fn refill(&mut self, now: Instant, digest: Digest) {
        let book = self.books.get_mut(&digest).expect("a key that somebody waits for has a book");
        if book.asked.is_some_and(|(_, _, lost)| now < lost) {
            return;
        }
        let batch = match self.brain {
            Brain::BatchOne => 1,
            Brain::BatchThousand => 1_000,
            _ => book.tune(),
        };
        let need = batch.max(book.line.front().map_or(1, |waiter| waiter.cost));
        book.asked = Some((self.next_id, need, now + self.timeout));
        self.next_id += 1;
        self.call(now, self.next_id - 1, digest, need, 1);
    }

    /// Answers the one check that a call was for. These calls have no id, since an id must not be overtaken by a later
    /// one. Calls of the same time and cost are not told apart, because their checks may swap answers.
    fn settle_one(&mut self, now: Instant, call: &Call, grant: Option<&Grant>) {
        let Op::Acquire(Acquire { need, .. }) = call.op else { return };
        let Some(book) = self.books.get_mut(&call.digest) else { return };
        let is_own = |waiter: &Waiter| waiter.asked == call.sent_at && waiter.cost == need;
        let lent = grant.map_or(0, |grant| grant.granted);
        self.balance.granted += lent;
        let Some(place) = book.line.iter().position(is_own) else {
            self.balance.expired += lent;
            return;
        };
        let waiter = book.line.remove(place).expect("a position within");
        self.balance.spent += lent;
        let ending = match grant {
            None => unreachable(&book.rule),
            Some(_) if lent >= waiter.cost => Resolution::allow(Source::Store),
            Some(_) => Resolution::deny(Reason::Rate, Source::Store),
        };
        self.reply(now, call.digest, &waiter, ending);
    }

    /// Gives a grant, or the lack of one, to the waiting checks.
    fn settle_line(&mut self, now: Instant, call: &Call, grant: Option<&Grant>) {
        let Some(book) = self.books.get_mut(&call.digest) else { return };
        let Some((_, need, _)) = book.asked.filter(|(id, _, _)| *id == call.id) else { return };
        book.asked = None;
        if let Some(grant) = grant {
            self.balance.granted += grant.granted;
            self.balance.expired += book.add(now, call.sent_at, grant);
        }
        let mut served = Vec::new();
        while let Some(waiter) = book.line.front().copied() {
            let ending = match grant {
                None => unreachable(&book.rule),
                Some(_) if book.spend(now, waiter.cost) => Resolution::allow(Source::Store),
                Some(grant) if grant.granted < need => Resolution::deny(Reason::Rate, Source::Store),
                Some(_) => break,
            };
            book.line.pop_front();
            served.push((waiter, ending));
        }
        let is_left = !book.line.is_empty();
        for (waiter, ending) in served {
            let is_spent = grant.is_some() && ending.verdict == Verdict::Allow;
            self.balance.spent += if is_spent { waiter.cost } else { 0 };
            self.reply(now, call.digest, &waiter, ending);
        }
        if is_left {
            self.refill(now, call.digest);
        }
    }

    fn reply(&mut self, now: Instant, digest: Digest, waiter: &Waiter, ending: Resolution) {
        let book = self.books.get_mut(&digest).expect("who waits for a key has its book");
        let decision = book.answer(now, waiter.cost, ending);
        if let (Reason::Rate, Some(wait)) = (decision.reason, decision.retry_after) {
            book.denied = (self.brain != Brain::PerRequest).then_some((waiter.cost, now + wait));
        }
        self.waiting.remove(&waiter.ticket);
        self.effects.push_back(Effect::Reply { ticket: waiter.ticket, decision });
    }
}

impl Limiter for Leasing {
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let clock = self.clock;
        let book = self.books.entry(request.digest).or_insert_with(|| Book::new(request.rule, clock));
        self.balance.expired += book.settle(now, request.rule);
        if let Some(decision) = book.decide(now, &request) {
            if decision.verdict == Verdict::Allow && !request.peek {
                self.balance.spent += request.cost;
            }
            return Outcome::Decided(decision);
        }
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        book.line.push_back(Waiter { ticket, cost: request.cost, asked: now });
        self.waiting.insert(ticket, (now + self.timeout, request.digest));
        if self.asks_each_time() {
            let cost = request.cost;
            self.call(now, 0, request.digest, cost, cost);
        } else {
            self.refill(now, request.digest);
        }
        Outcome::Parked(ticket)
    }

    fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        let Some(book) = self.books.get_mut(&call.digest) else { return };
        let grant = outcome.ok().filter(|_| call.rule == book.rule);
        if let Some(grant) = &grant {
            book.learn(now, call, grant);
        }
        if self.asks_each_time() {
            self.settle_one(now, call, grant.as_ref());
        } else {
            self.settle_line(now, call, grant.as_ref());
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some((ticket, (_, digest))) = self.waiting.first_key_value().filter(|(_, (due, _))| *due <= now) {
            let (ticket, digest) = (*ticket, *digest);
            let book = self.books.get_mut(&digest).expect("who waits for a key has its book");
            let place = book.line.iter().position(|waiter| waiter.ticket == ticket).expect("it waits in line");
            let waiter = book.line.remove(place).expect("a position within");
            let ending = unreachable(&book.rule);
            self.reply(now, digest, &waiter, ending);
        }
    }

    fn drain(&mut self, _: Instant) {}

    fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    fn keys(&self) -> u64 {
        self.books.len() as u64
    }

    fn balance(&self, _: Instant) -> Balance {
        Balance { held: self.books.values().map(|book| book.lease.held()).sum(), ..self.balance }
    }

    fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }
}

impl Book {
    fn new(rule: &Arc<Rule>, clock: StoreClock) -> Self {
        Self {
            rule: rule.clone(),
            counters: [Counter::default(); MAX_LIMITS],
            clock,
            lease: Lease::default(),
            line: VecDeque::new(),
            asked: None,
            denied: None,
            batch: FIRST_BATCH,
            lot: 0,
            spent: 0,
        }
    }

    /// Takes over the rule and drops tokens that have ended; returns how many those were.
    fn settle(&mut self, now: Instant, rule: &Arc<Rule>) -> u64 {
        let mut gone = 0;
        if self.rule != *rule {
            gone += self.lease.void();
            (self.rule, self.counters, self.denied) = (rule.clone(), [Counter::default(); MAX_LIMITS], None);
        }
        let closed = self.lease.drop_ended(now, |leftover| gone += leftover.tokens);
        gone + closed
    }

    /// Decides from what is held and remembered; `None` when the store must be asked.
    fn decide(&mut self, now: Instant, request: &Request<'_>) -> Option<Decision> {
        let cost = request.cost;
        let ending = if request.peek || cost == 0 {
            Resolution::allow(Source::Lease)
        } else if self.rule.limits.iter().any(|limit| cost > limit.capacity()) {
            Resolution::deny(Reason::Cost, Source::Policy)
        } else if self.line.is_empty() && self.spend(now, cost) {
            Resolution::allow(Source::Lease)
        } else if self.denied.is_some_and(|(least, until)| cost >= least && now < until) {
            Resolution::deny(Reason::Rate, Source::Lease)
        } else {
            return None;
        };
        Some(self.answer(now, cost, ending))
    }

    fn spend(&mut self, now: Instant, cost: u64) -> bool {
        let spent = self.lease.spend(now, cost);
        self.spent += if spent { cost } else { 0 };
        spent
    }

    /// The next batch: half as much again if the last lease was used whole, and half of it if less than half was used.
    fn tune(&mut self) -> u64 {
        let most = self.rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
        if self.lot > 0 && self.spent >= self.lot {
            self.batch = (self.batch + self.batch.div_ceil(2)).min(most);
        } else if 2 * self.spent < self.lot {
            self.batch = (self.batch / 2).max(1); // rounded down
        }
        self.batch
    }

    /// Adds the tokens of a grant; returns how many older ones had to make room.
    fn add(&mut self, now: Instant, sent: Instant, grant: &Grant) -> u64 {
        let windows = grant.counters.map(|counter| counter.at.stored());
        let clock = StoreClock::new(sent, now, grant.now);
        (self.lot, self.spent) = (grant.granted, 0);
        let segment = Segment::new(&self.rule, grant.granted, sent, clock, &windows, false);
        self.lease.add(segment).map_or(0, |leftover| leftover.tokens)
    }

    fn learn(&mut self, now: Instant, call: &Call, grant: &Grant) {
        self.clock = StoreClock::new(call.sent_at, now, grant.now);
        self.counters = grant.counters;
        self.denied = None;
    }

    fn answer(&self, now: Instant, cost: u64, ending: Resolution) -> Decision {
        let mut counters = self.counters;
        for (limit, counter) in self.rule.limits.iter().zip(&mut counters) {
            counter.roll(limit, self.clock.latest(now));
            counter.release(limit, self.lease.held());
        }
        answer::decision(&self.rule, &counters[..self.rule.limits.len()], self.clock.earliest(now), cost, ending)
    }
}

/// The outcome of a check that the store did not answer.
fn unreachable(rule: &Rule) -> Resolution {
    match rule.on_store_loss {
        OnStoreLoss::Allow => Resolution::allow(Source::Policy),
        _ => Resolution::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)),
    }
}
