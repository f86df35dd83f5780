//! The ledger: the results of a run, counted from outside while it runs.
//!
//! It listens like a checker, but judges nothing: it makes the [`Figures`] of the comparison table. It knows nothing
//! of leases and of the content of calls, only what was asked and answered, so that every limiter is measured alike.
//! Its exact counter, the measure of `used`, gets the same checks at the same times. It costs some tens of
//! nanoseconds per check.

mod back;
mod book;
mod figures;
mod fleet;
mod histogram;
mod judge;
mod loans;
mod news;
mod peak;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;

use self::back::Back;
use self::book::{Book, Entry, Sums};
pub use self::figures::{Figures, Tokens};
use self::fleet::Fleet;
pub use self::histogram::Histogram;
pub use self::judge::{Measured, percent, thousandths};
use self::judge::{part_used, ratio};
use self::loans::Loans;
use self::news::News;
use self::peak::WHOLE;
use self::slots::Slots;
use crate::observe::{Kind, Moment, Observer, Request, Seen, Setting, Topic};

/// When there are so many books, closed ones are dropped; then again when there are twice as many as were left.
const SWEEP: usize = 4_096;

/// Counts a run.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The end of the warm-up, in true microseconds.
    warm: u64,
    /// Whether nodes gossip.
    hears: bool,
    /// The period of calls per window.
    period: u64,
    now: u64,
    /// By key.
    books: Vec<Option<Box<Book>>>,
    /// How many there are.
    open: usize,
    sweep_at: usize,
    sums: Sums,
    fleet: Fleet,
    news: News,
    loans: Loans,
    back: Back,
    slots: Slots,
    answers: Histogram,
    /// The times of answers that came from peers.
    peer_answers: Histogram,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    checks: u64,
    admitted: u64,
    parked: u64,
    parked_for_peers: u64,
    false_denials: u64,
    orphaned: u64,
    held_back: u64,
    /// In the order of [`Reason::ALL`] and [`Source::ALL`].
    reasons: [u64; Reason::ALL.len()],
    sources: [u64; Source::ALL.len()],
}

impl Ledger {
    /// The ledger of a run that has not begun.
    #[must_use]
    pub fn new(setting: &Setting) -> Self {
        let limits = setting.rules.iter().take(1).flat_map(|rule| rule.limits.iter());
        Self {
            warm: setting.plan.warm_up.0,
            hears: setting.plan.gossip.is_some(),
            period: limits.map(|limit| limit.period.0).max().unwrap_or(1_000_000),
            now: 0,
            books: Vec::new(),
            open: 0,
            sweep_at: SWEEP,
            sums: Sums::default(),
            fleet: Fleet::default(),
            news: News::default(),
            loans: Loans::default(),
            back: Back::new(setting),
            slots: Slots::new(setting),
            answers: Histogram::default(),
            peer_answers: Histogram::default(),
            counts: Counts::default(),
        }
    }

