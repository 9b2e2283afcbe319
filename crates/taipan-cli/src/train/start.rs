//! The start of a run: text, tokenizer, model, and a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};

use taipan::Device;
use taipan_lm::data::{Dataset, Skipped, Sources, Split};
use taipan_lm::{
    Config, Error, LanguageModel, Memory, Recipe, Tokenizer, Trainer, checkpoints, free_memory,
    is_unfinished, remove_unfinished,
};

use super::corpus::{self, sources};
use super::lock::{self, Lock};
use super::settings::Settings;
use super::{curve, metrics, overwrite, settings_file};
use crate::job::Place;
use crate::{Failure, model, usage};

/// The token cache, in the run directory.
pub const DATA: &str = "data";

/// A run that can take its next step.
pub struct Start {
    pub trainer: Trainer,
    pub memory: Memory,
    /// Files that were found and skipped.
    pub skipped: Vec<Skipped>,
    /// No other program writes to the directory while this lives.
    pub lock: Lock,
    pub place: Place,
}

/// What to do about a run that is in the directory already.
#[derive(Clone, Copy, PartialEq)]
pub enum Existing {
    Refuse,
    Overwrite,
}

/// Begin a run of so many processes in an empty directory, or in place of another run.
pub fn begin(
    settings: &Settings,
    device: &Device,
    existing: Existing,
    place: Place,
) -> Result<Start, Failure> {
    let out = settings.out.as_path();
    // Before anything is written there, and again when nobody else can.
    check_free(out, existing)?;
    let made = missing_directories(out);
    fs::create_dir_all(out).map_err(Error::io(out))?;
    let lock = Lock::take(out)?;
    check_free(out, existing)?;
    remove_temporary(out)?;
    // An old run is removed when nothing is known to be wrong with the new one.
    let is_new = !out.join(settings_file::FILE).exists();
    let plan = Plan::new(settings, device, place);
    let removed = plan.is_ok() && !is_new;
    let begun = plan.and_then(|plan| {
        overwrite::remove(out)?;
        plan.build(settings, device)
    });
    match begun {
        Ok((trainer, memory, skipped)) => Ok(Start { trainer, memory, skipped, lock, place }),
        Err(error) if !is_new && !removed => Err(error),
        Err(error) => {
            discard(out, lock, &made);
            Err(error)
        }
    }
}

/// Remove what [`begin`] has written, and the directories it made. Whatever stands in the way of
/// it, a run that could not begin has an error that says more.
pub fn discard(out: &Path, lock: Lock, made: &[PathBuf]) {
    let _ = fs::remove_file(out.join(settings_file::FILE));
    let _ = fs::remove_dir_all(out.join(DATA));
    let _ = fs::remove_file(out.join(lock::FILE));
    drop(lock);
    made.iter().rev().for_each(|directory| drop(fs::remove_dir(directory)));
}

/// Resume from the last checkpoint; if the run was stopped before its first, start again.
pub fn resume(settings: &Settings, device: &Device, place: Place) -> Result<Start, Failure> {
    let out = settings.out.as_path();
    let lock = Lock::take(out)?;
    remove_temporary(out)?;
    let Some((_, checkpoint)) = checkpoints(out)?.pop() else {
        let again = "no checkpoint yet, the run starts again from the beginning";
        crate::print(&format!("{}: {again}\n", out.display()))?;
        let (trainer, memory, skipped) =
            Plan::new(settings, device, place)?.build(settings, device)?;
        return Ok(Start { trainer, memory, skipped, lock, place });
    };
    let base = base(settings)?;
    let config = base.as_deref().unwrap_or(&checkpoint).join("config.json");
    let config = Config::from_file(config)?;
    let memory = memory(settings, &config, device, place)?;
    let data = out.join(DATA);
    let shown = data.display();
    let (dataset, skipped) = if Dataset::exists(&data) {
        let dataset = Dataset::open(&data).map_err(|error| {
            format!("{error}; without the directory {shown}, --resume tokenises the text again")
        })?;
        (dataset, Vec::new())
    } else {
        crate::print(&format!("{shown} is missing: the text is tokenised again\n"))?;
        let sources = sources(settings)?;
        let tokenizer = Tokenizer::from_file(checkpoint.join("tokenizer.json"))?;
        (build_data(settings, &sources, &tokenizer)?, sources.skipped().to_vec())
    };
    let trainer = load(settings, device, dataset)?;
    settings.check_unchanged(&trainer.notes)?;
    let done = trainer.steps_done();
    for (flag, steps) in [("steps", Some(settings.steps)), ("stop-after", settings.stop_after)] {
        if let Some(steps) = steps.filter(|steps| *steps < done) {
            let run = out.display();
            return usage(format!("--{flag} is {steps}, but {run} is at step {done}"));
        }
    }
    settings.save()?;
    Ok(Start { trainer, memory, skipped, lock, place })
}

