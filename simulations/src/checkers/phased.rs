//! Limits a checker to keys and times. A change of limits excuses the keys of its policy until all nodes know of it and
//! earlier grants are over; another clock that counts a key at once excuses that key until grants by the former clock
//! are over.
//!
//! The checker does not see what is excused: it sees the keys of a policy up to the change, and a new checker of the
//! same kind sees those after it. Events without a key are seen by all of them.

use std::sync::Arc;

use rationd::core::call::Call;
use rationd::core::gcra::{lease_life, units};
use rationd::core::limit::{Algorithm, Limit};

use super::SAME;
use super::sheet::{Exemption, Sheet};
use crate::maps::Numbered;
use crate::observe::{Checker, Holding, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::{Plan, What};

/// How long after a change every node has learnt it and earlier calls are answered.
const SETTLES: u64 = 1_000_000;

/// A busy server executes a call at most this long after it arrived.
pub(super) const BUSY: u64 = 100_000;

/// A checker of the keys of one policy, between two changes.
#[derive(Debug)]
struct Phase<C> {
    policy: u32,
    /// When it begins to see events, and from when until when its findings count.
    sees: u64,
    judges: u64,
    until: u64,
    checker: C,
    taken: usize,
}

/// When the limits of one policy change.
#[derive(Debug)]
pub(super) struct Pushes {
    /// When each change begins, and by when every node has learnt it.
    pushes: Vec<(u64, u64)>,
    /// The longest time for which an admission counts under any of its limits, before or after.
    longest: u64,
    /// How long an account of a bucket among them lives at most; 0 if there is none.
    accounts: u64,
}

impl Pushes {
    pub(super) fn new(plan: &Plan, policy: usize) -> Self {
        let (mut pushes, mut longest, mut accounts) = (Vec::new(), 0, 0);
        let mut measure = |limits: &[String]| {
            for limit in limits.iter().filter_map(|text| Limit::parse(text).ok()) {
                longest = longest.max(limit.period.0).max(limit.depth().0);
                if limit.algorithm == Algorithm::Gcra {
                    accounts = accounts.max(lease_life(units(&[limit])).0);
                }
            }
        };
        plan.policies.get(policy).into_iter().for_each(|policy| measure(&policy.limits));
        for fault in &plan.faults {
            if let What::Push { policy: of, limits } = &fault.what
                && *of as usize % plan.policies.len().max(1) == policy
            {
                measure(limits);
                pushes.push((fault.at.0, fault.at.0 + fault.lasts.0 + SETTLES));
            }
        }
        Self { pushes, longest, accounts }
    }

    /// The longest such time of all policies.
    pub(super) fn last_beyond_a_leap(plan: &Plan) -> u64 {
        let all = (0..plan.policies.len()).map(|policy| Self::new(plan, policy).lasts_beyond_a_leap());
        all.max().unwrap_or(0)
    }

    fn are_any(&self) -> bool {
        !self.pushes.is_empty()
    }

    /// Whether at `at` some node may not know of a change, or earlier grants are not over.
    pub(super) fn meet(&self, at: u64) -> bool {
        self.pushes.iter().any(|(begins, settled)| (*begins..settled + self.lasts()).contains(&at))
    }

    /// How long after every node knows of a change earlier grants may be spent.
    fn lasts(&self) -> u64 {
        2 * (self.longest + SETTLES)
    }

    /// How long after a new clock has caught up with the former one earlier grants may be spent, and accounts of
    /// buckets be open.
    pub(super) fn lasts_beyond_a_leap(&self) -> u64 {
        self.lasts() + self.accounts
    }
}

/// A checker of keys since another clock counts them.
#[derive(Clone, Debug)]
struct Later<C> {
    checker: C,
    taken: usize,
}

/// Checkers of keys that other clocks have counted before: the first for keys that one other clock has counted, the
/// second for two, and so on, so that each sees a key by one clock only. They are cloned when needed from a spare one,
/// which has seen the events without a key.
#[derive(Debug)]
struct Row<C> {
    spare: Later<C>,
    later: Vec<Later<C>>,
}

/// A checker, with further ones for policies whose limits change.
#[derive(Debug)]
pub(super) struct Phased<C> {
    plain: C,
    taken: usize,
    phases: Vec<Phase<C>>,
    /// Checkers for keys that another clock counts now: for policies whose limits do not change, and for each of
    /// `phases`.
    rows: Vec<Row<C>>,
    /// By policy: how long grants by the former clock may be spent; `None` if keys of the policy are not judged any
    /// more after that.
    lasts: Vec<Option<u64>>,
    /// Whether no policy's limits change, so that the plain checker sees all.
    is_steady: bool,
    /// By policy: whether its limits change.
    changes: Vec<bool>,
    /// By policy: its name, by which a call names it. For several keys at once, calls about later keys come before
    /// their requests.
    names: Vec<Arc<str>>,
    /// By key: the number of its policy plus one; 0 if unknown.
    policies: Numbered<u32>,
    /// Whether keys that another clock counts at once are excused; `clocks` is the clock of each.
    leaps: bool,
    busy: u64,
    clocks: Numbered<Clock>,
    /// Whether another clock has counted some key at once.
    has_leapt: bool,
    found: Vec<Violation>,
}

/// The clock that counts a key.
#[derive(Debug, Default)]
struct Clock {
    /// How far it is from true time, once that is known.
    skew: Option<u64>,
    /// How many other clocks counted the key before; and when the present one took over or, if it was behind, caught
    /// up.
    leaps: usize,
    since: u64,
}

impl<C: Checker + Clone> Phased<C> {
    /// A checker that excuses `why`: keys whose limits change.
    pub(super) fn new(why: &Exemption, setting: &Setting, make: impl Fn(&Setting) -> C) -> Self {
        let plan = &setting.plan;
        let mut changes = vec![false; plan.policies.len().max(1)];
        let mut phases = Vec::new();
        for (policy, changes) in changes.iter_mut().enumerate() {
            let pushes = Pushes::new(plan, policy);
            let lasts = pushes.lasts();
            *changes = why.when(!pushes.pushes.is_empty());
            let mut sees = 0;
            for (at, settled) in pushes.pushes.into_iter().chain([(u64::MAX, 0)]).filter(|_| *changes) {
                let judges = if sees == 0 { 0 } else { sees + lasts };
                if judges < at {
                    let policy = policy as u32; // a few
                    phases.push(Phase { policy, sees, judges, until: at, checker: make(setting), taken: 0 });
                }
                sees = sees.max(settled);
            }
        }
        Self { phases, is_steady: !changes.contains(&true), changes, ..Self::always(setting, &make) }
    }

    /// A checker that goes on through changes of limits.
    pub(super) fn always(setting: &Setting, make: impl Fn(&Setting) -> C) -> Self {
        let phased = Self {
            plain: make(setting),
            taken: 0,
            phases: Vec::new(),
            rows: Vec::new(),
            lasts: Vec::new(),
            is_steady: true,
            changes: Vec::new(),
            names: setting.rules.iter().map(|rule| rule.policy.clone()).collect(),
            policies: Numbered::default(),
            leaps: false,
            busy: SAME,
            clocks: Numbered::default(),
            has_leapt: false,
            found: Vec::new(),
        };
        phased.agree(setting)
    }

    /// Calls `tell` for each checker that begins after a change, with the time from which on it sees events.
    pub(super) fn from(mut self, mut tell: impl FnMut(&mut C, u64)) -> Self {
        self.phases.iter_mut().filter(|phase| phase.sees > 0).for_each(|phase| tell(&mut phase.checker, phase.sees));
        self
    }

    /// Also excuses, by `why`, keys from the moment on at which another clock counts them.
    pub(super) fn until_leaps(self, why: &Exemption, leaps: bool) -> Self {
        Self { leaps: why.when(leaps), ..self }
    }

    /// Judges such keys again when grants by the former clock are over, with checkers that have not seen them before.
    pub(super) fn again(self, setting: &Setting, make: impl Fn(&Setting) -> C) -> Self {
        let plan = &setting.plan;
        let rows = if self.leaps && plan.clocks_leap() { 1 + self.phases.len() } else { 0 };
        let row = || Row { spare: Later { checker: make(setting), taken: 0 }, later: Vec::new() };
        let lasts = |policy| Some(Pushes::new(plan, policy).lasts_beyond_a_leap());
        Self { rows: (0..rows).map(|_| row()).collect(), lasts: (0..plan.policies.len()).map(lasts).collect(), ..self }
    }

    /// Does not do so for policies whose limits change.
    pub(super) fn unless_limits_change(mut self, setting: &Setting) -> Self {
        for (policy, lasts) in self.lasts.iter_mut().enumerate() {
            lasts.take_if(|_| Pushes::new(&setting.plan, policy).are_any());
        }
        self
    }

    /// If masters' clocks agree, a late execution by a busy server is not taken for another clock.
    fn agree(self, setting: &Setting) -> Self {
        let busy = if setting.plan.redis.skew.0 == 0 { BUSY } else { SAME };
        Self { busy, ..self }
    }

    /// Notes the clock that the key's owner shows.
    fn follow(&mut self, moment: Moment, key: u32, now: u64, late: u64) {
        if !self.leaps {
            return;
        }
        let skew = now.wrapping_sub(moment.store.0);
        let clock = self.clocks.of(key);
        let known = *clock.skew.get_or_insert(skew);
        let (behind, ahead) = (known.wrapping_sub(skew), skew.wrapping_sub(known));
        if behind.min(ahead) > if ahead < behind { late.max(SAME) } else { SAME } {
            // A clock that is behind passes through earlier windows once more.
            let again = if behind < ahead { behind } else { 0 };
            *clock = Clock { skew: Some(skew), leaps: clock.leaps + 1, since: clock.since.max(moment.at + again) };
            self.has_leapt = true;
        }
    }

    /// Learns a key's policy from a call.
    fn learn(&mut self, key: u32, call: &Call) {
        let policy = self.policies.of(key);
        if *policy == 0 {
            let place = self.names.iter().position(|name| *name == call.rule.policy);
            *policy = place.map_or(0, |place| place as u32 + 1); // a few
        }
    }

    /// Learns the clock that counts a key, if the event shows it.
    fn look_at_clock(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Answered { request, store, .. } => self.follow(moment, request.key, store.0, 0),
            Seen::Executed { key, grant, stale: false, .. } => self.follow(moment, *key, grant.now.0, self.busy),
            Seen::Census { key, store, .. } => self.follow(moment, *key, store.0, 0),
            _ => {}
        }
    }

    /// The policy of a key, once it is known.
    fn policy(&mut self, key: u32, seen: &Seen<'_>) -> Option<u32> {
        match seen {
            Seen::Called { call, .. } | Seen::Executed { call, .. } | Seen::Settled { call, .. } => {
                self.learn(key, call);
            }
            Seen::Asked(request)
            | Seen::Orphaned(request)
            | Seen::Answered { request, .. }
            | Seen::Hold(_, Holding::Kept { request, .. } | Holding::Asks(request)) => {
                *self.policies.of(key) = request.policy + 1;
            }
            _ => {}
        }
        self.policies.get(key).copied().unwrap_or(0).checked_sub(1)
    }
}

