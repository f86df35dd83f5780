//! What the memory store sets aside of a window for each node: see `lua/entitled.lua`, which has the same steps.
//!
//! Called by `memory.rs` and `view.rs`; the sums and the parts of the nodes are kept by `census.rs`.

use crate::core::call::{Claim, Counter};
use crate::core::entitled::{USES, generation, lapses, most};
use crate::core::limit::{Algorithm, Limit, MAX_COUNT};
use crate::core::time::{Micros, Timestamp};

/// How many numbers [`Sums`] and [`Part`] are stored as, in the order of their fields. The last three of `Sums` are for
/// buckets; for windows they are zero and not stored.
pub(super) const SUMS: usize = 11;
pub(super) const PART: usize = 5;

/// The unit in which entitlements are counted. A key whose limit was changed may have entitlements of several forms; a
/// call sees those of its own limit's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Tokens of a fixed window: the fields `a` and `a:NODE`.
    Window,
    /// Millionths of a bucket: the fields `b` and `b:NODE`.
    Bucket,
    /// Tokens of a sliding window: the fields `d` and `d:NODE`.
    Sliding,
    /// Tokens of a window that opens with the first request: the fields `h` and `h:NODE`.
    Opened,
}

/// How many forms there are.
pub(super) const FORMS: usize = 4;

impl Form {
    /// The form of a policy with these limits.
    pub(super) fn of(limits: &[Limit]) -> Self {
        match limits.first().map(|limit| limit.algorithm) {
            Some(Algorithm::Gcra) => Self::Bucket,
            Some(Algorithm::Sliding) => Self::Sliding,
            Some(Algorithm::FixedFromFirst) => Self::Opened,
            _ => Self::Window,
        }
    }
}

/// The field `a`, `b`, `d` or `h`: what is set aside for all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) generation: u64,
    /// What is set aside for nodes that last called in this generation, and for those that last called in the one
    /// before.
    pub(super) entitled: [u64; 2],
    /// The demand of the same nodes.
    pub(super) demand: [u64; 2],
    /// `window` is the `Counter::at` of the latest window with a call, and `called` how much of `entitled` belongs to
    /// nodes that have called. Of a fixed window, `called` has the calls in it and those ahead in the next one. Of a
    /// sliding window, it has the calls in it, and then what was set aside in the window before for nodes that did not
    /// call in that one. Of a window from the first request, it has the calls in it. Of a bucket, `window` is a period of accounts, and `called` has the calls in it and in the one
    /// before.
    pub(super) window: u64,
    pub(super) called: [u64; 2],
    /// Of a bucket: until when the spending of silent nodes was charged, and until when tokens that are reported as
    /// spent count as spent at the time of the report.
    pub(super) charged_until: u64,
    pub(super) late_until: u64,
    /// Of a bucket: the parts of the nodes that were silent when the bucket last had room for all that such nodes may
    /// hold, beside what is charged and lent.
    pub(super) fitted: u64,
}

/// The field `a:NODE`, `b:NODE`, `d:NODE` or `h:NODE`: one node's entitlement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) generation: u64,
    /// The most tokens that the node may believe in.
    pub(super) held: u64,
    /// What the last call assigned to it.
    pub(super) given: u64,
    pub(super) demand: u64,
    /// The `Counter::at` of the last window in which it has called; one more than that where its part stays set aside
    /// although it called. Of a bucket, the last period of accounts in which it has called.
    pub(super) called: u64,
}

impl Sums {
    pub(super) fn of(numbers: [u64; SUMS]) -> Self {
        let [generation, now, before, demand, demand_before, window, called, other, ..] = numbers;
        let [.., charged_until, late_until, fitted] = numbers;
        let (entitled, demand, called) = ([now, before], [demand, demand_before], [called, other]);
        Self { generation, entitled, demand, window, called, charged_until, late_until, fitted }
    }

    pub(super) fn numbers(&self) -> [u64; SUMS] {
        let Self { generation, entitled: [now, before], demand, window, called, .. } = *self;
        let Self { charged_until, late_until, fitted, .. } = *self;
        [generation, now, before, demand[0], demand[1], window, called[0], called[1], charged_until, late_until, fitted]
    }

