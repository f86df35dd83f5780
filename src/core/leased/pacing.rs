//! When a key asks the store of its own accord, and when it should not.
//!
//! A key that is spent asks in the background from time to time, because other nodes may have returned tokens. A key
//! whose tokens trickle in, and which several nodes use, asks at a pace. A key in use leases a part of the next
//! window shortly before that begins. Nothing here counts tokens: if it were lost, the store would only be asked
//! earlier or later.

use crate::core::call::Window;
use crate::core::decision::Decision;
use crate::core::time::{Due, Instant, KeptDue, Micros, StoredTime, Timestamp};

/// Answers in a row without tokens, before the pause between two calls grows. After fewer, others may still be handing tokens back.
const ANSWERS_BEFORE_LONGER: u8 = 3;

/// Most doublings of a pause, so that the shift cannot overflow; callers have lower bounds.
const MOST_DOUBLINGS: u8 = 8;

/// When the store may be asked although nobody waits for the answer.
#[derive(Debug)]
pub(super) struct Pacing {
    /// The time before which a denied check causes no call in the background. Each answer sets it.
    probe_at: KeptDue,
}

/// What the store is not asked for yet, and why. A key that has always been lent what it asked for, and has no window of which a part is
/// leased ahead, needs only a pointer.
#[derive(Debug)]
pub(super) struct Paces(Option<Box<KnownPaces>>);

#[derive(Clone, Copy, Debug)]
struct KnownPaces {
    /// Answers in a row without tokens.
    fruitless: u8,
    /// The time before which the store is not asked, because it had few tokens and they trickle in.
    paced_until: Due,
    /// The pause was begun by a peer's denial and not by the store's answer, so the store's next answer of any kind ends it.
    is_by_peer: bool,
    /// The wait that denied clients were told.
    promise: Option<Promise>,
    /// The plan to lease a part of the next window.
    plan: AheadPlan,
    /// The time before which nothing is asked for of the key's own accord, because too many calls wait for the store.
    crowded_until: Due,
}

/// The wait that denied clients were told. A client that comes back after it finds tokens here, or the store is
/// asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// The earliest time that a client was told.
    pub(super) at: Instant,
    /// The largest cost that such a client may come with.
    pub(super) cost: u64,
}

/// The plan to lease a part of the next window, which a key in use makes once per window.
#[derive(Clone, Copy, Debug)]
struct AheadPlan {
    /// When that window begins; `None` before the first plan.
    begins: Option<StoredTime>,
    /// When the part is to be leased; `None` once it was, or when there was a reason not to.
    at: Option<Instant>,
}

impl AheadPlan {
    fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

impl KnownPaces {
    const NEW: Self = Self {
        fruitless: 0,
        paced_until: Due::AT_ONCE,
        is_by_peer: false,
        promise: None,
        plan: AheadPlan { begins: None, at: None },
        crowded_until: Due::AT_ONCE,
    };
}

impl Pacing {
    /// Nothing has been asked.
    pub(super) const NEW: Self = Self { probe_at: KeptDue::AT_ONCE };

    /// Whether a denied check may cause a call in the background.
    pub(super) fn may_probe(&self, now: Instant) -> bool {
        self.probe_at.due().has_come(now)
    }

    /// Whether a denied check may cause a call before that time.
    pub(super) fn probes_before(&self, at: Instant) -> bool {
        self.probe_at.due() < Due::at(at)
    }

    /// Denied checks cause no call in the background before that time.
    pub(super) fn probe_at(&mut self, at: Instant) {
        self.probe_at = KeptDue::of(Due::at(at));
    }

    /// A denied check may cause one at once.
    pub(super) fn probe_at_once(&mut self) {
        self.probe_at = KeptDue::AT_ONCE;
    }
}

impl Paces {
    /// Nobody was told anything, and nothing is planned.
    pub(super) const NEW: Self = Self(None);

    /// Whether nothing is remembered.
    pub(super) fn is_new(&self) -> bool {
        self.0.is_none()
    }

    fn paces(&self) -> &KnownPaces {
        self.0.as_deref().unwrap_or(&KnownPaces::NEW)
    }

    fn paces_mut(&mut self) -> &mut KnownPaces {
        self.0.get_or_insert_with(|| Box::new(KnownPaces::NEW))
    }

    /// The key begins anew, and no pause for trickling tokens applies. Promises and plans stay.
    pub(super) fn begin_anew(&mut self) {
        if let Some(paces) = &mut self.0 {
            (paces.fruitless, paces.paced_until) = (0, Due::AT_ONCE);
        }
    }

