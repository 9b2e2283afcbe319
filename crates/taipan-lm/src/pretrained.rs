//! A model as a directory in Hugging Face's layout.
//!
//! ```text
//! config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use memmap2::Mmap;
use serde::Deserialize;
use serde_json::json;
use taipan::{DType, Device};

use crate::atomic::{Output, replace_file};
use crate::error::ensure;
use crate::safetensors::{Safetensors, Stored, write};
use crate::{Config, Error, Mamba, Parameter, Result, Tokenizer};

const MODEL: &str = "model.safetensors";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
const EMBEDDINGS: &str = "backbone.embeddings.weight";
const ORIGINAL_EMBEDDINGS: &str = "backbone.embedding.weight";
const HEAD: &str = "lm_head.weight";

impl Mamba {
    /// Load the model of a directory: `config.json` with `model.safetensors`, or with the files
    /// that `model.safetensors.index.json` names. Its dtype is `dtype`, or that of the stored
    /// embeddings.
    ///
    /// The embeddings may also have the name of the original code, `backbone.embedding.weight`. A
    /// tied model may have a head, if it is the same as the embeddings. Any other tensor that is
    /// unknown, missing or of another shape is an error.
    pub fn from_pretrained(
        directory: impl AsRef<Path>,
        dtype: Option<DType>,
        device: &Device,
    ) -> Result<Mamba> {
        let directory = directory.as_ref();
        let config = Config::from_file(directory.join("config.json"))?;
        let files = open(directory)?;
        let model = directory.display();
        let mut tensors = BTreeMap::new();
        for file in &files {
            for name in file.names() {
                let known = if name == ORIGINAL_EMBEDDINGS { EMBEDDINGS } else { name };
                let is_new = tensors.insert(known, file.view(name)?).is_none();
                ensure!(is_new, model, "{known} is there twice");
            }
        }
        let find = |name: &str| {
            let view = tensors.get(name).copied();
            view.ok_or_else(|| Error::invalid(&model, format!("{name} is missing")))
        };
        let embeddings = find(EMBEDDINGS)?;
        let mut unknown: BTreeSet<&str> = tensors.keys().copied().collect();
        let dtype = dtype.unwrap_or(embeddings.dtype);
        let loaded = Mamba::load(&config, dtype, device, |name, shape| {
            let view = find(name)?;
            let (fits, found) = (view.shape == shape && view.dtype.is_float(), view.shape);
            let found = format!("{name} is {found:?} in {}", view.dtype);
            ensure!(fits, model, "{found}, expected {shape:?} in a float");
            unknown.remove(name);
            view.tensor()
        })?;
        let has_head = config.tie_word_embeddings && unknown.remove(HEAD);
        let fits = !has_head || find(HEAD)? == embeddings;
        ensure!(fits, model, "{HEAD} is not {EMBEDDINGS}, to which it is tied");
        if let Some(name) = unknown.first() {
            return Err(Error::invalid(model, format!("{name} is not a tensor of the model")));
        }
        Ok(loaded)
    }

    /// Write the model and its tokenizer as a directory that Hugging Face's library loads. Each
    /// file is replaced as a whole.
    ///
    /// ```
    /// use taipan::{DType, Device};
    /// use taipan_lm::{Mamba, Preset, Tokenizer};
    ///
    /// # let directory = format!("taipan-pretrained-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(directory);
    /// let model = Mamba::new(&Preset::Tiny.config(256), DType::F32, 1, &Device::Cpu)?;
    /// model.save_pretrained(&directory, &Tokenizer::bytes())?;
    /// let again = Mamba::from_pretrained(&directory, None, &Device::Cpu)?;
    /// assert_eq!(again.config(), model.config());
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn save_pretrained(
        &self,
        directory: impl AsRef<Path>,
        tokenizer: &Tokenizer,
    ) -> Result<()> {
        let directory = directory.as_ref();
        fs::create_dir_all(directory).map_err(Error::io(directory))?;
        write_model(self, tokenizer, directory)
    }
}

/// Write the files of a model to a directory that is there.
pub(crate) fn write_model(model: &Mamba, tokenizer: &Tokenizer, directory: &Path) -> Result<()> {
    write_files(model, tokenizer, |name, fill| replace_file(&directory.join(name), fill))
}

/// What writes a file's contents.
pub(crate) type Fill<'a> = &'a dyn Fn(&mut Output) -> Result<()>;

/// The files of a model.
pub(crate) const FILES: [&str; 5] =
    ["config.json", "generation_config.json", "tokenizer_config.json", TOKENIZER, MODEL];

/// Have `file` write each of [`FILES`].
pub(crate) fn write_files(
    model: &Mamba,
    tokenizer: &Tokenizer,
    mut file: impl FnMut(&str, Fill) -> Result<()>,
) -> Result<()> {
    ensure!(!model.is_quantized(), "model", "its matrices are int8, expected floats to save");
    let eos_token_id = tokenizer.eos_token_id();
    let generation = json!({
        "_from_model_config": true,
        "bos_token_id": eos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": eos_token_id,
    });
    let mut tokens = json!({
        "clean_up_tokenization_spaces": false,
        "tokenizer_class": "PreTrainedTokenizerFast",
    });
    if let Some(eos_token) = tokenizer.eos_token() {
        for key in ["bos_token", "eos_token", "pad_token"] {
            tokens[key] = eos_token.into();
        }
    }
    let texts = [
        model.config().to_json(model.dtype(), eos_token_id),
        format!("{generation:#}\n"),
        format!("{tokens:#}\n"),
        tokenizer.to_json(),
    ];
    for (name, text) in FILES.iter().zip(&texts) {
        file(name, &|out| out.write(text.as_bytes()))?;
    }
    file(MODEL, &|out| out.write_tensors(&stored(model)))
}

/// A model's parameters as its file has them: consecutive ones of the same stored name are one
/// tensor.
fn stored<'a>(model: &'a Mamba) -> Vec<Stored<'a>> {
    let stored = |slices: &[&'a Parameter]| {
        let mut shape = slices[0].stored_shape.clone();
        shape[0] = slices.iter().map(|slice| slice.stored_shape[0]).sum();
        let tensors = slices.iter().map(|slice| &slice.tensor).collect();
        Stored { name: slices[0].stored.clone(), shape, tensors }
    };
    model.parameters().chunk_by(|a, b| a.stored == b.stored).map(stored).collect()
}

impl Output {
    pub(crate) fn write_tensors(&mut self, tensors: &[Stored<'_>]) -> Result<()> {
        pollster::block_on(write(tensors, |bytes| self.write(bytes)))
    }
}

/// `model.safetensors.index.json`
#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// The files with a model's tensors.
fn open(directory: &Path) -> Result<Vec<Safetensors<Mmap>>> {
    let [path, single] = ["model.safetensors.index.json", MODEL].map(|name| directory.join(name));
    if single.exists() || !path.exists() {
        return Ok(vec![Safetensors::open(&single)?]);
    }
    let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
    let index: Index =
        serde_json::from_str(&text).map_err(|error| Error::invalid(path.display(), error))?;
    let mut files = BTreeMap::new();
    for (tensor, name) in &index.weight_map {
        let is_beside = Path::new(name).file_name() == Some(name.as_ref());
        ensure!(is_beside, path.display(), "{name:?} found, expected a file beside it");
        if !files.contains_key(name) {
            files.insert(name, Safetensors::open(&directory.join(name))?);
        }
        files[name].view(tensor)?;
    }
    Ok(files.into_values().collect())
}
