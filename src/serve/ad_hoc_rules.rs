//! Caches the rules of `CL.THROTTLE` and `THROTTLE`, which carry their limit in the request. The same numbers always
//! give the same shared [`Rule`].
//!
//! One cache per data thread. It is bounded, because clients choose the numbers. Called by the sessions of its
//! thread.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::limit::LimitError;
use crate::core::policy::{AD_HOC, Rule};
use crate::wire::rate::Rate;

/// Most rules in the cache. When it is full it is emptied; rules that are in use stay alive by themselves.
const MOST: usize = 1_024;

/// Rules by their numbers.
#[derive(Debug)]
pub struct AdHocRules {
    last: Option<(Rate, Arc<Rule>)>,
    known: HashMap<Rate, Arc<Rule>>,
}

impl AdHocRules {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self { last: None, known: HashMap::new() }
    }

    /// The rule with these numbers.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn get(&mut self, rate: Rate) -> Result<&Arc<Rule>, LimitError> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != rate) {
            let rule = match self.known.get(&rate) {
                Some(rule) => rule.clone(),
                None => self.insert(rate)?,
            };
            self.last = Some((rate, rule));
        }
        let (_, rule) = self.last.as_ref().expect("it was set just now if it was not there");
        Ok(rule)
    }

    fn insert(&mut self, rate: Rate) -> Result<Arc<Rule>, LimitError> {
        let rule = Arc::new(Rule::of(AD_HOC, &[rate.limit()?]));
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(rate, rule.clone());
        Ok(rule)
    }
}

impl Default for AdHocRules {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rate::Dialect;

    fn rate(count: u64) -> Rate {
        Rate { dialect: Dialect::RedisCell, max_burst: 15, count, period_s: 60 }
    }

    #[test]
    fn equal_numbers_share_one_rule() {
        let mut rules = AdHocRules::new();
        let first = rules.get(rate(30)).unwrap().clone();
        assert_eq!(first.limits[0].capacity(), 16);
        rules.get(rate(31)).unwrap();
        assert!(Arc::ptr_eq(&first, rules.get(rate(30)).unwrap()));
    }

    #[test]
    fn stays_bounded_whatever_clients_send() {
        let mut rules = AdHocRules::new();
        for count in 1..5_000 {
            rules.get(rate(count)).unwrap();
        }
        assert!(rules.known.len() <= MOST);
        assert!(rules.get(rate(u64::MAX)).is_err());
    }
}
