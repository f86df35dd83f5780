//! Charts without a value axis or without time: faults in lanes, fairness by node, the distance to
//! the bound over seeds.

use std::fmt::Write as _;

use super::chart::{LEFT, RIGHT, behind, figure, svg_begin, time_axis, value_axis};
use super::html::escape;
use super::scale::{Axis, grouped, round_step, short};
use crate::ledger::{percent, thousandths};
use crate::outcome::Outcome;
use crate::series::{Bar, Node, Series};

/// More faults than these are not named one by one.
const LANES: usize = 24;
const LANE: f64 = 18.0;
/// About the width of a letter.
const LETTER: f64 = 5.9;

/// Each fault in a lane of its own, with its name; nothing without faults.
pub(super) fn faults(series: &Series) -> String {
    if series.bars.is_empty() {
        return String::new();
    }
    let shown = &series.bars[..series.bars.len().min(LANES)];
    let bottom = 10.0 + LANE * shown.len() as f64;
    let x = Axis { low: 0.0, high: series.end() as f64, from: 12.0, to: RIGHT };
    let mut svg = svg_begin(bottom + 36.0, "faults");
    for (lane, bar) in shown.iter().enumerate() {
        svg += &lane_of(bar, 8.0 + LANE * lane as f64, x);
    }
    svg += &time_axis(x, series.end(), bottom);
    svg.push_str("</svg>\n");
    let note = match series.bars.len() - shown.len() {
        0 => "When which fault was there. The same times are shaded in every chart below.".to_owned(),
        more => format!("The first {LANES} faults; {more} more are only shaded in the charts below."),
    };
    figure("", "Faults", &note, "", &svg)
}

/// A bar with its name where there is room: behind it, before it, or else on it.
fn lane_of(bar: &Bar, top: f64, x: Axis) -> String {
    let (from, until) = (x.place(bar.from as f64), x.place(bar.until.map_or(x.high, |until| until as f64)));
    let width = (until - from).max(3.0);
    let room = LETTER * bar.label.chars().count() as f64 + 8.0;
    let (place, anchor) = if from + width + room <= x.to {
        (from + width + 6.0, "start")
    } else if from - room >= x.from {
        (from - 6.0, "end")
    } else {
        (from.max(x.from) + 6.0, "start")
    };
    let (box_top, text_top) = (top + 3.0, top + 12.0);
    format!(
        "<rect class=\"shade\" x=\"{from:.1}\" y=\"{box_top}\" width=\"{width:.1}\" height=\"11\"/>\
         <rect class=\"fault\" x=\"{from:.1}\" y=\"{box_top}\" width=\"3\" height=\"11\"/>\
         <text class=\"name\" x=\"{place:.1}\" y=\"{text_top}\" text-anchor=\"{anchor}\">{}</text>\n",
        escape(&bar.label)
    )
}

/// What each node admitted of what it was asked, as bars.
pub(super) fn fairness(series: &Series, outcome: &Outcome) -> String {
    let asked: Vec<(usize, &Node)> = series.nodes.iter().enumerate().filter(|(_, node)| node.checks > 0).collect();
    let y = Axis { low: 0.0, high: 100.0, from: 176.0, to: 22.0 };
    let mut svg = svg_begin(210.0, "fairness");
    svg += &value_axis(y, "% admitted of what the node was asked");
    let step = (RIGHT - LEFT) / asked.len().max(1) as f64;
    let width = (step * 0.8).min(36.0).max(step * 0.5);
    for (place, (number, node)) in asked.iter().enumerate() {
        let part = node.admitted as f64 * 100.0 / node.checks as f64;
        let (left, top) = (LEFT + step * (place as f64 + 0.5) - width / 2.0, y.place(part));
        let _ = writeln!(
            svg,
            "<rect class=\"fill s1\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\">\
             <title>node {number}: {} of {} checks</title></rect>",
            y.from - top,
            grouped(node.admitted),
            grouped(node.checks)
        );
    }
    let every = (asked.len() as f64 * 26.0 / (RIGHT - LEFT)).max(1.0);
    let every = round_step(every) as usize;
    for (place, (number, _)) in asked.iter().enumerate().filter(|(place, _)| place.is_multiple_of(every)) {
        let middle = LEFT + step * (place as f64 + 0.5);
        let _ = writeln!(svg, "<text x=\"{middle:.1}\" y=\"191\" text-anchor=\"middle\">{number}</text>");
    }
    let _ = writeln!(svg, "<text x=\"{}\" y=\"206\" text-anchor=\"middle\">node</text>", (LEFT + RIGHT) / 2.0);
    svg.push_str("</svg>\n");
    let note = format!("Jain's index {} (1 = all nodes alike).", thousandths(outcome.figures.fairness));
    figure("", "Fairness between nodes", &note, "", &svg)
}

