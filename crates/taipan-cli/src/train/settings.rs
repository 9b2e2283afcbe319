//! What a run uses: defaults, below a preset, below a file, below the command line.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::Command;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use taipan::Scan;
use taipan::optim::{Curve, Schedule};
use taipan_lm::{Activations, Config, Preset, Recipe, checksum};
use toml::{Table, Value};

use super::flags::{Flags, Shape, Time};
use crate::machine::Dtype;
use crate::{Failure, Usage};

/// What a run directory keeps of its settings, in the format of `--config`.
pub const FILE: &str = "train.toml";

/// What may be another when a run goes on: none of it decides what a step computes, but for `steps` and
/// `decay`, which stretch the schedule, and `device`, which rounds in its own way.
const CHANGEABLE: [&str; 15] = [
    "steps",
    "decay",
    "recompute",
    "max-time",
    "stop-after",
    "device",
    "threads",
    "eval-interval",
    "save-interval",
    "log-interval",
    "keep",
    "tensorboard",
    "prompt",
    "sample-tokens",
    "out",
];

/// What belongs to one call of the program, not to the run.
const PASSING: [&str; 4] = ["out", "max-time", "stop-after", "threads"];

/// What is written as a path of this machine.
const PATHS: [&str; 3] = ["files", "tokenizer", "from"];

/// Where checkpoints have the settings among the notes of the program.
const NOTE: &str = "settings";

/// What [`Flags`] mean, with nothing left open.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    #[serde(default)]
    pub files: Vec<String>,
    pub tokenizer: Option<PathBuf>,
    pub train_tokenizer: Option<usize>,
    pub val_fraction: f64,
    pub preset: String,
    pub d_model: usize,
    pub n_layer: usize,
    pub d_state: usize,
    pub d_conv: usize,
    pub expand: usize,
    pub dt_rank: usize,
    pub untied: bool,
    pub dtype: Dtype,
    pub from: Option<PathBuf>,
    #[serde(default)]
    pub freeze: Vec<String>,
    pub steps: u64,
    pub max_time: Option<Time>,
    pub batch_size: usize,
    pub block_size: usize,
    pub grad_accum: usize,
    pub lr: f64,
    pub min_lr: f64,
    pub schedule: Shape,
    pub warmup: u64,
    pub decay: u64,
    pub weight_decay: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub grad_clip: f64,
    pub seed: u64,
    pub recompute: bool,
    pub device: String,
    pub threads: Option<usize>,
    pub out: PathBuf,
    pub stop_after: Option<u64>,
    pub save_interval: u64,
    pub keep: usize,
    pub eval_interval: u64,
    pub eval_tokens: u64,
    pub log_interval: u64,
    pub tensorboard: bool,
    pub prompt: String,
    pub sample_tokens: usize,
}

/// `presets.toml`.
#[derive(Deserialize)]
struct Presets {
    defaults: Table,
    presets: Table,
}

static PRESETS: LazyLock<Presets> = LazyLock::new(|| {
    toml::from_str(include_str!("presets.toml")).expect("the file is part of the program")
});

impl Presets {
    fn default_of(&self, key: &str) -> &str {
        self.defaults[key].as_str().expect("this default is a text")
    }

    /// The defaults, with what the preset says.
    fn layers(&self, name: &str) -> Result<Table, Usage> {
        let preset: Preset = name.parse().map_err(|error| Usage(format!("--{error}")))?;
        let mut table = self.defaults.clone();
        table.extend(shape(&preset.config(1)));
        // It follows from the width, which may be another.
        table.remove("dt-rank");
        let training = self.presets[name].as_table().expect("every preset is here");
        table.extend(training.clone());
        Ok(table)
    }
}

/// Say in the help of `train` what holds when a flag is not given.
pub fn show_defaults(train: Command) -> Command {
    let defaults = PRESETS.layers(PRESETS.default_of("preset")).expect("the default is there");
    let names = Preset::ALL.map(|preset| preset.to_string()).join(", ");
    train
        .mut_args(|arg| match defaults.get(&arg.get_id().as_str().replace('_', "-")) {
            None | Some(Value::Boolean(false)) => arg,
            Some(value) => {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                arg.help(format!("{help} [default: {}]", value.trim_end()))
            }
        })
        .mut_arg("preset", |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.help(format!("{help} [one of {names}]"))
        })
}