    /// What was set aside, when the sliding window before the one that begins at `at` ended, for nodes that had not
    /// called in it.
    fn silent_before(&self, at: Timestamp, period: Micros) -> u64 {
        let ended = generation(Timestamp(at.0.saturating_sub(1)));
        let [now, before] = self.entitled;
        let in_force = if self.generation + 1 >= ended { now } else { 0 };
        let in_force = in_force + if self.generation >= ended { before } else { 0 };
        let called = if self.window + period.0 == at.0 { self.called[0] } else { 0 };
        in_force.saturating_sub(called)
    }

    /// See [`Aside::keeps`].
    pub(super) fn keeps(&self, before: &Self) -> bool {
        before.generation == self.generation && before.last().is_some() && self.last().is_some()
    }

    /// When the last entitlement lapses; `None` when there is none.
    pub(super) fn last(&self) -> Option<Timestamp> {
        (self.entitled[0] + self.entitled[1] > 0).then(|| lapses(self.generation))
    }
}

impl Part {
    pub(super) fn of([generation, held, given, demand, called]: [u64; PART]) -> Self {
        Self { generation, held, given, demand, called }
    }

    pub(super) fn numbers(&self) -> [u64; PART] {
        [self.generation, self.held, self.given, self.demand, self.called]
    }

    /// Whether it has lapsed, in a key whose generation is that of `sums`.
    pub(super) fn has_lapsed(&self, sums: &Sums) -> bool {
        self.generation + 1 < sums.generation
    }
}

/// The entitlements to one key, during one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    pub(super) sums: Sums,
    /// The calling node's.
    pub(super) part: Part,
    /// A generation begins with this call.
    pub(super) begins: bool,
    /// What is set aside of this window, and of the next, for nodes other than the caller (for the caller, too, if the
    /// call frees nothing); `None` before [`Self::claim`].
    of_others: Option<[u64; 2]>,
    /// What the call has freed of the window that it is about.
    pub(super) freed: u64,
    /// The call has set aside again what an earlier one had freed.
    is_withheld: bool,
    form: Form,
    window: u64,
    period: u64,
}

impl Aside {
    /// Brings what is stored to `now`, in the window whose `Counter::at` that is.
    pub(super) fn new(mut sums: Sums, mut part: Part, limit: &Limit, now: Timestamp, at: Timestamp) -> Self {
        let (this, form) = (generation(now), Form::of(std::slice::from_ref(limit)));
        if form == Form::Sliding && sums.window != at.0 {
            // Computed before the generation advances, because entitlements that lapse now were in force in that
            // window.
            let before = sums.silent_before(at, limit.period);
            (sums.window, sums.called) = (at.0, [0, before]);
        }
        let begins = sums.generation < this;
        if begins {
            let follows = sums.generation + 1 == this;
            let before = |[now, _]: [u64; 2]| [0, if follows { now } else { 0 }];
            (sums.entitled, sums.demand, sums.generation) = (before(sums.entitled), before(sums.demand), this);
        }
        if part.generation != sums.generation && part.generation + 1 != sums.generation {
            part = Part { called: part.called, ..Part::default() };
        }
        let period = limit.period.0;
        if sums.window != at.0 {
            let ahead = if sums.window + period == at.0 { sums.called[1] } else { 0 };
            (sums.window, sums.called) = (at.0, [ahead, 0]);
        }
        Self { sums, part, begins, of_others: None, freed: 0, is_withheld: false, form, window: at.0, period }
    }

    /// Changes which window this call is about, by its `Counter::at`.
    pub(super) fn of_window(&mut self, at: Timestamp) {
        self.window = at.0;
    }

    /// Whether the call may open a window: an acquire that claims, where windows open with the first request.
    pub(super) fn opens(&self) -> bool {
        self.form == Form::Opened && self.of_others.is_some()
    }

    /// An acquire that claims was executed, and the window from the first request that is open since ends at `at`; it
    /// is 0 if none has opened, and then nobody has called in one.
    pub(super) fn has_opened(&mut self, at: Timestamp) {
        if !self.opens() {
            return;
        }
        if at.0 == 0 {
            (self.sums.called, self.part.called) = ([0; 2], 0);
        }
        (self.window, self.sums.window) = (at.0, at.0);
    }

