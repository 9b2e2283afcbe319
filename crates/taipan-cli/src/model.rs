//! The model of a command, from its arguments.

use std::path::{Path, PathBuf};

use taipan_lm::{AdapterFiles, LanguageModel, ModelFiles, Tokenizer, best_checkpoint, checkpoints};

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
    /// A LoRA adapter for the model: a directory with adapter_config.json, as PEFT writes it
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
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
        let (path, adapter) = find_adapted(&self.model, self.adapter.as_deref())?;
        let device = machine::device(device, self.dtype)?;
        let files = ModelFiles::open(&path)?;
        let dtype = self.dtype.map_or(files.dtype(), Into::into);
        machine::check(&device, dtype)?;
        let lm = match adapter {
            Some(adapter) => files.load_adapted(&adapter, dtype, &device)?,
            None => files.load(dtype, &device)?,
        };
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
    let is_model = path.join("config.json").exists() || AdapterFiles::exists(path);
    if !path.is_dir() || is_model {
        return Ok(path.to_owned());
    }
    let best = best_checkpoint(path)?.map(|(best, _)| best);
    let newest = || Ok::<_, Failure>(checkpoints(path)?.pop().map(|(_, newest)| newest));
    let found = if best.is_some() { best } else { newest()? };
    let expected = "no config.json and no checkpoint in it, expected a model or a run";
    found.ok_or_else(|| format!("{}: {expected}", path.display()).into())
}

/// The model that a path leads to, and its adapter: the one that is given, or that of the path, if
/// it is the directory of an adapter, whose model is the one that it names.
pub fn find_adapted(
    path: &Path,
    adapter: Option<&Path>,
) -> Result<(PathBuf, Option<AdapterFiles>), Failure> {
    let path = find(path)?;
    if path.join("config.json").exists() || !AdapterFiles::exists(&path) {
        let adapter = adapter.map(find).transpose()?;
        return Ok((path, adapter.map(AdapterFiles::open).transpose()?));
    }
    let shown = path.display();
    if adapter.is_some() {
        return Err(format!("{shown} is an adapter, expected a model for --adapter").into());
    }
    let files = AdapterFiles::open(&path)?;
    let base = files.base().filter(|base| !base.is_empty());
    let unknown = "base_model_name_or_path is missing; give the model, and --adapter";
    let base = base.ok_or_else(|| format!("{shown}: {unknown}"))?;
    let base = find(Path::new(base)).map_err(|error| {
        format!("{shown} changes the model {base}, which was not found: {error}")
    })?;
    Ok((base, Some(files)))
}
