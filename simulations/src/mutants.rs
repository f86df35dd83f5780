//! Bugs on purpose, which the checkers must find: those of the core, which are compiled into it
//! ([`rationd::core::mutant`]), and those of the scripts, which are edits of their texts.
//!
//! Each says what goes wrong and, after the colon, the invariants that should notice. What runs a
//! mutant turns on [`Bug::mutant`] in its thread and interprets the scripts with [`Bug::edits`].

use rationd::core::mutant::Mutant;

use crate::swarm;

/// A text of a script, and what stands in its place.
pub type Edit = (&'static str, &'static str);

/// One bug.
#[derive(Clone, Copy, Debug)]
pub enum Bug {
    /// Of the core.
    Core(Mutant),
    /// Of the scripts.
    Script(&'static ScriptBug),
}

/// A bug of the scripts.
#[derive(Debug)]
pub struct ScriptBug {
    /// What it is called in tables and files.
    pub name: &'static str,
    /// What goes wrong, and after the colon the invariants that should notice.
    pub about: &'static str,
    /// Each text occurs once in its script, or once in the files that scripts share.
    pub edits: &'static [Edit],
}

/// A bug that the usual number of seeds hardly ever shows, and what else shows it. All other bugs must be noticed.
#[derive(Debug)]
pub struct Gap {
    /// Its name.
    pub bug: &'static str,
    /// The number of seeds within which it must be noticed after all; `None` if there is none.
    pub seeds: Option<u64>,
    /// The file, below the root, with a test that fails with the bug; `None` if more seeds show it.
    pub shown_by: Option<&'static str>,
    /// The circumstances that it needs and that hardly any seed has.
    pub wants: &'static str,
}

/// The known gaps. `docs/internals/proof.md` names them.
pub static GAPS: [Gap; 3] = [
    Gap {
        bug: "repaid-for-ever",
        seeds: None,
        shown_by: Some("tests/shard_away.rs"),
        wants: "two limits of which a share is paid in one window and not in the next",
    },
    Gap {
        bug: "large-fleet-tries-as-often",
        seeds: Some(1_000),
        shown_by: None,
        wants: "a fleet of more than 64 owners without a store",
    },
    Gap {
        bug: "refund-of-older-epoch",
        seeds: None,
        shown_by: Some("tests/support/store_suite.rs"),
        wants: "a hold that is settled after a reset by another node, before its own has heard of that",
    },
];

/// Why a bug need not be noticed within so many seeds, where it is known that it is not.
#[must_use]
pub fn gap(bug: &str, seeds: u64) -> Option<&'static Gap> {
    GAPS.iter().find(|gap| gap.bug == bug && gap.seeds.is_none_or(|enough| seeds < enough))
}

/// Every bug: the core's, then the scripts'.
#[must_use]
pub fn all() -> Vec<Bug> {
    let core = Mutant::ALL.iter().map(|mutant| Bug::Core(*mutant));
    core.chain(SCRIPTS.iter().map(Bug::Script)).collect()
}

/// The bug of this name.
#[must_use]
pub fn named(name: &str) -> Option<Bug> {
    all().into_iter().find(|bug| bug.name() == name)
}

impl Bug {
    /// What it is called in tables and files.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Core(mutant) => mutant.name(),
            Self::Script(bug) => bug.name,
        }
    }

    /// What goes wrong, and after the colon the invariants that should notice.
    #[must_use]
    pub fn about(&self) -> &'static str {
        match self {
            Self::Core(mutant) => mutant.about(),
            Self::Script(bug) => bug.about,
        }
    }

    /// What to turn on in the core.
    #[must_use]
    pub fn mutant(&self) -> Option<Mutant> {
        match self {
            Self::Core(mutant) => Some(*mutant),
            Self::Script(_) => None,
        }
    }

    /// The first of the seeds that can show it: lending among peers has seeds of its own.
    #[must_use]
    pub fn first_seed(&self) -> u64 {
        match self {
            Self::Core(mutant) if LENDING.contains(mutant) => swarm::LENT_FROM,
            Self::Core(mutant) if LENT_ASIDE.contains(mutant) => swarm::ENTITLED_FROM + swarm::LENT_FROM,
            Self::Core(mutant) if ENTITLED.contains(mutant) => swarm::ENTITLED_FROM,
            Self::Script(bug) if ENTITLED_SCRIPTS.contains(&bug.name) => swarm::ENTITLED_FROM,
            _ => 1,
        }
    }

    /// How to edit the scripts.
    #[must_use]
    pub fn edits(&self) -> &'static [Edit] {
        match self {
            Self::Core(_) => &[],
            Self::Script(bug) => bug.edits,
        }
    }
}

