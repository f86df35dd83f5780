//! A node of several shards, each of which decides for a part of the keys, as `src/serve/node.rs` has 64.
//!
//! A key's shard goes by its digest. Shards share nothing: their calls are numbered in steps, so that no two have one
//! number, and a peer that hears of a node's keys hears of all shards in turn. Tickets are unique within a shard only,
//! so they are made unique for the node here.

use std::num::NonZeroU64;

use rationd::core::ask::{Answer, Terms};
use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::decision::Decision;
use rationd::core::fleet::FleetView;
use rationd::core::holds::Charge;
use rationd::core::key::Digest;
use rationd::core::owners::{Candidate, OwnerName};
use rationd::core::shard::{AskOutcome, Effect, Outcome, Request, Settings, Shard, Ticket};
use rationd::core::time::Instant;
use rationd::core::usage::{PeerIndex, Report, Usage};

use crate::limiter::{Limiter, Start};
use crate::observe::Balance;

/// The shards of one node.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<Shard>,
    /// Rounds of gossip so far; each begins with another shard.
    round: usize,
}

impl Shards {
    /// So many shards as `start` says, each with its part of the table.
    #[must_use]
    pub fn new(start: &Start) -> Self {
        let count = u64::from(start.shards.max(1));
        let settings = Settings { max_keys: start.settings.max_keys.div_ceil(count as usize).max(1), ..start.settings };
        let shard = |index| {
            // Each has a secret and a jitter of its own.
            let seed = start.seed.wrapping_add(index);
            Shard::new(settings, seed, start.first_id + index, count, start.clock)
        };
        Self { shards: (0..count).map(shard).collect(), round: 0 }
    }

    fn index(&self, digest: Digest) -> usize {
        // As in the daemon, by bits of the digest that the shard's table does not use.
        (digest.0 >> 64) as usize % self.shards.len()
    }

    fn of(&mut self, digest: Digest) -> &mut Shard {
        let index = self.index(digest);
        &mut self.shards[index]
    }

    /// The outcome of a request of that key, whose ticket is made unique within the node.
    fn outer(&self, digest: Digest, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Parked(ticket) => Outcome::Parked(self.ticket(self.index(digest), ticket)),
            decided @ Outcome::Decided(_) => decided,
        }
    }

    fn ticket(&self, index: usize, Ticket(number): Ticket) -> Ticket {
        Ticket(number * self.shards.len() as u64 + index as u64)
    }
}

impl Limiter for Shards {
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let outcome = self.of(request.digest).check(now, request);
        self.outer(request.digest, outcome)
    }

    fn check_by(&mut self, now: Instant, deadline: Instant, request: Request<'_>) -> Outcome {
        let outcome = self.of(request.digest).check_by(now, deadline, request);
        self.outer(request.digest, outcome)
    }

    fn prefetch(&mut self, now: Instant, request: Request<'_>) {
        self.of(request.digest).prefetch(now, request);
    }

    fn rollback(&mut self, now: Instant, request: Request<'_>, decision: &Decision) -> Option<Outcome> {
        let outcome = self.of(request.digest).rollback(now, request, decision)?;
        Some(self.outer(request.digest, outcome))
    }

    fn peek_local(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Limiter::peek_local(self.of(request.digest), now, request)
    }

    fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let outcome = self.of(request.digest).refund(now, request);
        self.outer(request.digest, outcome)
    }

    fn give_back(&mut self, now: Instant, request: Request<'_>, charge: &Charge) -> Outcome {
        let outcome = self.of(request.digest).give_back(now, request, charge);
        self.outer(request.digest, outcome)
    }

    fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let outcome = self.of(request.digest).reset(now, request);
        self.outer(request.digest, outcome)
    }

    fn release(&mut self, now: Instant, digest: Digest, permit: NonZeroU64) -> bool {
        self.of(digest).release(now, digest, permit)
    }

    fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        self.of(call.digest).handle_outcome(now, call, outcome);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.shards.iter_mut().for_each(|shard| shard.handle_timeout(now));
    }

    fn drain(&mut self, now: Instant) {
        self.shards.iter_mut().for_each(|shard| shard.handle_drain(now));
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        let next = |(index, shard): (usize, &mut Shard)| shard.poll_effect().map(|effect| (index, effect));
        let (index, effect) = self.shards.iter_mut().enumerate().find_map(next)?;
        Some(match effect {
            Effect::Reply { ticket, decision } => Effect::Reply { ticket: self.ticket(index, ticket), decision },
            Effect::Answer { ticket, answer } => Effect::Answer { ticket: self.ticket(index, ticket), answer },
            effect @ (Effect::Call(_) | Effect::Ask { .. }) => effect,
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.shards.iter().filter_map(Shard::poll_timeout).min()
    }

    fn keys(&self) -> u64 {
        self.shards.iter().map(Limiter::keys).sum()
    }

    fn balance(&self, now: Instant) -> Balance {
        let mut sum = Balance::default();
        for balance in self.shards.iter().map(|shard| shard.balance(now)) {
            sum.granted += balance.granted;
            sum.spent += balance.spent;
            sum.returned += balance.returned;
            sum.expired += balance.expired;
            sum.held += balance.held;
        }
        sum
    }

    fn spent(&self) -> u64 {
        self.shards.iter().map(Limiter::spent).sum()
    }

    fn held_of(&self, now: Instant, digest: Digest) -> u64 {
        Limiter::held_of(&self.shards[self.index(digest)], now, digest)
    }

    fn waiting(&self) -> u64 {
        self.shards.iter().map(Limiter::waiting).sum()
    }

    fn handle_fleet(&mut self, view: FleetView) {
        self.shards.iter_mut().for_each(|shard| shard.handle_fleet(view));
    }

    fn handle_owners(&mut self, own: OwnerName, candidates: &[Candidate]) {
        self.shards.iter_mut().for_each(|shard| shard.handle_owners(own, candidates));
    }

    fn handle_ask(&mut self, now: Instant, request: Request<'_>, terms: &Terms) -> AskOutcome {
        match self.of(request.digest).handle_ask(now, request, terms) {
            AskOutcome::Parked(ticket) => AskOutcome::Parked(self.ticket(self.index(request.digest), ticket)),
            answered @ AskOutcome::Answered(_) => answered,
        }
    }

    fn handle_answer(&mut self, now: Instant, digest: Digest, id: u64, answer: &Answer) {
        self.of(digest).handle_answer(now, digest, id, answer);
    }

    fn handle_usage(&mut self, now: Instant, origin: PeerIndex, usage: &Usage) {
        self.of(usage.digest).handle_usage(now, origin, usage);
    }

    fn drain_usage(&mut self, now: Instant, most: usize, into: &mut Vec<Report>) {
        let count = self.shards.len();
        let first = self.round % count;
        self.round += 1;
        for drain in [Shard::drain_losses, Shard::drain_others] {
            for index in 0..count {
                drain(&mut self.shards[(first + index) % count], now, most, into);
            }
        }
    }
}
