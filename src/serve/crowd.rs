//! Limits how many answers of the store connections may await at a time. A connection that awaits too many is not
//! read.
//!
//! Without a limit, a few clients that ask without end would fill all queues to the store, and calls would leave too
//! late for everybody. So the total adapts to what leaves in time: every eight answered calls raise it by one, and a
//! call that leaves late halves it (additive increase, multiplicative decrease: Chiu and Jain 1989). A connection may
//! always await one answer, and more while as many as it awaits remain for others (as with bytes in `budget.rs`).
//! Users who wait at the same time get equal parts, and what others do not use, so a user gains nothing by opening
//! many connections. Where requests of one connection run concurrently (Envoy), those without room wait in a
//! [`Queue`]. Knows only numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::core::time::Instant;
use crate::store::turns::Asker;

/// Bounds of the number of answers that all connections together may await, beyond one for each; it starts at
/// `FIRST`. `LEAST` must not be too small, because what is not read waits for longer than `store.timeout` when the
/// store stops: with 64, two clients that asked 1000 times a second had to wait.
const MOST: usize = 2_048;
const FIRST: usize = 512;
const LEAST: usize = 512;

/// Answered calls that raise the limit by one.
const GROWTH: usize = 8;

/// The limit, shared by all connections.
#[derive(Debug)]
pub struct Crowd {
    waiting: AtomicUsize,
    /// Users who await at least one answer.
    awaiting: AtomicUsize,
    users: Mutex<HashMap<u64, Arc<AtomicUsize>>>,
    most: AtomicUsize,
    answered: AtomicUsize,
    /// A connection has been refused since the limit last grew. Without that it need not grow.
    was_full: AtomicBool,
    /// When the limit was last halved. Calls that were made before are late for the same cause, and do not halve it
    /// again.
    halved: AtomicU64,
}

/// The answers that one connection awaits; they no longer count when this is dropped.
#[derive(Debug)]
pub struct Place {
    crowd: Arc<Crowd>,
    /// Answers that all connections of its user await.
    user: Arc<AtomicUsize>,
    noted: usize,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            awaiting: AtomicUsize::new(0),
            users: Mutex::default(),
            most: AtomicUsize::new(FIRST),
            answered: AtomicUsize::new(0),
            was_full: AtomicBool::new(false),
            halved: AtomicU64::new(0),
        }
    }
}

impl Crowd {
    /// For a connection of `asker` that awaits nothing yet.
    #[must_use]
    pub fn place(self: &Arc<Self>, asker: Asker) -> Place {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if !users.contains_key(&asker.user()) {
            users.retain(|_, user| Arc::strong_count(user) > 1);
        }
        let user = users.entry(asker.user()).or_default().clone();
        Place { crowd: self.clone(), user, noted: 0 }
    }

    /// A call was answered.
    pub fn handle_answer(&self) {
        let due = self.answered.fetch_add(1, Ordering::Relaxed) % GROWTH == GROWTH - 1;
        if due && self.was_full.swap(false, Ordering::Relaxed) {
            let _ =
                self.most.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |most| (most < MOST).then_some(most + 1));
        }
    }

    /// A call that was made at `made` leaves late, now.
    pub fn handle_late(&self, now: Instant, made: Instant) {
        let halved = self.halved.load(Ordering::Relaxed);
        let is_first = made.0 >= halved
            && self.halved.compare_exchange(halved, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first {
            let most = self.most.load(Ordering::Relaxed).min(self.waiting.load(Ordering::Relaxed).max(LEAST));
            self.most.store((most / 2).max(LEAST), Ordering::Relaxed);
        }
    }
}

impl Place {
    /// Whether a connection that awaits `awaited` answers may await one more.
    #[must_use]
    pub fn has_room(&self, awaited: usize) -> bool {
        awaited == 0 || self.crowd_has_room(awaited)
    }

    fn crowd_has_room(&self, awaited: usize) -> bool {
        let most = self.crowd.most.load(Ordering::Relaxed);
        let of_user = self.user.load(Ordering::Relaxed);
        let of_others = self.crowd.waiting.load(Ordering::Relaxed).saturating_sub(of_user);
        let users = self.crowd.awaiting.load(Ordering::Relaxed) + usize::from(of_user == 0);
        let part = most.saturating_sub(of_others).max(most / users.max(1));
        let has_room = of_user.saturating_sub(self.noted) + 2 * awaited < part;
        if !has_room {
            self.crowd.was_full.store(true, Ordering::Relaxed);
        }
        has_room
    }

    /// Records how many answers the connection awaits.
    pub fn note(&mut self, awaited: usize) {
        if awaited > self.noted {
            let more = awaited - self.noted;
            self.crowd.waiting.fetch_add(more, Ordering::Relaxed);
            if self.user.fetch_add(more, Ordering::Relaxed) == 0 {
                self.crowd.awaiting.fetch_add(1, Ordering::Relaxed);
            }
        } else if awaited < self.noted {
            let fewer = self.noted - awaited;
            self.crowd.waiting.fetch_sub(fewer, Ordering::Relaxed);
            if self.user.fetch_sub(fewer, Ordering::Relaxed) == fewer {
                self.crowd.awaiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.noted = awaited;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.note(0);
    }
}

/// Queues the concurrent requests of one connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Queued>);

#[derive(Debug)]
struct Queued {
    place: Mutex<Place>,
    /// Held by the first request in the queue until it has recorded its answers.
    turn: tokio::sync::Mutex<()>,
    /// An answer has come, so the first request may check again.
    answered: Notify,
}

/// The right to ask now. No other request of the connection asks while it is held.
#[derive(Debug)]
pub struct Turn<'q> {
    queue: &'q Queue,
    _first: tokio::sync::MutexGuard<'q, ()>,
}

/// Answers that count as awaited until this is dropped.
#[derive(Debug)]
pub struct Awaited {
    queue: Queue,
    count: usize,
}

impl Queue {
    /// A queue for the connection of `place`.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self(Arc::new(Queued { place: place.into(), turn: tokio::sync::Mutex::default(), answered: Notify::new() }))
    }

