//! The texts of a rule that answers say again and again, made once for a connection: most connections ask for one policy.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::header::HeaderValue;

use crate::core::policy::Rule;
use crate::wire::headers::RuleText;

/// The texts of the rule by which a connection was last answered.
#[derive(Debug, Default)]
pub(crate) struct Texts(Mutex<Option<Arc<Text>>>);

/// The texts of one rule.
#[derive(Debug)]
pub(super) struct Text {
    rule: Arc<Rule>,
    pub(super) text: RuleText,
    /// `RateLimit-Policy`.
    pub(super) policy: HeaderValue,
}

impl Texts {
    /// The texts of a rule.
    pub(super) fn of(&self, rule: &Arc<Rule>) -> Arc<Text> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = last.as_ref().filter(|text| Arc::ptr_eq(&text.rule, rule)) {
            return text.clone();
        }
        let text = RuleText::of(rule);
        let policy = HeaderValue::from_str(&text.policy).unwrap_or_else(|_| HeaderValue::from_static(""));
        last.insert(Arc::new(Text { rule: rule.clone(), text, policy })).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::Limit;

    #[test]
    fn each_rule_has_its_own_texts_however_they_take_turns() {
        let rule = |text: &str| Arc::new(Rule::of("api", &[Limit::parse(text).expect(text)]));
        let (texts, rules) = (Texts::default(), ["100/1s", "5/1d fixed"].map(rule));
        for place in [0, 0, 1, 0, 1, 1] {
            let text = texts.of(&rules[place]);
            assert_eq!(text.text, RuleText::of(&rules[place]));
            assert_eq!(text.policy.to_str().expect("it is ASCII"), text.text.policy);
        }
    }
}