impl Settings {
    /// The settings of a new run.
    pub fn new(flags: &Flags) -> Result<Settings, Failure> {
        let said = said(flags)?;
        let preset = said.get("preset").and_then(Value::as_str);
        let mut table = PRESETS.layers(preset.unwrap_or(PRESETS.default_of("preset")))?;
        if let Some(directory) = said.get("from").and_then(Value::as_str).map(Path::new) {
            if preset.is_some() {
                return Err(Usage("--preset and --from both say the model's shape".into()).into());
            }
            let shape = shape(&config_of(directory)?);
            for (key, found) in &said {
                if let Some(expected) = shape.get(key).filter(|expected| *expected != found) {
                    let from = directory.display();
                    return Err(Usage(format!(
                        "--{key} is {found}, but in {from} it is {expected}"
                    ))
                    .into());
                }
            }
            table.extend(shape);
        }
        table.extend(said);
        derive(&mut table)?;
        Settings::checked(table)
    }

    /// The settings of the run in `--out`, to go on with it.
    pub fn resumed(flags: &Flags) -> Result<Settings, Failure> {
        let said = said(flags)?;
        let out = said.get("out").and_then(Value::as_str).unwrap_or(PRESETS.default_of("out"));
        let directory = Path::new(out).to_owned();
        let path = directory.join(FILE);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("nothing to resume: {}: {error}", path.display()))?;
        let mut table: Table = read(&text, &path)?;
        for (key, found) in &said {
            let expected = table.get(key);
            if expected != Some(found) && !CHANGEABLE.contains(&key.as_str()) {
                let name = if key == "files" { "FILES".into() } else { format!("--{key}") };
                let has = expected.map_or("none".into(), Value::to_string);
                let may = CHANGEABLE.map(|key| format!("--{key}")).join(", ");
                let run = directory.display();
                return Err(Usage(format!(
                    "{name} is {found}, but the run in {run} has {has}; with --resume only these may change: {may}"
                ))
                .into());
            }
        }
        table.insert("out".into(), out.into());
        table.extend(said);
        Settings::checked(table)
    }

    fn checked(table: Table) -> Result<Settings, Failure> {
        let settings: Settings =
            table.try_into().map_err(|error| Usage(format!("settings: {error}")))?;
        settings.check()?;
        Ok(settings)
    }

    /// Keep them in the run directory.
    pub fn save(&self) -> Result<(), Failure> {
        let mut table = Table::try_from(self)?;
        table.retain(|key, _| !PASSING.contains(&key));
        let text = format!("# taipan train --config {FILE} repeats this run.\n{table}");
        Ok(taipan_lm::write_file(&self.out.join(FILE), text.as_bytes())?)
    }

    /// What must be the same when the run goes on. Of paths only checksums: checkpoints are shared with people whom
    /// these do not concern.
    fn unchanging(&self) -> Result<Map<String, Json>, Failure> {
        let mut table = Table::try_from(self)?;
        table.retain(|key, _| !CHANGEABLE.contains(&key));
        let value = |(key, value): (String, Value)| {
            let value = match PATHS.contains(&key.as_str()) {
                true => checksum(value.to_string().as_bytes()).into(),
                false => serde_json::to_value(value)?,
            };
            Ok((key, value))
        };
        table.into_iter().map(value).collect()
    }

    /// Keep that with the checkpoints.
    pub fn note(&self, notes: &mut Map<String, Json>) -> Result<(), Failure> {
        notes.insert(NOTE.into(), self.unchanging()?.into());
        Ok(())
    }

    /// An error if these settings, which are those of [`FILE`], are not the ones that the checkpoint was made with.
    pub fn check_unchanged(&self, notes: &Map<String, Json>) -> Result<(), Failure> {
        let none = Map::new();
        let expected = notes.get(NOTE).and_then(Json::as_object).unwrap_or(&none);
        let found = self.unchanging()?;
        let mut keys = expected.keys().chain(found.keys());
        let Some(key) = keys.find(|key| found.get(*key) != expected.get(*key)) else {
            return Ok(());
        };
        let path = self.out.join(FILE);
        let said = |value: Option<&Json>| value.map_or("none".into(), Json::to_string);
        let difference = match PATHS.contains(&key.as_str()) {
            true => format!("{key} is not what it was when the run began"),
            false => {
                let (found, expected) = (said(found.get(key)), said(expected.get(key)));
                format!("{key} is {found}, but the run began with {expected}")
            }
        };
        let what = "it was edited; what may change are flags of --resume";
        Err(Usage(format!("{}: {difference}; {what}", path.display())).into())
    }

    /// The shape of the model.
    pub fn config(&self, vocab_size: usize) -> Result<Config, Failure> {
        match &self.from {
            Some(directory) => config_of(directory),
            None => Ok(Config {
                vocab_size,
                hidden_size: self.d_model,
                num_hidden_layers: self.n_layer,
                state_size: self.d_state,
                conv_kernel: self.d_conv,
                expand: self.expand,
                time_step_rank: self.dt_rank,
                tie_word_embeddings: !self.untied,
                ..Config::default()
            }),
        }
    }

    /// How it is trained.
    pub fn recipe(&self) -> Recipe {
        let (peak, min, warmup, total) = (self.lr, self.min_lr, self.warmup, self.steps);
        let curve = match self.schedule {
            Shape::Constant => Curve::Constant,
            Shape::Cosine => Curve::Cosine,
            Shape::Wsd => Curve::StableDecay { decay: self.decay },
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
            grad_clip: (self.grad_clip > 0.0).then_some(self.grad_clip),
            seed: self.seed,
            freeze: self.freeze.clone(),
            activations: match self.recompute {
                true => Activations::Recomputed,
                false => Activations::Kept,
            },
        }
    }

    /// Refuse what makes no sense.
    fn check(&self) -> Result<(), Usage> {
        let size = 1..=1 << 18; // of Config
        let above_zero = (Bound::Excluded(0.0), Bound::Excluded(f64::INFINITY));
        within("d-model", self.d_model, size.clone())?;
        within("n-layer", self.n_layer, size.clone())?;
        within("d-state", self.d_state, 1..=Scan::MAX_STATES)?;
        within("d-conv", self.d_conv, 1..=1 << 13)?; // of Config
        within("expand", self.expand, 1..=(1 << 18) / self.d_model)?;
        within("dt-rank", self.dt_rank, 1..=self.d_model * self.expand)?;
        within("train-tokenizer", self.train_tokenizer.unwrap_or(258), 258..=1 << 18)?;
        within("val-fraction", self.val_fraction, 0.0..=0.5)?;
        within("batch-size", self.batch_size, size.clone())?;
        within("block-size", self.block_size, 1..=1 << 20)?;
        within("grad-accum", self.grad_accum, size)?;
        within("steps", self.steps, 1..=1 << 40)?;
        within("lr", self.lr, above_zero)?;
        within("min-lr", self.min_lr, 0.0..=self.lr)?;
        within("warmup", self.warmup, 0..=self.steps)?;
        if self.schedule == Shape::Wsd {
            within("decay", self.decay, 0..=self.steps - self.warmup)?;
        }
        within("weight-decay", self.weight_decay, 0.0..f64::INFINITY)?;
        within("beta1", self.beta1, 0.0..1.0)?;
        within("beta2", self.beta2, 0.0..1.0)?;
        within("eps", self.eps, above_zero)?;
        within("grad-clip", self.grad_clip, 0.0..f64::INFINITY)?;
        within("threads", self.threads.unwrap_or(1), 1..=1024)?;
        within("stop-after", self.stop_after.unwrap_or(1), 1..=self.steps)?;
        within("save-interval", self.save_interval, 1..)?;
        within("keep", self.keep, 1..)?;
        within("eval-interval", self.eval_interval, 1..)?;
        within("eval-tokens", self.eval_tokens, 1..)?;
        within("log-interval", self.log_interval, 1..)
    }
}

