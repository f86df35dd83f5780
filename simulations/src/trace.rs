//! A hash of everything that happened in a run, with checkpoints. Two runs of one plan must agree in all of them, in
//! every process and build.

use rationd::core::ask::{Answer, Ask};
use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::Decision;

use crate::observe::{Holding, Moment, Observer, Request, Seen, Together};

/// Things seen between two checkpoints.
const STRIDE: u64 = 4_096;

/// The hash so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
    seen: u64,
    checkpoints: Vec<u64>,
}

impl Trace {
    /// The hash of all that was seen.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The hashes on the way, one after each 4096 things seen.
    #[must_use]
    pub fn checkpoints(&self) -> &[u64] {
        &self.checkpoints
    }

    fn add(&mut self, value: u64) {
        // FNV with a rotation: it only has to show differences, not to resist adversaries.
        self.hash = (self.hash.rotate_left(23) ^ value).wrapping_mul(0x0000_0100_0000_01b3) ^ (self.hash >> 29);
    }

    fn add_all(&mut self, values: &[u64]) {
        for value in values {
            self.add(*value);
        }
    }

    fn request(&mut self, kind: u64, request: &Request) {
        self.add_all(&[kind, request.id, request.node.into(), request.key.into(), request.cost, request.kind as u64]);
    }

    fn decision(&mut self, decision: &Decision) {
        self.add_all(&[decision.verdict as u64, decision.reason as u64, decision.source as u64]);
        self.add_all(&[decision.remaining, decision.retry_after.map_or(u64::MAX, |wait| wait.0), decision.reset_at.0]);
    }

    fn call(&mut self, kind: u64, node: u32, call: &Call) {
        let (what, amount) = match &call.op {
            Op::Acquire(ask) => (0, ask.want.rotate_left(32) ^ ask.need),
            Op::Return { amount, .. } => (1, *amount),
            Op::Peek => (2, 0),
            Op::Refund { amount, .. } => (3, *amount),
            Op::Reset => (4, 0),
            Op::Occupy(ask) => (5, ask.want.rotate_left(32) ^ ask.used),
        };
        self.add_all(&[kind, node.into(), call.id, call.digest.0 as u64, what, amount]);
    }

    fn ask(&mut self, kind: u64, (node, key): (u32, u32), ask: &Ask) {
        self.add_all(&[kind, node.into(), key.into(), ask.id, ask.terms.want, ask.terms.least, ask.terms.patience.0]);
    }

    fn answer(&mut self, answer: &Answer) {
        match answer {
            Ok(loan) => {
                self.add_all(&[loan.tokens, loan.lasts.map_or(0, |lasts| lasts.0), loan.epoch, loan.clock[0].0])
            }
            Err(refusal) => self.add(*refusal as u64),
        }
    }

    fn grant(&mut self, grant: &Grant) {
        self.add_all(&[grant.granted, grant.replayed.into(), grant.epoch, grant.now.0, grant.nodes.into()]);
        self.add_all(&[grant.counters[0].used, grant.counters[0].at.0]);
    }
}

