//! Reads `[[descriptors.DOMAIN]]` of a file: routes from descriptors to policies, in order.

use figment::value::{Dict, Value};
use toml::Spanned;
use toml::de::DeValue;

use super::document::{Entry, Walk};
use super::problem::{did_you_mean, nearest};
use super::schema::{DESCRIPTORS, ROUTE};

impl Walk<'_> {
    /// The routes of all domains. If any route is wrong, none is compiled.
    pub(super) fn descriptors(&mut self, value: &Spanned<DeValue<'_>>) -> Dict {
        let before = self.document.problems.len();
        let domains = self.table(&[DESCRIPTORS], value, Self::domain);
        self.document.broken_routes |= self.document.problems.len() > before;
        domains
    }

    fn domain(&mut self, (name, value): Entry<'_, '_>) -> Option<Value> {
        let domain = name.get_ref().as_ref();
        let Some(routes) = value.get_ref().as_array() else {
            let message = format!("{DESCRIPTORS}.{domain} is no list of tables");
            let hint = format!("write [[{DESCRIPTORS}.{domain}]] above each route");
            self.problem(name.span(), message, Some(hint));
            return None;
        };
        let routes = routes.iter().enumerate().map(|(index, route)| {
            let index = index.to_string();
            let path = [DESCRIPTORS, domain, &index];
            self.remember(&path, if route.span().is_empty() { name.span() } else { route.span() });
            Value::from(self.table(&path, route, |walk, entry| walk.route_key(&path, entry)))
        });
        Some(Value::from(routes.collect::<Vec<_>>()))
    }

    fn route_key(&mut self, path: &[&str; 3], (name, value): Entry<'_, '_>) -> Option<Value> {
        let word = name.get_ref().as_ref();
        if let Some((_, kind)) = ROUTE.iter().find(|(key, _)| *key == word) {
            return self.leaf(&[path[0], path[1], path[2], word], *kind, name, value);
        }
        let hint = did_you_mean(nearest(word, ROUTE.iter().map(|(key, _)| *key)));
        self.problem(name.span(), format!("unknown key `{word}` in [[{}.{}]]", path[0], path[1]), hint);
        None
    }
}
