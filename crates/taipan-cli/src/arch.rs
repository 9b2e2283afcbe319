//! Architectures of new models, as flags name them.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use taipan_lm::{AttentionConfig, Config, Family, LayerKind, MlpConfig, Ssm};

/// The mixers of a model.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// Mamba (2023)
    Mamba,
    /// Mamba-2 (2024): larger states, in heads
    Mamba2,
    /// Mamba-3 (2026): states that turn, and no convolution
    Mamba3,
    /// Mamba-2 and attention, with MLPs
    Hybrid,
}

impl Arch {
    pub fn of(config: &Config) -> Arch {
        match config.ssm {
            _ if config.attention.is_some() => Arch::Hybrid,
            Ssm::Mamba { .. } => Arch::Mamba,
            Ssm::Mamba2 { .. } => Arch::Mamba2,
            Ssm::Mamba3(_) => Arch::Mamba3,
        }
    }
}

/// As the flag says it.
impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arch::Mamba => "mamba",
            Arch::Mamba2 => "mamba2",
            Arch::Mamba3 => "mamba3",
            Arch::Hybrid => "hybrid",
        })
    }
}

/// The mixers of some layers, which are repeated for further ones.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerPattern(Vec<LayerKind>);

impl LayerPattern {
    /// The shortest one that all layers of a model follow from.
    pub fn of(layers: &[LayerKind]) -> LayerPattern {
        let repeats = |length: &usize| {
            let pattern = layers[..*length].iter().cycle();
            layers.len().is_multiple_of(*length) && layers.iter().zip(pattern).all(|(a, b)| a == b)
        };
        let length = (1..=layers.len()).find(repeats).unwrap_or(0);
        LayerPattern(layers[..length].to_vec())
    }

    /// How many layers it is.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// So many layers.
    pub fn layers(&self, count: usize) -> Vec<LayerKind> {
        self.0.iter().copied().cycle().take(count).collect()
    }
}

impl FromStr for LayerPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<LayerPattern, String> {
        let kind = |letter| match letter {
            'M' => Ok(LayerKind::Ssm),
            'A' => Ok(LayerKind::Attention),
            'B' => Ok(LayerKind::Both),
            other => Err(format!("{other:?} found, expected M, A or B for each layer")),
        };
        match text {
            "" => Err("no layers, expected M, A or B for each".into()),
            _ => Ok(LayerPattern(text.chars().map(kind).collect::<Result<_, _>>()?)),
        }
    }
}

impl TryFrom<String> for LayerPattern {
    type Error = String;

    fn try_from(text: String) -> Result<LayerPattern, String> {
        text.parse()
    }
}

impl From<LayerPattern> for String {
    fn from(pattern: LayerPattern) -> String {
        let letter = |kind: &LayerKind| match kind {
            LayerKind::Ssm => 'M',
            LayerKind::Attention => 'A',
            LayerKind::Both => 'B',
        };
        pattern.0.iter().map(letter).collect()
    }
}

/// What a hybrid has besides the sizes of all models.
pub struct Hybrid {
    pub layers: Vec<LayerKind>,
    /// Channels of a head of Mamba-2.
    pub head_dim: usize,
    pub attention: AttentionConfig,
    /// The width of the MLPs.
    pub d_ff: usize,
}

impl Hybrid {
    /// With these sizes otherwise.
    pub fn config(self, sizes: Config) -> Config {
        let side_by_side = self.layers.iter().all(|layer| *layer == LayerKind::Both);
        let (family, rope_theta) = match side_by_side {
            true => (Family::FalconH1, Some(1e4)),
            false => (Family::Granite, None),
        };
        Config {
            family,
            layers: self.layers,
            ssm: Ssm::mamba2(self.head_dim),
            attention: Some(AttentionConfig { rope_theta, ..self.attention }),
            mlp: Some(MlpConfig { size: self.d_ff, use_bias: false }),
            ..sizes
        }
    }
}

/// The width of MLPs for this one of the model: 8/3 of it, and a multiple of 64.
pub fn d_ff(d_model: usize) -> usize {
    (d_model.saturating_mul(8) / 3).div_ceil(64).saturating_mul(64)
}
