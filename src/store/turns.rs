//! Fair queueing: orders what waits by who asked for it. Users take turns, and within a user its connections take
//! turns.
//!
//! An asker who wants little waits for no more than one turn of each other asker, however much those ask for (after
//! Nagle, "On packet switches with infinite storage", 1985). Items about one key leave in the order in which they came,
//! so they wait in one line. When somebody else asks about the key whose line is shorter, they all move there: the
//! turns of that asker are used for them. Knows neither calls nor servers. Called by `redis/gate.rs` and by
//! `serve/turnstile.rs`.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};

use crate::clock;

/// How many empty lines and users are kept for reuse, since most items leave at once and would otherwise allocate
/// each time. A line that has grown beyond four times this length is not kept.
const SPARE: usize = 64;

/// The user and connection for which something waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker {
    user: u64,
    connection: u64,
}

impl Asker {
    /// This node itself, for calls that no client waits for: returns, renewals, and leases ahead of demand.
    pub const NODE: Self = Self { user: 0, connection: 0 };

    /// A connection of a user. `None` when the user is unknown; all unknown users count as one.
    #[must_use]
    pub fn new(uid: Option<u32>, connection: u64) -> Self {
        Self { user: uid.map_or(u64::MAX, |uid| u64::from(uid) + 1), connection }
    }

    /// The user that the connection belongs to.
    #[must_use]
    pub fn user(self) -> u64 {
        self.user
    }
}

/// Waiting items, each with an asker and a key.
#[derive(Debug)]
pub struct Turns<T> {
    users: HashMap<u64, User<T>, Secret>,
    /// Users with waiting items, the next first.
    order: VecDeque<u64>,
    /// The line in which the items of a key wait.
    places: HashMap<u128, Place, Secret>,
    len: usize,
    /// The number of the latest item.
    last: u64,
    spare_users: Vec<User<T>>,
    spare_lines: Vec<Line<T>>,
}

/// Items, in the order in which they came.
type Line<T> = VecDeque<Item<T>>;

#[derive(Debug)]
struct Item<T> {
    /// Counts all items, from one on.
    number: u64,
    key: u128,
    thing: T,
}

#[derive(Debug)]
struct User<T> {
    lines: HashMap<u64, Line<T>, Secret>,
    /// Connections with waiting items, the next first.
    order: VecDeque<u64>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    asker: Asker,
    count: usize,
    /// The number of the key's first item. An item before it in the line is of another key.
    first: u64,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        let secret = Secret::default();
        Self {
            users: HashMap::with_hasher(secret),
            order: VecDeque::new(),
            places: HashMap::with_hasher(secret),
            len: 0,
            last: 0,
            spare_users: Vec::new(),
            spare_lines: Vec::new(),
        }
    }
}

/// A keyed hash for values that are random already or chosen by us. With the key, nobody who chooses keys can choose
/// their buckets in the map.
#[derive(Clone, Copy, Debug)]
pub struct Secret(u64);

/// The state of one hash computation.
#[derive(Debug)]
pub struct Mixer(u64);

impl Default for Secret {
    fn default() -> Self {
        Self(clock::random())
    }
}

