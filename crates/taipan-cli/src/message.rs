//! Errors, warnings and notes on standard error, which look like those of clap.

use std::fmt::Display;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use terminal_size::terminal_size_of;

use crate::wrap::wrap;

/// clap's own style of `error:`.
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Green.on_default();

/// Why the program ends.
pub fn error(text: impl Display) {
    print(&format!("{ERROR}error:{ERROR:#} {}\n", fitted("error: ", &text.to_string())));
}

/// A problem that does not end it.
pub fn warning(text: impl Display) {
    print(&format!("{} {text}\n", warning_label()));
}

/// Something worth knowing.
pub fn note(text: impl Display) {
    print(&format!("{NOTE}note:{NOTE:#} {}\n", fitted("note: ", &text.to_string())));
}

/// What a line with a warning begins with.
pub fn warning_label() -> String {
    format!("{WARNING}warning:{WARNING:#}")
}

/// A text after a label, broken between words where a terminal would break it anywhere.
fn fitted(label: &str, text: &str) -> String {
    let Some((columns, _)) = terminal_size_of(std::io::stderr()) else { return text.into() };
    let lines = format!("{label}{text}");
    let lines = lines.lines().map(|line| wrap(line, 0, columns.0.into())).collect::<Vec<_>>();
    lines.join("\n")[label.len()..].to_owned()
}

/// Write to standard error, with styles only where they are wanted; eprintln! panics where nobody
/// reads it.
pub fn print(text: &str) {
    let _ = anstream::stderr().lock().write_all(text.as_bytes());
}
