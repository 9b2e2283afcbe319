//! The picture: the text on top, below it four charts.

use std::fmt::Write;

use taipan_lm::{Attention, Config, Inspection};

use super::charts::{self, Frame};
use super::paragraph::{LINE, Paragraph, range, short};
use super::{Input, MAX_TOKENS};
use crate::svg::{escaped, text};

pub const WIDTH: f64 = 1200.0;
pub const MARGIN: f64 = 48.0;
/// Of the left column, with room for the labels of its axes.
const LEFT: Frame = Frame { x: MARGIN + 44.0, y: 0.0, width: 420.0, height: 150.0 };
/// From one chart of the left column to the next.
const PITCH: f64 = 246.0;
const RIGHT: Frame = Frame { x: 572.0, y: 0.0, width: 580.0, height: 580.0 };
/// Shades of a colour.
const LEVELS: usize = 16;

/// Colours of both kinds of page.
const STYLE: &str = "
svg { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }
.title { font-size: 28px; font-weight: 650; letter-spacing: -0.02em; }
.head { font-size: 17px; font-weight: 650; }
.token { font: 15px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.label { font: 10px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
polyline { fill: none; stroke-linejoin: round; stroke-width: 1.25; stroke-opacity: 0.6; }
polyline.chosen { stroke-width: 2.5; stroke-opacity: 1; }
.heat { fill: none; stroke-width: 1; shape-rendering: crispEdges; }
rect.delta { rx: 3px; }
.page { fill: #fdfcfa; } text { fill: #21242b; } .quiet { fill: #666b76; }
.grid { stroke: #e6e3dd; } .axis { stroke: #8d919b; } .bar { fill: #c9cdd6; }
.delta { fill: #f0772b; } .heat { stroke: #1f5fa8; } .cell { fill: #1f5fa8; }
.outline { fill: none; stroke: #f0772b; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
.page { fill: #14161b; } text { fill: #e8e9ec; } .quiet { fill: #9da3b0; }
.grid { stroke: #2a2e37; } .axis { stroke: #747b89; } .bar { fill: #434956; }
.delta { fill: #c9591a; } .heat { stroke: #7cc0ff; } .cell { fill: #7cc0ff; }
.outline { stroke: #ff9a57; }
}
";

/// What is drawn.
pub struct Page<'a> {
    pub name: String,
    pub config: &'a Config,
    pub input: &'a Input,
    pub inspection: &'a Inspection,
    /// The layer of the step sizes and the attention.
    pub layer: usize,
    pub attention: &'a Attention,
}

/// The shade of a value between 0 and 1.
pub fn level(value: f64) -> usize {
    ((value * LEVELS as f64) as usize).min(LEVELS - 1)
}

impl Page<'_> {
    /// One line about it.
    pub fn summary(&self) -> String {
        let Input { ids, tokens, .. } = self.input;
        let cut = if ids.len() < *tokens { format!(", the first of {tokens}") } else { "".into() };
        format!("{} tokens{cut}, {} layers", ids.len(), self.inspection.layers.len())
    }

    pub fn svg(&self) -> String {
        let paragraph = Paragraph::new(&self.input.texts);
        let text_top = 196.0;
        let charts_top = text_top + paragraph.lines as f64 * LINE + 84.0;
        let height = charts_top + 3.0 * PITCH - 20.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">{}</title>\n\
             <desc id=\"desc\">{}</desc>\n<style>{STYLE}{}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
            escaped(&format!("What {} makes of a text", self.name)),
            escaped(&self.description()),
            shades()
        );
        self.header(&mut svg);
        self.text(&mut svg, &paragraph, text_top);
        let frame = |row: f64| Frame { y: charts_top + row * PITCH, ..LEFT };
        self.half_lives(&mut svg, frame(0.0));
        self.states(&mut svg, frame(1.0));
        self.gradients(&mut svg, frame(2.0));
        self.hidden_attention(&mut svg, Frame { y: charts_top, ..RIGHT });
        svg.push_str("</svg>\n");
        svg
    }

    /// For those who cannot see it.
    fn description(&self) -> String {
        let layer = &self.inspection.layers[self.layer];
        let (least, largest) = range(&layer.mean_delta);
        let largest_at = layer.mean_delta.iter().position(|delta| *delta == largest).unwrap_or(0);
        let total: u64 = self.inspection.layers.iter().flat_map(|layer| &layer.half_lives).sum();
        let median = charts::median_half_life(&self.inspection.layers, total);
        format!(
            "{}. Mean step size per token in layer {} from {} to {}, largest at token {largest_at}. \
             Half of the states have a half-life of less than about {} tokens. \
             Loss of the last token {} nats.",
            self.summary(),
            self.layer,
            short(least),
            short(largest),
            short(median),
            short(self.inspection.loss)
        )
    }

    fn header(&self, svg: &mut String) {
        let Config { layers, state_size, .. } = &self.config;
        let loss = self.inspection.loss;
        text(svg, "title", (MARGIN, 66.0), &format!("What {} makes of a text", self.name));
        let shape = format!(
            "{} layers of {} channels with {state_size} states each. The last \
             token was predicted with probability {} ({} nats).",
            layers.len(),
            self.config.inner_size(),
            percent((-loss).exp()),
            short(loss)
        );
        text(svg, "quiet", (MARGIN, 92.0), &shape);
    }

    fn text(&self, svg: &mut String, paragraph: &Paragraph, top: f64) {
        let deltas = &self.inspection.layers[self.layer].mean_delta;
        heading(
            svg,
            (MARGIN, top - 48.0),
            &format!("Step size Δ in layer {}", self.layer),
            &[
                "Strong: written into the state, which forgets more of what was there. Pale: skipped.",
            ],
        );
        let (least, largest) = range(deltas);
        let right = WIDTH - MARGIN;
        for shade in 0..LEVELS {
            let x = right - 60.0 - (LEVELS - shade) as f64 * 8.0;
            let _ = writeln!(
                svg,
                "<rect class=\"cell-delta delta k{shade}\" x=\"{x}\" y=\"{}\" width=\"8\" \
                 height=\"12\" style=\"rx: 0\"/>",
                top - 58.0
            );
        }
        let y = top - 48.0;
        text(svg, "quiet end", (right - 68.0 - LEVELS as f64 * 8.0, y), &short(least));
        text(svg, "quiet", (right - 52.0, y), &short(largest));
        paragraph.draw(svg, top, deltas);
        let (shown, tokens) = (self.input.ids.len(), self.input.tokens);
        let bottom = top + paragraph.lines as f64 * LINE + 14.0;
        let mut notes = Vec::new();
        if paragraph.left_out > 0 {
            notes.push(format!("{} more tokens are not drawn here.", paragraph.left_out));
        }
        if shown < tokens {
            notes.push(format!(
                "The text has {tokens} tokens; all of this is about the first {MAX_TOKENS}."
            ));
        }
        text(svg, "quiet", (MARGIN, bottom), &notes.join(" "));
    }

    fn half_lives(&self, svg: &mut String, frame: Frame) {
        heading(
            svg,
            (MARGIN, frame.y),
            "How long states remember",
            &["Half-lives ln 2/(Δ·|A|), in tokens. Grey: all layers. Line: this layer."],
        );
        let frame = frame.below_heading();
        charts::half_lives(svg, frame, &self.inspection.layers, self.layer);
    }

    fn states(&self, svg: &mut String, frame: Frame) {
        heading(
            svg,
            (MARGIN, frame.y),
            "Norm of the state",
            &["‖h‖ after each token, a line per layer: blue the first, orange the last."],
        );
        let lines: Vec<_> = self.inspection.layers.iter().map(|l| &l.state_norm[..]).collect();
        charts::lines(svg, frame.below_heading(), &lines, self.layer);
    }

    fn gradients(&self, svg: &mut String, frame: Frame) {
        heading(
            svg,
            (MARGIN, frame.y),
            "How far the gradient reaches back",
            &["‖∂loss/∂h‖ of the prediction of the last token, by the state after each token."],
        );
        let lines: Vec<_> = self.inspection.layers.iter().map(|l| &l.gradient_reach[..]).collect();
        charts::log_lines(svg, frame.below_heading(), &lines, self.layer);
    }

    fn hidden_attention(&self, svg: &mut String, frame: Frame) {
        let Attention { first, len, .. } = self.attention;
        let which = match first {
            0 => "A row: what the output at a token takes from each token before it.".to_owned(),
            _ => format!("A row: what a token takes from those before it. The last {len} tokens."),
        };
        let title = format!("Hidden attention in layer {}", self.layer);
        heading(
            svg,
            (frame.x, frame.y),
            &title,
            &[
                &which,
                "Mean of |M| over channels, y = M·u, without the skip connection; shades of √|M|.",
            ],
        );
        let frame = Frame { y: frame.y + 66.0, ..frame };
        charts::attention(svg, frame, self.attention, &self.input.texts[*first..]);
    }
}

/// A title and lines that explain it, below `at`.
fn heading(svg: &mut String, (x, y): (f64, f64), title: &str, lines: &[&str]) {
    text(svg, "head", (x, y), title);
    for (i, line) in lines.iter().enumerate() {
        text(svg, "quiet", (x, y + 21.0 + 18.0 * i as f64), line);
    }
}

/// `k0` is almost the page, `k15` the full colour.
fn shades() -> String {
    (0..LEVELS).fold(String::new(), |mut css, shade| {
        let opacity = 0.04 + 0.86 * shade as f64 / (LEVELS - 1) as f64;
        let _ = writeln!(
            css,
            ".k{shade} {{ fill-opacity: {opacity:.2}; stroke-opacity: {opacity:.2}; }}"
        );
        css
    })
}

/// `12 %`, with more digits for small ones.
fn percent(share: f64) -> String {
    match 100.0 * share {
        large @ 10.0.. => format!("{large:.0} %"),
        small => format!("{} %", short(small)),
    }
}
