//! The decider of a simulated daemon, which is the shipped core or a baseline to compare it with, behind one trait with
//! the core's `check`, `handle_*` and `poll_*`.
//!
//! The world drives it and knows no more of it. The rule of the core holds for all: after every call
//! that takes `&mut self`, drain `poll_effect`.

use std::num::NonZeroU64;

use rationd::core::ask::{Answer, Refusal, Terms};
use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::decision::Decision;
use rationd::core::fleet::FleetView;
use rationd::core::holds::Charge;
use rationd::core::key::Digest;
use rationd::core::owners::{Candidate, OwnerName};
use rationd::core::shard::{AskOutcome, Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Timestamp};
use rationd::core::usage::{PeerIndex, Report, Usage};

use crate::observe::Balance;

/// Decides for one daemon.
pub trait Limiter {
    /// Decides, or parks until the store has been asked.
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome;

    /// The same for one of several keys, parked until `deadline` at most. Baselines use their own deadline.
    fn check_by(&mut self, now: Instant, _deadline: Instant, request: Request<'_>) -> Outcome {
        self.check(now, request)
    }

    /// A check of this key is about to come.
    fn prefetch(&mut self, _now: Instant, _request: Request<'_>) {}

    /// Takes back an admission that was just made, because another key was denied. Baselines do not.
    fn rollback(&mut self, _now: Instant, _request: Request<'_>, _decision: &Decision) -> Option<Outcome> {
        None
    }

    /// The answer to a check by what the node knows, without the store. Baselines check as usual.
    fn peek_local(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.check(now, Request { peek: true, ..request })
    }

    /// Takes a cost back. A baseline does not: it answers like a peek.
    fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.check(now, Request { peek: true, ..request })
    }

    /// Takes a part of a charge back, as far as its windows are open.
    fn give_back(&mut self, now: Instant, request: Request<'_>, _charge: &Charge) -> Outcome {
        self.refund(now, request)
    }

    /// Forgets a key in the whole fleet. A baseline does not: it answers like a peek.
    fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.check(now, Request { peek: true, ..request })
    }

    /// Ends a permit of a concurrent limit; returns whether there was one. Baselines have none.
    fn release(&mut self, _now: Instant, _digest: Digest, _permit: NonZeroU64) -> bool {
        false
    }

    /// Takes the outcome of a call.
    fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>);

    /// Handles what is due.
    fn handle_timeout(&mut self, now: Instant);

    /// Returns the tokens that it holds, because the node leaves.
    fn drain(&mut self, now: Instant);

    /// What the driver must do next.
    fn poll_effect(&mut self) -> Option<Effect>;

    /// When `handle_timeout` wants to be called.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Keys in the table.
    fn keys(&self) -> u64;

    /// The sums of tokens over all keys.
    fn balance(&self, now: Instant) -> Balance;

    /// Tokens that checks have spent, over all keys, less those taken back into leases; 0 for baselines.
    fn spent(&self) -> u64 {
        0
    }

    /// Tokens held of a key that may be spent; 0 for baselines.
    fn held_of(&self, _now: Instant, _digest: Digest) -> u64 {
        0
    }

    /// Checks that wait.
    fn waiting(&self) -> u64;

    /// The fleet as it is seen from now on.
    fn handle_fleet(&mut self, _view: FleetView) {}

    /// Takes a peer's report.
    fn handle_usage(&mut self, _now: Instant, _origin: PeerIndex, _usage: &Usage) {}

    /// Appends about so many reports for peers.
    fn drain_usage(&mut self, _now: Instant, _most: usize, _into: &mut Vec<Report>) {}

    /// These peers may own keys from now on, beside this node of that name.
    fn handle_owners(&mut self, _own: OwnerName, _candidates: &[Candidate]) {}

    /// Takes a peer's ask for tokens. Baselines lend none.
    fn handle_ask(&mut self, _now: Instant, _request: Request<'_>, _terms: &Terms) -> AskOutcome {
        AskOutcome::Answered(Err(Refusal::OtherRule))
    }

    /// Takes the answer of a peer.
    fn handle_answer(&mut self, _now: Instant, _digest: Digest, _id: u64, _answer: &Answer) {}

    /// Sets how many daemons live, for the baseline that has no store to count them.
    fn set_nodes(&mut self, _nodes: u32) {}
}

