//! Which charts a run gets, and what is in them.

use rationd::core::limit::Algorithm;

use super::chart::{Chart, Look, Mark, Points};
use super::lanes;
use crate::ledger::percent;
use crate::outcome::Outcome;
use crate::series::{Bucket, Series, Track, Window};

/// Buckets that are taken together where single ones are too few to show a rate.
const TOGETHER: usize = 4;

/// Policies that get charts of their own.
const TRACKS: usize = 4;

/// All charts of a run; nothing when its series were not kept.
pub(super) fn of_run(outcome: &Outcome) -> String {
    let series = &outcome.series;
    if series.is_empty() {
        return String::new();
    }
    let mut html = String::from("<div class=\"charts\">\n");
    html += &lanes::faults(series);
    for track in series.tracks.iter().filter(|track| !track.windows.is_empty()).take(TRACKS) {
        html += &admitted(outcome, track).html();
        html += &distance(outcome, track).html();
    }
    for chart in [nodes(outcome), share(outcome), calls(outcome), checks(outcome), batches(outcome), tokens(outcome)] {
        html += &chart.html();
    }
    html += &lanes::fairness(series, outcome);
    html + "</div>\n"
}

fn chart<'a>(outcome: &'a Outcome, title: &str, note: &str, unit: &'static str, marks: Vec<Mark>) -> Chart<'a> {
    let series = &outcome.series;
    Chart {
        title: title.to_owned(),
        note: note.to_owned(),
        unit,
        marks,
        range: None,
        end: series.end(),
        warm: outcome.plan.warm_up.0,
        faults: &series.bars,
    }
}

fn mark(name: &str, colour: &'static str, look: Look, points: Points) -> Mark {
    Mark { name: name.to_owned(), colour, look, points }
}

fn admitted<'a>(outcome: &'a Outcome, track: &Track) -> Chart<'a> {
    let step = |value: fn(&Window) -> u64| steps(track, |window| value(window) as f64);
    let (limit, admitted) = (step(|window| window.limit), step(|window| window.admitted));
    let highest = |points: &Points| points.iter().map(|point| point.1).fold(0.0, f64::max);
    let top = highest(&limit).max(highest(&admitted)) * 1.1;
    let mut marks = vec![
        mark("admitted", "s1", Look::Area, admitted),
        mark("asked for, each key up to its limit", "s2", Look::Line, step(|window| window.wanted)),
        mark("limit of the keys asked about", "ink", Look::Dashed, limit),
    ];
    if let Some(bound) = bound(track) {
        marks.push(bound);
    }
    let title = format!("Admitted against the limit: {} ({})", track.policy, track.limit);
    let note = "Tokens in each window by the clock of the key's owner, all keys together. \
                The first and the last window may be cut.";
    Chart { range: Some((0.0, top.max(1.0))), ..chart(outcome, &title, note, "tokens per window", marks) }
}

/// The line of the most that may be admitted in a period, if that is above the limit, as with a bucket's burst.
fn bound(track: &Track) -> Option<Mark> {
    let limit = &track.limit;
    let refilled = limit.count as f64 * track.period as f64 / limit.period.0 as f64;
    let part = (refilled + limit.burst as f64) / refilled;
    (limit.algorithm == Algorithm::Gcra)
        .then(|| mark("limit and whole burst", "s4", Look::Dashed, steps(track, |window| window.limit as f64 * part)))
}

fn distance<'a>(outcome: &'a Outcome, track: &Track) -> Chart<'a> {
    let points = steps(track, |window| 100.0 - window.fullest as f64 / 1_000.0);
    let bound = points.iter().map(|point| (point.0, 0.0)).collect();
    let lowest = points.iter().map(|point| point.1).fold(0.0, f64::min);
    let highest = points.iter().map(|point| point.1).fold(4.0, f64::max);
    let range = Some((lowest * 1.1 - 0.02 * highest, highest * 1.1));
    let marks =
        vec![mark("left to the fullest key", "s1", Look::Line, points), mark("the limit", "ink", Look::Dashed, bound)];
    let title = format!("Distance to the bound: {}", track.policy);
    let note = match track.limit.algorithm {
        Algorithm::Gcra => {
            "How much of a period's tokens the fullest key left; a burst goes below zero, up to its size."
        }
        Algorithm::FixedFromFirst => {
            "By aligned windows: those of this limit begin with a request and may lie across two."
        }
        Algorithm::Fixed | Algorithm::Sliding | Algorithm::Concurrent => {
            "How much of its limit the fullest key left in each window."
        }
    };
    Chart { range, ..chart(outcome, &title, note, "% of the limit", marks) }
}

fn nodes(outcome: &Outcome) -> Chart<'_> {
    let points = each(&outcome.series, 1, |bucket, _| f64::from(bucket.nodes));
    let marks = vec![mark("nodes", "s1", Look::Area, points)];
    chart(outcome, "Nodes", "Daemons that are up.", "nodes", marks)
}

