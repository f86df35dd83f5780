//! Compares the figures of a run with the expectations of its plan. Each expectation that failed gives one sentence:
//! what was seen, and what was wanted.

use super::figures::Figures;
use super::peak::WHOLE;
use crate::plan::Expect;
use crate::span::Span;

impl Expect {
    /// What did not hold, in the order of the fields; empty when all is well.
    #[must_use]
    pub fn judge(&self, figures: &Figures) -> Vec<String> {
        let millionths = figures.calls_per_million;
        let wanted = |most: Option<u32>| most.map(u64::from);
        let found = [
            self.used.and_then(|least| used(figures, u64::from(least))),
            at_most(wanted(self.calls).map(|most| most * 1_000), millionths, |calls| {
                format!("{} store calls per 1000 checks", thousandths(calls))
            }),
            at_most(wanted(self.calls_per_window), figures.calls_per_window, |calls| {
                format!("{calls} store calls of one node in a window")
            }),
            at_most(wanted(self.waits), figures.waits, |part| {
                format!("{} of the checks waited for the store", percent(part))
            }),
            at_most(wanted(self.over), figures.beyond(), |part| format!("{} admitted beyond a limit", percent(part))),
            at_most(wanted(self.slots_over), figures.slots_over, |part| {
                format!("{} of the slots of a limit out at a time beyond it", percent(part))
            }),
            self.slots_used.and_then(|least| slots_used(figures, u64::from(least))),
            at_most(wanted(self.slots_denied), figures.slots_denied, |part| {
                format!("{} of the checks were denied though there were slots", percent(part))
            }),
            at_most(wanted(self.herd), figures.herd, |times| {
                format!("{} times the mean of store calls within 10 ms", thousandths(times))
            }),
            self.fairness.and_then(|least| fairness(figures, u64::from(least))),
            at_most(wanted(self.shares), figures.shares, |part| {
                format!("{} of the checks were decided by a share", percent(part))
            }),
            at_most(self.answer.map(|most| most.0), figures.answer_longest_us, |time| {
                format!("the longest answer took {}", Span(time))
            }),
            at_most(self.p99.map(|most| most.0), figures.answer_p99_us, |time| {
                format!("99 % of the answers took {} at most", Span(time))
            }),
            at_most(self.p999.map(|most| most.0), figures.answer_p999_us, |time| {
                format!("99.9 % of the answers took {} at most", Span(time))
            }),
            at_most(self.peer_p99.map(|most| most.0), figures.peer_answer_p99_us, |time| {
                format!("99 % of the answers of peers took {} at most", Span(time))
            }),
            at_most(wanted(self.loans_lost), figures.loans_lost, |part| {
                format!("{} of the tokens that peers lent came too late, or not at all", percent(part))
            }),
            at_most(self.news.map(|most| most.0), figures.news_p99_us, |time| {
                format!("99 % of the news of peers were {} old at most", Span(time))
            }),
            at_most(self.first.map(|most| most.0), figures.first_answer_us, |time| {
                format!("the first answer of a node took {}", Span(time))
            }),
            at_most(wanted(self.false_denials), figures.false_denials, |part| {
                format!("{} of the checks were denied though there were tokens", percent(part))
            }),
            at_most(wanted(self.herd_back), figures.herd_back, |times| {
                format!("{} times the calls of a second before in the first second after an outage", thousandths(times))
            }),
            at_most(wanted(self.told), figures.told_per_second, |bytes| {
                format!("a node told its peers {bytes} bytes a second")
            }),
        ];
        found.into_iter().flatten().collect()
    }

