//! The timer of a connection that rests: how long it may wait for the next request.
//!
//! hyper makes a timer for each head, and drops it when the head has come, which the runtime would have to note twice a request. Here
//! one timer of the runtime stays with the connection. It is set when it has gone off, or when a head has an earlier time than it is set
//! to, so a connection that asks all the time sets it once in that time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::time::Instant;

use crate::clock;

/// The timer of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct RestTimer(Arc<Mutex<Alarm>>);

#[derive(Debug, Default)]
struct Alarm {
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Whom it wakes.
    waker: Option<Waker>,
}

/// The time of one head.
struct Rest {
    alarm: RestTimer,
    ends: Instant,
}

impl Timer for RestTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Rest { alarm: self.clone(), ends: Instant::from_std(deadline) })
    }

    fn now(&self) -> std::time::Instant {
        clock::timers().into()
    }
}

impl Sleep for Rest {}

impl Future for Rest {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut alarm = self.alarm.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Alarm { sleep, waker } = &mut *alarm;
        let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.ends)));
        let wakes = waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if wakes && !sleep.is_elapsed() && sleep.deadline() <= self.ends {
            return Poll::Pending;
        }
        if sleep.deadline() != self.ends {
            sleep.as_mut().reset(self.ends);
        }
        *waker = Some(cx.waker().clone());
        sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_head_has_all_its_time_and_no_more() {
        let (timer, began) = (RestTimer::default(), clock::timers());
        let after = |span: u64| began + Duration::from_secs(span);
        let head = |span: u64| timer.sleep_until(after(span).into());
        // The first comes after half of its time, and the timer stays set to the end of that.
        assert!(tokio::time::timeout(Duration::from_secs(50), head(75)).await.is_err());
        // The second does not come.
        head(125).await;
        assert!((after(125)..after(126)).contains(&clock::timers()));
        // The timer is set to a later time than the next head has.
        assert!(tokio::time::timeout(Duration::from_secs(1), head(500)).await.is_err());
        head(130).await;
        assert!((after(130)..after(131)).contains(&clock::timers()));
        // A time that is over already.
        head(100).await;
        assert!(clock::timers() < after(131));
    }
}
