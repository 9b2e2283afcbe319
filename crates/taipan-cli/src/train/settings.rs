//! The settings of a run, by precedence: the command line, a file, a preset, defaults.

use std::fmt::{Debug, Display};
use std::ops::RangeBounds;
use std::path::PathBuf;

use clap::Command;
use serde::{Deserialize, Serialize};
use taipan::optim::{Curve, Schedule};
use taipan_lm::data::Split;
use taipan_lm::{
    Activations, AttentionConfig, Config, Family, InvalidValue, LayerKind, Lora, Mamba3Config,
    Preset, Recipe, Ssm,
};
use toml::{Table, Value};

use super::corpus::Corpus;
use super::declare::settings;
use super::settings_file::{self, read};
use super::values::{LrCurve, Time};
use crate::arch::{self, Arch, Hybrid, LayerPattern};
use crate::machine::{self, Dtype};
use crate::{Failure, Usage, model, usage};

/// How long a setting is valid.
#[derive(Clone, Copy, PartialEq)]
pub enum Scope {
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
    pub fn of(key: &str) -> Option<Scope> {
        SETTINGS.iter().find(|(name, _)| flag(name) == key).map(|(_, scope)| *scope)
    }

    pub fn may_change(self) -> bool {
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
        /// Fraction of the text held out for evaluation
        val_fraction: f64 = Split::default().held_out, flag "FRACTION", Run, in 0.0..=0.5;
    }
    "Model" {
        /// Size of the model, with its training settings; other flags override them
        preset: String = DEFAULT_PRESET.to_string(), flag "NAME", Run;
        /// Mixers of the model
        arch: Arch = Arch::of(config), flag "NAME", Model;
        /// Width of the model
        d_model: usize = config.hidden_size, flag "N", Model;
        /// Number of layers
        n_layer: usize = config.layers.len(), flag "N", Model;
        /// State size per channel
        d_state: usize = config.state_size, flag "N", Model;
        /// Kernel size of the causal convolution
        d_conv: usize = config.conv_kernel, flag "N", Model;
        /// Expansion factor: inner channels per channel of --d-model
        expand: usize = config.expand, flag "N", Model;
        /// Rank of the projection to Δ [default: --d-model / 16]
        dt_rank: usize = match config.ssm {
            Ssm::Mamba { time_step_rank, .. } if d_model == config.hidden_size => time_step_rank,
            _ => d_model.div_ceil(16),
        }, flag "N", Model;
        /// Channels of a head, with --arch mamba2, mamba3 or hybrid
        head_dim: usize = match config.ssm {
            Ssm::Mamba2 { head_dim, .. } => head_dim,
            Ssm::Mamba3(Mamba3Config { head_dim, .. }) => head_dim,
            Ssm::Mamba { .. } => 64,
        }, flag "N", Model;
        /// Inputs and outputs of a channel, with --arch mamba3: MIMO; 0 for SISO
        mimo_rank: usize = match config.ssm {
            Ssm::Mamba3(Mamba3Config { mimo_rank, .. }) => mimo_rank.unwrap_or(0),
            _ => 0,
        }, flag "N", Model;
        /// With --arch hybrid: M (Mamba-2), A (attention) or B (both) for each layer, repeated up to
        /// --n-layer [default: MMAM]
        layer_pattern: LayerPattern = LayerPattern::of(&config.layers), flag "LETTERS", Model;
        /// Attention heads, with --arch hybrid [default: --d-model / --head-dim]
        n_head: usize = match config.attention {
            Some(attention) if d_model == config.hidden_size => attention.num_heads,
            _ => d_model.checked_div(head_dim).unwrap_or(0).max(1),
        }, flag "N", Model;
        /// Heads of keys and values, which --n-head share [default: as many; of presets, fewer]
        n_kv_head: usize = match config.attention {
            Some(attention) if n_head == attention.num_heads => attention.num_key_value_heads,
            _ => n_head,
        }, flag "N", Model;
        /// Width of the MLPs, with --arch hybrid [default: --d-model × 8 / 3]
        d_ff: usize = match config.mlp {
            Some(mlp) if d_model == config.hidden_size => mlp.size,
            _ => arch::d_ff(d_model),
        }, flag "N", Model;
        /// Do not tie the weights of the output head to the embedding
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        untied: bool = !config.tie_word_embeddings, flag "BOOL", Model;
        /// Dtype of the weights; f16 and bf16 keep f32 master weights
        dtype: Dtype = Dtype::F32, flag "TYPE", Run;
        /// Fine-tune this model, with its tokenizer: a directory, or a name on the Hugging Face Hub
        /// that was downloaded with hf download
        from: PathBuf, flag "MODEL", RunPath;
        /// Freeze parameters whose names match, with * for any text; may be repeated
        freeze: Vec<String> = recipe.freeze.clone(), flag "PATTERN", Run;
        /// Train only parameters whose names match; may be repeated
        train_only: Vec<String> = recipe.train_only.clone(), flag "PATTERN", Run;
        /// Train LoRA adapters of this rank, and nothing else, of the model of --from [default: 8]
        #[arg(num_args = 0..=1, default_missing_value = "8")]
        lora: usize, flag "RANK", Run;
        /// Factor of the adapters, times the rank [default: 2 × rank]
        lora_alpha: f64, flag "X", Run;
        /// Dropout of the adapters' inputs [default: 0]
        lora_dropout: f64, flag "P", Run;
        /// What is adapted, for example in_proj,x_proj [default: what PEFT loads]
        #[arg(value_delimiter = ',', num_args = 1)]
        lora_targets: Vec<String> = Vec::new(), flag "NAMES", Run;
        /// Divide the factor of the adapters by the root of the rank, not by the rank
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        rslora: bool = false, flag "BOOL", Run;
    }
    "Training" {
        /// Training steps
        steps: u64 = recipe.schedule.total, flag "N", Resume;
        /// Stop after this time, for example 90s, 10m or 1h
        #[arg(value_parser = |text: &str| Time::try_from(text.to_owned()))]
        max_time: Time, flag "TIME", Call;
        /// Sequences per batch
        batch_size: usize = recipe.batch_size, flag "N", Run;
        /// Tokens per sequence
        block_size: usize = recipe.block_size, flag "N", Run;
        /// Gradient accumulation: batches per step, which MPI's ranks share [default: their number]
        grad_accum: usize = recipe.grad_accum, flag "N", Run;
        /// Peak learning rate; with --from, a tenth of the rate for models of its size
        lr: f64 = recipe.schedule.peak, flag "RATE", Run;
        /// Final learning rate [default: --lr / 10]
        min_lr: f64 = Recipe::min_lr(lr), flag "RATE", Run;
        /// Learning rate schedule from --lr to --min-lr
        schedule: LrCurve = LrCurve::Cosine, flag "SHAPE", Run;
        /// Warm-up steps [default: --steps / 20]
        warmup: u64 = steps / 20, flag "N", Run;
        /// Decay steps at the end, with --schedule wsd [default: --steps / 5]
        decay: u64 = steps / 5, flag "N", Resume;
        /// AdamW weight decay, applied to matrices only
        weight_decay: f64 = recipe.weight_decay, flag "X", Run;
        /// AdamW beta1
        beta1: f64 = recipe.beta1, flag "X", Run;
        /// AdamW beta2
        beta2: f64 = recipe.beta2, flag "X", Run;
        /// AdamW epsilon
        eps: f64 = recipe.eps, flag "X", Run;
        /// Clip gradients to this norm; 0 disables
        grad_clip: f64 = recipe.grad_clip.unwrap_or(0.0), flag "NORM", Run;
        /// Random seed: weights, held-out text, order of the data, samples
        seed: u64 = recipe.seed, flag "N", Run;
        /// Recompute activations in the backward pass: less memory, a third more time
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        recompute: bool = recipe.activations == Activations::Recomputed, flag "BOOL", Resume;
    }
    "Machine" {
        /// cpu, gpu, auto (a GPU if there is one), or a GPU's number or part of its name: see
        /// taipan devices
        device: String = machine::AUTO.into(), flag "DEVICE", Resume;
        /// CPU threads; the result does not depend on them [default: one per core]
        threads: usize, flag "N", Call;
        /// Dtype in which MPI's ranks send gradients; the result then depends on their number
        /// [default: their own, without rounding]
        reduce_dtype: Dtype, flag "TYPE", Run;
    }
    "Output" {
        /// Output directory: the model, checkpoints and metrics
        out: PathBuf = "taipan-run".into(), flag "DIR", Call;
        /// Save at step N and exit; --resume continues
        stop_after: u64, flag "N", Call, in 1..=steps;
        /// Steps between checkpoints [default: --steps / 10]
        save_interval: u64 = (steps / 10).max(1), flag "N", Resume, in 1..;
        /// Checkpoints to keep, in addition to the best
        keep: usize = 2, flag "N", Resume, in 1..;
        /// Steps between evaluations on held-out text [default: --steps / 10]
        eval_interval: u64 = (steps / 10).max(1), flag "N", Resume, in 1..;
        /// Held-out tokens per evaluation, at most
        eval_tokens: u64 = 32768, flag "N", Run, in 1..;
        /// Steps between lines of metrics.jsonl
        log_interval: u64 = 10, flag "N", Resume, in 1..;
        /// Also write TensorBoard event files
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        tensorboard: bool = false, flag "BOOL", Resume;
        /// Stop after N evaluations without a lower held-out loss; 0 disables
        early_stop: u64 = 0, flag "N", Resume;
        /// Prompt of the text samples at evaluations [default: the start of the held-out text]
        #[arg(allow_hyphen_values = true)]
        sample: String, flag "PROMPT", Resume;
        /// Tokens of the sample at the end; a quarter of them at evaluations; 0 disables
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
            Some(value) => help += &format!(" [default: {}]", settings_file::shown(value)),
        }
        if arg.get_id() == "preset" {
            help += &format!(" [one of {presets}]");
        }
        arg.help(help)
    })
}

