//! AdamW.

use super::optimizer::sealed;
use super::update::Rule;
use super::{LossScale, Optimizer, Options};
use crate::error::{Result, ensure};

/// AdamW (Loshchilov & Hutter 2019): Adam with decoupled weight decay. See [`Optimizer`] for its
/// methods.
///
/// ```text
/// m = β₁m + (1−β₁)g      v = β₂v + (1−β₂)g²      m̂ = m/(1−β₁ᵗ)      v̂ = v/(1−β₂ᵗ)
/// θ = θ·(1 − lr·weight_decay) − lr·m̂/(√v̂ + eps)
/// ```
pub type AdamW = Optimizer<AdamWOptions>;

/// The options that all parameters share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The decay rate of the first moment; 0.9.
    pub beta1: f64,
    /// The decay rate of the second moment; 0.999.
    pub beta2: f64,
    /// Added to the root of the second moment; 1e-8.
    pub eps: f64,
    /// Gradients are clipped to this norm over all parameters; no clipping by default.
    pub max_norm: Option<f64>,
    /// The loss is multiplied by it before backward; no scaling by default.
    pub loss_scale: LossScale,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        AdamWOptions {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            max_norm: None,
            loss_scale: LossScale::None,
        }
    }
}

impl Options for AdamWOptions {}

impl sealed::Options for AdamWOptions {
    const OP: &'static str = "adamw";
    const MOMENTS: &'static [&'static str] = &["m", "v"];

    fn check(&self) -> Result<()> {
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            let fits = (0.0..1.0).contains(&beta);
            ensure!(Self::OP, fits, "{name} is {beta}, expected at least 0 and less than 1");
        }
        let positive = self.eps.is_finite() && self.eps > 0.0;
        ensure!(Self::OP, positive, "eps is {}, expected a number above 0", self.eps);
        Ok(())
    }

    fn rule(&self) -> Rule {
        Rule::AdamW { beta1: self.beta1, beta2: self.beta2, eps: self.eps }
    }

    fn max_norm(&self) -> Option<f64> {
        self.max_norm
    }

    fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }
}
