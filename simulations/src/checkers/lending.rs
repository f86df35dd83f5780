//! **lending**: who lends on to a peer, and who asks. A node lends on what it may lend: under the limits by which the peer
//! spends it, as much as is of use and no more than was wanted, not when it leaves, and not of a key for which it asks a peer
//! itself. A node asks one peer at a time for a key, never twice under one id, and nobody who has just said that it goes by
//! other limits.
//!
//! That what is lent on was held, and is admitted once, is `purse.rs`'s.

use rationd::core::ask::{Answer, Ask, Loan, Refusal};
use rationd::core::policy::Rule;

use super::Found;
use super::notes::{Ids, Life};
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Moment, Observer, Seen, Setting, Violation};

static OFF: Exemption = Exemption::new("runs whose nodes ask no peers", "Nobody lends anything on.");
static LEARNS: Exemption = Exemption::new(
    "limits that a node learns of while an ask waits",
    "A key goes by the old ones until it is asked for again, and what it is lent is of those, as the ask is.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "lending.rs",
    invariants: &["lending"],
    proves: "A node lends on under the limits by which the peer spends, as much as is of use and no more than was wanted, not when it leaves, and not of a key for which it asks a peer itself, nor does it let a peer wait for that; it asks one peer at a time for a key, never twice under one id, and nobody who has just said that it goes by other limits.",
    judges: "All algorithms, several limits.",
    exemptions: &[&OFF, &LEARNS],
    mutant: Some("lends-under-other-limits"),
};

/// Clocks of nodes differ by less than one part in so many.
const DRIFT_PART: u64 = 2_000;

/// Of so many asks that wait for a key at a node it is remembered.
const WAITING: usize = 64;

/// For so long whoever goes by other limits is not asked for the same again.
const LEFT_OUT: u64 = 1_000_000;

/// The checker.
#[derive(Debug)]
pub(super) struct Lending {
    is_on: bool,
    asked: Ids,
    /// The ask that a node waits for: its id, and until when in true time at least.
    open: Map<(Life, u32), (u64, u64)>,
    /// Who told a node last that it goes by other limits, than those of which rule, and until when that is believed.
    others: Map<(Life, u32), (Life, u64, u64)>,
    /// The asks that each node lets wait, under limits that it goes by.
    waiting: Map<(Life, u32), Vec<u64>>,
    found: Found,
}

impl Lending {
    pub(super) fn new(setting: &Setting) -> Self {
        let is_on = !OFF.when(!setting.plan.daemon.owners);
        Self {
            is_on,
            asked: Ids::default(),
            open: Map::default(),
            others: Map::default(),
            waiting: Map::default(),
            found: Found::default(),
        }
    }

    fn asks(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask) {
        if !self.asked.is_first(life, ask.id) {
            self.found.add("lending", moment, || format!("key {key}: {life:?} asks again under the id of {ask:?}"));
        }
        let patience = ask.terms.patience.0;
        let open = (ask.id, moment.at + patience - patience.div_ceil(DRIFT_PART));
        if let Some((id, _)) = self.open.insert((life, key), open).filter(|(_, until)| moment.at < *until) {
            self.found.add("lending", moment, || format!("key {key}: {life:?} asks for {ask:?} and waits for {id}"));
        }
    }

    fn asks_in_vain(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, peer: Life) {
        let other = self
            .others
            .get(&(life, key))
            .filter(|(other, rule, until)| (*other, *rule) == (peer, ask.terms.rule) && moment.at < *until);
        if other.is_some() {
            self.found.add("lending", moment, || {
                format!("key {key}: {life:?} asks {peer:?} for {ask:?}, which has said that it goes by other limits")
            });
        }
    }

    fn hears(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, (peer, answer): (Life, &Answer)) {
        let Some((_, until)) = self.open.get(&(life, key)).filter(|(id, _)| *id == ask.id).copied() else { return };
        self.open.remove(&(life, key));
        if *answer == Err(Refusal::OtherRule) && moment.at < until {
            let until = moment.at + LEFT_OUT - LEFT_OUT.div_ceil(DRIFT_PART);
            self.others.insert((life, key), (peer, ask.terms.rule, until));
        }
    }

    /// Two that asked each other would wait for each other until both give up.
    fn waits(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask) {
        if self.open.get(&(life, key)).is_some_and(|(_, until)| moment.at < *until) {
            self.found
                .add("lending", moment, || format!("key {key}: {life:?} asks a peer itself and lets {ask:?} wait"));
        }
        let waiting = self.waiting.entry((life, key)).or_default();
        waiting.push(ask.id);
        if waiting.len() > WAITING {
            waiting.remove(0);
        }
    }

    /// Whether that node has let the ask wait.
    fn has_waited(&mut self, life: Life, key: u32, ask: &Ask) -> bool {
        let Some(waiting) = self.waiting.get_mut(&(life, key)) else { return false };
        let before = waiting.len();
        waiting.retain(|id| *id != ask.id);
        waiting.len() < before
    }

