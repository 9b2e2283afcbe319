//! The files of an adapter, as PEFT writes and reads them.
//!
//! ```text
//! adapter_config.json           rank, alpha, what is adapted, the model that it changes
//! adapter_model.safetensors     base_model.model.{module}.lora_A.weight  [r, k]
//!                               base_model.model.{module}.lora_B.weight  [n, r]
//!                               base_model.model.{embedding}.lora_embedding_A  [r, v], …_B [d, r]
//! ```

use std::collections::BTreeMap;
use std::fmt::Formatter;
use std::path::{Path, PathBuf};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use taipan::nn::Adapter;
use taipan::{DType, Device, Tensor, concat};

use super::{Lora, check_module, is_target, make, scale};
use crate::config::{HEAD, read_text};
use crate::error::{Error, Result, ensure};
use crate::model::TargetModule;
use crate::pretrained::{Contents, TOKENIZER, TOKENIZER_CONFIG, tokenizer_contents};
use crate::safetensors::{self, Map, Safetensors};
use crate::{Config, LanguageModel, ModelFiles, Role, Tokenizer, filesystem};

pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER_MODEL: &str = "adapter_model.safetensors";

/// The files of an adapter, as a run saves them.
pub(crate) const ADAPTER_FILES: [&str; 4] =
    [ADAPTER_CONFIG, TOKENIZER_CONFIG, TOKENIZER, ADAPTER_MODEL];

/// Before the name of a module.
const PREFIX: &str = "base_model.model.";

/// A copy of the head's frozen weight, which PEFT writes with its adapter.
const HEAD_COPY: &str = "lm_head.base_layer.weight";

/// An adapter on disk, of which everything but its fit to a model was checked.
pub struct AdapterFiles {
    path: PathBuf,
    base: Option<String>,
    file: Safetensors<Map>,
    /// By module.
    changes: BTreeMap<String, Change>,
}

/// `s·B·A`
pub(crate) struct Change {
    a: Tensor, // [r, k]
    b: Tensor, // [n, r]
    scale: f64,
    is_embedding: bool,
}

