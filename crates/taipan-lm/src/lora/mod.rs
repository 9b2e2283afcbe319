//! LoRA: training small changes of a frozen model (Hu et al. 2021, arXiv 2106.09685).

mod files;

use serde::{Deserialize, Serialize};
#[cfg(not(target_family = "wasm"))]
use taipan::nn::Module;
use taipan::nn::{Adapter, Init};
use taipan::{DType, Device, Tensor};

pub use self::files::AdapterFiles;
pub(crate) use self::files::{ADAPTER_FILES, contents};
use crate::error::{Error, Result, ensure};
use crate::model::TargetModule;
use crate::random::Key;
use crate::{Config, InvalidValue, LanguageModel, Role};

/// Its name in errors.
const OWNER: &str = "lora";

/// Which matrices of a model get an [`Adapter`], and how.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{Config, LanguageModel, Lora, Preset};
///
/// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
/// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
/// let lora = Lora { rank: 4, ..Lora::new(&config) };
/// assert_eq!(lora.targets, ["in_proj", "x_proj"]);
/// let model = model.with_lora(&lora, 1)?;
/// let trained = model.parameters().into_iter().filter(|parameter| parameter.is_tracked());
/// assert!(trained.map(|parameter| parameter.name).all(|name| name.contains("lora")));
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// The rank of the changes, `r`.
    pub rank: usize,
    /// The changes are multiplied by `alpha/r`.
    pub alpha: f64,
    /// The probability of an input of an adapter to be dropped in training.
    pub dropout: f64,
    /// What is adapted: modules of this name, or whose name ends with `.` and this.
    pub targets: Vec<String>,
    /// Multiply by `alpha/√r` instead (rank-stabilised LoRA).
    pub rslora: bool,
    /// What the files of an adapter call the model that it changes: a path, or a name on the
    /// Hugging Face Hub.
    pub base: String,
}

impl Lora {
    /// Rank 8, on all matrices of such a model for which other tools read adapters.
    pub fn new(config: &Config) -> Lora {
        let modules = modules(config);
        // Not every model of a family has attention.
        let has = |target: &&&str| modules.iter().any(|module| is_target(target, module));
        let targets = config.family.lora_targets().iter().filter(has);
        Lora {
            rank: 8,
            alpha: 16.0,
            dropout: 0.0,
            targets: targets.map(|target| target.to_string()).collect(),
            rslora: false,
            base: String::new(),
        }
    }

    /// An error unless every field has a value that it can have.
    pub fn check(&self) -> std::result::Result<(), InvalidValue> {
        InvalidValue::check(OWNER, "rank", self.rank, 1..=1 << 16)?;
        InvalidValue::check(OWNER, "alpha", self.alpha, 0.0..=1e6)?;
        InvalidValue::check(OWNER, "dropout", self.dropout, 0.0..1.0)
    }

    /// What the changes are multiplied by.
    pub fn scale(&self) -> f64 {
        scale(self.alpha, self.rank, self.rslora)
    }

    /// Whether a module is adapted.
    pub(crate) fn adapts(&self, module: &str) -> bool {
        self.targets.iter().any(|target| is_target(target, module))
    }

    /// An error unless every target is a matrix of such a model that can be adapted.
    pub fn check_targets(&self, config: &Config) -> Result<()> {
        ensure!(!self.targets.is_empty(), OWNER, "no targets, expected some");
        let modules = modules(config);
        for target in &self.targets {
            let Some(module) = modules.iter().find(|module| is_target(target, module)) else {
                let mut known: Vec<&str> =
                    modules.iter().filter_map(|module| module.rsplit('.').next()).collect();
                known.sort();
                known.dedup();
                let why =
                    format!("{target} is no linear layer, expected some of {}", known.join(", "));
                return Err(Error::invalid(OWNER, why));
            };
            check_module(module, config)?;
        }
        Ok(())
    }

    /// What other tools will say of such an adapter.
    pub fn warnings(&self, config: &Config) -> Vec<String> {
        let refused = |target: &&String| target.rsplit('.').next() == Some("out_proj");
        let is_refused = config.family.peft_refuses_out_proj();
        let warn = |target: &String| {
            let family = config.family.title();
            format!("{target}: PEFT 0.16 and later refuses to load adapters of {family}'s out_proj")
        };
        self.targets.iter().filter(refused).filter(|_| is_refused).map(warn).collect()
    }

