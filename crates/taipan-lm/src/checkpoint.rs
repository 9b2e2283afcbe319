//! The checkpoints of a run: `checkpoint-<step>/` in its directory.
//!
//! A checkpoint is a model in Hugging Face's layout (see [`crate::LanguageModel::save_pretrained`]),
//! or its adapters in PEFT's, and beside it
//!
//! ```text
//! trainer.json            recipe, step, fingerprint of the data, evaluation, checksums of files
//! trainer.safetensors     the optimiser's state
//! ```
//!
//! There are no times, paths or host names in it: the same run writes the same bytes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use taipan::Tensor;

use crate::atomic::{Temporary, remove_directory, remove_unfinished, write_file};
use crate::checksum::{CHANGED, Checksum, verify_files};
use crate::error::ensure;
use crate::filesystem as fs;
use crate::pretrained::{Contents, all_contents, is_model_file};
use crate::{Error, LanguageModel, Recipe, Result, Tokenizer};

pub(crate) const OPTIMIZER: &str = "trainer.safetensors";
const TRAINER_JSON: &str = "trainer.json";
const PREFIX: &str = "checkpoint-";
const FORMAT: u32 = 2;

/// How well a model predicts held-out text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The mean of `−ln p(token)`.
    pub loss: f64,
    /// `Σ −log₂ p(token)` divided by the bytes of text of the tokens; none if they have none.
    pub bits_per_byte: Option<f64>,
}

/// `trainer.json`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrainerJson {
    pub(crate) format: u32,
    /// The version that wrote it.
    pub(crate) taipan: String,
    /// Steps done. Each took `grad_accum` batches of the data's order.
    pub(crate) step: u64,
    /// The fingerprint of the data.
    pub(crate) data: String,
    /// At this step, if there was one.
    pub(crate) evaluation: Option<Evaluation>,
    pub(crate) recipe: Recipe,
    /// The fingerprint of the frozen model, if adapters are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<String>,
    /// Data of the program that trains.
    pub(crate) notes: Map<String, Value>,
    /// The checksums of all other files.
    pub(crate) files: BTreeMap<String, Checksum>,
    /// The checksum of this one, with the digits of this number left out.
    pub(crate) checksum: Option<Checksum>,
}

impl TrainerJson {
    /// Read that of a checkpoint.
    pub(crate) fn read(checkpoint: &Path) -> Result<TrainerJson> {
        let path = checkpoint.join(TRAINER_JSON);
        let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
        let file = path.display();
        let found = TrainerJson::parse(&file, &text)?;
        let (named, step) = (checkpoint.file_name() == Some(name(found.step).as_ref()), found.step);
        ensure!(named, file, "step is {step}, unlike in its directory's name");
        Ok(found)
    }

    /// The contents of a text that has its checksum; errors begin with `file`.
    fn parse(file: &dyn Display, text: &str) -> Result<TrainerJson> {
        // Before the rest, which another format need not have.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let invalid = |error| Error::invalid(file, error);
        let Format { format } = serde_json::from_str(text).map_err(invalid)?;
        ensure!(format == FORMAT, file, "format is {format}, expected {FORMAT}");
        let found: TrainerJson = serde_json::from_str(text).map_err(invalid)?;
        let Some(checksum) = found.checksum else {
            return Err(Error::invalid(file, "checksum is null"));
        };
        let digits = format!("\"{checksum}\"");
        let fits = checksum == Checksum::of(text.replace(&digits, "null").as_bytes());
        ensure!(fits, file, "the checksum is not {digits}: {CHANGED}");
        Ok(found)
    }

    /// [`TrainerJson::read`], after a check of the checksum of every file.
    pub(crate) fn verify(checkpoint: &Path) -> Result<TrainerJson> {
        let trainer_json = TrainerJson::read(checkpoint)?;
        verify_files(&trainer_json.files, checkpoint)?;
        Ok(trainer_json)
    }

    /// The file, with its checksum.
    fn json(&self) -> String {
        let text = |trainer_json: &TrainerJson| {
            serde_json::to_string_pretty(trainer_json).expect("numbers and strings") + "\n"
        };
        let taipan = env!("CARGO_PKG_VERSION").into();
        let without = TrainerJson { format: FORMAT, taipan, checksum: None, ..self.clone() };
        text(&TrainerJson { checksum: Some(Checksum::of(text(&without).as_bytes())), ..without })
    }

    /// Write a checkpoint atomically.
    pub(crate) async fn write(
        mut self,
        path: &Path,
        model: &LanguageModel,
        tokenizer: &Tokenizer,
        optimizer: Vec<(String, Tensor)>,
    ) -> Result<()> {
        let new = Temporary::directory(path)?;
        let files = all_contents(model, tokenizer, self.recipe.lora.as_ref())?;
        for (name, contents) in files.into_iter().chain([(OPTIMIZER, Contents::Owned(optimizer))]) {
            let mut out = new.create(name)?;
            contents.write(|bytes| out.write(bytes)).await?;
            self.files.insert(name.into(), out.sync()?);
        }
        let mut out = new.create(TRAINER_JSON)?;
        out.write(self.json().as_bytes())?;
        out.sync()?;
        new.publish()
    }

