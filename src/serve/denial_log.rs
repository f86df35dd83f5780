//! The latest denials, and lines about them for a file. `observer` brings what the shards have denied each second, so
//! that neither a check nor a data thread waits for it.
//!
//! It keeps a bounded number of entries for `RATION.DENIALS`. Knows files only as something that takes lines.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::denied::Denial;
use super::key_text::shown;
use crate::core::decision::Reason;
use crate::core::policy::PolicySet;
use crate::core::time::{Instant, Timestamp};

/// Entries that are kept for people.
const MOST: usize = 4_096;
/// Most bytes of lines that are written each second.
pub const MOST_BYTES: usize = 900 << 10;

/// Takes lines; it must not wait.
pub type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// How a file names keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyForm {
    /// By their first bytes.
    #[default]
    Clipped,
    /// By their digests alone, which are keyed by `store.digest_secret_file`.
    Digest,
}

/// The log of denials.
#[derive(Default)]
pub struct DenialLog {
    /// Kept as text, because as JSON values a full log took 3 MB more.
    recent: Mutex<VecDeque<Box<str>>>,
    sink: OnceLock<(Sink, KeyForm)>,
}

impl fmt::Debug for DenialLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialLog").finish_non_exhaustive()
    }
}

impl DenialLog {
    /// Writes lines to `sink` from now on. Only the first call has an effect.
    pub fn write_to(&self, sink: Sink, keys: KeyForm) {
        let _ = self.sink.set((sink, keys));
    }

    /// The latest denials as an array of objects, in order of time.
    #[must_use]
    pub fn recent(&self) -> String {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = recent.iter().map(AsRef::as_ref).collect();
        format!("[{}]", lines.join(","))
    }

    /// Takes what the shards have denied up to now.
    pub fn add(&self, mut denials: Vec<Denial>, policies: &PolicySet, now: (Instant, Timestamp)) {
        // The most frequent come first, because of a flood only the first fit into [`MOST_BYTES`], and the rest is
        // counted.
        denials.sort_by_key(|denial| std::cmp::Reverse(denial.count));
        let lines: Vec<Value> = denials.iter().map(|denial| line(denial, policies, now)).collect();
        if let Some((sink, keys)) = self.sink.get() {
            write(&lines, *keys, sink);
        }
        let texts: Vec<_> = lines.iter().take(MOST).rev().map(|line| line.to_string().into()).collect();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.extend(texts);
        let surplus = recent.len().saturating_sub(MOST);
        recent.drain(..surplus);
    }
}

/// The reason that people see. A denial of a key in shadow mode gets the reason `shadow`, because the check was
/// admitted.
fn reason(denial: &Denial, policies: &PolicySet) -> Option<Reason> {
    let reason = denial.reason?;
    let is_watched = || {
        let policy = policies.get(denial.policy.as_deref()?)?;
        let (digest, _) = denial.key?;
        Some(!policy.is_enforced_for(digest))
    };
    Some(if reason != Reason::Blocked && is_watched() == Some(true) { Reason::Shadow } else { reason })
}

fn line(denial: &Denial, policies: &PolicySet, (now, wall): (Instant, Timestamp)) -> Value {
    let at_ms = |at: Instant| (wall.0.saturating_sub(now.since(at).0)) / 1_000;
    let limit = denial.limit.as_ref().and_then(|(rule, index)| rule.limits.get(usize::from(*index)));
    json!({
        "policy": denial.policy.as_deref(),
        "limit": limit.map(ToString::to_string),
        "key": denial.key.as_ref().map(|(_, key)| shown(key.bytes())),
        "digest": denial.key.map(|(digest, _)| digest.to_string()),
        "reason": reason(denial, policies).map(Reason::as_str),
        "count": denial.count,
        "first_ms": at_ms(denial.first),
        "last_ms": at_ms(denial.last),
    })
}

fn write(lines: &[Value], keys: KeyForm, sink: &Sink) {
    let (mut text, mut left_out) = (String::new(), 0_u64);
    for line in lines {
        let mut line = line.clone();
        if keys == KeyForm::Digest {
            line["key"] = Value::Null;
        }
        let line = line.to_string();
        if text.len() + line.len() + 1 > MOST_BYTES {
            left_out += 1;
            continue;
        }
        text.push_str(&line);
        text.push('\n');
    }
    if left_out > 0 {
        text.push_str(&format!("{}\n", json!({"left_out": left_out})));
    }
    sink(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_bound_and_what_is_left_out_is_counted() {
        let lines: Vec<Value> = (0..20_000).map(|number| json!({"key": "k".repeat(100), "count": number})).collect();
        let written = Arc::new(Mutex::new(String::new()));
        let into = written.clone();
        let sink: Sink = Arc::new(move |text: &str| into.lock().expect("nobody panicked").push_str(text));
        write(&lines, KeyForm::Clipped, &sink);
        let text = written.lock().expect("nobody panicked").clone();
        assert!(text.len() < MOST_BYTES + 100, "{}", text.len());
        let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
        assert_eq!(last["left_out"].as_u64(), Some(20_000 - (text.lines().count() as u64 - 1)));
    }

    #[test]
    fn what_was_denied_of_late_is_an_array_the_latest_last_and_has_a_bound() {
        let log = DenialLog::default();
        assert_eq!(log.recent(), "[]");
        for second in 0..3 {
            let denial = |count| Denial {
                policy: Some("p".into()),
                limit: None,
                key: None,
                reason: None,
                count,
                first: Instant(second),
                last: Instant(second),
            };
            let denials = (0..MOST as u64).map(|number| denial(second * 10_000 + number)).collect();
            log.add(denials, &PolicySet::default(), (Instant(9), Timestamp(9_000)));
        }
        let recent: Value = serde_json::from_str(&log.recent()).expect("JSON");
        let counts: Vec<_> = recent.as_array().expect("an array").iter().map(|line| line["count"].as_u64()).collect();
        assert_eq!(counts.len(), MOST);
        assert_eq!((counts[0], counts[MOST - 1]), (Some(20_000), Some(20_000 + MOST as u64 - 1)));
    }

    #[test]
    fn keys_are_left_out_where_only_digests_are_wanted() {
        let written = Arc::new(Mutex::new(String::new()));
        let into = written.clone();
        let sink: Sink = Arc::new(move |text: &str| into.lock().expect("nobody panicked").push_str(text));
        write(&[json!({"key": "secret", "digest": "0a"})], KeyForm::Digest, &sink);
        let text = written.lock().expect("nobody panicked").clone();
        assert!(text.contains("0a") && !text.contains("secret"), "{text}");
    }
}
