//! Decides whether the connections of one link are still alive, and ends the link when they are not.
//!
//! All bytes from the server count as a sign of life, whatever they say. While replies are awaited a task ticks, and
//! gives the link up when nothing came for too long (`pulse.rs` defines that). Then all who wait learn at once that
//! the outcome of their commands is unknown. Knows nothing of commands. Called by `link.rs`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::clock::Clock;
use crate::core::time::Micros;
use crate::store::breaker::Fault;
use crate::store::pulse::{Beat, Pulse, SILENCE, TICK};

/// How long one connection may say nothing while the other one shows that the server lives. After that its path is
/// taken for broken, as that of a proxy that has lost its other end.
const STUCK: Micros = Micros::from_secs(5);

/// The connection broke, and the outcome of the command is unknown.
#[derive(Debug)]
pub(crate) struct ConnectionLost;

/// One of a link's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// For commands that are not confirmed.
    Direct,
    /// For commands before a `WAIT`.
    Confirmed,
}

/// The liveness of one link.
pub(super) struct Heart {
    clock: Clock,
    pulses: Mutex<Pulses>,
    /// Signalled when ticks must begin.
    stirred: Notify,
    ended: watch::Sender<bool>,
}

struct Pulses {
    server: Pulse,
    /// Indexed by [`Way`].
    ways: [Pulse; 2],
}

impl Heart {
    /// A link on which no reply is awaited yet.
    pub(super) fn new(clock: Clock) -> Self {
        let pulses = Pulses { server: Pulse::new(SILENCE), ways: [Pulse::new(STUCK), Pulse::new(STUCK)] };
        Self { clock, pulses: Mutex::new(pulses), stirred: Notify::new(), ended: watch::Sender::new(false) }
    }

    /// `count` commands were sent over `way`, and their replies are awaited.
    pub(super) fn handle_departures(&self, way: Way, count: usize) {
        let now = self.clock.now();
        let mut begins = false;
        self.with(way, |pulse| (0..count).for_each(|_| begins |= pulse.handle_departure(now)));
        if begins {
            self.stirred.notify_one();
        }
    }

    /// Bytes came over `way`, and among them the last of `count` awaited replies.
    pub(super) fn handle_replies(&self, way: Way, count: usize) {
        self.with(way, |pulse| {
            pulse.handle_sign();
            (0..count).for_each(|_| pulse.handle_end());
        });
    }

    /// Waits until the link has ended.
    pub(super) async fn ended(&self) {
        // This cannot fail: `self` owns the sender.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Ends the link: all who await a reply, now or later, learn that the connection is lost.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Ticks while replies are awaited, until the link ends. Calls `on_fault` when silence is why it ends.
    pub(super) async fn beat(self: Arc<Self>, on_fault: impl Fn(Fault, &'static str)) {
        let mut ended = self.ended.subscribe();
        loop {
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => return,
                () = self.stirred.notified() => {}
            }
            while let Some(beat) = self.tick_later(&mut ended).await {
                match beat {
                    Ok(Beat::Idle) => break,
                    Ok(_) => {}
                    Err((fault, what)) => {
                        on_fault(fault, what);
                        return self.end();
                    }
                }
            }
        }
    }

    /// One tick; `None` when the link has ended.
    async fn tick_later(&self, ended: &mut watch::Receiver<bool>) -> Option<Result<Beat, (Fault, &'static str)>> {
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return None,
            () = sleep(Duration::from_micros(TICK.0)) => {}
        }
        let now = self.clock.now();
        let mut pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let server = pulses.server.handle_tick(now);
        let stuck = pulses.ways.each_mut().map(|way| way.handle_tick(now)).contains(&Beat::Silent);
        Some(match (server, stuck) {
            (Beat::Silent, _) => Err((Fault::Silent, "nothing came from it for a second")),
            (_, true) => Err((Fault::Lost, "one of its connections was stuck for 5 s")),
            (beat, false) => Ok(beat),
        })
    }

    fn with(&self, way: Way, mut act: impl FnMut(&mut Pulse)) {
        let mut pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut pulses.server);
        act(&mut pulses.ways[way as usize]);
    }
}