    fn lends(&mut self, moment: Moment, life: Life, (key, leaves): (u32, bool), ask: &Ask, rule: &Rule, loan: &Loan) {
        let terms = ask.terms;
        let has_waited = self.has_waited(life, key, ask);
        let is_asking = self.open.get(&(life, key)).is_some_and(|(_, until)| moment.at < *until);
        let why = match () {
            () if rule.limits != ask.rule.limits && !LEARNS.when(has_waited) => "goes by other limits",
            () if leaves => "leaves",
            () if is_asking => "asks a peer itself",
            () if !(terms.least..=terms.want).contains(&loan.tokens) => "lends what is not wanted",
            () => return,
        };
        self.found.add("lending", moment, || format!("key {key}: {life:?} {why} and lends {loan:?} on for {ask:?}"));
    }
}

impl Observer for Lending {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        match seen {
            Seen::PeerAsked { node, incarnation, key, ask, peer } => {
                self.asks(moment, (*node, *incarnation), *key, ask);
                if let Some(peer) = peer {
                    self.asks_in_vain(moment, (*node, *incarnation), *key, ask, *peer);
                }
            }
            Seen::PeerWaits { node, incarnation, key, ask } => self.waits(moment, (*node, *incarnation), *key, ask),
            Seen::PeerAnswered { node, incarnation, key, ask, answer: Ok(loan), rule, leaves, .. }
                if loan.tokens > 0 =>
            {
                self.lends(moment, (*node, *incarnation), (*key, *leaves), ask, rule, loan);
            }
            Seen::PeerHeard { node, incarnation, key, ask, peer, answer, .. } => {
                self.hears(moment, (*node, *incarnation), *key, ask, (*peer, answer));
            }
            _ => {}
        }
    }
}

impl Checker for Lending {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::time::Timestamp;

    use super::*;
    use crate::checkers::tests::{History, peer_ask};

    fn checker(history: &History) -> Lending {
        let mut setting = history.setting();
        setting.plan.daemon.owners = true;
        Lending::new(&setting)
    }

    /// Node 1 asks for three tokens, two at least; node 0 lends so many under that limit.
    fn violations(limit: &str, tokens: u64, leaves: bool, asks_itself: bool) -> usize {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history);
        if asks_itself {
            let ask = peer_ask(9, 1, 1);
            history.see(&mut checker, 1, &Seen::PeerAsked { node: 0, incarnation: 0, key: 0, ask: &ask, peer: None });
        }
        let ask = peer_ask(1, 3, 2);
        history.see(&mut checker, 2, &Seen::PeerAsked { node: 1, incarnation: 0, key: 0, ask: &ask, peer: None });
        history.lent_on(&mut checker, 3, limit, tokens, leaves);
        checker.violations().len()
    }

    #[test]
    fn who_may_not_lend_on_is_seen() {
        assert_eq!(violations("10/1s fixed", 2, false, false), 0);
        assert_eq!(violations("11/1s fixed", 2, false, false), 1);
        assert_eq!(violations("10/1s fixed", 2, true, false), 1);
        assert_eq!(violations("10/1s fixed", 2, false, true), 1);
        assert_eq!(violations("10/1s fixed", 1, false, false), 1);
        assert_eq!(violations("10/1s fixed", 4, false, false), 1);
        assert_eq!(violations("11/1s fixed", 0, true, true), 0);
    }

    #[test]
    fn who_asks_twice_is_seen() {
        for (id, at, seen) in [(2, 100_000, 0), (1, 100_000, 1), (2, 3, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            for (id, at) in [(1, 2), (id, at)] {
                let ask = peer_ask(id, 1, 1);
                history.see(
                    &mut checker,
                    at,
                    &Seen::PeerAsked { node: 1, incarnation: 0, key: 0, ask: &ask, peer: None },
                );
            }
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
    #[test]
    fn who_asks_those_who_go_by_other_limits_again_at_once_is_seen() {
        for (again, at, seen) in [((0, 0), 500_000, 1), ((0, 0), 1_100_000, 0), ((0, 1), 500_000, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let (incarnation, key, store) = (0, 0, Timestamp(0));
            let ask = peer_ask(1, 1, 1);
            let peer = Some((0, 0));
            history.see(&mut checker, 2, &Seen::PeerAsked { node: 1, incarnation, key, ask: &ask, peer });
            let (peer, answer) = ((0, 0), Err(Refusal::OtherRule));
            let heard = Seen::PeerHeard { node: 1, incarnation, key, peer, ask: &ask, answer: &answer, store };
            history.see(&mut checker, 3, &heard);
            let ask = peer_ask(2, 1, 1);
            history.see(&mut checker, at, &Seen::PeerAsked { node: 1, incarnation, key, ask: &ask, peer: Some(again) });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
