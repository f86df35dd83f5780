//! The calls of a key that are under way to the store or wait to be sent, and who waits for each.
//!
//! One acquire is under way at a time. All other calls, the errands, go beside it. Of those that clients ask for
//! (peeks, refunds, resets), one of each kind is under way at a time; requests of the same kind that come meanwhile
//! share the call that is sent next. Calls are sent in the order in which they were asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::ask::Ask;
use crate::core::call::{Call, Op, Voided};
use crate::core::calls::{Ended, Flight, Waiter};
use crate::core::context::Context;
use crate::core::limit::MAX_COUNT;
use crate::core::mutant::{Mutant, on};
use crate::core::request::MAX_LINE;
use crate::core::time::{Instant, KeptInstant, Micros};
use crate::core::usage::PeerIndex;

/// Most errands of a key that are under way at a time. An acquire that must reach the store after the queued ones
/// sends all of them, however many they are.
const MOST: usize = 64;

/// Calls under way, and calls that wait to be sent. A key without any, as most keys are at most times, needs only a
/// pointer.
#[derive(Debug)]
pub(super) struct Calls {
    open: Option<Box<Open>>,
    /// When the last abandoned acquire was first sent.
    doubted: Option<KeptInstant>,
}

/// An ask that a peer has yet to answer.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) peer: PeerIndex,
    pub(super) ask: Ask,
    pub(super) sent: Instant,
    /// Whether those in line wait for the answer. Nobody does where a peer is tried that has had no store.
    pub(super) is_awaited: bool,
}

impl Asking {
    /// When the answer is too late.
    pub(super) fn deadline(&self) -> Instant {
        self.sent + self.ask.awaited
    }
}

#[derive(Debug, Default)]
struct Open {
    acquire: Option<Flight>,
    /// Beside it, one peer is asked at a time.
    asking: Option<Asking>,
    /// An acquire that was given up without an answer. Nobody knows whether the store executed it; the next return
    /// says that it is void.
    doubtful: Option<Voided>,
    /// Of a bucket, tokens that were reported as spent by returns which the store has not answered. The return that says that an acquire
    /// is void says this, too.
    reported: u64,
    /// All other calls under way, by id.
    errands: Vec<Flight>,
    /// Calls that wait to be sent.
    queued: VecDeque<Flight>,
    /// How many requests wait for either.
    awaited: u32,
}

impl Open {
    /// No call is under way or waits to be sent.
    fn is_done(&self) -> bool {
        self.acquire.is_none() && self.asking.is_none() && self.errands.is_empty() && self.queued.is_empty()
    }

    /// The errand that was asked for last, extended to do this as well, if that is possible.
    ///
    /// A reset or a refund cannot share a call that was sent, because what it takes back may have been spent since. A
    /// peek can, because this node knows itself what it has spent since.
    fn errand_for(&mut self, call: &Call) -> Option<&mut Flight> {
        let is_asked = |errand: &&mut Flight| !matches!(errand.call.op, Op::Return { .. });
        let last = match self.queued.back_mut() {
            None => self.errands.iter_mut().rev().find(is_asked),
            last => last,
        };
        let last = last.filter(|errand| Arc::ptr_eq(&errand.call.rule, &call.rule))?;
        takes_in(last, &call.op).then_some(last)
    }
}

impl Calls {
    /// None was ever sent.
    pub(super) const NEW: Self = Self { open: None, doubted: None };

    /// Whether nothing is under way, and nothing is remembered of what was.
    pub(super) fn is_new(&self) -> bool {
        self.open.is_none() && self.doubted.is_none()
    }

    fn open(&mut self) -> &mut Open {
        self.open.get_or_insert_default()
    }

    /// Frees the memory when no call is left, and the store knows the fate of all.
    fn close(&mut self) {
        self.open.take_if(|open| open.is_done() && open.doubtful.is_none() && open.reported == 0 && open.awaited == 0);
    }

    fn errands(&self) -> &[Flight] {
        self.open.as_ref().map_or(&[], |open| &open.errands)
    }