    /// Each bound that is set, beside what was measured, in the order of the fields.
    #[must_use]
    pub fn measured(&self, figures: &Figures) -> Vec<Measured> {
        let part = |name, bound: Option<u32>, seen| Measured::most(name, bound, seen, percent);
        let time = |name, bound: Option<Span>, seen| {
            let bound = bound.map(|bound| u32::try_from(bound.0).unwrap_or(u32::MAX));
            Measured::most(name, bound, seen, |time| Span(time).to_string())
        };
        let number = |name, bound: Option<u32>, seen| Measured::most(name, bound, seen, |count| count.to_string());
        let times = |name, bound: Option<u32>, seen| Measured::most(name, bound, seen, thousandths);
        let calls = self.calls.map(|most| most.saturating_mul(1_000));
        let all = [
            Measured::least("used", self.used, figures.used, percent),
            Measured::most("calls", calls, figures.calls_per_million, thousandths),
            number("calls_per_window", self.calls_per_window, figures.calls_per_window),
            part("waits", self.waits, figures.waits),
            part("over", self.over, figures.beyond()),
            part("slots_over", self.slots_over, figures.slots_over),
            Measured::least("slots_used", self.slots_used, figures.slots_used, percent),
            part("slots_denied", self.slots_denied, figures.slots_denied),
            times("herd", self.herd, figures.herd),
            Measured::least("fairness", self.fairness, Some(figures.fairness), thousandths),
            part("shares", self.shares, figures.shares),
            time("answer", self.answer, figures.answer_longest_us),
            time("p99", self.p99, figures.answer_p99_us),
            time("p999", self.p999, figures.answer_p999_us),
            time("peer_p99", self.peer_p99, figures.peer_answer_p99_us),
            part("loans_lost", self.loans_lost, figures.loans_lost),
            time("news", self.news, figures.news_p99_us),
            time("first", self.first, figures.first_answer_us),
            part("false_denials", self.false_denials, figures.false_denials),
            times("herd_back", self.herd_back, figures.herd_back),
            number("told", self.told, figures.told_per_second),
        ];
        all.into_iter().flatten().collect()
    }

    /// The names of the fields whose bound is looser than `before`.
    #[must_use]
    pub fn looser_than(&self, before: &Self) -> Vec<&'static str> {
        let micros = |span: Option<Span>| span.map(|span| span.0);
        let most = [
            ("calls", self.calls.map(u64::from), before.calls.map(u64::from)),
            ("calls_per_window", self.calls_per_window.map(u64::from), before.calls_per_window.map(u64::from)),
            ("waits", self.waits.map(u64::from), before.waits.map(u64::from)),
            ("over", self.over.map(u64::from), before.over.map(u64::from)),
            ("slots_over", self.slots_over.map(u64::from), before.slots_over.map(u64::from)),
            ("slots_denied", self.slots_denied.map(u64::from), before.slots_denied.map(u64::from)),
            ("herd", self.herd.map(u64::from), before.herd.map(u64::from)),
            ("shares", self.shares.map(u64::from), before.shares.map(u64::from)),
            ("answer", micros(self.answer), micros(before.answer)),
            ("p99", micros(self.p99), micros(before.p99)),
            ("p999", micros(self.p999), micros(before.p999)),
            ("peer_p99", micros(self.peer_p99), micros(before.peer_p99)),
            ("loans_lost", self.loans_lost.map(u64::from), before.loans_lost.map(u64::from)),
            ("news", micros(self.news), micros(before.news)),
            ("first", micros(self.first), micros(before.first)),
            ("false_denials", self.false_denials.map(u64::from), before.false_denials.map(u64::from)),
            ("herd_back", self.herd_back.map(u64::from), before.herd_back.map(u64::from)),
            ("told", self.told.map(u64::from), before.told.map(u64::from)),
        ];
        let least = [
            ("used", self.used, before.used),
            ("slots_used", self.slots_used, before.slots_used),
            ("fairness", self.fairness, before.fairness),
        ];
        // A bound that was dropped counts as looser.
        let above = most.iter().filter(|(_, now, then)| then.is_some_and(|then| now.is_none_or(|now| now > then)));
        let below = least.iter().filter(|(_, now, then)| then.is_some_and(|then| now.is_none_or(|now| now < then)));
        above.map(|(name, ..)| *name).chain(below.map(|(name, ..)| *name)).collect()
    }
}

