//! The layers of the configuration: where they are read from, in which order they apply, and the merged result.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use figment::Figment;
use figment::value::{Dict, Value};

use super::defaults::{default_node_name, default_socket};
use super::document::{Document, Role};
use super::layer::{Layer, contains, place_of};
use super::overrides::{environment, insert, override_layer};
use super::problem::{ConfigErrors, Place, Problem};
use super::schema::{DESCRIPTORS, FLEET, FLEET_NEEDS, KEYS, SAMPLE_POLICY, keys_of};
use super::show::{self, Entry};
use super::tree::{Config, Listen};
use super::value::Seen;
use crate::core::policy::{PolicyError, PolicySet};
use crate::core::route::{RouteError, RouteSet};

/// The file that is read unless another one is named.
pub const DEFAULT_FILE: &str = "/etc/rationd/rationd.toml";

/// A value that is set by a flag of the command line.
#[derive(Clone, Debug)]
pub struct Override {
    /// The flag's name, like `--socket`.
    pub origin: String,
    /// The key, like `listen.socket`.
    pub key: &'static str,
    /// Its value, as text.
    pub text: String,
}

/// The places from which a configuration is read. They are kept, so that a reload reads the same ones.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A file that must exist. If it is `None`, [`DEFAULT_FILE`] is read if it exists.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Names of variables with our prefix that are no keys, because the command line reads them itself.
    pub variables: Vec<String>,
    /// Flags, which override everything else.
    pub flags: Vec<Override>,
    /// Makes the default of `node.name` unique. It is drawn at random once per process, so that a reload does not
    /// change the name.
    pub suffix: u32,
}

/// A configuration without errors, and where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Its policies, compiled.
    pub policies: PolicySet,
    /// The files that were read, in this order.
    pub files: Vec<PathBuf>,
    layers: Arc<[Layer]>,
}

impl Loaded {
    /// Each key with its value and origin, for `config show`.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = self.settings();
        entries.extend(show::policies_and_routes(&self.layers));
        entries
    }

    /// The keys outside of the policies and routes, which may be many.
    #[must_use]
    pub fn settings(&self) -> Vec<Entry> {
        show::settings(&self.layers)
    }

    /// The setting of this name; `None` if there is none.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<Entry> {
        self.settings().into_iter().find(|entry| entry.key == key)
    }
}

/// Reads, checks and merges all layers.
///
/// # Errors
/// All errors in all layers.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigErrors> {
    let mut problems = Vec::new();
    let documents = read_documents(sources.file.as_deref(), &mut problems);
    find_duplicates(&documents, &mut problems);
    let no_file = documents.is_empty();
    let files = documents.iter().map(|document| document.path.clone()).collect();
    let broken_routes = documents.iter().any(|document| document.broken_routes);
    let broken: BTreeSet<String> = documents.iter().flat_map(|document| document.broken.clone()).collect();

    let mut layers = vec![defaults(sources)];
    layers.extend(documents.into_iter().map(|mut document| {
        problems.append(&mut document.problems);
        let dict = std::mem::take(&mut document.dict);
        Layer { name: document.path.display().to_string(), dict, document: Some(document) }
    }));
    layers.extend(environment(&sources.environment, &sources.variables, &mut problems));
    for flag in &sources.flags {
        let path: Vec<_> = flag.key.split('.').map(str::to_owned).collect();
        layers.extend(override_layer(flag.origin.clone(), &path, &flag.text, &mut problems));
    }
    if no_file && !layers.iter().any(|layer| layer.dict.contains_key("policy")) {
        layers.insert(1, sample_policy());
    }

    complete_fleet(&mut layers, &mut problems);

    let figment = layers.iter().fold(Figment::new(), |figment, layer| figment.merge(layer));
    let config: Config = match figment.extract() {
        Ok(config) => config,
        Err(error) => {
            if problems.is_empty() {
                problems.extend(error.into_iter().map(|error| unexpected(&error)));
            }
            return Err(ConfigErrors::in_order(problems));
        }
    };
    check_together(&config, &layers, &mut problems);
    let specs = config.policy_specs();
    let problem_of = |name: &str| match specs.get(name) {
        None if broken.contains(name) => None,
        None => Some(format!("there is no policy {name:?}")),
        Some(spec) => spec.is_concurrent().then(|| {
            format!("policy {name:?} limits what is in flight: Envoy says when a request begins, and not when it ends")
        }),
    };
    let routes = RouteSet::compile(&config.route_specs(), problem_of).unwrap_or_else(|errors| {
        let errors = errors.iter().filter(|_| !broken_routes);
        problems.extend(errors.map(|error| locate_route(error, &layers)));
        RouteSet::default()
    });
    match PolicySet::compile(&specs) {
        Ok(policies) if problems.is_empty() => {
            let policies = policies.with_routes(routes);
            Ok(Loaded { config, policies, files, layers: layers.into() })
        }
        compiled => {
            let errors = compiled.err().unwrap_or_default();
            problems.extend(
                errors.iter().filter(|error| !broken.contains(&error.policy)).map(|error| locate(error, &layers)),
            );
            Err(ConfigErrors::in_order(problems))
        }
    }
}