impl<C: Checker + Clone> Phased<C> {
    #[inline]
    fn see_plain(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.plain.see(moment, seen);
        if self.plain.violations().len() > self.taken {
            self.found.extend_from_slice(&self.plain.violations()[self.taken..]);
            self.taken = self.plain.violations().len();
        }
    }

    /// `see` for runs in which some limits change or some clock has leapt. It is a function of its own because `see` is
    /// called for each event and mostly needs none of this.
    #[inline(never)]
    fn see_apart(&mut self, moment: Moment, seen: &Seen<'_>) {
        let key = key(seen);
        let clock = key.and_then(|key| self.clocks.get(key)).filter(|clock| self.leaps && clock.leaps > 0);
        if let (Some(key), Some((leaps, since))) = (key, clock.map(|clock| (clock.leaps, clock.since))) {
            return self.see_again(moment, seen, key, leaps, since);
        }
        if key.is_none() {
            self.rows.iter_mut().for_each(|row| row.see(moment, seen));
        }
        if self.is_steady {
            return self.see_plain(moment, seen);
        }
        let policy = key.and_then(|key| self.policy(key, seen));
        let changes = policy.is_some_and(|policy| self.changes.get(policy as usize).copied().unwrap_or(false));
        if !changes {
            self.see_plain(moment, seen);
        }
        for phase in &mut self.phases {
            let is_of = policy.map_or(key.is_none(), |policy| policy == phase.policy);
            // Each checker has to know from the start which nodes there are.
            if is_of && (key.is_none() || (phase.sees..phase.until).contains(&moment.at)) {
                phase.checker.see(moment, seen);
                let fresh = &phase.checker.violations()[phase.taken..];
                let counts = |violation: &&Violation| (phase.judges..phase.until).contains(&violation.at);
                self.found.extend(fresh.iter().filter(counts).cloned());
                if moment.at < phase.judges && !fresh.is_empty() {
                    // A checker keeps only a few findings, so those that do not count must not fill it.
                    phase.checker.overlook();
                }
                phase.taken = phase.checker.violations().len();
            }
        }
    }

