//! Architectures of new models, as flags name them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use taipan_lm::{Config, Ssm};

/// The mixers of a model.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// Mamba (2023)
    Mamba,
    /// Mamba-2 (2024): larger states, in heads
    Mamba2,
}

impl Arch {
    pub fn of(config: &Config) -> Arch {
        match config.ssm {
            Ssm::Mamba { .. } => Arch::Mamba,
            Ssm::Mamba2 { .. } => Arch::Mamba2,
        }
    }
}
