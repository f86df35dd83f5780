//! Which policy limits a descriptor: each domain has an ordered list of routes, of which the first that matches is
//! used.
//!
//! A descriptor is a list of keys with values, as Envoy's Rate Limit Service sends them. A route says which
//! descriptors it matches, which policy limits them, and which of their values form the policy's key. Knows no
//! protocol. All routes are compiled or none, together with the policies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The last pattern of a route may be this, which matches any further entries, or none.
pub const REST: &str = "...";

/// Separates the values of a key. In a value, it and the escape character are escaped.
const PARTING: char = '|';
const ESCAPE: char = '\\';

/// One entry of a descriptor: its key and its value.
pub type Entry<'a> = (&'a str, &'a str);

/// A route as the configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSpec {
    /// One pattern for each entry: `key`, `key=value`, or a value with `*` in it; at the end there may be [`REST`].
    pub patterns: Vec<String>,
    /// The policy; `None` means that the descriptor is not limited, and later routes are ignored.
    pub policy: Option<String>,
    /// Keys of the entries whose values form the policy's key; `None` for those without a fixed value in the
    /// patterns, or for all when each has a fixed value.
    pub key: Option<Vec<String>>,
    /// Policies that do not count in a request to which this route applies.
    pub replaces: Vec<String>,
}

/// An error in a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteError {
    /// The domain.
    pub domain: String,
    /// The index of the route.
    pub route: usize,
    /// The key of the route's table, and the index in its list.
    pub part: (&'static str, Option<usize>),
    /// What is wrong, and what was expected.
    pub problem: String,
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptors.{}.{}: {}", self.domain, self.route, self.problem)
    }
}

impl std::error::Error for RouteError {}

/// The routes of all domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSet {
    domains: BTreeMap<String, Domain>,
}

/// The routes of one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    routes: Vec<Route>,
    /// Routes by the key and value of their first pattern if that matches only one value, and by its key otherwise.
    exact: BTreeMap<String, BTreeMap<String, Vec<usize>>>,
    open: BTreeMap<String, Vec<usize>>,
    /// Routes that begin with [`REST`].
    any: Vec<usize>,
}

/// What happens with the descriptors that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    patterns: Box<[Pattern]>,
    has_rest: bool,
    /// The policy's name; `None` when they are not limited.
    pub policy: Option<Arc<str>>,
    /// Names of policies that do not count together with it.
    pub replaces: Box<[Arc<str>]>,
    /// Indexes of the entries whose values form the key.
    key: Box<[usize]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    key: String,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Any,
    Exact(String),
    /// Two parts or more, with anything between them.
    Parts(Box<[String]>),
}

impl RouteSet {
    /// Compiles all routes, or reports all errors in them. `problem_of` tells why a policy of that name cannot be
    /// used by a route.
    ///
    /// # Errors
    /// All errors in all routes.
    pub fn compile(
        specs: &BTreeMap<String, Vec<RouteSpec>>,
        problem_of: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Vec<RouteError>> {
        let mut errors = Vec::new();
        let mut domains = BTreeMap::new();
        for (name, specs) in specs {
            let mut domain = Domain::default();
            for (index, spec) in specs.iter().enumerate() {
                let mut problem = |part, problem| {
                    errors.push(RouteError { domain: name.clone(), route: index, part, problem });
                };
                domain.push(compile(spec, &problem_of, &mut problem));
            }
            domains.insert(name.clone(), domain);
        }
        if errors.is_empty() { Ok(Self { domains }) } else { Err(errors) }
    }

    /// The routes of a domain; `None` when it has none.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// The names of all domains.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(String::as_str)
    }
}

impl Domain {
    fn push(&mut self, route: Route) {
        let index = self.routes.len();
        match route.patterns.first() {
            None => self.any.push(index),
            Some(Pattern { key, value: Value::Exact(value) }) => {
                self.exact.entry(key.clone()).or_default().entry(value.clone()).or_default().push(index);
            }
            Some(Pattern { key, .. }) => self.open.entry(key.clone()).or_default().push(index),
        }
        self.routes.push(route);
    }

