//! Which modules of a crate import which, read from their text.

use std::collections::{BTreeMap, BTreeSet};

/// Modules, and what each imports.
pub struct Imports(BTreeMap<String, BTreeSet<String>>);

impl Imports {
    /// Reads modules, by their paths (`serve::http::stream`), from their text without comments and unit tests.
    pub fn read(modules: &BTreeMap<String, String>) -> Self {
        let of = |(module, text): (&String, &String)| {
            let named = paths(text).into_iter().filter_map(|path| resolved(module, &path, modules));
            (module.clone(), named.filter(|other| other != module).collect())
        };
        Self(modules.iter().map(of).collect())
    }

    /// Modules that import each other, directly or by way of others; each circle sorted by name.
    pub fn circles(&self) -> BTreeSet<Vec<String>> {
        let reached: BTreeMap<_, _> = self.0.keys().map(|module| (module, self.reached(module))).collect();
        let circle = |module: &String| {
            let back = |other: &&String| reached.get(other).is_some_and(|reached| reached.contains(module));
            reached[module].iter().copied().filter(back).cloned().collect::<Vec<_>>()
        };
        self.0.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
    }

    fn reached(&self, from: &str) -> BTreeSet<&String> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for other in self.0.get(module).into_iter().flatten() {
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        seen
    }
}

/// All paths, of `use` and in the middle of code: of enums and other crates too, which lead to no module.
fn paths(text: &str) -> Vec<String> {
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let whole = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if let (true, Some(end)) = (whole, text[at..].find(';')) {
            expand("", &text[at + 4..at + end], &mut found);
        }
    }
    // In the middle of code. What goes on with a brace has been read already.
    let in_code = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    found.extend(in_code.filter(|path| path.contains("::") && !path.ends_with(':')).map(ToOwned::to_owned));
    found
}

/// The paths of a tree: `a::{b, c::{d}}` is `a::b` and `a::c::d`.
fn expand(before: &str, tree: &str, into: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        return into.push(format!("{before}{}", tree.split(" as ").next().unwrap_or(tree)));
    };
    let (before, inside) =
        (format!("{before}{}", &tree[..open]), &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())]);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inside[start..at].trim().is_empty() {
                    expand(&before, &inside[start..at], into);
                }
                start = (at + 1).min(inside.len());
            }
            _ => {}
        }
    }
}

/// The module that a path in another one leads to: as much of it as is a module.
fn resolved(module: &str, path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut names: Vec<&str> = path.split("::").map(str::trim).collect();
    let mut place: Vec<&str> = module.split("::").collect();
    match names[0] {
        "crate" => place.clear(),
        "super" => {}
        "self" => drop(names.remove(0)),
        // Beside those of this module others begin with a crate's name.
        first if modules.contains_key(&format!("{module}::{first}")) => {}
        _ => return None,
    }
    while names.first().is_some_and(|name| *name == "super") {
        names.remove(0);
        place.pop();
    }
    names.retain(|name| *name != "crate");
    let mut found = Some(place.join("::")).filter(|place| modules.contains_key(place));
    for name in names {
        place.push(name);
        match place.join("::") {
            deeper if modules.contains_key(&deeper) => found = Some(deeper),
            _ => break,
        }
    }
    found
}
