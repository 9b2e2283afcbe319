//! The shape of a model, and the `config.json` files that describe it.

mod check;
mod falcon_h1;
mod falcon_mamba;
mod family;
mod granite;
mod hybrid;
mod init;
mod keys;
mod layers;
mod mamba;
mod mamba2;
mod mamba3;
mod original;
mod tensors;

use taipan::{DType, GateOrder};

pub use self::family::Family;
pub(crate) use self::family::Names;
pub use self::init::{Initialization, TimeStepInit};
use self::keys::{Keys, quote_non_finite};
pub use self::layers::{AttentionConfig, LayerKind, MlpConfig, Multipliers};
pub use self::mamba3::Mamba3Config;
pub(crate) use self::tensors::HEAD;
pub use self::tensors::{Layout, TensorSpec};
use crate::{Error, filesystem};

/// Its name in errors.
const OWNER: &str = "config";

/// The shape of a model of any [`Family`], with the names of Hugging Face's `MambaConfig`, and its
/// defaults but for new weights.
///
/// Every layer adds `Σ mixer(norm(r))` to the residual stream `r`, and `mlp(norm'(r))` if there is an
/// MLP.
///
/// ```
/// use taipan_lm::Config;
///
/// let json = r#"{"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24}"#;
/// let config = Config::from_json(json)?;
/// assert_eq!(config.inner_size(), 1536);
/// assert_eq!(config.parameters(), 129_135_360); // mamba-130m
///
/// let original = r#"{"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {}}"#;
/// let original = Config::from_json(original)?;
/// assert_eq!((original.vocab_size, original.parameters()), (50280, 129_135_360));
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What files call it.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream, the paper's `D` outside the block.
    pub hidden_size: usize,
    /// The mixers of each layer, from the first to the last.
    pub layers: Vec<LayerKind>,
    /// The kind of the state-space mixers, and what only this kind has.
    pub ssm: Ssm,
    /// State per channel, the paper's `N`.
    pub state_size: usize,
    /// Kernel size of the causal convolution.
    pub conv_kernel: usize,
    /// Channels inside a mixer per channel of the residual stream, the paper's `E`.
    pub expand: usize,
    /// Channels inside a mixer, if they are not `expand·hidden_size`: see
    /// [`inner_size`](Config::inner_size).
    pub intermediate_size: Option<usize>,
    /// Whether the projections into and out of a state-space mixer have a bias.
    pub use_bias: bool,
    /// Whether the projection out of it has one, if that is not as `use_bias` says.
    pub out_proj_bias: Option<bool>,
    /// Whether the convolution has a bias.
    pub use_conv_bias: bool,
    /// The attention of the layers that have it.
    pub attention: Option<AttentionConfig>,
    /// The MLP of every layer.
    pub mlp: Option<MlpConfig>,
    /// Factors between the parts of the model.
    pub multipliers: Multipliers,
    /// What RMSNorm adds to the mean square.
    pub layer_norm_epsilon: f64,
    /// Whether the residual stream stays in f32 when the weights are smaller.
    pub residual_in_fp32: bool,
    /// Whether the head is the embedding, transposed.
    pub tie_word_embeddings: bool,
    /// How new weights are drawn.
    pub init: Initialization,
}

/// Kinds of state-space mixers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ssm {
    /// The selective scan of Gu & Dao 2023: a decay for each channel and state.
    Mamba {
        /// Rank of the projection that Δ comes from.
        time_step_rank: usize,
        /// Falcon-Mamba's norms, without weights, of Δ before its projection, B and C: what they add
        /// to the mean square.
        norm_eps: Option<f64>,
    },
    /// SSD of Dao & Gu 2024: heads of channels with one decay each.
    Mamba2 {
        /// Channels of a head.
        head_dim: usize,
        /// Groups of heads that share B and C.
        n_groups: usize,
        /// The norm of the result, before its projection.
        norm: Option<Mamba2Norm>,
        /// The least and the greatest Δ.
        time_step_limit: [f64; 2],
        /// What a file says of how other programs compute; nothing here depends on it.
        chunk_size: usize,
    },
    /// Mamba-3: heads of channels whose states turn, without a convolution.
    Mamba3(Mamba3Config),
}

/// The norm of the result of a Mamba-2 mixer, with its gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2Norm {
    /// Equal groups of channels that are normed by themselves: 1 in transformers' Mamba-2,
    /// `n_groups` in the original code.
    pub groups: usize,
    /// Whether the gate or the norm comes first.
    pub order: GateOrder,
}

impl Mamba2Norm {
    /// Of so many groups, after the gate, as published.
    pub fn gate_first(groups: usize) -> Mamba2Norm {
        Mamba2Norm { groups, order: GateOrder::GateFirst }
    }
}

impl Ssm {
    /// Mamba's, as published.
    pub fn mamba(time_step_rank: usize) -> Ssm {
        Ssm::Mamba { time_step_rank, norm_eps: None }
    }

