//! **second-opinion**: the memory store executes each call that a script has executed, on the state that the script
//! found, and has to give the same answer and leave the same state. Both are shipped, and both implement the same
//! limits.
//!
//! The state is read from the script's hash before each call, so this checker need not know of any fault. For a
//! concurrent limit it is the part of all nodes in the hash. A node of the world sends each call alone; the script for
//! several keys at once is judged in the same way, on the same calls and on what each had found alone.

use std::sync::Arc;

use rationd::core::call::{CALL_LIFE, Call, Grant, Op};
use rationd::core::gcra;
use rationd::core::key::Digest;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Micros, Timestamp};
use rationd::store::excerpt::{Excerpt, Occupied};
use rationd::store::memory::MemoryStore;

use super::Found;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Dropped, Moment, Observer, Ran, Seen, Topic, Violation};

static OLD_RECORDS: Exemption = Exemption::new(
    "old records",
    "Each store drops records of nodes that have not asked for two census periods when there are too many of them by its own count: it is cleaning up, and only those are excused.",
);

static LIFE: Exemption = Exemption::new(
    "earlier lifetimes",
    "Scripts of the build before reckon from the time of each call until when a key is kept, and these from what is stored: of that build's calls the end of the key is not compared, and all else is.",
);

static RETURNS: Exemption = Exemption::new(
    "earlier returns",
    "A return or a refund by a script of the build before leaves in its node's record when that last asked, however long ago: that number is held to what the script found.",
);

static RESETS: Exemption = Exemption::new(
    "earlier resets",
    "A reset by a script of the build before forgets who uses the key, and a later one does not: the census and when its node asked are not compared then.",
);

static ACCOUNTS: Exemption = Exemption::new(
    "earlier accounts",
    "Scripts of the build before know periods of accounts of two seconds alone: their calls about a bucket that has longer ones now are not compared.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "second_opinion.rs",
    invariants: &["second-opinion"],
    proves: "The memory store, executing each call that a script has executed on what that found, answers the same and leaves the same; and no record is dropped that tells of a call which its node may send once more.",
    judges: "All: every call of every run, whatever goes wrong with the store, and calls about slots that are rehearsed beside it; acquires that could have left in one command once more in one.",
    exemptions: &[&OLD_RECORDS, &LIFE, &RETURNS, &RESETS, &ACCOUNTS],
    mutant: Some("sliding-rounds-down"),
};

const INVARIANT: &str = "second-opinion";

/// How long a record with a return, a refund or a reset is kept: for the life of the shortest account.
const RECORD_LIFE: Micros = gcra::lease_life(1);

/// Cells for one key.
const CELLS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct SecondOpinion {
    store: MemoryStore,
    /// By key and the name of a node's record: the calls that it has to remember.
    last: Map<Digest, Map<String, Last>>,
    found: Found,
}

/// The calls of a node about a key that its record has to remember.
#[derive(Debug, Default)]
struct Last {
    /// When its last acquire was executed, by the store's clock, and the id.
    acquire: Option<(Timestamp, u64)>,
    /// The same for its last return, refund or reset, with its rule.
    other: Option<(Timestamp, u64, Arc<Rule>)>,
}

impl Default for SecondOpinion {
    fn default() -> Self {
        Self { store: MemoryStore::new(CELLS, 1), last: Map::default(), found: Found::default() }
    }
}

