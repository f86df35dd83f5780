//! The outcomes of asks between peers, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::ask::{Answer, Refusal};

/// What became of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOutcome {
    /// Tokens were lent.
    Lent,
    /// The peer has none to lend.
    Exhausted,
    /// The peer refuses.
    Refused(Refusal),
    /// No answer came in time.
    Late,
    /// It was not sent: there were too many, or the peer is gone.
    Unsent,
}

impl PeerOutcome {
    /// Every one, in the order of their counts.
    pub const ALL: [Self; 9] = [
        Self::Lent,
        Self::Exhausted,
        Self::Refused(Refusal::OtherRule),
        Self::Refused(Refusal::NoStore),
        Self::Refused(Refusal::Leaving),
        Self::Refused(Refusal::Asks),
        Self::Refused(Refusal::Busy),
        Self::Late,
        Self::Unsent,
    ];

    /// The outcome that an answer means.
    #[must_use]
    pub fn of(answer: &Answer) -> Self {
        match answer {
            Ok(loan) if loan.tokens > 0 => Self::Lent,
            Ok(_) => Self::Exhausted,
            Err(refusal) => Self::Refused(*refusal),
        }
    }

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lent => "lent",
            Self::Exhausted => "exhausted",
            Self::Refused(Refusal::OtherRule) => "other_rule",
            Self::Refused(Refusal::NoStore) => "no_store",
            Self::Refused(Refusal::Leaving) => "leaving",
            Self::Refused(Refusal::Asks) => "asks",
            Self::Refused(Refusal::Busy) => "busy",
            Self::Late => "late",
            Self::Unsent => "unsent",
        }
    }
}

/// How often there was each outcome.
#[derive(Debug, Default)]
pub struct PeerOutcomes([AtomicU64; PeerOutcome::ALL.len()]);

impl PeerOutcomes {
    /// Counts one.
    pub fn count(&self, outcome: PeerOutcome) {
        let place = PeerOutcome::ALL.iter().position(|known| *known == outcome).expect("every outcome is in the list");
        self.0[place].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts, in the order of [`PeerOutcome::ALL`].
    #[must_use]
    pub fn counts(&self) -> [u64; PeerOutcome::ALL.len()] {
        std::array::from_fn(|place| self.0[place].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_counted_under_a_name_of_its_own() {
        let outcomes = PeerOutcomes::default();
        Refusal::ALL.into_iter().for_each(|refusal| outcomes.count(PeerOutcome::of(&Err(refusal))));
        assert_eq!(outcomes.counts(), [0, 0, 1, 1, 1, 1, 1, 0, 0]);
        let mut names = PeerOutcome::ALL.map(PeerOutcome::as_str).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PeerOutcome::ALL.len());
    }
}