    /// Mamba-2's, as published: heads of this size that share B and C.
    pub fn mamba2(head_dim: usize) -> Ssm {
        Ssm::Mamba2 {
            head_dim,
            n_groups: 1,
            norm: Some(Mamba2Norm::gate_first(1)),
            time_step_limit: [0.0, f64::INFINITY],
            chunk_size: 256,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            family: Family::Mamba,
            vocab_size: 50280,
            hidden_size: 768,
            layers: vec![LayerKind::Ssm; 32],
            ssm: Ssm::mamba(48),
            state_size: 16,
            conv_kernel: 4,
            expand: 2,
            intermediate_size: None,
            use_bias: false,
            out_proj_bias: None,
            use_conv_bias: true,
            attention: None,
            mlp: None,
            multipliers: Multipliers::default(),
            layer_norm_epsilon: 1e-5,
            residual_in_fp32: true,
            tie_word_embeddings: true,
            init: Initialization::default(),
        }
    }
}

impl Config {
    /// Read a `config.json`, Hugging Face's or the original code's, which has no `model_type` but
    /// `d_model`. Keys that are not known are accepted at its top level. A model of another kind is
    /// refused, and so is every value that would change what is computed and is not supported.
    pub fn from_json(text: &str) -> crate::Result<Config> {
        Ok(Config::read(text)?.0)
    }

    /// The config of a JSON text, and whose it is.
    pub(crate) fn read(text: &str) -> crate::Result<(Config, Layout)> {
        let text = quote_non_finite(text);
        let mut keys = Keys::parse(&text)?;
        let layout = match !keys.contains("model_type") && keys.contains("d_model") {
            true => Layout::Original,
            false => Layout::HuggingFace,
        };
        let config = match layout {
            Layout::HuggingFace => Family::read(&mut keys)?,
            Layout::Original => original::read(&mut keys)?,
        };
        config.check()?;
        Ok((config, layout))
    }

    /// `expand` and `intermediate_size` of a model with this width and this many inner channels.
    fn inner(hidden_size: usize, inner: usize) -> (usize, Option<usize>) {
        let width = hidden_size.max(1);
        match inner.is_multiple_of(width) {
            true => (inner / width, None),
            false => ((inner / width).max(1), Some(inner)),
        }
    }

    /// [`Config::from_json`] of a file.
    pub fn from_file(path: impl AsRef<std::path::Path>) -> crate::Result<Config> {
        let path = path.as_ref();
        let text = read_text(path)?;
        Config::from_json(&text).map_err(|error| Error::invalid(path.display(), error))
    }

    /// The `config.json` that Hugging Face's library writes for such a model, stored in `dtype`;
    /// `eos_token_id` is the token between documents, if there is one. That of Mamba-3, which the
    /// library does not have, is the original code's.
    ///
    /// ```
    /// use taipan::DType;
    /// use taipan_lm::{Config, Ssm};
    ///
    /// let config = Config { hidden_size: 64, ssm: Ssm::mamba(4), ..Config::default() };
    /// assert_eq!(Config::from_json(&config.to_json(DType::F32, Some(0)))?, config);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn to_json(&self, dtype: DType, eos_token_id: Option<u32>) -> String {
        format!("{:#}\n", family::write(self, dtype, eos_token_id))
    }

    /// [`Config::to_json`], to be changed.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn to_json_value(
        &self,
        dtype: DType,
        eos_token_id: Option<u32>,
    ) -> serde_json::Value {
        family::write(self, dtype, eos_token_id)
    }

    /// The ids of tokens that begin, end and pad texts, as far as a `config.json` has them: a
    /// number or a list of numbers each.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn token_ids(text: &str) -> Vec<(&'static str, serde_json::Value)> {
        let text = quote_non_finite(text);
        let Ok(mut keys) = Keys::parse(&text) else { return Vec::new() };
        let names = ["bos_token_id", "eos_token_id", "pad_token_id"];
        let found = names.map(|name| Some((name, serde_json::from_str(keys.raw(name)?).ok()?)));
        found.into_iter().flatten().collect()
    }

    /// The `config.json` of the original code, which has no key for `layer_norm_epsilon`: it is
    /// always 1e-5.
    pub fn to_original_json(&self) -> crate::Result<String> {
        Ok(format!("{:#}\n", original::write(self)?))
    }

    /// Channels inside a mixer, the paper's `D` of the scan.
    pub fn inner_size(&self) -> usize {
        self.intermediate_size.unwrap_or(self.expand * self.hidden_size)
    }

    /// Whether the projection out of a state-space mixer has a bias.
    pub(crate) fn has_out_proj_bias(&self) -> bool {
        self.out_proj_bias.unwrap_or(self.use_bias)
    }

    /// `inner_size/hidden_size`, such that the product with the width, rounded down, is the size.
    fn expand_ratio(&self) -> f64 {
        let (d, inner) = (self.hidden_size as f64, self.inner_size() as f64);
        let fits = (inner / d * d) as usize == self.inner_size();
        if fits { inner / d } else { (inner + 0.5) / d }
    }

    /// The channels of a mixer's convolution.
    pub(crate) fn conv_channels(&self) -> usize {
        match self.ssm {
            Ssm::Mamba { .. } => self.inner_size(),
            Ssm::Mamba2 { n_groups, .. } => self.inner_size() + 2 * n_groups * self.state_size,
            Ssm::Mamba3(_) => 0,
        }
    }
}

/// The text of a file. What is not a file, as a pipe that nobody writes to, is an error.
pub(crate) fn read_text(path: &std::path::Path) -> crate::Result<String> {
    let is_file = filesystem::metadata(path).map_err(Error::io(path))?.is_file();
    crate::error::ensure!(is_file, path.display(), "not a file");
    filesystem::read_to_string(path).map_err(Error::io(path))
}

#[cfg(test)]
mod tests;
