//! The queue of future events, in the order of true time; within a microsecond, first in, first out. Knows nothing of
//! what an event does.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::asks::Mail;
use super::gossip::SentReport;
use super::holds::Errand;
use super::message::Reply;
use super::network::Heading;
use super::permits::Parting;
use super::several::Item;
use crate::observe::Request;

/// A future event.
#[derive(Debug)]
pub(super) enum Event {
    /// The next check of a demand.
    Arrive {
        demand: u32,
    },
    /// A scheduled request: a refund, or a client that tries again.
    Come(Box<Request>),
    /// A node is asked about a hold.
    Errand(Box<Errand>),
    /// A client asks a node about several keys.
    Together {
        node: u32,
        items: Vec<Item>,
    },
    /// The next of several keys is checked.
    GoOn {
        group: u64,
    },
    /// A client releases permits of a concurrent limit, or its connection closes.
    Parting(Box<Parting>),
    /// A call reaches a server.
    AtServer {
        letter: u64,
        server: u32,
    },
    /// A server has waited for its replica.
    Replicated {
        letter: u64,
        server: u32,
        numbers: Vec<i64>,
    },
    /// An answer reaches its node.
    AtNode {
        letter: u64,
        reply: Box<Reply>,
    },
    /// An answer leaves its server.
    Leaves {
        letter: u64,
        reply: Box<Reply>,
    },
    /// The timeout of a call passes.
    Deadline {
        letter: u64,
    },
    /// A lost segment is sent again.
    Resend {
        link: u64,
        heading: Heading,
    },
    /// A node checks whether a server is silent.
    Silence {
        link: u64,
    },
    /// A node hears that a server has closed a connection on which nothing was under way.
    Closed {
        node: u32,
        incarnation: u64,
        server: u32,
        generation: u64,
    },
    Reset {
        link: u64,
    },
    /// A node's timer is due.
    Timer {
        node: u32,
        incarnation: u64,
    },
    /// A node probes a server that is away.
    Probe {
        node: u32,
        incarnation: u64,
        server: u32,
    },
    /// The result of a probe.
    Probed {
        node: u32,
        incarnation: u64,
        server: u32,
        answered: bool,
    },
    /// A node reads the slot map.
    ReadMap {
        node: u32,
        incarnation: u64,
    },
    /// The map that was read.
    GotMap {
        node: u32,
        incarnation: u64,
        server: u32,
    },
    /// A fault of the plan begins.
    Begin {
        fault: u32,
    },
    /// A fault of the plan ends.
    End {
        fault: u32,
    },
    /// A later part of a fault.
    Step(Step),
    /// A node's next round of gossip.
    Round {
        node: u32,
        incarnation: u64,
    },
    /// A report of another node reaches a node.
    Report(Box<SentReport>),
    /// An ask of a peer, or its answer, arrives.
    Mail(Box<Mail>),
    /// The balances of all nodes are audited.
    Audit,
    /// Some keys are counted.
    Census,
    /// The liveness phase begins.
    Calm,
    /// Demand ends; the prober begins.
    Quiet,
    /// The prober's next question.
    Probation,
}

/// A later part of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The replica of a server that is away takes over.
    Promote { server: u32 },
    /// A server that was promoted has a replica again.
    Replicate { server: u32 },
    /// A server that paused goes on.
    Resume { server: u32 },
    /// A node is back.
    Start { node: u32 },
    /// A node leaves.
    Leave { node: u32, crash: bool, back: Option<u64> },
    /// A node that drained is gone.
    Gone { node: u32, incarnation: u64, back: Option<u64> },
    /// A node joins.
    Join,
    /// A node learns a policy's new limits.
    Learn { node: u32, fault: u32 },
    /// A slot begins to move, has moved half its keys, has moved.
    Move { slot: u16, to: u32, stage: u8 },
    /// A link between a node and a master breaks or heals.
    Flip { node: u32, master: u32 },
    /// A node does nothing until then.
    Stand { node: u32, until: u64 },
}

#[derive(Debug)]
struct Entry {
    at: u64,
    order: u64,
    event: Event,
}

#[derive(Debug)]
struct Arrival {
    at: u64,
    order: u64,
    demand: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest event is the greatest, because `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// More events within one millisecond than any fleet needs: with that many, some part creates events without ever
/// waiting.
const MOST: u32 = 1_000_000;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Entry>,
    /// Each demand's next check. Most events are checks, but only one for each demand is ever scheduled, so a short
    /// list of their own is quicker than the heap.
    arrivals: Vec<Arrival>,
    order: u64,
    /// The last event's millisecond, and how many there were in it.
    milli: u64,
    events: u32,
}

impl Queue {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.order += 1;
        match event {
            Event::Arrive { demand } => self.arrivals.push(Arrival { at, order: self.order, demand }),
            event => self.heap.push(Entry { at, order: self.order, event }),
        }
    }

    /// The earliest of all events, and its time.
    fn earliest(&mut self) -> Option<(u64, Event)> {
        let other = self.heap.peek().map_or((u64::MAX, u64::MAX), |entry| (entry.at, entry.order));
        let arrivals = self.arrivals.iter().enumerate().map(|(index, next)| ((next.at, next.order), index));
        if let Some((_, index)) = arrivals.min().filter(|(next, _)| *next < other) {
            let Arrival { at, demand, .. } = self.arrivals.swap_remove(index);
            return Some((at, Event::Arrive { demand }));
        }
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        let (at, event) = self.earliest()?;
        let milli = at / 1_000;
        self.events = if milli == self.milli { self.events + 1 } else { 0 };
        self.milli = milli;
        Some((at, event))
    }

    /// Whether time hardly advances any more.
    pub(super) fn is_stuck(&self) -> bool {
        self.events > MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_in_order_within_a_microsecond() {
        let mut queue = Queue::default();
        for (at, demand) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.push(at, Event::Arrive { demand });
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop())
            .map(|(at, event)| match event {
                Event::Arrive { demand } => (at, demand),
                _ => unreachable!("only arrivals were pushed"),
            })
            .collect();
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)]);
    }

    #[test]
    fn time_that_stands_still_is_noticed() {
        let mut queue = Queue::default();
        let mut pass = |at| {
            queue.push(at, Event::Audit);
            queue.pop();
            queue.is_stuck()
        };
        assert!((0..4 * u64::from(MOST)).all(|at| !pass(at)));
        assert_eq!((0..=MOST).filter(|_| pass(5_000_000_000)).count(), 0);
        assert!(pass(5_000_000_999));
    }
}
