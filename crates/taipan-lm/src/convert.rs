//! A model on disk, written again in another layout, dtype or number of files.

use std::fs;
use std::ops::Range;
use std::path::Path;

use half::f16;
use serde_json::{Map, json};
use taipan::safetensors::{header_bytes, pytorch_metadata};
use taipan::{DType, Tensor};

use crate::atomic::{Output, Temporary};
use crate::config::HEAD;
use crate::error::ensure;
use crate::model_files::CONFIG;
use crate::pretrained::TOKENIZER;
use crate::safetensors::write_values;
use crate::{AdapterFiles, Config, Error, Layout, ModelFiles, Result, TensorSpec, Tokenizer};

/// What belongs to a tokenizer, or to generation, and is copied as it is.
const COPIED: [&str; 9] = [
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
];

/// How [`ModelFiles::convert`] writes a model.
#[derive(Clone, Copy, Default)]
pub struct Conversion<'a> {
    /// Whose names and `config.json` it has.
    pub layout: Layout,
    /// The dtype of the model, in which `A_log`, `D` and the bias of Δ are f32 if it is a half:
    /// see [`Role::dtype`](crate::Role::dtype). None to leave every tensor as it is.
    pub dtype: Option<DType>,
    /// The most bytes of tensors in a file, unless a single one has more. None for one file.
    pub max_shard_size: Option<u64>,
    /// An adapter, whose changes are added to the matrices: `W + s·B·A`, rounded once. If it changes
    /// the embedding of a tied model, the head becomes a tensor of its own, without that change.
    pub merge: Option<&'a AdapterFiles>,
}

/// A tensor to write.
struct Target {
    name: String,
    /// The tensor that it is, by its name in Hugging Face's layout.
    source: String,
    dtype: DType,
    shape: Vec<usize>,
}

impl Conversion<'_> {
    /// Whether the head of a tied model becomes a tensor of its own.
    fn unties(&self, config: &Config) -> bool {
        self.merge.is_some_and(|adapter| adapter.unties(config))
    }
}

impl Target {
    /// The tensor of the model that it becomes: a head of its own is not the embedding.
    fn name_in_model(&self) -> &str {
        if self.name == HEAD { HEAD } else { &self.source }
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.size() as u64
    }
}