impl SecondOpinion {
    /// How the memory store's answer or state differs from the script's, if it does.
    fn objection(&mut self, call: &Call, grant: &Grant, ran: &Ran) -> Option<String> {
        if let Some(stray) = &ran.stray {
            return Some(format!("beside its fields: {stray}"));
        }
        if matches!(call.op, Op::Occupy(_)) {
            return self.objection_of_slots(call, grant, ran);
        }
        if ACCOUNTS.when(ran.is_earlier && gcra::units(&call.rule.limits) > 1) {
            return None;
        }
        // Scripts of the previous build set nothing aside.
        let plain = |call: &Call| {
            let (policy, limits) = (call.rule.policy.clone(), call.rule.limits.clone());
            let rule = Arc::new(Rule { policy, limits, on_store_loss: OnStoreLoss::Share });
            Call { rule, ..call.clone() }
        };
        let made = (ran.is_earlier && call.sets_aside()).then(|| plain(call));
        let call = made.as_ref().unwrap_or(call);
        let (limits, before) = (&call.rule.limits[..], ran.hash[0].as_ref());
        self.store.put(call.digest, &ran.node, limits, before);
        let objection = self.difference(call, grant, ran);
        // Cleared even after a difference; otherwise keys that a script has got wrong would fill the memory store.
        self.store.put(call.digest, &ran.node, limits, None);
        objection
    }

    /// The same for a concurrent limit.
    fn objection_of_slots(&mut self, call: &Call, grant: &Grant, ran: &Ran) -> Option<String> {
        let (store, [before, after]) = (&mut self.store, &ran.slots);
        store.put_occupied(call.digest, before.as_ref());
        let mut own = store.call(grant.now, &ran.node, call);
        let mut left = store.occupied(call.digest);
        store.put_occupied(call.digest, None);
        if let (true, Ok(own)) = (ran.is_earlier, &mut own) {
            as_before(own, &ran.node, left.as_mut());
        }
        if own.as_ref() != Ok(grant) {
            return Some(format!("the script answered {grant:?}, the memory store {own:?}"));
        }
        let is_same = is_same_of_slots(before.as_ref(), after.as_ref(), left.as_ref());
        (!is_same).then(|| format!("the script left {after:?}, the memory store {left:?}"))
    }

    /// The same for a call that is executed for this checker alone.
    fn objection_to_rehearsal(&mut self, call: &Call, grant: Result<&Grant, &String>, ran: &Ran) -> Option<String> {
        match grant {
            Ok(grant) => self.objection(call, grant, ran),
            Err(error) => Some(format!("the script answered {error}")),
        }
    }

    /// The difference, with the state that the script found in the memory store.
    fn difference(&mut self, call: &Call, grant: &Grant, ran: &Ran) -> Option<String> {
        let (store, limits, [before, after]) = (&mut self.store, &call.rule.limits[..], &*ran.hash);
        let forgets = RESETS.when(ran.is_earlier && matches!(call.op, Op::Reset) && grant.reset);
        let own = match store.call(grant.now, &ran.node, call) {
            Ok(own) if forgets => Grant { nodes: grant.nodes, ..own },
            Ok(own) => own,
            Err(error) => return Some(format!("the memory store refuses: {error:?}")),
        };
        if own != *grant {
            return Some(format!("the script answered {grant:?}, the memory store {own:?}"));
        }
        let mut left = store.excerpt(call.digest, &ran.node, limits);
        if let Some(left) = left.as_mut().filter(|_| forgets) {
            left.census = None;
            left.record.iter_mut().for_each(|record| record[0] = 0);
        }
        let credits = matches!(call.op, Op::Return { .. } | Op::Refund { .. });
        if let Some(left) = left.as_mut().filter(|_| RETURNS.when(ran.is_earlier && credits)) {
            let found = before.and_then(|before| before.record).map_or(0, |record| record[0]);
            left.record.iter_mut().for_each(|record| record[0] = found);
        }
        let is_life_excused =
            |script: Excerpt| LIFE.when(ran.is_earlier && left.is_some_and(|left| script.says_as(&left)));
        if !is_same(before.as_ref(), *after, left) && !after.is_some_and(is_life_excused) {
            return Some(format!("the script left {after:?}, the memory store {left:?}"));
        }
        let begins_anew = matches!(call.op, Op::Reset) && epoch(left) != epoch(*before);
        if ran.deleted != begins_anew {
            return Some(format!("the script deleted the key: {}, the memory store: {begins_anew}", ran.deleted));
        }
        let is_excused = |of: &Dropped| OLD_RECORDS.when(is_acquire(call) && is_old(after.as_ref(), of.asked_in));
        // Scripts of the previous build drop records by their census periods alone. By those a record of other limits
        // may look old though it is not, and so does one whose node has returned something but not asked for long.
        let is_known = |of: &Dropped| {
            !ran.is_earlier
                && (self.has_asked_of_late(call, grant.now, of) || self.has_returned_of_late(call, grant.now, of))
        };
        let recent = ran.dropped.iter().find(|of| !is_excused(of) || is_known(of));
        recent.map(|of| format!("the script dropped {of:?} of {after:?}"))
    }

