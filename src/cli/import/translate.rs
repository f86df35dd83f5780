//! Translates the tree of envoyproxy/ratelimit into policies and routes, as TOML.
//!
//! There, a descriptor walks down a tree: at each entry it takes the branch with its exact value, else the first
//! wildcard that matches, else the key without a value, and never turns back. Here a descriptor takes the first route
//! that matches. So routes are written in that order; and if a branch takes descriptors that a later branch would
//! also match, a route without a policy follows it, which keeps them from the later one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::flaw::Flaw;
use super::ratelimit::{self, Descriptor, Flaws, Limit, Root};
use super::yaml;

/// The translated file.
#[derive(Debug)]
pub(super) struct Fragment {
    pub(super) domain: String,
    pub(super) toml: String,
    /// Parts of the file that cannot be translated.
    pub(super) warnings: Vec<Flaw>,
}

/// Translates a file called `name` into TOML.
pub(super) fn fragment(text: &str, name: &str) -> Result<Fragment, Vec<Flaw>> {
    let mut flaws = Flaws::default();
    let node = yaml::parse(text).map_err(|flaw| vec![flaw])?;
    let root = ratelimit::read(&node, &mut flaws);
    let mut writer = Writer { named: named(&root), root: &root, out: String::new(), flaws };
    let _ = writeln!(
        writer.out,
        "# Domain {} of {}, by `rationd config import-envoy`.",
        quoted(&root.domain),
        one_line(name)
    );
    let _ = writeln!(writer.out, "# Append it to the configuration, where listen.envoy must be set.");
    writer.branch(&root.descriptors, &mut Vec::new());
    let Writer { out, mut flaws, .. } = writer;
    flaws.warnings.sort_by_key(|flaw| flaw.at.start);
    if !flaws.errors.is_empty() {
        return Err(flaws.errors);
    }
    Ok(Fragment { domain: root.domain, toml: out, warnings: flaws.warnings })
}

/// Policies by the names under which other limits can replace them.
fn named(root: &Root) -> BTreeMap<String, Vec<String>> {
    fn visit<'d>(
        list: &'d [Descriptor],
        path: &mut Vec<&'d Descriptor>,
        visited: &mut dyn FnMut(&[&Descriptor], &Limit),
    ) {
        for descriptor in list {
            path.push(descriptor);
            if let Some(limit) = &descriptor.limit {
                visited(path, limit);
            }
            visit(&descriptor.descriptors, path, visited);
            path.pop();
        }
    }
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    visit(&root.descriptors, &mut Vec::new(), &mut |path, limit| {
        if let Some(name) = &limit.name {
            names.entry(name.clone()).or_default().push(policy_name(&root.domain, path));
        }
    });
    names
}

struct Writer<'r> {
    root: &'r Root,
    named: BTreeMap<String, Vec<String>>,
    out: String,
    flaws: Flaws,
}

impl<'r> Writer<'r> {
    fn branch(&mut self, list: &'r [Descriptor], path: &mut Vec<&'r Descriptor>) {
        let mut ordered: Vec<&Descriptor> = list.iter().collect();
        ordered.sort_by_key(|descriptor| match &descriptor.value {
            Some(value) if !value.contains('*') => 0,
            Some(_) => 1,
            None => 2,
        });
        for (index, descriptor) in ordered.iter().enumerate() {
            path.push(descriptor);
            if let Some(limit) = &descriptor.limit {
                self.limit(path, limit);
            }
            self.branch(&descriptor.descriptors, path);
            if ordered[index + 1..].iter().any(|later| takes_more(descriptor, later)) {
                let mut patterns: Vec<String> = path.iter().map(|descriptor| pattern(descriptor)).collect();
                patterns.push("...".into());
                let _ = writeln!(
                    self.out,
                    "\n[[descriptors.{}]]\nmatch = {}",
                    quoted(&self.root.domain),
                    list_of(&patterns)
                );
            }
            path.pop();
        }
    }

