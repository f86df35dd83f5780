//! What a policy says of single keys, and of all keys with a common prefix or suffix.
//!
//! The name of an override is a key, or a key with one `*` at its beginning or end, which stands for anything. A
//! key's own override takes precedence, then the pattern that matches most of its bytes; if a prefix and a suffix
//! match equally many, the prefix does. The lookup is done for each check: one search for the key itself, one for
//! each end that has patterns, and one step for each pattern that contains another.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::rule::Plan;

/// Matches any bytes. After [`ESCAPE`] it is an ordinary star.
const STAR: u8 = b'*';
const ESCAPE: u8 = b'\\';

/// What the name of an override stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// One key.
    Key(Box<[u8]>),
    /// All keys with this prefix.
    Beginning(Box<[u8]>),
    /// All keys with this suffix.
    End(Box<[u8]>),
}

/// The overrides of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    keys: BTreeMap<Box<[u8]>, Named>,
    beginnings: Ladder,
    ends: Ladder,
}

/// A plan with its name in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: Box<str>,
    plan: Plan,
}

/// The patterns of one end, sorted by their bytes from that end inwards. The longest pattern that matches a key is the
/// last one that does not sort after the key, or else one that this one begins with; so each pattern has the number of
/// the longest other one that it begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ladder {
    rungs: Vec<Rung>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rung {
    /// The bytes, from the end inwards.
    bytes: Box<[u8]>,
    /// The longest other pattern that this one begins with.
    below: Option<usize>,
    named: Named,
}

impl Subject {
    /// Parses the name of an override.
    ///
    /// # Errors
    /// What is wrong with it, and what was expected.
    pub fn parse(name: &str) -> Result<Self, String> {
        let bytes = name.as_bytes();
        let mut text = Vec::with_capacity(bytes.len());
        let (mut stars, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            match (bytes[at], bytes.get(at + 1)) {
                (ESCAPE, Some(&next @ (STAR | ESCAPE))) => {
                    text.push(next);
                    at += 1;
                }
                (STAR, _) => stars.push(text.len()),
                (byte, _) => text.push(byte),
            }
            at += 1;
        }
        let len = text.len();
        let text = text.into_boxed_slice();
        match stars[..] {
            [] => Ok(Self::Key(text)),
            [_] if len == 0 => Err("`*` alone is every key: give the policy itself these limits".into()),
            [at] if at == len => Ok(Self::Beginning(text)),
            [0] => Ok(Self::End(text)),
            _ => Err("one `*` at the beginning or at the end was wanted; a star of the key itself is `\\*`".into()),
        }
    }
}

impl Overrides {
    /// The overrides of these subjects, with their names in the configuration. Of two with the same subject the later
    /// one is used.
    #[must_use]
    pub fn new(list: impl IntoIterator<Item = (Subject, String, Plan)>) -> Self {
        let mut overrides = Self::default();
        let (mut beginnings, mut ends) = (BTreeMap::new(), BTreeMap::new());
        for (subject, name, plan) in list {
            let named = Named { name: name.into(), plan };
            match subject {
                Subject::Key(key) => drop(overrides.keys.insert(key, named)),
                Subject::Beginning(bytes) => drop(beginnings.insert(bytes, named)),
                Subject::End(bytes) => drop(ends.insert(bytes.iter().rev().copied().collect(), named)),
            }
        }
        overrides.beginnings = Ladder::new(beginnings);
        overrides.ends = Ladder::new(ends);
        overrides
    }

    /// The plan for `key`; `None` when no override applies.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&Plan> {
        self.find(key).map(|named| &named.plan)
    }

    /// The name of the override that applies to `key`.
    #[must_use]
    pub fn name_of(&self, key: &[u8]) -> Option<&str> {
        self.find(key).map(|named| &*named.name)
    }

    /// All overrides with their names: single keys, then prefixes, then suffixes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Plan)> {
        let rungs = self.beginnings.rungs.iter().chain(&self.ends.rungs).map(|rung| &rung.named);
        self.keys.values().chain(rungs).map(|named| (&*named.name, &named.plan))
    }

    /// How many overrides are patterns.
    #[must_use]
    pub fn patterns(&self) -> usize {
        self.beginnings.rungs.len() + self.ends.rungs.len()
    }

    fn find(&self, key: &[u8]) -> Option<&Named> {
        if let Some(named) = self.keys.get(key) {
            return Some(named);
        }
        let beginning = self.beginnings.longest(|| key.iter().copied());
        let end = self.ends.longest(|| key.iter().rev().copied());
        let longer = match (beginning, end) {
            (Some(beginning), Some(end)) if end.bytes.len() > beginning.bytes.len() => Some(end),
            (beginning, end) => beginning.or(end),
        };
        longer.map(|rung| &rung.named)
    }
}

