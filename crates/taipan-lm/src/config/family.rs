//! Families of models: what their files call things.

use serde_json::{Value, json};
use taipan::DType;
use taipan::nn::MlpLayout;

use super::keys::{Keys, invalid};
use super::{Config, falcon_h1, falcon_mamba, granite, mamba, mamba2, mamba3};
use crate::Result;

/// Models whose files have the same keys and names. What is computed is said by the other fields of
/// a [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Gu & Dao 2023, `MambaForCausalLM`.
    Mamba,
    /// Zuo et al. 2024, `FalconMambaForCausalLM`.
    FalconMamba,
    /// Dao & Gu 2024, `Mamba2ForCausalLM`.
    Mamba2,
    /// Mamba-3, which transformers does not have: its files are those of the original code.
    Mamba3,
    /// IBM 2025, `GraniteMoeHybridForCausalLM` without experts.
    Granite,
    /// Zuo et al. 2025, `FalconH1ForCausalLM`.
    FalconH1,
}

/// The files of a family, in Hugging Face's layout.
pub(super) struct Files {
    /// What people call it.
    pub(super) title: &'static str,
    /// The key `model_type` of `config.json`.
    pub(super) model_type: &'static str,
    /// Its class in transformers.
    pub(super) architecture: &'static str,
    pub(super) names: Names,
    /// What LoRA adapts, unless it is told: the linear layers that transformers calls as such, and
    /// whose adapters PEFT loads.
    pub(super) lora_targets: &'static [&'static str],
    /// Whether PEFT (0.16 and later) refuses adapters of `out_proj`.
    pub(super) peft_refuses_out_proj: bool,
    /// What of a config its files cannot say, with its value.
    pub(super) misfit: fn(&Config) -> Option<(&'static str, String)>,
    /// The config of a `config.json`, of which `model_type` was read.
    pub(super) read: fn(&mut Keys) -> Result<Config>,
    /// The keys of `config.json` that not every family has.
    pub(super) write: fn(&Config) -> Value,
}

/// What the parts of a model are called in files, and in the program.
#[derive(Debug)]
pub(crate) struct Names {
    /// `[v, d]`
    pub(crate) embeddings: &'static str,
    /// Before the number of a layer.
    pub(crate) layers: &'static str,
    /// In a layer: before the mixers.
    pub(crate) norm: &'static str,
    /// In a layer.
    pub(crate) ssm: &'static str,
    /// In a layer.
    pub(crate) attention: &'static str,
    /// In a layer: before the MLP.
    pub(crate) mlp_norm: &'static str,
    /// In a layer.
    pub(crate) mlp: &'static str,
    /// The matrices of the MLP.
    pub(crate) mlp_layout: MlpLayout,
    /// Behind the last layer.
    pub(crate) norm_f: &'static str,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 6] = [
        Family::Mamba,
        Family::FalconMamba,
        Family::Mamba2,
        Family::Mamba3,
        Family::Granite,
        Family::FalconH1,
    ];

    fn files(self) -> &'static Files {
        match self {
            Family::Mamba => &mamba::FILES,
            Family::FalconMamba => &falcon_mamba::FILES,
            Family::Mamba2 => &mamba2::FILES,
            Family::Mamba3 => &mamba3::FILES,
            Family::Granite => &granite::FILES,
            Family::FalconH1 => &falcon_h1::FILES,
        }
    }

    /// What people call it.
    pub fn title(self) -> &'static str {
        self.files().title
    }

    /// What of a config its files cannot say, with its value.
    pub(super) fn misfit(self, config: &Config) -> Option<(&'static str, String)> {
        (self.files().misfit)(config)
    }

    pub(crate) fn lora_targets(self) -> &'static [&'static str] {
        self.files().lora_targets
    }

    pub(crate) fn peft_refuses_out_proj(self) -> bool {
        self.files().peft_refuses_out_proj
    }

    pub(crate) fn names(self) -> &'static Names {
        &self.files().names
    }

    /// The config of a `config.json` of Hugging Face's layout.
    pub(super) fn read(keys: &mut Keys) -> Result<Config> {
        let found = keys.raw("model_type");
        let quoted = |family: &Family| format!("{:?}", family.files().model_type);
        match Family::ALL.into_iter().find(|family| found == Some(&*quoted(family))) {
            Some(family) => (family.files().read)(keys),
            None => {
                let known = Family::ALL.iter().filter(|family| **family != Family::Mamba3);
                let known = known.map(quoted).collect::<Vec<_>>().join(", ");
                let (found, expected) = (found.unwrap_or("missing"), format!("one of {known}"));
                Err(invalid("model_type", found, &expected).into())
            }
        }
    }
}

/// The `config.json` of a model in Hugging Face's layout, if its family has one.
pub(super) fn write(config: &Config, dtype: DType, eos_token_id: Option<u32>) -> Value {
    let dtype = match dtype {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F64 => "float64",
        _ => "float32",
    };
    let files = config.family.files();
    if config.family == Family::Mamba3 {
        return (files.write)(config);
    }
    let mut all = json!({
        "architectures": [files.architecture],
        "bos_token_id": eos_token_id,
        // Newer versions of the library read this key, older ones `torch_dtype`.
        "dtype": dtype,
        "eos_token_id": eos_token_id,
        "hidden_size": config.hidden_size,
        "model_type": files.model_type,
        "num_hidden_layers": config.layers.len(),
        "pad_token_id": eos_token_id,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
        "use_cache": true,
        "vocab_size": config.vocab_size,
    });
    if let (Value::Object(all), Value::Object(own)) = (&mut all, (files.write)(config)) {
        all.extend(own);
    }
    all
}