    /// Whether a node that last called in `called` has called ahead, in the window after this one. Sliding windows are
    /// not lent ahead.
    fn is_ahead(&self, called: u64) -> bool {
        self.form == Form::Window && called == self.window + self.period
    }

    /// Takes what an acquire says of its node's entitlement, and assigns the node a new one. `is_ahead`: the acquire is
    /// about the next window.
    pub(super) fn claim(&mut self, limit: &Limit, now: Timestamp, claim: Claim, is_ahead: bool) {
        if !claim.frees.at(now) {
            return;
        }
        let (has_called_ahead, is_ahead) = (self.is_ahead(self.part.called), is_ahead && self.form == Form::Window);
        let (is_sliding, from_first) = (self.form == Form::Sliding, self.form == Form::Opened);
        let Self { sums, part, window, period, .. } = self;
        // Of windows from the first request it is the one that is open, or the one that opens now if anything is wanted.
        let is_open = *window != 0 || !from_first;
        let window = &if is_open { *window } else { now.0 + *period };
        let (believes, demand) = (claim.tokens().min(limit.count), claim.demand.min(limit.count));
        let has_called = is_open && (has_called_ahead || part.called == *window);
        // Another process under this name may have spent its entitlement in this window, unless it opens only now.
        let mut stays = is_open && (part.called == *window + 1 || claim.believes.is_none() && part.held > 0);
        if (is_sliding || from_first) && has_called {
            // But an earlier call under this name freed it in this window: that call paid for what was spent of it, and
            // from then on nobody spends it. If it were set aside once more, it would count twice, of a sliding window
            // in the next, too.
            stays = false;
        }
        let place = usize::from(part.generation != sums.generation);
        sums.entitled[place] = sums.entitled[place].saturating_sub(part.held);
        sums.demand[place] = sums.demand[place].saturating_sub(part.demand);
        for (called, has_called) in sums.called.iter_mut().zip([has_called, has_called_ahead]) {
            *called = called.saturating_sub(if has_called { part.held } else { 0 });
        }
        // A claim's demand is what the node used since its last call, which may be a moment ago. So demand is smoothed:
        // a new value counts for an eighth.
        let demand = if demand > 0 && part.demand > 0 { (7 * part.demand + demand).div_ceil(8) } else { demand };
        let (others, wanted) = (sums.entitled[0] + sums.entitled[1], sums.demand[0] + sums.demand[1] + demand);
        let target = if demand > 0 { (most(limit) * demand).div_ceil(wanted) } else { 0 };
        let given = target.min(USES * demand).min(most(limit).saturating_sub(others));
        // A node that has not yet learned of a smaller entitlement may spend the larger one, so what it believes stays
        // set aside.
        let held = believes.max(given).max(if stays { part.held } else { 0 });
        let frees = !stays && if is_ahead { !has_called_ahead } else { !has_called };
        self.freed = if frees { held } else { 0 };
        let has_called_ahead = !stays && (has_called_ahead || is_ahead);
        sums.entitled[0] += held;
        sums.demand[0] += demand;
        // Where the part stays set aside, an earlier process may have spent as much as it was then (`part.held`). What
        // it has grown by since, nobody can have spent, so a sliding window frees that. A fixed window keeps it set
        // aside, too, until it ends.
        sums.called[0] += match stays {
            true if is_sliding => held - part.held,
            true => 0,
            false => held,
        };
        sums.called[1] += if has_called_ahead { held } else { 0 };
        let called = match (stays, has_called_ahead) {
            (true, _) => *window + 1,
            (_, true) => *window + *period,
            _ => *window,
        };
        *part = Part { generation: sums.generation, held, given, demand, called };
        let all = sums.entitled[0] + sums.entitled[1];
        self.of_others = Some(sums.called.map(|called| all.saturating_sub(called)));
    }