/// The parameters of a decider.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The shard's settings.
    pub settings: Settings,
    /// The seed of its jitter and its secret.
    pub seed: u64,
    /// Its calls are numbered from here: ids grow across restarts.
    pub first_id: u64,
    /// The wall clock at this moment of the monotonic one.
    pub clock: (Instant, Timestamp),
    /// Shards of the shipped core that share its keys. A baseline has one.
    pub shards: u32,
}

impl Limiter for Shard {
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Self::check(self, now, request)
    }

    fn check_by(&mut self, now: Instant, deadline: Instant, request: Request<'_>) -> Outcome {
        Self::check_by(self, now, deadline, request)
    }

    fn prefetch(&mut self, now: Instant, request: Request<'_>) {
        Self::prefetch(self, now, request);
    }

    fn rollback(&mut self, now: Instant, request: Request<'_>, decision: &Decision) -> Option<Outcome> {
        Self::rollback(self, now, request, decision)
    }

    fn peek_local(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Outcome::Decided(Self::peek_local(self, now, request))
    }

    fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Self::refund(self, now, request)
    }

    fn give_back(&mut self, now: Instant, request: Request<'_>, charge: &Charge) -> Outcome {
        Self::give_back(self, now, request, charge)
    }

    fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Self::reset(self, now, request)
    }

    fn release(&mut self, now: Instant, digest: Digest, permit: NonZeroU64) -> bool {
        Self::release(self, now, digest, permit)
    }

    fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        Self::handle_outcome(self, now, call, outcome);
    }

    fn handle_timeout(&mut self, now: Instant) {
        Self::handle_timeout(self, now);
    }

    fn drain(&mut self, now: Instant) {
        self.handle_drain(now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        Self::poll_effect(self)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Self::poll_timeout(self)
    }

    fn keys(&self) -> u64 {
        self.stats().keys
    }

    fn balance(&self, _: Instant) -> Balance {
        // Held tokens are summed up from the leases themselves, so that a wrong balance shows.
        let mut balance = Balance { held: self.held(), ..Balance::default() };
        for (_, stats) in self.policy_stats() {
            balance.granted += stats.granted;
            balance.spent += stats.spent;
            balance.returned += stats.returned;
            balance.expired += stats.expired;
        }
        balance
    }

    fn spent(&self) -> u64 {
        self.policy_stats().map(|(_, stats)| stats.spent).sum()
    }

    fn held_of(&self, now: Instant, digest: Digest) -> u64 {
        Self::held_of(self, now, digest).unwrap_or(0)
    }

    fn waiting(&self) -> u64 {
        self.stats().waiting
    }

    fn handle_fleet(&mut self, view: FleetView) {
        Self::handle_fleet(self, view);
    }

    fn handle_usage(&mut self, now: Instant, origin: PeerIndex, usage: &Usage) {
        Self::handle_usage(self, now, origin, usage);
    }

    fn drain_usage(&mut self, now: Instant, most: usize, into: &mut Vec<Report>) {
        Self::drain_usage(self, now, most, into);
    }

    fn handle_owners(&mut self, own: OwnerName, candidates: &[Candidate]) {
        Self::handle_owners(self, own, candidates);
    }

    fn handle_ask(&mut self, now: Instant, request: Request<'_>, terms: &Terms) -> AskOutcome {
        Self::handle_ask(self, now, request, terms)
    }

    fn handle_answer(&mut self, now: Instant, digest: Digest, id: u64, answer: &Answer) {
        Self::handle_answer(self, now, digest, id, answer);
    }
}
