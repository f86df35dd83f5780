//! The last requests of a run. When demand has ended, one client at a time spends a key until it is denied, waits for
//! exactly as long as it was told, and asks again; checkers judge whether it was then admitted. Before that, once per
//! window, clients come just after the window's end, when what a node holds of it must no longer be spent, however
//! slow the node's clock is.

use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::limit::Algorithm;

use super::World;
use super::event::Event;
use crate::observe::{Kind, Request};

/// Keys that are probed.
const KEYS: usize = 6;

/// Most requests about one key.
const QUESTIONS: u32 = 400;

/// Longest wait that the prober waits for.
const PATIENCE: u64 = 5_000_000;

/// Time between the end of demand and the first request, and between two keys.
const PAUSE: u64 = 3_000_000;

/// How long after the end of a window the first client comes, and by how much later the last.
const LATE: (u64, u64) = (20, 500);

/// A client that asks about one key after another.
#[derive(Debug)]
pub(super) struct Prober {
    /// Policy and key.
    keys: Vec<(u32, u32)>,
    asked: u32,
    waited: bool,
    request: u64,
}

impl Prober {
    pub(super) fn is_done(&self) -> bool {
        self.keys.is_empty()
    }

    fn next_key(&mut self) {
        self.keys.pop();
        (self.asked, self.waited) = (0, false);
    }
}

impl World<'_> {
    /// Demand ends.
    pub(super) fn quiet(&mut self) {
        if self.plan.calm.0 > 0 {
            let keys = self.keys.first(usize::MAX).into_iter();
            let counted = |policy: u32| !self.first_rules[policy as usize].is_concurrent();
            let keys: Vec<_> = keys.filter(|(policy, _)| counted(*policy)).take(KEYS).collect();
            self.take_the_last();
            keys.iter().for_each(|(policy, key)| self.come_late(*policy, *key));
            self.prober = Some(Prober { keys, asked: 0, waited: false, request: 0 });
            self.queue.push(self.now + PAUSE, Event::Probation);
        }
    }

    /// Sends a request to each node just after the windows of a key have ended.
    fn come_late(&mut self, policy: u32, key: u32) {
        let store = self.cluster.owner_time(self.keys.get(key).digest, self.now).0;
        for node in self.up.clone() {
            let rule = self.nodes[node as usize].rules[policy as usize].clone();
            for limit in rule.limits.iter().filter(|limit| limit.algorithm != Algorithm::Gcra) {
                let period = limit.period.0;
                let late = LATE.0 + u64::from(node * 7 + key) * 131 % LATE.1;
                let request = self.request(node, key, policy, 1, Kind::Check);
                self.queue.push(self.now + period - store % period + late, Event::Come(Box::new(request)));
            }
        }
    }

    /// The prober's next question.
    pub(super) fn probation(&mut self) {
        let Some((policy, key)) = self.prober.as_ref().and_then(|prober| prober.keys.last().copied()) else { return };
        if self.up.is_empty() {
            return self.queue.push(self.now + PAUSE, Event::Probation);
        }
        let node = self.up[key as usize % self.up.len()];
        let rule = &self.nodes[node as usize].rules[policy as usize];
        let capacity = rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
        let cost = (1 + u64::from(key) % 3 + capacity / 300).min(capacity);
        let request = self.request(node, key, policy, cost, Kind::Check);
        let prober = self.prober.as_mut().expect("looked at above");
        prober.request = request.id;
        prober.asked += 1;
        self.ask(request);
    }

    /// A request was answered; the prober continues if it was its own.
    pub(super) fn told(&mut self, request: &Request, decision: &Decision) {
        let Some(prober) = self.prober.as_mut().filter(|prober| prober.request == request.id) else { return };
        prober.request = 0;
        let wait = decision.retry_after.filter(|_| decision.reason == Reason::Rate).map_or(u64::MAX, |wait| wait.0);
        let pause = match decision.verdict {
            // It was told a wait, and has waited.
            _ if prober.waited => None,
            Verdict::Deny if wait <= PATIENCE => {
                prober.waited = true;
                Some(wait)
            }
            Verdict::Allow if prober.asked < QUESTIONS => Some(1_000),
            _ => None,
        };
        if pause.is_none() {
            prober.next_key();
        }
        let at = pause.map_or(self.now + PAUSE, |pause| self.when_waited(request.node, pause));
        self.queue.push(at, Event::Probation);
    }

    /// The time at which a client on the node's host has waited so long by its clock.
    fn when_waited(&self, node: u32, pause: u64) -> u64 {
        let clock = &self.nodes[node as usize].clock;
        clock.when(clock.local(self.now) + rationd::core::time::Micros(pause))
    }
}
