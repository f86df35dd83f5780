//! What the store has set aside for this node: of each window of a fixed limit so many tokens, which may be spent in some windows; of a
//! bucket a part, by which this node's share of it fills from some time on.
//!
//! A node that has sent an acquire for a window spends nothing of its entitlement in that window, unless the call surely never came to
//! the store: if the store executed it, the tokens are no longer set aside. And an entitlement ends when the store may have given the
//! tokens to others, because no call has renewed it. Knows no store, and not what was spent.

use crate::core::entitled::window_end;
use crate::core::limit::Limit;
use crate::core::mutant::{Mutant, on};
use crate::core::time::Timestamp;

/// This node's entitlement to a key, if the store has told it of one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entitlement(Option<Given>);

#[derive(Clone, Copy, Debug, Default)]
struct Given {
    /// Tokens of each window; of a bucket its part, in millionths.
    tokens: u64,
    /// When that ends by the store's clock, unless a call renews it.
    lapses: Timestamp,
    /// Nothing may be spent in windows that begin before this time of the store's clock, because it may execute acquires in them. A
    /// bucket's share is empty at this time, and fills from then on.
    barred: Timestamp,
    /// What `barred` was before the acquire that was sent last.
    barred_before: Timestamp,
}

impl Entitlement {
    /// The store has set aside so many tokens, until this time of its clock. It has executed the acquire that it answers so in a
    /// window that begins before `barred`.
    pub(super) fn give(&mut self, tokens: u64, lapses: Timestamp, barred: Timestamp) {
        let given = self.0.get_or_insert_default();
        (given.tokens, given.lapses) = (tokens, lapses);
        (given.barred, given.barred_before) = (given.barred.max(barred), given.barred_before.max(barred));
    }

    /// An acquire is sent that the store may execute in windows that begin before this time of its clock.
    pub(super) fn bar(&mut self, barred: Timestamp) {
        if on(Mutant::UnansweredAcquireForgotten) {
            return;
        }
        if let Some(given) = &mut self.0 {
            (given.barred_before, given.barred) = (given.barred, given.barred.max(barred));
        }
    }

    /// The acquire that was sent last surely was not executed, nor will be, so that it bars nothing.
    pub(super) fn unbar(&mut self) {
        if let Some(given) = &mut self.0 {
            given.barred = given.barred_before;
        }
    }

    /// This node no longer goes by its entitlement.
    pub(super) fn renounce(&mut self) {
        if let Some(given) = &mut self.0 {
            // The acquire that says so bars nothing more.
            (given.tokens, given.barred_before) = (0, given.barred);
        }
    }

    /// Whether the store has told this process what is set aside for it, if only that nothing is. Until then, another process under
    /// the node's name may have spent it.
    pub(super) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Tokens that this node takes to be set aside for it at that time of the store's clock.
    pub(super) fn believed(&self, at: Timestamp) -> u64 {
        let given = self.0.as_ref().filter(|given| at < given.lapses || on(Mutant::LapsedEntitlementSpent));
        given.map_or(0, |given| given.tokens)
    }

    /// Tokens that may be spent in the window that is open at that time.
    pub(super) fn of_window(&self, limit: &Limit, at: Timestamp) -> u64 {
        let end = window_end(limit, at);
        let is_barred = |given: &Given| end - limit.period < given.barred && !on(Mutant::ShareAfterAcquire);
        let has_lapsed = |given: &Given| end > given.lapses && !on(Mutant::LapsedEntitlementSpent);
        let given = self.0.as_ref().filter(|given| !is_barred(given) && !has_lapsed(given));
        given.map_or(0, |given| given.tokens)
    }

    /// Tokens that may be spent in any time as long as a window from the first request, at a moment at which the store's clock shows something
    /// between these two times. Such a window may be open for one period more, in which the tokens must stay set aside.
    pub(super) fn of_span(&self, limit: &Limit, [surely, at_most]: [Timestamp; 2]) -> u64 {
        let is_barred = |given: &Given| surely < given.barred && !on(Mutant::ShareAfterAcquire);
        let lapses = |given: &Given| at_most + limit.period > given.lapses && !on(Mutant::LapsedEntitlementSpent);
        let given = self.0.as_ref().filter(|given| !is_barred(given) && !lapses(given));
        given.map_or(0, |given| given.tokens)
    }

    /// From when on that is more than nothing, later than `at`; `None`: it will not be.
    pub(super) fn next_span(&self, limit: &Limit, at: Timestamp) -> Option<Timestamp> {
        let given = self.0.as_ref()?;
        let from = given.barred.max(at);
        (self.of_span(limit, [from; 2]) > 0).then_some(from)
    }

    /// When this node's share of a bucket begins to fill; `None` without any.
    pub(super) fn fills_from(&self) -> Option<Timestamp> {
        let at = self.0.as_ref().filter(|given| given.tokens > 0).map(|given| given.barred);
        if on(Mutant::ShareAfterAcquire) { at.map(|_| Timestamp::default()) } else { at }
    }

    /// When the first window begins, later than the one that is open at that time, in which some may be spent.
    pub(super) fn next_window(&self, limit: &Limit, at: Timestamp) -> Option<Timestamp> {
        let given = self.0.as_ref()?;
        let begins = window_end(limit, at).max(given.barred);
        (self.of_window(limit, begins) > 0).then_some(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAPSES: Timestamp = Timestamp(20_000_000);

    fn entitlement(barred: u64) -> (Entitlement, Limit) {
        let mut entitlement = Entitlement::default();
        entitlement.give(7, LAPSES, Timestamp(barred));
        (entitlement, Limit::parse("10/1s fixed").expect("a limit"))
    }

    #[test]
    fn nothing_is_spent_in_a_window_for_which_an_acquire_was_sent() {
        let (mut entitlement, limit) = entitlement(3_000_000);
        let of = |entitlement: &Entitlement, at| entitlement.of_window(&limit, Timestamp(at));
        assert_eq!([of(&entitlement, 2_999_999), of(&entitlement, 3_000_000)], [0, 7]);
        entitlement.bar(Timestamp(5_000_000));
        assert_eq!([of(&entitlement, 4_999_999), of(&entitlement, 5_000_000)], [0, 7]);
        assert_eq!(entitlement.next_window(&limit, Timestamp(3_100_000)), Some(Timestamp(5_000_000)));
    }

    #[test]
    fn nothing_is_spent_in_a_window_in_which_the_entitlement_lapses() {
        let (entitlement, limit) = entitlement(0);
        let of = |at| entitlement.of_window(&limit, Timestamp(at));
        assert_eq!([of(19_999_999), of(20_000_000)], [7, 0]);
        assert_eq!([entitlement.believed(Timestamp(19_999_999)), entitlement.believed(LAPSES)], [7, 0]);
        assert_eq!(entitlement.next_window(&limit, Timestamp(19_100_000)), None);
        let other = Limit::parse("10/3s fixed").expect("a limit");
        assert_eq!(entitlement.of_window(&other, Timestamp(18_500_000)), 0, "it lapses before this window ends");
    }

    #[test]
    fn what_was_renounced_is_not_believed() {
        let (mut entitlement, limit) = entitlement(0);
        entitlement.renounce();
        assert_eq!((entitlement.believed(Timestamp(1)), entitlement.of_window(&limit, Timestamp(1))), (0, 0));
    }
}
