//! Calls as letters, each for itself: what a network may bring twice, and what no connection does.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Op};
use simulations::lua::Scripts;
use simulations::observe::{Moment, Observer, Seen};
use simulations::plan::{Daemon, Demand, Network, Plan, Redis, Shape};
use simulations::span::Span;
use simulations::world::{self, Watch, World};

/// How often calls left and were executed, by their id and whether they say until when they may be executed.
#[derive(Default)]
struct Log {
    left: BTreeMap<(u64, bool), u32>,
    executed: BTreeMap<(u64, bool), u32>,
}

/// An acquire that says no time; what takes something back says none in any case.
fn is_without_time(call: &Call) -> bool {
    matches!(call.op, Op::Acquire(order) if order.until.is_none())
}

impl Observer for Log {
    fn see(&mut self, _: Moment, seen: &Seen<'_>) {
        let (calls, call) = match seen {
            Seen::Called { call, sent: true, .. } => (&mut self.left, call),
            Seen::Executed { call, .. } => (&mut self.executed, call),
            _ => return,
        };
        *calls.entry((call.id, is_without_time(call))).or_default() += 1;
    }
}

/// One node and one master; each letter arrives twice, and of ten one is lost. Where checks wait for longer than half a second,
/// acquires say no time.
fn log(timeout: Span) -> Log {
    let plan = Plan {
        nodes: 1,
        span: Span::secs(6),
        daemon: Daemon { timeout, ..Daemon::default() },
        network: Network { loss: 100, repeats: 1_000, ..Network::default() },
        redis: Redis { masters: 1, ..Redis::default() },
        demand: vec![Demand {
            rate: 50,
            shape: Shape::Steady,
            keys: 40,
            churn: Span::millis(700),
            ..Demand::default()
        }],
        ..Plan::default()
    };
    let setting = world::setting(&plan).expect("a plan of this test");
    let (mut log, mut scripts) = (Log::default(), Scripts::new());
    World::new(&setting, &mut scripts, Watch::new(vec![&mut log])).run();
    log
}

#[test]
fn an_acquire_without_a_time_arrives_once_each_time_it_is_sent() {
    let log = log(Span::millis(600));
    let (mut sent, mut again) = (0, 0);
    for ((id, _), executed) in log.executed.iter().filter(|((_, without), _)| *without) {
        assert_eq!((*executed, log.left[&(*id, true)]), (1, 1), "call {id}");
        sent += 1;
    }
    // Its node sends it again under its id, if the answer was lost, and says a time then.
    for ((id, _), left) in log.left.iter().filter(|((_, without), _)| *without) {
        assert_eq!(*left, 1, "call {id}");
        again += u32::from(log.left.contains_key(&(*id, false)));
    }
    assert!(sent > 100 && again > 5, "{sent} {again}");
}

#[test]
fn what_says_a_time_or_takes_something_back_may_arrive_twice() {
    for timeout in [Span::millis(25), Span::millis(600)] {
        let log = log(timeout);
        let twice = log.executed.iter().filter(|((_, without), executed)| !without && **executed > 1).count();
        assert!(twice > 5, "{timeout}: {twice}");
    }
}