impl Observer for Trace {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if matches!(seen, Seen::Picked { .. } | Seen::Repeated { .. } | Seen::Keeps { .. } | Seen::TakenBack { .. }) {
            // The frames of the first are hashed when they arrive, the second is not part of the run, and the others
            // have consequences that are hashed.
            return;
        }
        self.add(moment.at);
        match seen {
            Seen::Asked(request) => self.request(1, request),
            Seen::Answered { request, decision, parked, .. } => {
                self.request(2 + u64::from(*parked), request);
                self.decision(decision);
            }
            Seen::Orphaned(request) => self.request(4, request),
            Seen::Executed { node, call, grant, .. } => {
                self.call(5, *node, call);
                self.grant(grant);
            }
            Seen::Hold(hold, holding) => match holding {
                Holding::Kept { ttl, .. } => self.add_all(&[20, *hold, *ttl]),
                Holding::Settles { actual } => self.add_all(&[21, *hold, *actual]),
                Holding::Asks(request) => self.request(22, request),
                Holding::Stands(tokens) => self.add_all(&[23, *hold, *tokens]),
            },
            Seen::Together { group, node, what } => {
                let what = match what {
                    Together::Begins { keys } => *keys as u64,
                    Together::Asks { request } | Together::GoesBack { request } => request.id,
                    Together::Ends { denied } => u64::from(*denied),
                };
                self.add_all(&[27, *group, (*node).into(), what]);
            }
            Seen::Released { node, key, permit, released, .. } => {
                self.add_all(&[26, (*node).into(), (*key).into(), permit.get(), (*released).into()]);
            }
            Seen::Rehearsed { call, grant, .. } => {
                self.call(25, 0, call);
                if let Ok(grant) = grant {
                    self.grant(grant);
                }
            }
            Seen::Undone { key, .. } => self.add_all(&[6, (*key).into()]),
            Seen::Lost { key, .. } => self.add_all(&[7, (*key).into()]),
            Seen::Called { node, call, sent, .. } => self.call(8 + u64::from(*sent), *node, call),
            Seen::Settled { node, call, grant, .. } => {
                self.call(10, *node, call);
                if let Some(grant) = grant {
                    self.grant(grant);
                }
            }
            Seen::PeerAsked { node, key, ask, .. } => self.ask(28, (*node, *key), ask),
            Seen::PeerWaits { node, key, ask, .. } => self.ask(31, (*node, *key), ask),
            Seen::PeerAnswered { node, key, ask, answer, .. } => {
                self.ask(29, (*node, *key), ask);
                self.answer(answer);
            }
            Seen::PeerHeard { node, key, ask, answer, .. } => {
                self.ask(30, (*node, *key), ask);
                self.answer(answer);
            }
            Seen::Begins(fault) => self.add_all(&[11, fault.at.0]),
            Seen::Ends(fault) => self.add_all(&[12, fault.at.0]),
            Seen::Joined { node, incarnation } => self.add_all(&[13, (*node).into(), *incarnation]),
            Seen::Left { node, drained } => self.add_all(&[14, (*node).into(), (*drained).into()]),
            Seen::Audit { node, balance, keys, waiting } => {
                self.add_all(&[15, (*node).into(), balance.spent, balance.held, *keys, *waiting]);
            }
            Seen::Census { key, held, counter, .. } => self.add_all(&[24, (*key).into(), *held, counter.used]),
            Seen::Picked { .. }
            | Seen::Crowded { .. }
            | Seen::Repeated { .. }
            | Seen::Keeps { .. }
            | Seen::TakenBack { .. } => {}
            Seen::Calm => self.add(16),
            Seen::Over => self.add(17),
            Seen::Stuck => self.add(18),
            Seen::Reported { from, to, frames, .. } => {
                self.add_all(&[19, (*from).into(), (*to).into()]);
                for frame in frames.iter() {
                    self.add_all(&[frame.bytes.len() as u64, frame.sum()]);
                }
            }
        }
        self.seen += 1;
        if self.seen.is_multiple_of(STRIDE) {
            self.checkpoints.push(self.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::time::Timestamp;

    use super::*;

    #[test]
    fn order_and_time_matter() {
        let at = |at| Moment { at, store: Timestamp(0) };
        let hash = |moments: [u64; 2]| {
            let mut trace = Trace::default();
            trace.see(at(moments[0]), &Seen::Lost { key: 1, store: Timestamp(0) });
            trace.see(at(moments[1]), &Seen::Undone { key: 1, store: Timestamp(0) });
            trace.hash()
        };
        assert_eq!(hash([1, 2]), hash([1, 2]));
        assert_ne!(hash([1, 2]), hash([2, 2]));
        assert_ne!(hash([1, 2]), hash([2, 1]));
    }
}