/// An error unless the value of a flag lies in its range.
fn within<T: PartialOrd + Display>(
    flag: &str,
    value: T,
    range: impl RangeBounds<T>,
) -> Result<(), Usage> {
    if range.contains(&value) {
        return Ok(());
    }
    let least = match range.start_bound() {
        Bound::Included(least) => Some(format!("at least {least}")),
        Bound::Excluded(least) => Some(format!("above {least}")),
        Bound::Unbounded => None,
    };
    let most = match range.end_bound() {
        Bound::Included(most) => Some(format!("at most {most}")),
        Bound::Excluded(most) => Some(format!("below {most}")),
        Bound::Unbounded => None,
    };
    let bounds: Vec<_> = least.into_iter().chain(most).collect();
    Err(Usage(format!("--{flag} is {value}, expected {}", bounds.join(" and "))))
}

/// What the user said: in the file of `--config`, and above it on the command line.
fn said(flags: &Flags) -> Result<Table, Failure> {
    let mut table = match &flags.config {
        None => Table::new(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("--config: {}: {error}", path.display()))?;
            // Unknown keys and wrong types are found here, with their lines.
            let flags: Flags = read(&text, path)?;
            Table::try_from(flags)?
        }
    };
    table.extend(Table::try_from(flags).map_err(|error| Usage(format!("flags: {error}")))?);
    for (one, other) in [("tokenizer", "train-tokenizer")] {
        if table.contains_key(one) && table.contains_key(other) {
            return Err(Usage(format!("--{one} and --{other} cannot both hold")).into());
        }
    }
    Ok(table)
}

