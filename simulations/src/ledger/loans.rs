//! Counts tokens that nodes lend to each other, and those of them that are lost because the loan comes too late or not
//! at all.

use super::judge::ratio;
use crate::maps::Map;
use crate::observe::Seen;

/// A node in one of its lives, and the id of its ask.
type Asked = (u32, u64, u64);

/// Loans of the run after its warm-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Loans {
    /// Asks whose loan has not come: how many tokens it has, and when the ask left.
    open: Map<Asked, (u64, u64)>,
    lent: u64,
    came: u64,
}

impl Loans {
    /// Counts asks and answers, except those of the warm-up.
    pub(super) fn see(&mut self, at: u64, seen: &Seen<'_>, is_warm: bool) {
        match *seen {
            Seen::PeerAsked { node, incarnation, ask, .. } if is_warm => {
                self.open.insert((node, incarnation, ask.id), (0, at));
            }
            Seen::PeerAnswered { peer: (node, incarnation), ask, answer: Ok(loan), .. } => {
                if let Some((tokens, _)) = self.open.get_mut(&(node, incarnation, ask.id)) {
                    *tokens += loan.tokens;
                    self.lent += loan.tokens;
                }
            }
            Seen::PeerHeard { node, incarnation, ask, .. } => {
                let loan = self.open.remove(&(node, incarnation, ask.id));
                let in_time = loan.filter(|(_, sent)| at < sent + ask.awaited.0);
                self.came += in_time.map_or(0, |(tokens, _)| tokens);
            }
            _ => {}
        }
    }

    /// The part of the lent tokens whose loan came too late or not at all, in thousandths of a percent, rounded up.
    pub(super) fn lost(&self) -> u64 {
        let lost = self.lent - self.came.min(self.lent);
        if lost == 0 { 0 } else { ratio(lost, self.lent, 100_000).max(1) }
    }
}
