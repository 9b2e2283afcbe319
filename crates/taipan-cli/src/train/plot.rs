//! A picture of losses: axes, lines and their names.

use std::fmt::Write;

use super::sparkline::range;
use crate::svg::{Axis, Point, escaped, segment, text};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;

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

/// The horizontal axis.
pub struct Horizontal {
    pub axis: Axis,
    pub name: &'static str,
    pub label: fn(&Axis, f64) -> String,
}

pub struct Plot {
    x: Horizontal,
    y: Axis,
    svg: String,
}

impl Plot {
    /// A plot of these losses, so far without them.
    pub fn new(title: &str, x: Horizontal, losses: &[f64]) -> Plot {
        let (min, max) = if losses.is_empty() { (0.0, 1.0) } else { range(losses) };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
            title = escaped(title)
        );
        text(&mut svg, "start", (LEFT, 26.0), title);
        let mut plot = Plot { x, y: Axis::rounded(min, max), svg };
        plot.axes();
        plot
    }

    fn position(&self, (x, y): Point) -> Point {
        let right = LEFT + self.x.axis.fraction(x) * (WIDTH - LEFT - RIGHT);
        (right, HEIGHT - BOTTOM - self.y.fraction(y) * (HEIGHT - TOP - BOTTOM))
    }

    fn axes(&mut self) {
        for value in self.y.ticks() {
            let (left, y) = self.position((self.x.axis.min, value));
            segment(&mut self.svg, "grid", (left, y), (WIDTH - RIGHT, y));
            text(&mut self.svg, "end", (left - 8.0, y + 4.0), &self.y.label(value));
        }
        for value in self.x.axis.ticks() {
            let (x, bottom) = self.position((value, self.y.min));
            segment(&mut self.svg, "axis", (x, bottom), (x, bottom + 5.0));
            let label = (self.x.label)(&self.x.axis, value);
            text(&mut self.svg, "middle", (x, bottom + 20.0), &label);
        }
        let bottom = HEIGHT - BOTTOM;
        segment(&mut self.svg, "axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        let centre = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0);
        text(&mut self.svg, "middle", centre, self.x.name);
        let middle = (TOP + bottom) / 2.0;
        let _ = writeln!(
            self.svg,
            "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">\
             loss, nats per token</text>"
        );
    }

    pub fn line(&mut self, class: &str, points: &[Point]) {
        let _ = write!(self.svg, "<polyline class=\"{class}\" points=\"");
        for point in points {
            let (x, y) = self.position(*point);
            let _ = write!(self.svg, "{x:.1},{y:.1} ");
        }
        self.svg.push_str("\"/>\n");
    }

    pub fn dots(&mut self, class: &str, points: &[Point]) {
        for point in points {
            let (x, y) = self.position(*point);
            let circle = format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\"");
            let _ = writeln!(self.svg, "{circle} r=\"2.5\"/>");
        }
    }

    /// The name of a line, so far from the right.
    pub fn legend(&mut self, class: &str, name: &str, from_right: f64) {
        let x = WIDTH - RIGHT - from_right;
        let line = format!("points=\"{x},22 {},22\"", x + 24.0);
        let _ = writeln!(self.svg, "<polyline class=\"{class}\" {line}/>");
        text(&mut self.svg, "start", (x + 30.0, 26.0), name);
    }

    pub fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}
