//! A model as a directory in Hugging Face's layout.
//!
//! ```text
//! config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use taipan::{DType, Device, Tensor};

use crate::atomic::Draft;
use crate::error::ensure;
use crate::lora::ADAPTER_FILES;
use crate::safetensors::{Stored, write};
use crate::{LanguageModel, Lora, ModelFiles, Parameter, Result, Tokenizer, lora};

const MODEL: &str = "model.safetensors";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

impl LanguageModel {
    /// Load a model as [`ModelFiles::open`] finds it. Its dtype is `dtype`, or that of the stored
    /// embeddings.
    pub fn from_pretrained(
        path: impl AsRef<Path>,
        dtype: Option<DType>,
        device: &Device,
    ) -> Result<LanguageModel> {
        let files = ModelFiles::open(path)?;
        files.load(dtype.unwrap_or(files.dtype()), device)
    }

    /// Write the model and its tokenizer as a directory that Hugging Face's library loads. Each
    /// file is replaced as a whole.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    /// use taipan_lm::{LanguageModel, Preset, Tokenizer};
    ///
    /// # let directory = format!("taipan-pretrained-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(directory);
    /// let model = LanguageModel::new(&Preset::Tiny.config(256), DType::F32, 1, &Device::Cpu)?;
    /// model.save_pretrained(&directory, &Tokenizer::bytes())?;
    /// let again = LanguageModel::from_pretrained(&directory, None, &Device::Cpu)?;
    /// assert_eq!(again.config(), model.config());
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    #[cfg(not(target_family = "wasm"))]
    pub fn save_pretrained(
        &self,
        directory: impl AsRef<Path>,
        tokenizer: &Tokenizer,
    ) -> Result<()> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(crate::Error::io(directory))?;
        pollster::block_on(write_model(self, tokenizer, None, directory))
    }

    /// The files that `save_pretrained` writes, by name.
    ///
    /// ```
    /// use taipan::{DType, Device};
    /// use taipan_lm::{Config, LanguageModel, Preset, Tokenizer, safetensors::Safetensors};
    ///
    /// let config = Config { hidden_size: 16, ..Preset::Tiny.config(256) };
    /// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let mut files = pollster::block_on(model.to_files(&Tokenizer::bytes()))?;
    /// assert!(files.contains_key("config.json") && files.contains_key("tokenizer.json"));
    /// let weights = files.remove("model.safetensors").expect("the weights");
    /// let weights = Safetensors::parse("model.safetensors", weights)?;
    /// assert_eq!(weights.view("backbone.norm_f.weight")?.shape, [16]);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub async fn to_files(&self, tokenizer: &Tokenizer) -> Result<BTreeMap<&'static str, Vec<u8>>> {
        let mut files = BTreeMap::new();
        for (name, contents) in contents(self, tokenizer)? {
            let mut file = Vec::new();
            contents
                .write(|bytes| {
                    file.extend_from_slice(bytes);
                    Ok(())
                })
                .await?;
            files.insert(name, file);
        }
        Ok(files)
    }
}

/// Write the files of a model to a directory that is there.
pub(crate) async fn write_model(
    model: &LanguageModel,
    tokenizer: &Tokenizer,
    lora: Option<&Lora>,
    directory: &Path,
) -> Result<()> {
    for (name, contents) in all_contents(model, tokenizer, lora)? {
        let mut draft = Draft::create(&directory.join(name))?;
        contents.write(|bytes| draft.out.write(bytes)).await?;
        draft.sync()?.1.publish()?;
    }
    Ok(())
}

/// What is in a file.
pub(crate) enum Contents<'a> {
    Text(String),
    Tensors(Vec<Stored<'a>>),
    Owned(Vec<(String, Tensor)>),
}

impl Contents<'_> {
    /// Write it to `out`, chunk by chunk.
    pub(crate) async fn write(&self, mut out: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            Contents::Text(text) => out(text.as_bytes()),
            Contents::Tensors(tensors) => write(tensors, out).await,
            Contents::Owned(tensors) => {
                let stored = tensors.iter().map(|(name, tensor)| Stored {
                    name: name.clone(),
                    shape: tensor.shape().to_vec(),
                    tensors: vec![tensor],
                });
                write(&stored.collect::<Vec<_>>(), out).await
            }
        }
    }
}

/// Whether a file of this name is of a model or of its adapters.
pub fn is_model_file(name: &str) -> bool {
    MODEL_FILES.contains(&name) || ADAPTER_FILES.contains(&name)
}

/// The files of a model, or of the adapters that it has.
pub(crate) fn all_contents<'a>(
    model: &'a LanguageModel,
    tokenizer: &Tokenizer,
    lora: Option<&Lora>,
) -> Result<Vec<(&'static str, Contents<'a>)>> {
    match lora {
        Some(lora) => lora::contents(model, lora, tokenizer),
        None => contents(model, tokenizer),
    }
}

/// The files that [`LanguageModel::save_pretrained`] writes.
const MODEL_FILES: [&str; 5] =
    ["config.json", "generation_config.json", TOKENIZER_CONFIG, TOKENIZER, MODEL];

/// [`MODEL_FILES`], each with its contents.
fn contents<'a>(
    model: &'a LanguageModel,
    tokenizer: &Tokenizer,
) -> Result<Vec<(&'static str, Contents<'a>)>> {
    ensure!(!model.is_quantized(), "model", "its matrices are int8, expected floats to save");
    let plain = model.adapters().is_empty();
    ensure!(plain, "model", "it has adapters, expected none: they are saved as files of their own");
    let eos_token_id = tokenizer.eos_token_id();
    let generation = json!({
        "_from_model_config": true,
        "bos_token_id": eos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": eos_token_id,
    });
    let [tokenizer_config, tokenizer] = tokenizer_contents(tokenizer);
    let texts = [
        model.config().to_json(model.dtype(), eos_token_id),
        format!("{generation:#}\n"),
        tokenizer_config,
        tokenizer,
    ];
    let texts = texts.into_iter().map(Contents::Text);
    let all = texts.chain([Contents::Tensors(stored(model))]);
    Ok(MODEL_FILES.into_iter().zip(all).collect())
}

/// The texts of [`TOKENIZER_CONFIG`] and [`TOKENIZER`].
pub(crate) fn tokenizer_contents(tokenizer: &Tokenizer) -> [String; 2] {
    let mut tokens = json!({
        "clean_up_tokenization_spaces": false,
        // To generate from prompts of several lengths at once.
        "padding_side": "left",
        "tokenizer_class": "PreTrainedTokenizerFast",
    });
    if let Some(eos_token) = tokenizer.eos_token() {
        for key in ["bos_token", "eos_token", "pad_token"] {
            tokens[key] = eos_token.into();
        }
    }
    [format!("{tokens:#}\n"), tokenizer.to_json()]
}

/// A model's parameters as its file has them: consecutive ones of the same stored name are one
/// tensor.
fn stored<'a>(model: &'a LanguageModel) -> Vec<Stored<'a>> {
    let stored = |slices: &[Parameter<'a>]| {
        let mut shape = slices[0].stored_shape.clone();
        shape[0] = slices.iter().map(|slice| slice.stored_shape[0]).sum();
        let tensors = slices.iter().map(|slice| slice.tensor).collect();
        Stored { name: slices[0].stored.clone(), shape, tensors }
    };
    model.parameters().chunk_by(|a, b| a.stored == b.stored).map(stored).collect()
}
