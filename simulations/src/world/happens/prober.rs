//! The last questions of a run, when demand is over and one client at a time asks.

use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::limit::Algorithm;

use crate::observe::{Kind, Request};
use crate::world::event::Event;
use crate::world::prober::{KEYS, LATE, PATIENCE, PAUSE, Prober, QUESTIONS};
use crate::world::state::World;

impl World<'_> {
    /// Demand ends.
    pub(in crate::world) fn quiet(&mut self) {
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
    pub(in crate::world) fn probation(&mut self) {
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
    pub(in crate::world) fn go_on_probing(&mut self, request: &Request, decision: &Decision) {
        let Some(prober) = self.prober.as_mut().filter(|prober| prober.request == request.id) else { return };
        prober.request = 0;
        let wait = decision.retry_after.filter(|_| decision.reason == Reason::Rate).map_or(u64::MAX, |wait| wait.0);
        let pause = match decision.verdict {
            // It has already waited for as long as it was told.
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

    /// The time at which a client has waited for `pause` by the clock of the node's host.
    fn when_waited(&self, node: u32, pause: u64) -> u64 {
        let clock = &self.nodes[node as usize].clock;
        clock.when(clock.local(self.now) + rationd::core::time::Micros(pause))
    }
}