    /// Shows an event about a key that `leaps` other clocks had counted until `since` to its checker.
    fn see_again(&mut self, moment: Moment, seen: &Seen<'_>, key: u32, leaps: usize, since: u64) {
        let Some(policy) = self.policy(key, seen) else { return };
        let changes = self.changes.get(policy as usize).is_some_and(|changes| *changes);
        let is_of = |phase: &Phase<C>| phase.policy == policy && (phase.sees..phase.until).contains(&moment.at);
        let (row, judges) = match self.phases.iter().position(is_of).filter(|_| changes) {
            Some(place) => (1 + place, self.phases[place].judges),
            None if changes => return,
            None => (0, 0),
        };
        let lasts = self.lasts.get(policy as usize).copied().flatten();
        let Some((lasts, row)) = lasts.zip(self.rows.get_mut(row)) else { return };
        let fresh = row.of(leaps).see(moment, seen);
        if moment.at >= judges.max(since + lasts) {
            self.found.extend_from_slice(fresh);
        } else if !fresh.is_empty() {
            row.of(leaps).overlook();
        }
    }
}

impl<C: Checker + Clone> Row<C> {
    /// The checker of keys that `leaps` other clocks have counted before.
    fn of(&mut self, leaps: usize) -> &mut Later<C> {
        if self.later.len() < leaps {
            self.later.resize(leaps, self.spare.clone());
        }
        &mut self.later[leaps - 1]
    }

