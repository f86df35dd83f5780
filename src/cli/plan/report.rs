//! What a plan would change, in figures: by policy, and the keys that are hit most.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::cli::output;
use crate::cli::replay::Fate;
use crate::core::key::Digest;
use crate::serve::recording::file::{Arrival, Event};

/// Figures of one policy, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Checks that were replayed under both configurations.
    pub(super) checks: u64,
    /// Checks that were not: see [`Fate::Unknown`].
    pub(super) unknown: u64,
    /// Denied under the present policies.
    pub(super) denied: u64,
    /// Denied under the new ones.
    pub(super) would_be_denied: u64,
    /// Of those, the ones that pass today.
    pub(super) newly_denied: u64,
    /// Those that would pass, and are denied today.
    pub(super) newly_admitted: u64,
    /// Checks whose replay under the present policies does not give the recorded answer.
    pub(super) unlike: u64,
}

/// The figures of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyCounts {
    pub(super) policy: String,
    pub(super) key: Box<[u8]>,
    pub(super) newly_denied: u64,
    pub(super) newly_admitted: u64,
}

/// The figures of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) policies: BTreeMap<String, Counts>,
    /// Keys with checks that would be decided otherwise, the most newly denied first.
    pub(super) keys: Vec<(Digest, KeyCounts)>,
    /// Checks of policies that neither configuration has: they were of limits in a command, or the policy was removed.
    pub(super) strange: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        let Self { checks, unknown, denied, would_be_denied, newly_denied, newly_admitted, unlike } = other;
        self.checks += checks;
        self.unknown += unknown;
        self.denied += denied;
        self.would_be_denied += would_be_denied;
        self.newly_denied += newly_denied;
        self.newly_admitted += newly_admitted;
        self.unlike += unlike;
    }
}

impl Report {
    /// Compares what became of each recorded arrival under the present and under the new policies. `name` finds a
    /// policy by its tag.
    pub(super) fn new<'a>(
        recordings: &[Vec<Arrival>],
        (now, then): (&[Vec<Fate>], &[Vec<Fate>]),
        name: impl Fn(&Arrival) -> Option<&'a str>,
    ) -> Self {
        let mut report = Self::default();
        let mut keys: HashMap<Digest, KeyCounts> = HashMap::new();
        let fates = now.iter().flatten().zip(then.iter().flatten());
        for (arrival, (now, then)) in recordings.iter().flatten().zip(fates) {
            if !matches!(arrival.event, Event::Admitted | Event::Denied) {
                continue;
            }
            let Some(policy) = name(arrival) else {
                report.strange += 1;
                continue;
            };
            let counts = report.policies.entry(policy.to_owned()).or_default();
            if *now == Fate::Unknown || *then == Fate::Unknown {
                counts.unknown += 1;
                continue;
            }
            counts.checks += 1;
            let (is, will_be) = (*now == Fate::Denied, *then == Fate::Denied);
            counts.denied += u64::from(is);
            counts.would_be_denied += u64::from(will_be);
            counts.unlike += u64::from((*now == Fate::Admitted) != (arrival.event == Event::Admitted));
            if is != will_be {
                let of_key = keys.entry(arrival.digest).or_insert_with(|| KeyCounts {
                    policy: policy.to_owned(),
                    key: arrival.key.clone(),
                    ..KeyCounts::default()
                });
                let (counted, of_key) = match will_be {
                    true => (&mut counts.newly_denied, &mut of_key.newly_denied),
                    false => (&mut counts.newly_admitted, &mut of_key.newly_admitted),
                };
                *counted += 1;
                *of_key += 1;
            }
        }
        report.keys = keys.into_iter().collect();
        report.keys.sort_by_key(|(digest, key)| (std::cmp::Reverse((key.newly_denied, key.newly_admitted)), *digest));
        report
    }

    /// The figures of all policies together.
    pub(super) fn all(&self) -> Counts {
        let mut all = Counts::default();
        self.policies.values().for_each(|counts| all.add(counts));
        all
    }

    /// The report as JSON, with at most `most` keys.
    pub(super) fn json(&self, most: usize) -> Value {
        let figures = |counts: &Counts| {
            json!({
                "checks": counts.checks, "not_replayed": counts.unknown, "denied": counts.denied,
                "would_be_denied": counts.would_be_denied, "newly_denied": counts.newly_denied,
                "newly_admitted": counts.newly_admitted, "unlike_recorded": counts.unlike,
            })
        };
        let keys = self.keys.iter().take(most).map(|(digest, key)| {
            json!({
                "policy": key.policy, "digest": kept_digits(*digest),
                "key": (!key.key.is_empty()).then(|| String::from_utf8_lossy(&key.key)),
                "newly_denied": key.newly_denied, "newly_admitted": key.newly_admitted,
            })
        });
        json!({
            "all": figures(&self.all()),
            "policies": self.policies.iter().map(|(name, counts)| (name.clone(), figures(counts))).collect::<serde_json::Map<_, _>>(),
            "keys": keys.collect::<Vec<_>>(),
            "of_other_policies": self.strange,
        })
    }

    /// The report as text, with at most `most` keys.
    pub(super) fn text(&self, most: usize) -> String {
        let mut rows = vec![
            ["POLICY", "CHECKS", "DENIED", "WOULD BE DENIED", "NEWLY DENIED", "NEWLY ADMITTED"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let line = |name: &str, counts: &Counts| {
            let Counts { checks, denied, would_be_denied, newly_denied, newly_admitted, .. } = counts;
            let numbers = [checks, denied, would_be_denied, newly_denied, newly_admitted].map(u64::to_string);
            std::iter::once(output::visible(name)).chain(numbers).collect::<Vec<_>>()
        };
        rows.extend(self.policies.iter().map(|(name, counts)| line(name, counts)));
        if self.policies.len() > 1 {
            rows.push(line("(all)", &self.all()));
        }
        let mut text = output::table(&rows);
        if !self.keys.is_empty() {
            let mut rows = vec![["NEWLY DENIED", "NEWLY ADMITTED", "POLICY", "KEY"].map(str::to_owned).to_vec()];
            rows.extend(self.keys.iter().take(most).map(|(digest, key)| {
                let name = match key.key.is_empty() {
                    true => format!("(digest {}...)", kept_digits(*digest)),
                    false => output::visible(&String::from_utf8_lossy(&key.key)),
                };
                vec![key.newly_denied.to_string(), key.newly_admitted.to_string(), output::visible(&key.policy), name]
            }));
            text = format!("{text}\n\n{}", output::table(&rows));
            if self.keys.len() > most {
                text = format!("{text}\nand {} keys more", self.keys.len() - most);
            }
        }
        text
    }
}

/// The hexadecimal digits of the part of a digest that a recording keeps.
fn kept_digits(digest: Digest) -> String {
    format!("{:016x}", digest.0 >> u64::BITS)
}
