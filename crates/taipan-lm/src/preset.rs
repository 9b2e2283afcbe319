//! Models by name.

use std::fmt;
use std::str::FromStr;

use taipan::optim::{Curve, Schedule};

use crate::{
    AttentionConfig, Config, Error, Family, LayerKind, Mamba3Config, MlpConfig, Multipliers,
    Recipe, Ssm,
};

/// A size of model, with a recipe to train it: two of each kind for a laptop, and those of published
/// checkpoints.
///
/// ```
/// use taipan_lm::Preset;
///
/// let config = "130m".parse::<Preset>()?.config(50280);
/// assert_eq!(config.parameters(), 129_135_360);
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Learns something in two minutes on two cores.
    Tiny,
    /// Takes an hour or two on a desktop's processor.
    Small,
    /// As `state-spaces/mamba-130m`.
    M130,
    /// As `state-spaces/mamba-370m`.
    M370,
    /// As `state-spaces/mamba-790m`.
    M790,
    /// As `state-spaces/mamba-1.4b`.
    B1_4,
    /// As `state-spaces/mamba-2.8b`.
    B2_8,
    /// `Tiny` of Mamba-2.
    Mamba2Tiny,
    /// `Small` of Mamba-2.
    Mamba2Small,
    /// As `state-spaces/mamba2-130m`.
    Mamba2M130,
    /// As `state-spaces/mamba2-370m`.
    Mamba2M370,
    /// As `state-spaces/mamba2-780m`.
    Mamba2M780,
    /// As `state-spaces/mamba2-1.3b`.
    Mamba2B1_3,
    /// As `state-spaces/mamba2-2.7b`.
    Mamba2B2_7,
    /// `Tiny` of Mamba-3, SISO.
    Mamba3Tiny,
    /// The same with four inputs and outputs of each channel, MIMO.
    Mamba3MimoTiny,
    /// `Tiny` of Mamba-2 with one layer of attention, and MLPs.
    HybridTiny,
    /// `Small` of Mamba-2 with two layers of attention, and MLPs.
    HybridSmall,
    /// As `ibm-granite/granite-4.0-h-350m`.
    GraniteM350,
}

impl Preset {
    /// All of them, the smallest of each family first.
    pub const ALL: [Preset; 19] = [
        Preset::Tiny,
        Preset::Small,
        Preset::M130,
        Preset::M370,
        Preset::M790,
        Preset::B1_4,
        Preset::B2_8,
        Preset::Mamba2Tiny,
        Preset::Mamba2Small,
        Preset::Mamba2M130,
        Preset::Mamba2M370,
        Preset::Mamba2M780,
        Preset::Mamba2B1_3,
        Preset::Mamba2B2_7,
        Preset::Mamba3Tiny,
        Preset::Mamba3MimoTiny,
        Preset::HybridTiny,
        Preset::HybridSmall,
        Preset::GraniteM350,
    ];

