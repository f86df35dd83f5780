//! One call from its being handed over to its outcome: where it goes, and what each answer means for it.
//!
//! Follows at most one MOVED and one ASK, and sends a missing script once; an unknown outcome ends it. Waits for
//! nothing itself: it lies at the gate of its server, or where that one's replies are awaited, and goes on when the
//! answer is handed to it. Called by `redis.rs`; the answers come from `master.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::timeout;

use super::address::Address;
use super::cluster::Cluster;
use super::evalsha;
use super::failure::Failure;
use super::frame::Reply;
use super::gate::{Letter, Parcel};
use super::master::Master;
use super::slots;
use super::tally::{CallOutcome, Tally};
use super::wire::Answer;
use crate::core::call::{Call, Grant, Op, StoreError};
use crate::core::time::{Instant, Micros};
use crate::store::outcomes::Outcomes;
use crate::store::script::{self, Caller};
use crate::store::turns::Asker;

/// How long a return may wait until it leaves, at least.
const RETURNING: Micros = Micros::from_secs(1);

/// How long a call waits for the connection to a server that it was sent to: nobody else has its key.
const DIALLING: Duration = Duration::from_secs(1);

/// What all calls of a store share.
pub(super) struct Office {
    pub(super) cluster: Arc<Cluster>,
    pub(super) node: Box<str>,
    pub(super) prefix: Box<str>,
    pub(super) born: Instant,
}

impl Office {
    fn tally(&self) -> &Tally {
        &self.cluster.shared.tally
    }

    /// How long a call may wait until it leaves. Nobody waits for what a return brings, and it is tokens that
    /// are lost if it does not leave.
    fn patience(&self, op: &Op) -> Micros {
        let timeout = u64::try_from(self.cluster.shared.timeout.as_micros()).unwrap_or(u64::MAX);
        match op {
            Op::Return { .. } => Micros(timeout).max(RETURNING),
            // The answer must come in time, too, and take no part in a race against the deadline.
            _ => Micros(timeout - timeout / 8),
        }
    }

    /// The owner of the call's key, or why it can be sent nowhere.
    fn owner(&self, call: &Call, now: Instant) -> Result<Arc<Master>, Failure> {
        let slot = if self.cluster.shared.cluster { slots::slot_of(&script::digits(call.digest)) } else { 0 };
        // Without a map nobody has answered yet; with one, nobody owns the slot for now.
        let unowned = || Failure::Away(if self.cluster.map().masters.is_empty() { self.born } else { now });
        self.cluster.owner(slot).ok_or_else(unowned)
    }

    /// The server that `from` sends us to, once it is connected; `None` when that takes too long.
    async fn detour(&self, from: &Master, place: &str) -> Option<Arc<Master>> {
        let address = match (Address::parse(place), place.strip_prefix(':')) {
            (_, Some(port)) => from.address().neighbour("", port.parse().ok()?)?,
            (address, None) => address?,
        };
        let server = self.cluster.master_at(&address);
        timeout(DIALLING, server.connected()).await.ok()?;
        Some(server)
    }

    fn read(&self, call: &Call, answer: &Answer<'_>, expects: bool) -> Result<Grant, StoreError> {
        let grant = match &answer.reply {
            Reply::Integers(integers) => script::grant(call, integers),
            Reply::Value(value) => evalsha::grant(call, value),
        };
        let mut grant = grant.map_err(|error| {
            self.tally().rejected.fetch_add(1, Relaxed);
            tracing::warn!(%error, "store: reply not understood");
            StoreError::Unknown
        })?;
        if expects {
            // The write of a replayed grant may have left by another connection, which WAIT does not cover.
            grant.confirmed = !grant.replayed && answer.replicas.is_some_and(|replicas| replicas > 0);
            if !grant.confirmed {
                self.tally().unconfirmed.fetch_add(1, Relaxed);
            }
        } else {
            grant.confirmed = true;
        }
        Ok(grant)
    }
}

/// One call. When it is dropped without an outcome nobody knows what became of it.
pub(super) struct Journey {
    office: Arc<Office>,
    asker: Asker,
    /// Taken when its outcome is told.
    call: Option<(Call, Arc<dyn Outcomes>)>,
    started: Instant,
    server: Option<Arc<Master>>,
    /// Its grant has to be confirmed.
    expects: bool,
    moved: bool,
    asking: bool,
    with_source: bool,
}

impl Drop for Journey {
    fn drop(&mut self) {
        self.finish(Err(StoreError::Unknown));
    }
}

