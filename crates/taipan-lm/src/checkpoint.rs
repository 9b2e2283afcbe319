//! The checkpoints of a run: `checkpoint-<step>/` in its directory.
//!
//! A checkpoint is a model in Hugging Face's layout (see [`crate::Mamba::save_pretrained`]), and beside it
//!
//! ```text
//! trainer.json            recipe, step, what the data was, how well the model does
//! trainer.safetensors     the optimiser's state
//! ```
//!
//! There are no times, paths or names of machines in it: the same run leaves the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic::{self, NewDirectory, write_file};
use crate::pretrained::{FILES, write_files};
use crate::safetensors::Stored;
use crate::{Error, Mamba, Recipe, Result, Tokenizer};

pub(crate) const STATE: &str = "trainer.safetensors";
const PROGRESS: &str = "trainer.json";
const FORMAT: u32 = 1;

/// How well a model predicts text that it was not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The mean of `−ln p(token)`.
    pub loss: f64,
    /// `Σ −log₂ p(token)` by the bytes of text that the tokens stand for.
    pub bits_per_byte: f64,
}

/// `trainer.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    format: u32,
    /// The version that wrote it.
    taipan: String,
    /// How many are done. Each took `grad_accum` batches of the data's order.
    pub(crate) step: u64,
    /// The fingerprint of the data.
    pub(crate) data: String,
    /// Of this very step, if there was one.
    pub(crate) evaluation: Option<Evaluation>,
    pub(crate) recipe: Recipe,
}

impl Progress {
    pub(crate) fn new(recipe: &Recipe, step: u64, data: &str) -> Progress {
        Progress {
            format: FORMAT,
            taipan: env!("CARGO_PKG_VERSION").into(),
            step,
            data: data.into(),
            evaluation: None,
            recipe: recipe.clone(),
        }
    }

    /// That of a checkpoint.
    pub(crate) fn read(checkpoint: &Path) -> Result<Progress> {
        let path = checkpoint.join(PROGRESS);
        let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
        let invalid = |why| Error::invalid(path.display().to_string(), why);
        // Before the rest, which another format need not have.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let parsed: serde_json::Result<Format> = serde_json::from_str(&text);
        let Format { format } = parsed.map_err(|error| invalid(error.to_string()))?;
        if format != FORMAT {
            return Err(invalid(format!("format is {format}, expected {FORMAT}")));
        }
        let progress: Progress =
            serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if checkpoint.file_name() != Some(name(progress.step).as_ref()) {
            return Err(invalid(format!(
                "step is {}, unlike in its directory's name",
                progress.step
            )));
        }
        Ok(progress)
    }

    fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("numbers and strings are JSON");
        format!("{json}\n")
    }
}

/// The checkpoints in the directory of a run, each with its step, the earliest first.
pub fn checkpoints(run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run).map_err(Error::io(run))? {
        let path = entry.map_err(Error::io(run))?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix("checkpoint-"));
        if let Some(Ok(step)) = number.map(str::parse::<u64>)
            && path.file_name() == Some(name(step).as_ref())
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The checkpoint of a run with the lowest loss on held-out text, among those that were evaluated.
pub fn best_checkpoint(run: &Path) -> Result<Option<(PathBuf, Evaluation)>> {
    let mut best: Option<(PathBuf, Evaluation)> = None;
    for (_, path) in checkpoints(run)? {
        if let Some(evaluation) = Progress::read(&path)?.evaluation
            && best.as_ref().is_none_or(|(_, best)| evaluation.loss < best.loss)
        {
            best = Some((path, evaluation));
        }
    }
    Ok(best)
}

fn name(step: u64) -> String {
    format!("checkpoint-{step}")
}

/// What a checkpoint is made of.
pub(crate) struct Checkpoint<'a> {
    pub(crate) progress: Progress,
    pub(crate) model: &'a Mamba,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) state: &'a [Stored<'a>],
}

impl Checkpoint<'_> {
    /// Where it is in a run's directory.
    pub(crate) fn place(&self, run: &Path) -> PathBuf {
        run.join(name(self.progress.step))
    }

    /// Write it: it is there whole, or not at all and without a trace.
    pub(crate) fn write(&self, run: &Path) -> Result<()> {
        let new = NewDirectory::create(&self.place(run))?;
        write_files(self.model, self.tokenizer, |name, fill| new.file(name, fill))?;
        new.file(PROGRESS, |out| out.write(self.progress.json().as_bytes()))?;
        new.file(STATE, |out| out.write_tensors(self.state))?;
        new.commit()
    }

    /// Bring one up to date that was written at the same step of the same run: weights and state are as they were.
    pub(crate) fn rewrite_progress(&self, run: &Path) -> Result<()> {
        let path = self.place(run).join(PROGRESS);
        write_file(&path, |out| out.write(self.progress.json().as_bytes()))
    }
}

/// Remove all checkpoints but the last `keep` and the best.
pub(crate) fn prune(run: &Path, keep: usize) -> Result<()> {
    let all = checkpoints(run)?;
    let old = &all[..all.len().saturating_sub(keep)];
    if old.is_empty() {
        return Ok(());
    }
    let best = best_checkpoint(run)?.map(|(path, _)| path);
    old.iter()
        .filter(|(_, path)| Some(path) != best.as_ref())
        .try_for_each(|(_, path)| atomic::remove_directory(path))
}

/// Remove what a killed run left unfinished.
pub(crate) fn sweep(run: &Path) -> Result<()> {
    atomic::sweep(run, |name| name.starts_with("checkpoint-") || FILES.contains(&name))?;
    checkpoints(run)?.iter().try_for_each(|(_, path)| atomic::sweep(path, |name| name == PROGRESS))
}
