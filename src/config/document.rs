//! One TOML file: its values, their places, and everything that is wrong with the file by itself.
//!
//! Values that are wrong are reported and left out, so that the other layers can still be checked.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Lines, Place, Problem, did_you_mean, nearest};
use super::schema::{DESCRIPTORS, KEYS, OVERRIDE, POLICY, keys_of, sections};
use super::value::{Kind, Seen};

/// Largest file that is read.
const MAX_FILE: u64 = 8 << 20;

/// Whether the file is a whole configuration, or only holds policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Whole,
    PoliciesOnly,
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) path: PathBuf,
    text: String,
    lines: Lines,
    spans: Spans,
    pub(crate) dict: Dict,
    pub(crate) problems: Vec<Problem>,
    /// Policies with an error in them, which are not compiled.
    pub(crate) broken: BTreeSet<String>,
    /// There is an error in a route, so none is compiled.
    pub(crate) broken_routes: bool,
}

/// Where in the text each key stands. A file has several for each of its policies, of which there may be ten thousand, so a path is
/// one allocation, and they are put in order once.
#[derive(Debug, Default)]
struct Spans(Vec<(Box<[u8]>, Range<usize>)>);

impl Spans {
    fn insert<'p>(&mut self, path: impl IntoIterator<Item = &'p str>, span: Range<usize>) {
        self.0.push((Self::joined(path), span));
    }

    fn sort(&mut self) {
        self.0.sort_by(|(one, _), (other, _)| one.cmp(other));
    }

    /// The span of `path`; the list must be in order.
    fn get(&self, path: &[String]) -> Option<Range<usize>> {
        let path = Self::joined(path.iter().map(String::as_str));
        let index = self.0.binary_search_by(|(other, _)| other.cmp(&path)).ok()?;
        Some(self.0[index].1.clone())
    }

    /// Each part ends with a byte that no UTF-8 has, so two paths are never joined alike.
    fn joined<'p>(path: impl IntoIterator<Item = &'p str>) -> Box<[u8]> {
        let mut joined = Vec::with_capacity(64);
        for part in path {
            joined.extend_from_slice(part.as_bytes());
            joined.push(0xFF);
        }
        joined.into()
    }
}

pub(super) type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

impl Document {
    /// Reads and checks a file. What is wrong in it is reported in `problems`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(path: &Path, role: Role) -> io::Result<Self> {
        if std::fs::metadata(path)?.len() > MAX_FILE {
            return Err(io::Error::other(format!("larger than {} MiB", MAX_FILE >> 20)));
        }
        Ok(Self::parse(path, std::fs::read(path)?, role))
    }

    pub(crate) fn parse(path: &Path, bytes: Vec<u8>, role: Role) -> Self {
        let (text, invalid) = match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(at))
            }
        };
        let mut document = Self {
            path: path.to_owned(),
            lines: Lines::of(&text),
            text: String::new(),
            spans: Spans::default(),
            dict: Dict::new(),
            problems: Vec::new(),
            broken: BTreeSet::new(),
            broken_routes: false,
        };
        if let Some(at) = invalid {
            let place = Place::in_lines(path, &text, &document.lines, at..at + 1);
            document.problems.push(Problem { place, message: "not UTF-8".into(), hint: None });
            return document;
        }
        let (table, errors) = DeTable::parse_recoverable(&text);
        for error in &errors {
            let place = Place::in_lines(path, &text, &document.lines, error.span().unwrap_or(0..0));
            document.problems.push(Problem { place, message: error.message().replace('\n', ", "), hint: None });
        }
        if errors.is_empty() {
            Walk { text: &text, document: &mut document }.root(table.get_ref(), role);
            document.spans.sort();
        }
        document.text = text;
        document
    }

    /// The place of the key `path` in this file.
    pub(crate) fn place(&self, path: &[String]) -> Option<Place> {
        let span = self.spans.get(path)?;
        Some(Place::in_lines(&self.path, &self.text, &self.lines, span))
    }
}

/// Reads the tables of a file into the document.
pub(super) struct Walk<'d> {
    text: &'d str,
    pub(super) document: &'d mut Document,
}