    /// The number of trained elements in such a model.
    pub(crate) fn parameters(&self, config: &Config) -> usize {
        let adapted =
            |name: &str| name.strip_suffix(".weight").is_some_and(|name| self.adapts(name));
        let matrices = config.tensors().into_iter().filter(|tensor| adapted(&tensor.name));
        matrices.map(|tensor| self.rank * (tensor.shape[0] + tensor.shape[1])).sum()
    }
}

/// The factor of the changes.
fn scale(alpha: f64, rank: usize, rslora: bool) -> f64 {
    let r = rank as f64;
    alpha / if rslora { r.sqrt() } else { r }
}

fn is_target(target: &str, module: &str) -> bool {
    module.strip_suffix(target).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The modules of a model that have a matrix of two dimensions.
fn modules(config: &Config) -> Vec<String> {
    let tensors = config.tensors().into_iter();
    let matrices = tensors.filter(|tensor| tensor.shape.len() == 2 && tensor.role == Role::Matrix);
    matrices.filter_map(|tensor| Some(tensor.name.strip_suffix(".weight")?.to_owned())).collect()
}

/// An error if an adapter of a module would have no effect elsewhere.
fn check_module(module: &str, config: &Config) -> Result<()> {
    let name = module.rsplit('.').next().unwrap_or(module);
    let called = name != "dt_proj";
    ensure!(
        called,
        OWNER,
        "{module} cannot be adapted: transformers uses its weight directly, an adapter has no \
         effect there; expected some of {}",
        config.family.lora_targets().join(", ")
    );
    Ok(())
}

impl LanguageModel {
    /// The same model with new adapters, which change nothing yet; everything else is frozen.
    pub fn with_lora(self, lora: &Lora, seed: u64) -> Result<LanguageModel> {
        lora.check()?;
        lora.check_targets(self.config())?;
        let (dtype, device) = (Role::Recurrence.dtype(self.dtype()), self.device().clone());
        let mut key = Key::new(seed).split(0x10ca);
        self.adapted(&mut |module: &TargetModule| {
            if !lora.adapts(&module.name) {
                return Ok(None);
            }
            let (r, k) = (lora.rank, module.columns);
            let mut draw = |init: Init, shape: &[usize]| -> Result<Tensor> {
                key = key.split(1);
                make(init.values(shape, key.bits())?, dtype, &device)
            };
            // The product is 0 at first.
            let (a, b) = match module.is_embedding {
                true => (draw(Init::Zeros, &[k, r])?, Init::Normal(1.0)),
                false => (draw(Init::fan_in(k), &[r, k])?, Init::Zeros),
            };
            let b = module.rows.iter().map(|rows| draw(b, &[*rows, r])).collect::<Result<_>>()?;
            let Lora { dropout, .. } = *lora;
            Ok(Some(Adapter { a, b, scale: lora.scale(), dropout, seed: None }))
        })
    }
}

impl LanguageModel {
    /// Take over the values of files that have the same adapters.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn load_adapters(&mut self, files: &AdapterFiles) -> Result<()> {
        let loaded = self.clone().with_adapter(files)?;
        let (found, expected) = (loaded.adapters().len(), self.adapters().len());
        ensure!(found == expected, OWNER, "{found} adapters found, expected {expected}");
        for ((_, parameter), (name, value)) in
            self.parameters_mut().into_iter().zip(Module::parameters(&loaded))
        {
            let (shape, expected) = (value.shape(), parameter.shape());
            ensure!(shape == expected, OWNER, "{name} is {shape:?}, expected {expected:?}");
            let is_trained = parameter.is_tracked();
            let value = value.detached();
            *parameter = if is_trained { value.tracked() } else { value };
        }
        Ok(())
    }
}

/// A parameter of an adapter.
fn make(values: Tensor, dtype: DType, device: &Device) -> Result<Tensor> {
    Ok(values.cast(dtype)?.to(device)?.tracked())
}