    /// The name; width and layers of the model; of its recipe the sequences per batch, tokens per
    /// sequence and batches per step, the peak learning rate and the steps. The learning rates of
    /// the published sizes are those of the paper's table 12: five times GPT-3's.
    fn row(self) -> (&'static str, [usize; 2], [usize; 3], f64, u64) {
        match self {
            Preset::Tiny => ("tiny", [128, 4], [8, 256, 1], 3e-3, 1000),
            Preset::Small => ("small", [384, 8], [16, 512, 1], 2e-3, 4000),
            Preset::M130 => ("130m", [768, 24], [8, 1024, 4], 3e-3, 20_000),
            Preset::M370 => ("370m", [1024, 48], [4, 2048, 8], 1.5e-3, 20_000),
            Preset::M790 => ("790m", [1536, 48], [4, 2048, 8], 1.25e-3, 20_000),
            Preset::B1_4 => ("1.4b", [2048, 48], [4, 2048, 8], 1e-3, 20_000),
            Preset::B2_8 => ("2.8b", [2560, 64], [4, 2048, 8], 8e-4, 20_000),
            Preset::Mamba2Tiny => ("mamba2-tiny", [128, 4], [8, 256, 1], 3e-3, 1000),
            Preset::Mamba2Small => ("mamba2-small", [384, 8], [16, 512, 1], 2e-3, 4000),
            Preset::Mamba2M130 => ("mamba2-130m", [768, 24], [8, 1024, 4], 3e-3, 20_000),
            Preset::Mamba2M370 => ("mamba2-370m", [1024, 48], [4, 2048, 8], 1.5e-3, 20_000),
            Preset::Mamba2M780 => ("mamba2-780m", [1536, 48], [4, 2048, 8], 1.25e-3, 20_000),
            Preset::Mamba2B1_3 => ("mamba2-1.3b", [2048, 48], [4, 2048, 8], 1e-3, 20_000),
            Preset::Mamba2B2_7 => ("mamba2-2.7b", [2560, 64], [4, 2048, 8], 8e-4, 20_000),
            Preset::Mamba3Tiny => ("mamba3-tiny", [128, 4], [8, 256, 1], 3e-3, 1000),
            Preset::Mamba3MimoTiny => ("mamba3-mimo-tiny", [128, 4], [8, 256, 1], 3e-3, 1000),
            Preset::HybridTiny => ("hybrid-tiny", [128, 4], [8, 256, 1], 3e-3, 1000),
            Preset::HybridSmall => ("hybrid-small", [384, 8], [16, 512, 1], 2e-3, 4000),
            Preset::GraniteM350 => ("hybrid-350m", [768, 32], [4, 2048, 8], 1.5e-3, 20_000),
        }
    }

    /// The shape of the model, for a vocabulary of this size.
    pub fn config(self, vocab_size: usize) -> Config {
        let (_, [hidden_size, layers], ..) = self.row();
        let layers = vec![LayerKind::Ssm; layers];
        let sizes = Config { vocab_size, hidden_size, layers, ..Config::default() };
        let (family, ssm, state_size) = match self.family() {
            Family::Mamba2 if self == Preset::Mamba2Tiny => (Family::Mamba2, Ssm::mamba2(32), 64),
            Family::Mamba2 => (Family::Mamba2, Ssm::mamba2(64), 128),
            Family::Mamba3 => {
                let mimo_rank = (self == Preset::Mamba3MimoTiny).then_some(4);
                let mamba3 = Mamba3Config { mimo_rank, ..Mamba3Config::new(32) };
                (Family::Mamba3, Ssm::Mamba3(mamba3), 64)
            }
            Family::Granite => return self.hybrid(sizes),
            family => (family, Ssm::mamba(hidden_size.div_ceil(16)), sizes.state_size),
        };
        Config { family, ssm, state_size, ..sizes }
    }

    /// A hybrid of these sizes.
    fn hybrid(self, sizes: Config) -> Config {
        let (head_dim, state_size, attention, mlp_size) = match self {
            Preset::HybridTiny => (32, 64, AttentionConfig::new(4, 2, 32), 384),
            Preset::HybridSmall => (64, 128, AttentionConfig::new(6, 2, 64), 1024),
            _ => (32, 128, AttentionConfig::new(12, 4, 64), 2048),
        };
        let hybrid = Config {
            family: Family::Granite,
            ssm: Ssm::mamba2(head_dim),
            state_size,
            attention: Some(attention),
            mlp: Some(MlpConfig { size: mlp_size, use_bias: false }),
            ..sizes
        };
        let with_attention = |i: usize| match self {
            Preset::GraniteM350 => [10, 13, 17, 27].contains(&i),
            _ => i % 4 == 2,
        };
        let layers = (0..hybrid.layers.len()).map(|i| match with_attention(i) {
            true => LayerKind::Attention,
            false => LayerKind::Ssm,
        });
        let hybrid = Config { layers: layers.collect(), ..hybrid };
        if self != Preset::GraniteM350 {
            return hybrid;
        }
        let residual = 0.246;
        Config {
            attention: Some(AttentionConfig { scale: 1.0 / 64.0, ..attention }),
            multipliers: Multipliers {
                embedding: 12.0,
                logits: 1.0 / 3.0,
                ssm_out: residual,
                attention_out: residual,
                mlp_out: residual,
                ..Multipliers::default()
            },
            ..hybrid
        }
    }

