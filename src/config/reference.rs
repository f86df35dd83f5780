//! The schema in words: every key that a configuration may have, with what it takes, for the reference page.
//!
//! Made from the one list that checking uses. What a key is for stands in the comments of the sample. Called by the
//! test that compares the page with it.

use super::schema::{DESCRIPTORS, KEYS, OVERRIDE, POLICY, ROUTE};

/// One key in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The table that it stands in, as a file writes it: `[store]`, `[policy.NAME]`.
    pub table: String,
    /// Its name there.
    pub name: &'static str,
    /// What it takes, as an error says what was wanted.
    pub wanted: String,
    /// Its default, as the environment would write it; `None`: unset, or computed at start.
    pub default: Option<&'static str>,
}

/// All keys in the order of the schema.
#[must_use]
pub fn reference() -> Vec<Described> {
    let wanted = |text: String| text.trim_end_matches(',').to_owned();
    let sections = KEYS.iter().map(|key| Described {
        table: format!("[{}]", key.section),
        name: key.name,
        wanted: wanted(key.kind.wanted()),
        default: key.default,
    });
    let tables = [("[policy.NAME]", POLICY), ("[policy.NAME.override.\"KEY\"]", OVERRIDE), ("", ROUTE)]
        .into_iter()
        .flat_map(move |(table, keys)| {
            let table = if table.is_empty() { format!("[[{DESCRIPTORS}.DOMAIN]]") } else { table.to_owned() };
            keys.iter().map(move |&(name, kind)| Described {
                table: table.clone(),
                name,
                wanted: wanted(kind.wanted()),
                default: None,
            })
        });
    sections.chain(tables).collect()
}