fn read<T: serde::de::DeserializeOwned>(text: &str, path: &Path) -> Result<T, Usage> {
    toml::from_str(text).map_err(|error| Usage(format!("{}: {error}", path.display())))
}

/// Fill in what follows from other settings unless it was said.
fn derive(table: &mut Table) -> Result<(), Usage> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Basis {
        d_model: i64,
        steps: i64,
        lr: f64,
    }
    let basis: Basis =
        table.clone().try_into().map_err(|error| Usage(format!("settings: {error}")))?;
    let tenth = (basis.steps / 10).max(1);
    for (key, value) in [
        ("dt-rank", Value::Integer((basis.d_model + 15) / 16)),
        ("min-lr", Value::Float(basis.lr / 10.0)),
        ("warmup", Value::Integer(basis.steps / 20)),
        ("decay", Value::Integer(basis.steps / 5)),
        ("save-interval", Value::Integer(tenth)),
        ("eval-interval", Value::Integer(tenth)),
    ] {
        table.entry(key).or_insert(value);
    }
    Ok(())
}

/// The settings that a model's shape decides.
fn shape(config: &Config) -> Table {
    let size = |size: usize| Value::Integer(size as i64); // 2¹⁸ at most
    Table::from_iter([
        ("d-model".into(), size(config.hidden_size)),
        ("n-layer".into(), size(config.num_hidden_layers)),
        ("d-state".into(), size(config.state_size)),
        ("d-conv".into(), size(config.conv_kernel)),
        ("expand".into(), size(config.expand)),
        ("dt-rank".into(), size(config.time_step_rank)),
        ("untied".into(), Value::Boolean(!config.tie_word_embeddings)),
    ])
}

/// The `config.json` of a directory.
pub fn config_of(directory: &Path) -> Result<Config, Failure> {
    let path = directory.join("config.json");
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| named(&error))?;
    Ok(Config::from_json(&text).map_err(|error| named(&error))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(said: &str) -> Result<Settings, String> {
        let flags: Flags = toml::from_str(said).unwrap();
        Settings::new(&flags).map_err(|error| error.to_string())
    }

    #[test]
    fn every_preset_makes_sense() {
        for preset in Preset::ALL {
            let settings = settings(&format!("preset = '{preset}'")).unwrap();
            assert_eq!(settings.preset, preset.to_string());
            assert_eq!(settings.config(50280).unwrap(), preset.config(50280));
            settings.recipe().check().unwrap();
        }
    }

    #[test]
    fn what_follows_from_others_can_be_said() {
        let derived = settings("steps = 100\nlr = 0.5\nd-model = 40").unwrap();
        assert_eq!((derived.warmup, derived.decay, derived.eval_interval), (5, 20, 10));
        assert_eq!((derived.min_lr, derived.dt_rank), (0.05, 3));
        let said = settings("steps = 100\nlr = 0.5\nmin-lr = 0\nwarmup = 7\ndt-rank = 2").unwrap();
        assert_eq!((said.min_lr, said.warmup, said.dt_rank), (0.0, 7, 2));
    }

    #[test]
    fn nonsense_is_refused() {
        let cases = [
            ("steps = 0", "--steps is 0, expected at least 1 and at most 1099511627776"),
            ("beta1 = 1.0", "--beta1 is 1, expected at least 0 and below 1"),
            ("lr = nan", "--lr is NaN, expected above 0 and below inf"),
            ("lr = -1", "--lr is -1, expected above 0"),
            ("weight-decay = inf", "--weight-decay is inf, expected at least 0 and below inf"),
            (
                "lr = 1e-4\nmin-lr = 1e-3",
                "--min-lr is 0.001, expected at least 0 and at most 0.0001",
            ),
            ("steps = 10\nwarmup = 11", "--warmup is 11, expected at least 0 and at most 10"),
            ("steps = 10\nstop-after = 11", "--stop-after is 11"),
            ("d-model = 100000\nexpand = 3", "--expand is 3, expected at least 1 and at most 2"),
            ("d-state = 300", "--d-state is 300, expected at least 1 and at most 256"),
            ("preset = 'huge'", "--preset: huge found, expected one of tiny, "),
            ("tokenizer = 'a'\ntrain-tokenizer = 300", "--tokenizer and --train-tokenizer"),
        ];
        for (said, start) in cases {
            let error = settings(said).unwrap_err();
            assert!(error.starts_with(start), "{said}: {error}");
        }
    }
}
