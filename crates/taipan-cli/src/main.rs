//! The program `taipan`.

mod devices;
mod inspect;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::devices::Format;

/// State-space language models on any device.
#[derive(Parser)]
#[command(name = "taipan", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the devices that tensors can live on, and which is used unless another is named
    Devices {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Show the shape of a Mamba model, from its config.json or the directory that holds it
    Inspect {
        /// The file or directory
        path: PathBuf,
    },
}

/// Exit codes: 1 for a failure, 2 for wrong usage (clap's own).
fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Devices { json: false } => devices::devices(Format::Text),
        Command::Devices { json: true } => devices::devices(Format::Json),
        Command::Inspect { path } => inspect::inspect(path),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // eprintln! panics where nobody listens.
            let _ = writeln!(std::io::stderr(), "taipan: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Write to standard output. A reader that left, such as `head`, has what it wanted: println!
/// panics there.
fn print(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("output: {error}")),
        _ => Ok(()),
    }
}
