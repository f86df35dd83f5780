//! **second-opinion**: the memory store executes each call that a script has executed, on what the script found,
//! and answers as it did and leaves what it left. Both are shipped, and both answer for the same limits.
//!
//! What a script found is read from its hash before each call, so that no fault has to be known here.

use rationd::core::call::{Call, Grant, Op};
use rationd::core::time::Timestamp;
use rationd::store::excerpt::Excerpt;
use rationd::store::memory::MemoryStore;

use super::Found;
use crate::observe::{Checker, Moment, Observer, Ran, Seen, Violation};

/// Differences that are none, and why.
pub(super) const EXEMPTIONS: [(&str, &str); 1] = [(
    "old records",
    "Each store drops records of nodes that have not asked for two census periods, when there are too many of them by \
     its own count: it is cleaning up, and only those are excused.",
)];

const INVARIANT: &str = "second-opinion";

/// Cells for one key.
const CELLS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct SecondOpinion {
    store: MemoryStore,
    found: Found,
}

impl Default for SecondOpinion {
    fn default() -> Self {
        Self { store: MemoryStore::new(CELLS, 1), found: Found::default() }
    }
}

impl SecondOpinion {
    /// The same of slots in flight, which no fault changes: the memory store keeps them, and so what the script left
    /// shows in its answers.
    fn rehearsed(&mut self, now: Timestamp, node: &str, call: &Call, grant: Result<&Grant, &String>) -> Option<String> {
        let own = self.store.call(now, node, call).ok();
        let differs = grant.ok() != own.as_ref();
        differs.then(|| format!("the script answered {grant:?}, the memory store {own:?}"))
    }

    /// What the memory store has to say against what a script answered and left.
    fn objection(&mut self, call: &Call, grant: &Grant, ran: &Ran<'_>) -> Option<String> {
        if let Some(stray) = &ran.stray {
            return Some(format!("beside its fields: {stray}"));
        }
        let (store, limits, [before, after]) = (&mut self.store, &call.rule.limits[..], &ran.hash);
        store.put(call.digest, ran.node, limits, before.as_ref());
        let own = match store.call(grant.now, ran.node, call) {
            Ok(own) => own,
            Err(error) => return Some(format!("the memory store refuses: {error:?}")),
        };
        if own != *grant {
            return Some(format!("the script answered {grant:?}, the memory store {own:?}"));
        }
        let left = store.excerpt(call.digest, ran.node, limits);
        store.put(call.digest, ran.node, limits, None);
        if !is_same(before.as_ref(), *after, left) {
            return Some(format!("the script left {after:?}, the memory store {left:?}"));
        }
        let begins_anew = matches!(call.op, Op::Reset) && epoch(left) != epoch(*before);
        if ran.deleted != begins_anew {
            return Some(format!("the script deleted the key: {}, the memory store: {begins_anew}", ran.deleted));
        }
        let is_excused = |cid: u64| is_acquire(call) && is_old(after.as_ref(), cid);
        let recent = ran.dropped.iter().find(|(_, cid)| !is_excused(*cid));
        recent.map(|(record, cid)| format!("the script dropped {record}, who asked in period {cid}, of {after:?}"))
    }
}

fn is_acquire(call: &Call) -> bool {
    matches!(call.op, Op::Acquire(_))
}

fn epoch(excerpt: Option<Excerpt>) -> u64 {
    excerpt.map_or(0, |excerpt| excerpt.epoch)
}

/// **old records**: it was not in this census period, nor in the last.
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

impl Observer for SecondOpinion {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let (objection, key, node, call, before) = match *seen {
            Seen::Executed { key, call, grant, ran, .. } => {
                (self.objection(call, grant, ran), key, ran.node, call, ran.hash[0].as_ref())
            }
            Seen::Rehearsed { node, now, call, grant } => (self.rehearsed(now, node, call, grant), 0, node, call, None),
            _ => return,
        };
        if let Some(objection) = objection {
            let what = || format!("key {key}, {node} asks {:?} under {} of {before:?}: {objection}", call.op, call.id);
            self.found.add(INVARIANT, moment, what);
        }
    }
}

impl Checker for SecondOpinion {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }
}
