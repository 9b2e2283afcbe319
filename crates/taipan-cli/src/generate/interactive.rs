//! Lines of a terminal, each the beginning of a text.

use std::ops::ControlFlow;

use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use super::output::Output;
use super::{Generated, Session};
use crate::{Failure, message, stop};

const HELP: &str =
    "A line is the beginning of a text. Ctrl-C stops a text, and between texts the program.\n";

/// Read lines and continue each, until the end of the input or Ctrl-C.
pub fn run(session: &mut Session) -> Result<ControlFlow<()>, Failure> {
    session.model.require_tokenizer("--prompt-ids")?;
    let config = Config::builder().auto_add_history(true).build();
    let mut editor = Editor::<(), MemHistory>::with_history(config, MemHistory::new())
        .map_err(|error| format!("terminal: {error}"))?;
    message::print(HELP);
    loop {
        stop::end();
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(ControlFlow::Continue(())),
            Err(ReadlineError::Interrupted) => return Ok(ControlFlow::Break(())),
            Err(error) => return Err(format!("terminal: {error}").into()),
        };
        if line.is_empty() {
            continue;
        }
        stop::begin();
        let mut output = Output::new();
        let streams = !session.flags.no_stream;
        let ids = session.encode(&line)?;
        let Generated { texts, speed, .. } = session.generate(&ids, |text| {
            if streams {
                output.write(text);
            }
            output.is_open()
        })?;
        if let Some(text) = texts.first().filter(|_| !streams) {
            output.write(&text.text);
        }
        output.write_raw("\n");
        speed.print();
        if !output.is_open() {
            output.finish()?;
            return Ok(ControlFlow::Continue(()));
        }
        // The same line again gives another text.
        session.seed = session.seed.wrapping_add(1);
    }
}