    /// The family of the model.
    pub fn family(self) -> Family {
        match self {
            Preset::Mamba2Tiny | Preset::Mamba2Small | Preset::Mamba2M130 | Preset::Mamba2M370 => {
                Family::Mamba2
            }
            Preset::Mamba2M780 | Preset::Mamba2B1_3 | Preset::Mamba2B2_7 => Family::Mamba2,
            Preset::Mamba3Tiny | Preset::Mamba3MimoTiny => Family::Mamba3,
            Preset::HybridTiny | Preset::HybridSmall | Preset::GraniteM350 => Family::Granite,
            _ => Family::Mamba,
        }
    }

    /// A recipe that suits the size.
    ///
    /// ```
    /// let recipe = taipan_lm::Preset::M130.recipe();
    /// assert_eq!((recipe.schedule.peak, recipe.tokens()), (3e-3, 32768));
    /// ```
    pub fn recipe(self) -> Recipe {
        let (_, _, [batch_size, block_size, grad_accum], peak, total) = self.row();
        let (min, warmup, curve) = (Recipe::min_lr(peak), total / 20, Curve::Cosine);
        let schedule = Schedule { peak, min, warmup, total, curve };
        Recipe { batch_size, block_size, grad_accum, schedule, ..Recipe::default() }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().0)
    }
}

impl FromStr for Preset {
    type Err = Error;

    fn from_str(name: &str) -> Result<Preset, Error> {
        Preset::ALL.into_iter().find(|preset| preset.to_string() == name).ok_or_else(|| {
            let names = Preset::ALL.map(|preset| preset.to_string()).join(", ");
            Error::invalid("preset", format!("{name} found, expected one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_published_ones() {
        // The number of parameters of state-spaces/mamba-*, whose vocabulary is 50277, padded to
        // 50280.
        for (preset, parameters) in [
            (Preset::M130, 129_135_360),
            (Preset::M370, 371_516_416),
            (Preset::M790, 793_204_224),
            (Preset::B1_4, 1_372_178_432),
            (Preset::B2_8, 2_768_345_600),
        ] {
            assert_eq!(preset.config(50280).parameters(), parameters, "{preset}");
        }
        // state-spaces/mamba2-*, padded to 50288.
        for (preset, parameters) in [
            (Preset::Mamba2M130, 128_989_632),
            (Preset::Mamba2M370, 368_346_624),
            (Preset::Mamba2M780, 780_161_280),
            (Preset::Mamba2B1_3, 1_343_757_312),
            (Preset::Mamba2B2_7, 2_702_599_680),
        ] {
            assert_eq!(preset.config(50288).parameters(), parameters, "{preset}");
        }
        // ibm-granite/granite-4.0-h-350m.
        assert_eq!(Preset::GraniteM350.config(100352).parameters(), 340_332_224);
        Preset::ALL.into_iter().for_each(|preset| preset.config(256).check().unwrap());
    }

    #[test]
    fn names_lead_back() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse::<Preset>().unwrap(), preset);
        }
        assert_eq!(
            "131m".parse::<Preset>().unwrap_err().to_string(),
            "preset: 131m found, expected one of tiny, small, 130m, 370m, 790m, 1.4b, 2.8b, \
             mamba2-tiny, mamba2-small, mamba2-130m, mamba2-370m, mamba2-780m, mamba2-1.3b, \
             mamba2-2.7b, mamba3-tiny, mamba3-mimo-tiny, hybrid-tiny, hybrid-small, hybrid-350m"
        );
    }
}
