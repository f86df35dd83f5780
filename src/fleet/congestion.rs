//! The congestion window of a connection: that of quinn's Cubic, but never below a minimum.
//!
//! Peers send little at a time, so Cubic's window never grows, and every lost datagram shrinks it, down to two
//! datagrams. In a network partition such a window is full at once; and while a full window holds data back, quinn
//! does not send acknowledgements either. Then both ends wait for each other and probe at ever longer intervals.
//! After the partition they may stay silent for as long as it lasted, or for longer if a probe is lost.
//!
//! The minimum has room for all that two nodes may send each other at a time in normal operation. Beyond it, Cubic
//! decides.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// The minimum of the window: sixteen frames of a few kilobytes.
const FLOOR: u64 = 64 << 10;

/// Creates a controller for each connection.
#[derive(Debug, Default)]
pub(crate) struct Floored {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for Floored {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Floor(self.cubic.clone().build(now, current_mtu)))
    }
}

struct Floor(Box<dyn Controller>);

impl Controller for Floor {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.0.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.0.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.0.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.0.window().max(FLOOR)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.0.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self(self.0.clone_box()))
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window().max(FLOOR)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.0.into_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any instant will do")]
    fn losses_do_not_take_the_window_below_its_floor() {
        let now = Instant::now();
        let mut controller = Arc::new(Floored::default()).build(now, 1_200);
        assert_eq!(controller.window(), FLOOR);
        for _ in 0..10 {
            controller.on_congestion_event(now, now, true, 1_200);
        }
        assert_eq!((controller.window(), controller.clone_box().window()), (FLOOR, FLOOR));
    }
}