/// Bugs of what the store sets aside for nodes that may lose it.
const ENTITLED: [Mutant; 11] = [
    Mutant::LapsedEntitlementSpent,
    Mutant::ShareAfterAcquire,
    Mutant::UnansweredAcquireForgotten,
    Mutant::SlidingPartAtOnce,
    Mutant::SpansForgotten,
    Mutant::SpanDebtForgotten,
    Mutant::PermitsOutlastTheLease,
    Mutant::EntitledPermitsLapseSoon,
    Mutant::ShareBesideEntitledPermits,
    Mutant::InheritedPermitsForgotten,
    Mutant::PermitsKeptThoughHandedBack,
];
const ENTITLED_SCRIPTS: [&str; 13] = [
    "set-aside-for-nobody",
    "silent-before-forgotten",
    "called-in-another-window",
    "lowered-entitlement-freed",
    "probe-frees-entitlement",
    "late-call-frees-entitlement",
    "stranger-frees-entitlement",
    "silent-part-lent",
    "silent-rate-lent",
    "silent-charged-late",
    "all-renewed-beside-silent",
    "lowered-part-freed",
    "owed-not-charged",
];

/// Bugs of how nodes without the store lend each other what is set aside for them.
const LENT_ASIDE: [Mutant; 2] = [Mutant::LentAsideNotCounted, Mutant::LendsAfterAcquire];

/// Bugs of what peers lend to each other.
const LENDING: [Mutant; 25] = [
    Mutant::LoanTakenTwice,
    Mutant::LoanOutlivesWindow,
    Mutant::LentOnNotSpent,
    Mutant::LendsUnderOtherLimits,
    Mutant::LendsOnLeaving,
    Mutant::LendsWhatItAsksFor,
    Mutant::LendsOnItsShare,
    Mutant::OwnerLeasesForOne,
    Mutant::DebtNotPaidByLoans,
    Mutant::OtherRuleForgotten,
    Mutant::NoStoreForgotten,
    Mutant::NeverTriedAgain,
    Mutant::ShareBeforeRelay,
    Mutant::LendsWhatLapses,
    Mutant::ToldWithoutItsWay,
    Mutant::LendsTooLate,
    Mutant::TriesWithoutPause,
    Mutant::TriedAgainAtOnce,
    Mutant::LargeFleetTriesAsOften,
    Mutant::ShareBesideLoans,
    Mutant::LendersInARow,
    Mutant::OwnerTellsAll,
    Mutant::LateForgotten,
    Mutant::LoanOfAnotherWindow,
    Mutant::WaitsForPeersAlone,
];