    /// The node has abandoned an acquire that waiters needed, and the tokens that were lent for it go back. The acquire
    /// may have freed the node's entitlement in this window, and its tokens may have been meant to pay for what the
    /// node had spent of that. So the entitlement is set aside again until the node calls once more. Returns false, and
    /// does nothing, if others were lent those tokens meanwhile, so that the entitlement does not fit beside
    /// `credited`, the counter after the tokens went back; then the tokens that the acquire needed must stay charged.
    /// Otherwise more would be lent and set aside than the limit, and a node that comes back could not be lent what it
    /// has to pay.
    pub(super) fn withhold_again(&mut self, limit: &Limit, credited: &Counter, now: Timestamp) -> bool {
        let has_called_ahead = self.is_ahead(self.part.called);
        if !has_called_ahead && self.part.called != self.window {
            return true;
        }
        let mut after = *self;
        for (called, has_called) in after.sums.called.iter_mut().zip([true, has_called_ahead]) {
            *called = called.saturating_sub(if has_called { self.part.held } else { 0 });
        }
        (after.part.called, after.is_withheld) = (0, true);
        let all = after.sums.entitled[0] + after.sums.entitled[1];
        let others = after.sums.called.map(|called| all.saturating_sub(called));
        let left = Counter { used: credited.used, ..after.beside(credited, others[0]) }.left(limit, now);
        let is_full_ahead = has_called_ahead && credited.prev + others[1] > limit.count;
        if left < others[0] || is_full_ahead {
            return false;
        }
        *self = after;
        true
    }

    /// Whether the call has changed something.
    pub(super) fn is_changed(&self) -> bool {
        self.of_others.is_some() || self.is_withheld
    }

    /// Until when the key must be kept because nodes may admit checks by their entitlements. Of a sliding window it is
    /// a minute more, because what they admit weighs on for one more window, which is a minute at most.
    pub(super) fn last(&self) -> Option<Timestamp> {
        let more = Micros::from_secs(if self.form == Form::Sliding { 60 } else { 0 });
        self.sums.last().map(|last| last + more)
    }

    /// Whether entitlements keep the key for as long as they did before the call: they do if the generation is the same
    /// and there were and are some.
    pub(super) fn keeps(&self, before: &Sums) -> bool {
        self.sums.keeps(before)
    }

    /// How many tokens of the window may be lent; `counter` was rolled to `now`.
    pub(super) fn leaves(&self, limit: &Limit, counter: &Counter, now: Timestamp) -> u64 {
        self.of_others.map_or(0, |[others, _]| self.beside(counter, others).left(limit, now))
    }

    /// How many of the tokens that are left of the next window may be lent.
    pub(super) fn leaves_ahead(&self, left: u64) -> u64 {
        self.of_others.map_or(0, |[_, others]| left.saturating_sub(others))
    }

    /// The counter as an answer reports it: tokens that are set aside for others count as used, because nobody can be
    /// lent them.
    pub(super) fn answered(&self, counter: &Counter) -> Counter {
        self.beside(counter, self.shown())
    }

    /// The counter with `others`, which is set aside for other nodes, counted as used. Of a sliding window, what was
    /// set aside in the window before counts as used then. As that weighs less and less, the room goes to what is set
    /// aside now; so `others` takes the place of as much of it and is not counted twice.
    fn beside(&self, counter: &Counter, others: u64) -> Counter {
        let used = counter.used.saturating_add(others).min(MAX_COUNT);
        let prev = match self.form {
            Form::Sliding => counter.prev.saturating_add(self.sums.called[1]).saturating_sub(others).min(MAX_COUNT),
            Form::Window | Form::Opened | Form::Bucket => counter.prev,
        };
        Counter { used, prev, ..*counter }
    }

    /// What is set aside of this window for nodes other than the caller.
    pub(super) fn shown(&self) -> u64 {
        let Self { sums, part, window, .. } = self;
        let is_open = *window != 0 || self.form != Form::Opened;
        let is_in = is_open && ([*window, *window + 1].contains(&part.called) || self.is_ahead(part.called));
        let own = if is_in { 0 } else { part.held };
        (sums.entitled[0] + sums.entitled[1]).saturating_sub(sums.called[0]).saturating_sub(own)
    }
}
