//! The limit of open files: raises it as far as connections need, and limits connections to what it allows.
//!
//! Shells and containers often allow 1,024 open files, although the kernel allows far more. Without this, the
//! operating system would refuse connections that the configuration allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Listen;
use crate::serve::Limits;

/// Descriptors beside those of connections: admin address, store, fleet, log.
const BESIDE: u64 = 192;
/// Descriptors of each data thread.
const EACH_THREAD: u64 = 8;

/// Descriptors of a TCP connection with TLS, beside its own: the two ends of a pair inside.
const EACH_ENCRYPTED: u64 = 2;

/// Raises the limit of open files to what `limits`, `threads` and the TCP address need, and lowers `limits` if it cannot be raised so
/// far.
pub(crate) fn fit(limits: Limits, threads: usize, listen: &Listen) -> Limits {
    let beside = beside(threads, listen);
    let may = raise(wanted(limits.connections, threads, listen));
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

/// How many files are open with so many connections and threads.
pub(crate) fn wanted(connections: usize, threads: usize, listen: &Listen) -> u64 {
    connections as u64 + beside(threads, listen)
}

fn beside(threads: usize, listen: &Listen) -> u64 {
    let is_encrypted = listen.tcp.is_some() && listen.tcp_cert.is_some();
    // All connections over TCP may be as many as those of one user.
    let encrypted = if is_encrypted { listen.max_connections_per_uid as u64 } else { 0 };
    BESIDE + EACH_THREAD * threads as u64 + EACH_ENCRYPTED * encrypted
}

/// How many connections fit beside the other descriptors, but at least half of all descriptors.
fn connections(may: u64, beside: u64) -> u64 {
    may.saturating_sub(beside).max(may / 2).max(1)
}

/// Raises the soft limit to `wanted`, or to the hard limit if that is lower. Returns the new soft limit.
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
