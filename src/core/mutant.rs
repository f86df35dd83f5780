//! Deliberate bugs: each breaks one rule of the core, so that the simulations can show that they would notice.
//!
//! At most one is on, per thread, and only in a build with the feature `mutants`. In all other builds `on` is the
//! constant `false`, and nothing of this is compiled in. The code that implements a rule asks whether its mutant is
//! on. Bugs of the scripts are edits of their texts: `simulations/src/mutants.rs`.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// Declares the mutants: variant, name, and what goes wrong with the invariant that should notice.
macro_rules! mutants {
    ($($variant:ident, $name:literal: $about:literal;)*) => {
        /// A deliberate bug of the core.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $(#[doc = $about] $variant,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in tables and files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What goes wrong, and after the colon the invariants that should notice it.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about,)* }
            }
        }
    };
}

mutants! {
    LeaseCrossesWindow, "lease-crosses-window":
        "Leftovers of a window are spent in the next ones: bound.";
    ExpiryFromArrival, "expiry-from-arrival":
        "A lease's end is counted from the reply's arrival, so that it ends a trip late: bound.";
    DriftMarginMissing, "drift-margin-missing":
        "A slow clock ends a lease after its window, a fast one begins the next early: bound.";
    AccountNeverCloses, "account-never-closes":
        "Tokens of a bucket are spent after the store has counted them as spent: bound.";
    SpendingNotTold, "spending-not-told":
        "A node tells the store that it still holds what it has spent of a bucket: bound.";
    SpendingTimerLost, "spending-timer-lost":
        "What was spent of a bucket is reported only with the next call, and charged as if it were spent later: reported.";
    AllOfItIsATrifle, "all-of-it-is-a-trifle":
        "No call says what became of tokens of a bucket, however many they are: reported.";
    ExpiredNotSettled, "expired-not-settled":
        "What has ended stays in the lease and bars the way to newer tokens: liveness, utilisation.";
    PartialAsWhole, "partial-as-whole":
        "A partial grant is credited as all that was wanted: bound, conservation.";
    GivenUpForSpent, "given-up-for-spent":
        "What an order that was given up may have been lent counts as spent, though nobody got it: used.";
    LateReplyRebound, "late-reply-rebound":
        "A grant that arrives after its window is spent in the window at hand: bound.";
    WaiterDropped, "waiter-dropped":
        "When an acquire fails, those who waited for it are never answered: answered.";
    BatchUncapped, "batch-uncapped":
        "Every acquire wants all there is, so that one node starves the others: fairness.";
    HeldNotSubtracted, "held-not-subtracted":
        "A node that was lent tokens ahead asks for a whole part of their window beside them: fairness.";
    ChanceTakenForFlood, "chance-taken-for-flood":
        "Two checks a moment apart pass for a flood, which takes a whole part of long windows, too, at once: early.";
    DenialNotRemembered, "denial-not-remembered":
        "Every denied check asks the store in the background: store calls.";
    ExpiryTakenForLoss, "expiry-taken-for-loss":
        "A key that the store dropped as nobody asked for it passes for one that it has lost: liveness.";
    StaysAway, "stays-away":
        "A key that lost its store never asks it again: liveness.";
    TwoInFlight, "two-in-flight":
        "A second acquire leaves while one is under way, and the first's grant is lost: store calls, conservation.";
    RetryUnderNewId, "retry-under-new-id":
        "A call of unknown outcome is repeated under a new id, so that it is executed twice: at most once, utilisation.";
    ReturnUnderNewId, "return-under-new-id":
        "A give-back of unknown outcome is repeated under a new id, so that it is credited twice: at most once, bound.";
    ReturnToCurrentWindow, "return-to-current-window":
        "What a closed window lent is handed back into the open one: at most once, bound.";
    ResetKeepsLeases, "reset-keeps-leases":
        "Tokens lent before a reset are spent or handed back after it: no free budget, bound.";
    DenialOutlivesWindow, "denial-outlives-window":
        "A remembered denial goes on after its window: truth in headers, evidence.";
    UsageCarriedOver, "usage-carried-over":
        "What was lent in a window counts as lent in the next, too: evidence, utilisation after a loss of data or away.";
    KnownNotSent, "known-not-sent":
        "A store that lost its data is not told what was lent: no free budget, bound after a loss of data.";
    BucketNotBroughtBack, "bucket-not-brought-back":
        "A store that lost its data is told nothing of a bucket, and lends all of it again: no free budget.";
    FirstLimitBroughtBack, "first-limit-brought-back":
        "Of several limits a store that lost its data is told of the first one alone: no free budget.";
    LendsBeforeRepair, "lends-before-repair":
        "A node leases from a store that lost its data before its peers have told it what they hold: bound.";
    UnconfirmedAsConfirmed, "unconfirmed-as-confirmed":
        "Leases stay large while no replica holds what is lent: bound after a failover.";
    DeniesTheLastToken, "denies-the-last-token":
        "A check that needs just what is left is denied: evidence, truth in headers.";
    WaitHalved, "wait-halved":
        "A denial tells half of the wait: truth in headers.";
    CountsNextWindowAsLeft, "counts-next-window-as-left":
        "Remaining counts tokens that were lent ahead of the next window: truth in headers.";
    BargesPastTheLine, "barges-past-the-line":
        "A check is served from what is held while others wait in line: line order.";
    RefundTwice, "refund-twice":
        "A refund goes back into the lease and into the store: at most once, bound.";
    RefundAsksOneLess, "refund-asks-one-less":
        "Of a refund that is not back in the lease whole the store is asked for one token less than it is: conservation.";
    WholeRefundOneLess, "whole-refund-one-less":
        "Of a refund of limits that were charged differently the store is asked for one token less: conservation.";
    IdleBucketKept, "idle-bucket-kept":
        "A node that clients have left keeps much of a bucket, and what it has spent untold: liveness, utilisation of buckets.";
    NobodyIsOwed, "nobody-is-owed":
        "Nodes wait for others to pay though no limit has released a share: what is denied where two limits meet stalls.";
    RollbackInAnyWindow, "rollback-in-any-window":
        "What a request of several keys was charged goes back although its window is over: entitlements, bound.";
    HoldOutlivesWindow, "hold-outlives-window":
        "What a hold was too much is given back when its window is over: conservation, bound.";
    HoldSettledTwice, "hold-settled-twice":
        "A hold that was settled can be settled again: at most once.";
    ExpiredHoldSettled, "expired-hold-settled":
        "A hold can be settled when its time is over: at most once.";
    WholeHoldBack, "whole-hold-back":
        "Of a hold that was less all of the estimate is given back: at most once.";
    LessIsCharged, "less-is-charged":
        "A hold that was less is charged the difference instead of given it back: conservation.";
    FreeHoldBack, "free-hold-back":
        "What a policy let pass without counting it is given back to the store: conservation, bound.";
    SpendsBeforeItComes, "spends-before-it-comes":
        "Tokens of a bucket that a lone node was lent ahead are spent before they have trickled in: bound.";
    EvictsDebtors, "evicts-debtors":
        "A key that spent its share is evicted and comes back with a fresh one: no free budget.";
    ShareRefilledPerCheck, "share-refilled-per-check":
        "The share of a window is drawn up anew for each check: static shares, bound while away.";
    ShareInSliceOfLoss, "share-in-slice-of-loss":
        "A share is spent on top of the leases of the window in which the store was lost: bound while away.";
    ShareOfOne, "share-of-one":
        "Every node takes the share of a fleet of one: static shares, bound while away.";
    MergeAdds, "merge-adds":
        "What a peer tells again is added to what it told before: no denial by gossip below the limit.";
    GossipHasTheLastWord, "gossip-has-the-last-word":
        "The store is not asked whether all is spent, as peers tell: evidence, no denial by gossip below the limit.";
    DeniesTooSoonByPeers, "denies-too-soon-by-peers":
        "A node denies by what peers tell of a window that may not have begun: no denial by gossip below the limit.";
    TellsFromTheFirst, "tells-from-the-first":
        "Each round of gossip begins with the same key, so that of more than fit in one the last are never told: turns.";
    GrantedAsAdmitted, "granted-as-admitted":
        "What a node was lent counts as admitted by it: no denial by gossip below the limit.";
    GrantedAsAdmittedOfSeveral, "granted-as-admitted-of-several":
        "Of several limits what a node was lent counts as admitted by it: no denial by gossip below the limit.";
    LapsedEntitlementSpent, "lapsed-entitlement-spent":
        "What is set aside for a node is spent after the store may have given it to others: entitled.";
    ShareAfterAcquire, "share-after-acquire":
        "A node spends what is set aside for it in a window for which it has asked the store for tokens: entitled, bound.";
    SlidingPartAtOnce, "sliding-part-at-once":
        "What is set aside for a node of a sliding window it spends at once, while the window before weighs whole: entitled, bound.";
    SpansForgotten, "spans-forgotten":
        "What is set aside for a node of windows from the first request it spends in each aligned window: entitled.";
    SpanDebtForgotten, "span-debt-forgotten":
        "What a node has admitted without the store of a window from the first request it does not pay: bound.";
    StrangerTakesAll, "stranger-takes-all":
        "A node that has just come and has met nobody takes the share of a fleet of one: static shares.";
    SmallFleetAssumed, "small-fleet-assumed":
        "The part of a share that is for all alike is that of a fleet of one: static shares.";
    DebtNotCharged, "debt-not-charged":
        "What was admitted on the share is not charged to the store that is back: no free budget, bound.";
    ComesTwice, "comes-twice":
        "A share of a bucket fills up by what had been lent before it came, and was spent when it did: bound.";
    OwnCountsTwice, "own-counts-twice":
        "What a node holds of a bucket counts twice as left: truth.";
    LossDatedEarly, "loss-dated-early":
        "A loss of the store counts from its last answer, and not from the call that had none: static shares, bound.";
    WindowBeforeForgiven, "window-before-forgiven":
        "What was admitted on the share of a sliding window is not charged once the next one has begun: bound.";
    RepaidForEver, "repaid-for-ever":
        "A share that was paid in one window goes on unpaid in the next, while a longer one is open: bound.";
    SharesNotAwaited, "shares-not-awaited":
        "A node leases as soon as the store is back, while others have yet to pay for their shares: bound.";
    OwnVersionOnly, "own-version-only":
        "A node does not read what peers of the build before or after its own tell it: gossip, utilisation while away.";
    PermitsKept, "permits-kept":
        "A slot that was released stays taken until its time is over: conservation, plenty.";
    PermitsOutlastTheirTime, "permits-outlast-their-time":
        "A slot that nobody released is taken for ever: conservation, plenty.";
    PermitsNotTold, "permits-not-told":
        "A node does not tell the store of the slots that its clients have: conservation, bound.";
    PermitsFromArrival, "permits-from-arrival":
        "A node's slots are its own for ten seconds from the answer's arrival, and the store's count ends before: conservation, bound.";
    PermitsBeyondTheLease, "permits-beyond-the-lease":
        "A node hands out slots when what the store lent it is over: conservation, bound.";
    PermitsNotHandedBack, "permits-not-handed-back":
        "Slots that nobody uses stay with the node that had them: plenty.";
    PermitsStayOver, "permits-stay-over":
        "What nodes took on their shares is lent to them for as long as they are busy, beside the whole limit: bound.";
    PermitsOutlastTheLease, "permits-outlast-the-lease":
        "A node without the store gives out slots that end after the lease by which nobody else is lent them: bound, conservation.";
    EntitledPermitsLapseSoon, "entitled-permits-lapse-soon":
        "The store keeps what a node was lent for ten seconds, and the node goes on with it for ten minutes: conservation, bound.";
    ShareBesideEntitledPermits, "share-beside-entitled-permits":
        "A node without the store goes on within its share, beside the slots that nobody else is lent meanwhile: bound.";
    InheritedPermitsForgotten, "inherited-permits-forgotten":
        "A process that is back under its node's name hands back slots that clients of the one before still have: bound.";
    PermitsKeptThoughHandedBack, "permits-kept-though-handed-back":
        "A node goes on with slots that it has handed back with a call which it had no answer to: bound.";
    PermitGivenTwice, "permit-given-twice":
        "Two slots in a row are told by one id: conservation.";
    SeveralChargedAfterDenial, "several-charged-after-denial":
        "Of several keys those behind one that was denied are charged: all or nothing.";
    SeveralKeepsTheFirst, "several-keeps-the-first":
        "Of several keys of which one was denied the first is not given back: all or nothing.";
    LoanTakenTwice, "loan-taken-twice":
        "An answer of a peer that comes twice is taken twice: conservation, bound.";
    LoanOutlivesWindow, "loan-outlives-window":
        "What a peer lent of a window is spent when that is over: conservation, bound.";
    LentOnNotSpent, "lent-on-not-spent":
        "What is lent on to a peer stays in the lease that it was lent of: conservation, bound.";
    LendsUnderOtherLimits, "lends-under-other-limits":
        "A peer that goes by other limits is lent tokens on: lending.";
    LendsOnLeaving, "lends-on-leaving":
        "A node that leaves lends on to its peers: lending.";
    LendsWhatItAsksFor, "lends-what-it-asks-for":
        "A node that asks a peer for a key serves peers of that key: lending.";
    LendsOnItsShare, "lends-on-its-share":
        "A node whose part of the store is away lends on of its share: lending, bound.";
    OwnerLeasesForOne, "owner-leases-for-one":
        "A key's owner leases what the node at hand asked for, and a call for each that comes after it: store calls.";
    DebtNotPaidByLoans, "debt-not-paid-by-loans":
        "What the share admitted is not paid from what peers lend, and a bucket stays above its limit by that: over.";
    OtherRuleForgotten, "other-rule-forgotten":
        "A peer that has refused an ask as it goes by other limits is asked again for the next check: lending.";
    NoStoreForgotten, "no-store-forgotten":
        "Checks wait once more for a peer that has said that it cannot reach the store, either: waits.";
    NeverTriedAgain, "never-tried-again":
        "A peer that could not reach the store is not asked again while this node cannot, either: over.";
    ShareBeforeRelay, "share-before-relay":
        "A node that has lost the store goes by its share, though a peer would lend: over.";
    LendsWhatLapses, "lends-what-lapses":
        "Of several limits a peer lends tokens of a second that ends on their way, and they are missing in the hour: asking, used.";
    ToldWithoutItsWay, "told-without-its-way":
        "A peer is told all of the time for which its answer is awaited, so that what it lends last is lost on its way: asking.";
    LendsTooLate, "lends-too-late":
        "A peer lends to who has stopped waiting for it, and what it lent is lost: asking, store calls.";
    TriesWithoutPause, "tries-without-pause":
        "Beside each check that the share answers a peer is tried that has had no store: asking.";
    TriedAgainAtOnce, "tried-again-at-once":
        "A peer that has just said that it has no store is tried once more, and not a second later: asking.";
    LargeFleetTriesAsOften, "large-fleet-tries-as-often":
        "In a fleet of many nodes for each owner a node tries owners as often as in a small one: asking.";
    ShareBesideLoans, "share-beside-loans":
        "A share has all of a window in which peers have lent: asking, over.";
    OwnerTellsAll, "owner-tells-all":
        "An owner that leases a key for all reports to all of them what it has admitted: expected.";
    LendersInARow, "lenders-in-a-row":
        "For peers that wait for a key a node asks other peers: asking.";
    UnansweredAcquireForgotten, "unanswered-acquire-forgotten":
        "What is set aside for a node it spends in a window for which it has asked, where the answer never came: entitled, bound.";
    LentAsideNotCounted, "lent-aside-not-counted":
        "What a node without the store lends of what is set aside for it, it admits once more itself: entitled, bound.";
    LendsAfterAcquire, "lends-after-acquire":
        "A node lends of what is set aside for it in a window for which it has asked the store for tokens: entitled, bound.";
    LateForgotten, "late-forgotten":
        "Checks wait for a peer that has not answered three times in a row: asking, answers.";
    LoanOfAnotherWindow, "loan-of-another-window":
        "What a peer counted in a window that has ended since counts as of the next: truth in headers, evidence.";
    WaitsForPeersAlone, "waits-for-peers-alone":
        "A check waits for a peer for as long as it may, and no time is left for the store: asking, answers.";
    IdsStartAnew, "ids-start-anew":
        "After a restart call ids begin at 1 again, and the store takes acquires for repeats: liveness, at most once.";
}

#[cfg(feature = "mutants")]
thread_local! {
    /// 0, or one more than the discriminant of the mutant that is on.
    static ON: Cell<u8> = const { Cell::new(0) };
}

/// Turns a mutant on in this thread, instead of any other; or turns the present one off.
#[cfg(feature = "mutants")]
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant.map_or(0, |mutant| mutant as u8 + 1));
}

/// Whether a mutant is on in this thread.
#[cfg(feature = "mutants")]
pub(crate) fn on(mutant: Mutant) -> bool {
    ON.get() == mutant as u8 + 1
}

/// Never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;

    #[test]
    fn one_mutant_is_on_at_most_and_in_this_thread_only() {
        set(Some(Mutant::WaitHalved));
        assert_eq!(Mutant::ALL.iter().filter(|mutant| on(**mutant)).count(), 1);
        assert!(on(Mutant::WaitHalved));
        std::thread::spawn(|| assert!(!on(Mutant::WaitHalved))).join().expect("no panic");
        set(None);
        assert!(!Mutant::ALL.iter().any(|mutant| on(*mutant)));
    }
}