    /// Waits until it is this request's turn and there is room. Dropping the future leaves the queue.
    pub async fn turn(&self) -> Turn<'_> {
        let first = self.0.turn.lock().await;
        while !self.has_room() {
            // If there is no room, the connection awaits something, so a notification will come. One that comes
            // before this line is remembered.
            self.0.answered.notified().await;
        }
        Turn { queue: self, _first: first }
    }

    fn has_room(&self) -> bool {
        let place = self.lock();
        place.has_room(place.noted)
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Records `count` awaited answers, and lets the next request have its turn.
    #[must_use]
    pub fn await_answers(self, count: usize) -> Awaited {
        let mut place = self.queue.lock();
        let awaited = place.noted + count;
        place.note(awaited);
        Awaited { queue: self.queue.clone(), count }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut place = self.queue.lock();
        let awaited = place.noted - self.count;
        place.note(awaited);
        drop(place);
        self.queue.0.answered.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Asker = Asker::NODE;

    fn fill(place: &mut Place) -> usize {
        let mut awaited = 0;
        while place.has_room(awaited) {
            awaited += 1;
            place.note(awaited);
        }
        awaited
    }

    #[test]
    fn one_alone_may_await_half_and_many_leave_room_for_the_next() {
        let crowd = Arc::<Crowd>::default();
        assert_eq!(fill(&mut crowd.place(ONE)), FIRST / 2);
        let mut places: Vec<_> = (0..100).map(|_| crowd.place(ONE)).collect();
        let awaited: Vec<_> = places.iter_mut().map(fill).collect();
        assert!(awaited.iter().all(|&awaited| awaited >= 1) && awaited.iter().sum::<usize>() <= FIRST + 100);
        assert!(crowd.place(ONE).has_room(0));
        places.clear();
        assert_eq!(crowd.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn users_who_wait_have_an_even_part_and_what_others_leave() {
        let crowd = Arc::<Crowd>::default();
        let of = |uid| crowd.place(Asker::new(Some(uid), 1));
        let mut many: Vec<_> = (0..1_000).map(|_| of(1)).collect();
        many.iter_mut().for_each(|place| place.note(1));
        let mut other = of(2);
        assert_eq!(fill(&mut other), FIRST / 4, "of his half");
        let mut third = of(3);
        assert_eq!(fill(&mut third), FIRST / 3 / 2, "of his third");
        drop(many);
        assert_eq!(fill(&mut other), (FIRST - third.noted).div_ceil(2), "of what the third leaves");
        drop((other, third));
        assert_eq!(fill(&mut of(4)), FIRST / 2);
        assert_eq!(crowd.awaiting.load(Ordering::Relaxed), 0);
        assert_eq!(crowd.users.lock().unwrap().len(), 1, "users who are gone are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beside_each_other_wait_for_room_in_order() {
        let crowd = Arc::<Crowd>::default();
        let queue = Queue::new(crowd.place(ONE));
        let mut awaited = Vec::new();
        for _ in 0..4 {
            awaited.push(queue.turn().await.await_answers(FIRST / 8));
        }
        let come = Arc::<Mutex<Vec<u32>>>::default();
        let ask = |number| {
            let (queue, come) = (queue.clone(), come.clone());
            tokio::spawn(async move {
                let turn = queue.turn().await;
                come.lock().unwrap().push(number);
                // A request that is answered at once awaits nothing, and still passes the turn on.
                (number != 2).then(|| turn.await_answers(FIRST / 8))
            })
        };
        let mut asking: Vec<_> = (0..5).map(ask).collect();
        let settled = || tokio::time::sleep(std::time::Duration::from_secs(1));
        settled().await;
        assert_eq!(*come.lock().unwrap(), [0; 0], "half of all is one connection's");
        awaited.pop();
        settled().await;
        assert_eq!(*come.lock().unwrap(), [0]);
        // A request that was dropped has left the queue.
        asking.remove(1).abort();
        awaited.clear();
        settled().await;
        assert_eq!(*come.lock().unwrap(), [0, 2, 3, 4]);
        for asked in asking {
            drop(asked.await);
        }
        assert_eq!(crowd.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_number_follows_what_leaves_in_time() {
        let crowd = Arc::<Crowd>::default();
        let number = || fill(&mut crowd.place(ONE));
        // No connection was refused, so the limit does not grow.
        (0..1_000_000).for_each(|_| crowd.handle_answer());
        assert_eq!(number(), FIRST / 2);
        for _ in 0..20_000 {
            let mut place = crowd.place(ONE);
            fill(&mut place);
            crowd.handle_answer();
        }
        assert_eq!(number(), MOST / 2);
        let mut place = crowd.place(ONE);
        fill(&mut place);
        // Calls that were made before the limit was halved were late for the same cause.
        (0..100).for_each(|_| crowd.handle_late(Instant(1_000), Instant(900)));
        assert_eq!(crowd.most.load(Ordering::Relaxed), MOST / 4);
        (2..100).for_each(|time| crowd.handle_late(Instant(time * 1_000), Instant(time * 1_000)));
        assert_eq!(crowd.most.load(Ordering::Relaxed), LEAST);
    }
}
