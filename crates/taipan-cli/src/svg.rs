//! What the program draws pictures with.

use std::fmt::Write;

pub type Point = (f64, f64);

/// A range of values with its ticks, multiples of 1, 2 or 5 times a power of ten.
pub struct Axis {
    pub min: f64,
    pub max: f64,
    tick: f64,
}

impl Axis {
    pub fn exact(min: f64, max: f64) -> Axis {
        let rough = ((max - min) / 7.0).max(1e-4);
        let power = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough);
        Axis { min, max, tick: factor.unwrap_or(10.0) * power }
    }

    /// Wide enough to begin and end with a tick.
    pub fn rounded(min: f64, max: f64) -> Axis {
        let tick = Axis::exact(min, max).tick;
        let min = (min / tick).floor() * tick;
        let max = (max / tick).ceil() * tick;
        Axis { min, max: max.max(min + tick), tick }
    }

    pub fn fraction(&self, value: f64) -> f64 {
        (value - self.min) / (self.max - self.min)
    }

    pub fn ticks(&self) -> impl Iterator<Item = f64> {
        let first = (self.min / self.tick).ceil();
        let last = (self.max / self.tick * (1.0 + 1e-12)).floor();
        (0..=(last - first) as usize).map(move |i| (first + i as f64) * self.tick)
    }

    pub fn label(&self, value: f64) -> String {
        let decimals = (-self.tick.log10().floor()).max(0.0) as usize;
        format!("{value:.decimals$}")
    }
}

pub fn segment(svg: &mut String, class: &str, (x1, y1): Point, (x2, y2): Point) {
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

pub fn text(svg: &mut String, class: &str, (x, y): Point, text: &str) {
    let text = escaped(text);
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}

/// As the text of an element; what no XML document may contain becomes U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => result.push_str("&amp;"),
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '\t' | '\n' => result.push(c),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => result.push(char::REPLACEMENT_CHARACTER),
            c => result.push(c),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        let ticks = |min, max| {
            let axis = Axis::rounded(min, max);
            axis.ticks().map(|value| axis.label(value)).collect::<Vec<_>>()
        };
        assert_eq!(ticks(1.83, 5.55), ["1", "2", "3", "4", "5", "6"]);
        assert_eq!(ticks(0.11, 0.19), ["0.10", "0.12", "0.14", "0.16", "0.18", "0.20"]);
        assert_eq!(ticks(0.0, 0.0), ["0.0000", "0.0001"], "one value has a range, too");
        let steps = Axis::exact(0.0, 640.0);
        assert_eq!(steps.ticks().last(), Some(600.0));
    }

    #[test]
    fn any_text_is_valid_xml() {
        assert_eq!(
            escaped("a<b>&\u{0}\t\u{1b}\u{ffff}é"),
            "a&lt;b&gt;&amp;\u{fffd}\t\u{fffd}\u{fffd}é"
        );
    }
}
