//! Generated text on standard output.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Stdout, Write};

use crate::Failure;

/// Standard output. A reader that closed the pipe, such as `head`, is no error; there is nothing
/// more to do for it.
pub struct Output {
    stdout: Stdout,
    is_terminal: bool,
    failure: Option<std::io::Error>,
}

impl Output {
    pub fn new() -> Output {
        let stdout = std::io::stdout();
        let is_terminal = stdout.is_terminal();
        Output { stdout, is_terminal, failure: None }
    }

    /// Whether somebody reads it.
    pub fn is_open(&self) -> bool {
        self.failure.is_none()
    }

    /// Write text at once: as it is, but without what a terminal would obey.
    pub fn write(&mut self, text: &str) {
        let text = if self.is_terminal { printable(text) } else { text.into() };
        self.write_raw(&text);
    }

    /// Write what is ours.
    pub fn write_raw(&mut self, text: &str) {
        if text.is_empty() || self.failure.is_some() {
            return;
        }
        let mut stdout = self.stdout.lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        self.failure = written.err();
    }

    /// The failure of a write, if there was one that matters.
    pub fn finish(self) -> Result<(), Failure> {
        match self.failure {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(format!("standard output: {error}").into())
            }
            _ => Ok(()),
        }
    }
}

/// Without control characters, which a terminal would obey.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(is_plain) {
        return text.into();
    }
    let plain = |c: char| if is_plain(c) { c } else { char::REPLACEMENT_CHARACTER };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn texts_cannot_control_the_terminal() {
        assert_eq!(printable("a\tb\n\u{1b}[31mc\r\u{9b}"), "a\tb\n\u{fffd}[31mc\u{fffd}\u{fffd}");
        assert_eq!(printable("naïve\n"), "naïve\n");
    }
}