    /// Notes a call that a store has executed and has to remember.
    fn note(&mut self, call: &Call, grant: &Grant, ran: &Ran) {
        // A script of the previous build does not renew the record of a node that returns something.
        let tells =
            is_acquire(call) || !ran.is_earlier && matches!(call.op, Op::Return { .. } | Op::Refund { .. } | Op::Reset);
        if grant.replayed || grant.outdated || !tells {
            return;
        }
        let last = self.last.entry(call.digest).or_default().entry(format!("n:{}", ran.node)).or_default();
        if is_acquire(call) {
            last.acquire = Some((grant.now, call.id));
            // The clock was set back, and the record carries the earlier time now.
            last.other.take_if(|(at, ..)| *at > grant.now);
        } else {
            last.other = Some((grant.now, call.id, call.rule.clone()));
        }
    }

    /// Whether the acquire in the record was executed less than [`CALL_LIFE`] ago.
    fn has_asked_of_late(&self, call: &Call, now: Timestamp, of: &Dropped) -> bool {
        let last = self.last.get(&call.digest).and_then(|last| last.get(&of.record)?.acquire);
        last.is_some_and(|(at, id)| id == of.id && at <= now && now.since(at) < CALL_LIFE)
    }

    /// Whether the return, refund or reset in the record was executed less than [`RECORD_LIFE`] ago, under these limits.
    fn has_returned_of_late(&self, call: &Call, now: Timestamp, of: &Dropped) -> bool {
        let last = self.last.get(&call.digest).and_then(|last| last.get(&of.record)?.other.as_ref());
        last.is_some_and(|(at, id, rule)| {
            *id == of.other && *at <= now && now.since(*at) < RECORD_LIFE && rule.limits == call.rule.limits
        })
    }
}

fn is_acquire(call: &Call) -> bool {
    matches!(call.op, Op::Acquire(_))
}

fn epoch(excerpt: Option<Excerpt>) -> u64 {
    excerpt.map_or(0, |excerpt| excerpt.epoch)
}

/// Whether it is of neither this census period nor the last.
fn is_old(after: Option<&Excerpt>, cid: u64) -> bool {
    after.and_then(|after| after.census).is_some_and(|[now, ..]| cid != now && cid + 1 != now)
}

/// Whether a script left what the memory store left. Redis counts lifetimes by its clock's whole milliseconds, to the
/// end of the last; the memory store from the microsecond of the call, or it left the end as it was.
fn is_same(before: Option<&Excerpt>, script: Option<Excerpt>, memory: Option<Excerpt>) -> bool {
    let (Some(script), Some(memory)) = (script, memory) else { return script.is_none() && memory.is_none() };
    let untouched = before.is_some_and(|before| before.expires == memory.expires && before.expires == script.expires);
    let end = Timestamp(memory.expires.0 / 1_000 * 1_000 + 1_000);
    (untouched || end == script.expires) && script.says_as(&memory)
}

/// Makes of the memory store's answer, and of what it leaves, those of the build before: that says nothing of the slots that a node had, and
/// forgets a key with the lease of the last report.
fn as_before(own: &mut Grant, node: &str, left: Option<&mut Occupied>) {
    own.counters[0].prev = 0;
    let reported = !own.replayed && !own.outdated;
    if let Some(left) = left.filter(|_| reported)
        && let Some([_, _, at]) = left.nodes.get(node)
    {
        left.expires = Timestamp(*at);
    }
}

