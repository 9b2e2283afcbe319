//! What is seen while it runs: rows as they come, and on a terminal what is being done.

use std::io::IsTerminal;

use terminal_size::terminal_size_of;

use crate::{Failure, message};

/// Rows go to standard output, what is being done to standard error.
pub struct Screen {
    /// Whether rows are printed: not if the report is a document.
    rows: bool,
    /// The columns of the terminal, if there is one.
    columns: Option<usize>,
    /// Whether something is on the line.
    drawn: bool,
}

impl Screen {
    pub fn new(rows: bool) -> Screen {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stderr().is_terminal() && !dumb;
        let columns = terminal_size_of(std::io::stderr()).filter(|_| terminal);
        Screen { rows, columns: columns.map(|(columns, _)| columns.0.into()), drawn: false }
    }

    /// Nothing is seen.
    #[cfg(test)]
    pub fn hidden() -> Screen {
        Screen { rows: false, columns: None, drawn: false }
    }

    /// Text that stays.
    pub fn print(&mut self, text: &str) -> Result<(), Failure> {
        if self.rows {
            self.clear();
            crate::print(text)?;
        }
        Ok(())
    }

    /// What is being done, until the next text.
    pub fn note(&mut self, what: &str) {
        if let Some(columns) = self.columns {
            let text: String =
                format!("checking {what}").chars().take(columns.saturating_sub(1)).collect();
            message::print(&format!("\r{text}\x1b[K"));
            self.drawn = true;
        }
    }

    /// Remove it.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            message::print("\r\x1b[K");
        }
    }
}
