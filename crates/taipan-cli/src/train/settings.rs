//! The settings of a run, by precedence: the command line, a file, a preset, defaults.

use std::fmt::{Debug, Display};
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};

use clap::Command;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use taipan::optim::{Curve, Schedule};
use taipan_lm::data::Split;
use taipan_lm::{Activations, Config, InvalidValue, Preset, Recipe, checksum};
use toml::{Table, Value};

use super::corpus::Corpus;
use super::declare::settings;
use super::values::{LrCurve, Time};
use crate::machine::Dtype;
use crate::{Failure, Usage, usage};

/// The settings in the directory of a run, in the format of `--config`.
pub const FILE: &str = "train.toml";

/// The key of the settings in the notes of checkpoints.
pub const NOTE: &str = "settings";

/// How long a setting is valid.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    /// For the model: its shape.
    Model,
    /// For the whole run, since it affects the result.
    Run,
    /// The same, and it contains paths of this machine.
    RunPath,
    /// Until the run is resumed. None of these affects the result, except `steps` and `decay`,
    /// which stretch the schedule, and `device`, which rounds differently.
    Resume,
    /// For one invocation of the program.
    Call,
}

impl Scope {
    /// Of a key of the file.
    fn of(key: &str) -> Option<Scope> {
        SETTINGS.iter().find(|(name, _)| flag(name) == key).map(|(_, scope)| *scope)
    }

    fn may_change(self) -> bool {
        matches!(self, Scope::Resume | Scope::Call)
    }
}

