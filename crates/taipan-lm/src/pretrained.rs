//! A model as a directory in Hugging Face's layout.
//!
//! ```text
//! config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors
//! ```

use std::fs;
use std::path::Path;

use serde_json::json;
use taipan::{DType, Device, Tensor};

use crate::atomic::{Output, replace_file};
use crate::error::ensure;
use crate::safetensors::{Stored, write, write_values};
use crate::{Error, Mamba, ModelFiles, Parameter, Result, Tokenizer};

const MODEL: &str = "model.safetensors";
pub(crate) const TOKENIZER: &str = "tokenizer.json";

impl Mamba {
    /// Load a model as [`ModelFiles::open`] finds it. Its dtype is `dtype`, or that of the stored
    /// embeddings.
    pub fn from_pretrained(
        path: impl AsRef<Path>,
        dtype: Option<DType>,
        device: &Device,
    ) -> Result<Mamba> {
        let files = ModelFiles::open(path)?;
        files.load(dtype.unwrap_or(files.dtype()), device)
    }

    /// Write the model and its tokenizer as a directory that Hugging Face's library loads. Each
    /// file is replaced as a whole.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
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

    pub(crate) fn write_values(&mut self, tensor: &Tensor) -> Result<()> {
        pollster::block_on(write_values(tensor, |bytes| self.write(bytes)))
    }
}
