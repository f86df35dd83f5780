//! Turns a configuration into the options that the daemon is started with: groups, log filters and store options,
//! which only this machine can check.

use std::path::Path;
use std::time::Duration;

use super::log;
use crate::config::{Config, ConfigErrors, Confirm, Loaded, Place, Problem};
use crate::core::key::DigestKey;
use crate::serve::tcp::{RemoteAccess, TcpFiles};
use crate::store::redis::{Confirm as StoreConfirm, OptionsError, RedisOptions};

/// The configuration, as it applies to this machine.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// `listen.group` as a number.
    pub(crate) group: Option<u32>,
    /// The options of the shared store; `None` for the embedded one.
    pub(crate) store: Option<RedisOptions>,
    /// Who may use the TCP address.
    pub(crate) remote: RemoteAccess,
    /// The key of the digests.
    pub(crate) digests: DigestKey,
}

/// Least length of a secret, in characters.
const SECRET: usize = 16;

/// Checks all settings that name files, groups and addresses of this machine.
///
/// # Errors
/// All errors.
pub(crate) fn resolve(loaded: &Loaded) -> Result<Resolved, ConfigErrors> {
    let config = &loaded.config;
    let mut problems = Vec::new();
    let mut complain = |key: &str, message: String| {
        let origin = loaded.entry(key).map_or_else(|| "configuration".to_owned(), |entry| entry.origin);
        problems.push(Problem { place: Place::Named(origin), message, hint: None });
    };
    let group = config.listen.group.as_deref().and_then(|group| {
        let number = group_id(group);
        if number.is_none() {
            complain("listen.group", format!("listen.group is {group:?}: a group of this machine was wanted"));
        }
        number
    });
    if let Err(problem) = log::parse(&config.log.level) {
        complain("log.level", format!("log.level is {:?}: {problem}", config.log.level));
    }
    let digests = digest_key(config);
    if let Err(problem) = &digests {
        complain("store.digest_secret_file", problem.clone());
    }
    let remote = RemoteAccess::read(&TcpFiles::of(&config.listen), &loaded.policies);
    if let Err((key, problem)) = &remote {
        complain(key, problem.clone());
    }
    let store = (config.store.url != "memory:").then(|| store_options(loaded));
    if let Some(error) = store.as_ref().and_then(|store| store.validate().err()) {
        let key = match &error {
            OptionsError::Url { .. } => "store.url",
            OptionsError::File { option, .. } | OptionsError::Value { option, .. } => option,
        };
        complain(key, error.to_string());
    }
    match (digests, remote) {
        (Ok(digests), Ok(remote)) if problems.is_empty() => Ok(Resolved { group, store, remote, digests }),
        _ => Err(ConfigErrors(problems)),
    }
}

/// The key of the digests that a configuration names.
///
/// # Errors
/// What is wrong with its file.
pub(crate) fn digest_key(config: &Config) -> Result<DigestKey, String> {
    config.store.digest_secret_file.as_deref().map_or_else(|| Ok(DigestKey::default()), read_secret)
}

/// The key of the digests, which is derived from the only line of a file.
fn read_secret(path: &Path) -> Result<DigestKey, String> {
    let failure = |problem: String| format!("store.digest_secret_file {}: {problem}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failure(format!("cannot be read: {error}")))?;
    let line = text.trim_end();
    let seen = match (line.lines().count(), line.chars().count()) {
        (0 | 1, length) if length >= SECRET => None,
        (0 | 1, length) => Some(format!("{length} characters")),
        (lines, _) => Some(format!("{lines} lines")),
    };
    if let Some(seen) = seen {
        return Err(failure(format!(
            "has {seen}; one line of at least {SECRET} characters was wanted, the same at all nodes of the store: \
             openssl rand -hex 16 > {}",
            path.display()
        )));
    }
    let hash = ring::digest::digest(&ring::digest::SHA256, line.as_bytes());
    let (half, _) = hash.as_ref().split_first_chunk().expect("SHA-256 has 32 bytes");
    Ok(DigestKey::secret(*half))
}

fn store_options(loaded: &Loaded) -> RedisOptions {
    let store = loaded.config.store.clone();
    RedisOptions {
        url: store.url,
        ca: store.ca,
        cert: store.cert,
        key: store.key,
        password_file: store.password_file,
        timeout: Duration::from_micros(store.timeout.0),
        prefix: store.prefix,
        node: loaded.config.node.name.clone(),
        confirm: match store.confirm {
            Confirm::Auto => StoreConfirm::Auto,
            Confirm::On => StoreConfirm::On,
            Confirm::Off => StoreConfirm::Off,
        },
    }
}

/// The number of a group, given as a number or as a name in `/etc/group`.
fn group_id(group: &str) -> Option<u32> {
    if let Ok(number) = group.parse() {
        return Some(number);
    }
    let list = std::fs::read_to_string("/etc/group").ok()?;
    let line = list.lines().find(|line| line.split(':').next() == Some(group))?;
    line.split(':').nth(2)?.parse().ok()
}
