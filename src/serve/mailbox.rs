//! A mailbox for answers that come later: filled from any thread, emptied by the connection that asked.
//!
//! It transports values and wakes the owner. Knows neither replies nor shards. The node and the control runtime
//! deliver; a connection takes.

use std::sync::Arc;
use std::task::Waker;

use super::wake_list::WakeList;
use crate::core::decision::Decision;
use crate::store::turns::Asker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The reply to a command whose task ended without answering.
const BROKEN: &[u8] = b"-ERR the answer could not be made: see the daemon's log\r\n";

/// An answer that came later.
#[derive(Debug)]
pub enum Answer {
    /// A decision of a shard.
    Decision(Decision),
    /// A complete reply, ready to be sent.
    Reply(Vec<u8>),
}

impl Answer {
    /// Heap memory that it uses.
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
    /// The mailbox is not empty. Written only while it is locked.
    full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    answers: Vec<(u64, Answer)>,
    owner: Option<Owner>,
}

/// The task to wake, and how.
#[derive(Clone, Debug)]
struct Owner {
    waker: Waker,
    /// The wake list of its thread; `None` to wake it directly.
    wake_list: Option<Arc<WakeList>>,
}

impl Owner {
    fn wake(self) {
        match self.wake_list {
            Some(wake_list) => wake_list.wake(self.waker),
            None => self.waker.wake(),
        }
    }
}

/// Who waits for an answer: a mailbox, and the number of the request.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Where the answer goes.
    pub mailbox: Arc<Mailbox>,
    /// The number of the request.
    pub seq: u64,
}

impl Waiter {
    /// Delivers the answer and wakes the owner.
    pub fn answer(&self, answer: Answer) {
        let owner = {
            let mut inner = self.mailbox.lock();
            inner.answers.push((self.seq, answer));
            // Written while locked: an owner that registers after this sees a full mailbox, and one that registered
            // before is woken.
            self.mailbox.full.store(true, Ordering::Release);
            inner.owner.clone()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }
}

/// A waiter that is answered in any case. A task that ends without an answer, for example by a panic, would otherwise
/// leave its client waiting forever, with all later requests of the connection.
#[derive(Debug)]
pub struct Promise(Option<Waiter>);

impl Promise {
    /// A promise to answer `waiter`.
    #[must_use]
    pub fn to(waiter: Waiter) -> Self {
        Self(Some(waiter))
    }

    /// Delivers the answer.
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
    /// The mailbox of a connection of `asker`.
    #[must_use]
    pub fn of(asker: Asker) -> Self {
        Self { asker, ..Self::default() }
    }

    /// In whose turn calls for its owner leave.
    #[must_use]
    pub fn asker(&self) -> Asker {
        self.asker
    }

    /// Registers the task to wake, and the wake list of its thread. Cheap when both are the same as before.
    pub fn listen(&self, waker: &Waker, wake_list: Option<&Arc<WakeList>>) {
        let mut inner = self.lock();
        if !inner.owner.as_ref().is_some_and(|known| known.waker.will_wake(waker)) {
            inner.owner = Some(Owner { waker: waker.clone(), wake_list: wake_list.cloned() });
        }
    }

    /// Takes all answers, oldest first.
    pub fn take(&self, into: &mut Vec<(u64, Answer)>) {
        if self.full.load(Ordering::Acquire) {
            let mut inner = self.lock();
            self.full.store(false, Ordering::Relaxed);
            into.append(&mut inner.answers);
        }
    }

    /// Wakes the owner without an answer.
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