settings! {
    defaults(config: Config, recipe: Recipe);
    "Data" {
        /// Training text: files (UTF-8, .jsonl, .gz, .zst), directories, globs, - for standard input
        files: Vec<String> = Vec::new(), positional "FILES", RunPath;
        /// Training text without FILES [default: stories]
        #[arg(conflicts_with = "files")]
        corpus: Corpus, flag "NAME", Run;
        /// Key of the text in .jsonl files, or its column in .parquet files [default: text]
        text_key: String, flag "KEY", Run;
        /// Refuse files that are not UTF-8, which are skipped otherwise
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        strict: bool, flag "BOOL", Run;
        /// A Hugging Face tokenizer.json [default: bytes; for the stories, 1024 trained tokens]
        #[arg(conflicts_with = "train_tokenizer")]
        tokenizer: PathBuf, flag "FILE", RunPath;
        /// Train a byte-level BPE tokenizer of N tokens on the text
        train_tokenizer: usize, flag "N", Run, in 258..=1 << 18;
        /// Fraction of the text that is held out for evaluation
        val_fraction: f64 = Split::default().held_out, flag "FRACTION", Run, in 0.0..=0.5;
    }
    "Model" {
        /// Model size and training settings; other flags override it
        preset: String = DEFAULT_PRESET.to_string(), flag "NAME", Run;
        /// Width of the model
        d_model: usize = config.hidden_size, flag "N", Model;
        /// Number of layers
        n_layer: usize = config.num_hidden_layers, flag "N", Model;
        /// State size per channel
        d_state: usize = config.state_size, flag "N", Model;
        /// Kernel size of the convolution
        d_conv: usize = config.conv_kernel, flag "N", Model;
        /// Inner channels of a layer, as a multiple of --d-model
        expand: usize = config.expand, flag "N", Model;
        /// Rank of the projection to Δ [default: a 16th of --d-model]
        dt_rank: usize = match d_model == config.hidden_size {
            true => config.time_step_rank,
            false => d_model.div_ceil(16),
        }, flag "N", Model;
        /// Do not tie the output head to the embedding
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        untied: bool = !config.tie_word_embeddings, flag "BOOL", Model;
        /// Dtype of the weights; f16 and bf16 have master copies in f32
        dtype: Dtype = Dtype::F32, flag "TYPE", Run;
        /// Fine-tune this model (config.json, model.safetensors), with its tokenizer
        from: PathBuf, flag "DIR", RunPath;
        /// Do not train parameters whose names match, * for anything; may be repeated
        freeze: Vec<String> = recipe.freeze.clone(), flag "PATTERN", Run;
    }
    "Training" {
        /// Total number of steps
        steps: u64 = recipe.schedule.total, flag "N", Resume;
        /// Stop after this time, for example 90s, 10m or 1h
        #[arg(value_parser = |text: &str| Time::try_from(text.to_owned()))]
        max_time: Time, flag "TIME", Call;
        /// Sequences per batch
        batch_size: usize = recipe.batch_size, flag "N", Run;
        /// Tokens per sequence
        block_size: usize = recipe.block_size, flag "N", Run;
        /// Batches per step, whose gradients are accumulated
        grad_accum: usize = recipe.grad_accum, flag "N", Run;
        /// Peak learning rate, after the warm-up
        lr: f64 = recipe.schedule.peak, flag "RATE", Run;
        /// Final learning rate [default: a tenth of --lr]
        min_lr: f64 = lr / 10.0, flag "RATE", Run;
        /// How the learning rate decreases from --lr to --min-lr
        schedule: LrCurve = LrCurve::Cosine, flag "SHAPE", Run;
        /// Steps of warm-up from 0 to --lr [default: a 20th of --steps]
        warmup: u64 = steps / 20, flag "N", Run;
        /// Steps of the decay at the end, with --schedule wsd [default: a fifth of --steps]
        decay: u64 = steps / 5, flag "N", Resume;
        /// AdamW: weight decay, of matrices only
        weight_decay: f64 = recipe.weight_decay, flag "X", Run;
        /// AdamW: decay rate of the mean gradient
        beta1: f64 = recipe.beta1, flag "X", Run;
        /// AdamW: decay rate of the mean squared gradient
        beta2: f64 = recipe.beta2, flag "X", Run;
        /// AdamW: added to the denominator
        eps: f64 = recipe.eps, flag "X", Run;
        /// Clip gradients to this global norm; 0 for no clipping
        grad_clip: f64 = recipe.grad_clip.unwrap_or(0.0), flag "NORM", Run;
        /// Seed of the weights, the split and the order of the data
        seed: u64 = recipe.seed, flag "N", Run;
        /// Recompute activations in the backward pass: a third more time, much less memory
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        recompute: bool = recipe.activations == Activations::Recomputed, flag "BOOL", Resume;
    }
    "Machine" {
        /// cpu, gpu, auto (a GPU if there is one), or a GPU's number or part of its name: see
        /// taipan devices
        device: String = "cpu".into(), flag "DEVICE", Resume;
        /// CPU threads; results do not depend on it [default: one per core]
        threads: usize, flag "N", Call;
    }
    "Output" {
        /// Directory of the model, its checkpoints and the metrics
        out: PathBuf = "taipan-run".into(), flag "DIR", Call;
        /// Save a checkpoint at step N and exit; continue later with --resume
        stop_after: u64, flag "N", Call, in 1..=steps;
        /// Steps between checkpoints [default: a tenth of --steps]
        save_interval: u64 = (steps / 10).max(1), flag "N", Resume, in 1..;
        /// Checkpoints to keep, besides the best
        keep: usize = 2, flag "N", Resume, in 1..;
        /// Steps between evaluations on held-out text [default: a tenth of --steps]
        eval_interval: u64 = (steps / 10).max(1), flag "N", Resume, in 1..;
        /// Maximum number of held-out tokens per evaluation
        eval_tokens: u64 = 32768, flag "N", Run, in 1..;
        /// Steps between lines of metrics.jsonl
        log_interval: u64 = 10, flag "N", Resume, in 1..;
        /// Also write TensorBoard event files
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        tensorboard: bool = false, flag "BOOL", Resume;
        /// Prompt of the sample at the end
        prompt: String = match corpus.unwrap_or_default() {
            Corpus::Stories if files.is_empty() => "The".into(),
            _ => "pub fn ".into(),
        }, flag "TEXT", Resume;
        /// Also generate a sample from this prompt at every evaluation
        sample: String, flag "PROMPT", Resume;
        /// Tokens of a sample; 0 for no sample
        sample_tokens: usize = 400, flag "N", Resume;
    }
}

