//! The runtime that quinn runs on: tokio's, with other timers.
//!
//! A connection has one timer, for whatever is due first. After it sends, that is the retransmission, a few hundredths
//! of a second later; once the packet is acknowledged, it is the keep-alive, some seconds later. A timer of tokio that
//! is set to a later time keeps its place among those of the earlier one until that has come, and the thread wakes up
//! then to put it where it belongs. So each acknowledged packet of a fleet at rest would cost a wake-up. These timers
//! give up their place when they are set to a time that is much later.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::{Sleep, sleep_until};

/// A timer gives up its place when it is set to a time that is at least this much later. For smaller steps tokio's way
/// is cheaper: a connection that sends all the time sets its timer a little later again and again.
const MUCH: Duration = Duration::from_millis(200);

/// Tokio's runtime with these timers.
#[derive(Debug)]
pub(crate) struct Timers;

impl Runtime for Timers {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(Box::pin(sleep_until(at.into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// The timer of a connection.
#[derive(Debug)]
struct Timer(Pin<Box<Sleep>>);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = at.into();
        if at > self.0.deadline() + MUCH {
            self.0.set(sleep_until(at));
        } else {
            self.0.as_mut().reset(at);
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.0.as_mut(), cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::runtime::Handle;
    use tokio::time::sleep;

    use super::*;
    use crate::clock;

    /// How often the thread goes to sleep in a second. The timer of a connection, if there is one, is set to a later
    /// time at the beginning of that second.
    async fn sleeps(timer: Option<Pin<Box<dyn AsyncTimer>>>) -> u64 {
        let mut timer = timer;
        for millis in [27, 3_000] {
            let Some(timer) = &mut timer else { break };
            timer.as_mut().reset((clock::timers() + Duration::from_millis(millis)).into_std());
            assert!(poll_fn(|cx| Poll::Ready(timer.as_mut().poll(cx))).await.is_pending());
        }
        let sleeps = || Handle::current().metrics().worker_park_count(0);
        let before = sleeps();
        sleep(Duration::from_secs(1)).await;
        sleeps() - before
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_set_to_a_later_time_wakes_nobody_before() {
        let (mut seen, mut next) = (Vec::new(), clock::timers());
        for runtime in [None, Some(&Timers as &dyn Runtime), Some(&TokioRuntime)] {
            // How many wake-ups a sleep of a second takes depends on where in a turn of tokio's wheel it begins, so
            // each measurement begins at the same place.
            next += Duration::from_millis(2 * 4_096);
            sleep_until(next).await;
            seen.push(sleeps(runtime.map(|runtime| runtime.new_timer(clock::timers().into_std()))).await);
        }
        assert!(seen[1] == seen[0] && seen[2] > seen[0], "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_is_due_when_it_was_set_to_last() {
        let began = clock::timers();
        let mut timer = Timers.new_timer((began + Duration::from_millis(50)).into_std());
        for (at, due) in [(3_000, 3_000), (20, 20), (100, 100), (2_000, 2_000), (1_990, 1_990)] {
            timer.as_mut().reset((clock::timers() + Duration::from_millis(at)).into_std());
            let before = clock::timers();
            poll_fn(|cx| timer.as_mut().poll(cx)).await;
            let passed = clock::timers() - before;
            assert!(passed.as_millis() == due || passed.as_millis() == due + 1, "{passed:?} for {due} ms");
        }
    }
}
