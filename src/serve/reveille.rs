//! Wakes many connections of a data thread by one knock at its door.
//!
//! To wake a task from another thread takes a system call, which costs more than all else that an answer does; within
//! its thread it takes next to nothing. So whoever brings an answer leaves word here whom to wake, and only the first
//! since the thread has looked knocks. Called by mailboxes, from any thread; run by each data thread.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Who is to be woken in one thread.
#[derive(Debug, Default)]
pub struct Reveille {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    sleepers: Vec<Waker>,
    /// The thread's own task, while it sleeps.
    own: Option<Waker>,
}

impl Reveille {
    /// Has `sleeper` woken.
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

    /// Wakes whoever is to be woken, for ever.
    pub async fn run(&self) {
        let mut woken = Vec::new();
        poll_fn(|cx| {
            {
                let mut inner = self.lock();
                std::mem::swap(&mut inner.sleepers, &mut woken);
                // Whoever comes from now on knocks.
                inner.own = Some(cx.waker().clone());
            }
            woken.drain(..).for_each(Waker::wake);
            Poll::<()>::Pending
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is held, and if it did the list would still be whole.
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
        let (reveille, own, sleeper) = (Reveille::default(), Arc::<Count>::default(), Arc::<Count>::default());
        let seen = |count: &Count| count.0.load(Ordering::SeqCst);
        let wake = |times: usize| (0..times).for_each(|_| reveille.wake(sleeper.clone().into()));
        wake(2);
        assert_eq!((seen(&own), seen(&sleeper)), (0, 0), "nobody sleeps there yet");
        let waker = own.clone().into();
        let mut run = pin!(reveille.run());
        for round in 1..4 {
            assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!((seen(&own), seen(&sleeper)), (round - 1, 3 * round - 1));
            wake(3);
            assert_eq!((seen(&own), seen(&sleeper)), (round, 3 * round - 1));
        }
    }
}
