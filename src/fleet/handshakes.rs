//! Handshakes that others began and that are under way: so many at once, and so many of one address.
//!
//! Who has no certificate can begin handshakes and end none. It holds its own places for as long as a
//! handshake may take, and leaves those of other addresses free.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes at once.
const AT_ONCE: usize = 64;
/// Handshakes at once of one address: nodes of one machine come up together.
const OF_ONE: usize = 16;

/// Who is at the door.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(Mutex<HashMap<IpAddr, usize>>);

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Arc<Handshakes>,
    ip: IpAddr,
}

impl Handshakes {
    /// A place for a handshake with `ip`; `None`: there is none.
    pub(crate) fn enter(self: &Arc<Self>, ip: IpAddr) -> Option<Place> {
        let ip = ip.to_canonical();
        let mut places = self.lock();
        let (all, of_one) = (places.values().sum::<usize>(), places.get(&ip).copied().unwrap_or(0));
        if all >= AT_ONCE || of_one >= OF_ONE {
            return None;
        }
        places.insert(ip, of_one + 1);
        Some(Place { of: self.clone(), ip })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.of.lock();
        let left = places.get(&self.ip).map_or(0, |count| count - 1);
        if left == 0 {
            places.remove(&self.ip);
        } else {
            places.insert(self.ip, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_holds_its_own_places_and_no_more() {
        let handshakes = Arc::<Handshakes>::default();
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mapped = "::ffff:10.0.0.1".parse().expect("an address");
        let mut held: Vec<_> = (0..99).filter_map(|_| handshakes.enter(ip(1))).collect();
        assert_eq!(held.len(), OF_ONE);
        assert!(handshakes.enter(mapped).is_none(), "it is the same address");
        held.extend((2..99).filter_map(|last| handshakes.enter(ip(last))));
        assert_eq!(held.len(), AT_ONCE);
        held.clear();
        assert!(handshakes.enter(ip(1)).is_some() && handshakes.lock().is_empty());
    }
}
