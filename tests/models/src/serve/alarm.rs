//! No deadline is slept through: whoever sets an earlier one than the alarm rings it, or the alarm sees it.

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use super::deadlines::{Deadline, Timer};
use crate::Model;

/// All of them.
pub(crate) const MODELS: &[Model] = &[
    (
        "a deadline that is set while the alarm is set is not slept through",
        None,
        a_deadline_that_is_set_while_the_alarm_is_set_is_not_slept_through,
    ),
    ("of two that are set at once the earlier one rings", None, of_two_that_are_set_at_once_the_earlier_one_rings),
];

struct Node {
    parts: [Deadline; 2],
    alarm: Timer,
    bell: Notify,
}

impl Node {
    fn set(&self, part: usize, due: u64) {
        if self.parts[part].set(due, &self.alarm) {
            self.bell.notify();
        }
    }

    fn earliest(&self) -> u64 {
        self.parts.iter().map(Deadline::get).min().expect("there are two")
    }

    /// Sleeps until it is set to `wanted`: loom tells of a sleep without an end.
    fn wait_for(&self, wanted: u64) {
        loop {
            match self.alarm.set(|| self.earliest()) {
                Some(next) if next == wanted => return,
                Some(_) => self.bell.wait(),
                None => {}
            }
        }
    }
}

fn node() -> Arc<Node> {
    Arc::new(Node { parts: [Deadline::new(), Deadline::new()], alarm: Timer::new(), bell: Notify::new() })
}

fn a_deadline_that_is_set_while_the_alarm_is_set_is_not_slept_through() {
    let node = node();
    let setter = node.clone();
    let thread = thread::spawn(move || setter.set(0, 5));
    node.wait_for(5);
    thread.join().expect("it ends");
}

fn of_two_that_are_set_at_once_the_earlier_one_rings() {
    let node = node();
    let threads = [(0, 7), (1, 5)].map(|(part, due)| {
        let setter = node.clone();
        thread::spawn(move || setter.set(part, due))
    });
    node.wait_for(5);
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}
