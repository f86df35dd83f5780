//! What the memory store sets aside of a window for each node: see `lua/entitled.lua`, which has the same steps.
//!
//! Called by `memory.rs` and `view.rs`; the sums and the parts of the nodes are kept by `census.rs`.

use crate::core::call::{Claim, Counter};
use crate::core::entitled::{USES, generation, lapses, most};
use crate::core::limit::{Algorithm, Limit, MAX_COUNT};
use crate::core::time::{Micros, Timestamp};

/// Numbers of [`Sums`] and of [`Part`], in the order of their fields. Of a window the last three of the former are zero, and not
/// stored.
pub(super) const SUMS: usize = 11;
pub(super) const PART: usize = 5;

/// What entitlements are counted in. A key whose limit was changed may have some of both kinds; a call sees those of its
/// own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Tokens of a fixed window: the fields `a` and `a:NODE`.
    Window,
    /// Millionths of a bucket: the fields `b` and `b:NODE`.
    Bucket,
    /// Tokens of a sliding window: the fields `d` and `d:NODE`.
    Sliding,
}

/// How many forms there are.
pub(super) const FORMS: usize = 3;

impl Form {
    /// That of a policy with these limits.
    pub(super) fn of(limits: &[Limit]) -> Self {
        match limits.first().map(|limit| limit.algorithm) {
            Some(Algorithm::Gcra) => Self::Bucket,
            Some(Algorithm::Sliding) => Self::Sliding,
            _ => Self::Window,
        }
    }
}

/// The field `a`, `b` or `d`: what is set aside for all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) generation: u64,
    /// Tokens that nodes are entitled to which called in this generation, or in the one before.
    pub(super) entitled: [u64; 2],
    /// The demand of those nodes.
    pub(super) demand: [u64; 2],
    /// A window, by its `Counter::at`, and what those are entitled to that have called in it, and ahead in the next. Of a bucket a period
    /// of accounts, and those that have called in it, and in the one before. Of a sliding window the last number is what was set aside in
    /// the window before for those that had not called in it.
    pub(super) window: u64,
    pub(super) called: [u64; 2],
    /// Of a bucket, until when silent nodes have been charged, and until when what is reported as spent counts as spent now.
    pub(super) charged_until: u64,
    pub(super) late_until: u64,
    /// The parts of those who were silent when what is charged and lent last fitted beside what silent nodes may hold.
    pub(super) fitted: u64,
}

/// The field `a:NODE`, `b:NODE` or `d:NODE`: one node's entitlement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) generation: u64,
    /// The most tokens that the node may believe in.
    pub(super) held: u64,
    /// What it was given last.
    pub(super) given: u64,
    pub(super) demand: u64,
    /// The `Counter::at` of the last window in which it has called; one more where its part stays set aside all the same. Of a bucket
    /// that period of accounts.
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

    /// What was set aside of the sliding window before the one that begins at `at`, for nodes that had not called in it: of what was in
    /// force until it was over.
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

    /// When nothing is set aside any more; `None`: nothing is.
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

    /// Whether it has lapsed in a key that is in this generation.
    pub(super) fn has_lapsed(&self, sums: &Sums) -> bool {
        self.generation + 1 < sums.generation
    }
}

