//! Charts over many runs: one dot each, in the order of the runs, those that fail in red on top.

use std::fmt::Write as _;

use super::chart::{LEFT, RIGHT, figure, svg_begin, value_axis};
use super::html::escape;
use super::scale::{Axis, short};
use crate::ledger::{percent, thousandths};
use crate::outcome::Outcome;

const TOP: f64 = 22.0;
const BOTTOM: f64 = 176.0;
const HEIGHT: f64 = 210.0;

/// One value of each run; `None` where a run has none.
type Values = Vec<Option<f64>>;

/// How much of a limit the fullest window of each run left.
pub(super) fn distance(runs: &[Outcome]) -> String {
    let left = |run: &Outcome| {
        let figures = &run.figures;
        (figures.windows > 0).then(|| 100.0 - figures.window_peak as f64 / 1_000.0)
    };
    let values: Values = runs.iter().map(left).collect();
    let known = || values.iter().flatten();
    let (exact, over) = (known().filter(|left| **left == 0.0).count(), known().filter(|left| **left < 0.0).count());
    let note = format!(
        "What the fullest window left of its limit; at the dashed line it was filled to the last token. \
         {exact} runs on it, {over} below, {} above, {} without a counted window.",
        known().count() - exact - over,
        values.len() - known().count()
    );
    dots("Distance to the bound", &note, "% of the limit", runs, &values, Some(0.0))
}

/// What each run admitted of what was possible.
pub(super) fn used(runs: &[Outcome]) -> String {
    let values: Values = runs.iter().map(|run| Some(run.figures.used? as f64 / 1_000.0)).collect();
    let lowest = runs.iter().filter_map(|run| run.figures.used).min();
    let least = lowest.map_or("no run measured it".to_owned(), |used| format!("at least {}", percent(used)));
    let note = format!("Tokens admitted of those that an exact counter admits of the same checks: {least}.");
    dots("Used of what was possible", &note, "%", runs, &values, None)
}

/// The chart; `bound` is a line below which no run may be.
fn dots(title: &str, note: &str, unit: &str, runs: &[Outcome], values: &Values, bound: Option<f64>) -> String {
    let x = Axis { low: 0.0, high: runs.len() as f64, from: LEFT, to: RIGHT };
    let y = value_range(values, bound);
    let mut svg = svg_begin(HEIGHT, title);
    svg += &value_axis(y, unit);
    if let Some(bound) = bound {
        svg += &forbidden(y.place(bound));
    }
    svg += &marks(runs, values, x, y);
    for tick in x.ticks(6) {
        let (place, name) = (x.place(tick), short(tick));
        let _ = writeln!(svg, "<text x=\"{place:.1}\" y=\"191\" text-anchor=\"middle\">{name}</text>");
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"206\" text-anchor=\"middle\">runs, in their order</text>");
    svg.push_str("</svg>\n");
    let keys = "<span><i class=\"s1 block\"></i>run that holds</span>\
                <span><i class=\"fault block\"></i>run that fails</span>";
    figure("", title, note, keys, &svg)
}

/// From the lowest to the highest value and the bound, with a little room.
fn value_range(values: &Values, bound: Option<f64>) -> Axis {
    let all = || values.iter().flatten().copied().chain(bound);
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max));
    let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
    let room = ((high - low) * 0.08).max(0.05);
    Axis { low: low - room, high: high + room, from: BOTTOM, to: TOP }
}

/// The bound, and the side of it where nothing may be.
fn forbidden(bound: f64) -> String {
    let (width, height) = (RIGHT - LEFT, BOTTOM - bound);
    format!(
        "<rect class=\"shade\" x=\"{LEFT}\" y=\"{bound:.1}\" width=\"{width}\" height=\"{height:.1}\"/>\
         <path class=\"line ink dash\" d=\"M{LEFT} {bound:.1}H{RIGHT}\"/>\n"
    )
}

/// A path for the runs that hold, a dot with its name for each that fails.
fn marks(runs: &[Outcome], values: &Values, x: Axis, y: Axis) -> String {
    let (mut good, mut bad) = (String::new(), String::new());
    for (index, (run, value)) in runs.iter().zip(values).enumerate() {
        let Some(value) = *value else { continue };
        let (across, down) = (x.place(index as f64 + 0.5), y.place(value));
        if run.is_good() {
            let _ = write!(good, "M{across:.1} {down:.1}h0");
            continue;
        }
        let value = thousandths((value.abs() * 1_000.0).round() as u64);
        let title = escape(&format!("{} seed {}: {value} %; {}", run.plan.name, run.plan.seed, run.command));
        let _ = writeln!(
            bad,
            "<circle class=\"dot\" cx=\"{across:.1}\" cy=\"{down:.1}\" r=\"3.5\"><title>{title}</title></circle>"
        );
    }
    format!("<path class=\"dots\" d=\"{good}\"/>\n{bad}")
}
