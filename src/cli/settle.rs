//! From a configuration to what the daemon is started with: groups, log filters and store options, which
//! only this machine can check.

use std::time::Duration;

use super::log;
use crate::config::{ConfigErrors, Confirm, Loaded, Place, Problem};
use crate::store::redis::{Confirm as StoreConfirm, OptionsError, RedisOptions};

/// What the configuration means on this machine.
#[derive(Debug)]
pub(crate) struct Settled {
    /// `listen.group` as a number.
    pub(crate) group: Option<u32>,
    /// How to reach the shared store; `None`: embedded.
    pub(crate) store: Option<RedisOptions>,
}

/// Checks what needs files and names of this machine.
///
/// # Errors
/// Everything that is wrong.
pub(crate) fn settle(loaded: &Loaded) -> Result<Settled, ConfigErrors> {
    let config = &loaded.config;
    let mut problems = Vec::new();
    let mut complain = |key: &str, message: String| {
        let origin =
            loaded.entries.iter().find(|entry| entry.key == key).map_or("configuration", |entry| &entry.origin);
        problems.push(Problem { place: Place::Named(origin.to_owned()), message, hint: None });
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
    let store = (config.store.url != "memory:").then(|| store_options(loaded));
    if let Some(error) = store.as_ref().and_then(|store| store.validate().err()) {
        let key = match &error {
            OptionsError::Url { .. } => "store.url",
            OptionsError::File { option, .. } | OptionsError::Value { option, .. } => option,
        };
        complain(key, error.to_string());
    }
    if problems.is_empty() { Ok(Settled { group, store }) } else { Err(ConfigErrors(problems)) }
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

/// The number of a group: itself, or as `/etc/group` has it.
fn group_id(group: &str) -> Option<u32> {
    if let Ok(number) = group.parse() {
        return Some(number);
    }
    let list = std::fs::read_to_string("/etc/group").ok()?;
    let line = list.lines().find(|line| line.split(':').next() == Some(group))?;
    line.split(':').nth(2)?.parse().ok()
}