impl Settings {
    /// The settings of a new run.
    pub fn new(flags: &Flags, ranks: usize) -> Result<Settings, Failure> {
        let flags = with_file(flags)?;
        let preset = preset(&flags)?;
        let mut recipe = preset.recipe();
        if ranks > 1 {
            recipe.grad_accum = ranks;
        }
        let Some(from) = &flags.from else {
            let settings = Settings::resolve(flags, &preset.config(1), &recipe).checked()?;
            return settings.for_ranks(ranks);
        };
        if flags.preset.is_some() {
            return usage("--preset and --from both determine the model's shape");
        }
        let config = Config::from_file(model::find(from)?.join("config.json"))?;
        recipe.schedule.peak = tuning(&config).1;
        let of_model = Table::try_from(Settings::resolve(Flags::default(), &config, &recipe))?;
        let given = Table::try_from(&flags)?;
        let differs = |(key, found): &(&String, &Value)| {
            Scope::of(key) == Some(Scope::Model) && of_model[*key] != **found
        };
        if let Some((key, found)) = given.iter().find(differs) {
            let (expected, from) = (&of_model[key], from.display());
            return usage(format!("--{key} is {found}, but in {from} it is {expected}"));
        }
        Settings::resolve(flags, &config, &recipe).checked()?.for_ranks(ranks)
    }