/// One bound beside what was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The field of [`Expect`].
    pub name: &'static str,
    /// `≤ 8`.
    pub wanted: String,
    /// `8.5`.
    pub seen: String,
    /// Whether it is within its bound.
    pub is_met: bool,
}

impl Measured {
    fn most(name: &'static str, most: Option<u32>, seen: u64, write: impl Fn(u64) -> String) -> Option<Self> {
        let most = u64::from(most?);
        Some(Self { name, wanted: format!("≤ {}", write(most)), seen: write(seen), is_met: seen <= most })
    }

    /// The sentence for a figure below its bound; a figure that was not measured is below any.
    fn least(name: &'static str, least: Option<u32>, seen: Option<u64>, write: impl Fn(u64) -> String) -> Option<Self> {
        let least = u64::from(least?);
        let is_met = seen.is_some_and(|seen| seen >= least);
        let seen = seen.map_or_else(|| "–".into(), &write);
        Some(Self { name, wanted: format!("≥ {}", write(least)), seen, is_met })
    }
}

/// The sentence for a figure above its bound; `say` writes the figure.
fn at_most(most: Option<u64>, seen: u64, say: impl Fn(u64) -> String) -> Option<String> {
    let most = most?;
    (seen > most).then(|| {
        let (seen, wanted) = (say(seen), say(most));
        format!("{seen}, wanted at most: {wanted}")
    })
}

fn used(figures: &Figures, least: u64) -> Option<String> {
    match figures.used {
        None => Some(format!("no window was whole after the warm-up, wanted {} of the limit used", percent(least))),
        Some(used) if used < least => Some(format!(
            "{} of what was possible was admitted ({} of {} tokens), wanted at least {}",
            percent(used),
            figures.used_tokens,
            figures.possible_tokens,
            percent(least)
        )),
        Some(_) => None,
    }
}

fn slots_used(figures: &Figures, least: u64) -> Option<String> {
    let seen = figures.slots_used.unwrap_or(0);
    (seen < least)
        .then(|| format!("{} of the slots were used on average, wanted at least {}", percent(seen), percent(least)))
}

fn fairness(figures: &Figures, least: u64) -> Option<String> {
    let seen = figures.fairness;
    (seen < least)
        .then(|| format!("fairness between nodes is {}, wanted at least {}", thousandths(seen), thousandths(least)))
}

/// Writes thousandths of a percent: `99.5 %`.
#[must_use]
pub fn percent(part: u64) -> String {
    format!("{} %", thousandths(part))
}

