//! The charts of the picture.

use std::fmt::Write;

use taipan_lm::{Attention, HALF_LIFE_EDGES};

use super::page::level;
use super::paragraph::visible;
use crate::svg::{Axis, Point, escaped, segment, text};

/// Where a chart is drawn.
#[derive(Clone, Copy)]
pub struct Frame {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Frame {
    pub fn below_heading(self) -> Frame {
        Frame { y: self.y + 36.0, ..self }
    }

    /// From fractions of its width and height; the second from below.
    fn at(&self, x: f64, y: f64) -> Point {
        (self.x + x * self.width, self.y + (1.0 - y) * self.height)
    }

    fn grid(&self, svg: &mut String, y: f64, label: &str) {
        let (left, y) = self.at(0.0, y);
        segment(svg, "grid", (left, y), (left + self.width, y));
        text(svg, "quiet end", (left - 8.0, y + 4.0), label);
    }

    fn tick(&self, svg: &mut String, x: f64, label: &str) {
        let (x, bottom) = self.at(x, 0.0);
        segment(svg, "axis", (x, bottom), (x, bottom + 4.0));
        text(svg, "quiet middle", (x, bottom + 18.0), label);
    }

    fn bottom_line(&self, svg: &mut String) {
        segment(svg, "axis", self.at(0.0, 0.0), self.at(1.0, 0.0));
    }

    /// Numbers of tokens below.
    fn token_axis(&self, svg: &mut String, tokens: usize) {
        self.bottom_line(svg);
        let axis = Axis::exact(0.0, (tokens - 1) as f64);
        for token in axis.ticks().filter(|token| token.fract() == 0.0) {
            self.tick(svg, axis.fraction(token), &format!("{token}"));
        }
    }

    fn polyline(&self, svg: &mut String, style: &str, points: impl Iterator<Item = Point>) {
        let _ = write!(svg, "<polyline {style} points=\"");
        for (x, y) in points.map(|(x, y)| self.at(x, y)) {
            let _ = write!(svg, "{x:.1},{y:.1} ");
        }
        svg.push_str("\"/>\n");
    }
}

/// A line of a chart.
pub struct Line<'a> {
    pub layer: usize,
    /// One for each token.
    pub values: &'a [f64],
}

/// Histogram of half-lives: of all layers that have them, and of one as a line.
pub fn half_lives(svg: &mut String, frame: Frame, counts: &[u64], chosen: Option<&[u64]>) {
    let bins = HALF_LIFE_EDGES.len() - 1;
    let shares = |counts: &[u64]| {
        let total = counts.iter().sum::<u64>().max(1) as f64;
        counts.iter().map(|count| *count as f64 / total).collect::<Vec<f64>>()
    };
    let all = shares(counts);
    let one = chosen.map(shares).unwrap_or_default();
    let largest = all.iter().chain(&one).copied().fold(0.0, f64::max);
    let axis = Axis::rounded(0.0, 100.0 * largest);
    for value in axis.ticks() {
        frame.grid(svg, axis.fraction(value), &format!("{} %", axis.label(value)));
    }
    let at = |bin: usize, share: f64| (bin as f64 / bins as f64, axis.fraction(100.0 * share));
    for (bin, share) in all.iter().enumerate() {
        let (x, y) = at(bin, *share);
        let (left, top) = frame.at(x, y);
        let _ = writeln!(
            svg,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            left + 0.5,
            frame.width / bins as f64 - 1.0,
            frame.y + frame.height - top
        );
    }
    let steps = one.iter().enumerate();
    let steps = steps.flat_map(|(bin, share)| [at(bin, *share), at(bin + 1, *share)]);
    if chosen.is_some() {
        frame.polyline(svg, "class=\"chosen outline\"", steps);
    }
    frame.bottom_line(svg);
    let edges = HALF_LIFE_EDGES.iter().enumerate().step_by(8);
    for (bin, edge) in edges {
        let label = if *edge < 1.0 { "1/16".to_owned() } else { format!("{edge}") };
        frame.tick(svg, bin as f64 / bins as f64, &label);
    }
}

/// The edge that half of all half-lives are below.
pub fn median_half_life(counts: &[u64]) -> f64 {
    let (mut below, total) = (0, counts.iter().sum::<u64>());
    for (count, edge) in counts.iter().zip(&HALF_LIFE_EDGES[1..]) {
        below += count;
        if 2 * below >= total {
            return *edge;
        }
    }
    HALF_LIFE_EDGES[HALF_LIFE_EDGES.len() - 1]
}

/// Lines over the tokens.
pub fn lines(svg: &mut String, frame: Frame, lines: &[Line], layers: Layers) {
    let largest = lines.iter().flat_map(|line| line.values).copied().fold(0.0, f64::max);
    let axis = Axis::rounded(0.0, largest);
    for value in axis.ticks() {
        frame.grid(svg, axis.fraction(value), &axis.label(value));
    }
    layers.draw(svg, frame, lines, |value| Some(axis.fraction(value)));
}

