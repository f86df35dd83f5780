//! Looks for other nodes at the seeds, whose names it resolves again and again.
//!
//! Nothing fails here: a name that cannot be resolved now may be later, and a node may start later at an address
//! where none listens now. A node that is alone looks every few seconds. Otherwise it looks once a minute, which
//! joins the parts of a fleet again after a network partition.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::members::Members;

/// Longest wait for the resolution of one name.
const LOOKUP: Duration = Duration::from_secs(2);
/// Time between two tries of all addresses, while the node is alone.
const TRY: Duration = Duration::from_secs(1);
/// Tries after each resolution of the names, while the node is alone.
const TRIES: usize = 5;
/// Time between two resolutions, while the node is not alone.
const SETTLED: Duration = Duration::from_secs(60);
/// Addresses tried at a time; a name may resolve to a thousand.
const AT_A_TIME: usize = 8;

/// Passes addresses to gossip with to `found`, until its receiver is dropped.
pub(crate) async fn run(
    seeds: Vec<String>,
    own: SocketAddr,
    mut members: watch::Receiver<Arc<Members>>,
    found: mpsc::Sender<SocketAddr>,
) {
    let mut known: Vec<(usize, SocketAddr)> = Vec::new();
    let mut next = 0;
    while !seeds.is_empty() {
        for (index, seed) in seeds.iter().enumerate() {
            resolve(seed, index, &mut known).await;
        }
        known.retain(|(_, address)| *address != own);
        for _ in 0..TRIES {
            for offset in 0..known.len().min(AT_A_TIME) {
                let (_, address) = known[(next + offset) % known.len()];
                if found.send(address).await.is_err() {
                    return;
                }
            }
            next = next.wrapping_add(AT_A_TIME);
            sleep(TRY).await;
            if members.borrow().len() > 1 {
                break;
            }
        }
        tokio::select! {
            () = sleep(SETTLED) => {}
            changed = members.wait_for(|members| members.len() <= 1) => if changed.is_err() { return },
        }
    }
}

/// Replaces the addresses of `seed`. If it cannot be resolved, its last addresses stay.
async fn resolve(seed: &str, index: usize, known: &mut Vec<(usize, SocketAddr)>) {
    match timeout(LOOKUP, lookup_host(seed)).await {
        Ok(Ok(addresses)) => {
            known.retain(|(of, _)| *of != index);
            known.extend(addresses.map(|address| (index, address)));
        }
        Ok(Err(error)) => tracing::warn!(seed, %error, "a seed cannot be resolved; it is tried again"),
        Err(_) => tracing::warn!(seed, "a seed is not resolved in time; it is tried again"),
    }
}