impl Walk<'_> {
    fn root(&mut self, root: &DeTable<'_>, role: Role) {
        for (name, value) in root.iter() {
            let section = name.get_ref().as_ref();
            if section == "policy" {
                let policies = self.table(&["policy"], value, |walk, entry| walk.policy(entry));
                self.document.dict.insert("policy".into(), Value::from(policies));
            } else if !sections().chain([DESCRIPTORS]).any(|known| known == section) {
                let hint = did_you_mean(nearest(section, sections().chain(["policy", DESCRIPTORS])));
                self.problem(name.span(), format!("unknown section `{section}`"), hint);
            } else if role == Role::PoliciesOnly {
                let hint =
                    Some(format!("files in policies.d hold [policy.NAME] only; move [{section}] to the main file"));
                self.problem(name.span(), format!("`{section}` has no place in this file"), hint);
            } else if section == DESCRIPTORS {
                let domains = self.descriptors(value);
                self.document.dict.insert(DESCRIPTORS.into(), Value::from(domains));
            } else {
                self.remember(&[section], name.span());
                let keys = self.table(&[section], value, |walk, entry| walk.section_key(section, entry));
                self.document.dict.insert(section.to_owned(), Value::from(keys));
            }
        }
    }

    /// Visits the entries of a table; a value of another type is reported.
    pub(super) fn table(
        &mut self,
        path: &[&str],
        value: &Spanned<DeValue<'_>>,
        mut visit: impl FnMut(&mut Self, Entry<'_, '_>) -> Option<Value>,
    ) -> Dict {
        let mut dict = Dict::new();
        let Some(table) = value.get_ref().as_table() else {
            let seen = value.get_ref().type_str();
            let article = if seen.starts_with(['a', 'i']) { "an" } else { "a" };
            self.problem(value.span(), format!("{} is {article} {seen}: a table was wanted", path.join(".")), None);
            return dict;
        };
        for (name, value) in table.iter() {
            if let Some(value) = visit(self, (name, value)) {
                dict.insert(name.get_ref().as_ref().to_owned(), value);
            }
        }
        dict
    }

    fn section_key(&mut self, section: &str, (name, value): Entry<'_, '_>) -> Option<Value> {
        let word = name.get_ref().as_ref();
        if let Some(key) = keys_of(section).find(|key| key.name == word) {
            return self.leaf(&[section, word], key.kind, name, value);
        }
        let elsewhere = KEYS.iter().find(|key| key.name == word).map(|key| format!("it belongs in [{}]", key.section));
        let hint = did_you_mean(nearest(word, keys_of(section).map(|key| key.name))).or(elsewhere);
        self.problem(name.span(), format!("unknown key `{word}` in [{section}]"), hint);
        None
    }

    fn policy(&mut self, (name, value): Entry<'_, '_>) -> Option<Value> {
        let policy = name.get_ref().as_ref();
        self.remember(&["policy", policy], name.span());
        let before = self.document.problems.len();
        let dict = self.table(&["policy", policy], value, |walk, (key, value)| {
            if key.get_ref() == "override" {
                let path = ["policy", policy, "override"];
                return Some(walk.table(&path, value, |walk, entry| walk.policy_override(policy, entry)).into());
            }
            let path = ["policy", policy, key.get_ref().as_ref()];
            walk.policy_key(&path, POLICY, (key, value))
        });
        if self.document.problems.len() > before {
            self.document.broken.insert(policy.to_owned());
        }
        Some(dict.into())
    }

    fn policy_override(&mut self, policy: &str, (name, value): Entry<'_, '_>) -> Option<Value> {
        let path = ["policy", policy, "override", name.get_ref().as_ref()];
        self.remember(&path, name.span());
        let dict = self.table(&path, value, |walk, (key, value)| {
            let path = [path[0], path[1], path[2], path[3], key.get_ref().as_ref()];
            walk.policy_key(&path, OVERRIDE, (key, value))
        });
        Some(dict.into())
    }

    fn policy_key(&mut self, path: &[&str], known: &[(&str, Kind)], (name, value): Entry<'_, '_>) -> Option<Value> {
        let word = name.get_ref().as_ref();
        if let Some((_, kind)) = known.iter().find(|(key, _)| *key == word) {
            return self.leaf(path, *kind, name, value);
        }
        let belongs = OVERRIDE.iter().any(|(key, _)| *key == word).then(|| "it belongs in an override".to_owned());
        let names = known.iter().map(|(key, _)| *key).chain((path.len() == 3).then_some("override"));
        let hint = did_you_mean(nearest(word, names)).or(belongs);
        self.problem(name.span(), format!("unknown key `{word}` in [{}]", path[..path.len() - 1].join(".")), hint);
        None
    }

    pub(super) fn leaf(
        &mut self,
        path: &[&str],
        kind: Kind,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Value> {
        self.remember(path, value.span());
        let seen = see(value.get_ref());
        if let Seen::List(parts) = &seen {
            for (index, (span, _)) in parts.iter().enumerate() {
                let index = index.to_string();
                self.document.spans.insert(path.iter().copied().chain([index.as_str()]), span.clone());
            }
        }
        match kind.accept(&seen) {
            Ok(value) if matches!(kind, Kind::Path) || is_socket_path(kind, &value) => Some(self.beside(value)),
            Ok(value) => Some(value),
            Err(faults) => {
                for fault in faults {
                    let part = fault.element.and_then(|index| match &seen {
                        Seen::List(parts) => parts.get(index).map(|(span, _)| span.clone()),
                        _ => None,
                    });
                    let message = fault.message(&path.join("."));
                    let span = part.unwrap_or_else(|| value.span());
                    let span = if span.is_empty() { name.span() } else { span };
                    self.problem(span, message, fault.hint);
                }
                None
            }
        }
    }

    /// Makes a relative path start from the directory of the file that it is in.
    fn beside(&self, value: Value) -> Value {
        let directory = self.document.path.parent();
        match (value.as_str(), directory) {
            (Some(text), Some(directory)) => Value::from(directory.join(text).to_string_lossy().into_owned()),
            _ => value,
        }
    }

    pub(super) fn remember(&mut self, path: &[&str], span: Range<usize>) {
        self.document.spans.insert(path.iter().copied(), span);
    }

    pub(super) fn problem(&mut self, span: Range<usize>, message: String, hint: Option<String>) {
        let place = Place::in_lines(&self.document.path, self.text, &self.document.lines, span);
        self.document.problems.push(Problem { place, message, hint });
    }
}

