//! The program `taipan`.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use taipan::Device;
use taipan_lm::Config;

/// State-space language models on any device.
#[derive(Parser)]
#[command(name = "taipan", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the devices that tensors can live on
    Devices,
    /// Show the shape of a Mamba model, from its config.json or the directory that holds it
    Inspect {
        /// The file or directory
        path: PathBuf,
    },
}

/// Exit codes: 1 for a failure, 2 for wrong usage (clap's own).
fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Devices => devices(),
        Command::Inspect { path } => inspect(path),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("taipan: {error}");
            ExitCode::FAILURE
        }
    }
}

fn devices() -> Result<(), Box<dyn Error>> {
    println!("{}", Device::Cpu.describe());
    Ok(())
}

fn inspect(mut path: PathBuf) -> Result<(), Box<dyn Error>> {
    if path.is_dir() {
        path.push("config.json");
    }
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| named(&error))?;
    let config = Config::from_json(&text).map_err(|error| named(&error))?;
    println!(
        "Mamba, {:.1} M parameters ({} MB in f32)",
        config.parameters() as f64 / 1e6,
        config.parameters() * 4 / 1_000_000
    );
    println!(
        "{} layers of width {}, {} channels inside, state {}, Δ of rank {}, convolution of {}",
        config.num_hidden_layers,
        config.hidden_size,
        config.inner_size(),
        config.state_size,
        config.time_step_rank,
        config.conv_kernel
    );
    let head = if config.tie_word_embeddings { "tied" } else { "of its own" };
    println!("vocabulary {}, head {head}", config.vocab_size);
    Ok(())
}