    /// The figures up to now. Windows that are open count when they end before the last event.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let (counts, fleet) = (&self.counts, &self.fleet);
        let mut sums = self.sums.clone();
        self.books.iter().flatten().for_each(|book| book.close(self.now, &mut sums));
        let (used, peaks) = (sums.used, sums.peaks);
        Figures {
            checks: counts.checks,
            admitted: counts.admitted,
            denied: counts.checks - counts.admitted,
            orphaned: counts.orphaned,
            reasons: named(Reason::ALL.map(Reason::as_str), &counts.reasons),
            sources: named(Source::ALL.map(Source::as_str), &counts.sources),
            false_denials: ratio(counts.false_denials, counts.checks, WHOLE),
            calls: fleet.calls(),
            held_back: counts.held_back,
            calls_per_1000: ratio(fleet.calls(), counts.checks, 1_000),
            calls_per_million: ratio(fleet.calls(), counts.checks, 1_000_000),
            calls_per_window: fleet.most_per_window(),
            calls_per_window_mean: fleet.mean_per_window(self.period),
            herd: fleet.herd(self.now.saturating_sub(self.warm)),
            herd_back: self.back.figure(self.warm),
            waits: ratio(counts.parked, counts.checks, WHOLE),
            peer_waits: ratio(counts.parked_for_peers, counts.checks, WHOLE),
            shares: ratio(counts.sources[Source::Share as usize], counts.checks, WHOLE),
            answer_p50_us: self.answers.percentile(50_000),
            answer_p99_us: self.answers.percentile(99_000),
            answer_p999_us: self.answers.percentile(99_900),
            answer_longest_us: self.answers.longest(),
            peer_answer_p99_us: self.peer_answers.percentile(99_000),
            loans_lost: self.loans.lost(),
            news_p99_us: self.news.age(),
            first_answer_us: fleet.first_answer(),
            used: part_used(used.admitted, used.possible),
            used_tokens: used.admitted,
            possible_tokens: used.possible,
            windows: peaks.windows,
            windows_over: peaks.windows_over,
            window_peak: peaks.window,
            over: peaks.window.saturating_sub(WHOLE),
            burst_peak: peaks.burst,
            burst_over: peaks.burst.saturating_sub(WHOLE),
            bursts_over: peaks.bursts_over,
            slots_peak: self.slots.peak(),
            slots_over: self.slots.peak().saturating_sub(WHOLE),
            slots_used: self.slots.used(),
            slots_denied: self.slots.denied(),
            fairness: fleet.fairness(),
            told_per_second: ratio(fleet.most_reported(), self.now.saturating_sub(self.warm), 1_000_000),
            nodes: fleet.most(),
            tokens: fleet.tokens(),
        }
    }

    fn is_warm(&self) -> bool {
        self.now >= self.warm
    }

    /// Enters an answer into the key's book, and counts it.
    fn answer(&mut self, request: &Request, rule: &Arc<Rule>, decision: &Decision, parked: bool, store: Timestamp) {
        let admitted = decision.verdict == Verdict::Allow;
        let (at, warm, cost) = (self.now, self.warm, request.cost);
        let entry = Entry { at, store, warm, rule, decision, cost };
        let index = request.key as usize;
        if index >= self.books.len() {
            self.books.resize(index + 1, None);
        }
        let book = self.books[index].get_or_insert_with(|| {
            self.open += 1;
            Box::new(Book::new(rule))
        });
        let mut is_false = false;
        match request.kind {
            Kind::Check => is_false = book.check(&entry, admitted, &mut self.sums),
            Kind::Refund if admitted => book.refund(&entry, &mut self.sums),
            Kind::Reset => book.reset(&entry, &mut self.sums),
            Kind::Peek | Kind::Refund => {}
        }
        if request.kind == Kind::Check && self.is_warm() {
            let took = at.saturating_sub(request.asked);
            self.answers.add(took);
            if parked && decision.source == Source::Peer {
                self.peer_answers.add(took);
            }
            self.fleet.answer(request.node, admitted, took);
            self.counts.add(decision, admitted, parked);
            self.counts.false_denials += u64::from(is_false);
        }
        if self.open > self.sweep_at {
            self.sweep();
        }
    }

    /// Closes the books of keys that are no longer checked.
    fn sweep(&mut self) {
        let (now, sums) = (self.now, &mut self.sums);
        for place in &mut self.books {
            if let Some(book) = place.take_if(|book| book.is_over(now)) {
                book.close(now, sums);
                self.open -= 1;
            }
        }
        self.sweep_at = SWEEP.max(2 * self.open);
    }
}

impl Observer for Ledger {
    fn minds(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Audit | Topic::Reported | Topic::Permits)
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Executed | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.now = moment.at;
        if self.slots.see(moment, seen, self.warm) {
            return;
        }
        if self.hears {
            self.news.see(moment, seen, self.now >= self.warm);
            self.loans.see(self.now, seen, self.now >= self.warm);
        }
        match *seen {
            Seen::Answered { request, rule, decision, parked, store } => {
                self.answer(request, rule, decision, parked, store);
            }
            Seen::Orphaned(request) if request.kind == Kind::Check && self.is_warm() => self.counts.orphaned += 1,
            Seen::Called { node, sent: true, .. } if self.is_warm() => {
                self.fleet.call(node, moment.at, moment.store.0 / self.period);
                self.back.call(moment.at);
            }
            Seen::Called { sent: false, .. } if self.is_warm() => self.counts.held_back += 1,
            Seen::Joined { node, .. } => self.fleet.join(node, moment.at, self.warm),
            Seen::Left { .. } => self.fleet.leave(moment.at, self.warm),
            Seen::Audit { node, ref balance, .. } => self.fleet.audit(node, balance),
            Seen::Reported { from, frames, .. } if self.is_warm() => self.fleet.report(from, frames.len() as u64),
            Seen::Over => self.fleet.pass(moment.at, self.warm),
            _ => {}
        }
    }
}

impl Counts {
    fn add(&mut self, decision: &Decision, admitted: bool, parked: bool) {
        self.checks += 1;
        self.admitted += u64::from(admitted);
        let by_peer = decision.source == Source::Peer;
        self.parked += u64::from(parked && !by_peer);
        self.parked_for_peers += u64::from(parked && by_peer);
        self.reasons[decision.reason as usize] += 1;
        self.sources[decision.source as usize] += 1;
    }
}

/// Counts by their names, without those that are zero.
fn named<const N: usize>(names: [&'static str; N], counts: &[u64; N]) -> BTreeMap<&'static str, u64> {
    names.into_iter().zip(*counts).filter(|(_, count)| *count > 0).collect()
}