const DEFAULT_PRESET: Preset = Preset::Tiny;

/// The flag of a setting, without its dashes.
fn flag(name: &str) -> String {
    name.replace('_', "-")
}

/// An error unless a setting, if it is given, lies in its range.
fn check<T: PartialOrd + Debug + Display>(
    name: &'static str,
    value: impl Into<Option<T>>,
    range: impl RangeBounds<T>,
) -> Result<(), InvalidValue> {
    value.into().map_or(Ok(()), |value| InvalidValue::check("settings", name, value, range))
}

/// Add the defaults to the help of `train`.
pub fn show_defaults(train: Command) -> Command {
    let (config, recipe) = (DEFAULT_PRESET.config(1), DEFAULT_PRESET.recipe());
    let settings = Settings::resolve(Flags::default(), &config, &recipe);
    let defaults = Table::try_from(settings).expect("numbers and texts");
    let presets = Preset::ALL.map(|preset| preset.to_string()).join(", ");
    train.mut_args(|arg| {
        let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        match defaults.get(&flag(arg.get_id().as_str())) {
            _ if help.contains("[default: ") => {}
            None | Some(Value::Boolean(false) | Value::Array(_)) => {}
            Some(Value::String(text)) => help += &format!(" [default: {}]", text.trim_end()),
            Some(value) => help += &format!(" [default: {value}]"),
        }
        if arg.get_id() == "preset" {
            help += &format!(" [one of {presets}]");
        }
        arg.help(help)
    })
}

impl Settings {
    /// The settings of a new run.
    pub fn new(flags: &Flags) -> Result<Settings, Failure> {
        let flags = with_file(flags)?;
        let preset = preset(&flags)?;
        let config = match &flags.from {
            None => preset.config(1),
            Some(_) if flags.preset.is_some() => {
                return usage("--preset and --from both determine the model's shape");
            }
            Some(directory) => Config::from_file(directory.join("config.json"))?,
        };
        let settings = Settings::resolve(flags.clone(), &config, &preset.recipe());
        if let Some(directory) = &flags.from {
            let of_model = Settings::resolve(Flags::default(), &config, &preset.recipe());
            let (given, of_model) = (Table::try_from(&flags)?, Table::try_from(of_model)?);
            let differs = |(key, found): &(&String, &Value)| {
                Scope::of(key) == Some(Scope::Model) && of_model[*key] != **found
            };
            if let Some((key, found)) = given.iter().find(differs) {
                let (expected, from) = (&of_model[key], directory.display());
                return usage(format!("--{key} is {found}, but in {from} it is {expected}"));
            }
        }
        settings.checked()
    }

    /// The settings of the run in `--out`, to resume it.
    pub fn resumed(flags: &Flags) -> Result<Settings, Failure> {
        let flags = with_file(flags)?;
        let preset = preset(&flags)?;
        let out = Settings::resolve(flags.clone(), &preset.config(1), &preset.recipe()).out;
        let stored = read(&out.join(FILE), "nothing to resume")?;
        let (given, expected) = (Table::try_from(&flags)?, Table::try_from(&stored)?);
        let differs = |(key, found): &(&String, &Value)| {
            let is_fixed = Scope::of(key).is_none_or(|scope| !scope.may_change());
            is_fixed && expected.get(*key) != Some(*found)
        };
        if let Some((key, found)) = given.iter().find(differs) {
            let name = if key == "files" { "FILES".into() } else { format!("--{key}") };
            let has = expected.get(key).map_or("none".into(), Value::to_string);
            let may = SETTINGS.iter().filter(|(_, scope)| scope.may_change());
            let may: Vec<_> = may.map(|(name, _)| format!("--{}", flag(name))).collect();
            let (run, may) = (out.display(), may.join(", "));
            let why = format!("{name} is {found}, but the run in {run} has {has}");
            return usage(format!("{why}; with --resume only these may change: {may}"));
        }
        let flags = Flags { out: Some(out), ..flags.or(stored) };
        let preset = self::preset(&flags)?;
        Settings::resolve(flags, &preset.config(1), &preset.recipe()).checked()
    }