impl Journey {
    /// Sends `call` to its owner.
    pub(super) fn begin(office: &Arc<Office>, asker: Asker, call: Call, outcomes: Arc<dyn Outcomes>) {
        let started = office.cluster.shared.clock.now();
        let owner = office.owner(&call, started);
        let mut journey = Self {
            office: office.clone(),
            asker,
            call: Some((call, outcomes)),
            started,
            server: None,
            expects: false,
            moved: false,
            asking: false,
            with_source: false,
        };
        match owner {
            Ok(owner) => {
                journey.server = Some(owner);
                Box::new(journey).leave();
            }
            Err(failure) => journey.fail(failure),
        }
    }

    /// Leaves for the server.
    fn leave(mut self: Box<Self>) {
        let (Some((call, _)), Some(server)) = (&self.call, self.server.clone()) else { return };
        let confirms = self.office.cluster.shared.confirm.load(Relaxed);
        let expects = confirms && matches!(call.op, Op::Acquire(_));
        // What is confirmed travels by a connection of its own, and what is asked for a key must not overtake itself: a
        // refund that came before the acquire that charges what it gives back would find nothing to take back, and a
        // peek before a return would not see that.
        let (key, until) = (call.digest.0, call.sent_at + self.office.patience(&call.op));
        let errand = matches!(call.op, Op::Peek | Op::Refund { .. } | Op::Reset);
        self.expects = expects;
        server.dispatch(Parcel {
            asking: self.asking,
            confirmed: confirms && server.can_confirm(),
            asker: self.asker,
            key,
            errand,
            again: self.moved || self.asking || self.with_source,
            until,
            letter: self,
        });
    }

    /// Leaves for another server, once that is connected.
    fn turn_to(self: Box<Self>, place: String) {
        tokio::spawn(async move {
            let mut journey = self;
            let Some(from) = journey.server.take() else { return };
            journey.server = journey.office.detour(&from, &place).await;
            match journey.server {
                Some(_) => journey.leave(),
                None => {
                    let started = journey.started;
                    journey.fail(Failure::Away(started));
                }
            }
        });
    }

    /// What a failure leads to.
    fn fail(mut self, failure: Failure) {
        let error = match failure {
            Failure::Unknown => StoreError::Unknown,
            Failure::Away(since) => StoreError::Away { since },
            Failure::Busy(wait) => StoreError::Busy { wait },
            failure => {
                self.office.tally().rejected.fetch_add(1, Relaxed);
                let server = self.server.as_ref().map(|server| server.address().to_string());
                let key = self.call.as_ref().map(|(call, _)| script::key(&self.office.prefix, call.digest));
                tracing::warn!(server, ?failure, key, "store: call turned down");
                StoreError::Away { since: self.started }
            }
        };
        self.finish(Err(error));
    }

    /// Tells the outcome.
    fn finish(&mut self, outcome: Result<Grant, StoreError>) {
        let Some((call, outcomes)) = self.call.take() else { return };
        let counted = match &outcome {
            Ok(grant) if grant.replayed || grant.outdated => CallOutcome::Replayed,
            Ok(_) => CallOutcome::Ok,
            Err(StoreError::Unknown) => CallOutcome::Unknown,
            Err(StoreError::Busy { .. }) => CallOutcome::Busy,
            Err(StoreError::Away { .. } | StoreError::Full) => CallOutcome::Away,
        };
        self.office.tally().count_call(&call.op, counted);
        outcomes.handle_outcome(self.asker, call, outcome);
    }
}

impl Letter for Journey {
    fn write(&self, line: &mut Vec<u8>) {
        // Tests give scripts the time; in earnest they go by the clock of Redis.
        let caller = Caller { prefix: &self.office.prefix, node: &self.office.node, now: None };
        if let Some((call, _)) = &self.call {
            evalsha::write(line, &caller, call, self.with_source);
        }
    }

    fn handle_answer(mut self: Box<Self>, answer: Result<Answer<'_>, Failure>) {
        match answer {
            Ok(answer) => {
                let Some((call, _)) = &self.call else { return };
                let outcome = self.office.read(call, &answer, self.expects);
                self.finish(outcome);
            }
            Err(Failure::NoScript) if !self.with_source => {
                self.office.tally().noscript.fetch_add(1, Relaxed);
                self.with_source = true;
                self.leave();
            }
            Err(Failure::Moved(place)) if !self.moved => {
                self.office.tally().moved.fetch_add(1, Relaxed);
                self.office.cluster.shared.alarm.notify_one();
                (self.moved, self.asking, self.with_source) = (true, false, false);
                self.turn_to(place);
            }
            Err(Failure::Ask(place)) if !self.asking => {
                self.office.tally().ask.fetch_add(1, Relaxed);
                (self.asking, self.with_source) = (true, false);
                self.turn_to(place);
            }
            Err(failure) => self.fail(failure),
        }
    }
}
