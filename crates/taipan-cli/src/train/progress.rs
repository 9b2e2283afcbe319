//! The progress of a run: on a terminal a bar, redrawn in place; elsewhere plain lines.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anstyle::Style;

use super::console::Console;
use super::metrics::HeldOut;

/// The minimum time between redraws.
const INTERVAL: Duration = Duration::from_millis(100);

const LABEL: Style = Style::new().dimmed();

/// The state after a step.
pub struct State {
    pub step: u64,
    pub steps: u64,
    pub loss: f64,
    pub held_out: Option<HeldOut>,
    pub tokens_per_second: f64,
    pub lr: f64,
    pub grad_norm: f64,
    pub left: Duration,
}

/// The line on the terminal. When it is dropped, the cursor is at the beginning of an empty line,
/// so that an error has a line of its own.
pub struct Progress {
    pub console: Console,
    terminal: bool,
    drawn: Option<Instant>,
    /// What is on the line.
    line: String,
}

impl Progress {
    pub fn new() -> Progress {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && !dumb;
        Progress { console: Console::new(), terminal, drawn: None, line: String::new() }
    }

    /// After a step: redraw the bar, unless that was done a moment ago.
    pub fn step(&mut self, state: &State) {
        let early = self.drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL);
        if self.terminal && !(early && state.step < state.steps) {
            self.drawn = Some(Instant::now());
            self.show(bar(state, width()));
        }
    }

    /// After a step that is logged.
    pub fn log(&mut self, state: &State) {
        if !self.terminal {
            self.console.try_print(plain(state) + "\n");
        }
    }

    /// A message that the next one replaces.
    pub fn note(&mut self, what: &str) {
        if self.terminal {
            self.show(what.chars().take(width()).collect());
        }
    }

    /// Whether messages are redrawn in place.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Remove the message.
    pub fn clear(&mut self) {
        self.show(String::new());
    }

    /// A line that stays, during training.
    pub fn log_line(&mut self, text: &str) {
        self.show(String::new());
        self.console.try_print(format!("{text}\n"));
    }

    /// Text that stays, before the first step or after the last one.
    pub fn print(&mut self, text: &str) {
        self.show(String::new());
        self.console.print(text);
    }

    fn show(&mut self, line: String) {
        // Spaces over what the last line leaves: every terminal understands them.
        let rest = length(&self.line).saturating_sub(length(&line));
        let blank = " ".repeat(rest);
        if !(self.line.is_empty() && line.is_empty()) {
            let end = if line.is_empty() { "\r" } else { "" };
            self.console.try_print(format!("\r{line}{blank}{end}"));
        }
        self.line = line;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.console.try_print("\n".into());
        }
    }
}

/// Columns to write to, without the last one, where some terminals start a new line.
pub fn width() -> usize {
    let columns = terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0));
    columns.saturating_sub(1)
}

/// A value with its name and unit; the least important is dropped first when there is no room.
struct Field {
    plain: String,
    styled: String,
    importance: u8,
}

