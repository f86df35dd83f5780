//! No answer is left in a mailbox whose owner sleeps.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use loom::future::block_on;
use loom::thread;

use super::mailbox::{Answer, Mailbox, Promise, Waiter};
use super::wake_list::WakeList;
use crate::Model;

/// All of them.
pub(crate) const MODELS: &[Model] = &[
    (
        "an answer wakes its owner though it listens only now",
        None,
        an_answer_wakes_its_owner_though_it_listens_only_now,
    ),
    ("answers of one thread come in order", None, answers_of_one_thread_come_in_order),
    ("answers of two threads come both and once", Some(3), answers_of_two_threads_come_both_and_once),
    ("answers wake their owner through its thread", Some(3), answers_wake_their_owner_through_its_thread),
    ("a promise that is dropped wakes its owner", None, a_promise_that_is_dropped_wakes_its_owner),
];

/// What comes, until there are so many. As tasks do: first the waker is told, then what has come is taken.
fn receive(mailbox: &Mailbox, count: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    block_on(std::future::poll_fn(|cx: &mut Context<'_>| {
        mailbox.listen(cx.waker(), None);
        mailbox.take(&mut taken);
        if taken.len() >= count { Poll::Ready(()) } else { Poll::Pending }
    }));
    taken.iter().map(|(seq, _)| *seq).collect()
}

fn answers(mailbox: &Arc<Mailbox>, seqs: &'static [u64]) -> thread::JoinHandle<()> {
    let mailbox = mailbox.clone();
    thread::spawn(move || {
        for &seq in seqs {
            Waiter { mailbox: mailbox.clone(), seq }.answer(Answer::Reply(Vec::new()));
        }
    })
}

fn an_answer_wakes_its_owner_though_it_listens_only_now() {
    let mailbox = Arc::new(Mailbox::default());
    let thread = answers(&mailbox, &[1]);
    assert_eq!(receive(&mailbox, 1), [1]);
    thread.join().expect("it ends");
}

fn answers_of_one_thread_come_in_order() {
    let mailbox = Arc::new(Mailbox::default());
    let thread = answers(&mailbox, &[1, 2]);
    assert_eq!(receive(&mailbox, 2), [1, 2]);
    thread.join().expect("it ends");
}

fn answers_of_two_threads_come_both_and_once() {
    let mailbox = Arc::new(Mailbox::default());
    let threads = [answers(&mailbox, &[1]), answers(&mailbox, &[2])];
    let mut taken = receive(&mailbox, 2);
    taken.sort_unstable();
    assert_eq!(taken, [1, 2]);
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

/// The owner and the task that wakes it take turns in one thread.
fn answers_wake_their_owner_through_its_thread() {
    let (mailbox, wake_list) = (Arc::new(Mailbox::default()), Arc::new(WakeList::default()));
    let threads = [answers(&mailbox, &[1]), answers(&mailbox, &[2])];
    let mut taken = Vec::new();
    let mut run = pin!(wake_list.run());
    block_on(std::future::poll_fn(|cx: &mut Context<'_>| {
        assert!(run.as_mut().poll(cx).is_pending());
        mailbox.listen(cx.waker(), Some(&wake_list));
        mailbox.take(&mut taken);
        if taken.len() >= 2 { Poll::Ready(()) } else { Poll::Pending }
    }));
    let mut seqs: Vec<_> = taken.iter().map(|(seq, _)| *seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [1, 2]);
    for thread in threads {
        thread.join().expect("it ends");
    }
}

fn a_promise_that_is_dropped_wakes_its_owner() {
    let mailbox = Arc::new(Mailbox::default());
    let promise = Promise::to(Waiter { mailbox: mailbox.clone(), seq: 3 });
    let thread = thread::spawn(move || drop(promise));
    assert_eq!(receive(&mailbox, 1), [3]);
    thread.join().expect("it ends");
}