/// The keys of `adapter_config.json` that are read.
#[derive(Deserialize)]
struct AdapterConfig {
    peft_type: Value,
    base_model_name_or_path: Option<String>,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    alpha_pattern: Ordered,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// The entries of an object, in the order of the file.
#[derive(Default)]
struct Ordered(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Ordered;

            fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M>(self, mut map: M) -> std::result::Result<Ordered, M::Error>
            where
                M: MapAccess<'de>,
            {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl AdapterConfig {
    /// An error if a key asks for something else than LoRA of matrices.
    fn check(&self) -> Result<()> {
        let found = &self.peft_type;
        ensure!(*found == "LORA", ADAPTER_CONFIG, "peft_type is {found}, expected \"LORA\"");
        for (key, plain) in [
            ("use_dora", json!(false)),
            ("lora_bias", json!(false)),
            ("bias", json!("none")),
            ("fan_in_fan_out", json!(false)),
            ("modules_to_save", json!(null)),
            ("target_parameters", json!(null)),
            ("trainable_token_indices", json!(null)),
            ("layer_replication", json!(null)),
            ("alora_invocation_tokens", json!(null)),
            ("arrow_config", json!(null)),
            ("use_qalora", json!(false)),
        ] {
            let found = self.others.get(key).unwrap_or(&plain);
            let empty = matches!(found, Value::Null) || found.as_array().is_some_and(Vec::is_empty);
            ensure!(
                empty || *found == plain,
                ADAPTER_CONFIG,
                "{key} is {found}, expected {plain}: it is not supported"
            );
        }
        Ok(())
    }

    /// α of a module: that of the first pattern that matches the end of its name.
    fn alpha(&self, module: &str) -> Result<f64> {
        for (pattern, value) in &self.alpha_pattern.0 {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
            let known = pattern.chars().all(is_plain) && value.is_number();
            ensure!(
                known,
                ADAPTER_CONFIG,
                "alpha_pattern has {pattern:?}: {value}, expected names of modules and numbers"
            );
            if is_target(pattern, module) {
                return Ok(value.as_f64().unwrap_or(self.lora_alpha));
            }
        }
        Ok(self.lora_alpha)
    }
}

impl AdapterFiles {
    /// Whether a directory has an adapter.
    pub fn exists(directory: &Path) -> bool {
        filesystem::is_there(&directory.join(ADAPTER_CONFIG))
    }

    /// Open the adapter of a directory. What it asks for and is not supported is refused by its
    /// key; tensors are those of `adapter_model.safetensors`, and their shapes say the ranks.
    pub fn open(directory: impl AsRef<Path>) -> Result<AdapterFiles> {
        let directory = directory.as_ref();
        let config_path = directory.join(ADAPTER_CONFIG);
        let invalid = |error: &dyn std::fmt::Display| Error::invalid(config_path.display(), error);
        let text = read_text(&config_path)?;
        let config: AdapterConfig = serde_json::from_str(&text).map_err(|error| invalid(&error))?;
        config.check().map_err(|error| Error::invalid(directory.display(), error))?;
        let path = directory.join(ADAPTER_MODEL);
        let file = safetensors::open(&path)?;
        let mut halves: BTreeMap<(String, bool), [Option<Tensor>; 2]> = BTreeMap::new();
        for name in file.names() {
            let why = || Error::invalid(path.display(), format!("{name} is no tensor of LoRA"));
            let module = name.strip_prefix(PREFIX).ok_or_else(why)?;
            if module == HEAD_COPY {
                continue;
            }
            let tensor = file.view(name)?.tensor()?;
            let ends = [
                (".lora_A.weight", false, 0),
                (".lora_B.weight", false, 1),
                (".lora_embedding_A", true, 0),
                (".lora_embedding_B", true, 1),
            ];
            let found = ends.iter().find_map(|(end, embedding, half)| {
                Some(((module.strip_suffix(end)?.to_owned(), *embedding), *half))
            });
            let (key, half) = found.ok_or_else(why)?;
            ensure!(
                tensor.rank() == 2 && tensor.dtype().is_float(),
                path.display(),
                "{name} is {:?} in {}, expected two dimensions of a float",
                tensor.shape(),
                tensor.dtype()
            );
            halves.entry(key).or_default()[half] = Some(tensor);
        }
        ensure!(!halves.is_empty(), path.display(), "no adapter in it");
        let mut changes = BTreeMap::new();
        for ((module, is_embedding), halves) in halves {
            let [Some(a), Some(b)] = halves else {
                let why = format!("{module} has one of lora_A and lora_B, expected both");
                return Err(Error::invalid(path.display(), why));
            };
            let (r, of_b) = (a.shape()[0], b.shape()[1]);
            ensure!(
                r == of_b && r > 0,
                path.display(),
                "{module}: lora_A is {:?} and lora_B {:?}, expected [r, k] and [n, r]",
                a.shape(),
                b.shape()
            );
            let alpha = config.alpha(&module)?;
            let scale = scale(alpha, r, config.use_rslora);
            changes.insert(module, Change { a, b, scale, is_embedding });
        }
        let (path, base) = (directory.to_owned(), config.base_model_name_or_path);
        Ok(AdapterFiles { path, base, file, changes })
    }

    /// The model that it changes: a path, or a name on the Hugging Face Hub.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// The modules that it changes, each with its rank.
    pub fn modules(&self) -> impl Iterator<Item = (&str, usize)> {
        self.changes.iter().map(|(name, change)| (name.as_str(), change.a.shape()[0]))
    }

    /// The number of its parameters.
    pub fn parameters(&self) -> usize {
        self.changes.values().map(|change| change.a.len() + change.b.len()).sum()
    }

    /// An error unless it fits a model of this shape.
    pub fn check(&self, config: &Config) -> Result<()> {
        let owner = self.path.display();
        let tensors = config.tensors();
        for (module, Change { a, b, is_embedding, .. }) in &self.changes {
            let name = format!("{module}.weight");
            let tied_head = name == HEAD && config.tie_word_embeddings;
            let why = "which is the embedding in this model: its head is tied";
            ensure!(!tied_head, owner, "an adapter of lm_head, {why}");
            let spec = tensors.iter().find(|tensor| tensor.name == name);
            let Some(spec) = spec.filter(|spec| spec.shape.len() == 2) else {
                let why = format!("an adapter of {module}, which the model does not have");
                return Err(Error::invalid(owner, why));
            };
            check_module(module, config)?;
            let is_table = name == config.embeddings();
            ensure!(*is_embedding == is_table, owner, "{module}: an adapter of another kind");
            let ([r, k], [n, _]) = (dimensions(a), dimensions(b));
            let found = if is_table { [k, n] } else { [n, k] };
            ensure!(
                found == spec.shape[..],
                owner,
                "{module}: rank {r} of a matrix {found:?}, but the model's is {:?}",
                spec.shape
            );
        }
        Ok(())
    }

    /// An error unless it fits a model, of which it may have a copy of the head.
    pub(crate) fn check_model(&self, model: &ModelFiles) -> Result<()> {
        self.check(model.config())?;
        if let Ok(copy) = self.file.view(&format!("{PREFIX}{HEAD_COPY}")) {
            let fits = model.view(HEAD).is_ok_and(|head| head == copy);
            ensure!(fits, self.path.display(), "{HEAD_COPY} is not {HEAD} of the model");
        }
        Ok(())
    }

    /// A tensor of a model with its change, in f32 or f64; none if it has none.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn merged(&self, name: &str, weight: &Tensor) -> Result<Option<Tensor>> {
        let change = name.strip_suffix(".weight").and_then(|module| self.changes.get(module));
        let Some(Change { a, b, scale, is_embedding }) = change else { return Ok(None) };
        let wide = Role::Recurrence.dtype(weight.dtype());
        let product = b.cast(wide)?.matmul(&a.cast(wide)?)?.scale(*scale)?;
        let product = if *is_embedding { product.transpose(0, 1)? } else { product };
        Ok(Some(weight.cast(wide)?.add(&product)?))
    }

    /// Whether merging unties a model: an unmerged head is the embedding without its change.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn unties(&self, config: &Config) -> bool {
        config.tie_word_embeddings && self.changes.values().any(|change| change.is_embedding)
    }
}

/// The two dimensions of a matrix.
fn dimensions(matrix: &Tensor) -> [usize; 2] {
    matrix.shape().try_into().expect("checked when it was opened")
}

impl LanguageModel {
    /// The same model with the adapter of some files; everything else is frozen.
    pub fn with_adapter(self, files: &AdapterFiles) -> Result<LanguageModel> {
        files.check(self.config())?;
        let (dtype, device) = (Role::Recurrence.dtype(self.dtype()), self.device().clone());
        self.adapted(&mut |module: &TargetModule| {
            let Some(Change { a, b, scale, .. }) = files.changes.get(&module.name) else {
                return Ok(None);
            };
            let a = if module.is_embedding { a.transpose(0, 1)? } else { a.clone() };
            let (mut first, mut blocks) = (0, Vec::new());
            for rows in &module.rows {
                blocks.push(make(b.slice(0, first..first + rows)?, dtype, &device)?);
                first += rows;
            }
            let a = make(a, dtype, &device)?;
            Ok(Some(Adapter { a, b: blocks, scale: *scale, dropout: 0.0, seed: None }))
        })
    }
}

impl ModelFiles {
    /// [`load`](ModelFiles::load), with an adapter.
    pub fn load_adapted(
        &self,
        adapter: &AdapterFiles,
        dtype: DType,
        device: &Device,
    ) -> Result<LanguageModel> {
        adapter.check_model(self)?;
        self.load(dtype, device)?.with_adapter(adapter)
    }
}

/// [`ADAPTER_FILES`] of a model, each with its contents.
pub(crate) fn contents<'a>(
    model: &'a LanguageModel,
    lora: &Lora,
    tokenizer: &Tokenizer,
) -> Result<Vec<(&'static str, Contents<'a>)>> {
    let Lora { rank, alpha, dropout, rslora, base, .. } = lora;
    let mut targets = lora.targets.clone();
    targets.sort();
    targets.dedup();
    let config = json!({
        "alpha_pattern": {},
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": rslora,
    });
    let mut tensors = Vec::new();
    for (module, adapter) in model.adapters() {
        let Adapter { a, b, .. } = adapter;
        let b = concat(&b.iter().collect::<Vec<_>>(), 0)?.detached();
        let is_embedding = format!("{module}.weight") == model.config().embeddings();
        let (a, [a_name, b_name]) = match is_embedding {
            true => (a.transpose(0, 1)?, ["lora_embedding_A", "lora_embedding_B"]),
            false => (a.clone(), ["lora_A.weight", "lora_B.weight"]),
        };
        tensors.push((format!("{PREFIX}{module}.{a_name}"), a.detached()));
        tensors.push((format!("{PREFIX}{module}.{b_name}"), b));
        if module == "lm_head"
            && let Some(head) = model.head_weight()
        {
            // As PEFT does.
            tensors.push((format!("{PREFIX}{HEAD_COPY}"), head.detached()));
        }
    }
    let [tokenizer_config, tokenizer] = tokenizer_contents(tokenizer);
    let all = [
        Contents::Text(format!("{config:#}\n")),
        Contents::Text(tokenizer_config),
        Contents::Text(tokenizer),
        Contents::Owned(tensors),
    ];
    Ok(ADAPTER_FILES.into_iter().zip(all).collect())
}