    /// These settings, unless one is invalid.
    fn checked(self) -> Result<Settings, Failure> {
        self.shape(1).check().map_err(Usage::from)?;
        self.recipe().check().map_err(Usage::from)?;
        self.check_ranges().map_err(Usage::from)?;
        // What TOML has no number for.
        Table::try_from(&self).map_err(|error| Usage(format!("settings: {error}")))?;
        Ok(self)
    }

    /// Write them to the directory of the run.
    pub fn save(&self) -> Result<(), Failure> {
        let mut table = Table::try_from(self)?;
        // Next to --from, which determines the shape, --preset is refused.
        let is_given = |key: &str| key != "preset" || self.from.is_none();
        table.retain(|key, _| Scope::of(key) != Some(Scope::Call) && is_given(key));
        let text = format!("# taipan train --config {FILE} repeats this run.\n{table}");
        Ok(taipan_lm::write_file(&self.out.join(FILE), text.as_bytes())?)
    }

    /// What must not change when the run is resumed. Of paths only checksums: checkpoints are
    /// shared with people whom the paths do not concern.
    pub fn fixed(&self) -> Result<Map<String, Json>, Failure> {
        let mut table = Table::try_from(self)?;
        table.retain(|key, _| Scope::of(key).is_some_and(|scope| !scope.may_change()));
        let value = |(key, value): (String, Value)| {
            let value = match Scope::of(&key) {
                Some(Scope::RunPath) => checksum(value.to_string().as_bytes()).into(),
                _ => serde_json::to_value(value)?,
            };
            Ok((key, value))
        };
        table.into_iter().map(value).collect()
    }

    /// An error if these settings, which are those of [`FILE`], are not those of the checkpoint.
    pub fn check_unchanged(&self, notes: &Map<String, Json>) -> Result<(), Failure> {
        let none = Map::new();
        let expected = notes.get(NOTE).and_then(Json::as_object).unwrap_or(&none);
        let found = self.fixed()?;
        let mut keys = expected.keys().chain(found.keys());
        let Some(key) = keys.find(|key| found.get(*key) != expected.get(*key)) else {
            return Ok(());
        };
        let path = self.out.join(FILE);
        let shown = |value: Option<&Json>| value.map_or("none".into(), Json::to_string);
        let (found, expected) = (shown(found.get(key)), shown(expected.get(key)));
        let difference = match Scope::of(key) {
            Some(Scope::RunPath) => format!("{key} is not what it was when the run began"),
            _ => format!("{key} is {found}, but the run began with {expected}"),
        };
        let what = "it was edited; to change a setting, use the flags that --resume allows";
        usage(format!("{}: {difference}; {what}", path.display()))
    }

    /// The model's `config.json`.
    pub fn config(&self, vocab_size: usize) -> Result<Config, Failure> {
        match &self.from {
            Some(directory) => Ok(Config::from_file(directory.join("config.json"))?),
            None => Ok(self.shape(vocab_size)),
        }
    }

    /// The shape of the model.
    fn shape(&self, vocab_size: usize) -> Config {
        Config {
            vocab_size,
            hidden_size: self.d_model,
            num_hidden_layers: self.n_layer,
            state_size: self.d_state,
            conv_kernel: self.d_conv,
            expand: self.expand,
            time_step_rank: self.dt_rank,
            tie_word_embeddings: !self.untied,
            ..Config::default()
        }
    }

    /// How it is trained.
    pub fn recipe(&self) -> Recipe {
        let (peak, min, warmup, total) = (self.lr, self.min_lr, self.warmup, self.steps);
        let activations = if self.recompute { Activations::Recomputed } else { Activations::Saved };
        let curve = match self.schedule {
            LrCurve::Constant => Curve::Constant,
            LrCurve::Cosine => Curve::Cosine,
            LrCurve::Wsd => Curve::StableDecay { decay: self.decay },
        };
        Recipe {
            batch_size: self.batch_size,
            block_size: self.block_size,
            grad_accum: self.grad_accum,
            schedule: Schedule { peak, min, warmup, total, curve },
            weight_decay: self.weight_decay,
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            grad_clip: (self.grad_clip != 0.0).then_some(self.grad_clip),
            seed: self.seed,
            freeze: self.freeze.clone(),
            activations,
        }
    }
}

