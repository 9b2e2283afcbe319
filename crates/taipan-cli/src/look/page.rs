//! The picture: the text on top, below it four charts.

use std::fmt::Write;

use taipan_lm::{Attention, Config, HALF_LIFE_EDGES, Inspection, ScanInspection};

use super::charts::{self, Frame, Layers, Line};
use super::paragraph::{LINE, Paragraph, range, short};
use super::{Input, MAX_TOKENS, Maps};
use crate::svg::{escaped, text};

pub const WIDTH: f64 = 1200.0;
pub const MARGIN: f64 = 48.0;
/// Of the left column, with room for the labels of its axes.
const LEFT: Frame = Frame { x: MARGIN + 44.0, y: 0.0, width: 420.0, height: 150.0 };
/// From one chart of the left column to the next.
const PITCH: f64 = 246.0;
const RIGHT: Frame = Frame { x: 572.0, y: 0.0, width: 580.0, height: 580.0 };
/// From one map of the right column to the next.
const MAP_PITCH: f64 = 718.0;
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
    pub maps: &'a Maps,
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
        let layers = match self.inspection.layers.len() {
            1 => "1 layer".to_owned(),
            count => format!("{count} layers"),
        };
        format!("{} tokens{cut}, {layers}", ids.len())
    }

    pub fn svg(&self) -> String {
        let paragraph = Paragraph::new(&self.input.texts);
        let text_top = 196.0;
        let charts_top = text_top + paragraph.lines as f64 * LINE + 84.0;
        let maps = self.maps();
        let height = charts_top + (3.0 * PITCH).max(maps.len() as f64 * MAP_PITCH + 20.0) - 20.0;
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
        for (i, (title, note, map)) in maps.into_iter().enumerate() {
            let y = charts_top + i as f64 * MAP_PITCH;
            self.map(&mut svg, Frame { y, ..RIGHT }, [title, note], map);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// For those who cannot see it.
    fn description(&self) -> String {
        let steps = match self.scan() {
            Some(ScanInspection { mean_delta, .. }) => {
                let (least, largest) = range(mean_delta);
                let largest_at = mean_delta.iter().position(|delta| *delta == largest);
                format!(
                    "Mean step size per token in layer {} from {} to {}, largest at token {}.",
                    self.layer,
                    short(least),
                    short(largest),
                    largest_at.unwrap_or(0)
                )
            }
            None => format!("Layer {} is attention, without step sizes.", self.layer),
        };
        let memory = match self.scans().next() {
            Some(_) => {
                let median = short(charts::median_half_life(&self.half_life_counts()));
                format!(" Half of the states have a half-life of less than about {median} tokens.")
            }
            None => String::new(),
        };
        let loss = short(self.inspection.loss);
        format!("{}. {steps}{memory} Loss of the last token {loss} nats.", self.summary())
    }

    /// That of the chosen layer.
    fn scan(&self) -> Option<&ScanInspection> {
        self.inspection.layers[self.layer].scan.as_ref()
    }

    /// All of them, with their layers.
    fn scans(&self) -> impl Iterator<Item = (usize, &ScanInspection)> {
        let layers = self.inspection.layers.iter().enumerate();
        layers.filter_map(|(i, layer)| Some((i, layer.scan.as_ref()?)))
    }

    /// Of all layers together.
    fn half_life_counts(&self) -> Vec<u64> {
        let sum = |bin| self.scans().map(|(_, scan)| scan.half_lives[bin]).sum();
        (0..HALF_LIFE_EDGES.len() - 1).map(sum).collect()
    }

    fn layers(&self) -> Layers {
        Layers { count: self.inspection.layers.len(), chosen: self.layer }
    }

    /// Of the chosen layer: what each is called, how it is computed, and the map.
    fn maps(&self) -> Vec<(&'static str, &'static str, &Attention)> {
        let hidden = self.maps.hidden_attention.as_ref().map(|map| {
            let note =
                "Mean of |M| over channels, y = M·u, without the skip connection; shades of √|M|.";
            ("Hidden attention", note, map)
        });
        let attention = self.maps.attention.as_ref().map(|map| {
            ("Attention", "Weights, the mean over heads; shades of their square root.", map)
        });
        attention.into_iter().chain(hidden).collect()
    }

    fn header(&self, svg: &mut String) {
        let Config { layers, state_size, .. } = &self.config;
        let attention = match layers.iter().filter(|layer| layer.has_attention()).count() {
            0 => String::new(),
            count => format!(", {count} with attention"),
        };
        let loss = self.inspection.loss;
        text(svg, "title", (MARGIN, 66.0), &format!("What {} makes of a text", self.name));
        let shape = format!(
            "{} layers of {} channels with {state_size} states each{attention}. The last \
             token was predicted with probability {} ({} nats).",
            layers.len(),
            self.config.inner_size(),
            percent((-loss).exp()),
            short(loss)
        );
        text(svg, "quiet", (MARGIN, 92.0), &shape);
    }

    fn text(&self, svg: &mut String, paragraph: &Paragraph, top: f64) {
        let deltas = self.scan().map(|scan| &scan.mean_delta[..]);
        let explained = match deltas {
            Some(_) => {
                "Strong: written into the state, which forgets more of what was there. Pale: skipped."
            }
            None => "None: this layer is attention, which writes every token into its cache.",
        };
        let title = format!("Step size Δ in layer {}", self.layer);
        heading(svg, (MARGIN, top - 48.0), &title, &[explained]);
        if let Some(deltas) = deltas {
            scale_of_shades(svg, top, range(deltas));
        }
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
        let chosen = self.scan().map(|scan| &scan.half_lives[..]);
        let explained = match (chosen, self.scans().next()) {
            (Some(_), _) => {
                "Half-lives ln 2/(Δ·|A|), in tokens. Grey: all layers. Line: this layer."
            }
            (None, Some(_)) => {
                "Half-lives ln 2/(Δ·|A|), in tokens. Grey: all layers with a scan; this has none."
            }
            (None, None) => "None: attention forgets nothing.",
        };
        heading(svg, (MARGIN, frame.y), "How long states remember", &[explained]);
        if self.scans().next().is_some() {
            let counts = self.half_life_counts();
            charts::half_lives(svg, frame.below_heading(), &counts, chosen);
        }
    }

    fn states(&self, svg: &mut String, frame: Frame) {
        heading(
            svg,
            (MARGIN, frame.y),
            "Norm of the state",
            &[match self.scans().next() {
                Some(_) => {
                    "‖h‖ after each token, a line per layer: blue the first, orange the last."
                }
                None => "None: the cache of attention grows with every token.",
            }],
        );
        let lines = self.scans().map(|(layer, scan)| Line { layer, values: &scan.state_norm });
        charts::lines(svg, frame.below_heading(), &lines.collect::<Vec<_>>(), self.layers());
    }

    fn gradients(&self, svg: &mut String, frame: Frame) {
        heading(
            svg,
            (MARGIN, frame.y),
            "How far the gradient reaches back",
            &[match self.config.layers.iter().any(|layer| layer.has_attention()) {
                false => {
                    "‖∂loss/∂h‖ of the prediction of the last token, by the state after each token."
                }
                true => "‖∂loss/∂h‖ of the last token's prediction; attention: by keys and values.",
            }],
        );
        let scans = self.scans().map(|(layer, scan)| Line { layer, values: &scan.gradient_reach });
        let attention = self.inspection.layers.iter().enumerate().filter_map(|(layer, of)| {
            Some(Line { layer, values: &of.attention.as_ref()?.gradient_reach })
        });
        let lines: Vec<_> = scans.chain(attention).collect();
        charts::log_lines(svg, frame.below_heading(), &lines, self.layers());
    }

    fn map(&self, svg: &mut String, frame: Frame, [title, note]: [&str; 2], map: &Attention) {
        let Attention { first, len, .. } = map;
        let which = match first {
            0 => "A row: what the output at a token takes from each token before it.".to_owned(),
            _ => format!("A row: what a token takes from those before it. The last {len} tokens."),
        };
        let title = format!("{title} in layer {}", self.layer);
        heading(svg, (frame.x, frame.y), &title, &[&which, note]);
        let frame = Frame { y: frame.y + 66.0, ..frame };
        charts::attention(svg, frame, map, &self.input.texts[*first..]);
    }
}

/// What the shades of step sizes mean, at the right of their heading.
fn scale_of_shades(svg: &mut String, top: f64, (least, largest): (f64, f64)) {
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