fn is_socket_path(kind: Kind, value: &Value) -> bool {
    matches!(kind, Kind::ListenAddress) && value.as_str().is_some_and(|text| text.contains('/'))
}

fn see(value: &DeValue<'_>) -> Seen {
    match value {
        DeValue::String(text) => Seen::Text(text.as_ref().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
            .map_or_else(|_| Seen::Other("a number too large".into()), Seen::Integer),
        DeValue::Boolean(flag) => Seen::Bool(*flag),
        DeValue::Array(parts) => Seen::List(parts.iter().map(|part| (part.span(), see(part.get_ref()))).collect()),
        DeValue::Float(number) => Seen::Other(number.as_str().to_owned()),
        DeValue::Datetime(date) => Seen::Other(date.to_string()),
        DeValue::Table(_) => Seen::Other("a table".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_own_span_however_its_parts_are_cut() {
        let paths: [&[&str]; 6] = [&["b"], &["a", "bc"], &["ab", "c"], &["abc"], &["a\0b", "c"], &["a", "b", "c"]];
        let mut spans = Spans::default();
        for (at, path) in paths.iter().enumerate() {
            spans.insert(path.iter().copied(), at..at + 1);
        }
        spans.sort();
        let owned = |path: &[&str]| -> Vec<String> { path.iter().map(|part| (*part).to_owned()).collect() };
        for (at, path) in paths.iter().enumerate() {
            assert_eq!(spans.get(&owned(path)), Some(at..at + 1), "{path:?}");
        }
        assert_eq!(spans.get(&owned(&["a"])), None);
    }
}