    /// The settings of the run in `--out`, to resume it.
    pub fn resumed(flags: &Flags, ranks: usize) -> Result<Settings, Failure> {
        let flags = with_file(flags)?;
        let preset = preset(&flags)?;
        let out = Settings::resolve(flags.clone(), &preset.config(1), &preset.recipe()).out;
        let mut specified = read(&out.join(settings_file::FILE), "nothing to resume")?;
        let derived = specified.derived.take().map_or_else(Flags::default, |derived| *derived);
        let stored = specified.clone().or(derived);
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
        let specified = flags.clone().or(specified);
        let flags = Flags { out: Some(out), ..flags.or(stored) };
        let preset = self::preset(&flags)?;
        let settings = Settings::resolve(flags, &preset.config(1), &preset.recipe());
        let settings = Settings { specified, ..settings }.checked()?;
        let accum = settings.grad_accum;
        if !accum.is_multiple_of(ranks) {
            let all = (1..=accum).filter(|ranks| accum.is_multiple_of(*ranks));
            let all: Vec<String> = all.map(|ranks| ranks.to_string()).collect();
            let (run, all) = (settings.out.display(), all.join(", "));
            let why = format!("the run in {run} has {accum} batches per step (--grad-accum)");
            return usage(format!("{why}, which {ranks} ranks cannot share: resume it on {all}"));
        }
        Ok(settings)
    }

