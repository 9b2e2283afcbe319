//! The program `taipan`.

mod arch;
mod bench;
mod convert;
mod devices;
mod doctor;
mod eval;
mod generate;
mod hub;
mod info;
mod job;
mod look;
mod machine;
mod manual;
mod message;
mod model;
mod stop;
mod svg;
mod train;
mod web;
mod wrap;

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;
use taipan_lm::InvalidValue;

/// State-space language models on any device.
#[derive(Parser)]
#[command(name = "taipan", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the devices for tensors, and which one is used by default
    Devices {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Check that this machine computes what it should
    ///
    /// Every op, forward and backward, against f64, in every dtype that the device has and, on a
    /// GPU, with its own limits and with WebGPU's default ones; the same bits when it runs again;
    /// errors that must be reported; memory that must be returned; 20 steps of training; and the
    /// speed, next to what the device can do at all. Exits with code 1 if anything is wrong. The
    /// report names the device, its driver and its limits, and nothing else of the machine.
    Doctor(doctor::Flags),
    /// Show the shape, parameters and memory of a model, checkpoint or run, and verify its files
    Info {
        /// A config.json, a file of tensors, the directory of a model, a checkpoint or a run, or a
        /// name on the Hugging Face Hub that was downloaded with hf download
        path: PathBuf,
    },
    /// Write a model in another layout, dtype or number of files
    ///
    /// Reads what taipan, Hugging Face's library or the paper's code wrote (safetensors or
    /// pytorch_model.bin), and writes safetensors, with the files of the tokenizer.
    Convert(convert::Flags),
    /// Train a Mamba language model
    ///
    /// Without FILES it trains on little stories. The model is written to --out in the format of
    /// Hugging Face's library, with its checkpoints, metrics.jsonl and loss.svg. Ctrl-C finishes the
    /// step, saves a checkpoint and the model, and exits with code 130; --resume continues from
    /// there. A second Ctrl-C stops at once.
    Train(Box<train::Flags>),
    /// Generate text with a model
    ///
    /// The text goes to standard output, token counts and speed to standard error. Without a prompt,
    /// on a terminal, every line that is typed is a prompt. As in training, the end-of-text token is
    /// put before a text prompt.
    Generate(Box<generate::Flags>),
    /// Evaluate a model: loss, perplexity and bits per byte of text
    ///
    /// Loss (nats per token), perplexity and bits per byte over all files. The state is carried
    /// through each file, whatever its length. As in training, the end-of-text token is put before
    /// every file and is not predicted; with --window and --ids nothing is, and the first token is
    /// not predicted.
    Eval(eval::Flags),
    /// Draw what a model makes of a text
    ///
    /// Writes one picture that shows, token by token: the step size Δ (what the model writes into
    /// its state and what it skips), how long the states remember, the norm of the state, the
    /// hidden attention of one layer, and how far the gradient of the last token's prediction
    /// reaches back. As in training, the end-of-text token is put before a text.
    Look(look::Flags),
    /// Open taipan in a browser: train, talk to and look into models in a tab
    ///
    /// Prints an address of this machine, which no other machine can open, and serves the page there
    /// until Ctrl-C. Everything is computed in the browser.
    Web(web::Flags),
    /// Measure the speed of this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Print completions for a shell
    ///
    /// For bash: taipan completions bash > ~/.local/share/bash-completion/completions/taipan
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one per command to a directory
    #[command(hide = true)]
    Man {
        /// The directory to write them to, which must exist
        directory: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// A linear layer, forward and backward, next to what the device can do
    Linear(bench::Linear),
    /// The selective scan, forward and backward, next to what the device can do
    Scan(bench::ScanFlags),
    /// A step of training: time, tokens per second, memory, and where the time goes
    Step(bench::Step),
    /// A token of decoding: time, and the fraction of the memory's bandwidth
    Decode(bench::Decode),
    /// A prompt: time per token, and the fraction of the processor's arithmetic
    Prefill(bench::Prefill),
}

/// Exit codes: 1 for a failure, 2 for wrong usage, which clap finds or [`Usage`] reports.
fn main() -> ExitCode {
    silence_wayland();
    let program = Args::command().mut_subcommand("train", train::show_defaults);
    let matches = program.clone().get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match args.command {
        Command::Devices { json } => devices::devices(json),
        Command::Doctor(flags) => doctor::doctor(&flags),
        Command::Info { path } => info::info(&path),
        Command::Convert(flags) => convert::convert(&flags),
        Command::Train(flags) => train::train(&flags),
        Command::Generate(flags) => generate::generate(&flags),
        Command::Eval(flags) => eval::eval(&flags),
        Command::Look(flags) => look::look(&flags),
        Command::Web(flags) => web::web(&flags),
        Command::Bench(Bench::Linear(flags)) => bench::bench_linear(&flags),
        Command::Bench(Bench::Scan(flags)) => bench::bench_scan(&flags),
        Command::Bench(Bench::Step(flags)) => bench::step(&flags),
        Command::Bench(Bench::Decode(flags)) => bench::decode(&flags),
        Command::Bench(Bench::Prefill(flags)) => bench::prefill(&flags),
        Command::Completions { shell } => manual::completions(shell, program),
        Command::Man { directory } => manual::man(program, directory.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            message::error(&error);
            ExitCode::from(exit_code(&error) as u8)
        }
    }
}

/// That of a failure.
fn exit_code(error: &Failure) -> i32 {
    if error.is::<Usage>() { 2 } else { 1 }
}

/// Vulkan drivers of Mesa look for a Wayland session, and its library prints an error where this
/// variable is missing. A directory that does not exist is no session either.
fn silence_wayland() {
    const VARIABLE: &str = "XDG_RUNTIME_DIR";
    if cfg!(target_os = "linux") && std::env::var_os(VARIABLE).is_none() {
        // SAFETY: no other thread reads the environment: there is none yet.
        unsafe { std::env::set_var(VARIABLE, "/nonexistent") };
    }
}

/// Why a command ended early; it may come from another thread.
type Failure = Box<dyn Error + Send + Sync>;

/// A mistake of the user.
#[derive(Debug)]
struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// The failure of a mistake of the user.
fn usage<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Usage(why.into()).into())
}