/// The same on a logarithmic axis of at most 6 decades; what is below them is not drawn.
pub fn log_lines(svg: &mut String, frame: Frame, lines: &[Line], layers: Layers) {
    const DECADES: f64 = 6.0;
    let values = || lines.iter().flat_map(|line| line.values).copied().filter(|value| *value > 0.0);
    let top = values().fold(f64::MIN_POSITIVE, f64::max).log10().ceil();
    let bottom = values().fold(f64::MAX, f64::min).log10().floor();
    let bottom = bottom.clamp(top - DECADES, top - 1.0);
    let fraction = |exponent: f64| (exponent - bottom) / (top - bottom);
    for i in 0..=(top - bottom) as i32 {
        let exponent = bottom + f64::from(i);
        frame.grid(svg, fraction(exponent), &short_power(exponent));
    }
    layers.draw(svg, frame, lines, |value| {
        Some(fraction(value.log10())).filter(|fraction| *fraction >= 0.0)
    });
}

/// `10⁻³`
fn short_power(exponent: f64) -> String {
    let digit = |c: char| match c {
        '-' => '⁻',
        c => ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][c as usize - '0' as usize],
    };
    "10".chars().chain(format!("{exponent}").chars().map(digit)).collect()
}

/// The layers of a model, of which one was chosen.
#[derive(Clone, Copy)]
pub struct Layers {
    pub count: usize,
    pub chosen: usize,
}

impl Layers {
    /// Those of the chosen layer last, above the others.
    fn draw(
        self,
        svg: &mut String,
        frame: Frame,
        lines: &[Line],
        fraction: impl Fn(f64) -> Option<f64>,
    ) {
        let Some(tokens) = lines.first().map(|line| line.values.len()) else { return };
        frame.token_axis(svg, tokens);
        let (chosen, others): (Vec<&Line>, Vec<&Line>) =
            lines.iter().partition(|line| line.layer == self.chosen);
        for Line { layer, values } in others.into_iter().chain(chosen) {
            let class = if *layer == self.chosen { "class=\"chosen\" " } else { "" };
            let style = format!("{class}stroke=\"{}\"", colour(*layer, self.count));
            let point = |(token, value): (usize, &f64)| {
                Some((token as f64 / (tokens - 1) as f64, fraction(*value)?))
            };
            frame.polyline(svg, &style, values.iter().enumerate().filter_map(point));
        }
    }
}

/// From blue to orange with depth; readable on light and on dark pages.
fn colour(layer: usize, layers: usize) -> String {
    const STOPS: [[f64; 3]; 3] =
        [[47.0, 128.0, 201.0], [160.0, 104.0, 180.0], [226.0, 104.0, 43.0]];
    let depth = if layers > 1 { layer as f64 / (layers - 1) as f64 } else { 1.0 };
    let (stop, part) = if depth < 0.5 { (0, 2.0 * depth) } else { (1, 2.0 * depth - 1.0) };
    let [r, g, b]: [u8; 3] = std::array::from_fn(|i| {
        (STOPS[stop][i] + part * (STOPS[stop + 1][i] - STOPS[stop][i])).round() as u8
    });
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The lower triangle, a cell for each two tokens, with the tokens along the diagonal if there is
/// room.
pub fn attention(svg: &mut String, frame: Frame, attention: &Attention, texts: &[String]) {
    let len = attention.len;
    let cell = frame.width / len as f64;
    let largest = attention.values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    // Runs of cells with the same shade are one stroke.
    let mut paths = vec![String::new(); 1 + level(1.0)];
    for (t, row) in attention.values.chunks(len).enumerate() {
        let shades: Vec<usize> =
            row[..=t].iter().map(|value| level((value / largest).sqrt())).collect();
        let mut s = 0;
        for run in shades.chunk_by(|a, b| a == b) {
            let _ = write!(paths[run[0]], "M{s} {t}.5h{}", run.len());
            s += run.len();
        }
    }
    let _ = writeln!(
        svg,
        "<g class=\"heat\" transform=\"translate({:.1} {:.1}) scale({cell:.4})\">",
        frame.x, frame.y
    );
    for (shade, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let _ = writeln!(svg, "<path class=\"k{shade}\" d=\"{path}\"/>");
    }
    svg.push_str("</g>\n");
    if cell < 9.0 {
        return;
    }
    let size = (cell * 0.75).min(13.0);
    for (t, token) in texts.iter().enumerate() {
        // What is left to the right of the diagonal.
        let room = ((len - t - 1) as f64 * cell / (0.6 * size)) as usize;
        if room < 2 {
            break;
        }
        let (x, y) = (frame.x + (t + 1) as f64 * cell + 5.0, frame.y + (t as f64 + 0.5) * cell);
        let token = escaped(&visible(token, room.min(16))).replace(' ', "\u{a0}");
        let _ = writeln!(
            svg,
            "<text class=\"label quiet\" style=\"font-size: {size:.1}px\" x=\"{x:.1}\" \
             y=\"{:.1}\">{token}</text>",
            y + 0.35 * size
        );
    }
}
