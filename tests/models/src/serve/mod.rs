//! Of the daemon: mailboxes, and the alarm that waits for the earliest deadline.

#[path = "../../../../src/serve/deadlines.rs"]
mod deadlines;
#[path = "../../../../src/serve/mailbox.rs"]
mod mailbox;
#[path = "../../../../src/serve/reveille.rs"]
mod reveille;

pub(crate) mod alarm;
pub(crate) mod answers;