    /// Records that the store has answered an acquire with `granted` tokens.
    pub(super) fn note_answer(&mut self, granted: u64) {
        if granted == 0 {
            let paces = self.paces_mut();
            paces.fruitless = paces.fruitless.saturating_add(1);
        } else if let Some(paces) = &mut self.0 {
            paces.fruitless = 0;
        }
    }

    /// Whether the last answer had no tokens.
    pub(super) fn is_fruitless(&self) -> bool {
        self.paces().fruitless > 0
    }

    /// A pause that grows with each answer without tokens.
    pub(super) fn drawn_out(&self, pause: u64) -> u64 {
        pause << self.paces().fruitless.saturating_sub(ANSWERS_BEFORE_LONGER).min(MOST_DOUBLINGS)
    }

    /// Whether the store may be asked again, where tokens trickle in: from shortly before there are some, so that nobody waits for the
    /// answer.
    pub(super) fn may_go_on(&self, now: Instant) -> bool {
        self.paces().paced_until.has_come(now)
    }

    /// How long checks are denied until tokens have trickled in.
    pub(super) fn pause(&self, now: Instant) -> Micros {
        self.paces().paced_until.after(now)
    }

    /// Ends the pause: the store may be asked whenever somebody waits.
    pub(super) fn go_on(&mut self) {
        if let Some(paces) = &mut self.0 {
            paces.paced_until = Due::AT_ONCE;
        }
    }

    /// Starts a pause until `at`, in which the store is not asked; by a peer's word or by the store's.
    pub(super) fn pause_until(&mut self, at: Instant, is_by_peer: bool) {
        let paces = self.paces_mut();
        (paces.paced_until, paces.is_by_peer) = (Due::at(at), is_by_peer);
    }

    /// The store has shown its counters, so a pause that a peer's word began is over.
    pub(super) fn end_pause_by_peer(&mut self) {
        if self.paces().is_by_peer {
            self.go_on();
        }
    }

    /// An acquire was not sent, because too many calls were waiting: another one would wait as long.
    pub(super) fn note_crowd(&mut self, now: Instant, wait: Micros) {
        self.paces_mut().crowded_until = Due::at(now + wait);
    }

    /// Before that time nothing is asked for of the key's own accord. It would be turned down again, and all the keys that
    /// do so would keep the store from those for whom somebody waits.
    pub(super) fn crowded_until(&self) -> Due {
        self.paces().crowded_until
    }

    /// The wait that denied clients were told.
    pub(super) fn promise(&self) -> Option<Promise> {
        self.paces().promise
    }

    /// Records the wait that a client was told.
    pub(super) fn note_promise(&mut self, now: Instant, cost: u64, decision: &Decision) {
        let standing = self.promise().filter(|promise| promise.at > now);
        let Some(wait) = decision.retry_after else {
            // The tokens for clients that came back have been spent.
            if let Some(paces) = &mut self.0 {
                paces.promise = standing;
            }
            return;
        };
        let at = now + wait;
        self.paces_mut().promise = Some(match standing {
            Some(promise) => Promise { at: promise.at.min(at), cost: promise.cost.max(cost) },
            None => Promise { at, cost },
        });
    }

    /// Whether a plan for the window that begins at that time was made.
    pub(super) fn has_planned(&self, begins: Timestamp) -> bool {
        self.paces().plan.begins == begins.stored()
    }

    /// Plans to lease a part of the window that begins at that time.
    pub(super) fn plan_ahead(&mut self, begins: Timestamp, at: Instant) {
        self.paces_mut().plan = AheadPlan { begins: begins.stored(), at: Some(at) };
    }

    /// When a part of the next window is to be leased; `None`: it is not.
    pub(super) fn ahead_at(&self) -> Option<Instant> {
        self.paces().plan.at
    }

    /// The window of which to lease a part, if it is time.
    pub(super) fn plan_due(&self, now: Instant) -> Option<Window> {
        let plan = self.paces().plan;
        let begins = plan.begins.filter(|_| plan.is_due(now))?;
        Some(Window::Next { begins: begins.time() })
    }

    /// Drops a plan whose time has come, because it was carried out or there was a reason not to.
    pub(super) fn drop_plan(&mut self, now: Instant) {
        if let Some(paces) = self.0.as_mut().filter(|paces| paces.plan.is_due(now)) {
            paces.plan.at = None;
        }
    }
}
