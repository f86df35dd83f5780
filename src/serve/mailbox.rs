//! Where answers wait for the connection that asked: filled from any thread, emptied by one.
//!
//! Carries values and wakes the owner; knows neither replies nor shards. Shards' drivers and the
//! control runtime deliver, a connection takes.

use std::sync::Arc;
use std::task::Waker;

use super::reveille::Reveille;
use crate::core::decision::Decision;
use crate::store::turns::Asker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The reply to a command whose task ended without one.
const BROKEN: &[u8] = b"-ERR the answer could not be made: see the daemon's log\r\n";

/// An answer that did not come at once.
#[derive(Debug)]
pub enum Answer {
    /// A shard's.
    Decision(Decision),
    /// A whole reply, ready to be sent.
    Reply(Vec<u8>),
}

impl Answer {
    /// Bytes that it keeps beside itself.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Decision(_) => 0,
            Self::Reply(reply) => reply.len(),
        }
    }
}

/// One connection's mailbox.
#[derive(Debug, Default)]
pub struct Mailbox {
    asker: Asker,
    /// Something is in it. Changes while it is locked.
    full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    answers: Vec<(u64, Answer)>,
    owner: Option<Owner>,
}

/// Whom to wake, and how.
#[derive(Clone, Debug)]
struct Owner {
    waker: Waker,
    /// Of the thread that it runs in; `None`: by itself.
    reveille: Option<Arc<Reveille>>,
}

impl Owner {
    fn wake(self) {
        match self.reveille {
            Some(reveille) => reveille.wake(self.waker),
            None => self.waker.wake(),
        }
    }
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
        let owner = {
            let mut inner = self.mailbox.lock();
            inner.answers.push((self.seq, answer));
            // While it is locked: an owner who registers behind this finds it full, and one before is woken.
            self.mailbox.full.store(true, Ordering::Release);
            inner.owner.clone()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }
}

/// A waiter who is answered in any case: a task that ends without an answer, by a panic say, would leave a client
/// waiting for ever, and with it all that it asked behind.
#[derive(Debug)]
pub struct Promise(Option<Waiter>);

impl Promise {
    /// Somebody waits.
    #[must_use]
    pub fn to(waiter: Waiter) -> Self {
        Self(Some(waiter))
    }

    /// Answers.
    pub fn keep(mut self, answer: Answer) {
        if let Some(waiter) = self.0.take() {
            waiter.answer(answer);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.take() {
            waiter.answer(Answer::Reply(BROKEN.to_vec()));
        }
    }
}

impl Mailbox {
    /// The mailbox of whoever asks so.
    #[must_use]
    pub fn of(asker: Asker) -> Self {
        Self { asker, ..Self::default() }
    }

    /// In whose turn its owner's calls leave.
    #[must_use]
    pub fn asker(&self) -> Asker {
        self.asker
    }

    /// Registers whom to wake, and through whom. Cheap when it is the same as before.
    pub fn listen(&self, waker: &Waker, reveille: Option<&Arc<Reveille>>) {
        let mut inner = self.lock();
        if !inner.owner.as_ref().is_some_and(|known| known.waker.will_wake(waker)) {
            inner.owner = Some(Owner { waker: waker.clone(), reveille: reveille.cloned() });
        }
    }

    /// Takes what has come, oldest first.
    pub fn take(&self, into: &mut Vec<(u64, Answer)>) {
        if self.full.load(Ordering::Acquire) {
            let mut inner = self.lock();
            self.full.store(false, Ordering::Relaxed);
            into.append(&mut inner.answers);
        }
    }

    /// Wakes the owner though nothing has come.
    pub fn nudge(&self) {
        let owner = self.lock().owner.clone();
        if let Some(owner) = owner {
            owner.wake();
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
    fn a_promise_that_is_not_kept_is_answered_with_an_error() {
        let mailbox = Arc::new(Mailbox::default());
        let promise = |seq| Promise::to(Waiter { mailbox: mailbox.clone(), seq });
        let (broken, kept) = (promise(1), promise(2));
        let panicked = std::thread::spawn(move || {
            let _held = broken;
            std::panic::resume_unwind(Box::new("a bug"));
        });
        assert!(panicked.join().is_err());
        kept.keep(Answer::Reply(b"+OK\r\n".to_vec()));
        let mut taken = Vec::new();
        mailbox.take(&mut taken);
        let replies: Vec<_> = taken.iter().map(|(seq, answer)| (*seq, format!("{answer:?}"))).collect();
        let reply = |text: &[u8]| format!("{:?}", Answer::Reply(text.to_vec()));
        assert_eq!(replies, [(1, reply(BROKEN)), (2, reply(b"+OK\r\n"))]);
    }

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
