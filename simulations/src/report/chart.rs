//! One chart as inline SVG: a time axis, a value axis, lines, areas and stacks over it, and the
//! faults behind them. Wide enough for a column of a page and legible at the width of a phone.

use std::fmt::Write as _;

use super::html::escape;
use super::scale::{Axis, round_top, short, time_unit};
use crate::series::Bar;

pub(super) const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 210.0;
pub(super) const LEFT: f64 = 46.0;
pub(super) const RIGHT: f64 = WIDTH - 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = HEIGHT - 34.0;

/// True microseconds and values.
pub(super) type Points = Vec<(f64, f64)>;

/// How a series of points is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// A pale area under a line.
    Area,
    /// A filled area on top of the stacks before it.
    Stack,
}

/// Points under one name. The place of a point is in true microseconds; NaN leaves a gap.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) name: String,
    /// The colour: `s1` to `s4`, `ink`.
    pub(super) colour: &'static str,
    pub(super) look: Look,
    pub(super) points: Points,
}

/// A chart over the time of a run.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: String,
    /// A sentence on how to read it.
    pub(super) note: String,
    /// What the values are.
    pub(super) unit: &'static str,
    pub(super) marks: Vec<Mark>,
    /// The lowest and the highest value shown; zero and the highest of all marks when not given.
    pub(super) range: Option<(f64, f64)>,
    /// The end of the run and of its warm-up, in true microseconds.
    pub(super) end: u64,
    pub(super) warm: u64,
    pub(super) faults: &'a [Bar],
}

impl Chart<'_> {
    /// The chart with title and legend.
    pub(super) fn html(&self) -> String {
        let x = Axis { low: 0.0, high: self.end as f64, from: LEFT, to: RIGHT };
        let (low, high) = self.range.unwrap_or_else(|| (0.0, round_top(self.highest())));
        let y = Axis { low, high, from: BOTTOM, to: TOP };
        let mut svg = svg_begin(HEIGHT, &self.title);
        svg += &behind(x, self.faults, self.warm, TOP, BOTTOM);
        svg += &value_axis(y, self.unit);
        svg += &time_axis(x, self.end, BOTTOM);
        svg += &self.draw(x, y);
        svg.push_str("</svg>\n");
        figure("", &self.title, &self.note, &self.keys(), &svg)
    }

    /// The highest value, of stacks the highest sum.
    fn highest(&self) -> f64 {
        let sums = self.stacks().into_iter().flat_map(|(_, upper, _)| upper);
        let lines = self.marks.iter().filter(|mark| mark.look != Look::Stack).flat_map(|mark| mark.points.clone());
        sums.chain(lines).map(|(_, value)| value).filter(|value| value.is_finite()).fold(0.0, f64::max)
    }

    /// Each stack's lower and upper edge, and its colour.
    fn stacks(&self) -> Vec<(Points, Points, &'static str)> {
        let mut lower = Points::new();
        let mut stacks = Vec::new();
        for mark in self.marks.iter().filter(|mark| mark.look == Look::Stack) {
            if lower.is_empty() {
                lower = mark.points.iter().map(|(at, _)| (*at, 0.0)).collect();
            }
            let upper: Points = mark.points.iter().zip(&lower).map(|(top, below)| (top.0, top.1 + below.1)).collect();
            stacks.push((std::mem::replace(&mut lower, upper.clone()), upper, mark.colour));
        }
        stacks
    }

    fn draw(&self, x: Axis, y: Axis) -> String {
        let mut svg = String::new();
        for (lower, mut upper, colour) in self.stacks() {
            upper.extend(lower.into_iter().rev());
            let _ = writeln!(svg, "<path class=\"fill {colour}\" d=\"{}Z\"/>", path(&upper, x, y));
        }
        for mark in self.marks.iter().filter(|mark| mark.look != Look::Stack) {
            for points in mark.points.split(|(_, value)| value.is_nan()).filter(|points| !points.is_empty()) {
                svg += &stroke(mark, points, x, y);
            }
        }
        svg
    }

    /// The legend, also of one mark: the title seldom names it.
    fn keys(&self) -> String {
        let mut keys = String::new();
        for mark in &self.marks {
            let look = match mark.look {
                Look::Line => "",
                Look::Dashed => " dash",
                Look::Area | Look::Stack => " block",
            };
            let _ = write!(keys, "<span><i class=\"{}{look}\"></i>{}</span>", mark.colour, escape(&mark.name));
        }
        if !self.faults.is_empty() {
            keys.push_str("<span><i class=\"block fault\"></i>fault</span>");
        }
        keys
    }
}

