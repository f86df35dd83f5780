//! One call from the moment it is handed over until its outcome: where it is sent, and what each answer means for it.
//!
//! It follows at most one MOVED and one ASK, and sends a missing script once; an unknown outcome ends it. It has no
//! task: it is stored at the gate of its server or in the list of awaited replies, and continues when the answer is
//! delivered to it. Called by `redis.rs`; the answers come from `master.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::timeout;

use super::address::Address;
use super::cluster::Cluster;
use super::evalsha;
use super::failure::Failure;
use super::frame::Reply;
use super::gate::{Request, Submission};
use super::joined::Joined;
use super::master::Master;
use super::slots;
use super::stats::{CallOutcome, StoreStats};
use super::wire::Answer;
use crate::core::call::{Call, Grant, Op, StoreError};
use crate::core::key::Digest;
use crate::core::time::{Instant, Micros};
use crate::store::outcomes::Outcomes;
use crate::store::script::{self, Caller, Script};
use crate::store::turns::Asker;

/// How long a return may wait to leave, at least: nobody waits for it, but tokens that are not returned are lost.
const RETURNING: Micros = Micros::from_secs(1);

/// How long an acquire that nobody waited for when it was sent may wait to leave, at least. An account is renewed 600 ms
/// before it closes.
const RENEWING: Micros = Micros::from_millis(300);

/// How long a redirected call waits for a connection to its new server, which is the only one that has its key: as long as a connection may take.
const DIALLING: Duration = Duration::from_secs(1);

/// What all calls of a store share.
pub(super) struct CallContext {
    pub(super) cluster: Arc<Cluster>,
    pub(super) node: Box<str>,
    pub(super) prefix: Box<str>,
    pub(super) born: Instant,
}

impl CallContext {
    fn stats(&self) -> &StoreStats {
        &self.cluster.shared.stats
    }

    /// How long a call may wait to leave. Nobody waits for the answer to a return, but its tokens are lost until the
    /// window ends if it never leaves, so it may wait longer. So may an acquire that no check waits for: if it were
    /// turned down, it would only be sent again. A check that comes to wait for it meanwhile hurries it.
    fn patience(&self, asker: Asker, op: &Op) -> Micros {
        let timeout = u64::try_from(self.cluster.shared.timeout.as_micros()).unwrap_or(u64::MAX);
        // The answer must also come back before the deadline, so an eighth of the time is kept for that.
        let patience = Micros(timeout - timeout / 8);
        match op {
            Op::Return { .. } => Micros(timeout).max(RETURNING),
            Op::Acquire(_) if asker == Asker::NODE => patience.max(RENEWING),
            _ => patience,
        }
    }

    /// `asker` waits for what was asked about a key, if that has not left.
    pub(super) fn hurry(&self, asker: Asker, digest: Digest) {
        if let Some(server) = self.cluster.owner(self.slot(digest)) {
            server.hurry(asker, digest.0);
        }
    }

    fn slot(&self, digest: Digest) -> u16 {
        if self.cluster.shared.cluster { slots::slot_of(&script::digits(digest)) } else { 0 }
    }

    /// The server that owns the call's key, or why the call can be sent to none.
    fn owner(&self, call: &Call, now: Instant) -> Result<Arc<Master>, Failure> {
        // An empty map means that no server has answered yet. Otherwise the slot has no owner at present.
        let unowned = || Failure::Away(if self.cluster.map().masters.is_empty() { self.born } else { now });
        self.cluster.owner(self.slot(call.digest)).ok_or_else(unowned)
    }

    /// The server to which `from` redirects us, once it is connected; `None` when that takes too long.
    async fn redirect_target(&self, from: &Master, place: &str) -> Option<Arc<Master>> {
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
            Reply::Text(text) => script::grant_in(call, text),
            Reply::Value(value) => evalsha::grant(call, value),
        };
        let mut grant = grant.map_err(|error| {
            self.stats().rejected.fetch_add(1, Relaxed);
            tracing::warn!(%error, "store: reply not understood");
            StoreError::Unknown
        })?;
        if expects {
            // If a grant is replayed, its write may have been sent over the other connection, which this `WAIT` does
            // not cover.
            grant.confirmed = !grant.replayed && answer.replicas.is_some_and(|replicas| replicas > 0);
            if !grant.confirmed {
                self.stats().unconfirmed.fetch_add(1, Relaxed);
            }
        } else {
            grant.confirmed = true;
        }
        Ok(grant)
    }
}

/// One call. If it is dropped before it has an outcome, its outcome is unknown.
pub(super) struct RoutedCall {
    context: Arc<CallContext>,
    asker: Asker,
    /// `None` once the outcome was delivered.
    call: Option<(Box<Call>, Arc<dyn Outcomes>)>,
    started: Instant,
    server: Option<Arc<Master>>,
    /// Its grant must be confirmed by a replica.
    expects: bool,
    moved: bool,
    asking: bool,
    with_source: bool,
}

impl Drop for RoutedCall {
    fn drop(&mut self) {
        self.finish(Err(StoreError::Unknown));
    }
}

