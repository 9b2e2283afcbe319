//! The shape of a model, and the `config.json` files that describe it.

mod falcon_mamba;
mod family;
mod init;
mod keys;
mod mamba;
mod mamba2;
mod original;
mod tensors;

use taipan::{DType, Scan};

pub use self::family::Family;
pub(crate) use self::family::Names;
pub use self::init::{Initialization, TimeStepInit};
use self::keys::{Keys, quote_non_finite};
pub(crate) use self::tensors::HEAD;
pub use self::tensors::{Layout, TensorSpec};
use crate::{Error, InvalidValue, filesystem};

/// Its name in errors.
const OWNER: &str = "config";

/// The shape of a model of any [`Family`], with the names of Hugging Face's `MambaConfig`, and its
/// defaults but for new weights.
///
/// Every layer adds `mixer(norm(r))` to the residual stream `r`.
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
    /// How many layers.
    pub num_hidden_layers: usize,
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
    /// Whether the projections into and out of a mixer have a bias.
    pub use_bias: bool,
    /// Whether the convolution has a bias.
    pub use_conv_bias: bool,
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
        /// Equal groups of channels that are normed by themselves after the gate: 1 in transformers'
        /// Mamba-2, `n_groups` in the original code.
        norm_groups: usize,
        /// The least and the greatest Δ.
        time_step_limit: [f64; 2],
        /// What a file says of how other programs compute; nothing here depends on it.
        chunk_size: usize,
    },
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
            norm_groups: 1,
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
            num_hidden_layers: 32,
            ssm: Ssm::mamba(48),
            state_size: 16,
            conv_kernel: 4,
            expand: 2,
            intermediate_size: None,
            use_bias: false,
            use_conv_bias: true,
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

    /// An error unless such a model can be computed.
    ///
    /// ```
    /// use taipan_lm::Config;
    ///
    /// let config = Config { state_size: 300, ..Config::default() };
    /// assert_eq!(
    ///     config.check().unwrap_err().to_string(),
    ///     "config: state_size is 300, expected 1 to 256"
    /// );
    /// ```
    pub fn check(&self) -> Result<(), InvalidValue> {
        // So that the number of parameters, a product of three, does not overflow.
        let largest = 1 << 18;
        let width = self.hidden_size.max(1);
        let inner = match self.intermediate_size {
            Some(inner) => ("intermediate_size", inner, largest),
            None => ("expand", self.expand, largest / width),
        };
        let channels = self.intermediate_size.unwrap_or(self.expand.saturating_mul(width));
        for (name, size, most) in [
            ("vocab_size", self.vocab_size, largest),
            ("hidden_size", self.hidden_size, largest),
            ("num_hidden_layers", self.num_hidden_layers, largest),
            ("state_size", self.state_size, Scan::MAX_STATES),
            // Beyond it some GPU drivers end the loops of a kernel early.
            ("conv_kernel", self.conv_kernel, 1 << 13),
            inner,
        ] {
            InvalidValue::check(OWNER, name, size, 1..=most)?;
        }
        match self.ssm {
            Ssm::Mamba { time_step_rank, norm_eps } => {
                InvalidValue::check(OWNER, "time_step_rank", time_step_rank, 1..=channels)?;
                let eps = norm_eps.unwrap_or_default();
                InvalidValue::check(OWNER, "mixer_rms_eps", eps, 0.0..=1.0)?;
            }
            Ssm::Mamba2 { head_dim, n_groups, norm_groups, .. } => {
                check_divisor("head_dim", head_dim, ("channels", channels))?;
                check_divisor("n_groups", n_groups, ("heads", channels / head_dim))?;
                check_divisor("norm_groups", norm_groups, ("channels", channels))?;
            }
        }
        let fits = matches!(self.ssm, Ssm::Mamba2 { .. }) == (self.family == Family::Mamba2);
        if !fits {
            let (owner, name, found) = (OWNER, "ssm", format!("{:?}", self.ssm));
            let expected = format!("mixers of {}", self.family.title());
            return Err(InvalidValue { owner, name, found, expected });
        }
        // Beyond it hardly anything is left of what is normed, and of its gradient.
        InvalidValue::check(OWNER, "layer_norm_epsilon", self.layer_norm_epsilon, 0.0..=1.0)
    }

    /// The `config.json` that Hugging Face's library writes for such a model, stored in `dtype`;
    /// `eos_token_id` is the token between documents, if there is one.
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

    /// `inner_size/hidden_size`, such that the product with the width, rounded down, is the size.
    fn expand_ratio(&self) -> f64 {
        let (d, inner) = (self.hidden_size as f64, self.inner_size() as f64);
        let fits = (inner / d * d) as usize == self.inner_size();
        if fits { inner / d } else { (inner + 0.5) / d }
    }

    /// The channels of a mixer's convolution.
    pub(crate) fn conv_channels(&self) -> usize {
        self.inner_size()
            + match self.ssm {
                Ssm::Mamba { .. } => 0,
                Ssm::Mamba2 { n_groups, .. } => 2 * n_groups * self.state_size,
            }
    }
}

/// An error unless a size divides that of others.
fn check_divisor(
    name: &'static str,
    size: usize,
    (others, count): (&str, usize),
) -> Result<(), InvalidValue> {
    if size > 0 && count.is_multiple_of(size) {
        return Ok(());
    }
    let expected = format!("a divisor of the number of {others}, {count}");
    Err(InvalidValue { owner: OWNER, name, found: size.to_string(), expected })
}

/// The text of a file. What is not a file, as a pipe that nobody writes to, is an error.
pub(crate) fn read_text(path: &std::path::Path) -> crate::Result<String> {
    let is_file = filesystem::metadata(path).map_err(Error::io(path))?.is_file();
    crate::error::ensure!(is_file, path.display(), "not a file");
    filesystem::read_to_string(path).map_err(Error::io(path))
}

#[cfg(test)]
mod tests;