fn read_documents(file: Option<&Path>, problems: &mut Vec<Problem>) -> Vec<Document> {
    let main = file.unwrap_or(Path::new(DEFAULT_FILE));
    let mut documents = Vec::new();
    let mut read = |path: &Path, role, may_lack: bool, problems: &mut Vec<Problem>| match Document::read(path, role) {
        Ok(document) => documents.push(document),
        Err(error) if may_lack && error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            problems.push(Problem::named(path.display().to_string(), format!("cannot be read: {error}")));
        }
    };
    read(main, Role::Whole, file.is_none(), problems);
    let directory = main.parent().unwrap_or(Path::new("")).join("policies.d");
    match std::fs::read_dir(&directory) {
        Ok(list) => {
            let mut paths: Vec<_> = list.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
            paths.sort();
            for path in paths {
                read(&path, Role::PoliciesOnly, false, problems);
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            problems.push(Problem::named(directory.display().to_string(), format!("cannot be read: {error}")));
        }
    }
    documents
}

/// Reports policies that are in several files.
fn find_duplicates(documents: &[Document], problems: &mut Vec<Problem>) {
    let mut first: BTreeMap<&str, Place> = BTreeMap::new();
    for document in documents {
        let Some(Value::Dict(_, policies)) = document.dict.get("policy") else { continue };
        for name in policies.keys() {
            let Some(place) = document.place(&["policy".to_owned(), name.clone()]) else { continue };
            if let Some(earlier) = first.get(name.as_str()) {
                let message = format!("policy {name:?} is defined twice: here and at {earlier}");
                problems.push(Problem { place, message, hint: Some("rename or remove one of them".into()) });
            } else {
                first.insert(name, place);
            }
        }
    }
}

fn defaults(sources: &Sources) -> Layer {
    let mut dict = Dict::new();
    for key in KEYS.iter().filter(|key| key.section != FLEET) {
        let text = match (key.section, key.name) {
            ("listen", "socket") => Some(default_socket().to_string_lossy().into_owned()),
            ("node", "name") => Some(default_node_name(sources.suffix)),
            _ => key.default.map(str::to_owned),
        };
        if let Some(value) = text.and_then(|text| key.kind.accept(&Seen::from_text(key.kind, &text)).ok()) {
            insert(&mut dict, &[key.section.to_owned(), key.name.to_owned()], value);
        }
    }
    Layer { name: "default".into(), dict, document: None }
}

/// Adds the defaults of a fleet if any key of it is set. A fleet without a required key is reported and left out, so
/// that the rest can still be checked.
fn complete_fleet(layers: &mut [Layer], problems: &mut Vec<Problem>) {
    if !layers.iter().any(|layer| layer.dict.contains_key(FLEET)) {
        return;
    }
    let place = place_of(&[FLEET.to_owned()], layers);
    let mut complete = true;
    for (name, hint) in FLEET_NEEDS {
        let path = [FLEET.to_owned(), (*name).to_owned()];
        if layers.iter().any(|layer| contains(&layer.dict, &path)) {
            continue;
        }
        complete = false;
        // A required key that is set, but wrong, was reported before.
        let key = path.join(".");
        if !problems.iter().any(|problem| problem.message.starts_with(&format!("{key} "))) {
            let message = format!("{key} is not set: a fleet cannot be joined without it");
            problems.push(Problem { place: place.clone(), message, hint: Some((*hint).to_owned()) });
        }
    }
    if !complete {
        layers.iter_mut().for_each(|layer| drop(layer.dict.remove(FLEET)));
        return;
    }
    for key in keys_of(FLEET) {
        let value = key.default.and_then(|text| key.kind.accept(&Seen::from_text(key.kind, text)).ok());
        if let (Some(value), Some(defaults)) = (value, layers.first_mut()) {
            insert(&mut defaults.dict, &[FLEET.to_owned(), key.name.to_owned()], value);
        }
    }
}

fn sample_policy() -> Layer {
    let (name, limit) = SAMPLE_POLICY;
    let mut dict = Dict::new();
    insert(&mut dict, &["policy".into(), name.into(), "limits".into()], Value::from(vec![limit]));
    Layer { name: "default".into(), dict, document: None }
}

