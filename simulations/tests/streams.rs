//! Calls on connections: what is lost arrives late and in order, and only silence or a reset makes an
//! outcome unknown.

use simulations::lua::Scripts;
use simulations::observe::{Moment, Observer, Seen};
use simulations::plan::{Calls, Demand, Fault, Network, Plan, Redis, Shape, Way, What};
use simulations::span::Span;
use simulations::world::{self, Watch, World};

/// What became of the calls of one node.
#[derive(Default)]
struct Log {
    /// Ids in the order in which they left, and were executed.
    left: Vec<u64>,
    executed: Vec<u64>,
    /// When outcomes came of which nothing is known, and when a call did not leave.
    unknown: Vec<u64>,
    barred: Vec<u64>,
    known: usize,
}

impl Observer for Log {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Called { call, sent: true, .. } => self.left.push(call.id),
            Seen::Called { sent: false, .. } => self.barred.push(moment.at),
            Seen::Executed { call, .. } => self.executed.push(call.id),
            Seen::Settled { grant: Some(_), .. } => self.known += 1,
            // What never left has an outcome, too: soon after a call that was barred.
            Seen::Settled { grant: None, .. } if self.barred.last().is_none_or(|at| at + 1_000 < moment.at) => {
                self.unknown.push(moment.at);
            }
            _ => {}
        }
    }
}

/// One node, one master, a check each 20 ms of a limit that lends one token at a time.
fn log(what: What, lasts: Span) -> Log {
    let plan = Plan {
        nodes: 1,
        span: Span::secs(6),
        network: Network { calls: Calls::Streams, jitter: Span(0), ..Network::default() },
        redis: Redis { masters: 1, ..Redis::default() },
        demand: vec![Demand {
            rate: 50,
            shape: Shape::Steady,
            keys: 40,
            churn: Span::millis(700),
            ..Demand::default()
        }],
        faults: vec![Fault { at: Span::secs(2), lasts, what }],
        ..Plan::default()
    };
    let setting = world::setting(&plan).expect("a plan of this test");
    let (mut log, mut scripts) = (Log::default(), Scripts::new());
    World::new(&setting, &mut scripts, Watch::new(vec![&mut log])).run();
    log
}

fn cut(way: Way) -> What {
    What::Cut { nodes: Vec::new(), masters: Vec::new(), way }
}

#[test]
fn what_a_cut_takes_arrives_late_and_in_order() {
    for way in [Way::Both, Way::ToRedis, Way::FromRedis] {
        let log = log(cut(way), Span::millis(300));
        assert!(log.unknown.is_empty() && log.barred.is_empty(), "{way:?}: {:?} {:?}", log.unknown, log.barred);
        assert!(log.known > 100, "{way:?}: {}", log.known);
        assert!(log.left.starts_with(&log.executed), "{way:?}: not in the order of leaving");
    }
}

#[test]
fn a_server_that_stands_still_for_less_than_a_second_is_not_given_up() {
    let log = log(What::Pause { master: 0 }, Span::millis(900));
    assert!(log.unknown.is_empty() && log.barred.is_empty(), "{:?} {:?}", log.unknown, log.barred);
}

#[test]
fn a_second_of_silence_gives_the_connection_up() {
    let log = log(cut(Way::Both), Span::secs(3));
    let first = *log.unknown.first().expect("some outcome is unknown");
    // The first call in the cut is at most 20 ms late.
    assert!((3_000_000..3_050_000).contains(&first), "{first}");
    assert!(log.barred.iter().all(|at| *at >= first) && !log.barred.is_empty(), "{:?}", log.barred);
}

#[test]
fn a_server_that_dies_resets_its_connections_at_once() {
    let log = log(What::Kill { master: 0 }, Span(0));
    let barred = *log.barred.first().expect("some call did not leave");
    assert!((2_000_000..2_050_000).contains(&barred), "{barred}");
}