/// A figure of a page around an SVG.
pub(super) fn figure(class: &str, title: &str, note: &str, keys: &str, svg: &str) -> String {
    let (title, note) = (escape(title), escape(note));
    let keys = if keys.is_empty() { String::new() } else { format!("<div class=\"keys\">{keys}</div>\n") };
    format!("<figure class=\"{class}\">\n<h3>{title}</h3>\n<p class=\"soft\">{note}</p>\n{keys}{svg}</figure>\n")
}

/// The opening tag; it ends with a new line.
pub(super) fn svg_begin(height: f64, title: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n", escape(title))
}

/// The warm-up and the faults, behind the marks.
pub(super) fn behind(x: Axis, faults: &[Bar], warm: u64, top: f64, bottom: f64) -> String {
    let (mut svg, height) = (String::new(), bottom - top);
    if warm > 0 {
        let width = x.place(warm as f64) - x.from;
        let title = "<title>warm-up</title>";
        let _ = writeln!(
            svg,
            "<rect class=\"warm\" x=\"{:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\">{title}</rect>",
            x.from
        );
    }
    for bar in faults {
        let (from, until) = (x.place(bar.from as f64), x.place(bar.until.map_or(x.high, |until| until as f64)));
        let title = escape(&bar.label);
        let _ = if until - from < 1.0 {
            writeln!(
                svg,
                "<path class=\"moment\" d=\"M{from:.1} {top}V{bottom}\"><title>{title}</title></path>\
                 <path class=\"fault\" d=\"M{from:.1} {top}l-4 -5h8Z\"/>"
            )
        } else {
            writeln!(
                svg,
                "<rect class=\"shade\" x=\"{from:.1}\" y=\"{top}\" width=\"{0:.1}\" height=\"{height}\">\
                 <title>{title}</title></rect><rect class=\"fault\" x=\"{from:.1}\" y=\"{1}\" width=\"{0:.1}\" \
                 height=\"3\"/>",
                until - from,
                top - 4.0
            )
        };
    }
    svg
}

/// Lines and numbers of the value axis.
pub(super) fn value_axis(y: Axis, unit: &str) -> String {
    let mut svg = format!("<text x=\"2\" y=\"11\">{}</text>\n", escape(unit));
    for tick in y.ticks(4) {
        let place = y.place(tick);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {place:.1}H{RIGHT}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            place + 4.0,
            short(tick)
        );
    }
    svg
}

/// Numbers and name of the time axis.
pub(super) fn time_axis(x: Axis, end: u64, bottom: f64) -> String {
    let (unit, name) = time_unit(end);
    let scaled = Axis { high: x.high / unit, ..x };
    let mut svg = format!("<path class=\"axis\" d=\"M{LEFT} {bottom}H{RIGHT}\"/>\n");
    for tick in scaled.ticks(6) {
        let place = scaled.place(tick);
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{place:.1} {bottom}v4\"/>\
             <text x=\"{place:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 15.0,
            short(tick)
        );
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{name} since the start</text>",
        bottom + 30.0
    );
    svg
}

/// A line without gaps, and the area below it.
fn stroke(mark: &Mark, points: &[(f64, f64)], x: Axis, y: Axis) -> String {
    let (line, colour) = (path(points, x, y), mark.colour);
    let mut svg = String::new();
    if mark.look == Look::Area {
        let (first, last) = (x.place(points[0].0), x.place(points[points.len() - 1].0));
        let floor = y.place(0.0);
        let area = format!("{line}L{last:.1} {floor:.1}L{first:.1} {floor:.1}Z");
        let _ = writeln!(svg, "<path class=\"fill pale {colour}\" d=\"{area}\"/>");
    }
    let dash = if mark.look == Look::Dashed { " dash" } else { "" };
    let _ = writeln!(svg, "<path class=\"line {colour}{dash}\" d=\"{line}\"/>");
    svg
}

/// The points as a path.
fn path(points: &[(f64, f64)], x: Axis, y: Axis) -> String {
    let mut path = String::new();
    let mut pen = 'M';
    for (at, value) in points {
        let _ = write!(path, "{pen}{:.1} {:.1}", x.place(*at), y.place(*value));
        pen = 'L';
    }
    path
}
