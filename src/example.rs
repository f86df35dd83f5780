//! Runs the examples of the documentation, each beside a daemon in its own process.
//!
//! Called only by documentation tests, and hidden from the documentation. Without the daemon's feature, the examples
//! are compiled, but not run.
//!
//! The daemon counts in memory and has two policies: `api`, 100 tokens a day, and `jobs`, two slots at a time.

use std::error::Error;
use std::path::Path;

/// The result of an example.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Runs an example with the socket of a new daemon.
///
/// # Panics
/// The example fails.
pub fn run(example: impl FnOnce(&Path) -> Outcome) {
    #[cfg(feature = "daemon")]
    daemon::run(example).expect("an example of the documentation does what it says");
    #[cfg(not(feature = "daemon"))]
    drop(example);
}

/// The same for tasks, in a runtime of this thread.
///
/// # Panics
/// The example fails.
#[cfg(feature = "client-tokio")]
pub fn run_async(example: impl AsyncFnOnce(&Path) -> Outcome) {
    run(|socket| tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(example(socket)));
}

#[cfg(feature = "daemon")]
mod daemon {
    use std::path::Path;
    use std::sync::Arc;

    use arc_swap::ArcSwap;

    use super::Outcome;
    use crate::clock;
    use crate::core::key::DigestKey;
    use crate::core::policy::{PolicySet, PolicySpec};
    use crate::core::shard::Settings;
    use crate::core::time::Micros;
    use crate::serve::{Backend, Daemon, Limits, StartOptions};

    const POLICIES: [(&str, &str); 2] = [("api", "100/1d fixed from-first"), ("jobs", "2/30s concurrent")];

    pub(super) fn run(example: impl FnOnce(&Path) -> Outcome) -> Outcome {
        let directory = std::env::temp_dir().join(format!("rationd-example-{:x}", clock::random()));
        std::fs::create_dir(&directory)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let options = options(&directory.join("rationd.sock"));
        let daemon = runtime.block_on(async { Daemon::start(options) })?;
        let outcome = example(daemon.socket());
        runtime.block_on(daemon.drain_and_stop());
        std::fs::remove_dir_all(&directory)?;
        outcome
    }

    fn options(socket: &Path) -> StartOptions {
        let policy = |(name, limit): (&str, &str)| {
            (name.to_owned(), PolicySpec { limits: vec![limit.to_owned()], ..PolicySpec::default() })
        };
        let policies = PolicySet::compile(&POLICIES.map(policy).into()).expect("the policies above are right");
        StartOptions {
            clock: crate::clock::Clock::start(),
            socket: socket.to_owned(),
            mode: 0o600,
            group: None,
            envoy: None,
            tcp: None,
            remote: Arc::default(),
            limits: Limits::default(),
            threads: 1,
            store: Backend::Memory,
            policies: Arc::new(ArcSwap::from_pointee(policies)),
            in_fleet: false,
            settings: Settings { max_keys: 1_000, timeout: Micros::from_millis(50), lease_ahead: true },
            digests: DigestKey::default(),
            reload: None,
        }
    }
}
