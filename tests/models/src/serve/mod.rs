//! Of the daemon: mailboxes, and the alarm that waits for the earliest deadline.

#[path = "../../../../src/serve/deadlines.rs"]
mod deadlines;
#[path = "../../../../src/serve/mailbox.rs"]
mod mailbox;
#[path = "../../../../src/serve/wake_list.rs"]
mod wake_list;

pub(crate) mod alarm;
pub(crate) mod answers;
