//! `taipan info`: the contents of a directory, with a check of all checksums.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use taipan_lm::data::Dataset;
use taipan_lm::{CheckpointInfo, Config, checkpoints, verify_checkpoint};

use crate::Failure;
use crate::train::DATA;

/// Show a `config.json`, or the directory of a model, a checkpoint or a run. Damaged files are an
/// error, after everything else was shown.
pub fn info(path: &Path) -> Result<(), Failure> {
    let directory = if path.is_dir() { Some(path) } else { None };
    let mut text = String::new();
    let config = directory.map_or_else(|| path.to_owned(), |path| path.join("config.json"));
    let found = directory.map_or(Ok(Vec::new()), checkpoints)?;
    // A run that is not finished has models only in its checkpoints.
    let config = match (config.exists(), found.last()) {
        (false, Some((_, last))) => last.join("config.json"),
        _ => config,
    };
    text += &shape(&config)?;
    let mut damaged = Vec::new();
    if let Some(directory) = directory {
        if directory.join("trainer.json").exists() {
            checkpoint(&mut text, &mut damaged, directory);
        }
        let data = directory.join(DATA);
        let fingerprint = match Dataset::exists(&data) {
            true => dataset(&mut text, &mut damaged, &data),
            false => None,
        };
        for (_, path) in &found {
            let info = checkpoint(&mut text, &mut damaged, path);
            if let (Some(info), Some(fingerprint)) = (info, &fingerprint)
                && info.data != *fingerprint
            {
                let why = format!("{}: it was trained on other data", path.display());
                damaged.push(format!("{why} than there is in {}", data.display()));
            }
        }
    }
    crate::print(&text)?;
    match damaged.is_empty() {
        true => Ok(()),
        false => Err(damaged.join("\ntaipan: ").into()),
    }
}

/// The shape of a model.
fn shape(path: &PathBuf) -> Result<String, Failure> {
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

/// A line about a checkpoint.
fn checkpoint(text: &mut String, damaged: &mut Vec<String>, path: &Path) -> Option<CheckpointInfo> {
    let shown = path.display();
    match verify_checkpoint(path) {
        Ok(info) => {
            let _ = write!(text, "{shown}: step {}", info.step);
            if let Some(evaluation) = info.evaluation {
                let _ = write!(text, ", held-out loss {:.3}", evaluation.loss);
                if let Some(bits) = evaluation.bits_per_byte {
                    let _ = write!(text, ", {bits:.3} bits/byte");
                }
            }
            let _ = writeln!(text, ", {} files as written", info.files + 1);
            Some(info)
        }
        Err(error) => {
            let _ = writeln!(text, "{shown}: DAMAGED");
            damaged.push(error.to_string());
            None
        }
    }
}

/// A line about the token cache of a run; its fingerprint.
fn dataset(text: &mut String, damaged: &mut Vec<String>, path: &Path) -> Option<String> {
    let shown = path.display();
    match Dataset::open(path) {
        Ok(data) => {
            let (train, held_out) = (data.train_tokens(), data.held_out_tokens());
            let _ = writeln!(
                text,
                "{shown}: {train} tokens for training, {held_out} held out, files as written"
            );
            Some(data.fingerprint().to_owned())
        }
        Err(error) => {
            let _ = writeln!(text, "{shown}: DAMAGED");
            damaged.push(error.to_string());
            None
        }
    }
}