impl Ladder {
    fn new(patterns: BTreeMap<Box<[u8]>, Named>) -> Self {
        let mut rungs: Vec<Rung> = Vec::with_capacity(patterns.len());
        for (bytes, named) in patterns {
            let mut below = rungs.len().checked_sub(1);
            while let Some(index) = below.filter(|index| !bytes.starts_with(&rungs[*index].bytes)) {
                below = rungs[index].below;
            }
            rungs.push(Rung { bytes, below, named });
        }
        Self { rungs }
    }

    /// The longest pattern that the bytes begin with.
    fn longest<I: Iterator<Item = u8>>(&self, bytes: impl Fn() -> I) -> Option<&Rung> {
        let before = self.rungs.partition_point(|rung| rung.bytes.iter().copied().cmp(bytes()) != Ordering::Greater);
        let mut index = before.checked_sub(1)?;
        loop {
            let rung = &self.rungs[index];
            let mut rest = bytes();
            if rung.bytes.iter().all(|byte| rest.next() == Some(*byte)) {
                return Some(rung);
            }
            index = rung.below?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(names: &[&str]) -> Overrides {
        Overrides::new(names.iter().map(|name| {
            let subject = Subject::parse(name).unwrap_or_else(|problem| panic!("{name}: {problem}"));
            (subject, (*name).to_owned(), Plan::Unlimited)
        }))
    }

    #[test]
    fn the_longest_that_fits_counts() {
        let overrides =
            overrides(&["plan:*", "plan:pro:*", "plan:pro:acme", "plan:pro:a*", "plan:z*", "*:off", "*acme"]);
        for (key, wanted) in [
            ("plan:pro:acme", Some("plan:pro:acme")),
            ("plan:pro:acme2", Some("plan:pro:a*")),
            ("plan:pro:bert", Some("plan:pro:*")),
            ("plan:pro:", Some("plan:pro:*")),
            ("plan:pro", Some("plan:*")),
            ("plan:team:x", Some("plan:*")),
            ("plan:zoo", Some("plan:z*")),
            ("plan", None),
            ("user:off", Some("*:off")),
            ("plan:x:off", Some("plan:*")),
            (":off", Some("*:off")),
            ("off", None),
            ("acme", Some("*acme")),
            ("", None),
        ] {
            assert_eq!(overrides.name_of(key.as_bytes()), wanted, "{key}");
        }
    }

    #[test]
    fn a_star_stands_at_one_end_or_is_escaped() {
        assert_eq!(Subject::parse(r"a\*"), Ok(Subject::Key((*b"a*").into())));
        assert_eq!(Subject::parse(r"\**"), Ok(Subject::Beginning((*b"*").into())));
        assert_eq!(Subject::parse(r"D\\*"), Ok(Subject::Beginning((*br"D\").into())));
        assert_eq!(Subject::parse(r"D\user"), Ok(Subject::Key((*br"D\user").into())));
        assert_eq!(Subject::parse(r"*\"), Ok(Subject::End((*br"\").into())));
        assert_eq!(Subject::parse(""), Ok(Subject::Key((*b"").into())));
        for wrong in ["*", "**", "a*b", "*a*", "a**"] {
            assert!(Subject::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Compares with a direct implementation of the rule, over all short keys and many sets of patterns.
    #[test]
    fn finds_what_a_search_of_all_would_find() {
        let words = |most: u32| {
            (0..=most).flat_map(|len| (0..3_u32.pow(len)).map(move |number| word(number, len))).collect::<Vec<_>>()
        };
        fn word(mut number: u32, len: u32) -> String {
            (0..len)
                .map(|_| {
                    let c = char::from(b'a' + (number % 3) as u8);
                    number /= 3;
                    c
                })
                .collect()
        }
        let patterns = words(3);
        for seed in 0..60_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut draw = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let mut names = Vec::new();
            for pattern in patterns.iter().filter(|pattern| !pattern.is_empty()) {
                match draw() % 8 {
                    0 => names.push(format!("{pattern}*")),
                    1 => names.push(format!("*{pattern}")),
                    2 => names.push(pattern.clone()),
                    _ => {}
                }
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let overrides = overrides(&names);
            for key in words(5) {
                let fits = |name: &&&str| match (name.strip_suffix('*'), name.strip_prefix('*')) {
                    (Some(head), _) => key.starts_with(head),
                    (_, Some(tail)) => key.ends_with(tail),
                    _ => key == **name,
                };
                let rank = |name: &&&str| (!name.contains('*'), name.len(), name.ends_with('*'));
                let wanted = names.iter().filter(fits).max_by_key(rank).copied();
                assert_eq!(overrides.name_of(key.as_bytes()), wanted, "{key} among {names:?}");
            }
        }
    }
}