    /// These settings, unless so many processes cannot share the batches of a step.
    fn for_ranks(self, ranks: usize) -> Result<Settings, Failure> {
        let accum = self.grad_accum;
        if accum.is_multiple_of(ranks) {
            return Ok(self);
        }
        let (less, more) = (accum / ranks * ranks, accum.next_multiple_of(ranks));
        let values = if less == 0 { more.to_string() } else { format!("{less} or {more}") };
        let why = format!("--grad-accum is {accum}, which {ranks} ranks cannot share");
        usage(format!("{why}, expected a multiple of {ranks}: {values}, for example"))
    }

    /// These settings, unless one is invalid.
    fn checked(self) -> Result<Settings, Failure> {
        // So many layers are made next.
        Config::ssm_layers(self.n_layer).map_err(Usage::from)?;
        // That of a model which is fine-tuned was checked when it was read.
        if self.from.is_none() {
            self.check_arch()?;
            self.shape(1).check().map_err(Usage::from)?;
        }
        self.recipe_of(&self.shape(1)).check().map_err(Usage::from)?;
        self.check_lora()?;
        self.check_ranges().map_err(Usage::from)?;
        // What TOML has no number for.
        Table::try_from(&self).map_err(|error| Usage(format!("settings: {error}")))?;
        Ok(self)
    }

    /// An error if flags are of other mixers, or heads and layers do not fit.
    fn check_arch(&self) -> Result<(), Failure> {
        let given = &self.specified;
        let of_hybrid = &[Arch::Hybrid][..];
        for (name, is_given, of) in [
            ("dt-rank", given.dt_rank.is_some(), &[Arch::Mamba][..]),
            ("head-dim", given.head_dim.is_some(), &[Arch::Mamba2, Arch::Mamba3, Arch::Hybrid]),
            ("d-conv", given.d_conv.is_some(), &[Arch::Mamba, Arch::Mamba2, Arch::Hybrid]),
            ("mimo-rank", given.mimo_rank.is_some(), &[Arch::Mamba3]),
            ("layer-pattern", given.layer_pattern.is_some(), of_hybrid),
            ("n-head", given.n_head.is_some(), of_hybrid),
            ("n-kv-head", given.n_kv_head.is_some(), of_hybrid),
            ("d-ff", given.d_ff.is_some(), of_hybrid),
        ] {
            if is_given && !of.contains(&self.arch) {
                let of: Vec<String> = of.iter().map(|arch| arch.to_string()).collect();
                return usage(format!("--{name} is of --arch {}", of.join(", ")));
            }
        }
        if self.arch != Arch::Hybrid {
            return Ok(());
        }
        let (layers, length) = (self.n_layer, self.layer_pattern.len());
        if !layers.is_multiple_of(length) {
            let expected = format!("a multiple of --layer-pattern's, {length}");
            return usage(format!("--n-layer is {layers}, expected {expected}"));
        }
        let (heads, width) = (self.n_head, self.d_model);
        match self.attention() {
            Some(_) => Ok(()),
            None => usage(format!("--n-head is {heads}, expected a divisor of --d-model, {width}")),
        }
    }

    /// The attention of a hybrid, if its heads divide the width.
    fn attention(&self) -> Option<AttentionConfig> {
        let of_preset = preset(&self.specified).ok().and_then(|preset| preset.config(1).attention);
        let new = || {
            let head_dim = self.d_model.checked_div(self.n_head)?;
            let fits = head_dim * self.n_head == self.d_model;
            fits.then(|| AttentionConfig::new(self.n_head, self.n_kv_head, head_dim))
        };
        let same = of_preset.filter(|of| of.num_heads == self.n_head);
        match same.filter(|of| of.num_heads * of.head_dim == self.d_model) {
            Some(of) => Some(AttentionConfig { num_key_value_heads: self.n_kv_head, ..of }),
            None => new(),
        }
    }

    /// An error if flags of adapters do not go together.
    fn check_lora(&self) -> Result<(), Failure> {
        let of_lora = [
            ("lora-alpha", self.lora_alpha.is_some()),
            ("lora-dropout", self.lora_dropout.is_some()),
            ("lora-targets", !self.lora_targets.is_empty()),
            ("rslora", self.rslora),
        ];
        match (self.lora, of_lora.into_iter().find(|(_, given)| *given)) {
            (None, Some((name, _))) => usage(format!("--{name} needs --lora")),
            (Some(_), _) if self.from.is_none() => usage("--lora needs --from, a model to adapt"),
            (Some(_), _) if !self.train_only.is_empty() => {
                usage("--lora and --train-only both determine what is trained")
            }
            _ => Ok(()),
        }
    }

