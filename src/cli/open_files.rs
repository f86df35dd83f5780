//! How many files this process may have open: raised as far as connections need it, and connections fitted to it.
//!
//! Shells and containers often allow 1,024, the kernel far more: without this the configured number of connections
//! would be a promise that the operating system breaks.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::serve::Limits;

/// What is open beside connections: the admin address, the store, the fleet, the log.
const BESIDE: u64 = 192;
/// What each data thread has open.
const EACH_THREAD: u64 = 8;

/// Raises the limit of this process to what `limits` and `threads` need, and lowers `limits` to what there is.
pub(crate) fn fit(limits: Limits, threads: usize) -> Limits {
    let beside = BESIDE + EACH_THREAD * threads as u64;
    let may = raise(limits.connections as u64 + beside);
    let room = connections(may, beside);
    if room >= limits.connections as u64 {
        return limits;
    }
    tracing::warn!(
        files = may,
        wanted = limits.connections,
        connections = room,
        "fewer connections than listen.max_connections: raise the limit of open files (ulimit -Hn, LimitNOFILE=)"
    );
    Limits { connections: usize::try_from(room).unwrap_or(usize::MAX), ..limits }
}

/// How many connections fit. Where hardly anything is left beside the rest, half of all.
fn connections(may: u64, beside: u64) -> u64 {
    may.saturating_sub(beside).max(may / 2).max(1)
}

/// Raises the soft limit to `wanted`, the hard one at most: how many files may be open now.
fn raise(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (now, most) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX));
    let to = wanted.min(most);
    if now >= to {
        return now;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(to), maximum }) {
        Ok(()) => to,
        Err(error) => {
            tracing::warn!(%error, from = now, to, "the limit of open files cannot be raised");
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_the_rest() {
        assert_eq!(connections(100_000, 208), 99_792);
        assert_eq!(connections(1_024, 208), 816);
        assert_eq!(connections(200, 208), 100);
        assert_eq!(connections(1, 208), 1);
    }
}