/// Reports keys that need each other or exclude each other.
fn check_together(config: &Config, layers: &[Layer], problems: &mut Vec<Problem>) {
    let store = &config.store;
    let mut complain = |key: &str, message: &str, hint: &str| {
        let path: Vec<_> = key.split('.').map(str::to_owned).collect();
        problems.push(Problem { place: place_of(&path, layers), message: message.into(), hint: Some(hint.into()) });
    };
    match (&store.cert, &store.key) {
        (Some(_), None) => complain("store.cert", "store.cert without store.key", "set both or neither"),
        (None, Some(_)) => complain("store.key", "store.key without store.cert", "set both or neither"),
        _ => {}
    }
    check_tcp(&config.listen, &mut complain);
    let tls = store.url.starts_with("rediss://") || store.url.starts_with("rediss-cluster://");
    for (key, set) in [("store.ca", &store.ca), ("store.cert", &store.cert)] {
        if set.is_some() && !tls {
            complain(key, &format!("{key} is set, but store.url has no TLS"), "write rediss:// or rediss-cluster://");
        }
    }
}

/// Reports what the TCP address lacks. An address that other hosts reach needs TLS, and users or client certificates.
fn check_tcp(listen: &Listen, complain: &mut impl FnMut(&str, &str, &str)) {
    let files = [
        ("listen.tcp_cert", &listen.tcp_cert),
        ("listen.tcp_key", &listen.tcp_key),
        ("listen.tcp_ca", &listen.tcp_ca),
        ("listen.tcp_users", &listen.tcp_users),
    ];
    let Some(address) = listen.tcp else {
        for (key, _) in files.iter().filter(|(_, file)| file.is_some()) {
            complain(key, &format!("{key} is set, but there is no listen.tcp"), "set listen.tcp, or leave it out");
        }
        return;
    };
    match (&listen.tcp_cert, &listen.tcp_key) {
        (Some(_), None) => complain("listen.tcp_cert", "listen.tcp_cert without listen.tcp_key", "set both or neither"),
        (None, Some(_)) => complain("listen.tcp_key", "listen.tcp_key without listen.tcp_cert", "set both or neither"),
        (None, None) if listen.tcp_ca.is_some() => complain(
            "listen.tcp_ca",
            "listen.tcp_ca without listen.tcp_cert: only TLS has certificates",
            "set listen.tcp_cert and listen.tcp_key",
        ),
        (None, None) if !address.ip().is_loopback() => complain(
            "listen.tcp",
            &format!("listen.tcp is {address}, which other hosts reach, without TLS"),
            "set listen.tcp_cert and listen.tcp_key, or listen on 127.0.0.1",
        ),
        _ => {}
    }
    if !address.ip().is_loopback() && listen.tcp_ca.is_none() && listen.tcp_users.is_none() {
        complain(
            "listen.tcp",
            &format!("listen.tcp is {address}, which other hosts reach, and anybody there could spend"),
            "set listen.tcp_users (passwords) or listen.tcp_ca (certificates), or listen on 127.0.0.1",
        );
    }
}

/// The place of a policy's error: the limit, the override or the policy.
fn locate(error: &PolicyError, layers: &[Layer]) -> Problem {
    let mut path = vec!["policy".to_owned(), error.policy.clone()];
    if let Some(key) = &error.override_key {
        path.extend(["override".to_owned(), key.clone()]);
    }
    if let Some(index) = error.limit {
        path.extend(["limits".to_owned(), index.to_string()]);
    }
    Problem { place: place_of(&path, layers), message: error.to_string(), hint: None }
}

/// The place of a route's error: the element, the key or the route.
fn locate_route(error: &RouteError, layers: &[Layer]) -> Problem {
    let (key, element) = error.part;
    let mut path = vec![DESCRIPTORS.to_owned(), error.domain.clone(), error.route.to_string()];
    let route = place_of(&path, layers);
    path.push(key.to_owned());
    path.extend(element.map(|index| index.to_string()));
    let place = if key == "match" && element.is_none() { route } else { place_of(&path, layers) };
    Problem { place, message: error.to_string(), hint: None }
}

fn unexpected(error: &figment::Error) -> Problem {
    let origin = error.metadata.as_ref().map_or("configuration", |metadata| metadata.name.as_ref());
    Problem::named(origin.to_owned(), error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::super::problem::counted::LOOKED_AT;
    use super::*;

    /// Each policy asks for the places of its keys. If each of them searched the text anew, the time would grow with
    /// the square of the policies.
    #[test]
    fn the_lines_of_a_file_are_counted_once_however_many_policies_it_has() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("rationd.toml");
        for policies in [1, 500] {
            let mut text = String::new();
            for index in 0..policies {
                writeln!(text, "[policy.p{index}]\nlimits = [\"1/1s\"]\non_store_loss = \"share\"").expect("a String");
            }
            std::fs::write(&file, &text).expect("a file");
            let before = LOOKED_AT.get();
            let loaded = load(&Sources { file: Some(file.clone()), ..Sources::default() }).expect("it is right");
            assert_eq!(loaded.policies.iter().count(), policies);
            assert_eq!(LOOKED_AT.get() - before, text.len(), "with {policies} policies");
        }
    }
}