    fn limit(&mut self, path: &[&Descriptor], limit: &Limit) {
        let (domain, policy) = (quoted(&self.root.domain), policy_name(&self.root.domain, path));
        let policy = quoted(&policy);
        let _ = writeln!(self.out, "\n[policy.{policy}]");
        // Only the key that this route makes is blocked, so it is no policy that blocks every key.
        let blocks = matches!(limit.rate, Some((0, _)));
        match limit.rate {
            Some((0, _)) | None => drop(writeln!(self.out, "unlimited = true")),
            Some((count, period)) => drop(writeln!(self.out, "limits = [\"{count}/{period} fixed\"]")),
        }
        if path.last().is_some_and(|descriptor| descriptor.shadow) {
            let _ = writeln!(self.out, "shadow = true");
        }
        if blocks {
            let _ = writeln!(self.out, "[policy.{policy}.override.\"\"]\nblocked = true");
        }
        let patterns: Vec<String> = path.iter().map(|descriptor| pattern(descriptor)).collect();
        let _ = writeln!(self.out, "\n[[descriptors.{domain}]]\nmatch = {}\npolicy = {policy}", list_of(&patterns));
        if blocks {
            let _ = writeln!(self.out, "key = []");
        } else if path.iter().any(|descriptor| descriptor.shares) {
            let key = self.shared_key(path);
            let _ = writeln!(self.out, "key = {}", list_of(&key));
        }
        let mut replaced = Vec::new();
        for (at, name) in &limit.replaces {
            match self.named.get(name) {
                Some(policies) => replaced.extend(policies.iter().cloned()),
                None => {
                    let message = format!("no rate_limit has the name {name:?}: this is left out");
                    self.flaws.warnings.push(Flaw::new(at, message));
                }
            }
        }
        if !replaced.is_empty() {
            let _ = writeln!(self.out, "replaces = {}", list_of(&replaced));
        }
    }

    /// The keys of the entries that have a counter for each value: those without a fixed value, except for wildcards
    /// that share a counter.
    fn shared_key(&mut self, path: &[&Descriptor]) -> Vec<String> {
        let parts = |descriptor: &&&Descriptor| {
            !descriptor.shares && descriptor.value.as_ref().is_none_or(|value| value.contains('*'))
        };
        let key: Vec<String> = path.iter().filter(parts).map(|descriptor| descriptor.key.clone()).collect();
        for descriptor in path.iter().filter(|descriptor| descriptor.shares && key.contains(&descriptor.key)) {
            let message = format!("{:?} shares its counter here and parts it there: a route cannot", descriptor.key);
            self.flaws.errors.push(Flaw::new(&descriptor.at, message));
        }
        key
    }
}

/// Whether `later`, which is tried after `earlier`, would take descriptors that only `earlier` may take.
fn takes_more(earlier: &Descriptor, later: &Descriptor) -> bool {
    let overlaps = earlier.key == later.key
        && match (&earlier.value, &later.value) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(one), Some(other)) => other.contains('*') && (one.contains('*') || fits(other, one)),
        };
    let more = !later.descriptors.is_empty() || (later.limit.is_some() && earlier.limit.is_none());
    overlaps && more
}

/// Whether a value without `*` matches a wildcard.
fn fits(wildcard: &str, value: &str) -> bool {
    let parts: Vec<&str> = wildcard.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else { return false };
    let Some(mut rest) = value.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    middle.iter().all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// The descriptor in the syntax of routes.
fn pattern(descriptor: &Descriptor) -> String {
    match &descriptor.value {
        Some(value) => format!("{}={}", descriptor.key, value.replace('\\', "\\\\")),
        None if descriptor.key == "..." => format!("{}=*", descriptor.key),
        None => descriptor.key.clone(),
    }
}

/// The name of the policy of one limit: `DOMAIN|key=value|key`.
fn policy_name(domain: &str, path: &[&Descriptor]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|");
    let mut name = escaped(domain);
    for Descriptor { key, value, .. } in path {
        let _ = write!(name, "|{}", escaped(key));
        if let Some(value) = value {
            let _ = write!(name, "={}", escaped(value));
        }
    }
    name
}

fn list_of(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// A text in TOML's double quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => drop(write!(quoted, "\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn one_line(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).collect()
}
