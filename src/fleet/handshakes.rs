//! Limits the handshakes that peers have begun: in all, and for each address.
//!
//! A client without a certificate can begin handshakes but complete none. It can occupy the permits of its own
//! address for as long as a handshake may take, and those of other addresses stay free.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most handshakes at once.
const AT_ONCE: usize = 64;
/// Most handshakes at once of one address. Nodes on one machine may start together.
const OF_ONE: usize = 16;

/// Handshakes under way, by address.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(Mutex<HashMap<IpAddr, usize>>);

/// A permit for one handshake, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Arc<Handshakes>,
    ip: IpAddr,
}

impl Handshakes {
    /// A permit for a handshake with `ip`; `None` when there are too many.
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