    /// Shows an event without a key to all checkers.
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.spare.see(moment, seen);
        self.later.iter_mut().for_each(|later| _ = later.see(moment, seen));
    }
}

impl<C: Checker> Later<C> {
    /// Shows an event to the checker, and returns its new findings.
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) -> &[Violation] {
        self.checker.see(moment, seen);
        let before = std::mem::replace(&mut self.taken, self.checker.violations().len());
        &self.checker.violations()[before..]
    }

    /// Drops findings that do not count: a checker keeps only a few.
    fn overlook(&mut self) {
        self.checker.overlook();
        self.taken = self.checker.violations().len();
    }
}

/// The key by which an event is assigned to a checker.
fn key(seen: &Seen<'_>) -> Option<u32> {
    match seen {
        Seen::Asked(request)
        | Seen::Answered { request, .. }
        | Seen::Orphaned(request)
        | Seen::Hold(_, Holding::Kept { request, .. } | Holding::Asks(request)) => Some(request.key),
        Seen::Executed { key, .. }
        | Seen::Called { key, .. }
        | Seen::Settled { key, .. }
        | Seen::Census { key, .. }
        | Seen::Undone { key, .. }
        | Seen::Lost { key, .. } => Some(*key),
        _ => None,
    }
}

impl<C: Checker + Clone> Observer for Phased<C> {
    fn minds(&self, topic: Topic) -> bool {
        self.plain.minds(topic)
    }

    fn ignores(&self, topic: Topic) -> bool {
        // Events that show a key's policy or clock are needed even if the checker ignores them.
        let shows_clock = self.leaps && matches!(topic, Topic::Answered | Topic::Executed);
        self.is_steady && self.rows.is_empty() && !shows_clock && self.plain.ignores(topic)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if self.leaps {
            self.look_at_clock(moment, seen);
        }
        // The most frequent case: no limits change, and no clock has leapt.
        if self.is_steady && !self.has_leapt && self.rows.is_empty() {
            self.see_plain(moment, seen);
        } else {
            self.see_apart(moment, seen);
        }
    }
}

