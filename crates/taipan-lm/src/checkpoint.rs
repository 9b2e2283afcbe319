//! The checkpoints of a run: `checkpoint-<step>/` in its directory.
//!
//! A checkpoint is a model in Hugging Face's layout (see [`crate::Mamba::save_pretrained`]), and beside it
//!
//! ```text
//! trainer.json            recipe, step, what the data was, how well the model does, checksums of all files
//! trainer.safetensors     the optimiser's state
//! ```
//!
//! There are no times, paths or names of machines in it: the same run leaves the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::atomic::{self, NewDirectory, write_file};
use crate::checksum::Checksum;
use crate::pretrained::{FILES, write_files};
use crate::safetensors::Stored;
use crate::{Error, Mamba, Recipe, Result, Tokenizer};

pub(crate) const STATE: &str = "trainer.safetensors";
const PROGRESS: &str = "trainer.json";
const FORMAT: u32 = 2;

/// How well a model predicts text that it was not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The mean of `−ln p(token)`.
    pub loss: f64,
    /// `Σ −log₂ p(token)` by the bytes of text that the tokens stand for; none if they stand for none.
    pub bits_per_byte: Option<f64>,
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
    /// What the program that trains wants to find again.
    pub(crate) notes: Map<String, Value>,
    /// The checksums of all other files.
    files: BTreeMap<String, Checksum>,
    /// The checksum of this one, with the digits of this number left out.
    checksum: Option<Checksum>,
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
            notes: Map::new(),
            files: BTreeMap::new(),
            checksum: None,
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
        let digits = progress.checksum.map(|checksum| format!("\"{checksum}\""));
        let digits = digits.ok_or_else(|| invalid("checksum is null".into()))?;
        if progress.checksum != Some(Checksum::of(text.replace(&digits, "null").as_bytes())) {
            let why = format!("the checksum is not {digits}: it was changed after it was written");
            return Err(invalid(why));
        }
        if checkpoint.file_name() != Some(name(progress.step).as_ref()) {
            return Err(invalid(format!(
                "step is {}, unlike in its directory's name",
                progress.step
            )));
        }
        Ok(progress)
    }

    /// [`Progress::read`], after a check that every file is what was written.
    pub(crate) fn verify(checkpoint: &Path) -> Result<Progress> {
        let progress = Progress::read(checkpoint)?;
        let files = &progress.files;
        files.iter().try_for_each(|(name, checksum)| checksum.verify(&checkpoint.join(name)))?;
        Ok(progress)
    }

    /// The file, with its checksum.
    fn json(&self) -> String {
        let text = |progress: &Progress| {
            let json = serde_json::to_string_pretty(progress).expect("numbers and strings");
            format!("{json}\n")
        };
        let without = Progress { checksum: None, ..self.clone() };
        text(&Progress { checksum: Some(Checksum::of(text(&without).as_bytes())), ..without })
    }
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CheckpointInfo {
    /// How many steps the model was trained for.
    pub step: u64,
    /// How well it does on held-out text, if that was measured at this step.
    pub evaluation: Option<Evaluation>,
    /// The [fingerprint](crate::data::Dataset::fingerprint) of what it learned from.
    pub data: String,
    /// How many files there are besides `trainer.json`.
    pub files: usize,
}

/// An error unless every file of the checkpoint in `directory` is there and has the checksum that it was written
/// with.
pub fn verify_checkpoint(directory: &Path) -> Result<CheckpointInfo> {
    let Progress { step, evaluation, data, files, .. } = Progress::verify(directory)?;
    Ok(CheckpointInfo { step, evaluation, data, files: files.len() })
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
    let evaluations = checkpoints(run)?.into_iter().map(|(_, path)| {
        let evaluation = Progress::read(&path)?.evaluation;
        Ok((path, evaluation))
    });
    Ok(best(evaluations.collect::<Result<Vec<_>>>()?))
}

/// The first one with the lowest loss.
fn best(evaluations: Vec<(PathBuf, Option<Evaluation>)>) -> Option<(PathBuf, Evaluation)> {
    let evaluated =
        evaluations.into_iter().filter_map(|(path, evaluation)| Some((path, evaluation?)));
    evaluated.min_by(|a, b| a.1.loss.total_cmp(&b.1.loss))
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
    pub(crate) fn write(mut self, run: &Path) -> Result<()> {
        let new = NewDirectory::create(&self.place(run))?;
        let files = &mut self.progress.files;
        write_files(self.model, self.tokenizer, |name, fill| {
            files.insert(name.into(), new.file(name, fill)?);
            Ok(())
        })?;
        files.insert(STATE.into(), new.file(STATE, |out| out.write_tensors(self.state))?);
        new.file(PROGRESS, |out| out.write(self.progress.json().as_bytes()))?;
        new.commit()
    }

    /// Bring one up to date that was written at the same step of the same run: weights and state are as they were.
    pub(crate) fn rewrite_progress(mut self, run: &Path) -> Result<()> {
        let place = self.place(run);
        self.progress.files = Progress::read(&place)?.files;
        write_file(&place.join(PROGRESS), self.progress.json().as_bytes())
    }
}

/// Remove all checkpoints but the last `keep` and the best. What cannot be read stays, since it may be the best,
/// and what cannot be removed: both are told.
pub(crate) fn prune(run: &Path, keep: usize) -> Result<Vec<Error>> {
    let all = checkpoints(run)?;
    let old = &all[..all.len().saturating_sub(keep)];
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let (mut readable, mut errors) = (Vec::new(), Vec::new());
    for (_, path) in &all {
        match Progress::read(path) {
            Ok(progress) => readable.push((path.clone(), progress.evaluation)),
            Err(error) => errors.push(error),
        }
    }
    let removable: Vec<PathBuf> = readable.iter().map(|(path, _)| path.clone()).collect();
    let best = best(readable).map(|(path, _)| path);
    for (_, path) in old {
        if removable.contains(path) && Some(path) != best.as_ref() {
            errors.extend(atomic::remove_directory(path).err());
        }
    }
    Ok(errors)
}

/// Remove what a killed run left unfinished.
pub(crate) fn sweep(run: &Path) -> Result<()> {
    atomic::sweep(run, |name| name.starts_with("checkpoint-") || FILES.contains(&name))?;
    checkpoints(run)?.iter().try_for_each(|(_, path)| atomic::sweep(path, |name| name == PROGRESS))
}