    /// No call is under way or waits to be sent.
    pub(super) fn are_done(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.is_done())
    }

    /// The acquire under way.
    pub(super) fn acquire(&self) -> Option<&Flight> {
        self.open.as_ref()?.acquire.as_ref()
    }

    /// Whether an acquire is under way.
    pub(super) fn is_acquiring(&self) -> bool {
        self.acquire().is_some()
    }

    /// The ask that a peer has yet to answer.
    pub(super) fn asking(&self) -> Option<&Asking> {
        self.open.as_ref()?.asking.as_ref()
    }

    /// Whether there is one.
    pub(super) fn is_asking(&self) -> bool {
        self.asking().is_some()
    }

    /// Whether those in line wait for a peer.
    pub(super) fn awaits_peer(&self) -> bool {
        self.asking().is_some_and(|asking| asking.is_awaited)
    }

    /// Asks a peer, while none is asked.
    pub(super) fn send_ask(&mut self, cx: &mut Context, asking: Asking) {
        cx.ask(asking.peer, asking.ask.clone());
        self.open().asking = Some(asking);
    }

    /// The peer has answered the ask of that id, if that is still awaited. It is not again: what comes once more is lost.
    pub(super) fn end_ask(&mut self, id: u64) -> Option<Asking> {
        let open = self.open.as_mut()?;
        if on(Mutant::LoanTakenTwice) {
            return open.asking.clone().filter(|asking| asking.ask.id == id);
        }
        let asking = open.asking.take_if(|asking| asking.ask.id == id);
        self.close();
        asking
    }

    /// The peer has not answered in time: nobody waits any more.
    pub(super) fn end_late_ask(&mut self, now: Instant) -> Option<Asking> {
        let late = self.open.as_mut()?.asking.take_if(|asking| asking.deadline() <= now);
        self.close();
        late
    }

    /// Whether the acquire has been under way for longer than that.
    pub(super) fn is_overdue(&self, now: Instant, patience: Micros) -> bool {
        self.acquire().is_some_and(|acquire| now.since(acquire.sent) > patience)
    }

    /// Sends an acquire. None may be under way.
    pub(super) fn send_acquire(&mut self, cx: &mut Context, now: Instant, call: Call) {
        self.open().acquire = Some(Flight::send(cx, call, now));
    }

    /// Ends the acquire: it was answered, or its answer is no longer awaited.
    pub(super) fn end_acquire(&mut self) -> Option<Flight> {
        let acquire = self.open.as_mut()?.acquire.take();
        self.close();
        acquire
    }

    /// The connection of the acquire broke, so it must be sent again.
    pub(super) fn lose_acquire(&mut self) {
        if let Some(acquire) = self.open.as_mut().and_then(|open| open.acquire.as_mut()) {
            acquire.is_lost = true;
        }
    }

    /// Sends calls again that were lost with their connection, under the same ids.
    pub(super) fn send_lost(&mut self, cx: &mut Context, now: Instant) {
        let Some(open) = &mut self.open else { return };
        for flight in open.acquire.iter_mut().chain(&mut open.errands).filter(|flight| flight.is_lost) {
            flight.send_again(cx, now);
        }
    }

    /// Whether an acquire was abandoned, and the store must still hear that it is void.
    pub(super) fn has_doubtful(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.doubtful.is_some())
    }

    /// Abandons an acquire that was first sent at `sent`.
    pub(super) fn give_up(&mut self, order: Option<Voided>, sent: Instant) {
        self.open().doubtful = order;
        self.close();
        self.doubted = Some(KeptInstant::of(sent));
    }

    /// The return that declared an acquire void was not executed, so the next one must do it.
    pub(super) fn keep_doubtful(&mut self, order: Voided) {
        self.open().doubtful = Some(order);
    }

    /// Takes the abandoned acquire and when it was first sent, to tell the store of it.
    pub(super) fn take_doubtful(&mut self) -> Option<(Voided, Instant)> {
        let order = self.open.as_mut()?.doubtful.take()?;
        self.close();
        Some((order, self.doubted?.time()))
    }

    /// The key was reset by the call with that id, so what earlier acquires were lent is void as well.
    pub(super) fn drop_acquires_before(&mut self, id: u64) {
        let Some(open) = &mut self.open else { return };
        open.acquire.take_if(|acquire| acquire.call.id <= id);
        open.doubtful.take_if(|order| order.id <= id);
        self.close();
    }

    /// Of a bucket, tokens that were reported as spent by returns, of which nobody knows whether the store has heard.
    pub(super) fn reported(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.reported)
    }

    /// Records that a return that is sent now reports so many.
    pub(super) fn note_report(&mut self, tokens: u64) {
        if tokens > 0 {
            let open = self.open();
            open.reported = open.reported.saturating_add(tokens).min(MAX_COUNT);
        }
    }

    /// Records that the store has answered an acquire or a return, so it knows all that was reported before; but not yet, perhaps, what a
    /// return reports that is still under way.
    pub(super) fn note_accounted(&mut self) {
        if self.reported() > 0 && !self.has_return_under_way() {
            self.open().reported = 0;
            self.close();
        }
    }

    /// Tokens that are being returned to the store.
    pub(super) fn returning(&self) -> u64 {
        let amount = |errand: &Flight| if let Op::Return { amount, .. } = errand.call.op { amount } else { 0 };
        self.errands().iter().map(amount).sum()
    }

    /// Whether a return is under way, of any number of tokens.
    pub(super) fn has_return_under_way(&self) -> bool {
        self.errands().iter().any(|errand| matches!(errand.call.op, Op::Return { .. }))
    }

    /// Whether as many requests wait for errands as may.
    pub(super) fn are_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.awaited >= MAX_LINE as u32)
    }

    /// Adds a request for an errand, to be sent later: see [`Calls::send_queued`].
    pub(super) fn ask(&mut self, call: Call, waiter: Waiter, now: Instant) {
        let open = self.open();
        open.awaited += 1;
        match open.errand_for(&call) {
            Some(errand) => {
                let place = errand.waiters.partition_point(|before| before.deadline <= waiter.deadline);
                errand.waiters.insert(place, waiter);
            }
            None => open.queued.push_back(Flight::queued(call, now, waiter)),
        }
    }

    /// Sends queued calls in order, up to the first for which one of the same kind is under way.
    pub(super) fn send_queued(&mut self, cx: &mut Context, now: Instant) {
        while let Some(next) = self.open.as_ref().and_then(|open| open.queued.front()) {
            let mut under_way = self.errands().iter().filter(|errand| errand.ended.is_none());
            let is_one_of_many = under_way.clone().count() >= MOST;
            if is_one_of_many || under_way.any(|errand| has_to_wait(&next.call.op, &errand.call.op)) {
                return;
            }
            self.send_next(cx, now);
        }
    }

    /// Sends all queued calls, so that a call that is sent next comes after them.
    pub(super) fn send_all_queued(&mut self, cx: &mut Context, now: Instant) {
        while self.send_next(cx, now) {}
    }

    /// Sends the first queued call; false when there was none.
    fn send_next(&mut self, cx: &mut Context, now: Instant) -> bool {
        let next = self.open.as_mut().and_then(|open| open.queued.pop_front());
        let Some(Flight { call, waiters, .. }) = next else { return false };
        let call = Call { id: cx.id(), sent_at: now, ..call };
        self.open().errands.push(Flight { waiters, ..Flight::send(cx, call, now) });
        true
    }

    /// Sends an errand for which nobody waits.
    pub(super) fn send(&mut self, cx: &mut Context, now: Instant, call: Call) {
        self.open().errands.push(Flight::send(cx, call, now));
    }

    /// Removes the errand with that id, if it is under way.
    pub(super) fn take(&mut self, id: u64) -> Option<Flight> {
        let errands = &mut self.open.as_mut()?.errands;
        let position = errands.binary_search_by_key(&id, |errand| errand.call.id).ok()?;
        let errand = errands.remove(position);
        self.close();
        Some(errand)
    }

    /// The connection of the errand broke, so it must be sent again.
    pub(super) fn put_lost(&mut self, errand: Flight) {
        self.put_back(Flight { is_lost: true, ..errand });
    }

    /// The errand has ended, and those who wait for it must still be answered.
    pub(super) fn put_ended(&mut self, errand: Flight, ended: Ended) {
        if !errand.waiters.is_empty() {
            self.put_back(Flight { ended: Some(ended), ..errand });
        }
    }

    fn put_back(&mut self, errand: Flight) {
        let errands = &mut self.open().errands;
        let position = errands.partition_point(|other| other.call.id < errand.call.id);
        errands.insert(position, errand);
    }

    /// Removes an errand that has ended and whose waiters can be answered. If the store has answered it, they must
    /// wait until an acquire that was sent earlier is answered, and as long as `is_behind`; unless the store
    /// `is_away`.
    pub(super) fn take_ended(&mut self, is_away: bool, is_behind: bool) -> Option<Flight> {
        let open = self.open.as_mut()?;
        let acquire = open.acquire.as_ref().map_or(u64::MAX, |acquire| acquire.call.id);
        let position = open.errands.iter().position(|errand| match errand.ended {
            None => false,
            Some(Ended::Failed(_)) => true,
            Some(Ended::Answered) => is_away || !is_behind && errand.call.id < acquire,
        })?;
        let errand = open.errands.remove(position);
        self.close();
        Some(errand)
    }

    /// Removes those who have waited for errands for as long as they may, with the errand of each.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<(Flight, Vec<Waiter>)> {
        let mut late = Vec::new();
        let Some(open) = &mut self.open else { return late };
        for errand in &mut open.errands {
            late.extend(late_of(errand, now));
        }
        open.errands.retain(|errand| !(errand.ended.is_some() && errand.waiters.is_empty()));
        // Requests about several keys may be late before earlier requests.
        for errand in &mut open.queued {
            late.extend(late_of(errand, now));
        }
        late
    }

    /// Records that so many waiters were answered.
    pub(super) fn note_served(&mut self, waiters: usize) {
        if let Some(open) = &mut self.open {
            open.awaited -= waiters as u32;
        }
        self.close();
    }

    /// The earliest deadline of those who wait for errands.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let open = self.open.as_ref()?;
        let errands = open.errands.iter().chain(&open.queued);
        errands.filter_map(|errand| errand.waiters.first()).map(|waiter| waiter.deadline).min()
    }

    /// The key is about to be forgotten, so nobody takes the answers to its errands.
    pub(super) fn forget_errands(&mut self) {
        if let Some(open) = &mut self.open {
            open.errands.clear();
        }
        self.close();
    }
}

