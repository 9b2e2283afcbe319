//! The model of a command, from its arguments.

use std::path::{Path, PathBuf};

use taipan_lm::{LanguageModel, ModelFiles, Tokenizer, best_checkpoint, checkpoints};

use crate::machine::{self, Dtype, Quantize};
use crate::{Failure, hub};

/// Which model, and where it runs.
#[derive(clap::Args)]
pub struct FloatModelFlags {
    /// The directory of a model, a run (its model, or its best checkpoint until there is one) or a
    /// checkpoint; or a name on the Hugging Face Hub that was downloaded with hf download
    model: PathBuf,
    /// cpu, gpu, auto (a GPU if there is one), or a GPU's number or part of its name: see taipan
    /// devices
    #[arg(long, value_name = "DEVICE", default_value = machine::AUTO)]
    device: String,
    /// Dtype of the weights [default: the stored one]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Dtype>,
}

/// The same, for commands that need no gradient.
#[derive(clap::Args)]
pub struct ModelFlags {
    #[command(flatten)]
    floats: FloatModelFlags,
    /// Weights in fewer bits; on the CPU
    #[arg(long, value_name = "TYPE")]
    quantize: Option<Quantize>,
}

/// A model that can run.
pub struct Model {
    pub lm: LanguageModel,
    /// Where it was found.
    pub path: PathBuf,
    tokenizer: Option<Tokenizer>,
}

impl ModelFlags {
    pub fn load(&self) -> Result<Model, Failure> {
        let device = machine::name_for(&self.floats.device, self.quantize);
        let model = self.floats.load_on(device)?;
        Ok(match self.quantize {
            Some(Quantize::Int8) => Model { lm: model.lm.quantized()?, ..model },
            None => model,
        })
    }
}

impl FloatModelFlags {
    pub fn load(&self) -> Result<Model, Failure> {
        self.load_on(&self.device)
    }

    fn load_on(&self, device: &str) -> Result<Model, Failure> {
        let path = find(&self.model)?;
        let device = machine::device(device, self.dtype)?;
        let files = ModelFiles::open(&path)?;
        let dtype = self.dtype.map_or(files.dtype(), Into::into);
        machine::check(&device, dtype)?;
        let lm = files.load(dtype, &device)?;
        let file = path.join("tokenizer.json");
        let tokenizer = file.exists().then(|| Tokenizer::from_file(file)).transpose()?;
        Ok(Model { lm, path, tokenizer })
    }
}

impl Model {
    /// Its tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Its tokenizer; without one, an error that says what works by `ids` instead.
    pub fn require_tokenizer(&self, ids: &str) -> Result<&Tokenizer, Failure> {
        let path = self.path.display();
        let missing = || format!("{path}: no tokenizer.json; without one, give token ids by {ids}");
        Ok(self.tokenizer.as_ref().ok_or_else(missing)?)
    }
}

/// The model that a path, or a name on the Hugging Face Hub, leads to.
pub fn find(path: &Path) -> Result<PathBuf, Failure> {
    let path = hub::locate(path)?;
    let path = path.as_path();
    if !path.is_dir() || path.join("config.json").exists() {
        return Ok(path.to_owned());
    }
    let best = best_checkpoint(path)?.map(|(best, _)| best);
    let newest = || Ok::<_, Failure>(checkpoints(path)?.pop().map(|(_, newest)| newest));
    let found = if best.is_some() { best } else { newest()? };
    let expected = "no config.json and no checkpoint in it, expected a model or a run";
    found.ok_or_else(|| format!("{}: {expected}", path.display()).into())
}