    /// The first route that matches a descriptor with these entries.
    #[must_use]
    pub fn find(&self, entries: &[Entry<'_>]) -> Option<&Route> {
        let none: &[usize] = &[];
        let (exact, open) = match entries.first() {
            None => (none, none),
            Some((key, value)) => (
                self.exact.get(*key).and_then(|values| values.get(*value)).map_or(none, Vec::as_slice),
                self.open.get(*key).map_or(none, Vec::as_slice),
            ),
        };
        let first = |list: &[usize]| list.iter().copied().find(|&index| self.routes[index].fits(entries));
        let found = [first(exact), first(open), first(&self.any)];
        found.into_iter().flatten().min().map(|index| &self.routes[index])
    }
}

impl Route {
    fn fits(&self, entries: &[Entry<'_>]) -> bool {
        let length =
            if self.has_rest { entries.len() >= self.patterns.len() } else { entries.len() == self.patterns.len() };
        length && self.patterns.iter().zip(entries).all(|(pattern, entry)| pattern.fits(entry))
    }

    /// The policy's key for a descriptor with these entries: its values, separated by `|`. A `|` or `\` within a
    /// value is preceded by `\`.
    #[must_use]
    pub fn key(&self, entries: &[Entry<'_>]) -> Box<[u8]> {
        let mut key = String::new();
        for (place, &index) in self.key.iter().enumerate() {
            if place > 0 {
                key.push(PARTING);
            }
            push_escaped(&mut key, entries.get(index).map_or("", |(_, value)| value));
        }
        key.into_bytes().into()
    }
}

/// A key that is different for all descriptors of all domains.
#[must_use]
pub fn whole_key(domain: &str, entries: &[Entry<'_>]) -> Box<[u8]> {
    let mut key = String::new();
    push_escaped(&mut key, domain);
    for part in entries.iter().flat_map(|(key, value)| [key, value]) {
        key.push(PARTING);
        push_escaped(&mut key, part);
    }
    key.into_bytes().into()
}

fn push_escaped(key: &mut String, value: &str) {
    for c in value.chars() {
        if c == PARTING || c == ESCAPE {
            key.push(ESCAPE);
        }
        key.push(c);
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').unwrap_or((text, "*"));
        if key.is_empty() {
            return Err(format!("{text:?} has no key: key, key=value or key=prefix* was wanted"));
        }
        if key.contains('*') {
            return Err(format!("{text:?} has a * in its key: it may stand in a value only"));
        }
        let mut parts = vec![String::new()];
        let mut chars = value.chars();
        while let Some(c) = chars.next() {
            match c {
                '*' => parts.push(String::new()),
                ESCAPE => match chars.next() {
                    Some(c @ ('*' | ESCAPE)) => parts.last_mut().expect("it begins with one").push(c),
                    _ => return Err(format!("{text:?}: \\* or \\\\ was wanted where \\ stands")),
                },
                c => parts.last_mut().expect("it begins with one").push(c),
            }
        }
        let value = match parts.len() {
            1 => Value::Exact(parts.remove(0)),
            _ if parts.iter().all(String::is_empty) => Value::Any,
            _ => Value::Parts(parts.into()),
        };
        Ok(Self { key: key.to_owned(), value })
    }

    fn fits(&self, (key, value): &Entry<'_>) -> bool {
        self.key == *key
            && match &self.value {
                Value::Any => true,
                Value::Exact(wanted) => wanted == value,
                Value::Parts(parts) => parts_fit(parts, value),
            }
    }
}

/// Whether `value` begins with the first part, ends with the last, and has the others in between, in order.
fn parts_fit(parts: &[String], value: &str) -> bool {
    let [first, middle @ .., last] = parts else { return false };
    let Some(rest) = value.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str())) else {
        return false;
    };
    let mut rest = rest;
    middle.iter().all(|part| match rest.find(part.as_str()) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

fn compile(
    spec: &RouteSpec,
    problem_of: impl Fn(&str) -> Option<String>,
    problem: &mut dyn FnMut((&'static str, Option<usize>), String),
) -> Route {
    let mut patterns = Vec::new();
    let last = spec.patterns.len().saturating_sub(1);
    let has_rest = spec.patterns.last().is_some_and(|text| text == REST);
    for (index, text) in spec.patterns.iter().enumerate() {
        if text == REST {
            if index != last {
                problem(("match", Some(index)), format!("{REST:?} stands for all further entries: it must be last"));
            }
            continue;
        }
        match Pattern::parse(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(text) => problem(("match", Some(index)), text),
        }
    }
    if spec.patterns.is_empty() {
        problem(("match", None), "`match` is empty: one pattern for each entry was wanted".into());
    }
    let mut known = |part, names: &mut dyn Iterator<Item = (Option<usize>, &String)>| {
        for (index, name) in names {
            if let Some(text) = problem_of(name) {
                problem((part, index), text);
            }
        }
    };
    known("policy", &mut spec.policy.iter().map(|name| (None, name)));
    known("replaces", &mut spec.replaces.iter().enumerate().map(|(index, name)| (Some(index), name)));
    if spec.policy.is_none() && spec.key.is_some() {
        problem(("key", None), "`key` without `policy`: what is not limited has no key".into());
    }
    let key = match &spec.key {
        None => {
            let open = |index: &usize| !matches!(patterns[*index].value, Value::Exact(_));
            let open: Vec<usize> = (0..patterns.len()).filter(open).collect();
            if open.is_empty() { (0..patterns.len()).collect() } else { open }
        }
        Some(names) => {
            for (index, name) in names.iter().enumerate() {
                if !patterns.iter().any(|pattern| pattern.key == *name) {
                    problem(("key", Some(index)), format!("{name:?} is the key of no entry in `match`"));
                }
            }
            (0..patterns.len()).filter(|&index| names.contains(&patterns[index].key)).collect()
        }
    };
    Route {
        patterns: patterns.into(),
        has_rest,
        policy: spec.policy.as_deref().map(Arc::from),
        replaces: spec.replaces.iter().map(|name| Arc::from(name.as_str())).collect(),
        key: key.into(),
    }
}

#[cfg(test)]
mod tests;