    /// Rewrite that of a checkpoint of the same step: the other files are unchanged.
    pub(crate) fn rewrite(mut self, checkpoint: &Path) -> Result<()> {
        self.files = TrainerJson::read(checkpoint)?.files;
        write_file(&checkpoint.join(TRAINER_JSON), self.json().as_bytes())
    }
}

/// The metadata of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CheckpointInfo {
    /// Steps that the model was trained for.
    pub step: u64,
    /// Its evaluation on held-out text, if there was one at this step.
    pub evaluation: Option<Evaluation>,
    /// The [fingerprint](crate::data::Dataset::fingerprint) of the training data.
    pub data: String,
    /// How many files there are besides `trainer.json`.
    pub files: usize,
}

impl CheckpointInfo {
    /// That of the text of a `trainer.json`, with a check of its own checksum. For the files of a
    /// checkpoint there is [`verify_checkpoint`].
    pub fn from_json(text: &str) -> Result<CheckpointInfo> {
        Ok(TrainerJson::parse(&TRAINER_JSON, text)?.into())
    }
}

impl From<TrainerJson> for CheckpointInfo {
    fn from(TrainerJson { step, evaluation, data, files, .. }: TrainerJson) -> CheckpointInfo {
        CheckpointInfo { step, evaluation, data, files: files.len() }
    }
}

/// An error unless every file of the checkpoint in `directory` is there and has the checksum that
/// it was written with.
pub fn verify_checkpoint(directory: &Path) -> Result<CheckpointInfo> {
    Ok(TrainerJson::verify(directory)?.into())
}

/// The checkpoints in the directory of a run, each with its step, the earliest first.
pub fn checkpoints(run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run).map_err(Error::io(run))? {
        let path = entry.map_err(Error::io(run))?.path();
        if let Some(step) = path.file_name().and_then(|name| checkpoint_step(name.to_str()?)) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The checkpoint of a run with the lowest loss on held-out text, among those that were evaluated.
pub fn best_checkpoint(run: &Path) -> Result<Option<(PathBuf, Evaluation)>> {
    let evaluations = checkpoints(run)?.into_iter().map(|(_, path)| {
        let evaluation = TrainerJson::read(&path)?.evaluation;
        Ok((path, evaluation))
    });
    Ok(best(&evaluations.collect::<Result<Vec<_>>>()?))
}

/// The first one with the lowest loss.
fn best(evaluations: &[(PathBuf, Option<Evaluation>)]) -> Option<(PathBuf, Evaluation)> {
    let evaluated = evaluations.iter().filter_map(|(path, of)| Some((path.clone(), (*of)?)));
    evaluated.min_by(|a, b| a.1.loss.total_cmp(&b.1.loss))
}

/// The name of the checkpoint of a step.
pub(crate) fn name(step: u64) -> String {
    format!("{PREFIX}{step}")
}

/// The step of the checkpoint with this name, if it is the name of one.
///
/// ```
/// assert_eq!(taipan_lm::checkpoint_step("checkpoint-20"), Some(20));
/// assert_eq!(taipan_lm::checkpoint_step("checkpoint-020"), None);
/// ```
pub fn checkpoint_step(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == self::name(step)).then_some(step)
}

/// Whether a file of this name belongs to a checkpoint.
pub fn is_checkpoint_file(name: &str) -> bool {
    is_model_file(name) || [TRAINER_JSON, OPTIMIZER].contains(&name)
}

/// Remove all checkpoints but the last `keep` and the best. Those that cannot be read stay, since
/// they may be the best; the errors of reading and removing are returned.
pub(crate) fn prune(run: &Path, keep: usize) -> Result<Vec<Error>> {
    let all = checkpoints(run)?;
    let old = &all[..all.len().saturating_sub(keep)];
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let (mut readable, mut errors) = (Vec::new(), Vec::new());
    for (_, path) in &all {
        match TrainerJson::read(path) {
            Ok(trainer_json) => readable.push((path.clone(), trainer_json.evaluation)),
            Err(error) => errors.push(error),
        }
    }
    let best = best(&readable).map(|(path, _)| path);
    for (path, _) in &readable {
        if old.iter().any(|(_, old)| old == path) && best.as_ref() != Some(path) {
            errors.extend(remove_directory(path).err());
        }
    }
    Ok(errors)
}

/// Remove the temporary files that a killed run left.
pub(crate) fn remove_temporary(run: &Path) -> Result<()> {
    remove_unfinished(run, |name| name.starts_with(PREFIX) || is_model_file(name))?;
    let checkpoints = checkpoints(run)?;
    checkpoints
        .iter()
        .try_for_each(|(_, path)| remove_unfinished(path, |name| name == TRAINER_JSON))
}
