//! Wakes many connections of a data thread with a single wake-up of the thread.
//!
//! To wake a task of another thread takes a system call, which costs more than everything else that is done for an
//! answer; within the thread it costs next to nothing. So the deliverer of an answer appends the task to a list here,
//! and only the first since the thread has last read the list wakes the thread. Called by mailboxes, from any thread;
//! run by each data thread.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The tasks to wake in one thread.
#[derive(Debug, Default)]
pub struct WakeList {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    sleepers: Vec<Waker>,
    /// The task that reads the list, while it sleeps.
    own: Option<Waker>,
}

impl WakeList {
    /// Has `sleeper` woken by its own thread.
    pub fn wake(&self, sleeper: Waker) {
        let own = {
            let mut inner = self.lock();
            inner.sleepers.push(sleeper);
            inner.own.take()
        };
        if let Some(own) = own {
            own.wake();
        }
    }

    /// Wakes the listed tasks. Runs until it is aborted.
    pub async fn run(&self) {
        let mut woken = Vec::new();
        poll_fn(|cx| {
            {
                let mut inner = self.lock();
                std::mem::swap(&mut inner.sleepers, &mut woken);
                // From now on the next caller of `wake` must wake this task.
                inner.own = Some(cx.waker().clone());
            }
            woken.drain(..).for_each(Waker::wake);
            Poll::<()>::Pending
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics while it holds this lock, and the list would be consistent even if it did.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn only_the_first_knocks_and_all_are_woken() {
        let (wake_list, own, sleeper) = (WakeList::default(), Arc::<Count>::default(), Arc::<Count>::default());
        let seen = |count: &Count| count.0.load(Ordering::SeqCst);
        let wake = |times: usize| (0..times).for_each(|_| wake_list.wake(sleeper.clone().into()));
        wake(2);
        assert_eq!((seen(&own), seen(&sleeper)), (0, 0), "nobody sleeps there yet");
        let waker = own.clone().into();
        let mut run = pin!(wake_list.run());
        for round in 1..4 {
            assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!((seen(&own), seen(&sleeper)), (round - 1, 3 * round - 1));
            wake(3);
            assert_eq!((seen(&own), seen(&sleeper)), (round, 3 * round - 1));
        }
    }
}
