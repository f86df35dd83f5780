//! Bugs on purpose, which the checkers must find: those of the core, which are compiled into it
//! ([`rationd::core::mutant`]), and those of the scripts, which are edits of their texts.
//!
//! Each says what goes wrong and, after the colon, the invariants that should notice. What runs a
//! mutant turns on [`Bug::mutant`] in its thread and interprets the scripts with [`Bug::edits`].

use rationd::core::mutant::Mutant;

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
    /// Each text stands once in the script that it belongs to, or once in `lib.lua`.
    pub edits: &'static [Edit],
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

    /// How to edit the scripts.
    #[must_use]
    pub fn edits(&self) -> &'static [Edit] {
        match self {
            Self::Core(_) => &[],
            Self::Script(bug) => bug.edits,
        }
    }
}

static SCRIPTS: [ScriptBug; 30] = [
    ScriptBug {
        name: "lends-what-it-lost",
        about: "Whoever brings back what the store has lost is lent at once what others have yet to bring: no free budget.",
        edits: &[("restored and 0 or share_of", "share_of")],
    },
    ScriptBug {
        name: "acquire-executed-again",
        about: "The id of a node's last acquire is not remembered, and a repeat is lent again: at most once.",
        edits: &[(
            "if seen ~= 0 then return answer(state, seen == 1",
            "if seen == 2 then return answer(state, seen == 1",
        )],
    },
    ScriptBug {
        name: "older-acquire-executed",
        about: "An acquire that arrives after a later one of its node is lent for nobody: at most once, utilisation.",
        edits: &[(
            "if seen ~= 0 then return answer(state, seen == 1",
            "if seen == 1 then return answer(state, seen == 1",
        )],
    },
    ScriptBug {
        name: "replay-crosses-window",
        about: "A repeated acquire hands the tokens of a closed window to the open one: bound.",
        edits: &[("open = (record[6 + i] or 0) == counters[i].at", "open = true")],
    },
    ScriptBug {
        name: "records-shared",
        about: "All nodes share one record, so that one's calls pass for repeats of another's: liveness, fairness.",
        edits: &[("local node, id = ARGV[2] or '', nil", "local node, id = '', nil")],
    },
    ScriptBug {
        name: "return-executed-again",
        about: "A repeated give-back is credited again: at most once, bound.",
        edits: &[("if seen ~= 0 then return answer(state, 0, seen) end\n-- A node that never", "-- A node that never")],
    },
    ScriptBug {
        name: "refund-executed-again",
        about: "A repeated refund is credited again: at most once, bound.",
        edits: &[(
            "if seen ~= 0 then return answer(state, 0, seen) end\nif not state.epoch then",
            "if not state.epoch then",
        )],
    },
    ScriptBug {
        name: "return-to-later-window",
        about: "What a closed window lent is credited to the open one: at most once, bound.",
        edits: &[(
            "if window_at ~= 0 and window_at == counter.at then",
            "if window_at ~= 0 and (limit.kind ~= 'g' or window_at == counter.at) then",
        )],
    },
    ScriptBug {
        name: "return-hides-spending",
        about: "A give-back closes the account of a bucket and charges nothing for what was spent: bound.",
        edits: &[(
            "local account, settled = settle_account(state, limits, held, amount, 2, most)",
            "local account, settled = close_account(state), true",
        )],
    },
    ScriptBug {
        name: "set-aside-lent-again",
        about: "What a bucket has lent and nobody has accounted for is lent again: bound.",
        edits: &[("left_gcra(counter, limit) - lent[1] - lent[2]", "left_gcra(counter, limit)")],
    },
    ScriptBug {
        name: "old-accounts-forgotten",
        about: "What nobody accounted for in two periods is not counted as spent: bound after crashes.",
        edits: &[("spend(state.counters, limits, lent[2], (lent[3] + 1) * PERIOD)", "")],
    },
    ScriptBug {
        name: "return-of-older-epoch",
        about: "What was lent before a reset or a loss is credited after it: no free budget, bound.",
        edits: &[("if not state.epoch or not knows then", "if not state.epoch then")],
    },
    ScriptBug {
        name: "reset-keeps-epoch",
        about: "A reset is no new epoch, so that nobody drops what the old one lent: no free budget, bound.",
        edits: &[("  state.epoch = id\n", "  state.epoch = max(old, 1)\n")],
    },
    ScriptBug {
        name: "restore-takes-maximum",
        about: "Of what nodes add after a loss of data only the largest part counts: no free budget, bound.",
        edits: &[("counter.used = min(counter.used + used, limit.count)", "counter.used = max(counter.used, used)")],
    },
    ScriptBug {
        name: "restore-adds-twice",
        about: "What nodes add after a loss of data counts twice: evidence, utilisation.",
        edits: &[("min(counter.used + used, limit.count)", "min(counter.used + 2 * used, limit.count)")],
    },
    ScriptBug {
        name: "one-token-more",
        about: "A window lends one token more than its limit: bound.",
        edits: &[("local tokens = limit.count - counter.used", "local tokens = limit.count + 1 - counter.used")],
    },
    ScriptBug {
        name: "window-holds-its-end",
        about: "At the microsecond at which a window ends it still lends: truth in headers, the differential test.",
        edits: &[("elseif now >= counter.at then", "elseif now > counter.at then")],
    },
    ScriptBug {
        name: "hash-expires-early",
        about: "Redis forgets a key within its window: no free budget, bound.",
        edits: &[("up(span, 1000) + 1", "up(span, 8000) + 1")],
    },
    ScriptBug {
        name: "census-counts-calls",
        about: "Every acquire counts as another node, and shares shrink to nothing: fairness, store calls.",
        edits: &[("if asked == census[1] then return end", "")],
    },
    ScriptBug {
        name: "census-never-rolls",
        about: "Nodes that are gone are counted for ever: fairness, utilisation while away.",
        edits: &[("if stored[1] == cid then return end", "if stored[1] ~= -1 then return end")],
    },
    ScriptBug {
        name: "ahead-from-this-window",
        about: "What is lent ahead is debited from this window and not from the next: bound.",
        edits: &[("counter.prev = counter.prev + tokens", "counter.used = counter.used + tokens")],
    },
    ScriptBug {
        name: "ahead-not-debited",
        about: "What is lent ahead is debited from no window: bound.",
        edits: &[("counter.prev = counter.prev + tokens", "counter.prev = counter.prev")],
    },
    ScriptBug {
        name: "charged-from-now",
        about: "What is spent of a bucket is charged from now on, and not after what was spent before: bound.",
        edits: &[("local tat = max(counter.at, at) + cost(", "local tat = at + cost(")],
    },
    ScriptBug {
        name: "rest-to-one",
        about: "The first to ask gets all that is left, whoever else asks: fairness, utilisation.",
        edits: &[("local part = max(need, up(tokens, nodes(state)),", "local part = max(need, tokens,")],
    },
    ScriptBug {
        name: "first-limit-debited",
        about: "Of a policy's limits only the first is debited: bound.",
        edits: &[("for i = 1, #limits do debit(", "for i = 1, 1 do debit(")],
    },
    ScriptBug {
        name: "sliding-forgets",
        about: "A sliding window forgets the one before when it rolls: bound of the estimate.",
        edits: &[("counter.used, counter.prev = 0, counter.used", "counter.used, counter.prev = 0, 0")],
    },
    ScriptBug {
        name: "sliding-rounds-down",
        about: "What a sliding window still weighs is rounded down, and a token too many is lent: second opinion.",
        edits: &[(
            "tokens - scaled_up(counter.prev, counter.at + limit.period - now, limit.period)",
            "tokens - scaled_down(counter.prev, counter.at + limit.period - now, limit.period)",
        )],
    },
    ScriptBug {
        name: "refund-asks-first-limit",
        about: "A refund asks the first limit only whether its window was charged, and credits all: second opinion.",
        edits: &[("for i = 1, #limits do\n  if not is_charged", "for i = 1, 1 do\n  if not is_charged")],
    },
    ScriptBug {
        name: "slots-beyond-the-limit",
        about: "Slots of a concurrent limit are lent beyond what is left of it: second opinion.",
        edits: &[("min(want, left, used + part)", "min(want, used + part)")],
    },
    ScriptBug {
        name: "window-reopens",
        about: "Each debit moves the end of a window from the first request: truth in headers.",
        edits: &[(
            "if limit.kind == 'o' and counter.at == 0 and tokens > 0 then",
            "if limit.kind == 'o' and tokens > 0 then",
        )],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rationd::store::script;

    use super::*;

    #[test]
    fn bugs_are_many_and_each_has_a_name_of_its_own() {
        let bugs = all();
        let names: BTreeSet<_> = bugs.iter().map(Bug::name).collect();
        assert!(bugs.len() >= 32 && names.len() == bugs.len(), "{} names of {} bugs", names.len(), bugs.len());
        assert!(names.iter().all(|name| named(name).is_some_and(|bug| bug.name() == *name)));
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
                let counts = script::all().map(|script| script.text.matches(text).count());
                let (found, most) = (counts.iter().sum::<usize>(), counts.iter().max());
                // lib.lua stands before each script.
                assert!(most == Some(&1) && [1, counts.len()].contains(&found), "{}: {counts:?}", bug.name());
                assert_ne!(text, other, "{}", bug.name());
            }
        }
    }
}
