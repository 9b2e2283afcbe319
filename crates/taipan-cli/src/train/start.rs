//! What a run needs before its first step: text, tokenizer, model, and a directory of its own.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use taipan::Device;
use taipan_lm::data::{Dataset, Skipped, Sources, Split};
use taipan_lm::{Config, Mamba, Memory, Tokenizer, Trainer, checkpoints, free_memory};

use super::corpus::SOURCES;
use super::settings::{self, Settings};
use crate::{Failure, Usage};

/// The token cache, in the run directory.
const DATA: &str = "data";
/// Held by the program that writes to the directory.
const LOCK: &str = ".lock";

/// A run that can take its next step.
pub struct Start {
    pub trainer: Trainer,
    pub memory: Memory,
    /// Files that were found and are not text.
    pub skipped: Vec<Skipped>,
    /// No other program writes to the directory while this lives.
    _lock: File,
}

/// Begin a run in a directory where nothing is.
pub fn begin(settings: &Settings, device: &Device) -> Result<Start, Failure> {
    let out = settings.out.as_path();
    let existed = out.exists();
    if existed {
        let mut entries =
            fs::read_dir(out).map_err(|error| format!("{}: {error}", out.display()))?;
        if entries.next().is_some() {
            let what = "is not empty, expected a new directory; --resume goes on with a run";
            return Err(Usage(format!("--out: {} {what}", out.display())).into());
        }
    }
    let start = prepare(settings, device);
    if start.is_err() {
        // Nothing stays of a run that could not begin; the reason for that says more than an error here.
        let _ = fs::remove_file(out.join(settings::FILE));
        let _ = fs::remove_file(out.join(LOCK));
        let _ = fs::remove_dir_all(out.join(DATA));
        if !existed {
            let _ = fs::remove_dir(out);
        }
    }
    start
}

/// Go on from the last checkpoint; if the run was stopped before its first, from the beginning.
pub fn resume(settings: &Settings, device: &Device) -> Result<Start, Failure> {
    let out = settings.out.as_path();
    let Some((_, checkpoint)) = checkpoints(out)?.pop() else {
        crate::print(&format!("{}: no checkpoint yet, the run begins anew\n", out.display()))?;
        return prepare(settings, device);
    };
    let (lock, recipe) = (lock(out)?, settings.recipe());
    let config = settings::config_of(&checkpoint)?;
    let memory = Memory::of_training(&config, settings.dtype.into(), &recipe);
    fits(&memory, &config, device)?;
    let dataset = Dataset::open(out.join(DATA))?;
    let trainer = Trainer::resume(out, dataset, device, |stored| {
        stored.schedule = recipe.schedule;
        stored.activations = recipe.activations;
    })?;
    let done = trainer.steps_done();
    for (flag, steps) in [("steps", Some(settings.steps)), ("stop-after", settings.stop_after)] {
        if let Some(steps) = steps.filter(|steps| *steps < done) {
            let why =
                format!("--{flag} is {steps}, but {} has {done} steps behind it", out.display());
            return Err(Usage(why).into());
        }
    }
    settings.save()?;
    Ok(Start { trainer, memory, skipped: Vec::new(), _lock: lock })
}

fn prepare(settings: &Settings, device: &Device) -> Result<Start, Failure> {
    let (out, recipe) = (settings.out.as_path(), settings.recipe());
    let sources = match settings.files.is_empty() {
        true => Sources::texts(SOURCES.iter().copied()),
        false => Sources::find(&settings.files)?,
    };
    let tokenizer = tokenizer(settings, &sources)?;
    let config = settings.config(tokenizer.vocab_size())?;
    let memory = Memory::of_training(&config, settings.dtype.into(), &recipe);
    fits(&memory, &config, device)?;
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let lock = lock(out)?;
    settings.save()?;
    let split = Split { held_out: settings.val_fraction, seed: settings.seed, ..Split::default() };
    let dataset = Dataset::build(out.join(DATA), &sources, &tokenizer, &split)?;
    // Before the model is made, which may take a while.
    dataset.check(settings.block_size)?;
    let dtype = settings.dtype.into();
    let model = match &settings.from {
        Some(directory) => Mamba::from_pretrained(directory, Some(dtype), device)?,
        None => Mamba::new(&config, dtype, settings.seed, device)?,
    };
    let trainer = Trainer::new(model, dataset, tokenizer, recipe)?;
    Ok(Start { trainer, memory, skipped: sources.skipped().to_vec(), _lock: lock })
}

/// The one that was named, made, or belongs to the model to go on from; or else bytes.
fn tokenizer(settings: &Settings, sources: &Sources) -> Result<Tokenizer, Failure> {
    let of_model = settings.from.as_ref().map(|model| model.join("tokenizer.json"));
    Ok(match (&settings.tokenizer, settings.train_tokenizer, of_model) {
        (Some(file), ..) => Tokenizer::from_file(file)?,
        (None, Some(size), _) => Tokenizer::train_bpe(sources, size)?,
        (None, None, Some(file)) => Tokenizer::from_file(file)?,
        (None, None, None) => Tokenizer::bytes(),
    })
}

/// Refuse at once what would fail in the middle of the first step. Of a GPU nobody tells how much it has.
fn fits(memory: &Memory, config: &Config, device: &Device) -> Result<(), String> {
    let needed = memory.total();
    match free_memory() {
        Some(free) if *device == Device::Cpu && needed > free => Err(format!(
            "memory: training {:.1} M parameters needs about {}, but {} is free; \
             less is needed with a smaller --batch-size or --block-size (and --grad-accum), or with --recompute",
            config.parameters() as f64 / 1e6,
            crate::bytes(needed),
            crate::bytes(free),
        )),
        _ => Ok(()),
    }
}

/// Keep other programs from the directory.
fn lock(out: &Path) -> Result<File, String> {
    let path = out.join(LOCK);
    let named = |error| format!("{}: {error}", path.display());
    let file = File::options().create(true).append(true).open(&path).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(format!("{}: another taipan train is at work in it", out.display()))
        }
        Err(TryLockError::Error(error)) => Err(named(error)),
    }
}