/// How much of a limit the fullest window of each run left, in the order of the runs.
pub(super) fn distance(outcomes: &[Outcome]) -> String {
    let left = |outcome: &Outcome| 100.0 - outcome.figures.window_peak as f64 / 1_000.0;
    let measured = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.figures.windows > 0);
    let places: Vec<(usize, f64, &Outcome)> = measured.map(|(index, run)| (index, left(run), run)).collect();
    let lowest = places.iter().map(|(_, left, _)| *left).fold(0.0, f64::min);
    let highest = places.iter().map(|(_, left, _)| *left).fold(1.0, f64::max);
    let margin = (highest - lowest) * 0.06;
    let x = Axis { low: 0.0, high: outcomes.len() as f64, from: LEFT, to: RIGHT };
    let y = Axis { low: lowest - margin, high: highest + margin, from: 176.0, to: 22.0 };
    let mut svg = svg_begin(210.0, "distance to the bound");
    svg += &value_axis(y, "% of the limit left in the fullest window");
    let (bound, end) = (y.place(0.0), y.from);
    if lowest < 0.0 {
        svg += &behind(Axis { low: 0.0, high: 1.0, ..x }, &beyond(), 0, bound, end);
    }
    let _ = writeln!(svg, "<path class=\"line ink dash\" d=\"M{LEFT} {bound:.1}H{RIGHT}\"/>");
    svg += &dots(&places, x, y);
    for tick in x.ticks(6) {
        let place = x.place(tick);
        let _ = writeln!(svg, "<text x=\"{place:.1}\" y=\"191\" text-anchor=\"middle\">{}</text>", short(tick));
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"206\" text-anchor=\"middle\">runs, in their order</text>");
    svg.push_str("</svg>\n");
    let exact = places.iter().filter(|(_, left, _)| *left == 0.0).count();
    let over = places.iter().filter(|(_, left, _)| *left < 0.0).count();
    let note = format!(
        "At the dashed line a window was filled to the last token, below it more was admitted than the limit. \
         {exact} runs on it, {over} below, {} above; {} without a counted window.",
        places.len() - exact - over,
        outcomes.len() - places.len()
    );
    let keys = "<span><i class=\"block s1\"></i>run that holds</span>\
                <span><i class=\"block fault\"></i>run that fails</span>";
    figure("broad", "Distance to the bound", &note, keys, &svg)
}

/// The side of the bound where nothing may be.
fn beyond() -> [Bar; 1] {
    [Bar { label: "more than the limit".into(), from: 0, until: Some(1) }]
}

/// A path for the runs that hold, a dot with its name for each that fails.
fn dots(places: &[(usize, f64, &Outcome)], x: Axis, y: Axis) -> String {
    let (mut good, mut bad) = (String::new(), String::new());
    for (index, left, run) in places {
        let (across, down) = (x.place(*index as f64 + 0.5), y.place(*left));
        let _ = if run.is_good() {
            write!(good, "M{across:.1} {down:.1}h0")
        } else {
            let (seed, peak) = (run.plan.seed, percent(run.figures.window_peak));
            let title = escape(&format!("seed {seed}: {peak} of the limit; {}", run.command));
            writeln!(
                bad,
                "<circle class=\"dot\" cx=\"{across:.1}\" cy=\"{down:.1}\" r=\"3.5\"><title>{title}</title></circle>"
            )
        };
    }
    format!("<path class=\"dots\" d=\"{good}\"/>\n{bad}")
}
