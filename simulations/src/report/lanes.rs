//! Charts of a run that are not lines over time: faults in lanes, fairness by node.

use std::fmt::Write as _;

use super::chart::{LEFT, RIGHT, figure, svg_begin, time_axis, value_axis};
use super::html::escape;
use super::scale::{Axis, grouped, round_step};
use crate::ledger::thousandths;
use crate::outcome::Outcome;
use crate::series::{Bar, Node, Series};

/// More faults than these are not named one by one.
const LANES: usize = 24;
const LANE: f64 = 18.0;
/// About the width of a letter.
const LETTER: f64 = 6.6;

/// Each fault in a lane of its own, with its name; nothing without faults.
pub(super) fn faults(series: &Series) -> String {
    if series.bars.is_empty() {
        return String::new();
    }
    let shown = &series.bars[..series.bars.len().min(LANES)];
    let bottom = 10.0 + LANE * shown.len() as f64;
    let x = Axis { low: 0.0, high: series.end() as f64, from: LEFT, to: RIGHT };
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
