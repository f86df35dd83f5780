//! The last requests of a run. When demand has ended, one client at a time spends a key until it is denied, waits for
//! exactly as long as it was told, and asks again; checkers judge whether it was then admitted. Before that, once per
//! window, clients come just after the window's end, when what a node holds of it must no longer be spent, however
//! slow the node's clock is.

/// Keys that are probed.
pub(super) const KEYS: usize = 6;

/// Most requests about one key.
pub(super) const QUESTIONS: u32 = 400;

/// The prober waits for at most this long before it asks again.
pub(super) const PATIENCE: u64 = 5_000_000;

/// Time between the end of demand and the first request, and between two keys.
pub(super) const PAUSE: u64 = 3_000_000;

/// How long after the end of a window the first client comes, and by how much later the last.
pub(super) const LATE: (u64, u64) = (20, 500);

/// A client that asks about one key after another.
#[derive(Debug)]
pub(super) struct Prober {
    /// Policy and key.
    pub(super) keys: Vec<(u32, u32)>,
    pub(super) asked: u32,
    pub(super) waited: bool,
    pub(super) request: u64,
}

impl Prober {
    pub(super) fn is_done(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn next_key(&mut self) {
        self.keys.pop();
        (self.asked, self.waited) = (0, false);
    }
}