/// What the user specified: the flags and, where they are not given, the file of `--config`.
fn with_file(flags: &Flags) -> Result<Flags, Failure> {
    let mut flags = flags.clone();
    if let Some(path) = flags.config.clone() {
        flags = flags.or(read(&path, "--config")?);
    }
    if flags.tokenizer.is_some() && flags.train_tokenizer.is_some() {
        return usage("--tokenizer and --train-tokenizer cannot be used together");
    }
    Ok(flags)
}

/// The flags in a file, with `what` in front of the error if it cannot be read. Unknown keys and
/// wrong types are reported with their lines.
fn read(path: &Path, what: &str) -> Result<Flags, Failure> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{what}: {file}: {error}"))?;
    toml::from_str(&text).or_else(|error| usage(format!("{file}: {error}")))
}

fn preset(flags: &Flags) -> Result<Preset, Usage> {
    match &flags.preset {
        None => Ok(DEFAULT_PRESET),
        Some(name) => name.parse().map_err(|error| Usage(format!("--{error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(toml: &str) -> Result<Settings, String> {
        let flags: Flags = toml::from_str(toml).unwrap();
        Settings::new(&flags).map_err(|error| error.to_string())
    }

    #[test]
    fn every_preset_is_valid() {
        for preset in Preset::ALL {
            let settings = settings(&format!("preset = '{preset}'")).unwrap();
            assert_eq!(settings.preset, preset.to_string());
            assert_eq!(settings.config(50280).unwrap(), preset.config(50280));
            assert_eq!(settings.recipe(), preset.recipe());
        }
    }

    #[test]
    fn derived_defaults_can_be_overridden() {
        let derived = settings("steps = 100\nlr = 0.5\nd-model = 40").unwrap();
        assert_eq!((derived.warmup, derived.decay, derived.eval_interval), (5, 20, 10));
        assert_eq!((derived.min_lr, derived.dt_rank), (0.05, 3));
        let given = settings("steps = 100\nlr = 0.5\nmin-lr = 0\nwarmup = 7\ndt-rank = 2").unwrap();
        assert_eq!((given.min_lr, given.warmup, given.dt_rank), (0.0, 7, 2));
    }

    #[test]
    fn invalid_values_are_refused() {
        let cases = [
            ("steps = 0", "--steps is 0, expected 1 to 1099511627776"),
            ("beta1 = 1.0", "--beta1 is 1, expected at least 0 and below 1"),
            ("lr = nan", "--lr is NaN, expected above 0 and below inf"),
            ("lr = -1", "--lr is -1, expected above 0"),
            ("weight-decay = inf", "--weight-decay is inf, expected at least 0 and below inf"),
            ("lr = 1e-4\nmin-lr = 1e-3", "--min-lr is 0.001, expected 0 to 0.0001"),
            ("steps = 10\nwarmup = 11", "--warmup is 11, expected 0 to 10"),
            ("steps = 10\nstop-after = 11", "--stop-after is 11"),
            ("d-model = 100000\nexpand = 3", "--expand is 3, expected 1 to 2"),
            ("d-state = 300", "--d-state is 300, expected 1 to 256"),
            ("grad-clip = -1", "--grad-clip is -1, expected above 0 and below inf"),
            ("keep = 0", "--keep is 0, expected 1 or more"),
            (
                "batch-size = 65536\nblock-size = 65536",
                "--batch-size × --block-size × --grad-accum is 4294967296, expected 1 to ",
            ),
            ("preset = 'huge'", "--preset: huge found, expected one of tiny, "),
            ("tokenizer = 'a'\ntrain-tokenizer = 300", "--tokenizer and --train-tokenizer"),
        ];
        for (toml, start) in cases {
            let error = settings(toml).unwrap_err();
            assert!(error.starts_with(start), "{toml}: {error}");
        }
    }
}