/// With the flags that set the fields of a config or a recipe.
impl From<InvalidValue> for Usage {
    fn from(error: InvalidValue) -> Usage {
        let flag = |name| {
            let name = match name {
                "hidden_size" => "d_model",
                "num_hidden_layers" => "n_layer",
                "state_size" => "d_state",
                "conv_kernel" => "d_conv",
                "time_step_rank" => "dt_rank",
                "num_attention_heads" => "n_head",
                "num_key_value_heads" => "n_kv_head",
                "the MLP's width" => "d_ff",
                "layers" => "layer_pattern",
                "rank" => "lora",
                "alpha" => "lora_alpha",
                "dropout" => "lora_dropout",
                "schedule.peak" => "lr",
                "schedule.min" => "min_lr",
                "schedule.total" => "steps",
                name => name.trim_start_matches("schedule."),
            };
            format!("--{}", name.replace('_', "-"))
        };
        let flags: Vec<String> = error.name.split(" × ").map(flag).collect();
        Usage(format!("{} is {}, expected {}", flags.join(" × "), error.found, error.expected))
    }
}

/// Write to standard output, with styles only where they are wanted. A reader that closed the pipe,
/// such as `head`, is no error: println! panics there.
fn print(text: &str) -> Result<(), String> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("output: {error}")),
        _ => Ok(()),
    }
}

/// Print a report as text or as one JSON document.
fn print_report(report: &(impl Serialize + fmt::Display), json: bool) -> Result<(), Failure> {
    let json = json.then(|| serde_json::to_string_pretty(report)).transpose()?;
    Ok(print(&json.map_or_else(|| report.to_string(), |json| json + "\n"))?)
}

/// `128 MiB`; with one decimal if it is not whole.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (count as f64, 0);
    // From here on one decimal rounds to 1024.
    while value >= 1023.95 {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_units() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (48 << 10, "48 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            ((1 << 32) - 1, "4.0 GiB"),
            (1 << 32, "4 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text, "{count}");
        }
    }
}