/// Writes thousandths: `1.25`, `3`.
#[must_use]
pub fn thousandths(value: u64) -> String {
    let text = format!("{}.{:03}", value / 1_000, value % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `some` as a part of `all` in so many parts, rounded; 0 of nothing is 0.
pub(super) fn ratio(some: u64, all: u64, parts: u64) -> u64 {
    let (some, all, parts) = (u128::from(some), u128::from(all), u128::from(parts));
    let rounded = (some * parts + all / 2).checked_div(all).unwrap_or(0);
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

/// `some` in thousandths of a percent of `all`, rounded down and at most all: what was used.
pub(super) fn part_used(some: u64, all: u64) -> Option<u64> {
    let part = (u128::from(some) * u128::from(WHOLE)).checked_div(u128::from(all))?;
    Some(part.min(u128::from(WHOLE)) as u64) // at most 100000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_seen_and_what_was_wanted() {
        let expect = Expect { used: Some(99_500), calls: Some(8), over: Some(0), ..Expect::default() };
        let figures = Figures { used: Some(98_250), calls_per_million: 8_004, over: 1, ..Figures::default() };
        let said = expect.judge(&figures);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("98.25 %") && said[0].contains("99.5 %"), "{}", said[0]);
        assert!(said[1].contains("8.004") && said[1].contains("at most: 8 store calls"), "{}", said[1]);
        assert!(said[2].contains("0.001 %"), "{}", said[2]);
    }

    /// Every bound, so tight that these figures keep it or so that they do not.
    fn all_bounds(at: u64) -> Expect {
        let fields = serde_json::to_value(Expect::default()).unwrap();
        let bound = |name: &String| match name.as_str() {
            "answer" | "p99" | "p999" | "peer_p99" | "news" | "first" => format!("{at}us").into(),
            _ => serde_json::Value::from(at),
        };
        let bounds = fields.as_object().unwrap().keys().map(|name| (name.clone(), bound(name)));
        serde_json::from_value(bounds.collect::<serde_json::Map<_, _>>().into()).unwrap()
    }

    #[test]
    fn each_bound_is_measured_and_judged_alike() {
        let fields = serde_json::to_value(Expect::default()).unwrap();
        let figures = Figures {
            used: Some(50),
            calls_per_million: 50_000,
            calls_per_window: 50,
            waits: 50,
            over: 50,
            slots_over: 50,
            slots_used: Some(50),
            slots_denied: 50,
            herd: 50,
            fairness: 50,
            shares: 50,
            answer_longest_us: 50,
            answer_p99_us: 50,
            answer_p999_us: 50,
            peer_answer_p99_us: 50,
            loans_lost: 50,
            news_p99_us: 50,
            first_answer_us: 50,
            false_denials: 50,
            herd_back: 50,
            told_per_second: 50,
            ..Figures::default()
        };
        for at in [49, 50, 51] {
            let (bounds, is_least) = (all_bounds(at), |name: &str| ["used", "slots_used", "fairness"].contains(&name));
            let measured = bounds.measured(&figures);
            let names: std::collections::BTreeSet<_> = measured.iter().map(|one| one.name).collect();
            assert_eq!(names, fields.as_object().unwrap().keys().map(String::as_str).collect());
            for one in &measured {
                let is_met = if is_least(one.name) { at <= 50 } else { at >= 50 };
                assert_eq!(one.is_met, is_met, "{one:?}");
            }
            let missed = measured.iter().filter(|one| !one.is_met).count();
            assert_eq!(bounds.judge(&figures).len(), missed);
        }
    }

    #[test]
    fn what_is_not_expected_is_not_looked_at() {
        let bad = Figures { over: 9, waits: 99_000, herd: 99_000, ..Figures::default() };
        assert_eq!(Expect::default().judge(&bad), Vec::<String>::new());
    }

    #[test]
    fn nothing_measured_is_no_success() {
        let expect = Expect { used: Some(1), ..Expect::default() };
        assert_eq!(expect.judge(&Figures::default()).len(), 1);
    }

    #[test]
    fn used_rounds_down_and_ends_at_all() {
        assert_eq!(part_used(99_999, 100_000), Some(99_999));
        assert_eq!(part_used(199_999, 200_000), Some(99_999));
        assert_eq!(part_used(3, 2), Some(100_000));
        assert_eq!(part_used(0, 0), None);
    }

    #[test]
    fn looser_is_more_of_what_is_bad_and_less_of_what_is_good() {
        let before = Expect { used: Some(99_000), over: Some(0), p99: Some(Span(1_000)), ..Expect::default() };
        assert_eq!(before.looser_than(&before), Vec::<&str>::new());
        assert_eq!(Expect { used: Some(99_500), calls: Some(9), ..before }.looser_than(&before), Vec::<&str>::new());
        assert_eq!(
            Expect { used: Some(98_999), p99: Some(Span(1_001)), ..before }.looser_than(&before),
            ["p99", "used"]
        );
        assert_eq!(Expect { over: None, ..before }.looser_than(&before), ["over"]);
    }
}