/// The same for a concurrent limit. Its leases are whole milliseconds, and `occupy.lua` adds one, so that the key lasts
/// for the whole of the last one.
fn is_same_of_slots(before: Option<&Occupied>, script: Option<&Occupied>, memory: Option<&Occupied>) -> bool {
    let (Some(script), Some(memory)) = (script, memory) else { return script.is_none() && memory.is_none() };
    let untouched = before.is_some_and(|before| before.expires == memory.expires && before.expires == script.expires);
    let end = Timestamp(memory.expires.0 / 1_000 * 1_000 + 2_000);
    (untouched || end == script.expires) && script.nodes == memory.nodes
}

impl Observer for SecondOpinion {
    fn minds(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Repeated | Topic::Permits)
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Answered | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let (objection, key, call, ran) = match *seen {
            Seen::Executed { key, call, grant, ran, stale, .. } => {
                let objection = self.objection(call, grant, ran);
                if !stale {
                    self.note(call, grant, ran);
                }
                (objection, key, call, ran)
            }
            Seen::Repeated { key, call, grant, ran, .. } => {
                (self.objection_to_rehearsal(call, grant, ran), key, call, ran)
            }
            Seen::Rehearsed { call, grant, ran, .. } => (self.objection_to_rehearsal(call, grant, ran), 0, call, ran),
            _ => return,
        };
        if let Some(objection) = objection {
            let how = match seen {
                Seen::Repeated { .. } => " together with others",
                Seen::Rehearsed { .. } => " in a rehearsal",
                _ => "",
            };
            let (node, before, slots) = (&ran.node, &ran.hash[0], &ran.slots[0]);
            let before = slots.as_ref().map_or(format!("{before:?}"), |slots| format!("{slots:?}"));
            let what =
                || format!("key {key}, {node} asks{how} {:?} under {} of {before}: {objection}", call.op, call.id);
            self.found.add(INVARIANT, moment, what);
        }
    }
}

impl Checker for SecondOpinion {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::call::{Acquire, JUST_NOW, Occupy};
    use rationd::core::key::Digest;
    use rationd::core::limit::{Limit, MAX_LIMITS};
    use rationd::core::time::Instant;

