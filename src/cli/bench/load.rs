//! The load: threads that poll their connections and never sleep.
//!
//! Without a rate, each connection sends its next commands as soon as the last ones are answered. With a rate,
//! command number n is due at n / rate whatever happened before, and its latency counts from then. So the time in
//! which a server stalls is counted for all commands that were due meanwhile.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::link::{Link, Target};
use super::outcome::{LoadError, Outcome};
use super::replies;
use super::template::{Batch, Keys, Order, Template};
use crate::clock::Clock;

/// Longest silence of all connections of a thread.
const SILENCE: u64 = 5_000_000_000;
/// Bytes of one read.
const READ: usize = 64 << 10;

/// The parameters of a load.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) template: Template,
    pub(super) connections: usize,
    pub(super) pipeline: usize,
    pub(super) keys: u64,
    pub(super) order: Order,
    pub(super) requests: Option<u64>,
    pub(super) duration: Option<Duration>,
    pub(super) warmup: Duration,
    pub(super) rate: Option<u64>,
    pub(super) threads: usize,
}

/// Carries out a plan.
///
/// # Errors
/// The target cannot be reached, breaks off, or does not answer with RESP.
pub(super) fn run(plan: &Plan) -> Result<Outcome, LoadError> {
    let clock = Clock::start();
    let loads = (0..plan.threads).map(|index| Load::open(plan, clock, index)).collect::<Result<Vec<_>, _>>()?;
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads.into_iter().map(|load| scope.spawn(|| load.run())).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread of the load has panicked")).collect()
    });
    let mut total = Outcome::new();
    for outcome in outcomes {
        total.add(outcome?);
    }
    if total.replies() == 0 { Err(LoadError::Silent { target: plan.target.clone() }) } else { Ok(total) }
}

/// The part of `all` for thread `index` of `threads`.
fn part(all: u64, index: usize, threads: usize) -> u64 {
    let (index, threads) = (index as u64, threads as u64);
    all / threads + u64::from(index < all % threads)
}

/// The load of one thread.
struct Load<'p> {
    plan: &'p Plan,
    clock: Clock,
    links: Vec<Link>,
    /// Connections that may send, the longest idle first.
    idle: VecDeque<usize>,
    /// Connections that wait for replies.
    busy: Vec<usize>,
    batch: Batch,
    keys: Keys,
    pace: Pace,
    /// Commands that were sent, and the most that may be.
    issued: u64,
    requests: u64,
    counted_from: u64,
    outcome: Outcome,
}

/// When commands are sent. Times are nanoseconds of the clock.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// As fast as answers come, until `end`.
    Closed { end: u64 },
    /// At even intervals from `start`.
    Open { start: u64, interval: f64 },
}

