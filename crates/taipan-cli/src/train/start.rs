//! The start of a run: text, tokenizer, model, and a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};

use taipan::Device;
use taipan_lm::data::{Dataset, Skipped, Sources, Split};
use taipan_lm::{
    Config, Error, Mamba, Memory, Recipe, Tokenizer, Trainer, checkpoints, free_memory,
    is_unfinished, remove_unfinished,
};

use super::corpus::{self, sources};
use super::lock::{self, Lock};
use super::settings::{self, Settings};
use super::{curve, metrics};
use crate::{Failure, usage};

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
}

/// Begin a run in an empty directory.
pub fn begin(settings: &Settings, device: &Device) -> Result<Start, Failure> {
    let out = settings.out.as_path();
    // Before anything is written there, and again when nobody else can.
    check_empty(out)?;
    let made = create_directories(out)?;
    let lock = Lock::take(out)?;
    check_empty(out)?;
    remove_temporary(out)?;
    match prepare(settings, device) {
        Ok((trainer, memory, skipped)) => Ok(Start { trainer, memory, skipped, lock }),
        Err(error) => {
            // Nothing remains of a run that could not begin; its error says more than one of these.
            let _ = fs::remove_file(out.join(settings::FILE));
            let _ = fs::remove_dir_all(out.join(DATA));
            let _ = fs::remove_file(out.join(lock::FILE));
            drop(lock);
            made.iter().rev().for_each(|directory| drop(fs::remove_dir(directory)));
            Err(error)
        }
    }
}

/// Resume from the last checkpoint; if the run was stopped before its first, start again.
pub fn resume(settings: &Settings, device: &Device) -> Result<Start, Failure> {
    let out = settings.out.as_path();
    let lock = Lock::take(out)?;
    remove_temporary(out)?;
    let Some((_, checkpoint)) = checkpoints(out)?.pop() else {
        let again = "no checkpoint yet, the run starts again from the beginning";
        crate::print(&format!("{}: {again}\n", out.display()))?;
        let (trainer, memory, skipped) = prepare(settings, device)?;
        return Ok(Start { trainer, memory, skipped, lock });
    };
    let recipe = settings.recipe();
    let config = Config::from_file(checkpoint.join("config.json"))?;
    let memory = memory(settings, &config, device)?;
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
    let take_over = |stored: &mut Recipe| *stored = stored.continued(&recipe);
    let trainer = Trainer::resume(out, dataset, device, take_over)?;
    settings.check_unchanged(&trainer.notes)?;
    let done = trainer.steps_done();
    for (flag, steps) in [("steps", Some(settings.steps)), ("stop-after", settings.stop_after)] {
        if let Some(steps) = steps.filter(|steps| *steps < done) {
            let run = out.display();
            return usage(format!("--{flag} is {steps}, but {run} is at step {done}"));
        }
    }
    settings.save()?;
    Ok(Start { trainer, memory, skipped, lock })
}

fn prepare(
    settings: &Settings,
    device: &Device,
) -> Result<(Trainer, Memory, Vec<Skipped>), Failure> {
    let recipe = settings.recipe();
    let sources = sources(settings)?;
    let tokenizer = tokenizer(settings, &sources)?;
    let config = settings.config(tokenizer.vocab_size())?;
    let memory = memory(settings, &config, device)?;
    settings.save()?;
    let dataset = build_data(settings, &sources, &tokenizer)?;
    // Before the model is made, which may take a while.
    dataset.check(settings.block_size)?;
    let dtype = settings.dtype.into();
    let model = match &settings.from {
        Some(directory) => Mamba::from_pretrained(directory, Some(dtype), device)?,
        None => Mamba::new(&config, dtype, settings.seed, device)?,
    };
    let mut trainer = Trainer::new(model, dataset, tokenizer, recipe)?;
    trainer.notes.insert(settings::NOTE.into(), settings.fixed()?.into());
    Ok((trainer, memory, sources.skipped().to_vec()))
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
fn tokenizer(settings: &Settings, sources: &Sources) -> Result<Tokenizer, Failure> {
    Ok(match (&settings.tokenizer, settings.train_tokenizer, &settings.from) {
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
fn memory(settings: &Settings, config: &Config, device: &Device) -> Result<Memory, Failure> {
    let memory = Memory::of_training(config, settings.dtype.into(), &settings.recipe());
    let free = free_memory().filter(|free| *device == Device::Cpu && memory.total() > *free);
    let Some(free) = free else { return Ok(memory) };
    let millions = config.parameters() as f64 / 1e6;
    let (needed, free) = (crate::bytes(memory.total()), crate::bytes(free));
    let why =
        format!("training {millions:.1} M parameters needs about {needed}, but {free} is free");
    let less = "--batch-size or --block-size (and --grad-accum), or with --recompute";
    Err(format!("memory: {why}; less is needed with a smaller {less}").into())
}

/// An error if there is anything in the directory but what a program that was killed at its start
/// left.
fn check_empty(out: &Path) -> Result<(), Failure> {
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
    if names.iter().any(|name| name == lock::FILE) {
        // That another run is at work is the better reason.
        Lock::take(out)?;
    }
    let what = "is not empty, expected a new directory; --resume continues a run";
    usage(format!("--out: {} {what}", out.display()))
}

/// Create a directory and its parents; returns those that were missing, the outermost first.
fn create_directories(out: &Path) -> Result<Vec<PathBuf>, Failure> {
    let missing = out.ancestors().take_while(|path| *path != Path::new("") && !path.exists());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    missing.reverse();
    fs::create_dir_all(out).map_err(Error::io(out))?;
    Ok(missing)
}

/// Remove the temporary files that a killed program left.
fn remove_temporary(out: &Path) -> Result<(), Failure> {
    let files = [settings::FILE, metrics::FILE, curve::FILE];
    Ok(remove_unfinished(out, |name| files.contains(&name))?)
}