fn share(outcome: &Outcome) -> Chart<'_> {
    let series = &outcome.series;
    let limit = series.tracks.first().map_or(0, |track| track.limit.capacity()) as f64;
    let even = |bucket: &Bucket, _| if bucket.nodes > 0 { limit / f64::from(bucket.nodes) } else { f64::NAN };
    let marks = vec![
        mark(
            "limit / nodes as the store counts them",
            "s1",
            Look::Line,
            each(series, 1, |bucket, _| bucket.share as f64),
        ),
        mark("limit / nodes that are up", "ink", Look::Dashed, each(series, 1, even)),
    ];
    let note = "A node's part of the first policy's limit: it follows the nodes that ask, up to two windows later.";
    chart(outcome, "Share of one node", note, "tokens", marks)
}

fn calls(outcome: &Outcome) -> Chart<'_> {
    let per_1000 = |part: fn(&Bucket) -> u64| {
        each(&outcome.series, TOGETHER, move |bucket, _| ratio(part(bucket) as f64 * 1_000.0, bucket.checks as f64))
    };
    let marks = vec![
        mark("store calls", "s1", Look::Line, per_1000(|bucket| bucket.calls)),
        mark("checks that waited", "s2", Look::Line, per_1000(|bucket| bucket.waited)),
    ];
    let note = "What the store is asked, and how often a client notices.";
    chart(outcome, "Store calls as a share of checks", note, "per 1000 checks", marks)
}

fn checks(outcome: &Outcome) -> Chart<'_> {
    let rate = |part: fn(&Bucket) -> u64| {
        each(&outcome.series, TOGETHER, move |bucket, seconds| ratio(part(bucket) as f64, seconds))
    };
    let marks = vec![
        mark("checks", "s2", Look::Line, rate(|bucket| bucket.checks)),
        mark("admitted", "s1", Look::Area, rate(|bucket| bucket.admitted)),
        mark("admitted on a share, the store away", "s3", Look::Line, rate(|bucket| bucket.on_share)),
    ];
    chart(outcome, "Checks", "Answered by the whole fleet.", "per second", marks)
}

fn batches(outcome: &Outcome) -> Chart<'_> {
    let mean = |bucket: &Bucket, _| ratio(bucket.tokens.granted as f64, bucket.grants as f64);
    let most = |bucket: &Bucket, _| if bucket.grants > 0 { bucket.largest as f64 } else { f64::NAN };
    let marks = vec![
        mark("mean", "s1", Look::Area, each(&outcome.series, TOGETHER, mean)),
        mark("largest", "s4", Look::Line, each(&outcome.series, TOGETHER, most)),
    ];
    chart(outcome, "Batch sizes", "Tokens lent by one store call, where any were.", "tokens per grant", marks)
}

fn tokens(outcome: &Outcome) -> Chart<'_> {
    let rate = |part: fn(&Bucket) -> u64| {
        each(&outcome.series, TOGETHER, move |bucket, seconds| part(bucket) as f64 / seconds)
    };
    let marks = vec![
        mark("spent", "s1", Look::Stack, rate(|bucket| bucket.tokens.spent)),
        mark("returned", "s3", Look::Stack, rate(|bucket| bucket.tokens.returned)),
        mark("expired", "s2", Look::Stack, rate(|bucket| bucket.tokens.expired)),
    ];
    let tokens = outcome.figures.tokens;
    let part = |some: u64| percent((u128::from(some) * 100_000).checked_div(tokens.granted.into()).unwrap_or(0) as u64);
    let note = format!(
        "By the nodes' own books: {} of what was lent was spent, {} returned to be lent again, {} expired unused.",
        part(tokens.spent),
        part(tokens.returned),
        part(tokens.expired)
    );
    chart(outcome, "What became of lent tokens", &note, "tokens per second", marks)
}

/// A point in the middle of so many buckets taken together; `value` gets their sum and their
/// seconds.
fn each(series: &Series, together: usize, value: impl Fn(&Bucket, f64) -> f64) -> Points {
    let width = series.width as f64;
    let chunks = series.buckets.chunks(together).enumerate();
    let point = |(index, chunk): (usize, &[Bucket])| {
        let length = chunk.len() as f64 * width;
        let start = (index * together) as f64 * width;
        (start + length / 2.0, value(&sum(chunk), length / 1e6))
    };
    chunks.map(point).collect()
}

/// Sums buckets up; states, which are no counts, are those of the last one.
fn sum(buckets: &[Bucket]) -> Bucket {
    let mut all = buckets[buckets.len() - 1];
    for bucket in &buckets[..buckets.len() - 1] {
        all.checks += bucket.checks;
        all.admitted += bucket.admitted;
        all.on_share += bucket.on_share;
        all.waited += bucket.waited;
        all.calls += bucket.calls;
        all.grants += bucket.grants;
        all.largest = all.largest.max(bucket.largest);
        all.tokens.granted += bucket.tokens.granted;
        all.tokens.spent += bucket.tokens.spent;
        all.tokens.returned += bucket.tokens.returned;
        all.tokens.expired += bucket.tokens.expired;
    }
    all
}

/// A level for each window, from its start to its end.
fn steps(track: &Track, value: impl Fn(&Window) -> f64) -> Points {
    let windows = track.windows.iter().enumerate();
    let edges = windows.flat_map(|(index, window)| {
        let start = track.start as f64 + index as f64 * track.period as f64;
        [(start, value(window)), (start + track.period as f64, value(window))]
    });
    edges.collect()
}

/// A gap where there is nothing to divide by.
fn ratio(some: f64, all: f64) -> f64 {
    if all > 0.0 { some / all } else { f64::NAN }
}