impl<'p> Load<'p> {
    fn open(plan: &'p Plan, clock: Clock, index: usize) -> Result<Self, LoadError> {
        let connections = part(plan.connections as u64, index, plan.threads) as usize;
        let links = (0..connections)
            .map(|_| Link::open(&plan.target))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| LoadError::Connect { target: plan.target.clone(), error })?;
        Ok(Self {
            plan,
            clock,
            links,
            idle: (0..connections).collect(),
            busy: Vec::with_capacity(connections),
            batch: Batch::new(plan.template.clone(), plan.pipeline),
            keys: Keys::new(plan.order.clone(), plan.keys, index, plan.threads),
            pace: Pace::Closed { end: u64::MAX },
            issued: 0,
            requests: plan.requests.map_or(u64::MAX, |all| part(all, index, plan.threads)),
            counted_from: 0,
            outcome: Outcome::new(),
        })
    }

    fn run(mut self) -> Result<Outcome, LoadError> {
        let target = &self.plan.target;
        let start = self.clock.nanos();
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.counted_from = start + nanos(self.plan.warmup);
        let end = self.plan.duration.map_or(u64::MAX, |duration| self.counted_from + nanos(duration));
        self.pace = match self.plan.rate {
            None => Pace::Closed { end },
            Some(rate) => {
                let interval = 1e9 * self.plan.threads as f64 / rate as f64;
                self.requests = self.requests.min(((end - start) as f64 / interval).ceil() as u64);
                Pace::Open { start, interval }
            }
        };
        self.drive(start).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => LoadError::Garbled { target: target.clone(), start: error.to_string() },
            _ => LoadError::Closed { target: target.clone(), error },
        })?;
        let unsent = if let Pace::Open { .. } = self.pace { self.requests - self.issued } else { 0 };
        self.outcome.unanswered = unsent + self.links.iter().map(|link| link.sent.len() as u64).sum::<u64>();
        Ok(self.outcome)
    }

    fn drive(&mut self, start: u64) -> io::Result<()> {
        let mut buffer = vec![0; READ];
        let mut heard = start;
        loop {
            let now = self.clock.nanos();
            self.send_due(now)?;
            let mut quiet = true;
            let mut place = 0;
            while let Some(&index) = self.busy.get(place) {
                quiet &= !self.receive(index, &mut buffer)?;
                let link = &mut self.links[index];
                if link.sent.is_empty() {
                    link.is_busy = false;
                    self.busy.swap_remove(place);
                } else {
                    place += 1;
                }
            }
            if self.busy.is_empty() && self.is_over(now) {
                return Ok(());
            }
            if !quiet || self.busy.is_empty() {
                heard = now;
            } else if now.saturating_sub(heard) > SILENCE {
                return Ok(());
            }
            if quiet {
                std::thread::yield_now();
            }
        }
    }

    fn is_over(&self, now: u64) -> bool {
        self.issued >= self.requests || matches!(self.pace, Pace::Closed { end } if now >= end)
    }

    /// Sends the commands that are due at `now`, over idle connections.
    fn send_due(&mut self, now: u64) -> io::Result<()> {
        while let Some(&index) = self.idle.front() {
            let (count, time) = match self.pace {
                _ if self.is_over(now) => return Ok(()),
                Pace::Closed { .. } => (self.plan.pipeline.min((self.requests - self.issued) as usize), now),
                Pace::Open { start, interval } => (1, start + (self.issued as f64 * interval) as u64),
            };
            if time > now {
                return Ok(());
            }
            let link = &mut self.links[index];
            if !link.is_busy {
                link.is_busy = true;
                self.busy.push(index);
            }
            link.sent.extend(std::iter::repeat_n(time, count));
            link.write(self.batch.fill(count, &mut self.keys))?;
            self.issued += count as u64;
            self.idle.pop_front();
            if link.sent.len() < self.plan.pipeline && matches!(self.pace, Pace::Open { .. }) {
                self.idle.push_back(index);
            }
        }
        Ok(())
    }

    /// Takes the replies of a connection; false when there were none.
    fn receive(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<bool> {
        let link = &mut self.links[index];
        let Some(len) = link.read(buffer)? else { return Ok(false) };
        let at = self.clock.nanos();
        let was_full = link.sent.len() >= self.plan.pipeline;
        let mut input = &buffer[..len];
        let mut joined = std::mem::take(&mut link.partial);
        if !joined.is_empty() {
            joined.extend_from_slice(input);
            input = &joined;
        }
        let mut used = 0;
        while let Some((len, kind)) = replies::next(&input[used..]).map_err(|()| garbled(&input[used..]))? {
            let reply = &input[used..used + len];
            let sent = link.sent.pop_front().ok_or_else(|| garbled(reply))?;
            used += len;
            if sent >= self.counted_from {
                self.outcome.count(kind, reply, at - sent, at - self.counted_from);
            }
        }
        link.partial.extend_from_slice(&input[used..]);
        match self.pace {
            // The next command is sent at once, as a client would do that waits for each reply.
            Pace::Closed { .. } if link.sent.is_empty() => {
                self.idle.push_back(index);
                self.send_due(at)?;
            }
            Pace::Open { .. } if was_full && link.sent.len() < self.plan.pipeline => self.idle.push_back(index),
            _ => {}
        }
        Ok(true)
    }
}

fn garbled(bytes: &[u8]) -> io::Error {
    let start = &bytes[..bytes.len().min(40)];
    io::Error::new(io::ErrorKind::InvalidData, start.escape_ascii().to_string())
}
