//! Limits how often this node dials addresses that others have named: some at once, then a few per second, for each
//! sender and for all together.
//!
//! A member may name addresses at which no node listens, or a server that has nothing to do with this fleet. The
//! limits bound what it can make this node send there. A hint that is left out is repeated in the next round of
//! gossip.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Dials for the hints of one sender: the burst, and the number per second.
const OF_ONE: Rate = Rate { burst: 32, a_second: 2 };
/// Dials for the hints of all senders.
const OF_ALL: Rate = Rate { burst: 256, a_second: 32 };
/// How long an address is not dialled again.
const AGAIN: Duration = Duration::from_secs(5);

/// Recent dials for hints.
#[derive(Debug)]
pub(crate) struct Hints {
    all: Bucket,
    senders: BTreeMap<Arc<str>, Bucket>,
    dialled: BTreeMap<SocketAddr, Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u64,
    a_second: u64,
}

/// A token bucket, as the time when it is full again.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Duration);

impl Hints {
    /// Without recent dials.
    pub(crate) fn new() -> Self {
        Self { all: Bucket::default(), senders: BTreeMap::new(), dialled: BTreeMap::new() }
    }

    /// Whether `address`, which `sender` has named, may be dialled at `now`.
    pub(crate) fn take(&mut self, sender: &Arc<str>, address: SocketAddr, now: Duration) -> bool {
        self.forget(now);
        if self.dialled.contains_key(&address) {
            return false;
        }
        let mut of_one = self.senders.get(sender).copied().unwrap_or_default();
        let taken = OF_ALL.allows(self.all, now) && of_one.take(OF_ONE, now);
        if taken {
            self.all.take(OF_ALL, now);
            self.senders.insert(sender.clone(), of_one);
            self.dialled.insert(address, now);
        }
        taken
    }

    /// Drops full buckets and old dials, which have no effect. So there are never more entries than recent dials.
    fn forget(&mut self, now: Duration) {
        if self.dialled.len() as u64 >= OF_ALL.burst {
            self.dialled.retain(|_, at| now - *at < AGAIN);
            self.senders.retain(|_, bucket| bucket.0 > now);
        } else {
            self.dialled.retain(|_, at| now - *at < AGAIN);
        }
    }
}

impl Rate {
    fn step(self) -> Duration {
        Duration::from_secs(1) / u32::try_from(self.a_second).unwrap_or(u32::MAX)
    }

    fn allows(self, bucket: Bucket, now: Duration) -> bool {
        bucket.0.max(now) + self.step() <= now + self.step() * u32::try_from(self.burst).unwrap_or(u32::MAX)
    }
}

impl Bucket {
    fn take(&mut self, rate: Rate, now: Duration) -> bool {
        let allowed = rate.allows(*self, now);
        if allowed {
            self.0 = self.0.max(now) + rate.step();
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(number: u16) -> SocketAddr {
        ([127, 1, (number >> 8) as u8, number as u8], 9).into()
    }

    fn count(hints: &mut Hints, sender: &str, numbers: std::ops::Range<u16>, now: Duration) -> usize {
        let sender = Arc::from(sender);
        numbers.filter(|number| hints.take(&sender, address(*number), now)).count()
    }

    #[test]
    fn of_one_sender_some_are_dialled_at_once_and_then_two_a_second() {
        let mut hints = Hints::new();
        assert_eq!(count(&mut hints, "evil", 0..900, SECOND), 32);
        assert_eq!(count(&mut hints, "evil", 900..1_800, SECOND * 2), 2);
        assert_eq!(count(&mut hints, "a", 0..40, SECOND * 2), 8, "those that were dialled are not dialled again");
        assert_eq!(count(&mut hints, "evil", 900..1_800, SECOND * 60), 32);
    }

    #[test]
    fn of_many_senders_no_more_are_dialled_than_a_node_can_stand() {
        let mut hints = Hints::new();
        let dialled = (0..100)
            .map(|sender| count(&mut hints, &format!("evil-{sender}"), sender * 100..sender * 100 + 100, SECOND));
        assert_eq!(dialled.sum::<usize>(), 256);
        assert!(hints.dialled.len() <= 256 && hints.senders.len() <= 100);
    }
}