impl<C: Checker + Clone> Checker for Phased<C> {
    fn violations(&self) -> &[Violation] {
        &self.found
    }

    fn sheet(&self) -> &'static Sheet {
        self.plain.sheet()
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::decision::Source;

    use super::*;
    use crate::checkers::Found;
    use crate::checkers::tests::{History, SECOND};
    use crate::plan::Fault;
    use crate::span::Span;

    static WHY: Exemption = Exemption::new("changes", "To try it.");

    /// Finds fault with every answer, and with every call.
    #[derive(Clone, Debug, Default)]
    struct Grumbler(Found);

    impl Observer for Grumbler {
        fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
            if matches!(seen, Seen::Answered { .. } | Seen::Called { .. }) {
                self.0.add("grumbling", moment, String::new);
            }
        }
    }

    impl Checker for Grumbler {
        fn violations(&self) -> &[Violation] {
            &self.0.list
        }

        fn sheet(&self) -> &'static Sheet {
            super::super::sheets()[0]
        }
    }

    #[test]
    fn a_change_excuses_its_policy_until_it_is_over() {
        for (policy, seen) in [(0, [1, 0, 0, 1]), (1, [1, 1, 1, 1])] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.policies.push(setting.plan.policies[0].clone());
            let what = What::Push { policy, limits: vec!["20/1s fixed".into()] };
            setting.plan.faults.push(Fault { at: Span::secs(2), lasts: Span::secs(1), what });
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default());
            for (at, seen) in [1, 3, 5, 9].into_iter().zip(seen) {
                let before = checker.violations().len();
                history.check(&mut checker, at * SECOND, 1, Source::Lease, true);
                assert_eq!(checker.violations().len() - before, seen, "{at}");
            }
        }
    }

    #[test]
    fn a_call_about_a_key_of_which_nobody_was_asked_tells_its_policy() {
        for (at, seen) in [(1, 1), (3, 0), (9, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let what = What::Push { policy: 0, limits: vec!["20/1s fixed".into()] };
            setting.plan.faults.push(Fault { at: Span::secs(2), lasts: Span::secs(1), what });
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default());
            history.called(&mut checker, at * SECOND, 1, 1);
            assert_eq!(checker.violations().len(), seen, "{at}");
            assert!(checker.plain.violations().is_empty());
        }
    }

    #[test]
    fn a_key_is_left_alone_once_another_clock_counts_it() {
        for (leaps, seen) in [(false, 2), (true, 1)] {
            let mut history = History::new("10/1s fixed");
            let setting = history.setting();
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default());
            if leaps {
                checker = checker.until_leaps(&WHY, true);
            }
            history.check(&mut checker, 1, 1, Source::Lease, true);
            checker.follow(Moment { at: 2, store: rationd::core::time::Timestamp(9) }, 0, 5 * SECOND, 0);
            history.check(&mut checker, 3, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen);
        }
    }

    #[test]
    fn a_key_is_looked_at_again_when_its_limits_have_changed_and_another_clock_counts_it() {
        // The clock is another one after a second; limits change after two seconds, which is over four seconds after
        // all know of it.
        for (at, seen) in [(3 * SECOND, 0), (8 * SECOND - 1, 0), (8 * SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let set = What::Set { master: 0, by: Span::secs(5), back: false };
            let push = What::Push { policy: 0, limits: vec!["10/1s fixed".into()] };
            setting.plan.faults.push(Fault { at: Span::secs(1), lasts: Span(0), what: set });
            setting.plan.faults.push(Fault { at: Span::secs(2), lasts: Span::secs(1), what: push });
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default()).until_leaps(&WHY, true);
            checker = checker.again(&setting, |_| Grumbler::default());
            let request = history.ask(&mut checker, 1);
            history.answer_ahead(&mut checker, 1, 0, &request);
            history.answer_ahead(&mut checker, SECOND, 5 * SECOND, &request);
            let before = checker.violations().len();
            history.answer_ahead(&mut checker, at, 5 * SECOND, &request);
            assert_eq!(checker.violations().len() - before, seen, "{at}");
        }
    }

    /// A clock that was set back passes through earlier windows again, whatever it does meanwhile.
    #[test]
    fn a_key_is_looked_at_again_when_the_clock_has_caught_up_with_all_before() {
        for (at, seen) in [(10 * SECOND - 1, 0), (10 * SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let what = What::Set { master: 0, by: Span::secs(5), back: true };
            setting.plan.faults.push(Fault { at: Span::secs(1), lasts: Span(0), what });
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default()).until_leaps(&WHY, true);
            checker = checker.again(&setting, |_| Grumbler::default());
            let request = history.ask(&mut checker, 1);
            for (at, ahead) in [(1, 6), (SECOND, 1), (2 * SECOND, 0)] {
                history.answer_ahead(&mut checker, at, ahead * SECOND, &request);
            }
            let before = checker.violations().len();
            history.answer_ahead(&mut checker, at, 0, &request);
            assert_eq!(checker.violations().len() - before, seen, "{at}");
        }
    }

    #[test]
    fn a_key_is_looked_at_again_when_what_the_other_clock_lent_is_over() {
        // Two periods and two seconds after it.
        for (again, ahead, at, seen) in [
            (true, [0, 5], 5 * SECOND, 0),
            (true, [0, 5], 5 * SECOND + 2, 1),
            (true, [2, 0], 7 * SECOND, 0),
            (true, [2, 0], 7 * SECOND + 2, 1),
            (false, [0, 5], 9 * SECOND, 0),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let what = What::Set { master: 0, by: Span::secs(5), back: false };
            setting.plan.faults.push(Fault { at: Span::secs(1), lasts: Span(0), what });
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default()).until_leaps(&WHY, true);
            if again {
                checker = checker.again(&setting, |_| Grumbler::default());
            }
            let request = history.ask(&mut checker, 1);
            history.answer_ahead(&mut checker, 1, ahead[0] * SECOND, &request);
            history.answer_ahead(&mut checker, SECOND + 1, ahead[1] * SECOND, &request);
            let before = checker.violations().len();
            history.answer_ahead(&mut checker, at, ahead[1] * SECOND, &request);
            assert_eq!(checker.violations().len() - before, seen, "{at}");
        }
    }

    /// Twenty clocks count the key one after another, each a second ahead of the one before: four seconds after the
    /// last it is judged.
    #[test]
    fn a_key_is_looked_at_again_however_many_clocks_have_counted_it() {
        for (at, seen) in [(24 * SECOND - 1, 0), (24 * SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let setting = history.leaping();
            let mut checker = Phased::new(&WHY, &setting, |_| Grumbler::default()).until_leaps(&WHY, true);
            checker = checker.again(&setting, |_| Grumbler::default());
            let request = history.ask(&mut checker, 1);
            (0..=20).for_each(|clock| history.answer_ahead(&mut checker, clock * SECOND, clock * SECOND, &request));
            let before = checker.violations().len();
            history.answer_ahead(&mut checker, at, 20 * SECOND, &request);
            assert_eq!(checker.violations().len() - before, seen, "{at}");
        }
    }

    /// The limits of one of two policies change: its keys are not judged any more, and those of the other policy are.
    #[test]
    fn a_key_whose_limits_change_may_be_left_alone_for_good() {
        for (policy, seen) in [(0, 0), (1, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.leaping();
            setting.plan.policies.push(setting.plan.policies[0].clone());
            let push = What::Push { policy, limits: vec!["10/1s fixed".into()] };
            setting.plan.faults.push(Fault { at: Span::secs(2), lasts: Span::secs(1), what: push });
            let mut checker = Phased::always(&setting, |_| Grumbler::default()).until_leaps(&WHY, true);
            checker = checker.again(&setting, |_| Grumbler::default()).unless_limits_change(&setting);
            let request = history.ask(&mut checker, 1);
            history.answer_ahead(&mut checker, 1, 0, &request);
            history.answer_ahead(&mut checker, SECOND, 5 * SECOND, &request);
            let before = checker.violations().len();
            history.answer_ahead(&mut checker, 20 * SECOND, 5 * SECOND, &request);
            assert_eq!(checker.violations().len() - before, seen, "{policy}");
        }
    }
}