/// The model whose adapters a run trains, if it does.
fn base(settings: &Settings) -> Result<Option<PathBuf>, Failure> {
    let base = settings.from.as_deref().filter(|_| settings.lora.is_some());
    base.map(model::find).transpose()
}

/// The last checkpoint of a run.
fn load(settings: &Settings, device: &Device, dataset: Dataset) -> Result<Trainer, Failure> {
    let out = settings.out.as_path();
    let take_over = |config: &Config, stored: &mut Recipe| {
        *stored = stored.continued(&settings.recipe_of(config));
    };
    Ok(match base(settings)? {
        Some(base) => {
            let base = LanguageModel::from_pretrained(base, Some(settings.dtype.into()), device)?;
            let config = base.config().clone();
            Trainer::resume_adapters(out, dataset, base, |stored| take_over(&config, stored))?
        }
        None => {
            let config = settings.shape(1);
            Trainer::resume(out, dataset, device, |stored| take_over(&config, stored))?
        }
    })
}

/// A process of a run that the first one has begun or resumed, with this tokenizer.
pub fn follow(
    settings: &Settings,
    device: &Device,
    tokenizer: Tokenizer,
) -> Result<Trainer, Failure> {
    let out = settings.out.as_path();
    let dataset = Dataset::open(out.join(DATA)).map_err(|error| {
        format!("{error}; all ranks must see the directory of the run, {}", out.display())
    })?;
    if !checkpoints(out)?.is_empty() {
        return load(settings, device, dataset);
    }
    let from = settings.from.as_deref().map(model::find).transpose()?;
    new_trainer(settings, device, from.as_deref(), (dataset, tokenizer))
}

/// A trainer that begins with the model of a directory, or with a new one.
fn new_trainer(
    settings: &Settings,
    device: &Device,
    from: Option<&Path>,
    (dataset, tokenizer): (Dataset, Tokenizer),
) -> Result<Trainer, Failure> {
    let dtype = settings.dtype.into();
    let model = match from {
        Some(directory) => LanguageModel::from_pretrained(directory, Some(dtype), device)?,
        None => {
            let config = settings.shape(tokenizer.vocab_size());
            LanguageModel::new(&config, dtype, settings.seed, device)?
        }
    };
    let recipe = settings.recipe_of(model.config());
    Ok(Trainer::new(model, dataset, tokenizer, recipe)?)
}

/// What a run begins with, before anything is written.
struct Plan {
    /// The model to fine-tune.
    from: Option<PathBuf>,
    sources: Sources,
    tokenizer: Tokenizer,
    memory: Memory,
}

impl Plan {
    fn new(settings: &Settings, device: &Device, place: Place) -> Result<Plan, Failure> {
        let from = settings.from.as_deref().map(model::find).transpose()?;
        let sources = sources(settings)?;
        let tokenizer = tokenizer(settings, &sources, from.as_deref())?;
        let config = match &from {
            Some(directory) => Config::from_file(directory.join("config.json"))?,
            None => settings.shape(tokenizer.vocab_size()),
        };
        if let Some(lora) = settings.recipe_of(&config).lora {
            lora.check_targets(&config)?;
        }
        let memory = memory(settings, &config, device, place)?;
        Ok(Plan { from, sources, tokenizer, memory })
    }

