//! What the doctor knows: the configuration, what the store's servers say, and what the daemon says.
//!
//! All of it is asked for once, before anything is judged. What does not answer stays unknown.

use std::path::PathBuf;

use serde_json::Value;

use super::super::ask::{ask, ask_json};
use super::super::resolve::{Resolved, resolve};
use crate::config::{Config, ConfigErrors, Loaded, Sources, load};
use crate::core::policy::ON_TRIAL;
use crate::store::redis::{Survey, install_crypto, survey};

/// Everything that the checks look at.
pub(super) struct Patient {
    /// The configuration as it is, or what is wrong with it.
    pub(super) loaded: Result<(Loaded, Resolved), ConfigErrors>,
    /// What the store's servers say; `None`: there is no shared store.
    pub(super) store: Option<Survey>,
    /// What the daemon says.
    pub(super) daemon: Daemon,
    /// The largest cost that applications ask for.
    pub(super) cost: u64,
    /// How many nodes there will be, if the command line says so.
    pub(super) nodes: Option<u64>,
    /// The directories of systemd's units; empty if systemd does not run.
    pub(super) units: Vec<PathBuf>,
}

/// The daemon's answers; `Null` for those that it did not give.
#[derive(Default)]
pub(super) struct Daemon {
    /// Where it was asked.
    pub(super) socket: PathBuf,
    /// Why it did not answer.
    pub(super) silence: Option<String>,
    pub(super) version: Option<String>,
    pub(super) stats: Value,
    pub(super) policies: Value,
    pub(super) peers: Value,
}

impl Patient {
    /// Asks the store and the daemon. Takes some seconds if one of them does not answer.
    pub(super) fn examine(sources: &Sources, cost: u64, nodes: Option<u64>) -> anyhow::Result<Self> {
        let loaded = load(sources).and_then(|loaded| resolve(&loaded).map(|resolved| (loaded, resolved)));
        let mut store = None;
        let mut daemon = Daemon::default();
        if let Ok((loaded, resolved)) = &loaded {
            if let Some(options) = &resolved.store {
                install_crypto();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                store = Some(runtime.block_on(survey(options))?);
            }
            daemon = Daemon::ask(loaded.config.listen.socket.clone());
        }
        let places = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
        // This directory exists exactly while systemd runs (sd_booted(3)).
        let in_charge = std::path::Path::new("/run/systemd/system").is_dir();
        let units = places.iter().filter(|_| in_charge).map(PathBuf::from).collect();
        Ok(Self { loaded, store, daemon, cost, nodes, units })
    }

    /// The configuration, if it has no errors.
    pub(super) fn config(&self) -> Option<&Config> {
        self.loaded.as_ref().ok().map(|(loaded, _)| &loaded.config)
    }

    /// How many nodes there are or will be, as far as is known.
    pub(super) fn nodes(&self) -> u64 {
        let seeds = self.config().and_then(|config| config.fleet.as_ref()).map_or(0, |fleet| fleet.seeds.len());
        let largest = self.daemon.peers["largest"].as_u64().unwrap_or(0);
        self.nodes.unwrap_or_else(|| largest.max(u64::try_from(seeds).unwrap_or(u64::MAX)).max(1))
    }
}

impl Daemon {
    fn ask(socket: PathBuf) -> Self {
        let info = match ask(&socket, &[b"INFO"]) {
            Ok(info) => info,
            Err(silence) => return Self { silence: Some(silence.message), socket, ..Self::default() },
        };
        let info = info.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
        let version = info.lines().find_map(|line| line.strip_prefix("rationd_version:"));
        // A daemon of another version may not know a command.
        let answer = |words: &[&[u8]]| ask_json(&socket, words).unwrap_or(Value::Null);
        Self {
            silence: None,
            version: version.map(|version| version.trim().to_owned()),
            stats: answer(&[b"RATION.STATS"]),
            policies: answer(&[b"RATION.POLICIES"]),
            peers: answer(&[b"RATION.PEERS"]),
            socket,
        }
    }

    /// How many checks it has decided for this reason.
    pub(super) fn decided(&self, reason: &str) -> u64 {
        // Limits on trial deny nobody.
        let policies = self.stats["policies"].as_object().into_iter().flatten();
        let asked = policies.filter(|(name, _)| !name.ends_with(ON_TRIAL));
        let checks = asked.filter_map(|(_, policy)| policy["checks"].as_array()).flatten();
        checks.filter(|check| check["reason"] == reason).filter_map(|check| check["count"].as_u64()).sum()
    }
}

#[cfg(test)]
impl Patient {
    /// For tests: a configuration, and what the store's servers say.
    pub(super) fn of(config: &str, store: Option<Survey>) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), config).expect("it is ours");
        let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
        let loaded = load(&sources).and_then(|loaded| resolve(&loaded).map(|resolved| (loaded, resolved)));
        Self { loaded, store, daemon: Daemon::default(), cost: 1, nodes: None, units: Vec::new() }
    }
}
