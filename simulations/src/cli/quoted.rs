//! Compares figures that a page of the docs quotes with those of runs: each number in a row must be a figure of a
//! scenario that the row names.
//!
//! A row names its scenarios in its last column. A table quotes figures in its column `Measured`, or, if its second column is about
//! `Calls`, in all columns between the first and the last. There a number before ` %` is a part that was used, went beyond a limit or
//! waited; any other number of a table of calls is store calls per 1000 checks. A number is right when a figure of one of the
//! row's scenarios rounds to it. Prose is not read.

use std::collections::BTreeMap;

use crate::ledger::{Figures, thousandths};

/// Each quoted figure that no run has, as a sentence.
pub(super) fn astray(page: &str, figures: &BTreeMap<String, Figures>) -> Vec<String> {
    let mut found = Vec::new();
    let mut table: Option<Table> = None;
    for (number, line) in (1..).zip(page.lines()) {
        let Some(cells) = cells(line) else {
            table = None;
            continue;
        };
        let table = table.get_or_insert_with(|| Table::of(&cells));
        let named = cells.last().map(|last| last.split('`').filter_map(|word| figures.get(word)).collect::<Vec<_>>());
        let named = named.unwrap_or_default();
        if named.is_empty() {
            continue;
        }
        for quoted in table.quoted(&cells).flat_map(numbers).filter(|quoted| quoted.is_percent || table.is_of_calls) {
            let known: Vec<u64> = named.iter().flat_map(|figures| quoted.known(figures)).collect();
            if !known.iter().any(|known| known.abs_diff(quoted.thousandths) <= quoted.last_place / 2) {
                let known: Vec<_> = known.into_iter().map(thousandths).collect();
                let unit = if quoted.is_percent { " %" } else { " calls" };
                found.push(format!("line {number} quotes {}{unit}, and it was {}", quoted.text, known.join(" or ")));
            }
        }
    }
    found
}

/// The cells of a line of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.trim_end_matches('|');
    Some(inner.split(" | ").map(str::trim).collect())
}

/// Which columns of a table quote figures.
struct Table {
    measured: Option<usize>,
    is_of_calls: bool,
}

impl Table {
    fn of(header: &[&str]) -> Self {
        let measured = header.iter().position(|cell| *cell == "Measured");
        let is_of_calls = measured.is_none() && header.get(1).is_some_and(|cell| cell.starts_with("Calls"));
        Self { measured, is_of_calls }
    }

    fn quoted<'a>(&self, cells: &[&'a str]) -> impl Iterator<Item = &'a str> + use<'a> {
        let places = match self.measured {
            Some(place) => place..place + 1,
            None if self.is_of_calls => 1..cells.len() - 1,
            None => 0..0,
        };
        cells.get(places).unwrap_or_default().to_vec().into_iter()
    }
}

/// A number of a cell.
struct Quoted<'a> {
    text: &'a str,
    thousandths: u64,
    /// The value of its last digit, in thousandths.
    last_place: u64,
    is_percent: bool,
}

impl Quoted<'_> {
    /// The figures that it may quote.
    fn known(&self, figures: &Figures) -> Vec<u64> {
        if !self.is_percent {
            return vec![figures.calls_per_million];
        }
        let beyond = [figures.over, figures.burst_over, figures.waits, figures.peer_waits];
        let of_slots = |used: u64| [used, figures.slots_over, figures.slots_denied];
        figures.used.into_iter().chain(beyond).chain(figures.slots_used.into_iter().flat_map(of_slots)).collect()
    }
}

/// The numbers of a cell, but those within a name like `half-cut-10s` or `0.95x`.
fn numbers(cell: &str) -> impl Iterator<Item = Quoted<'_>> {
    let mut rest = cell;
    std::iter::from_fn(move || {
        loop {
            let begins = rest.find(|c: char| c.is_ascii_digit())?;
            let after_name = rest[..begins].ends_with(|c: char| c.is_alphanumeric() || "-_.`".contains(c));
            let (_, from) = rest.split_at(begins);
            let length = from.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '.').unwrap_or(from.len());
            let text = from[..length].trim_end_matches([',', '.']);
            rest = &from[text.len()..];
            let before_name = rest.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
            if let Some(quoted) = number(text, rest.starts_with(" %")).filter(|_| !after_name && !before_name) {
                return Some(quoted);
            }
        }
    })
}

fn number(text: &str, is_percent: bool) -> Option<Quoted<'_>> {
    let plain = text.replace(',', "");
    let (whole, part) = plain.split_once('.').unwrap_or((&plain, ""));
    let last_place = 10_u64.checked_pow(3_u32.checked_sub(u32::try_from(part.len()).ok()?)?)?;
    let digits: u64 = format!("{whole}{part}").parse().ok()?;
    Some(Quoted { text, thousandths: digits.checked_mul(last_place)?, last_place, is_percent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(used: u64, over: u64, calls: u64) -> Figures {
        Figures { used: Some(used), over, calls_per_million: calls, waits: 4_500, ..Figures::default() }
    }

    fn of(page: &str) -> Vec<String> {
        let runs = [("outage-10s", run(91_388, 0, 3_008)), ("half-cut", run(100_000, 46_300, 1_109_424))];
        astray(page, &runs.map(|(name, figures)| (name.to_owned(), figures)).into())
    }

    #[test]
    fn each_quoted_figure_is_one_of_a_scenario_of_its_row() {
        let table = |row: &str| format!("| When | At most | Measured | Shown by |\n|---|---|---|---|\n{row}\n");
        for right in [
            "| 4 nodes become 64 | 0.95 L | 91.4 % used, 0 over; 4.5 % of checks wait | `outage-10s` |",
            "| half | 1.95 L | 46 % over, 91 % used | `half-cut`, `outage-10s` |",
            "| half | 1.95 L | 12 % over | `namespaces::a_test` |",
            "| half | 12 % | 0 over within 10 s | `half-cut` |",
        ] {
            assert_eq!(of(&table(right)), [""; 0], "{right}");
        }
        for wrong in ["91.3 % used", "92 % used", "0.5 % over", "45 % over, 100 % used"] {
            let found = of(&table(&format!("| half | L | {wrong} | `half-cut`, `outage-10s` |")));
            assert_eq!(found.len(), 1, "{wrong}: {found:?}");
            assert!(found[0].starts_with("line 3 quotes "), "{found:?}");
        }
    }

    #[test]
    fn tables_of_calls_quote_them_without_a_unit() {
        let table = |row: &str| {
            format!("text\n\n| Regime | Calls per 1,000 checks | With owners | Scenario |\n|---|---|---|---|\n{row}\n")
        };
        assert_eq!(of(&table("| `100/1m`, 48 keys | 1,109, 4.5 % wait | 3 | `half-cut`, `outage-10s` |")), [""; 0]);
        let found = of(&table("| `100/1m` | 1,110 | | `half-cut` |"));
        assert_eq!(found, ["line 5 quotes 1,110 calls, and it was 1109.424"]);
    }
}
