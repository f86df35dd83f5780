//! Values from the environment and from flags, each of which is a layer of its own.
//!
//! A variable with our prefix and an unknown name is an error. If it were ignored, a slip in its name would start a
//! daemon that counts in another store than it was meant to.

use std::ffi::OsString;

use figment::value::{Dict, Value};

use super::layer::Layer;
use super::problem::{Place, Problem, did_you_mean, nearest};
use super::schema::{DESCRIPTORS, KEYS, POLICY, keys_of, sections};
use super::value::{Kind, Seen};

const PREFIX: &str = "RATIOND_";

/// The layers of the environment's variables. A variable with `__` is a key. Others are `flags`, or set by a platform
/// that happens to use our prefix.
pub(crate) fn environment(
    variables: &[(OsString, OsString)],
    flags: &[String],
    problems: &mut Vec<Problem>,
) -> Vec<Layer> {
    let mut layers = Vec::new();
    for (name, text) in variables {
        let shown = name.to_string_lossy();
        let Some(rest) = shown.strip_prefix(PREFIX) else { continue };
        let Some(name) = name.to_str().filter(|_| rest.contains("__")) else {
            if !flags.iter().any(|flag| *flag == shown) && !is_a_platforms(rest, text.to_str().unwrap_or("")) {
                let hint = did_you_mean(near_variable(rest, flags).as_deref());
                problems.push(Problem::named(&*shown, "no such variable").with_hint(hint));
            }
            continue;
        };
        let path: Vec<_> = rest.split("__").map(str::to_lowercase).collect();
        match text.to_str() {
            Some(text) => layers.extend(override_layer(name.to_owned(), &path, text, problems)),
            None => problems.push(Problem::named(name, "not UTF-8")),
        }
    }
    layers
}

/// Whether a platform has set this variable for a service named like this program, or with a name that begins so.
/// Kubernetes sets such variables to tell each container the addresses of the services in its namespace.
fn is_a_platforms(rest: &str, value: &str) -> bool {
    let is_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let of_port = || {
        let (_, port) = rest.split_once("PORT_")?;
        let (number, rest) = port.split_once('_')?;
        let protocol = rest.split('_').next()?;
        (number.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].contains(&protocol)).then_some(())
    };
    rest.ends_with("SERVICE_HOST")
        || rest.contains("SERVICE_PORT")
        || (rest.ends_with("PORT") && is_address)
        || of_port().is_some()
}

/// The variable that was probably meant: that of a flag, or of a key.
fn near_variable(rest: &str, flags: &[String]) -> Option<String> {
    let policy = rest.strip_prefix("POLICY_").and_then(|name_and_key| {
        let split = |(key, _): &(&str, Kind)| {
            let key = key.to_uppercase();
            let name = name_and_key.strip_suffix(&*key)?.trim_matches('_');
            (!name.is_empty()).then(|| format!("POLICY__{name}__{key}"))
        };
        POLICY.iter().find_map(split)
    });
    let flags = flags.iter().filter_map(|flag| flag.strip_prefix(PREFIX)).map(str::to_owned);
    let keys = KEYS.iter().map(|key| format!("{}__{}", key.section, key.name).to_uppercase());
    let known: Vec<String> = flags.chain(keys).collect();
    let near = policy.or_else(|| nearest(rest, known.iter().map(String::as_str)).map(str::to_owned));
    near.map(|rest| format!("{PREFIX}{rest}"))
}

/// A layer with one value from the environment or a flag.
pub(crate) fn override_layer(
    origin: String,
    path: &[String],
    text: &str,
    problems: &mut Vec<Problem>,
) -> Option<Layer> {
    let kind = match kind_of(path) {
        Ok(kind) => kind,
        Err(problem) => {
            problems.push(Problem { place: Place::Named(origin), ..problem });
            return None;
        }
    };
    let value = match kind.accept(&Seen::from_text(kind, text)) {
        Ok(value) => value,
        Err(faults) => {
            problems.extend(faults.into_iter().map(|fault| {
                let message = fault.message(&path.join("."));
                Problem::named(origin.clone(), message).with_hint(fault.hint)
            }));
            return None;
        }
    };
    let mut dict = Dict::new();
    insert(&mut dict, path, value);
    Some(Layer { name: origin, dict, document: None })
}

/// The kind of the key at `path`; or an error, without a place.
fn kind_of(path: &[String]) -> Result<Kind, Problem> {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let (known, seen): (Vec<(&str, Kind)>, &str) = match parts[..] {
        ["policy", name, key] if !name.is_empty() => (POLICY.to_vec(), key),
        [DESCRIPTORS, ..] => return Err(Problem::named("", "[descriptors] can be set in the main file only")),
        [section, key] => {
            let known: Vec<_> = keys_of(section).map(|key| (key.name, key.kind)).collect();
            if known.is_empty() {
                let hint = did_you_mean(nearest(section, sections()));
                return Err(Problem::named("", format!("unknown section `{section}`")).with_hint(hint));
            }
            (known, key)
        }
        _ => return Err(Problem::named("", "names no key: RATIOND_SECTION__KEY was wanted")),
    };
    known.iter().find(|(key, _)| *key == seen).map(|(_, kind)| *kind).ok_or_else(|| {
        let hint = did_you_mean(nearest(seen, known.iter().map(|(key, _)| *key)));
        Problem::named("", format!("unknown key `{seen}` in [{}]", parts[..parts.len() - 1].join("."))).with_hint(hint)
    })
}

/// Inserts `value` at `path`, and creates the tables that are missing.
pub(crate) fn insert(dict: &mut Dict, path: &[String], value: Value) {
    let [first, rest @ ..] = path else { return };
    if rest.is_empty() {
        dict.insert(first.clone(), value);
        return;
    }
    let below = dict.entry(first.clone()).or_insert_with(|| Value::from(Dict::new()));
    if let Value::Dict(_, below) = below {
        insert(below, rest, value);
    }
}