    use super::*;
    use rationd::core::call::Window;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_500);

    fn call(limit: &str, op: Op) -> Call {
        let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)]));
        Call { id: 7, digest: Digest(1), rule, op, sent_at: Instant(0) }
    }

    fn see(checker: &mut SecondOpinion, seen: &Seen<'_>) -> usize {
        checker.see(Moment { at: 1, store: NOW }, seen);
        checker.violations().len()
    }

    /// An acquire of a window.
    fn asks() -> Call {
        let (need, want, least, window) = (1, 4, 0, Window::Current);
        let known = [Default::default(); MAX_LIMITS];
        let until = None;
        let ask = Acquire { need, want, least, window, epoch: 0, held: 0, ages: JUST_NOW, known, until, claim: None };
        call("10/1s fixed", Op::Acquire(ask))
    }

    /// The violations of a script that answers and leaves what the memory store does, except for `but`.
    fn found(but: impl FnOnce(&mut Grant, &mut Ran)) -> usize {
        let (call, mut store) = (asks(), MemoryStore::new(CELLS, 9));
        let mut grant = store.call(NOW, "n", &call).expect("there is room");
        let mut left = store.excerpt(call.digest, "n", &call.rule.limits).expect("a key");
        left.expires = Timestamp(left.expires.0 / 1_000 * 1_000 + 1_000);
        let mut ran = Ran { node: "n".into(), hash: [None, Some(left)].into(), ..Ran::default() };
        but(&mut grant, &mut ran);
        let (call, grant, ran) = (&call, &grant, &ran);
        let seen = Seen::Executed { master: 0, node: 0, incarnation: 1, key: 0, call, grant, stale: false, ran };
        see(&mut SecondOpinion::default(), &seen)
    }

    fn hash(ran: &mut Ran) -> &mut [Option<Excerpt>; 2] {
        Arc::make_mut(&mut ran.hash)
    }

    fn left(ran: &mut Ran) -> &mut Excerpt {
        hash(ran)[1].as_mut().expect("a key")
    }

    #[test]
    fn script_that_does_the_same_is_believed() {
        assert_eq!(found(|_, _| {}), 0);
    }

    #[test]
    fn another_answer_is_noticed() {
        assert_eq!(found(|grant, _| grant.granted += 1), 1);
        assert_eq!(found(|grant, _| grant.nodes += 1), 1);
        assert_eq!(found(|grant, _| grant.counters[0].prev += 1), 1);
    }

    #[test]
    fn other_remains_are_noticed() {
        assert_eq!(found(|_, ran| hash(ran)[1] = None), 1);
        assert_eq!(found(|_, ran| left(ran).counters[0] = None), 1);
        assert_eq!(found(|_, ran| left(ran).record = None), 1);
        assert_eq!(found(|_, ran| left(ran).census = None), 1);
        assert_eq!(found(|_, ran| left(ran).lent[0] += 1), 1);
        assert_eq!(found(|_, ran| left(ran).expires.0 += 1_000), 1);
    }

    #[test]
    fn of_the_build_before_the_life_of_a_key_is_not_compared() {
        let lives_longer = |ran: &mut Ran| left(ran).expires.0 += 1_000;
        let found_of_earlier = |but: fn(&mut Ran)| {
            found(|_, ran| {
                lives_longer(ran);
                ran.is_earlier = true;
                but(ran);
            })
        };
        assert_eq!(found_of_earlier(|_| {}), 0);
        assert_eq!(found_of_earlier(|ran| left(ran).lent[0] += 1), 1);
    }

    #[test]
    fn what_was_found_counts() {
        // If it had been there before, there would be one lease more.
        assert_eq!(found(|_, ran| hash(ran)[0] = ran.hash[1]), 1);
    }

    #[test]
    fn what_concerns_others_stays_as_it_was() {
        let dropped = |ago: u64| {
            found(|_, ran| {
                let [now, ..] = left(ran).census.expect("a census");
                ran.dropped.push(Dropped { record: "n:other".into(), asked_in: now - ago, id: 7, other: 0 });
            })
        };
        assert_eq!([dropped(0), dropped(1), dropped(2)], [1, 1, 0]);
        assert_eq!(found(|_, ran| ran.stray = Some("x was written".into())), 1);
        assert_eq!(found(|_, ran| ran.deleted = true), 1);
    }

    /// The census period of a record is old, but its acquire was executed a moment ago, under other limits.
    #[test]
    fn a_record_that_is_dropped_too_soon_is_noticed() {
        for (passed, id, seen) in [(CALL_LIFE.0 - 1, 7, 1), (CALL_LIFE.0, 7, 0), (1, 8, 0)] {
            let mut checker = SecondOpinion::default();
            let (call, mut store) = (asks(), MemoryStore::new(CELLS, 9));
            let mut ask = |node: &str, now: Timestamp, dropped: Vec<Dropped>| {
                let before = store.excerpt(call.digest, node, &call.rule.limits);
                let grant = store.call(now, node, &call).expect("there is room");
                let mut left = store.excerpt(call.digest, node, &call.rule.limits).expect("a key");
                left.expires = Timestamp(left.expires.0 / 1_000 * 1_000 + 1_000);
                let ran = Ran { node: node.into(), hash: [before, Some(left)].into(), dropped, ..Ran::default() };
                checker.note(&call, &grant, &ran);
                checker.objection(&call, &grant, &ran)
            };
            assert_eq!(ask("other", NOW, Vec::new()), None);
            let dropped = Dropped { record: "n:other".into(), asked_in: 1, id, other: 0 };
            let objection = ask("n", Timestamp(NOW.0 + passed), vec![dropped]);
            assert_eq!(objection.map_or(0, |what| usize::from(what.contains("dropped"))), seen, "{passed} us later");
        }
    }

    /// Its node had not asked for long when it handed a token back, and may send that return again.
    #[test]
    fn a_record_that_tells_of_a_return_is_kept_as_long_as_that_may_be_repeated() {
        let ask = asks();
        let again = Op::Refund { amount: 1, epoch: 0, windows: [None; MAX_LIMITS] };
        let back = Call { id: 8, op: again, ..ask.clone() };
        let others =
            Call { rule: Arc::new(Rule::of("p", &[Limit::parse("9/1s fixed").expect("a limit")])), ..ask.clone() };
        for (what, passed, id, but, seen) in [
            ("soon", RECORD_LIFE.0 - 1, 8, None, 1),
            ("late enough", RECORD_LIFE.0, 8, None, 0),
            ("of another return", 1, 9, None, 0),
            ("by other limits", 1, 8, Some("limits"), 0),
            ("by the build before", 1, 8, Some("earlier"), 0),
            ("of a repeat", 1, 8, Some("replayed"), 0),
            ("of what a clock counts that was set back", RECORD_LIFE.0 - 1, 8, Some("back"), 0),
        ] {
            let mut checker = SecondOpinion::default();
            let grant = |now: Timestamp| MemoryStore::new(CELLS, 9).call(now, "n", &ask).expect("there is room");
            let told_by = |node: &str| Ran { node: node.into(), is_earlier: but == Some("earlier"), ..Ran::default() };
            let credit = Grant { replayed: but == Some("replayed"), ..grant(NOW) };
            checker.note(&back, &credit, &told_by("other"));
            if but == Some("back") {
                checker.note(&ask, &grant(Timestamp(NOW.0 - 1)), &told_by("other"));
            }
            let call = if but == Some("limits") { &others } else { &ask };
            let dropped = Dropped { record: "n:other".into(), asked_in: 1, id: 0, other: id };
            let is_kept = checker.has_returned_of_late(call, Timestamp(NOW.0 + passed), &dropped);
            assert_eq!(usize::from(is_kept), seen, "{what}");
        }
    }

    /// A script that is wrong about many keys gets a verdict about each, until the list is full. Earlier keys were once
    /// left in the memory store and filled it, so that a run ended with a panic instead of a verdict.
    #[test]
    fn keys_that_a_script_got_wrong_leave_room_for_others() {
        let mut checker = SecondOpinion::default();
        for key in 0..2 * CELLS as u32 {
            let call = Call { digest: Digest(key.into()), ..asks() };
            let mut store = MemoryStore::new(CELLS, 9);
            let grant = Grant { nodes: 9, ..store.call(NOW, "n", &call).expect("there is room") };
            let before = store.excerpt(call.digest, "n", &call.rule.limits);
            let (call, grant, ran) =
                (&call, &grant, &Ran { node: "n".into(), hash: [before; 2].into(), ..Ran::default() });
            assert!(checker.objection(call, grant, ran).is_some_and(|what| what.starts_with("the script answered")));
        }
        assert!(checker.store.is_empty());
    }

    /// The violations of a script that answers and leaves for a concurrent limit what the memory store does, except for
    /// `but`.
    fn found_of_slots(but: impl FnOnce(&mut Grant, &mut Ran)) -> usize {
        let occupy = |used| Op::Occupy(Occupy { used, need: 1, want: 9, lease: Micros::from_secs(10) });
        let (other, call) = (call("5/30s concurrent", occupy(2)), call("5/30s concurrent", occupy(0)));
        let mut store = MemoryStore::new(CELLS, 9);
        store.call(NOW, "b", &other).expect("there is room");
        let as_redis = |mut slots: Occupied| {
            slots.expires = Timestamp(slots.expires.0 / 1_000 * 1_000 + 2_000);
            Some(slots)
        };
        let before = store.occupied(call.digest).and_then(as_redis);
        let mut grant = store.call(NOW, "a", &call).expect("there is room");
        let after = store.occupied(call.digest).and_then(as_redis);
        let mut ran = Ran { node: "a".into(), slots: [before, after], ..Ran::default() };
        but(&mut grant, &mut ran);
        let (call, grant, ran) = (&call, &grant, &ran);
        let seen = Seen::Executed { master: 0, node: 0, incarnation: 1, key: 0, call, grant, stale: false, ran };
        see(&mut SecondOpinion::default(), &seen)
    }

    fn slots(ran: &mut Ran, place: usize) -> &mut Occupied {
        ran.slots[place].as_mut().expect("a key")
    }

    #[test]
    fn slots_are_counted_again() {
        assert_eq!(found_of_slots(|_, _| {}), 0);
        assert_eq!(found_of_slots(|grant, _| grant.granted += 1), 1);
        assert_eq!(found_of_slots(|grant, _| grant.counters[0].used -= 1), 1);
        assert_eq!(found_of_slots(|grant, _| grant.nodes += 1), 1);
    }

    #[test]
    fn what_a_script_leaves_of_slots_is_compared_for_all_nodes() {
        let node = |ran: &mut Ran, name: &str| *slots(ran, 1).nodes.get_mut(name).expect("it has some");
        for name in ["a", "b"] {
            for number in 0..3 {
                let planted = |_: &mut Grant, ran: &mut Ran| {
                    let mut numbers = node(ran, name);
                    numbers[number] += 1;
                    slots(ran, 1).nodes.insert(name.into(), numbers);
                };
                assert_eq!(found_of_slots(planted), 1, "number {number} of {name}");
            }
            assert_eq!(found_of_slots(|_, ran| _ = slots(ran, 1).nodes.remove(name)), 1, "{name} is gone");
        }
        assert_eq!(found_of_slots(|_, ran| _ = slots(ran, 1).nodes.insert("c".into(), [1, 0, NOW.0 + 1])), 1);
        assert_eq!(found_of_slots(|_, ran| slots(ran, 1).expires.0 -= 1_000), 1, "the key ends too early");
        assert_eq!(found_of_slots(|_, ran| ran.slots[1] = None), 1);
        assert_eq!(found_of_slots(|_, ran| ran.stray = Some("e was written".into())), 1);
    }

    #[test]
    fn what_a_script_found_of_slots_counts() {
        assert_eq!(found_of_slots(|_, ran| _ = slots(ran, 0).nodes.remove("b")), 1, "nobody had any");
        assert_eq!(found_of_slots(|_, ran| ran.slots[0] = None), 1);
        // The next call of any node drops leases that have lapsed.
        let lapsed = |ran: &mut Ran, place: usize| _ = slots(ran, place).nodes.insert("c".into(), [1, 4, NOW.0]);
        assert_eq!(found_of_slots(|_, ran| lapsed(ran, 0)), 0);
        let stays = |_: &mut Grant, ran: &mut Ran| {
            lapsed(ran, 0);
            lapsed(ran, 1);
        };
        assert_eq!(found_of_slots(stays), 1);
    }

    #[test]
    fn what_is_rehearsed_is_judged_in_the_same_way() {
        let call = asks();
        let mut store = MemoryStore::new(CELLS, 9);
        let grant = store.call(NOW, "n", &call).expect("there is room");
        let mut left = store.excerpt(call.digest, "n", &call.rule.limits).expect("a key");
        left.expires = Timestamp(left.expires.0 / 1_000 * 1_000 + 1_000);
        let ran = &Ran { node: "n".into(), hash: [None, Some(left)].into(), ..Ran::default() };
        let mut other = ran.clone();
        hash(&mut other)[1] = Some(Excerpt { epoch: left.epoch + 1, ..left });
        let (call, now, more) = (&call, NOW, Grant { granted: grant.granted + 1, ..grant });
        let seen = |grant, ran| {
            let repeated = Seen::Repeated { now, key: 0, call, grant, ran };
            let rehearsed = Seen::Rehearsed { now, call, grant, ran };
            [repeated, rehearsed].map(|seen| see(&mut SecondOpinion::default(), &seen))
        };
        assert_eq!(seen(Ok(&grant), ran), [0, 0]);
        assert_eq!([seen(Ok(&more), ran), seen(Ok(&grant), &other)], [[1, 1]; 2]);
        assert_eq!(seen(Err(&"-1 tokens".into()), ran), [1, 1]);
    }
}