/// What is set aside of one key, during one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    pub(super) sums: Sums,
    /// That of the node that calls.
    pub(super) part: Part,
    /// A generation begins with this call.
    pub(super) begins: bool,
    /// What is set aside for others of this window, and of the next; all of it if the call frees nothing.
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
            // Said of what is stored, before any of it lapses.
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

    /// The window that it is about is the one with that `Counter::at`.
    pub(super) fn of_window(&mut self, at: Timestamp) {
        self.window = at.0;
    }

    /// Whether that is a call of the window after the one that it is about. Sliding windows are not lent ahead.
    fn is_ahead(&self, called: u64) -> bool {
        self.form == Form::Window && called == self.window + self.period
    }

    /// An acquire says what it knows of its node's entitlement, and is given another. `is_ahead`: it is about the next window.
    pub(super) fn claim(&mut self, limit: &Limit, now: Timestamp, claim: Claim, is_ahead: bool) {
        if !claim.frees.at(now) {
            return;
        }
        let (has_called_ahead, is_ahead) = (self.is_ahead(self.part.called), is_ahead && self.form == Form::Window);
        let is_sliding = self.form == Form::Sliding;
        let Self { sums, part, window, period, .. } = self;
        let (believes, demand) = (claim.tokens().min(limit.count), claim.demand.min(limit.count));
        let has_called = has_called_ahead || part.called == *window;
        // Another process under this name may have spent its entitlement in this window.
        let mut stays = part.called == *window + 1 || claim.believes.is_none() && part.held > 0;
        if is_sliding && has_called {
            // But a call under the name that freed it in this window paid what was spent of it, and nobody spends any more. If it were set
            // aside once more it would count twice, in this window and in the next.
            stays = false;
        }
        let place = usize::from(part.generation != sums.generation);
        sums.entitled[place] = sums.entitled[place].saturating_sub(part.held);
        sums.demand[place] = sums.demand[place].saturating_sub(part.demand);
        for (called, has_called) in sums.called.iter_mut().zip([has_called, has_called_ahead]) {
            *called = called.saturating_sub(if has_called { part.held } else { 0 });
        }
        // A node says what it used since its last call, which may be a moment: an eighth of that counts.
        let demand = if demand > 0 && part.demand > 0 { (7 * part.demand + demand).div_ceil(8) } else { demand };
        let (others, wanted) = (sums.entitled[0] + sums.entitled[1], sums.demand[0] + sums.demand[1] + demand);
        let target = if demand > 0 { (most(limit) * demand).div_ceil(wanted) } else { 0 };
        let given = target.min(USES * demand).min(most(limit).saturating_sub(others));
        // What the node believes stays set aside until a call of it shows that it knows of less.
        let held = believes.max(given).max(if stays { part.held } else { 0 });
        let frees = !stays && if is_ahead { !has_called_ahead } else { !has_called };
        self.freed = if frees { held } else { 0 };
        let has_called_ahead = !stays && (has_called_ahead || is_ahead);
        sums.entitled[0] += held;
        sums.demand[0] += demand;
        // Of what stays the process before may have spent as much as there was: by how much it grew nobody may spend yet. Of a fixed
        // window that is set aside too, until it ends.
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

    /// The node has abandoned an acquire that waiters needed, and what that was lent goes back. It may have been to pay for what the
    /// node has spent of its entitlement in this window, which it freed: so that is set aside again until the node calls once more.
    /// Returns false, and does nothing, where others were lent it meanwhile and it would not fit beside what the counter, to which all
    /// of it was credited, says: then what the acquire needed must stay charged. If more were lent and set aside than the limit, who
    /// comes back would not be lent what it has to pay.
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

    /// Until when the key must be kept for the sake of nodes that may live on what is set aside; what of that is of a sliding window weighs for
    /// one more, which is a minute at most.
    pub(super) fn last(&self) -> Option<Timestamp> {
        let more = Micros::from_secs(if self.form == Form::Sliding { 60 } else { 0 });
        self.sums.last().map(|last| last + more)
    }

    /// Whether the key is kept for the sake of what is set aside as long as it was before: in this generation, where something
    /// was and is.
    pub(super) fn keeps(&self, before: &Sums) -> bool {
        self.sums.keeps(before)
    }

    /// What may be lent of the window, by a counter that was rolled to `now`.
    pub(super) fn leaves(&self, limit: &Limit, counter: &Counter, now: Timestamp) -> u64 {
        self.of_others.map_or(0, |[others, _]| self.beside(counter, others).left(limit, now))
    }

    /// Of so many tokens that are left of the next window, those that may be lent.
    pub(super) fn leaves_ahead(&self, left: u64) -> u64 {
        self.of_others.map_or(0, |[_, others]| left.saturating_sub(others))
    }

    /// The counter as an answer tells it: what is set aside for others nobody can be lent.
    pub(super) fn told(&self, counter: &Counter) -> Counter {
        self.beside(counter, self.shown())
    }

    /// The counter beside so much that is set aside for others. Of a sliding window what was set aside before counts as used. What is set
    /// aside now comes as the window before weighs less: where that is more, it takes the place of as much of it.
    fn beside(&self, counter: &Counter, others: u64) -> Counter {
        let used = counter.used.saturating_add(others).min(MAX_COUNT);
        let prev = match self.form {
            Form::Sliding => counter.prev.saturating_add(self.sums.called[1]).saturating_sub(others).min(MAX_COUNT),
            Form::Window | Form::Bucket => counter.prev,
        };
        Counter { used, prev, ..*counter }
    }

    /// What is set aside of this window for nodes other than the one that calls.
    pub(super) fn shown(&self) -> u64 {
        let Self { sums, part, window, .. } = self;
        let is_in = [*window, *window + 1].contains(&part.called) || self.is_ahead(part.called);
        let own = if is_in { 0 } else { part.held };
        (sums.entitled[0] + sums.entitled[1]).saturating_sub(sums.called[0]).saturating_sub(own)
    }
}
