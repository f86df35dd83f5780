//! A task of the control runtime that reads the shards now and then, for people: it takes denials, and samples for the
//! charts. No decision depends on it, and nothing waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::denied::Bell;
use super::server_state::ServerState;

/// Time between two times that denials are taken.
const DENIALS: Duration = Duration::from_secs(1);
/// Between two samples of the charts: with their number, fifteen minutes.
const SAMPLES: Duration = Duration::from_secs(5);

/// Observes until it is aborted.
pub(super) async fn run(state: Arc<ServerState>) {
    let sampled = async {
        let mut samples = interval(SAMPLES);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            samples.tick().await;
            state.history.sample(state.node.clock.now(), &state.stats(), state.store_snapshot().as_ref());
        }
    };
    tokio::join!(each_second_with_denials(&state.node.denials, || take_denials(&state)), sampled);
}

/// Takes denials each second. While there are none it sleeps until the bell rings for the next one. `take` returns
/// whether there were any.
async fn each_second_with_denials(bell: &Bell, mut take: impl FnMut() -> bool) {
    loop {
        if !take() {
            bell.rest();
            if !take() {
                bell.rung().await;
            }
        }
        sleep(DENIALS).await;
    }
}

/// Takes what was denied since it was taken last, and returns whether that was anything. At the end it is called once more, as the next
/// second does not come.
pub(super) fn take_denials(state: &ServerState) -> bool {
    let mut denials = Vec::new();
    state.node.take_denials(&mut denials);
    let has_some = !denials.is_empty();
    if has_some {
        let clock = &state.node.clock;
        state.denials.add(denials, &state.policies.load(), (clock.now(), clock.wall()));
    }
    has_some
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::clock;

    #[tokio::test(start_paused = true)]
    async fn denials_are_taken_each_second_while_there_are_any_and_a_second_after_the_first() {
        let (bell, waiting, began) = (Bell::default(), Cell::new(0), clock::timers());
        let (looks, taken) = (Cell::new(0), RefCell::new(Vec::new()));
        let take = || {
            looks.set(looks.get() + 1);
            let found = waiting.take();
            taken.borrow_mut().extend((found > 0).then(|| ((clock::timers() - began).as_millis(), found)));
            found > 0
        };
        let deny = |count: u64| {
            waiting.set(waiting.get() + count);
            bell.ring();
        };
        let denying = async {
            sleep(Duration::from_secs(60)).await;
            assert_eq!(looks.get(), 2, "nobody looks while there is nothing");
            for count in 1..=4 {
                deny(count);
                sleep(Duration::from_millis(600)).await;
            }
            sleep(Duration::from_secs(60)).await;
            deny(9);
            sleep(Duration::from_secs(60)).await;
        };
        tokio::select! {
            () = each_second_with_denials(&bell, take) => {}
            () = denying => {}
        }
        let seconds: Vec<_> = taken.borrow().iter().map(|(at, count)| (at / 100, *count)).collect();
        assert_eq!(seconds, [(610, 3), (620, 7), (1234, 9)]);
    }
}
