//! The tokens of a text, set in lines.

use std::fmt::Write;

use super::page::{MARGIN, WIDTH, level};
use crate::svg::escaped;

/// Of a character, in the font of `.token`.
const ADVANCE: f64 = 9.0;
pub const LINE: f64 = 28.0;
const COLUMNS: usize = ((WIDTH - 2.0 * MARGIN) / ADVANCE) as usize;
const MAX_LINES: usize = 30;

/// A token in its place.
struct Placed {
    token: usize,
    text: String,
    line: usize,
    column: usize,
    columns: usize,
}

/// Tokens in lines.
pub struct Paragraph {
    placed: Vec<Placed>,
    pub lines: usize,
    /// Tokens for which there was no room.
    pub left_out: usize,
}

impl Paragraph {
    /// Lines break where the text does, and before a token that does not fit.
    pub fn new(texts: &[String]) -> Paragraph {
        let (mut placed, mut line, mut column) = (Vec::new(), 0, 0);
        for (token, text) in texts.iter().enumerate() {
            let shown = visible(text, COLUMNS);
            let columns = columns(&shown);
            if column + columns > COLUMNS {
                (line, column) = (line + 1, 0);
            }
            if line == MAX_LINES {
                break;
            }
            placed.push(Placed { token, text: shown, line, column, columns });
            column += columns;
            if text.contains('\n') {
                (line, column) = (line + 1, 0);
            }
        }
        let lines = placed.last().map_or(0, |last| last.line + 1);
        Paragraph { lines, left_out: texts.len() - placed.len(), placed }
    }

    /// Each token on a box with the shade of its Δ, if there is one, which is shown on hovering.
    pub fn draw(&self, svg: &mut String, top: f64, deltas: Option<&[f64]>) {
        let range = deltas.map(range);
        let mut texts = String::new();
        for Placed { token, text, line, column, columns } in &self.placed {
            let (x, y) = (MARGIN + *column as f64 * ADVANCE, top + *line as f64 * LINE);
            let (width, height) = (*columns as f64 * ADVANCE, LINE - 4.0);
            let (mut shade, mut tip) = (0, format!("token {token}"));
            if let Some((deltas, (low, high))) = deltas.zip(range) {
                shade = level((deltas[*token] - low) / (high - low));
                let _ = write!(tip, ": Δ = {}", short(deltas[*token]));
            }
            let _ = writeln!(
                svg,
                "<rect class=\"delta k{shade}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                 height=\"{height}\"><title>{tip}</title></rect>"
            );
            // The same width in whatever font there is.
            let _ = writeln!(
                texts,
                "<text class=\"token\" x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" \
                 lengthAdjust=\"spacingAndGlyphs\">{}</text>",
                y + 16.5,
                escaped(text).replace(' ', "\u{a0}")
            );
        }
        svg.push_str(&texts);
    }
}

/// The least and the largest value; the first is left out, since nothing is before it.
pub fn range(values: &[f64]) -> (f64, f64) {
    let least = values[1..].iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values[1..].iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, if largest > least { largest } else { least + f64::MIN_POSITIVE.max(least.abs()) })
}

/// A token on at most `most` columns, with signs for what has no shape of its own.
pub fn visible(text: &str, most: usize) -> String {
    if text.is_empty() {
        return "·".into();
    }
    let shape = |c: char| match c {
        '\n' => '⏎',
        '\t' => '⇥',
        '\0'..' ' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        // What would change the direction of the text around it.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let shown: String = text.chars().map(shape).collect();
    if columns(&shown) <= most {
        return shown;
    }
    let mut room = most - 1;
    let fits = |c: &char| {
        let fits = width(*c) <= room;
        room = room.saturating_sub(width(*c));
        fits
    };
    shown.chars().take_while(fits).chain(['…']).collect()
}

fn columns(text: &str) -> usize {
    text.chars().map(width).sum()
}

/// Two columns for the scripts of East Asia and for emoji.
fn width(c: char) -> usize {
    match u32::from(c) {
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300.. => 2,
        _ => 1,
    }
}

/// Three digits.
pub fn short(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        return "0".into();
    }
    if !(1e-3..1e4).contains(&magnitude) {
        return format!("{value:.1e}");
    }
    let decimals = (2.0 - magnitude.log10().floor()).clamp(0.0, 5.0) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_where_the_text_does_or_must() {
        let texts: Vec<String> = ["ab", " cd\n", "e", &"x".repeat(500), "f"].map(Into::into).into();
        let paragraph = Paragraph::new(&texts);
        let places: Vec<_> = paragraph.placed.iter().map(|p| (p.line, p.column)).collect();
        assert_eq!(places, [(0, 0), (0, 2), (1, 0), (2, 0), (3, 0)]);
        assert_eq!(paragraph.placed[3].columns, COLUMNS);
        let many = Paragraph::new(&vec!["\n".to_owned(); 100]);
        assert_eq!((many.lines, many.left_out), (MAX_LINES, 100 - MAX_LINES));
    }

    #[test]
    fn every_token_can_be_seen() {
        assert_eq!(visible("a\n\t\u{1b}\u{202e}", 9), "a⏎⇥␛\u{fffd}");
        assert_eq!((visible("", 9), visible("日本語です", 6)), ("·".into(), "日本…".into()));
    }

    #[test]
    fn numbers_have_three_digits() {
        let short: Vec<String> = [0.0, 0.03416, 1.0, 123.4, 7e-6, 2e7].map(short).into();
        assert_eq!(short, ["0", "0.0342", "1.00", "123", "7.0e-6", "2.0e7"]);
    }
}