/// Whether an errand does what `op` asks for, or could be extended to.
fn takes_in(errand: &mut Flight, op: &Op) -> bool {
    let has_left = errand.attempts > 0;
    match (&mut errand.call.op, op) {
        (Op::Peek, Op::Peek) => errand.ended.is_none(),
        (Op::Reset, Op::Reset) => !has_left,
        (Op::Refund { amount, epoch, windows }, Op::Refund { amount: more, epoch: other, windows: others }) => {
            let sum = amount.saturating_add(*more);
            let is_same = !has_left && (*epoch, *windows) == (*other, *others) && sum <= MAX_COUNT;
            *amount = if is_same { sum } else { *amount };
            is_same
        }
        _ => false,
    }
}

/// Whether an errand has to wait for one that is under way: for its like; and a refund for what goes back. Of two calls
/// that leave together the later may reach the store first, and the store then takes the other for outdated: all that
/// it brings back would be lost.
fn has_to_wait(op: &Op, under_way: &Op) -> bool {
    matches!((op, under_way), (Op::Refund { .. }, Op::Return { .. })) || is_alike(under_way, op)
}

/// Refunds of other windows are no like: they cannot be one call.
fn is_alike(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Refund { windows, .. }, Op::Refund { windows: others, .. }) => windows == others,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

/// Removes those who have waited for an errand for as long as they may, with a copy of it.
fn late_of(errand: &mut Flight, now: Instant) -> Option<(Flight, Vec<Waiter>)> {
    let late = errand.waiters.partition_point(|waiter| waiter.deadline <= now);
    let late: Vec<_> = errand.waiters.drain(..late).collect();
    let Flight { sent, attempts, is_lost, .. } = *errand;
    let (call, ended) = (&errand.call, &errand.ended);
    let known = || Flight { call: call.clone(), sent, attempts, is_lost, ended: ended.clone(), waiters: Vec::new() };
    (!late.is_empty()).then(|| (known(), late))
}
