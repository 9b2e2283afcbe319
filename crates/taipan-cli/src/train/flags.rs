//! What the user of `taipan train` may say, on the command line or in a file.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::machine::Dtype;

/// Every field is a flag, and but for `config` and `resume` a key of the file. Nothing is here that was not
/// said: what holds then is in [`settings`](super::settings).
#[derive(clap::Args, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Flags {
    /// Text to learn from, in UTF-8: files, directories, globs [default: taipan's own sources]
    #[arg(value_name = "FILES", help_heading = "Data")]
    pub files: Option<Vec<String>>,
    /// A Hugging Face tokenizer.json [default: a token is a byte]
    #[arg(long, value_name = "FILE", help_heading = "Data", conflicts_with = "train_tokenizer")]
    pub tokenizer: Option<PathBuf>,
    /// Make a byte-level BPE tokenizer of N tokens from the text
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub train_tokenizer: Option<usize>,
    /// The part of the text that is held out, to measure what was learnt
    #[arg(long, value_name = "FRACTION", help_heading = "Data")]
    pub val_fraction: Option<f64>,

    /// Sizes and settings that go together; other flags win over it
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub preset: Option<String>,
    /// Width of the model
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub d_model: Option<usize>,
    /// Layers
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub n_layer: Option<usize>,
    /// State of each channel
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub d_state: Option<usize>,
    /// Taps of the convolution
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub d_conv: Option<usize>,
    /// Channels inside a layer per channel of the model
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub expand: Option<usize>,
    /// Rank of the projection to Δ [default: a 16th of --d-model]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub dt_rank: Option<usize>,
    /// Give the head weights of its own, not those of the embedding
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", help_heading = "Model")]
    pub untied: Option<bool>,
    /// Type of the weights; f16 and bf16 have master copies in f32
    #[arg(long, value_name = "TYPE", help_heading = "Model")]
    pub dtype: Option<Dtype>,
    /// Go on from this model (config.json, model.safetensors), with its shape and its tokenizer
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub from: Option<PathBuf>,
    /// Leave parameters as they are whose names match, * standing for anything; may be repeated
    #[arg(long, value_name = "PATTERN", help_heading = "Model")]
    pub freeze: Option<Vec<String>>,

    /// Steps in all
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<u64>,
    /// End after this time, as 90s, 10m or 1h
    #[arg(long, value_name = "TIME", help_heading = "Training")]
    pub max_time: Option<Time>,
    /// Rows of a batch
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub batch_size: Option<usize>,
    /// Tokens of a row
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub block_size: Option<usize>,
    /// Batches of a step
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub grad_accum: Option<usize>,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    pub lr: Option<f64>,
    /// Learning rate at the end [default: a tenth of --lr]
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    pub min_lr: Option<f64>,
    /// How the learning rate goes from --lr to --min-lr
    #[arg(long, value_name = "SHAPE", help_heading = "Training")]
    pub schedule: Option<Shape>,
    /// Steps over which the learning rate rises from 0 [default: a 20th of --steps]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub warmup: Option<u64>,
    /// Steps over which it falls at the end, with --schedule wsd [default: a fifth of --steps]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub decay: Option<u64>,
    /// Decay of matrices, per step and learning rate
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub weight_decay: Option<f64>,
    /// AdamW: how much of the mean gradient stays
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub beta1: Option<f64>,
    /// AdamW: how much of the mean squared gradient stays
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub beta2: Option<f64>,
    /// AdamW: what is added to the root of that mean
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub eps: Option<f64>,
    /// The largest norm of a gradient; 0 for any
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    pub grad_clip: Option<f64>,
    /// Of the weights and the order of the data
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u64>,
    /// Compute activations again in the backward pass: a third more work, much less memory
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", help_heading = "Training")]
    pub recompute: Option<bool>,

    /// cpu, gpu, auto (a GPU if there is one), or a GPU's number or part of its name, see taipan devices
    #[arg(long, value_name = "DEVICE", help_heading = "Machine")]
    pub device: Option<String>,
    /// Threads of the CPU; never changes a result [default: one per core]
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub threads: Option<usize>,

    /// Where the model, its checkpoints and the metrics go
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Go on with the run in --out from its last checkpoint, with its settings, bit for bit
    #[arg(long, help_heading = "Output")]
    #[serde(skip)]
    pub resume: bool,
    /// Save a checkpoint at step N and exit, to go on later with --resume
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub stop_after: Option<u64>,
    /// Steps from one checkpoint to the next [default: a tenth of --steps]
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub save_interval: Option<u64>,
    /// How many checkpoints to keep, besides the best
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub keep: Option<usize>,
    /// Steps from one measurement on held-out text to the next [default: a tenth of --steps]
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub eval_interval: Option<u64>,
    /// Held-out tokens of one measurement, at most
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub eval_tokens: Option<u64>,
    /// Steps from one line of metrics.jsonl to the next
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub log_interval: Option<u64>,
    /// Write TensorBoard's event files, too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", help_heading = "Output")]
    pub tensorboard: Option<bool>,
    /// What the sample at the end begins with
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub prompt: Option<String>,
    /// Tokens of the sample; 0 for none
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub sample_tokens: Option<usize>,

    /// Read flags from a TOML file, as `d-model = 256`; the command line wins over it
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// How the learning rate goes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// As it is after the warm-up
    Constant,
    /// Down along half a cosine
    Cosine,
    /// Warm-up, stable, decay: constant, then down along a line
    Wsd,
}

/// `90s`, `10m`, `1.5h`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let unit = [("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let seconds = unit.iter().find_map(|(unit, seconds)| {
            Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds)
        });
        let time = seconds.filter(|seconds| *seconds > 0.0);
        let time = time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        time.map(Time).ok_or_else(|| format!("{text:?} is no time, expected one as 90s, 10m or 1h"))
    }
}

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Time, String> {
        text.parse()
    }
}

impl From<Time> for String {
    fn from(time: Time) -> String {
        format!("{}s", time.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text: &str| text.parse().map(|Time(time)| time.as_secs_f64());
        assert_eq!(seconds("90s"), Ok(90.0));
        assert_eq!(seconds("10m"), Ok(600.0));
        assert_eq!(seconds("1.5h"), Ok(5400.0));
        for wrong in ["", "90", "s", "-1s", "0s", "infs", "nanm", "1e300h", "1d"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
        let time: Time = "90m".parse().unwrap();
        assert_eq!(String::from(time).parse(), Ok(time));
    }
}