static SCRIPTS: [ScriptBug; 56] = [
    ScriptBug {
        name: "set-aside-for-nobody",
        about: "What is set aside for nodes that may lose the store is lent to the others: bound.",
        edits: &[("left = frees and left - aside or 0", "left = frees and left or 0")],
    },
    ScriptBug {
        name: "silent-before-forgotten",
        about: "What silent nodes may have admitted of the sliding window before weighs nothing in this one: bound.",
        edits: &[(
            "local weighs = limit.prev + (aside_before - aside)\n      if",
            "local weighs = limit.prev - aside\n      if",
        )],
    },
    ScriptBug {
        name: "called-in-another-window",
        about: "Who has called in a window from the first request counts as having called in the next one, too: bound.",
        edits: &[("if called_in ~= limit_at then called, called_in = 0, limit_at end", "called_in = limit_at")],
    },
    ScriptBug {
        name: "lowered-entitlement-freed",
        about: "Of what is set aside for a node some is given to others before it knows that it has less: entitled.",
        edits: &[("local held = believes > given and believes or given", "local held = given")],
    },
    ScriptBug {
        name: "probe-frees-entitlement",
        about: "A call that only looks whether the store answers frees what is set aside for its node: bound.",
        edits: &[("local frees = now <= frees_until", "local frees = frees_until == 0 or now <= frees_until")],
    },
    ScriptBug {
        name: "late-call-frees-entitlement",
        about: "An acquire that arrives in a later window than it may frees what is set aside of that: bound.",
        edits: &[("local frees = now <= frees_until", "local frees = frees_until > 0")],
    },
    ScriptBug {
        name: "stranger-frees-entitlement",
        about: "A process frees at once what another one under its name may have spent in this window: bound.",
        edits: &[("or is_stranger and part_held > 0", "")],
    },
    ScriptBug {
        name: "silent-part-lent",
        about: "What silent nodes may hold of a bucket is lent to the others: bound.",
        edits: &[("left = frees and left - for_silent or 0", "left = frees and left or 0")],
    },
    ScriptBug {
        name: "silent-rate-lent",
        about: "What comes into a bucket for silent nodes is lent to the others: bound.",
        edits: &[("charge = charge * silent + WHOLE - 1", "charge = 0")],
    },
    ScriptBug {
        name: "silent-charged-late",
        about: "Nobody is charged for nodes that have fallen silent until a period after their shares begin to fill: bound.",
        edits: &[("charged_until = (lent_period + 1) * UNIT", "charged_until = (lent_period + 2) * UNIT")],
    },
    ScriptBug {
        name: "all-renewed-beside-silent",
        about: "Nodes keep what they hold of a bucket, though silent ones may hold as much: bound.",
        edits: &[("if kept > room then kept", "if false then kept")],
    },
    ScriptBug {
        name: "lowered-part-freed",
        about: "Of a node's part of a bucket some is given to others before it knows that it has less: entitled.",
        edits: &[("local part = believes > given and believes or given", "local part = given")],
    },
    ScriptBug {
        name: "owed-not-charged",
        about: "What a node has admitted on its part of a bucket is forgotten when it calls again: bound.",
        edits: &[("--=spend owes, now", "--=spend 0, now")],
    },
    ScriptBug {
        name: "lends-what-it-lost",
        about: "Whoever brings back what the store has lost is lent at once what others have yet to bring: no free budget.",
        edits: &[("if tokens >= least and not restored then", "if tokens >= least then")],
    },
    ScriptBug {
        name: "acquire-executed-again",
        about: "The id of a node's last acquire is not remembered, and a repeat is lent again: at most once.",
        edits: &[("elseif id ~= 0 and id == acquire_id then", "elseif false then")],
    },
    ScriptBug {
        name: "older-acquire-executed",
        about: "An acquire that arrives after a later one of its node is lent for nobody: at most once, utilisation.",
        edits: &[("if id ~= 0 and id < acquire_id then", "if false then")],
    },
    ScriptBug {
        name: "late-acquire-executed",
        about: "An acquire is executed when the store may have forgotten that it has done so before: second opinion, at most once.",
        edits: &[("elseif until_at > 0 and (now > until_at", "elseif until_at < 0 and (now > until_at")],
    },
    ScriptBug {
        name: "replay-crosses-window",
        about: "A repeated acquire hands the tokens of a closed window to the open one: bound.",
        edits: &[("still_open = then_at == limit.at", "still_open = true")],
    },
    ScriptBug {
        name: "records-shared",
        about: "All nodes share one record, so that one's calls pass for repeats of another's: liveness, fairness.",
        edits: &[(
            "local hash, own, head = KEYS[1], argv[1], argv[2]",
            "local hash, own, head = KEYS[1], 'n:', argv[2]",
        )],
    },
    ScriptBug {
        name: "return-executed-again",
        about: "A repeated give-back is credited again: at most once, bound.",
        edits: &[("if seen ~= 0 then\n  replayed = seen\nelseif epoch_now and knows", "if epoch_now and knows")],
    },
    ScriptBug {
        name: "refund-executed-again",
        about: "A repeated refund is credited again: at most once, bound.",
        edits: &[(
            "if seen ~= 0 then\n  replayed = seen\nelseif epoch_now and not is_forgotten",
            "if epoch_now and not is_forgotten",
        )],
    },
    ScriptBug {
        name: "refund-of-older-epoch",
        about: "A hold from before a reset is credited to what was spent since: no free budget, bound.",
        edits: &[("elseif epoch_now and not is_forgotten then", "elseif epoch_now then")],
    },
    ScriptBug {
        name: "reset-forgets-nodes",
        about: "After a reset whoever asks first is lent as one that is alone: fairness, liveness.",
        edits: &[("    if census_is_stored then\n      written[7]", "    if false then\n      written[7]")],
    },
    ScriptBug {
        name: "return-to-later-window",
        about: "What a closed window lent is credited to the open one: at most once, bound.",
        edits: &[(
            "if limit.kind ~= 'g' and window_at ~= 0 and window_at == limit.at then",
            "if limit.kind ~= 'g' and window_at ~= 0 then",
        )],
    },
    ScriptBug {
        name: "return-ahead-to-now",
        about: "What was lent ahead is credited to the open window when it is handed back: conservation, bound.",
        edits: &[(
            "      limit.prev = limit.prev > amount and limit.prev - amount or 0\n",
            "      if limit.kind == 'f' then\n        limit.used = limit.used > amount and limit.used - amount or 0\n      else\n        limit.prev = limit.prev > amount and limit.prev - amount or 0\n      end\n",
        )],
    },
    ScriptBug {
        name: "return-hides-spending",
        about: "A give-back closes the account of a bucket and charges nothing for what was spent: bound.",
        edits: &[("--=close held, amount, most", "--=close held, amount, 0")],
    },
    ScriptBug {
        name: "set-aside-lent-again",
        about: "What a bucket has lent and nobody has accounted for is lent again: bound.",
        edits: &[("left = fits - (lent_now + lent_before)", "left = fits")],
    },
    ScriptBug {
        name: "old-accounts-forgotten",
        about: "What nobody accounted for in two periods is not counted as spent: bound after crashes.",
        edits: &[("--=spend lent_before, ended * UNIT", "")],
    },
    ScriptBug {
        name: "return-loses-one",
        about: "Of what is handed back of a window the store takes a token less than it says: conservation.",
        edits: &[("      --=credit amount\n      taken = true", "      --=credit amount - 1\n      taken = true")],
    },
    ScriptBug {
        name: "back-and-spent",
        about: "What is handed back of a bucket is charged as spent: conservation.",
        edits: &[("local spent = account - has - back\n", "local spent = account - has\n")],
    },
    ScriptBug {
        name: "return-of-older-epoch",
        about: "What was lent before a reset or a loss is credited after it: no free budget, bound.",
        edits: &[("elseif epoch_now and knows then", "elseif epoch_now then")],
    },
    ScriptBug {
        name: "reset-keeps-epoch",
        about: "A reset is no new epoch, so that nobody drops what the old one lent: no free budget, bound.",
        edits: &[("    epoch_now = id\n", "    epoch_now = math.max(old, 1)\n")],
    },
    ScriptBug {
        name: "restore-takes-maximum",
        about: "Of what nodes add after a loss of data only the largest part counts: no free budget, bound.",
        edits: &[(
            "limit.used = math.min(limit.used + known_used, limit.count)",
            "limit.used = math.max(limit.used, known_used)",
        )],
    },
    ScriptBug {
        name: "restore-adds-twice",
        about: "What nodes add after a loss of data counts twice: evidence, utilisation.",
        edits: &[("limit.used + known_used, limit.count", "limit.used + 2 * known_used, limit.count")],
    },
    ScriptBug {
        name: "one-token-more",
        about: "A window lends one token more than its limit: bound.",
        edits: &[("left = limit.count - limit.used", "left = limit.count + 1 - limit.used")],
    },
    ScriptBug {
        name: "window-holds-its-end",
        about: "At the microsecond at which a window ends it still lends: truth in headers, the differential test.",
        edits: &[("elseif now >= at then", "elseif now > at then")],
    },
    ScriptBug {
        name: "hash-expires-early",
        about: "Redis forgets a key within its window: no free budget, bound.",
        edits: &[
            (
                "(lasts - lasts % 1000 - now + now % 1000) / 1000 + 1",
                "(lasts - lasts % 8000 - now + now % 8000) / 8000 + 1",
            ),
            ("math.ceil(span / 1000) + 1", "math.ceil(span / 8000) + 1"),
        ],
    },
    ScriptBug {
        name: "life-not-renewed",
        about: "A hash lasts as long as its first acquire made it, whatever later ones charge: second opinion, no free budget.",
        edits: &[
            ("renews = limit_kind == 's' or limit_at ~= limit_stored", "renews = false"),
            ("renews = stepped ~= before", "renews = false"),
        ],
    },
    ScriptBug {
        name: "census-counts-calls",
        about: "Every acquire counts as another node, and shares shrink to nothing: fairness, store calls.",
        edits: &[("elseif not has_record or asked_in ~= census_id then", "else")],
    },
    ScriptBug {
        name: "census-never-rolls",
        about: "Nodes that are gone are counted for ever: fairness, utilisation while away.",
        edits: &[("local census_has_rolled = census_id ~= census_now", "local census_has_rolled = census_id == -1")],
    },
    ScriptBug {
        name: "ahead-from-this-window",
        about: "What is lent ahead is debited from this window and not from the next: bound.",
        edits: &[("limit.prev = limit.prev + granted", "limit.used = limit.used + granted")],
    },
    ScriptBug {
        name: "ahead-not-debited",
        about: "What is lent ahead is debited from no window: bound.",
        edits: &[("limit.prev = limit.prev + granted", "limit.prev = limit.prev")],
    },
    ScriptBug {
        name: "charged-from-now",
        about: "What is spent of a bucket is charged from now on, and not after what was spent before: bound.",
        edits: &[("if tat < at then tat = at end", "tat = at")],
    },
    ScriptBug {
        name: "rest-to-one",
        about: "The first to ask gets all that is left, whoever else asks: fairness, utilisation.",
        edits: &[("--=divide_up tokens, nodes\n      part = quotient", "part = tokens")],
    },
    ScriptBug {
        name: "first-limit-debited",
        about: "Of a policy's limits only the first is debited: bound.",
        edits: &[
            (
                "if ahead_of ~= 0 then\n      limit.prev",
                "if limit.name ~= first.name then\n      limit.used = limit.used\n    elseif ahead_of ~= 0 then\n      limit.prev",
            ),
            ("--=spend at_once, now", "--=spend limit.name == first.name and at_once or 0, now"),
        ],
    },
    ScriptBug {
        name: "sliding-forgets",
        about: "A sliding window forgets the one before when it rolls: bound of the estimate.",
        edits: &[("used, prev = 0, used\n    elseif", "used, prev = 0, 0\n    elseif")],
    },
    ScriptBug {
        name: "sliding-rounds-down",
        about: "What a sliding window still weighs is rounded down, and a token too many is lent: second opinion.",
        edits: &[
            (
                "scaled(limit.prev, limit.at + limit.period - now, limit.period, limit.period - 1)",
                "scaled(limit.prev, limit.at + limit.period - now, limit.period, 0)",
            ),
            (
                "scaled(weighs, limit.at + limit.period - now, limit.period, limit.period - 1)",
                "scaled(weighs, limit.at + limit.period - now, limit.period, 0)",
            ),
        ],
    },
    ScriptBug {
        name: "refund-asks-first-limit",
        about: "A refund asks the first limit only whether its window was charged, and credits all: second opinion.",
        edits: &[(
            "if window_at ~= 0 and not is_charged then",
            "if window_at ~= 0 and not is_charged and limit.name == first.name then",
        )],
    },
    ScriptBug {
        name: "slots-beyond-the-limit",
        about: "Slots of a concurrent limit are lent beyond what is left of it: second opinion.",
        edits: &[("min(want, left, used + part)", "min(want, used + part)")],
    },
    ScriptBug {
        name: "slots-of-the-dead",
        about: "What a node that is not heard of any more had of a concurrent limit is its own for ever: second opinion.",
        edits: &[("elseif at <= now then", "elseif at < 0 then")],
    },
    ScriptBug {
        name: "slots-of-others-forgotten",
        about: "Of the slots of other nodes only the last counts: bound, second opinion.",
        edits: &[("others, live, last_at = others + slots, live + 1", "others, live, last_at = slots, live + 1")],
    },
    ScriptBug {
        name: "slots-forgotten-early",
        about: "A key of a concurrent limit is forgotten while leases of its slots are running: bound, second opinion.",
        edits: &[("floor(max(at, last_at) / 1000) - floor(now / 1000) + 1", "floor(lease / 2000)")],
    },
    ScriptBug {
        name: "lapsed-slots-stay",
        about: "What nodes had of a concurrent limit that ask no more stays in the key's hash for ever: second opinion.",
        edits: &[("if #gone > 0 then call('HDEL'", "if #gone > 500 then call('HDEL'")],
    },
    ScriptBug {
        name: "joined-keys-share-what-they-say",
        about: "What one key of several in one call says of its limit counts for those behind it, too: second opinion.",
        edits: &[("local limit_x, limit_y, limit_z = 0, 0, 0\nif #head", "if #head")],
    },
    ScriptBug {
        name: "joined-keys-are-taken-for-new",
        about: "Of several keys in one call those that their node does not know count as new to the store, too: second opinion.",
        edits: &[(" and redis.pcall('HLEN', hash) == 0 then", " then")],
    },
    ScriptBug {
        name: "window-reopens",
        about: "Each debit moves the end of a window from the first request: truth in headers.",
        edits: &[(
            "if limit.kind == 'o' and limit.at == 0 and granted > 0 then",
            "if limit.kind == 'o' and granted > 0 then",
        )],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rationd::store::script;

    use super::*;

    /// So many scripts begin with `account.lua`, and with `lib.lua`.
    const SHARE_ACCOUNT: usize = 3;
    const SHARE_LIB: usize = 5;

    #[test]
    fn bugs_are_many_and_each_has_a_name_of_its_own() {
        let bugs = all();
        let names: BTreeSet<_> = bugs.iter().map(Bug::name).collect();
        assert!(bugs.len() >= 32 && names.len() == bugs.len(), "{} names of {} bugs", names.len(), bugs.len());
        assert!(names.iter().all(|name| named(name).is_some_and(|bug| bug.name() == *name)));
    }

    /// A page of the repository.
    fn page(name: &str) -> String {
        let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn pages_say_how_many_there_are() {
        let of = all().len();
        for (name, said) in [
            ("README.md", format!(" of the {of} bugs that were put in on purpose")),
            ("docs/internals/proof.md", format!(" of the {of} bugs on purpose")),
            ("docs/internals/simulator.md", format!("# {of} bugs on purpose")),
        ] {
            assert!(page(name).contains(&said), "{name} does not say `{said}`");
        }
    }

    #[test]
    fn every_bug_says_which_invariant_should_notice() {
        for bug in all() {
            let invariants = bug.about().rsplit_once(": ").map(|(_, invariants)| invariants);
            assert!(invariants.is_some_and(|text| text.ends_with('.')), "{}: {}", bug.name(), bug.about());
        }
    }

    #[test]
    fn every_edited_text_stands_once_in_its_script() {
        for bug in all() {
            for (text, other) in bug.edits() {
                let counts = script::sources().map(|(_, source)| source.matches(text).count());
                let (found, most) = (counts.iter().sum::<usize>(), counts.iter().max());
                assert!(
                    most == Some(&1) && [1, SHARE_ACCOUNT, SHARE_LIB].contains(&found),
                    "{}: {counts:?}",
                    bug.name()
                );
                assert_ne!(text, other, "{}", bug.name());
            }
        }
    }
}
