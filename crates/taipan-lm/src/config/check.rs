//! Whether a model can be computed, and its files say so.

use taipan::Scan;
use taipan::nn::Mamba3Options;

use super::{AttentionConfig, Config, LayerKind, Mamba3Config, MlpConfig, OWNER, Ssm};
use crate::InvalidValue;

/// The largest of most sizes: the number of parameters, a product of three, does not overflow.
const LARGEST: usize = 1 << 18;

impl Config {
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
        let width = self.hidden_size.max(1);
        let inner = match self.intermediate_size {
            Some(inner) => ("intermediate_size", inner, LARGEST),
            None => ("expand", self.expand, LARGEST / width),
        };
        let channels = self.intermediate_size.unwrap_or(self.expand.saturating_mul(width));
        for (name, size, most) in [
            ("vocab_size", self.vocab_size, LARGEST),
            ("hidden_size", self.hidden_size, LARGEST),
            ("num_hidden_layers", self.layers.len(), LARGEST),
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
            Ssm::Mamba2 { head_dim, n_groups, norm, .. } => {
                check_divisor("head_dim", head_dim, ("channels", channels))?;
                check_divisor("n_groups", n_groups, ("heads", channels / head_dim))?;
                let norm_groups = norm.map_or(1, |norm| norm.groups);
                check_divisor("norm_groups", norm_groups, ("channels", channels))?;
            }
            Ssm::Mamba3(mamba3) => self.check_mamba3(mamba3, channels)?,
        }
        self.check_attention()?;
        if let Some(MlpConfig { size, .. }) = self.mlp {
            InvalidValue::check(OWNER, "the MLP's width", size, 1..=LARGEST)?;
        }
        for (name, value) in self.multipliers.named() {
            InvalidValue::check(OWNER, name, value, f64::MIN..=f64::MAX)?;
        }
        if let Some((name, found)) = self.family.misfit(self) {
            let expected = format!("what files of {} can say", self.family.title());
            return Err(InvalidValue { owner: OWNER, name, found, expected });
        }
        // Beyond it hardly anything is left of what is normed, and of its gradient.
        InvalidValue::check(OWNER, "layer_norm_epsilon", self.layer_norm_epsilon, 0.0..=1.0)
    }

    fn check_mamba3(&self, mamba3: Mamba3Config, channels: usize) -> Result<(), InvalidValue> {
        let Mamba3Config { head_dim, n_groups, rope_fraction, a_floor, .. } = mamba3;
        let invalid = |name, found, expected: &str| InvalidValue {
            owner: OWNER,
            name,
            found,
            expected: expected.into(),
        };
        check_divisor("head_dim", head_dim, ("channels", channels))?;
        check_divisor("n_groups", n_groups, ("heads", channels / head_dim))?;
        if ![0.5, 1.0].contains(&rope_fraction) {
            return Err(invalid("rope_fraction", rope_fraction.to_string(), "0.5 or 1"));
        }
        if mamba3.angles(self.state_size) == 0 {
            let found = self.state_size.to_string();
            return Err(invalid("state_size", found, "enough for a pair of states that turns"));
        }
        if let Some(rank) = mamba3.mimo_rank {
            InvalidValue::check(OWNER, "mimo_rank", rank, 1..=Mamba3Options::MAX_RANKS)?;
            if !self.state_size.is_multiple_of(2) {
                let found = self.state_size.to_string();
                return Err(invalid("state_size", found, "an even number, with is_mimo"));
            }
        }
        InvalidValue::check(OWNER, "A_floor", a_floor, 0.0..=f64::MAX)
    }

    fn check_attention(&self) -> Result<(), InvalidValue> {
        let Some(attention) = self.attention else {
            let invalid = |i| InvalidValue {
                owner: OWNER,
                name: "attention",
                found: "missing".into(),
                expected: format!("the heads of layer {i}"),
            };
            let first = self.layers.iter().position(|layer| layer.has_attention());
            return first.map_or(Ok(()), |i| Err(invalid(i)));
        };
        let AttentionConfig { num_heads, num_key_value_heads, head_dim, scale, .. } = attention;
        InvalidValue::check(OWNER, "num_attention_heads", num_heads, 1..=LARGEST)?;
        let queries = ("attention heads", num_heads);
        check_divisor("num_key_value_heads", num_key_value_heads, queries)?;
        InvalidValue::check(OWNER, "head_dim", head_dim, 1..=LARGEST / num_heads)?;
        InvalidValue::check(OWNER, "attention_multiplier", scale, f64::MIN..=f64::MAX)?;
        if let Some(theta) = attention.rope_theta {
            InvalidValue::check(OWNER, "rope_theta", theta, 1.0..=f64::MAX)?;
            if !head_dim.is_multiple_of(2) {
                let (owner, name, found) = (OWNER, "head_dim", head_dim.to_string());
                let expected = "an even number, for rotary positions".into();
                return Err(InvalidValue { owner, name, found, expected });
            }
        }
        Ok(())
    }

    /// As many layers with a state-space mixer each; an error if no model can have them.
    ///
    /// ```
    /// use taipan_lm::{Config, LayerKind};
    ///
    /// assert_eq!(Config::ssm_layers(2)?, [LayerKind::Ssm; 2]);
    /// assert!(Config::ssm_layers(usize::MAX).is_err());
    /// # Ok::<(), taipan_lm::InvalidValue>(())
    /// ```
    pub fn ssm_layers(count: usize) -> Result<Vec<LayerKind>, InvalidValue> {
        InvalidValue::check(OWNER, "num_hidden_layers", count, 1..=LARGEST)?;
        Ok(vec![LayerKind::Ssm; count])
    }

    /// What says of a model that it is not of state-space mixers and MLPs alone, without factors,
    /// with its value.
    pub(super) fn more_than_ssm(&self) -> Option<(&'static str, String)> {
        if self.layers.iter().any(|layer| layer.has_attention()) {
            return Some(("layers", "ones with attention".into()));
        }
        if let Some(bias) = self.out_proj_bias.filter(|bias| *bias != self.use_bias) {
            return Some(("out_proj_bias", bias.to_string()));
        }
        if self.mlp.is_some_and(|mlp| mlp.use_bias) {
            return Some(("mlp", "one with biases".into()));
        }
        let other = self.multipliers.named().into_iter().find(|(_, factor)| *factor != 1.0);
        other.map(|(name, factor)| (name, factor.to_string()))
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