impl RoutedCall {
    /// Sends `call` to the server that owns its key.
    pub(super) fn begin(context: &Arc<CallContext>, asker: Asker, call: Box<Call>, outcomes: Arc<dyn Outcomes>) {
        let started = context.cluster.shared.clock.now();
        let owner = context.owner(&call, started);
        let mut routed = Self {
            context: context.clone(),
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
                routed.server = Some(owner);
                Box::new(routed).leave(started);
            }
            Err(failure) => routed.fail(failure),
        }
    }

    /// Hands the call to the gate of its server at `now`.
    fn leave(mut self: Box<Self>, now: Instant) {
        let (Some((call, _)), Some(server)) = (&self.call, self.server.clone()) else { return };
        let confirms = self.context.cluster.shared.confirm.load(Relaxed);
        let expects = confirms && matches!(call.op, Op::Acquire(_));
        // All calls of a store use one of two connections: confirmed calls use their own. All calls about a key must
        // use the same one, or they would overtake each other: a refund that came before the acquire that it belongs
        // to would find nothing to take back, and a peek before a return would not see the returned tokens. So even
        // calls that need no confirmation are sent the same way.
        let (key, until) = (call.digest.0, call.sent_at + self.context.patience(self.asker, &call.op));
        let errand = matches!(call.op, Op::Peek | Op::Refund { .. } | Op::Reset);
        self.expects = expects;
        let submission = Submission {
            asking: self.asking,
            confirmed: confirms && server.can_confirm(),
            asker: self.asker,
            key,
            errand,
            again: self.moved || self.asking || self.with_source,
            until,
            request: self,
        };
        server.dispatch(now, submission);
    }

    /// Sends the call to another server, once that one is connected.
    fn redirect(self: Box<Self>, place: String) {
        tokio::spawn(async move {
            let mut routed = self;
            let Some(from) = routed.server.take() else { return };
            routed.server = routed.context.redirect_target(&from, &place).await;
            match routed.server {
                Some(_) => {
                    let now = routed.context.cluster.shared.clock.now();
                    routed.leave(now);
                }
                None => {
                    let started = routed.started;
                    routed.fail(Failure::Away(started));
                }
            }
        });
    }

    /// Ends the call with the error that a failure means.
    fn fail(mut self, failure: Failure) {
        let error = match failure {
            Failure::Unknown => StoreError::Unknown,
            Failure::Away(since) => StoreError::Away { since },
            Failure::Busy(wait) => StoreError::Busy { wait },
            failure => {
                self.context.stats().rejected.fetch_add(1, Relaxed);
                let server = self.server.as_ref().map(|server| server.address().to_string());
                let key = self.call.as_ref().map(|(call, _)| script::key(&self.context.prefix, call.digest));
                tracing::warn!(server, ?failure, key, "store: call turned down");
                StoreError::Away { since: self.started }
            }
        };
        self.finish(Err(error));
    }

    /// Counts and delivers the outcome.
    fn finish(&mut self, outcome: Result<Grant, StoreError>) {
        let Some((call, outcomes)) = self.call.take() else { return };
        let counted = match &outcome {
            Ok(grant) if grant.replayed || grant.outdated => CallOutcome::Replayed,
            Ok(_) => CallOutcome::Ok,
            Err(StoreError::Unknown) => CallOutcome::Unknown,
            Err(StoreError::Busy { .. }) => CallOutcome::Busy,
            Err(StoreError::Away { .. } | StoreError::Full) => CallOutcome::Away,
        };
        self.context.stats().count_call(&call.op, counted);
        outcomes.handle_outcome(self.asker, call, outcome);
    }
}

impl Request for RoutedCall {
    fn write(&self, line: &mut Vec<u8>) {
        // Only tests pass a time to the scripts; the daemon's calls use the clock of Redis.
        let caller = Caller { prefix: &self.context.prefix, node: &self.context.node, now: None };
        if let Some((call, _)) = &self.call {
            evalsha::write(line, &caller, call, self.with_source);
        }
    }

    fn unusual(&self) -> Option<&'static Script> {
        let (call, _) = self.call.as_ref().filter(|_| !self.with_source)?;
        Script::unusual(call)
    }

    fn join(&self, joined: &mut Joined) -> bool {
        let caller = Caller { prefix: &self.context.prefix, node: &self.context.node, now: None };
        let is_alone = self.moved || self.asking || self.with_source;
        !is_alone && self.call.as_ref().is_some_and(|(call, _)| joined.add(&caller, call))
    }

    fn handle_answer(mut self: Box<Self>, answer: Result<Answer<'_>, Failure>) {
        match answer {
            Ok(answer) => {
                let Some((call, _)) = &self.call else { return };
                let outcome = self.context.read(call, &answer, self.expects);
                self.finish(outcome);
            }
            Err(Failure::NoScript) if !self.with_source => {
                self.context.stats().noscript.fetch_add(1, Relaxed);
                self.with_source = true;
                let now = self.context.cluster.shared.clock.now();
                self.leave(now);
            }
            Err(Failure::Moved(place)) if !self.moved => {
                self.context.stats().moved.fetch_add(1, Relaxed);
                self.context.cluster.shared.map_stale.notify_one();
                (self.moved, self.asking, self.with_source) = (true, false, false);
                self.redirect(place);
            }
            Err(Failure::Ask(place)) if !self.asking => {
                self.context.stats().ask.fetch_add(1, Relaxed);
                (self.asking, self.with_source) = (true, false);
                self.redirect(place);
            }
            Err(failure) => self.fail(failure),
        }
    }
}
