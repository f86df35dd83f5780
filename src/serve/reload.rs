//! A reload: the configuration is read and checked again, and is used as a whole or not at all.
//!
//! Only policies, and the certificates and users of the TCP address, change in a running daemon. Other settings that have changed are named in the answer, because they
//! need a restart. Called for SIGHUP and for `RATION.RELOAD`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde_json::json;

use super::tcp::{RemoteAccess, TcpFiles};
use super::{listing, policy_diff};
use crate::config::{self, ConfigErrors, Entry, Loaded, Place, Problem, Sources};
use crate::core::policy::PolicySet;

/// First words of the answer to a reload that was refused.
pub const REFUSED: &str = "the new configuration is refused and the old one stays";

/// First words of the answer to a dry run of a reload that would be refused.
pub const WOULD_BE_REFUSED: &str = "the new configuration would be refused";

/// Reads the configuration again and replaces the policies.
#[derive(Debug)]
pub struct Reloader {
    sources: Sources,
    policies: Arc<ArcSwap<PolicySet>>,
    remote: Arc<ArcSwap<RemoteAccess>>,
    /// The settings at the start. Locked during a reload, so that only one runs at a time.
    running: Mutex<Vec<Entry>>,
    generation: AtomicU64,
    successful: AtomicBool,
}

impl Reloader {
    /// A reloader of the configuration that `sources` gave at the start.
    #[must_use]
    pub fn new(sources: Sources, loaded: Loaded, remote: RemoteAccess) -> Self {
        Self {
            sources,
            running: Mutex::new(loaded.settings()),
            policies: Arc::new(ArcSwap::from_pointee(loaded.policies)),
            remote: Arc::new(ArcSwap::from_pointee(remote)),
            generation: AtomicU64::new(1),
            successful: AtomicBool::new(true),
        }
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> &Arc<ArcSwap<PolicySet>> {
        &self.policies
    }

    /// Who may use the TCP address.
    #[must_use]
    pub fn remote(&self) -> &Arc<ArcSwap<RemoteAccess>> {
        &self.remote
    }

    /// Reloads, and returns JSON. It reads files, so it must not run on a data thread.
    ///
    /// # Errors
    /// All that is wrong with the new configuration, on one line; the old one stays in force.
    pub fn reload(&self) -> Result<String, String> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let read = config::load(&self.sources)
            .and_then(|loaded| self.read_remote(&running, &loaded).map(|remote| (loaded, remote)));
        match read {
            Ok((loaded, remote)) => Ok(self.take(&running, loaded, remote)),
            Err(errors) => {
                self.successful.store(false, Ordering::Relaxed);
                tracing::error!("{REFUSED}:\n{errors}");
                Err(format!("{REFUSED}: {}", one_line(&errors)))
            }
        }
    }

    /// Reads the files of the TCP address again, which the running configuration names: its keys wait for a restart.
    fn read_remote(&self, running: &[Entry], loaded: &Loaded) -> Result<RemoteAccess, ConfigErrors> {
        let is_same = changed(running, loaded).all(|key| !key.starts_with("listen.tcp"));
        if !is_same {
            return Ok((**self.remote.load()).clone());
        }
        RemoteAccess::read(&TcpFiles::of(&loaded.config.listen), &loaded.policies).map_err(|(key, problem)| {
            let origin = loaded.entry(key).map_or_else(|| "configuration".to_owned(), |entry| entry.origin);
            ConfigErrors(vec![Problem { place: Place::Named(origin), message: problem, hint: None }])
        })
    }

    /// Reads the configuration and tells as JSON what a reload would change; changes nothing. It reads files, so it must
    /// not run on a data thread.
    ///
    /// # Errors
    /// All that is wrong with the new configuration, on one line.
    pub fn dry_run(&self) -> Result<String, String> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let read = config::load(&self.sources).and_then(|loaded| self.read_remote(&running, &loaded).map(|_| loaded));
        let loaded = read.map_err(|errors| format!("{WOULD_BE_REFUSED}: {}", one_line(&errors)))?;
        let waiting: Vec<String> = changed(&running, &loaded).collect();
        let old = self.policies.load();
        let list = |policies: &PolicySet| serde_json::from_str(&listing::policies(policies)).unwrap_or_default();
        let differences = policy_diff::between(&list(&old), &list(&loaded.policies));
        let routes = old.routes() != loaded.policies.routes();
        Ok(json!({"policies": differences, "descriptors_changed": routes, "waiting_for_restart": waiting}).to_string())
    }

    fn take(&self, running: &[Entry], loaded: Loaded, remote: RemoteAccess) -> String {
        let waiting: Vec<String> = changed(running, &loaded).collect();
        let count = loaded.policies.iter().count();
        self.policies.store(Arc::new(loaded.policies));
        self.remote.store(Arc::new(remote));
        self.successful.store(true, Ordering::Relaxed);
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::info!(generation, policies = count, "configuration reloaded");
        if !waiting.is_empty() {
            tracing::warn!(keys = waiting.join(", "), "changed keys that wait for a restart");
        }
        json!({"generation": generation, "policies": count, "waiting_for_restart": waiting}).to_string()
    }

    /// Configurations used since the start, the first included.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether the last reload succeeded.
    #[must_use]
    pub fn was_successful(&self) -> bool {
        self.successful.load(Ordering::Relaxed)
    }
}

/// The settings outside of the policies and routes whose values differ.
fn changed(running: &[Entry], new: &Loaded) -> impl Iterator<Item = String> {
    new.settings().into_iter().filter_map(|entry| {
        let before = running.iter().find(|before| before.key == entry.key);
        before.is_none_or(|before| before.value != entry.value).then_some(entry.key)
    })
}

fn one_line(errors: &ConfigErrors) -> String {
    let problems = errors.0.iter().map(|problem| {
        let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{}: {}{hint}", problem.place, problem.message)
    });
    problems.collect::<Vec<_>>().join("; ").replace(['\r', '\n'], " ")
}