    /// Where the learning rate comes from, if that is not plain: for fine-tuning a model of this
    /// shape.
    pub fn lr_source(&self, config: &Config) -> Option<String> {
        let is_derived = self.from.is_some() && self.specified.lr.is_none();
        is_derived.then(|| format!("for fine-tuning, a tenth of preset {}'s", tuning(config).0))
    }

    /// The shape of a new model.
    pub fn shape(&self, vocab_size: usize) -> Config {
        let sizes = Config {
            vocab_size,
            hidden_size: self.d_model,
            layers: vec![LayerKind::Ssm; self.n_layer],
            state_size: self.d_state,
            conv_kernel: self.d_conv,
            expand: self.expand,
            tie_word_embeddings: !self.untied,
            ..Config::default()
        };
        match self.arch {
            Arch::Mamba => Config { ssm: Ssm::mamba(self.dt_rank), ..sizes },
            Arch::Mamba2 => {
                Config { family: Family::Mamba2, ssm: Ssm::mamba2(self.head_dim), ..sizes }
            }
            Arch::Mamba3 => {
                let mimo_rank = (self.mimo_rank > 0).then_some(self.mimo_rank);
                let mamba3 = Mamba3Config { mimo_rank, ..Mamba3Config::new(self.head_dim) };
                Config { family: Family::Mamba3, ssm: Ssm::Mamba3(mamba3), ..sizes }
            }
            Arch::Hybrid => {
                let of_preset = preset(&self.specified).map(|preset| preset.config(1).multipliers);
                let hybrid = Hybrid {
                    layers: self.layer_pattern.layers(self.n_layer),
                    head_dim: self.head_dim,
                    attention: self.attention().unwrap_or(AttentionConfig::new(1, 1, self.d_model)),
                    d_ff: self.d_ff,
                };
                hybrid.config(Config { multipliers: of_preset.unwrap_or_default(), ..sizes })
            }
        }
    }

    /// How a model is trained, of which adapters are trained if they were asked for.
    pub fn recipe_of(&self, config: &Config) -> Recipe {
        let lora = self.lora.map(|rank| {
            let default = Lora::new(config);
            let targets = &self.lora_targets;
            Lora {
                rank,
                alpha: self.lora_alpha.unwrap_or(2.0 * rank as f64),
                dropout: self.lora_dropout.unwrap_or(default.dropout),
                targets: if targets.is_empty() { default.targets } else { targets.clone() },
                rslora: self.rslora,
                base: self.from.as_ref().map_or(String::new(), |from| from.display().to_string()),
            }
        });
        Recipe { lora, ..self.recipe() }
    }

    fn recipe(&self) -> Recipe {
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
            train_only: self.train_only.clone(),
            lora: None,
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

/// The preset that is nearest in size to a model, and the learning rate to fine-tune it with: a
/// tenth of what the preset is trained with.
fn tuning(config: &Config) -> (Preset, f64) {
    let distance = |preset: &Preset| {
        let sizes = [config, &preset.config(config.vocab_size)].map(Config::parameters);
        (sizes[0] as f64 / sizes[1] as f64).ln().abs()
    };
    let alike =
        Preset::ALL.into_iter().filter(|preset| Arch::of(&preset.config(1)) == Arch::of(config));
    let nearest = alike.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let preset = nearest.expect("there is a preset");
    (preset, Recipe::min_lr(preset.recipe().schedule.peak))
}

fn preset(flags: &Flags) -> Result<Preset, Usage> {
    let name = flags.preset.clone().unwrap_or(DEFAULT_PRESET.to_string());
    let name = match flags.arch {
        Some(Arch::Mamba2) if !name.starts_with("mamba2-") => format!("mamba2-{name}"),
        Some(Arch::Hybrid) if !name.starts_with("hybrid-") => format!("hybrid-{name}"),
        Some(Arch::Mamba3) if !name.starts_with("mamba3-") => format!("mamba3-{name}"),
        _ => name,
    };
    let preset: Preset = name.parse().map_err(|error| Usage(format!("--{error}")))?;
    let found = Arch::of(&preset.config(1));
    match flags.arch {
        Some(arch) if arch != found => {
            let family = preset.family().title();
            Err(Usage(format!("--arch and --preset do not fit: {preset} is of {family}")))
        }
        _ => Ok(preset),
    }
}

#[cfg(test)]
mod tests;