impl BuildHasher for Secret {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        // Multiplies by an odd constant and folds the halves of the product, so that each bit of the value reaches
        // all bits of the hash.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_u128(&mut self, value: u128) {
        self.write_u64(value as u64);
        self.write_u64((value >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T> Turns<T> {
    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether one more item of `asker` may wait, where at most `most` may wait in all. A connection with nothing
    /// waiting gets room up to `most`. Any other gets room only while all items, plus those of its user, plus those
    /// of its connection, are fewer than three quarters of `most`. So neither a few users nor a few connections of
    /// one user can take all of the room.
    #[must_use]
    pub fn has_room(&self, asker: Asker, most: usize) -> bool {
        let user = self.users.get(&asker.user);
        let connection = user.and_then(|user| user.lines.get(&asker.connection)).map_or(0, VecDeque::len);
        if connection == 0 {
            return self.len < most;
        }
        self.len + user.map_or(0, |user| user.len) + connection < most / 4 * 3
    }

    /// Adds an item, and returns its number, which is larger than those of all items before.
    pub fn push(&mut self, asker: Asker, key: u128, thing: T) -> u64 {
        self.last += 1;
        let number = self.last;
        let asker = match self.places.entry(key) {
            Entry::Vacant(place) => place.insert(Place { asker, count: 1, first: number }).asker,
            Entry::Occupied(_) => self.join(asker, key),
        };
        self.line(asker, 1).push_back(Item { number, key, thing });
        self.len += 1;
        number
    }

    /// Counts one more item of a key of which others wait, and returns in whose line it waits.
    fn join(&mut self, asker: Asker, key: u128) -> Asker {
        self.hurry(asker, key);
        self.places.get_mut(&key).map_or(asker, |place| {
            place.count += 1;
            place.asker
        })
    }

    /// Moves the items of a key into the line of `asker`, who waits for them, where that is shorter.
    pub fn hurry(&mut self, asker: Asker, key: u128) {
        let Some(place) = self.places.get(&key).copied().filter(|place| place.asker != asker) else { return };
        if self.line_of(place.asker).map_or(0, VecDeque::len) <= self.line_of(asker).map_or(0, VecDeque::len) {
            return;
        }
        let mut moved = Vec::with_capacity(place.count);
        if let Some(line) = self.line_of_mut(place.asker) {
            let mut at = line.partition_point(|item| item.number < place.first);
            while moved.len() < place.count && at < line.len() {
                if line[at].key == key { moved.extend(line.remove(at)) } else { at += 1 }
            }
        }
        self.shrink(place.asker, moved.len());
        let line = self.line(asker, moved.len());
        for item in moved {
            // A line is ordered by number, and moved items may be older than items that wait there.
            let at = line.partition_point(|other| other.number < item.number);
            line.insert(at, item);
        }
        self.places.insert(key, Place { asker, ..place });
    }

    /// Removes the item whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let asked = *self.order.front()?;
        let user = self.users.get_mut(&asked)?;
        let connection = *user.order.front()?;
        let line = user.lines.get_mut(&connection)?;
        let Item { key, thing, .. } = line.pop_front()?;
        user.len -= 1;
        // The user and its connection have had their turn and go to the end. An empty line, and a user without lines,
        // are removed.
        user.order.pop_front();
        if line.is_empty() {
            let line = user.lines.remove(&connection);
            keep(&mut self.spare_lines, line.filter(|line| line.capacity() <= 4 * SPARE));
        } else {
            user.order.push_back(connection);
        }
        self.order.pop_front();
        if user.len == 0 {
            let user = self.users.remove(&asked);
            keep(&mut self.spare_users, user.filter(|user| user.lines.capacity() <= 4 * SPARE));
        } else {
            self.order.push_back(asked);
        }
        self.release(key);
        Some(thing)
    }

    /// Removes the item of a key with this number.
    pub fn strike(&mut self, key: u128, number: u64) -> Option<T> {
        let asker = self.places.get(&key)?.asker;
        let line = self.line_of_mut(asker)?;
        let index = line.binary_search_by_key(&number, |item| item.number).ok()?;
        let Item { thing, .. } = line.remove(index)?;
        self.shrink(asker, 1);
        self.release(key);
        Some(thing)
    }

    fn line_of(&self, asker: Asker) -> Option<&Line<T>> {
        self.users.get(&asker.user)?.lines.get(&asker.connection)
    }

    fn line_of_mut(&mut self, asker: Asker) -> Option<&mut Line<T>> {
        self.users.get_mut(&asker.user)?.lines.get_mut(&asker.connection)
    }

    /// The line of an asker, which is about to get `more` items.
    fn line(&mut self, asker: Asker, more: usize) -> &mut Line<T> {
        let secret = *self.users.hasher();
        let user = self.users.entry(asker.user).or_insert_with(|| {
            self.order.push_back(asker.user);
            let empty = || User { lines: HashMap::with_hasher(secret), order: VecDeque::new(), len: 0 };
            self.spare_users.pop().unwrap_or_else(empty)
        });
        user.len += more;
        user.lines.entry(asker.connection).or_insert_with(|| {
            user.order.push_back(asker.connection);
            self.spare_lines.pop().unwrap_or_default()
        })
    }

    /// Accounts for items that were taken out of an asker's line; an empty line is removed from the turns.
    fn shrink(&mut self, asker: Asker, fewer: usize) {
        let Some(user) = self.users.get_mut(&asker.user) else { return };
        user.len -= fewer;
        if user.lines.get(&asker.connection).is_some_and(VecDeque::is_empty) {
            let line = user.lines.remove(&asker.connection);
            remove(&mut user.order, asker.connection);
            keep(&mut self.spare_lines, line.filter(|line| line.capacity() <= 4 * SPARE));
        }
        if user.len == 0 {
            let user = self.users.remove(&asker.user);
            remove(&mut self.order, asker.user);
            keep(&mut self.spare_users, user.filter(|user| user.lines.capacity() <= 4 * SPARE));
        }
    }

    fn release(&mut self, key: u128) {
        self.len -= 1;
        if let Entry::Occupied(mut place) = self.places.entry(key) {
            place.get_mut().count -= 1;
            if place.get().count == 0 {
                place.remove();
            }
        }
    }
}

/// Removes a user or connection from the order of turns.
fn remove(order: &mut VecDeque<u64>, gone: u64) {
    order.retain(|other| *other != gone);
}

/// Keeps an emptied line or user for reuse, unless enough are kept.
fn keep<T>(spare: &mut Vec<T>, emptied: Option<T>) {
    if spare.len() < SPARE {
        spare.extend(emptied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, connection: u64) -> Asker {
        Asker::new(Some(uid), connection)
    }

    fn all<T>(turns: &mut Turns<T>) -> Vec<T> {
        std::iter::from_fn(|| turns.pop()).collect()
    }

    #[test]
    fn users_leave_in_turn_and_so_do_the_connections_of_one() {
        let mut turns = Turns::default();
        for number in 0..4 {
            turns.push(of(1, 10), number, format!("a{number}"));
            turns.push(of(1, 11), 100 + number, format!("b{number}"));
        }
        turns.push(of(2, 20), 200, "c0".to_owned());
        turns.push(Asker::NODE, 300, "n0".to_owned());
        assert_eq!(all(&mut turns), ["a0", "c0", "n0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]);
        assert!(turns.is_empty() && turns.users.is_empty() && turns.places.is_empty());
    }

    #[test]
    fn whoever_comes_late_waits_for_one_turn_of_the_others() {
        let mut turns = Turns::default();
        for number in 0..8_000 {
            turns.push(of(1, number % 8), u128::from(number), number);
        }
        assert_eq!(turns.pop(), Some(0));
        turns.push(of(1, 8), 9_000, 9_000);
        let before = std::iter::from_fn(|| turns.pop()).take_while(|number| *number != 9_000).count();
        assert_eq!(before, 8);
    }

    #[test]
    fn what_concerns_one_key_leaves_in_order() {
        let mut turns = Turns::default();
        for number in 0..3 {
            turns.push(of(2, 2), 20 + number, 20 + number);
        }
        turns.push(of(1, 1), 2, 2);
        turns.push(of(2, 2), 2, 10);
        turns.push(of(2, 2), 23, 23);
        assert_eq!(all(&mut turns), [20, 2, 21, 10, 22, 23], "it lines up behind the key's first, in the shorter line");
        turns.push(of(2, 2), 2, 12);
        assert!(turns.line_of(of(1, 1)).is_none(), "nothing of the key waits any more");
    }

    #[test]
    fn who_waits_for_what_another_has_asked_lends_it_the_own_turns() {
        let mut turns = Turns::default();
        for number in 0..1_000 {
            turns.push(Asker::NODE, number, number);
        }
        let last = turns.push(Asker::NODE, 500, 1_000);
        turns.push(of(1, 1), 7_000, 7_000);
        turns.hurry(of(2, 2), 500);
        turns.hurry(of(3, 3), 8_000);
        turns.push(of(1, 1), 600, 1_001);
        assert_eq!((turns.len(), turns.users[&0].len, turns.users[&2].len, turns.users[&3].len), (1_003, 998, 3, 2));
        let first: Vec<_> = (0..10).filter_map(|_| turns.pop()).collect();
        assert_eq!(first, [0, 600, 500, 1, 7_000, 1_000, 2, 1_001, 3, 4]);
        assert_eq!(turns.strike(500, last), None);
        assert_eq!((all(&mut turns).len(), turns.len(), turns.users.len(), turns.places.len()), (993, 0, 0, 0));
    }

    #[test]
    fn what_is_struck_out_has_no_turn() {
        let mut turns = Turns::default();
        let numbers: Vec<_> = (0..6).map(|number| turns.push(of(1, number % 2), u128::from(number), number)).collect();
        let last = turns.push(of(2, 5), 6, 6);
        assert_eq!(turns.strike(6, last), Some(6));
        assert_eq!(turns.strike(2, numbers[2]), Some(2));
        assert_eq!(turns.strike(2, numbers[2]), None);
        assert_eq!((all(&mut turns), turns.len()), (vec![0, 1, 4, 3, 5], 0));
    }

    #[test]
    fn there_is_room_for_whoever_comes_next() {
        let (mut turns, most) = (Turns::default(), 1_000);
        let mut fill = |asker: Asker| {
            let mut count = 0;
            while turns.has_room(asker, most) {
                turns.push(asker, 0, ());
                turns.places.clear();
                count += 1;
            }
            count
        };
        let held: Vec<_> = (0..20).map(|connection| fill(of(1, connection))).collect();
        assert!(held[0] == most / 4 && held[3] > 1 && held[19] == 1, "{held:?}");
        assert!(fill(of(2, 30)) > most / 16, "another user has room: {held:?}");
        let others = (0..1_000).map(|connection| fill(of(3, connection))).take_while(|count| *count > 0).count();
        assert!(others > most / 4, "whoever has nothing in it has room: {others}");
        assert_eq!(fill(of(4, 0)), 0, "it is bounded");
    }
}
