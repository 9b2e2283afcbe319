//! `taipan info`: the contents of a directory, with a check of all checksums.

use std::path::Path;

use taipan_lm::data::Dataset;
use taipan_lm::{CheckpointInfo, Config, checkpoints, verify_checkpoint};

use crate::Failure;
use crate::train::DATA;

/// Show a `config.json`, or the directory of a model, a checkpoint or a run. Damaged files are an
/// error, after everything else was shown.
pub fn info(path: &Path) -> Result<(), Failure> {
    let is_directory = path.is_dir();
    let config = if is_directory { path.join("config.json") } else { path.to_owned() };
    let found = if is_directory { checkpoints(path)? } else { Vec::new() };
    // A run that is not finished has models only in its checkpoints.
    let config = match (config.exists(), found.last()) {
        (false, Some((_, last))) => last.join("config.json"),
        _ => config,
    };
    let mut report = Report { text: shape(&config)?, damaged: Vec::new() };
    if is_directory && path.join("trainer.json").exists() {
        report.checkpoint(path);
    }
    let data = path.join(DATA);
    let dataset = if Dataset::exists(&data) { report.dataset(&data) } else { None };
    for (_, path) in &found {
        if let (Some(info), Some(dataset)) = (report.checkpoint(path), &dataset)
            && info.data != dataset.fingerprint()
        {
            let why = format!("{}: it was trained on other data", path.display());
            report.damaged.push(format!("{why} than there is in {}", data.display()));
        }
    }
    crate::print(&report.text)?;
    if report.damaged.is_empty() {
        return Ok(());
    }
    Err(report.damaged.join("\ntaipan: ").into())
}

/// The shape of a model.
fn shape(path: &Path) -> Result<String, Failure> {
    let config = Config::from_file(path)?;
    let size = format!(
        "Mamba, {:.1} M parameters ({} MB in f32)",
        config.parameters() as f64 / 1e6,
        config.parameters() * 4 / 1_000_000
    );
    let layers = format!(
        "{} layers of width {}, {} channels inside, state {}, Δ of rank {}, convolution kernel {}",
        config.num_hidden_layers,
        config.hidden_size,
        config.inner_size(),
        config.state_size,
        config.time_step_rank,
        config.conv_kernel
    );
    let head = if config.tie_word_embeddings { "tied" } else { "untied" };
    Ok(format!("{size}\n{layers}\nvocabulary {}, head {head}\n", config.vocab_size))
}

/// What is shown, and why files are damaged.
struct Report {
    text: String,
    damaged: Vec<String>,
}

impl Report {
    /// A line about a checkpoint.
    fn checkpoint(&mut self, path: &Path) -> Option<CheckpointInfo> {
        self.line(path, verify_checkpoint(path), |info| {
            let mut text = format!("step {}", info.step);
            if let Some(evaluation) = info.evaluation {
                text += &format!(", held-out loss {:.3}", evaluation.loss);
                let bits = evaluation.bits_per_byte;
                text += &bits.map_or(String::new(), |bits| format!(", {bits:.3} bits/byte"));
            }
            format!("{text}, {} files as written", info.files + 1)
        })
    }

    /// A line about the token cache of a run.
    fn dataset(&mut self, path: &Path) -> Option<Dataset> {
        self.line(path, Dataset::open(path), |data| {
            let (train, held_out) = (data.train_tokens(), data.held_out_tokens());
            format!("{train} tokens for training, {held_out} held out, files as written")
        })
    }

    /// A line about what is at a path, if it is not damaged.
    fn line<T>(
        &mut self,
        path: &Path,
        found: taipan_lm::Result<T>,
        describe: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let text = found.as_ref().map_or("DAMAGED".into(), describe);
        self.text += &format!("{}: {text}\n", path.display());
        found.map_err(|error| self.damaged.push(error.to_string())).ok()
    }
}