fn fields(state: &State) -> Vec<Field> {
    let field = |name: &str, value: String, unit: &str, importance| {
        let text = |label: fn(&str) -> String| {
            let words = [label(name), value.clone(), label(unit)];
            words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        let styled = text(|label| match label {
            "" => String::new(),
            label => format!("{LABEL}{label}{LABEL:#}"),
        });
        Field { plain: text(str::to_owned), styled, importance }
    };
    let number = |name, value: f64, importance| field(name, format!("{value:.3}"), "", importance);
    let mut fields = vec![number("loss", state.loss, 9)];
    if let Some(HeldOut { val_loss, bits_per_byte }) = state.held_out {
        fields.push(number("val", val_loss, 5));
        fields.extend(bits_per_byte.map(|bits| number("bits/byte", bits, 8)));
    }
    fields.push(field("", rate(state.tokens_per_second), "tok/s", 6));
    fields.push(field("lr", format!("{:.1e}", state.lr), "", 3));
    fields.push(field("grad", format!("{:.2}", state.grad_norm), "", 4));
    fields.push(field("", duration(state.left), "left", 7));
    fields
}

/// `120/400 ████▌     loss 2.134 …`, no longer than `width`.
fn bar(state: &State, width: usize) -> String {
    let step = format!("{}/{}", state.step, state.steps);
    let mut fields = fields(state);
    let bar = 6;
    loop {
        let needed: usize = fields.iter().map(|field| 1 + length(&field.plain)).sum();
        let needed = step.len() + 1 + bar + needed;
        if needed <= width {
            let bar = (bar + width - needed).min(30);
            let fraction = state.step as f64 / state.steps as f64;
            let fields: String = fields.iter().map(|field| format!(" {}", field.styled)).collect();
            return format!("{step} {}{fields}", blocks(fraction, bar));
        }
        let least = (0..fields.len()).min_by_key(|i| fields[*i].importance);
        match least {
            Some(least) => drop(fields.remove(least)),
            None => return step.chars().take(width).collect(),
        }
    }
}

fn plain(state: &State) -> String {
    let fields: String = fields(state).iter().map(|field| format!("  {}", field.plain)).collect();
    format!("step {}/{}{fields}", state.step, state.steps)
}

/// A bar of `width` columns, filled to eighths of one.
fn blocks(fraction: f64, width: usize) -> String {
    let eighths = (fraction.clamp(0.0, 1.0) * (8 * width) as f64) as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    let bar = "█".repeat(eighths / 8) + rest;
    let blank = width - bar.chars().count();
    bar + &"░".repeat(blank)
}

/// Columns of a text, without its styles.
fn length(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().chars().count()
}

/// `950`, `12.3k`, `1.2M`.
pub fn rate(value: f64) -> String {
    match value {
        value if value < 999.5 => format!("{value:.0}"),
        value if value < 999_950.0 => format!("{:.1}k", value / 1e3),
        value => format!("{:.1}M", value / 1e6),
    }
}

/// `45s`, `1m05s`, `2h03m`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            step: 120,
            steps: 400,
            loss: 2.1344,
            held_out: Some(HeldOut { val_loss: 2.301, bits_per_byte: Some(3.32) }),
            tokens_per_second: 12_345.0,
            lr: 9.8e-4,
            grad_norm: 0.8312,
            left: Duration::from_secs(65),
        }
    }

    #[test]
    fn a_wide_terminal_shows_everything_and_a_narrow_one_what_matters() {
        let text = |width| anstream::adapter::strip_str(&bar(&state(), width)).to_string();
        assert_eq!(
            text(119),
            "120/400 █████████░░░░░░░░░░░░░░░░░░░░░ loss 2.134 val 2.301 bits/byte 3.320 \
             12.3k tok/s lr 9.8e-4 grad 0.83 1m05s left"
        );
        assert_eq!(text(59), "120/400 ███▉░░░░░░░░░ loss 2.134 bits/byte 3.320 1m05s left");
        assert_eq!(text(3), "120");
        for width in 0..200 {
            assert!(length(&bar(&state(), width)) <= width, "{width}");
        }
    }

    #[test]
    fn plain_lines_have_every_value() {
        assert_eq!(
            plain(&state()),
            "step 120/400  loss 2.134  val 2.301  bits/byte 3.320  12.3k tok/s  lr 9.8e-4  \
             grad 0.83  1m05s left"
        );
    }

    #[test]
    fn bars_fill_by_eighths() {
        assert_eq!(blocks(0.0, 3), "░░░");
        assert_eq!(blocks(0.5, 3), "█▌░");
        assert_eq!(blocks(1.0, 3), "███");
    }

    #[test]
    fn rates_and_durations_are_short() {
        let rates = [0.0, 999.4, 999.6, 12_345.0, 999_960.0].map(rate);
        assert_eq!(rates, ["0", "999", "1.0k", "12.3k", "1.0M"]);
        let times =
            [0.4, 59.6, 65.0, 3599.6, 7380.0].map(|time| duration(Duration::from_secs_f64(time)));
        assert_eq!(times, ["0s", "1m00s", "1m05s", "1h00m", "2h03m"]);
    }
}