impl ModelFiles {
    /// Write the model to a directory, which must be new or empty, as safetensors, with the files of
    /// its tokenizer. The directory is there complete or not at all; one tensor at a time is in
    /// memory.
    ///
    /// In the original layout a tied head is stored too, since that code expects it.
    pub fn convert(&self, out: impl AsRef<Path>, conversion: &Conversion) -> Result<()> {
        let out = out.as_ref();
        if let Some(adapter) = conversion.merge {
            adapter.check_model(self)?;
        }
        let config = self.config_for(conversion)?;
        match fs::read_dir(out).map(|mut entries| entries.next().is_none()) {
            Ok(is_empty) => {
                ensure!(is_empty, out.display(), "not empty, expected a new or empty directory");
                fs::remove_dir(out).map_err(Error::io(out))?;
            }
            Err(_) if out.symlink_metadata().is_err() => {}
            Err(error) => return Err(Error::io(out)(error)),
        }
        if let Some(parent) = out.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent))?;
        }
        let new = Temporary::directory(out)?;
        new.file(CONFIG, |out| out.write(config.as_bytes()))?;
        let targets = self.targets(conversion);
        let shards = shards(&targets, conversion.max_shard_size.unwrap_or(u64::MAX));
        let mut weight_map = Map::new();
        for (i, range) in shards.iter().enumerate() {
            let (name, targets) = (shard_name(i, shards.len()), &targets[range.clone()]);
            new.file(&name, |out| self.write_shard(targets, conversion.merge, out))?;
            weight_map
                .extend(targets.iter().map(|target| (target.name.clone(), name.clone().into())));
        }
        if shards.len() > 1 {
            let total_size: u64 = targets.iter().map(Target::bytes).sum();
            let index =
                json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
            let text = format!("{index:#}\n");
            new.file("model.safetensors.index.json", |out| out.write(text.as_bytes()))?;
        }
        for name in COPIED {
            let path = self.directory().join(name);
            if path.exists() {
                let contents = fs::read(&path).map_err(Error::io(&path))?;
                new.file(name, |out| out.write(&contents))?;
            }
        }
        new.publish()
    }

    /// The text of the new `config.json`.
    fn config_for(&self, conversion: &Conversion) -> Result<String> {
        if let Some(dtype) = conversion.dtype {
            ensure!(dtype.is_float(), "convert", "the dtype is {dtype}, expected a float");
        }
        let unties = conversion.unties(self.config());
        let tie_word_embeddings = self.config().tie_word_embeddings && !unties;
        let config = Config { tie_word_embeddings, ..self.config().clone() };
        if conversion.layout == Layout::Original {
            return config.to_original_json();
        }
        let dtype = conversion.dtype.unwrap_or(self.dtype());
        let tokenizer = self.directory().join(TOKENIZER);
        let tokenizer = tokenizer.exists().then(|| Tokenizer::from_file(tokenizer)).transpose()?;
        let eos_token_id = tokenizer.and_then(|tokenizer| tokenizer.eos_token_id());
        let mut json = config.to_json_value(dtype, eos_token_id);
        // Which tokens begin and end a text the file knows best.
        for (key, value) in Config::token_ids(&self.config_json) {
            json[key] = value;
        }
        Ok(format!("{json:#}\n"))
    }

    /// The tensors to write, in the model's order.
    fn targets(&self, conversion: &Conversion) -> Vec<Target> {
        let layout = conversion.layout;
        let target = |(TensorSpec { name, shape, role }, stored): (TensorSpec, DType)| Target {
            name: layout.name(&name).to_owned(),
            source: name,
            dtype: conversion.dtype.map_or(stored, |dtype| role.dtype(dtype)),
            shape,
        };
        let mut targets: Vec<Target> = self.tensors().into_iter().map(target).collect();
        let stores_head = layout == Layout::Original || conversion.unties(self.config());
        if stores_head && self.config().tie_word_embeddings {
            let Target { dtype, ref shape, .. } = targets[0];
            let shape = shape.clone();
            let source = self.config().embeddings();
            targets.push(Target { name: HEAD.into(), source, dtype, shape });
        }
        targets
    }

    fn write_shard(
        &self,
        targets: &[Target],
        merge: Option<&AdapterFiles>,
        out: &mut Output,
    ) -> Result<()> {
        let described = targets.iter().map(|target| (&*target.name, target.dtype, &*target.shape));
        out.write(&header_bytes(&pytorch_metadata(), described))?;
        for target in targets {
            let view = self.view(&target.source)?;
            let merged = match merge {
                Some(adapter) => adapter.merged(target.name_in_model(), &view.tensor()?)?,
                None => None,
            };
            match merged {
                Some(merged) => write_cast(&merged, target, out)?,
                None if view.dtype == target.dtype => out.write(&view.bytes)?,
                None => write_cast(&view.tensor()?, target, out)?,
            }
            self.release(&view);
        }
        Ok(())
    }
}

/// Write a tensor in another dtype. A value beyond the range of f16 is an error, not infinite.
fn write_cast(tensor: &Tensor, target: &Target, out: &mut Output) -> Result<()> {
    let tensor = tensor.cast(target.dtype)?;
    if target.dtype == DType::F16 {
        let values = tensor.read_blocking::<f16>()?;
        let is_finite = values.iter().all(|value| value.is_finite());
        ensure!(is_finite, target.name, "a value is beyond the range of f16, or not finite");
    }
    pollster::block_on(write_values(&tensor, |bytes| out.write(bytes)))
}

/// Ranges of tensors, each of which fits a file, or is a single one that does not.
fn shards(targets: &[Target], most: u64) -> Vec<Range<usize>> {
    let mut shards: Vec<Range<usize>> = Vec::new();
    let mut size = 0;
    for (i, target) in targets.iter().enumerate() {
        let bytes = target.bytes();
        match shards.last_mut() {
            Some(last) if bytes <= most - size => {
                last.end = i + 1;
                size += bytes;
            }
            _ => {
                shards.push(i..i + 1);
                // One that does not fit leaves no room.
                size = bytes.min(most);
            }
        }
    }
    shards
}

/// As Hugging Face's library names them.
fn shard_name(index: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".into(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_filled_up_to_their_size() {
        let target = |len: usize| Target {
            name: String::new(),
            source: String::new(),
            dtype: DType::F16,
            shape: vec![len],
        };
        let targets: Vec<Target> = [2, 3, 6, 1, 4, 0, 1].map(target).into();
        assert_eq!(shards(&targets, 10), [0..2, 2..3, 3..6, 6..7]);
        assert_eq!(shards(&targets, 11), [0..2, 2..3, 3..6, 6..7]);
        assert_eq!(shards(&targets, 12), [0..2, 2..3, 3..7]);
        assert_eq!(shards(&targets, u64::MAX).as_slice(), std::slice::from_ref(&(0..7)));
        assert_eq!(shards(&targets, 1).len(), 6, "an empty one fits everywhere");
    }
}
