//! Where answers wait for the connection that asked: filled from any thread, emptied by one.
//!
//! Carries values and wakes the owner; knows neither replies nor shards. Shards' drivers and the
//! control runtime deliver, a connection takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::core::decision::Decision;

/// An answer that did not come at once.
#[derive(Debug)]
pub enum Answer {
    /// A shard's.
    Decision(Decision),
    /// A whole reply, ready to be sent.
    Reply(Vec<u8>),
}

/// One connection's mailbox.
#[derive(Debug, Default)]
pub struct Mailbox {
    full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    answers: Vec<(u64, Answer)>,
    waker: Option<Waker>,
}

/// Who waits for an answer: a mailbox, and the number of the question there.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Where the answer goes.
    pub mailbox: Arc<Mailbox>,
    /// Which question it answers.
    pub seq: u64,
}

impl Waiter {
    /// Hands the answer over and wakes the owner.
    pub fn answer(&self, answer: Answer) {
        let waker = {
            let mut inner = self.mailbox.lock();
            inner.answers.push((self.seq, answer));
            inner.waker.clone()
        };
        self.mailbox.full.store(true, Ordering::Release);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Mailbox {
    /// Registers whom to wake. Cheap when it is the same as before.
    pub fn listen(&self, waker: &Waker) {
        let mut inner = self.lock();
        if !inner.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
    }

    /// Takes what has come, oldest first.
    pub fn take(&self, into: &mut Vec<(u64, Answer)>) {
        if self.full.swap(false, Ordering::Acquire) {
            into.append(&mut self.lock().answers);
        }
    }

    /// Wakes the owner though nothing has come.
    pub fn nudge(&self) {
        let waker = self.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_once_and_in_order() {
        let mailbox = Arc::new(Mailbox::default());
        for seq in [3, 1] {
            Waiter { mailbox: mailbox.clone(), seq }.answer(Answer::Reply(vec![]));
        }
        let mut taken = Vec::new();
        mailbox.take(&mut taken);
        mailbox.take(&mut taken);
        assert_eq!(taken.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [3, 1]);
    }
}
