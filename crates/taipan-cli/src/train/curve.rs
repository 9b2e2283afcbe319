//! `loss.svg`: the curves of the loss.

use std::fmt::Write;

use super::metrics::Row;
use super::sparkline::range;
use crate::svg::{Axis, Point, escaped, segment, text};

pub const FILE: &str = "loss.svg";

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// A curve has at most this many points: one for each pixel or so.
const POINTS: usize = 800;

/// Colours of both kinds of page.
const STYLE: &str = "
svg { font: 13px system-ui, sans-serif; }
.page { fill: #ffffff; } text { fill: #333333; }
.grid { stroke: #e3e3e3; } .axis { stroke: #777777; }
.raw, .train { stroke: #2f6fb3; } .val { stroke: #c4501b; } circle.val { fill: #c4501b; }
@media (prefers-color-scheme: dark) {
.page { fill: #16181d; } text { fill: #d0d3d9; }
.grid { stroke: #2d3138; } .axis { stroke: #8a8f99; }
.raw, .train { stroke: #6db3f2; } .val { stroke: #ff9d66; } circle.val { fill: #ff9d66; }
}
polyline { fill: none; stroke-linejoin: round; stroke-width: 2; }
.raw { stroke-width: 1; stroke-opacity: 0.4; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
";

/// The training loss, raw and smoothed, and the loss on held-out text, by step.
pub fn svg(rows: &[Row], title: &str) -> String {
    let point = |row: &Row, loss: f64| (row.step as f64, loss);
    let raw: Vec<Point> =
        rows.iter().filter_map(|row| Some(point(row, row.training.as_ref()?.loss))).collect();
    let val: Vec<Point> =
        rows.iter().filter_map(|row| Some(point(row, row.held_out?.val_loss))).collect();
    let plot = Plot::new(raw.iter().chain(&val));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        title = escaped(title)
    );
    plot.axes(&mut svg);
    plot.line(&mut svg, "raw", &thinned(&raw));
    plot.line(&mut svg, "train", &thinned(&smoothed(&raw)));
    plot.line(&mut svg, "val", &thinned(&val));
    if val.len() <= 40 {
        plot.dots(&mut svg, "val", &val);
    }
    text(&mut svg, "start", (LEFT, 26.0), title);
    legend(&mut svg, "train", "training", WIDTH - RIGHT - 200.0);
    legend(&mut svg, "val", "held-out", WIDTH - RIGHT - 96.0);
    svg.push_str("</svg>\n");
    svg
}

/// From steps and losses to the page.
struct Plot {
    x: Axis,
    y: Axis,
}

impl Plot {
    fn new<'a>(points: impl Iterator<Item = &'a Point>) -> Plot {
        let (mut x, y): (Vec<_>, Vec<_>) = points.copied().unzip();
        x.push(0.0);
        let (first, last) = range(&x);
        let (min, max) = if y.is_empty() { (0.0, 1.0) } else { range(&y) };
        Plot { x: Axis::exact(first, last.max(1.0)), y: Axis::rounded(min, max) }
    }

    fn position(&self, (x, y): Point) -> Point {
        let right = LEFT + self.x.fraction(x) * (WIDTH - LEFT - RIGHT);
        (right, HEIGHT - BOTTOM - self.y.fraction(y) * (HEIGHT - TOP - BOTTOM))
    }

    fn axes(&self, svg: &mut String) {
        for value in self.y.ticks() {
            let (left, y) = self.position((self.x.min, value));
            segment(svg, "grid", (left, y), (WIDTH - RIGHT, y));
            text(svg, "end", (left - 8.0, y + 4.0), &self.y.label(value));
        }
        for value in self.x.ticks() {
            let (x, bottom) = self.position((value, self.y.min));
            segment(svg, "axis", (x, bottom), (x, bottom + 5.0));
            text(svg, "middle", (x, bottom + 20.0), &self.x.label(value));
        }
        let bottom = HEIGHT - BOTTOM;
        segment(svg, "axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        text(svg, "middle", ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0), "step");
        let middle = (TOP + bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">\
             loss, nats per token</text>"
        );
    }

    fn line(&self, svg: &mut String, class: &str, points: &[Point]) {
        let _ = write!(svg, "<polyline class=\"{class}\" points=\"");
        for (x, y) in points.iter().map(|point| self.position(*point)) {
            let _ = write!(svg, "{x:.1},{y:.1} ");
        }
        svg.push_str("\"/>\n");
    }

    fn dots(&self, svg: &mut String, class: &str, points: &[Point]) {
        for (x, y) in points.iter().map(|point| self.position(*point)) {
            let _ =
                writeln!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
        }
    }
}

/// The mean over a twentieth of the points around each, so that the curve does not lag; over fewer
/// at the ends, as many on either side.
fn smoothed(points: &[Point]) -> Vec<Point> {
    let reach = points.len() / 40;
    let mut sums = vec![0.0];
    for (_, y) in points {
        sums.push(sums[sums.len() - 1] + y);
    }
    let smooth = |(i, (x, _)): (usize, &Point)| {
        let reach = reach.min(i).min(points.len() - 1 - i);
        let (first, end) = (i - reach, i + reach + 1);
        (*x, (sums[end] - sums[first]) / (end - first) as f64)
    };
    points.iter().enumerate().map(smooth).collect()
}

/// At max [`POINTS`] of them, with the last.
fn thinned(points: &[Point]) -> Vec<Point> {
    let every = points.len().div_ceil(POINTS).max(1);
    points.iter().rev().step_by(every).rev().copied().collect()
}

fn legend(svg: &mut String, class: &str, name: &str, x: f64) {
    let _ = writeln!(svg, "<polyline class=\"{class}\" points=\"{x},22 {},22\"/>", x + 24.0);
    text(svg, "start", (x + 30.0, 26.0), name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_a_constant_and_thinning_keeps_the_end() {
        let points: Vec<Point> = (0..5000).map(|x| (x as f64, 2.5)).collect();
        let smooth = thinned(&smoothed(&points));
        assert!(smooth.len() <= POINTS && smooth.last().unwrap().0 == 4999.0);
        assert!(smooth.iter().all(|(_, y)| (y - 2.5).abs() < 1e-12));
    }

    #[test]
    fn a_smoothed_curve_does_not_lag() {
        let falling: Vec<Point> = (0..1000).map(|x| (x as f64, 9.0 - x as f64 / 200.0)).collect();
        for ((_, y), (_, smooth)) in falling.iter().zip(smoothed(&falling)) {
            assert!((y - smooth).abs() < 1e-9, "{y} {smooth}");
        }
        let noisy: Vec<Point> = (0..1000).map(|x| (x as f64, (x % 2) as f64)).collect();
        let middle = &smoothed(&noisy)[100..900];
        assert!(middle.iter().all(|(_, y)| (y - 0.5).abs() < 0.02), "{middle:?}");
    }

    #[test]
    fn names_cannot_break_the_page() {
        let page = svg(&[], "a < b & c");
        assert!(page.contains("<title>a &lt; b &amp; c</title>"), "{page}");
    }
}