    fn build(
        self,
        settings: &Settings,
        device: &Device,
    ) -> Result<(Trainer, Memory, Vec<Skipped>), Failure> {
        let Plan { from, sources, tokenizer, memory } = self;
        settings.save()?;
        let dataset = build_data(settings, &sources, &tokenizer)?;
        // Before the model is made, which may take a while.
        dataset.check(settings.block_size)?;
        let mut trainer = new_trainer(settings, device, from.as_deref(), (dataset, tokenizer))?;
        trainer.notes.insert(settings_file::NOTE.into(), settings.fixed()?.into());
        Ok((trainer, memory, sources.skipped().to_vec()))
    }
}

fn build_data(
    settings: &Settings,
    sources: &Sources,
    tokenizer: &Tokenizer,
) -> Result<Dataset, Failure> {
    let split = Split { held_out: settings.val_fraction, seed: settings.seed, ..Split::default() };
    Ok(Dataset::build(settings.out.join(DATA), sources, tokenizer, &split)?)
}

/// The one of the flags or of the model to fine-tune; or else that of the corpus.
fn tokenizer(
    settings: &Settings,
    sources: &Sources,
    from: Option<&Path>,
) -> Result<Tokenizer, Failure> {
    Ok(match (&settings.tokenizer, settings.train_tokenizer, from) {
        (Some(file), ..) => Tokenizer::from_file(file)?,
        (None, Some(size), _) => Tokenizer::train_bpe(sources, size)?,
        (None, None, Some(model)) => Tokenizer::from_file(model.join("tokenizer.json"))?,
        (None, None, None) if corpus::is_stories(settings) => {
            Tokenizer::train_bpe(sources, corpus::STORIES_VOCABULARY)?
        }
        (None, None, None) => Tokenizer::bytes(),
    })
}

/// What training takes. Refuse at once what would fail in the middle of the first step. GPUs do not
/// report their memory.
fn memory(
    settings: &Settings,
    config: &Config,
    device: &Device,
    place: Place,
) -> Result<Memory, Failure> {
    let recipe = settings.recipe_of(config);
    let memory = Memory::of_ranks(config, settings.dtype.into(), &recipe, place.ranks);
    let all = memory.total().saturating_mul(place.on_machine as u64);
    let free = free_memory().filter(|free| *device == Device::Cpu && all > *free);
    let Some(free) = free else { return Ok(memory) };
    let millions = config.parameters() as f64 / 1e6;
    let (needed, free) = (crate::bytes(all), crate::bytes(free));
    let why =
        format!("training {millions:.1} M parameters needs about {needed}, but {free} is free");
    let less = "--batch-size or --block-size (and --grad-accum), or with --recompute";
    Err(format!("memory: {why}; less is needed with a smaller {less}").into())
}

/// An error if there is anything in the directory but what a program that was killed at its start
/// left, or a run that may be overwritten.
fn check_free(out: &Path, existing: Existing) -> Result<(), Failure> {
    let entries = match fs::read_dir(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io(out))?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>();
    let names = names.map_err(Error::io(out))?;
    let matters = |name: &str| name != lock::FILE && !is_unfinished(name);
    if !names.iter().any(|name| name.to_str().is_none_or(matters)) {
        return Ok(());
    }
    if names.iter().any(|name| name == lock::FILE) && existing == Existing::Refuse {
        // That another run is at work is the better reason.
        Lock::take(out)?;
    }
    let (shown, is_run) = (out.display(), names.iter().any(|name| name == settings_file::FILE));
    match (is_run, existing) {
        (true, Existing::Overwrite) => overwrite::check(out),
        (true, Existing::Refuse) => usage(format!(
            "--out: {shown} is not empty; --resume continues the run in it, --overwrite replaces it"
        )),
        (false, _) => {
            usage(format!("--out: {shown} is not empty and is not a run, expected a new directory"))
        }
    }
}

/// A directory and its parents, as far as they do not exist, the outermost first.
pub fn missing_directories(out: &Path) -> Vec<PathBuf> {
    let missing = out.ancestors().take_while(|path| *path != Path::new("") && !path.exists());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Remove the temporary files that a killed program left.
fn remove_temporary(out: &Path) -> Result<(), Failure> {
    let files = [settings_file::FILE, metrics::FILE, curve::FILE];
    Ok(remove_unfinished(out, |name| files.contains(&name))?)
}
