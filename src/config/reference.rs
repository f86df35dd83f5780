//! The schema as text: every key of a configuration with the values it takes, for the reference page.
//!
//! It is made from the same list that checking uses. The sample's comments say what each key is for. Called by the
//! test that compares the page with it.

use super::schema::{DESCRIPTORS, KEYS, OVERRIDE, POLICY, ROUTE};

/// One key, described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its table, as a file writes it: `[store]`, `[policy.NAME]`.
    pub table: String,
    /// Its name in the table.
    pub name: &'static str,
    /// The values it takes, in the words of an error message.
    pub wanted: String,
    /// Its default, as a variable would be set; `None` when it is unset, or computed at the start.
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
