//! stub
use crate::observe::Balance;
use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::shard::{Effect, Outcome, Request, Shard};
use rationd::core::time::Instant;
pub trait Limiter {
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome;
    fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome;
    fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome;
    fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>);
    fn handle_timeout(&mut self, now: Instant);
    fn poll_effect(&mut self) -> Option<Effect>;
    fn poll_timeout(&self) -> Option<Instant>;
    fn drain(&mut self, now: Instant);
    fn keys(&self) -> u64;
    fn balance(&self, now: Instant) -> Balance;
    fn waiting(&self) -> u64;
    fn set_nodes(&mut self, _n: u32) {}
}
impl Limiter for Shard {
    fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Shard::check(self, now, request)
    }
    fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Shard::refund(self, now, request)
    }
    fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        Shard::reset(self, now, request)
    }
    fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        Shard::handle_outcome(self, now, call, outcome)
    }
    fn handle_timeout(&mut self, now: Instant) {
        Shard::handle_timeout(self, now)
    }
    fn poll_effect(&mut self) -> Option<Effect> {
        Shard::poll_effect(self)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Shard::poll_timeout(self)
    }
    fn drain(&mut self, now: Instant) {
        self.handle_drain(now)
    }
    fn keys(&self) -> u64 {
        self.stats().keys
    }
    fn balance(&self, _now: Instant) -> Balance {
        let mut balance = Balance { held: self.held(), ..Balance::default() };
        for (_, stats) in self.policy_stats() {
            balance.granted += stats.granted;
            balance.spent += stats.spent;
            balance.returned += stats.returned;
            balance.expired += stats.expired;
        }
        balance
    }
    fn waiting(&self) -> u64 {
        self.stats().waiting
    }
}
